/* tok_bpe.c: the model. A piece starts as one symbol a byte or a character; the pair of neighbours with the lowest rank
 * merges, the leftmost first, until none can. Short pieces, nearly all there are, look for the lowest rank in an array;
 * long ones (a megabyte without a space is a piece) keep the pairs in a heap and the symbols in a list, so that the
 * whole takes n log n. Ranks come from a list of merges, or from the joined text's own rank (tiktoken, SentencePiece). */
#include "tok_impl.h"
#include <stdlib.h>

enum { PL_SHORT = 40 };

/* The model's own tokens, without those that only a name in a text can give. */
static int32_t model_find(const pl_tok *t, const char *p, int64_t n)
{
    const int32_t id = pl_vocab_find(&t->vocab, p, n);
    if (id < 0 || (t->rank && t->rank[id] == PL_NO_RANK)) return -1;
    return t->added_of[id] >= 0 && t->added[t->added_of[id]].outside ? -1 : id;
}

int pl_ids_push(pl_ids *ids, int32_t id, pl_err *err)
{
    if (ids->n == ids->cap) {
        void *p = ids->id;
        PL_TRY(pl_mem_grow(&p, &ids->cap, ids->n + 1, sizeof *ids->id, err));
        ids->id = p;
    }
    ids->id[ids->n++] = id;
    return PL_OK;
}

/* What two neighbours become, and how urgently; false if they never merge. */
static inline bool pair_of(const pl_tok *t, const char *p, const pl_symbol *a, const pl_symbol *b, uint32_t *rank,
                           int32_t *id)
{
    if (t->rank) {
        const int64_t n = (int64_t)a->n + b->n;
        if (n > t->vocab.longest) return false;
        *id = pl_vocab_find(&t->vocab, p + a->at, n);
        if (*id < 0) return false;
        *rank = t->rank[*id];
        return *rank != PL_NO_RANK;
    }
    const pl_pair *m = pl_pairs_get(&t->pairs, a->id, b->id);
    if (!m) return false;
    *rank = (uint32_t)m->rank;
    *id = m->id;
    return true;
}

static void merge_short(pl_tok_call *c, const char *p)
{
    pl_symbol *s = c->symbol;
    uint32_t rank[PL_SHORT];
    int32_t id[PL_SHORT], n = c->n_symbols;
    for (int32_t i = 0; i + 1 < n; i++)
        if (!pair_of(c->t, p, &s[i], &s[i + 1], &rank[i], &id[i])) rank[i] = PL_NO_RANK;
    for (;;) {
        uint32_t best = PL_NO_RANK;
        int32_t k = 0;
        for (int32_t i = 0; i + 1 < n; i++) {
            if (rank[i] >= best) continue;
            best = rank[i];
            k = i;
        }
        if (best == PL_NO_RANK) break;
        s[k].id = id[k];
        s[k].n += s[k + 1].n;
        const size_t rest = (size_t)(n - k - 2);
        memmove(s + k + 1, s + k + 2, rest * sizeof *s);
        if (rest) {
            memmove(rank + k + 1, rank + k + 2, (rest - 1) * sizeof *rank);
            memmove(id + k + 1, id + k + 2, (rest - 1) * sizeof *id);
        }
        n--;
        if (k + 1 < n && !pair_of(c->t, p, &s[k], &s[k + 1], &rank[k], &id[k])) rank[k] = PL_NO_RANK;
        if (k > 0 && !pair_of(c->t, p, &s[k - 1], &s[k], &rank[k - 1], &id[k - 1])) rank[k - 1] = PL_NO_RANK;
    }
    c->n_symbols = n;
}

static int heap_push(pl_tok_call *c, pl_merge m)
{
    if (c->n_heap == c->cap_heap) {
        void *h = c->heap;
        PL_TRY(pl_mem_grow(&h, &c->cap_heap, c->n_heap + 1, sizeof *c->heap, c->err));
        c->heap = h;
    }
    int32_t i = c->n_heap++;
    for (; i > 0 && c->heap[(i - 1) / 2].key > m.key; i = (i - 1) / 2) c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = m;
    return PL_OK;
}

static pl_merge heap_pop(pl_tok_call *c)
{
    pl_merge *h = c->heap;
    const pl_merge top = h[0], last = h[--c->n_heap];
    int32_t i = 0;
    for (int32_t k; (k = 2 * i + 1) < c->n_heap; i = k) {
        if (k + 1 < c->n_heap && h[k + 1].key < h[k].key) k++;
        if (h[k].key >= last.key) break;
        h[i] = h[k];
    }
    h[i] = last;
    return top;
}

