/* attend.c: attention over the paged cache against doubles; and the same bits on every path, for any number of
 * threads, any batch and any cut of a sequence into steps. */
#include "dev.h"
#include "dtype.h"
#include "kv.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_SEQS = 3, LAYERS = 2, LAYER = 1 };

typedef struct shape {
    int32_t heads, groups, key_dim, value_dim, window, dtype, page;
    int32_t len[N_SEQS];
} shape;

/* odd head dims, other value dims, windows inside and across chunks, sequences over one and two chunk limits */
static const shape shapes[] = {
    {9, 3, 64, 64, 0, PL_BF16, 64, {1100, 70, 1}},   {4, 1, 256, 256, 0, PL_BF16, 64, {130, 33, 17}},
    {4, 1, 32, 32, 40, PL_BF16, 16, {1090, 41, 16}}, {2, 2, 48, 80, 0, PL_BF16, 48, {200, 65, 2}},
    {14, 2, 80, 48, 512, PL_BF16, 64, {1600, 1, 3}}, {3, 1, 17, 19, 0, PL_BF16, 16, {100, 31, 32}},
    {8, 1, 16, 16, 1, PL_BF16, 64, {40, 64, 65}},    {6, 3, 64, 64, 0, PL_F32, 64, {1030, 50, 7}},
    {5, 5, 24, 40, 100, PL_F32, 32, {230, 2, 101}},  {1, 1, 1, 1, 0, PL_BF16, 16, {20, 1, 2}},
    {50, 1, 33, 16, 0, PL_F32, 16, {70, 3, 1}},      {2, 1, 64, 64, 1500, PL_BF16, 64, {2100, 1030, 5}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static uint32_t hash(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t h = (uint64_t)a * 0x9e3779b97f4a7c15ull + (uint64_t)b * 0xc2b2ae3d27d4eb4full + c;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9ull;
    h ^= h >> 32;
    h *= 0x94d049bb133111ebull;
    return (uint32_t)(h >> 32);
}
/* Element i of the query (what 0), key (1) or value (2) of a token: about normal, queries large enough to be peaky. */
static float element(int what, int seq, int pos, int i)
{
    float x = 0;
    for (uint32_t k = 0; k < 4; k++)
        x += (float)(hash((uint32_t)(what * 64 + seq), (uint32_t)pos, (uint32_t)i * 4 + k) >> 8) * 0x1p-24f - 0.5f;
    return x * (what == 0 ? 4 : 2);
}

static void fill(pl_tensor *t, pl_dev *d, int what, const pl_kv *kv, int32_t heads, int32_t dim)
{
    pl_err e = {0};
    const int64_t n[3] = {kv->n_tokens, heads, dim};
    ck_assert_msg(pl_tensor_new(t, d, PL_F32, 3, n, &e) == PL_OK, "%s", e.msg);
    float *x = t->data;
    for (int32_t s = 0; s < kv->n_spans; s++)
        for (int32_t p = 0; p < kv->span[s].n; p++)
            for (int32_t i = 0; i < heads * dim; i++)
                *x++ = what == 3 ? NAN : element(what, kv->span[s].seq, (int)kv->span[s].pos + p, i);
}

/* Runs all sequences to their ends, in steps of at most step[i] tokens of sequence i (0: not at all), and returns
 * y[N_SEQS][longest][heads][value_dim]. Every byte of the cache is a NaN at first. */
static float *run(const shape *h, int32_t path, int32_t threads, const int32_t *step)
{
    pl_err e = {0};
    pl_dev *d = NULL;
    pl_kv *kv = NULL;
    const pl_dev_opts o = {.kind = PL_DEV_CPU, .path = path, .n_threads = threads};
    ck_assert_msg(pl_dev_open(&d, &o, &e) == PL_OK, "%s", e.msg);
    const pl_kv_opts ko = {.layers = LAYERS,
                           .heads = h->groups,
                           .key_dim = h->key_dim,
                           .value_dim = h->value_dim,
                           .page = h->page,
                           .dtype = h->dtype,
                           .n_pages = 3 * 2200 / h->page};
    ck_assert_msg(pl_kv_open(&kv, d, &ko, &e) == PL_OK, "%s", e.msg);
    memset(kv->mem, 0xff, (size_t)(ko.n_pages * kv->page_bytes));
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
        fill(&q, d, 0, kv, h->heads, h->key_dim);
        fill(&k, d, 1, kv, h->groups, h->key_dim);
        fill(&v, d, 2, kv, h->groups, h->value_dim);
        fill(&y, d, 3, kv, h->heads, h->value_dim);
        pl_stream *s = pl_dev_stream(d);
        ck_assert_msg(pl_kv_append(s, kv, LAYER, &k, &v, &e) == PL_OK, "%s", e.msg);
        ck_assert_msg(pl_attend(s, &y, &q, kv, LAYER, 1 / sqrtf((float)h->key_dim), h->window, &e) == PL_OK, "%s",
                      e.msg);
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

static int32_t longest_of(const shape *h)
{
    int32_t n = 0;
    for (int i = 0; i < N_SEQS; i++) n = h->len[i] > n ? h->len[i] : n;
    return n;
}

static double rounded(const shape *h, float x) { return h->dtype == PL_BF16 ? pl_bf16_f32(pl_f32_bf16(x)) : x; }

/* The largest error of one query's output, relative to the values' size (about 1). */
static double error_of(const shape *h, const float *y, int seq, int pos, int head)
{
    const int g = head / (h->heads / h->groups), from = h->window && pos + 1 > h->window ? pos + 1 - h->window : 0;
    double *p = malloc(sizeof *p * (size_t)(pos + 1)), top = -INFINITY, sum = 0, worst = 0;
    for (int u = from; u <= pos; u++) {
        p[u] = 0;
        for (int i = 0; i < h->key_dim; i++)
            p[u] += rounded(h, element(0, seq, pos, head * h->key_dim + i)) *
                    rounded(h, element(1, seq, u, g * h->key_dim + i));
        p[u] *= (double)(1 / sqrtf((float)h->key_dim));
        top = fmax(top, p[u]);
    }
    for (int u = from; u <= pos; u++) sum += p[u] = exp(p[u] - top);
    for (int i = 0; i < h->value_dim; i++) {
        double o = 0;
        for (int u = from; u <= pos; u++) o += p[u] * rounded(h, element(2, seq, u, g * h->value_dim + i));
        worst = fmax(worst, fabs(o / sum - y[i]));
    }
    free(p);
    return worst;
}

START_TEST(against_doubles)
{
    const shape *h = &shapes[_i];
    const int32_t whole[N_SEQS] = {4000, 4000, 4000};
    float *y = run(h, PL_PATH_AUTO, 0, whole);
    double worst = 0;
    for (int s = 0; s < N_SEQS; s++)
        for (int pos = 0; pos < h->len[s]; pos += pos < 40 || pos > h->len[s] - 5 ? 1 : 37)
            for (int head = 0; head < h->heads; head += 2) {
                const float *at = y + (((int64_t)s * longest_of(h) + pos) * h->heads + head) * h->value_dim;
                worst = fmax(worst, error_of(h, at, s, pos, head));
            }
    printf("attend: %2d heads, %2d of keys, %3d + %3d, window %4d, %s: error %.2g\n", h->heads, h->groups, h->key_dim,
           h->value_dim, h->window, pl_dtype_name(h->dtype), worst);
    /* BF16: each of the probabilities is off by up to 2^-9; F32: by roundings of float sums */
    ck_assert_double_le(worst, h->dtype == PL_BF16 ? 8e-3 : 4e-6);
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
    const shape *h = &shapes[_i];
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
    }
    free(want);
}
END_TEST

/* One token decodes after a long context: the chunks are spread over threads, in several waves. */
START_TEST(decode_spread)
{
    static const shape h = {2, 1, 32, 32, 0, PL_BF16, 64, {2199, 2100, 1}};
    const int32_t one[N_SEQS] = {2198, 2099, 1}, whole[N_SEQS] = {4000, 4000, 4000};
    float *want = run(&h, PL_PATH_AUTO, 1, whole), *y = run(&h, PL_PATH_AUTO, 7, one);
    const int64_t n = (int64_t)longest_of(&h) * h.heads * h.value_dim * N_SEQS;
    ck_assert(memcmp(want, y, sizeof *y * (size_t)n) == 0);
    free(want);
    free(y);
}
END_TEST

/* A NaN in one request stays there. */
START_TEST(nan_stays)
{
    pl_err e = {0};
    pl_dev *d = NULL;
    pl_kv *kv = NULL;
    const pl_dev_opts o = {.kind = PL_DEV_CPU, .n_threads = 2};
    ck_assert(pl_dev_open(&d, &o, &e) == PL_OK);
    const pl_kv_opts ko = {
        .layers = 1, .heads = 1, .key_dim = 64, .value_dim = 64, .page = 16, .dtype = PL_BF16, .n_pages = 8};
    ck_assert(pl_kv_open(&kv, d, &ko, &e) == PL_OK);
    const pl_span span[2] = {{0, 20}, {1, 20}};
    for (int32_t i = 0, seq; i < 2; i++) ck_assert(pl_kv_seq_new(kv, 1, &seq, &e) == PL_OK);
    ck_assert(pl_kv_begin(kv, span, 2, &e) == PL_OK);
    pl_tensor q, k, v, y;
    fill(&q, d, 0, kv, 3, 64);
    fill(&k, d, 1, kv, 1, 64);
    fill(&v, d, 2, kv, 1, 64);
    fill(&y, d, 3, kv, 3, 64);
    ((float *)k.data)[10 * 64] = NAN;
    ((float *)v.data)[12 * 64] = INFINITY;
    ck_assert(pl_kv_append(pl_dev_stream(d), kv, 0, &k, &v, &e) == PL_OK);
    ck_assert(pl_attend(pl_dev_stream(d), &y, &q, kv, 0, 0.125f, 0, &e) == PL_OK);
    for (int i = 0; i < 40 * 3 * 64; i++) {
        const bool bad = !isfinite(((float *)y.data)[i]);
        if (i >= 20 * 3 * 64) ck_assert_msg(!bad, "value %d", i);
        if (i < 20 * 3 * 64 && i >= 10 * 3 * 64) ck_assert_msg(bad, "value %d", i);
    }
    pl_kv_abort(kv);
    pl_tensor_release(&q);
    pl_tensor_release(&k);
    pl_tensor_release(&v);
    pl_tensor_release(&y);
    pl_kv_close(kv);
    pl_dev_close(d);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("attend");
    TCase *c = tcase_create("attend");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, against_doubles, 0, N_SHAPES);
    tcase_add_loop_test(c, same_bits, 0, N_SHAPES);
    tcase_add_test(c, decode_spread);
    tcase_add_test(c, nan_stays);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
