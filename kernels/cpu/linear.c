/* linear.c: the product y = x w^T + b: its definition, in plain C, and the choice of a fast path.
 *
 * x is rounded to bf16 (or kept), |x| < 2^-100 becomes 0, and rows of x and w are taken as long as whole groups of 32,
 * with zeros. For each output, over the groups of 32 k (16 in Q6_K) in ascending order:
 *     e = chain of fma over the even k of the group, from 0;  o = over the odd k;  step = e + o
 *     acc = fma(scale, step, acc)                formats without scales: acc = acc + step
 *     acc = fma(min, S, acc)                     formats with minima; S = step with all codes 1
 * and at last y = acc + b. Denormals are zero throughout. Every path gives these bits, for any batch and any number
 * of threads; S is summed once a token. */
#include "linear.h"
#include <math.h>

enum { ROWS = 16, UNIT = 32, TOKENS = 16 };

/* The chains over k from..to of a group; w NULL: all 1. */
static float step(const float *w, const float *x, int from, int to)
{
    float e = 0, o = 0;
    for (int k = from; k < to; k += 2) {
        e = w ? fmaf(w[k], x[k], e) : e + x[k];
        o = w ? fmaf(w[k + 1], x[k + 1], o) : o + x[k + 1];
    }
    return e + o;
}

typedef struct plain_job {
    const pl_tensor *w;
    const float *x, *sum, *bias; /* [m,units*32] rounded, [m,units] */
    float *y;
    int64_t m, units, ldy;
} plain_job;

/* Rows of w from..to for every token. */
static void plain_rows(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    const plain_job *j = arg;
    const int32_t dtype = j->w->dtype;
    const int64_t k = j->w->dim[1], ldx = j->units * UNIT;
    const bool packed = j->w->layout == PL_PACKED, min = pl_has_minimum(dtype);
    const int64_t block_row = pl_cpu_packed_bytes(dtype, ROWS, k);
    const int64_t row_bytes = j->w->stride[0] / pl_dtype_block(dtype) * pl_dtype_bytes(dtype);
    for (int64_t n = from; n < to; n++) {
        const uint8_t *row = (const uint8_t *)j->w->data + (packed ? n / ROWS * block_row : n * row_bytes);
        for (int64_t t0 = 0; t0 < j->m; t0 += TOKENS) {
            const int64_t tokens = pl_min(TOKENS, j->m - t0);
            float acc[TOKENS] = {0};
            for (int64_t u = 0; u < j->units; u++) {
                pl_group g;
                if (packed) pl_group_of_packed(dtype, row, (int)(n % ROWS), u, &g);
                else pl_group_of_row(dtype, row, k, u, &g);
                for (int64_t t = 0; t < tokens; t++) {
                    const float *x = j->x + (t0 + t) * ldx + u * UNIT;
                    if (dtype == PL_Q6_K) {
                        acc[t] = fmaf(g.scale[0], step(g.code, x, 0, 16), acc[t]);
                        acc[t] = fmaf(g.scale[1], step(g.code, x, 16, 32), acc[t]);
                    } else {
                        acc[t] = fmaf(g.scale[0], step(g.code, x, 0, 32), acc[t]);
                    }
                    if (min) acc[t] = fmaf(g.min, j->sum[(t0 + t) * j->units + u], acc[t]);
                }
            }
            for (int64_t t = 0; t < tokens; t++) j->y[(t0 + t) * j->ldy + n] = j->bias ? acc[t] + j->bias[n] : acc[t];
        }
    }
}

static int plain(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, const pl_tensor *b, int act,
                 pl_err *err)
{
    const int64_t m = x->dim[0], k = x->dim[1], n = w->dim[0], units = (k + UNIT - 1) / UNIT, ldx = units * UNIT;
    const pl_mark mark = pl_scratch_mark(s);
    float *xs = pl_scratch(s, m * (ldx + units) * 4, err), *sum = xs ? xs + m * ldx : NULL;
    if (!xs) return PL_ENOMEM;
    const uint32_t mode = pl_fp_enter();
    for (int64_t t = 0; t < m; t++) {
        const float *src = pl_row_f32(x, t);
        for (int64_t i = 0; i < ldx; i++) xs[t * ldx + i] = i < k ? pl_round_x(src[i], act) : 0;
        for (int64_t u = 0; u < units; u++) sum[t * units + u] = step(NULL, xs + t * ldx + u * UNIT, 0, UNIT);
    }
    pl_fp_leave(mode);
    plain_job j = {w, xs, sum, b ? b->data : NULL, y->data, m, units, y->stride[0]};
    pl_parallel(s, n, 4, plain_rows, &j);
    pl_scratch_release(s, mark);
    s->path_count[PL_PATH_PORTABLE]++;
    return PL_OK;
}

int pl_cpu_linear(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, const pl_tensor *b, int act,
                  pl_err *err)
{
    if (act != PL_ACT_BF16 && act != PL_ACT_F32) return pl_fail(err, PL_EARG, "linear: no rounding of activations %d", act);
    if (!pl_layout_of(w->dtype))
        return pl_fail(err, PL_EDTYPE, "linear: w is %s, want a format of weights", pl_dtype_name(w->dtype));
    return plain(s, y, x, w, b, act, err);
}
