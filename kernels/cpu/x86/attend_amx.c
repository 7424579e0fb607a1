/* attend_amx.c: attention on tiles, of BF16 and FP8 caches whose dims are multiples of 16 (attend.h has the definition); the
 * rest goes to the vectors' way. Compiled twice, as linear_amx.c.
 *
 * Scores: a tile of x is 16 keys, as they lie in the page if they are BF16, and a tile of w the queries of a head, turned
 * once a chunk; a sum is turned into rows of scores, which are softened as elsewhere. Values: a tile of x is rows of
 * probabilities, and a tile of w 32 positions of 16 dims, in pairs of positions. The columns of the sums are in the order
 * that takes the least work to make (value_order). What is made in memory is read some steps later, so that it has
 * arrived. */
#include "attend_soften.h"
#include "attend_words.h"
#include "tiles.h"
#ifdef PL_SOFT_TILES
#define TILES pl_attend_soft_amx
#define VECTORS pl_attend_avx2
#else
#define TILES pl_attend_amx
#define VECTORS pl_attend_avx512
#endif

enum {
    SIDE = 16, /* rows of a tile */
    LAG = 2    /* pieces: words are made so long before tiles load them, for stores must have reached memory */
};

/* How a block is cut, and its parts of the work space. */
typedef struct plan {
    bool f8, as_it_is;      /* keys are tiles as they lie in the page */
    int64_t per_head, rows; /* of a head; of them, that meet a tile of values: per_head if not above 16 */
    int64_t groups, width;  /* of rows; queries of a tile of them */
    int64_t key_dim, steps; /* key_dim is a multiple of 32 */
    int64_t dims, wides;    /* of values; dims is a multiple of 64 */
    float *s;               /* [rows][SCORE_STRIDE] */
    uint16_t *q;            /* [heads][groups][key_dim / 2][width][2] */
    float *sums;            /* [heads][groups][rows][dims] */
    uint16_t *words;        /* of keys: [LAG + 1][32][key_dim]; of values: [LAG + 1][WIDE_WORDS] */
    float *c;               /* [2][groups][2][16][width] */
    float *of_tokens;
} plan;

static plan plan_of(const pl_attend_job *j, const pl_attend_block *b, float *work)
{
    const pl_kv_opts *o = &j->kv->o;
    plan p = {.f8 = o->dtype == PL_F8, .per_head = b->n * j->group};
    const int64_t all = b->heads * p.per_head;
    p.groups = (p.per_head + SIDE - 1) / SIDE;
    p.rows = pl_min(p.per_head, SIDE);
    p.width = p.per_head <= 4 ? 4 : p.per_head <= 8 ? 8 : SIDE;
    p.key_dim = pl_round_up(o->key_dim, STEP);
    p.steps = p.key_dim / STEP;
    p.as_it_is = !p.f8 && o->key_dim == p.key_dim;
    p.dims = pl_round_up(o->value_dim, WIDE);
    p.wides = p.dims / WIDE;
    p.s = work;
    p.q = (uint16_t *)(void *)(p.s + (all + SIDE) * SCORE_STRIDE);
    p.sums = (float *)(void *)(p.q + b->heads * p.groups * p.key_dim * p.width);
    p.words = (uint16_t *)(void *)(p.sums + b->heads * p.groups * p.rows * p.dims);
    p.c = (float *)(void *)(p.words + (LAG + 1) * pl_max(STEP * p.key_dim, WIDE_WORDS));
    p.of_tokens = p.c + 4 * p.groups * SIDE * p.width;
    return p;
}

/* Queries become tiles. */
static void turn_queries(const pl_attend_job *j, const pl_attend_block *b, const plan *p)
{
    const int64_t dim = j->kv->o.key_dim, tile = p->key_dim * p->width;
    memset(p->q, 0, sizeof *p->q * (size_t)(b->heads * p->groups * tile));
    for (int64_t r = 0; r < b->heads * p->per_head; r++) {
        const float *x = row_of(j, b, j->q, r);
        const int64_t in = r % p->per_head;
        uint16_t *to = p->q + (r / p->per_head * p->groups + in / SIDE) * tile + in % SIDE * 2;
        for (int64_t d = 0; d < dim; d += PL_LANES) {
            uint16_t w[PL_LANES];
            vf_store_bf16(w, vf_load(x + d));
            for (int64_t k = 0; k < PL_LANES; k += 2) memcpy(to + (d + k) * p->width, w + k, 4);
        }
    }
}

