/* Quantised checkpoints whose columns are not in the order of their groups (g_idx): every value against a decoder that
 * knows the weight as a plain matrix, column by column through the order that is given with it. */
#include "bytes.h"
#include "ckpt.h"
#include "dtype.h"
#include "folder.h"
#include "suite.h"
#include "tensor.h"
#include <stdio.h>
#include <sys/stat.h>

enum { MAX_N = 40, MAX_K = 640, MAX_GROUPS = 20 };
enum { GPTQ_V1, GPTQ_V2, AWQ, CT_BF16, CT_F16, CT_ZEROS, N_KINDS };
enum { IN_ORDER, SHUFFLED, BACKWARDS, LAST_SWAPPED, N_ORDERS };

/* A weight as it is meant. */
static struct {
    int64_t n, k, share;
    uint8_t code[MAX_N][MAX_K], zero[MAX_N][MAX_GROUPS];
    uint16_t scale[MAX_N][MAX_GROUPS]; /* f16 or bf16 */
    int32_t group[MAX_K];
} w;
static uint32_t seed;
static pl_err err;
static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)seed * n >> 32);
}

static void fill(int kind, int order)
{
    for (int64_t c = 0; c < w.k; c++) w.group[c] = (int32_t)(c / w.share);
    for (int64_t c = 0; c < w.k; c++) {
        const int64_t to = order == SHUFFLED ? rnd((uint32_t)w.k) : order == BACKWARDS ? w.k - 1 - c : c;
        if (order == BACKWARDS && to < c) break;
        const int32_t g = w.group[c];
        w.group[c] = w.group[to];
        w.group[to] = g;
    }
    if (order == LAST_SWAPPED) { /* of the first and the last group */
        w.group[w.k - 1] = 0;
        w.group[w.share - 1] = (int32_t)(w.k / w.share - 1);
    }
    for (int64_t r = 0; r < w.n; r++) {
        for (int64_t c = 0; c < w.k; c++) w.code[r][c] = (uint8_t)rnd(16);
        for (int64_t g = 0; g < w.k / w.share; g++) {
            const float s = (float)(int32_t)(rnd(2000) - 1000) * 0x1p-16f;
            w.scale[r][g] = kind == CT_BF16 ? pl_f32_bf16(s) : pl_f32_f16(s);
            w.zero[r][g] = (uint8_t)(kind == CT_BF16 || kind == CT_F16 ? 8 : rnd(16) + (kind == GPTQ_V1));
        }
    }
}

static float value(int kind, int64_t r, int64_t c)
{
    const int32_t g = w.group[c];
    const float s = kind == CT_BF16 ? pl_bf16_f32(w.scale[r][g]) : pl_f16_f32(w.scale[r][g]);
    return (float)(w.code[r][c] - w.zero[r][g]) * s;
}

/* Files ----------------------------------------------------------------------------------------------------------- */

static void setup(void)
{
    folder_make();
    err = (pl_err){0};
}

/* What put_nibble puts in a word of such a place; and a tensor's line of the head. */
static void put_nibble(uint32_t *words, int64_t word, int64_t place, uint32_t v) { words[word] |= v << 4 * place; }
static void add_tensor(bytes *head, bytes *data, const char *name, const char *format, int64_t a, int64_t b,
                       const void *p, int64_t n)
{
    char text[256], shape[64];
    snprintf(shape, sizeof shape, b ? "%lld,%lld" : "%lld", (long long)a, (long long)b);
    snprintf(text, sizeof text, "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}",
             head->n > 1 ? "," : "", name, format, shape, (long long)data->n, (long long)(data->n + n));
    put_text(head, text);
    put(data, p, n);
}

