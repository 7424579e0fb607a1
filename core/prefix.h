#ifndef PL_PREFIX_H
#define PL_PREFIX_H
/* The prefix cache: full pages of finished and running sequences, found again by the tokens that lead to them. A page's
 * key is a BLAKE2b-256 hash of the key of the page before it and of its own tokens; the first one's predecessor is the
 * salt of the tenant, so that tenants never see each other's pages. The cache is one more holder of a page; a page that
 * nobody else holds is given back when pages are needed, the least recently used first, and a page never before those
 * that follow it. A page whose tag is not what the cache was given is a miss. */
#include "kv.h"

enum { PL_KEY_BYTES = 32 };
typedef struct pl_key {
    uint8_t byte[PL_KEY_BYTES];
} pl_key;

typedef struct pl_prefix_entry { /* of the page with this number */
    pl_key key;
    pl_hold hold;         /* tag 0: no entry */
    pl_hold parent;       /* of the entry before it; page -1: it is the first */
    int32_t next;         /* in its bucket */
    int32_t older, newer; /* by last use */
    uint32_t look;        /* the last eviction that came by it and left it */
} pl_prefix_entry;

typedef struct pl_prefix {
    pl_kv *kv;
    pl_prefix_entry *entry; /* [n_pages] */
    int32_t *bucket;        /* [n_buckets] first page, -1: none */
    int32_t n_buckets;      /* a power of two */
    int32_t oldest, newest, n_entries;
    uint32_t n_looks; /* evictions */
    uint64_t n_evicted;
    void (*evicted)(void *who, const pl_key *key); /* told of each page that is given back; NULL: nobody */
    void *who;
} pl_prefix;

PL_MUST int pl_prefix_open(pl_prefix **out, pl_kv *kv, pl_err *err);
void pl_prefix_close(pl_prefix *p); /* gives back all pages; NULL is accepted */

/* Key of the first page's predecessor, and of a page of n tokens. */
void pl_prefix_root(pl_key *out, const void *salt, int64_t n_bytes);
void pl_prefix_next(pl_key *out, const pl_key *before, const int32_t *token, int32_t n);

/* How many of n keys in a row are cached. */
int32_t pl_prefix_count(const pl_prefix *p, const pl_key *key, int32_t n);
/* The same, and the pages are held for owner: hold[n]. */
int32_t pl_prefix_take(pl_prefix *p, const pl_key *key, int32_t n, int64_t owner, pl_hold *hold);
/* Page i of sequence s is full and has this key; before: the key of the page before it, NULL for the first. Where the key
 * is cached already, the sequence's page becomes the cached one, which holds the same numbers. Nothing happens where the
 * page before it is not both cached and the sequence's own. */
void pl_prefix_put(pl_prefix *p, pl_kv_seq *s, int32_t i, const pl_key *key, const pl_key *before);
/* A page that its holder filled otherwise than by computing it becomes known. False, and nothing is done, where the page
 * before it is not cached, or the key is. */
bool pl_prefix_insert(pl_prefix *p, pl_hold h, const pl_key *key, const pl_key *before);
/* n keys in a row count as used now, where they are cached. */
void pl_prefix_touch(pl_prefix *p, const pl_key *key, int32_t n);
/* The cache's hold of a key's page; page -1: none. */
pl_hold pl_prefix_hold(const pl_prefix *p, const pl_key *key);
/* Gives back up to n pages, none that a copy reads or writes; returns how many. */
int32_t pl_prefix_evict(pl_prefix *p, int32_t n);
/* Pages that eviction could give back now. */
PL_INLINE int32_t pl_prefix_idle(const pl_prefix *p) { return p ? p->kv->tags.n_idle : 0; }
#endif
