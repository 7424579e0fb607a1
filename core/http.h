#ifndef PL_HTTP_H
#define PL_HTTP_H
/* The HTTP server's inside, shared by http.c (what Lua calls), http_conn.c (what libmicrohttpd calls, and the watch over
 * connections), http_head.c (is a request what it should be) and http_keys.c (who sends it). One lock guards everything;
 * it is held for as long as it takes to copy a buffer, so that the engine's thread never waits for a client. */
#include "base.h"
#include <microhttpd.h>
#include <pthread.h>

enum { HTTP_IDLE, HTTP_READING, HTTP_WAITING, HTTP_STREAMING, HTTP_SENDING }; /* state of a connection */

typedef struct pl_http_tenant {
    char name[64];
} pl_http_tenant;
typedef struct pl_http_key {
    uint8_t hash[32];
    int32_t tenant, line; /* line: of its file */
} pl_http_key;

/* A connection, and the request on it. A request that the engine knows of is `taken` until it is answered, or until Lua
 * has heard that its client is gone. */
typedef struct pl_http_conn {
    struct MHD_Connection *mhd;
    int fd, state;
    int32_t slot;
    int64_t id; /* of the request; 0: none */
    double deadline_s, began_s;
    char *target; /* as it was sent, until its head is complete */
    pl_http_request req;
    char *body;
    int64_t n_body, body_cap;
    int refused;                 /* status that the body has earned, 0: none */
    bool told;                   /* and its client has it already */
    struct MHD_Response *answer; /* until it is queued */
    unsigned status;
    bool is_due, closes;
    char *out;              /* [out_cap] of which out_n from out_at are to be sent */
    int64_t n_head, n_read; /* bytes of its head; of the requests before it on its connection */
    int64_t out_at, out_n, out_cap, n_sent, n_answer;
    bool settled, suspended, watched, queued, taken;
    bool dead;        /* nothing more is sent: the connection closes */
    bool ended;       /* the answer is complete */
    bool half_closed; /* the client sends nothing more */
    bool is_old;      /* HTTP/1.0 */
    bool is_events;   /* its answer is a stream of events */
    bool is_extra;    /* one more than are served: it is told so */
    bool is_last;     /* nothing may follow it on its connection */
    const char *why;  /* how it ended, for the log; NULL: complete */
    char note[256];
    struct pl_http_conn *next, *prev; /* the line of requests that nobody has taken */
} pl_http_conn;

struct pl_http {
    pl_http_opts o;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    pthread_t watcher;
    int epoll_fd, stop_fd, news_fd, listen_fd;
    int32_t port;
    bool watching, news, draining, closing, tls;
    pl_http_conn **conn;       /* [n_slots] */
    int32_t *unused;           /* [n_unused] slots */
    int32_t n_unused, n_slots; /* HTTP_EXTRA more than are served */
    int64_t n_ids;
    pl_http_conn *first, *last;      /* requests that nobody has taken */
    int64_t *gone;                   /* [n_gone] from gone_at, a ring of max_requests */
    int32_t gone_at, n_gone, n_open; /* n_open: in line, taken, or gone and not yet told */
    char *held;                      /* the body that Lua looks at */
    int64_t n_held, n_bodies;        /* n_bodies: of all connections */
    pl_http_key *key;                /* [n_keys] */
    int32_t n_keys, n_tenants;
    pl_http_tenant *tenant; /* [n_tenants] */
    bool has_keys;
    uint8_t secret[32];    /* keys are compared as hashes under it */
    double beat_s, step_s; /* 0: never */
    bool ready;
    int32_t retry_s;
    pl_http_stats m;
};

enum { HTTP_EXTRA = 64 }; /* connections beyond the limit, to be told so */

/* http_head.c */
enum { HTTP_MAX_TARGET = 1024 };
typedef struct pl_http_head {
    int64_t bytes, size; /* size: of the whole head */
    int32_t n, n_length, n_coding, n_host, n_auth;
    bool is_bad, has_length;
    int64_t length;   /* Content-Length, or -1 */
    const char *last; /* where the last header ends */
    char auth[256];
} pl_http_head;
typedef struct pl_http_refusal {
    unsigned status; /* 0: none */
    const char *why;
} pl_http_refusal;
pl_http_refusal pl_http_check_head(const pl_http *h, pl_http_conn *c, const char *method, const char *version,
                                   pl_http_head *head);
void pl_http_parse_head(struct MHD_Connection *mhd, pl_http_conn *c, const char *method, const char *version,
                        pl_http_head *head);
void pl_http_log(pl_http *h, const pl_http_conn *c);
struct MHD_Response *pl_http_error(const pl_http *h, unsigned status, const char *why);
/* An error past the library, where that takes none or would send its own; what it sends later goes nowhere. Not under TLS. */
bool pl_http_tell(const pl_http *h, const pl_http_conn *c, unsigned status, const char *why);

/* http_keys.c */
int32_t pl_http_tenant_of(const pl_http *h, const char *auth); /* of an Authorization header; -1: none */

/* http_conn.c */
int pl_http_start(pl_http *h, pl_err *err); /* the daemon and the watch, on listen_fd */
void pl_http_lost(pl_http *h, pl_http_conn *c, const char *why);
void pl_http_resume(pl_http_conn *c);
void pl_http_out_of_line(pl_http *h, pl_http_conn *c);
PL_MUST int pl_http_append(pl_http *h, pl_http_conn *c, const void *data, int64_t n); /* PL_EFULL: over the bound */
typedef struct pl_http_stream {
    pl_http *http;
    int64_t id;
} pl_http_stream;
ssize_t pl_http_read(void *cls, uint64_t at, char *out, size_t cap);
void pl_http_show(pl_http *h); /* news_fd is readable while there is something to take */
#endif
