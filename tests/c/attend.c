/* attend.c: attention over the paged cache against doubles; and the same bits on every path, for any number of
 * threads, any batch and any cut of a sequence into steps. */
#include "cpu.h"
#include "kv.h"
#include "suite.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_SEQS = 3, LAYERS = 2, LAYER = 1 };

typedef struct shape {
    int32_t heads, groups, key_dim, value_dim, window, dtype, page;
    int32_t len[N_SEQS];
    int32_t scale; /* of an FP8 cache */
} shape;

/* odd head dims, other value dims, windows inside and across chunks, sequences over one and two chunk limits */
static const shape shapes[] = {
    {9, 3, 64, 64, 0, PL_BF16, 64, {1100, 70, 1}, 0},
    {4, 1, 256, 256, 0, PL_BF16, 64, {130, 33, 17}, 0},
    {4, 1, 32, 32, 40, PL_BF16, 16, {1090, 41, 16}, 0},
    {2, 2, 48, 80, 0, PL_BF16, 48, {200, 65, 2}, 0},
    {14, 2, 80, 48, 512, PL_BF16, 64, {1600, 1, 3}, 0},
    {3, 1, 17, 19, 0, PL_BF16, 16, {100, 31, 32}, 0},
    {8, 1, 16, 16, 1, PL_BF16, 64, {40, 64, 65}, 0},
    {6, 3, 64, 64, 0, PL_F32, 64, {1030, 50, 7}, 0},
    {5, 5, 24, 40, 100, PL_F32, 32, {230, 2, 101}, 0},
    {1, 1, 1, 1, 0, PL_BF16, 16, {20, 1, 2}, 0},
    {50, 1, 33, 16, 0, PL_F32, 16, {70, 3, 1}, 0},
    {2, 1, 64, 64, 1500, PL_BF16, 64, {2100, 1030, 5}, 0},
    {9, 3, 64, 64, 0, PL_F8, 64, {1100, 70, 1}, PL_SCALE_TENSOR},
    {9, 3, 64, 64, 100, PL_F8, 16, {1100, 70, 1}, PL_SCALE_HEAD},
    {6, 3, 64, 32, 0, PL_F8, 64, {1060, 33, 1}, PL_SCALE_TOKEN},
    {3, 1, 17, 19, 0, PL_F8, 16, {100, 31, 32}, PL_SCALE_TOKEN},
    {6, 2, 17, 19, 30, PL_F8, 64, {100, 31, 32}, PL_SCALE_HEAD},
    {14, 2, 80, 48, 512, PL_F8, 64, {1600, 1, 3}, PL_SCALE_TENSOR},
    {4, 2, 48, 16, 1030, PL_F8, 48, {2100, 70, 5}, PL_SCALE_TOKEN},
    {2, 2, 128, 128, 0, PL_F8, 64, {70, 40, 2}, PL_SCALE_HEAD},
    {24, 1, 32, 80, 1, PL_F8, 16, {40, 64, 65}, PL_SCALE_TOKEN},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
enum { STRIDE = SANITIZED ? 4 : 1 }; /* half an hour for all; every fourth has every dtype and scale */

static uint32_t hash(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t h = (uint64_t)a * 0x9e3779b97f4a7c15ull + (uint64_t)b * 0xc2b2ae3d27d4eb4full + c;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9ull;
    h ^= h >> 32;
    h *= 0x94d049bb133111ebull;
    return (uint32_t)(h >> 32);
}
/* Element i of the query (what 0), key (1) or value (2) of a token: about normal, queries large enough to be peaky. With
 * an FP8 cache keys are small and values large, so that their scales are far from 1. */
static float size_of(const shape *h, int what)
{
    return h->dtype != PL_F8 ? 1 : what == 1 ? 1.25e-4f : what == 2 ? 700.0f : 1;
}
static float scale_of(const shape *h, int what, int head)
{
    return size_of(h, what) * 0.0101f * (h->scale == PL_SCALE_HEAD ? 1 + 0.37f * (float)head : 1);
}
static float element(const shape *h, int what, int seq, int pos, int i)
{
    float x = 0;
    for (uint32_t k = 0; k < 4; k++)
        x += (float)(hash((uint32_t)(what * 64 + seq), (uint32_t)pos, (uint32_t)i * 4 + k) >> 8) * 0x1p-24f - 0.5f;
    return x * (what == 0 ? 4 : 2) * size_of(h, what);
}

static void fill(pl_tensor *t, pl_dev *d, const shape *h, int what, const pl_kv *kv, int32_t heads, int32_t dim)
{
    pl_err e = {0};
    const int64_t n[3] = {kv->n_tokens, heads, dim};
    ck_assert_msg(pl_tensor_new(t, d, PL_F32, 3, n, &e) == PL_OK, "%s", e.msg);
    float *x = t->data;
    for (int32_t s = 0; s < kv->n_spans; s++)
        for (int32_t p = 0; p < kv->span[s].n; p++)
            for (int32_t i = 0; i < heads * dim; i++)
                *x++ = what == 3 ? NAN : element(h, what, kv->span[s].seq, (int)kv->span[s].pos + p, i);
}

/* As on machines where denormal factors are slow, or are not (isa.c). */
static void say_denormals_are_free(pl_dev *d, bool are) { ((pl_cpu *)pl_dev_stream(d)->impl)->denormals = are; }

static void set_scales(const shape *h, pl_kv *kv)
{
    pl_err e = {0};
    if (h->scale != PL_SCALE_TENSOR && h->scale != PL_SCALE_HEAD) return;
    for (int32_t l = 0; l < kv->o.layers; l++) { /* another layer's are wrong */
        float scale[2][64];
        for (int i = 0; i < h->groups; i++)
            for (int v = 0; v < 2; v++) scale[v][i] = scale_of(h, 1 + v, i) * (l == LAYER ? 1 : 5);
        ck_assert_msg(pl_kv_set_scales(kv, l, scale[0], scale[1], &e) == PL_OK, "%s", e.msg);
    }
}
static float attention_scale(const shape *h) { return 1 / sqrtf((float)h->key_dim) / size_of(h, 1); }

/* Runs all sequences to their ends, in steps of at most step[i] tokens of sequence i (0: not at all), and returns
 * y[N_SEQS][longest][heads][value_dim]. Every byte of the cache is `poison` at first: 0xff is a NaN in every format. */
static float *run_over(int poison, const shape *h, int32_t path, int32_t threads, const int32_t *step,
                       bool free_denormals)
{
    pl_err e = {0};
    pl_dev *d = NULL;
    pl_kv *kv = NULL;
    const pl_dev_opts o = {.kind = PL_DEV_CPU, .path = path, .n_threads = threads};
    ck_assert_msg(pl_dev_open(&d, &o, &e) == PL_OK, "%s", e.msg);
    say_denormals_are_free(d, free_denormals);
    const pl_kv_opts ko = {.layers = LAYERS,
                           .heads = h->groups,
                           .key_dim = h->key_dim,
                           .value_dim = h->value_dim,
                           .page = h->page,
                           .dtype = h->dtype,
                           .scale = h->scale,
                           .n_pages = 3 * 2200 / h->page};
    ck_assert_msg(pl_kv_open(&kv, d, &ko, &e) == PL_OK, "%s", e.msg);
    memset(kv->mem, poison, (size_t)(ko.n_pages * kv->page_bytes));
    set_scales(h, kv);
    int32_t longest = 0, done[N_SEQS] = {0};
    for (int i = 0; i < N_SEQS; i++) {
        int32_t seq;
        ck_assert(pl_kv_seq_new(kv, 1, &seq, &e) == PL_OK && seq == i);
        if (h->len[i] > longest) longest = h->len[i];
    }
    const int64_t row = (int64_t)h->heads * h->value_dim;
    float *out = calloc((size_t)(N_SEQS * longest * row), sizeof *out);
    for (;;) {
        pl_span span[N_SEQS];
        int32_t n = 0;
        for (int i = 0; i < N_SEQS; i++) {
            const int32_t left = h->len[i] - done[i];
            if (left && step[i]) span[n++] = (pl_span){i, left < step[i] ? left : step[i]};
        }
        if (!n) break;
        ck_assert_msg(pl_kv_begin(kv, span, n, &e) == PL_OK, "%s", e.msg);
        pl_tensor q, k, v, y;
        fill(&q, d, h, 0, kv, h->heads, h->key_dim);
        fill(&k, d, h, 1, kv, h->groups, h->key_dim);
        fill(&v, d, h, 2, kv, h->groups, h->value_dim);
        fill(&y, d, h, 3, kv, h->heads, h->value_dim);
        pl_stream *s = pl_dev_stream(d);
        ck_assert_msg(pl_kv_append(s, kv, LAYER, &k, &v, &e) == PL_OK, "%s", e.msg);
        ck_assert_msg(pl_attend(s, &y, &q, kv, LAYER, attention_scale(h), h->window, &e) == PL_OK, "%s", e.msg);
        const float *from = y.data;
        for (int i = 0; i < n; from += span[i].n * row, done[span[i].seq] += span[i].n, i++)
            memcpy(out + ((int64_t)span[i].seq * longest + done[span[i].seq]) * row, from,
                   sizeof *out * (size_t)(span[i].n * row));
        pl_kv_commit(kv, NULL);
        pl_tensor_release(&q);
        pl_tensor_release(&k);
        pl_tensor_release(&v);
        pl_tensor_release(&y);
    }
    pl_kv_close(kv);
    pl_dev_close(d);
    return out;
}

static float *run(const shape *h, int32_t path, int32_t threads, const int32_t *step)
{
    return run_over(0xff, h, path, threads, step, true);
}

static int32_t longest_of(const shape *h)
{
    int32_t n = 0;
    for (int i = 0; i < N_SEQS; i++) n = h->len[i] > n ? h->len[i] : n;
    return n;
}

/* What the cache holds for a key or value, or the query as it is used. */
static double stored(const shape *h, int what, int seq, int pos, int head, int i)
{
    const int dim = what == 2 ? h->value_dim : h->key_dim;
    const float x = element(h, what, seq, pos, head * dim + i);
    if (h->dtype == PL_F32) return x;
    if (what == 0 || h->dtype == PL_BF16) return pl_bf16_f32(pl_f32_bf16(x));
    float scale = scale_of(h, what, head), top = 0;
    if (h->scale == PL_SCALE_TOKEN) {
        for (int k = 0; k < dim; k++) top = fmaxf(top, fabsf(element(h, what, seq, pos, head * dim + k)));
        scale = top / 448;
    }
    return (double)pl_f8_f32(pl_f32_f8(x / scale)) * (double)scale;
}

/* stored() of all of a sequence's queries, keys or values: [len][heads][dim] */
static double *all_stored(const shape *h, int what, int seq)
{
    const int dim = what == 2 ? h->value_dim : h->key_dim, heads = what ? h->groups : h->heads;
    double *x = malloc(sizeof *x * (size_t)(h->len[seq] * heads * dim)), *to = x;
    for (int pos = 0; pos < h->len[seq]; pos++)
        for (int head = 0; head < heads; head++)
            for (int i = 0; i < dim; i++) *to++ = stored(h, what, seq, pos, head, i);
    return x;
}

/* The largest error of one query's output, relative to the values' size. q: the query's; k, v: the sequence's under its
 * key head, of which each token has groups. */
static double error_of(const shape *h, const float *y, int pos, const double *q, const double *k, const double *v)
{
    const int from = h->window && pos + 1 > h->window ? pos + 1 - h->window : 0;
    const int64_t k_row = (int64_t)h->groups * h->key_dim, v_row = (int64_t)h->groups * h->value_dim;
    double *p = malloc(sizeof *p * (size_t)(pos + 1)), top = -INFINITY, sum = 0, worst = 0;
    for (int u = from; u <= pos; u++) {
        p[u] = 0;
        for (int i = 0; i < h->key_dim; i++) p[u] += q[i] * k[u * k_row + i];
        p[u] *= (double)attention_scale(h);
        top = fmax(top, p[u]);
    }
    for (int u = from; u <= pos; u++) sum += p[u] = exp(p[u] - top);
    for (int i = 0; i < h->value_dim; i++) {
        double o = 0;
        for (int u = from; u <= pos; u++) o += p[u] * v[u * v_row + i];
        worst = fmax(worst, fabs(o / sum - y[i]));
    }
    free(p);
    return worst / size_of(h, 2);
}

START_TEST(against_doubles)
{
    static const char *const scale[] = {"", " per tensor", " per head", " per token"};
    const shape *h = &shapes[_i * STRIDE];
    const int32_t whole[N_SEQS] = {4000, 4000, 4000};
    float *y = run(h, PL_PATH_AUTO, 0, whole);
    double worst = 0;
    for (int s = 0; s < N_SEQS; s++) {
        double *q = all_stored(h, 0, s), *k = all_stored(h, 1, s), *v = all_stored(h, 2, s);
        for (int pos = 0; pos < h->len[s]; pos += pos < 40 || pos > h->len[s] - 5 ? 1 : 37)
            for (int head = 0; head < h->heads; head += 2) {
                const int g = head / (h->heads / h->groups);
                const float *at = y + (((int64_t)s * longest_of(h) + pos) * h->heads + head) * h->value_dim;
                worst = fmax(worst, error_of(h, at, pos, q + ((int64_t)pos * h->heads + head) * h->key_dim,
                                             k + g * h->key_dim, v + g * h->value_dim));
            }
        free(q);
        free(k);
        free(v);
    }
    printf("attend: %2d heads, %2d of keys, %3d + %3d, window %4d, %s%s: error %.2g\n", h->heads, h->groups, h->key_dim,
           h->value_dim, h->window, pl_dtype_name(h->dtype), scale[h->scale], worst);
    /* BF16, FP8: each of the probabilities is off by up to 2^-9, and with a scale per token by 2^-8 of itself without the
     * sum being off as well; values reach 4. F32: by roundings of float sums. */
    ck_assert_double_le(worst, h->dtype == PL_F32 ? 4e-6 : h->scale == PL_SCALE_TOKEN ? 1.6e-2 : 8e-3);
    free(y);
}
END_TEST

static void same(const shape *h, const float *a, const float *b, int only, const char *what)
{
    const int64_t n = (int64_t)longest_of(h) * h->heads * h->value_dim;
    for (int s = 0; s < N_SEQS; s++)
        for (int64_t i = 0; (only < 0 || only == s) && i < n; i++)
            if (memcmp(a + s * n + i, b + s * n + i, 4) != 0)
                ck_abort_msg("%s, shape %d: sequence %d, value %lld is %a, not %a", what, (int)(h - shapes), s,
                             (long long)i, (double)b[s * n + i], (double)a[s * n + i]);
}

START_TEST(same_bits)
{
    const shape *h = &shapes[_i * STRIDE];
    const int32_t whole[N_SEQS] = {4000, 4000, 4000}, cut[N_SEQS] = {100, 7, 1}, other[N_SEQS] = {1025, 1, 64};
    float *want = run(h, PL_PATH_AUTO, 1, whole);
    for (int32_t threads = 2; threads <= 3; threads++) {
        float *y = run(h, PL_PATH_AUTO, threads, threads == 2 ? cut : other);
        same(h, want, y, -1, "more threads, other steps");
        free(y);
    }
    for (int s = 0; s < N_SEQS; s++) {
        int32_t alone[N_SEQS] = {0};
        alone[s] = s ? 1 : 333;
        float *y = run(h, PL_PATH_AUTO, 2, alone);
        same(h, want, y, s, "alone");
        free(y);
    }
    for (int32_t path = PL_PATH_PORTABLE; path < PL_N_PATHS; path++) {
        if (!pl_dev_has_path(path)) continue;
        float *y = run(h, path, 2, whole);
        same(h, want, y, -1, pl_path_name(path));
        free(y);
        y = run_over(0xff, h, path, 2, cut, false);
        same(h, want, y, -1, "where denormals are slow");
        free(y);
    }
    float *y = run_over(0x3c, h, PL_PATH_AUTO, 2, cut, true);
    same(h, want, y, -1, "other bytes where no token is");
    free(y);
    free(want);
}
END_TEST

/* One token decodes after a long context: the chunks are spread over threads, in several waves. */
START_TEST(decode_spread)
{
    static const shape h = {2, 1, 32, 32, 0, PL_BF16, 64, {2199, 2100, 1}, 0};
    const int32_t one[N_SEQS] = {2198, 2099, 1}, whole[N_SEQS] = {4000, 4000, 4000};
    float *want = run(&h, PL_PATH_AUTO, 1, whole), *y = run(&h, PL_PATH_AUTO, 7, one);
    const int64_t n = (int64_t)longest_of(&h) * h.heads * h.value_dim * N_SEQS;
    ck_assert(memcmp(want, y, sizeof *y * (size_t)n) == 0);
    free(want);
    free(y);
}
END_TEST

/* Two sequences of 20 tokens in one step, and what was asked for; the caller fills k and v before `step`. */
typedef struct pair {
    pl_dev *d;
    pl_kv *kv;
    pl_tensor q, k, v, y;
} pair;
enum { PAIR_N = 20, PAIR_HEADS = 3, PAIR_DIM = 64, PAIR_ROW = PAIR_HEADS * PAIR_DIM };

static const shape pair_shapes[] = {
    {PAIR_HEADS, 1, PAIR_DIM, PAIR_DIM, 0, PL_BF16, 16, {PAIR_N, PAIR_N}, 0},
    {PAIR_HEADS, 1, PAIR_DIM, PAIR_DIM, 0, PL_F8, 16, {PAIR_N, PAIR_N}, PL_SCALE_TENSOR},
    {PAIR_HEADS, 1, PAIR_DIM, PAIR_DIM, 0, PL_F8, 16, {PAIR_N, PAIR_N}, PL_SCALE_TOKEN}};
enum { N_PAIR_SHAPES = sizeof pair_shapes / sizeof *pair_shapes };

static void pair_open(pair *p, const shape *h, int32_t path)
{
    pl_err e = {0};
    const pl_dev_opts o = {.kind = PL_DEV_CPU, .n_threads = 2, .path = path};
    *p = (pair){0};
    ck_assert(pl_dev_open(&p->d, &o, &e) == PL_OK);
    const pl_kv_opts ko = {.layers = LAYERS,
                           .heads = 1,
                           .key_dim = PAIR_DIM,
                           .value_dim = PAIR_DIM,
                           .page = 16,
                           .dtype = h->dtype,
                           .scale = h->scale,
                           .n_pages = 8};
    ck_assert_msg(pl_kv_open(&p->kv, p->d, &ko, &e) == PL_OK, "%s", e.msg);
    memset(p->kv->mem, 0xff, (size_t)(ko.n_pages * p->kv->page_bytes));
    set_scales(h, p->kv);
    const pl_span span[2] = {{0, PAIR_N}, {1, PAIR_N}};
    for (int32_t i = 0, seq; i < 2; i++) ck_assert(pl_kv_seq_new(p->kv, 1, &seq, &e) == PL_OK);
    ck_assert(pl_kv_begin(p->kv, span, 2, &e) == PL_OK);
    fill(&p->q, p->d, h, 0, p->kv, PAIR_HEADS, PAIR_DIM);
    fill(&p->k, p->d, h, 1, p->kv, 1, PAIR_DIM);
    fill(&p->v, p->d, h, 2, p->kv, 1, PAIR_DIM);
    fill(&p->y, p->d, h, 3, p->kv, PAIR_HEADS, PAIR_DIM);
}
static const float *pair_step(pair *p, const shape *h)
{
    pl_err e = {0};
    ck_assert(pl_kv_append(pl_dev_stream(p->d), p->kv, LAYER, &p->k, &p->v, &e) == PL_OK);
    ck_assert(pl_attend(pl_dev_stream(p->d), &p->y, &p->q, p->kv, LAYER, attention_scale(h), 0, &e) == PL_OK);
    return p->y.data;
}
static void pair_close(pair *p)
{
    pl_kv_abort(p->kv);
    pl_tensor_release(&p->q);
    pl_tensor_release(&p->k);
    pl_tensor_release(&p->v);
    pl_tensor_release(&p->y);
    pl_kv_close(p->kv);
    pl_dev_close(p->d);
}

/* A NaN in one request stays there, and reaches all that see it, on every path. */
START_TEST(nan_stays)
{
    const shape *h = &pair_shapes[_i];
    for (int32_t path = PL_PATH_AUTO; path < PL_N_PATHS; path++) {
        if (!pl_dev_has_path(path)) continue;
        pair p;
        pair_open(&p, h, path);
        ((float *)p.k.data)[10 * PAIR_DIM] = NAN;
        ((float *)p.v.data)[12 * PAIR_DIM] = -NAN;
        const float *y = pair_step(&p, h);
        for (int i = 0; i < 2 * PAIR_N * PAIR_ROW; i++) {
            const bool bad = !isfinite(y[i]);
            if (i >= PAIR_N * PAIR_ROW) ck_assert_msg(!bad, "value %d", i);
            if (i < PAIR_N * PAIR_ROW && i >= 10 * PAIR_ROW) ck_assert_msg(bad, "value %d", i);
        }
        if (h->dtype == PL_F8) {
            const pl_kv_seq *s = &p.kv->seq[0];
            ck_assert_uint_eq(pl_kv_key(p.kv, s, LAYER, 10)[0] & 0x7f, 0x7f);
            ck_assert_uint_eq(pl_kv_value(p.kv, s, LAYER, 12)[0], 0xff);
            for (int i = 1; i < PAIR_DIM; i++) ck_assert_uint_ne(pl_kv_key(p.kv, s, LAYER, 10)[i] & 0x7f, 0x7f);
        }
        pair_close(&p);
    }
}
END_TEST

/* A decode step over a NaN value: it shows in its own dim alone; the others are as without it. */
START_TEST(nan_value)
{
    const shape *h = &pair_shapes[_i];
    for (int32_t path = PL_PATH_AUTO; path < PL_N_PATHS; path++) {
        if (!pl_dev_has_path(path)) continue;
        float out[2][PAIR_ROW];
        for (int with = 0; with < 2; with++) {
            pair p;
            pair_open(&p, h, path);
            if (with) ((float *)p.v.data)[7 * PAIR_DIM + 33] = NAN;
            pair_step(&p, h);
            pl_err e = {0};
            ck_assert(pl_kv_commit(p.kv, &e) == PL_OK);
            const pl_span span = {0, 1};
            ck_assert(pl_kv_begin(p.kv, &span, 1, &e) == PL_OK);
            p.q.dim[0] = p.k.dim[0] = p.v.dim[0] = p.y.dim[0] = 1;
            /* the new token is row 0, which has no NaN */
            memcpy(out[with], pair_step(&p, h), sizeof out[with]);
            pair_close(&p);
        }
        for (int i = 0; i < PAIR_ROW; i++)
            if (i % PAIR_DIM == 33)
                ck_assert(isnan(out[1][i]) && isfinite(out[0][i]));
            else
                ck_assert_msg(memcmp(&out[0][i], &out[1][i], 4) == 0, "%s, value %d", pl_path_name(path), i);
    }
}
END_TEST

/* Codes of every kind, many of them subnormal, with queries and scales of tokens of all sizes: the definition's bits. */
START_TEST(all_codes)
{
    const shape *h = &pair_shapes[1 + _i / 2];
    static const float size[] = {1, 0x1p-130f, 0x1p14f, 0x1p15f, 0x1p40f, 0x1p120f};
    enum { N_SIZES = sizeof size / sizeof *size };
    for (int k = 0; k < N_SIZES * N_SIZES; k++) {
        float want[2 * PAIR_N * PAIR_ROW];
        for (int32_t path = PL_PATH_PORTABLE; path < PL_N_PATHS; path++) {
            if (!pl_dev_has_path(path)) continue;
            pair p;
            pl_err e = {0};
            pair_open(&p, h, path);
            say_denormals_are_free(p.d, _i % 2);
            pair_step(&p, h);
            for (int i = 0; i < 2 * PAIR_N * PAIR_ROW; i++) ((float *)p.q.data)[i] *= size[k % N_SIZES];
            for (int s = 0; s < 2; s++)
                for (int64_t t = 0; t < PAIR_N; t++)
                    for (int v = 0; v < 2; v++) {
                        const pl_kv_seq *seq = &p.kv->seq[s];
                        uint8_t *row = v ? pl_kv_value(p.kv, seq, LAYER, t) : pl_kv_key(p.kv, seq, LAYER, t);
                        for (uint32_t i = 0; i < PAIR_DIM; i++)
                            row[i] =
                                (uint8_t)(hash((uint32_t)t, i, (uint32_t)v) & 0x87) | (uint8_t)(t % 3 * 8 * (i % 5));
                        if (h->scale == PL_SCALE_TOKEN && v)
                            pl_kv_token_scale(p.kv, seq, LAYER, t, true)[0] = (float)(t + 1) * size[k / N_SIZES];
                    }
            ck_assert(pl_attend(pl_dev_stream(p.d), &p.y, &p.q, p.kv, LAYER,
                                size[k % N_SIZES] < 1 ? 1 : 1 / size[k % N_SIZES], 0, &e) == PL_OK);
            if (path == PL_PATH_PORTABLE)
                memcpy(want, p.y.data, sizeof want);
            else
                ck_assert_msg(memcmp(want, p.y.data, sizeof want) == 0, "%s, %d", pl_path_name(path), k);
            pair_close(&p);
        }
    }
}
END_TEST

/* Infinities, and what is too large for the scale, become 448 of it. A token's scale ignores infinities and NaN; a row
 * of zeros has scale 1. */
START_TEST(saturates)
{
    const shape *h = &pair_shapes[1 + _i];
    pair p;
    pair_open(&p, h, PL_PATH_AUTO);
    float *v = p.v.data;
    for (int i = 0; i < PAIR_DIM; i++) v[i] = 0, v[PAIR_DIM + i] = i == 3 ? -INFINITY : i == 4 ? NAN : 14 * (float)i;
    v[2 * PAIR_DIM] = 1e30f;
    pair_step(&p, h);
    const pl_kv_seq *s = &p.kv->seq[0];
    const uint8_t *row = pl_kv_value(p.kv, s, LAYER, 1);
    for (int i = 0; i < PAIR_DIM; i++) ck_assert_uint_eq(pl_kv_value(p.kv, s, LAYER, 0)[i], 0);
    ck_assert_uint_eq(row[3], 0xfe);
    ck_assert_uint_eq(row[4] & 0x7f, 0x7f);
    ck_assert_uint_eq(pl_kv_value(p.kv, s, LAYER, 2)[0], 0x7e);
    if (h->scale == PL_SCALE_TOKEN) {
        ck_assert(pl_kv_token_scale(p.kv, s, LAYER, 0, true)[0] == 1);
        ck_assert(pl_kv_token_scale(p.kv, s, LAYER, 1, true)[0] == 14 * 63 / 448.0f);
        ck_assert(pl_kv_token_scale(p.kv, s, LAYER, 2, true)[0] == 1e30f / 448);
        ck_assert_uint_eq(row[63], 0x7e);
    }
    pair_close(&p);
}
END_TEST

/* A span whose page is someone else's: nothing is read or written for it, its rows become 0, its neighbour's are as
 * ever. */
START_TEST(bad_span)
{
    const shape *h = &pair_shapes[_i];
    for (int bad = 0; bad < 2; bad++) {
        pair clean, p;
        pair_open(&clean, h, PL_PATH_AUTO);
        pair_open(&p, h, PL_PATH_AUTO);
        p.kv->bad[bad] = 1;
        const float *want = pair_step(&clean, h), *y = pair_step(&p, h);
        const int at = PAIR_N * PAIR_ROW * bad, other = PAIR_N * PAIR_ROW * (1 - bad);
        for (int i = 0; i < PAIR_N * PAIR_ROW; i++) ck_assert_msg(y[at + i] == 0, "value %d", i);
        ck_assert(memcmp(y + other, want + other, sizeof *y * PAIR_N * PAIR_ROW) == 0);
        const pl_kv_seq *s = &p.kv->seq[bad];
        for (int32_t i = 0; i < s->n_pages; i++)
            for (int64_t k = 0; k < p.kv->page_bytes; k++) ck_assert_uint_eq(pl_kv_page(p.kv, s->page[i])[k], 0xff);
        pair_close(&p);
        pair_close(&clean);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("attend");
    TCase *c = tcase_create("attend");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, against_doubles, 0, (N_SHAPES + STRIDE - 1) / STRIDE);
    tcase_add_loop_test(c, same_bits, 0, (N_SHAPES + STRIDE - 1) / STRIDE);
    tcase_add_test(c, decode_spread);
    tcase_add_loop_test(c, nan_stays, 0, N_PAIR_SHAPES);
    tcase_add_loop_test(c, nan_value, 0, N_PAIR_SHAPES);
    tcase_add_loop_test(c, all_codes, 0, 4);
    tcase_add_loop_test(c, saturates, 0, 2);
    tcase_add_loop_test(c, bad_span, 0, N_PAIR_SHAPES);
    suite_add_tcase(s, c);
    return run_suite(s);
}
