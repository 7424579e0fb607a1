/* linear.c: products on every path give the bits of the definition, for any batch, split and number of threads;
 * packing loses nothing; what a path cannot do is an error. */
#include "linear.h"
#include "products.h"
#include "suite.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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

enum { MAX_THREADS = 3 };
static pl_dev *devs[PL_N_PATHS][MAX_THREADS + 1];
static void open_all(void)
{
    printf("linear: paths:");
    for (int32_t p = PL_PATH_PORTABLE; p < PL_N_PATHS; p++) {
        if (!pl_dev_has_path(p)) continue;
        printf(" %s", pl_path_name(p));
        for (int32_t t = 1; t <= MAX_THREADS; t++) devs[p][t] = open_dev(p, t);
    }
    printf("; lacking:");
    for (int32_t p = PL_PATH_PORTABLE; p < PL_N_PATHS; p++)
        if (!pl_dev_has_path(p)) printf(" %s", pl_path_name(p));
    printf("\n");
}
static void close_all(void)
{
    for (int32_t p = 0; p < PL_N_PATHS; p++)
        for (int32_t t = 1; t <= MAX_THREADS; t++) pl_dev_close(devs[p][t]);
}

/* The path that a product runs on when the device was opened with `path`. */
static int32_t ran_on(int32_t path, int32_t format, int act, int64_t m)
{
    act = pl_act_for(act, format);
    if (act == PL_ACT_INT8 || act == PL_ACT_INT15)
        return path == PL_PATH_AMX && m < PL_INT_TILES_FROM ? PL_PATH_AVX512 : path;
    const bool tiles = act == PL_ACT_BF16 && format != PL_F16 && format != PL_F32;
    if (path == PL_PATH_SOFT_AMX && !tiles) return PL_PATH_AVX2;
    if (path == PL_PATH_AMX && (!tiles || (m == 1 && format >= PL_Q4_0))) return PL_PATH_AVX512;
    return path;
}

static const char *const act_name[PL_N_ACTS] = {"bf16", "f32", "int8", "int15"};
static uint64_t count_same;
static void same_bits(const float *want, const float *got, int64_t n, const char *what, int32_t format, int32_t path,
                      int64_t m)
{
    for (int64_t i = 0; i < n; i++) {
        if (pl_f32_bits(want[i]) == pl_f32_bits(got[i]) || (isnan(want[i]) && isnan(got[i]))) continue;
        ck_abort_msg("%s: %s, path %s, M %d: element %d is %a, want %a", what, pl_dtype_name(format),
                     pl_path_name(path), (int)m, (int)i, (double)got[i],
                     (double)want[i]); /* an assertion writes to a pipe each time */
    }
    count_same += (uint64_t)n;
}

/* One shape on all paths and thread counts, against the definition over rows layout. */
static void one_shape(int32_t format, int64_t m, int64_t n, int64_t k, uint64_t seed)
{
    pl_err e = {0};
    pl_dev *ref = devs[PL_PATH_PORTABLE][1];
    pl_tensor w = {0}, x = {0}, b = {0}, want = {0}, got = {0};
    new_tensor(&w, ref, format, n, k);
    new_tensor(&x, ref, PL_F32, m, k + 3); /* x and y are views with longer rows */
    x.dim[1] = k;
    new_tensor(&want, ref, PL_F32, m, n);
    new_tensor(&got, ref, PL_F32, m, n + 5);
    got.dim[1] = n;
    ck_assert(pl_tensor_new(&b, ref, PL_F32, 1, &n, &e) == PL_OK);
    fill_weights(&w, &seed);
    x.dim[1] = k + 3;
    fill_x(&x, &seed);
    x.dim[1] = k;
    for (int64_t i = 0; i < n; i++) ((float *)b.data)[i] = uniform(&seed);
    for (int act = PL_ACT_BF16; act < PL_N_ACTS; act++) {
        const pl_tensor *bias = (m + act) % 2 ? &b : NULL;
        ck_assert_msg(pl_cpu_linear(pl_dev_stream(ref), &want, &x, &w, bias, act, &e) == PL_OK, "%s", e.msg);
        for (int32_t p = 0; p < PL_N_PATHS; p++)
            for (int32_t threads = 1; threads <= MAX_THREADS && devs[p][threads]; threads++) {
                if (p == PL_PATH_PORTABLE && threads != 2) continue;
                pl_dev *d = devs[p][threads];
                pl_tensor packed = {0};
                ck_assert_msg(pl_dev_pack(d, &packed, &w, NULL, &e) == PL_OK, "%s", e.msg);
                memset(got.data, 0x55, (size_t)(m * (n + 5) * 4));
                const int32_t ran = ran_on(p, format, act, m);
                const uint64_t before = pl_dev_path_count(d, ran);
                ck_assert_msg(pl_cpu_linear(pl_dev_stream(d), &got, &x, &packed, bias, act, &e) == PL_OK, "%s", e.msg);
                ck_assert_uint_eq(pl_dev_path_count(d, ran), before + 1);
                for (int64_t t = 0; t < m; t++) {
                    const float *row = (const float *)got.data + t * (n + 5);
                    same_bits((const float *)want.data + t * n, row, n, act_name[act], format, p, m);
                    for (int i = 0; i < 5; i++) /* nothing is written beside it */
                        if (pl_f32_bits(row[n + i]) != 0x55555555) ck_abort_msg("row %d written past its end", (int)t);
                }
                pl_tensor_release(&packed);
            }
    }
    pl_tensor_release(&w);
    pl_tensor_release(&x);
    pl_tensor_release(&b);
    pl_tensor_release(&want);
    pl_tensor_release(&got);
}

