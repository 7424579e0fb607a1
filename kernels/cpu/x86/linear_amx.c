/* linear_amx.c: the product on tiles, for x in bf16 and weights whose codes are exact in bf16 (all but f16 and f32).
 * Compiled twice: for the tile unit with AVX-512, and with tiles in plain vectors (PL_SOFT_TILES) for AVX2.
 *
 * Formats without scales add up in the tile unit; with others a tile of sums leaves it after each step of 32 k (or 16),
 * to be scaled and added to sums in registers. Up to 16 tokens w goes by once, from memory to tiles. For more, parts
 * of some block rows become tiles in L1 and meet all tokens of the call, whose x for this part of k stays in L2. */
#include "tiles.h"
#ifdef PL_SOFT_TILES
#define PATH pl_linear_soft_amx
#elif !defined(PATH)
#define PATH pl_linear_amx
#endif
#include "linear_words.h"

/* NOLINTBEGIN(readability-non-const-parameter): tiles are stored through them, which asm does not show */
enum {
    TOKENS = 16,          /* of a tile of x */
    TILE = TOKENS * UNIT, /* bf16 values of a tile of x or of w */
    SUMS = TOKENS * ROWS, /* floats of a tile of sums */
    PART = 8,             /* units unpacked at once, or under way */
    SPAN = 2,             /* block rows unpacked at once */
    MANY_TOKENS = 512,
    MANY_BLOCKS = 16,
    LATE = 3,    /* few tokens: a tile is used so many units after it was stored */
    AHEAD = 4096 /* bytes that are fetched ahead */
};

/* Some units of w: tiles, scales, minima. Where these tiles, those of x and sums lie is part of the kernel: a load waits for
 * stores under way whose addresses end in the same 12 bits. So units that are multiples of four begin at multiples of
 * 4096, in w as in x, and sums are stored where no load of the next three units is. */
typedef struct units_of_w {
    _Alignas(PL_X_ALIGN) uint16_t tile[PART][TILE];
    float scale[PART][2 * ROWS], min[PART][ROWS];
} units_of_w;

PL_INLINE const uint8_t *block_of(const pl_layout *l, const uint8_t *blocks, int64_t u)
{
    return blocks + u / (l->k / UNIT) * l->bytes;
}
PL_INLINE void unpack_unit(const int dtype, const uint8_t *blocks, int64_t u, units_of_w *to, int64_t at)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const uint8_t *block = block_of(l, blocks, u);
    const int in = (int)(u % (l->k / UNIT));
    unit_words(dtype, block + l->code + in * l->code_step, block + l->high + in * l->high_step, to->tile[at]);
    PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        if (pl_has_scale(dtype)) v_store(to->scale[at] + h * LANES, scale_of(dtype, block, in, 0, h));
        if (pl_has_halves(dtype)) v_store(to->scale[at] + ROWS + h * LANES, scale_of(dtype, block, in, 1, h));
        if (pl_has_minimum(dtype)) v_store(to->min[at] + h * LANES, min_of(dtype, block, in, h));
    }
}
PL_INLINE void fetch_ahead(const int dtype, const uint8_t *blocks, int64_t u)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int step = l->bytes / (l->k / UNIT);
    const uint8_t *at = blocks + u * step + AHEAD;
    PL_UNROLL for (int j = 0; j < step; j += 64) _mm_prefetch((const char *)at + j, _MM_HINT_T0);
}

/* acc[t] += scale * c[t], and min * S of the token, for T tokens; s: [TOKENS] */
PL_INLINE void add_step(const int T, const bool has_min, V acc[][VECS], const float *c, const float *scale,
                        const float *min, const float *s)
{
    PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        const V d = v_load(scale + h * LANES);
        PL_UNROLL for (int t = 0; t < T; t++) V_MAC_AT(acc[t][h], d, c + t * ROWS + h * LANES);
        if (has_min) {
            const V m = v_load(min + h * LANES);
            PL_UNROLL for (int t = 0; t < T; t++) V_MAC_ONE(acc[t][h], m, s + t);
        }
    }
}

/* Step s of 32 k, or with `halves` of 16: in sum 0 or 1, by turns, which is stored when its turn comes again. Storing a
 * tile at once would stop the unit until the sum is done. */
