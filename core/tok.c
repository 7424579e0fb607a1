/* tok.c: the tokenizer as others see it: opening's last step, encoding, and what is known of an id. */
#include "tok_impl.h"
#include <stdio.h>
#include <stdlib.h>

int pl_tok_new(pl_tok **out, pl_err *err)
{
    pl_tok *t = calloc(1, sizeof *t);
    if (!t) return pl_fail(err, PL_ENOMEM, "tokenizer: no memory");
    t->refs = 1;
    t->unk = t->bos = t->eos = -1;
    memset(t->byte_id, 0xff, sizeof t->byte_id);
    *out = t;
    return PL_OK;
}

void pl_tok_keep(pl_tok *t) { (void)__atomic_add_fetch(&t->refs, 1, __ATOMIC_RELAXED); }

void pl_tok_close(pl_tok *t)
{
    if (!t || __atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    for (int32_t i = 0; i < t->n_norm; i++) {
        pl_regex_free(t->norm[i].re);
        pl_buf_free(&t->norm[i].text);
    }
    for (int32_t i = 0; i < t->n_split; i++) pl_regex_free(t->split[i].re);
    for (int32_t i = 0; i < t->n_decode; i++) {
        pl_regex_free(t->decode[i].re);
        pl_buf_free(&t->decode[i].text);
    }
    pl_vocab_free(&t->vocab);
    pl_trie_free(&t->raw);
    pl_trie_free(&t->normal);
    pl_buf_free(&t->bytes);
    pl_buf_free(&t->shown);
    free(t->pairs.slot);
    free(t->rank);
    free(t->added);
    free(t->added_of);
    free(t->bytes_at);
    free(t);
}

int pl_tok_add_split(pl_tok *t, const char *pattern, int64_t n, bool literal, int32_t behavior, bool invert,
                     pl_err *err)
{
    if (t->n_split == PL_TOK_MAX_STEPS)
        return pl_fail(err, PL_EFORMAT, "tokenizer: more than %d pre-tokenizers", PL_TOK_MAX_STEPS);
    pl_split s = {.kind = PL_SPLIT_REGEX, .behavior = behavior, .invert = invert};
    PL_TRY(pl_regex_new(&s.re, pattern, n, literal, err));
    t->split[t->n_split++] = s;
    return PL_OK;
}

int pl_tok_add(pl_tok *t, const pl_added *a, const char *name, int64_t n, pl_err *err)
{
    pl_added added = *a;
    if (n > PL_TOK_MAX_NAME)
        return pl_fail(err, PL_EFORMAT, "tokenizer: added token %d has a name of %lld bytes, want at most %d", a->id,
                       (long long)n, PL_TOK_MAX_NAME);
    if (!pl_vocab_has(&t->vocab, a->id)) {
        added.outside = true;
        PL_TRY(pl_vocab_add(&t->vocab, a->id, name, n, false, err));
    } else if (t->vocab.word[a->id].n != n || memcmp(pl_vocab_text(&t->vocab, a->id), name, (size_t)n) != 0) {
        return pl_fail(err, PL_EFORMAT, "tokenizer: id %d is '%.*s' in the model and '%.*s' among the added tokens",
                       a->id, (int)pl_min(t->vocab.word[a->id].n, 40), pl_vocab_text(&t->vocab, a->id),
                       (int)pl_min(n, 40), name);
    }
    void *p = t->added;
    PL_TRY(pl_mem_grow(&p, &t->cap_added, t->n_added + 1, sizeof *t->added, err));
    t->added = p;
    t->added[t->n_added++] = added;
    return PL_OK;
}

static int build_tries(pl_tok *t, pl_err *err)
{
    pl_matcher m = {.n_text = PL_TOK_MAX_NAME};
    pl_buf scratch[2] = {{0}, {0}};
    int rc = PL_OK;
    for (int32_t i = 0; i < t->n_added && rc >= 0; i++) {
        pl_added *a = &t->added[i];
        const char *name = pl_vocab_text(&t->vocab, a->id);
        int64_t n = t->vocab.word[a->id].n;
        t->added_of[a->id] = i;
        if (a->normalized)
            rc = pl_normalize(t->norm + t->name_norm, t->n_norm - t->name_norm, &m, scratch, &name, &n, err);
        a->shown_at = t->shown.n;
        a->n_shown = (int32_t)n;
        if (rc >= 0) rc = pl_buf_put(&t->shown, name, n, err);
        if (rc >= 0 && n > 0) rc = pl_trie_add(a->normalized ? &t->normal : &t->raw, name, n, i, err);
    }
    pl_matcher_free(&m);
    pl_buf_free(&scratch[0]);
    pl_buf_free(&scratch[1]);
    return rc;
}

static void find_byte_tokens(pl_tok *t)
{
    for (int32_t b = 0; b < 256; b++) {
        char s[8];
        int32_t n;
        if (t->byte_level)
            n = pl_utf8_put(s, pl_byte_char((uint8_t)b));
        else if (t->raw_bytes)
            s[0] = (char)b, n = 1;
        else if (t->byte_fallback)
            n = snprintf(s, sizeof s, "<0x%02X>", (unsigned)b);
        else
            return;
        t->byte_id[b] = pl_vocab_find(&t->vocab, s, n);
    }
}

static void note_spaces(pl_tok *t, int32_t id)
{
    const char *p = pl_vocab_text(&t->vocab, id);
    for (int32_t i = 1; i + 2 < t->vocab.word[id].n; i++)
        if (!memcmp(p + i, "\xe2\x96\x81", 3)) t->inner_space[(uint8_t)p[i - 1]] = true;
}

/* SentencePiece models see a whole text as one piece. But if no token that merging can make has X before an inner
 * U+2581, then no merge crosses from X to one, and the text may as well be cut there: into words. */
static void find_cuts(pl_tok *t)
{
    if (t->byte_level || t->raw_bytes || t->alphabet || t->ignore_merges ||
        pl_vocab_find(&t->vocab, "\xe2\x96\x81", 3) < 0)
        return;
    t->cut_at_space = true;
    if (t->rank) {
        for (int32_t i = 0; i < t->vocab.n_ids; i++)
            if (pl_vocab_has(&t->vocab, i) && t->rank[i] != PL_NO_RANK) note_spaces(t, i);
        return;
    }
    for (int32_t i = 0; i < t->pairs.n_slots; i++)
        if (t->pairs.slot[i].id >= 0) note_spaces(t, t->pairs.slot[i].id);
}

int pl_tok_finish(pl_tok *t, pl_err *err)
{
    const int32_t n = t->vocab.n_ids;
    if (!n) return pl_fail(err, PL_EFORMAT, "tokenizer: no tokens");
    t->added_of = malloc((size_t)n * sizeof *t->added_of);
    if (!t->added_of) return pl_fail(err, PL_ENOMEM, "tokenizer: no memory for %d ids", n);
    memset(t->added_of, 0xff, (size_t)n * sizeof *t->added_of);
    for (int32_t i = 0; i < t->n_norm; i++) t->alphabet |= t->norm[i].kind == PL_NORM_BYTES;
    for (int32_t i = 0; i < t->n_split; i++) {
        if (t->split[i].kind != PL_SPLIT_BYTES) continue;
        if (i == t->n_split - 1)
            t->byte_level = true;
        else
            t->alphabet = true;
    }
    for (int32_t i = 0; i < t->n_prefix; i++)
        if (!pl_vocab_has(&t->vocab, t->prefix[i]))
            return pl_fail(err, PL_EFORMAT, "tokenizer: id %d in front of a text is no token", t->prefix[i]);
    for (int32_t i = 0; i < t->n_suffix; i++)
        if (!pl_vocab_has(&t->vocab, t->suffix[i]))
            return pl_fail(err, PL_EFORMAT, "tokenizer: id %d behind a text is no token", t->suffix[i]);
    find_byte_tokens(t);
    find_cuts(t);
    PL_TRY(build_tries(t, err));
    return pl_tok_prepare_decode(t, err);
}

/* encoding */

static bool word_before(const char *p, int64_t i)
{
    int32_t k;
    if (i == 0) return false;
    do i--;
    while (i > 0 && ((uint8_t)p[i] & 0xc0) == 0x80);
    return pl_is_word(pl_utf8_get(p + i, &k));
}

static bool word_after(const char *p, int64_t i, int64_t n)
{
    int32_t k;
    return i < n && pl_is_word(pl_utf8_get(p + i, &k));
}

/* The bounds of a match after its flags: white space it takes along, on the left no further than `least`. */
static void widen(const pl_added *a, const char *p, int64_t n, int64_t least, int64_t *begin, int64_t *end)
{
    int32_t k;
    while (a->lstrip && *begin > least) {
        int64_t i = *begin - 1;
        while (i > least && ((uint8_t)p[i] & 0xc0) == 0x80) i--;
        if (!pl_is_space(pl_utf8_get(p + i, &k))) break;
        *begin = i;
    }
    while (a->rstrip && *end < n && pl_is_space(pl_utf8_get(p + *end, &k))) *end += k;
}

typedef int plain_text(pl_tok_call *c, const char *p, int64_t n, bool at_start);

/* Cuts the names in a trie out of a text, leftmost and then longest first, and hands what lies between to `plain`. A
 * name that is not to be matched (gated, or part of a word) still hides the names inside it, as in the reference. */
static int scan(pl_tok_call *c, const pl_trie *trie, const char *p, int64_t n, bool at_start, plain_text *plain)
{
    int64_t done = 0;
    for (int64_t i = 0; i < n;) {
        int32_t which = -1;
        if (!trie->first[(uint8_t)p[i]]) {
            i++;
            continue;
        }
        const int64_t k = pl_trie_longest(trie, p + i, n - i, &which);
        if (!k) {
            i++;
            continue;
        }
        const pl_added *a = &c->t->added[which];
        int64_t begin = i, end = i + k;
        i = end;
        if (a->gated && !(c->flags & PL_TOK_SPECIALS)) continue;
        if (a->single_word && (word_before(p, begin) || word_after(p, end, n))) continue;
        widen(a, p, n, done, &begin, &end);
        if (done < begin) PL_TRY(plain(c, p + done, begin - done, at_start && done == 0));
        PL_TRY(pl_ids_push(c->ids, a->id, c->err));
        done = end;
    }
    return done < n ? plain(c, p + done, n - done, at_start && done == 0) : PL_OK;
}

static int split(pl_tok_call *c, const char *p, int64_t n, bool at_start) { return pl_split_run(c, 0, p, n, at_start); }

static int normalize(pl_tok_call *c, const char *p, int64_t n, bool at_start)
{
    PL_TRY(pl_normalize(c->t->norm, c->t->n_norm, &c->matcher, c->norm, &p, &n, c->err));
    return scan(c, &c->t->normal, p, n, at_start, split);
}

static int encode(pl_tok_call *c, const char *p, int64_t n)
{
    const pl_tok *t = c->t;
    for (int32_t i = 0; i < t->n_prefix && c->flags & PL_TOK_BOS; i++)
        PL_TRY(pl_ids_push(c->ids, t->prefix[i], c->err));
    for (int64_t i = 0; i < n;) {
        const int64_t valid = pl_utf8_valid(p + i, n - i);
        PL_TRY(scan(c, &t->raw, p + i, valid, i == 0, normalize));
        int64_t bad = i += valid;
        for (int32_t k; i < n && (k = pl_utf8_seq((const uint8_t *)p + i, n - i)) <= 0;) i += k < 0 ? -k : 1;
        if (bad < i) PL_TRY(pl_bpe_bytes(c, p + bad, i - bad));
    }
    for (int32_t i = 0; i < t->n_suffix && c->flags & PL_TOK_EOS; i++)
        PL_TRY(pl_ids_push(c->ids, t->suffix[i], c->err));
    return PL_OK;
}

int pl_tok_encode(const pl_tok *t, pl_ids *ids, const char *text, int64_t n_bytes, int32_t flags, pl_err *err)
{
    enum {
        PL_WORTH_A_CACHE = 4096,
        PL_GROWTH = 4
    }; /* bytes; a space of one byte may become three, a letter of two nine */
    if (n_bytes < 0 || n_bytes > PL_TOK_MAX_TEXT)
        return pl_fail(err, PL_ELIMIT, "tokenizer: text of %lld bytes, want at most %d", (long long)n_bytes,
                       PL_TOK_MAX_TEXT);
    pl_tok_call c = {.t = t, .ids = ids, .flags = flags, .err = err, .matcher.n_text = n_bytes * PL_GROWTH};
    const int32_t before = ids->n;
    if (n_bytes >= PL_WORTH_A_CACHE)
        c.cache = calloc(PL_TOK_CACHE, sizeof *c.cache); /* does without if there is none */
    const int rc = encode(&c, text, n_bytes);
    if (rc < 0) ids->n = before;
    pl_matcher_free(&c.matcher);
    for (int32_t i = 0; i < PL_TOK_MAX_STEPS; i++) {
        pl_buf_free(&c.prefixed[i]);
        pl_buf_free(&c.mapped[i]);
    }
    pl_buf_free(&c.norm[0]);
    pl_buf_free(&c.norm[1]);
    pl_buf_free(&c.name);
    free(c.symbol);
    free(c.heap);
    free(c.cache);
    return rc;
}

/* what is known of ids */

int32_t pl_tok_size(const pl_tok *t) { return t->vocab.n_ids; }
int32_t pl_tok_bos(const pl_tok *t) { return t->bos; }
int32_t pl_tok_eos(const pl_tok *t) { return t->eos; }
int32_t pl_tok_find(const pl_tok *t, const char *name, int64_t n_bytes)
{
    return n_bytes < 0 ? -1 : pl_vocab_find(&t->vocab, name, n_bytes);
}

bool pl_tok_is_special(const pl_tok *t, int32_t id)
{
    return pl_vocab_has(&t->vocab, id) && t->added_of[id] >= 0 && t->added[t->added_of[id]].special;
}

const char *pl_tok_name(const pl_tok *t, int32_t id, int32_t *n_bytes)
{
    *n_bytes = 0;
    if (!pl_vocab_has(&t->vocab, id)) return NULL;
    *n_bytes = t->vocab.word[id].n;
    return pl_vocab_text(&t->vocab, id);
}

void pl_ids_free(pl_ids *ids)
{
    if (!ids) return;
    free(ids->id);
    *ids = (pl_ids){0};
}

void pl_text_free(pl_text *x)
{
    if (!x) return;
    free(x->data);
    *x = (pl_text){0};
}
