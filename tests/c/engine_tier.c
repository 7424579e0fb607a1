/* The engine with tiers behind its prefix cache: answers are the same bits, whatever was copied out and back meanwhile;
 * requests wait for their pages while others go on; preemption copies pages out where that pays. */
#include "c/toy.h"
#include "suite.h"
#include "tier_impl.h"
#include <stdio.h>
#include <unistd.h>

enum { OUT = 24, MOST = 40 };

typedef struct answer {
    int32_t token[OUT], n, finish;
    float logprob[OUT];
} answer;

static pl_kv *plain;

static pl_engine *open_pages(int64_t n_pages, int64_t host_pages, bool disk)
{
    plain = m.kv;
    pl_kv_opts k = plain->o;
    k.check = PL_CHECK_PAGES;
    k.n_pages = n_pages;
    ck_assert_int_eq(pl_kv_open(&m.kv, m.dev, &k, &err), PL_OK);
    return engine_with((pl_engine_opts){.max_requests = MOST,
                                        .max_rows = 8,
                                        .prefix = true,
                                        .host_cache_bytes = host_pages * m.kv->page_bytes,
                                        .disk_cache_bytes = disk ? 1 << 19 : 0,
                                        .disk_cache = disk ? dir : NULL});
}

static void close_pages(pl_engine *e)
{
    pl_engine_close(e);
    ck_assert_int_eq(pl_kv_free_pages(m.kv), m.kv->o.n_pages);
    pl_kv_close(m.kv);
    m.kv = plain;
}

static void take(pl_engine *e, const int64_t *id, answer *a, int n)
{
    const pl_event *v;
    for (int32_t k = pl_engine_events(e, &v); k > 0; k--, v++)
        for (int i = 0; i < n; i++) {
            if (v->id != id[i]) continue;
            if (v->sampled.token >= 0) {
                a[i].logprob[a[i].n] = v->sampled.logprob;
                a[i].token[a[i].n++] = v->sampled.token;
            }
            a[i].finish = v->finish;
        }
}

static int64_t ask(pl_engine *e, int i) { return submit(e, 20 + i * 7 % 60, i % 5, 6 + i % 3 * 9, i % 2 ? 0 : 0.7f); }

/* Runs what there is room for; false: nobody is left. Where nobody can be planned, copies are waited for. */
static bool step(pl_engine *e)
{
    pl_queue q;
    int32_t n_planned = 0;
    pl_engine_look(e, &q);
    for (int32_t k = 0; k < q.n_running + q.n_waiting; k++) {
        const pl_request *r = k < q.n_running ? q.running[k] : q.waiting[k - q.n_running];
        const int32_t n = (int32_t)pl_min(pl_min(r->left, 20), pl_engine_step_left(e));
        if (n > 0) n_planned += pl_engine_plan(e, r->id, n, &err) == PL_OK;
    }
    if (q.n_running + q.n_waiting && n_planned == 0) {
        if (q.n_running && !pl_engine_wait(e, 10))
            ck_assert_int_eq(pl_engine_preempt(e, q.running[q.n_running - 1]->id, &err), PL_OK);
        return true;
    }
    ck_assert_msg(pl_engine_step(e, &err) == PL_OK, "%s", err.msg);
    return q.n_running + q.n_waiting > 0;
}

static void settle(pl_engine *e)
{
    while (pl_engine_wait(e, 10)) {
    }
}

static void run_all(pl_engine *e, answer *a, bool disturbed)
{
    int64_t id[MOST] = {0};
    memset(a, 0, MOST * sizeof *a);
    for (int i = 0; i < MOST; i++) id[i] = ask(e, i);
    for (int n = 0; step(e); n++) {
        ck_assert_int_lt(n, 5000);
        take(e, id, a, MOST);
        const int32_t at = pl_sched_find(e, id[n * 7 % MOST]);
        if (!disturbed || at < 0) continue;
        if (n % 5 == 4 && e->req[at].state == PL_RUNNING) (void)pl_engine_preempt(e, e->req[at].id, &err);
        if (n % 23 == 22) ck_assert_int_eq(pl_engine_cancel(e, e->req[at].id, &err), PL_OK);
    }
}

