#ifndef PL_LINEAR_H
#define PL_LINEAR_H
/* Inside of the product: the packed layouts (pack.c), one row's group of 32 in plain form, and what a fast path
 * gets. The definition is in linear.c and kernels/README.md. */
#include "cpu.h"

enum { ROWS = 16, UNIT = 32 }; /* rows of a block; k of a unit, the step of every sum */

/* Where things lie in a block of 16 rows. Offsets in bytes; the second number of a pair is the step from one unit of
 * 32 k to the next. A scale, a minimum and a small scale have 16 entries in a row, one a row of w. */
typedef struct pl_layout {
    int32_t k, bytes;        /* of a block: 32, 64 or 256 k; 0: no layout */
    int32_t d, d_step;       /* f16 scales; -1: none */
    int32_t m, m_step;       /* f16 minima (Q4_1, Q5_1) or negated scales of minima (Q4_K, Q5_K); -1: none */
    int32_t sc, sc_step;     /* bytes: small scales (two rows of 16 a unit in Q6_K); -1: none */
    int32_t mn;              /* bytes: small minima, step as sc; -1: none */
    int32_t high, high_step; /* planes of the upper bits; -1: none */
    int32_t code, code_step; /* codes or values */
} pl_layout;
/* clang-format off */
static const pl_layout pl_layout_table[PL_N_DTYPES] = {
    /*            k   bytes    d       m       sc        mn    high      code */
    [PL_F32]  = { 32, 2048,  -1, 0,  -1, 0,  -1, 0,    -1,   -1, 0,      0, 0},
    [PL_F16]  = { 32, 1024,  -1, 0,  -1, 0,  -1, 0,    -1,   -1, 0,      0, 0},
    [PL_BF16] = { 32, 1024,  -1, 0,  -1, 0,  -1, 0,    -1,   -1, 0,      0, 0},
    [PL_F8]   = { 32,  512,  -1, 0,  -1, 0,  -1, 0,    -1,   -1, 0,      0, 0},
    [PL_Q4_0] = { 64,  576,   0, 32, -1, 0,  -1, 0,    -1,   -1, 0,     64, 256},
    [PL_Q4_1] = { 64,  640,   0, 32, 64, 32, -1, 0,    -1,   -1, 0,    128, 256},
    [PL_Q5_0] = { 64,  704,   0, 32, -1, 0,  -1, 0,    -1,   64, 64,   192, 256},
    [PL_Q5_1] = { 64,  768,   0, 32, 64, 32, -1, 0,    -1,  128, 64,   256, 256},
    [PL_Q8_0] = { 64, 1088,   0, 32, -1, 0,  -1, 0,    -1,   -1, 0,     64, 512},
    [PL_Q4_K] = {256, 2368,   0, 0,  32, 0,  64, 16,  192,   -1, 0,    320, 256},
    [PL_Q5_K] = {256, 2880,   0, 0,  32, 0,  64, 16,  192,  320, 64,   832, 256},
    [PL_Q6_K] = {256, 3360,   0, 0,  -1, 0,  32, 32,   -1, 2336, 128,  288, 256},
};
/* clang-format on */
PL_INLINE const pl_layout *pl_layout_of(int32_t dtype) /* NULL: none */
{
    return pl_dtype_valid(dtype) && pl_layout_table[dtype].k ? &pl_layout_table[dtype] : NULL;
}

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

/* One product, prepared for a fast path: w is packed, x is rounded and stored as the path wants it. */
typedef struct pl_product {
    const uint8_t *w; /* block rows of 16 rows of w, w_bytes apart */
    int64_t w_bytes;
    int32_t dtype, act;
    int64_t m, n, k, units; /* units = ceil(k / 32) */
    const float *src;       /* [m,k], rows src_ld apart */
    int64_t src_ld;
    float *x;          /* [m,units*32], in groups of tokens */
    uint16_t *xb;      /* bf16 tiles, for tile units; or NULL */
    float *sum;        /* [m,units] sums of x over units, for formats with minima, in groups too */
    const float *bias; /* [n] or NULL */
    float *y;          /* [m,n], rows ldy apart */
    int64_t ldy;
    float *scratch; /* [threads][scratch_floats] */
} pl_product;

/* A fast path. prepare: groups g0..g1 of `group` tokens of x. few: block rows b0..b1 for all tokens, straight from the packed form.
 * many: tokens t0..t1 for block rows b0..b1, unpacking a part of w once for all of them. */
typedef struct pl_linear_path {
    void (*prepare)(const pl_product *p, int64_t group, int64_t g0, int64_t g1);
    void (*few)(const pl_product *p, int64_t b0, int64_t b1);
    void (*many)(const pl_product *p, int64_t t0, int64_t t1, int64_t b0, int64_t b1, float *scratch);
    int64_t few_tokens; /* up to so many: few */
    int64_t few_group, many_group;
    int64_t many_tokens, many_blocks, scratch_floats; /* of a part; tokens: a multiple of the group */
    bool tiles;                                       /* x goes to xb, whole groups */
} pl_linear_path;
#ifdef PL_X86
extern const pl_linear_path pl_linear_avx2, pl_linear_avx512, pl_linear_amx, pl_linear_soft_amx;
#endif

/* |x| below this is 0 in every product: paths may scale x by powers of two without leaving the normal range. */
#define PL_TINY_X 0x1p-100f
PL_INLINE float pl_round_x(float x, int act)
{
    if (act == PL_ACT_BF16) x = pl_bf16_f32(pl_f32_bf16(x));
    return x < PL_TINY_X && x > -PL_TINY_X ? 0 : x;
}
#endif
