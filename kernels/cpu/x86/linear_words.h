#ifndef PL_LINEAR_WORDS_H
#define PL_LINEAR_WORDS_H
/* From packed weights to tiles of bf16, [16 pairs of k][16 rows of w][2]. Codes are looked up, two of a row at a time: a
 * table holds the bf16 of every code, or the two bytes of it. */
#include "linear_decode.h"

/* bf16 of an integer of at most seven bits and a sign. */
#define WORD_OF_SIZE(n)            \
    ((n) >= 64   ? 0x4200 + (n)*2  \
     : (n) >= 32 ? 0x4180 + (n)*4  \
     : (n) >= 16 ? 0x4100 + (n)*8  \
     : (n) >= 8  ? 0x4080 + (n)*16 \
     : (n) >= 4  ? 0x4000 + (n)*32 \
     : (n) >= 2  ? 0x3f80 + (n)*64 \
     : (n) == 1  ? 0x3f80          \
                 : 0)
#define WORD(n) ((n) < 0 ? 0x8000 | WORD_OF_SIZE(-(n)) : WORD_OF_SIZE(n))
#define HALF_WORD(n) (WORD(n) - ((n) ? 0x80 : 0))
/* bf16 of a code of e4m3 without its sign: normal ones have their exponent moved */
#define E4M3_WORD(c) \
    ((c) >= 8 ? 0x3c00 + (c)*16 : (c) >= 4 ? 0x3b80 + (c)*32 : (c) >= 2 ? 0x3b00 + (c)*64 : (c) == 1 ? 0x3b00 : 0)
#define FOUR(W, n) W(n), W((n) + 1), W((n) + 2), W((n) + 3)
#define SIXTEEN(W, n) FOUR(W, n), FOUR(W, (n) + 4), FOUR(W, (n) + 8), FOUR(W, (n) + 12)
#define ALL_CODES(W)                                                                                               \
    SIXTEEN(W, 0), SIXTEEN(W, 16), SIXTEEN(W, 32), SIXTEEN(W, 48), SIXTEEN(W, 64), SIXTEEN(W, 80), SIXTEEN(W, 96), \
        SIXTEEN(W, 112)
#define E4M3_LOW(c) (E4M3_WORD(c) & 255)
#define E4M3_HIGH(c) (E4M3_WORD(c) >> 8)
/* clang-format off */
#define IQ4_WORDS \
    WORD(-127), WORD(-104), WORD(-83), WORD(-65), WORD(-49), WORD(-35), WORD(-22), WORD(-10), \
    WORD(1), WORD(13), WORD(25), WORD(38), WORD(53), WORD(69), WORD(89), WORD(113)
#define E2M1_WORDS \
    HALF_WORD(0), HALF_WORD(1), HALF_WORD(2), HALF_WORD(3), HALF_WORD(4), HALF_WORD(6), HALF_WORD(8), HALF_WORD(12), \
    HALF_WORD(0), HALF_WORD(-1), HALF_WORD(-2), HALF_WORD(-3), HALF_WORD(-4), HALF_WORD(-6), HALF_WORD(-8), HALF_WORD(-12)
/* clang-format on */

/* Tables of 32 words; codes of four bits do not mind the bit above them. Q6_K has 64. */
PL_INLINE const uint16_t *word_table(const int dtype)
{
    static const uint16_t code[32] = {SIXTEEN(WORD, 0), SIXTEEN(WORD, 0)}, iq4[32] = {IQ4_WORDS, IQ4_WORDS},
                          e2m1[32] = {E2M1_WORDS, E2M1_WORDS}, five[32] = {SIXTEEN(WORD, 0), SIXTEEN(WORD, 16)},
                          q5_0[32] = {SIXTEEN(WORD, -16), SIXTEEN(WORD, 0)},
                          q6[64] = {SIXTEEN(WORD, -32), SIXTEEN(WORD, -16), SIXTEEN(WORD, 0), SIXTEEN(WORD, 16)};
    switch (dtype) {
    case PL_IQ4_NL:
        return iq4;
    case PL_MXFP4:
    case PL_NVFP4:
        return e2m1;
    case PL_Q5_0:
        return q5_0;
    case PL_Q5_1:
    case PL_Q5_K:
        return five;
    case PL_Q6_K:
        return q6;
    default:
        return code;
    }
}

