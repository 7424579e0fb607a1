#ifndef TIERS_H
#define TIERS_H
/* For tests of the tiers behind the prefix cache: a small cache, chains of pages whose every byte is known, and what
 * is done with them. */
#include "tier.h"
#include "tier_impl.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TIERS static __attribute__((unused)) /* not every test needs every part */

enum { PAGE = 16, PAGES = 24, MOST = 24 };

static pl_dev *dev;
static pl_kv *kv;
static pl_prefix *prefix;
static pl_tier *tier;
static pl_err err;
static char dir[] = "/tmp/perilune-tier-XXXXXX", file[64];
static int32_t dim = 3; /* a page: 16 x (3 + 5) x 4 bytes */

TIERS void open_cache(int32_t check)
{
    const pl_kv_opts o = {.layers = 1,
                          .heads = 1,
                          .key_dim = dim,
                          .value_dim = 5,
                          .page = PAGE,
                          .dtype = PL_F32,
                          .check = check,
                          .n_pages = PAGES};
    ck_assert_int_eq(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, &err), PL_OK);
    ck_assert_int_eq(pl_kv_open(&kv, dev, &o, &err), PL_OK);
    ck_assert_int_eq(pl_prefix_open(&prefix, kv, &err), PL_OK);
}

TIERS int open_with(int64_t host_pages, int64_t disk_pages, const char *model)
{
    const pl_tier_opts o = {.host_bytes = host_pages * kv->page_bytes,
                            .disk_bytes = disk_pages * (4096 + pl_round_up(kv->page_bytes, 4096)),
                            .dir = disk_pages ? dir : NULL,
                            .model = model};
    return pl_tier_open(&tier, prefix, &o, &err);
}

TIERS void open_all(int64_t host_pages, int64_t disk_pages)
{
    open_cache(PL_CHECK_PAGES);
    ck_assert_msg(open_with(host_pages, disk_pages, "a") == PL_OK, "%s", err.msg);
}

TIERS void close_all(double flush_s)
{
    pl_tier_close(tier, flush_s);
    pl_prefix_close(prefix);
    pl_kv_pages n;
    pl_kv_count(kv, &n);
    ck_assert_int_eq(n.free + n.quarantined, PAGES);
    ck_assert_int_eq(n.in_flight, 0);
    pl_kv_readmit(kv);
    ck_assert_int_eq(pl_kv_free_pages(kv), PAGES);
    pl_kv_close(kv);
    pl_dev_close(dev);
    tier = NULL;
}

TIERS void start(void)
{
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/perilune.pages", dir);
}

TIERS void stop(void)
{
    unlink(file);
    rmdir(dir);
}

/* Pages ----------------------------------------------------------------------------------------------------------- */

TIERS void keys_of(int32_t salt, int32_t n, pl_key *key)
{
    pl_key root;
    pl_prefix_root(&root, &salt, sizeof salt);
    for (int32_t i = 0; i < n; i++) {
        int32_t token[PAGE];
        for (int32_t k = 0; k < PAGE; k++) token[k] = salt + i * PAGE + k;
        pl_prefix_next(&key[i], i ? &key[i - 1] : &root, token, PAGE);
    }
}

TIERS uint8_t byte_of(int32_t salt, int32_t i, int64_t k) { return (uint8_t)(salt * 101 + i * 17 + k * k * 7); }

/* A chain of n pages is computed, and nobody but the cache holds it. */
TIERS void compute(int32_t salt, int32_t n)
{
    pl_key key[MOST];
    int32_t seq;
    keys_of(salt, n, key);
    ck_assert_int_eq(pl_kv_seq_new(kv, 1 + salt, &seq, &err), PL_OK);
    const int64_t missing = n - pl_kv_free_pages(kv);
    if (missing > 0) ck_assert_int_eq(pl_prefix_evict(prefix, (int32_t)missing), missing);
    ck_assert_msg(pl_kv_begin(kv, &(pl_span){seq, n * PAGE}, 1, &err) == PL_OK, "%s", err.msg);
    for (int32_t i = 0; i < n; i++)
        for (int64_t k = 0; k < kv->page_bytes; k++) pl_kv_page(kv, kv->seq[seq].page[i])[k] = byte_of(salt, i, k);
    ck_assert_int_eq(pl_kv_commit(kv, &err), 0);
    for (int32_t i = 0; i < n; i++) pl_prefix_put(prefix, &kv->seq[seq], i, &key[i], i ? &key[i - 1] : NULL);
    pl_kv_seq_free(kv, seq);
}

TIERS void settle(void)
{
    while (pl_tier_copies(tier)) {
        ck_assert(pl_tier_wait(tier, 10));
        (void)pl_tier_poll(tier);
    }
}

TIERS pl_metrics metrics(void)
{
    pl_metrics m = {0};
    pl_tier_metrics(tier, &m);
    return m;
}

/* All that is idle goes to the tiers, the least recently used first. */
TIERS void spill(void)
{
    for (int32_t i = prefix->oldest; i >= 0; i = prefix->entry[i].newer) {
        const pl_key key = prefix->entry[i].key;
        const int32_t n = pl_tier_spill_keys(tier, &key, 1, 1);
        ck_assert(n == 1 || metrics().disk.off);
        settle();
    }
}

TIERS int32_t can_load(int32_t salt, int32_t n)
{
    pl_key key[MOST];
    keys_of(salt, n, key);
    return pl_tier_count(tier, key, n);
}

/* Loads what it can of a chain; how much of it is cached afterwards, all of it right. */
TIERS int32_t load(int32_t salt, int32_t n)
{
    pl_key key[MOST];
    uint64_t ticket;
    keys_of(salt, n, key);
    const int32_t k = pl_tier_load(tier, key, NULL, n, (int32_t)pl_kv_free_pages(kv), 99, &ticket);
    ck_assert_int_ge(k, 0);
    ck_assert_int_le(k, n);
    settle();
    ck_assert(pl_tier_loaded(tier, ticket));
    const int32_t cached = pl_prefix_count(prefix, key, n);
    for (int32_t i = 0; i < cached; i++) {
        const pl_hold h = pl_prefix_hold(prefix, &key[i]);
        int64_t n_same = 0; /* Check writes to a file at every assertion */
        for (int64_t b = 0; b < kv->page_bytes; b++) n_same += pl_kv_page(kv, h.page)[b] == byte_of(salt, i, b);
        ck_assert_int_eq(n_same, kv->page_bytes);
        ck_assert_int_eq(kv->tags.page[h.page].refs, 1);
    }
    return cached;
}

TIERS void evict_all(void)
{
    pl_prefix_evict(prefix, PAGES);
    ck_assert_int_eq(pl_kv_free_pages(kv) + kv->tags.n_state[PL_PAGE_QUARANTINED], PAGES);
}
#endif
