/* linear16_int.c: the product of integers on AVX-512 with VNNI as it stands, each of its instructions made of AVX2 ones or in
 * plain C (avx512.h), against the definition. */
#include "avx512.h"
#include "products.h"
#define pl_int_avx512 emulated
#include "x86/linear_int_avx512.c"

START_TEST(test_body)
{
    if (pl_dev_has_path(PL_PATH_AVX2)) product_try_int(formats[_i], &emulated);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("linear16_int");
    TCase *t = tcase_create("body");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, test_body, 0, N_FORMATS);
    suite_add_tcase(s, t);
    return run_suite(s);
}
