#ifndef PL_VEC_H
#define PL_VEC_H
/* Sixteen float lanes, the unit in which the ops other than linear are written. One text is compiled for plain C,
 * AVX2 and AVX-512 (the compiler's flags decide), and every operation here is one IEEE operation per lane, rounded
 * once: so all paths give the same bits. Nothing else may be added to this file. */
#include "base.h"
#include <math.h>
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

enum { PL_LANES = 16 };

/* What each path gives, lane by lane:
 *   vf_fma       a * b + c, rounded once
 *   vf_max       a > b ? a : b (so b where either is NaN)
 *   vf_if_less   a < b ? x : y
 *   vf_or_nan    a where a is NaN, else y
 *   vf_scale2    p * 2^n by an addition to the exponent; n are the low bits of t (see pl_vexp)
 *   vf_bf16      rounded to BF16, ties to even, NaN stays NaN
 *   vf_store_upper  the upper halves of lanes: BF16 of what vf_bf16 rounded
 *   vf_load_n    the first n lanes, the others 0; vf_store_n writes the first n: memory behind them is not touched
 *   vf_load_f8   E4M3 codes, each as 2^-8 of its value: a code's bits with the exponent moved to a half's place are that
 *                number, subnormals included. Exact in halves, BF16 and floats; no denormal occurs. NaN stays NaN.
 *   vf_load_f8_sane  the same for codes of which none is NaN
 *   vf_store_f8  rounded to E4M3, ties to even; above 448, infinity too, it is 448; NaN is 0x7f or 0xff */
#if defined(__AVX512F__) && defined(__AVX512BW__)

#define VF_INLINE PL_INLINE
#define VF_UNROLL _Pragma("GCC unroll 16") /* without it accumulator arrays live in memory */
typedef __m512 vf;
PL_INLINE __mmask16 vf_mask(int64_t n) { return (__mmask16)((1u << n) - 1); }
PL_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
PL_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
PL_INLINE vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vf_mask(n), p); }
PL_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
PL_INLINE void vf_store_n(float *p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, vf_mask(n), a); }
PL_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
PL_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
PL_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
PL_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
PL_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
PL_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
PL_INLINE vf vf_if_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
PL_INLINE vf vf_or_nan(vf a, vf y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), y, a); }
PL_INLINE vf vf_scale2(vf p, vf t)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
PL_INLINE vf vf_bf16(vf a)
{
    const __m512i u = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
    const __m512i q = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __m512i v = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), r, q);
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
}
PL_INLINE vf vf_load_bf16(const uint16_t *p)
{
    const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
PL_INLINE void vf_store_upper(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16)));
}
PL_INLINE void vf_store_bf16(uint16_t *p, vf a) { vf_store_upper(p, vf_bf16(a)); }

PL_INLINE __m256i vf_f8_halves(const uint8_t *p)
{
    const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    return _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((int16_t)0xbf80));
}
PL_INLINE vf vf_load_f8_sane(const uint8_t *p) { return _mm512_cvtph_ps(vf_f8_halves(p)); }
PL_INLINE vf vf_load_f8(const uint8_t *p)
{
    const __m256i h = vf_f8_halves(p), top = _mm256_set1_epi16(0x3f80);
    return _mm512_cvtph_ps(_mm256_or_si256(h, _mm256_cmpeq_epi16(_mm256_and_si256(h, top), top)));
}
PL_INLINE void vf_store_f8(uint8_t *p, vf x)
{
    const __m512i u = _mm512_castps_si512(x), a = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(a, 20), _mm512_set1_epi32(1));
    const __m512i r = _mm512_srli_epi32(_mm512_add_epi32(a, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))), 20);
    __m512i c = _mm512_min_epi32(_mm512_sub_epi32(r, _mm512_set1_epi32(120 << 3)), _mm512_set1_epi32(0x7e));
    const __m512 tiny = _mm512_add_ps(_mm512_castsi512_ps(a), _mm512_set1_ps(0x1p14f)); /* in units of 2^-9 */
    const __m512i s = _mm512_sub_epi32(_mm512_castps_si512(tiny), _mm512_set1_epi32(0x46800000));
    c = _mm512_mask_mov_epi32(c, _mm512_cmplt_epi32_mask(a, _mm512_set1_epi32(0x3c800000)), s);
    c = _mm512_mask_mov_epi32(c, _mm512_cmpgt_epi32_mask(a, _mm512_set1_epi32(0x7f800000)), _mm512_set1_epi32(0x7f));
    c = _mm512_or_si512(c, _mm512_and_si512(_mm512_srli_epi32(u, 24), _mm512_set1_epi32(0x80)));
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(c));
}

#elif defined(__AVX2__) && defined(__FMA__)

