// linear.cu: y[T,N] = x[T,K] w[N,K]^T + b. Two kernels: k_vec for few tokens and for every format, k_tile on tensor
// cores for BF16 weights with BF16 activations.
//
// Bound. Up to about 180 tokens (H100: 600 TFLOP/s by mma.sync over 3.35 TB/s, 2 operations for 2 bytes of weight and
// token) the reading of w: N K 2 bytes, once if the tokens fit one tile. Above that the tensor cores.
//   T <= 4:    k_vec. 4 warps share K for 4 or 8 rows of w; 16-byte loads, no shared memory but the last sum. x comes from
//              the L1: 4 T bytes for 2 ROWS bytes of w, hence 8 rows from 3 tokens on.
//   T <= 64 or few tiles: k_tile with 32 rows of w a block, so that N = 4096 gives 128 blocks for 132 multiprocessors;
//              4 warps share K. Each block keeps 3 x (8 + 4..16) KB of copies in flight.
//   else:      k_tile 128 x 128, 4 warps of 64 x 64, 3 stages of 32 KB, two blocks a multiprocessor. L2 traffic of a
//              block and K step of 64: 32 KB for 2.1 MFLOP.
// x is rounded to BF16 once, into scratch (T K (4 + 2) bytes), tokens in chunks that fit; rows there are padded with
// zeros to the K step, so only w has a tail in K. Shared tiles are rows of 64 or 128 values in 16-byte chunks, chunk c of
// row r at c ^ (r & 7): ldmatrix and cp.async are free of bank conflicts. w is the m side of the mma, tokens the n side:
// their number is then padded to 8, not 16. Sums are float, in one order for one kernel; which kernel runs depends on T.
#include "common.cuh"

enum { THREADS = 128, WARPS = 4 };

// k_round: x in BF16, rows padded with zeros to `pitch`.
__global__ void __launch_bounds__(256) k_round(uint16_t *xb, int64_t pitch, const float *x, int64_t stride, int64_t k)
{
    const float *from = x + blockIdx.y * stride;
    uint32_t *to = (uint32_t *)(xb + blockIdx.y * pitch);
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; // a pair
    if (2 * i >= pitch) return;
    to[i] = pl_bf16x2(2 * i < k ? from[2 * i] : 0.f, 2 * i + 1 < k ? from[2 * i + 1] : 0.f);
}

// A block's tile: BN rows of w by BT tokens, K in steps of BK through STAGES buffers. Warps: WN x WT over the tile, WK
// over the 16-wide slices of a step.
template <int BN_, int BT_, int BK_, int WN_, int WT_, int WK_> struct tile_shape {
    static constexpr int BN = BN_, BT = BT_, BK = BK_, WN = WN_, WT = WT_, WK = WK_, STAGES = 3;
    static constexpr int MI = BN / WN / 16, NI = BT / WT / 8; // mma tiles of a warp
    static constexpr int W_VALUES = BN * BK, STAGE_VALUES = (BN + BT) * BK;
    static constexpr int SUM_BYTES = WK > 1 ? (WK - 1) * BN *BT * 4 : 0;
    static constexpr int SMEM = STAGES * STAGE_VALUES * 2 > SUM_BYTES ? STAGES *STAGE_VALUES * 2 : SUM_BYTES;
    static_assert(WN * WT * WK == WARPS && BN % (16 * WN) == 0 && BT % (16 * WT) == 0 && BK % (16 * WK) == 0, "");
};
typedef tile_shape<128, 128, 64, 2, 2, 1> tile_128;
typedef tile_shape<32, 64, 128, 1, 1, 4> tile_64;
typedef tile_shape<32, 32, 128, 1, 1, 4> tile_32;
typedef tile_shape<32, 16, 128, 1, 1, 4> tile_16;

struct tile_args {
    float *y;
    const uint16_t *x, *w; // x: rounded, padded
    const float *b;
    int64_t y_stride, x_stride, w_stride, n, t, k;
};

