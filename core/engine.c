/* engine.c: requests and the step. A policy (Lua) reads the request records and names how many tokens of which
 * request the next step takes; the step runs them as one ragged batch, samples where a request's known tokens are
 * used up, and leaves events. */
#include "dev.h"
#include "kv.h"
#include "mem.h"
#include <stdlib.h>

typedef struct slot {
    int32_t *token; /* [cap] prompt, then answer */
    int32_t cap, n;
    int32_t *stop; /* [n_stop] */
    int32_t n_stop;
    pl_sample_opts sample; /* bias arrays are own copies */
} slot;

struct pl_engine {
    pl_engine_opts o;
    pl_prog *prog;
    pl_kv *kv;
    pl_request *req; /* [max_requests] what policies read */
    slot *slot;      /* [max_requests] */
    int64_t next_id;
    pl_span *span; /* the plan: [n_plan] */
    int32_t *who;  /* [n_plan] slot of each span */
    int32_t n_plan, plan_tokens;
    int32_t *ids, *rows; /* [max_tokens], [max_requests] */
    float *scratch;      /* [n_vocab] */
    pl_event *event;     /* [max_requests] */
    int32_t n_events;
    pl_metrics m;
};

int pl_engine_open(pl_engine **out, pl_prog *prog, pl_kv *kv, const pl_engine_opts *o, pl_err *err)
{
    if (o->max_requests < 1 || o->max_tokens < 1 || o->n_vocab < 1)
        return pl_fail(err, PL_EARG, "engine: %d requests, %d tokens, %d words, want at least 1 of each",
                       o->max_requests, o->max_tokens, o->n_vocab);
    pl_engine *e = calloc(1, sizeof *e);
    if (!e) return pl_fail(err, PL_ENOMEM, "engine: no memory");
    const size_t n = (size_t)o->max_requests;
    e->o = *o;
    e->prog = prog;
    e->kv = kv;
    e->next_id = 1;
    e->req = calloc(n, sizeof *e->req);
    e->slot = calloc(n, sizeof *e->slot);
    e->span = calloc(n, sizeof *e->span);
    e->who = calloc(n, sizeof *e->who);
    e->rows = calloc(n, sizeof *e->rows);
    e->event = calloc(2 * n, sizeof *e->event); /* a cancellation and a step's own event at most */
    e->ids = calloc((size_t)o->max_tokens, sizeof *e->ids);
    e->scratch = calloc((size_t)o->n_vocab, sizeof *e->scratch);
    if (!e->req || !e->slot || !e->span || !e->who || !e->rows || !e->event || !e->ids || !e->scratch) {
        pl_engine_close(e);
        return pl_fail(err, PL_ENOMEM, "engine: no memory for %d requests", o->max_requests);
    }
    for (size_t i = 0; i < n; i++) e->req[i].state = PL_UNUSED, e->req[i].seq = -1;
    *out = e;
    return PL_OK;
}

static void clear(slot *s)
{
    free(s->token);
    free(s->stop);
    free((void *)(uintptr_t)s->sample.bias_id);
    free((void *)(uintptr_t)s->sample.bias);
    memset(s, 0, sizeof *s);
}

void pl_engine_close(pl_engine *e)
{
    if (!e) return;
    for (int32_t i = 0; i < e->o.max_requests; i++) {
        if (e->slot) clear(&e->slot[i]);
        if (e->req && e->req[i].seq >= 0) pl_kv_seq_free(e->kv, e->req[i].seq);
    }
    free(e->req);
    free(e->slot);
    free(e->span);
    free(e->who);
    free(e->rows);
    free(e->event);
    free(e->ids);
    free(e->scratch);
    free(e);
}

static void *copy_of(const void *src, size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (p && bytes) memcpy(p, src, bytes);
    return p;
}

