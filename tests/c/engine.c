/* Programs and the engine on a toy model: one layer of attention over the paged cache, then a head. Results do not
 * depend on the batch, on chunked prefill or on what runs beside; bad plans and failing requests harm no other. */
#include "dev.h"
#include "prog.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { V = 50, D = 32, H = 2, HD = 16 };

typedef struct model {
    pl_dev *dev;
    pl_prog *prog;
    pl_kv *kv;
    pl_tensor table, head, freq;
} model;
static model m;
static pl_err err;

static int32_t op(const char *name)
{
    for (int32_t i = 0; i < pl_op_count(); i++)
        if (!strcmp(pl_op_name(i), name)) return i;
    ck_abort_msg("no op %s", name);
}

static int32_t value(int32_t ndim, int64_t a, int64_t b, int64_t c)
{
    const int32_t id = pl_prog_value(m.prog, PL_F32, ndim, (int64_t[]){a, b, c}, &err);
    ck_assert_int_ge(id, 0);
    return id;
}

static void call(const char *name, const int32_t *v, int32_t n, const pl_attr *a, int32_t n_attrs)
{
    ck_assert_msg(pl_prog_op(m.prog, op(name), v, n, a, n_attrs, 1, &err) == PL_OK, "%s", err.msg);
}

static void fill(pl_tensor *t, int64_t rows, int64_t cols, float scale)
{
    float *v = malloc((size_t)(rows * cols) * 4);
    for (int64_t i = 0; i < rows * cols; i++) v[i] = scale * ((float)(rand() % 2001) / 1000.0f - 1);
    ck_assert_int_eq(pl_tensor_new(t, m.dev, PL_F32, 2, (int64_t[]){rows, cols}, &err), PL_OK);
    ck_assert_int_eq(pl_tensor_set_f32(t, v, rows * cols, &err), PL_OK);
    free(v);
}

/* embed; q = k = v = rotated heads of it; attend; add; gather the wanted rows; head */
static void build(int32_t max_tokens, int32_t max_rows)
{
    ck_assert_int_eq(pl_prog_new(&m.prog, m.dev, &err), PL_OK);
    const int32_t table = pl_prog_const(m.prog, &m.table, &err), head = pl_prog_const(m.prog, &m.head, &err),
                  freq = pl_prog_const(m.prog, &m.freq, &err);
    const int32_t x = value(2, PL_DIM_T, D, 0), q = value(3, PL_DIM_T, H, HD), y = value(3, PL_DIM_T, H, HD),
                  sum = value(2, PL_DIM_T, D, 0), last = value(2, PL_DIM_R, D, 0), out = value(2, PL_DIM_R, V, 0);
    call("embed", (int32_t[]){x, table, PL_VALUE_IDS}, 3, (pl_attr[]){{.f = 1}}, 1);
    const int32_t heads = pl_prog_view(m.prog, x, 0, 3, (int64_t[]){PL_DIM_T, H, HD}, (int64_t[]){D, HD, 1}, &err);
    ck_assert_int_ge(heads, 0);
    call("rope", (int32_t[]){q, heads, PL_VALUE_POS, freq}, 4, (pl_attr[]){{.f = 1}, {.i = 0}}, 2);
    call("kv_append", (int32_t[]){q, heads}, 2, (pl_attr[]){{.i = 0}}, 1);
    call("attend", (int32_t[]){y, q}, 2, (pl_attr[]){{.i = 0}, {.f = 3}, {.i = 0}}, 3);
    const int32_t flat = pl_prog_view(m.prog, y, 0, 2, (int64_t[]){PL_DIM_T, D}, (int64_t[]){D, 1}, &err);
    ck_assert_int_ge(flat, 0);
    call("add", (int32_t[]){sum, x, flat}, 3, NULL, 0);
    call("gather", (int32_t[]){last, sum, PL_VALUE_ROWS}, 3, NULL, 0);
    call("linear", (int32_t[]){out, last, head, -1}, 4, (pl_attr[]){{.i = PL_ACT_F32}}, 1);
    ck_assert_msg(pl_prog_build(m.prog, out, max_tokens, max_rows, true, &err) == PL_OK, "%s", err.msg);
}

