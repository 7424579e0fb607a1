#ifndef PRODUCTS_H
#define PRODUCTS_H
/* What tests of products compute with: every format of weights, with odd values among them; and a product for kernels that
 * are called by hand, against the definition. Functions that a test does not use are no warning: it is a header of tests. */
#include "linear.h"
#include "suite.h"
#include <math.h>
#include <stdlib.h>

static const int32_t formats[] = {PL_F32,   PL_F16,    PL_BF16,  PL_F8,    PL_Q4_0,   PL_Q4_1,  PL_Q5_0,  PL_Q5_1,
                                  PL_Q8_0,  PL_Q4_K,   PL_Q5_K,  PL_Q6_K,  PL_IQ4_NL, PL_MXFP4, PL_NVFP4, PL_I4G32,
                                  PL_I4G64, PL_I4G128, PL_U4G32, PL_U4G64, PL_U4G128, PL_F8G32, PL_F8G64, PL_F8G128};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static inline uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}
static inline float uniform(uint64_t *s) { return (float)((double)(rnd(s) >> 11) * 0x1p-52 - 1); }

static inline void put_half(uint8_t *p, float f)
{
    const uint16_t h = pl_f32_f16(f);
    memcpy(p, &h, 2);
}
/* Random bits everywhere but in scales, which are moderate numbers of both signs, or 0, or subnormal halves. */
static inline void fill_weights(pl_tensor *w, uint64_t *s)
{
    const int64_t n = w->dim[0], k = w->dim[1];
    const int32_t bytes = pl_dtype_bytes(w->dtype), block = pl_dtype_block(w->dtype);
    uint8_t *p = w->data;
    for (int64_t i = 0; i < n * k / block; i++, p += bytes) {
        for (int32_t j = 0; j < bytes; j++) p[j] = (uint8_t)(rnd(s) >> 32);
        const float d = rnd(s) % 16 == 0 ? 0 : rnd(s) % 16 == 0 ? 0x3p-24f : uniform(s) * 0.1f;
        switch (w->dtype) {
        case PL_F32: {
            const float v = rnd(s) % 16 == 0 ? 1e-41f : uniform(s);
            memcpy(p, &v, 4);
            break;
        }
        case PL_F16:
            put_half(p, rnd(s) % 16 == 0 ? 0x5p-24f : uniform(s));
            break;
        case PL_BF16: {
            const uint16_t v = rnd(s) % 16 == 0 ? 3 : pl_f32_bf16(uniform(s));
            memcpy(p, &v, 2);
            break;
        }
        case PL_F8:
            if ((*p & 0x7f) == 0x7f) *p = 0x11;
            break;
        case PL_Q4_1:
        case PL_Q5_1:
        case PL_Q4_K:
        case PL_Q5_K:
            put_half(p + 2, uniform(s)); /* fall through */
        case PL_Q4_0:
        case PL_Q5_0:
        case PL_Q8_0:
        case PL_IQ4_NL:
            put_half(p, d);
            break;
        case PL_MXFP4:
            p[0] = d == 0 ? 0 : (uint8_t)(115 + rnd(s) % 12);
            break;
        case PL_NVFP4: { /* one float a row, in both dialects */
            const int64_t row = i / (k / block);
            const float tensor = row % 2 ? -1000 - (float)row : 0.0003f * (float)(row + 1);
            memcpy(p, &tensor, 4);
            for (int j = 4; j < 6; j++)
                if ((p[j] & 0x7f) == 0x7f) p[j] = 0x11;
            break;
        }
        case PL_I4G32:
        case PL_I4G64:
        case PL_I4G128: {
            const uint16_t v = pl_f32_bf16(d);
            memcpy(p, &v, 2);
            break;
        }
        case PL_U4G32:
        case PL_U4G64:
        case PL_U4G128:
            put_half(p, d);
            p[2] = (uint8_t) - (rnd(s) % 17);
            break;
        case PL_F8G32:
        case PL_F8G64:
        case PL_F8G128:
            memcpy(p, &d, 4);
            for (int j = 4; j < bytes; j++)
                if ((p[j] & 0x7f) == 0x7f) p[j] = 0x11;
            break;
        default:
            put_half(p + 208, d);
        }
    }
}
/* Mostly normal; also 0, -0, denormal, near the smallest that counts, and very large numbers. */
static inline void fill_x(pl_tensor *x, uint64_t *s)
{
    static const float odd[] = {0.0f,        -0.0f,           1e-41f,  -0x1.fp-101f, 0x1p-100f,
                                0x1.8p-100f, -0x1.fffep-101f, 0x1p90f, -0x1p100f,    1e-30f};
    float *p = x->data;
    for (int64_t i = 0; i < x->dim[0] * x->dim[1]; i++) p[i] = rnd(s) % 24 ? uniform(s) * 3 : odd[rnd(s) % 10];
}

