#ifndef PL_ATTEND_WORDS_H
#define PL_ATTEND_WORDS_H
/* attend_words.h: keys, values and scores on their way to and from tiles (attend_amx.c): in AVX-512, or for tiles in plain
 * vectors in the lanes of vec.h, which is slow. An E4M3 code becomes 2^-8 of its value, exact in BF16. */
#include "vec.h"

enum {
    TILE_WORDS = 16 * 32, /* of a tile of values: 16 pairs of positions, 16 dims */
    WIDE = 64,            /* dims of values that become tiles together: four of them */
    WIDE_WORDS = 4 * TILE_WORDS
};

#ifdef __AVX512F__
/* E4M3 codes as words. code: in the low byte; the rest is ignored, as it is in the others. sign: its sign in bit 15;
 * body: its other bits in bits 10 to 4. A normal code's exponent is moved to its place; what is not normal is looked up,
 * by its low five bits and 1 more, together with the least normal codes. */
PL_INLINE __m512i f8_words(__m512i code, __m512i sign, __m512i body)
{
    /* 2^-8 of: NaN, then 0 to 14 */
    static const uint16_t odd[32] = {0x7fc0, 0,      0x3700, 0x3780, 0x37c0, 0x3800, 0x3820, 0x3840,
                                     0x3860, 0x3880, 0x3890, 0x38a0, 0x38b0, 0x38c0, 0x38d0, 0x38e0};
    const __m512i at = _mm512_add_epi16(code, _mm512_set1_epi16(1)), upper = _mm512_set1_epi16((int16_t)0x8000);
    const __m512i normal = _mm512_ternarylogic_epi32(body, _mm512_set1_epi16(0x07f0), _mm512_set1_epi16(0x3800), 0xea);
    const __mmask32 look = _mm512_testn_epi16_mask(at, _mm512_set1_epi16(0x70));
    const __m512i w = _mm512_mask_permutexvar_epi16(normal, look, at, _mm512_loadu_si512(odd));
    return _mm512_ternarylogic_epi32(w, sign, upper, 0xd8); /* upper ? sign : w */
}
PL_INLINE __m512i f8_low(__m512i w) { return f8_words(w, _mm512_slli_epi16(w, 8), _mm512_slli_epi16(w, 4)); }
PL_INLINE __m512i f8_high(__m512i w) { return f8_words(_mm512_srli_epi16(w, 8), w, _mm512_srli_epi16(w, 4)); }

/* to = the first dim elements of a key; the rest of a step of 32 is 0. next: fetched for later. */
PL_INLINE void key_words(const bool f8, const uint8_t *row, const uint8_t *next, int64_t dim, uint16_t *to)
{
    const int64_t whole = dim / 32 * 32;
    const __m512i none = _mm512_setzero_si512();
    for (int64_t d = 0; d < whole; d += 32) {
        if (f8) {
            const __m512i c = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(row + d)));
            const __m512i up = _mm512_slli_epi16(c, 4);
            if (d % 64 == 0) __builtin_prefetch(next + d);
            _mm512_storeu_si512(to + d, f8_words(c, up, up));
        } else {
            __builtin_prefetch(next + 2 * d);
            _mm512_storeu_si512(to + d, _mm512_loadu_si512(row + 2 * d));
        }
    }
    if (whole == dim) return;
    if (f8) {
        const __m512i c = _mm512_cvtepi8_epi16(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(row + whole))));
        const __m512i up = _mm512_slli_epi16(c, 4), w = f8_words(c, up, up);
        _mm512_storeu_si512(to + whole, _mm512_inserti64x4(none, _mm512_castsi512_si256(w), 0));
    } else {
        const __m256i w = _mm256_loadu_si256((const __m256i *)(row + 2 * whole));
        _mm512_storeu_si512(to + whole, _mm512_inserti64x4(none, w, 0));
    }
}

/* 64 bytes of eight rows become a quarter of tiles [16 pairs][16 dims][2], of which FP8 makes four, BF16 two. Of n rows, and
 * bytes; the others are 0. whole: there are no others. */
