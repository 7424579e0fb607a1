#ifndef PL_KV_H
#define PL_KV_H
/* The cache as the attention kernels see it. A page holds `page` tokens of all layers of the pool's layer group:
 * per layer, keys [page][heads][key_dim], then values [page][heads][value_dim]. Block tables map a sequence's
 * token position / page to a page. Kernels read pages in place through pl_kv_key and pl_kv_value. */
#include "tensor.h"

typedef struct pl_kv_seq {
    int32_t *page; /* [n_pages] block table */
    int32_t n_pages, cap;
    int64_t len;    /* committed tokens */
    int32_t step_n; /* tokens that the running step adds */
    bool used;
} pl_kv_seq;

typedef struct pl_kv_span {
    int32_t seq, first, n;
    int64_t pos;
} pl_kv_span; /* rows first..first+n-1 of the batch are positions pos.. */

struct pl_kv {
    pl_kv_opts o;
    pl_dev *dev;
    uint8_t *mem;                               /* [n_pages][page_bytes] */
    int64_t page_bytes, key_bytes, value_bytes; /* of one token and layer: heads x dim x size */
    int64_t layer_bytes;                        /* page * (key_bytes + value_bytes) */
    int32_t *free_list;                         /* [n_free] */
    int64_t n_free;
    pl_kv_seq *seq; /* [n_seqs] */
    int32_t n_seqs;
    pl_kv_span *span; /* the running step: [n_spans] */
    int32_t n_spans, span_cap;
    int64_t n_tokens; /* rows of the running step */
};

/* Row of one token: heads x dim values, in the cache's dtype. The position may belong to the running step. */
PL_INLINE uint8_t *pl_kv_key(const pl_kv *kv, const pl_kv_seq *s, int layer, int64_t pos)
{
    return kv->mem + s->page[pos / kv->o.page] * kv->page_bytes + layer * kv->layer_bytes +
           pos % kv->o.page * kv->key_bytes;
}
PL_INLINE uint8_t *pl_kv_value(const pl_kv *kv, const pl_kv_seq *s, int layer, int64_t pos)
{
    return kv->mem + s->page[pos / kv->o.page] * kv->page_bytes + layer * kv->layer_bytes + kv->o.page * kv->key_bytes +
           pos % kv->o.page * kv->value_bytes;
}
#endif
