/* Threads: which CPUs they get under quotas and siblings of a made-up machine, that each part of a job is done once whatever
 * the limit, by no thread beyond it, and that measuring them leaves a device that computes. */
#include "cpu.h"
#include "suite.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static pl_err err;
static char root[64];

/* Writes root/path, with the directories that lead there. */
static void write_file(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    ck_assert_msg(f, "%s", full);
    fputs(text, f);
    fclose(f);
}

static void new_root(void)
{
    strcpy(root, "/tmp/pl-threads-XXXXXX");
    ck_assert(mkdtemp(root));
}
static void drop_root(void)
{
    char line[96];
    snprintf(line, sizeof line, "rm -r %s", root);
    ck_assert_int_eq(system(line), 0);
}

START_TEST(quotas)
{
    static const struct {
        const char *groups, *path[2], *text[2];
        int32_t want; /* of 8 */
    } c[] = {
        {"0::/a/b\n", {"a/b/cpu.max"}, {"250000 100000\n"}, 2},
        {"0::/a/b\n", {"a/b/cpu.max", "a/cpu.max"}, {"max 100000\n", "300000 100000\n"}, 3}, /* of the group above */
        {"0::/a/b\n", {"a/b/cpu.max", "a/cpu.max"}, {"100000 50000\n", "500000 100000\n"}, 2},
        {"0::/\n", {"cpu.max"}, {"50000 100000\n"}, 1}, /* less than one: one */
        {"0::/\n", {"cpu.max"}, {"1600000 100000\n"}, 8},
        {"0::/\n", {"cpu.max"}, {"max 100000\n"}, 8},
        {"0::/\n", {"cpu.max"}, {"what\n"}, 8},
        {"0::/../host/7\n", {"cpu.max"}, {"400000 100000\n"}, 4}, /* the host's path, in a container */
        {"3:memory:/m\n2:cpu,cpuacct:/x\n",
         {"cpu,cpuacct/x/cpu.cfs_quota_us", "cpu,cpuacct/x/cpu.cfs_period_us"},
         {"150000\n", "50000\n"},
         3},
        {"2:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us", "cpu/x/cpu.cfs_period_us"}, {"-1\n", "100000\n"}, 8},
        {"2:cpu:/docker/7\n", {"cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"}, {"200000\n", "100000\n"}, 2},
        {"2:cpuset:/x\n", {"cpuset/x/cpu.cfs_quota_us", "cpuset/x/cpu.cfs_period_us"}, {"100000\n", "100000\n"}, 8},
        {"no line of groups\n:\n", {NULL}, {NULL}, 8},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        new_root();
        write_file("proc/self/cgroup", c[i].groups);
        for (int k = 0; k < 2 && c[i].path[k]; k++) {
            char path[128];
            snprintf(path, sizeof path, "sys/fs/cgroup/%s", c[i].path[k]);
            write_file(path, c[i].text[k]);
        }
        ck_assert_msg(pl_cpus_paid(root, 8) == c[i].want, "case %zu: %d of 8 CPUs, want %d", i, pl_cpus_paid(root, 8),
                      c[i].want);
        drop_root();
    }
    ck_assert_int_eq(pl_cpus_paid("/nowhere", 5), 5);
}
END_TEST

START_TEST(siblings)
{
    cpu_set_t allowed;
    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int32_t cpu[1024], all = CPU_COUNT(&allowed), first = 0;
    while (!CPU_ISSET((size_t)first, &allowed)) first++;
    ck_assert_int_eq(pl_cpus("/nowhere", cpu, 1024), all);
    ck_assert_int_eq(cpu[0], first);
    ck_assert_int_eq(pl_cpus("/nowhere", cpu, 1), 1);
    new_root(); /* all are one core's */
    char path[96];
    snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", first);
    write_file(path, "0-1023\n");
    ck_assert_int_eq(pl_cpus(root, cpu, 1024), 1);
    write_file(path, "x-\n");
    ck_assert_int_eq(pl_cpus(root, cpu, 1024), all);
    drop_root();
}
END_TEST

enum { N = 600, THREADS = 5 };
typedef struct job {
    _Atomic int32_t done[N];
    _Atomic int32_t beyond;
    int32_t limit;
} job;

static void part(void *arg, int64_t from, int64_t to, int thread)
{
    job *j = arg;
    if (thread >= j->limit) atomic_fetch_add(&j->beyond, 1);
    for (int64_t i = from; i < to; i++) atomic_fetch_add(&j->done[i], 1);
}

START_TEST(limits)
{
    static job j;
    pl_pool *p = NULL;
    ck_assert_int_eq(pl_pool_new(&p, THREADS, &err), PL_OK);
    ck_assert_int_eq(pl_pool_active(p), THREADS);
    for (int round = 0; round < 700; round++) {
        if (round % 7 == 0) { /* up and down, and several jobs at each */
            j.limit = 1 + (round * 31 / 7) % THREADS;
            pl_pool_limit(p, j.limit);
            ck_assert_int_eq(pl_pool_active(p), j.limit);
        }
        pl_pool_run(p, N, 8, part, &j);
        for (int i = 0; i < N; i++) ck_assert_int_eq(atomic_exchange(&j.done[i], 0), 1);
    }
    ck_assert_int_eq(j.beyond, 0);
    pl_pool_limit(p, 1); /* those that sleep are woken to end */
    pl_pool_free(p);
}
END_TEST

START_TEST(fit)
{
    pl_dev *dev = NULL;
    pl_dev_opts o = {.kind = PL_DEV_CPU, .n_threads = 17, .path = PL_PATH_PORTABLE};
    ck_assert_int_eq(pl_dev_open(&dev, &o, &err), PL_OK);
    pl_cpu *c = pl_dev_stream(dev)->impl;
    pl_fit f[8];
    ck_assert_int_eq(pl_dev_fit(dev, f, 0, &err), PL_EARG);
    ck_assert_int_eq(pl_dev_fit(dev, f, 8, &err), 3);
    const int32_t want[] = {17, 8, 4};
    int32_t best = 0;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(f[i].n_threads, want[i]);
        ck_assert(f[i].gb_s > 0);
        if (f[i].gb_s > 1.05 * f[best].gb_s) best = i;
    }
    ck_assert_int_eq(c->n_few, want[best]);
    /* a step of few tokens runs on so many, one of many tokens on all */
    c->n_few = 2;
    const pl_backend *b = pl_dev_stream(dev)->backend;
    b->begin(pl_dev_stream(dev), PL_FEW_TOKENS);
    ck_assert_int_eq(pl_pool_active(c->pool), 2);
    char text[160];
    pl_dev_describe(dev, text, sizeof text);
    ck_assert_str_eq(text, "cpu: path portable, 17 threads (2 for up to 16 tokens)");
    b->begin(pl_dev_stream(dev), PL_FEW_TOKENS + 1);
    ck_assert_int_eq(pl_pool_active(c->pool), 17);
    ck_assert_int_eq(pl_dev_fit(dev, f, 2, &err), 2); /* no room for more */
    pl_dev_close(dev);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("threads");
    TCase *c = tcase_create("threads");
    tcase_add_test(c, quotas);
    tcase_add_test(c, siblings);
    tcase_add_test(c, limits);
    tcase_add_test(c, fit);
    suite_add_tcase(s, c);
    return run_suite(s);
}
