#ifndef PL_LINEAR_H
#define PL_LINEAR_H
/* Inside of the product: the packed layouts (pack.c), one row's group of 32 in plain form, and what a fast path
 * gets. The definition is in linear.c and kernels/README.md. */
#include "cpu.h"

enum { ROWS = 16, UNIT = 32 }; /* rows of a block; k of a unit, the step of every sum */

/* What a format's codes are, how their scale is made, and a minimum. */
enum { PL_CODE_F32, PL_CODE_F16, PL_CODE_BF16, PL_CODE_F8, PL_CODE_S8, PL_CODE_NIBBLE, PL_CODE_IQ4, PL_CODE_E2M1 };
enum {
    PL_SCALE_1,      /* none */
    PL_SCALE_HALF,   /* d */
    PL_SCALE_HALF_U, /* d * sc, unsigned */
    PL_SCALE_HALF_S, /* d * sc, signed; two a unit */
    PL_SCALE_BF16,   /* d */
    PL_SCALE_FLOAT,  /* d: 4 bytes */
    PL_SCALE_NVFP4,  /* d: 4 bytes, sc e4m3 (pl_nvfp4_scale); two a unit */
    PL_SCALE_E8M0    /* sc */
};
enum {
    PL_MIN_0,      /* none */
    PL_MIN_HALF,   /* m */
    PL_MIN_HALF_U, /* m * mn, unsigned */
    PL_MIN_ZERO,   /* d * mn, signed: the code that is zero, negated */
    PL_MIN_EIGHT   /* d * -8: codes stay unsigned, which saves two operations each */
};

/* Where things lie in a block of 16 rows. Offsets in bytes; the second number of a pair is the step from one group of
 * `group` units of 32 k to the next (high and code: from one unit to the next). A scale, a minimum and a small scale
 * have 16 entries in a row, one a row of w. */
