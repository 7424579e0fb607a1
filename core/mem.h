#ifndef PL_MEM_H
#define PL_MEM_H
/* Memory by purpose: small things of the core come from malloc (jemalloc in release builds); large regions
 * (weights, pages, activations) are mappings of our own, in 2 MB pages where the kernel grants them. */
#include "base.h"

enum { PL_HUGE = 2 << 20 };

/* Zeroed, 64-byte aligned (2 MB from PL_HUGE up); NULL: no memory, or not so much in the machine. */
void *pl_mem_map(int64_t bytes);
void pl_mem_unmap(void *p, int64_t bytes); /* bytes as given to pl_mem_map; NULL is accepted */

/* The whole pages between two addresses of a file mapping leave memory (advice: it may be refused). */
void pl_mem_drop(const void *from, const void *to);

/* Arrays that grow: *p has room for n elements of `size` afterwards. */
PL_MUST int pl_mem_grow(void **p, int32_t *cap, int32_t n, size_t size, pl_err *err);
#endif
