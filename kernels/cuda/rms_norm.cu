// rms_norm.cu: y = x w / sqrt(mean(x^2) + eps), row by row.
// Bound: memory. Traffic a row: x once, y once (8 D bytes in f32); w and the second reading of x come from the caches.
// A warp takes a row up to 1,024 wide (heads: many short rows), a block of 8 warps a wider one, in 16-byte accesses
// where the rows allow. Sums: a lane's own chain, then a butterfly, then the warps in order.
#include "common.cuh"

enum { BLOCK = 256, WARPS = BLOCK / 32, WARP_ROW = 1024 };

template <class T> struct vec4;
template <> struct vec4<float> {
    static PL_DEVICE float4 get(const float *p) { return pl_ld<float4>(p); }
    static PL_DEVICE void put(float *p, float4 v) { pl_st(p, v); }
};
template <> struct vec4<uint16_t> {
    static PL_DEVICE float4 get(const uint16_t *p)
    {
        const uint2 u = pl_ld<uint2>(p);
        return make_float4(pl_lo_bf16(u.x), pl_hi_bf16(u.x), pl_lo_bf16(u.y), pl_hi_bf16(u.y));
    }
    static PL_DEVICE void put(uint16_t *p, float4 v) { pl_st(p, make_uint2(pl_bf16x2(v.x, v.y), pl_bf16x2(v.z, v.w))); }
};

// Sum over the row's threads: one warp, or all of the block.
template <int THREADS> PL_DEVICE float row_sum(float v)
{
    v = pl_warp_sum(v);
    if (THREADS == 32) return v;
    __shared__ float part[WARPS];
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < WARPS; i++) v += part[i];
    return v;
}

template <int THREADS, bool VEC, class Y, class X, class W>
__global__ void __launch_bounds__(BLOCK)
    k_rms_norm(Y *y, const X *x, const W *w, pl_rows_of ym, pl_rows_of xm, uint32_t n_rows, int64_t d, float eps)
{
    const uint32_t row = blockIdx.x * (BLOCK / THREADS) + threadIdx.x / THREADS;
    if (THREADS == 32 && row >= n_rows) return; // whole warps; a block-wide row always exists
    const int t = threadIdx.x % THREADS;
    const X *xr = x + pl_row_at(xm, row);
    Y *yr = y + pl_row_at(ym, row);
    const int64_t d4 = VEC ? d / 4 * 4 : 0;
    float sum = 0.f;
    for (int64_t i = 4 * t; i < d4; i += 4 * THREADS) {
        const float4 v = vec4<X>::get(xr + i);
        sum = fmaf(v.x, v.x, sum);
        sum = fmaf(v.y, v.y, sum);
        sum = fmaf(v.z, v.z, sum);
        sum = fmaf(v.w, v.w, sum);
    }
    for (int64_t i = d4 + t; i < d; i += THREADS) {
        const float v = pl_load(xr + i);
        sum = fmaf(v, v, sum);
    }
    const float scale = 1.f / sqrtf(row_sum<THREADS>(sum) / (float)d + eps);
    for (int64_t i = 4 * t; i < d4; i += 4 * THREADS) {
        const float4 v = vec4<X>::get(xr + i), u = vec4<W>::get(w + i);
        vec4<Y>::put(yr + i, make_float4(v.x * scale * u.x, v.y * scale * u.y, v.z * scale * u.z, v.w * scale * u.w));
    }
    for (int64_t i = d4 + t; i < d; i += THREADS) pl_store(yr + i, pl_load(xr + i) * scale * pl_load(w + i));
}

template <class Y, class X, class W>
static void launch(cudaStream_t st, const pl_tensor *y, const pl_tensor *x, const pl_tensor *w, float eps)
{
    const uint32_t n = (uint32_t)pl_rows(x);
    const int64_t d = pl_cols(x);
    const pl_rows_of ym = pl_rows_from(y), xm = pl_rows_from(x);
    const bool vec = pl_rows_aligned(y, sizeof(Y)) && pl_rows_aligned(x, sizeof(X)) && pl_rows_aligned(w, sizeof(W));
    const bool warp = d <= WARP_ROW;
    const dim3 grid(warp ? (n + WARPS - 1) / WARPS : n), block(BLOCK);
    Y *yp = (Y *)y->data;
    const X *xp = (const X *)x->data;
    const W *wp = (const W *)w->data;
    if (warp && vec)
        PL_LAUNCH((k_rms_norm<32, true, Y, X, W>), grid, block, 0, st, yp, xp, wp, ym, xm, n, d, eps);
    else if (warp)
        PL_LAUNCH((k_rms_norm<32, false, Y, X, W>), grid, block, 0, st, yp, xp, wp, ym, xm, n, d, eps);
    else if (vec)
        PL_LAUNCH((k_rms_norm<BLOCK, true, Y, X, W>), grid, block, 0, st, yp, xp, wp, ym, xm, n, d, eps);
    else
        PL_LAUNCH((k_rms_norm<BLOCK, false, Y, X, W>), grid, block, 0, st, yp, xp, wp, ym, xm, n, d, eps);
}

extern "C" int pl_cuda_rms_norm(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, float eps,
                                pl_err *err)
{
    cudaStream_t st = pl_cuda_impl(s)->stream;
    if (y->layout != PL_ROWS || x->layout != PL_ROWS || w->layout != PL_ROWS)
        return pl_fail(err, PL_EDTYPE, "rms_norm: packed tensors, want rows");
    if (pl_rows(x) > 0x7fffffff)
        return pl_fail(err, PL_ELIMIT, "rms_norm: %lld rows, want at most 2^31", (long long)pl_rows(x));
    if (!pl_rows(x) || !pl_cols(x)) return PL_OK;
    PL_CUDA_TRY(cudaSetDevice(pl_cuda_impl(s)->device), "rms_norm", err);
    const int key = y->dtype * 10000 + x->dtype * 100 + w->dtype;
    switch (key) {
    case PL_F32 * 10000 + PL_F32 * 100 + PL_F32:
        launch<float, float, float>(st, y, x, w, eps);
        break;
    case PL_F32 * 10000 + PL_F32 * 100 + PL_BF16:
        launch<float, float, uint16_t>(st, y, x, w, eps);
        break;
    case PL_BF16 * 10000 + PL_BF16 * 100 + PL_F32:
        launch<uint16_t, uint16_t, float>(st, y, x, w, eps);
        break;
    case PL_BF16 * 10000 + PL_BF16 * 100 + PL_BF16:
        launch<uint16_t, uint16_t, uint16_t>(st, y, x, w, eps);
        break;
    case PL_BF16 * 10000 + PL_F32 * 100 + PL_F32:
        launch<uint16_t, float, float>(st, y, x, w, eps);
        break;
    case PL_BF16 * 10000 + PL_F32 * 100 + PL_BF16:
        launch<uint16_t, float, uint16_t>(st, y, x, w, eps);
        break;
    default:
        return pl_fail(err, PL_EDTYPE, "rms_norm: no CUDA kernel for formats %d, %d, %d of y, x, w", y->dtype, x->dtype,
                       w->dtype);
    }
    PL_CUDA_TRY(cudaGetLastError(), "rms_norm", err);
    return PL_OK;
}
