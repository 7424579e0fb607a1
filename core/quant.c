/* quant.c: the block formats of GGUF files, element by element. This is their definition: fast kernels are tested
 * against it. Scales are IEEE halves. Every product of a scale, a sub-scale and a code fits in the 24 bits of a
 * float, so it is exact; only the subtraction or addition of the minimum rounds, once. */
#include "quant.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and are used as they lie");

/* Blocks have no alignment of their own (18, 22, 34 bytes), so fields are read through memcpy. */
static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return pl_f16_f32(h);
}
static uint32_t u32_at(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}
/* Codes of the 32-element formats: byte j holds element j in its low half and element j + 16 in its high half. */
static int nibble(const uint8_t *codes, int n) { return n < 16 ? codes[n] & 15 : codes[n - 16] >> 4; }

/* [d f16][codes 16] */
static void block_q4_0(float *y, const uint8_t *b)
{
    const float d = half_at(b);
    for (int n = 0; n < 32; n++) y[n] = (float)(nibble(b + 2, n) - 8) * d;
}

/* [d f16][min f16][codes 16] */
static void block_q4_1(float *y, const uint8_t *b)
{
    const float d = half_at(b), min = half_at(b + 2);
    for (int n = 0; n < 32; n++) y[n] = (float)nibble(b + 4, n) * d + min;
}

/* [d f16][fifth bits u32][codes 16] */
static void block_q5_0(float *y, const uint8_t *b)
{
    const float d = half_at(b);
    const uint32_t high = u32_at(b + 2);
    for (int n = 0; n < 32; n++) y[n] = (float)((nibble(b + 6, n) | (int)(high >> n & 1) << 4) - 16) * d;
}

/* [d f16][min f16][fifth bits u32][codes 16] */
static void block_q5_1(float *y, const uint8_t *b)
{
    const float d = half_at(b), min = half_at(b + 2);
    const uint32_t high = u32_at(b + 4);
    for (int n = 0; n < 32; n++) y[n] = (float)(nibble(b + 8, n) | (int)(high >> n & 1) << 4) * d + min;
}

/* [d f16][codes 32 x i8] */
static void block_q8_0(float *y, const uint8_t *b)
{
    const float d = half_at(b);
    for (int n = 0; n < 32; n++) y[n] = (float)(int8_t)b[2 + n] * d;
}

/* Sub-block j of 8 of Q4_K and Q5_K: 6-bit scale and minimum, packed into 12 bytes. The first four pairs have bytes
 * of their own; the last four are split into nibbles in bytes 8..11 and the top bits of bytes 0..7. */
static void k_scale(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *min = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

/* [d f16][dmin f16][scales 12][codes 128]: per 64 elements 32 bytes, low halves first */
static void block_q4_k(float *y, const uint8_t *b)
{
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        const uint8_t *codes = b + 16 + j / 2 * 32;
        for (int n = 0; n < 32; n++)
            y[j * 32 + n] = d * (float)scale * (float)(codes[n] >> j % 2 * 4 & 15) - dmin * (float)min;
    }
}

/* [d f16][dmin f16][scales 12][fifth bits 32][codes 128]: bit j of byte n is the fifth bit of element n of sub-block j */
static void block_q5_k(float *y, const uint8_t *b)
{
    const float d = half_at(b), dmin = half_at(b + 2);
    const uint8_t *high = b + 16;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        const uint8_t *codes = b + 48 + j / 2 * 32;
        for (int n = 0; n < 32; n++) {
            const int q = (codes[n] >> j % 2 * 4 & 15) | (high[n] >> j & 1) << 4;
            y[j * 32 + n] = d * (float)scale * (float)q - dmin * (float)min;
        }
    }
}

/* [low halves 128][top two bits 64][scales 16 x i8][d f16]: per 128 elements four runs of 32, which take their low
 * half from byte n or n + 32 of 64 and their top bits from byte n of 32 */
static void block_q6_k(float *y, const uint8_t *b)
{
    const float d = half_at(b + 208);
    const int8_t *scales = (const int8_t *)b + 192;
    for (int run = 0; run < 8; run++) {
        const uint8_t *low = b + run / 4 * 64 + run % 2 * 32, *high = b + 128 + run / 4 * 32;
        const int low_shift = run % 4 / 2 * 4, high_shift = run % 4 * 2;
        for (int n = 0; n < 32; n++) {
            const int q = (low[n] >> low_shift & 15) | (high[n] >> high_shift & 3) << 4;
            y[run * 32 + n] = d * (float)scales[run * 2 + (n >= 16)] * (float)(q - 32);
        }
    }
}

void pl_quant_to_f32(int32_t dtype, float *dst, const void *src, int64_t n)
{
    const int32_t block = pl_dtype_block(dtype), bytes = pl_dtype_bytes(dtype);
    PL_ASSERT(dtype >= PL_Q4_0 && block > 1 && n % block == 0);
    const uint8_t *b = src;
    for (int64_t i = 0; i < n; i += block, b += bytes) {
        switch (dtype) {
        case PL_Q4_0:
            block_q4_0(dst + i, b);
            break;
        case PL_Q4_1:
            block_q4_1(dst + i, b);
            break;
        case PL_Q5_0:
            block_q5_0(dst + i, b);
            break;
        case PL_Q5_1:
            block_q5_1(dst + i, b);
            break;
        case PL_Q8_0:
            block_q8_0(dst + i, b);
            break;
        case PL_Q4_K:
            block_q4_k(dst + i, b);
            break;
        case PL_Q5_K:
            block_q5_k(dst + i, b);
            break;
        default:
            block_q6_k(dst + i, b);
        }
    }
}

static bool is_bad_half(const uint8_t *p) { return (p[1] & 0x7c) == 0x7c; } /* all bits of the exponent */

int64_t pl_quant_first_bad(int32_t dtype, const void *src, int64_t n)
{
    const uint8_t *b = src;
    const int32_t bytes = pl_dtype_bytes(dtype);
    const int32_t scale = dtype == PL_Q6_K ? 208 : 0; /* where the scale lies, and the minimum behind it */
    const bool has_min = dtype == PL_Q4_1 || dtype == PL_Q5_1 || dtype == PL_Q4_K || dtype == PL_Q5_K;
    PL_ASSERT(dtype == PL_F8 || dtype >= PL_Q4_0);
    for (int64_t i = 0; i < n; i++, b += bytes) {
        if (dtype == PL_F8 ? (*b & 0x7f) == 0x7f : is_bad_half(b + scale) || (has_min && is_bad_half(b + 2))) return i;
    }
    return -1;
}
