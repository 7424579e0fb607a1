#ifndef PL_DTYPE_H
#define PL_DTYPE_H
/* The formats of numbers, one row each in dtype.c, and rows of any of them to and from float. */
#include "quant.h"

typedef struct pl_dtype_info {
    const char *name;
    int32_t block, bytes; /* elements and bytes of a block */
    int32_t gguf;         /* type number in GGUF files, -1 if none */
    const char *hf;       /* name in safetensors headers, NULL if none */
    pl_block_fn *to_f32;  /* block formats: the values of a block; NULL: a plain number */
    pl_bad_fn *is_bad;    /* is a scale, a minimum or a value of the block not finite */
} pl_dtype_info;

PL_INLINE bool pl_dtype_valid(int32_t dtype) { return dtype >= 0 && dtype < PL_N_DTYPES; }
const pl_dtype_info *pl_dtype(int32_t dtype);       /* asserts that dtype is valid */
int32_t pl_dtype_of_gguf(int64_t type);             /* -1 if unknown */
int32_t pl_dtype_of_hf(const char *name, size_t n); /* -1 if unknown */

/* Bytes of n elements of a row; n must be a multiple of the block. */
int64_t pl_dtype_row_bytes(int32_t dtype, int64_t n);

/* The value of each element, in float, as its format defines it. Integers too. n: a multiple of the block. */
void pl_row_to_f32(int32_t dtype, float *dst, const void *src, int64_t n);
/* The first of n blocks that is_bad (F8: the first of n codes that is NaN); -1: none. */
int64_t pl_row_first_bad(int32_t dtype, const void *src, int64_t n);
/* Rounded to nearest even; F32, F16, BF16 and F8 only. */
void pl_row_from_f32(int32_t dtype, void *dst, const float *src, int64_t n);
#endif
