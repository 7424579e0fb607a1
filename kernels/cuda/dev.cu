// dev.cu: the CUDA backend: opening a device, memory, copies, packing of weights, and the table of ops. The plug-in's
// one exported symbol is pl_backend_open. Every call names its device, since CUDA's current device is per OS thread.
#include "common.cuh"
#include <stdio.h>
#include <stdlib.h>

#ifndef PL_CUDA_SCRATCH // tests make it small, so that a few tokens already need more than one round
#define PL_CUDA_SCRATCH (32 << 20)
#endif
static const int64_t SCRATCH = PL_CUDA_SCRATCH; // activations of a product, rounded (linear.cu)

__global__ void k_probe() {}

static int open_device(pl_stream *s, const pl_dev_opts *o, pl_err *err)
{
    int n = 0, rc = PL_OK;
    PL_CUDA_TRY(cudaGetDeviceCount(&n), "no device", err);
    if (o->index < 0 || o->index >= n) return pl_fail(err, PL_EDEV, "cuda: no device %d, there are %d", o->index, n);
    PL_CUDA_TRY(cudaSetDevice(o->index), "device", err);
    cudaDeviceProp prop;
    cudaFuncAttributes attr;
    PL_CUDA_TRY(cudaGetDeviceProperties(&prop, o->index), "device", err);
    if (cudaFuncGetAttributes(&attr, (const void *)k_probe) != cudaSuccess) {
        (void)cudaGetLastError();
        return pl_fail(err, PL_EDEV,
                       "cuda: device %d (%s, sm_%d%d) has no kernels in this build, want sm_80, sm_90 or sm_100",
                       o->index, prop.name, prop.major, prop.minor);
    }
    PL_TRY(pl_cuda_linear_open(err));
    pl_cuda_dev *d = (pl_cuda_dev *)calloc(1, sizeof *d);
    if (!d) return pl_fail(err, PL_ENOMEM, "cuda: no memory");
    d->device = o->index;
    d->n_sm = prop.multiProcessorCount;
    d->scratch_bytes = SCRATCH;
    snprintf(d->name, sizeof d->name, "%.100s sm_%d%d", prop.name, prop.major, prop.minor);
    if (cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking) != cudaSuccess)
        rc = pl_fail(err, PL_EDEV, "cuda: device %d: no stream", o->index);
    else if (cudaMalloc((void **)&d->scratch, (size_t)SCRATCH) != cudaSuccess)
        rc = pl_fail(err, PL_ENOMEM, "cuda: device %d: no memory for %lld bytes of scratch", o->index,
                     (long long)SCRATCH);
    if (rc < 0) {
        (void)cudaGetLastError();
        if (d->stream) cudaStreamDestroy(d->stream);
        free(d);
        return rc;
    }
    s->impl = d;
    s->n_threads = 1;
    return PL_OK;
}

static void close_device(pl_stream *s)
{
    pl_cuda_dev *d = pl_cuda_impl(s);
    if (!d) return;
    cudaSetDevice(d->device);
    cudaStreamSynchronize(d->stream);
    cudaFree(d->scratch);
    cudaStreamDestroy(d->stream);
    free(d);
    s->impl = NULL;
}

static int describe(const pl_stream *s, char *text, int32_t cap)
{
    const pl_cuda_dev *d = pl_cuda_impl(s);
    return snprintf(text, (size_t)cap, "cuda: device %d, %s, %d multiprocessors", d->device, d->name, d->n_sm);
}

