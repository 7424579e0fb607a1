/* linear_int_amx.c: the product of integers (linear_int.c) on tiles. Compiled twice, as linear_amx.c is: for the tile unit
 * with AVX-512, and with tiles in plain vectors (PL_SOFT_TILES) for AVX2.
 *
 * A part of a block row becomes tiles of unsigned bytes once and meets all token tiles of the call. Sums leave the tile
 * unit after each group of k, one for each plane of x, to be put together, scaled and added. */
#include "tiles.h"
#ifdef PL_SOFT_TILES
#define PATH pl_int_soft_amx
#elif !defined(PATH)
#define PATH pl_int_amx
#endif
enum { SIGNED_OFFSET = 128 };
#define i_signed(a) i_xor(a, i_set((int32_t)0x80808080)) /* signed codes become unsigned ones by adding 128 */
#include "linear.h"
enum { X_TOKENS = PL_INT_TILE, X_TILES = 1 };
#include "linear_int_x.h"

enum {
    TOKENS = PL_INT_TILE,
    TILE = UNIT * ROWS,     /* bytes of a unit of w */
    X_TILE = UNIT * TOKENS, /* and of one plane of x */
    PART = 16,              /* units unpacked at once */
    MANY_TOKENS = 256,
    MANY_BLOCKS = 4,
    SUMS = TOKENS * ROWS, /* numbers of a tile of sums */
    SLOTS = 4             /* tiles of sums: token tiles times planes */
};

/* Scratch of a thread. */
typedef struct work {
    _Alignas(64) uint8_t w[PART * TILE];
    float scale[PART][2][ROWS], min[PART][ROWS];
    float acc[MANY_BLOCKS][MANY_TOKENS / TOKENS][SUMS];
    int32_t c[2][SLOTS][SUMS];
} work;

PL_INLINE void unpack(const int dtype, const uint8_t *blocks, int64_t u0, int64_t units, work *to)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int per = l->k / UNIT;
    for (int64_t u = 0; u < units; u++) {
        const uint8_t *block = blocks + (u0 + u) / per * l->bytes;
        const int in = (int)((u0 + u) % per);
        const uint8_t *code = block + l->code + in * l->code_step, *high = block + l->high + in * l->high_step;
        PL_UNROLL for (int quad = 0; quad < 8; quad++) PL_UNROLL for (int h = 0; h < VECS; h++) i_store(
            to->w + u * TILE + (quad * ROWS + h * LANES) * 4, bytes_of(dtype, code, high, quad / 2, quad % 2, h));
        PL_UNROLL for (int h = 0; h < VECS; h++)
        {
            PL_UNROLL for (int half = 0; half < 2; half++)
                v_store(to->scale[u][half] + h * LANES, scale_of(dtype, block, in, half, h));
            if (pl_int_minimum(dtype)) v_store(to->min[u] + h * LANES, min_of(dtype, block, in, h));
        }
    }
}

#define UNPACK(F)                                                                      \
    static void unpack_##F(const uint8_t *blocks, int64_t u0, int64_t units, work *to) \
    {                                                                                  \
        unpack(PL_##F, blocks, u0, units, to);                                         \
    }
PL_INT_FORMATS(UNPACK)
static void unpack_part(int32_t dtype, const uint8_t *blocks, int64_t u0, int64_t units, work *to)
{
    switch (dtype) {
#define CASE(F)                            \
    case PL_##F:                           \
        unpack_##F(blocks, u0, units, to); \
        return;
        PL_INT_FORMATS(CASE)
#undef CASE
    default:
        PL_ASSERT(false);
    }
}

/* A tile of sums of one group into acc, for so many tokens. c: of each plane; x_scale and x_sum: of the tokens. */
typedef void add_fn(int64_t tokens, float *acc, const int32_t *c, const float *scale, const float *min,
                    const float *x_scale, const uint32_t *x_sum);
PL_INLINE void add_group(const int planes, const bool has_min, const bool has_offset, int64_t tokens, float *acc,
                         const int32_t *c, const float *scale, const float *min, const float *x_scale,
                         const uint32_t *x_sum)
{
    V d[VECS], m[VECS];
    PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        d[h] = v_load(scale + h * LANES);
        m[h] = has_min ? v_load(min + h * LANES) : d[h];
    }
    for (int64_t t = 0; t < tokens; t++) {
        const V xs = v_set(x_scale[t]);
        const I sum = i_set((int32_t)x_sum[t]);
        PL_UNROLL for (int h = 0; h < VECS; h++)
        {
            const int64_t at = t * ROWS + h * LANES;
            I s = i_load(c + at);
            if (planes == 2) s = i_add(i_sll(s, 7), i_load(c + SUMS + at));
            if (has_offset) s = i_sub(s, sum);
            V a = v_fma(v_of_int(s), v_mul(d[h], xs), v_load(acc + at));
            if (has_min) a = v_fma(m[h], v_cast(sum), a);
            v_store(acc + at, a);
        }
    }
}
#define ADD(NAME, PLANES, MIN, OFFSET)                                                                   \
    static void NAME(int64_t tokens, float *acc, const int32_t *c, const float *scale, const float *min, \
                     const float *x_scale, const uint32_t *x_sum)                                        \
    {                                                                                                    \
        add_group(PLANES, MIN, OFFSET, tokens, acc, c, scale, min, x_scale, x_sum);                      \
    }
