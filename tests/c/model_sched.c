/* The scheduler against a model of its requests: states, known and computed tokens, limits of the plan, events, metrics,
 * and what tenants were served. Steps are simulated and take a second each. Which pages the prefix cache finds is taken from
 * the engine, and checked: every full page of a request holds the tokens, after the same tokens of the same tenant and
 * salt, that the request wants. */
#include "engine.h"
#include "model.h"

enum { PAGE = 16, PAGES = 24, REQUESTS = 10, TENANTS = 3, VOCAB = 97, TOKENS = PAGE * PAGES + 1 };

typedef struct mreq {
    bool open, running;
    int64_t id;
    int32_t n, n_prompt, n_out, max_out, n_done, planned, n_cached; /* planned: tokens; 0: not */
    int32_t priority, tenant, salt, stop;
    int64_t need;
    double arrived, deadline;
    int32_t token[TOKENS];
} mreq;

static pl_dev *dev;
static pl_kv *kv;
static pl_engine *e;
static pl_engine_opts opts;
static int32_t n_pages, n_events; /* since the step before the last look */
static bool stepped, hurry;       /* hurry: every request has a deadline soon */
static double now;
static mreq req[REQUESTS];
static double served[TENANTS];
static pl_metrics total;
static pl_event event[8 * REQUESTS]; /* that must come, in any order */
static struct {
    uint64_t tag, chain;
} filled[PAGES]; /* what was computed into a page */
static bool damaged[PAGES];

static void open_all(uint64_t seed)
{
    uint64_t r = seed;
    n_pages = 2 + below(&r, PAGES - 1);
    const pl_kv_opts o = {.layers = 1,
                          .heads = 1,
                          .key_dim = 1,
                          .value_dim = 1,
                          .page = PAGE,
                          .dtype = PL_BF16,
                          .n_pages = n_pages,
                          .dry = true};
    const pl_cost cost = {.step_s = 1, .bytes_s = 1, .flop_s = 1};
    opts = (pl_engine_opts){.max_requests = 1 + below(&r, REQUESTS),
                            .max_tokens = 1 + below(&r, 100),
                            .n_vocab = VOCAB,
                            .n_tenants = TENANTS,
                            .prefix = draw(&r) % 3 != 0,
                            .cost = &cost};
    hurry = draw(&r) % 4 == 0;
    opts.max_rows = draw(&r) % 2 ? 0 : 1 + below(&r, REQUESTS);
    want(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, NULL) == PL_OK, "no device");
    want(pl_kv_open(&kv, dev, &o, NULL) == PL_OK, "no cache");
    want(pl_engine_open(&e, NULL, kv, &opts, NULL) == PL_OK, "no engine");
    opts.cost = NULL;
    if (opts.max_rows == 0) opts.max_rows = opts.max_requests;
}

/* Pages ----------------------------------------------------------------------------------------------------- */

static int32_t pages_of(int32_t n) { return (n + PAGE - 1) / PAGE; }

static const pl_kv_seq *table(const mreq *m) { return &kv->seq[e->req[m->id % opts.max_requests].seq]; }

static bool cached(int32_t p)
{
    return opts.prefix && e->prefix->entry[p].hold.tag && pl_tags_valid(&kv->tags, e->prefix->entry[p].hold);
}

static int32_t users(int32_t p)
{
    int32_t n = 0;
    for (int i = 0; i < REQUESTS; i++)
        if (req[i].open && req[i].running)
            for (int32_t k = 0; k < table(&req[i])->n_pages; k++) n += table(&req[i])->page[k] == p;
    return n;
}

static int32_t idle(void)
{
    int32_t n = 0;
    for (int32_t p = 0; p < n_pages; p++) n += cached(p) && users(p) == 0;
    return n;
}

static int64_t unplanned(void)
{
    int64_t n = pl_kv_free_pages(kv) + idle();
    for (int i = 0; i < REQUESTS; i++)
        if (req[i].open && req[i].planned) n -= req[i].need;
    return n;
}

