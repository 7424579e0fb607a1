/* The tokenizer on small vocabularies made here: pipelines, added tokens, bytes that are no text, streams, long texts,
 * threads, GGUF and tiktoken vocabularies, and files that are not what they say. */
#include "tok_impl.h"
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static pl_err err;

/* Ids as text: "1 2 3". */
static const char *encode(const pl_tok *t, const char *text, int64_t n, int32_t flags)
{
    static char out[1 << 16];
    pl_ids ids = {0};
    size_t k = 0;
    ck_assert_msg(pl_tok_encode(t, &ids, text, n, flags, &err) == PL_OK, "%s", err.msg);
    out[0] = 0;
    for (int32_t i = 0; i < ids.n && k < sizeof out - 16; i++) k += (size_t)snprintf(out + k, 16, i ? " %d" : "%d", ids.id[i]);
    pl_ids_free(&ids);
    return out;
}

#define want_ids(t, text, flags, want) ck_assert_str_eq(encode(t, text, sizeof(text) - 1, flags), want)

static pl_tok *open_json(const char *json)
{
    pl_tok *t = NULL;
    ck_assert_msg(pl_tok_open_json(&t, json, strlen(json), NULL, 0, &err) == PL_OK, "%s", err.msg);
    return t;
}

static void refuse(const char *json, const char *why)
{
    pl_tok *t = NULL;
    err = (pl_err){0};
    const int rc = pl_tok_open_json(&t, json, strlen(json), NULL, 0, &err);
    ck_assert_msg(rc < 0 && !t && strstr(err.msg, why), "%s: code %d '%s', want '%s'", json, rc, err.msg, why);
}

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\" \":3,\"ab\":4,\"abc\":5,\"bc\":6,\"aa\":7,\"aaaa\":8,\"<u>\":9,\"\xe2\x96\x81\":10,\"\xe2\x96\x81" "a\":11}"
#define MERGES "\"merges\":[[\"a\",\"b\"],[\"b\",\"c\"],\"ab c\",[\"a\",\"a\"],[\"aa\",\"aa\"],[\"\xe2\x96\x81\",\"a\"]]"
#define MODEL "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<u>\"," VOCAB "," MERGES "}"

START_TEST(merges)
{
    pl_tok *t = open_json("{" MODEL "}");
    want_ids(t, "", 0, "");
    want_ids(t, "abc", 0, "5");
    want_ids(t, "bc", 0, "6");
    want_ids(t, "aabc", 0, "0 5");
    want_ids(t, "aaaaaaa", 0, "8 7 0"); /* leftmost first */
    want_ids(t, "xxa", 0, "9 9 0");
    want_ids(t, "\xe4\xb8\xad" "ab", 0, "9 4");
    want_ids(t, "a\xff\xfe" "b", 0, "0 9 1"); /* no byte tokens: one unknown character */
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
    static const struct { const char *steps, *text, *want; } rows[] = {
        {"\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}", "ab  c", "4 2"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Isolated\",\"invert\":false}", "abcb", "0 1 2 1"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Removed\"}", "abc", "0 2"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Removed\",\"invert\":true}", "abcb", "1 1"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"MergedWithPrevious\"}", "abcb", "4 2 1"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"MergedWithNext\"}", "abcab", "0 6 0 1"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab]\"},\"behavior\":\"Contiguous\"}", "abc", "4 2"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?=c)\"},\"behavior\":\"Isolated\"}", "abcbc", "4 2 1 2"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}", "a a", "11 11"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"never\",\"split\":false}", "a a", "0 11"},
        {"\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":2}", "abca", "4 2 0"},
        {"\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"x\"}", "axb", "0 1"},
        {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"},{\"type\":\"Digits\"},{\"type\":\"Punctuation\"}]}", "ab c", "4 2"},
        {"\"normalizer\":{\"type\":\"Lowercase\"}", "ABC", "5"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"}]}", "\xc3\xa1" "b", "4"},
        {"\"normalizer\":{\"type\":\"NFKC\"}", "\xef\xbd\x81" "b", "4"},
        {"\"normalizer\":{\"type\":\"Strip\"}", "  ab\n", "4"},
        {"\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"a\"}", "b", "4"},
        {"\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x+\"},\"content\":\"b\"}", "axxxc", "5"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[2048];
        snprintf(json, sizeof json, "{%s," MODEL "}", rows[i].steps);
        pl_tok *t = open_json(json);
        ck_assert_msg(!strcmp(encode(t, rows[i].text, strlen(rows[i].text), 0), rows[i].want), "%s: %s, want %s", rows[i].steps,
                      encode(t, rows[i].text, strlen(rows[i].text), 0), rows[i].want);
        pl_tok_close(t);
    }
}
END_TEST

