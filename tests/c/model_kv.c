/* Pages and sequences against a model: who holds which page, what every committed position holds, which tags are valid.
 * Holds are grants in arrays here, counted anew after every operation; the state of a page follows from its holders, its
 * copies and its damage. The contents are numbers of their own for every position ever written. */
#include "kv.h"
#include "model.h"

enum { PAGE = 16, PAGES = 24, SEQS = 8, HOLDS = 20, COPIES = 10, LAYERS = 2, LEN = 2 * PAGE * PAGES };

typedef struct grant {
    pl_hold h;
    bool live; /* the page is still this holder's */
} grant;

typedef struct mseq {
    bool used, bad; /* bad: the running step may not touch its pages */
    int32_t real, n, step;
    int64_t owner, len;
    grant g[2 * PAGES];
    uint32_t value[LEN];
} mseq;

typedef struct mpage {
    int32_t readers, writers;
    bool damaged, sealed, dirty; /* dirty: a bit of the contents was turned */
    bool changed;                /* came to an owner or went from one in this operation */
    uint64_t tag, flip;          /* flip: bits of the tag in device memory that were turned */
    int64_t owner;               /* who was given it last */
} mpage;

static pl_dev *dev;
static pl_kv *kv;
static int32_t n_pages, n_spans, span_seq[4], n_copies;
static uint32_t stamp;
static int64_t owner;
static uint64_t newest, n_refused;
static mpage page[PAGES];
static mseq seq[SEQS];
static grant hold[HOLDS];
static struct {
    pl_hold h;
    bool writes;
} copy[COPIES];

static void open_all(uint64_t seed)
{
    pl_kv_opts o = {.layers = LAYERS,
                    .heads = 1,
                    .key_dim = 2,
                    .value_dim = 1,
                    .page = PAGE,
                    .dtype = PL_F32,
                    .check = seed % 3 ? PL_CHECK_DIGESTS : PL_CHECK_PAGES,
                    .n_pages = 2 + (int32_t)(seed * 7 % (PAGES - 1))};
    want(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, NULL) == PL_OK, "no device");
    want(pl_kv_open(&kv, dev, &o, NULL) == PL_OK, "no cache");
    n_pages = (int32_t)o.n_pages;
    for (int32_t i = 0; i < n_pages; i++) {
        page[i].tag = kv->tags.page[i].tag;
        newest = (uint64_t)pl_max((int64_t)newest, (int64_t)page[i].tag);
    }
}

/* The model of pages -------------------------------------------------------------------------------------- */

static int32_t refs(int32_t p)
{
    int32_t n = 0;
    for (int i = 0; i < HOLDS; i++) n += hold[i].live && hold[i].h.page == p;
    for (int s = 0; s < SEQS; s++)
        for (int32_t i = 0; i < seq[s].n; i++) n += seq[s].g[i].live && seq[s].g[i].h.page == p;
    return n;
}

static bool copied(int32_t p) { return page[p].readers + page[p].writers > 0; }

static int32_t state_of(int32_t p, int32_t n_refs)
{
    if (n_refs) return PL_PAGE_OWNED;
    return page[p].damaged || copied(p) ? PL_PAGE_QUARANTINED : PL_PAGE_FREE;
}

static int32_t count(int32_t state)
{
    int32_t n = 0;
    for (int32_t p = 0; p < n_pages; p++) n += state_of(p, refs(p)) == state;
    return n;
}

static void make_free(int32_t p)
{
    page[p].damaged = page[p].sealed = page[p].dirty = false;
    page[p].changed = true;
    page[p].flip = 0;
}

static void lose(grant *g)
{
    const int32_t p = g->h.page;
    if (!g->live) return;
    g->live = false;
    if (refs(p)) return;
    page[p].changed = true;
    page[p].flip = 0;
    if (!copied(p)) make_free(p);
}

