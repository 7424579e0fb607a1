/* http_head.c: what a request's head may be, the line that a request leaves in the log, and answers that are errors.
 * libmicrohttpd lets through what another server on the way may read otherwise (two lengths, a length beside chunks, names
 * with blanks): such a request is refused, and its connection closed. */
#include "http.h"
#include "tok_impl.h"
#include <ctype.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static bool is_name_char(uint8_t c) { return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c)); }

static bool is_plain(const char *s, size_t n) /* a header's value: no control characters */
{
    for (size_t i = 0; i < n; i++)
        if (((uint8_t)s[i] < 0x20 && s[i] != '\t') || s[i] == 0x7f) return false;
    return true;
}

static void keep(char *out, size_t cap, const char *value, size_t n)
{
    while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) n--; /* no part of a header's value */
    if (n >= cap) n = 0;                                            /* too long to mean anything here */
    memcpy(out, value, n);
    out[n] = 0;
}

typedef struct reading {
    pl_http_head *head;
    pl_http_conn *conn;
} reading;

static enum MHD_Result read_header(void *cls, enum MHD_ValueKind kind, const char *name, size_t n_name,
                                   const char *value, size_t n_value)
{
    pl_http_head *head = ((reading *)cls)->head;
    pl_http_request *r = &((reading *)cls)->conn->req;
    (void)kind;
    if (!head->last || (uintptr_t)name != (uintptr_t)head->last + 2) head->is_bad = true;
    head->last = value ? value + n_value : NULL;
    if (!value) value = "", n_value = 0;
    head->n++;
    head->bytes += (int64_t)(n_name + n_value) + 4;
    if (n_name == 0 || !is_plain(value, n_value)) head->is_bad = true;
    for (size_t i = 0; i < n_name; i++)
        if (!is_name_char((uint8_t)name[i])) head->is_bad = true;
    if (!strcasecmp(name, "content-length")) {
        head->n_length++;
        head->length = 0;
        if (n_value == 0 || n_value > 15) head->is_bad = true;
        for (size_t i = 0; i < n_value && i < 16; i++) {
            if (!isdigit((uint8_t)value[i])) head->is_bad = true;
            head->length = head->length * 10 + (value[i] - '0');
        }
    } else if (!strcasecmp(name, "transfer-encoding")) {
        head->n_coding++;
        if (strcasecmp(value, "chunked") != 0) head->is_bad = true;
    } else if (!strcasecmp(name, "host")) {
        head->n_host++;
    } else if (!strcasecmp(name, "authorization")) {
        head->n_auth++;
        keep(head->auth, sizeof head->auth, value, n_value);
    } else if (!strcasecmp(name, "content-type")) {
        keep(r->type, sizeof r->type, value, n_value);
    } else if (!strcasecmp(name, "x-request-id")) {
        for (size_t i = 0; i < n_value; i++)
            if (!isalnum((uint8_t)value[i]) && !strchr("-_.", value[i])) n_value = 0;
        keep(r->request_id, sizeof r->request_id, value, n_value);
    }
    return MHD_YES;
}

/* The library takes a line that begins with a colon for the empty line that ends the head, and what follows for the next
 * request; and CR or LF alone for the end of a line. Both are ways to smuggle a request past a proxy that reads otherwise.
 * Method, version, names and values lie in its buffer as they were sent: between two headers there has to be one line end
 * of two bytes, and between the last one and the end of the head, whose length it counts from the method, two, all
 * zeroes by now. A colon, or a NUL, and LF alone cannot be told from CR and LF there: `has_more` sees what would follow. */
