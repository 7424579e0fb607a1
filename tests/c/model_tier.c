/* The tiers behind the prefix cache against a model: which keys each tier holds, in what order it gives them up, what moves
 * from host memory to the disk, which pages are under way and what becomes of them. The worker is held back while operations
 * are done, and then does all that was issued: loads first, then the rest, each in order. Slots are damaged, pages are
 * condemned while they are copied, tiers are closed and opened again. Whatever is cached holds what its key says. */
#include "model.h"
#include "tier_impl.h"
#include <sys/stat.h>

enum { PAGE = 16, DEPTH = 4, ROOTS = 2, A_ROOT = 30, NODES = ROOTS * A_ROOT, PAGES = 20, SEQS = 3, CAP = 10 };
enum { JOBS = 3 * PAGES };

/* A node is a key: a way of two words from a root. Level l of a root begins at 2^l - 2. */
typedef struct way {
    int32_t n, node[DEPTH];
} way;

typedef struct grant {
    pl_hold h;
    bool live;
} grant;

typedef struct mslot {
    int32_t node; /* -1: empty */
    bool full, bad;
    int32_t pins;
    uint64_t last;
} mslot;

typedef struct mtable {
    mslot slot[CAP];
    int32_t cap;
} mtable;

typedef struct mjob {
    int32_t kind, node;
    grant g;
    mslot *slot; /* that it fills or reads */
    bool bad;    /* a demotion: of what it reads */
    int32_t at;  /* slot number of the file that it writes; -1: none */
    uint64_t stamp;
} mjob;

typedef struct jobs {
    mjob job[JOBS];
    int32_t n;
} jobs;

static pl_dev *dev;
static pl_kv *kv;
static pl_prefix *prefix;
static pl_tier *tier;
static pl_key key[NODES];
static char dir[32], path[64];
static int32_t n_pages, n_spills, n_missed, n_damaged, n_hits;
static uint64_t clock_now, stamp;
static grant cached[NODES];
static struct {
    bool used;
    int32_t real;
    way w;
    grant g[DEPTH];
} seq[SEQS];
static mtable host, disk;
static struct {
    int32_t node;
    bool bad;
    uint64_t stamp;
} on_file[CAP];
static jobs urgent, calm;
static bool damaged[PAGES];

static int32_t up(int32_t node) /* -1: a root's */
{
    const int32_t i = node % A_ROOT;
    return i < 2 ? -1 : node - i + (i + 2) / 2 - 2;
}

static way draw_way(uint64_t r)
{
    way w = {.n = 1 + below(&r, DEPTH)};
    const int32_t root = below(&r, ROOTS);
    for (int32_t i = 0, at = 0; i < w.n; i++) {
        at = 2 * at + (draw(&r) % 3 == 0); /* many share their beginning */
        w.node[i] = root * A_ROOT + (2 << i) - 2 + at;
    }
    return w;
}

static void make_keys(void)
{
    for (int32_t i = 0; i < NODES; i++) {
        const int32_t root = i / A_ROOT, token[PAGE] = {[PAGE - 1] = i};
        pl_key first;
        pl_prefix_root(&first, &root, sizeof root);
        pl_prefix_next(&key[i], up(i) < 0 ? &first : &key[up(i)], token, PAGE);
    }
}

static void keys_of(const way *w, pl_key *out)
{
    for (int32_t i = 0; i < w->n; i++) out[i] = key[w->node[i]];
}

static bool holds(int32_t page, int32_t node)
{
    const uint32_t *word = (const uint32_t *)pl_kv_page(kv, page);
    for (int64_t i = 0; i < kv->page_bytes / 4; i++)
        if (word[i] != (uint32_t)(node * 64 + i) * 2654435761u) return false;
    return true;
}

static void write_page(int32_t page, int32_t node)
{
    uint32_t *word = (uint32_t *)pl_kv_page(kv, page);
    for (int64_t i = 0; i < kv->page_bytes / 4; i++) word[i] = (uint32_t)(node * 64 + i) * 2654435761u;
}

static void open_tier(void)
{
    const pl_tier_opts o = {.host_bytes = host.cap * kv->page_bytes,
                            .disk_bytes = disk.cap * 8192,
                            .dir = disk.cap ? dir : NULL,
                            .model = "m"};
    pl_err err = {0};
    want(pl_tier_open(&tier, prefix, &o, &err) == PL_OK, "no tier: %s", err.msg);
    pl_tier_stall(tier, true);
    n_missed = n_damaged = n_hits = 0;
}

