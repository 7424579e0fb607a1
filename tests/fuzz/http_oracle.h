#ifndef HTTP_ORACLE_H
#define HTTP_ORACLE_H
/* Requests as RFC 9112 has them, read strictly: what the server lets through must be what a strict proxy before it would
 * have seen. Nothing here is shared with the server. */
#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct oracle_request {
    char method[4200], path[1100], type[96];
    bool is_old, is_chunked, any_body; /* any_body: in chunks that are not right, which is for the server to judge */
    int64_t n_body, n_all;             /* bytes; n_all: of the whole request */
    char body[8192];
} oracle_request;

static inline int oracle_hex(uint8_t c) { return isdigit(c) ? c - '0' : isxdigit(c) ? tolower(c) - 'a' + 10 : -1; }

static inline bool oracle_token(uint8_t c) { return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c)); }

static inline bool oracle_path(oracle_request *r, const uint8_t *p, size_t n)
{
    size_t k = 0;
    if (n == 0 || *p != '/') return false;
    for (size_t i = 0; i < n && p[i] != '?'; i++) {
        int c = p[i];
        if (c == '%') {
            if (i + 2 >= n || oracle_hex(p[i + 1]) < 0 || oracle_hex(p[i + 2]) < 0) return false;
            c = oracle_hex(p[i + 1]) << 4 | oracle_hex(p[i + 2]);
            i += 2;
        }
        if (k + 1 >= sizeof r->path) return false;
        r->path[k++] = (char)c;
    }
    r->path[k] = 0;
    return true;
}

/* Does a line end here? 2: and with it the head. Beside CR and LF the library takes NUL and LF for it; and for the end of the
 * head all of four bytes that are two lines without anything before a NUL or a colon (core/README.md). */
static inline int oracle_line_end(const uint8_t *p, size_t n)
{
    int n_lines = 0;
    bool ends = n >= 4 && p[3] == '\n';
    for (int i = 0; i < 4 && ends; i++) {
        n_lines += p[i] == '\n';
        ends =
            p[i] == 0 || p[i] == '\n' || (p[i] == '\r' && p[i + 1] == '\n') || (p[i] == ':' && i && p[i - 1] == '\n');
    }
    return ends && n_lines == 2 ? 2 : n >= 2 && (p[0] == '\r' || p[0] == 0) && p[1] == '\n';
}

/* The head at the beginning of p[n]: its bytes, 0 where there is none that is whole and right. *length: of the body, or
 * -1. */
static inline size_t oracle_head(oracle_request *r, const uint8_t *p, size_t n, int64_t *length)
{
    size_t at = 0, from;
    int n_host = 0, n_coding = 0;
    memset(r, 0, offsetof(oracle_request, body));
    *length = -1;
    while (at < n && oracle_token(p[at])) at++;
    if (at == 0 || at == n || p[at] != ' ' || at >= sizeof r->method) return 0;
    memcpy(r->method, p, at);
    from = ++at;
    while (at < n && p[at] > 0x20 && p[at] < 0x7f) at++;
    if (at + 11 > n || !oracle_path(r, p + from, at - from)) return 0;
    if (memcmp(p + at, " HTTP/1.1", 9) != 0 && memcmp(p + at, " HTTP/1.0", 9) != 0) return 0;
    int end = oracle_line_end(p + at + 9, n - at - 9);
    if (!end) return 0;
    r->is_old = p[at + 8] == '0';
    at += 11;
    for (;;) {
        if (at + 2 > n) return 0;
        if (end == 2) break;
        const uint8_t *name = p + at;
        while (at < n && oracle_token(p[at])) at++;
        const size_t n_name = (size_t)(p + at - name);
        if (at == n || n_name == 0 || p[at++] != ':') return 0;
        while (at < n && (p[at] == ' ' || p[at] == '\t')) at++;
        const uint8_t *value = p + at;
        while (at < n && (p[at] >= 0x20 || p[at] == '\t') && p[at] != 0x7f) at++;
        size_t n_value = (size_t)(p + at - value);
        if (!(end = oracle_line_end(p + at, n - at))) return 0;
        at += 2;
        while (n_value && (value[n_value - 1] == ' ' || value[n_value - 1] == '\t')) n_value--;
        if (n_name == 4 && !strncasecmp((const char *)name, "host", 4)) n_host++;
        if (n_name == 12 && !strncasecmp((const char *)name, "content-type", 12)) {
            if (n_value >= sizeof r->type) n_value = 0;
            memcpy(r->type, value, n_value);
            r->type[n_value] = 0;
        }
        if (n_name == 14 && !strncasecmp((const char *)name, "content-length", 14)) {
            if (*length >= 0 || n_value == 0 || n_value > 15) return 0;
            *length = 0;
            for (size_t i = 0; i < n_value; i++) {
                if (!isdigit(value[i])) return 0;
                *length = *length * 10 + value[i] - '0';
            }
        }
        if (n_name == 17 && !strncasecmp((const char *)name, "transfer-encoding", 17)) {
            if (n_value != 7 || strncasecmp((const char *)value, "chunked", 7) != 0) return 0;
            n_coding++;
        }
    }
    if (r->is_old ? n_host > 1 : n_host != 1) return 0;
    if (n_coding > 1 || (n_coding && (*length >= 0 || r->is_old))) return 0;
    r->is_chunked = n_coding > 0;
    return at + 2;
}

