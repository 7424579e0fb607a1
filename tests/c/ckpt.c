/* Checkpoints on disk: directories, shards, single files, life times, texts; and the real files where they are. */
#include "ckpt.h"
#include "bytes.h"
#include "dtype.h"
#include "folder.h"
#include "suite.h"
#include "tensor.h"
#include "tok.h"
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static pl_ckpt *c;
static pl_err err;

static void write_text(const char *name, const char *s) { write_file(name, s, strlen(s)); }

/* A safetensors file of this head (padded by `pad` spaces) and data bytes 0, 1, 2, ... */
static void write_safetensors(const char *name, const char *head, int pad, int64_t n_data)
{
    bytes b = {0};
    put_u64(&b, strlen(head) + (uint64_t)pad);
    put_text(&b, head);
    for (int i = 0; i < pad; i++) put_u8(&b, ' ');
    for (int64_t i = 0; i < n_data; i++) put_u8(&b, (uint8_t)i);
    write_file(name, b.p, (size_t)b.n);
    bytes_free(&b);
}

static void setup(void)
{
    folder_make();
    err = (pl_err){0};
}

static int open_ckpt(const char *p)
{
    c = NULL;
    err = (pl_err){0};
    return pl_ckpt_open(&c, p, &err);
}

static void want(const char *p, int code, const char *text)
{
    const int rc = open_ckpt(p);
    ck_assert_msg(rc == code && strstr(err.msg, text), "got %d '%s', want %d '%s'", rc, err.msg, code, text);
    ck_assert_ptr_null(c);
}

/* "u" is 3 bytes, so that "w" lies at an odd place unless the head is padded. */
static const char two[] = "{\"u\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                          "\"w\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[3,11]},"
                          "\"q\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[11,12]},"
                          "\"v\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,1],\"data_offsets\":[12,14]}}";

