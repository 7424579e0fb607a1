/* safetensors.c: reads the head of a safetensors file, and the index of a checkpoint in several files.
 *
 * A file is a u64 length, that many bytes of JSON, and the data: {"name": {"dtype": "BF16", "shape": [2,3],
 * "data_offsets": [from, to]}, ...}. Limits: a head of 100 MB (the reference reader's), 1024 shards, and those of
 * toc.h. Tensors in formats that perilune lacks, or of more than four dims, are listed and refused only when asked
 * for: a checkpoint may carry parts (a vision tower) that nobody needs. Holes between tensors are allowed. */
#include "safetensors.h"
#include "dtype.h"
#include "json.h"
#include "mem.h"
#include <stdio.h>
#include <stdlib.h>

enum { PL_MAX_HEAD = 100 * 1000 * 1000 };

/* A size: a JSON integer, not negative. */
static bool get_size(const json_t *v, int64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = json_integer_value(v);
    return true;
}

static int read_shape(pl_toc_entry *e, int64_t *count, const json_t *shape, const char *name, pl_err *err)
{
    const size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > 64) return pl_fail(err, PL_EFORMAT, "safetensors: tensor '%.64s': no shape", name);
    *count = 1;
    for (size_t i = 0; i < n; i++) {
        int64_t dim;
        if (!get_size(json_array_get(shape, i), &dim) || !pl_mul(*count, dim, count))
            return pl_fail(err, PL_EFORMAT, "safetensors: tensor '%.64s': dim %zu is out of range", name, i);
        if (i < PL_MAX_DIMS) e->dim[i] = dim;
    }
    e->ndim = (int32_t)n;
    if (n == 0) e->dim[e->ndim++] = 1; /* a scalar */
    return PL_OK;
}

static int read_tensor(pl_toc_entry *e, const char *name, const json_t *v, int64_t start, int64_t size, pl_err *err)
{
    const json_t *dtype = json_object_get(v, "dtype"), *span = json_object_get(v, "data_offsets");
    int64_t from, to, count, want;

    if (!json_is_string(dtype)) return pl_fail(err, PL_EFORMAT, "safetensors: tensor '%.64s': no dtype", name);
    const char *format = json_string_value(dtype);
    const size_t n_format = json_string_length(dtype);
    if (n_format < 1 || n_format >= sizeof e->format || !pl_is_printable(format, (int64_t)n_format))
        return pl_fail(err, PL_EFORMAT, "safetensors: tensor '%.64s': a strange dtype", name);
    snprintf(e->format, sizeof e->format, "%s", format);
    e->dtype = pl_dtype_of_hf(format, n_format);
    PL_TRY(read_shape(e, &count, json_object_get(v, "shape"), name, err));

    if (!json_is_array(span) || json_array_size(span) != 2 || !get_size(json_array_get(span, 0), &from) ||
        !get_size(json_array_get(span, 1), &to) || to < from)
        return pl_fail(err, PL_EFORMAT, "safetensors: tensor '%.64s': data_offsets are not two sizes in order", name);
    if (to > size - start)
        return pl_fail(err, PL_EFORMAT, "safetensors: tensor '%.64s': ends at %lld of %lld bytes of data", name,
                       (long long)to, (long long)(size - start));
    e->offset = start + from;
    e->bytes = to - from;
    if (e->dtype >= 0 && (!pl_mul(count, pl_dtype(e->dtype)->bytes, &want) || want != e->bytes))
        return pl_fail(err, PL_ESHAPE, "safetensors: tensor '%.64s': %lld bytes for %lld elements of %s", name,
                       (long long)e->bytes, (long long)count, format);
    return PL_OK;
}

