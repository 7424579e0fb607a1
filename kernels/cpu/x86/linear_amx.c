/* linear_amx.c: the product on tiles, for x in bf16 and weights whose codes are exact in bf16 (all but f16 and f32).
 * Compiled twice: for the tile unit with AVX-512, and with tiles in plain vectors (PL_SOFT_TILES) for AVX2.
 *
 * A part of a block row becomes bf16 tiles once and meets all token tiles of the call. Formats without scales add up
 * in the tile unit; others leave it after each step of 32 k, to be scaled. */
#include "tiles.h"
#ifdef PL_SOFT_TILES
#define PATH pl_linear_soft_amx
#elif !defined(PATH)
#define PATH pl_linear_amx
#endif
#include "linear_decode.h"

enum {
    TOKENS = 16,          /* of a tile of x */
    TILE = TOKENS * UNIT, /* bf16 values of a tile of x or of w */
    PART = 16,            /* units unpacked at once */
    MANY_TOKENS = 256,
    MANY_BLOCKS = 4,
    GROUP = 4 /* tiles of x that share a tile of w */
};

typedef struct part {
    const uint16_t *w;  /* [units][TILE] */
    float *scale, *min; /* [units][2][16], [units][16] */
    int64_t units;
} part;

PL_INLINE void unpack(const int dtype, const uint8_t *blocks, int64_t u0, part *a, uint16_t *tiles)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int per = l->k / UNIT;
    a->w = tiles;
    if (dtype == PL_BF16) a->w = (const uint16_t *)(const void *)(blocks + u0 * l->bytes); /* are tiles already */
    for (int64_t u = 0; u < a->units; u++) {
        const uint8_t *block = blocks + (u0 + u) / per * l->bytes;
        const int in = (int)((u0 + u) % per);
        const uint8_t *code = block + l->code + in * l->code_step, *high = block + l->high + in * l->high_step;
        for (int j = 0; dtype != PL_BF16 && j < 4; j++, code += octet_bytes(dtype))
            PL_UNROLL for (int i = 0; i < 4; i++) PL_UNROLL for (int h = 0; h < VECS; h++)
            {
                V we, wo;
                pair(dtype, code, high, j, i, h, &we, &wo);
                const I both = i_or(i_srl(i_cast(we), 16), i_and(i_cast(wo), i_set((int32_t)0xffff0000)));
                i_store(tiles + u * TILE + ((4 * j + i) * ROWS + h * LANES) * 2, both);
            }
        PL_UNROLL for (int h = 0; h < VECS; h++)
        {
            if (pl_has_scale(dtype))
                PL_UNROLL for (int half = 0; half < 2; half++)
                    v_store(a->scale + (u * 2 + half) * ROWS + h * LANES, scale_of(dtype, block, in, half, h));
            if (pl_has_minimum(dtype)) v_store(a->min + u * ROWS + h * LANES, min_of(dtype, block, in, h));
        }
    }
}

#define FORMATS PL_TILE_FORMATS
#define UNPACK(F)                                                                       \
    static void unpack_##F(const uint8_t *blocks, int64_t u0, part *a, uint16_t *tiles) \
    {                                                                                   \
        unpack(PL_##F, blocks, u0, a, tiles);                                           \
    }
FORMATS(UNPACK)
static void unpack_part(int32_t dtype, const uint8_t *blocks, int64_t u0, part *a, uint16_t *tiles)
{
    switch (dtype) {
#define CASE(F)                           \
    case PL_##F:                          \
        unpack_##F(blocks, u0, a, tiles); \
        return;
        FORMATS(CASE)
#undef CASE
    default:
        PL_ASSERT(false);
    }
}

/* acc[t] += scale * c[t] (and min * S of the token), for the tokens of a tile; sum: [TOKENS], step lds */
PL_INLINE void add_step(float *acc, const float *c, const float *scale, const float *min, const float *sum, int64_t lds)
{
    V d[VECS], m[VECS];
    PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        d[h] = v_load(scale + h * LANES);
        m[h] = min ? v_load(min + h * LANES) : d[h];
    }
    for (int t = 0; t < TOKENS; t++) PL_UNROLL for (int h = 0; h < VECS; h++)
        {
            V a = v_fma(d[h], v_load(c + t * ROWS + h * LANES), v_load(acc + t * ROWS + h * LANES));
            if (min) a = v_fma(m[h], v_set(sum[t * lds]), a);
            v_store(acc + t * ROWS + h * LANES, a);
        }
}

