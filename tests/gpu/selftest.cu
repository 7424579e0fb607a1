// selftest.cu: each instruction of kernels/cuda/ptx.cuh, and what kernels/simt adds to it, against values worked out
// here. The same program runs on a device (nvcc) and on the CPU (g++): on a device it validates the wrappers, and with
// them everything that the CPU build has tested. The kernels at the end have bugs that only the emulation must report.
#include "ptx.cuh"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

static int fails;
#define CHECK(c, ...)                                        \
    do {                                                     \
        if (!(c)) {                                          \
            fails++;                                         \
            printf("FAIL selftest.cu:%d %s ", __LINE__, #c); \
            printf(__VA_ARGS__);                             \
            puts("");                                        \
        }                                                    \
    } while (0)
#define FULL 0xffffffffu

// Device memory with a copy on the host.
template <class T> struct buffer {
    T *d;
    std::vector<T> h;
    explicit buffer(size_t n) : d(nullptr), h(n)
    {
        CHECK(cudaMalloc((void **)&d, n * sizeof(T)) == cudaSuccess, "no memory");
        up();
    }
    ~buffer() { cudaFree(d); }
    void up() { cudaMemcpy(d, h.data(), h.size() * sizeof(T), cudaMemcpyHostToDevice); }
    void down() { cudaMemcpy(h.data(), d, h.size() * sizeof(T), cudaMemcpyDeviceToHost); }
};
static cudaStream_t st;
static void done(const char *what) // after a launch that must succeed
{
    cudaError_t e = cudaGetLastError();
    if (!e) e = cudaStreamSynchronize(st);
    CHECK(e == cudaSuccess, "%s: %s", what, cudaGetErrorString(e));
}
static uint16_t bf16(float f) // exact values only
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

__global__ void k_warp(int *o, int w)
{
    const int l = threadIdx.x & 31;
    int *r = o + threadIdx.x * 8;
    r[0] = __shfl_sync(FULL, l, 5, w);
    r[1] = __shfl_up_sync(FULL, l, 3u, w);
    r[2] = __shfl_down_sync(FULL, l, 3u, w);
    r[3] = __shfl_xor_sync(FULL, l, 5, w);
    r[4] = (int)__ballot_sync(FULL, l % 3 == 0);
    r[5] = __any_sync(FULL, l == 7) * 2 + __all_sync(FULL, l < 31);
    r[6] = (int)__match_any_sync(FULL, l / 4);
    if (l < 16)
        r[7] = __reduce_add_sync(0x0000ffffu, l); // two masks alive at once
    else
        r[7] = __reduce_max_sync(0xffff0000u, -l);
}
static void warp_test()
{
    for (int w = 32; w >= 4; w /= 2) {
        buffer<int> o(64 * 8);
        PL_LAUNCH(k_warp, dim3(1), dim3(64), 0, st, o.d, w);
        done("warp");
        o.down();
        unsigned ballot = 0;
        for (int i = 0; i < 32; i += 3) ballot |= 1u << i;
        for (int t = 0; t < 64; t++) {
            const int l = t & 31, b = l & ~(w - 1), *r = &o.h[(size_t)t * 8];
            const int want[8] = {b + (5 & (w - 1)),
                                 l - 3 < b ? l : l - 3,
                                 l + 3 > b + w - 1 ? l : l + 3,
                                 (l ^ 5) > b + w - 1 ? l : l ^ 5,
                                 (int)ballot,
                                 2,
                                 (int)(0xfu << (l & ~3)),
                                 l < 16 ? 120 : -16};
            for (int i = 0; i < 8; i++)
                CHECK(r[i] == want[i], "width %d lane %d item %d: %d, want %d", w, l, i, r[i], want[i]);
        }
    }
}

__global__ void k_atomics(float *sum, unsigned *count, unsigned long long *most)
{
    atomicAdd(sum, 0.5f);
    atomicInc(count, 1000000u);
    atomicMax(most, (unsigned long long)(blockIdx.x * 1000 + threadIdx.x));
    const int n = __syncthreads_count(threadIdx.x % 2), o = __syncthreads_or(threadIdx.x == 99),
              a = __syncthreads_and(threadIdx.x < 1000);
    if (threadIdx.x == 0 && (n != (int)blockDim.x / 2 || o != (blockDim.x > 99) || !a)) atomicAdd(count, 1u << 30);
}
static void atomics_test()
{
    buffer<float> sum(1);
    buffer<unsigned> count(1);
    buffer<unsigned long long> most(1);
    PL_LAUNCH(k_atomics, dim3(50), dim3(130), 0, st, sum.d, count.d, most.d);
    done("atomics");
    sum.down(), count.down(), most.down();
    CHECK(sum.h[0] == 3250.f && count.h[0] == 6500 && most.h[0] == 49129, "%f %u %llu", (double)sum.h[0], count.h[0],
          most.h[0]);
}

// Warp 0 hands values to warps 1..3 through named barriers 1 (full) and 2 (empty).
__global__ void k_named(int *o)
{
    __shared__ int buf[32];
    const int w = threadIdx.x >> 5, l = threadIdx.x & 31;
    int s = 0;
    for (int it = 0; it < 10; it++) {
        if (w == 0) {
            if (it) pl_bar_sync(2, 128);
            buf[l] = it * 100 + l;
            pl_bar_arrive(1, 128);
        } else {
            pl_bar_sync(1, 128);
            s += buf[(l + w) & 31];
            if (it < 9) pl_bar_arrive(2, 128);
        }
    }
    o[blockIdx.x * blockDim.x + threadIdx.x] = s;
}
static void named_test()
{
    buffer<int> o(3 * 128);
    PL_LAUNCH(k_named, dim3(3), dim3(128), 0, st, o.d);
    done("named barriers");
    o.down();
    for (int t = 32; t < 128; t++)
        CHECK(o.h[256 + (size_t)t] == 4500 + 10 * (((t & 31) + (t >> 5)) & 31), "thread %d: %d", t,
              o.h[256 + (size_t)t]);
}

// A sum over blocks: the last block to finish adds up. Without the fence it works by luck.
template <bool FENCE> __global__ void k_last_block(const float *x, float *part, unsigned *ticket, float *out, int n)
{
    __shared__ bool last;
    __shared__ float w[4];
    float s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(FULL, s, o);
    if ((threadIdx.x & 31) == 0) w[threadIdx.x >> 5] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        part[blockIdx.x] = w[0] + w[1] + w[2] + w[3];
        if (FENCE) __threadfence();
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float t = 0;
        for (unsigned b = 0; b < gridDim.x; b++) t += part[b];
        *out = t;
    }
}
static void last_block_test()
{
    buffer<float> x(1000), part(7), out(1);
    buffer<unsigned> ticket(1);
    for (float &v : x.h) v = 1;
    x.up();
    PL_LAUNCH((k_last_block<true>), dim3(7), dim3(128), 0, st, x.d, part.d, ticket.d, out.d, 1000);
    done("last block");
    out.down();
    CHECK(out.h[0] == 1000.f, "%f", (double)out.h[0]);
#ifdef PL_SIMT
    ticket.up();
    PL_LAUNCH((k_last_block<false>), dim3(7), dim3(128), 0, st, x.d, part.d, ticket.d, out.d, 1000);
    const int e = simt_status();
    CHECK(e == (simt_has_checker() ? SIMT_RACE : 0), "no fence: %d", e);
#endif
}

