/* engine.c: the step: the planned tokens run as one ragged batch, a token is drawn where a request's known tokens are
 * used up, and what happened is left as events. sched.c plans. */
#include "engine.h"
#include "dev.h"
#include "mem.h"
#include <stdlib.h>

enum { FLUSH_S = 10 }; /* at the end, for pages that the disk lacks */

static int check_opts(const pl_engine_opts *o, const pl_prog *prog, const pl_kv *kv, pl_err *err)
{
    if (o->max_requests < 1 || o->max_tokens < 1 || o->n_vocab < 1)
        return pl_fail(err, PL_EARG, "engine: %d requests, %d tokens, %d words, want at least 1 of each",
                       o->max_requests, o->max_tokens, o->n_vocab);
    if (o->max_rows < 0 || o->n_tenants < 0)
        return pl_fail(err, PL_EARG, "engine: %d rows, %d tenants, want 0 or more", o->max_rows, o->n_tenants);
    if (!(o->scrub >= 0 && o->scrub < 1))
        return pl_fail(err, PL_EARG, "engine: a scrub of %g of the time, want 0 to 1", (double)o->scrub);
    const bool tiers = o->host_cache_bytes || o->disk_cache_bytes || o->disk_cache;
    if (tiers && !prog)
        return pl_fail(err, PL_EARG, "engine: a host or disk cache, but a simulation has no pages to copy");
    if (tiers && !o->prefix) return pl_fail(err, PL_EARG, "engine: a host or disk cache, but no prefix cache");
    if (!prog != (o->cost != NULL) || kv->o.dry != !prog)
        return pl_fail(err, PL_EARG, "engine: want a program, or costs and a dry cache");
    if (o->cost && !(o->cost->bytes_s > 0 && o->cost->flop_s > 0))
        return pl_fail(err, PL_EARG, "engine: %g bytes/s and %g flop/s, want more than 0", o->cost->bytes_s,
                       o->cost->flop_s);
    return PL_OK;
}

static void init_metrics(pl_metrics *m)
{
    pl_hist_init(&m->ttft_s, 0.001);
    pl_hist_init(&m->itl_s, 0.0001);
    pl_hist_init(&m->e2e_s, 0.001);
    pl_hist_init(&m->queue_s, 0.001);
    pl_hist_init(&m->prompt_len, 1);
    pl_hist_init(&m->out_len, 1);
    pl_hist_init(&m->step_tokens, 1);
}

static int reserve(pl_engine *e, pl_err *err)
{
    const size_t n = (size_t)e->o.max_requests, rows = (size_t)e->o.max_rows;
    e->req = calloc(n, sizeof *e->req);
    e->slot = calloc(n, sizeof *e->slot);
    e->unused = calloc(n, sizeof *e->unused);
    e->tenant = calloc((size_t)e->o.n_tenants, sizeof *e->tenant);
    e->running.request = calloc(n, sizeof(void *));
    e->waiting.request = calloc(n, sizeof(void *));
    e->coming.request = calloc(n, sizeof(void *));
    e->seen = calloc(n, sizeof(void *));
    e->span = calloc(rows, sizeof *e->span);
    e->need = calloc(rows, sizeof *e->need);
    e->who = calloc(rows, sizeof *e->who);
    e->rows = calloc(rows, sizeof *e->rows);
    e->event_cap = (int32_t)(2 * n); /* looks leave at most n, and so does a step */
    e->event = calloc(2 * n, sizeof *e->event);
    e->ids = calloc((size_t)e->o.max_tokens, sizeof *e->ids);
    e->scratch = calloc((size_t)e->o.n_vocab, sizeof *e->scratch);
    e->hold = calloc((size_t)e->kv->o.n_pages, sizeof *e->hold);
    e->vector = calloc(n, sizeof *e->vector);
    if (e->req && e->slot && e->unused && e->tenant && e->running.request && e->waiting.request && e->coming.request &&
        e->seen && e->span && e->need && e->who && e->rows && e->event && e->ids && e->scratch && e->hold && e->vector)
        return PL_OK;
    return pl_fail(err, PL_ENOMEM, "engine: no memory for %d requests", e->o.max_requests);
}

static int open_tier(pl_engine *e, const pl_engine_opts *o, pl_err *err)
{
    if (!o->host_cache_bytes && !o->disk_cache_bytes && !o->disk_cache) return PL_OK;
    const pl_tier_opts t = {o->host_cache_bytes, o->disk_cache_bytes, o->disk_cache, o->model};
    return pl_tier_open(&e->tier, e->prefix, &t, err);
}

