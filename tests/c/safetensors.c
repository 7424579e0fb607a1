/* safetensors heads, shard indexes and config.json, in memory: good ones are read as they are; each way to be
 * malformed gives its code and a message that names the thing. */
#include "safetensors.h"
#include "bytes.h"
#include "config.h"
#include "suite.h"
#include <stdio.h>

static pl_toc toc;
static pl_err err;

/* A file with this head and n_data bytes of data. */
static int parse(const char *head, int64_t n_data)
{
    static bytes b;
    bytes_free(&b);
    put_u64(&b, strlen(head));
    put_text(&b, head);
    for (int64_t i = 0; i < n_data; i++) put_u8(&b, 7);
    b.p = realloc(b.p, (size_t)b.n); /* the exact size, so that ASan sees a read past the end */
    b.cap = b.n;
    pl_toc_clear(&toc);
    err = (pl_err){0};
    const int rc = pl_safetensors_parse(&toc, 3, b.p, b.n, &err);
    return rc == PL_OK ? pl_toc_seal(&toc, "safetensors", &err) : rc;
}

static void want(int rc, int code, const char *text)
{
    ck_assert_msg(rc == code && strstr(err.msg, text), "got %d '%s', want %d '%s'", rc, err.msg, code, text);
}

START_TEST(good)
{
    const char head[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                        "\"w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                        "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
                        "\"vision\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,2],\"data_offsets\":[16,20]},"
                        "\"odd\":{\"dtype\":\"F8_E5M2\",\"shape\":[4],\"data_offsets\":[24,28]},"
                        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[28,28]}}   ";
    ck_assert_msg(parse(head, 30) == PL_OK, "%s", err.msg);
    ck_assert_int_eq(toc.n, 5);
    const pl_toc_entry *e = &toc.e[pl_toc_find(&toc, "w")];
    ck_assert(e->dtype == PL_BF16 && e->ndim == 2 && e->dim[0] == 2 && e->dim[1] == 3 && e->bytes == 12 &&
              e->file == 3);
    ck_assert_int_eq(e->offset, 8 + (int64_t)strlen(head));
    e = &toc.e[pl_toc_find(&toc, "scalar")];
    ck_assert(e->ndim == 1 && e->dim[0] == 1);
    ck_assert_int_eq(toc.e[pl_toc_find(&toc, "vision")].ndim, 5);
    e = &toc.e[pl_toc_find(&toc, "odd")];
    ck_assert(e->dtype == -1 && !strcmp(e->format, "F8_E5M2"));
    ck_assert_int_eq(parse("{}", 0), PL_OK);
}
END_TEST

