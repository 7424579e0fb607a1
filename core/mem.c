/* mem.c: large mappings and growing arrays. */
#include "mem.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int64_t whole_pages(int64_t bytes) { return pl_round_up(bytes, sysconf(_SC_PAGESIZE)); }

static bool machine_has(int64_t bytes) { return bytes / sysconf(_SC_PAGESIZE) <= sysconf(_SC_PHYS_PAGES); }

/* More than the machine has is refused here: the kernel would give it, and take it back by killing someone.
 * The mapping ends where its last small page does: what is left over of the last 2 MB is not in memory, which for many
 * tensors of a few MB is a tenth of them all. */
void *pl_mem_map(int64_t bytes)
{
    if (bytes <= 0 || !machine_has(bytes)) return NULL;
    if (bytes < PL_HUGE) {
        void *p = aligned_alloc(64, (size_t)pl_round_up(bytes, 64));
        if (p) memset(p, 0, (size_t)pl_round_up(bytes, 64));
        return p;
    }
    const int64_t want = whole_pages(bytes), room = want + PL_HUGE;
    char *p = mmap(NULL, (size_t)room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    char *q = (char *)pl_round_up((int64_t)(intptr_t)p, PL_HUGE);
    if (q > p) munmap(p, (size_t)(q - p));
    if (p + room > q + want) munmap(q + want, (size_t)(p + room - (q + want)));
    madvise(q, (size_t)want, MADV_HUGEPAGE); /* refusal is harmless */
    return q;
}

void pl_mem_unmap(void *p, int64_t bytes)
{
    if (!p) return;
    if (bytes < PL_HUGE)
        free(p);
    else
        munmap(p, (size_t)whole_pages(bytes));
}

void pl_mem_drop(const void *from, const void *to)
{
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t first = pl_round_up((int64_t)(intptr_t)from, page), last = (int64_t)(intptr_t)to / page * page;
    if (last > first) madvise((void *)(intptr_t)first, (size_t)(last - first), MADV_DONTNEED);
}

int pl_mem_grow(void **p, int32_t *cap, int32_t n, size_t size, pl_err *err)
{
    if (n <= *cap) return PL_OK;
    int64_t want = *cap ? *cap : 8;
    while (want < n) want *= 2;
    if (want > INT32_MAX) return pl_fail(err, PL_ELIMIT, "memory: an array of %d elements", n);
    void *q = realloc(*p, (size_t)want * size);
    if (!q) return pl_fail(err, PL_ENOMEM, "memory: no room for %lld elements of %zu bytes", (long long)want, size);
    *p = q;
    *cap = (int32_t)want;
    return PL_OK;
}
