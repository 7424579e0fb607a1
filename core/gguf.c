/* gguf.c: reads the head of a GGUF file: counts, metadata, tensor records.
 *
 * Every number in it is hostile. Limits: 2^20 tensors (toc.h), 2^16 keys (meta.h), names of 512 and keys of 1024
 * bytes, 1 to 4 dims, alignment a power of two from 8 to 65536. A count is compared with the bytes that are left
 * before anything is allocated for it, so memory stays within a small multiple of the file. Lists of lists occur in
 * the specification but in no known file, and are refused. Bytes after the last tensor are ignored. */
#include "gguf.h"
#include "dtype.h"
#include <stdio.h>
#include <stdlib.h>

enum { PL_MIN_ALIGN = 8, PL_DEFAULT_ALIGN = 32, PL_MAX_ALIGN = 1 << 16 };
enum { PL_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, PL_MIN_KEY_BYTES = 8 + 1 + 4 + 1 }; /* of one record */

typedef struct reader {
    const uint8_t *data;
    int64_t at, size;
    pl_err *err;
} reader;

static int take(reader *r, int64_t n, const uint8_t **p, const char *what)
{
    if (n < 0 || n > r->size - r->at)
        return pl_fail(r->err, PL_EFORMAT, "gguf: %s: wants %lld bytes at %lld, the file has %lld", what, (long long)n,
                       (long long)r->at, (long long)r->size);
    *p = r->data + r->at;
    r->at += n;
    return PL_OK;
}

static int take_u32(reader *r, uint32_t *out, const char *what)
{
    const uint8_t *p;
    PL_TRY(take(r, 4, &p, what));
    memcpy(out, p, 4);
    return PL_OK;
}

/* Counts, lengths and offsets: 64 bits in the file, and none may reach 2^63. */
static int take_size(reader *r, int64_t *out, const char *what)
{
    const uint8_t *p;
    PL_TRY(take(r, 8, &p, what));
    memcpy(out, p, 8);
    if (*out < 0) return pl_fail(r->err, PL_EFORMAT, "gguf: %s: %llu is out of range", what, (unsigned long long)*out);
    return PL_OK;
}

static int take_string(reader *r, const char **text, int64_t *n, const char *what)
{
    const uint8_t *p;
    PL_TRY(take_size(r, n, what));
    PL_TRY(take(r, *n, &p, what));
    *text = (const char *)p;
    return PL_OK;
}

/* The elements of a value; what: its key, fit for messages. */
static int take_elements(reader *r, pl_meta_entry *e, const char *what)
{
    const int bytes = pl_raw_bytes(e->raw);
    e->data = r->data + r->at;
    if (e->raw == PL_RAW_STRING) {
        if (e->n > (r->size - r->at) / 8)
            return pl_fail(r->err, PL_EFORMAT, "gguf: %s: %lld strings in the last %lld bytes", what, (long long)e->n,
                           (long long)(r->size - r->at));
        const int64_t start = r->at;
        e->at = malloc((size_t)pl_max(e->n, 1) * sizeof *e->at);
        if (!e->at) return pl_fail(r->err, PL_ENOMEM, "gguf: %s: no memory for %lld strings", what, (long long)e->n);
        for (int64_t i = 0; i < e->n; i++) {
            const char *text;
            int64_t n;
            e->at[i] = r->at - start;
            PL_TRY(take_string(r, &text, &n, what));
        }
        return PL_OK;
    }
    int64_t total;
    const uint8_t *p;
    if (!pl_mul(e->n, bytes, &total))
        return pl_fail(r->err, PL_EFORMAT, "gguf: %s: a list of %lld elements", what, (long long)e->n);
    PL_TRY(take(r, total, &p, what));
    if (e->raw == PL_RAW_BOOL)
        for (int64_t i = 0; i < e->n; i++)
            if (p[i] > 1) return pl_fail(r->err, PL_EFORMAT, "gguf: %s: a truth value of %d, want 0 or 1", what, p[i]);
    return PL_OK;
}

static int take_key(reader *r, pl_meta *meta)
{
    char what[PL_META_KEY_MAX / 8];
    const char *key;
    int64_t n_key;
    uint32_t type, element;
    pl_meta_entry e = {.n = 1};

    PL_TRY(take_string(r, &key, &n_key, "a key"));
    if (pl_is_printable(key, n_key))
        snprintf(what, sizeof what, "key '%.*s'", (int)pl_min(n_key, 96), key);
    else
        snprintf(what, sizeof what, "key %d", meta->n);
    PL_TRY(take_u32(r, &type, what));
    element = type;
    if (type == PL_RAW_LIST) {
        e.is_list = true;
        PL_TRY(take_u32(r, &element, what));
        PL_TRY(take_size(r, &e.n, what));
        if (element == PL_RAW_LIST) return pl_fail(r->err, PL_EFORMAT, "gguf: %s: a list of lists", what);
    }
    if (element >= PL_N_RAW) return pl_fail(r->err, PL_EFORMAT, "gguf: %s: unknown type %u", what, element);
    e.raw = (int32_t)element;
    const int rc = take_elements(r, &e, what);
    if (rc < 0) {
        free(e.at);
        return rc;
    }
    return pl_meta_add(meta, key, n_key, &e, r->err);
}

