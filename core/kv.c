/* kv.c: pages, block tables and the running step of the attention cache. */
#include "kv.h"
#include "dev.h"
#include "dtype.h"
#include "mem.h"
#include <stdlib.h>

static int check_opts(const pl_kv_opts *o, pl_err *err)
{
    if (o->layers < 1 || o->heads < 1 || o->key_dim < 1 || o->value_dim < 1)
        return pl_fail(err, PL_EARG, "kv: %d layers of %d heads x (%d + %d), want at least 1 of each", o->layers,
                       o->heads, o->key_dim, o->value_dim);
    if (o->page < 0 || o->page % 16 || o->page > 1024)
        return pl_fail(err, PL_EARG, "kv: page of %d tokens, want a multiple of 16 up to 1024", o->page);
    if (o->dtype != PL_BF16 && o->dtype != PL_F32)
        return pl_fail(err, PL_EDTYPE, "kv: format %s, want bf16 or f32",
                       pl_dtype_valid(o->dtype) ? pl_dtype_name(o->dtype) : "?");
    if (o->n_pages < 1 || o->n_pages > INT32_MAX)
        return pl_fail(err, PL_EARG, "kv: %lld pages, want 1 to 2^31", (long long)o->n_pages);
    return PL_OK;
}

static int32_t page_tokens(const pl_kv_opts *o) { return o->page ? o->page : 64; }

int64_t pl_kv_page_bytes(const pl_kv_opts *o)
{
    const int64_t row = (int64_t)o->heads * (o->key_dim + o->value_dim) * pl_dtype_bytes(o->dtype);
    return row * page_tokens(o) * o->layers;
}

int pl_kv_open(pl_kv **out, pl_dev *dev, const pl_kv_opts *o, pl_err *err)
{
    PL_TRY(check_opts(o, err));
    int64_t bytes;
    if (!pl_mul(o->n_pages, pl_kv_page_bytes(o), &bytes))
        return pl_fail(err, PL_EARG, "kv: %lld pages are more than 2^63 bytes", (long long)o->n_pages);
    pl_kv *kv = calloc(1, sizeof *kv);
    if (!kv) return pl_fail(err, PL_ENOMEM, "kv: no memory");
    kv->o = *o;
    kv->o.page = page_tokens(o);
    kv->dev = pl_dev_keep(dev);
    kv->page_bytes = pl_kv_page_bytes(o);
    kv->key_bytes = (int64_t)o->heads * o->key_dim * pl_dtype_bytes(o->dtype);
    kv->value_bytes = (int64_t)o->heads * o->value_dim * pl_dtype_bytes(o->dtype);
    kv->layer_bytes = kv->o.page * (kv->key_bytes + kv->value_bytes);
    kv->mem = dev->stream.backend->alloc(dev->stream.impl, bytes);
    kv->free_list = malloc((size_t)o->n_pages * sizeof *kv->free_list);
    if (!kv->mem || !kv->free_list) {
        pl_kv_close(kv);
        return pl_fail(err, PL_ENOMEM, "kv: no memory for %lld bytes", (long long)bytes);
    }
    /* the first pages are handed out first */
    for (int64_t i = 0; i < o->n_pages; i++) kv->free_list[i] = (int32_t)(o->n_pages - 1 - i);
    kv->n_free = o->n_pages;
    *out = kv;
    return PL_OK;
}

void pl_kv_close(pl_kv *kv)
{
    if (!kv) return;
    for (int32_t i = 0; i < kv->n_seqs; i++) free(kv->seq[i].page);
    free(kv->seq);
    free(kv->span);
    free(kv->free_list);
    const pl_stream *s = &kv->dev->stream;
    if (kv->mem) s->backend->free(s->impl, kv->mem, kv->o.n_pages * kv->page_bytes);
    pl_dev_close(kv->dev);
    free(kv);
}

int64_t pl_kv_free_pages(const pl_kv *kv) { return kv->n_free; }

int pl_kv_seq_new(pl_kv *kv, int32_t *seq, pl_err *err)
{
    int32_t i = 0;
    while (i < kv->n_seqs && kv->seq[i].used) i++;
    if (i == kv->n_seqs) {
        int32_t cap = kv->n_seqs; /* grown by doubling: n_seqs counts the slots that exist */
        PL_TRY(pl_mem_grow((void **)&kv->seq, &cap, cap + 1, sizeof *kv->seq, err));
        memset(kv->seq + kv->n_seqs, 0, (size_t)(cap - kv->n_seqs) * sizeof *kv->seq);
        kv->n_seqs = cap;
    }
    kv->seq[i].used = true;
    *seq = i;
    return PL_OK;
}

