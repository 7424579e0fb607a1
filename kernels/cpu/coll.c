/* coll.c: the collectives on the CPU: ranks read each other's memory between two barriers (core/coll.h). Sums are added
 * in the order of ranks, so that every rank gets the same bits. x and y are dense. */
#include "coll.h"
#include "cpu.h"

static int check(const char *op, const pl_coll *c, const pl_tensor *y, const pl_tensor *x, pl_err *err)
{
    if (!c) return pl_fail(err, PL_EARG, "%s: no group of ranks", op);
    if (!pl_tensor_is_dense(y) || !pl_tensor_is_dense(x))
        return pl_fail(err, PL_ESHAPE, "%s: x and y must be dense", op);
    if (y->dtype != PL_F32 || x->dtype != PL_F32)
        return pl_fail(err, PL_EDTYPE, "%s: %s to %s, want f32", op, pl_dtype_name(x->dtype), pl_dtype_name(y->dtype));
    return PL_OK;
}

static int meet(pl_coll *c, const pl_tensor *x, const float *const **all, pl_err *err)
{
    return pl_coll_meet(c, x->data, pl_tensor_count(x) * 4, (const void *const **)all, err);
}

static void add_all(float *y, const float *const *all, int32_t n_ranks, int64_t from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = all[0][from + i];
        for (int32_t r = 1; r < n_ranks; r++) sum += all[r][from + i];
        y[i] = sum;
    }
}

int pl_cpu_sum_ranks(pl_stream *s, pl_coll *c, pl_tensor *y, const pl_tensor *x, pl_err *err)
{
    (void)s;
    const float *const *all;
    PL_TRY(check("sum_ranks", c, y, x, err));
    PL_TRY(meet(c, x, &all, err));
    add_all(y->data, all, pl_coll_size(c), 0, pl_tensor_count(x));
    pl_coll_leave(c);
    return PL_OK;
}

int pl_cpu_all_gather(pl_stream *s, pl_coll *c, pl_tensor *y, const pl_tensor *x, pl_err *err)
{
    (void)s;
    const float *const *all;
    const int64_t n = pl_tensor_count(x);
    PL_TRY(check("all_gather", c, y, x, err));
    if (y->dim[0] != x->dim[0] * pl_coll_size(c))
        return pl_fail(err, PL_ESHAPE, "all_gather: y has %lld rows, want %d x %lld", (long long)y->dim[0],
                       pl_coll_size(c), (long long)x->dim[0]);
    PL_TRY(meet(c, x, &all, err));
    for (int32_t r = 0; r < pl_coll_size(c); r++) memcpy((float *)y->data + r * n, all[r], (size_t)n * 4);
    pl_coll_leave(c);
    return PL_OK;
}

int pl_cpu_reduce_scatter(pl_stream *s, pl_coll *c, pl_tensor *y, const pl_tensor *x, pl_err *err)
{
    (void)s;
    const float *const *all;
    const int64_t n = pl_tensor_count(y);
    PL_TRY(check("reduce_scatter", c, y, x, err));
    if (x->dim[0] != y->dim[0] * pl_coll_size(c))
        return pl_fail(err, PL_ESHAPE, "reduce_scatter: x has %lld rows, want %d x %lld", (long long)x->dim[0],
                       pl_coll_size(c), (long long)y->dim[0]);
    PL_TRY(meet(c, x, &all, err));
    add_all(y->data, all, pl_coll_size(c), n * pl_coll_rank(c), n);
    pl_coll_leave(c);
    return PL_OK;
}

int pl_cpu_all_to_all(pl_stream *s, pl_coll *c, pl_tensor *y, const pl_tensor *x, pl_err *err)
{
    (void)s;
    const float *const *all;
    PL_TRY(check("all_to_all", c, y, x, err));
    if (x->dim[0] % pl_coll_size(c))
        return pl_fail(err, PL_ESHAPE, "all_to_all: %lld rows, want a multiple of %d", (long long)x->dim[0],
                       pl_coll_size(c));
    const int64_t n = pl_tensor_count(x) / pl_coll_size(c);
    PL_TRY(meet(c, x, &all, err));
    for (int32_t r = 0; r < pl_coll_size(c); r++)
        memcpy((float *)y->data + r * n, all[r] + n * pl_coll_rank(c), (size_t)n * 4);
    pl_coll_leave(c);
    return PL_OK;
}

int pl_cpu_broadcast(pl_stream *s, pl_coll *c, pl_tensor *y, const pl_tensor *x, int root, pl_err *err)
{
    (void)s;
    const float *const *all;
    PL_TRY(check("broadcast", c, y, x, err));
    if (root < 0 || root >= pl_coll_size(c))
        return pl_fail(err, PL_EARG, "broadcast: root %d of %d ranks", root, pl_coll_size(c));
    PL_TRY(meet(c, x, &all, err));
    memcpy(y->data, all[root], (size_t)pl_tensor_count(x) * 4);
    pl_coll_leave(c);
    return PL_OK;
}