static void open_all(uint64_t seed)
{
    uint64_t r = seed;
    n_pages = 3 + below(&r, PAGES - 2);
    const pl_kv_opts o = {.layers = 1,
                          .heads = 1,
                          .key_dim = 1,
                          .value_dim = 1,
                          .page = PAGE,
                          .dtype = PL_BF16,
                          .check = PL_CHECK_PAGES,
                          .n_pages = n_pages};
    want(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, NULL) == PL_OK, "no device");
    want(pl_kv_open(&kv, dev, &o, NULL) == PL_OK, "no cache");
    want(pl_prefix_open(&prefix, kv, NULL) == PL_OK, "no prefix cache");
    host.cap = draw(&r) % 3 ? 1 + below(&r, CAP) : 0;
    disk.cap = host.cap == 0 || draw(&r) % 3 ? 1 + below(&r, CAP) : 0;
    for (int i = 0; i < CAP; i++) host.slot[i].node = disk.slot[i].node = on_file[i].node = -1;
    strcpy(dir, "/tmp/perilune-model-XXXXXX");
    want(mkdtemp(dir) != NULL, "no directory");
    snprintf(path, sizeof path, "%s/perilune.pages", dir);
    make_keys();
    open_tier();
}

/* Tables of slots ------------------------------------------------------------------------------------------------ */

static mslot *find(mtable *t, int32_t node)
{
    for (int32_t i = 0; i < t->cap; i++)
        if (t->slot[i].node == node) return &t->slot[i];
    return NULL;
}

static bool has(int32_t node) { return find(&host, node) || find(&disk, node); }

static mslot *full(int32_t node)
{
    mslot *s = find(&host, node);
    if (s && s->full) return s;
    s = find(&disk, node);
    return s && s->full ? s : NULL;
}

static mslot *choose(mtable *t)
{
    mslot *best = NULL;
    for (int32_t i = 0; i < t->cap; i++) {
        mslot *s = &t->slot[i];
        if (s->node < 0) return s;
        if (s->full && s->pins == 0 && (!best || s->last < best->last)) best = s;
    }
    return best;
}

static void fill(mslot *s, int32_t node) { *s = (mslot){.node = node, .last = ++clock_now}; }
static void drop(mslot *s) { *s = (mslot){.node = -1}; }

static int32_t n_full(const mtable *t)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->cap; i++) n += t->slot[i].node >= 0 && t->slot[i].full;
    return n;
}

/* Pages ------------------------------------------------------------------------------------------------------------ */

static int32_t copies(int32_t page)
{
    int32_t n = 0;
    for (int32_t i = 0; i < urgent.n; i++) n += urgent.job[i].g.h.page == page;
    for (int32_t i = 0; i < calm.n; i++) n += calm.job[i].g.h.page == page;
    return n;
}

static bool is_cached(int32_t page)
{
    for (int32_t i = 0; i < NODES; i++)
        if (cached[i].live && cached[i].h.page == page) return true;
    return false;
}

static int32_t owners(int32_t page)
{
    int32_t n = is_cached(page);
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; seq[s].used && i < seq[s].w.n; i++) n += seq[s].g[i].live && seq[s].g[i].h.page == page;
    for (int32_t i = 0; i < urgent.n; i++) n += urgent.job[i].g.live && urgent.job[i].g.h.page == page;
    return n;
}

static bool idle(int32_t page) { return is_cached(page) && owners(page) == 1 && copies(page) == 0; }

static int32_t n_idle(void)
{
    int32_t n = 0;
    for (int32_t p = 0; p < n_pages; p++) n += idle(p);
    return n;
}

static void check(void)
{
    int32_t n_free = 0;
    for (int32_t p = 0; p < n_pages; p++) {
        const int32_t n = owners(p);
        const int32_t state = n ? PL_PAGE_OWNED : copies(p) || damaged[p] ? PL_PAGE_QUARANTINED : PL_PAGE_FREE;
        const pl_page *r = &kv->tags.page[p];
        n_free += state == PL_PAGE_FREE;
        want_int(r->state, state, "state");
        want_int(r->refs, n, "holders");
        want_int(r->readers + r->writers, copies(p), "copies");
    }
    want_int(pl_kv_free_pages(kv), n_free, "free pages");
    want_int(pl_prefix_idle(prefix), n_idle(), "idle pages");
    want_int(pl_tier_copies(tier), urgent.n + calm.n, "copies under way");
    pl_metrics m = {0};
    pl_tier_metrics(tier, &m);
    want_int(m.host.pages, n_full(&host), "pages in host memory");
    want_int(m.disk.pages, n_full(&disk), "pages on disk");
    want_int(m.spill_missed, n_missed, "evicted pages that no tier has");
    want_int(m.host.damaged + m.disk.damaged, n_damaged, "damaged pages");
    want_int(m.host.hits + m.disk.hits, n_hits, "pages that came back");
    want_int(m.disk.errors, 0, "errors");
}