static int check_request(const pl_engine *e, const pl_request_opts *o, pl_err *err)
{
    if (o->n_prompt < 1) return pl_fail(err, PL_EARG, "request: the prompt is empty");
    if (o->max_out < 0) return pl_fail(err, PL_EARG, "request: %d tokens wanted, want 0 or more", o->max_out);
    for (int32_t i = 0; i < o->n_prompt; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= e->o.n_vocab)
            return pl_fail(err, PL_EARG, "request: token %d of the prompt is %d, the vocabulary has %d", i,
                           o->prompt[i], e->o.n_vocab);
    for (int32_t i = 0; i < o->n_stop; i++)
        if (o->stop[i] < 0 || o->stop[i] >= e->o.n_vocab)
            return pl_fail(err, PL_EARG, "request: stop token %d, the vocabulary has %d", o->stop[i], e->o.n_vocab);
    PL_TRY(pl_sample_check(&o->sample, e->o.n_vocab, err));
    const int64_t page = e->kv->o.page, total = (int64_t)o->n_prompt + o->max_out;
    if ((total + page - 1) / page > e->kv->o.n_pages)
        return pl_fail(err, PL_EARG, "request: %d tokens of prompt and %d of answer, the cache holds %lld", o->n_prompt,
                       o->max_out, (long long)(e->kv->o.n_pages * page));
    return PL_OK;
}

int pl_engine_submit(pl_engine *e, const pl_request_opts *o, int64_t *id, pl_err *err)
{
    PL_TRY(check_request(e, o, err));
    int32_t i = 0;
    while (i < e->o.max_requests && e->req[i].state != PL_UNUSED && e->req[i].state != PL_FINISHED) i++;
    if (i == e->o.max_requests) return pl_fail(err, PL_EFULL, "engine: all %d places for requests are taken", i);
    slot *s = &e->slot[i];
    s->sample = o->sample;
    s->token = copy_of(o->prompt, (size_t)o->n_prompt * sizeof *o->prompt);
    s->n = s->cap = o->n_prompt;
    s->stop = copy_of(o->stop, (size_t)o->n_stop * sizeof *o->stop);
    s->n_stop = o->n_stop;
    s->sample.bias_id = copy_of(o->sample.bias_id, (size_t)o->sample.n_bias * sizeof *o->sample.bias_id);
    s->sample.bias = copy_of(o->sample.bias, (size_t)o->sample.n_bias * sizeof *o->sample.bias);
    if (!s->token || !s->stop || !s->sample.bias_id || !s->sample.bias) {
        clear(s);
        return pl_fail(err, PL_ENOMEM, "request: no memory for a prompt of %d tokens", o->n_prompt);
    }
    e->req[i] = (pl_request){.id = e->next_id++,
                             .state = PL_WAITING,
                             .seq = -1,
                             .n_prompt = o->n_prompt,
                             .max_out = o->max_out,
                             .left = o->n_prompt,
                             .priority = o->priority,
                             .arrived_s = pl_now_s()};
    *id = e->req[i].id;
    e->m.submitted++;
    return PL_OK;
}

static int32_t find(const pl_engine *e, int64_t id)
{
    for (int32_t i = 0; i < e->o.max_requests; i++)
        if (e->req[i].id == id && e->req[i].state != PL_UNUSED && e->req[i].state != PL_FINISHED) return i;
    return -1;
}

/* The record stays readable until the next step begins or its place is taken; the pages are free at once. */
static void finish(pl_engine *e, int32_t i, int32_t why)
{
    pl_request *r = &e->req[i];
    r->state = PL_FINISHED;
    r->finish = why;
    e->m.finished[why]++;
    if (r->seq >= 0) pl_kv_seq_free(e->kv, r->seq);
    r->seq = -1;
    clear(&e->slot[i]);
}

static void post(pl_engine *e, int32_t i, const pl_sampled *s)
{
    PL_ASSERT(e->n_events < 2 * e->o.max_requests);
    pl_event *v = &e->event[e->n_events++];
    *v = (pl_event){.id = e->req[i].id, .finish = e->req[i].finish, .n_out = e->req[i].n_out, .sampled = {.token = -1}};
    if (s) v->sampled = *s;
}

/* Forgets the events and the finished requests of the step before. */
static void begin(pl_engine *e)
{
    e->n_events = 0;
    for (int32_t i = 0; i < e->o.max_requests; i++)
        if (e->req[i].state == PL_FINISHED) e->req[i].state = PL_UNUSED;
}

int pl_engine_cancel(pl_engine *e, int64_t id, pl_err *err)
{
    const int32_t i = find(e, id);
    if (i < 0) return pl_fail(err, PL_ENAME, "engine: no running request %lld", (long long)id);
    for (int32_t k = 0; k < e->n_plan; k++)
        if (e->who[k] == i)
            return pl_fail(err, PL_EARG, "engine: request %lld is in the plan, run the step first", (long long)id);
    finish(e, i, PL_FINISH_CANCELLED);
    return PL_OK;
}

int32_t pl_engine_requests(pl_engine *e, pl_request **slots)
{
    *slots = e->req;
    return e->o.max_requests;
}

