/* ckpt.c: opens the files of a checkpoint and hands out views of them. The parsers (gguf.c, safetensors.c, config.c)
 * see bytes in memory only; paths, mappings and life times are here. */
#include "ckpt.h"
#include "config.h"
#include "dev.h"
#include "dtype.h"
#include "gguf.h"
#include "mem.h"
#include "packed.h"
#include "packed_huge.h"
#include "parts.h"
#include "safetensors.h"
#include "tensor.h"
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { PL_MAX_TEXT = 64 << 20, PL_MAX_PATH = 4096 };

typedef struct file {
    uint8_t *data; /* the mapping */
    int64_t bytes;
    dev_t dev; /* and which file it is, by whatever name */
    ino_t ino;
} file;

typedef struct held_text {
    char *name, *data;
    int64_t bytes;
} held_text;

struct pl_ckpt {
    int32_t refs; /* one until closed, and one for each storage in the mappings */
    int32_t kind;
    char *dir;  /* where the texts are; NULL for GGUF */
    file *file; /* [n_files] */
    int32_t n_files, cap_files;
    pl_toc toc;   /* what is asked for by name */
    pl_toc parts; /* the files' own, where toc has weights put together of several tensors; else empty */
    pl_meta meta;
    pl_packed packed; /* of a packed file; else empty, with no options */
    pl_huge *huge;    /* moves its tensors; NULL: nobody does */
    held_text *text;  /* [n_texts] read so far */
    int32_t n_texts, cap_texts;
};