/* Small caches, tiers of several sizes, preemptions and cancellations: what is answered is what is answered alone. */
START_TEST(same_bits)
{
    static answer want[MOST], got[MOST];
    pl_engine *e = open_pages(64, 0, false);
    run_all(e, want, false);
    close_pages(e);
    for (int i = 0; i < MOST; i++) ck_assert_int_eq(want[i].n, 6 + i % 3 * 9);
    uint64_t hits = 0, swaps = 0;
    for (int k = 0; k < 8; k++) {
        e = open_pages(9 + k, (int64_t[]){3, 40, 0, 2}[k % 4], k % 4 >= 2);
        run_all(e, got, true);
        settle(e);
        for (int i = 0; i < MOST; i++) {
            ck_assert(got[i].finish == PL_FINISH_LENGTH ? got[i].n == want[i].n : got[i].finish == 0);
            ck_assert_mem_eq(got[i].token, want[i].token, (size_t)got[i].n * sizeof *got[i].token);
            ck_assert_mem_eq(got[i].logprob, want[i].logprob, (size_t)got[i].n * sizeof *got[i].logprob);
        }
        pl_metrics x;
        pl_engine_metrics(e, &x);
        ck_assert_uint_eq(x.mismatches + x.host.damaged + x.disk.damaged + x.disk.errors, 0);
        ck_assert_int_eq(x.pages.in_flight, 0);
        ck_assert_int_eq(x.pages.free + x.idle_pages, 9 + k);
        ck_assert_uint_eq(x.preempted, x.preempted_swap + x.preempted_recompute);
        ck_assert_ptr_null(pl_engine_tier_failure(e));
        hits += x.host.hits + x.disk.hits;
        swaps += x.preempted_swap;
        close_pages(e);
    }
    ck_assert_uint_gt(hits, 20);
    (void)swaps; /* as the machine's rates are */
}
END_TEST

static void fill_tier(pl_engine *e, int64_t *id, answer *a)
{
    *id = submit(e, 50, 1, 6, 0);
    while (step(e)) take(e, id, a, 1);
    take(e, id, a, 1);
    for (int i = 0; i < 8; i++) { /* another step, in which pages may be copied */
        settle(e);
        pl_sched_spill(e);
    }
    settle(e);
    pl_engine_make_room(e, m.kv->o.n_pages);
    ck_assert_int_eq(pl_kv_free_pages(m.kv), m.kv->o.n_pages);
}

START_TEST(waits_for_its_pages)
{
    answer a[3] = {{{0}, 0, 0, {0}}};
    int64_t id[3], first;
    pl_engine *e = open_pages(16, 20, false);
    fill_tier(e, &first, a);
    pl_tier_stall(e->tier, true);
    memset(a, 0, sizeof a);
    for (int i = 0; i < 3; i++) id[i] = submit(e, i == 1 ? 40 : 50, i == 1 ? 3 : 1, 6, 0);
    ck_assert_int_eq(pl_engine_cached(e, id[0]), 48);
    const int64_t before = pl_engine_free_pages(e);
    ck_assert_int_eq(pl_engine_plan(e, id[0], 1, &err), PL_EBUSY);
    ck_assert_int_eq(pl_engine_plan(e, id[0], 1, &err), PL_EBUSY);
    ck_assert_int_eq(request(e, id[0])->loading, 3);
    ck_assert_int_eq(request(e, id[0])->state, PL_WAITING);
    ck_assert_int_eq(pl_engine_free_pages(e), before - 3);
    ck_assert_int_eq(pl_engine_plan(e, id[2], 1, &err), PL_EBUSY); /* the same pages, once */
    ck_assert_int_eq(pl_engine_free_pages(e), before - 3);
    ck_assert_int_eq(pl_engine_plan(e, id[1], 20, &err), PL_OK); /* others go on */
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
    ck_assert_int_eq(pl_engine_cancel(e, id[0], &err), PL_OK);
    ck_assert(pl_engine_wait(e, 0));
    pl_tier_stall(e->tier, false);
    settle(e);
    ck_assert_int_eq(request(e, id[2])->loading, 0);
    ck_assert_int_eq(pl_engine_plan(e, id[2], 2, &err), PL_OK);
    ck_assert_int_eq(request(e, id[2])->n_cached, 48);
    while (step(e)) take(e, id, a, 3);
    take(e, id, a, 3);
    ck_assert(a[0].n == 0 && a[1].n == 6 && a[2].n == 6);
    pl_metrics x;
    pl_engine_metrics(e, &x);
    ck_assert_uint_eq(x.host.hits, 3);
    ck_assert(!pl_engine_wait(e, 1) || x.n_copies > 0);
    close_pages(e);
}
END_TEST