int pl_engine_open(pl_engine **out, pl_prog *prog, pl_kv *kv, const pl_engine_opts *o, pl_err *err)
{
    PL_TRY(check_opts(o, prog, kv, err));
    pl_engine *e = calloc(1, sizeof *e);
    if (!e) return pl_fail(err, PL_ENOMEM, "engine: no memory");
    e->o = *o;
    if (o->cost) e->cost = *o->cost;
    e->o.cost = NULL;
    e->o.disk_cache = e->o.model = NULL; /* the caller's */
    e->o.max_rows = o->max_rows ? o->max_rows : o->max_requests;
    e->o.n_tenants = o->n_tenants ? o->n_tenants : 1;
    e->prog = pl_prog_keep(prog);
    e->kv = kv;
    const pl_tensor *hidden = prog ? pl_prog_hidden(prog) : NULL;
    if (hidden) e->width = (int32_t)hidden->dim[1];
    init_metrics(&e->m);
    int rc = reserve(e, err);
    if (rc == PL_OK && o->prefix) rc = pl_prefix_open(&e->prefix, kv, err);
    if (rc == PL_OK) rc = open_tier(e, o, err);
    if (rc < 0) {
        pl_engine_close(e);
        return rc;
    }
    for (int32_t i = 0; i < o->max_requests; i++) {
        e->unused[e->n_unused++] = o->max_requests - 1 - i;
        e->req[i] = (pl_request){.state = PL_UNUSED, .seq = -1};
        e->slot[i].planned = -1;
    }
    *out = e;
    return PL_OK;
}

void pl_engine_close(pl_engine *e)
{
    if (!e) return;
    for (int32_t i = 0; e->slot && e->req && i < e->o.max_requests; i++) {
        pl_sched_clear(&e->slot[i]);
        if (e->req[i].seq >= 0 && e->req[i].id) pl_kv_seq_free(e->kv, e->req[i].seq);
    }
    pl_tier_close(e->tier, FLUSH_S);
    pl_prefix_close(e->prefix);
    pl_prof_close(e->prof);
    pl_prog_free(e->prog);
    free(e->req);
    free(e->slot);
    free(e->unused);
    free(e->tenant);
    free(e->running.request);
    free(e->waiting.request);
    free(e->coming.request);
    free(e->seen);
    free(e->span);
    free(e->need);
    free(e->who);
    free(e->rows);
    free(e->event);
    free(e->ids);
    free(e->scratch);
    free(e->hold);
    for (int32_t i = 0; e->vector && i < e->o.max_requests; i++) free(e->vector[i]);
    free(e->vector);
    free(e);
}

double pl_engine_now(const pl_engine *e) { return e->prog ? pl_now_s() : e->clock_s; }

void pl_engine_wait_until(pl_engine *e, double t_s)
{
    if (!e->prog && t_s > e->clock_s) e->clock_s = t_s;
}

int32_t pl_engine_events(pl_engine *e, const pl_event **out)
{
    *out = e->event;
    return e->n_events;
}

/* The step ----------------------------------------------------------------------------------------------- */

/* A token came: times, and the request's own record of it. */
static int keep_token(pl_engine *e, int32_t i, int32_t token, pl_err *err)
{
    pl_request *r = &e->req[i];
    slot *s = &e->slot[i];
    const double now = pl_engine_now(e);
    PL_TRY(pl_mem_grow((void **)&s->token, &s->cap, s->n + 1, sizeof *s->token, err));
    s->token[s->n++] = token;
    r->left = 1;
    e->m.out_tokens++;
    if (r->n_out++ == 0) {
        r->first_s = now;
        pl_hist_add(&e->m.ttft_s, now - r->arrived_s);
    } else {
        pl_hist_add(&e->m.itl_s, now - s->last_s);
    }
    s->last_s = now;
    return PL_OK;
}

