/* ops.c PLUGIN [--schedules N] [--bench-only]: the CUDA ops against the CPU definitions, through core/dev.h. The plug-in is
 * the real one, or the same sources built for the CPU (kernels/simt), which then run under several schedules: forward,
 * reverse, random, with copies that land at once or as late as legal. Odd sizes, views between poisoned gaps, every
 * format that a kernel takes, two devices at once. Exit status 0 if all agree. */
#include "dev.h"
#include "dtype.h"
#include "simt_c.h"
#include "tensor.h"
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct run_state { /* one CPU device, one CUDA device, and what became of the tests */
    pl_dev *cpu, *gpu;
    int passed, failed;
    double slack; /* 1 in emulation; more on a device, whose tensor cores align and truncate */
    uint64_t rng;
    char where[96]; /* the schedule */
} run_state;

static struct { /* of the simt plug-in; NULL on a device */
    int (*status)(void);
    const char *(*report)(void);
    void (*config)(const char *key, long v);
    int (*has_checker)(void);
} simt;

static float uniform(run_state *st) /* -1..1 */
{
    st->rng ^= st->rng << 13;
    st->rng ^= st->rng >> 7;
    st->rng ^= st->rng << 17;
    return (float)(st->rng >> 40) * 0x1p-23f - 1.0f;
}

static void die(const pl_err *err)
{
    fprintf(stderr, "ops: %s:%d: %s\n", err->file, err->line, err->msg);
    exit(1);
}
#define MUST(call)                 \
    do {                           \
        if ((call) < 0) die(&err); \
    } while (0)

static void verdict(run_state *st, const char *what, const char *problem)
{
    if (!problem) {
        st->passed++;
        return;
    }
    st->failed++;
    fprintf(stderr, "FAIL %s (%s): %s\n", what, st->where, problem);
}

/* A matrix that lies inside a larger one: `gap` columns before (so that rows may be misaligned), `after` behind. All
 * that is outside is NaN on both devices, and must still be so afterwards. */
typedef struct matrix {
    pl_tensor host_all, gpu_all, host, gpu;
    int64_t rows, cols, all_cols;
} matrix;

static void matrix_new(run_state *st, matrix *m, int32_t dtype, int64_t rows, int64_t cols, int64_t before,
                       int64_t after, const float *values)
{
    pl_err err;
    const int64_t all[2] = {rows, before + cols + after};
    *m = (matrix){.rows = rows, .cols = cols, .all_cols = all[1]};
    MUST(pl_tensor_new(&m->host_all, st->cpu, dtype, 2, all, &err));
    MUST(pl_tensor_new(&m->gpu_all, st->gpu, dtype, 2, all, &err));
    memset(m->host_all.data, 0xFF, (size_t)(rows * pl_dtype_row_bytes(dtype, all[1])));
    MUST(pl_tensor_slice(&m->host, &m->host_all, 1, before, cols, &err));
    MUST(pl_tensor_slice(&m->gpu, &m->gpu_all, 1, before, cols, &err));
    if (values) MUST(pl_tensor_set_f32(&m->host, values, rows * cols, &err));
    MUST(pl_dev_copy(st->gpu, &m->gpu_all, &m->host_all, &err));
}

static void matrix_free(matrix *m)
{
    pl_tensor_release(&m->host);
    pl_tensor_release(&m->gpu);
    pl_tensor_release(&m->host_all);
    pl_tensor_release(&m->gpu_all);
}

static float *random_values(run_state *st, int64_t n)
{
    float *v = malloc(sizeof *v * (size_t)(n ? n : 1));
    if (!v) abort();
    for (int64_t i = 0; i < n; i++) {
        v[i] = uniform(st) * uniform(st) * 2;
        if (i % 97 == 5) v[i] *= 16; /* a few outliers */
    }
    return v;
}

