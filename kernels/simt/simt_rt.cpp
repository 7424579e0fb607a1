// simt_rt.cpp: fibers, the scheduler, blocks and launches. A launch returns when its blocks are done.
#include "simt_rt.h"
#include <atomic>
#include <link.h>
#include <map>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <thread>
#include <time.h>
#if SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers on the stack, its pointer in *save_sp, and goes on where load_sp was saved.
extern "C" void simt_switch(void **save_sp, void *load_sp);
#if defined(__x86_64__)
asm(".text\n.globl simt_switch\n.hidden simt_switch\n.type simt_switch,@function\nsimt_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\nmovq %rsp,(%rdi)\n"
    "movq %rsi,%rsp\npopq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size simt_switch,.-simt_switch\n");
#elif defined(__aarch64__)
asm(".text\n.globl simt_switch\n.hidden simt_switch\n.type simt_switch,%function\nsimt_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\n"
    "stp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\n"
    "ldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
#else
#error "port simt_switch"
#endif

namespace simt
{
__thread Tls tls = {nullptr, {}, {}, nullptr, 0, nullptr};
Hooks hooks;
bool (*capture)(cudaStream_t, std::function<void()>);
Config cfg = {FORWARD, 0, 0, 1, 0, 1, 20000, 1};
std::mutex mu;
static std::atomic<unsigned long long> st_threads, st_blocks, st_switches, st_collectives;
static const unsigned long CANARY = 0x5afe57ac5afe57acul; // at the far end of each stack

static unsigned rnd(Worker *w, unsigned n)
{
    w->rng ^= w->rng << 13;
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return (unsigned)((w->rng >> 11) % n);
}

static double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void switch_to(Worker *w, void **save, void *load, const Thr *to, bool dying)
{
    w->switches++;
#if SIMT_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(dying ? nullptr : &fake, to ? to->stack : w->main_bottom, to ? STACK : w->main_size);
    simt_switch(save, load);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    (void)dying;
    (void)to;
    simt_switch(save, load);
#endif
}

void wake(Worker *w, Thr *t)
{
    t->state = READY;
    w->ready.push_back(t);
}

static void wake_polling(Worker *w)
{
    w->prog = false;
    for (Thr *t : w->polling) wake(w, t);
    w->polling.clear();
}

void progress()
{
    if (tls.worker) worker()->prog = true;
}

static void land(Worker *w) // complete one queued asynchronous operation
{
    const size_t i = cfg.order == RANDOM ? rnd(w, (unsigned)w->ops.size()) : 0;
    Op o = w->ops[i];
    w->ops.erase(w->ops.begin() + (long)i);
    o.fn(o.arg);
    w->prog = true;
}

// The next thread to run, or null if none can.
static Thr *pick(Worker *w)
{
    for (;;) {
        if (cfg.order == RANDOM && w->prog && !w->polling.empty() && rnd(w, 4) == 0) wake_polling(w);
        if (cfg.order == RANDOM && !w->ops.empty() && rnd(w, 8) == 0) land(w);
        const size_t n = w->ready.size() - w->head;
        if (n && cfg.order == FORWARD) {
            Thr *t = w->ready[w->head++];
            if (w->head == w->ready.size()) {
                w->ready.clear();
                w->head = 0;
            }
            return t;
        }
        if (n) {
            if (cfg.order == RANDOM) std::swap(w->ready[w->head + rnd(w, (unsigned)n)], w->ready.back());
            Thr *t = w->ready.back();
            w->ready.pop_back();
            return t;
        }
        if (w->polling.empty()) return nullptr;
        if (!w->prog && !w->ops.empty()) land(w); // nothing else can run
        if (w->prog) {
            w->spin_t0 = 0;
        } else {
            bool outside = false; // a spin may wait for another block or launch; an mbarrier wait may not
            for (const Thr *t : w->polling) outside |= t->op[0] == 's' || t->op[0] == 'n';
            if (!outside) return nullptr;
            if (w->spin_t0 == 0)
                w->spin_t0 = now();
            else if (now() - w->spin_t0 > cfg.spin_ms * 1e-3)
                return nullptr;
            sched_yield();
        }
        wake_polling(w);
    }
}

static void fiber_entry()
{
#if SIMT_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        Worker *w = worker();
        Thr *t = tls.cur;
        char *stack = t->stack;
        w->code.call(w->code.arg);
        if (*(volatile unsigned long *)stack != CANARY) fail(SIMT_STACK, true, "stack overflow (%zu bytes)", STACK);
        thread_done(w, t);
        Thr *n = pick(w);
        if (n && n->state == NEW) { // reuse the stack while it is in the cache
            n->stack = stack;
            tls.cur = n;
            n->state = READY;
            continue;
        }
        w->free_stack.push_back(stack);
        void *dead;
        if (n) tls.cur = n;
        switch_to(w, &dead, n ? n->sp : w->main_sp, n, true);
    }
}

// Makes n current; gives it a stack if it never ran.
static void *enter(Worker *w, Thr *n)
{
    tls.cur = n;
    if (n->state != NEW) return n->sp;
    n->state = READY;
    n->stack = w->free_stack.back();
    w->free_stack.pop_back();
    void **top = (void **)(n->stack + STACK - 16);
    top[1] = nullptr;
#if defined(__x86_64__)
    top[0] = (void *)fiber_entry;
    n->sp = top - 6;
#else
    n->sp = (char *)top - 160;
    memset(n->sp, 0, 160);
    ((void **)n->sp)[11] = (void *)fiber_entry;
#endif
    return n->sp;
}

void block_here(Worker *w, Thr *t, int state)
{
    t->state = (unsigned char)state;
    Thr *n = pick(w);
    if (n == t) {
        t->state = READY;
    } else if (n) {
        void *sp = enter(w, n);
        switch_to(w, &t->sp, sp, n, false);
    } else {
        switch_to(w, &t->sp, w->main_sp, nullptr, false);
    }
}

void leave(Worker *w)
{
    w->abort = true;
    void *dead;
    switch_to(w, &dead, w->main_sp, nullptr, true);
}

bool lazy() { return cfg.lazy & 1; }
bool lazy_mma() { return cfg.lazy & 2; }
bool defer_streams() { return cfg.defer; }
unsigned long block_serial() { return worker()->serial; }
void *&slot() { return worker()->user; }

void defer(void (*fn)(void *), const void *arg, unsigned n)
{
    Worker *w = worker();
    Op o;
    if (n > sizeof o.arg) abort();
    o.fn = fn;
    memcpy(o.arg, arg, n);
    if (lazy()) {
        w->ops.push_back(o);
    } else {
        fn(o.arg);
        w->prog = true;
    }
}

// The TLS segment of the module that holds the kernel is its static shared memory.
static int find_tls(dl_phdr_info *i, size_t, void *v)
{
    Worker *w = (Worker *)v;
    const uintptr_t code = (uintptr_t)w->code.entry;
    bool in = false;
    size_t n = 0;
    for (int k = 0; k < i->dlpi_phnum; k++) {
        const auto &p = i->dlpi_phdr[k];
        const uintptr_t at = i->dlpi_addr + p.p_vaddr;
        if (p.p_type == PT_LOAD && code >= at && code < at + p.p_memsz) in = true;
        if (p.p_type == PT_TLS) n = p.p_memsz;
    }
    if (!in) return 0;
    w->tls0 = (char *)i->dlpi_tls_data;
    w->tls_n = i->dlpi_tls_data ? n : 0;
    return 1;
}

struct Launch {
    Code code;
    dim3 g, b;
    size_t smem;
    unsigned long n_blocks;
    std::atomic<unsigned long> next;
    std::vector<unsigned> perm;
};
static std::vector<Worker *> &pool = *new std::vector<Worker *>; // workers are kept for later launches

static void make_threads(Worker *w, const Launch &L, unsigned long blk)
{
    const unsigned n = L.b.x * L.b.y * L.b.z;
    if (w->thr.size() < n) {
        w->thr.resize(n);
        w->arg.resize(n + 32);
    }
    if (w->n_stacks < n) {
        if (w->stacks) munmap(w->stacks, w->n_stacks * w->stride);
        w->stride = STACK + 64 * 13; // no power of two: stack tops spread over the sets of the cache
        w->n_stacks = n;
        w->stacks = (char *)mmap(nullptr, n * w->stride, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (w->stacks == MAP_FAILED) abort();
    }
#if SIMT_ASAN
    ASAN_UNPOISON_MEMORY_REGION(w->stacks, w->n_stacks * w->stride); // a block that was given up leaves frames behind
#endif
    w->free_stack.clear();
    for (size_t i = w->n_stacks; i-- > 0;) w->free_stack.push_back(w->stacks + i * w->stride);
    w->warp.assign((n + 31) / 32, Warp());
    for (unsigned i = 0; i < n; i++) {
        Thr &t = w->thr[i];
        const Thr old = t;
        t = Thr();
        t.aq = old.aq;
        t.caq = old.caq;
        t.grp = old.grp;
        t.cgrp = old.cgrp;
        t.lin = i;
        t.lane = i & 31;
        t.wid = i >> 5;
        t.state = NEW;
        t.tid = {i % L.b.x, i / L.b.x % L.b.y, i / (L.b.x * L.b.y)};
        t.bid = {(unsigned)(blk % L.g.x), (unsigned)(blk / L.g.x % L.g.y),
                 (unsigned)(blk / ((unsigned long)L.g.x * L.g.y))};
        w->warp[t.wid].exist |= 1u << t.lane;
        w->ready.push_back(&t);
        *(unsigned long *)(w->stacks + i * w->stride) = CANARY;
    }
}

// Shared memory starts as 0xFF: NaN in f32, bf16 and e4m3, and -1 as an index. Dynamic memory has a guard behind it.
static const size_t GUARD = SIMT_ASAN ? 0 : 64;
static void poison_shared(Worker *w)
{
    if (w->tls_n) {
        const Tls keep = tls;
        memset(w->tls0, 0xFF, w->tls_n);
        tls = keep;
    }
    if (w->dyn) memset(w->dyn, 0xFF, w->dyn_n + GUARD);
}

static void run_block(Worker *w, const Launch &L, unsigned long blk)
{
    static std::atomic<unsigned long> serials;
    w->serial = ++serials;
    w->nthr = w->alive = L.b.x * L.b.y * L.b.z;
    w->abort = false;
    w->prog = true;
    w->spin_t0 = 0;
    w->rng = (cfg.seed + 1) * 0x9E3779B97F4A7C15ul ^ (blk + 1) * 0xD1B54A32D192ED03ul;
    w->ready.clear();
    w->head = 0;
    w->polling.clear();
    w->ops.clear();
    for (int i = 0; i < 16; i++) {
        w->bar[i].arrived = w->grp[i].arrived = 0;
        w->bar[i].wait.clear();
        w->grp[i].wait.clear();
    }
    make_threads(w, L, blk);
    poison_shared(w);
    if (hooks.block_begin) {
        hooks.stk = w->stacks;
        hooks.stk_n = w->n_stacks * w->stride;
        hooks.thr = (char *)w->thr.data();
        hooks.thr_n = w->thr.size() * sizeof(Thr);
        hooks.arg = (char *)L.code.arg;
        hooks.arg_n = L.code.arg_n;
        hooks.block_begin(w->nthr, w->dyn, w->dyn_n, w->tls0, w->tls_n);
    }
    for (Thr *t = pick(w); t; t = w->abort ? nullptr : pick(w)) {
        void *sp = enter(w, t);
        switch_to(w, &w->main_sp, sp, t, false);
    }
    tls.cur = nullptr;
    if (!w->abort && w->alive) {
        w->abort = true;
        describe_fail(SIMT_DEADLOCK, true, "deadlock: no thread can run");
    }
    for (size_t i = 0; !w->abort && w->dyn && i < GUARD; i++) {
        if (w->dyn[w->dyn_n + i] == 0xFF) continue;
        fail(SIMT_MEM, false, "write past dynamic shared memory (+%zu)", i);
        break;
    }
    for (Op &o : w->ops) o.fn(o.arg);
}

static void run_worker(Launch &L, bool fixed, unsigned long only)
{
    Worker *w;
    {
        std::lock_guard<std::mutex> lock(mu);
        if (pool.empty()) {
            w = new Worker();
        } else {
            w = pool.back();
            pool.pop_back();
        }
    }
    const Tls keep = tls;
    tls.worker = w;
    tls.cur = nullptr;
    tls.bdim = L.b;
    tls.gdim = L.g;
    w->code = L.code;
    w->switches = w->collectives = 0;
#if SIMT_ASAN
    pthread_attr_t at;
    void *bottom;
    pthread_getattr_np(pthread_self(), &at);
    pthread_attr_getstack(&at, &bottom, &w->main_size);
    pthread_attr_destroy(&at);
    w->main_bottom = bottom;
#endif
    if (L.smem != w->dyn_n) {
        free(w->dyn);
        w->dyn = nullptr;
        w->dyn_n = L.smem;
        if (L.smem && posix_memalign((void **)&w->dyn, 1024, L.smem + GUARD)) abort();
    }
    tls.dyn = w->dyn;
    tls.dyn_bytes = (unsigned)L.smem;
    w->tls_n = 0;
    if (!SIMT_ASAN) dl_iterate_phdr(find_tls, w);
    unsigned long i;
    if (fixed) {
        run_block(w, L, only);
    } else {
        while ((i = L.next++) < L.n_blocks) {
            run_block(w, L, L.perm.empty() ? i : L.perm[i]);
            if (w->abort) L.next = L.n_blocks;
        }
    }
    st_switches += w->switches;
    st_collectives += w->collectives;
    tls = keep;
    std::lock_guard<std::mutex> lock(mu);
    pool.push_back(w);
}

static void read_environment()
{
    static const char *const key[] = {"order", "seed", "threads", "lazy", "defer", "strict", "quiet", "spin_ms"};
    static const char *const name[] = {"SIMT_ORDER", "SIMT_SEED",   "SIMT_THREADS", "SIMT_LAZY",
                                       "SIMT_DEFER", "SIMT_STRICT", "SIMT_QUIET",   "SIMT_SPIN_MS"};
    for (int i = 0; i < 8; i++) {
        const char *v = getenv(name[i]);
        if (!v) continue;
        const long n = !strcmp(v, "fwd") ? 0 : !strcmp(v, "rev") ? 1 : !strcmp(v, "rand") ? 2 : atol(v);
        simt_config(key[i], n);
    }
}
static struct Environment {
    Environment() { read_environment(); }
} environment;

static std::map<const void *, size_t> &allowed = *new std::map<const void *, size_t>;
static size_t smem_max = 166912; // sm_80, the smallest of our targets; 232448 on sm_90 and sm_100

int allow_smem(const void *k, size_t n)
{
    std::lock_guard<std::mutex> lock(mu);
    if (n > smem_max) return 1;
    allowed[k] = n;
    return 0;
}

static bool launchable(const Code &c, const dim3 &g, const dim3 &b, size_t smem)
{
    const unsigned long n = (unsigned long)b.x * b.y * b.z, blocks = (unsigned long)g.x * g.y * g.z;
    if (!n || n > 1024 || !blocks || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535 || b.z > 64 || smem > smem_max) {
        fail(SIMT_CONFIG, false, "%s: bad launch: grid (%u,%u,%u) block (%u,%u,%u) shared %zu", c.name, g.x, g.y, g.z,
             b.x, b.y, b.z, smem);
        return false;
    }
    bool ok = smem <= 49152;
    if (!ok) {
        std::lock_guard<std::mutex> lock(mu);
        const auto it = allowed.find(c.entry);
        ok = it != allowed.end() && it->second >= smem;
    }
    if (!ok) fail(SIMT_CONFIG, false, "%s: %zu bytes of dynamic shared memory without PL_ALLOW_SMEM", c.name, smem);
    return ok;
}

static void order_blocks(Launch &L)
{
    if (cfg.order == FORWARD) return;
    L.perm.resize(L.n_blocks);
    unsigned long r = cfg.seed * 77 + 5;
    for (unsigned long i = 0; i < L.n_blocks; i++) {
        L.perm[i] = (unsigned)(cfg.order == REVERSE ? L.n_blocks - 1 - i : i);
        if (cfg.order == REVERSE) continue;
        r = r * 6364136223846793005ul + 1442695040888963407ul;
        std::swap(L.perm[i], L.perm[(r >> 33) % (i + 1)]);
    }
}

void run(const Code &c, bool coop, dim3 g, dim3 b, size_t smem)
{
    static std::mutex &one = *new std::mutex; // the checker follows one launch at a time
    std::unique_lock<std::mutex> lock(one, std::defer_lock);
    if (hooks.launch || SIMT_ASAN) lock.lock();
    if (tls.worker) {
        fail(SIMT_CONFIG, true, "launch from inside a kernel");
        return;
    }
    if (!launchable(c, g, b, smem)) return;
    Launch L{c, g, b, smem, (unsigned long)g.x * g.y * g.z, {0}, {}};
    order_blocks(L);
    st_threads += (unsigned long long)(b.x * b.y * b.z) * L.n_blocks;
    st_blocks += L.n_blocks;
    if (hooks.launch) hooks.launch();
    unsigned long n = coop ? L.n_blocks : std::min<unsigned long>((unsigned long)cfg.threads, L.n_blocks);
    if (SIMT_ASAN || hooks.launch) {
        if (coop && L.n_blocks > 1) {
            fail(SIMT_CONFIG, false, "cooperative launch needs the plain build");
            return;
        }
        n = 1;
    }
    if (n <= 1) {
        run_worker(L, false, 0);
        return;
    }
    std::vector<std::thread> th;
    for (unsigned long i = 0; i < n; i++) th.emplace_back([&L, coop, i] { run_worker(L, coop, i); });
    for (std::thread &x : th) x.join();
}

// Buffers: 256 bytes before (the size) and 512 after, filled like the buffer with 0xFF.
void *device_alloc(size_t n)
{
    char *p;
    if (SIMT_ASAN) {
        if (posix_memalign((void **)&p, 256, n ? n : 1)) return nullptr;
        memset(p, 0xFF, n);
        return p;
    }
    if (posix_memalign((void **)&p, 256, n + 1024)) return nullptr;
    *(size_t *)p = n;
    memset(p + 256, 0xFF, n + 512);
    if (hooks.alloc) hooks.alloc(p + 256, n, true);
    return p + 256;
}

void device_free(void *v)
{
    if (SIMT_ASAN || !v) {
        free(v);
        return;
    }
    char *p = (char *)v - 256;
    const size_t n = *(size_t *)p;
    for (size_t i = 0; i < 512; i++) {
        if ((unsigned char)p[256 + n + i] == 0xFF) continue;
        fail(SIMT_MEM, false, "buffer of %zu bytes was written past its end (+%zu)", n, i);
        break;
    }
    if (hooks.alloc) hooks.alloc(v, n, false);
    free(p);
}
} // namespace simt

extern "C" void simt_config(const char *key, long v)
{
    using namespace simt;
    const struct {
        const char *key;
        int *at;
    } table[] = {{"order", &cfg.order},   {"threads", &cfg.threads}, {"lazy", &cfg.lazy},      {"defer", &cfg.defer},
                 {"strict", &cfg.strict}, {"quiet", &cfg.quiet},     {"spin_ms", &cfg.spin_ms}};
    for (const auto &t : table)
        if (!strcmp(key, t.key)) *t.at = (int)v;
    if (!strcmp(key, "seed")) cfg.seed = (unsigned long)v;
}
extern "C" int simt_has_checker(void) { return simt::hooks.access != nullptr; }
extern "C" unsigned long long simt_stat(const char *key)
{
    using namespace simt;
    return !strcmp(key, "threads")    ? st_threads.load()
           : !strcmp(key, "blocks")   ? st_blocks.load()
           : !strcmp(key, "switches") ? st_switches.load()
                                      : st_collectives.load();
}
