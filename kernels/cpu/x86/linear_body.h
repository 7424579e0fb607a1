/* linear_body.h: the product with fma on vectors of LANES rows; included by linear_avx2.c and linear_avx512.c, which
 * give the vectors (vec8.h, vec16.h). A lane is an output row, so nothing is summed across lanes, and the order of
 * sums is that of the definition (linear.c). */
#include "linear_decode.h"

/* x lies in groups of G tokens (of fewer at the end): [units*32][tokens of the group], so that one pointer serves.
 * Tokens t0..t0+T-1, a group, by one block row, straight from the packed form. */
PL_INLINE void direct(const int dtype, const int T, const pl_product *p, int64_t b, int64_t t0)
{
    const pl_layout *l = &pl_layout_table[dtype];
    enum { AHEAD = 2048 };
    const uint8_t *block = p->w + b * p->w_bytes;
    const float *x = p->x + t0 * p->units * UNIT, *sum = p->sum + t0 * p->units;
    const int per = l->k / UNIT, step = l->bytes / per;
    V acc[4][VECS];
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) acc[t][h] = v_zero();
    int64_t u = 0;
    for (; u < p->units; block += l->bytes)
        for (int in = 0; in < per && u < p->units; in++, u++, x += UNIT * T, sum += T) {
            const uint8_t *code = block + l->code + in * l->code_step, *high = block + l->high + in * l->high_step;
            V e[4][VECS], o[4][VECS];
            PL_UNROLL for (int j = 0; j < step; j += 64) _mm_prefetch((const char *)code + AHEAD + j, _MM_HINT_T0);
            PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) e[t][h] = o[t][h] = v_zero();
            PL_UNROLL for (int i = 0; i < 16; i++) {
                PL_UNROLL for (int h = 0; h < VECS; h++) {
                    V we, wo;
                    pair(dtype, code, high, i, h, &we, &wo);
                    PL_UNROLL for (int t = 0; t < T; t++) {
                        e[t][h] = v_fma(we, v_set(x[2 * i * T + t]), e[t][h]);
                        o[t][h] = v_fma(wo, v_set(x[(2 * i + 1) * T + t]), o[t][h]);
                    }
                }
                if (dtype == PL_Q6_K && i == 7)
                    PL_UNROLL for (int h = 0; h < VECS; h++) {
                        const V d = scale_of(dtype, block, in, 0, h);
                        PL_UNROLL for (int t = 0; t < T; t++) {
                            acc[t][h] = v_fma(d, v_add(e[t][h], o[t][h]), acc[t][h]);
                            e[t][h] = o[t][h] = v_zero();
                        }
                    }
            }
            PL_UNROLL for (int h = 0; h < VECS; h++) {
                if (l->d < 0) {
                    PL_UNROLL for (int t = 0; t < T; t++) acc[t][h] = v_add(acc[t][h], v_add(e[t][h], o[t][h]));
                } else {
                    const V d = scale_of(dtype, block, in, 1, h);
                    PL_UNROLL for (int t = 0; t < T; t++) acc[t][h] = v_fma(d, v_add(e[t][h], o[t][h]), acc[t][h]);
                }
                if (l->m >= 0) {
                    const V m = min_of(dtype, block, in, h);
                    PL_UNROLL for (int t = 0; t < T; t++) acc[t][h] = v_fma(m, v_set(sum[t]), acc[t][h]);
                }
            }
        }
    PL_UNROLL for (int t = 0; t < T; t++) put_y(p, t0 + t, b * ROWS, acc[t]);
}

/* A part of w as floats: panel [units*32][16], scales [units][2][16] (halves equal but in Q6_K), minima [units][16]. */
enum { PANEL_UNITS = 8, PANEL = PANEL_UNITS * UNIT * ROWS, SCALES = PANEL_UNITS * 2 * ROWS };
typedef struct part {
    float *panel, *scale, *min;
    int64_t units;
} part;

PL_INLINE void unpack(const int dtype, const uint8_t *blocks, int64_t u0, const part *a)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int per = l->k / UNIT;
    for (int64_t u = 0; u < a->units; u++) {
        const uint8_t *block = blocks + (u0 + u) / per * l->bytes;
        const int in = (int)((u0 + u) % per);
        const uint8_t *code = block + l->code + in * l->code_step, *high = block + l->high + in * l->high_step;
        PL_UNROLL for (int h = 0; h < VECS; h++) {
            PL_UNROLL for (int i = 0; i < 16; i++) {
                V we, wo;
                pair(dtype, code, high, i, h, &we, &wo);
                v_store(a->panel + (u * UNIT + 2 * i) * ROWS + h * LANES, we);
                v_store(a->panel + (u * UNIT + 2 * i + 1) * ROWS + h * LANES, wo);
            }
            PL_UNROLL for (int half = 0; half < 2; half++)
                v_store(a->scale + (u * 2 + half) * ROWS + h * LANES, scale_of(dtype, block, in, half, h));
            if (l->m >= 0) v_store(a->min + u * ROWS + h * LANES, min_of(dtype, block, in, h));
        }
    }
}

