/* Sampling: what each option keeps, that the draw follows the probabilities and depends on seed and position alone. */
#include "base.h"
#include "suite.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1000 };
static float logits[N], scratch[N];
static pl_err err;
static const pl_sample_opts plain = {.temperature = 1, .top_p = 1, .repetition = 1, .n_logprobs = -1};

static void setup(void)
{
    srand(3);
    for (int i = 0; i < N; i++) logits[i] = (float)(rand() % 2000) / 250.0f - 4;
}

static pl_sampled sample(pl_sample_opts o, const int32_t *history, int32_t n, int32_t n_prompt)
{
    pl_sampled s = {.token = -7};
    ck_assert_msg(pl_sample(&s, logits, N, &o, history, n, n_prompt, scratch, &err) == PL_OK, "%s", err.msg);
    return s;
}

static int by_value(const void *a, const void *b)
{
    const float x = logits[*(const int *)a], y = logits[*(const int *)b];
    return x != y ? (x < y ? 1 : -1) : *(const int *)a - *(const int *)b;
}

START_TEST(greedy_takes_the_lowest_of_equals)
{
    pl_sample_opts o = plain;
    o.temperature = 0;
    logits[40] = logits[41] = logits[900] = 50;
    ck_assert_int_eq(sample(o, NULL, 0, 0).token, 40);
}
END_TEST

/* Rows are looked at in blocks: the largest, its equal further on, and what is no logit are found at every place. */
START_TEST(every_place_is_looked_at)
{
    const pl_sample_opts o = {.top_p = 1, .repetition = 1, .n_logprobs = -1};
    for (int n = 1; n <= 200; n += n < 70 ? 1 : 13)
        for (int at = 0; at < n; at++) {
            pl_sampled s;
            char want[64];
            float x[200];
            for (int i = 0; i < n; i++) x[i] = i % 3 ? -INFINITY : -5 - (float)(i % 7);
            x[at] = x[n - 1] = 2;
            ck_assert_int_eq(pl_sample(&s, x, n, &o, NULL, 0, 0, scratch, &err), PL_OK);
            ck_assert_int_eq(s.token, at);
            x[at] = at % 2 ? NAN : INFINITY;
            ck_assert_int_eq(pl_sample(&s, x, n, &o, NULL, 0, 0, scratch, &err), PL_EARG);
            snprintf(want, sizeof want, "sample: the logit of token %d is %s", at, at % 2 ? "nan" : "inf");
            ck_assert_str_eq(err.msg, want);
        }
}
END_TEST

/* The set of tokens that 6,000 draws reach is the set that a plain sort keeps, and frequencies follow. */
static void check_set(pl_sample_opts o)
{
    int order[N], n = N, hits[N] = {0};
    double p[N], total = 0, kept = 0;
    for (int i = 0; i < N; i++) order[i] = i;
    qsort(order, N, sizeof *order, by_value);
    if (o.top_k && o.top_k < n) n = o.top_k;
    for (int i = 0; i < n; i++)
        total += p[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)o.temperature);
    for (int i = 0; i < n && o.top_p < 1; i++) {
        kept += p[i] / total;
        if (kept >= (double)o.top_p) n = i + 1;
    }
    for (int i = 0; i < n; i++)
        if (p[i] < (double)o.min_p) n = i;
    total = 0;
    for (int i = 0; i < n; i++) total += p[i];
    const int draws = 6000;
    for (int i = 0; i < draws; i++) {
        o.seed = (uint64_t)i;
        hits[sample(o, NULL, 0, 0).token]++;
    }
    int reached = 0;
    for (int i = 0; i < N; i++) reached += hits[i];
    for (int i = 0; i < n; i++) {
        const double want = p[i] / total * draws;
        ck_assert_msg(fabs(hits[order[i]] - want) < 6 * sqrt(want) + 6, "rank %d: %d draws, want %.1f", i,
                      hits[order[i]], want);
        reached -= hits[order[i]];
    }
    ck_assert_int_eq(reached, 0); /* nothing outside the kept set */
}

START_TEST(top_k_top_p_min_p)
{
    const struct {
        float t, p, m;
        int k;
    } c[] = {
        {1, 1, 0, 0},         {1, 1, 0, 1},          {1, 1, 0, 5},     {0.7f, 1, 0, 40}, {1, 0.5f, 0, 0},
        {1, 0.9f, 0, 0},      {1.5f, 0.95f, 0, 0},   {1, 0.01f, 0, 0}, {1, 1, 0.1f, 0},  {1, 1, 1, 0},
        {1, 0.8f, 0.05f, 50}, {0.2f, 0.9f, 0, 2000}, {30, 0.9f, 0, 0},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        pl_sample_opts o = plain;
        o.temperature = c[i].t, o.top_p = c[i].p, o.min_p = c[i].m, o.top_k = c[i].k;
        check_set(o);
    }
}
END_TEST

