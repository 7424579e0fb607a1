/* linear_body.h: the product with fma on vectors of LANES rows; included by linear_avx2.c and linear_avx512.c, which
 * give the vectors (vec8.h, vec16.h). A lane is an output row, so nothing is summed across lanes, and the order of
 * sums is that of the definition (linear.c). */
#include "linear_decode.h"

/* x lies in groups of tokens: [units*32][tokens of the group], so that one pointer serves a tile. */

enum { EVEN = 1, ODD = 2, BY_BITS = 4 /* the quick way of linear_decode.h */ };

/* Pair i of octet j for all 16 rows. */
PL_INLINE void pair_of_rows(const int dtype, const int which, const uint8_t *code, const uint8_t *high, int j,
                            const int i, V even[VECS], V odd[VECS])
{
    code += j * octet_bytes(dtype);
#if QUICK
    if (which & BY_BITS) {
        quick_pair(dtype, code, i, even, odd);
        return;
    }
#else
    (void)which;
#endif
    PL_UNROLL for (int h = 0; h < VECS; h++) pair(dtype, code, high, j, i, h, &even[h], &odd[h]);
}

/* What octets from..to of a unit add to the chains of several tokens over the even k, the odd k, or both, from 0. V_MAC
 * says where sums are, V_CLEAR and V_SETTLE when: left alone gcc keeps some of them in memory. */
PL_INLINE void chains(const int dtype, const int T, const int which, const uint8_t *code, const uint8_t *high,
                      const int from, const int to, const float *x, V e[][VECS], V o[][VECS])
{
    const bool even = which & EVEN, odd = which & ODD;
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        if (even) V_CLEAR(e[t][h]);
        if (odd) V_CLEAR(o[t][h]);
    }
    for (int j = from; j < to; j++) PL_UNROLL for (int i = 0; i < 4; i++)
        {
            const float *xi = x + (8 * j + 2 * i) * T;
            V we[VECS], wo[VECS];
            pair_of_rows(dtype, which, code, high, j, i, we, wo);
            if (even) PL_UNROLL for (int t = 0; t < T; t++)
                {
                    const V xe = v_set(xi[t]);
                    PL_UNROLL for (int h = 0; h < VECS; h++) V_MAC(e[t][h], we[h], xe);
                }
            if (odd) PL_UNROLL for (int t = 0; t < T; t++)
                {
                    const V xo = v_set(xi[T + t]);
                    PL_UNROLL for (int h = 0; h < VECS; h++) V_MAC(o[t][h], wo[h], xo);
                }
        }
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        if (even) V_SETTLE(e[t][h]);
        if (odd) V_SETTLE(o[t][h]);
    }
}

/* Sums of T tokens by block row b, straight from the packed form. With `split` the even chains of a unit are finished
 * before the odd ones begin: half as many accumulators, for many tokens. One token's code is left to the compiler. */
PL_INLINE void direct(const int dtype, const int T, const bool split, const pl_product *p, int64_t b, int64_t t0)
{
    enum { AHEAD = 4096, MAX_T = 6 };
    const pl_layout *l = &pl_layout_table[dtype];
    const float *x = p->x + t0 * p->units * UNIT, *sum = p->sum + t0 * p->units;
    const int per = l->k / UNIT, step = l->bytes / per, halves = pl_has_halves(dtype) ? 2 : 1;
    const uint8_t *block = p->w + b * p->w_bytes;
    V acc[MAX_T][VECS];
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) acc[t][h] = v_zero();
    for (int64_t u = 0; u < p->units; block += l->bytes)
        for (int in = 0; in < per && u < p->units; in++, u++, x += UNIT * T, sum += T) {
            const uint8_t *code = block + l->code + in * l->code_step, *high = block + l->high + in * l->high_step;
            V e[MAX_T][VECS], o[MAX_T][VECS];
            PL_UNROLL for (int j = 0; j < step; j += 64) _mm_prefetch((const char *)code + AHEAD + j, _MM_HINT_T0);
            if (T == 1) PL_UNROLL for (int h = 0; h < VECS; h++) e[0][h] = o[0][h] = v_zero();
            if (T == 1) PL_UNROLL for (int j = 0; j < 4; j++)
                {
                    PL_UNROLL for (int i = 0; i < 4; i++) PL_UNROLL for (int h = 0; h < VECS; h++)
                    {
                        V we, wo;
                        pair(dtype, code + j * octet_bytes(dtype), high, j, i, h, &we, &wo);
                        e[0][h] = v_fma(we, v_set(x[8 * j + 2 * i]), e[0][h]);
                        o[0][h] = v_fma(wo, v_set(x[8 * j + 2 * i + 1]), o[0][h]);
                    }
                    if (pl_has_halves(dtype) && j == 1) /* the first 16 k are a group of their own */
                        PL_UNROLL for (int h = 0; h < VECS; h++)
                        {
                            acc[0][h] = v_fma(scale_of(dtype, block, in, 0, h), v_add(e[0][h], o[0][h]), acc[0][h]);
                            e[0][h] = o[0][h] = v_zero();
                        }
                }
            else
                PL_UNROLL for (int half = 0; half < halves; half++)
                {
                    const int from = 4 / halves * half, to = from + 4 / halves;
                    chains(dtype, T, split ? EVEN : EVEN | ODD, code, high, from, to, x, e, o);
                    if (split) chains(dtype, T, ODD, code, high, from, to, x, e, o);
                    if (half + 1 < halves) PL_UNROLL for (int h = 0; h < VECS; h++)
                        {
                            const V d = scale_of(dtype, block, in, 0, h);
                            PL_UNROLL for (int t = 0; t < T; t++) acc[t][h] =
                                v_fma(d, v_add(e[t][h], o[t][h]), acc[t][h]);
                        }
                }
            PL_UNROLL for (int h = 0; h < VECS; h++)
            {
                const V d = scale_of(dtype, block, in, 1, h);
                PL_UNROLL for (int t = 0; t < T; t++)
                {
                    const V s = v_add(e[t][h], o[t][h]);
                    acc[t][h] = pl_has_scale(dtype) ? v_fma(d, s, acc[t][h]) : v_add(s, acc[t][h]);
                }
                if (pl_has_minimum(dtype)) {
                    const V m = min_of(dtype, block, in, h);
                    PL_UNROLL for (int t = 0; t < T; t++) acc[t][h] = v_fma(m, v_set(sum[t]), acc[t][h]);
                }
            }
        }
    PL_UNROLL for (int t = 0; t < T; t++) put_y(p, t0 + t, b * ROWS, acc[t]);
}