static void check_all(void)
{
    for (int32_t i = 0; i < NODES; i++) {
        const pl_hold h = pl_prefix_hold(prefix, &key[i]);
        want_int(h.page >= 0, cached[i].live, "cached");
        if (h.page >= 0) want(holds(h.page, i), "page %d does not hold what its key says", h.page);
        want_int(pl_tier_has(tier, &key[i]), has(i), "in a tier");
        const int32_t at = tier_find(&tier->host, &key[i]);
        const mslot *s = find(&host, i);
        want_int(at >= 0, s != NULL, "in host memory");
        if (s) want_int(tier->host.slot[at].pins, s->pins, "copies from a slot");
    }
}

/* What is done ------------------------------------------------------------------------------------------------------- */

static void evict(int32_t n)
{
    const int32_t expected = (int32_t)pl_min(n, n_idle());
    int32_t n_gone = 0;
    bool was_idle[NODES];
    for (int32_t i = 0; i < NODES; i++) was_idle[i] = cached[i].live && idle(cached[i].h.page);
    want_int(pl_prefix_evict(prefix, n), expected, "evicted");
    for (int32_t i = 0; i < NODES; i++) {
        if (!cached[i].live || pl_prefix_hold(prefix, &key[i]).page >= 0) continue;
        want(was_idle[i], "node %d was not idle", i);
        cached[i].live = false;
        n_missed += !has(i);
        n_gone++;
    }
    want_int(n_gone, expected, "entries that went");
}

static void do_evict(const op *o) { evict(o->a % 4 ? 1 + (int32_t)(o->b % 3) : n_pages); }

static void do_end(const op *o)
{
    const int s = (int)(o->a % SEQS);
    if (seq[s].used) pl_kv_seq_free(kv, seq[s].real);
    seq[s].used = false;
}

static void do_compute(const op *o)
{
    const int s = (int)(o->a % SEQS);
    const way w = draw_way(o->b);
    pl_key k[DEPTH];
    pl_hold hold[DEPTH];
    int32_t hits = 0;
    do_end(o);
    keys_of(&w, k);
    while (hits < w.n && cached[w.node[hits]].live) hits++;
    want(pl_kv_seq_new(kv, 7, &seq[s].real, NULL) == PL_OK, "no sequence");
    want_int(pl_prefix_take(prefix, k, w.n, 7, hold), hits, "hits");
    if (hits) want(pl_kv_adopt(kv, seq[s].real, hold, hits, NULL) == PL_OK, "adopt");
    seq[s].used = true;
    seq[s].w = w;
    seq[s].w.n = hits;
    for (int32_t i = 0; i < hits; i++) {
        want(holds(hold[i].page, w.node[i]), "a hit that is none");
        seq[s].g[i] = cached[w.node[i]];
    }
    const int32_t need = w.n - hits, n_free = (int32_t)pl_kv_free_pages(kv);
    if (need > n_free + n_idle() || need == 0) return;
    if (need > n_free) evict(need - n_free);
    want(pl_kv_begin(kv, &(pl_span){seq[s].real, need * PAGE}, 1, NULL) == PL_OK, "begin");
    pl_kv_seq *q = &kv->seq[seq[s].real];
    for (int32_t i = hits; i < w.n; i++) write_page(q->page[i], w.node[i]);
    want_int(pl_kv_commit(kv, NULL), 0, "commit");
    for (int32_t i = hits; i < w.n; i++) {
        pl_prefix_put(prefix, q, i, &k[i], i ? &k[i - 1] : NULL);
        grant *c = &cached[w.node[i]];
        if (!c->live) *c = (grant){pl_kv_hold(q, i), true};
        want(c->h.page == q->page[i] && c->h.tag == q->tag[i], "page %d is not the cached one", i);
        seq[s].g[i] = *c;
    }
    seq[s].w.n = w.n;
    if (o->c % 2) do_end(o);
}

