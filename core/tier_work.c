/* tier_work.c: the thread that copies. It touches the page, the slots and the file that its job names, and nothing else:
 * what a copy means is found out by the engine's thread when it has ended. (On a CUDA device copies go through the device's
 * one stream: right, but in turn with the steps. A stream of their own is still to come.) */
#include "mem.h"
#include "tier_impl.h"
#include <errno.h>
#include <signal.h>
#include <time.h>

void tier_push(pl_tier *t, tier_queue *q, int32_t job)
{
    t->job[job].next = -1;
    *(q->last >= 0 ? &t->job[q->last].next : &q->first) = job;
    q->last = job;
}

int32_t tier_pop(pl_tier *t, tier_queue *q)
{
    const int32_t job = q->first;
    if (job < 0) return -1;
    q->first = t->job[job].next;
    if (q->first < 0) q->last = -1;
    return job;
}

/* The page's bytes are what the digest says, if one is known; else this is their digest. */
static bool agrees(const pl_tier *t, tier_job *j, const void *bytes)
{
    const uint64_t digest = pl_kv_digest(bytes, t->kv->page_bytes);
    const bool good = !j->has_digest || digest == j->digest;
    j->digest = digest;
    return good;
}

static void copy(pl_tier *t, tier_job *j)
{
    const pl_stream *s = &t->kv->dev->stream;
    const int64_t n = t->kv->page_bytes;
    uint8_t *page = j->hold.page >= 0 ? pl_kv_page(t->kv, j->hold.page) : NULL;
    uint8_t *host = j->host >= 0 ? t->mem + j->host * n : t->bounce;
    j->good = false;
    switch (j->kind) {
    case JOB_SPILL_HOST:
    case JOB_SPILL_DISK:
        if (s->backend->copy_out(s->impl, host, page, n, NULL) < 0)
            j->error = EIO;
        else
            j->good = agrees(t, j, host);
        if (j->good && j->kind == JOB_SPILL_DISK)
            j->error = tier_file_write(&t->file, j->disk, host, &j->key, j->digest, j->stamp);
        break;
    case JOB_DEMOTE:
        j->good = agrees(t, j, host);
        if (j->good) j->error = tier_file_write(&t->file, j->disk, host, &j->key, j->digest, j->stamp);
        break;
    case JOB_LOAD_DISK:
        j->error = tier_file_read(&t->file, j->disk, host);
        if (j->error) break;
        /* fall through */
    case JOB_LOAD_HOST:
        j->good = agrees(t, j, host);
        if (j->good && s->backend->copy_in(s->impl, page, host, n, NULL) < 0) j->error = EIO;
        break;
    }
    if (j->error) j->good = false;
}

static void *work(void *arg)
{
    pl_tier *t = arg;
    pthread_mutex_lock(&t->lock);
    while (!t->quit) {
        int32_t job = -1;
        if (!t->stalled) job = tier_pop(t, &t->urgent);
        if (!t->stalled && job < 0) job = tier_pop(t, &t->calm);
        if (job < 0) {
            pthread_cond_wait(&t->work, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        const double start = pl_now_s();
        copy(t, &t->job[job]);
        t->job[job].copy_s = pl_now_s() - start;
        pthread_mutex_lock(&t->lock);
        tier_push(t, &t->done, job);
        pthread_cond_signal(&t->ended);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int tier_work_start(pl_tier *t, pl_err *err)
{
    pthread_condattr_t monotonic;
    t->urgent = t->calm = t->done = (tier_queue){-1, -1};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigset_t all, before; /* signals are the main thread's; a file that grew too large is an error of the write */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&t->worker, NULL, work, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    t->has_worker = rc == 0;
    return rc == 0 ? PL_OK : pl_fail(err, PL_ENOMEM, "tier: no thread: %s", strerror(rc));
}

void tier_work_stop(pl_tier *t)
{
    if (!t->has_worker) return;
    pthread_mutex_lock(&t->lock);
    t->quit = true;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->worker, NULL);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->ended);
    pthread_mutex_destroy(&t->lock);
    t->has_worker = false;
}

void pl_tier_stall(pl_tier *t, bool stalled)
{
    pthread_mutex_lock(&t->lock);
    t->stalled = stalled;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

bool pl_tier_wait(pl_tier *t, double s)
{
    if (!t || t->n_under_way == 0) return false;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)(s * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&t->lock);
    while (t->done.first < 0)
        if (pthread_cond_timedwait(&t->ended, &t->lock, &until) == ETIMEDOUT) break;
    const bool ended = t->done.first >= 0;
    pthread_mutex_unlock(&t->lock);
    return ended;
}

bool tier_spoil(pl_tier *t, int32_t host, int32_t disk)
{
    const tier_table *table = host >= 0 ? &t->host : &t->disk;
    const int32_t own = host >= 0 ? host : disk;
    const int64_t n = t->kv->page_bytes;
    int32_t other = 0;
    while (other < table->n && (other == own || table->slot[other].state != SLOT_FULL)) other++;
    if (other == table->n) return false;
    if (host >= 0) {
        memcpy(t->mem + own * n, t->mem + other * n, (size_t)n);
        return true;
    }
    uint8_t *page = pl_mem_map(n);
    const bool done = page && tier_file_read(&t->file, other, page) == 0 && tier_file_spoil(&t->file, own, page) == 0;
    pl_mem_unmap(page, n);
    return done;
}
