#ifndef VEC16_PLAIN_H
#define VEC16_PLAIN_H
/* The names of kernels/cpu/x86/vec16.h in plain C, for tests on any machine. Functions, not inlined: unrolled kernels of
 * sixteen written-out lanes would take minutes to compile. */
#include "cpu.h"
#include "dtype.h"
#include <math.h>
#ifdef __SSE__
#include <xmmintrin.h>
#else
#define _MM_HINT_T0 0
#define _mm_prefetch(p, hint) ((void)(p))
#endif

enum { LANES = 16 };
typedef struct V {
    float v[16];
} V;
typedef struct I {
    int32_t v[16];
} I;
/* clang-format off */
#define VF static __attribute__((noinline, unused))
#define EACH(T, expr) { T r; for (int i = 0; i < 16; i++) r.v[i] = (expr); return r; }
VF V v_set(float x) EACH(V, x)
VF V v_zero(void) EACH(V, 0)
VF V v_load(const float *p) EACH(V, p[i])
VF void v_store(float *p, V a) { memcpy(p, a.v, sizeof a.v); }
VF V v_add(V a, V b) EACH(V, a.v[i] + b.v[i])
VF V v_sub(V a, V b) EACH(V, a.v[i] - b.v[i])
VF V v_mul(V a, V b) EACH(V, a.v[i] * b.v[i])
VF V v_div(V a, V b) EACH(V, a.v[i] / b.v[i])
VF V v_fma(V a, V b, V c) EACH(V, fmaf(a.v[i], b.v[i], c.v[i]))
VF V v_of_int(I a) EACH(V, (float)a.v[i])
VF V v_cast(I a) EACH(V, pl_bits_f32((uint32_t)a.v[i]))
VF V v_of_half(const uint8_t *p) EACH(V, pl_f16_f32(pl_u16_at(p + 2 * i)))
VF V v_of_bf16(const uint8_t *p) EACH(V, pl_bf16_f32(pl_u16_at(p + 2 * i)))
VF V v_of_u8(const uint8_t *p) EACH(V, p[i])
VF V v_of_s8(const uint8_t *p) EACH(V, (int8_t)p[i])
VF V v_of_e4m3(const uint8_t *p) EACH(V, pl_f8_f32(p[i]))
VF V v_if_negative(V a, V x, V y) EACH(V, signbit(a.v[i]) ? x.v[i] : y.v[i])
VF bool v_any_negative(V a) { for (int i = 0; i < 16; i++) if (signbit(a.v[i])) return true; return false; }
VF V v_drop_tiny(V a, float limit) EACH(V, a.v[i] < limit && a.v[i] > -limit ? 0 : a.v[i])
VF V v_round_bf16(V a) EACH(V, pl_bf16_f32(pl_f32_bf16(a.v[i])))
VF void v_of_f8(const uint8_t *p, V v[4])
{
    for (int k = 0; k < 4; k++)
        for (int r = 0; r < 16; r++) v[k].v[r] = pl_f8_f32(p[r / 4 * 16 + (k & 2) * 4 + (r & 3) * 2 + (k & 1)]);
}
#define V_MAC(c, a, b) ((c) = v_fma(a, b, c))
#define V_CLEAR(c) ((c) = v_zero())
#define V_SETTLE(c) ((void)0)
#define V_KEEP(v) ((void)0)
#define V_MAC_AT(c, a, p) V_MAC(c, a, v_load(p))
#define V_MAC_ONE(c, a, p) V_MAC(c, a, v_set(*(p)))

VF I i_load(const void *p) { I r; memcpy(r.v, p, sizeof r.v); return r; }
VF void i_store(void *p, I a) { memcpy(p, a.v, sizeof a.v); }
VF I i_set(int32_t x) EACH(I, x)
VF I i_and(I a, I b) EACH(I, a.v[i] & b.v[i])
VF I i_or(I a, I b) EACH(I, a.v[i] | b.v[i])
VF I i_xor(I a, I b) EACH(I, a.v[i] ^ b.v[i])
VF I i_add(I a, I b) EACH(I, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]))
VF I i_sub(I a, I b) EACH(I, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i]))
VF I i_sub_bytes(I a, int8_t b)
{
    uint8_t v[64];
    memcpy(v, a.v, 64);
    for (int i = 0; i < 64; i++) v[i] = (uint8_t)(v[i] - b);
    return i_load(v);
}
VF I i_max(I a, I b) EACH(I, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
VF I i_srl(I a, int n) EACH(I, (int32_t)((uint32_t)a.v[i] >> n))
VF I i_sll(I a, int n) EACH(I, (int32_t)((uint32_t)a.v[i] << n))
VF I i_cast(V a) EACH(I, (int32_t)pl_f32_bits(a.v[i]))
VF I i_of_v(V a) EACH(I, (int32_t)lrintf(a.v[i]))
VF I i_of_u8(const uint8_t *p) EACH(I, p[i])
VF int32_t i_top(I a) { int32_t t = a.v[0]; for (int i = 1; i < 16; i++) t = a.v[i] > t ? a.v[i] : t; return t; }
VF int32_t i_total(I a) { int32_t t = 0; for (int i = 0; i < 16; i++) t += a.v[i]; return t; }
VF void i_put_bytes(uint8_t *p, I a) { for (int i = 0; i < 16; i++) p[i] = (uint8_t)a.v[i]; }
VF I i_lookup(const int8_t *level, I a)
{
    uint8_t b[64];
    memcpy(b, a.v, 64);
    for (int i = 0; i < 64; i++) b[i] = (uint8_t)level[b[i] & 15];
    return i_load(b);
}
#define WORDS(expr) { uint16_t w[32]; memcpy(w, a.v, 64); for (int i = 0; i < 32; i++) w[i] = (uint16_t)(expr); return i_load(w); }
VF I w_srl(I a, int n) WORDS(w[i] >> n)
VF I w_sll(I a, int n) WORDS(w[i] << n)
VF I w_lookup(const uint16_t *table, I a) WORDS(table[w[i] & 31])
VF I w_lookup64(const uint16_t *table, I a) WORDS(table[w[i] & 63])
#undef WORDS
VF I b_lookup128(const uint8_t *table, I a)
{
    uint8_t b[64];
    memcpy(b, a.v, 64);
    for (int i = 0; i < 64; i++) b[i] = table[b[i] & 127];
    return i_load(b);
}
VF I b_join(I a, I b, int from)
{
    uint8_t p[64], q[64], r[64];
    memcpy(p, a.v, 64);
    memcpy(q, b.v, 64);
    for (int i = 0; i < 64; i++) r[i] = (i % 2 ? q : p)[i / 16 * 16 + from + i % 16 / 2];
    return i_load(r);
}
VF I b_join_lo(I a, I b) { return b_join(a, b, 0); }
VF I b_join_hi(I a, I b) { return b_join(a, b, 8); }
VF void v_store_bf16(uint16_t *p, V a, V b, float least)
{
    for (int i = 0; i < 32; i++) {
        const float x = pl_bf16_f32(pl_f32_bf16(i < 16 ? a.v[i] : b.v[i - 16]));
        p[i] = x < least && x > -least ? 0 : pl_f32_bf16(x);
    }
}
/* clang-format on */
#undef VF
#undef EACH
#endif
