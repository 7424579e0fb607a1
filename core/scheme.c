/* scheme.c: quantization_config in config.json (or hf_quant_config.json), in the spellings of the tools that quantise:
 * transformers' fp8 and mxfp4, compressed-tensors, GPTQ, AWQ, modelopt. A method or a value that is not known here is an
 * error that names its key: a weight read by the wrong rule is a wrong answer without a word.
 *
 * Patterns: compressed-tensors has exact names, classes ("Linear"), and "re:" with a Python expression anchored at the
 * front. The others have parts of names, whole components of them, or "*" for anything. */
#include "scheme.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include "toc.h"
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

enum { PL_MAX_PATTERN = 1024, PL_MAX_PATTERNS = 1 << 14, PL_MATCH_LIMIT = 100000 };

typedef struct reader {
    pl_scheme *s;
    const pl_meta *meta;
    pl_err *err;
    char key[2 * PL_META_KEY_MAX]; /* the last one looked up, in full */
} reader;

static const pl_meta_entry *entry(reader *r, const char *at, const char *key)
{
    const int n = snprintf(r->key, sizeof r->key, "%s.%s%s", r->s->key, at, key);
    if (n < 0 || n >= (int)sizeof r->key) return NULL; /* longer than any key */
    const int32_t i = pl_meta_find(r->meta, r->key);
    return i < 0 ? NULL : &r->meta->e[i];
}

/* A string, cut to fit; `otherwise` where the key is absent. */
static int take_text(reader *r, const char *at, const char *key, char out[64], const char *otherwise)
{
    const char *text;
    int64_t n;
    const pl_meta_entry *e = entry(r, at, key);
    snprintf(out, 64, "%s", otherwise);
    if (!e) return PL_OK;
    PL_TRY(pl_meta_string(e, 0, &text, &n, r->err));
    snprintf(out, 64, "%.*s", (int)pl_min(n, 63), text);
    return PL_OK;
}

static int take_int(reader *r, const char *at, const char *key, int64_t *out, int64_t otherwise)
{
    const pl_meta_entry *e = entry(r, at, key);
    *out = otherwise;
    return e ? pl_meta_int(e, 0, out, r->err) : PL_OK;
}

/* The value of the last key looked up is not one of ours. */
static int refuse(const reader *r, const char *value, const char *wanted)
{
    return pl_fail(r->err, PL_EFORMAT, "config: %s: '%s', want %s", r->key, value, wanted);
}
static int refuse_int(const reader *r, int64_t value, const char *wanted)
{
    return pl_fail(r->err, PL_EFORMAT, "config: %s: %lld, want %s", r->key, (long long)value, wanted);
}

static int add_pattern(reader *r, pl_pattern **list, int32_t *n, const char *text, int64_t n_text, int32_t group)
{
    if (n_text < 1 || n_text > PL_MAX_PATTERN || !pl_is_printable(text, n_text))
        return pl_fail(r->err, PL_EFORMAT, "config: %s: entry %d is no name", r->key, *n);
    if (*n == PL_MAX_PATTERNS)
        return pl_fail(r->err, PL_ELIMIT, "config: %s: more than %d names", r->key, PL_MAX_PATTERNS);
    if ((*n & (*n - 1)) == 0) { /* full at 0 and at powers of two */
        pl_pattern *p = realloc(*list, sizeof *p * (size_t)pl_max(1, 2 * *n));
        if (!p) return pl_fail(r->err, PL_ENOMEM, "config: no memory for %d names", 2 * *n);
        *list = p;
    }
    pl_pattern *p = *list + *n;
    *p = (pl_pattern){.text = strndup(text, (size_t)n_text), .group = group};
    if (!p->text) return pl_fail(r->err, PL_ENOMEM, "config: no memory for a name");
    ++*n;
    if (strncmp(p->text, "re:", 3) != 0) return PL_OK;
    int why;
    PCRE2_SIZE where;
    p->code = pcre2_compile((PCRE2_SPTR)p->text + 3, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &why, &where, NULL);
    if (!p->code)
        return pl_fail(r->err, PL_EFORMAT, "config: %s: '%.64s' is no expression (at %zu)", r->key, p->text, where);
    return PL_OK;
}

