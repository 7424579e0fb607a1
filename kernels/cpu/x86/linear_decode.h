#ifndef PL_LINEAR_DECODE_H
#define PL_LINEAR_DECODE_H
/* From packed weights to floats, LANES rows at a time; include vec8.h or vec16.h before.
 *
 * Codes become floats without being shifted into place: a code at bit s of a dword is masked and converted as
 * code * 2^s, and x of that k is stored as x * 2^-s. Both are exact, so the product is the same number. */
#include "linear.h"

enum { VECS = ROWS / LANES };

/* Power of two that x of place k in a unit is divided by. */
PL_INLINE int x_shift(const int dtype, int k)
{
    switch (pl_layout_table[dtype].form) {
    case PL_CODE_S8:
    case PL_CODE_IQ4:
        return 24;
    case PL_CODE_E2M1: /* levels are doubled */
        return 25;
    case PL_CODE_NIBBLE:
        return (k & 2) * 4 + (k & 4);
    default:
        return 0;
    }
}

/* Bytes of 8 k in a unit: kernels loop over these octets, and take pairs 0..3 of one. */
PL_INLINE int octet_bytes(const int dtype)
{
    const int form = pl_layout_table[dtype].form;
    return form == PL_CODE_F32                           ? 512
           : form == PL_CODE_F16 || form == PL_CODE_BF16 ? 256
           : form == PL_CODE_F8 || form == PL_CODE_S8    ? 128
                                                         : 64;
}

/* Pair i of octet j of a unit, LANES rows from row h * LANES on; code is the octet's, high the unit's. */
PL_INLINE void pair(const int dtype, const uint8_t *code, const uint8_t *high, int j, const int i, const int h, V *even,
                    V *odd)
{
    const int s = (i & 1) * 8 + (i & 2) * 2;
    const int form = pl_layout_table[dtype].form;
    switch (form) {
    case PL_CODE_F32:
        *even = v_load((const float *)(const void *)(code + i * 128) + h * LANES);
        *odd = v_load((const float *)(const void *)(code + i * 128 + 64) + h * LANES);
        return;
    case PL_CODE_F16:
        *even = v_of_half(code + i * 64 + h * LANES * 2);
        *odd = v_of_half(code + i * 64 + 32 + h * LANES * 2);
        return;
    case PL_CODE_BF16: {
        const I v = i_load(code + i * 64 + h * LANES * 4);
        *even = v_cast(i_sll(v, 16));
        *odd = v_cast(i_and(v, i_set((int32_t)0xffff0000)));
        return;
    }
    case PL_CODE_F8: {
        V v[4];
        v_of_f8(code + i / 2 * 64 + h * LANES * 4, v);
        *even = v[i % 2 * 2];
        *odd = v[i % 2 * 2 + 1];
        return;
    }
    case PL_CODE_S8: { /* signed bytes at the top of a dword */
        const I v = i_load(code + i / 2 * 64 + h * LANES * 4), top = i_set((int32_t)0xff000000);
        *even = v_of_int(i % 2 ? i_and(i_sll(v, 8), top) : i_sll(v, 24));
        *odd = v_of_int(i_and(i % 2 ? v : i_sll(v, 16), top));
        return;
    }
    case PL_CODE_IQ4:
    case PL_CODE_E2M1: { /* levels as signed bytes: k 0, 2, 1, 3 of the octet's first or last four, then as S8 */
        static const int8_t iq4[16] = PL_IQ4_LEVELS, e2m1[16] = PL_E2M1_LEVELS;
        const I low = i_set(0x0f0f0f0f), top = i_set((int32_t)0xff000000), v = i_load(code + h * LANES * 4);
        const I q = i_lookup(form == PL_CODE_IQ4 ? iq4 : e2m1, i_and(i < 2 ? v : i_srl(v, 4), low));
        *even = v_of_int(i % 2 ? i_and(i_sll(q, 16), top) : i_sll(q, 24));
        *odd = v_of_int(i_and(i % 2 ? q : i_sll(q, 8), top));
        return;
    }
    default:
        break;
    }
    const I v = i_load(code + h * LANES * 4), u = i_srl(v, 16), mask = i_set(15 << s);
    I e = i_and(v, mask), o = i_and(u, mask);
    if (dtype == PL_Q5_0 || dtype == PL_Q5_1 || dtype == PL_Q5_K) {
        const I b = i_load(high + h * LANES * 4), bit = i_set(16 << s);
        e = i_or(e, i_and(i_sll(b, 4 - j), bit));
        o = i_or(o, i_and(i_srl(b, 12 + j), bit));
    }
    if (dtype == PL_Q6_K) {
        const I b = i_load(high + j / 2 * 64 + h * LANES * 4), bits = i_set(48 << s);
        e = i_or(e, i_and(i_sll(b, 4 - j % 2 * 2), bits));
        o = i_or(o, i_and(i_srl(b, 12 + j % 2 * 2), bits));
    }
    const int offset = pl_layout_table[dtype].offset;
    if (offset) { /* as the low bits of 2^23 + code * 2^s */
        const I magic = i_set(0x4b000000);
        const V zero = v_set(8388608.0f + (float)(offset << s));
        *even = v_sub(v_cast(i_or(e, magic)), zero);
        *odd = v_sub(v_cast(i_or(o, magic)), zero);
    } else {
        *even = v_of_int(e);
        *odd = v_of_int(o);
    }
}