static void condemn(int32_t p)
{
    if (refs(p) == 0) return;
    for (int i = 0; i < HOLDS; i++)
        if (hold[i].h.page == p) hold[i].live = false;
    for (int s = 0; s < SEQS; s++)
        for (int32_t i = 0; i < seq[s].n; i++)
            if (seq[s].g[i].h.page == p) seq[s].g[i].live = false;
    page[p].damaged = page[p].changed = true;
    page[p].flip = 0;
}

/* A page that was free and has a new owner: which one is not the model's business. */
static grant given(pl_hold h, int64_t to)
{
    want(h.page >= 0 && h.page < n_pages, "page %d was given out", h.page);
    want(state_of(h.page, refs(h.page)) == PL_PAGE_FREE, "page %d was given out, and is not free", h.page);
    page[h.page].changed = true;
    page[h.page].flip = 0;
    page[h.page].owner = to;
    return (grant){h, true};
}

static void check(void)
{
    int32_t n_state[3] = {0};
    const uint64_t before = newest;
    for (int32_t i = 0; i < n_pages; i++) {
        const pl_page *p = &kv->tags.page[i];
        mpage *m = &page[i];
        const int32_t n = refs(i);
        n_state[state_of(i, n)]++;
        want_int(p->state, state_of(i, n), "state");
        want_int(p->refs, n, "holders");
        want_int(p->readers, m->readers, "readers");
        want_int(p->writers, m->writers, "writers");
        want_int(p->damaged, m->damaged, "damaged");
        want_int(p->has_digest, m->sealed, "has a digest");
        want((p->tag != m->tag) == m->changed, "page %d: tag %s", i, m->changed ? "as before" : "changed");
        if (m->changed) want(p->tag > before && p->tag % 2 == 0, "page %d: its tag is an old one", i);
        for (int32_t k = 0; m->changed && k < i; k++) want(kv->tags.page[k].tag != p->tag, "a tag twice");
        m->tag = p->tag;
        m->changed = false;
        newest = (uint64_t)pl_max((int64_t)newest, (int64_t)m->tag);
        want(kv->tags.tag[i] == ((m->tag | (m->writers > 0)) ^ m->flip), "page %d: tag in device memory", i);
        if (n) want(p->past[0].owner == m->owner && p->past[0].tag == m->tag, "page %d: history", i);
    }
    for (int s = 0; s < 3; s++) want_int(kv->tags.n_state[s], n_state[s], "pages in a state");
    want_int(kv->tags.n_free, n_state[PL_PAGE_FREE], "free list");
    want_int(pl_kv_free_pages(kv), n_state[PL_PAGE_FREE], "free pages");
    want_int(kv->tags.n_idle, 0, "idle pages");
    want_int(kv->tags.n_refused, n_refused, "pages refused");
    for (int i = 0; i < HOLDS; i++)
        if (hold[i].live) want(pl_tags_valid(&kv->tags, hold[i].h), "hold %d is not valid", i);
}

/* Sequences ------------------------------------------------------------------------------------------------ */

static uint32_t word(const void *row, int i)
{
    uint32_t x;
    memcpy(&x, (const uint8_t *)row + 4 * i, 4);
    return x;
}

static void check_contents(const mseq *s)
{
    const pl_kv_seq *r = &kv->seq[s->real];
    for (int64_t pos = 0; pos < s->len; pos++) {
        const grant *g = &s->g[pos / PAGE];
        if (!g->live || page[g->h.page].dirty || page[g->h.page].writers) continue;
        for (int l = 0; l < LAYERS; l++) {
            const uint8_t *k = pl_kv_key(kv, r, l, pos), *v = pl_kv_value(kv, r, l, pos);
            const uint32_t x = s->value[pos] * 8 + (uint32_t)l;
            want(word(k, 0) == x && word(k, 1) == ~x && word(v, 0) == x + 4,
                 "sequence %d, position %lld of %lld, layer %d: %u, the model says %u", s->real, (long long)pos,
                 (long long)s->len, l, word(k, 0), x);
        }
    }
}

