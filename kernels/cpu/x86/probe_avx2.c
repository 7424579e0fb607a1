/* probe_avx2.c: the loops of probe.h in vectors of 32 bytes. */
#include "probe.h"
#include <immintrin.h>

enum { CHAINS = 10 };

static void run_float(void *sink)
{
    __m256 a[CHAINS];
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    PL_UNROLL for (int i = 0; i < CHAINS; i++) a[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < PL_PROBE_ROUNDS; r++)
        PL_UNROLL for (int i = 0; i < CHAINS; i++) a[i] = _mm256_fmadd_ps(a[i], x, y);
    PL_UNROLL for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    _mm256_storeu_ps(sink, a[0]);
}

/* Bytes in pairs to 16 bits, these in pairs to 32, and the sum: the shortest dot product without VNNI that is exact. */
static void run_int8(void *sink)
{
    __m256i a[CHAINS], x = _mm256_set1_epi8(3);
    const __m256i w = _mm256_set1_epi8(-5), one = _mm256_set1_epi16(1);
    PL_UNROLL for (int i = 0; i < CHAINS; i++) a[i] = _mm256_set1_epi32(i);
    for (int r = 0; r < PL_PROBE_ROUNDS; r++) PL_UNROLL for (int i = 0; i < CHAINS; i++)
        {
            __asm__("" : "+x"(x)); /* not the same as before, for all that the compiler knows */
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), one));
        }
    PL_UNROLL for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_epi32(a[0], a[i]);
    _mm256_storeu_si256(sink, a[0]);
}

const pl_probe pl_probe_float_avx2 = {run_float, CHAINS * 8 * 2}, pl_probe_int8_avx2 = {run_int8, CHAINS * 32 * 2};
