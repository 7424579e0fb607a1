/* http.c: the server as Lua sees it: open, take requests, answer them, close. */
#include "http.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SPARE_FILES = HTTP_EXTRA + 64 }; /* model files, the disk tier, the log, epoll */

void pl_http_defaults(pl_http_opts *o)
{
    *o = (pl_http_opts){.max_connections = 16384,
                        .max_requests = 1024,
                        .max_headers = 100,
                        .log_fd = -1,
                        .header_bytes = 16384,
                        .body_bytes = 8 << 20,
                        .bodies_bytes = 256 << 20,
                        .buffer_bytes = 1 << 20,
                        .header_s = 10,
                        .body_s = 60,
                        .idle_s = 60,
                        .send_s = 60,
                        .stall_s = 30};
}

static int check_options(const pl_http_opts *o, pl_err *err)
{
    if (o->port < 0 || o->port > 65535) return pl_fail(err, PL_EARG, "http: port %d, want 0 to 65535", o->port);
    if (o->max_connections < 1 || o->max_connections > 1000000)
        return pl_fail(err, PL_EARG, "http: %d connections, want 1 to 1000000", o->max_connections);
    if (o->max_requests < 1 || o->max_requests > 1000000 || o->max_headers < 1)
        return pl_fail(err, PL_EARG, "http: %d requests and %d headers, want 1 or more", o->max_requests,
                       o->max_headers);
    if (o->header_bytes < 256 || o->header_bytes > 1 << 20 || o->body_bytes < 1 || o->body_bytes > 1 << 30 ||
        o->bodies_bytes < o->body_bytes || o->buffer_bytes < 1)
        return pl_fail(err, PL_EARG,
                       "http: limits of bytes: header 256 to 1 MB, body 1 to 1 GB, bodies at least one body");
    if (!(o->header_s > 0 && o->body_s > 0 && o->idle_s > 0 && o->send_s > 0 && o->stall_s > 0))
        return pl_fail(err, PL_EARG, "http: limits of time, want more than 0");
    if (!o->cert != !o->key) return pl_fail(err, PL_EARG, "http: TLS wants a certificate and a key");
    return PL_OK;
}

/* As many descriptors as the system allows; where that is less than connections need, fewer connections. */
static void raise_files(pl_http_opts *o)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0) return;
    const rlim_t want = (rlim_t)o->max_connections + SPARE_FILES;
    if (r.rlim_cur < r.rlim_max) {
        const rlim_t before = r.rlim_cur;
        r.rlim_cur = r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r) < 0) r.rlim_cur = before;
    }
    if (r.rlim_cur < want)
        o->max_connections = r.rlim_cur > 2 * SPARE_FILES ? (int32_t)r.rlim_cur - SPARE_FILES : SPARE_FILES;
}

static int listen_on(pl_http *h, pl_err *err)
{
    const struct addrinfo hint = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *a = NULL;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } got = {.v6 = {0}};
    socklen_t n = sizeof got;
    const char *address = h->o.address ? h->o.address : "127.0.0.1";
    const int on = 1, port = h->o.port;
    int rc = PL_OK, fd = -1;
    if (getaddrinfo(address, NULL, &hint, &a) != 0)
        return pl_fail(err, PL_EARG, "http: address '%.100s', want a numeric one", address);
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)a->ai_addr)->sin_port = htons((uint16_t)port);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 1024) < 0 || getsockname(fd, &got.any, &n) < 0) {
        rc = pl_fail(err, PL_EIO, "http: %.60s port %d: %s", address, port, strerror(errno));
        if (fd >= 0) close(fd);
    } else {
        h->listen_fd = fd;
        h->port = ntohs(got.any.sa_family == AF_INET6 ? got.v6.sin6_port : got.v4.sin_port);
    }
    freeaddrinfo(a);
    return rc;
}

