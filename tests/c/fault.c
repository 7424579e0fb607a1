/* Faults of page ownership, injected into a running engine: each is caught before a token of the step is out, its victim
 * ends alone and with its own reason, every neighbour's tokens are those of a clean run, and no page is lost. With the
 * check off the same faults do change answers. */
#include "c/toy.h"
#include "suite.h"
#include <pthread.h>

enum { N = 6, OUT = 30, STEPS = 400, PREEMPTED = 1, CANCELLED = 4 };

typedef struct run_t {
    int32_t token[N][OUT], n_out[N], finish[N];
    int32_t out_at_strike[N];
    bool struck;
    int64_t victim; /* number of the request that the fault struck, -1: none */
    int32_t n_damaged;
    pl_metrics m;
} run_t;

/* A copy that writes to a page for a while, on a thread of its own: what a transfer or an offload does. */
typedef struct copy {
    pthread_t thread;
    pl_hold hold;
    uint8_t *page;
    int64_t bytes;
    int32_t go, done;
    bool runs;
} copy;

static void *late_writer(void *arg)
{
    copy *c = arg;
    while (!__atomic_load_n(&c->go, __ATOMIC_ACQUIRE)) sched_yield();
    for (int64_t i = 0; i < c->bytes; i += 4) /* 8 to 16, either sign: somebody else's keys and values */
        __atomic_store_n((uint32_t *)(c->page + i), 0x41000000u | ((uint32_t)i * 2654435761u & 0x807fffffu),
                         __ATOMIC_RELAXED);
    __atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* What happens at each step beside the requests' own tokens; the same in every run. */
static void interfere(pl_engine *e, int step, const int64_t *id, copy *c, bool with_copy)
{
    const pl_request *r = request(e, id[PREEMPTED]), *x = request(e, id[CANCELLED]);
    if (step == 9 && r && r->state == PL_RUNNING) ck_assert_int_eq(pl_engine_preempt(e, r->id, &err), PL_OK);
    if (step == 12 && x) {
        if (with_copy) {
            const pl_kv_seq *s = &m.kv->seq[x->seq];
            c->hold = pl_tags_copy_begin(&m.kv->tags, pl_kv_hold(s, 1), true);
            c->page = pl_kv_page(m.kv, c->hold.page);
            c->bytes = m.kv->page_bytes;
            c->runs = true;
            ck_assert_int_eq(pthread_create(&c->thread, NULL, late_writer, c), 0);
        }
        ck_assert_int_eq(pl_engine_cancel(e, id[CANCELLED], &err), PL_OK);
    }
    if (step == 22 && c->runs) __atomic_store_n(&c->go, 1, __ATOMIC_RELEASE);
    if (step == 24 && c->runs) { /* the engine hears of the end between two steps */
        pthread_join(c->thread, NULL);
        ck_assert(!pl_tags_copy_end(&m.kv->tags, c->hold, true)); /* too late: the page is not its owner's any more */
        c->runs = false;
    }
}

/* Is request i of those that get tokens in this step? A preempted one waits a while, so that its pages find new owners. */
static bool takes_part(int i, int step)
{
    return !(i == PREEMPTED && step >= 9 && step < 16) && !(i == 5 && step < 14);
}

static run_t run(int32_t check, pl_fault fault, int victim, bool with_copy)
{
    run_t r = {.victim = -1};
    copy c = {0};
    int64_t id[N];
    pl_kv *plain = m.kv;
    pl_kv_opts k = plain->o;
    k.check = check;
    k.n_pages = 40;
    ck_assert_int_eq(pl_kv_open(&m.kv, m.dev, &k, &err), PL_OK);
    pl_engine *e = engine_with((pl_engine_opts){.max_requests = N});
    for (int i = 0; i < N; i++) id[i] = submit(e, 18 + 9 * i, i, i == 0 ? 12 : OUT, 0);
    fault.owner = victim >= 0 ? id[victim] : 0;
    int step = 0;
    for (bool busy = true; busy && step < STEPS; step++) {
        if (step == 6) m.kv->tags.fault = &fault; /* all are under way */
        interfere(e, step, id, &c, with_copy);
        const bool before = fault.struck;
        r.n_damaged += pl_kv_scrub(m.kv, 40);
        busy = false;
        const pl_request *known[N];
        for (int i = 0; i < N; i++) known[i] = request(e, id[i]); /* a look, which forgets the plan */
        for (int i = 0; i < N; i++) {
            const pl_request *q = known[i];
            busy = busy || q;
            const int32_t n = q ? (int32_t)pl_min(pl_min(q->left, 20), pl_engine_step_left(e)) : 0;
            if (n && takes_part(i, step)) (void)pl_engine_plan(e, id[i], n, &err);
        }
        const pl_event *v;
        ck_assert_msg(pl_engine_step(e, &err) == PL_OK, "%s", err.msg);
        if (fault.struck && !before)
            for (int i = 0; i < N; i++) r.out_at_strike[i] = r.n_out[i];
        for (int32_t n = pl_engine_events(e, &v); n > 0; n--, v++)
            for (int i = 0; i < N; i++) {
                if (v->id != id[i]) continue;
                if (v->sampled.token >= 0) r.token[i][r.n_out[i]++] = v->sampled.token;
                r.finish[i] = v->finish;
            }
        for (int i = 0; fault.struck && i < N; i++)
            if (id[i] == fault.owner) r.victim = i;
    }
    ck_assert_int_lt(step, STEPS);
    ck_assert(!c.runs);
    r.struck = fault.struck;
    pl_engine_metrics(e, &r.m);
    ck_assert_int_eq(r.m.pages.in_flight, 0);
    pl_engine_close(e);
    if (check != PL_CHECK_OFF) { /* nobody holds a page any more, none is lost */
        ck_assert_int_eq(r.m.pages.free + r.m.pages.quarantined, 40);
        pl_kv_readmit(m.kv);
        ck_assert_int_eq(pl_kv_free_pages(m.kv), 40);
    }
    pl_kv_close(m.kv);
    m.kv = plain;
    free(fault.page);
    free(fault.tag);
    return r;
}

static run_t clean;
static void start(void)
{
    setup();
    clean = run(PL_CHECK_PAGES, (pl_fault){0}, -1, false);
    ck_assert_int_eq(clean.m.mismatches, 0);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(clean.finish[i], i == CANCELLED ? 0 : PL_FINISH_LENGTH);
        ck_assert_int_eq(clean.n_out[i] == (i == 0 ? 12 : OUT), i != CANCELLED);
    }
}