static int32_t plan_rows(void)
{
    int32_t n = 0;
    for (int i = 0; i < REQUESTS; i++) n += req[i].open && req[i].planned;
    return n;
}

static int32_t plan_tokens(void)
{
    int32_t n = 0;
    for (int i = 0; i < REQUESTS; i++) n += req[i].open ? req[i].planned : 0;
    return n;
}

/* Tenant, salt and the tokens to the end of each full page as one number. */
static void chains(const mreq *m, uint64_t *chain)
{
    uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)(m->tenant * 16 + m->salt);
    for (int32_t i = 0; i < m->n_done; i++) {
        h = (h ^ (uint64_t)m->token[i]) * 0x100000001b3u;
        if (i % PAGE == PAGE - 1) chain[i / PAGE] = h;
    }
}

static void check_tables(void)
{
    for (int i = 0; i < REQUESTS; i++) {
        const mreq *m = &req[i];
        if (!m->open || !m->running) continue;
        const pl_kv_seq *s = table(m);
        uint64_t chain[PAGES];
        chains(m, chain);
        want_int(s->len, m->n_done, "tokens in the cache");
        want_int(s->n_pages, pages_of(m->n_done), "pages of a request");
        for (int32_t k = 0; k < m->n_done / PAGE; k++) {
            const int32_t p = s->page[k];
            want(pl_tags_valid(&kv->tags, pl_kv_hold(s, k)), "page %d is not request %lld's", p, (long long)m->id);
            want(filled[p].tag == s->tag[k] && filled[p].chain == chain[k],
                 "page %d of request %lld holds other tokens", k, (long long)m->id);
        }
    }
}

/* What was computed: pages that the request filled hold its tokens now. One that was there may be used instead:
 * check_tables looks at it. */
static void fill_pages(const mreq *m, int32_t from)
{
    uint64_t chain[PAGES];
    chains(m, chain);
    for (int32_t k = from / PAGE; k < m->n_done / PAGE; k++) {
        const pl_hold h = pl_kv_hold(table(m), k);
        if (filled[h.page].tag == h.tag) continue;
        filled[h.page].tag = h.tag;
        filled[h.page].chain = chain[k];
    }
}

/* The same where the request ended in the step that filled them: its pages are known by their keys alone. */
static void fill_last_pages(const mreq *m, int32_t from)
{
    uint64_t chain[PAGES];
    pl_key part[2], key;
    chains(m, chain);
    pl_prefix_root(&part[0], &m->tenant, sizeof m->tenant);
    pl_prefix_root(&part[1], "x", m->salt);
    pl_prefix_root(&key, part, sizeof part);
    for (int32_t k = 0; k < m->n_done / PAGE; k++) {
        pl_prefix_next(&key, &key, m->token + k * PAGE, PAGE);
        for (int32_t p = 0; k >= from / PAGE && p < n_pages; p++) {
            const pl_prefix_entry *x = &e->prefix->entry[p];
            if (!cached(p) || filled[p].tag == x->hold.tag || memcmp(&x->key, &key, sizeof key)) continue;
            filled[p].tag = x->hold.tag;
            filled[p].chain = chain[k];
        }
    }
}

/* Requests --------------------------------------------------------------------------------------------------- */

static int32_t n_open(int32_t who)
{
    int32_t n = 0;
    for (int i = 0; i < REQUESTS; i++) n += req[i].open && (who < 0 || req[i].tenant == who);
    return n;
}

static mreq *any_open(uint32_t a)
{
    const int32_t n = n_open(-1);
    if (n == 0) return NULL;
    a %= (uint32_t)n;
    for (int i = 0;; i++)
        if (req[i].open && a-- == 0) return &req[i];
}

