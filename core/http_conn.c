/* http_conn.c: one connection from its first byte to its last. libmicrohttpd calls the upper half from its thread; the
 * lower half is the watch: libmicrohttpd does not look at a connection that is suspended, nor at how long a head takes that
 * comes byte by byte. */
#include "http.h"
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE_MS = 250, EXTRA_S = 1 };

void pl_http_show(pl_http *h)
{
    const bool now = h->first || h->n_gone;
    uint64_t one = 1;
    if (now == h->news) return;
    const ssize_t done = now ? write(h->news_fd, &one, sizeof one) : read(h->news_fd, &one, sizeof one);
    PL_ASSERT(done == sizeof one);
    h->news = now;
}

void pl_http_resume(pl_http_conn *c)
{
    if (!c->suspended) return;
    c->suspended = false;
    MHD_resume_connection(c->mhd);
}

void pl_http_out_of_line(pl_http *h, pl_http_conn *c)
{
    *(c->prev ? &c->prev->next : &h->first) = c->next;
    *(c->next ? &c->next->prev : &h->last) = c->prev;
    c->next = c->prev = NULL;
    c->queued = false;
}

static void unwatch(pl_http *h, pl_http_conn *c)
{
    if (c->watched) epoll_ctl(h->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    c->watched = false;
}

/* The client of a request has gone, or is given up: who works on it hears of it, and the connection closes. */
void pl_http_lost(pl_http *h, pl_http_conn *c, const char *why)
{
    if (c->dead) return;
    c->dead = true;
    c->why = why;
    if (c->queued) {
        pl_http_out_of_line(h, c);
        h->n_open--;
    } else if (c->taken) {
        PL_ASSERT(h->n_gone < h->o.max_requests);
        h->gone[(h->gone_at + h->n_gone++) % h->o.max_requests] = c->id;
        c->taken = false;
    }
    pl_http_show(h);
    unwatch(h, c);
    shutdown(c->fd, SHUT_RDWR); /* a connection that waits for its client to read is not called otherwise */
    pl_http_resume(c);
}

/* What libmicrohttpd calls ------------------------------------------------------------------------------- */

static pl_http_conn *conn_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    pl_http *h = cls;
    pl_http_conn *c = *context;
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (c) {
            h->conn[c->slot] = NULL;
            h->unused[h->n_unused++] = c->slot;
            free(c);
        }
        *context = NULL;
    } else {
        const union MHD_ConnectionInfo *i = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        c = i && h->n_unused ? calloc(1, sizeof *c) : NULL;
        if (c) {
            *c = (pl_http_conn){.mhd = mhd, .fd = i->connect_fd, .slot = h->unused[--h->n_unused]};
            c->is_extra = h->n_unused < HTTP_EXTRA;
            c->deadline_s = pl_now_s() + (c->is_extra && h->o.header_s > EXTRA_S ? EXTRA_S : h->o.header_s);
            h->conn[c->slot] = c;
            h->m.connections++;
        }
        *context = c;
    }
    pthread_mutex_unlock(&h->lock);
}

static void *on_target(void *cls, const char *target, struct MHD_Connection *mhd)
{
    (void)cls;
    pl_http_conn *c = conn_of(mhd);
    if (!c) return NULL;
    free(c->target); /* of a request whose head was not complete */
    c->target = strndup(target, HTTP_MAX_TARGET + 1);
    return c;
}

static size_t as_it_is(void *cls, struct MHD_Connection *mhd, char *s)
{
    (void)cls;
    (void)mhd;
    return strlen(s);
}

/* Have more bytes come than the requests that were read? Then there are two readings of them (http_head.c), or a client that
 * does not wait for answers; neither gets another answer. Under TLS what comes cannot be counted. */
static bool has_more(const pl_http *h, const pl_http_conn *c)
{
    struct tcp_info t = {0};
    socklen_t n = sizeof t;
    return !h->tls && getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &t, &n) == 0 &&
           t.tcpi_bytes_received > (uint64_t)(c->n_read + c->n_head + c->n_body);
}