int pl_http_open(pl_http **out, const pl_http_opts *o, pl_err *err)
{
    PL_TRY(check_options(o, err));
    if (sodium_init() < 0) return pl_fail(err, PL_EIO, "http: libsodium does not start");
    pl_http *h = calloc(1, sizeof *h);
    if (!h) return pl_fail(err, PL_ENOMEM, "http: no memory");
    int rc = PL_OK;
    h->o = *o;
    h->epoll_fd = h->stop_fd = h->news_fd = h->listen_fd = -1;
    h->retry_s = 1;
    pthread_mutex_init(&h->lock, NULL);
    randombytes_buf(h->secret, sizeof h->secret);
    raise_files(&h->o);
    h->n_slots = h->o.max_connections + HTTP_EXTRA;
    const size_t n = (size_t)h->n_slots;
    h->conn = calloc(n, sizeof(pl_http_conn *));
    h->unused = calloc(n, sizeof *h->unused);
    h->gone = calloc((size_t)h->o.max_requests, sizeof *h->gone);
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!h->conn || !h->unused || !h->gone || h->epoll_fd < 0 || h->stop_fd < 0 || h->news_fd < 0) {
        rc = pl_fail(err, PL_ENOMEM, "http: no memory or descriptors for %d connections", h->o.max_connections);
        goto failed;
    }
    for (int32_t i = h->n_slots; i-- > 0;) h->unused[h->n_unused++] = i;
    rc = listen_on(h, err);
    if (rc == PL_OK) rc = pl_http_start(h, err);
    if (rc < 0) goto failed;
    h->o.cert = h->o.key = h->o.address = NULL; /* the caller's, for the call */
    *out = h;
    return PL_OK;
failed:
    pl_http_close(h);
    return rc;
}

static void shut(int fd)
{
    if (fd >= 0) close(fd);
}

void pl_http_close(pl_http *h)
{
    if (!h) return;
    if (h->watching) {
        uint64_t one = 1;
        (void)!write(h->stop_fd, &one, sizeof one);
        pthread_join(h->watcher, NULL);
    }
    pthread_mutex_lock(&h->lock);
    h->closing = true; /* from here on no connection is suspended: the daemon could not stop with one */
    for (int32_t i = 0; h->conn && i < h->n_slots; i++)
        if (h->conn[i]) pl_http_resume(h->conn[i]);
    pthread_mutex_unlock(&h->lock);
    if (h->daemon)
        MHD_stop_daemon(h->daemon); /* closes the socket that it listens on, unless drain did */
    else
        shut(h->listen_fd);
    shut(h->epoll_fd);
    shut(h->stop_fd);
    shut(h->news_fd);
    pthread_mutex_destroy(&h->lock);
    free(h->conn);
    free(h->unused);
    free(h->gone);
    free(h->held);
    free(h->key);
    free(h->tenant);
    free(h);
}

void pl_http_drain(pl_http *h)
{
    pthread_mutex_lock(&h->lock);
    const bool was = h->draining;
    h->draining = true;
    for (int32_t i = 0; i < h->n_slots; i++)
        if (h->conn[i] && h->conn[i]->state == HTTP_IDLE) h->conn[i]->deadline_s = pl_now_s();
    pthread_mutex_unlock(&h->lock);
    if (!was) shut(MHD_quiesce_daemon(h->daemon));
}

int32_t pl_http_port(const pl_http *h) { return h->port; }
int32_t pl_http_fd(const pl_http *h) { return h->news_fd; }

/* Taking ------------------------------------------------------------------------------------------------- */

static void take(pl_http *h, pl_http_request *out)
{
    pthread_mutex_lock(&h->lock);
    free(h->held);
    h->held = NULL;
    out->kind = PL_HTTP_NONE;
    if (h->n_gone) { /* first: it makes room */
        out->kind = PL_HTTP_GONE;
        out->id = h->gone[h->gone_at];
        h->gone_at = (h->gone_at + 1) % h->o.max_requests;
        h->n_gone--;
        h->n_open--;
    } else if (h->first) {
        pl_http_conn *c = h->first;
        pl_http_out_of_line(h, c);
        c->taken = true;
        h->held = c->body;
        h->n_bodies -= c->body_cap;
        c->body = NULL, c->body_cap = 0;
        *out = c->req;
        out->n_body = h->held ? c->n_body : 0;
        out->body = h->held ? h->held : "";
    }
    pl_http_show(h);
    pthread_mutex_unlock(&h->lock);
}

