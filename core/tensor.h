#ifndef PL_TENSOR_H
#define PL_TENSOR_H
/* Tensors: strided views of counted storage, and the row arithmetic that kernels share. */
#include "base.h"

/* How storage gives its memory back: own allocation of a device, or a file mapping that someone else holds. */
struct pl_storage {
    int32_t refs;
    int64_t bytes;
    void *data;
    pl_dev *dev; /* allocation of this device, or NULL */
    void (*release)(void *owner,
                    struct pl_storage *st); /* borrowed memory: called when the last view goes; may be NULL */
    void *owner;
    bool file; /* a mapping of a file that nobody writes: pages may leave memory, and come back when read */
};

/* A view of memory that `owner` holds; release(owner) is called when the last view of it is gone. PL_PACKED: the caller
 * knows that it has the bytes. */
int pl_tensor_borrow(pl_tensor *out, int32_t dtype, int32_t layout, int32_t ndim, const int64_t *dim, void *data,
                     int64_t bytes, void (*release)(void *owner, struct pl_storage *st), void *owner, pl_err *err);
/* Storage of `bytes` on dev behind a tensor of the given shape, dense strides (packed layouts say their size). */
int pl_tensor_alloc(pl_tensor *out, pl_dev *dev, int32_t dtype, int32_t layout, int32_t ndim, const int64_t *dim,
                    int64_t bytes, pl_err *err);

/* Bytes from..to of the tensor's data have been read and will not be soon: their pages leave memory, if they are a file's. */
enum { PL_DROP_BYTES = 8 << 20 }; /* a good piece to read before saying so */
void pl_tensor_done_with(const pl_tensor *t, const void *from, const void *to);

int64_t pl_tensor_count(const pl_tensor *t);                          /* elements */
bool pl_tensor_is_dense(const pl_tensor *t);                          /* row-major without gaps */
void pl_tensor_shape_text(const pl_tensor *t, char *buf, size_t cap); /* "[3,64]" */
void pl_dense_strides(int32_t ndim, const int64_t *dim, int64_t *stride);

/* All leading dims taken as rows of the last one. */
PL_INLINE int64_t pl_cols(const pl_tensor *t) { return t->dim[t->ndim - 1]; }
PL_INLINE int64_t pl_rows(const pl_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim - 1; i++) n *= t->dim[i];
    return n;
}
/* Element offset of row r (any view); the last axis is dense. */
PL_INLINE int64_t pl_row_offset(const pl_tensor *t, int64_t r)
{
    int64_t at = 0;
    for (int i = t->ndim - 2; i >= 0; i--) {
        at += r % t->dim[i] * t->stride[i];
        r /= t->dim[i];
    }
    return at;
}
PL_INLINE float *pl_row_f32(const pl_tensor *t, int64_t r) { return (float *)t->data + pl_row_offset(t, r); }
#endif