/* T tokens of x, a group, times a part; acc [T][16] is added to. */
PL_INLINE void tile(const int T, const bool min, const bool halves, const part *a, const float *x, const float *sum,
                    float *acc)
{
    const int n_halves = halves ? 2 : 1, pairs = halves ? 8 : 16;
    const float *w = a->panel;
    for (int64_t u = 0; u < a->units; u++, sum += T) {
        V e[8][VECS], o[8][VECS];
        for (int half = 0; half < n_halves; half++, x += 2 * pairs * T, w += 2 * pairs * ROWS) {
            PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) e[t][h] = o[t][h] = v_zero();
            PL_UNROLL for (int i = 0; i < pairs; i++) {
                V we[VECS], wo[VECS];
                PL_UNROLL for (int h = 0; h < VECS; h++) {
                    we[h] = v_load(w + 2 * i * ROWS + h * LANES);
                    V_KEEP(we[h]);
                }
                PL_UNROLL for (int t = 0; t < T; t++) {
                    const V xe = v_set(x[2 * i * T + t]);
                    PL_UNROLL for (int h = 0; h < VECS; h++) e[t][h] = v_fma(we[h], xe, e[t][h]);
                }
                PL_UNROLL for (int h = 0; h < VECS; h++) {
                    wo[h] = v_load(w + (2 * i + 1) * ROWS + h * LANES);
                    V_KEEP(wo[h]);
                }
                PL_UNROLL for (int t = 0; t < T; t++) {
                    const V xo = v_set(x[(2 * i + 1) * T + t]);
                    PL_UNROLL for (int h = 0; h < VECS; h++) o[t][h] = v_fma(wo[h], xo, o[t][h]);
                }
            }
            PL_UNROLL for (int h = 0; h < VECS; h++) {
                const V d = v_load(a->scale + (u * 2 + half) * ROWS + h * LANES);
                PL_UNROLL for (int t = 0; t < T; t++) {
                    V s = v_fma(d, v_add(e[t][h], o[t][h]), v_load(acc + t * ROWS + h * LANES));
                    if (min) s = v_fma(v_load(a->min + u * ROWS + h * LANES), v_set(sum[t]), s);
                    v_store(acc + t * ROWS + h * LANES, s);
                }
            }
        }
    }
}

enum { TILE_T = PL_TILE_T, FEW_T = 2 };
#define TILES(NAME, MIN, HALVES)                                                                                \
    static void NAME(int64_t n, const part *a, const float *x, const float *sum, int64_t units, float *acc)      \
    {                                                                                                           \
        for (; n >= TILE_T; n -= TILE_T, x += TILE_T * units * UNIT, sum += TILE_T * units, acc += TILE_T * ROWS) \
            tile(TILE_T, MIN, HALVES, a, x, sum, acc);                                                          \
        switch (n) { /* the last group is short */                                                              \
            TAILS(MIN, HALVES)                                                                                  \
        default: break;                                                                                         \
        }                                                                                                       \
    }
#define TAIL(T, MIN, HALVES) case T: tile(T, MIN, HALVES, a, x, sum, acc); break;
#if PL_TILE_T == 3
#define TAILS(MIN, HALVES) TAIL(1, MIN, HALVES) TAIL(2, MIN, HALVES)
#else
#define TAILS(MIN, HALVES) TAIL(1, MIN, HALVES) TAIL(2, MIN, HALVES) TAIL(3, MIN, HALVES) TAIL(4, MIN, HALVES) \
    TAIL(5, MIN, HALVES) TAIL(6, MIN, HALVES) TAIL(7, MIN, HALVES)
#endif
TILES(tiles_plain, false, false)
TILES(tiles_min, true, false)
TILES(tiles_halves, false, true)

