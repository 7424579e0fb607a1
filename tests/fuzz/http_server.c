/* The whole HTTP server, over sockets: the input is what a client sends, in pieces, before it half-closes or resets. The
 * first two bytes say how it is cut, how its requests are answered and how it ends. What the server takes for requests
 * has to be what a strict reader of the same bytes finds, so that nothing can be smuggled past a proxy; what it sends has
 * to be whole answers in order; the connection ends; a neighbour is answered; descriptors come back. */
#include "fuzz.h"
#include "http.h"
#include "http_oracle.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_REQUESTS = 64, NEIGHBOUR = 16, COUNT = 64, QUIET_MS = 20 };
static const double PATIENCE_S = 15; /* less than libFuzzer has */

typedef struct fuzz_server {
    pl_http *http;
    int neighbour, n_sockets; /* n_sockets: that there are with no client but the neighbour */
    uint64_t n;
} fuzz_server;

static int dial(const pl_http *h)
{
    const struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)pl_http_port(h)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const double start = pl_now_s();
    int rc = -1;
    PL_ASSERT(fd >= 0);
    /* a connection that both ends have shut keeps its port for a minute: with hundreds a second there may be none left */
    while ((rc = connect(fd, (const void *)&a, sizeof a)) < 0 && errno == EADDRNOTAVAIL &&
           pl_now_s() - start < PATIENCE_S)
        usleep(10000);
    PL_ASSERT(rc == 0);
    return fd;
}

/* Of sockets alone: libFuzzer keeps pipes to a symboliser from the first time on that it has a function to name. */
static int count_sockets(void)
{
    int n = 0;
    struct stat st;
    DIR *d = opendir("/proc/self/fd");
    PL_ASSERT(d);
    for (const struct dirent *e; (e = readdir(d));)
        if (fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISSOCK(st.st_mode)) n++;
    closedir(d);
    return n;
}

static fuzz_server *server(void) /* as long as the process is there */
{
    static fuzz_server s;
    pl_err err;
    pl_http_opts o;
    if (s.http) return &s;
    signal(SIGPIPE, SIG_IGN);
    pl_http_defaults(&o);
    o.max_connections = 64;
    o.max_requests = 8;
    o.max_headers = 12;
    o.header_bytes = 1024;
    o.body_bytes = 2048;
    o.bodies_bytes = 65536;
    o.header_s = 1, o.body_s = o.send_s = 5; /* less than an execution may take */
    o.idle_s = 2;                            /* what the library has missed ends then */
    s.n_sockets = count_sockets() + 3;       /* it listens, and the neighbour's two ends */
    PL_ASSERT(pl_http_open(&s.http, &o, &err) == PL_OK);
    s.neighbour = dial(s.http);
    return &s;
}

/* What the server has sent: whole answers. Returns how many; those to HEAD have no body, want says which they are. */
static int check_answers(const char *p, size_t n, const oracle_request *want, int n_want)
{
    int count = 0;
    while (n > 0) {
        const char *end = memmem(p, n, "\r\n\r\n", 4);
        PL_ASSERT(end && n > 12 && (!memcmp(p, "HTTP/1.1 ", 9) || !memcmp(p, "HTTP/1.0 ", 9)));
        const int status = atoi(p + 9);
        const size_t head = (size_t)(end + 4 - p);
        const char *length = memmem(p, head, "Content-Length: ", 16),
                   *chunked = memmem(p, head, "Transfer-Encoding: chunked", 26);
        size_t body = 0;
        PL_ASSERT(status >= 100 && status < 600);
        p += head, n -= head;
        if (status < 200) continue;
        /* the library's own errors: 0.9.75 sends the head of some twice */
        if (status >= 400 && !memmem(end + 4 - head, head, "X-Request-Id: ", 14)) return count + 1;
        if (length)
            body = (size_t)atoi(length + 16);
        else if (!chunked)
            body = n; /* until it closes */
        if (count < n_want && !strcmp(want[count].method, "HEAD")) {
            /* the library ends the body that it has not sent: nothing follows it */
            if (chunked && n == 5 && !memcmp(p, "0\r\n\r\n", 5)) return count + 1;
            body = 0, chunked = NULL;
        }
        count++;
        while (chunked) {
            char *after;
            const size_t size = strtoul(p, &after, 16);
            PL_ASSERT(after > p && after + 2 <= p + n && after[0] == '\r' && after[1] == '\n');
            n -= (size_t)(after + 2 - p), p = after + 2;
            PL_ASSERT(n >= size + 2 && p[size] == '\r' && p[size + 1] == '\n');
            p += size + 2, n -= size + 2;
            if (size == 0) break;
        }
        if (n == 0 && status >= 400) body = 0; /* of a HEAD that was refused */
        PL_ASSERT(body <= n);
        p += body, n -= body;
    }
    return count;
}

static void serve(pl_http *h, const pl_http_request *r, uint8_t how)
{
    pl_err err;
    const bool streams = how & 1;
    if (!streams) {
        const int rc = pl_http_answer(h, r->id, 200, "Content-Type: text/plain\n", r->body, r->n_body, &err);
        PL_ASSERT(rc == PL_OK || rc == PL_ECANCEL);
        return;
    }
    int rc = pl_http_begin(h, r->id, 200, "Content-Type: text/event-stream\n", &err);
    if (rc == PL_OK) rc = pl_http_send(h, r->id, "data: 1\n\n", 9, &err);
    if (rc == PL_OK && (how & 2)) rc = pl_http_send(h, r->id, r->body, r->n_body, &err);
    if (rc == PL_OK) rc = pl_http_end(h, r->id, &err);
    PL_ASSERT(rc == PL_OK || rc == PL_ECANCEL);
}