int32_t pl_engine_step_left(const pl_engine *e) { return e->o.max_tokens - e->plan_tokens; }

int pl_engine_plan(pl_engine *e, int64_t id, int32_t n, pl_err *err)
{
    const int32_t i = find(e, id);
    if (i < 0) return pl_fail(err, PL_ENAME, "plan: no running request %lld", (long long)id);
    pl_request *r = &e->req[i];
    if (n < 1 || n > r->left)
        return pl_fail(err, PL_EARG, "plan: %d tokens of request %lld, which has %d left", n, (long long)id, r->left);
    if (n > pl_engine_step_left(e))
        return pl_fail(err, PL_EFULL, "plan: %d tokens, the step has room for %d", n, pl_engine_step_left(e));
    for (int32_t k = 0; k < e->n_plan; k++)
        if (e->who[k] == i) return pl_fail(err, PL_EARG, "plan: request %lld twice in one step", (long long)id);
    if (r->seq < 0) PL_TRY(pl_kv_seq_new(e->kv, r->id, &r->seq, err));
    r->state = PL_RUNNING;
    e->span[e->n_plan] = (pl_span){r->seq, n};
    e->who[e->n_plan++] = i;
    e->plan_tokens += n;
    return PL_OK;
}

int32_t pl_engine_events(pl_engine *e, const pl_event **out)
{
    *out = e->event;
    return e->n_events;
}

/* The chosen token joins the request's own, unless it ends the answer. */
static int advance(pl_engine *e, int32_t i, const float *logits, pl_err *err)
{
    pl_request *r = &e->req[i];
    slot *s = &e->slot[i];
    pl_sampled out;
    if (r->n_out >= r->max_out) { /* nothing but the prompt was wanted */
        finish(e, i, PL_FINISH_LENGTH);
        post(e, i, NULL);
        return PL_OK;
    }
    PL_TRY(pl_sample(&out, logits, e->o.n_vocab, &s->sample, s->token, s->n, r->n_prompt, e->scratch, err));
    PL_TRY(pl_mem_grow((void **)&s->token, &s->cap, s->n + 1, sizeof *s->token, err));
    s->token[s->n++] = out.token;
    r->n_out++;
    e->m.out_tokens++;
    r->left = 1;
    bool stop = false;
    for (int32_t k = 0; k < s->n_stop; k++) stop = stop || s->stop[k] == out.token;
    if (stop)
        finish(e, i, PL_FINISH_STOP);
    else if (r->n_out >= r->max_out)
        finish(e, i, PL_FINISH_LENGTH);
    post(e, i, &out);
    return PL_OK;
}

int pl_engine_step(pl_engine *e, pl_err *err)
{
    begin(e);
    const int32_t n = e->n_plan;
    pl_batch b = {.ids = e->ids, .rows = e->rows, .span = e->span, .n_spans = n};
    for (int32_t k = 0; k < n; k++) {
        const pl_request *r = &e->req[e->who[k]];
        memcpy(e->ids + b.n_tokens, e->slot[e->who[k]].token + r->n_done, (size_t)e->span[k].n * sizeof *e->ids);
        b.n_tokens += e->span[k].n;
        if (e->span[k].n == r->left) e->rows[b.n_rows++] = b.n_tokens - 1;
    }
    e->n_plan = e->plan_tokens = 0;
    if (n == 0) return PL_OK;
    pl_tensor logits;
    const double start = pl_now_s();
    PL_TRY(pl_prog_run(e->prog, e->kv, &b, &logits, err));
    int32_t row = 0;
    for (int32_t k = 0; k < n; k++) {
        const int32_t i = e->who[k];
        pl_request *r = &e->req[i];
        e->m.prompt_tokens += (uint64_t)pl_max(0, pl_min(e->span[k].n, r->n_prompt - r->n_done));
        r->n_done += e->span[k].n;
        r->left -= e->span[k].n;
        if (r->left) continue;
        pl_err own; /* a request's own failure ends that request alone */
        if (advance(e, i, pl_row_f32(&logits, row++), &own) < 0) {
            finish(e, i, PL_FINISH_ERROR);
            post(e, i, NULL);
        }
    }
    e->m.steps++;
    e->m.step_s += pl_now_s() - start;
    return PL_OK;
}

void pl_engine_metrics(const pl_engine *e, pl_metrics *out)
{
    *out = e->m;
    out->free_pages = pl_kv_free_pages(e->kv);
}
