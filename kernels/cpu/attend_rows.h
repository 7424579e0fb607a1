/* attend_rows.h: part of attend_body.h: rows of the cache, in any of its formats, become panels of floats. An E4M3 code
 * becomes 2^-8 of its value (vf_load_f8). What attend_direct.h does not take goes this way. */
#include "attend_soften.h"

enum {
#ifdef VF_PLAIN
    ROWS = 1
#else
    ROWS = 6 /* rows that go through a panel together */
#endif
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

/* Rows that go together, of n: seven are four and three, because one alone waits for its own sums. */
PL_INLINE int64_t row_group(int64_t n)
{
    const int64_t groups = (n + ROWS - 1) / ROWS;
    return (n + groups - 1) / groups;
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

/* Whole groups of four dims of 16 F32 keys, turned: returns how many dims are done. */
PL_INLINE int64_t turn_keys(float *panel, const uint8_t *row, const uint8_t *next, int64_t stride, int64_t dim,
                            int32_t dtype)
{
    int64_t d = 0;
    if (dtype != PL_F32) return 0;
    for (; d + 4 <= dim; d += 4)
        for (int half = 0; half < 2; half++) {
            __m256i c[4];
            float *to = panel + d * PL_LANES + half * 8;
            const int64_t at = d * 4 + half * 8 * stride;
            if (d % 16 == 0) fetch(next + at, stride, 8);
            transpose4(row + at, stride, c);
            VF_UNROLL for (int i = 0; i < 4; i++) _mm256_storeu_si256((__m256i *)(to + i * PL_LANES), c[i]);
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