static void check_all(void)
{
    pl_kv_pages n;
    pl_kv_count(kv, &n);
    int32_t in_flight = 0;
    for (int32_t i = 0; i < n_pages; i++) in_flight += copied(i);
    want_int(n.free + n.owned + n.quarantined, n_pages, "sum of pages");
    want_int(n.in_flight, in_flight, "pages in flight");
    for (int i = 0; i < SEQS; i++) {
        const mseq *s = &seq[i];
        if (!s->used) continue;
        const pl_kv_seq *r = &kv->seq[s->real];
        want_int(r->used, 1, "used");
        want_int(pl_kv_seq_len(kv, s->real), s->len, "length");
        want_int(r->n_pages, s->n, "pages of a sequence");
        want_int(r->step_n, s->step, "tokens of the step");
        for (int32_t k = 0; k < s->n; k++) {
            const pl_hold h = pl_kv_hold(r, k);
            want(h.page == s->g[k].h.page && h.tag == s->g[k].h.tag, "sequence %d: entry %d of its table", s->real, k);
            want_int(pl_tags_valid(&kv->tags, h), s->g[k].live, "valid");
        }
        check_contents(s);
    }
}

static void do_new(const op *o)
{
    mseq *s = &seq[o->a % SEQS];
    if (s->used) return;
    memset(s, 0, sizeof *s);
    s->used = true;
    s->owner = ++owner;
    want(pl_kv_seq_new(kv, s->owner, &s->real, NULL) == PL_OK, "no sequence");
    for (int i = 0; i < SEQS; i++) want(&seq[i] == s || !seq[i].used || seq[i].real != s->real, "a sequence twice");
}

static void do_free(const op *o)
{
    mseq *s = &seq[o->a % SEQS];
    if (!s->used || s->step) return;
    pl_kv_seq_free(kv, s->real);
    if (o->b % 4 == 0) pl_kv_seq_free(kv, s->real); /* nothing more */
    s->used = false;
    for (int32_t i = s->n - 1; i >= 0; i--) {
        n_refused += !s->g[i].live;
        lose(&s->g[i]);
    }
    s->n = 0;
}

static void do_fork(const op *o)
{
    mseq *s = &seq[o->a % SEQS], *d = &seq[o->b % SEQS];
    if (!s->used || d->used || s == d) return;
    int32_t n_live = 0, real = -1;
    while (n_live < s->n && s->g[n_live].live) n_live++;
    const int rc = pl_kv_seq_fork(kv, s->real, owner + 1, &real, NULL);
    want_int(rc, s->step ? PL_EARG : n_live < s->n ? PL_ETAG : PL_OK, "fork");
    if (s->step == 0) {
        owner++;
        for (int32_t i = 0; i < n_live; i++) page[s->g[i].h.page].owner = owner;
    }
    if (rc < 0) return;
    *d = *s;
    d->real = real;
    d->owner = owner;
}

/* Steps ----------------------------------------------------------------------------------------------------- */

static int32_t pages_of(int64_t n) { return (int32_t)((n + PAGE - 1) / PAGE); }

static bool must_copy(const mseq *s)
{
    if (s->len % PAGE == 0) return false;
    const grant *last = &s->g[s->n - 1];
    return last->live && refs(last->h.page) > 1 && page[last->h.page].writers == 0;
}

static bool shown(const grant *g) { return g->live && page[g->h.page].writers == 0 && page[g->h.page].flip == 0; }

static bool all_shown(const mseq *s)
{
    for (int32_t i = 0; i < s->n; i++)
        if (!shown(&s->g[i])) return false;
    return true;
}

