/* embed.c: rows of the embedding table, of any format and layout, times scale. */
#include "rows.h"

typedef struct call {
    const pl_row_ops *ops;
    const pl_tensor *y, *table, *ids;
    float scale;
} call;

static void part(void *arg, int64_t from, int64_t to, int thread)
{
    const call *c = arg;
    const pl_tensor *w = c->table;
    const int64_t n = pl_cols(w);
    (void)thread;
    for (int64_t t = from; t < to; t++) {
        float *y = pl_row_f32(c->y, t);
        const int32_t id = pl_i32_at(c->ids, t);
        if (w->layout == PL_PACKED)
            pl_packed_row_to_f32(w, id, y);
        else
            pl_row_to_f32(w->dtype, y, (const char *)w->data + pl_dtype_row_bytes(w->dtype, id * w->stride[0]), n);
        if (c->scale != 1) c->ops->scale(y, y, c->scale, n);
    }
}

int pl_cpu_embed(pl_stream *s, pl_tensor *y, const pl_tensor *table, const pl_tensor *ids, float scale, pl_err *err)
{
    PL_TRY(pl_want("embed", "ids", ids, PL_I32, err));
    PL_TRY(pl_want("embed", "y", y, PL_F32, err));
    if (table->dtype == PL_I32 || table->dtype == PL_I64 || table->dtype == PL_U8)
        return pl_fail(err, PL_EDTYPE, "embed: table is %s, want a format of weights", pl_dtype_name(table->dtype));
    for (int64_t t = 0; t < ids->dim[0]; t++) {
        const int32_t id = pl_i32_at(ids, t);
        if (id < 0 || id >= table->dim[0])
            return pl_fail(err, PL_EARG, "embed: ids[%lld] = %d, want 0 to %lld", (long long)t, id,
                           (long long)table->dim[0] - 1);
    }
    call c = {pl_row_ops_of(s), y, table, ids, scale};
    pl_parallel(s, ids->dim[0], pl_row_grain(pl_cols(y)), part, &c);
    return PL_OK;
}
