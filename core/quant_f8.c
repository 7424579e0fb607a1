/* quant_f8.c: E4M3 codes with a float scale for 32, 64 or 128 elements of a row: [scale f32][codes], value code * scale,
 * rounded once, to float. What checkpoints share a scale over (a tensor, a row, a block of 128 x 128) becomes these
 * groups when they are loaded: the largest that divides the row and the block. */
#include "quant.h"
#include <math.h>

PL_INLINE void group(float *y, const uint8_t *b, int n)
{
    const float d = pl_bits_f32(pl_u32_at(b));
    for (int i = 0; i < n; i++) y[i] = pl_f8_f32(b[4 + i]) * d;
}
PL_INLINE bool is_bad(const uint8_t *b, int n)
{
    bool nan = !isfinite(448 * pl_bits_f32(pl_u32_at(b)));
    for (int i = 0; i < n; i++) nan |= (b[4 + i] & 0x7f) == 0x7f;
    return nan;
}
void pl_f8g32(float *y, const uint8_t *b) { group(y, b, 32); }
void pl_f8g64(float *y, const uint8_t *b) { group(y, b, 64); }
void pl_f8g128(float *y, const uint8_t *b) { group(y, b, 128); }
bool pl_bad_f8g32(const uint8_t *b) { return is_bad(b, 32); }
bool pl_bad_f8g64(const uint8_t *b) { return is_bad(b, 64); }
bool pl_bad_f8g128(const uint8_t *b) { return is_bad(b, 128); }
