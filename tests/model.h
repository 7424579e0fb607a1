#ifndef MODEL_H
#define MODEL_H
/* Model-based tests: operations drawn from a seed are done to the real thing and to a simple model of it, and the two are
 * compared. An operation is a kind and three random numbers, which mean something whatever happened before, so that any
 * part of a list can be run again: a list that fails is shrunk by leaving operations out while it still fails. Every list
 * runs in a process of its own, which may also crash or hang.
 * PL_MODEL_OPS operations in all (10^6 without it), a quarter of them in each of the four programs; PL_MODEL_SEED is the
 * first seed (1), each seed gives 3,000 operations. */
#include "base.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct op {
    uint32_t kind, a, b, c;
} op;

typedef struct model_kind {
    const char *name;
    uint32_t weight;
    void (*run)(const op *o);
} model_kind;

typedef struct model {
    const char *name;
    const model_kind *kind; /* [n_kinds] */
    uint32_t n_kinds;
    void (*open)(uint64_t seed);
    void (*check)(void);     /* after every operation */
    void (*check_all)(void); /* now and then, and at the end */
    void (*close)(void);
} model;

enum { MODEL_LIST = 3000, MODEL_TRIES = 4000 };

static struct model_report {
    int32_t at; /* the operation that runs */
    char msg[400];
} * model_report; /* shared with the process that runs the list */

/* What is wrong ends the process; the report says what. */
__attribute__((format(printf, 1, 2), noreturn)) static void wrong(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(model_report->msg, sizeof model_report->msg, fmt, ap);
    va_end(ap);
    _exit(1);
}
#define want(x, ...) ((x) ? (void)0 : wrong(__VA_ARGS__))
#define want_int(got, expected, what)                                                                       \
    do {                                                                                                    \
        const long long got_ = (long long)(got), expected_ = (long long)(expected);                         \
        want(got_ == expected_, "line %d: %s: %lld, the model says %lld", __LINE__, what, got_, expected_); \
    } while (0)

static uint32_t draw(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}
static int32_t below(uint64_t *state, int32_t n) { return (int32_t)(draw(state) % (uint32_t)n); }

static void model_draw(const model *m, uint64_t seed, op *list)
{
    uint32_t sum = 0;
    for (uint32_t k = 0; k < m->n_kinds; k++) sum += m->kind[k].weight;
    uint64_t state = seed * 0x2545f4914f6cdd1du;
    for (int i = 0; i < MODEL_LIST; i++) {
        uint32_t x = draw(&state) % sum, k = 0;
        while (x >= m->kind[k].weight) x -= m->kind[k++].weight;
        list[i] = (op){k, draw(&state), draw(&state), draw(&state)};
    }
}

static void model_run(const model *m, uint64_t seed, const op *list, int32_t n, bool thorough)
{
    m->open(seed);
    for (int32_t i = 0; i < n; i++) {
        model_report->at = i;
        m->kind[list[i].kind].run(&list[i]);
        m->check();
        if (thorough || i % 256 == 255) m->check_all();
    }
    m->check_all();
    m->close();
}

/* Whether the list fails, and then how (model_report). thorough: everything is compared after every operation, and
 * nothing is printed. */
static bool model_fails(const model *m, uint64_t seed, const op *list, int32_t n, bool thorough)
{
    *model_report = (struct model_report){0};
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (thorough && !freopen("/dev/null", "w", stderr)) _exit(1);
        alarm(thorough ? 10 : 120);
        model_run(m, seed, list, n, thorough);
        exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("model");
        exit(2);
    }
    if (status && !model_report->msg[0])
        snprintf(model_report->msg, sizeof model_report->msg, "ended by %s %d",
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return status != 0;
}

/* Leaves out parts of a failing list, large ones first, while it still fails at the same check (by how its text begins).
 * Returns what is left. */
static int32_t model_shrink(const model *m, uint64_t seed, op *list, int32_t n)
{
    char first[8];
    memcpy(first, model_report->msg, sizeof first);
    op *less = malloc((size_t)n * sizeof *less);
    bool again = true;
    for (int32_t size = n / 2, tries = 0; less && (size > 0 || again) && tries < MODEL_TRIES; size /= 2) {
        if (size == 0) size = 1; /* once more, while single ones go */
        again = false;
        for (int32_t at = n - size; at >= 0 && tries < MODEL_TRIES; at -= size, tries++) {
            memcpy(less, list, (size_t)at * sizeof *less);
            memcpy(less + at, list + at + size, (size_t)(n - at - size) * sizeof *less);
            if (!model_fails(m, seed, less, n - size, true)) continue;
            if (memcmp(first, model_report->msg, sizeof first)) continue;
            n = (int32_t)pl_min(n - size, model_report->at + 1);
            memcpy(list, less, (size_t)n * sizeof *less);
            at = (int32_t)pl_min(at, n);
            again = true;
        }
    }
    free(less);
    return n;
}

static void model_explain(const model *m, uint64_t seed, op *list)
{
    int32_t n = model_report->at + 1;
    printf("%s: seed %llu fails at operation %d: %s\n", m->name, (unsigned long long)seed, n, model_report->msg);
    fflush(NULL);
    if (!model_fails(m, seed, list, n, true)) return;
    n = model_shrink(m, seed, list, model_report->at + 1);
    if (!model_fails(m, seed, list, n, true)) return;
    printf("%d operations are enough: %s\n", n, model_report->msg);
    for (int32_t i = 0; i < n; i++)
        printf("  %2d %-12s %u %u %u\n", i, m->kind[list[i].kind].name, list[i].a, list[i].b, list[i].c);
}

static uint64_t model_setting(const char *name, uint64_t without)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : without;
}

static int model_main(const model *m)
{
    static op list[MODEL_LIST];
    const uint64_t first = model_setting("PL_MODEL_SEED", 1), all = model_setting("PL_MODEL_OPS", 1000000);
    const uint64_t n = (all / 4 + MODEL_LIST - 1) / MODEL_LIST;
    model_report = mmap(NULL, sizeof *model_report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (model_report == MAP_FAILED) return 2;
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    for (uint64_t seed = first; seed < first + n; seed++) {
        model_draw(m, seed, list);
        if (!model_fails(m, seed, list, MODEL_LIST, false)) continue;
        model_explain(m, seed, list);
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &t1);
    const double s = (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
    printf("%s: seeds %llu to %llu, %llu operations, %.0f a second\n", m->name, (unsigned long long)first,
           (unsigned long long)(first + n - 1), (unsigned long long)(n * MODEL_LIST), (double)(n * MODEL_LIST) / s);
    return 0;
}
#endif