/* A body in chunks; 0 where it is not whole and right. */
static inline size_t oracle_chunks(oracle_request *r, const uint8_t *p, size_t n)
{
    size_t at = 0;
    for (;;) {
        size_t size = 0, digits = 0;
        for (; at < n && oracle_hex(p[at]) >= 0 && digits < 8; at++, digits++)
            size = size << 4 | (size_t)oracle_hex(p[at]);
        if (digits == 0) return 0;
        while (at < n && p[at] != '\r' && p[at] != '\n') at++; /* extensions */
        if (at + 2 > n || p[at] != '\r' || p[at + 1] != '\n') return 0;
        at += 2;
        if (size == 0) break;
        if (size > n - at || n - at - size < 2 || p[at + size] != '\r' || p[at + size + 1] != '\n') return 0;
        if ((size_t)r->n_body + size > sizeof r->body) return 0;
        memcpy(r->body + r->n_body, p + at, size);
        r->n_body += (int64_t)size;
        at += size + 2;
    }
    while (at + 2 <= n && !(p[at] == '\r' && p[at + 1] == '\n')) { /* trailers */
        while (at < n && p[at] != '\r' && p[at] != '\n') at++;
        if (at + 2 > n || p[at] != '\r' || p[at + 1] != '\n') return 0;
        at += 2;
    }
    return at + 2 <= n ? at + 2 : 0;
}

/* The request at the beginning of p[n], empty lines before it passed over, which for the library are those too that begin with
 * NUL; false where there is none that is whole and right. */
static inline bool oracle_next(oracle_request *r, const uint8_t *p, size_t n)
{
    size_t skipped = 0;
    int64_t length;
    while (skipped < n && (p[skipped] == '\r' || p[skipped] == '\n' || p[skipped] == 0)) {
        const uint8_t *end = p[skipped] ? p + skipped : memchr(p + skipped, '\n', n - skipped);
        if (!end) return false;
        skipped = (size_t)(end - p) + 1;
    }
    p += skipped, n -= skipped;
    const size_t head = oracle_head(r, p, n, &length);
    if (head == 0) return false;
    size_t body = length > 0 ? (size_t)length : 0;
    if (r->is_chunked) {
        body = oracle_chunks(r, p + head, n - head);
        r->any_body = body == 0;
    } else if (body > n - head || body > sizeof r->body) {
        return false;
    } else {
        memcpy(r->body, p + head, body);
        r->n_body = (int64_t)body;
    }
    r->n_all = (int64_t)(skipped + head + body);
    return true;
}
#endif