#define ADDED(id, name, flags) "{\"id\":" id ",\"content\":\"" name "\"," flags "}"

START_TEST(added_tokens)
{
    pl_tok *t = open_json("{\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":["
        ADDED("20", "<s>", "\"special\":true") "," ADDED("21", "<s>b", "\"special\":false,\"normalized\":false") ","
        ADDED("22", "WORD", "\"special\":false,\"single_word\":true,\"normalized\":false") ","
        ADDED("23", "<l>", "\"special\":false,\"lstrip\":true,\"normalized\":false") ","
        ADDED("24", "<r>", "\"special\":false,\"rstrip\":true,\"normalized\":false") ","
        ADDED("25", "CAP", "\"special\":false,\"normalized\":true") "," ADDED("26", "s>", "\"special\":false,\"normalized\":false") "],"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<s>\"}}],"
        "\"special_tokens\":{\"<s>\":{\"ids\":[20]}}}," MODEL "}");
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
    ck_assert(pl_tok_is_special(t, 20) && !pl_tok_is_special(t, 21) && !pl_tok_is_special(t, 15) && !pl_tok_is_special(t, -1));
    ck_assert_int_eq(pl_tok_bos(t), 20);
    int32_t n;
    ck_assert_ptr_null(pl_tok_name(t, 15, &n)); /* a gap */
    ck_assert_ptr_null(pl_tok_bytes(t, 99, &n));
    pl_tok_close(t);
}
END_TEST

START_TEST(malformed)
{
    refuse("", "tokenizer.json");
    refuse("[]", "not an object");
    refuse("{}", "'model' is missing");
    refuse("{\"model\":[]}", "want an object");
    refuse("{\"model\":{\"type\":\"Unigram\"}}", "'Unigram' is not supported");
    refuse("{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", "'vocab'");
    refuse("{\"model\":{\"vocab\":{},\"merges\":[]}}", "no tokens");
    refuse("{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", "no integer id");
    refuse("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "has id -1");
    refuse("{\"model\":{\"vocab\":{\"a\":2000000000},\"merges\":[]}}", "has id 2000000000");
    refuse("{\"model\":{\"vocab\":{\"a\":99999999999999999999},\"merges\":[]}}", "integer");
    refuse("{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "id 0 is given to 'a' and to 'b'");
    refuse("{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "duplicate");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"x\"]]}}", "merge 0: 'x' is no token");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\"]]}}", "merge 0: 'aa' is no token");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "merge 0 is not a pair");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "merge 0 is not a pair");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", "merge 0 is not a pair");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[1]}}", "merge 0 is not a pair");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"\",\"\"]]}}", "merge 0");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", "unk_token");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", "end_of_word_suffix");
    refuse("{\"normalizer\":{\"type\":\"Precompiled\"}," MODEL "}", "normalizer 'Precompiled' is not known");
    refuse("{\"normalizer\":{}," MODEL "}", "'type' is missing");
    refuse("{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," MODEL "}", "pre_tokenizer 'UnicodeScripts' is not known");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}," MODEL "}", "'(' without");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}," MODEL "}", "'Sideways' is not known");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}," MODEL "}", "empty pattern");
    refuse("{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0}," MODEL "}", "length 0");
    refuse("{\"decoder\":{\"type\":\"CTC\"}," MODEL "}", "decoder 'CTC' is not known");
    refuse("{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}," MODEL "}", "whole text");
    refuse("{\"decoder\":{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}," MODEL "}", "not one character");
    refuse("{\"post_processor\":{\"type\":\"X\"}," MODEL "}", "post_processor 'X' is not known");
    refuse("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}}],\"special_tokens\":{}}," MODEL "}", "'q' is missing");
    refuse("{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"x\",77],\"sep\":[\"x\",0]}," MODEL "}", "id 77 is no token");
    refuse("{\"added_tokens\":[{\"id\":0,\"content\":\"zz\"}]," MODEL "}", "id 0 is 'a' in the model and 'zz'");
    refuse("{\"added_tokens\":[{\"id\":50,\"content\":\"a\"}]," MODEL "}", "token 'a' has ids 0 and 50");
    refuse("{\"added_tokens\":[{\"id\":-5,\"content\":\"q\"}]," MODEL "}", "has id -5");
    refuse("{\"added_tokens\":[{\"content\":\"q\"}]," MODEL "}", "'id' is missing");
    refuse("{\"added_tokens\":[7]," MODEL "}", "added token 0");
    char deep[4096] = "{\"normalizer\":";
    for (int i = 0; i < 20; i++) strcat(deep, "{\"type\":\"Sequence\",\"normalizers\":[");
    strcat(deep, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 20; i++) strcat(deep, "]}");
    strcat(deep, "," MODEL "}");
    refuse(deep, "in one another");
}
END_TEST

