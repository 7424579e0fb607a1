/* linear_avx2.c: the product on AVX2 and FMA. */
#include "vec8.h"
#define PL_TILE_T 6 /* tokens of a tile: 12 accumulators, 2 vectors of w, 1 of x */
#define PL_TILE_TAILS(...)
#include "linear_body.h"

const pl_linear_path pl_linear_avx2 = PATH_OF_BODY;