START_TEST(test_same_bits)
{
    const int32_t format = formats[_i];
    const int64_t block = pl_dtype_block(format);
    static const int64_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 65}, ns[] = {1, 15, 16, 17, 48, 130};
    const int64_t ks[] = {block == 1 ? 7 : block, block == 1 ? 71 : block * 3, block > 32 ? 2 * block : 160,
                          block == 256 ? 768
                          : block > 32 ? 5 * block
                                       : 576};
    open_all();
    uint64_t seed = 77 + (uint64_t)_i;
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t j = SANITIZED ? i % 4 : 0; j < sizeof ns / sizeof *ns; j += SANITIZED ? 4 : 1)
            one_shape(format, ms[i], ns[j], ks[(i + j + j / 4) % 4], seed += 1000);
    one_shape(format, 200, 40, block > 32 ? 1280 : 1184, seed); /* more than one part of tokens and of k */
    one_shape(format, 257, 33, block > 32 ? 768 : 544, seed + 1);
    for (int i = 0; i < 4; i++) { /* odd tiles of tokens by odd block rows, parts of k that are short in every way */
        static const int64_t tokens[] = {17, 65, 33, 257}, rows[] = {112, 65, 97, 48}, units[] = {11, 14, 15, 9};
        one_shape(format, tokens[i], rows[i], block > 32 ? 256 : 32 * units[i], seed += 1000);
    }
    close_all();
    printf("linear: %s: %llu outputs compared, 0 differ\n", pl_dtype_name(format), (unsigned long long)count_same);
}
END_TEST

/* The definition is near the product in doubles: only float roundings apart. */
START_TEST(test_truth)
{
    enum { N = 33, K = 768, M = 3 };
    const int32_t format = formats[_i];
    pl_err e = {0};
    pl_dev *d = open_dev(PL_PATH_AUTO, 2);
    pl_tensor w = {0}, x = {0}, y = {0};
    new_tensor(&w, d, format, N, K);
    new_tensor(&x, d, PL_F32, M, K);
    new_tensor(&y, d, PL_F32, M, N);
    uint64_t seed = 5;
    fill_weights(&w, &seed);
    for (int i = 0; i < M * K; i++) ((float *)x.data)[i] = uniform(&seed);
    for (int act = PL_ACT_BF16; act < PL_N_ACTS; act++) {
        const int does = pl_act_for(act, format);
        const double unit = does == PL_ACT_INT8 ? 1.0 / 254 : does == PL_ACT_INT15 ? 1.0 / 32512 : 0; /* |x| <= 1 */
        pl_tensor packed = {0};
        ck_assert(pl_dev_pack(d, &packed, &w, NULL, &e) == PL_OK);
        ck_assert(pl_cpu_linear(pl_dev_stream(d), &y, &x, &packed, NULL, act, &e) == PL_OK);
        for (int n = 0; n < N; n++) {
            float row[K];
            pl_row_to_f32(format, row, (const uint8_t *)w.data + n * pl_dtype_row_bytes(format, K), K);
            for (int t = 0; t < M; t++) {
                double sum = 0, size = 0, rounding = 0;
                for (int k = 0; k < K; k++) {
                    const float v = ((const float *)x.data)[t * K + k];
                    const double p = (double)row[k] * (double)(does ? v : pl_bf16_f32(pl_f32_bf16(v)));
                    sum += p;
                    size += fabs(p);
                    rounding += fabs((double)row[k]) * unit;
                }
                /* minima cancel against codes: their size counts too */
                const double slack = pl_has_minimum(format) ? 64 : 1;
                const double error = fabs(sum - (double)((const float *)y.data)[t * N + n]);
                if (!(error <= slack * 0x1p-20 * size + 1.001 * rounding + 1e-30))
                    ck_abort_msg("row %d: off by %g of %g", n, error, size);
            }
        }
        pl_tensor_release(&packed);
    }
    pl_tensor_release(&w);
    pl_tensor_release(&x);
    pl_tensor_release(&y);
    pl_dev_close(d);
}
END_TEST

