/* fault.c: the faults of fault.h. */
#include "fault.h"
#include "kv.h"
#include <stdlib.h>

static void flip_tag(pl_tags *t, int32_t page) { __atomic_xor_fetch(&t->tag[page], 1ull << 20, __ATOMIC_RELAXED); }

static bool strike_span(pl_kv *kv, pl_kv_seq *s)
{
    pl_fault *f = kv->tags.fault;
    if (s->n_pages <= f->index) return false;
    int32_t *page = &s->page[f->index];
    switch (f->what) {
    case PL_FAULT_FREE_REFERENCED:
        pl_tags_force_free(&kv->tags, *page);
        break;
    case PL_FAULT_TABLE_OFF:
        *page = (*page + 1) % kv->tags.n;
        break;
    case PL_FAULT_TAG_FLIP:
        flip_tag(&kv->tags, *page);
        break;
    case PL_FAULT_CONTENT_FLIP:
        if (s->len < (int64_t)(f->index + 1) * kv->o.page) return false; /* not full yet */
        pl_kv_page(kv, *page)[kv->page_bytes / 3] ^= 0x40;
        break;
    default:
        return false;
    }
    return true;
}

/* The second time that a page is freed it belongs to someone else. */
static bool free_again(pl_kv *kv)
{
    pl_fault *f = kv->tags.fault;
    for (int32_t i = 0; i < f->n_pages; i++) {
        const pl_page *p = &kv->tags.page[f->page[i]];
        if (p->state != PL_PAGE_OWNED || p->tag == f->tag[i]) continue;
        f->owner = p->past[0].owner; /* the victim */
        pl_tags_force_free(&kv->tags, f->page[i]);
        return true;
    }
    return false;
}

void pl_fault_step(pl_kv *kv, const pl_span *span, int32_t n)
{
    pl_fault *f = kv->tags.fault;
    if (f->what == PL_FAULT_FREE_TWICE && !f->struck) f->struck = free_again(kv);
    for (int32_t i = 0; i < n && !f->struck; i++) {
        pl_kv_seq *s = &kv->seq[span[i].seq];
        if (s->owner == f->owner) f->struck = strike_span(kv, s);
    }
}

void pl_fault_freed(pl_fault *f, const pl_kv_seq *s)
{
    if (f->struck || f->owner != s->owner || f->page || s->n_pages == 0) return;
    if (f->what != PL_FAULT_STALE_TABLE && f->what != PL_FAULT_FREE_TWICE) return;
    f->page = malloc((size_t)s->n_pages * sizeof *f->page);
    f->tag = malloc((size_t)s->n_pages * sizeof *f->tag);
    PL_ASSERT(f->page && f->tag);
    memcpy(f->page, s->page, (size_t)s->n_pages * sizeof *f->page);
    memcpy(f->tag, s->tag, (size_t)s->n_pages * sizeof *f->tag);
    f->n_pages = s->n_pages;
    f->n_tokens = s->len;
}

bool pl_fault_revive(pl_kv *kv, int32_t seq)
{
    pl_fault *f = kv->tags.fault;
    pl_kv_seq *s = &kv->seq[seq];
    if (f->n_pages == 0) return false;
    s->page = f->page, s->tag = f->tag;
    s->n_pages = s->cap = f->n_pages;
    s->len = f->n_tokens;
    f->page = NULL, f->tag = NULL, f->n_pages = 0;
    f->struck = true;
    return true;
}