static pl_kv_seq *find(const pl_kv *kv, int32_t seq)
{
    return seq >= 0 && seq < kv->n_seqs && kv->seq[seq].used ? &kv->seq[seq] : NULL;
}

/* Gives back the pages past the first `keep`. */
static void shrink(pl_kv *kv, pl_kv_seq *s, int32_t keep)
{
    while (s->n_pages > keep) {
        PL_ASSERT(kv->n_free < kv->o.n_pages);
        kv->free_list[kv->n_free++] = s->page[--s->n_pages];
    }
}

void pl_kv_seq_free(pl_kv *kv, int32_t seq)
{
    pl_kv_seq *s = find(kv, seq);
    if (!s) return;
    PL_ASSERT(s->step_n == 0); /* a running step still reads it */
    shrink(kv, s, 0);
    free(s->page);
    memset(s, 0, sizeof *s);
}

int64_t pl_kv_seq_len(const pl_kv *kv, int32_t seq)
{
    const pl_kv_seq *s = find(kv, seq);
    return s ? s->len : -1;
}

static int32_t pages_of(const pl_kv *kv, int64_t tokens) { return (int32_t)((tokens + kv->o.page - 1) / kv->o.page); }

static int check_spans(pl_kv *kv, const pl_span *span, int32_t n, int64_t *need, pl_err *err)
{
    *need = 0;
    for (int32_t i = 0; i < n; i++) {
        const pl_kv_seq *s = find(kv, span[i].seq);
        if (!s) return pl_fail(err, PL_EARG, "kv: span %d: no sequence %d", i, span[i].seq);
        if (span[i].n < 1) return pl_fail(err, PL_EARG, "kv: span %d: %d tokens, want at least 1", i, span[i].n);
        for (int32_t j = 0; j < i; j++)
            if (span[j].seq == span[i].seq)
                return pl_fail(err, PL_EARG, "kv: spans %d and %d are both of sequence %d", j, i, span[i].seq);
        if (s->len + span[i].n > INT32_MAX) return pl_fail(err, PL_ELIMIT, "kv: a sequence of more than 2^31 tokens");
        *need += pages_of(kv, s->len + span[i].n) - s->n_pages;
    }
    return PL_OK;
}

int pl_kv_begin(pl_kv *kv, const pl_span *span, int32_t n, pl_err *err)
{
    int64_t need;
    PL_ASSERT(kv->n_spans == 0);
    PL_TRY(check_spans(kv, span, n, &need, err));
    if (need > kv->n_free)
        return pl_fail(err, PL_EPAGES, "kv: %lld pages wanted, %lld free", (long long)need, (long long)kv->n_free);
    PL_TRY(pl_mem_grow((void **)&kv->span, &kv->span_cap, n, sizeof *kv->span, err));
    for (int32_t i = 0; i < n; i++) { /* all memory first: after this nothing can fail */
        pl_kv_seq *s = find(kv, span[i].seq);
        PL_TRY(pl_mem_grow((void **)&s->page, &s->cap, pages_of(kv, s->len + span[i].n), sizeof *s->page, err));
    }
    kv->n_tokens = 0;
    for (int32_t i = 0; i < n; i++) {
        pl_kv_seq *s = find(kv, span[i].seq);
        const int32_t want = pages_of(kv, s->len + span[i].n);
        while (s->n_pages < want) s->page[s->n_pages++] = kv->free_list[--kv->n_free];
        s->step_n = span[i].n;
        kv->span[i] = (pl_kv_span){span[i].seq, (int32_t)kv->n_tokens, span[i].n, s->len};
        kv->n_tokens += span[i].n;
    }
    kv->n_spans = n;
    return PL_OK;
}

static void end(pl_kv *kv, bool commit)
{
    for (int32_t i = 0; i < kv->n_spans; i++) {
        pl_kv_seq *s = &kv->seq[kv->span[i].seq];
        if (commit) s->len += s->step_n;
        s->step_n = 0;
        shrink(kv, s, pages_of(kv, s->len));
    }
    kv->n_spans = 0;
    kv->n_tokens = 0;
}

void pl_kv_commit(pl_kv *kv) { end(kv, true); }
void pl_kv_abort(pl_kv *kv) { end(kv, false); }
