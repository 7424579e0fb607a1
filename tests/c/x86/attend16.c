/* attend16.c: attention on AVX-512 as it stands, each of its instructions made of AVX2 ones (avx512.h), and on AVX2, give the
 * bits of plain C: over every format of the cache, both ways from E4M3 codes to words, and any cut into blocks. */
#include "avx512.h"
#include "cpu.h"
#include "kv.h"
#include "suite.h"
#include <math.h>
#include <stdlib.h>
#define pl_attend_avx512 emulated
#include "x86/attend_avx512.c"

enum { N_SEQS = 2, LAYERS = 2, LAYER = 1 };
typedef struct shape {
    int32_t heads, group, key_dim, value_dim, window, page, dtype, scale;
    int32_t before[N_SEQS], n[N_SEQS]; /* what the cache holds when the step begins, and the step's tokens */
} shape;

/* 1 to 13 queries, over limits of pages and of one or two chunks; dims that are multiples of 16, of the keys alone, of the
 * values alone, of neither; windows within and across chunks. */
static const shape shapes[] = {
    {1, 1, 64, 64, 0, 64, PL_BF16, 0, {1018, 0}, {13, 9}},
    {2, 3, 48, 80, 0, 48, PL_BF16, 0, {2046, 46}, {3, 7}},
    {3, 2, 32, 32, 40, 16, PL_BF16, 0, {1030, 15}, {12, 2}},
    {4, 1, 16, 256, 0, 64, PL_BF16, 0, {31, 63}, {1, 1}},
    {3, 1, 17, 19, 0, 16, PL_BF16, 0, {100, 31}, {5, 11}},
    {2, 2, 80, 33, 1030, 64, PL_BF16, 0, {2100, 5}, {4, 8}},
    {2, 5, 7, 48, 1, 16, PL_BF16, 0, {20, 14}, {6, 10}},
    {2, 2, 64, 64, 0, 64, PL_F32, 0, {1020, 3}, {9, 13}},
    {5, 1, 24, 40, 100, 32, PL_F32, 0, {230, 30}, {7, 3}},
    {1, 7, 1, 1, 0, 16, PL_F32, 0, {1023, 0}, {2, 1}},
    {1, 1, 64, 64, 0, 64, PL_F8, PL_SCALE_TENSOR, {1018, 0}, {13, 9}},
    {2, 4, 128, 64, 0, 64, PL_F8, PL_SCALE_TENSOR, {63, 1}, {1, 3}},
    {3, 2, 80, 48, 512, 48, PL_F8, PL_SCALE_HEAD, {1500, 47}, {8, 1}},
    {2, 1, 17, 19, 0, 16, PL_F8, PL_SCALE_HEAD, {33, 90}, {11, 6}},
    {2, 2, 32, 20, 30, 16, PL_F8, PL_SCALE_HEAD, {60, 7}, {4, 12}},
    {3, 3, 64, 96, 0, 64, PL_F8, PL_SCALE_TOKEN, {1023, 40}, {2, 5}},
    {2, 6, 20, 32, 1, 16, PL_F8, PL_SCALE_TOKEN, {16, 0}, {10, 4}},
    {4, 1, 16, 16, 1030, 48, PL_F8, PL_SCALE_TOKEN, {2080, 1}, {7, 13}},
    {2, 1, 31, 1, 0, 16, PL_F8, PL_SCALE_TOKEN, {50, 14}, {3, 2}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* What the cache and the queries hold: numbers; values of all bits, of tokens that all queries see, since what is not finite
 * may reach others of the step as well (attend.h); or keys of all bits, late in the sequences, and queries. */
enum { TAME, ODD_VALUES, ODD_KEYS, N_KINDS };
static const float sizes[] = {1, 0x1p-130f, 0x1p15f, 0x1p40f}; /* of the queries; then of the tokens' scales */

static uint64_t seed;
static uint64_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed >> 11;
}
static float number(bool odd)
{
    return odd && rnd() % 16 == 0 ? pl_bits_f32((uint32_t)rnd()) : (float)((double)rnd() * 0x1p-52 - 1) * 2;
}
/* Any E4M3 code is a number, but for NaN: every other one is subnormal, or zero. */
static uint8_t code(bool odd)
{
    const uint8_t c = rnd() % 2 ? (uint8_t)rnd() : (uint8_t)(rnd() & 0x87);
    return (c & 0x7f) == 0x7f && !(odd && rnd() % 8 == 0) ? 0x11 : c;
}
static void fill_row(uint8_t *row, int32_t dtype, int64_t n, bool odd)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = number(odd);
        const uint16_t w = pl_f32_bf16(x);
        if (dtype == PL_F32) memcpy(row + 4 * i, &x, 4);
        if (dtype == PL_BF16) memcpy(row + 2 * i, &w, 2);
        if (dtype == PL_F8) row[i] = code(odd);
    }
}

