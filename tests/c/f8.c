/* f8.c: floats to E4M3 in vectors, on every path, against the scalar definition; and the scale of a row. */
#include "rows.h"
#include "suite.h"
#include <math.h>
#include <stdlib.h>

static const pl_row_ops *tables[3];
static int n_tables;

static uint8_t code_of(const pl_row_ops *ops, float x, float scale)
{
    uint8_t y;
    ops->to_f8(&y, &x, scale, 1);
    return y;
}

/* Every upper half of a float, with lower halves on both sides of each tie; in the kernels' mode and out of it. */
START_TEST(all_patterns)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { N = 65536 * 6 + 1 }; /* odd: the last vector is a part of one */
    float *x = malloc(N * sizeof *x);
    uint8_t *y = malloc(N + 1);
    for (uint32_t i = 0; i < N; i++) x[i] = pl_bits_f32((i / 6 << 16) | low[i % 6]);
    for (int mode = 0; mode < 2; mode++)
        for (int t = 0; t < n_tables; t++) {
            const uint32_t old = mode ? pl_fp_enter() : 0;
            y[N] = 0x55;
            tables[t]->to_f8(y, x, 1, N);
            if (mode) pl_fp_leave(old);
            ck_assert_uint_eq(y[N], 0x55);
            for (int i = 0; i < N; i++)
                if (y[i] != pl_f32_f8(x[i]))
                    ck_abort_msg("table %d, mode %d: %a becomes %02x, want %02x", t, mode, (double)x[i], y[i],
                                 pl_f32_f8(x[i]));
        }
    free(x);
    free(y);
}
END_TEST

START_TEST(there_and_back)
{
    for (int t = 0; t < n_tables; t++)
        for (int c = 0; c < 256; c++) {
            const float x = pl_f8_f32((uint8_t)c);
            ck_assert_uint_eq(code_of(tables[t], x, 1), (uint8_t)c);
            if (isnan(x)) continue;
            ck_assert_uint_eq(code_of(tables[t], x * 0x1p-100f, 0x1p-100f), (uint8_t)c);
            ck_assert_uint_eq(code_of(tables[t], x * 0.3f, 0.3f), (uint8_t)c);
        }
}
END_TEST

START_TEST(scales)
{
    float x[37];
    for (int t = 0; t < n_tables; t++) {
        for (int i = 0; i < 37; i++) x[i] = (float)i - 100;
        ck_assert(tables[t]->f8_scale(x, 37) == 100 / 448.0f);
        ck_assert(tables[t]->f8_scale(x + 20, 1) == 80 / 448.0f);
        x[3] = NAN, x[16] = -INFINITY, x[36] = 1000;
        ck_assert(tables[t]->f8_scale(x, 37) == 1000 / 448.0f);
        ck_assert(tables[t]->f8_scale(x, 36) == 100 / 448.0f);
        for (int i = 0; i < 37; i++) x[i] = i % 2 ? -0x1p-120f : 0;
        ck_assert(tables[t]->f8_scale(x, 37) == 1);
        x[5] = NAN;
        ck_assert(tables[t]->f8_scale(x + 5, 1) == 1);
    }
}
END_TEST

int main(void)
{
    tables[n_tables++] = &pl_row_ops_portable;
#ifdef PL_X86
    if (pl_cpu_has_path(PL_PATH_AVX2)) tables[n_tables++] = &pl_row_ops_avx2;
    if (pl_cpu_has_path(PL_PATH_AVX512)) tables[n_tables++] = &pl_row_ops_avx512;
#endif
    Suite *s = suite_create("f8");
    TCase *c = tcase_create("f8");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, all_patterns);
    tcase_add_test(c, there_and_back);
    tcase_add_test(c, scales);
    suite_add_tcase(s, c);
    return run_suite(s);
}
