#ifndef PL_H
#define PL_H
/* perilune's C ABI: what Lua and every part of the core share. The text between the marker lines is handed to ffi.cdef as it
 * stands, so it holds declarations only. Functions return PL_OK or a negative code, and then `err` (the caller's, always last,
 * may be NULL) says what, where, and what was wanted. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#pragma GCC visibility push(default) /* Lua finds these in the program by name */
/* abi-begin */
enum { PL_ABI = 3, PL_MAX_DIMS = 4 };

/* Status codes. From PL_ETAG down they are conditions: nobody's fault, often expected. */
enum {
    PL_OK = 0,
    PL_EARG = -1,      /* an argument is out of range */
    PL_ESHAPE = -2,    /* sizes do not agree */
    PL_EDTYPE = -3,    /* no kernel for this format */
    PL_ENOMEM = -4,    /* memory */
    PL_EDEV = -5,      /* device, driver or path missing */
    PL_EIO = -6,       /* the operating system refused a file */
    PL_EFORMAT = -7,   /* a file is not what it says it is */
    PL_ENAME = -8,     /* no such tensor, key or option */
    PL_ELIMIT = -9,    /* a limit of time, memory or size was hit */
    PL_ESTALE = -10,   /* a packed file that does not fit this build, device or model any more */
    PL_ETAG = -20,     /* a page belongs to someone else */
    PL_EPAGES = -21,   /* no free pages */
    PL_EFULL = -22,    /* no room for another request */
    PL_ECANCEL = -23,  /* cancelled */
    PL_ECLOSED = -24,  /* the other side has closed */
    PL_ESTARVED = -25, /* a request that was preempted too often keeps its pages */
    PL_EBUSY = -26     /* its pages are on their way */
};

/* Formats of numbers; from PL_Q4_0 on, blocks of a row (dtype.h has the sizes): those of GGUF files, and from PL_NVFP4
 * on our own, into which loading rearranges weights that a checkpoint holds as several tensors. */
enum {
    PL_F32 = 0,
    PL_F16,
    PL_BF16,
    PL_F8, /* F8: e4m3, finite only */
    PL_I32,
    PL_I64,
    PL_U8,
    PL_Q4_0,
    PL_Q4_1,
    PL_Q5_0,
    PL_Q5_1,
    PL_Q8_0,
    PL_Q4_K,
    PL_Q5_K,
    PL_Q6_K,
    PL_IQ4_NL,
    PL_MXFP4, /* e2m1, a power of two each 32 */
    PL_NVFP4, /* e2m1, an e4m3 scale each 16 and a float each tensor */
    PL_I4G32, /* signed 4 bits, a bf16 scale each 32, 64 or 128 */
    PL_I4G64,
    PL_I4G128,
    PL_U4G32, /* 4 bits with a zero point, an f16 scale */
    PL_U4G64,
    PL_U4G128,
    PL_F8G32, /* e4m3, an f32 scale */
    PL_F8G64,
    PL_F8G128,
    PL_N_DTYPES
};
enum { PL_ROWS = 0, PL_PACKED = 1 }; /* layout: rows as in a file, or the backend's own for products */
/* What activations are rounded to before a product. int8, int15: integers, with a scale per 32 (kernels/README.md). */
enum { PL_ACT_BF16 = 0, PL_ACT_F32, PL_ACT_INT8, PL_ACT_INT15, PL_N_ACTS };
enum { PL_DEV_CPU = 0, PL_DEV_CUDA = 1 };
enum { PL_PATH_AUTO = 0, PL_PATH_PORTABLE, PL_PATH_AVX2, PL_PATH_AVX512, PL_PATH_AMX, PL_PATH_SOFT_AMX, PL_N_PATHS };

/* Caller-owned report of the last failure. */
typedef struct pl_err {
    int32_t code, line;
    char file[24];
    char msg[216];
} pl_err;

typedef struct pl_storage pl_storage; /* counted memory behind one or more tensors */
typedef struct pl_dev pl_dev;
typedef struct pl_stream pl_stream;
typedef struct pl_prog pl_prog;
typedef struct pl_kv pl_kv;
typedef struct pl_coll pl_coll;
typedef struct pl_engine pl_engine;
typedef struct pl_ckpt pl_ckpt;
typedef struct pl_packer pl_packer;

/* A strided view of counted storage; dims run slowest first, strides are in elements (of a packed or
 * block format: in elements too, multiples of the block). A zeroed struct is an empty tensor. */
typedef struct pl_tensor {
    int32_t dtype, layout, ndim, dev;
    int64_t dim[PL_MAX_DIMS];
    int64_t stride[PL_MAX_DIMS];
    void *data;
    pl_storage *storage;
} pl_tensor;

int32_t pl_abi_sizeof(const char *type); /* size of a struct of this header, or -1 */
const char *pl_version(void);
double pl_now_s(void); /* monotonic, seconds */

