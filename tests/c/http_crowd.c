/* Ten thousand connections, or as many as the system has descriptors for: each is served; one more is told so, and still
 * gets /health; silent ones are closed in time; and a neighbour is answered all the while. The crowd is a process of its
 * own, as descriptors are counted by process. */
#include "http_help.h"
#include <sys/wait.h>

enum { CROWD = 10000 };

static int32_t n_crowd(void)
{
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    return l.rlim_max > CROWD + 300 ? CROWD : (int32_t)l.rlim_max - 300;
}

static int fd[CROWD];
static void child(int32_t n, int from, int to, bool asks) /* its exit status says whether each was served */
{
    struct rlimit l;
    char go = 0;
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
    for (int32_t i = 0; i < n; i++) {
        fd[i] = dial();
        put(fd[i], "GET /x HT");
    }
    if (write(to, "r", 1) != 1 || read(from, &go, 1) != 1) _exit(2);
    for (int32_t i = 0; asks && i < n; i++) put(fd[i], "TP/1.1\r\nHost: h\r\n\r\n");
    for (int32_t i = 0; i < n; i++) {
        get(fd[i], asks ? "fine" : NULL, 30000);
        if (asks ? !strstr(got, " 200 ") : !closed) _exit(3);
    }
    _exit(0);
}

static pid_t crowd(int32_t n, bool asks, int *go)
{
    int to[2], from[2];
    char ready = 0;
    ck_assert(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    const pid_t pid = fork();
    if (pid == 0) child(n, to[0], from[1], asks);
    ck_assert_int_eq(read(from[0], &ready, 1), 1);
    close(to[0]);
    close(from[0]);
    close(from[1]);
    *go = to[1];
    return pid;
}

static void ends_well(pid_t pid)
{
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the crowd: status %x", status);
}

static double neighbour(int one) /* seconds until it has its answer */
{
    const double start = pl_now_s();
    put(one, get_x);
    answer(next(), "here");
    ck_assert_ptr_nonnull(strstr(get(one, "here", 60000), " 200 "));
    return pl_now_s() - start;
}

START_TEST(ten_thousand)
{
    const int32_t n = n_crowd();
    pl_http_stats m;
    int go;
    if (n < 100) return;
    o.max_connections = n;
    o.max_requests = n;
    o.header_s = 120;
    open_server();
    pl_http_beat(h, true, true);
    const int one = dial();
    const double alone = neighbour(one);
    const pid_t pid = crowd(n - 1, true, &go);
    for (int i = 0; i < 500; i++) {
        pl_http_get_stats(h, &m);
        if (m.n_connections >= n) break;
        usleep(10000);
    }
    ck_assert_int_eq(m.n_connections, n);
    const double among = neighbour(one);
    /* more than are served */
    int more = dial();
    put(more, get_x);
    ck_assert_ptr_nonnull(strstr(get(more, NULL, 60000), " 503 "));
    ck_assert(closed && strstr(got, "too many connections") && strstr(got, "Retry-After: "));
    close(more);
    more = dial();
    put(more, "GET /health HTTP/1.1\r\nHost: h\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(get(more, NULL, 60000), " 200 "));
    ck_assert(closed);
    close(more);
    int many[200];
    for (int i = 0; i < 200; i++) many[i] = dial(); /* more than there is place to refuse, and silent at first */
    for (int i = 0; i < 200; i++) (void)!send(many[i], get_x, sizeof get_x - 1, MSG_NOSIGNAL);
    for (int i = 0; i < 200; i++) {
        get(many[i], NULL, 60000);
        ck_assert_msg(closed && (n_got == 0 || strstr(got, " 503 ")), "%d: %d %s", i, closed, got);
        close(many[i]);
    }
    more = dial(); /* that one says nothing at all */
    get(more, NULL, 60000);
    ck_assert(closed);
    close(more);
    /* and then all of them at once */
    ck_assert_int_eq(write(go, "g", 1), 1);
    for (int32_t i = 0; i < n - 1; i++) answer(next(), "fine");
    ends_well(pid);
    neighbour(one);
    close(one);
    close(go);
    all_closed();
    printf("%d connections: a neighbour's answer takes %.2f ms, %.2f ms alone\n", n, among * 1e3, alone * 1e3);
}
END_TEST

START_TEST(slow_heads)
{
    const int32_t n = n_crowd();
    int go;
    if (n < 100) return;
    o.max_connections = n;
    o.header_s = 3;
    open_server();
    const int one = dial();
    neighbour(one);
    const pid_t pid = crowd(n / 2, false, &go);
    ck_assert_int_eq(write(go, "g", 1), 1);
    for (int i = 0; i < 40; i++) {
        neighbour(one);
        usleep(50000);
    }
    ends_well(pid); /* each of them was closed */
    neighbour(one);
    close(one);
    close(go);
    all_closed();
}
END_TEST

int main(void)
{
    const struct named_test list[] = {{"ten_thousand", ten_thousand}, {"slow_heads", slow_heads}};
    return run_named("http_crowd", sizeof list / sizeof *list, list);
}
