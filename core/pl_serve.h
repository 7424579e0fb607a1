#ifndef PL_SERVE_H
#define PL_SERVE_H
/* The C ABI's second part: what a process that serves needs around the engine. Lua reads it behind pl.h, as one text. */
#include "pl.h"
#pragma GCC visibility push(default)
/* abi-begin */
/* mail: bounded queues of letters between threads: any number of senders, any number of takers. */
typedef struct pl_mail pl_mail;
typedef struct pl_letter {
    int64_t id;
    int32_t kind;
    int32_t code; /* of a question: its options; of an answer: PL_OK or what went wrong, which the text says */
    int64_t n;
    char *data; /* [n], and a NUL behind */
} pl_letter;
int pl_mail_open(pl_mail **out, int32_t cap, pl_err *err);
void pl_mail_free(pl_mail *m);  /* when no thread uses it any more */
void pl_mail_close(pl_mail *m); /* nothing goes in any more; what is there can be taken; nobody waits */
/* The data is copied. PL_EFULL: no room in that time; PL_ECLOSED. */
int pl_mail_put(pl_mail *m, const pl_letter *l, double timeout_s, pl_err *err);
/* 1: a letter, now the caller's; 0: none came in that time. PL_ECLOSED: none will come. */
int pl_mail_take(pl_mail *m, pl_letter *out, double timeout_s, pl_err *err);
int32_t pl_mail_drop(pl_mail *m, int64_t id); /* letters with that id that nobody has taken are gone; how many */
int32_t pl_mail_fd(const pl_mail *m);         /* readable while there is something to take, or the box is closed */
void pl_letter_free(pl_letter *l);

/* http: a server of HTTP/1.1 on threads of its own. Complete requests wait in line until Lua takes them between two
 * steps; answers are given as a whole, or as a stream that grows. No call waits for a client. A request is known by its
 * id; PL_ECANCEL: its client is gone, or it was given up. */
typedef struct pl_http pl_http;
typedef struct pl_http_opts {
    const char *address;     /* numeric; NULL: 127.0.0.1 */
    int32_t port;            /* 0: any free one */
    int32_t max_connections, /* one more gets /health, and a 503 for all else */
        max_requests;        /* complete ones that have no answer yet; more are told to come back */
    int32_t max_headers;
    int32_t log_fd; /* a JSON line for each request; -1: none */
    int64_t header_bytes;
    int64_t body_bytes;              /* of one request */
    int64_t bodies_bytes;            /* of all together */
    int64_t buffer_bytes;            /* of an answer that its client does not read; more, and the client is given up */
    double header_s, body_s, idle_s; /* until a request's head, then its body, is complete; a connection without one */
    double send_s;                   /* for an answer to be read; of a stream, without a byte being read */
    double stall_s;                  /* /health fails when no step has ended, or nobody has called, for so long */
    const char *cert, *key;          /* TLS: PEM texts; NULL: none */
} pl_http_opts;
enum { PL_HTTP_NONE = 0, PL_HTTP_REQUEST, PL_HTTP_GONE };
typedef struct pl_http_request {
    int64_t id;
    int32_t kind; /* PL_HTTP_*; of PL_HTTP_GONE only the id counts */
    int32_t tenant;
    char method[8], path[512], query[512]; /* path: decoded, UTF-8; query: as it was sent, behind the ? */
    char type[96], request_id[64], tenant_name[64];
    const char *body; /* [n_body] valid until the next pl_http_next */
    int64_t n_body;
} pl_http_request;
typedef struct pl_http_stats { /* since the server was opened */
    uint64_t connections, requests, refused, overloads, unauthorized, gone, slow, timeouts, log_dropped;
    uint64_t bytes_in, bytes_out;
    int64_t n_connections, n_open, max_connections; /* the last: fewer than wanted where descriptors are short */
} pl_http_stats;
void pl_http_defaults(pl_http_opts *o);
int pl_http_open(pl_http **out, const pl_http_opts *o, pl_err *err);
/* Stops at once: requests without an answer are cut off. */
void pl_http_close(pl_http *h);
/* No more connections; kept ones are closed when they are idle, and further requests on them are refused. */
void pl_http_drain(pl_http *h);
int32_t pl_http_port(const pl_http *h);
int32_t pl_http_fd(const pl_http *h); /* readable while there is something to take */
/* API keys, one a line: `key tenant`; empty lines and lines that begin with # are passed over. From now on every request
 * but /health needs one. A tenant keeps its number when keys are read again. h NULL: they are only looked at. */
int pl_http_keys(pl_http *h, const char *text, int64_t n, pl_err *err);
int32_t pl_http_tenants(pl_http *h); /* numbers given so far */
/* The next request, or the news that a request's client is gone; PL_HTTP_NONE after timeout_s, or when fd (-1: none) is
 * readable. */
int pl_http_next(pl_http *h, pl_http_request *out, int32_t fd, double timeout_s, pl_err *err);
/* headers: lines "Name: value\n", or NULL. */
int pl_http_answer(pl_http *h, int64_t id, int32_t status, const char *headers, const void *body, int64_t n,
                   pl_err *err);
int pl_http_begin(pl_http *h, int64_t id, int32_t status, const char *headers, pl_err *err);
int pl_http_send(pl_http *h, int64_t id, const void *data, int64_t n, pl_err *err); /* PL_EFULL: it does not read */
int pl_http_end(pl_http *h, int64_t id, pl_err *err);
void pl_http_note(pl_http *h, int64_t id, const char *json); /* `"name":value,...` for its line of the log */
/* What /health says; it is answered without Lua. stepped: a step has ended just now. */
void pl_http_beat(pl_http *h, bool ready, bool stepped);
void pl_http_get_stats(pl_http *h, pl_http_stats *out);