ADD(add_1, 1, false, false)
ADD(add_2, 2, false, false)
ADD(add_1_min, 1, true, false)
ADD(add_2_min, 2, true, false)
ADD(add_1_offset, 1, false, true)
ADD(add_2_offset, 2, false, true)

static add_fn *add_of(const pl_int_product *p)
{
    if (pl_int_minimum(p->dtype)) return p->planes == 1 ? add_1_min : add_2_min;
    if (byte_offset(p->dtype)) return p->planes == 1 ? add_1_offset : add_2_offset;
    return p->planes == 1 ? add_1 : add_2;
}

/* Tokens of token tile i, of those that the product has. */
PL_INLINE int64_t tokens_of(const pl_int_product *p, int64_t i) { return pl_min(TOKENS, p->m - i * TOKENS); }

/* One tile of sums: w is in tile 6. */
#define SLOT(N, X)                    \
    if (slots > (N)) {                \
        T_LOAD(X, x[N] + x_at, UNIT); \
        T_ZERO(N);                    \
        T_STEP_INT(N, X, 6);          \
    }
#define STORE(N) \
    if (slots > (N)) T_STORE(N, now[N], 64)

/* Token tiles i0..i1 by block rows b0..b1. */
/* NOLINTNEXTLINE(readability-function-size): one loop nest, which is the kernel */
static void many(const pl_int_product *p, int64_t i0, int64_t i1, int64_t b0, int64_t b1, work *w)
{
    const int64_t planes = p->planes, group = SLOTS / planes, per = pl_has_halves(p->dtype) ? 2 : 1;
    add_fn *add = add_of(p);
    for (int64_t b = b0; b < b1; b++) memset(w->acc[b - b0], 0, (size_t)((i1 - i0) * SUMS) * sizeof(float));
    T_BEGIN((int)pl_min(p->m, TOKENS), UNIT / (int)per, UNIT / (int)per);
    for (int64_t u0 = 0; u0 < p->units; u0 += PART) {
        const int64_t units = pl_min(PART, p->units - u0), steps = units * per;
        for (int64_t b = b0; b < b1; b++) {
            unpack_part(p->dtype, p->w + b * p->w_bytes, u0, units, w);
            for (int64_t i = i0; i < i1; i += group) {
                const int64_t n = pl_min(group, i1 - i), slots = n * planes;
                const uint8_t *x[SLOTS];
                for (int64_t k = 0; k < SLOTS; k++) {
                    const int64_t tile = i + pl_min(k / planes, n - 1);
                    x[k] = (const uint8_t *)p->x.q + ((tile * p->units + u0) * planes + k % planes) * X_TILE;
                }
                /* sums are added one step late: by then the tile has reached memory */
                for (int64_t step = 0; step <= steps; step++) {
                    if (step < steps) {
                        int32_t(*now)[SUMS] = w->c[step % 2];
                        const int64_t x_at = step / per * planes * X_TILE + step % per * (UNIT / 2);
                        T_LOAD(6, w->w + step * (TILE / per), 64);
                        SLOT(0, 4)
                        SLOT(1, 5)
                        SLOT(2, 4)
                        SLOT(3, 5)
                        STORE(0);
                        STORE(1);
                        STORE(2);
                        STORE(3);
                    }
                    if (!step) continue;
                    const int64_t u = (step - 1) / per, half = (step - 1) % per;
                    for (int64_t g = 0; g < n; g++) {
                        const int64_t at = (i + g) * p->units + u0 + u;
                        add(tokens_of(p, i + g), w->acc[b - b0][i + g - i0], w->c[(step - 1) % 2][g * planes],
                            w->scale[u][half], w->min[u], p->x.scale + at * TOKENS,
                            p->x.sum + (at * 2 + half) * TOKENS);
                    }
                }
            }
        }
    }
    T_END();
    for (int64_t b = b0; b < b1; b++)
        for (int64_t t = i0 * TOKENS; t < pl_min(p->m, i1 * TOKENS); t++) {
            const float *acc = w->acc[b - b0][0] + (t - i0 * TOKENS) * ROWS;
            V v[VECS];
            PL_UNROLL for (int h = 0; h < VECS; h++) v[h] = v_load(acc + h * LANES);
            put_rows(p->y + t * p->ldy, p->bias, p->n, b * ROWS, v);
        }
}

static void run(const pl_int_product *p, int64_t b0, int64_t b1, void *scratch)
{
    const int64_t tiles = (p->m + TOKENS - 1) / TOKENS, most = MANY_TOKENS / TOKENS;
    for (int64_t b = b0; b < b1; b += MANY_BLOCKS)
        for (int64_t i = 0; i < tiles; i += most)
            many(p, i, pl_min(i + most, tiles), b, pl_min(b + MANY_BLOCKS, b1), scratch);
}

const pl_int_path PATH = {
    .prepare = prepare, .run = run, .group = TOKENS, .blocks = MANY_BLOCKS, .scratch_bytes = sizeof(work)};
