/* Faults of pages that are copied to a tier and back, by the worker that really does it, in a running engine: what was
 * copied from or into a page that has changed hands is never believed, nor another page's bytes; who has the page by then
 * ends alone if a late copy could still write to it; all other answers are those of a clean run, and no page is lost. With
 * the check off the same faults do change answers. */
#include "c/toy.h"
#include "suite.h"
#include <stdio.h>
#include <unistd.h>

enum { N = 7, OUT = 30, PAGES = 16, STEPS = 300, STALL = 5 };
enum { NEVER, SPILLS, LOADS }; /* what the worker is kept from, for a few steps of a round */

static const struct {
    int n_prompt, salt, out, round;
} ask[N] = {{50, 1, 6, 0},   {70, 2, 6, 0},   {60, 3, OUT, 1}, {80, 4, OUT, 1},
            {50, 1, OUT, 2}, {40, 5, OUT, 2}, {30, 6, OUT, 2}};

typedef struct run_t {
    float logprob[N][OUT];
    int32_t token[N][OUT], n_out[N], finish[N], n_cached[N];
    bool struck;
    pl_metrics m;
} run_t;

static void take_events(pl_engine *e, const int64_t *id, run_t *r)
{
    const pl_event *v;
    for (int32_t n = pl_engine_events(e, &v); n > 0; n--, v++)
        for (int i = 0; i < N; i++) {
            if (v->id != id[i]) continue;
            if (v->sampled.token >= 0) {
                r->logprob[i][r->n_out[i]] = v->sampled.logprob;
                r->token[i][r->n_out[i]++] = v->sampled.token;
            }
            r->finish[i] = v->finish;
        }
}

/* One step in which everyone gets what there is room for; whether anyone is left. */
static bool step(pl_engine *e, const int64_t *id, run_t *r, bool stalled)
{
    bool busy = false;
    while (!stalled && pl_engine_wait(e, 10)) pl_sched_landed(e); /* the same in every run */
    for (int i = 0; i < N; i++) (void)(id[i] && request(e, id[i]));
    for (int i = 0; i < N; i++) {
        const int32_t at = pl_sched_find(e, id[i]);
        if (at < 0) continue;
        busy = true;
        const pl_request *q = &e->req[at];
        const int32_t n = (int32_t)pl_min(pl_min(q->left, 20), pl_engine_step_left(e));
        if (n > 0) (void)pl_engine_plan(e, id[i], n, &err);
        if (q->n_cached) r->n_cached[i] = q->n_cached;
    }
    ck_assert_msg(pl_engine_step(e, &err) == PL_OK, "%s", err.msg);
    take_events(e, id, r);
    return busy;
}

static run_t run(int32_t check, pl_fault fault, int stall, bool disk)
{
    run_t r = {0};
    int64_t id[N] = {0};
    pl_kv *plain = m.kv;
    pl_kv_opts k = plain->o;
    k.check = check;
    k.n_pages = PAGES;
    ck_assert_int_eq(pl_kv_open(&m.kv, m.dev, &k, &err), PL_OK);
    pl_engine *e = engine_with((pl_engine_opts){.max_requests = N,
                                                .prefix = true,
                                                .host_cache_bytes = disk ? 0 : 40 * m.kv->page_bytes,
                                                .disk_cache_bytes = disk ? 1 << 20 : 0,
                                                .disk_cache = disk ? dir : NULL});
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++)
            if (ask[i].round == round) id[i] = submit(e, ask[i].n_prompt, ask[i].salt, ask[i].out, 0);
        if (round == 0 || round == 2) fault.owner = id[round == 0 ? 0 : 4]; /* whose pages are copied */
        if (round == (fault.what == PL_FAULT_SPILL_FREED ? 0 : 2)) m.kv->tags.fault = &fault;
        int n = 0;
        for (bool busy = true; busy && n < STEPS; n++) {
            const bool early = n < STALL;
            const bool stalled = stall == SPILLS ? round == 0 || (round == 1 && early) : stall && round == 2 && early;
            pl_tier_stall(e->tier, stalled);
            busy = step(e, id, &r, stalled);
        }
        ck_assert_int_lt(n, STEPS);
        if (round == 1) { /* the first request's pages are in the tier alone */
            while (pl_engine_wait(e, 10)) pl_sched_landed(e);
            pl_engine_make_room(e, PAGES);
            ck_assert_int_eq(pl_kv_free_pages(m.kv), PAGES);
        }
    }
    while (pl_engine_wait(e, 10)) pl_sched_landed(e);
    m.kv->tags.fault = NULL;
    r.struck = fault.struck;
    pl_engine_metrics(e, &r.m);
    ck_assert_int_eq(r.m.pages.in_flight, 0);
    pl_engine_close(e);
    if (check != PL_CHECK_OFF) ck_assert_int_eq(pl_kv_free_pages(m.kv), PAGES);
    pl_kv_close(m.kv);
    m.kv = plain;
    unlink(file);
    return r;
}

