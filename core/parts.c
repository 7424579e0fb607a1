/* parts.c: finds the parts of quantised weights by their names, and compares their shapes with each other and with the
 * config. "M.weight" is the weight of module M:
 *
 *   compressed-tensors  M.weight_packed, weight_scale, and weight_shape, weight_zero_point, weight_global_scale, weight_g_idx
 *   GPTQ, AWQ           M.qweight, scales, qzeros, and g_idx
 *   FP8                 M.weight of e4m3, and weight_scale_inv or weight_scale
 *   modelopt NVFP4      M.weight of u8, weight_scale, weight_scale_2
 *   gpt-oss MXFP4       NAME_blocks, NAME_scales: the weight is NAME
 *
 * Scales of activations (input_scale and its like) go with the weight: activations are not quantised here. */
#include "parts.h"
#include "dtype.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct joiner {
    const pl_toc *files;
    const pl_scheme *s;
    pl_toc *out;
    pl_values_fn *values;
    const void *arg;
    bool *taken; /* [files->n] */
    pl_err *err;
    int32_t codes; /* the entry at hand */
    char module[PL_TOC_NAME_MAX + 1];
    pl_toc_entry e; /* the weight being put together */
    const pl_scheme_group *group;
} joiner;

static const pl_toc_entry *at(const joiner *j, int32_t i) { return i < 0 ? NULL : &j->files->e[i]; }

/* The entry of a name beside the codes; -1: none. It belongs to the weight from now on. */
static int32_t take(joiner *j, const char *what)
{
    char name[PL_TOC_NAME_MAX + 32];
    snprintf(name, sizeof name, "%s%s", j->module, what);
    const int32_t i = pl_toc_find(j->files, name);
    if (i >= 0) j->taken[i] = true;
    return i < 0 ? -1 : i;
}

static int need(joiner *j, int32_t *out, const char *what)
{
    *out = take(j, what);
    if (*out < 0)
        return pl_fail(j->err, PL_ENAME, "tensor '%.64s': no %s beside it", at(j, j->codes)->name,
                       what + (*what == '.' || *what == '_'));
    return PL_OK;
}

static void shape_text(char *buf, size_t cap, int32_t ndim, const int64_t *dim)
{
    size_t k = (size_t)snprintf(buf, cap, "[");
    for (int32_t i = 0; i < ndim && i < PL_MAX_DIMS && k + 24 < cap; i++)
        k += (size_t)snprintf(buf + k, cap - k, i ? ",%lld" : "%lld", (long long)dim[i]);
    snprintf(buf + k, cap - k, "]");
}

enum { I32 = 1 << PL_I32, I64 = 1 << PL_I64, U8 = 1 << PL_U8, F8 = 1 << PL_F8, F32 = 1 << PL_F32 };
enum { FLOATS = 1 << PL_F32 | 1 << PL_F16 | 1 << PL_BF16, HALVES = 1 << PL_F16 | 1 << PL_BF16 };

/* Entry i has this shape and one of these formats. */
static int want(const joiner *j, int32_t i, int32_t formats, int32_t ndim, int64_t a, int64_t b)
{
    const pl_toc_entry *e = at(j, i);
    const int64_t dim[2] = {a, b};
    char got[96], wanted[96];
    if (e->dtype < 0 || !(formats >> e->dtype & 1))
        return pl_fail(j->err, PL_EDTYPE, "tensor '%.64s': format %s is not read here", e->name, e->format);
    if (e->ndim == ndim && e->dim[0] == a && (ndim < 2 || e->dim[1] == b)) return PL_OK;
    shape_text(got, sizeof got, e->ndim, e->dim);
    shape_text(wanted, sizeof wanted, ndim, dim);
    return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': %s, want %s", e->name, got, wanted);
}

/* One value, however many ones its shape has. */
static int want_one(const joiner *j, int32_t i, int32_t formats)
{
    const pl_toc_entry *e = at(j, i);
    if (e->ndim == 2 && e->dim[1] == 1) return want(j, i, formats, 2, 1, 1);
    return want(j, i, formats, 1, 1, 0);
}

