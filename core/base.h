#ifndef PL_BASE_H
#define PL_BASE_H
/* What every file of the core uses: errors, assertions, checked arithmetic, bit patterns of small floats, time. */
#include "pl_serve.h"
#include <string.h>

#define PL_MUST __attribute__((warn_unused_result))
#define PL_INLINE static inline __attribute__((always_inline))

/* Fills err (unless NULL) and returns code: `return pl_fail(err, PL_EARG, "kv: page of %d tokens, want ...", n)`. */
int pl_fail_at(pl_err *err, const char *file, int line, int code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define pl_fail(err, code, ...) pl_code_of(pl_fail_at((err), __FILE__, __LINE__, (code), __VA_ARGS__), (code))
/* Its inlining shows the compiler that the code is negative, and so what PL_TRY leaves unset. */
PL_INLINE int pl_code_of(int reported, int code) { return (void)reported, code; }

/* Returns from the caller with the code of a failed call. */
#define PL_TRY(call)             \
    do {                         \
        const int rc_ = (call);  \
        if (rc_ < 0) return rc_; \
    } while (0)

/* A broken invariant is perilune's own fault: print and abort. */
void pl_assert_failed(const char *file, int line, const char *what) __attribute__((noreturn, cold));
#define PL_ASSERT(x) ((x) ? (void)0 : pl_assert_failed(__FILE__, __LINE__, #x))

/* Sizes from files and callers are multiplied and added through these; false on overflow or a negative. */
PL_INLINE bool pl_mul(int64_t a, int64_t b, int64_t *out)
{
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}
PL_INLINE bool pl_add_size(int64_t a, int64_t b, int64_t *out)
{
    return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out);
}
PL_INLINE int64_t pl_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
PL_INLINE int64_t pl_min(int64_t a, int64_t b) { return a < b ? a : b; }
PL_INLINE int64_t pl_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* Seconds as poll wants them, rounded up; at most twelve days. */
PL_INLINE int32_t pl_ms(double s) { return s > 0 ? s < 1e6 ? (int32_t)(s * 1e3) + 1 : 1000000000 : 0; }

/* Small floats. Conversions to them round to nearest, ties to even; NaN stays NaN. */
PL_INLINE float pl_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
PL_INLINE uint32_t pl_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
/* Every double that Lua reads has to pass here if a file may have put a NaN in: LuaJIT keeps its tags in the bits of NaNs
 * and takes those that its FFI hands over as they are, so that a NaN of a file's choosing is a pointer of its choosing. */
PL_INLINE double pl_plain_nan(double x) { return x == x ? x : __builtin_nan(""); }
PL_INLINE float pl_bf16_f32(uint16_t b) { return pl_bits_f32((uint32_t)b << 16); }
PL_INLINE uint16_t pl_f32_bf16(float f)
{
    const uint32_t u = pl_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
float pl_f16_f32(uint16_t h);
uint16_t pl_f32_f16(float f);
float pl_f8_f32(uint8_t c); /* e4m3: 0x7f and 0xff are NaN */
uint8_t pl_f32_f8(float f); /* saturates at 448 */
#endif
