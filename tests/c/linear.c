/* linear.c: products on every path give the bits of the definition, for any batch, split and number of threads;
 * packing loses nothing; what a path cannot do is an error. */
#include "linear.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const int32_t formats[] = {PL_F32, PL_F16, PL_BF16, PL_F8, PL_Q4_0, PL_Q4_1, PL_Q5_0, PL_Q5_1, PL_Q8_0, PL_Q4_K, PL_Q5_K, PL_Q6_K};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}
static float uniform(uint64_t *s) { return (float)((double)(rnd(s) >> 11) * 0x1p-52 - 1); }

static pl_dev *open_dev(int32_t path, int32_t threads)
{
    pl_dev *d = NULL;
    pl_err e = {0};
    const pl_dev_opts o = {.kind = PL_DEV_CPU, .path = path, .n_threads = threads};
    ck_assert_msg(pl_dev_open(&d, &o, &e) == PL_OK, "%s", e.msg);
    return d;
}
static void new_tensor(pl_tensor *t, pl_dev *d, int32_t dtype, int64_t rows, int64_t cols)
{
    pl_err e = {0};
    const int64_t dim[2] = {rows, cols};
    ck_assert_msg(pl_tensor_new(t, d, dtype, 2, dim, &e) == PL_OK, "%s", e.msg);
}

static void put_half(uint8_t *p, float f)
{
    const uint16_t h = pl_f32_f16(f);
    memcpy(p, &h, 2);
}
/* Random bits everywhere but in scales, which are moderate numbers of both signs, or 0, or subnormal halves. */
static void fill_weights(pl_tensor *w, uint64_t *s)
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
        case PL_F16: put_half(p, rnd(s) % 16 == 0 ? 0x5p-24f : uniform(s)); break;
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
        case PL_Q5_K: put_half(p + 2, uniform(s)); /* fall through */
        case PL_Q4_0:
        case PL_Q5_0:
        case PL_Q8_0: put_half(p, d); break;
        default: put_half(p + 208, d);
        }
    }
}
/* Mostly normal; also 0, -0, denormal, near the smallest that counts, and very large numbers. */
static void fill_x(pl_tensor *x, uint64_t *s)
{
    static const float odd[] = {0.0f, -0.0f, 1e-41f, -0x1.fp-101f, 0x1p-100f, 0x1.8p-100f, -0x1.fffep-101f, 0x1p90f, -0x1p100f, 1e-30f};
    float *p = x->data;
    for (int64_t i = 0; i < x->dim[0] * x->dim[1]; i++) p[i] = rnd(s) % 24 ? uniform(s) * 3 : odd[rnd(s) % 10];
}

static int32_t usable[PL_N_PATHS], n_usable;
static void find_paths(void)
{
    n_usable = 0;
    printf("linear: paths that ran:");
    for (int32_t p = PL_PATH_PORTABLE; p < PL_N_PATHS; p++)
        if (pl_dev_has_path(p)) {
            usable[n_usable++] = p;
            printf(" %s", pl_path_name(p));
        }
    printf("; this machine lacks:");
    for (int32_t p = PL_PATH_PORTABLE; p < PL_N_PATHS; p++)
        if (!pl_dev_has_path(p)) printf(" %s", pl_path_name(p));
    printf("\n");
}

static uint64_t count_same;
static void same_bits(const float *a, const float *b, int64_t n, const char *what, int32_t format, int32_t path, int64_t m)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(pl_f32_bits(a[i]) == pl_f32_bits(b[i]) || (isnan(a[i]) && isnan(b[i])),
                      "%s: %s, path %s, M %d: element %d is %a, want %a", what, pl_dtype_name(format), pl_path_name(path), (int)m, (int)i,
                      (double)b[i], (double)a[i]);
    count_same += (uint64_t)n;
}

/* One shape on all paths and thread counts, against the definition over rows layout. */
static void one_shape(int32_t format, int64_t m, int64_t n, int64_t k, uint64_t seed)
{
    pl_err e = {0};
    pl_dev *ref = open_dev(PL_PATH_PORTABLE, 1);
    pl_tensor w = {0}, x = {0}, b = {0}, want = {0}, got = {0};
    new_tensor(&w, ref, format, n, k);
    new_tensor(&x, ref, PL_F32, m, k);
    new_tensor(&want, ref, PL_F32, m, n);
    new_tensor(&got, ref, PL_F32, m, n);
    ck_assert(pl_tensor_new(&b, ref, PL_F32, 1, &n, &e) == PL_OK);
    fill_weights(&w, &seed);
    fill_x(&x, &seed);
    for (int64_t i = 0; i < n; i++) ((float *)b.data)[i] = uniform(&seed);
    for (int act = PL_ACT_BF16; act <= PL_ACT_F32; act++) {
        const pl_tensor *bias = (m + act) % 2 ? &b : NULL;
        ck_assert_msg(pl_cpu_linear(pl_dev_stream(ref), &want, &x, &w, bias, act, &e) == PL_OK, "%s", e.msg);
        for (int32_t p = 0; p < n_usable; p++)
            for (int32_t threads = 1; threads <= 3; threads++) {
                if (usable[p] == PL_PATH_PORTABLE && threads == 2) continue;
                pl_dev *d = open_dev(usable[p], threads);
                pl_stream *s = pl_dev_stream(d);
                pl_tensor packed = {0};
                ck_assert_msg(pl_dev_pack(d, &packed, &w, NULL, &e) == PL_OK, "%s", e.msg);
                memset(got.data, 0x55, (size_t)(m * n * 4));
                ck_assert_msg(pl_cpu_linear(s, &got, &x, &packed, bias, act, &e) == PL_OK, "%s", e.msg);
                same_bits(want.data, got.data, m * n, act ? "f32" : "bf16", format, usable[p], m);
                uint64_t products = 0;
                for (int32_t i = 0; i < PL_N_PATHS; i++) products += pl_dev_path_count(d, i);
                ck_assert_uint_eq(products, 1);
                pl_tensor_release(&packed);
                pl_dev_close(d);
            }
    }
    pl_tensor_release(&w);
    pl_tensor_release(&x);
    pl_tensor_release(&b);
    pl_tensor_release(&want);
    pl_tensor_release(&got);
    pl_dev_close(ref);
}

START_TEST(test_same_bits)
{
    const int32_t format = formats[_i];
    const int64_t block = pl_dtype_block(format);
    static const int64_t ms[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64}, ns[] = {1, 15, 16, 17, 48, 130};
    const int64_t ks[] = {block == 1 ? 7 : block, block == 1 ? 71 : block * 3, block == 256 ? 512 : 160, block == 256 ? 768 : 576};
    find_paths();
    uint64_t seed = 77 + (uint64_t)_i;
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
            one_shape(format, ms[i], ns[j], ks[(i + j) % 4], seed += 1000);
    one_shape(format, 200, 40, block == 256 ? 1280 : 1184, seed); /* more than one block of tokens and of k */
    printf("linear: %s: %llu outputs compared, 0 differ\n", pl_dtype_name(format), (unsigned long long)count_same);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("linear");
    TCase *t = tcase_create("products");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, test_same_bits, 0, N_FORMATS);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
