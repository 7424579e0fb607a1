/* products.c: several products of one x as one piece of work: x is made ready once for weights of one format, and threads
 * meet once, not after each. With a gate (SwiGLU, GeGLU) a thread goes on to the activation of what it has computed. Each
 * value is the one that the ops give one after another. */
#include "linear.h"
#include "rows.h"

typedef struct work {
    const pl_products *p;
    pl_linear_job job[PL_MAX_PRODUCTS];
    pl_row2_fn *gate; /* NULL: none, or not here */
} work;

/* Parts from..to of the first two products, then h = gate(y0, y1) where they lie. */
static void gated(const work *w, int64_t from, int64_t to, int thread)
{
    const pl_tensor *h = w->p->h, *a = w->p->y[0], *b = w->p->y[1];
    for (int i = 0; i < 2; i++) pl_linear_run(&w->job[i], from, to, thread);
    const pl_linear_cells first = pl_linear_cells_of(&w->job[0], from), last = pl_linear_cells_of(&w->job[0], to - 1);
    for (int64_t t = first.t0; t < first.t1; t++)
        w->gate(pl_row_f32(h, t) + first.n0, pl_row_f32(a, t) + first.n0, pl_row_f32(b, t) + first.n0,
                last.n1 - first.n0);
}

static void run(void *arg, int64_t from, int64_t to, int thread)
{
    const work *w = arg;
    if (w->gate) {
        const int64_t row = w->job[0].block_parts; /* parts side by side */
        for (int64_t end; from < to; from = end) {
            end = pl_min(to, (from / row + 1) * row);
            gated(w, from, end, thread);
        }
        return;
    }
    for (int32_t i = 0; i < w->p->n && from < to; i++) { /* from, to: of what is left */
        const int64_t n = pl_linear_parts(&w->job[i]), end = pl_min(to, n);
        if (from < end) pl_linear_run(&w->job[i], from, end, thread);
        from = pl_max(from - n, 0);
        to -= n;
    }
}

static pl_row2_fn *gate_of(const pl_stream *s, int32_t gate)
{
    return gate == PL_GATE_SWIGLU ? pl_row_ops_of(s)->swiglu : gate == PL_GATE_GEGLU ? pl_row_ops_of(s)->geglu : NULL;
}

/* The parts of two products are the same cells. */
static bool alike(const pl_linear_job *a, const pl_linear_job *b)
{
    return pl_linear_parts(a) > 0 && a->n == b->n && a->tokens == b->tokens && a->blocks == b->blocks &&
           a->token_parts == b->token_parts && a->block_parts == b->block_parts;
}

int pl_cpu_products(pl_stream *s, const pl_products *p, pl_err *err)
{
    PL_ASSERT(p->n >= 1 && p->n <= PL_MAX_PRODUCTS);
    work w = {.p = p};
    int64_t parts = 0;
    int rc = PL_OK;
    const pl_mark mark = pl_scratch_mark(s);
    for (int32_t i = 0; i < p->n && rc == PL_OK; i++) {
        rc = pl_linear_start(s, &w.job[i], i ? &w.job[i - 1] : NULL, p->y[i], p->x, p->w[i], p->b[i], p->act, err);
        parts += pl_linear_parts(&w.job[i]);
    }
    if (rc == PL_OK) {
        if (p->gate && p->h->dtype == PL_F32 && alike(&w.job[0], &w.job[1])) {
            w.gate = gate_of(s, p->gate);
            parts /= 2; /* each is of both */
        }
        pl_parallel(s, parts, 1, run, &w);
    }
    pl_scratch_release(s, mark);
    if (rc < 0 || !p->gate || w.gate) return rc;
    return pl_each_row2(s, "gate", gate_of(s, p->gate), p->h, p->y[0], "gate", p->y[1], "up", err);
}
