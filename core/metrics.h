#ifndef PL_METRICS_H
#define PL_METRICS_H
/* Histograms of the engine: buckets grow by the square root of 2, so that a quantile is right within 41 %. */
#include "base.h"

void pl_hist_init(pl_hist *h, double first);
void pl_hist_add(pl_hist *h, double value);
#endif