PL_INLINE void step(T_TILES, const bool odd, const bool halves, const uint16_t *w, const uint16_t *x, int64_t s,
                    int64_t n, bool store, float *c)
{
    if (halves) {
        w += s % 2 * (TILE / 2);
        x += s % 2 * (UNIT / 2);
    }
    if (odd) {
        if (s < n) T_LOAD(5, x, 64);
        if (s < n) T_LOAD(7, w, 64);
        if (store) T_STORE(1, c, 64);
        T_ZERO(1);
        if (s < n) T_STEP(1, 5, 7);
    } else {
        if (s < n) T_LOAD(4, x, 64);
        if (s < n) T_LOAD(6, w, 64);
        if (store) T_STORE(0, c, 64);
        T_ZERO(0);
        if (s < n) T_STEP(0, 4, 6);
    }
}
/* Place of the sum that is stored at step s. */
PL_INLINE int64_t sum_at(const bool halves, int64_t s) { return (halves ? s / 2 + s % 2 * 3 : s) % 4 * SUMS; }
enum { STEP_LATE = 3 }; /* steps until a sum has reached memory */

/* Block row b for at most T tokens. */
PL_INLINE void few_scaled(T_TILES, const int dtype, const int T, const pl_product *p, int64_t b)
{
    const bool halves = pl_has_halves(dtype), has_min = pl_has_minimum(dtype);
    const int per = 1 + halves;
    const uint8_t *blocks = p->w + b * p->w_bytes;
    const int64_t n = p->units * per;
    _Alignas(PL_X_ALIGN) float c[4 * SUMS];
    units_of_w w;
    V acc[TOKENS][VECS];
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) acc[t][h] = v_zero();
    for (int64_t i = 0; i < p->units && i < LATE; i++) unpack_unit(dtype, blocks, i, &w, i);
    for (int64_t two = 0; two < n + STEP_LATE; two += 2) PL_UNROLL for (int odd = 0; odd < 2; odd++)
        {
            const int64_t s = two + odd, u = s / per, before = s - STEP_LATE;
            if ((!halves || !odd) && u + LATE < p->units) {
                fetch_ahead(dtype, blocks, u + LATE);
                unpack_unit(dtype, blocks, u + LATE, &w, (u + LATE) % PART);
            }
            step(T_HERE, odd, halves, w.tile[u % PART], p->xb + u * TILE, s, n, s > 1, c + sum_at(halves, s));
            if (before >= 0 && before < n) {
                const int64_t at = before / per % PART;
                add_step(T, has_min, acc, c + sum_at(halves, s - 1), w.scale[at] + (halves ? before % 2 * ROWS : 0),
                         w.min[at], p->sum + before * TOKENS);
            }
        }
    PL_UNROLL for (int t = 0; t < T; t++) if (t < p->m) put_y(p, t, b * ROWS, acc[t]);
}

PL_INLINE const uint16_t *plain_tile(const int dtype, const uint8_t *blocks, int64_t u, const units_of_w *w)
{
    return dtype == PL_BF16 ? (const uint16_t *)(const void *)(blocks + u * TILE * 2) : w->tile[u % PART];
}
/* Block row b, and the next one if there are two: sums of the one do not wait for those of the other. */
PL_INLINE void few_plain(T_TILES, const int dtype, const bool two, const pl_product *p, int64_t b)
{
    const uint8_t *w0 = p->w + b * p->w_bytes, *w1 = w0 + p->w_bytes;
    _Alignas(64) float c[2][SUMS];
    units_of_w w[2];
    T_ZERO(0);
    T_ZERO(1);
    for (int64_t u = 0; u < p->units + LATE; u++) {
        const int64_t now = u - LATE;
        if (u < p->units) {
            fetch_ahead(dtype, w0, u);
            if (two) fetch_ahead(dtype, w1, u);
            if (dtype != PL_BF16) unpack_unit(dtype, w0, u, &w[0], u % PART);
            if (dtype != PL_BF16 && two) unpack_unit(dtype, w1, u, &w[1], u % PART);
        }
        if (now < 0) continue;
        T_LOAD(4, p->xb + now * TILE, 64);
        T_LOAD(6, plain_tile(dtype, w0, now, &w[0]), 64);
        T_STEP(0, 4, 6);
        if (two) {
            T_LOAD(6, plain_tile(dtype, w1, now, &w[1]), 64);
            T_STEP(1, 4, 6);
        }
    }
    T_STORE(0, c[0], 64);
    T_STORE(1, c[1], 64);
    for (int64_t t = 0; t < p->m; t++)
        for (int i = 0; i < 1 + two; i++) {
            V v[VECS];
            PL_UNROLL for (int h = 0; h < VECS; h++) v[h] = v_load(c[i] + t * ROWS + h * LANES);
            put_y(p, t, (b + i) * ROWS, v);
        }
}
PL_INLINE void few_of(const int dtype, const pl_product *p, int64_t b0, int64_t b1)
{
    const int T = p->m <= 4 ? 4 : p->m <= 8 ? 8 : TOKENS;
    const int bytes = pl_has_halves(dtype) ? 32 : 64; /* of a row of x that a step takes */
    T_BEGIN(T, bytes, bytes);
    for (int64_t b = b0; b < b1; b++) {
        if (!pl_has_scale(dtype)) {
            if (b + 1 < b1)
                few_plain(T_HERE, dtype, true, p, b++);
            else
                few_plain(T_HERE, dtype, false, p, b);
        } else if (T == 4) {
            few_scaled(T_HERE, dtype, 4, p, b);
        } else if (T == 8) {
            few_scaled(T_HERE, dtype, 8, p, b);
        } else {
            few_scaled(T_HERE, dtype, TOKENS, p, b);
        }
    }
    T_END();
}

