/* The prefix cache against a map from token chains to pages. A chain is a tenant's salt and the contents of some pages in
 * a row; the model compares chains themselves, never their hashes. Recency is a number, looked for one by one. */
#include "model.h"
#include "prefix.h"

enum { PAGE = 16, PAGES = 20, SEQS = 6, DEPTH = 6, ROOTS = 3, WORDS = 3 };

typedef struct chain {
    int32_t root, n;
    int32_t word[DEPTH]; /* what the page holds: PAGE tokens that follow from this number */
} chain;

typedef struct grant {
    pl_hold h;
    bool live;
} grant;

typedef struct entry {
    bool used;
    chain chain; /* to this page, itself included */
    grant g;     /* the cache's own hold */
    int32_t up;  /* the entry of the page before it; -1: none, or gone */
    uint64_t last;
} entry;

typedef struct mseq {
    bool used;
    int32_t real;
    chain chain;
    grant g[DEPTH];
} mseq;

static pl_dev *dev;
static pl_kv *kv;
static pl_prefix *prefix;
static int32_t n_pages;
static uint64_t clock_now, n_evicted;
static entry cache[PAGES];
static mseq seq[SEQS];
static bool damaged[PAGES];

static void open_all(uint64_t seed)
{
    n_pages = 2 + (int32_t)(seed * 5 % (PAGES - 1));
    const pl_kv_opts o = {.layers = 1,
                          .heads = 1,
                          .key_dim = 1,
                          .value_dim = 1,
                          .page = PAGE,
                          .dtype = PL_BF16,
                          .check = PL_CHECK_PAGES,
                          .n_pages = n_pages,
                          .dry = true};
    want(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, NULL) == PL_OK, "no device");
    want(pl_kv_open(&kv, dev, &o, NULL) == PL_OK, "no cache");
    want(pl_prefix_open(&prefix, kv, NULL) == PL_OK, "no prefix cache");
}

/* Chains and their keys ------------------------------------------------------------------------------------ */

static chain draw_chain(uint64_t r)
{
    chain c = {.root = below(&r, ROOTS), .n = 1 + below(&r, DEPTH)};
    for (int i = 0; i < DEPTH; i++) c.word[i] = draw(&r) % 4 ? 0 : below(&r, WORDS); /* many share their beginning */
    return c;
}

static void keys_of(const chain *c, pl_key *key)
{
    static const char *const salt[ROOTS] = {"", "a", "ab"};
    pl_key root;
    pl_prefix_root(&root, salt[c->root], (int64_t)strlen(salt[c->root]));
    for (int i = 0; i < c->n; i++) {
        int32_t token[PAGE];
        for (int k = 0; k < PAGE; k++) token[k] = k == PAGE - 1 ? c->word[i] : k; /* they differ in the last alone */
        pl_prefix_next(&key[i], i ? &key[i - 1] : &root, token, PAGE);
    }
}

/* The first n pages of two chains are the same. */
static bool same(const chain *a, const chain *b, int32_t n)
{
    if (a->root != b->root || a->n < n || b->n < n) return false;
    for (int i = 0; i < n; i++)
        if (a->word[i] != b->word[i]) return false;
    return true;
}

static entry *find(const chain *c, int32_t n)
{
    for (int i = 0; i < PAGES; i++)
        if (cache[i].used && cache[i].chain.n == n && same(&cache[i].chain, c, n)) return &cache[i];
    return NULL;
}

/* Pages ----------------------------------------------------------------------------------------------------- */

static int32_t users(int32_t p)
{
    int32_t n = 0;
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; seq[s].used && i < seq[s].chain.n; i++) n += seq[s].g[i].live && seq[s].g[i].h.page == p;
    return n;
}

static bool cached(int32_t p)
{
    for (int i = 0; i < PAGES; i++)
        if (cache[i].used && cache[i].g.live && cache[i].g.h.page == p) return true;
    return false;
}

static int32_t state_of(int32_t p)
{
    if (users(p) || cached(p)) return PL_PAGE_OWNED;
    return damaged[p] ? PL_PAGE_QUARANTINED : PL_PAGE_FREE;
}

static int32_t idle(void)
{
    int32_t n = 0;
    for (int32_t p = 0; p < n_pages; p++) n += cached(p) && users(p) == 0;
    return n;
}

static void check(void)
{
    int32_t n_entries = 0, n_free = 0;
    for (int i = 0; i < PAGES; i++) n_entries += cache[i].used;
    for (int32_t p = 0; p < n_pages; p++) {
        const pl_page *r = &kv->tags.page[p];
        n_free += state_of(p) == PL_PAGE_FREE;
        want_int(r->state, state_of(p), "state");
        want_int(r->refs, users(p) + cached(p), "holders");
        want_int(r->cached, cached(p), "cached");
    }
    want_int(pl_kv_free_pages(kv), n_free, "free pages");
    want_int(pl_prefix_idle(prefix), idle(), "idle pages");
    want_int(prefix->n_entries, n_entries, "entries");
    want_int(prefix->n_evicted, n_evicted, "evicted entries");
}

