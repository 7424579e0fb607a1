/* linear_int_avx512.c: the product of integers on AVX-512 with VNNI. */
#include "vec16.h"
PL_INLINE I i_dpbusd(I sum, I w, I x) { return _mm512_dpbusd_epi32(sum, w, x); }
#include "linear_int_vnni.h"

const pl_int_path pl_int_avx512 = {.prepare = prepare, .run = run, .group = MAX_T, .blocks = 1};
