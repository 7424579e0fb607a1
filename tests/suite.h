#ifndef SUITE_H
#define SUITE_H
/* How a suite of Check's runs: what its program ends with. */
#include <check.h>

static inline int run_suite(Suite *s)
{
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
#endif
