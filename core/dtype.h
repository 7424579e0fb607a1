#ifndef PL_DTYPE_H
#define PL_DTYPE_H
/* The formats of numbers, one row each in dtype.c, and rows of any of them to and from float. */
#include "base.h"

typedef struct pl_dtype_info {
    const char *name;
    int32_t block, bytes; /* elements and bytes of a block */
    int32_t gguf;         /* type number in GGUF files, -1 if none */
    const char *hf;       /* name in safetensors headers, NULL if none */
} pl_dtype_info;

PL_INLINE bool pl_dtype_valid(int32_t dtype) { return dtype >= 0 && dtype < PL_N_DTYPES; }
const pl_dtype_info *pl_dtype(int32_t dtype);       /* asserts that dtype is valid */
int32_t pl_dtype_of_gguf(int64_t type);             /* -1 if unknown */
int32_t pl_dtype_of_hf(const char *name, size_t n); /* -1 if unknown */

/* Bytes of n elements of a row; n must be a multiple of the block. */
int64_t pl_dtype_row_bytes(int32_t dtype, int64_t n);

/* The exact value of each element, in float. Integers too. (quant.c has the block formats.) */
void pl_row_to_f32(int32_t dtype, float *dst, const void *src, int64_t n);
/* Rounded to nearest even; F32, F16, BF16 and F8 only. */
void pl_row_from_f32(int32_t dtype, void *dst, const float *src, int64_t n);
#endif