/* A piece of a chunk: 32 positions under one head, and of values 64 dims. */
typedef struct piece {
    int64_t t, h, w;                 /* first position, from the chunk's base on; head of the block; 64 dims */
    const uint8_t *row[2], *then[2]; /* of 16 positions each, under the first head; those of the next 32 */
} piece;
/* else_at: a multiple of 16 that the sequence has, in place of what is past its end, so that 16 rows are of one page. */
static void find_rows(const pl_attend_job *j, const pl_attend_block *b, bool keys, int64_t pos, int64_t else_at,
                      const uint8_t **row)
{
    PL_ASSERT(else_at % SIDE == 0);
    for (int i = 0; i < 2; i++) row[i] = rows_at(j, b, keys, pos + i * SIDE, else_at);
}
static piece first_piece(const pl_attend_job *j, const pl_attend_block *b, bool keys, int64_t base, range all)
{
    piece k = {.t = all.lo / STEP * STEP};
    find_rows(j, b, keys, base + k.t, base + k.t, k.row);
    find_rows(j, b, keys, base + k.t + STEP, base + k.t, k.then);
    return k;
}
/* The one after: 64 dims on, then a head, then 32 positions. */
PL_INLINE piece next_piece(const pl_attend_job *j, const pl_attend_block *b, bool keys, int64_t base, range all,
                           int64_t wides, piece k)
{
    if (++k.w < wides) return k;
    k.w = 0;
    if (++k.h < b->heads) return k;
    k.h = 0;
    memcpy(k.row, k.then, sizeof k.row);
    find_rows(j, b, keys, base + k.t + 2 * STEP, base + all.lo / STEP * STEP, k.then);
    k.t += STEP;
    return k;
}

/* Keys from..to-1 of a piece as tiles load them: as they lie, or as words that are made. What the next piece needs is
 * fetched on the way. */
PL_INLINE void take_keys(const pl_attend_job *j, const pl_attend_block *b, const plan *p, const piece *k, int64_t from,
                         int64_t to, uint16_t *words)
{
    const int64_t stride = j->kv->key_bytes, dim = j->kv->o.key_dim, head = stride / j->kv->o.heads;
    for (int64_t i = from; i < to; i++) {
        const uint8_t *row = k->row[i / SIDE] + k->h * head, *next = row + head;
        if (k->h + 1 == b->heads) next = k->then[i / SIDE];
        if (p->as_it_is)
            for (int64_t d = 0; d < 2 * dim; d += 64) __builtin_prefetch(next + i % SIDE * stride + d);
        else if (p->f8)
            key_words(true, row + i % SIDE * stride, next + i % SIDE * stride, dim, words + i * p->key_dim);
        else
            key_words(false, row + i % SIDE * stride, next + i % SIDE * stride, dim, words + i * p->key_dim);
    }
}
/* The scores of a piece take their places. */
PL_INLINE void turn_piece(const plan *p, const piece *k, const float *c)
{
    for (int64_t g = 0; g < p->groups; g++)
        for (int half = 0; half < 2; half++, c += SIDE * p->width)
            turn_scores(c, p->width, pl_min(SIDE, p->per_head - g * SIDE),
                        p->s + (k->h * p->per_head + g * SIDE) * SCORE_STRIDE + k->t + half * SIDE, SCORE_STRIDE);
}
static void chunk_scores(const pl_attend_job *j, const pl_attend_block *b, const plan *p, int64_t base, range all)
{
    const int64_t n = (all.hi - all.lo / STEP * STEP + STEP - 1) / STEP * b->heads, tile = SIDE * p->width;
    const int64_t head = j->kv->key_bytes / j->kv->o.heads, stride = p->as_it_is ? j->kv->key_bytes : 2 * p->key_dim;
    const piece first = first_piece(j, b, true, base, all);
    piece of[4] = {first, first, first, first};
    T_BEGIN_WIDTH(SIDE, 64, 64, 4 * (int)p->width);
    for (int64_t i = 0; i < n + LAG + 1; i++) {
        const piece *now = &of[i % 4], *k = &of[(i - LAG) & 3];
        float *c = p->c + i % 2 * p->groups * 2 * tile;
        uint16_t *words = p->words + i % (LAG + 1) * STEP * p->key_dim;
        const bool make = i < n, meet = i >= LAG && i < n + LAG;
        const uint8_t *key[2];
        const uint16_t *q = p->q + k->h * p->groups * p->key_dim * p->width;
        for (int half = 0; half < 2; half++) {
            const uint16_t *made = p->words + ((i - LAG) % (LAG + 1) * STEP + half * SIDE) * p->key_dim;
            key[half] = p->as_it_is ? k->row[half] + k->h * head : (const uint8_t *)made;
        }
        for (int64_t g = 0; g < p->groups; g++) {
            T_ZERO(0);
            T_ZERO(1);
            for (int64_t d = 0; d < p->steps; d++) {
                if (make && g == 0) take_keys(j, b, p, now, d * STEP / p->steps, (d + 1) * STEP / p->steps, words);
                if (!meet) continue;
                T_LOAD(6, q, 4 * p->width);
                T_LOAD(4, key[0] + d * 64, stride);
                T_STEP(0, 4, 6);
                T_LOAD(5, key[1] + d * 64, stride);
                T_STEP(1, 5, 6);
                q += STEP * p->width;
            }
            T_STORE(0, c + 2 * g * tile, 4 * p->width);
            T_STORE(1, c + (2 * g + 1) * tile, 4 * p->width);
        }
        if (i > LAG) turn_piece(p, &of[(i - LAG - 1) % 4], p->c + (i + 1) % 2 * p->groups * 2 * tile);
        of[(i + 1) % 4] = next_piece(j, b, true, base, all, 1, *now);
    }
    T_END();
}

