/* linear_int.h: the product of integers (linear_int.c) on vectors of LANES rows; included by linear_int_avx2.c and
 * linear_int_avx512.c, which give the vectors and the step: i_dot (one step of 4 k), and how many of them fit before
 * i_widen. Codes stay bytes as they lie; what is to be taken off them is taken off the sum, as that times the sum of x.
 * One kernel serves every number of tokens: four at a time share a unit's codes, which come from L2 after the first. */
#include "linear_decode.h"

/* What is taken off the bytes that are multiplied. A table of levels of e2m1 has 12 added, so that it is unsigned. */
PL_INLINE int32_t byte_offset(const int dtype)
{
    switch (pl_layout_table[dtype].form) {
    case PL_CODE_S8:
    case PL_CODE_IQ4:
        return SIGNED_OFFSET;
    case PL_CODE_E2M1:
        return 12;
    default:
        return pl_code_offset(dtype);
    }
}
/* Largest byte: of 8 k of 4 bits, say, sums of 16 products with |x| <= 127 fit 16 bits. 0: signed bytes. */
PL_INLINE int largest_byte(const int dtype)
{
    switch (pl_layout_table[dtype].form) {
    case PL_CODE_S8:
    case PL_CODE_IQ4:
        return 0;
    case PL_CODE_E2M1:
        return 24;
    default:
        return dtype == PL_Q6_K ? 63 : dtype == PL_Q5_0 || dtype == PL_Q5_1 || dtype == PL_Q5_K ? 31 : 15;
    }
}

/* Bytes of a row's k 0,2,1,3 (S8: 0,1,2,3) of octet j, or with second of 4,6,5,7. */
PL_INLINE I bytes_of(const int dtype, const uint8_t *code, const uint8_t *high, const int j, const bool second,
                     const int h)
{
    static const int8_t iq4[16] = PL_IQ4_LEVELS;
    static const int8_t e2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    const int form = pl_layout_table[dtype].form;
    if (form == PL_CODE_S8) return i_signed(i_load(code + j * 128 + second * 64 + h * LANES * 4));
    const I v = i_load(code + j * 64 + h * LANES * 4), q = i_and(second ? i_srl(v, 4) : v, i_set(0x0f0f0f0f));
    if (form == PL_CODE_E2M1) return i_lookup(e2m1, q);
    if (form == PL_CODE_IQ4) return i_signed(i_lookup(iq4, q));
    if (dtype == PL_Q5_0 || dtype == PL_Q5_1 || dtype == PL_Q5_K) { /* fifth bits: at the place of k, plus j */
        const I b = i_srl(i_load(high + h * LANES * 4), j);
        return i_or(q, i_and(second ? b : i_sll(b, 4), i_set(0x10101010)));
    }
    if (dtype == PL_Q6_K) {
        const I b = i_srl(i_load(high + j / 2 * 64 + h * LANES * 4), j % 2 * 2);
        return i_or(q, i_and(second ? b : i_sll(b, 4), i_set(0x30303030)));
    }
    return q;
}

