/* The step trace, on the toy model of the engine's tests: parts and ops add up to no more than their step, steps do not
 * overlap, the ring keeps the last ones, off is off, and a step that fails leaves nothing. */
#include "c/toy.h"
#include "suite.h"

static int32_t count(const pl_engine *e)
{
    int32_t n = 0;
    while (pl_engine_traced(e, n)) n++;
    ck_assert_ptr_null(pl_engine_traced(e, -1));
    ck_assert_ptr_null(pl_engine_traced(e, n + 1));
    return n;
}

/* n steps of one request */
static void steps(pl_engine *e, int64_t id, int n)
{
    for (int i = 0; i < n; i++) {
        const pl_request *r = request(e, id);
        ck_assert_ptr_nonnull(r);
        ck_assert_int_eq(pl_engine_plan(e, id, (int32_t)pl_min(r->left, 3), &err), PL_OK);
        ck_assert_msg(pl_engine_step(e, &err) == PL_OK, "%s", err.msg);
    }
}

static void check_step(const pl_step *s)
{
    double sum = 0, ops = 0;
    for (int i = 0; i < PL_N_PARTS; i++) {
        ck_assert(s->part_s[i] >= 0);
        sum += s->part_s[i];
    }
    ck_assert(sum <= s->total_s * (1 + 1e-9) && s->total_s < 60);
    for (int32_t i = 0; i < s->n_ops; i++) {
        ck_assert(s->op_s[i] >= 0);
        ops += (double)s->op_s[i];
    }
    ck_assert(ops <= s->part_s[PL_PART_OPS] * (1 + 1e-6));
    ck_assert(s->n_ops == 0 || ops > 0);
}

START_TEST(a_step_is_its_parts)
{
    pl_engine *e = engine_with((pl_engine_opts){.max_requests = 2, .prefix = true});
    const int64_t id = submit(e, 7, 1, 20, 0);
    ck_assert_int_eq(count(e), 0);
    steps(e, id, 1);
    ck_assert_int_eq(count(e), 0); /* off */
    ck_assert_int_eq(pl_engine_trace(e, -1, &err), PL_EARG);
    ck_assert_int_eq(pl_engine_trace(e, 16, &err), PL_OK);
    ck_assert_int_eq(count(e), 0);
    const double before = pl_now_s();
    steps(e, id, 5);
    ck_assert_int_eq(count(e), 5);
    double last = before;
    for (int32_t i = 0; i < 5; i++) {
        const pl_step *s = pl_engine_traced(e, i);
        check_step(s);
        ck_assert_int_eq(s->number, i + 1);
        ck_assert(s->start_s >= last);
        last = s->start_s + s->total_s;
        ck_assert_int_eq(s->n_spans, 1);
        ck_assert_int_eq(s->n_tokens, i == 0 ? 3 : 1); /* prompt: 3 before the trace, 3, 1 */
        ck_assert_int_eq(s->n_rows, i > 0);
        ck_assert_int_eq(s->n_ops, pl_prog_n_ops(m.prog));
        ck_assert(s->part_s[PL_PART_OPS] > 0);
        ck_assert((s->part_s[PL_PART_SAMPLE] > 0) == (i > 0));
    }
    ck_assert(last <= pl_now_s());
    /* ops by name and line */
    int32_t line = 0;
    ck_assert_str_eq(pl_op_name(pl_prog_op_at(m.prog, 0, &line)), "embed");
    ck_assert_int_eq(line, 1);
    ck_assert_int_eq(pl_prog_op_at(m.prog, -1, &line), PL_EARG);
    ck_assert_int_eq(pl_prog_op_at(m.prog, pl_prog_n_ops(m.prog), &line), PL_EARG);
    /* off again, on again: nothing of before */
    ck_assert_int_eq(pl_engine_trace(e, 0, &err), PL_OK);
    steps(e, id, 2);
    ck_assert_int_eq(count(e), 0);
    ck_assert_int_eq(pl_engine_trace(e, 1, &err), PL_OK);
    ck_assert_int_eq(count(e), 0);
    pl_engine_close(e);
}
END_TEST