/* A quarter of the values of a piece: eight positions, in each of four tiles. */
PL_INLINE void take_values(const pl_attend_job *j, const pl_attend_block *b, const plan *p, const piece *k, range all,
                           int64_t quarter, uint16_t *words)
{
    const int64_t stride = j->kv->value_bytes, head = stride / j->kv->o.heads, bytes = p->f8 ? WIDE : 2 * WIDE;
    const int64_t dims = pl_min(WIDE, j->kv->o.value_dim - k->w * WIDE), n = all.hi - k->t - 8 * quarter;
    const uint8_t *row = k->row[quarter / 2] + k->h * head, *next = row + head;
    if (k->w + 1 < p->wides)
        next = row + (k->w + 1) * bytes;
    else if (k->h + 1 == b->heads)
        next = k->then[quarter / 2];
    row += k->w * bytes + quarter % 2 * 8 * stride;
    next += quarter % 2 * 8 * stride;
    words += quarter * 4 * 32;
    if (p->f8)
        value_words(true, row, next, stride, n, dims, words);
    else
        value_words(false, row, next, stride, n, dims, words);
}

static void chunk_values(const pl_attend_job *j, const pl_attend_block *b, const plan *p, int64_t base, range all)
{
    const int64_t n = (all.hi - all.lo / STEP * STEP + STEP - 1) / STEP * b->heads * p->wides;
    const int64_t rows = p->rows * p->dims, stride = 4 * p->dims;
    memset(p->sums, 0, sizeof *p->sums * (size_t)(b->heads * p->groups * rows));
    const piece first = first_piece(j, b, false, base, all);
    piece of[4] = {first, first, first, first};
    T_BEGIN((int)p->rows, 64, 64);
    for (int64_t i = 0; i < n + LAG; i++) {
        const piece *now = &of[i % 4], *k = &of[(i - LAG) & 3];
        uint16_t *words = p->words + i % (LAG + 1) * WIDE_WORDS;
        const uint16_t *v = p->words + (i + 1) % (LAG + 1) * WIDE_WORDS;
        for (int64_t g = 0; g < p->groups; g++) {
            const float *s = p->s + (k->h * p->per_head + g * SIDE) * SCORE_STRIDE;
            float *to = p->sums + (k->h * p->groups + g) * rows + k->w * WIDE;
            const bool make = i < n && g == 0;
            if (i >= LAG) T_LOAD(4, (const uint16_t *)(const void *)s + k->t, 4 * SCORE_STRIDE);
#define QUARTER(c, w)                                   \
    if (make) take_values(j, b, p, now, all, c, words); \
    if (i >= LAG) {                                     \
        T_LOAD(c, to + 16 * (c), stride);               \
        T_LOAD(w, v + TILE_WORDS * (c), 64);            \
        T_STEP(c, 4, w);                                \
        T_STORE(c, to + 16 * (c), stride);              \
    }
            QUARTER(0, 6)
            QUARTER(1, 7)
            QUARTER(2, 6)
            QUARTER(3, 7)
#undef QUARTER
        }
        of[(i + 1) % 4] = next_piece(j, b, false, base, all, p->wides, *now);
    }
    T_END();
}

static void attend_chunk(const pl_attend_job *j, const pl_attend_block *b, int64_t chunk, float *part, float *work)
{
    const pl_kv_opts *o = &j->kv->o;
    if (o->dtype == PL_F32 || o->key_dim % PL_LANES || o->value_dim % PL_LANES) {
        VECTORS.chunk(j, b, chunk, part, work);
        return;
    }
    const plan p = plan_of(j, b, work);
    const int64_t rows = b->heads * p.per_head, base = chunk * PL_ATTEND_CHUNK;
    float *m = part, *l = m + rows, *out = l + rows;
    const range all = visible_to(j, b, base, 0, p.per_head);
    turn_queries(j, b, &p);
    chunk_scores(j, b, &p, base, all);
    for (int64_t h = 0; h < b->heads; h++) {
        const softening f = softening_of(j, b, base, all, h, true, p.of_tokens);
        for (int64_t r = h * p.per_head; r < (h + 1) * p.per_head; r++)
            soften(p.s + r * SCORE_STRIDE, visible(j, b, base, r), all.lo / STEP * STEP, pl_round_up(all.hi, STEP), &f,
                   m + r, l + r);
    }
    chunk_values(j, b, &p, base, all);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t in = r % p.per_head;
        const float *sum = p.sums + ((r / p.per_head * p.groups + in / SIDE) * p.rows + in % SIDE) * p.dims;
        for (int64_t d = 0; d < o->value_dim; d++)
            out[r * o->value_dim + d] = sum[d / WIDE * WIDE + value_order(p.f8, d % WIDE)];
    }
}

static void attend_merge(float *sum, const float *part, int64_t rows, int64_t value_dim)
{
    VECTORS.merge(sum, part, rows, value_dim);
}
static void attend_finish(const pl_attend_job *j, const pl_attend_block *b, const float *sum)
{
    VECTORS.finish(j, b, sum);
}

const pl_attend_ops TILES = {attend_chunk, attend_merge, attend_finish};
