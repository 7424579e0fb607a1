/* gather.c: chosen rows of x. */
#include "rows.h"

int pl_cpu_gather(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *rows, pl_err *err)
{
    (void)s;
    PL_TRY(pl_want("gather", "x", x, PL_F32, err));
    PL_TRY(pl_want("gather", "rows", rows, PL_I32, err));
    PL_TRY(pl_want("gather", "y", y, PL_F32, err));
    for (int64_t i = 0; i < rows->dim[0]; i++) {
        const int32_t r = pl_i32_at(rows, i);
        if (r < 0 || r >= x->dim[0])
            return pl_fail(err, PL_EARG, "gather: rows[%lld] = %d, want 0 to %lld", (long long)i, r,
                           (long long)x->dim[0] - 1);
    }
    for (int64_t i = 0; i < rows->dim[0]; i++)
        memcpy(pl_row_f32(y, i), pl_row_f32(x, pl_i32_at(rows, i)), sizeof(float) * (size_t)pl_cols(x));
    return PL_OK;
}