START_TEST(directory)
{
    write_text("config.json", "{\"hidden_size\":4,\"rope_scaling\":{\"factor\":2.0},\"eos_token_id\":[1,2]}");
    write_text("generation_config.json", "{\"eos_token_id\":3}");
    for (int pad = 0; pad < 4; pad++) { /* every alignment of w */
        write_safetensors("model.safetensors", two, pad, 14);
        ck_assert_msg(open_ckpt(dir) == PL_OK, "%s", err.msg);
        ck_assert_int_eq(pl_ckpt_kind(c), PL_CKPT_HF);
        ck_assert_int_eq(pl_ckpt_count(c), 4);
        ck_assert_int_eq(pl_ckpt_bytes(c), 8 + (int64_t)strlen(two) + pad + 14);
        pl_tensor t;
        ck_assert_int_eq(pl_ckpt_tensor(c, pl_ckpt_find(c, "w"), &t, &err), PL_OK);
        ck_assert(t.dtype == PL_BF16 && t.layout == PL_ROWS && t.ndim == 2 && t.dim[0] == 2 &&
                  (uintptr_t)t.data % 2 == 0);
        ck_assert(!memcmp(t.data, "\3\4\5\6\7\10\11\12", 8));
        pl_tensor u;
        ck_assert_int_eq(pl_ckpt_tensor(c, pl_ckpt_find(c, "u"), &u, &err), PL_OK);
        ck_assert_int_eq(pl_ckpt_tensor(c, pl_ckpt_find(c, "q"), &t, &err), PL_EDTYPE);
        ck_assert(strstr(err.msg, "tensor 'q': format F8_E5M2"));
        ck_assert_int_eq(pl_ckpt_tensor(c, pl_ckpt_find(c, "v"), &t, &err), PL_EDTYPE);
        ck_assert(strstr(err.msg, "tensor 'v': 5 dims"));
        ck_assert_int_eq(pl_ckpt_tensor(c, 4, &t, &err), PL_EARG);
        ck_assert_int_eq(pl_ckpt_tensor(c, PL_ENAME, &t, &err), PL_EARG);
        pl_ckpt_info info;
        ck_assert_int_eq(pl_ckpt_info_at(c, pl_ckpt_find(c, "q"), &info, &err), PL_OK);
        ck_assert(info.dtype == -1 && !strcmp(info.format, "F8_E5M2") && !strcmp(info.name, "q"));
        pl_ckpt_drop(c, 0);
        pl_ckpt_close(c);
        ck_assert(!memcmp(u.data, "\0\1\2", 3)); /* the mapping lives on */
        pl_tensor_release(&u);
        pl_tensor_release(&t);
    }
    ck_assert_int_eq(open_ckpt(dir), PL_OK);
    int64_t v;
    double d;
    pl_meta_info info;
    ck_assert_int_eq(pl_ckpt_meta_int(c, pl_ckpt_meta_find(c, "hidden_size"), 0, &v, &err), PL_OK);
    ck_assert_int_eq(v, 4);
    ck_assert_int_eq(pl_ckpt_meta_float(c, pl_ckpt_meta_find(c, "rope_scaling.factor"), 0, &d, &err), PL_OK);
    ck_assert(d == 2);
    ck_assert_int_eq(pl_ckpt_meta_int(c, pl_ckpt_meta_find(c, "generation_config.eos_token_id"), 0, &v, &err), PL_OK);
    ck_assert_int_eq(v, 3);
    ck_assert_int_eq(pl_ckpt_meta_at(c, pl_ckpt_meta_find(c, "eos_token_id"), &info, &err), PL_OK);
    ck_assert(info.type == PL_META_INT && info.is_list && info.n == 2 && !strcmp(info.key, "eos_token_id"));
    ck_assert_int_eq(pl_ckpt_meta_at(c, pl_ckpt_meta_find(c, "nothing"), &info, &err), PL_EARG);

    const char *s;
    int64_t n;
    write_file("x.txt", "a\0b", 3);
    ck_assert_int_eq(pl_ckpt_text(c, "x.txt", &s, &n, &err), PL_OK);
    ck_assert(n == 3 && !memcmp(s, "a\0b", 3));
    unlink(in_dir("x.txt"));
    ck_assert_int_eq(pl_ckpt_text(c, "x.txt", &s, &n, &err), PL_OK); /* held */
    ck_assert_int_eq(n, 3);
    ck_assert_int_eq(pl_ckpt_text(c, "tokenizer.json", &s, &n, &err), PL_ENAME);
    ck_assert(strstr(err.msg, "tokenizer.json"));
    ck_assert_int_eq(pl_ckpt_text(c, "../x.txt", &s, &n, &err), PL_EARG);
    ck_assert_int_eq(pl_ckpt_text(c, "", &s, &n, &err), PL_EARG);
    ck_assert_int_eq(pl_ckpt_text(c, "..", &s, &n, &err), PL_EARG);
    write_text("big.json", "{}");
    ck_assert_int_eq(truncate(in_dir("big.json"), (64 << 20) + 1), 0);
    ck_assert_int_eq(pl_ckpt_text(c, "big.json", &s, &n, &err), PL_ELIMIT);
    pl_ckpt_close(c);
    pl_ckpt_close(NULL);

    /* the one file, with the texts beside it */
    ck_assert_int_eq(open_ckpt(in_dir("model.safetensors")), PL_OK);
    ck_assert_int_eq(pl_ckpt_count(c), 4);
    ck_assert_int_ge(pl_ckpt_meta_find(c, "hidden_size"), 0);
    pl_ckpt_close(c);

    unlink(in_dir("model.safetensors"));
    ck_assert_int_eq(open_ckpt(dir), PL_OK); /* without weights */
    ck_assert_int_eq(pl_ckpt_count(c), 0);
    ck_assert_int_eq(pl_ckpt_find(c, "w"), PL_ENAME);
    pl_ckpt_close(c);
    write_text("config.json", "{\"a\":}");
    want(dir, PL_EFORMAT, "in config.json");
}
END_TEST

