/* tok_decode.c: ids to text. What a token adds is computed once, when the tokenizer opens; a text is those bytes one after
 * another, except for its beginning (a leading space that encoding had put there goes) and for what is not UTF-8 (a model
 * may stop inside a character). Decoding at once and one token at a time are the same code. */
#include "tok_impl.h"
#include <stdlib.h>

static int replace(pl_buf *x, const pl_decode *d, pl_matcher *m, pl_err *err)
{
    pl_buf out = {0};
    int64_t done = 0, a, b;
    int rc = PL_OK;
    while (done < x->n) {
        rc = pl_regex_find(d->re, m, x->p, x->n, done, &a, &b, err);
        if (rc <= 0 || a == b) break;
        if ((rc = pl_buf_put(&out, x->p + done, a - done, err)) < 0) break;
        if ((rc = pl_buf_put(&out, d->text.p, d->text.n, err)) < 0) break;
        done = b;
    }
    if (rc >= 0) rc = pl_buf_put(&out, x->p + done, x->n - done, err);
    pl_buf_free(x);
    *x = out;
    return rc < 0 ? rc : PL_OK;
}

static void drop(pl_buf *x, int32_t n)
{
    x->n -= n;
    if (n) memmove(x->p, x->p + n, (size_t)x->n);
}

static bool begins(const pl_buf *x, int32_t at, const pl_buf *with)
{
    return with->n > 0 && x->n - at >= with->n && !memcmp(x->p + at, with->p, (size_t)with->n);
}

static void strip(pl_buf *x, const pl_decode *d)
{
    int32_t n = 0;
    while (n < d->start && begins(x, n * d->text.n, &d->text)) n++;
    drop(x, n * d->text.n);
    for (n = 0; n < d->stop && x->n >= d->text.n && begins(x, x->n - d->text.n, &d->text); n++) x->n -= d->text.n;
}

/* Marks become spaces, or nothing in the first token. */
static int metaspace(pl_buf *x, const pl_decode *d, bool first, pl_err *err)
{
    pl_buf out = {0};
    int rc = PL_OK;
    for (int32_t i = 0; i < x->n && rc >= 0;) {
        const bool mark = begins(x, i, &d->text);
        const int32_t k = mark ? d->text.n : 1;
        if (!mark)
            rc = pl_buf_put(&out, x->p + i, 1, err);
        else if (!first)
            rc = pl_buf_put(&out, " ", 1, err);
        i += k;
    }
    pl_buf_free(x);
    *x = out;
    return rc;
}

/* Names of added tokens often have characters that stand for no byte: those stay as they are. */
static int from_alphabet(pl_buf *x, pl_err *err)
{
    pl_buf bytes = {0};
    const int rc = pl_chars_to_bytes(&bytes, x->p, x->n, err);
    pl_buf_free(rc > 0 ? x : &bytes);
    if (rc > 0) *x = bytes;
    return rc < 0 ? rc : PL_OK;
}

static int token_text(const pl_tok *t, int32_t id, bool first, pl_buf *x, pl_matcher *m, pl_err *err)
{
    const pl_added *a = t->added_of[id] >= 0 ? &t->added[t->added_of[id]] : NULL;
    x->n = 0;
    if (a)
        PL_TRY(pl_buf_put(x, a->n_shown ? t->shown.p + a->shown_at : "", a->n_shown, err));
    else
        PL_TRY(pl_buf_put(x, pl_vocab_text(&t->vocab, id), t->vocab.word[id].n, err));
    for (int32_t i = 0; i < t->n_token_steps; i++) {
        const pl_decode *d = &t->decode[i];
        switch (d->kind) {
        case PL_DECODE_REPLACE:
            PL_TRY(replace(x, d, m, err));
            break;
        case PL_DECODE_STRIP:
            strip(x, d);
            break;
        case PL_DECODE_METASPACE:
            PL_TRY(metaspace(x, d, first && d->start, err));
            break;
        case PL_DECODE_BYTES:
            PL_TRY(from_alphabet(x, err));
            break;
        default: /* PL_DECODE_BYTE_FALLBACK */
            if (x->n == 6 && !memcmp(x->p, "<0x", 3) && x->p[5] == '>' && pl_hex_digit(x->p[3]) >= 0 &&
                pl_hex_digit(x->p[4]) >= 0) {
                x->p[0] = (char)(pl_hex_digit(x->p[3]) << 4 | pl_hex_digit(x->p[4]));
                x->n = 1;
                return PL_OK;
            }
        }
    }
    return PL_OK;
}

