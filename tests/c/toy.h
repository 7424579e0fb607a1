#ifndef TOY_H
#define TOY_H
/* A toy model for tests of the engine: one layer of attention over the paged cache, then a head. */
#include "engine.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TOY static __attribute__((unused)) /* not every test needs every part */

enum { V = 50, D = 32, H = 2, HD = 16 };

typedef struct model {
    pl_dev *dev;
    pl_prog *prog;
    pl_kv *kv;
    pl_tensor table, head, freq;
} model;
static model m;
static pl_err err;

TOY int32_t op(const char *name)
{
    for (int32_t i = 0; i < pl_op_count(); i++)
        if (!strcmp(pl_op_name(i), name)) return i;
    ck_abort_msg("no op %s", name);
}

TOY int32_t value(int32_t ndim, int64_t a, int64_t b, int64_t c)
{
    const int32_t id = pl_prog_value(m.prog, PL_F32, ndim, (int64_t[]){a, b, c}, &err);
    ck_assert_int_ge(id, 0);
    return id;
}

TOY void call(const char *name, const int32_t *v, int32_t n, const pl_attr *a, int32_t n_attrs)
{
    ck_assert_msg(pl_prog_op(m.prog, op(name), v, n, a, n_attrs, 1, &err) == PL_OK, "%s", err.msg);
}

TOY void fill(pl_tensor *t, int64_t rows, int64_t cols, float scale)
{
    float *v = malloc((size_t)(rows * cols) * 4);
    for (int64_t i = 0; i < rows * cols; i++) v[i] = scale * ((float)(rand() % 2001) / 1000.0f - 1);
    ck_assert_int_eq(pl_tensor_new(t, m.dev, PL_F32, 2, (int64_t[]){rows, cols}, &err), PL_OK);
    ck_assert_int_eq(pl_tensor_set_f32(t, v, rows * cols, &err), PL_OK);
    free(v);
}

/* embed; q = k = v = rotated heads of it; attend; add; gather the wanted rows; head */
TOY void build(int32_t max_tokens, int32_t max_rows)
{
    ck_assert_int_eq(pl_prog_new(&m.prog, m.dev, &err), PL_OK);
    const int32_t table = pl_prog_const(m.prog, &m.table, &err), head = pl_prog_const(m.prog, &m.head, &err),
                  freq = pl_prog_const(m.prog, &m.freq, &err);
    const int32_t x = value(2, PL_DIM_T, D, 0), q = value(3, PL_DIM_T, H, HD), y = value(3, PL_DIM_T, H, HD),
                  sum = value(2, PL_DIM_T, D, 0), last = value(2, PL_DIM_R, D, 0), out = value(2, PL_DIM_R, V, 0);
    call("embed", (int32_t[]){x, table, PL_VALUE_IDS}, 3, (pl_attr[]){{.f = 1}}, 1);
    const int32_t heads = pl_prog_view(m.prog, x, 0, 3, (int64_t[]){PL_DIM_T, H, HD}, (int64_t[]){D, HD, 1}, &err);
    ck_assert_int_ge(heads, 0);
    call("rope", (int32_t[]){q, heads, PL_VALUE_POS, freq}, 4, (pl_attr[]){{.f = 1}, {.i = 0}}, 2);
    call("kv_append", (int32_t[]){q, heads}, 2, (pl_attr[]){{.i = 0}}, 1);
    call("attend", (int32_t[]){y, q}, 2, (pl_attr[]){{.i = 0}, {.f = 3}, {.i = 0}}, 3);
    const int32_t flat = pl_prog_view(m.prog, y, 0, 2, (int64_t[]){PL_DIM_T, D}, (int64_t[]){D, 1}, &err);
    ck_assert_int_ge(flat, 0);
    call("add", (int32_t[]){sum, x, flat}, 3, NULL, 0);
    call("gather", (int32_t[]){last, sum, PL_VALUE_ROWS}, 3, NULL, 0);
    call("linear", (int32_t[]){out, last, head, -1}, 4, (pl_attr[]){{.i = PL_ACT_F32}}, 1);
    ck_assert_msg(pl_prog_set_hidden(m.prog, sum, &err) == PL_OK, "%s", err.msg);
    ck_assert_msg(pl_prog_build(m.prog, out, max_tokens, max_rows, true, &err) == PL_OK, "%s", err.msg);
}

