/* pack.c: the product layouts of every format. One row's unit of 32 k passes through a plain form (codes, scales),
 * so that each source format and each place in a block is written down once. Packing copies codes: nothing is
 * rounded, and a packed row gives back exactly the values of the row that it came from. */
#include "linear.h"

/* 32 k of one row, as stored: q for codes, h and f for floats of 16 and 32 bits. */
typedef struct unit {
    uint32_t d; /* 16 bits, or a float's 32 */
    uint16_t m;
    uint8_t sc[2], mn;
    union {
        uint8_t q[UNIT];
        uint16_t h[UNIT];
        uint32_t f[UNIT];
    };
} unit;

#define LOW_NIBBLES 0x0f0f0f0f0f0f0f0fu

static uint64_t u64_at(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
static void put_u16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }

static void nibbles(unit *u, const uint8_t *p) /* element i and i + 16 in byte i */
{
    for (int i = 0; i < 16; i += 8) {
        const uint64_t v = u64_at(p + i), low = v & LOW_NIBBLES, high = v >> 4 & LOW_NIBBLES;
        memcpy(u->q + i, &low, 8);
        memcpy(u->q + 16 + i, &high, 8);
    }
}
static void pairs(unit *u, const uint8_t *p) /* element 2i and 2i + 1 in byte i */
{
    for (int i = 0; i < 16; i++) {
        u->q[2 * i] = p[i] & 15;
        u->q[2 * i + 1] = p[i] >> 4;
    }
}
static void fifth_bits(unit *u, uint32_t bits)
{
    for (int i = 0; i < UNIT; i++) u->q[i] |= (uint8_t)((bits >> i & 1) << 4);
}