PL_INLINE I w_shift(I a, int n) { return n < 0 ? w_sll(a, -n) : w_srl(a, n); } /* down by n */

/* Octet j of a unit: four pairs of codes of four to six bits. */
PL_INLINE void octet_words(const int dtype, const uint8_t *code, const uint8_t *high, const int j, const int h,
                           I pair[4])
{
    const uint16_t *const table = word_table(dtype);
    const I low = i_set(0x000f000f), v = i_load(code + h * LANES * 4);
    const bool five = dtype == PL_Q5_0 || dtype == PL_Q5_1 || dtype == PL_Q5_K, six = dtype == PL_Q6_K;
    I b = v;
    if (five) b = i_load(high + h * LANES * 4);
    if (six) b = i_load(high + j / 2 * 64 + h * LANES * 4);
    PL_UNROLL for (int i = 0; i < 4; i++)
    {
        const int s = (i & 1) * 8 + (i & 2) * 2;
        I q = w_srl(v, s);
        if (five) q = i_or(i_and(q, low), i_and(w_shift(b, s + j - 4), i_set(0x00100010)));
        if (six) q = i_or(i_and(q, low), i_and(w_shift(b, s + j % 2 * 2 - 4), i_set(0x00300030)));
        pair[i] = six ? w_lookup64(table, q) : w_lookup(table, q);
    }
}

/* A unit of a block becomes a tile. */
PL_INLINE void unit_words(const int dtype, const uint8_t *code, const uint8_t *high, uint16_t *tile)
{
    static const uint8_t f8_low[128] = {ALL_CODES(E4M3_LOW)}, f8_high[128] = {ALL_CODES(E4M3_HIGH)};
    const int form = pl_layout_table[dtype].form;
    PL_UNROLL for (int j = 0; j < 4; j++, code += octet_bytes(dtype)) PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        uint16_t *to = tile + (4 * j * ROWS + h * LANES) * 2;
        I pair[4];
        if (form == PL_CODE_BF16) { /* is one already */
            PL_UNROLL for (int i = 0; i < 4; i++) pair[i] = i_load(code + i * 64 + h * LANES * 4);
        } else if (form == PL_CODE_F8) {
            PL_UNROLL for (int i = 0; i < 2; i++)
            {
                const I v = i_load(code + i * 64 + h * LANES * 4), low = b_lookup128(f8_low, v);
                const I high_byte = i_or(b_lookup128(f8_high, v), i_and(v, i_set((int32_t)0x80808080)));
                pair[2 * i] = b_join_lo(low, high_byte);
                pair[2 * i + 1] = b_join_hi(low, high_byte);
            }
        } else if (form == PL_CODE_S8) { /* signed bytes at the top of a dword, as floats 2^24 as large */
            PL_UNROLL for (int i = 0; i < 2; i++)
            {
                const I v = i_load(code + i * 64 + h * LANES * 4), top = i_set((int32_t)0xff000000);
                const I a = i_cast(v_of_int(i_sll(v, 24))), b = i_cast(v_of_int(i_and(i_sll(v, 16), top)));
                const I c = i_cast(v_of_int(i_and(i_sll(v, 8), top))), d = i_cast(v_of_int(i_and(v, top)));
                const I upper = i_set((int32_t)0xffff0000);
                pair[2 * i] = i_or(i_srl(a, 16), i_and(b, upper));
                pair[2 * i + 1] = i_or(i_srl(c, 16), i_and(d, upper));
            }
        } else {
            octet_words(dtype, code, high, j, h, pair);
        }
        PL_UNROLL for (int i = 0; i < 4; i++) i_store(to + i * ROWS * 2, pair[i]);
    }
}
#endif