static void same_as_clean(const run_t *r, int i)
{
    ck_assert_int_eq(r->n_out[i], clean.n_out[i]);
    ck_assert_int_eq(r->finish[i], clean.finish[i]);
    ck_assert_mem_eq(r->token[i], clean.token[i], sizeof *r->token[i] * (size_t)r->n_out[i]);
}

static int changed(const run_t *r)
{
    int n = 0;
    for (int i = 0; i < N; i++)
        if (r->n_out[i] != clean.n_out[i] ||
            memcmp(r->token[i], clean.token[i], sizeof *r->token[i] * (size_t)r->n_out[i]))
            n++;
    return n;
}

/* The victim ends with its own reason; its tokens so far are right, and none is of the step that the fault struck. */
static void caught(const run_t *r, int victim)
{
    ck_assert(r->struck);
    ck_assert_int_ge(victim, 0);
    ck_assert_int_eq(r->finish[victim], PL_FINISH_INTEGRITY);
    ck_assert_int_eq(r->n_out[victim], r->out_at_strike[victim]);
    ck_assert_mem_eq(r->token[victim], clean.token[victim], sizeof *r->token[0] * (size_t)r->n_out[victim]);
    ck_assert_int_eq(r->m.finished[PL_FINISH_INTEGRITY], 1);
    ck_assert_uint_gt(r->m.mismatches, 0);
    for (int i = 0; i < N; i++)
        if (i != victim) same_as_clean(r, i);
}

/* Each fault, on each request and on several of its pages. */
static int try_all(int32_t what, int32_t check, bool with_check)
{
    int n_changed = 0;
    for (int victim = 0; victim < N; victim++)
        for (int index = 0; index < 2; index++) {
            if (victim == CANCELLED) continue; /* it is gone before it could notice */
            const run_t r = run(check, (pl_fault){.what = what, .index = index}, victim, false);
            if (with_check)
                caught(&r, victim);
            else
                n_changed += changed(&r);
        }
    return n_changed;
}

START_TEST(freed_while_referenced)
{
    try_all(PL_FAULT_FREE_REFERENCED, PL_CHECK_PAGES, true);
    ck_assert_int_gt(try_all(PL_FAULT_FREE_REFERENCED, PL_CHECK_OFF, false), 0);
}
END_TEST