/* Sub-block j of Q4_K and Q5_K: 6-bit scale and minimum out of 12 bytes. */
static void k_scales(unit *u, const uint8_t *s, int j)
{
    if (j < 4) {
        u->sc[0] = s[j] & 63;
        u->mn = s[j + 4] & 63;
    } else {
        u->sc[0] = (uint8_t)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        u->mn = (uint8_t)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
}

/* Is one of n codes of e4m3, a multiple of 8, NaN? */
static bool e4m3_nan(const uint8_t *q, int64_t n)
{
    uint64_t seen = 0;
    for (int64_t i = 0; i < n; i += 8) seen |= (u64_at(q + i) & 0x7f7f7f7f7f7f7f7fu) + 0x0101010101010101u;
    return (seen & 0x8080808080808080u) != 0;
}

/* Unit i of a row as files have it; what lies beyond k elements is 0. */
static void unit_of_row(int32_t dtype, const void *row, int64_t k, int64_t i, unit *u)
{
    const int64_t left = pl_min(k - i * UNIT, UNIT);
    const uint8_t *p = row;
    const int j = (int)(i & 7); /* within a block of 256 */
    const int64_t group = pl_layout_table[dtype].group, in = i % group;
    switch (dtype) {
    case PL_F32:
        memset(u->f, 0, sizeof u->f);
        memcpy(u->f, p + i * UNIT * 4, (size_t)left * 4);
        return;
    case PL_F16:
    case PL_BF16:
        memset(u->h, 0, sizeof u->h);
        memcpy(u->h, p + i * UNIT * 2, (size_t)left * 2);
        return;
    case PL_F8:
        memset(u->q, 0, sizeof u->q);
        memcpy(u->q, p + i * UNIT, (size_t)left);
        return;
    case PL_Q4_0:
    case PL_IQ4_NL:
        p += i * 18;
        u->d = pl_u16_at(p);
        nibbles(u, p + 2);
        return;
    case PL_MXFP4:
        p += i * 17;
        u->sc[0] = p[0];
        nibbles(u, p + 1);
        return;
    case PL_NVFP4:
        p += i * 22;
        u->d = pl_u32_at(p);
        u->sc[0] = p[4];
        u->sc[1] = p[5];
        pairs(u, p + 6);
        return;
    case PL_I4G32:
    case PL_I4G64:
    case PL_I4G128:
        p += i / group * (2 + 16 * group);
        u->d = pl_u16_at(p);
        pairs(u, p + 2 + in * 16);
        return;
    case PL_U4G32:
    case PL_U4G64:
    case PL_U4G128:
        p += i / group * (3 + 16 * group);
        u->d = pl_u16_at(p);
        u->mn = p[2];
        pairs(u, p + 3 + in * 16);
        return;
    case PL_F8G32:
    case PL_F8G64:
    case PL_F8G128:
        p += i / group * (4 + UNIT * group);
        u->d = e4m3_nan(p + 4, UNIT * group) ? 0x7fc00000 : pl_u32_at(p); /* kernels look at scales only */
        memcpy(u->q, p + 4 + in * UNIT, UNIT);
        return;
    case PL_Q4_1:
        p += i * 20;
        u->d = pl_u16_at(p);
        u->m = pl_u16_at(p + 2);
        nibbles(u, p + 4);
        return;
    case PL_Q5_0:
        p += i * 22;
        u->d = pl_u16_at(p);
        nibbles(u, p + 6);
        fifth_bits(u, pl_u32_at(p + 2));
        return;
    case PL_Q5_1:
        p += i * 24;
        u->d = pl_u16_at(p);
        u->m = pl_u16_at(p + 2);
        nibbles(u, p + 8);
        fifth_bits(u, pl_u32_at(p + 4));
        return;
    case PL_Q8_0:
        p += i * 34;
        u->d = pl_u16_at(p);
        memcpy(u->q, p + 2, UNIT);
        return;
    case PL_Q4_K:
    case PL_Q5_K: {
        p += i / 8 * (dtype == PL_Q4_K ? 144 : 176);
        u->d = pl_u16_at(p);
        u->m = pl_u16_at(p + 2) ^ 0x8000; /* stored negated: the minimum is then m * mn */
        k_scales(u, p + 4, j);
        const uint8_t *code = p + (dtype == PL_Q4_K ? 16 : 48) + j / 2 * 32, *high = p + 16;
        for (int n = 0; n < UNIT; n++) u->q[n] = code[n] >> (j & 1) * 4 & 15;
        if (dtype == PL_Q5_K)
            for (int n = 0; n < UNIT; n++) u->q[n] |= (uint8_t)((high[n] >> j & 1) << 4);
        return;
    }
    default: {
        PL_ASSERT(dtype == PL_Q6_K);
        p += i / 8 * 210;
        u->d = pl_u16_at(p + 208);
        u->sc[0] = p[192 + j * 2];
        u->sc[1] = p[192 + j * 2 + 1];
        const uint8_t *low = p + j / 4 * 64 + j % 2 * 32, *high = p + 128 + j / 4 * 32;
        const int ls = j % 4 / 2 * 4, hs = j % 4 * 2;
        for (int n = 0; n < UNIT; n++) u->q[n] = (uint8_t)((low[n] >> ls & 15) | (high[n] >> hs & 3) << 4);
    }
    }
}

/* Places within a unit's codes. Nibbles: 8 k a dword of a row, pairs of k in 16-bit lanes (0,1) (2,3) (4,5) (6,7) at
 * shifts 0, 8, 4, 12, so that one shift serves both of a pair; the planes of upper bits follow the same order. */
static int nibble_shift(int k) { return (k & 1) * 16 + (k & 2) * 4 + (k & 4); }
static int nibble_at(int r, int k) { return k / 8 * 64 + r * 4; }
/* One bit a k: dword r, octets of k next to each other. Two bits a k: two dwords, an octet pair each. */
static int bit1_shift(int k) { return nibble_shift(k & 7) + k / 8; }
static int bit2_shift(int k) { return nibble_shift(k & 7) + k / 8 % 2 * 2; }
static int bit2_at(int r, int k) { return k / 16 * 64 + r * 4; }
static int f8_at(int r, int k) { return k / 4 * 64 + r / 4 * 16 + (k & 2) * 4 + (r & 3) * 2 + (k & 1); }
static int q8_at(int r, int k) { return k / 4 * 64 + r * 4 + (k & 3); }
static int bf16_at(int r, int k) { return k / 2 * 64 + r * 4 + (k & 1) * 2; }

/* The dword of 8 codes, at nibble_shift of their places: bytes (0,4) (2,6) (1,5) (3,7). */
static uint32_t nibble_dword(const uint8_t *q)
{
    const uint64_t v = u64_at(q) & LOW_NIBBLES;
    const uint32_t pairs = (uint32_t)v | (uint32_t)(v >> 32) << 4; /* (0,4) (1,5) (2,6) (3,7) */
    return (pairs & 0xff0000ffu) | (pairs & 0xff00u) << 8 | (pairs & 0xff0000u) >> 8;
}

/* Into or out of row r of a block; `in` is unit number in the block. The block was cleared before. */
static void unit_to_block(int32_t dtype, uint8_t *b, int r, int in, const unit *u)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int wide = l->scale == PL_SCALE_FLOAT || l->scale == PL_SCALE_NVFP4 ? 4 : 2, g = in / l->group;
    uint8_t *code = b + l->code + in * l->code_step, *high = b + l->high + in * l->high_step;
    if (l->d >= 0) memcpy(b + l->d + g * l->d_step + r * wide, &u->d, (size_t)wide);
    if (l->m >= 0 && l->m != l->d) put_u16(b + l->m + g * l->m_step + r * 2, u->m);
    if (l->sc >= 0) b[l->sc + g * l->sc_step + r] = u->sc[0];
    if (l->sc >= 0 && pl_has_halves(dtype)) b[l->sc + g * l->sc_step + 16 + r] = u->sc[1];
    if (l->mn >= 0) b[l->mn + g * l->mn_step + r] = u->mn;
    switch (l->form) {
    case PL_CODE_F32:
        for (int k = 0; k < UNIT; k++) memcpy(code + k * 64 + r * 4, &u->f[k], 4);
        return;
    case PL_CODE_F16:
        for (int k = 0; k < UNIT; k++) put_u16(code + k * 32 + r * 2, u->h[k]);
        return;
    case PL_CODE_BF16:
        for (int k = 0; k < UNIT; k++) put_u16(code + bf16_at(r, k), u->h[k]);
        return;
    case PL_CODE_F8:
        for (int k = 0; k < UNIT; k++) code[f8_at(r, k)] = u->q[k];
        return;
    case PL_CODE_S8:
        for (int k = 0; k < UNIT; k++) code[q8_at(r, k)] = u->q[k];
        return;
    default:
        break;
    }
    for (int k = 0; k < UNIT; k += 8) {
        const uint32_t v = nibble_dword(u->q + k);
        memcpy(code + nibble_at(r, k), &v, 4);
    }
    if (l->high < 0) return;
    const int two = dtype == PL_Q6_K, per = two ? 16 : 32; /* k of a dword of a plane */
    for (int k = 0; k < UNIT; k += per) {
        uint32_t v = 0;
        for (int i = k; i < k + per; i++) v |= (uint32_t)(u->q[i] >> 4) << (two ? bit2_shift(i) : bit1_shift(i));
        memcpy(high + (two ? bit2_at(r, k) : r * 4), &v, 4);
    }
}