static mjob *push(jobs *q, int32_t kind, int32_t node, mslot *s)
{
    want(q->n < JOBS, "model: too many jobs");
    q->job[q->n] = (mjob){.kind = kind, .node = node, .slot = s, .at = -1, .g = {{-1, 0}, false}};
    return &q->job[q->n++];
}

static bool disk_room(int32_t node, mslot **s)
{
    *s = choose(&disk);
    if (*s) fill(*s, node);
    return *s != NULL;
}

static bool host_room(int32_t node, mslot **s)
{
    mslot *d;
    if (!(*s = choose(&host))) return false;
    if ((*s)->node >= 0 && disk.cap && !find(&disk, (*s)->node) && disk_room((*s)->node, &d)) {
        mjob *j = push(&calm, JOB_DEMOTE, (*s)->node, d);
        j->bad = (*s)->bad;
        j->stamp = ++stamp;
        n_spills++;
    }
    fill(*s, node);
    return true;
}

static bool spill(int32_t node)
{
    mslot *s;
    if (!(host.cap ? host_room(node, &s) : disk_room(node, &s))) return false;
    mjob *j = push(&calm, host.cap ? JOB_SPILL_HOST : JOB_SPILL_DISK, node, s);
    j->g = cached[node];
    j->stamp = ++stamp;
    n_spills++;
    return true;
}

/* Numbers of the file's slots that were chosen for what the model has issued. */
static void see_slots(void)
{
    for (int32_t i = 0; i < calm.n; i++)
        if (calm.job[i].kind != JOB_SPILL_HOST && calm.job[i].at < 0)
            calm.job[i].at = tier_find(&tier->disk, &key[calm.job[i].node]);
}

static void do_spill_keys(const op *o)
{
    const way w = draw_way(o->a);
    const int32_t most = (int32_t)(o->b % 8);
    pl_key k[DEPTH];
    int32_t n = 0;
    keys_of(&w, k);
    for (; n < w.n; n++) {
        if (!cached[w.node[n]].live || has(w.node[n])) continue;
        if (n_spills >= most || !spill(w.node[n])) break;
    }
    want_int(pl_tier_spill_keys(tier, k, w.n, most), n, "keys that need no more copy");
    see_slots();
}

static int32_t node_of(int32_t page)
{
    for (int32_t i = 0; i < NODES; i++)
        if (cached[i].live && cached[i].h.page == page) return i;
    return -1;
}

static void do_spill(const op *o)
{
    const int32_t most = (int32_t)(o->a % 8);
    int32_t soon = (host.cap + disk.cap + 1) / 2;
    for (int32_t p = prefix->oldest; p >= 0 && soon > 0 && n_spills < most; p = prefix->entry[p].newer) {
        const int32_t node = node_of(p);
        if (node < 0 || owners(p) > 1) continue;
        soon--;
        if (copies(p) == 0 && !has(node) && !spill(node)) break;
    }
    pl_tier_spill(tier, most);
    see_slots();
}

static bool loading(const mslot *s)
{
    for (int32_t i = 0; i < urgent.n; i++)
        if (urgent.job[i].slot == s) return true;
    return false;
}

static void do_load(const op *o)
{
    const way w = draw_way(o->a);
    int32_t most = (int32_t)(o->b % 6), n = 0, first = 0, n_free = (int32_t)pl_kv_free_pages(kv), n_new = 0;
    pl_key k[DEPTH];
    uint64_t ticket;
    keys_of(&w, k);
    while (first < w.n && cached[w.node[first]].live) first++;
    const int32_t all = pl_tier_load(tier, k + first, first ? &k[first - 1] : NULL, w.n - first, most, 9, &ticket);
    int32_t at = tier->urgent.first; /* the worker waits */
    for (int32_t i = 0; i < urgent.n; i++) at = tier->job[at].next;
    for (n = first; n < w.n; n++) {
        if (cached[w.node[n]].live) continue;
        mslot *s = full(w.node[n]);
        if (!s) break;
        if (loading(s)) continue;
        if (most == 0 || n_free == 0) break;
        want(at >= 0 && !memcmp(&tier->job[at].key, &k[n], sizeof *k), "the load of node %d", w.node[n]);
        mjob *j = push(&urgent, JOB_LOAD_HOST, w.node[n], s);
        j->g = (grant){tier->job[at].hold, true};
        s->pins++;
        s->last = ++clock_now;
        at = tier->job[at].next;
        most--;
        n_free--;
        n_new++;
    }
    want_int(all, n - first, "keys that are loaded");
    want_int(at, -1, "more loads");
    want(n_new == 0 || !pl_tier_loaded(tier, ticket), "a load that has ended already");
}