static void ask_neighbour(fuzz_server *s)
{
    static const char ask[] = "POST /neighbour HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nhere";
    pl_http_request r = {0};
    pl_err err;
    char got[1024];
    ssize_t n = 0;
    struct pollfd p = {.fd = s->neighbour, .events = POLLIN};
    if (poll(&p, 1, 0) == 1) { /* closed, as it was idle for long */
        close(s->neighbour);
        s->neighbour = dial(s->http);
    }
    PL_ASSERT(send(s->neighbour, ask, sizeof ask - 1, MSG_NOSIGNAL) == (ssize_t)(sizeof ask - 1));
    for (const double start = pl_now_s(); r.kind != PL_HTTP_REQUEST;) { /* late news of others first */
        PL_ASSERT(pl_http_next(s->http, &r, -1, 1, &err) == PL_OK && pl_now_s() - start < PATIENCE_S);
    }
    PL_ASSERT(!strcmp(r.path, "/neighbour") && r.n_body == 4 && !memcmp(r.body, "here", 4));
    serve(s->http, &r, 0);
    while (n < 4 || memcmp(got + n - 4, "here", 4) != 0) {
        const ssize_t k = read(s->neighbour, got + n, sizeof got - (size_t)n);
        PL_ASSERT(k > 0);
        n += k;
    }
    PL_ASSERT(!memcmp(got, "HTTP/1.1 200 ", 13));
}

static void settle(pl_http *h) /* only the neighbour is left */
{
    pl_http_stats m;
    pl_http_request r;
    pl_err err;
    const double start = pl_now_s();
    do {
        PL_ASSERT(pl_http_next(h, &r, -1, 0, &err) == PL_OK);
        pl_http_get_stats(h, &m);
        PL_ASSERT(pl_now_s() - start < PATIENCE_S);
        if (m.n_connections > 1) usleep(20);
    } while (m.n_connections > 1);
}

/* Is what was taken the next of those that a strict reader finds? Those that the server answers itself are passed over. */
static int find(const oracle_request *want, int n, int at, const pl_http_request *r)
{
    for (; at < n; at++) {
        const oracle_request *w = &want[at];
        const bool is_long = strlen(w->method) >= sizeof r->method; /* shown as none */
        const bool same_body = w->n_body == r->n_body && !memcmp(w->body, r->body, (size_t)r->n_body);
        if (!strcmp(w->path, r->path) && !strcmp(is_long ? "" : w->method, r->method) && (same_body || w->any_body) &&
            !strcmp(w->type, r->type))
            return at + 1;
    }
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static oracle_request want[MAX_REQUESTS];
    static char got[1 << 18];
    fuzz_server *s = server();
    pl_http_request r;
    pl_err err;
    size_t n_got = 0, at = 0;
    int n_want = 0, found = 0, n_taken = 0;
    if (size < 3) return 0;
    uint32_t cut = data[0] * 2654435761u;
    const uint8_t how = data[1];
    data += 2, size -= 2;
    for (size_t k = 0; n_want < MAX_REQUESTS && oracle_next(&want[n_want], data + k, size - k);) {
        k += (size_t)want[n_want++].n_all;
        if (want[n_want - 1].is_chunked) break; /* a connection ends there */
    }
    const int fd = dial(s->http);
    pl_http_beat(s->http, true, true);
    bool open = true, sent = false, gave_up = false;
    for (const double start = pl_now_s(); open;) {
        PL_ASSERT(pl_now_s() - start < PATIENCE_S);
        if (at < size) {
            cut = cut * 1664525 + 1013904223;
            const size_t most = cut & 0x80000000 ? size : 40, n = 1 + (cut >> 8) % most;
            const ssize_t k = send(fd, data + at, n < size - at ? n : size - at, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (k > 0) at += (size_t)k;
            if (k < 0 && errno != EAGAIN) at = size;
        } else if (!sent) {
            sent = true;
            if (how & 8) break; /* gone, with answers under way */
            shutdown(fd, SHUT_WR);
        }
        PL_ASSERT(pl_http_next(s->http, &r, -1, 0, &err) == PL_OK);
        if (r.kind == PL_HTTP_REQUEST) {
            found = find(want, n_want, found, &r);
            PL_ASSERT(found > 0 && n_taken++ < n_want);
            serve(s->http, &r, how);
        }
        struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = pl_http_fd(s->http), .events = POLLIN}};
        const int n_ready = poll(p, 2, sent ? QUIET_MS : 0);
        /* the library does not see that a client has half-closed together with its last bytes: a request that is not whole
         * keeps its connection until its time is over, which other tests wait for */
        gave_up = sent && n_ready == 0;
        if (gave_up) break;
        if (n_ready <= 0 || !p[0].revents) continue;
        const ssize_t k = recv(fd, got + n_got, sizeof got - n_got, MSG_DONTWAIT);
        if (k > 0) n_got += (size_t)k;
        open = k > 0 || (k < 0 && errno == EAGAIN);
        if (k < 0 && errno == ECONNRESET) n_got = 0; /* what came before may be lost, in part */
    }
    if (!(how & 8) && !gave_up && n_got) {
        const int n_answers = check_answers(got, n_got, want, n_want);
        PL_ASSERT(n_answers >= n_taken && n_answers <= n_want + 1);
    }
    const struct linger now = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* leaves no port behind */
    close(fd);
    settle(s->http);
    if (s->n++ % NEIGHBOUR == 0) ask_neighbour(s);
    if (s->n % COUNT == 1) /* just behind the neighbour's answer */
        for (const double start = pl_now_s(); count_sockets() > s->n_sockets; usleep(1000))
            PL_ASSERT(pl_now_s() - start < PATIENCE_S); /* told of as closed before it is */
    return 0;
}