static void unit_of_block(int32_t dtype, const uint8_t *b, int r, int in, unit *u)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int wide = l->scale == PL_SCALE_FLOAT || l->scale == PL_SCALE_NVFP4 ? 4 : 2, g = in / l->group;
    const uint8_t *code = b + l->code + in * l->code_step, *high = b + l->high + in * l->high_step;
    u->d = 0;
    if (l->d >= 0) memcpy(&u->d, b + l->d + g * l->d_step + r * wide, (size_t)wide);
    if (l->m >= 0) u->m = pl_u16_at(b + l->m + g * l->m_step + r * 2);
    if (l->sc >= 0) u->sc[0] = b[l->sc + g * l->sc_step + r];
    if (l->sc >= 0 && pl_has_halves(dtype)) u->sc[1] = b[l->sc + g * l->sc_step + 16 + r];
    if (l->mn >= 0) u->mn = b[l->mn + g * l->mn_step + r];
    switch (l->form) {
    case PL_CODE_F32:
        for (int k = 0; k < UNIT; k++) u->f[k] = pl_u32_at(code + k * 64 + r * 4);
        return;
    case PL_CODE_F16:
        for (int k = 0; k < UNIT; k++) u->h[k] = pl_u16_at(code + k * 32 + r * 2);
        return;
    case PL_CODE_BF16:
        for (int k = 0; k < UNIT; k++) u->h[k] = pl_u16_at(code + bf16_at(r, k));
        return;
    case PL_CODE_F8:
        for (int k = 0; k < UNIT; k++) u->q[k] = code[f8_at(r, k)];
        return;
    case PL_CODE_S8:
        for (int k = 0; k < UNIT; k++) u->q[k] = code[q8_at(r, k)];
        return;
    default:
        break;
    }
    for (int k = 0; k < UNIT; k++) {
        u->q[k] = pl_u32_at(code + nibble_at(r, k)) >> nibble_shift(k & 7) & 15;
        if (dtype == PL_Q6_K)
            u->q[k] |= (uint8_t)((pl_u32_at(high + bit2_at(r, k)) >> bit2_shift(k) & 3) << 4);
        else if (l->high >= 0)
            u->q[k] |= (uint8_t)((pl_u32_at(high + r * 4) >> bit1_shift(k) & 1) << 4);
    }
}

