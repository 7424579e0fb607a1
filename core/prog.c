/* prog.c: a program is values and ops over them. Building it lays all values out in one block of memory, in
 * which a value's place is free again after the last op that reads it; running it is a loop over the ops. */
#include "prog.h"
#include "dev.h"
#include "dtype.h"
#include "mem.h"
#include "sig.h"
#include <stdlib.h>

enum { MAX_ARGS = 12, MAX_ATTRS = 8, ALIGN = 64 };

typedef struct value {
    pl_tensor t; /* as of the last run; dims that vary hold PL_DIM_T or PL_DIM_R in `dim` below */
    int64_t dim[PL_MAX_DIMS];
    int32_t base;       /* of a view: the value it looks into, else -1 */
    int64_t offset;     /* of a view: elements into the base; else bytes into the block */
    int64_t bytes;      /* at the largest batch */
    int32_t born, dies; /* op numbers; dies: last reader */
    bool is_const;
} value;

typedef struct call {
    int32_t op, line, n_values, n_attrs;
    int32_t n_joined;        /* calls that run as one, from this one on; 0 or 1: it runs alone */
    int32_t value[MAX_ARGS]; /* -1: an input left out */
    pl_attr attr[MAX_ATTRS];
} call;

struct pl_prog {
    int32_t refs;
    pl_dev *dev;
    pl_coll *coll;
    value *value;
    int32_t n_values, value_cap;
    call *call;
    int32_t n_calls, call_cap;
    int32_t result, hidden, max_tokens, max_rows; /* hidden -1: none */
    int64_t bytes;
    uint8_t *block; /* [bytes] */
    int32_t *host;  /* ids [T], pos [T], rows [R] of the step, before they go to the device */
};

int pl_prog_new(pl_prog **out, pl_dev *dev, pl_err *err)
{
    pl_prog *p = calloc(1, sizeof *p);
    if (!p) return pl_fail(err, PL_ENOMEM, "program: no memory");
    p->refs = 1;
    p->dev = pl_dev_keep(dev);
    p->hidden = -1;
    const int64_t inputs[] = {PL_DIM_T, PL_DIM_T, PL_DIM_R};
    for (int i = 0; i < 3; i++) {
        const int rc = pl_prog_value(p, PL_I32, 1, &inputs[i], err);
        if (rc < 0) {
            pl_prog_free(p);
            return rc;
        }
    }
    *out = p;
    return PL_OK;
}

pl_prog *pl_prog_keep(pl_prog *p)
{
    if (p) __atomic_add_fetch(&p->refs, 1, __ATOMIC_RELAXED);
    return p;
}

