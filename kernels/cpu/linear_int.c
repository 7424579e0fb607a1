/* linear_int.c: the product of integers, for act int8 and int15: its definition, in plain C, and the choice of a path.
 *
 * x is taken as long as whole units of 32, with zeros. A unit becomes integers v and a scale, L = 127 or 16256:
 *     top = the largest |x|;  top < 2^-100: scale = 0, v = 0;  an infinity or NaN among x: scale = NaN, v = 0
 *     otherwise scale = top / L, v = x * (L / top) to the nearest integer, ties to even; each of the three is rounded once
 * (int15 is 128 hi + lo, lo -64..63, both of them bytes). Codes of w are integers c: those of linear.c, but I4G* -8..7 and
 * levels of e2m1 doubled, for which the scale of x is halved. For each output, over the groups of 32 k (16 where a
 * scale of w has 16) in ascending order:
 *     acc = fma((float)sum(c v), scale of w * scale of x, acc)       the sum is exact, its float rounded once
 *     acc = fma(min, scale of x * (float)sum(v), acc)                formats with minima but I4G*
 * and at last y = acc + b. Denormals are zero throughout. Every path gives these bits, for any batch and any number of
 * threads. */
#include "linear.h"
#include <math.h>

static const float limits[] = {127, 16256};

static void quantise(const float *src, int64_t n, float limit, int32_t v[UNIT], float *scale)
{
    uint32_t top = 0;
    memset(v, 0, UNIT * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t size = pl_f32_bits(src[i]) & 0x7fffffff;
        if (size > top) top = size;
    }
    *scale = 0;
    if (top >= 0x7f800000) *scale = NAN;
    if (top >= 0x7f800000 || top < pl_f32_bits(PL_TINY_X)) return;
    const float inverse = limit / pl_bits_f32(top);
    for (int64_t i = 0; i < n; i++) v[i] = (int32_t)nearbyintf(src[i] * inverse);
    *scale = pl_bits_f32(top) / limit;
}

typedef struct plain_job {
    const pl_tensor *w;
    const int32_t *v;          /* [m,units*32] */
    const float *scale, *bias; /* [m,units] */
    float *y;
    int64_t m, units, ldy;
} plain_job;

static int32_t dot(const int32_t *c, const int32_t *v, int from, int to)
{
    int32_t sum = 0;
    for (int k = from; k < to; k++) sum += c[k] * v[k];
    return sum;
}

static void plain_rows(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    enum { TOKENS = 16 };
    const plain_job *j = arg;
    const int32_t dtype = j->w->dtype;
    const int64_t k = j->w->dim[1], units = j->units;
    const bool packed = j->w->layout == PL_PACKED, min = pl_int_minimum(dtype), halves = pl_has_halves(dtype);
    const bool doubled = pl_layout_table[dtype].form == PL_CODE_E2M1;
    const float eight = pl_layout_table[dtype].min == PL_MIN_EIGHT ? 8 : 0;
    const int64_t block_row = pl_cpu_packed_bytes(dtype, ROWS, k);
    const int64_t row_bytes = j->w->stride[0] / pl_dtype_block(dtype) * pl_dtype_bytes(dtype);
    for (int64_t n = from; n < to; n++) {
        const uint8_t *row = (const uint8_t *)j->w->data + (packed ? n / ROWS * block_row : n * row_bytes);
        for (int64_t t0 = 0; t0 < j->m; t0 += TOKENS) {
            const int64_t tokens = pl_min(TOKENS, j->m - t0);
            float acc[TOKENS] = {0};
            for (int64_t u = 0; u < units; u++) {
                pl_group g;
                int32_t c[UNIT];
                if (packed)
                    pl_group_of_packed(dtype, row, (int)(n % ROWS), u, &g);
                else
                    pl_group_of_row(dtype, row, k, u, &g);
                for (int i = 0; i < UNIT; i++) c[i] = (int32_t)(doubled ? 2 * g.code[i] : g.code[i] - eight);
                for (int64_t t = 0; t < tokens; t++) {
                    const int64_t at = (t0 + t) * units + u;
                    const int32_t *v = j->v + at * UNIT;
                    const float d = j->scale[at];
                    for (int i = 0; i < UNIT; i += halves ? 16 : 32)
                        acc[t] = fmaf((float)dot(c, v, i, i + (halves ? 16 : 32)), g.scale[i / 16] * d, acc[t]);
                    if (!min) continue;
                    int32_t sum = 0;
                    for (int i = 0; i < UNIT; i++) sum += v[i];
                    acc[t] = fmaf(g.min, d * (float)sum, acc[t]);
                }
            }
            for (int64_t t = 0; t < tokens; t++) j->y[(t0 + t) * j->ldy + n] = j->bias ? acc[t] + j->bias[n] : acc[t];
        }
    }
}