// Copies rows [row0, row0 + ROWS) x columns [k0, k0 + BK) of a matrix of `rows` x `k` into a tile; outside are zeros.
// VEC: its rows are aligned to 16 bytes; otherwise value by value (odd K in a file's rows).
template <int ROWS, int BK, bool VEC>
PL_DEVICE void copy_tile(uint16_t *tile, const uint16_t *m, int64_t stride, int64_t row0, int64_t rows, int64_t k0,
                         int64_t k)
{
    constexpr int CHUNKS = BK / 8;
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS;
        const int64_t row = row0 + r, at = k0 + 8 * c;
        uint16_t *to = tile + r * BK + (c ^ (r & 7)) * 8;
        int64_t left = row < rows ? k - at : 0;
        left = left < 0 ? 0 : left > 8 ? 8 : left;
        const uint16_t *from = m + (left ? row * stride + at : 0);
        if (VEC) {
            pl_cp_async16(to, from, (int)left * 2);
            continue;
        }
        uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j < left) v[j >> 1] |= (uint32_t)from[j] << 16 * (j & 1);
        pl_st(to, make_uint4(v[0], v[1], v[2], v[3]));
    }
}

// The four 8x8 matrices at (row0, 16 s) of a tile: rows 0-7 and 8-15, each with columns 0-7 and 8-15. As the mma's `a`
// the order is (rows 0, 8), then columns; as two neighbouring `b` it is columns first.
template <int BK> PL_DEVICE const uint16_t *fragment(const uint16_t *tile, int row0, int s, bool a)
{
    const int lane = threadIdx.x & 31;
    const int r = row0 + (lane & 7) + 8 * (a ? lane >> 3 & 1 : lane >> 4), c = 2 * s + (a ? lane >> 4 : lane >> 3 & 1);
    return tile + r * BK + (c ^ (r & 7)) * 8;
}

template <class S, bool VEC> __global__ void __launch_bounds__(THREADS, 2) k_tile(tile_args p)
{
    PL_DYN_SMEM(uint16_t, smem);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    const int wk = warp % S::WK, wt = warp / S::WK % S::WT, wn = warp / S::WK / S::WT;
    const int64_t n0 = (int64_t)blockIdx.x * S::BN, t0 = (int64_t)blockIdx.y * S::BT;
    const int steps = (int)((p.k + S::BK - 1) / S::BK);
    float acc[S::MI][S::NI][4];
#pragma unroll
    for (int i = 0; i < S::MI; i++)
#pragma unroll
        for (int j = 0; j < S::NI; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][j][e] = 0.f;

    const auto load = [&](int step) {
        uint16_t *to = smem + step % S::STAGES * S::STAGE_VALUES;
        copy_tile<S::BN, S::BK, VEC>(to, p.w, p.w_stride, n0, p.n, (int64_t)step * S::BK, p.k);
        copy_tile<S::BT, S::BK, true>(to + S::W_VALUES, p.x, p.x_stride, t0, p.t, (int64_t)step * S::BK, p.x_stride);
    };
    for (int step = 0; step < S::STAGES - 1; step++) {
        if (step < steps) load(step);
        pl_cp_commit();
    }
    for (int step = 0; step < steps; step++) {
        pl_cp_wait<S::STAGES - 2>();
        __syncthreads(); // step's tile is there for all, and all are done with the one that is overwritten next
        if (step + S::STAGES - 1 < steps) load(step + S::STAGES - 1);
        pl_cp_commit();
        const uint16_t *w_tile = smem + step % S::STAGES * S::STAGE_VALUES, *x_tile = w_tile + S::W_VALUES;
#pragma unroll
        for (int turn = 0; turn < S::BK / 16 / S::WK; turn++) {
            const int s = turn * S::WK + wk;       // the slice of the step
            uint32_t a[S::MI][4], b[S::NI / 2][4]; // b: two tiles of 8 tokens each
#pragma unroll
            for (int i = 0; i < S::MI; i++) pl_ldmatrix4(a[i], fragment<S::BK>(w_tile, (wn * S::MI + i) * 16, s, true));
#pragma unroll
            for (int j = 0; j < S::NI / 2; j++)
                pl_ldmatrix4(b[j], fragment<S::BK>(x_tile, (wt * S::NI / 2 + j) * 16, s, false));
#pragma unroll
            for (int i = 0; i < S::MI; i++)
#pragma unroll
                for (int j = 0; j < S::NI; j++) pl_mma_bf16(acc[i][j], a[i], b[j / 2] + 2 * (j & 1), acc[i][j]);
        }
    }
    // warps that share K: the others leave their sums in shared memory, the first adds them in order
    if (S::WK > 1) {
        float *sum = (float *)smem;
        pl_cp_wait<0>();
        __syncthreads();                             // the tiles are no longer needed
        constexpr int PART = S::MI * S::NI * 4 * 32; // [MI][NI][4][lane], of one warp
#pragma unroll
        for (int i = 0; i < S::MI * S::NI * 4; i++)
            if (wk > 0) sum[(wk - 1) * PART + i * 32 + lane] = acc[i / (4 * S::NI)][i / 4 % S::NI][i % 4];
        __syncthreads();
        if (wk > 0) return;
#pragma unroll
        for (int i = 0; i < S::MI * S::NI * 4; i++)
            for (int other = 0; other < S::WK - 1; other++)
                acc[i / (4 * S::NI)][i / 4 % S::NI][i % 4] += sum[other * PART + i * 32 + lane];
    }
#pragma unroll
    for (int i = 0; i < S::MI; i++)
#pragma unroll
        for (int j = 0; j < S::NI; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t n = n0 + (wn * S::MI + i) * 16 + g + 8 * (e >> 1);
                const int64_t t = t0 + (wt * S::NI + j) * 8 + 2 * q + (e & 1);
                if (n < p.n && t < p.t) p.y[t * p.y_stride + n] = acc[i][j][e] + (p.b ? p.b[n] : 0.f);
            }
}