/* A token that has a NaN or an infinity makes outputs of its own NaN, all of them where activations become integers; what is
 * zero, or too small for integers, gives the bias; the tokens beside them have the bits that they have without. */
START_TEST(test_neighbours)
{
    enum { N = 33, M = 9, NAN_AT = 2, INF_AT = 4, ZERO_AT = 5, TINY_AT = 7 };
    const int32_t format = formats[_i];
    const int64_t block = pl_dtype_block(format), K = block > 32 ? 3 * block : 320, n = N;
    pl_err e = {0};
    uint64_t seed = 21;
    open_all();
    for (int32_t p = 0; p < PL_N_PATHS; p++) {
        if (!devs[p][2]) continue;
        pl_dev *d = devs[p][2];
        pl_tensor w = {0}, packed = {0}, x = {0}, b = {0}, clean = {0}, y = {0};
        new_tensor(&w, d, format, N, K);
        new_tensor(&x, d, PL_F32, M, K);
        new_tensor(&clean, d, PL_F32, M, N);
        new_tensor(&y, d, PL_F32, M, N);
        ck_assert(pl_tensor_new(&b, d, PL_F32, 1, &n, &e) == PL_OK);
        fill_weights(&w, &seed);
        for (int i = 0; i < N; i++) ((float *)b.data)[i] = uniform(&seed);
        ck_assert(pl_dev_pack(d, &packed, &w, NULL, &e) == PL_OK);
        for (int act = PL_ACT_BF16; act < PL_N_ACTS; act++) {
            const int does = pl_act_for(act, format);
            const bool whole = does == PL_ACT_INT8 || does == PL_ACT_INT15;
            float *v = x.data;
            for (int i = 0; i < M * K; i++) v[i] = uniform(&seed);
            ck_assert(pl_cpu_linear(pl_dev_stream(d), &clean, &x, &packed, &b, act, &e) == PL_OK);
            v[NAN_AT * K + K - 1] = NAN;
            v[INF_AT * K + 17] = -INFINITY;
            for (int i = 0; i < K; i++) v[ZERO_AT * K + i] = i % 2 ? -0.0f : 0, v[TINY_AT * K + i] = 0x1p-101f;
            ck_assert(pl_cpu_linear(pl_dev_stream(d), &y, &x, &packed, &b, act, &e) == PL_OK);
            for (int t = 0; t < M; t++)
                for (int i = 0; i < N; i++) {
                    const float got = ((const float *)y.data)[t * N + i], bias = ((const float *)b.data)[i];
                    if (t == NAN_AT || (t == INF_AT && whole))
                        ck_assert_msg(isnan(got), "%s, token %d, output %d: %g", act_name[act], t, i, (double)got);
                    else if (t == ZERO_AT || (t == TINY_AT && whole))
                        ck_assert_float_eq(got, bias);
                    else if (t != INF_AT && t != TINY_AT)
                        same_bits((const float *)clean.data + t * N + i, &got, 1, act_name[act], format, p, M);
                }
        }
        pl_tensor_release(&w);
        pl_tensor_release(&packed);
        pl_tensor_release(&x);
        pl_tensor_release(&b);
        pl_tensor_release(&clean);
        pl_tensor_release(&y);
    }
    close_all();
}
END_TEST

/* E4M3 and E2M1 in both of their ways (x86/linear_decode.h): where denormals cost nothing and where they do; x within and beyond what
 * the quick way takes; NaN codes, which reach the outputs of their rows and no other; scales that are denormals. */
