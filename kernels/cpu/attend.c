/* attend.c: causal grouped-query attention over the paged cache: the plain C pieces, and how they are spread over
 * threads. A block is a few consecutive queries under one key head, or one query under several (whose keys lie side by
 * side). With many blocks a thread takes a block with all its chunks; with few (a decode step over a long context) the
 * chunks are spread too, some for every block at a time, and merged in order after each wave. */
#define ATTEND_OPS pl_attend_portable
#include "attend_body.h"
#include "rows.h"

enum {
    BLOCK_ROWS = 48, /* of a block, if the group is not larger: scores of a chunk stay in L2 */
    TASKS = 4        /* per thread: below this many blocks their chunks are spread */
};

/* What attend_amx.c takes, however many heads have the rows: it rounds a head's up to 4, 8 or a multiple of 16. */
static int64_t tiles_work(int64_t rows, int64_t key_dim, int64_t value_dim)
{
    const int64_t keys = pl_round_up(key_dim, STEP), dims = pl_round_up(value_dim, 64);
    const int64_t scores = (rows + 16) * SCORE_STRIDE + 256 * rows, queries = 2 * rows * keys, sums = 2 * rows * dims;
    return scores + queries + sums + 3 * pl_max(STEP * keys, 2048) / 2 + 2 * PL_ATTEND_CHUNK;
}

int64_t pl_attend_work(int64_t rows, int64_t key_dim, int64_t value_dim)
{
    const int64_t panel = pl_max(key_dim * PL_LANES, pl_round_up(value_dim, PL_LANES) * STEP);
    const int64_t vectors = rows * (SCORE_STRIDE + key_dim) + panel + 2 * PL_ATTEND_CHUNK;
    return pl_round_up(pl_max(vectors, tiles_work(rows, key_dim, value_dim)), PL_LANES);
}

static const pl_attend_ops *ops_of(const pl_stream *s)
{
#ifdef PL_X86
    switch (s->path) {
    case PL_PATH_AVX2:
        return &pl_attend_avx2;
    case PL_PATH_AVX512:
        return &pl_attend_avx512;
    case PL_PATH_AMX:
        return &pl_attend_amx;
    case PL_PATH_SOFT_AMX:
        return &pl_attend_soft_amx;
    default:
        break;
    }
#else
    (void)s;
#endif
    return &pl_attend_portable;
}

typedef struct call {
    pl_attend_job job;
    const pl_attend_ops *ops;
    int64_t queries; /* of a block, at most */
    bool one_head;   /* a block has one key head, so that there is something for every thread */
    int64_t *first;  /* [n_spans + 1] number of the first block of each span */
    int64_t n_blocks, most_rows, most_chunks, n_tasks;
    int64_t part_floats, work_floats;
    float *work;           /* [n_threads][work_floats] */
    float *part, *sum;     /* whole blocks: [n_threads] of each; else [n_blocks][wave] and [n_blocks] */
    int64_t wave, wave_at; /* chunks of a block in a wave; the first of this one */
} call;

/* Queries and key heads of the span's blocks. */
static int64_t queries_of(const call *c, const pl_kv_span *span) { return pl_min(c->queries, span->n); }
static int64_t heads_of(const call *c, const pl_kv_span *span)
{
    if (c->one_head) return 1;
    return pl_min(c->job.kv->o.heads, pl_max(1, BLOCK_ROWS / (c->job.group * queries_of(c, span))));
}

