/* tok_match.c: compiling and running patterns with PCRE2. The text is known to be UTF-8, so its check is skipped: with it,
 * each of the many matches in a long text would look at all of it. Patterns come from files, so steps and memory have
 * limits; the matcher's state belongs to one call, the compiled pattern to everybody. */
#include "tok_impl.h"
#include <stdlib.h>

enum {
    PL_STACK_LEAST = 32 << 10,
    PL_STACK_MOST = 256 << 20,
    PL_HEAP_KB = 512 << 10,
    PL_STEPS_LEAST = 10000000,
    PL_STEPS_PER_BYTE = 64
};

struct pl_regex {
    pcre2_code *code;
    bool jit;
};

int pl_regex_new(pl_regex **out, const char *pattern, int64_t n, bool literal, pl_err *err)
{
    pl_buf text = {0};
    pcre2_compile_context *context = NULL;
    pl_regex *re = calloc(1, sizeof *re);
    int rc = PL_OK, code = 0;
    PCRE2_SIZE where = 0;
    if (!re || !(context = pcre2_compile_context_create(NULL))) {
        rc = pl_fail(err, PL_ENOMEM, "tokenizer: no memory for a pattern");
        goto done;
    }
    if ((rc = literal ? pl_buf_put(&text, pattern, n, err) : pl_regex_translate(&text, pattern, n, err)) < 0) goto done;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    re->code = pcre2_compile((PCRE2_SPTR)(text.p ? text.p : ""), (PCRE2_SIZE)text.n,
                             PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_NEVER_BACKSLASH_C), &code, &where, context);
    if (!re->code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        rc = pl_fail(err, PL_EFORMAT, "tokenizer: pattern '%.*s': %s", (int)pl_min(n, 80), pattern, (const char *)why);
        goto done;
    }
    re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0; /* where there is no JIT the interpreter runs */
    *out = re;
    re = NULL;
done:
    pl_buf_free(&text);
    pcre2_compile_context_free(context);
    pl_regex_free(re);
    return rc;
}

void pl_regex_free(pl_regex *re)
{
    if (!re) return;
    pcre2_code_free(re->code);
    free(re);
}

void pl_matcher_free(pl_matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    if (m->stack) pcre2_jit_stack_free(m->stack);
    *m = (pl_matcher){0};
}

static int prepare(pl_matcher *m, pl_err *err)
{
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context) return pl_fail(err, PL_ENOMEM, "tokenizer: no memory for a match");
    const int64_t steps = pl_max(PL_STEPS_LEAST, pl_min(m->n_text * PL_STEPS_PER_BYTE, UINT32_MAX));
    pcre2_set_match_limit(m->context, (uint32_t)steps);
    pcre2_set_depth_limit(m->context, (uint32_t)steps);
    pcre2_set_heap_limit(m->context, PL_HEAP_KB);
    return PL_OK;
}

int pl_regex_find(const pl_regex *re, pl_matcher *m, const char *text, int64_t n, int64_t from, int64_t *begin,
                  int64_t *end, pl_err *err)
{
    if (!m->data) PL_TRY(prepare(m, err));
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (re->jit)
        rc = pcre2_jit_match(re->code, (PCRE2_SPTR)text, (PCRE2_SIZE)n, (PCRE2_SIZE)from, 0, m->data, m->context);
    if (re->jit && rc == PCRE2_ERROR_JIT_STACKLIMIT &&
        !m->stack) { /* the 32 KB that PCRE2 takes by itself are not enough */
        m->stack = pcre2_jit_stack_create(PL_STACK_LEAST, PL_STACK_MOST, NULL);
        if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
        if (m->stack)
            rc = pcre2_jit_match(re->code, (PCRE2_SPTR)text, (PCRE2_SIZE)n, (PCRE2_SIZE)from, 0, m->data, m->context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re->code, (PCRE2_SPTR)text, (PCRE2_SIZE)n, (PCRE2_SIZE)from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         m->data, m->context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(rc, why, sizeof why);
        return pl_fail(err, PL_ELIMIT, "tokenizer: a pattern gave up on %lld bytes: %s", (long long)n,
                       (const char *)why);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(m->data);
    *begin = (int64_t)bounds[0];
    *end = (int64_t)bounds[1];
    return 1;
}