static void group_of_unit(int32_t dtype, const unit *u, pl_group *g)
{
    static const int8_t iq4[16] = PL_IQ4_LEVELS, e2m1[16] = PL_E2M1_LEVELS;
    const pl_layout *l = &pl_layout_table[dtype];
    g->scale[0] = g->scale[1] = 1;
    g->min = g->zero = 0;
    switch (l->form) {
    case PL_CODE_F32:
        memcpy(g->code, u->f, sizeof g->code);
        break;
    case PL_CODE_F16:
        for (int k = 0; k < UNIT; k++) g->code[k] = pl_f16_f32(u->h[k]);
        break;
    case PL_CODE_BF16:
        for (int k = 0; k < UNIT; k++) g->code[k] = pl_bf16_f32(u->h[k]);
        break;
    case PL_CODE_F8:
        for (int k = 0; k < UNIT; k++) g->code[k] = pl_f8_f32(u->q[k]);
        break;
    case PL_CODE_S8:
        for (int k = 0; k < UNIT; k++) g->code[k] = (float)(int8_t)u->q[k];
        break;
    case PL_CODE_IQ4:
        for (int k = 0; k < UNIT; k++) g->code[k] = (float)iq4[u->q[k]];
        break;
    case PL_CODE_E2M1: /* of a zero the sign too */
        for (int k = 0; k < UNIT; k++) g->code[k] = u->q[k] == 8 ? -0.0f : 0.5f * (float)e2m1[u->q[k]];
        break;
    default:
        for (int k = 0; k < UNIT; k++) g->code[k] = (float)(u->q[k] - l->offset);
    }
    const float d = pl_f16_f32((uint16_t)u->d);
    switch (l->scale) {
    case PL_SCALE_1:
        break;
    case PL_SCALE_HALF_U:
        g->scale[0] = g->scale[1] = d * (float)u->sc[0];
        break;
    case PL_SCALE_HALF_S:
        for (int i = 0; i < 2; i++) g->scale[i] = d * (float)(int8_t)u->sc[i];
        break;
    case PL_SCALE_BF16:
        g->scale[0] = g->scale[1] = pl_bf16_f32((uint16_t)u->d);
        break;
    case PL_SCALE_FLOAT:
        g->scale[0] = g->scale[1] = pl_bits_f32(u->d);
        break;
    case PL_SCALE_NVFP4:
        for (int i = 0; i < 2; i++) g->scale[i] = pl_nvfp4_scale(pl_bits_f32(u->d), pl_f8_f32(u->sc[i]));
        break;
    case PL_SCALE_E8M0:
        g->scale[0] = g->scale[1] = pl_e8m0_f32(u->sc[0]);
        break;
    default:
        g->scale[0] = g->scale[1] = d;
    }
    if (l->min == PL_MIN_HALF) g->min = pl_f16_f32(u->m);
    if (l->min == PL_MIN_HALF_U) g->min = pl_f16_f32(u->m) * (float)u->mn;
    if (l->min == PL_MIN_EIGHT) {
        g->zero = 8;
        g->min = g->scale[0] * -8;
    }
    if (l->min == PL_MIN_ZERO) {
        g->zero = -(float)(int8_t)u->mn;
        g->min = d * (float)(int8_t)u->mn;
    }
}

