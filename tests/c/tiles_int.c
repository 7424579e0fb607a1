/* tiles_int.c: the AMX kernel of integers, compiled against tiles in plain C (exact_tiles.h), gives the bits of the
 * definition, on any machine. */
#define PL_TILES_FILE "exact_tiles.h"
#define PATH exact_path
#include "products.h"
#include "x86/linear_int_amx.c"

START_TEST(test_kernel) { product_try_int(formats[_i], &exact_path); }
END_TEST

/* The four products of bytes, at their limits and at random. */
START_TEST(test_bytes)
{
    const tile_config config = tile_config_of(16, 64, 64, 64);
    exact_tiles s;
    uint64_t seed = 9;
    for (int round = 0; round < 8; round++) {
        uint8_t x[16][64], w[16][64];
        int32_t c[16][16];
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 64; k++) {
                x[i][k] = round < 2 ? 0x80 : round < 4 ? 0xff : (uint8_t)(rnd(&seed) >> 9);
                w[i][k] = round % 2 ? 0xff : round < 4 ? 0x80 : (uint8_t)(rnd(&seed) >> 9);
                c[i][k % 16] = round == 7 ? INT32_MAX : (int32_t)(rnd(&seed) >> 8);
            }
        for (int kind = 0; kind < 4; kind++) {
            const bool xs = kind & 1, ws = kind & 2;
            exact_begin(&s, &config);
            exact_load(&s, 1, c, 64);
            exact_load(&s, 5, x, 64);
            exact_load(&s, 7, w, 64);
            exact_bytes(&s, 1, 5, 7, xs, ws);
            for (int m = 0; m < 16; m++)
                for (int n = 0; n < 16; n++) {
                    int64_t sum = c[m][n];
                    for (int k = 0; k < 64; k++) {
                        const uint8_t a = x[m][k], b = w[k / 4][4 * n + k % 4];
                        sum += (int64_t)(xs && a > 127 ? a - 256 : a) * (ws && b > 127 ? b - 256 : b);
                    }
                    ck_assert_uint_eq(exact_word(&s, 1, m, n), (uint32_t)sum);
                }
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tiles_int");
    TCase *t = tcase_create("kernel");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, test_bytes);
    tcase_add_loop_test(t, test_kernel, 0, N_FORMATS);
    suite_add_tcase(s, t);
    return run_suite(s);
}