PL_INLINE V nvfp4_scale(V s,
                        V tensor) /* divided by the magnitude of what is negative; a denormal is zero, not negative */
{
    const V product = v_mul(s, tensor), by = v_drop_tiny(tensor, 0x1p-126f);
    if (!v_any_negative(by)) return product;
    return v_if_negative(by, v_div(s, v_sub(v_zero(), by)), product);
}
/* Scale of the first (half 0) or last 16 k of a unit, and its minimum, for LANES rows. */
PL_INLINE V scale_of(const int dtype, const uint8_t *block, int in, int half, int h)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int g = in / l->group;
    const uint8_t *d = block + l->d + g * l->d_step, *sc = block + l->sc + g * l->sc_step + h * LANES;
    switch (l->scale) {
    case PL_SCALE_HALF:
        return v_of_half(d + h * LANES * 2);
    case PL_SCALE_HALF_U:
        return v_mul(v_of_half(d + h * LANES * 2), v_of_u8(sc));
    case PL_SCALE_HALF_S:
        return v_mul(v_of_half(d + h * LANES * 2), v_of_s8(sc + half * 16));
    case PL_SCALE_BF16:
        return v_of_bf16(d + h * LANES * 2);
    case PL_SCALE_FLOAT:
        return v_load((const float *)(const void *)d + h * LANES);
    case PL_SCALE_NVFP4:
        return nvfp4_scale(v_of_e4m3(sc + half * 16), v_load((const float *)(const void *)d + h * LANES));
    case PL_SCALE_E8M0: /* a subnormal is 0 in products */
        return v_cast(i_sll(i_of_u8(sc), 23));
    default:
        return v_set(1);
    }
}
#ifdef PL_VEC8_H /* 8 lanes */
/* Where denormal factors cost nothing (pl_cpu_free_denormals): a code of e4m3, shifted into place in the upper half of a
 * float, is 2^-120 of its value, one of e2m1 2^-126, and a subnormal code is a denormal. x is QUICK_UP as large then, and
 * steps are multiplied by what is missing. There are no NaN codes (pack.c). */
#define QUICK 1
#define QUICK_UP 0x1p112f
#define QUICK_LIMIT 0x1p15f /* of |x| */
#define QUICK_FORMATS(X) X(F8) X(F8G32) X(F8G64) X(F8G128) X(MXFP4) X(NVFP4)
PL_INLINE V quick_missing(const int dtype)
{
    return v_set(pl_layout_table[dtype].form == PL_CODE_F8 ? 0x1p8f : 0x1p14f);
}
PL_INLINE void quick_floats(I words, V x[2]) /* lower words, upper words */
{
    x[0] = v_cast(i_sll(words, 16));
    x[1] = v_cast(i_and(words, i_set((int32_t)0xffff0000)));
}
/* Pair i of an octet, as `pair` gives it, for all 16 rows; of e4m3 the even ones are in vector 0, the odd ones in 1. */
PL_INLINE void quick_pair(const int dtype, const uint8_t *code, const int i, V even[VECS], V odd[VECS])
{
    if (pl_layout_table[dtype].form == PL_CODE_F8) {
        const I a = i_load(code + i / 2 * 64), b = i_load(code + i / 2 * 64 + 32);
        const I c = i % 2 ? _mm256_unpackhi_epi64(a, b) : _mm256_unpacklo_epi64(a, b);
        const I bits = _mm256_set1_epi16((int16_t)0x87f0);
        quick_floats(i_and(_mm256_srai_epi16(_mm256_slli_epi16(c, 8), 4), bits), even);
        quick_floats(i_and(_mm256_srai_epi16(c, 4), bits), odd);
        return;
    }
    PL_UNROLL for (int h = 0; h < VECS; h++) /* even k are in the lower words, odd ones in the upper */
    {
        const I c = _mm256_slli_epi16(i_load(code + h * LANES * 4), 12 - ((i & 1) * 8 + (i & 2) * 2));
        V x[2];
        quick_floats(i_and(_mm256_srai_epi16(c, 6), _mm256_set1_epi16((int16_t)0x81c0)), x);
        even[h] = x[0];
        odd[h] = x[1];
    }
}
PL_INLINE void quick_rows(const int dtype, V v[VECS]) /* to rows 0..7, 8..15 */
{
    if (pl_layout_table[dtype].form != PL_CODE_F8) return;
    const V lo = _mm256_unpacklo_ps(v[0], v[1]), hi = _mm256_unpackhi_ps(v[0], v[1]);
    v[0] = lo;
    v[1] = hi;
}
/* A float that is a denormal counts as 0, with its sign, also while denormals are kept. */
PL_INLINE V quick_flush(V a)
{
    const V sign = v_cast(i_and(i_cast(a), i_set((int32_t)0x80000000)));
    return v_cast(i_or(i_cast(v_drop_tiny(a, 0x1p-126f)), i_cast(sign)));
}
PL_INLINE V quick_scale(const int dtype, const uint8_t *block, int in, int half, int h)
{
    const pl_layout *l = &pl_layout_table[dtype];
    if (l->scale != PL_SCALE_NVFP4) return quick_flush(scale_of(dtype, block, in, half, h));
    const V tensor = quick_flush(v_load((const float *)(const void *)(block + l->d) + h * LANES));
    return nvfp4_scale(v_of_e4m3(block + l->sc + in * l->sc_step + h * LANES + half * 16), tensor);
}
#else
#define QUICK 0
#endif