/* Tokens t0..t1 (t0 a multiple of 16) by block rows b0..b1. Sums of a token tile lie in scratch [16][16]. */
/* NOLINTNEXTLINE(readability-function-size): one loop nest, which is the kernel */
static void many(const pl_product *p, int64_t t0, int64_t t1, int64_t b0, int64_t b1, float *scratch)
{
    uint16_t *tiles = (uint16_t *)(void *)scratch;
    part a = {.scale = scratch + PART * TILE / 2};
    a.min = a.scale + PART * 2 * ROWS;
    float *sums = a.min + PART * ROWS;                  /* [blocks][token tiles][16][16] */
    float *c = sums + MANY_TOKENS * MANY_BLOCKS * ROWS; /* [2][GROUP][16][16] */
    const int64_t n_tiles = (t1 - t0 + TOKENS - 1) / TOKENS, lds = p->units;
    const bool scaled = pl_has_scale(p->dtype), has_min = pl_has_minimum(p->dtype), halves = pl_has_halves(p->dtype);
    memset(sums, 0, (size_t)((b1 - b0) * n_tiles * TOKENS * ROWS) * 4);
    memset(c, 0, 2 * GROUP * TOKENS * ROWS * 4); /* rows of absent tokens are never stored */
    T_BEGIN((int)pl_min(p->m, TOKENS), 64, halves ? 32 : 64);
    for (int64_t u0 = 0; u0 < p->units; u0 += PART) {
        a.units = pl_min(PART, p->units - u0);
        for (int64_t b = b0; b < b1; b++) {
            unpack_part(p->dtype, p->w + b * p->w_bytes, u0, &a, tiles);
            for (int64_t i = 0; i < n_tiles; i += GROUP) {
                const int64_t n = pl_min(GROUP, n_tiles - i);
                /* x tile of token tile j and unit u: [j][units][16][32] */
                const uint16_t *x[GROUP];
                float *acc[GROUP];
                for (int64_t g = 0; g < GROUP; g++) {
                    const int64_t j = i + pl_min(g, n - 1);
                    x[g] = p->xb + ((t0 / TOKENS + j) * p->units + u0) * TILE;
                    acc[g] = sums + ((b - b0) * n_tiles + j) * TOKENS * ROWS;
                }
                const float *sum = p->sum + (t0 + i * TOKENS) * lds + u0;
                if (!scaled) {
                    T_LOAD(0, acc[0], 64);
                    if (n > 1) T_LOAD(1, acc[1], 64);
                    if (n > 2) T_LOAD(2, acc[2], 64);
                    if (n > 3) T_LOAD(3, acc[3], 64);
                    for (int64_t u = 0; u < a.units; u++) {
                        T_LOAD(6, a.w + u * TILE, 64);
                        T_LOAD(4, x[0] + u * TILE, 64);
                        T_STEP(0, 4, 6);
                        if (n > 1) {
                            T_LOAD(5, x[1] + u * TILE, 64);
                            T_STEP(1, 5, 6);
                        }
                        if (n > 2) {
                            T_LOAD(4, x[2] + u * TILE, 64);
                            T_STEP(2, 4, 6);
                        }
                        if (n > 3) {
                            T_LOAD(5, x[3] + u * TILE, 64);
                            T_STEP(3, 5, 6);
                        }
                    }
                    T_STORE(0, acc[0], 64);
                    if (n > 1) T_STORE(1, acc[1], 64);
                    if (n > 2) T_STORE(2, acc[2], 64);
                    if (n > 3) T_STORE(3, acc[3], 64);
                    continue;
                }
                if (halves) { /* 16 k a step */
                    for (int64_t u = 0; u < 2 * a.units; u++) {
                        T_LOAD(7, a.w + u * TILE / 2, 64);
                        for (int64_t g = 0; g < n; g++) {
                            T_LOAD(5, x[g] + u / 2 * TILE + u % 2 * 16, 64);
                            T_ZERO(0);
                            T_STEP(0, 5, 7);
                            T_STORE(0, c, 64);
                            add_step(acc[g], c, a.scale + u * ROWS, NULL, NULL, 0);
                        }
                    }
                    continue;
                }
                /* sums are added one step late: by then the tile has reached memory */
                for (int64_t u = 0; u <= a.units; u++) {
                    float *now = c + u % 2 * GROUP * TOKENS * ROWS, *before = c + (u + 1) % 2 * GROUP * TOKENS * ROWS;
                    if (u < a.units) {
                        T_LOAD(6, a.w + u * TILE, 64);
                        T_LOAD(4, x[0] + u * TILE, 64);
                        T_ZERO(0);
                        T_STEP(0, 4, 6);
                        if (n > 1) {
                            T_LOAD(5, x[1] + u * TILE, 64);
                            T_ZERO(1);
                            T_STEP(1, 5, 6);
                        }
                        if (n > 2) {
                            T_LOAD(4, x[2] + u * TILE, 64);
                            T_ZERO(2);
                            T_STEP(2, 4, 6);
                        }
                        if (n > 3) {
                            T_LOAD(5, x[3] + u * TILE, 64);
                            T_ZERO(3);
                            T_STEP(3, 5, 6);
                        }
                        T_STORE(0, now, 64);
                        if (n > 1) T_STORE(1, now + TOKENS * ROWS, 64);
                        if (n > 2) T_STORE(2, now + 2 * TOKENS * ROWS, 64);
                        if (n > 3) T_STORE(3, now + 3 * TOKENS * ROWS, 64);
                    }
                    for (int64_t g = 0; u > 0 && g < n; g++)
                        add_step(acc[g], before + g * TOKENS * ROWS, a.scale + (u - 1) * 2 * ROWS,
                                 has_min ? a.min + (u - 1) * ROWS : NULL, sum + g * TOKENS * lds + u - 1, lds);
                }
            }
        }
    }
    T_END();
    for (int64_t b = b0; b < b1; b++)
        for (int64_t t = 0; t < t1 - t0; t++) {
            V v[VECS];
            PL_UNROLL for (int h = 0; h < VECS; h++) v[h] =
                v_load(sums + ((b - b0) * n_tiles * TOKENS + t) * ROWS + h * LANES);
            put_y(p, t0 + t, b * ROWS, v);
        }
}

