/* tiles.c: the AMX kernel of bf16, compiled against tiles in plain C (exact_tiles.h), gives the bits of the definition, on
 * any machine; and these tiles do what is known of the instructions. */
#define PL_TILES_FILE "exact_tiles.h"
#define PATH exact_path
#include "products.h"
#include "x86/linear_amx.c"

START_TEST(test_kernel)
{
    const int32_t format = formats[_i];
    if (format == PL_F32 || format == PL_F16) return;
    for (int i = 0; i < N_PRODUCT_SIZES; i++) {
        const int64_t *size = product_sizes[i];
        trial c;
        product_new(&c, format, size[0], size[1], product_k(format, size[2]), (uint64_t)(i + 1));
        product_define(&c, PL_ACT_BF16);
        for (int few = 0; few <= (c.m <= exact_path.few_tokens); few++) {
            memset(c.got.data, 0x55, (size_t)(c.m * c.n) * 4);
            product_run(&c, &exact_path, PL_ACT_BF16, few);
            product_same(&c, PL_ACT_BF16);
        }
        product_free(&c);
    }
}
END_TEST

/* Sums by hand: rounded once, tiny ones dropped. */
START_TEST(test_sums)
{
    static const struct {
        double p;
        float c, want;
    } row[] = {
        {1, 0x1p-24f, 1},
        {1, 0x1.000002p-24f, 0x1.000002p0f},
        {0x1p-200, 0x1p-126f, 0x1p-126f},
        {-0x1p-200, 0x1p-126f, 0x1p-126f},
        {-0x1p-151, 0x1p-126f, 0x1p-126f}, /* a tie, to even */
        {-0x1.8p-151, 0x1p-126f, 0},       /* tiny after rounding, though a denormal would round up */
        {-0x1.8p-151, -0x1p-126f, -0x1p-126f},
        {0x1.8p-151, -0x1p-126f, -0.0f},
        {0x1p-127, 0, 0},
        {-0x1p-127, 0, -0.0f},
        {1, -1, 0},
        {-0.0, -0.0f, -0.0f},
        {0x1p127, 0x1.fffffep125f, 0x1.8p127f},
        {0x1.fffffep127, 0x1p102f, 0x1.fffffep127f},
        {0x1.fffffep127, 0x1p103f, INFINITY},
        {1 + 0x1p-24, 0x1p-80f, 0x1.000002p0f}, /* twice rounded it would be a tie */
        {1 + 0x1p-24, -0x1p-80f, 1},
        {INFINITY, 1, INFINITY},
        {INFINITY, -INFINITY, NAN},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const float got = exact_sum(row[i].p, row[i].c);
        ck_assert_msg(pl_f32_bits(got) == pl_f32_bits(row[i].want) || (isnan(got) && isnan(row[i].want)),
                      "%a + %a: %a, want %a", row[i].p, (double)row[i].c, (double)got, (double)row[i].want);
    }
    ck_assert(no_denormal(0x80000001) == 0 && signbit(no_denormal(0x80000001)) && no_denormal(0x00800000) == 0x1p-126f);
}
END_TEST

/* Against fma in float where nothing is tiny, and where the mode drops what is: random bits. */
START_TEST(test_bf16_step)
{
    uint64_t seed = 3;
    exact_tiles s;
    const tile_config config = tile_config_of(16, 64, 32, 64);
    for (int round = 0; round < 40; round++) {
        exact_begin(&s, &config);
        uint16_t x[16][32], w[16][16][2];
        float c[16][16];
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 32; k++) {
                const uint16_t wide = (uint16_t)(rnd(&seed) >> 20), near = (uint16_t)(0x3e00 + (rnd(&seed) & 0x81ff));
                x[i][k] = round % 2 ? wide : near;
                w[k / 2][i][k % 2] =
                    round % 2 ? (uint16_t)(rnd(&seed) >> 20) : (uint16_t)(0x3e00 + (rnd(&seed) & 0x81ff));
                if (k < 16) c[i][k] = pl_bits_f32((uint32_t)rnd(&seed));
            }
        exact_load(&s, 0, c, 64);
        exact_load(&s, 4, x, 64);
        exact_load(&s, 6, w, 64);
        exact_bf16(&s, 0, 4, 6);
        const uint32_t mode = pl_fp_enter();
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 16; n++) {
                volatile float even = 0, odd = 0;
                for (int k = 0; k < 16; k++) {
                    even = fmaf(pl_bf16_f32(x[m][2 * k]), pl_bf16_f32(w[k][n][0]), even);
                    odd = fmaf(pl_bf16_f32(x[m][2 * k + 1]), pl_bf16_f32(w[k][n][1]), odd);
                }
                const volatile float step = even + odd, want = c[m][n] + step;
                float got;
                memcpy(&got, &s.t[0][m][4 * n], 4);
                const uint32_t a = pl_f32_bits(got), b = pl_f32_bits(want);
                if (a != b && !(isnan(got) && isnan(want)))
                    ck_abort_msg("round %d: [%d,%d] is %08x, want %08x", round, m, n, a, b);
            }
        pl_fp_leave(mode);
    }
}
END_TEST

/* Loads clear what they do not fill, stores write what is configured. */
START_TEST(test_moves)
{
    exact_tiles s;
    const tile_config config = tile_config_of(3, 64, 32, 64);
    uint8_t in[16 * 80], out[16 * 80];
    exact_begin(&s, &config);
    memset(in, 7, sizeof in);
    exact_load(&s, 5, in, 80);
    for (int r = 0; r < 16; r++)
        for (int i = 0; i < 64; i++) ck_assert_int_eq(s.t[5][r][i], r < 3 && i < 32 ? 7 : 0);
    memset(out, 1, sizeof out);
    exact_store(&s, 5, out, 80);
    for (int i = 0; i < 16 * 80; i++) ck_assert_int_eq(out[i], i / 80 < 3 && i % 80 < 32 ? 7 : 1);
    exact_end(&s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tiles");
    TCase *t = tcase_create("tiles"), *k = tcase_create("kernel");
    tcase_set_timeout(k, 300);
    tcase_add_test(t, test_sums);
    tcase_add_test(t, test_bf16_step);
    tcase_add_test(t, test_moves);
    tcase_add_loop_test(k, test_kernel, 0, N_FORMATS);
    suite_add_tcase(s, t);
    suite_add_tcase(s, k);
    return run_suite(s);
}
