/* linear_int_avx2.c: the product of integers on AVX2: pairs of bytes to 16 bits, as many as fit, then to 32. */
#include "vec8.h"

enum {
    MAX_T = 4,
    FROM_SUM = 0,
    SIGNED_OFFSET = 0
}; /* signed codes are multiplied as |code| by x with the code's sign */
PL_INLINE I i_signed(I a) { return a; }
PL_INLINE I i_dot_first(const bool is_signed, I w, I x)
{
    return is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
}
/* Sums are added to in place, one after the other: gcc would make a tree of them, whose leaves it keeps in memory. */
PL_INLINE I i_dot(const bool is_signed, I sum, I w, I x)
{
    const I dot = i_dot_first(is_signed, w, x);
    __asm__("vpaddw %1,%0,%0" : "+x"(sum) : "x"(dot));
    return sum;
}
PL_INLINE I i_sum(I sum, I a)
{
    __asm__("vpaddd %1,%0,%0" : "+x"(sum) : "x"(a));
    return sum;
}
PL_INLINE I i_widen(I sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
/* Each adds two products of at most 127 times the largest byte. */
PL_INLINE int steps_that_fit(int largest) { return largest == 15 ? 8 : largest && largest < 32 ? 4 : largest ? 2 : 1; }
#define CASES_BEYOND(F, PLANES) CASE_T(F, PLANES, 3)
#include "linear_int.h"

const pl_int_path pl_int_avx2 = {.prepare = prepare, .run = run, .group = MAX_T, .blocks = 1};
