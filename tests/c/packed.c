/* Packed files: every format comes back as it was packed; a file that was cut off, damaged or made by someone else is an
 * error, whatever it says; nothing is left of a file that could not be written. */
#include "packed.h"
#include "ckpt.h"
#include "dev.h"
#include "dtype.h"
#include "packed_huge.h"
#include "suite.h"
#include "tensor.h"
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static pl_err err;
static pl_dev *dev;
static char dir[32], path[64], other[64];

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/pl_packed_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/a.perilune", dir);
    snprintf(other, sizeof other, "%s/b.perilune", dir);
    err = (pl_err){0};
    ck_assert_int_eq(pl_dev_open(&dev, &(pl_dev_opts){.n_threads = 1}, &err), PL_OK);
}
static void teardown(void)
{
    pl_dev_close(dev);
    unlink(path);
    unlink(other);
    ck_assert_int_eq(rmdir(dir), 0); /* nothing else is left in it */
}

static const char options[] = "{\"act\":\"int8\",\"n\":3}";

static void ok(int rc) { ck_assert_msg(rc == PL_OK, "%s", err.msg); }

/* Rows of random bytes; NVFP4 has one tensor scale a row, and f8 no NaN. */
static void random_rows(pl_tensor *t, int32_t dtype, int64_t n, int64_t k)
{
    ok(pl_tensor_new(t, dev, dtype, 2, (const int64_t[]){n, k}, &err));
    const int64_t block = pl_dtype_bytes(dtype), bytes = n * k / pl_dtype_block(dtype) * block;
    for (int64_t i = 0; i < bytes; i++) {
        const uint8_t v = (uint8_t)rand();
        ((uint8_t *)t->data)[i] =
            (dtype == PL_NVFP4 && i % block < 4) || (dtype == PL_F8 && (v & 0x7f) == 0x7f) ? 7 : v;
    }
}

static pl_packer *begin(const char *source)
{
    pl_ckpt *c = NULL;
    pl_packer *p = NULL;
    ok(pl_ckpt_open(&c, source, &err));
    ok(pl_packer_new(&p, path, c, options, sizeof options - 1, &err));
    pl_ckpt_close(c);
    return p;
}

#define GGUF PL_SOURCE_DIR "/tests/data/tiny-qwen3-gguf/model.gguf"
#define HF PL_SOURCE_DIR "/tests/data/tiny-llama"

static int is_weights(int32_t dtype) { return pl_dev_packed_bytes(PL_DEV_CPU, dtype, 1, 512) > 0; }