// Fragments as they lie in registers; the layouts are those that CuTe publishes for the two shapes: linear index
// m + 16 k of a, n + 8 k of b, m + 16 n of c from (lane, value).
__global__ void k_mma(const uint32_t *fa, const uint32_t *fb, float *o, int f8)
{
    uint32_t a[4], b[2];
    float d[4], c[4];
    for (int i = 0; i < 4; i++) {
        a[i] = fa[threadIdx.x * 4 + i];
        c[i] = (float)i;
    }
    for (int i = 0; i < 2; i++) b[i] = fb[threadIdx.x * 2 + i];
    if (f8)
        pl_mma_e4m3(d, a, b, c);
    else
        pl_mma_bf16(d, a, b, c);
    for (int q = 0; q < 4; q++) o[threadIdx.x * 4 + q] = d[q];
}
static uint8_t e4m3(float f) // small integers
{
    const float m = fabsf(f);
    if (m == 0) return 0;
    int e = 0;
    while (m >= (float)(2 << e)) e++;
    return (uint8_t)((f < 0 ? 0x80 : 0) | (e + 7) << 3 | (int)((m / (float)(1 << e) - 1) * 8));
}
static void mma_test(bool f8)
{
    const int K = f8 ? 32 : 16, per = f8 ? 4 : 2;
    float A[16][32], B[8][32];
    buffer<uint32_t> fa(128), fb(64);
    buffer<float> o(128);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < K; k++) A[i][k] = (float)((i * 7 + k * 3) % 8);
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < K; k++) B[j][k] = (float)((j * 5 + k * 2) % 8 - 3);
    const auto put = [&](std::vector<uint32_t> &f, int l, int n, int v, float x) {
        unsigned char *p = (unsigned char *)f.data() + l * n * 4;
        const uint16_t h = bf16(x);
        if (f8)
            p[v] = e4m3(x);
        else
            memcpy(p + 2 * v, &h, 2);
    };
    for (int l = 0; l < 32; l++) {
        const int t0 = l & 3, t1 = l >> 2;
        for (int v = 0; v < 4 * per; v++) {
            const int i = t0 * 32 * per / 2 + t1 + v % per * 16 + v / per % 2 * 8 + v / (2 * per) * 64 * per;
            put(fa.h, l, 4, v, A[i % 16][i / 16]);
        }
        for (int v = 0; v < 2 * per; v++) {
            const int i = t0 * 16 * per / 2 + t1 + v % per * 8 + v / per * 32 * per;
            put(fb.h, l, 2, v, B[i % 8][i / 8]);
        }
    }
    fa.up(), fb.up();
    PL_LAUNCH(k_mma, dim3(1), dim3(32), 0, st, fa.d, fb.d, o.d, (int)f8);
    done("mma");
    o.down();
    for (int l = 0; l < 32; l++)
        for (int v = 0; v < 4; v++) {
            const int at = (l & 3) * 32 + (l >> 2) + (v & 1) * 16 + (v >> 1) * 8, i = at % 16, j = at / 16;
            float s = (float)v;
            for (int k = 0; k < K; k++) s += A[i][k] * B[j][k];
            CHECK(o.h[(size_t)l * 4 + (size_t)v] == s, "f8 %d lane %d value %d: %f, want %f", f8, l, v,
                  (double)o.h[(size_t)l * 4 + (size_t)v], (double)s);
        }
}