static void end_load(mjob *j)
{
    mslot *s = j->slot;
    const bool bad = s->bad;
    n_damaged += bad;
    if (--s->pins == 0 && bad) drop(s);
    if (!j->g.live || bad) return;
    if (cached[j->node].live || (up(j->node) >= 0 && !cached[up(j->node)].live)) return;
    cached[j->node] = j->g;
    n_hits++;
}

static void end_spill(mjob *j)
{
    const bool same = j->kind == JOB_DEMOTE || j->g.live;
    n_spills--;
    n_damaged += j->bad;
    if (same && !j->bad)
        j->slot->full = true;
    else
        drop(j->slot);
    if (j->at < 0 || j->bad) return;
    on_file[j->at].node = j->node; /* also where the page was given to someone else meanwhile */
    on_file[j->at].bad = false;
    on_file[j->at].stamp = j->stamp;
}

/* All copies that were issued. */
static void do_copy(const op *o)
{
    (void)o;
    pl_tier_stall(tier, false);
    while (pl_tier_copies(tier)) {
        (void)pl_tier_wait(tier, 10);
        (void)pl_tier_poll(tier);
    }
    pl_tier_stall(tier, true);
    while (urgent.n) { /* a page is its load's until that has ended */
        mjob j = urgent.job[0];
        memmove(urgent.job, urgent.job + 1, (size_t)--urgent.n * sizeof j);
        end_load(&j);
    }
    for (int32_t i = 0; i < calm.n; i++) end_spill(&calm.job[i]);
    calm.n = 0;
}

static void do_damage(const op *o)
{
    mtable *t = o->a % 2 ? &host : &disk;
    mslot *s = t->cap ? &t->slot[o->b % (uint32_t)t->cap] : NULL;
    if (!s || s->node < 0 || !s->full || s->pins || s->bad) return;
    s->bad = true;
    const int32_t at = tier_find(t == &host ? &tier->host : &tier->disk, &key[s->node]);
    want(at >= 0, "node %d is in no slot", s->node);
    if (t == &host) {
        tier->mem[at * kv->page_bytes + o->c % kv->page_bytes] ^= 0x10;
        return;
    }
    uint8_t page[4096];
    want(tier_file_read(&tier->file, at, page) == 0, "read");
    page[o->c % kv->page_bytes] ^= 0x10;
    want(tier_file_spoil(&tier->file, at, page) == 0, "write");
    on_file[at].bad = true;
}

static void kill_holds(grant *g, int32_t page)
{
    if (g->h.page == page) g->live = false;
}

static void do_condemn(const op *o)
{
    const int32_t p = (int32_t)(o->a % (uint32_t)n_pages);
    pl_tags_condemn(&kv->tags, p);
    if (owners(p) == 0) return;
    for (int32_t i = 0; i < NODES; i++) kill_holds(&cached[i], p);
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; seq[s].used && i < seq[s].w.n; i++) kill_holds(&seq[s].g[i], p);
    for (int32_t i = 0; i < urgent.n; i++) kill_holds(&urgent.job[i].g, p);
    for (int32_t i = 0; i < calm.n; i++) kill_holds(&calm.job[i].g, p);
    damaged[p] = true;
}

static void do_readmit(const op *o)
{
    (void)o;
    int32_t n = 0;
    for (int32_t p = 0; p < n_pages; p++) {
        if (owners(p) || copies(p) || !damaged[p]) continue;
        damaged[p] = false;
        n++;
    }
    want_int(pl_kv_readmit(kv), n, "readmitted");
}

/* Pages that nobody knows of are found, and those that loads hold are not taken for such. */
static void do_reclaim(const op *o)
{
    pl_hold h[PAGES];
    int32_t n = 0;
    while (n < (int32_t)(o->a % 3) && pl_tags_take(&kv->tags, 99).page >= 0) n++;
    const int32_t n_holds = pl_tier_holds(tier, h);
    want_int(n_holds, urgent.n, "loads");
    want_int(pl_kv_reclaim(kv, h, n_holds), n, "reclaimed");
}