/* The chosen token joins the request's own, unless it ends the answer. */
static int advance(pl_engine *e, int32_t i, const float *logits, pl_err *err)
{
    pl_request *r = &e->req[i];
    slot *s = &e->slot[i];
    pl_sampled out = {.token = -1};
    if (r->n_out >= r->max_out) { /* nothing but the prompt was wanted */
        pl_sched_finish(e, i, PL_FINISH_LENGTH);
        pl_sched_post(e, i, NULL);
        return PL_OK;
    }
    double mark = pl_prof_mark(e->prof);
    s->sample.n_bias = s->n_bias + (r->n_out < s->min_out ? s->n_stop : 0);
    if (e->prog)
        PL_TRY(pl_sample(&out, logits, e->o.n_vocab, &s->sample, s->token, s->n, r->n_prompt, e->scratch, err));
    else
        out.token = (int32_t)((uint64_t)(r->id * 7919 + r->n_out) % (uint64_t)e->o.n_vocab);
    pl_prof_part(e->prof, PL_PART_SAMPLE, &mark);
    PL_TRY(keep_token(e, i, out.token, err));
    bool stop = false;
    for (int32_t k = 0; k < s->n_stop; k++) stop = stop || s->stop[k] == out.token;
    if (stop)
        pl_sched_finish(e, i, PL_FINISH_STOP);
    else if (r->n_out >= r->max_out)
        pl_sched_finish(e, i, PL_FINISH_LENGTH);
    pl_sched_post(e, i, &out);
    return PL_OK;
}

/* What the planned step would take on the device that the costs describe. */
static double cost_of(const pl_engine *e)
{
    const pl_cost *c = &e->cost;
    double context = 0, pairs = 0;
    for (int32_t k = 0; k < e->n_plan; k++) {
        const double done = e->req[e->who[k]].n_done, n = e->span[k].n;
        context += done + n;
        pairs += n * (done + (n + 1) / 2);
    }
    const double bytes = c->weight_bytes + context * c->kv_token_bytes;
    const double flop = e->plan_tokens * c->token_flop + pairs * c->pair_flop;
    const double read = bytes / c->bytes_s, compute = flop / c->flop_s;
    return c->step_s + (read > compute ? read : compute);
}

void pl_engine_make_room(pl_engine *e, int64_t n)
{
    if (n < 1) return;
    for (int64_t missing; (missing = n - pl_kv_free_pages(e->kv)) > 0 && e->prefix; pl_sched_landed(e)) {
        const int32_t given = pl_prefix_evict(e->prefix, (int32_t)missing);
        e->m.evicted_pages += (uint64_t)given;
        /* never so for what was planned: that counts no page which a copy reads or writes */
        if (given < missing && !pl_tier_wait(e->tier, 1)) break;
    }
}

bool pl_engine_wait(pl_engine *e, double s)
{
    if (pl_tier_copies(e->tier) == 0) return false;
    (void)pl_tier_wait(e->tier, s);
    if (s > 0) pl_sched_landed(e);
    return true;
}

const char *pl_engine_tier_failure(const pl_engine *e) { return pl_tier_failure(e->tier); }

/* The step gives the request a row of logits: its known tokens are used up, and it wants another. */
static bool wants_logits(const pl_engine *e, int32_t k)
{
    return e->span[k].n == e->req[e->who[k]].left && !e->slot[e->who[k]].embed;
}

/* Runs the plan, or counts what it would take; returns the number of spans that were refused. */
static int run(pl_engine *e, pl_tensor *logits, pl_err *err)
{
    double mark = pl_prof_mark(e->prof);
    pl_batch b = {.ids = e->ids, .rows = e->rows, .span = e->span, .n_spans = e->n_plan};
    for (int32_t k = 0; k < e->n_plan; k++) {
        const pl_request *r = &e->req[e->who[k]];
        memcpy(e->ids + b.n_tokens, e->slot[e->who[k]].token + r->n_done, (size_t)e->span[k].n * sizeof *e->ids);
        b.n_tokens += e->span[k].n;
        if (wants_logits(e, k)) e->rows[b.n_rows++] = b.n_tokens - 1;
    }
    if (e->prof) e->prof->now.n_rows = b.n_rows;
    pl_engine_make_room(e, e->plan_pages);
    pl_prof_part(e->prof, PL_PART_BEGIN, &mark);
    if (e->prog) return pl_prog_run_timed(e->prog, e->kv, &b, logits, e->prof, err);
    e->clock_s += cost_of(e);
    PL_TRY(pl_kv_begin(e->kv, e->span, e->n_plan, err));
    pl_prof_part(e->prof, PL_PART_BEGIN, &mark);
    const int refused = pl_kv_commit(e->kv, err);
    pl_prof_part(e->prof, PL_PART_COMMIT, &mark);
    return refused;
}

/* One request's share of a step that ran: row is its row of the logits, NULL if it has known tokens left; of an
 * embedding, the first of its n rows of hidden states. */