// 16x16 by 16x8, both through shared memory; b lies there as [k][n], hence the transposing load.
__global__ void k_ldmatrix(const uint16_t *a_in, const uint16_t *b_in, float *o)
{
    __shared__ __align__(16) uint16_t sa[16][24], sb[16][16];
    const int l = threadIdx.x, g = l >> 2, t = l & 3;
    for (int i = l; i < 256; i += 32) sa[i / 16][i % 16] = a_in[i];
    for (int i = l; i < 256; i += 32) sb[i / 16][i % 16] = i % 16 < 8 ? b_in[i / 16 * 8 + i % 16] : (uint16_t)0;
    __syncwarp();
    uint32_t a[4], b[4];
    float d[4] = {0, 0, 0, 0};
    pl_ldmatrix4(a, &sa[(l & 7) + (l >> 3 & 1) * 8][(l >> 4) * 8]);
    pl_ldmatrix4_t(b, &sb[(l & 7) + (l >> 3 & 1) * 8][(l >> 4) * 8]);
    pl_mma_bf16(d, a, b, d);
    for (int q = 0; q < 4; q++) o[(g + (q >> 1) * 8) * 8 + t * 2 + (q & 1)] = d[q];
}
static void ldmatrix_test()
{
    buffer<uint16_t> a(256), b(128);
    buffer<float> o(128);
    for (int i = 0; i < 256; i++) a.h[(size_t)i] = bf16((float)(i % 23 - 11));
    for (int i = 0; i < 128; i++) b.h[(size_t)i] = bf16((float)(i % 17 - 8));
    a.up(), b.up();
    PL_LAUNCH(k_ldmatrix, dim3(1), dim3(32), 0, st, a.d, b.d, o.d);
    done("ldmatrix");
    o.down();
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            int s = 0;
            for (int k = 0; k < 16; k++) s += ((i * 16 + k) % 23 - 11) * ((k * 8 + j) % 17 - 8);
            CHECK(o.h[(size_t)(i * 8 + j)] == (float)s, "%d %d: %f, want %d", i, j, (double)o.h[(size_t)(i * 8 + j)],
                  s);
        }
}

