/* The tiers behind the prefix cache: what is copied out comes back as it was, or not at all; whatever happens to the
 * file, to memory or to a page meanwhile is a miss, and no page is lost. */
#include "tier.h"
#include "tier_impl.h"
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 16, PAGES = 24, MOST = 24 };

static pl_dev *dev;
static pl_kv *kv;
static pl_prefix *prefix;
static pl_tier *tier;
static pl_err err;
static char dir[] = "/tmp/perilune-tier-XXXXXX", file[64];
static int32_t dim = 3; /* a page: 16 x (3 + 5) x 4 bytes */

static void open_cache(int32_t check)
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

static int open_with(int64_t host_pages, int64_t disk_pages, const char *model)
{
    const pl_tier_opts o = {.host_bytes = host_pages * kv->page_bytes,
                            .disk_bytes = disk_pages * (4096 + pl_round_up(kv->page_bytes, 4096)),
                            .dir = disk_pages ? dir : NULL,
                            .model = model};
    return pl_tier_open(&tier, prefix, &o, &err);
}

static void open_all(int64_t host_pages, int64_t disk_pages)
{
    open_cache(PL_CHECK_PAGES);
    ck_assert_msg(open_with(host_pages, disk_pages, "a") == PL_OK, "%s", err.msg);
}

static void close_all(double flush_s)
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

static void start(void)
{
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/perilune.pages", dir);
}

static void stop(void)
{
    unlink(file);
    rmdir(dir);
}

/* Pages ----------------------------------------------------------------------------------------------------------- */

static void keys_of(int32_t salt, int32_t n, pl_key *key)
{
    pl_key root;
    pl_prefix_root(&root, &salt, sizeof salt);
    for (int32_t i = 0; i < n; i++) {
        int32_t token[PAGE];
        for (int32_t k = 0; k < PAGE; k++) token[k] = salt + i * PAGE + k;
        pl_prefix_next(&key[i], i ? &key[i - 1] : &root, token, PAGE);
    }
}

static uint8_t byte_of(int32_t salt, int32_t i, int64_t k) { return (uint8_t)(salt * 101 + i * 17 + k * k * 7); }

/* A chain of n pages is computed, and nobody but the cache holds it. */
static void compute(int32_t salt, int32_t n)
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

static void settle(void)
{
    while (pl_tier_copies(tier)) {
        ck_assert(pl_tier_wait(tier, 10));
        (void)pl_tier_poll(tier);
    }
}

static pl_metrics metrics(void)
{
    pl_metrics m = {0};
    pl_tier_metrics(tier, &m);
    return m;
}

/* All that is idle goes to the tiers, the least recently used first. */
static void spill(void)
{
    for (int32_t i = prefix->oldest; i >= 0; i = prefix->entry[i].newer) {
        const pl_key key = prefix->entry[i].key;
        const int32_t n = pl_tier_spill_keys(tier, &key, 1, 1);
        ck_assert(n == 1 || metrics().disk.off);
        settle();
    }
}

static int32_t can_load(int32_t salt, int32_t n)
{
    pl_key key[MOST];
    keys_of(salt, n, key);
    return pl_tier_count(tier, key, n);
}

/* Loads what it can of a chain; how much of it is cached afterwards, all of it right. */
static int32_t load(int32_t salt, int32_t n)
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

static void evict_all(void)
{
    pl_prefix_evict(prefix, PAGES);
    ck_assert_int_eq(pl_kv_free_pages(kv) + kv->tags.n_state[PL_PAGE_QUARANTINED], PAGES);
}

/* Tests ------------------------------------------------------------------------------------------------------------ */

static void there_and_back(int64_t host, int64_t disk)
{
    open_all(host, disk);
    compute(1, 6);
    compute(2, 5);
    ck_assert_int_eq(can_load(3, 6), 0);
    spill();
    ck_assert_int_eq(kv->tags.n_idle, 11);
    evict_all();
    ck_assert_uint_eq(metrics().spill_missed, 0);
    ck_assert_int_eq(can_load(1, 6), 6);
    ck_assert_int_eq(load(1, 6), 6);
    ck_assert_int_eq(load(2, 7), 5);
    ck_assert_int_eq(kv->tags.n_idle, 11);
    const pl_metrics m = metrics();
    ck_assert_uint_eq(m.host.hits + m.disk.hits, 11);
    ck_assert_uint_eq(m.host.stored + m.disk.stored, 11);
    ck_assert_int_eq(m.host.pages + m.disk.pages, 11);
    ck_assert_int_eq(m.n_copies, 0);
    ck_assert(m.copied_bytes == 22 * (double)kv->page_bytes && pl_tier_rate(tier) > 0);
    ck_assert_int_eq(load(1, 6), 6); /* nothing to load */
    ck_assert_uint_eq(metrics().host.hits + metrics().disk.hits, 11);
    close_all(0);
}