/* Makes an answer the next one to be queued; the connection's state is then SENDING. A request whose body may still come
 * ends its connection. */
static enum MHD_Result reply(pl_http *h, pl_http_conn *c, unsigned status, struct MHD_Response *r, bool closes)
{
    if (!r) return MHD_NO;
    c->status = status;
    c->answer = r;
    c->is_due = true;
    c->closes = closes || h->draining || c->is_last || has_more(h, c);
    if (c->state != HTTP_STREAMING) {
        c->state = HTTP_SENDING;
        c->deadline_s = pl_now_s() + h->o.send_s;
    }
    return MHD_YES;
}

/* Without our lock: the library holds a stream's own while it asks for more of it. */
static enum MHD_Result queue_answer(pl_http_conn *c, struct MHD_Response *r)
{
    MHD_add_response_header(r, "X-Request-Id", c->req.request_id);
    if (c->closes) MHD_add_response_header(r, "Connection", "close");
    const enum MHD_Result rc = MHD_queue_response(c->mhd, c->status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result refuse(pl_http *h, pl_http_conn *c, unsigned status, const char *why, bool closes)
{
    h->m.refused++;
    if (status == 401) h->m.unauthorized++;
    if (status == 429 || status == 503) h->m.overloads++;
    c->why = "refused";
    return reply(h, c, status, pl_http_error(h, status, why), closes);
}

static enum MHD_Result answer_health(pl_http *h, pl_http_conn *c)
{
    char text[160], age[32] = "null";
    const double now = pl_now_s();
    const bool live = h->beat_s > 0 && now - h->beat_s < h->o.stall_s;
    const bool ready = live && h->ready && !h->draining;
    if (h->step_s > 0) snprintf(age, sizeof age, "%.3f", now - h->step_s);
    const int n = snprintf(text, sizeof text, "{\"live\":%s,\"open\":%d,\"ready\":%s,\"step_age_s\":%s}",
                           live ? "true" : "false", h->n_open, ready ? "true" : "false", age);
    struct MHD_Response *r = MHD_create_response_from_buffer((size_t)n, text, MHD_RESPMEM_MUST_COPY);
    if (r) MHD_add_response_header(r, "Content-Type", "application/json");
    c->n_answer = n;
    return reply(h, c, ready ? 200 : 503, r, c->is_extra);
}

static bool is_health(const pl_http_conn *c)
{
    return !strcmp(c->req.path, "/health") && (!strcmp(c->req.method, "GET") || !strcmp(c->req.method, "HEAD"));
}

/* The head is complete, the body is not. */
static enum MHD_Result begin(pl_http *h, pl_http_conn *c, const char *method, const char *version)
{
    pl_http_head head;
    const double now = pl_now_s();
    c->began_s = now;
    c->state = HTTP_READING;
    c->is_old = !strcmp(version, "HTTP/1.0");
    c->deadline_s = now + h->o.body_s;
    c->req = (pl_http_request){.kind = PL_HTTP_REQUEST};
    h->m.requests++;
    c->id = ++h->n_ids * h->n_slots + c->slot;
    pl_http_parse_head(c->mhd, c, method, version, &head);
    if (!c->req.request_id[0]) snprintf(c->req.request_id, sizeof c->req.request_id, "req-%llx", (long long)c->id);
    c->req.id = c->id;
    c->n_head = head.size;
    c->is_last = head.n_coding > 0; /* where its chunks end the library may see otherwise than a proxy */
    const pl_http_refusal no = pl_http_check_head(h, c, method, version, &head);
    if (no.status) return refuse(h, c, no.status, no.why, true);
    c->is_extra = c->is_extra && h->n_unused < HTTP_EXTRA;
    if (is_health(c)) return MHD_YES;
    if (c->is_extra) return refuse(h, c, 503, "too many connections", true);
    if (h->has_keys) {
        c->req.tenant = pl_http_tenant_of(h, head.auth);
        if (c->req.tenant < 0) return refuse(h, c, 401, "want an API key: Authorization: Bearer KEY", true);
        memcpy(c->req.tenant_name, h->tenant[c->req.tenant].name, sizeof c->req.tenant_name);
    }
    if (h->draining) return refuse(h, c, 503, "the server is shutting down", true);
    return MHD_YES;
}

static const char *why_refused(const pl_http_conn *c)
{
    return c->refused == 413 ? "the body is too long" : "no memory for another body";
}

/* A body that is not wanted any more. Its client is told at once, and may send as much again: a connection that is closed
 * while bytes come loses what was sent to it. The library takes no answer before the body's end: under TLS it comes there. */
static void refuse_body(pl_http *h, pl_http_conn *c, int status)
{
    if (c->refused) return;
    c->refused = status;
    c->told = pl_http_tell(h, c, (unsigned)status, why_refused(c));
    if (!c->told) return;
    c->status = (unsigned)status;
    c->why = "refused";
    h->m.refused++;
    h->m.overloads += status == 503;
}

static enum MHD_Result receive(pl_http *h, pl_http_conn *c, const char *data, int64_t n)
{
    h->m.bytes_in += (uint64_t)n;
    if (c->n_body + n > h->o.body_bytes) refuse_body(h, c, 413);
    if (c->refused) {
        c->n_body += n;
        return c->n_body > 2 * h->o.body_bytes ? MHD_NO : MHD_YES;
    }
    if (c->n_body + n > c->body_cap) {
        const int64_t cap = pl_min(pl_max(c->n_body + n, 2 * c->body_cap), h->o.body_bytes), more = cap - c->body_cap;
        char *p = h->n_bodies + more > h->o.bodies_bytes ? NULL : realloc(c->body, (size_t)cap + 1);
        if (!p) {
            refuse_body(h, c, 503);
            c->n_body += n;
            return MHD_YES;
        }
        h->n_bodies += more;
        c->body = p, c->body_cap = cap;
    }
    memcpy(c->body + c->n_body, data, (size_t)n);
    c->n_body += n;
    return MHD_YES;
}

static void watch(pl_http *h, pl_http_conn *c)
{
    struct epoll_event e = {.events = EPOLLRDHUP, .data.u64 = (uint64_t)c->id};
    c->watched = epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, c->fd, &e) == 0;
}

/* The request is complete: it joins the line. */
static enum MHD_Result complete(pl_http *h, pl_http_conn *c)
{
    if (c->told) return MHD_NO;
    if (c->refused) return refuse(h, c, (unsigned)c->refused, why_refused(c), true);
    if (is_health(c)) return answer_health(h, c);
    if (h->n_open >= h->o.max_requests) return refuse(h, c, 429, "too many requests at once", false);
    if (!c->settled) {
        /* Suspended now, it would be read from when it is resumed, and closed if its client has half-closed by then. The
         * library calls again at once, and then it reads no more before there is an answer. */
        c->settled = true;
        return MHD_YES;
    }
    h->n_open++;
    c->state = HTTP_WAITING;
    c->deadline_s = 0;
    c->queued = true;
    c->prev = h->last;
    *(h->last ? &h->last->next : &h->first) = c;
    h->last = c;
    watch(h, c);
    MHD_suspend_connection(c->mhd);
    c->suspended = true;
    pl_http_show(h);
    return MHD_YES;
}

static enum MHD_Result hand_over(pl_http *h, pl_http_conn *c) /* resumed: there is an answer, or there will be none */
{
    return !c->dead && c->answer ? reply(h, c, c->status, c->answer, false) : MHD_NO;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n, void **context)
{
    pl_http *h = cls;
    pl_http_conn *c = *context ? *context : conn_of(mhd);
    enum MHD_Result rc = MHD_NO;
    (void)url;
    if (!c) return MHD_NO;
    *context = c;
    pthread_mutex_lock(&h->lock);
    if (h->closing) {
        rc = MHD_NO;
    } else if (c->state == HTTP_IDLE) {
        rc = begin(h, c, method, version);
    } else if (c->state == HTTP_READING && *n) {
        rc = receive(h, c, data, (int64_t)*n);
        *n = 0;
    } else if (c->state == HTTP_READING) {
        rc = complete(h, c);
    } else {
        rc = hand_over(h, c);
    }
    struct MHD_Response *due = c->is_due ? c->answer : NULL;
    if (due) c->answer = NULL, c->is_due = false;
    pthread_mutex_unlock(&h->lock);
    return due ? queue_answer(c, due) : rc;
}

/* The library has met an error of its own. If it was in what the headers say together (a Content-Length that is none),
 * the connection is the one whose head is complete and has not come to on_request; the library would send its page with
 * the head twice. Whose error another one is, nobody says. */
static void on_error(void *cls, const char *format, va_list arg)
{
    pl_http *h = cls;
    if (strncmp(format, "Error processing request", 24) != 0) return; /* said nowhere within a call of ours */
    const unsigned status = va_arg(arg, unsigned);
    pthread_mutex_lock(&h->lock);
    for (int32_t i = 0; i < h->n_slots; i++) {
        pl_http_conn *c = h->conn[i];
        if (!c || c->state != HTTP_IDLE || !MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE) ||
            MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_HTTP_STATUS)) /* it is being told of another error */
            continue;
        h->m.requests++;
        h->m.refused++;
        if (!pl_http_tell(h, c, status, status == 413 ? "the body is too long" : "the head is malformed"))
            shutdown(c->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&h->lock);
}

