/* Fuzz target: quantised checkpoints. Two texts, each ended by a zero byte: config.json, and the head of a safetensors
 * file; then the data, repeated to 4 KB. What the readers let through is put together, and every value looked at. */
#include "config.h"
#include "dtype.h"
#include "fuzz.h"
#include "parts.h"
#include "safetensors.h"
#include <stdlib.h>

enum { DATA = 4096, MAX_WEIGHT = 1 << 20 };

static void build(const pl_toc *files, const pl_toc_entry *e, const uint8_t *data)
{
    pl_part part[PL_MAX_PARTS] = {{0}};
    pl_err err = {0};
    const bool order = e->join.how == PL_JOIN_ORDER;
    PL_ASSERT(e->dtype >= 0 && e->ndim >= (order ? 1 : 2) && e->ndim <= PL_MAX_DIMS);
    for (int i = 0; i < PL_MAX_PARTS; i++)
        if (e->join.part[i] >= 0)
            part[i] = (pl_part){&files->e[e->join.part[i]], data + files->e[e->join.part[i]].offset};
    if (e->bytes > MAX_WEIGHT) return;
    const pl_dtype_info *d = pl_dtype(e->dtype);
    uint8_t *out = malloc((size_t)e->bytes); /* just so many, for the sanitizer */
    const int64_t n = e->bytes / d->bytes * d->block;
    float *y = malloc((size_t)n * 4);
    if (out && y) {
        const int rc = pl_parts_build(e, part, out, &err);
        check_report(rc, &err);
        if (rc == PL_OK && order) {
            for (int64_t i = 0; i < n; i++) y[i] = 0;
            for (int64_t i = 0; i < n; i++) y[((int32_t *)(void *)out)[i]] += 1;
            for (int64_t i = 0; i < n; i++) PL_ASSERT(y[i] == 1);
        } else if (rc == PL_OK) {
            pl_row_to_f32(e->dtype, y, out, n);
        }
        if (rc == PL_OK && d->is_bad && pl_row_first_bad(e->dtype, out, e->bytes / d->bytes) < 0)
            for (int64_t i = 0; i < n; i++) PL_ASSERT(y[i] - y[i] == 0); /* is finite, as promised */
    }
    free(out);
    free(y);
}

static const uint8_t *values_of(const void *arg, const pl_toc_entry *e) { return (const uint8_t *)arg + e->offset; }

static void use(const pl_meta *meta, const uint8_t *file, int64_t size)
{
    pl_toc files = {0}, toc = {0};
    pl_scheme scheme;
    pl_err err = {0};
    int rc = pl_safetensors_parse(&files, 0, file, size, &err);
    if (rc == PL_OK) rc = pl_toc_seal(&files, "safetensors", &err);
    check_report(rc, &err);
    if (rc == PL_OK) {
        rc = pl_scheme_read(&scheme, meta, &err);
        check_report(rc, &err);
        if (rc == PL_OK && scheme.by != PL_BY_NOBODY) {
            rc = pl_parts_join(&toc, &files, &scheme, values_of, file, &err);
            check_report(rc, &err);
            for (int32_t i = 0; rc == PL_OK && i < toc.n; i++)
                if (toc.e[i].join.how) build(&files, &toc.e[i], file);
        }
        pl_scheme_clear(&scheme);
    }
    pl_toc_clear(&files);
    pl_toc_clear(&toc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    if (!end) return 0;
    const size_t n_config = (size_t)(end - data), left = size - n_config - 1;
    const uint8_t *head = end + 1, *rest = left ? memchr(head, 0, left) : NULL;
    if (!rest) return 0;
    const uint64_t n_head = (uint64_t)(rest - head);
    const size_t n_rest = left - n_head - 1;
    pl_meta meta = {0};
    pl_err err = {0};
    int rc = pl_config_parse(&meta, "", (const char *)data, (int64_t)n_config, &err);
    if (rc == PL_OK) rc = pl_meta_seal(&meta, "config", &err);
    uint8_t *file = rc == PL_OK ? malloc(8 + n_head + DATA) : NULL;
    if (file) {
        memcpy(file, &n_head, 8);
        memcpy(file + 8, head, n_head);
        for (size_t i = 0; i < DATA; i++) file[8 + n_head + i] = n_rest ? rest[1 + i % n_rest] : 0x11;
        use(&meta, file, (int64_t)(8 + n_head + DATA));
    }
    free(file);
    pl_meta_clear(&meta);
    return 0;
}
