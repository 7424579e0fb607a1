#ifndef HTTP_HELP_H
#define HTTP_HELP_H
/* What the suites of the HTTP server share: a server that each test opens with its own options, and raw sockets. The test is
 * client and engine in one thread. */
#include "base.h"
#include "suite.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static pl_err err;
static pl_http *h;
static pl_http_opts o;
static pl_http_request r;

static void open_server(void) { ck_assert_msg(pl_http_open(&h, &o, &err) == PL_OK, "%s", err.msg); }
static void setup(void)
{
    pl_http_defaults(&o);
    h = NULL;
}
static void teardown(void) { pl_http_close(h); }

static int dial(void)
{
    const struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)pl_http_port(h)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert(fd >= 0);
    ck_assert_msg(connect(fd, (const void *)&a, sizeof a) == 0, "%s", strerror(errno));
    return fd;
}

static void put_n(int fd, const char *text, size_t n) { ck_assert_int_eq(send(fd, text, n, MSG_NOSIGNAL), (ssize_t)n); }
static void put(int fd, const char *text) { put_n(fd, text, strlen(text)); }

/* What the server has sent until `want` is in it, or it closes, or nothing comes for the time; in a static buffer. */
static char got[1 << 16];
static size_t n_got;
static bool closed;
static const char *get(int fd, const char *want, int ms)
{
    n_got = 0;
    got[0] = 0;
    closed = false;
    while (!(want && strstr(got, want)) && n_got + 1 < sizeof got) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, ms) <= 0) break;
        const ssize_t n = read(fd, got + n_got, sizeof got - 1 - n_got);
        if (n <= 0) {
            closed = true;
            break;
        }
        n_got += (size_t)n;
        got[n_got] = 0;
    }
    return got;
}

static int64_t next(void) /* the next request's id */
{
    ck_assert_int_eq(pl_http_next(h, &r, -1, 60, &err), PL_OK);
    ck_assert_int_eq(r.kind, PL_HTTP_REQUEST);
    return r.id;
}

static inline double gone(int64_t id) /* waits for the news that a client is gone; how long it took */
{
    const double start = pl_now_s();
    ck_assert_int_eq(pl_http_next(h, &r, -1, 60, &err), PL_OK);
    ck_assert_int_eq(r.kind, PL_HTTP_GONE);
    ck_assert_int_eq(r.id, id);
    return pl_now_s() - start;
}
static inline void quiet(double s)
{
    ck_assert_int_eq(pl_http_next(h, &r, -1, s, &err), PL_OK);
    ck_assert_int_eq(r.kind, PL_HTTP_NONE);
}

static inline void all_closed(void) /* before long */
{
    pl_http_stats m;
    for (int i = 0; i < 300; i++) {
        pl_http_get_stats(h, &m);
        if (m.n_connections == 0) return;
        usleep(10000);
    }
    ck_abort_msg("%d connections are still open", (int)m.n_connections);
}

static void answer(int64_t id, const char *text)
{
    ck_assert_msg(pl_http_answer(h, id, 200, "Content-Type: text/plain\n", text, (int64_t)strlen(text), &err) == PL_OK,
                  "%s", err.msg);
}

static const char get_x[] = "GET /x?a=b%20c HTTP/1.1\r\nHost: h\r\nX-Request-Id: mine-1\r\n\r\n";
static const char post_x[] =
    "POST /x HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello";

struct named_test {
    const char *name;
    const TTest *test;
};
static int run_named(const char *name, int n, const struct named_test *list)
{
    Suite *s = suite_create(name);
    for (int i = 0; i < n; i++) {
        TCase *t = tcase_create(list[i].name);
        tcase_add_checked_fixture(t, setup, teardown);
        tcase_add_test(t, list[i].test);
        suite_add_tcase(s, t);
    }
    return run_suite(s);
}
#endif