void pl_http_parse_head(struct MHD_Connection *mhd, pl_http_conn *c, const char *method, const char *version,
                        pl_http_head *head)
{
    *head = (pl_http_head){.length = -1, .last = version + strlen(version)};
    MHD_get_connection_values_n(mhd, MHD_HEADER_KIND, read_header, &(reading){head, c});
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    head->size = i ? (int64_t)i->header_size : 0;
    if (!head->last || (int64_t)((uintptr_t)head->last - (uintptr_t)method) + 4 != head->size ||
        memcmp(head->last, (char[4]){0}, 4) != 0)
        head->is_bad = true;
    /* likewise between method, target and version: a NUL in a target would end it */
    if (c->target && (uintptr_t)version - (uintptr_t)method != strlen(method) + strlen(c->target) + 2)
        head->is_bad = true;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The target as it was sent, into path and query. */
static bool split_target(pl_http_request *r, const char *target)
{
    size_t n = 0;
    const char *p = target;
    if (*p != '/') return false;
    for (const char *q = p; *q; q++)
        if ((uint8_t)*q <= 0x20 || (uint8_t)*q >= 0x7f) return false;
    for (; *p && *p != '?'; p++) {
        uint8_t c = (uint8_t)*p;
        if (c == '%') {
            const int high = hex(p[1]), low = high < 0 ? -1 : hex(p[2]);
            if (low < 0) return false;
            c = (uint8_t)(high << 4 | low);
            p += 2;
        }
        if (c < 0x20 || c == 0x7f || c == '#' || n + 1 >= sizeof r->path) return false;
        r->path[n++] = (char)c;
    }
    r->path[n] = 0;
    if (pl_utf8_valid(r->path, (int64_t)n) != (int64_t)n) return false;
    if (*p == '?') p++;
    n = strlen(p);
    if (n >= sizeof r->query) return false;
    memcpy(r->query, p, n + 1);
    return true;
}

pl_http_refusal pl_http_check_head(const pl_http *h, pl_http_conn *c, const char *method, const char *version,
                                   pl_http_head *head)
{
    const bool new = !strcmp(version, "HTTP/1.1");
    keep(c->req.method, sizeof c->req.method, method, strlen(method));
    head->is_bad = head->is_bad || !*method;
    for (const char *p = method; *p; p++) head->is_bad = head->is_bad || !is_name_char((uint8_t)*p);
    if (!new &&strcmp(version, "HTTP/1.0") != 0) return (pl_http_refusal){505, "want HTTP/1.1"};
    if (!c->target || strlen(c->target) > HTTP_MAX_TARGET) return (pl_http_refusal){414, "the path is too long"};
    if (head->n > h->o.max_headers) return (pl_http_refusal){431, "too many headers"};
    if (head->bytes > h->o.header_bytes) return (pl_http_refusal){431, "the headers are too long"};
    if (head->is_bad || head->n_length > 1 || head->n_coding > 1 || head->n_auth > 1)
        return (pl_http_refusal){400, "the head is malformed"};
    if (head->n_coding && (head->n_length || !new))
        return (pl_http_refusal){400, "Transfer-Encoding beside Content-Length, or in HTTP/1.0"};
    if (new ? head->n_host != 1 : head->n_host > 1) return (pl_http_refusal){400, "want one Host header"};
    if (!split_target(&c->req, c->target)) return (pl_http_refusal){400, "the path is malformed"};
    if (head->length > h->o.body_bytes) return (pl_http_refusal){413, "the body is too long"};
    return (pl_http_refusal){0};
}

enum { ERROR_BYTES = 256 };
static int error_text(char *out, unsigned status, const char *why)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 429 ? "rate_limit_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";
    return snprintf(out, ERROR_BYTES, "{\"error\":{\"code\":null,\"message\":\"%s\",\"param\":null,\"type\":\"%s\"}}",
                    why, type);
}

bool pl_http_tell(const pl_http *h, const pl_http_conn *c, unsigned status, const char *why)
{
    char body[ERROR_BYTES], text[3 * ERROR_BYTES], retry[40] = "", name[96] = "";
    if (h->tls) return false;
    const int n_body = error_text(body, status, why);
    if (status == 503) snprintf(retry, sizeof retry, "Retry-After: %d\r\n", h->retry_s);
    if (c->req.request_id[0]) snprintf(name, sizeof name, "X-Request-Id: %s\r\n", c->req.request_id);
    const int n = snprintf(text, sizeof text,
                           "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: application/json\r\n%s%s"
                           "Content-Length: %d\r\n\r\n%s",
                           status, MHD_get_reason_phrase_for(status), name, retry, n_body, body);
    (void)!send(c->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(c->fd, SHUT_WR);
    return true;
}

struct MHD_Response *pl_http_error(const pl_http *h, unsigned status, const char *why)
{
    char text[ERROR_BYTES], seconds[16];
    const int n = error_text(text, status, why);
    struct MHD_Response *r = MHD_create_response_from_buffer((size_t)n, text, MHD_RESPMEM_MUST_COPY);
    if (!r) return NULL;
    MHD_add_response_header(r, "Content-Type", "application/json");
    if (status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == 429 || status == 503) {
        snprintf(seconds, sizeof seconds, "%d", h->retry_s);
        MHD_add_response_header(r, "Retry-After", seconds);
    }
    return r;
}

/* A text as JSON writes it, quotes included; it is UTF-8, or came as printable ASCII. */
static int quoted(char *out, size_t cap, const char *s)
{
    size_t n = 0;
    out[n++] = '"';
    for (; *s && n + 8 < cap; s++) {
        if (*s == '"' || *s == '\\') out[n++] = '\\';
        if ((uint8_t)*s < 0x20 || (uint8_t)*s == 0x7f)
            n += (size_t)snprintf(out + n, cap - n, "\\u%04x", (uint8_t)*s);
        else
            out[n++] = *s;
    }
    out[n++] = '"';
    out[n] = 0;
    return (int)n;
}

/* One write of less than PIPE_BUF bytes, when poll says that it does not wait: a log that nobody reads loses lines, and
 * holds nobody up. */
void pl_http_log(pl_http *h, const pl_http_conn *c)
{
    char line[2048], path[1100], tenant[150], when[40];
    struct timespec now;
    struct tm day;
    if (h->o.log_fd < 0) return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &day);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &day);
    quoted(path, sizeof path, c->req.path);
    quoted(tenant, sizeof tenant, c->req.tenant_name);
    const int n = snprintf(
        line, sizeof line,
        "{\"time\":\"%s.%03ldZ\",\"id\":\"%s\",\"tenant\":%s,\"method\":\"%s\",\"path\":%s,\"status\":%u,"
        "\"bytes_in\":%lld,\"bytes_out\":%lld,\"seconds\":%.4f,\"end\":\"%s\"%s%s}\n",
        when, now.tv_nsec / 1000000, c->req.request_id, tenant, c->req.method, path, c->status, (long long)c->n_body,
        (long long)c->n_sent, pl_now_s() - c->began_s, c->why ? c->why : "complete", c->note[0] ? "," : "", c->note);
    struct pollfd p = {.fd = h->o.log_fd, .events = POLLOUT};
    if (n <= 0 || n >= (int)sizeof line || poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT) ||
        write(h->o.log_fd, line, (size_t)n) != n)
        h->m.log_dropped++;
}
