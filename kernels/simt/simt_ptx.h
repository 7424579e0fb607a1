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

// mbarrier and bulk copies
namespace simt
{
union Mbar {
    uint64_t u;
    struct {
        uint64_t phase : 1, expect : 20, pending : 20;
        int64_t bytes : 23;
    } f;
};
SIMT_RAW void mbar_step(Mbar *m)
{
    if (m->f.pending == 0 && m->f.bytes == 0) {
        m->f.phase ^= 1;
        m->f.pending = m->f.expect;
    }
    progress();
}
struct Bulk {
    void *dst;
    const void *src;
    unsigned n;
    uint64_t *bar;
};
SIMT_RAW void bulk_land(void *v)
{
    const Bulk *x = (const Bulk *)v;
    Mbar *m = (Mbar *)x->bar;
    if (hooks.access) hooks.access(x->dst, x->n, LANDED);
    memcpy(x->dst, x->src, x->n);
    m->f.bytes -= x->n;
    mbar_step(m);
}
SIMT_RAW uint32_t smem_offset(const void *p)
{
    const ptrdiff_t at = (const unsigned char *)p - tls.dyn;
    if (at < 0 || at > (ptrdiff_t)tls.dyn_bytes) fail(SIMT_MEM, true, "wgmma operand outside dynamic shared memory");
    return (uint32_t)at;
}
} // namespace simt
SIMT_RAW void pl_mbar_init(uint64_t *b, unsigned count)
{
    simt::Mbar m;
    m.u = 0;
    m.f.expect = m.f.pending = count;
    *b = m.u;
}
SIMT_RAW void pl_mbar_arrive(uint64_t *b)
{
    simt::Mbar *m = (simt::Mbar *)b;
    if (simt::hooks.obj) simt::hooks.obj(b, true, false);
    if (!m->f.pending) simt::fail(SIMT_ASYNC, true, "mbarrier: more arrivals than its count, or not initialised");
    m->f.pending--;
    simt::mbar_step(m);
}
inline void pl_mbar_fence_init() {}
SIMT_RAW void pl_mbar_expect(uint64_t *b, unsigned bytes)
{
    ((simt::Mbar *)b)->f.bytes += bytes;
    pl_mbar_arrive(b);
}
SIMT_RAW void pl_mbar_wait(uint64_t *b, unsigned parity, SIMT_LOC)
{
    while (((simt::Mbar *)b)->f.phase == (parity & 1)) simt::poll("mbarrier.wait", file, line);
    if (simt::hooks.obj) simt::hooks.obj(b, false, true);
}
inline void pl_fence_async() {} // its absence is not noticed