/* Fetches the device's result and holds it against the host's: within bound[i], and nothing written outside. */
static const char *compare(run_state *st, matrix *y, const double *bound, char *text, size_t cap)
{
    pl_err err;
    const char *problem = NULL;
    pl_tensor got_all = {0}, got = {0};
    const int64_t all[2] = {y->rows, y->all_cols}, n = y->rows * y->cols;
    const size_t row = (size_t)pl_dtype_row_bytes(y->host.dtype, y->all_cols);
    const size_t from = (size_t)((char *)y->host.data - (char *)y->host_all.data);
    const size_t width = (size_t)pl_dtype_row_bytes(y->host.dtype, y->cols);
    float *a = malloc(sizeof *a * (size_t)n), *b = malloc(sizeof *b * (size_t)n);
    if (!a || !b) abort();
    MUST(pl_tensor_new(&got_all, st->cpu, y->host.dtype, 2, all, &err));
    if (pl_dev_copy(st->gpu, &got_all, &y->gpu_all, &err) < 0) {
        snprintf(text, cap, "%s", err.msg);
        problem = text;
    }
    MUST(pl_tensor_slice(&got, &got_all, 1, (int64_t)from / pl_dtype_bytes(y->host.dtype), y->cols, &err));
    MUST(pl_tensor_get_f32(&got, a, n, &err));
    MUST(pl_tensor_get_f32(&y->host, b, n, &err));
    for (int64_t i = 0; i < n && !problem; i++) {
        if (fabs((double)a[i] - (double)b[i]) <= bound[i] * st->slack) continue;
        snprintf(text, cap, "[%lld,%lld] is %.9g, want %.9g +- %.2g", (long long)(i / y->cols),
                 (long long)(i % y->cols), (double)a[i], (double)b[i], bound[i]);
        problem = text;
    }
    for (int64_t r = 0; r < y->rows && !problem; r++) {
        const unsigned char *p = (unsigned char *)got_all.data + (size_t)r * row;
        for (size_t i = 0; i < row && !problem; i++)
            if ((i < from || i >= from + width) && p[i] != 0xFF)
                problem = "something was written between the rows of y";
    }
    free(a);
    free(b);
    pl_tensor_release(&got);
    pl_tensor_release(&got_all);
    return problem;
}

/* What the emulation has to say about the launches so far; a device says it through the copies. */
static const char *blame(const char *problem)
{
    const int code = simt.status ? simt.status() : 0;
    return code ? simt.report() : problem;
}

typedef struct linear_case {
    int32_t t, n, k, dtype, act;
    bool bias, packed;
    int32_t before, after; /* of the rows of x, w and y */
} linear_case;

static const linear_case linear_cases[] = {
    /* few tokens: k_vec */
    {1, 1, 1, PL_BF16, PL_ACT_BF16, false, false, 0, 0},
    {1, 67, 1031, PL_BF16, PL_ACT_BF16, true, false, 0, 0},
    {1, 33, 1100, PL_BF16, PL_ACT_BF16, false, true, 0, 0},
    {2, 13, 264, PL_BF16, PL_ACT_BF16, true, false, 8, 8},
    {3, 9, 2056, PL_BF16, PL_ACT_BF16, false, false, 0, 8},
    {4, 64, 127, PL_BF16, PL_ACT_BF16, true, true, 3, 5},
    {4, 8, 256, PL_BF16, PL_ACT_F32, true, false, 0, 0},
    /* other formats and float activations, any number of tokens: k_vec */
    {1, 11, 96, PL_F32, PL_ACT_F32, true, false, 0, 0},
    {7, 10, 333, PL_F32, PL_ACT_F32, true, false, 1, 2},
    {5, 17, 72, PL_F16, PL_ACT_BF16, false, true, 4, 4},
    {2, 5, 41, PL_F16, PL_ACT_F32, true, false, 0, 1},
    {9, 3, 130, PL_BF16, PL_ACT_F32, true, true, 0, 0},
    {6, 12, 129, PL_F32, PL_ACT_BF16, true, true, 4, 0},
    /* tiles of 16, 32 and 64 tokens, their edges, a tail in K, rows that are not aligned */
    {5, 1, 1, PL_BF16, PL_ACT_BF16, true, false, 0, 0},
    {16, 32, 128, PL_BF16, PL_ACT_BF16, false, false, 0, 0},
    {13, 67, 200, PL_BF16, PL_ACT_BF16, true, false, 8, 8},
    {8, 33, 1000, PL_BF16, PL_ACT_BF16, true, true, 0, 0},
    {17, 31, 136, PL_BF16, PL_ACT_BF16, true, false, 0, 8},
    {32, 65, 511, PL_BF16, PL_ACT_BF16, false, true, 1, 1},
    {33, 7, 129, PL_BF16, PL_ACT_BF16, true, false, 0, 0},
    {61, 35, 264, PL_BF16, PL_ACT_BF16, true, false, 16, 0},
    {64, 32, 61, PL_BF16, PL_ACT_BF16, false, false, 3, 2},
    /* tiles of 128 x 128; more tokens than the scratch takes at once (in the CPU build) */
    {128, 257, 72, PL_BF16, PL_ACT_BF16, true, false, 8, 8},
    {131, 129, 248, PL_BF16, PL_ACT_BF16, true, true, 0, 0},
    {70, 5, 1031, PL_BF16, PL_ACT_BF16, true, true, 0, 0},
};

