/* tok_norm.c: what is done to a text before it is split: Unicode normal forms, lower case, replacements. A step that has
 * nothing to do (most texts are ASCII, or composed already) hands its input on without a copy where that is cheap to see. */
#include "tok_impl.h"
#include <stdlib.h>
#include <utf8proc.h>

static bool is_ascii(const char *p, int64_t n)
{
    uint64_t high = 0, eight;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&eight, p, 8);
        high |= eight;
    }
    for (; n > 0; p++, n--) high |= (uint64_t)(uint8_t)*p;
    return !(high & 0x8080808080808080u);
}

static int32_t class_of(int32_t c) { return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class; }

/* Canonical order: within a run of marks by combining class, equal classes stay as they are. A text can be one long run,
 * so long ones are sorted by counting. tmp has room for n. */
static void order_marks(int32_t *c, int64_t n, int32_t *tmp)
{
    if (n <= 24) {
        for (int64_t i = 1; i < n; i++) {
            const int32_t x = c[i], k = class_of(x);
            int64_t j = i;
            for (; j > 0 && class_of(c[j - 1]) > k; j--) c[j] = c[j - 1];
            c[j] = x;
        }
        return;
    }
    int64_t at[257] = {0};
    for (int64_t i = 0; i < n; i++) at[class_of(c[i]) + 1]++;
    for (int32_t k = 0; k < 256; k++) at[k + 1] += at[k];
    for (int64_t i = 0; i < n; i++) tmp[at[class_of(c[i])]++] = c[i];
    memcpy(c, tmp, (size_t)n * sizeof *c);
}

static int normal_form(pl_buf *out, const char *p, int64_t n, int32_t kind, pl_err *err)
{
    const bool compat = kind == PL_NORM_NFKC || kind == PL_NORM_NFKD,
               compose = kind == PL_NORM_NFC || kind == PL_NORM_NFKC;
    const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    int32_t *c = NULL, *tmp = NULL, cap = 0, rc = PL_OK;
    int64_t k = 0;
    enum { PL_LONGEST = 32 }; /* code points that one may decompose to; the standard's longest is 18 */
    for (int64_t i = 0; i < n;) {
        int32_t size, bound = 0;
        const uint32_t x = pl_utf8_get(p + i, &size);
        i += size;
        void *grown = c;
        if ((rc = pl_mem_grow(&grown, &cap, (int32_t)k + PL_LONGEST, sizeof *c, err)) < 0) goto done;
        c = grown;
        const utf8proc_ssize_t got =
            utf8proc_decompose_char((utf8proc_int32_t)x, c + k, PL_LONGEST, (utf8proc_option_t)options, &bound);
        if (got < 0 || got > PL_LONGEST)
            c[k++] = (int32_t)x; /* not reached: every scalar value has a form */
        else
            k += got;
    }
    for (int64_t i = 0; i < k;) {
        int64_t j = i;
        while (j < k && class_of(c[j])) j++;
        if (j - i > 24 && !tmp && !(tmp = malloc((size_t)k * sizeof *tmp))) {
            rc = pl_fail(err, PL_ENOMEM, "tokenizer: no memory to normalise %lld bytes", (long long)n);
            goto done;
        }
        if (j - i > 1) order_marks(c + i, j - i, tmp);
        i = j + 1;
    }
    if (compose && k) k = utf8proc_normalize_utf32(c, k, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (int64_t i = 0; i < k; i++)
        if ((rc = pl_buf_char(out, (uint32_t)c[i], err)) < 0) goto done;
done:
    free(c);
    free(tmp);
    return rc;
}

/* NMT: controls go (negative), separators of all kinds become spaces. */
static int32_t nmt(uint32_t c)
{
    if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f) return -1;
    if (c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 ||
        c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd)
        return ' ';
    return (int32_t)c;
}

