/* attend_rows.h: part of attend_body.h: rows of the cache, in any of its formats, become panels of floats. An E4M3 code
 * becomes 2^-8 of its value (vf_load_f8). */
#include "attend.h"
#include "vec.h"

enum {
#ifdef VF_PLAIN
    ROWS = 1,
#else
    ROWS = 6, /* rows that go through a panel together */
#endif
    STEP = 32,                                /* terms of a step */
    SCORE_STRIDE = PL_ATTEND_CHUNK + PL_LANES /* not a power of two: rows must not share cache sets */
};

/* f with its first argument a constant */
#ifdef VF_PLAIN
#define FOR_ROWS(f, ...) f(1, __VA_ARGS__);
#else
              /* clang-format off */
#define FOR_ROWS(f, ...)               \
    switch (rows) {                    \
    case 1: f(1, __VA_ARGS__); break;  \
    case 2: f(2, __VA_ARGS__); break;  \
    case 3: f(3, __VA_ARGS__); break;  \
    case 4: f(4, __VA_ARGS__); break;  \
    case 5: f(5, __VA_ARGS__); break;  \
    default: f(6, __VA_ARGS__); break; \
    }
              /* clang-format on */
#endif

/* Rows that are needed a little later: a line of each of n rows. Spread over the work, so that the core's few slots
 * for lines under way are never all taken by one burst. */
PL_INLINE void fetch(const uint8_t *row, int64_t stride, int n)
{
    VF_UNROLL for (int i = 0; i < n; i++) __builtin_prefetch(row + i * stride);
}

#if defined(__AVX2__) && defined(__FMA__)
/* Eight rows of four dwords become four columns. Halves of rows meet as they are loaded: lane crossings are dear. */
PL_INLINE __m256i two_halves(const uint8_t *lo, const uint8_t *hi)
{
    const __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)lo));
    return _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)hi), 1);
}
PL_INLINE void transpose4(const uint8_t *row, int64_t stride, __m256i *out)
{
    __m256i r[4];
    VF_UNROLL for (int i = 0; i < 4; i++) r[i] = two_halves(row + i * stride, row + (i + 4) * stride);
    const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

/* 16 codes of 16 keys, turned in pairs of dims: the words of out[i] are the codes of dims 2i and 2i + 1, of keys
 * 0 1 4 5 2 3 6 7, then 8 9 12 13 10 11 14 15: f8_pairs makes four of them contiguous. */
PL_INLINE void transpose_f8(const uint8_t *row, int64_t stride, __m256i *out)
{
    static const int order[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    __m256i r[8], t[8];
    VF_UNROLL for (int i = 0; i < 8; i++) r[i] = two_halves(row + order[i] * stride, row + (order[i] + 8) * stride);
    VF_UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_epi16(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi16(r[i], r[i + 1]);
    }
    VF_UNROLL for (int i = 0; i < 8; i += 4)
    {
        r[i] = _mm256_unpacklo_epi32(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi32(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi32(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi32(t[i + 1], t[i + 3]);
    }
    VF_UNROLL for (int i = 0; i < 4; i++)
    {
        out[2 * i] = _mm256_unpacklo_epi64(r[i], r[i + 4]);
        out[2 * i + 1] = _mm256_unpackhi_epi64(r[i], r[i + 4]);
    }
}
/* Codes of eight keys as floats (2^-8 of their values): x[0] are keys 0 1 4 5, x[1] keys 2 3 6 7, each the even dim, then
 * the odd one. Of 16 keys: x[2] and x[3] the others. */
PL_INLINE void f8_of_8(__m128i c, __m256 *x)
{
    const __m128i zero = _mm_setzero_si128(), mask = _mm_set1_epi16((int16_t)0xbf80);
    x[0] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_unpacklo_epi8(zero, c), 1), mask));
    x[1] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_unpackhi_epi8(zero, c), 1), mask));
}
PL_INLINE void f8_of_16(__m256i c, __m256 *x)
{
    const __m256i zero = _mm256_setzero_si256(), mask = _mm256_set1_epi16((int16_t)0xbf80);
    const __m256i lo = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpacklo_epi8(zero, c), 1), mask);
    const __m256i hi = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpackhi_epi8(zero, c), 1), mask);
    x[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(lo));
    x[1] = _mm256_cvtph_ps(_mm256_castsi256_si128(hi));
    x[2] = _mm256_cvtph_ps(_mm256_extracti128_si256(lo, 1));
    x[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(hi, 1));
}
/* The even and the odd dims of eight keys in order. */
PL_INLINE __m256 f8_even(__m256 a, __m256 b) { return _mm256_shuffle_ps(a, b, 0x88); }
PL_INLINE __m256 f8_odd(__m256 a, __m256 b) { return _mm256_shuffle_ps(a, b, 0xdd); }