static int changed(const run_t *a, const run_t *b)
{
    int n = 0;
    for (int i = 0; i < N; i++)
        n += a->n_out[i] != b->n_out[i] || a->finish[i] != b->finish[i] ||
             memcmp(a->token[i], b->token[i], sizeof *a->token[i] * (size_t)a->n_out[i]) != 0 ||
             memcmp(a->logprob[i], b->logprob[i], sizeof *a->logprob[i] * (size_t)a->n_out[i]) != 0;
    return n;
}

START_TEST(clean)
{
    const run_t r = run(PL_CHECK_PAGES, (pl_fault){0}, NEVER, false);
    for (int i = 0; i < N; i++) ck_assert_int_eq(r.n_out[i], ask[i].out);
    ck_assert_int_eq(r.n_cached[4], 48); /* from the tier: nothing else had it */
    ck_assert_uint_eq(r.m.host.hits, 3);
    for (int stall = NEVER; stall <= LOADS; stall++)
        for (int disk = 0; disk < 2; disk++) {
            const run_t x = run(stall == LOADS ? PL_CHECK_OFF : PL_CHECK_PAGES, (pl_fault){0}, stall, disk);
            ck_assert_int_eq(changed(&x, &r), 0);
            ck_assert_uint_eq(x.m.mismatches, 0);
        }
}
END_TEST

/* The copy of a page reads what its next owner writes: it is worthless. */
START_TEST(freed_while_copied_out)
{
    const pl_fault f = {.what = PL_FAULT_SPILL_FREED};
    for (int disk = 0; disk < 2; disk++) {
        const run_t want = run(PL_CHECK_PAGES, (pl_fault){0}, SPILLS, disk);
        run_t r = run(PL_CHECK_PAGES, f, SPILLS, disk);
        ck_assert(r.struck);
        ck_assert_int_eq(changed(&r, &want), 0);
        ck_assert_int_lt(r.n_cached[4], want.n_cached[4]);
        ck_assert_uint_eq(r.m.mismatches, 0);
        r = run(PL_CHECK_OFF, f, SPILLS, disk);
        ck_assert(r.struck);
        ck_assert_int_gt(changed(&r, &want), 0);
    }
}
END_TEST

/* The copy writes to a page that has its next owner: that one ends before it reads the page, and nobody else. */
START_TEST(freed_while_copied_in)
{
    const pl_fault f = {.what = PL_FAULT_LOAD_FREED, .index = 2};
    for (int disk = 0; disk < 2; disk++) {
        const run_t want = run(PL_CHECK_PAGES, (pl_fault){0}, LOADS, disk);
        run_t r = run(PL_CHECK_PAGES, f, LOADS, disk);
        ck_assert(r.struck);
        ck_assert_uint_gt(r.m.mismatches, 0);
        int n_victims = 0;
        for (int i = 0; i < N; i++) {
            if (r.finish[i] != PL_FINISH_INTEGRITY) {
                ck_assert_int_eq(r.n_out[i], want.n_out[i]);
            } else {
                n_victims++;
                ck_assert_int_ne(i, 4); /* whose pages they were to be sends for the rest again */
            }
            ck_assert_mem_eq(r.token[i], want.token[i], sizeof *r.token[i] * (size_t)r.n_out[i]);
            ck_assert_mem_eq(r.logprob[i], want.logprob[i], sizeof *r.logprob[i] * (size_t)r.n_out[i]);
        }
        ck_assert_int_eq(n_victims, 1);
        ck_assert_int_eq(r.n_cached[4], 48);
        r = run(PL_CHECK_OFF, f, LOADS, disk);
        ck_assert(r.struck);
        ck_assert_int_gt(changed(&r, &want), 0);
    }
}
END_TEST

START_TEST(another_pages_bytes)
{
    const pl_fault f = {.what = PL_FAULT_SLOT_OTHER};
    for (int disk = 0; disk < 2; disk++) {
        const run_t want = run(PL_CHECK_PAGES, (pl_fault){0}, NEVER, disk);
        run_t r = run(PL_CHECK_PAGES, f, NEVER, disk);
        ck_assert(r.struck);
        ck_assert_int_eq(changed(&r, &want), 0);
        ck_assert_int_eq(r.n_cached[4], 0); /* nor what follows it */
        ck_assert_uint_eq(r.m.host.damaged + r.m.disk.damaged, 1);
        r = run(PL_CHECK_OFF, f, NEVER, disk);
        ck_assert(r.struck);
        if (disk)
            ck_assert_int_eq(changed(&r, &want), 0); /* what comes from a disk is always looked at */
        else
            ck_assert_int_gt(changed(&r, &want), 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fault_tier");
    TCase *c = tcase_create("fault_tier");
    tcase_add_checked_fixture(c, setup_with_disk, teardown_with_disk);
    tcase_add_test(c, clean);
    tcase_add_test(c, freed_while_copied_out);
    tcase_add_test(c, freed_while_copied_in);
    tcase_add_test(c, another_pages_bytes);
    suite_add_tcase(s, c);
    return run_suite(s);
}
