// common.cuh: what every .cu file of the backend includes: the core's headers, the device record behind a stream, and
// small helpers. Kernels see activations as float or bf16 bits (uint16_t) and take plain pointers and sizes.
#pragma once
#include "ptx.cuh"
extern "C" {
#include "dev.h"
#include "ops_backend.h"
#include "tensor.h"
int pl_cuda_linear_open(pl_err *err);
int pl_cuda_rms_norm(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, float eps, pl_err *err);
int pl_cuda_linear(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, const pl_tensor *b, int act,
                   pl_err *err);
}

// Behind stream->impl. Scratch belongs to the stream: an op may use all of it until it returns, in stream order.
struct pl_cuda_dev {
    int device, n_sm;
    cudaStream_t stream;
    unsigned char *scratch;
    int64_t scratch_bytes;
    char name[128];
};
inline pl_cuda_dev *pl_cuda_impl(const pl_stream *s) { return (pl_cuda_dev *)s->impl; }

// Packed rows of a product's weights: the format is kept, each row padded with zeros to a multiple of PL_CUDA_PACK
// elements, so that rows are aligned for 16-byte loads.
enum { PL_CUDA_PACK = 64 };

#define PL_CUDA_TRY(call, what, err)                                                                           \
    do {                                                                                                       \
        const cudaError_t e_ = (call);                                                                         \
        if (e_ != cudaSuccess) return pl_fail((err), PL_EDEV, "cuda: %s: %s", (what), cudaGetErrorString(e_)); \
    } while (0)

// Rows of a tensor as kernels address them: up to three leading dims over a dense last axis.
struct pl_rows_of {
    uint32_t d1, d2;    // dims 1 and 2 of the leading three; dim 0 follows from the row number
    int64_t s0, s1, s2; // strides in elements
};
inline pl_rows_of pl_rows_from(const pl_tensor *t)
{
    int64_t dim[3] = {1, 1, 1}, stride[3] = {0, 0, 0};
    for (int i = 0, n = t->ndim - 1; i < n; i++) {
        dim[3 - n + i] = t->dim[i];
        stride[3 - n + i] = t->stride[i];
    }
    return {(uint32_t)dim[1], (uint32_t)dim[2], stride[0], stride[1], stride[2]};
}
PL_DEVICE int64_t pl_row_at(const pl_rows_of &m, uint32_t r) // fewer than 2^31 rows: 64-bit divisions are calls
{
    const uint32_t q = r / m.d2;
    return q / m.d1 * m.s0 + q % m.d1 * m.s1 + r % m.d2 * m.s2;
}
// Is every row aligned for 16-byte accesses of elements of `size` bytes?
inline bool pl_rows_aligned(const pl_tensor *t, int64_t size)
{
    int64_t all = (int64_t)(uintptr_t)t->data;
    for (int i = 0; i < t->ndim - 1; i++)
        if (t->dim[i] > 1) all |= t->stride[i] * size;
    return all % 16 == 0;
}

PL_DEVICE float pl_lo_bf16(uint32_t u) { return __uint_as_float(u << 16); }
PL_DEVICE float pl_hi_bf16(uint32_t u) { return __uint_as_float(u & 0xffff0000u); }
PL_DEVICE float pl_load(const float *p) { return *p; }
PL_DEVICE float pl_load(const uint16_t *p) { return pl_lo_bf16(*p); }
PL_DEVICE void pl_store(float *p, float v) { *p = v; }
PL_DEVICE void pl_store(uint16_t *p, float v) { *p = pl_to_bf16(v); }
PL_DEVICE float pl_warp_sum(float v)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