/* A part of some block rows of w, unpacked. */
typedef struct part {
    units_of_w *w; /* [SPAN] */
    const uint16_t *tiles[SPAN];
    int64_t units;
    bool first; /* sums begin here */
} part;

PL_INLINE void unpack(const int dtype, const uint8_t *blocks, int64_t u0, int i, part *a)
{
    for (int64_t u = 0; u < a->units; u++) unpack_unit(dtype, blocks, u0 + u, &a->w[i], u);
}

#define FORMATS PL_TILE_FORMATS
#define KERNELS(F)                                                                                  \
    static void few_##F(const pl_product *p, int64_t b0, int64_t b1) { few_of(PL_##F, p, b0, b1); } \
    static void unpack_##F(const uint8_t *blocks, int64_t u0, int i, part *a) { unpack(PL_##F, blocks, u0, i, a); }
FORMATS(KERNELS)
static void few(const pl_product *p, int64_t b0, int64_t b1)
{
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
static void unpack_part(int32_t dtype, const uint8_t *blocks, int64_t u0, int i, part *a)
{
    switch (dtype) {
#define CASE(F)                       \
    case PL_##F:                      \
        unpack_##F(blocks, u0, i, a); \
        return;
        FORMATS(CASE)
#undef CASE
    default:
        PL_ASSERT(false);
    }
}

/* Lines that are asked for ahead of their time, one by one between other work: pieces of so many lines, `jump` bytes
 * from the end of one to the beginning of the next. */
typedef struct fetch {
    const uint8_t *at;
    int64_t lines, left, piece, jump;
} fetch;
static fetch fetch_of(const void *at, int64_t pieces, int64_t bytes, int64_t apart)
{
    const int64_t piece = (bytes + 63) / 64;
    return (fetch){at, pieces * piece, piece, piece, apart - piece * 64};
}
PL_INLINE void fetch_line(fetch *f)
{
    if (f->lines <= 0) return;
    _mm_prefetch((const char *)f->at, _MM_HINT_T1);
    f->lines--;
    f->at += 64;
    if (--f->left > 0) return;
    f->left = f->piece;
    f->at += f->jump;
}
/* What is on its way while a part of some block rows is computed: x for the next part of k, and the next part of w. */
typedef struct coming {
    fetch x, w;
} coming;

/* A part of k for one tile of tokens and one block row: sums [16][16] at `to` are added to. */
typedef struct tile_job {
    const units_of_w *w;
    const uint16_t *x;
    const float *sum;
    float *to;
} tile_job;
PL_INLINE void move_sums(const bool load, V acc[TOKENS][VECS], float *at)
{
    PL_UNROLL for (int t = 0; t < TOKENS; t++) PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        float *to = at + t * ROWS + h * LANES;
        if (load)
            acc[t][h] = v_load(to);
        else
            v_store(to, acc[t][h]);
    }
}
PL_INLINE void add_late(const bool halves, const bool has_min, V acc[TOKENS][VECS], const tile_job *job, int64_t s,
                        const float *c)
{
    const int64_t u = halves ? s / 2 : s;
    add_step(TOKENS, has_min, acc, c, job->w->scale[u] + (halves ? s % 2 * ROWS : 0), job->w->min[u],
             job->sum + u * TOKENS);
}
PL_INLINE void scaled(T_TILES, const bool halves, const bool has_min, int64_t n, const tile_job *job, float *c)
{
    V acc[TOKENS][VECS];
    move_sums(true, acc, job->to);
    for (int64_t two = 0; two < n + STEP_LATE; two += 2) PL_UNROLL for (int odd = 0; odd < 2; odd++)
        {
            const int64_t s = two + odd, u = halves ? s / 2 : s, before = s - STEP_LATE;
            step(T_HERE, odd, halves, job->w->tile[u % PART], job->x + u * TILE, s, n, s > 1, c + sum_at(halves, s));
            if (before >= 0 && before < n) add_late(halves, has_min, acc, job, before, c + sum_at(halves, s - 1));
        }
    move_sums(false, acc, job->to);
}
#define BEGIN_SUM(t, p)         \
    do {                        \
        if (a->first)           \
            T_ZERO(t);          \
        else                    \
            T_LOAD(t, (p), 64); \
    } while (0)