__global__ void k_cp_async(const int *src, int *dst, int valid) // zeros from `valid` on
{
    __shared__ __align__(16) int s[128];
    int left = valid * 4 - (int)threadIdx.x * 16;
    left = left < 0 ? 0 : left > 16 ? 16 : left;
    pl_cp_async16(&s[threadIdx.x * 4], left ? src + threadIdx.x * 4 : src, left);
    pl_cp_commit();
    pl_cp_wait<0>();
    __syncthreads();
    for (int i = 0; i < 4; i++) dst[threadIdx.x * 4 + i] = s[(threadIdx.x * 4 + i + 7) & 127];
}
__global__ void k_groups(const int *src, int *dst) // three groups in flight, taken in order
{
    __shared__ __align__(16) int s[3][128];
    for (int g = 0; g < 3; g++) {
        pl_cp_async16(&s[g][threadIdx.x * 4], src + g * 128 + threadIdx.x * 4);
        pl_cp_commit();
    }
    pl_cp_wait<2>();
    __syncwarp();
    dst[threadIdx.x] = s[0][127 - threadIdx.x];
    pl_cp_wait<1>();
    __syncwarp();
    dst[32 + threadIdx.x] = s[1][127 - threadIdx.x];
    pl_cp_wait<0>();
    __syncwarp();
    dst[64 + threadIdx.x] = s[2][127 - threadIdx.x];
}
static void cp_async_test()
{
    buffer<int> src(384), dst(384);
    for (int i = 0; i < 384; i++) src.h[(size_t)i] = i;
    src.up();
    PL_LAUNCH(k_cp_async, dim3(1), dim3(32), 0, st, src.d, dst.d, 50);
    done("cp.async");
    dst.down();
    for (int i = 0; i < 128; i++)
        CHECK(dst.h[(size_t)i] == ((i + 7) % 128 < 50 ? (i + 7) % 128 : 0), "%d: %d", i, dst.h[(size_t)i]);
    PL_LAUNCH(k_groups, dim3(1), dim3(32), 0, st, src.d, dst.d);
    done("cp.async groups");
    dst.down();
    for (int i = 0; i < 96; i++) CHECK(dst.h[(size_t)i] == i / 32 * 128 + 127 - i % 32, "%d: %d", i, dst.h[(size_t)i]);
}

// Bulk copies counted by an mbarrier, several rounds. A second one, of 128 arrivals, says that the buffer is free.
__global__ void k_bulk(const int *src, int *dst, int n)
{
    PL_DYN_SMEM(int, s);
    __shared__ uint64_t full, empty;
    if (threadIdx.x == 0) {
        pl_mbar_init(&full, 1);
        pl_mbar_init(&empty, 128);
        pl_mbar_fence_init();
    }
    __syncthreads();
    for (int i = 0; i < n; i++) {
        if (threadIdx.x == 0) {
            if (i) pl_mbar_wait(&empty, (unsigned)(i - 1) & 1);
            pl_mbar_expect(&full, 512);
            pl_bulk_copy(s, src + i * 128, 512, &full);
        }
        pl_mbar_wait(&full, (unsigned)i & 1);
        dst[i * 128 + threadIdx.x] = s[threadIdx.x ^ 1] + i;
        pl_mbar_arrive(&empty);
    }
}
static void bulk_test()
{
    buffer<int> src(640), dst(640);
    for (int i = 0; i < 640; i++) src.h[(size_t)i] = i;
    src.up();
    PL_LAUNCH(k_bulk, dim3(1), dim3(128), 512, st, src.d, dst.d, 5);
    done("bulk copy");
    dst.down();
    for (int i = 0; i < 640; i++) CHECK(dst.h[(size_t)i] == (i ^ 1) + i / 128, "%d: %d", i, dst.h[(size_t)i]);
}