/* Groups of 16 tokens as tiles [units][16][32], rows of absent tokens 0. */
static void prepare(const pl_product *p, int64_t group, int64_t g0, int64_t g1)
{
    PL_ASSERT(group == TOKENS);
    float by[UNIT];
    place_factors(p, by);
    for (int64_t g = g0; g < g1; g++)
        for (int64_t u = 0; u < p->units; u++)
            for (int t = 0; t < TOKENS; t++) {
                const int64_t token = g * TOKENS + t;
                uint16_t *x = p->xb + (g * p->units + u) * TILE + t * UNIT;
                float v[UNIT], s;
                if (token < p->m)
                    round_unit(p, by, token, u, v, &s);
                else
                    memset(v, 0, sizeof v), s = 0;
                for (int k = 0; k < UNIT; k++) x[k] = (uint16_t)(pl_f32_bits(v[k]) >> 16);
                p->sum[token * p->units + u] = s;
            }
}

const pl_linear_path PATH = {
    .prepare = prepare,
    .many = many,
    .many_group = TOKENS,
    .many_tokens = MANY_TOKENS,
    .many_blocks = MANY_BLOCKS,
    .scratch_floats = PART * (TILE / 2 + 3 * ROWS) + MANY_TOKENS * MANY_BLOCKS * ROWS + 2 * GROUP * TOKENS * ROWS,
    .tiles = true,
};