static int push_pair(pl_tok_call *c, const char *p, int32_t i)
{
    const pl_symbol *a = &c->symbol[i], *b = &c->symbol[a->next];
    uint32_t rank;
    int32_t id;
    if (!pair_of(c->t, p, a, b, &rank, &id)) return PL_OK;
    return heap_push(c, (pl_merge){(uint64_t)rank << 32 | (uint32_t)i, a->n + b->n, id});
}

static int merge_long(pl_tok_call *c, const char *p)
{
    pl_symbol *s = c->symbol;
    const int32_t n = c->n_symbols;
    c->n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        s[i].prev = i - 1;
        s[i].next = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i + 1 < n; i++) PL_TRY(push_pair(c, p, i));
    while (c->n_heap) {
        const pl_merge m = heap_pop(c);
        const int32_t i = (int32_t)(uint32_t)m.key, j = s[i].next;
        if (!s[i].n || j < 0 || s[i].n + s[j].n != m.n) continue; /* one of the two has merged elsewhere since */
        s[i].id = m.id;
        s[i].n = m.n;
        s[j].n = 0;
        s[i].next = s[j].next;
        if (s[i].next >= 0) {
            s[s[i].next].prev = i;
            PL_TRY(push_pair(c, p, i));
        }
        if (s[i].prev >= 0) PL_TRY(push_pair(c, p, s[i].prev));
    }
    int32_t k = 0;
    for (int32_t i = 0; i >= 0; i = s[i].next) s[k++] = s[i]; /* next is read before it can be overwritten: k <= i */
    c->n_symbols = k;
    return PL_OK;
}

static int add_symbol(pl_tok_call *c, int32_t id, int64_t at, int64_t n)
{
    if (c->n_symbols == c->cap_symbols) {
        void *s = c->symbol;
        PL_TRY(pl_mem_grow(&s, &c->cap_symbols, c->n_symbols + 1, sizeof *c->symbol, c->err));
        c->symbol = s;
    }
    c->symbol[c->n_symbols++] = (pl_symbol){.id = id, .at = (int32_t)at, .n = (int32_t)n};
    return PL_OK;
}

static bool has_bytes(const pl_tok *t, const char *p, int64_t n)
{
    if (!t->byte_fallback) return false;
    for (int64_t i = 0; i < n; i++)
        if (t->byte_id[(uint8_t)p[i]] < 0) return false;
    return true;
}

/* A character that is no token: its bytes, or the unknown token, or (as the reference does) nothing. */
static int unknown_char(pl_tok_call *c, const char *p, int64_t at, int64_t n)
{
    const pl_tok *t = c->t;
    if (t->rank) return add_symbol(c, -1, at, n); /* may still merge by its text; put_unknown sees what is left */
    if (has_bytes(t, p + at, n)) {
        for (int64_t i = 0; i < n; i++) PL_TRY(add_symbol(c, t->byte_id[(uint8_t)p[at + i]], at + i, 1));
        return PL_OK;
    }
    if (t->unk < 0) return PL_OK;
    if (t->fuse_unk && c->n_symbols && c->symbol[c->n_symbols - 1].id == t->unk) {
        c->symbol[c->n_symbols - 1].n += (int32_t)n;
        return PL_OK;
    }
    return add_symbol(c, t->unk, at, n);
}

static int put_unknown(pl_tok_call *c, const char *p, const pl_symbol *s, bool after_unknown)
{
    const pl_tok *t = c->t;
    if (!has_bytes(t, p + s->at, s->n))
        return t->unk < 0 || (after_unknown && t->fuse_unk) ? PL_OK : pl_ids_push(c->ids, t->unk, c->err);
    for (int32_t i = 0; i < s->n; i++) PL_TRY(pl_ids_push(c->ids, t->byte_id[(uint8_t)p[s->at + i]], c->err));
    return PL_OK;
}

/* The piece as one token, if the model allows that without looking at merges. */
static int whole(pl_tok_call *c, const char *p, int64_t n, int32_t *id)
{
    *id = -1;
    if (!c->t->ignore_merges || n > c->t->vocab.longest) return PL_OK;
    if (c->t->byte_level) {
        c->name.n = 0;
        PL_TRY(pl_bytes_to_chars(&c->name, p, n, c->err));
        p = c->name.p;
        n = c->name.n;
    }
    *id = model_find(c->t, p, n);
    return PL_OK;
}

