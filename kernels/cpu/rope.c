/* rope.c: rotary positions. The sines and cosines of a token are made once and serve all its heads. */
#include "rows.h"

typedef struct call {
    const pl_row_ops *ops;
    const pl_tensor *y, *x, *pos;
    const float *freq;
    float *turns; /* [n_threads][2][n_pairs] */
    int64_t n_pairs;
    float scale;
    bool halves;
} call;

static void part(void *arg, int64_t from, int64_t to, int thread)
{
    const call *c = arg;
    const int64_t p = c->n_pairs, heads = c->x->dim[1], rest = c->x->dim[2] - 2 * p;
    float *sine = c->turns + thread * 2 * p, *cosine = sine + p;
    for (int64_t t = from; t < to; t++) {
        c->ops->turns(sine, cosine, c->freq, (float)pl_i32_at(c->pos, t), c->scale, p);
        for (int64_t h = 0; h < heads; h++) {
            const float *x = pl_row_f32(c->x, t * heads + h);
            float *y = pl_row_f32(c->y, t * heads + h);
            c->ops->turn(y, x, sine, cosine, c->halves, p);
            if (y != x) memcpy(y + 2 * p, x + 2 * p, sizeof *y * (size_t)rest);
        }
    }
}

int pl_cpu_rope(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *pos, const pl_tensor *freq,
                float scale, int pairs, pl_err *err)
{
    PL_TRY(pl_want("rope", "x", x, PL_F32, err));
    PL_TRY(pl_want("rope", "pos", pos, PL_I32, err));
    PL_TRY(pl_want_list("rope", "freq", freq, PL_F32, err));
    PL_TRY(pl_want("rope", "y", y, PL_F32, err));
    if (pairs != 0 && pairs != 1)
        return pl_fail(err, PL_EARG, "rope: pairs %d, want 0 (halves) or 1 (neighbours)", pairs);
    const int64_t p = freq->dim[0];
    if (2 * p > x->dim[2])
        return pl_fail(err, PL_ESHAPE, "rope: %lld frequencies turn %lld dims, but x has %lld", (long long)p,
                       (long long)(2 * p), (long long)x->dim[2]);
    const pl_mark mark = pl_scratch_mark(s);
    float *turns = pl_scratch(s, s->n_threads * 2 * p * (int64_t)sizeof *turns, err);
    if (!turns) return PL_ENOMEM;
    call c = {pl_row_ops_of(s), y, x, pos, freq->data, turns, p, scale, pairs == 0};
    pl_parallel(s, x->dim[0], pl_row_grain(x->dim[1] * x->dim[2]), part, &c);
    pl_scratch_release(s, mark);
    return PL_OK;
}
