/* The tokenizer on small vocabularies made here: pipelines, added tokens, patterns, bytes that are no text, streams, long
 * texts, threads. */
#include "suite.h"
#include "tok_help.h"
#include <pthread.h>
#include <time.h>

static pl_tok *open_json(const char *json)
{
    pl_tok *t = NULL;
    ck_assert_msg(pl_tok_open_json(&t, json, strlen(json), NULL, 0, &err) == PL_OK, "%s", err.msg);
    return t;
}

START_TEST(merges)
{
    pl_tok *t = open_json("{" MODEL "}");
    want_ids(t, "", 0, "");
    want_ids(t, "abc", 0, "5");
    want_ids(t, "bc", 0, "6");
    want_ids(t, "aabc", 0, "0 5");
    want_ids(t, "aaaaaaa", 0, "8 7 0"); /* leftmost first */
    want_ids(t, "xxa", 0, "9 9 0");
    want_ids(t,
             "\xe4\xb8\xad"
             "ab",
             0, "9 4");
    want_ids(t,
             "a\xff\xfe"
             "b",
             0, "0 9 1"); /* no byte tokens: one unknown character */
    ck_assert_int_eq(pl_tok_size(t), 12);
    ck_assert_int_eq(pl_tok_find(t, "aaaa", 4), 8);
    ck_assert_int_eq(pl_tok_find(t, "aaa", 3), -1);
    ck_assert_int_eq(pl_tok_bos(t), -1);
    pl_tok_close(t);
    t = open_json("{\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"unk_token\":\"<u>\"," VOCAB "," MERGES "}}");
    want_ids(t, "xxaxyz", 0, "9 0 9");
    pl_tok_close(t);
    t = open_json("{\"model\":{\"ignore_merges\":true," VOCAB ",\"merges\":[]}}");
    want_ids(t, "abc", 0, "5");
    want_ids(t, "abca", 0, "0 1 2 0");
    want_ids(t, "xa", 0, "0"); /* nothing stands for x: dropped, as in the reference */
    pl_tok_close(t);
}
END_TEST

START_TEST(pipelines)
{
    static const struct {
        const char *steps, *text, *want;
    } rows[] = {
        {"\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}", "ab  c", "4 2"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Isolated\",\"invert\":"
         "false}",
         "abcb", "0 1 2 1"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Removed\"}", "abc",
         "0 2"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Removed\",\"invert\":"
         "true}",
         "abcb", "1 1"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"MergedWithPrevious\"}",
         "abcb", "4 2 1"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"MergedWithNext\"}",
         "abcab", "0 6 0 1"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab]\"},\"behavior\":\"Contiguous\"}", "abc",
         "4 2"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?=c)\"},\"behavior\":\"Isolated\"}", "abcbc",
         "4 2 1 2"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}",
         "a a", "11 11"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"never\",\"split\":false}", "a a", "0 11"},
        {"\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":2}", "abca", "4 2 0"},
        {"\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"x\"}", "axb", "0 1"},
        {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"},{\"type\":\"Digits\"},{"
         "\"type\":\"Punctuation\"}]}",
         "ab c", "4 2"},
        {"\"normalizer\":{\"type\":\"Lowercase\"}", "ABC", "5"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"}]}",
         "\xc3\xa1"
         "b",
         "4"},
        {"\"normalizer\":{\"type\":\"NFKC\"}",
         "\xef\xbd\x81"
         "b",
         "4"},
        {"\"normalizer\":{\"type\":\"Strip\"}", "  ab\n", "4"},
        {"\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"a\"}", "b", "4"},
        {"\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x+\"},\"content\":\"b\"}", "axxxc", "5"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[2048];
        snprintf(json, sizeof json, "{%s," MODEL "}", rows[i].steps);
        pl_tok *t = open_json(json);
        ck_assert_msg(!strcmp(encode(t, rows[i].text, strlen(rows[i].text), 0), rows[i].want), "%s: %s, want %s",
                      rows[i].steps, encode(t, rows[i].text, strlen(rows[i].text), 0), rows[i].want);
        pl_tok_close(t);
    }
}
END_TEST

