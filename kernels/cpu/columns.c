/* columns.c: chosen columns of x. */
#include "rows.h"

typedef struct job {
    pl_tensor *y;
    const pl_tensor *x, *cols;
} job;

static void some_rows(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    const job *j = arg;
    const int64_t n = pl_cols(j->y);
    for (int64_t r = from; r < to; r++) {
        float *y = pl_row_f32(j->y, r);
        const float *x = pl_row_f32(j->x, r);
        for (int64_t i = 0; i < n; i++) y[i] = x[pl_i32_at(j->cols, i)];
    }
}

int pl_cpu_columns(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *cols, pl_err *err)
{
    PL_TRY(pl_want("columns", "x", x, PL_F32, err));
    PL_TRY(pl_want("columns", "cols", cols, PL_I32, err));
    PL_TRY(pl_want("columns", "y", y, PL_F32, err));
    for (int64_t i = 0; i < cols->dim[0]; i++) {
        const int32_t c = pl_i32_at(cols, i);
        if (c < 0 || c >= x->dim[1])
            return pl_fail(err, PL_EARG, "columns: cols[%lld] = %d, want 0 to %lld", (long long)i, c,
                           (long long)x->dim[1] - 1);
    }
    job j = {y, x, cols};
    pl_parallel(s, pl_rows(y), pl_row_grain(pl_cols(y)), some_rows, &j);
    return PL_OK;
}
