/* tok_vocab.c: the tables of a tokenizer. Spellings of ids with a hash table back from spelling to id; the pairs of ids
 * that merge, by hash; the names of added tokens as a trie of bytes. All are filled while a file is read and only
 * looked up afterwards. */
#include "tok_impl.h"
#include <stdlib.h>

static uint64_t hash(const char *p, int64_t n)
{
    uint64_t h = (uint64_t)n * 0x9e3779b97f4a7c15u;
    while (n > 0) {
        uint64_t w = 0;
        memcpy(&w, p, (size_t)(n < 8 ? n : 8));
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        p += 8;
        n -= 8;
    }
    return h;
}

static int32_t *slot_of(const pl_vocab *v, const char *p, int64_t n)
{
    for (uint64_t i = hash(p, n);; i++) {
        int32_t *s = &v->slot[i & (uint64_t)(v->n_slots - 1)];
        if (*s < 0) return s;
        if (v->word[*s].n == n && (n == 0 || !memcmp(pl_vocab_text(v, *s), p, (size_t)n))) return s;
    }
}

static int grow_slots(pl_vocab *v, pl_err *err)
{
    if (2 * (v->n_used + 1) <= v->n_slots) return PL_OK;
    const int32_t n = v->n_slots ? v->n_slots * 2 : 1024;
    int32_t *slot = malloc((size_t)n * sizeof *slot), *old = v->slot;
    if (!slot) return pl_fail(err, PL_ENOMEM, "tokenizer: no memory for %d table slots", n);
    memset(slot, 0xff, (size_t)n * sizeof *slot);
    const int32_t n_old = v->n_slots;
    v->slot = slot;
    v->n_slots = n;
    for (int32_t i = 0; i < n_old; i++)
        if (old[i] >= 0) *slot_of(v, pl_vocab_text(v, old[i]), v->word[old[i]].n) = old[i];
    free(old);
    return PL_OK;
}

int pl_vocab_add(pl_vocab *v, int64_t id, const char *p, int64_t n, bool keep_first, pl_err *err)
{
    const int32_t shown = (int32_t)pl_min(n, 40);
    if (id < 0 || id >= PL_TOK_MAX_IDS)
        return pl_fail(err, PL_EFORMAT, "tokenizer: token '%.*s' has id %lld, want 0 .. %d", shown, p, (long long)id,
                       PL_TOK_MAX_IDS - 1);
    if (n > 1 << 20)
        return pl_fail(err, PL_EFORMAT, "tokenizer: token %lld is %lld bytes long, want at most 1 MB", (long long)id,
                       (long long)n);
    if (pl_vocab_has(v, id))
        return pl_fail(err, PL_EFORMAT, "tokenizer: id %lld is given to '%.*s' and to '%.*s'", (long long)id,
                       (int)pl_min(v->word[id].n, 40), pl_vocab_text(v, (int32_t)id), shown, p);
    PL_TRY(grow_slots(v, err));
    void *word = v->word;
    PL_TRY(pl_mem_grow(&word, &v->cap_ids, (int32_t)id + 1, sizeof *v->word, err));
    v->word = word;
    for (; v->n_ids <= id; v->n_ids++) v->word[v->n_ids] = (pl_word){0, -1};
    int32_t *slot = slot_of(v, p, n);
    if (*slot >= 0 && !keep_first)
        return pl_fail(err, PL_EFORMAT, "tokenizer: token '%.*s' has ids %d and %lld", shown, p, *slot, (long long)id);
    v->word[id] = (pl_word){(uint32_t)v->text.n, (int32_t)n};
    PL_TRY(pl_buf_put(&v->text, p, n, err));
    if (*slot < 0) {
        *slot = (int32_t)id;
        v->n_used++;
    }
    if (n > v->longest) v->longest = (int32_t)n;
    return PL_OK;
}

int32_t pl_vocab_find(const pl_vocab *v, const char *p, int64_t n)
{
    return v->n_slots && n <= v->longest ? *slot_of(v, p, n) : -1;
}

void pl_vocab_free(pl_vocab *v)
{
    pl_buf_free(&v->text);
    free(v->word);
    free(v->slot);
    *v = (pl_vocab){0};
}

