#ifndef AVX512_H
#define AVX512_H
/* The intrinsics of AVX-512 that kernels use, on AVX2: each as its reference defines it, so that the AVX-512 sources run as they
 * are, wrappers and all, on machines without it. To be included before all else that looks at __AVX512F__. What is missing here
 * is an error of the compiler: add it. */
#include "base.h"
#include <immintrin.h>
#include <string.h>

typedef struct e512 {
    __m256 a, b;
} e512;
typedef struct e512i {
    __m256i a, b;
} e512i;
#define E(T) static inline __attribute__((always_inline, unused)) T
#define TWO(op)                    \
    {                              \
        op(x.a, y.a), op(x.b, y.b) \
    }

E(e512) e512_set1_ps(float x) { return (e512){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
E(e512) e512_setzero_ps(void) { return e512_set1_ps(0); }
E(e512) e512_loadu_ps(const float *p) { return (e512){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
E(void) e512_storeu_ps(float *p, e512 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
E(e512) e512_add_ps(e512 x, e512 y) { return (e512)TWO(_mm256_add_ps); }
E(e512) e512_sub_ps(e512 x, e512 y) { return (e512)TWO(_mm256_sub_ps); }
E(e512) e512_mul_ps(e512 x, e512 y) { return (e512)TWO(_mm256_mul_ps); }
E(e512) e512_div_ps(e512 x, e512 y) { return (e512)TWO(_mm256_div_ps); }
E(e512) e512_max_ps(e512 x, e512 y) { return (e512)TWO(_mm256_max_ps); }
E(e512) e512_fmadd_ps(e512 x, e512 y, e512 z)
{
    return (e512){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
E(e512) e512_castsi512_ps(e512i x) { return (e512){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
E(e512i) e512_castps_si512(e512 x) { return (e512i){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
E(e512) e512_cvtepi32_ps(e512i x) { return (e512){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
E(e512i) e512_cvtps_epi32(e512 x) { return (e512i){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
E(e512) e512_cvtph_ps(__m256i x)
{
    return (e512){_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}

E(e512i) e512_set1_epi32(int32_t x) { return (e512i){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
E(e512i) e512_set1_epi8(int8_t x) { return (e512i){_mm256_set1_epi8(x), _mm256_set1_epi8(x)}; }
E(e512i) e512_set1_epi16(int16_t x) { return (e512i){_mm256_set1_epi16(x), _mm256_set1_epi16(x)}; }
E(e512i) e512_loadu_si512(const void *p)
{
    const __m256i *v = p;
    return (e512i){_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
E(void) e512_storeu_si512(void *p, e512i x)
{
    _mm256_storeu_si256(p, x.a);
    _mm256_storeu_si256((__m256i *)p + 1, x.b);
}
E(e512i) e512_setr_epi64(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, int64_t h)
{
    return (e512i){_mm256_setr_epi64x(a, b, c, d), _mm256_setr_epi64x(e, f, g, h)};
}
E(e512i) e512_broadcast_i32x4(__m128i x)
{
    return (e512i){_mm256_broadcastsi128_si256(x), _mm256_broadcastsi128_si256(x)};
}
E(e512i) e512_and_si512(e512i x, e512i y) { return (e512i)TWO(_mm256_and_si256); }
E(e512i) e512_or_si512(e512i x, e512i y) { return (e512i)TWO(_mm256_or_si256); }
E(e512i) e512_xor_si512(e512i x, e512i y) { return (e512i)TWO(_mm256_xor_si256); }
E(e512i) e512_add_epi32(e512i x, e512i y) { return (e512i)TWO(_mm256_add_epi32); }
E(e512i) e512_sub_epi32(e512i x, e512i y) { return (e512i)TWO(_mm256_sub_epi32); }
E(e512i) e512_sub_epi8(e512i x, e512i y) { return (e512i)TWO(_mm256_sub_epi8); }
E(e512i) e512_max_epi32(e512i x, e512i y) { return (e512i)TWO(_mm256_max_epi32); }
E(e512i) e512_min_epi32(e512i x, e512i y) { return (e512i)TWO(_mm256_min_epi32); }
E(e512i) e512_shuffle_epi8(e512i x, e512i y) { return (e512i)TWO(_mm256_shuffle_epi8); }
E(e512i) e512_slli_epi32(e512i x, unsigned n)
{
    return (e512i){_mm256_slli_epi32(x.a, (int)n), _mm256_slli_epi32(x.b, (int)n)};
}
E(e512i) e512_srli_epi32(e512i x, unsigned n)
{
    return (e512i){_mm256_srli_epi32(x.a, (int)n), _mm256_srli_epi32(x.b, (int)n)};
}
E(e512i) e512_slli_epi16(e512i x, unsigned n)
{
    return (e512i){_mm256_slli_epi16(x.a, (int)n), _mm256_slli_epi16(x.b, (int)n)};
}
E(e512i) e512_srai_epi16(e512i x, unsigned n)
{
    return (e512i){_mm256_srai_epi16(x.a, (int)n), _mm256_srai_epi16(x.b, (int)n)};
}
E(__m256i) e512_castsi512_si256(e512i x) { return x.a; }
E(__m256i) e512_extracti64x4_epi64(e512i x, int upper) { return upper ? x.b : x.a; }
E(e512i) e512_cvtepu16_epi32(__m256i x)
{
    return (e512i){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                   _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}
E(e512i) e512_cvtepu8_epi32(__m128i x)
{
    return (e512i){_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
E(e512i) e512_cvtepi8_epi32(__m128i x)
{
    return (e512i){_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
E(e512) e512_abs_ps(e512 x)
{
    const e512i low = e512_set1_epi32(0x7fffffff);
    return e512_castsi512_ps(e512_and_si512(e512_castps_si512(x), low));
}

/* Lane by lane: elements are cut off, masks have a bit for each lane. */
E(__m256i) e512_cvtepi32_epi16(e512i x)
{
    int32_t v[16];
    int16_t r[16];
    e512_storeu_si512(v, x);
    for (int i = 0; i < 16; i++) r[i] = (int16_t)v[i];
    return _mm256_loadu_si256((const __m256i *)(const void *)r);
}
E(__m128i) e512_cvtepi32_epi8(e512i x)
{
    int32_t v[16];
    int8_t r[16];
    e512_storeu_si512(v, x);
    for (int i = 0; i < 16; i++) r[i] = (int8_t)v[i];
    return _mm_loadu_si128((const __m128i *)(const void *)r);
}
E(e512i) e512_permutexvar_epi64(e512i order, e512i x)
{
    int64_t from[8], v[8], r[8];
    e512_storeu_si512(from, order);
    e512_storeu_si512(v, x);
    for (int i = 0; i < 8; i++) r[i] = v[from[i] & 7];
    return e512_loadu_si512(r);
}
E(int32_t) e512_reduce_add_epi32(e512i x)
{
    int32_t v[8], sum = 0;
    _mm256_storeu_si256((__m256i *)v, _mm256_add_epi32(x.a, x.b));
    for (int i = 0; i < 8; i++) sum += v[i];
    return sum;
}
E(int32_t) e512_reduce_max_epi32(e512i x)
{
    int32_t v[16], top;
    e512_storeu_si512(v, x);
    top = v[0];
    for (int i = 1; i < 16; i++) top = v[i] > top ? v[i] : top;
    return top;
}
E(__mmask16) e512_signs(__m256 a, __m256 b) { return (__mmask16)(_mm256_movemask_ps(a) | _mm256_movemask_ps(b) << 8); }
E(__mmask16) e512_movepi32_mask(e512i x) { return e512_signs(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)); }
E(__mmask16) e512_cmpgt_epi32_mask(e512i x, e512i y) { return e512_movepi32_mask((e512i)TWO(_mm256_cmpgt_epi32)); }
E(__mmask16) e512_cmplt_epi32_mask(e512i x, e512i y) { return e512_cmpgt_epi32_mask(y, x); }
E(__mmask16) e512_cmp_ps_mask(e512 x, e512 y, const int op)
{
    switch (op) {
    case _CMP_LT_OQ:
        return e512_signs(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ));
    case _CMP_UNORD_Q:
        return e512_signs(_mm256_cmp_ps(x.a, y.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, y.b, _CMP_UNORD_Q));
    default:
        PL_ASSERT(op == _CMP_NLT_UQ);
        return e512_signs(_mm256_cmp_ps(x.a, y.a, _CMP_NLT_UQ), _mm256_cmp_ps(x.b, y.b, _CMP_NLT_UQ));
    }
}
/* y where the mask has a bit, else x */
E(e512i) e512_mask_blend_epi32(__mmask16 k, e512i x, e512i y)
{
    int32_t v[16], u[16];
    e512_storeu_si512(v, x);
    e512_storeu_si512(u, y);
    for (int i = 0; i < 16; i++) v[i] = k >> i & 1 ? u[i] : v[i];
    return e512_loadu_si512(v);
}
E(e512) e512_mask_blend_ps(__mmask16 k, e512 x, e512 y)
{
    return e512_castsi512_ps(e512_mask_blend_epi32(k, e512_castps_si512(x), e512_castps_si512(y)));
}
E(e512i) e512_mask_mov_epi32(e512i x, __mmask16 k, e512i y) { return e512_mask_blend_epi32(k, x, y); }
E(e512) e512_mask_mov_ps(e512 x, __mmask16 k, e512 y) { return e512_mask_blend_ps(k, x, y); }
E(e512) e512_maskz_mov_ps(__mmask16 k, e512 y) { return e512_mask_blend_ps(k, e512_setzero_ps(), y); }
E(e512) e512_maskz_loadu_ps(__mmask16 k, const float *p) /* touches nothing else */
{
    float v[16];
    for (int i = 0; i < 16; i++) v[i] = k >> i & 1 ? p[i] : 0;
    return e512_loadu_ps(v);
}
E(void) e512_mask_storeu_ps(float *p, __mmask16 k, e512 x)
{
    float v[16];
    e512_storeu_ps(v, x);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) p[i] = v[i];
}
/* Four products of an unsigned byte of x and a signed byte of y to each lane; sums wrap around. */
static __attribute__((noinline, unused)) void e512_dots(int32_t sum[16], const uint8_t x[64], const int8_t y[64])
{
    for (int i = 0; i < 64; i++) sum[i / 4] = (int32_t)((uint32_t)sum[i / 4] + (uint32_t)(x[i] * y[i]));
}
E(e512i) e512_dpbusd_epi32(e512i sum, e512i x, e512i y)
{
    int32_t s[16];
    uint8_t a[64];
    int8_t b[64];
    e512_storeu_si512(s, sum);
    e512_storeu_si512(a, x);
    e512_storeu_si512(b, y);
    e512_dots(s, a, b);
    return e512_loadu_si512(s);
}
#undef E
#undef TWO

#define V_MAC(c, a, b) ((c) = e512_fmadd_ps(a, b, c)) /* assembly in vec16.h */
#define V_KEEP(v) ((void)0)
#define V_CLEAR(c) ((c) = v_zero())
#define V_SETTLE(c) ((void)0)
#ifndef __AVX512F__
#define __AVX512F__ 1
#define __AVX512BW__ 1
#endif
#define __m512 e512
#define __m512i e512i
/* clang-format off */
#undef _mm512_abs_ps
#define _mm512_abs_ps e512_abs_ps
#undef _mm512_add_epi32
#define _mm512_add_epi32 e512_add_epi32
#undef _mm512_add_ps
#define _mm512_add_ps e512_add_ps
#undef _mm512_and_si512
#define _mm512_and_si512 e512_and_si512
#undef _mm512_broadcast_i32x4
#define _mm512_broadcast_i32x4 e512_broadcast_i32x4
#undef _mm512_castps_si512
#define _mm512_castps_si512 e512_castps_si512
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps e512_castsi512_ps
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256 e512_castsi512_si256
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask e512_cmp_ps_mask
#undef _mm512_cmpgt_epi32_mask
#define _mm512_cmpgt_epi32_mask e512_cmpgt_epi32_mask
#undef _mm512_cmplt_epi32_mask
#define _mm512_cmplt_epi32_mask e512_cmplt_epi32_mask
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 e512_cvtepi32_epi16
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 e512_cvtepi32_epi8
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps e512_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 e512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 e512_cvtepu16_epi32
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 e512_cvtepu8_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps e512_cvtph_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 e512_cvtps_epi32
#undef _mm512_div_ps
#define _mm512_div_ps e512_div_ps
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 e512_dpbusd_epi32
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 e512_extracti64x4_epi64
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps e512_fmadd_ps
#undef _mm512_loadu_ps
#define _mm512_loadu_ps e512_loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 e512_loadu_si512
#undef _mm512_mask_blend_epi32
#define _mm512_mask_blend_epi32 e512_mask_blend_epi32
#undef _mm512_mask_blend_ps
#define _mm512_mask_blend_ps e512_mask_blend_ps
#undef _mm512_mask_mov_epi32
#define _mm512_mask_mov_epi32 e512_mask_mov_epi32
#undef _mm512_mask_mov_ps
#define _mm512_mask_mov_ps e512_mask_mov_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps e512_mask_storeu_ps
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps e512_maskz_loadu_ps
#undef _mm512_maskz_mov_ps
#define _mm512_maskz_mov_ps e512_maskz_mov_ps
#undef _mm512_max_epi32
#define _mm512_max_epi32 e512_max_epi32
#undef _mm512_max_ps
#define _mm512_max_ps e512_max_ps
#undef _mm512_min_epi32
#define _mm512_min_epi32 e512_min_epi32
#undef _mm512_movepi32_mask
#define _mm512_movepi32_mask e512_movepi32_mask
#undef _mm512_mul_ps
#define _mm512_mul_ps e512_mul_ps
#undef _mm512_or_si512
#define _mm512_or_si512 e512_or_si512
#undef _mm512_permutexvar_epi64
#define _mm512_permutexvar_epi64 e512_permutexvar_epi64
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32 e512_reduce_add_epi32
#undef _mm512_reduce_max_epi32
#define _mm512_reduce_max_epi32 e512_reduce_max_epi32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 e512_set1_epi8
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 e512_set1_epi16
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 e512_set1_epi32
#undef _mm512_set1_ps
#define _mm512_set1_ps e512_set1_ps
#undef _mm512_setr_epi64
#define _mm512_setr_epi64 e512_setr_epi64
#undef _mm512_setzero_ps
#define _mm512_setzero_ps e512_setzero_ps
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 e512_shuffle_epi8
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 e512_slli_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 e512_slli_epi32
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 e512_srai_epi16
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 e512_srli_epi32
#undef _mm512_storeu_ps
#define _mm512_storeu_ps e512_storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 e512_storeu_si512
#undef _mm512_sub_epi8
#define _mm512_sub_epi8 e512_sub_epi8
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 e512_sub_epi32
#undef _mm512_sub_ps
#define _mm512_sub_ps e512_sub_ps
#undef _mm512_xor_si512
#define _mm512_xor_si512 e512_xor_si512
/* clang-format on */
#endif
