#ifndef PL_MATHS_H
#define PL_MATHS_H
/* Transcendental functions by one written polynomial each, the same bits on every path and with every C library.
 * tests/c/maths.c measures the error bounds stated here against doubles. Denormal results count as zero, as
 * everywhere in kernels. */
#include "vec.h"

/* exp(x), at most 1.1 ulp off; 0 below ln(2^-126), infinite above ln of the largest float.
 * n = x / ln 2 rounded, as the low bits of t = n + 1.5 * 2^23; r = x - n ln 2 with ln 2 in two parts, |r| <= 0.347;
 * exp(r) = 1 + r + r^2 q(r). The coefficients of q interpolate it at the Chebyshev nodes. */
VF_INLINE vf pl_vexp(vf x)
{
    const vf magic = vf_set(0x1.8p23f);
    const vf t = vf_fma(x, vf_set(0x1.715476p+0f), magic), n = vf_sub(t, magic);
    const vf r = vf_fma(n, vf_set(-0x1.7f7d1cp-20f), vf_fma(n, vf_set(-0x1.62e4p-1f), x));
    vf q = vf_fma(vf_set(0x1.6d113cp-10f), r, vf_set(0x1.120ba2p-7f));
    q = vf_fma(q, r, vf_set(0x1.55551ap-5f));
    q = vf_fma(q, r, vf_set(0x1.5554dcp-3f));
    q = vf_fma(q, r, vf_set(0.5f));
    const vf p = vf_add(vf_fma(vf_mul(r, r), q, r), vf_set(1));
    vf y = vf_scale2(p, t);
    y = vf_if_less(vf_set(0x1.62e42ep+6f), x, vf_set(INFINITY), y);
    y = vf_if_less(x, vf_set(-0x1.5d589ep+6f), vf_set(0), y);
    return vf_or_nan(x, y);
}
/* The same for one number. */
VF_INLINE float pl_exp1(float x)
{
    float v[PL_LANES];
    vf_store(v, pl_vexp(vf_set(x)));
    return v[0];
}

/* x / (1 + exp(-x)): for a very negative x the exponential is infinite and the result -0. */
VF_INLINE vf pl_vsilu(vf x) { return vf_div(x, vf_add(vf_set(1), pl_vexp(vf_sub(vf_set(0), x)))); }

/* gelu by the tanh approximation, as x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same function, and no
 * cancellation where tanh is near -1. */
VF_INLINE vf pl_vgelu(vf x)
{
    const vf c = vf_fma(vf_mul(x, x), vf_set(-2 * 0.7978845608f * 0.044715f), vf_set(-2 * 0.7978845608f));
    return vf_div(x, vf_add(vf_set(1), pl_vexp(vf_mul(x, c))));
}

/* Sine and cosine of x in doubles: at most 2^-40 off for |x| < 2^20, 2^-22 for |x| < 2^31. n = x / (pi/2) rounded,
 * r = x - n pi/2 with pi/2 in three parts of which the first two have 33 bits, so that n times them is exact for
 * n < 2^20. Plain multiplications and additions (never fused), so that every compiler gives the same bits. */
VF_INLINE void pl_sin_cos(double x, double *sine, double *cosine)
{
    const double magic = 0x1.8p52, t = x * 0x1.45f306dc9c883p-1 + magic, n = t - magic;
    const double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69, z = r * r;
    uint64_t quadrant;
    memcpy(&quadrant, &t, 8);
    /* Taylor: the first term left out is 2^-41 at pi/4 */
    double s = z * (1.0 / 6227020800) - 1.0 / 39916800, c = z * (1.0 / 479001600) - 1.0 / 3628800;
    s = z * s + 1.0 / 362880;
    c = z * c + 1.0 / 40320;
    s = z * s - 1.0 / 5040;
    c = z * c - 1.0 / 720;
    s = z * s + 1.0 / 120;
    c = z * c + 1.0 / 24;
    s = z * s - 1.0 / 6;
    c = z * c - 0.5;
    s = r + r * (z * s);
    c = 1 + z * c;
    const double a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -a : a;
    *cosine = (quadrant + 1) & 2 ? -b : b;
}
#endif
