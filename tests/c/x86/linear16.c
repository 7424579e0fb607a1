/* linear16.c: the AVX-512 path as it stands, each of its instructions made of AVX2 ones (avx512.h), against the definition. */
#include "avx512.h"
#include "products.h"
#define pl_linear_avx512 emulated
#include "x86/linear_avx512.c"

START_TEST(test_body)
{
    if (!pl_dev_has_path(PL_PATH_AVX2)) return;
    const int32_t format = formats[_i];
    for (int i = 0; i < N_PRODUCT_SIZES; i++) {
        const int64_t *size = product_sizes[i];
        trial c;
        product_new(&c, format, size[0], size[1], product_k(format, size[2]), (uint64_t)(i + 1));
        for (int act = PL_ACT_BF16; act <= PL_ACT_F32; act++) {
            product_define(&c, act);
            for (int few = 0; few < 2; few++) {
                memset(c.got.data, 0x55, (size_t)(c.m * c.n) * 4);
                product_run(&c, &emulated, act, few);
                product_same(&c, act);
            }
        }
        product_free(&c);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("linear16");
    TCase *t = tcase_create("body");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, test_body, 0, (int)(sizeof formats / sizeof *formats));
    suite_add_tcase(s, t);
    return run_suite(s);
}