static void check_all(void)
{
    pl_key key[DEPTH];
    for (int i = 0; i < PAGES; i++) {
        const entry *e = &cache[i];
        if (!e->used) continue;
        const pl_prefix_entry *r = &prefix->entry[e->g.h.page];
        keys_of(&e->chain, key);
        want(r->hold.tag == e->g.h.tag && !memcmp(&r->key, &key[e->chain.n - 1], sizeof *key), "entry of page %d",
             e->g.h.page);
        want_int(pl_tags_valid(&kv->tags, e->g.h), e->g.live, "valid");
        if (e->up >= 0) want(cache[e->up].last > e->last, "a page is older than one that follows it");
    }
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; seq[s].used && i < seq[s].chain.n; i++) {
            const pl_kv_seq *q = &kv->seq[seq[s].real];
            want(q->page[i] == seq[s].g[i].h.page && q->tag[i] == seq[s].g[i].h.tag, "table of sequence %d", s);
        }
    int32_t n = 0; /* by last use */
    for (int32_t i = prefix->oldest; i >= 0; i = prefix->entry[i].newer) {
        const int32_t next = prefix->entry[i].newer;
        const entry *a = NULL, *b = NULL;
        for (int k = 0; k < PAGES; k++) {
            if (cache[k].used && cache[k].g.h.page == i) a = &cache[k];
            if (cache[k].used && cache[k].g.h.page == next) b = &cache[k];
        }
        want(a && (next < 0 || (b && a->last < b->last)), "order of use at page %d", i);
        n++;
    }
    want_int(n, prefix->n_entries, "entries by last use");
}

/* What is done ---------------------------------------------------------------------------------------------- */

static void touch(entry *e) /* and what leads to it, which is then newer */
{
    for (;; e = &cache[e->up]) {
        e->last = ++clock_now;
        if (e->up < 0) return;
    }
}

static void forget(entry *e)
{
    const int32_t at = (int32_t)(e - cache);
    for (int i = 0; i < PAGES; i++)
        if (cache[i].used && cache[i].up == at) cache[i].up = -1;
    e->used = e->g.live = false;
}

/* The pages of a chain that are there; stop: the entry that is damaged, if that is why it ends. */
static int32_t hits(const chain *c, int32_t n, entry **stop)
{
    int32_t k = 0;
    for (; k < n; k++) {
        entry *e = find(c, k + 1);
        if (stop) *stop = e;
        if (!e || !e->g.live) return k;
    }
    if (stop) *stop = NULL;
    return k;
}

static void do_count(const op *o)
{
    const chain c = draw_chain(o->a);
    pl_key key[DEPTH];
    keys_of(&c, key);
    want_int(pl_prefix_count(prefix, key, c.n), hits(&c, c.n, NULL), "cached");
}

static void do_put(const op *o)
{
    mseq *s = &seq[o->a % SEQS];
    if (!s->used) return;
    const int32_t i = (int32_t)(o->b % (uint32_t)s->chain.n);
    pl_key key[DEPTH];
    keys_of(&s->chain, key);
    pl_prefix_put(prefix, &kv->seq[s->real], i, &key[i], i ? &key[i - 1] : NULL);
    entry *e = find(&s->chain, i + 1), *up = i ? find(&s->chain, i) : NULL;
    grant *g = &s->g[i];
    const bool led = i == 0 || (up && up->g.live && up->g.h.page == s->g[i - 1].h.page && s->g[i - 1].live);
    if (!g->live || !led) return;
    if (e && e->g.live) { /* this page, or one that holds the same */
        *g = e->g;
        touch(e);
        return;
    }
    if (e) forget(e);
    for (int k = 0; k < PAGES; k++)
        if (cache[k].used && cache[k].g.h.page == g->h.page) forget(&cache[k]); /* of an owner before */
    for (e = cache; e->used;) e++;
    *e = (entry){.used = true, .chain = s->chain, .g = *g, .up = up ? (int32_t)(up - cache) : -1};
    e->chain.n = i + 1;
    touch(e);
}

/* All pages from the first on, as the scheduler does. */
static void do_publish(const op *o)
{
    const mseq *s = &seq[o->a % SEQS];
    for (uint32_t i = 0; s->used && i < (uint32_t)s->chain.n; i++) do_put(&(op){.a = o->a, .b = i});
}

/* The least recently used first; what is in use counts as used now, with what leads to it. */
static void evict(int32_t n)
{
    bool looked[PAGES] = {false};
    int32_t n_given = 0;
    const int32_t expected = (int32_t)pl_min(n, idle());
    while (n_given < n) {
        int32_t at = -1;
        for (int i = 0; i < PAGES; i++)
            if (cache[i].used && (at < 0 || cache[i].last < cache[at].last)) at = i;
        if (at < 0 || looked[at]) break;
        for (int i = 0; i < PAGES; i++)
            want(!cache[i].used || cache[i].up != at, "model: a page before what follows it");
        if (cache[at].g.live && users(cache[at].g.h.page)) {
            touch(&cache[at]);
            for (int i = at; i >= 0; i = cache[i].up) looked[i] = true;
        } else {
            n_given += cache[at].g.live;
            n_evicted++;
            forget(&cache[at]);
        }
    }
    want_int(n_given, expected, "model: pages that eviction gives");
    want_int(pl_prefix_evict(prefix, n), expected, "pages given back");
}

