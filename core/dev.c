/* dev.c: opens a device over its backend. The CPU backend is linked in; CUDA is a plug-in. */
#include "dev.h"
#include "dtype.h"
#include "plugin.h"
#include "tensor.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const path_name[PL_N_PATHS] = {"auto", "portable", "avx2", "avx512", "amx", "soft-amx"};

const char *pl_path_name(int32_t path) { return path >= 0 && path < PL_N_PATHS ? path_name[path] : NULL; }

int pl_dev_open(pl_dev **out, const pl_dev_opts *o, pl_err *err)
{
    if (o->kind != PL_DEV_CPU && o->kind != PL_DEV_CUDA) return pl_fail(err, PL_EARG, "device: no kind %d", o->kind);
    if (o->n_threads < 0 || o->n_threads > 1024)
        return pl_fail(err, PL_EARG, "device: %d threads, want 0 (all cores) to 1024", o->n_threads);
    if (!pl_path_name(o->path)) return pl_fail(err, PL_EARG, "device: no path %d", o->path);
    pl_dev *dev = calloc(1, sizeof *dev);
    if (!dev) return pl_fail(err, PL_ENOMEM, "device: no memory");
    pl_stream *s = &dev->stream;
    int rc = PL_OK;
    dev->refs = 1;
    s->dev = dev;
    s->kind = o->kind;
    if (o->kind == PL_DEV_CPU)
        s->backend = pl_cpu_backend();
    else
        rc = pl_plugin_open(&dev->plugin, &s->backend, o->plugin, err);
    if (rc == PL_OK) rc = s->backend->open(s, o, err);
    if (rc < 0) {
        if (dev->plugin) dlclose(dev->plugin);
        free(dev);
        return rc;
    }
    *out = dev;
    return PL_OK;
}

pl_dev *pl_dev_keep(pl_dev *dev)
{
    if (dev) __atomic_add_fetch(&dev->refs, 1, __ATOMIC_RELAXED);
    return dev;
}

void pl_dev_close(pl_dev *dev)
{
    if (!dev || __atomic_sub_fetch(&dev->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    dev->stream.backend->close(&dev->stream);
    if (dev->plugin) dlclose(dev->plugin);
    free(dev);
}

pl_stream *pl_dev_stream(pl_dev *dev) { return &dev->stream; }
int pl_dev_sync(pl_dev *dev, pl_err *err) { return dev->stream.backend->sync(dev->stream.impl, err); }
int32_t pl_dev_path(pl_dev *dev) { return dev->stream.path; }
int32_t pl_dev_threads(pl_dev *dev) { return dev->stream.n_threads; }

int pl_dev_describe(pl_dev *dev, char *text, int32_t cap)
{
    return dev->stream.backend->describe(&dev->stream, text, cap);
}

uint64_t pl_dev_path_count(pl_dev *dev, int32_t path)
{
    return path >= 0 && path < PL_N_PATHS ? dev->stream.path_count[path] : 0;
}

int pl_dev_fit(pl_dev *dev, pl_fit *fit, int32_t cap, pl_err *err)
{
    pl_stream *s = &dev->stream;
    if (cap < 1) return pl_fail(err, PL_EARG, "threads: room for %d counts, want 1 at least", cap);
    if (!s->backend->fit) return pl_fail(err, PL_EDEV, "threads: this backend has none");
    return s->backend->fit(s, fit, cap, err);
}

int pl_dev_probe(pl_dev *dev, int32_t probe, const pl_tensor *memory, double *work, pl_err *err)
{
    pl_stream *s = &dev->stream;
    if (probe < 0 || probe >= PL_N_PROBES) return pl_fail(err, PL_EARG, "probe: no probe %d", probe);
    if (!s->backend->probe) return pl_fail(err, PL_EDEV, "probe: this backend has none");
    return s->backend->probe(s, probe, memory, work, err);
}

int pl_no_kernel(pl_err *err, const char *op, const pl_stream *s)
{
    return pl_fail(err, PL_EDEV, "%s: the %s backend has no kernel for it", op, s->kind == PL_DEV_CPU ? "CPU" : "CUDA");
}

int pl_dev_copy(pl_dev *dev, pl_tensor *dst, const pl_tensor *src, pl_err *err)
{
    char a[96], b[96];
    pl_tensor_shape_text(dst, a, sizeof a);
    pl_tensor_shape_text(src, b, sizeof b);
    bool same = dst->ndim == src->ndim && dst->dtype == src->dtype && dst->layout == PL_ROWS && src->layout == PL_ROWS;
    for (int32_t i = 0; same && i < dst->ndim; i++) same = dst->dim[i] == src->dim[i];
    if (!same)
        return pl_fail(err, PL_ESHAPE, "copy: %s %s to %s %s", pl_dtype_name(src->dtype), b, pl_dtype_name(dst->dtype),
                       a);
    if (!pl_tensor_is_dense(dst) || !pl_tensor_is_dense(src))
        return pl_fail(err, PL_ESHAPE, "copy: %s to %s, want dense tensors", b, a);
    const int64_t block = pl_dtype_block(src->dtype), bytes = pl_tensor_count(src) / block * pl_dtype_bytes(src->dtype);
    const pl_stream *s = &dev->stream;
    if (src->dev == PL_DEV_CPU) return s->backend->copy_in(s->impl, dst->data, src->data, bytes, err);
    if (dst->dev == PL_DEV_CPU) return s->backend->copy_out(s->impl, dst->data, src->data, bytes, err);
    return pl_fail(err, PL_EDEV, "copy: both tensors are on the device, use the op");
}

int pl_dev_pack(pl_dev *dev, pl_tensor *out, const pl_tensor *w, const int32_t *row_map, pl_err *err)
{
    char shape[96];
    pl_tensor_shape_text(w, shape, sizeof shape);
    if (w->ndim != 2 || w->layout != PL_ROWS || w->stride[1] != 1)
        return pl_fail(err, PL_ESHAPE, "pack: w is %s, want rows [N,K]", shape);
    for (int64_t i = 0; row_map && i < w->dim[0]; i++)
        if (row_map[i] < 0 || row_map[i] >= w->dim[0])
            return pl_fail(err, PL_EARG, "pack: row %lld comes from row %d of %lld", (long long)i, row_map[i],
                           (long long)w->dim[0]);
    return dev->stream.backend->pack(&dev->stream, out, w, row_map, err);
}

int64_t pl_dev_packed_bytes(int32_t kind, int32_t dtype, int64_t n, int64_t k)
{
    return kind == PL_DEV_CPU ? pl_cpu_backend()->packed_bytes(dtype, n, k) : -1;
}