TOY void setup(void)
{
    srand(5);
    ck_assert_int_eq(pl_dev_open(&m.dev, &(pl_dev_opts){.n_threads = 2}, &err), PL_OK);
    fill(&m.table, V, D, 1);
    fill(&m.head, V, D, 1.5f);
    ck_assert_int_eq(pl_tensor_new(&m.freq, m.dev, PL_F32, 1, (int64_t[]){HD / 2}, &err), PL_OK);
    for (int i = 0; i < HD / 2; i++) ((float *)m.freq.data)[i] = powf(100, -2.0f * (float)i / HD);
    const pl_kv_opts o = {
        .layers = 1, .heads = H, .key_dim = HD, .value_dim = HD, .page = 16, .dtype = PL_F32, .n_pages = 64};
    ck_assert_int_eq(pl_kv_open(&m.kv, m.dev, &o, &err), PL_OK);
    build(64, 16);
}

TOY void teardown(void)
{
    pl_prog_free(m.prog);
    pl_kv_close(m.kv);
    pl_tensor_release(&m.table);
    pl_tensor_release(&m.head);
    pl_tensor_release(&m.freq);
    pl_dev_close(m.dev);
}

TOY pl_engine *engine_with(pl_engine_opts o)
{
    pl_engine *e = NULL;
    o.max_tokens = 64;
    o.n_vocab = V;
    ck_assert_int_eq(pl_engine_open(&e, m.prog, m.kv, &o, &err), PL_OK);
    return e;
}

TOY pl_engine *engine(int32_t max_requests) { return engine_with((pl_engine_opts){.max_requests = max_requests}); }

/* Plans the next tokens of all requests, at most `chunk` of each; false: there are none. */
TOY bool plan_all(pl_engine *e, int chunk)
{
    pl_queue q;
    pl_engine_look(e, &q);
    for (int32_t i = 0; i < q.n_running + q.n_waiting; i++) {
        const pl_request *r = i < q.n_running ? q.running[i] : q.waiting[i - q.n_running];
        const int32_t want = (int32_t)pl_min(pl_min(r->left, chunk), pl_engine_step_left(e));
        if (want) ck_assert_msg(pl_engine_plan(e, r->id, want, &err) == PL_OK, "%s", err.msg);
    }
    return q.n_running + q.n_waiting > 0;
}

TOY const pl_request *request(pl_engine *e, int64_t id)
{
    pl_queue q;
    pl_engine_look(e, &q);
    for (int32_t i = 0; i < q.n_running; i++)
        if (q.running[i]->id == id) return q.running[i];
    for (int32_t i = 0; i < q.n_waiting; i++)
        if (q.waiting[i]->id == id) return q.waiting[i];
    return NULL;
}

TOY int64_t submit(pl_engine *e, int n_prompt, int salt, int max_out, float temperature)
{
    int32_t prompt[200];
    int64_t id = 0;
    for (int i = 0; i < n_prompt; i++) prompt[i] = (i * 7 + salt * 13) % V;
    const pl_request_opts o = {
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_out = max_out,
        .sample = {.temperature = temperature, .top_p = 1, .repetition = 1, .seed = (uint64_t)salt, .n_logprobs = 0}};
    ck_assert_msg(pl_engine_submit(e, &o, &id, &err) == PL_OK, "%s", err.msg);
    return id;
}
/* For tests with a disk tier: a directory, and the file that the tier makes in it. */
static __attribute__((unused)) char dir[] = "/tmp/perilune-toy-XXXXXX", file[64];
TOY void setup_with_disk(void)
{
    setup();
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/perilune.pages", dir);
}
TOY void teardown_with_disk(void)
{
    unlink(file);
    rmdir(dir);
    teardown();
}
#endif
