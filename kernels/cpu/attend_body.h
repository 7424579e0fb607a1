/* attend_body.h: the pieces of attention (attend.h has the definition), in lanes of 16. Included once per instruction
 * set by a file that defines ATTEND_OPS, the name of the table.
 *
 * Both products are one routine, `chains`: rows of scalars a times a panel b of 16 lanes. For the scores the panel is
 * 16 keys, turned so that a lane is a key; for the values it is 32 positions, where a lane is a dim. A panel is made
 * once and meets all rows of its head, so the conversion from the cache's format is shared by the group
 * (attend_rows.h). BF16 and FP8 caches whose dims are multiples of 16 go by attend_direct.h instead. */
#include "attend_direct.h"
#include "cpu.h"

/* acc += (chain over even k) + (chain over odd k) for `rows` rows of a[.][n]; b[n][16] */
VF_INLINE void chains(int rows, int64_t n, const float *a, int64_t stride, const float *b, vf *acc)
{
    vf even[ROWS], odd[ROWS];
    VF_UNROLL for (int r = 0; r < rows; r++) even[r] = odd[r] = vf_set(0);
    for (int64_t k = 0; k < n; k += 2) {
        const vf v = vf_load(b + k * PL_LANES);
        VF_UNROLL for (int r = 0; r < rows; r++) even[r] = vf_fma(vf_set(a[r * stride + k]), v, even[r]);
    }
    for (int64_t k = 1; k < n; k += 2) {
        const vf v = vf_load(b + k * PL_LANES);
        VF_UNROLL for (int r = 0; r < rows; r++) odd[r] = vf_fma(vf_set(a[r * stride + k]), v, odd[r]);
    }
    VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_add(acc[r], vf_add(even[r], odd[r]));
}

/* out[rows][16] = dot products of q[rows][dim] with 16 keys[dim][16] */
VF_INLINE void scores_of(int rows, const float *q, int64_t dim, const float *keys, float *out)
{
    vf acc[ROWS];
    VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_set(0);
    for (int64_t d = 0; d < dim; d += STEP) chains(rows, pl_min(STEP, dim - d), q + d, dim, keys + d * PL_LANES, acc);
    VF_UNROLL for (int r = 0; r < rows; r++) vf_store(out + r * SCORE_STRIDE, acc[r]);
}

/* out[rows][16] (stride out_stride) += p[rows][n] times values[n][16] */
VF_INLINE void values_of(int rows, int64_t n, const float *p, const float *values, float *out, int64_t out_stride)
{
    vf acc[ROWS];
    VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = vf_load(out + r * out_stride);
    chains(rows, n, p, SCORE_STRIDE, values, acc);
    VF_UNROLL for (int r = 0; r < rows; r++) vf_store(out + r * out_stride, acc[r]);
}

static void scores(int rows, const float *q, int64_t dim, const float *keys, float *out)
{
    PL_ASSERT(rows <= ROWS);
    FOR_ROWS(scores_of, q, dim, keys, out)
}

static void values(int rows, int64_t n, const float *p, const float *panel, int64_t dim, float *out)
{
    PL_ASSERT(rows <= ROWS);
    for (int64_t c = 0; c < dim; c += PL_LANES) FOR_ROWS(values_of, n, p, panel + c * STEP, out + c, dim)
}

/* q of the block's rows, [rows][key_dim], rounded unless the cache is F32, times `up`. Returns the largest magnitude. */
static float load_queries(const pl_attend_job *j, const pl_attend_block *b, float up, float *q)
{
    const int64_t dim = j->kv->o.key_dim;
    vf top = vf_set(0);
    for (int64_t r = 0; r < b->heads * b->n * j->group; r++, q += dim) {
        const float *x = row_of(j, b, j->q, r);
        for (int64_t d = 0; d < dim; d += PL_LANES) {
            const vf v = vf_get(x + d, dim - d), w = j->kv->o.dtype == PL_F32 ? v : vf_bf16(v);
            top = vf_max(vf_max(w, vf_sub(vf_set(0), w)), top);
            vf_put(q + d, vf_mul(w, vf_set(up)), dim - d);
        }
    }
    return vf_top(top);
}

