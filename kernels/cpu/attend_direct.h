/* attend_direct.h: part of attend_body.h: few rows (a decode step) meet rows of the cache without a panel between. For
 * BF16 and FP8, dims that are multiples of 16, and codes without NaN; the others take the panel, with the same bits. */
#include "attend_rows.h"

#if defined(__AVX2__) && defined(__FMA__)
/* 16 dims of eight BF16 keys, turned in registers and used at once: the chains go on. */
PL_INLINE void bf16_chains(int rows, const float *q, int64_t dim, const uint8_t *row, int64_t stride, __m256 *even,
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
/* scores_of for BF16 keys */
PL_INLINE void scores_bf16(int rows, const float *q, int64_t dim, const uint8_t *row, const uint8_t *next,
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
                bf16_chains(rows, q + k, dim, row + 2 * k, stride, even, odd);
            VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = _mm256_add_ps(acc[r], _mm256_add_ps(even[r], odd[r]));
        }
        VF_UNROLL for (int r = 0; r < rows; r++) _mm256_storeu_ps(out + r * SCORE_STRIDE + half * 8, acc[r]);
    }
}
PL_INLINE __m256 set_pair(const float *p)
{
    double pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_castpd_ps(_mm256_set1_pd(pair));
}
/* scores_of for E4M3 keys. A lane is a chain: two keys' even and odd one side by side. */
PL_INLINE void scores_f8(int rows, const float *q, int64_t dim, const uint8_t *row, const uint8_t *next, int64_t stride,
                         float *out)
{
    VF_UNROLL for (int r = 0; r < rows; r++) vf_store(out + r * SCORE_STRIDE, vf_set(0));
    for (int64_t d = 0; d < dim; d += STEP) {
        const int n = dim - d < STEP ? 1 : 2;
        __m256i c[2][8];
        if (d % 64 == 0) fetch(next + d, stride, PL_LANES);
        for (int k = 0; k < n; k++) transpose_f8(row + d + 16 * k, stride, c[k]);
        for (int half = 0; half < 2; half++) {
            __m256 a[ROWS], b[ROWS];
            VF_UNROLL for (int r = 0; r < rows; r++) a[r] = b[r] = _mm256_setzero_ps();
            for (int k = 0; k < n; k++) {
                VF_UNROLL for (int i = 0; i < 8; i++)
                {
                    __m256 x, y;
                    f8_pairs(((const __m128i *)&c[k][i])[half], &x, &y);
                    VF_UNROLL for (int r = 0; r < rows; r++)
                    {
                        const __m256 by = set_pair(q + r * dim + d + 16 * k + 2 * i);
                        a[r] = _mm256_fmadd_ps(by, x, a[r]);
                        b[r] = _mm256_fmadd_ps(by, y, b[r]);
                    }
                }
            }
            VF_UNROLL for (int r = 0; r < rows; r++)
            {
                float *to = out + r * SCORE_STRIDE + half * 8;
                const __m256 step = _mm256_add_ps(f8_even(a[r], b[r]), f8_odd(a[r], b[r]));
                _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), step));
            }
        }
    }
}
static bool scores_direct(int rows, const float *q, int64_t dim, const uint8_t *row, const uint8_t *next,
                          int64_t stride, int32_t dtype, float *out)
{
    if (rows > ROWS || dtype == PL_F32 || dim % 16) return false;
    if (dtype == PL_BF16) {
        FOR_ROWS(scores_bf16, q, dim, row, next, stride, out)
        return true;
    }
    if (!f8_sane(row, stride, PL_LANES, dim)) return false;
    FOR_ROWS(scores_f8, q, dim, row, next, stride, out)
    return true;
}

/* 16 dims of a row of values, in the order that takes the least work: the even ones, then the odd ones. */
#ifdef __AVX512F__
PL_INLINE vf in_order(vf v) { return v; }
#else
PL_INLINE vf in_order(vf v)
{
    const __m256 lo = _mm256_unpacklo_ps(v.a, v.b), hi = _mm256_unpackhi_ps(v.a, v.b);
    return (vf){_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)};
}
#endif
/* cols times 16 dims */
PL_INLINE void direct_lanes(int cols, bool f8, const uint8_t *at, vf *v)
{
#ifdef __AVX512F__
    VF_UNROLL for (int c = 0; c < cols; c++) v[c] =
        f8 ? vf_load_f8_sane(at + 16 * c) : vf_load_bf16((const uint16_t *)at + 16 * c);
#else
    if (!f8) {
        const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
        VF_UNROLL for (int c = 0; c < cols; c++)
        {
            const __m256i x = _mm256_loadu_si256((const __m256i *)at + c);
            v[c].a = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
            v[c].b = _mm256_castsi256_ps(_mm256_and_si256(x, high));
        }
        return;
    }
    if (cols == 1) {
        const __m128i x = _mm_loadu_si128((const __m128i *)at), mask = _mm_set1_epi16((int16_t)0xbf80);
        v[0].a = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(x, 8), 1), mask));
        v[0].b = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(x, 1), mask));
        return;
    }
    const __m256i x = _mm256_loadu_si256((const __m256i *)at), mask = _mm256_set1_epi16((int16_t)0xbf80);
    const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 1), mask);
    const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(x, 1), mask);
    v[0] = (vf){_mm256_cvtph_ps(_mm256_castsi256_si128(even)), _mm256_cvtph_ps(_mm256_castsi256_si128(odd))};
    v[1] = (vf){_mm256_cvtph_ps(_mm256_extracti128_si256(even, 1)), _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1))};