/* Codes are [rows,cols] with something in them. */
static int want_codes(const joiner *j, int32_t formats, int64_t *rows, int64_t *cols)
{
    const pl_toc_entry *e = at(j, j->codes);
    *rows = e->dim[0];
    *cols = e->ndim == 2 ? e->dim[1] : 0;
    PL_TRY(want(j, j->codes, formats, 2, *rows, *cols));
    if (*rows < 1 || *cols < 1) return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': is empty", e->name);
    return PL_OK;
}

/* Largest of 128, 64 and 32 that divides n; 0: none. */
static int64_t group_in(int64_t n) { return n % 128 == 0 ? 128 : n % 64 == 0 ? 64 : n % 32 == 0 ? 32 : 0; }

/* Formats of a family stand in the order of their groups: 32, 64, 128. */
static int32_t with_group(int32_t first, int64_t group) { return first + (group == 32 ? 0 : group == 64 ? 1 : 2); }

/* The groups of a weight of 4-bit integers with rows of k: what shares a scale, and the format's group. */
static int int4_groups(joiner *j, int64_t k, int64_t *share, int64_t *group)
{
    *share = j->group->group ? j->group->group : k;
    if (k % *share)
        return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': rows of %lld, want a multiple of the group, %lld",
                       at(j, j->codes)->name, (long long)k, (long long)*share);
    *group = group_in(*share);
    if (!*group)
        return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': groups of %lld, want a multiple of 32",
                       at(j, j->codes)->name, (long long)*share);
    return PL_OK;
}

/* The weight is done but for its name. */
static int add(joiner *j, int32_t how, int32_t dtype, int32_t ndim, const char *suffix)
{
    char name[PL_TOC_NAME_MAX + 32];
    const pl_dtype_info *d = pl_dtype(dtype);
    int64_t n = 1;
    j->e.dtype = dtype;
    j->e.ndim = ndim;
    j->e.file = -1;
    j->e.join.how = how;
    snprintf(j->e.format, sizeof j->e.format, "%s", d->name);
    for (int32_t i = 0; i < ndim; i++)
        if (!pl_mul(n, j->e.dim[i], &n))
            return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': too large", at(j, j->codes)->name);
    if (j->e.dim[ndim - 1] % d->block)
        return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': rows of %lld, want a multiple of %d", at(j, j->codes)->name,
                       (long long)j->e.dim[ndim - 1], d->block);
    if (!pl_mul(n / d->block, d->bytes, &j->e.bytes))
        return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': too large", at(j, j->codes)->name);
    static const char *const aside[] = {".input_scale", ".input_global_scale", ".input_zero_point", ".output_scale"};
    for (size_t i = 0; *suffix == '.' && i < sizeof aside / sizeof *aside; i++) take(j, aside[i]);
    j->taken[j->codes] = true;
    const int bytes = snprintf(name, sizeof name, "%s%s", j->module, suffix);
    return pl_toc_add(j->out, name, bytes, &j->e, j->err);
}

/* The groups of columns as the file lists them: a part of the weight if they are out of order. */
static int take_index(joiner *j, const char *what, int64_t k, int64_t share)
{
    int32_t i = take(j, what);
    if (j->group->ordered) PL_TRY(need(j, &i, what));
    if (i < 0) return PL_OK;
    PL_TRY(want(j, i, I32, 1, k, 0));
    if (k > INT32_MAX)
        return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': %lld columns, want at most 2^31", at(j, i)->name,
                       (long long)k);
    const pl_part index = {at(j, i), j->values(j->arg, at(j, i))};
    if (j->s->by == PL_BY_COMPRESSED_TENSORS && pl_u32_at(index.data) == UINT32_MAX) return PL_OK; /* never set */
    const int rc = pl_parts_order(&index, share, NULL, j->err);
    if (rc == 1) j->e.join.part[PL_INDEX] = i;
    return rc;
}

