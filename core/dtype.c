/* dtype.c: the table of formats. The block formats are defined in quant*.c, a file a family. */
#include "dtype.h"
#include <stddef.h>

/* clang-format off */
static const pl_dtype_info table[PL_N_DTYPES] = {
    /*            name    block bytes gguf hf         values    not finite */
    [PL_F32]    = {"f32",      1,   4,   0, "F32",     NULL,      NULL},
    [PL_F16]    = {"f16",      1,   2,   1, "F16",     NULL,      NULL},
    [PL_BF16]   = {"bf16",     1,   2,  30, "BF16",    NULL,      NULL},
    [PL_F8]     = {"f8",       1,   1,  -1, "F8_E4M3", NULL,      NULL},
    [PL_I32]    = {"i32",      1,   4,  26, "I32",     NULL,      NULL},
    [PL_I64]    = {"i64",      1,   8,  27, "I64",     NULL,      NULL},
    [PL_U8]     = {"u8",       1,   1,  -1, "U8",      NULL,      NULL},
    [PL_Q4_0]   = {"q4_0",    32,  18,   2, NULL,      pl_q4_0,   pl_bad_d},
    [PL_Q4_1]   = {"q4_1",    32,  20,   3, NULL,      pl_q4_1,   pl_bad_d_m},
    [PL_Q5_0]   = {"q5_0",    32,  22,   6, NULL,      pl_q5_0,   pl_bad_d},
    [PL_Q5_1]   = {"q5_1",    32,  24,   7, NULL,      pl_q5_1,   pl_bad_d_m},
    [PL_Q8_0]   = {"q8_0",    32,  34,   8, NULL,      pl_q8_0,   pl_bad_d},
    [PL_Q4_K]   = {"q4_k",   256, 144,  12, NULL,      pl_q4_k,   pl_bad_d_m},
    [PL_Q5_K]   = {"q5_k",   256, 176,  13, NULL,      pl_q5_k,   pl_bad_d_m},
    [PL_Q6_K]   = {"q6_k",   256, 210,  14, NULL,      pl_q6_k,   pl_bad_q6_k},
    [PL_IQ4_NL] = {"iq4_nl",  32,  18,  20, NULL,      pl_iq4_nl, pl_bad_d},
    [PL_MXFP4]  = {"mxfp4",   32,  17,  39, NULL,      pl_mxfp4,  pl_bad_mxfp4},
    [PL_NVFP4]  = {"nvfp4",   32,  22,  -1, NULL,      pl_nvfp4,  pl_bad_nvfp4},
    [PL_I4G32]  = {"i4g32",   32,  18,  -1, NULL,      pl_i4g32,  pl_bad_i4},
    [PL_I4G64]  = {"i4g64",   64,  34,  -1, NULL,      pl_i4g64,  pl_bad_i4},
    [PL_I4G128] = {"i4g128", 128,  66,  -1, NULL,      pl_i4g128, pl_bad_i4},
    [PL_U4G32]  = {"u4g32",   32,  19,  -1, NULL,      pl_u4g32,  pl_bad_d},
    [PL_U4G64]  = {"u4g64",   64,  35,  -1, NULL,      pl_u4g64,  pl_bad_d},
    [PL_U4G128] = {"u4g128", 128,  67,  -1, NULL,      pl_u4g128, pl_bad_d},
    [PL_F8G32]  = {"f8g32",   32,  36,  -1, NULL,      pl_f8g32,  pl_bad_f8g32},
    [PL_F8G64]  = {"f8g64",   64,  68,  -1, NULL,      pl_f8g64,  pl_bad_f8g64},
    [PL_F8G128] = {"f8g128", 128, 132,  -1, NULL,      pl_f8g128, pl_bad_f8g128},
};
/* clang-format on */

const pl_dtype_info *pl_dtype(int32_t dtype)
{
    PL_ASSERT(pl_dtype_valid(dtype));
    return &table[dtype];
}

int32_t pl_act_for(int32_t act, int32_t dtype)
{
    if (act != PL_ACT_INT8 && act != PL_ACT_INT15) return act;
    switch (dtype) { /* codes that are no integers */
    case PL_F32:
    case PL_F16:
    case PL_BF16:
    case PL_F8:
    case PL_F8G32:
    case PL_F8G64:
    case PL_F8G128:
        return act == PL_ACT_INT8 ? PL_ACT_BF16 : PL_ACT_F32; /* int15 is the more exact of the two, for all weights */
    default:
        return act;
    }
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
        break;
    }
    const pl_dtype_info *d = pl_dtype(dtype);
    const uint8_t *b = src;
    PL_ASSERT(d->to_f32 && n % d->block == 0);
    for (int64_t i = 0; i < n; i += d->block, b += d->bytes) d->to_f32(dst + i, b);
}

int64_t pl_row_first_bad(int32_t dtype, const void *src, int64_t n)
{
    const pl_dtype_info *d = pl_dtype(dtype);
    const uint8_t *b = src;
    PL_ASSERT(dtype == PL_F8 || d->is_bad);
    for (int64_t i = 0; i < n; i++, b += d->bytes)
        if (dtype == PL_F8 ? (*b & 0x7f) == 0x7f : d->is_bad(b)) return i;
    return -1;
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
