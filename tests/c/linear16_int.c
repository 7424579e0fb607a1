/* linear16_int.c: the product of integers on AVX-512 with VNNI as it stands, each of its instructions made of AVX2 ones or in
 * plain C (avx512.h), against the definition. */
#ifdef __x86_64__
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include "avx512.h"
#include "products.h"
#define pl_int_avx512 emulated
#include "x86/linear_int_avx512.c"

START_TEST(test_body)
{
    const int32_t format = formats[_i];
    if (!pl_dev_has_path(PL_PATH_AVX2) || !product_is_int(format)) return;
    for (int i = 0; i < N_PRODUCT_SIZES; i++) {
        const int64_t *size = product_sizes[i];
        trial c;
        product_new(&c, format, size[0], size[1], product_k(format, size[2]), (uint64_t)(i + 1));
        for (int planes = 1; planes <= 2; planes++) {
            const int act = planes == 1 ? PL_ACT_INT8 : PL_ACT_INT15;
            product_define(&c, act);
            product_run_int(&c, &emulated, planes);
            product_same(&c, act);
        }
        product_free(&c);
    }
}
END_TEST
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
#include "suite.h"
#endif

int main(void)
{
    Suite *s = suite_create("linear16_int");
#ifdef __x86_64__
    TCase *t = tcase_create("body");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, test_body, 0, N_FORMATS);
    suite_add_tcase(s, t);
#endif
    return run_suite(s);
}
