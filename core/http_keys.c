/* http_keys.c: API keys. What is compared are hashes under a secret of the process, in constant time and to the last key,
 * so that how long it takes says nothing of the keys. */
#include "http.h"
#include <sodium.h>
#include <stdlib.h>

enum { MAX_KEYS = 65536, MAX_TENANTS = 1024 };

/* h NULL: only to find what is there twice. */
static void hash(const pl_http *h, const char *text, size_t n, uint8_t out[32])
{
    crypto_generichash(out, 32, (const uint8_t *)text, n, h ? h->secret : NULL, h ? sizeof h->secret : 0);
}

int32_t pl_http_tenant_of(const pl_http *h, const char *auth)
{
    uint8_t mine[32];
    int32_t found = -1;
    if (strncasecmp(auth, "bearer ", 7) != 0) return -1;
    auth += 7;
    while (*auth == ' ') auth++;
    hash(h, auth, strlen(auth), mine);
    for (int32_t i = 0; i < h->n_keys; i++)
        if (sodium_memcmp(mine, h->key[i].hash, sizeof mine) == 0) found = h->key[i].tenant;
    return found;
}

static size_t span(const char **p, const char *end) /* the next word of a line, and what follows it */
{
    while (*p < end && (**p == ' ' || **p == '\t' || **p == '\r')) ++*p;
    const char *from = *p;
    while (*p < end && (uint8_t) * *p > 0x20 && (uint8_t) * *p < 0x7f) ++*p;
    return (size_t)(*p - from);
}

static int32_t tenant_number(pl_http_tenant *list, int32_t *n, const char *name, size_t n_name)
{
    for (int32_t i = 0; i < *n; i++)
        if (strlen(list[i].name) == n_name && !memcmp(list[i].name, name, n_name)) return i;
    if (*n == MAX_TENANTS) return -1;
    memcpy(list[*n].name, name, n_name);
    list[*n].name[n_name] = 0;
    return (*n)++;
}

static int read_line(const pl_http *h, pl_http_key *key, pl_http_tenant *list, int32_t *n_tenants, const char *line,
                     const char *end, int number, pl_err *err)
{
    const char *p = line;
    const size_t n_key = span(&p, end);
    const char *secret = p - n_key;
    const size_t n_name = span(&p, end);
    const char *name = p - n_name;
    if (span(&p, end) || p != end || n_name == 0)
        return pl_fail(err, PL_EFORMAT, "keys: line %d, want `key tenant` of printable ASCII", number);
    if (n_key < 8 || n_key > 200)
        return pl_fail(err, PL_EFORMAT, "keys: line %d, want a key of 8 to 200 characters", number);
    if (n_name >= sizeof list->name)
        return pl_fail(err, PL_EFORMAT, "keys: line %d, want a tenant of less than %zu characters", number,
                       sizeof list->name);
    hash(h, secret, n_key, key->hash);
    key->line = number;
    key->tenant = tenant_number(list, n_tenants, name, n_name);
    if (key->tenant < 0) return pl_fail(err, PL_ELIMIT, "keys: line %d, more than %d tenants", number, MAX_TENANTS);
    return PL_OK;
}

static int by_hash(const void *a, const void *b)
{
    const pl_http_key *x = a, *y = b;
    const int order = memcmp(x->hash, y->hash, sizeof x->hash);
    return order ? order : x->line - y->line;
}

/* The same key twice: whose it is would depend on the order of lines. Sorts them. */
static int check_twice(pl_http_key *key, int32_t n, pl_err *err)
{
    qsort(key, (size_t)n, sizeof *key, by_hash);
    for (int32_t i = 1; i < n; i++)
        if (memcmp(key[i - 1].hash, key[i].hash, sizeof key->hash) == 0)
            return pl_fail(err, PL_EFORMAT, "keys: line %d, the key of line %d again", key[i].line, key[i - 1].line);
    return PL_OK;
}

int pl_http_keys(pl_http *h, const char *text, int64_t n, pl_err *err)
{
    int rc = PL_OK, number = 0;
    int32_t n_keys = 0, n_tenants, cap = 1;
    for (int64_t i = 0; i < n; i++) cap += text[i] == '\n';
    if (cap > MAX_KEYS) return pl_fail(err, PL_ELIMIT, "keys: %d lines, want at most %d", cap, MAX_KEYS);
    pl_http_key *key = calloc((size_t)cap, sizeof *key);
    pl_http_tenant *tenant = calloc(MAX_TENANTS, sizeof *tenant);
    if (!key || !tenant) {
        rc = pl_fail(err, PL_ENOMEM, "keys: no memory");
        goto done;
    }
    n_tenants = 0;
    if (h) pthread_mutex_lock(&h->lock);
    if (h && (n_tenants = h->n_tenants)) memcpy(tenant, h->tenant, (size_t)n_tenants * sizeof *tenant);
    if (h) pthread_mutex_unlock(&h->lock);
    for (const char *p = text, *stop = text + n; p < stop;) {
        const char *end = memchr(p, '\n', (size_t)(stop - p)), *word = p;
        if (!end) end = stop;
        number++;
        const size_t n_word = span(&word, end);
        const bool passed_over = n_word ? word[-(ptrdiff_t)n_word] == '#' : word == end;
        if (!passed_over) rc = read_line(h, &key[n_keys++], tenant, &n_tenants, p, end, number, err);
        if (rc < 0) goto done;
        p = end + 1;
    }
    if (n_keys == 0) {
        rc = pl_fail(err, PL_EFORMAT, "keys: none");
        goto done;
    }
    rc = check_twice(key, n_keys, err);
    if (rc < 0 || !h) goto done; /* !h: they are only looked at */
    pthread_mutex_lock(&h->lock);
    pl_http_key *old = h->key;
    pl_http_tenant *old_tenant = h->tenant;
    h->key = key, h->tenant = tenant;
    h->n_keys = n_keys, h->n_tenants = n_tenants;
    h->has_keys = true;
    pthread_mutex_unlock(&h->lock);
    key = old, tenant = old_tenant;
done:
    free(key);
    free(tenant);
    return rc;
}

int32_t pl_http_tenants(pl_http *h)
{
    pthread_mutex_lock(&h->lock);
    const int32_t n = h->n_tenants ? h->n_tenants : 1;
    pthread_mutex_unlock(&h->lock);
    return n;
}
