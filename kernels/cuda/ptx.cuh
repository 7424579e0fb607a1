// ptx.cuh: what a kernel may use beside plain CUDA C: the launch macros, and one function per PTX instruction. This is
// the only file with inline asm. Without nvcc the same names come from kernels/simt, which runs them on the CPU; the
// device half is kept to one instruction a function, because only a device can check it (tests/gpu/selftest.cu).
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifndef __CUDACC__
#include "simt.h"
#include "simt_ptx.h"
#else
#include <cuda_runtime.h>

#define PL_DEVICE __device__ __forceinline__
#define PL_LAUNCH(k, g, b, smem, st, ...) (k)<<<(g), (b), (smem), (st)>>>(__VA_ARGS__)
#define PL_DYN_SMEM(T, name)                                        \
    extern __shared__ __align__(1024) unsigned char pl_dyn_smem_[]; \
    T *name = reinterpret_cast<T *>(pl_dyn_smem_)
#define PL_SPIN() __nanosleep(64)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define PL_HAS_F8_MMA 1
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PL_HAS_BULK 1
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PL_HAS_WGMMA 1
#endif
#define PL_NOT_HERE() __trap() // an instruction that this architecture lacks: the launcher must not have come here

PL_DEVICE uint32_t pl_smem(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// bits. LUT: bit (a<<2|b<<1|c) is the result
template <int LUT> PL_DEVICE uint32_t pl_lop3(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(LUT));
    return d;
}
PL_DEVICE uint32_t pl_prmt(uint32_t a, uint32_t b, uint32_t sel) { return __byte_perm(a, b, sel); }
PL_DEVICE float pl_ex2(float x) // 2^x
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// small floats: rounded to nearest even
PL_DEVICE uint32_t pl_bf16x2(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
PL_DEVICE uint16_t pl_to_bf16(float f)
{
    uint16_t d;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(d) : "f"(f));
    return d;
}
PL_DEVICE float pl_from_f16(uint16_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

// memory. Vectors (float4, uint4, uint2) go through pl_ld and pl_st, which on the CPU check the alignment that a device
// demands; ld_stream: 16 bytes that are read once
template <class V> PL_DEVICE V pl_ld(const void *p) { return *(const V *)p; }
template <class V> PL_DEVICE void pl_st(void *p, V v) { *(V *)p = v; }
PL_DEVICE uint4 pl_ld_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
PL_DEVICE uint32_t pl_ld_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
PL_DEVICE void pl_st_release(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// named barriers 1..15, of n threads
PL_DEVICE void pl_bar_sync(int id, int n) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory"); }
PL_DEVICE void pl_bar_arrive(int id, int n) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory"); }

// mma.sync: d[16,8] = a[16,K] b[K,8] + c, float sums. Lane 4g+t holds of a the rows g, g+8 (registers 0/2, 1/3) and of
// d the rows g (0,1) and g+8 (2,3), columns 2t, 2t+1; of b the column g. K = 16 in bf16 pairs, 32 in e4m3 quadruples.
PL_DEVICE void pl_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3]));
}
PL_DEVICE void pl_mma_e4m3(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
#ifdef PL_HAS_F8_MMA
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                   "f"(c[3]));
#else
    PL_NOT_HERE();
#endif
}

// ldmatrix: four 8x8 matrices of 16 bits; lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned)
// and gets of matrix i, in r[i], row l / 4, columns 2(l % 4) and the next. _t: of the transposed matrices.
PL_DEVICE void pl_ldmatrix4(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(pl_smem(p))
                 : "memory");
}
PL_DEVICE void pl_ldmatrix4_t(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(pl_smem(p))
                 : "memory");
}

