#ifndef PL_PROG_H
#define PL_PROG_H
/* A program: the flat list of ops that a recipe's forward traced to. The op table (generated) says how to call
 * each op from arrays. */
#include "kv.h"
#include "prof.h"

typedef struct pl_op_env { /* what ops may need beside tensors and attributes */
    pl_kv *kv;
    pl_coll *coll;
} pl_op_env;

typedef struct pl_op_info {
    const char *name, *sig;
    int32_t n_outs, n_tensors, n_attrs; /* tensors: outputs first, then inputs */
    /* the op without its shape check: a program's shapes are checked once, when it is built */
    int (*run)(pl_stream *s, const pl_op_env *env, pl_tensor **t, const pl_attr *a, pl_err *err);
} pl_op_info;

const pl_op_info *pl_op(int32_t op); /* NULL if out of range */

pl_prog *pl_prog_keep(pl_prog *p); /* for one more pl_prog_free; NULL stays NULL */

/* pl_prog_run, with its parts and ops timed; prof NULL: as it is */
int pl_prog_run_timed(pl_prog *p, pl_kv *kv, const pl_batch *b, pl_tensor *result, pl_prof *prof, pl_err *err);
/* The hidden states of the last run, [n_tokens, D], good as long as its result; NULL: none were set. */
const pl_tensor *pl_prog_hidden(const pl_prog *p);
#endif