/* The names under a key: a list, or one, or none. */
static int take_names(reader *r, const char *at, const char *key, pl_pattern **list, int32_t *n, int32_t group)
{
    const pl_meta_entry *e = entry(r, at, key);
    for (int64_t i = 0; e && i < e->n; i++) {
        const char *text;
        int64_t bytes;
        PL_TRY(pl_meta_string(e, i, &text, &bytes, r->err));
        PL_TRY(add_pattern(r, list, n, text, bytes, group));
    }
    return PL_OK;
}

static int take_ignored(reader *r, const char *const *keys)
{
    pl_scheme *s = r->s;
    for (; *keys; keys++) {
        const int32_t before = s->n_ignored;
        PL_TRY(take_names(r, "", *keys, &s->ignore, &s->n_ignored, 0));
        if (s->n_ignored > before && !s->ignore_key) s->ignore_key = *keys;
    }
    return PL_OK;
}

static int add_group(reader *r, const pl_scheme_group *g)
{
    if (r->s->n_groups == PL_SCHEME_GROUPS)
        return pl_fail(r->err, PL_ELIMIT, "config: %s: more than %d groups", r->s->key, PL_SCHEME_GROUPS);
    r->s->group[r->s->n_groups++] = *g;
    return PL_OK;
}

/* A list of two sizes: rows and columns of a block. */
static int take_block(reader *r, const char *at, const char *key, int64_t block[2])
{
    const pl_meta_entry *e = entry(r, at, key);
    if (!e) return PL_OK;
    if (e->n != 2) return refuse_int(r, e->n, "two sizes");
    for (int i = 0; i < 2; i++) {
        PL_TRY(pl_meta_int(e, i, &block[i], r->err));
        if (block[i] < 1 || block[i] > 1 << 30) return refuse_int(r, block[i], "a size");
    }
    return PL_OK;
}

static int read_fp8(reader *r)
{
    static const char *const ignored[] = {"modules_to_not_convert", "ignored_layers", NULL};
    pl_scheme_group g = {.as = PL_AS_F8, .symmetric = true};
    char fmt[64];
    PL_TRY(take_text(r, "", "fmt", fmt, "e4m3"));
    if (strcmp(fmt, "e4m3") != 0 && strcmp(fmt, "float8_e4m3fn") != 0) return refuse(r, fmt, "e4m3");
    PL_TRY(take_block(r, "", "weight_block_size", g.block));
    PL_TRY(add_group(r, &g));
    return take_ignored(r, ignored);
}

/* One of compressed-tensors' config_groups; at: "config_groups.group_0.weights.". */
static int read_weights(reader *r, const char *at, pl_scheme_group *g)
{
    char type[64], strategy[64], order[64];
    int64_t bits;
    PL_TRY(take_int(r, at, "num_bits", &bits, 0));
    if (bits != 4 && bits != 8) return refuse_int(r, bits, "4 or 8");
    PL_TRY(take_text(r, at, "type", type, "int"));
    if (strcmp(type, "int") != 0 && strcmp(type, "float") != 0) return refuse(r, type, "int or float");
    if (bits == 8 && strcmp(type, "float") != 0) return refuse(r, type, "float with 8 bits");
    const pl_meta_entry *e = entry(r, at, "actorder");
    if (e && e->raw == PL_RAW_BOOL) {
        int64_t on;
        PL_TRY(pl_meta_int(e, 0, &on, r->err));
        g->ordered = on != 0;
    } else { /* "weight" and "static" change what is quantised first, not what shares a scale */
        PL_TRY(take_text(r, at, "actorder", order, "weight"));
        g->ordered = !strcmp(order, "group") || !strcmp(order, "dynamic");
        if (!g->ordered && strcmp(order, "weight") != 0 && strcmp(order, "static") != 0)
            return refuse(r, order, "weight, static, group or dynamic");
    }
    int64_t symmetric;
    PL_TRY(take_int(r, at, "symmetric", &symmetric, 1));
    g->symmetric = symmetric != 0;
    PL_TRY(take_int(r, at, "group_size", &g->group, 0));
    const int64_t size = g->group;
    if (bits == 8)
        g->as = PL_AS_F8;
    else if (!strcmp(type, "int"))
        g->as = PL_AS_INT4;
    else if (size == 16 || size == 32)
        g->as = size == 16 ? PL_AS_NVFP4 : PL_AS_MXFP4;
    else
        return refuse_int(r, size, "16 or 32 with floats of 4 bits");
    if (g->as != PL_AS_INT4 && !symmetric) {
        entry(r, at, "symmetric");
        return refuse(r, "false", "true with floats");
    }
    PL_TRY(take_text(r, at, "strategy", strategy, size > 0 ? "group" : "channel"));
    const bool grouped = !strcmp(strategy, "group") || !strcmp(strategy, "tensor_group");
    if (!strcmp(strategy, "block")) {
        if (bits == 4) return refuse(r, strategy, "group or channel with 4 bits");
        PL_TRY(take_block(r, at, "block_structure", g->block));
        if (!g->block[0]) return pl_fail(r->err, PL_EFORMAT, "config: %s: absent, want two sizes", r->key);
    } else if (grouped) {
        if (size < 1 || size > 1 << 30) {
            entry(r, at, "group_size");
            return refuse_int(r, size, "a size, as the strategy is group");
        }
        if (bits == 8) return refuse(r, strategy, "tensor, channel or block with 8 bits");
    } else if (!strcmp(strategy, "channel") || (!strcmp(strategy, "tensor") && bits == 8)) {
        g->group = 0;
    } else {
        return refuse(r, strategy, bits == 8 ? "tensor, channel or block" : "group or channel");
    }
    return PL_OK;
}