/* A part of k for one or two tiles of tokens and one or two block rows from i on. before: where the sums of the last
 * four tiles, which are still in the unit, belong, or NULL; these stay there too if it is not NULL. Each is stored just
 * before its place is needed: at once it would stop the unit until the sum is done. */
/* NOLINTNEXTLINE(readability-function-size): one loop, which is the kernel */
PL_INLINE void plain(T_TILES, const bool two_x, const bool two_w, const part *a, int i, const uint16_t *x,
                     int64_t next_x, float *at, float *before, int64_t next_row, coming *next)
{
    const uint16_t *w0 = a->tiles[i], *w1 = two_w ? a->tiles[i + 1] : NULL;
    if (before) T_STORE(0, before, 64);
    BEGIN_SUM(0, at);
    for (int64_t u = 0; u < a->units; u++, x += TILE) {
        PL_UNROLL for (int f = 0; f < 4; f++) fetch_line(&next->x);
        fetch_line(&next->w);
        fetch_line(&next->w);
        T_LOAD(4, x, 64);
        T_LOAD(6, w0 + u * TILE, 64);
        T_STEP(0, 4, 6);
        if (two_w) {
            if (u == 0) {
                if (before) T_STORE(1, before + next_row, 64);
                BEGIN_SUM(1, at + next_row);
            }
            T_LOAD(7, w1 + u * TILE, 64);
            T_STEP(1, 4, 7);
        }
        if (two_x) {
            if (u == 0) {
                if (before) T_STORE(2, before + SUMS, 64);
                BEGIN_SUM(2, at + SUMS);
            }
            T_LOAD(5, x + next_x, 64);
            T_STEP(2, 5, 6);
        }
        if (two_x && two_w) {
            if (u == 0) {
                if (before) T_STORE(3, before + next_row + SUMS, 64);
                BEGIN_SUM(3, at + next_row + SUMS);
            }
            T_STEP(3, 5, 7);
        }
    }
}
PL_INLINE void store_sums(T_TILES, const bool two_x, const bool two_w, float *at, int64_t next_row)
{
    T_STORE(0, at, 64);
    if (two_w) T_STORE(1, at + next_row, 64);
    if (two_x) T_STORE(2, at + SUMS, 64);
    if (two_x && two_w) T_STORE(3, at + next_row + SUMS, 64);
}

/* What a call works on: x, and sums of x [units][16], of the first tile of tokens for a part of k; sums of y
 * [block rows][tiles][16][16]. */
typedef struct place {
    const uint16_t *x;
    const float *sum;
    int64_t next_x, next_sum; /* of the next tile of tokens */
    int64_t tiles;
    float *y, *c;
    int64_t next_row;
} place;