/* Steps behind the one that joins the tokens see the whole text, of which a stream has only the beginning. */
static int check_steps(pl_tok *t, pl_err *err)
{
    int32_t i = 0;
    for (; i < t->n_decode && t->decode[i].kind != PL_DECODE_FUSE; i++) {
        t->bad_byte_wise |= t->decode[i].kind == PL_DECODE_BYTE_FALLBACK;
        t->first_differs |= t->decode[i].kind == PL_DECODE_METASPACE && t->decode[i].start;
        if (t->decode[i].kind == PL_DECODE_BYTES) {
            i++;
            break;
        }
    }
    t->n_token_steps = i;
    for (; i < t->n_decode; i++) {
        const pl_decode *d = &t->decode[i];
        if (d->kind == PL_DECODE_FUSE) continue;
        if (d->kind != PL_DECODE_STRIP || d->stop || t->strip)
            return pl_fail(err, PL_EFORMAT,
                           "tokenizer: decoder %d works on the whole text, want only a Strip of its start there", i);
        t->strip = d;
    }
    return PL_OK;
}

int pl_tok_prepare_decode(pl_tok *t, pl_err *err)
{
    const int32_t n = t->vocab.n_ids;
    pl_matcher m = {.n_text = 1 << 20};
    pl_buf x = {0};
    int rc = check_steps(t, err);
    if (rc < 0) return rc;
    t->bytes_at = malloc(((size_t)n + 1) * sizeof *t->bytes_at);
    if (!t->bytes_at) return pl_fail(err, PL_ENOMEM, "tokenizer: no memory for %d ids", n);
    for (int32_t i = 0; i < n && rc >= 0; i++) {
        t->bytes_at[i] = t->bytes.n;
        if (!pl_vocab_has(&t->vocab, i)) continue;
        rc = token_text(t, i, false, &x, &m, err);
        if (rc >= 0) rc = pl_buf_put(&t->bytes, x.p, x.n, err);
    }
    t->bytes_at[n] = t->bytes.n;
    pl_buf_free(&x);
    pl_matcher_free(&m);
    return rc;
}

const char *pl_tok_bytes(const pl_tok *t, int32_t id, int32_t *n_bytes)
{
    *n_bytes = 0;
    if (!pl_vocab_has(&t->vocab, id)) return NULL;
    *n_bytes = (int32_t)(t->bytes_at[id + 1] - t->bytes_at[id]);
    return t->bytes.p ? t->bytes.p + t->bytes_at[id] : "";
}

/* the stream */

static int put_text(pl_text *out, const char *p, int64_t n, pl_err *err)
{
    pl_buf b = {out->data, out->n, out->cap};
    const int rc = pl_buf_put(&b, p, n, err);
    *out = (pl_text){b.p, b.n, b.cap};
    return rc;
}

/* One whole character, unless it is still one of those that the start of a text loses. */
static int put_char(const pl_tok *t, pl_tok_stream *s, pl_text *out, const char *p, int32_t n, pl_err *err)
{
    if (t->strip && s->n_stripped < t->strip->start) {
        if (n == t->strip->text.n && !memcmp(p, t->strip->text.p, (size_t)n)) {
            s->n_stripped++;
            return PL_OK;
        }
        s->n_stripped = t->strip->start;
    }
    return put_text(out, p, n, err);
}