PL_INLINE V min_of(const int dtype, const uint8_t *block, int in, int h)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int g = in / l->group;
    if (l->min == PL_MIN_EIGHT) return v_mul(scale_of(dtype, block, in, 0, h), v_set(-8));
    const V m = v_of_half(block + l->m + g * l->m_step + h * LANES * 2);
    const uint8_t *mn = block + l->mn + g * l->mn_step + h * LANES;
    return l->min == PL_MIN_HALF ? m : v_mul(m, l->min == PL_MIN_ZERO ? v_of_s8(mn) : v_of_u8(mn));
}

/* What x of the places of a unit is multiplied by. */
PL_INLINE void place_factors(const pl_product *p, float by[UNIT])
{
    for (int k = 0; k < UNIT; k++) {
        by[k] = pl_bits_f32((uint32_t)(127 - x_shift(p->dtype, k)) << 23);
#if QUICK
        if (p->quick) by[k] = QUICK_UP;
#endif
    }
}
/* Unit u of a token of x: rounded, summed if the format has minima, divided by the powers of two of its places. */
PL_INLINE void round_unit(const pl_product *p, const float by[UNIT], int64_t t, int64_t u, float v[UNIT], float *sum)
{
    const float *src = p->src + t * p->src_ld + u * UNIT;
    if ((u + 1) * UNIT > p->k) {
        memset(v, 0, UNIT * 4);
        memcpy(v, src, (size_t)(p->k - u * UNIT) * 4);
    } else {
        memcpy(v, src, UNIT * 4);
    }
    PL_UNROLL for (int k = 0; k < UNIT; k += LANES)
    {
        V a = v_load(v + k);
        if (p->act == PL_ACT_BF16) a = v_round_bf16(a);
        v_store(v + k, v_drop_tiny(a, PL_TINY_X));
    }
    *sum = 0;
    if (pl_has_minimum(p->dtype)) {
        float e = 0, o = 0;
        PL_UNROLL for (int k = 0; k < UNIT; k += 2)
        {
            e += v[k];
            o += v[k + 1];
        }
        *sum = e + o;
    }
    if (pl_has_scale(p->dtype) || p->quick)
        PL_UNROLL for (int k = 0; k < UNIT; k += LANES) v_store(v + k, v_mul(v_load(v + k), v_load(by + k)));
}

/* Rows n0..n0+15 of a token's y, which has n: acc, plus the bias. */
PL_INLINE void put_rows(float *y, const float *bias, int64_t n, int64_t n0, const V acc[VECS])
{
    if (n0 + ROWS <= n) {
        PL_UNROLL for (int h = 0; h < VECS; h++)
            v_store(y + n0 + h * LANES, bias ? v_add(acc[h], v_load(bias + n0 + h * LANES)) : acc[h]);
        return;
    }
    float row[ROWS];
    PL_UNROLL for (int h = 0; h < VECS; h++) v_store(row + h * LANES, acc[h]);
    for (int64_t i = n0; i < n; i++) y[i] = bias ? row[i - n0] + bias[i] : row[i - n0];
}
PL_INLINE void put_y(const pl_product *p, int64_t t, int64_t n0, const V acc[VECS])
{
    put_rows(p->y + t * p->ldy, p->bias, p->n, n0, acc);
}
#endif
