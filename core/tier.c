/* tier.c: what is copied between the prefix cache and the tiers behind it, and when. */
#include "tier.h"
#include "mem.h"
#include "tier_impl.h"
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_SPILLS = 16,  /* under way */
    MAX_SOON = 64,    /* idle pages that may be copied before eviction comes to them */
    MAX_LOOKS = 1024, /* entries of the prefix cache that are looked at between two steps */
    MAX_FAILURES = 3  /* in a row, and the disk is not used any more */
};

/* Opening ------------------------------------------------------------------------------------------------------ */

static void add_number(crypto_generichash_state *h, int64_t n)
{
    crypto_generichash_update(h, (const uint8_t *)&n, sizeof n);
}

/* What decides the bytes of a page that holds given tokens. */
static void identify(pl_key *out, const pl_kv *kv, const char *model)
{
    static const uint8_t what[] = "perilune page " PL_VERSION;
    const pl_kv_opts *o = &kv->o;
    const int64_t number[] = {o->layers, o->heads, o->key_dim,           o->value_dim,         o->page,
                              o->dtype,  o->scale, kv->dev->stream.kind, kv->dev->stream.path, kv->page_bytes};
    crypto_generichash_state h;
    crypto_generichash_init(&h, what, sizeof what - 1, PL_KEY_BYTES);
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) add_number(&h, number[i]);
    const size_t n_scales = (size_t)o->layers * 2 * (size_t)o->heads;
    crypto_generichash_update(&h, (const uint8_t *)kv->scale, n_scales * sizeof *kv->scale);
    add_number(&h, (int64_t)strlen(model));
    crypto_generichash_update(&h, (const uint8_t *)model, strlen(model));
    crypto_generichash_final(&h, out->byte, PL_KEY_BYTES);
}

typedef struct found {
    int32_t slot;
    uint64_t stamp, digest;
    pl_key key;
} found;

static int by_stamp(const void *a, const void *b)
{
    const found *x = a, *y = b;
    return x->stamp < y->stamp ? -1 : x->stamp > y->stamp;
}

/* What the file holds of this model, from an earlier time. */
static int scan(pl_tier *t, pl_err *err)
{
    found *list = NULL;
    int32_t n = 0, cap = 0, rc = PL_OK;
    for (int32_t i = 0; rc == PL_OK && i < t->file.n; i++) {
        found x = {.slot = i};
        if (!tier_file_look(&t->file, i, &x.key, &x.digest, &x.stamp)) continue;
        rc = pl_mem_grow((void **)&list, &cap, n + 1, sizeof *list, err);
        if (rc == PL_OK) list[n++] = x;
    }
    if (n) qsort(list, (size_t)n, sizeof *list, by_stamp);
    for (int32_t i = 0; rc == PL_OK && i < n; i++) tier_restore(&t->disk, list[i].slot, &list[i].key, list[i].digest);
    if (n) t->stamp = list[n - 1].stamp;
    tier_link_empty(&t->disk);
    free(list);
    return rc;
}

static int open_host(pl_tier *t, int64_t bytes, pl_err *err)
{
    const int64_t n = pl_min(bytes / t->kv->page_bytes, INT32_MAX);
    if (n < 1)
        return pl_fail(err, PL_EARG, "host cache: %lld bytes, want 0 or at least one page: %lld", (long long)bytes,
                       (long long)t->kv->page_bytes);
    t->mem = pl_mem_map(n * t->kv->page_bytes); /* before the table: what is too large is known at once */
    if (!t->mem) return pl_fail(err, PL_ENOMEM, "host cache: no memory for %lld bytes", (long long)bytes);
    t->mem_bytes = n * t->kv->page_bytes;
    PL_TRY(tier_table_open(&t->host, (int32_t)n, err));
    tier_link_empty(&t->host);
    return PL_OK;
}

static int open_disk(pl_tier *t, const pl_tier_opts *o, pl_err *err)
{
    if (!o->dir || !*o->dir)
        return pl_fail(err, PL_EARG, "disk cache: %lld bytes, and no directory", (long long)o->disk_bytes);
    identify(&t->file.identity, t->kv, o->model ? o->model : "");
    PL_TRY(tier_file_open(&t->file, o->dir, o->disk_bytes, t->kv->page_bytes, err));
    PL_TRY(tier_table_open(&t->disk, t->file.n, err));
    t->bounce = pl_mem_map(t->kv->page_bytes);
    if (!t->bounce) return pl_fail(err, PL_ENOMEM, "disk cache: no memory for a page");
    return scan(t, err);
}

