/* bench/health.c: how many requests a second a server answers: N kept connections, each with one request on its way, on
 * one thread that waits for all of them. Prints requests a second and the times of a request.
 *   bench_health PORT [-c connections] [-s seconds] [-p path] */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 1024, MAX_ANSWER = 4096, MAX_TIMES = 1 << 22 };

typedef struct conn {
    int fd;
    double sent_s;
    size_t n; /* bytes of the answer so far */
    char answer[MAX_ANSWER + 1];
} conn;

static void fail(const char *what)
{
    fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
    exit(1);
}
static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void ask(conn *c, const char *request, size_t n)
{
    c->n = 0;
    c->sent_s = now_s();
    if (send(c->fd, request, n, MSG_NOSIGNAL) != (ssize_t)n) fail("send"); /* it is small, and the buffer is empty */
}

/* Is the answer whole? Anything but a 200 with a length ends the program. */
static int whole(conn *c)
{
    c->answer[c->n] = 0;
    const char *head = strstr(c->answer, "\r\n\r\n");
    if (!head) return 0;
    const char *length = strcasestr(c->answer, "\r\nContent-Length:");
    if (strncmp(c->answer, "HTTP/1.1 200", 12) != 0 || !length || length > head) {
        fprintf(stderr, "bench: an answer that is no 200: %.80s\n", c->answer);
        exit(1);
    }
    const size_t want = (size_t)(head + 4 - c->answer) + (size_t)strtoul(length + 17, NULL, 10);
    return c->n >= want;
}

int main(int argc, char **argv)
{
    const char *path = "/health";
    int n = 32, opt;
    double seconds = 3;
    while ((opt = getopt(argc, argv, "c:s:p:")) != -1) {
        if (opt == 'c')
            n = atoi(optarg);
        else if (opt == 's')
            seconds = atof(optarg);
        else if (opt == 'p')
            path = optarg;
        else
            n = 0;
    }
    if (optind != argc - 1 || n < 1 || n > MAX_CONNECTIONS || seconds <= 0)
        return fprintf(stderr, "usage: bench_health PORT [-c connections up to %d] [-s seconds] [-p path]\n",
                       MAX_CONNECTIONS),
               2;
    char request[512];
    const int bytes = snprintf(request, sizeof request, "GET %.400s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[optind])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    conn *list = calloc((size_t)n, sizeof *list);
    float *took = malloc(MAX_TIMES * sizeof *took);
    const int group = epoll_create1(0), on = 1;
    if (!list || !took || group < 0) fail("start");
    for (int i = 0; i < n; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &list[i]};
        list[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (list[i].fd < 0 || connect(list[i].fd, (const struct sockaddr *)&to, sizeof to) < 0) fail("connect");
        setsockopt(list[i].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (epoll_ctl(group, EPOLL_CTL_ADD, list[i].fd, &e) < 0) fail("epoll");
    }
    int64_t done = 0;
    const double start = now_s(), end = start + seconds;
    for (int i = 0; i < n; i++) ask(&list[i], request, (size_t)bytes);
    double now = start;
    while (now < end) {
        struct epoll_event ready[MAX_CONNECTIONS];
        const int k = epoll_wait(group, ready, n, 5000);
        if (k <= 0) fail("no answer for 5 seconds");
        for (int i = 0; i < k; i++) {
            conn *c = ready[i].data.ptr;
            const ssize_t got = recv(c->fd, c->answer + c->n, MAX_ANSWER - c->n, 0);
            if (got <= 0) fail("the server has closed a connection");
            c->n += (size_t)got;
            if (!whole(c)) continue;
            now = now_s();
            if (done < MAX_TIMES) took[done] = (float)(now - c->sent_s);
            done++;
            ask(c, request, (size_t)bytes);
        }
        now = now_s();
    }
    const size_t kept = (size_t)(done < MAX_TIMES ? done : MAX_TIMES);
    qsort(took, kept, sizeof *took, by_size);
    if (kept == 0) return 1;
    printf("%s: %.0f requests/s, %d connections; p50 %.3f ms, p99 %.3f ms\n", path, (double)done / (now - start), n,
           1e3 * (double)took[kept / 2], 1e3 * (double)took[kept * 99 / 100]);
    for (int i = 0; i < n; i++) close(list[i].fd);
    free(list);
    free(took);
    return 0;
}