START_TEST(host) { there_and_back(12, 0); }
END_TEST
START_TEST(disk) { there_and_back(0, 12); }
END_TEST

START_TEST(odd_sizes)
{
    static const int32_t size[] = {1, 27, 251, 1019}; /* pages of 384, 2,048, 16,384 and 65,536 bytes */
    for (int i = 0; i < 4; i++) {
        dim = size[i];
        there_and_back(11, 0);
        there_and_back(0, 11);
        unlink(file);
    }
}
END_TEST

START_TEST(least_recently_used)
{
    open_all(4, 0);
    compute(1, 4);
    spill();
    compute(2, 2);
    spill();
    evict_all();
    ck_assert_int_eq(can_load(1, 4), 2); /* the last pages of a chain are older than those that lead to them */
    ck_assert_int_eq(can_load(2, 2), 2);
    ck_assert_int_eq(load(1, 4), 2); /* used: the other chain's last page goes first */
    compute(3, 1);
    spill();
    evict_all();
    ck_assert_int_eq(can_load(1, 4), 2);
    ck_assert_int_eq(can_load(2, 2), 1);
    ck_assert_uint_eq(metrics().host.dropped, 3);
    ck_assert_int_eq(metrics().host.pages, 4);
    close_all(0);
}
END_TEST

START_TEST(from_host_to_disk)
{
    open_all(3, 8);
    compute(1, 6);
    spill();
    evict_all();
    ck_assert_uint_eq(metrics().spill_missed, 0);
    ck_assert_int_eq(metrics().disk.pages, 3);
    ck_assert_int_eq(load(1, 6), 6);
    ck_assert_uint_eq(metrics().host.hits, 3);
    ck_assert_uint_eq(metrics().disk.hits, 3);
    close_all(0);
}
END_TEST

START_TEST(missed)
{
    open_all(12, 0);
    compute(1, 6);
    evict_all();
    ck_assert_uint_eq(metrics().spill_missed, 6);
    ck_assert_int_eq(load(1, 6), 0);
    close_all(0);
}
END_TEST