static int32_t without_marks(uint32_t c)
{
    const utf8proc_category_t g = utf8proc_category((utf8proc_int32_t)c);
    return g == UTF8PROC_CATEGORY_MN || g == UTF8PROC_CATEGORY_MC || g == UTF8PROC_CATEGORY_ME ? -1 : (int32_t)c;
}

/* Steps that look at one character at a time. */
static int each_char(pl_buf *out, const char *p, int64_t n, int32_t kind, pl_err *err)
{
    for (int64_t i = 0; i < n;) {
        int32_t size;
        const uint32_t c = pl_utf8_get(p + i, &size);
        const int32_t to = kind == PL_NORM_NMT             ? nmt(c)
                           : kind == PL_NORM_STRIP_ACCENTS ? without_marks(c)
                                                           : utf8proc_tolower((utf8proc_int32_t)c);
        i += size;
        if (kind == PL_NORM_LOWERCASE && c == 0x130)
            PL_TRY(pl_buf_puts(out, "i\xcc\x87", err)); /* two characters */
        else if (to >= 0)
            PL_TRY(pl_buf_char(out, (uint32_t)to, err));
    }
    return PL_OK;
}

static int replace(pl_buf *out, const char *p, int64_t n, const pl_norm *s, pl_matcher *m, pl_err *err)
{
    int64_t done = 0, from = 0, a, b;
    while (from <= n) {
        const int rc = pl_regex_find(s->re, m, p, n, from, &a, &b, err);
        if (rc < 0) return rc;
        if (rc == 0) break;
        if (a == b) { /* nothing to replace; go on behind the next character */
            if (a >= n) break;
            from = a + pl_utf8_size((uint8_t)p[a]);
            continue;
        }
        PL_TRY(pl_buf_put(out, p + done, a - done, err));
        PL_TRY(pl_buf_put(out, s->text.p, s->text.n, err));
        done = from = b;
    }
    return pl_buf_put(out, p + done, n - done, err);
}

static void strip(const pl_norm *s, const char **p, int64_t *n)
{
    int32_t size;
    while (s->left && *n > 0 && pl_is_space(pl_utf8_get(*p, &size))) {
        *p += size;
        *n -= size;
    }
    while (s->right && *n > 0) {
        int64_t i = *n - 1;
        while (i > 0 && ((uint8_t)(*p)[i] & 0xc0) == 0x80) i--;
        if (!pl_is_space(pl_utf8_get(*p + i, &size))) break;
        *n = i;
    }
}

int pl_normalize(const pl_norm *step, int32_t n_steps, pl_matcher *m, pl_buf scratch[2], const char **text, int64_t *n,
                 pl_err *err)
{
    int32_t turn = 0;
    for (int32_t i = 0; i<n_steps && * n> 0; i++) {
        const pl_norm *s = &step[i];
        pl_buf *out = &scratch[turn];
        out->n = 0;
        switch (s->kind) {
        case PL_NORM_STRIP:
            strip(s, text, n);
            continue;
        case PL_NORM_PREPEND:
            PL_TRY(pl_buf_put(out, s->text.p, s->text.n, err));
            PL_TRY(pl_buf_put(out, *text, *n, err));
            break;
        case PL_NORM_REPLACE:
            PL_TRY(replace(out, *text, *n, s, m, err));
            break;
        case PL_NORM_BYTES:
            PL_TRY(pl_bytes_to_chars(out, *text, *n, err));
            break;
        case PL_NORM_LOWERCASE:
        case PL_NORM_NMT:
            PL_TRY(each_char(out, *text, *n, s->kind, err));
            break;
        case PL_NORM_STRIP_ACCENTS:
            if (is_ascii(*text, *n)) continue;
            PL_TRY(each_char(out, *text, *n, s->kind, err));
            break;
        default:
            if (is_ascii(*text, *n)) continue;
            PL_TRY(normal_form(out, *text, *n, s->kind, err));
        }
        *text = out->n ? out->p : "";
        *n = out->n;
        turn ^= 1;
    }
    return PL_OK;
}
