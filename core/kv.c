/* kv.c: sequences with their block tables, and the running step of the attention cache. */
#include "kv.h"
#include "dev.h"
#include "dtype.h"
#include "mem.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_LAYERS = 1 << 16 };

static int check_scale(const pl_kv_opts *o, pl_err *err)
{
    if (o->dtype != PL_F8 && o->scale != PL_SCALE_NONE)
        return pl_fail(err, PL_EARG, "kv: scale kind %d with format %s, want none", o->scale, pl_dtype_name(o->dtype));
    if (o->dtype == PL_F8 && (o->scale < PL_SCALE_TENSOR || o->scale > PL_SCALE_TOKEN))
        return pl_fail(err, PL_EARG, "kv: format f8 with scale kind %d, want one per tensor, head or token", o->scale);
    return PL_OK;
}

/* What a page's bytes follow from; they are fewer than 2^60 then. */
static int check_sizes(const pl_kv_opts *o, pl_err *err)
{
    if (o->layers < 1 || o->heads < 1 || o->key_dim < 1 || o->value_dim < 1)
        return pl_fail(err, PL_EARG, "kv: %d layers of %d heads x (%d + %d), want at least 1 of each", o->layers,
                       o->heads, o->key_dim, o->value_dim);
    int64_t row;
    if (o->layers > MAX_LAYERS || !pl_mul(o->heads, (int64_t)o->key_dim + o->value_dim, &row) || row > INT32_MAX)
        return pl_fail(err, PL_EARG, "kv: %d layers of %d heads x (%d + %d), want at most %d layers and 2^31 in a row",
                       o->layers, o->heads, o->key_dim, o->value_dim, MAX_LAYERS);
    if (o->page < 0 || o->page % 16 || o->page > 1024)
        return pl_fail(err, PL_EARG, "kv: page of %d tokens, want a multiple of 16 up to 1024", o->page);
    if (o->dtype != PL_BF16 && o->dtype != PL_F32 && o->dtype != PL_F8)
        return pl_fail(err, PL_EDTYPE, "kv: format %s, want bf16, f8 or f32",
                       pl_dtype_valid(o->dtype) ? pl_dtype_name(o->dtype) : "?");
    return PL_OK;
}

static int check_opts(const pl_kv_opts *o, pl_err *err)
{
    PL_TRY(check_sizes(o, err));
    PL_TRY(check_scale(o, err));
    if (o->check < PL_CHECK_OFF || o->check > PL_CHECK_DIGESTS)
        return pl_fail(err, PL_EARG, "kv: check %d, want off, pages or digests", o->check);
    if (o->n_pages < 1 || o->n_pages > INT32_MAX)
        return pl_fail(err, PL_EARG, "kv: %lld pages, want 1 to 2^31", (long long)o->n_pages);
    return PL_OK;
}

static int32_t page_tokens(const pl_kv_opts *o) { return o->page ? o->page : 64; }

static int64_t layer_bytes(const pl_kv_opts *o)
{
    int64_t row = (int64_t)o->heads * (o->key_dim + o->value_dim) * pl_dtype_bytes(o->dtype);
    if (o->scale == PL_SCALE_TOKEN) row += 2 * o->heads * (int64_t)sizeof(float);
    return row * page_tokens(o);
}

int64_t pl_kv_page_bytes(const pl_kv_opts *o)
{
    const bool in_range = check_sizes(o, NULL) == PL_OK;
    return in_range ? layer_bytes(o) * o->layers : 0;
}