START_TEST(the_ring_keeps_the_last_steps)
{
    for (int32_t cap = 1; cap <= 7; cap += 3) {
        pl_engine *e = engine(1);
        const int64_t id = submit(e, 2, 1, 30, 0);
        ck_assert_int_eq(pl_engine_trace(e, cap, &err), PL_OK);
        for (int32_t n = 1; n <= 17; n++) {
            steps(e, id, 1);
            const int32_t kept = n < cap ? n : cap;
            ck_assert_int_eq(count(e), kept);
            for (int32_t i = 0; i < kept; i++) {
                ck_assert_int_eq(pl_engine_traced(e, i)->number, n - kept + i);
                check_step(pl_engine_traced(e, i));
            }
        }
        pl_engine_close(e);
    }
}
END_TEST

START_TEST(what_is_no_step_leaves_none)
{
    pl_engine *e = engine(2);
    ck_assert_int_eq(pl_engine_trace(e, 8, &err), PL_OK);
    pl_queue q;
    pl_engine_look(e, &q);
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK); /* nothing planned */
    ck_assert_int_eq(count(e), 0);
    /* a step that the cache refuses: its pages go to someone else between plan and step */
    const int64_t id = submit(e, 40, 1, 4, 0);
    ck_assert_int_eq(pl_engine_plan(e, id, 40, &err), PL_OK);
    int32_t seq;
    ck_assert_int_eq(pl_kv_seq_new(m.kv, 0, &seq, &err), PL_OK);
    ck_assert_int_eq(pl_kv_begin(m.kv, &(pl_span){seq, 16 * 63}, 1, &err), PL_OK);
    ck_assert_int_eq(pl_kv_commit(m.kv, &err), 0);
    ck_assert_int_eq(pl_engine_step(e, &err), PL_EPAGES);
    ck_assert_int_eq(count(e), 0);
    pl_kv_seq_free(m.kv, seq);
    /* a look long before the step that it belongs to, while nobody was there, is not part of it */
    pl_engine_cancel(e, id, &err);
    pl_engine_look(e, &q);
    const double idle = pl_now_s();
    const int64_t next = submit(e, 2, 1, 4, 0);
    steps(e, next, 1);
    ck_assert_int_eq(count(e), 1);
    ck_assert(pl_engine_traced(e, 0)->start_s >= idle);
    /* without a look, a step begins when it runs */
    ck_assert_int_eq(pl_engine_plan(e, next, 1, &err), PL_OK);
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
    ck_assert(pl_engine_traced(e, 1)->part_s[PL_PART_PLAN] == 0);
    pl_engine_close(e);
}
END_TEST

START_TEST(simulated_steps_have_no_ops)
{
    pl_kv *kv = NULL;
    pl_engine *e = NULL;
    const pl_kv_opts o = {.layers = 1,
                          .heads = 1,
                          .key_dim = 1,
                          .value_dim = 1,
                          .page = 16,
                          .dtype = PL_BF16,
                          .n_pages = 64,
                          .dry = true};
    const pl_cost cost = {.step_s = 100, .bytes_s = 1, .flop_s = 1};
    ck_assert_int_eq(pl_kv_open(&kv, m.dev, &o, &err), PL_OK);
    const pl_engine_opts eo = {.max_requests = 1, .max_tokens = 64, .n_vocab = V, .cost = &cost};
    ck_assert_int_eq(pl_engine_open(&e, NULL, kv, &eo, &err), PL_OK);
    ck_assert_int_eq(pl_engine_trace(e, 4, &err), PL_OK);
    const double before = pl_now_s();
    steps(e, submit(e, 5, 1, 9, 0), 3);
    ck_assert_int_eq(count(e), 3);
    for (int32_t i = 0; i < 3; i++) {
        const pl_step *s = pl_engine_traced(e, i);
        check_step(s);
        ck_assert_int_eq(s->n_ops, 0);
        ck_assert(s->part_s[PL_PART_OPS] == 0 && s->start_s >= before); /* real seconds, not simulated ones */
    }
    pl_engine_close(e);
    pl_kv_close(kv);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("prof");
    TCase *c = tcase_create("prof");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, a_step_is_its_parts);
    tcase_add_test(c, the_ring_keeps_the_last_steps);
    tcase_add_test(c, what_is_no_step_leaves_none);
    tcase_add_test(c, simulated_steps_have_no_ops);
    suite_add_tcase(s, c);
    return run_suite(s);
}
