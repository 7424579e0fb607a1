/* sample.c: one token from a row of logits. Penalties and bias first, then temperature, top-k, top-p, min-p (each
 * over what the one before left), then a draw by inverse CDF in descending order of probability. The vocabulary is
 * never sorted whole: a histogram below the maximum finds the few candidates. Log-probabilities are those of the
 * model: before bias, penalties and temperature. */
#include "base.h"
#include <math.h>
#include <stdlib.h>

enum { N_BINS = 2048 }; /* of 1/64 nat each below the maximum; the last one takes the rest */
static const float bins_per_nat = 64;

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

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

double pl_logsumexp(const float *logits, int64_t n)
{
    float top = -INFINITY;
    for (int64_t i = 0; i < n; i++) top = logits[i] > top ? logits[i] : top;
    if (!(top > -INFINITY)) return -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)top);
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

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int bin_of(float top, float x)
{
    const float d = (top - x) * bins_per_nat;
    return d < N_BINS - 1 ? (int)d : N_BINS - 1;
}

/* The candidates that top-k, top-p and min-p may keep, sorted, and the number they do keep. */
static int choose(candidate **out, int32_t *n_kept, const float *x, int32_t n, float top, const pl_sample_opts *o,
                  pl_err *err)
{
    int32_t count[N_BINS] = {0}, n_cand = 0;
    double mass[N_BINS] = {0}, total = 0, cum = 0;
    for (int32_t i = 0; i < n; i++) {
        const int b = bin_of(top, x[i]);
        count[b]++;
        if (o->top_p < 1) mass[b] += exp((double)x[i] - (double)top);
    }
    for (int b = 0; b < N_BINS; b++) total += mass[b];
    int last = N_BINS - 1; /* the last bin that can hold a kept token */
    for (int b = 0; b < N_BINS; b++) {
        n_cand += count[b];
        cum += mass[b];
        if (o->top_k ? n_cand >= o->top_k : o->top_p < 1 && cum >= (double)o->top_p * total) {
            last = b;
            break;
        }
    }
    if (o->min_p > 0) {
        const float floor_logit = top + logf(o->min_p);
        if (bin_of(top, floor_logit) < last) last = bin_of(top, floor_logit);
    }
    n_cand = 0;
    for (int b = 0; b <= last; b++) n_cand += count[b];
    candidate *c = malloc((size_t)n_cand * sizeof *c);
    if (!c) return pl_fail(err, PL_ENOMEM, "sample: no memory for %d candidates", n_cand);
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++)
        if (bin_of(top, x[i]) <= last) c[k++] = (candidate){x[i], i};
    qsort(c, (size_t)k, sizeof *c, by_logit);
    if (o->top_k && k > o->top_k) k = o->top_k;
    if (o->top_p < 1) {
        double kept = 0, whole = o->top_k ? 0 : total;
        if (o->top_k)
            for (int32_t i = 0; i < k; i++) whole += exp((double)c[i].logit - (double)top);
        for (int32_t i = 0; i < k; i++) {
            kept += exp((double)c[i].logit - (double)top);
            if (kept >= (double)o->top_p * whole) k = i + 1;
        }
    }
    for (int32_t i = 0; i < k; i++)
        if ((double)c[i].logit - (double)top < log((double)o->min_p)) k = i;
    *out = c;
    *n_kept = k;
    return PL_OK;
}

/* By inverse CDF over a whole row, in its order. The sums that the first pass leaves on its way say where the second one
 * begins. */
static int32_t draw_any(const float *x, int32_t n, float top, double u)
{
    enum { MARKS = 256 };
    const int32_t step = (n + MARKS - 1) / MARKS;
    double mark[MARKS], total = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i % step == 0) mark[i / step] = total;
        total += exp((double)x[i] - (double)top);
    }
    int32_t at = (n - 1) / step, token = 0;
    while (at > 0 && mark[at] > u * total) at--;
    double cum = mark[at];
    for (int32_t i = at * step; i < n; i++) {
        const double e = exp((double)x[i] - (double)top);
        cum += e;
        if (e > 0) token = i;
        if (cum > u * total) break;
    }
    return token;
}

static int draw(int32_t *token, const float *x, int32_t n, float top, const pl_sample_opts *o, uint64_t counter,
                pl_err *err)
{
    const double u = uniform(o->seed, counter);
    double total = 0, cum = 0;
    if (o->top_k == 0 && o->top_p >= 1 && o->min_p <= 0) { /* nothing to cut: no order needed */
        *token = draw_any(x, n, top, u);
        return PL_OK;
    }
    candidate *c = NULL;
    int32_t k = 0;
    PL_TRY(choose(&c, &k, x, n, top, o, err));
    for (int32_t i = 0; i < k; i++) total += exp((double)c[i].logit - (double)top);
    for (int32_t i = 0; i < k; i++) {
        *token = c[i].id;
        cum += exp((double)c[i].logit - (double)top);
        if (cum > u * total) break;
    }
    free(c);
    return PL_OK;
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
        for (int32_t i = 0; i < n_vocab; i++) scratch[i] *= inv;
        if (isfinite(scratch[best]))
            PL_TRY(draw(&out->token, scratch, n_vocab, scratch[best], o, (uint64_t)n_history, err));
    }
    if (o->n_logprobs >= 0) logprobs(out, logits, n_vocab, o->n_logprobs);
    return PL_OK;
}
