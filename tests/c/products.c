/* products.c: products of one x as one piece of work give the bits that they give one after another, with all mixes of
 * formats, roundings, biases and numbers of tokens, on every path and with several threads. */
#include "products.h"
#include <stdio.h>

enum { MAX_THREADS = 3, BESIDE = 5 };
static pl_dev *devs[PL_N_PATHS][MAX_THREADS + 1];
static uint64_t seed;

static int64_t one_of(const int64_t *list, int n) { return list[rnd(&seed) % (uint64_t)n]; }
#define PICK(...) one_of((const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void open_all(void)
{
    for (int32_t p = 1; p < PL_N_PATHS; p++)
        for (int32_t t = 1; t <= MAX_THREADS; t++) {
            pl_err e = {0};
            const pl_dev_opts o = {.kind = PL_DEV_CPU, .path = p, .n_threads = t};
            if (pl_dev_open(&devs[p][t], &o, &e) < 0) devs[p][t] = NULL; /* a path that the machine lacks */
        }
    ck_assert_ptr_nonnull(devs[PL_PATH_PORTABLE][1]);
}
static void close_all(void)
{
    for (int32_t p = 1; p < PL_N_PATHS; p++)
        for (int32_t t = 1; t <= MAX_THREADS; t++) pl_dev_close(devs[p][t]);
}

static void matrix(pl_dev *d, pl_tensor *t, int32_t dtype, int64_t rows, int64_t cols, int64_t beside)
{
    pl_err e = {0};
    const int64_t dim[2] = {rows, cols + beside};
    *t = (pl_tensor){0};
    ck_assert_msg(pl_tensor_new(t, d, dtype, 2, dim, &e) == PL_OK, "%s", e.msg);
    t->dim[1] = cols; /* a view with longer rows */
}
static void mark(pl_tensor *t) { memset(t->data, 0x55, (size_t)(t->dim[0] * t->stride[0]) * 4); }

static void same(const pl_tensor *want, const pl_tensor *got, const char *what, int i)
{
    for (int64_t t = 0; t < want->dim[0]; t++) {
        const float *a = pl_row_f32(want, t), *b = pl_row_f32(got, t);
        for (int64_t n = 0; n < want->dim[1] + BESIDE; n++)
            if (pl_f32_bits(a[n]) != pl_f32_bits(b[n]) && !(isnan(a[n]) && isnan(b[n])))
                ck_abort_msg("%s: product %d, token %d, element %d of %d is %a, want %a", what, i, (int)t, (int)n,
                             (int)want->dim[1], (double)b[n], (double)a[n]);
    }
}

typedef struct one {
    pl_tensor w, b, want, got;
} one;

