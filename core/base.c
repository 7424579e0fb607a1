/* base.c: error reports, assertions, the clock, and the conversions that are too long to inline. */
#include "base.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int pl_fail_at(pl_err *err, const char *file, int line, int code, const char *fmt, ...)
{
    if (!err) return code;
    const char *base = strrchr(file, '/');
    snprintf(err->file, sizeof err->file, "%s", base ? base + 1 : file);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    for (char *p = err->msg; *p; p++) /* names from hostile files may hold terminal codes */
        if ((uint8_t)*p < 0x20 || *p == 0x7f) *p = '?';
    err->code = code;
    err->line = line;
    return code;
}

void pl_assert_failed(const char *file, int line, const char *what)
{
    fprintf(stderr, "perilune: %s:%d: broken invariant: %s\n", file, line, what);
    abort();
}

double pl_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

float pl_f16_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return pl_bits_f32(sign | 0x7f800000u | m << 13);
    if (e == 0) { /* zero or subnormal: m * 2^-24, built from bits because threads may flush denormals */
        const float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    return pl_bits_f32(sign | (e + 112) << 23 | m << 13);
}

uint16_t pl_f32_f16(float f)
{
    const uint32_t u = pl_f32_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* 65520 and above */
    if (a < 0x38800000u) {                                  /* below 2^-14: units of 2^-24 */
        const double m = nearbyint((double)pl_bits_f32(a) * 0x1p24);
        return (uint16_t)(sign | (uint32_t)m);
    }
    return (uint16_t)(sign | ((a + 0xfff + (a >> 13 & 1) - 0x38000000u) >> 13));
}

float pl_f8_f32(uint8_t c)
{
    const int e = c >> 3 & 15, m = c & 7;
    float a = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    if ((c & 0x7f) == 0x7f) a = NAN;
    return c & 0x80 ? -a : a;
}

uint8_t pl_f32_f8(float f)
{
    const uint8_t sign = (uint8_t)(pl_f32_bits(f) >> 24 & 0x80);
    if (isnan(f)) return sign | 0x7f;
    const double a = fabs((double)f);
    if (a >= 448) return sign | 0x7e;
    int e = -6;
    while (e < 8 && a >= ldexp(1, e + 1)) e++;
    const int m = (int)nearbyint(ldexp(a, 3 - e)); /* 0..16: 16 carries into the exponent by itself */
    return (uint8_t)(sign | (m >= 8 ? (e + 6) * 8 + m : m));
}

const char *pl_version(void) { return PL_VERSION; }

int32_t pl_abi_sizeof(const char *type)
{
#define SIZE(t) \
    if (!strcmp(type, #t)) return (int32_t)sizeof(t)
    SIZE(pl_err);
    SIZE(pl_tensor);
    SIZE(pl_dev_opts);
    SIZE(pl_fit);
    SIZE(pl_kv_opts);
    SIZE(pl_span);
    SIZE(pl_attr);
    SIZE(pl_batch);
    SIZE(pl_sample_opts);
    SIZE(pl_sampled);
    SIZE(pl_engine_opts);
    SIZE(pl_request);
    SIZE(pl_request_opts);
    SIZE(pl_event);
    SIZE(pl_metrics);
    SIZE(pl_tier_figures);
    SIZE(pl_page_owner);
    SIZE(pl_page_info);
    SIZE(pl_mismatch);
    SIZE(pl_kv_pages);
    SIZE(pl_cost);
    SIZE(pl_queue);
    SIZE(pl_step);
    SIZE(pl_hist);
    SIZE(pl_letter);
    SIZE(pl_front_opts);
    SIZE(pl_http_opts);
    SIZE(pl_http_request);
    SIZE(pl_http_stats);
    SIZE(pl_client_opts);
    SIZE(pl_client_event);
    SIZE(pl_ids);
    SIZE(pl_text);
    SIZE(pl_tok_stream);
    SIZE(pl_ckpt_info);
    SIZE(pl_meta_info);
#undef SIZE
    return -1;
}
