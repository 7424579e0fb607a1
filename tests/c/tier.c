/* The tiers behind the prefix cache: what is copied out comes back as it was, or not at all; whatever happens to memory
 * or to a page meanwhile is a miss, and no page is lost. */
#include "suite.h"
#include "tiers.h"
#include <fcntl.h>
#include <sys/stat.h>

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
    tcase_add_test(c, damaged_memory);
    tcase_add_test(c, damaged_page);
    tcase_add_test(c, ahead_of_eviction);
    tcase_add_test(c, refused);
    tcase_add_test(c, pages_under_way);
    tcase_add_test(c, given_back_under_way);
    tcase_add_test(c, loads_under_way);
    tcase_add_test(c, led_to_by_nothing);
    tcase_add_test(c, closed_under_way);
    suite_add_tcase(s, c);
    return run_suite(s);
}
