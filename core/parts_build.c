/* parts_build.c: rows of our block formats from the parts of a weight. Parts lie at any byte, so values are read through
 * memcpy. */
#include "dtype.h"
#include "parts.h"
#include <math.h>
#include <stdlib.h>

static float float_at(const pl_part *p, int64_t i)
{
    if (p->e->dtype == PL_F32) return pl_bits_f32(pl_u32_at(p->data + 4 * i));
    const uint16_t h = pl_u16_at(p->data + 2 * i);
    return p->e->dtype == PL_F16 ? pl_f16_f32(h) : pl_bf16_f32(h);
}
static int32_t int_at(const pl_part *p, int64_t i) { return (int32_t)pl_u32_at(p->data + 4 * i); }
static int nibble_at(const pl_part *p, int64_t word, int64_t place)
{
    return (int)(pl_u32_at(p->data + 4 * word) >> 4 * place & 15);
}

/* The scale as a half, which it has to be exactly. */
static int put_half(uint8_t *out, const pl_part *scales, int64_t i, pl_err *err)
{
    const float v = float_at(scales, i);
    const uint16_t h = pl_f32_f16(v);
    if (pl_f16_f32(h) != v) /* NaN too */
        return pl_fail(err, PL_EFORMAT, "tensor '%.64s': value %lld is %g, which is no half", scales->e->name,
                       (long long)i, (double)v);
    memcpy(out, &h, 2);
    return PL_OK;
}

int pl_parts_order(const pl_part *index, int64_t share, int32_t *order, pl_err *err)
{
    const int64_t k = index->e->dim[0], n = k / share;
    const char *name = index->e->name;
    int64_t *filled = calloc((size_t)n, sizeof *filled);
    int rc = filled ? 0 : pl_fail(err, PL_ENOMEM, "tensor '%.64s': no memory for %lld groups", name, (long long)n);
    for (int64_t c = 0; c < k && rc >= 0; c++) {
        const int32_t g = int_at(index, c);
        if (g < 0 || g >= n) {
            rc = pl_fail(err, PL_EFORMAT, "tensor '%.64s': value %lld is %d, want a group, 0 to %lld", name,
                         (long long)c, g, (long long)n - 1);
        } else if (filled[g] == share) {
            rc = pl_fail(err, PL_EFORMAT, "tensor '%.64s': value %lld is %d, which has its %lld columns already", name,
                         (long long)c, g, (long long)share);
        } else {
            const int64_t to = g * share + filled[g]++;
            if (to != c) rc = 1;
            if (order) order[to] = (int32_t)c;
        }
    }
    free(filled);
    return rc;
}

/* [N,K/8] words along rows, scales [N,K/share], zero points [N/8,K/share] with the nibbles of 8 rows in a word. */
static int build_pack4(const pl_toc_entry *e, const pl_part *part, const int32_t *order, uint8_t *out, pl_err *err)
{
    const int64_t n = e->dim[0], k = e->dim[1], g = pl_dtype_block(e->dtype), n_scales = k / e->join.cols;
    const pl_part *scales = &part[PL_SCALES], *shape = &part[PL_SIZES];
    for (int i = 0; shape->e && i < 2; i++) {
        const int64_t wide = shape->e->dtype == PL_I64 ? 2 : 1; /* words of a size; the upper one has to be 0 */
        if (int_at(shape, i * wide) != e->dim[i] || (wide == 2 && int_at(shape, i * 2 + 1)))
            return pl_fail(err, PL_EFORMAT, "tensor '%.64s': size %d is not %lld, as the codes have it", shape->e->name,
                           i, (long long)e->dim[i]);
    }
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c += g) {
            const int64_t s = c / e->join.cols;
            if (e->join.flag) {
                memcpy(out, scales->data + 2 * (r * n_scales + s), 2);
                out += 2;
            } else {
                const int zero = part[PL_ZEROS].e ? nibble_at(&part[PL_ZEROS], r / 8 * n_scales + s, r % 8) : 8;
                PL_TRY(put_half(out, scales, r * n_scales + s, err));
                out[2] = (uint8_t)-zero;
                out += 3;
            }
            memcpy(out, part[PL_CODES].data + (r * k + c) / 2, (size_t)g / 2);
            for (int64_t i = 0; order && i < g; i += 2) {
                const int64_t a = r * k + order[c + i], b = r * k + order[c + i + 1];
                out[i / 2] =
                    (uint8_t)(nibble_at(&part[PL_CODES], a / 8, a % 8) | nibble_at(&part[PL_CODES], b / 8, b % 8) << 4);
            }
            out += g / 2;
        }
    return PL_OK;
}

/* What is added to stored zero points. Symmetric weights have 8 everywhere, which the first version of the format stores
 * as 7: files name their version wrongly, so that where values tell, they are believed. */
static int zero_offset(const pl_part *zeros, bool v2)
{
    const int64_t words = zeros->e->dim[0] * zeros->e->dim[1];
    bool sevens = true, eights = true;
    for (int64_t i = 0; i < words && (sevens || eights); i++) {
        const uint32_t word = pl_u32_at(zeros->data + 4 * i);
        sevens = sevens && word == 0x77777777u;
        eights = eights && word == 0x88888888u;
    }
    if (sevens || eights) v2 = eights;
    return v2 ? 0 : 1;
}

/* GPTQ: codes [K/8,N], 8 of k in a word; AWQ: codes [K,N/8], 8 of n in a word, in an order of their own. Scales
 * [K/share,N], zero points [K/share,N/8], in AWQ in that order too. */