int pl_http_next(pl_http *h, pl_http_request *out, int32_t fd, double timeout_s, pl_err *err)
{
    take(h, out);
    if (out->kind != PL_HTTP_NONE || timeout_s <= 0) return PL_OK;
    struct pollfd p[] = {{.fd = h->news_fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    const int n = poll(p, 2, pl_ms(timeout_s));
    if (n < 0 && errno != EINTR) return pl_fail(err, PL_EIO, "http: poll: %s", strerror(errno));
    if (n > 0 && p[0].revents) take(h, out);
    return PL_OK;
}

/* Answering ---------------------------------------------------------------------------------------------- */

static pl_http_conn *taken(pl_http *h, int64_t id, int state)
{
    pl_http_conn *c = id > 0 ? h->conn[id % h->n_slots] : NULL;
    return c && c->id == id && c->taken && !c->dead && c->state == state ? c : NULL;
}

static int add_headers(struct MHD_Response *r, const char *lines, bool *is_events, pl_err *err)
{
    char name[64], value[512];
    for (const char *p = lines; p && *p;) {
        const char *colon = strchr(p, ':'), *end = strchrnul(p, '\n');
        if (!colon || colon > end || colon - p >= (int)sizeof name || end - colon >= (int)sizeof value)
            return pl_fail(err, PL_EARG, "http: header '%.60s', want `Name: value`", p);
        memcpy(name, p, (size_t)(colon - p));
        name[colon - p] = 0;
        for (colon++; *colon == ' ';) colon++;
        memcpy(value, colon, (size_t)(end - colon));
        value[end - colon] = 0;
        if (MHD_add_response_header(r, name, value) != MHD_YES) return pl_fail(err, PL_EARG, "http: header '%s'", name);
        *is_events = *is_events || (!strcasecmp(name, "content-type") && !strncasecmp(value, "text/event-stream", 17));
        p = *end ? end + 1 : end;
    }
    return PL_OK;
}

/* The answer of a request that waits; the connection goes on with it. */
static int give(pl_http *h, int64_t id, int32_t status, const char *headers, struct MHD_Response *r, int64_t n,
                pl_err *err)
{
    bool is_events = false;
    int rc = status < 200 || status > 599 ? pl_fail(err, PL_EARG, "http: status %d, want 200 to 599", status)
             : !r                         ? pl_fail(err, PL_ENOMEM, "http: no memory for an answer")
                                          : add_headers(r, headers, &is_events, err);
    pthread_mutex_lock(&h->lock);
    pl_http_conn *c = taken(h, id, HTTP_WAITING);
    if (rc == PL_OK && !c) rc = PL_ECANCEL;
    if (rc < 0) {
        pthread_mutex_unlock(&h->lock);
        if (r) MHD_destroy_response(r);
        return rc;
    }
    c->status = (unsigned)status;
    c->answer = r;
    c->n_answer = n;
    c->is_events = is_events;
    if (n < 0) {
        c->state = HTTP_STREAMING;
        c->n_answer = 0;
        if (!strcmp(c->req.method, "HEAD")) c->is_last = true; /* the library ends a body that is not sent */
    } else {
        c->state = HTTP_SENDING;
        c->taken = false;
        h->n_open--;
    }
    c->deadline_s = pl_now_s() + h->o.send_s;
    pl_http_resume(c);
    pthread_mutex_unlock(&h->lock);
    return PL_OK;
}

int pl_http_answer(pl_http *h, int64_t id, int32_t status, const char *headers, const void *body, int64_t n,
                   pl_err *err)
{
    if (n < 0) return pl_fail(err, PL_EARG, "http: an answer of %lld bytes", (long long)n);
    return give(h, id, status, headers,
                MHD_create_response_from_buffer((size_t)n, (void *)(intptr_t)body, MHD_RESPMEM_MUST_COPY), n, err);
}

int pl_http_begin(pl_http *h, int64_t id, int32_t status, const char *headers, pl_err *err)
{
    pl_http_stream *s = malloc(sizeof *s);
    if (!s) return pl_fail(err, PL_ENOMEM, "http: no memory for an answer");
    *s = (pl_http_stream){h, id};
    return give(h, id, status, headers,
                MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, pl_http_read, s, free), -1, err);
}

int pl_http_append(pl_http *h, pl_http_conn *c, const void *data, int64_t n)
{
    if (c->out_n + n > h->o.buffer_bytes) return PL_EFULL;
    if (n == 0) return PL_OK;
    if (c->out_n == 0) c->out_at = 0, c->deadline_s = pl_now_s() + h->o.send_s;
    if (c->out_at + c->out_n + n > c->out_cap) {
        if (c->out_n) memmove(c->out, c->out + c->out_at, (size_t)c->out_n);
        c->out_at = 0;
        if (c->out_n + n > c->out_cap) {
            const int64_t cap = pl_max(2 * c->out_cap, pl_max(c->out_n + n, 1024));
            char *p = realloc(c->out, (size_t)cap);
            if (!p) return PL_EFULL;
            c->out = p, c->out_cap = cap;
        }
    }
    memcpy(c->out + c->out_at + c->out_n, data, (size_t)n);
    c->out_n += n;
    pl_http_resume(c);
    return PL_OK;
}

int pl_http_send(pl_http *h, int64_t id, const void *data, int64_t n, pl_err *err)
{
    if (n < 0) return pl_fail(err, PL_EARG, "http: a piece of %lld bytes", (long long)n);
    pthread_mutex_lock(&h->lock);
    pl_http_conn *c = taken(h, id, HTTP_STREAMING);
    int rc = c ? pl_http_append(h, c, data, n) : PL_ECANCEL;
    if (rc == PL_EFULL) { /* the caller has heard of it now */
        h->m.slow++;
        h->n_open--;
        c->taken = false;
        pl_http_lost(h, c, "slow");
    }
    pthread_mutex_unlock(&h->lock);
    return rc;
}

int pl_http_end(pl_http *h, int64_t id, pl_err *err)
{
    (void)err;
    pthread_mutex_lock(&h->lock);
    pl_http_conn *c = taken(h, id, HTTP_STREAMING);
    if (c) {
        c->ended = true;
        c->taken = false;
        h->n_open--;
        c->deadline_s = pl_now_s() + h->o.send_s;
        pl_http_resume(c);
    }
    pthread_mutex_unlock(&h->lock);
    return c ? PL_OK : PL_ECANCEL;
}

void pl_http_note(pl_http *h, int64_t id, const char *json)
{
    pthread_mutex_lock(&h->lock);
    pl_http_conn *c = id > 0 ? h->conn[id % h->n_slots] : NULL;
    if (c && c->id == id && strlen(json) < sizeof c->note) memcpy(c->note, json, strlen(json) + 1);
    pthread_mutex_unlock(&h->lock);
}

void pl_http_beat(pl_http *h, bool ready, bool stepped)
{
    pthread_mutex_lock(&h->lock);
    h->beat_s = pl_now_s();
    if (stepped) h->step_s = h->beat_s;
    h->ready = ready;
    pthread_mutex_unlock(&h->lock);
}

void pl_http_get_stats(pl_http *h, pl_http_stats *out)
{
    pthread_mutex_lock(&h->lock);
    *out = h->m;
    out->n_open = h->n_open;
    out->n_connections = h->n_slots - h->n_unused;
    out->max_connections = h->o.max_connections;
    pthread_mutex_unlock(&h->lock);
}