// Eight values of a row in float, by 16-byte loads or one by one; from `left` on they are zeros.
struct bf16 {
    uint16_t u;
};
struct f16 {
    uint16_t u;
};
PL_DEVICE float value(float f) { return f; }
PL_DEVICE float value(bf16 h) { return pl_lo_bf16(h.u); }
PL_DEVICE float value(f16 h) { return pl_from_f16(h.u); }
PL_DEVICE void whole8(float v[8], const float *p)
{
    const float4 a = pl_ld<float4>(p), b = pl_ld<float4>(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
PL_DEVICE void whole8(float v[8], const bf16 *p)
{
    const uint4 u = pl_ld_stream(p);
    const uint32_t r[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = i & 1 ? pl_hi_bf16(r[i / 2]) : pl_lo_bf16(r[i / 2]);
}
PL_DEVICE void whole8(float v[8], const f16 *p)
{
    const uint4 u = pl_ld_stream(p);
    const uint32_t r[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = pl_from_f16((uint16_t)(r[i / 2] >> 16 * (i & 1)));
}
template <bool VEC, class E> PL_DEVICE void load8(float v[8], const E *p, int left)
{
    if constexpr (VEC) {
        whole8(v, p);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = i < left ? value(p[i]) : 0.f;
    }
}

struct vec_args {
    float *y;
    const float *x, *b;
    const void *w;
    int64_t y_stride, x_stride, w_stride, n, t, k;
    bool round, vec; // vec: rows of x and w are aligned to 16 bytes
};

// Eight k of ROWS rows and TOK tokens; those that are not there repeat the first. All loads come before the sums.
template <bool VEC, class E, int TOK, int ROWS>
PL_DEVICE void vec_step(float acc[ROWS][TOK], const E *w, const float *x, const vec_args &p, int left, int n_rows,
                        int n_tok)
{
    float wv[ROWS][8], xv[TOK][8];
#pragma unroll
    for (int r = 0; r < ROWS; r++) load8<VEC>(wv[r], w + (r < n_rows ? r : 0) * p.w_stride, left);
#pragma unroll
    for (int t = 0; t < TOK; t++) load8<VEC>(xv[t], x + (t < n_tok ? t : 0) * p.x_stride, left);
#pragma unroll
    for (int t = 0; t < TOK; t++) {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const uint32_t u = pl_bf16x2(xv[t][i], xv[t][i + 1]);
            xv[t][i] = p.round ? pl_lo_bf16(u) : xv[t][i];
            xv[t][i + 1] = p.round ? pl_hi_bf16(u) : xv[t][i + 1];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < 8; i++) acc[r][t] = fmaf(xv[t][i], wv[r][i], acc[r][t]);
    }
}

// k_vec: ROWS rows of w by up to TOK tokens (blockIdx.y: which); lanes and warps take turns at chunks of 8 along K.
template <class E, int TOK, int ROWS> __global__ void __launch_bounds__(THREADS) k_vec(vec_args p)
{
    __shared__ float part[WARPS][ROWS * TOK];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t n0 = (int64_t)blockIdx.x * ROWS, t0 = (int64_t)blockIdx.y * TOK;
    const int n_rows = (int)(p.n - n0 < ROWS ? p.n - n0 : ROWS), n_tok = (int)(p.t - t0 < TOK ? p.t - t0 : TOK);
    const E *w = (const E *)p.w + n0 * p.w_stride;
    const float *x = p.x + t0 * p.x_stride;
    float acc[ROWS][TOK];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int t = 0; t < TOK; t++) acc[r][t] = 0.f;
    for (int64_t k = 8 * threadIdx.x; k < p.k; k += 8 * THREADS) {
        if (p.vec && p.k - k >= 8)
            vec_step<true, E, TOK, ROWS>(acc, w + k, x + k, p, 8, n_rows, n_tok);
        else
            vec_step<false, E, TOK, ROWS>(acc, w + k, x + k, p, p.k - k < 8 ? (int)(p.k - k) : 8, n_rows, n_tok);
    }
#pragma unroll
    for (int i = 0; i < ROWS * TOK; i++) {
        const float v = pl_warp_sum(acc[i / TOK][i % TOK]);
        if (lane == 0) part[warp][i] = v;
    }
    __syncthreads();
    const int r = threadIdx.x / TOK, t = threadIdx.x % TOK;
    if (r >= n_rows || t >= n_tok) return;
    float v = part[0][threadIdx.x];
    for (int i = 1; i < WARPS; i++) v += part[i][threadIdx.x];
    p.y[(t0 + t) * p.y_stride + n0 + r] = v + (p.b ? p.b[n0 + r] : 0.f);
}

template <class E> static void launch_vec(cudaStream_t st, const vec_args &p)
{
    const dim3 block(THREADS);
    if (p.t == 1)
        PL_LAUNCH((k_vec<E, 1, 4>), dim3((unsigned)((p.n + 3) / 4)), block, 0, st, p);
    else if (p.t == 2)
        PL_LAUNCH((k_vec<E, 2, 4>), dim3((unsigned)((p.n + 3) / 4)), block, 0, st, p);
    else
        PL_LAUNCH((k_vec<E, 4, 8>), dim3((unsigned)((p.n + 7) / 8), (unsigned)((p.t + 3) / 4)), block, 0, st, p);
}

template <class S, bool VEC> static void launch_tile(cudaStream_t st, const tile_args &p)
{
    PL_LAUNCH((k_tile<S, VEC>), dim3((unsigned)((p.n + S::BN - 1) / S::BN), (unsigned)((p.t + S::BT - 1) / S::BT)),
              dim3(THREADS), S::SMEM, st, p);
}
static void choose_tile(const pl_cuda_dev *d, const tile_args &p, bool vec)
{
    const int64_t big = (p.n + 127) / 128 * ((p.t + 127) / 128);
    if (!vec) return launch_tile<tile_64, false>(d->stream, p);
    if (p.t > 64 && 2 * big >= d->n_sm) return launch_tile<tile_128, true>(d->stream, p);
    if (p.t > 32) return launch_tile<tile_64, true>(d->stream, p);
    if (p.t > 16) return launch_tile<tile_32, true>(d->stream, p);
    return launch_tile<tile_16, true>(d->stream, p);
}

template <class S, bool VEC> static cudaError_t allow_smem()
{
    return cudaFuncSetAttribute((const void *)k_tile<S, VEC>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM);
}
// More than 48 KB of shared memory must be asked for, once a device.
extern "C" int pl_cuda_linear_open(pl_err *err)
{
    PL_CUDA_TRY((allow_smem<tile_64, false>()), "linear", err);
    PL_CUDA_TRY((allow_smem<tile_128, true>()), "linear", err);
    PL_CUDA_TRY((allow_smem<tile_64, true>()), "linear", err);
    PL_CUDA_TRY((allow_smem<tile_32, true>()), "linear", err);
    PL_CUDA_TRY((allow_smem<tile_16, true>()), "linear", err);
    return PL_OK;
}

// Tokens in chunks whose rounded rows fit the scratch (and a grid's height).
static int tiles(const pl_cuda_dev *d, tile_args p, const float *x, int64_t x_stride, bool vec, pl_err *err)
{
    const int64_t pitch = pl_round_up(p.k, 128), all = p.t;
    const int64_t fit = pl_min(d->scratch_bytes / (2 * pitch), 65535);
    const int64_t chunk = fit < 128 ? fit : fit / 128 * 128;
    if (chunk < 1)
        return pl_fail(err, PL_ELIMIT, "linear: K = %lld, want at most %lld", (long long)p.k,
                       (long long)d->scratch_bytes / 2);
    uint16_t *xb = (uint16_t *)d->scratch;
    float *y = p.y;
    p.x = xb;
    p.x_stride = pitch;
    for (int64_t t = 0; t < all; t += chunk) {
        p.t = pl_min(chunk, all - t);
        p.y = y + t * p.y_stride;
        PL_LAUNCH(k_round, dim3((unsigned)((pitch / 2 + 255) / 256), (unsigned)p.t), dim3(256), 0, d->stream, xb, pitch,
                  x + t * x_stride, x_stride, p.k);
        choose_tile(d, p, vec);
    }
    return PL_OK;
}

extern "C" int pl_cuda_linear(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, const pl_tensor *b,
                              int act, pl_err *err)
{
    const pl_cuda_dev *d = pl_cuda_impl(s);
    const int64_t n = w->dim[0], k = w->dim[1], t = x->dim[0], size = w->dtype == PL_F32 ? 4 : 2;
    if (x->dtype != PL_F32 || y->dtype != PL_F32 || (b && b->dtype != PL_F32))
        return pl_fail(err, PL_EDTYPE, "linear: x, y or b not in f32");
    if (w->dtype != PL_F32 && w->dtype != PL_F16 && w->dtype != PL_BF16)
        return pl_fail(err, PL_EDTYPE, "linear: no CUDA kernel for weights of format %d", w->dtype);
    if (act != PL_ACT_BF16 && act != PL_ACT_F32) return pl_fail(err, PL_EARG, "linear: act %d", act);
    if (n > INT32_MAX || t > INT32_MAX || k > INT32_MAX) return pl_fail(err, PL_ELIMIT, "linear: a size above 2^31");
    if (!n || !t) return PL_OK;
    PL_CUDA_TRY(cudaSetDevice(d->device), "linear", err);
    const bool packed = w->layout == PL_PACKED;
    const int64_t w_stride = packed ? pl_round_up(k, PL_CUDA_PACK) : w->stride[0];
    const bool w_vec = packed || pl_rows_aligned(w, size);
    const float *bias = b ? (const float *)b->data : NULL, *xp = (const float *)x->data;
    if (t > 4 && w->dtype == PL_BF16 && act == PL_ACT_BF16) {
        const tile_args p = {
            (float *)y->data, NULL, (const uint16_t *)w->data, bias, y->stride[0], 0, w_stride, n, t, k};
        PL_TRY(tiles(d, p, xp, x->stride[0], w_vec, err));
    } else {
        const int64_t chunk = 4 * 65535; // a grid's height, in tokens
        for (int64_t at = 0; at < t; at += chunk) {
            vec_args p = {};
            p.y = (float *)y->data + at * y->stride[0];
            p.x = xp + at * x->stride[0];
            p.b = bias;
            p.w = w->data;
            p.y_stride = y->stride[0];
            p.x_stride = x->stride[0];
            p.w_stride = w_stride;
            p.n = n;
            p.t = pl_min(chunk, t - at);
            p.k = k;
            p.round = act == PL_ACT_BF16;
            p.vec = w_vec && pl_rows_aligned(x, 4);
            if (w->dtype == PL_F32)
                launch_vec<float>(d->stream, p);
            else if (w->dtype == PL_F16)
                launch_vec<f16>(d->stream, p);
            else
                launch_vec<bf16>(d->stream, p);
        }
    }
    PL_CUDA_TRY(cudaGetLastError(), "linear", err);
    return PL_OK;
}