static void write_step(mseq *s)
{
    const pl_kv_seq *r = &kv->seq[s->real];
    for (int64_t pos = s->len; pos < s->len + s->step; pos++) {
        const int32_t p = s->g[pos / PAGE].h.page;
        want(refs(p) == 1 && !page[p].sealed, "sequence %d writes to page %d, which has %d holders", s->real, p,
             refs(p));
        s->value[pos] = ++stamp;
        for (int l = 0; l < LAYERS; l++) {
            const uint32_t x = s->value[pos] * 8 + (uint32_t)l, k[] = {x, ~x}, v = x + 4;
            memcpy(pl_kv_key(kv, r, l, pos), k, sizeof k);
            memcpy(pl_kv_value(kv, r, l, pos), &v, sizeof v);
        }
    }
}

static void do_begin(const op *o)
{
    uint64_t r = o->c;
    pl_span span[4];
    int32_t n = 0, want_n = 1 + below(&r, 4), who[4];
    int64_t need = 0;
    bool twice = false, none = false;
    if (n_spans) return;
    for (int32_t k = 0; k < want_n; k++) {
        const int32_t i = below(&r, SEQS);
        int32_t tokens = 1 + (draw(&r) % 4 ? below(&r, 5) : below(&r, 60));
        if (!seq[i].used && draw(&r) % 64) continue;
        if (draw(&r) % 128 == 0) tokens = 0;
        bool seen = false;
        for (int32_t j = 0; j < n; j++) seen = seen || who[j] == i;
        if (seen && draw(&r) % 16) continue;
        twice = twice || seen;
        none = none || !seq[i].used || tokens < 1;
        who[n] = i;
        span[n++] = (pl_span){seq[i].used ? seq[i].real : 1000 + i, tokens};
        if (seq[i].used) need += pages_of(seq[i].len + tokens) - seq[i].n + must_copy(&seq[i]);
    }
    if (n == 0) return;
    const int rc = pl_kv_begin(kv, span, n, NULL);
    if (none || twice) {
        want(rc < 0, "a step with a sequence that is not there, or twice");
        return;
    }
    want_int(rc, need > count(PL_PAGE_FREE) ? PL_EPAGES : PL_OK, "begin");
    if (rc < 0) return;
    n_spans = n;
    for (int32_t k = 0; k < n; k++) {
        mseq *s = &seq[span_seq[k] = who[k]];
        const pl_kv_seq *q = &kv->seq[s->real];
        const int32_t pages = pages_of(s->len + span[k].n);
        s->step = span[k].n;
        want_int(q->n_pages, pages, "pages of a sequence in a step");
        if (must_copy(s)) {
            const grant own = given(pl_kv_hold(q, s->n - 1), s->owner);
            lose(&s->g[s->n - 1]);
            s->g[s->n - 1] = own;
        }
        while (s->n < pages) s->g[s->n] = given(pl_kv_hold(q, s->n), s->owner), s->n++;
    }
    for (int32_t k = 0; k < n; k++) {
        mseq *s = &seq[who[k]];
        s->bad = !all_shown(s);
        want_int(kv->bad[k], s->bad, "refused as the step begins");
        if (!s->bad) write_step(s);
    }
}

static void end_step(bool commit)
{
    for (int32_t k = 0; k < n_spans; k++) {
        mseq *s = &seq[span_seq[k]];
        if (commit && !s->bad) {
            for (int64_t i = s->len / PAGE; i < (s->len + s->step) / PAGE; i++)
                page[s->g[i].h.page].sealed = kv->o.check == PL_CHECK_DIGESTS;
            s->len += s->step;
        }
        s->step = 0;
        while (s->n > pages_of(s->len)) {
            grant *g = &s->g[--s->n];
            n_refused += !g->live;
            lose(g);
        }
    }
    n_spans = 0;
}