/* All tiles of tokens by n block rows. */
static void plain_part(T_TILES, const part *a, int n, const place *o, coming *next)
{
    float *before = NULL;
    for (int64_t j = 0; j + 1 < o->tiles; j += 2)
        for (int i = 0; i + 1 < n; i += 2) {
            float *at = o->y + i * o->next_row + j * SUMS;
            if (before)
                plain(T_HERE, true, true, a, i, o->x + j * o->next_x, o->next_x, at, before, o->next_row, next);
            else
                plain(T_HERE, true, true, a, i, o->x + j * o->next_x, o->next_x, at, NULL, o->next_row, next);
            before = at;
        }
    if (before) store_sums(T_HERE, true, true, before, o->next_row);
    if (n % 2) /* what is left: a row, a column, a corner */
        for (int64_t j = 0; j + 1 < o->tiles; j += 2) {
            float *at = o->y + (n - 1) * o->next_row + j * SUMS;
            plain(T_HERE, true, false, a, n - 1, o->x + j * o->next_x, o->next_x, at, NULL, 0, next);
            store_sums(T_HERE, true, false, at, 0);
        }
    if (o->tiles % 2 == 0) return;
    const uint16_t *x = o->x + (o->tiles - 1) * o->next_x;
    for (int i = 0; i + 1 < n; i += 2) {
        float *at = o->y + i * o->next_row + (o->tiles - 1) * SUMS;
        plain(T_HERE, false, true, a, i, x, 0, at, NULL, o->next_row, next);
        store_sums(T_HERE, false, true, at, o->next_row);
    }
    if (n % 2) {
        float *at = o->y + (n - 1) * o->next_row + (o->tiles - 1) * SUMS;
        plain(T_HERE, false, false, a, n - 1, x, 0, at, NULL, 0, next);
        store_sums(T_HERE, false, false, at, 0);
    }
}
/* Tile number i of the call, block rows within tokens. */
PL_INLINE tile_job job_of(const part *a, const place *o, int rows, int64_t i)
{
    const int64_t j = i / rows, row = i % rows;
    return (tile_job){a->w + row, o->x + j * o->next_x, o->sum + j * o->next_sum, o->y + row * o->next_row + j * SUMS};
}
/* Whole pairs of steps, at least two: the steps of a tile begin while the last ones of the tile before are under way. */
PL_INLINE void scaled_flow(T_TILES, const bool halves, const bool has_min, const part *a, int rows, const place *o,
                           coming *next)
{
    const int64_t n = a->units * (1 + halves), tiles = o->tiles * rows;
    float *c = o->c;
    V acc[TOKENS][VECS];
    tile_job before = job_of(a, o, rows, 0), now = before;
    move_sums(true, acc, before.to);
    for (int64_t i = 0; i <= tiles; i++, before = now) {
        const bool some = i < tiles;
        const int64_t end = some ? n : 0; /* at last only what is left of the one before */
        if (some) now = job_of(a, o, rows, i);
        PL_UNROLL for (int s = 0; s < STEP_LATE; s++)
        {
            const int64_t u = halves ? s / 2 : s;
            fetch_line(&next->x);
            if (s % 2) fetch_line(&next->w);
            step(T_HERE, s % 2, halves, now.w->tile[u], now.x + u * TILE, s, end, i > 0 || s > 1,
                 c + sum_at(halves, s));
            if (i > 0)
                add_late(halves, has_min, acc, &before, n - STEP_LATE + s, c + sum_at(halves, s ? s - 1 : n - 1));
        }
        if (!some) break;
        if (i > 0) {
            move_sums(false, acc, before.to);
            move_sums(true, acc, now.to);
        }
        for (int64_t two = STEP_LATE - 1; two < n; two += 2) PL_UNROLL for (int odd = 0; odd < 2; odd++)
            {
                const int64_t s = two + odd, u = halves ? s / 2 : s;
                if (s < STEP_LATE) continue;
                fetch_line(&next->x);
                if (odd) fetch_line(&next->w);
                step(T_HERE, odd, halves, now.w->tile[u], now.x + u * TILE, s, n, true, c + sum_at(halves, s));
                add_late(halves, has_min, acc, &now, s - STEP_LATE, c + sum_at(halves, s - 1));
            }
    }
    move_sums(false, acc, before.to);
}
PL_INLINE void scaled_part(T_TILES, const bool halves, const bool has_min, const part *a, int rows, const place *o,
                           coming *next)
{
    const int64_t n = a->units * (1 + halves), tiles = o->tiles * rows;
    if (n % 2 == 0 && n > STEP_LATE &&
        sum_at(halves, n - 1) != sum_at(halves, 0)) { /* the first step stores while the last is read */
        scaled_flow(T_HERE, halves, has_min, a, rows, o, next);
        return;
    }
    for (int64_t i = 0; i < tiles; i++) {
        const tile_job job = job_of(a, o, rows, i);
        scaled(T_HERE, halves, has_min, n, &job, o->c);
    }
}

