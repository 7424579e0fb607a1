/* packed_huge.c: while a packed file is used, its tensors move from the file's pages of 4 kB into ones of 2 MB. A piece is
 * copied, and the copy takes the place of the pages that it was made of, at the same address and in one step: who reads
 * them sees the same bytes before, during (it waits) and after. */
#include "packed_huge.h"
#include "mem.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Each piece is a mapping of its own, and a process may have 65530 of them (vm.max_map_count). */
enum { LEAST_PIECE = 4 * PL_HUGE, MOST_PIECES = 1 << 15 };

int64_t pl_huge_piece(int64_t bytes)
{
    int64_t piece = LEAST_PIECE;
    while (bytes / piece >= MOST_PIECES) piece *= 2;
    return piece;
}

struct pl_huge {
    pthread_t thread;
    char *from, *to; /* whole huge pages */
    int32_t stop;
    int64_t moved;
};

/* The number behind `key` at the start of a line of a file of the system's, or 0. */
static int64_t figure(const char *path, const char *key)
{
    char line[128];
    int64_t v = 0;
    FILE *f = fopen(path, "re");
    while (f && v == 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) v = strtoll(line + strlen(key), NULL, 10);
    if (f) fclose(f);
    return v;
}

/* Bytes that could be taken without taking them from anybody; the file's own pages count, as they can leave memory. */
static int64_t free_memory(void)
{
    const int64_t bytes = figure("/proc/meminfo", "MemAvailable:") * 1024;
    const int64_t limit = figure("/sys/fs/cgroup/memory.max", ""); /* of a container; "max": 0 */
    return limit ? pl_min(bytes, limit - figure("/sys/fs/cgroup/memory.stat", "anon ")) : bytes;
}

static bool has_huge_pages(void)
{
    char line[64] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    return line[0] && !strstr(line, "[never]");
}

static bool move(char *at, int64_t bytes)
{
    char *copy = pl_mem_map(bytes);
    if (!copy) return false;
    memcpy(copy, at, (size_t)bytes);
    if (mprotect(copy, (size_t)bytes, PROT_READ) == 0 &&
        mremap(copy, (size_t)bytes, (size_t)bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at)
        return true;
    pl_mem_unmap(copy, bytes);
    return false;
}

static void *work(void *arg)
{
    pl_huge *h = arg;
    const int64_t piece = pl_huge_piece(h->to - h->from);
    setpriority(PRIO_PROCESS, (id_t)gettid(), 10); /* of this thread: the first tokens come before it */
    for (char *at = h->from; at < h->to && !__atomic_load_n(&h->stop, __ATOMIC_RELAXED);) {
        const int64_t bytes = pl_min(piece, h->to - at);
        if (!move(at, bytes)) break; /* the file's pages do as well */
        at += bytes;
        __atomic_store_n(&h->moved, at - h->from, __ATOMIC_RELAXED);
    }
    return NULL;
}

int pl_huge_start(pl_huge **out, uint8_t *from, const uint8_t *to, pl_err *err)
{
    const intptr_t first = pl_round_up((intptr_t)from, PL_HUGE), last = (intptr_t)to / PL_HUGE * PL_HUGE;
    *out = NULL;
    if (last <= first || !has_huge_pages() || free_memory() < (last - first) / 8 * 9) return PL_OK;
    pl_huge *h = calloc(1, sizeof *h);
    if (!h) return pl_fail(err, PL_ENOMEM, "packed: no memory");
    h->from = (char *)first;
    h->to = (char *)first + (last - first);
    if (pthread_create(&h->thread, NULL, work, h) != 0) {
        free(h);
        return pl_fail(err, PL_ELIMIT, "packed: no thread");
    }
    *out = h;
    return PL_OK;
}

int64_t pl_huge_moved(const pl_huge *h) { return h ? __atomic_load_n(&h->moved, __ATOMIC_RELAXED) : 0; }

void pl_huge_stop(pl_huge *h)
{
    if (!h) return;
    __atomic_store_n(&h->stop, 1, __ATOMIC_RELAXED);
    pthread_join(h->thread, NULL);
    free(h);
}
