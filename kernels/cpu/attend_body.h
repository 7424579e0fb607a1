/* attend_body.h: the pieces of attention (attend.h has the definition), in lanes of 16. Included once per instruction
 * set by a file that defines ATTEND_OPS, the name of the table.
 *
 * Both products are one routine, `chains`: rows of scalars a times a panel b of 16 lanes. For the scores the panel is
 * 16 keys, turned so that a lane is a key; for the values it is 32 positions, where a lane is a dim. A panel is made
 * once and meets all rows of the block, so the conversion from the cache's format is shared by the group's heads. */
#include "attend.h"
#include "maths.h"

enum {
    ROWS = 6,                                 /* rows that go through a panel together */
    STEP = 32,                                /* terms of a step */
    SCORE_STRIDE = PL_ATTEND_CHUNK + PL_LANES /* not a power of two: rows must not share cache sets */
};

/* acc += (chain over even k) + (chain over odd k) for `rows` rows of a[.][n]; b[n][16] */
PL_INLINE void chains(int rows, int64_t n, const float *a, int64_t stride, const float *b, vf *acc)
{
    vf even[ROWS], odd[ROWS];
    PL_UNROLL for (int r = 0; r < rows; r++) even[r] = odd[r] = vf_set(0);
    for (int64_t k = 0; k < n; k += 2) {
        const vf v = vf_load(b + k * PL_LANES);
        PL_UNROLL for (int r = 0; r < rows; r++) even[r] = vf_fma(vf_set(a[r * stride + k]), v, even[r]);
    }
    for (int64_t k = 1; k < n; k += 2) {
        const vf v = vf_load(b + k * PL_LANES);
        PL_UNROLL for (int r = 0; r < rows; r++) odd[r] = vf_fma(vf_set(a[r * stride + k]), v, odd[r]);
    }
    PL_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_add(acc[r], vf_add(even[r], odd[r]));
}

/* out[rows][16] = dot products of q[rows][dim] with 16 keys[dim][16] */
PL_INLINE void scores_of(int rows, const float *q, int64_t dim, const float *keys, float *out)
{
    vf acc[ROWS];
    PL_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_set(0);
    for (int64_t d = 0; d < dim; d += STEP) chains(rows, pl_min(STEP, dim - d), q + d, dim, keys + d * PL_LANES, acc);
    PL_UNROLL for (int r = 0; r < rows; r++) vf_store(out + r * SCORE_STRIDE, acc[r]);
}

/* out[rows][16] (stride out_stride) += p[rows][n] times values[n][16] */
PL_INLINE void values_of(int rows, int64_t n, const float *p, const float *values, float *out, int64_t out_stride)
{
    vf acc[ROWS];
    PL_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_load(out + r * out_stride);
    chains(rows, n, p, SCORE_STRIDE, values, acc);
    PL_UNROLL for (int r = 0; r < rows; r++) vf_store(out + r * out_stride, acc[r]);
}

/* clang-format off */
#define FOR_ROWS(f, ...) /* f with its first argument a constant */ \
    switch (rows) {                                                 \
    case 1: f(1, __VA_ARGS__); break;                               \
    case 2: f(2, __VA_ARGS__); break;                               \
    case 3: f(3, __VA_ARGS__); break;                               \
    case 4: f(4, __VA_ARGS__); break;                               \
    case 5: f(5, __VA_ARGS__); break;                               \
    default: f(6, __VA_ARGS__); break;                              \
    }
/* clang-format on */
_Static_assert(ROWS == 6, "FOR_ROWS lists the cases");

static void scores(int rows, const float *q, int64_t dim, const float *keys, float *out)
{
    FOR_ROWS(scores_of, q, dim, keys, out)
}

static void values(int rows, int64_t n, const float *p, const float *panel, int64_t dim, float *out)
{
    for (int64_t c = 0; c < dim; c += PL_LANES) FOR_ROWS(values_of, n, p, panel + c * STEP, out + c, dim)
}

