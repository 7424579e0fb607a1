/* bench/attend.c: speed of attention over the paged cache, per format of the cache, depth and number of threads: a
 * decode step (one query) in GB/s of keys and values beside the machine's read bandwidth, a prefill step (512 queries)
 * in GMAC/s. The cache is larger than the CPU's: as many layers as that takes, each read once a pass, as a model does.
 * The formats take turns within a round; times are medians over rounds, ratios to BF16 medians of the rounds' ratios.
 *   bench_attend [-t threads] [-d depth] [-s heads/key heads/dim] [-r rounds] [-q 1|512] [-p path] [-c]   (-c: CSV) */
#include "cpu.h"
#include "kv.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PREFILL = 512, MAX_ROUNDS = 64 };
enum { F32, BF16, F8_TENSOR, F8_TOKEN, N_FORMATS };
static const char *const format_name[N_FORMATS] = {"f32", "bf16", "f8 tensor", "f8 token"};
static const int32_t format_dtype[N_FORMATS] = {PL_F32, PL_BF16, PL_F8, PL_F8};
static const int32_t format_scale[N_FORMATS] = {PL_SCALE_NONE, PL_SCALE_NONE, PL_SCALE_TENSOR, PL_SCALE_TOKEN};

typedef struct shape {
    int heads, groups, dim;
} shape;
typedef struct bench {
    pl_stream *s;
    shape h;
    int64_t depth;
    int n_queries, rounds;
    bool csv;
} bench;