START_TEST(every_format)
{
    pl_tensor kept[PL_N_DTYPES] = {{0}}, rows[PL_N_DTYPES] = {{0}};
    char name[32];
    pl_packer *p = begin(_i ? HF : GGUF);
    for (int32_t d = 0; d < PL_N_DTYPES; d++) {
        const int64_t k = pl_dtype_block(d) > 1 ? 3 * pl_dtype_block(d) : 37; /* odd sizes */
        random_rows(&rows[d], d, d % 2 ? 17 : 5, k);
        snprintf(name, sizeof name, "r.%s", pl_dtype_name(d));
        ok(pl_packer_add(p, dev, name, &rows[d], "rows", &err));
        if (!is_weights(d)) continue;
        ok(pl_dev_pack(dev, &kept[d], &rows[d], NULL, &err));
        snprintf(name, sizeof name, "p.%s", pl_dtype_name(d));
        ok(pl_packer_add(p, dev, name, &kept[d], "packed", &err));
    }
    ck_assert_int_eq(access(path, F_OK), -1); /* not there before it is whole */
    ok(pl_packer_end(p, &err));
    ck_assert_int_eq(pl_packer_end(p, &err), PL_EARG);
    pl_packer_free(p);

    pl_ckpt *c = NULL;
    pl_ckpt_info info;
    pl_tensor t = {0};
    ok(pl_ckpt_open(&c, path, &err));
    ck_assert(pl_ckpt_is_packed(c));
    ck_assert_int_eq(pl_ckpt_kind(c), _i ? PL_CKPT_HF : PL_CKPT_GGUF);
    ok(pl_ckpt_check_layouts(c, dev, &err));
    ck_assert_int_ge(pl_ckpt_meta_find(c, "perilune.act"), 0);
    ck_assert_int_ge(pl_ckpt_meta_find(c, _i ? "hidden_size" : "qwen3.block_count"), 0);
    for (int32_t d = 0; d < PL_N_DTYPES; d++)
        for (int packed = 0; packed < 2; packed++) {
            if (packed && !is_weights(d)) continue;
            const pl_tensor *want = packed ? &kept[d] : &rows[d];
            snprintf(name, sizeof name, "%c.%s", packed ? 'p' : 'r', pl_dtype_name(d));
            const int32_t i = pl_ckpt_find(c, name);
            ck_assert_int_ge(i, 0);
            ok(pl_ckpt_info_at(c, i, &info, &err));
            ck_assert_str_eq(info.how, packed ? "packed" : "rows");
            ok(pl_ckpt_verify(c, i, &err));
            ok(pl_ckpt_tensor(c, i, &t, &err));
            ck_assert_int_eq(t.dtype, d);
            ck_assert_int_eq(t.layout, packed ? PL_PACKED : PL_ROWS);
            ck_assert_uint_eq((uintptr_t)t.data % 64, 0);
            ck_assert_mem_eq(t.dim, want->dim, sizeof t.dim);
            ck_assert_mem_eq(t.data, want->data, (size_t)info.bytes);
            pl_tensor_release(&t);
        }
    pl_tok *tok = NULL;
    if (_i) { /* the texts of a directory came along */
        ok(pl_tok_open_ckpt(&tok, c, &err));
        ck_assert_int_eq(pl_tok_size(tok), 1024);
        pl_tok_close(tok);
    }
    pl_ckpt_drop(c, -1); /* does nothing: there is no other copy */
    pl_packer *again = NULL;
    ck_assert_int_eq(pl_packer_new(&again, other, c, "{}", 2, &err), PL_EARG);
    pl_ckpt_close(c);
    for (int32_t d = 0; d < PL_N_DTYPES; d++) {
        pl_tensor_release(&kept[d]);
        pl_tensor_release(&rows[d]);
    }
}
END_TEST

/* A small file in memory: three tensors. */
static uint8_t *small_file(int64_t *n)
{
    static const int32_t dtypes[] = {PL_Q4_0, PL_F32, PL_Q6_K};
    pl_packer *p = begin(HF);
    for (int i = 0; i < 3; i++) {
        pl_tensor rows, packed = {0};
        char name[16];
        random_rows(&rows, dtypes[i], 3, 256);
        if (i != 1) ok(pl_dev_pack(dev, &packed, &rows, NULL, &err));
        snprintf(name, sizeof name, "w%d", i);
        ok(pl_packer_add(p, dev, name, i == 1 ? &rows : &packed, "how", &err));
        pl_tensor_release(&rows);
        pl_tensor_release(&packed);
    }
    ok(pl_packer_end(p, &err));
    pl_packer_free(p);
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    fseek(f, 0, SEEK_END);
    *n = ftell(f);
    rewind(f);
    uint8_t *data = malloc((size_t)*n);
    ck_assert_uint_eq(fread(data, 1, (size_t)*n, f), (size_t)*n);
    fclose(f);
    return data;
}

static int64_t bytes_of(int32_t dtype, int64_t n, int64_t k) { return pl_dev_packed_bytes(PL_DEV_CPU, dtype, n, k); }

/* Reads a copy that ends where its memory does, for the sanitizer. */
static int parse(const uint8_t *data, int64_t n)
{
    uint8_t *copy = malloc((size_t)n + 1);
    memcpy(copy + 1, data, (size_t)n); /* at an odd address, too */
    pl_packed p = {0};
    pl_toc toc = {0};
    err = (pl_err){0};
    const int rc = pl_packed_parse(&p, &toc, copy + 1, n, bytes_of, &err);
    if (rc == PL_OK)
        for (int32_t i = 0; i < toc.n; i++)
            ck_assert(toc.e[i].bytes > 0 && toc.e[i].offset >= PL_PACKED_PAGE &&
                      toc.e[i].offset % PL_PACKED_ALIGN == 0 && toc.e[i].offset + toc.e[i].bytes <= n);
    pl_packed_clear(&p);
    pl_toc_clear(&toc);
    free(copy);
    return rc;
}

START_TEST(cut_off)
{
    int64_t n;
    uint8_t *data = small_file(&n);
    pl_packed_header h;
    memcpy(&h, data, sizeof h);
    ck_assert_int_eq(parse(data, n), PL_OK);
    for (int64_t i = 0; i < n; i += i < 4200 || i > h.head_at ? 1 : 61) ck_assert_int_eq(parse(data, i), PL_EFORMAT);
    data = realloc(data, (size_t)n + 1);
    data[n] = 0;
    ck_assert_int_eq(parse(data, n + 1), PL_EFORMAT); /* and one byte more */
    free(data);
}
END_TEST