static void setup(void)
{
    srand(5);
    ck_assert_int_eq(pl_dev_open(&m.dev, &(pl_dev_opts){.n_threads = 2}, &err), PL_OK);
    fill(&m.table, V, D, 1);
    fill(&m.head, V, D, 1.5f);
    ck_assert_int_eq(pl_tensor_new(&m.freq, m.dev, PL_F32, 1, (int64_t[]){HD / 2}, &err), PL_OK);
    for (int i = 0; i < HD / 2; i++) ((float *)m.freq.data)[i] = powf(100, -2.0f * (float)i / HD);
    const pl_kv_opts o = {
        .layers = 1, .heads = H, .key_dim = HD, .value_dim = HD, .page = 16, .dtype = PL_F32, .n_pages = 64};
    ck_assert_int_eq(pl_kv_open(&m.kv, m.dev, &o, &err), PL_OK);
    build(64, 16);
}

static void teardown(void)
{
    pl_prog_free(m.prog);
    pl_kv_close(m.kv);
    pl_tensor_release(&m.table);
    pl_tensor_release(&m.head);
    pl_tensor_release(&m.freq);
    pl_dev_close(m.dev);
}

static pl_engine *engine(int32_t max_requests)
{
    pl_engine *e = NULL;
    const pl_engine_opts o = {.max_requests = max_requests, .max_tokens = 64, .n_vocab = V};
    ck_assert_int_eq(pl_engine_open(&e, m.prog, m.kv, &o, &err), PL_OK);
    return e;
}

static int64_t submit(pl_engine *e, int n_prompt, int salt, int max_out, float temperature)
{
    int32_t prompt[60];
    int64_t id = 0;
    for (int i = 0; i < n_prompt; i++) prompt[i] = (i * 7 + salt * 13) % V;
    const pl_request_opts o = {
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_out = max_out,
        .sample = {.temperature = temperature, .top_p = 1, .repetition = 1, .seed = (uint64_t)salt, .n_logprobs = 0}};
    ck_assert_msg(pl_engine_submit(e, &o, &id, &err) == PL_OK, "%s", err.msg);
    return id;
}

/* Runs all requests to their ends, at most `chunk` tokens of each in a step; out[i][k], prob[i][k] of the i-th id. */
static void drive(pl_engine *e, int chunk, const int64_t *id, int n, int32_t out[][40], float prob[][40])
{
    for (bool busy = true; busy;) {
        pl_request *r;
        const pl_event *v;
        busy = false;
        const int32_t slots = pl_engine_requests(e, &r);
        for (int32_t i = 0; i < slots; i++) {
            if (r[i].state != PL_WAITING && r[i].state != PL_RUNNING) continue;
            busy = true;
            const int32_t want = (int32_t)pl_min(pl_min(r[i].left, chunk), pl_engine_step_left(e));
            if (want) ck_assert_msg(pl_engine_plan(e, r[i].id, want, &err) == PL_OK, "%s", err.msg);
        }
        ck_assert_msg(pl_engine_step(e, &err) == PL_OK, "%s", err.msg);
        const int32_t n_events = pl_engine_events(e, &v);
        for (int32_t k = 0; k < n_events; k++)
            for (int i = 0; i < n; i++)
                if (v[k].id == id[i] && v[k].sampled.token >= 0) {
                    out[i][v[k].n_out - 1] = v[k].sampled.token;
                    prob[i][v[k].n_out - 1] = v[k].sampled.logprob;
                }
    }
}

START_TEST(a_batch_changes_nothing)
{
    enum { N = 12, OUT = 30 };
    int32_t alone[N][40], together[N][40];
    float p_alone[N][40], p_together[N][40];
    int64_t id[N];
    for (int i = 0; i < N; i++) {
        pl_engine *e = engine(1);
        id[i] = submit(e, 1 + i * 4, i, OUT, i % 2 ? 1 : 0);
        drive(e, 64, &id[i], 1, &alone[i], &p_alone[i]);
        pl_engine_close(e);
        ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
    }
    for (int chunk = 1; chunk <= 64; chunk = chunk * 3 + 2) {
        pl_engine *e = engine(N);
        for (int i = 0; i < N; i++) id[i] = submit(e, 1 + i * 4, i, OUT, i % 2 ? 1 : 0);
        drive(e, chunk, id, N, together, p_together);
        for (int i = 0; i < N; i++)
            for (int k = 0; k < OUT; k++) {
                ck_assert_int_eq(alone[i][k], together[i][k]);
                ck_assert(p_alone[i][k] == p_together[i][k]); /* the same bits */
            }
        pl_metrics x;
        pl_engine_metrics(e, &x);
        ck_assert_int_eq(x.out_tokens, N * OUT);
        ck_assert_int_eq(x.prompt_tokens, N + 4 * N * (N - 1) / 2);
        ck_assert_int_eq(x.finished[PL_FINISH_LENGTH], N);
        pl_engine_close(e);
        ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
    }
}
END_TEST

