#ifndef PL_VEC16_H
#define PL_VEC16_H
/* Vectors of 16 floats or 32-bit integers: AVX-512 F, BW, DQ and VL. The names of vec8.h. */
#include "cpu.h"
#include <immintrin.h>

enum { LANES = 16 };
typedef __m512 V;
typedef __m512i I;

PL_INLINE V v_zero(void) { return _mm512_setzero_ps(); }
PL_INLINE V v_set(float x) { return _mm512_set1_ps(x); }
PL_INLINE V v_load(const float *p) { return _mm512_loadu_ps(p); }
PL_INLINE void v_store(float *p, V a) { _mm512_storeu_ps(p, a); }
PL_INLINE V v_add(V a, V b) { return _mm512_add_ps(a, b); }
PL_INLINE V v_sub(V a, V b) { return _mm512_sub_ps(a, b); }
PL_INLINE V v_mul(V a, V b) { return _mm512_mul_ps(a, b); }
PL_INLINE V v_div(V a, V b) { return _mm512_div_ps(a, b); }
PL_INLINE V v_fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
PL_INLINE V v_of_int(I a) { return _mm512_cvtepi32_ps(a); }
PL_INLINE V v_cast(I a) { return _mm512_castsi512_ps(a); }
PL_INLINE V v_of_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
PL_INLINE V v_of_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
PL_INLINE V v_of_u8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p))); }
PL_INLINE V v_of_s8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
PL_INLINE V v_if_negative(V a, V x, V y)
{
    return _mm512_mask_mov_ps(y, _mm512_movepi32_mask(_mm512_castps_si512(a)), x);
}
PL_INLINE bool v_any_negative(V a) { return _mm512_movepi32_mask(_mm512_castps_si512(a)) != 0; }
PL_INLINE I i_of_u8(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
PL_INLINE I i_lookup(const int8_t *level, I a)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)level)), a);
}
#ifndef V_MAC /* tests have their own */
#define V_MAC(c, a, b) __asm__("vfmadd231ps %2,%1,%0" : "+v"(c) : "v"(a), "v"(b))
#define V_CLEAR(c) __asm__ volatile("vpxord %0,%0,%0" : "=v"(c))
#define V_SETTLE(c) __asm__ volatile("" : "+v"(c))
#define V_KEEP(v) __asm__("" : "+v"(v))
/* c += a * what lies at p; c += a * the one float at p */
#define V_MAC_AT(c, a, p) __asm__("vfmadd231ps %2,%1,%0" : "+v"(c) : "v"(a), "m"(*(const V *)(const void *)(p)))
#define V_MAC_ONE(c, a, p) __asm__("vfmadd231ps %2%{1to16%},%1,%0" : "+v"(c) : "v"(a), "m"(*(p)))
#endif
PL_INLINE V v_drop_tiny(V a, float limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(a), _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
}

PL_INLINE I i_load(const void *p) { return _mm512_loadu_si512(p); }
PL_INLINE void i_store(void *p, I a) { _mm512_storeu_si512(p, a); }
PL_INLINE I i_set(int32_t x) { return _mm512_set1_epi32(x); }
PL_INLINE I i_and(I a, I b) { return _mm512_and_si512(a, b); }
PL_INLINE I i_or(I a, I b) { return _mm512_or_si512(a, b); }
PL_INLINE I i_xor(I a, I b) { return _mm512_xor_si512(a, b); }
PL_INLINE I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
PL_INLINE I i_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
PL_INLINE I i_sub_bytes(I a, int8_t b) { return _mm512_sub_epi8(a, _mm512_set1_epi8(b)); }
PL_INLINE I i_max(I a, I b) { return _mm512_max_epi32(a, b); }
PL_INLINE int32_t i_top(I a) { return _mm512_reduce_max_epi32(a); }
PL_INLINE int32_t i_total(I a) { return _mm512_reduce_add_epi32(a); }
PL_INLINE void i_put_bytes(void *p, I a) { _mm_storeu_si128(p, _mm512_cvtepi32_epi8(a)); } /* the low ones */
PL_INLINE I i_srl(I a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
PL_INLINE I i_sll(I a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
PL_INLINE I i_cast(V a) { return _mm512_castps_si512(a); }
PL_INLINE I i_of_v(V a) { return _mm512_cvtps_epi32(a); }

PL_INLINE V v_round_bf16(V a)
{
    const I u = i_cast(a), odd = i_and(i_srl(u, 16), i_set(1)), top = i_set((int32_t)0xffff0000);
    const V r = v_cast(i_and(i_add(i_add(u, i_set(0x7fff)), odd), top));
    return _mm512_mask_mov_ps(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}

PL_INLINE void v_of_f8(const void *p, V v[4])
{
    const I odd = i_load(p), even = _mm512_slli_epi16(odd, 8), mask = _mm512_set1_epi16((int16_t)0xbf80);
    const I order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const I he = _mm512_permutexvar_epi64(order, i_and(_mm512_srai_epi16(even, 1), mask));
    const I ho = _mm512_permutexvar_epi64(order, i_and(_mm512_srai_epi16(odd, 1), mask));
    const V up = v_set(0x1p8f);
    v[0] = v_mul(_mm512_cvtph_ps(_mm512_castsi512_si256(he)), up);
    v[1] = v_mul(_mm512_cvtph_ps(_mm512_castsi512_si256(ho)), up);
    v[2] = v_mul(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(he, 1)), up);
    v[3] = v_mul(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(ho, 1)), up);
}
PL_INLINE V v_of_e4m3(const void *p)
{
    const __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7);
    return v_mul(_mm512_cvtph_ps(_mm256_and_si256(h, _mm256_set1_epi16((int16_t)0xbf80))), v_set(0x1p8f));
}
#endif
