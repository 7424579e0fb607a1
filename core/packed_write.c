/* packed_write.c: writes packed files, in one pass: each tensor as it is made, the head behind them, the header last. */
#include "ckpt.h"
#include "dtype.h"
#include "newfile.h"
#include "packed.h"
#include "tensor.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct buffer {
    char *p;
    int64_t n, cap;
} buffer;

struct pl_packer {
    pl_newfile file;
    pl_packed_header header;
    char *options;
    buffer texts, forms, tensors; /* parts of the head */
    pl_packed_form form[PL_PACKED_MAX_FORMS];
    int64_t at; /* bytes written */
};

static int put(buffer *b, const void *p, int64_t n, pl_err *err)
{
    if (b->n + n > b->cap) {
        const int64_t cap = pl_max(2 * b->cap, b->n + n + 4096);
        char *q = realloc(b->p, (size_t)cap);
        if (!q) return pl_fail(err, PL_ENOMEM, "pack: no memory for the head");
        b->p = q;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, p, (size_t)n);
    b->n += n;
    return PL_OK;
}

static int put_bytes(buffer *b, const void *p, int64_t n, pl_err *err)
{
    PL_TRY(put(b, &n, 8, err));
    return put(b, p, n, err);
}

static int put_string(buffer *b, const char *s, pl_err *err) { return put_bytes(b, s, (int64_t)strlen(s), err); }

static int emit(pl_packer *p, const void *data, int64_t n, pl_err *err)
{
    PL_TRY(pl_newfile_write(&p->file, data, n, err));
    p->at += n;
    return PL_OK;
}

static int pad_to(pl_packer *p, int64_t align, pl_err *err)
{
    static const char zeros[PL_PACKED_PAGE];
    return emit(p, zeros, pl_round_up(p->at, align) - p->at, err);
}

static int add_text(void *arg, const char *name, const void *text, int64_t bytes, pl_err *err)
{
    pl_packer *p = arg;
    p->header.n_texts++;
    PL_TRY(put_string(&p->texts, name, err));
    return put_bytes(&p->texts, text, bytes, err);
}

int pl_packer_new(pl_packer **out, const char *path, pl_ckpt *source, const char *options, int64_t n_options,
                  pl_err *err)
{
    if (n_options < 0 || n_options > PL_PACKED_MAX_OPTIONS)
        return pl_fail(err, PL_EARG, "pack: options of %lld bytes, want at most %d", (long long)n_options,
                       PL_PACKED_MAX_OPTIONS);
    if (pl_ckpt_is_packed(source)) return pl_fail(err, PL_EARG, "pack: the model is packed already");
    if (pl_ckpt_maps(source, path))
        return pl_fail(err, PL_EARG, "pack: %.160s is the model itself, want another file to write to", path);
    pl_packer *p = calloc(1, sizeof *p);
    if (!p) return pl_fail(err, PL_ENOMEM, "pack: no memory");
    p->file.fd = -1;
    p->header = (pl_packed_header){
        .version = PL_PACKED_VERSION, .kind = (uint32_t)pl_ckpt_kind(source), .n_options = (uint32_t)n_options};
    memcpy(p->header.magic, PL_PACKED_MAGIC, sizeof p->header.magic);
    p->options = malloc((size_t)n_options + 1);
    int rc = p->options ? PL_OK : pl_fail(err, PL_ENOMEM, "pack: no memory");
    if (rc == PL_OK) memcpy(p->options, options, (size_t)n_options);
    if (rc == PL_OK) rc = pl_newfile_open(&p->file, path, false, err);
    if (rc == PL_OK) rc = pl_ckpt_each_text(source, add_text, p, err);
    if (rc == PL_OK) rc = emit(p, &p->header, sizeof p->header, err);
    if (rc == PL_OK) rc = emit(p, options, n_options, err);
    if (rc < 0) {
        pl_packer_free(p);
        return rc;
    }
    *out = p;
    return PL_OK;
}

void pl_packer_free(pl_packer *p)
{
    if (!p) return;
    (void)pl_newfile_close(&p->file, PL_ECANCEL, NULL); /* of a file that is done nothing is open any more */
    free(p->options);
    free(p->texts.p);
    free(p->forms.p);
    free(p->tensors.p);
    free(p);
}

