/* prefix.c: pages by the tokens that lead to them: a hash table and an order of last use, both over page numbers. */
#include "prefix.h"
#include "mem.h"
#include <sodium.h>
#include <stdlib.h>

int pl_prefix_open(pl_prefix **out, pl_kv *kv, pl_err *err)
{
    if (sodium_init() < 0) return pl_fail(err, PL_EIO, "prefix cache: libsodium finds no source of randomness");
    pl_prefix *p = calloc(1, sizeof *p);
    if (!p) return pl_fail(err, PL_ENOMEM, "prefix cache: no memory");
    p->kv = kv;
    p->oldest = p->newest = -1;
    p->n_buckets = 16;
    while (p->n_buckets < kv->o.n_pages && p->n_buckets < 1 << 30) p->n_buckets *= 2;
    p->entry = calloc((size_t)kv->o.n_pages, sizeof *p->entry);
    p->bucket = malloc((size_t)p->n_buckets * sizeof *p->bucket);
    if (!p->entry || !p->bucket) {
        free(p->entry);
        free(p->bucket);
        free(p);
        return pl_fail(err, PL_ENOMEM, "prefix cache: no memory for %lld pages", (long long)kv->o.n_pages);
    }
    for (int32_t i = 0; i < p->n_buckets; i++) p->bucket[i] = -1;
    *out = p;
    return PL_OK;
}

void pl_prefix_root(pl_key *out, const void *salt, int64_t n_bytes)
{
    static const uint8_t what[] = "perilune prefix 1";
    crypto_generichash_state h;
    crypto_generichash_init(&h, what, sizeof what - 1, PL_KEY_BYTES);
    crypto_generichash_update(&h, salt, (size_t)n_bytes);
    crypto_generichash_final(&h, out->byte, PL_KEY_BYTES);
}

void pl_prefix_next(pl_key *out, const pl_key *before, const int32_t *token, int32_t n)
{
    crypto_generichash(out->byte, PL_KEY_BYTES, (const uint8_t *)token, (size_t)n * sizeof *token, before->byte,
                       PL_KEY_BYTES);
}

/* Entries in their buckets -------------------------------------------------------------------------------- */

static int32_t *bucket_of(const pl_prefix *p, const pl_key *key)
{
    uint64_t h;
    memcpy(&h, key->byte, sizeof h);
    return &p->bucket[h & (uint64_t)(p->n_buckets - 1)];
}

/* The page with this key, -1: none. */
static int32_t find(const pl_prefix *p, const pl_key *key)
{
    int32_t i = *bucket_of(p, key);
    while (i >= 0 && memcmp(&p->entry[i].key, key, sizeof *key) != 0) i = p->entry[i].next;
    return i;
}

/* Entries by last use ------------------------------------------------------------------------------------- */

static void unlink_use(pl_prefix *p, int32_t i)
{
    const pl_prefix_entry *x = &p->entry[i];
    *(x->older >= 0 ? &p->entry[x->older].newer : &p->oldest) = x->newer;
    *(x->newer >= 0 ? &p->entry[x->newer].older : &p->newest) = x->older;
}

static void link_newest(pl_prefix *p, int32_t i)
{
    pl_prefix_entry *x = &p->entry[i];
    x->older = p->newest;
    x->newer = -1;
    *(p->newest >= 0 ? &p->entry[p->newest].newer : &p->oldest) = i;
    p->newest = i;
}

static void touch(pl_prefix *p, int32_t i)
{
    unlink_use(p, i);
    link_newest(p, i);
}

/* A page is never older than those that follow it: what leads to it is touched after it. */
static void touch_up(pl_prefix *p, pl_hold h)
{
    while (h.page >= 0 && p->entry[h.page].hold.tag == h.tag) {
        touch(p, h.page);
        p->entry[h.page].look = p->n_looks;
        h = p->entry[h.page].parent;
    }
}

/* The entry goes, and its page is given back if it still is the cache's own. Entries that follow it are not found any
 * more, and go in their turn. */
static void forget(pl_prefix *p, int32_t i)
{
    pl_prefix_entry *x = &p->entry[i];
    int32_t *at = bucket_of(p, &x->key);
    while (*at != i) at = &p->entry[*at].next;
    *at = x->next;
    unlink_use(p, i);
    pl_tags_uncache(&p->kv->tags, x->hold);
    *x = (pl_prefix_entry){0};
    p->n_entries--;
}

int32_t pl_prefix_count(const pl_prefix *p, const pl_key *key, int32_t n)
{
    int32_t k = 0;
    while (k < n) {
        const int32_t i = find(p, &key[k]);
        if (i < 0 || !pl_tags_valid(&p->kv->tags, p->entry[i].hold)) break;
        k++;
    }
    return k;
}