enum { MAX_T = PL_INT_GROUP };
/* A group of a unit (half 0: the first 16 k or all 32, half 1: the last 16) into the sums of T tokens. */
PL_INLINE void group(const int dtype, const int planes, const int T, const int half, const uint8_t *block, int in,
                     const pl_int_x *x, V acc[MAX_T][VECS])
{
    const pl_layout *l = &pl_layout_table[dtype];
    const uint8_t *code = block + l->code + in * l->code_step, *high = block + l->high + in * l->high_step;
    const bool is_signed = largest_byte(dtype) == 0;
    const int fits = steps_that_fit(largest_byte(dtype)), n = pl_has_halves(dtype) ? 4 : 8;
    I wide[2][MAX_T][VECS], narrow[MAX_T][VECS];
    PL_UNROLL for (int plane = 0; plane < planes; plane++) PL_UNROLL for (int at = 0; at < n; at++)
    {
        const int quad = half * 4 + at;
        I q[VECS];
        PL_UNROLL for (int h = 0; h < VECS; h++) q[h] = bytes_of(dtype, code, high, quad / 2, quad % 2, h);
        PL_UNROLL for (int t = 0; t < T; t++)
        {
            const I xi = i_set((int32_t)x->q[(plane * 8 + quad) * T + t]);
            PL_UNROLL for (int h = 0; h < VECS; h++)
            {
                narrow[t][h] =
                    at % fits == 0 ? i_dot_first(is_signed, q[h], xi) : i_dot(is_signed, narrow[t][h], q[h], xi);
                if ((at + 1) % fits && at + 1 < n) continue;
                const I s = i_widen(narrow[t][h]);
                wide[plane][t][h] = at < fits ? s : i_add(wide[plane][t][h], s);
            }
        }
    }
    PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        const V d = scale_of(dtype, block, in, half, h);
        PL_UNROLL for (int t = 0; t < T; t++)
        {
            I s = wide[0][t][h];
            if (planes == 2) s = i_add(i_sll(s, 7), wide[1][t][h]);
            if (byte_offset(dtype)) s = i_sub(s, i_set((int32_t)x->sum[half * T + t]));
            acc[t][h] = v_fma(v_of_int(s), v_mul(d, v_set(x->scale[t])), acc[t][h]);
        }
        if (!pl_int_minimum(dtype)) continue;
        const V m = min_of(dtype, block, in, h);
        PL_UNROLL for (int t = 0; t < T; t++) acc[t][h] = v_fma(m, v_cast(i_set((int32_t)x->sum[t])), acc[t][h]);
    }
}

/* T tokens from t0 on by block row b. */
PL_INLINE void product(const int dtype, const int planes, const int T, const pl_int_product *p, int64_t b, int64_t t0)
{
    enum { AHEAD = 4096 };
    const pl_layout *l = &pl_layout_table[dtype];
    const int per = l->k / UNIT, step = l->bytes / per;
    pl_int_x x = {p->x.q + t0 * p->units * 8 * planes, p->x.scale + t0 * p->units, p->x.sum + t0 * p->units * 2};
    const uint8_t *block = p->w + b * p->w_bytes;
    V acc[MAX_T][VECS];
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) acc[t][h] = v_zero();
    for (int64_t u = 0; u < p->units; block += l->bytes)
        for (int in = 0; in < per && u < p->units; in++, u++) {
            PL_UNROLL for (int j = 0; j < step; j += 64)
                _mm_prefetch((const char *)block + in * step + AHEAD + j, _MM_HINT_T0);
            group(dtype, planes, T, 0, block, in, &x, acc);
            if (pl_has_halves(dtype)) group(dtype, planes, T, 1, block, in, &x, acc);
            x.q += 8 * planes * T;
            x.scale += T;
            x.sum += 2 * T;
        }
    PL_UNROLL for (int t = 0; t < T; t++) put_rows(p->y + (t0 + t) * p->ldy, p->bias, p->n, b * ROWS, acc[t]);
}