/* Number of a format and layout, the table's next one if it is new. */
static int form_of(pl_packer *p, pl_dev *dev, const pl_tensor *t, uint32_t *out, pl_err *err)
{
    const uint32_t n = p->header.n_forms;
    for (*out = 0; *out < n; ++*out)
        if (p->form[*out].dtype == t->dtype && p->form[*out].layout == t->layout) return PL_OK;
    if (n == PL_PACKED_MAX_FORMS) return pl_fail(err, PL_ELIMIT, "pack: more than %u forms", n);
    pl_packed_form *f = &p->form[n];
    *f = (pl_packed_form){.dtype = t->dtype, .layout = t->layout};
    if (t->layout == PL_PACKED) PL_TRY(pl_layout_id(dev, t->dtype, f->id, err));
    const int32_t where[2] = {f->layout, t->dev};
    PL_TRY(put_string(&p->forms, pl_dtype_name(f->dtype), err));
    PL_TRY(put(&p->forms, where, sizeof where, err));
    PL_TRY(put(&p->forms, f->id, sizeof f->id, err));
    p->header.n_forms++;
    return PL_OK;
}

int pl_packer_add(pl_packer *p, pl_dev *dev, const char *name, const pl_tensor *t, const char *how, pl_err *err)
{
    uint32_t form;
    const uint32_t ndim = (uint32_t)t->ndim;
    if (t->dev != PL_DEV_CPU) return pl_fail(err, PL_EDEV, "pack: %.64s is not in host memory", name);
    if (strlen(how) >= PL_PACKED_MAX_HOW) return pl_fail(err, PL_EARG, "pack: %.64s: %.96s: too long", name, how);
    if (t->layout == PL_ROWS && !pl_tensor_is_dense(t))
        return pl_fail(err, PL_ESHAPE, "pack: %.64s has gaps between its rows", name);
    const int64_t bytes = t->layout == PL_PACKED
                              ? pl_dev_packed_bytes(PL_DEV_CPU, t->dtype, t->dim[0], t->dim[1])
                              : pl_tensor_count(t) / pl_dtype_block(t->dtype) * pl_dtype_bytes(t->dtype);
    if (bytes < 1) return pl_fail(err, PL_ESHAPE, "pack: %.64s is empty", name);
    PL_TRY(form_of(p, dev, t, &form, err));
    PL_TRY(pad_to(p, p->at < PL_PACKED_PAGE || bytes >= PL_PACKED_PAGE ? PL_PACKED_PAGE : PL_PACKED_ALIGN, err));
    const int64_t offset = p->at;
    XXH3_state_t *hash = XXH3_createState();
    int rc = hash ? PL_OK : pl_fail(err, PL_ENOMEM, "pack: no memory");
    if (hash) XXH3_128bits_reset(hash);
    for (int64_t i = 0; i < bytes && rc == PL_OK; i += PL_DROP_BYTES) { /* the pages of a mapped one may leave memory */
        const char *from = (const char *)t->data + i;
        const int64_t n = pl_min(PL_DROP_BYTES, bytes - i);
        XXH3_128bits_update(hash, from, (size_t)n);
        rc = emit(p, from, n, err);
        pl_tensor_done_with(t, from, from + n);
    }
    const XXH128_hash_t h = rc == PL_OK ? XXH3_128bits_digest(hash) : (XXH128_hash_t){0};
    XXH3_freeState(hash);
    PL_TRY(rc);
    PL_TRY(put_string(&p->tensors, name, err));
    PL_TRY(put_string(&p->tensors, how, err));
    PL_TRY(put(&p->tensors, &form, 4, err));
    PL_TRY(put(&p->tensors, &ndim, 4, err));
    PL_TRY(put(&p->tensors, t->dim, (int64_t)ndim * 8, err));
    PL_TRY(put(&p->tensors, &offset, 8, err));
    PL_TRY(put(&p->tensors, &bytes, 8, err));
    const uint64_t digest[2] = {h.low64, h.high64};
    p->header.n_tensors++;
    return put(&p->tensors, digest, sizeof digest, err);
}