void pl_prog_free(pl_prog *p)
{
    if (!p || __atomic_sub_fetch(&p->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    for (int32_t i = 0; i < p->n_values; i++)
        if (p->value[i].is_const) pl_tensor_release(&p->value[i].t);
    const pl_stream *s = p->dev ? &p->dev->stream : NULL;
    if (s && p->block) s->backend->free(s->impl, p->block, p->bytes);
    pl_dev_close(p->dev);
    free(p->value);
    free(p->call);
    free(p->host);
    free(p);
}

void pl_prog_set_coll(pl_prog *p, pl_coll *coll) { p->coll = coll; }

static int new_value(pl_prog *p, const value *v, pl_err *err)
{
    PL_TRY(pl_mem_grow((void **)&p->value, &p->value_cap, p->n_values + 1, sizeof *p->value, err));
    p->value[p->n_values] = *v;
    return p->n_values++;
}

static int check_dims(const char *what, int32_t ndim, const int64_t *dim, pl_err *err)
{
    if (ndim < 1 || ndim > PL_MAX_DIMS)
        return pl_fail(err, PL_ESHAPE, "program: %s of %d dimensions, want 1 to %d", what, ndim, PL_MAX_DIMS);
    for (int32_t i = 0; i < ndim; i++)
        if (dim[i] < (i ? 1 : PL_DIM_R) || dim[i] == 0 || dim[i] > INT32_MAX)
            return pl_fail(err, PL_ESHAPE, "program: dimension %d of a %s is %lld", i, what, (long long)dim[i]);
    return PL_OK;
}

int pl_prog_value(pl_prog *p, int32_t dtype, int32_t ndim, const int64_t *dim, pl_err *err)
{
    PL_TRY(check_dims("value", ndim, dim, err));
    if (!pl_dtype_valid(dtype) || pl_dtype_block(dtype) != 1)
        return pl_fail(err, PL_EDTYPE, "program: no values of format %d", dtype);
    value v = {.base = -1, .born = -1, .dies = -1};
    v.t = (pl_tensor){.dtype = dtype, .ndim = ndim, .dev = p->dev ? p->dev->stream.kind : PL_DEV_CPU};
    memcpy(v.dim, dim, sizeof *dim * (size_t)ndim);
    memcpy(v.t.dim, dim, sizeof *dim * (size_t)ndim);
    pl_dense_strides(ndim, dim, v.t.stride); /* only dim[0] varies, and no stride depends on it */
    return new_value(p, &v, err);
}

/* Elements from the first to one past the last that a shape with strides reaches, all rows counted as one. */
static bool reach(int32_t ndim, const int64_t *dim, const int64_t *stride, int64_t *out)
{
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) {
        int64_t step;
        if (dim[i] < 0) continue; /* T or R rows: checked against the base's own rows */
        if (!pl_mul(dim[i] - 1, stride[i], &step) || !pl_add_size(n, step, &n)) return false;
    }
    *out = n;
    return true;
}

int pl_prog_view(pl_prog *p, int32_t base, int64_t offset, int32_t ndim, const int64_t *dim, const int64_t *stride,
                 pl_err *err)
{
    PL_TRY(check_dims("view", ndim, dim, err));
    if (base < 0 || base >= p->n_values || p->value[base].is_const)
        return pl_fail(err, PL_EARG, "program: no value %d to look into", base);
    value v = p->value[base];
    if (v.base >= 0) { /* a view of a view looks into the first base */
        base = v.base;
        offset += v.offset;
        v = p->value[base];
    }
    /* a view has its base's rows, and stays within a row */
    int64_t in_row, row = v.t.stride[0];
    if (dim[0] != v.dim[0] || stride[0] != row || offset < 0 || !reach(ndim, dim, stride, &in_row) ||
        offset > row - in_row)
        return pl_fail(err, PL_ESHAPE, "program: a view leaves the rows of value %d", base);
    v.base = base;
    v.offset = offset;
    v.t.ndim = ndim;
    memcpy(v.dim, dim, sizeof *dim * (size_t)ndim);
    memcpy(v.t.dim, dim, sizeof *dim * (size_t)ndim);
    memcpy(v.t.stride, stride, sizeof *stride * (size_t)ndim);
    return new_value(p, &v, err);
}

int pl_prog_const(pl_prog *p, const pl_tensor *t, pl_err *err)
{
    if (!t->data) return pl_fail(err, PL_EARG, "program: a constant without data");
    value v = {.t = *t, .base = -1, .is_const = true};
    const int id = new_value(p, &v, err);
    if (id >= 0) pl_tensor_keep(&p->value[id].t);
    return id;
}

int pl_prog_op(pl_prog *p, int32_t op, const int32_t *val, int32_t n_values, const pl_attr *attr, int32_t n_attrs,
               int32_t line, pl_err *err)
{
    const pl_op_info *o = pl_op(op);
    if (!o) return pl_fail(err, PL_EARG, "program: no op %d", op);
    if (n_values != o->n_tensors || n_attrs != o->n_attrs)
        return pl_fail(err, PL_EARG, "program: %s has %d tensors and %d attributes, want %d and %d", o->name, n_values,
                       n_attrs, o->n_tensors, o->n_attrs);
    PL_ASSERT(n_values <= MAX_ARGS && n_attrs <= MAX_ATTRS);
    call c = {.op = op, .line = line, .n_values = n_values, .n_attrs = n_attrs};
    for (int32_t i = 0; i < n_values; i++) {
        c.value[i] = val[i];
        if (val[i] == -1 && i >= o->n_outs) continue;
        if (val[i] < 0 || val[i] >= p->n_values)
            return pl_fail(err, PL_EARG, "program: %s: no value %d", o->name, val[i]);
        value *v = &p->value[val[i]];
        value *whole = v->base >= 0 ? &p->value[v->base] : v;
        if (i < o->n_outs) {
            if (v->is_const || v->base >= 0 || v->born >= 0 || val[i] <= PL_VALUE_ROWS)
                return pl_fail(err, PL_EARG, "program: %s writes value %d, which is not a new one", o->name, val[i]);
            v->born = p->n_calls;
        } else if (!v->is_const) {
            const int32_t first = v->base >= 0 ? v->base : val[i];
            if (whole->born < 0 && first > PL_VALUE_ROWS)
                return pl_fail(err, PL_EARG, "program: %s reads value %d before it is written", o->name, val[i]);
            whole->dies = p->n_calls;
        }
    }
    for (int32_t i = 0; i < n_attrs; i++) c.attr[i] = attr[i];
    PL_TRY(pl_mem_grow((void **)&p->call, &p->call_cap, p->n_calls + 1, sizeof *p->call, err));
    p->call[p->n_calls++] = c;
    return PL_OK;
}

static int64_t rows_of(const pl_prog *p, int64_t dim)
{
    return dim == PL_DIM_T ? p->max_tokens : dim == PL_DIM_R ? p->max_rows : dim;
}

/* First fit over the values alive at the same time. Values are few hundred, so the plain way is fast enough. */
static int place(pl_prog *p, pl_err *err)
{
    p->bytes = 0;
    for (int32_t i = 0; i < p->n_values; i++) {
        value *v = &p->value[i];
        if (v->is_const || v->base >= 0) continue;
        if (i <= PL_VALUE_ROWS) v->born = 0, v->dies = p->n_calls;
        if (v->born < 0) continue;
        if (v->dies < v->born) v->dies = v->born;
        if (i == p->result || i == p->hidden) v->dies = p->n_calls;
        int64_t n = rows_of(p, v->dim[0]);
        for (int32_t k = 1; k < v->t.ndim; k++)
            if (!pl_mul(n, v->dim[k], &n))
                return pl_fail(err, PL_ELIMIT, "program: a value of more than 2^63 elements");
        if (!pl_mul(n, pl_dtype_bytes(v->t.dtype), &n))
            return pl_fail(err, PL_ELIMIT, "program: a value of more than 2^63 bytes");
        v->bytes = pl_round_up(n, ALIGN);
        int64_t at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int32_t k = 0; k < i; k++) {
                const value *u = &p->value[k];
                if (u->is_const || u->base >= 0 || u->born < 0 || u->born > v->dies || v->born > u->dies) continue;
                if (at < u->offset + u->bytes && u->offset < at + v->bytes) {
                    at = u->offset + u->bytes;
                    moved = true;
                }
            }
        }
        v->offset = at;
        p->bytes = pl_max(p->bytes, at + v->bytes);
    }
    return PL_OK;
}

