#ifndef PL_KV_H
#define PL_KV_H
/* The cache as the attention kernels see it. A page holds `page` tokens of all layers of the pool's layer group:
 * per layer, keys [page][heads][key_dim], then values [page][heads][value_dim], then, with a scale per token, the
 * scales of keys f32 [page][heads] and of values f32 [page][heads]. Block tables map a sequence's token position / page
 * to a page. Kernels read pages in place through pl_kv_key and its like, and pass over spans that are bad. */
#include "tag.h"
#include "tensor.h"

typedef struct pl_kv_seq {
    int32_t *page; /* [n_pages] block table */
    uint64_t *tag; /* [n_pages] what the page's tag was when the sequence was given it */
    int32_t n_pages, cap;
    int64_t len;    /* committed tokens */
    int64_t owner;  /* a request's id */
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
    pl_tags tags;
    uint8_t *mem;                               /* [n_pages][page_bytes]; NULL: dry */
    int64_t page_bytes, key_bytes, value_bytes; /* of one token and layer: heads x dim x size */
    int64_t layer_bytes;                        /* page * (key_bytes + value_bytes), and the scales */
    float *scale;                               /* [layers][2][heads]: keys, values; 1 where pages hold the scales */
    int32_t n_unscaled;                         /* layers whose scales are still to be set */
    pl_kv_seq *seq;                             /* [n_seqs] */
    int32_t n_seqs;
    pl_kv_span *span; /* the running step: [n_spans] */
    int32_t n_spans, span_cap;
    int64_t n_tokens; /* rows of the running step */
    int32_t *bad;     /* [bad_cap] in device memory, [n_spans] of the running step: 1 = a page is not its own */
    int32_t *found;   /* [bad_cap] the same on the host, after the step */
    int32_t bad_cap;
    pl_mismatch *mismatch; /* [n_mismatches] */
    int32_t n_mismatches, mismatch_cap;
    int32_t scrub_at; /* the next page whose digest is looked at */
};

PL_INLINE uint8_t *pl_kv_layer(const pl_kv *kv, const pl_kv_seq *s, int layer, int64_t pos)
{
    return kv->mem + s->page[pos / kv->o.page] * kv->page_bytes + layer * kv->layer_bytes;
}
/* Row of one token: heads x dim values, in the cache's dtype. The position may belong to the running step. */
PL_INLINE uint8_t *pl_kv_key(const pl_kv *kv, const pl_kv_seq *s, int layer, int64_t pos)
{
    return pl_kv_layer(kv, s, layer, pos) + pos % kv->o.page * kv->key_bytes;
}
PL_INLINE uint8_t *pl_kv_value(const pl_kv *kv, const pl_kv_seq *s, int layer, int64_t pos)
{
    return pl_kv_layer(kv, s, layer, pos) + kv->o.page * kv->key_bytes + pos % kv->o.page * kv->value_bytes;
}
/* With a scale per token: scales [heads] of one token's keys or values. */
PL_INLINE float *pl_kv_token_scale(const pl_kv *kv, const pl_kv_seq *s, int layer, int64_t pos, bool values)
{
    float *first = (float *)(pl_kv_layer(kv, s, layer, pos) + kv->o.page * (kv->key_bytes + kv->value_bytes));
    return first + (pos % kv->o.page + (values ? kv->o.page : 0)) * kv->o.heads;
}
/* Scales [heads] that hold for a whole layer. */
PL_INLINE const float *pl_kv_layer_scale(const pl_kv *kv, int layer, bool values)
{
    return kv->scale + (layer * 2 + values) * (int64_t)kv->o.heads;
}

/* After a mismatch, between steps: pages that neither a sequence nor the prefix cache holds, nor are named in hold[n], though they
 * are owned, are free again. Returns how many: a page is lost where a block table was damaged. */
int32_t pl_kv_reclaim(pl_kv *kv, const pl_hold *hold, int32_t n);
/* Pages that n more tokens take beyond those that the sequence has. */
int64_t pl_kv_need(const pl_kv *kv, int32_t seq, int32_t n);
PL_INLINE pl_hold pl_kv_hold(const pl_kv_seq *s, int32_t i) { return (pl_hold){s->page[i], s->tag[i]}; }
/* Puts n pages that are held for the sequence at the front of an empty one: it has n * page tokens then. */
PL_MUST int pl_kv_adopt(pl_kv *kv, int32_t seq, const pl_hold *hold, int32_t n, pl_err *err);
uint64_t pl_kv_digest(const void *page, int64_t bytes);
/* Tokens from..to-1 of a sequence were committed: the pages that they filled get their digests. */
void pl_kv_seal(pl_kv *kv, const pl_kv_seq *s, int64_t from, int64_t to);
PL_INLINE uint8_t *pl_kv_page(const pl_kv *kv, int32_t page) { return kv->mem + page * kv->page_bytes; }
#endif