/* client: requests to HTTP servers, any number at a time, on the caller's thread. Answers are pulled as events: a head,
 * pieces of the body as they come, the end. Libcurl is opened with the first client. */
typedef struct pl_client pl_client;
typedef struct pl_client_opts {
    const char *url, *method; /* http or https; NULL: POST where there is a body, GET else */
    const char *headers;      /* lines "Name: value\n", or NULL */
    const char *token;        /* NULL, or sent as `Authorization: Bearer`, not to another host of a redirect */
    const void *body;         /* [n_body] copied; NULL: none */
    int64_t n_body;
    double connect_s, stall_s, total_s; /* at most, to connect, without a byte (whole seconds), in all; 0: any time */
    int32_t max_redirects;              /* from https to https only */
} pl_client_opts;
enum { PL_CLIENT_NONE = 0, PL_CLIENT_HEAD, PL_CLIENT_DATA, PL_CLIENT_END };
typedef struct pl_client_event {
    int64_t id;
    int32_t kind;     /* PL_CLIENT_* */
    int32_t status;   /* HEAD: of HTTP; END: 0, or libcurl's error, and data says why */
    double at_s;      /* when it came, as pl_now_s */
    const char *data; /* [n] valid until the next pl_client_next; HEAD: the answer's head as it was sent */
    int64_t n;
} pl_client_event;
int pl_client_open(pl_client **out, pl_err *err);
void pl_client_close(pl_client *c);
int pl_client_send(pl_client *c, const pl_client_opts *o, int64_t *id, pl_err *err);
void pl_client_cancel(pl_client *c, int64_t id); /* no event of it comes any more */
int pl_client_next(pl_client *c, pl_client_event *out, double timeout_s, pl_err *err); /* NONE after timeout_s */
int pl_sha256_file(const char *path, char *hex, pl_err *err);                          /* hex: [65] */

/* json: a text from outside before it is decoded: UTF-8, no key twice, not too deep, not too many values. */
int pl_json_check(const char *text, int64_t n, int32_t max_depth, int32_t max_values, pl_err *err);

/* socket: connections between processes of one user. Nothing waits; a group is readable while a member of it is. */
int pl_sock_listen(int32_t *fd, const char *path, pl_err *err); /* mode 0600; replaces one that nobody listens at */
int pl_sock_connect(int32_t *fd, const char *path, pl_err *err);
int32_t pl_sock_accept(int32_t fd);                      /* a connection, or PL_EBUSY */
int64_t pl_sock_read(int32_t fd, void *data, int64_t n); /* bytes; PL_EBUSY: none for now; PL_ECLOSED: none any more */
int64_t pl_sock_write(int32_t fd, const void *data, int64_t n);
void pl_sock_close(int32_t fd);
int pl_sock_watch(int32_t *group, int32_t fd, bool on, pl_err *err); /* *group < 0: a new one */

/* host: the process around the interpreter (the program and pl-lua have it, libpl does not) */
bool pl_host_interrupted(bool clear); /* Ctrl-C came; a second one before it is cleared ends the process */
/* Sleeps until fd (pl_mail_fd; -1: none) is readable: 1; the time is over: 0; Ctrl-C, which is not cleared: PL_ECANCEL. */
int pl_host_wait(int32_t fd, double timeout_s);
enum { PL_SIGHUP = 1, PL_SIGTERM = 15 };
int32_t pl_host_signals(int32_t sig); /* how often one of these came; not heeded before it is asked for */
bool pl_host_is_tty(int32_t fd);
void pl_host_trim(void);                 /* memory that was freed goes back to the system */
bool pl_host_may_wait(const char *path); /* who opens or reads it: a pipe, a socket, a device */
/* A file of n bytes, whole or not at all: written beside `path` under another name, which is then `path`. What is no
 * regular file (a device, a pipe) is written as it is. */
int pl_host_write(const char *path, const void *data, int64_t n, pl_err *err);
/* Holds a file, which is made if it is not there, for this process until pl_host_let_go. PL_EBUSY: another process holds
 * it, or it has lost its name meanwhile; try again. *fd: -1 where the file system has no locks. */
int pl_host_hold(int32_t *fd, const char *path, pl_err *err);
void pl_host_let_go(int32_t fd);
int pl_host_log(int32_t *fd, const char *path, pl_err *err); /* "-": stderr; NULL: nowhere; *fd >= 0: goes there now */
char *pl_line_read(const char *prompt, const char *completions); /* edited; NULL at the end; completions by "\n" */
void pl_line_free(char *line);
int pl_line_history(const char *file, bool write);

/* front: threads with an interpreter each, that answer letters while the engine goes on. Part of the program, as host. */
typedef struct pl_front pl_front;
typedef struct pl_front_opts {
    const char *module; /* one of the program's own: each thread runs require(module).run(in, out, tok, seed) */
    int32_t n_threads;
    pl_mail *in, *out; /* borrowed until the front is closed */
    const pl_tok *tok; /* likewise; NULL: none */
} pl_front_opts;
int pl_front_open(pl_front **out, const pl_front_opts *o, pl_err *err); /* returns when all have loaded the module */
void pl_front_close(pl_front *f); /* closes both boxes, waits for the letters that the threads are at, and ends them */
/* abi-end */
#pragma GCC visibility pop
#endif
