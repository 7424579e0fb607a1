#ifndef PL_VEC8_H
#define PL_VEC8_H
/* Vectors of 8 floats or 32-bit integers: AVX2 with FMA and F16C. vec16.h has the same names for AVX-512. */
#include "cpu.h"
#include <immintrin.h>

enum { LANES = 8 };
typedef __m256 V;
typedef __m256i I;

PL_INLINE V v_zero(void) { return _mm256_setzero_ps(); }
PL_INLINE V v_set(float x) { return _mm256_set1_ps(x); }
PL_INLINE V v_load(const float *p) { return _mm256_loadu_ps(p); }
PL_INLINE void v_store(float *p, V a) { _mm256_storeu_ps(p, a); }
PL_INLINE V v_add(V a, V b) { return _mm256_add_ps(a, b); }
PL_INLINE V v_sub(V a, V b) { return _mm256_sub_ps(a, b); }
PL_INLINE V v_mul(V a, V b) { return _mm256_mul_ps(a, b); }
PL_INLINE V v_div(V a, V b) { return _mm256_div_ps(a, b); }
PL_INLINE V v_fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
PL_INLINE V v_of_int(I a) { return _mm256_cvtepi32_ps(a); }
PL_INLINE V v_cast(I a) { return _mm256_castsi256_ps(a); }
PL_INLINE V v_of_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
PL_INLINE V v_of_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
PL_INLINE V v_of_u8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p))); }
PL_INLINE V v_of_s8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))); }
PL_INLINE V v_if_negative(V a, V x, V y) { return _mm256_blendv_ps(y, x, a); }
PL_INLINE bool v_any_negative(V a) { return _mm256_movemask_ps(a) != 0; }
PL_INLINE I i_of_u8(const void *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
/* Of 16 levels, one for each byte of a, which is below 16. */
PL_INLINE I i_lookup(const int8_t *level, I a)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)level)), a);
}
/* c += a * b in place. With the intrinsic gcc lets the sum wander between registers, and then to the stack. */
#define V_MAC(c, a, b) __asm__("vfmadd231ps %2,%1,%0" : "+x"(c) : "x"(a), "x"(b))
/* Sums begin, and end, where these stand. */
#define V_CLEAR(c) __asm__ volatile("vxorps %0,%0,%0" : "=x"(c))
#define V_SETTLE(c) __asm__ volatile("" : "+x"(c))
/* Stays in a register: gcc would rather load it again at each use, and loads are what limits. */
#define V_KEEP(v) __asm__("" : "+x"(v))
/* c += a * what lies at p; c += a * the one float at p */
#define V_MAC_AT(c, a, p) V_MAC(c, a, v_load(p))
#define V_MAC_ONE(c, a, p) V_MAC(c, a, v_set(*(p)))
/* a where |a| >= limit, else +0 */
PL_INLINE V v_drop_tiny(V a, float limit)
{
    const V size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
    return _mm256_andnot_ps(_mm256_cmp_ps(size, _mm256_set1_ps(limit), _CMP_LT_OQ), a);
}

PL_INLINE I i_load(const void *p) { return _mm256_loadu_si256(p); }
/* The first n of 8, and zeros. */
PL_INLINE I i_rest(const void *p, int64_t n)
{
    const I place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_epi32(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), place));
}
PL_INLINE void i_store(void *p, I a) { _mm256_storeu_si256(p, a); }
PL_INLINE I i_set(int32_t x) { return _mm256_set1_epi32(x); }
PL_INLINE I i_and(I a, I b) { return _mm256_and_si256(a, b); }
PL_INLINE I i_or(I a, I b) { return _mm256_or_si256(a, b); }
PL_INLINE I i_xor(I a, I b) { return _mm256_xor_si256(a, b); }
PL_INLINE I i_add(I a, I b) { return _mm256_add_epi32(a, b); }
PL_INLINE I i_sub(I a, I b) { return _mm256_sub_epi32(a, b); }
PL_INLINE I i_sub_bytes(I a, int8_t b) { return _mm256_sub_epi8(a, _mm256_set1_epi8(b)); }
PL_INLINE I i_max(I a, I b) { return _mm256_max_epi32(a, b); }
PL_INLINE int32_t i_top(I a) /* the largest */
{
    __m128i t = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}
