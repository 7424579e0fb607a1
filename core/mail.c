/* mail.c: a ring of letters under a lock. That there is something to take, or room, or that the box is closed, is told by
 * two event descriptors, each readable for as long as it holds: what poll can wait for, signals can interrupt and other
 * loops can include. */
#include "base.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { SOME, ROOM, N_SIGNS }; /* there is a letter; there is room for one. A closed box shows both. */

struct pl_mail {
    pthread_mutex_t lock;
    pl_letter *ring; /* [cap] */
    int32_t cap, first, n;
    bool closed;
    bool shown[N_SIGNS];
    int fd[N_SIGNS];
};

int pl_mail_open(pl_mail **out, int32_t cap, pl_err *err)
{
    if (cap < 1) return pl_fail(err, PL_EARG, "mail: room for %d letters, want at least 1", cap);
    pl_mail *m = calloc(1, sizeof *m);
    if (!m) return pl_fail(err, PL_ENOMEM, "mail: no memory");
    pthread_mutex_init(&m->lock, NULL);
    m->cap = cap;
    m->ring = calloc((size_t)cap, sizeof *m->ring);
    m->shown[ROOM] = true;
    for (int i = 0; i < N_SIGNS; i++) m->fd[i] = eventfd(m->shown[i], EFD_CLOEXEC | EFD_NONBLOCK);
    if (!m->ring || m->fd[SOME] < 0 || m->fd[ROOM] < 0) {
        const int rc = m->ring ? pl_fail(err, PL_EIO, "mail: %s", strerror(errno))
                               : pl_fail(err, PL_ENOMEM, "mail: no memory for %d letters", cap);
        pl_mail_free(m);
        return rc;
    }
    *out = m;
    return PL_OK;
}

void pl_mail_free(pl_mail *m)
{
    if (!m) return;
    for (int32_t k = 0; k < m->n; k++) pl_letter_free(&m->ring[(m->first + k) % m->cap]);
    for (int i = 0; i < N_SIGNS; i++)
        if (m->fd[i] >= 0) close(m->fd[i]);
    pthread_mutex_destroy(&m->lock);
    free(m->ring);
    free(m);
}

void pl_letter_free(pl_letter *l)
{
    if (!l) return;
    free(l->data);
    *l = (pl_letter){0};
}

int32_t pl_mail_fd(const pl_mail *m) { return m->fd[SOME]; }

/* Under the lock, after each change: an event descriptor with a count of 1 is readable, with 0 it is not. */
static void show(pl_mail *m)
{
    const bool now[N_SIGNS] = {[SOME] = m->n > 0 || m->closed, [ROOM] = m->n < m->cap || m->closed};
    for (int i = 0; i < N_SIGNS; i++) {
        uint64_t one = 1;
        if (now[i] == m->shown[i]) continue;
        const ssize_t done = now[i] ? write(m->fd[i], &one, sizeof one) : read(m->fd[i], &one, sizeof one);
        PL_ASSERT(done == sizeof one);
        m->shown[i] = now[i];
    }
}

/* Until fd is readable, or the clock is at `until`; false: the time is over. */
static bool await(int fd, double until)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (;;) {
        const double left = until - pl_now_s();
        const double s = left < 0 ? 0 : left < 1e6 ? left : 1e6;
        const struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
        const int n = ppoll(&p, 1, &t, NULL);
        if (n > 0) return true;
        if (n == 0 && left <= 1e6) return false;
        PL_ASSERT(n == 0 || errno == EINTR);
    }
}

static int append(pl_mail *m, pl_letter *l, pl_err *err)
{
    pthread_mutex_lock(&m->lock);
    const bool closed = m->closed, full = m->n == m->cap;
    if (!closed && !full) {
        m->ring[(m->first + m->n++) % m->cap] = *l;
        show(m);
    }
    pthread_mutex_unlock(&m->lock);
    if (closed) return pl_fail(err, PL_ECLOSED, "mail: the box is closed");
    if (full) return pl_fail(err, PL_EFULL, "mail: the box holds %d letters", m->cap);
    return PL_OK;
}

int pl_mail_put(pl_mail *m, const pl_letter *l, double timeout_s, pl_err *err)
{
    if (l->n < 0 || (l->n > 0 && !l->data)) return pl_fail(err, PL_EARG, "mail: %lld bytes", (long long)l->n);
    const double until = pl_now_s() + timeout_s;
    pl_letter own = *l;
    own.data = malloc((size_t)l->n + 1);
    if (!own.data) return pl_fail(err, PL_ENOMEM, "mail: no memory for %lld bytes", (long long)l->n);
    if (l->n) memcpy(own.data, l->data, (size_t)l->n);
    own.data[l->n] = 0;
    int rc = append(m, &own, err);
    while (rc == PL_EFULL && await(m->fd[ROOM], until)) rc = append(m, &own, err);
    if (rc < 0) free(own.data);
    return rc;
}

static int take(pl_mail *m, pl_letter *out)
{
    int rc = 0;
    pthread_mutex_lock(&m->lock);
    if (m->n) {
        *out = m->ring[m->first];
        m->first = (m->first + 1) % m->cap;
        m->n--;
        rc = 1;
    } else if (m->closed) {
        rc = PL_ECLOSED;
    }
    show(m);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int pl_mail_take(pl_mail *m, pl_letter *out, double timeout_s, pl_err *err)
{
    const double until = pl_now_s() + timeout_s;
    int rc = take(m, out);
    while (rc == 0 && await(m->fd[SOME], until)) rc = take(m, out); /* another taker may have been quicker */
    return rc < 0 ? pl_fail(err, rc, "mail: the box is closed") : rc;
}

int32_t pl_mail_drop(pl_mail *m, int64_t id)
{
    int32_t n = 0;
    pthread_mutex_lock(&m->lock);
    for (int32_t k = 0; k < m->n; k++) {
        pl_letter *l = &m->ring[(m->first + k) % m->cap];
        if (l->id == id)
            pl_letter_free(l);
        else
            m->ring[(m->first + n++) % m->cap] = *l;
    }
    const int32_t dropped = m->n - n;
    m->n = n;
    show(m);
    pthread_mutex_unlock(&m->lock);
    return dropped;
}

void pl_mail_close(pl_mail *m)
{
    pthread_mutex_lock(&m->lock);
    m->closed = true;
    show(m);
    pthread_mutex_unlock(&m->lock);
}
