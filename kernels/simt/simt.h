// simt.h: CUDA's execution model on the CPU, for tests. Every thread of a block is a fiber; barriers and warp
// collectives are rendezvous points, so a missing lane is a reported deadlock, not a hang. Blocks run one after
// another, or over several OS threads. ptx.cuh includes this in place of the CUDA runtime when nvcc does not compile.
// Runtime half: simt_rt.cpp. Instructions: simt_ptx.h. Races, bounds, unwritten memory: simt_check.cpp.
#pragma once
#include "simt_c.h"
#include <algorithm>
#include <cuda_runtime.h> // ours: include/cuda_runtime.h
#include <functional>
#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(__has_feature) // clang's spelling
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
// In the checker build kernels are compiled with -fsanitize=thread, used as an instrumentation pass only. Functions of
// the shim are not instrumented: they report accesses themselves, through the hooks.
#ifdef __SANITIZE_THREAD__
#define SIMT_RAW inline __attribute__((no_sanitize("thread"), noinline))
#else
#define SIMT_RAW inline
#endif
#define SIMT_LOC const char *file = __builtin_FILE(), int line = __builtin_LINE()

// Static shared memory: thread_local, so that blocks may run on several OS threads, and so that the module's TLS
// segment is all of it. Under ASan plain statics, which get red zones (and one OS thread).
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define __shared__ static thread_local
#endif
#define threadIdx (::simt::tls.cur->tid)
#define blockIdx (::simt::tls.cur->bid)
#define blockDim (::simt::tls.bdim)
#define gridDim (::simt::tls.gdim)
#define PL_DEVICE inline
#define PL_LAUNCH(k, g, b, smem, st, ...) (::simt::launch(#k, false, (g), (b), (smem), (st), (k), ##__VA_ARGS__))
#define PL_LAUNCH_COOP(k, g, b, smem, st, ...) (::simt::launch(#k, true, (g), (b), (smem), (st), (k), ##__VA_ARGS__))
#define PL_DYN_SMEM(T, name) T *name = reinterpret_cast<T *>(::simt::tls.dyn)
#define PL_SPIN() ::simt::poll("spin", __FILE__, __LINE__)