/* Layers start with scales of 1; where they have to be given, none is used before. */
static int open_scales(pl_kv *kv, pl_err *err)
{
    const int64_t n = (int64_t)kv->o.layers * 2 * kv->o.heads;
    if (!(kv->scale = malloc((size_t)n * sizeof *kv->scale)))
        return pl_fail(err, PL_ENOMEM, "kv: no memory for %lld scales", (long long)n);
    for (int64_t i = 0; i < n; i++) kv->scale[i] = 1;
    if (kv->o.scale != PL_SCALE_TENSOR && kv->o.scale != PL_SCALE_HEAD) return PL_OK;
    for (int64_t i = 0; i < n; i++) kv->scale[i] = 0; /* 0: still to be set */
    kv->n_unscaled = kv->o.layers;
    return PL_OK;
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
    kv->layer_bytes = layer_bytes(o);
    int rc = PL_OK;
    if (!o->dry && !(kv->mem = dev->stream.backend->alloc(dev->stream.impl, bytes)))
        rc = pl_fail(err, PL_ENOMEM, "kv: no memory for %lld bytes", (long long)bytes);
    if (rc == PL_OK) rc = pl_tags_open(&kv->tags, dev, (int32_t)o->n_pages, err);
    if (rc == PL_OK) rc = open_scales(kv, err);
    if (rc < 0)
        pl_kv_close(kv);
    else
        *out = kv;
    return rc;
}

void pl_kv_close(pl_kv *kv)
{
    if (!kv) return;
    const pl_stream *s = &kv->dev->stream;
    for (int32_t i = 0; i < kv->n_seqs; i++) {
        free(kv->seq[i].page);
        free(kv->seq[i].tag);
    }
    free(kv->seq);
    free(kv->span);
    free(kv->scale);
    free(kv->found);
    free(kv->mismatch);
    if (kv->bad) s->backend->free(s->impl, kv->bad, kv->bad_cap * (int64_t)sizeof *kv->bad);
    if (kv->mem) s->backend->free(s->impl, kv->mem, kv->o.n_pages * kv->page_bytes);
    if (kv->tags.page) pl_tags_close(&kv->tags);
    pl_dev_close(kv->dev);
    free(kv);
}

int pl_kv_set_scales(pl_kv *kv, int32_t layer, const float *key, const float *value, pl_err *err)
{
    const int32_t heads = kv->o.heads;
    if (kv->o.scale != PL_SCALE_TENSOR && kv->o.scale != PL_SCALE_HEAD)
        return pl_fail(err, PL_EARG, "kv: this cache takes no scales");
    if (layer < 0 || layer >= kv->o.layers)
        return pl_fail(err, PL_EARG, "kv: scales of layer %d, want 0 to %d", layer, kv->o.layers - 1);
    for (int32_t i = 0; i < 2 * heads; i++) {
        const float v = i < heads ? key[i] : value[i - heads], first = i < heads ? key[0] : value[0];
        if (!(v > 0 && v < INFINITY))
            return pl_fail(err, PL_EARG, "kv: layer %d: scale %g, want a finite number above 0", layer, (double)v);
        if (kv->o.scale == PL_SCALE_TENSOR && v != first)
            return pl_fail(err, PL_EARG, "kv: layer %d: scales %g and %g, want one for the tensor", layer,
                           (double)first, (double)v);
    }
    float *to = kv->scale + layer * 2 * (int64_t)heads;
    if (to[0] == 0) kv->n_unscaled--;
    memcpy(to, key, (size_t)heads * sizeof *to);
    memcpy(to + heads, value, (size_t)heads * sizeof *to);
    return PL_OK;
}

static pl_kv_seq *find(const pl_kv *kv, int32_t seq)
{
    return seq >= 0 && seq < kv->n_seqs && kv->seq[seq].used ? &kv->seq[seq] : NULL;
}

static bool amax_of(const float *row, int32_t heads, int32_t dim, float *most)
{
    for (int32_t h = 0; h < heads; h++)
        for (int32_t d = 0; d < dim; d++) {
            const float v = fabsf(row[h * dim + d]);
            if (!(v < INFINITY)) return false;
            if (v > most[h]) most[h] = v;
        }
    return true;
}