// 64 x 64 x 64 by four wgmma, operands with or without swizzle; without, 8x8 blocks of 128 bytes, columns first.
template <int SWIZZLE> __global__ void k_wgmma(const uint16_t *a, const uint16_t *b, float *o)
{
    PL_DYN_SMEM(uint16_t, s);
    const unsigned row = SWIZZLE ? SWIZZLE / 2 : 64; // values in a row of a tile
    for (unsigned i = threadIdx.x; i < 2 * 64 * 64; i += 128) {
        const unsigned m = i / 4096, r = i / 64 % 64, k = i % 64;
        unsigned at = (r / 8 * 8 + k / 8) * 64 + r % 8 * 8 + k % 8;
        if (SWIZZLE) {
            const unsigned byte = (k / row * 64 * row + r * row + k % row) * 2;
            at = (byte ^ (byte >> 7 & (SWIZZLE ? SWIZZLE / 16 - 1 : 0)) << 4) / 2;
        }
        s[m * 4096 + at] = (m ? b : a)[r * 64 + k];
    }
    pl_fence_async();
    __syncthreads();
    float d[32];
    for (int i = 0; i < 32; i++) d[i] = NAN;
    pl_wgmma_fence();
    for (int k = 0; k < 4; k++) {
        const unsigned per = row / 16; // slices of 16 columns
        const unsigned at = SWIZZLE ? k / per * 64 * row + k % per * 16 : (unsigned)k * 128;
        const unsigned sbo = SWIZZLE ? 8 * SWIZZLE : 1024;
        pl_wgmma_m64n64k16(d, pl_wgmma_desc(s + at, SWIZZLE ? 16 : 128, sbo, SWIZZLE),
                           pl_wgmma_desc(s + 4096 + at, SWIZZLE ? 16 : 128, sbo, SWIZZLE), k > 0);
    }
    pl_wgmma_commit();
    pl_wgmma_wait<0>();
    const int w = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    for (int j = 0; j < 32; j++) o[(16 * w + g + (j >> 1 & 1) * 8) * 64 + 8 * (j >> 2) + 2 * t + (j & 1)] = d[j];
}
template <int SWIZZLE> static void wgmma_test()
{
    buffer<uint16_t> a(4096), b(4096);
    buffer<float> o(4096);
    for (int i = 0; i < 4096; i++) {
        a.h[(size_t)i] = bf16((float)(i % 23 - 11));
        b.h[(size_t)i] = bf16((float)(i % 17 - 8));
    }
    a.up(), b.up();
    PL_LAUNCH((k_wgmma<SWIZZLE>), dim3(1), dim3(128), 16384, st, a.d, b.d, o.d);
    done("wgmma");
    o.down();
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++) {
            int sum = 0;
            for (int k = 0; k < 64; k++) sum += ((i * 64 + k) % 23 - 11) * ((j * 64 + k) % 17 - 8);
            CHECK(o.h[(size_t)(i * 64 + j)] == (float)sum, "swizzle %d at %d %d: %f, want %d", SWIZZLE, i, j,
                  (double)o.h[(size_t)(i * 64 + j)], sum);
        }
}