START_TEST(added_tokens)
{
    pl_tok *t = open_json(
        "{\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[" ADDED("20", "<s>", "\"special\":true") "," ADDED("21", "<s>b", "\"special\":false,\"normalized\":false") "," ADDED(
            "22", "WORD",
            "\"special\":false,\"single_word\":true,\"normalized\":"
            "false") "," ADDED("23", "<l>",
                               "\"special\":false,\"lstrip\":true,"
                               "\"normalized\":false") "," ADDED("24", "<r>",
                                                                 "\"spe"
                                                                 "cial"
                                                                 "\":"
                                                                 "false"
                                                                 ",\"rs"
                                                                 "trip"
                                                                 "\":"
                                                                 "true,"
                                                                 "\"nor"
                                                                 "maliz"
                                                                 "ed\":"
                                                                 "fals"
                                                                 "e") "," ADDED("25", "CAP",
                                                                                "\"special\":false,\"normalized\":"
                                                                                "true") "," ADDED("26", "s>",
                                                                                                  "\"special\":"
                                                                                                  "false,"
                                                                                                  "\"normalized\":"
                                                                                                  "false") "],"
                                                                                                           "\"post_"
                                                                                                           "process"
                                                                                                           "or\":{"
                                                                                                           "\"type"
                                                                                                           "\":"
                                                                                                           "\"Templ"
                                                                                                           "ateProc"
                                                                                                           "essing"
                                                                                                           "\","
                                                                                                           "\"singl"
                                                                                                           "e\":[{"
                                                                                                           "\"Speci"
                                                                                                           "alToken"
                                                                                                           "\":{"
                                                                                                           "\"id\":"
                                                                                                           "\"<s>"
                                                                                                           "\"}},{"
                                                                                                           "\"Seque"
                                                                                                           "nce\":{"
                                                                                                           "\"id\":"
                                                                                                           "\"A\"}}"
                                                                                                           ",{"
                                                                                                           "\"Speci"
                                                                                                           "alToken"
                                                                                                           "\":{"
                                                                                                           "\"id\":"
                                                                                                           "\"<s>"
                                                                                                           "\"}}],"
                                                                                                           "\"speci"
                                                                                                           "al_"
                                                                                                           "tokens"
                                                                                                           "\":{\"<"
                                                                                                           "s>\":{"
                                                                                                           "\"ids\""
                                                                                                           ":[20]}}"
                                                                                                           "}"
                                                                                                           "," MODEL
                                                                                                           "}");
    want_ids(t, "a<s>b", PL_TOK_SPECIALS, "0 21"); /* the longest */
    want_ids(t, "a<s>c", PL_TOK_SPECIALS, "0 20 2");
    want_ids(t, "a<s>c", 0, "0 9 9 9 2"); /* a name that is not matched still hides `s>` */
    want_ids(t, "as>c", 0, "0 26 2");
    want_ids(t, "WORD", 0, "22");
    want_ids(t, "aWORD", 0, "0 9 9 9 9");
    want_ids(t, "a WORD.", 0, "0 3 22 9");
    want_ids(t, "a \n<l>b", 0, "0 23 1");
    want_ids(t, "a<r>  b", 0, "0 24 1");
    want_ids(t, "<r> <l>", 0, "24 23"); /* what one took the other cannot */
    want_ids(t, "caPb", 0, "25 1");     /* matched behind the normalizer */
    want_ids(t, "b", PL_TOK_BOS | PL_TOK_EOS, "20 1 20");
    want_ids(t, "", PL_TOK_BOS, "20");
    ck_assert(pl_tok_is_special(t, 20) && !pl_tok_is_special(t, 21) && !pl_tok_is_special(t, 15) &&
              !pl_tok_is_special(t, -1));
    ck_assert_int_eq(pl_tok_bos(t), 20);
    int32_t n;
    ck_assert_ptr_null(pl_tok_name(t, 15, &n)); /* a gap */
    ck_assert_ptr_null(pl_tok_bytes(t, 99, &n));
    pl_tok_close(t);
}
END_TEST

