#ifndef PL_FAULT_H
#define PL_FAULT_H
/* What a bug in page ownership would do, done on purpose, to show that it is caught. Tests arm a fault for one request
 * (tags.fault; no way leads there from pl.h); the code asks at the places where such a bug would strike. A fault strikes
 * once. */
#include "base.h"

enum {
    PL_FAULT_FREE_REFERENCED = 1, /* a page is freed while its sequence still reads it */
    PL_FAULT_TABLE_OFF,           /* an entry of the block table names the page after the right one */
    PL_FAULT_STALE_TABLE,         /* a request that was preempted goes on with its old block table */
    PL_FAULT_NO_QUARANTINE,       /* a page is free at once although a copy still reads or writes it */
    PL_FAULT_FREE_TWICE,          /* a request that ends frees its page again when it has a new owner */
    PL_FAULT_TAG_FLIP,            /* a bit of a tag in device memory */
    PL_FAULT_CONTENT_FLIP,        /* a bit of a full page */
    PL_FAULT_SPILL_FREED,         /* a page is free at once although it is being copied to a tier */
    PL_FAULT_LOAD_FREED,          /* a page is free at once although it is being filled from a tier */
    PL_FAULT_SLOT_OTHER           /* a tier returns another page's bytes */
};

typedef struct pl_fault {
    int32_t what;
    int64_t owner; /* the request that it strikes */
    int32_t index; /* in its block table */
    bool struck;
    int32_t *page; /* [n_pages] the table that a sequence had when it was freed; the test frees both */
    uint64_t *tag;
    int32_t n_pages;
    int64_t n_tokens;
} pl_fault;

/* Is this the place and the request of an armed fault that has not struck? */
#define PL_FAULT(tags, name, who) ((tags)->fault && pl_fault_due((tags)->fault, PL_FAULT_##name, (who)))
PL_INLINE bool pl_fault_due(const pl_fault *f, int32_t what, int64_t owner)
{
    return f->what == what && f->owner == owner && !f->struck;
}

struct pl_kv_seq;
void pl_fault_step(pl_kv *kv, const pl_span *span, int32_t n); /* a step begins */
void pl_fault_freed(pl_fault *f, const struct pl_kv_seq *s);   /* a sequence is about to go */
bool pl_fault_revive(pl_kv *kv, int32_t seq);                  /* a new sequence gets the old table */
#endif
