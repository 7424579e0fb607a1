/* quant_int4.c: 4-bit integers with a scale for a group of 32, 64 or 128 elements of a row; element 2i in the low half of
 * byte i.
 *
 * I4G*: [scale bf16][codes], value (code - 8) * scale: compressed-tensors' pack-quantized, whose words are these bytes.
 * U4G*: [scale f16][-zero i8][codes], value (code - zero) * scale: GPTQ and AWQ, and pack-quantized with halves or zero
 * points. Zero is 0 to 16. Products of a scale and such an integer are exact in float. */
#include "quant.h"

PL_INLINE void signed_group(float *y, const uint8_t *b, int n)
{
    const float d = pl_bf16_f32(pl_u16_at(b));
    for (int i = 0; i < n; i++) y[i] = (float)((b[2 + i / 2] >> i % 2 * 4 & 15) - 8) * d;
}
PL_INLINE void zero_group(float *y, const uint8_t *b, int n)
{
    const float d = pl_half_at(b);
    const int zero = (256 - b[2]) & 255;
    for (int i = 0; i < n; i++) y[i] = (float)((b[3 + i / 2] >> i % 2 * 4 & 15) - zero) * d;
}
void pl_i4g32(float *y, const uint8_t *b) { signed_group(y, b, 32); }
void pl_i4g64(float *y, const uint8_t *b) { signed_group(y, b, 64); }
void pl_i4g128(float *y, const uint8_t *b) { signed_group(y, b, 128); }
void pl_u4g32(float *y, const uint8_t *b) { zero_group(y, b, 32); }
void pl_u4g64(float *y, const uint8_t *b) { zero_group(y, b, 64); }
void pl_u4g128(float *y, const uint8_t *b) { zero_group(y, b, 128); }

/* 8 times a scale has to be a number too */
bool pl_bad_i4(const uint8_t *b) { return (pl_u16_at(b) & 0x7fff) >= 0x7e00; }