static void do_evict(const op *o) { evict(o->a % 4 ? 1 + (int32_t)(o->b % 3) : n_pages); }

static void do_start(const op *o)
{
    mseq *s = &seq[o->a % SEQS];
    if (s->used) return;
    *s = (mseq){.chain = draw_chain(o->b)};
    const int32_t n = s->chain.n;
    pl_key key[DEPTH];
    pl_hold hold[DEPTH];
    keys_of(&s->chain, key);
    want(pl_kv_seq_new(kv, 1, &s->real, NULL) == PL_OK, "no sequence");
    entry *stale;
    const int32_t k = hits(&s->chain, n, &stale);
    want_int(pl_prefix_take(prefix, key, n, 1, hold), k, "taken");
    if (stale) forget(stale);
    for (int32_t i = k - 1; i >= 0; i--) {
        entry *e = find(&s->chain, i + 1);
        want(hold[i].page == e->g.h.page && hold[i].tag == e->g.h.tag, "page %d of a chain is %d", i, hold[i].page);
        s->g[i] = e->g;
        e->last = ++clock_now;
    }
    if (k) want(pl_kv_adopt(kv, s->real, hold, k, NULL) == PL_OK, "adopt");
    s->used = true;
    s->chain.n = k;
    if (n == k) return;
    /* the rest is computed; pages come from the cache when they have to */
    const int32_t need = n - k, there = (int32_t)pl_kv_free_pages(kv) + idle();
    if (there >= need) {
        const int32_t missing = need - (int32_t)pl_kv_free_pages(kv);
        if (missing > 0) evict(missing);
    }
    const int rc = pl_kv_begin(kv, &(pl_span){s->real, need * PAGE}, 1, NULL);
    want_int(rc, there >= need ? PL_OK : PL_EPAGES, "begin");
    if (rc == PL_OK) {
        want_int(pl_kv_commit(kv, NULL), 0, "commit");
        for (int32_t i = k; i < n; i++) s->g[i] = (grant){pl_kv_hold(&kv->seq[s->real], i), true};
        s->chain.n = n;
    }
    if (s->chain.n) return;
    pl_kv_seq_free(kv, s->real);
    s->used = false;
}

static void do_end(const op *o)
{
    mseq *s = &seq[o->a % SEQS];
    if (!s->used) return;
    pl_kv_seq_free(kv, s->real);
    s->used = false;
}

static void do_condemn(const op *o)
{
    const int32_t p = (int32_t)(o->a % (uint32_t)n_pages);
    pl_tags_condemn(&kv->tags, p);
    if (state_of(p) != PL_PAGE_OWNED) return;
    for (int i = 0; i < PAGES; i++)
        if (cache[i].used && cache[i].g.h.page == p) cache[i].g.live = false;
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; seq[s].used && i < seq[s].chain.n; i++)
            if (seq[s].g[i].h.page == p) seq[s].g[i].live = false;
    damaged[p] = true;
}

static void do_readmit(const op *o)
{
    (void)o;
    int32_t n = 0;
    for (int32_t p = 0; p < n_pages; p++)
        if (state_of(p) == PL_PAGE_QUARANTINED) damaged[p] = false, n++;
    want_int(pl_kv_readmit(kv), n, "readmitted");
}

/* Pages that somebody took and nobody knows of, and holders more than there are, are found. */
static void do_reclaim(const op *o)
{
    int32_t n = 0;
    while (n < (int32_t)(o->a % 3) && pl_tags_take(&kv->tags, 99).page >= 0) n++;
    const entry *x = &cache[o->b % PAGES];
    if (x->used && x->g.live) want(pl_tags_keep(&kv->tags, x->g.h, 99), "keep");
    want_int(pl_kv_reclaim(kv, NULL, 0), n, "reclaimed");
}

static void close_all(void)
{
    for (uint32_t i = 0; i < SEQS; i++) do_end(&(op){.a = i});
    do_readmit(NULL);
    check();
    pl_prefix_close(prefix);
    want_int(pl_kv_free_pages(kv), n_pages, "free pages at the end");
    pl_kv_close(kv);
    pl_dev_close(dev);
}

int main(void)
{
    static const model_kind kind[] = {
        {"start", 24, do_start},    {"publish", 16, do_publish}, {"put", 8, do_put},
        {"end", 16, do_end},        {"count", 12, do_count},     {"evict", 8, do_evict},
        {"condemn", 1, do_condemn}, {"readmit", 2, do_readmit},  {"reclaim", 2, do_reclaim},
    };
    const model m = {"prefix cache", kind, sizeof kind / sizeof *kind, open_all, check, check_all, close_all};
    return model_main(&m);
}