typedef struct pl_layout {
    int32_t k, bytes;        /* of a block: 32 to 256 k; 0: no layout */
    int32_t group;           /* units that share a scale */
    int32_t d, d_step;       /* scales; -1: none */
    int32_t m, m_step;       /* f16 minima (Q4_1, Q5_1) or negated scales of minima (Q4_K, Q5_K); -1: none */
    int32_t sc, sc_step;     /* bytes: small scales (two rows of 16 a unit, if there are two); -1: none */
    int32_t mn, mn_step;     /* bytes: small minima; -1: none */
    int32_t high, high_step; /* planes of the upper bits; -1: none */
    int32_t code, code_step; /* codes or values */
    int32_t form, offset;    /* PL_CODE_*, and what is subtracted from a nibble */
    int32_t scale, min;      /* PL_SCALE_*, PL_MIN_* */
} pl_layout;
/* clang-format off */
static const pl_layout pl_layout_table[PL_N_DTYPES] = {
    /*              k  bytes grp  d       m       sc      mn       high      code      form, offset        scale            min */
    [PL_F32]   = { 32, 2048, 1,  -1,  0,  -1,  0, -1,  0,  -1,  0,   -1,   0,   0,   0,  PL_CODE_F32,     0,  PL_SCALE_1,       PL_MIN_0},
    [PL_F16]   = { 32, 1024, 1,  -1,  0,  -1,  0, -1,  0,  -1,  0,   -1,   0,   0,   0,  PL_CODE_F16,     0,  PL_SCALE_1,       PL_MIN_0},
    [PL_BF16]  = { 32, 1024, 1,  -1,  0,  -1,  0, -1,  0,  -1,  0,   -1,   0,   0,   0,  PL_CODE_BF16,    0,  PL_SCALE_1,       PL_MIN_0},
    [PL_F8]    = { 32,  512, 1,  -1,  0,  -1,  0, -1,  0,  -1,  0,   -1,   0,   0,   0,  PL_CODE_F8,      0,  PL_SCALE_1,       PL_MIN_0},
    [PL_Q4_0]  = { 64,  576, 1,   0, 32,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_HALF,    PL_MIN_EIGHT},
    [PL_Q4_1]  = { 64,  640, 1,   0, 32,  64, 32, -1,  0,  -1,  0,   -1,   0, 128, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_HALF,    PL_MIN_HALF},
    [PL_Q5_0]  = { 64,  704, 1,   0, 32,  -1,  0, -1,  0,  -1,  0,   64,  64, 192, 256,  PL_CODE_NIBBLE, 16,  PL_SCALE_HALF,    PL_MIN_0},
    [PL_Q5_1]  = { 64,  768, 1,   0, 32,  64, 32, -1,  0,  -1,  0,  128,  64, 256, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_HALF,    PL_MIN_HALF},
    [PL_Q8_0]  = { 64, 1088, 1,   0, 32,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 512,  PL_CODE_S8,      0,  PL_SCALE_HALF,    PL_MIN_0},
    [PL_Q4_K]  = {256, 2368, 1,   0,  0,  32,  0, 64, 16, 192, 16,   -1,   0, 320, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_HALF_U,  PL_MIN_HALF_U},
    [PL_Q5_K]  = {256, 2880, 1,   0,  0,  32,  0, 64, 16, 192, 16,  320,  64, 832, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_HALF_U,  PL_MIN_HALF_U},
    [PL_Q6_K]  = {256, 3360, 1,   0,  0,  -1,  0, 32, 32,  -1,  0, 2336, 128, 288, 256,  PL_CODE_NIBBLE, 32,  PL_SCALE_HALF_S,  PL_MIN_0},
    [PL_IQ4_NL]= { 64,  576, 1,   0, 32,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 256,  PL_CODE_IQ4,     0,  PL_SCALE_HALF,    PL_MIN_0},
    [PL_MXFP4] = {128, 1088, 1,  -1,  0,  -1,  0,  0, 16,  -1,  0,   -1,   0,  64, 256,  PL_CODE_E2M1,    0,  PL_SCALE_E8M0,    PL_MIN_0},
    [PL_NVFP4] = {256, 2368, 1,   0,  0,  -1,  0, 64, 32,  -1,  0,   -1,   0, 320, 256,  PL_CODE_E2M1,    0,  PL_SCALE_NVFP4,   PL_MIN_0},
    [PL_I4G32] = { 64,  576, 1,   0, 32,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_BF16,    PL_MIN_EIGHT},
    [PL_I4G64] = {128, 1088, 2,   0, 32,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_BF16,    PL_MIN_EIGHT},
    [PL_I4G128]= {256, 2112, 4,   0, 32,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_BF16,    PL_MIN_EIGHT},
    [PL_U4G32] = {128, 1216, 1,   0, 32,   0, 32, -1,  0, 128, 16,   -1,   0, 192, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_HALF,    PL_MIN_ZERO},
    [PL_U4G64] = {256, 2240, 2,   0, 32,   0, 32, -1,  0, 128, 16,   -1,   0, 192, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_HALF,    PL_MIN_ZERO},
    [PL_U4G128]= {256, 2176, 4,   0, 32,   0, 32, -1,  0,  64, 16,   -1,   0, 128, 256,  PL_CODE_NIBBLE,  0,  PL_SCALE_HALF,    PL_MIN_ZERO},
    [PL_F8G32] = { 32,  576, 1,   0,  0,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 512,  PL_CODE_F8,      0,  PL_SCALE_FLOAT,   PL_MIN_0},
    [PL_F8G64] = { 64, 1088, 2,   0, 64,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 512,  PL_CODE_F8,      0,  PL_SCALE_FLOAT,   PL_MIN_0},
    [PL_F8G128]= {128, 2112, 4,   0, 64,  -1,  0, -1,  0,  -1,  0,   -1,   0,  64, 512,  PL_CODE_F8,      0,  PL_SCALE_FLOAT,   PL_MIN_0},
};
/* The formats whose codes are exact in bf16: all but F32 and F16. Kernels are compiled once for each. */
#define PL_TILE_FORMATS(X) \
    X(BF16) X(F8) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(MXFP4) X(NVFP4) \
    X(I4G32) X(I4G64) X(I4G128) X(U4G32) X(U4G64) X(U4G128) X(F8G32) X(F8G64) X(F8G128)
/* clang-format on */
PL_INLINE const pl_layout *pl_layout_of(int32_t dtype) /* NULL: none */
{
    return pl_dtype_valid(dtype) && pl_layout_table[dtype].k ? &pl_layout_table[dtype] : NULL;
}