/* A request is over, sent or not. */
static void on_completed(void *cls, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode how)
{
    pl_http *h = cls;
    pl_http_conn *c = *context ? *context : conn_of(mhd);
    if (!c) return;
    pthread_mutex_lock(&h->lock);
    const bool was_sent = how == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    if (c->queued || c->taken) /* sent all the same: a stream's head was all that HEAD asked for */
        pl_http_lost(h, c, h->closing ? "closed" : "gone");
    if (!was_sent && !c->why) c->why = h->closing ? "closed" : "gone";
    if (c->why && !strcmp(c->why, "gone")) h->m.gone++;
    unwatch(h, c);
    if (was_sent) c->n_sent += c->n_answer;
    h->m.bytes_out += (uint64_t)c->n_sent;
    if (c->state != HTTP_IDLE) pl_http_log(h, c);
    struct MHD_Response *unused = c->answer;
    h->n_bodies -= c->body_cap;
    free(c->target);
    free(c->body);
    free(c->out);
    *c = (pl_http_conn){
        .mhd = c->mhd, .fd = c->fd, .slot = c->slot, .dead = c->dead, .n_read = c->n_read + c->n_head + c->n_body};
    c->deadline_s = pl_now_s() + (h->draining ? 0 : h->o.idle_s + h->o.header_s);
    pthread_mutex_unlock(&h->lock);
    if (unused) MHD_destroy_response(unused);
    *context = NULL;
}

