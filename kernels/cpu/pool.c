/* pool.c: a fork-join pool. A job is open or closed; a thread joins it only while it is open, and the caller closes
 * it when all parts are taken, so a thread that is late or asleep delays nobody. */
#include "cpu.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#define RELAX() _mm_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

/* The gate: number of the job, whether it is closed, how many threads beside the caller are inside. */
enum { INSIDE = 0x7ff, CLOSED = 0x800, JOB = 0x1000 };
enum { SPIN_US = 80, PARTS = 6 };

typedef struct range { /* what is left for one thread; others take from it when their own is empty */
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
} range;

typedef struct worker {
    pl_pool *pool;
    pthread_t thread;
    int32_t id, cpu; /* cpu -1: not pinned */
} worker;

struct pl_pool {
    _Alignas(64) _Atomic uint32_t gate;
    _Atomic int32_t asleep, n_active; /* n_active: threads that take part; the others sleep on it */
    _Atomic bool stop, caller_waits;
    /* the job: written while the gate is closed and nobody is inside */
    _Alignas(64) pl_part_fn *fn;
    void *arg;
    int64_t n, chunk;
    int32_t n_threads, n_started;
    bool spin;       /* every thread has a CPU of its own */
    worker *workers; /* [n_threads], 0 unused */
    range *ranges;   /* [n_threads] */
};

