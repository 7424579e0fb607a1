// simt_check.cpp: races, reads of unwritten shared memory, and accesses out of bounds. The kernels are compiled with
// -fsanitize=thread, but the __tsan_* callbacks below stand in for libtsan: they see every load and store.
// Order comes from block barriers (a new epoch), __syncwarp, named barriers and mbarriers (vector clocks), launches,
// and, between blocks, from a fence with an atomic. Shuffles, votes and mma order nothing, as in the PTX memory model.
// One launch and one OS thread at a time.
#include "simt.h"
#include <dlfcn.h>
#include <link.h>
#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>
using namespace simt;

namespace
{
typedef uint32_t u32;
enum { NOBODY = 0xffff };
struct Cell { // the last write of a byte and up to two reads since; epoch 0: never
    u32 write_ep, write_clk, write_pc;
    uint16_t write_thr;
    bool atomic;
    u32 read_ep[2], read_clk[2], read_pc;
    uint16_t read_thr[2];
};
struct Alloc {
    uintptr_t a;
    size_t n;
    Cell *c; // [n], made on first use
};
struct Region {
    uintptr_t a;
    size_t n;
    std::vector<Cell> c;
};
struct Object { // a barrier or an atomic word that threads synchronise by
    u32 ep;
    std::vector<u32> clock;
};
std::vector<Alloc> allocs; // by address
size_t last_alloc;
Region shared_mem[2];            // dynamic, static
u32 ep = 1, block_ep, launch_ep; // epochs never repeat
std::vector<u32> block_starts;
unsigned nthr;
std::vector<u32> clocks;  // [nthr][nthr]: what each thread knows of each
std::vector<u32> clk;     // [nthr]
std::vector<char> fenced; // [nthr] nothing written since the last fence
bool clocks_used, reported;
std::map<const void *, Object> objects;
std::map<uintptr_t, std::set<u32>> released; // by atomic word: start epochs of the blocks it publishes
std::set<u32> acquired;                      // of the current block
uintptr_t base, image_lo, image_hi;          // this module: code, tables, constants

std::string where(u32 pc)
{
    Dl_info info;
    if (!pc || !dladdr((void *)(base + pc), &info) || !info.dli_fname) return "?";
    char cmd[600], buf[400] = "";
    snprintf(cmd, sizeof cmd, "addr2line -e '%s' 0x%x 2>/dev/null", info.dli_fname, pc - 1);
    if (FILE *f = popen(cmd, "r")) {
        if (!fgets(buf, sizeof buf, f)) buf[0] = 0;
        pclose(f);
    }
    std::string s(buf);
    while (!s.empty() && s.back() == '\n') s.pop_back();
    const size_t slash = s.rfind('/');
    return slash == std::string::npos ? s : s.substr(slash + 1);
}

// Is what thread t did at (epoch e, clock c) known to have happened before what `me` does now?
bool ordered(u32 e, u32 c, unsigned t, unsigned me)
{
    if (e < launch_ep || t == NOBODY) return true;
    if (e < block_ep) {
        const auto it = std::upper_bound(block_starts.begin(), block_starts.end(), e);
        return acquired.count(*(it - 1)) != 0;
    }
    return e < ep || t == me || clocks[(size_t)me * nthr + t] >= c;
}

struct Access {
    uintptr_t a;
    unsigned n;
    bool write, landed, atomic, shared;
    u32 pc;
};

void race(const Access &x, const char *earlier, unsigned thr, u32 pc, bool same_block)
{
    const bool first = !reported;
    reported = true;
    if (!first) return;
    fail(SIMT_RACE, false,
         "race on %s memory %p: %s of %u bytes at %s, unordered with an earlier %s by thread %u%s at %s",
         x.shared ? "shared" : "global", (void *)x.a,
         x.atomic  ? "atomic"
         : x.write ? "write"
                   : "read",
         x.n, where(x.pc).c_str(), earlier, thr, same_block ? "" : " of another block", where(pc).c_str());
}

bool touch_byte(Cell &c, const Access &x, unsigned me)
{
    if (x.landed) {
        c = Cell();
        c.write_ep = ep;
        c.write_thr = NOBODY;
        return true;
    }
    const bool both_atomic = x.atomic && c.atomic;
    if (c.write_ep && !both_atomic && !ordered(c.write_ep, c.write_clk, c.write_thr, me)) {
        race(x, c.atomic ? "atomic" : "write", c.write_thr, c.write_pc, c.write_ep >= block_ep);
        return false;
    }
    if (x.write) {
        for (int r = 0; r < 2; r++) {
            if (!c.read_ep[r] || both_atomic || ordered(c.read_ep[r], c.read_clk[r], c.read_thr[r], me)) continue;
            race(x, "read", c.read_thr[r], c.read_pc, c.read_ep[r] >= block_ep);
            return false;
        }
        c = Cell();
        c.write_ep = ep;
        c.write_clk = clk[me];
        c.write_thr = (uint16_t)me;
        c.write_pc = x.pc;
        c.atomic = x.atomic;
        return true;
    }
    // one-byte reads of static shared memory are let through: they may be the compiler's guards of statics
    const bool guard = x.n == 1 && x.a - shared_mem[1].a < shared_mem[1].n;
    if (x.shared && !c.write_ep && !guard) {
        if (!reported)
            fail(SIMT_UNINIT, false,
                 "read of %u bytes of shared memory at %p (%s) that no thread of this block has written", x.n,
                 (void *)x.a, where(x.pc).c_str());
        reported = true;
        return false;
    }
    const bool first = !c.read_ep[0] || c.read_thr[0] == me || ordered(c.read_ep[0], c.read_clk[0], c.read_thr[0], me);
    const int s = first ? 0 : 1;
    c.read_ep[s] = ep;
    c.read_clk[s] = clk[me];
    c.read_thr[s] = (uint16_t)me;
    c.read_pc = x.pc;
    return true;
}

void touch(Cell *c, const Access &x)
{
    const unsigned me = tls.cur->lin;
    if (x.write && !x.landed && !x.atomic) fenced[me] = 0;
    for (unsigned i = 0; i < x.n; i++)
        if (!touch_byte(c[i], x, me)) return;
}

Alloc *find(uintptr_t a)
{
    if (last_alloc < allocs.size() && a - allocs[last_alloc].a < allocs[last_alloc].n) return &allocs[last_alloc];
    const auto it =
        std::upper_bound(allocs.begin(), allocs.end(), a, [](uintptr_t v, const Alloc &x) { return v < x.a; });
    if (it == allocs.begin()) return nullptr;
    last_alloc = (size_t)(it - allocs.begin()) - 1;
    return a - allocs[last_alloc].a < allocs[last_alloc].n ? &allocs[last_alloc] : nullptr;
}

bool within(uintptr_t a, const void *p, size_t n) { return a - (uintptr_t)p < n; }

void outside(const Access &x)
{
    size_t near = (size_t)-1;
    const Alloc *best = nullptr;
    for (const Alloc &al : allocs) {
        const size_t d = x.a < al.a ? al.a - x.a : x.a + x.n - (al.a + al.n);
        if (d < near) {
            near = d;
            best = &al;
        }
    }
    fail(SIMT_MEM, true,
         "%s of %u bytes at %p is outside every device buffer at %s (nearest: %zu bytes %s a buffer of %zu)",
         x.write ? "write" : "read", x.n, (void *)x.a, where(x.pc).c_str(), near,
         best && x.a < best->a ? "before" : "past the end of", best ? best->n : 0);
}

void access(const void *p, unsigned n, int kind, bool atomic, const void *ra)
{
    if (!tls.cur) return;
    Access x = {(uintptr_t)p, n, kind != READ, kind == LANDED, atomic, false, (u32)((uintptr_t)ra - base)};
    if (within(x.a, hooks.stk, hooks.stk_n) || within(x.a, hooks.thr, hooks.thr_n) ||
        within(x.a, hooks.arg, hooks.arg_n) || within(x.a, &tls, sizeof tls))
        return;
    for (Region &r : shared_mem) {
        if (x.a - r.a >= r.n) continue;
        x.shared = true;
        if (x.a + n <= r.a + r.n)
            touch(&r.c[x.a - r.a], x);
        else
            fail(SIMT_MEM, false, "access of %u bytes runs past the end of shared memory at %s", n,
                 where(x.pc).c_str());
        return;
    }
    Alloc *al = find(x.a);
    if (al && x.a + n <= al->a + al->n) {
        if (!al->c) al->c = (Cell *)calloc(al->n, sizeof(Cell));
        if (!al->c) abort();
        touch(al->c + (x.a - al->a), x);
    } else if (x.a < image_lo || x.a >= image_hi) {
        outside(x);
    }
}

void h_block_begin(unsigned n, void *s0, size_t n0, void *s1, size_t n1)
{
    ep++;
    block_ep = ep;
    block_starts.push_back(ep);
    acquired.clear();
    acquired.insert(ep);
    nthr = n;
    clk.assign(n, 1);
    fenced.assign(n, 0);
    clocks.assign((size_t)n * n, 0);
    clocks_used = false;
    objects.clear();
    void *const s[2] = {s0, s1};
    const size_t size[2] = {n0, n1};
    for (int r = 0; r < 2; r++) {
        shared_mem[r].a = (uintptr_t)s[r];
        shared_mem[r].n = s[r] ? size[r] : 0;
        shared_mem[r].c.assign(shared_mem[r].n, Cell());
    }
}

void h_block_sync()
{
    ep++;
    std::fill(clk.begin(), clk.end(), 1);
    if (clocks_used) std::fill(clocks.begin(), clocks.end(), 0);
    clocks_used = false;
}

void h_warp_sync(unsigned wid, unsigned m)
{
    std::vector<u32> joined(nthr, 0);
    clocks_used = true;
    for (unsigned l = 0; l < 32; l++) {
        if (!(m >> l & 1)) continue;
        const unsigned t = wid * 32 + l;
        u32 *v = &clocks[(size_t)t * nthr];
        v[t] = clk[t];
        for (unsigned i = 0; i < nthr; i++) joined[i] = std::max(joined[i], v[i]);
    }
    for (unsigned l = 0; l < 32; l++) {
        if (!(m >> l & 1)) continue;
        const unsigned t = wid * 32 + l;
        memcpy(&clocks[(size_t)t * nthr], joined.data(), nthr * sizeof(u32));
        clk[t]++;
    }
}

void h_obj(const void *o, bool release, bool acquire)
{
    const unsigned t = tls.cur->lin;
    Object &x = objects[o];
    u32 *v = &clocks[(size_t)t * nthr];
    clocks_used = true;
    if (x.ep != ep) {
        x.ep = ep;
        x.clock.assign(nthr, 0);
    }
    if (acquire)
        for (unsigned i = 0; i < nthr; i++) v[i] = std::max(v[i], x.clock[i]);
    if (release) {
        v[t] = clk[t];
        for (unsigned i = 0; i < nthr; i++) x.clock[i] = std::max(x.clock[i], v[i]);
        clk[t]++;
    }
}

void h_atomic(const void *p, unsigned n, int kind)
{
    if (!tls.cur) return;
    const bool release = kind == RELEASE || (kind == RMW && fenced[tls.cur->lin]), acquire = kind != RELEASE;
    access(p, n, kind == ACQUIRE ? READ : WRITE, true, __builtin_return_address(0));
    if (acquire) {
        const auto it = released.find((uintptr_t)p);
        if (it != released.end()) acquired.insert(it->second.begin(), it->second.end());
    }
    if (release) released[(uintptr_t)p].insert(acquired.begin(), acquired.end());
    h_obj(p, release, acquire);
}

void h_fence()
{
    if (tls.cur) fenced[tls.cur->lin] = 1;
}

void h_launch()
{
    ep++;
    launch_ep = ep;
    block_starts.clear();
    released.clear();
    reported = false;
}

void h_alloc(void *p, size_t n, bool live)
{
    const auto it = std::lower_bound(allocs.begin(), allocs.end(), (uintptr_t)p,
                                     [](const Alloc &x, uintptr_t v) { return x.a < v; });
    if (live) {
        allocs.insert(it, Alloc{(uintptr_t)p, n, nullptr});
    } else if (it != allocs.end() && it->a == (uintptr_t)p) {
        free(it->c);
        allocs.erase(it);
    }
    last_alloc = 0;
}

void h_access(const void *p, unsigned n, int kind) { access(p, n, kind, false, __builtin_return_address(0)); }

int find_image(dl_phdr_info *i, size_t, void *)
{
    uintptr_t lo = ~(uintptr_t)0, hi = 0;
    for (int k = 0; k < i->dlpi_phnum; k++) {
        const auto &p = i->dlpi_phdr[k];
        if (p.p_type != PT_LOAD) continue;
        lo = std::min<uintptr_t>(lo, i->dlpi_addr + p.p_vaddr);
        hi = std::max<uintptr_t>(hi, i->dlpi_addr + p.p_vaddr + p.p_memsz);
    }
    if ((uintptr_t)find_image < lo || (uintptr_t)find_image >= hi) return 0;
    base = i->dlpi_addr;
    image_lo = lo;
    image_hi = hi;
    return 1;
}

struct Install {
    Install()
    {
        dl_iterate_phdr(find_image, nullptr);
        hooks.block_begin = h_block_begin;
        hooks.warp_sync = h_warp_sync;
        hooks.block_sync = h_block_sync;
        hooks.obj = h_obj;
        hooks.atomic = h_atomic;
        hooks.fence = h_fence;
        hooks.launch = h_launch;
        hooks.alloc = h_alloc;
        hooks.access = h_access;
    }
} install;
} // namespace

#define RA __builtin_return_address(0)
#define CALLBACKS(n)                                                            \
    void __tsan_read##n(void *p) { access(p, n, READ, false, RA); }             \
    void __tsan_write##n(void *p) { access(p, n, WRITE, false, RA); }           \
    void __tsan_unaligned_read##n(void *p) { access(p, n, READ, false, RA); }   \
    void __tsan_unaligned_write##n(void *p) { access(p, n, WRITE, false, RA); } \
    void __tsan_volatile_read##n(void *p) { access(p, n, READ, false, RA); }    \
    void __tsan_volatile_write##n(void *p) { access(p, n, WRITE, false, RA); }
extern "C" {
CALLBACKS(1)
CALLBACKS(2)
CALLBACKS(4)
CALLBACKS(8)
CALLBACKS(16)
void __tsan_read_range(void *p, unsigned long n) { access(p, (unsigned)n, READ, false, RA); }
void __tsan_write_range(void *p, unsigned long n) { access(p, (unsigned)n, WRITE, false, RA); }
uint8_t __tsan_atomic8_load(const volatile uint8_t *p, int) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
}