/* Rows of any length, many equal logits, both zeros, forbidden tokens: the k first in descending order, by id where equal. */
START_TEST(equals_at_the_cut)
{
    const float values[] = {-INFINITY, -90, -3, -0.5f, -0.0f, 0, 1e-30f, 2, 2.0000002f, 40};
    for (int n = 1; n <= 150; n += n < 70 ? 3 : 11) {
        for (int i = 0; i < n; i++) logits[i] = values[(i * 7 + n) % 10];
        logits[n - 1] = 1.5f;
        for (int k = 1; k <= n + 1; k += k < 4 ? 1 : 9) {
            pl_sample_opts o = plain;
            bool in[150] = {0};
            o.top_k = k, o.temperature = 30; /* all but the forbidden are likely */
            for (int i = 0; i < n; i++) {
                int before = 0;
                for (int j = 0; j < n; j++) before += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
                in[i] = before < k && logits[i] > -INFINITY;
            }
            for (int draws = 0; draws < 300; draws++) {
                pl_sampled s;
                o.seed = (uint64_t)draws;
                ck_assert_int_eq(pl_sample(&s, logits, n, &o, NULL, 0, 0, scratch, &err), PL_OK);
                ck_assert_msg(in[s.token], "n %d, k %d: token %d, logit %g", n, k, s.token, (double)logits[s.token]);
            }
        }
    }
}
END_TEST

/* The sum of exponentials against doubles, for rows of any length and spread. */
START_TEST(logsumexp_is_near_doubles)
{
    for (int n = 1; n <= 1000; n += n < 140 ? 1 : 53)
        for (int spread = 1; spread <= 10000; spread *= 10) {
            static float x[1000];
            double top = -INFINITY, sum = 0;
            for (int i = 0; i < n; i++) x[i] = (float)((double)rand() / RAND_MAX - 0.3) * (float)spread;
            for (int i = 0; i < n; i++) top = (double)x[i] > top ? (double)x[i] : top;
            for (int i = 0; i < n; i++) sum += exp((double)x[i] - top);
            ck_assert_double_eq_tol(pl_logsumexp(x, n), top + log(sum), 1e-6);
            x[n / 2] = NAN;
            ck_assert(isnan(pl_logsumexp(x, n)));
            for (int i = 0; i < n; i++) x[i] = -INFINITY;
            ck_assert(pl_logsumexp(x, n) <= -INFINITY);
        }
    ck_assert(pl_logsumexp(logits, 0) <= -INFINITY);
}
END_TEST

/* A row as long as a large vocabulary, with many equal logits and forbidden tokens: draws come from what a sort keeps, and
 * as often as they should from each sixteenth of it, by rank and by place. */
enum { LARGE = 163840, PARTS = 16, DRAWS = 250 };
static float large[LARGE], room[LARGE];
static int32_t rank_of[LARGE], sorted[LARGE];
static int by_large(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return large[i] != large[j] ? (large[i] < large[j] ? 1 : -1) : i - j;
}
static void check_large(int32_t n, pl_sample_opts o)
{
    static double p[LARGE];
    double total = 0, kept = 0, part[2][PARTS] = {{0}};
    int32_t m = o.top_k && o.top_k < n ? o.top_k : n, hits[2][PARTS] = {{0}};
    while (large[sorted[m - 1]] <= -INFINITY) m--;
    for (int32_t i = 0; i < m; i++)
        total += p[i] = exp(((double)large[sorted[i]] - (double)large[sorted[0]]) / (double)o.temperature);
    for (int32_t i = 0; i < m && o.top_p < 1; i++) {
        kept += p[i] / total;
        if (kept >= (double)o.top_p) m = i + 1;
    }
    for (int32_t i = 0; i < m; i++)
        if (p[i] < (double)o.min_p) m = i;
    total = 0;
    for (int32_t i = 0; i < m; i++) total += p[i];
    for (int32_t i = 0; i < m; i++) {
        part[0][(int64_t)i * PARTS / m] += p[i] / total;
        part[1][(int64_t)sorted[i] * PARTS / n] += p[i] / total;
    }
    for (int draw = 0; draw < DRAWS; draw++) {
        pl_sampled s;
        o.seed = (uint64_t)draw;
        ck_assert_int_eq(pl_sample(&s, large, n, &o, NULL, 0, 0, room, &err), PL_OK);
        const int32_t rank = rank_of[s.token];
        /* probabilities are floats there: the last one that is kept may be a neighbour */
        ck_assert_msg(rank < m + (o.top_p < 1 ? m / 1000 + 1 : 0), "%d: rank %d of %d is not kept", n, rank, m);
        hits[0][(int64_t)pl_min(rank, m - 1) * PARTS / m]++;
        hits[1][(int64_t)s.token * PARTS / n]++;
    }
    for (int by = 0; by < 2; by++)
        for (int i = 0; i < PARTS; i++) {
            const double want = part[by][i] * DRAWS;
            ck_assert_msg(fabs(hits[by][i] - want) < 5 * sqrt(want) + 2, "%d: part %d by %s: %d draws, want %.1f", n, i,
                          by ? "place" : "rank", hits[by][i], want);
        }
}

