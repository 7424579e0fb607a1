/* rms_norm.c: root-mean-square norm of rows; row_rms_norm of rows_body.h gives the order of the sum. */
#include "rows.h"

typedef struct call {
    const pl_row_ops *ops;
    const pl_tensor *y, *x;
    const float *w;
    float eps;
} call;

static void part(void *arg, int64_t from, int64_t to, int thread)
{
    const call *c = arg;
    (void)thread;
    for (int64_t r = from; r < to; r++)
        c->ops->rms_norm(pl_row_f32(c->y, r), pl_row_f32(c->x, r), c->w, c->eps, pl_cols(c->y));
}

int pl_cpu_rms_norm(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, float eps, pl_err *err)
{
    PL_TRY(pl_want("rms_norm", "x", x, PL_F32, err));
    PL_TRY(pl_want_list("rms_norm", "w", w, PL_F32, err));
    PL_TRY(pl_want("rms_norm", "y", y, PL_F32, err));
    call c = {pl_row_ops_of(s), y, x, w->data, eps};
    pl_parallel(s, pl_rows(y), pl_row_grain(pl_cols(y)), part, &c);
    return PL_OK;
}