/* Shapes against signatures, with sizes for T and R that nothing else has, so that they are never taken for another. */
static int check_shapes(pl_prog *p, pl_err *err)
{
    char somewhere; /* a value has no address yet; its shape is what counts */
    for (int32_t i = 0; i < p->n_values; i++) {
        value *v = &p->value[i];
        if (v->is_const) continue;
        if (v->dim[0] < 0) v->t.dim[0] = v->dim[0] == PL_DIM_T ? INT32_MAX : INT32_MAX - 1;
        v->t.data = &somewhere;
    }
    for (int32_t i = 0; i < p->n_calls; i++) {
        const call *c = &p->call[i];
        const pl_tensor *t[MAX_ARGS];
        for (int32_t k = 0; k < c->n_values; k++) t[k] = c->value[k] < 0 ? NULL : &p->value[c->value[k]].t;
        PL_TRY(pl_sig_check(pl_op(c->op)->name, pl_op(c->op)->sig, t, c->n_values, err));
    }
    return PL_OK;
}

/* Joined calls -------------------------------------------------------------------------------------------------
 * Products of one x that follow each other, and then an activation of two, run as one (pl_products). */

enum { Y, X, W, B }; /* values of a linear; of an activation: its result, gate and up */

static bool is(const call *c, const char *op) { return !strcmp(pl_op(c->op)->name, op); }
static int32_t gate_of(const call *c)
{
    return is(c, "swiglu") ? PL_GATE_SWIGLU : is(c, "geglu") ? PL_GATE_GEGLU : PL_GATE_NONE;
}