START_TEST(test_small_floats)
{
    enum { N = 50, MAX_M = 13, K = 512 };
    static const int32_t small[] = {PL_F8, PL_F8G32, PL_F8G64, PL_F8G128, PL_MXFP4, PL_NVFP4};
    static const float odd[] = {0x1.fep14f, 0x1.ffp14f, 0x1p15f, -0x1.fffp14f, 0x1p120f, INFINITY, NAN};
    const int32_t format = small[_i / 2], block = pl_dtype_bytes(format);
    const int64_t k = format == PL_F8 ? K - 25 : K, codes = format == PL_F8 ? 1 : pl_dtype_block(format);
    const bool e4m3 = _i < 8, with_nan = e4m3 && _i % 2;
    pl_err e = {0};
    uint64_t seed = 31 + (uint64_t)_i;
    open_all();
    pl_dev *ref = devs[PL_PATH_PORTABLE][1];
    pl_tensor w = {0}, x = {0}, b = {0}, want = {0}, got = {0};
    const int64_t n = N;
    new_tensor(&w, ref, format, N, k);
    ck_assert(pl_tensor_new(&b, ref, PL_F32, 1, &n, &e) == PL_OK);
    fill_weights(&w, &seed);
    for (int i = 0; i < N; i++) ((float *)b.data)[i] = i % 5 ? uniform(&seed) : 1e-40f;
    uint8_t *code = w.data;
    if (e4m3 && format != PL_F8)
        for (int64_t i = 0; i < N * k / codes; i += 3) memcpy(code + i * block, &(float){i % 2 ? 1e-40f : -3e-39f}, 4);
    if (format == PL_NVFP4) /* a row has one */
        for (int64_t i = 0; i < N * k / codes; i++)
            if (i / (k / codes) % 4 == _i % 2)
                memcpy(code + i * block, &(float){i / (k / codes) % 8 < 4 ? 1e-40f : -3e-39f}, 4);
    if (with_nan) {
        const int64_t at[][2] = {{0, 0}, {3, k - 1}, {17, 200}, {49, 33}};
        for (int i = 0; i < 4; i++) {
            const int64_t one = at[i][0] * k + at[i][1];
            code[one / codes * block + block - codes + one % codes] = i % 2 ? 0xff : 0x7f;
        }
    }
    for (int64_t m = 1; m <= MAX_M; m++)
        for (int with = -2; with < (int)(sizeof odd / sizeof *odd); with++) {
            new_tensor(&x, ref, PL_F32, m, k);
            new_tensor(&want, ref, PL_F32, m, N);
            new_tensor(&got, ref, PL_F32, m, N);
            fill_x(&x, &seed);
            float *v = x.data;
            for (int64_t i = 0; i < m * k; i++)
                if (fabsf(v[i]) > 100) v[i] = uniform(&seed) * (with == -2 ? 0x1p-99f : 30000);
            if (with >= 0) v[(int64_t)(rnd(&seed) % (uint64_t)(m * k))] = odd[with];
            for (int act = PL_ACT_BF16; act <= PL_ACT_F32; act++) {
                ck_assert(pl_cpu_linear(pl_dev_stream(ref), &want, &x, &w, &b, act, &e) == PL_OK);
                for (int32_t p = PL_PATH_PORTABLE; p < PL_N_PATHS; p++)
                    for (int free_denormals = 0; devs[p][2] && free_denormals < 2; free_denormals++) {
                        pl_cpu *c = pl_dev_stream(devs[p][2])->impl;
                        const bool had = c->denormals;
                        pl_tensor packed = {0};
                        const int rc = pl_dev_pack(devs[p][2], &packed, &w, NULL, &e);
                        if (format == PL_F8 && with_nan) { /* no scale to show it by */
                            ck_assert_int_eq(rc, PL_EFORMAT);
                            ck_assert_ptr_null(packed.data);
                            ck_assert_msg(strstr(e.msg, "has a code that is NaN"), "%s", e.msg);
                            continue;
                        }
                        ck_assert(rc == PL_OK);
                        memset(got.data, 0x55, (size_t)(m * N * 4));
                        c->denormals = free_denormals;
                        ck_assert(pl_cpu_linear(pl_dev_stream(devs[p][2]), &got, &x, &packed, &b, act, &e) == PL_OK);
                        c->denormals = had;
                        same_bits(want.data, got.data, m * N, free_denormals ? "free denormals" : "dear ones", format,
                                  p, m);
                        pl_tensor_release(&packed);
                    }
                for (int64_t i = 0; i < m * N && with < 0; i++) /* what a code that is NaN reaches */
                    ck_assert(isnan(((const float *)want.data)[i]) ==
                              (with_nan && (i % N == 0 || i % N == 3 || i % N == 17 || i % N == 49)));
            }
            pl_tensor_release(&x);
            pl_tensor_release(&want);
            pl_tensor_release(&got);
        }
    pl_tensor_release(&w);
    pl_tensor_release(&b);
    close_all();
}
END_TEST