/* No NaN among n rows of `bytes` codes, a multiple of 16. */
PL_INLINE bool f8_sane(const uint8_t *row, int64_t stride, int64_t n, int64_t bytes)
{
    const __m256i sign = _mm256_set1_epi8((char)0x80);
    __m256i top = sign;
    for (int64_t i = 0; i < n; i++, row += stride) {
        int64_t d = 0;
        for (; d + 32 <= bytes; d += 32)
            top = _mm256_max_epu8(top, _mm256_or_si256(_mm256_loadu_si256((const __m256i *)(row + d)), sign));
        if (d < bytes) top = _mm256_max_epu8(top, _mm256_or_si256(two_halves(row + d, row + d), sign));
    }
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(top, _mm256_set1_epi8(-1))) == 0;
}

/* Whole dims of 16 keys, turned: returns how many are done. */
PL_INLINE int64_t turn_f8(float *panel, const uint8_t *row, const uint8_t *next, int64_t stride, int64_t dim)
{
    int64_t d = 0;
    if (!f8_sane(row, stride, PL_LANES, dim / 16 * 16)) return 0;
    for (; d + 16 <= dim; d += 16) {
        __m256i c[8];
        if (d % 64 == 0) fetch(next + d, stride, PL_LANES);
        transpose_f8(row + d, stride, c);
        VF_UNROLL for (int i = 0; i < 8; i++)
        {
            float *to = panel + (d + 2 * i) * PL_LANES;
            __m256 x[4];
            f8_of_16(c[i], x);
            _mm256_storeu_ps(to, f8_even(x[0], x[1]));
            _mm256_storeu_ps(to + 8, f8_even(x[2], x[3]));
            _mm256_storeu_ps(to + PL_LANES, f8_odd(x[0], x[1]));
            _mm256_storeu_ps(to + PL_LANES + 8, f8_odd(x[2], x[3]));
        }
    }
    return d;
}
PL_INLINE int64_t turn_keys(float *panel, const uint8_t *row, const uint8_t *next, int64_t stride, int64_t dim,
                            int32_t dtype)
{
    if (dtype == PL_F8) return turn_f8(panel, row, next, stride, dim);
    const bool bf16 = dtype == PL_BF16;
    const int64_t per = bf16 ? 8 : 4; /* dims in 16 bytes */
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    int64_t d = 0;
    for (; d + per <= dim; d += per)
        for (int half = 0; half < 2; half++) {
            __m256i c[4];
            float *to = panel + d * PL_LANES + half * 8;
            const int64_t at = d / per * 16 + half * 8 * stride;
            if (d / per % 4 == 0) fetch(next + at, stride, 8);
            transpose4(row + at, stride, c);
            VF_UNROLL for (int i = 0; i < 4; i++)
            {
                if (!bf16) {
                    _mm256_storeu_si256((__m256i *)(to + i * PL_LANES), c[i]);
                    continue;
                }
                _mm256_storeu_si256((__m256i *)(to + 2 * i * PL_LANES), _mm256_slli_epi32(c[i], 16));
                _mm256_storeu_si256((__m256i *)(to + (2 * i + 1) * PL_LANES), _mm256_and_si256(c[i], high));
            }
        }
    return d;
}
#else /* in plain C the panel is filled below */
#define turn_keys(...) 0
#endif

/* Up to 16 elements of a row, from element d on; `left` of them are real. */
VF_INLINE vf row_lanes(const uint8_t *row, int32_t dtype, int64_t d, int64_t left)
{
    if (dtype == PL_F8) return left < PL_LANES ? vf_load_f8_n(row + d, left) : vf_load_f8(row + d);
    if (dtype == PL_BF16) {
        const uint16_t *v = (const uint16_t *)row + d;
        return left < PL_LANES ? vf_load_bf16_n(v, left) : vf_load_bf16(v);
    }
    const float *v = (const float *)row + d;
    return vf_get(v, left);
}

/* panel[dim][16] = 16 keys */
static void load_keys(const uint8_t *row, const uint8_t *next, int64_t stride, int64_t dim, int32_t dtype, float *panel)
{
    (void)next;
    for (int64_t d = turn_keys(panel, row, next, stride, dim, dtype); d < dim; d += PL_LANES)
        for (int i = 0; i < PL_LANES; i++) {
            float v[PL_LANES];
            vf_store(v, row_lanes(row + i * stride, dtype, d, dim - d));
            for (int64_t k = d; k < pl_min(d + PL_LANES, dim); k++) panel[k * PL_LANES + i] = v[k - d];
        }
}

/* 32 rows of values: the first 16 from at[0] on, the others from at[1] on */
typedef struct value_rows {
    const uint8_t *at[2];
} value_rows;
PL_INLINE const uint8_t *value_row(value_rows v, int64_t i, int64_t stride)
{
    return v.at[i / PL_LANES] + i % PL_LANES * stride;
}

/* panel[dim / 16][32][16] = n rows of values */
static void load_values(value_rows row, value_rows next, int64_t stride, int64_t dim, int32_t dtype, int64_t n,
                        float *panel)
{
    const int64_t size = dtype == PL_F8 ? 1 : dtype == PL_BF16 ? 2 : 4;
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < dim; d += PL_LANES) {
            if (d * size % 64 == 0) __builtin_prefetch(value_row(next, i, stride) + d * size);
            vf_store(panel + d * STEP + i * PL_LANES, row_lanes(value_row(row, i, stride), dtype, d, dim - d));
        }
}