/* Patterns: what PCRE2 would read in another way, and what is not known. */
START_TEST(patterns)
{
    static const struct {
        const char *pattern, *text;
        int from, to;
    } rows[] = {
        {"\\p{Han}+", "a\xe4\xb8\xad\xe3\x80\x81", 1, 4}, /* the ideographic comma is Han only by extension */
        {"[a-z&&[^b]]+", "bacb", 1, 3},
        {"[\\p{L}&&[^\\p{Lu}]]+", "ABcdE", 2, 4},
        {"[\\w&&[^\\d]]+", "12ab3", 2, 4},
        {"[^a&&[ab]]", "abc", 1, 2},
        {"[[a-c][x]]+", "-axb-", 1, 4},
        {"[a[^b]]+", "bac", 1, 3},
        {"[^[^a]]", "ba", 1, 2},
        {"\\s", "a\xc2\x85", 1, 3},
        {"\\S",
         "\xe2\x80\xa8"
         "a",
         3, 4},
        {"[^\\s]+", "\xe3\x80\x80x", 3, 4},
        {"\\d+", "a\xd9\xa3", 1, 3},
        {"(?i:'S)", "'\xc5\xbf", 0, 3},
        {"a{,2}b", "aab", 0, 3},
        {"^b", "a\nb", 2, 3},
        {"a$", "ba\nc", 1, 2},
        {"[]a]+", "b]a", 1, 3},
        {"\\p{^L}", "a1", 1, 2},
        {"\\PL", "a1", 1, 2},
        {"\\p{Script=Greek}", "a\xce\xb1", 1, 3},
        {"\\x{4e2d}", "a\xe4\xb8\xad", 1, 4},
        {"\\bb", "ab b", 3, 4},
        {"[a\\-z]+", "b-z", 1, 3},
        {"[-a]+", "b-a", 1, 3},
        {"(a)(?:b)", "ab", 0, 2},
        {"a++b", "aab", 0, 3},
    };
    static const char *const refused[] = {
        "(",         ")",      "[",       "[]",    "[a",          "a{",           "a{x}",    "a{1",
        "\\",        "\\1",    "\\h",     "\\R",   "\\X",         "\\G",          "(?<n>a)", "(?P<n>a)",
        "(?a:b)",    "a(?i)b", "(*UTF)a", "(?#c)", "\\p{",        "\\p{Klingon}", "\\p{}",   "\\pQ",
        "[[:foo:]]", "[z-a]",  "[\\W]",   "[a&&]", "\\x{110000}", "\\u12",        "**",      "a{1,2}+"};
    pl_matcher m = {.n_text = 100};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pl_regex *re = NULL;
        int64_t a = -1, b = -1;
        ck_assert_msg(pl_regex_new(&re, rows[i].pattern, strlen(rows[i].pattern), false, &err) == PL_OK, "%s", err.msg);
        ck_assert_int_eq(pl_regex_find(re, &m, rows[i].text, strlen(rows[i].text), 0, &a, &b, &err), 1);
        ck_assert_msg(a == rows[i].from && b == rows[i].to, "%s: %d..%d, want %d..%d", rows[i].pattern, (int)a, (int)b,
                      rows[i].from, rows[i].to);
        pl_regex_free(re);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        pl_regex *re = NULL;
        const int rc = pl_regex_new(&re, refused[i], strlen(refused[i]), false, &err);
        ck_assert_msg(rc == PL_EFORMAT && strstr(err.msg, "pattern"), "'%s' gave %d", refused[i], rc);
    }
    pl_regex *re = NULL;
    int64_t a, b;
    char *text = malloc(200000);
    memset(text, 'a', 200000);
    ck_assert_int_eq(pl_regex_new(&re, "(?:a+a+)+[bc]", 13, false, &err), PL_OK);
    ck_assert_int_eq(pl_regex_find(re, &m, text, 200000, 0, &a, &b, &err), PL_ELIMIT); /* not for ever */
    pl_regex_free(re);
    ck_assert_int_eq(pl_regex_new(&re, "(?:(?!b)[a-c])*d", 16, false, &err), PL_OK); /* a frame per character */
    text[199999] = 'd';
    ck_assert_int_eq(pl_regex_find(re, &m, text, 200000, 0, &a, &b, &err), 1);
    ck_assert(a == 0 && b == 200000);
    pl_regex_free(re);
    free(text);
    pl_matcher_free(&m);
}
END_TEST

static pl_tok *open_tiny(void)
{
    pl_tok *t = NULL;
    ck_assert_msg(pl_tok_open_hf(&t, PL_SOURCE_DIR "/tests/data/tiny-llama", &err) == PL_OK, "%s", err.msg);
    return t;
}

START_TEST(any_bytes)
{
    pl_tok *t = open_tiny();
    unsigned seed = 7;
    for (int round = 0; round < 2000; round++) {
        char text[64];
        const int n = rand_r(&seed) % 64;
        for (int i = 0; i < n; i++)
            text[i] = (char)(round % 2 ? rand_r(&seed)
                                       : "a \xe4\xb8\xad\xf0\x9f\x98\x80\xc3\xa9\xed\xa0\n"[rand_r(&seed) % 15]);
        check_bytes(t, text, n);
    }
    check_bytes(t, "\0\0a\0", 4);
    ck_assert_int_lt(pl_tok_encode(t, &(pl_ids){0}, "a", -1, 0, &err), 0);
    pl_tok_close(t);
}
END_TEST

