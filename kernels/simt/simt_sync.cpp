// simt_sync.cpp: the points where threads meet (warp collectives, barriers, polling), and the reports.
#include "simt_rt.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

namespace simt
{
static char report[16384];
static int first_code;

// A census of where all threads of the block stand.
static void describe(Worker *w, char *out, size_t cap)
{
    struct Group {
        const char *op, *file;
        int line;
        unsigned state, mask, n, first;
    };
    static const char *const name[] = {"not started", "runnable", "waiting in", "polling", "exited"};
    std::vector<Group> groups;
    for (unsigned i = 0; i < w->nthr; i++) {
        const Thr &t = w->thr[i];
        Group *same = nullptr;
        for (Group &g : groups)
            if (g.op == t.op && g.line == t.line && g.state == t.state && g.mask == t.wmask) same = &g;
        if (same)
            same->n++;
        else if (groups.size() < 12)
            groups.push_back({t.op, t.file, t.line, t.state, t.wmask, 1, i});
    }
    size_t k = strlen(out);
    for (const Group &g : groups) {
        if (k + 300 > cap) break;
        k += (size_t)snprintf(out + k, cap - k, "\n    %4u thread(s) %s", g.n, name[g.state]);
        if (g.state != DONE && g.state != NEW)
            k += (size_t)snprintf(out + k, cap - k, " %s mask %08x at %s:%d", g.op ? g.op : "?", g.mask,
                                  g.file ? g.file : "?", g.line);
        k += (size_t)snprintf(out + k, cap - k, ", first: thread %u", g.first);
    }
}

static void vfail(int code, bool states, const char *fmt, va_list ap)
{
    std::lock_guard<std::mutex> lock(mu);
    if (first_code) return;
    first_code = code;
    Worker *w = worker();
    const Thr *t = tls.cur;
    size_t k = 0;
    const size_t cap = sizeof report;
    k += (size_t)snprintf(report, cap, "[simt %d]", code);
    if (w && w->code.name) k += (size_t)snprintf(report + k, cap - k, " kernel %s", w->code.name);
    if (t)
        k += (size_t)snprintf(report + k, cap - k, " block (%u,%u,%u) thread (%u,%u,%u) warp %u lane %u", t->bid.x,
                              t->bid.y, t->bid.z, t->tid.x, t->tid.y, t->tid.z, t->wid, t->lane);
    if (t && t->op && t->file)
        k += (size_t)snprintf(report + k, cap - k, " last sync %s at %s:%d", t->op, t->file, t->line);
    k += (size_t)snprintf(report + k, cap - k, ": ");
    vsnprintf(report + k, cap - k, fmt, ap);
    if (states && w) describe(w, report, cap);
    if (!cfg.quiet) fprintf(stderr, "%s\n", report);
    if (getenv("SIMT_ABORT")) abort();
}

void describe_fail(int code, bool states, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfail(code, states, fmt, ap);
    va_end(ap);
}

// A fatal problem ends the block: the calling thread never returns.
void fail(int code, bool fatal, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfail(code, fatal, fmt, ap);
    va_end(ap);
    if (fatal && tls.worker && tls.cur) leave(worker());
}

static Thr *mark(const char *op, unsigned mask, const char *file, int line)
{
    Thr *t = tls.cur;
    t->op = op;
    t->file = file;
    t->line = line;
    t->wmask = mask;
    worker()->collectives++;
    return t;
}

static void release(Worker *w, Barrier &b)
{
    b.arrived = 0;
    for (Thr *x : b.wait) wake(w, x);
    b.wait.clear();
    w->prog = true;
}

void warp_coll(unsigned mask, const char *op, void *arg, Leader fn, void *extra, const char *file, int line)
{
    Worker *w = worker();
    Thr *t = mark(op, mask, file, line);
    Warp &wp = w->warp[t->wid];
    if (!(mask >> t->lane & 1))
        fail(SIMT_MASK, true, "%s mask %08x does not contain the calling lane %u (%s:%d)", op, mask, t->lane, file,
             line);
    const unsigned m = mask & wp.exist;
    if (m & wp.done)
        fail(SIMT_MASK, true, "%s mask %08x names lanes %08x that have exited (%s:%d)", op, mask, m & wp.done, file,
             line);
    Rendezvous *r = nullptr;
    for (Rendezvous &x : wp.rv) {
        if (x.arrived && x.mask == m) {
            r = &x;
            break;
        }
        if (!r && !x.arrived) r = &x;
    }
    if (!r->arrived) {
        r->mask = m;
        r->op = op;
    } else if (r->op != op && strcmp(r->op, op)) {
        fail(SIMT_DIVERGENCE, true, "lanes of one warp meet in different collectives: %s and %s (%s:%d)", r->op, op,
             file, line);
    }
    w->arg[t->lin] = arg;
    r->arrived |= 1u << t->lane;
    if (r->arrived != m) {
        block_here(w, t, BLOCKED);
        return;
    }
    r->arrived = 0;
    const unsigned base = t->wid * 32;
    if (fn) {
        void *a[32]; // a copy on this stack: private memory to the checker
        memcpy(a, &w->arg[base], sizeof a);
        fn(a, m, extra);
    } else if (hooks.warp_sync) { // only __syncwarp orders memory
        hooks.warp_sync(t->wid, m);
    }
    for (unsigned l = 0; l < 32; l++)
        if (m >> l & 1 && l != t->lane) wake(w, &w->thr[base + l]);
    w->prog = true;
}

// Barrier 0 with need 0 is __syncthreads: all threads of the block. The others are named, with a count.
int block_bar(int id, unsigned need, bool wait, const char *op, int pred, int red, const char *file, int line)
{
    Worker *w = worker();
    Thr *t = mark(op, 0xffffffffu, file, line);
    Barrier &b = w->bar[id & 15];
    const unsigned n = need ? need : w->nthr;
    if (!b.arrived) {
        b.need = n;
        b.op = op;
        b.file = file;
        b.line = line;
        b.acc = red == RED_AND;
    } else if (b.need != n) {
        fail(SIMT_DIVERGENCE, true, "barrier %d used with %u and %u threads", id, b.need, n);
    } else if (cfg.strict && id == 0 && (b.line != line || strcmp(b.file, file))) {
        fail(SIMT_DIVERGENCE, true, "threads of one block meet at different barriers: %s:%d and %s:%d", b.file, b.line,
             file, line);
    }
    if (red == RED_ADD) b.acc += pred;
    if (red == RED_AND) b.acc &= pred;
    if (red == RED_OR) b.acc |= pred;
    b.arrived++;
    if (hooks.obj && id) hooks.obj(&b, true, false);
    const unsigned gone = id == 0 ? w->nthr - w->alive : 0;
    if (b.arrived + gone < n) {
        if (!wait) return 0;
        b.wait.push_back(t);
        block_here(w, t, BLOCKED);
        if (hooks.obj && id) hooks.obj(&b, false, true);
        return b.result;
    }
    if (gone && cfg.strict) fail(SIMT_DIVERGENCE, true, "%u thread(s) exited before %s (%s:%d)", gone, op, file, line);
    b.result = b.acc;
    if (id == 0 && hooks.block_sync) hooks.block_sync();
    release(w, b);
    if (hooks.obj && id && wait) hooks.obj(&b, false, true);
    return b.result;
}

// Collectives of gs consecutive threads (a warpgroup: 128).
void group_coll(unsigned gs, const char *op, void *arg, Leader fn, void *extra, const char *file, int line)
{
    Worker *w = worker();
    Thr *t = mark(op, 0xffffffffu, file, line);
    const unsigned gi = t->lin / gs;
    Barrier &b = w->grp[gi & 15];
    if ((gi + 1) * gs > w->nthr) fail(SIMT_MASK, true, "%s needs a full group of %u threads", op, gs);
    if (b.arrived && b.op != op && strcmp(b.op, op))
        fail(SIMT_DIVERGENCE, true, "%s meets %s in one warpgroup", b.op, op);
    b.op = op;
    w->arg[t->lin] = arg;
    if (++b.arrived < gs) {
        b.wait.push_back(t);
        block_here(w, t, BLOCKED);
        return;
    }
    if (fn) {
        void *a[256];
        memcpy(a, &w->arg[gi * gs], gs * sizeof *a);
        fn(a, gs, extra);
    }
    release(w, b);
}

void poll(const char *op, const char *file, int line)
{
    Worker *w = worker();
    Thr *t = mark(op, 0, file, line);
    w->polling.push_back(t);
    block_here(w, t, POLLING);
}

// A thread has returned from the kernel. On a device exits count as arrivals; to us they are a bug that works by luck.
void thread_done(Worker *w, Thr *t)
{
    t->state = DONE;
    t->op = "exited";
    w->alive--;
    w->prog = true;
    w->warp[t->wid].done |= 1u << t->lane;
    Barrier &b = w->bar[0];
    if (!b.arrived || !w->alive || b.arrived + (w->nthr - w->alive) < w->nthr) return;
    if (cfg.strict)
        fail(SIMT_DIVERGENCE, true, "%u thread(s) exited while %u wait at %s (%s:%d)", w->nthr - w->alive, b.arrived,
             b.op, b.file, b.line);
    b.result = b.acc;
    release(w, b);
}
} // namespace simt

extern "C" int simt_status(void)
{
    std::lock_guard<std::mutex> lock(simt::mu);
    const int c = simt::first_code;
    simt::first_code = 0;
    return c;
}
extern "C" const char *simt_report(void) { return simt::report; }