typedef struct trial {
    const shape *h;
    pl_dev *dev; /* portable */
    pl_kv *kv;
    pl_tensor q, want, got;
} trial;

static void tensor(trial *c, pl_tensor *t, int64_t heads, int64_t dim)
{
    pl_err e = {0};
    const int64_t n[3] = {c->kv->n_tokens, heads, dim};
    ck_assert_msg(pl_tensor_new(t, c->dev, PL_F32, 3, n, &e) == PL_OK, "%s", e.msg);
}
static void start(trial *c, const shape *h)
{
    pl_err e = {0};
    const pl_dev_opts o = {.kind = PL_DEV_CPU, .path = PL_PATH_PORTABLE, .n_threads = 1};
    const pl_kv_opts ko = {.layers = LAYERS,
                           .heads = h->heads,
                           .key_dim = h->key_dim,
                           .value_dim = h->value_dim,
                           .page = h->page,
                           .dtype = h->dtype,
                           .scale = h->scale,
                           .n_pages = 2 * (2200 / h->page + 1)};
    *c = (trial){.h = h};
    ck_assert_msg(pl_dev_open(&c->dev, &o, &e) == PL_OK, "%s", e.msg);
    ck_assert_msg(pl_kv_open(&c->kv, c->dev, &ko, &e) == PL_OK, "%s", e.msg);
    memset(c->kv->mem, 0xff, (size_t)(ko.n_pages * c->kv->page_bytes)); /* NaN */
    for (int l = 0; l < LAYERS && (h->scale == PL_SCALE_TENSOR || h->scale == PL_SCALE_HEAD); l++) {
        float scale[2][8];
        for (int i = 0; i < 16; i++) scale[i / 8][i % 8] = (h->scale == PL_SCALE_HEAD ? i % 8 + 1 : 1) * 0.013f;
        ck_assert_msg(pl_kv_set_scales(c->kv, l, scale[0], scale[1], &e) == PL_OK, "%s", e.msg);
    }
    pl_span span[N_SEQS], before[N_SEQS];
    int32_t n = 0, seq;
    for (int32_t i = 0; i < N_SEQS; i++) {
        ck_assert(pl_kv_seq_new(c->kv, 1, &seq, &e) == PL_OK && seq == i);
        span[i] = (pl_span){i, h->n[i]};
        if (h->before[i]) before[n++] = (pl_span){i, h->before[i]};
    }
    ck_assert(pl_kv_begin(c->kv, before, n, &e) == PL_OK && pl_kv_commit(c->kv, &e) == PL_OK);
    ck_assert(pl_kv_begin(c->kv, span, N_SEQS, &e) == PL_OK);
    tensor(c, &c->q, h->heads * h->group, h->key_dim);
    tensor(c, &c->want, h->heads * h->group, h->value_dim);
    tensor(c, &c->got, h->heads * h->group, h->value_dim);
}
static void fill(trial *c, int kind, int which)
{
    const shape *h = c->h;
    const bool odd = kind == ODD_KEYS;
    for (int i = 0; i < N_SEQS; i++) {
        const pl_kv_seq *s = &c->kv->seq[i];
        const int64_t n = h->before[i] + h->n[i], seen = h->window ? pl_max(0, n - h->window) : 0;
        for (int64_t t = 0; t < n; t++) {
            fill_row(pl_kv_key(c->kv, s, LAYER, t), h->dtype, h->heads * h->key_dim, odd && t + 2 >= n);
            fill_row(pl_kv_value(c->kv, s, LAYER, t), h->dtype, h->heads * h->value_dim,
                     kind == ODD_VALUES && t >= seen && t <= h->before[i]);
            for (int v = 0; v < 2 && h->scale == PL_SCALE_TOKEN; v++)
                for (int g = 0; g < h->heads; g++) { /* large values under some heads alone */
                    float *scale = pl_kv_token_scale(c->kv, s, LAYER, t, v) + g;
                    *scale = (float)(rnd() % 100 + 1) * 0.02f;
                    if (kind == ODD_VALUES && v && g % 2 == which / 2) *scale *= sizes[(which + 1) % 4];
                }
        }
    }
    float *q = c->q.data;
    const int64_t row = h->heads * h->group * h->key_dim;
    for (int64_t i = 0; i < c->kv->n_tokens * row; i++) q[i] = number(odd && i % (7 * row) < 3) * sizes[which];
}
static void finish(trial *c)
{
    pl_kv_abort(c->kv);
    pl_tensor_release(&c->q);
    pl_tensor_release(&c->want);
    pl_tensor_release(&c->got);
    pl_kv_close(c->kv);
    pl_dev_close(c->dev);
}