static void expect(const mreq *m, int32_t finish, int32_t token)
{
    want(n_events < (int32_t)(sizeof event / sizeof *event), "model: too many events");
    event[n_events++] = (pl_event){.id = m->id, .finish = finish, .n_out = m->n_out, .sampled = {.token = token}};
}

static void finish(mreq *m, int32_t why)
{
    m->open = false;
    m->planned = 0;
    total.finished[why]++;
}

static void do_submit(const op *o)
{
    uint64_t r = o->c;
    mreq x = {.id = 0};
    x.n_prompt = 1 + (o->a % 4 ? below(&r, 3 * PAGE) : below(&r, PAGE * n_pages));
    x.max_out = o->b % 16 ? below(&r, 20) : below(&r, 150);
    x.tenant = below(&r, TENANTS);
    x.salt = below(&r, 2);
    x.priority = draw(&r) % 2 ? 0 : below(&r, 3);
    x.stop = draw(&r) % 2 ? -1 : below(&r, VOCAB);
    const int32_t kind = below(&r, 3);
    const double wait = hurry ? 1 + below(&r, 4) : draw(&r) % 4 ? 0 : 1 + below(&r, 30);
    x.n = x.n_prompt;
    for (int32_t i = 0; i < x.n; i++) x.token[i] = i < 2 * PAGE ? i % 5 : (i * (kind + 1)) % VOCAB;
    const bool foreign = o->a % 64 == 1; /* a token that the vocabulary lacks */
    if (foreign) x.token[below(&r, x.n)] = VOCAB;
    const pl_request_opts q = {.prompt = x.token,
                               .n_prompt = x.n,
                               .stop = &x.stop,
                               .n_stop = x.stop >= 0,
                               .max_out = x.max_out,
                               .priority = x.priority,
                               .tenant = x.tenant,
                               .deadline_s = wait,
                               .salt = "x",
                               .n_salt = x.salt,
                               .sample = {.top_p = 1, .repetition = 1, .n_logprobs = -1}};
    const bool large = pages_of(x.n_prompt + x.max_out) > n_pages;
    const int rc = pl_engine_submit(e, &q, &x.id, NULL);
    const bool full = n_open(-1) == opts.max_requests;
    want_int(rc, foreign || large ? PL_EARG : full ? PL_EFULL : PL_OK, "submit");
    total.refused += rc == PL_EFULL;
    if (rc < 0) return;
    double least = -1;
    for (int i = 0; i < REQUESTS; i++) {
        want(!req[i].open || req[i].id < x.id, "an id that does not grow");
        if (req[i].open && (least < 0 || served[req[i].tenant] < least)) least = served[req[i].tenant];
    }
    if (n_open(x.tenant) == 0 && least > served[x.tenant]) served[x.tenant] = least;
    x.open = true;
    x.arrived = now;
    x.deadline = wait > 0 ? now + wait : 0;
    total.submitted++;
    mreq *m = req;
    while (m->open) m++;
    *m = x;
}

static void do_cancel(const op *o)
{
    mreq *m = any_open(o->a);
    bool somebody = false;
    for (int i = 0; i < REQUESTS; i++) somebody = somebody || (req[i].open && req[i].id == (int64_t)(o->c % 4096));
    if (!somebody) want_int(pl_engine_cancel(e, (int64_t)(o->c % 4096), NULL), PL_ENAME, "cancel of nobody");
    if (!m) return;
    want_int(pl_engine_cancel(e, m->id, NULL), PL_OK, "cancel");
    finish(m, PL_FINISH_CANCELLED);
    want_int(pl_engine_cancel(e, m->id, NULL), PL_ENAME, "second cancel");
}

