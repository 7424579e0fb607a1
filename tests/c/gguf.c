/* GGUF heads: a good file is read as it is; each way to be malformed gives its code and a message that names the
 * thing. All files are built in memory. */
#include "gguf.h"
#include "bytes.h"
#include "suite.h"
#include <stdio.h>

enum { F32 = 0, F16 = 1, Q4_0 = 2, Q4_K = 12 };

static pl_meta meta;
static pl_toc toc;
static pl_err err;

static int parse(const bytes *b)
{
    pl_meta_clear(&meta);
    pl_toc_clear(&toc);
    err = (pl_err){0};
    /* a copy of the exact size, so that ASan sees a read past the end */
    static uint8_t *copy;
    free(copy);
    copy = malloc((size_t)b->n + !b->n);
    if (b->n) memcpy(copy, b->p, (size_t)b->n);
    return pl_gguf_parse(&meta, &toc, copy, b->n, &err);
}

/* b fails with this code, and its message holds this text. */
static void want(bytes *b, int code, const char *text)
{
    const int rc = parse(b);
    ck_assert_msg(rc == code && strstr(err.msg, text), "got %d '%s', want %d '%s'", rc, err.msg, code, text);
    bytes_free(b);
}

static const uint64_t dims[] = {64, 3};

/* A head with an alignment of 32, then n tensor records to come. */
static bytes head_of(uint64_t n_tensors)
{
    bytes b = {0};
    put_head(&b, 3, n_tensors, 1);
    put_key(&b, "general.alignment", PL_RAW_U32);
    put_u32(&b, 32);
    return b;
}

static void put_data(bytes *b, int64_t n)
{
    pad_to(b, 32);
    for (int64_t i = 0; i < n; i++) put_u8(b, (uint8_t)i);
}

static void put_every_type(bytes *b)
{
    put_key(b, "a.u8", PL_RAW_U8), put_u8(b, 200);
    put_key(b, "a.i8", PL_RAW_I8), put_u8(b, 200);
    put_key(b, "a.u16", PL_RAW_U16), put(b, "\xff\xff", 2);
    put_key(b, "a.i16", PL_RAW_I16), put(b, "\xff\xff", 2);
    put_key(b, "a.u32", PL_RAW_U32), put_u32(b, 4000000000u);
    put_key(b, "a.i32", PL_RAW_I32), put_u32(b, 4000000000u);
    put_key(b, "a.f32", PL_RAW_F32), put_f32(b, -1.5f);
    put_key(b, "a.bool", PL_RAW_BOOL), put_u8(b, 1);
    put_key(b, "a.string", PL_RAW_STRING), put_str(b, "h\xc3\xa9llo");
    put_key(b, "a.u64", PL_RAW_U64), put_u64(b, UINT64_MAX);
    put_key(b, "a.i64", PL_RAW_I64), put_u64(b, UINT64_MAX);
    const double pi = 3.140625;
    put_key(b, "a.f64", PL_RAW_F64), put(b, &pi, 8);
    put_key(b, "b.strings", PL_RAW_LIST), put_u32(b, PL_RAW_STRING), put_u64(b, 3);
    put_str(b, "one"), put_str(b, ""), put(b, "\5\0\0\0\0\0\0\0a\0b\nc", 13);
    put_key(b, "b.u16s", PL_RAW_LIST), put_u32(b, PL_RAW_U16), put_u64(b, 2), put(b, "\1\0\0\1", 4);
    put_key(b, "b.none", PL_RAW_LIST), put_u32(b, PL_RAW_F32), put_u64(b, 0);
}
enum { N_TYPES = 15 };

static const pl_meta_entry *entry(const char *key)
{
    const int32_t i = pl_meta_find(&meta, key);
    ck_assert_msg(i >= 0, "no key %s", key);
    return &meta.e[i];
}

