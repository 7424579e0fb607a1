#ifndef PL_CPU_H
#define PL_CPU_H
/* What every CPU kernel includes: the backend's state, its threads, its scratch memory and the floating-point mode.
 * Results never depend on the number of threads or on how a range was split: an output element is computed by one
 * thread, in one written order. */
#include "dev.h"
#include "dtype.h"
#include "ops_backend.h"
#include "tensor.h"

/* gcc at -O2 leaves short constant loops over accumulator arrays in memory unless told otherwise. */
#define PL_UNROLL _Pragma("GCC unroll 16")

/* isa.c: what the machine has. */
bool pl_cpu_has_path(int32_t path);
int32_t pl_cpu_best_path(void);
bool pl_cpu_free_denormals(void); /* a denormal factor costs a product no time */

/* The mode of every kernel: denormals in and out are zero, as in tile units. pl_fp_enter gives what pl_fp_leave
 * takes, so that the caller's own arithmetic (Lua's) is as before. pl_parallel does both by itself. */
#if defined(__SSE2__)
#include <xmmintrin.h>
PL_INLINE uint32_t pl_fp_enter(void)
{
    const uint32_t old = _mm_getcsr();
    _mm_setcsr((old & ~0x6000u) | 0x9fc0u); /* flush to zero, denormals are zero, all exceptions masked, to nearest */
    return old;
}
PL_INLINE void pl_fp_leave(uint32_t old) { _mm_setcsr(old); }
/* After pl_fp_enter: factors that are denormals count as what they are. Results still never are denormals. */
PL_INLINE void pl_fp_keep_denormals(void) { _mm_setcsr(_mm_getcsr() & ~0x40u); }
#elif defined(__aarch64__)
PL_INLINE uint32_t pl_fp_enter(void)
{
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" ::"r"((old & ~(uint64_t)0xc00000) | 0x1000000));
    return (uint32_t)old;
}
PL_INLINE void pl_fp_leave(uint32_t old) { __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)old)); }
#else
PL_INLINE uint32_t pl_fp_enter(void) { return 0; }
PL_INLINE void pl_fp_leave(uint32_t old) { (void)old; }
#endif

/* cpus.c. root: "", or the place of another /proc and /sys. */
int32_t pl_cpus(const char *root, int32_t *cpu, int32_t cap); /* CPUs that the process may use, one of each core */
int32_t pl_cpus_paid(const char *root, int32_t n); /* how many of n the quotas of its groups allow, at least 1 */

/* pool.c: threads that wait for work, first spinning for a while, then asleep. The caller is thread 0. */
typedef void pl_part_fn(void *arg, int64_t from, int64_t to, int thread);
typedef struct pl_pool pl_pool;
int pl_pool_new(pl_pool **out, int32_t n_threads,
                pl_err *err); /* 0: one per core that it may use and its quota allows */
void pl_pool_free(pl_pool *p);
int32_t pl_pool_threads(const pl_pool *p);
int32_t pl_pool_active(const pl_pool *p);
void pl_pool_limit(pl_pool *p, int32_t n); /* jobs from now on: the first n threads (1 to all), the others sleep */
void pl_pool_run(pl_pool *p, int64_t n, int64_t grain, pl_part_fn *fn, void *arg);

/* dev.c: the backend's own part of a stream. */
typedef struct pl_chunk {
    char *mem;
    int64_t bytes;
} pl_chunk;
enum { PL_MAX_CHUNKS = 24 };
typedef struct pl_cpu {
    pl_pool *pool;
    pl_chunk chunk[PL_MAX_CHUNKS]; /* scratch: used in order, each at least twice as large as the one before */
    int32_t n_chunks, at;
    int64_t used;   /* of chunk[at] */
    int32_t n_few;  /* threads of a step of few tokens: fit.c; all until then */
    bool denormals; /* pl_cpu_free_denormals() */
} pl_cpu;

/* Calls fn over [0,n) in parts whose limits are multiples of grain (the last may be short), on all threads; parts
 * are handed out as threads get free. Inline on the caller when n <= grain. */
PL_INLINE void pl_parallel(pl_stream *s, int64_t n, int64_t grain, pl_part_fn *fn, void *arg)
{
    pl_pool_run(((pl_cpu *)s->impl)->pool, n, grain, fn, arg);
}

/* Scratch of an op: 64-byte aligned, not cleared, valid until the mark that was taken before it is released.
 *   const pl_mark m = pl_scratch_mark(s);  ... pl_scratch(s, bytes, err) ...  pl_scratch_release(s, m);
 * Only the thread that runs the op takes scratch; for memory of each thread take n_threads pieces. */
typedef struct pl_mark {
    int32_t at;
    int64_t used;
} pl_mark;
pl_mark pl_scratch_mark(const pl_stream *s);
void *pl_scratch(pl_stream *s, int64_t bytes, pl_err *err); /* NULL: PL_ENOMEM in err */
void pl_scratch_release(pl_stream *s, pl_mark m);

int pl_cpu_probe(pl_stream *s, int32_t probe, const pl_tensor *memory, double *work, pl_err *err); /* probe.c */

int pl_cpu_fit(pl_stream *s, pl_fit *fit, int32_t cap, pl_err *err); /* fit.c */

int pl_cpu_products(pl_stream *s, const pl_products *p, pl_err *err); /* products.c */

/* pack.c: the product layout. 16 output rows are a block, whose bytes lie in the order in which k ascends. */
int64_t pl_cpu_packed_bytes(int32_t dtype, int64_t n, int64_t k); /* -1: no such layout, or sizes out of range */
int pl_cpu_pack(pl_stream *s, pl_tensor *out, const pl_tensor *w, const int32_t *row_map, pl_err *err);
/* The values of one row of a packed w[N,K], the same as pl_row_to_f32 gives for the row that it came from. */
void pl_packed_row_to_f32(const pl_tensor *w, int64_t row, float *dst);
#endif
