/* bench/linear.c: speed of the product, per format, batch and number of threads: GB/s of packed weights and GMAC/s,
 * beside the read bandwidth and the fma peak of the machine measured in the same run. Weights of a row are larger
 * than the caches; the rows "layers" are the products of SmolLM2-135M in order, 30 layers and the head.
 *   bench_linear [format ...] [-t threads] [-m tokens] [-p path] [-k K] [-n N] */
#include "linear.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void die(const pl_err *e)
{
    fprintf(stderr, "bench: %s\n", e->msg);
    exit(1);
}
/* With one thread its CPU time, because machines are shared; with more, wall time. */
static double clock_of(const pl_stream *s)
{
    struct timespec t;
    clock_gettime(s->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void *need(void *p)
{
    if (!p) exit(1);
    return p;
}

typedef struct read_job {
    const uint64_t *p;
    int64_t n;
    _Atomic uint64_t sum;
} read_job;
static void read_part(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    read_job *j = arg;
    uint64_t s[8] = {0};
    for (int64_t i = from * 512; i < to * 512; i += 8) {
        __builtin_prefetch(j->p + i + 256);
        for (int l = 0; l < 8; l++) s[l] += j->p[i + l];
    }
    j->sum += s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}
static double read_bandwidth(pl_stream *s)
{
    const int64_t bytes = 256 << 20;
    pl_err e = {0};
    const pl_mark m = pl_scratch_mark(s);
    read_job j = {pl_scratch(s, bytes, &e), bytes / 8, 0};
    if (!j.p) die(&e);
    memset((void *)(uintptr_t)j.p, 1, (size_t)bytes);
    double best = 1e9;
    for (int r = 0; r < 5; r++) {
        const double t = clock_of(s);
        pl_parallel(s, bytes / 4096, 64, read_part, &j);
        const double d = clock_of(s) - t;
        if (d < best) best = d;
    }
    pl_scratch_release(s, m);
    return (double)bytes / best * 1e-9;
}

#ifdef PL_X86
#include <immintrin.h>
enum { FMA_ROUNDS = 1000000 };
__attribute__((target("avx2,fma"))) static void fma_part(void *arg, int64_t from, int64_t to, int thread)
{
    (void)from;
    (void)to;
    __m256 a[10], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < 10; i++) a[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < FMA_ROUNDS; r++) PL_UNROLL for (int i = 0; i < 10; i++) a[i] = _mm256_fmadd_ps(a[i], x, y);
    for (int i = 1; i < 10; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    _mm256_storeu_ps((float *)arg + thread * 16, a[0]);
}
static double fma_peak(pl_stream *s) /* GMAC/s of 8-lane vectors on all threads */
{
    pl_err e = {0};
    const pl_mark m = pl_scratch_mark(s);
    float *out = pl_scratch(s, s->n_threads * 64, &e);
    double best = 1e9;
    for (int r = 0; r < 5; r++) {
        const double t = clock_of(s);
        pl_parallel(s, s->n_threads, 1, fma_part, out);
        const double d = clock_of(s) - t;
        if (d < best) best = d;
    }
    pl_scratch_release(s, m);
    return 80.0 * FMA_ROUNDS * s->n_threads / best * 1e-9;
}
#else
static double fma_peak(pl_stream *s)
{
    (void)s;
    return 0;
}
#endif

static void new_packed(pl_tensor *out, pl_dev *d, int32_t dtype, int64_t n, int64_t k)
{
    pl_err e = {0};
    pl_tensor w = {0};
    const int64_t dim[2] = {n, k};
    if (pl_tensor_new(&w, d, dtype, 2, dim, &e) < 0) die(&e);
    const int64_t bytes = n * pl_dtype_row_bytes(dtype, k);
    uint64_t s = 88172645463325252u;
    for (int64_t i = 0; i < bytes; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        ((uint8_t *)w.data)[i] = (uint8_t)(s >> 40) & 0xbf; /* no infinities in any format */
    }
    for (int64_t i = 0; dtype == PL_NVFP4 && i < bytes; i += 22)
        memset((uint8_t *)w.data + i, 0x3b, 4); /* one float a tensor */
    if (pl_dev_pack(d, out, &w, NULL, &e) < 0) die(&e);
    pl_tensor_release(&w);
}
static void new_f32(pl_tensor *out, pl_dev *d, int64_t rows, int64_t cols)
{
    pl_err e = {0};
    const int64_t dim[2] = {rows, cols};
    if (pl_tensor_new(out, d, PL_F32, 2, dim, &e) < 0) die(&e);
    for (int64_t i = 0; i < rows * cols; i++) ((float *)out->data)[i] = (float)(i % 37 - 18) * 0.125f;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* Seconds of one pass over all of w: the first decile, because the clock of a shared machine also errs downwards. */
static double time_pass(pl_stream *s, const pl_tensor *w, int n_w, int64_t m)
{
    pl_err e = {0};
    pl_tensor x = {0}, y = {0};
    int64_t max_k = 0, max_n = 0;
    for (int i = 0; i < n_w; i++) {
        max_k = pl_max(max_k, w[i].dim[1]);
        max_n = pl_max(max_n, w[i].dim[0]);
    }
    new_f32(&x, s->dev, m, max_k);
    new_f32(&y, s->dev, m, max_n);
    enum { MAX = 1000 };
    double *sample = need(malloc(MAX * sizeof *sample)), total = 0;
    int n = 0;
    for (; n < MAX && (n < 3 || total < 0.5); n++) {
        const double t = clock_of(s);
        for (int i = 0; i < n_w; i++) {
            pl_tensor xv = x, yv = y;
            xv.dim[1] = w[i].dim[1];
            yv.dim[1] = w[i].dim[0];
            if (pl_cpu_linear(s, &yv, &xv, &w[i], NULL, PL_ACT_BF16, &e) < 0) die(&e);
        }
        sample[n] = clock_of(s) - t;
        total += sample[n];
    }
    qsort(sample, (size_t)n, sizeof *sample, by_size);
    const double good = sample[n / 10];
    free(sample);
    pl_tensor_release(&x);
    pl_tensor_release(&y);
    return good;
}

static void row(pl_stream *s, const char *name, const pl_tensor *w, int n_w, int64_t m, double bandwidth, double peak)
{
    double bytes = 0, macs = 0;
    for (int i = 0; i < n_w; i++) {
        bytes += (double)pl_cpu_packed_bytes(w[i].dtype, w[i].dim[0], w[i].dim[1]);
        macs += (double)(w[i].dim[0] * w[i].dim[1] * m);
    }
    const double t = time_pass(s, w, n_w, m), gb = bytes / t * 1e-9, gm = macs / t * 1e-9;
    printf("%-8s M %4d  threads %d  %9.3f ms  %6.2f GB/s (%3.0f %%)  %7.1f GMAC/s (%3.0f %%)\n", name, (int)m,
           s->n_threads, t * 1e3, gb, 100 * gb / bandwidth, gm, peak > 0 ? 100 * gm / peak : 0);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int32_t all[] = {PL_F32,   PL_F16,    PL_BF16,  PL_F8,    PL_Q4_0,   PL_Q4_1,  PL_Q5_0,  PL_Q5_1,
                                  PL_Q8_0,  PL_Q4_K,   PL_Q5_K,  PL_Q6_K,  PL_IQ4_NL, PL_MXFP4, PL_NVFP4, PL_I4G32,
                                  PL_I4G64, PL_I4G128, PL_U4G32, PL_U4G64, PL_U4G128, PL_F8G32, PL_F8G64, PL_F8G128};
    static const int64_t all_m[] = {1, 2, 4, 8, 16, 64, 512};
    bool want[PL_N_DTYPES] = {false}, any = false, layers = false;
    int64_t only_m = 0, k = 1536, n = 0, threads_only = 0;
    int32_t path = PL_PATH_AUTO;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && i + 1 < argc) {
            const char *v = argv[++i];
            switch (argv[i - 1][1]) {
            case 't':
                threads_only = atoi(v);
                break;
            case 'm':
                only_m = atoi(v);
                break;
            case 'k':
                k = atoi(v);
                break;
            case 'n':
                n = atoi(v);
                break;
            case 'p':
                for (int32_t p = 0; p < PL_N_PATHS; p++)
                    if (!strcmp(v, pl_path_name(p))) path = p;
            }
            continue;
        }
        if (!strcmp(argv[i], "layers")) layers = any = true;
        for (size_t f = 0; f < sizeof all / sizeof *all; f++)
            if (!strcmp(argv[i], pl_dtype_name(all[f]))) want[all[f]] = any = true;
    }
    for (int32_t threads = 1; threads <= 2; threads++) {
        if (threads_only && threads != threads_only) continue;
        pl_err e = {0};
        pl_dev *d = NULL;
        const pl_dev_opts o = {.kind = PL_DEV_CPU, .n_threads = threads, .path = path};
        if (pl_dev_open(&d, &o, &e) < 0) die(&e);
        pl_stream *s = pl_dev_stream(d);
        const double bandwidth = read_bandwidth(s), peak = fma_peak(s);
        printf("%s, path %s: read %.1f GB/s, fma peak %.1f GMAC/s (8 lanes)\n", threads == 1 ? "1 thread" : "2 threads",
               pl_path_name(s->path), bandwidth, peak);
        for (size_t f = 0; f < sizeof all / sizeof *all; f++) {
            if (any && !want[all[f]]) continue;
            pl_tensor w = {0};
            const int64_t rows = n ? n : (64 << 20) / pl_cpu_packed_bytes(all[f], 16, k) * 16;
            new_packed(&w, d, all[f], rows, k);
            for (size_t i = 0; i < sizeof all_m / sizeof *all_m; i++)
                if (only_m ? all_m[i] == only_m : true) {
                    if (all_m[i] > 16 && !n) { /* cut: products take as long as weights are large */
                        pl_tensor part = w;
                        part.dim[0] = pl_min(w.dim[0], 3072);
                        row(s, pl_dtype_name(all[f]), &part, 1, all_m[i], bandwidth, peak);
                    } else {
                        row(s, pl_dtype_name(all[f]), &w, 1, all_m[i], bandwidth, peak);
                    }
                }
            pl_tensor_release(&w);
        }
        if (layers || !any) {
            static const int64_t shape[7][2] = {{576, 576},  {192, 576},  {192, 576}, {576, 576},
                                                {1536, 576}, {1536, 576}, {576, 1536}};
            enum { LAYERS = 30, N_W = LAYERS * 7 + 1 };
            pl_tensor *w = need(calloc(N_W, sizeof *w));
            for (int i = 0; i < LAYERS * 7; i++) new_packed(&w[i], d, PL_Q4_1, shape[i % 7][0], shape[i % 7][1]);
            new_packed(&w[LAYERS * 7], d, PL_Q8_0, 49152, 576);
            for (size_t i = 0; i < sizeof all_m / sizeof *all_m; i++) {
                if (only_m && all_m[i] != only_m) continue;
                row(s, "layers", w, LAYERS * 7, all_m[i], bandwidth, peak);
                if (all_m[i] <= 16) row(s, "head", w + LAYERS * 7, 1, all_m[i], bandwidth, peak);
            }
            for (int i = 0; i < N_W; i++) pl_tensor_release(&w[i]);
            free(w);
        }
        pl_dev_close(d);
    }
    return 0;
}
