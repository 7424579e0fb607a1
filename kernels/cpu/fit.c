/* fit.c: how many threads a step of few tokens runs on. It reads each weight once, so memory sets its pace, and a fraction of
 * a large machine's cores has all of it; the others would only lengthen the meetings at the end of each product. A step of
 * many tokens computes, and takes every thread. Results do not depend on either. */
#include "cpu.h"
#include <math.h>

/* FEWEST: a machine's memory takes more than three cores to read as fast as it can, and on a busy one chance would decide. */
enum { PIECE = 4 << 20, PER_THREAD = 8 << 20, LEAST = 64 << 20, ROUNDS = 3, FEWEST = 4 };

/* Pages that nobody wrote are all the same one. */
static void touch(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    memset((char *)arg + from, 1, (size_t)(to - from));
}

/* GB/s of all of a list of bytes, a piece of the size of a matrix after another. */
static double rate(pl_stream *s, const pl_tensor *all)
{
    const double start = pl_now_s();
    for (int64_t at = 0; at < all->dim[0]; at += PIECE) {
        double work;
        pl_tensor piece = *all;
        piece.data = (char *)all->data + at;
        piece.dim[0] = PIECE;
        pl_cpu_probe(s, PL_PROBE_READ, &piece, &work, NULL);
    }
    return (double)all->dim[0] / (pl_now_s() - start) * 1e-9;
}

int pl_cpu_fit(pl_stream *s, pl_fit *fit, int32_t cap, pl_err *err)
{
    pl_cpu *c = s->impl;
    const int64_t bytes = pl_round_up(pl_max((int64_t)PER_THREAD * s->n_threads, LEAST), PIECE);
    char *memory = s->backend->alloc(c, bytes);
    if (!memory) return pl_fail(err, PL_ENOMEM, "threads: no memory for %lld bytes to read", (long long)bytes);
    pl_parallel(s, bytes, PIECE, touch, memory);
    const pl_tensor all = {.data = memory, .dtype = PL_U8, .dev = PL_DEV_CPU, .ndim = 1, .dim = {bytes}, .stride = {1}};
    int32_t n = 0, best = 0;
    for (int32_t k = s->n_threads; n < cap && (n == 0 || k >= FEWEST); k /= 2) fit[n++] = (pl_fit){.n_threads = k};
    for (int round = 0; round < ROUNDS; round++) {
        for (int32_t i = 0; i < n; i++) {
            pl_pool_limit(c->pool, fit[i].n_threads);
            const double r = rate(s, &all);
            fit[i].gb_s = fmax(fit[i].gb_s, r);
        }
    }
    s->backend->free(c, memory, bytes);
    /* fewer only if they are clearly faster: products also compute */
    for (int32_t i = 1; i < n; i++)
        if (fit[i].gb_s > 1.05 * fit[best].gb_s) best = i;
    c->n_few = fit[best].n_threads;
    pl_pool_limit(c->pool, s->n_threads);
    return n;
}