static void must(int rc, const pl_err *e)
{
    if (rc >= 0) return;
    fprintf(stderr, "bench: %s\n", e->msg);
    exit(1);
}
/* With one thread its CPU time, because machines are shared; with more, wall time. */
static double clock_of(const pl_stream *s)
{
    struct timespec t;
    clock_gettime(s->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(const double *v, int n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, v, sizeof *v * (size_t)n);
    qsort(sorted, (size_t)n, sizeof *sorted, by_size);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* About normal numbers, the largest of which are the largest of E4M3, as with scales that were calibrated. */
static void fill(uint8_t *mem, int64_t bytes, int32_t dtype)
{
    enum { PATTERN = 1 << 20 }; /* bytes; then it repeats */
    uint64_t r = 88172645463325252u;
    const int64_t size = dtype == PL_F8 ? 1 : dtype == PL_BF16 ? 2 : 4, first = pl_min(PATTERN, bytes);
    for (int64_t i = 0; i + size <= first; i += size) {
        float x = -2;
        r ^= r << 13, r ^= r >> 7, r ^= r << 17;
        for (int k = 0; k < 4; k++) x += (float)(r >> (16 * k) & 0xffff) * 0x1p-16f;
        if (dtype == PL_F8)
            mem[i] = pl_f32_f8(x * 224);
        else
            memcpy(mem + i, &(uint32_t){dtype == PL_BF16 ? pl_f32_bf16(x) : pl_f32_bits(x)}, (size_t)size);
    }
    for (int64_t i = first; i < bytes; i += first) memcpy(mem + i, mem, (size_t)pl_min(first, bytes - i));
}

/* A cache with one sequence of `depth` tokens whose last n_queries are the running step. */
static pl_kv *new_cache(const bench *b, int format, int32_t layers)
{
    pl_err e = {0};
    pl_kv *kv = NULL;
    const pl_kv_opts o = {.layers = layers,
                          .heads = b->h.groups,
                          .key_dim = b->h.dim,
                          .value_dim = b->h.dim,
                          .dtype = format_dtype[format],
                          .scale = format_scale[format],
                          .n_pages = b->depth / 64 + 2};
    must(pl_kv_open(&kv, b->s->dev, &o, &e), &e);
    float scale[64];
    for (int i = 0; i < 64; i++) scale[i] = 1.0f / 224;
    for (int32_t l = 0; l < layers && o.scale == PL_SCALE_TENSOR; l++)
        must(pl_kv_set_scales(kv, l, scale, scale, &e), &e);
    int32_t seq;
    must(pl_kv_seq_new(kv, 1, &seq, &e), &e);
    pl_span span = {seq, (int32_t)b->depth - b->n_queries};
    must(pl_kv_begin(kv, &span, 1, &e), &e);
    must(pl_kv_commit(kv, &e), &e);
    span.n = b->n_queries;
    must(pl_kv_begin(kv, &span, 1, &e), &e);
    fill(kv->mem, o.n_pages * kv->page_bytes, o.dtype);
    for (int32_t l = 0; l < layers && o.scale == PL_SCALE_TOKEN; l++)
        for (int64_t t = 0; t < b->depth; t++)
            for (int v = 0; v < 2; v++)
                memcpy(pl_kv_token_scale(kv, &kv->seq[seq], l, t, v), scale, sizeof *scale * (size_t)b->h.groups);
    return kv;
}

/* Bytes per second of a plain read of the cache's memory. */
typedef struct read_job {
    const uint8_t *p;
    _Atomic uint64_t sum;
} read_job;
static void read_part(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    read_job *j = arg;
    uint64_t s[8] = {0}, v[8];
    for (const uint8_t *p = j->p + from * 4096; p < j->p + to * 4096; p += 64) {
        __builtin_prefetch(p + 2048);
        memcpy(v, p, 64);
        for (int l = 0; l < 8; l++) s[l] += v[l];
    }
    j->sum += s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}
static double read_time(const bench *b, const pl_kv *kv)
{
    read_job j = {kv->mem, 0};
    const double t = clock_of(b->s);
    pl_parallel(b->s, kv->o.n_pages * kv->page_bytes / 4096, 64, read_part, &j);
    return clock_of(b->s) - t;
}

static double pass_time(const bench *b, pl_kv *kv, pl_tensor *y, const pl_tensor *q, int32_t layers)
{
    pl_err e = {0};
    const double t = clock_of(b->s);
    for (int32_t l = 0; l < layers; l++) must(pl_cpu_attend(b->s, y, q, kv, l, 0.1f, 0, &e), &e);
    return clock_of(b->s) - t;
}

static void run(const bench *b)
{
    pl_err e = {0};
    const int64_t per_layer = b->depth * b->h.groups * b->h.dim * 4; /* BF16 */
    const int32_t layers = b->n_queries > 1 ? 1 : (int32_t)((96 << 20) / per_layer + 1);
    const int64_t dim[3] = {b->n_queries, b->h.heads, b->h.dim};
    pl_tensor q = {0}, y = {0};
    must(pl_tensor_new(&q, b->s->dev, PL_F32, 3, dim, &e), &e);
    must(pl_tensor_new(&y, b->s->dev, PL_F32, 3, dim, &e), &e);
    for (int64_t i = 0; i < dim[0] * dim[1] * dim[2]; i++) ((float *)q.data)[i] = (float)(i % 37 - 18) * 0.06f;
    pl_kv *kv[N_FORMATS];
    double time[N_FORMATS][MAX_ROUNDS], ratio[MAX_ROUNDS], read[MAX_ROUNDS];
    for (int f = 0; f < N_FORMATS; f++) kv[f] = new_cache(b, f, layers);
    for (int r = -1; r < b->rounds; r++) /* the first one warms up */
        for (int f = 0; f < N_FORMATS; f++) {
            if (f == BF16) read[pl_max(r, 0)] = read_time(b, kv[f]);
            time[f][pl_max(r, 0)] = pass_time(b, kv[f], &y, &q, layers);
        }
    const double read_gb = (double)(kv[BF16]->o.n_pages * kv[BF16]->page_bytes) / median(read, b->rounds) * 1e-9;
    double pairs = 0; /* of a query and a key that it sees, per query head */
    for (int i = 0; i < b->n_queries; i++) pairs += (double)(b->depth - i);
    for (int f = 0; f < N_FORMATS; f++) {
        for (int r = 0; r < b->rounds; r++) ratio[r] = time[BF16][r] / time[f][r];
        const double t = median(time[f], b->rounds) / layers, faster = median(ratio, b->rounds);
        const double gb = (double)(b->depth * kv[f]->layer_bytes / kv[f]->o.page) / t * 1e-9;
        const double mac = pairs * b->h.heads * b->h.dim * 2 / t * 1e-9;
        if (b->csv)
            printf("attend,%s,%d,%d/%d/%d,%d,%lld,%s,%.3f,%.2f,%.2f,%.1f,%.3f\n", pl_path_name(b->s->path),
                   b->s->n_threads, b->h.heads, b->h.groups, b->h.dim, b->n_queries, (long long)b->depth,
                   format_name[f], t * 1e6, gb, read_gb, mac, faster);
        else
            printf("%d/%d of %-3d  threads %d  queries %3d  depth %5lld  %-9s  %9.1f us/layer  %6.2f GB/s (read %.1f)  "
                   "%5.1f GMAC/s  bf16 x %.2f\n",
                   b->h.heads, b->h.groups, b->h.dim, b->s->n_threads, b->n_queries, (long long)b->depth,
                   format_name[f], t * 1e6, gb, read_gb, mac, faster);
    }
    fflush(stdout);
    for (int f = 0; f < N_FORMATS; f++) {
        pl_kv_abort(kv[f]);
        pl_kv_close(kv[f]);
    }
    pl_tensor_release(&q);
    pl_tensor_release(&y);
}

int main(int argc, char **argv)
{
    shape shapes[3] = {{9, 3, 64}, {14, 2, 64}, {32, 8, 128}};
    int64_t depths[3] = {1024, 4096, 16384};
    int n_shapes = 3, n_depths = 3, only_threads = 0, only_queries = 0;
    int32_t path = PL_PATH_AUTO;
    bench b = {.rounds = 7};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-c")) b.csv = true;
        if (argv[i][0] != '-' || i + 1 == argc) continue;
        const char *v = argv[i + 1];
        if (argv[i][1] == 't') only_threads = atoi(v);
        if (argv[i][1] == 'q') only_queries = atoi(v);
        if (argv[i][1] == 'r') b.rounds = (int)pl_max(1, pl_min(MAX_ROUNDS, atoi(v)));
        if (argv[i][1] == 'd') depths[0] = pl_max(PREFILL, atoi(v)), n_depths = 1;
        if (argv[i][1] == 's')
            n_shapes = sscanf(v, "%d/%d/%d", &shapes[0].heads, &shapes[0].groups, &shapes[0].dim) == 3 ? 1 : 0;
        for (int32_t p = 0; p < PL_N_PATHS && argv[i][1] == 'p'; p++)
            if (!strcmp(v, pl_path_name(p))) path = p;
    }
    if (b.csv) printf("bench,path,threads,heads,queries,depth,format,us_per_layer,gb_s,read_gb_s,gmac_s,bf16_ratio\n");
    for (int threads = 1; threads <= 2; threads++) {
        pl_err e = {0};
        pl_dev *d = NULL;
        const pl_dev_opts o = {.kind = PL_DEV_CPU, .n_threads = threads, .path = path};
        if (only_threads && threads != only_threads) continue;
        must(pl_dev_open(&d, &o, &e), &e);
        b.s = pl_dev_stream(d);
        for (int s = 0; s < n_shapes; s++)
            for (int n = 0; n < n_depths; n++)
                for (b.n_queries = 1; b.n_queries <= PREFILL; b.n_queries += PREFILL - 1) {
                    b.h = shapes[s], b.depth = depths[n];
                    if (!only_queries || only_queries == b.n_queries) run(&b);
                }
        pl_dev_close(d);
    }
    return 0;
}