/* A product with weights that are there from the start: no call of a joined few waits for another. */
static bool is_product(const pl_prog *p, const call *c)
{
    if (!is(c, "linear")) return false;
    return p->value[c->value[W]].is_const && (c->value[B] < 0 || p->value[c->value[B]].is_const);
}

static int32_t joined_from(const pl_prog *p, int32_t i)
{
    const call *c = &p->call[i];
    if (!is_product(p, c)) return 1;
    int32_t n = 1;
    while (n < PL_MAX_PRODUCTS && i + n < p->n_calls && is_product(p, &c[n]) && c[n].value[X] == c->value[X] &&
           c[n].attr[0].i == c->attr[0].i)
        n++;
    const bool gated = n == 2 && i + n < p->n_calls && gate_of(&c[n]) && c[n].value[1] == c->value[Y] &&
                       c[n].value[2] == c[1].value[Y];
    return n + gated;
}

/* What joined calls write is in use from the first of them on: it takes no place of what one of them reads. */
static void join_calls(pl_prog *p)
{
    for (int32_t i = 0, n; i < p->n_calls; i += n) {
        n = joined_from(p, i);
        p->call[i].n_joined = n;
        for (int32_t k = 0; k < p->n_values && n > 1; k++)
            if (p->value[k].born > i && p->value[k].born < i + n) p->value[k].born = i;
    }
}

int pl_prog_set_hidden(pl_prog *p, int32_t i, pl_err *err)
{
    const value *v = i >= 0 && i < p->n_values ? &p->value[i] : NULL;
    if (!v || v->base >= 0 || v->born < 0)
        return pl_fail(err, PL_EARG, "program: hidden states: value %d is not the result of an op", i);
    if (v->t.ndim != 2 || v->dim[0] != PL_DIM_T || v->t.dtype != PL_F32)
        return pl_fail(err, PL_ESHAPE, "program: hidden states: want f32 [T,D]");
    if (p->block) return pl_fail(err, PL_EARG, "program: built already");
    p->hidden = i;
    return PL_OK;
}

const pl_tensor *pl_prog_hidden(const pl_prog *p) { return p->hidden < 0 ? NULL : &p->value[p->hidden].t; }

int pl_prog_build(pl_prog *p, int32_t result, int32_t max_tokens, int32_t max_rows, bool reserve, pl_err *err)
{
    if (result < 0 || result >= p->n_values || p->value[result].base >= 0 || p->value[result].born < 0)
        return pl_fail(err, PL_EARG, "program: value %d is not the result of an op", result);
    if (max_tokens < 1 || max_rows < 1 || max_rows > max_tokens)
        return pl_fail(err, PL_EARG, "program: %d tokens and %d rows, want 1 or more, no more rows than tokens",
                       max_tokens, max_rows);
    if (p->block) return pl_fail(err, PL_EARG, "program: built already");
    p->result = result;
    p->max_tokens = max_tokens;
    p->max_rows = max_rows;
    PL_TRY(check_shapes(p, err));
    join_calls(p);
    PL_TRY(place(p, err));
    if (!reserve) return PL_OK;
    const pl_stream *s = &p->dev->stream;
    p->block = s->backend->alloc(s->impl, p->bytes);
    p->host = malloc(((size_t)max_tokens * 2 + (size_t)max_rows) * sizeof *p->host);
    if (!p->block || !p->host)
        return pl_fail(err, PL_ENOMEM, "program: no memory for %lld bytes of activations", (long long)p->bytes);
    return PL_OK;
}

