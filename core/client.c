/* client.c: requests to HTTP servers, many at a time, on one thread, by libcurl's multi interface. What comes back is
 * pulled as events, each with the time it came. libcurl is opened when the first client is: a process that only serves
 * never loads it, nor the forty libraries behind it. */
#include "base.h"
#include <curl/curl.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_HEAD = 1 << 16 }; /* bytes of an answer's head that are kept */

/* The functions of libcurl that are used. */
typedef struct curl_api {
    __typeof__(curl_global_init) *global_init;
    __typeof__(curl_global_cleanup) *global_cleanup;
    __typeof__(curl_easy_init) *easy_init;
    __typeof__(curl_easy_cleanup) *easy_cleanup;
    CURLcode (*setopt)(CURL *, CURLoption, ...);
    CURLcode (*getinfo)(CURL *, CURLINFO, ...);
    __typeof__(curl_easy_strerror) *strerror;
    __typeof__(curl_slist_append) *slist_append;
    __typeof__(curl_slist_free_all) *slist_free;
    __typeof__(curl_multi_init) *multi_init;
    __typeof__(curl_multi_cleanup) *multi_cleanup;
    __typeof__(curl_multi_add_handle) *add;
    __typeof__(curl_multi_remove_handle) *remove;
    __typeof__(curl_multi_perform) *perform;
    __typeof__(curl_multi_poll) *poll;
    __typeof__(curl_multi_info_read) *info;
    __typeof__(curl_multi_strerror) *multi_strerror;
} curl_api;

typedef struct call {
    pl_client *client;
    int64_t id;
    CURL *easy;
    struct curl_slist *headers;
    char *head; /* [n_head] of the answer that counts: the last one, after redirects */
    int64_t n_head;
    bool told; /* its head is among the events */
    char why[CURL_ERROR_SIZE];
    struct call *next;
} call;

typedef struct note {
    pl_client_event event;
    char *data;
    struct note *next;
} note;

struct pl_client {
    void *lib;
    curl_api curl;
    CURLM *multi;
    bool started;
    int64_t n_ids;
    call *calls;
    note *first, *last, *held; /* events to come; the one that the caller looks at */
};

static int load(pl_client *c, pl_err *err)
{
    const struct {
        const char *name;
        void *to;
    } fn[] = {
        {"curl_global_init", &c->curl.global_init},
        {"curl_global_cleanup", &c->curl.global_cleanup},
        {"curl_easy_init", &c->curl.easy_init},
        {"curl_easy_cleanup", &c->curl.easy_cleanup},
        {"curl_easy_setopt", &c->curl.setopt},
        {"curl_easy_getinfo", &c->curl.getinfo},
        {"curl_easy_strerror", &c->curl.strerror},
        {"curl_slist_append", &c->curl.slist_append},
        {"curl_slist_free_all", &c->curl.slist_free},
        {"curl_multi_init", &c->curl.multi_init},
        {"curl_multi_cleanup", &c->curl.multi_cleanup},
        {"curl_multi_add_handle", &c->curl.add},
        {"curl_multi_remove_handle", &c->curl.remove},
        {"curl_multi_perform", &c->curl.perform},
        {"curl_multi_poll", &c->curl.poll},
        {"curl_multi_info_read", &c->curl.info},
        {"curl_multi_strerror", &c->curl.multi_strerror},
    };
    c->lib = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (!c->lib) return pl_fail(err, PL_EIO, "client: libcurl is needed (Debian: libcurl4): %s", dlerror());
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++) {
        void *f = dlsym(c->lib, fn[i].name);
        if (!f) return pl_fail(err, PL_EIO, "client: libcurl.so.4 has no %s", fn[i].name);
        memcpy(fn[i].to, &f, sizeof f);
    }
    return PL_OK;
}

int pl_client_open(pl_client **out, pl_err *err)
{
    pl_client *c = calloc(1, sizeof *c);
    if (!c) return pl_fail(err, PL_ENOMEM, "client: no memory");
    int rc = load(c, err);
    if (rc < 0) goto done;
    c->started = c->curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    c->multi = c->started ? c->curl.multi_init() : NULL;
    if (!c->multi) rc = pl_fail(err, PL_ENOMEM, "client: libcurl does not start");
done:
    if (rc < 0) {
        pl_client_close(c);
        return rc;
    }
    *out = c;
    return PL_OK;
}

static void drop(pl_client *c, call *r)
{
    for (call **p = &c->calls; *p; p = &(*p)->next)
        if (*p == r) {
            *p = r->next;
            break;
        }
    if (r->easy) {
        c->curl.remove(c->multi, r->easy);
        c->curl.easy_cleanup(r->easy);
    }
    c->curl.slist_free(r->headers);
    free(r->head);
    free(r);
}

