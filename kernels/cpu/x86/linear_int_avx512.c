/* linear_int_avx512.c: the product of integers on AVX-512 with VNNI, whose sums have 32 bits from the start. */
#include "vec16.h"

enum { SIGNED_OFFSET = 128 }; /* signed codes become unsigned ones by adding it */
PL_INLINE I i_signed(I a) { return _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80)); }
PL_INLINE I i_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
PL_INLINE I i_dot(const bool is_signed, I sum, I w, I x)
{
    (void)is_signed;
    return _mm512_dpbusd_epi32(sum, w, x);
}
PL_INLINE I i_dot_first(const bool is_signed, I w, I x) { return i_dot(is_signed, _mm512_setzero_si512(), w, x); }
PL_INLINE I i_widen(I sum) { return sum; }
PL_INLINE int steps_that_fit(int largest) { return largest < 0 ? 1 : 8; }
#include "linear_int.h"

const pl_int_path pl_int_avx512 = {prepare, run};
