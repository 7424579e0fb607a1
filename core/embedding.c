/* embedding.c: requests that want no answer but a vector: the hidden states of their last token, or the mean of all, of
 * length 1. Rows are summed in order, in double, so that it does not matter in which steps they come. */
#include "engine.h"
#include "mem.h"
#include <math.h>
#include <stdlib.h>

int pl_embedding_check(const pl_engine *e, const pl_request_opts *o, pl_err *err)
{
    if (o->embed < PL_EMBED_NONE || o->embed > PL_EMBED_MEAN)
        return pl_fail(err, PL_EARG, "request: no embedding of kind %d", o->embed);
    if (o->embed == PL_EMBED_NONE) return PL_OK;
    if (e->width == 0) return pl_fail(err, PL_EARG, "request: an embedding, but the program keeps no hidden states");
    if (o->n_embed < 0 || o->n_embed > e->width)
        return pl_fail(err, PL_EARG, "request: an embedding of %d values, want 1 to %d", o->n_embed, e->width);
    if (o->max_out) return pl_fail(err, PL_EARG, "request: an embedding and %d tokens, want 0", o->max_out);
    return PL_OK;
}

int pl_embedding_reserve(pl_engine *e, int32_t i, const pl_request_opts *o, pl_err *err)
{
    slot *s = &e->slot[i];
    if (o->embed == PL_EMBED_NONE) return PL_OK;
    if (!e->vector[i]) e->vector[i] = calloc((size_t)e->width, sizeof **e->vector);
    s->sum = calloc((size_t)e->width, sizeof *s->sum);
    if (!e->vector[i] || !s->sum) {
        pl_sched_clear(s);
        return pl_fail(err, PL_ENOMEM, "request: no memory for an embedding of %d values", e->width);
    }
    s->embed = o->embed;
    s->n_embed = o->n_embed ? o->n_embed : e->width;
    return PL_OK;
}

void pl_embedding_begin(const pl_engine *e, int32_t i)
{
    const slot *s = &e->slot[i];
    if (s->embed) memset(s->sum, 0, (size_t)e->width * sizeof *s->sum);
}

void pl_embedding_add(const pl_engine *e, int32_t i, const float *hidden, int32_t n)
{
    const slot *s = &e->slot[i];
    const bool all = s->embed == PL_EMBED_MEAN;
    if (!all) pl_embedding_begin(e, i); /* of the rows before, none counts */
    for (int32_t t = all ? 0 : n - 1; t < n; t++)
        for (int32_t d = 0; d < e->width; d++) s->sum[d] += (double)hidden[(int64_t)t * e->width + d];
}

int pl_embedding_end(pl_engine *e, int32_t i, pl_err *err)
{
    const slot *s = &e->slot[i];
    const int32_t n = s->n_embed;
    double square = 0;
    for (int32_t d = 0; d < n; d++) square += s->sum[d] * s->sum[d];
    if (!isfinite(square)) return pl_fail(err, PL_EARG, "embedding: the hidden states are not finite");
    const double length = square > 0 ? sqrt(square) : 1;
    for (int32_t d = 0; d < n; d++) e->vector[i][d] = (float)(s->sum[d] / length);
    pl_sched_finish(e, i, PL_FINISH_STOP);
    pl_sched_post(e, i, NULL);
    e->event[e->n_events - 1].embedding = e->vector[i];
    e->event[e->n_events - 1].n_embedding = n;
    return PL_OK;
}
