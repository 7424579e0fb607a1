/* kv_append.c: the step's keys and values go to their pages, in the cache's format: F32 as they are, BF16 to nearest
 * even. An FP8 code is x / scale, rounded to a float, then to E4M3 to nearest even: at most 448, infinities too; NaN
 * stays NaN. With a scale per token it is amax / 448, amax the largest finite magnitude of the head's row (1 where amax
 * is below 2^-110), kept in the page; else it is the layer's. */
#include "kv.h"
#include "rows.h"

typedef struct call {
    const pl_row_ops *ops;
    const pl_kv *kv;
    const pl_tensor *k, *v;
    int32_t layer;
} call;

/* One token's keys or values. own: where the token's scales [heads] go; NULL: the layer's hold, if there are any. */
static void put(const call *c, uint8_t *to, float *own, const pl_tensor *x, int64_t t, bool values)
{
    const int64_t n = x->dim[2];
    const float *scale = own ? own : pl_kv_layer_scale(c->kv, c->layer, values);
    for (int64_t h = 0; h < x->dim[1]; h++) {
        const float *row = (const float *)x->data + t * x->stride[0] + h * x->stride[1];
        if (own) own[h] = c->ops->f8_scale(row, n);
        if (c->kv->o.dtype == PL_F8)
            c->ops->to_f8(to + h * n, row, scale[h], n);
        else if (c->kv->o.dtype == PL_BF16)
            c->ops->to_bf16((uint16_t *)to + h * n, row, n);
        else
            memcpy((float *)to + h * n, row, sizeof *row * (size_t)n);
    }
}

static void part(void *arg, int64_t from, int64_t to, int thread)
{
    const call *c = arg;
    const pl_kv_span *span = c->kv->span;
    (void)thread;
    for (int64_t t = from; t < to; t++) {
        while (t >= span->first + span->n) span++;
        if (c->kv->bad[span - c->kv->span]) continue; /* the page is someone else's */
        const pl_kv_seq *seq = &c->kv->seq[span->seq];
        const int64_t pos = span->pos + t - span->first;
        float *key_scale = NULL, *value_scale = NULL;
        if (c->kv->o.scale == PL_SCALE_TOKEN) {
            key_scale = pl_kv_token_scale(c->kv, seq, c->layer, pos, false);
            value_scale = pl_kv_token_scale(c->kv, seq, c->layer, pos, true);
        }
        put(c, pl_kv_key(c->kv, seq, c->layer, pos), key_scale, c->k, t, false);
        put(c, pl_kv_value(c->kv, seq, c->layer, pos), value_scale, c->v, t, true);
    }
}

int pl_cpu_kv_append(pl_stream *s, pl_kv *kv, int layer, const pl_tensor *k, const pl_tensor *v, pl_err *err)
{
    PL_TRY(pl_want("kv_append", "k", k, PL_F32, err));
    PL_TRY(pl_want("kv_append", "v", v, PL_F32, err));
    if (layer < 0 || layer >= kv->o.layers)
        return pl_fail(err, PL_EARG, "kv_append: layer %d, want 0 to %d", layer, kv->o.layers - 1);
    if (k->dim[1] != kv->o.heads || k->dim[2] != kv->o.key_dim || v->dim[2] != kv->o.value_dim)
        return pl_fail(err, PL_ESHAPE,
                       "kv_append: %lld heads of %lld (k) and %lld (v), want the cache's %d of %d and %d",
                       (long long)k->dim[1], (long long)k->dim[2], (long long)v->dim[2], kv->o.heads, kv->o.key_dim,
                       kv->o.value_dim);
    if (k->dim[0] != kv->n_tokens)
        return pl_fail(err, PL_ESHAPE, "kv_append: k has %lld tokens, want the step's %lld", (long long)k->dim[0],
                       (long long)kv->n_tokens);
    call c = {pl_row_ops_of(s), kv, k, v, layer};
    pl_parallel(s, kv->n_tokens, pl_row_grain(kv->o.heads * (kv->o.key_dim + kv->o.value_dim)), part, &c);
    return PL_OK;
}
