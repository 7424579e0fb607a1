#ifndef PL_QUANT_H
#define PL_QUANT_H
/* Block formats: the values of one block, which is a run of one row, and whether all of it is finite. quant.c has those
 * of GGUF files, the other files one family each; dtype.c has their sizes. These functions are the formats'
 * definition: products and packed layouts are tested against them. */
#include "base.h"

typedef void pl_block_fn(float *y, const uint8_t *block);
typedef bool pl_bad_fn(const uint8_t *block);

pl_block_fn pl_q4_0, pl_q4_1, pl_q5_0, pl_q5_1, pl_q8_0, pl_q4_k, pl_q5_k, pl_q6_k, pl_iq4_nl;
pl_bad_fn pl_bad_d, pl_bad_d_m, pl_bad_q6_k; /* d: a half at the block's beginning; m: another behind it */
pl_block_fn pl_mxfp4, pl_nvfp4;
pl_bad_fn pl_bad_mxfp4, pl_bad_nvfp4;
pl_block_fn pl_i4g32, pl_i4g64, pl_i4g128, pl_u4g32, pl_u4g64, pl_u4g128;
pl_bad_fn pl_bad_i4;
pl_block_fn pl_f8g32, pl_f8g64, pl_f8g128;
pl_bad_fn pl_bad_f8g32, pl_bad_f8g64, pl_bad_f8g128;

/* Blocks have no alignment of their own (18, 22, 34 bytes), so fields are read through memcpy. */
PL_INLINE uint16_t pl_u16_at(const uint8_t *p)
{
    uint16_t u;
    memcpy(&u, p, 2);
    return u;
}
PL_INLINE uint32_t pl_u32_at(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}
PL_INLINE float pl_half_at(const uint8_t *p) { return pl_f16_f32(pl_u16_at(p)); }

/* IQ4_NL's levels, and twice those of e2m1 (sign, two bits of exponent, one of mantissa). */
#define PL_IQ4_LEVELS                                                            \
    {                                                                            \
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 \
    }
#define PL_E2M1_LEVELS                                          \
    {                                                           \
        0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 \
    }

/* 2^(e-127), and its subnormal at 0; 255 is NaN */
PL_INLINE float pl_e8m0_f32(uint8_t e)
{
    return pl_bits_f32(e == 255 ? 0x7fc00000u : e ? (uint32_t)e << 23 : 0x400000u);
}
/* An NVFP4 block's scale: times the tensor's float, or where that is negative divided by its magnitude. */
PL_INLINE float pl_nvfp4_scale(float tensor, float block) { return tensor < 0 ? block / -tensor : block * tensor; }
#endif
