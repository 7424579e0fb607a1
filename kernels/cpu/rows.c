/* rows.c: the small ops in plain C, and the choice of a path's table. */
#define ROW_OPS pl_row_ops_portable
#include "rows_body.h"

const pl_row_ops *pl_row_ops_of(const pl_stream *s)
{
#ifdef PL_X86
    if (s->path == PL_PATH_AVX2 || s->path == PL_PATH_SOFT_AMX) return &pl_row_ops_avx2;
    if (s->path == PL_PATH_AVX512 || s->path == PL_PATH_AMX) return &pl_row_ops_avx512;
#else
    (void)s;
#endif
    return &pl_row_ops_portable;
}

int pl_want(const char *op, const char *name, const pl_tensor *t, int32_t dtype, pl_err *err)
{
    if (t->dtype == dtype && t->layout == PL_ROWS) return PL_OK;
    return pl_fail(err, PL_EDTYPE, "%s: %s is %s%s, want %s", op, name, pl_dtype_name(t->dtype),
                   t->layout == PL_ROWS ? "" : " in the packed layout", pl_dtype_name(dtype));
}

int pl_want_list(const char *op, const char *name, const pl_tensor *t, int32_t dtype, pl_err *err)
{
    PL_TRY(pl_want(op, name, t, dtype, err));
    if (t->stride[0] == 1 || t->dim[0] < 2) return PL_OK;
    return pl_fail(err, PL_ESHAPE, "%s: %s has a stride of %lld, want it dense", op, name, (long long)t->stride[0]);
}

typedef struct row2 {
    pl_row2_fn *fn;
    const pl_tensor *y, *a, *b;
} row2;

static void row2_part(void *arg, int64_t from, int64_t to, int thread)
{
    const row2 *c = arg;
    (void)thread;
    for (int64_t r = from; r < to; r++)
        c->fn(pl_row_f32(c->y, r), pl_row_f32(c->a, r), pl_row_f32(c->b, r), pl_cols(c->y));
}

int pl_each_row2(pl_stream *s, const char *op, pl_row2_fn *fn, pl_tensor *y, const pl_tensor *a, const char *a_name,
                 const pl_tensor *b, const char *b_name, pl_err *err)
{
    PL_TRY(pl_want(op, a_name, a, PL_F32, err));
    PL_TRY(pl_want(op, b_name, b, PL_F32, err));
    PL_TRY(pl_want(op, "y", y, PL_F32, err));
    row2 c = {fn, y, a, b};
    pl_parallel(s, pl_rows(y), pl_row_grain(pl_cols(y)), row2_part, &c);
    return PL_OK;
}
