/* attend_direct.h: part of attend_body.h: few rows (a decode step) meet rows of the cache without a panel between. For
 * BF16 and FP8, dims that are multiples of 16, and codes without NaN; the others take the panel, with the same bits. */
#include "attend_rows.h"

#if defined(__AVX2__) && defined(__FMA__)
/* c += a * b in place: left alone, gcc writes sums over factors, and keeps some of them in memory. */
#ifdef __AVX512F__
#define MAC(c, a, b) __asm__("vfmadd231ps %2,%1,%0" : "+v"(c) : "v"(a), "v"(b))
#else
#define MAC(c, a, b) __asm__("vfmadd231ps %2,%1,%0" : "+x"(c) : "x"(a), "x"(b))
#endif

/* Eight dims of 8 * w BF16 keys, turned in registers and used at once: the chains go on. */
PL_INLINE void bf16_chains(int rows, int w, const float *q, int64_t dim, const uint8_t *row, int64_t stride,
                           __m256 *even, __m256 *odd)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    __m256i c[2][4];
    VF_UNROLL for (int k = 0; k < w; k++) transpose4(row + 8 * k * stride, stride, c[k]);
    VF_UNROLL for (int i = 0; i < 4; i++)
    {
        VF_UNROLL for (int r = 0; r < rows; r++)
        {
            const __m256 by = _mm256_broadcast_ss(q + r * dim + 2 * i);
            VF_UNROLL for (int k = 0; k < w; k++)
            {
                const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(c[k][i], 16));
                MAC(even[r * w + k], by, x);
            }
        }
        VF_UNROLL for (int r = 0; r < rows; r++)
        {
            const __m256 by = _mm256_broadcast_ss(q + r * dim + 2 * i + 1);
            VF_UNROLL for (int k = 0; k < w; k++)
            {
                const __m256 x = _mm256_castsi256_ps(_mm256_and_si256(c[k][i], high));
                MAC(odd[r * w + k], by, x);
            }
        }
    }
}
/* scores_of for BF16 keys */
PL_INLINE void scores_bf16(int rows, const float *q, int64_t dim, const uint8_t *row, const uint8_t *next,
                           int64_t stride, float *out)
{
    const int w = rows <= ROWS / 2 ? 2 : 1;
    for (int at = 0; at < 2; at += w, row += 8 * w * stride, next += 8 * w * stride) {
        __m256 acc[ROWS];
        VF_UNROLL for (int r = 0; r < rows * w; r++) acc[r] = _mm256_setzero_ps();
        for (int64_t d = 0; d < dim; d += STEP) {
            __m256 even[ROWS], odd[ROWS];
            VF_UNROLL for (int r = 0; r < rows * w; r++) even[r] = odd[r] = _mm256_setzero_ps();
            fetch(next + 2 * d, stride, 8 * w);
            for (int64_t k = d; k < pl_min(d + STEP, dim); k += 8)
                bf16_chains(rows, w, q + k, dim, row + 2 * k, stride, even, odd);
            VF_UNROLL for (int r = 0; r < rows * w; r++) acc[r] = _mm256_add_ps(acc[r], _mm256_add_ps(even[r], odd[r]));
        }
        VF_UNROLL for (int r = 0; r < rows * w; r++)
            _mm256_storeu_ps(out + r / w * SCORE_STRIDE + (at + r % w) * 8, acc[r]);
    }
}
PL_INLINE __m256 set_pair(const float *p)
{
    double pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_castpd_ps(_mm256_set1_pd(pair));
}
/* scores_of for E4M3 keys. A lane is a chain: a key's even and odd one side by side. */
PL_INLINE void scores_f8(int rows, const float *q, int64_t dim, const uint8_t *row, const uint8_t *next, int64_t stride,
                         float *out)
{
    const int w = rows <= 2 ? 2 : 1, vectors = 2 * w; /* there are 16 registers */
    VF_UNROLL for (int r = 0; r < rows; r++) vf_store(out + r * SCORE_STRIDE, vf_set(0));
    for (int64_t d = 0; d < dim; d += STEP) {
        const int n = dim - d < STEP ? 1 : 2;
        __m256i c[2][8];
        if (d % 64 == 0) fetch(next + d, stride, PL_LANES);
        for (int k = 0; k < n; k++) transpose_f8(row + d + 16 * k, stride, c[k]);
        for (int at = 0; at < 2; at += w) {
            __m256 acc[2 * ROWS];
            VF_UNROLL for (int r = 0; r < rows * vectors; r++) acc[r] = _mm256_setzero_ps();
            for (int k = 0; k < n; k++) {
                const float *qk = q + d + 16 * k;
                VF_UNROLL for (int i = 0; i < 8; i++)
                {
                    __m256 x[4];
                    if (w == 2)
                        f8_of_16(c[k][i], x);
                    else
                        f8_of_8(((const __m128i *)&c[k][i])[at], x);
                    VF_UNROLL for (int r = 0; r < rows; r++)
                    {
                        const __m256 by = set_pair(qk + r * dim + 2 * i);
                        VF_UNROLL for (int v = 0; v < vectors; v++) MAC(acc[r * vectors + v], by, x[v]);
                    }
                }
            }
            VF_UNROLL for (int r = 0; r < rows * w; r++)
            {
                float *to = out + r / w * SCORE_STRIDE + (at + r % w) * 8;
                const __m256 a = acc[2 * r], b = acc[2 * r + 1], step = _mm256_add_ps(f8_even(a, b), f8_odd(a, b));
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

/* 16 dims of a row of values in the order that takes the least work, and back. With AVX2 that is the even ones, then the
 * odd ones. */
#ifdef __AVX512F__
PL_INLINE vf direct_lanes(bool f8, const uint8_t *at)
{
    return f8 ? vf_load_f8_sane(at) : vf_load_bf16((const uint16_t *)at);
}
PL_INLINE vf in_order(vf v) { return v; }
PL_INLINE void mac(vf *c, vf a, vf b) { MAC(*c, a, b); }
#else
PL_INLINE vf direct_lanes(bool f8, const uint8_t *at)
{
    if (!f8) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)at), high = _mm256_set1_epi32((int)0xffff0000u);
        return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_castsi256_ps(_mm256_and_si256(x, high))};
    }
    const __m128i x = _mm_loadu_si128((const __m128i *)at), mask = _mm_set1_epi16((int16_t)0xbf80);
    return (vf){_mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(x, 8), 1), mask)),
                _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(x, 1), mask))};
}
PL_INLINE vf in_order(vf v)
{
    const __m256 lo = _mm256_unpacklo_ps(v.a, v.b), hi = _mm256_unpackhi_ps(v.a, v.b);
    return (vf){_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)};
}
PL_INLINE void mac(vf *c, vf a, vf b)
{
    MAC(c->a, a.a, b.a);
    MAC(c->b, a.b, b.b);
}
#endif
PL_INLINE void value_macs(int rows, bool f8, const float *p, const uint8_t *at, vf *acc)
{
    const vf v = direct_lanes(f8, at);
    VF_UNROLL for (int r = 0; r < rows; r++) mac(&acc[r], vf_set(p[r * SCORE_STRIDE]), v);
}
/* values_of: 16 dims, from byte c on, of n rows of BF16 or E4M3 values */
PL_INLINE void values_direct_of(int rows, bool f8, int64_t n, const float *p, value_rows row, value_rows next,
                                int64_t stride, int64_t c, float *out, int64_t out_stride)
{
    vf even[ROWS], odd[ROWS];
    VF_UNROLL for (int r = 0; r < rows; r++) even[r] = odd[r] = vf_set(0);
    const int64_t run = row.at[1] - row.at[0] == PL_LANES * stride ? STEP : PL_LANES; /* rows that lie evenly apart */
    for (int64_t i = 0; n > 0; i++, n -= run, p += run) {
        const uint8_t *at = row.at[i] + c, *then = next.at[i] + c;
        const int64_t m = pl_min(n, run);
        if (rows <= ROWS / 2) { /* both chains at once fit the registers */
            for (int64_t k = 0; k < m - 1; k += 2) {
                if (c % 64 == 0) fetch(then + k * stride, stride, 2);
                value_macs(rows, f8, p + k, at + k * stride, even);
                value_macs(rows, f8, p + k + 1, at + (k + 1) * stride, odd);
            }
            if (m % 2) value_macs(rows, f8, p + m - 1, at + (m - 1) * stride, even);
            continue;
        }
        for (int64_t k = 0; k < m; k += 2) {
            if (c % 64 == 0) fetch(then + k * stride, stride, 2);
            value_macs(rows, f8, p + k, at + k * stride, even);
        }
        for (int64_t k = 1; k < m; k += 2) value_macs(rows, f8, p + k, at + k * stride, odd);
    }
    VF_UNROLL for (int r = 0; r < rows; r++)
    {
        float *to = out + r * out_stride;
        vf_store(to, vf_add(vf_load(to), in_order(vf_add(even[r], odd[r]))));
    }
}
static bool values_direct(int rows, int64_t n, const float *p, value_rows row, value_rows next, int64_t stride,
                          int64_t dim, int32_t dtype, float *out)
{
    if (rows > ROWS || dtype == PL_F32 || dim % PL_LANES) return false;
    const int64_t first = pl_min(n, PL_LANES);
    if (dtype == PL_F8 && !(f8_sane(row.at[0], stride, first, dim) && f8_sane(row.at[1], stride, n - first, dim)))
        return false;
    for (int64_t d = 0; d < dim; d += PL_LANES) {
        if (dtype == PL_F8)
            FOR_ROWS(values_direct_of, true, n, p, row, next, stride, d, out + d, dim)
        else
            FOR_ROWS(values_direct_of, false, n, p, row, next, stride, 2 * d, out + d, dim)
    }
    return true;
}
#else
#define scores_direct(...) false
#define values_direct(...) false
#endif
