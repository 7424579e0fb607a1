#ifndef PL_PARTS_H
#define PL_PARTS_H
/* Weights that lie in a checkpoint as several tensors (codes, scales, zero points): found by their names, checked, and
 * put together as rows of one of our block formats. Codes and scales are moved, not computed: nothing is rounded. */
#include "scheme.h"
#include "toc.h"

/* Where the values of an entry of `files` lie. */
typedef const uint8_t *pl_values_fn(const void *arg, const pl_toc_entry *e);
/* Into `out`, sealed: what `files` has, but with the parts of each quantised weight replaced by that weight. Where the
 * columns of "M.weight" are not in the order of their groups (g_idx) it has them sorted, and "M.weight_order" [K] says
 * where each came from: y = sum over i of weight[i] x[order[i]]. */
PL_MUST int pl_parts_join(pl_toc *out, const pl_toc *files, const pl_scheme *s, pl_values_fn *values, const void *arg,
                          pl_err *err);

/* A part of a weight, in memory. */
typedef struct pl_part {
    const pl_toc_entry *e; /* NULL: none */
    const uint8_t *data;
} pl_part;
/* The rows of a joined entry, e->bytes of them. PL_EFORMAT: a value among the parts is not what it has to be. */
PL_MUST int pl_parts_build(const pl_toc_entry *e, const pl_part *part, uint8_t *out, pl_err *err);

/* Columns in the order of their groups of `share`, of which index says one for each column; `order` may be NULL. Returns 1,
 * or 0 if that is the order that they are in; PL_EFORMAT if it is no such list. */
PL_MUST int pl_parts_order(const pl_part *index, int64_t share, int32_t *order, pl_err *err);

/* parts_build.c: kinds of weights, and which part is which. */
enum {
    PL_JOIN_PACK4 = 1, /* compressed-tensors: words along rows; flag: symmetric with bf16 scales */
    PL_JOIN_GPTQ,      /* words along columns; flag: zero points as they are where values do not tell */
    PL_JOIN_AWQ,
    PL_JOIN_F8,
    PL_JOIN_NVFP4, /* flag: the tensor's scale divides */
    PL_JOIN_MXFP4,
    PL_JOIN_ORDER /* of INDEX alone */
};
/* INDEX: only where columns are out of order */
enum { PL_CODES = 0, PL_SCALES, PL_ZEROS, PL_TENSOR_SCALE, PL_INDEX, PL_SIZES };
#endif