int pl_kv_amax(const pl_kv *kv, int32_t seq, int32_t layer, float *key, float *value, pl_err *err)
{
    const pl_kv_opts *o = &kv->o;
    const pl_kv_seq *s = find(kv, seq);
    if (!s) return pl_fail(err, PL_EARG, "kv: no sequence %d", seq);
    if (o->dtype != PL_F32 || !kv->mem || kv->dev->stream.kind != PL_DEV_CPU)
        return pl_fail(err, PL_EDTYPE, "kv: magnitudes of an f32 cache in host memory only");
    if (layer < 0 || layer >= o->layers)
        return pl_fail(err, PL_EARG, "kv: layer %d, want 0 to %d", layer, o->layers - 1);
    memset(key, 0, (size_t)o->heads * sizeof *key);
    memset(value, 0, (size_t)o->heads * sizeof *value);
    for (int64_t pos = 0; pos < s->len; pos++)
        if (!amax_of((const float *)pl_kv_key(kv, s, layer, pos), o->heads, o->key_dim, key) ||
            !amax_of((const float *)pl_kv_value(kv, s, layer, pos), o->heads, o->value_dim, value))
            return pl_fail(err, PL_ELIMIT, "kv: layer %d: a key or value of token %lld is not finite", layer,
                           (long long)pos);
    return PL_OK;
}

int64_t pl_kv_free_pages(const pl_kv *kv) { return kv->tags.n_state[PL_PAGE_FREE]; }

void pl_kv_count(const pl_kv *kv, pl_kv_pages *out)
{
    const pl_tags *t = &kv->tags;
    *out = (pl_kv_pages){t->n_state[PL_PAGE_FREE], t->n_state[PL_PAGE_OWNED], t->n_state[PL_PAGE_QUARANTINED], 0};
    for (int32_t i = 0; i < t->n; i++) out->in_flight += t->page[i].readers + t->page[i].writers > 0;
}

int32_t pl_kv_readmit(pl_kv *kv) { return pl_tags_readmit(&kv->tags); }

/* Sequences ---------------------------------------------------------------------------------------------- */

int pl_kv_seq_new(pl_kv *kv, int64_t owner, int32_t *seq, pl_err *err)
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
    kv->seq[i].owner = owner;
    *seq = i;
    return PL_OK;
}

/* Room for n pages in the block table. */
static int table_room(pl_kv_seq *s, int32_t n, pl_err *err)
{
    int32_t cap = s->cap;
    PL_TRY(pl_mem_grow((void **)&s->tag, &cap, n, sizeof *s->tag, err));
    PL_TRY(pl_mem_grow((void **)&s->page, &s->cap, n, sizeof *s->page, err));
    return PL_OK;
}

static void put(pl_kv_seq *s, int32_t i, pl_hold h)
{
    s->page[i] = h.page;
    s->tag[i] = h.tag;
}

/* Gives back the pages past the first `keep`. A page that is not the sequence's own any more stays whose it is. */
static void shrink(pl_kv *kv, pl_kv_seq *s, int32_t keep)
{
    while (s->n_pages > keep) {
        s->n_pages--;
        (void)pl_tags_drop(&kv->tags, pl_kv_hold(s, s->n_pages));
    }
}

void pl_kv_seq_free(pl_kv *kv, int32_t seq)
{
    pl_kv_seq *s = find(kv, seq);
    if (!s) return;
    PL_ASSERT(s->step_n == 0); /* a running step still reads it */
    if (kv->tags.fault) pl_fault_freed(kv->tags.fault, s);
    shrink(kv, s, 0);
    free(s->page);
    free(s->tag);
    memset(s, 0, sizeof *s);
}

int64_t pl_kv_seq_len(const pl_kv *kv, int32_t seq)
{
    const pl_kv_seq *s = find(kv, seq);
    return s ? s->len : -1;
}

int pl_kv_adopt(pl_kv *kv, int32_t seq, const pl_hold *hold, int32_t n, pl_err *err)
{
    pl_kv_seq *s = find(kv, seq);
    PL_ASSERT(s && s->n_pages == 0);
    PL_TRY(table_room(s, n, err));
    for (int32_t i = 0; i < n; i++) put(s, i, hold[i]);
    s->n_pages = n;
    s->len = (int64_t)n * kv->o.page;
    return PL_OK;
}