START_TEST(reopened)
{
    struct stat st;
    open_all(4, 12);
    compute(1, 6);
    compute(2, 3);
    spill();
    evict_all();
    ck_assert_int_eq(load(2, 3), 3);
    compute(3, 2);
    close_all(60); /* what is in host memory and in the cache alone goes to the disk */
    ck_assert_int_eq(stat(file, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    open_all(0, 12);
    ck_assert_int_eq(metrics().disk.pages, 11);
    ck_assert_int_eq(load(1, 6), 6);
    ck_assert_int_eq(load(2, 3), 3);
    ck_assert_int_eq(load(3, 2), 2);
    close_all(0);
    open_all(0, 7); /* a smaller file: what lay past its end is gone */
    ck_assert_int_eq(metrics().disk.pages, 7);
    close_all(0);
    open_all(0, 40);
    ck_assert_int_eq(metrics().disk.pages, 7);
    compute(4, 20);
    spill();
    evict_all();
    ck_assert_int_eq(load(4, 20), 20);
    close_all(0);
}
END_TEST

/* At closing time there is more than the disk holds: it keeps what was used last. */
START_TEST(flush_keeps_the_newest)
{
    open_all(0, 5);
    compute(1, 4);
    compute(2, 5);
    close_all(60);
    open_all(0, 5);
    ck_assert_int_eq(load(2, 5), 5);
    ck_assert_int_eq(load(1, 4), 0);
    close_all(0);
}
END_TEST

START_TEST(another_identity)
{
    open_all(0, 12);
    compute(1, 4);
    close_all(60);
    open_cache(PL_CHECK_PAGES);
    ck_assert_int_eq(open_with(0, 12, "b"), PL_OK);
    ck_assert_int_eq(load(1, 4), 0);
    close_all(0);
    open_all(0, 12); /* that model wrote nothing */
    ck_assert_int_eq(load(1, 4), 4);
    close_all(0);
    dim = 4; /* another layout, whose pages have as many bytes on disk */
    open_all(0, 12);
    ck_assert_int_eq(load(1, 4), 0);
    close_all(0);
    dim = 700; /* and not as many */
    open_all(0, 12);
    ck_assert_int_eq(load(1, 4), 0);
    close_all(0);
}
END_TEST

static void flip(int64_t at)
{
    const int fd = open(file, O_RDWR);
    uint8_t b;
    ck_assert_int_eq(pread(fd, &b, 1, at), 1);
    b ^= 4;
    ck_assert_int_eq(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

START_TEST(damaged_file)
{
    open_all(0, 12);
    compute(1, 4); /* written last page first */
    close_all(60);
    open_all(0, 12);
    flip(2 * tier->file.slot_bytes + 4096 + kv->page_bytes - 1); /* the second page of the chain */
    ck_assert_int_eq(can_load(1, 4), 4);
    ck_assert_int_eq(load(1, 4), 1);
    ck_assert_uint_eq(metrics().disk.damaged, 1);
    ck_assert_int_eq(metrics().disk.pages, 3); /* it is not tried again */
    evict_all();
    ck_assert_int_eq(can_load(1, 4), 1);
    close_all(0);
    open_all(0, 12);
    const int64_t slot = tier->file.slot_bytes;
    for (int64_t i = 0; i < 112; i++) { /* every byte of a header */
        close_all(0);
        flip(3 * slot + i);
        open_all(0, 12);
        ck_assert_int_eq(can_load(1, 4), 0);
        close_all(0);
        flip(3 * slot + i);
        open_all(0, 12);
        ck_assert_int_ge(can_load(1, 4), 1);
    }
    close_all(0);
    /* a slot that was copied over another is not that one's */
    const int fd = open(file, O_RDWR);
    uint8_t *all = malloc((size_t)slot);
    ck_assert_int_eq(pread(fd, all, (size_t)slot, 3 * slot), slot);
    ck_assert_int_eq(pwrite(fd, all, (size_t)slot, 7 * slot), slot);
    free(all);
    close(fd);
    open_all(0, 12);
    ck_assert_int_eq(metrics().disk.pages, 4);
    close_all(0);
}
END_TEST

START_TEST(damaged_memory)
{
    open_all(12, 0);
    compute(1, 4);
    compute(2, 4);
    spill();
    evict_all();
    tier->mem[2 * kv->page_bytes + 5] ^= 1; /* the second page of the chain */
    ck_assert_int_eq(load(1, 4), 1);
    ck_assert_uint_eq(metrics().host.damaged, 1);
    memcpy(tier->mem + 7 * kv->page_bytes, tier->mem + 6 * kv->page_bytes, (size_t)kv->page_bytes); /* another page's */
    ck_assert_int_eq(load(2, 4), 0);
    ck_assert_uint_eq(metrics().host.damaged, 2);
    close_all(0);
}
END_TEST

/* A page that changed after its digest was taken is not copied: it is damaged. */
START_TEST(damaged_page)
{
    open_cache(PL_CHECK_DIGESTS);
    ck_assert_int_eq(open_with(12, 0, ""), PL_OK);
    compute(1, 4);
    pl_key key[4];
    keys_of(1, 4, key);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pl_tier_has(tier, &key[i]), false);
    pl_kv_page(kv, pl_prefix_hold(prefix, &key[2]).page)[7] ^= 1;
    spill();
    ck_assert_int_eq(kv->tags.n_state[PL_PAGE_QUARANTINED], 1);
    evict_all();
    ck_assert_int_eq(load(1, 4), 2);
    ck_assert_int_eq(kv->tags.page[pl_prefix_hold(prefix, &key[1]).page].has_digest, true);
    ck_assert_int_eq(pl_kv_scrub(kv, PAGES), 0);
    close_all(0);
}
END_TEST

START_TEST(truncated_while_open)
{
    open_all(0, 12);
    for (int i = 0; i < 4; i++) compute(i, 2);
    spill();
    evict_all();
    ck_assert_int_eq(truncate(file, 3000), 0);
    ck_assert_int_eq(load(0, 2), 0);
    ck_assert_int_eq(load(1, 2), 0);
    pl_metrics m = metrics();
    ck_assert_uint_ge(m.disk.errors, 3);
    ck_assert(m.disk.off);
    ck_assert(strstr(pl_tier_failure(tier), file) != NULL);
    ck_assert_int_eq(can_load(2, 2), 0); /* nobody asks the disk any more */
    compute(5, 3);
    spill();
    ck_assert_uint_eq(metrics().disk.errors, m.disk.errors);
    close_all(60);
    open_all(0, 12);
    ck_assert_int_eq(load(2, 2), 0);
    compute(5, 3);
    spill();
    evict_all();
    ck_assert_int_eq(load(5, 3), 3);
    close_all(0);
}
END_TEST

/* Copies n idle pages while files may have no more than `most` bytes; no assertion meanwhile, as Check writes files. */
static void spill_limited(rlim_t most, int n)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){most, limit.rlim_max});
    for (int i = 0; i < n; i++) {
        pl_tier_spill(tier, 1);
        while (pl_tier_wait(tier, 10)) (void)pl_tier_poll(tier);
    }
    (void)setrlimit(RLIMIT_FSIZE, &limit);
}

