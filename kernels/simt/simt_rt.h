// simt_rt.h: what the halves of the runtime share: one Worker runs the threads of one block at a time.
#pragma once
#include "simt.h"
#include <mutex>
#include <vector>
#ifdef __SANITIZE_ADDRESS__
#define SIMT_ASAN 1
#else
#define SIMT_ASAN 0
#endif

namespace simt
{
enum { NEW, READY, BLOCKED, POLLING, DONE }; // Thr::state
enum { FORWARD = 0, REVERSE, RANDOM };
struct Config {
    int order, lazy, defer, strict, quiet, threads, spin_ms;
    unsigned long seed;
};
extern Config cfg;
extern std::mutex mu;
const size_t STACK = SIMT_ASAN ? 256 * 1024 : 64 * 1024;

struct Rendezvous {
    unsigned mask, arrived;
    const char *op;
};
struct Warp {
    Rendezvous rv[32]; // masks of one warp that are live at the same time
    unsigned exist, done;
};
struct Barrier {
    unsigned need, arrived;
    int acc, result;
    const char *op, *file;
    int line;
    std::vector<Thr *> wait;
};
struct Op { // an asynchronous operation of the block
    void (*fn)(void *);
    alignas(16) unsigned char arg[192];
};
struct Worker {
    char *stacks;
    size_t n_stacks, stride;
    std::vector<char *> free_stack;
    std::vector<Thr> thr;
    std::vector<void *> arg; // [thread] argument of its current collective
    std::vector<Warp> warp;
    Barrier bar[16], grp[16];
    std::vector<Thr *> ready; // from head on
    size_t head;
    std::vector<Thr *> polling;
    std::vector<Op> ops;
    void *main_sp;
    unsigned nthr, alive;
    bool abort, prog; // prog: something happened that a polling thread may have waited for
    unsigned long rng, switches, collectives, serial;
    double spin_t0;
    Code code;
    unsigned char *dyn;
    size_t dyn_n;
    char *tls0; // the module's TLS segment: static shared memory
    size_t tls_n;
    void *user;
    const void *main_bottom;
    size_t main_size;
};
inline Worker *worker() { return (Worker *)tls.worker; }

void wake(Worker *w, Thr *t);
void block_here(Worker *w, Thr *t, int state);
void leave(Worker *w); // gives the block up
void describe_fail(int code, bool states, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void thread_done(Worker *w, Thr *t);
} // namespace simt
