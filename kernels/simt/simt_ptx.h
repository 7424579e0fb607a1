// simt_ptx.h: the instructions of kernels/cuda/ptx.cuh on the CPU, in the same order and with the same names. The
// fragment layouts are those of the PTX manual; tests/gpu/selftest.cu checks each function on both sides.
#pragma once
#include "simt.h"
extern "C" {
#include "base.h"
}

namespace simt
{
inline float bf16_f32(uint32_t u) { return bits<float>(u << 16); }
} // namespace simt

// bits
template <int LUT> inline uint32_t pl_lop3(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d = 0;
    for (int k = 0; k < 8; k++)
        if (LUT >> k & 1) d |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    return d;
}
inline uint32_t pl_prmt(uint32_t a, uint32_t b, uint32_t sel) { return __byte_perm(a, b, sel); }
inline float pl_ex2(float x) { return exp2f(x); }

// small floats
inline uint32_t pl_bf16x2(float lo, float hi) { return pl_f32_bf16(lo) | (uint32_t)pl_f32_bf16(hi) << 16; }
inline uint16_t pl_to_bf16(float f) { return pl_f32_bf16(f); }
inline float pl_from_f16(uint16_t h) { return pl_f16_f32(h); }

// memory
namespace simt
{
SIMT_RAW void aligned(const void *p, size_t n)
{
    if ((uintptr_t)p % n) fail(SIMT_MEM, true, "access of %zu bytes at %p is misaligned", n, p);
}
} // namespace simt
template <class V> inline V pl_ld(const void *p)
{
    simt::aligned(p, sizeof(V));
    return *(const V *)p;
}
template <class V> inline void pl_st(void *p, V v)
{
    simt::aligned(p, sizeof(V));
    *(V *)p = v;
}
inline uint4 pl_ld_stream(const void *p) { return pl_ld<uint4>(p); }
SIMT_RAW uint32_t pl_ld_acquire(const uint32_t *p)
{
    simt::hit(p, 4, simt::ACQUIRE);
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
SIMT_RAW void pl_st_release(uint32_t *p, uint32_t v)
{
    simt::hit(p, 4, simt::RELEASE);
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

// named barriers
SIMT_RAW void pl_bar_sync(int id, int n, SIMT_LOC)
{
    simt::block_bar(id, (unsigned)n, true, "bar.sync", 0, simt::RED_NONE, file, line);
}
SIMT_RAW void pl_bar_arrive(int id, int n, SIMT_LOC)
{
    simt::block_bar(id, (unsigned)n, false, "bar.arrive", 0, simt::RED_NONE, file, line);
}

// mma.sync: the leader gathers both operands from the lanes' fragments and multiplies them in float
namespace simt
{
struct MmaArg {
    const uint32_t *a, *b;
    const float *c;
    float *d;
};
template <bool F8> SIMT_RAW void mma_leader(void **p, unsigned, void *)
{
    const int per = F8 ? 4 : 2, K = 8 * per; // values in a register; depth
    float A[16][32], B[32][8], D[16][8] = {};
    const auto value = [](uint32_t r, int e) {
        return F8 ? pl_f8_f32((uint8_t)(r >> 8 * e)) : bf16_f32(r >> 16 * e & 0xffff);
    };
    for (int l = 0; l < 32; l++) {
        const MmaArg *x = (const MmaArg *)p[l];
        const int g = l >> 2, t = l & 3;
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < per; e++) A[g + (r & 1) * 8][t * per + e + (r >> 1) * 4 * per] = value(x->a[r], e);
        for (int r = 0; r < 2; r++)
            for (int e = 0; e < per; e++) B[t * per + e + r * 4 * per][g] = value(x->b[r], e);
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < 8; j++) D[i][j] += A[i][k] * B[k][j];
    for (int l = 0; l < 32; l++) {
        const MmaArg *x = (const MmaArg *)p[l];
        const int g = l >> 2, t = l & 3;
        for (int q = 0; q < 4; q++) x->d[q] = x->c[q] + D[g + (q >> 1) * 8][t * 2 + (q & 1)];
    }
}
} // namespace simt
SIMT_RAW void pl_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], SIMT_LOC)
{
    simt::MmaArg x{a, b, c, d};
    simt::warp_coll(0xffffffffu, "mma.m16n8k16.bf16", &x, simt::mma_leader<false>, nullptr, file, line);
}
SIMT_RAW void pl_mma_e4m3(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], SIMT_LOC)
{
    simt::MmaArg x{a, b, c, d};
    simt::warp_coll(0xffffffffu, "mma.m16n8k32.e4m3", &x, simt::mma_leader<true>, nullptr, file, line);
}