int64_t pl_prog_bytes(const pl_prog *p) { return p->bytes; }
int32_t pl_prog_n_ops(const pl_prog *p) { return p->n_calls; }

int32_t pl_prog_op_at(const pl_prog *p, int32_t i, int32_t *line)
{
    if (i < 0 || i >= p->n_calls) return PL_EARG;
    *line = p->call[i].line;
    return p->call[i].op;
}

static int check_batch(const pl_prog *p, const pl_batch *b, pl_err *err)
{
    if (!p->block) return pl_fail(err, PL_EARG, "program: not built");
    if (b->n_tokens < 1 || b->n_tokens > p->max_tokens)
        return pl_fail(err, PL_EARG, "program: %d tokens, want 1 to %d", b->n_tokens, p->max_tokens);
    if (b->n_rows < 0 || b->n_rows > p->max_rows)
        return pl_fail(err, PL_EARG, "program: %d rows wanted, at most %d", b->n_rows, p->max_rows);
    int64_t sum = 0;
    for (int32_t i = 0; i < b->n_spans; i++) sum += b->span[i].n;
    if (sum != b->n_tokens)
        return pl_fail(err, PL_EARG, "program: spans of %lld tokens, the batch has %d", (long long)sum, b->n_tokens);
    for (int32_t i = 0; i < b->n_rows; i++)
        if (b->rows[i] < 0 || b->rows[i] >= b->n_tokens)
            return pl_fail(err, PL_EARG, "program: row %d wanted of a batch of %d", b->rows[i], b->n_tokens);
    return PL_OK;
}

/* Addresses and row counts of all values for this batch. */
static void resolve(pl_prog *p, const pl_batch *b)
{
    for (int32_t i = 0; i < p->n_values; i++) {
        value *v = &p->value[i];
        if (v->is_const) continue;
        v->t.dim[0] = v->dim[0] == PL_DIM_T ? b->n_tokens : v->dim[0] == PL_DIM_R ? b->n_rows : v->dim[0];
        v->t.data = v->base < 0 ? p->block + v->offset
                                : (uint8_t *)p->value[v->base].t.data + v->offset * pl_dtype_bytes(v->t.dtype);
    }
}

static int copy_inputs(pl_prog *p, const pl_kv *kv, const pl_batch *b, pl_err *err)
{
    int32_t *ids = p->host, *pos = ids + b->n_tokens, *rows = pos + b->n_tokens;
    memcpy(ids, b->ids, (size_t)b->n_tokens * sizeof *ids);
    for (int32_t i = 0, t = 0; i < b->n_spans; i++)
        for (int32_t k = 0; k < b->span[i].n; k++) pos[t++] = (int32_t)(pl_kv_seq_len(kv, b->span[i].seq) + k);
    if (b->n_rows) memcpy(rows, b->rows, (size_t)b->n_rows * sizeof *rows);
    const pl_stream *s = &p->dev->stream;
    const struct {
        const int32_t *src;
        int32_t n;
    } in[] = {{ids, b->n_tokens}, {pos, b->n_tokens}, {rows, b->n_rows}};
    for (int i = 0; i < 3; i++) PL_TRY(s->backend->copy_in(s->impl, p->value[i].t.data, in[i].src, in[i].n * 4, err));
    return PL_OK;
}

/* What an op took; a device that only queues it is waited for. */
static int time_op(const pl_prog *p, float *s, double *mark, pl_err *err)
{
    const pl_stream *stream = &p->dev->stream;
    PL_TRY(stream->backend->sync(stream->impl, err));
    const double now = pl_now_s();
    *s = (float)(now - *mark);
    *mark = now;
    return PL_OK;
}