int pl_pairs_reserve(pl_pairs *t, int64_t n, pl_err *err)
{
    PL_ASSERT(!t->slot);
    if (n > PL_TOK_MAX_IDS * 4LL)
        return pl_fail(err, PL_EFORMAT, "tokenizer: %lld merges, want at most %lld", (long long)n,
                       PL_TOK_MAX_IDS * 4LL);
    int32_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    t->slot = malloc((size_t)slots * sizeof *t->slot);
    if (!t->slot) return pl_fail(err, PL_ENOMEM, "tokenizer: no memory for %lld merges", (long long)n);
    for (int32_t i = 0; i < slots; i++) t->slot[i] = (pl_pair){0, 0, -1};
    t->n_slots = slots;
    return PL_OK;
}

void pl_pairs_put(pl_pairs *t, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = key * 0x9e3779b97f4a7c15u >> 32;
    pl_pair *p;
    while ((p = &t->slot[i & (uint64_t)(t->n_slots - 1)])->id >= 0 && p->key != key) i++;
    if (p->id < 0) t->n_used++;
    PL_ASSERT(t->n_used < t->n_slots);
    *p = (pl_pair){key, rank, id};
}

static uint32_t edge_hash(uint32_t key) { return key * 0x9e3779b1u >> 7; }

static int32_t step(const pl_trie *t, int32_t node, uint8_t byte)
{
    if (!t->n_slots) return 0;
    const uint32_t key = (uint32_t)node << 8 | byte;
    for (uint32_t i = edge_hash(key);; i++) {
        const pl_trie_edge *e = &t->slot[i & (uint32_t)(t->n_slots - 1)];
        if (!e->to) return 0;
        if (e->key == key) return e->to;
    }
}

static void put_edge(pl_trie *t, pl_trie_edge e)
{
    uint32_t i = edge_hash(e.key);
    while (t->slot[i & (uint32_t)(t->n_slots - 1)].to) i++;
    t->slot[i & (uint32_t)(t->n_slots - 1)] = e;
}

static int grow_edges(pl_trie *t, pl_err *err)
{
    if (2 * (t->n_edges + 1) <= t->n_slots) return PL_OK;
    pl_trie_edge *old = t->slot;
    const int32_t n_old = t->n_slots, n = n_old ? n_old * 2 : 64;
    pl_trie_edge *slot = calloc((size_t)n, sizeof *slot);
    if (!slot) return pl_fail(err, PL_ENOMEM, "tokenizer: no memory for %d trie edges", n);
    t->slot = slot;
    t->n_slots = n;
    for (int32_t i = 0; i < n_old; i++)
        if (old[i].to) put_edge(t, old[i]);
    free(old);
    return PL_OK;
}

static int new_node(pl_trie *t, int32_t *node, pl_err *err)
{
    if (t->n_nodes >= 1 << 24)
        return pl_fail(err, PL_ELIMIT, "tokenizer: names of added tokens take more than %d bytes", 1 << 24);
    void *value = t->value;
    PL_TRY(pl_mem_grow(&value, &t->cap_nodes, t->n_nodes + 1, sizeof *t->value, err));
    t->value = value;
    t->value[t->n_nodes] = -1;
    *node = t->n_nodes++;
    return PL_OK;
}

int pl_trie_add(pl_trie *t, const char *p, int64_t n, int32_t value, pl_err *err)
{
    int32_t node;
    PL_ASSERT(n > 0);
    if (!t->n_nodes) PL_TRY(new_node(t, &node, err)); /* node 0: the root, and "none" */
    node = t->first[(uint8_t)p[0]];
    if (!node) {
        PL_TRY(new_node(t, &node, err));
        t->first[(uint8_t)p[0]] = node;
    }
    for (int64_t i = 1; i < n; i++) {
        int32_t next = step(t, node, (uint8_t)p[i]);
        if (!next) {
            PL_TRY(grow_edges(t, err));
            PL_TRY(new_node(t, &next, err));
            put_edge(t, (pl_trie_edge){(uint32_t)node << 8 | (uint8_t)p[i], next});
            t->n_edges++;
        }
        node = next;
    }
    if (t->value[node] < 0) t->value[node] = value;
    return PL_OK;
}

int64_t pl_trie_longest(const pl_trie *t, const char *p, int64_t n, int32_t *value)
{
    int64_t best = 0;
    int32_t node = n > 0 ? t->first[(uint8_t)p[0]] : 0;
    for (int64_t i = 1; node; i++) {
        if (t->value[node] >= 0) {
            best = i;
            *value = t->value[node];
        }
        node = i < n ? step(t, node, (uint8_t)p[i]) : 0;
    }
    return best;
}

void pl_trie_free(pl_trie *t)
{
    free(t->slot);
    free(t->value);
    *t = (pl_trie){0};
}