static void do_commit(const op *o)
{
    (void)o;
    int32_t n_bad = 0, n_mismatches = 0;
    if (n_spans == 0) return;
    for (int32_t k = 0; k < n_spans; k++) {
        mseq *s = &seq[span_seq[k]];
        s->bad = s->bad || !all_shown(s);
        n_bad += s->bad;
    }
    want_int(pl_kv_commit(kv, NULL), n_bad, "refused spans");
    const pl_mismatch *m;
    const int32_t n = pl_kv_mismatches(kv, &m);
    for (int32_t k = 0; k < n_spans; k++) {
        mseq *s = &seq[span_seq[k]];
        for (int32_t i = 0; s->bad && i < s->n; i++) {
            if (shown(&s->g[i])) continue;
            want(n_mismatches < n && m->page == s->g[i].h.page && m->index == i && m->owner == s->owner &&
                     m->expected == s->g[i].h.tag,
                 "mismatch %d of %d", n_mismatches, n);
            n_mismatches++, m++;
            if (s->g[i].live && page[s->g[i].h.page].flip) condemn(s->g[i].h.page);
        }
    }
    want_int(n, n_mismatches, "mismatches");
    end_step(true);
    if (o->a % 8 == 0) check_all();
}

static void do_abort(const op *o)
{
    (void)o;
    pl_kv_abort(kv);
    end_step(false);
}

/* Holders beside the sequences, copies, damage --------------------------------------------------------------- */

static grant *any_grant(const op *o)
{
    mseq *s = &seq[o->b % SEQS];
    if (o->a % 3 == 0 && s->n) return &s->g[o->c % (uint32_t)s->n];
    return &hold[o->b % HOLDS];
}

/* Whether the tag opens the page; a hold that was given back does too, while others hold the page. */
static bool opens(const grant *g)
{
    return g->live || (g->h.tag && page[g->h.page].tag == g->h.tag && refs(g->h.page));
}

static void do_take(const op *o)
{
    grant *g = &hold[o->a % HOLDS];
    if (g->live) return;
    const bool none = count(PL_PAGE_FREE) == 0;
    const pl_hold h = pl_tags_take(&kv->tags, ++owner);
    want_int(h.page < 0, none, "no page");
    if (!none) *g = given(h, owner);
}

static void do_keep(const op *o)
{
    const grant *g = any_grant(o);
    grant *to = &hold[o->c / 64 % HOLDS];
    if (to->live || g->h.tag == 0) return;
    const bool ok = opens(g);
    want_int(pl_tags_keep(&kv->tags, g->h, owner + 1), ok, "keep");
    if (!ok) return;
    page[g->h.page].owner = ++owner;
    *to = (grant){g->h, true};
}

static void do_drop(const op *o)
{
    grant *g = o->a % 4 ? &hold[o->b % HOLDS] : any_grant(o);
    const bool own = g >= hold && g < hold + HOLDS;
    if (g->h.tag == 0 || (g->live ? !own : opens(g))) return; /* nobody gives back what others hold */
    want_int(pl_tags_drop(&kv->tags, g->h), g->live, "drop");
    n_refused += !g->live;
    lose(g);
}

/* What a copy writes is no use before it is complete: until then all bits of the page are turned. */
static void turn(int32_t p)
{
    uint8_t *x = pl_kv_page(kv, p);
    for (int64_t i = 0; i < kv->page_bytes; i++) x[i] ^= 0xff;
}

static void do_copy(const op *o)
{
    const grant *g = any_grant(o);
    if (n_copies == COPIES || g->h.tag == 0) return;
    const bool writes = o->c / 1024 % 2, ok = opens(g);
    const pl_hold h = pl_tags_copy_begin(&kv->tags, g->h, writes);
    want_int(h.page >= 0, ok, "copy");
    if (!ok) return;
    *(writes ? &page[h.page].writers : &page[h.page].readers) += 1;
    page[h.page].flip = 0;
    copy[n_copies].h = h;
    copy[n_copies++].writes = writes;
    if (writes) turn(h.page);
}

