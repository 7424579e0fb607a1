/* sched.c: who waits and who runs, and the plan of the next step. A policy (Lua) reads the request records and names how
 * many tokens of which request the step takes; every entry is checked here against the room that the step and the cache
 * have, so that a step that is planned can run. */
#include "engine.h"
#include "mem.h"
#include <math.h>
#include <stdlib.h>

/* Queues ------------------------------------------------------------------------------------------------- */

static bool before(const pl_request *a, const pl_request *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->id < b->id;
}

/* Where a request is in a queue, or would be. */
static int32_t place(const queue *q, const pl_request *r)
{
    int32_t lo = 0, hi = q->n;
    while (lo < hi) {
        const int32_t mid = (lo + hi) / 2;
        if (before(q->request[mid], r))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void enter(queue *q, const pl_request *r) /* has room for every request from the start */
{
    const int32_t i = place(q, r);
    memmove(q->request + i + 1, q->request + i, (size_t)(q->n - i) * sizeof(void *));
    q->request[i] = r;
    q->n++;
}

static void leave(queue *q, const pl_request *r)
{
    const int32_t i = place(q, r);
    PL_ASSERT(i < q->n && q->request[i] == r);
    q->n--;
    memmove(q->request + i, q->request + i + 1, (size_t)(q->n - i) * sizeof(void *));
}

static queue *queue_of(pl_engine *e, int32_t state)
{
    return state == PL_RUNNING      ? &e->running
           : state == PL_WAITING    ? &e->waiting
           : state == PL_TOKENISING ? &e->coming
                                    : NULL;
}

static void move(pl_engine *e, int32_t i, int32_t state)
{
    pl_request *r = &e->req[i];
    queue *from = queue_of(e, r->state), *to = queue_of(e, state);
    if (r->state == state) return;
    if (from) leave(from, r);
    r->state = state;
    if (to) enter(to, r);
}

int32_t pl_sched_find(const pl_engine *e, int64_t id)
{
    if (id <= 0) return -1;
    const int32_t i = (int32_t)(id % e->o.max_requests);
    return e->req[i].id == id && e->req[i].state != PL_FINISHED && e->req[i].state != PL_UNUSED ? i : -1;
}

/* Requests ----------------------------------------------------------------------------------------------- */

void pl_sched_clear(slot *s)
{
    free(s->token);
    free(s->stop);
    free(s->key);
    free(s->bias_id);
    free(s->bias);
    free(s->sum);
    memset(s, 0, sizeof *s);
    s->planned = -1;
}

static void *copy_of(const void *src, size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (p && bytes) memcpy(p, src, bytes);
    return p;
}

static int check_prompt(const pl_engine *e, const int32_t *prompt, int32_t n, int32_t max_out, pl_err *err)
{
    if (n < 1) return pl_fail(err, PL_EARG, "request: the prompt is empty");
    if (max_out < 0) return pl_fail(err, PL_EARG, "request: %d tokens wanted, want 0 or more", max_out);
    for (int32_t i = 0; i < n; i++)
        if (prompt[i] < 0 || prompt[i] >= e->o.n_vocab)
            return pl_fail(err, PL_EARG, "request: token %d of the prompt is %d, the vocabulary has %d", i, prompt[i],
                           e->o.n_vocab);
    const int64_t page = e->kv->o.page, total = (int64_t)n + max_out;
    if ((total + page - 1) / page > e->kv->o.n_pages)
        return pl_fail(err, PL_EARG, "request: %d tokens of prompt and %d of answer, the cache holds %lld", n, max_out,
                       (long long)(e->kv->o.n_pages * page));
    return PL_OK;
}

static int check_request(const pl_engine *e, const pl_request_opts *o, pl_err *err)
{
    if (o->tenant < 0 || o->tenant >= e->o.n_tenants)
        return pl_fail(err, PL_EARG, "request: tenant %d, want 0 to %d", o->tenant, e->o.n_tenants - 1);
    if (!(o->deadline_s >= 0)) return pl_fail(err, PL_EARG, "request: deadline %g s, want 0 or more", o->deadline_s);
    for (int32_t i = 0; i < o->n_stop; i++)
        if (o->stop[i] < 0 || o->stop[i] >= e->o.n_vocab)
            return pl_fail(err, PL_EARG, "request: stop token %d, the vocabulary has %d", o->stop[i], e->o.n_vocab);
    PL_TRY(pl_sample_check(&o->sample, e->o.n_vocab, err));
    PL_TRY(pl_embedding_check(e, o, err));
    if (!o->later) return check_prompt(e, o->prompt, o->n_prompt, o->max_out, err);
    return o->n_prompt == 0 ? PL_OK
                            : pl_fail(err, PL_EARG, "request: a prompt of %d tokens now, want it later", o->n_prompt);
}

static int fill_slot(slot *s, const pl_request_opts *o, pl_err *err)
{
    s->sample = o->sample;
    s->token = copy_of(o->prompt, (size_t)o->n_prompt * sizeof *o->prompt);
    s->n = s->cap = o->n_prompt;
    s->stop = copy_of(o->stop, (size_t)o->n_stop * sizeof *o->stop);
    s->n_stop = o->n_stop;
    s->n_bias = o->sample.n_bias;
    s->min_out = o->min_out;
    const size_t n_biases = (size_t)s->n_bias + (size_t)s->n_stop;
    s->sample.bias_id = s->bias_id = calloc(n_biases + 1, sizeof *s->bias_id);
    s->sample.bias = s->bias = calloc(n_biases + 1, sizeof *s->bias);
    s->planned = -1;
    if (s->token && s->stop && s->bias_id && s->bias) {
        if (s->n_bias) memcpy(s->bias_id, o->sample.bias_id, (size_t)s->n_bias * sizeof *s->bias_id);
        if (s->n_bias) memcpy(s->bias, o->sample.bias, (size_t)s->n_bias * sizeof *s->bias);
        for (int32_t k = 0; k < s->n_stop; k++) {
            s->bias_id[s->n_bias + k] = o->stop[k];
            s->bias[s->n_bias + k] = -INFINITY;
        }
        return PL_OK;
    }
    pl_sched_clear(s);
    return pl_fail(err, PL_ENOMEM, "request: no memory for a prompt of %d tokens", o->n_prompt);
}

/* The chain of keys starts from the tenant and the salt. */
static void set_root(slot *s, const pl_request_opts *o)
{
    pl_key part[2];
    pl_prefix_root(&part[0], &o->tenant, sizeof o->tenant);
    pl_prefix_root(&part[1], o->salt, o->n_salt);
    pl_prefix_root(&s->root, part, sizeof part);
}

/* A tenant that comes back does not bring the turns that it did not take. */
static void arrive(pl_engine *e, int32_t who)
{
    tenant *t = &e->tenant[who];
    double least = -1;
    for (int32_t i = 0; t->n_open == 0 && i < e->o.n_tenants; i++)
        if (e->tenant[i].n_open && (least < 0 || e->tenant[i].served < least)) least = e->tenant[i].served;
    if (t->n_open == 0 && least > t->served) t->served = least;
    t->n_open++;
}

int pl_engine_submit(pl_engine *e, const pl_request_opts *o, int64_t *id, pl_err *err)
{
    PL_TRY(check_request(e, o, err));
    if (e->n_unused == 0) {
        e->m.refused++;
        return pl_fail(err, PL_EFULL, "engine: all %d places for requests are taken", e->o.max_requests);
    }
    const int32_t i = e->unused[e->n_unused - 1];
    PL_TRY(pl_embedding_reserve(e, i, o, err));
    PL_TRY(fill_slot(&e->slot[i], o, err));
    e->n_unused--;
    if (e->prefix) set_root(&e->slot[i], o);
    const double now = o->arrived_s > 0 ? o->arrived_s : pl_engine_now(e);
    e->req[i] = (pl_request){.id = ++e->n_submitted * e->o.max_requests + i,
                             .state = PL_UNUSED,
                             .seq = -1,
                             .n_prompt = o->n_prompt,
                             .max_out = o->max_out,
                             .left = o->n_prompt,
                             .priority = o->priority,
                             .tenant = o->tenant,
                             .arrived_s = now,
                             .deadline_s = o->deadline_s > 0 ? now + o->deadline_s : 0};
    e->n_deadlines += o->deadline_s > 0;
    arrive(e, o->tenant);
    move(e, i, o->later ? PL_TOKENISING : PL_WAITING);
    *id = e->req[i].id;
    e->m.submitted++;
    return PL_OK;
}

int pl_engine_prompt(pl_engine *e, int64_t id, const int32_t *prompt, int32_t n, int32_t max_out, pl_err *err)
{
    const int32_t i = pl_sched_find(e, id);
    if (i < 0 || e->req[i].state != PL_TOKENISING)
        return pl_fail(err, PL_ENAME, "engine: no request %lld that wants a prompt", (long long)id);
    PL_TRY(check_prompt(e, prompt, n, max_out, err));
    slot *s = &e->slot[i];
    PL_TRY(pl_mem_grow((void **)&s->token, &s->cap, n, sizeof *s->token, err));
    memcpy(s->token, prompt, (size_t)n * sizeof *prompt);
    s->n = e->req[i].n_prompt = e->req[i].left = n;
    e->req[i].max_out = max_out;
    move(e, i, PL_WAITING);
    return PL_OK;
}

void pl_sched_post(pl_engine *e, int32_t i, const pl_sampled *s)
{
    PL_ASSERT(e->n_events < e->event_cap);
    pl_event *v = &e->event[e->n_events++];
    *v = (pl_event){.id = e->req[i].id,
                    .finish = e->req[i].finish,
                    .n_out = e->req[i].n_out,
                    .n_cached = e->req[i].n_cached,
                    .sampled = {.token = -1}};
    if (s) v->sampled = *s;
}

/* Full pages of the known tokens get their keys. */
static int extend_keys(pl_engine *e, slot *s, int32_t n, pl_err *err)
{
    PL_TRY(pl_mem_grow((void **)&s->key, &s->key_cap, n, sizeof *s->key, err));
    for (; s->n_keys < n; s->n_keys++) {
        const pl_key *last = s->n_keys ? &s->key[s->n_keys - 1] : &s->root;
        pl_prefix_next(&s->key[s->n_keys], last, s->token + (int64_t)s->n_keys * e->kv->o.page, e->kv->o.page);
    }
    return PL_OK;
}

void pl_sched_publish(pl_engine *e, int32_t i)
{
    slot *s = &e->slot[i];
    const pl_request *r = &e->req[i];
    const int32_t full = r->n_done / e->kv->o.page;
    if (!e->prefix || r->seq < 0 || s->n_public >= full) return;
    if (extend_keys(e, s, full, NULL) < 0) return; /* no memory for keys: the pages are found by nobody */
    for (; s->n_public < full; s->n_public++) {
        const int32_t k = s->n_public;
        pl_prefix_put(e->prefix, &e->kv->seq[r->seq], k, &s->key[k], k ? &s->key[k - 1] : NULL);
    }
}

/* Its pages need no copy any more. */
static void unswap(pl_engine *e, int32_t i)
{
    e->n_swaps -= e->slot[i].n_swap > 0;
    e->slot[i].n_swap = 0;
}

static void give_back(pl_engine *e, int32_t i)
{
    pl_request *r = &e->req[i];
    if (r->seq >= 0) pl_kv_seq_free(e->kv, r->seq);
    r->seq = -1;
    e->slot[i].n_public = 0;
}

/* Takes a request out of the plan. */
static void unplan(pl_engine *e, int32_t i)
{
    const int32_t k = e->slot[i].planned, last = e->n_plan - 1;
    if (k < 0) return;
    e->plan_tokens -= e->span[k].n;
    e->plan_pages -= e->need[k];
    e->span[k] = e->span[last];
    e->who[k] = e->who[last];
    e->need[k] = e->need[last];
    e->slot[e->who[k]].planned = k;
    e->slot[i].planned = -1;
    e->n_plan--;
}

void pl_sched_finish(pl_engine *e, int32_t i, int32_t why)
{
    pl_request *r = &e->req[i];
    const double now = pl_engine_now(e);
    unplan(e, i);
    unswap(e, i);
    if (why != PL_FINISH_INTEGRITY) pl_sched_publish(e, i);
    give_back(e, i);
    move(e, i, PL_FINISHED);
    r->finish = why;
    r->loading = 0; /* what is on its way becomes the prefix cache's */
    e->m.finished[why]++;
    pl_hist_add(&e->m.e2e_s, now - r->arrived_s);
    pl_hist_add(&e->m.prompt_len, r->n_prompt);
    pl_hist_add(&e->m.out_len, r->n_out);
    e->n_deadlines -= r->deadline_s > 0;
    e->tenant[r->tenant].n_open--;
    pl_sched_clear(&e->slot[i]);
    e->unused[e->n_unused++] = i;
}

static int end(pl_engine *e, int64_t id, int32_t why, pl_err *err)
{
    const int32_t i = pl_sched_find(e, id);
    if (i < 0) return pl_fail(err, PL_ENAME, "engine: no running request %lld", (long long)id);
    pl_sched_finish(e, i, why);
    return PL_OK;
}

int pl_engine_cancel(pl_engine *e, int64_t id, pl_err *err) { return end(e, id, PL_FINISH_CANCELLED, err); }
int pl_engine_fail(pl_engine *e, int64_t id, pl_err *err) { return end(e, id, PL_FINISH_ERROR, err); }
int pl_engine_stop(pl_engine *e, int64_t id, pl_err *err) { return end(e, id, PL_FINISH_STOP, err); }

/* What a policy asks ------------------------------------------------------------------------------------- */

/* Looks between two steps share half of the room for events; when it is full, the rest end after the step. */
static void expire(pl_engine *e, const queue *q)
{
    const double now = pl_engine_now(e);
    for (int32_t k = q->n - 1; k >= 0 && e->n_deadlines && e->n_events < e->o.max_requests; k--) {
        const pl_request *r = q->request[k];
        if (r->deadline_s <= 0 || now < r->deadline_s) continue;
        const int32_t i = pl_sched_find(e, r->id);
        pl_sched_finish(e, i, PL_FINISH_DEADLINE);
        pl_sched_post(e, i, NULL);
    }
}

void pl_sched_forget(pl_engine *e)
{
    for (int32_t k = 0; k < e->n_plan; k++) e->slot[e->who[k]].planned = -1;
    e->n_plan = e->plan_tokens = 0;
    e->plan_pages = 0;
}

const pl_request *pl_engine_request_at(const pl_engine *e, int32_t i)
{
    return i >= 0 && i < e->o.max_requests ? &e->req[i] : NULL;
}

void pl_engine_look(pl_engine *e, pl_queue *out)
{
    pl_sched_forget(e); /* of a step that an error ended before it ran */
    pl_prof_look(e->prof, e->running.n + e->waiting.n == 0);
    pl_sched_landed(e);
    if (e->stepped) e->n_events = 0;
    e->stepped = false;
    expire(e, &e->running);
    expire(e, &e->waiting);
    expire(e, &e->coming);
    memcpy(e->seen, e->running.request, (size_t)e->running.n * sizeof(void *));
    memcpy(e->seen + e->running.n, e->waiting.request, (size_t)e->waiting.n * sizeof(void *));
    *out = (pl_queue){e->seen, e->seen + e->running.n, e->running.n, e->waiting.n, e->n_events};
}

int32_t pl_engine_step_left(const pl_engine *e) { return e->o.max_tokens - e->plan_tokens; }
int32_t pl_engine_rows_left(const pl_engine *e) { return e->o.max_rows - e->n_plan; }

static int64_t unplanned_pages(const pl_engine *e)
{
    return pl_kv_free_pages(e->kv) + pl_prefix_idle(e->prefix) - e->plan_pages;
}

int64_t pl_engine_free_pages(const pl_engine *e)
{
    int64_t n = unplanned_pages(e);
    for (int32_t k = 0; k < e->running.n; k++) {
        const pl_request *r = e->running.request[k];
        const int32_t i = pl_sched_find(e, r->id);
        if (r->left > 1) n -= pl_kv_need(e->kv, r->seq, r->left);
        if (r->left > 1 && e->slot[i].planned >= 0) n += e->need[e->slot[i].planned];
    }
    return n;
}

/* Pages of a request that may be taken from the cache: the last token has to be computed, for its logits; of a mean, all. */
static int32_t findable(const pl_engine *e, const slot *s)
{
    return s->embed == PL_EMBED_MEAN ? 0 : (s->n - 1) / e->kv->o.page;
}

int32_t pl_engine_cached(pl_engine *e, int64_t id)
{
    const int32_t i = pl_sched_find(e, id);
    if (i < 0 || !e->prefix || e->req[i].seq >= 0) return 0;
    slot *s = &e->slot[i];
    const int32_t most = findable(e, s);
    if (extend_keys(e, s, most, NULL) < 0) return 0;
    int32_t n = pl_prefix_count(e->prefix, s->key, most);
    if (e->tier) n += pl_tier_count(e->tier, s->key + n, most - n);
    return n * e->kv->o.page;
}

double pl_engine_served(const pl_engine *e, int32_t t)
{
    return t >= 0 && t < e->o.n_tenants ? e->tenant[t].served : 0;
}

/* Tiers ------------------------------------------------------------------------------------------------------ */

void pl_sched_landed(pl_engine *e)
{
    if (!pl_tier_poll(e->tier)) return;
    for (int32_t k = 0; k < e->waiting.n; k++) {
        const int32_t i = pl_sched_find(e, e->waiting.request[k]->id);
        if (e->req[i].loading && pl_tier_loaded(e->tier, e->slot[i].ticket)) e->req[i].loading = 0;
    }
}

/* What a tier has of a request that is about to begin is sent for: PL_EBUSY until it is there. Asked again, the request goes
 * on with what has come, and sends for more only if it has got further: it may be that other loads took the pages that
 * its own had brought. */
static int fetch(pl_engine *e, int32_t i, pl_err *err)
{
    pl_request *r = &e->req[i];
    slot *s = &e->slot[i];
    const int32_t n = findable(e, s);
    if (!e->tier) return PL_OK;
    if (r->loading) return pl_fail(err, PL_EBUSY, "plan: %d pages are on their way", r->loading);
    if (extend_keys(e, s, n, NULL) < 0) return PL_OK;
    const int32_t hits = pl_prefix_count(e->prefix, s->key, n);
    const int32_t there = pl_tier_count(e->tier, s->key + hits, n - hits);
    const int32_t most = (int32_t)pl_min(there, unplanned_pages(e) - hits); /* its own hits are not taken for them */
    if (most <= 0 || hits < s->fetched) return PL_OK;
    pl_prefix_touch(e->prefix, s->key, hits);
    pl_engine_make_room(e, e->plan_pages + most);
    r->loading = pl_tier_load(e->tier, s->key + hits, hits ? &s->key[hits - 1] : NULL, there, most, r->id, &s->ticket);
    if (pl_tier_loaded(e->tier, s->ticket)) r->loading = 0;
    if (r->loading == 0) return PL_OK;
    s->fetched = hits + 1;
    return pl_fail(err, PL_EBUSY, "plan: %d pages are on their way", r->loading);
}

/* Copies leave a page for every request that runs, and one more. */
void pl_sched_spill(pl_engine *e)
{
    if (!e->tier) return;
    const int64_t room = unplanned_pages(e) - e->running.n - 1;
    const int32_t most = pl_tier_copies(e->tier) + (int32_t)pl_max(0, room);
    for (int32_t k = 0; k < e->waiting.n && e->n_swaps; k++) {
        const int32_t i = pl_sched_find(e, e->waiting.request[k]->id), n = e->slot[i].n_swap;
        if (n && pl_tier_spill_keys(e->tier, e->slot[i].key, n, most) == n) unswap(e, i);
    }
    pl_tier_spill(e->tier, most);
}

/* Is a page sooner copied out and in than computed? */
static bool is_copied_sooner(const pl_engine *e)
{
    const double rate = e->tier ? pl_tier_rate(e->tier) : 0;
    if (rate <= 0 || e->prefill_s <= 0) return false;
    return 2 * (double)e->kv->page_bytes / rate < e->kv->o.page * e->prefill_s / e->prefill_tokens;
}

/* A request was preempted, and n pages of it are cached: they are copied out before others, or left to the cache. As pages
 * are wanted now, no more than half of what there is are kept by copies; the rest follow as these end. */
static void swap_out(pl_engine *e, int32_t i, int32_t n)
{
    slot *s = &e->slot[i];
    const bool swap = n > 0 && findable(e, s) > 0 && is_copied_sooner(e);
    e->m.preempted_swap += swap;
    e->m.preempted_recompute += !swap;
    s->fetched = 0;
    if (!swap) return;
    const int32_t most = pl_tier_copies(e->tier) + (int32_t)pl_max(0, unplanned_pages(e) / 2);
    if (pl_tier_spill_keys(e->tier, s->key, n, most) == n) return;
    s->n_swap = n;
    e->n_swaps++;
}

/* Planning --------------------------------------------------------------------------------------------------- */

/* A sequence for a request, with what the prefix cache has of it. */
static int begin(pl_engine *e, int32_t i, pl_err *err)
{
    pl_request *r = &e->req[i];
    slot *s = &e->slot[i];
    int32_t n = 0;
    PL_TRY(pl_kv_seq_new(e->kv, r->id, &r->seq, err));
    pl_embedding_begin(e, i);
    if (PL_FAULT(&e->kv->tags, STALE_TABLE, r->id) && pl_fault_revive(e->kv, r->seq)) {
        r->n_done = (int32_t)pl_kv_seq_len(e->kv, r->seq);
        r->left = s->n - r->n_done;
        return PL_OK;
    }
    if (e->prefix && extend_keys(e, s, findable(e, s), err) == PL_OK)
        n = pl_prefix_take(e->prefix, s->key, findable(e, s), r->id, e->hold);
    if (n && pl_kv_adopt(e->kv, r->seq, e->hold, n, err) < 0) {
        for (int32_t k = 0; k < n; k++) (void)pl_tags_drop(&e->kv->tags, e->hold[k]);
        n = 0;
    }
    s->n_public = n;
    r->n_done = r->n_cached = n * e->kv->o.page;
    r->left = s->n - r->n_done;
    return PL_OK;
}

static void undo_begin(pl_engine *e, int32_t i)
{
    give_back(e, i);
    e->req[i].n_done = e->req[i].n_cached = 0;
    e->req[i].left = e->slot[i].n;
}

int pl_engine_plan(pl_engine *e, int64_t id, int32_t n, pl_err *err)
{
    const int32_t i = pl_sched_find(e, id);
    if (i < 0 || e->req[i].state == PL_TOKENISING)
        return pl_fail(err, PL_ENAME, "plan: no running request %lld", (long long)id);
    pl_request *r = &e->req[i];
    if (n < 1 || n > r->left)
        return pl_fail(err, PL_EARG, "plan: %d tokens of request %lld, which has %d left", n, (long long)id, r->left);
    if (e->slot[i].planned >= 0) return pl_fail(err, PL_EARG, "plan: request %lld twice in one step", (long long)id);
    if (pl_engine_rows_left(e) == 0) return pl_fail(err, PL_EFULL, "plan: the step has %d requests", e->n_plan);
    const bool fresh = r->seq < 0;
    if (fresh) PL_TRY(fetch(e, i, err));
    if (fresh) PL_TRY(begin(e, i, err));
    n = (int32_t)pl_min(n, r->left);
    const int64_t need = pl_kv_need(e->kv, r->seq, n);
    int rc = PL_OK;
    if (n > pl_engine_step_left(e))
        rc = pl_fail(err, PL_EFULL, "plan: %d tokens, the step has room for %d", n, pl_engine_step_left(e));
    else if (need > unplanned_pages(e))
        rc = pl_fail(err, PL_EPAGES, "plan: %lld pages, the cache has %lld", (long long)need,
                     (long long)unplanned_pages(e));
    if (rc < 0) {
        if (fresh) undo_begin(e, i);
        return rc;
    }
    if (fresh) e->m.cached_tokens += (uint64_t)r->n_cached;
    unswap(e, i);
    move(e, i, PL_RUNNING);
    e->span[e->n_plan] = (pl_span){r->seq, n};
    e->need[e->n_plan] = need;
    e->who[e->n_plan] = i;
    e->slot[i].planned = e->n_plan++;
    e->plan_tokens += n;
    e->plan_pages += need;
    return PL_OK;
}

/* A policy may preempt requests for ever. One that never gets further has its turn at last: it alone, for two that may not
 * be preempted could wait for each other's pages, and one request always fits. */
static bool is_kept(pl_engine *e, int32_t i)
{
    pl_request *r = &e->req[i];
    if (r->n_done > e->slot[i].furthest) {
        e->slot[i].furthest = r->n_done;
        r->n_vain = 0;
    }
    if (r->n_vain >= PL_MAX_VAIN && pl_sched_find(e, e->kept) < 0) {
        e->kept = r->id;
        r->kept = true;
    }
    return r->kept;
}

int pl_engine_preempt(pl_engine *e, int64_t id, pl_err *err)
{
    const int32_t i = pl_sched_find(e, id);
    if (i < 0 || e->req[i].state != PL_RUNNING)
        return pl_fail(err, PL_ENAME, "preempt: no running request %lld", (long long)id);
    if (is_kept(e, i)) {
        e->m.preempt_refused++;
        return pl_fail(err, PL_ESTARVED, "preempt: request %lld was preempted %d times in vain", (long long)id,
                       e->req[i].n_vain);
    }
    unplan(e, i);
    pl_sched_publish(e, i);
    const int32_t n_public = e->slot[i].n_public;
    undo_begin(e, i);
    e->req[i].n_preempted++;
    e->req[i].n_vain++;
    e->m.preempted++;
    move(e, i, PL_WAITING);
    swap_out(e, i, n_public);
    return PL_OK;
}