static double rounded(float x, int act) { return (double)(act == PL_ACT_BF16 ? pl_bf16_f32(pl_f32_bf16(x)) : x); }

static void linear_test(run_state *st, const linear_case *c)
{
    pl_err err;
    char what[128], text[320];
    snprintf(what, sizeof what, "linear T=%d N=%d K=%d %s act=%s%s%s gaps %d,%d", c->t, c->n, c->k,
             pl_dtype_name(c->dtype), c->act == PL_ACT_BF16 ? "bf16" : "f32", c->bias ? " bias" : "",
             c->packed ? " packed" : "", c->before, c->after);
    float *xv = random_values(st, (int64_t)c->t * c->k), *wv = random_values(st, (int64_t)c->n * c->k),
          *bv = random_values(st, c->n);
    double *bound = malloc(sizeof *bound * (size_t)c->t * (size_t)c->n);
    if (!bound) abort();
    matrix x, w, y;
    pl_tensor b_host = {0}, b_gpu = {0}, packed = {0};
    matrix_new(st, &x, PL_F32, c->t, c->k, c->before, c->after, xv);
    matrix_new(st, &w, c->dtype, c->n, c->k, c->before, c->after, wv);
    matrix_new(st, &y, PL_F32, c->t, c->n, c->before, c->after, NULL);
    MUST(pl_tensor_new(&b_host, st->cpu, PL_F32, 1, &(int64_t){c->n}, &err));
    MUST(pl_tensor_new(&b_gpu, st->gpu, PL_F32, 1, &(int64_t){c->n}, &err));
    MUST(pl_tensor_set_f32(&b_host, bv, c->n, &err));
    MUST(pl_dev_copy(st->gpu, &b_gpu, &b_host, &err));
    if (c->packed) {
        const int64_t bytes = st->gpu->stream.backend->packed_bytes(c->dtype, c->n, c->k), dim[2] = {c->n, c->k};
        MUST(pl_tensor_alloc(&packed, st->gpu, c->dtype, PL_PACKED, 2, dim, bytes, &err));
        MUST(pl_dev_pack(st->gpu, &packed, &w.host, NULL, &err));
    }
    for (int64_t t = 0; t < c->t; t++)
        for (int64_t n = 0; n < c->n; n++) {
            double terms = c->bias ? fabs((double)bv[n]) : 0;
            for (int64_t k = 0; k < c->k; k++)
                terms += fabs(rounded(xv[t * c->k + k], c->act) * (double)wv[n * c->k + k]);
            bound[t * c->n + n] =
                terms * 0x1p-23 * (4 + sqrt((double)c->k)) * (1 + 0x1p-7); /* w was rounded after wv */
        }
    MUST(pl_linear(pl_dev_stream(st->cpu), &y.host, &x.host, &w.host, c->bias ? &b_host : NULL, c->act, &err));
    const int rc = pl_linear(pl_dev_stream(st->gpu), &y.gpu, &x.gpu, c->packed ? &packed : &w.gpu,
                             c->bias ? &b_gpu : NULL, c->act, &err);
    verdict(st, what, blame(rc < 0 ? err.msg : compare(st, &y, bound, text, sizeof text)));
    pl_tensor_release(&packed);
    pl_tensor_release(&b_gpu);
    pl_tensor_release(&b_host);
    matrix_free(&y);
    matrix_free(&w);
    matrix_free(&x);
    free(bound);
    free(bv);
    free(wv);
    free(xv);
}