ssize_t pl_http_read(void *cls, uint64_t at, char *out, size_t cap) /* of a stream's connection: what is sent next */
{
    pl_http *h = ((pl_http_stream *)cls)->http;
    const int64_t id = ((pl_http_stream *)cls)->id;
    ssize_t n = 0;
    (void)at;
    pthread_mutex_lock(&h->lock);
    pl_http_conn *c = h->conn[id % h->n_slots]; /* which is there as long as its answer is */
    if (!c || c->id != id || c->dead || h->closing) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (c->out_n) {
        n = (ssize_t)pl_min(c->out_n, (int64_t)cap);
        memcpy(out, c->out + c->out_at, (size_t)n);
        c->out_at += n, c->out_n -= n, c->n_sent += n;
        c->deadline_s = pl_now_s() + h->o.send_s;
    } else if (c->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        MHD_suspend_connection(c->mhd);
        c->suspended = true;
        c->deadline_s = 0;
    }
    pthread_mutex_unlock(&h->lock);
    return n;
}

/* The watch ---------------------------------------------------------------------------------------------- */

static pl_http_conn *watched(pl_http *h, uint64_t id)
{
    pl_http_conn *c = h->conn[id % (uint64_t)h->n_slots];
    return c && c->id == (int64_t)id && c->watched ? c : NULL;
}