/* Beside a weight whose columns were sorted: their order. */
static int add_order(joiner *j)
{
    const pl_toc_entry w = j->e;
    if (w.join.part[PL_INDEX] < 0) return PL_OK;
    j->e = (pl_toc_entry){.dim = {w.dim[1]}, .join = {.part = {-1, -1, -1, -1, w.join.part[PL_INDEX], -1}}};
    j->e.join.cols = w.join.cols;
    return add(j, PL_JOIN_ORDER, PL_I32, 1, ".weight_order");
}

static int join_pack4(joiner *j)
{
    int64_t n, words, share, group;
    int32_t *part = j->e.join.part;
    PL_TRY(want_codes(j, I32, &n, &words));
    const int64_t k = words * 8; /* at most 2^63: it is less than the file's bytes times 2 */
    PL_TRY(int4_groups(j, k, &share, &group));
    PL_TRY(need(j, &part[PL_SCALES], ".weight_scale"));
    PL_TRY(want(j, part[PL_SCALES], FLOATS, 2, n, k / share));
    part[PL_ZEROS] = take(j, ".weight_zero_point");
    if (j->group->symmetric != (part[PL_ZEROS] < 0))
        return pl_fail(j->err, PL_EFORMAT, "tensor '%.64s': %s zero points, but the config says symmetric = %s",
                       at(j, j->codes)->name, part[PL_ZEROS] < 0 ? "no" : "has",
                       j->group->symmetric ? "true" : "false");
    if (part[PL_ZEROS] >= 0) PL_TRY(want(j, part[PL_ZEROS], I32, 2, (n + 7) / 8, k / share));
    part[PL_SIZES] = take(j, ".weight_shape");
    if (part[PL_SIZES] >= 0) PL_TRY(want(j, part[PL_SIZES], I32 | I64, 1, 2, 0));
    PL_TRY(take_index(j, ".weight_g_idx", k, share));
    j->e.dim[0] = n;
    j->e.dim[1] = k;
    j->e.join.cols = share;
    j->e.join.flag = part[PL_ZEROS] < 0 && at(j, part[PL_SCALES])->dtype == PL_BF16;
    PL_TRY(add(j, PL_JOIN_PACK4, with_group(j->e.join.flag ? PL_I4G32 : PL_U4G32, group), 2, ".weight"));
    return add_order(j);
}

static int join_qweight(joiner *j)
{
    const bool gptq = j->s->by == PL_BY_GPTQ;
    int64_t rows, cols, share, group;
    int32_t *part = j->e.join.part;
    PL_TRY(want_codes(j, I32, &rows, &cols));
    const int64_t k = gptq ? rows * 8 : rows, n = gptq ? cols : cols * 8;
    PL_TRY(int4_groups(j, k, &share, &group));
    if (n % 8)
        return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': %lld columns, want a multiple of 8", at(j, j->codes)->name,
                       (long long)n);
    PL_TRY(need(j, &part[PL_SCALES], ".scales"));
    PL_TRY(want(j, part[PL_SCALES], FLOATS, 2, k / share, n));
    PL_TRY(need(j, &part[PL_ZEROS], ".qzeros"));
    PL_TRY(want(j, part[PL_ZEROS], I32, 2, k / share, n / 8));
    PL_TRY(take_index(j, ".g_idx", k, share));
    j->e.dim[0] = n;
    j->e.dim[1] = k;
    j->e.join.cols = share;
    j->e.join.flag = j->s->zeros_v2;
    PL_TRY(add(j, gptq ? PL_JOIN_GPTQ : PL_JOIN_AWQ, with_group(PL_U4G32, group), 2, ".weight"));
    return add_order(j);
}