START_TEST(large_vocabularies)
{
    static const struct {
        float t, p, m;
        int k;
    } c[] = {{1, 1, 0, 0},    {30, 1, 0, 3},    {30, 1, 0, 777},          {50, 1, 0, 160000},
             {1, 0.9f, 0, 0}, {30, 0.5f, 0, 0}, {8, 0.999f, 0.01f, 5000}, {2, 1, 0.02f, 0}};
    static const int32_t sizes[] = {160001, LARGE};
    const int32_t n = sizes[_i];
    for (int32_t i = 0; i < n; i++) {
        const double u = (rand() % 32768 + 0.5) / 32768, v = (rand() % 32768 + 0.5) / 32768;
        large[i] = i / 64 % 5 == 3 || rand() % 50 == 0 ? -INFINITY : (float)(round(40 * log(u / v)) / 16);
        sorted[i] = i;
    }
    large[n - 1] = 24; /* probable, and the last of all */
    large[n / 3 * 2] = 25;
    qsort(sorted, (size_t)n, sizeof *sorted, by_large);
    for (int32_t i = 0; i < n; i++) rank_of[sorted[i]] = i;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        pl_sample_opts o = plain;
        o.temperature = c[i].t, o.top_p = c[i].p, o.min_p = c[i].m, o.top_k = c[i].k;
        check_large(n, o);
    }
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp((double)large[i] - (double)large[sorted[0]]);
    const double lse = log(sum) + (double)large[sorted[0]];
    ck_assert_double_eq_tol(pl_logsumexp(large, n), lse, 1e-6);
    pl_sample_opts o = {.top_p = 1, .repetition = 1, .n_logprobs = PL_MAX_LOGPROBS};
    pl_sampled s;
    ck_assert_int_eq(pl_sample(&s, large, n, &o, NULL, 0, 0, room, &err), PL_OK);
    ck_assert_int_eq(s.token, sorted[0]);
    for (int i = 0; i < s.n_top; i++) {
        ck_assert_int_eq(s.top_id[i], sorted[i]);
        ck_assert_double_eq_tol(s.top_logprob[i], (double)large[sorted[i]] - lse, 1e-4);
    }
    ck_assert_int_eq(s.n_top, PL_MAX_LOGPROBS);
}
END_TEST

START_TEST(seed_and_position_decide)
{
    pl_sample_opts o = plain;
    int32_t history[64] = {0};
    int same = 0;
    o.seed = 11;
    for (int n = 1; n < 64; n++) {
        const int a = sample(o, history, n, 1).token;
        ck_assert_int_eq(sample(o, history, n, 1).token, a);
        same += a == sample(o, history, n - 1, 1).token;
    }
    ck_assert_int_lt(same, 20);
}
END_TEST

