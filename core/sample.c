/* sample.c: one token from a row of logits. Penalties and bias first, then temperature, top-k, top-p, min-p (each
 * over what the one before left), then a draw by inverse CDF in the order of the row. Nothing is sorted: each option says
 * which is the last token that it keeps in descending order of probability, and a radix search finds it. Log-probabilities
 * are those of the model: before bias, penalties and temperature. */
#include "base.h"
#include <math.h>

/* The last token that is kept; of equal logits the lower ids come first. */
typedef struct cut {
    int32_t order; /* of its logit: order_of */
    int32_t id;
} cut;

typedef union bits {
    float f;
    int32_t i;
} bits;

enum { BLOCK = 64 }; /* of a row: a number of turns that the compiler knows becomes vectors */

/* The first place of what is no logit, NaN or +infinity; n: there is none. */
static int32_t first_bad(const float *x, int32_t n)
{
    int32_t i = 0;
    for (int bad = 0; i + BLOCK <= n; i += BLOCK) {
        for (int k = 0; k < BLOCK; k++) bad |= !(x[i + k] < INFINITY);
        if (bad) break;
    }
    while (i < n && x[i] < INFINITY) i++;
    return i;
}

/* The place of the largest value, the first one of equals. */
static int32_t largest(const float *x, int32_t n)
{
    int32_t best = 0, i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        const float top = x[best];
        int larger = 0;
        for (int k = 0; k < BLOCK; k++) larger |= x[i + k] > top;
        for (int k = 0; larger && k < BLOCK; k++)
            if (x[i + k] > x[best]) best = i + k;
    }
    for (; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* exp(d) for d <= 0, at most 3 ulp off; 0 below -87 and of NaN. Written out and without a comparison of floats, so that a
 * loop over it becomes vectors, and has the same bits with every C library. n = d / ln 2 rounded;
 * exp(r) = 1 + r + r^2 q(r), with q as in kernels/cpu/maths.h. */
static inline float exp_below(float d)
{
    const int32_t size = (bits){d}.i & 0x7fffffff, most = 0x42ae0000; /* 87 */
    const float c = -(bits){.i = size < most ? size : most}.f;
    const int32_t n = (int32_t)(c * 0x1.715476p+0f - 0.5f);
    const float r = (c - (float)n * 0x1.62e4p-1f) - (float)n * 0x1.7f7d1cp-20f;
    float q = r * 0x1.6d113cp-10f + 0x1.120ba2p-7f;
    q = q * r + 0x1.55551ap-5f;
    q = q * r + 0x1.5554dcp-3f;
    q = q * r + 0.5f;
    const bits y = {(r * r * q + r + 1) * (bits){.i = (n + 127) * (1 << 23)}.f};
    return (bits){.i = y.i & -(size < most)}.f; /* a choice would become a branch */
}

/* The exponentials of at most BLOCK logits; returns their sum. */
static double exps(float *restrict e, const float *restrict x, int32_t n, float top)
{
    double sum[4] = {0};
    if (n == BLOCK)
        for (int k = 0; k < BLOCK; k++) e[k] = exp_below(x[k] - top);
    else
        for (int k = 0; k < BLOCK; k++) e[k] = k < n ? exp_below(x[k] - top) : 0;
    for (int k = 0; k < BLOCK; k += 4)
        for (int j = 0; j < 4; j++) sum[j] += (double)e[k + j];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static int32_t block_at(int32_t i, int32_t n) { return n - i < BLOCK ? n - i : BLOCK; }

double pl_logsumexp(const float *logits, int32_t n)
{
    if (n < 1) return -INFINITY;
    const float top = logits[largest(logits, n)];
    float e[BLOCK];
    double sum = 0;
    if (first_bad(logits, n) < n) return pl_plain_nan((double)NAN);
    if (top <= -INFINITY) return -INFINITY;
    for (int32_t i = 0; i < n; i += BLOCK) sum += exps(e, logits + i, block_at(i, n), top);
    return pl_plain_nan(log(sum) + (double)top);
}

/* A counter-based random number in (0,1): it depends on the request's seed and position, on nothing that runs beside. */
static double uniform(uint64_t seed, uint64_t counter)
{
    uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 2; round++) {
        z ^= z >> 30;
        z *= 0xbf58476d1ce4e5b9u;
        z ^= z >> 27;
        z *= 0x94d049bb133111ebu;
        z ^= z >> 31;
        z += seed;
    }
    return ((double)(z >> 12) + 0.5) * 0x1p-52; /* never 0: a token without mass is never drawn */
}

int pl_sample_check(const pl_sample_opts *o, int32_t n_vocab, pl_err *err)
{
    if (!(o->temperature >= 0) || isinf(o->temperature))
        return pl_fail(err, PL_EARG, "temperature: %g, want 0 or more", (double)o->temperature);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return pl_fail(err, PL_EARG, "top_p: %g, want above 0, at most 1", (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1)) return pl_fail(err, PL_EARG, "min_p: %g, want 0 to 1", (double)o->min_p);
    if (o->top_k < 0) return pl_fail(err, PL_EARG, "top_k: %d, want 0 (off) or more", o->top_k);
    if (!(o->repetition > 0) || isinf(o->repetition))
        return pl_fail(err, PL_EARG, "repetition penalty: %g, want above 0", (double)o->repetition);
    if (!isfinite(o->presence) || !isfinite(o->frequency))
        return pl_fail(err, PL_EARG, "presence or frequency penalty: not a finite number");
    if (o->n_logprobs < -1 || o->n_logprobs > PL_MAX_LOGPROBS)
        return pl_fail(err, PL_EARG, "logprobs: %d, want 0 to %d", o->n_logprobs, PL_MAX_LOGPROBS);
    for (int32_t i = 0; i < o->n_bias; i++)
        if (o->bias_id[i] < 0 || o->bias_id[i] >= n_vocab || isnan(o->bias[i]))
            return pl_fail(err, PL_EARG, "logit bias: token %d by %g, want a token below %d and a number",
                           o->bias_id[i], (double)o->bias[i], n_vocab);
    return PL_OK;
}

/* Each distinct token of the history is penalised once (repetition, presence) and per count (frequency; answer only). */
static void penalise(float *x, int32_t n_vocab, const pl_sample_opts *o, const int32_t *history, int32_t n,
                     int32_t n_prompt)
{
    const bool counts = o->presence != 0 || o->frequency != 0; /* NOLINT: exact zero means off */
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = history[i];
        if (id < 0 || id >= n_vocab) continue;
        if (counts && i >= n_prompt) x[id] -= o->frequency;
    }
    if (o->repetition == 1 && o->presence == 0) return;
    /* marks: a token is handled at its last place in the history (for presence: in the answer) */
    enum { CELLS = 4096 };
    uint64_t seen[CELLS] = {0}; /* open set of ids + 1, for histories that fit; longer ones scan */
    for (int32_t i = n - 1; i >= 0; i--) {
        const int32_t id = history[i];
        if (id < 0 || id >= n_vocab) continue;
        bool first = true;
        if (n < CELLS / 2) {
            uint32_t h = ((uint32_t)id * 2654435761u) % CELLS;
            while (seen[h] && seen[h] != (uint64_t)id + 1) h = (h + 1) % CELLS;
            first = !seen[h];
            seen[h] = (uint64_t)id + 1;
        } else {
            for (int32_t k = n - 1; first && k > i; k--) first = history[k] != id;
        }
        if (!first) continue;
        if (i >= n_prompt) x[id] -= o->presence;
        if (o->repetition != 1) x[id] = x[id] > 0 ? x[id] / o->repetition : x[id] * o->repetition;
    }
}

