/* linear_int.h: the product of integers (linear_int.c) on vectors of LANES rows; included by linear_int_avx2.c and
 * linear_int_avx512.c, which give the vectors and the step: i_dot (one step of 4 k), and how many of them fit before
 * i_widen; MAX_T, the tokens that share a unit's codes, and CASES_BEYOND, kernels for more than 2 and fewer than these
 * (group_of); and FROM_SUM. Codes stay bytes as they lie; what is to be taken off
 * them is taken off the sum, as that times the sum of x: sums begin with it (FROM_SUM), or it is added at the end.
 * One kernel serves every number of tokens: MAX_T at a time, for which a block row comes from L2 after the first. */
#include "linear.h"
enum { X_TOKENS = MAX_T, X_TILES = 0, SIGNED_BYTES = 0 };
#include "linear_int_x.h"

/* Largest byte: of 8 k of 4 bits, say, sums of 16 products with |x| <= 127 fit 16 bits. 0: signed bytes. */
PL_INLINE int largest_byte(const int dtype)
{
    switch (pl_layout_table[dtype].form) {
    case PL_CODE_S8:
    case PL_CODE_IQ4:
        return 0;
    case PL_CODE_E2M1:
        return 24;
    default:
        return dtype == PL_Q6_K ? 63 : dtype == PL_Q5_0 || dtype == PL_Q5_1 || dtype == PL_Q5_K ? 31 : 15;
    }
}

/* A group of a unit (half 0: the first 16 k or all 32, half 1: the last 16) into the sums of T tokens. */
PL_INLINE void group(const int dtype, const int planes, const int T, const int half, const uint8_t *block, int in,
                     const pl_int_x *x, V acc[MAX_T][VECS])
{
    const pl_layout *l = &pl_layout_table[dtype];
    const uint8_t *code = block + l->code + in * l->code_step, *high = block + l->high + in * l->high_step;
    const bool is_signed = largest_byte(dtype) == 0;
    const int fits = steps_that_fit(largest_byte(dtype)), n = pl_has_halves(dtype) ? 4 : 8;
    I wide[2][MAX_T][VECS], narrow[MAX_T][VECS];
    PL_UNROLL for (int plane = 0; plane < planes; plane++) PL_UNROLL for (int at = 0; at < n; at++)
    {
        const int quad = half * 4 + at;
        I q[VECS];
        PL_UNROLL for (int h = 0; h < VECS; h++) q[h] = bytes_of(dtype, code, high, quad / 2, quad % 2, h);
        PL_UNROLL for (int t = 0; t < T; t++)
        {
            const I xi = i_set((int32_t)x->q[(plane * 8 + quad) * T + t]);
            PL_UNROLL for (int h = 0; h < VECS; h++)
            {
                if (FROM_SUM && at == 0 && plane == planes - 1 && byte_offset(dtype))
                    narrow[t][h] = i_dot(is_signed, i_set((int32_t)x->sum[half * T + t]), q[h], xi);
                else
                    narrow[t][h] =
                        at % fits == 0 ? i_dot_first(is_signed, q[h], xi) : i_dot(is_signed, narrow[t][h], q[h], xi);
                if ((at + 1) % fits && at + 1 < n) continue;
                const I s = i_widen(narrow[t][h]);
                wide[plane][t][h] = at < fits ? s : i_sum(wide[plane][t][h], s);
            }
        }
    }
    PL_UNROLL for (int h = 0; h < VECS; h++)
    {
        const V d = scale_of(dtype, block, in, half, h);
        PL_UNROLL for (int t = 0; t < T; t++)
        {
            I s = wide[0][t][h];
            if (planes == 2) s = i_add(i_sll(s, 7), wide[1][t][h]);
            if (byte_offset(dtype) && !FROM_SUM) s = i_add(s, i_set((int32_t)x->sum[half * T + t]));
            acc[t][h] = v_fma(v_of_int(s), v_mul(d, v_set(x->scale[t])), acc[t][h]);
        }
        if (!pl_int_minimum(dtype)) continue;
        const V m = min_of(dtype, block, in, h);
        PL_UNROLL for (int t = 0; t < T; t++) acc[t][h] = v_fma(m, v_cast(i_set((int32_t)x->sum[t])), acc[t][h]);
    }
}

/* T tokens from t0 on by block row b. */
PL_INLINE void product(const int dtype, const int planes, const int T, const pl_int_product *p, int64_t b, int64_t t0)
{
    enum { AHEAD = 4096 };
    const pl_layout *l = &pl_layout_table[dtype];
    const int per = l->k / UNIT, step = l->bytes / per;
    pl_int_x x = {p->x.q + t0 * p->units * 8 * planes, p->x.scale + t0 * p->units, p->x.sum + t0 * p->units * 2};
    const uint8_t *block = p->w + b * p->w_bytes;
    V acc[MAX_T][VECS];
    PL_UNROLL for (int t = 0; t < T; t++) PL_UNROLL for (int h = 0; h < VECS; h++) acc[t][h] = v_zero();
    for (int64_t u = 0; u < p->units; block += l->bytes)
        for (int in = 0; in < per && u < p->units; in++, u++) {
            PL_UNROLL for (int j = 0; j < step; j += 64)
                _mm_prefetch((const char *)block + in * step + AHEAD + j, _MM_HINT_T0);
            group(dtype, planes, T, 0, block, in, &x, acc);
            if (pl_has_halves(dtype)) group(dtype, planes, T, 1, block, in, &x, acc);
            x.q += 8 * planes * T;
            x.scale += T;
            x.sum += 2 * T;
        }
    PL_UNROLL for (int t = 0; t < T; t++) if (t0 + t < p->m)
        put_rows(p->y + (t0 + t) * p->ldy, p->bias, p->n, b * ROWS, acc[t]);
}

#define CASE_T(F, PLANES, T)                  \
    case T:                                   \
        product(PL_##F, PLANES, T, p, b, t0); \
        break;
#define RUN_PLANES(F, PLANES)                                                           \
    static void run_##F##_##PLANES(const pl_int_product *p, int64_t b0, int64_t b1)     \
    {                                                                                   \
        for (int64_t b = b0; b < b1; b++)                                               \
            for (int64_t t0 = 0; t0 < p->m; t0 += MAX_T) switch (group_of(p->m - t0)) { \
                    CASE_T(F, PLANES, 1)                                                \
                    CASE_T(F, PLANES, 2)                                                \
                    CASES_BEYOND(F, PLANES)                                             \
                default:                                                                \
                    product(PL_##F, PLANES, MAX_T, p, b, t0);                           \
                }                                                                       \
    }
#define RUN(F) RUN_PLANES(F, 1) RUN_PLANES(F, 2)
PL_INT_FORMATS(RUN)

static void run(const pl_int_product *p, int64_t b0, int64_t b1, void *scratch)
{
    (void)scratch;
    switch (p->dtype) {
#define CASE(F)                                                  \
    case PL_##F:                                                 \
        (p->planes == 1 ? run_##F##_1 : run_##F##_2)(p, b0, b1); \
        return;
        PL_INT_FORMATS(CASE)
#undef CASE
    default:
        PL_ASSERT(false);
    }
}
