/* linear_int_amx.c: the product of integers (linear_int.c) on tiles. Compiled twice, as linear_amx.c is: for the tile unit
 * with AVX-512, and with tiles in plain vectors (PL_SOFT_TILES) for AVX2.
 *
 * A part of a block row becomes tiles of signed bytes once and meets all token tiles of the call. Sums leave the tile
 * unit after each group of k, one for each plane of x, to be put together, scaled and added: this is what limits. It is
 * kept short so:
 *   - Tiles of sums begin with the bits of a large float, so that they are floats: MAGIC + sum, or MAGIC_HIGH + 128 sum
 *     for the upper plane of int15. An addition makes the sum a float, rounded once. A conversion would do as well, but
 *     while tiles are in use a Sapphire Rapids core multiplies and converts 512 bits at one port; additions have another.
 *   - Sums of a tile stay in registers for a whole part of k.
 *   - A tile is stored a step late, when it is finished, and read some steps later, when it has reached memory. */
#include "tiles.h"
#ifdef PL_SOFT_TILES
#define PATH pl_int_soft_amx
#elif !defined(PATH)
#define PATH pl_int_amx
#endif
#include "linear.h"
enum { X_TOKENS = PL_INT_TILE, X_TILES = 1, SIGNED_BYTES = 1, SIGNED_OFFSET = 0 };
#define i_signed(a) (a)
#include "linear_int_x.h"

enum {
    TOKENS = PL_INT_TILE,
    TILE = UNIT * ROWS,     /* bytes of a unit of w */
    X_TILE = UNIT * TOKENS, /* and of one plane of x */
    PART = 16,              /* units unpacked at once */
    MANY_TOKENS = 256,
    MANY_BLOCKS = 4,
    SUMS = TOKENS * ROWS, /* numbers of a tile of sums */
    RING = 4,             /* steps whose sums are on their way */
    LATE = 3              /* steps from a product to the use of its sums */
};
#define MAGIC 0x1.8p23f      /* a unit of its last place is 1 */
#define MAGIC_HIGH 0x1.8p30f /* 128 */

/* Scratch of a thread. */
typedef struct work {
    _Alignas(64) uint8_t w[PART * TILE];
    float scale[2 * PART][ROWS], min[PART][ROWS];
    float magic[2][SUMS]; /* what sums begin with: of the only plane or the lower one, of the upper one */
    int32_t c[RING * 2][SUMS];
    float acc[MANY_BLOCKS][MANY_TOKENS / TOKENS][SUMS];
} work;

