#ifndef PL_WORDS16_H
#define PL_WORDS16_H
/* What kernels on tiles need beside vec16.h: lookups of AVX-512 BW and VBMI. vec8.h has the same names. */
#include "vec16.h"

/* Of 16-bit lanes: shifted; looked up in a table of 32 or 64 words (the bits above do not count). Of bytes: looked up in
 * a table of 128; words of the bytes of a and b in the lower, upper half of each 16-byte lane. */
PL_INLINE I w_srl(I a, int n) { return _mm512_srli_epi16(a, n); }
PL_INLINE I w_sll(I a, int n) { return _mm512_slli_epi16(a, n); }
PL_INLINE I w_lookup(const uint16_t *table, I a) { return _mm512_permutexvar_epi16(a, i_load(table)); }
PL_INLINE I w_lookup64(const uint16_t *table, I a)
{
    return _mm512_permutex2var_epi16(i_load(table), a, i_load(table + 32));
}
PL_INLINE I b_lookup128(const uint8_t *table, I a)
{
    return _mm512_permutex2var_epi8(i_load(table), a, i_load(table + 64));
}
PL_INLINE I b_join_lo(I a, I b) { return _mm512_unpacklo_epi8(a, b); }
PL_INLINE I b_join_hi(I a, I b) { return _mm512_unpackhi_epi8(a, b); }
/* a, then b, as bf16: to nearest even, NaN stays NaN, below `least` (a power of two) it is 0. */
PL_INLINE void v_store_bf16(uint16_t *p, V a, V b, float least)
{
    const I w = (I)_mm512_cvtne2ps_pbh(b, a), size = i_and(w, i_set(0x7fff7fff));
    const __mmask32 some = _mm512_cmpge_epu16_mask(size, _mm512_set1_epi16((int16_t)(pl_f32_bits(least) >> 16)));
    i_store(p, _mm512_maskz_mov_epi16(some, w));
}
#endif