START_TEST(shards)
{
    static const char one[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    static const char other[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}";
    write_safetensors("m-1.safetensors", one, 0, 4);
    write_safetensors("m-2.safetensors", other, 0, 4);
    write_safetensors("model.safetensors", two, 0, 14); /* the index comes first */
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\"}}");
    ck_assert_msg(open_ckpt(dir) == PL_OK, "%s", err.msg);
    ck_assert_int_eq(pl_ckpt_count(c), 2);
    pl_tensor t;
    ck_assert_int_eq(pl_ckpt_tensor(c, pl_ckpt_find(c, "b"), &t, &err), PL_OK);
    ck_assert(!memcmp(t.data, "\1\2", 2));
    pl_tensor_release(&t);
    pl_ckpt_close(c);

    unlink(in_dir("m-2.safetensors"));
    want(dir, PL_ENAME, "m-2.safetensors");
    ck_assert_int_eq(symlink("m-1.safetensors", in_dir("m-2.safetensors")), 0);
    want(dir, PL_EFORMAT, "tensor 'a': listed twice"); /* a link is as good as a file, but holds the wrong tensor */
    unlink(in_dir("m-2.safetensors"));
    write_safetensors("m-2.safetensors", "{}", 0, 4);
    want(dir, PL_EFORMAT, "tensor 'b': not in 'm-2.safetensors'");
    write_safetensors("m-2.safetensors", "{", 0, 4);
    want(dir, PL_EFORMAT, "(in m-2.safetensors)");
    write_file("m-2.safetensors", "", 0);
    want(dir, PL_EFORMAT, "an empty file");
    write_safetensors("m-2.safetensors", other, 0, 4);
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"m-1.safetensors\"}}");
    ck_assert_int_eq(open_ckpt(dir), PL_OK); /* a file that the index does not name is not looked at */
    pl_ckpt_close(c);
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}");
    want(dir, PL_EFORMAT, "not the plain name");
}
END_TEST

START_TEST(paths)
{
    want(in_dir("nothing"), PL_ENAME, "No such file");
    want(in_dir("nothing.safetensors"), PL_ENAME, "No such file");
    write_file("empty.gguf", "", 0);
    want(in_dir("empty.gguf"), PL_EFORMAT, "an empty file");
    write_text("x.txt", "hello");
    want(in_dir("x.txt"), PL_EFORMAT, "neither a GGUF file");
    ck_assert_int_eq(mkfifo(in_dir("m-1.safetensors"), 0600), 0);
    want(in_dir("m-1.safetensors"), PL_EIO, "not a regular file");
    write_text("a.gguf", "GGUF\3");
    want(in_dir("a.gguf"), PL_EFORMAT, "(in a.gguf)");

    bytes b = {0};
    put_head(&b, 3, 0, 1);
    put_key(&b, "split.count", PL_RAW_U16), put(&b, "\3\0", 2);
    write_file("a.gguf", b.p, (size_t)b.n);
    want(in_dir("a.gguf"), PL_EFORMAT, "one of 3 parts");
    bytes_free(&b);
}
END_TEST

START_TEST(gguf_file)
{
    bytes b = {0};
    put_head(&b, 3, 2, 2);
    put_key(&b, "x.n", PL_RAW_U32), put_u32(&b, 7);
    put_key(&b, "x.name", PL_RAW_STRING), put_str(&b, "abc");
    put_record(&b, "w", 2, (uint64_t[]){32, 3}, 2, 0); /* Q4_0: 3 rows of 18 bytes */
    put_record(&b, "f", 1, (uint64_t[]){2}, 0, 64);
    pad_to(&b, 32);
    const int64_t data = b.n;
    for (int i = 0; i < 72; i++) put_u8(&b, 0);
    const float two_floats[] = {1.5f, -2};
    memcpy(b.p + data + 64, two_floats, 8);
    b.p[data + 19] = 0x7c; /* the second row's scale is infinite */
    write_file("a.gguf", b.p, (size_t)b.n);
    bytes_free(&b);

    ck_assert_msg(open_ckpt(in_dir("a.gguf")) == PL_OK, "%s", err.msg);
    ck_assert_int_eq(pl_ckpt_kind(c), PL_CKPT_GGUF);
    pl_tensor t;
    ck_assert_int_eq(pl_ckpt_tensor(c, pl_ckpt_find(c, "f"), &t, &err), PL_OK);
    ck_assert(!memcmp(t.data, two_floats, 8));
    ck_assert_int_eq(pl_ckpt_check_values(&t, &err), PL_OK);
    pl_tensor_release(&t);
    ck_assert_int_eq(pl_ckpt_tensor(c, pl_ckpt_find(c, "w"), &t, &err), PL_OK);
    ck_assert(t.dim[0] == 3 && t.dim[1] == 32 && t.dtype == PL_Q4_0);
    ck_assert_int_eq(pl_ckpt_check_values(&t, &err), PL_EFORMAT);
    ck_assert_msg(strstr(err.msg, "row 1, block 0"), "%s", err.msg);
    pl_tensor_release(&t);
    const char *s;
    int64_t n;
    ck_assert_int_eq(pl_ckpt_meta_string(c, pl_ckpt_meta_find(c, "x.name"), 0, &s, &n, &err), PL_OK);
    ck_assert(n == 3 && !memcmp(s, "abc", 3));
    ck_assert_int_eq(pl_ckpt_text(c, "config.json", &s, &n, &err), PL_ENAME);
    pl_ckpt_close(c);
}
END_TEST