// Words: lop3, prmt, conversions, streaming loads.
__global__ void k_words(const uint32_t *in, uint32_t *o, const float *f, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint32_t a = in[i], b = ~a * 31u, c = a ^ b << 7;
    uint32_t *r = o + i * 8;
    r[0] = pl_lop3<0xEA>(a, b, c);
    r[1] = pl_lop3<0x96>(a, b, c);
    r[2] = pl_lop3<0xCA>(a, b, c);
    r[3] = pl_prmt(a, b, 0x7531);
    r[4] = pl_bf16x2(f[i], f[n - 1 - i]);
    r[5] = pl_to_bf16(f[i]);
    r[6] = __float_as_uint(pl_from_f16((uint16_t)i));
    r[7] = pl_ld_stream(in + i / 4 * 4).z;
}
static uint32_t round_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static uint32_t half_bits(uint32_t h) // of the float
{
    const uint32_t e = h >> 10 & 31, m = h & 1023;
    const float f = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(m + 1024), (int)e - 25) : ldexpf((float)m, -24);
    uint32_t u;
    memcpy(&u, &f, 4);
    return u | (h & 0x8000) << 16;
}
static void words_test()
{
    const int n = 65536;
    buffer<uint32_t> in(n), o(8 * n);
    buffer<float> f(n);
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        in.h[i] = i * 2654435761u;
        const uint32_t u = (i * 2246822519u & 0x807fffffu) | (i % 200 + 20) << 23; // finite, any mantissa
        memcpy(&f.h[i], &u, 4);
    }
    in.up(), f.up();
    PL_LAUNCH(k_words, dim3(n / 256), dim3(256), 0, st, in.d, o.d, f.d, n);
    done("words");
    o.down();
    int bad[8] = {0};
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        const uint32_t a = in.h[i], b = ~a * 31u, c = a ^ b << 7, *r = &o.h[(size_t)i * 8];
        bad[0] += r[0] != ((a & b) | c);
        bad[1] += r[1] != (a ^ b ^ c);
        bad[2] += r[2] != ((a & b) | (~a & c));
        bad[3] += r[3] != ((a >> 8 & 255) | (a >> 24) << 8 | (b >> 8 & 255) << 16 | b >> 24 << 24);
        bad[4] += r[4] != (round_bf16(f.h[i]) | round_bf16(f.h[(size_t)n - 1 - i]) << 16);
        bad[5] += r[5] != round_bf16(f.h[i]);
        bad[6] += r[6] != half_bits(i) && !((i & 0x7c00) == 0x7c00 && (i & 1023) && (r[6] & 0x7fffffff) > 0x7f800000);
        bad[7] += r[7] != in.h[i / 4 * 4 + 2];
    }
    for (int i = 0; i < 8; i++) CHECK(!bad[i], "item %d: %d wrong", i, bad[i]);
}

