#ifndef FUZZ_H
#define FUZZ_H
/* What the fuzz targets share. A target feeds foreign bytes to one parser and then uses all that the parser let
 * through, so that a bad value that slipped in is touched where the sanitizers see it. */
#include "base.h"
#include "dev.h"
#include "meta.h"
#include "toc.h"

/* Tensors know their device; no parser opens one. */
const pl_backend *pl_cpu_backend(void) { return NULL; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A failure reports itself, in words that end within the buffer. */
static inline void check_report(int rc, const pl_err *err)
{
    if (rc >= 0) return;
    PL_ASSERT(err->code == rc && err->line > 0 && err->msg[0]);
    PL_ASSERT(memchr(err->msg, 0, sizeof err->msg) != NULL);
    for (const char *p = err->msg; *p; p++) PL_ASSERT((uint8_t)*p >= 0x20); /* no terminal codes from a file */
}

/* Every value is where it says, and can be had. */
static inline int64_t use_meta(const pl_meta *m)
{
    int64_t sum = 0, v, n;
    double d;
    const char *s;
    for (int32_t i = 0; i < m->n; i++) {
        const pl_meta_entry *e = &m->e[i];
        PL_ASSERT(pl_meta_find(m, e->key) == i);
        for (int64_t j = 0; j < e->n; j++) {
            if (pl_meta_int(e, j, &v, NULL) == PL_OK) sum += v & 1;
            if (pl_meta_float(e, j, &d, NULL) == PL_OK) sum += d > 0;
            if (pl_meta_string(e, j, &s, &n, NULL) == PL_OK)
                for (int64_t k = 0; k < n; k++) sum += s[k];
        }
        PL_ASSERT(pl_meta_int(e, e->n, &v, NULL) == PL_EARG);
    }
    return sum;
}

/* Every tensor lies within the file. */
static inline int64_t use_toc(const pl_toc *t, const uint8_t *data, int64_t size)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < t->n; i++) {
        const pl_toc_entry *e = &t->e[i];
        PL_ASSERT(pl_toc_find(t, e->name) == i);
        PL_ASSERT(e->offset >= 0 && e->bytes >= 0 && e->offset <= size && e->bytes <= size - e->offset && e->ndim >= 1);
        if (e->bytes) sum += data[e->offset] + data[e->offset + e->bytes - 1];
    }
    return sum;
}
#endif