#endif
}
/* One chain, over every other row from at[0] and then at[1] on: acc[rows][cols] */
PL_INLINE void direct_chain(int rows, int cols, bool f8, int64_t n, const float *p, const uint8_t *const *at,
                            const uint8_t *const *next, int64_t stride, vf *acc)
{
    VF_UNROLL for (int r = 0; r < rows * cols; r++) acc[r] = vf_set(0);
    for (int64_t i = 0; i < 2; i++) {
        const uint8_t *row = at[i], *then = next[i];
        const float *end = p + pl_min(n, PL_LANES);
        n -= PL_LANES;
        for (; p < end; p += 2, row += 2 * stride, then += 2 * stride) {
            vf v[2];
            __builtin_prefetch(then);
            direct_lanes(cols, f8, row, v);
            VF_UNROLL for (int r = 0; r < rows; r++)
            {
                const vf by = vf_set(p[r * SCORE_STRIDE]);
                VF_UNROLL for (int c = 0; c < cols; c++) acc[r * cols + c] = vf_fma(by, v[c], acc[r * cols + c]);
            }
        }
    }
}
/* values_of: cols times 16 dims from byte c on of n rows of BF16 or E4M3 values */
PL_INLINE void values_direct_of(int rows, int cols, bool f8, int64_t n, const float *p, value_rows row, value_rows next,
                                int64_t stride, int64_t c, float *out, int64_t out_stride)
{
    vf even[ROWS], odd[ROWS];
    const uint8_t *at[2][2], *then[2][2]; /* even and odd rows */
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) at[k][i] = row.at[i] + k * stride + c, then[k][i] = next.at[i] + k * stride + c;
    direct_chain(rows, cols, f8, n, p, at[0], then[0], stride, even);
    direct_chain(rows, cols, f8, n - 1, p + 1, at[1], then[1], stride, odd);
    VF_UNROLL for (int r = 0; r < rows * cols; r++)
    {
        float *to = out + r / cols * out_stride + r % cols * PL_LANES;
        vf_store(to, vf_add(vf_load(to), in_order(vf_add(even[r], odd[r]))));
    }
}
/* Up to ROWS / 2 rows meet 32 dims at a time, more rows 16: sums for either fill the registers. */
#define values_two(rows, ...) values_direct_of(rows, (rows) <= ROWS / 2 ? 2 : 1, __VA_ARGS__)
#define values_one(rows, ...) values_direct_of(rows, 1, __VA_ARGS__)
static bool values_direct(int rows, int64_t n, const float *p, value_rows row, value_rows next, int64_t stride,
                          int64_t dim, int32_t dtype, float *out)
{
    if (rows > ROWS || dtype == PL_F32 || dim % PL_LANES) return false;
    const int64_t first = pl_min(n, PL_LANES);
    if (dtype == PL_F8 && !(f8_sane(row.at[0], stride, first, dim) && f8_sane(row.at[1], stride, n - first, dim)))
        return false;
    const int64_t by = rows <= ROWS / 2 ? 2 * PL_LANES : PL_LANES, whole = dim / by * by;
    for (int64_t d = 0; d < whole; d += by) {
        if (dtype == PL_F8)
            FOR_ROWS(values_two, true, n, p, row, next, stride, d, out + d, dim)
        else
            FOR_ROWS(values_two, false, n, p, row, next, stride, 2 * d, out + d, dim)
    }
    if (whole < dim) {
        if (dtype == PL_F8)
            FOR_ROWS(values_one, true, n, p, row, next, stride, whole, out + whole, dim)
        else
            FOR_ROWS(values_one, false, n, p, row, next, stride, 2 * whole, out + whole, dim)
    }
    return true;
}
#else
#define scores_direct(...) false
#define values_direct(...) false
#endif
