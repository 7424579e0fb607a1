#ifndef PL_DEV_H
#define PL_DEV_H
/* A device: memory, one stream of work, and a table of op kernels. There are two backends: the CPU one is linked
 * in, the CUDA one is a plug-in opened at run time. The op front functions (generated from pl_ops.h) check shapes
 * and then switch on the device's kind. */
#include "base.h"
#include "pl_ops.h"

typedef struct pl_cuda_ops pl_cuda_ops; /* generated: one function pointer an op, NULL where there is no kernel */

/* Products of one x, and an activation of the first two: y[i] = x w[i]^T + b[i] (b[i] NULL: none), h = gate(y[0]) * y[1].
 * A program finds them in what a recipe says op by op. */
enum { PL_MAX_PRODUCTS = 4 };
enum { PL_GATE_NONE = 0, PL_GATE_SWIGLU, PL_GATE_GEGLU };
typedef struct pl_products {
    int32_t n, act, gate;
    const pl_tensor *x, *w[PL_MAX_PRODUCTS], *b[PL_MAX_PRODUCTS];
    pl_tensor *y[PL_MAX_PRODUCTS], *h;
} pl_products;

/* What a backend gives beside its ops. Every function of the CPU backend is synchronous. */
typedef struct pl_backend {
    int32_t kind;                                                 /* PL_DEV_CPU, PL_DEV_CUDA */
    int (*open)(pl_stream *s, const pl_dev_opts *o, pl_err *err); /* sets s->impl, path, n_threads */
    void (*close)(pl_stream *s);
    int (*describe)(const pl_stream *s, char *text, int32_t cap); /* one line; returns its length */
    void *(*alloc)(void *impl, int64_t bytes); /* 64-byte aligned at least, not cleared; NULL: no memory */
    void (*free)(void *impl, void *p, int64_t bytes);
    int (*copy_in)(void *impl, void *dst, const void *src, int64_t bytes, pl_err *err);  /* host to device */
    int (*copy_out)(void *impl, void *dst, const void *src, int64_t bytes, pl_err *err); /* device to host */
    int (*copy)(void *impl, void *dst, const void *src, int64_t bytes, pl_err *err);     /* within the device */
    int (*sync)(void *impl, pl_err *err);
    int (*pack)(pl_stream *s, pl_tensor *out, const pl_tensor *w, const int32_t *row_map, pl_err *err);
    int64_t (*packed_bytes)(int32_t dtype, int64_t n, int64_t k);
    const pl_cuda_ops *ops;                                                                        /* CUDA only */
    int (*probe)(pl_stream *s, int32_t probe, const pl_tensor *memory, double *work, pl_err *err); /* CPU only */
    int (*products)(pl_stream *s, const pl_products *p, pl_err *err); /* NULL: one op after another */
    int (*fit)(pl_stream *s, pl_fit *fit, int32_t cap, pl_err *err);  /* CPU only */
    void (*begin)(pl_stream *s, int64_t tokens); /* a program begins a step of so many; NULL: it is all the same */
} pl_backend;

struct pl_stream {
    pl_dev *dev;
    void *impl; /* the backend's own: threads and scratch on the CPU, the stream on CUDA */
    const pl_backend *backend;
    int32_t kind; /* backend->kind, read by every op */
    int32_t path; /* CPU: the path chosen at open, never PL_PATH_AUTO */
    int32_t n_threads;
    uint64_t path_count[PL_N_PATHS]; /* products computed, by the path that really ran */
};

struct pl_dev {
    pl_stream stream;
    void *plugin; /* dlopen handle of the CUDA plug-in */
    int32_t refs; /* its opener, and all that lies in its memory: finalizers give things back in any order */
};

pl_dev *pl_dev_keep(pl_dev *dev); /* for one more pl_dev_close; NULL stays NULL */

const pl_backend *pl_cpu_backend(void);                            /* kernels/cpu/dev.c */
int pl_no_kernel(pl_err *err, const char *op, const pl_stream *s); /* PL_EDEV, for an op that a backend lacks */

/* What the CUDA plug-in exports: fills *out, or says in msg why it cannot. */
typedef int pl_backend_open_fn(int32_t abi, const pl_backend **out, char *msg, int32_t cap);
#endif