START_TEST(penalties_and_bias)
{
    pl_sample_opts o = plain;
    int32_t history[5000];
    o.temperature = 0;
    logits[10] = 20, logits[11] = 19, logits[12] = 18;
    /* repetition counts the prompt too, once a token */
    o.repetition = 1.1f;
    ck_assert_int_eq(sample(o, (int32_t[]){10, 10, 10}, 3, 3).token, 11); /* 20 / 1.1 = 18.2 */
    ck_assert_int_eq(sample(o, (int32_t[]){10, 11}, 2, 2).token, 10);     /* 18.18 > 18 > 17.3 */
    for (int i = 0; i < 5000; i++) history[i] = 10;                       /* the long way gives the same */
    ck_assert_int_eq(sample(o, history, 5000, 5000).token, 11);
    /* presence and frequency count the answer alone */
    o.repetition = 1;
    o.presence = 1.5f;
    ck_assert_int_eq(sample(o, (int32_t[]){10, 10}, 2, 2).token, 10);
    ck_assert_int_eq(sample(o, (int32_t[]){10, 10}, 2, 1).token, 11);
    o.presence = 0;
    o.frequency = 0.6f;
    ck_assert_int_eq(sample(o, (int32_t[]){5, 10}, 2, 1).token, 10);
    ck_assert_int_eq(sample(o, (int32_t[]){5, 10, 10}, 3, 1).token, 11);
    /* a negative logit is pushed down by repetition, not up */
    for (int i = 0; i < N; i++) logits[i] = -5;
    logits[3] = -4.9f;
    o.frequency = 0;
    o.repetition = 1.5f;
    ck_assert_int_ne(sample(o, (int32_t[]){3}, 1, 1).token, 3);
    o.repetition = 1;
    const int32_t id[] = {77};
    const float by[] = {100};
    o.bias_id = id, o.bias = by, o.n_bias = 1, o.temperature = 1;
    ck_assert_int_eq(sample(o, NULL, 0, 0).token, 77);
}
END_TEST

START_TEST(logprobs_are_the_models)
{
    pl_sample_opts o = plain;
    o.n_logprobs = 5;
    o.temperature = 0.3f;
    const pl_sampled s = sample(o, NULL, 0, 0);
    int order[N];
    for (int i = 0; i < N; i++) order[i] = i;
    qsort(order, N, sizeof *order, by_value);
    const double lse = pl_logsumexp(logits, N);
    ck_assert_int_eq(s.n_top, 5);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(s.top_id[i], order[i]);
        ck_assert_double_eq_tol(s.top_logprob[i], logits[order[i]] - lse, 1e-5);
    }
    ck_assert_double_eq_tol(s.logprob, logits[s.token] - lse, 1e-5);
}
END_TEST

START_TEST(bad_input)
{
    pl_sampled s;
    const struct {
        pl_sample_opts o;
        const char *say;
    } c[] = {
        {{.temperature = -1, .top_p = 1, .repetition = 1}, "temperature"},
        {{.temperature = NAN, .top_p = 1, .repetition = 1}, "temperature"},
        {{.temperature = 1, .top_p = 0, .repetition = 1}, "top_p"},
        {{.temperature = 1, .top_p = 1.1f, .repetition = 1}, "top_p"},
        {{.temperature = 1, .top_p = 1, .min_p = 2, .repetition = 1}, "min_p"},
        {{.temperature = 1, .top_p = 1, .repetition = 0}, "repetition"},
        {{.temperature = 1, .top_p = 1, .repetition = 1, .top_k = -1}, "top_k"},
        {{.temperature = 1, .top_p = 1, .repetition = 1, .n_logprobs = 21}, "logprobs"},
        {{.temperature = 1, .top_p = 1, .repetition = 1, .bias_id = (int32_t[]){N}, .bias = (float[]){1}, .n_bias = 1},
         "bias"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        ck_assert_int_eq(pl_sample(&s, logits, N, &c[i].o, NULL, 0, 0, scratch, &err), PL_EARG);
        ck_assert_msg(strstr(err.msg, c[i].say) != NULL, "%s", err.msg);
    }
    logits[500] = NAN;
    ck_assert_int_eq(pl_sample(&s, logits, N, &plain, NULL, 0, 0, scratch, &err), PL_EARG);
    ck_assert_str_eq(err.msg, "sample: the logit of token 500 is nan");
    for (int i = 0; i < N; i++) logits[i] = -INFINITY;
    ck_assert_int_eq(pl_sample(&s, logits, N, &plain, NULL, 0, 0, scratch, &err), PL_EARG);
    logits[9] = 1;
    ck_assert_int_eq(sample(plain, NULL, 0, 0).token, 9);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sample");
    TCase *c = tcase_create("sample");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, greedy_takes_the_lowest_of_equals);
    tcase_add_test(c, every_place_is_looked_at);
    tcase_add_test(c, top_k_top_p_min_p);
    tcase_add_test(c, equals_at_the_cut);
    tcase_add_test(c, logsumexp_is_near_doubles);
    tcase_add_loop_test(c, large_vocabularies, 0, 2);
    tcase_add_test(c, seed_and_position_decide);
    tcase_add_test(c, penalties_and_bias);
    tcase_add_test(c, logprobs_are_the_models);
    tcase_add_test(c, bad_input);
    tcase_set_timeout(c, 300);
    suite_add_tcase(s, c);
    return run_suite(s);
}
