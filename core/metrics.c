/* metrics.c: histograms. */
#include "metrics.h"
#include <math.h>

void pl_hist_init(pl_hist *h, double first) { *h = (pl_hist){.first = first}; }

static double bound(const pl_hist *h, int i) { return h->first * exp2(i / 2.0); }

void pl_hist_add(pl_hist *h, double value)
{
    int i = 0;
    if (value > h->first) i = (int)pl_min((int64_t)ceil(2 * log2(value / h->first)), PL_HIST_BUCKETS - 1);
    h->bucket[i]++;
    h->n++;
    h->sum += value;
}

double pl_hist_quantile(const pl_hist *h, double q)
{
    uint64_t seen = 0;
    for (int i = 0; i < PL_HIST_BUCKETS; i++) {
        seen += h->bucket[i];
        if (h->n && (double)seen >= q * (double)h->n) return bound(h, i);
    }
    return 0;
}