typedef struct norm_case {
    int32_t rows, d, y, x, w; /* formats of y, x, w */
    int32_t before, after;
    int32_t heads; /* > 0: rows as [rows / heads, heads, d] */
    bool in_place;
} norm_case;

static const norm_case norm_cases[] = {
    {1, 1, PL_F32, PL_F32, PL_F32, 0, 0, 0, false},      {3, 64, PL_F32, PL_F32, PL_F32, 0, 0, 0, true},
    {17, 61, PL_F32, PL_F32, PL_F32, 1, 2, 0, false},    {9, 129, PL_F32, PL_F32, PL_BF16, 4, 4, 0, false},
    {12, 40, PL_F32, PL_F32, PL_F32, 0, 24, 3, false},   {30, 20, PL_BF16, PL_BF16, PL_BF16, 4, 0, 5, true},
    {2, 1024, PL_BF16, PL_BF16, PL_F32, 0, 0, 0, false}, {2, 1025, PL_F32, PL_F32, PL_F32, 0, 0, 0, false},
    {3, 2050, PL_F32, PL_F32, PL_F32, 4, 6, 0, true},    {2, 4099, PL_BF16, PL_F32, PL_BF16, 1, 0, 0, false},
    {2, 1536, PL_BF16, PL_F32, PL_F32, 8, 8, 0, false},  {1, 3001, PL_BF16, PL_BF16, PL_F32, 0, 0, 0, false},
};

/* The same rows as a tensor of three dims. */
static pl_tensor with_heads(pl_tensor t, int32_t heads)
{
    if (!heads) return t;
    t.ndim = 3;
    t.dim[2] = t.dim[1];
    t.stride[2] = 1;
    t.dim[1] = heads;
    t.stride[1] = t.stride[0];
    t.dim[0] /= heads;
    t.stride[0] *= heads;
    return t;
}

static void norm_test(run_state *st, const norm_case *c)
{
    pl_err err;
    char what[128], text[320];
    snprintf(what, sizeof what, "rms_norm %d x %d %s %s %s gaps %d,%d heads %d%s", c->rows, c->d, pl_dtype_name(c->y),
             pl_dtype_name(c->x), pl_dtype_name(c->w), c->before, c->after, c->heads, c->in_place ? " in place" : "");
    float *xv = random_values(st, (int64_t)c->rows * c->d), *wv = random_values(st, c->d);
    double *bound = malloc(sizeof *bound * (size_t)c->rows * (size_t)c->d);
    if (!bound) abort();
    matrix x, y, w, x32, w32, y32; /* the CPU computes in f32, from the same rounded values */
    pl_tensor w_host = {0}, w_gpu = {0};
    matrix_new(st, &x, c->x, c->rows, c->d, c->before, c->after, xv);
    matrix_new(st, &w, c->w, 1, c->d, 0, 0, wv);
    matrix_new(st, &y, c->y, c->rows, c->d, c->before, c->after, NULL);
    MUST(pl_tensor_get_f32(&x.host, xv, (int64_t)c->rows * c->d, &err));
    MUST(pl_tensor_get_f32(&w.host, wv, c->d, &err));
    matrix_new(st, &x32, PL_F32, c->rows, c->d, 0, 0, xv);
    matrix_new(st, &w32, PL_F32, 1, c->d, 0, 0, wv);
    matrix_new(st, &y32, PL_F32, c->rows, c->d, 0, 0, NULL);
    MUST(pl_tensor_reshape(&w_host, &w32.host, 1, &(int64_t){c->d}, &err));
    MUST(pl_tensor_reshape(&w_gpu, &w.gpu_all, 1, &(int64_t){c->d}, &err));
    MUST(pl_rms_norm(pl_dev_stream(st->cpu), &y32.host, &x32.host, &w_host, 1e-5f, &err));
    MUST(pl_tensor_get_f32(&y32.host, xv, (int64_t)c->rows * c->d, &err));
    for (int64_t i = 0; i < (int64_t)c->rows * c->d; i++)
        bound[i] =
            fabs((double)xv[i]) * (0x1p-23 * (6 + sqrt((double)c->d) / 4) + (c->y == PL_BF16 ? 0x1p-7 : 0)) + 1e-30;
    MUST(pl_tensor_set_f32(&y.host, xv, (int64_t)c->rows * c->d, &err));
    pl_tensor yt = with_heads(c->in_place ? x.gpu : y.gpu, c->heads), xt = with_heads(x.gpu, c->heads);
    const int rc = pl_rms_norm(pl_dev_stream(st->gpu), &yt, &xt, &w_gpu, 1e-5f, &err);
    if (c->in_place) { /* the result lies in x */
        pl_tensor_release(&x.host);
        pl_tensor_release(&x.host_all);
        x.host = y.host;
        x.host_all = y.host_all;
        pl_tensor_keep(&x.host);
        pl_tensor_keep(&x.host_all);
    }
    verdict(st, what, blame(rc < 0 ? err.msg : compare(st, c->in_place ? &x : &y, bound, text, sizeof text)));
    pl_tensor_release(&w_host);
    pl_tensor_release(&w_gpu);
    matrix *const all[] = {&x, &y, &w, &x32, &w32, &y32};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) matrix_free(all[i]);
    free(bound);
    free(wv);
    free(xv);
}