START_TEST(bad_head)
{
    pl_toc_clear(&toc);
    uint8_t raw[16] = {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    want(pl_safetensors_parse(&toc, 0, raw, 7, &err), PL_EFORMAT, "the file has 7 bytes");
    want(pl_safetensors_parse(&toc, 0, raw, 16, &err), PL_EFORMAT, "head: 9 bytes");
    raw[0] = 2, raw[7] = 0x80;
    want(pl_safetensors_parse(&toc, 0, raw, 16, &err), PL_EFORMAT, "head: ");
    raw[7] = 0, raw[4] = 1;
    want(pl_safetensors_parse(&toc, 0, raw, 16, &err), PL_EFORMAT, "head: ");
    want(parse("", 8), PL_EFORMAT, "JSON");
    want(parse("[]", 8), PL_EFORMAT, "not a JSON object");
    want(parse("{", 8), PL_EFORMAT, "JSON");
    want(parse("{\"a\":{\"dtype\":\"F32\"", 8), PL_EFORMAT, "JSON");
    want(parse("{} {}", 8), PL_EFORMAT, "JSON");
    want(parse("{\"a\":1,\"a\":2}", 8), PL_EFORMAT, "duplicate");
    want(parse("{\"a\xff\":1}", 8), PL_EFORMAT, "JSON");
    want(parse("{\"a\\u0000\":1}", 8), PL_EFORMAT, "JSON");
    want(parse("{\"a\\n\":{}}", 8), PL_EFORMAT, "not printable");
    want(parse("{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 8), PL_EFORMAT, "name of 0 bytes");
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = 0;
    want(parse(deep, 0), PL_EFORMAT, "JSON");
    free(deep);
}
END_TEST

START_TEST(bad_tensors)
{
    static const struct {
        const char *value;
        int code;
        const char *text;
    } row[] = {
        {"1", PL_EFORMAT, "tensor 'a.b': no dtype"},
        {"{\"shape\":[4],\"data_offsets\":[0,16]}", PL_EFORMAT, "no dtype"},
        {"{\"dtype\":4,\"shape\":[4],\"data_offsets\":[0,16]}", PL_EFORMAT, "no dtype"},
        {"{\"dtype\":\"F32\\n\",\"shape\":[4],\"data_offsets\":[0,16]}", PL_EFORMAT, "strange dtype"},
        {"{\"dtype\":\"F3200000000000000\",\"shape\":[4],\"data_offsets\":[0,16]}", PL_EFORMAT, "strange dtype"},
        {"{\"dtype\":\"F32\",\"data_offsets\":[0,16]}", PL_EFORMAT, "no shape"},
        {"{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}", PL_EFORMAT, "no shape"},
        {"{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}", PL_EFORMAT, "dim 0"},
        {"{\"dtype\":\"F32\",\"shape\":[2,-2],\"data_offsets\":[0,16]}", PL_EFORMAT, "dim 1"},
        {"{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,16]}", PL_EFORMAT, "dim 1"},
        {"{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,16]}", PL_EFORMAT, "JSON"},
        {"{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,16]}", PL_ESHAPE, "tensor 'a.b'"},
        {"{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,16]}", PL_ESHAPE, "16 bytes for 5 elements of F32"},
        {"{\"dtype\":\"F32\",\"shape\":[4]}", PL_EFORMAT, "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}", PL_EFORMAT, "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,20]}", PL_EFORMAT, "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}", PL_EFORMAT, "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}", PL_EFORMAT, "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0.0,16]}", PL_EFORMAT, "data_offsets"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[4,20]}", PL_EFORMAT, "ends at 20 of 16 bytes"},
        {"{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,9223372036854775807]}", PL_EFORMAT, "ends at"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char head[256];
        snprintf(head, sizeof head, "{\"a.b\":%s}", row[i].value);
        want(parse(head, 16), row[i].code, row[i].text);
    }
    want(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
               "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
               16),
         PL_EFORMAT, "tensor 'b': overlaps 'a'");
}
END_TEST

static pl_shards shards;

static int parse_index(const char *text)
{
    pl_shards_clear(&shards);
    err = (pl_err){0};
    return pl_shards_parse(&shards, text, (int64_t)strlen(text), &err);
}

START_TEST(index_file)
{
    ck_assert_int_eq(parse_index("{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"m-1.safetensors\","
                                 "\"b\":\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}}"),
                     PL_OK);
    ck_assert_int_eq(shards.n_names, 2);
    ck_assert_str_eq(shards.name[1], "m-2.safetensors");
    ck_assert_int_eq(shards.toc.n, 3);

    /* found: a and c in file 0, b in file 1; then b elsewhere, b missing, one too many */
    static const struct {
        int32_t file_of_b; /* -1: not there */
        bool more;
        const char *text;
    } row[] = {{1, false, NULL},
               {0, false, "tensor 'b': not in 'm-2"},
               {-1, false, "tensor 'b': not in 'm-2"},
               {1, true, "tensor 'd': in 'm-2"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        pl_toc found = {0};
        ck_assert_int_eq(pl_toc_add(&found, "a", 1, &(pl_toc_entry){0}, &err), PL_OK);
        if (row[i].file_of_b >= 0)
            ck_assert_int_eq(pl_toc_add(&found, "b", 1, &(pl_toc_entry){.file = row[i].file_of_b}, &err), PL_OK);
        ck_assert_int_eq(pl_toc_add(&found, "c", 1, &(pl_toc_entry){0}, &err), PL_OK);
        if (row[i].more) ck_assert_int_eq(pl_toc_add(&found, "d", 1, &(pl_toc_entry){.file = 1}, &err), PL_OK);
        ck_assert_int_eq(pl_toc_seal(&found, "x", &err), PL_OK);
        const int rc = pl_shards_check(&shards, &found, &err);
        if (row[i].text)
            want(rc, PL_EFORMAT, row[i].text);
        else
            ck_assert_int_eq(rc, PL_OK);
        pl_toc_clear(&found);
    }

    want(parse_index("{}"), PL_EFORMAT, "weight_map");
    want(parse_index("{\"weight_map\":[]}"), PL_EFORMAT, "weight_map");
    want(parse_index("[]"), PL_EFORMAT, "not a JSON object");
    want(parse_index("{\"weight_map\":{\"a\":\"m.safetensors\",\"a\":\"n.safetensors\"}}"), PL_EFORMAT, "duplicate");
    static const char *const bad[] = {"1",
                                      "null",
                                      "\"\"",
                                      "\"../m.safetensors\"",
                                      "\"/etc/m.safetensors\"",
                                      "\"a/../../m.safetensors\"",
                                      "\"sub/m.safetensors\"",
                                      "\"..\\\\m.safetensors\"",
                                      "\".safetensors\"",
                                      "\"m.bin\"",
                                      "\"m.safetensors.bin\"",
                                      "\"m\\n.safetensors\"",
                                      "\"m\\u00e9.safetensors\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"m.safetensors\",\"b\":%s}}", bad[i]);
        want(parse_index(text), PL_EFORMAT, "entry 1: not the plain name");
    }
}
END_TEST

static pl_meta meta;

static int parse_config(const char *prefix, const char *text)
{
    pl_meta_clear(&meta);
    err = (pl_err){0};
    const int rc = pl_config_parse(&meta, prefix, text, (int64_t)strlen(text), &err);
    return rc == PL_OK ? pl_meta_seal(&meta, "config", &err) : rc;
}

static const pl_meta_entry *entry(const char *key)
{
    const int32_t i = pl_meta_find(&meta, key);
    ck_assert_msg(i >= 0, "no key %s", key);
    return &meta.e[i];
}

START_TEST(config)
{
    int64_t v, n;
    double d;
    const char *s;
    ck_assert_int_eq(
        parse_config("", "{\"n\":9007199254740993,\"eps\":1e-6,\"yes\":true,\"no\":false,\"nil\":null,"
                         "\"name\":\"ll\\u00e4ma\",\"rope\":{\"factor\":8,\"list\":[1,2.5,3],\"deep\":{\"x\":-1}},"
                         "\"eos\":[0,2],\"types\":[\"full\",\"\"],\"flags\":[true,false],\"none\":[],\"obj\":{},"
                         "\"mixed\":[1,\"a\",{\"b\":2},null,[3]],\"real\":[0.5,1]}"),
        PL_OK);
    ck_assert_int_eq(pl_meta_int(entry("n"), 0, &v, &err), PL_OK);
    ck_assert(v == 9007199254740993);
    ck_assert(pl_meta_float(entry("eps"), 0, &d, &err) == PL_OK && d == 1e-6);
    ck_assert(pl_meta_int(entry("yes"), 0, &v, &err) == PL_OK && v == 1);
    ck_assert(pl_meta_int(entry("no"), 0, &v, &err) == PL_OK && v == 0);
    ck_assert_int_eq(pl_meta_find(&meta, "nil"), PL_ENAME);
    ck_assert_int_eq(pl_meta_find(&meta, "obj"), PL_ENAME);
    ck_assert(pl_meta_string(entry("name"), 0, &s, &n, &err) == PL_OK && n == 6 && !memcmp(s, "ll\xc3\xa4ma", 6));
    ck_assert(pl_meta_float(entry("rope.factor"), 0, &d, &err) == PL_OK && d == 8);
    ck_assert(entry("rope.list")->n == 3 && entry("rope.list")->raw == PL_RAW_F64);
    ck_assert(pl_meta_float(entry("rope.list"), 1, &d, &err) == PL_OK && d == 2.5);
    ck_assert(pl_meta_float(entry("rope.list"), 2, &d, &err) == PL_OK && d == 3);
    ck_assert(pl_meta_int(entry("rope.deep.x"), 0, &v, &err) == PL_OK && v == -1);
    ck_assert(entry("eos")->is_list && pl_meta_int(entry("eos"), 1, &v, &err) == PL_OK && v == 2);
    ck_assert(pl_meta_string(entry("types"), 0, &s, &n, &err) == PL_OK && n == 4);
    ck_assert(pl_meta_string(entry("types"), 1, &s, &n, &err) == PL_OK && n == 0);
    ck_assert(entry("flags")->raw == PL_RAW_BOOL && entry("flags")->n == 2);
    ck_assert(entry("none")->is_list && entry("none")->n == 0);
    ck_assert(pl_meta_int(entry("mixed.0"), 0, &v, &err) == PL_OK && v == 1);
    ck_assert(pl_meta_int(entry("mixed.2.b"), 0, &v, &err) == PL_OK && v == 2);
    ck_assert(entry("mixed.4")->is_list && pl_meta_find(&meta, "mixed.3") == PL_ENAME);
    ck_assert(entry("real")->raw == PL_RAW_F64 && entry("real")->n == 2);
    ck_assert(parse_config("gen", "{\"eos\":1}") == PL_OK && pl_meta_int(entry("gen.eos"), 0, &v, &err) == PL_OK);

    want(parse_config("", ""), PL_EFORMAT, "JSON");
    want(parse_config("", "[1]"), PL_EFORMAT, "not a JSON object");
    want(parse_config("", "{\"a\":{\"b\":1,\"b\":2}}"), PL_EFORMAT, "duplicate");
    want(parse_config("", "{\"a.b\":1,\"a\":{\"b\":2}}"), PL_EFORMAT, "key 'a.b': given twice");
    want(parse_config("", "{\"a\":1e999}"), PL_EFORMAT, "JSON");
    want(parse_config("", "{\"a\":99999999999999999999}"), PL_EFORMAT, "JSON");
    want(parse_config("", "{\"a\":NaN}"), PL_EFORMAT, "JSON");
    want(parse_config("", "{\"\":1}"), PL_EFORMAT, "name of 0 bytes");
    want(parse_config("", "{\"\\u001b[0m\":1}"), PL_EFORMAT, "printable");
    char text[2400];
    int at = 0;
    for (int i = 0; i < 40; i++) at += snprintf(text + at, sizeof text - (size_t)at, "{\"a\":");
    at += snprintf(text + at, sizeof text - (size_t)at, "1");
    for (int i = 0; i < 40; i++) at += snprintf(text + at, sizeof text - (size_t)at, "}");
    want(parse_config("", text), PL_ELIMIT, "levels");
    at = snprintf(text, sizeof text, "{\"");
    memset(text + at, 'k', 1100);
    snprintf(text + at + 1100, sizeof text - (size_t)at - 1100, "\":1}");
    want(parse_config("", text), PL_ELIMIT, "a key of more than 1024 bytes");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("safetensors");
    TCase *t = tcase_create("all");
    suite_add_tcase(s, t);
    tcase_add_test(t, good);
    tcase_add_test(t, bad_head);
    tcase_add_test(t, bad_tensors);
    tcase_add_test(t, index_file);
    tcase_add_test(t, config);
    return run_suite(s);
}