/* A whole number that grows with the logit. */
static inline int32_t order_of(float logit)
{
    const int32_t i = (bits){logit}.i;
    return i ^ (i >> 31 & 0x7fffffff);
}

static inline bool is_kept(cut c, float logit, int32_t id)
{
    const int32_t order = order_of(logit);
    return (order > c.order) | ((order == c.order) & (id <= c.id));
}

enum { N_BINS = 2048 };

/* Those that `in` keeps and whose order is lo to hi, by how far below hi they are: how many, or, with a top logit, how
 * probable. */
static void fill_bins(double *sum, const float *x, int32_t n, cut in, int32_t lo, int32_t hi, int shift,
                      const float *top)
{
    const bool first = shift == 21; /* every block is looked at, and vectors pay */
    memset(sum, 0, N_BINS * sizeof *sum);
    for (int32_t i = 0; i < n; i += BLOCK) {
        const int32_t m = block_at(i, n);
        float e[BLOCK];
        int any = first || m < BLOCK;
        if (!any)
            for (int k = 0; k < BLOCK; k++) any |= (int)(order_of(x[i + k]) >= lo) & (int)(order_of(x[i + k]) <= hi);
        if (first && top) exps(e, x + i, m, *top);
        for (int32_t k = 0; any && k < m; k++) {
            const int32_t order = order_of(x[i + k]);
            if (order < lo || order > hi || !is_kept(in, x[i + k], i + k)) continue;
            sum[((uint32_t)hi - (uint32_t)order) >> shift] += !top    ? 1
                                                              : first ? (double)e[k]
                                                                      : (double)exp_below(x[i + k] - *top);
        }
    }
}

/* The first token, in descending order, with which those that `in` keeps come to `want`: in number, or, with a top logit,
 * as a part of their probability. A radix search: 11, 11 and 10 bits of the order, then the ids of equals. */
static cut find_cut(const float *x, int32_t n, cut in, double want, const float *top)
{
    double sum[N_BINS], before = 0;
    int32_t lo = INT32_MIN, hi = INT32_MAX;
    for (int shift = 21; shift >= 0; shift -= shift == 21 ? 11 : 10) {
        fill_bins(sum, x, n, in, lo, hi, shift, top);
        if (shift == 21 && top) {
            double whole = 0;
            for (int b = 0; b < N_BINS; b++) whole += sum[b];
            want *= whole;
        }
        uint32_t bin = 0;
        double next = before; /* rounding may leave the whole short of what is wanted: then the last bin is it */
        for (uint32_t b = 0; b < N_BINS && next < want; b++) {
            if (!(sum[b] > 0)) continue;
            bin = b;
            before = next;
            next += sum[b];
        }
        hi = (int32_t)((uint32_t)hi - (bin << shift));
        lo = (int32_t)((uint32_t)hi - ((1u << shift) - 1));
    }
    cut c = {hi, 0};
    for (int32_t i = 0; i < n && before < want; i++) {
        if (order_of(x[i]) != hi || !is_kept(in, x[i], i)) continue;
        c.id = i;
        before += top ? (double)exp_below(x[i] - *top) : 1;
    }
    return c;
}

