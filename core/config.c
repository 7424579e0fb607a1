/* config.c: flattens config.json to metadata. Limits: 32 levels, and those of meta.h for keys. */
#include "config.h"
#include "json.h"
#include <stdio.h>
#include <stdlib.h>

enum { PL_MAX_DEPTH = 32 };

typedef struct writer {
    pl_meta *meta;
    pl_err *err;
    char key[PL_META_KEY_MAX + 1]; /* of the value at hand */
} writer;

/* Appends ".name" to the key of n bytes; returns the new length, or a code. */
static int descend(writer *w, int n, const char *name)
{
    const int at = snprintf(w->key + n, sizeof w->key - (size_t)n, n ? ".%s" : "%s", name);
    if (at < 0 || at >= (int)sizeof w->key - n)
        return pl_fail(w->err, PL_ELIMIT, "config: a key of more than %d bytes", PL_META_KEY_MAX);
    return n + at;
}

/* How v is stored: -1 for null, objects and lists. */
static int raw_of(const json_t *v)
{
    if (json_is_integer(v)) return PL_RAW_I64;
    if (json_is_real(v)) return PL_RAW_F64;
    if (json_is_boolean(v)) return PL_RAW_BOOL;
    return json_is_string(v) ? PL_RAW_STRING : -1;
}

/* The type that all elements share, or -1. */
static int raw_of_list(const json_t *list)
{
    int raw = -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const int r = raw_of(json_array_get(list, i));
        if (r == raw || (r == PL_RAW_I64 && raw == PL_RAW_F64)) continue;
        if (raw < 0 ? i > 0 : !(r == PL_RAW_F64 && raw == PL_RAW_I64)) return -1;
        raw = r;
    }
    return json_array_size(list) ? raw : PL_RAW_I64;
}

/* One value, or the n elements of a list, written as a GGUF file would hold them. */
static int add(writer *w, const json_t *v, int raw, int n_key)
{
    pl_meta_entry e = {.raw = raw, .is_list = json_is_array(v), .n = 1};
    if (e.is_list) e.n = (int64_t)json_array_size(v);
    int64_t bytes = 0;
    for (int64_t i = 0; i < e.n && raw == PL_RAW_STRING; i++)
        bytes += 8 + (int64_t)json_string_length(e.is_list ? json_array_get(v, (size_t)i) : v);
    if (raw != PL_RAW_STRING) bytes = e.n * pl_raw_bytes(raw);
    uint8_t *p = malloc((size_t)pl_max(bytes, 1));
    if (raw == PL_RAW_STRING) e.at = malloc((size_t)pl_max(e.n, 1) * sizeof *e.at);
    if (!p || (raw == PL_RAW_STRING && !e.at)) {
        free(p);
        free(e.at);
        return pl_fail(w->err, PL_ENOMEM, "config: no memory for %lld bytes", (long long)bytes);
    }
    e.own = p;
    e.data = p;
    for (int64_t i = 0; i < e.n; i++) {
        const json_t *x = e.is_list ? json_array_get(v, (size_t)i) : v;
        const uint64_t len = json_string_length(x);
        const int64_t whole = json_integer_value(x);
        const double real = json_number_value(x);
        switch (raw) {
        case PL_RAW_STRING:
            e.at[i] = p - e.data;
            memcpy(p, &len, 8);
            memcpy(p + 8, json_string_value(x), len);
            p += 8 + len;
            break;
        case PL_RAW_BOOL:
            *p++ = json_is_true(x);
            break;
        case PL_RAW_I64:
            memcpy(p, &whole, 8), p += 8;
            break;
        default:
            memcpy(p, &real, 8), p += 8;
        }
    }
    return pl_meta_add(w->meta, w->key, n_key, &e, w->err);
}

static int flatten(writer *w, json_t *v, int n_key, int depth)
{
    if (depth > PL_MAX_DEPTH) return pl_fail(w->err, PL_ELIMIT, "config: more than %d levels", PL_MAX_DEPTH);
    const int raw = json_is_array(v) ? raw_of_list(v) : raw_of(v);
    if (raw >= 0) return add(w, v, raw, n_key);
    if (json_is_array(v))
        for (size_t i = 0; i < json_array_size(v); i++) {
            char number[24];
            snprintf(number, sizeof number, "%zu", i);
            const int n = descend(w, n_key, number);
            PL_TRY(n);
            PL_TRY(flatten(w, json_array_get(v, i), n, depth + 1));
        }
    const char *name;
    json_t *x;
    json_object_foreach(v, name, x)
    {
        const int n = descend(w, n_key, name);
        PL_TRY(n);
        PL_TRY(flatten(w, x, n, depth + 1));
    }
    return PL_OK;
}

int pl_config_parse(pl_meta *meta, const char *prefix, const char *text, int64_t n, pl_err *err)
{
    json_t *root = pl_json_object(text, n, "config", err);
    if (!root) return PL_EFORMAT;
    writer w = {.meta = meta, .err = err};
    int rc = descend(&w, 0, prefix);
    if (rc >= 0) rc = flatten(&w, root, rc, 0);
    json_decref(root);
    return rc;
}