static int plain(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, const pl_tensor *b, int act,
                 pl_err *err)
{
    const int64_t m = x->dim[0], k = x->dim[1], n = w->dim[0], units = (k + UNIT - 1) / UNIT;
    int32_t *v = pl_scratch(s, m * units * (UNIT + 1) * 4, err);
    if (!v) return PL_ENOMEM;
    float *scale = (float *)(void *)(v + m * units * UNIT);
    const bool doubled = pl_layout_table[w->dtype].form == PL_CODE_E2M1;
    const uint32_t mode = pl_fp_enter();
    for (int64_t i = 0; i < m * units; i++) {
        const int64_t from = i % units * UNIT;
        quantise(pl_row_f32(x, i / units) + from, pl_min(UNIT, k - from), limits[act == PL_ACT_INT15], v + i * UNIT,
                 scale + i);
        if (doubled) scale[i] *= 0.5f;
    }
    pl_fp_leave(mode);
    plain_job j = {w, v, scale, b ? b->data : NULL, y->data, m, units, y->stride[0]};
    pl_parallel(s, n, 4, plain_rows, &j);
    return PL_OK;
}

static void prepare(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    const pl_linear_job *j = arg;
    j->int_path->prepare(&j->q, from, to);
}

/* x as integers, or as another product has it already. */
static int take_x(pl_stream *s, pl_linear_job *j, const pl_linear_job *before, pl_err *err)
{
    const pl_int_product *p = &j->q;
    const int64_t room = pl_round_up(j->m, j->group) * p->units;
    if (before && before->int_path == j->int_path && before->q.dtype == p->dtype && before->q.planes == p->planes) {
        j->q.x = before->q.x;
        return PL_OK;
    }
    uint32_t *q = pl_scratch(s, room * (8 * p->planes + 3) * 4, err);
    if (!q) return PL_ENOMEM;
    float *scale = (float *)(void *)(q + room * 8 * p->planes);
    j->q.x = (pl_int_x){q, scale, (uint32_t *)(void *)(scale + room)};
    pl_parallel(s, j->m, 2 * j->group, prepare, j);
    return PL_OK;
}

static int fast(pl_stream *s, pl_linear_job *j, const pl_linear_job *before, pl_tensor *y, const pl_tensor *x,
                const pl_tensor *w, const pl_tensor *b, int act, pl_err *err)
{
    const pl_int_path *path = j->int_path;
    const int64_t k = x->dim[1], blocks = (j->n + ROWS - 1) / ROWS;
    j->q = (pl_int_product){.w = w->data,
                            .w_bytes = pl_cpu_packed_bytes(w->dtype, ROWS, k),
                            .dtype = w->dtype,
                            .planes = act == PL_ACT_INT15 ? 2 : 1,
                            .m = j->m,
                            .n = j->n,
                            .k = k,
                            .units = (k + UNIT - 1) / UNIT,
                            .src = x->data,
                            .src_ld = x->stride[0],
                            .bias = b ? b->data : NULL,
                            .y = y->data,
                            .ldy = y->stride[0]};
    j->group = path->group;
    PL_TRY(take_x(s, j, before, err));
    if (!(j->scratch = pl_scratch(s, s->n_threads * path->scratch_bytes, err))) return PL_ENOMEM;
    j->tokens = j->m;
    j->token_parts = 1;
    j->blocks = j->m > j->group ? path->blocks : 1;
    j->block_parts = (blocks + j->blocks - 1) / j->blocks;
    return PL_OK;
}

/* The path that runs it. */
static const pl_int_path *path_of(const pl_stream *s, int64_t m, int32_t *path)
{
    *path = s->path;
#ifdef PL_X86
    if (*path == PL_PATH_AMX && m < PL_INT_TILES_FROM) *path = PL_PATH_AVX512;
    switch (*path) {
    case PL_PATH_AVX2:
        return &pl_int_avx2;
    case PL_PATH_AVX512:
        return &pl_int_avx512;
    case PL_PATH_AMX:
        return &pl_int_amx;
    case PL_PATH_SOFT_AMX:
        return &pl_int_soft_amx;
    default:
        break;
    }
#else
    (void)m;
#endif
    return NULL;
}

int pl_linear_int_start(pl_stream *s, pl_linear_job *j, const pl_linear_job *before, pl_tensor *y, const pl_tensor *x,
                        const pl_tensor *w, const pl_tensor *b, int act, pl_err *err)
{
    int32_t ran = PL_PATH_PORTABLE;
    if (w->layout == PL_PACKED) j->int_path = path_of(s, j->m, &ran);
    PL_TRY(j->int_path ? fast(s, j, before, y, x, w, b, act, err) : plain(s, y, x, w, b, act, err));
    s->path_count[ran]++;
    return PL_OK;
}