/* dtype */
const char *pl_dtype_name(int32_t dtype);       /* "f32", "q4_1", ...; NULL if unknown */
int32_t pl_act_for(int32_t act, int32_t dtype); /* what a product with weights of this format does, if asked for act */
int32_t pl_dtype_block(int32_t dtype);          /* elements per block: 1, 32 or 256 */
int32_t pl_dtype_bytes(int32_t dtype);          /* bytes per block */

/* tensor: *out is a new reference that the caller releases; releasing an empty tensor does nothing */
int pl_tensor_new(pl_tensor *out, pl_dev *dev, int32_t dtype, int32_t ndim, const int64_t *dim, pl_err *err);
void pl_tensor_keep(pl_tensor *t);
void pl_tensor_release(pl_tensor *t);
int pl_tensor_slice(pl_tensor *out, const pl_tensor *t, int32_t axis, int64_t from, int64_t n, pl_err *err);
int pl_tensor_reshape(pl_tensor *out, const pl_tensor *t, int32_t ndim, const int64_t *dim, pl_err *err);
/* n values in row-major order, converted from or to float; any dtype in rows layout on the CPU */
int pl_tensor_set_f32(pl_tensor *t, const float *src, int64_t n, pl_err *err);
int pl_tensor_get_f32(const pl_tensor *t, float *dst, int64_t n, pl_err *err);
int pl_tensor_set_i32(pl_tensor *t, const int32_t *src, int64_t n, pl_err *err);

/* dev: a device with one stream of work and its threads */
typedef struct pl_dev_opts {
    int32_t kind;       /* PL_DEV_CPU, PL_DEV_CUDA */
    int32_t n_threads;  /* CPU: 0 = one per core that this process may use, no more than its cgroup's quota */
    int32_t path;       /* CPU: PL_PATH_AUTO = the fastest the machine has; a path it lacks is PL_EDEV */
    int32_t index;      /* CUDA: device number */
    const char *plugin; /* CUDA: file of the plug-in, NULL = libperilune_cuda.so beside the program */
} pl_dev_opts;
int pl_dev_open(pl_dev **out, const pl_dev_opts *o, pl_err *err);
void pl_dev_close(pl_dev *dev); /* tensors, caches and programs on it hold on to it until they have gone */
pl_stream *pl_dev_stream(pl_dev *dev);
int pl_dev_sync(pl_dev *dev, pl_err *err);
int pl_dev_describe(pl_dev *dev, char *text, int32_t cap); /* one line: device, path, threads */
int32_t pl_dev_path(pl_dev *dev);
int32_t pl_dev_threads(pl_dev *dev);
bool pl_dev_has_path(int32_t path);
const char *pl_path_name(int32_t path);
uint64_t pl_dev_path_count(pl_dev *dev, int32_t path); /* products computed on that path so far */
int pl_dev_copy(pl_dev *dev, pl_tensor *dst, const pl_tensor *src, pl_err *err); /* across devices, same format */
/* Reorder w[N,K] into the device's product layout; row_map[N] (or NULL) gives the source row of each row. */
int pl_dev_pack(pl_dev *dev, pl_tensor *out, const pl_tensor *w, const int32_t *row_map, pl_err *err);
int64_t pl_dev_packed_bytes(int32_t kind, int32_t dtype, int64_t n, int64_t k); /* needs no device */
/* How fast all of the device's threads read memory, half of them, a quarter, and so on down to four; from then on steps of at
 * most PL_FEW_TOKENS tokens run on as many as did best. The number of counts, at most cap; PL_EDEV: not a CPU. */
enum { PL_FEW_TOKENS = 16 };
typedef struct pl_fit {
    int32_t n_threads;
    double gb_s;
} pl_fit;
int pl_dev_fit(pl_dev *dev, pl_fit *fit, int32_t cap, pl_err *err);
/* What the device can do at most, for benchmarks to compare with: one run of a loop that does nothing else, on all of its
 * threads. *work: bytes read, or multiplications and additions. PL_EDEV: this path or machine has no such thing. */
enum {
    PL_PROBE_READ = 0,  /* the bytes of `memory` */
    PL_PROBE_FLOAT,     /* fused multiply-adds of floats, in the vectors of the device's path */
    PL_PROBE_INT8,      /* dot products of bytes, summed as 32-bit integers, in these vectors */
    PL_PROBE_TILE_BF16, /* the same in tiles */
    PL_PROBE_TILE_INT8,
    PL_N_PROBES
};
int pl_dev_probe(pl_dev *dev, int32_t probe, const pl_tensor *memory, double *work, pl_err *err);

/* ops: the table that opgen writes from pl_ops.h */
int32_t pl_op_count(void);
const char *pl_op_name(int32_t op);
const char *pl_op_sig(int32_t op);

/* ckpt: the weights and metadata of a GGUF file, a safetensors file, or a Hugging Face directory. Files are mapped,
 * not read. Everything is checked when a checkpoint is opened: what can fail later is memory, and the values of a
 * quantised weight (config.json's quantization_config), which is listed as one tensor and put together when taken. If its
 * columns are out of order (g_idx) it has them sorted, and "M.weight_order" (I32 [K]) beside it says where each came from. */