static void release(pl_ckpt *c)
{
    if (!c || __atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    pl_huge_stop(c->huge);
    for (int32_t i = 0; i < c->n_files; i++) munmap(c->file[i].data, (size_t)c->file[i].bytes);
    for (int32_t i = 0; i < c->n_texts; i++) {
        free(c->text[i].name);
        free(c->text[i].data);
    }
    pl_packed_clear(&c->packed);
    pl_toc_clear(&c->toc);
    pl_toc_clear(&c->parts);
    pl_meta_clear(&c->meta);
    free(c->file);
    free(c->text);
    free(c->dir);
    free(c);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Adds to a parser's message which file it is about. */
static int in_file(int rc, const char *path, pl_err *err)
{
    if (rc < 0 && err) {
        const size_t n = strlen(err->msg);
        snprintf(err->msg + n, sizeof err->msg - n, " (in %.64s)", base_name(path));
    }
    return rc;
}

/* Opens a regular file; PL_ENAME if there is none. (Checked before open, which would wait on a pipe.) */
static int open_file(int *fd, int64_t *bytes, const char *path, pl_err *err)
{
    struct stat st;
    if (stat(path, &st) || (S_ISREG(st.st_mode) && (*fd = open(path, O_RDONLY | O_CLOEXEC)) < 0))
        return pl_fail(err, errno == ENOENT || errno == ENOTDIR ? PL_ENAME : PL_EIO, "%.120s: %s", path,
                       strerror(errno));
    if (!S_ISREG(st.st_mode)) return pl_fail(err, PL_EIO, "%.120s: not a regular file", path);
    *bytes = st.st_size;
    return PL_OK;
}

/* Maps a weight file; it becomes c->file[c->n_files - 1]. */
static int map_file(pl_ckpt *c, const char *path, pl_err *err)
{
    int fd;
    int64_t bytes;
    void *p = c->file;
    const int rc = pl_mem_grow(&p, &c->cap_files, c->n_files + 1, sizeof *c->file, err);
    c->file = p;
    PL_TRY(rc);
    PL_TRY(open_file(&fd, &bytes, path, err));
    struct stat st = {0};
    fstat(fd, &st);
    p = bytes ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    const int why = errno;
    close(fd);
    if (!p) return pl_fail(err, PL_EFORMAT, "%.120s: an empty file", path);
    if (p == MAP_FAILED) return pl_fail(err, PL_EIO, "%.120s: %s", path, strerror(why));
    c->file[c->n_files++] = (file){.data = p, .bytes = bytes, .dev = st.st_dev, .ino = st.st_ino};
    return PL_OK;
}

static int read_whole(char **out, int64_t *n, const char *path, pl_err *err)
{
    int fd, rc = PL_OK;
    int64_t bytes, at = 0;
    PL_TRY(open_file(&fd, &bytes, path, err));
    char *p = bytes <= PL_MAX_TEXT ? malloc((size_t)bytes + 1) : NULL;
    if (!p)
        rc = pl_fail(err, bytes > PL_MAX_TEXT ? PL_ELIMIT : PL_ENOMEM, "%.120s: %lld bytes, want at most %d", path,
                     (long long)bytes, PL_MAX_TEXT);
    while (rc == PL_OK && at < bytes) {
        const ssize_t got = read(fd, p + at, (size_t)(bytes - at));
        if (got > 0)
            at += got;
        else if (got == 0)
            bytes = at; /* it became shorter */
        else if (errno != EINTR)
            rc = pl_fail(err, PL_EIO, "%.120s: %s", path, strerror(errno));
    }
    close(fd);
    if (rc < 0) {
        free(p);
        return rc;
    }
    *out = p;
    *n = bytes;
    return PL_OK;
}

static int join(char *out, const char *dir, const char *name, pl_err *err)
{
    if (snprintf(out, PL_MAX_PATH, "%s/%s", dir, name) >= PL_MAX_PATH)
        return pl_fail(err, PL_ELIMIT, "%.120s: a path of more than %d bytes", dir, PL_MAX_PATH);
    return PL_OK;
}

static int add_config(pl_ckpt *c, const char *name, const char *prefix, pl_err *err)
{
    const char *s;
    int64_t n;
    const int rc = pl_ckpt_text(c, name, &s, &n, err);
    if (rc == PL_ENAME) return PL_OK; /* not there: no keys */
    PL_TRY(rc);
    return in_file(pl_config_parse(&c->meta, prefix, s, n, err), name, err);
}

static int add_configs(pl_ckpt *c, pl_err *err)
{
    PL_TRY(add_config(c, "config.json", "", err));
    PL_TRY(add_config(c, "generation_config.json", "generation_config", err));
    PL_TRY(add_config(c, "hf_quant_config.json", "hf_quant_config", err));
    return pl_meta_seal(&c->meta, "config", err);
}

static int add_safetensors(pl_ckpt *c, const char *path, pl_err *err)
{
    PL_TRY(map_file(c, path, err));
    const int32_t i = c->n_files - 1;
    return in_file(pl_safetensors_parse(&c->toc, i, c->file[i].data, c->file[i].bytes, err), path, err);
}

static int add_shards(pl_ckpt *c, const char *name, const char *s, int64_t n, pl_err *err)
{
    char path[PL_MAX_PATH];
    pl_shards shards = {0};
    int rc = in_file(pl_shards_parse(&shards, s, n, err), name, err);
    for (int32_t i = 0; i < shards.n_names && rc == PL_OK; i++) {
        rc = join(path, c->dir, shards.name[i], err);
        if (rc == PL_OK) rc = add_safetensors(c, path, err);
    }
    if (rc == PL_OK) rc = pl_toc_seal(&c->toc, "safetensors", err);
    if (rc == PL_OK) rc = pl_shards_check(&shards, &c->toc, err);
    pl_shards_clear(&shards);
    return rc;
}

/* The weights are in `single` if that is given; else in the shards of the index, or in model.safetensors. */
static int add_weights(pl_ckpt *c, const char *single, pl_err *err)
{
    static const char index[] = "model.safetensors.index.json";
    char path[PL_MAX_PATH];
    const char *s;
    int64_t n;
    int rc = single ? PL_ENAME : pl_ckpt_text(c, index, &s, &n, err);
    if (rc == PL_OK) return add_shards(c, index, s, n, err);
    if (rc != PL_ENAME) return rc;
    if (!single) PL_TRY(join(path, c->dir, "model.safetensors", err));
    rc = add_safetensors(c, single ? single : path, err);
    if (rc == PL_ENAME && !single) return PL_OK; /* a directory without weights: tokenizer or config only */
    PL_TRY(rc);
    return pl_toc_seal(&c->toc, "safetensors", err);
}

static const uint8_t *values_of(const void *arg, const pl_toc_entry *e)
{
    return ((const pl_ckpt *)arg)->file[e->file].data + e->offset;
}

static int open_hf(pl_ckpt *c, const char *single, pl_err *err)
{
    c->kind = PL_CKPT_HF;
    PL_TRY(add_configs(c, err));
    PL_TRY(add_weights(c, single, err));
    if (!c->toc.n) return PL_OK;
    pl_scheme scheme;
    int rc = in_file(pl_scheme_read(&scheme, &c->meta, err), c->dir, err);
    if (rc == PL_OK && scheme.by != PL_BY_NOBODY) {
        c->parts = c->toc;
        c->toc = (pl_toc){0};
        rc = in_file(pl_parts_join(&c->toc, &c->parts, &scheme, values_of, c, err), c->dir, err);
    }
    pl_scheme_clear(&scheme);
    return rc;
}

static int open_gguf(pl_ckpt *c, const char *path, pl_err *err)
{
    int64_t parts;
    c->kind = PL_CKPT_GGUF;
    PL_TRY(in_file(pl_gguf_parse(&c->meta, &c->toc, c->file[0].data, c->file[0].bytes, err), path, err));
    const int32_t i = pl_meta_find(&c->meta, "split.count");
    if (i < 0) return PL_OK;
    PL_TRY(pl_meta_int(&c->meta.e[i], 0, &parts, err));
    if (parts > 1)
        return pl_fail(err, PL_EFORMAT, "%.120s: one of %lld parts, want a single file", path, (long long)parts);
    return PL_OK;
}

static int64_t packed_bytes(int32_t dtype, int64_t n, int64_t k)
{
    return pl_dev_packed_bytes(PL_DEV_CPU, dtype, n, k);
}

/* Options become metadata under "perilune."; the texts are found as if they were files beside it. */
static int open_packed(pl_ckpt *c, const char *path, pl_err *err)
{
    pl_packed *p = &c->packed;
    int64_t n;
    PL_TRY(in_file(pl_packed_parse(p, &c->toc, c->file[0].data, c->file[0].bytes, packed_bytes, err), path, err));
    c->kind = (int32_t)p->header.kind;
    PL_TRY(
        in_file(pl_config_parse(&c->meta, "perilune", (const char *)p->options, p->header.n_options, err), path, err));
    if (c->kind == PL_CKPT_GGUF) {
        const uint8_t *head = (const uint8_t *)pl_ckpt_held_text(c, "gguf", &n);
        if (!head) return pl_fail(err, PL_EFORMAT, "packed: the head of the GGUF file is missing");
        return in_file(pl_gguf_parse(&c->meta, NULL, head, n, err), path, err);
    }
    return add_configs(c, err);
}

static int open_any(pl_ckpt *c, const char *path, pl_err *err)
{
    struct stat st;
    if (stat(path, &st)) return pl_fail(err, errno == ENOENT ? PL_ENAME : PL_EIO, "%.120s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        c->dir = strdup(path);
        return c->dir ? open_hf(c, NULL, err) : pl_fail(err, PL_ENOMEM, "ckpt: no memory");
    }
    const size_t n = strlen(path);
    if (n > 12 && !strcmp(path + n - 12, ".safetensors")) {
        c->dir = base_name(path) == path ? strdup(".") : strndup(path, (size_t)(base_name(path) - path));
        return c->dir ? open_hf(c, path, err) : pl_fail(err, PL_ENOMEM, "ckpt: no memory");
    }
    PL_TRY(map_file(c, path, err));
    if (c->file[0].bytes >= 8 && !memcmp(c->file[0].data, PL_PACKED_MAGIC, 8)) return open_packed(c, path, err);
    if (c->file[0].bytes < 4 || memcmp(c->file[0].data, "GGUF", 4) != 0)
        return pl_fail(err, PL_EFORMAT, "%.120s: neither a GGUF file, nor packed, nor named .safetensors", path);
    return open_gguf(c, path, err);
}

int pl_ckpt_open(pl_ckpt **out, const char *path, pl_err *err)
{
    pl_ckpt *c = calloc(1, sizeof *c);
    if (!c) return pl_fail(err, PL_ENOMEM, "ckpt: no memory");
    c->refs = 1;
    const int rc = open_any(c, path, err);
    if (rc < 0) {
        release(c);
        return rc;
    }
    *out = c;
    return PL_OK;
}

void pl_ckpt_close(pl_ckpt *c) { release(c); }
int32_t pl_ckpt_kind(const pl_ckpt *c) { return c->kind; }
int32_t pl_ckpt_count(const pl_ckpt *c) { return c->toc.n; }
int32_t pl_ckpt_find(const pl_ckpt *c, const char *name) { return pl_toc_find(&c->toc, name); }
const char *pl_ckpt_dir(const pl_ckpt *c) { return c->dir; }
bool pl_ckpt_is_packed(const pl_ckpt *c) { return c->packed.options != NULL; }

bool pl_ckpt_maps(const pl_ckpt *c, const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0) return false;
    for (int32_t i = 0; i < c->n_files; i++)
        if (c->file[i].dev == st.st_dev && c->file[i].ino == st.st_ino) return true;
    return false;
}

const pl_meta *pl_ckpt_meta(const pl_ckpt *c) { return &c->meta; }
int32_t pl_ckpt_meta_count(const pl_ckpt *c) { return c->meta.n; }
int32_t pl_ckpt_meta_find(const pl_ckpt *c, const char *key) { return pl_meta_find(&c->meta, key); }

int64_t pl_ckpt_bytes(const pl_ckpt *c)
{
    int64_t n = 0;
    for (int32_t i = 0; i < c->n_files; i++) n += c->file[i].bytes;
    return n;
}

static int entry_at(const pl_ckpt *c, int32_t i, const pl_toc_entry **e, pl_err *err)
{
    if (i < 0 || i >= c->toc.n) return pl_fail(err, PL_EARG, "ckpt: tensor %d, want 0 to %d", i, c->toc.n - 1);
    *e = &c->toc.e[i];
    return PL_OK;
}

int pl_ckpt_info_at(const pl_ckpt *c, int32_t i, pl_ckpt_info *out, pl_err *err)
{
    const pl_toc_entry *e;
    PL_TRY(entry_at(c, i, &e, err));
    *out = (pl_ckpt_info){.name = e->name, .format = e->format, .dtype = e->dtype, .ndim = e->ndim, .bytes = e->bytes};
    memcpy(out->dim, e->dim, sizeof out->dim);
    if (pl_ckpt_is_packed(c)) out->how = c->packed.tensor[i].how;
    return PL_OK;
}

static void release_view(void *owner, pl_storage *st)
{
    (void)st;
    release(owner);
}

static void release_copy(void *owner, pl_storage *st) { pl_mem_unmap(owner, st->bytes); }

/* safetensors does not promise that numbers are aligned; kernels want them so. */
static int copy_aligned(pl_tensor *out, const pl_toc_entry *e, const uint8_t *data, pl_err *err)
{
    void *p = pl_mem_map(e->bytes);
    if (!p)
        return pl_fail(err, PL_ENOMEM, "ckpt: tensor '%.64s': no memory for %lld bytes", e->name, (long long)e->bytes);
    memcpy(p, data, (size_t)e->bytes);
    const int rc = pl_tensor_borrow(out, e->dtype, PL_ROWS, e->ndim, e->dim, p, e->bytes, release_copy, p, err);
    if (rc < 0) pl_mem_unmap(p, e->bytes);
    return rc;
}

static int build_joined(pl_ckpt *c, pl_tensor *out, const pl_toc_entry *e, pl_err *err)
{
    pl_part part[PL_MAX_PARTS] = {{0}};
    for (int i = 0; i < PL_MAX_PARTS; i++) {
        if (e->join.part[i] < 0) continue;
        const pl_toc_entry *p = &c->parts.e[e->join.part[i]];
        part[i] = (pl_part){p, values_of(c, p)};
    }
    void *p = pl_mem_map(e->bytes);
    if (!p)
        return pl_fail(err, PL_ENOMEM, "ckpt: tensor '%.64s': no memory for %lld bytes", e->name, (long long)e->bytes);
    int rc = pl_parts_build(e, part, p, err);
    if (rc == PL_OK) rc = pl_tensor_borrow(out, e->dtype, PL_ROWS, e->ndim, e->dim, p, e->bytes, release_copy, p, err);
    if (rc < 0) pl_mem_unmap(p, e->bytes);
    return rc;
}

int pl_ckpt_tensor(pl_ckpt *c, int32_t i, pl_tensor *out, pl_err *err)
{
    const pl_toc_entry *e;
    PL_TRY(entry_at(c, i, &e, err));
    if (e->dtype < 0) return pl_fail(err, PL_EDTYPE, "ckpt: tensor '%.64s': format %s is not read", e->name, e->format);
    if (e->ndim > PL_MAX_DIMS)
        return pl_fail(err, PL_EDTYPE, "ckpt: tensor '%.64s': %d dims, want at most %d", e->name, e->ndim, PL_MAX_DIMS);
    if (e->join.how) return build_joined(c, out, e, err);
    uint8_t *data = c->file[e->file].data + e->offset;
    const pl_dtype_info *d = pl_dtype(e->dtype);
    if (e->bytes && d->block == 1 && (uintptr_t)data % (uintptr_t)d->bytes) return copy_aligned(out, e, data, err);
    const bool is_packed =
        pl_ckpt_is_packed(c); /* then each tensor is aligned, and its pages stay: no other copy of it is made */
    const int32_t layout = is_packed ? c->packed.form[c->packed.tensor[i].form].layout : PL_ROWS;
    PL_TRY(pl_tensor_borrow(out, e->dtype, layout, e->ndim, e->dim, data, e->bytes, release_view, c, err));
    out->storage->file = !is_packed;
    __atomic_add_fetch(&c->refs, 1, __ATOMIC_RELAXED);
    return PL_OK;
}

void pl_ckpt_drop(pl_ckpt *c, int32_t i)
{
    const pl_toc_entry *e;
    if (pl_ckpt_is_packed(c)) return; /* it is what is computed with */
    for (int32_t k = 0; i == -1 && k < c->n_files; k++)
        pl_mem_drop(c->file[k].data, c->file[k].data + c->file[k].bytes);
    if (i == -1 || entry_at(c, i, &e, NULL) < 0) return;
    for (int k = 0; k < PL_MAX_PARTS; k++) {
        const pl_toc_entry *p = !e->join.how ? e : e->join.part[k] < 0 ? NULL : &c->parts.e[e->join.part[k]];
        if (!p) continue;
        const uint8_t *data = c->file[p->file].data + p->offset;
        pl_mem_drop(data, data + p->bytes);
        if (p == e) return;
    }
}

void pl_ckpt_digest(const pl_ckpt *c, int64_t most, uint64_t digest[2])
{
    crypto_generichash_state h;
    const pl_toc *files = c->parts.n ? &c->parts : &c->toc;
    crypto_generichash_init(&h, NULL, 0, 2 * sizeof *digest);
    for (int32_t i = 0; i < files->n; i++) {
        const pl_toc_entry *e = files->by_name[i]; /* the same in whatever order and files they lie */
        const int64_t n = pl_min(most, e->bytes);
        const XXH128_hash_t values = XXH3_128bits(c->file[e->file].data + e->offset + (e->bytes - n) / 2, (size_t)n);
        crypto_generichash_update(&h, (const uint8_t *)e->name, strlen(e->name) + 1);
        crypto_generichash_update(&h, (const uint8_t *)e->format, strlen(e->format) + 1);
        crypto_generichash_update(&h, (const uint8_t *)e->dim, sizeof e->dim);
        crypto_generichash_update(&h, (const uint8_t *)&values, sizeof values);
    }
    crypto_generichash_final(&h, (uint8_t *)digest, 2 * sizeof *digest);
}

int pl_ckpt_check_values(const pl_tensor *t, pl_err *err)
{
    if (t->dtype != PL_F8 && t->dtype < PL_Q4_0) return PL_OK;
    if (t->layout != PL_ROWS) return pl_fail(err, PL_EARG, "ckpt: values of a packed tensor");
    const pl_dtype_info *d = pl_dtype(t->dtype);
    const uint8_t *seen = t->data; /* pages before it have left memory again */
    for (int64_t r = 0; r < pl_rows(t); r++) {
        const uint8_t *row = (const uint8_t *)t->data + pl_row_offset(t, r) / d->block * d->bytes;
        if (row - seen > PL_DROP_BYTES) {
            pl_tensor_done_with(t, seen, row);
            seen = row;
        }
        const int64_t bad = pl_row_first_bad(t->dtype, row, pl_cols(t) / d->block);
        if (bad < 0) continue;
        return pl_fail(err, PL_EFORMAT, "%s: row %lld, %s %lld: %s", d->name, (long long)r,
                       d->block > 1 ? "block" : "element", (long long)bad,
                       d->block > 1 ? "a scale, minimum or value is not finite" : "not a number");
    }
    return PL_OK;
}

int pl_ckpt_meta_at(const pl_ckpt *c, int32_t i, pl_meta_info *out, pl_err *err)
{
    if (i < 0 || i >= c->meta.n) return pl_fail(err, PL_EARG, "ckpt: key %d, want 0 to %d", i, c->meta.n - 1);
    const pl_meta_entry *e = &c->meta.e[i];
    *out = (pl_meta_info){.key = e->key, .is_list = e->is_list, .n = e->n, .type = PL_META_INT};
    if (e->raw == PL_RAW_F32 || e->raw == PL_RAW_F64) out->type = PL_META_FLOAT;
    if (e->raw == PL_RAW_BOOL) out->type = PL_META_BOOL;
    if (e->raw == PL_RAW_STRING) out->type = PL_META_STRING;
    return PL_OK;
}

static int meta_entry(const pl_ckpt *c, int32_t i, const pl_meta_entry **e, pl_err *err)
{
    pl_meta_info info;
    PL_TRY(pl_ckpt_meta_at(c, i, &info, err));
    *e = &c->meta.e[i];
    return PL_OK;
}

int pl_ckpt_meta_int(const pl_ckpt *c, int32_t i, int64_t element, int64_t *out, pl_err *err)
{
    const pl_meta_entry *e;
    PL_TRY(meta_entry(c, i, &e, err));
    return pl_meta_int(e, element, out, err);
}

int pl_ckpt_meta_float(const pl_ckpt *c, int32_t i, int64_t element, double *out, pl_err *err)
{
    const pl_meta_entry *e;
    PL_TRY(meta_entry(c, i, &e, err));
    return pl_meta_float(e, element, out, err);
}

int pl_ckpt_meta_string(const pl_ckpt *c, int32_t i, int64_t element, const char **text, int64_t *bytes, pl_err *err)
{
    const pl_meta_entry *e;
    PL_TRY(meta_entry(c, i, &e, err));
    return pl_meta_string(e, element, text, bytes, err);
}

const char *pl_ckpt_held_text(const pl_ckpt *c, const char *name, int64_t *bytes)
{
    for (uint32_t i = 0; i < c->packed.header.n_texts; i++) {
        const pl_packed_text *t = &c->packed.text[i];
        if (strcmp(t->name, name) != 0) continue;
        *bytes = t->bytes;
        return (const char *)t->data;
    }
    return NULL;
}

int pl_ckpt_each_text(pl_ckpt *c, pl_text_fn *f, void *arg, pl_err *err)
{
    static const char *const beside[] = {"config.json",        "generation_config.json", "hf_quant_config.json",
                                         "tokenizer.json",     "tokenizer_config.json",  "tiktoken.model",
                                         "chat_template.json", "chat_template.jinja"};
    if (c->kind == PL_CKPT_GGUF) { /* it ends where the first tensor begins */
        int64_t n = c->file[0].bytes;
        for (int32_t i = 0; i < c->toc.n; i++) n = pl_min(n, c->toc.e[i].offset);
        return f(arg, "gguf", c->file[0].data, n, err);
    }
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        const char *text;
        int64_t n;
        const int rc = pl_ckpt_text(c, beside[i], &text, &n, err);
        if (rc == PL_ENAME) continue;
        PL_TRY(rc);
        PL_TRY(f(arg, beside[i], text, n, err));
    }
    return PL_OK;
}

