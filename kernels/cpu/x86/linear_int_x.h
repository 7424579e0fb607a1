#ifndef PL_LINEAR_INT_X_H
#define PL_LINEAR_INT_X_H
/* linear_int_x.h: what products of integers (linear_int.c) have in common on vectors and on tiles: codes as bytes, and x as
 * integers. The includer gives the vectors, and
 *     SIGNED_OFFSET, i_signed    how signed codes are multiplied: as they are, or with an offset that makes them unsigned
 *     X_TOKENS, X_TILES          tokens of a group of x; a tile has them in rows, else they lie side by side */
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

/* The integers of a unit, and its scale. */
PL_INLINE float quantise(const float *x, const float limit, int32_t v[UNIT])
{
    V a[UNIT / LANES];
    I top = i_set(0);
    PL_UNROLL for (int i = 0; i < UNIT / LANES; i++)
    {
        a[i] = v_load(x + LANES * i);
        top = i_max(top, i_and(i_cast(a[i]), i_set(0x7fffffff)));
    }
    const uint32_t bits = (uint32_t)i_top(top);
    if (bits >= 0x7f800000 || bits < pl_f32_bits(PL_TINY_X)) {
        memset(v, 0, UNIT * sizeof *v);
        return bits >= 0x7f800000 ? pl_bits_f32(0x7fc00000) : 0;
    }
    const V inverse = v_set(limit / pl_bits_f32(bits));
    PL_UNROLL for (int i = 0; i < UNIT / LANES; i++) i_store(v + LANES * i, i_of_v(v_mul(a[i], inverse)));
    return pl_bits_f32(bits) / limit;
}

/* Where a token's x is written: as in pl_int_x, for a group of n tokens. */
typedef struct place {
    uint32_t *q, *sum;
    float *scale;
    int64_t n, quad; /* quad: from one 4 k to the next */
} place;

/* A unit of x, `left` k of it. */
PL_INLINE void put_unit(const pl_int_product *p, const float *src, int64_t left, const place *to)
{
    static const int in_order[4] = {0, 1, 2, 3}, nibbles[4] = {0, 2, 1, 3};
    const int32_t form = pl_layout_table[p->dtype].form, off = byte_offset(p->dtype);
    const int *order = form == PL_CODE_S8 ? in_order : nibbles;
    float part[UNIT];
    int32_t v[UNIT], s[2] = {0, 0};
    if (left < UNIT) {
        memset(part, 0, sizeof part);
        memcpy(part, src, (size_t)left * 4);
        src = part;
    }
    const float d = quantise(src, p->planes == 2 ? 16256 : 127, v);
    *to->scale = form == PL_CODE_E2M1 ? d * 0.5f : d;
    for (int i = 0; i < 16; i++) {
        s[0] += v[i];
        s[1] += v[16 + i];
    }
    if (!pl_has_halves(p->dtype)) s[0] += s[1];
    for (int i = 0; i < 2; i++)
        to->sum[i * to->n] = pl_int_minimum(p->dtype) ? pl_f32_bits(d * (float)s[i]) : (uint32_t)(s[i] * off);
    for (int i = 0; i < 8; i++) {
        uint32_t high = 0, low = 0;
        for (int j = 0; j < 4; j++) {
            const int32_t a = v[4 * i + order[j]], h = (a + 64) >> 7;
            if (p->planes == 1)
                high |= (uint32_t)(a & 255) << 8 * j;
            else
                high |= (uint32_t)(h & 255) << 8 * j, low |= (uint32_t)((a - 128 * h) & 255) << 8 * j;
        }
        to->q[i * to->quad] = high;
        if (p->planes == 2) to->q[8 * to->n + i * to->quad] = low;
    }
}

/* Tokens t0..t1 of x. */
static void prepare(const pl_int_product *p, int64_t t0, int64_t t1)
{
    for (int64_t token = t0; token < t1; token++) {
        const int64_t first = token / X_TOKENS * X_TOKENS, t = token - first;
        const int64_t n = X_TILES ? X_TOKENS : pl_min(X_TOKENS, p->m - first);
        place to = {.q = p->x.q + first * p->units * 8 * p->planes + (X_TILES ? 8 * t : t),
                    .sum = p->x.sum + first * p->units * 2 + t,
                    .scale = p->x.scale + first * p->units + t,
                    .n = n,
                    .quad = X_TILES ? 1 : n};
        const float *src = p->src + token * p->src_ld;
        for (int64_t u = 0; u < p->units; u++) {
            put_unit(p, src + u * UNIT, p->k - u * UNIT, &to);
            to.q += 8 * p->planes * n;
            to.scale += n;
            to.sum += 2 * n;
        }
    }
}
#endif