int pl_kv_seq_fork(pl_kv *kv, int32_t from, int64_t owner, int32_t *seq, pl_err *err)
{
    const pl_kv_seq *s = find(kv, from);
    int32_t to;
    if (!s) return pl_fail(err, PL_EARG, "kv: no sequence %d", from);
    if (s->step_n) return pl_fail(err, PL_EARG, "kv: sequence %d is in the running step", from);
    PL_TRY(pl_kv_seq_new(kv, owner, &to, err));
    s = find(kv, from); /* the table of sequences may have moved */
    pl_kv_seq *d = find(kv, to);
    if (table_room(d, s->n_pages, err) < 0) {
        pl_kv_seq_free(kv, to);
        return PL_ENOMEM;
    }
    for (int32_t i = 0; i < s->n_pages; i++) {
        if (!pl_tags_keep(&kv->tags, pl_kv_hold(s, i), owner)) {
            pl_kv_seq_free(kv, to);
            return pl_fail(err, PL_ETAG, "kv: page %d of sequence %d was given to someone else", i, from);
        }
        put(d, d->n_pages++, pl_kv_hold(s, i));
    }
    d->len = s->len;
    *seq = to;
    return PL_OK;
}

/* The running step ---------------------------------------------------------------------------------------- */

static int32_t pages_of(const pl_kv *kv, int64_t tokens) { return (int32_t)((tokens + kv->o.page - 1) / kv->o.page); }

/* The step would write to a page that others hold too. One that a copy still writes to stays where it is: half written,
 * it would be read under the new page's tag; so the step is refused. */
static bool must_copy(const pl_kv *kv, const pl_kv_seq *s)
{
    if (s->len % kv->o.page == 0) return false;
    const pl_hold last = pl_kv_hold(s, s->n_pages - 1);
    const pl_page *p = &kv->tags.page[last.page];
    return pl_tags_valid(&kv->tags, last) && p->refs > 1 && p->writers == 0;
}

int64_t pl_kv_need(const pl_kv *kv, int32_t seq, int32_t n)
{
    const pl_kv_seq *s = find(kv, seq);
    PL_ASSERT(s);
    return pages_of(kv, s->len + n) - s->n_pages + must_copy(kv, s);
}

static int check_spans(pl_kv *kv, const pl_span *span, int32_t n, int64_t *need, pl_err *err)
{
    *need = 0;
    if (kv->n_unscaled)
        return pl_fail(err, PL_EARG, "kv: an f8 cache without scales for %d of %d layers, want them set",
                       kv->n_unscaled, kv->o.layers);
    for (int32_t i = 0; i < n; i++) {
        const pl_kv_seq *s = find(kv, span[i].seq);
        if (!s) return pl_fail(err, PL_EARG, "kv: span %d: no sequence %d", i, span[i].seq);
        if (span[i].n < 1) return pl_fail(err, PL_EARG, "kv: span %d: %d tokens, want at least 1", i, span[i].n);
        if (s->len + span[i].n > INT32_MAX) return pl_fail(err, PL_ELIMIT, "kv: a sequence of more than 2^31 tokens");
        *need += pl_kv_need(kv, span[i].seq, span[i].n);
    }
    return PL_OK;
}

/* Marks the spans' sequences, which finds one that is named twice. */
static int mark_spans(pl_kv *kv, const pl_span *span, int32_t n, pl_err *err)
{
    int32_t i = 0;
    while (i < n && find(kv, span[i].seq)->step_n == 0) {
        find(kv, span[i].seq)->step_n = span[i].n;
        i++;
    }
    if (i == n) return PL_OK;
    for (int32_t k = 0; k < i; k++) find(kv, span[k].seq)->step_n = 0;
    return pl_fail(err, PL_EARG, "kv: span %d is a second one of sequence %d", i, span[i].seq);
}

/* All memory that the step's lists need: after this nothing can fail for want of it. */
static int step_room(pl_kv *kv, const pl_span *span, int32_t n, pl_err *err)
{
    const pl_stream *s = &kv->dev->stream;
    PL_TRY(pl_mem_grow((void **)&kv->span, &kv->span_cap, n, sizeof *kv->span, err));
    if (n > kv->bad_cap) {
        const int32_t cap = (int32_t)pl_max(64, 2 * n);
        int32_t *bad = s->backend->alloc(s->impl, cap * (int64_t)sizeof *bad),
                *found = malloc((size_t)cap * sizeof *found);
        if (!bad || !found) {
            if (bad) s->backend->free(s->impl, bad, cap * (int64_t)sizeof *bad);
            free(found);
            return pl_fail(err, PL_ENOMEM, "kv: no memory for a step of %d sequences", n);
        }
        if (kv->bad) s->backend->free(s->impl, kv->bad, kv->bad_cap * (int64_t)sizeof *bad);
        free(kv->found);
        kv->bad = bad, kv->found = found, kv->bad_cap = cap;
    }
    for (int32_t i = 0; i < n; i++) {
        pl_kv_seq *q = find(kv, span[i].seq);
        PL_TRY(table_room(q, pages_of(kv, q->len + span[i].n), err));
    }
    return PL_OK;
}