static int read_groups(reader *r)
{
    static const char *const ignored[] = {"ignore", NULL};
    static const char end[] = ".weights.num_bits";
    char start[96];
    const size_t n = (size_t)snprintf(start, sizeof start, "%s.config_groups.", r->s->key);
    char sparsity[64];
    PL_TRY(take_text(r, "", "sparsity_config.format", sparsity, "dense"));
    if (strcmp(sparsity, "dense") != 0) return refuse(r, sparsity, "dense");
    for (int32_t i = 0; r->meta->e && i < r->meta->n; i++) {
        const char *key = r->meta->e[i].key;
        if (strstr(key, ".transform_config.") && !strncmp(key, r->s->key, strlen(r->s->key)))
            return pl_fail(r->err, PL_EFORMAT, "config: %s: rotated weights, want none", key);
        const size_t n_key = strlen(key);
        if (strncmp(key, start, n) != 0 || n_key < n + sizeof end || strcmp(key + n_key - (sizeof end - 1), end) != 0)
            continue;
        char at[2 * PL_META_KEY_MAX];
        const int n_name = (int)(n_key - n - (sizeof end - 1));
        pl_scheme_group g = {0};
        snprintf(at, sizeof at, "config_groups.%.*s.weights.", n_name, key + n);
        PL_TRY(read_weights(r, at, &g));
        snprintf(at, sizeof at, "config_groups.%.*s.", n_name, key + n);
        PL_TRY(take_names(r, at, "targets", &r->s->target, &r->s->n_targets, r->s->n_groups));
        PL_TRY(add_group(r, &g));
    }
    if (!r->s->n_groups)
        return pl_fail(r->err, PL_EFORMAT, "config: %s.config_groups: none with weights, want one", r->s->key);
    return take_ignored(r, ignored);
}

static int read_compressed_tensors(reader *r)
{
    static const char *const known[] = {"pack-quantized",  "float-quantized",      "naive-quantized",
                                        "mixed-precision", "nvfp4-pack-quantized", "mxfp4-pack-quantized"};
    char format[64], status[64];
    PL_TRY(take_text(r, "", "format", format, "pack-quantized"));
    bool ours = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) ours |= !strcmp(format, known[i]);
    if (!ours) return refuse(r, format, "a packed or float format of compressed-tensors");
    PL_TRY(take_text(r, "", "quantization_status", status, "compressed"));
    if (strcmp(status, "compressed") != 0 && strcmp(status, "frozen") != 0) return refuse(r, status, "compressed");
    return read_groups(r);
}

