/* tok_split.c: the pre-tokenizers. Each step cuts a piece into smaller ones and hands them, in order, to the next; behind
 * the last stands the model. The walk goes depth first, so no list of pieces is ever held. A piece is a text of its own:
 * a pattern sees nothing before or behind it. */
#include "tok_impl.h"

/* Cutting one piece: items (matches and what lies between) come in order; what becomes of them is the step's `behavior`. */
typedef struct cut {
    pl_tok_call *c;
    const pl_split *s;
    const char *p;
    int32_t next; /* step that gets the pieces */
    bool at_start;
    int64_t begin, end; /* piece that may still grow */
    bool open, was_match;
} cut;

static int emit(const cut *w, int64_t a, int64_t b)
{
    if (a == b) return PL_OK;
    if (w->s->kind != PL_SPLIT_BYTES || w->next == w->c->t->n_split)
        return pl_split_run(w->c, w->next, w->p + a, b - a, w->at_start && a == 0);
    pl_buf *mapped = &w->c->mapped[w->next - 1]; /* steps behind a byte-level one see its alphabet */
    mapped->n = 0;
    PL_TRY(pl_bytes_to_chars(mapped, w->p + a, b - a, w->c->err));
    return pl_split_run(w->c, w->next, mapped->p, mapped->n, w->at_start && a == 0);
}

static int flush(cut *w)
{
    const bool open = w->open;
    w->open = false;
    return open ? emit(w, w->begin, w->end) : PL_OK;
}

static int item(cut *w, int64_t a, int64_t b, bool match)
{
    const bool m = match != w->s->invert, before = w->was_match;
    w->was_match = m;
    switch (w->s->behavior) {
    case PL_ISOLATED:
        return emit(w, a, b);
    case PL_REMOVED:
        return m ? PL_OK : emit(w, a, b);
    case PL_CONTIGUOUS:
        if (w->open && m == before) {
            w->end = b;
            return PL_OK;
        }
        break;
    case PL_MERGED_WITH_PREVIOUS:
        if (w->open && m && !before) {
            w->end = b;
            return PL_OK;
        }
        break;
    default: /* PL_MERGED_WITH_NEXT: only a match waits for what follows */
        if (w->open && !m) {
            w->end = b;
            return flush(w);
        }
        PL_TRY(flush(w));
        if (!m) return emit(w, a, b);
    }
    PL_TRY(flush(w));
    w->open = true;
    w->begin = a;
    w->end = b;
    return PL_OK;
}

static int cut_by_pattern(cut *w, int64_t n)
{
    int64_t from = 0, done = 0, last = -1, a, b;
    while (from <= n) {
        const int rc = pl_regex_find(w->s->re, &w->c->matcher, w->p, n, from, &a, &b, w->c->err);
        if (rc < 0) return rc;
        if (rc == 0) break;
        if (a == b && a == last) { /* an empty match right behind the last one: go on behind the next character */
            from += from < n ? pl_utf8_size((uint8_t)w->p[from]) : 1;
            continue;
        }
        if (done < a) PL_TRY(item(w, done, a, false));
        PL_TRY(item(w, a, b, true));
        done = from = last = b;
    }
    if (done < n) PL_TRY(item(w, done, n, false));
    return flush(w);
}

static int cut_by_length(cut *w, int64_t n)
{
    int64_t a = 0, b = 0;
    int32_t k = 0;
    while (b < n) {
        b += pl_utf8_size((uint8_t)w->p[b]);
        if (++k < w->s->length && b < n) continue;
        PL_TRY(emit(w, a, b));
        a = b;
        k = 0;
    }
    return PL_OK;
}

/* Spaces become the mark, and the mark is put in front if it is to be and is not there. */
static int to_metaspace(pl_buf *out, const pl_split *s, const char *p, int64_t n, bool at_start, pl_err *err)
{
    const bool has = n > 0 && (p[0] == ' ' || (n >= s->n_mark && !memcmp(p, s->mark, (size_t)s->n_mark)));
    out->n = 0;
    if (!has && (s->prepend == PL_PREPEND_ALWAYS || (s->prepend == PL_PREPEND_FIRST && at_start)))
        PL_TRY(pl_buf_put(out, s->mark, s->n_mark, err));
    for (int64_t i = 0; i < n;) {
        const char *space = memchr(p + i, ' ', (size_t)(n - i));
        const int64_t k = space ? space - p : n;
        PL_TRY(pl_buf_put(out, p + i, k - i, err));
        if (space) PL_TRY(pl_buf_put(out, s->mark, s->n_mark, err));
        i = k + 1;
    }
    return PL_OK;
}

int pl_split_run(pl_tok_call *c, int32_t step, const char *p, int64_t n, bool at_start)
{
    if (n == 0) return PL_OK;
    if (step == c->t->n_split) return pl_bpe_piece(c, p, n);
    const pl_split *s = &c->t->split[step];
    pl_buf *own = &c->prefixed[step];
    cut w = {.c = c, .s = s, .p = p, .next = step + 1, .at_start = at_start};
    if (s->kind == PL_SPLIT_FIXED) return cut_by_length(&w, n);
    if (s->kind == PL_SPLIT_METASPACE) {
        PL_TRY(to_metaspace(own, s, p, n, at_start, c->err));
        w.p = own->p;
        n = own->n;
    } else if (s->kind == PL_SPLIT_BYTES && s->prepend == PL_PREPEND_ALWAYS && p[0] != ' ') {
        own->n = 0;
        PL_TRY(pl_buf_put(own, " ", 1, c->err));
        PL_TRY(pl_buf_put(own, p, n, c->err));
        w.p = own->p;
        n = own->n;
    }
    return s->re ? cut_by_pattern(&w, n) : emit(&w, 0, n);
}
