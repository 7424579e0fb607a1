#ifndef SUITE_H
#define SUITE_H
/* How a suite of Check's runs. */
#include <check.h>

/* Sanitizers take ten to fifty times as long: tests that are long without take fewer cases. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static inline int run_suite(Suite *s)
{
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
#endif
