/* Is a request's head what it should be? libmicrohttpd's part is played by a reader that lets through all that it does, and
 * more: lines that end in LF alone, a line with a colon first for the end, names with anything. What is accepted then
 * has to be a head that a strict reader of the same bytes sees too. */
#include "fuzz.h"
#include "http.h"
#include "http_oracle.h"
#include <stdlib.h>

typedef struct loose {
    char *text; /* [n] as the library leaves it: NULs behind names and values */
    size_t n, head_size;
    char *method, *target, *version;
    struct {
        char *name, *value;
        size_t n_name, n_value;
    } header[128];
    int n_headers;
    union MHD_ConnectionInfo info;
} loose;

/* In place of the library's own. */
int MHD_get_connection_values_n(struct MHD_Connection *c, enum MHD_ValueKind kind, MHD_KeyValueIteratorN f, void *cls)
{
    const loose *l = (const loose *)(const void *)c;
    for (int i = 0; i < l->n_headers; i++)
        if (f(cls, kind, l->header[i].name, l->header[i].n_name, l->header[i].value, l->header[i].n_value) != MHD_YES)
            return i;
    return l->n_headers;
}
const union MHD_ConnectionInfo *MHD_get_connection_info(struct MHD_Connection *c, enum MHD_ConnectionInfoType what, ...)
{
    loose *l = (loose *)(void *)c;
    PL_ASSERT(what == MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    l->info.header_size = l->head_size;
    return &l->info;
}

static char *line(loose *l, size_t *at, size_t *n) /* the next one, ended by a NUL; NULL: there is none that is whole */
{
    char *s = l->text + *at, *end = memchr(s, '\n', l->n - *at);
    if (!end) return NULL;
    *at = (size_t)(end + 1 - l->text);
    *end = 0;
    if (end > s && end[-1] == '\r') *--end = 0;
    *n = (size_t)(end - s);
    return s;
}

static bool read_loosely(loose *l)
{
    size_t at = 0, n = 0;
    l->method = line(l, &at, &n);
    if (!l->method) return false;
    l->target = strchr(l->method, ' ');
    if (!l->target) return false;
    *l->target++ = 0;
    l->version = l->target + strcspn(l->target, " ");
    if (!*l->version) return false;
    *l->version++ = 0;
    for (;;) {
        char *s = line(l, &at, &n);
        if (!s) return false;
        if (n && *s == ':') *s = 0, n = 0;
        if (n == 0 || l->n_headers == 128) break;
        char *colon = memchr(s, ':', n), *value = colon;
        if (!colon) return false;
        *value++ = 0;
        while (*value == ' ' || *value == '\t') value++;
        const int i = l->n_headers++;
        l->header[i].name = s, l->header[i].n_name = (size_t)(colon - s);
        l->header[i].value = value, l->header[i].n_value = (size_t)(s + n - value);
        if (value > s + n) return false;
    }
    l->head_size = at;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static oracle_request want;
    int64_t length;
    loose l = {.text = malloc(size + 1), .n = size};
    pl_http h = {0};
    pl_http_conn c = {0};
    pl_http_head head;
    pl_http_defaults(&h.o);
    h.o.log_fd = -1;
    memcpy(l.text, data, size);
    l.text[size] = 0;
    if (read_loosely(&l)) {
        c.target = strndup(l.target, HTTP_MAX_TARGET + 1);
        pl_http_parse_head((void *)&l, &c, l.method, l.version, &head);
        const pl_http_refusal no = pl_http_check_head(&h, &c, l.method, l.version, &head);
        const size_t strict = oracle_head(&want, data, size, &length);
        if (no.status) {
            PL_ASSERT(no.status >= 400 && no.status < 600 && no.why);
        } else {
            PL_ASSERT(strict == l.head_size);
            PL_ASSERT(!strcmp(want.path, c.req.path) && head.length == length &&
                      want.is_chunked == (head.n_coding > 0));
            PL_ASSERT(strlen(want.method) >= sizeof c.req.method || !strcmp(want.method, c.req.method));
            for (const char *p = c.req.path; *p; p++) PL_ASSERT((uint8_t)*p >= 0x20);
            PL_ASSERT(pl_http_tenant_of(&h, head.auth) == -1);
        }
        for (const char *p = c.req.request_id; *p; p++) PL_ASSERT((uint8_t)*p > 0x20 && (uint8_t)*p < 0x7f);
        free(c.target);
    }
    free(l.text);
    return 0;
}