PL_INLINE int32_t i_total(I a)
{
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}
PL_INLINE void i_put_bytes(void *p, I a) /* the low ones */
{
    const I b = _mm256_shuffle_epi8(a, _mm256_set1_epi32(0x0c080400));
    _mm_storel_epi64(p, _mm_unpacklo_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1)));
}
PL_INLINE I i_srl(I a, int n) { return _mm256_srli_epi32(a, n); }
PL_INLINE I i_sll(I a, int n) { return _mm256_slli_epi32(a, n); }
PL_INLINE I i_cast(V a) { return _mm256_castps_si256(a); }
PL_INLINE I i_of_v(V a) { return _mm256_cvtps_epi32(a); } /* to the nearest, ties to even */

/* Of 16-bit lanes: shifted; looked up in a table of 32 or 64 words (the bits above do not count). Of bytes: looked up in
 * a table of 128; words of the bytes of a and b in the lower, upper half of each 16-byte lane. Lookups, which AVX2 does
 * not have, are for tests only. */
PL_INLINE I w_srl(I a, int n) { return _mm256_srli_epi16(a, n); }
PL_INLINE I w_sll(I a, int n) { return _mm256_slli_epi16(a, n); }
static inline I w_lookup_of(const uint16_t *table, I a, int n)
{
    uint16_t w[16];
    i_store(w, a);
    for (int i = 0; i < 16; i++) w[i] = table[w[i] & (n - 1)];
    return i_load(w);
}
static inline I w_lookup(const uint16_t *table, I a) { return w_lookup_of(table, a, 32); }
static inline I w_lookup64(const uint16_t *table, I a) { return w_lookup_of(table, a, 64); }
static inline I b_lookup128(const uint8_t *table, I a)
{
    uint8_t b[32];
    i_store(b, a);
    for (int i = 0; i < 32; i++) b[i] = table[b[i] & 127];
    return i_load(b);
}
PL_INLINE I b_join_lo(I a, I b) { return _mm256_unpacklo_epi8(a, b); }
PL_INLINE I b_join_hi(I a, I b) { return _mm256_unpackhi_epi8(a, b); }

/* To bf16 and back, to nearest even; NaN stays NaN. */
PL_INLINE V v_round_bf16(V a)
{
    const I u = i_cast(a), odd = i_and(i_srl(u, 16), i_set(1)), top = i_set((int32_t)0xffff0000);
    const V r = v_cast(i_and(i_add(i_add(u, i_set(0x7fff)), odd), top));
    return _mm256_blendv_ps(r, a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

/* a, then b, as bf16: to nearest even, NaN stays NaN, below `least` (a power of two) it is 0. */
PL_INLINE void v_store_bf16(uint16_t *p, V a, V b, float least)
{
    const I lo = i_srl(i_cast(v_drop_tiny(v_round_bf16(a), least)), 16);
    const I hi = i_srl(i_cast(v_drop_tiny(v_round_bf16(b), least)), 16);
    i_store(p, _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8));
}

/* Four k of LANES rows in the order of f8 codes (pack.c): v[j] = k of place j, exact. e4m3 with its exponent moved
 * into a half is the value times 2^-8, subnormals included. */
PL_INLINE void v_of_f8(const void *p, V v[4])
{
    const I odd = i_load(p), even = _mm256_slli_epi16(odd, 8), mask = _mm256_set1_epi16((int16_t)0xbf80);
    const I he = _mm256_permute4x64_epi64(_mm256_and_si256(_mm256_srai_epi16(even, 1), mask), 0xd8);
    const I ho = _mm256_permute4x64_epi64(_mm256_and_si256(_mm256_srai_epi16(odd, 1), mask), 0xd8);
    const V up = v_set(0x1p8f);
    v[0] = v_mul(_mm256_cvtph_ps(_mm256_castsi256_si128(he)), up);
    v[1] = v_mul(_mm256_cvtph_ps(_mm256_castsi256_si128(ho)), up);
    v[2] = v_mul(_mm256_cvtph_ps(_mm256_extracti128_si256(he, 1)), up);
    v[3] = v_mul(_mm256_cvtph_ps(_mm256_extracti128_si256(ho, 1)), up);
}
/* One e4m3 of each row. */
PL_INLINE V v_of_e4m3(const void *p)
{
    const __m128i h = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(p)), 7);
    return v_mul(_mm256_cvtph_ps(_mm_and_si128(h, _mm_set1_epi16((int16_t)0xbf80))), v_set(0x1p8f));
}
#endif
