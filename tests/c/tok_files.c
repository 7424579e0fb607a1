/* Tokenizers as files bring them: tokenizer.json that is malformed or damaged, the vocabularies of GGUF files, and
 * tiktoken.model. */
#include "suite.h"
#include "tok_help.h"

static void refuse(const char *json, const char *why)
{
    pl_tok *t = NULL;
    err = (pl_err){0};
    const int rc = pl_tok_open_json(&t, json, strlen(json), NULL, 0, &err);
    ck_assert_msg(rc < 0 && !t && strstr(err.msg, why), "%s: code %d '%s', want '%s'", json, rc, err.msg, why);
}

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
    refuse("{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," MODEL "}",
           "pre_tokenizer 'UnicodeScripts' is not known");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}," MODEL "}",
           "'(' without");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}," MODEL "}",
           "'Sideways' is not known");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}," MODEL "}",
           "empty pattern");
    refuse("{\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0}," MODEL "}", "length 0");
    refuse("{\"decoder\":{\"type\":\"CTC\"}," MODEL "}", "decoder 'CTC' is not known");
    refuse("{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}," MODEL
           "}",
           "whole text");
    refuse("{\"decoder\":{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}," MODEL "}",
           "not one character");
    refuse("{\"post_processor\":{\"type\":\"X\"}," MODEL "}", "post_processor 'X' is not known");
    refuse("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}}],"
           "\"special_tokens\":{}}," MODEL "}",
           "'q' is missing");
    refuse("{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"x\",77],\"sep\":[\"x\",0]}," MODEL "}",
           "id 77 is no token");
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
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[x-z&&[^y]]+\"},\"content\":\"b\"},\"added_"
        "tokens\":[" ADDED("20", "<s>",
                           "\"special\":true") "],\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'"
                                               "s)| ?\\\\p{L}+|\\\\s+(?!\\\\S)\"},\"behavior\":\"Isolated\"},"
                                               "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
                                               "\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":"
                                               "\" \",\"start\":1,\"stop\":0}]}," MODEL "}";
    static const char text[] = "ab <s>'S xyz\xe4\xb8\xad \xff  a";
    unsigned seed = 1;
    int opened = 0;
    for (int round = 0; round < 6000; round++) {
        const bool cut = round < (int)sizeof json;
        const size_t n = cut ? (size_t)round : sizeof json - 1;
        char *copy = malloc(n + !n);
        memcpy(copy, json, n);
        for (int k = 0; !cut && k < 1 + round % 3; k++)
            copy[rand_r(&seed) % n] = (char)(round % 2 ? "0129[]{},:\"\\ab"[rand_r(&seed) % 14] : rand_r(&seed));
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
    static const char *const token[] = {"<unk>", "<s>", "</s>", "<0xE4>", "<0xB8>", "<0xAD>", "a",   "b",
                                        U,       "ab",  U "a",  U "ab",   "ba",     "  ",     "   ", "\n"};
    static const int32_t type[] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4};
    static const float score[] = {0, 0, 0, 0, 0, 0, -10, -11, -12, -2, -1, -3, -2, 0, 0, 0};
    pl_str buf[16];
    pl_tok_vocab v = {.model = str("llama"),
                      .pre = str("default"),
                      .score = score,
                      .type = type,
                      .bos = 1,
                      .eos = 2,
                      .unk = 0,
                      .add_bos = -1,
                      .add_eos = -1,
                      .add_space_prefix = 0};
    pl_tok *t = open_gguf(&v, token, 16, buf);
    want_ids(t, "ab", 0, "9");
    want_ids(t, "bab", 0, "12 7"); /* equal scores: the leftmost */
    want_ids(t, " ab", 0, "11");
    want_ids(t, "a     b", 0, "6 14 13 7");
    want_ids(t, "b ab b", 0, "7 11 8 7");
    want_ids(t, "\xe4\xb8\xad", 0, "3 4 5");
    want_ids(t,
             "a\xe4\xb8"
             "b",
             0, "6 3 4 7");
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
    static const char *const token[] = {"a",
                                        "b",
                                        "\xc4\xa0",
                                        ("\xc4\xa0"
                                         "a"),
                                        "1",
                                        "<|x|>",
                                        "<y>"};
    static const int32_t type[] = {1, 1, 1, 1, 1, 3, 4};
    pl_str buf[8], merge[] = {str("\xc4\xa0 a")};
    pl_tok_vocab v = {.model = str("gpt2"),
                      .pre = str("qwen2"),
                      .type = type,
                      .merge = merge,
                      .n_merges = 1,
                      .bos = 5,
                      .eos = 99,
                      .unk = -1,
                      .add_bos = -1,
                      .add_eos = -1,
                      .add_space_prefix = -1};
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
    ck_assert_msg(strstr(err.msg, "'no-such'") && strstr(err.msg, "llama-bpe") && strstr(err.msg, "deepseek-v3") &&
                      strstr(err.msg, "seed-coder"),
                  "%s", err.msg);
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
    static const char *const names[] = {
        "default",     "gpt-2",  "smollm",     "llama-bpe", "llama3",    "qwen2", "deepseek-llm", "deepseek-coder",
        "deepseek-v3", "gpt-4o", "o200k",      "tekken",    "kimi-k2",   "glm4",  "chatglm-bpe",  "olmo",
        "falcon",      "bloom",  "seed-coder", "stablelm2", "starcoder", "phi-2", "command-r"};
    static const char text[] = "It's  HTTPServer2Go\r\n\r\n 1234 \xe4\xb8\xad\xe6\x96\x87\xe3\x80\x82 "
                               "\xd0\x9c\xd0\xb8\xd1\x80\t\t!!// \xc2\xa0x\n ";
    char chars[256][4];
    pl_str token[257];
    for (int b = 0; b < 256; b++) token[b] = (pl_str){chars[b], pl_utf8_put(chars[b], pl_byte_char(b))};
    token[256] = str("\xc4\xa0\xc4\xa0");
    pl_str merge = str("\xc4\xa0 \xc4\xa0");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        pl_tok_vocab v = {.model = str("gpt2"),
                          .pre = str(names[i]),
                          .token = token,
                          .n_tokens = 257,
                          .merge = &merge,
                          .n_merges = 1,
                          .bos = -1,
                          .eos = -1,
                          .unk = -1,
                          .add_bos = -1,
                          .add_eos = -1,
                          .add_space_prefix = -1};
        pl_tok *t = NULL;
        ck_assert_msg(pl_tok_open_gguf(&t, &v, &err) == PL_OK, "%s: %s", names[i], err.msg);
        check_bytes(t, text, sizeof text - 1);
        pl_tok_close(t);
    }
}
END_TEST

START_TEST(tiktoken)
{
    static const char
        good[] = "YQ== 0\nYg== 1\nYWI= 2\n",
        config[] =
            "{\"added_tokens_decoder\":{\"3\":{\"content\":\"[BOS]\",\"special\":true}},\"bos_token\":\"[BOS]\"}";
    static const char *const bad[] = {"YQ==",       "YQ== x\n",       "!! 0\n", "YQ== 0\nYQ== 1\n", "YQ== 0\nYg== 0\n",
                                      "YQ== 0 1\n", "YQ== 99999999\n"};
    pl_tok *t = NULL;
    ck_assert_msg(pl_tok_open_tiktoken(&t, good, sizeof good - 1, config, sizeof config - 1, &err) == PL_OK, "%s",
                  err.msg);
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
    Suite *s = suite_create("tok_files");
    TCase *c = tcase_create("files");
    tcase_set_timeout(c, 300);
    tcase_add_test(c, malformed);
    tcase_add_test(c, damaged);
    tcase_add_test(c, sentencepiece);
    tcase_add_test(c, byte_level_gguf);
    tcase_add_test(c, families);
    tcase_add_test(c, tiktoken);
    suite_add_tcase(s, c);
    return run_suite(s);
}