static void look_at_slot(int32_t i)
{
    pl_key k;
    uint64_t digest, when;
    uint8_t page[4096];
    on_file[i].node = -1;
    if (!tier_file_look(&tier->file, i, &k, &digest, &when)) return;
    int32_t node = 0;
    while (node < NODES && memcmp(&key[node], &k, sizeof k)) node++;
    want(node < NODES, "slot %d of the file has a key that nobody wrote", i);
    want(tier_file_read(&tier->file, i, page) == 0, "read");
    on_file[i].node = node;
    on_file[i].bad = pl_kv_digest(page, kv->page_bytes) != digest;
    on_file[i].stamp = when;
    stamp = (uint64_t)pl_max((int64_t)stamp, (int64_t)when);
}

/* What was under way when a tier is closed never happens; what is in the file is found again, the newer of two that have
 * the same key. With time to write, the disk is given all that was cached or in host memory, as far as it has room. */
static void do_reopen(const op *o)
{
    const bool flush = o->a % 2;
    if (flush) do_copy(o);
    int32_t n_wanted = 0;
    bool good[NODES];
    for (int32_t i = 0; i < NODES; i++) {
        const mslot *d = find(&disk, i), *s = find(&host, i);
        good[i] = d ? !d->bad : cached[i].live || (s && !s->bad);
        n_wanted += d || s || cached[i].live;
    }
    if (flush) pl_tier_stall(tier, false);
    pl_tier_close(tier, flush ? 60 : 0);
    urgent.n = calm.n = n_spills = 0;
    for (int i = 0; i < CAP; i++) host.slot[i].node = disk.slot[i].node = -1;
    open_tier();
    if (!flush) {
        for (int32_t i = 0; i < disk.cap; i++) {
            bool newest = on_file[i].node >= 0;
            for (int32_t k = 0; k < disk.cap; k++)
                newest = newest && !(on_file[k].node == on_file[i].node && on_file[k].stamp > on_file[i].stamp);
            if (newest)
                disk.slot[i] =
                    (mslot){.node = on_file[i].node, .full = true, .bad = on_file[i].bad, .last = on_file[i].stamp};
        }
        clock_now = (uint64_t)pl_max((int64_t)clock_now, (int64_t)stamp);
        return;
    }
    /* Which of them, the file says. A slot that was dropped still holds its page there, until another is written. */
    bool was_bad[CAP];
    int32_t was[CAP], n = 0;
    for (int32_t i = 0; i < disk.cap; i++) {
        was[i] = on_file[i].node;
        was_bad[i] = on_file[i].bad;
        look_at_slot(i);
    }
    for (int32_t at = tier->disk.n ? tier->disk.oldest : -1; at >= 0; at = tier->disk.slot[at].newer, n++) {
        const int32_t node = on_file[at].node;
        want(node >= 0 && !find(&disk, node), "a key that nobody wrote, or twice");
        const bool bad = on_file[at].bad, known = was[at] == node && was_bad[at];
        want(!bad || !good[node] || known, "node %d is damaged on disk", node);
        disk.slot[at] = (mslot){.node = node, .full = true, .bad = bad, .last = ++clock_now};
    }
    if (n_wanted <= disk.cap)
        for (int32_t i = 0; i < NODES; i++) want(!cached[i].live || find(&disk, i), "node %d was not written", i);
}

static void close_all(void)
{
    for (uint32_t i = 0; i < SEQS; i++) do_end(&(op){.a = i});
    pl_tier_close(tier, 0);
    pl_prefix_close(prefix);
    pl_kv_readmit(kv);
    want_int(pl_kv_free_pages(kv), n_pages, "free pages at the end");
    pl_kv_close(kv);
    pl_dev_close(dev);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    static const model_kind kind[] = {
        {"compute", 24, do_compute},       {"end", 8, do_end},         {"spill", 10, do_spill},
        {"spill keys", 10, do_spill_keys}, {"load", 16, do_load},      {"copy", 10, do_copy},
        {"evict", 10, do_evict},           {"damage", 2, do_damage},   {"condemn", 1, do_condemn},
        {"readmit", 1, do_readmit},        {"reclaim", 1, do_reclaim}, {"reopen", 1, do_reopen},
    };
    const model m = {"tiers", kind, sizeof kind / sizeof *kind, open_all, check, check_all, close_all};
    return model_main(&m);
}
