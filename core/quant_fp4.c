/* quant_fp4.c: e2m1 codes with shared scales.
 *
 * MXFP4 (OCP Microscaling 1.0; GGUF type 39; gpt-oss): [e u8][codes 16] for 32 elements, value e2m1 * 2^(e-127). Codes
 * as in GGUF files: byte j holds element j in its low half and element j + 16 in its high half. The value is exact; code
 * 8 is -0, as in the standard (ggml has +0).
 *
 * NVFP4: e2m1, an e4m3 scale for 16 elements, and one float a tensor, which multiplies in modelopt's checkpoints and
 * divides in those of compressed-tensors. [tensor f32][scales 2][codes 16] for 32 elements, element 2i in the low half of
 * byte i. value = e2m1 * (scale * tensor), or e2m1 * (scale / tensor), each step rounded to float, as the references
 * compute it: the division is no product with a reciprocal, so the dialect has to be kept. A divisor is stored
 * negated. */
#include "quant.h"
#include <math.h>

static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

void pl_mxfp4(float *y, const uint8_t *b)
{
    const float d = pl_e8m0_f32(b[0]);
    for (int n = 0; n < 16; n++) {
        y[n] = e2m1[b[1 + n] & 15] * d;
        y[n + 16] = e2m1[b[1 + n] >> 4] * d;
    }
}
bool pl_bad_mxfp4(const uint8_t *b) { return b[0] > 252; } /* 6 * 2^126 is no float */

void pl_nvfp4(float *y, const uint8_t *b)
{
    const float tensor = pl_bits_f32(pl_u32_at(b));
    for (int n = 0; n < 32; n++)
        y[n] = e2m1[b[6 + n / 2] >> n % 2 * 4 & 15] * pl_nvfp4_scale(tensor, pl_f8_f32(b[4 + n / 16]));
}
bool pl_bad_nvfp4(const uint8_t *b)
{
    const float tensor = pl_bits_f32(pl_u32_at(b));
    if (!isfinite(tensor) || tensor == 0) return true;
    for (int i = 0; i < 2; i++)
        if (!isfinite(6 * pl_nvfp4_scale(tensor, pl_f8_f32(b[4 + i])))) return true;
    return false;
}
