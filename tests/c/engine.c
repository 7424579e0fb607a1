/* Programs and the engine on a toy model: one layer of attention over the paged cache, then a head. Results do not
 * depend on the batch, on chunked prefill or on what runs beside; bad plans and failing requests harm no other. */
#include "c/toy.h"
#include "suite.h"

/* Runs all requests to their ends, at most `chunk` tokens of each in a step; out[i][k], prob[i][k] of the i-th id. */
static void drive(pl_engine *e, int chunk, const int64_t *id, int n, int32_t out[][40], float prob[][40])
{
    for (bool busy = true; busy;) {
        const pl_event *v;
        busy = plan_all(e, chunk);
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
        ck_assert_int_eq(pl_engine_plan(e, id, request(e, id)->left, &err), PL_OK);
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
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
    ck_assert_int_eq(pl_engine_events(e, &v), 0); /* half a prompt: no token yet */
    ck_assert_int_eq(pl_engine_cancel(e, id, &err), PL_OK);
    ck_assert_int_eq(pl_engine_cancel(e, id, &err), PL_ENAME);
    ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
    /* its place is free at once; one that is planned can be cancelled too */
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_OK);
    ck_assert_int_eq(pl_engine_plan(e, other, 1, &err), PL_OK);
    ck_assert_int_eq(pl_engine_plan(e, id, 2, &err), PL_OK);
    ck_assert_int_eq(pl_engine_cancel(e, other, &err), PL_OK);
    ck_assert_int_eq(pl_engine_step_left(e), 62);
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
    ck_assert_int_eq(request(e, id)->n_done, 2);
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

/* A request without its prompt has its place, can be cancelled, fails or passes its deadline; then it is one as others. */
START_TEST(prompts_that_come_later)
{
    pl_engine *e = engine(3);
    const pl_event *v;
    pl_queue q;
    pl_metrics x;
    int64_t id[3], none;
    int32_t prompt[] = {13, 20, V}, alone[1][40], out[1][40];
    float p_alone[1][40], prob[1][40];
    pl_request_opts o = {.prompt = prompt, .n_prompt = 2, .max_out = 5, .sample = {.top_p = 1, .repetition = 1}};
    ck_assert_int_eq(pl_engine_submit(e, &o, &id[0], &err), PL_OK);
    drive(e, 64, id, 1, alone, p_alone);
    o.n_prompt = 0, o.later = true;
    for (int i = 0; i < 3; i++) {
        o.deadline_s = i == 2 ? 1e-9 : 0;
        ck_assert_int_eq(pl_engine_submit(e, &o, &id[i], &err), PL_OK);
    }
    ck_assert_int_eq(pl_engine_submit(e, &o, &none, &err), PL_EFULL);
    pl_engine_look(e, &q);
    ck_assert_int_eq(q.n_running + q.n_waiting, 0);
    ck_assert_int_eq(pl_engine_events(e, &v), 1);
    ck_assert(v->id == id[2] && v->finish == PL_FINISH_DEADLINE);
    pl_engine_metrics(e, &x);
    ck_assert_int_eq(x.n_tokenising, 2);
    ck_assert_int_eq(pl_engine_plan(e, id[0], 1, &err), PL_ENAME);
    ck_assert_int_eq(pl_engine_preempt(e, id[0], &err), PL_ENAME);
    ck_assert_int_eq(pl_engine_cached(e, id[0]), 0);
    ck_assert_int_eq(pl_engine_prompt(e, id[0], prompt, 0, 5, &err), PL_EARG);
    ck_assert_int_eq(pl_engine_prompt(e, id[0], prompt, 3, 5, &err), PL_EARG);
    ck_assert_str_eq(err.msg, "request: token 2 of the prompt is 50, the vocabulary has 50");
    ck_assert_int_eq(pl_engine_prompt(e, id[0], prompt, 2, 16 * 64, &err), PL_EARG);
    ck_assert_int_eq(pl_engine_prompt(e, id[2], prompt, 2, 5, &err), PL_ENAME);
    ck_assert_int_eq(pl_engine_fail(e, id[1], &err), PL_OK);
    ck_assert_int_eq(pl_engine_fail(e, id[1], &err), PL_ENAME);
    ck_assert_int_eq(pl_engine_prompt(e, id[0], prompt, 2, 5, &err), PL_OK);
    ck_assert_int_eq(pl_engine_prompt(e, id[0], prompt, 2, 5, &err), PL_ENAME); /* it has one now */
    drive(e, 64, id, 1, out, prob);
    for (int k = 0; k < 5; k++) ck_assert_int_eq(out[0][k], alone[0][k]);
    pl_engine_metrics(e, &x);
    ck_assert(x.n_tokenising == 0 && x.finished[PL_FINISH_ERROR] == 1 && x.finished[PL_FINISH_LENGTH] == 2);
    o.n_prompt = 1, o.prompt = prompt;
    ck_assert_int_eq(pl_engine_submit(e, &o, &none, &err), PL_EARG);
    pl_engine_close(e); /* none is left */
    e = engine(1);
    o.n_prompt = 0;
    ck_assert_int_eq(pl_engine_submit(e, &o, &id[0], &err), PL_OK);
    pl_engine_close(e); /* one is */
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

/* Preempted at any time, and taken up again from nothing or from the prefix cache: the same tokens, the same bits. */
START_TEST(preemption_and_the_prefix_cache_change_nothing)
{
    enum { OUT = 40 };
    int32_t alone[1][40], out[1][40];
    float p_alone[1][40], prob[1][40];
    pl_engine *e = engine(1);
    int64_t id = submit(e, 150, 4, OUT, 1), other;
    drive(e, 64, &id, 1, alone, p_alone);
    pl_engine_close(e);
    for (int prefix = 0; prefix <= 1; prefix++) {
        e = engine_with((pl_engine_opts){.max_requests = 3, .prefix = prefix});
        id = submit(e, 150, 4, OUT, 1);
        ck_assert_int_eq(pl_engine_preempt(e, id, &err), PL_ENAME); /* it waits */
        for (int step = 0; request(e, id); step++) {
            const pl_request *r = request(e, id);
            ck_assert_msg(pl_engine_plan(e, id, (int32_t)pl_min(r->left, 40), &err) == PL_OK, "%s", err.msg);
            if (step % 9 == 5) {
                ck_assert_int_eq(pl_engine_preempt(e, id, &err), PL_OK);
                ck_assert_int_eq(pl_engine_step_left(e), 64);
                ck_assert_int_eq(pl_engine_cached(e, id) > 0, prefix);
                continue;
            }
            const pl_event *v;
            ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
            if (pl_engine_events(e, &v) == 0) continue;
            out[0][v->n_out - 1] = v->sampled.token;
            prob[0][v->n_out - 1] = v->sampled.logprob;
        }
        ck_assert_mem_eq(out, alone, sizeof out);
        ck_assert_mem_eq(prob, p_alone, sizeof prob);
        /* the same prompt again: all its full pages are there, and nothing changes */
        other = submit(e, 150, 4, OUT, 1);
        ck_assert_int_eq(pl_engine_cached(e, other), prefix ? 144 : 0);
        drive(e, 64, &other, 1, out, prob);
        ck_assert_mem_eq(out, alone, sizeof out);
        ck_assert_mem_eq(prob, p_alone, sizeof prob);
        pl_metrics x;
        pl_engine_metrics(e, &x);
        ck_assert_int_eq(x.pages.free + x.pages.owned, 64);
        ck_assert_int_eq(x.pages.owned, x.idle_pages);
        ck_assert_int_eq(x.cached_tokens > 0, prefix);
        pl_engine_close(e);
        ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
    }
}
END_TEST

/* Other tenants and other salts never find each other's pages. */
START_TEST(prefixes_are_the_tenants_own)
{
    pl_engine *e = engine_with((pl_engine_opts){.max_requests = 3, .n_tenants = 2, .prefix = true});
    int32_t prompt[70], out[1][40];
    float prob[1][40];
    int64_t id;
    for (int i = 0; i < 70; i++) prompt[i] = i % V;
    pl_request_opts o = {.prompt = prompt, .n_prompt = 70, .max_out = 1, .sample = {.top_p = 1, .repetition = 1}};
    ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_OK);
    drive(e, 64, &id, 1, out, prob);
    for (int i = 0; i < 4; i++) {
        o.tenant = i / 2;
        o.salt = "s";
        o.n_salt = i % 2;
        ck_assert_int_eq(pl_engine_submit(e, &o, &id, &err), PL_OK);
        ck_assert_int_eq(pl_engine_cached(e, id), i == 0 ? 64 : 0);
        ck_assert_int_eq(pl_engine_cancel(e, id, &err), PL_OK);
    }
    pl_engine_close(e);
}
END_TEST

/* More prompts than the cache has pages for: old prefixes make room, what is in use stays. */
START_TEST(old_prefixes_make_room)
{
    pl_engine *e = engine_with((pl_engine_opts){.max_requests = 4, .prefix = true});
    int32_t first[1][40], again[1][40];
    float prob[2][40];
    int64_t id;
    for (int round = 0; round < 3; round++)
        for (int salt = 1; salt <= 12; salt++) { /* 12 x 10 pages, the cache has 64 */
            id = submit(e, 150, salt, 10, 0);
            drive(e, 64, &id, 1, salt == 5 && round == 0 ? first : again, prob);
            if (salt == 5 && round) ck_assert_mem_eq(first[0], again[0], 10 * sizeof **first);
            pl_metrics x;
            pl_engine_metrics(e, &x);
            ck_assert_int_eq(x.pages.free + x.idle_pages, 64);
        }
    pl_metrics x;
    pl_engine_metrics(e, &x);
    ck_assert_uint_gt(x.evicted_pages, 100);
    /* the least recently used went first: the last prompts are still there */
    id = submit(e, 150, 12, 10, 0);
    ck_assert_int_eq(pl_engine_cached(e, id), 144);
    pl_engine_close(e);
    ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
}
END_TEST

START_TEST(deadlines_priorities_and_shares)
{
    pl_engine *e = engine_with((pl_engine_opts){.max_requests = 5, .max_rows = 2, .n_tenants = 3});
    const pl_event *v;
    pl_queue q;
    int64_t id[4];
    int32_t prompt[] = {1, 2, 3};
    pl_request_opts o = {.prompt = prompt, .n_prompt = 3, .max_out = 4, .sample = {.top_p = 1, .repetition = 1}};
    for (int i = 0; i < 4; i++) {
        o.priority = i == 2;
        o.deadline_s = i == 1 ? 1e-9 : 0;
        o.tenant = i == 3;
        ck_assert_int_eq(pl_engine_submit(e, &o, &id[i], &err), PL_OK);
    }
    pl_engine_look(e, &q);
    ck_assert_int_eq(q.n_events, 1);
    ck_assert_int_eq(pl_engine_events(e, &v), 1);
    ck_assert(v->id == id[1] && v->finish == PL_FINISH_DEADLINE && v->sampled.token == -1);
    ck_assert_int_eq(q.n_waiting, 3);
    ck_assert(q.waiting[0]->id == id[2] && q.waiting[1]->id == id[0] && q.waiting[2]->id == id[3]);
    ck_assert_int_eq(pl_engine_plan(e, id[2], 3, &err), PL_OK);
    ck_assert_int_eq(pl_engine_plan(e, id[3], 2, &err), PL_OK);
    ck_assert_int_eq(pl_engine_plan(e, id[0], 1, &err), PL_EFULL); /* two rows */
    ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
    ck_assert_int_eq(pl_engine_events(e, &v), 2); /* with that of the look before */
    ck_assert(v[0].id == id[1] && v[1].id == id[2] && v[1].sampled.token >= 0);
    ck_assert(pl_engine_served(e, 0) == 3 && pl_engine_served(e, 1) == 2 && pl_engine_served(e, 9) == 0);
    o.tenant = 2; /* a newcomer starts from the least of those that are there */
    ck_assert_int_eq(pl_engine_submit(e, &o, &id[1], &err), PL_OK);
    ck_assert(pl_engine_served(e, 2) == 2);
    o.tenant = 3;
    ck_assert_int_eq(pl_engine_submit(e, &o, &id[1], &err), PL_EARG);
    pl_engine_close(e);
    ck_assert_int_eq(pl_kv_free_pages(m.kv), 64);
}
END_TEST

/* Costs in place of a program: the same bookkeeping, on a clock of its own. */
START_TEST(simulated_steps)
{
    pl_kv *kv;
    pl_engine *e;
    pl_kv_opts k = m.kv->o;
    k.dry = true;
    ck_assert_int_eq(pl_kv_open(&kv, m.dev, &k, &err), PL_OK);
    const pl_cost cost = {.step_s = 0.5, .weight_bytes = 10, .kv_token_bytes = 1, .bytes_s = 10, .flop_s = 1};
    const pl_engine_opts o = {.max_requests = 2, .max_tokens = 64, .n_vocab = V, .prefix = true, .cost = &cost};
    ck_assert_int_eq(pl_engine_open(&e, m.prog, kv, &o, &err), PL_EARG);
    ck_assert_int_eq(pl_engine_open(&e, NULL, kv, &o, &err), PL_OK);
    int64_t id = submit(e, 20, 1, 3, 0);
    int32_t out[1][40];
    float prob[1][40];
    pl_engine_wait_until(e, 100);
    drive(e, 64, &id, 1, out, prob);
    /* steps over 20, 21 and 22 tokens of context */
    ck_assert_double_eq_tol(pl_engine_now(e), 100 + 3 * (0.5 + 1) + 6.3, 1e-9);
    pl_metrics x;
    pl_engine_metrics(e, &x);
    ck_assert_int_eq(x.out_tokens, 3);
    ck_assert_double_eq_tol(x.itl_s.sum, 1.5 + 2.1 + 1.5 + 2.2, 1e-9);
    pl_engine_close(e);
    ck_assert_int_eq(pl_kv_free_pages(kv), 64);
    pl_kv_close(kv);
}
END_TEST

/* A page of one request in other hands: it ends before a token of that step is out, its neighbour is untouched. */
START_TEST(a_lost_page_ends_its_request_alone)
{
    int32_t alone[1][40];
    float prob[1][40];
    pl_kv *plain = m.kv;
    pl_kv_opts k = plain->o;
    k.check = PL_CHECK_PAGES;
    ck_assert_int_eq(pl_kv_open(&m.kv, m.dev, &k, &err), PL_OK);
    pl_engine *e = engine(3);
    int64_t good = submit(e, 40, 3, 30, 0), bad;
    drive(e, 64, &good, 1, alone, prob);
    for (int lost = 0; lost < 3; lost++) { /* page of the victim that is freed, and given to a third one */
        good = submit(e, 40, 3, 30, 0);
        bad = submit(e, 40, 9, 30, 0);
        int32_t n_good = 0, finish = 0;
        for (int step = 0; n_good < 30; step++) {
            const pl_request *r[2] = {request(e, good), request(e, bad)};
            if (step == 5) {
                pl_kv_seq *s = &m.kv->seq[r[1]->seq];
                const pl_hold h = pl_kv_hold(s, lost);
                int32_t third;
                ck_assert(pl_tags_drop(&m.kv->tags, h));
                const pl_hold taken = pl_tags_take(&m.kv->tags, 77);
                ck_assert(taken.page == h.page);
                ck_assert_int_eq(pl_kv_seq_new(m.kv, 77, &third, &err), PL_OK);
                ck_assert_int_eq(pl_kv_adopt(m.kv, third, &taken, 1, &err), PL_OK);
            }
            for (int i = 0; i < 2; i++)
                if (r[i]) ck_assert_int_eq(pl_engine_plan(e, r[i]->id, (int32_t)pl_min(r[i]->left, 30), &err), PL_OK);
            const pl_event *v;
            ck_assert_int_eq(pl_engine_step(e, &err), PL_OK);
            for (int32_t n = pl_engine_events(e, &v); n > 0; n--, v++) {
                if (v->id == good) ck_assert_int_eq(v->sampled.token, alone[0][n_good++]);
                if (v->id == bad && v->finish) {
                    const pl_mismatch *x;
                    finish = v->finish;
                    ck_assert_int_eq(step, 5);
                    ck_assert_int_eq(v->sampled.token, -1);
                    ck_assert_int_eq(pl_kv_mismatches(m.kv, &x), 1);
                    ck_assert(x->owner == bad && x->index == lost && x->past[0].owner == 77 && x->past[1].owner == bad);
                    ck_assert(x->expected != x->found && x->past[0].tag == x->found && x->past[1].tag == x->expected);
                }
            }
        }
        ck_assert_int_eq(finish, PL_FINISH_INTEGRITY);
        ck_assert_int_eq(pl_kv_free_pages(m.kv), 63 - lost); /* the third one has its page still */
    }
    pl_engine_close(e);
    pl_kv_close(m.kv);
    m.kv = plain;
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
    tcase_add_test(c, prompts_that_come_later);
    tcase_add_test(c, a_failing_request_ends_alone);
    tcase_add_test(c, preemption_and_the_prefix_cache_change_nothing);
    tcase_add_test(c, prefixes_are_the_tenants_own);
    tcase_add_test(c, old_prefixes_make_room);
    tcase_add_test(c, deadlines_priorities_and_shares);
    tcase_add_test(c, simulated_steps);
    tcase_add_test(c, a_lost_page_ends_its_request_alone);
    tcase_add_test(c, programs_are_checked);
    tcase_set_timeout(c, 120);
    suite_add_tcase(s, c);
    return run_suite(s);
}
