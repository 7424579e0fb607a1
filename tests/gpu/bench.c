/* bench.c: times of the CUDA ops at the sizes of an 8 B model, from tests/gpu/run. Each row gives the traffic and the
 * operations that the op needs at least, and the share of the device's ceiling that was reached. */
#include "dev.h"
#include "dtype.h"
#include "tensor.h"
#include <stdio.h>
#include <stdlib.h>

void bench(pl_dev *gpu);

typedef struct ceiling { /* published: memory, dense BF16 */
    const char *name;
    double bytes_s, flop_s;
} ceiling;
static const ceiling ceilings[] = {
    {"A100", 2.0e12, 312e12}, {"H100 PCIe", 2.0e12, 756e12}, {"H100", 3.35e12, 989e12},
    {"H200", 4.8e12, 989e12}, {"B200", 7.7e12, 2250e12},
};

static void must(int rc, const pl_err *err)
{
    if (rc >= 0) return;
    fprintf(stderr, "bench: %s\n", err->msg);
    exit(1);
}

static pl_tensor zeros(pl_dev *gpu, int32_t dtype, int64_t rows, int64_t cols)
{
    pl_err err;
    pl_tensor t;
    const int64_t dim[2] = {rows, cols}, bytes = rows * pl_dtype_row_bytes(dtype, cols);
    void *host = calloc(1, (size_t)bytes);
    must(host ? PL_OK : PL_ENOMEM, &(pl_err){.msg = "no memory"});
    must(pl_tensor_new(&t, gpu, dtype, 2, dim, &err), &err);
    must(gpu->stream.backend->copy_in(gpu->stream.impl, t.data, host, bytes, &err), &err);
    free(host);
    return t;
}

typedef struct op_case { /* n == 0: rms_norm of t rows of k */
    int64_t t, n, k;
} op_case;
static const op_case cases[] = {
    {1, 0, 4096},        {64, 0, 4096},      {4096, 0, 4096},    {131072, 0, 128},   {1, 4096, 4096},
    {1, 14336, 4096},    {1, 4096, 14336},   {1, 1024, 4096},    {2, 14336, 4096},   {4, 14336, 4096},
    {8, 14336, 4096},    {16, 14336, 4096},  {32, 14336, 4096},  {64, 14336, 4096},  {16, 4096, 4096},
    {64, 4096, 4096},    {128, 14336, 4096}, {512, 14336, 4096}, {512, 4096, 14336}, {2048, 14336, 4096},
    {4096, 14336, 4096}, {4096, 4096, 4096},
};

static double seconds(pl_dev *gpu, const op_case *c, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, int n)
{
    pl_err err;
    pl_stream *s = pl_dev_stream(gpu);
    must(pl_dev_sync(gpu, &err), &err);
    const double t0 = pl_now_s();
    for (int i = 0; i < n; i++)
        must(c->n ? pl_linear(s, y, x, w, NULL, PL_ACT_BF16, &err) : pl_rms_norm(s, y, x, w, 1e-5f, &err), &err);
    must(pl_dev_sync(gpu, &err), &err);
    return (pl_now_s() - t0) / n;
}

void bench(pl_dev *gpu)
{
    char text[160];
    const ceiling *top = NULL;
    pl_dev_describe(gpu, text, sizeof text);
    for (size_t i = 0; !top && i < sizeof ceilings / sizeof *ceilings; i++)
        if (strstr(text, ceilings[i].name)) top = &ceilings[i];
    printf("%-9s %6s %6s %6s %10s %8s %9s %8s\n", "op", "T", "N", "K", "us", "GB/s", "TFLOP/s", "ceiling");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const op_case *c = &cases[i];
        pl_tensor x = zeros(gpu, PL_F32, c->t, c->k), y = zeros(gpu, PL_F32, c->t, c->n ? c->n : c->k);
        pl_tensor w = c->n ? zeros(gpu, PL_BF16, c->n, c->k) : zeros(gpu, PL_F32, 1, c->k);
        if (!c->n) { /* [1,k] to [k] */
            w.ndim = 1;
            w.dim[0] = c->k;
            w.stride[0] = 1;
        }
        const double first = seconds(gpu, c, &y, &x, &w, 3);
        const int n = (int)(0.05 / first) + 1;
        double best = 1e9;
        for (int r = 0; r < 5; r++) {
            const double t = seconds(gpu, c, &y, &x, &w, n < 2000 ? n : 2000);
            if (t < best) best = t;
        }
        const double bytes = c->n ? 2.0 * (double)c->n * (double)c->k + 4.0 * (double)c->t * (double)(c->k + c->n)
                                  : 8.0 * (double)c->t * (double)c->k;
        const double flop = c->n ? 2.0 * (double)c->t * (double)c->n * (double)c->k : 0;
        printf("%-9s %6lld %6lld %6lld %10.2f %8.0f %9.1f", c->n ? "linear" : "rms_norm", (long long)c->t,
               (long long)c->n, (long long)c->k, best * 1e6, bytes / best * 1e-9, flop / best * 1e-12);
        if (top) {
            const double a = bytes / top->bytes_s, b = flop / top->flop_s;
            printf(" %7.0f%%", 100 * (a > b ? a : b) / best);
        }
        puts("");
        fflush(stdout);
        pl_tensor_release(&w);
        pl_tensor_release(&y);
        pl_tensor_release(&x);
    }
}