static int open_jobs(pl_tier *t, pl_err *err)
{
    t->n_jobs = (int32_t)pl_min(t->kv->o.n_pages, 1 << 20) + 2 * MAX_SPILLS; /* every load has a page */
    t->job = calloc((size_t)t->n_jobs, sizeof *t->job);
    if (!t->job) return pl_fail(err, PL_ENOMEM, "tier: no memory for %d copies", t->n_jobs);
    for (int32_t i = 0; i < t->n_jobs; i++) t->job[i].next = i + 1 < t->n_jobs ? i + 1 : -1;
    return tier_work_start(t, err);
}

static void evicted(void *who, const pl_key *key)
{
    pl_tier *t = who;
    t->n_missed += !pl_tier_has(t, key);
}

int pl_tier_open(pl_tier **out, pl_prefix *p, const pl_tier_opts *o, pl_err *err)
{
    if (o->host_bytes < 0 || o->disk_bytes < 0)
        return pl_fail(err, PL_EARG, "tier: %lld bytes of host memory and %lld of disk, want 0 or more",
                       (long long)o->host_bytes, (long long)o->disk_bytes);
    if (o->host_bytes + (o->disk_bytes != 0) == 0)
        return pl_fail(err, PL_EARG, o->dir ? "disk cache: a directory, and 0 bytes" : "tier: no bytes");
    if (p->kv->o.dry) return pl_fail(err, PL_EARG, "tier: a simulated cache has no pages to copy");
    pl_tier *t = calloc(1, sizeof *t);
    if (!t) return pl_fail(err, PL_ENOMEM, "tier: no memory");
    t->prefix = p;
    t->kv = p->kv;
    t->file.fd = -1;
    int rc = o->host_bytes ? open_host(t, o->host_bytes, err) : PL_OK;
    if (rc == PL_OK && o->disk_bytes) rc = open_disk(t, o, err);
    if (rc == PL_OK) rc = open_jobs(t, err);
    if (rc < 0) {
        pl_tier_close(t, 0);
        return rc;
    }
    p->evicted = evicted;
    p->who = t;
    *out = t;
    return PL_OK;
}

/* Copies begin ------------------------------------------------------------------------------------------------- */

static tier_job *new_job(pl_tier *t, int32_t kind)
{
    const int32_t i = t->unused;
    if (i < 0) return NULL;
    t->unused = t->job[i].next;
    t->job[i] = (tier_job){.kind = kind, .host = -1, .disk = -1, .hold = {-1, 0}, .under_way = true};
    return &t->job[i];
}

static void forget_job(pl_tier *t, tier_job *j)
{
    j->under_way = false;
    j->next = t->unused;
    t->unused = (int32_t)(j - t->job);
}

