/* linear16.c: the body of the AVX-512 path, with its vectors of 16 lanes made of two of AVX2, against the definition:
 * what runs there is tested on machines without AVX-512, but for the wrappers of vec16.h. */
#include "suite.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef PL_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include "cpu.h"
#include <immintrin.h>

enum { LANES = 16 };
typedef struct V {
    __m256 a, b;
} V;
typedef struct I {
    __m256i a, b;
} I;
#define BOTH(T, op, x, y) ((T){op((x).a, (y).a), op((x).b, (y).b)})
PL_INLINE V v_zero(void) { return (V){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PL_INLINE V v_set(float x) { return (V){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PL_INLINE V v_load(const float *p) { return (V){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PL_INLINE void v_store(float *p, V x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
PL_INLINE V v_add(V x, V y) { return BOTH(V, _mm256_add_ps, x, y); }
PL_INLINE V v_sub(V x, V y) { return BOTH(V, _mm256_sub_ps, x, y); }
PL_INLINE V v_mul(V x, V y) { return BOTH(V, _mm256_mul_ps, x, y); }
PL_INLINE V v_div(V x, V y) { return BOTH(V, _mm256_div_ps, x, y); }
PL_INLINE V v_fma(V x, V y, V z) { return (V){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
PL_INLINE V v_of_int(I x) { return (V){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
PL_INLINE V v_cast(I x) { return (V){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
PL_INLINE __m128i low8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
PL_INLINE V v_of_half(const void *p)
{
    const __m128i *h = p;
    return (V){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
PL_INLINE V v_of_u8(const uint8_t *p)
{
    return v_of_int((I){_mm256_cvtepu8_epi32(low8(p)), _mm256_cvtepu8_epi32(low8(p + 8))});
}
PL_INLINE V v_of_s8(const uint8_t *p)
{
    return v_of_int((I){_mm256_cvtepi8_epi32(low8(p)), _mm256_cvtepi8_epi32(low8(p + 8))});
}
PL_INLINE V v_of_bf16(const void *p)
{
    const __m128i *h = p;
    return v_cast((I){_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h)), 16),
                      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1)), 16)});
}
PL_INLINE V v_if_negative(V a, V x, V y)
{
    return (V){_mm256_blendv_ps(y.a, x.a, a.a), _mm256_blendv_ps(y.b, x.b, a.b)};
}
PL_INLINE bool v_any_negative(V a) { return _mm256_movemask_ps(a.a) | _mm256_movemask_ps(a.b); }
PL_INLINE I i_of_u8(const uint8_t *p) { return (I){_mm256_cvtepu8_epi32(low8(p)), _mm256_cvtepu8_epi32(low8(p + 8))}; }
#define V_MAC(c, a, b) ((c) = v_fma(a, b, c))
#define V_KEEP(v) ((void)0)
PL_INLINE I i_load(const void *p)
{
    const __m256i *v = p;
    return (I){_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
PL_INLINE I i_set(int32_t x) { return (I){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
PL_INLINE I i_and(I x, I y) { return BOTH(I, _mm256_and_si256, x, y); }
PL_INLINE I i_or(I x, I y) { return BOTH(I, _mm256_or_si256, x, y); }
PL_INLINE I i_srl(I x, int n) { return (I){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; }
PL_INLINE I i_sll(I x, int n) { return (I){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
/* by the scalar definitions */
PL_INLINE V v_round_bf16(V x)
{
    float f[16];
    v_store(f, x);
    for (int i = 0; i < 16; i++) f[i] = pl_bf16_f32(pl_f32_bf16(f[i]));
    return v_load(f);
}
PL_INLINE V v_drop_tiny(V x, float limit)
{
    float f[16];
    v_store(f, x);
    for (int i = 0; i < 16; i++) f[i] = f[i] < limit && f[i] > -limit ? 0 : f[i];
    return v_load(f);
}
PL_INLINE V v_of_e4m3(const uint8_t *p)
{
    float f[16];
    for (int i = 0; i < 16; i++) f[i] = pl_f8_f32(p[i]);
    return v_load(f);
}
PL_INLINE I i_lookup(const int8_t *level, I x)
{
    int8_t b[64];
    memcpy(b, &x, 64);
    for (int i = 0; i < 64; i++) b[i] = level[b[i]];
    return i_load(b);
}
PL_INLINE void v_of_f8(const void *p, V v[4])
{
    const uint8_t *c = p;
    for (int k = 0; k < 4; k++) {
        float f[16];
        for (int r = 0; r < 16; r++) f[r] = pl_f8_f32(c[r / 4 * 16 + (k & 2) * 4 + (r & 3) * 2 + (k & 1)]);
        v[k] = v_load(f);
    }
}
#define PL_TILE_T 8
#define PL_TILE_TAILS(MIN, HALVES) TAIL(6, MIN, HALVES) TAIL(7, MIN, HALVES)
#include "x86/linear_body.h"
static const pl_linear_path soft16 = PATH_OF_BODY;

static const int32_t formats[] = {PL_F32,   PL_F16,    PL_BF16,  PL_F8,    PL_Q4_0,   PL_Q4_1,  PL_Q5_0,  PL_Q5_1,
                                  PL_Q8_0,  PL_Q4_K,   PL_Q5_K,  PL_Q6_K,  PL_IQ4_NL, PL_MXFP4, PL_NVFP4, PL_I4G32,
                                  PL_I4G64, PL_I4G128, PL_U4G32, PL_U4G64, PL_U4G128, PL_F8G32, PL_F8G64, PL_F8G128};

static void one_shape(pl_dev *d, int32_t format, int64_t m, int64_t n, int64_t k)
{
    pl_err e = {0};
    pl_tensor w = {0}, x = {0}, want = {0}, got = {0}, packed = {0};
    const int64_t wd[2] = {n, k}, xd[2] = {m, k}, yd[2] = {m, n};
    ck_assert(pl_tensor_new(&w, d, format, 2, wd, &e) == PL_OK && pl_tensor_new(&x, d, PL_F32, 2, xd, &e) == PL_OK);
    ck_assert(pl_tensor_new(&want, d, PL_F32, 2, yd, &e) == PL_OK &&
              pl_tensor_new(&got, d, PL_F32, 2, yd, &e) == PL_OK);
    uint32_t s = (uint32_t)(format * 1000 + m);
    for (int64_t i = 0; i < n * pl_dtype_row_bytes(format, k); i++) /* no infinities in any format */
        ((uint8_t *)w.data)[i] = (uint8_t)((s = s * 1664525 + 1013904223) >> 24) & 0xbb;
    for (int64_t i = 0; format == PL_NVFP4 && i < n * k / 32; i++) { /* one float a row, in both dialects */
        const float tensor = i / (k / 32) % 2 ? -300 : 0.01f;
        memcpy((uint8_t *)w.data + i * 22, &tensor, 4);
    }
    for (int64_t i = 0; i < m * k; i++)
        ((float *)x.data)[i] = (float)(int32_t)(s = s * 1664525 + 1013904223) * 0x1p-30f;
    ck_assert(pl_dev_pack(d, &packed, &w, NULL, &e) == PL_OK);
    for (int act = PL_ACT_BF16; act <= PL_ACT_F32; act++) {
        ck_assert(pl_cpu_linear(pl_dev_stream(d), &want, &x, &w, NULL, act, &e) == PL_OK);
        const int64_t units = (k + UNIT - 1) / UNIT, blocks = (n + ROWS - 1) / ROWS;
        pl_product p = {.w = packed.data,
                        .w_bytes = pl_cpu_packed_bytes(format, ROWS, k),
                        .dtype = format,
                        .act = act,
                        .m = m,
                        .n = n,
                        .k = k,
                        .units = units,
                        .src = x.data,
                        .src_ld = k,
                        .y = got.data,
                        .ldy = n};
        p.x = malloc((size_t)(m * units * UNIT) * 4);
        p.sum = malloc((size_t)(m * units) * 4);
        float *scratch = malloc((size_t)soft16.scratch_floats * 4);
        for (int way = 0; way < 2; way++) {
            const int64_t group = way ? soft16.many_group : soft16.few_group;
            memset(got.data, 0x55, (size_t)(m * n) * 4);
            const uint32_t mode = pl_fp_enter();
            soft16.prepare(&p, group, 0, (m + group - 1) / group);
            if (!way) soft16.few(&p, 0, blocks);
            for (int64_t t = 0; way && t < m; t += soft16.many_tokens)
                for (int64_t b = 0; b < blocks; b += soft16.many_blocks)
                    soft16.many(&p, t, pl_min(t + soft16.many_tokens, m), b, pl_min(b + soft16.many_blocks, blocks),
                                scratch);
            pl_fp_leave(mode);
            ck_assert_mem_eq(want.data, got.data, (size_t)(m * n) * 4);
        }
        free(p.x);
        free(p.sum);
        free(scratch);
    }
    pl_tensor_release(&w);
    pl_tensor_release(&x);
    pl_tensor_release(&want);
    pl_tensor_release(&got);
    pl_tensor_release(&packed);
}

START_TEST(test_body)
{
    if (!pl_dev_has_path(PL_PATH_AVX2)) return;
    static const int64_t ms[] = {1, 2, 3, 4, 5, 8, 15, 33, 200}, ns[] = {16, 30, 70};
    const int32_t format = formats[_i];
    const int64_t block = pl_dtype_block(format), ks[] = {block == 1 ? 71 : block, block > 32 ? 512 : 352};
    pl_err e = {0};
    pl_dev *d = NULL;
    const pl_dev_opts o = {.kind = PL_DEV_CPU, .path = PL_PATH_PORTABLE, .n_threads = 1};
    ck_assert(pl_dev_open(&d, &o, &e) == PL_OK);
    for (int i = 0; i < 9; i++) one_shape(d, format, ms[i], ns[i % 3], ks[i % 2]);
    pl_dev_close(d);
}
END_TEST
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

int main(void)
{
    Suite *s = suite_create("linear16");
#ifdef PL_X86
    TCase *t = tcase_create("body");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, test_body, 0, (int)(sizeof formats / sizeof *formats));
    suite_add_tcase(s, t);
#endif
    return run_suite(s);
}