static void free_note(note *n)
{
    if (n) free(n->data);
    free(n);
}

void pl_client_close(pl_client *c)
{
    if (!c) return;
    while (c->calls) drop(c, c->calls);
    for (note *n = c->first, *next; n; n = next) {
        next = n->next;
        free_note(n);
    }
    free_note(c->held);
    if (c->multi) c->curl.multi_cleanup(c->multi);
    if (c->started) c->curl.global_cleanup();
    if (c->lib) dlclose(c->lib);
    free(c);
}

/* false: no memory. */
static bool tell(call *r, int32_t kind, int32_t status, const char *data, size_t n)
{
    note *t = calloc(1, sizeof *t);
    if (!t) return false;
    t->data = malloc(n + 1);
    if (!t->data) {
        free(t);
        return false;
    }
    memcpy(t->data, data, n);
    t->data[n] = 0;
    t->event = (pl_client_event){
        .id = r->id, .kind = kind, .status = status, .at_s = pl_now_s(), .data = t->data, .n = (int64_t)n};
    pl_client *c = r->client;
    if (c->last)
        c->last->next = t;
    else
        c->first = t;
    c->last = t;
    return true;
}

static bool tell_head(call *r)
{
    long status = 0;
    if (r->told) return true;
    r->client->curl.getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 0) return true;
    r->told = true;
    return tell(r, PL_CLIENT_HEAD, (int32_t)status, r->head ? r->head : "", (size_t)r->n_head);
}

static size_t on_head(char *data, size_t size, size_t n, void *arg)
{
    call *r = arg;
    n *= size;
    if (n >= 5 && !memcmp(data, "HTTP/", 5)) r->n_head = 0; /* of the next answer, after a redirect or a 100 */
    if (r->n_head + (int64_t)n > MAX_HEAD) return 0;
    if (!r->head) r->head = malloc(MAX_HEAD);
    if (!r->head) return 0;
    memcpy(r->head + r->n_head, data, n);
    r->n_head += (int64_t)n;
    return n;
}

static size_t on_data(char *data, size_t size, size_t n, void *arg)
{
    call *r = arg;
    return tell_head(r) && tell(r, PL_CLIENT_DATA, 0, data, n * size) ? n * size : 0;
}

static int add_header(pl_client *c, call *r, const char *line, size_t n, pl_err *err)
{
    char *text = strndup(line, n);
    struct curl_slist *more = text ? c->curl.slist_append(r->headers, text) : NULL;
    free(text);
    if (!more) return pl_fail(err, PL_ENOMEM, "client: no memory");
    r->headers = more;
    return PL_OK;
}

static int set_headers(pl_client *c, call *r, const pl_client_opts *o, pl_err *err)
{
    PL_TRY(add_header(c, r, "Expect:", 7, err)); /* no round trip before a long body */
    for (const char *at = o->headers; at && *at;) {
        const char *end = strchrnul(at, '\n');
        if (end > at) PL_TRY(add_header(c, r, at, (size_t)(end - at), err));
        at = *end ? end + 1 : end;
    }
    if (!o->token) return PL_OK;
    if (strpbrk(o->token, "\r\n")) return pl_fail(err, PL_EARG, "client: a token of more than one line");
    char *text = NULL;
    if (asprintf(&text, "Authorization: Bearer %s", o->token) < 0) return pl_fail(err, PL_ENOMEM, "client: no memory");
    const int rc = add_header(c, r, text, strlen(text), err); /* libcurl keeps it from other hosts of a redirect */
    free(text);
    return rc;
}

static int set_options(pl_client *c, call *r, const pl_client_opts *o, pl_err *err)
{
    const bool is_tls = !strncmp(o->url, "https://", 8);
    if (!is_tls && strncmp(o->url, "http://", 7) != 0)
        return pl_fail(err, PL_EARG, "client: '%.100s', want http://... or https://...", o->url);
    PL_TRY(set_headers(c, r, o, err));
    CURLcode rc = CURLE_OK;
#define SET(option, value) \
    if (rc == CURLE_OK) rc = c->curl.setopt(r->easy, option, value)
    SET(CURLOPT_URL, o->url);
    SET(CURLOPT_PROTOCOLS_STR, is_tls ? "https" : "http");
    SET(CURLOPT_REDIR_PROTOCOLS_STR, is_tls ? "https" : "http,https");
    SET(CURLOPT_FOLLOWLOCATION, o->max_redirects > 0 ? 1L : 0L);
    SET(CURLOPT_MAXREDIRS, (long)o->max_redirects);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_HTTPHEADER, r->headers);
    SET(CURLOPT_USERAGENT, "perilune/" PL_VERSION);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_HEADERFUNCTION, on_head);
    SET(CURLOPT_HEADERDATA, r);
    SET(CURLOPT_WRITEFUNCTION, on_data);
    SET(CURLOPT_WRITEDATA, r);
    SET(CURLOPT_PRIVATE, r);
    SET(CURLOPT_ERRORBUFFER, r->why);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(o->connect_s * 1000));
    SET(CURLOPT_TIMEOUT_MS, (long)(o->total_s * 1000));
    if (o->stall_s > 0) {
        SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
        SET(CURLOPT_LOW_SPEED_TIME, o->stall_s < 1 ? 1L : (long)o->stall_s);
    }
    if (o->body) {
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)o->n_body);
        SET(CURLOPT_COPYPOSTFIELDS, o->body);
    }
    if (o->method) SET(CURLOPT_CUSTOMREQUEST, o->method);