START_TEST(values)
{
    bytes b = {0};
    put_head(&b, 2, 0, N_TYPES);
    put_every_type(&b);
    ck_assert_msg(parse(&b) == PL_OK, "%s", err.msg);
    ck_assert_int_eq(meta.n, N_TYPES);
    static const struct {
        const char *key;
        int64_t whole;
    } row[] = {{"a.u8", 200},         {"a.i8", -56},         {"a.u16", 65535}, {"a.i16", -1},
               {"a.u32", 4000000000}, {"a.i32", -294967296}, {"a.bool", 1},    {"a.i64", -1}};
    int64_t v, n;
    double d;
    const char *s;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ck_assert_int_eq(pl_meta_int(entry(row[i].key), 0, &v, &err), PL_OK);
        ck_assert_int_eq(v, row[i].whole);
    }
    ck_assert_int_eq(pl_meta_int(entry("a.u64"), 0, &v, &err), PL_ELIMIT);
    ck_assert_int_eq(pl_meta_int(entry("a.f32"), 0, &v, &err), PL_EDTYPE);
    ck_assert_int_eq(pl_meta_int(entry("a.string"), 0, &v, &err), PL_EDTYPE);
    ck_assert_int_eq(pl_meta_float(entry("a.f32"), 0, &d, &err), PL_OK);
    ck_assert(d == -1.5);
    ck_assert_int_eq(pl_meta_float(entry("a.f64"), 0, &d, &err), PL_OK);
    ck_assert(d == 3.140625);
    ck_assert_int_eq(pl_meta_float(entry("a.i8"), 0, &d, &err), PL_OK);
    ck_assert(d == -56);
    ck_assert_int_eq(pl_meta_float(entry("a.bool"), 0, &d, &err), PL_EDTYPE);
    ck_assert_int_eq(pl_meta_string(entry("a.string"), 0, &s, &n, &err), PL_OK);
    ck_assert(n == 6 && !memcmp(s, "h\xc3\xa9llo", 6));
    ck_assert_int_eq(pl_meta_string(entry("a.u8"), 0, &s, &n, &err), PL_EDTYPE);
    ck_assert(strstr(err.msg, "a.u8"));

    ck_assert(entry("b.strings")->is_list && entry("b.strings")->n == 3);
    ck_assert_int_eq(pl_meta_string(entry("b.strings"), 1, &s, &n, &err), PL_OK);
    ck_assert_int_eq(n, 0);
    ck_assert_int_eq(pl_meta_string(entry("b.strings"), 2, &s, &n, &err), PL_OK);
    ck_assert(n == 5 && !memcmp(s, "a\0b\nc", 5));
    ck_assert_int_eq(pl_meta_string(entry("b.strings"), 3, &s, &n, &err), PL_EARG);
    ck_assert_int_eq(pl_meta_int(entry("b.u16s"), 1, &v, &err), PL_OK);
    ck_assert_int_eq(v, 256);
    ck_assert_int_eq(pl_meta_int(entry("b.u16s"), -1, &v, &err), PL_EARG);
    ck_assert_int_eq(pl_meta_int(entry("b.none"), 0, &v, &err), PL_EARG);
    ck_assert_int_eq(pl_meta_find(&meta, "a.u"), PL_ENAME);
    bytes_free(&b);
}
END_TEST

START_TEST(tensors)
{
    bytes b = head_of(3);
    put_record(&b, "b.weight", 2, dims, Q4_0, 128); /* 3 rows of 2 blocks: 108 bytes */
    put_record(&b, "a", 1, dims, F16, 0);           /* 128 bytes */
    put_record(&b, "c", 4, (uint64_t[]){5, 1, 2, 3}, F32, 256);
    put_data(&b, 256 + 120);
    ck_assert_msg(parse(&b) == PL_OK, "%s", err.msg);
    ck_assert_int_eq(toc.n, 3);
    ck_assert_int_eq(pl_toc_find(&toc, "b.weight"), 0);
    ck_assert_int_eq(pl_toc_find(&toc, "c"), 2);
    ck_assert_int_eq(pl_toc_find(&toc, "d"), PL_ENAME);
    const pl_toc_entry *e = &toc.e[0];
    ck_assert(e->ndim == 2 && e->dim[0] == 3 && e->dim[1] == 64 && e->bytes == 108 && e->dtype == PL_Q4_0);
    ck_assert_int_eq(e->offset, b.n - 376 + 128);
    ck_assert(toc.e[2].dim[0] == 3 && toc.e[2].dim[1] == 2 && toc.e[2].dim[2] == 1 && toc.e[2].dim[3] == 5);
    put_text(&b, "bytes after the end are nobody's");
    ck_assert_int_eq(parse(&b), PL_OK);
    bytes_free(&b);
}
END_TEST

/* Cut anywhere, a file is refused: in its head always, in its data unless what is cut off is padding. */
START_TEST(truncated)
{
    bytes b = {0};
    put_head(&b, 3, 2, N_TYPES);
    put_every_type(&b);
    put_record(&b, "x", 2, dims, Q4_0, 0);
    put_record(&b, "y", 1, dims, F16, 128);
    put_data(&b, 256);
    ck_assert_msg(parse(&b) == PL_OK, "%s", err.msg);
    while (b.n > 0) {
        b.n--;
        const int rc = parse(&b);
        ck_assert_msg(rc == PL_EFORMAT && !strncmp(err.msg, "gguf: ", 6), "%lld bytes: %d %s", (long long)b.n, rc,
                      err.msg);
    }
    bytes_free(&b);
}
END_TEST