/* Products of tokens m under one path: one by one, then together. */
static void trial_of(pl_dev *d, int64_t m)
{
    pl_err e = {0};
    pl_stream *s = pl_dev_stream(d);
    const int64_t k = PICK(256, 768, 1280);
    const int32_t usual = formats[rnd(&seed) % N_FORMATS];
    pl_products p = {.n = (int32_t)(1 + rnd(&seed) % PL_MAX_PRODUCTS), .act = (int32_t)(rnd(&seed) % PL_N_ACTS)};
    p.gate = p.n == 2 ? (int32_t)(rnd(&seed) % 3) : PL_GATE_NONE;
    pl_tensor x, h_want = {0}, h_got = {0};
    one o[PL_MAX_PRODUCTS];
    char what[200];
    int len = snprintf(what, sizeof what, "%s, %d threads, M %d, K %d, act %d, gate %d:", pl_path_name(s->path),
                       s->n_threads, (int)m, (int)k, p.act, p.gate);
    matrix(d, &x, PL_F32, m, k, 0);
    fill_x(&x, &seed);
    p.x = &x;
    const int64_t rows = PICK(1, 16, 33, 130);
    for (int i = 0; i < p.n; i++) {
        const int32_t format = rnd(&seed) % 4 ? usual : formats[rnd(&seed) % N_FORMATS];
        const int64_t n = p.gate ? rows : PICK(1, 15, 16, 48, 130);
        pl_tensor w;
        len += snprintf(what + len, sizeof what - (size_t)len, " %s of %d", pl_dtype_name(format), (int)n);
        matrix(d, &w, format, n, k, 0);
        fill_weights(&w, &seed);
        o[i] = (one){0};
        if (rnd(&seed) % 8) {
            ck_assert_msg(pl_dev_pack(d, &o[i].w, &w, NULL, &e) == PL_OK, "%s", e.msg);
            pl_tensor_release(&w);
        } else {
            o[i].w = w; /* rows as a file has them: no fast path */
        }
        ck_assert(pl_tensor_new(&o[i].b, d, PL_F32, 1, &n, &e) == PL_OK);
        for (int64_t j = 0; j < n; j++) ((float *)o[i].b.data)[j] = uniform(&seed);
        matrix(d, &o[i].want, PL_F32, m, n, BESIDE);
        matrix(d, &o[i].got, PL_F32, m, n, BESIDE);
        mark(&o[i].want);
        mark(&o[i].got);
        p.w[i] = &o[i].w;
        p.b[i] = rnd(&seed) % 2 ? &o[i].b : NULL;
        p.y[i] = &o[i].got;
        ck_assert_msg(pl_cpu_linear(s, &o[i].want, &x, p.w[i], p.b[i], p.act, &e) == PL_OK, "%s", e.msg);
    }
    if (p.gate) {
        matrix(d, &h_want, PL_F32, m, rows, BESIDE);
        matrix(d, &h_got, PL_F32, m, rows, BESIDE);
        mark(&h_want);
        mark(&h_got);
        p.h = &h_got;
        const int rc = p.gate == PL_GATE_SWIGLU ? pl_cpu_swiglu(s, &h_want, &o[0].want, &o[1].want, &e)
                                                : pl_cpu_geglu(s, &h_want, &o[0].want, &o[1].want, &e);
        ck_assert_msg(rc == PL_OK, "%s", e.msg);
    }
    uint64_t before = 0, after = 0;
    for (int32_t path = 0; path < PL_N_PATHS; path++) before += pl_dev_path_count(d, path);
    ck_assert_msg(pl_cpu_products(s, &p, &e) == PL_OK, "%s: %s", what, e.msg);
    for (int32_t path = 0; path < PL_N_PATHS; path++) after += pl_dev_path_count(d, path);
    ck_assert_uint_eq(after, before + (uint64_t)p.n);
    for (int i = 0; i < p.n; i++) same(&o[i].want, &o[i].got, what, i);
    if (p.gate) same(&h_want, &h_got, what, -1);
    for (int i = 0; i < p.n; i++) {
        pl_tensor_release(&o[i].w);
        pl_tensor_release(&o[i].b);
        pl_tensor_release(&o[i].want);
        pl_tensor_release(&o[i].got);
    }
    pl_tensor_release(&x);
    pl_tensor_release(&h_want);
    pl_tensor_release(&h_got);
}

START_TEST(test_same_bits)
{
    open_all();
    for (int32_t p = 1; p < PL_N_PATHS; p++)
        for (int32_t t = 1; t <= MAX_THREADS; t++) {
            seed = 1000 * (uint64_t)p + (uint64_t)t;
            const int trials = (p == PL_PATH_PORTABLE ? 10 : 60) / (SANITIZED ? 5 : 1);
            for (int i = 0; i < trials && devs[p][t]; i++) trial_of(devs[p][t], PICK(1, 2, 5, 12, 13, 40, 200));
        }
    close_all();
}
END_TEST

