#ifndef PL_ROWS_H
#define PL_ROWS_H
/* The arithmetic of the small ops, a row at a time. rows_body.h is the definition; it is compiled once for each
 * instruction set (rows.c, x86/rows_avx2.c, x86/rows_avx512.c), and an op asks for the table of its stream's path. */
#include "cpu.h"

typedef struct pl_row_ops {
    void (*add)(float *y, const float *a, const float *b, int64_t n);
    void (*scale)(float *y, const float *x, float by, int64_t n);
    void (*rms_norm)(float *y, const float *x, const float *w, float eps, int64_t n);
    void (*swiglu)(float *y, const float *gate, const float *up, int64_t n);
    void (*geglu)(float *y, const float *gate, const float *up, int64_t n);
    /* sine and cosine of pos * freq[j], times scale */
    void (*turns)(float *sine, float *cosine, const float *freq, float pos, float scale, int64_t n);
    /* halves: pairs (j, j+p); else pairs (2j, 2j+1); y may be x */
    void (*turn)(float *y, const float *x, const float *sine, const float *cosine, bool halves, int64_t p);
    void (*to_bf16)(uint16_t *y, const float *x, int64_t n);
    /* x / scale, rounded, then to E4M3 (vec.h); and a scale under which the row's largest finite magnitude is 448 */
    void (*to_f8)(uint8_t *y, const float *x, float scale, int64_t n);
    float (*f8_scale)(const float *x, int64_t n);
} pl_row_ops;

extern const pl_row_ops pl_row_ops_portable, pl_row_ops_avx2, pl_row_ops_avx512;
const pl_row_ops *pl_row_ops_of(const pl_stream *s);

/* PL_EDTYPE unless t has this format in rows: `rms_norm: w is f16, want f32`. */
int pl_want(const char *op, const char *name, const pl_tensor *t, int32_t dtype, pl_err *err);
/* The same, and one dense dimension. */
int pl_want_list(const char *op, const char *name, const pl_tensor *t, int32_t dtype, pl_err *err);

/* y = fn(a, b), row by row, all f32: add, swiglu, geglu. */
typedef void pl_row2_fn(float *y, const float *a, const float *b, int64_t n);
int pl_each_row2(pl_stream *s, const char *op, pl_row2_fn *fn, pl_tensor *y, const pl_tensor *a, const char *a_name,
                 const pl_tensor *b, const char *b_name, pl_err *err);

/* Rows that are worth giving to a thread. */
PL_INLINE int64_t pl_row_grain(int64_t cols) { return pl_max(1, 8192 / pl_max(1, cols)); }

/* Element i of a one-dimensional tensor of ids, positions or row numbers. */
PL_INLINE int32_t pl_i32_at(const pl_tensor *t, int64_t i) { return ((const int32_t *)t->data)[i * t->stride[0]]; }
#endif