START_TEST(stop_cancel_and_limits)
{
    pl_engine *e = engine(2);
    const pl_event *v;
    pl_request *r;
    int32_t out[1][40];
    float prob[1][40];
    int64_t id = submit(e, 3, 1, 10, 0), other;
    drive(e, 64, &id, 1, out, prob);
    /* its third token as a stop token ends the same request there */
    int32_t stop[] = {out[0][2], 49}, first = 0;
    while (out[0][first] != stop[0]) first++;
    int32_t prompt[] = {13, 20, 27};
    pl_request_opts o = {.prompt = prompt,
                         .n_prompt = 3,
                         .max_out = 10,
                         .stop = stop,
                         .n_stop = 1,
                         .sample = {.top_p = 1, .repetition = 1, .n_logprobs = -1}};
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_OK);
    int32_t last = -1, finish = 0, n_out = 0;
    while (!finish) {
        pl_engine_requests(e, &r);
        ck_assert_int_eq(pl_engine_plan(e, id, r[0].left, &err), PL_OK);
        ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
        ck_assert_int_eq(pl_engine_events(e, &v), 1);
        last = v->sampled.token, finish = v->finish, n_out = v->n_out;
    }
    ck_assert_int_eq(finish, PL_FINISH_STOP);
    ck_assert_int_eq(last, stop[0]);
    ck_assert_int_eq(n_out, first + 1);
    /* a full house, a cancellation, and its place is free again */
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_OK);
    ck_assert_int_eq(pl_engine_submit(e, &o, &other, &err), PL_OK);
    ck_assert_int_eq(pl_engine_submit(e, &o, &(int64_t){0}, &err), PL_EFULL);
    ck_assert_int_eq(pl_engine_plan(e, id, 2, &err), PL_OK);
    ck_assert_int_eq(pl_engine_plan(e, id, 1, &err), PL_EARG);
    ck_assert_int_eq(pl_engine_plan(e, other, 4, &err), PL_EARG);
    ck_assert_int_eq(pl_engine_plan(e, 12345, 1, &err), PL_ENAME);
    ck_assert_int_eq(pl_engine_cancel(e, id, &err), PL_EARG);
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
    ck_assert_int_eq(pl_engine_events(e, &v), 0); /* half a prompt: no token yet */
    ck_assert_int_eq(pl_engine_cancel(e, id, &err), PL_OK);
    ck_assert_int_eq(pl_engine_cancel(e, id, &err), PL_ENAME);
    ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_OK); /* its place is free at once */
    /* what can never fit, and what is no token */
    o.max_out = 16 * 64;
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_EARG);
    o.max_out = 1;
    prompt[1] = V;
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_EARG);
    ck_assert_str_eq(err.msg, "request: token 1 of the prompt is 50, the vocabulary has 50");
    o.n_prompt = 0;
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_EARG);
    pl_engine_close(e);
    ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
}
END_TEST

/* A request whose sampling fails ends alone; its neighbour goes on as if nothing was. */
START_TEST(a_failing_request_ends_alone)
{
    pl_engine *e = engine(2);
    int32_t out[2][40], alone[1][40];
    float prob[2][40];
    int64_t good = submit(e, 5, 3, 8, 0);
    drive(e, 64, &good, 1, alone, prob);
    good = submit(e, 5, 3, 8, 0);
    int64_t bad;
    int32_t every[V];
    float never[V];
    for (int32_t i = 0; i < V; i++) every[i] = i, never[i] = -INFINITY;
    pl_request_opts o = {.prompt = (int32_t[]){1},
                         .n_prompt = 1,
                         .max_out = 5,
                         .sample = {.top_p = 1, .repetition = 1, .bias_id = every, .bias = never, .n_bias = V}};
    ck_assert_int_eq(pl_engine_submit(e, &o, &bad, &err), PL_OK);
    /* what is wrong from the start is not taken at all */
    every[3] = V;
    ck_assert_int_eq(pl_engine_submit(e, &o, &bad, &err), PL_EARG);
    ck_assert_str_eq(err.msg, "logit bias: token 50 by -inf, want a token below 50 and a number");
    every[3] = 3;
    o.sample.top_p = 7;
    ck_assert_int_eq(pl_engine_submit(e, &o, &bad, &err), PL_EARG);
    o.sample.top_p = 1;
    o.stop = (int32_t[]){-1};
    o.n_stop = 1;
    ck_assert_int_eq(pl_engine_submit(e, &o, &bad, &err), PL_EARG);
    drive(e, 64, &good, 1, out, prob);
    for (int k = 0; k < 8; k++) ck_assert_int_eq(out[0][k], alone[0][k]);
    pl_metrics x;
    pl_engine_metrics(e, &x);
    ck_assert_int_eq(x.finished[PL_FINISH_ERROR], 1);
    pl_engine_close(e);
}
END_TEST