namespace simt
{
struct Async { // a cp.async in flight: n bytes, of which nsrc come from src and the rest are zeros
    void *dst;
    const void *src;
    unsigned n, nsrc;
};
struct Thr { // a CUDA thread
    void *sp;
    uint3 tid, bid;
    unsigned lin, lane, wid; // number in the block, in the warp, warp
    unsigned char state;
    char *stack;
    const char *op, *file; // the last synchronisation
    int line;
    unsigned wmask;
    Async *aq; // [naq] cp.async queue
    unsigned naq, caq;
    unsigned *grp; // [ngrp] ends of committed groups in aq
    unsigned ngrp, cgrp;
};
struct Tls {
    Thr *cur;
    dim3 bdim, gdim;
    unsigned char *dyn;
    unsigned dyn_bytes;
    void *worker;
};
extern __thread Tls tls;

struct Hooks {                   // installed by the checker build only
    const char *stk, *thr, *arg; // fiber stacks, thread records and the kernel's arguments are not checked
    size_t stk_n, thr_n, arg_n;
    void (*block_begin)(unsigned nthr, void *s0, size_t n0, void *s1, size_t n1);
    void (*warp_sync)(unsigned wid, unsigned mask);
    void (*block_sync)();
    void (*obj)(const void *o, bool release, bool acquire);
    void (*atomic)(const void *p, unsigned n, int kind); // RMW, RELEASE, ACQUIRE
    void (*fence)();
    void (*launch)();
    void (*alloc)(void *p, size_t n, bool live);
    void (*access)(const void *p, unsigned n, int kind); // READ, WRITE, LANDED
};
enum { RMW = 1, RELEASE, ACQUIRE };
enum { READ = 0, WRITE, LANDED }; // LANDED: by an asynchronous copy that an mbarrier orders
extern Hooks hooks;

typedef void (*Leader)(void **lane_arg, unsigned mask, void *extra);
void warp_coll(unsigned mask, const char *op, void *arg, Leader fn, void *extra, const char *file, int line);
void group_coll(unsigned gsize, const char *op, void *arg, Leader fn, void *extra, const char *file, int line);
enum { RED_NONE, RED_ADD, RED_AND, RED_OR };
int block_bar(int id, unsigned need, bool wait, const char *op, int pred, int red, const char *file, int line);
void poll(const char *op, const char *file, int line);
void progress();
void fail(int code, bool fatal, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool lazy();     // do asynchronous copies land as late as legal?
bool lazy_mma(); // the same for wgmma
bool defer_streams();
unsigned long block_serial();
void *&slot();                                               // one pointer a worker, for the wgmma queue
void defer(void (*fn)(void *), const void *arg, unsigned n); // queue an asynchronous operation of the block
int allow_smem(const void *k, size_t bytes);                 // launches above 48 KB without it fail, as on a device
void *device_alloc(size_t n); // "device" memory: poisoned, with red zones, known to the checker
void device_free(void *p);
struct Code { // a kernel with its arguments
    const char *name;
    const void *entry;
    void (*call)(void *arg);
    void *arg;
    size_t arg_n;
};
void run(const Code &c, bool coop, dim3 g, dim3 b, size_t smem);
extern bool (*capture)(cudaStream_t, std::function<void()> work); // true: kept for a graph

template <class... P> struct Pack {
    void (*k)(P...);
    std::tuple<P...> t;
    static void call(void *v)
    {
        Pack *p = (Pack *)v;
        std::apply(p->k, p->t);
    }
};
template <class... P, class... A>
void launch(const char *name, bool coop, dim3 g, dim3 b, size_t smem, cudaStream_t st, void (*k)(P...), A &&...a)
{
    Pack<P...> pk{k, std::tuple<P...>(std::forward<A>(a)...)};
    auto go = [=]() mutable { run(Code{name, (const void *)k, Pack<P...>::call, &pk, sizeof pk}, coop, g, b, smem); };
    if (!(capture && st && capture(st, go))) go();
}

template <class To, class From> SIMT_RAW To bits(From f)
{
    To t;
    static_assert(sizeof t == sizeof f, "");
    memcpy((void *)&t, &f, sizeof t);
    return t;
}

// Warp collectives: each lane leaves a pointer to its argument; the last lane of the mask to arrive does the work.
template <class T> struct ShflArg {
    T v, out;
    int src;
};
template <class T> SIMT_RAW T shfl(unsigned mask, T v, int src, const char *op, const char *file, int line)
{
    ShflArg<T> a{v, v, src};
    const Leader leader = [](void **p, unsigned m, void *) {
        for (int l = 0; l < 32; l++) {
            if (!(m >> l & 1)) continue;
            ShflArg<T> *x = (ShflArg<T> *)p[l];
            if (m >> x->src & 1) {
                x->out = ((ShflArg<T> *)p[x->src])->v;
                continue;
            }
            memset((void *)&x->out, 0xFF, sizeof(T));
            fail(SIMT_LANE, false, "lane %d shuffles from lane %d, which is not in the mask", l, x->src);
        }
    };
    warp_coll(mask, op, &a, leader, nullptr, file, line);
    return a.out;
}
struct RedArg {
    unsigned v, out;
};
template <unsigned (*F)(unsigned, unsigned)>
SIMT_RAW unsigned reduce(unsigned mask, unsigned v, const char *op, const char *file, int line)
{
    RedArg a{v, 0};
    const Leader leader = [](void **p, unsigned m, void *) {
        unsigned r = 0;
        bool first = true;
        for (int l = 0; l < 32; l++) {
            if (!(m >> l & 1)) continue;
            r = first ? ((RedArg *)p[l])->v : F(r, ((RedArg *)p[l])->v);
            first = false;
        }
        for (int l = 0; l < 32; l++)
            if (m >> l & 1) ((RedArg *)p[l])->out = r;
    };
    warp_coll(mask, op, &a, leader, nullptr, file, line);
    return a.out;
}
inline unsigned r_add(unsigned a, unsigned b) { return a + b; }
inline unsigned r_and(unsigned a, unsigned b) { return a & b; }
inline unsigned r_or(unsigned a, unsigned b) { return a | b; }
inline unsigned r_xor(unsigned a, unsigned b) { return a ^ b; }
inline unsigned r_min_s(unsigned a, unsigned b) { return (int)a < (int)b ? a : b; }
inline unsigned r_max_s(unsigned a, unsigned b) { return (int)a > (int)b ? a : b; }
inline unsigned r_min_u(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned r_max_u(unsigned a, unsigned b) { return a > b ? a : b; }

template <class T> struct MatchArg {
    T v;
    unsigned out;
};
template <class T> SIMT_RAW void match_leader(void **p, unsigned m, void *)
{
    for (int l = 0; l < 32; l++) {
        if (!(m >> l & 1)) continue;
        MatchArg<T> *x = (MatchArg<T> *)p[l];
        x->out = 0;
        for (int k = 0; k < 32; k++)
            if (m >> k & 1 && ((MatchArg<T> *)p[k])->v == x->v) x->out |= 1u << k;
    }
}

SIMT_RAW void hit(const void *p, unsigned n, int kind)
{
    if (hooks.atomic) hooks.atomic(p, n, kind);
    if (kind != ACQUIRE) progress();
}
template <class T, class F> SIMT_RAW T rmw(T *p, F f) // 4 or 8 bytes
{
    typedef typename std::conditional<sizeof(T) == 8, unsigned long long, unsigned>::type U;
    hit(p, sizeof(T), RMW);
    U o = __atomic_load_n((U *)p, __ATOMIC_RELAXED), n;
    do n = bits<U>((T)f(bits<T>(o)));
    while (!__atomic_compare_exchange_n((U *)p, &o, n, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return bits<T>(o);
}
inline int self() { return (int)tls.cur->lane; }
} // namespace simt

template <class T> SIMT_RAW T __shfl_sync(unsigned m, T v, int s, int w = 32, SIMT_LOC)
{
    return simt::shfl(m, v, (simt::self() & ~(w - 1)) | (s & (w - 1)), "shfl.idx", file, line);
}
template <class T> SIMT_RAW T __shfl_xor_sync(unsigned m, T v, int x, int w = 32, SIMT_LOC)
{
    const int l = simt::self(), s = l ^ x;
    return simt::shfl(m, v, s > (l | (w - 1)) ? l : s, "shfl.bfly", file, line);
}
template <class T> SIMT_RAW T __shfl_up_sync(unsigned m, T v, unsigned d, int w = 32, SIMT_LOC)
{
    const int l = simt::self(), s = l - (int)d;
    return simt::shfl(m, v, s < (l & ~(w - 1)) ? l : s, "shfl.up", file, line);
}
template <class T> SIMT_RAW T __shfl_down_sync(unsigned m, T v, unsigned d, int w = 32, SIMT_LOC)
{
    const int l = simt::self(), s = l + (int)d;
    return simt::shfl(m, v, s > (l | (w - 1)) ? l : s, "shfl.down", file, line);
}
SIMT_RAW void __syncwarp(unsigned m = 0xffffffffu, SIMT_LOC)
{
    simt::warp_coll(m, "syncwarp", nullptr, nullptr, nullptr, file, line);
}
SIMT_RAW unsigned __ballot_sync(unsigned m, int p, SIMT_LOC)
{
    return simt::reduce<simt::r_or>(m, p ? 1u << simt::self() : 0u, "ballot", file, line);
}
SIMT_RAW int __any_sync(unsigned m, int p, SIMT_LOC)
{
    return (int)simt::reduce<simt::r_or>(m, p != 0, "any", file, line);
}
SIMT_RAW int __all_sync(unsigned m, int p, SIMT_LOC)
{
    return (int)simt::reduce<simt::r_and>(m, p != 0, "all", file, line);
}
#define SIMT_REDUX(name, op, T, F) \
    SIMT_RAW T name(unsigned m, T v, SIMT_LOC) { return (T)simt::reduce<simt::F>(m, (unsigned)v, op, file, line); }
SIMT_REDUX(__reduce_add_sync, "redux.add", unsigned, r_add)
SIMT_REDUX(__reduce_add_sync, "redux.add", int, r_add)
SIMT_REDUX(__reduce_and_sync, "redux.and", unsigned, r_and)
SIMT_REDUX(__reduce_or_sync, "redux.or", unsigned, r_or)
SIMT_REDUX(__reduce_xor_sync, "redux.xor", unsigned, r_xor)
SIMT_REDUX(__reduce_min_sync, "redux.min", unsigned, r_min_u)
SIMT_REDUX(__reduce_max_sync, "redux.max", unsigned, r_max_u)
SIMT_REDUX(__reduce_min_sync, "redux.min", int, r_min_s)
SIMT_REDUX(__reduce_max_sync, "redux.max", int, r_max_s)
#undef SIMT_REDUX
template <class T> SIMT_RAW unsigned __match_any_sync(unsigned m, T v, SIMT_LOC)
{
    simt::MatchArg<T> a{v, 0};
    simt::warp_coll(m, "match.any", &a, simt::match_leader<T>, nullptr, file, line);
    return a.out;
}

#define SIMT_BAR(T, name, params, pred, red) \
    SIMT_RAW T name(params SIMT_LOC) { return (T)simt::block_bar(0, 0, true, #name, pred, simt::red, file, line); }
#define SIMT_PRED int p,
SIMT_BAR(void, __syncthreads, , 0, RED_NONE)
SIMT_BAR(int, __syncthreads_count, SIMT_PRED, p != 0, RED_ADD)
SIMT_BAR(int, __syncthreads_and, SIMT_PRED, p != 0, RED_AND)
SIMT_BAR(int, __syncthreads_or, SIMT_PRED, p != 0, RED_OR)
#undef SIMT_BAR
#undef SIMT_PRED

SIMT_RAW void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (simt::hooks.fence) simt::hooks.fence();
}
SIMT_RAW void __threadfence_system() { __threadfence(); }
SIMT_RAW void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMT_RAW void __nanosleep(unsigned, SIMT_LOC) { simt::poll("nanosleep", file, line); }

#define SIMT_ATOMIC(name, expr)                                                    \
    template <class T> SIMT_RAW T name(T *p, typename std::common_type<T>::type v) \
    {                                                                              \
        return simt::rmw(p, [=](T o) { return expr; });                            \
    }
SIMT_ATOMIC(atomicAdd, o + v)
SIMT_ATOMIC(atomicSub, o - v)
SIMT_ATOMIC(atomicExch, ((void)o, v))
SIMT_ATOMIC(atomicMin, o < v ? o : v)
SIMT_ATOMIC(atomicMax, o > v ? o : v)
SIMT_ATOMIC(atomicAnd, o &v)
SIMT_ATOMIC(atomicOr, o | v)
SIMT_ATOMIC(atomicXor, o ^ v)
SIMT_ATOMIC(atomicInc, o >= v ? 0 : o + 1)
SIMT_ATOMIC(atomicDec, (o == 0 || o > v) ? v : o - 1)
#undef SIMT_ATOMIC
template <class T>
SIMT_RAW T atomicCAS(T *p, typename std::common_type<T>::type c, typename std::common_type<T>::type v)
{
    return simt::rmw(p, [=](T o) { return o == c ? v : o; });
}

template <class T> inline T __ldg(const T *p) { return *p; }
using std::max;
using std::min;
inline unsigned __float_as_uint(float f) { return simt::bits<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return simt::bits<float>(u); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    const unsigned long long v = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned c = s >> (4 * i);
        unsigned y = (unsigned)(v >> (8 * (c & 7))) & 255u;
        if (c & 8) y = y & 128u ? 255u : 0u; // the sign, replicated
        r |= y << (8 * i);
    }
    return r;
}
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline void __trap() { simt::fail(SIMT_MEM, true, "__trap()"); }