/* Packing loses nothing, also with rows taken in another order. */
START_TEST(test_pack)
{
    const int32_t format = formats[_i];
    const int64_t block = pl_dtype_block(format);
    const int64_t ks[] = {block == 1 ? 1 : block, block == 1 ? 45 : block * 3, block * 4};
    pl_err e = {0};
    uint64_t seed = 9;
    for (int c = 0; c < 9; c++) {
        const int64_t n = c % 3 == 0 ? 1 : c % 3 == 1 ? 16 : 37, k = ks[c / 3];
        pl_dev *d = open_dev(PL_PATH_AUTO, 1 + c % 3);
        pl_tensor w = {0}, packed = {0};
        new_tensor(&w, d, format, n, k);
        fill_weights(&w, &seed);
        int32_t map[37];
        for (int32_t i = 0; i < n; i++) map[i] = (int32_t)((i * 5 + 3) % n);
        ck_assert(pl_dev_pack(d, &packed, &w, c & 1 ? map : NULL, &e) == PL_OK);
        ck_assert_int_eq(packed.layout, PL_PACKED);
        ck_assert_int_eq(packed.dtype, format);
        ck_assert_int_eq(packed.storage->bytes, pl_dev_packed_bytes(PL_DEV_CPU, format, n, k));
        float *want = malloc((size_t)k * 4), *got = malloc((size_t)k * 4);
        for (int64_t i = 0; i < n; i++) {
            pl_row_to_f32(format, want, (const uint8_t *)w.data + (c & 1 ? map[i] : i) * pl_dtype_row_bytes(format, k),
                          k);
            pl_packed_row_to_f32(&packed, i, got);
            ck_assert_mem_eq(want, got, (size_t)k * 4);
        }
        free(want);
        free(got);
        pl_tensor_release(&packed);
        pl_tensor_release(&w);
        pl_dev_close(d);
    }
}
END_TEST

START_TEST(test_refusals)
{
    pl_err e = {0};
    pl_dev *d = NULL;
    int32_t lacking = 0;
    for (int32_t p = PL_PATH_PORTABLE; p < PL_N_PATHS; p++) {
        if (pl_dev_has_path(p)) continue;
        const pl_dev_opts o = {.kind = PL_DEV_CPU, .path = p, .n_threads = 1};
        ck_assert_int_eq(pl_dev_open(&d, &o, &e), PL_EDEV);
        ck_assert_ptr_null(d);
        ck_assert_msg(strstr(e.msg, pl_path_name(p)) && strstr(e.msg, "lacks"), "%s", e.msg);
        lacking++;
    }
    printf("linear: %d paths refused\n", lacking);
    ck_assert(pl_dev_has_path(PL_PATH_PORTABLE));
    ck_assert(!pl_dev_has_path(-1) && !pl_dev_has_path(PL_N_PATHS));
    d = open_dev(PL_PATH_AUTO, 0);
    ck_assert_int_ge(pl_dev_threads(d), 1);
    ck_assert_int_ne(pl_dev_path(d), PL_PATH_AUTO);
    pl_tensor w = {0}, x = {0}, y = {0}, packed = {0};
    new_tensor(&w, d, PL_I32, 4, 32);
    new_tensor(&x, d, PL_F32, 1, 32);
    new_tensor(&y, d, PL_F32, 1, 4);
    ck_assert_int_eq(pl_dev_pack(d, &packed, &w, NULL, &e), PL_EDTYPE);
    ck_assert_int_eq(pl_cpu_linear(pl_dev_stream(d), &y, &x, &w, NULL, PL_ACT_BF16, &e), PL_EDTYPE);
    w.dtype = PL_F32;
    ck_assert_int_eq(pl_cpu_linear(pl_dev_stream(d), &y, &x, &w, NULL, 7, &e), PL_EARG);
    ck_assert_int_eq(pl_dev_packed_bytes(PL_DEV_CPU, PL_I32, 4, 32), -1);
    ck_assert_int_eq(pl_dev_packed_bytes(PL_DEV_CPU, PL_Q4_1, INT64_MAX / 2, INT64_MAX / 2), -1);
    ck_assert_int_eq(pl_dev_packed_bytes(PL_DEV_CPU, PL_Q4_1, 0, 32), -1);
    ck_assert_int_eq(pl_dev_packed_bytes(PL_DEV_CPU, PL_Q4_1, 17, 96), 2 * 2 * 640);
    pl_tensor_release(&w);
    pl_tensor_release(&x);
    pl_tensor_release(&y);
    pl_dev_close(d);
}
END_TEST