static void wake_all(pl_pool *p) { syscall(SYS_futex, &p->gate, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

static void take_parts(pl_pool *p, int32_t id)
{
    for (int32_t i = 0; i < p->n_threads; i++) {
        range *r = &p->ranges[(id + i) % p->n_threads];
        for (;;) {
            const int64_t from = atomic_fetch_add_explicit(&r->next, p->chunk, memory_order_relaxed);
            if (from >= r->end) break;
            p->fn(p->arg, from, pl_min(from + p->chunk, r->end), id);
        }
    }
}

/* Until this thread takes part. */
static void wait_for_turn(const worker *w)
{
    pl_pool *p = w->pool;
    for (int32_t n; (n = atomic_load(&p->n_active)) <= w->id;)
        syscall(SYS_futex, &p->n_active, FUTEX_WAIT_PRIVATE, n, NULL, NULL, 0);
}

/* Waits for a value other than `seen`: spins for a bounded time, then sleeps. */
static uint32_t wait_for_job(pl_pool *p, uint32_t seen)
{
    uint32_t now;
    if (p->spin) {
        double until = 0;
        for (int i = 1;; i++) {
            now = atomic_load_explicit(&p->gate, memory_order_acquire);
            if (now / JOB != seen / JOB) return now;
            RELAX();
            if (i % 64) continue;
            const double t = pl_now_s();
            if (until == 0)
                until = t + SPIN_US * 1e-6;
            else if (t > until)
                break;
        }
    }
    for (;;) {
        atomic_fetch_add(&p->asleep, 1);
        now = atomic_load(&p->gate);
        if (now / JOB == seen / JOB) syscall(SYS_futex, &p->gate, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
        atomic_fetch_sub(&p->asleep, 1);
        now = atomic_load(&p->gate);
        if (now / JOB != seen / JOB) return now;
    }
}

static void *work(void *arg)
{
    const worker *w = arg;
    pl_pool *p = w->pool;
    if (w->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)w->cpu, &set);
        sched_setaffinity(0, sizeof set, &set); /* refusal is harmless */
    }
    pl_fp_enter();
    uint32_t seen = CLOSED;
    for (;;) {
        wait_for_turn(w);
        uint32_t now = wait_for_job(p, seen);
        seen = now;
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        if (w->id >= atomic_load_explicit(&p->n_active, memory_order_relaxed)) continue;
        bool joined = false;
        while (!(now & CLOSED) && now / JOB == seen / JOB &&
               !(joined = atomic_compare_exchange_weak_explicit(&p->gate, &now, now + 1, memory_order_acquire,
                                                                memory_order_relaxed))) {
        }
        if (!joined) continue;
        take_parts(p, w->id);
        atomic_fetch_sub(&p->gate, 1);
        if (atomic_load(&p->caller_waits)) wake_all(p);
    }
}

static void open_gate(pl_pool *p)
{
    const uint32_t job = atomic_load_explicit(&p->gate, memory_order_relaxed) / JOB + 1;
    atomic_store(&p->gate, job * JOB); /* sequentially consistent with the count of sleepers */
    if (atomic_load(&p->asleep)) wake_all(p);
}

/* Until nobody is inside: soon, unless somebody lost its CPU. */
static void wait_for_others(pl_pool *p)
{
    const int spins = p->spin ? 4000 : 200;
    for (int i = 0; i < spins; i++) {
        if (!(atomic_load_explicit(&p->gate, memory_order_acquire) & INSIDE)) return;
        RELAX();
    }
    atomic_store(&p->caller_waits, true);
    for (uint32_t now; (now = atomic_load(&p->gate)) & INSIDE;)
        syscall(SYS_futex, &p->gate, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
    atomic_store(&p->caller_waits, false);
}

void pl_pool_run(pl_pool *p, int64_t n, int64_t grain, pl_part_fn *fn, void *arg)
{
    if (n <= 0) return;
    const uint32_t mode = pl_fp_enter();
    const int64_t grains = (n + grain - 1) / grain, used = pl_min(grains, pl_pool_active(p));
    if (used == 1) {
        fn(arg, 0, n, 0);
        pl_fp_leave(mode);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    p->chunk = pl_max(1, grains / used / PARTS) * grain;
    for (int64_t i = 0; i < p->n_threads; i++) {
        const int64_t from = i < used ? grains * i / used * grain : n,
                      to = i < used ? grains * (i + 1) / used * grain : n;
        atomic_store_explicit(&p->ranges[i].next, from, memory_order_relaxed);
        p->ranges[i].end = pl_min(to, n);
    }
    open_gate(p);
    take_parts(p, 0);
    atomic_fetch_or_explicit(&p->gate, CLOSED, memory_order_acquire);
    wait_for_others(p);
    pl_fp_leave(mode);
}

int pl_pool_new(pl_pool **out, int32_t n_threads, pl_err *err)
{
    enum { MAX = 1024 };
    int rc = PL_OK;
    int32_t *cpu = malloc(MAX * sizeof *cpu);
    pl_pool *p = aligned_alloc(64, (size_t)pl_round_up(sizeof *p, 64));
    if (p) memset(p, 0, sizeof *p);
    if (!cpu || !p) {
        rc = pl_fail(err, PL_ENOMEM, "threads: no memory");
        goto done;
    }
    const int32_t n_cpus = pl_cpus("", cpu, MAX), most = pl_cpus_paid("", n_cpus);
    atomic_init(&p->gate, CLOSED);
    p->n_threads = (int32_t)pl_min(n_threads > 0 ? n_threads : pl_max(most, 1), MAX);
    atomic_init(&p->n_active, p->n_threads);
    p->spin = p->n_threads <= n_cpus;
    p->workers = calloc((size_t)p->n_threads, sizeof *p->workers);
    p->ranges = aligned_alloc(64, (size_t)p->n_threads * sizeof *p->ranges);
    if (!p->workers || !p->ranges) {
        rc = pl_fail(err, PL_ENOMEM, "threads: no memory for %d", p->n_threads);
        goto done;
    }
    for (int32_t i = 0; i < p->n_threads; i++) atomic_init(&p->ranges[i].next, 0);
    for (p->n_started = 1; p->n_started < p->n_threads; p->n_started++) {
        worker *w = &p->workers[p->n_started];
        w->pool = p;
        w->id = p->n_started;
        /* pinned when the threads fill the machine; fewer could meet another process's on the same CPUs */
        w->cpu = p->n_threads == n_cpus ? cpu[w->id] : -1;
        const int e = pthread_create(&w->thread, NULL, work, w);
        if (e) {
            rc = pl_fail(err, PL_ENOMEM, "threads: thread %d of %d: %s", w->id, p->n_threads, strerror(e));
            goto done;
        }
    }
    *out = p;
done:
    free(cpu);
    if (rc < 0) pl_pool_free(p);
    return rc;
}

void pl_pool_free(pl_pool *p)
{
    if (!p) return;
    if (p->workers && p->n_started > 1) {
        atomic_store(&p->stop, true);
        pl_pool_limit(p, p->n_threads);
        open_gate(p);
        for (int32_t i = 1; i < p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    }
    free(p->workers);
    free(p->ranges);
    free(p);
}

int32_t pl_pool_threads(const pl_pool *p) { return p->n_threads; }
int32_t pl_pool_active(const pl_pool *p) { return atomic_load_explicit(&p->n_active, memory_order_relaxed); }

void pl_pool_limit(pl_pool *p, int32_t n)
{
    const int32_t had = atomic_exchange(&p->n_active, n);
    if (n > had) syscall(SYS_futex, &p->n_active, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
