/* rows_body.h: the definition of the small ops' arithmetic, in lanes of 16 (vec.h). Included once per instruction
 * set by a file that defines ROW_OPS, the name of the table. A row's last lanes that hold no element count as zero. */
#include "maths.h"
#include "rows.h"

static void row_add(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += PL_LANES) vf_put(y + i, vf_add(vf_get(a + i, n - i), vf_get(b + i, n - i)), n - i);
}

static void row_scale(float *y, const float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i += PL_LANES) vf_put(y + i, vf_mul(vf_get(x + i, n - i), vf_set(by)), n - i);
}

/* Squares are summed by fma into 4 x 16 chains (element i into lane i % 16 of chain i / 16 % 4), the chains as
 * (0 + 1) + (2 + 3), the lanes by vf_sum; then y = (x * r) * w with r = 1 / sqrt(sum / n + eps). */
static void row_rms_norm(float *y, const float *x, const float *w, float eps, int64_t n)
{
    vf sum[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    const int64_t whole = n / (4 * PL_LANES) * (4 * PL_LANES);
    for (int64_t i = 0; i < whole; i += 4 * PL_LANES) {
        VF_UNROLL for (int c = 0; c < 4; c++)
        {
            const vf v = vf_load(x + i + c * PL_LANES);
            sum[c] = vf_fma(v, v, sum[c]);
        }
    }
    VF_UNROLL for (int c = 0; c < 4; c++)
    {
        const int64_t at = whole + c * PL_LANES;
        const vf v = at < n ? vf_get(x + at, n - at) : vf_set(0);
        sum[c] = vf_fma(v, v, sum[c]);
    }
    const float total = vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
    const vf r = vf_set(1.0f / sqrtf(total / (float)n + eps));
    for (int64_t i = 0; i < n; i += PL_LANES)
        vf_put(y + i, vf_mul(vf_mul(vf_get(x + i, n - i), r), vf_get(w + i, n - i)), n - i);
}

static void row_swiglu(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += PL_LANES)
        vf_put(y + i, vf_mul(pl_vsilu(vf_get(gate + i, n - i)), vf_get(up + i, n - i)), n - i);
}

static void row_geglu(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += PL_LANES)
        vf_put(y + i, vf_mul(pl_vgelu(vf_get(gate + i, n - i)), vf_get(up + i, n - i)), n - i);
}

/* The angle is a float product, as in the models' reference; its sine and cosine are taken in double. */
static void row_turns(float *sine, float *cosine, const float *freq, float pos, float scale, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        double s, c;
        pl_sin_cos((double)(pos * freq[j]), &s, &c);
        sine[j] = (float)s * scale;
        cosine[j] = (float)c * scale;
    }
}

/* (a, b) becomes (fma(a, cos, -(b sin)), fma(b, cos, a sin)). */
static void row_turn(float *y, const float *x, const float *sine, const float *cosine, bool halves, int64_t p)
{
    if (!halves) {
        for (int64_t j = 0; j < p; j++) {
            const float a = x[2 * j], b = x[2 * j + 1];
            y[2 * j] = fmaf(a, cosine[j], -(b * sine[j]));
            y[2 * j + 1] = fmaf(b, cosine[j], a * sine[j]);
        }
        return;
    }
    for (int64_t i = 0; i < p; i += PL_LANES) {
        const vf a = vf_get(x + i, p - i), b = vf_get(x + p + i, p - i);
        const vf s = vf_get(sine + i, p - i), c = vf_get(cosine + i, p - i);
        vf_put(y + i, vf_fma(a, c, vf_mul(vf_mul(b, s), vf_set(-1))), p - i);
        vf_put(y + p + i, vf_fma(b, c, vf_mul(a, s)), p - i);
    }
}

static void row_to_bf16(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += PL_LANES) {
        if (n - i < PL_LANES)
            vf_store_bf16_n(y + i, vf_load_n(x + i, n - i), n - i);
        else
            vf_store_bf16(y + i, vf_load(x + i));
    }
}

static void row_to_f8(uint8_t *y, const float *x, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i += PL_LANES) {
        const vf v = vf_div(vf_get(x + i, n - i), vf_set(scale));
        if (n - i < PL_LANES)
            vf_store_f8_n(y + i, v, n - i);
        else
            vf_store_f8(y + i, v);
    }
}

/* The largest finite magnitude / 448; 1 where that is zero or nearly a denormal: all codes are 0 then. */
static float row_f8_scale(const float *x, int64_t n)
{
    vf top = vf_set(0);
    for (int64_t i = 0; i < n; i += PL_LANES) {
        const vf v = vf_get(x + i, n - i), size = vf_max(v, vf_sub(vf_set(0), v));
        top = vf_max(vf_if_less(size, vf_set(INFINITY), size, vf_set(0)), top);
    }
    const float most = vf_top(top);
    return most < 0x1p-110f ? 1 : most / 448;
}

const pl_row_ops ROW_OPS = {row_add,   row_scale, row_rms_norm, row_swiglu, row_geglu,
                            row_turns, row_turn,  row_to_bf16,  row_to_f8,  row_f8_scale};