enum { PL_CKPT_GGUF = 0, PL_CKPT_HF = 1 };
int pl_ckpt_open(pl_ckpt **out, const char *path, pl_err *err); /* a directory without weights opens, with 0 tensors */
void pl_ckpt_close(pl_ckpt *c); /* tensors taken from it stay valid; texts and strings do not */
int32_t pl_ckpt_kind(const pl_ckpt *c);
int64_t pl_ckpt_bytes(const pl_ckpt *c); /* of its weight files */
typedef struct pl_ckpt_info {
    const char *name, *format; /* format: as the file calls it */
    int32_t dtype;             /* -1: a format that perilune does not read; taking the tensor is PL_EDTYPE */
    int32_t ndim;              /* more than PL_MAX_DIMS: likewise */
    int64_t dim[PL_MAX_DIMS];  /* slowest first: [N,K] for a weight of y[T,N] = x[T,K] w[N,K] */
    int64_t bytes;
    const char *how; /* of a packed file: what loading did to it; else NULL */
} pl_ckpt_info;
int32_t pl_ckpt_count(const pl_ckpt *c);                  /* tensors */
int32_t pl_ckpt_find(const pl_ckpt *c, const char *name); /* index, or PL_ENAME */
int pl_ckpt_info_at(const pl_ckpt *c, int32_t i, pl_ckpt_info *out, pl_err *err);
int pl_ckpt_tensor(pl_ckpt *c, int32_t i, pl_tensor *out, pl_err *err); /* a new reference into the mapping, PL_ROWS */
/* Pages of a tensor, or with i = -1 of all files, may leave memory; they come back from the file if read again. */
void pl_ckpt_drop(pl_ckpt *c, int32_t i);
/* Of all tensors: names, formats, sizes and values, of each at most so many bytes from its middle. */
void pl_ckpt_digest(const pl_ckpt *c, int64_t most, uint64_t digest[2]);
int pl_ckpt_check_values(const pl_tensor *t, pl_err *err); /* block formats and F8: PL_EFORMAT names the first block or
                                                              element that is not finite; other formats pass */
/* Metadata. Of a GGUF file its own keys ("llama.block_count"); of a directory config.json, flattened ("hidden_size",
 * "rope_scaling.factor", "text_config.num_hidden_layers"), and generation_config.json under "generation_config.".
 * null is as good as absent. An element's index is 0 for what is not a list. */
enum { PL_META_INT = 0, PL_META_FLOAT, PL_META_BOOL, PL_META_STRING };
typedef struct pl_meta_info {
    const char *key;
    int32_t type; /* of each element */
    bool is_list;
    int64_t n; /* elements; 1 unless a list */
} pl_meta_info;
int32_t pl_ckpt_meta_count(const pl_ckpt *c);
int32_t pl_ckpt_meta_find(const pl_ckpt *c, const char *key); /* index, or PL_ENAME */
int pl_ckpt_meta_at(const pl_ckpt *c, int32_t i, pl_meta_info *out, pl_err *err);
int pl_ckpt_meta_int(const pl_ckpt *c, int32_t i, int64_t element, int64_t *out, pl_err *err);  /* bool: 0 or 1 */
int pl_ckpt_meta_float(const pl_ckpt *c, int32_t i, int64_t element, double *out, pl_err *err); /* whole numbers too */
int pl_ckpt_meta_string(const pl_ckpt *c, int32_t i, int64_t element, const char **text, int64_t *bytes, pl_err *err);
/* A file beside the weights ("tokenizer.json"), at most 64 MB, held until close; not NUL-terminated text of `bytes`.
 * PL_ENAME: no such file, or a GGUF checkpoint. */
int pl_ckpt_text(pl_ckpt *c, const char *name, const char **text, int64_t *bytes, pl_err *err);

/* Packed files: a checkpoint's weights as a device wants them, with the texts that say what it is; mapped and used as they
 * lie. The kind of one is that of what it was made of. Its options are metadata under "perilune.". */
bool pl_ckpt_is_packed(const pl_ckpt *c);
int pl_ckpt_check_layouts(const pl_ckpt *c, pl_dev *dev, pl_err *err); /* PL_ESTALE: other layouts than the device's */
/* The tensors of a packed file begin to move into huge pages, in the background, if there is room; bytes that have. */
int pl_ckpt_settle(pl_ckpt *c, pl_err *err);
int64_t pl_ckpt_settled(const pl_ckpt *c);
/* PL_EFORMAT: a tensor, or with i = -1 what lies between them, has not the bytes that were written. */
int pl_ckpt_verify(const pl_ckpt *c, int32_t i, pl_err *err);
/* Writes one, in a single pass; it is there when it is ended, and nothing of it if it is freed before. options: a JSON
 * object. how: printable, at most 95 bytes. */
int pl_packer_new(pl_packer **out, const char *path, pl_ckpt *source, const char *options, int64_t n_options,
                  pl_err *err);
