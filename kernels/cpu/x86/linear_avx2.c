/* linear_avx2.c: the product on AVX2 and FMA. */
#include "vec8.h"
#include "linear_body.h"

const pl_linear_path pl_linear_avx2 = {
    .prepare = prepare,
    .few = few,
    .many = many,
    .few_tokens = 4,
    .many_tokens = MANY_TOKENS,
    .many_blocks = MANY_BLOCKS,
    .scratch_floats = PANEL + 2 * SCALES + MANY_TOKENS * MANY_BLOCKS * ROWS,
};