static void write_model(int kind)
{
    static const int8_t places[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    static uint32_t codes[MAX_N * MAX_K / 8], zeros[(MAX_N + 7) / 8 * MAX_GROUPS + MAX_GROUPS];
    static uint16_t scales[MAX_N * MAX_GROUPS];
    const int64_t n = w.n, k = w.k, groups = k / w.share;
    const bool ct = kind >= CT_BF16;
    char config[512];
    memset(codes, 0, sizeof codes);
    memset(zeros, 0, sizeof zeros);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < k; c++) {
            if (ct)
                put_nibble(codes, r * (k / 8) + c / 8, c % 8, w.code[r][c]);
            else if (kind == AWQ)
                put_nibble(codes, c * (n / 8) + r / 8, places[r % 8], w.code[r][c]);
            else
                put_nibble(codes, c / 8 * n + r, c % 8, w.code[r][c]);
        }
        for (int64_t g = 0; g < groups; g++) {
            const uint32_t zero = w.zero[r][g] - (kind == GPTQ_V1);
            scales[ct ? r * groups + g : g * n + r] = w.scale[r][g];
            if (ct)
                put_nibble(zeros, r / 8 * groups + g, r % 8, zero);
            else
                put_nibble(zeros, g * (n / 8) + r / 8, kind == AWQ ? places[r % 8] : r % 8, zero);
        }
    }
    bytes head = {0}, data = {0}, file = {0};
    put_text(&head, "{");
    const char *half = kind == CT_BF16 ? "BF16" : "F16";
    if (ct) {
        add_tensor(&head, &data, "weight_packed", "I32", n, k / 8, codes, n * k / 2);
        add_tensor(&head, &data, "weight_scale", half, n, groups, scales, n * groups * 2);
        const int64_t shape[2] = {n, k};
        add_tensor(&head, &data, "weight_shape", "I64", 2, 0, shape, 16);
        add_tensor(&head, &data, "weight_g_idx", "I32", k, 0, w.group, k * 4);
        if (kind == CT_ZEROS)
            add_tensor(&head, &data, "weight_zero_point", "I32", (n + 7) / 8, groups, zeros, (n + 7) / 8 * groups * 4);
        snprintf(config, sizeof config,
                 "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
                 "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"int\","
                 "\"symmetric\":%s,\"strategy\":\"group\",\"group_size\":%d,\"actorder\":\"group\"}}}}}",
                 kind == CT_ZEROS ? "false" : "true", (int)w.share);
    } else {
        add_tensor(&head, &data, "g_idx", "I32", k, 0, w.group, k * 4);
        add_tensor(&head, &data, "qweight", "I32", kind == AWQ ? k : k / 8, kind == AWQ ? n / 8 : n, codes, n * k / 2);
        add_tensor(&head, &data, "scales", half, groups, n, scales, n * groups * 2);
        add_tensor(&head, &data, "qzeros", "I32", groups, n / 8, zeros, groups * n / 2);
        snprintf(config, sizeof config,
                 "{\"quantization_config\":{\"quant_method\":\"%s\",\"bits\":4,\"group_size\":%d%s}}",
                 kind == AWQ ? "awq" : "gptq", (int)w.share,
                 kind == AWQ       ? ""
                 : kind == GPTQ_V1 ? ",\"desc_act\":true"
                                   : ",\"desc_act\":true,\"checkpoint_format\":\"gptq_v2\"");
    }
    put_text(&head, "}");
    put_u64(&file, (uint64_t)head.n);
    put(&file, head.p, head.n);
    put(&file, data.p, data.n);
    write_file("model.safetensors", file.p, (size_t)file.n);
    write_file("config.json", config, strlen(config));
    bytes_free(&head);
    bytes_free(&data);
    bytes_free(&file);
}

/* The test -------------------------------------------------------------------------------------------------------- */

static void take(pl_ckpt *c, const char *name, pl_tensor *t)
{
    ck_assert_msg(pl_ckpt_tensor(c, pl_ckpt_find(c, name), t, &err) == PL_OK, "%s: %s", name, err.msg);
}

static void check_model(int kind, int order)
{
    static float y[MAX_N * MAX_K];
    pl_ckpt *c = NULL;
    pl_tensor t = {0}, o = {0};
    const int32_t *from = NULL;
    ck_assert_msg(pl_ckpt_open(&c, dir, &err) == PL_OK, "kind %d: %s", kind, err.msg);
    take(c, "m.weight", &t);
    ck_assert_msg(t.ndim == 2 && t.dim[0] == w.n && t.dim[1] == w.k, "kind %d: its shape", kind);
    ck_assert(pl_tensor_get_f32(&t, y, w.n * w.k, &err) == PL_OK);
    const bool sorted = order != IN_ORDER && w.k > w.share;
    if (sorted) {
        bool seen[MAX_K] = {false};
        take(c, "m.weight_order", &o);
        ck_assert(o.dtype == PL_I32 && o.ndim == 1 && o.dim[0] == w.k);
        from = o.data;
        for (int64_t i = 0; i < w.k; i++) {
            ck_assert(from[i] >= 0 && from[i] < w.k && !seen[from[i]]);
            ck_assert_int_eq(w.group[from[i]], i / w.share);
            seen[from[i]] = true;
        }
    } else {
        ck_assert_int_eq(pl_ckpt_find(c, "m.weight_order"), PL_ENAME);
    }
    for (int64_t r = 0; r < w.n; r++)
        for (int64_t i = 0; i < w.k; i++) {
            const float got = y[r * w.k + i], want = value(kind, r, from ? from[i] : i);
            if (pl_f32_bits(got) != pl_f32_bits(want) && (got != 0 || want != 0))
                ck_abort_msg("kind %d, order %d, %dx%d: [%d,%d] is %a, want %a", kind, order, (int)w.n, (int)w.k,
                             (int)r, (int)i, (double)got, (double)want);
        }
    ck_assert_int_eq(pl_ckpt_count(c), sorted ? 2 : 1);
    pl_ckpt_close(c);
    pl_tensor_release(&t);
    pl_tensor_release(&o);
}

START_TEST(test_values)
{
    static const int64_t shares[] = {32, 64, 96, 128};
    const int kind = _i % N_KINDS, order = _i / N_KINDS;
    seed = (uint32_t)_i + 1;
    for (int s = 0; s < 4; s++)
        for (int64_t groups = 1; groups <= 5; groups += 2)
            for (int i = 0; i < 3; i++) {
                w.share = shares[s];
                w.k = groups * w.share;
                w.n = (kind < CT_BF16 ? 8 : 7) * (i == 2 ? 5 : i + 1);
                fill(kind, order);
                write_model(kind);
                check_model(kind, w.k > w.share ? order : IN_ORDER);
            }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parts_order");
    TCase *t = tcase_create("values");
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(t, setup, folder_remove);
    tcase_add_loop_test(t, test_values, 0, N_KINDS * N_ORDERS);
    return run_suite(s);
}