// All blocks are resident and wait for each other.
#ifdef PL_SIMT
__global__ void k_grid(uint32_t *bar, int *v, int *o)
{
    if (threadIdx.x == 0) {
        v[blockIdx.x] = (int)blockIdx.x + 1;
        __threadfence();
        atomicAdd(bar, 1u);
        while (pl_ld_acquire(bar) < gridDim.x) PL_SPIN();
    }
    __syncthreads();
    int s = 0;
    for (unsigned i = 0; i < gridDim.x; i++) s += v[i];
    if (threadIdx.x == 0) o[blockIdx.x] = s;
}
__global__ void b_exit(int *o, int n)
{
    if ((int)threadIdx.x >= n) return;
    __syncthreads();
    o[threadIdx.x] = 1;
}
__global__ void b_branch(int *o)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    o[threadIdx.x] = 1;
}
__global__ void b_mask(int *o) { o[threadIdx.x] = threadIdx.x < 8 ? __shfl_sync(0xff00u, 1, 0) : 0; }
__global__ void b_half(int *o)
{
    if (threadIdx.x < 16) o[threadIdx.x] = __shfl_sync(FULL, 1, 0);
}
__global__ void b_lane(int *o)
{
    if (threadIdx.x < 16) o[threadIdx.x] = __shfl_sync(0xffffu, (int)threadIdx.x, 20);
}
__global__ void b_mixed(int *o) { o[threadIdx.x] = threadIdx.x & 1 ? __any_sync(FULL, 1) : __all_sync(FULL, 1); }
__global__ void b_no_syncwarp(int *o)
{
    __shared__ int s[32];
    s[threadIdx.x] = (int)threadIdx.x;
    o[threadIdx.x] = s[threadIdx.x ^ 1];
}
__global__ void b_unwritten(float *o)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x + 32];
}
__global__ void b_past_end(int *o, const int *x, int n) { o[threadIdx.x] = x[threadIdx.x + n - 31]; }
__global__ void b_past_shared(int *o)
{
    PL_DYN_SMEM(int, s);
    s[threadIdx.x + 1] = 1;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x];
}
__global__ void b_lost(int *c) { *c = *c + 1; }
__global__ void b_early(const int *src, int *dst) // reads before the copy is known to have landed
{
    __shared__ __align__(16) int s[128];
    pl_cp_async16(&s[threadIdx.x * 4], src + threadIdx.x * 4);
    pl_cp_commit();
    dst[threadIdx.x] = s[threadIdx.x * 4];
    pl_cp_wait<0>();
}
__global__ void b_overwrite(const int *src) // a copy into an operand that a product still reads
{
    PL_DYN_SMEM(uint16_t, s);
    __shared__ uint64_t full;
    float d[32] = {};
    for (int i = threadIdx.x; i < 4096; i += 128) s[i] = 0;
    if (threadIdx.x == 0) pl_mbar_init(&full, 1);
    __syncthreads();
    pl_wgmma_m64n64k16(d, pl_wgmma_desc(s, 16, 1024, 128), pl_wgmma_desc(s, 16, 1024, 128), 0);
    pl_wgmma_commit();
    if (threadIdx.x == 0) {
        pl_mbar_expect(&full, 512);
        pl_bulk_copy(s, src, 512, &full);
    }
    pl_wgmma_wait<0>();
}
__global__ void b_parity() // nobody will ever arrive
{
    __shared__ uint64_t full;
    if (threadIdx.x == 0) pl_mbar_init(&full, 1);
    __syncthreads();
    pl_mbar_wait(&full, 0);
}
__global__ void b_misaligned(int *o, const int *x) { o[threadIdx.x] = (int)pl_ld<uint4>(x + 4 * threadIdx.x + 1).x; }
#define EXPECT(code, ...)                                            \
    do {                                                             \
        PL_LAUNCH(__VA_ARGS__);                                      \
        const int got_ = simt_status();                              \
        CHECK(got_ == (code), "reported %d, want %d", got_, (code)); \
        if (got_ != (code)) puts(simt_report());                     \
    } while (0)