static int build_columns(const pl_toc_entry *e, const pl_part *part, const int32_t *order, uint8_t *out, pl_err *err)
{
    static const int8_t places[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int64_t n = e->dim[0], k = e->dim[1], g = pl_dtype_block(e->dtype);
    const bool awq = e->join.how == PL_JOIN_AWQ;
    const int offset = awq ? 0 : zero_offset(&part[PL_ZEROS], e->join.flag);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c += g, out += g / 2) {
            const int64_t s = c / e->join.cols, place = awq ? places[r % 8] : r % 8;
            PL_TRY(put_half(out, &part[PL_SCALES], s * n + r, err));
            out[2] = (uint8_t) - (nibble_at(&part[PL_ZEROS], s * (n / 8) + r / 8, place) + offset);
            out += 3;
            memset(out, 0, (size_t)g / 2);
            for (int64_t i = 0; i < g; i++) {
                const int64_t at = order ? order[c + i] : c + i;
                const int code = awq ? nibble_at(&part[PL_CODES], at * (n / 8) + r / 8, place)
                                     : nibble_at(&part[PL_CODES], at / 8 * n + r, at % 8);
                out[i / 2] |= (uint8_t)(code << i % 2 * 4);
            }
        }
    return PL_OK;
}

static int build_f8(const pl_toc_entry *e, const pl_part *part, uint8_t *out, pl_err *err)
{
    const int64_t n = e->dim[0], k = e->dim[1], cols = e->join.cols, n_scales = (k + cols - 1) / cols;
    const int64_t g = e->dtype == PL_F32 ? 1 : pl_dtype_block(e->dtype);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c += g) {
            const int64_t i = r / e->join.rows * n_scales + c / cols;
            const float scale = float_at(&part[PL_SCALES], i);
            const uint8_t *code = part[PL_CODES].data + r * k + c;
            if (!isfinite(scale))
                return pl_fail(err, PL_EFORMAT, "tensor '%.64s': value %lld is not finite", part[PL_SCALES].e->name,
                               (long long)i);
            const float first = e->dtype == PL_F32 ? pl_f8_f32(*code) * scale : scale;
            memcpy(out, &first, 4);
            out += 4;
            if (e->dtype == PL_F32) {
                if (!isfinite(first))
                    return pl_fail(err, PL_EFORMAT, "tensor '%.64s': row %lld, element %lld: not finite",
                                   part[PL_CODES].e->name, (long long)r, (long long)c);
                continue;
            }
            memcpy(out, code, (size_t)g);
            out += g;
        }
    return PL_OK;
}

static int build_nvfp4(const pl_toc_entry *e, const pl_part *part, uint8_t *out, pl_err *err)
{
    const int64_t blocks = e->dim[0] * (e->dim[1] / 32);
    float tensor = float_at(&part[PL_TENSOR_SCALE], 0);
    if (!(tensor > 0) || !isfinite(tensor))
        return pl_fail(err, PL_EFORMAT, "tensor '%.64s': %g, want a positive number", part[PL_TENSOR_SCALE].e->name,
                       (double)tensor);
    if (e->join.flag) tensor = -tensor;
    for (int64_t b = 0; b < blocks; b++, out += 22) {
        memcpy(out, &tensor, 4);
        memcpy(out + 4, part[PL_SCALES].data + b * 2, 2);
        memcpy(out + 6, part[PL_CODES].data + b * 16, 16);
    }
    return PL_OK;
}

/* Codes of 32 from one element after the other to GGUF's order. */
static int build_mxfp4(const pl_toc_entry *e, const pl_part *part, uint8_t *out)
{
    const int64_t blocks = e->bytes / 17;
    for (int64_t b = 0; b < blocks; b++, out += 17) {
        const uint8_t *in = part[PL_CODES].data + b * 16;
        out[0] = part[PL_SCALES].data[b];
        for (int i = 0; i < 16; i++)
            out[1 + i] = (uint8_t)((in[i / 2] >> i % 2 * 4 & 15) | (in[8 + i / 2] >> i % 2 * 4 & 15) << 4);
    }
    return PL_OK;
}

int pl_parts_build(const pl_toc_entry *e, const pl_part *part, uint8_t *out, pl_err *err)
{
    int32_t *order = NULL; /* of columns, if they are not as they lie */
    int rc = PL_OK;
    if (part[PL_INDEX].e) { /* read again: a mapped file may have changed */
        order = calloc((size_t)part[PL_INDEX].e->dim[0], sizeof *order);
        if (!order) return pl_fail(err, PL_ENOMEM, "tensor '%.64s': no memory for its order", e->name);
        rc = pl_parts_order(&part[PL_INDEX], e->join.cols, order, err);
        if (rc < 0) goto done;
    }
    switch (e->join.how) {
    case PL_JOIN_PACK4:
        rc = build_pack4(e, part, order, out, err);
        break;
    case PL_JOIN_GPTQ:
    case PL_JOIN_AWQ:
        rc = build_columns(e, part, order, out, err);
        break;
    case PL_JOIN_F8:
        rc = build_f8(e, part, out, err);
        break;
    case PL_JOIN_NVFP4:
        rc = build_nvfp4(e, part, out, err);
        break;
    case PL_JOIN_MXFP4:
        rc = build_mxfp4(e, part, out);
        break;
    default:
        PL_ASSERT(e->join.how == PL_JOIN_ORDER && order);
        memcpy(out, order, (size_t)e->bytes);
        rc = PL_OK;
    }
done:
    free(order);
    return rc;
}
