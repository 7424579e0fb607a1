/* dev.c: the CPU as a backend: opening it, its memory, and the scratch of its ops. */
#include "cpu.h"
#include "mem.h"
#include <stdio.h>
#include <stdlib.h>

static void cpu_close(pl_stream *s)
{
    pl_cpu *c = s->impl;
    if (!c) return;
    for (int32_t i = 0; i < c->n_chunks; i++) pl_mem_unmap(c->chunk[i].mem, c->chunk[i].bytes);
    pl_pool_free(c->pool);
    free(c);
    s->impl = NULL;
}

static int cpu_open(pl_stream *s, const pl_dev_opts *o, pl_err *err)
{
    const int32_t path = o->path == PL_PATH_AUTO ? pl_cpu_best_path() : o->path;
    if (!pl_cpu_has_path(path))
        return pl_fail(err, PL_EDEV, "cpu: path %s: this machine lacks it, its best is %s", pl_path_name(path),
                       pl_path_name(pl_cpu_best_path()));
    pl_cpu *c = calloc(1, sizeof *c);
    if (!c) return pl_fail(err, PL_ENOMEM, "cpu: no memory");
    const int rc = pl_pool_new(&c->pool, o->n_threads, err);
    if (rc < 0) {
        free(c);
        return rc;
    }
    c->denormals = pl_cpu_free_denormals();
    s->impl = c;
    s->path = path;
    s->n_threads = c->n_few = pl_pool_threads(c->pool);
    return PL_OK;
}

static int cpu_describe(const pl_stream *s, char *text, int32_t cap)
{
    const pl_cpu *c = s->impl;
    char few[48] = "";
    if (c->n_few < s->n_threads) snprintf(few, sizeof few, " (%d for up to %d tokens)", c->n_few, PL_FEW_TOKENS);
    return snprintf(text, (size_t)pl_max(cap, 0), "cpu: path %s, %d thread%s%s", pl_path_name(s->path), s->n_threads,
                    s->n_threads == 1 ? "" : "s", few);
}

static void cpu_begin(pl_stream *s, int64_t tokens)
{
    const pl_cpu *c = s->impl;
    const int32_t want = tokens <= PL_FEW_TOKENS ? c->n_few : s->n_threads;
    if (want != pl_pool_active(c->pool)) pl_pool_limit(c->pool, want);
}

static void *cpu_alloc(void *impl, int64_t bytes)
{
    (void)impl;
    return pl_mem_map(bytes);
}
static void cpu_free(void *impl, void *p, int64_t bytes)
{
    (void)impl;
    pl_mem_unmap(p, bytes);
}
static int cpu_copy(void *impl, void *dst, const void *src, int64_t bytes, pl_err *err)
{
    (void)impl;
    (void)err;
    memcpy(dst, src, (size_t)bytes);
    return PL_OK;
}
static int cpu_sync(void *impl, pl_err *err)
{
    (void)impl;
    (void)err;
    return PL_OK;
}

const pl_backend *pl_cpu_backend(void)
{
    static const pl_backend backend = {
        .kind = PL_DEV_CPU,
        .open = cpu_open,
        .close = cpu_close,
        .describe = cpu_describe,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .copy_in = cpu_copy,
        .copy_out = cpu_copy,
        .copy = cpu_copy,
        .sync = cpu_sync,
        .pack = pl_cpu_pack,
        .packed_bytes = pl_cpu_packed_bytes,
        .probe = pl_cpu_probe,
        .products = pl_cpu_products,
        .fit = pl_cpu_fit,
        .begin = cpu_begin,
    };
    return &backend;
}

pl_mark pl_scratch_mark(const pl_stream *s)
{
    const pl_cpu *c = s->impl;
    return (pl_mark){c->at, c->used};
}

void *pl_scratch(pl_stream *s, int64_t bytes, pl_err *err)
{
    enum { FIRST = 1 << 20 };
    pl_cpu *c = s->impl;
    bytes = pl_round_up(pl_max(bytes, 1), 64);
    while (c->at < c->n_chunks && c->chunk[c->at].bytes - c->used < bytes) {
        c->at++;
        c->used = 0;
    }
    if (c->at == c->n_chunks) {
        if (c->n_chunks == PL_MAX_CHUNKS) {
            pl_fail(err, PL_ENOMEM, "scratch: %lld bytes more than can be held", (long long)bytes);
            return NULL;
        }
        const int64_t last = c->n_chunks ? c->chunk[c->n_chunks - 1].bytes : FIRST / 2, want = pl_max(bytes, 2 * last);
        char *mem = pl_mem_map(want);
        if (!mem) {
            pl_fail(err, PL_ENOMEM, "scratch: no memory for %lld bytes", (long long)want);
            return NULL;
        }
        c->chunk[c->n_chunks++] = (pl_chunk){mem, want};
        c->used = 0;
    }
    char *p = c->chunk[c->at].mem + c->used;
    c->used += bytes;
    return p;
}

/* When all is given back, several chunks become none: the next op takes one that is large enough. */
void pl_scratch_release(pl_stream *s, pl_mark m)
{
    pl_cpu *c = s->impl;
    c->at = m.at;
    c->used = m.used;
    if (m.at || m.used || c->n_chunks < 2) return;
    for (int32_t i = 0; i < c->n_chunks - 1; i++) pl_mem_unmap(c->chunk[i].mem, c->chunk[i].bytes);
    c->chunk[0] = c->chunk[c->n_chunks - 1];
    c->n_chunks = 1;
}
