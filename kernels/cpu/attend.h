#ifndef PL_ATTEND_H
#define PL_ATTEND_H
/* Attention over the paged cache, in the pieces that the op (attend.c) spreads over threads. attend_body.h defines
 * them and is compiled once for each instruction set.
 *
 * The definition, for one query row at position p (key positions lo <= u <= p are visible):
 *   The context is cut into chunks of 1,024 positions, at multiples of 1,024 of the sequence. In each chunk that
 *   holds a visible key:
 *     dot[u]  over dims in steps of 32: (fma chain over the even dims) + (chain over the odd ones), both from 0,
 *             the steps added in order; t[u] = dot[u] * scale
 *     m       the largest t;  P[u] = exp(t[u] - m), 0 for a key that is not visible
 *     l       sum of P: lane u % 16 adds in order of u, then the lanes by vf_sum
 *     O[d]    over positions in steps of 32 (at multiples of 32), as dot: P[u] * v[u][d]
 *   Chunks are merged in order: with M = max(m, m'), f = exp(m - M), g = exp(m' - M): l = fma(l, f, l' g),
 *   O = fma(O, f, O' g). y = O * (1 / l) + 0.
 * With a BF16 or FP8 cache q and P are rounded to BF16 (l sums what was rounded), so that a tile unit can do both
 * products; with an F32 cache nothing is rounded.
 * An E4M3 code c stands for 2^-8 of its value in both products: exact in BF16 as in a half, and the bits of c with the
 * exponent moved. The scales, K and V, come in afterwards, each product of two floats rounded:
 *   one for the tensor or head:  t[u] = dot[u] * ((scale * K) * 2^8);  y = ((O * (1 / l)) * (V * 2^8)) + 0
 *   one for each token and head: t[u] = (dot[u] * (scale * 2^8)) * K[u]; l sums P as it is, and P[u] * V[u], rounded
 *                                to BF16, takes the place of P in O;  y = ((O * (1 / l)) * 2^8) + 0
 * (kv_append.c has the other way.) So neither the batch, nor the split into spans, nor threads change a bit.
 * A NaN or infinity reaches only queries of its own sequence, and a later token's at most those of the same step. */
#include "kv.h"

enum { PL_ATTEND_CHUNK = 1024 };

/* One op call: what does not depend on the work item. */
typedef struct pl_attend_job {
    const pl_kv *kv;
    const pl_tensor *q;   /* [T,H,D] */
    pl_tensor *y;         /* [T,H,V] */
    int32_t layer, group; /* group: query heads per key head */
    int32_t window;
    float scale;
    bool denormals; /* cost nothing on this machine */
} pl_attend_job;

/* n consecutive queries of one sequence under some key heads: heads * n * group rows, ordered by key head, then query,
 * then query head of the group. */
typedef struct pl_attend_block {
    const pl_kv_seq *seq;
    int32_t head, heads;
    int64_t row, n; /* in the batch */
    int64_t pos;    /* of the first */
} pl_attend_block;

/* Result of one chunk: m[rows], l[rows], O[rows][value_dim rounded up to 16]. l = 0: no visible key. */
typedef struct pl_attend_ops {
    void (*chunk)(const pl_attend_job *j, const pl_attend_block *b, int64_t chunk, float *part, float *work);
    void (*merge)(float *sum, const float *part, int64_t rows, int64_t value_dim);
    void (*finish)(const pl_attend_job *j, const pl_attend_block *b, const float *sum);
} pl_attend_ops;
extern const pl_attend_ops pl_attend_portable, pl_attend_avx2, pl_attend_avx512, pl_attend_amx, pl_attend_soft_amx;

/* Floats of one result and of a thread's work space. */
PL_INLINE int64_t pl_attend_part(int64_t rows, int64_t value_dim) { return rows * (2 + pl_round_up(value_dim, 16)); }
int64_t pl_attend_work(int64_t rows, int64_t key_dim, int64_t value_dim);

/* First visible position of the query at pos. */
PL_INLINE int64_t pl_attend_first(const pl_attend_job *j, int64_t pos)
{
    return j->window ? pl_max(0, pos - j->window + 1) : 0;
}
#endif