/* In blocks of up to `queries` queries and `heads` key heads. */
static void attend(const pl_attend_ops *ops, const pl_attend_job *j, int64_t queries, int64_t heads)
{
    const pl_kv *kv = j->kv;
    const int64_t most = queries * heads * j->group, value_dim = kv->o.value_dim;
    const size_t part_bytes = 4 * (size_t)pl_attend_part(most, value_dim);
    float *part = malloc(part_bytes), *sum = malloc(part_bytes);
    float *work = malloc(4 * (size_t)pl_attend_work(most, kv->o.key_dim, value_dim));
    ck_assert(part && sum && work);
    const uint32_t mode = pl_fp_enter();
    for (int32_t i = 0; i < kv->n_spans; i++)
        for (int64_t from = 0; from < kv->span[i].n; from += queries)
            for (int64_t head = 0; head < kv->o.heads; head += heads) {
                const pl_attend_block b = {.seq = &kv->seq[kv->span[i].seq],
                                           .head = (int32_t)head,
                                           .heads = (int32_t)pl_min(heads, kv->o.heads - head),
                                           .row = kv->span[i].first + from,
                                           .n = pl_min(queries, kv->span[i].n - from),
                                           .pos = kv->span[i].pos + from};
                int64_t chunk = pl_attend_first(j, b.pos) / PL_ATTEND_CHUNK;
                ops->chunk(j, &b, chunk, sum, work);
                while (++chunk * PL_ATTEND_CHUNK < b.pos + b.n) {
                    ops->chunk(j, &b, chunk, part, work);
                    ops->merge(sum, part, b.heads * b.n * j->group, value_dim);
                }
                ops->finish(j, &b, sum);
            }
    pl_fp_leave(mode);
    free(part);
    free(sum);
    free(work);
}

START_TEST(test_attend)
{
    static const int64_t cuts[][2] = {{13, 4}, {1, 1}, {5, 2}}; /* queries and key heads of a block */
    static const pl_attend_ops *const paths[] = {&emulated, &pl_attend_avx2};
    if (!pl_dev_has_path(PL_PATH_AVX2)) return;
    trial c;
    start(&c, &shapes[_i]);
    seed = (uint64_t)_i + 1;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int which = 0; which < 4; which++) {
            pl_err e = {0};
            const float scale = 1 / sqrtf((float)c.h->key_dim) / (sizes[which] < 1 ? 1 : sizes[which]);
            pl_attend_job j = {c.kv, &c.q, &c.got, LAYER, c.h->group, c.h->window, scale, false};
            fill(&c, kind, which);
            const int rc = pl_attend(pl_dev_stream(c.dev), &c.want, &c.q, c.kv, LAYER, scale, c.h->window, &e);
            ck_assert_msg(rc == PL_OK, "%s", e.msg);
            const float *want = c.want.data, *got = c.got.data;
            const int64_t n = c.kv->n_tokens * c.h->heads * c.h->group * c.h->value_dim;
            int64_t n_nan = 0;
            for (int64_t i = 0; i < n; i++) n_nan += isnan(want[i]);
            ck_assert_msg(kind == TAME ? n_nan == 0 : n_nan < n, "%d NaN of %d, kind %d", (int)n_nan, (int)n, kind);
            for (int run = 0; run < 12; run++) {
                memset(c.got.data, 0x55, 4 * (size_t)n);
                j.denormals = run % 2;
                attend(paths[run / 6], &j, cuts[run / 2 % 3][0], cuts[run / 2 % 3][1]);
                for (int64_t i = 0; i < n; i++)
                    if (pl_f32_bits(want[i]) != pl_f32_bits(got[i]) && !(isnan(want[i]) && isnan(got[i])))
                        ck_abort_msg("kind %d, size %a, run %d: value %d is %a, want %a", kind, (double)sizes[which],
                                     run, (int)i, (double)got[i], (double)want[i]);
            }
        }
    finish(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("attend16");
    TCase *t = tcase_create("attend");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, test_attend, 0, N_SHAPES);
    suite_add_tcase(s, t);
    return run_suite(s);
}
