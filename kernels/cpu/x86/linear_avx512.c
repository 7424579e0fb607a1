/* linear_avx512.c: the product on AVX-512. */
#include "vec16.h"
#define PL_TILE_T 8 /* tokens of a tile: 8 accumulators at a time, twice */
#define PL_TILE_TAILS(MIN, HALVES) TAIL(6, MIN, HALVES) TAIL(7, MIN, HALVES)
#include "linear_body.h"

const pl_linear_path pl_linear_avx512 = PATH_OF_BODY;
