/* tensor.c: views and their counted storage. */
#include "tensor.h"
#include "dev.h"
#include "dtype.h"
#include "mem.h"
#include <stdio.h>
#include <stdlib.h>

void pl_dense_strides(int32_t ndim, const int64_t *dim, int64_t *stride)
{
    int64_t n = 1;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        stride[i] = n;
        n *= dim[i];
    }
}

int64_t pl_tensor_count(const pl_tensor *t)
{
    int64_t n = t->ndim > 0;
    for (int32_t i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

bool pl_tensor_is_dense(const pl_tensor *t)
{
    int64_t n = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != n) return false;
        n *= t->dim[i];
    }
    return true;
}

void pl_tensor_shape_text(const pl_tensor *t, char *buf, size_t cap)
{
    size_t k = 0;
    PL_ASSERT(cap > 32);
    buf[k++] = '[';
    for (int32_t i = 0; i < t->ndim && k + 24 < cap; i++)
        k += (size_t)snprintf(buf + k, cap - k, i ? ",%lld" : "%lld", (long long)t->dim[i]);
    buf[k++] = ']';
    buf[k] = 0;
}

/* Checks the shape and returns the bytes of a dense tensor. */
static int dense_bytes(int64_t *bytes, int32_t dtype, int32_t ndim, const int64_t *dim, pl_err *err)
{
    if (!pl_dtype_valid(dtype)) return pl_fail(err, PL_EDTYPE, "tensor: no format %d", dtype);
    if (ndim < 1 || ndim > PL_MAX_DIMS)
        return pl_fail(err, PL_ESHAPE, "tensor: %d dimensions, want 1 to %d", ndim, PL_MAX_DIMS);
    const pl_dtype_info *d = pl_dtype(dtype);
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) {
        if (dim[i] < 0) return pl_fail(err, PL_ESHAPE, "tensor: dimension %d is %lld", i, (long long)dim[i]);
        if (!pl_mul(n, dim[i], &n)) return pl_fail(err, PL_ESHAPE, "tensor: more than 2^63 elements");
    }
    if (dim[ndim - 1] % d->block)
        return pl_fail(err, PL_ESHAPE, "tensor: rows of %lld, want a multiple of %d for %s", (long long)dim[ndim - 1],
                       d->block, d->name);
    if (!pl_mul(n / d->block, d->bytes, bytes)) return pl_fail(err, PL_ESHAPE, "tensor: more than 2^63 bytes");
    return PL_OK;
}

static int make(pl_tensor *out, int32_t dtype, int32_t layout, int32_t ndim, const int64_t *dim, void *data,
                pl_storage like, pl_err *err)
{
    pl_storage *st = malloc(sizeof *st);
    if (!st) return pl_fail(err, PL_ENOMEM, "tensor: no memory for its header");
    *st = like;
    st->refs = 1;
    st->dev = pl_dev_keep(like.dev);
    st->data = data;
    *out = (pl_tensor){.dtype = dtype, .layout = layout, .ndim = ndim, .data = data, .storage = st};
    if (like.dev) out->dev = like.dev->stream.kind;
    memcpy(out->dim, dim, sizeof *dim * (size_t)ndim);
    pl_dense_strides(ndim, dim, out->stride);
    return PL_OK;
}

int pl_tensor_alloc(pl_tensor *out, pl_dev *dev, int32_t dtype, int32_t layout, int32_t ndim, const int64_t *dim,
                    int64_t bytes, pl_err *err)
{
    int64_t dense;
    PL_TRY(dense_bytes(&dense, dtype, ndim, dim, err));
    PL_ASSERT(layout != PL_ROWS || bytes == dense);
    const pl_stream *s = &dev->stream;
    /* an empty tensor still has an address, so that kernels need no special case */
    void *data = s->backend->alloc(s->impl, bytes ? bytes : 64);
    if (!data) return pl_fail(err, PL_ENOMEM, "tensor: no memory for %lld bytes", (long long)bytes);
    const int rc =
        make(out, dtype, layout, ndim, dim, data, (pl_storage){.bytes = bytes ? bytes : 64, .dev = dev}, err);
    if (rc < 0) s->backend->free(s->impl, data, bytes ? bytes : 64);
    return rc;
}

int pl_tensor_new(pl_tensor *out, pl_dev *dev, int32_t dtype, int32_t ndim, const int64_t *dim, pl_err *err)
{
    int64_t bytes;
    PL_TRY(dense_bytes(&bytes, dtype, ndim, dim, err));
    return pl_tensor_alloc(out, dev, dtype, PL_ROWS, ndim, dim, bytes, err);
}

int pl_tensor_borrow(pl_tensor *out, int32_t dtype, int32_t layout, int32_t ndim, const int64_t *dim, void *data,
                     int64_t bytes, void (*release)(void *owner, pl_storage *st), void *owner, pl_err *err)
{
    int64_t dense;
    PL_TRY(dense_bytes(&dense, dtype, ndim, dim, err));
    if (layout == PL_ROWS && bytes < dense)
        return pl_fail(err, PL_ESHAPE, "tensor: %lld bytes, want %lld", (long long)bytes, (long long)dense);
    return make(out, dtype, layout, ndim, dim, data, (pl_storage){.bytes = bytes, .release = release, .owner = owner},
                err);
}

