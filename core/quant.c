/* quant.c: the block formats of GGUF files, element by element. This is their definition: fast kernels are tested
 * against it. Scales are IEEE halves. Every product of a scale, a sub-scale and a code fits in the 24 bits of a
 * float, so it is exact; only the subtraction or addition of the minimum rounds, once. */
#include "quant.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and are used as they lie");

/* Codes of the 32-element formats: byte j holds element j in its low half and element j + 16 in its high half. */
static int nibble(const uint8_t *codes, int n) { return n < 16 ? codes[n] & 15 : codes[n - 16] >> 4; }

/* [d f16][codes 16] */
void pl_q4_0(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b);
    for (int n = 0; n < 32; n++) y[n] = (float)(nibble(b + 2, n) - 8) * d;
}

/* [d f16][min f16][codes 16] */
void pl_q4_1(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b), min = pl_half_at(b + 2);
    for (int n = 0; n < 32; n++) y[n] = (float)nibble(b + 4, n) * d + min;
}

/* [d f16][fifth bits u32][codes 16] */
void pl_q5_0(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b);
    const uint32_t high = pl_u32_at(b + 2);
    for (int n = 0; n < 32; n++) y[n] = (float)((nibble(b + 6, n) | (int)(high >> n & 1) << 4) - 16) * d;
}

/* [d f16][min f16][fifth bits u32][codes 16] */
void pl_q5_1(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b), min = pl_half_at(b + 2);
    const uint32_t high = pl_u32_at(b + 4);
    for (int n = 0; n < 32; n++) y[n] = (float)(nibble(b + 8, n) | (int)(high >> n & 1) << 4) * d + min;
}

/* [d f16][codes 32 x i8] */
void pl_q8_0(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b);
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
void pl_q4_k(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b), dmin = pl_half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        const uint8_t *codes = b + 16 + j / 2 * 32;
        for (int n = 0; n < 32; n++)
            y[j * 32 + n] = d * (float)scale * (float)(codes[n] >> j % 2 * 4 & 15) - dmin * (float)min;
    }
}

/* [d f16][dmin f16][scales 12][fifth bits 32][codes 128]: bit j of byte n is the fifth bit of element n of sub-block j */
void pl_q5_k(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b), dmin = pl_half_at(b + 2);
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
void pl_q6_k(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b + 208);
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

static const int8_t iq4_level[16] = PL_IQ4_LEVELS;

/* [d f16][codes 16]: a code is one of 16 uneven levels */
void pl_iq4_nl(float *y, const uint8_t *b)
{
    const float d = pl_half_at(b);
    for (int n = 0; n < 32; n++) y[n] = (float)iq4_level[nibble(b + 2, n)] * d;
}

static bool is_bad_half(const uint8_t *p) { return (p[1] & 0x7c) == 0x7c; } /* all bits of the exponent */
bool pl_bad_d(const uint8_t *b) { return is_bad_half(b); }
bool pl_bad_d_m(const uint8_t *b) { return is_bad_half(b) || is_bad_half(b + 2); }
bool pl_bad_q6_k(const uint8_t *b) { return is_bad_half(b + 208); }