typedef struct trial {
    pl_dev *dev; /* portable */
    pl_tensor w, packed, x, b, want, got;
    int64_t m, n, k;
    int32_t format;
} trial;

static inline void product_tensor(trial *c, pl_tensor *t, int32_t dtype, int64_t rows, int64_t cols)
{
    pl_err e = {0};
    const int64_t dim[2] = {rows, cols};
    ck_assert_msg(pl_tensor_new(t, c->dev, dtype, 2, dim, &e) == PL_OK, "%s", e.msg);
}
static inline void product_new(trial *c, int32_t format, int64_t m, int64_t n, int64_t k, uint64_t seed)
{
    pl_err e = {0};
    const pl_dev_opts o = {.kind = PL_DEV_CPU, .path = PL_PATH_PORTABLE, .n_threads = 1};
    *c = (trial){.m = m, .n = n, .k = k, .format = format};
    ck_assert_msg(pl_dev_open(&c->dev, &o, &e) == PL_OK, "%s", e.msg);
    product_tensor(c, &c->w, format, n, k);
    product_tensor(c, &c->x, PL_F32, m, k);
    product_tensor(c, &c->want, PL_F32, m, n);
    product_tensor(c, &c->got, PL_F32, m, n);
    ck_assert_msg(pl_tensor_new(&c->b, c->dev, PL_F32, 1, &n, &e) == PL_OK, "%s", e.msg);
    fill_weights(&c->w, &seed);
    fill_x(&c->x, &seed);
    for (int64_t i = 0; i < n; i++) ((float *)c->b.data)[i] = uniform(&seed);
    ck_assert_msg(pl_dev_pack(c->dev, &c->packed, &c->w, NULL, &e) == PL_OK, "%s", e.msg);
}
static inline void product_free(trial *c)
{
    pl_tensor_release(&c->w);
    pl_tensor_release(&c->packed);
    pl_tensor_release(&c->x);
    pl_tensor_release(&c->b);
    pl_tensor_release(&c->want);
    pl_tensor_release(&c->got);
    pl_dev_close(c->dev);
}
/* What the definition makes of it; what a kernel has to write over the marks in `got`. */
static inline void product_define(trial *c, int act)
{
    pl_err e = {0};
    const int rc = pl_cpu_linear(pl_dev_stream(c->dev), &c->want, &c->x, &c->w, &c->b, act, &e);
    ck_assert_msg(rc == PL_OK, "%s", e.msg);
    memset(c->got.data, 0x55, (size_t)(c->m * c->n) * 4);
}
static inline void product_same(const trial *c, int act)
{
    const float *want = c->want.data, *got = c->got.data;
    for (int64_t i = 0; i < c->m * c->n; i++)
        if (pl_f32_bits(want[i]) != pl_f32_bits(got[i]) && !(isnan(want[i]) && isnan(got[i])))
            ck_abort_msg("%s, act %d, %dx%dx%d: element %d is %a, want %a", pl_dtype_name(c->format), act, (int)c->m,
                         (int)c->n, (int)c->k, (int)i, (double)got[i], (double)want[i]);
}
/* It runs on a path by hand: all tokens, all block rows. */
static inline void product_run(trial *c, const pl_linear_path *path, int act, bool few)
{
    const int64_t units = (c->k + UNIT - 1) / UNIT, blocks = (c->n + ROWS - 1) / ROWS;
    const int64_t group = few ? path->few_group : path->many_group, room = pl_round_up(c->m, group) * pl_x_units(units);
    pl_product p = {.w = c->packed.data,
                    .w_bytes = pl_cpu_packed_bytes(c->format, ROWS, c->k),
                    .dtype = c->format,
                    .act = act,
                    .m = c->m,
                    .n = c->n,
                    .k = c->k,
                    .units = units,
                    .x_units = pl_x_units(units),
                    .src = c->x.data,
                    .src_ld = c->k,
                    .bias = c->b.data,
                    .y = c->got.data,
                    .ldy = c->n};
    void *x = aligned_alloc(PL_X_ALIGN, (size_t)pl_round_up(room * UNIT * 4, PL_X_ALIGN));
    float *scratch = aligned_alloc(64, (size_t)pl_round_up(path->scratch_floats * 4 + 64, 64));
    p.sum = malloc((size_t)room * 4);
    ck_assert(x && scratch && p.sum);
    if (path->tiles)
        p.xb = x;
    else
        p.x = x;
    const uint32_t mode = pl_fp_enter();
    path->prepare(&p, group, 0, (c->m + group - 1) / group);
    if (few)
        path->few(&p, 0, blocks);
    else
        for (int64_t t = 0; t < c->m; t += path->many_tokens)
            for (int64_t b = 0; b < blocks; b += path->many_blocks)
                path->many(&p, t, pl_min(t + path->many_tokens, c->m), b, pl_min(b + path->many_blocks, blocks),
                           scratch);
    pl_fp_leave(mode);
    free(x);
    free(scratch);
    free(p.sum);
}
static inline void product_run_int(trial *c, const pl_int_path *path, int planes)
{
    const int64_t units = (c->k + UNIT - 1) / UNIT, room = pl_round_up(c->m, path->group) * units;
    uint32_t *q = aligned_alloc(64, (size_t)pl_round_up(room * 8 * planes * 4, 64));
    float *scale = malloc((size_t)room * 4);
    uint32_t *sum = malloc((size_t)room * 8);
    void *scratch = aligned_alloc(64, (size_t)pl_round_up(path->scratch_bytes + 64, 64));
    ck_assert(q && scale && sum && scratch);
    const pl_int_product p = {.w = c->packed.data,
                              .w_bytes = pl_cpu_packed_bytes(c->format, ROWS, c->k),
                              .dtype = c->format,
                              .planes = planes,
                              .m = c->m,
                              .n = c->n,
                              .k = c->k,
                              .units = units,
                              .src = c->x.data,
                              .src_ld = c->k,
                              .x = {q, scale, sum},
                              .bias = c->b.data,
                              .y = c->got.data,
                              .ldy = c->n};
    const uint32_t mode = pl_fp_enter();
    path->prepare(&p, 0, c->m);
    path->run(&p, 0, (c->n + ROWS - 1) / ROWS, scratch);
    pl_fp_leave(mode);
    free(q);
    free(scale);
    free(sum);
    free(scratch);
}
static inline bool product_is_int(int32_t format) { return pl_act_for(PL_ACT_INT8, format) == PL_ACT_INT8; }