/* A page of its own for the last, partly filled one. */
static int copy_last(pl_kv *kv, pl_kv_seq *s, pl_err *err)
{
    const pl_stream *st = &kv->dev->stream;
    const int32_t last = s->n_pages - 1;
    const pl_hold own = pl_tags_take(&kv->tags, s->owner);
    PL_ASSERT(own.page >= 0); /* counted in check_spans */
    if (!kv->o.dry) {
        const int rc =
            st->backend->copy(st->impl, pl_kv_page(kv, own.page), pl_kv_page(kv, s->page[last]), kv->page_bytes, err);
        if (rc < 0) {
            (void)pl_tags_drop(&kv->tags, own);
            return rc;
        }
    }
    (void)pl_tags_drop(&kv->tags, pl_kv_hold(s, last));
    put(s, last, own);
    return PL_OK;
}

static int verify(pl_kv *kv, pl_err *err)
{
    if (kv->o.check == PL_CHECK_OFF || kv->o.dry) return PL_OK;
    pl_tensor bad = {.dtype = PL_I32, .ndim = 1, .dim = {kv->n_spans}, .stride = {1}, .data = kv->bad};
    return pl_kv_verify(&kv->dev->stream, &bad, kv, err);
}

int pl_kv_begin(pl_kv *kv, const pl_span *span, int32_t n, pl_err *err)
{
    const pl_stream *st = &kv->dev->stream;
    int64_t need;
    PL_ASSERT(kv->n_spans == 0);
    PL_TRY(check_spans(kv, span, n, &need, err));
    if (kv->tags.fault) pl_fault_step(kv, span, n);
    if (need > pl_kv_free_pages(kv))
        return pl_fail(err, PL_EPAGES, "kv: %lld pages wanted, %lld free", (long long)need,
                       (long long)pl_kv_free_pages(kv));
    PL_TRY(step_room(kv, span, n, err));
    PL_TRY(mark_spans(kv, span, n, err));
    kv->n_tokens = 0;
    kv->n_spans = n;
    memset(kv->found, 0, (size_t)n * sizeof *kv->found);
    int rc = n ? st->backend->copy_in(st->impl, kv->bad, kv->found, n * (int64_t)sizeof *kv->bad, err) : PL_OK;
    for (int32_t i = 0; i < n; i++) {
        pl_kv_seq *s = find(kv, span[i].seq);
        kv->span[i] = (pl_kv_span){span[i].seq, (int32_t)kv->n_tokens, span[i].n, s->len};
        kv->n_tokens += span[i].n;
        if (rc == PL_OK && must_copy(kv, s)) rc = copy_last(kv, s, err);
        const int32_t want = pages_of(kv, s->len + span[i].n);
        while (s->n_pages < want) put(s, s->n_pages++, pl_tags_take(&kv->tags, s->owner));
    }
    if (rc == PL_OK) rc = verify(kv, err);
    if (rc < 0) pl_kv_abort(kv);
    return rc;
}

/* What is wrong with the pages of a span that failed. A tag in device memory that is not what the host wrote there is
 * damage; else a copy writes to the page, or it has another owner, whose it is and stays. */
