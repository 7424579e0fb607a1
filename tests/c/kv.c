/* The paged cache's bookkeeping: pages are neither lost nor shared, a step that fails takes nothing. */
#include "kv.h"
#include "suite.h"
#include <stdlib.h>

static pl_dev *dev;
static pl_kv *kv;
static pl_err err;

static void setup(void)
{
    ck_assert_int_eq(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, &err), PL_OK);
    const pl_kv_opts o = {
        .layers = 2, .heads = 3, .key_dim = 8, .value_dim = 5, .page = 16, .dtype = PL_F32, .n_pages = 10};
    ck_assert_int_eq(pl_kv_open(&kv, dev, &o, &err), PL_OK);
}
static void teardown(void)
{
    pl_kv_close(kv);
    pl_dev_close(dev);
}

START_TEST(sizes)
{
    ck_assert_int_eq(pl_kv_page_bytes(&kv->o), 2 * 16 * 3 * 13 * 4);
    const pl_kv_opts bad[] = {
        {.layers = 0, .heads = 1, .key_dim = 1, .value_dim = 1, .dtype = PL_F32, .n_pages = 1},
        {.layers = 1, .heads = 1, .key_dim = 1, .value_dim = 1, .page = 20, .dtype = PL_F32, .n_pages = 1},
        {.layers = 1, .heads = 1, .key_dim = 1, .value_dim = 1, .dtype = PL_Q4_0, .n_pages = 1},
        {.layers = 1, .heads = 1, .key_dim = 1, .value_dim = 1, .dtype = PL_BF16, .n_pages = 0},
        {.layers = 1, .heads = 1, .key_dim = 1, .value_dim = 1, .dtype = 99, .n_pages = 1},
        {.layers = 1 << 30, .heads = 1, .key_dim = 1, .value_dim = 1, .dtype = PL_F32, .n_pages = 1},
        {.layers = 1, .heads = INT32_MAX, .key_dim = INT32_MAX, .value_dim = INT32_MAX, .dtype = PL_F32, .n_pages = 1},
        {.layers = 1, .heads = 1, .key_dim = 1, .value_dim = 1, .dtype = PL_F32, .n_pages = INT64_MAX},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pl_kv *none = NULL;
        ck_assert_int_lt(pl_kv_open(&none, dev, &bad[i], &err), 0);
        ck_assert(bad[i].n_pages != 1 || pl_kv_page_bytes(&bad[i]) == 0);
        ck_assert_ptr_null(none);
    }
}
END_TEST

START_TEST(pages_are_taken_and_given_back)
{
    int32_t a, b;
    ck_assert_int_eq(pl_kv_seq_new(kv, 1, &a, &err), PL_OK);
    ck_assert_int_eq(pl_kv_seq_new(kv, 1, &b, &err), PL_OK);
    const pl_span s[] = {{a, 17}, {b, 1}};
    ck_assert_int_eq(pl_kv_begin(kv, s, 2, &err), PL_OK);
    ck_assert_int_eq(pl_kv_free_pages(kv), 7);
    ck_assert_int_eq(kv->span[1].first, 17);
    /* every row of the step is memory of its own, in every layer */
    uint8_t *seen[36];
    int n = 0;
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < s[i].n; t++) seen[n++] = pl_kv_key(kv, &kv->seq[s[i].seq], 1, t);
    for (int t = 0; t < 17; t++) seen[n++] = pl_kv_value(kv, &kv->seq[a], 1, t);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) ck_assert(llabs(seen[i] - seen[k]) >= 3 * 5 * 4);
    pl_kv_commit(kv, NULL);
    ck_assert_int_eq(pl_kv_seq_len(kv, a), 17);
    ck_assert_int_eq(pl_kv_begin(kv, &(pl_span){a, 16}, 1, &err), PL_OK);
    ck_assert_int_eq(pl_kv_free_pages(kv), 6);
    pl_kv_abort(kv);
    ck_assert_int_eq(pl_kv_free_pages(kv), 7);
    ck_assert_int_eq(pl_kv_seq_len(kv, a), 17);
    pl_kv_seq_free(kv, a);
    pl_kv_seq_free(kv, b);
    ck_assert_int_eq(pl_kv_free_pages(kv), 10);
    pl_kv_seq_free(kv, a); /* twice is harmless */
    ck_assert_int_eq(pl_kv_free_pages(kv), 10);
}
END_TEST