START_TEST(flipped)
{
    int64_t n;
    uint8_t *data = small_file(&n);
    pl_packed_header h;
    memcpy(&h, data, sizeof h);
    const int64_t head = (int64_t)sizeof h + h.n_options;
    for (int64_t i = 0; i < n; i++) {
        if (i == head) i = h.head_at;                     /* what lies between is data */
        const int bits = i < head || n - i < 400 ? 8 : 1; /* the head has the tokenizer's 50 kB */
        for (int b = 0; b < bits; b++) {
            data[i] ^= (uint8_t)(1 << b);
            const int rc = parse(data, n);
            ck_assert_msg(rc == PL_EFORMAT || (rc == PL_ESTALE && i >= 8 && i < 12), "byte %lld: %d", (long long)i, rc);
            data[i] ^= (uint8_t)(1 << b);
        }
    }
    free(data);
}
END_TEST

static void seal(uint8_t *data)
{
    pl_packed_header h;
    memcpy(&h, data, sizeof h);
    pl_packed_digest(&h, data + sizeof h, data + h.head_at, h.digest);
    memcpy(data, &h, sizeof h);
}

/* Whatever the fields say, with a digest that matches: refused, or within the file. */
START_TEST(hostile)
{
    int64_t n;
    uint8_t *data = small_file(&n);
    pl_packed_header h;
    memcpy(&h, data, sizeof h);
    static const uint8_t value[] = {0, 1, 2, 0x7f, 0x80, 0xff};
    for (int64_t i = 12; i < n; i++) {
        if (i == (int64_t)sizeof h) i = n - 400; /* the last records of the head */
        const uint8_t was = data[i];
        for (size_t k = 0; k < sizeof value; k++) {
            data[i] = value[k];
            /* the options' and head's own place and size decide what is sealed: those that leave the file are not */
            pl_packed_header now;
            memcpy(&now, data, sizeof now);
            if (now.n_options == h.n_options && now.head_at == h.head_at && now.head_bytes == h.head_bytes) seal(data);
            (void)parse(data, n);
        }
        data[i] = was;
    }
    seal(data);
    ck_assert_int_eq(parse(data, n), PL_OK);
    free(data);
}
END_TEST

static void rewrite(const uint8_t *data, int64_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, (size_t)n, f), (size_t)n);
    fclose(f);
}