int pl_packer_add(pl_packer *p, pl_dev *dev, const char *name, const pl_tensor *t, const char *how, pl_err *err);
int pl_packer_end(pl_packer *p, pl_err *err);
void pl_packer_free(pl_packer *p);
/* Of names, sizes and times of the files of a model: another one if one of them was replaced. PL_ENAME: it is not there. */
int pl_pack_stamp(const char *path, uint64_t stamp[2], pl_err *err);

/* kv: a paged cache of attention rows; sequences own pages through block tables. Keys and values of a token
 * are heads x dim each. A step announces its spans, ops append and attend, then the step is committed. */
enum { PL_CHECK_OFF, PL_CHECK_PAGES, PL_CHECK_DIGESTS }; /* tags before every step; digests of full pages too */
enum { PL_SCALE_NONE, PL_SCALE_TENSOR, PL_SCALE_HEAD, PL_SCALE_TOKEN }; /* of an FP8 cache: value = code * scale */
typedef struct pl_kv_opts {
    int32_t layers, heads, key_dim, value_dim;
    int32_t page;  /* tokens per page, a multiple of 16; 0 = 64 */
    int32_t dtype; /* PL_BF16, PL_F8 or PL_F32 */
    int32_t scale; /* PL_F8: one for the layer's keys and one for its values, one per head, or one per token and head
                      (kept in the page, found when the token is appended); other formats: PL_SCALE_NONE */
    int32_t check; /* PL_CHECK_* */
    int64_t n_pages;
    bool dry; /* pages are counted and handed out, but there is no memory behind them: for simulations */
} pl_kv_opts;
/* The next n tokens of one sequence; spans lie in batch order. */
typedef struct pl_span {
    int32_t seq, n;
} pl_span;
enum { PL_PAGE_HISTORY = 4 };
typedef struct pl_page_owner {
    int64_t owner;
    uint64_t tag;
} pl_page_owner;
typedef struct pl_mismatch { /* a page that was not its sequence's own any more when a step wanted to read it */
    int64_t owner;           /* as given to pl_kv_seq_new */
    int32_t seq, index;      /* index: in the block table */
    int32_t page, state;     /* state: 0 free, 1 owned, 2 quarantined */
    uint64_t expected, found;
    pl_page_owner past[PL_PAGE_HISTORY]; /* who was given the page, newest first; owner 0: nobody */
} pl_mismatch;
typedef struct pl_kv_pages { /* they add up to the pool */
    int64_t free, owned, quarantined;
    int64_t in_flight; /* of these, pages that a copy reads or writes */
} pl_kv_pages;
int pl_kv_open(pl_kv **out, pl_dev *dev, const pl_kv_opts *o, pl_err *err);
void pl_kv_close(pl_kv *kv);
int64_t pl_kv_page_bytes(const pl_kv_opts *o); /* 0: sizes that no cache can have */
/* PL_SCALE_TENSOR, PL_SCALE_HEAD: scales [heads] of one layer, all equal for _TENSOR. There is no default: a cache
 * without its scales refuses its first step. */
int pl_kv_set_scales(pl_kv *kv, int32_t layer, const float *key, const float *value, pl_err *err);
/* Largest magnitudes [heads] of a sequence's committed keys and values in one layer, 0 without any; for calibration. F32
 * caches in host memory. NaN and infinity are an error. */
int pl_kv_amax(const pl_kv *kv, int32_t seq, int32_t layer, float *key, float *value, pl_err *err);
int64_t pl_kv_free_pages(const pl_kv *kv);
void pl_kv_count(const pl_kv *kv, pl_kv_pages *out);
int32_t pl_kv_readmit(pl_kv *kv); /* pages in quarantine because they were found damaged are used again; how many */
int pl_kv_seq_new(pl_kv *kv, int64_t owner, int32_t *seq, pl_err *err); /* owner: shown in records of a mismatch */
int pl_kv_seq_fork(pl_kv *kv, int32_t from, int64_t owner, int32_t *seq, pl_err *err); /* shares pages until written */
void pl_kv_seq_free(pl_kv *kv, int32_t seq);
int64_t pl_kv_seq_len(const pl_kv *kv, int32_t seq);
/* Takes pages, and compares the tags of all that the step reads. PL_EPAGES: nothing taken. */
int pl_kv_begin(pl_kv *kv, const pl_span *span, int32_t n, pl_err *err);
/* The spans' tokens are part of their sequences now; returns how many spans are not, because a page of theirs was given
 * to someone else. Nothing of such a span was read or written. */
int pl_kv_commit(pl_kv *kv, pl_err *err);
void pl_kv_abort(pl_kv *kv); /* forget the step and give back the pages it took */
/* PL_CHECK_DIGESTS: compares the next n full pages with their digests, round and round. Returns how many are damaged:
 * they go to quarantine, and their holders end at their next step. */