PL_INLINE void unpack(const int dtype, const uint8_t *blocks, int64_t u0, int64_t units, work *to)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int per = l->k / UNIT, steps = pl_has_halves(dtype) ? 2 : 1;
    for (int64_t u = 0; u < units; u++) {
        const uint8_t *block = blocks + (u0 + u) / per * l->bytes;
        const int in = (int)((u0 + u) % per);
        const uint8_t *code = block + l->code + in * l->code_step, *high = block + l->high + in * l->high_step;
        PL_UNROLL for (int quad = 0; quad < 8; quad++) PL_UNROLL for (int h = 0; h < VECS; h++) i_store(
            to->w + u * TILE + (quad * ROWS + h * LANES) * 4, bytes_of(dtype, code, high, quad / 2, quad % 2, h));
        PL_UNROLL for (int h = 0; h < VECS; h++)
        {
            PL_UNROLL for (int half = 0; half < steps; half++)
                v_store(to->scale[u * steps + half] + h * LANES, scale_of(dtype, block, in, half, h));
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

/* Memory that is asked for before it is needed: some lines a step, as many at once would stop the core. */
typedef struct ahead {
    const uint8_t *at, *end;
    int64_t lines; /* a step */
} ahead;
PL_INLINE void look_ahead(ahead *a)
{
    for (int64_t i = 0; i < a->lines && a->at < a->end; i++, a->at += 64)
        _mm_prefetch((const char *)a->at, _MM_HINT_T0);
}
/* What is unpacked after part u0 of block row b, to be asked for in so many steps. */
PL_INLINE ahead ahead_of(const pl_int_product *p, int64_t u0, int64_t b, int64_t b0, int64_t b1, int64_t steps)
{
    const pl_layout *l = &pl_layout_table[p->dtype];
    const int64_t unit_bytes = l->bytes / (l->k / UNIT);
    if (++b == b1) {
        u0 += PART;
        if (u0 < p->units)
            b = b0;
        else
            u0 = 0;
    }
    const int64_t bytes = pl_min(PART, p->units - u0) * unit_bytes;
    const uint8_t *at = p->w + b * p->w_bytes + u0 * unit_bytes;
    return (ahead){at, at + bytes, (bytes / 64 + steps) / steps};
}

/* Sums that leave the tile unit, as floats: of vector h of token t. */
PL_INLINE V sum_of(const int planes, const int32_t (*c)[SUMS], int64_t at)
{
    const V low = v_cast(i_load(c[0] + at));
    if (planes == 1) return v_sub(low, v_set(MAGIC));
    return v_add(v_sub(v_cast(i_load(c[1] + at)), v_set(MAGIC_HIGH + MAGIC)), low);
}

/* What the compiler must not know: else it keeps an address for each thing that is loaded. */
#define OPAQUE(p) __asm__("" : "+r"(p))

/* Sums of a step, scaled, into acc. */
PL_INLINE void add_step(const int planes, const bool has_min, V acc[TOKENS][VECS], const int32_t (*c)[SUMS],
                        const float *scale, const float *min, const float *x_scale, const uint32_t *x_sum)
{
    OPAQUE(c);
    OPAQUE(x_scale);
    OPAQUE(x_sum);
    V d[VECS], m[VECS];
    PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        d[h] = v_load(scale + h * LANES);
        m[h] = has_min ? v_load(min + h * LANES) : d[h];
    }
    PL_UNROLL for (int t = 0; t < TOKENS; t++) PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        V_MAC(acc[t][h], sum_of(planes, c, t * ROWS + h * LANES), v_mul(d[h], v_set(x_scale[t])));
        if (has_min) V_MAC(acc[t][h], m[h], v_cast(i_set((int32_t)x_sum[t])));
    }
}
PL_INLINE void load_sums(V acc[TOKENS][VECS], const float *from)
{
    OPAQUE(from);
    PL_UNROLL for (int t = 0; t < TOKENS; t++) PL_UNROLL for (int h = 0; h < VECS; h++) acc[t][h] =
        v_load(from + t * ROWS + h * LANES);
}
PL_INLINE void store_sums(V acc[TOKENS][VECS], float *to)
{
    OPAQUE(to);
    PL_UNROLL for (int t = 0; t < TOKENS; t++) PL_UNROLL for (int h = 0; h < VECS; h++)
        v_store(to + t * ROWS + h * LANES, acc[t][h]);
}

/* Where one goes through the steps of all token tiles. */
typedef struct cursor {
    int64_t tile, step;
} cursor;
PL_INLINE void go_on(cursor *c, int64_t steps)
{
    if (++c->step < steps) return;
    c->step = 0;
    c->tile++;
}

/* Step i: its product, in tiles C and, of the upper plane, HIGH; before it the sums of the step before are stored, which are
 * in WAS and WAS_HIGH. */
#define STEP(C, HIGH, WAS, WAS_HIGH, X, W)                                                            \
    {                                                                                                 \
        const uint8_t *x = x0 + (now.tile * p->units + (now.step >> halves)) * planes * X_TILE;       \
        x += (now.step & halves) * (UNIT / 2);                                                        \
        int32_t(*c)[SUMS] = w->c + (i + RING - 1) % RING * planes;                                    \
        if (i < all) {                                                                                \
            T_LOAD(W, w->w + now.step * (TILE >> halves), 64);                                        \
            if (planes == 2) T_LOAD(4, x, UNIT);                                                      \
            T_LOAD(X, x + (planes - 1) * X_TILE, UNIT);                                               \
        }                                                                                             \
        if (i && i <= all) {                                                                          \
            T_STORE(WAS, c[0], 64);                                                                   \
            if (planes == 2) T_STORE(WAS_HIGH, c[1], 64);                                             \
        }                                                                                             \
        if (i < all) {                                                                                \
            T_LOAD(C, w->magic[0], 64);                                                               \
            T_STEP_INT(C, X, W);                                                                      \
            if (planes == 2) {                                                                        \
                T_LOAD(HIGH, w->magic[1], 64);                                                        \
                T_STEP_INT(HIGH, 4, W);                                                               \
            }                                                                                         \
            go_on(&now, steps);                                                                       \
            look_ahead(&coming);                                                                      \
        }                                                                                             \
        if (i >= LATE && i < all + LATE) {                                                            \
            const int64_t at = done.tile * p->units + (done.step >> halves);                          \
            if (done.step == 0) load_sums(acc, first + done.tile * SUMS);                             \
            add_step(planes, has_min, acc, (const int32_t(*)[SUMS])w->c + (i - LATE) % RING * planes, \
                     w->scale[done.step], w->min[done.step >> halves], x_scale + at * TOKENS,         \
                     x_sum + at * 2 * TOKENS);                                                        \
            if (done.step == steps - 1) store_sums(acc, first + done.tile * SUMS);                    \
            go_on(&done, steps);                                                                      \
        }                                                                                             \
        i++;                                                                                          \
    }