/* What is wrong with one of them ends all, and scratch is given back. */
START_TEST(test_misuse)
{
    pl_err e = {0};
    open_all();
    pl_dev *d = devs[PL_PATH_PORTABLE][1];
    pl_stream *s = pl_dev_stream(d);
    const pl_mark first = pl_scratch_mark(s);
    pl_tensor x, w, bad, y[2], h;
    matrix(d, &x, PL_F32, 3, 64, 0);
    matrix(d, &w, PL_F32, 16, 64, 0);
    matrix(d, &bad, PL_I32, 16, 64, 0);
    for (int i = 0; i < 2; i++) matrix(d, &y[i], PL_F32, 3, 16, 0);
    matrix(d, &h, PL_BF16, 3, 16, 0);
    memset(x.data, 0, 3 * 64 * 4);
    memset(w.data, 0, 16 * 64 * 4);
    pl_products p = {.n = 2, .x = &x, .w = {&w, &bad}, .y = {&y[0], &y[1]}};
    ck_assert_int_eq(pl_cpu_products(s, &p, &e), PL_EDTYPE);
    ck_assert_str_eq(e.msg, "linear: w is i32, want a format of weights");
    p.w[1] = &w;
    p.gate = PL_GATE_SWIGLU;
    p.h = &h;
    ck_assert_int_eq(pl_cpu_products(s, &p, &e), PL_EDTYPE);
    ck_assert_str_eq(e.msg, "gate: y is bf16, want f32");
    const pl_mark last = pl_scratch_mark(s);
    ck_assert(first.at == last.at && first.used == last.used);
    pl_tensor_release(&x);
    pl_tensor_release(&w);
    pl_tensor_release(&bad);
    pl_tensor_release(&y[0]);
    pl_tensor_release(&y[1]);
    pl_tensor_release(&h);
    close_all();
}
END_TEST

static int32_t op_named(const char *name)
{
    int32_t i = 0;
    while (strcmp(pl_op_name(i), name)) i++; /* NULL would crash: the test's own mistake */
    return i;
}
/* In a program: while joined calls run, no value of theirs takes the place of another. The activation's result would fit
 * where x was, which the products do not read any more when it is their turn; a result that comes later does so. */
START_TEST(test_places)
{
    enum { T = 64, D = 256 };
    pl_err e = {0};
    pl_prog *p;
    static float data[D * D];
    const pl_tensor w = {.data = data, .dtype = PL_F32, .ndim = 2, .dim = {D, D}, .stride = {D, 1}};
    const int64_t dim[2] = {PL_DIM_T, D};
    ck_assert(pl_prog_new(&p, NULL, &e) == PL_OK);
    int32_t v[5]; /* x, gate, up, h, result */
    for (int i = 0; i < 5; i++) v[i] = pl_prog_value(p, PL_F32, 2, dim, &e);
    const int32_t c = pl_prog_const(p, &w, &e);
    const pl_attr act = {.i = PL_ACT_BF16}, scale = {.f = 1};
    const int32_t linear = op_named("linear");
    ck_assert(pl_prog_op(p, op_named("embed"), (int32_t[]){v[0], c, PL_VALUE_IDS}, 3, &scale, 1, 1, &e) == PL_OK);
    for (int i = 1; i <= 2; i++)
        ck_assert(pl_prog_op(p, linear, (int32_t[]){v[i], v[0], c, -1}, 4, &act, 1, 2, &e) == PL_OK);
    ck_assert(pl_prog_op(p, op_named("swiglu"), (int32_t[]){v[3], v[1], v[2]}, 3, NULL, 0, 2, &e) == PL_OK);
    ck_assert(pl_prog_op(p, linear, (int32_t[]){v[4], v[3], c, -1}, 4, &act, 1, 3, &e) == PL_OK);
    ck_assert_msg(pl_prog_build(p, v[4], T, 1, false, &e) == PL_OK, "%s", e.msg);
    const int64_t bytes = T * D * 4;
    ck_assert_int_ge(pl_prog_bytes(p), 4 * bytes);
    ck_assert_int_lt(pl_prog_bytes(p), 4 * bytes + bytes / 2);
    pl_prog_free(p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("products");
    TCase *t = tcase_create("products");
    tcase_set_timeout(t, 0);
    tcase_add_test(t, test_same_bits);
    tcase_add_test(t, test_misuse);
    tcase_add_test(t, test_places);
    suite_add_tcase(s, t);
    return run_suite(s);
}