int32_t pl_kv_scrub(pl_kv *kv, int32_t n);
typedef struct pl_page_info {              /* for inspection */
    int32_t state, refs, readers, writers; /* state: 0 free, 1 owned, 2 quarantined; copies that read or write it */
    uint64_t tag;
    bool cached, damaged; /* cached: the prefix cache is one of its holders */
    pl_page_owner past[PL_PAGE_HISTORY];
} pl_page_info;
int pl_kv_page_at(const pl_kv *kv, int32_t page, pl_page_info *out);
int32_t pl_kv_seq_pages(const pl_kv *kv, int32_t seq, const int32_t **page);
int32_t pl_kv_mismatches(const pl_kv *kv, const pl_mismatch **out); /* of the last step that was committed */

/* coll: ranks that work together. One handle a rank; every rank calls the same collectives in the same order. */
int pl_coll_loopback(pl_coll **out, int32_t n_ranks, pl_err *err); /* out[n_ranks]: ranks on threads of this process */
void pl_coll_free(pl_coll *c);                                     /* the last one of a group ends the group */
int32_t pl_coll_rank(const pl_coll *c);
int32_t pl_coll_size(const pl_coll *c);

/* prog: a traced graph as a flat list of ops over values, with one planned block of memory */
typedef union pl_attr {
    int64_t i;
    double f;
} pl_attr;
enum { PL_DIM_T = -1, PL_DIM_R = -2 };                          /* tokens of the step; rows wanted */
enum { PL_VALUE_IDS = 0, PL_VALUE_POS = 1, PL_VALUE_ROWS = 2 }; /* i32 inputs that every program has */
int pl_prog_new(pl_prog **out, pl_dev *dev, pl_err *err);
void pl_prog_set_coll(pl_prog *p, pl_coll *coll); /* borrowed; NULL: one rank alone */
void pl_prog_free(pl_prog *p);
/* these return the new value's number, or a negative code */
int pl_prog_value(pl_prog *p, int32_t dtype, int32_t ndim, const int64_t *dim, pl_err *err);
int pl_prog_view(pl_prog *p, int32_t base, int64_t offset, int32_t ndim, const int64_t *dim, const int64_t *stride,
                 pl_err *err);
int pl_prog_const(pl_prog *p, const pl_tensor *t, pl_err *err); /* keeps a reference */
int pl_prog_op(pl_prog *p, int32_t op, const int32_t *value, int32_t n_values, const pl_attr *attr, int32_t n_attrs,
               int32_t line, pl_err *err);
/* Before build: a value [T,D] that stays to the end of a run, beside the result: embeddings are made of it. */
int pl_prog_set_hidden(pl_prog *p, int32_t i, pl_err *err);
int pl_prog_build(pl_prog *p, int32_t result, int32_t max_tokens, int32_t max_rows, bool reserve, pl_err *err);
int64_t pl_prog_bytes(const pl_prog *p); /* activations, after build */
int32_t pl_prog_n_ops(const pl_prog *p);
/* The i-th op (see pl_op_name), and the recipe line that it came from; past the last one PL_EARG. */
int32_t pl_prog_op_at(const pl_prog *p, int32_t i, int32_t *line);
typedef struct pl_batch {
    const int32_t *ids;  /* [n_tokens] */
    const int32_t *rows; /* [n_rows] token positions within the batch whose results are wanted */
    const pl_span *span; /* [n_spans] */
    int32_t n_tokens, n_rows, n_spans;
} pl_batch;
/* Runs the program over the batch and commits the step in kv; *result [n_rows, ...] is valid until the next run. Returns
 * how many spans were refused (pl_kv_commit); their rows of the result mean nothing. */
int pl_prog_run(pl_prog *p, pl_kv *kv, const pl_batch *b, pl_tensor *result, pl_err *err);

/* sample */
typedef struct pl_sample_opts {
    float temperature;                     /* 0 = greedy */
    float top_p, min_p;                    /* 1 and 0 = off */
    float repetition, presence, frequency; /* 1, 0, 0 = off */
    int32_t top_k;                         /* 0 = off */
    int32_t n_logprobs;                    /* -1 = none, 0 = of the chosen token, n = of the n best too (at most 20) */
    uint64_t seed;
    const int32_t *bias_id; /* [n_bias] */
    const float *bias;      /* [n_bias] */
    int32_t n_bias;
} pl_sample_opts;
enum { PL_MAX_LOGPROBS = 20 };
typedef struct pl_sampled {
    int32_t token, n_top;
    float logprob;
    int32_t top_id[PL_MAX_LOGPROBS];
    float top_logprob[PL_MAX_LOGPROBS];
} pl_sampled;
int pl_sample_check(const pl_sample_opts *o, int32_t n_vocab, pl_err *err);
/* One token from logits[n_vocab]; history[n_history] (prompt first, n_prompt of it) feeds the penalties; the random
 * number depends on (seed, n_history) alone. Scratch is the caller's: n_vocab floats. */
int pl_sample(pl_sampled *out, const float *logits, int32_t n_vocab, const pl_sample_opts *o, const int32_t *history,
              int32_t n_history, int32_t n_prompt, float *scratch, pl_err *err);