/* Rows in another order than the file's. */
static void pack_test(run_state *st)
{
    enum { N = 7, K = 70 };
    static const int32_t map[N] = {2, 3, 4, 0, 6, 5, 1};
    pl_err err;
    matrix w;
    pl_tensor packed = {0};
    float *wv = random_values(st, N * K);
    const char *problem = NULL;
    const int64_t bytes = st->gpu->stream.backend->packed_bytes(PL_BF16, N, K), dim[2] = {N, K};
    uint16_t *got = malloc((size_t)bytes);
    if (!got) abort();
    matrix_new(st, &w, PL_BF16, N, K, 1, 2, wv);
    MUST(pl_tensor_alloc(&packed, st->gpu, PL_BF16, PL_PACKED, 2, dim, bytes, &err));
    MUST(pl_dev_pack(st->gpu, &packed, &w.host, map, &err));
    MUST(st->gpu->stream.backend->copy_out(st->gpu->stream.impl, got, packed.data, bytes, &err));
    const int64_t pitch = bytes / 2 / N;
    for (int64_t i = 0; i < N * pitch; i++) {
        const int64_t r = i / pitch, k = i % pitch;
        const uint16_t want = k < K ? ((const uint16_t *)w.host.data)[map[r] * w.host.stride[0] + k] : 0;
        if (got[i] != want) problem = "a packed value is wrong";
    }
    verdict(st, "pack with a row map", problem);
    pl_tensor_release(&packed);
    matrix_free(&w);
    free(got);
    free(wv);
}

static void error_test(run_state *st)
{
    pl_err err = {0};
    matrix a, b;
    pl_stream *s = pl_dev_stream(st->gpu);
    matrix_new(st, &a, PL_F32, 3, 4, 0, 0, NULL);
    matrix_new(st, &b, PL_F32, 4, 4, 0, 0, NULL);
    verdict(st, "an op without a kernel", pl_add(s, &a.gpu, &a.gpu, &a.gpu, &err) == PL_EDEV ? NULL : "is not PL_EDEV");
    verdict(st, "a wrong shape",
            pl_linear(s, &a.gpu, &b.gpu, &b.gpu, NULL, PL_ACT_BF16, &err) == PL_ESHAPE ? NULL : "is not PL_ESHAPE");
    pl_tensor w = b.gpu, y = a.gpu;
    w.dtype = PL_I32;
    verdict(st, "a wrong format",
            pl_linear(s, &y, &a.gpu, &w, NULL, PL_ACT_BF16, &err) == PL_EDTYPE ? NULL : "is not PL_EDTYPE");
    const pl_dev_opts o = {.kind = PL_DEV_CUDA, .index = 1000};
    verdict(st, "device 1000",
            st->gpu->stream.backend->open(&(pl_stream){0}, &o, &err) == PL_EDEV ? NULL : "is not PL_EDEV");
    matrix_free(&a);
    matrix_free(&b);
}

static void all_cases(run_state *st)
{
    for (size_t i = 0; i < sizeof linear_cases / sizeof *linear_cases; i++) linear_test(st, &linear_cases[i]);
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++) norm_test(st, &norm_cases[i]);
}