/* A pool that is almost full: no page that is promised to the plan is taken for a load. */
START_TEST(no_room_for_loads)
{
    answer a[1] = {{{0}, 0, 0, {0}}};
    int64_t first;
    pl_engine *e = open_pages(6, 20, false);
    fill_tier(e, &first, a);
    const int64_t large = submit(e, 80, 4, 10, 0), same = submit(e, 50, 1, 6, 0);
    pl_queue q;
    pl_engine_look(e, &q);
    ck_assert_int_eq(pl_engine_plan(e, large, 64, &err), PL_OK); /* four pages */
    ck_assert_int_eq(pl_engine_plan(e, same, 50, &err), PL_EBUSY);
    ck_assert_int_eq(e->req[pl_sched_find(e, same)].loading, 2);
    ck_assert_int_eq(pl_engine_free_pages(e), -1); /* the rest of the large one will want a page */
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
    while (step(e)) take(e, &same, a, 1);
    pl_engine_look(e, &q);
    ck_assert_int_eq(q.n_running + q.n_waiting, 0);
    settle(e);
    close_pages(e);
}
END_TEST

static answer swap_run(int choice, pl_metrics *x)
{
    answer a[2] = {{{0}, 0, 0, {0}}};
    int64_t id[2];
    pl_engine *e = open_pages(12, 20, false);
    id[0] = submit(e, 70, 2, OUT, 0);
    for (int i = 0; i < 8; i++) {
        (void)step(e);
        take(e, id, a, 1);
    }
    settle(e);
    e->prefill_tokens = 1e6, e->prefill_s = choice ? 1 : 0;
    e->tier->copied_bytes = choice == 1 ? 1e12 : choice == 2 ? 1 : 0, e->tier->copy_s = 1;
    ck_assert_int_eq(pl_engine_preempt(e, id[0], &err), PL_OK);
    pl_engine_metrics(e, x);
    if (choice == 1) {
        ck_assert_int_gt(x->n_copies, 0);
        ck_assert_int_gt(pl_engine_free_pages(e), 4); /* pages are wanted now */
        for (int i = 0; i < 3; i++) {
            settle(e);
            pl_sched_spill(e);
        }
        ck_assert_int_eq(e->n_swaps, 0);
    }
    settle(e);
    const uint64_t stored = e->tier->host_count.stored;
    pl_engine_make_room(e, 12);
    ck_assert_int_eq(pl_engine_cached(e, id[0]), choice == 1 ? 64 : 0);
    while (step(e)) take(e, id, a, 1);
    take(e, id, a, 1);
    pl_engine_metrics(e, x);
    ck_assert_uint_eq(stored, choice == 1 ? 4 : 0);
    close_pages(e);
    return a[0];
}