int32_t pl_prefix_take(pl_prefix *p, const pl_key *key, int32_t n, int64_t owner, pl_hold *hold)
{
    int32_t k = 0;
    for (; k < n; k++) {
        const int32_t i = find(p, &key[k]);
        if (i < 0) break;
        if (!pl_tags_keep(&p->kv->tags, p->entry[i].hold, owner)) {
            forget(p, i);
            break;
        }
        hold[k] = p->entry[i].hold;
    }
    for (int32_t j = k - 1; j >= 0; j--) touch(p, hold[j].page); /* a page is never older than those that follow it */
    return k;
}

static bool same_hold(pl_hold a, pl_hold b) { return a.page == b.page && a.tag == b.tag; }

/* Entry e is page i of the sequence. Who holds a page so holds those that lead to it, and eviction can give back every
 * page that the cache alone holds: none of them leads to one that is in use. */
static bool is_own(const pl_prefix *p, int32_t e, const pl_kv_seq *s, int32_t i)
{
    return e >= 0 && same_hold(p->entry[e].hold, pl_kv_hold(s, i)) && pl_tags_valid(&p->kv->tags, p->entry[e].hold);
}

/* parent: the page before it, -1: none. */
static void add(pl_prefix *p, pl_hold own, const pl_key *key, int32_t parent)
{
    if (p->entry[own.page].hold.tag) forget(p, own.page); /* left over from an owner before */
    pl_tags_cache(&p->kv->tags, own);
    int32_t *at = bucket_of(p, key);
    const pl_hold up = parent >= 0 ? p->entry[parent].hold : (pl_hold){-1, 0};
    p->entry[own.page] = (pl_prefix_entry){.key = *key, .hold = own, .parent = up, .next = *at};
    *at = own.page;
    link_newest(p, own.page);
    p->n_entries++;
    touch_up(p, up);
}

void pl_prefix_put(pl_prefix *p, pl_kv_seq *s, int32_t i, const pl_key *key, const pl_key *before)
{
    pl_tags *t = &p->kv->tags;
    const pl_hold own = pl_kv_hold(s, i);
    const int32_t old = find(p, key), parent = before ? find(p, before) : -1;
    if (!pl_tags_valid(t, own) || (before && !is_own(p, parent, s, i - 1))) return;
    if (is_own(p, old, s, i)) {
        touch_up(p, own);
        return;
    }
    if (old >= 0 && pl_tags_keep(t, p->entry[old].hold, s->owner)) {
        s->page[i] = p->entry[old].hold.page;
        s->tag[i] = p->entry[old].hold.tag;
        (void)pl_tags_drop(t, own);
        touch_up(p, p->entry[old].hold);
        return;
    }
    if (old >= 0) forget(p, old);
    add(p, own, key, parent);
}

pl_hold pl_prefix_hold(const pl_prefix *p, const pl_key *key)
{
    const int32_t i = find(p, key);
    return i >= 0 && pl_tags_valid(&p->kv->tags, p->entry[i].hold) ? p->entry[i].hold : (pl_hold){-1, 0};
}

bool pl_prefix_insert(pl_prefix *p, pl_hold h, const pl_key *key, const pl_key *before)
{
    const int32_t parent = before ? pl_prefix_hold(p, before).page : -1, old = find(p, key);
    if (!pl_tags_valid(&p->kv->tags, h) || (before && parent < 0) || pl_prefix_hold(p, key).page >= 0) return false;
    if (old >= 0) forget(p, old);
    add(p, h, key, parent);
    return true;
}

void pl_prefix_touch(pl_prefix *p, const pl_key *key, int32_t n)
{
    while (--n >= 0) {
        const int32_t i = find(p, &key[n]);
        if (i >= 0) touch(p, i);
    }
}

int32_t pl_prefix_evict(pl_prefix *p, int32_t n)
{
    int32_t n_given = 0;
    p->n_looks++;
    int32_t left =
        -1; /* the last one that stays where it is, as a copy is under way: what follows it may go before it */
    for (;;) {
        const int32_t i = left >= 0 ? p->entry[left].newer : p->oldest;
        if (n_given == n || i < 0 || p->entry[i].look == p->n_looks) break;
        const pl_hold h = p->entry[i].hold;
        const pl_page *page = &p->kv->tags.page[h.page];
        const bool own = pl_tags_valid(&p->kv->tags, h);
        if (own && page->refs > 1) {
            touch_up(p, h); /* in use, with what leads to it: looked at again when the others have been */
        } else if (own && page->readers + page->writers > 0) {
            left = i;
        } else { /* what follows it is older: it went before, or is in use, and then this was touched */
            if (p->evicted && own) p->evicted(p->who, &p->entry[i].key);
            forget(p, i);
            p->n_evicted++;
            n_given += own;
        }
    }
    return n_given;
}

void pl_prefix_close(pl_prefix *p)
{
    if (!p) return;
    for (int32_t i = 0; i < p->kv->o.n_pages; i++) pl_tags_uncache(&p->kv->tags, p->entry[i].hold);
    free(p->entry);
    free(p->bucket);
    free(p);
}