static int put_bad(const pl_tok *t, pl_tok_stream *s, pl_text *out, int32_t n, pl_err *err)
{
    for (int32_t i = 0; i < (t->bad_byte_wise ? n : 1); i++) PL_TRY(put_char(t, s, out, "\xef\xbf\xbd", 3, err));
    return PL_OK;
}

static int put_byte(const pl_tok *t, pl_tok_stream *s, pl_text *out, uint8_t byte, pl_err *err)
{
    if (s->n_held < 0 || s->n_held > 3)
        return pl_fail(err, PL_EARG, "tokenizer: a stream that holds %d bytes, want 0 .. 3", s->n_held);
    s->held[s->n_held++] = byte;
    int32_t k = pl_utf8_seq(s->held, s->n_held);
    if (k == -s->n_held) return PL_OK; /* the beginning of a character */
    if (k <= 0 && s->n_held > 1) {     /* it does not go on like this: give it up and start anew with this byte */
        const int32_t n = s->n_held - 1;
        s->held[0] = byte;
        s->n_held = 1;
        PL_TRY(put_bad(t, s, out, n, err));
        k = pl_utf8_seq(s->held, 1);
        if (k < 0) return PL_OK;
    }
    s->n_held = 0;
    return k > 0 ? put_char(t, s, out, (const char *)s->held, k, err) : put_bad(t, s, out, 1, err);
}

static int put_bytes(const pl_tok *t, pl_tok_stream *s, pl_text *out, const char *p, int64_t n, pl_err *err)
{
    for (int64_t i = 0; i < n;) {
        if (!s->n_held && !(t->strip && s->n_stripped < t->strip->start)) { /* whole characters in one go */
            const int64_t k = pl_utf8_valid(p + i, n - i);
            PL_TRY(put_text(out, p + i, k, err));
            i += k;
            if (i == n) break;
        }
        PL_TRY(put_byte(t, s, out, (uint8_t)p[i++], err));
    }
    return PL_OK;
}

static int put_first(const pl_tok *t, pl_tok_stream *s, pl_text *out, int32_t id, pl_err *err)
{
    pl_matcher m = {.n_text = 1 << 20};
    pl_buf x = {0};
    int rc = token_text(t, id, true, &x, &m, err);
    if (rc >= 0) rc = put_bytes(t, s, out, x.p, x.n, err);
    pl_buf_free(&x);
    pl_matcher_free(&m);
    return rc;
}

int pl_tok_stream_put(const pl_tok *t, pl_tok_stream *s, pl_text *out, int32_t id, int32_t flags, pl_err *err)
{
    if (id < 0) return pl_fail(err, PL_EARG, "tokenizer: id %d, want 0 or more", id);
    if (!pl_vocab_has(&t->vocab, id)) return PL_OK; /* models have more rows than there are tokens */
    if (!(flags & PL_TOK_SPECIALS) && pl_tok_is_special(t, id)) return PL_OK;
    const bool first = s->n_seen == 0;
    s->n_seen = 1;
    if (first && t->first_differs) return put_first(t, s, out, id, err);
    if (!first && t->space_between) PL_TRY(put_bytes(t, s, out, " ", 1, err));
    int32_t n;
    const char *p = pl_tok_bytes(t, id, &n);
    return put_bytes(t, s, out, p, n, err);
}

int pl_tok_stream_end(const pl_tok *t, pl_tok_stream *s, pl_text *out, pl_err *err)
{
    const int32_t n = s->n_held;
    s->n_held = 0;
    return n ? put_bad(t, s, out, n, err) : PL_OK;
}

int pl_tok_decode(const pl_tok *t, pl_text *out, const int32_t *id, int64_t n, int32_t flags, pl_err *err)
{
    pl_tok_stream s = {0};
    for (int64_t i = 0; i < n; i++) PL_TRY(pl_tok_stream_put(t, &s, out, id[i], flags, err));
    return pl_tok_stream_end(t, &s, out, err);
}