PL_INLINE bool pl_has_minimum(int32_t dtype) { return pl_layout_table[dtype].min != PL_MIN_0; }
PL_INLINE bool pl_has_scale(int32_t dtype) { return pl_layout_table[dtype].scale != PL_SCALE_1; }
PL_INLINE bool pl_has_halves(int32_t dtype) /* a scale each 16 k */
{
    return pl_layout_table[dtype].scale == PL_SCALE_HALF_S || pl_layout_table[dtype].scale == PL_SCALE_NVFP4;
}

/* 32 k of one row of w. Value = scale * code + min, with scale[0] for the first 16 and scale[1] for the others;
 * they are the same but where pl_has_halves. Formats without scales have scale 1. zero: where min is the product of a
 * scale and a code, that code; such a value is scale * (code - zero). */
typedef struct pl_group {
    float code[32], scale[2], min, zero;
} pl_group;
/* Unit u of a row in rows layout (k: its length, what is beyond is 0), or of row r of a packed block row. */
void pl_group_of_row(int32_t dtype, const void *row, int64_t k, int64_t u, pl_group *g);
void pl_group_of_packed(int32_t dtype, const uint8_t *blocks, int r, int64_t u, pl_group *g);

/* One product, prepared for a fast path: w is packed, x is rounded and stored as the path wants it. */
typedef struct pl_product {
    const uint8_t *w; /* block rows of 16 rows of w, w_bytes apart */
    int64_t w_bytes;
    int32_t dtype, act;
    bool quick;             /* a path's own way for e4m3 (x86/linear_decode.h) */
    int64_t m, n, k, units; /* units = ceil(k / 32) */
    const float *src;       /* [m,k], rows src_ld apart */
    int64_t src_ld;
    float *x;          /* [m,units*32], in groups of tokens */
    uint16_t *xb;      /* bf16 tiles, for tile units, in groups x_units tiles apart; or NULL */
    int64_t x_units;   /* pl_x_units */
    float *sum;        /* [m,units] sums of x over units, for formats with minima, in groups too */
    const float *bias; /* [n] or NULL */
    float *y;          /* [m,n], rows ldy apart */
    int64_t ldy;
    float *scratch; /* [threads][scratch_floats] */
} pl_product;

/* Tiles of x begin at multiples of PL_X_ALIGN, every fourth of a group, and groups follow each other by an odd number of
 * these: at a power of two, tiles of one unit would all want the same few places in a cache. */
enum { PL_X_ALIGN = 4096 };
PL_INLINE int64_t pl_x_units(int64_t units) { return ((units + 3) / 4 | 1) * 4; }

/* Products of integers (linear_int.c). What is taken off a code as stored to make it the integer that counts; levels of
 * e2m1 are doubled, and stored codes of S8 and IQ4 are signed. */
PL_INLINE int32_t pl_code_offset(int32_t dtype)
{
    const pl_layout *l = &pl_layout_table[dtype];
    return l->min == PL_MIN_EIGHT ? 8 : l->offset;
}
PL_INLINE bool pl_int_minimum(int32_t dtype) /* one that stays a float */
{
    return pl_has_minimum(dtype) && pl_layout_table[dtype].min != PL_MIN_EIGHT;
}
/* clang-format off */
#define PL_INT_FORMATS(X) \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(MXFP4) X(NVFP4) \
    X(I4G32) X(I4G64) X(I4G128) X(U4G32) X(U4G64) X(U4G128)
/* clang-format on */