#undef SET
    if (rc != CURLE_OK) return pl_fail(err, PL_EARG, "client: %s", c->curl.strerror(rc));
    return PL_OK;
}

int pl_client_send(pl_client *c, const pl_client_opts *o, int64_t *id, pl_err *err)
{
    call *r = calloc(1, sizeof *r);
    if (!r) return pl_fail(err, PL_ENOMEM, "client: no memory");
    r->client = c;
    r->id = ++c->n_ids;
    r->next = c->calls;
    c->calls = r;
    r->easy = c->curl.easy_init();
    int rc = r->easy ? set_options(c, r, o, err) : pl_fail(err, PL_ENOMEM, "client: no memory");
    if (rc == PL_OK && c->curl.add(c->multi, r->easy) != CURLM_OK) rc = pl_fail(err, PL_ENOMEM, "client: no memory");
    if (rc < 0) {
        drop(c, r);
        return rc;
    }
    *id = r->id;
    int n;
    c->curl.perform(c->multi, &n); /* it goes out now, not at the next wait */
    return PL_OK;
}

void pl_client_cancel(pl_client *c, int64_t id)
{
    for (call *r = c->calls; r; r = r->next)
        if (r->id == id) {
            drop(c, r);
            break;
        }
    c->last = NULL;
    for (note **p = &c->first; *p;) {
        note *n = *p;
        if (n->event.id == id) {
            *p = n->next;
            free_note(n);
        } else {
            c->last = n;
            p = &n->next;
        }
    }
}

static int finish(pl_client *c, pl_err *err)
{
    int left;
    for (CURLMsg *m; (m = c->curl.info(c->multi, &left));) {
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode rc = m->data.result;
        call *r = NULL;
        c->curl.getinfo(m->easy_handle, CURLINFO_PRIVATE, &r);
        const char *why = rc == CURLE_OK ? "" : *r->why ? r->why : c->curl.strerror(rc);
        const bool ok = tell_head(r) && tell(r, PL_CLIENT_END, (int32_t)rc, why, strlen(why));
        drop(c, r);
        if (!ok) return pl_fail(err, PL_ENOMEM, "client: no memory");
    }
    return PL_OK;
}

int pl_client_next(pl_client *c, pl_client_event *out, double timeout_s, pl_err *err)
{
    free_note(c->held);
    c->held = NULL;
    for (int look = 0; look < 2 && !c->first; look++) {
        int n;
        CURLMcode rc = CURLM_OK;
        if (look > 0) rc = c->curl.poll(c->multi, NULL, 0, pl_ms(timeout_s), NULL);
        if (rc == CURLM_OK) rc = c->curl.perform(c->multi, &n);
        if (rc != CURLM_OK) return pl_fail(err, PL_EIO, "client: %s", c->curl.multi_strerror(rc));
        PL_TRY(finish(c, err));
    }
    note *t = c->first;
    if (!t) {
        *out = (pl_client_event){.kind = PL_CLIENT_NONE};
        return PL_OK;
    }
    c->first = t->next;
    if (!c->first) c->last = NULL;
    c->held = t;
    *out = t->event;
    return PL_OK;
}

int pl_sha256_file(const char *path, char *hex, pl_err *err)
{
    crypto_hash_sha256_state s;
    uint8_t sum[crypto_hash_sha256_BYTES];
    int rc = PL_OK;
    ssize_t n = 0;
    uint8_t *data = malloc(1 << 20);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (!data || fd < 0) {
        rc = pl_fail(err, PL_EIO, "%.160s: cannot be read", path);
        goto done;
    }
    crypto_hash_sha256_init(&s);
    while ((n = read(fd, data, 1 << 20)) > 0) crypto_hash_sha256_update(&s, data, (unsigned long long)n);
    if (n < 0) rc = pl_fail(err, PL_EIO, "%.160s: cannot be read", path);
    crypto_hash_sha256_final(&s, sum);
    sodium_bin2hex(hex, 2 * sizeof sum + 1, sum, sizeof sum);
done:
    if (fd >= 0) close(fd);
    free(data);
    return rc;
}