START_TEST(stale_and_damaged)
{
    int64_t n;
    uint8_t *data = small_file(&n);
    pl_packed_header h;
    pl_ckpt *c = NULL;
    memcpy(&h, data, sizeof h);
    h.version = 2;
    memcpy(data, &h, sizeof h);
    rewrite(data, n);
    ck_assert_int_eq(pl_ckpt_open(&c, path, &err), PL_ESTALE);
    ck_assert_msg(strstr(err.msg, "version 2, this perilune reads version 1") != NULL, "%s", err.msg);
    h.version = PL_PACKED_VERSION;
    memcpy(data, &h, sizeof h);

    /* another layout of q4_0: the id is behind the form's name, layout and device */
    static const char name[] = "\4\0\0\0\0\0\0\0q4_0";
    uint8_t *form = memmem(data + h.head_at, (size_t)h.head_bytes, name, sizeof name - 1);
    ck_assert_ptr_nonnull(form);
    form[sizeof name - 1 + 8] ^= 1;
    seal(data);
    rewrite(data, n);
    ok(pl_ckpt_open(&c, path, &err));
    ck_assert_int_eq(pl_ckpt_check_layouts(c, dev, &err), PL_ESTALE);
    ck_assert_ptr_nonnull(strstr(err.msg, "q4_0"));
    pl_ckpt_close(c);
    form[sizeof name - 1 + 8] ^= 1;
    seal(data);

    data[4096 + 5] ^= 16; /* of the first tensor: only its digest tells */
    rewrite(data, n);
    ok(pl_ckpt_open(&c, path, &err));
    ok(pl_ckpt_check_layouts(c, dev, &err));
    ck_assert_int_eq(pl_ckpt_verify(c, pl_ckpt_find(c, "w0"), &err), PL_EFORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "tensor 'w0' is damaged"));
    ok(pl_ckpt_verify(c, pl_ckpt_find(c, "w1"), &err));
    ck_assert_int_eq(pl_ckpt_verify(c, 3, &err), PL_EARG);
    ok(pl_ckpt_verify(c, -1, &err));
    pl_ckpt_close(c);
    data[4096 + 5] ^= 16;
    int64_t gaps = 0; /* bytes that no tensor, head or option has: each of them counts */
    bool *used = calloc((size_t)n, 1);
    memset(used, 1, sizeof h + h.n_options);
    memset(used + h.head_at, 1, (size_t)h.head_bytes);
    rewrite(data, n);
    ok(pl_ckpt_open(&c, path, &err));
    pl_tensor t = {0};
    pl_ckpt_info info;
    ok(pl_ckpt_tensor(c, pl_ckpt_find(c, "w0"), &t, &err));
    const char *first = t.data; /* at 4096 */
    pl_tensor_release(&t);
    for (int i = 0; i < pl_ckpt_count(c); i++) {
        ok(pl_ckpt_info_at(c, i, &info, &err));
        ok(pl_ckpt_tensor(c, i, &t, &err));
        memset(used + 4096 + ((const char *)t.data - first), 1, (size_t)info.bytes);
        pl_tensor_release(&t);
    }
    pl_ckpt_close(c);
    for (int64_t at = 0; at < n; at++) {
        if (used[at]) continue;
        if (gaps++ % 97 && at != h.head_at - 1) continue;
        data[at] = 1;
        rewrite(data, n);
        ok(pl_ckpt_open(&c, path, &err));
        ck_assert_int_eq(pl_ckpt_verify(c, -1, &err), PL_EFORMAT);
        ck_assert_msg(strstr(err.msg, "between the tensors") != NULL, "%s", err.msg);
        pl_ckpt_close(c);
        data[at] = 0;
    }
    ck_assert_int_gt(gaps, 100);
    free(used);
    free(data);
}
END_TEST

/* What a format packs to is the same each time, and no other format's. */
START_TEST(layout_ids)
{
    uint64_t id[PL_N_DTYPES][2] = {{0}}, again[2];
    for (int32_t d = 0; d < PL_N_DTYPES; d++) {
        if (!is_weights(d)) continue;
        ok(pl_layout_id(dev, d, id[d], &err));
        ok(pl_layout_id(dev, d, again, &err));
        ck_assert_mem_eq(id[d], again, sizeof again);
        for (int32_t k = 0; k < d; k++)
            /* one layout for two formats whose blocks are alike: those of q4_0 and iq4_nl, f16 and bf16 differ at most in
             * what codes mean */
            if (pl_dtype_bytes(k) != pl_dtype_bytes(d)) ck_assert_int_ne(memcmp(id[k], id[d], sizeof again), 0);
    }
}
END_TEST

START_TEST(no_room)
{
    pl_tensor rows;
    const struct rlimit little = {64 << 10, RLIM_INFINITY};
    struct rlimit was;
    signal(SIGXFSZ, SIG_IGN);
    pl_packer *p = begin(GGUF);
    random_rows(&rows, PL_F32, 64, 512);
    getrlimit(RLIMIT_FSIZE, &was);
    setrlimit(RLIMIT_FSIZE, &little);
    const int rc = pl_packer_add(p, dev, "w", &rows, "", &err);
    setrlimit(RLIMIT_FSIZE, &was);
    ck_assert_int_eq(rc, PL_EIO);
    ck_assert_msg(strstr(err.msg, "a.perilune: File too large") != NULL, "%s", err.msg);
    pl_packer_free(p); /* teardown finds an empty directory */
    pl_tensor_release(&rows);
    ck_assert_int_eq(access(path, F_OK), -1);

    pl_ckpt *c = NULL;
    ok(pl_ckpt_open(&c, GGUF, &err));
    p = NULL;
    ck_assert_int_eq(pl_packer_new(&p, "/no/such/a.perilune", c, "{}", 2, &err), PL_EIO);
    ck_assert_int_eq(pl_packer_new(&p, "/dev/null", c, "{}", 2, &err), PL_EIO);
    ck_assert_int_eq(pl_packer_new(&p, path, c, "{}", 1 << 20, &err), PL_EARG);
    ck_assert_ptr_null(p);
    pl_ckpt_close(c);
}
END_TEST