#define CASES(F, PLANES, T)                   \
    case T:                                   \
        product(PL_##F, PLANES, T, p, b, t0); \
        break;
#define RUN_PLANES(F, PLANES)                                                                                          \
    static void run_##F##_##PLANES(const pl_int_product *p, int64_t b0, int64_t b1)                                    \
    {                                                                                                                  \
        for (int64_t b = b0; b < b1; b++)                                                                              \
            for (int64_t t0 = 0; t0 < p->m; t0 += PL_INT_GROUP) switch (pl_min(PL_INT_GROUP, p->m - t0)) {             \
                    CASES(F, PLANES, 1)                                                                                \
                    CASES(F, PLANES, 2) CASES(F, PLANES, 3) default : product(PL_##F, PLANES, PL_INT_GROUP, p, b, t0); \
                }                                                                                                      \
    }
#define RUN(F) RUN_PLANES(F, 1) RUN_PLANES(F, 2)
PL_INT_FORMATS(RUN)

static void run(const pl_int_product *p, int64_t b0, int64_t b1)
{
    switch (p->dtype) {
#define CASE(F)                                                  \
    case PL_##F:                                                 \
        (p->planes == 1 ? run_##F##_1 : run_##F##_2)(p, b0, b1); \
        return;
        PL_INT_FORMATS(CASE)
#undef CASE
    default:
        PL_ASSERT(false);
    }
}

/* The integers of a unit, and its scale; vectors of 8 on every path. */
PL_INLINE float quantise(const float *x, const float limit, int32_t v[UNIT])
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 a[4];
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(a[i]), magnitude));
    }
    __m128i t = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0xb1));
    const uint32_t bits = (uint32_t)_mm_cvtsi128_si32(t);
    if (bits >= 0x7f800000 || bits < pl_f32_bits(PL_TINY_X)) {
        memset(v, 0, UNIT * sizeof *v);
        return bits >= 0x7f800000 ? pl_bits_f32(0x7fc00000) : 0;
    }
    const __m256 inverse = _mm256_set1_ps(limit / pl_bits_f32(bits));
    for (int i = 0; i < 4; i++)
        _mm256_storeu_si256((__m256i *)(void *)(v + 8 * i), _mm256_cvtps_epi32(_mm256_mul_ps(a[i], inverse)));
    return pl_bits_f32(bits) / limit;
}

/* Tokens t0..t1 of x. */
static void prepare(const pl_int_product *p, int64_t t0, int64_t t1)
{
    static const int in_order[4] = {0, 1, 2, 3}, nibbles[4] = {0, 2, 1, 3};
    const int32_t form = pl_layout_table[p->dtype].form;
    const int *order = form == PL_CODE_S8 ? in_order : nibbles;
    const bool halves = pl_has_halves(p->dtype), min = pl_int_minimum(p->dtype);
    const int32_t off = byte_offset(p->dtype);
    for (int64_t token = t0; token < t1; token++) {
        const int64_t first = token / PL_INT_GROUP * PL_INT_GROUP, n = pl_min(PL_INT_GROUP, p->m - first);
        const int64_t t = token - first;
        uint32_t *q = p->x.q + first * p->units * 8 * p->planes + t;
        float *scale = p->x.scale + first * p->units + t;
        uint32_t *sum = p->x.sum + first * p->units * 2 + t;
        for (int64_t u = 0; u < p->units; u++, q += 8 * p->planes * n, scale += n, sum += 2 * n) {
            const int64_t left = p->k - u * UNIT;
            const float *src = p->src + token * p->src_ld + u * UNIT;
            float part[UNIT];
            int32_t v[UNIT], s[2] = {0, 0};
            if (left < UNIT) {
                memset(part, 0, sizeof part);
                memcpy(part, src, (size_t)left * 4);
                src = part;
            }
            const float d = quantise(src, p->planes == 2 ? 16256 : 127, v);
            *scale = form == PL_CODE_E2M1 ? d * 0.5f : d;
            for (int i = 0; i < 16; i++) {
                s[0] += v[i];
                s[1] += v[16 + i];
            }
            if (!halves) s[0] += s[1];
            for (int i = 0; i < 2; i++) sum[i * n] = min ? pl_f32_bits(d * (float)s[i]) : (uint32_t)(s[i] * off);
            for (int i = 0; i < 8; i++) {
                uint32_t high = 0, low = 0;
                for (int j = 0; j < 4; j++) {
                    const int32_t a = v[4 * i + order[j]], h = (a + 64) >> 7;
                    if (p->planes == 1)
                        high |= (uint32_t)(a & 255) << 8 * j;
                    else
                        high |= (uint32_t)(h & 255) << 8 * j, low |= (uint32_t)((a - 128 * h) & 255) << 8 * j;
                }
                q[i * n] = high;
                if (p->planes == 2) q[(8 + i) * n] = low;
            }
        }
    }
}
