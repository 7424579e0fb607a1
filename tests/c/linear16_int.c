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
    if (pl_dev_has_path(PL_PATH_AVX2)) product_try_int(formats[_i], &emulated);
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
