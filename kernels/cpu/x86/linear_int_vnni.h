/* linear_int_vnni.h: linear_int.h on VNNI, whose sums have 32 bits from the start: from i_dpbusd, which adds to each lane four
 * products of an unsigned byte of w and a signed byte of x. Signed codes become unsigned by an offset. */
enum { MAX_T = 8, FROM_SUM = 1, SIGNED_OFFSET = 128 };
PL_INLINE I i_signed(I a) { return i_xor(a, i_set((int32_t)0x80808080)); }
PL_INLINE I i_dot(const bool is_signed, I sum, I w, I x)
{
    (void)is_signed;
    return i_dpbusd(sum, w, x);
}
PL_INLINE I i_dot_first(const bool is_signed, I w, I x) { return i_dot(is_signed, i_set(0), w, x); }
PL_INLINE I i_sum(I sum, I a) { return i_add(sum, a); }
PL_INLINE I i_widen(I sum) { return sum; }
PL_INLINE int steps_that_fit(int largest) { return largest < 0 ? 1 : 8; }
#define CASES_BEYOND(F, PLANES) CASE_T(F, PLANES, 4)
#include "linear_int.h"
