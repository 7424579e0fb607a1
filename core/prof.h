#ifndef PL_PROF_H
#define PL_PROF_H
/* The step trace: where the time of the last steps went, in a ring of fixed size. The engine holds one while a trace is
 * on; every function takes NULL, which is a trace that is off and costs one branch. */
#include "base.h"

typedef struct pl_prof {
    pl_step *step; /* [cap] */
    float *op_s;   /* [cap][n_ops] */
    int32_t cap, n_ops;
    int64_t n;    /* steps recorded so far */
    double began; /* the step that is planned or runs: since its look */
    pl_step now;
} pl_prof;

PL_MUST int pl_prof_open(pl_prof **out, int32_t cap, int32_t n_ops, pl_err *err);
void pl_prof_close(pl_prof *p);
/* A step begins to be planned; a second look, after a policy that failed, belongs to the same step. idle: there is nothing
 * to plan. */
void pl_prof_look(pl_prof *p, bool idle);
/* A step begins to run; without a look before it, it begins here. */
void pl_prof_begin(pl_prof *p, int64_t number, int32_t n_tokens, int32_t n_spans);
void pl_prof_end(pl_prof *p, bool keep); /* what is not kept is gone */
const pl_step *pl_prof_at(const pl_prof *p, int32_t i);

PL_INLINE float *pl_prof_ops(const pl_prof *p) /* [n_ops] of the running step */
{
    return p ? p->op_s + p->n % p->cap * p->n_ops : NULL;
}
/* The time from a mark to now is a part's: part(p, PL_PART_X, &t) also sets the mark anew. */
PL_INLINE double pl_prof_mark(const pl_prof *p) { return p ? pl_now_s() : 0; }
PL_INLINE void pl_prof_part(pl_prof *p, int part, double *mark)
{
    if (!p) return;
    const double t = pl_now_s();
    p->now.part_s[part] += t - *mark;
    *mark = t;
}
#endif