#define VF_INLINE PL_INLINE
#define VF_UNROLL _Pragma("GCC unroll 16")
typedef struct vf {
    __m256 a, b;
} vf;
PL_INLINE __m256i vf_half_mask(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PL_INLINE vf vf_set(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PL_INLINE vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PL_INLINE vf vf_load_n(const float *p, int64_t n)
{
    return (vf){_mm256_maskload_ps(p, vf_half_mask(n)), _mm256_maskload_ps(p + 8, vf_half_mask(n - 8))};
}
PL_INLINE void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.a);
    _mm256_storeu_ps(p + 8, a.b);
}
PL_INLINE void vf_store_n(float *p, vf a, int64_t n)
{
    _mm256_maskstore_ps(p, vf_half_mask(n), a.a);
    _mm256_maskstore_ps(p + 8, vf_half_mask(n - 8), a.b);
}
#define PL_HALVES(f) ((vf){f(x.a, y.a), f(x.b, y.b)})
PL_INLINE vf vf_add(vf x, vf y) { return PL_HALVES(_mm256_add_ps); }
PL_INLINE vf vf_sub(vf x, vf y) { return PL_HALVES(_mm256_sub_ps); }
PL_INLINE vf vf_mul(vf x, vf y) { return PL_HALVES(_mm256_mul_ps); }
PL_INLINE vf vf_div(vf x, vf y) { return PL_HALVES(_mm256_div_ps); }
PL_INLINE vf vf_max(vf x, vf y) { return PL_HALVES(_mm256_max_ps); }
#undef PL_HALVES
PL_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)}; }
PL_INLINE vf vf_if_less(vf a, vf b, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
PL_INLINE vf vf_or_nan(vf a, vf y)
{
    return (vf){_mm256_blendv_ps(y.a, a.a, _mm256_cmp_ps(a.a, a.a, _CMP_UNORD_Q)),
                _mm256_blendv_ps(y.b, a.b, _mm256_cmp_ps(a.b, a.b, _CMP_UNORD_Q))};
}
PL_INLINE __m256 vf_scale2_half(__m256 p, __m256 t)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
PL_INLINE vf vf_scale2(vf p, vf t) { return (vf){vf_scale2_half(p.a, t.a), vf_scale2_half(p.b, t.b)}; }
PL_INLINE __m256 vf_bf16_half(__m256 a)
{
    const __m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));
    const __m256i q = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256 v =
        _mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(q), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u)));
}
PL_INLINE vf vf_bf16(vf a) { return (vf){vf_bf16_half(a.a), vf_bf16_half(a.b)}; }
PL_INLINE __m256 vf_load_bf16_half(const uint16_t *p)
{
    const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
PL_INLINE vf vf_load_bf16(const uint16_t *p) { return (vf){vf_load_bf16_half(p), vf_load_bf16_half(p + 8)}; }
PL_INLINE void vf_store_upper(uint16_t *p, vf a)
{
    const __m256i x = _mm256_srli_epi32(_mm256_castps_si256(a.a), 16),
                  y = _mm256_srli_epi32(_mm256_castps_si256(a.b), 16);
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xd8));
}
PL_INLINE void vf_store_bf16(uint16_t *p, vf a) { vf_store_upper(p, vf_bf16(a)); }
PL_INLINE __m256i vf_f8_halves(const uint8_t *p)
{
    const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    return _mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16((int16_t)0xbf80));
}
PL_INLINE vf vf_of_halves(__m256i h)
{
    return (vf){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
PL_INLINE vf vf_load_f8_sane(const uint8_t *p) { return vf_of_halves(vf_f8_halves(p)); }
PL_INLINE vf vf_load_f8(const uint8_t *p)
{
    const __m256i h = vf_f8_halves(p), top = _mm256_set1_epi16(0x3f80);
    return vf_of_halves(_mm256_or_si256(h, _mm256_cmpeq_epi16(_mm256_and_si256(h, top), top)));
}
PL_INLINE __m256i vf_f8_half(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x), a = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(a, 20), _mm256_set1_epi32(1));
    const __m256i r = _mm256_srli_epi32(_mm256_add_epi32(a, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff))), 20);
    __m256i c = _mm256_min_epi32(_mm256_sub_epi32(r, _mm256_set1_epi32(120 << 3)), _mm256_set1_epi32(0x7e));
    const __m256 tiny = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_set1_ps(0x1p14f)); /* in units of 2^-9 */
    const __m256i s = _mm256_sub_epi32(_mm256_castps_si256(tiny), _mm256_set1_epi32(0x46800000));
    c = _mm256_blendv_epi8(c, s, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), a));
    c = _mm256_blendv_epi8(c, _mm256_set1_epi32(0x7f), _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f800000)));
    return _mm256_or_si256(c, _mm256_and_si256(_mm256_srli_epi32(u, 24), _mm256_set1_epi32(0x80)));
}
PL_INLINE void vf_store_f8(uint8_t *p, vf x)
{
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packus_epi32(vf_f8_half(x.a), vf_f8_half(x.b)), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}

#else

#define VF_PLAIN
#define VF_UNROLL
#define VF_INLINE static inline __attribute__((unused)) /* forced inlining makes sanitizer builds take minutes */
typedef struct vf {
    float v[PL_LANES];
} vf;
#define PL_EACH(expr)                                   \
    vf r;                                               \
    for (int i = 0; i < PL_LANES; i++) r.v[i] = (expr); \
    return r
