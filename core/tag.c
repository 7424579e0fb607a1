/* tag.c: page ownership: states, references, tags, and copies that run beside the steps. */
#include "tag.h"
#include "mem.h"
#include <stdlib.h>

int pl_tags_open(pl_tags *t, pl_dev *dev, int32_t n, pl_err *err)
{
    memset(t, 0, sizeof *t);
    t->dev = dev;
    t->n = n;
    t->next = 2;
    t->page = calloc((size_t)n, sizeof *t->page);
    t->free = malloc((size_t)n * sizeof *t->free);
    t->tag = dev->stream.backend->alloc(dev->stream.impl, n * (int64_t)sizeof *t->tag);
    if (!t->page || !t->free || !t->tag) {
        pl_tags_close(t);
        return pl_fail(err, PL_ENOMEM, "kv: no memory for the tags of %d pages", n);
    }
    for (int32_t i = 0; i < n; i++) t->free[i] = n - 1 - i; /* the first pages are handed out first */
    t->n_free = t->n_state[PL_PAGE_FREE] = n;
    for (int32_t i = 0; i < n; i++) t->page[i].tag = t->next, t->next += 2;
    uint64_t first[64];
    for (int32_t i = 0; i < n; i += 64) {
        const int32_t m = (int32_t)pl_min(64, n - i);
        for (int32_t k = 0; k < m; k++) first[k] = t->page[i + k].tag;
        const pl_stream *s = &dev->stream;
        PL_TRY(s->backend->copy_in(s->impl, t->tag + i, first, m * (int64_t)sizeof *first, err));
    }
    return PL_OK;
}

void pl_tags_close(pl_tags *t)
{
    free(t->page);
    free(t->free);
    if (t->tag) t->dev->stream.backend->free(t->dev->stream.impl, t->tag, t->n * (int64_t)sizeof *t->tag);
    memset(t, 0, sizeof *t);
}

/* The device's copy follows the host's, with the writer's bit. */
static void show(pl_tags *t, int32_t page)
{
    const pl_stream *s = &t->dev->stream;
    const uint64_t tag = t->page[page].tag | (t->page[page].writers > 0);
    if (s->kind == PL_DEV_CPU)
        __atomic_store_n(&t->tag[page], tag, __ATOMIC_RELEASE);
    else
        PL_ASSERT(s->backend->copy_in(s->impl, &t->tag[page], &tag, sizeof tag, NULL) == PL_OK);
}

static void change(pl_tags *t, int32_t page)
{
    t->page[page].tag = t->next;
    t->next += 2;
    show(t, page);
}

static bool is_copied(const pl_page *p) { return p->readers + p->writers > 0; }

/* The prefix cache can give it back, and it is free at once. */
static bool is_idle(const pl_page *p)
{
    return p->state == PL_PAGE_OWNED && p->cached && p->refs == 1 && !is_copied(p);
}

/* Holders change through this, so that idle pages are always counted. */
static void set_refs(pl_tags *t, pl_page *p, int32_t refs, bool cached)
{
    t->n_idle -= is_idle(p);
    p->refs = refs;
    p->cached = cached;
    t->n_idle += is_idle(p);
}

static void set_state(pl_tags *t, int32_t page, int32_t state)
{
    if (state != PL_PAGE_OWNED) set_refs(t, &t->page[page], 0, false);
    t->n_state[t->page[page].state]--;
    t->page[page].state = state;
    t->n_state[state]++;
}

static void remember(pl_page *p, int64_t owner)
{
    memmove(p->past + 1, p->past, sizeof p->past - sizeof *p->past);
    p->past[0] = (pl_page_owner){owner, p->tag};
}

pl_hold pl_tags_take(pl_tags *t, int64_t owner)
{
    if (t->n_free == 0) return (pl_hold){-1, 0};
    const int32_t i = t->free[--t->n_free];
    pl_page *p = &t->page[i];
    PL_ASSERT(p->state == PL_PAGE_FREE);
    set_state(t, i, PL_PAGE_OWNED);
    set_refs(t, p, 1, false);
    change(t, i);
    remember(p, owner);
    return (pl_hold){i, p->tag};
}

bool pl_tags_keep(pl_tags *t, pl_hold h, int64_t owner)
{
    if (!pl_tags_valid(t, h)) return false;
    set_refs(t, &t->page[h.page], t->page[h.page].refs + 1, t->page[h.page].cached);
    remember(&t->page[h.page], owner);
    return true;
}

static void make_free(pl_tags *t, int32_t page)
{
    pl_page *p = &t->page[page];
    p->damaged = p->has_digest = false;
    set_state(t, page, PL_PAGE_FREE);
    change(t, page);
    PL_ASSERT(t->n_free < t->n);
    t->free[t->n_free++] = page;
}

bool pl_tags_drop(pl_tags *t, pl_hold h)
{
    if (!pl_tags_valid(t, h)) {
        t->n_refused++;
        return false;
    }
    pl_page *p = &t->page[h.page];
    set_refs(t, p, p->refs - 1, p->cached);
    if (p->refs > 0) return true;
    const bool skip = PL_FAULT(t, NO_QUARANTINE, p->past[0].owner);
    if (is_copied(p) && !skip) {
        set_state(t, h.page, PL_PAGE_QUARANTINED);
        change(t, h.page);
    } else {
        make_free(t, h.page);
    }
    return true;
}

void pl_tags_cache(pl_tags *t, pl_hold h)
{
    pl_page *p = &t->page[h.page];
    PL_ASSERT(pl_tags_valid(t, h) && !p->cached);
    set_refs(t, p, p->refs + 1, true);
}

void pl_tags_uncache(pl_tags *t, pl_hold h)
{
    if (!pl_tags_valid(t, h) || !t->page[h.page].cached) return;
    set_refs(t, &t->page[h.page], t->page[h.page].refs, false);
    (void)pl_tags_drop(t, h);
}

void pl_tags_condemn(pl_tags *t, int32_t page)
{
    pl_page *p = &t->page[page];
    if (p->state != PL_PAGE_OWNED) return;
    p->damaged = true;
    set_state(t, page, PL_PAGE_QUARANTINED); /* no hold is valid any more */
    change(t, page);
}

int32_t pl_tags_readmit(pl_tags *t)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++)
        if (t->page[i].state == PL_PAGE_QUARANTINED && !is_copied(&t->page[i])) make_free(t, i), n++;
    return n;
}

static void count_copy(pl_tags *t, int32_t page, bool writes, int32_t n)
{
    pl_page *p = &t->page[page];
    int32_t *count = writes ? &p->writers : &p->readers;
    t->n_idle -= is_idle(p);
    *count += n;
    t->n_idle += is_idle(p);
    PL_ASSERT(*count >= 0);
    show(t, page);
}

pl_hold pl_tags_copy_begin(pl_tags *t, pl_hold h, bool writes)
{
    if (!pl_tags_valid(t, h)) return (pl_hold){-1, 0};
    count_copy(t, h.page, writes, 1);
    return h;
}

bool pl_tags_copy_end(pl_tags *t, pl_hold h, bool writes)
{
    const pl_page *p = &t->page[h.page];
    const bool same = pl_tags_valid(t, h);
    count_copy(t, h.page, writes, -1);
    if (p->state == PL_PAGE_QUARANTINED && !is_copied(p) && !p->damaged) make_free(t, h.page);
    return same;
}

void pl_tags_force_free(pl_tags *t, int32_t page) { make_free(t, page); }