static void do_copied(const op *o)
{
    if (n_copies == 0) return;
    const uint32_t i = o->a % (uint32_t)n_copies;
    const pl_hold h = copy[i].h;
    const bool writes = copy[i].writes;
    copy[i] = copy[--n_copies];
    if (writes) turn(h.page);
    want_int(pl_tags_copy_end(&kv->tags, h, writes), refs(h.page) && page[h.page].tag == h.tag, "end of a copy");
    *(writes ? &page[h.page].writers : &page[h.page].readers) -= 1;
    page[h.page].flip = 0;
    if (refs(h.page) == 0 && !copied(h.page) && !page[h.page].damaged) make_free(h.page);
}

static void do_condemn(const op *o)
{
    const int32_t p = (int32_t)(o->a % (uint32_t)n_pages);
    pl_tags_condemn(&kv->tags, p);
    condemn(p);
}

static void do_readmit(const op *o)
{
    (void)o;
    int32_t n = 0;
    for (int32_t p = 0; p < n_pages; p++)
        if (refs(p) == 0 && page[p].damaged && !copied(p)) make_free(p), n++;
    want_int(pl_kv_readmit(kv), n, "readmitted");
}

static void do_flip_tag(const op *o)
{
    const int32_t p = (int32_t)(o->a % (uint32_t)n_pages);
    const uint64_t bit = 1ull << (40 + o->b % 20);
    page[p].flip ^= bit;
    kv->tags.tag[p] ^= bit;
}

static void do_flip_page(const op *o)
{
    const int32_t p = (int32_t)(o->a % (uint32_t)n_pages);
    if (!page[p].sealed || page[p].dirty || refs(p) == 0) return;
    page[p].dirty = true;
    pl_kv_page(kv, p)[o->b % (uint32_t)kv->page_bytes] ^= (uint8_t)(1 << o->c % 8);
}

static void do_scrub(const op *o)
{
    const int32_t n = o->a % 4 ? 1 + (int32_t)(o->b % 3) : n_pages;
    int32_t at = kv->scrub_at, n_damaged = 0;
    if (kv->o.check == PL_CHECK_DIGESTS)
        for (int32_t looked = 0, left = n_pages; looked < n && left > 0; left--, at = (at + 1) % n_pages) {
            if (refs(at) == 0 || !page[at].sealed || page[at].writers) continue;
            looked++;
            n_damaged += page[at].dirty;
            if (page[at].dirty) condemn(at);
        }
    want_int(pl_kv_scrub(kv, n), n_damaged, "damaged pages");
    want_int(kv->scrub_at, at, "where the scrub is");
}

/* All holders go: no page is lost. */
static void close_all(void)
{
    if (n_spans) do_abort(&(op){0});
    while (n_copies) do_copied(&(op){0});
    for (uint32_t i = 0; i < SEQS; i++) do_free(&(op){.a = i});
    for (int i = 0; i < HOLDS; i++)
        if (hold[i].live) {
            want(pl_tags_drop(&kv->tags, hold[i].h), "drop");
            lose(&hold[i]);
        }
    do_readmit(NULL);
    check();
    want_int(pl_kv_free_pages(kv), n_pages, "free pages at the end");
    pl_kv_close(kv);
    pl_dev_close(dev);
}

int main(void)
{
    static const model_kind kind[] = {
        {"take", 8, do_take},       {"keep", 6, do_keep},         {"drop", 14, do_drop},
        {"new", 8, do_new},         {"fork", 8, do_fork},         {"free", 7, do_free},
        {"begin", 30, do_begin},    {"commit", 24, do_commit},    {"abort", 4, do_abort},
        {"copy", 5, do_copy},       {"copied", 7, do_copied},     {"condemn", 1, do_condemn},
        {"readmit", 3, do_readmit}, {"flip tag", 1, do_flip_tag}, {"flip page", 1, do_flip_page},
        {"scrub", 2, do_scrub},
    };
    const model m = {"pages and sequences", kind, sizeof kind / sizeof *kind, open_all, check, check_all, close_all};
    return model_main(&m);
}