VF_INLINE vf vf_set(float x) { PL_EACH(x); }
VF_INLINE vf vf_load(const float *p) { PL_EACH(p[i]); }
VF_INLINE vf vf_load_n(const float *p, int64_t n) { PL_EACH(i < n ? p[i] : 0); }
VF_INLINE void vf_store(float *p, vf a) { memcpy(p, a.v, sizeof a.v); }
VF_INLINE void vf_store_n(float *p, vf a, int64_t n) { memcpy(p, a.v, sizeof *p * (size_t)n); }
VF_INLINE vf vf_add(vf a, vf b) { PL_EACH(a.v[i] + b.v[i]); }
VF_INLINE vf vf_sub(vf a, vf b) { PL_EACH(a.v[i] - b.v[i]); }
VF_INLINE vf vf_mul(vf a, vf b) { PL_EACH(a.v[i] * b.v[i]); }
VF_INLINE vf vf_div(vf a, vf b) { PL_EACH(a.v[i] / b.v[i]); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { PL_EACH(fmaf(a.v[i], b.v[i], c.v[i])); }
VF_INLINE vf vf_max(vf a, vf b) { PL_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
VF_INLINE vf vf_if_less(vf a, vf b, vf x, vf y) { PL_EACH(a.v[i] < b.v[i] ? x.v[i] : y.v[i]); }
VF_INLINE vf vf_or_nan(vf a, vf y) { PL_EACH(isnan(a.v[i]) ? a.v[i] : y.v[i]); }
VF_INLINE vf vf_scale2(vf p, vf t) { PL_EACH(pl_bits_f32(pl_f32_bits(p.v[i]) + (pl_f32_bits(t.v[i]) << 23))); }
VF_INLINE vf vf_bf16(vf a) { PL_EACH(pl_bf16_f32(pl_f32_bf16(a.v[i]))); }
VF_INLINE vf vf_load_bf16(const uint16_t *p) { PL_EACH(pl_bf16_f32(p[i])); }
VF_INLINE void vf_store_upper(uint16_t *p, vf a)
{
    for (int i = 0; i < PL_LANES; i++) p[i] = (uint16_t)(pl_f32_bits(a.v[i]) >> 16);
}
VF_INLINE void vf_store_bf16(uint16_t *p, vf a) { vf_store_upper(p, vf_bf16(a)); }
PL_INLINE float pl_f8_small(uint8_t c)
{
    const uint32_t sign = (uint32_t)(c & 0x80) << 24, a = c & 0x7f;
    if (a == 0x7f) return NAN;
    return a < 8 ? (sign ? -0x1p-17f : 0x1p-17f) * (float)a : pl_bits_f32(sign | ((a << 20) + 0x38000000u));
}
VF_INLINE vf vf_load_f8(const uint8_t *p) { PL_EACH(pl_f8_small(p[i])); }
VF_INLINE vf vf_load_f8_sane(const uint8_t *p) { return vf_load_f8(p); }
VF_INLINE void vf_store_f8(uint8_t *p, vf a)
{
    for (int i = 0; i < PL_LANES; i++) p[i] = pl_f32_f8(a.v[i]);
}
#undef PL_EACH
#endif

/* The order of every sum and maximum over lanes: halves, four times. */
VF_INLINE float vf_sum(vf a)
{
    float v[PL_LANES];
    vf_store(v, a);
    for (int n = PL_LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) v[i] += v[i + n];
    return v[0];
}
VF_INLINE float vf_top(vf a)
{
    float v[PL_LANES];
    vf_store(v, a);
    for (int n = PL_LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) v[i] = v[i] > v[i + n] ? v[i] : v[i + n];
    return v[0];
}
/* At most 16 lanes of what is left of a row: partial stores are slow, so only where they are needed. */
VF_INLINE vf vf_get(const float *p, int64_t left) { return left < PL_LANES ? vf_load_n(p, left) : vf_load(p); }
VF_INLINE void vf_put(float *p, vf a, int64_t left)
{
    if (left < PL_LANES)
        vf_store_n(p, a, left);
    else
        vf_store(p, a);
}
VF_INLINE vf vf_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t v[PL_LANES] = {0};
    memcpy(v, p, sizeof *p * (size_t)n);
    return vf_load_bf16(v);
}
VF_INLINE void vf_store_bf16_n(uint16_t *p, vf a, int64_t n)
{
    uint16_t v[PL_LANES];
    vf_store_bf16(v, a);
    memcpy(p, v, sizeof *p * (size_t)n);
}
VF_INLINE vf vf_load_f8_n(const uint8_t *p, int64_t n)
{
    uint8_t v[PL_LANES] = {0};
    memcpy(v, p, (size_t)n);
    return vf_load_f8(v);
}
VF_INLINE void vf_store_f8_n(uint8_t *p, vf a, int64_t n)
{
    uint8_t v[PL_LANES];
    vf_store_f8(v, a);
    memcpy(p, v, (size_t)n);
}
#endif
