/* probe.c: what this machine can do at most: a plain read of memory, and the loops of probe.h on all threads. */
#include "probe.h"
#include <math.h>

typedef struct read_job {
    const uint64_t *p;
    _Atomic uint64_t sum;
} read_job;

static void read_part(void *arg, int64_t from, int64_t to, int thread)
{
    enum { PER = PL_PROBE_PAGE / 8, AHEAD = 256 };
    (void)thread;
    read_job *j = arg;
    uint64_t s[8] = {0};
    for (int64_t i = from * PER; i < to * PER; i += 8) {
        __builtin_prefetch(j->p + i + AHEAD);
        PL_UNROLL for (int l = 0; l < 8; l++) s[l] += j->p[i + l];
    }
    j->sum += s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static void run_float(void *sink)
{
    float a[8], x = 0.999f, y = 1e-3f;
    for (int i = 0; i < 8; i++) a[i] = (float)i;
    for (int r = 0; r < PL_PROBE_ROUNDS; r++) PL_UNROLL for (int i = 0; i < 8; i++) a[i] = fmaf(a[i], x, y);
    memcpy(sink, a, sizeof a);
}
static const pl_probe portable_float = {run_float, 8 * 2};

static const pl_probe *probe_of(const pl_stream *s, int32_t probe)
{
    const bool is_avx512 = s->path == PL_PATH_AVX512 || s->path == PL_PATH_AMX;
    const bool is_avx2 = s->path == PL_PATH_AVX2 || s->path == PL_PATH_SOFT_AMX;
#ifdef PL_X86
    if (probe == PL_PROBE_FLOAT && is_avx512) return &pl_probe_float_avx512;
    if (probe == PL_PROBE_FLOAT && is_avx2) return &pl_probe_float_avx2;
    if (probe == PL_PROBE_INT8 && is_avx512) return &pl_probe_int8_avx512;
    if (probe == PL_PROBE_INT8 && is_avx2) return &pl_probe_int8_avx2;
    if (probe == PL_PROBE_TILE_BF16 && s->path == PL_PATH_AMX) return &pl_probe_tile_bf16;
    if (probe == PL_PROBE_TILE_INT8 && s->path == PL_PATH_AMX) return &pl_probe_tile_int8;
#endif
    return probe == PL_PROBE_FLOAT && !is_avx512 && !is_avx2 ? &portable_float : NULL;
}

typedef struct loop_job {
    const pl_probe *probe;
    char *sink; /* [threads][64] */
} loop_job;

static void loop_part(void *arg, int64_t from, int64_t to, int thread)
{
    const loop_job *j = arg;
    for (int64_t i = from; i < to; i++) j->probe->run(j->sink + 64 * thread);
}

int pl_cpu_probe(pl_stream *s, int32_t probe, const pl_tensor *memory, double *work, pl_err *err)
{
    enum { PARTS = 8 }; /* a thread: they are handed out, so that one that comes late does less */
    if (probe == PL_PROBE_READ) {
        if (!memory || memory->dev != PL_DEV_CPU || memory->layout != PL_ROWS || memory->ndim != 1 ||
            memory->stride[0] != 1)
            return pl_fail(err, PL_EARG, "probe: want a plain list as memory to read");
        const int64_t bytes = memory->dim[0] / pl_dtype_block(memory->dtype) * pl_dtype_bytes(memory->dtype);
        const int64_t pages = bytes / PL_PROBE_PAGE;
        read_job j = {memory->data, 0};
        pl_parallel(s, pages, 8, read_part, &j);
        *work = (double)pages * PL_PROBE_PAGE;
        return PL_OK;
    }
    const pl_probe *p = probe_of(s, probe);
    if (!p) return pl_fail(err, PL_EDEV, "probe: path %s has no probe %d", pl_path_name(s->path), probe);
    const pl_mark m = pl_scratch_mark(s);
    loop_job j = {p, pl_scratch(s, 64 * (int64_t)s->n_threads, err)};
    if (!j.sink) return PL_ENOMEM;
    pl_parallel(s, PARTS * (int64_t)s->n_threads, 1, loop_part, &j);
    pl_scratch_release(s, m);
    *work = p->work * PL_PROBE_ROUNDS * PARTS * s->n_threads;
    return PL_OK;
}
