/* linear_avx2.c: the product on AVX2 and FMA. */
#include "vec8.h"
#define PL_TILE_T 3 /* tokens of a tile: 12 accumulators, 2 vectors of w, 1 of x */
#include "linear_body.h"

const pl_linear_path pl_linear_avx2 = {
    .prepare = prepare,
    .few = few,
    .many = many,
    .few_tokens = 4,
    .few_group = FEW_T,
    .many_group = TILE_T,
    .many_tokens = MANY_TOKENS,
    .many_blocks = MANY_BLOCKS,
    .scratch_floats = PANEL + 2 * SCALES + MANY_TOKENS * MANY_BLOCKS * ROWS,
};
