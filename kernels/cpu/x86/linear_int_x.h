#ifndef PL_LINEAR_INT_X_H
#define PL_LINEAR_INT_X_H
/* linear_int_x.h: what products of integers (linear_int.c) have in common on vectors and on tiles: codes as bytes, and x as
 * integers. The includer gives the vectors, and
 *     SIGNED_BYTES               all bytes of w are signed, with nothing to be taken off; else
 *     SIGNED_OFFSET, i_signed    how signed codes are multiplied: as they are, or with an offset that makes them unsigned
 *     X_TOKENS, X_TILES          tokens of a group of x; a tile has them in rows, else they lie side by side */
#include "linear_decode.h"

/* What is taken off the bytes that are multiplied. A table of levels of e2m1 has 12 added, so that it is unsigned. */
PL_INLINE int32_t byte_offset(const int dtype)
{
    if (SIGNED_BYTES) return 0;
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
/* Codes as bytes that lie in four bits each, and some more in other places. */
PL_INLINE I nibbles_of(const int dtype, const uint8_t *code, const uint8_t *high, const int j, const bool second,
                       const int h)
{
    const I v = i_load(code + j * 64 + h * LANES * 4), q = i_and(second ? i_srl(v, 4) : v, i_set(0x0f0f0f0f));
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
/* Bytes of a row's k 0,2,1,3 (S8: 0,1,2,3) of octet j, or with second of 4,6,5,7. */
PL_INLINE I bytes_of(const int dtype, const uint8_t *code, const uint8_t *high, const int j, const bool second,
                     const int h)
{
    static const int8_t iq4[16] = PL_IQ4_LEVELS, e2m1[16] = PL_E2M1_LEVELS;
    static const int8_t e2m1_up[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    const int form = pl_layout_table[dtype].form;
    if (form == PL_CODE_S8) return i_signed(i_load(code + j * 128 + second * 64 + h * LANES * 4));
    const I q = nibbles_of(dtype, code, high, j, second, h);
    if (form == PL_CODE_E2M1) return i_lookup(SIGNED_BYTES ? e2m1 : e2m1_up, q);
    if (form == PL_CODE_IQ4) return i_signed(i_lookup(iq4, q));
    return SIGNED_BYTES && pl_code_offset(dtype) ? i_sub_bytes(q, (int8_t)pl_code_offset(dtype)) : q;
}

/* The integers of a unit, and its scale. */
PL_INLINE float quantise(const float *x, const float limit, I v[UNIT / LANES])
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
        PL_UNROLL for (int i = 0; i < UNIT / LANES; i++) v[i] = i_set(0);
        return bits >= 0x7f800000 ? pl_bits_f32(0x7fc00000) : 0;
    }
    const V inverse = v_set(limit / pl_bits_f32(bits));
    PL_UNROLL for (int i = 0; i < UNIT / LANES; i++) v[i] = i_of_v(v_mul(a[i], inverse));
    return pl_bits_f32(bits) / limit;
}

/* Where a token's x is written: as in pl_int_x, for a group of n tokens. */
typedef struct place {
    uint32_t *q, *sum;
    float *scale;
    int64_t n, quad; /* quad: from one 4 k to the next */
} place;

/* The bytes of a plane: the low ones of v, in the order of the format's codes. */
PL_INLINE void put_plane(const bool in_order, const I v[UNIT / LANES], uint32_t *q, int64_t quad)
{
    _Alignas(64) uint8_t b[64] = {0};
    PL_UNROLL for (int i = 0; i < UNIT / LANES; i++) i_put_bytes(b + i * LANES, v[i]);
    if (!in_order) { /* 0 2 1 3 */
        const I a = i_load(b), second = i_and(i_srl(a, 8), i_set(0xff00)), third = i_and(i_sll(a, 8), i_set(0xff0000));
        i_store(b, i_or(i_and(a, i_set((int32_t)0xff0000ff)), i_or(second, third)));
    }
    if (X_TILES) {
        memcpy(q, b, UNIT);
        return;
    }
    PL_UNROLL for (int i = 0; i < UNIT / 4; i++) memcpy(q + i * quad, b + 4 * i, 4);
}

/* Sums of the first 16 and of the last 16. */
PL_INLINE void sums_of(const I v[UNIT / LANES], int32_t s[2])
{
    PL_UNROLL for (int half = 0; half < 2; half++)
    {
        I a = v[half * UNIT / LANES / 2];
        PL_UNROLL for (int i = 1; i < UNIT / LANES / 2; i++) a = i_add(a, v[half * UNIT / LANES / 2 + i]);
        s[half] = i_total(a);
    }
}

/* A unit of x, `left` k of it. */
PL_INLINE void put_unit(const int planes, const pl_int_product *p, const float *src, int64_t left, const place *to)
{
    const int32_t form = pl_layout_table[p->dtype].form, off = byte_offset(p->dtype);
    const bool in_order = form == PL_CODE_S8;
    float part[UNIT];
    I v[UNIT / LANES], lo[UNIT / LANES];
    if (left < UNIT) {
        memset(part, 0, sizeof part);
        memcpy(part, src, (size_t)left * 4);
        src = part;
    }
    const float d = quantise(src, planes == 2 ? 16256 : 127, v);
    *to->scale = form == PL_CODE_E2M1 ? d * 0.5f : d;
    if (off || pl_int_minimum(p->dtype)) {
        int32_t s[2];
        sums_of(v, s);
        if (!pl_has_halves(p->dtype)) s[0] += s[1];
        for (int i = 0; i < 2; i++)
            to->sum[i * to->n] = pl_int_minimum(p->dtype) ? pl_f32_bits(d * (float)s[i]) : (uint32_t)(s[i] * -off);
    }
    if (planes == 1) {
        put_plane(in_order, v, to->q, to->quad);
        return;
    }
    PL_UNROLL for (int i = 0; i < UNIT / LANES; i++)
    {
        const I hi = i_srl(i_add(v[i], i_set(64)), 7); /* its low byte is that of the quotient, whatever the sign */
        lo[i] = i_sub(v[i], i_sll(hi, 7));
        v[i] = hi;
    }
    put_plane(in_order, v, to->q, to->quad);
    put_plane(in_order, lo, to->q + 8 * to->n, to->quad);
}

/* Tokens that the last group of x has when so many are left: some of them are 0, where there is no kernel for just these. */
PL_INLINE int64_t group_of(int64_t left)
{
    if (X_TILES || left >= X_TOKENS) return X_TOKENS;
    if (X_TOKENS == 4 || left < 3) return left;
    return left <= 4 ? 4 : X_TOKENS;
}

/* Tokens t0..t1 of x. */
PL_INLINE void prepare_planes(const int planes, const pl_int_product *p, int64_t t0, int64_t t1)
{
    static const float none[UNIT];
    const int64_t last = p->m - (p->m - 1) % X_TOKENS - 1;
    if (t1 == p->m) t1 = last + group_of(p->m - last);
    for (int64_t token = t0; token < t1; token++) {
        const int64_t first = token / X_TOKENS * X_TOKENS, t = token - first;
        const int64_t n = group_of(p->m - first);
        place to = {.q = p->x.q + first * p->units * 8 * planes + (X_TILES ? 8 * t : t),
                    .sum = p->x.sum + first * p->units * 2 + t,
                    .scale = p->x.scale + first * p->units + t,
                    .n = n,
                    .quad = X_TILES ? 1 : n};
        const float *src = token < p->m ? p->src + token * p->src_ld : NULL;
        for (int64_t u = 0; u < p->units; u++) {
            put_unit(planes, p, src ? src + u * UNIT : none, src ? p->k - u * UNIT : UNIT, &to);
            to.q += 8 * planes * n;
            to.scale += n;
            to.sum += 2 * n;
        }
    }
}
static void prepare(const pl_int_product *p, int64_t t0, int64_t t1)
{
    if (p->planes == 1)
        prepare_planes(1, p, t0, t1);
    else
        prepare_planes(2, p, t0, t1);
}
#endif