static int join_f8(joiner *j)
{
    int64_t n, k;
    int32_t *part = j->e.join.part;
    const int64_t *block = j->group->block;
    PL_TRY(want_codes(j, F8, &n, &k));
    part[PL_SCALES] = take(j, ".weight_scale_inv");
    if (part[PL_SCALES] < 0) PL_TRY(need(j, &part[PL_SCALES], ".weight_scale"));
    const pl_toc_entry *s = at(j, part[PL_SCALES]);
    j->e.join.cols = k;
    if (block[0]) {
        PL_TRY(want(j, part[PL_SCALES], FLOATS, 2, (n + block[0] - 1) / block[0], (k + block[1] - 1) / block[1]));
        j->e.join.rows = block[0];
        j->e.join.cols = block[1];
    } else if ((s->ndim == 1 && s->dim[0] == 1) || (s->ndim == 2 && s->dim[0] == 1 && s->dim[1] == 1)) {
        PL_TRY(want_one(j, part[PL_SCALES], FLOATS));
        j->e.join.rows = n;
    } else {
        PL_TRY(want(j, part[PL_SCALES], FLOATS, s->ndim == 1 ? 1 : 2, n, 1));
        j->e.join.rows = 1;
    }
    j->e.dim[0] = n;
    j->e.dim[1] = k;
    /* rows that no group divides become floats: exact, and not the weights that fill a model */
    const int64_t share = j->e.join.cols < k ? j->e.join.cols : k,
                  both = group_in(k) < group_in(share) ? group_in(k) : group_in(share);
    return add(j, PL_JOIN_F8, both ? with_group(PL_F8G32, both) : PL_F32, 2, ".weight");
}

/* codes: bytes of two elements. Both dialects. */
static int join_nvfp4(joiner *j)
{
    int64_t n, bytes;
    int32_t *part = j->e.join.part;
    const bool divides = j->s->by == PL_BY_COMPRESSED_TENSORS;
    PL_TRY(want_codes(j, U8, &n, &bytes));
    const int64_t k = bytes * 2;
    PL_TRY(need(j, &part[PL_SCALES], ".weight_scale"));
    PL_TRY(want(j, part[PL_SCALES], F8, 2, n, (k + 15) / 16));
    PL_TRY(need(j, &part[PL_TENSOR_SCALE], divides ? ".weight_global_scale" : ".weight_scale_2"));
    PL_TRY(want_one(j, part[PL_TENSOR_SCALE], F32));
    j->e.dim[0] = n;
    j->e.dim[1] = k;
    j->e.join.flag = divides;
    return add(j, PL_JOIN_NVFP4, PL_NVFP4, 2, ".weight");
}

static int join_mxfp4(joiner *j)
{
    int64_t n, bytes;
    PL_TRY(want_codes(j, U8, &n, &bytes));
    PL_TRY(need(j, &j->e.join.part[PL_SCALES], ".weight_scale"));
    PL_TRY(want(j, j->e.join.part[PL_SCALES], U8, 2, n, (bytes + 15) / 16));
    j->e.dim[0] = n;
    j->e.dim[1] = bytes * 2;
    return add(j, PL_JOIN_MXFP4, PL_MXFP4, 2, ".weight");
}

/* gpt-oss: [experts, rows, blocks, 16] and [experts, rows, blocks]. */
static int join_blocks(joiner *j)
{
    const pl_toc_entry *c = at(j, j->codes);
    char got[96];
    PL_TRY(need(j, &j->e.join.part[PL_SCALES], "_scales"));
    const pl_toc_entry *s = at(j, j->e.join.part[PL_SCALES]);
    shape_text(got, sizeof got, c->ndim, c->dim);
    if (c->dtype != PL_U8 || s->dtype != PL_U8)
        return pl_fail(j->err, PL_EDTYPE, "tensor '%.64s': %s and %s, want bytes", c->name, c->format, s->format);
    bool same = c->ndim == 4 && s->ndim == 3 && c->dim[3] == 16;
    for (int i = 0; same && i < 3; i++) same = c->dim[i] == s->dim[i] && c->dim[i] > 0;
    if (!same)
        return pl_fail(j->err, PL_ESHAPE, "tensor '%.64s': %s, want [experts,rows,blocks,16] and as many scales",
                       c->name, got);
    for (int i = 0; i < 2; i++) j->e.dim[i] = c->dim[i];
    j->e.dim[2] = c->dim[2] * 32;
    return add(j, PL_JOIN_MXFP4, PL_MXFP4, 3, "");
}