START_TEST(block_table_off_by_one)
{
    try_all(PL_FAULT_TABLE_OFF, PL_CHECK_PAGES, true);
    ck_assert_int_gt(try_all(PL_FAULT_TABLE_OFF, PL_CHECK_OFF, false), 0);
}
END_TEST

START_TEST(tag_flip) /* with the check off nobody reads tags */ { try_all(PL_FAULT_TAG_FLIP, PL_CHECK_PAGES, true); }
END_TEST

START_TEST(stale_table_after_preemption)
{
    run_t r = run(PL_CHECK_PAGES, (pl_fault){.what = PL_FAULT_STALE_TABLE}, PREEMPTED, false);
    caught(&r, PREEMPTED);
    r = run(PL_CHECK_OFF, (pl_fault){.what = PL_FAULT_STALE_TABLE}, PREEMPTED, false);
    ck_assert_int_gt(changed(&r), 0);
}
END_TEST

START_TEST(freed_twice)
{
    run_t r = run(PL_CHECK_PAGES, (pl_fault){.what = PL_FAULT_FREE_TWICE}, 0, false);
    caught(&r, (int)r.victim);
    ck_assert_int_ne(r.victim, 0); /* who has the page by then */
    r = run(PL_CHECK_OFF, (pl_fault){.what = PL_FAULT_FREE_TWICE}, 0, false);
    ck_assert_int_gt(changed(&r), 0);
}
END_TEST

/* A copy still writes to a page of a request that was cancelled. With quarantine nobody gets the page before the copy has
 * ended. Without it the next owner ends at once, while it would else have answered from what the copy wrote. */
START_TEST(late_writer_after_reallocation)
{
    run_t r = run(PL_CHECK_PAGES, (pl_fault){0}, -1, true);
    ck_assert_int_eq(r.m.mismatches, 0);
    for (int i = 0; i < N; i++) same_as_clean(&r, i);
    r = run(PL_CHECK_OFF, (pl_fault){0}, -1, true);
    ck_assert_int_eq(changed(&r), 0);
    r = run(PL_CHECK_PAGES, (pl_fault){.what = PL_FAULT_NO_QUARANTINE}, CANCELLED, true);
    int n_victims = 0;
    for (int i = 0; i < N; i++) {
        if (r.finish[i] == PL_FINISH_INTEGRITY) {
            n_victims++;
            ck_assert_mem_eq(r.token[i], clean.token[i], sizeof *r.token[0] * (size_t)r.n_out[i]);
        } else {
            same_as_clean(&r, i);
        }
    }
    ck_assert_int_eq(n_victims, 1);
    r = run(PL_CHECK_OFF, (pl_fault){.what = PL_FAULT_NO_QUARANTINE}, CANCELLED, true);
    ck_assert_int_gt(changed(&r), 0);
}
END_TEST

/* Damage to contents is not a matter of ownership: a scrub finds it, and the request ends before its next token. */
START_TEST(content_flip)
{
    for (int index = 0; index < 2; index++) {
        const pl_fault f = {.what = PL_FAULT_CONTENT_FLIP, .index = index};
        run_t r = run(PL_CHECK_DIGESTS, f, 3, false);
        ck_assert(r.struck);
        ck_assert_int_eq(r.finish[3], PL_FINISH_INTEGRITY);
        ck_assert_int_eq(r.n_damaged, 1);
        ck_assert_int_eq(r.m.pages.quarantined, 1); /* and stays out of use until someone says so */
        for (int i = 0; i < N; i++)
            if (i != 3) same_as_clean(&r, i);
        r = run(PL_CHECK_PAGES, f, 3, false);
        ck_assert_int_eq(r.m.mismatches, 0); /* tags alone do not see it */
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fault");
    TCase *c = tcase_create("fault");
    tcase_add_checked_fixture(c, start, teardown);
    tcase_add_test(c, freed_while_referenced);
    tcase_add_test(c, block_table_off_by_one);
    tcase_add_test(c, tag_flip);
    tcase_add_test(c, stale_table_after_preemption);
    tcase_add_test(c, freed_twice);
    tcase_add_test(c, late_writer_after_reallocation);
    tcase_add_test(c, content_flip);
    suite_add_tcase(s, c);
    return run_suite(s);
}
