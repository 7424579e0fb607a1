#ifndef PL_TAG_H
#define PL_TAG_H
/* Who owns which page. A page is free, owned by `refs` holders (sequences, the prefix cache), or quarantined: given
 * back while a copy still read or wrote it, or found damaged. Beside the pages, in device memory, lies a 64-bit tag of
 * each, changed when the page is handed out and when it is free again, never used twice. A holder remembers the tag
 * it was given; a step compares the tags of all its pages before it reads them (pl_kv_verify). While a copy writes to
 * a page its tag is odd, which no holder expects: what is half written is never read.
 * The host keeps the tags too (page[].tag): they decide who may give a page back, whatever happens to the device's. */
#include "dev.h"
#include "fault.h"

enum { PL_PAGE_FREE, PL_PAGE_OWNED, PL_PAGE_QUARANTINED };

typedef struct pl_hold {
    int32_t page;
    uint64_t tag;
} pl_hold;

typedef struct pl_page {
    int32_t state, refs;
    int32_t readers, writers; /* copies under way, of this owner or of an earlier one */
    uint64_t tag;             /* without the writer's bit */
    bool cached;              /* the prefix cache is one of the holders */
    bool damaged;             /* stays in quarantine */
    bool has_digest;
    uint64_t digest;                     /* of a full page */
    pl_page_owner past[PL_PAGE_HISTORY]; /* newest first */
} pl_page;

typedef struct pl_tags {
    pl_dev *dev;
    uint64_t *tag; /* [n] in device memory */
    pl_page *page; /* [n] */
    int32_t *free; /* [n_free] handed out from the end */
    int32_t n, n_free;
    int32_t n_state[3]; /* pages by PL_PAGE_* */
    int32_t n_idle;     /* pages that the prefix cache alone holds, and no copy reads or writes */
    uint64_t next;      /* even */
    uint64_t n_refused; /* pages given back by someone who does not hold them */
    pl_fault *fault;    /* of a test; NULL */
} pl_tags;

PL_MUST int pl_tags_open(pl_tags *t, pl_dev *dev, int32_t n, pl_err *err);
void pl_tags_close(pl_tags *t);

/* A free page for `owner` (a request's id); page -1: there is none. */
pl_hold pl_tags_take(pl_tags *t, int64_t owner);
/* One more holder. False: the tag is not the page's, and nothing is done; so with drop. */
bool pl_tags_keep(pl_tags *t, pl_hold h, int64_t owner);
bool pl_tags_drop(pl_tags *t, pl_hold h);
/* The prefix cache becomes a holder; and it gives a page back, if that still is its own. */
void pl_tags_cache(pl_tags *t, pl_hold h);
void pl_tags_uncache(pl_tags *t, pl_hold h);
PL_INLINE bool pl_tags_valid(const pl_tags *t, pl_hold h)
{
    return h.page >= 0 && h.page < t->n && t->page[h.page].state == PL_PAGE_OWNED && t->page[h.page].tag == h.tag;
}

/* The page, or its tag in device memory, is damaged: it goes to quarantine, and its holders find another tag at their next
 * step. */
void pl_tags_condemn(pl_tags *t, int32_t page);
/* Damaged pages stay in quarantine until this gives them back; returns how many. */
int32_t pl_tags_readmit(pl_tags *t);

/* A copy that runs beside the steps begins and ends. end: false if the page has changed hands meanwhile, and what was
 * copied is worthless. */
pl_hold pl_tags_copy_begin(pl_tags *t, pl_hold h, bool writes);
bool pl_tags_copy_end(pl_tags *t, pl_hold h, bool writes);

void pl_tags_force_free(pl_tags *t, int32_t page); /* for faults: whoever holds it */
#endif