/* Sizes: tokens, rows, k in blocks (32 for formats without). */
static const int64_t product_sizes[][3] = {
    {1, 16, 1},   {2, 30, 3},  {3, 1, 2},     {4, 70, 5},  {5, 17, 1},  {8, 48, 2},  {9, 33, 3},  {15, 16, 2},
    {16, 31, 5},  {17, 64, 1}, {31, 15, 3},   {33, 80, 2}, {47, 16, 1}, {64, 40, 3}, {65, 16, 2}, {200, 20, 1},
    {300, 67, 2}, {49, 96, 6}, {529, 272, 1}, {6, 33, 7},  {7, 17, 2},  {12, 31, 3}, {33, 20, 7}, {257, 18, 6}};
enum { N_PRODUCT_SIZES = sizeof product_sizes / sizeof *product_sizes };
/* k of a size; not whole units where the format allows it. */
static inline int64_t product_k(int32_t format, int64_t blocks)
{
    const int64_t block = pl_dtype_block(format);
    return block == 1 ? 32 * blocks * 3 - 25 : block * blocks * (block == 32 ? 3 : 1);
}

/* All sizes, with int8 and int15, on a path by hand. */
static inline void product_try_int(int32_t format, const pl_int_path *path)
{
    if (!product_is_int(format)) return;
    for (int i = 0; i < N_PRODUCT_SIZES; i++) {
        const int64_t *size = product_sizes[i];
        trial c;
        product_new(&c, format, size[0], size[1], product_k(format, size[2]), (uint64_t)(i + 1));
        for (int planes = 1; planes <= 2; planes++) {
            const int act = planes == 1 ? PL_ACT_INT8 : PL_ACT_INT15;
            product_define(&c, act);
            product_run_int(&c, path, planes);
            product_same(&c, act);
        }
        product_free(&c);
    }
}
#endif
