/* Embeddings of the engine on a toy model: the same bits in steps of any size and beside others, whatever page of a
 * request is lost it ends alone and without a vector, and what cannot be is refused. */
#include "c/toy.h"
#include "suite.h"

enum { N = 8 };

typedef struct answer {
    float vector[D];
    int32_t n, finish;
} answer;

static pl_request_opts wanted(int32_t *prompt, int n_prompt, int salt, int32_t kind, int32_t n)
{
    for (int i = 0; i < n_prompt; i++) prompt[i] = (i * 7 + salt * 13) % V;
    return (pl_request_opts){.prompt = prompt,
                             .n_prompt = n_prompt,
                             .embed = kind,
                             .n_embed = n,
                             .sample = {.top_p = 1, .repetition = 1, .n_logprobs = -1}};
}

/* Runs all requests, at most `chunk` tokens of each in a step, to their ends. */
static void drive(pl_engine *e, int chunk, const int64_t *id, int n, answer *out)
{
    for (bool busy = true; busy;) {
        const pl_event *v;
        busy = plan_all(e, chunk);
        ck_assert_msg(pl_engine_step(e, &err) == PL_OK, "%s", err.msg);
        for (int32_t k = pl_engine_events(e, &v); k > 0; k--, v++)
            for (int i = 0; i < n; i++) {
                if (v->id != id[i]) continue;
                ck_assert_int_eq(v->sampled.token, -1);
                ck_assert(!v->embedding == (v->finish != PL_FINISH_STOP));
                out[i].finish = v->finish;
                out[i].n = v->n_embedding;
                if (v->embedding) memcpy(out[i].vector, v->embedding, sizeof(float) * (size_t)v->n_embedding);
            }
    }
}

static void ask(pl_engine *e, int64_t *id)
{
    int32_t prompt[200];
    for (int i = 0; i < N; i++) {
        const pl_request_opts o = wanted(prompt, 1 + 9 * i, i, i % 2 ? PL_EMBED_MEAN : PL_EMBED_LAST, i == 5 ? 7 : 0);
        ck_assert_msg(pl_engine_submit(e, &o, &id[i], &err) == PL_OK, "%s", err.msg);
    }
}

static void same(const answer *a, const answer *b)
{
    ck_assert_int_eq(a->finish, PL_FINISH_STOP);
    ck_assert_int_eq(a->n, b->n);
    ck_assert_mem_eq(a->vector, b->vector, sizeof(float) * (size_t)a->n);
}

static void alone(answer *out)
{
    int32_t prompt[200];
    for (int i = 0; i < N; i++) {
        const pl_request_opts o = wanted(prompt, 1 + 9 * i, i, i % 2 ? PL_EMBED_MEAN : PL_EMBED_LAST, i == 5 ? 7 : 0);
        pl_engine *e = engine(1);
        int64_t id;
        ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_OK);
        drive(e, 64, &id, 1, &out[i]);
        double length = 0;
        for (int d = 0; d < out[i].n; d++) length += (double)out[i].vector[d] * (double)out[i].vector[d];
        ck_assert(fabs(length - 1) < 1e-6);
        ck_assert_int_eq(out[i].n, i == 5 ? 7 : D);
        pl_engine_close(e);
    }
}

START_TEST(a_batch_changes_nothing)
{
    answer want[N], got[N];
    int64_t id[N], other;
    alone(want);
    for (int chunk = 1; chunk <= 64; chunk = chunk * 3 + 2)
        for (int prefix = 0; prefix < 2; prefix++) {
            pl_engine *e = engine_with((pl_engine_opts){.max_requests = 2 * N, .prefix = prefix});
            for (int round = 0; round < 2; round++) { /* the second one finds its pages */
                ask(e, id);
                other = submit(e, 20, 3, 12, 0);
                drive(e, chunk, id, N, got);
                for (int i = 0; i < N; i++) same(&got[i], &want[i]);
            }
            pl_metrics x;
            pl_engine_metrics(e, &x);
            ck_assert_int_eq(x.finished[PL_FINISH_STOP], 2 * N);
            ck_assert_int_eq(x.out_tokens, 24);
            ck_assert_int_eq(x.ttft_s.n, 2); /* of the answers alone */
            pl_engine_close(e);
            ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
        }
    (void)other;
}
END_TEST