START_TEST(bad_head)
{
    bytes b = {0};
    want(&b, PL_EFORMAT, "magic");
    put_text(&b, "GGML\3\0\0\0");
    want(&b, PL_EFORMAT, "not a GGUF file");
    for (uint32_t v = 0; v < 6; v++) {
        put_head(&b, v, 0, 0);
        if (v == 2 || v == 3) {
            ck_assert_int_eq(parse(&b), PL_OK);
            bytes_free(&b);
        } else
            want(&b, PL_EFORMAT, "version");
    }
    put_head(&b, 3u << 24, 0, 0), want(&b, PL_EFORMAT, "big-endian");
    static const uint64_t huge[] = {3, 1000, 1u << 21, UINT32_MAX, 1ull << 62, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        put_head(&b, 3, huge[i], 0), want(&b, PL_EFORMAT, "tensor count");
        put_head(&b, 3, 0, huge[i]), put_u32(&b, 0), want(&b, PL_EFORMAT, "key count");
    }
}
END_TEST

START_TEST(bad_keys)
{
    bytes b = {0};
    put_head(&b, 3, 0, 1), put_u64(&b, UINT64_MAX), put_text(&b, "keykeykey"), want(&b, PL_EFORMAT, "out of range");
    put_head(&b, 3, 0, 1), put_u64(&b, 1000), put_text(&b, "keykeykey"), want(&b, PL_EFORMAT, "wants 1000 bytes");
    put_head(&b, 3, 0, 1), put_key(&b, "", PL_RAW_U32), put_u32(&b, 1), want(&b, PL_EFORMAT, "name of 0 bytes");
    put_head(&b, 3, 0, 1), put_key(&b, "a\nb", PL_RAW_U32), put_u32(&b, 1), want(&b, PL_EFORMAT, "key 0");
    put_head(&b, 3, 0, 1), put_key(&b, "k", 13), put_u64(&b, 1), want(&b, PL_EFORMAT, "key 'k': unknown type 13");
    put_head(&b, 3, 0, 1), put_key(&b, "k", UINT32_MAX), put_u64(&b, 1), want(&b, PL_EFORMAT, "unknown type");
    put_head(&b, 3, 0, 1), put_key(&b, "k", PL_RAW_BOOL), put_u8(&b, 2),
        want(&b, PL_EFORMAT, "key 'k': a truth value of 2");
    put_head(&b, 3, 0, 1), put_key(&b, "k", PL_RAW_STRING), put_u64(&b, 50), want(&b, PL_EFORMAT, "key 'k'");
    static const uint64_t count[] = {3, 1u << 30, 1ull << 60, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof count / sizeof *count; i++)
        for (uint32_t type = 0; type < PL_N_RAW; type++) {
            if (type == PL_RAW_LIST || (i == 0 && pl_raw_bytes((int32_t)type) == 1)) continue;
            put_head(&b, 3, 0, 1), put_key(&b, "list", PL_RAW_LIST), put_u32(&b, type), put_u64(&b, count[i]);
            put_u32(&b, 0);
            want(&b, PL_EFORMAT, "key 'list'");
        }
    put_head(&b, 3, 0, 1), put_key(&b, "k", PL_RAW_LIST), put_u32(&b, PL_RAW_LIST), put_u64(&b, 1);
    want(&b, PL_EFORMAT, "key 'k': a list of lists");
    put_head(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) put_key(&b, "twice", PL_RAW_U32), put_u32(&b, 1);
    want(&b, PL_EFORMAT, "key 'twice': given twice");
    static const uint32_t align[] = {0, 1, 4, 24, 48, 1u << 17, UINT32_MAX};
    for (size_t i = 0; i < sizeof align / sizeof *align; i++) {
        put_head(&b, 3, 0, 1), put_key(&b, "general.alignment", PL_RAW_U32), put_u32(&b, align[i]);
        want(&b, PL_EFORMAT, "general.alignment");
    }
    put_head(&b, 3, 0, 1), put_key(&b, "general.alignment", PL_RAW_F32), put_f32(&b, 32);
    want(&b, PL_EDTYPE, "general.alignment");
    put_head(&b, 3, 0, 1), put_key(&b, "general.alignment", PL_RAW_LIST), put_u32(&b, PL_RAW_U32), put_u64(&b, 0);
    want(&b, PL_EARG, "general.alignment");
}
END_TEST

