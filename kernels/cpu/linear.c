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
    return PL_OK;
}

static void prepare(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    const pl_linear_job *j = arg;
    j->path->prepare(&j->p, j->group, from, to);
}

/* x as the path wants it, or as another product has it already. */
static int take_x(pl_stream *s, pl_linear_job *j, const pl_linear_job *before, pl_err *err)
{
    const int64_t groups = (j->m + j->group - 1) / j->group, room = groups * j->group * j->p.x_units;
    if (before && before->path == j->path && before->p.dtype == j->p.dtype && before->p.act == j->p.act &&
        before->p.quick == j->p.quick) {
        j->p.x = before->p.x;
        j->p.xb = before->p.xb;
        j->p.sum = before->p.sum;
        return PL_OK;
    }
    if (j->path->tiles) {
        char *xb = pl_scratch(s, room * UNIT * 2 + PL_X_ALIGN, err);
        if (!xb) return PL_ENOMEM;
        j->p.xb = (uint16_t *)pl_round_up((intptr_t)xb, PL_X_ALIGN);
    } else {
        j->p.x = pl_scratch(s, room * UNIT * 4, err);
    }
    j->p.sum = j->p.x || j->p.xb ? pl_scratch(s, room * 4, err) : NULL;
    if (!j->p.sum) return PL_ENOMEM;
    pl_parallel(s, groups, 8, prepare, j);
    return PL_OK;
}

/* Block rows of a part: as many as the path likes, but not so many that threads go without. */
static int64_t blocks_of_part(const pl_linear_path *path, const pl_linear_job *j, int64_t blocks, int32_t threads)
{
    enum { LEAST = 4, PARTS = 4 };
    const int64_t token_parts = (j->m + j->tokens - 1) / j->tokens, each = blocks * token_parts / (threads * PARTS);
    return pl_min(path->many_blocks, pl_max(LEAST, each / 2 * 2));
}

static int fast(pl_stream *s, pl_linear_job *j, const pl_linear_job *before, pl_tensor *y, const pl_tensor *x,
                const pl_tensor *w, const pl_tensor *b, int act, pl_err *err)
{
    const pl_linear_path *path = j->path;
    const int64_t k = x->dim[1], blocks = (j->n + ROWS - 1) / ROWS;
    const bool few = j->m <= path->few_tokens;
    j->p = (pl_product){.w = w->data,
                        .w_bytes = pl_cpu_packed_bytes(w->dtype, ROWS, k),
                        .dtype = w->dtype,
                        .act = act,
                        .m = j->m,
                        .n = j->n,
                        .k = k,
                        .units = (k + UNIT - 1) / UNIT,
                        .x_units = pl_x_units((k + UNIT - 1) / UNIT),
                        .src = x->data,
                        .src_ld = x->stride[0],
                        .bias = b ? b->data : NULL,
                        .y = y->data,
                        .ldy = y->stride[0]};
    j->p.quick = few && path->quick && ((const pl_cpu *)s->impl)->denormals && path->quick(&j->p);
    j->group = few ? path->few_group : path->many_group;
    j->tokens = few ? j->m : path->many_tokens;
    j->blocks = few ? 1 : blocks_of_part(path, j, blocks, s->n_threads);
    PL_TRY(take_x(s, j, before, err));
    if (!few && !(j->p.scratch = pl_scratch(s, s->n_threads * path->scratch_floats * 4, err))) return PL_ENOMEM;
    j->token_parts = (j->m + j->tokens - 1) / j->tokens;
    j->block_parts = (blocks + j->blocks - 1) / j->blocks;
    return PL_OK;
}

pl_linear_cells pl_linear_cells_of(const pl_linear_job *j, int64_t part)
{
    const int64_t t0 = part / j->block_parts * j->tokens, n0 = part % j->block_parts * j->blocks * ROWS;
    return (pl_linear_cells){t0, pl_min(t0 + j->tokens, j->m), n0, pl_min(n0 + j->blocks * ROWS, j->n)};
}

void pl_linear_run(const pl_linear_job *j, int64_t from, int64_t to, int thread)
{
    if (j->path && j->m > j->path->few_tokens) {
        for (int64_t i = from; i < to; i++) {
            const pl_linear_cells c = pl_linear_cells_of(j, i);
            j->path->many(&j->p, c.t0, c.t1, c.n0 / ROWS, (c.n1 + ROWS - 1) / ROWS,
                          j->p.scratch + thread * j->path->scratch_floats);
        }
        return;
    }
    const int64_t b0 = from * j->blocks, b1 = pl_min(to * j->blocks, (j->n + ROWS - 1) / ROWS);
    if (j->path)
        j->path->few(&j->p, b0, b1);
    else
        j->int_path->run(&j->q, b0, b1, j->scratch + thread * j->int_path->scratch_bytes);
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

int pl_linear_start(pl_stream *s, pl_linear_job *j, const pl_linear_job *before, pl_tensor *y, const pl_tensor *x,
                    const pl_tensor *w, const pl_tensor *b, int act, pl_err *err)
{
    *j = (pl_linear_job){.m = x->dim[0], .n = w->dim[0]};
    if (act < 0 || act >= PL_N_ACTS) return pl_fail(err, PL_EARG, "linear: no rounding of activations %d", act);
    if (!pl_layout_of(w->dtype))
        return pl_fail(err, PL_EDTYPE, "linear: w is %s, want a format of weights", pl_dtype_name(w->dtype));
    if (j->m == 0) return PL_OK;
    act = pl_act_for(act, w->dtype);
    if (act == PL_ACT_INT8 || act == PL_ACT_INT15) return pl_linear_int_start(s, j, before, y, x, w, b, act, err);
    int32_t ran = PL_PATH_PORTABLE;
    if (w->layout == PL_PACKED) j->path = path_of(s, w->dtype, act, j->m, &ran);
    PL_TRY(j->path ? fast(s, j, before, y, x, w, b, act, err) : plain(s, y, x, w, b, act, err));
    s->path_count[ran]++;
    return PL_OK;
}

static void run(void *arg, int64_t from, int64_t to, int thread) { pl_linear_run(arg, from, to, thread); }

int pl_cpu_linear(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, const pl_tensor *b, int act,
                  pl_err *err)
{
    pl_linear_job j;
    const pl_mark mark = pl_scratch_mark(s);
    const int rc = pl_linear_start(s, &j, NULL, y, x, w, b, act, err);
    if (rc == PL_OK) pl_parallel(s, pl_linear_parts(&j), 1, run, &j);
    pl_scratch_release(s, mark);
    return rc;
}
