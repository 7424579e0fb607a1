/* probe_amx.c: the loops of probe.h in tiles: four sums of two tiles by two, as the kernels hold them. */
#ifndef PL_SOFT_TILES
#include "probe.h"
#include "tiles.h"

#define T_STEP_INT8(c, x, w) __asm__ volatile("tdpbssd %%tmm" #w ",%%tmm" #x ",%%tmm" #c ::)
#define RUN(NAME, STEP)                               \
    static void NAME(void *sink)                      \
    {                                                 \
        _Alignas(64) static const uint8_t zero[1024]; \
        _Alignas(64) uint8_t sum[1024];               \
        T_BEGIN(16, 64, 64);                          \
        T_ZERO(0);                                    \
        T_ZERO(1);                                    \
        T_ZERO(2);                                    \
        T_ZERO(3);                                    \
        T_LOAD(4, zero, 64);                          \
        T_LOAD(5, zero, 64);                          \
        T_LOAD(6, zero, 64);                          \
        T_LOAD(7, zero, 64);                          \
        for (int r = 0; r < PL_PROBE_ROUNDS; r++) {   \
            STEP(0, 4, 6);                            \
            STEP(1, 4, 7);                            \
            STEP(2, 5, 6);                            \
            STEP(3, 5, 7);                            \
        }                                             \
        T_STORE(0, sum, 64);                          \
        T_END();                                      \
        memcpy(sink, sum, 64);                        \
    }
RUN(run_bf16, T_STEP)
RUN(run_int8, T_STEP_INT8)

const pl_probe pl_probe_tile_bf16 = {run_bf16, 4 * 16 * 16 * 32 * 2},
               pl_probe_tile_int8 = {run_int8, 4 * 16 * 16 * 64 * 2};
#endif
