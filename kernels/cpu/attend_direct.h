/* attend_direct.h: part of attend_body.h: keys and values of BF16 and FP8 caches meet queries as 16-bit words, two of
 * which become floats by a shift and a mask. Dims are multiples of 16; the others take a panel, with the same bits.
 *
 * Keys: a step of 32 dims of 16 keys is turned in registers, so that a lane is a key. Values: a line of 32 rows is
 * copied, since rows that lie a power of two apart share few sets of the first cache. Either is small, stays in the
 * first cache, and meets all rows of its head.
 *
 * An E4M3 code becomes such a word in one of two ways (f8_words). In general: 2^-8 of its value, by F16C. Where a factor
 * that is a denormal costs no time (isa.c): the code shifted into place, 2^-120 of its value, so that a subnormal code is
 * a denormal; then q and P are WORDS_UP as large, and denormals are kept. The products are the same. */
#include "attend_rows.h"

#if defined(__AVX2__) && defined(__FMA__)
#define WORDS true
#define WORDS_UP 0x1p112f
#define WORDS_LIMIT 0x1p15f /* of what is multiplied by WORDS_UP */

/* 16 lanes are `PARTS` vectors. Sums are plain arrays of those; V_CLEAR, V_MAC and V_SETTLE say where they are and when. */
#ifdef __AVX512F__
#include "x86/vec16.h"
#else
#include "x86/vec8.h"
#endif
enum { PARTS = PL_LANES / LANES };
/* Lower or upper words of dwords, as floats */
PL_INLINE V low_words(const void *w) { return v_cast(i_sll(i_load(w), 16)); }
PL_INLINE V high_words(const void *w) { return v_cast(i_and(i_load(w), i_set((int)0xffff0000u))); }
/* 16 words as floats in the order that takes the least work, and back: with AVX2 the even ones, then the odd ones */
#ifdef __AVX512F__
PL_INLINE void any_order(const uint16_t *w, V x[PARTS]) { x[0] = v_of_bf16(w); }
PL_INLINE vf in_order(const V x[PARTS]) { return x[0]; }
#else
PL_INLINE void any_order(const uint16_t *w, V x[PARTS])
{
    x[0] = low_words(w);
    x[1] = high_words(w);
}
PL_INLINE vf in_order(const V x[PARTS])
{
    const __m256 lo = _mm256_unpacklo_ps(x[0], x[1]), hi = _mm256_unpackhi_ps(x[0], x[1]);
    return (vf){_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)};
}
#endif

/* Words of codes, each sign-extended and shifted left by 4: the sign in bits 15 to 11, then the code's other bits.
 * nan: NaN stays NaN. */
PL_INLINE __m256i f8_words(bool up, bool nan, __m256i c)
{
    const __m256i most = _mm256_set1_epi16(0x07f0);
    __m256i w = _mm256_and_si256(c, _mm256_set1_epi16((int16_t)0x87f0)), bad = _mm256_setzero_si256();
    if (nan) bad = _mm256_cmpeq_epi16(_mm256_and_si256(c, most), most);
    if (!up) { /* as halves, and the upper half of the floats */
        w = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(w, 3), _mm256_set1_epi16(0x3f80)),
                            _mm256_and_si256(w, _mm256_set1_epi16((int16_t)0x8000)));
        const __m256 lo = _mm256_cvtph_ps(_mm256_castsi256_si128(w)),
                     hi = _mm256_cvtph_ps(_mm256_extracti128_si256(w, 1));
        const __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(lo), 16),
                                                 _mm256_srli_epi32(_mm256_castps_si256(hi), 16));
        w = _mm256_permute4x64_epi64(both, 0xd8);
    }
    return nan ? _mm256_or_si256(w, bad) : w;
}
/* The largest magnitude of each byte seen so far, and whether that is NaN. */
PL_INLINE __m256i f8_top(__m256i top, __m256i c)
{
    return _mm256_max_epu8(top, _mm256_or_si256(c, _mm256_set1_epi8((char)0x80)));
}
PL_INLINE bool f8_nan(__m256i top) { return _mm256_movemask_epi8(_mm256_cmpeq_epi8(top, _mm256_set1_epi8(-1))) != 0; }

/* A step of 16 keys, turned: BF16 dims 2i and 2i + 1 in dword i; E4M3 dims 4i and 4i + 2 in dword i, dims 4i + 1 and
 * 4i + 3 in dword 8 + i. */