static void *alloc_bytes(void *impl, int64_t bytes)
{
    void *p = NULL;
    if (bytes < 0 || cudaSetDevice(((pl_cuda_dev *)impl)->device) != cudaSuccess) return NULL;
    if (cudaMalloc(&p, (size_t)bytes) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return NULL;
}

static void free_bytes(void *impl, void *p, int64_t bytes)
{
    (void)bytes;
    cudaSetDevice(((pl_cuda_dev *)impl)->device);
    cudaFree(p); // waits for the work that was issued before it
}

static int copy(void *impl, void *dst, const void *src, int64_t bytes, cudaMemcpyKind kind, const char *what,
                pl_err *err)
{
    const pl_cuda_dev *d = (pl_cuda_dev *)impl;
    PL_CUDA_TRY(cudaSetDevice(d->device), what, err);
    PL_CUDA_TRY(cudaMemcpyAsync(dst, src, (size_t)bytes, kind, d->stream), what, err);
    PL_CUDA_TRY(cudaStreamSynchronize(d->stream), what, err);
    return PL_OK;
}
static int copy_in(void *impl, void *dst, const void *src, int64_t bytes, pl_err *err)
{
    return copy(impl, dst, src, bytes, cudaMemcpyHostToDevice, "copy to the device", err);
}
static int copy_out(void *impl, void *dst, const void *src, int64_t bytes, pl_err *err)
{
    return copy(impl, dst, src, bytes, cudaMemcpyDeviceToHost, "copy from the device", err);
}
static int copy_within(void *impl, void *dst, const void *src, int64_t bytes, pl_err *err)
{
    return copy(impl, dst, src, bytes, cudaMemcpyDeviceToDevice, "copy within the device", err);
}

static int sync(void *impl, pl_err *err)
{
    const pl_cuda_dev *d = (pl_cuda_dev *)impl;
    PL_CUDA_TRY(cudaSetDevice(d->device), "sync", err);
    PL_CUDA_TRY(cudaStreamSynchronize(d->stream), "sync", err);
    return PL_OK;
}

static int64_t element_bytes(int32_t dtype)
{
    return dtype == PL_F32 ? 4 : dtype == PL_F16 || dtype == PL_BF16 ? 2 : 0;
}

static int64_t packed_bytes(int32_t dtype, int64_t n, int64_t k)
{
    int64_t bytes;
    if (!element_bytes(dtype) || k < 0 || k > INT64_MAX - PL_CUDA_PACK) return -1;
    if (!pl_mul(n, pl_round_up(k, PL_CUDA_PACK), &bytes) || !pl_mul(bytes, element_bytes(dtype), &bytes)) return -1;
    return bytes;
}

static int pack(pl_stream *s, pl_tensor *out, const pl_tensor *w, const int32_t *row_map, pl_err *err)
{
    const pl_cuda_dev *d = pl_cuda_impl(s);
    const int64_t n = w->dim[0], k = w->dim[1], size = element_bytes(w->dtype), bytes = packed_bytes(w->dtype, n, k);
    if (bytes < 0) return pl_fail(err, PL_EDTYPE, "pack: no CUDA layout for format %d", w->dtype);
    if (w->dev != PL_DEV_CPU) return pl_fail(err, PL_EDEV, "pack: w is on the device, want host memory");
    if (!out->storage || out->storage->bytes < bytes)
        return pl_fail(err, PL_ESHAPE, "pack: no room for %lld bytes", (long long)bytes);
    PL_CUDA_TRY(cudaSetDevice(d->device), "pack", err);
    const size_t pitch = (size_t)(pl_round_up(k, PL_CUDA_PACK) * size), from = (size_t)(w->stride[0] * size),
                 row = (size_t)(k * size);
    unsigned char *dst = (unsigned char *)out->data;
    const unsigned char *src = (const unsigned char *)w->data;
    PL_CUDA_TRY(cudaMemsetAsync(dst, 0, (size_t)bytes, d->stream), "pack", err);
    // runs of consecutive source rows go in one copy
    for (int64_t i = 0, run; i < n && k; i += run) {
        const int64_t first = row_map ? row_map[i] : i;
        for (run = 1; i + run < n && (row_map ? row_map[i + run] : i + run) == first + run;) run++;
        PL_CUDA_TRY(cudaMemcpy2DAsync(dst + (size_t)i * pitch, pitch, src + (size_t)first * from, n > 1 ? from : row,
                                      row, (size_t)run, cudaMemcpyHostToDevice, d->stream),
                    "pack", err);
    }
    PL_CUDA_TRY(cudaStreamSynchronize(d->stream), "pack", err);
    return PL_OK;
}

static pl_cuda_ops make_ops()
{
    pl_cuda_ops ops = {};
    ops.linear = pl_cuda_linear;
    ops.rms_norm = pl_cuda_rms_norm;
    return ops;
}
static const pl_cuda_ops ops = make_ops();

static const pl_backend backend = {PL_DEV_CUDA, open_device, close_device, describe, alloc_bytes, free_bytes,
                                   copy_in,     copy_out,    copy_within,  sync,     pack,        packed_bytes,
                                   &ops,        nullptr,     nullptr,      nullptr,  nullptr};

extern "C" __attribute__((visibility("default"))) int pl_backend_open(int32_t abi, const pl_backend **out, char *msg,
                                                                      int32_t cap)
{
    int n = 0, driver = 0, runtime = 0;
    if (abi != PL_ABI) {
        snprintf(msg, (size_t)cap, "the program has interface %d, the plug-in %d: install both from one build",
                 (int)abi, PL_ABI);
        return PL_EDEV;
    }
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        (void)cudaGetLastError();
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        snprintf(msg, (size_t)cap, "no device: %s (driver %d, want %d)", e ? cudaGetErrorString(e) : "none found",
                 driver, runtime);
        return PL_EDEV;
    }
    *out = &backend;
    return PL_OK;
}