START_TEST(swapped_out)
{
    pl_metrics x;
    const answer unknown = swap_run(0, &x);
    ck_assert(x.preempted_recompute == 1 && x.preempted_swap == 0 && x.host.hits == 0);
    const answer copied = swap_run(1, &x);
    ck_assert(x.preempted_recompute == 0 && x.preempted_swap == 1 && x.host.hits == 4);
    const answer computed = swap_run(2, &x); /* copies are slower */
    ck_assert(x.preempted_recompute == 1 && x.preempted_swap == 0 && x.host.hits == 0);
    ck_assert_int_eq(unknown.n, OUT);
    ck_assert_mem_eq(&copied, &unknown, sizeof copied);
    ck_assert_mem_eq(&computed, &unknown, sizeof computed);
}
END_TEST

/* Preempted, and then cancelled before its pages are all copied. */
START_TEST(swapped_out_and_gone)
{
    pl_engine *e = open_pages(9, 20, false);
    const int64_t id = submit(e, 110, 2, OUT, 0);
    for (int i = 0; i < 7; i++) (void)step(e);
    settle(e);
    e->prefill_tokens = 1e6, e->prefill_s = 1;
    e->tier->copied_bytes = 1e12, e->tier->copy_s = 1;
    pl_tier_stall(e->tier, true);
    ck_assert_int_eq(pl_engine_preempt(e, id, &err), PL_OK);
    ck_assert_int_eq(e->n_swaps, 1);
    ck_assert_int_eq(pl_engine_cancel(e, id, &err), PL_OK);
    ck_assert_int_eq(e->n_swaps, 0);
    pl_tier_stall(e->tier, false);
    settle(e);
    close_pages(e);
}
END_TEST

START_TEST(refused)
{
    pl_engine *e = NULL;
    pl_engine_opts o = {.max_requests = 4, .max_tokens = 64, .n_vocab = V, .host_cache_bytes = 1 << 20};
    ck_assert_int_eq(pl_engine_open(&e, m.prog, m.kv, &o, &err), PL_EARG);
    ck_assert(strstr(err.msg, "no prefix cache") != NULL);
    o.prefix = true;
    o.host_cache_bytes = 10;
    ck_assert_int_eq(pl_engine_open(&e, m.prog, m.kv, &o, &err), PL_EARG);
    o.host_cache_bytes = 0;
    o.disk_cache_bytes = 1 << 20;
    ck_assert_int_eq(pl_engine_open(&e, m.prog, m.kv, &o, &err), PL_EARG);
    o.disk_cache = "/no/such";
    ck_assert_int_eq(pl_engine_open(&e, m.prog, m.kv, &o, &err), PL_EIO);
    const pl_cost cost = {.step_s = 1, .bytes_s = 1, .flop_s = 1};
    const pl_kv_opts k = {.layers = 1, .heads = 1, .key_dim = 1, .value_dim = 1, .n_pages = 4, .dry = true};
    pl_kv *dry;
    ck_assert_int_eq(pl_kv_open(&dry, m.dev, &k, &err), PL_OK);
    o = (pl_engine_opts){.max_requests = 4, .max_tokens = 64, .n_vocab = V, .prefix = true, .cost = &cost};
    o.host_cache_bytes = 1 << 20;
    ck_assert_int_eq(pl_engine_open(&e, NULL, dry, &o, &err), PL_EARG);
    ck_assert(strstr(err.msg, "simulation") != NULL);
    pl_kv_close(dry);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine_tier");
    TCase *c = tcase_create("engine_tier");
    tcase_add_checked_fixture(c, setup_with_disk, teardown_with_disk);
    tcase_add_test(c, same_bits);
    tcase_add_test(c, waits_for_its_pages);
    tcase_add_test(c, no_room_for_loads);
    tcase_add_test(c, swapped_out);
    tcase_add_test(c, swapped_out_and_gone);
    tcase_add_test(c, refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