int pl_ckpt_check_layouts(const pl_ckpt *c, pl_dev *dev, pl_err *err)
{
    for (uint32_t i = 0; i < c->packed.header.n_forms; i++) {
        const pl_packed_form *f = &c->packed.form[i];
        uint64_t id[2];
        if (f->layout != PL_PACKED) continue;
        PL_TRY(pl_layout_id(dev, f->dtype, id, err));
        if (memcmp(id, f->id, sizeof id) != 0)
            return pl_fail(err, PL_ESTALE, "packed: %s is in a layout that this perilune does not use on path %s",
                           pl_dtype_name(f->dtype), pl_path_name(pl_dev_path(dev)));
    }
    return PL_OK;
}

int pl_ckpt_settle(pl_ckpt *c, pl_err *err)
{
    if (!pl_ckpt_is_packed(c) || c->huge) return PL_OK;
    return pl_huge_start(&c->huge, c->file[0].data + PL_PACKED_PAGE, c->file[0].data + c->packed.header.head_at, err);
}

int64_t pl_ckpt_settled(const pl_ckpt *c) { return pl_huge_moved(c->huge); }

typedef struct extent {
    int64_t from, to;
} extent;

static int extent_order(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* What lies between the tensors is zeros, as they are written: no digest covers it. */
static int verify_gaps(const pl_ckpt *c, pl_err *err)
{
    const pl_packed_header *h = &c->packed.header;
    extent *x = malloc(((size_t)c->toc.n + 1) * sizeof *x);
    if (!x) return pl_fail(err, PL_ENOMEM, "ckpt: no memory");
    for (int32_t i = 0; i < c->toc.n; i++) x[i] = (extent){c->toc.e[i].offset, c->toc.e[i].offset + c->toc.e[i].bytes};
    qsort(x, (size_t)c->toc.n, sizeof *x, extent_order);
    x[c->toc.n] = (extent){h->head_at, h->head_at};
    int64_t at = (int64_t)sizeof *h + h->n_options;
    int rc = PL_OK;
    for (int32_t i = 0; i <= c->toc.n && rc == PL_OK; i++) {
        while (at < x[i].from && !c->file[0].data[at]) at++;
        if (at < x[i].from)
            rc = pl_fail(err, PL_EFORMAT, "packed: byte %lld, between the tensors, is damaged: want 0", (long long)at);
        at = pl_max(at, x[i].to);
    }
    free(x);
    return rc;
}

int pl_ckpt_verify(const pl_ckpt *c, int32_t i, pl_err *err)
{
    const pl_toc_entry *e;
    if (!pl_ckpt_is_packed(c)) return pl_fail(err, PL_EARG, "ckpt: only packed files have digests");
    if (i == -1) return verify_gaps(c, err);
    PL_TRY(entry_at(c, i, &e, err));
    const XXH128_hash_t h = XXH3_128bits(c->file[e->file].data + e->offset, (size_t)e->bytes);
    const uint64_t digest[2] = {h.low64, h.high64};
    if (memcmp(digest, c->packed.tensor[i].digest, sizeof digest) != 0)
        return pl_fail(err, PL_EFORMAT, "tensor '%.64s' is damaged: its digest does not match", e->name);
    return PL_OK;
}

int pl_ckpt_text(pl_ckpt *c, const char *name, const char **text, int64_t *bytes, pl_err *err)
{
    char path[PL_MAX_PATH];
    held_text t = {0};
    if (!*name || *name == '.' || strchr(name, '/'))
        return pl_fail(err, PL_EARG, "%.120s: not a plain file name", name);
    for (int32_t i = 0; i < c->n_texts; i++)
        if (!strcmp(c->text[i].name, name)) t = c->text[i];
    if (!t.data) t.data = (char *)pl_ckpt_held_text(c, name, &t.bytes); /* which is in the mapping, and stays there */
    if (!t.data) {
        if (!c->dir) return pl_fail(err, PL_ENAME, "%.120s: no such text in the file", name);
        void *p = c->text;
        const int rc = pl_mem_grow(&p, &c->cap_texts, c->n_texts + 1, sizeof t, err);
        c->text = p;
        PL_TRY(rc);
        PL_TRY(join(path, c->dir, name, err));
        PL_TRY(read_whole(&t.data, &t.bytes, path, err));
        t.name = strdup(name);
        if (!t.name) {
            free(t.data);
            return pl_fail(err, PL_ENOMEM, "ckpt: no memory");
        }
        c->text[c->n_texts++] = t;
    }
    *text = t.data;
    *bytes = t.bytes;
    return PL_OK;
}