static int take_tensor(reader *r, pl_toc *toc)
{
    char what[96];
    const char *name;
    int64_t n_name, count = 1;
    uint32_t ndim, type;
    pl_toc_entry e = {0};

    PL_TRY(take_string(r, &name, &n_name, "a tensor"));
    if (pl_is_printable(name, n_name))
        snprintf(what, sizeof what, "tensor '%.*s'", (int)pl_min(n_name, 64), name);
    else
        snprintf(what, sizeof what, "tensor %d", toc->n);
    PL_TRY(take_u32(r, &ndim, what));
    if (ndim < 1 || ndim > PL_MAX_DIMS)
        return pl_fail(r->err, PL_EFORMAT, "gguf: %s: %u dims, want 1 to %d", what, ndim, PL_MAX_DIMS);
    e.ndim = (int32_t)ndim;
    for (uint32_t i = 0; i < ndim; i++) { /* the file has the fastest first */
        int64_t *dim = &e.dim[ndim - 1 - i];
        PL_TRY(take_size(r, dim, what));
        if (*dim < 1 || !pl_mul(count, *dim, &count))
            return pl_fail(r->err, PL_EFORMAT, "gguf: %s: dim %u is %lld", what, i, (long long)*dim);
    }
    PL_TRY(take_u32(r, &type, what));
    e.dtype = pl_dtype_of_gguf(type);
    if (e.dtype < 0) return pl_fail(r->err, PL_EDTYPE, "gguf: %s: type %u is not read", what, type);
    const pl_dtype_info *d = pl_dtype(e.dtype);
    snprintf(e.format, sizeof e.format, "%s", d->name);
    if (e.dim[ndim - 1] % d->block)
        return pl_fail(r->err, PL_EFORMAT, "gguf: %s: rows of %lld elements, want a multiple of %d for %s", what,
                       (long long)e.dim[ndim - 1], d->block, d->name);
    if (!pl_mul(count / d->block, d->bytes, &e.bytes))
        return pl_fail(r->err, PL_EFORMAT, "gguf: %s: %lld elements of %s", what, (long long)count, d->name);
    PL_TRY(take_size(r, &e.offset, what));
    return pl_toc_add(toc, name, n_name, &e, r->err);
}

static int find_alignment(const pl_meta *meta, int64_t *align, pl_err *err)
{
    *align = PL_DEFAULT_ALIGN;
    const int32_t i = pl_meta_find(meta, "general.alignment");
    if (i < 0) return PL_OK;
    PL_TRY(pl_meta_int(&meta->e[i], 0, align, err));
    if (*align < PL_MIN_ALIGN || *align > PL_MAX_ALIGN || (*align & (*align - 1)))
        return pl_fail(err, PL_EFORMAT, "gguf: general.alignment: %lld, want a power of two from %d to %d",
                       (long long)*align, PL_MIN_ALIGN, PL_MAX_ALIGN);
    return PL_OK;
}

/* Turns offsets from the start of the data into offsets from the start of the file. */
static int place_tensors(reader *r, pl_toc *toc, int64_t align)
{
    const int64_t start = pl_round_up(r->at, align); /* at is within the file: no overflow */
    for (int32_t i = 0; i < toc->n; i++) {
        pl_toc_entry *e = &toc->e[i];
        int64_t from, end;
        if (e->offset % align)
            return pl_fail(r->err, PL_EFORMAT, "gguf: tensor '%.64s': offset %lld, want a multiple of %lld", e->name,
                           (long long)e->offset, (long long)align);
        if (!pl_add_size(start, e->offset, &from) || from > r->size)
            return pl_fail(r->err, PL_EFORMAT,
                           "gguf: tensor '%.64s': offset %lld is past the end of the file (size %lld)", e->name,
                           (long long)e->offset, (long long)r->size);
        if (!pl_add_size(from, e->bytes, &end) || end > r->size)
            return pl_fail(r->err, PL_EFORMAT, "gguf: tensor '%.64s': %lld bytes at %lld end past the file (size %lld)",
                           e->name, (long long)e->bytes, (long long)from, (long long)r->size);
        e->offset = from;
    }
    return pl_toc_seal(toc, "gguf", r->err);
}

int pl_gguf_parse(pl_meta *meta, pl_toc *toc, const uint8_t *data, int64_t size, pl_err *err)
{
    reader r = {.data = data, .size = size, .err = err};
    const uint8_t *magic;
    uint32_t version;
    int64_t n_tensors, n_keys, align;

    PL_TRY(take(&r, 4, &magic, "magic"));
    if (memcmp(magic, "GGUF", 4) != 0) return pl_fail(err, PL_EFORMAT, "gguf: magic: not a GGUF file");
    PL_TRY(take_u32(&r, &version, "version"));
    if (version != 2 && version != 3)
        return pl_fail(err, PL_EFORMAT, "gguf: version: %u, want 2 or 3%s", version,
                       version && !(version & 0xffff) ? " (a big-endian file)" : "");
    PL_TRY(take_size(&r, &n_tensors, "tensor count"));
    PL_TRY(take_size(&r, &n_keys, "key count"));
    if (n_tensors > PL_TOC_MAX || n_tensors > size / PL_MIN_TENSOR_BYTES)
        return pl_fail(err, PL_EFORMAT, "gguf: tensor count: %lld in a file of %lld bytes", (long long)n_tensors,
                       (long long)size);
    if (n_keys > PL_META_MAX_KEYS || n_keys > size / PL_MIN_KEY_BYTES)
        return pl_fail(err, PL_EFORMAT, "gguf: key count: %lld in a file of %lld bytes", (long long)n_keys,
                       (long long)size);
    for (int64_t i = 0; i < n_keys; i++) PL_TRY(take_key(&r, meta));
    PL_TRY(pl_meta_seal(meta, "gguf", err));
    if (!toc) return PL_OK;
    PL_TRY(find_alignment(meta, &align, err));
    for (int64_t i = 0; i < n_tensors; i++) PL_TRY(take_tensor(&r, toc));
    return place_tensors(&r, toc, align);
}
