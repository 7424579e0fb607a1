/* dtype.c: the table of formats. The block formats are decoded in quant.c. */
#include "dtype.h"
#include "quant.h"
#include <stddef.h>

static const pl_dtype_info table[PL_N_DTYPES] = {
    [PL_F32] = {"f32", 1, 4, 0, "F32"},       [PL_F16] = {"f16", 1, 2, 1, "F16"},
    [PL_BF16] = {"bf16", 1, 2, 30, "BF16"},   [PL_F8] = {"f8", 1, 1, -1, "F8_E4M3"},
    [PL_I32] = {"i32", 1, 4, 26, "I32"},      [PL_I64] = {"i64", 1, 8, 27, "I64"},
    [PL_U8] = {"u8", 1, 1, -1, "U8"},         [PL_Q4_0] = {"q4_0", 32, 18, 2, NULL},
    [PL_Q4_1] = {"q4_1", 32, 20, 3, NULL},    [PL_Q5_0] = {"q5_0", 32, 22, 6, NULL},
    [PL_Q5_1] = {"q5_1", 32, 24, 7, NULL},    [PL_Q8_0] = {"q8_0", 32, 34, 8, NULL},
    [PL_Q4_K] = {"q4_k", 256, 144, 12, NULL}, [PL_Q5_K] = {"q5_k", 256, 176, 13, NULL},
    [PL_Q6_K] = {"q6_k", 256, 210, 14, NULL},
};

const pl_dtype_info *pl_dtype(int32_t dtype)
{
    PL_ASSERT(pl_dtype_valid(dtype));
    return &table[dtype];
}

const char *pl_dtype_name(int32_t dtype) { return pl_dtype_valid(dtype) ? table[dtype].name : NULL; }
int32_t pl_dtype_block(int32_t dtype) { return pl_dtype_valid(dtype) ? table[dtype].block : 0; }
int32_t pl_dtype_bytes(int32_t dtype) { return pl_dtype_valid(dtype) ? table[dtype].bytes : 0; }

int32_t pl_dtype_of_gguf(int64_t type)
{
    for (int32_t i = 0; i < PL_N_DTYPES; i++)
        if (table[i].gguf == type && type >= 0) return i;
    return -1;
}

int32_t pl_dtype_of_hf(const char *name, size_t n)
{
    for (int32_t i = 0; i < PL_N_DTYPES; i++)
        if (table[i].hf && strlen(table[i].hf) == n && !memcmp(table[i].hf, name, n)) return i;
    return -1;
}

int64_t pl_dtype_row_bytes(int32_t dtype, int64_t n)
{
    const pl_dtype_info *d = pl_dtype(dtype);
    PL_ASSERT(n % d->block == 0);
    return n / d->block * d->bytes;
}

void pl_row_to_f32(int32_t dtype, float *dst, const void *src, int64_t n)
{
    switch (dtype) {
    case PL_F32:
        memcpy(dst, src, (size_t)n * 4);
        return;
    case PL_F16:
        for (int64_t i = 0; i < n; i++) dst[i] = pl_f16_f32(((const uint16_t *)src)[i]);
        return;
    case PL_BF16:
        for (int64_t i = 0; i < n; i++) dst[i] = pl_bf16_f32(((const uint16_t *)src)[i]);
        return;
    case PL_F8:
        for (int64_t i = 0; i < n; i++) dst[i] = pl_f8_f32(((const uint8_t *)src)[i]);
        return;
    case PL_I32:
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((const int32_t *)src)[i];
        return;
    case PL_I64:
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((const int64_t *)src)[i];
        return;
    case PL_U8:
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((const uint8_t *)src)[i];
        return;
    default:
        pl_quant_to_f32(dtype, dst, src, n);
    }
}

void pl_row_from_f32(int32_t dtype, void *dst, const float *src, int64_t n)
{
    switch (dtype) {
    case PL_F32:
        memcpy(dst, src, (size_t)n * 4);
        return;
    case PL_F16:
        for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = pl_f32_f16(src[i]);
        return;
    case PL_BF16:
        for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = pl_f32_bf16(src[i]);
        return;
    default:
        PL_ASSERT(dtype == PL_F8);
        for (int64_t i = 0; i < n; i++) ((uint8_t *)dst)[i] = pl_f32_f8(src[i]);
    }
}