#if QUICK
/* direct for the quick way. Only the loop keeps denormals: a scale or a bias that is one counts as 0. */
PL_INLINE void quick(const int dtype, const int T, const bool split, const pl_product *p, int64_t b, int64_t t0)
{
    enum { AHEAD = 4096, MAX_T = 6 };
    const pl_layout *l = &pl_layout_table[dtype];
    const float *x = p->x + t0 * p->units * UNIT;
    const int per = l->k / UNIT, step = l->bytes / per, halves = pl_has_halves(dtype) ? 2 : 1;
    const uint8_t *block = p->w + b * p->w_bytes;
    V acc[MAX_T][VECS];
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) acc[t][h] = v_zero();
    const uint32_t mode = _mm_getcsr();
    pl_fp_keep_denormals();
    for (int64_t u = 0; u < p->units; block += l->bytes)
        for (int in = 0; in < per && u < p->units; in++, u++, x += UNIT * T) {
            const uint8_t *code = block + l->code + in * l->code_step;
            PL_UNROLL for (int j = 0; j < step; j += 64) _mm_prefetch((const char *)code + AHEAD + j, _MM_HINT_T0);
            PL_UNROLL for (int half = 0; half < halves; half++)
            {
                const int from = 4 / halves * half, to = from + 4 / halves;
                V e[MAX_T][VECS], o[MAX_T][VECS], d[VECS];
                chains(dtype, T, BY_BITS | EVEN | (split ? 0 : ODD), code, NULL, from, to, x, e, o);
                if (split) chains(dtype, T, BY_BITS | ODD, code, NULL, from, to, x, e, o);
                if (pl_has_scale(dtype))
                    PL_UNROLL for (int h = 0; h < VECS; h++) d[h] = quick_scale(dtype, block, in, half, h);
                PL_UNROLL for (int t = 0; t < T; t++)
                {
                    V s[VECS];
                    PL_UNROLL for (int h = 0; h < VECS; h++) s[h] =
                        v_mul(v_add(e[t][h], o[t][h]), quick_missing(dtype));
                    quick_rows(dtype, s);
                    PL_UNROLL for (int h = 0; h < VECS; h++) acc[t][h] =
                        pl_has_scale(dtype) ? v_fma(d[h], s[h], acc[t][h]) : v_add(s[h], acc[t][h]);
                }
            }
        }
    _mm_setcsr(mode);
    PL_UNROLL for (int t = 0; t < T; t++) put_y(p, t0 + t, b * ROWS, acc[t]);
}
#endif

