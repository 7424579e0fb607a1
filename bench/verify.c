/* bench/verify.c: what integrity costs. Tags: one pl_kv_verify over a batch of sequences, as before and after every
 * step; pages are handed out in random order, as in a cache that has been in use for a while. Digests: one pl_kv_digest
 * of a page that lies in memory, as when it fills or is scrubbed. Medians over rounds, CPU time.
 *   bench_verify [-n sequences] [-c tokens of context] [-r rounds] */
#include "kv.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 64, MAX_ROUNDS = 1000 };

static void must(int rc, const pl_err *e)
{
    if (rc >= 0) return;
    fprintf(stderr, "bench: %s\n", e->msg);
    exit(1);
}
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The free pages in random order. */
static void shuffle(pl_tags *t)
{
    srand(1);
    for (int32_t i = t->n_free - 1; i > 0; i--) {
        const int32_t k = rand() % (i + 1), page = t->free[i];
        t->free[i] = t->free[k];
        t->free[k] = page;
    }
}

/* Pages of SmolLM2-135M (bf16, fp8) and of Llama-3.1-8B (bf16), in turn, so that none is in the CPU's cache. */
static void digests(int rounds)
{
    static const int64_t page_bytes[] = {64 * 11520, 64 * 23040, 64 * 131072};
    const int64_t pool = 256 << 20;
    uint8_t *mem = malloc((size_t)pool);
    double took[MAX_ROUNDS];
    volatile uint64_t sum = 0;
    if (!mem) exit(1);
    for (int64_t i = 0; i < pool; i++) mem[i] = (uint8_t)(i * 31 + i / 4096);
    for (size_t k = 0; k < sizeof page_bytes / sizeof *page_bytes; k++) {
        for (int r = 0; r < rounds; r++) {
            const int64_t at = r % (pool / page_bytes[k]) * page_bytes[k];
            const double start = cpu_s();
            sum += pl_kv_digest(mem + at, page_bytes[k]);
            took[r] = cpu_s() - start;
        }
        qsort(took, (size_t)rounds, sizeof *took, by_size);
        printf("digest of a page of %lld bytes: %.1f us (median of %d; least %.1f), %.1f GB/s\n",
               (long long)page_bytes[k], took[rounds / 2] * 1e6, rounds, took[0] * 1e6,
               (double)page_bytes[k] / took[rounds / 2] * 1e-9);
    }
    free(mem);
}

int main(int argc, char **argv)
{
    int n = 64, context = 8192 + 1000, rounds = 201, opt;
    while ((opt = getopt(argc, argv, "n:c:r:")) != -1) {
        const int v = optarg ? atoi(optarg) : 0;
        if (opt == 'n' && v > 0)
            n = v;
        else if (opt == 'c' && v > 0)
            context = v;
        else if (opt == 'r' && v > 0 && v <= MAX_ROUNDS)
            rounds = v;
        else
            return fprintf(stderr, "usage: bench_verify [-n sequences] [-c tokens] [-r rounds up to %d]\n", MAX_ROUNDS),
                   2;
    }
    pl_err e;
    pl_dev *dev;
    pl_kv *kv;
    const int64_t pages = (int64_t)n * ((context + PAGE - 1) / PAGE);
    const pl_kv_opts o = {.layers = 1,
                          .heads = 1,
                          .key_dim = 1,
                          .value_dim = 1,
                          .page = PAGE,
                          .dtype = PL_BF16,
                          .check = PL_CHECK_PAGES,
                          .n_pages = pages + pages / 4};
    must(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, &e), &e);
    must(pl_kv_open(&kv, dev, &o, &e), &e);
    shuffle(&kv->tags);
    pl_span *span = calloc((size_t)n, sizeof *span);
    int32_t *flag = calloc((size_t)n, sizeof *flag);
    if (!span || !flag) return 1;
    for (int i = 0; i < n; i++) {
        must(pl_kv_seq_new(kv, i + 1, &span[i].seq, &e), &e);
        span[i].n = context;
    }
    must(pl_kv_begin(kv, span, n, &e), &e);
    pl_tensor bad = {.dtype = PL_I32, .ndim = 1, .dim = {n}, .stride = {1}, .data = flag};
    double took[MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) {
        const double start = cpu_s();
        must(pl_kv_verify(pl_dev_stream(dev), &bad, kv, &e), &e);
        took[r] = cpu_s() - start;
    }
    qsort(took, (size_t)rounds, sizeof *took, by_size);
    printf("%d sequences of %d tokens, %lld pairs: %.1f us (median of %d; least %.1f), %.2f ns a pair\n", n, context,
           (long long)pages, took[rounds / 2] * 1e6, rounds, took[0] * 1e6, took[rounds / 2] * 1e9 / (double)pages);
    digests(rounds);
    pl_kv_abort(kv);
    pl_kv_close(kv);
    pl_dev_close(dev);
    free(span);
    free(flag);
    return 0;
}
