/* The disk tier's file: it is found again by the model that wrote it, and by no other; whatever happens to it is a miss. */
#include "suite.h"
#include "tiers.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

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

/* What is there under its name and is not its own stays as it was. */
START_TEST(foreign_file)
{
    static const char text[] = "a diary";
    char now[8192];
    for (size_t n = 1; n <= 8192; n = n == 1 ? sizeof text - 1 : n < 4096 ? 4096 : 2 * n) {
        FILE *f = fopen(file, "wb");
        ck_assert_ptr_nonnull(f);
        for (size_t i = 0; i < n; i++) fputc(text[i % (sizeof text - 1)], f);
        fclose(f);
        ck_assert_int_eq(chmod(file, 0644), 0);
        open_cache(PL_CHECK_PAGES);
        ck_assert_int_eq(open_with(0, 12, "a"), PL_EIO);
        ck_assert_msg(strstr(err.msg, "not a file of perilune's") != NULL, "%s", err.msg);
        pl_prefix_close(prefix);
        pl_kv_close(kv);
        pl_dev_close(dev);
        f = fopen(file, "rb");
        ck_assert_uint_eq(fread(now, 1, sizeof now, f), n);
        fclose(f);
        for (size_t i = 0; i < n; i++) ck_assert_int_eq(now[i], text[i % (sizeof text - 1)]);
        struct stat st;
        ck_assert_int_eq(stat(file, &st), 0);
        ck_assert_int_eq(st.st_mode & 0777, 0644);
    }
    ck_assert_int_eq(truncate(file, 0), 0); /* nothing is nobody's */
    open_all(0, 12);
    compute(1, 4);
    close_all(60);
    open_all(0, 12);
    ck_assert_int_eq(load(1, 4), 4);
    close_all(0);
    for (int64_t i = 0; i < 112; i++) flip(i); /* its own with a first slot that is damaged is its own */
    open_all(0, 12);
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

int main(void)
{
    Suite *s = suite_create("tier_disk");
    TCase *c = tcase_create("tier_disk");
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, reopened);
    tcase_add_test(c, flush_keeps_the_newest);
    tcase_add_test(c, another_identity);
    tcase_add_test(c, damaged_file);
    tcase_add_test(c, foreign_file);
    tcase_add_test(c, truncated_while_open);
    tcase_add_test(c, full_disk);
    tcase_add_test(c, recovers);
    suite_add_tcase(s, c);
    return run_suite(s);
}