/* A part of w as floats: panel [units*32][16], scales [units][2][16] (halves mostly equal), minima [units][16]. */
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
        for (int j = 0; j < 4; j++, code += octet_bytes(dtype))
            PL_UNROLL for (int i = 0; i < 4; i++) PL_UNROLL for (int h = 0; h < VECS; h++)
            {
                float *to = a->panel + (u * UNIT + 8 * j + 2 * i) * ROWS + h * LANES;
                V we, wo;
                pair(dtype, code, high, j, i, h, &we, &wo);
                v_store(to, we);
                v_store(to + ROWS, wo);
            }
        PL_UNROLL for (int h = 0; h < VECS; h++)
        {
            PL_UNROLL for (int half = 0; half < 2; half++)
                v_store(a->scale + (u * 2 + half) * ROWS + h * LANES, scale_of(dtype, block, in, half, h));
            if (pl_has_minimum(dtype)) v_store(a->min + u * ROWS + h * LANES, min_of(dtype, block, in, h));
        }
    }
}

/* One chain of a tile: every second k from w and x on, n of them. */
PL_INLINE void chain(const int T, const int n, const float *w, const float *x, V s[][VECS])
{
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) s[t][h] = v_zero();
    PL_UNROLL for (int i = 0; i < n; i++)
    {
        V wi[VECS];
        PL_UNROLL for (int h = 0; h < VECS; h++)
        {
            wi[h] = v_load(w + 2 * i * ROWS + h * LANES);
            V_KEEP(wi[h]);
        }
        PL_UNROLL for (int t = 0; t < T; t++)
        {
            const V xi = v_set(x[2 * i * T + t]);
            PL_UNROLL for (int h = 0; h < VECS; h++) V_MAC(s[t][h], wi[h], xi);
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
            chain(T, pairs, w, x, e);
            chain(T, pairs, w + ROWS, x + T, o);
            PL_UNROLL for (int h = 0; h < VECS; h++)
            {
                const V d = v_load(a->scale + (u * 2 + half) * ROWS + h * LANES);
                PL_UNROLL for (int t = 0; t < T; t++)
                {
                    V s = v_fma(d, v_add(e[t][h], o[t][h]), v_load(acc + t * ROWS + h * LANES));
                    if (min) s = v_fma(v_load(a->min + u * ROWS + h * LANES), v_set(sum[t]), s);
                    v_store(acc + t * ROWS + h * LANES, s);
                }
            }
        }
    }
}

#ifndef PL_FEW_T
#define PL_FEW_T 4
#define PL_FEW_CASES(F)
#endif
enum { TILE_T = PL_TILE_T, FEW_T = PL_FEW_T };
#define TILES(NAME, MIN, HALVES)                                                                                  \
    static void NAME(int64_t n, const part *a, const float *x, const float *sum, int64_t units, float *acc)       \
    {                                                                                                             \
        for (; n >= TILE_T; n -= TILE_T, x += TILE_T * units * UNIT, sum += TILE_T * units, acc += TILE_T * ROWS) \
            tile(TILE_T, MIN, HALVES, a, x, sum, acc);                                                            \
        switch (n) { /* the last group is short */                                                                \
            TAILS(MIN, HALVES)                                                                                    \
        default:                                                                                                  \
            break;                                                                                                \
        }                                                                                                         \
    }
#define TAIL(T, MIN, HALVES)                  \
    case T:                                   \
        tile(T, MIN, HALVES, a, x, sum, acc); \
        break;
#define TAILS(MIN, HALVES) \
    TAIL(1, MIN, HALVES)   \
    TAIL(2, MIN, HALVES) TAIL(3, MIN, HALVES) TAIL(4, MIN, HALVES) TAIL(5, MIN, HALVES) PL_TILE_TAILS(MIN, HALVES)
TILES(tiles_plain, false, false)
TILES(tiles_min, true, false)
TILES(tiles_halves, false, true)

