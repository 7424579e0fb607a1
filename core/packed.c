/* packed.c: reads the head of a packed file. Every number in it is hostile: the digest is there to notice damage, and
 * stops nobody. */
#include "packed.h"
#include "dtype.h"
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum { PL_MIN_TEXT = 16, PL_MIN_FORM = 8 + 8 + 16, PL_MIN_RECORD = 16 + 8 + 8 + 16 + 16 }; /* bytes of a record */

typedef struct reader {
    const uint8_t *data; /* the head */
    int64_t at, size;
    pl_err *err;
} reader;

static int take(reader *r, int64_t n, const uint8_t **p, const char *what)
{
    if (n < 0 || n > r->size - r->at)
        return pl_fail(r->err, PL_EFORMAT, "packed: %s: wants %lld bytes at %lld, the head has %lld", what,
                       (long long)n, (long long)r->at, (long long)r->size);
    *p = r->data + r->at;
    r->at += n;
    return PL_OK;
}

static int take_into(reader *r, void *out, int64_t n, const char *what)
{
    const uint8_t *p;
    PL_TRY(take(r, n, &p, what));
    memcpy(out, p, (size_t)n);
    return PL_OK;
}

static int take_bytes(reader *r, const uint8_t **p, int64_t *n, const char *what)
{
    PL_TRY(take_into(r, n, 8, what));
    return take(r, *n, p, what);
}

/* A name of 1 (how: 0) to cap - 1 printable bytes. */
static int take_name(reader *r, char *out, int64_t cap, int64_t least, const char *what)
{
    const uint8_t *p;
    int64_t n;
    PL_TRY(take_bytes(r, &p, &n, what));
    if (n < least || n >= cap || !pl_is_printable((const char *)p, n))
        return pl_fail(r->err, PL_EFORMAT, "packed: %s: a name of %lld bytes, want %lld to %lld that are printable",
                       what, (long long)n, (long long)least, (long long)cap - 1);
    memcpy(out, p, (size_t)n);
    out[n] = 0;
    return PL_OK;
}

static int take_text(reader *r, pl_packed *p, uint32_t i)
{
    pl_packed_text *t = &p->text[i];
    PL_TRY(take_name(r, t->name, sizeof t->name, 1, "text"));
    for (uint32_t k = 0; k < i; k++)
        if (!strcmp(p->text[k].name, t->name))
            return pl_fail(r->err, PL_EFORMAT, "packed: text '%s' is there twice", t->name);
    return take_bytes(r, &t->data, &t->bytes, t->name);
}

static int take_form(reader *r, pl_packed_form *f)
{
    char name[16];
    int32_t where[2];
    PL_TRY(take_name(r, name, sizeof name, 1, "form"));
    PL_TRY(take_into(r, where, sizeof where, "form"));
    PL_TRY(take_into(r, f->id, sizeof f->id, "form"));
    f->dtype = -1;
    for (int32_t i = 0; i < PL_N_DTYPES; i++)
        if (!strcmp(pl_dtype_name(i), name)) f->dtype = i;
    f->layout = where[0];
    if (f->dtype < 0 || (f->layout != PL_ROWS && f->layout != PL_PACKED) || where[1] != PL_DEV_CPU)
        return pl_fail(r->err, PL_EFORMAT, "packed: form '%s' in layout %d of device %d is not read", name, where[0],
                       where[1]);
    return PL_OK;
}

static int64_t bytes_of(const pl_packed_form *f, const pl_toc_entry *e, pl_packed_bytes_fn *packed_bytes)
{
    const pl_dtype_info *d = pl_dtype(f->dtype);
    int64_t n = 1, bytes;
    for (int32_t i = 0; i < e->ndim; i++)
        if (e->dim[i] < 1 || !pl_mul(n, e->dim[i], &n)) return -1;
    if (e->dim[e->ndim - 1] % d->block || !pl_mul(n / d->block, d->bytes, &bytes)) return -1;
    if (f->layout == PL_ROWS) return bytes;
    return e->ndim == 2 ? packed_bytes(f->dtype, e->dim[0], e->dim[1]) : -1;
}

static int take_tensor(reader *r, pl_packed *p, pl_toc *toc, pl_packed_bytes_fn *packed_bytes)
{
    pl_packed_tensor *t = &p->tensor[toc->n];
    pl_toc_entry e = {0};
    const uint8_t *name;
    int64_t n_name, end;
    uint32_t form, ndim;
    char what[96];
    PL_TRY(take_bytes(r, &name, &n_name, "a tensor"));
    if (pl_is_printable((const char *)name, n_name))
        snprintf(what, sizeof what, "tensor '%.*s'", (int)pl_min(n_name, 64), (const char *)name);
    else
        snprintf(what, sizeof what, "tensor %d", toc->n);
    PL_TRY(take_name(r, t->how, sizeof t->how, 0, what));
    PL_TRY(take_into(r, &form, 4, what));
    PL_TRY(take_into(r, &ndim, 4, what));
    if (form >= p->header.n_forms || ndim < 1 || ndim > PL_MAX_DIMS)
        return pl_fail(r->err, PL_EFORMAT, "packed: %s: form %u of %u, %u dims", what, form, p->header.n_forms, ndim);
    e.ndim = (int32_t)ndim;
    PL_TRY(take_into(r, e.dim, (int64_t)ndim * 8, what));
    PL_TRY(take_into(r, &e.offset, 8, what));
    PL_TRY(take_into(r, &e.bytes, 8, what));
    PL_TRY(take_into(r, t->digest, sizeof t->digest, what));
    t->form = (int32_t)form;
    e.dtype = p->form[form].dtype;
    snprintf(e.format, sizeof e.format, "%s", pl_dtype_name(e.dtype));
    const int64_t want = bytes_of(&p->form[form], &e, packed_bytes);
    if (e.bytes < 1 || e.bytes != want)
        return pl_fail(r->err, PL_EFORMAT, "packed: %s: %lld bytes of %s, want %lld for its sizes", what,
                       (long long)e.bytes, e.format, (long long)want);
    if (e.offset < PL_PACKED_PAGE || e.offset % PL_PACKED_ALIGN || !pl_add_size(e.offset, e.bytes, &end) ||
        end > p->header.head_at)
        return pl_fail(r->err, PL_EFORMAT, "packed: %s: %lld bytes at %lld, the data is from %d to %lld", what,
                       (long long)e.bytes, (long long)e.offset, PL_PACKED_PAGE, (long long)p->header.head_at);
    return pl_toc_add(toc, (const char *)name, n_name, &e, r->err);
}