void pl_tensor_keep(pl_tensor *t)
{
    if (t->storage) __atomic_add_fetch(&t->storage->refs, 1, __ATOMIC_RELAXED);
}

void pl_tensor_release(pl_tensor *t)
{
    pl_storage *st = t->storage;
    memset(t, 0, sizeof *t);
    if (!st || __atomic_sub_fetch(&st->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (st->dev)
        st->dev->stream.backend->free(st->dev->stream.impl, st->data, st->bytes);
    else if (st->release)
        st->release(st->owner, st);
    pl_dev_close(st->dev);
    free(st);
}

void pl_tensor_done_with(const pl_tensor *t, const void *from, const void *to)
{
    if (t->storage && t->storage->file) pl_mem_drop(from, to);
}

static char *at_element(const pl_tensor *t, int64_t element)
{
    const pl_dtype_info *d = pl_dtype(t->dtype);
    return (char *)t->data + element / d->block * d->bytes;
}

int pl_tensor_slice(pl_tensor *out, const pl_tensor *t, int32_t axis, int64_t from, int64_t n, pl_err *err)
{
    if (axis < 0 || axis >= t->ndim) return pl_fail(err, PL_EARG, "slice: axis %d of %d", axis, t->ndim);
    if (from < 0 || n < 0 || from > t->dim[axis] || n > t->dim[axis] - from)
        return pl_fail(err, PL_EARG, "slice: %lld from %lld on, axis %d has %lld", (long long)n, (long long)from, axis,
                       (long long)t->dim[axis]);
    if (t->layout != PL_ROWS) return pl_fail(err, PL_EDTYPE, "slice: a packed tensor has no views");
    const int32_t block = pl_dtype_block(t->dtype);
    if (axis == t->ndim - 1 && (from % block || n % block))
        return pl_fail(err, PL_EARG, "slice: %lld from %lld on, want multiples of %d", (long long)n, (long long)from,
                       block);
    pl_tensor v = *t;
    v.dim[axis] = n;
    v.data = at_element(t, from * t->stride[axis]);
    pl_tensor_keep(&v);
    *out = v;
    return PL_OK;
}

int pl_tensor_reshape(pl_tensor *out, const pl_tensor *t, int32_t ndim, const int64_t *dim, pl_err *err)
{
    int64_t bytes, n = 1;
    PL_TRY(dense_bytes(&bytes, t->dtype, ndim, dim, err));
    for (int32_t i = 0; i < ndim; i++) n *= dim[i];
    char was[96];
    pl_tensor_shape_text(t, was, sizeof was);
    if (n != pl_tensor_count(t)) return pl_fail(err, PL_ESHAPE, "reshape: %lld elements from %s", (long long)n, was);
    if (t->layout != PL_ROWS || !pl_tensor_is_dense(t))
        return pl_fail(err, PL_ESHAPE, "reshape: %s is not dense, copy it first", was);
    pl_tensor v = *t;
    v.ndim = ndim;
    memcpy(v.dim, dim, sizeof *dim * (size_t)ndim);
    pl_dense_strides(ndim, dim, v.stride);
    pl_tensor_keep(&v);
    *out = v;
    return PL_OK;
}

static int host_values(const char *what, const pl_tensor *t, int64_t n, pl_err *err)
{
    if (t->dev != PL_DEV_CPU) return pl_fail(err, PL_EDEV, "%s: the tensor is not in host memory, copy it first", what);
    if (t->layout != PL_ROWS) return pl_fail(err, PL_EDTYPE, "%s: the tensor is packed", what);
    if (n != pl_tensor_count(t))
        return pl_fail(err, PL_ESHAPE, "%s: %lld values for a tensor of %lld", what, (long long)n,
                       (long long)pl_tensor_count(t));
    return PL_OK;
}

int pl_tensor_set_f32(pl_tensor *t, const float *src, int64_t n, pl_err *err)
{
    PL_TRY(host_values("set", t, n, err));
    if (t->dtype > PL_F8) return pl_fail(err, PL_EDTYPE, "set: cannot write %s from float", pl_dtype(t->dtype)->name);
    for (int64_t r = 0; n && r < pl_rows(t); r++)
        pl_row_from_f32(t->dtype, at_element(t, pl_row_offset(t, r)), src + r * pl_cols(t), pl_cols(t));
    return PL_OK;
}

int pl_tensor_get_f32(const pl_tensor *t, float *dst, int64_t n, pl_err *err)
{
    PL_TRY(host_values("get", t, n, err));
    for (int64_t r = 0; n && r < pl_rows(t); r++)
        pl_row_to_f32(t->dtype, dst + r * pl_cols(t), at_element(t, pl_row_offset(t, r)), pl_cols(t));
    for (int64_t i = 0; i < n; i++) dst[i] = (float)pl_plain_nan((double)dst[i]);
    return PL_OK;
}

int pl_tensor_set_i32(pl_tensor *t, const int32_t *src, int64_t n, pl_err *err)
{
    PL_TRY(host_values("set", t, n, err));
    if (t->dtype != PL_I32) return pl_fail(err, PL_EDTYPE, "set: a tensor of %s, want i32", pl_dtype(t->dtype)->name);
    for (int64_t r = 0; n && r < pl_rows(t); r++)
        memcpy(at_element(t, pl_row_offset(t, r)), src + r * pl_cols(t), (size_t)pl_cols(t) * sizeof *src);
    return PL_OK;
}