static void rejected()
{
    buffer<int> o(1024), x(32), c(1);
    const dim3 one(1);
    EXPECT(SIMT_DIVERGENCE, b_exit, one, dim3(64), 0, st, o.d, 40);
    EXPECT(SIMT_DIVERGENCE, b_branch, one, dim3(64), 0, st, o.d);
    EXPECT(SIMT_MASK, b_mask, one, dim3(32), 0, st, o.d);
    EXPECT(SIMT_LANE, b_lane, one, dim3(32), 0, st, o.d);
    EXPECT(SIMT_DIVERGENCE, b_mixed, one, dim3(32), 0, st, o.d);
    EXPECT(SIMT_ASYNC, b_overwrite, one, dim3(128), 8192, st, o.d);
    EXPECT(SIMT_DEADLOCK, b_parity, one, dim3(32), 0, st);
    EXPECT(SIMT_MEM, b_misaligned, one, dim3(4), 0, st, o.d, x.d);
    EXPECT(SIMT_CONFIG, b_past_end, one, dim3(2048), 0, st, o.d, x.d, 1);
    EXPECT(SIMT_CONFIG, b_past_shared, one, dim3(32), 60000, st, o.d);
    PL_LAUNCH(b_half, one, dim3(64), 0, st, o.d);
    const int e = simt_status();
    CHECK(e == SIMT_DEADLOCK || e == SIMT_MASK, "%d", e);
    if (simt_has_checker()) {
        PL_LAUNCH(b_no_syncwarp, one, dim3(32), 0, st, o.d);
        const int r = simt_status();
        CHECK(r == SIMT_RACE || r == SIMT_UNINIT, "%d", r);
        EXPECT(SIMT_UNINIT, b_unwritten, one, dim3(32), 0, st, (float *)o.d);
        EXPECT(SIMT_MEM, b_past_end, one, dim3(32), 0, st, o.d, x.d, 32);
        EXPECT(0, b_past_end, one, dim3(32), 0, st, o.d, x.d, 31);
        EXPECT(SIMT_MEM, b_past_shared, one, dim3(32), 128, st, o.d);
        EXPECT(SIMT_RACE, b_lost, one, dim3(32), 0, st, c.d);
        EXPECT(SIMT_RACE, b_lost, dim3(5), one, 0, st, c.d);
        EXPECT(0, b_lost, one, one, 0, st, c.d);
#ifndef __SANITIZE_ADDRESS__
    } else {
        EXPECT(SIMT_MEM, b_past_shared, one, dim3(32), 128, st, o.d);
        buffer<uint32_t> bar(1);
        PL_LAUNCH_COOP(k_grid, dim3(12), dim3(64), 0, st, bar.d, o.d, o.d + 100);
        done("grid barrier");
        o.down();
        for (size_t i = 0; i < 12; i++) CHECK(o.h[100 + i] == 78, "%d", o.h[100 + i]);
        bar.up();
        simt_config("spin_ms", 200);
        EXPECT(SIMT_DEADLOCK, k_grid, dim3(4), dim3(64), 0, st, bar.d, o.d, o.d + 100);
#endif
    }
    // late copies show a missing wait, by the values or to the checker
    simt_config("lazy", 1);
    buffer<int> src(128), dst(32);
    for (int &v : src.h) v = 7;
    src.up();
    PL_LAUNCH(b_early, one, dim3(32), 0, st, src.d, dst.d);
    (void)simt_status();
    dst.down();
    CHECK(dst.h[3] == -1, "%d", dst.h[3]);
    simt_config("lazy", 0);
}
#endif

// Captured work runs at each launch of the graph, not before.
__global__ void k_count(int *c) { atomicAdd(c, 1); }
static void graph_test()
{
    buffer<int> c(1);
    cudaGraph_t g;
    cudaGraphExec_t x;
    CHECK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "begin");
    PL_LAUNCH(k_count, dim3(3), dim3(5), 0, st, c.d);
    CHECK(cudaStreamEndCapture(st, &g) == cudaSuccess && cudaGraphInstantiate(&x, g, 0) == cudaSuccess, "end");
    for (int i = 0; i < 2; i++) CHECK(cudaGraphLaunch(x, st) == cudaSuccess, "launch");
    done("graph");
    c.down();
    CHECK(c.h[0] == 30, "%d", c.h[0]);
    cudaGraphExecDestroy(x);
    cudaGraphDestroy(g);
}

int main()
{
    if (cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking) != cudaSuccess) {
        puts("selftest: no device");
        return 2;
    }
#ifdef PL_SIMT
    simt_config("quiet", 1);
    const int arch = 90;
    for (int i = 0; i < 6; i++) { // forward, reverse, random; copies and wgmma at once and late
        simt_config("order", i / 2);
        simt_config("lazy", i % 2 * 3);
#else
    cudaDeviceProp prop;
    cudaGetDeviceProperties(&prop, 0);
    const int arch = prop.major * 10 + prop.minor;
    {
#endif
        warp_test();
        atomics_test();
        named_test();
        last_block_test();
        mma_test(false);
        if (arch >= 89) mma_test(true);
        if (arch >= 90) bulk_test();
        if (arch == 90) {
            wgmma_test<128>();
            wgmma_test<64>();
            wgmma_test<32>();
            wgmma_test<0>();
        }
        ldmatrix_test();
        cp_async_test();
        words_test();
        graph_test();
    }
#ifdef PL_SIMT
    simt_config("order", 0);
    simt_config("lazy", 0);
    rejected();
#endif
    cudaStreamDestroy(st);
    printf("selftest: %d failure(s)\n", fails);
    return fails != 0;
}
