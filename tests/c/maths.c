/* maths.c: the polynomials of kernels/cpu/maths.h against the C library's doubles, over their whole ranges: the error
 * bounds that the header states, and what happens at the ends. */
#include "maths.h"
#include "suite.h"
#include <stdio.h>

static double ulp_of(double x) /* of a float near x */
{
    int e;
    frexp(x, &e);
    return ldexp(1, e - 24);
}

/* Every 509th float: 4 million of them. */
START_TEST(exp_error)
{
    double worst = 0;
    for (uint64_t u = 0; u < 1ull << 32; u += 509 * PL_LANES) {
        float x[PL_LANES], y[PL_LANES];
        for (uint64_t i = 0; i < PL_LANES; i++) x[i] = pl_bits_f32((uint32_t)(u + 509 * i));
        if (fabsf(x[0]) > 200 || fabsf(x[0]) < 1e-12f) continue;
        vf_store(y, pl_vexp(vf_load(x)));
        for (int i = 0; i < PL_LANES; i++) {
            const double want = exp((double)x[i]);
            bool good = true; /* an assertion costs a system call: not one for each value */
            if (want < 0x1.00001p-126)
                good = y[i] <= 0x1.00001p-126f && y[i] >= 0;
            else if (want > 0x1.ffffffp127)
                good = isinf(y[i]);
            else
                worst = fmax(worst, fabs(y[i] - want) / ulp_of(want));
            if (!good) ck_abort_msg("exp(%a) = %a", x[i], y[i]);
        }
    }
    printf("exp: %.3f ulp\n", worst);
    ck_assert_double_le(worst, 1.1);
}
END_TEST

static void near_exp(float x)
{
    const double want = exp((double)x);
    const float y = pl_exp1(x);
    const bool low = y == 0 && want < 0x1.00001p-126, high = isinf(y) && want > 0x1.fffffep127;
    if (!low && !high && fabs(y - want) >= 1.1 * ulp_of(want)) ck_abort_msg("exp(%a) = %a, want %a", x, y, want);
}

START_TEST(exp_ends)
{
    for (float x = 88.722f; x < 88.7235f; x = nextafterf(x, 100)) near_exp(x);
    for (float x = -87.338f; x < -87.335f; x = nextafterf(x, 100)) near_exp(x);
    ck_assert(pl_exp1(0) == 1 && pl_exp1(-0.0f) == 1);
    ck_assert(pl_exp1(INFINITY) == INFINITY && pl_exp1(-INFINITY) == 0);
    ck_assert(pl_exp1(3e38f) == INFINITY && pl_exp1(-3e38f) == 0);
    ck_assert(isnan(pl_exp1(NAN)) && isnan(pl_exp1(-NAN)));
    ck_assert(pl_exp1(1e-40f) == 1);
}
END_TEST

START_TEST(sin_cos)
{
    double worst = 0, far = 0;
    for (int i = -2000000; i < 2000000; i++) {
        double s, c, x = (float)i * 0.37f;
        pl_sin_cos(x, &s, &c);
        worst = fmax(worst, fmax(fabs(s - sin(x)), fabs(c - cos(x))));
        x = (float)i * 1073.7f;
        pl_sin_cos(x, &s, &c);
        far = fmax(far, fmax(fabs(s - sin(x)), fabs(c - cos(x))));
    }
    printf("sine, cosine: %.3g below 2^20, %.3g below 2^31\n", worst, far);
    ck_assert_double_le(worst, 0x1p-40);
    ck_assert_double_le(far, 0x1p-22);
    double s, c;
    pl_sin_cos(0, &s, &c);
    ck_assert(s == 0 && c == 1);
    pl_sin_cos(INFINITY, &s, &c);
    ck_assert(isnan(s) && isnan(c));
    pl_sin_cos(NAN, &s, &c);
    ck_assert(isnan(s) && isnan(c));
}
END_TEST

START_TEST(activations)
{
    double silu = 0, gelu = 0;
    for (int i = -20000; i < 20000; i += PL_LANES) {
        float x[PL_LANES], a[PL_LANES], b[PL_LANES];
        for (int k = 0; k < PL_LANES; k++) x[k] = (float)(i + k) * 1e-3f;
        vf_store(a, pl_vsilu(vf_load(x)));
        vf_store(b, pl_vgelu(vf_load(x)));
        for (int k = 0; k < PL_LANES; k++) {
            const double v = x[k], u = 0.79788456080286536 * (v + 0.044715 * v * v * v);
            silu = fmax(silu, fabs(a[k] - v / (1 + exp(-v))) / fmax(fabs(v / (1 + exp(-v))), 1e-30));
            gelu = fmax(gelu, fabs(b[k] - v / (1 + exp(-2 * u))) / fmax(fabs(v / (1 + exp(-2 * u))), 1e-30));
        }
    }
    printf("silu: %.3g, gelu: %.3g relative\n", silu, gelu);
    ck_assert_double_le(silu, 4e-7);
    ck_assert_double_le(gelu, 2e-5); /* the argument of its exponential reaches 80 */
}
END_TEST

START_TEST(bf16)
{
    for (uint64_t u = 0; u < 1ull << 32; u += 1021 * PL_LANES) {
        float x[PL_LANES];
        uint16_t y[PL_LANES];
        for (uint64_t i = 0; i < PL_LANES; i++) x[i] = pl_bits_f32((uint32_t)(u + 1021 * i));
        vf_store_bf16(y, vf_load(x));
        for (int i = 0; i < PL_LANES; i++)
            if (y[i] != pl_f32_bf16(x[i])) ck_abort_msg("%a becomes %x", x[i], y[i]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("maths");
    TCase *c = tcase_create("maths");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, exp_error);
    tcase_add_test(c, exp_ends);
    tcase_add_test(c, sin_cos);
    tcase_add_test(c, activations);
    tcase_add_test(c, bf16);
    suite_add_tcase(s, c);
    return run_suite(s);
}