/* Every index once, whatever the split; parts begin at multiples of the grain. */
typedef struct seen {
    int32_t *hit;
    int64_t grain;
    _Atomic int32_t bad;
} seen;
static void see(void *arg, int64_t from, int64_t to, int thread)
{
    seen *s = arg;
    if (from % s->grain || from >= to || thread < 0) s->bad++;
    for (int64_t i = from; i < to; i++) s->hit[i]++;
    volatile float tiny = 1e-40f;
    if (tiny * 1.0f != 0) s->bad++; /* denormals are zero in every part */
}
START_TEST(test_parallel)
{
    static const int64_t ns[] = {0, 1, 2, 7, 64, 1000, 12345}, grains[] = {1, 3, 64, 20000};
    for (int32_t threads = 1; threads <= 5; threads++) {
        pl_dev *d = open_dev(PL_PATH_AUTO, threads);
        int32_t *hit = calloc(12345, 4);
        for (int r = 0; r < 300; r++) {
            const int64_t n = ns[r % 7];
            seen s = {hit, grains[r % 4], 0};
            memset(hit, 0, 12345 * 4);
            pl_parallel(pl_dev_stream(d), n, s.grain, see, &s);
            for (int64_t i = 0; i < 12345; i++)
                if (hit[i] != (i < n)) ck_abort_msg("index %d of %d taken %d times", (int)i, (int)n, hit[i]);
            ck_assert_int_eq(s.bad, 0);
            volatile float tiny = 1e-40f; /* and are not outside */
            ck_assert(tiny * 1.0f != 0);
        }
        free(hit);
        pl_dev_close(d);
    }
}
END_TEST

START_TEST(test_scratch)
{
    pl_dev *d = open_dev(PL_PATH_AUTO, 1);
    pl_stream *s = pl_dev_stream(d);
    pl_err e = {0};
    for (int r = 0; r < 20; r++) {
        const pl_mark m = pl_scratch_mark(s);
        uint8_t *p[40];
        for (int i = 0; i < 40; i++) {
            p[i] = pl_scratch(s, (int64_t)1 << (i % 20 + r % 3), &e);
            ck_assert_ptr_nonnull(p[i]);
            ck_assert_uint_eq((uintptr_t)p[i] % 64, 0);
            memset(p[i], i, (size_t)1 << (i % 20 + r % 3));
        }
        for (int i = 0; i < 40; i++) ck_assert_uint_eq(p[i][((size_t)1 << (i % 20 + r % 3)) - 1], i);
        const pl_mark inner = pl_scratch_mark(s);
        void *a = pl_scratch(s, 100, &e);
        pl_scratch_release(s, inner);
        ck_assert_ptr_eq(pl_scratch(s, 100, &e), a);
        pl_scratch_release(s, m);
    }
    pl_dev_close(d);
}
END_TEST

/* Build flags: a compiler that fuses a * b + c would break the equality of the paths. */
#ifdef PL_X86
__attribute__((target("fma"), noinline)) static float mul_add(float a, float b, float c) { return a * b + c; }
START_TEST(test_no_fusing)
{
    if (!pl_dev_has_path(PL_PATH_AVX2)) return;
    const float a = 1 + 0x1p-12f, c = -(1 + 0x1p-11f);
    ck_assert(fmaf(a, a, c) != 0);
    ck_assert(mul_add(a, a, c) == 0);
}
END_TEST
#endif

static Suite *suite(void)
{
    Suite *s = suite_create("linear");
    TCase *t = tcase_create("products");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, test_same_bits, 0, N_FORMATS);
    tcase_add_loop_test(t, test_truth, 0, N_FORMATS);
    tcase_add_loop_test(t, test_neighbours, 0, N_FORMATS);
    tcase_add_loop_test(t, test_small_floats, 0, 12);
    tcase_add_loop_test(t, test_pack, 0, N_FORMATS);
    tcase_add_test(t, test_refusals);
    tcase_add_test(t, test_parallel);
    tcase_add_test(t, test_scratch);
#ifdef PL_X86
    tcase_add_test(t, test_no_fusing);
#endif
    suite_add_tcase(s, t);
    return s;
}

int main(void) { return run_suite(suite()); }