/* x as integers, in groups of n tokens, group by group. */
typedef struct pl_int_x {
    /* 4 k each, in the order of the format's codes; planes: int15 has hi, then lo. [units][planes][8][n]; tiles, whose
     * last group is a whole one too: [units][planes][n][8] */
    uint32_t *q;
    float *scale; /* [units][n] */
    /* [units][2][n]: sum of the first 16 and of the last 16 (or of all), times what bytes of w have too much; for formats
     * with a minimum the bits of scale * sum */
    uint32_t *sum;
} pl_int_x;
typedef struct pl_int_product {
    const uint8_t *w;
    int64_t w_bytes;
    int32_t dtype, planes; /* 1: int8, 2: int15 */
    int64_t m, n, k, units;
    const float *src;
    int64_t src_ld;
    pl_int_x x;
    const float *bias;
    float *y;
    int64_t ldy;
} pl_int_product;
/* prepare: tokens t0..t1, t0 at the beginning of a group; run: block rows b0..b1 for all tokens. */
typedef struct pl_int_path {
    void (*prepare)(const pl_int_product *p, int64_t t0, int64_t t1);
    void (*run)(const pl_int_product *p, int64_t b0, int64_t b1, void *scratch);
    int64_t group;         /* tokens of x side by side */
    int64_t blocks;        /* block rows that are worth a call, where there are many tokens */
    int64_t scratch_bytes; /* of a thread */
} pl_int_path;
/* The last is the first number of tokens that tiles are worth: below, vectors have less to do. */
enum { PL_INT_TILE = 16, PL_INT_TILES_FROM = 11 };
#ifdef PL_X86
extern const pl_int_path pl_int_avx2, pl_int_avx512, pl_int_amx, pl_int_soft_amx;
#endif

/* A fast path. prepare: groups g0..g1 of `group` tokens of x. few: block rows b0..b1 for all tokens, straight from the packed form.
 * many: tokens t0..t1 for block rows b0..b1, unpacking a part of w once for all of them. */
typedef struct pl_linear_path {
    void (*prepare)(const pl_product *p, int64_t group, int64_t g0, int64_t g1);
    void (*few)(const pl_product *p, int64_t b0, int64_t b1);
    void (*many)(const pl_product *p, int64_t t0, int64_t t1, int64_t b0, int64_t b1, float *scratch);
    bool (*quick)(const pl_product *p); /* does the quick way serve it, where denormals cost nothing? NULL: never */
    int64_t few_tokens;                 /* up to so many: few */
    int64_t few_group, many_group;
    int64_t many_tokens, many_blocks, scratch_floats; /* of a part; tokens: a multiple of the group */
    bool tiles;                                       /* x goes to xb, whole groups */
} pl_linear_path;
#ifdef PL_X86
extern const pl_linear_path pl_linear_avx2, pl_linear_avx512, pl_linear_amx, pl_linear_soft_amx;
#endif

/* A product whose x is ready, for a fast path: its parts, some tokens by some block rows each, are computed by any thread
 * in any order. No parts: computed already, as there is no fast path. */
typedef struct pl_linear_job {
    const pl_linear_path *path; /* NULL: integers */
    const pl_int_path *int_path;
    pl_product p;
    pl_int_product q;
    char *scratch; /* of integers: [threads][int_path->scratch_bytes] */
    int64_t m, n;
    int64_t group;                                    /* tokens of x side by side */
    int64_t tokens, blocks, token_parts, block_parts; /* of a part, at most; how many */
} pl_linear_job;
/* Takes scratch, which the caller releases when all parts are computed. before: another product of the same x, whose
 * prepared x is used if it serves, or NULL. */
int pl_linear_start(pl_stream *s, pl_linear_job *j, const pl_linear_job *before, pl_tensor *y, const pl_tensor *x,
                    const pl_tensor *w, const pl_tensor *b, int act, pl_err *err);
int pl_linear_int_start(pl_stream *s, pl_linear_job *j, const pl_linear_job *before, pl_tensor *y, const pl_tensor *x,
                        const pl_tensor *w, const pl_tensor *b, int act, pl_err *err); /* act: int8 or int15 */
PL_INLINE int64_t pl_linear_parts(const pl_linear_job *j) { return j->token_parts * j->block_parts; }
void pl_linear_run(const pl_linear_job *j, int64_t from, int64_t to, int thread); /* parts from..to */
/* Tokens t0..t1 by rows of w n0..n1: what a part is of y. */
typedef struct pl_linear_cells {
    int64_t t0, t1, n0, n1;
} pl_linear_cells;
pl_linear_cells pl_linear_cells_of(const pl_linear_job *j, int64_t part);

/* |x| below this is 0 in every product: paths may scale x by powers of two without leaving the normal range. */
#define PL_TINY_X 0x1p-100f
PL_INLINE float pl_round_x(float x, int act)
{
    if (act == PL_ACT_BF16) x = pl_bf16_f32(pl_f32_bf16(x));
    return x < PL_TINY_X && x > -PL_TINY_X ? 0 : x;
}
#endif