double pl_logsumexp(const float *logits, int32_t n);

/* engine: requests, their sequences, and the step. Tokens of a step are planned by a policy (Lua), which reads the
 * request records; C checks every entry of the plan. */
typedef struct pl_cost {                  /* what a step takes, in place of a program: for simulations */
    double step_s;                        /* of every step */
    double weight_bytes, kv_token_bytes;  /* read once a step; read per token of context and sequence */
    double bytes_s;                       /* memory bandwidth */
    double token_flop, pair_flop, flop_s; /* of one token; of one query and one key; what the device does a second */
} pl_cost;
typedef struct pl_engine_opts {
    int32_t max_requests; /* waiting and running together */
    int32_t max_rows;     /* requests of one step; 0: as many as requests */
    int32_t max_tokens;   /* of one step */
    int32_t n_vocab;
    int32_t n_tenants;        /* 0: one */
    bool prefix;              /* keep full pages, and find them again by their tokens */
    float scrub;              /* share of the time spent comparing pages with their digests (PL_CHECK_DIGESTS) */
    int64_t host_cache_bytes; /* pages that the prefix cache loses go on here; 0: nowhere */
    int64_t disk_cache_bytes; /* and then in a file of this size, which outlives the engine; 0: nowhere */
    const char *disk_cache;   /* in this directory */
    const char *model;        /* what, beside the cache's layout, decides the numbers in a page */
    const pl_cost *cost;      /* instead of a program: time is the engine's own, answers are not computed */
} pl_engine_opts;
enum { PL_MAX_VAIN = 64 }; /* times that a request is preempted without getting further */
enum { PL_WAITING = 0, PL_RUNNING = 1, PL_FINISHED = 2, PL_UNUSED = 3, PL_TOKENISING = 4 };
enum {
    PL_FINISH_NONE = 0,
    PL_FINISH_STOP,
    PL_FINISH_LENGTH,
    PL_FINISH_CANCELLED,
    PL_FINISH_ERROR,
    PL_FINISH_DEADLINE,
    PL_FINISH_INTEGRITY, /* a page of it was given to someone else, or damaged */
    PL_N_FINISH
};
typedef struct pl_request { /* what a policy reads; written by C only */
    int64_t id;             /* grows with every request */
    int32_t state, finish, seq;
    int32_t n_prompt, n_done; /* n_done: tokens of prompt and answer that are in the cache */
    int32_t n_out, max_out;
    int32_t left;     /* tokens known but not yet in the cache */
    int32_t n_cached; /* tokens that the prefix cache had when the request last began */
    int32_t n_preempted;
    int32_t loading; /* pages that are on their way from a tier: until they are there it is not planned */
    int32_t n_vain;  /* of these, since it last got further than before */
    bool kept;       /* it was preempted in vain too often, and is not any more */
    int32_t priority, tenant;
    double arrived_s, deadline_s; /* pl_engine_now; deadline 0: none */
    double started_s, first_s;    /* of the first step, and of the first token; 0: not yet */
} pl_request;
enum { PL_EMBED_NONE = 0, PL_EMBED_LAST, PL_EMBED_MEAN };
typedef struct pl_request_opts {
    const int32_t *prompt; /* [n_prompt] */
    const int32_t *stop;   /* [n_stop] token ids that end the answer */
    int32_t n_prompt, n_stop, max_out, priority, tenant;
    double deadline_s; /* seconds from now until the request is given up; 0: never */
    double arrived_s;  /* simulations: when it came; 0: now */
    const void *salt;  /* [n_salt] requests share cached prefixes only with the same tenant and salt */
    int32_t n_salt;
    int32_t min_out; /* tokens of the answer before which no stop token is chosen */
    bool later;      /* the prompt is still a text: pl_engine_prompt brings its tokens */
    int32_t embed,
        n_embed; /* PL_EMBED_*: it ends with its prompt (max_out is 0), and its event has the hidden states of
                               the last token or the mean, the first n_embed values (0: all), of length 1 */
    pl_sample_opts sample;
} pl_request_opts;
typedef struct pl_event {
    int64_t id;
    int32_t finish, n_out, n_cached; /* n_cached: as of the request */
    pl_sampled sampled;              /* token -1: none, only the end */
    const float *embedding;          /* [n_embedding], of one that has ended well; good until the next step or submit */
    int32_t n_embedding;
} pl_event;
enum { PL_HIST_BUCKETS = 40 };
typedef struct pl_hist { /* bucket i counts values up to first * 2^(i/2), the last one all others */
    double first, sum;
    uint64_t n, bucket[PL_HIST_BUCKETS];
} pl_hist;
typedef struct pl_tier_figures { /* pages of a tier behind the prefix cache */
    uint64_t hits;               /* came back */
    uint64_t stored;             /* were copied there */
    uint64_t dropped;            /* were given up for others; of host memory: or moved to the disk */
    uint64_t damaged;            /* were not what their digest says, and were not used */
    uint64_t errors;             /* that the operating system reported */
    int64_t pages, capacity;
    bool off; /* not used any more, after errors in a row */
} pl_tier_figures;
typedef struct pl_metrics { /* since the engine was opened */
    uint64_t steps, prompt_tokens, out_tokens, cached_tokens, submitted, refused, preempted, preempt_refused;
    uint64_t finished[PL_N_FINISH];
    uint64_t mismatches; /* pages that were not their sequence's own */
    uint64_t scrubbed_pages, damaged_pages;
    double step_s; /* spent in steps */
    int64_t n_running, n_waiting, n_tokenising;
    pl_kv_pages pages;
    int64_t idle_pages; /* held by the prefix cache alone; counted as owned */
    uint64_t evicted_pages;
    pl_tier_figures host, disk;
    uint64_t spill_missed;                        /* evicted pages that no tier had */
    uint64_t preempted_swap, preempted_recompute; /* of those preempted: pages were spilled first, or not */
    int64_t n_copies;                             /* to and from tiers, under way */
    double copied_bytes, copy_s;                  /* by copies so far, and the time that they took */
    pl_hist ttft_s, itl_s, e2e_s, queue_s, prompt_len, out_len, step_tokens;
} pl_metrics;
void pl_engine_metrics(const pl_engine *e, pl_metrics *out);
double pl_hist_quantile(const pl_hist *h, double q); /* upper bound of the bucket that holds it; 0: no values */
/* prog NULL: with o->cost, and a dry cache */
int pl_engine_open(pl_engine **out, pl_prog *prog, pl_kv *kv, const pl_engine_opts *o, pl_err *err);
void pl_engine_close(pl_engine *e);
double pl_engine_now(const pl_engine *e);            /* seconds; of a simulation: its own */
void pl_engine_wait_until(pl_engine *e, double t_s); /* simulations: nothing happens before */
int pl_engine_submit(pl_engine *e, const pl_request_opts *o, int64_t *id, pl_err *err);
/* The prompt of a request that was submitted without: it waits from now on, and has been there since it was submitted.
 * Where the prompt is wrong, the request stays as it is. */