static pl_tensor *tensor_of(pl_prog *p, const call *c, int32_t k)
{
    return k >= c->n_values || c->value[k] < 0 ? NULL : &p->value[c->value[k]].t;
}

static int run_joined(pl_prog *p, const call *c, pl_err *err)
{
    const call *last = &c[c->n_joined - 1];
    pl_products j = {.gate = gate_of(last), .act = (int32_t)c->attr[0].i, .x = tensor_of(p, c, X)};
    j.n = c->n_joined - (j.gate != PL_GATE_NONE);
    if (j.gate) j.h = tensor_of(p, last, Y);
    for (int32_t i = 0; i < j.n; i++) {
        j.y[i] = tensor_of(p, &c[i], Y);
        j.w[i] = tensor_of(p, &c[i], W);
        j.b[i] = tensor_of(p, &c[i], B);
    }
    pl_stream *s = &p->dev->stream;
    return s->backend->products(s, &j, err);
}

/* The time of joined calls is divided as the rows of their weights are. */
static void divide_time(pl_prog *p, const call *c, float *op_s)
{
    const float all = op_s[c->n_joined - 1];
    int64_t rows = 0;
    for (int32_t i = 0; i < c->n_joined; i++) rows += gate_of(&c[i]) ? 0 : tensor_of(p, &c[i], W)->dim[0];
    for (int32_t i = 0; i < c->n_joined; i++)
        op_s[i] = gate_of(&c[i]) ? 0 : all * (float)tensor_of(p, &c[i], W)->dim[0] / (float)rows;
}

static int run_calls(pl_prog *p, pl_kv *kv, float *op_s, pl_err *err)
{
    const pl_op_env env = {kv, p->coll};
    const bool joins = p->dev->stream.backend->products;
    double mark = op_s ? pl_now_s() : 0;
    for (int32_t i = 0, n; i < p->n_calls; i += n) {
        call *c = &p->call[i];
        n = joins ? c->n_joined : 1;
        if (n > 1) {
            PL_TRY(run_joined(p, c, err));
        } else {
            pl_tensor *t[MAX_ARGS];
            for (int32_t k = 0; k < c->n_values; k++) t[k] = tensor_of(p, c, k);
            PL_TRY(pl_op(c->op)->run(&p->dev->stream, &env, t, c->attr, err));
        }
        if (!op_s) continue;
        PL_TRY(time_op(p, &op_s[i + n - 1], &mark, err));
        if (n > 1) divide_time(p, c, op_s + i);
    }
    return PL_OK;
}

int pl_prog_run_timed(pl_prog *p, pl_kv *kv, const pl_batch *b, pl_tensor *result, pl_prof *prof, pl_err *err)
{
    double mark = pl_prof_mark(prof);
    PL_TRY(check_batch(p, b, err));
    PL_TRY(pl_kv_begin(kv, b->span, b->n_spans, err));
    pl_stream *s = &p->dev->stream;
    if (s->backend->begin) s->backend->begin(s, b->n_tokens);
    resolve(p, b);
    int rc = copy_inputs(p, kv, b, err);
    pl_prof_part(prof, PL_PART_BEGIN, &mark);
    if (rc == PL_OK) rc = run_calls(p, kv, pl_prof_ops(prof), err);
    pl_prof_part(prof, PL_PART_OPS, &mark);
    if (rc < 0) {
        pl_kv_abort(kv);
        return rc;
    }
    const int refused = pl_kv_commit(kv, err);
    pl_prof_part(prof, PL_PART_COMMIT, &mark);
    if (refused < 0) return refused;
    *result = p->value[p->result].t;
    result->storage = NULL; /* borrowed: the block is the program's */
    return refused;
}

int pl_prog_run(pl_prog *p, pl_kv *kv, const pl_batch *b, pl_tensor *result, pl_err *err)
{
    return pl_prog_run_timed(p, kv, b, result, NULL, err);
}
