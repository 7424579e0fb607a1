/* probe_avx512.c: the loops of probe.h in vectors of 64 bytes. */
#include "probe.h"
#include <immintrin.h>

enum { CHAINS = 14 };

static void run_float(void *sink)
{
    __m512 a[CHAINS];
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    PL_UNROLL for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < PL_PROBE_ROUNDS; r++)
        PL_UNROLL for (int i = 0; i < CHAINS; i++) a[i] = _mm512_fmadd_ps(a[i], x, y);
    PL_UNROLL for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    _mm512_storeu_ps(sink, a[0]);
}

static void run_int8(void *sink)
{
    __m512i a[CHAINS];
    const __m512i x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(-5);
    PL_UNROLL for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_epi32(i);
    for (int r = 0; r < PL_PROBE_ROUNDS; r++)
        PL_UNROLL for (int i = 0; i < CHAINS; i++) a[i] = _mm512_dpbusd_epi32(a[i], x, w);
    PL_UNROLL for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_epi32(a[0], a[i]);
    _mm512_storeu_si512(sink, a[0]);
}

const pl_probe pl_probe_float_avx512 = {run_float, CHAINS * 16 * 2}, pl_probe_int8_avx512 = {run_int8, CHAINS * 64 * 2};