/* Token tiles i0..i1 by block rows b0..b1. */
/* NOLINTNEXTLINE(readability-function-size): one loop nest, which is the kernel */
PL_INLINE void many(const int planes, const bool has_min, const pl_int_product *p, int64_t i0, int64_t i1, int64_t b0,
                    int64_t b1, work *w)
{
    const int64_t halves = pl_has_halves(p->dtype), tiles = i1 - i0;
    for (int64_t b = b0; b < b1; b++) memset(w->acc[b - b0], 0, (size_t)tiles * SUMS * sizeof(float));
    for (int64_t i = 0; i < SUMS; i++) w->magic[0][i] = MAGIC, w->magic[1][i] = MAGIC_HIGH;
    T_BEGIN(TOKENS, UNIT >> halves, UNIT >> halves);
    for (int64_t u0 = 0; u0 < p->units; u0 += PART) {
        const int64_t units = pl_min(PART, p->units - u0), steps = units << halves, all = steps * tiles;
        const int64_t x_at = i0 * p->units + u0;
        const uint8_t *x0 = (const uint8_t *)p->x.q + x_at * planes * X_TILE;
        const float *x_scale = p->x.scale + x_at * TOKENS;
        const uint32_t *x_sum = p->x.sum + x_at * 2 * TOKENS;
        for (int64_t b = b0; b < b1; b++) {
            unpack_part(p->dtype, p->w + b * p->w_bytes, u0, units, w);
            ahead coming = ahead_of(p, u0, b, b0, b1, all);
            cursor now = {0, 0}, done = {0, 0};
            float *first = w->acc[b - b0][0];
            V acc[TOKENS][VECS];
            for (int64_t i = 0; i < all + LATE;) {
                STEP(0, 2, 1, 3, 5, 6)
                STEP(1, 3, 0, 2, 5, 7)
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

#define MANY(NAME, PLANES, MIN)                                                                        \
    static void NAME(const pl_int_product *p, int64_t i0, int64_t i1, int64_t b0, int64_t b1, work *w) \
    {                                                                                                  \
        many(PLANES, MIN, p, i0, i1, b0, b1, w);                                                       \
    }
MANY(many_1, 1, false)
MANY(many_2, 2, false)
MANY(many_1_min, 1, true)
MANY(many_2_min, 2, true)

static void run(const pl_int_product *p, int64_t b0, int64_t b1, void *scratch)
{
    const int64_t tiles = (p->m + TOKENS - 1) / TOKENS, most = MANY_TOKENS / TOKENS;
    const bool min = pl_int_minimum(p->dtype);
    void (*const call)(const pl_int_product *, int64_t, int64_t, int64_t, int64_t, work *) =
        p->planes == 1 ? (min ? many_1_min : many_1) : (min ? many_2_min : many_2);
    for (int64_t b = b0; b < b1; b += MANY_BLOCKS)
        for (int64_t i = 0; i < tiles; i += most)
            call(p, i, pl_min(i + most, tiles), b, pl_min(b + MANY_BLOCKS, b1), scratch);
}

const pl_int_path PATH = {
    .prepare = prepare, .run = run, .group = TOKENS, .blocks = MANY_BLOCKS, .scratch_bytes = sizeof(work)};
