#ifndef PL_QUANT_H
#define PL_QUANT_H
/* Block formats of GGUF files (Q4_0 ... Q6_K): the exact value of each element. A block is a run of one row. */
#include "base.h"

/* n elements, a multiple of the format's block, to float. */
void pl_quant_to_f32(int32_t dtype, float *dst, const void *src, int64_t n);

/* The first of n blocks whose scale or minimum is infinite or NaN (F8: the first of n codes that is NaN); -1: none. */
int64_t pl_quant_first_bad(int32_t dtype, const void *src, int64_t n);
#endif
