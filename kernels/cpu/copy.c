/* copy.c: values in another format: f32, f16 and bf16 on either side, rounded to nearest, ties to even. */
#include "rows.h"

typedef struct call {
    const pl_row_ops *ops;
    const pl_tensor *y, *x;
} call;

static void copy_row(const call *c, char *y, const char *x, int64_t n)
{
    const int32_t to = c->y->dtype, from = c->x->dtype;
    if (to == from)
        memcpy(y, x, (size_t)pl_dtype_row_bytes(to, n));
    else if (to == PL_F32)
        pl_row_to_f32(from, (float *)y, x, n);
    else if (from != PL_F32) {
        float v[256];
        for (int64_t i = 0; i < n; i += 256) {
            const int64_t k = pl_min(256, n - i);
            pl_row_to_f32(from, v, x + 2 * i, k);
            pl_row_from_f32(to, y + 2 * i, v, k);
        }
    } else if (to == PL_BF16)
        c->ops->to_bf16((uint16_t *)y, (const float *)x, n);
    else
        pl_row_from_f32(to, y, (const float *)x, n);
}

static void part(void *arg, int64_t from, int64_t to, int thread)
{
    const call *c = arg;
    (void)thread;
    for (int64_t r = from; r < to; r++)
        copy_row(c, (char *)c->y->data + pl_row_offset(c->y, r) * pl_dtype_bytes(c->y->dtype),
                 (const char *)c->x->data + pl_row_offset(c->x, r) * pl_dtype_bytes(c->x->dtype), pl_cols(c->x));
}

static int check(const char *name, const pl_tensor *t, pl_err *err)
{
    if (t->layout == PL_ROWS && (t->dtype == PL_F32 || t->dtype == PL_F16 || t->dtype == PL_BF16)) return PL_OK;
    return pl_fail(err, PL_EDTYPE, "copy: %s is %s%s, want f32, f16 or bf16", name, pl_dtype_name(t->dtype),
                   t->layout == PL_ROWS ? "" : " in the packed layout");
}

int pl_cpu_copy(pl_stream *s, pl_tensor *y, const pl_tensor *x, pl_err *err)
{
    PL_TRY(check("x", x, err));
    PL_TRY(check("y", y, err));
    call c = {pl_row_ops_of(s), y, x};
    pl_parallel(s, pl_rows(y), pl_row_grain(pl_cols(y)), part, &c);
    return PL_OK;
}