static void do_plan(const op *o)
{
    mreq *m = any_open(o->a);
    if (!m) return;
    const int32_t left = m->n - m->n_done, was = pl_engine_cached(e, m->id);
    int32_t n = o->b % 8 ? left : 1 + (int32_t)(o->c % (uint32_t)left);
    if (o->b % 8 == 1) n = (int32_t)pl_min(left, pl_engine_step_left(e));
    if (o->c % 64 == 0) n = o->c / 64 % 2 ? 0 : left + 1;
    if (!m->running) want(was % PAGE == 0 && was >= 0 && was < m->n, "%d tokens of %d are cached", was, m->n);
    if (m->running) want_int(was, 0, "cached tokens of a request that runs");
    const int rc = pl_engine_plan(e, m->id, n, NULL);
    const bool fresh = !m->running;
    if (n < 1 || n > left || m->planned) {
        want_int(rc, PL_EARG, "plan");
        return;
    }
    if (plan_rows() == opts.max_rows) {
        want_int(rc, PL_EFULL, "plan");
        return;
    }
    const int32_t done = fresh ? was : m->n_done, take = (int32_t)pl_min(n, m->n - done);
    const int64_t need = pages_of(done + take) - pages_of(done);
    if (rc == PL_OK) m->running = true, m->n_done = done; /* pages it found are in use now */
    if (rc == PL_OK && fresh) m->n_cached = done;
    if (take > opts.max_tokens - plan_tokens()) {
        want_int(rc, PL_EFULL, "plan");
    } else if (rc != PL_OK) { /* what it would find may be what it lacks */
        want_int(rc, PL_EPAGES, "plan");
        want(need > unplanned() - (fresh ? done / PAGE : 0), "%lld pages are too many of %lld", (long long)need,
             (long long)unplanned());
    } else {
        want(need <= unplanned(), "%lld pages planned, %lld there", (long long)need, (long long)unplanned());
        m->planned = take;
        m->need = need;
        if (fresh) total.cached_tokens += (uint64_t)done;
    }
}

static void do_preempt(const op *o)
{
    mreq *m = any_open(o->a);
    if (!m) return;
    want_int(pl_engine_preempt(e, m->id, NULL), m->running ? PL_OK : PL_ENAME, "preempt");
    if (!m->running) return;
    m->running = false;
    m->planned = m->n_done = m->n_cached = 0;
    total.preempted++;
}

static bool earlier(const mreq *a, const mreq *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->id < b->id;
}

static void check_list(const pl_request *const *list, int32_t n, bool running)
{
    const mreq *last = NULL;
    int32_t n_model = 0;
    for (int i = 0; i < REQUESTS; i++) n_model += req[i].open && req[i].running == running;
    want_int(n, n_model, running ? "running requests" : "waiting requests");
    for (int32_t k = 0; k < n; k++) {
        const mreq *m = req;
        while (m < req + REQUESTS && !(m->open && m->id == list[k]->id)) m++;
        want(m < req + REQUESTS && m->running == running, "request %lld in a list", (long long)list[k]->id);
        want(!last || earlier(last, m), "requests %lld and %lld in this order", (long long)last->id, (long long)m->id);
        last = m;
        const pl_request *r = list[k];
        want_int(r->state, running ? PL_RUNNING : PL_WAITING, "state");
        want_int(r->n_prompt, m->n_prompt, "prompt");
        want_int(r->n_done, m->n_done, "computed tokens");
        want_int(r->left, m->n - m->n_done, "tokens left");
        want_int(r->n_out, m->n_out, "tokens of the answer");
        want_int(r->n_cached, m->n_cached, "cached tokens");
        want_int(r->seq >= 0, running, "has a sequence");
        want_int(r->tenant, m->tenant, "tenant");
    }
}

static void check_events(void)
{
    const pl_event *v;
    const int32_t n = pl_engine_events(e, &v);
    want_int(n, n_events, "events");
    for (int32_t k = 0; k < n; k++) {
        int32_t n_same = 0;
        for (int32_t i = 0; i < n_events; i++)
            n_same += event[i].id == v[k].id && event[i].finish == v[k].finish && event[i].n_out == v[k].n_out &&
                      event[i].sampled.token == v[k].sampled.token;
        want(n_same == 1, "event of request %lld: token %d, finish %d, %d tokens", (long long)v[k].id,
             v[k].sampled.token, v[k].finish, v[k].n_out);
        for (int32_t i = 0; i < k; i++) want(v[i].id != v[k].id, "two events of request %lld", (long long)v[k].id);
    }
}

