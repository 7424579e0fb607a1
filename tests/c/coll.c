/* The loopback collectives, each rank on a thread of its own, against plain loops. */
#include "coll.h"
#include "pl_ops.h"
#include "suite.h"
#include "tensor.h"
#include <pthread.h>
#include <stdlib.h>

enum { MAX_RANKS = 5, T = 6, D = 7 };

typedef struct rank {
    pl_dev *dev;
    pl_coll *coll;
    int n, me, rows; /* rows: of x */
    pl_tensor x, y[5];
    int rc[6];
    pl_err err;
} rank;

static float value(int r, int64_t i) { return (float)(r * 1000 + i) * 0.37f + 1e-3f * (float)r; }

static void *work(void *arg)
{
    rank *k = arg;
    pl_stream *s = pl_dev_stream(k->dev);
    const int64_t dx[] = {k->rows, D}, gathered[] = {k->rows * k->n, D}, share[] = {k->rows / k->n, D};
    float *v = malloc((size_t)(k->rows * D) * 4);
    for (int64_t i = 0; i < k->rows * D; i++) v[i] = value(k->me, i);
    ck_assert_int_eq(pl_tensor_new(&k->x, k->dev, PL_F32, 2, dx, &k->err), PL_OK);
    ck_assert_int_eq(pl_tensor_set_f32(&k->x, v, k->rows * D, &k->err), PL_OK);
    free(v);
    const int64_t *dims[] = {dx, gathered, share, dx, dx};
    for (int i = 0; i < 5; i++) ck_assert_int_eq(pl_tensor_new(&k->y[i], k->dev, PL_F32, 2, dims[i], &k->err), PL_OK);
    for (int round = 0; round < 50; round++) { /* again and again: a barrier that lets one through would show */
        k->rc[0] = pl_sum_ranks(s, k->coll, &k->y[0], &k->x, &k->err);
        k->rc[1] = pl_all_gather(s, k->coll, &k->y[1], &k->x, &k->err);
        k->rc[2] = pl_reduce_scatter(s, k->coll, &k->y[2], &k->x, &k->err);
        k->rc[3] = pl_all_to_all(s, k->coll, &k->y[3], &k->x, &k->err);
        k->rc[4] = pl_broadcast(s, k->coll, &k->y[4], &k->x, k->n - 1, &k->err);
    }
    return NULL;
}

static void start(rank *k, int n, int rows)
{
    pl_coll *c[MAX_RANKS];
    pl_err err;
    ck_assert_int_eq(pl_coll_loopback(c, n, &err), PL_OK);
    for (int i = 0; i < n; i++) {
        k[i] = (rank){.coll = c[i], .n = n, .me = i, .rows = rows};
        ck_assert_int_eq(pl_dev_open(&k[i].dev, &(pl_dev_opts){.n_threads = 1}, &err), PL_OK);
    }
}

static void run(rank *k, int n)
{
    pthread_t t[MAX_RANKS];
    for (int i = 0; i < n; i++) pthread_create(&t[i], NULL, work, &k[i]);
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
}

static void stop(rank *k, int n)
{
    for (int i = 0; i < n; i++) {
        pl_tensor_release(&k[i].x);
        for (int j = 0; j < 5; j++) pl_tensor_release(&k[i].y[j]);
        pl_coll_free(k[i].coll);
        pl_dev_close(k[i].dev);
    }
}

START_TEST(values)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        rank k[MAX_RANKS];
        const int rows = T * n, part = rows / n * D;
        start(k, n, rows);
        run(k, n);
        for (int me = 0; me < n; me++) {
            const float *y[5];
            for (int i = 0; i < 5; i++) {
                ck_assert_int_eq(k[me].rc[i], PL_OK);
                y[i] = k[me].y[i].data;
            }
            for (int64_t i = 0; i < rows * D; i++) {
                float sum = value(0, i);
                for (int r = 1; r < n; r++) sum += value(r, i);
                ck_assert(y[0][i] == sum);
                for (int r = 0; r < n; r++) ck_assert(y[1][r * rows * D + i] == value(r, i));
                if (i / part == me) ck_assert(y[2][i - me * part] == sum);
                ck_assert(y[3][i] == value((int)(i / part), me * part + i % part));
                ck_assert(y[4][i] == value(n - 1, i));
            }
        }
        stop(k, n);
    }
}
END_TEST

static void *differ(void *arg)
{
    rank *k = arg;
    const int64_t d[] = {k->me == 1 ? 4 : 2, D};
    ck_assert_int_eq(pl_tensor_new(&k->x, k->dev, PL_F32, 2, d, &k->err), PL_OK);
    ck_assert_int_eq(pl_tensor_new(&k->y[0], k->dev, PL_F32, 2, d, &k->err), PL_OK);
    k->rc[0] = pl_sum_ranks(pl_dev_stream(k->dev), k->coll, &k->y[0], &k->x, &k->err);
    return NULL;
}

/* A rank that brings another shape is an error on every rank, not a hang or a read past the end. */
START_TEST(shapes_differ)
{
    rank k[3];
    pthread_t t[3];
    start(k, 3, T);
    for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, differ, &k[i]);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(k[i].rc[0], PL_ESHAPE);
    ck_assert_str_eq(k[0].err.msg, "collective: rank 0 brings 56 bytes, rank 1 112");
    stop(k, 3);
    pl_coll *c[1];
    pl_err err;
    ck_assert_int_eq(pl_coll_loopback(c, 0, &err), PL_EARG);
    ck_assert_int_eq(pl_coll_loopback(c, 65, &err), PL_EARG);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("coll");
    TCase *c = tcase_create("coll");
    tcase_add_test(c, values);
    tcase_add_test(c, shapes_differ);
    suite_add_tcase(s, c);
    return run_suite(s);
}