/* GPTQ and AWQ. */
static int read_int4(reader *r, const char *bits_key)
{
    static const char *const ignored[] = {"modules_to_not_convert", NULL};
    pl_scheme_group g = {.as = PL_AS_INT4};
    char text[64];
    int64_t bits;
    PL_TRY(take_int(r, "", bits_key, &bits, 0));
    if (bits != 4) return refuse_int(r, bits, "4");
    PL_TRY(take_int(r, "", "group_size", &g.group, 0));
    if (g.group < -1 || g.group == 0 || g.group > 1 << 30) return refuse_int(r, g.group, "a size, or -1 for the row");
    if (g.group == -1) g.group = 0;
    if (r->s->by == PL_BY_GPTQ) {
        PL_TRY(take_text(r, "", "checkpoint_format", text, "gptq"));
        r->s->zeros_v2 = !strcmp(text, "gptq_v2");
        if (!r->s->zeros_v2 && strcmp(text, "gptq") != 0) return refuse(r, text, "gptq or gptq_v2");
        int64_t ordered;
        PL_TRY(take_int(r, "", "desc_act", &ordered, 0));
        g.ordered = ordered != 0;
    } else {
        PL_TRY(take_text(r, "", "version", text, "gemm"));
        if (strcmp(text, "gemm") != 0 && strcmp(text, "GEMM") != 0) return refuse(r, text, "gemm");
    }
    PL_TRY(add_group(r, &g));
    return take_ignored(r, ignored);
}

static int read_modelopt(reader *r)
{
    static const char *const ignored[] = {"exclude_modules", "ignore", NULL};
    pl_scheme_group g = {.as = PL_AS_NVFP4, .symmetric = true, .group = 16};
    char text[64];
    int64_t size;
    PL_TRY(take_text(r, "", "quant_algo", text, ""));
    if (!strcmp(text, "FP8"))
        g = (pl_scheme_group){.as = PL_AS_F8, .symmetric = true};
    else if (strcmp(text, "NVFP4") != 0)
        return refuse(r, text, "FP8 or NVFP4");
    PL_TRY(take_int(r, "", "group_size", &size, g.group));
    if (g.as == PL_AS_NVFP4 && size != 16) return refuse_int(r, size, "16");
    PL_TRY(add_group(r, &g));
    return take_ignored(r, ignored);
}

static int read_mxfp4(reader *r)
{
    static const char *const ignored[] = {"modules_to_not_convert", NULL};
    const pl_scheme_group g = {.as = PL_AS_MXFP4, .symmetric = true, .group = 32};
    PL_TRY(add_group(r, &g));
    return take_ignored(r, ignored);
}

int pl_scheme_read(pl_scheme *s, const pl_meta *meta, pl_err *err)
{
    static const char *const places[] = {"quantization_config", "compression_config", "text_config.quantization_config",
                                         "text_config.compression_config", "hf_quant_config.quantization"};
    reader r = {.s = s, .meta = meta, .err = err};
    char by[64] = "";
    *s = (pl_scheme){0};
    for (size_t i = 0; i < sizeof places / sizeof *places && !s->key[0]; i++) {
        const size_t n = strlen(places[i]);
        for (int32_t k = 0; k < meta->n && !s->key[0]; k++)
            if (!strncmp(meta->e[k].key, places[i], n) && meta->e[k].key[n] == '.')
                snprintf(s->key, sizeof s->key, "%s", places[i]);
    }
    if (!s->key[0]) return PL_OK;
    const bool apart = !strncmp(s->key, "hf_quant", 8); /* modelopt's own file does not name the method */
    PL_TRY(take_text(&r, "", "quant_method", by, apart ? "modelopt" : ""));
    if (!strcmp(by, "fp8")) {
        s->by = PL_BY_FP8;
        return read_fp8(&r);
    }
    if (!strcmp(by, "compressed-tensors") || !strcmp(by, "compressed_tensors")) {
        s->by = PL_BY_COMPRESSED_TENSORS;
        return read_compressed_tensors(&r);
    }
    if (!strcmp(by, "gptq")) {
        s->by = PL_BY_GPTQ;
        return read_int4(&r, "bits");
    }
    if (!strcmp(by, "awq")) {
        s->by = PL_BY_AWQ;
        return read_int4(&r, entry(&r, "", "bits") ? "bits" : "w_bit");
    }
    if (!strcmp(by, "modelopt") || !strcmp(by, "modelopt_fp4")) {
        s->by = PL_BY_MODELOPT;
        return read_modelopt(&r);
    }
    if (!strcmp(by, "mxfp4")) {
        s->by = PL_BY_MXFP4;
        return read_mxfp4(&r);
    }
    return refuse(&r, by, "awq, compressed-tensors, fp8, gptq, modelopt or mxfp4");
}