typedef struct turned {
    uint32_t w[16][PL_LANES];
} turned;
PL_INLINE void turn_bf16(const uint8_t *row, int64_t stride, int n, turned *to)
{
    for (int i = 0; i < n / 2; i += 4) VF_UNROLL for (int k = 0; k < 2; k++)
        {
            __m256i c[4];
            transpose4(row + 4 * i + 8 * k * stride, stride, c);
            VF_UNROLL for (int j = 0; j < 4; j++) _mm256_storeu_si256((__m256i *)(to->w[i + j] + 8 * k), c[j]);
        }
}
/* Returns whether there is a NaN. */
PL_INLINE bool turn_f8(bool up, bool nan, const uint8_t *row, int64_t stride, int n, turned *to)
{
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < n / 4; i += 4) VF_UNROLL for (int k = 0; k < 2; k++)
        {
            __m256i c[4];
            transpose4(row + 4 * i + 8 * k * stride, stride, c);
            VF_UNROLL for (int j = 0; j < 4; j++)
            {
                const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(c[j], 8), 4), odd = _mm256_srai_epi16(c[j], 4);
                top = f8_top(top, c[j]);
                _mm256_storeu_si256((__m256i *)(to->w[i + j] + 8 * k), f8_words(up, nan, even));
                _mm256_storeu_si256((__m256i *)(to->w[8 + i + j] + 8 * k), f8_words(up, nan, odd));
            }
        }
    return f8_nan(top);
}

/* What dword i adds to the even (odd: 0) or odd (1) chains. */
PL_INLINE void key_dims(int rows, bool f8, int odd, int i, const float *q, int64_t dim, const turned *t, V *acc)
{
    VF_UNROLL for (int k = 0; k < 2; k++)
    {
        if (k && !f8) break;
        const uint32_t *w = t->w[f8 ? 8 * odd + i : i];
        const float *by = q + (f8 ? 4 * i + 2 * k : 2 * i) + odd;
        V x[PARTS];
        VF_UNROLL for (int h = 0; h < PARTS; h++) x[h] =
            (f8 ? k : odd) ? high_words(w + h * LANES) : low_words(w + h * LANES);
        VF_UNROLL for (int r = 0; r < rows; r++)
        {
            const V a = v_set(by[r * dim]);
            VF_UNROLL for (int h = 0; h < PARTS; h++) V_MAC(acc[r * PARTS + h], a, x[h]);
        }
    }
}
/* out[rows][16] += a step of n dims */
PL_INLINE void key_step(int rows, bool f8, int n, const float *q, int64_t dim, const turned *t, float *out)
{
    const int dwords = n / (f8 ? 4 : 2);
    V even[ROWS * PARTS], odd[ROWS * PARTS];
    VF_UNROLL for (int r = 0; r < rows * PARTS; r++) V_CLEAR(even[r]);
    if (rows < ROWS / 2) { /* both chains at once fit the registers */
        VF_UNROLL for (int r = 0; r < rows * PARTS; r++) V_CLEAR(odd[r]);
        for (int i = 0; i < dwords; i++) {
            key_dims(rows, f8, 0, i, q, dim, t, even);
            key_dims(rows, f8, 1, i, q, dim, t, odd);
        }
    } else {
        for (int i = 0; i < dwords; i++) key_dims(rows, f8, 0, i, q, dim, t, even);
        VF_UNROLL for (int r = 0; r < rows * PARTS; r++) V_SETTLE(even[r]);
        VF_UNROLL for (int r = 0; r < rows * PARTS; r++) V_CLEAR(odd[r]);
        for (int i = 0; i < dwords; i++) key_dims(rows, f8, 1, i, q, dim, t, odd);
    }
    VF_UNROLL for (int r = 0; r < rows * PARTS; r++)
    {
        float *to = out + r / PARTS * SCORE_STRIDE + r % PARTS * LANES;
        v_store(to, v_add(v_load(to), v_add(even[r], odd[r])));
    }
}

