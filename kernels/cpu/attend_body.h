/* attend_body.h: the pieces of attention (attend.h has the definition), in lanes of 16. Included once per instruction
 * set by a file that defines ATTEND_OPS, the name of the table.
 *
 * Both products are one routine, `chains`: rows of scalars a times a panel b of 16 lanes. For the scores the panel is
 * 16 keys, turned so that a lane is a key; for the values it is 32 positions, where a lane is a dim. A panel is made
 * once and meets all rows of its head, so the conversion from the cache's format is shared by the group. Where the
 * rows are few (a decode step) the page is read directly instead: `scores_direct`, `values_direct`. */
#include "attend.h"
#include "maths.h"

enum {
#ifdef VF_PLAIN
    ROWS = 1,
#else
    ROWS = 6, /* rows that go through a panel together */
#endif
    STEP = 32,                                /* terms of a step */
    SCORE_STRIDE = PL_ATTEND_CHUNK + PL_LANES /* not a power of two: rows must not share cache sets */
};

/* acc += (chain over even k) + (chain over odd k) for `rows` rows of a[.][n]; b[n][16] */
VF_INLINE void chains(int rows, int64_t n, const float *a, int64_t stride, const float *b, vf *acc)
{
    vf even[ROWS], odd[ROWS];
    VF_UNROLL for (int r = 0; r < rows; r++) even[r] = odd[r] = vf_set(0);
    for (int64_t k = 0; k < n; k += 2) {
        const vf v = vf_load(b + k * PL_LANES);
        VF_UNROLL for (int r = 0; r < rows; r++) even[r] = vf_fma(vf_set(a[r * stride + k]), v, even[r]);
    }
    for (int64_t k = 1; k < n; k += 2) {
        const vf v = vf_load(b + k * PL_LANES);
        VF_UNROLL for (int r = 0; r < rows; r++) odd[r] = vf_fma(vf_set(a[r * stride + k]), v, odd[r]);
    }
    VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_add(acc[r], vf_add(even[r], odd[r]));
}

/* out[rows][16] = dot products of q[rows][dim] with 16 keys[dim][16] */
VF_INLINE void scores_of(int rows, const float *q, int64_t dim, const float *keys, float *out)
{
    vf acc[ROWS];
    VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_set(0);
    for (int64_t d = 0; d < dim; d += STEP) chains(rows, pl_min(STEP, dim - d), q + d, dim, keys + d * PL_LANES, acc);
    VF_UNROLL for (int r = 0; r < rows; r++) vf_store(out + r * SCORE_STRIDE, acc[r]);
}

/* out[rows][16] (stride out_stride) += p[rows][n] times values[n][16] */
VF_INLINE void values_of(int rows, int64_t n, const float *p, const float *values, float *out, int64_t out_stride)
{
    vf acc[ROWS];
    VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_load(out + r * out_stride);
    chains(rows, n, p, SCORE_STRIDE, values, acc);
    VF_UNROLL for (int r = 0; r < rows; r++) vf_store(out + r * out_stride, acc[r]);
}

/* f with its first argument a constant */
#ifdef VF_PLAIN
#define FOR_ROWS(f, ...) f(1, __VA_ARGS__);
#else
              /* clang-format off */
#define FOR_ROWS(f, ...)               \
    switch (rows) {                    \
    case 1: f(1, __VA_ARGS__); break;  \
    case 2: f(2, __VA_ARGS__); break;  \
    case 3: f(3, __VA_ARGS__); break;  \
    case 4: f(4, __VA_ARGS__); break;  \
    case 5: f(5, __VA_ARGS__); break;  \
    default: f(6, __VA_ARGS__); break; \
    }
              /* clang-format on */
#endif

static void scores(int rows, const float *q, int64_t dim, const float *keys, float *out)
{
    PL_ASSERT(rows <= ROWS);
    FOR_ROWS(scores_of, q, dim, keys, out)
}

static void values(int rows, int64_t n, const float *p, const float *panel, int64_t dim, float *out)
{
    PL_ASSERT(rows <= ROWS);
    for (int64_t c = 0; c < dim; c += PL_LANES) FOR_ROWS(values_of, n, p, panel + c * STEP, out + c, dim)
}

/* Rows that are needed a little later: a line of each of n rows. Spread over the work, so that the core's few slots
 * for lines under way are never all taken by one burst. */
PL_INLINE void fetch(const uint8_t *row, int64_t stride, int n)
{
    VF_UNROLL for (int i = 0; i < n; i++) __builtin_prefetch(row + i * stride);
}

