#ifndef PL_OPS_H
#define PL_OPS_H
/* The op catalogue. A comment, a signature line, a prototype: that is all a new op declares; lua/tool/opgen.lua
 * makes the rest. In a signature, letters are sizes that must agree; `...` stands for any leading dims, the same
 * wherever it occurs; `?` after an input means that it may be absent. Outputs stand left of `=`. Inputs may be
 * views whose last axis is dense. Activations are f32 unless a line says otherwise; ids are i32. */
#include "pl.h"
#pragma GCC visibility push(default) /* Lua finds these in the program by name */
/* abi-begin */

/* Rows of the table chosen by ids, times scale. The table may have any format and layout.
 *   y[T,D] = table[V,D] ids[T] */
int pl_embed(pl_stream *s, pl_tensor *y, const pl_tensor *table, const pl_tensor *ids, float scale, pl_err *err);

/* Product of rows of x with rows of w, plus a bias: y = x w^T + b. w may have any format; act says what x is
 * rounded to first (PL_ACT_*; where codes of w are no integers, int8 is bf16 and int15 f32: pl_act_for). The order of the
 * sums is fixed: kernels/README.md.
 *   y[T,N] = x[T,K] w[N,K] b[N]? */
int pl_linear(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, const pl_tensor *b, int act,
              pl_err *err);

/* Elementwise sum.
 *   y[...,D] = a[...,D] b[...,D] */
int pl_add(pl_stream *s, pl_tensor *y, const pl_tensor *a, const pl_tensor *b, pl_err *err);

/* Root-mean-square norm of each row of x, scaled by w: y = x w / sqrt(mean(x^2) + eps).
 *   y[...,D] = x[...,D] w[D] */
int pl_rms_norm(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *w, float eps, pl_err *err);

/* Rotary positions: pairs of the first 2P of D dims turn by pos * freq[j], sine and cosine scaled by `scale`; the
 * other dims pass. pairs: 0 = (j, j+P), the half-split order; 1 = (2j, 2j+1), left in place.
 *   y[T,H,D] = x[T,H,D] pos[T] freq[P] */
int pl_rope(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *pos, const pl_tensor *freq, float scale,
            int pairs, pl_err *err);

/* SwiGLU: silu(gate) * up.
 *   y[...,F] = gate[...,F] up[...,F] */
int pl_swiglu(pl_stream *s, pl_tensor *y, const pl_tensor *gate, const pl_tensor *up, pl_err *err);

/* GeGLU: gelu(gate) * up, gelu by the tanh approximation.
 *   y[...,F] = gate[...,F] up[...,F] */
int pl_geglu(pl_stream *s, pl_tensor *y, const pl_tensor *gate, const pl_tensor *up, pl_err *err);

/* Put the step's keys and values into one layer of the cache.
 *   k[T,G,D] v[T,G,V] */
int pl_kv_append(pl_stream *s, pl_kv *kv, int layer, const pl_tensor *k, const pl_tensor *v, pl_err *err);

/* Compare the tags that the step's sequences expect with those of the pages in their block tables: bad[i] becomes 1 if a
 * page of span i was given to someone else, and stays as it is otherwise. A span that is bad is passed over by the ops
 * that read or write the cache.
 *   bad[S] = */
int pl_kv_verify(pl_stream *s, pl_tensor *bad, pl_kv *kv, pl_err *err);

/* Causal attention of the step's queries over their own sequences, grouped-query: H query heads share G key heads.
 * A key is visible if it is not later, and less than `window` positions earlier (window 0: all).
 *   y[T,H,V] = q[T,H,D] */
int pl_attend(pl_stream *s, pl_tensor *y, const pl_tensor *q, pl_kv *kv, int layer, float scale, int window,
              pl_err *err);

/* Chosen rows of x.
 *   y[R,D] = x[T,D] rows[R] */
int pl_gather(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *rows, pl_err *err);

/* Chosen columns of x.
 *   y[T,D] = x[T,K] cols[D] */
int pl_columns(pl_stream *s, pl_tensor *y, const pl_tensor *x, const pl_tensor *cols, pl_err *err);

/* Values of x in the format of y (f32, f16, bf16 either side).
 *   y[...,D] = x[...,D] */
int pl_copy(pl_stream *s, pl_tensor *y, const pl_tensor *x, pl_err *err);

/* Sum of every rank's x, added in the order of ranks, so that all ranks hold the same bits.
 *   y[T,D] = x[T,D] */
int pl_sum_ranks(pl_stream *s, pl_coll *coll, pl_tensor *y, const pl_tensor *x, pl_err *err);

/* Every rank's rows, one rank after the other: U = ranks * T.
 *   y[U,D] = x[T,D] */
int pl_all_gather(pl_stream *s, pl_coll *coll, pl_tensor *y, const pl_tensor *x, pl_err *err);

/* This rank's share of the rows of the sum over ranks: U = ranks * T.
 *   y[T,D] = x[U,D] */
int pl_reduce_scatter(pl_stream *s, pl_coll *coll, pl_tensor *y, const pl_tensor *x, pl_err *err);

/* Part j of x goes to rank j; y holds the parts that came, in the order of ranks. T is a multiple of the ranks.
 *   y[T,D] = x[T,D] */
int pl_all_to_all(pl_stream *s, pl_coll *coll, pl_tensor *y, const pl_tensor *x, pl_err *err);

/* x of rank `root`.
 *   y[T,D] = x[T,D] */
int pl_broadcast(pl_stream *s, pl_coll *coll, pl_tensor *y, const pl_tensor *x, int root, pl_err *err);
/* abi-end */
#pragma GCC visibility pop
#endif
