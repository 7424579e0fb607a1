/* tier_slot.c: the slots of one tier by key (a hash table) and by last use (a list). */
#include "tier_impl.h"
#include <stdlib.h>

int tier_table_open(tier_table *t, int32_t n, pl_err *err)
{
    *t = (tier_table){.n = n, .n_buckets = 16, .empty = -1, .oldest = -1, .newest = -1};
    while (t->n_buckets < n && t->n_buckets < 1 << 30) t->n_buckets *= 2;
    t->slot = calloc((size_t)n, sizeof *t->slot);
    t->bucket = malloc((size_t)t->n_buckets * sizeof *t->bucket);
    if (!t->slot || !t->bucket) return pl_fail(err, PL_ENOMEM, "tier: no memory for the keys of %d pages", n);
    for (int32_t i = 0; i < t->n_buckets; i++) t->bucket[i] = -1;
    return PL_OK;
}

void tier_link_empty(tier_table *t)
{
    for (int32_t i = t->n - 1; i >= 0; i--)
        if (t->slot[i].state == SLOT_EMPTY)
            t->slot[i].next = t->empty, t->empty = i; /* the first ones are filled first */
}

void tier_table_close(tier_table *t)
{
    free(t->slot);
    free(t->bucket);
    *t = (tier_table){0};
}

static int32_t *bucket_of(const tier_table *t, const pl_key *key)
{
    uint64_t h;
    memcpy(&h, key->byte, sizeof h);
    return &t->bucket[h & (uint64_t)(t->n_buckets - 1)];
}

int32_t tier_find(const tier_table *t, const pl_key *key)
{
    if (t->n == 0) return -1;
    int32_t i = *bucket_of(t, key);
    while (i >= 0 && memcmp(&t->slot[i].key, key, sizeof *key) != 0) i = t->slot[i].next;
    return i;
}

static void unlink_use(tier_table *t, int32_t i)
{
    const tier_slot *s = &t->slot[i];
    *(s->older >= 0 ? &t->slot[s->older].newer : &t->oldest) = s->newer;
    *(s->newer >= 0 ? &t->slot[s->newer].older : &t->newest) = s->older;
}

static void link_newest(tier_table *t, int32_t i)
{
    t->slot[i].older = t->newest;
    t->slot[i].newer = -1;
    *(t->newest >= 0 ? &t->slot[t->newest].newer : &t->oldest) = i;
    t->newest = i;
}

void tier_touch(tier_table *t, int32_t i)
{
    unlink_use(t, i);
    link_newest(t, i);
}

void tier_drop(tier_table *t, int32_t i)
{
    tier_slot *s = &t->slot[i];
    PL_ASSERT(s->state != SLOT_EMPTY && s->pins == 0);
    int32_t *at = bucket_of(t, &s->key);
    while (*at != i) at = &t->slot[*at].next;
    *at = s->next;
    unlink_use(t, i);
    t->n_full -= s->state == SLOT_FULL;
    *s = (tier_slot){.next = t->empty};
    t->empty = i;
}

int32_t tier_choose(const tier_table *t)
{
    if (t->n == 0 || t->empty >= 0) return t->n ? t->empty : -1;
    int32_t i = t->oldest;
    while (i >= 0 && (t->slot[i].state != SLOT_FULL || t->slot[i].pins)) i = t->slot[i].newer;
    return i;
}

static void enter(tier_table *t, int32_t i, const pl_key *key)
{
    int32_t *at = bucket_of(t, key);
    t->slot[i] = (tier_slot){.key = *key, .state = SLOT_FILLING, .next = *at};
    *at = i;
    link_newest(t, i);
}

void tier_fill(tier_table *t, int32_t i, const pl_key *key)
{
    PL_ASSERT(t->empty == i && t->slot[i].state == SLOT_EMPTY);
    t->empty = t->slot[i].next;
    enter(t, i, key);
}

void tier_restore(tier_table *t, int32_t i, const pl_key *key, uint64_t digest)
{
    const int32_t old = tier_find(t, key);
    if (old >= 0) {
        tier_drop(t, old);
        t->empty = t->slot[old].next; /* tier_link_empty comes last */
    }
    enter(t, i, key);
    tier_filled(t, i, digest);
}

void tier_filled(tier_table *t, int32_t i, uint64_t digest)
{
    PL_ASSERT(t->slot[i].state == SLOT_FILLING);
    t->slot[i].state = SLOT_FULL;
    t->slot[i].digest = digest;
    t->n_full++;
}