START_TEST(full_disk)
{
    open_all(0, 12);
    compute(1, 6);
    spill_limited(10, 3);
    ck_assert_uint_eq(metrics().disk.errors, 3);
    ck_assert(metrics().disk.off);
    ck_assert_int_eq(kv->tags.n_idle, 6);
    close_all(0);
    open_cache(PL_CHECK_PAGES);
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){5000, limit.rlim_max});
    const int rc = open_with(0, 12, "a"); /* said at once */
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    ck_assert_int_eq(rc, PL_EIO);
    ck_assert(strstr(err.msg, "5000") != NULL);
    close_all(0);
}
END_TEST

/* Errors that do not come in a row leave the disk in use. */
START_TEST(recovers)
{
    open_all(0, 12);
    compute(1, 6);
    for (int i = 0; i < 6; i++) spill_limited(i % 2 ? RLIM_INFINITY : 10, 1);
    ck_assert_uint_eq(metrics().disk.errors, 3);
    ck_assert(!metrics().disk.off);
    spill();
    evict_all();
    ck_assert_int_eq(load(1, 6), 6);
    close_all(0);
}
END_TEST

/* Pages are copied while there is time: those that eviction comes to next, for half of the slots, and each once. */
START_TEST(ahead_of_eviction)
{
    open_all(8, 0);
    compute(1, 12);
    for (int i = 0; i < 20; i++) {
        pl_tier_spill(tier, PAGES);
        settle();
    }
    ck_assert_uint_eq(metrics().host.stored, 4);
    for (int i = 0; i < 12; i++) {
        ck_assert_int_eq(pl_prefix_evict(prefix, 1), 1);
        pl_tier_spill(tier, PAGES);
        settle();
    }
    ck_assert_uint_eq(metrics().spill_missed, 0);
    ck_assert_uint_eq(metrics().host.stored, 12);
    ck_assert_uint_eq(metrics().host.dropped, 4);
    ck_assert_int_eq(load(1, 12), 8); /* the last pages of the chain went first */
    close_all(0);
}
END_TEST