/* Blocks are numbered by span, then head, then query, latest queries first: the longest work comes first. */
static pl_attend_block block_at(const call *c, int64_t i)
{
    const pl_kv *kv = c->job.kv;
    int32_t lo = 0, hi = kv->n_spans;
    while (hi - lo > 1) {
        const int32_t mid = (lo + hi) / 2;
        if (c->first[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    const pl_kv_span *span = &kv->span[lo];
    i -= c->first[lo];
    const int64_t n = queries_of(c, span), per_head = (span->n + n - 1) / n, heads = heads_of(c, span);
    const int64_t from = (per_head - 1 - i % per_head) * n, head = i / per_head * heads;
    return (pl_attend_block){.seq = &kv->seq[span->seq],
                             .head = (int32_t)head,
                             .heads = (int32_t)pl_min(heads, kv->o.heads - head),
                             .row = span->first + from,
                             .n = pl_min(n, span->n - from),
                             .pos = span->pos + from};
}

static int64_t first_chunk(const call *c, const pl_attend_block *b)
{
    return pl_attend_first(&c->job, b->pos) / PL_ATTEND_CHUNK;
}
static int64_t end_chunk(const pl_attend_block *b) { return (b->pos + b->n - 1) / PL_ATTEND_CHUNK + 1; }
static int64_t rows_of(const call *c, const pl_attend_block *b) { return b->heads * b->n * c->job.group; }

/* Counts the blocks and what they need. */
static void plan(call *c)
{
    const pl_kv *kv = c->job.kv;
    c->most_rows = c->most_chunks = c->n_tasks = c->first[0] = 0;
    for (int32_t i = 0; i < kv->n_spans; i++) {
        const pl_kv_span *span = &kv->span[i];
        const int64_t n = queries_of(c, span), heads = heads_of(c, span);
        const int64_t blocks = kv->bad[i] ? 0 : (span->n + n - 1) / n * ((kv->o.heads + heads - 1) / heads);
        c->first[i + 1] = c->first[i] + blocks;
        if (!blocks) continue;
        const pl_attend_block whole = {.pos = span->pos, .n = span->n};
        const int64_t chunks = end_chunk(&whole) - first_chunk(c, &whole);
        c->n_tasks += blocks * chunks;
        c->most_rows = pl_max(c->most_rows, n * heads * c->job.group);
        c->most_chunks = pl_max(c->most_chunks, chunks);
    }
    c->n_blocks = c->first[kv->n_spans];
}

static void whole_blocks(void *arg, int64_t from, int64_t to, int thread)
{
    const call *c = arg;
    float *work = c->work + thread * c->work_floats;
    float *part = c->part + thread * c->part_floats, *sum = c->sum + thread * c->part_floats;
    for (int64_t i = from; i < to; i++) {
        const pl_attend_block b = block_at(c, i);
        const int64_t first = first_chunk(c, &b), end = end_chunk(&b);
        c->ops->chunk(&c->job, &b, first, sum, work);
        for (int64_t k = first + 1; k < end; k++) {
            c->ops->chunk(&c->job, &b, k, part, work);
            c->ops->merge(sum, part, rows_of(c, &b), c->job.kv->o.value_dim);
        }
        c->ops->finish(&c->job, &b, sum);
    }
}

static void some_chunks(void *arg, int64_t from, int64_t to, int thread)
{
    const call *c = arg;
    for (int64_t i = from; i < to; i++) {
        const pl_attend_block b = block_at(c, i / c->wave);
        const int64_t k = first_chunk(c, &b) + c->wave_at + i % c->wave;
        if (k < end_chunk(&b))
            c->ops->chunk(&c->job, &b, k, c->part + i * c->part_floats, c->work + thread * c->work_floats);
    }
}

static void merge_wave(void *arg, int64_t from, int64_t to, int thread)
{
    const call *c = arg;
    (void)thread;
    for (int64_t i = from; i < to; i++) {
        const pl_attend_block b = block_at(c, i);
        const int64_t rows = rows_of(c, &b), first = first_chunk(c, &b) + c->wave_at, end = end_chunk(&b);
        float *sum = c->sum + i * c->part_floats;
        if (first >= end) continue;
        if (c->wave_at == 0) memset(sum, 0, sizeof *sum * (size_t)(2 * rows)); /* l = 0: nothing yet */
        for (int64_t k = 0; k < c->wave && first + k < end; k++)
            c->ops->merge(sum, c->part + (i * c->wave + k) * c->part_floats, rows, c->job.kv->o.value_dim);
        if (first + c->wave >= end) c->ops->finish(&c->job, &b, sum);
    }
}

/* Nothing is read for a span whose pages are not its own: its rows become 0. */
static void clear_bad(const pl_kv *kv, const pl_tensor *y)
{
    for (int32_t i = 0; i < kv->n_spans; i++)
        for (int64_t t = 0; kv->bad[i] && t < kv->span[i].n; t++)
            for (int64_t h = 0; h < y->dim[1]; h++)
                memset((float *)y->data + (kv->span[i].first + t) * y->stride[0] + h * y->stride[1], 0,
                       sizeof(float) * (size_t)y->dim[2]);
}

static int check(const pl_tensor *y, const pl_tensor *q, const pl_kv *kv, int layer, int window, pl_err *err)
{
    PL_TRY(pl_want("attend", "q", q, PL_F32, err));
    PL_TRY(pl_want("attend", "y", y, PL_F32, err));
    if (layer < 0 || layer >= kv->o.layers)
        return pl_fail(err, PL_EARG, "attend: layer %d, want 0 to %d", layer, kv->o.layers - 1);
    if (window < 0) return pl_fail(err, PL_EARG, "attend: window %d, want 0 or more", window);
    if (q->dim[1] % kv->o.heads || q->dim[1] == 0)
        return pl_fail(err, PL_ESHAPE, "attend: q has %lld heads, want a multiple of the cache's %d",
                       (long long)q->dim[1], kv->o.heads);
    if (q->dim[2] != kv->o.key_dim || y->dim[2] != kv->o.value_dim)
        return pl_fail(err, PL_ESHAPE, "attend: heads of %lld (q) and %lld (y), want the cache's %d and %d",
                       (long long)q->dim[2], (long long)y->dim[2], kv->o.key_dim, kv->o.value_dim);
    if (q->dim[0] != kv->n_tokens)
        return pl_fail(err, PL_ESHAPE, "attend: q has %lld tokens, want the step's %lld", (long long)q->dim[0],
                       (long long)kv->n_tokens);
    return PL_OK;
}

int pl_cpu_attend(pl_stream *s, pl_tensor *y, const pl_tensor *q, pl_kv *kv, int layer, float scale, int window,
                  pl_err *err)
{
    PL_TRY(check(y, q, kv, layer, window, err));
    if (kv->n_spans == 0) return PL_OK;
    const pl_mark mark = pl_scratch_mark(s);
    const int32_t group = (int32_t)(q->dim[1] / kv->o.heads);
    call c = {
        .job = {kv, q, y, layer, group, window, scale, ((pl_cpu *)s->impl)->denormals}, .ops = ops_of(s), .wave = 1};
    c.queries = pl_max(1, BLOCK_ROWS / group);
    int rc = PL_ENOMEM;
    clear_bad(kv, y);
    if (!(c.first = pl_scratch(s, (kv->n_spans + 1) * (int64_t)sizeof *c.first, err))) goto done;
    plan(&c);
    if (c.n_blocks == 0) {
        rc = PL_OK;
        goto done;
    }
    if (c.n_tasks < 2 * s->n_threads) {
        c.one_head = true;
        plan(&c);
    }
    const bool spread = s->n_threads > 1 && c.most_chunks > 1 && c.n_blocks < TASKS * s->n_threads;
    if (spread) c.wave = pl_min(c.most_chunks, (4 * TASKS * s->n_threads + c.n_blocks - 1) / c.n_blocks);
    c.part_floats = pl_round_up(pl_attend_part(c.most_rows, kv->o.value_dim), PL_LANES);
    c.work_floats = pl_attend_work(c.most_rows, kv->o.key_dim, kv->o.value_dim);
    const int64_t sums = spread ? c.n_blocks : s->n_threads;
    c.work = pl_scratch(s, s->n_threads * c.work_floats * 4, err);
    c.sum = c.work ? pl_scratch(s, sums * c.part_floats * 4, err) : NULL;
    c.part = c.sum ? pl_scratch(s, sums * c.wave * c.part_floats * 4, err) : NULL;
    if (!c.part) goto done;
    if (!spread) pl_parallel(s, c.n_blocks, 1, whole_blocks, &c);
    for (; spread && c.wave_at < c.most_chunks; c.wave_at += c.wave) {
        pl_parallel(s, c.n_blocks * c.wave, 1, some_chunks, &c);
        pl_parallel(s, c.n_blocks, c.n_blocks, merge_wave, &c);
    }
    rc = PL_OK;
done:
    pl_scratch_release(s, mark);
    return rc;
}
