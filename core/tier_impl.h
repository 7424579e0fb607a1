#ifndef PL_TIER_IMPL_H
#define PL_TIER_IMPL_H
/* The tiers' inside: the table of slots of one tier (tier_slot.c), the disk's file (tier_file.c), the worker and its
 * queues (tier_work.c), and what is copied when (tier.c). */
#include "tier.h"
#include <pthread.h>

/* Slots by key and by last use -------------------------------------------------------------------------------- */

enum { SLOT_EMPTY, SLOT_FILLING, SLOT_FULL };

typedef struct tier_slot {
    pl_key key;
    uint64_t digest;
    uint64_t ticket;     /* of the last load from it */
    int32_t state, pins; /* pins: copies that read it */
    int32_t next;        /* in its bucket, or among the empty ones */
    int32_t older, newer;
} tier_slot;

typedef struct tier_table {
    tier_slot *slot; /* [n] */
    int32_t *bucket; /* [n_buckets] */
    int32_t n, n_buckets;
    int32_t n_full, empty, oldest, newest;
} tier_table;

PL_MUST int tier_table_open(tier_table *t, int32_t n, pl_err *err);
/* Slots that are full from an earlier time, the oldest first; then those that are not can be used. */
void tier_restore(tier_table *t, int32_t i, const pl_key *key, uint64_t digest);
void tier_link_empty(tier_table *t);
void tier_table_close(tier_table *t);
int32_t tier_find(const tier_table *t, const pl_key *key); /* -1: none */
void tier_touch(tier_table *t, int32_t i);
void tier_drop(tier_table *t, int32_t i); /* it is empty */
/* The slot that a new page may have: an empty one, else the least recently used of those that are full and not read;
 * -1: none. */
int32_t tier_choose(const tier_table *t);
void tier_fill(tier_table *t, int32_t i, const pl_key *key); /* an empty slot gets a key and is filling */
void tier_filled(tier_table *t, int32_t i, uint64_t digest);

/* The disk's file ---------------------------------------------------------------------------------------------- */

typedef struct tier_file {
    int fd; /* -1: none */
    char path[256];
    pl_key identity;
    int64_t page_bytes, slot_bytes;
    int32_t n;
} tier_file;

PL_MUST int tier_file_open(tier_file *f, const char *dir, int64_t bytes, int64_t page_bytes, pl_err *err);
void tier_file_close(tier_file *f);
/* What slot i says it holds; false: nothing that can be believed. */
bool tier_file_look(const tier_file *f, int32_t i, pl_key *key, uint64_t *digest, uint64_t *stamp);
/* 0, or what the operating system said. */
int tier_file_write(const tier_file *f, int32_t i, const void *page, const pl_key *key, uint64_t digest,
                    uint64_t stamp);
int tier_file_read(const tier_file *f, int32_t i, void *page);
int tier_file_spoil(const tier_file *f, int32_t i, const void *page); /* for faults: the page without its header */

/* Copies ------------------------------------------------------------------------------------------------------- */

enum { JOB_SPILL_HOST, JOB_SPILL_DISK, JOB_DEMOTE, JOB_LOAD_HOST, JOB_LOAD_DISK };

typedef struct tier_job {
    int32_t kind, next;
    int32_t host, disk; /* slots that it reads or writes */
    pl_hold hold;       /* the page, and the tag that it was issued under */
    pl_key key, before;
    bool first;      /* no page before it */
    bool has_digest; /* it is known */
    bool good;       /* the result: what was read is what the digest says */
    int error;       /* the result: what the operating system said */
    uint64_t digest; /* of the page */
    uint64_t stamp;  /* of a page on disk: which of two is the newer */
    uint64_t ticket; /* of a load */
    double copy_s;   /* the result */
    bool under_way;
} tier_job;

typedef struct tier_queue {
    int32_t first, last;
} tier_queue; /* of jobs; -1: empty */

struct pl_tier {
    pl_kv *kv;
    pl_prefix *prefix;
    tier_table host, disk;
    tier_file file;
    uint8_t *mem; /* [host.n][page_bytes] */
    int64_t mem_bytes;
    uint8_t *bounce; /* [page_bytes] the worker's own */
    tier_job *job;   /* [n_jobs] */
    int32_t n_jobs, unused, n_under_way, n_spills;
    uint64_t n_issued, n_loaded; /* loads; they end in order */
    uint64_t stamp;
    bool disk_off; /* after failures in a row */
    int32_t n_failures_in_a_row;
    char failure[200]; /* the first one */
    pl_tier_figures host_count, disk_count;
    uint64_t n_missed;
    double copied_bytes, copy_s;

    pthread_t worker;
    bool has_worker;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work, ended;
    tier_queue urgent, calm, done;
    bool quit, stalled;
};

PL_MUST int tier_work_start(pl_tier *t, pl_err *err);
void tier_work_stop(pl_tier *t); /* jobs that are still queued stay there */
void tier_push(pl_tier *t, tier_queue *q, int32_t job);
int32_t tier_pop(pl_tier *t, tier_queue *q); /* -1: empty */
/* For faults: the slot's page becomes that of another slot, and its digest stays. False: there is no other. */
bool tier_spoil(pl_tier *t, int32_t host, int32_t disk);
#endif