/* One function a format: few tokens, and unpacking. */
#define FORMATS(X) X(F32) X(F16) PL_TILE_FORMATS(X)
#define FEW(F)                                                                           \
    static void few_##F(const pl_product *p, int64_t b0, int64_t b1)                     \
    {                                                                                    \
        const bool split = LANES == 8;                                                   \
        for (int64_t b = b0; b < b1; b++)                                                \
            for (int64_t t = 0; t < p->m; t += FEW_T) switch (pl_min(FEW_T, p->m - t)) { \
                case 1:                                                                  \
                    direct(PL_##F, 1, false, p, b, t);                                   \
                    break;                                                               \
                case 2:                                                                  \
                    direct(PL_##F, 2, false, p, b, t);                                   \
                    break;                                                               \
                case 3:                                                                  \
                    direct(PL_##F, 3, split, p, b, t);                                   \
                    break;                                                               \
                    PL_FEW_CASES(F)                                                      \
                default:                                                                 \
                    direct(PL_##F, FEW_T, split, p, b, t);                               \
                }                                                                        \
    }
FORMATS(FEW)
#if QUICK
#define QUICK_FEW(F)                                                                     \
    static void quick_##F(const pl_product *p, int64_t b0, int64_t b1)                   \
    {                                                                                    \
        for (int64_t b = b0; b < b1; b++)                                                \
            for (int64_t t = 0; t < p->m; t += FEW_T) switch (pl_min(FEW_T, p->m - t)) { \
                case 1:                                                                  \
                    quick(PL_##F, 1, false, p, b, t);                                    \
                    break;                                                               \
                case 2:                                                                  \
                    quick(PL_##F, 2, false, p, b, t);                                    \
                    break;                                                               \
                case 3:                                                                  \
                    quick(PL_##F, 3, true, p, b, t);                                     \
                    break;                                                               \
                default:                                                                 \
                    quick(PL_##F, FEW_T, true, p, b, t);                                 \
                }                                                                        \
    }
QUICK_FORMATS(QUICK_FEW)

/* Can x be QUICK_UP as large? */
static bool quick_fits(const pl_product *p)
{
    I top = i_set(0);
    if (p->act != PL_ACT_BF16) return false;
    switch (p->dtype) {
#define CASE(F) case PL_##F:
        QUICK_FORMATS(CASE)
#undef CASE
        break;
    default:
        return false;
    }
    for (int64_t t = 0; t < p->m; t++) {
        const float *x = p->src + t * p->src_ld;
        for (int64_t k = 0; k < p->k; k += LANES) {
            const I v = k + LANES <= p->k ? i_load(x + k) : i_rest(x + k, p->k - k);
            top = i_max(top, i_and(v, i_set(0x7fffffff)));
        }
    }
    return i_top(top) < (int32_t)pl_f32_bits(QUICK_LIMIT);
}
static void quick_few(const pl_product *p, int64_t b0, int64_t b1)
{
    switch (p->dtype) {
#define CASE(F)               \
    case PL_##F:              \
        quick_##F(p, b0, b1); \
        return;
        QUICK_FORMATS(CASE)
#undef CASE
    default:
        PL_ASSERT(false);
    }
}
#define QUICK_OF_BODY .quick = quick_fits,
#else
#define QUICK_OF_BODY
#endif
#define UNPACK(F) \
    static void unpack_##F(const uint8_t *blocks, int64_t u0, const part *a) { unpack(PL_##F, blocks, u0, a); }
FORMATS(UNPACK)

static void few(const pl_product *p, int64_t b0, int64_t b1)
{
#if QUICK
    if (p->quick) {
        quick_few(p, b0, b1);
        return;
    }
#endif
    switch (p->dtype) {
#define CASE(F)             \
    case PL_##F:            \
        few_##F(p, b0, b1); \
        return;
        FORMATS(CASE)
#undef CASE
    default:
        PL_ASSERT(false);
    }
}
static void unpack_part(int32_t dtype, const uint8_t *blocks, int64_t u0, const part *a)
{
    switch (dtype) {
#define CASE(F)                    \
    case PL_##F:                   \
        unpack_##F(blocks, u0, a); \
        return;
        FORMATS(CASE)
#undef CASE
    default:
        PL_ASSERT(false);
    }
}

/* n tokens from the place `at` of sums, whose x is at 32 times that. */
static void run_tiles(const pl_product *p, int64_t n, const part *a, int64_t at, float *acc)
{
    const float *x = p->x + at * UNIT, *sum = p->sum + at;
    if (pl_has_minimum(p->dtype))
        tiles_min(n, a, x, sum, p->units, acc);
    else if (pl_has_halves(p->dtype))
        tiles_halves(n, a, x, sum, p->units, acc);
    else
        tiles_plain(n, a, x, sum, p->units, acc);
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
    float by[UNIT];
    place_factors(p, by);
    for (int64_t g = g0; g < g1; g++) {
        const int64_t n = pl_min(group, p->m - g * group);
        for (int64_t t = 0; t < n; t++) {
            float *x = p->x + g * group * p->units * UNIT + t, *sum = p->sum + g * group * p->units + t;
            for (int64_t u = 0; u < p->units; u++, x += UNIT * n, sum += n) {
                float v[UNIT];
                round_unit(p, by, g * group + t, u, v, sum);
                PL_UNROLL for (int k = 0; k < UNIT; k++) x[k * n] = v[k];
            }
        }
    }
}

#define PATH_OF_BODY                                                                                            \
    {                                                                                                           \
        QUICK_OF_BODY.prepare = prepare, .few = few, .many = many, .few_tokens = 3 * FEW_T, .few_group = FEW_T, \
        .many_group = TILE_T, .many_tokens = MANY_TOKENS, .many_blocks = MANY_BLOCKS,                           \
        .scratch_floats = PANEL + 2 * SCALES + MANY_TOKENS * MANY_BLOCKS * ROWS                                 \
    }