static void issue(pl_tier *t, tier_job *j, tier_queue *q)
{
    t->n_under_way++;
    pthread_mutex_lock(&t->lock);
    tier_push(t, q, (int32_t)(j - t->job));
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

static bool has_disk(const pl_tier *t) { return t->disk.n > 0 && !t->disk_off; }

/* A slot for a new page on disk; -1: none. */
static int32_t disk_room(pl_tier *t, const pl_key *key)
{
    const int32_t i = has_disk(t) ? tier_choose(&t->disk) : -1;
    if (i < 0) return -1;
    if (t->disk.slot[i].state == SLOT_FULL) {
        tier_drop(&t->disk, i);
        t->disk_count.dropped++;
    }
    tier_fill(&t->disk, i, key);
    return i;
}

/* Copies a page of the host's to the disk, if that lacks it. */
static void demote(pl_tier *t, int32_t i)
{
    tier_slot *s = &t->host.slot[i];
    if (!has_disk(t) || tier_find(&t->disk, &s->key) >= 0) return;
    tier_job *j = new_job(t, JOB_DEMOTE);
    if (!j) return;
    if ((j->disk = disk_room(t, &s->key)) < 0) {
        forget_job(t, j);
        return;
    }
    j->host = i;
    j->key = s->key;
    j->digest = s->digest;
    j->has_digest = true;
    j->stamp = ++t->stamp;
    t->n_spills++;
    issue(t, j, &t->calm);
}

/* A slot for a new page in host memory; -1: none. What was there goes to the disk: the worker does one after the other. */
static int32_t host_room(pl_tier *t, const pl_key *key)
{
    const int32_t i = tier_choose(&t->host);
    if (i < 0) return -1;
    if (t->host.slot[i].state == SLOT_FULL) {
        demote(t, i);
        tier_drop(&t->host, i);
        t->host_count.dropped++;
    }
    tier_fill(&t->host, i, key);
    return i;
}

/* Copies a cached page out. */
static bool spill(pl_tier *t, pl_hold h, const pl_key *key, bool to_disk)
{
    tier_job *j = new_job(t, to_disk ? JOB_SPILL_DISK : JOB_SPILL_HOST);
    if (!j) return false;
    const int32_t i = to_disk ? disk_room(t, key) : host_room(t, key);
    const pl_page *p = &t->kv->tags.page[h.page];
    if (i < 0) {
        forget_job(t, j);
        return false;
    }
    *(to_disk ? &j->disk : &j->host) = i;
    j->key = *key;
    j->hold = pl_tags_copy_begin(&t->kv->tags, h, false);
    j->has_digest = p->has_digest;
    j->digest = p->digest;
    j->stamp = ++t->stamp;
    if (PL_FAULT(&t->kv->tags, SPILL_FREED, p->past[0].owner)) {
        t->kv->tags.fault->struck = true;
        pl_tags_force_free(&t->kv->tags, h.page);
    }
    t->n_spills++;
    issue(t, j, &t->calm);
    return true;
}

/* The slot of a key that can be loaded, in either tier. */
static tier_slot *full(const pl_tier *t, const pl_key *key, int32_t *host, int32_t *disk)
{
    *host = tier_find(&t->host, key);
    *disk = -1;
    if (*host >= 0 && t->host.slot[*host].state == SLOT_FULL) return &t->host.slot[*host];
    *host = -1;
    if (has_disk(t)) *disk = tier_find(&t->disk, key);
    return *disk >= 0 && t->disk.slot[*disk].state == SLOT_FULL ? &t->disk.slot[*disk] : NULL;
}

static bool load(pl_tier *t, tier_slot *s, int32_t host, int32_t disk, const pl_key *before, int64_t owner)
{
    pl_tags *tags = &t->kv->tags;
    tier_job *j = new_job(t, host >= 0 ? JOB_LOAD_HOST : JOB_LOAD_DISK);
    if (!j) return false;
    const pl_hold h = pl_tags_take(tags, owner);
    if (h.page < 0) {
        forget_job(t, j);
        return false;
    }
    j->hold = pl_tags_copy_begin(tags, h, true);
    j->host = host;
    j->disk = host >= 0 ? -1 : disk;
    j->key = s->key;
    j->first = !before;
    if (before) j->before = *before;
    j->digest = s->digest;
    j->has_digest = host < 0 || t->kv->o.check != PL_CHECK_OFF;
    s->ticket = j->ticket = ++t->n_issued;
    if (PL_FAULT(tags, SLOT_OTHER, owner)) tags->fault->struck = tier_spoil(t, host, disk);
    if (PL_FAULT(tags, LOAD_FREED, owner) && tags->fault->index-- == 0) {
        tags->fault->struck = true;
        pl_tags_force_free(tags, h.page);
    }
    s->pins++;
    tier_touch(host >= 0 ? &t->host : &t->disk, host >= 0 ? host : disk);
    issue(t, j, &t->urgent);
    return true;
}

bool pl_tier_has(const pl_tier *t, const pl_key *key)
{
    return tier_find(&t->host, key) >= 0 || (has_disk(t) && tier_find(&t->disk, key) >= 0);
}

int32_t pl_tier_count(const pl_tier *t, const pl_key *key, int32_t n)
{
    int32_t k = 0, host, disk;
    while (k < n && (pl_prefix_hold(t->prefix, &key[k]).page >= 0 || full(t, &key[k], &host, &disk))) k++;
    return k;
}

int32_t pl_tier_load(pl_tier *t, const pl_key *key, const pl_key *before, int32_t n, int32_t most, int64_t owner,
                     uint64_t *ticket)
{
    int32_t k = 0, host, disk;
    *ticket = 0;
    for (; k < n; k++) {
        if (pl_prefix_hold(t->prefix, &key[k]).page >= 0) continue;
        tier_slot *s = full(t, &key[k], &host, &disk);
        if (!s) break;
        if (pl_tier_loaded(t, s->ticket)) { /* not under way already, for someone else */
            if (most == 0 || !load(t, s, host, disk, k ? &key[k - 1] : before, owner)) break;
            most--;
        }
        *ticket = (uint64_t)pl_max((int64_t)*ticket, (int64_t)s->ticket);
    }
    return k;
}

bool pl_tier_loaded(const pl_tier *t, uint64_t ticket) { return ticket <= t->n_loaded; }

int32_t pl_tier_spill_keys(pl_tier *t, const pl_key *key, int32_t n, int32_t most)
{
    for (int32_t k = 0; k < n; k++) {
        const pl_hold h = pl_prefix_hold(t->prefix, &key[k]);
        if (h.page < 0 || pl_tier_has(t, &key[k])) continue;
        if (t->n_spills >= most || !spill(t, h, &key[k], t->host.n == 0)) return k;
    }
    return n;
}

/* Only pages that eviction will come to soon: if all of a cache that is larger than the tiers went there, what is about to
 * be evicted would be dropped for what is not. Half of the slots stay for pages that are evicted already. */
void pl_tier_spill(pl_tier *t, int32_t most)
{
    const pl_prefix *p = t->prefix;
    const int32_t there = t->host.n + (has_disk(t) ? t->disk.n : 0);
    int32_t soon = (int32_t)pl_min(MAX_SOON, (there + 1) / 2), looks = MAX_LOOKS;
    most = (int32_t)pl_min(most, MAX_SPILLS);
    for (int32_t i = p->oldest; i >= 0 && soon > 0 && looks-- > 0 && t->n_spills < most; i = p->entry[i].newer) {
        const pl_prefix_entry *x = &p->entry[i];
        const pl_page *page = &t->kv->tags.page[i];
        if (!pl_tags_valid(&t->kv->tags, x->hold) || page->refs > 1) continue;
        soon--;
        if (page->readers == 0 && !pl_tier_has(t, &x->key) && !spill(t, x->hold, &x->key, t->host.n == 0)) break;
    }
}

/* Copies end --------------------------------------------------------------------------------------------------- */

static void disk_failed(pl_tier *t, int error)
{
    t->disk_count.errors++;
    if (!t->failure[0])
        snprintf(t->failure, sizeof t->failure, "disk cache: %.120s: %s", t->file.path, strerror(error));
    if (++t->n_failures_in_a_row >= MAX_FAILURES) t->disk_off = true;
}

/* The slot was filled, or it is empty again. */
static void settle(tier_table *table, int32_t i, pl_tier_figures *count, const tier_job *j, bool good)
{
    if (!good) {
        tier_drop(table, i);
        return;
    }
    tier_filled(table, i, j->digest);
    count->stored++;
}

static void end_load(pl_tier *t, const tier_job *j, bool ran)
{
    pl_tags *tags = &t->kv->tags;
    tier_table *table = j->host >= 0 ? &t->host : &t->disk;
    pl_tier_figures *count = j->host >= 0 ? &t->host_count : &t->disk_count;
    const int32_t i = j->host >= 0 ? j->host : j->disk;
    const bool own = pl_tags_copy_end(tags, j->hold, true);
    t->n_loaded = j->ticket;
    if (--table->slot[i].pins == 0 && ran && !j->good) tier_drop(table, i);
    count->damaged += ran && !j->good && !j->error;
    if (!own) return; /* the page has another owner */
    if (j->good && t->kv->o.check == PL_CHECK_DIGESTS && t->kv->dev->stream.kind == PL_DEV_CPU) {
        tags->page[j->hold.page].digest = j->digest;
        tags->page[j->hold.page].has_digest = true;
    }
    if (j->good) count->hits += pl_prefix_insert(t->prefix, j->hold, &j->key, j->first ? NULL : &j->before);
    (void)pl_tags_drop(tags, j->hold);
}

static void end_spill(pl_tier *t, const tier_job *j, bool ran)
{
    bool same = true;
    t->n_spills--;
    if (j->hold.page >= 0) same = pl_tags_copy_end(&t->kv->tags, j->hold, false) || t->kv->o.check == PL_CHECK_OFF;
    const bool good = ran && j->good && same, damaged = ran && !j->good && !j->error;
    if (j->kind == JOB_SPILL_HOST)
        settle(&t->host, j->host, &t->host_count, j, good);
    else
        settle(&t->disk, j->disk, &t->disk_count, j, good);
    if (!damaged) return;
    t->host_count.damaged += j->kind == JOB_DEMOTE;
    if (j->hold.page >= 0 && same) pl_tags_condemn(&t->kv->tags, j->hold.page); /* it is not what was computed */
}

/* ran: the worker did it; else it never will. */
static bool end(pl_tier *t, tier_job *j, bool ran)
{
    const bool is_load = j->kind == JOB_LOAD_HOST || j->kind == JOB_LOAD_DISK;
    if (ran && j->error)
        disk_failed(t, j->error);
    else if (ran && j->disk >= 0)
        t->n_failures_in_a_row = 0;
    if (is_load)
        end_load(t, j, ran);
    else
        end_spill(t, j, ran);
    if (ran && j->good) t->copied_bytes += (double)t->kv->page_bytes, t->copy_s += j->copy_s;
    t->n_under_way--;
    forget_job(t, j);
    return is_load;
}

bool pl_tier_poll(pl_tier *t)
{
    bool loaded = false;
    if (!t || t->n_under_way == 0) return false;
    pthread_mutex_lock(&t->lock);
    tier_queue done = t->done;
    t->done = (tier_queue){-1, -1};
    pthread_mutex_unlock(&t->lock);
    for (int32_t i; (i = tier_pop(t, &done)) >= 0;) loaded |= end(t, &t->job[i], true);
    return loaded;
}

/* Closing ------------------------------------------------------------------------------------------------------ */

/* Room for one more copy, if it comes in time. */
static bool make_room(pl_tier *t, double until)
{
    while (t->unused < 0 || t->n_spills >= MAX_SPILLS) {
        if (pl_now_s() >= until) return false;
        (void)pl_tier_wait(t, 0.1);
        (void)pl_tier_poll(t);
    }
    return pl_now_s() < until;
}

static void finish_copies(pl_tier *t, double until)
{
    while (t->n_under_way && pl_now_s() < until) {
        (void)pl_tier_wait(t, 0.1);
        (void)pl_tier_poll(t);
    }
}

static void flush(pl_tier *t, double until)
{
    const pl_prefix *p = t->prefix;
    finish_copies(t, until);
    for (int32_t i = 0; i < t->host.n && make_room(t, until); i++)
        if (t->host.slot[i].state == SLOT_FULL) demote(t, i);
    finish_copies(t, until);   /* what is damaged in host memory may still be cached */
    int32_t skip = -t->disk.n; /* more than it has room for would be overwritten */
    for (int32_t i = p->oldest; i >= 0; i = p->entry[i].newer) skip += pl_tags_valid(&t->kv->tags, p->entry[i].hold);
    for (int32_t i = p->oldest; i >= 0 && make_room(t, until); i = p->entry[i].newer) {
        const pl_prefix_entry *x = &p->entry[i];
        if (!pl_tags_valid(&t->kv->tags, x->hold) || skip-- > 0 || tier_find(&t->disk, &x->key) >= 0) continue;
        (void)spill(t, x->hold, &x->key, true);
    }
    finish_copies(t, until);
}

void pl_tier_close(pl_tier *t, double flush_s)
{
    if (!t) return;
    if (t->has_worker) {
        if (has_disk(t) && flush_s > 0) flush(t, pl_now_s() + flush_s);
        tier_work_stop(t);
        for (int32_t i; (i = tier_pop(t, &t->done)) >= 0;) (void)end(t, &t->job[i], true);
        for (int32_t i; (i = tier_pop(t, &t->urgent)) >= 0;) (void)end(t, &t->job[i], false);
        for (int32_t i; (i = tier_pop(t, &t->calm)) >= 0;) (void)end(t, &t->job[i], false);
        t->prefix->evicted = NULL;
    }
    tier_file_close(&t->file);
    pl_mem_unmap(t->mem, t->mem_bytes);
    pl_mem_unmap(t->bounce, t->kv->page_bytes);
    tier_table_close(&t->host);
    tier_table_close(&t->disk);
    free(t->job);
    free(t);
}

/* Figures ------------------------------------------------------------------------------------------------------ */

int32_t pl_tier_holds(const pl_tier *t, pl_hold *hold)
{
    int32_t n = 0;
    for (int32_t i = 0; t && i < t->n_jobs; i++) {
        const tier_job *j = &t->job[i];
        if (j->under_way && (j->kind == JOB_LOAD_HOST || j->kind == JOB_LOAD_DISK)) hold[n++] = j->hold;
    }
    return n;
}

int32_t pl_tier_copies(const pl_tier *t) { return t ? t->n_under_way : 0; }
double pl_tier_rate(const pl_tier *t) { return t->copy_s > 0 ? t->copied_bytes / t->copy_s : 0; }
const char *pl_tier_failure(const pl_tier *t) { return t && t->failure[0] ? t->failure : NULL; }

void pl_tier_metrics(const pl_tier *t, pl_metrics *m)
{
    m->host = t->host_count;
    m->host.pages = t->host.n_full;
    m->host.capacity = t->host.n;
    m->disk = t->disk_count;
    m->disk.pages = has_disk(t) ? t->disk.n_full : 0;
    m->disk.capacity = t->disk.n;
    m->disk.off = t->disk_off;
    m->spill_missed = t->n_missed;
    m->n_copies = t->n_under_way;
    m->copied_bytes = t->copied_bytes;
    m->copy_s = t->copy_s;
}