/* 32 rows of up to 64 words */
typedef struct line {
    uint16_t w[STEP][64];
} line;
/* `bytes` of each of n rows; returns whether there is a NaN. */
PL_INLINE bool copy_f8(bool up, bool nan, value_rows row, int64_t stride, int64_t n, int64_t bytes, line *to)
{
    __m128i top = _mm_setzero_si128();
    for (int half = 0; half < 2; half++) {
        const uint8_t *at = row.at[half];
        for (int64_t i = half * PL_LANES; i < pl_min(n, (half + 1) * PL_LANES); i++, at += stride)
            VF_UNROLL for (int64_t d = 0; d < 64; d += 16)
            {
                if (d >= bytes) break;
                const __m128i c = _mm_loadu_si128((const __m128i *)(at + d));
                const __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(c), 4);
                top = _mm_max_epu8(top, _mm_or_si128(c, _mm_set1_epi8((char)0x80)));
                _mm256_storeu_si256((__m256i *)(to->w[i] + d), f8_words(up, nan, w));
            }
    }
    return _mm_movemask_epi8(_mm_cmpeq_epi8(top, _mm_set1_epi8(-1))) != 0;
}
PL_INLINE void copy_bf16(value_rows row, int64_t stride, int64_t n, int64_t bytes, line *to)
{
    for (int half = 0; half < 2; half++) {
        const uint8_t *at = row.at[half];
        for (int64_t i = half * PL_LANES; i < pl_min(n, (half + 1) * PL_LANES); i++, at += stride)
            VF_UNROLL for (int64_t d = 0; d < 64; d += 32)
            {
                if (d >= bytes) break;
                _mm256_storeu_si256((__m256i *)(to->w[i] + d / 2), _mm256_loadu_si256((const __m256i *)(at + d)));
            }
    }
}
PL_INLINE void value_macs(int rows, const float *p, const uint16_t *w, V *acc)
{
    V x[PARTS];
    any_order(w, x);
    VF_UNROLL for (int r = 0; r < rows; r++)
    {
        const V a = v_set(p[r * SCORE_STRIDE]);
        VF_UNROLL for (int h = 0; h < PARTS; h++) V_MAC(acc[r * PARTS + h], a, x[h]);
    }
}
/* out[rows][16] += a step of n positions, from word c on */
PL_INLINE void value_step(int rows, int64_t n, const float *p, const line *v, int64_t c, float *out, int64_t out_stride)
{
    V even[ROWS * PARTS], odd[ROWS * PARTS];
    VF_UNROLL for (int r = 0; r < rows * PARTS; r++) V_CLEAR(even[r]);
    if (rows < ROWS / 2) {
        VF_UNROLL for (int r = 0; r < rows * PARTS; r++) V_CLEAR(odd[r]);
        for (int64_t k = 0; k < n - 1; k += 2) {
            value_macs(rows, p + k, v->w[k] + c, even);
            value_macs(rows, p + k + 1, v->w[k + 1] + c, odd);
        }
        if (n % 2) value_macs(rows, p + n - 1, v->w[n - 1] + c, even);
    } else {
        for (int64_t k = 0; k < n; k += 2) value_macs(rows, p + k, v->w[k] + c, even);
        VF_UNROLL for (int r = 0; r < rows * PARTS; r++) V_SETTLE(even[r]);
        VF_UNROLL for (int r = 0; r < rows * PARTS; r++) V_CLEAR(odd[r]);
        for (int64_t k = 1; k < n; k += 2) value_macs(rows, p + k, v->w[k] + c, odd);
    }
    VF_UNROLL for (int r = 0; r < rows * PARTS; r++) even[r] = v_add(even[r], odd[r]);
    VF_UNROLL for (int r = 0; r < rows; r++)
    {
        float *to = out + r * out_stride;
        vf_store(to, vf_add(vf_load(to), in_order(even + r * PARTS)));
    }
}

/* scores_of for `n` rows of one head, of which row_group go together. */
static void scores_direct(bool f8, bool up, int64_t n, const float *q, int64_t dim, const uint8_t *row,
                          const uint8_t *next, int64_t stride, float *out)
{
    const int64_t group = row_group(n);
    for (int64_t r = 0; r < n; r++) vf_store(out + r * SCORE_STRIDE, vf_set(0));
    for (int64_t d = 0; d < dim; d += STEP) {
        const int dims = (int)pl_min(STEP, dim - d);
        turned t;
        if (f8) {
            fetch(next + d / 64 * 64 + d / 32 % 2 * 8 * stride, stride, 8);
            if (up ? turn_f8(true, false, row + d, stride, dims, &t) : turn_f8(false, false, row + d, stride, dims, &t))
                turn_f8(up, true, row + d, stride, dims, &t);
        } else {
            fetch(next + 2 * d, stride, PL_LANES);
            turn_bf16(row + 2 * d, stride, dims, &t);
        }
        for (int64_t r = 0; r < n; r += group) {
            const int rows = (int)pl_min(group, n - r);
            const float *from = q + r * dim + d;
            float *to = out + r * SCORE_STRIDE;
            if (f8)
                FOR_ROWS(key_step, true, dims, from, dim, &t, to)
            else
                FOR_ROWS(key_step, false, dims, from, dim, &t, to)
        }
    }
}
/* values_of for m rows of one head and n positions */
static void values_direct(bool f8, bool up, int64_t m, int64_t n, const float *p, value_rows row, value_rows next,
                          int64_t stride, int64_t dim, float *out)
{
    const int64_t group = row_group(m), per = f8 ? 64 : 32; /* dims of a line */
    for (int64_t d = 0; d < dim; d += per) {
        const int64_t dims = pl_min(per, dim - d), bytes = f8 ? dims : 2 * dims;
        line v;
        if (!f8)
            copy_bf16(row, stride, n, bytes, &v);
        else if (up && bytes == 64 ? copy_f8(true, false, row, stride, n, 64, &v)
                                   : copy_f8(up, false, row, stride, n, bytes, &v))
            copy_f8(up, true, row, stride, n, bytes, &v);
        for (int64_t c = 0; c < dims; c += PL_LANES) {
            fetch(next.at[c / 16 % 2] + c / 32 * 8 * stride, stride, f8 ? 8 : 16);
            for (int64_t r = 0; r < m; r += group) {
                const int rows = (int)pl_min(group, m - r);
                float *to = out + r * dim + d + c;
                FOR_ROWS(value_step, n, p + r * SCORE_STRIDE, &v, c, to, dim)
            }
        }
        for (int i = 0; i < 2; i++) row.at[i] += bytes, next.at[i] += bytes;
    }
}
#else
#define WORDS false
#define WORDS_UP 1
#define WORDS_LIMIT 0
#define scores_direct(...) (void)0
#define values_direct(...) (void)0
#endif