static void do_look(const op *o)
{
    (void)o;
    pl_queue q;
    pl_engine_look(e, &q);
    for (int i = 0; i < REQUESTS; i++) req[i].planned = 0; /* a plan that did not run is forgotten */
    if (stepped) n_events = 0;
    stepped = false;
    /* as many as there are requests; more of them wait for the look after the next step */
    for (int running = 1; running >= 0; running--)
        for (const mreq *at = NULL; n_events < opts.max_requests;) {
            mreq *m = NULL; /* the last one of the list before `at` */
            for (int i = 0; i < REQUESTS; i++)
                if (req[i].open && req[i].running == running && (!at || earlier(&req[i], at)) &&
                    (!m || earlier(m, &req[i])))
                    m = &req[i];
            if (!m) break;
            at = m;
            if (m->deadline <= 0 || now < m->deadline) continue;
            finish(m, PL_FINISH_DEADLINE);
            expect(m, PL_FINISH_DEADLINE, -1);
        }
    want_int(q.n_events, n_events, "events of a look");
    check_list(q.running, q.n_running, true);
    check_list(q.waiting, q.n_waiting, false);
    check_events();
}

static void step_one(mreq *m)
{
    const int32_t from = m->n_done;
    served[m->tenant] += m->planned;
    for (int32_t i = 0; i < m->planned; i++) total.prompt_tokens += m->n_done + i < m->n_prompt;
    m->n_done += m->planned;
    m->planned = 0;
    int32_t why = PL_FINISH_NONE, token = -1;
    if (m->n_done == m->n && m->n_out == m->max_out) {
        why = PL_FINISH_LENGTH;
    } else if (m->n_done == m->n) {
        token = (int32_t)((uint64_t)(m->id * 7919 + m->n_out) % VOCAB);
        m->token[m->n++] = token;
        m->n_out++;
        total.out_tokens++;
        why = token == m->stop ? PL_FINISH_STOP : m->n_out == m->max_out ? PL_FINISH_LENGTH : PL_FINISH_NONE;
    }
    if (why == PL_FINISH_NONE)
        fill_pages(m, from);
    else if (opts.prefix)
        fill_last_pages(m, from);
    if (token >= 0 || why) expect(m, why, token);
    if (why) finish(m, why);
}

static void do_step(const op *o)
{
    (void)o;
    const int32_t n = plan_rows();
    pl_err err = {0};
    want(pl_engine_step(e, &err) == PL_OK, "step: %s", err.msg);
    if (stepped) n_events = 0;
    stepped = true;
    now += n > 0;
    total.steps += n > 0;
    for (int i = 0; i < REQUESTS; i++)
        if (req[i].open && req[i].planned) step_one(&req[i]);
    check_events();
    check_tables();
}

static void do_wait(const op *o)
{
    const double t = now - 1 + (double)(o->a % 6);
    pl_engine_wait_until(e, t);
    if (t > now) now = t;
}

static void do_room(const op *o)
{
    const int64_t n = (int64_t)(o->a % (uint32_t)(n_pages + 2)), there = pl_kv_free_pages(kv) + idle();
    if (plan_rows()) return;
    pl_engine_make_room(e, n);
    want(pl_kv_free_pages(kv) >= pl_min(n, there), "%lld pages free, want %lld of %lld",
         (long long)pl_kv_free_pages(kv), (long long)n, (long long)there);
}

/* A page that only the prefix cache holds is found damaged: it is not found any more. (Steps of a dry cache compare no
 * tags: pages in use are the matter of fault.c.) */
