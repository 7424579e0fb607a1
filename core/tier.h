#ifndef PL_TIER_H
#define PL_TIER_H
/* What the prefix cache loses goes on in host memory, and then on disk: copies of full pages, found by the same keys.
 * Idle pages are copied out before eviction needs them, and copied back when a request's keys lead to them. One worker
 * thread copies; the engine's thread issues copies and hears of their ends between two steps (pl_tier_poll). Every copy
 * carries the page and the tag under which it was issued: one whose page has changed hands is worthless. A page comes back
 * only if its digest is that of what was copied out: whatever is wrong with a tier is a miss.
 * Each tier gives up what was least recently used; what host memory gives up moves to the disk. */
#include "prefix.h"

typedef struct pl_tier pl_tier;
typedef struct pl_tier_opts {
    int64_t host_bytes; /* 0: no host memory */
    int64_t disk_bytes; /* 0: no disk */
    const char *dir;    /* where the disk's one file lies */
    const char *model;  /* what, beside the cache's layout, decides the numbers in a page */
} pl_tier_opts;

/* A directory that cannot be written, a file that another process uses, no room: errors here, and never later. */
PL_MUST int pl_tier_open(pl_tier **out, pl_prefix *p, const pl_tier_opts *o, pl_err *err);
/* Before it closes, for at most flush_s seconds, the disk is given what it lacks of the host's pages and the cache's. */
void pl_tier_close(pl_tier *t, double flush_s);

bool pl_tier_has(const pl_tier *t, const pl_key *key); /* or will have, when a copy has ended */
/* How many of n keys in a row can be loaded. */
int32_t pl_tier_count(const pl_tier *t, const pl_key *key, int32_t n);
/* Loads the pages of n keys in a row for owner, as far as they are there and `most` pages may be taken; before: the key of
 * the page before them, NULL: none. Returns how many keys it got to. They are cached, as far as they turn out to be good,
 * when pl_tier_loaded(ticket). */
int32_t pl_tier_load(pl_tier *t, const pl_key *key, const pl_key *before, int32_t n, int32_t most, int64_t owner,
                     uint64_t *ticket);
bool pl_tier_loaded(const pl_tier *t, uint64_t ticket);
/* Copies cached pages out while at most `most` copies are under way: those of n keys; or the idle ones that eviction will
 * come to soon. Returns how many of the keys need no more copy. */
int32_t pl_tier_spill_keys(pl_tier *t, const pl_key *key, int32_t n, int32_t most);
void pl_tier_spill(pl_tier *t, int32_t most);
/* Takes note of the copies that have ended; returns whether a load was among them. */
bool pl_tier_poll(pl_tier *t);
/* Waits until a copy ends, for at most s seconds; whether one has. */
bool pl_tier_wait(pl_tier *t, double s);
/* Pages that loads hold, for pl_kv_reclaim. */
int32_t pl_tier_holds(const pl_tier *t, pl_hold *hold); /* [n_pages] */
int32_t pl_tier_copies(const pl_tier *t);               /* that are under way */
double pl_tier_rate(const pl_tier *t);                  /* bytes a second of copies so far; 0: none */
void pl_tier_metrics(const pl_tier *t, pl_metrics *m);
const char *pl_tier_failure(const pl_tier *t); /* the first thing that the disk refused; NULL: nothing */

void pl_tier_stall(pl_tier *t, bool stalled); /* for faults: the worker begins no copy meanwhile */
#endif