int pl_safetensors_parse(pl_toc *toc, int32_t file, const uint8_t *data, int64_t size, pl_err *err)
{
    uint64_t head;
    if (size < 8) return pl_fail(err, PL_EFORMAT, "safetensors: head: the file has %lld bytes", (long long)size);
    memcpy(&head, data, 8);
    if (head > PL_MAX_HEAD || (int64_t)head > size - 8)
        return pl_fail(err, PL_EFORMAT, "safetensors: head: %llu bytes, want at most %d and the file's %lld",
                       (unsigned long long)head, PL_MAX_HEAD, (long long)size);
    json_t *root = pl_json_object((const char *)data + 8, (int64_t)head, "safetensors: head", err);
    if (!root) return PL_EFORMAT;

    int rc = PL_OK;
    const char *name;
    json_t *v;
    json_object_foreach(root, name, v)
    {
        if (!strcmp(name, "__metadata__")) continue;
        const int64_t n_name = (int64_t)strlen(name);
        pl_toc_entry e = {.file = file};
        if (!pl_is_printable(name, n_name))
            rc = pl_fail(err, PL_EFORMAT, "safetensors: a name is not printable ASCII");
        else
            rc = read_tensor(&e, name, v, 8 + (int64_t)head, size, err);
        if (rc == PL_OK) rc = pl_toc_add(toc, name, n_name, &e, err);
        if (rc < 0) break;
    }
    json_decref(root);
    return rc;
}

/* A shard lies beside its index: a name with a folder in it, or a hidden file, is not one. */
static bool is_shard_name(const char *s)
{
    const size_t n = strlen(s);
    static const char end[] = ".safetensors";
    return n >= sizeof end && n < 256 && s[0] != '.' && !strpbrk(s, "/\\") && pl_is_printable(s, (int64_t)n) &&
           !strcmp(s + n - (sizeof end - 1), end);
}

/* The number of the shard, which is new or, as neighbours mostly share one, likely the last. */
static int shard_number(pl_shards *s, const char *name, int32_t *out, pl_err *err)
{
    for (*out = s->n_names - 1; *out >= 0; --*out)
        if (!strcmp(s->name[*out], name)) return PL_OK;
    if (s->n_names == PL_SHARDS_MAX) return pl_fail(err, PL_ELIMIT, "index: more than %d shards", PL_SHARDS_MAX);
    void *p = s->name;
    const int rc = pl_mem_grow(&p, &s->cap_names, s->n_names + 1, sizeof *s->name, err);
    s->name = p;
    PL_TRY(rc);
    s->name[s->n_names] = strdup(name);
    if (!s->name[s->n_names]) return pl_fail(err, PL_ENOMEM, "index: no memory for a name");
    *out = s->n_names++;
    return PL_OK;
}

int pl_shards_parse(pl_shards *s, const char *text, int64_t n, pl_err *err)
{
    json_t *root = pl_json_object(text, n, "index", err), *v;
    if (!root) return PL_EFORMAT;
    const char *name;
    json_t *map = json_object_get(root, "weight_map");
    int rc = PL_OK;
    if (!json_is_object(map))
        rc = pl_fail(err, PL_EFORMAT, "index: no weight_map");
    else
        json_object_foreach(map, name, v)
        {
            pl_toc_entry e = {0};
            if (!json_is_string(v) || !is_shard_name(json_string_value(v)))
                rc = pl_fail(err, PL_EFORMAT, "index: entry %d: not the plain name of a .safetensors file", s->toc.n);
            else
                rc = shard_number(s, json_string_value(v), &e.file, err);
            if (rc == PL_OK) rc = pl_toc_add(&s->toc, name, (int64_t)strlen(name), &e, err);
            if (rc < 0) break;
        }
    if (rc == PL_OK) rc = pl_toc_seal(&s->toc, "index", err);
    json_decref(root);
    return rc;
}

int pl_shards_check(const pl_shards *s, const pl_toc *found, pl_err *err)
{
    for (int32_t i = 0; i < s->toc.n; i++) {
        const pl_toc_entry *want = &s->toc.e[i];
        const int32_t at = pl_toc_find(found, want->name);
        if (at < 0 || found->e[at].file != want->file)
            return pl_fail(err, PL_EFORMAT, "index: tensor '%.64s': not in '%.64s'", want->name, s->name[want->file]);
    }
    for (int32_t i = 0; i < found->n && found->n != s->toc.n; i++)
        if (pl_toc_find(&s->toc, found->e[i].name) < 0)
            return pl_fail(err, PL_EFORMAT, "index: tensor '%.64s': in '%.64s' but not in the index", found->e[i].name,
                           s->name[found->e[i].file]);
    return PL_OK;
}

void pl_shards_clear(pl_shards *s)
{
    for (int32_t i = 0; i < s->n_names; i++) free(s->name[i]);
    free(s->name);
    pl_toc_clear(&s->toc);
    *s = (pl_shards){0};
}
