#ifndef PL_PROBE_H
#define PL_PROBE_H
/* Loops that do as much of one thing as a core can, from registers: what benchmarks call the machine's peak. */
#include "cpu.h"

/* One call: PL_PROBE_ROUNDS rounds of `work` multiplications and additions. */
enum { PL_PROBE_ROUNDS = 100000, PL_PROBE_PAGE = 4096 };
typedef struct pl_probe {
    void (*run)(void *sink); /* sink: 64 bytes of the thread's own, so that nothing is optimised away */
    double work;
} pl_probe;
#ifdef PL_X86
extern const pl_probe pl_probe_float_avx2, pl_probe_int8_avx2, pl_probe_float_avx512, pl_probe_int8_avx512,
    pl_probe_tile_bf16, pl_probe_tile_int8;
#endif
#endif