#if defined(__AVX2__) && defined(__FMA__)
/* Eight rows of eight dwords become eight columns. */
PL_INLINE void transpose8(const uint8_t *row, int64_t stride, __m256i *out)
{
    __m256i r[8], t[8];
    PL_UNROLL for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_si256((const __m256i *)(row + i * stride));
    PL_UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    PL_UNROLL for (int i = 0; i < 8; i += 4)
    {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    PL_UNROLL for (int i = 0; i < 4; i++)
    {
        out[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        out[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
}
/* The whole dwords of 16 rows, turned: returns how many dims are done. */
PL_INLINE int64_t turn_keys(float *panel, const uint8_t *row, int64_t stride, int64_t dim, bool bf16)
{
    const int64_t per = bf16 ? 16 : 8; /* dims in 32 bytes */
    int64_t d = 0;
    for (; d + per <= dim; d += per)
        for (int half = 0; half < 2; half++) {
            __m256i c[8];
            float *to = panel + d * PL_LANES + half * 8;
            transpose8(row + d * (bf16 ? 2 : 4) + half * 8 * stride, stride, c);
            PL_UNROLL for (int i = 0; i < 8; i++)
            {
                if (!bf16) {
                    _mm256_storeu_si256((__m256i *)(to + i * PL_LANES), c[i]);
                    continue;
                }
                const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
                _mm256_storeu_si256((__m256i *)(to + 2 * i * PL_LANES), _mm256_slli_epi32(c[i], 16));
                _mm256_storeu_si256((__m256i *)(to + (2 * i + 1) * PL_LANES), _mm256_and_si256(c[i], high));
            }
        }
    return d;
}
#else
PL_INLINE int64_t turn_keys(float *panel, const uint8_t *row, int64_t stride, int64_t dim, bool bf16)
{
    (void)panel;
    (void)row;
    (void)stride;
    (void)dim;
    (void)bf16;
    return 0;
}
#endif

/* The rows of 16 positions are on their way to the cache AHEAD positions before they are used: they lie apart by the
 * other heads' rows, too far for the hardware's own guess. */
enum { AHEAD = 48 };
PL_INLINE void fetch(const uint8_t *row, int64_t stride, int64_t bytes)
{
    for (int64_t i = 0; i < PL_LANES; i++)
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + i * stride + at);
}

/* panel[dim][16] = the 16 keys from position pos on; those past the sequence's end are whatever the page holds. */
static void load_keys(const pl_attend_job *j, const pl_attend_block *b, int64_t pos, float *panel)
{
    const pl_kv_opts *o = &j->kv->o;
    const bool bf16 = o->dtype == PL_BF16;
    const int64_t stride = j->kv->key_bytes;
    const uint8_t *row = pl_kv_key(j->kv, b->seq, j->layer, pos) + stride / o->heads * b->head;
    if (pos + AHEAD < b->pos + b->n)
        fetch(pl_kv_key(j->kv, b->seq, j->layer, pos + AHEAD) + stride / o->heads * b->head, stride, stride / o->heads);
    for (int64_t d = turn_keys(panel, row, stride, o->key_dim, bf16); d < o->key_dim; d++)
        for (int i = 0; i < PL_LANES; i++) {
            const uint8_t *r = row + i * stride;
            panel[d * PL_LANES + i] = bf16 ? pl_bf16_f32(((const uint16_t *)r)[d]) : ((const float *)r)[d];
        }
}

/* panel[value_dim / 16][32][16] = the values of the n positions from pos on (a multiple of 32) */
static void load_values(const pl_attend_job *j, const pl_attend_block *b, int64_t pos, int64_t n, float *panel)
{
    const pl_kv_opts *o = &j->kv->o;
    const int64_t stride = j->kv->value_bytes, dim = o->value_dim;
    const uint8_t *row = NULL;
    for (int64_t i = 0; i < n; i++, row += stride) {
        if (i % PL_LANES == 0) {
            row = pl_kv_value(j->kv, b->seq, j->layer, pos + i) + stride / o->heads * b->head;
            if (pos + i + AHEAD < b->pos + b->n)
                fetch(pl_kv_value(j->kv, b->seq, j->layer, pos + i + AHEAD) + stride / o->heads * b->head, stride,
                      stride / o->heads);
        }
        float *to = panel + i * PL_LANES;
        if (o->dtype == PL_BF16) {
            const uint16_t *v = (const uint16_t *)row;
            int64_t d = 0;
            for (; d + PL_LANES <= dim; d += PL_LANES) vf_store(to + d * STEP, vf_load_bf16(v + d));
            if (d < dim) vf_store(to + d * STEP, vf_load_bf16_n(v + d, dim - d));
        } else {
            const float *v = (const float *)row;
            int64_t d = 0;
            for (; d + PL_LANES <= dim; d += PL_LANES) vf_store(to + d * STEP, vf_load(v + d));
            if (d < dim) vf_store(to + d * STEP, vf_load_n(v + d, dim - d));
        }
    }
}

/* Lanes outside [lo, hi) become `other`. */
PL_INLINE vf within(vf v, int64_t lo, int64_t hi, float other)
{
    static const float lane[PL_LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (lo <= 0 && hi >= PL_LANES) return v;
    const vf at = vf_load(lane);
    v = vf_if_less(at, vf_set((float)lo), vf_set(other), v);
    return vf_if_less(at, vf_set((float)hi), v, vf_set(other));
}

/* Positions lo..hi-1, from the chunk's base on, are visible to the query of row r; none if lo >= hi. */
typedef struct range {
    int64_t lo, hi;
} range;
PL_INLINE range visible(const pl_attend_job *j, const pl_attend_block *b, int64_t base, int64_t r)
{
    const int64_t pos = b->pos + r / j->group;
    return (range){pl_max(0, pl_attend_first(j, pos) - base), pl_min(PL_ATTEND_CHUNK, pos + 1 - base)};
}
/* What rows r..r+n-1 see together; limits never fall from one row to the next. */
PL_INLINE range visible_to(const pl_attend_job *j, const pl_attend_block *b, int64_t base, int64_t r, int64_t n)
{
    return (range){visible(j, b, base, r).lo, visible(j, b, base, r + n - 1).hi};
}

/* Visible scores become probabilities; the rest of [from, to), multiples of 16, becomes 0. */
static void soften(float *s, range v, int64_t from, int64_t to, float scale, bool bf16, float *m, float *l)
{
    const int64_t first = v.lo < v.hi ? v.lo / PL_LANES * PL_LANES : to;
    vf top = vf_set(-INFINITY), sum = vf_set(0);
    for (int64_t t = first; t < v.hi; t += PL_LANES)
        top = vf_max(top, within(vf_mul(vf_load(s + t), vf_set(scale)), v.lo - t, v.hi - t, -INFINITY));
    *m = vf_top(top);
    top = vf_set(*m);
    int64_t t = from;
    for (; t < first; t += PL_LANES) vf_store(s + t, vf_set(0));
    for (; t < v.hi; t += PL_LANES) {
        vf p = pl_vexp(vf_sub(vf_mul(vf_load(s + t), vf_set(scale)), top));
        if (bf16) p = vf_bf16(p);
        p = within(p, v.lo - t, v.hi - t, 0);
        sum = vf_add(sum, p);
        vf_store(s + t, p);
    }
    for (; t < to; t += PL_LANES) vf_store(s + t, vf_set(0));
    *l = vf_sum(sum);
}

/* q of the block's rows, [rows][key_dim], rounded if the cache is BF16 */
static void load_queries(const pl_attend_job *j, const pl_attend_block *b, float *q)
{
    const int64_t dim = j->kv->o.key_dim;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t h = 0; h < j->group; h++, q += dim) {
            const float *x =
                (const float *)j->q->data + (b->row + i) * j->q->stride[0] + (b->head * j->group + h) * j->q->stride[1];
            for (int64_t d = 0; d < dim; d += PL_LANES) {
                const int64_t n = pl_min(PL_LANES, dim - d);
                const vf v = vf_load_n(x + d, n);
                vf_store_n(q + d, j->kv->o.dtype == PL_BF16 ? vf_bf16(v) : v, n);
            }
        }
}

static void attend_chunk(const pl_attend_job *j, const pl_attend_block *b, int64_t chunk, float *part, float *work)
{
    const int64_t rows = b->n * j->group, base = chunk * PL_ATTEND_CHUNK;
    const int64_t key_dim = j->kv->o.key_dim, dim = pl_round_up(j->kv->o.value_dim, PL_LANES);
    float *m = part, *l = m + rows, *out = l + rows;
    float *s = work, *panel = s + rows * SCORE_STRIDE, *q = panel + pl_max(key_dim * PL_LANES, dim * STEP);
    const bool bf16 = j->kv->o.dtype == PL_BF16;
    const range all = visible_to(j, b, base, 0, rows);
    load_queries(j, b, q);

    for (int64_t t = all.lo / PL_LANES * PL_LANES; t < all.hi; t += PL_LANES) {
        load_keys(j, b, base + t, panel);
        for (int64_t r = 0; r < rows; r += ROWS) {
            const int n = (int)pl_min(ROWS, rows - r);
            const range v = visible_to(j, b, base, r, n);
            if (t < v.hi && t + PL_LANES > v.lo) scores(n, q + r * key_dim, key_dim, panel, s + r * SCORE_STRIDE + t);
        }
    }

    const int64_t first = all.lo / STEP * STEP, end = pl_round_up(all.hi, STEP);
    for (int64_t r = 0; r < rows; r++)
        soften(s + r * SCORE_STRIDE, visible(j, b, base, r), first, end, j->scale, bf16, m + r, l + r);

    memset(out, 0, sizeof *out * (size_t)(rows * dim));
    for (int64_t t = first; t < all.hi; t += STEP) {
        const int64_t terms = pl_min(STEP, all.hi - t);
        load_values(j, b, base + t, terms, panel);
        for (int64_t r = 0; r < rows; r += ROWS) {
            const int n = (int)pl_min(ROWS, rows - r);
            const range v = visible_to(j, b, base, r, n);
            if (t < v.hi && t + STEP > v.lo) values(n, terms, s + r * SCORE_STRIDE + t, panel, dim, out + r * dim);
        }
    }
}

/* sum, then part: both as attend_chunk leaves them */
static void attend_merge(float *sum, const float *part, int64_t rows, int64_t value_dim)
{
    const int64_t dim = pl_round_up(value_dim, PL_LANES);
    for (int64_t r = 0; r < rows; r++) {
        float *m = sum + r, *l = m + rows, *o = sum + 2 * rows + r * dim;
        const float *m2 = part + r, *l2 = m2 + rows, *o2 = part + 2 * rows + r * dim;
        if (*l2 == 0) continue;
        if (*l == 0) {
            *m = *m2;
            *l = *l2;
            memcpy(o, o2, sizeof *o * (size_t)dim);
            continue;
        }
        const float top = *m > *m2 ? *m : *m2, f = pl_exp1(*m - top), g = pl_exp1(*m2 - top);
        *m = top;
        *l = fmaf(*l, f, *l2 * g);
        for (int64_t d = 0; d < dim; d += PL_LANES)
            vf_store(o + d, vf_fma(vf_load(o + d), vf_set(f), vf_mul(vf_load(o2 + d), vf_set(g))));
    }
}

static void attend_finish(const pl_attend_job *j, const pl_attend_block *b, const float *sum)
{
    const int64_t rows = b->n * j->group, value_dim = j->kv->o.value_dim, dim = pl_round_up(value_dim, PL_LANES);
    for (int64_t r = 0; r < rows; r++) {
        float *y = (float *)j->y->data + (b->row + r / j->group) * j->y->stride[0] +
                   (b->head * j->group + r % j->group) * j->y->stride[1];
        const float *o = sum + 2 * rows + r * dim;
        const vf by = vf_set(1 / sum[rows + r]);
        for (int64_t d = 0; d < value_dim; d += PL_LANES)
            vf_store_n(y + d, vf_add(vf_mul(vf_load(o + d), by), vf_set(0)), pl_min(PL_LANES, value_dim - d));
    }
}

const pl_attend_ops ATTEND_OPS = {attend_chunk, attend_merge, attend_finish};