int pl_engine_prompt(pl_engine *e, int64_t id, const int32_t *prompt, int32_t n, int32_t max_out, pl_err *err);
int pl_engine_cancel(pl_engine *e, int64_t id, pl_err *err);
int pl_engine_fail(pl_engine *e, int64_t id, pl_err *err); /* as cancel, but its end is PL_FINISH_ERROR */
int pl_engine_stop(pl_engine *e, int64_t id, pl_err *err); /* and PL_FINISH_STOP: its text is complete */
/* The requests as a step begins, in order of priority, then of arrival; the lists stay as they are while the step is
 * planned. Requests past their deadline end here, with an event. */
typedef struct pl_queue {
    const pl_request *const *running, *const *waiting; /* [n_running], [n_waiting] */
    int32_t n_running, n_waiting;
    int32_t n_events;
} pl_queue;
void pl_engine_look(pl_engine *e, pl_queue *out);
const pl_request *pl_engine_request_at(const pl_engine *e, int32_t i); /* the i-th place; NULL past the last one */
/* n tokens of this request in the next step, fewer if the prefix cache has some of them. PL_EFULL: the step has no room;
 * PL_EPAGES: the cache has none; PL_EBUSY: a tier behind the prefix cache has some of them, and they are on their way. */
int pl_engine_plan(pl_engine *e, int64_t id, int32_t n_tokens, pl_err *err);
/* Gives its pages back; it waits, and computes them anew. PL_ESTARVED: it was preempted in vain PL_MAX_VAIN times, and
 * keeps its pages until it ends; one request at a time. */
int pl_engine_preempt(pl_engine *e, int64_t id, pl_err *err);
int32_t pl_engine_step_left(const pl_engine *e); /* tokens that the step can still take */
int32_t pl_engine_rows_left(const pl_engine *e); /* requests that it can still take */
/* Pages that are not taken by the plan, nor still to come for prompts that have begun; with what the prefix cache can
 * give back. */
int64_t pl_engine_free_pages(const pl_engine *e);
/* The prefix cache gives pages back until n are free, as far as it can: for sequences beside the requests. */
void pl_engine_make_room(pl_engine *e, int64_t n);
int32_t pl_engine_cached(pl_engine *e,
                         int64_t id); /* tokens of a waiting request that the prefix cache or a tier has */
/* Where nothing can be planned: waits, for at most s seconds, for a copy to or from a tier to end, and takes note
 * of it. False: none is under way. */
bool pl_engine_wait(pl_engine *e, double s);
const char *pl_engine_tier_failure(const pl_engine *e); /* the first thing that the disk refused; NULL: nothing */
double
pl_engine_served(const pl_engine *e,
                 int32_t tenant); /* tokens computed for it, raised to the least of the others when it comes back */
