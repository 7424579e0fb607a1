#ifndef PL_LINEAR_H
#define PL_LINEAR_H
/* Inside of the product: the packed layouts (pack.c), one row's group of 32 in plain form, and what a fast path
 * gets. The definition is in linear.c and kernels/README.md. */
#include "cpu.h"

/* Where things lie in a block of 16 rows. Offsets in bytes; the second number of a pair is the step from one unit of
 * 32 k to the next. A scale, a minimum and a small scale have 16 entries in a row, one a row of w. */
typedef struct pl_layout {
    int32_t k, bytes;          /* of a block: 32, 64 or 256 k; 0: no layout */
    int32_t d, d_step;         /* f16 scales; -1: none */
    int32_t m, m_step;         /* f16 minima (Q4_1, Q5_1) or scales of minima (Q4_K, Q5_K); -1: none */
    int32_t sc, sc_step;       /* bytes: small scales (two rows of 16 a unit in Q6_K); -1: none */
    int32_t mn;                /* bytes: small minima, step as sc; -1: none */
    int32_t high, high_step;   /* planes of the upper bits; -1: none */
    int32_t code, code_step;   /* codes or values */
} pl_layout;
const pl_layout *pl_layout_of(int32_t dtype); /* NULL: none */

PL_INLINE bool pl_has_minimum(int32_t dtype)
{
    return dtype == PL_Q4_1 || dtype == PL_Q5_1 || dtype == PL_Q4_K || dtype == PL_Q5_K;
}
PL_INLINE bool pl_has_scale(int32_t dtype) { return dtype >= PL_Q4_0; }

/* 32 k of one row of w. Value = scale * code + min, with scale[0] for the first 16 and scale[1] for the others;
 * they are the same but for Q6_K. Formats without scales have scale 1. */
typedef struct pl_group {
    float code[32], scale[2], min;
} pl_group;
/* Unit u of a row in rows layout (k: its length, what is beyond is 0), or of row r of a packed block row. */
void pl_group_of_row(int32_t dtype, const void *row, int64_t k, int64_t u, pl_group *g);
void pl_group_of_packed(int32_t dtype, const uint8_t *blocks, int r, int64_t u, pl_group *g);

/* One product, prepared for a fast path: w is packed, x is rounded and stored by the path. */
typedef struct pl_product {
    const uint8_t *w;      /* blocks of 16 rows, w_bytes apart */
    int64_t w_bytes;
    int32_t dtype, act;
    int64_t m, n, k, units; /* units = ceil(k / 32) */
    const float *x;         /* [m,units*32] as the path wants it */
    const uint16_t *xb;     /* bf16, for tiles */
    const float *sum;       /* [m,units] sums of x, for formats with minima */
    const float *bias;      /* [n] or NULL */
    float *y;               /* [m,n], rows ldy apart */
    int64_t ldy;
} pl_product;

/* |x| below this is 0 in every product: paths may scale x by powers of two without leaving the normal range. */
#define PL_TINY_X 0x1p-100f
PL_INLINE float pl_round_x(float x, int act)
{
    if (act == PL_ACT_BF16) x = pl_bf16_f32(pl_f32_bf16(x));
    return x < PL_TINY_X && x > -PL_TINY_X ? 0 : x;
}
#endif
