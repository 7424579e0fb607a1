/* The HTTP server and requests that are not what they should be: heads, sizes, times; the gate of keys, and /health. */
#include "http_help.h"

static const struct {
    const char *sent, *want; /* want NULL: closed without an answer, or refused with any 4xx */
} bad[] = {
    {"GET /x HTTP/1.1\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\nhello", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\nhello", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0x5\r\n\r\nhello", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: \r\n\r\nhello", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\nhello", " 413 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551621\r\n\r\nhello", " 413 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\nhello", NULL},
    {"POST /x HTTP/1.1\r\nHost: h\r\n Content-Length: 5\r\n\r\nhello", NULL},
    {"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", " 400 "},
    {"POST /x HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", " 400 "},
    {"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n0\r\n\r\n", NULL},
    {"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc\r\n0\r\n\r\n", NULL},
    {"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", NULL},
    {"GET /x HTTP/2.0\r\nHost: h\r\n\r\n", " 505 "},
    {"GET /x HTTP/9.9\r\nHost: h\r\n\r\n", " 505 "},
    {"GET /x HTTP/1.10\r\nHost: h\r\n\r\n", NULL},
    {"GET /x http/1.1\r\nHost: h\r\n\r\n", NULL},
    {"GET /x\r\nHost: h\r\n\r\n", NULL},
    {"GET x HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET http://h/x HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /%ff%fe HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /\xff\xfe HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /%c0%af HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /%ed%a0%80 HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /health%00x HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /a%0d%0ab HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /a%4 HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /a%zz HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /a?b=\xc3\xa4 HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\r\nHost: h\r\nna me: v\r\n\r\n", NULL},
    {"GET /x HTTP/1.1\r\nHost: h\r\nname\r\n\r\n", NULL},
    {"GET /x HTTP/1.1\r\nHost: h\r\n: v\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\r\nHost: h\r\n:\r\nGET /y HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\nHost:h\nA:b\n:\n\n", " 400 "},
    {"GET /x HTTP/1.1\r\nHost: h\r\n:\rGET /y HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /x y HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /x GET /y HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GE;T /x HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {" /x HTTP/1.1\r\nHost: h\r\n\r\n", NULL},
    {"GET /x HTTP/1.1\r\nHost: h\rA: b\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\r\nHost: h\r\rGET /y HTTP/1.1\r\nHost: h\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\nHost: h\n\n", " 400 "},
    {"GET /x HTTP/1.0\r\n: v\r\nGET /y HTTP/1.0\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\r\nHost: h\r\nA: b\r\n c: d\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\r\nHost: h\r\na: b\x01\x02\r\n\r\n", " 400 "},
    {"GET /x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", " 400 "},
    {"\r\n\r\n\r\n\x01\x02\x03\r\n\r\n", NULL},
    {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 \r\n\r\n", NULL},
};
START_TEST(malformed)
{
    o.header_s = o.body_s = 1; /* some of these are requests that never end */
    open_server();
    int64_t served = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int fd = dial();
        put(fd, bad[i].sent);
        get(fd, NULL, 3000);
        ck_assert_msg(closed, "%zu: %s\nnot closed, but: %s", i, bad[i].sent, got);
        if (bad[i].want)
            ck_assert_msg(strstr(got, bad[i].want), "%zu: %s\n%s", i, bad[i].sent, got);
        else
            ck_assert_msg(n_got == 0 || strstr(got, "HTTP/1.1 4") == got || strstr(got, "HTTP/1.0 4") == got ||
                              strstr(got, "HTTP/1.1 5") == got,
                          "%zu: %s\n%s", i, bad[i].sent, got);
        if (strstr(bad[i].sent, "Content-Length: ")) /* what is parsed and wrong is told in our words, and once */
            ck_assert_msg(!n_got || strstr(got, "\r\n\r\n{\"error\":{"), "%zu: %s\n%s", i, bad[i].sent, got);
        const char *again = n_got ? strstr(got + 1, "HTTP/1.1 ") : NULL;
        ck_assert_msg(!again, "%zu: %s\na second head: %s", i, bad[i].sent, got);
        close(fd);
        ck_assert_int_eq(pl_http_next(h, &r, -1, 0, &err), PL_OK);
        ck_assert_msg(r.kind == PL_HTTP_NONE, "%zu: %s was taken for a request", i, bad[i].sent);
        served++;
    }
    /* a NUL within the head */
    const int fd = dial();
    put_n(fd, "GET /x\0y HTTP/1.1\r\nHost: h\r\n\r\n", 30);
    get(fd, NULL, 3000);
    ck_assert_msg(closed && (n_got == 0 || strstr(got, " 4") || strstr(got, " 5")), "%d: %s", closed, got);
    close(fd);
    const int value = dial();
    put_n(value, "GET /x HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n", 36);
    get(value, NULL, 3000);
    ck_assert_msg(closed && (n_got == 0 || strstr(got, " 4") || strstr(got, " 5")), "%d: %s", closed, got);
    close(value);
    /* and the others are served */
    const int good = dial();
    put(good, get_x);
    answer(next(), "fine");
    ck_assert_ptr_nonnull(strstr(get(good, "fine", 2000), " 200 "));
    close(good);
    ck_assert_int_gt(served, 40);
}
END_TEST

START_TEST(sizes)
{
    static char text[400000];
    o.body_bytes = 1000;
    o.bodies_bytes = 1500;
    o.header_bytes = 4096;
    o.max_headers = 20;
    open_server();
    int fd = dial(); /* a head that is too long: one header */
    char *p = text + sprintf(text, "GET /x HTTP/1.1\r\nHost: h\r\nA: ");
    memset(p, 'a', 300000);
    strcpy(p + 300000, "\r\n\r\n");
    (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
    get(fd, NULL, 3000);
    ck_assert(closed && (n_got == 0 || strstr(got, " 4")));
    close(fd);
    fd = dial(); /* just over the bound */
    p = text + sprintf(text, "GET /x HTTP/1.1\r\nHost: h\r\nA: ");
    memset(p, 'a', 5000);
    strcpy(p + 5000, "\r\n\r\n");
    put(fd, text);
    ck_assert_ptr_nonnull(strstr(get(fd, NULL, 3000), " 431 "));
    close(fd);
    fd = dial(); /* many headers */
    p = text + sprintf(text, "GET /x HTTP/1.1\r\nHost: h\r\n");
    for (int i = 0; i < 30; i++) p += sprintf(p, "H%d: v\r\n", i);
    strcpy(p, "\r\n");
    put(fd, text);
    ck_assert_ptr_nonnull(strstr(get(fd, NULL, 3000), " 431 "));
    close(fd);
    fd = dial(); /* a long path */
    p = text + sprintf(text, "GET /");
    memset(p, 'a', 2000);
    strcpy(p + 2000, " HTTP/1.1\r\nHost: h\r\n\r\n");
    put(fd, text);
    ck_assert_ptr_nonnull(strstr(get(fd, NULL, 3000), " 414 "));
    close(fd);
    fd = dial(); /* a body whose length says that it is too long */
    put(fd, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(get(fd, NULL, 3000), " 413 "));
    ck_assert(closed);
    close(fd);
    fd = dial(); /* chunks that add up to too much */
    p = text + sprintf(text, "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 60; i++) p += sprintf(p, "14\r\n01234567890123456789\r\n");
    strcpy(p, "0\r\n\r\n");
    put(fd, text);
    ck_assert_ptr_nonnull(strstr(get(fd, NULL, 3000), " 413 "));
    close(fd);
    fd = dial(); /* and do not end: what is over the bound is told at once, and as much again may come */
    put_n(fd, text, strlen(text) - 5);
    ck_assert_ptr_nonnull(strstr(get(fd, "}}", 3000), " 413 "));
    ck_assert_ptr_nonnull(strstr(got, "\"the body is too long\""));
    put(fd, "14\r\n01234567890123456789\r\n");
    get(fd, NULL, 3000);
    ck_assert(closed && n_got == 0);
    close(fd);
    fd = dial(); /* a piece of a chunk's head that does not end: the library's own page, or none; closed */
    p = text + sprintf(text, "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;a=");
    memset(p, 'x', 100000);
    strcpy(p + 100000, "\r\nhello\r\n0\r\n\r\n");
    (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
    get(fd, NULL, 3000);
    ck_assert(closed);
    close(fd);
    fd = dial(); /* and do not end */
    for (int i = 0; i < 300; i++)
        if (send(fd, "14\r\n01234567890123456789\r\n", 26, MSG_NOSIGNAL) < 0) break;
    (void)!send(fd, "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 58, MSG_NOSIGNAL);
    get(fd, NULL, 3000);
    ck_assert(closed);
    close(fd);
    /* bodies of all connections together: the second one gets no memory */
    memset(text, 'b', 1000);
    const int one = dial(), two = dial();
    put(one, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
    put_n(one, text, 900);
    usleep(100000);
    put(two, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n");
    put_n(two, text, 1000);
    ck_assert_ptr_nonnull(strstr(get(two, NULL, 3000), " 503 "));
    ck_assert_ptr_nonnull(strstr(got, "Retry-After: "));
    put_n(one, text, 100);
    answer(next(), "fine");
    ck_assert_ptr_nonnull(strstr(get(one, "fine", 2000), " 200 "));
    close(one);
    close(two);
    quiet(0);
}
END_TEST

START_TEST(times)
{
    o.header_s = o.body_s = 0.5;
    o.idle_s = 0.3;
    open_server();
    const double start = pl_now_s();
    const int silent = dial(), trickle = dial(), body = dial(), idle = dial();
    put(idle, get_x);
    answer(next(), "x");
    get(idle, "x\n", 100);
    put(body, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n");
    bool open = true;
    while (open && pl_now_s() - start < 30) { /* a byte every 50 ms keeps nothing alive */
        open = send(trickle, "G", 1, MSG_NOSIGNAL) == 1;
        (void)!send(body, "b", 1, MSG_NOSIGNAL);
        usleep(50000);
        struct pollfd p = {.fd = trickle, .events = POLLIN};
        if (poll(&p, 1, 0) == 1) open = false;
    }
    ck_assert(!open);
    get(silent, NULL, 30000);
    ck_assert(closed);
    get(body, NULL, 30000);
    ck_assert(closed);
    get(idle, NULL, 30000);
    ck_assert(closed);
    close(silent);
    close(trickle);
    close(body);
    close(idle);
    quiet(0);
    all_closed();
}
END_TEST

START_TEST(health)
{
    o.stall_s = 0.4;
    open_server();
    const int fd = dial();
    const char ask[] = "GET /health HTTP/1.1\r\nHost: h\r\n\r\n";
    put(fd, ask);
    ck_assert_ptr_nonnull(strstr(get(fd, "}", 2000), " 503 ")); /* nobody has called yet */
    ck_assert_ptr_nonnull(strstr(got, "\"live\":false"));
    pl_http_beat(h, false, false);
    put(fd, ask);
    ck_assert_ptr_nonnull(strstr(get(fd, "}", 2000), "\"live\":true,\"open\":0,\"ready\":false,\"step_age_s\":null"));
    pl_http_beat(h, true, true);
    put(fd, ask);
    ck_assert_ptr_nonnull(strstr(get(fd, "}", 2000), " 200 "));
    ck_assert_ptr_nonnull(strstr(got, "\"ready\":true,\"step_age_s\":0.0"));
    usleep(500000);
    put(fd, ask); /* whoever calls has stopped */
    ck_assert_ptr_nonnull(strstr(get(fd, "}", 2000), " 503 "));
    close(fd);
}
END_TEST

START_TEST(keys)
{
    open_server();
    const char text[] = "# keys\n\nsecret-key-1 alice\r\n  secret-key-2\tbob\nsecret-key-3 alice\n";
    ck_assert_msg(pl_http_keys(h, text, sizeof text - 1, &err) == PL_OK, "%s", err.msg);
    ck_assert_int_eq(pl_http_tenants(h), 2);
    static const struct {
        const char *auth;
        int tenant;
    } list[] = {{"", -1},
                {"Authorization: Bearer secret-key-1\r\n", 0},
                {"authorization: bearer  secret-key-2\r\n", 1},
                {"Authorization: Bearer secret-key-3\r\n", 0},
                {"Authorization: Bearer secret-key-\r\n", -1},
                {"Authorization: Bearer secret-key-11\r\n", -1},
                {"Authorization: Bearer \r\n", -1},
                {"Authorization: Basic secret-key-1\r\n", -1},
                {"Authorization: secret-key-1\r\n", -1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char ask[256];
        const int fd = dial();
        snprintf(ask, sizeof ask, "GET /metrics HTTP/1.1\r\nHost: h\r\n%s\r\n", list[i].auth);
        put(fd, ask);
        if (list[i].tenant < 0) {
            ck_assert_msg(strstr(get(fd, NULL, 2000), " 401 "), "%s: %s", list[i].auth, got);
            ck_assert_ptr_nonnull(strstr(got, "WWW-Authenticate"));
        } else {
            const int64_t id = next();
            ck_assert_int_eq(r.tenant, list[i].tenant);
            ck_assert_str_eq(r.tenant_name, list[i].tenant ? "bob" : "alice");
            answer(id, "ok");
            get(fd, "ok", 2000);
        }
        close(fd);
    }
    const int fd = dial(); /* the gate does not wait for a body; health has none */
    put(fd, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(get(fd, NULL, 2000), " 401 "));
    close(fd);
    pl_http_beat(h, true, false);
    const int ill = dial();
    put(ill, "GET /health HTTP/1.1\r\nHost: h\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(get(ill, "}", 2000), " 200 "));
    close(ill);
    /* read again: numbers stay, old keys go */
    ck_assert_int_eq(pl_http_keys(h, "secret-key-9 carol\nsecret-key-8 bob\n", 36, &err), PL_OK);
    ck_assert_int_eq(pl_http_tenants(h), 3);
    const int bob = dial();
    put(bob, "GET /x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer secret-key-8\r\n\r\n");
    answer(next(), "ok");
    ck_assert_int_eq(r.tenant, 1);
    close(bob);
    const int old = dial();
    put(old, "GET /x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer secret-key-1\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(get(old, NULL, 2000), " 401 "));
    close(old);
    static const char *wrong[] = {"",
                                  "# none\n",
                                  "secret-key-1\n",
                                  "short x\n",
                                  "secret-key-1 a b\n",
                                  "secret-key-1 \xff\n",
                                  "secret-key-1 a\n\nsecret-key-2 b\nsecret-key-1 a\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_lt(pl_http_keys(h, wrong[i], (int64_t)strlen(wrong[i]), &err), 0);
        ck_assert_ptr_nonnull(strstr(err.msg, "keys:"));
        ck_assert_ptr_null(strstr(err.msg, "secret")); /* a key is not shown */
    }
    ck_assert_msg(strstr(err.msg, "line 4, the key of line 1 again"), "%s", err.msg); /* nor taken twice */
}
END_TEST

int main(void)
{
    const struct named_test list[] = {
        {"malformed", malformed}, {"sizes", sizes}, {"times", times}, {"health", health}, {"keys", keys}};
    return run_named("http_hostile", sizeof list / sizeof *list, list);
}