void pl_packed_digest(const pl_packed_header *h, const void *options, const void *head, uint64_t digest[2])
{
    /* digests of digests: the parts lie apart */
    const XXH128_hash_t part[3] = {XXH3_128bits(h, offsetof(pl_packed_header, digest)),
                                   XXH3_128bits(options, h->n_options), XXH3_128bits(head, (size_t)h->head_bytes)};
    const XXH128_hash_t all = XXH3_128bits(part, sizeof part);
    digest[0] = all.low64;
    digest[1] = all.high64;
}

static int check_header(const pl_packed_header *h, const uint8_t *data, int64_t size, pl_err *err)
{
    int64_t end;
    uint64_t digest[2];
    if (h->version != PL_PACKED_VERSION)
        return pl_fail(err, PL_ESTALE, "packed: version %u, this perilune reads version %d", h->version,
                       PL_PACKED_VERSION);
    if (h->file_bytes != size)
        return pl_fail(err, PL_EFORMAT, "packed: the file has %lld bytes, its header says %lld", (long long)size,
                       (long long)h->file_bytes);
    if (h->n_options > PL_PACKED_MAX_OPTIONS || h->head_at < (int64_t)sizeof *h + h->n_options || h->head_at % 8 ||
        !pl_add_size(h->head_at, h->head_bytes, &end) || end != size)
        return pl_fail(err, PL_EFORMAT, "packed: options of %u bytes, a head of %lld at %lld, in a file of %lld",
                       h->n_options, (long long)h->head_bytes, (long long)h->head_at, (long long)size);
    pl_packed_digest(h, data + sizeof *h, data + h->head_at, digest);
    if (memcmp(digest, h->digest, sizeof digest) != 0)
        return pl_fail(err, PL_EFORMAT, "packed: the head is damaged: its digest does not match");
    if (h->kind != PL_CKPT_GGUF && h->kind != PL_CKPT_HF)
        return pl_fail(err, PL_EFORMAT, "packed: kind %u, want %d or %d", h->kind, PL_CKPT_GGUF, PL_CKPT_HF);
    if (h->n_texts > PL_PACKED_MAX_TEXTS || h->n_texts > h->head_bytes / PL_MIN_TEXT ||
        h->n_forms > PL_PACKED_MAX_FORMS || h->n_forms > h->head_bytes / PL_MIN_FORM || h->n_tensors > PL_TOC_MAX ||
        h->n_tensors > h->head_bytes / PL_MIN_RECORD)
        return pl_fail(err, PL_EFORMAT, "packed: %u texts, %u forms and %u tensors in a head of %lld bytes", h->n_texts,
                       h->n_forms, h->n_tensors, (long long)h->head_bytes);
    return PL_OK;
}

int pl_packed_parse(pl_packed *p, pl_toc *toc, const uint8_t *data, int64_t size, pl_packed_bytes_fn *packed_bytes,
                    pl_err *err)
{
    pl_packed_header *h = &p->header;
    if (size < (int64_t)sizeof *h || memcmp(data, PL_PACKED_MAGIC, sizeof h->magic) != 0)
        return pl_fail(err, PL_EFORMAT, "packed: %lld bytes, not a packed file", (long long)size);
    memcpy(h, data, sizeof *h);
    PL_TRY(check_header(h, data, size, err));
    p->options = data + sizeof *h;
    p->text = calloc(h->n_texts + 1, sizeof *p->text);
    p->form = calloc(h->n_forms + 1, sizeof *p->form);
    p->tensor = calloc(h->n_tensors + 1, sizeof *p->tensor);
    if (!p->text || !p->form || !p->tensor) return pl_fail(err, PL_ENOMEM, "packed: no memory for its head");
    reader r = {.data = data + h->head_at, .size = h->head_bytes, .err = err};
    for (uint32_t i = 0; i < h->n_texts; i++) PL_TRY(take_text(&r, p, i));
    for (uint32_t i = 0; i < h->n_forms; i++) PL_TRY(take_form(&r, &p->form[i]));
    for (uint32_t i = 0; i < h->n_tensors; i++) PL_TRY(take_tensor(&r, p, toc, packed_bytes));
    if (r.at != r.size)
        return pl_fail(err, PL_EFORMAT, "packed: %lld bytes behind the last tensor's record",
                       (long long)(r.size - r.at));
    return pl_toc_seal(toc, "packed", err);
}

void pl_packed_clear(pl_packed *p)
{
    free(p->text);
    free(p->form);
    free(p->tensor);
    *p = (pl_packed){0};
}