static void settle(pl_engine *e, int32_t i, int32_t n, const float *row)
{
    pl_request *r = &e->req[i];
    pl_err own; /* a request's own failure ends that request alone */
    if (r->started_s == 0) {
        r->started_s = pl_engine_now(e);
        pl_hist_add(&e->m.queue_s, r->started_s - r->arrived_s);
    }
    e->m.prompt_tokens += (uint64_t)pl_max(0, pl_min(n, r->n_prompt - r->n_done));
    e->tenant[r->tenant].served += n;
    r->n_done += n;
    r->left -= n;
    const bool embeds = e->slot[i].embed != PL_EMBED_NONE;
    if (embeds) pl_embedding_add(e, i, row, n);
    double mark = pl_prof_mark(e->prof);
    pl_sched_publish(e, i);
    pl_prof_part(e->prof, PL_PART_PUBLISH, &mark);
    if (r->left || (embeds ? pl_embedding_end(e, i, &own) : advance(e, i, row, &own)) == PL_OK) return;
    pl_sched_finish(e, i, PL_FINISH_ERROR);
    pl_sched_post(e, i, NULL);
}

/* Pages are looked at while the scrub's share of the time lasts; what it took too much is taken from its next share. */
static void scrub(pl_engine *e, double step_s)
{
    e->scrub_s += e->o.scrub * step_s;
    while (e->prog && e->scrub_s > 0 && e->kv->o.check == PL_CHECK_DIGESTS) {
        const double start = pl_now_s();
        const int32_t damaged = pl_kv_scrub(e->kv, 1);
        e->m.damaged_pages += (uint64_t)damaged;
        e->m.scrubbed_pages++;
        e->scrub_s -= pl_now_s() - start;
    }
}

int pl_engine_step(pl_engine *e, pl_err *err)
{
    if (e->stepped) e->n_events = 0;
    e->stepped = true;
    const int32_t n = e->n_plan;
    if (n == 0) {
        pl_prof_end(e->prof, false);
        return PL_OK;
    }
    pl_tensor logits = {0};
    const double start = pl_engine_now(e);
    const int32_t n_tokens = e->plan_tokens;
    pl_prof_begin(e->prof, (int64_t)e->m.steps, n_tokens, n);
    const int refused = run(e, &logits, err);
    pl_hist_add(&e->m.step_tokens, e->plan_tokens);
    pl_sched_forget(e);
    if (refused < 0) {
        pl_prof_end(e->prof, false);
        return refused;
    }
    if (refused) e->m.mismatches += (uint64_t)e->kv->n_mismatches;
    int32_t row = 0;
    int64_t token = 0;
    for (int32_t k = 0; k < n; k++) {
        const int32_t i = e->who[k];
        const float *own = NULL;
        if (e->slot[i].embed)
            own = pl_row_f32(pl_prog_hidden(e->prog), token);
        else if (e->prog && wants_logits(e, k))
            own = pl_row_f32(&logits, row++);
        token += e->span[k].n;
        if (e->kv->found[k]) {
            pl_sched_finish(e, i, PL_FINISH_INTEGRITY);
            pl_sched_post(e, i, NULL);
        } else {
            settle(e, i, e->span[k].n, own);
        }
    }
    if (refused) (void)pl_kv_reclaim(e->kv, e->hold, pl_tier_holds(e->tier, e->hold));
    e->m.steps++;
    const double s = pl_engine_now(e) - start;
    e->m.step_s += s;
    if (n_tokens > 2 * n) e->prefill_tokens += n_tokens, e->prefill_s += s;
    double mark = pl_prof_mark(e->prof);
    scrub(e, s);
    pl_prof_part(e->prof, PL_PART_SCRUB, &mark);
    pl_sched_spill(e);
    pl_prof_end(e->prof, true);
    return PL_OK;
}

void pl_engine_metrics(const pl_engine *e, pl_metrics *out)
{
    *out = e->m;
    pl_kv_count(e->kv, &out->pages);
    out->n_running = e->running.n;
    out->n_waiting = e->waiting.n;
    out->n_tokenising = e->coming.n;
    out->idle_pages = pl_prefix_idle(e->prefix);
    if (e->tier) pl_tier_metrics(e->tier, out);
}

int pl_engine_trace(pl_engine *e, int32_t n_steps, pl_err *err)
{
    pl_prof *fresh = NULL;
    if (n_steps) PL_TRY(pl_prof_open(&fresh, n_steps, e->prog ? pl_prog_n_ops(e->prog) : 0, err));
    pl_prof_close(e->prof);
    e->prof = fresh;
    return PL_OK;
}

const pl_step *pl_engine_traced(const pl_engine *e, int32_t i) { return pl_prof_at(e->prof, i); }