static void open_devices(run_state *st, const char *plugin)
{
    pl_err err;
    const pl_dev_opts cpu = {.kind = PL_DEV_CPU, .n_threads = 1}, gpu = {.kind = PL_DEV_CUDA, .plugin = plugin};
    MUST(pl_dev_open(&st->cpu, &cpu, &err));
    MUST(pl_dev_open(&st->gpu, &gpu, &err));
    st->rng = 88172645463325252u;
}

static void close_devices(run_state *st)
{
    pl_dev_close(st->cpu);
    pl_dev_close(st->gpu);
}

/* Two devices with their own streams and scratch, driven by two threads. */
static void *second(void *arg)
{
    run_state *st = arg;
    all_cases(st);
    return NULL;
}

static void two_at_once(run_state *st, const char *plugin)
{
    run_state a = {.slack = st->slack}, b = {.slack = st->slack};
    pthread_t th;
    open_devices(&a, plugin);
    open_devices(&b, plugin);
    snprintf(a.where, sizeof a.where, "%.60s, first of two", st->where);
    snprintf(b.where, sizeof b.where, "%.60s, second of two", st->where);
    b.rng = 1234567;
    if (pthread_create(&th, NULL, second, &b)) abort();
    all_cases(&a);
    pthread_join(th, NULL);
    st->passed += a.passed + b.passed;
    st->failed += a.failed + b.failed;
    close_devices(&a);
    close_devices(&b);
}

/* Schedules: copies at once, then late; forward, reverse, then random ones with growing seeds; every other pair with
 * streams that run only when someone waits for them. */
static void schedule(run_state *st, int i)
{
    static const char *const name[] = {"forward", "reverse", "random"};
    const int order = i / 2 < 2 ? i / 2 : 2;
    simt.config("order", order);
    simt.config("seed", i);
    simt.config("lazy", i % 2 ? 3 : 0);
    simt.config("defer", i / 2 % 2);
    snprintf(st->where, sizeof st->where, "%s %d, copies %s%s", name[order], i, i % 2 ? "late" : "at once",
             i / 2 % 2 ? ", streams late" : "");
}

void bench(pl_dev *gpu);

int main(int argc, char **argv)
{
    pl_err err;
    char text[160];
    run_state st = {.slack = 1};
    int n = 6;
    bool bench_only = false;
    const char *plugin = argc > 1 ? argv[1] : NULL;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--bench-only"))
            bench_only = true;
        else if (!strcmp(argv[i], "--schedules") && i + 1 < argc)
            n = atoi(argv[++i]);
        else {
            fprintf(stderr, "usage: %s PLUGIN [--schedules N] [--bench-only]\n", argv[0]);
            return 2;
        }
    }
    const double t0 = pl_now_s();
    open_devices(&st, plugin);
    if (bench_only) {
        bench(st.gpu);
        close_devices(&st);
        return 0;
    }
    void *h = st.gpu->plugin;
    *(void **)&simt.status = dlsym(h, "simt_status");
    *(void **)&simt.report = dlsym(h, "simt_report");
    *(void **)&simt.config = dlsym(h, "simt_config");
    *(void **)&simt.has_checker = dlsym(h, "simt_has_checker");
    if (simt.status)
        simt.config("quiet", 1);
    else {
        n = 1;
        st.slack = 8;
        snprintf(st.where, sizeof st.where, "device");
    }
    pl_dev_describe(st.gpu, text, sizeof text);
    MUST(pl_dev_sync(st.gpu, &err));
    for (int i = 0; i < n; i++) {
        if (simt.status) schedule(&st, i);
        st.rng = 88172645463325252u + (uint64_t)i;
        all_cases(&st);
    }
    pack_test(&st);
    error_test(&st);
    if (!simt.status || !simt.has_checker()) two_at_once(&st, plugin);
    close_devices(&st);
    const char *late = blame(NULL);
    if (late) verdict(&st, "closing", late);
    printf("%s: %d schedule(s), %.1f s: %d passed, %d failed\n", text, n, pl_now_s() - t0, st.passed, st.failed);
    return st.failed != 0;
}
