/* The HTTP server over raw sockets: answers, streams, clients that go away, read slowly or send half, and its end. */
#include "http_help.h"

START_TEST(whole)
{
    open_server();
    int fd = dial();
    put(fd, get_x);
    int64_t id = next();
    ck_assert_str_eq(r.method, "GET");
    ck_assert_str_eq(r.path, "/x");
    ck_assert_str_eq(r.query, "a=b%20c");
    ck_assert_str_eq(r.request_id, "mine-1");
    ck_assert_int_eq(r.n_body, 0);
    answer(id, "one");
    get(fd, "one", 2000);
    ck_assert_ptr_nonnull(strstr(got, "HTTP/1.1 200"));
    ck_assert_ptr_nonnull(strstr(got, "X-Request-Id: mine-1"));
    ck_assert_ptr_nonnull(strstr(got, "Content-Type: text/plain"));
    put(fd, post_x); /* the connection is kept */
    id = next();
    ck_assert_str_eq(r.type, "application/json");
    ck_assert_int_eq(r.n_body, 5);
    ck_assert_mem_eq(r.body, "hello", 5);
    answer(id, "two");
    get(fd, "two", 2000);
    ck_assert_ptr_nonnull(strstr(got, "X-Request-Id: req-"));
    ck_assert_int_eq(pl_http_answer(h, id, 200, NULL, "", 0, &err), PL_ECANCEL); /* once is enough */
    /* in pieces of a byte, and in chunks */
    for (const char *p = post_x; *p; p++) put_n(fd, p, 1);
    answer(next(), "three");
    get(fd, "three", 2000);
    put(fd, "POST /y HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    id = next();
    ck_assert_int_eq(r.n_body, 5);
    ck_assert_mem_eq(r.body, "abcde", 5);
    answer(id, "four");
    get(fd, NULL, 2000);
    ck_assert(strstr(got, "four") && closed); /* where chunks end is not for others to guess */
    close(fd);
    fd = dial();
    /* a client that asks before it sends */
    put(fd, "POST /z HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(get(fd, "\r\n\r\n", 2000), "100 Continue"));
    put(fd, "ab");
    answer(next(), "five");
    get(fd, "five", 2000);
    close(fd);
    pl_http_stats m;
    pl_http_get_stats(h, &m);
    ck_assert_int_eq((int)m.requests, 5);
    ck_assert_int_eq(m.n_open, 0);
}
END_TEST

START_TEST(pipeline)
{
    open_server();
    for (int i = 0; i < 4; i++) { /* what comes before an answer ends the connection behind it */
        const int fd = dial();
        put(fd, get_x); /* kept */
        answer(next(), "one");
        ck_assert_ptr_null(strstr(get(fd, "one", 2000), "close"));
        put(fd, post_x);
        const int64_t id = next();
        for (int k = 0; k <= i; k++) put(fd, k % 2 ? post_x : get_x);
        quiet(0.05);
        answer(id, "two");
        get(fd, NULL, 2000);
        ck_assert_msg(closed && strstr(got, "Connection: close") && strstr(got, "two"), "%s", got);
        quiet(0.05);
        close(fd);
    }
}
END_TEST

/* Heads of which the library sees the end where a strict reader sees a line: the rest is no request. */
START_TEST(two_readings)
{
    static const char *const line[] = {"\r\n:\n", "\n:\r\n", "\r\n\0\n", "\0\n:\n"};
    char text[200];
    open_server();
    for (size_t i = 0; i < 4 * 2; i++) {
        const int fd = dial();
        const size_t n = (size_t)sprintf(text, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0");
        memcpy(text + n, line[i / 2], 4);
        strcpy(text + n + 4, get_x);
        put_n(fd, text, i % 2 ? n + 4 : n + 4 + strlen(get_x));
        const int64_t id = next();
        if (i % 2) put(fd, get_x);
        quiet(0.05);
        answer(id, "fine");
        get(fd, NULL, 2000);
        ck_assert_msg(closed && strstr(got, "fine") && !strstr(strstr(got, "fine"), "HTTP"), "%zu: %s", i, got);
        quiet(0.05);
        close(fd);
    }
}
END_TEST

START_TEST(head_of_a_stream)
{
    pl_http_stats m;
    open_server();
    const int fd = dial();
    put(fd, "HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n");
    const int64_t id = next();
    ck_assert_int_eq(pl_http_begin(h, id, 200, "Content-Type: text/event-stream\n", &err), PL_OK);
    get(fd, NULL, 2000); /* it is over while its sender does not know: it hears of it as of a client that left */
    ck_assert_msg(closed && strstr(got, "Connection: close") && !strstr(got, "data"), "%s", got);
    ck_assert_int_eq(pl_http_send(h, id, "data: 1\n\n", 9, &err), PL_ECANCEL);
    ck_assert_int_eq(pl_http_next(h, &r, -1, 2, &err), PL_OK);
    ck_assert(r.kind == PL_HTTP_GONE && r.id == id);
    pl_http_get_stats(h, &m);
    ck_assert_int_eq(m.n_open, 0);
    close(fd);
}
END_TEST

static void begin(int64_t id)
{
    ck_assert_msg(pl_http_begin(h, id, 200, "Content-Type: text/event-stream\nCache-Control: no-cache\n", &err) ==
                      PL_OK,
                  "%s", err.msg);
}
static int say(int64_t id, const char *text) { return pl_http_send(h, id, text, (int64_t)strlen(text), &err); }

START_TEST(stream)
{
    open_server();
    const int fd = dial();
    put(fd, post_x);
    int64_t id = next();
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 100), 0); /* nothing before the first event */
    begin(id);
    for (int i = 0; i < 50; i++) {
        char text[32];
        snprintf(text, sizeof text, "data: %d\n\n", i);
        ck_assert_int_eq(say(id, text), PL_OK);
        ck_assert_ptr_nonnull(strstr(get(fd, text, 20000), text)); /* each before the next is there */
    }
    ck_assert_int_eq(pl_http_end(h, id, &err), PL_OK);
    get(fd, "0\r\n\r\n", 2000);
    ck_assert_ptr_nonnull(strstr(got, "0\r\n\r\n"));
    ck_assert_int_eq(say(id, "x"), PL_ECANCEL);
    ck_assert_int_eq(pl_http_end(h, id, &err), PL_ECANCEL);
    put(fd, get_x); /* kept */
    answer(next(), "more");
    get(fd, "more", 2000);
    close(fd);
    /* HTTP/1.0: no chunks, the end is the end of the connection */
    const int old = dial();
    put(old, "GET /x HTTP/1.0\r\n\r\n");
    id = next();
    begin(id);
    say(id, "data: a\n\n");
    say(id, "data: b\n\n");
    pl_http_end(h, id, &err);
    get(old, NULL, 2000);
    ck_assert(closed);
    ck_assert_ptr_nonnull(strstr(got, "\r\n\r\ndata: a\n\ndata: b\n\n"));
    close(old);
}
END_TEST

static void reset(int fd) /* close with a reset */
{
    const struct linger l = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(fd);
}

START_TEST(disconnects)
{
    open_server();
    for (int how = 0; how < 6; how++) { /* before the answer, within a stream, on the way; by a close or by a reset */
        const int fd = dial();
        put(fd, post_x);
        const int64_t id = next();
        if (how >= 2) {
            begin(id);
            say(id, "data: 1\n\n");
            get(fd, "data: 1", 2000);
        }
        if (how % 2)
            reset(fd);
        else
            close(fd);
        if (how < 4) {
            ck_assert_double_lt(gone(id), 5);
        } else { /* an engine that goes on without looking */
            for (int i = 0; i < 100 && say(id, "data: 2\n\n") == PL_OK; i++) usleep(2000);
            gone(id);
        }
        ck_assert_int_eq(say(id, "data: 3\n\n"), PL_ECANCEL);
        ck_assert_int_eq(pl_http_answer(h, id, 200, NULL, "", 0, &err), PL_ECANCEL);
        quiet(0);
    }
    /* gone while it waits in line: the engine never hears of it */
    const int fd = dial();
    put(fd, post_x);
    usleep(100000);
    reset(fd);
    usleep(100000);
    quiet(0);
    /* gone in the middle of a body */
    const int half = dial();
    put_n(half, post_x, sizeof post_x - 3);
    usleep(50000);
    close(half);
    quiet(0.1);
    all_closed();
    pl_http_stats m;
    pl_http_get_stats(h, &m);
    ck_assert_int_eq(m.n_open, 0);
    ck_assert_int_ge((int)m.gone, 7);
}
END_TEST

START_TEST(half_closed)
{
    open_server();
    for (int i = 0; i < 50; i++) { /* it is there before the request is read, or after */
        const int fd = dial();
        put(fd, i % 2 ? get_x : post_x);
        shutdown(fd, SHUT_WR);
        if (i % 3 == 0) usleep(2000);
        const int64_t id = next();
        if (i % 5 == 0) usleep(2000);
        answer(id, "for you");
        ck_assert_msg(strstr(get(fd, "for you", 2000), " 200 "), "%d: %s", i, got);
        close(fd);
    }
    for (int streams = 0; streams < 2; streams++) {
        const int fd = dial();
        put(fd, post_x);
        shutdown(fd, SHUT_WR);
        const int64_t id = next();
        quiet(0.3); /* it is still there */
        if (streams) {
            begin(id);
            say(id, "data: 1\n\n");
            get(fd, "data: 1", 2000);
            quiet(0.2);
            say(id, "data: 2\n\n");
            pl_http_end(h, id, &err);
            get(fd, "data: 2", 2000);
            ck_assert_ptr_nonnull(strstr(got, "data: 2"));
        } else {
            answer(id, "for you");
            get(fd, "for you", 2000);
            ck_assert_ptr_nonnull(strstr(got, " 200 "));
        }
        get(fd, NULL, 2000);
        ck_assert(closed);
        close(fd);
        quiet(0);
    }
    /* half-closed within a stream, and then gone */
    const int fd = dial();
    put(fd, post_x);
    const int64_t id = next();
    begin(id);
    say(id, "data: 1\n\n");
    get(fd, "data: 1", 2000);
    shutdown(fd, SHUT_WR);
    quiet(0.2);
    say(id, "data: 2\n\n");
    ck_assert_ptr_nonnull(strstr(get(fd, "data: 2", 2000), "data: 2"));
    reset(fd);
    ck_assert_double_lt(gone(id), 5);
}
END_TEST

START_TEST(slow_reader)
{
    static char block[8192];
    o.buffer_bytes = 100000;
    o.send_s = 0.6;
    open_server();
    memset(block, 'x', sizeof block);
    const int slow = dial(), good = dial();
    const int small = 4096;
    setsockopt(slow, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    put(slow, post_x);
    const int64_t id = next();
    put(good, post_x);
    const int64_t other = next();
    begin(id);
    begin(other);
    int rc = PL_OK;
    for (int i = 0; i < 100000 && rc == PL_OK; i++) {
        const double at = pl_now_s();
        rc = pl_http_send(h, id, block, sizeof block, &err);
        ck_assert_double_lt(pl_now_s() - at, 5); /* never waits */
    }
    ck_assert_int_eq(rc, PL_EFULL);
    ck_assert_int_eq(say(id, "x"), PL_ECANCEL);
    quiet(0.1); /* who was told by EFULL is not told again */
    say(other, "data: 1\n\n");
    ck_assert_ptr_nonnull(strstr(get(good, "data: 1", 2000), "data: 1"));
    pl_http_end(h, other, &err);
    for (int i = 0; i < 1000; i++) {
        get(slow, NULL, 1000);
        if (closed) break;
    }
    ck_assert(closed);
    close(slow);
    close(good);
    /* little enough for the buffer, but never read: its time is over */
    const int stuck = dial();
    setsockopt(stuck, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    put(stuck, post_x);
    const int64_t third = next();
    begin(third);
    for (int i = 0; i < 4000; i++) {
        if (pl_http_send(h, third, block, 1024, &err) != PL_OK) break;
        if (i % 8 == 0) usleep(100);
    }
    pl_http_stats m;
    all_closed();
    pl_http_get_stats(h, &m);
    ck_assert_int_ge((int)m.slow, 1);
    close(stuck);
}
END_TEST

START_TEST(too_many)
{
    o.max_requests = 3;
    open_server();
    int fd[5];
    int64_t id[3];
    for (int i = 0; i < 3; i++) {
        put(fd[i] = dial(), post_x);
        id[i] = next();
    }
    fd[3] = dial();
    put(fd[3], post_x);
    ck_assert_ptr_nonnull(strstr(get(fd[3], "}}", 2000), " 429 "));
    ck_assert_ptr_nonnull(strstr(got, "Retry-After: 1"));
    ck_assert_ptr_nonnull(strstr(got, "rate_limit_error"));
    answer(id[0], "done");
    put(fd[3], post_x); /* the same connection comes back */
    const int64_t again = next();
    reset(fd[1]); /* and room is there when the engine knows that one is gone */
    gone(id[1]);
    put(fd[4] = dial(), post_x);
    answer(next(), "done");
    answer(again, "done");
    answer(id[2], "done");
    for (int i = 0; i < 5; i++)
        if (i != 1) close(fd[i]);
}
END_TEST

static int count_files(void)
{
    int n = 0;
    for (int i = 0; i < 8192; i++) n += fcntl(i, F_GETFD) >= 0;
    return n;
}

START_TEST(many)
{
    enum { N = 1500 };
    static int fd[N];
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_cur < 2 * N + 200) return; /* the system allows no such number */
    const int before = count_files();
    o.max_connections = 3000;
    o.max_requests = 2000;
    o.header_s = 60;
    open_server();
    for (int i = 0; i < N; i++) fd[i] = dial();
    static int64_t id[N];
    for (int i = 0; i < N; i++) {
        char ask[64];
        snprintf(ask, sizeof ask, "GET /%d HTTP/1.1\r\nHost: h\r\n\r\n", i);
        put(fd[i], ask);
    }
    for (int i = 0; i < N; i++) { /* they come as they like */
        const int64_t one = next();
        id[atoi(r.path + 1)] = one;
    }
    for (int i = 0; i < N; i++) begin(id[i]);
    for (int i = 0; i < N; i += 3) reset(fd[i]);
    int n_gone = 0;
    for (int i = 0; i < N; i++) {
        const int rc = say(id[i], "data: 1\n\n");
        ck_assert(rc == PL_OK || rc == PL_ECANCEL);
    }
    while (pl_http_next(h, &r, -1, 0.5, &err) == PL_OK && r.kind == PL_HTTP_GONE) n_gone++;
    ck_assert_int_eq(n_gone, N / 3);
    for (int i = 0; i < N; i++) {
        if (i % 3 == 0) continue;
        ck_assert_int_eq(pl_http_end(h, id[i], &err), PL_OK);
        ck_assert_ptr_nonnull(strstr(get(fd[i], "0\r\n\r\n", 5000), "data: 1"));
        close(fd[i]);
    }
    pl_http_close(h);
    h = NULL;
    ck_assert_int_eq(count_files(), before);
}
END_TEST

START_TEST(draining)
{
    open_server();
    const int idle = dial(), busy = dial(), kept = dial();
    put(idle, get_x);
    answer(next(), "x");
    get(idle, "x", 200);
    put(busy, post_x);
    const int64_t id = next();
    begin(id);
    say(id, "data: 1\n\n");
    get(busy, "data: 1", 2000);
    put(kept, post_x);
    const int64_t waits = next();
    pl_http_drain(h);
    pl_http_drain(h);
    get(idle, NULL, 2000); /* idle ones are closed */
    ck_assert(closed);
    const struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)pl_http_port(h)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int late = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ne(connect(late, (const void *)&a, sizeof a), 0);
    close(late);
    say(id, "data: 2\n\n"); /* those under way end as they would */
    pl_http_end(h, id, &err);
    ck_assert_ptr_nonnull(strstr(get(busy, "0\r\n\r\n", 2000), "data: 2"));
    answer(waits, "done");
    get(kept, NULL, 3000);
    ck_assert_ptr_nonnull(strstr(got, "done"));
    ck_assert(closed);
    close(idle);
    close(busy);
    close(kept);
}
END_TEST

START_TEST(close_while_busy) /* in every state at once */
{
    open_server();
    int fd[6];
    for (int i = 0; i < 6; i++) fd[i] = dial();
    put(fd[0], "GET /x HT");
    put_n(fd[1], post_x, sizeof post_x - 3);
    put(fd[2], post_x);
    (void)next();
    put(fd[3], post_x);
    const int64_t id = next();
    begin(id);
    put(fd[4], post_x); /* waits in line */
    usleep(50000);
    say(id, "data: 1\n\n");
    pl_http_close(h);
    h = NULL;
    for (int i = 0; i < 6; i++) {
        get(fd[i], NULL, 2000);
        ck_assert(closed);
        close(fd[i]);
    }
}
END_TEST

/* Clients that come and go on four threads while the engine answers. */
static int storm_port;
static void *storm_client(void *arg)
{
    unsigned seed = (unsigned)(size_t)arg;
    for (int i = 0; i < 60; i++) {
        const struct sockaddr_in a = {
            .sin_family = AF_INET, .sin_port = htons((uint16_t)storm_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        const int fd = socket(AF_INET, SOCK_STREAM, 0), how = rand_r(&seed) % 5;
        char buffer[4096];
        if (connect(fd, (const void *)&a, sizeof a) == 0) {
            const size_t n = how == 0 ? (size_t)rand_r(&seed) % sizeof post_x : sizeof post_x - 1;
            (void)!send(fd, post_x, n, MSG_NOSIGNAL);
            if (how == 1) shutdown(fd, SHUT_WR);
            if (how == 2) usleep((unsigned)rand_r(&seed) % 2000);
            if (how != 0 && how != 2) {
                struct pollfd p = {.fd = fd, .events = POLLIN};
                if (poll(&p, 1, 500) == 1) (void)!read(fd, buffer, sizeof buffer);
            }
        }
        if (how == 3)
            reset(fd);
        else
            close(fd);
    }
    return NULL;
}

START_TEST(storm)
{
    pthread_t client[4];
    const int sink = open("/dev/null", O_WRONLY);
    o.log_fd = sink;
    o.buffer_bytes = 4096;
    o.max_requests = 8;
    open_server();
    storm_port = pl_http_port(h);
    for (size_t i = 0; i < 4; i++) pthread_create(&client[i], NULL, storm_client, (void *)(i + 1));
    int64_t open[8] = {0};
    unsigned seed = 7;
    for (double last = pl_now_s(); pl_now_s() - last < 1;) {
        pl_http_next(h, &r, -1, 0.01, &err);
        if (r.kind != PL_HTTP_NONE) last = pl_now_s();
        for (int i = 0; i < 8; i++) {
            if (r.kind == PL_HTTP_GONE && open[i] == r.id) open[i] = 0;
            if (r.kind == PL_HTTP_REQUEST && open[i] == 0) {
                open[i] = r.id;
                r.kind = PL_HTTP_NONE;
                if (rand_r(&seed) % 2) {
                    pl_http_answer(h, r.id, 200, NULL, "ok", 2, &err);
                    open[i] = 0;
                } else {
                    pl_http_begin(h, r.id, 200, "Content-Type: text/event-stream\n", &err);
                }
                continue;
            }
            if (open[i] && say(open[i], "data: storm\n\n") == PL_EFULL) open[i] = 0;
            if (open[i] && rand_r(&seed) % 20 == 0 && pl_http_end(h, open[i], &err) == PL_OK) open[i] = 0;
        }
        ck_assert_int_ne(r.kind, PL_HTTP_REQUEST); /* more than max_requests */
        pl_http_beat(h, true, true);
    }
    for (int i = 0; i < 4; i++) pthread_join(client[i], NULL);
    for (int i = 0; i < 8; i++)
        if (open[i]) pl_http_end(h, open[i], &err);
    while (pl_http_next(h, &r, -1, 0.1, &err) == PL_OK && r.kind != PL_HTTP_NONE) continue;
    pl_http_stats m;
    pl_http_get_stats(h, &m);
    ck_assert_int_eq(m.n_open, 0);
    pl_http_close(h);
    h = NULL;
    close(sink);
}
END_TEST

START_TEST(access_log)
{
    int pipe_fd[2];
    char line[4096];
    ck_assert_int_eq(pipe2(pipe_fd, O_CLOEXEC), 0);
    o.log_fd = pipe_fd[1];
    open_server();
    const int fd = dial();
    put(fd, "GET /a%22%5c%c3%a4 HTTP/1.1\r\nHost: h\r\nX-Request-Id: q1\r\n\r\n");
    const int64_t id = next();
    pl_http_note(h, id, "\"prompt_tokens\":3");
    answer(id, "four");
    get(fd, "four", 2000);
    const ssize_t n = read(pipe_fd[0], line, sizeof line - 1);
    ck_assert_int_gt(n, 0);
    line[n] = 0;
    ck_assert_ptr_nonnull(
        strstr(line, "\"id\":\"q1\",\"tenant\":\"\",\"method\":\"GET\",\"path\":\"/a\\\"\\\\\xc3\xa4\",\"status\":200,"
                     "\"bytes_in\":0,\"bytes_out\":4,"));
    ck_assert_ptr_nonnull(strstr(line, "\"end\":\"complete\",\"prompt_tokens\":3}\n"));
    /* a log that nobody reads holds nobody up */
    for (int i = 0; i < 600; i++) {
        put(fd, get_x);
        answer(next(), "ok!");
        ck_assert_ptr_nonnull(strstr(get(fd, "ok!", 2000), "ok!"));
    }
    pl_http_stats m;
    pl_http_get_stats(h, &m);
    ck_assert_int_gt((int)m.log_dropped, 0);
    close(fd);
    pl_http_close(h);
    h = NULL;
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}
END_TEST

START_TEST(options)
{
    pl_http *x = NULL;
    o.address = "localhost";
    ck_assert_int_eq(pl_http_open(&x, &o, &err), PL_EARG);
    o.address = NULL, o.port = 70000;
    ck_assert_int_eq(pl_http_open(&x, &o, &err), PL_EARG);
    o.port = 0, o.header_s = 0;
    ck_assert_int_eq(pl_http_open(&x, &o, &err), PL_EARG);
    pl_http_defaults(&o);
    o.cert = "nonsense";
    ck_assert_int_eq(pl_http_open(&x, &o, &err), PL_EARG);
    const int before = count_files();
    o.key = "nonsense";
    ck_assert_int_lt(pl_http_open(&x, &o, &err), 0);
    ck_assert_int_eq(count_files(), before);
    pl_http_defaults(&o);
    open_server();
    o.port = pl_http_port(h);
    ck_assert_int_eq(pl_http_open(&x, &o, &err), PL_EIO); /* taken */
    ck_assert_ptr_null(x);
    pl_http_close(h);
    o.address = "::1", o.port = 0;
    if (pl_http_open(&h, &o, &err) < 0) h = NULL; /* where there is IPv6 */
}
END_TEST

int main(void)
{
    const struct named_test list[] = {{"whole", whole},
                                      {"pipeline", pipeline},
                                      {"two_readings", two_readings},
                                      {"head_of_a_stream", head_of_a_stream},
                                      {"stream", stream},
                                      {"disconnects", disconnects},
                                      {"half_closed", half_closed},
                                      {"slow", slow_reader},
                                      {"too_many", too_many},
                                      {"many", many},
                                      {"draining", draining},
                                      {"close", close_while_busy},
                                      {"storm", storm},
                                      {"log", access_log},
                                      {"options", options}};
    return run_named("http", sizeof list / sizeof *list, list);
}