/* Tensors that move into huge pages hold their bytes all the while; a file may be closed in the middle of it. */
START_TEST(moved)
{
    enum { N = 6, K = 1 << 20 };
    pl_tensor rows[N] = {{0}}, t[N] = {{0}};
    pl_ckpt *c = NULL;
    pl_packer *p = begin(GGUF);
    char name[16];
    for (int i = 0; i < N; i++) {
        random_rows(&rows[i], PL_F32, 1, K + i * 1024);
        snprintf(name, sizeof name, "w%d", i);
        ok(pl_packer_add(p, dev, name, &rows[i], "", &err));
    }
    ok(pl_packer_end(p, &err));
    pl_packer_free(p);
    ok(pl_ckpt_open(&c, path, &err));
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "w%d", i);
        ok(pl_ckpt_tensor(c, pl_ckpt_find(c, name), &t[i], &err));
    }
    ck_assert_int_eq(pl_ckpt_settled(c), 0);
    ok(pl_ckpt_settle(c, &err));
    ok(pl_ckpt_settle(c, &err)); /* once is enough */
    const double start = pl_now_s();
    int64_t had = -1;
    for (int turn = 0; turn < 200 && pl_now_s() - start < 10; turn++) {
        for (int i = 0; i < N; i++) ck_assert_mem_eq(t[i].data, rows[i].data, (size_t)t[i].dim[1] * 4);
        const int64_t now = pl_ckpt_settled(c);
        ck_assert_int_ge(now, had);
        if (now >= (N - 1) * (int64_t)K * 4) break; /* where there are no huge pages, it stays 0 */
        had = now;
    }
    for (int i = 0; i < N; i++) ok(pl_ckpt_verify(c, i, &err));
    pl_ckpt_close(c); /* the tensors hold the mapping */
    for (int i = 0; i < N; i++) {
        ck_assert_mem_eq(t[i].data, rows[i].data, (size_t)t[i].dim[1] * 4);
        pl_tensor_release(&t[i]);
    }
    for (int k = 0; k < 20; k++) {
        ok(pl_ckpt_open(&c, path, &err));
        ok(pl_ckpt_settle(c, &err));
        usleep((useconds_t)k * 100);
        pl_ckpt_close(c);
    }
    for (int i = 0; i < N; i++) pl_tensor_release(&rows[i]);
    ok(pl_ckpt_open(&c, GGUF, &err)); /* another file has nothing to move */
    ok(pl_ckpt_settle(c, &err));
    ck_assert_int_eq(pl_ckpt_settled(c), 0);
    pl_ckpt_close(c);
}
END_TEST

/* A process may have 65530 mappings. */
START_TEST(pieces)
{
    ck_assert_int_eq(pl_huge_piece(0), 8 << 20);
    ck_assert_int_eq(pl_huge_piece(100LL << 30), 8 << 20);
    for (int64_t bytes = 1; bytes > 0 && bytes < INT64_MAX / 3; bytes = bytes * 3 + 1) {
        const int64_t piece = pl_huge_piece(bytes);
        ck_assert_int_le(bytes / piece, 1 << 15);
        ck_assert_int_eq(piece % (2 << 20), 0);
        ck_assert(piece == 8 << 20 || bytes / (piece / 2) >= 1 << 15); /* and no larger than it has to be */
    }
}
END_TEST

START_TEST(stamps)
{
    uint64_t a[2], b[2];
    FILE *f = fopen(path, "wb");
    fputs("x", f);
    fclose(f);
    ok(pl_pack_stamp(path, a, &err));
    ok(pl_pack_stamp(path, b, &err));
    ck_assert_mem_eq(a, b, sizeof a);
    f = fopen(path, "ab");
    fputs("y", f);
    fclose(f);
    ok(pl_pack_stamp(path, b, &err));
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    ck_assert_int_eq(pl_pack_stamp("/no/such", a, &err), PL_ENAME);
    ok(pl_pack_stamp(HF, a, &err));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("packed");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, every_format, 0, 2);
    tcase_add_test(t, cut_off);
    tcase_add_test(t, flipped);
    tcase_add_test(t, hostile);
    tcase_add_test(t, stale_and_damaged);
    tcase_add_test(t, layout_ids);
    tcase_add_test(t, no_room);
    tcase_add_test(t, moved);
    tcase_add_test(t, pieces);
    tcase_add_test(t, stamps);
    suite_add_tcase(s, t);
    return run_suite(s);
}