#if defined(__AVX2__) && defined(__FMA__)
/* Eight rows of eight dwords become eight columns. */
PL_INLINE void transpose8(const uint8_t *row, int64_t stride, __m256i *out)
{
    __m256i r[8], t[8];
    VF_UNROLL for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_si256((const __m256i *)(row + i * stride));
    VF_UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    VF_UNROLL for (int i = 0; i < 8; i += 4)
    {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    VF_UNROLL for (int i = 0; i < 4; i++)
    {
        out[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        out[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
}
/* The whole dwords of 16 rows, turned: returns how many dims are done. */
PL_INLINE int64_t turn_keys(float *panel, const uint8_t *row, const uint8_t *next, int64_t stride, int64_t dim,
                            bool bf16)
{
    const int64_t per = bf16 ? 16 : 8; /* dims in 32 bytes */
    int64_t d = 0;
    for (; d + per <= dim; d += per)
        for (int half = 0; half < 2; half++) {
            __m256i c[8];
            float *to = panel + d * PL_LANES + half * 8;
            const int64_t at = d * (bf16 ? 2 : 4) + half * 8 * stride;
            if (d / per % 2 == 0) fetch(next + at, stride, 8);
            transpose8(row + at, stride, c);
            VF_UNROLL for (int i = 0; i < 8; i++)
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
/* 16 dims of eight BF16 keys, turned in registers and used at once: the chains go on. */
PL_INLINE void direct_chains(int rows, const float *q, int64_t dim, const uint8_t *row, int64_t stride, __m256 *even,
                             __m256 *odd)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    __m256i c[8];
    transpose8(row, stride, c);
    VF_UNROLL for (int i = 0; i < 8; i++)
    {
        const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(c[i], 16));
        const __m256 b = _mm256_castsi256_ps(_mm256_and_si256(c[i], high));
        VF_UNROLL for (int r = 0; r < rows; r++)
        {
            even[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(q + r * dim + 2 * i), a, even[r]);
            odd[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(q + r * dim + 2 * i + 1), b, odd[r]);
        }
    }
}
/* scores_of without a panel, for BF16 keys of 16 i dims */
PL_INLINE void scores_direct_of(int rows, const float *q, int64_t dim, const uint8_t *row, const uint8_t *next,
                                int64_t stride, float *out)
{
    for (int half = 0; half < 2; half++, row += 8 * stride, next += 8 * stride) {
        __m256 acc[ROWS];
        VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = _mm256_setzero_ps();
        for (int64_t d = 0; d < dim; d += STEP) {
            __m256 even[ROWS], odd[ROWS];
            VF_UNROLL for (int r = 0; r < rows; r++) even[r] = odd[r] = _mm256_setzero_ps();
            fetch(next + 2 * d, stride, 8);
            for (int64_t k = d; k < pl_min(d + STEP, dim); k += 16)
                direct_chains(rows, q + k, dim, row + 2 * k, stride, even, odd);
            VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = _mm256_add_ps(acc[r], _mm256_add_ps(even[r], odd[r]));
        }
        VF_UNROLL for (int r = 0; r < rows; r++) _mm256_storeu_ps(out + r * SCORE_STRIDE + half * 8, acc[r]);
    }
}
static bool scores_direct(int rows, const float *q, int64_t dim, const uint8_t *row, const uint8_t *next,
                          int64_t stride, bool bf16, float *out)
{
    if (rows > ROWS || !bf16 || dim % 16) return false;
    FOR_ROWS(scores_direct_of, q, dim, row, next, stride, out)
    return true;
}
#else /* in plain C the panel is filled below */
#define turn_keys(...) 0
#define scores_direct(...) false
#endif

/* panel[dim][16] = 16 keys */
static void load_keys(const uint8_t *row, const uint8_t *next, int64_t stride, int64_t dim, bool bf16, float *panel)
{
    (void)next;
    for (int64_t d = turn_keys(panel, row, next, stride, dim, bf16); d < dim; d++)
        for (int i = 0; i < PL_LANES; i++) {
            const uint8_t *r = row + i * stride;
            panel[d * PL_LANES + i] = bf16 ? pl_bf16_f32(((const uint16_t *)r)[d]) : ((const float *)r)[d];
        }
}

/* Up to 16 dims of a row of values, from dim d on; `left` of them are real. */
VF_INLINE vf value_lanes(const uint8_t *row, bool bf16, int64_t d, int64_t left)
{
    if (bf16) {
        const uint16_t *v = (const uint16_t *)row + d;
        return left < PL_LANES ? vf_load_bf16_n(v, left) : vf_load_bf16(v);
    }
    const float *v = (const float *)row + d;
    return vf_get(v, left);
}

/* 32 rows of values: the first 16 from at[0] on, the others from at[1] on */
typedef struct value_rows {
    const uint8_t *at[2];
} value_rows;
PL_INLINE const uint8_t *value_row(value_rows v, int64_t i, int64_t stride)
{
    return v.at[i / PL_LANES] + i % PL_LANES * stride;
}

/* panel[dim / 16][32][16] = n rows of values */
static void load_values(value_rows row, value_rows next, int64_t stride, int64_t dim, bool bf16, int64_t n,
                        float *panel)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < dim; d += PL_LANES) {
            if (d / PL_LANES % 2 == 0) __builtin_prefetch(value_row(next, i, stride) + d * (bf16 ? 2 : 4));
            vf_store(panel + d * STEP + i * PL_LANES, value_lanes(value_row(row, i, stride), bf16, d, dim - d));
        }
}

/* values_of without a panel: 16 dims from byte c on of n rows of BF16 values */
VF_INLINE void values_direct_of(int rows, int64_t n, const float *p, value_rows row, value_rows next, int64_t stride,
                                int64_t c, float *out, int64_t out_stride)
{
    vf even[ROWS], odd[ROWS];
    VF_UNROLL for (int r = 0; r < rows; r++) even[r] = odd[r] = vf_set(0);
    for (int64_t k = 0; k < n; k += 2) {
        const vf v = vf_load_bf16((const uint16_t *)(value_row(row, k, stride) + c));
        if (c % 64 == 0) fetch(value_row(next, k, stride) + c, stride, 2);
        VF_UNROLL for (int r = 0; r < rows; r++) even[r] = vf_fma(vf_set(p[r * SCORE_STRIDE + k]), v, even[r]);
    }
    for (int64_t k = 1; k < n; k += 2) {
        const vf v = vf_load_bf16((const uint16_t *)(value_row(row, k, stride) + c));
        VF_UNROLL for (int r = 0; r < rows; r++) odd[r] = vf_fma(vf_set(p[r * SCORE_STRIDE + k]), v, odd[r]);
    }
    VF_UNROLL for (int r = 0; r < rows; r++)
        vf_store(out + r * out_stride, vf_add(vf_load(out + r * out_stride), vf_add(even[r], odd[r])));
}
static bool values_direct(int rows, int64_t n, const float *p, value_rows row, value_rows next, int64_t stride,
                          int64_t dim, bool bf16, float *out)
{
    if (rows > ROWS || !bf16 || dim % PL_LANES) return false;
    for (int64_t d = 0; d < dim; d += PL_LANES) FOR_ROWS(values_direct_of, n, p, row, next, stride, 2 * d, out + d, dim)
    return true;
}

/* Lanes outside [lo, hi) become `other`. */
VF_INLINE vf within(vf v, int64_t lo, int64_t hi, float other)
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
    const int64_t pos = b->pos + r / j->group % b->n;
    return (range){pl_max(0, pl_attend_first(j, pos) - base), pl_min(PL_ATTEND_CHUNK, pos + 1 - base)};
}
/* What rows r..r+n-1 of one head see together; limits never fall from one row to the next. */
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

/* Where the query or the result of row r lies. */
PL_INLINE float *row_of(const pl_attend_job *j, const pl_attend_block *b, const pl_tensor *t, int64_t r)
{
    const int64_t per_head = b->n * j->group, i = r % per_head;
    const int64_t head = (b->head + r / per_head) * j->group + i % j->group;
    return (float *)t->data + (b->row + i / j->group) * t->stride[0] + head * t->stride[1];
}

/* q of the block's rows, [rows][key_dim], rounded if the cache is BF16 */
static void load_queries(const pl_attend_job *j, const pl_attend_block *b, float *q)
{
    const int64_t dim = j->kv->o.key_dim;
    for (int64_t r = 0; r < b->heads * b->n * j->group; r++, q += dim) {
        const float *x = row_of(j, b, j->q, r);
        for (int64_t d = 0; d < dim; d += PL_LANES) {
            const vf v = vf_get(x + d, dim - d);
            vf_put(q + d, j->kv->o.dtype == PL_BF16 ? vf_bf16(v) : v, dim - d);
        }
    }
}

/* 16 keys, or values, of the block's first head; past the sequence's end those at `else_at`: there is nothing to fetch. */
PL_INLINE const uint8_t *rows_at(const pl_attend_job *j, const pl_attend_block *b, bool keys, int64_t pos,
                                 int64_t else_at)
{
    const pl_kv *kv = j->kv;
    if (pos >= b->pos + b->n) pos = else_at;
    if (keys) return pl_kv_key(kv, b->seq, j->layer, pos) + kv->key_bytes / kv->o.heads * b->head;
    return pl_kv_value(kv, b->seq, j->layer, pos) + kv->value_bytes / kv->o.heads * b->head;
}

/* Scores of all rows with the chunk's keys; s[rows][SCORE_STRIDE] */
static void chunk_scores(const pl_attend_job *j, const pl_attend_block *b, int64_t base, range all, const float *q,
                         float *panel, float *s)
{
    const pl_kv_opts *o = &j->kv->o;
    const int64_t per_head = b->n * j->group, dim = o->key_dim, stride = j->kv->key_bytes, head = stride / o->heads;
    const bool bf16 = o->dtype == PL_BF16;
    for (int64_t t = all.lo / PL_LANES * PL_LANES; t < all.hi; t += PL_LANES) {
        const uint8_t *row = rows_at(j, b, true, base + t, 0), *next = rows_at(j, b, true, base + t + STEP, base + t);
        for (int64_t h = 0; h < b->heads; h++, row += head, next += head) {
            const int64_t r0 = h * per_head;
            if (scores_direct((int)per_head, q + r0 * dim, dim, row, next, stride, bf16, s + r0 * SCORE_STRIDE + t))
                continue;
            load_keys(row, next, stride, dim, bf16, panel);
            for (int64_t r = 0; r < per_head; r += ROWS) {
                const int n = (int)pl_min(ROWS, per_head - r);
                const range v = visible_to(j, b, base, r, n);
                if (t < v.hi && t + PL_LANES > v.lo)
                    scores(n, q + (r0 + r) * dim, dim, panel, s + (r0 + r) * SCORE_STRIDE + t);
            }
        }
    }
}

/* out[rows][dim rounded up] += probabilities s times the chunk's values */
static void chunk_values(const pl_attend_job *j, const pl_attend_block *b, int64_t base, range all, const float *s,
                         float *panel, float *out)
{
    const pl_kv_opts *o = &j->kv->o;
    const int64_t per_head = b->n * j->group, dim = pl_round_up(o->value_dim, PL_LANES);
    const int64_t stride = j->kv->value_bytes, head = stride / o->heads;
    const bool bf16 = o->dtype == PL_BF16;
    for (int64_t t = all.lo / STEP * STEP; t < all.hi; t += STEP) {
        const int64_t terms = pl_min(STEP, all.hi - t);
        for (int64_t h = 0; h < b->heads; h++) {
            value_rows row, next;
            for (int i = 0; i < 2; i++) {
                const int64_t at = base + t + i * PL_LANES;
                row.at[i] = rows_at(j, b, false, at, base + t) + h * head;
                next.at[i] = rows_at(j, b, false, at + STEP, base + t) + h * head;
            }
            const int64_t r0 = h * per_head;
            const float *p = s + r0 * SCORE_STRIDE + t;
            if (values_direct((int)per_head, terms, p, row, next, stride, o->value_dim, bf16, out + r0 * dim)) continue;
            load_values(row, next, stride, o->value_dim, bf16, terms, panel);
            for (int64_t r = 0; r < per_head; r += ROWS) {
                const int n = (int)pl_min(ROWS, per_head - r);
                const range v = visible_to(j, b, base, r, n);
                if (t < v.hi && t + STEP > v.lo)
                    values(n, terms, p + r * SCORE_STRIDE, panel, dim, out + (r0 + r) * dim);
            }
        }
    }
}

static void attend_chunk(const pl_attend_job *j, const pl_attend_block *b, int64_t chunk, float *part, float *work)
{
    const int64_t per_head = b->n * j->group, rows = b->heads * per_head, base = chunk * PL_ATTEND_CHUNK;
    const int64_t key_dim = j->kv->o.key_dim, dim = pl_round_up(j->kv->o.value_dim, PL_LANES);
    float *m = part, *l = m + rows, *out = l + rows;
    float *s = work, *panel = s + rows * SCORE_STRIDE, *q = panel + pl_max(key_dim * PL_LANES, dim * STEP);
    const range all = visible_to(j, b, base, 0, per_head);
    load_queries(j, b, q);
    chunk_scores(j, b, base, all, q, panel, s);
    const int64_t first = all.lo / STEP * STEP, end = pl_round_up(all.hi, STEP);
    for (int64_t r = 0; r < rows; r++)
        soften(s + r * SCORE_STRIDE, visible(j, b, base, r), first, end, j->scale, j->kv->o.dtype == PL_BF16, m + r,
               l + r);
    memset(out, 0, sizeof *out * (size_t)(rows * dim));
    chunk_values(j, b, base, all, s, panel, out);
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
    const int64_t rows = b->heads * b->n * j->group, value_dim = j->kv->o.value_dim;
    const int64_t dim = pl_round_up(value_dim, PL_LANES);
    for (int64_t r = 0; r < rows; r++) {
        float *y = row_of(j, b, j->y, r);
        const float *o = sum + 2 * rows + r * dim;
        const vf by = vf_set(1 / sum[rows + r]);
        for (int64_t d = 0; d < value_dim; d += PL_LANES)
            vf_put(y + d, vf_add(vf_mul(vf_load(o + d), by), vf_set(0)), value_dim - d);
    }
}

const pl_attend_ops ATTEND_OPS = {attend_chunk, attend_merge, attend_finish};