START_TEST(refusals_take_nothing)
{
    int32_t a, b;
    ck_assert_int_eq(pl_kv_seq_new(kv, 1, &a, &err), PL_OK);
    ck_assert_int_eq(pl_kv_seq_new(kv, 1, &b, &err), PL_OK);
    ck_assert_int_eq(pl_kv_begin(kv, (pl_span[]){{a, 100}, {b, 100}}, 2, &err), PL_EPAGES);
    ck_assert_str_eq(err.msg, "kv: 14 pages wanted, 10 free");
    ck_assert_int_eq(pl_kv_begin(kv, (pl_span[]){{a, 1}, {a, 1}}, 2, &err), PL_EARG);
    ck_assert_int_eq(pl_kv_begin(kv, &(pl_span){a, 0}, 1, &err), PL_EARG);
    ck_assert_int_eq(pl_kv_begin(kv, &(pl_span){77, 1}, 1, &err), PL_EARG);
    ck_assert_int_eq(pl_kv_begin(kv, &(pl_span){-1, 1}, 1, &err), PL_EARG);
    ck_assert_int_eq(pl_kv_free_pages(kv), 10);
    ck_assert_int_eq(pl_kv_begin(kv, &(pl_span){a, 160}, 1, &err), PL_OK); /* all pages to one */
    pl_kv_commit(kv, NULL);
    ck_assert_int_eq(pl_kv_begin(kv, &(pl_span){b, 1}, 1, &err), PL_EPAGES);
}
END_TEST

/* Random steps against a count of tokens: pages in use are always what the lengths need, and never shared. */
START_TEST(random_steps)
{
    int64_t len[6] = {0};
    int32_t seq[6];
    srand(7);
    for (int i = 0; i < 6; i++) ck_assert_int_eq(pl_kv_seq_new(kv, 1, &seq[i], &err), PL_OK);
    for (int step = 0; step < 20000; step++) {
        const int i = rand() % 6, k = (i + 1 + rand() % 5) % 6;
        if (rand() % 8 == 0) {
            pl_kv_seq_free(kv, seq[i]);
            len[i] = 0;
            ck_assert_int_eq(pl_kv_seq_new(kv, 1, &seq[i], &err), PL_OK);
        }
        const pl_span s[] = {{seq[i], 1 + rand() % 20}, {seq[k], 1 + rand() % 20}};
        const int rc = pl_kv_begin(kv, s, 2, &err);
        if (rc == PL_OK && rand() % 4) {
            pl_kv_commit(kv, NULL);
            len[i] += s[0].n;
            len[k] += s[1].n;
        } else if (rc == PL_OK) {
            pl_kv_abort(kv);
        } else {
            ck_assert_int_eq(rc, PL_EPAGES);
        }
        int64_t used = 0;
        int owner[10] = {0};
        for (int q = 0; q < 6; q++) {
            ck_assert_int_eq(pl_kv_seq_len(kv, seq[q]), len[q]);
            used += (len[q] + 15) / 16;
            for (int32_t p = 0; p < kv->seq[seq[q]].n_pages; p++) ck_assert_int_eq(owner[kv->seq[seq[q]].page[p]]++, 0);
        }
        ck_assert_int_eq(pl_kv_free_pages(kv), 10 - used);
        if (pl_kv_free_pages(kv) < 2) { /* make room again */
            pl_kv_seq_free(kv, seq[0]);
            len[0] = 0;
            ck_assert_int_eq(pl_kv_seq_new(kv, 1, &seq[0], &err), PL_OK);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kv");
    TCase *c = tcase_create("kv");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, sizes);
    tcase_add_test(c, pages_are_taken_and_given_back);
    tcase_add_test(c, refusals_take_nothing);
    tcase_add_test(c, random_steps);
    suite_add_tcase(s, c);
    return run_suite(s);
}