START_TEST(programs_are_checked)
{
    pl_prog *p;
    pl_tensor result;
    ck_assert_int_eq(pl_prog_new(&p, m.dev, &err), PL_OK);
    const int64_t d[] = {PL_DIM_T, 8}, row[] = {PL_DIM_T, 2, 5};
    const int32_t a = pl_prog_value(p, PL_F32, 2, d, &err), b = pl_prog_value(p, PL_F32, 2, d, &err);
    ck_assert_int_eq(pl_prog_value(p, PL_Q4_0, 2, d, &err), PL_EDTYPE);
    ck_assert_int_eq(pl_prog_value(p, PL_F32, 2, (int64_t[]){PL_DIM_T, PL_DIM_T}, &err), PL_ESHAPE);
    ck_assert_int_eq(pl_prog_view(p, a, 0, 3, row, (int64_t[]){8, 4, 1}, &err),
                     PL_ESHAPE); /* 2 x 5 leaves a row of 8 */
    ck_assert_int_eq(pl_prog_view(p, a, 5, 2, (int64_t[]){PL_DIM_T, 4}, (int64_t[]){8, 1}, &err), PL_ESHAPE);
    ck_assert_int_eq(pl_prog_view(p, 99, 0, 2, d, d, &err), PL_EARG);
    ck_assert_int_eq(pl_prog_op(p, 999, NULL, 0, NULL, 0, 0, &err), PL_EARG);
    ck_assert_int_eq(pl_prog_op(p, op("add"), (int32_t[]){b, a, a}, 3, NULL, 0, 0, &err),
                     PL_EARG); /* a: not written yet */
    ck_assert_int_eq(pl_prog_op(p, op("add"), (int32_t[]){b, a}, 2, NULL, 0, 0, &err), PL_EARG);
    ck_assert_int_eq(pl_prog_build(p, a, 4, 4, true, &err), PL_EARG);
    const int32_t y = pl_prog_value(p, PL_F32, 2, (int64_t[]){PL_DIM_R, 8}, &err);
    const int32_t table = pl_prog_const(p, &m.table, &err),
                  e = pl_prog_value(p, PL_F32, 2, (int64_t[]){PL_DIM_T, D}, &err);
    ck_assert_int_eq(pl_prog_op(p, op("embed"), (int32_t[]){e, table, 0}, 3, (pl_attr[]){{.f = 1}}, 1, 1, &err), PL_OK);
    const int32_t part = pl_prog_view(p, e, 8, 2, d, (int64_t[]){D, 1}, &err);
    ck_assert_int_eq(pl_prog_op(p, op("add"), (int32_t[]){y, part, part}, 3, NULL, 0, 1, &err), PL_OK);
    ck_assert_int_eq(pl_prog_build(p, y, 4, 4, false, &err),
                     PL_ESHAPE); /* R rows of T: never mind that both may be 4 */
    pl_prog_free(p);
    const pl_batch too_many = {.ids = (int32_t[65]){0}, .n_tokens = 65};
    ck_assert_int_eq(pl_prog_run(m.prog, m.kv, &too_many, &result, &err), PL_EARG);
    int32_t seq;
    ck_assert_int_eq(pl_kv_seq_new(m.kv, 0, &seq, &err), PL_OK);
    const pl_span s = {seq, 2};
    const pl_batch bad_id = {
        .ids = (int32_t[]){1, V + 7}, .rows = (int32_t[]){1}, .span = &s, .n_tokens = 2, .n_rows = 1, .n_spans = 1};
    ck_assert_int_eq(pl_prog_run(m.prog, m.kv, &bad_id, &result, &err), PL_EARG);
    ck_assert_int_eq(pl_kv_free_pages(m.kv), 64); /* the step's pages came back */
    ck_assert_int_eq(pl_kv_seq_len(m.kv, seq), 0);
    pl_kv_seq_free(m.kv, seq);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine");
    TCase *c = tcase_create("engine");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, a_batch_changes_nothing);
    tcase_add_test(c, stop_cancel_and_limits);
    tcase_add_test(c, a_failing_request_ends_alone);
    tcase_add_test(c, programs_are_checked);
    tcase_set_timeout(c, 120);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