static const char *decode(const pl_tok *t, const char *bytes, int n)
{
    static char out[256];
    pl_text text = {0};
    pl_tok_stream s = {0};
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(pl_tok_stream_put(t, &s, &text, t->byte_id[(uint8_t)bytes[i]], 0, &err), PL_OK);
        ck_assert_int_eq(pl_utf8_valid(text.data ? text.data : "", text.n), text.n);
    }
    ck_assert_int_eq(pl_tok_stream_end(t, &s, &text, &err), PL_OK);
    snprintf(out, sizeof out, "%.*s", text.n, text.data ? text.data : "");
    pl_text_free(&text);
    return out;
}

START_TEST(streams)
{
    pl_tok *t = open_tiny();
    ck_assert_str_eq(decode(t, "a\xe4\xb8\xad", 4), "a\xe4\xb8\xad");
    ck_assert_str_eq(decode(t, "\xe4\xb8", 2), BAD);
    ck_assert_str_eq(decode(t,
                            "\xe4\xb8"
                            "a",
                            3),
                     BAD "a");
    ck_assert_str_eq(decode(t, "\xe4\xf0\x9f\x98\x80", 5), BAD "\xf0\x9f\x98\x80");
    ck_assert_str_eq(decode(t, "\xff\x80\xc0\xaf", 4), BAD BAD BAD BAD);
    ck_assert_str_eq(decode(t, "\xed\xa0\x80", 3), BAD BAD BAD);
    ck_assert_str_eq(decode(t, "\xf4\x90\x80", 3), BAD BAD BAD);
    pl_text out = {0};
    const int32_t ids[] = {1, 5000, t->byte_id['x'], 0};
    ck_assert_int_eq(pl_tok_decode(t, &out, ids, 4, 0, &err), PL_OK);
    ck_assert(out.n == 1 && out.data[0] == 'x'); /* special tokens and rows without a token are silent */
    ck_assert_int_eq(pl_tok_decode(t, &out, ids, 1, PL_TOK_SPECIALS, &err), PL_OK);
    ck_assert(out.n == 13 && !memcmp(out.data, "x<|im_start|>", 13));
    ck_assert_int_eq(pl_tok_decode(t, &out, (int32_t[]){-1}, 1, 0, &err), PL_EARG);
    pl_text_free(&out);
    pl_tok_close(t);
}
END_TEST

/* The plainest BPE: look for the lowest rank again after every merge. */
static int plain_bpe(const pl_tok *t, const char *p, int n, int32_t *id)
{
    for (int i = 0; i < n; i++) id[i] = t->byte_id[(uint8_t)p[i]];
    for (;;) {
        const pl_pair *best = NULL;
        int at = 0;
        for (int i = 0; i + 1 < n; i++) {
            const pl_pair *m = pl_pairs_get(&t->pairs, id[i], id[i + 1]);
            if (m && (!best || m->rank < best->rank)) best = m, at = i;
        }
        if (!best) return n;
        id[at] = best->id;
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
        n--;
    }
}

START_TEST(short_and_long_pieces)
{
    pl_tok *t = open_tiny();
    unsigned seed = 3;
    for (int round = 0; round < 400; round++) {
        char text[300];
        int32_t want[300];
        pl_ids ids = {0};
        const int n = 1 + rand_r(&seed) % 299, kinds = round % 3 == 0 ? 2 : 8;
        for (int i = 0; i < n; i++) text[i] = "etaoinsr"[rand_r(&seed) % kinds];
        ck_assert_int_eq(pl_tok_encode(t, &ids, text, n, 0, &err), PL_OK);
        const int k = plain_bpe(t, text, n, want);
        ck_assert_msg(k == ids.n && !memcmp(want, ids.id, k * sizeof *want), "a word of %d letters differs", n);
        pl_ids_free(&ids);
    }
    pl_tok_close(t);
}
END_TEST