// wgmma: the leader of 128 threads queues the product; it runs at once, or (lazy) at the wait for its group
namespace simt
{
struct WgmmaArg {
    uint64_t a, b;
    float *d;
    int keep;
};
struct WgmmaOp {
    uint64_t a, b;
    float *d[128];
    int keep[128];
};
struct WgmmaQueue { // of a warpgroup, in the block `serial`
    unsigned long serial;
    WgmmaOp op[64];
    unsigned n, group[64], n_groups;
};
SIMT_RAW uint32_t wgmma_field(uint64_t desc, int shift) { return (uint32_t)(desc >> shift & 0x3FFF) << 4; }
SIMT_RAW float wgmma_value(uint64_t desc, int r, int k)
{
    const uint32_t start = wgmma_field(desc, 0), lbo = wgmma_field(desc, 16), sbo = wgmma_field(desc, 32);
    const uint32_t layout = (uint32_t)(desc >> 62), rows = start + (uint32_t)(r / 8) * sbo, r8 = (uint32_t)r % 8;
    uint32_t at = rows + (uint32_t)(k / 8) * lbo + r8 * 16 + (uint32_t)(k % 8) * 2;
    if (layout) {
        at = rows + r8 * (256u >> layout) + (uint32_t)k * 2;
        at ^= (at >> 7 & ((1u << (4 - layout)) - 1)) << 4; // 128: 7, 64: 3, 32: 1
    }
    if (at + 2 > tls.dyn_bytes) fail(SIMT_MEM, true, "wgmma operand at +%u, shared memory has %u", at, tls.dyn_bytes);
    uint16_t v;
    memcpy(&v, tls.dyn + at, 2);
    return bf16_f32(v);
}
SIMT_RAW void wgmma_run(const WgmmaOp &x)
{
    float a[64][16], b[64][16];
    for (int r = 0; r < 64; r++)
        for (int k = 0; k < 16; k++) {
            a[r][k] = wgmma_value(x.a, r, k);
            b[r][k] = wgmma_value(x.b, r, k);
        }
    for (int i = 0; i < 128; i++)
        for (int j = 0; j < 32; j++) {
            const int row = 16 * (i >> 5) + (i & 31) / 4 + (j >> 1 & 1) * 8, col = 8 * (j >> 2) + 2 * (i & 3) + (j & 1);
            float s = 0;
            for (int k = 0; k < 16; k++) s += a[row][k] * b[col][k];
            x.d[i][j] = (x.keep[i] ? x.d[i][j] : 0.f) + s;
        }
}
SIMT_RAW WgmmaQueue &wgmma_queue(unsigned warpgroup)
{
    void *&p = slot();
    if (!p) p = calloc(8, sizeof(WgmmaQueue));
    WgmmaQueue &q = ((WgmmaQueue *)p)[warpgroup];
    if (q.serial != block_serial()) {
        q.serial = block_serial();
        q.n = q.n_groups = 0;
    }
    return q;
}
SIMT_RAW void wgmma_issue(void **p, unsigned, void *)
{
    WgmmaQueue &q = wgmma_queue(tls.cur->lin >> 7);
    if (q.n == 64) fail(SIMT_ASYNC, true, "more than 64 wgmma in flight");
    WgmmaOp &x = q.op[q.n++];
    x.a = ((WgmmaArg *)p[0])->a;
    x.b = ((WgmmaArg *)p[0])->b;
    for (unsigned i = 0; i < 128; i++) {
        const WgmmaArg *arg = (const WgmmaArg *)p[i];
        x.d[i] = arg->d;
        x.keep[i] = arg->keep;
        if (arg->a != x.a || arg->b != x.b)
            fail(SIMT_DIVERGENCE, true, "wgmma: threads 0 and %u name other operands", i);
    }
    if (!lazy_mma()) wgmma_run(x);
}
SIMT_RAW void wgmma_group_end(void **, unsigned, void *)
{
    WgmmaQueue &q = wgmma_queue(tls.cur->lin >> 7);
    q.group[q.n_groups++ & 63] = q.n;
}
SIMT_RAW void wgmma_finish(void **, unsigned, void *newest) // all groups but the newest
{
    WgmmaQueue &q = wgmma_queue(tls.cur->lin >> 7);
    const unsigned keep = *(const unsigned *)newest;
    if (q.n_groups <= keep) return;
    const unsigned done = q.n_groups - keep, upto = q.group[done - 1];
    for (unsigned i = 0; lazy_mma() && i < upto; i++) wgmma_run(q.op[i]);
    for (unsigned i = upto; i < q.n; i++) q.op[i - upto] = q.op[i];
    for (unsigned i = done; i < q.n_groups; i++) q.group[i - done] = q.group[i] - upto;
    q.n -= upto;
    q.n_groups = keep;
}
SIMT_RAW void wgmma_overwrite(const void *dst, unsigned n) // is it still being read?
{
    if (!slot()) return;
    const uint32_t to = (uint32_t)((const unsigned char *)dst - tls.dyn);
    for (unsigned w = 0; w < 8; w++) {
        const WgmmaQueue &q = ((WgmmaQueue *)slot())[w];
        for (unsigned i = 0; q.serial == block_serial() && i < 2 * q.n; i++) {
            const uint64_t desc = i & 1 ? q.op[i / 2].b : q.op[i / 2].a;
            const uint32_t start = wgmma_field(desc, 0), end = start + 8 * wgmma_field(desc, 32);
            if (to < end && start < to + n)
                fail(SIMT_ASYNC, true, "copy into shared +%u..%u, which a wgmma of warpgroup %u still reads", to,
                     to + n, w);
        }
    }
}
} // namespace simt
SIMT_RAW void pl_bulk_copy(void *s, const void *g, unsigned bytes, uint64_t *b)
{
    if (((uintptr_t)s | (uintptr_t)g | bytes) & 15)
        simt::fail(SIMT_MEM, true, "cp.async.bulk: %p, %p, %u bytes, want multiples of 16", s, g, bytes);
    simt::wgmma_overwrite(s, bytes);
    if (simt::hooks.access) simt::hooks.access(g, bytes, simt::READ);
    const simt::Bulk x{s, g, bytes, b};
    simt::defer(simt::bulk_land, &x, sizeof x);
}
inline uint64_t pl_wgmma_desc(const void *s, unsigned lbo, unsigned sbo, unsigned swizzle)
{
    const uint64_t layout = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return (uint64_t)((simt::smem_offset(s) & 0x3FFFF) >> 4) | (uint64_t)(lbo >> 4) << 16 | (uint64_t)(sbo >> 4) << 32 |
           layout << 62;
}
SIMT_RAW void pl_wgmma_fence(SIMT_LOC) { simt::group_coll(128, "wgmma.fence", nullptr, nullptr, nullptr, file, line); }
SIMT_RAW void pl_wgmma_commit(SIMT_LOC)
{
    simt::group_coll(128, "wgmma.commit", nullptr, simt::wgmma_group_end, nullptr, file, line);
}
template <int N> SIMT_RAW void pl_wgmma_wait(SIMT_LOC)
{
    unsigned keep = N;
    simt::group_coll(128, "wgmma.wait", nullptr, simt::wgmma_finish, &keep, file, line);
}
SIMT_RAW void pl_wgmma_m64n64k16(float d[32], uint64_t a, uint64_t b, int keep, SIMT_LOC)
{
    simt::WgmmaArg x{a, b, d, keep};
    simt::group_coll(128, "wgmma.m64n64k16", &x, simt::wgmma_issue, nullptr, file, line);
}