void pl_group_of_row(int32_t dtype, const void *row, int64_t k, int64_t u, pl_group *g)
{
    unit t;
    unit_of_row(dtype, row, k, u, &t);
    group_of_unit(dtype, &t, g);
}

void pl_group_of_packed(int32_t dtype, const uint8_t *blocks, int r, int64_t u, pl_group *g)
{
    const pl_layout *l = &pl_layout_table[dtype];
    const int64_t per = l->k / UNIT;
    unit t;
    unit_of_block(dtype, blocks + u / per * l->bytes, r, (int)(u % per), &t);
    group_of_unit(dtype, &t, g);
}

void pl_packed_row_to_f32(const pl_tensor *w, int64_t row, float *dst)
{
    const int32_t dtype = w->dtype;
    const pl_layout *l = &pl_layout_table[dtype];
    const int64_t k = w->dim[1], row_blocks = (k + l->k - 1) / l->k;
    const uint8_t *blocks = (const uint8_t *)w->data + row / ROWS * row_blocks * l->bytes;
    const bool plain = !pl_has_scale(dtype), min = l->min == PL_MIN_HALF || l->min == PL_MIN_HALF_U;
    for (int64_t i = 0; i < k; i += UNIT) {
        pl_group g;
        pl_group_of_packed(dtype, blocks, (int)(row % ROWS), i / UNIT, &g);
        for (int64_t j = 0; j < pl_min(UNIT, k - i); j++) {
            if (plain)
                memcpy(&dst[i + j], &g.code[j], 4); /* also a value that a product takes as 0 */
            else if (g.zero != 0)
                dst[i + j] = (g.code[j] - g.zero) * g.scale[0];
            else if (min)
                dst[i + j] = g.code[j] * g.scale[0] + g.min;
            else
                dst[i + j] = g.code[j] * g.scale[j / 16];
        }
    }
}

int64_t pl_cpu_packed_bytes(int32_t dtype, int64_t n, int64_t k)
{
    const pl_layout *l = pl_layout_of(dtype);
    int64_t bytes;
    if (!l || n <= 0 || k <= 0 || n > INT64_MAX - ROWS || k > INT64_MAX - l->k) return -1;
    if (!pl_mul((n + ROWS - 1) / ROWS, (k + l->k - 1) / l->k, &bytes) || !pl_mul(bytes, l->bytes, &bytes)) return -1;
    return bytes;
}

typedef struct pack_job {
    const pl_tensor *w;
    const int32_t *row_map;
    uint8_t *out;
    int64_t row_bytes;   /* of the source */
    int64_t b0;          /* first block of the piece in work */
    _Atomic int64_t bad; /* a row of w with a code that products cannot take; -1: none */
} pack_job;