PL_INLINE void value_pairs(const bool f8, const bool whole, const uint8_t *row, const uint8_t *next, int64_t stride,
                           int64_t n, int64_t bytes, uint16_t *to)
{
    const __mmask64 all = ~(__mmask64)0, some = bytes < 64 ? ((__mmask64)1 << bytes) - 1 : all;
    for (int64_t i = 0; i < 8; i += 2, to += 32, row += 2 * stride, next += 2 * stride) {
        const __m512i a = _mm512_maskz_loadu_epi8(whole ? all : i < n ? some : 0, row);
        const __m512i b = _mm512_maskz_loadu_epi8(whole ? all : i + 1 < n ? some : 0, row + stride);
        const __m512i lo = _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16));
        const __m512i hi = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b);
        __builtin_prefetch(next);
        __builtin_prefetch(next + stride);
        _mm512_storeu_si512(to, f8 ? f8_low(lo) : lo);
        _mm512_storeu_si512(to + TILE_WORDS, f8 ? f8_high(lo) : hi);
        if (!f8) continue;
        _mm512_storeu_si512(to + 2 * TILE_WORDS, f8_low(hi));
        _mm512_storeu_si512(to + 3 * TILE_WORDS, f8_high(hi));
    }
}
/* The same of up to 64 dims: a quarter of four tiles. Where value_order says, there is a dim. */
PL_INLINE void value_words(const bool f8, const uint8_t *row, const uint8_t *next, int64_t stride, int64_t n,
                           int64_t dims, uint16_t *to)
{
    const int64_t bytes = f8 ? dims : 2 * dims;
    for (int64_t d = 0; d < bytes; d += 64, to += 2 * TILE_WORDS)
        if (n >= 8 && bytes - d >= 64)
            value_pairs(f8, true, row + d, next + d, stride, 8, 64, to);
        else
            value_pairs(f8, false, row + d, next + d, stride, n, bytes - d, to);
}
/* The column, of the four tiles' 64, of dim d. */
PL_INLINE int64_t value_order(bool f8, int64_t d)
{
    return f8 ? d % 4 * 16 + d / 4 : d / 32 * 32 + d % 2 * 16 + d % 32 / 2;
}

/* out[n][16] (step out_stride) = c[16][width], turned */
PL_INLINE void turn_scores(const float *c, int64_t width, int64_t n, float *out, int64_t out_stride)
{
    /* dwords 2i and 2i + 1 of rows that have four each, from two vectors of four rows */
    const __m512i even = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odd = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    for (int64_t r = 0; r < n; r += 4, c += 4) {
        __m512 v[4];
        VF_UNROLL for (int i = 0; i < 4; i++)
        {
            const float *at = c + 4 * i * width;
            v[i] = _mm512_castps128_ps512(_mm_loadu_ps(at));
            v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(at + width), 1);
            v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(at + 2 * width), 2);
            v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(at + 3 * width), 3);
        }
        const __m512 a = _mm512_permutex2var_ps(v[0], even, v[1]), b = _mm512_permutex2var_ps(v[2], even, v[3]);
        const __m512 x = _mm512_permutex2var_ps(v[0], odd, v[1]), y = _mm512_permutex2var_ps(v[2], odd, v[3]);
        float *to = out + r * out_stride;
        _mm512_storeu_ps(to, _mm512_shuffle_f32x4(a, b, 0x44));
        if (r + 1 < n) _mm512_storeu_ps(to + out_stride, _mm512_shuffle_f32x4(a, b, 0xee));
        if (r + 2 < n) _mm512_storeu_ps(to + 2 * out_stride, _mm512_shuffle_f32x4(x, y, 0x44));
        if (r + 3 < n) _mm512_storeu_ps(to + 3 * out_stride, _mm512_shuffle_f32x4(x, y, 0xee));
    }
}
#else
PL_INLINE void row_words(bool f8, const uint8_t *row, int64_t dim, uint16_t *to)
{
    for (int64_t d = 0; d < dim; d += PL_LANES)
        if (f8)
            vf_store_upper(to + d, vf_load_f8(row + d));
        else
            vf_store_upper(to + d, vf_load_bf16((const uint16_t *)(const void *)row + d));
}
PL_INLINE void key_words(const bool f8, const uint8_t *row, const uint8_t *next, int64_t dim, uint16_t *to)
{
    (void)next;
    if (dim % 32) memset(to + dim, 0, 16 * sizeof *to);
    row_words(f8, row, dim, to);
}
PL_INLINE void value_words(const bool f8, const uint8_t *row, const uint8_t *next, int64_t stride, int64_t n,
                           int64_t dims, uint16_t *to)
{
    (void)next;
    for (int64_t i = 0; i < 8; i++) {
        uint16_t w[WIDE] = {0};
        if (i < n) row_words(f8, row + i * stride, dims, w);
        for (int64_t d = 0; d < WIDE; d++) to[d / 16 * TILE_WORDS + i / 2 * 32 + d % 16 * 2 + i % 2] = w[d];
    }
}
PL_INLINE int64_t value_order(bool f8, int64_t d)
{
    (void)f8;
    return d;
}
PL_INLINE void turn_scores(const float *c, int64_t width, int64_t n, float *out, int64_t out_stride)
{
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < 16; i++) out[r * out_stride + i] = c[i * width + r];
}
#endif
#endif