/* How a block goes through a chunk, keys or values: by attend_direct.h or by panels; up: q, or s of a head, is WORDS_UP
 * as large (a bit for each head of the block, the first one is bit 0). */
typedef struct route {
    bool direct;
    uint64_t up;
} route;

/* Scores of all rows with the chunk's keys; s[rows][SCORE_STRIDE] */
static void chunk_scores(const pl_attend_job *j, const pl_attend_block *b, int64_t base, range all, route by,
                         const float *q, float *panel, float *s)
{
    const pl_kv_opts *o = &j->kv->o;
    const int64_t per_head = b->n * j->group, dim = o->key_dim, stride = j->kv->key_bytes, head = stride / o->heads;
    const int64_t group = row_group(per_head), ahead = (AHEAD - 1) / (PL_LANES * head) + 1;
    for (int64_t t = all.lo / PL_LANES * PL_LANES; t < all.hi; t += PL_LANES) {
        const uint8_t *row = rows_at(j, b, true, base + t, 0);
        for (int64_t h = 0; h < b->heads; h++, row += head) {
            const int64_t r0 = h * per_head, later = h + ahead;
            const uint8_t *next = rows_at(j, b, true, base + t + later / b->heads * PL_LANES, base + t);
            next += later % b->heads * head;
            if (by.direct) {
                scores_direct(o->dtype == PL_F8, by.up >> h & 1, per_head, q + r0 * dim, dim, row, next, stride,
                              s + r0 * SCORE_STRIDE + t);
                continue;
            }
            load_keys(row, next, stride, dim, o->dtype, panel);
            for (int64_t r = 0; r < per_head; r += group) {
                const int n = (int)pl_min(group, per_head - r);
                const range v = visible_to(j, b, base, r, n);
                if (t < v.hi && t + PL_LANES > v.lo)
                    scores(n, q + (r0 + r) * dim, dim, panel, s + (r0 + r) * SCORE_STRIDE + t);
            }
        }
    }
}

/* out[rows][dim rounded up] += probabilities s times the chunk's values */
static void chunk_values(const pl_attend_job *j, const pl_attend_block *b, int64_t base, range all, route by,
                         const float *s, float *panel, float *out)
{
    const pl_kv_opts *o = &j->kv->o;
    const int64_t per_head = b->n * j->group, dim = pl_round_up(o->value_dim, PL_LANES);
    const int64_t stride = j->kv->value_bytes, head = stride / o->heads, group = row_group(per_head);
    const int64_t ahead = (AHEAD - 1) / (STEP * head) + 1;
    for (int64_t t = all.lo / STEP * STEP; t < all.hi; t += STEP) {
        const int64_t terms = pl_min(STEP, all.hi - t);
        for (int64_t h = 0; h < b->heads; h++) {
            const int64_t later = h + ahead;
            value_rows row, next;
            for (int i = 0; i < 2; i++) {
                const int64_t at = base + t + i * PL_LANES;
                row.at[i] = rows_at(j, b, false, at, base + t) + h * head;
                next.at[i] = rows_at(j, b, false, at + later / b->heads * STEP, base + t) + later % b->heads * head;
            }
            const int64_t r0 = h * per_head;
            const float *p = s + r0 * SCORE_STRIDE + t;
            if (by.direct) {
                values_direct(o->dtype == PL_F8, by.up >> h & 1, per_head, terms, p, row, next, stride, dim,
                              out + r0 * dim);
                continue;
            }
            load_values(row, next, stride, o->value_dim, o->dtype, terms, panel);
            for (int64_t r = 0; r < per_head; r += group) {
                const int n = (int)pl_min(group, per_head - r);
                const range v = visible_to(j, b, base, r, n);
                if (t < v.hi && t + STEP > v.lo)
                    values(n, terms, p + r * SCORE_STRIDE, panel, dim, out + (r0 + r) * dim);
            }
        }
    }
}