static cut choose(const float *x, int32_t n, float top, const pl_sample_opts *o)
{
    cut c = {order_of(-INFINITY), n - 1};
    if (o->top_k && o->top_k < n) c = find_cut(x, n, c, o->top_k, NULL);
    if (o->top_p < 1) c = find_cut(x, n, c, (double)o->top_p, &top);
    if (o->min_p > 0) {
        const double least = log((double)o->min_p);
        float floor_logit = (float)((double)top + least);
        if ((double)floor_logit - (double)top < least) floor_logit = nextafterf(floor_logit, INFINITY);
        if (is_kept(c, floor_logit, n - 1)) c = (cut){order_of(floor_logit), n - 1};
    }
    return c;
}

/* By inverse CDF over those that are kept, in the order of the row. The sums that the first pass leaves on its way say
 * where the second one begins. */
static int32_t draw(const float *x, int32_t n, float top, const pl_sample_opts *o, uint64_t counter)
{
    enum { MARKS = 256 };
    const cut c = choose(x, n, top, o);
    const int32_t n_blocks = (n + BLOCK - 1) / BLOCK, step = (n_blocks + MARKS - 1) / MARKS * BLOCK;
    double mark[MARKS], total = 0;
    float e[BLOCK];
    for (int32_t i = 0; i < n; i += BLOCK) {
        const int32_t m = block_at(i, n);
        if (i % step == 0) mark[i / step] = total;
        exps(e, x + i, m, top);
        for (int32_t k = 0; k < m; k++) total += (double)((float)is_kept(c, x[i + k], i + k) * e[k]);
    }
    const double u = uniform(o->seed, counter) * total;
    int32_t at = (n - 1) / step, token = 0;
    while (at > 0 && mark[at] > u) at--;
    double cum = mark[at];
    for (int32_t i = at * step; i < n && cum <= u; i++) {
        const float p = is_kept(c, x[i], i) ? exp_below(x[i] - top) : 0;
        cum += (double)p;
        if (p > 0) token = i;
    }
    return token;
}

static void logprobs(pl_sampled *out, const float *logits, int32_t n, int32_t n_top)
{
    const double lse = pl_logsumexp(logits, n);
    out->logprob = (float)((double)logits[out->token] - lse);
    if (n_top > n) n_top = n;
    for (int32_t i = 0; i < n && n_top > 0;
         i++) { /* insertion into the best n_top; equal logits keep the lower id first */
        int32_t k = out->n_top;
        if (k == n_top && !(logits[i] > logits[out->top_id[k - 1]])) continue;
        if (k == n_top)
            k--;
        else
            out->n_top++;
        for (; k > 0 && logits[i] > logits[out->top_id[k - 1]]; k--) out->top_id[k] = out->top_id[k - 1];
        out->top_id[k] = i;
    }
    for (int32_t k = 0; k < out->n_top; k++) out->top_logprob[k] = (float)((double)logits[out->top_id[k]] - lse);
}

int pl_sample(pl_sampled *out, const float *logits, int32_t n_vocab, const pl_sample_opts *o, const int32_t *history,
              int32_t n_history, int32_t n_prompt, float *scratch, pl_err *err)
{
    PL_TRY(pl_sample_check(o, n_vocab, err));
    const int32_t bad = first_bad(logits, n_vocab);
    if (bad < n_vocab) return pl_fail(err, PL_EARG, "sample: the logit of token %d is %g", bad, (double)logits[bad]);
    memcpy(scratch, logits, (size_t)n_vocab * sizeof *scratch);
    penalise(scratch, n_vocab, o, history, n_history, n_prompt);
    for (int32_t i = 0; i < o->n_bias; i++) scratch[o->bias_id[i]] += o->bias[i];
    const int32_t best = largest(scratch, n_vocab);
    if (!(scratch[best] > -INFINITY)) return pl_fail(err, PL_EARG, "sample: every token is forbidden");
    *out = (pl_sampled){.token = best};
    if (o->temperature > 0 && scratch[best] < INFINITY) { /* a bias of +inf decides by itself */
        const float inv = 1 / o->temperature;
        for (int32_t i = 0; i < n_vocab; i++) scratch[i] = scratch[i] * inv + 0.0f; /* no -0: it has another rank */
        if (isfinite(scratch[best])) out->token = draw(scratch, n_vocab, scratch[best], o, (uint64_t)n_history);
    }
    if (o->n_logprobs >= 0) logprobs(out, logits, n_vocab, o->n_logprobs);
    return PL_OK;
}
