/* Golden token ids: for every row the ids with and without special tokens, the text they decode to, and the same text
 * when they are decoded one at a time. The rows in tests/data always run; those beside the checkout, and those of
 * real model files, where they are. How many ran and how many were skipped is printed; too few is a failure. */
#include "base.h"
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int n_run, n_skipped;

static bool there(const char *path) { return access(path, R_OK) == 0; }

static int open_any(pl_tok **t, const char *path, pl_err *err)
{
    pl_ckpt *c = NULL;
    if (!strstr(path, ".gguf")) return pl_tok_open_hf(t, path, err);
    int rc = pl_ckpt_open(&c, path, err);
    if (rc >= 0) rc = pl_tok_open_ckpt(t, c, err);
    pl_ckpt_close(c);
    return rc;
}

static void check_ids(const char *where, const char *what, const pl_ids *got, const json_t *want)
{
    ck_assert_msg(got->n == (int)json_array_size(want), "%s: %s: %d ids, want %zu", where, what, got->n,
                  json_array_size(want));
    for (int i = 0; i < got->n; i++)
        ck_assert_msg(got->id[i] == json_integer_value(json_array_get(want, i)), "%s: %s: id %d is %d, want %lld",
                      where, what, i, got->id[i], (long long)json_integer_value(json_array_get(want, i)));
}

static void check_text(const char *where, const char *what, const pl_text *got, const json_t *want)
{
    ck_assert_msg(got->n == (int)json_string_length(want) &&
                      !memcmp(got->data ? got->data : "", json_string_value(want), got->n),
                  "%s: %s: '%.*s', want '%s'", where, what, got->n, got->data, json_string_value(want));
}

static void check_row(const pl_tok *t, const char *file, const json_t *row)
{
    char where[300];
    pl_err err;
    pl_ids ids = {0}, plain = {0};
    pl_text whole = {0}, streamed = {0};
    pl_tok_stream s = {0};
    const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "ids");
    const json_t *want_plain = json_object_get(row, "ids_plain"), *want_text = json_object_get(row, "decoded");
    snprintf(where, sizeof where, "%s %s", file, json_string_value(json_object_get(row, "id")));
    ck_assert_msg(pl_tok_encode(t, &ids, json_string_value(text), json_string_length(text), PL_TOK_SPECIALS, &err) ==
                      PL_OK,
                  "%s: %s", where, err.msg);
    ck_assert_msg(pl_tok_encode(t, &plain, json_string_value(text), json_string_length(text), 0, &err) == PL_OK,
                  "%s: %s", where, err.msg);
    check_ids(where, "ids", &ids, want);
    check_ids(where, "ids_plain", &plain, want_plain ? want_plain : want);
    ck_assert_int_eq(pl_tok_decode(t, &whole, ids.id, ids.n, PL_TOK_SPECIALS, &err), PL_OK);
    check_text(where, "decoded", &whole, want_text ? want_text : text);
    for (int i = 0; i < ids.n; i++) {
        ck_assert_int_eq(pl_tok_stream_put(t, &s, &streamed, ids.id[i], PL_TOK_SPECIALS, &err), PL_OK);
        json_t *valid = json_stringn(streamed.data ? streamed.data : "", streamed.n); /* NULL if it is not UTF-8 */
        ck_assert_msg(valid != NULL, "%s: half a character after %d tokens", where, i + 1);
        json_decref(valid);
    }
    ck_assert_int_eq(pl_tok_stream_end(t, &s, &streamed, &err), PL_OK);
    check_text(where, "streamed", &streamed, want_text ? want_text : text);
    pl_ids_free(&ids);
    pl_ids_free(&plain);
    pl_text_free(&whole);
    pl_text_free(&streamed);
    n_run++;
}

/* Rows of a file by a tokenizer; both have to be there if `needed`. */
static void check_file(const char *tokenizer, const char *rows, bool needed)
{
    pl_err err = {0};
    pl_tok *t = NULL;
    static char line[1 << 20];
    if (!needed && (!there(tokenizer) || !there(rows))) {
        printf("tok_golden: skipped %s (%s is not there)\n", rows, there(rows) ? tokenizer : rows);
        n_skipped++;
        return;
    }
    ck_assert_msg(open_any(&t, tokenizer, &err) == PL_OK, "%s: %s", tokenizer, err.msg);
    FILE *f = fopen(rows, "r");
    ck_assert_msg(f != NULL, "%s is not there", rows);
    while (fgets(line, sizeof line, f)) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        ck_assert_msg(row != NULL, "%s: a row that is not JSON", rows);
        check_row(t, rows, row);
        json_decref(row);
    }
    fclose(f);
    pl_tok_close(t);
}

#define DATA PL_SOURCE_DIR "/tests/data"
#define SHARED PL_SOURCE_DIR "/../shared"

START_TEST(rows_in_the_tree)
{
    check_file(DATA "/tiny-llama", DATA "/tokens/tiny-bpe-1024.jsonl", true);
    check_file(DATA "/tokens/tiny-kimi", DATA "/tokens/tiny-kimi.jsonl", true);
    ck_assert_int_ge(n_run, 52 + 122);
}
END_TEST

START_TEST(rows_beside_the_tree)
{
    static const char *const hf[] = {"qwen3", "deepseek_v3", "gptoss", "tiny-kimi"};
    if (!there(SHARED "/golden")) {
        printf("tok_golden: skipped the goldens of real tokenizers (" SHARED " is not there)\n");
        n_skipped += 8;
        return;
    }
    const int before = n_run;
    for (size_t i = 0; i < sizeof hf / sizeof *hf; i++) {
        char tokenizer[300], rows[300];
        snprintf(tokenizer, sizeof tokenizer, SHARED "/tokenizers/%s", hf[i]);
        snprintf(rows, sizeof rows, SHARED "/golden/%s/tokens.jsonl", hf[i]);
        check_file(tokenizer, rows, true);
    }
    check_file(SHARED "/models/tiny-llama", SHARED "/golden/tiny-bpe-1024/tokens.jsonl", true);
    ck_assert_int_ge(n_run - before, 3 * 52 + 122 + 52);
}
END_TEST

START_TEST(rows_of_model_files)
{
    static const char *const model[][2] = {{"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1"},
                                           {"gemma-3-270m-q4_k_m.gguf", "gemma3-270m-q4_k_m"},
                                           {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-0.5b-q4_k_m"}};
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        char file[400], rows[300];
        snprintf(file, sizeof file, "%s%s/perilune/%s",
                 cache  ? cache
                 : home ? home
                        : "",
                 cache ? "" : "/.cache", model[i][0]);
        snprintf(rows, sizeof rows, SHARED "/golden/%s/tokens.jsonl", model[i][1]);
        check_file(file, rows, false);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tok_golden");
    TCase *c = tcase_create("rows");
    tcase_set_timeout(c, 300);
    tcase_add_test(c, rows_in_the_tree);
    tcase_add_test(c, rows_beside_the_tree);
    tcase_add_test(c, rows_of_model_files);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK); /* the counts are ours */
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    printf("tok_golden: %d rows ran, %d files skipped\n", n_run, n_skipped);
    srunner_free(r);
    return failed != 0;
}