/* A client has closed, or has only finished sending. If it is asked to read something, the difference shows: a socket that
 * is closed answers with a reset. What can be sent at any time is a comment in a stream of events, and before an answer
 * "100 Continue", which every HTTP/1.1 client has to pass over. */
static void probe(pl_http *h, pl_http_conn *c)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct epoll_event e = {.data.u64 = (uint64_t)c->id}; /* errors are told without being asked for */
    epoll_ctl(h->epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
    c->half_closed = true;
    if (h->tls) {
        pl_http_lost(h, c, "gone");
    } else if (c->state == HTTP_WAITING && c->suspended && !c->is_old) {
        (void)!send(c->fd, go_on, sizeof go_on - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (c->state == HTTP_STREAMING && c->is_events && !c->out_n && !c->ended) {
        if (pl_http_append(h, c, ":\n\n", 3) < 0) pl_http_lost(h, c, "slow");
    }
}

static void look(pl_http *h, double now) /* for connections whose time is over */
{
    for (int32_t i = 0; i < h->n_slots; i++) {
        pl_http_conn *c = h->conn[i];
        if (!c || c->deadline_s == 0 || c->deadline_s > now) continue;
        if (c->state != HTTP_IDLE) h->m.timeouts++;
        c->deadline_s = 0;
        pl_http_lost(h, c, "timeout");
    }
}

static void *watch_all(void *arg)
{
    pl_http *h = arg;
    struct epoll_event event[64];
    double looked = 0;
    for (bool stop = false; !stop;) {
        const int n = epoll_wait(h->epoll_fd, event, 64, PATIENCE_MS);
        const double now = pl_now_s();
        pthread_mutex_lock(&h->lock);
        for (int i = 0; i < n; i++) {
            pl_http_conn *c = event[i].data.u64 ? watched(h, event[i].data.u64) : NULL;
            stop = stop || !event[i].data.u64;
            if (!c) continue;
            if (event[i].events & (EPOLLERR | EPOLLHUP))
                pl_http_lost(h, c, "gone");
            else
                probe(h, c);
        }
        if (now - looked > PATIENCE_MS * 1e-3) {
            look(h, now);
            looked = now;
        }
        pthread_mutex_unlock(&h->lock);
    }
    return NULL;
}

int pl_http_start(pl_http *h, pl_err *err)
{
    struct epoll_event stop = {.events = EPOLLIN};
    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->stop_fd, &stop) < 0)
        return pl_fail(err, PL_EIO, "http: epoll: %s", strerror(errno));
    h->tls = h->o.cert != NULL;
    if (h->tls && !MHD_is_feature_supported(MHD_FEATURE_TLS))
        return pl_fail(err, PL_EDEV, "http: this libmicrohttpd has no TLS");
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(intptr_t)h->o.cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(intptr_t)h->o.key},
        {MHD_OPTION_END, 0, NULL},
    };
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (h->tls ? MHD_USE_TLS : 0), 0,
        NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_error, h, MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->n_slots, MHD_OPTION_CONNECTION_TIMEOUT, 0u,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(2 * h->o.header_bytes + 8192), MHD_OPTION_STRICT_FOR_CLIENT, 0,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
        MHD_OPTION_URI_LOG_CALLBACK, on_target, h, MHD_OPTION_UNESCAPE_CALLBACK, as_it_is, NULL, MHD_OPTION_ARRAY,
        h->tls ? tls : tls + 2, MHD_OPTION_END);
    if (!h->daemon && h->tls)
        return pl_fail(err, PL_EFORMAT, "http: TLS does not start with this certificate and this key");
    if (!h->daemon) return pl_fail(err, PL_EIO, "http: the server does not start");
    const int rc = pthread_create(&h->watcher, NULL, watch_all, h);
    if (rc) return pl_fail(err, PL_EIO, "http: thread: %s", strerror(rc));
    h->watching = true;
    return PL_OK;
}