/* Of block row b from unit u on, about; a line more does no harm. */
static const uint8_t *bytes_at(const pl_product *p, int64_t b, int64_t u)
{
    const pl_layout *l = &pl_layout_table[p->dtype];
    return p->w + b * p->w_bytes + u * UNIT * l->bytes / l->k;
}
/* The next part of x is fetched in as many pieces as there are turns of block rows; this is number `turn`. */
static coming coming_of(const pl_product *p, const place *o, int64_t u0, int64_t b, int64_t b0, int64_t b1)
{
    const pl_layout *l = &pl_layout_table[p->dtype];
    const int64_t turn = (b - b0) / SPAN, turns = (b1 - b0 + SPAN - 1) / SPAN, u = u0 + PART;
    const int64_t units = pl_min(PART, p->units - u), j0 = turn * o->tiles / turns, j1 = (turn + 1) * o->tiles / turns;
    coming c = {0};
    if (units > 0) c.x = fetch_of(o->x + PART * TILE + j0 * o->next_x, j1 - j0, units * TILE * 2, o->next_x * 2);
    if (b + SPAN < b1)
        c.w = fetch_of(bytes_at(p, b + SPAN, u0), pl_min(SPAN, b1 - b - SPAN),
                       pl_min(PART, p->units - u0) * UNIT * l->bytes / l->k, p->w_bytes);
    else if (units > 0)
        c.w = fetch_of(bytes_at(p, b0, u), pl_min(SPAN, b1 - b0), units * UNIT * l->bytes / l->k, p->w_bytes);
    return c;
}

static void put_sums(const pl_product *p, int64_t t0, int64_t t1, int64_t b0, int64_t b1, const float *sums,
                     int64_t next_row)
{
    enum { SOON = 4 }; /* rows of y that are fetched ahead */
    for (int64_t t = 0; t < t1 - t0; t++)
        for (int64_t b = b0; b < b1; b++) {
            V v[VECS];
            if (t + SOON < t1 - t0)
                _mm_prefetch((const char *)(p->y + (t0 + t + SOON) * p->ldy + b * ROWS), _MM_HINT_T0);
            PL_UNROLL for (int h = 0; h < VECS; h++) v[h] = v_load(sums + (b - b0) * next_row + t * ROWS + h * LANES);
            put_y(p, t0 + t, b * ROWS, v);
        }
}

/* The part from unit u on of block row b, as number i of those at hand. BF16 is used where it lies. */
static void tiles_of(const pl_product *p, int64_t b, int64_t u, int i, part *a)
{
    const uint8_t *blocks = p->w + b * p->w_bytes;
    if (p->dtype != PL_BF16) unpack_part(p->dtype, blocks, u, i, a);
    a->tiles[i] = p->dtype == PL_BF16 ? (const uint16_t *)(const void *)(blocks + u * TILE * 2) : a->w[i].tile[0];
}

/* Tokens t0..t1 (t0 a multiple of 16) by block rows b0..b1. */
static void many(const pl_product *p, int64_t t0, int64_t t1, int64_t b0, int64_t b1, float *scratch)
{
    const bool has_min = pl_has_minimum(p->dtype), halves = pl_has_halves(p->dtype);
    part a = {.w = (units_of_w *)pl_round_up((intptr_t)scratch, PL_X_ALIGN)};
    float *c = (float *)(void *)(a.w + SPAN), *sums = c + 4 * SUMS;
    place o = {
        .next_x = p->x_units * TILE, .next_sum = p->units * TOKENS, .tiles = (t1 - t0 + TOKENS - 1) / TOKENS, .c = c};
    o.next_row = o.tiles * SUMS;
    if (pl_has_scale(p->dtype)) memset(sums, 0, (size_t)((b1 - b0) * o.next_row) * 4);
    T_BEGIN(TOKENS, halves ? 32 : 64, halves ? 32 : 64);
    for (int64_t u0 = 0; u0 < p->units; u0 += PART) {
        o.x = p->xb + t0 / TOKENS * o.next_x + u0 * TILE;
        o.sum = p->sum + t0 / TOKENS * o.next_sum + u0 * TOKENS;
        a.units = pl_min(PART, p->units - u0);
        a.first = u0 == 0;
        for (int64_t b = b0; b < b1; b += SPAN) {
            const int n = (int)pl_min(SPAN, b1 - b);
            coming next = coming_of(p, &o, u0, b, b0, b1);
            o.y = sums + (b - b0) * o.next_row;
            for (int i = 0; i < n; i++) tiles_of(p, b + i, u0, i, &a);
            if (!pl_has_scale(p->dtype))
                plain_part(T_HERE, &a, n, &o, &next);
            else if (halves)
                scaled_part(T_HERE, true, false, &a, n, &o, &next);
            else if (has_min)
                scaled_part(T_HERE, false, true, &a, n, &o, &next);
            else
                scaled_part(T_HERE, false, false, &a, n, &o, &next);
        }
    }
    T_END();
    put_sums(p, t0, t1, b0, b1, sums, o.next_row);
}

