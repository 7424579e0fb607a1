/* meta.c: the metadata of a checkpoint. Values stay as they lie in the file and are decoded when asked for: a
 * vocabulary of a quarter of a million strings costs one offset each. */
#include "meta.h"
#include "mem.h"
#include "toc.h"
#include <stdlib.h>

int pl_raw_bytes(int32_t raw)
{
    static const int8_t bytes[PL_N_RAW] = {
        [PL_RAW_U8] = 1,  [PL_RAW_I8] = 1,   [PL_RAW_U16] = 2, [PL_RAW_I16] = 2, [PL_RAW_U32] = 4, [PL_RAW_I32] = 4,
        [PL_RAW_F32] = 4, [PL_RAW_BOOL] = 1, [PL_RAW_U64] = 8, [PL_RAW_I64] = 8, [PL_RAW_F64] = 8,
    };
    return raw >= 0 && raw < PL_N_RAW ? bytes[raw] : -1;
}

int pl_meta_add(pl_meta *m, const char *key, int64_t n, const pl_meta_entry *e, pl_err *err)
{
    char *copy = NULL;
    void *p = m->e;
    int rc;
    if (n < 1 || n > PL_META_KEY_MAX)
        rc =
            pl_fail(err, PL_EFORMAT, "key %d: a name of %lld bytes, want 1 to %d", m->n, (long long)n, PL_META_KEY_MAX);
    else if (!pl_is_printable(key, n))
        rc = pl_fail(err, PL_EFORMAT, "key %d: its name is not printable ASCII", m->n);
    else if (m->n == PL_META_MAX_KEYS)
        rc = pl_fail(err, PL_ELIMIT, "more than %d keys", PL_META_MAX_KEYS);
    else if (!(copy = strndup(key, (size_t)n)))
        rc = pl_fail(err, PL_ENOMEM, "key %d: no memory for its name", m->n);
    else
        rc = pl_mem_grow(&p, &m->cap, m->n + 1, sizeof *m->e, err);
    m->e = p;
    if (rc < 0) {
        free(copy);
        free(e->at);
        free(e->own);
        return rc;
    }
    m->e[m->n] = *e;
    m->e[m->n++].key = copy;
    return PL_OK;
}

static int key_order(const void *a, const void *b)
{
    return strcmp((*(pl_meta_entry *const *)a)->key, (*(pl_meta_entry *const *)b)->key);
}

static int key_is(const void *key, const void *e) { return strcmp(key, (*(pl_meta_entry *const *)e)->key); }

int pl_meta_seal(pl_meta *m, const char *what, pl_err *err)
{
    PL_ASSERT(!m->by_name);
    if (!m->n) return PL_OK;
    pl_meta_entry **p = malloc((size_t)m->n * sizeof(pl_meta_entry *));
    if (!p) return pl_fail(err, PL_ENOMEM, "%s: no memory for %d keys", what, m->n);
    m->by_name = p;
    for (int32_t i = 0; i < m->n; i++) p[i] = &m->e[i];
    qsort(p, (size_t)m->n, sizeof(pl_meta_entry *), key_order);
    for (int32_t i = 1; i < m->n; i++)
        if (!strcmp(p[i]->key, p[i - 1]->key))
            return pl_fail(err, PL_EFORMAT, "%s: key '%.96s': given twice", what, p[i]->key);
    return PL_OK;
}

int32_t pl_meta_find(const pl_meta *m, const char *key)
{
    if (!m->by_name) return PL_ENAME;
    pl_meta_entry **at = bsearch(key, m->by_name, (size_t)m->n, sizeof(pl_meta_entry *), key_is);
    return at ? (int32_t)(*at - m->e) : PL_ENAME;
}

void pl_meta_clear(pl_meta *m)
{
    for (int32_t i = 0; i < m->n; i++) {
        free(m->e[i].key);
        free(m->e[i].at);
        free(m->e[i].own);
    }
    free(m->e);
    free(m->by_name);
    *m = (pl_meta){0};
}

static int check_index(const pl_meta_entry *e, int64_t i, pl_err *err)
{
    if (i < 0 || i >= e->n)
        return pl_fail(err, PL_EARG, "key '%.96s': element %lld, want 0 to %lld", e->key, (long long)i,
                       (long long)e->n - 1);
    return PL_OK;
}

/* The bits of number i, in the low end; signed ones are extended. */
static uint64_t bits_at(const pl_meta_entry *e, int64_t i)
{
    const int bytes = pl_raw_bytes(e->raw), shift = 64 - 8 * bytes;
    uint64_t u = 0;
    memcpy(&u, e->data + i * bytes, (size_t)bytes);
    const bool is_signed = e->raw == PL_RAW_I8 || e->raw == PL_RAW_I16 || e->raw == PL_RAW_I32;
    return is_signed ? (uint64_t)((int64_t)(u << shift) >> shift) : u;
}

int pl_meta_int(const pl_meta_entry *e, int64_t i, int64_t *out, pl_err *err)
{
    PL_TRY(check_index(e, i, err));
    const uint64_t u = e->raw == PL_RAW_STRING ? 0 : bits_at(e, i);
    switch (e->raw) {
    case PL_RAW_F32:
    case PL_RAW_F64:
    case PL_RAW_STRING:
        return pl_fail(err, PL_EDTYPE, "key '%.96s': not an integer", e->key);
    case PL_RAW_U64:
        if (u > INT64_MAX)
            return pl_fail(err, PL_ELIMIT, "key '%.96s': %llu is too large", e->key, (unsigned long long)u);
        break;
    default:
        break;
    }
    *out = (int64_t)u;
    return PL_OK;
}

int pl_meta_float(const pl_meta_entry *e, int64_t i, double *out, pl_err *err)
{
    PL_TRY(check_index(e, i, err));
    int64_t v;
    switch (e->raw) {
    case PL_RAW_F32:
        *out = pl_plain_nan((double)pl_bits_f32((uint32_t)bits_at(e, i)));
        return PL_OK;
    case PL_RAW_F64:
        memcpy(out, e->data + i * 8, 8);
        *out = pl_plain_nan(*out);
        return PL_OK;
    case PL_RAW_BOOL:
    case PL_RAW_STRING:
        return pl_fail(err, PL_EDTYPE, "key '%.96s': not a number", e->key);
    default:
        PL_TRY(pl_meta_int(e, i, &v, err));
        *out = (double)v;
        return PL_OK;
    }
}

int pl_meta_string(const pl_meta_entry *e, int64_t i, const char **text, int64_t *n, pl_err *err)
{
    PL_TRY(check_index(e, i, err));
    if (e->raw != PL_RAW_STRING) return pl_fail(err, PL_EDTYPE, "key '%.96s': not a string", e->key);
    uint64_t len;
    memcpy(&len, e->data + e->at[i], 8);
    *text = (const char *)e->data + e->at[i] + 8;
    *n = (int64_t)len;
    return PL_OK;
}