/* Cuts `end` off the name of the codes: the module. */
static bool ends_with(joiner *j, const char *end)
{
    const char *name = at(j, j->codes)->name;
    const size_t n = strlen(name), m = strlen(end);
    if (n <= m || strcmp(name + n - m, end) != 0) return false;
    snprintf(j->module, sizeof j->module, "%.*s", (int)(n - m), name);
    return true;
}

static int mismatch(const joiner *j, const char *what)
{
    return pl_fail(j->err, PL_EFORMAT, "tensor '%.64s': %s, but config.json's %s says otherwise", at(j, j->codes)->name,
                   what, j->s->key);
}

/* If entry i holds the codes of a weight, that weight. */
static int join(joiner *j, int32_t i)
{
    const int32_t by = j->s->by, dtype = j->files->e[i].dtype;
    j->codes = i;
    j->e = (pl_toc_entry){.join.part = {i, -1, -1, -1, -1, -1}};
    const bool packed = ends_with(j, ".weight_packed") && by == PL_BY_COMPRESSED_TENSORS;
    const bool words = !packed && ends_with(j, ".qweight") && (by == PL_BY_GPTQ || by == PL_BY_AWQ);
    const bool blocks = !packed && !words && ends_with(j, "_blocks") && by == PL_BY_MXFP4;
    const bool plain = !packed && !words && !blocks && ends_with(j, ".weight") && (dtype == PL_F8 || dtype == PL_U8) &&
                       (by == PL_BY_FP8 || by == PL_BY_MODELOPT || by == PL_BY_COMPRESSED_TENSORS);
    if (!packed && !words && !blocks && !plain) return PL_OK;
    PL_TRY(pl_scheme_group_of(j->s, j->module, &j->group, j->err));
    const int32_t as = j->group->as;
    if (words) return join_qweight(j);
    if (blocks) return join_blocks(j);
    if (packed) {
        if (as == PL_AS_F8) return mismatch(j, "is packed");
        return as == PL_AS_INT4 ? join_pack4(j) : as == PL_AS_NVFP4 ? join_nvfp4(j) : join_mxfp4(j);
    }
    if (dtype == PL_U8 && by == PL_BY_MODELOPT && as == PL_AS_NVFP4) return join_nvfp4(j);
    if (dtype != PL_F8 || as != PL_AS_F8) return mismatch(j, dtype == PL_F8 ? "is f8" : "is of bytes");
    return join_f8(j);
}

/* A part that no weight took. */
static int check_orphan(const pl_toc_entry *e, pl_err *err)
{
    static const char *const part[] = {"weight_packed", "weight_scale",        "weight_scale_inv",  "weight_scale_2",
                                       "weight_shape",  "weight_global_scale", "weight_zero_point", "qweight",
                                       "qzeros",        "weight_g_idx"};
    const char *dot = strrchr(e->name, '.');
    for (size_t i = 0; dot && i < sizeof part / sizeof *part; i++)
        if (!strcmp(dot + 1, part[i]))
            return pl_fail(err, PL_EFORMAT, "tensor '%.80s': no quantised weight that it belongs to", e->name);
    return PL_OK;
}

int pl_parts_join(pl_toc *out, const pl_toc *files, const pl_scheme *s, pl_values_fn *values, const void *arg,
                  pl_err *err)
{
    joiner j = {.files = files, .s = s, .out = out, .values = values, .arg = arg, .err = err};
    j.taken = calloc((size_t)pl_max(1, files->n), sizeof *j.taken);
    if (!j.taken) return pl_fail(err, PL_ENOMEM, "ckpt: no memory for %d tensors", files->n);
    int rc = PL_OK;
    for (int32_t i = 0; i < files->n && rc == PL_OK; i++)
        if (!j.taken[i]) rc = join(&j, i);
    for (int32_t i = 0; i < files->n && rc == PL_OK; i++) {
        const pl_toc_entry *e = &files->e[i];
        if (j.taken[i]) continue;
        rc = check_orphan(e, err);
        if (rc == PL_OK) rc = pl_toc_add(out, e->name, (int64_t)strlen(e->name), e, err);
    }
    if (rc == PL_OK) rc = pl_toc_seal(out, "safetensors", err);
    free(j.taken);
    return rc;
}