/* One function a format: few tokens, and unpacking. */
#define FORMATS(X) X(F32) X(F16) X(BF16) X(F8) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K)
#define FEW(F)                                                                                                  \
    static void few_##F(const pl_product *p, int64_t b0, int64_t b1)                                            \
    {                                                                                                           \
        for (int64_t b = b0; b < b1; b++) {                                                                     \
            int64_t t = 0;                                                                                      \
            for (; t + FEW_T <= p->m; t += FEW_T) direct(PL_##F, FEW_T, p, b, t);                                           \
            if (t < p->m) direct(PL_##F, 1, p, b, t);                                                           \
        }                                                                                                       \
    }
FORMATS(FEW)
#define UNPACK(F) \
    static void unpack_##F(const uint8_t *blocks, int64_t u0, const part *a) { unpack(PL_##F, blocks, u0, a); }
FORMATS(UNPACK)

static void few(const pl_product *p, int64_t b0, int64_t b1)
{
    switch (p->dtype) {
#define CASE(F) case PL_##F: few_##F(p, b0, b1); return;
        FORMATS(CASE)
#undef CASE
    default: PL_ASSERT(false);
    }
}
static void unpack_part(int32_t dtype, const uint8_t *blocks, int64_t u0, const part *a)
{
    switch (dtype) {
#define CASE(F) case PL_##F: unpack_##F(blocks, u0, a); return;
        FORMATS(CASE)
#undef CASE
    default: PL_ASSERT(false);
    }
}

/* n tokens from the place `at` of sums, whose x is at 32 times that. */
static void run_tiles(const pl_product *p, int64_t n, const part *a, int64_t at, float *acc)
{
    const float *x = p->x + at * UNIT, *sum = p->sum + at;
    if (pl_has_minimum(p->dtype)) tiles_min(n, a, x, sum, p->units, acc);
    else if (p->dtype == PL_Q6_K) tiles_halves(n, a, x, sum, p->units, acc);
    else tiles_plain(n, a, x, sum, p->units, acc);
}

/* Tokens t0..t1 by block rows b0..b1. The x of these tokens for one part of k stays in the L2 cache, the part of w in
 * L1; sums wait in scratch between parts. */
enum { MANY_TOKENS = 192, MANY_BLOCKS = 4 };
static void many(const pl_product *p, int64_t t0, int64_t t1, int64_t b0, int64_t b1, float *scratch)
{
    part a = {scratch, scratch + PANEL, scratch + PANEL + SCALES, 0};
    float *acc = scratch + PANEL + 2 * SCALES; /* [blocks][tokens][16] */
    const int64_t m = t1 - t0;
    memset(acc, 0, (size_t)((b1 - b0) * m * ROWS) * 4);
    for (int64_t u = 0; u < p->units; u += PANEL_UNITS) {
        a.units = pl_min(PANEL_UNITS, p->units - u);
        for (int64_t b = b0; b < b1; b++) {
            /* the part's place within a group depends on the size of the group: the last one is apart */
            const int64_t whole = m / TILE_T * TILE_T, base = t0 * p->units, tail = base + whole * p->units;
            float *to = acc + (b - b0) * m * ROWS;
            unpack_part(p->dtype, p->w + b * p->w_bytes, u, &a);
            run_tiles(p, whole, &a, base + u * TILE_T, to);
            run_tiles(p, m - whole, &a, tail + u * (m - whole), to + whole * ROWS);
        }
    }
    for (int64_t b = b0; b < b1; b++)
        for (int64_t t = 0; t < m; t++) {
            V v[VECS];
            PL_UNROLL for (int h = 0; h < VECS; h++) v[h] = v_load(acc + ((b - b0) * m + t) * ROWS + h * LANES);
            put_y(p, t0 + t, b * ROWS, v);
        }
}

/* Groups g0..g1 of x: rounded, summed, divided by the powers of two of their places, tokens of a group side by side. */
static void prepare(const pl_product *p, int64_t group, int64_t g0, int64_t g1)
{
    for (int64_t g = g0; g < g1; g++) {
        const int64_t n = pl_min(group, p->m - g * group);
        for (int64_t t = 0; t < n; t++) {
            float *x = p->x + g * group * p->units * UNIT + t, *sum = p->sum + g * group * p->units + t;
            for (int64_t u = 0; u < p->units; u++, x += UNIT * n, sum += n) {
                float v[UNIT];
                round_unit(p, g * group + t, u, v, sum);
                PL_UNROLL for (int k = 0; k < UNIT; k++) x[k * n] = v[k];
            }
        }
    }
}

#define PATH_OF_BODY                                                                                            \
    {                                                                                                           \
        .prepare = prepare, .few = few, .many = many, .few_tokens = 4, .few_group = FEW_T, .many_group = TILE_T, \
        .many_tokens = MANY_TOKENS, .many_blocks = MANY_BLOCKS,                                                 \
        .scratch_floats = PANEL + 2 * SCALES + MANY_TOKENS * MANY_BLOCKS * ROWS                                 \
    }