/* A GGUF file of nothing but a vocabulary: "a", "b", "ab" and one merge. What is asked for can be made wrong. */
typedef struct vocab {
    int32_t n_types, type, n_scores;
    uint32_t bos;
} vocab;

static int open_vocab(pl_tok **tok, vocab v)
{
    bytes b = {0};
    put_head(&b, 3, 0, 7);
    put_key(&b, "tokenizer.ggml.model", PL_RAW_STRING), put_str(&b, "gpt2");
    put_key(&b, "tokenizer.ggml.pre", PL_RAW_STRING), put_str(&b, "gpt-2");
    put_key(&b, "tokenizer.ggml.tokens", PL_RAW_LIST), put_u32(&b, PL_RAW_STRING), put_u64(&b, 3);
    put_str(&b, "a"), put_str(&b, "b"), put_str(&b, "ab");
    put_key(&b, "tokenizer.ggml.merges", PL_RAW_LIST), put_u32(&b, PL_RAW_STRING), put_u64(&b, 1), put_str(&b, "a b");
    put_key(&b, "tokenizer.ggml.token_type", PL_RAW_LIST), put_u32(&b, PL_RAW_I32), put_u64(&b, (uint64_t)v.n_types);
    for (int i = 0; i < v.n_types; i++) put_u32(&b, (uint32_t)v.type);
    put_key(&b, "tokenizer.ggml.scores", PL_RAW_LIST), put_u32(&b, PL_RAW_F32), put_u64(&b, (uint64_t)v.n_scores);
    for (int i = 0; i < v.n_scores; i++) put_f32(&b, 0);
    put_key(&b, "tokenizer.ggml.bos_token_id", PL_RAW_U32), put_u32(&b, v.bos);
    write_file("a.gguf", b.p, (size_t)b.n);
    bytes_free(&b);
    ck_assert_msg(open_ckpt(in_dir("a.gguf")) == PL_OK, "%s", err.msg);
    const int rc = pl_tok_open_ckpt(tok, c, &err);
    pl_ckpt_close(c);
    return rc;
}