static void do_condemn(const op *o)
{
    const int32_t p = (int32_t)(o->a % (uint32_t)n_pages);
    if (plan_rows() || !cached(p) || users(p)) return;
    pl_tags_condemn(&kv->tags, p);
    damaged[p] = true;
}

static void do_readmit(const op *o)
{
    (void)o;
    int32_t n = 0;
    for (int32_t p = 0; p < n_pages; p++) n += damaged[p];
    want_int(pl_kv_readmit(kv), n, "readmitted");
    memset(damaged, 0, sizeof damaged);
}

static void check(void)
{
    int64_t n_free = 0, left = unplanned();
    for (int32_t p = 0; p < n_pages; p++) {
        const int32_t n = users(p) + cached(p);
        n_free += n == 0 && !damaged[p];
        want_int(kv->tags.page[p].state == PL_PAGE_QUARANTINED, damaged[p], "quarantined");
        want_int(kv->tags.page[p].refs, n, "holders");
    }
    want_int(pl_kv_free_pages(kv), n_free, "free pages");
    want_int(pl_prefix_idle(e->prefix), idle(), "idle pages");
    want_int(pl_engine_step_left(e), opts.max_tokens - plan_tokens(), "tokens left");
    want_int(pl_engine_rows_left(e), opts.max_rows - plan_rows(), "rows left");
    want(pl_engine_now(e) == now, "the time is %g, the model says %g", pl_engine_now(e), now);
    for (int i = 0; i < REQUESTS; i++) {
        const mreq *m = &req[i];
        if (!m->open || !m->running || m->n - m->n_done <= 1) continue;
        left -= pages_of(m->n) - pages_of(m->n_done) - (m->planned ? m->need : 0);
    }
    want_int(pl_engine_free_pages(e), left, "pages for new requests");
    for (int t = 0; t < TENANTS; t++) want(pl_engine_served(e, t) == served[t], "served: tenant %d", t);
}

static void check_all(void)
{
    pl_metrics m;
    pl_engine_metrics(e, &m);
    check_tables();
    uint64_t n_finished = 0;
    for (int i = 0; i < PL_N_FINISH; i++) {
        want_int(m.finished[i], total.finished[i], "finished");
        n_finished += m.finished[i];
    }
    want_int(m.submitted, total.submitted, "submitted");
    want_int(m.refused, total.refused, "refused");
    want_int(m.preempted, total.preempted, "preempted");
    want_int(m.steps, total.steps, "steps");
    want_int(m.out_tokens, total.out_tokens, "tokens of answers");
    want_int(m.prompt_tokens, total.prompt_tokens, "tokens of prompts");
    want_int(m.cached_tokens, total.cached_tokens, "cached tokens");
    want_int(m.submitted, n_finished + (uint64_t)(m.n_running + m.n_waiting), "requests that came and went");
    want_int(m.e2e_s.n, n_finished, "times");
    want_int(m.pages.free + m.pages.owned + m.pages.quarantined, n_pages, "sum of pages");
}

static void close_all(void)
{
    for (mreq *m; (m = any_open(0));) do_cancel(&(op){.b = 1});
    do_readmit(NULL);
    check();
    check_all();
    pl_engine_close(e);
    want_int(pl_kv_free_pages(kv), n_pages, "free pages at the end");
    pl_kv_close(kv);
    pl_dev_close(dev);
}

int main(void)
{
    static const model_kind kind[] = {
        {"submit", 16, do_submit},  {"plan", 34, do_plan},      {"step", 20, do_step}, {"look", 10, do_look},
        {"cancel", 2, do_cancel},   {"wait", 4, do_wait},       {"room", 1, do_room},  {"preempt", 3, do_preempt},
        {"condemn", 1, do_condemn}, {"readmit", 1, do_readmit},
    };
    const model m = {"scheduler", kind, sizeof kind / sizeof *kind, open_all, check, check_all, close_all};
    return model_main(&m);
}