/* Units u0..u1 of a token as bf16, rows of tiles; beyond k it is 0. Bytes of w become floats 2^24 as large, so x is made as
 * much smaller. */
static void token_units(const pl_product *p, int64_t token, int64_t u0, int64_t u1, uint16_t *x)
{
    const float down = pl_layout_table[p->dtype].form == PL_CODE_S8 ? 0x1p-24f : 1, *src = p->src + token * p->src_ld;
    for (int64_t u = u0; u < u1; u++) {
        uint16_t *to = x + u * TILE;
        float last[UNIT] = {0};
        const float *from = src + u * UNIT;
        if ((u + 1) * UNIT > p->k) {
            memcpy(last, from, (size_t)(p->k - u * UNIT) * 4);
            from = last;
        }
        PL_UNROLL for (int k = 0; k < UNIT; k += 2 * LANES)
            v_store_bf16(to + k, v_mul(v_load(from + k), v_set(down)), v_mul(v_load(from + k + LANES), v_set(down)),
                         PL_TINY_X * down);
    }
}
/* Sums of 16 tokens over the units: what a step is where all codes are 1. */
static void unit_sums(T_TILES, const uint16_t *x, int64_t units, float *sum)
{
    _Alignas(64) float c[SUMS] = {0};
    for (int64_t u = 0; u < units; u++) {
        T_LOAD(4, x + u * TILE, 64);
        T_ZERO(0);
        T_STEP(0, 4, 6);
        T_STORE(0, c, 64);
        for (int t = 0; t < TOKENS; t++) sum[u * TOKENS + t] = c[t * ROWS];
    }
}
/* Groups of 16 tokens as tiles [units][16][32], rows of absent tokens 0; sums as [units][16]. */
static void prepare(const pl_product *p, int64_t group, int64_t g0, int64_t g1)
{
    enum { AT_ONCE = 16 };
    PL_ASSERT(group == TOKENS);
    _Alignas(64) uint16_t one[TILE];
    for (int i = 0; i < TILE; i++) one[i] = 0x3f80;
    T_BEGIN(TOKENS, 64, 64);
    T_LOAD(6, one, 64);
    for (int64_t g = g0; g < g1; g++) {
        uint16_t *x = p->xb + g * p->x_units * TILE;
        for (int64_t u = 0; u < p->units; u += AT_ONCE)
            for (int t = 0; t < TOKENS; t++) {
                const int64_t token = g * TOKENS + t, end = pl_min(u + AT_ONCE, p->units);
                if (token < p->m)
                    token_units(p, token, u, end, x + t * UNIT);
                else
                    for (int64_t i = u; i < end; i++) memset(x + i * TILE + t * UNIT, 0, UNIT * 2);
            }
        if (pl_has_minimum(p->dtype)) unit_sums(T_HERE, x, p->units, p->sum + g * p->units * TOKENS);
    }
    T_END();
}

/* NOLINTEND(readability-non-const-parameter) */

const pl_linear_path PATH = {
    .prepare = prepare,
    .few = few,
    .many = many,
    .few_tokens = TOKENS,
    .few_group = TOKENS,
    .many_group = TOKENS,
    .many_tokens = MANY_TOKENS,
    .many_blocks = MANY_BLOCKS,
    .scratch_floats =
        (SPAN * (int64_t)sizeof(units_of_w) + PL_X_ALIGN) / 4 + 4 * SUMS + MANY_TOKENS * MANY_BLOCKS * ROWS,
    .tiles = true,
};