/* A page of one is given to somebody else, or a bit of a tag flips, while it is computed. */
START_TEST(a_lost_page_ends_its_request_alone)
{
    static const int32_t whats[] = {PL_FAULT_FREE_REFERENCED, PL_FAULT_TAG_FLIP};
    answer want[N], got[N];
    int64_t id[N];
    pl_kv *plain = m.kv;
    pl_kv_opts k = plain->o;
    alone(want);
    k.check = PL_CHECK_PAGES;
    ck_assert_int_eq(pl_kv_open(&m.kv, m.dev, &k, &err), PL_OK);
    for (size_t w = 0; w < sizeof whats / sizeof *whats; w++)
        for (int victim = N - 2; victim < N; victim++) { /* of either kind */
            pl_fault fault = {.what = whats[w]};
            pl_engine *e = engine(N);
            ask(e, id);
            fault.owner = id[victim];
            m.kv->tags.fault = &fault;
            memset(got, 0, sizeof got);
            drive(e, 10, id, N, got);
            m.kv->tags.fault = NULL;
            ck_assert(fault.struck);
            for (int i = 0; i < N; i++)
                if (i != victim) same(&got[i], &want[i]);
            ck_assert_int_eq(got[victim].finish, PL_FINISH_INTEGRITY);
            ck_assert_int_eq(got[victim].n, 0);
            pl_engine_close(e);
            pl_kv_readmit(m.kv);
        }
    pl_kv_close(m.kv);
    m.kv = plain;
}
END_TEST

START_TEST(what_is_refused)
{
    int32_t prompt[8];
    int64_t id;
    pl_engine *e = engine(2);
    pl_request_opts o = wanted(prompt, 5, 1, PL_EMBED_MEAN + 1, 0);
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_EARG);
    o = wanted(prompt, 5, 1, PL_EMBED_LAST, D + 1);
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_EARG);
    ck_assert_str_eq(err.msg, "request: an embedding of 33 values, want 1 to 32");
    o = wanted(prompt, 5, 1, PL_EMBED_LAST, -1);
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_EARG);
    o = wanted(prompt, 5, 1, PL_EMBED_LAST, 0);
    o.max_out = 1;
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_EARG);
    ck_assert_str_eq(err.msg, "request: an embedding and 1 tokens, want 0");
    /* hidden states that are no numbers end their request, and no other */
    ((float *)m.table.data)[13 * D + 3] = NAN; /* its first token */
    answer got[2] = {{{0}, 0, 0}};
    int64_t both[2];
    o = wanted(prompt, 1, 1, PL_EMBED_LAST, 0);
    ck_assert_int_eq(pl_engine_submit(e, &o, &both[0], &err), PL_OK);
    o = wanted(prompt, 1, 2, PL_EMBED_LAST, 0);
    ck_assert_int_eq(pl_engine_submit(e, &o, &both[1], &err), PL_OK);
    drive(e, 64, both, 2, got);
    ck_assert_int_eq(got[0].finish, PL_FINISH_ERROR);
    ck_assert_int_eq(got[1].finish, PL_FINISH_STOP);
    pl_engine_close(e);
    /* a program without hidden states, and values that are none */
    ck_assert_int_eq(pl_prog_set_hidden(m.prog, PL_VALUE_IDS, &err), PL_ESHAPE);
    ck_assert_int_eq(pl_prog_set_hidden(m.prog, 99, &err), PL_EARG); /* none */
    ck_assert_int_eq(pl_prog_set_hidden(m.prog, -1, &err), PL_EARG);
    ck_assert_int_eq(pl_prog_set_hidden(m.prog, 7, &err), PL_ESHAPE); /* heads: [T,H,D] */
    pl_prog *built = m.prog;
    ck_assert_int_eq(pl_prog_new(&m.prog, m.dev, &err), PL_OK);
    const int32_t table = pl_prog_const(m.prog, &m.table, &err), x = value(2, PL_DIM_T, D, 0),
                  y = value(2, PL_DIM_R, D, 0);
    call("embed", (int32_t[]){x, table, PL_VALUE_IDS}, 3, (pl_attr[]){{.f = 1}}, 1);
    call("gather", (int32_t[]){y, x, PL_VALUE_ROWS}, 3, NULL, 0);
    ck_assert_int_eq(pl_prog_set_hidden(m.prog, y, &err), PL_ESHAPE); /* wanted rows only */
    ck_assert_int_eq(pl_prog_build(m.prog, y, 64, 16, true, &err), PL_OK);
    ck_assert_int_eq(pl_prog_set_hidden(m.prog, x, &err), PL_EARG); /* too late */
    e = engine(2);
    o = wanted(prompt, 5, 1, PL_EMBED_LAST, 0);
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_EARG);
    ck_assert_str_eq(err.msg, "request: an embedding, but the program keeps no hidden states");
    pl_engine_close(e);
    pl_prog_free(built);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("embedding");
    TCase *c = tcase_create("embedding");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, a_batch_changes_nothing);
    tcase_add_test(c, a_lost_page_ends_its_request_alone);
    tcase_add_test(c, what_is_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