// ldmatrix: lane l names row l % 8 of matrix l / 8
namespace simt
{
struct LdmArg {
    uint32_t *r;
    const void *row;
};
template <bool TRANS> SIMT_RAW void ldmatrix_leader(void **p, unsigned, void *)
{
    uint16_t m[4][8][8];
    for (int l = 0; l < 32; l++) memcpy(m[l >> 3][l & 7], ((LdmArg *)p[l])->row, 16);
    for (int l = 0; l < 32; l++) {
        const int g = l >> 2, t = l & 3;
        for (int i = 0; i < 4; i++) {
            const uint32_t lo = TRANS ? m[i][2 * t][g] : m[i][g][2 * t];
            const uint32_t hi = TRANS ? m[i][2 * t + 1][g] : m[i][g][2 * t + 1];
            ((LdmArg *)p[l])->r[i] = lo | hi << 16;
        }
    }
}
SIMT_RAW void ldmatrix_check(const void *p)
{
    if ((uintptr_t)p & 15) fail(SIMT_MEM, true, "ldmatrix: misaligned row %p", p);
    if (hooks.access) hooks.access(p, 16, READ);
}
} // namespace simt
SIMT_RAW void pl_ldmatrix4(uint32_t r[4], const void *p, SIMT_LOC)
{
    simt::LdmArg x{r, p};
    simt::ldmatrix_check(p);
    simt::warp_coll(0xffffffffu, "ldmatrix.x4", &x, simt::ldmatrix_leader<false>, nullptr, file, line);
}
SIMT_RAW void pl_ldmatrix4_t(uint32_t r[4], const void *p, SIMT_LOC)
{
    simt::LdmArg x{r, p};
    simt::ldmatrix_check(p);
    simt::warp_coll(0xffffffffu, "ldmatrix.x4.trans", &x, simt::ldmatrix_leader<true>, nullptr, file, line);
}

// cp.async: at once, or (lazy) as late as the wait for its group
namespace simt
{
SIMT_RAW void async_run(const Async &a)
{
    if (hooks.access) {
        hooks.access(a.dst, a.n, WRITE);
        if (a.nsrc) hooks.access(a.src, a.nsrc, READ);
    }
    memcpy(a.dst, a.src, a.nsrc);
    memset((char *)a.dst + a.nsrc, 0, a.n - a.nsrc);
}
template <class T> SIMT_RAW void push(T *&list, unsigned &n, unsigned &cap, T v)
{
    if (n == cap) list = (T *)realloc((void *)list, sizeof(T) * (cap = cap ? 2 * cap : 16));
    list[n++] = v;
}
} // namespace simt
SIMT_RAW void pl_cp_async16(void *s, const void *g, int src_bytes = 16)
{
    if (((uintptr_t)s | (uintptr_t)g) & 15)
        simt::fail(SIMT_MEM, true, "cp.async: misaligned (shared %p global %p)", s, g);
    if (src_bytes < 0 || src_bytes > 16) simt::fail(SIMT_MEM, true, "cp.async: %d source bytes", src_bytes);
    simt::Thr *t = simt::tls.cur;
    const simt::Async a{s, g, 16, (unsigned)src_bytes};
    if (!simt::lazy()) {
        simt::async_run(a);
        return;
    }
    if (simt::hooks.access) simt::hooks.access(s, 16, simt::WRITE); // it may land at any time from here to the wait
    simt::push(t->aq, t->naq, t->caq, a);
}
SIMT_RAW void pl_cp_commit()
{
    simt::Thr *t = simt::tls.cur;
    if (simt::lazy()) simt::push(t->grp, t->ngrp, t->cgrp, t->naq);
}
template <int N> SIMT_RAW void pl_cp_wait()
{
    simt::Thr *t = simt::tls.cur;
    if (!simt::lazy() || t->ngrp <= N) return;
    const unsigned done = t->ngrp - N, upto = t->grp[done - 1];
    for (unsigned i = 0; i < upto; i++) simt::async_run(t->aq[i]);
    memmove((void *)t->aq, t->aq + upto, (t->naq - upto) * sizeof *t->aq);
    t->naq -= upto;
    for (unsigned i = done; i < t->ngrp; i++) t->grp[i - done] = t->grp[i] - upto;
    t->ngrp = N;
}