int pl_engine_step(pl_engine *e, pl_err *err);                /* runs the plan; a request's own failure is an event */
int32_t pl_engine_events(pl_engine *e, const pl_event **out); /* of the last step, and of the look before it */
/* The step trace: where the time of the last steps went. A step begins with the look before it; its parts follow one
 * another, except that sampling and publishing take turns, request by request. What is left of total_s is bookkeeping. */
enum {
    PL_PART_PLAN = 0, /* from the look to the step: the policy, in Lua */
    PL_PART_BEGIN,    /* pages are taken, tags compared, inputs copied */
    PL_PART_OPS,      /* the program */
    PL_PART_COMMIT,   /* tags are compared again, pages that are full get their digests */
    PL_PART_SAMPLE,
    PL_PART_PUBLISH, /* full pages become known to the prefix cache */
    PL_PART_SCRUB,   /* pages are compared with their digests */
    PL_N_PARTS
};
typedef struct pl_step {
    int64_t number;          /* steps that ended before it, as pl_metrics counts them */
    double start_s, total_s; /* start_s: pl_now_s, of simulations too */
    double part_s[PL_N_PARTS];
    int32_t n_tokens, n_spans, n_rows, n_ops;
    const float *op_s; /* [n_ops] of each op of the program, in order; a device's are waited for one by one */
} pl_step;
/* The last n steps are kept from now on; 0: none, and those that were kept are gone. */
int pl_engine_trace(pl_engine *e, int32_t n_steps, pl_err *err);
/* The i-th of those that are kept, the oldest first; NULL: no more. Good until the next step. */
const pl_step *pl_engine_traced(const pl_engine *e, int32_t i);

/* tok: text to token ids and back. A pl_tok never changes once it is open: any number of threads may use one. Texts
 * are bytes with a length. pl_ids and pl_text are lists that grow; a zeroed struct is an empty list. */
typedef struct pl_tok pl_tok;
typedef struct pl_ids {
    int32_t *id;
    int32_t n, cap;
} pl_ids;
typedef struct pl_text {
    char *data;
    int32_t n, cap;
} pl_text;
typedef struct pl_tok_stream {
    uint8_t held[4];
    int32_t n_held, n_seen, n_stripped;
} pl_tok_stream; /* zeroed: at the start */
enum {
    PL_TOK_SPECIALS = 1, /* encode: names of special tokens in the text become those tokens; decode: they are written */
    PL_TOK_BOS = 2,      /* put in front what the model expects there (often nothing) */
    PL_TOK_EOS = 4       /* and behind */
};
/* A directory with tokenizer.json (or tiktoken.model) and tokenizer_config.json, or one of the first two files. */
int pl_tok_open_hf(pl_tok **out, const char *path, pl_err *err);
int pl_tok_open_ckpt(pl_tok **out, const pl_ckpt *c, pl_err *err); /* the one that a checkpoint carries */
void pl_tok_keep(pl_tok *t);
void pl_tok_close(pl_tok *t); /* as often as it was opened and kept: threads that use it hold on to it */
/* Appends the text's ids. Bytes that are not UTF-8 become byte tokens of their own. */
int pl_tok_encode(const pl_tok *t, pl_ids *ids, const char *text, int64_t n_bytes, int32_t flags, pl_err *err);
/* Appends the text of n ids; always UTF-8: what is not comes out as U+FFFD. Ids without a token add nothing. */
int pl_tok_decode(const pl_tok *t, pl_text *out, const int32_t *id, int64_t n, int32_t flags, pl_err *err);
/* The same, one token at a time: appends whole characters only; _end writes U+FFFD for an unfinished one. */
int pl_tok_stream_put(const pl_tok *t, pl_tok_stream *s, pl_text *out, int32_t id, int32_t flags, pl_err *err);
int pl_tok_stream_end(const pl_tok *t, pl_tok_stream *s, pl_text *out, pl_err *err);
int32_t pl_tok_size(const pl_tok *t); /* largest id + 1 */
int32_t pl_tok_bos(const pl_tok *t);  /* -1: none */
int32_t pl_tok_eos(const pl_tok *t);
bool pl_tok_is_special(const pl_tok *t, int32_t id);
int32_t pl_tok_find(const pl_tok *t, const char *name,
                    int64_t n_bytes);                                   /* id of a token as the file spells it, or -1 */
const char *pl_tok_name(const pl_tok *t, int32_t id, int32_t *n_bytes); /* that spelling; NULL: no such id */
const char *pl_tok_bytes(const pl_tok *t, int32_t id,
                         int32_t *n_bytes); /* what the token adds to a text; may be part of a character */
void pl_ids_free(pl_ids *ids);
void pl_text_free(pl_text *x);

/* Characters, for chat templates: a code point in lower (0), upper (1) or title case (2), where that is one character;
 * its general category, numbered as utf8proc numbers them (0: not assigned). */
int32_t pl_unicode_case(int32_t c, int32_t how);
int32_t pl_unicode_category(int32_t c);
/* abi-end */
#pragma GCC visibility pop
#endif