START_TEST(refused)
{
    open_all(0, 12);
    pl_tier *first = tier;
    ck_assert_int_eq(open_with(0, 12, "a"), PL_EIO); /* locked */
    ck_assert(strstr(err.msg, "in use") != NULL);
    tier = first;
    const int64_t page = kv->page_bytes;
    const pl_tier_opts bad[] = {{0},
                                {.host_bytes = -1},
                                {.host_bytes = page - 1},
                                {.host_bytes = page, .disk_bytes = 4096, .dir = dir},
                                {.disk_bytes = 1 << 20},
                                {.disk_bytes = 1 << 20, .dir = ""},
                                {.disk_bytes = 1 << 20, .dir = "/no/such/directory"},
                                {.disk_bytes = 1 << 20, .dir = "/dev/null"},
                                {.disk_bytes = 1 << 20, .dir = "/proc"},
                                {.dir = dir}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pl_tier *t = NULL;
        ck_assert_int_lt(pl_tier_open(&t, prefix, &bad[i], &err), 0);
        ck_assert_ptr_null(t);
    }
    compute(1, 2); /* the first one goes on */
    spill();
    evict_all();
    ck_assert_int_eq(load(1, 2), 2);
    close_all(0);
    unlink(file);
    ck_assert_int_eq(symlink("/dev/null", file), 0);
    open_cache(PL_CHECK_PAGES);
    if (geteuid() == 0) {
        unlink(file);
        close(open(file, O_RDWR | O_CREAT, 0666));
        ck_assert_int_eq(chown(file, 12345, 12345), 0);
        ck_assert_int_eq(open_with(0, 12, "a"), PL_EIO);
        ck_assert(strstr(err.msg, "another user") != NULL);
        unlink(file);
        ck_assert_int_eq(symlink("/dev/null", file), 0);
    }
    ck_assert_int_eq(open_with(0, 12, "a"), PL_EIO);
    unlink(file);
    ck_assert_int_eq(mkdir(file, 0700), 0);
    ck_assert_int_eq(open_with(0, 12, "a"), PL_EIO);
    rmdir(file);
    ck_assert_int_eq(mkfifo(file, 0600), 0);
    ck_assert_int_eq(open_with(0, 12, "a"), PL_EIO);
    close_all(0);
    pl_kv *dry;
    const pl_kv_opts o = {.layers = 1, .heads = 1, .key_dim = 1, .value_dim = 1, .n_pages = 4, .dry = true};
    ck_assert_int_eq(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, &err), PL_OK);
    ck_assert_int_eq(pl_kv_open(&dry, dev, &o, &err), PL_OK);
    ck_assert_int_eq(pl_prefix_open(&prefix, dry, &err), PL_OK);
    ck_assert_int_eq(pl_tier_open(&tier, prefix, &(pl_tier_opts){.host_bytes = 1 << 20}, &err), PL_EARG);
    ck_assert(strstr(err.msg, "simulated") != NULL);
    pl_prefix_close(prefix);
    pl_kv_close(dry);
    pl_dev_close(dev);
}
END_TEST

/* While a page is copied it cannot be given back at once: it is not counted as idle, eviction leaves it where it is, and
 * goes on with what leads to it. */
START_TEST(pages_under_way)
{
    open_all(12, 0);
    compute(1, 6);
    pl_key key[6];
    keys_of(1, 6, key);
    pl_tier_stall(tier, true);
    pl_tier_spill(tier, 2);
    ck_assert_int_eq(pl_tier_copies(tier), 2);
    ck_assert_int_eq(kv->tags.n_idle, 4);
    ck_assert_int_eq(pl_prefix_evict(prefix, PAGES), 4);
    ck_assert_int_eq(kv->tags.n_idle, 0);
    ck_assert_int_eq(pl_kv_free_pages(kv), PAGES - 2);
    ck_assert(!pl_tier_poll(tier));
    pl_tier_stall(tier, false);
    settle();
    ck_assert_int_eq(kv->tags.n_idle, 2);
    ck_assert_int_eq(pl_prefix_evict(prefix, PAGES), 2);
    ck_assert_int_eq(metrics().host.pages, 2);
    ck_assert_uint_eq(metrics().spill_missed, 4);
    close_all(0);
}
END_TEST

/* The cache gives a page back all the same: nobody gets it before the copy has ended, and the copy is worthless. */
START_TEST(given_back_under_way)
{
    open_all(12, 0);
    compute(1, 2);
    pl_key key[2];
    keys_of(1, 2, key);
    pl_tier_stall(tier, true);
    pl_tier_spill(tier, 2);
    for (int i = 0; i < 2; i++) pl_tags_uncache(&kv->tags, pl_prefix_hold(prefix, &key[i]));
    ck_assert_int_eq(kv->tags.n_state[PL_PAGE_QUARANTINED], 2);
    compute(2, PAGES - 2);
    pl_tier_stall(tier, false);
    settle();
    ck_assert_int_eq(kv->tags.n_state[PL_PAGE_QUARANTINED], 0);
    ck_assert_int_eq(pl_kv_free_pages(kv), 2);
    ck_assert_int_eq(metrics().host.pages, 0);
    ck_assert_int_eq(load(1, 2), 0);
    close_all(0);
}
END_TEST