/* Matching ------------------------------------------------------------------------------------------------------- */

/* '*' stands for anything; backtracks to the last one only, which is enough. */
static bool glob(const char *p, const char *s, const char *end)
{
    const char *star = NULL, *from = s;
    while (s < end) {
        if (*p == '*') {
            star = p++;
            from = s;
        } else if (*p == *s) {
            p++;
            s++;
        } else if (star) {
            p = star + 1;
            s = ++from;
        } else {
            return false;
        }
    }
    while (*p == '*') p++;
    return !*p;
}

/* Whole components of the name, anywhere in it; with a '*' from its beginning. */
static bool names_part(const char *pattern, const char *name)
{
    const size_t n = strlen(pattern);
    if (strchr(pattern, '*')) {
        for (const char *end = name;; end++) {
            if (*end && *end != '.') continue;
            if (glob(pattern, name, end)) return true;
            if (!*end) return false;
        }
    }
    for (const char *at = strstr(name, pattern); at; at = strstr(at + 1, pattern))
        if ((at == name || at[-1] == '.') && (!at[n] || at[n] == '.')) return true;
    return false;
}

/* 1 or 0, or a code. */
static int matches(const pl_scheme *s, const pl_pattern *p, const char *name, pl_err *err)
{
    if (!p->code) return s->by == PL_BY_COMPRESSED_TENSORS ? !strcmp(p->text, name) : names_part(p->text, name);
    int rc = PCRE2_ERROR_NOMEMORY;
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(p->code, NULL);
    if (limits && data) {
        pcre2_set_match_limit(limits, PL_MATCH_LIMIT);
        pcre2_set_depth_limit(limits, PL_MATCH_LIMIT);
        pcre2_set_heap_limit(limits, 1 << 14);
        rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, limits);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) return pl_fail(err, PL_ELIMIT, "config: %s: '%.64s' takes too long to match", s->key, p->text);
    return 1;
}

int pl_scheme_group_of(const pl_scheme *s, const char *module, const pl_scheme_group **out, pl_err *err)
{
    for (int32_t i = 0; i < s->n_ignored; i++) {
        const int rc = matches(s, &s->ignore[i], module, err);
        PL_TRY(rc);
        if (rc)
            return pl_fail(err, PL_EFORMAT, "config: %s.%s: '%.48s' names %.80s, whose weight is quantised", s->key,
                           s->ignore_key, s->ignore[i].text, module);
    }
    *out = &s->group[0];
    if (!s->n_targets) return PL_OK;
    int32_t class = -1; /* a target like "Linear" takes what no name takes: of classes a checkpoint says nothing */
    for (int32_t i = 0; i < s->n_targets; i++) {
        const pl_pattern *p = &s->target[i];
        const int rc = matches(s, p, module, err);
        PL_TRY(rc);
        if (rc) {
            *out = &s->group[p->group];
            return PL_OK;
        }
        if (class < 0 && !p->code && !strchr(p->text, '.') && p->text[0] >= 'A' && p->text[0] <= 'Z') class = p->group;
    }
    if (class < 0)
        return pl_fail(err, PL_EFORMAT, "config: %s.config_groups: no target names %.80s, whose weight is quantised",
                       s->key, module);
    *out = &s->group[class];
    return PL_OK;
}

static void clear_patterns(pl_pattern *p, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        free(p[i].text);
        pcre2_code_free(p[i].code);
    }
    free(p);
}

void pl_scheme_clear(pl_scheme *s)
{
    clear_patterns(s->target, s->n_targets);
    clear_patterns(s->ignore, s->n_ignored);
    *s = (pl_scheme){0};
}
