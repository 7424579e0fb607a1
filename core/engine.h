#ifndef PL_ENGINE_H
#define PL_ENGINE_H
/* The engine's inside, shared by sched.c (who is there, who is planned) and engine.c (the step). */
#include "metrics.h"
#include "prefix.h"
#include "prog.h"
#include "tier.h"

typedef struct slot {
    int32_t *token; /* [cap] prompt, then answer */
    int32_t cap, n;
    int32_t *stop; /* [n_stop] */
    int32_t n_stop;
    pl_key *key; /* [n_keys] of full pages of the known tokens */
    int32_t n_keys, key_cap;
    int32_t n_public; /* pages of its sequence that the prefix cache knows */
    pl_key root;
    uint64_t ticket;  /* of the pages that are being loaded for it */
    int32_t fetched;  /* one more than the pages that were cached when it last asked the tiers; 0: it has not */
    int32_t n_swap;   /* it was preempted, and so many of its pages are to be copied out before others */
    int32_t furthest; /* tokens in the cache when it was preempted with most of them */
    int32_t planned;  /* its entry in the plan, -1: none */
    double last_s;    /* of the last token */
    int32_t *bias_id; /* own copies, that sample points to */
    float *bias;
    int32_t embed, n_embed;  /* PL_EMBED_*, values wanted */
    double *sum;             /* [width] of an embedding: its hidden states so far */
    int32_t n_bias, min_out; /* below min_out tokens its stop tokens are out of the question, as biases behind n_bias */
    pl_sample_opts sample;
} slot;

typedef struct tenant {
    double served;  /* tokens */
    int32_t n_open; /* requests waiting or running */
} tenant;

typedef struct queue {
    const pl_request **request; /* [cap], by priority, then by age */
    int32_t n, cap;
} queue;

struct pl_engine {
    pl_engine_opts o;
    pl_cost cost;
    pl_prog *prog; /* NULL: simulated */
    pl_kv *kv;
    pl_prefix *prefix;                /* NULL: none */
    pl_tier *tier;                    /* NULL: none */
    int32_t n_swaps;                  /* requests with n_swap */
    double prefill_tokens, prefill_s; /* of steps that were mostly prompts */
    double clock_s;                   /* simulated */
    pl_request *req;                  /* [max_requests] what policies read */
    slot *slot;                       /* [max_requests] */
    int32_t *unused;                  /* [n_unused] slots */
    int32_t n_unused;
    tenant *tenant;                 /* [n_tenants] */
    queue running, waiting, coming; /* coming: their prompts are still texts */
    const pl_request **seen;        /* [max_requests] as the step begins: those that run, then those that wait */
    int64_t n_submitted;
    int64_t kept;        /* the request that is not preempted any more; it may have ended */
    int32_t n_deadlines; /* open requests that have one */
    pl_span *span;       /* the plan: [n_plan] */
    int32_t *who;        /* [n_plan] slot of each span */
    int64_t *need;       /* [n_plan] pages of each, beyond those held */
    int32_t n_plan, plan_tokens;
    int64_t plan_pages;  /* that the plan needs beyond those held */
    int32_t *ids, *rows; /* [max_tokens], [max_rows] */
    int32_t width;       /* of hidden states, 0: the program keeps none */
    float **vector;      /* [max_requests][width] embeddings; NULL until a place has its first */
    pl_hold *hold;       /* [n_pages] scratch */
    float *scratch;      /* [n_vocab] */
    pl_event *event;     /* [event_cap] */
    int32_t n_events, event_cap;
    double scrub_s; /* time that the scrub may still take */
    bool stepped;   /* the events are of a step that ended */
    pl_metrics m;
    pl_prof *prof; /* NULL: no trace */
};

/* sched.c */
int32_t pl_sched_find(const pl_engine *e, int64_t id); /* slot of a request that waits or runs, -1: none */
void pl_sched_finish(pl_engine *e, int32_t i, int32_t why);
void pl_sched_post(pl_engine *e, int32_t i, const pl_sampled *s); /* s NULL: no token */
void pl_sched_publish(pl_engine *e, int32_t i);                   /* its full pages become known to the prefix cache */
void pl_sched_forget(pl_engine *e);                               /* the plan is empty again */
void pl_sched_landed(pl_engine *e);                               /* copies to and from tiers may have ended */
void pl_sched_spill(pl_engine *e);                                /* and others may begin */
void pl_sched_clear(slot *s);

/* embedding.c */
int pl_embedding_check(const pl_engine *e, const pl_request_opts *o, pl_err *err);
int pl_embedding_reserve(pl_engine *e, int32_t i, const pl_request_opts *o, pl_err *err);
void pl_embedding_begin(const pl_engine *e, int32_t i); /* from its first token */
/* n tokens of it were computed: hidden[n, width]. After the last one: pl_embedding_end, which posts its event. */
void pl_embedding_add(const pl_engine *e, int32_t i, const float *hidden, int32_t n);
int pl_embedding_end(pl_engine *e, int32_t i, pl_err *err);
#endif