/* Cut or changed anywhere, a file is read or refused, and what is read can be used. ASan watches. */
START_TEST(damaged)
{
    static const char json[] = "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[x-z&&[^y]]+\"},\"content\":\"b\"},\"added_tokens\":["
        ADDED("20", "<s>", "\"special\":true") "],\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s)| ?\\\\p{L}+|\\\\s+(?!\\\\S)\"},\"behavior\":\"Isolated\"},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}," MODEL "}";
    static const char text[] = "ab <s>'S xyz\xe4\xb8\xad \xff  a";
    unsigned seed = 1;
    int opened = 0;
    for (int round = 0; round < 6000; round++) {
        const bool cut = round < (int)sizeof json;
        const size_t n = cut ? (size_t)round : sizeof json - 1;
        char *copy = malloc(n + !n);
        memcpy(copy, json, n);
        for (int k = 0; !cut && k < 1 + round % 3; k++) copy[rand_r(&seed) % n] = (char)(round % 2 ? "0129[]{},:\"\\ab"[rand_r(&seed) % 14] : rand_r(&seed));
        pl_tok *t = NULL;
        if (pl_tok_open_json(&t, copy, n, NULL, 0, &err) == PL_OK) {
            pl_ids ids = {0};
            pl_text out = {0};
            if (pl_tok_encode(t, &ids, text, sizeof text - 1, PL_TOK_SPECIALS, &err) == PL_OK)
                ck_assert_int_eq(pl_tok_decode(t, &out, ids.id, ids.n, PL_TOK_SPECIALS, &err), PL_OK);
            ck_assert(pl_utf8_valid(out.data ? out.data : "", out.n) == out.n);
            pl_ids_free(&ids);
            pl_text_free(&out);
            pl_tok_close(t);
            opened++;
        }
        free(copy);
    }
    ck_assert_int_gt(opened, 100);
}
END_TEST

