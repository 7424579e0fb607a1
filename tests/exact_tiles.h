#ifndef EXACT_TILES_H
#define EXACT_TILES_H
/* The tile unit in plain C, as the instruction set reference defines it (LDTILECFG, TILELOADD, TILESTORED, TILEZERO,
 * TDPBF16PS, TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD): what would be an exception stops the test. TDPBF16PS does not heed the
 * mode of the processor, so nothing here does: sums are rounded once, to nearest even, denormal operands count as zero,
 * and so do results that are tiny after rounding. Kernels compile against it by PL_TILES_FILE (x86/tiles.h). */
#include "vec16_plain.h"

typedef struct exact_tiles {
    tile_config c;
    bool on;
    uint8_t t[8][16][64];
} exact_tiles;

/* p + c for an exact p, as a float: rounded to odd first, with what the sum in double lost, so that the second rounding
 * is the only one that counts. */
static inline float exact_sum(double p, float c)
{
    const double b = (double)c, s = p + b;
    if (!isfinite(s)) return (float)s;
    const double back = s - p, lost = (p - (s - back)) + (b - back);
    uint64_t bits;
    double odd;
    memcpy(&bits, &s, 8);
    if (lost != 0 && bits % 2 == 0) bits += (lost > 0) == (s > 0) ? 1 : -1;
    memcpy(&odd, &bits, 8);
    const double size = fabs(odd);
    if (size < 0x1p-126 - 0x1p-151) return signbit(odd) ? -0.0f : 0.0f;
    if (size < 0x1p-126) return odd < 0 ? -0x1p-126f : 0x1p-126f;
    return (float)odd;
}
static inline float no_denormal(uint32_t bits) { return pl_bits_f32(bits & 0x7f800000 ? bits : bits & 0x80000000); }
static inline float exact_fma(float a, float b, float c) { return exact_sum((double)a * (double)b, c); }
static inline float exact_add(float a, float b)
{
    return exact_sum((double)no_denormal(pl_f32_bits(a)), no_denormal(pl_f32_bits(b)));
}

static inline void exact_begin(exact_tiles *s, const tile_config *c)
{
    PL_ASSERT(c->palette == 1 && c->start_row == 0);
    for (int i = 0; i < 14; i++) PL_ASSERT(c->pad[i] == 0);
    for (int i = 0; i < 16; i++) {
        PL_ASSERT(c->bytes[i] <= 64 && c->rows[i] <= 16 && (c->bytes[i] > 0) == (c->rows[i] > 0));
        if (i >= 8) PL_ASSERT(c->rows[i] == 0);
    }
    s->c = *c;
    s->on = true;
    memset(s->t, 0, sizeof s->t);
}
static inline void exact_end(exact_tiles *s) { s->on = false; }
static __attribute__((noinline, unused)) void exact_zero(exact_tiles *s, int t)
{
    PL_ASSERT(s->on && s->c.rows[t]);
    memset(s->t[t], 0, sizeof s->t[t]);
}
static __attribute__((noinline, unused)) void exact_load(exact_tiles *s, int t, const void *p, int64_t stride)
{
    exact_zero(s, t);
    for (int r = 0; r < s->c.rows[t]; r++) memcpy(s->t[t][r], (const uint8_t *)p + r * stride, s->c.bytes[t]);
}
static __attribute__((noinline, unused)) void exact_store(const exact_tiles *s, int t, void *p, int64_t stride)
{
    PL_ASSERT(s->on && s->c.rows[t]);
    for (int r = 0; r < s->c.rows[t]; r++) memcpy((uint8_t *)p + r * stride, s->t[t][r], s->c.bytes[t]);
}
/* Tiles of a product fit each other; rows of the sum beyond its own become zero. */
static inline void exact_fit(exact_tiles *s, int c, int a, int b)
{
    PL_ASSERT(s->on && c != a && a != b && c != b);
    PL_ASSERT(s->c.rows[c] == s->c.rows[a] && s->c.bytes[c] == s->c.bytes[b] && s->c.bytes[a] == 4 * s->c.rows[b]);
    PL_ASSERT(s->c.bytes[c] % 4 == 0 && s->c.rows[c]);
}
static inline uint32_t exact_word(const exact_tiles *s, int t, int row, int at)
{
    uint32_t v;
    memcpy(&v, &s->t[t][row][4 * at], 4);
    return v;
}
static __attribute__((noinline, unused)) void exact_bf16(exact_tiles *s, int c, int a, int b)
{
    exact_fit(s, c, a, b);
    for (int m = 0; m < s->c.rows[c]; m++)
        for (int n = 0; n < s->c.bytes[c] / 4; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < s->c.rows[b]; k++) {
                const uint32_t x = exact_word(s, a, m, k), w = exact_word(s, b, k, n);
                even = exact_fma(no_denormal(x << 16), no_denormal(w << 16), even);
                odd = exact_fma(no_denormal(x & 0xffff0000), no_denormal(w & 0xffff0000), odd);
            }
            memcpy(&sum, &s->t[c][m][4 * n], 4);
            sum = exact_add(sum, exact_add(even, odd));
            memcpy(&s->t[c][m][4 * n], &sum, 4);
        }
}
/* Of bytes: a_signed, b_signed; sums wrap around. */
static __attribute__((noinline, unused)) void exact_bytes(exact_tiles *s, int c, int a, int b, bool a_signed,
                                                          bool b_signed)
{
    exact_fit(s, c, a, b);
    for (int m = 0; m < s->c.rows[c]; m++)
        for (int n = 0; n < s->c.bytes[c] / 4; n++) {
            uint32_t sum = exact_word(s, c, m, n);
            for (int k = 0; k < s->c.rows[b]; k++)
                for (int i = 0; i < 4; i++) {
                    const uint8_t x = s->t[a][m][4 * k + i], w = s->t[b][k][4 * n + i];
                    sum += (uint32_t)((a_signed ? (int8_t)x : (int32_t)x) * (b_signed ? (int8_t)w : (int32_t)w));
                }
            memcpy(&s->t[c][m][4 * n], &sum, 4);
        }
}

#define T_TILES exact_tiles *const soft_
#define T_HERE soft_
#define T_BEGIN_WIDTH(rows, even, odd, width)                           \
    exact_tiles tiles_;                                                 \
    exact_tiles *const soft_ = &tiles_;                                 \
    const tile_config config_ = tile_config_of(rows, even, odd, width); \
    exact_begin(soft_, &config_)
#define T_END() exact_end(soft_)
#define T_LOAD(t, p, stride) exact_load(soft_, t, p, stride)
#define T_STORE(t, p, stride) exact_store(soft_, t, p, stride)
#define T_ZERO(t) exact_zero(soft_, t)
#define T_STEP(c, x, w) exact_bf16(soft_, c, x, w)
#define T_STEP_INT(c, x, w) exact_bytes(soft_, c, x, w, true, true)
#endif