static void attend_chunk(const pl_attend_job *j, const pl_attend_block *b, int64_t chunk, float *part, float *work)
{
    const int64_t per_head = b->n * j->group, rows = b->heads * per_head, base = chunk * PL_ATTEND_CHUNK;
    const int64_t key_dim = j->kv->o.key_dim, dim = pl_round_up(j->kv->o.value_dim, PL_LANES);
    float *m = part, *l = m + rows, *out = l + rows;
    float *s = work, *panel = s + rows * SCORE_STRIDE, *q = panel + pl_max(key_dim * PL_LANES, dim * STEP);
    float *of_tokens = q + rows * key_dim;
    const range all = visible_to(j, b, base, 0, per_head);
    const bool words = WORDS && j->kv->o.dtype != PL_F32, up = words && j->kv->o.dtype == PL_F8 && j->denormals;
    route by = {words && key_dim % 16 == 0, up ? ~(uint64_t)0 : 0};
    if (!by.direct) by.up = 0;
    const float ups[] = {1, WORDS_UP};
    if (load_queries(j, b, ups[by.up != 0], q) >= WORDS_LIMIT && by.up) {
        by.up = 0;
        load_queries(j, b, 1, q);
    }
    const uint32_t mode = pl_fp_enter();
    if (by.up) pl_fp_keep_denormals();
    chunk_scores(j, b, base, all, by, q, panel, s);
    pl_fp_leave(mode);
    by = (route){words && dim == j->kv->o.value_dim, up && dim == j->kv->o.value_dim ? ~(uint64_t)0 : 0};
    const int64_t first = all.lo / STEP * STEP, end = pl_round_up(all.hi, STEP);
    for (int64_t h = 0; h < b->heads; h++) {
        softening f = softening_of(j, b, base, all, h, false, of_tokens);
        if (f.largest >= WORDS_LIMIT) by.up &= ~((uint64_t)1 << h);
        f.up = ups[by.up >> h & 1];
        for (int64_t r = h * per_head; r < (h + 1) * per_head; r++)
            soften(s + r * SCORE_STRIDE, visible(j, b, base, r), first, end, &f, m + r, l + r);
    }
    memset(out, 0, sizeof *out * (size_t)(rows * dim));
    if (by.up) pl_fp_keep_denormals();
    chunk_values(j, b, base, all, by, s, panel, out);
    pl_fp_leave(mode);
}

/* sum, then part: both as attend_chunk leaves them */
static void attend_merge(float *sum, const float *part, int64_t rows, int64_t value_dim)
{
    const int64_t dim = pl_round_up(value_dim, PL_LANES);
    for (int64_t r = 0; r < rows; r++) {
        float *m = sum + r, *l = m + rows, *o = sum + 2 * rows + r * dim;
        const float *m2 = part + r, *l2 = m2 + rows, *o2 = part + 2 * rows + r * dim;
        if (*l2 == 0) continue;
        if (*l == 0) {
            *m = *m2;
            *l = *l2;
            memcpy(o, o2, sizeof *o * (size_t)dim);
            continue;
        }
        const float top = *m > *m2 ? *m : *m2, f = pl_exp1(*m - top), g = pl_exp1(*m2 - top);
        *m = top;
        *l = fmaf(*l, f, *l2 * g);
        for (int64_t d = 0; d < dim; d += PL_LANES)
            vf_store(o + d, vf_fma(vf_load(o + d), vf_set(f), vf_mul(vf_load(o2 + d), vf_set(g))));
    }
}

static void attend_finish(const pl_attend_job *j, const pl_attend_block *b, const float *sum)
{
    const int64_t rows = b->heads * b->n * j->group, value_dim = j->kv->o.value_dim;
    const int64_t dim = pl_round_up(value_dim, PL_LANES);
    for (int64_t r = 0; r < rows; r++) {
        float *y = row_of(j, b, j->y, r);
        const float *o = sum + 2 * rows + r * dim;
        const vf by = vf_set(1 / sum[rows + r]), scale = vf_set(value_scale(j, b->head + r / (b->n * j->group)));
        for (int64_t d = 0; d < value_dim; d += PL_LANES)
            vf_put(y + d, vf_add(vf_mul(vf_mul(vf_load(o + d), by), scale), vf_set(0)), value_dim - d);
    }
}

const pl_attend_ops ATTEND_OPS = {attend_chunk, attend_merge, attend_finish};
