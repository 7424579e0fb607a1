/* prof.c: the ring of the step trace. */
#include "prof.h"
#include <stdlib.h>

int pl_prof_open(pl_prof **out, int32_t cap, int32_t n_ops, pl_err *err)
{
    int64_t n;
    if (cap < 1) return pl_fail(err, PL_EARG, "trace: %d steps, want at least 1", cap);
    if (!pl_mul(cap, n_ops, &n) || !pl_mul(n, (int64_t)sizeof(float), &n))
        return pl_fail(err, PL_EARG, "trace: %d steps of %d ops are more than 2^63 bytes", cap, n_ops);
    pl_prof *p = calloc(1, sizeof *p);
    if (p) {
        *p = (pl_prof){.cap = cap, .n_ops = n_ops};
        p->step = calloc((size_t)cap, sizeof *p->step);
        p->op_s = calloc((size_t)n + 1, 1);
    }
    if (!p || !p->step || !p->op_s) {
        pl_prof_close(p);
        return pl_fail(err, PL_ENOMEM, "trace: no memory for %d steps of %d ops", cap, n_ops);
    }
    *out = p;
    return PL_OK;
}

void pl_prof_close(pl_prof *p)
{
    if (!p) return;
    free(p->step);
    free(p->op_s);
    free(p);
}

void pl_prof_look(pl_prof *p, bool idle)
{
    if (!p) return;
    if (idle)
        p->began = 0;
    else if (p->began == 0)
        p->began = pl_now_s();
}

void pl_prof_begin(pl_prof *p, int64_t number, int32_t n_tokens, int32_t n_spans)
{
    if (!p) return;
    const double now = pl_now_s();
    if (p->began == 0) p->began = now;
    p->now = (pl_step){.number = number,
                       .start_s = p->began,
                       .n_tokens = n_tokens,
                       .n_spans = n_spans,
                       .n_ops = p->n_ops,
                       .op_s = pl_prof_ops(p)};
    p->now.part_s[PL_PART_PLAN] = now - p->began;
}

void pl_prof_end(pl_prof *p, bool keep)
{
    if (!p) return;
    p->now.total_s = pl_now_s() - p->began;
    p->began = 0;
    if (keep) p->step[p->n++ % p->cap] = p->now;
}

const pl_step *pl_prof_at(const pl_prof *p, int32_t i)
{
    const int64_t kept = p ? pl_min(p->n, p->cap) : 0;
    return i >= 0 && i < kept ? &p->step[(p->n - kept + i) % p->cap] : NULL;
}