static void pack_blocks(void *arg, int64_t from, int64_t to, int thread)
{
    (void)thread;
    pack_job *j = arg;
    const int32_t dtype = j->w->dtype;
    const pl_layout *l = &pl_layout_table[dtype];
    const int64_t n = j->w->dim[0], k = j->w->dim[1], row_blocks = (k + l->k - 1) / l->k, units = (k + UNIT - 1) / UNIT;
    const int64_t per = l->k / UNIT;
    for (int64_t b = j->b0 + from; b < j->b0 + to; b++) {
        uint8_t *out = j->out + b * row_blocks * l->bytes;
        memset(out, 0, (size_t)(row_blocks * l->bytes));
        for (int r = 0; r < ROWS && b * ROWS + r < n; r++) {
            const int64_t i = b * ROWS + r, source = j->row_map ? j->row_map[i] : i;
            const uint8_t *row = (const uint8_t *)j->w->data + source * j->row_bytes;
            for (int64_t u = 0; u < units; u++) {
                unit t;
                unit_of_row(dtype, row, k, u, &t);
                if (dtype == PL_F8 && e4m3_nan(t.q, UNIT)) j->bad = source;
                unit_to_block(dtype, out + u / per * l->bytes, r, (int)(u % per), &t);
            }
        }
    }
}

/* A packed block has one tensor scale a row where the rows have one in each block of 32. */
static int check_tensor_scales(const pl_tensor *w, int64_t row_bytes, pl_err *err)
{
    for (int64_t r = 0; r < w->dim[0]; r++) {
        const uint8_t *row = (const uint8_t *)w->data + r * row_bytes;
        for (int64_t i = 1; i < w->dim[1] / UNIT; i++)
            if (pl_u32_at(row + i * 22) != pl_u32_at(row))
                return pl_fail(err, PL_EFORMAT, "pack: nvfp4: row %lld has several tensor scales, want one",
                               (long long)r);
    }
    return PL_OK;
}

int pl_cpu_pack(pl_stream *s, pl_tensor *out, const pl_tensor *w, const int32_t *row_map, pl_err *err)
{
    char shape[96];
    pl_tensor_shape_text(w, shape, sizeof shape);
    const int64_t bytes = pl_cpu_packed_bytes(w->dtype, w->dim[0], w->dim[1]);
    if (!pl_layout_of(w->dtype))
        return pl_fail(err, PL_EDTYPE, "pack: %s, want a format of weights", pl_dtype_name(w->dtype));
    if (bytes < 0 || w->dim[1] % pl_dtype_block(w->dtype))
        return pl_fail(err, PL_ESHAPE, "pack: w is %s, want whole blocks of %s", shape, pl_dtype_name(w->dtype));
    const int64_t row_bytes =
        pl_dtype_row_bytes(w->dtype, pl_dtype_block(w->dtype)) * (w->stride[0] / pl_dtype_block(w->dtype));
    if (w->dtype == PL_NVFP4) PL_TRY(check_tensor_scales(w, row_bytes, err));
    PL_TRY(pl_tensor_alloc(out, s->dev, w->dtype, PL_PACKED, 2, w->dim, bytes, err));
    pack_job j = {w, row_map, out->data, row_bytes, 0, -1};
    /* in pieces, so that the source need not be in memory as a whole; mapped rows come from anywhere */
    const int64_t blocks = (w->dim[0] + ROWS - 1) / ROWS;
    const int64_t piece = row_map ? blocks : pl_max(1, PL_DROP_BYTES / (row_bytes * ROWS));
    for (int64_t b = 0; b < blocks; b += piece) {
        j.b0 = b;
        pl_parallel(s, pl_min(piece, blocks - b), 1, pack_blocks, &j);
        const uint8_t *from = (const uint8_t *)w->data + b * ROWS * row_bytes;
        pl_tensor_done_with(w, from, from + pl_min(piece * ROWS, w->dim[0] - b * ROWS) * row_bytes);
    }
    if (j.bad < 0) return PL_OK;
    pl_tensor_release(out);
    return pl_fail(err, PL_EFORMAT, "pack: f8: row %lld has a code that is NaN", (long long)j.bad);
}
