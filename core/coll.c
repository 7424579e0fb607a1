/* coll.c: the loopback group: a barrier and a table of every rank's buffer. */
#include "coll.h"
#include <pthread.h>
#include <stdlib.h>

enum { MAX_RANKS = 64 };

typedef struct group {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    int32_t n_ranks, n_here, n_handles;
    uint64_t round;
    const void *buffer[MAX_RANKS];
    int64_t bytes[MAX_RANKS];
} group;

struct pl_coll {
    group *g;
    int32_t rank;
};

int pl_coll_loopback(pl_coll **out, int32_t n, pl_err *err)
{
    if (n < 1 || n > MAX_RANKS) return pl_fail(err, PL_EARG, "collectives: %d ranks, want 1 to %d", n, MAX_RANKS);
    group *g = calloc(1, sizeof *g);
    bool ok = g != NULL;
    for (int32_t i = 0; i < n; i++) {
        out[i] = malloc(sizeof **out);
        ok = ok && out[i];
        if (out[i]) *out[i] = (pl_coll){g, i};
    }
    if (!ok) {
        for (int32_t i = 0; i < n; i++) {
            free(out[i]);
            out[i] = NULL;
        }
        free(g);
        return pl_fail(err, PL_ENOMEM, "collectives: no memory for %d ranks", n);
    }
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->all_here, NULL);
    g->n_ranks = g->n_handles = n;
    return PL_OK;
}

void pl_coll_free(pl_coll *c)
{
    if (!c) return;
    group *g = c->g;
    free(c);
    pthread_mutex_lock(&g->lock);
    const bool last = --g->n_handles == 0;
    pthread_mutex_unlock(&g->lock);
    if (!last) return;
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->all_here);
    free(g);
}

int32_t pl_coll_rank(const pl_coll *c) { return c->rank; }
int32_t pl_coll_size(const pl_coll *c) { return c->g->n_ranks; }

static void barrier(group *g)
{
    pthread_mutex_lock(&g->lock);
    const uint64_t round = g->round;
    if (++g->n_here == g->n_ranks) {
        g->n_here = 0;
        g->round++;
        pthread_cond_broadcast(&g->all_here);
    }
    while (g->round == round) pthread_cond_wait(&g->all_here, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

int pl_coll_meet(pl_coll *c, const void *mine, int64_t bytes, const void *const **all, pl_err *err)
{
    group *g = c->g;
    g->buffer[c->rank] = mine; /* each rank writes its own place; the barrier publishes it */
    g->bytes[c->rank] = bytes;
    barrier(g);
    int32_t other = 0;
    while (other < g->n_ranks && g->bytes[other] == bytes) other++;
    const int64_t theirs = other < g->n_ranks ? g->bytes[other] : bytes;
    *all = g->buffer;
    if (other == g->n_ranks) return PL_OK; /* all are equal to mine, so every rank comes to the same answer */
    barrier(g);                            /* nobody may overwrite the sizes before all have compared them */
    return pl_fail(err, PL_ESHAPE, "collective: rank %d brings %lld bytes, rank %d %lld", c->rank, (long long)bytes,
                   other, (long long)theirs);
}

void pl_coll_leave(pl_coll *c) { barrier(c->g); }