// cp.async: 16 bytes from global to shared memory, of which the last 16 - src_bytes become zeros. Groups complete in
// order: pl_cp_wait<N> returns when all but the newest N of this thread's committed groups are there.
PL_DEVICE void pl_cp_async16(void *s, const void *g, int src_bytes = 16)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(pl_smem(s)), "l"(g), "r"(src_bytes) : "memory");
}
PL_DEVICE void pl_cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> PL_DEVICE void pl_cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// mbarrier, in shared memory (sm_90): a phase ends when `count` threads have arrived and all announced bytes are there.
// Waits name the parity of the phase: 0 for the first. init is for one thread, then fence_init and a block barrier.
PL_DEVICE void pl_mbar_init(uint64_t *b, unsigned count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(pl_smem(b)), "r"(count) : "memory");
}
PL_DEVICE void pl_mbar_arrive(uint64_t *b)
{
    asm volatile("{.reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0];}" ::"r"(pl_smem(b)) : "memory");
}
#ifdef PL_HAS_BULK
PL_DEVICE void pl_mbar_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
PL_DEVICE void pl_mbar_expect(uint64_t *b, unsigned bytes) // arrives, and announces bytes
{
    asm volatile("{.reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1;}" ::"r"(pl_smem(b)), "r"(bytes)
                 : "memory");
}
PL_DEVICE void pl_mbar_wait(uint64_t *b, unsigned parity)
{
    asm volatile(
        "{.reg .pred p;\nL%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra L%=;}" ::"r"(pl_smem(b)),
        "r"(parity)
        : "memory");
}
// Bytes from global to shared memory, addresses and size multiples of 16, counted by an mbarrier.
PL_DEVICE void pl_bulk_copy(void *s, const void *g, unsigned bytes, uint64_t *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(pl_smem(s)),
        "l"(g), "r"(bytes), "r"(pl_smem(b))
        : "memory");
}
// What threads wrote to shared memory becomes visible to bulk copies and wgmma (before a barrier).
PL_DEVICE void pl_fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#else
PL_DEVICE void pl_mbar_fence_init() { PL_NOT_HERE(); }
PL_DEVICE void pl_mbar_expect(uint64_t *, unsigned) { PL_NOT_HERE(); }
PL_DEVICE void pl_mbar_wait(uint64_t *, unsigned) { PL_NOT_HERE(); }
PL_DEVICE void pl_bulk_copy(void *, const void *, unsigned, uint64_t *) { PL_NOT_HERE(); }
PL_DEVICE void pl_fence_async() { PL_NOT_HERE(); }
#endif

// wgmma (sm_90a): d[64,64] += a[64,16] b[64,16]^T in bf16, by 128 threads; both operands in dynamic shared memory, K
// along rows. Value j of thread 32w+4g+t: row 16w + g + 8(j/2%2), column 8(j/4) + 2t + j%2. `keep` 0: d starts at 0.
// A descriptor names an operand: lbo is the bytes from 8 columns to the next 8 (no swizzle), sbo from 8 rows to the next
// 8; swizzle 128, 64, 32 or 0 bytes: chunk c of 16 bytes in row r of 128 lies at c ^ (r & 7) for 128.
PL_DEVICE uint64_t pl_wgmma_desc(const void *s, unsigned lbo, unsigned sbo, unsigned swizzle)
{
    const uint64_t layout = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return (uint64_t)((pl_smem(s) & 0x3FFFF) >> 4) | (uint64_t)(lbo >> 4) << 16 | (uint64_t)(sbo >> 4) << 32 |
           layout << 62;
}
#ifdef PL_HAS_WGMMA
PL_DEVICE void pl_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PL_DEVICE void pl_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> PL_DEVICE void pl_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
PL_DEVICE void pl_wgmma_m64n64k16(float d[32], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,"
                 "%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
                   "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"(keep));
}
#else
PL_DEVICE void pl_wgmma_fence() { PL_NOT_HERE(); }
PL_DEVICE void pl_wgmma_commit() { PL_NOT_HERE(); }
template <int N> PL_DEVICE void pl_wgmma_wait() { PL_NOT_HERE(); }
PL_DEVICE void pl_wgmma_m64n64k16(float *, uint64_t, uint64_t, int) { PL_NOT_HERE(); }
#endif
#endif