/* Patterns: what PCRE2 would read in another way, and what is not known. */
START_TEST(patterns)
{
    static const struct { const char *pattern, *text; int from, to; } rows[] = {
        {"\\p{Han}+", "a\xe4\xb8\xad\xe3\x80\x81", 1, 4},       /* the ideographic comma is Han only by extension */
        {"[a-z&&[^b]]+", "bacb", 1, 3}, {"[\\p{L}&&[^\\p{Lu}]]+", "ABcdE", 2, 4}, {"[\\w&&[^\\d]]+", "12ab3", 2, 4},
        {"[^a&&[ab]]", "abc", 1, 2}, {"[[a-c][x]]+", "-axb-", 1, 4}, {"[a[^b]]+", "bac", 1, 3}, {"[^[^a]]", "ba", 1, 2},
        {"\\s", "a\xc2\x85", 1, 3}, {"\\S", "\xe2\x80\xa8" "a", 3, 4}, {"[^\\s]+", "\xe3\x80\x80x", 3, 4}, {"\\d+", "a\xd9\xa3", 1, 3},
        {"(?i:'S)", "'\xc5\xbf", 0, 3}, {"a{,2}b", "aab", 0, 3}, {"^b", "a\nb", 2, 3}, {"a$", "ba\nc", 1, 2}, {"[]a]+", "b]a", 1, 3},
        {"\\p{^L}", "a1", 1, 2}, {"\\PL", "a1", 1, 2}, {"\\p{Script=Greek}", "a\xce\xb1", 1, 3}, {"\\x{4e2d}", "a\xe4\xb8\xad", 1, 4},
        {"\\bb", "ab b", 3, 4}, {"[a\\-z]+", "b-z", 1, 3}, {"[-a]+", "b-a", 1, 3}, {"(a)(?:b)", "ab", 0, 2}, {"a++b", "aab", 0, 3},
    };
    static const char *const refused[] = {"(", ")", "[", "[]", "[a", "a{", "a{x}", "a{1", "\\", "\\1", "\\h", "\\R", "\\X", "\\G", "(?<n>a)", "(?P<n>a)", "(?a:b)",
        "a(?i)b", "(*UTF)a", "(?#c)", "\\p{", "\\p{Klingon}", "\\p{}", "\\pQ", "[[:foo:]]", "[z-a]", "[\\W]", "[a&&]", "\\x{110000}", "\\u12", "**", "a{1,2}+"};
    pl_matcher m = {.n_text = 100};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pl_regex *re = NULL;
        int64_t a = -1, b = -1;
        ck_assert_msg(pl_regex_new(&re, rows[i].pattern, strlen(rows[i].pattern), false, &err) == PL_OK, "%s", err.msg);
        ck_assert_int_eq(pl_regex_find(re, &m, rows[i].text, strlen(rows[i].text), 0, &a, &b, &err), 1);
        ck_assert_msg(a == rows[i].from && b == rows[i].to, "%s: %d..%d, want %d..%d", rows[i].pattern, (int)a, (int)b, rows[i].from, rows[i].to);
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

/* The ids' own bytes joined are the input, whatever it was. */
static void check_bytes(const pl_tok *t, const char *text, int64_t n)
{
    pl_ids ids = {0};
    int64_t at = 0;
    ck_assert_int_eq(pl_tok_encode(t, &ids, text, n, 0, &err), PL_OK);
    for (int32_t i = 0; i < ids.n; i++) {
        int32_t k;
        const char *p = pl_tok_bytes(t, ids.id[i], &k);
        ck_assert(at + k <= n && !memcmp(p, text + at, k));
        at += k;
    }
    ck_assert_int_eq(at, n);
    pl_ids_free(&ids);
}

START_TEST(any_bytes)
{
    pl_tok *t = open_tiny();
    unsigned seed = 7;
    for (int round = 0; round < 2000; round++) {
        char text[64];
        const int n = rand_r(&seed) % 64;
        for (int i = 0; i < n; i++) text[i] = (char)(round % 2 ? rand_r(&seed) : "a \xe4\xb8\xad\xf0\x9f\x98\x80\xc3\xa9\xed\xa0\n"[rand_r(&seed) % 15]);
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

#define BAD "\xef\xbf\xbd"
START_TEST(streams)
{
    pl_tok *t = open_tiny();
    ck_assert_str_eq(decode(t, "a\xe4\xb8\xad", 4), "a\xe4\xb8\xad");
    ck_assert_str_eq(decode(t, "\xe4\xb8", 2), BAD);
    ck_assert_str_eq(decode(t, "\xe4\xb8" "a", 3), BAD "a");
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
    static const char *const unit[] = {"a", " ", "\n", "A", "aB", "7", "\xe4\xb8\xad", "e\xcc\x81\xcc\x96", "<", "<|im_start", "'", "\x01 ", "\xff", "\xe2\x96\x81", "x y"};
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
    for (int i = 0; i < N; i++) ck_assert_int_eq(pl_buf_char(&text, i % 2 ? 0x316 : 0x301, &err), PL_OK); /* classes 220, 230 */
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

typedef struct job { const pl_tok *t; pl_ids ids; } job;
static const char shared_text[] = "It's 12 o'clock: na\xc3\xafve \xe4\xb8\xad\xe6\x96\x87 <|im_start|>  text\n\n";

static void *encode_often(void *arg)
{
    job *j = arg;
    for (int i = 0; i < 300; i++) {
        j->ids.n = 0;
        if (pl_tok_encode(j->t, &j->ids, shared_text, sizeof shared_text - 1, i % 2 ? 0 : PL_TOK_SPECIALS, NULL) < 0) j->ids.n = -1;
    }
    return NULL;
}

START_TEST(threads)
{
    pl_tok *t = open_tiny();
    job j[4];
    pthread_t th[4];
    for (int i = 0; i < 4; i++) {
        j[i] = (job){t, {0}};
        ck_assert_int_eq(pthread_create(&th[i], NULL, encode_often, &j[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(th[i], NULL);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(j[i].ids.n, j[0].ids.n);
        ck_assert(!memcmp(j[i].ids.id, j[0].ids.id, j[0].ids.n * sizeof(int32_t)));
    }
    for (int i = 0; i < 4; i++) pl_ids_free(&j[i].ids);
    pl_tok_close(t);
}
END_TEST

/* GGUF */

static pl_str str(const char *s) { return (pl_str){s, (int64_t)strlen(s)}; }

static pl_tok *open_gguf(pl_tok_vocab *v, const char *const *token, int n, pl_str *buf)
{
    pl_tok *t = NULL;
    for (int i = 0; i < n; i++) buf[i] = str(token[i]);
    v->token = buf;
    v->n_tokens = n;
    ck_assert_msg(pl_tok_open_gguf(&t, v, &err) == PL_OK, "%s", err.msg);
    return t;
}

#define U "\xe2\x96\x81"
START_TEST(sentencepiece)
{
    static const char *const token[] = {"<unk>", "<s>", "</s>", "<0xE4>", "<0xB8>", "<0xAD>", "a", "b", U, "ab", U "a", U "ab", "ba", "  ", "   ", "\n"};
    static const int32_t type[] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4};
    static const float score[] = {0, 0, 0, 0, 0, 0, -10, -11, -12, -2, -1, -3, -2, 0, 0, 0};
    pl_str buf[16];
    pl_tok_vocab v = {.model = str("llama"), .pre = str("default"), .score = score, .type = type, .bos = 1, .eos = 2, .unk = 0, .add_bos = -1, .add_eos = -1, .add_space_prefix = 0};
    pl_tok *t = open_gguf(&v, token, 16, buf);
    want_ids(t, "ab", 0, "9");
    want_ids(t, "bab", 0, "12 7"); /* equal scores: the leftmost */
    want_ids(t, " ab", 0, "11");
    want_ids(t, "a     b", 0, "6 14 13 7");
    want_ids(t, "b ab b", 0, "7 11 8 7");
    want_ids(t, "\xe4\xb8\xad", 0, "3 4 5");
    want_ids(t, "a\xe4\xb8" "b", 0, "6 3 4 7");
    want_ids(t, "zza", 0, "0 6");
    want_ids(t, "<s>", PL_TOK_SPECIALS, "1");
    want_ids(t, "ab", PL_TOK_BOS, "1 9");
    pl_text out = {0};
    ck_assert_int_eq(pl_tok_decode(t, &out, (int32_t[]){10, 14, 3, 4, 5, 3, 4, 7}, 8, 0, &err), PL_OK);
    ck_assert(out.n == 15 && !memcmp(out.data, " a   \xe4\xb8\xad" BAD BAD "b", 15)); /* one U+FFFD a byte */
    pl_text_free(&out);
    pl_tok_close(t);
    v.add_space_prefix = -1; /* Llama 2: put in front, and taken off again */
    t = open_gguf(&v, token, 16, buf);
    want_ids(t, "ab", 0, "11");
    want_ids(t, "a<s>a", PL_TOK_SPECIALS, "10 1 10");
    want_ids(t, "\n", 0, "8 15");
    ck_assert_int_eq(pl_tok_decode(t, &out, (int32_t[]){10, 7, 10}, 3, 0, &err), PL_OK);
    ck_assert(out.n == 4 && !memcmp(out.data, "ab a", 4));
    pl_text_free(&out);
    pl_tok_close(t);
}
END_TEST

START_TEST(byte_level_gguf)
{
    static const char *const token[] = {"a", "b", "\xc4\xa0", "\xc4\xa0" "a", "1", "<|x|>", "<y>"};
    static const int32_t type[] = {1, 1, 1, 1, 1, 3, 4};
    pl_str buf[8], merge[] = {str("\xc4\xa0 a")};
    pl_tok_vocab v = {.model = str("gpt2"), .pre = str("qwen2"), .type = type, .merge = merge, .n_merges = 1, .bos = 5, .eos = 99, .unk = -1, .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
    pl_tok *t = open_gguf(&v, token, 7, buf);
    want_ids(t, "b a11<|x|><y>", PL_TOK_SPECIALS, "1 3 4 4 5 6");
    want_ids(t, "<y> a", PL_TOK_BOS, "6 3"); /* qwen2 puts nothing in front */
    ck_assert_int_eq(pl_tok_eos(t), -1);     /* out of range */
    pl_tok_close(t);
    v.pre = str("llama-bpe");
    t = open_gguf(&v, token, 7, buf);
    want_ids(t, "a", PL_TOK_BOS, "5 0");
    pl_tok_close(t);
    v.n_merges = 0; /* Kimi: the ids are the ranks */
    v.pre = str("kimi-k2");
    t = open_gguf(&v, token, 7, buf);
    want_ids(t, "b a<y>", 0, "1 3 6");
    pl_tok_close(t);

    v.pre = str("no-such");
    ck_assert_int_eq(pl_tok_open_gguf(&t, &v, &err), PL_EFORMAT);
    ck_assert_msg(strstr(err.msg, "'no-such'") && strstr(err.msg, "llama-bpe") && strstr(err.msg, "deepseek-v3") && strstr(err.msg, "seed-coder"), "%s", err.msg);
    v.pre = str("qwen2");
    merge[0] = str("a z");
    v.n_merges = 1;
    ck_assert_int_eq(pl_tok_open_gguf(&t, &v, &err), PL_EFORMAT);
    merge[0] = str("");
    ck_assert_int_eq(pl_tok_open_gguf(&t, &v, &err), PL_EFORMAT);
    v.model = str("t5");
    ck_assert_int_eq(pl_tok_open_gguf(&t, &v, &err), PL_EFORMAT);
    v.model = str("llama");
    ck_assert_int_eq(pl_tok_open_gguf(&t, &v, &err), PL_EFORMAT); /* no scores */
    v.score = (float[]){0, 0, 0, 0, __builtin_nanf(""), 0, 0};
    ck_assert_int_eq(pl_tok_open_gguf(&t, &v, &err), PL_EFORMAT);
    v.n_tokens = 0;
    ck_assert_int_eq(pl_tok_open_gguf(&t, &v, &err), PL_EFORMAT);
}
END_TEST

/* Every family's patterns compile, and keep all of a text. */
START_TEST(families)
{
    static const char *const names[] = {"default", "gpt-2", "smollm", "llama-bpe", "llama3", "qwen2", "deepseek-llm", "deepseek-coder", "deepseek-v3", "gpt-4o", "o200k",
        "tekken", "kimi-k2", "glm4", "chatglm-bpe", "olmo", "falcon", "bloom", "seed-coder", "stablelm2", "starcoder", "phi-2", "command-r"};
    static const char text[] = "It's  HTTPServer2Go\r\n\r\n 1234 \xe4\xb8\xad\xe6\x96\x87\xe3\x80\x82 \xd0\x9c\xd0\xb8\xd1\x80\t\t!!// \xc2\xa0x\n ";
    char chars[256][4];
    pl_str token[257];
    for (int b = 0; b < 256; b++) token[b] = (pl_str){chars[b], pl_utf8_put(chars[b], pl_byte_char(b))};
    token[256] = str("\xc4\xa0\xc4\xa0");
    pl_str merge = str("\xc4\xa0 \xc4\xa0");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        pl_tok_vocab v = {.model = str("gpt2"), .pre = str(names[i]), .token = token, .n_tokens = 257, .merge = &merge, .n_merges = 1, .bos = -1, .eos = -1, .unk = -1, .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
        pl_tok *t = NULL;
        ck_assert_msg(pl_tok_open_gguf(&t, &v, &err) == PL_OK, "%s: %s", names[i], err.msg);
        check_bytes(t, text, sizeof text - 1);
        pl_tok_close(t);
    }
}
END_TEST

START_TEST(tiktoken)
{
    static const char good[] = "YQ== 0\nYg== 1\nYWI= 2\n", config[] = "{\"added_tokens_decoder\":{\"3\":{\"content\":\"[BOS]\",\"special\":true}},\"bos_token\":\"[BOS]\"}";
    static const char *const bad[] = {"YQ==", "YQ== x\n", "!! 0\n", "YQ== 0\nYQ== 1\n", "YQ== 0\nYg== 0\n", "YQ== 0 1\n", "YQ== 99999999\n"};
    pl_tok *t = NULL;
    ck_assert_msg(pl_tok_open_tiktoken(&t, good, sizeof good - 1, config, sizeof config - 1, &err) == PL_OK, "%s", err.msg);
    want_ids(t, "aba", 0, "2 0");
    want_ids(t, "[BOS]a<|reserved_token_4|>", PL_TOK_SPECIALS, "3 0 4");
    ck_assert_int_eq(pl_tok_bos(t), 3);
    ck_assert_int_eq(pl_tok_size(t), 3 + 256);
    pl_tok_close(t);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(pl_tok_open_tiktoken(&t, bad[i], strlen(bad[i]), NULL, 0, &err) == PL_EFORMAT, "%s", bad[i]);
    ck_assert_int_eq(pl_tok_open_hf(&t, PL_SOURCE_DIR "/tests/c", &err), PL_EIO);
    ck_assert_int_eq(pl_tok_open_hf(&t, "/no/such/tokenizer.json", &err), PL_EIO);
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
    tcase_add_test(c, malformed);
    tcase_add_test(c, damaged);
    tcase_add_test(c, patterns);
    tcase_add_test(c, any_bytes);
    tcase_add_test(c, streams);
    tcase_add_test(c, short_and_long_pieces);
    tcase_add_test(c, long_texts);
    tcase_add_test(c, long_runs_of_marks);
    tcase_add_test(c, threads);
    tcase_add_test(c, sentencepiece);
    tcase_add_test(c, byte_level_gguf);
    tcase_add_test(c, families);
    tcase_add_test(c, tiktoken);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