START_TEST(tokenizer)
{
    pl_tok *t = NULL;
    pl_ids ids = {0};
    ck_assert_msg(open_vocab(&t, (vocab){3, 1, 3, 1}) == PL_OK, "%s", err.msg);
    ck_assert_int_eq(pl_tok_bos(t), 1);
    ck_assert_int_eq(pl_tok_encode(t, &ids, "abba", 4, 0, &err), PL_OK);
    ck_assert(ids.n == 3 && ids.id[0] == 2 && ids.id[1] == 1 && ids.id[2] == 0);
    free(ids.id);
    pl_tok_close(t);
    ck_assert_int_eq(open_vocab(&t, (vocab){3, 1, 3, UINT32_MAX}), PL_OK); /* how some writers say: none */
    ck_assert_int_eq(pl_tok_bos(t), -1);
    pl_tok_close(t);

    static const struct {
        vocab v;
        const char *text;
    } bad[] = {{{2, 1, 3, 1}, "token_type: 2 elements, want one a token: 3"},
               {{3, 7, 3, 1}, "token_type: 7 for token 0"},
               {{3, 0, 3, 1}, "token_type: 0"},
               {{3, 1, 4, 1}, "scores: 4 elements"},
               {{3, 1, 3, 3}, "bos_token_id: 3 of 3"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int rc = open_vocab(&t, bad[i].v);
        ck_assert_msg(rc == PL_EFORMAT && strstr(err.msg, bad[i].text), "%d %s", rc, err.msg);
    }

    bytes b = {0};
    put_head(&b, 3, 0, 0);
    write_file("a.gguf", b.p, (size_t)b.n);
    bytes_free(&b);
    ck_assert_int_eq(open_ckpt(in_dir("a.gguf")), PL_OK);
    ck_assert_int_eq(pl_tok_open_ckpt(&t, c, &err), PL_ENAME);
    pl_ckpt_close(c);

    ck_assert_int_eq(open_ckpt(PL_SOURCE_DIR "/tests/data/tiny-llama"), PL_OK);
    ck_assert_msg(pl_tok_open_ckpt(&t, c, &err) == PL_OK, "%s", err.msg);
    ck_assert_int_eq(pl_tok_size(t), 1024);
    pl_tok_close(t);
    pl_ckpt_close(c);
}
END_TEST

/* Opens a checkpoint, if it is there, and counts its tensors by format; all values must be finite. */
static void real(const char *file, int32_t n_tensors, const char *formats)
{
    if (access(file, R_OK)) {
        printf("ckpt: %s: not here, skipped\n", file);
        return;
    }
    ck_assert_msg(open_ckpt(file) == PL_OK, "%s: %s", file, err.msg);
    ck_assert_msg(pl_ckpt_count(c) == n_tensors, "%s: %d tensors, want %d", file, pl_ckpt_count(c), n_tensors);
    int count[PL_N_DTYPES] = {0};
    for (int32_t i = 0; i < pl_ckpt_count(c); i++) {
        pl_tensor t;
        ck_assert_msg(pl_ckpt_tensor(c, i, &t, &err) == PL_OK, "%s: %s", file, err.msg);
        ck_assert_msg(pl_ckpt_check_values(&t, &err) == PL_OK, "%s: %s", file, err.msg);
        pl_ckpt_drop(c, i);
        count[t.dtype]++;
        pl_tensor_release(&t);
    }
    char text[256] = "";
    for (int i = 0; i < PL_N_DTYPES; i++)
        if (count[i]) snprintf(text + strlen(text), sizeof text - strlen(text), "%s %d ", pl_dtype_name(i), count[i]);
    ck_assert_str_eq(text, formats);
    pl_ckpt_close(c);
}

START_TEST(real_files)
{
    static const struct {
        const char *name;
        int32_t n;
        const char *formats;
    } gguf[] =
        {
            {"SmolLM2-135M-Instruct.Q4_1.gguf", 272, "f32 61 q4_1 210 q8_0 1 "},
            {"gemma-3-270m-q4_k_m.gguf", 236, "f32 109 q5_0 81 q8_0 10 q4_k 27 q6_k 9 "},
            {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 291, "f32 121 q5_0 133 q8_0 13 q4_k 12 q6_k 12 "},
        },
      hf[] = {
          {"tiny-deepseek-v3", 91, "f32 2 bf16 89 "},
          {"tiny-deepseek-v3-fp8", 91, "f32 2 bf16 17 f8g32 3 f8g64 22 f8g128 47 "},
          {"tiny-deepseek-v32", 149, "f32 3 bf16 146 "},
          {"tiny-glm-moe-dsa", 229, "f32 5 bf16 224 "},
          {"tiny-gpt-oss", 71, "bf16 63 mxfp4 8 "},
          {"tiny-kimi-k2", 139, "f32 2 bf16 41 i4g32 96 "},
          {"tiny-qwen3-moe", 112, "bf16 112 "},
      };
    char file[4096];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    for (size_t i = 0; i < sizeof gguf / sizeof *gguf && (cache || home); i++) {
        snprintf(file, sizeof file, "%s%s/perilune/%s", cache ? cache : home, cache ? "" : "/.cache", gguf[i].name);
        real(file, gguf[i].n, gguf[i].formats);
    }
    for (size_t i = 0; i < sizeof hf / sizeof *hf; i++) {
        snprintf(file, sizeof file, PL_SOURCE_DIR "/../shared/models/%s", hf[i].name);
        real(file, hf[i].n, hf[i].formats);
    }
    real(PL_SOURCE_DIR "/tests/data/tiny-llama", 39, "bf16 39 ");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ckpt");
    TCase *t = tcase_create("made"), *real_case = tcase_create("real");
    suite_add_tcase(s, t);
    suite_add_tcase(s, real_case);
    tcase_add_checked_fixture(t, setup, folder_remove);
    tcase_add_test(t, directory);
    tcase_add_test(t, shards);
    tcase_add_test(t, paths);
    tcase_add_test(t, gguf_file);
    tcase_add_test(t, tokenizer);
    tcase_set_timeout(real_case, 120);
    tcase_add_test(real_case, real_files);
    return run_suite(s);
}