START_TEST(loads_under_way)
{
    open_all(12, 0);
    compute(1, 6);
    spill();
    evict_all();
    pl_key key[6];
    pl_hold hold[PAGES];
    uint64_t a, b;
    keys_of(1, 6, key);
    pl_tier_stall(tier, true);
    ck_assert_int_eq(pl_tier_load(tier, key, NULL, 4, PAGES, 5, &a), 4);
    ck_assert_int_eq(pl_tier_load(tier, key, NULL, 6, 1, 6, &b), 5); /* four of them load already */
    ck_assert(a == 4 && b == 5 && !pl_tier_loaded(tier, a));
    ck_assert_int_eq(pl_kv_free_pages(kv), PAGES - 5);
    ck_assert_int_eq(pl_tier_holds(tier, hold), 5);
    ck_assert_int_eq(pl_kv_reclaim(kv, hold, 5), 0); /* they are somebody's */
    for (int i = 0; i < 5; i++) ck_assert_int_eq(kv->tags.tag[hold[i].page] & 1, 1);
    compute(2, 12);
    compute(1, 1); /* someone computes a page that is loaded */
    pl_tier_spill(tier, PAGES);
    ck_assert_int_eq(metrics().host.pages, 6); /* the slots that are read stay */
    pl_tier_stall(tier, false);
    settle();
    ck_assert(pl_tier_loaded(tier, b));
    ck_assert_int_eq(pl_prefix_count(prefix, key, 6), 5);
    ck_assert_int_eq(load(1, 5), 5);
    close_all(0);
}
END_TEST

/* What follows a page that is gone when the load ends is not cached. */
START_TEST(led_to_by_nothing)
{
    open_all(12, 0);
    compute(1, 4);
    spill();
    pl_key key[4];
    uint64_t ticket;
    keys_of(1, 4, key);
    ck_assert_int_eq(pl_prefix_evict(prefix, 2), 2);
    pl_tier_stall(tier, true);
    ck_assert_int_eq(pl_tier_load(tier, key + 2, &key[1], 2, 2, 5, &ticket), 2);
    ck_assert_int_eq(pl_prefix_evict(prefix, PAGES), 2);
    pl_tier_stall(tier, false);
    settle();
    ck_assert_int_eq(pl_kv_free_pages(kv), PAGES);
    ck_assert_int_eq(load(1, 4), 4);
    close_all(0);
}
END_TEST

START_TEST(closed_under_way)
{
    for (int i = 0; i < 20; i++) {
        open_all(6, 6);
        compute(1, 9);
        spill();
        evict_all();
        pl_key key[9];
        uint64_t ticket;
        keys_of(1, 9, key);
        compute(2, 8);
        pl_tier_stall(tier, i % 2);
        (void)pl_tier_load(tier, key, NULL, 9, 9, 5, &ticket);
        pl_tier_spill(tier, 4);
        close_all(i % 4 == 2 ? 60 : 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tier");
    TCase *c = tcase_create("tier");
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, host);
    tcase_add_test(c, disk);
    tcase_add_test(c, odd_sizes);
    tcase_add_test(c, least_recently_used);
    tcase_add_test(c, from_host_to_disk);
    tcase_add_test(c, missed);
    tcase_add_test(c, reopened);
    tcase_add_test(c, flush_keeps_the_newest);
    tcase_add_test(c, another_identity);
    tcase_add_test(c, damaged_file);
    tcase_add_test(c, damaged_memory);
    tcase_add_test(c, damaged_page);
    tcase_add_test(c, truncated_while_open);
    tcase_add_test(c, full_disk);
    tcase_add_test(c, recovers);
    tcase_add_test(c, ahead_of_eviction);
    tcase_add_test(c, refused);
    tcase_add_test(c, pages_under_way);
    tcase_add_test(c, given_back_under_way);
    tcase_add_test(c, loads_under_way);
    tcase_add_test(c, led_to_by_nothing);
    tcase_add_test(c, closed_under_way);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