static int record(pl_kv *kv, int32_t seq, pl_err *err)
{
    const pl_kv_seq *s = &kv->seq[seq];
    const pl_stream *st = &kv->dev->stream;
    for (int32_t i = 0; i < s->n_pages; i++) {
        const pl_page *p = &kv->tags.page[s->page[i]];
        uint64_t found;
        PL_TRY(st->backend->copy_out(st->impl, &found, &kv->tags.tag[s->page[i]], sizeof found, err));
        if (found == s->tag[i]) continue;
        PL_TRY(pl_mem_grow((void **)&kv->mismatch, &kv->mismatch_cap, kv->n_mismatches + 1, sizeof *kv->mismatch, err));
        pl_mismatch *m = &kv->mismatch[kv->n_mismatches++];
        *m = (pl_mismatch){s->owner, seq, i, s->page[i], p->state, s->tag[i], found, {{0}}};
        memcpy(m->past, p->past, sizeof m->past);
        const uint64_t written = p->tag | (p->writers > 0);
        if (p->tag == s->tag[i] && found != written) pl_tags_condemn(&kv->tags, s->page[i]);
    }
    return PL_OK;
}

static void end(pl_kv *kv, bool commit)
{
    for (int32_t i = 0; i < kv->n_spans; i++) {
        pl_kv_seq *s = &kv->seq[kv->span[i].seq];
        if (commit && !kv->found[i]) {
            pl_kv_seal(kv, s, s->len, s->len + s->step_n);
            s->len += s->step_n;
        }
        s->step_n = 0;
        shrink(kv, s, pages_of(kv, s->len));
    }
    kv->n_spans = 0;
    kv->n_tokens = 0;
}

int pl_kv_commit(pl_kv *kv, pl_err *err)
{
    const pl_stream *st = &kv->dev->stream;
    int n_bad = 0;
    kv->n_mismatches = 0;
    int rc = verify(kv, err); /* a page may have changed hands while the step ran */
    if (rc == PL_OK && kv->n_spans)
        rc = st->backend->copy_out(st->impl, kv->found, kv->bad, kv->n_spans * (int64_t)sizeof *kv->bad, err);
    for (int32_t i = 0; rc == PL_OK && i < kv->n_spans; i++) {
        n_bad += kv->found[i] != 0;
        if (kv->found[i]) rc = record(kv, kv->span[i].seq, err);
    }
    end(kv, rc == PL_OK);
    return rc < 0 ? rc : n_bad;
}

int32_t pl_kv_reclaim(pl_kv *kv, const pl_hold *hold, int32_t n_holds)
{
    pl_tags *t = &kv->tags;
    int32_t n = 0, *holders = calloc((size_t)t->n, sizeof *holders);
    if (!holders) return 0; /* the next mismatch tries again */
    for (int32_t i = 0; i < n_holds; i++) holders[hold[i].page] += pl_tags_valid(t, hold[i]);
    for (int32_t k = 0; k < kv->n_seqs; k++)
        for (int32_t i = 0; i < kv->seq[k].n_pages; i++) {
            const pl_hold h = pl_kv_hold(&kv->seq[k], i);
            holders[h.page] += pl_tags_valid(t, h);
        }
    for (int32_t i = 0; i < t->n; i++) {
        const pl_hold h = {i, t->page[i].tag};
        while (t->page[i].state == PL_PAGE_OWNED && t->page[i].refs > holders[i] + t->page[i].cached) {
            n += t->page[i].refs == 1;
            (void)pl_tags_drop(t, h);
        }
    }
    free(holders);
    return n;
}

void pl_kv_abort(pl_kv *kv) { end(kv, false); }

int pl_kv_page_at(const pl_kv *kv, int32_t page, pl_page_info *out)
{
    if (page < 0 || page >= kv->tags.n) return PL_EARG;
    const pl_page *p = &kv->tags.page[page];
    *out = (pl_page_info){p->state, p->refs, p->readers, p->writers, p->tag, p->cached, p->damaged, {{0}}};
    memcpy(out->past, p->past, sizeof out->past);
    return PL_OK;
}

int32_t pl_kv_seq_pages(const pl_kv *kv, int32_t seq, const int32_t **page)
{
    const bool is_there = seq >= 0 && seq < kv->n_seqs && kv->seq[seq].used;
    *page = is_there ? kv->seq[seq].page : NULL;
    return is_there ? kv->seq[seq].n_pages : 0;
}

int32_t pl_kv_mismatches(const pl_kv *kv, const pl_mismatch **out)
{
    *out = kv->mismatch;
    return kv->n_mismatches;
}
