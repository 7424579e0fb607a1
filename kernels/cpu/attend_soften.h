/* attend_soften.h: part of attend_body.h and attend_amx.c: what a block's rows see, where they lie, and how their scores
 * become probabilities. */
#include "attend.h"
#include "maths.h"

enum {
    STEP = 32,                                /* terms of a step */
    SCORE_STRIDE = PL_ATTEND_CHUNK + PL_LANES /* not a power of two: rows must not share cache sets */
};

/* Rows that are needed a little later: a line of each of n rows. Spread over the work, so that the core's few slots
 * for lines under way are never all taken by one burst. */
PL_INLINE void fetch(const uint8_t *row, int64_t stride, int n)
{
    VF_UNROLL for (int i = 0; i < n; i++) __builtin_prefetch(row + i * stride);
}

/* Lanes outside [lo, hi) become `other`. */
VF_INLINE vf within(vf v, int64_t lo, int64_t hi, float other)
{
    static const float lane[PL_LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (lo <= 0 && hi >= PL_LANES) return v;
    const vf at = vf_load(lane);
    v = vf_if_less(at, vf_set((float)lo), vf_set(other), v);
    return vf_if_less(at, vf_set((float)hi), v, vf_set(other));
}

/* Positions lo..hi-1, from the chunk's base on, are visible to the query of row r; none if lo >= hi. */
typedef struct range {
    int64_t lo, hi;
} range;
PL_INLINE range visible(const pl_attend_job *j, const pl_attend_block *b, int64_t base, int64_t r)
{
    const int64_t pos = b->pos + r / j->group % b->n;
    return (range){pl_max(0, pl_attend_first(j, pos) - base), pl_min(PL_ATTEND_CHUNK, pos + 1 - base)};
}
/* What rows r..r+n-1 of one head see together; limits never fall from one row to the next. */
PL_INLINE range visible_to(const pl_attend_job *j, const pl_attend_block *b, int64_t base, int64_t r, int64_t n)
{
    return (range){visible(j, b, base, r).lo, visible(j, b, base, r + n - 1).hi};
}

/* How scores become probabilities. */
typedef struct softening {
    float scale;
    const float *key, *value; /* of the chunk's tokens under this head; key NULL: tokens have no scales of their own */
    float largest;            /* scale of a value; 0 if tokens have none */
    bool round;
    bool words; /* probabilities are left as BF16, side by side from the row's start on; else as floats */
    float up;   /* by which what meets the values is multiplied */
} softening;

/* What meets the values takes the score's place; as words it takes less, and no score that is still to be read. */
VF_INLINE void put_probability(float *s, int64_t t, bool words, vf p)
{
    if (words)
        vf_store_upper((uint16_t *)(void *)s + t, p);
    else
        vf_store(s + t, p);
}
/* Visible scores become probabilities, as they meet the values; the rest of [from, to), multiples of 16, becomes 0. */
static void soften(float *s, range v, int64_t from, int64_t to, const softening *f, float *m, float *l)
{
    const int64_t first = v.lo < v.hi ? v.lo / PL_LANES * PL_LANES : to;
    vf top = vf_set(-INFINITY), sum = vf_set(0);
    for (int64_t t = first; t < v.hi; t += PL_LANES) {
        vf x = vf_mul(vf_load(s + t), vf_set(f->scale));
        if (f->key) x = vf_mul(x, vf_load(f->key + t));
        top = vf_max(top, within(x, v.lo - t, v.hi - t, -INFINITY));
        vf_store(s + t, x);
    }
    *m = vf_top(top);
    top = vf_set(*m);
    int64_t t = from;
    for (; t < first; t += PL_LANES) put_probability(s, t, f->words, vf_set(0));
    for (; t < v.hi; t += PL_LANES) {
        vf p = pl_vexp(vf_sub(vf_load(s + t), top));
        if (f->round && !f->key) p = vf_bf16(p);
        p = within(p, v.lo - t, v.hi - t, 0);
        sum = vf_add(sum, p);
        if (f->key) p = vf_bf16(vf_mul(p, vf_load(f->value + t)));
        put_probability(s, t, f->words, vf_mul(p, vf_set(f->up)));
    }
    for (; t < to; t += PL_LANES) put_probability(s, t, f->words, vf_set(0));
    *l = vf_sum(sum);
}

/* An E4M3 code is read as 2^-8 of its value; these give the 2^8 back. */
PL_INLINE float score_scale(const pl_attend_job *j, int64_t head)
{
    if (j->kv->o.dtype != PL_F8) return j->scale;
    return j->scale * pl_kv_layer_scale(j->kv, j->layer, false)[head] * 256;
}
PL_INLINE float value_scale(const pl_attend_job *j, int64_t head)
{
    return j->kv->o.dtype == PL_F8 ? pl_kv_layer_scale(j->kv, j->layer, true)[head] * 256 : 1;
}
/* to[2][PL_ATTEND_CHUNK]: the scales of the chunk's keys and values under one head; 0 where no token is seen. Returns
 * the largest of a value. */
static float load_token_scales(const pl_attend_job *j, const pl_attend_block *b, int64_t base, range all, int64_t head,
                               float *to)
{
    for (int v = 0; v < 2; v++, to += PL_ATTEND_CHUNK) {
        const int64_t first = all.lo / PL_LANES * PL_LANES;
        memset(to + first, 0, sizeof *to * (size_t)(pl_round_up(all.hi, PL_LANES) - first));
        for (int64_t t = all.lo, n; t < all.hi; t += n) { /* n: what is left of the page */
            const float *from = pl_kv_token_scale(j->kv, b->seq, j->layer, base + t, v) + head;
            n = pl_min(all.hi - t, j->kv->o.page - (base + t) % j->kv->o.page);
            for (int64_t i = 0; i < n; i++) to[t + i] = from[i * j->kv->o.heads];
        }
    }
    vf top = vf_set(0);
    for (int64_t t = all.lo / PL_LANES * PL_LANES; t < all.hi; t += PL_LANES)
        top = vf_max(vf_load(to - PL_ATTEND_CHUNK + t), top);
    return vf_top(top);
}

/* How the scores of head h of the block are softened. of_tokens: room for two floats of each position. */
PL_INLINE softening softening_of(const pl_attend_job *j, const pl_attend_block *b, int64_t base, range all, int64_t h,
                                 bool words, float *of_tokens)
{
    softening f = {.scale = score_scale(j, b->head + h), .round = j->kv->o.dtype != PL_F32, .words = words, .up = 1};
    if (j->kv->o.scale != PL_SCALE_TOKEN) return f;
    f.largest = load_token_scales(j, b, base, all, b->head + h, of_tokens);
    f.key = of_tokens;
    f.value = of_tokens + PL_ATTEND_CHUNK;
    return f;
}

/* Where the query or the result of row r lies. */
PL_INLINE float *row_of(const pl_attend_job *j, const pl_attend_block *b, const pl_tensor *t, int64_t r)
{
    const int64_t per_head = b->n * j->group, i = r % per_head;
    const int64_t head = (b->head + r / per_head) * j->group + i % j->group;
    return (float *)t->data + (b->row + i / j->group) * t->stride[0] + head * t->stride[1];
}

enum {
    AHEAD = 2048
}; /* bytes of keys or values that are fetched before they are needed: more leaves the first cache again */
/* 16 keys, or values, of the block's first head; past the sequence's end those at `else_at`: there is nothing to fetch. */
PL_INLINE const uint8_t *rows_at(const pl_attend_job *j, const pl_attend_block *b, bool keys, int64_t pos,
                                 int64_t else_at)
{
    const pl_kv *kv = j->kv;
    if (pos >= b->pos + b->n) pos = else_at;
    if (keys) return pl_kv_key(kv, b->seq, j->layer, pos) + kv->key_bytes / kv->o.heads * b->head;
    return pl_kv_value(kv, b->seq, j->layer, pos) + kv->value_bytes / kv->o.heads * b->head;
}
