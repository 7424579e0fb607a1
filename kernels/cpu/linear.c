/* linear.c: the product y = x w^T + b: its definition, in plain C, and the choice of a fast path.
 *
 * x is rounded to bf16 (or kept), |x| < 2^-100 becomes 0, and rows of x and w are taken as long as whole groups of 32,
 * with zeros. For each output, over the groups of 32 k (16 where a scale has 16) in ascending order:
 *     e = chain of fma over the even k of the group, from 0;  o = over the odd k;  step = e + o
 *     acc = fma(scale, step, acc)                formats without scales: acc = acc + step
 *     acc = fma(min, S, acc)                     formats with minima; S = step with all codes 1
 * and at last y = acc + b. Denormals are zero throughout. Every path gives these bits, for any batch and any number
 * of threads; S is summed once a token. */
#include "linear.h"
#include <math.h>

enum { TOKENS = 16 };

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
                if (packed)
                    pl_group_of_packed(dtype, row, (int)(n % ROWS), u, &g);
                else
                    pl_group_of_row(dtype, row, k, u, &g);
                for (int64_t t = 0; t < tokens; t++) {
                    const float *x = j->x + (t0 + t) * ldx + u * UNIT;
                    if (pl_has_halves(dtype)) {
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
    return PL_OK;
}

typedef struct fast_job {
    pl_product p;
    const pl_linear_path *path;
    int64_t group, token_parts, block_parts;
} fast_job;

static void fast_prepare(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    const fast_job *j = arg;
    j->path->prepare(&j->p, j->group, from, to);
}
static void fast_few(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    const fast_job *j = arg;
    j->path->few(&j->p, from, to);
}
static void fast_many(void *arg, int64_t from, int64_t to, int thread)
{
    const fast_job *j = arg;
    const int64_t blocks = (j->p.n + ROWS - 1) / ROWS, tokens = j->path->many_tokens, rows = j->path->many_blocks;
    for (int64_t i = from; i < to; i++) {
        const int64_t t = i / j->block_parts * tokens, b = i % j->block_parts * rows;
        j->path->many(&j->p, t, pl_min(t + tokens, j->p.m), b, pl_min(b + rows, blocks),
                      j->p.scratch + thread * j->path->scratch_floats);
    }
}

static int fast(pl_stream *s, const pl_linear_path *path, pl_tensor *y, const pl_tensor *x, const pl_tensor *w,
                const pl_tensor *b, int act, pl_err *err)
{
    int rc = PL_OK;
    const int64_t m = x->dim[0], k = x->dim[1], n = w->dim[0], units = (k + UNIT - 1) / UNIT,
                  blocks = (n + ROWS - 1) / ROWS;
    const pl_mark mark = pl_scratch_mark(s);
    fast_job j = {.path = path};
    j.p = (pl_product){.w = w->data,
                       .w_bytes = pl_cpu_packed_bytes(w->dtype, ROWS, k),
                       .dtype = w->dtype,
                       .act = act,
                       .m = m,
                       .n = n,
                       .k = k,
                       .units = units,
                       .src = x->data,
                       .src_ld = x->stride[0],
                       .bias = b ? b->data : NULL,
                       .y = y->data,
                       .ldy = y->stride[0]};
    j.group = m <= path->few_tokens ? path->few_group : path->many_group;
    const int64_t groups = (m + j.group - 1) / j.group, room = groups * j.group * units;
    if (path->tiles)
        j.p.xb = pl_scratch(s, room * UNIT * 2, err);
    else
        j.p.x = pl_scratch(s, room * UNIT * 4, err);
    j.p.sum = j.p.x || j.p.xb ? pl_scratch(s, room * 4, err) : NULL;
    if (!j.p.sum) goto no_memory;
    pl_parallel(s, groups, 8, fast_prepare, &j);
    if (m <= path->few_tokens) {
        pl_parallel(s, blocks, 1, fast_few, &j);
    } else {
        j.p.scratch = pl_scratch(s, s->n_threads * path->scratch_floats * 4, err);
        if (!j.p.scratch) goto no_memory;
        j.token_parts = (m + path->many_tokens - 1) / path->many_tokens;
        j.block_parts = (blocks + path->many_blocks - 1) / path->many_blocks;
        pl_parallel(s, j.token_parts * j.block_parts, 1, fast_many, &j);
    }
    goto done;
no_memory:
    rc = PL_ENOMEM;
done:
    pl_scratch_release(s, mark);
    return rc;
}

/* The path that runs a product: tiles need bf16 on both sides. */
static const pl_linear_path *path_of(const pl_stream *s, int32_t dtype, int act, int64_t m, int32_t *path)
{
    *path = s->path;
#ifdef PL_X86
    const bool exact_bf16 = act == PL_ACT_BF16 && dtype != PL_F16 && dtype != PL_F32;
    if (*path == PL_PATH_SOFT_AMX && !exact_bf16) *path = PL_PATH_AVX2;
    if (*path == PL_PATH_AMX && (!exact_bf16 || (m == 1 && pl_has_scale(dtype)))) *path = PL_PATH_AVX512;
    switch (*path) {
    case PL_PATH_AVX2:
        return &pl_linear_avx2;
    case PL_PATH_AVX512:
        return &pl_linear_avx512;
    case PL_PATH_AMX:
        return &pl_linear_amx;
    case PL_PATH_SOFT_AMX:
        return &pl_linear_soft_amx;
    default:
        break;
    }
#else
    (void)dtype;
    (void)act;
    (void)m;
#endif
    return NULL;
}

int pl_cpu_linear(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, const pl_tensor *b, int act,
                  pl_err *err)
{
    if (act < 0 || act >= PL_N_ACTS) return pl_fail(err, PL_EARG, "linear: no rounding of activations %d", act);
    if (!pl_layout_of(w->dtype))
        return pl_fail(err, PL_EDTYPE, "linear: w is %s, want a format of weights", pl_dtype_name(w->dtype));
    if (x->dim[0] == 0) return PL_OK;
    act = pl_act_for(act, w->dtype);
    if (act == PL_ACT_INT8 || act == PL_ACT_INT15) return pl_cpu_linear_int(s, y, x, w, b, act, err);
    int32_t ran = PL_PATH_PORTABLE;
    const pl_linear_path *path = w->layout == PL_PACKED ? path_of(s, w->dtype, act, x->dim[0], &ran) : NULL;
    PL_TRY(path ? fast(s, path, y, x, w, b, act, err) : plain(s, y, x, w, b, act, err));
    s->path_count[ran]++;
    return PL_OK;
}