/* A megabyte of any kind takes a second or so; a quadratic step anywhere would take hours. */
START_TEST(long_texts)
{
    static const char *const unit[] = {
        "a",          " ", "\n",    "A",    "aB",           "7",  "\xe4\xb8\xad", "e\xcc\x81\xcc\x96", "<",
        "<|im_start", "'", "\x01 ", "\xff", "\xe2\x96\x81", "x y"};
    enum { N = 1 << 20 };
    pl_tok *t[2] = {open_tiny(), NULL};
    ck_assert_int_eq(pl_tok_open_hf(&t[1], PL_SOURCE_DIR "/tests/data/tokens/tiny-kimi", &err), PL_OK);
    char *text = malloc(N);
    double slowest = 0;
    for (size_t k = 0; k < sizeof unit / sizeof *unit; k++) {
        for (size_t i = 0; i < N; i++) text[i] = unit[k][i % strlen(unit[k])];
        text[N - 1] = 'x';
        for (int w = 0; w < 2; w++) {
            pl_ids ids = {0};
            const clock_t begin = clock();
            ck_assert_msg(pl_tok_encode(t[w], &ids, text, N, 0, &err) == PL_OK, "%s", err.msg);
            const double s = (double)(clock() - begin) / CLOCKS_PER_SEC;
            if (s > slowest) slowest = s;
            pl_ids_free(&ids);
        }
    }
    printf("tok: slowest megabyte %.2f s\n", slowest);
    ck_assert(slowest < 30); /* sanitizers and slow machines included */
    free(text);
    pl_tok_close(t[0]);
    pl_tok_close(t[1]);
}
END_TEST

/* Canonical order of a very long run of marks: by class, each class in the order of the text. */
START_TEST(long_runs_of_marks)
{
    enum { N = 200000 };
    pl_norm step = {.kind = PL_NORM_NFD};
    pl_buf scratch[2] = {{0}, {0}}, text = {0};
    pl_matcher m = {.n_text = 1};
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(pl_buf_char(&text, i % 2 ? 0x316 : 0x301, &err), PL_OK); /* classes 220, 230 */
    const char *p = text.p;
    int64_t n = text.n;
    ck_assert_int_eq(pl_normalize(&step, 1, &m, scratch, &p, &n, &err), PL_OK);
    ck_assert_int_eq(n, text.n);
    int32_t k;
    for (int i = 0; i < N; i++) ck_assert(pl_utf8_get(p + 2 * i, &k) == (i < N / 2 ? 0x316u : 0x301u));
    pl_buf_free(&text);
    pl_buf_free(&scratch[0]);
    pl_buf_free(&scratch[1]);
    pl_matcher_free(&m);
}
END_TEST

typedef struct job {
    pl_tok *t;
    pl_ids ids;
} job;
static const char shared_text[] = "It's 12 o'clock: na\xc3\xafve \xe4\xb8\xad\xe6\x96\x87 <|im_start|>  text\n\n";

static void *encode_often(void *arg)
{
    job *j = arg;
    for (int i = 0; i < 300; i++) {
        j->ids.n = 0;
        if (pl_tok_encode(j->t, &j->ids, shared_text, sizeof shared_text - 1, i % 2 ? 0 : PL_TOK_SPECIALS, NULL) < 0)
            j->ids.n = -1;
    }
    pl_tok_close(j->t);
    return NULL;
}

START_TEST(threads)
{
    pl_tok *t = open_tiny();
    job j[4];
    pthread_t th[4];
    for (int i = 0; i < 4; i++) {
        j[i] = (job){t, {0}};
        pl_tok_keep(t);
        ck_assert_int_eq(pthread_create(&th[i], NULL, encode_often, &j[i]), 0);
    }
    pl_tok_close(t); /* the last thread frees it */
    for (int i = 0; i < 4; i++) pthread_join(th[i], NULL);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(j[i].ids.n, j[0].ids.n);
        ck_assert(!memcmp(j[i].ids.id, j[0].ids.id, j[0].ids.n * sizeof(int32_t)));
    }
    for (int i = 0; i < 4; i++) pl_ids_free(&j[i].ids);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tok");
    TCase *c = tcase_create("tok");
    tcase_set_timeout(c, 300);
    tcase_add_test(c, merges);
    tcase_add_test(c, pipelines);
    tcase_add_test(c, added_tokens);
    tcase_add_test(c, patterns);
    tcase_add_test(c, any_bytes);
    tcase_add_test(c, streams);
    tcase_add_test(c, short_and_long_pieces);
    tcase_add_test(c, long_texts);
    tcase_add_test(c, long_runs_of_marks);
    tcase_add_test(c, threads);
    suite_add_tcase(s, c);
    return run_suite(s);
}