static int finish(pl_packer *p, pl_err *err)
{
    pl_packed_header *h = &p->header;
    buffer *head = &p->texts;
    PL_TRY(pad_to(p, PL_PACKED_PAGE, err));
    PL_TRY(put(head, p->forms.p, p->forms.n, err));
    PL_TRY(put(head, p->tensors.p, p->tensors.n, err));
    h->head_at = p->at;
    h->head_bytes = head->n;
    h->file_bytes = h->head_at + h->head_bytes;
    pl_packed_digest(h, p->options, head->p, h->digest);
    PL_TRY(emit(p, head->p, head->n, err));
    if (pwrite(p->file.fd, h, sizeof *h, 0) != sizeof *h || fsync(p->file.fd) < 0)
        return pl_fail(err, PL_EIO, "%.160s: %s", p->file.path, strerror(errno));
    return PL_OK;
}

int pl_packer_end(pl_packer *p, pl_err *err)
{
    if (p->file.fd < 0) return pl_fail(err, PL_EARG, "pack: the file is written already");
    return pl_newfile_close(&p->file, finish(p, err), err);
}

/* The pattern: two blocks of 256 k and two rows of a third block of rows. NVFP4 has one tensor scale a row; no byte is a code
 * of e4m3 that is NaN. */
int pl_layout_id(pl_dev *dev, int32_t dtype, uint64_t id[2], pl_err *err)
{
    const int64_t dim[2] = {34, 512};
    pl_tensor rows = {0}, packed = {0};
    uint32_t seed = 1;
    int rc = pl_tensor_new(&rows, dev, dtype, 2, dim, err);
    if (rc == PL_OK && rows.dev != PL_DEV_CPU) rc = pl_fail(err, PL_EDEV, "pack: the device is no CPU");
    if (rc == PL_OK) {
        const int64_t block = pl_dtype_bytes(dtype), bytes = dim[0] * dim[1] / pl_dtype_block(dtype) * block;
        uint8_t *p = rows.data;
        for (int64_t i = 0; i < bytes; i++) {
            seed = seed * 1664525 + 1013904223;
            p[i] = dtype == PL_NVFP4 && i % block < 4 ? 1 : (uint8_t)(seed >> 24);
            if ((p[i] & 0x7f) == 0x7f) p[i] ^= 1;
        }
        rc = pl_dev_pack(dev, &packed, &rows, NULL, err);
    }
    if (rc == PL_OK) {
        const XXH128_hash_t h =
            XXH3_128bits(packed.data, (size_t)pl_dev_packed_bytes(PL_DEV_CPU, dtype, dim[0], dim[1]));
        id[0] = h.low64;
        id[1] = h.high64;
    }
    pl_tensor_release(&packed);
    pl_tensor_release(&rows);
    return rc;
}

static int file_order(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* Name, size and time of a file that is part of a model. */
static void stamp_file(XXH3_state_t *hash, const char *path, const char *name)
{
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode)) return;
    const int64_t v[3] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
    XXH3_128bits_update(hash, name, strlen(name));
    XXH3_128bits_update(hash, v, sizeof v);
}

int pl_pack_stamp(const char *path, uint64_t stamp[2], pl_err *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return pl_fail(err, errno == ENOENT || errno == ENOTDIR ? PL_ENAME : PL_EIO, "%.160s: %s", path,
                       strerror(errno));
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return pl_fail(err, PL_ENOMEM, "pack: no memory");
    XXH3_128bits_reset(hash);
    struct dirent **list = NULL;
    const int n = S_ISDIR(st.st_mode) ? scandir(path, &list, NULL, file_order) : 0;
    char *at = NULL;
    for (int i = 0; i < n; i++) {
        const char *dot = strrchr(list[i]->d_name, '.');
        const bool is_part = dot && (!strcmp(dot, ".json") || !strcmp(dot, ".safetensors") || !strcmp(dot, ".jinja") ||
                                     !strcmp(dot, ".model"));
        if (is_part && asprintf(&at, "%s/%s", path, list[i]->d_name) >= 0) {
            stamp_file(hash, at, list[i]->d_name);
            free(at);
        }
        free(list[i]);
    }
    free(list);
    if (!S_ISDIR(st.st_mode)) stamp_file(hash, path, "");
    const XXH128_hash_t h = XXH3_128bits_digest(hash);
    XXH3_freeState(hash);
    stamp[0] = h.low64;
    stamp[1] = h.high64;
    return PL_OK;
}