/* One tensor record in an otherwise good file with 256 bytes of data. */
static bytes one(const char *name, uint32_t ndim, const uint64_t *dim, uint32_t type, uint64_t offset)
{
    bytes b = head_of(1);
    put_record(&b, name, ndim, dim, type, offset);
    put_data(&b, 256);
    return b;
}

START_TEST(bad_tensors)
{
    bytes b;
    char name[600];
    memset(name, 'n', sizeof name);
    name[513] = 0;
    b = one(name, 1, dims, F32, 0), want(&b, PL_EFORMAT, "a name of 513 bytes");
    b = one("", 1, dims, F32, 0), want(&b, PL_EFORMAT, "a name of 0 bytes");
    b = one("a\x1b[2J", 1, dims, F32, 0), want(&b, PL_EFORMAT, "tensor 0");
    b = one("t", 0, dims, F32, 0), want(&b, PL_EFORMAT, "tensor 't': 0 dims");
    b = one("t", 5, (uint64_t[]){1, 1, 1, 1, 1}, F32, 0), want(&b, PL_EFORMAT, "tensor 't': 5 dims");
    b = one("t", 2, (uint64_t[]){32, 0}, F32, 0), want(&b, PL_EFORMAT, "tensor 't': dim 1 is 0");
    b = one("t", 1, (uint64_t[]){UINT64_MAX}, F32, 0), want(&b, PL_EFORMAT, "tensor 't'");
    b = one("t", 2, (uint64_t[]){1ull << 40, 1ull << 40}, F32, 0), want(&b, PL_EFORMAT, "tensor 't': dim 1");
    b = one("t", 4, (uint64_t[]){1ull << 16, 1ull << 16, 1ull << 16, 1ull << 15}, F32, 0);
    want(&b, PL_EFORMAT, "tensor 't'");
    b = one("t", 2, (uint64_t[]){1ull << 31, 1ull << 31}, F32, 0), want(&b, PL_EFORMAT, "tensor 't'");
    b = one("t", 1, dims, 16, 0), want(&b, PL_EDTYPE, "tensor 't': type 16");
    b = one("t", 1, dims, UINT32_MAX, 0), want(&b, PL_EDTYPE, "tensor 't'");
    b = one("t", 2, (uint64_t[]){48, 2}, Q4_0, 0), want(&b, PL_EFORMAT, "tensor 't': rows of 48");
    b = one("t", 1, dims, Q4_K, 0), want(&b, PL_EFORMAT, "tensor 't': rows of 64");
    b = one("t", 1, dims, F16, 16), want(&b, PL_EFORMAT, "tensor 't': offset 16, want a multiple of 32");
    b = one("t", 1, dims, F16, 160), want(&b, PL_EFORMAT, "tensor 't': 128 bytes at");
    b = one("t", 1, dims, F16, 1024), want(&b, PL_EFORMAT, "tensor 't': offset 1024 is past the end of the file");
    b = one("t", 1, dims, F16, INT64_MAX - 31), want(&b, PL_EFORMAT, "tensor 't': offset");
    b = one("t", 1, dims, F16, UINT64_MAX - 31), want(&b, PL_EFORMAT, "tensor 't': 18446744073709551584");

    b = head_of(2);
    put_record(&b, "first", 1, dims, F16, 32);
    put_record(&b, "second", 1, dims, F16, 128);
    put_data(&b, 256), want(&b, PL_EFORMAT, "tensor 'second': overlaps 'first'");
    b = head_of(2);
    put_record(&b, "first", 1, dims, F16, 0);
    put_record(&b, "same", 1, dims, F16, 0);
    put_data(&b, 256), want(&b, PL_EFORMAT, "overlaps");
    b = head_of(2);
    put_record(&b, "again", 1, dims, F16, 0);
    put_record(&b, "again", 1, dims, F16, 128);
    put_data(&b, 256), want(&b, PL_EFORMAT, "tensor 'again': listed twice");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf");
    TCase *t = tcase_create("all");
    suite_add_tcase(s, t);
    tcase_add_test(t, values);
    tcase_add_test(t, tensors);
    tcase_add_test(t, truncated);
    tcase_add_test(t, bad_head);
    tcase_add_test(t, bad_keys);
    tcase_add_test(t, bad_tensors);
    return run_suite(s);
}