static int merge(pl_tok_call *c, const char *p, int64_t n)
{
    const pl_tok *t = c->t;
    int32_t id;
    PL_TRY(whole(c, p, n, &id));
    if (id >= 0) return pl_ids_push(c->ids, id, c->err);
    c->n_symbols = 0;
    const bool bytes = t->byte_level || t->raw_bytes;
    for (int64_t i = 0; i < n;) {
        const int32_t size = bytes ? 1 : pl_utf8_size((uint8_t)p[i]);
        id = bytes ? t->byte_id[(uint8_t)p[i]] : model_find(t, p + i, size);
        PL_TRY(id >= 0 ? add_symbol(c, id, i, size) : unknown_char(c, p, i, size));
        i += size;
    }
    if (c->n_symbols <= PL_SHORT)
        merge_short(c, p);
    else
        PL_TRY(merge_long(c, p));
    for (int32_t i = 0; i < c->n_symbols; i++) {
        const pl_symbol *s = &c->symbol[i];
        PL_TRY(s->id >= 0 ? pl_ids_push(c->ids, s->id, c->err) : put_unknown(c, p, s, i > 0 && s[-1].id < 0));
    }
    return PL_OK;
}

static pl_cached *cached(const pl_tok_call *c, const char *p, int64_t n)
{
    uint64_t h = (uint64_t)n;
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t w = 0;
        memcpy(&w, p + i, (size_t)pl_min(8, n - i));
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return &c->cache[h & (PL_TOK_CACHE - 1)];
}

/* The same words come again and again: what they became is kept for the rest of the call. */
static int merge_cached(pl_tok_call *c, const char *p, int64_t n)
{
    pl_cached *slot = NULL;
    if (n == 1 && (c->t->byte_level || c->t->raw_bytes) && c->t->byte_id[(uint8_t)*p] >= 0)
        return pl_ids_push(c->ids, c->t->byte_id[(uint8_t)*p], c->err);
    if (c->cache && n <= (int64_t)sizeof slot->text) {
        slot = cached(c, p, n);
        if (slot->n == n && !memcmp(slot->text, p, (size_t)n)) {
            for (int32_t i = 0; i < slot->n_ids; i++) PL_TRY(pl_ids_push(c->ids, slot->id[i], c->err));
            return PL_OK;
        }
    }
    const int32_t before = c->ids->n;
    PL_TRY(merge(c, p, n));
    const int32_t got = c->ids->n - before;
    if (slot && got <= (int32_t)(sizeof slot->id / sizeof *slot->id)) {
        slot->n = (uint8_t)n;
        slot->n_ids = (uint8_t)got;
        memcpy(slot->text, p, (size_t)n);
        if (got) memcpy(slot->id, c->ids->id + before, (size_t)got * sizeof *slot->id);
    }
    return PL_OK;
}

int pl_bpe_piece(pl_tok_call *c, const char *p, int64_t n)
{
    const pl_tok *t = c->t;
    int64_t from = 0;
    if (t->cut_at_space) { /* a text of words becomes words, although nothing split it */
        for (int64_t i = 1; i + 2 < n; i++) {
            const char *next = memchr(p + i, 0xe2, (size_t)(n - 2 - i));
            if (!next) break;
            i = next - p;
            if ((uint8_t)p[i + 1] != 0x96 || (uint8_t)p[i + 2] != 0x81 || t->inner_space[(uint8_t)p[i - 1]]) continue;
            PL_TRY(merge_cached(c, p + from, i - from));
            from = i;
        }
    }
    return merge_cached(c, p + from, n - from);
}

int pl_bpe_bytes(pl_tok_call *c, const char *p, int64_t n)
{
    const pl_tok *t = c->t;
    if (t->byte_level || t->raw_bytes) return merge_cached(c, p, n);
    if (t->alphabet) {
        c->mapped[0].n = 0;
        PL_TRY(pl_bytes_to_chars(&c->mapped[0], p, n, c->err));
        return merge_cached(c, c->mapped[0].p, c->mapped[0].n);
    }
    if (!has_bytes(t, p, n)) return pl_bpe_piece(c, "\xef\xbf\xbd", 3);
    for (int64_t i = 0; i < n; i++) PL_TRY(pl_ids_push(c->ids, t->byte_id[(uint8_t)p[i]], c->err));
    return PL_OK;
}
