/* Blocks of GGUF files: values worked out by hand, and digests of what the Python package gguf gives for the same
 * pseudo-random blocks. */
#include "quant.h"
#include "ckpt.h"
#include "dtype.h"
#include "suite.h"
#include "tensor.h"
#include <math.h>
#include <stdlib.h>

START_TEST(by_hand)
{
    float y[256];
    uint8_t q4[20] = {0x00, 0x38, 0x00, 0xbc}; /* d = 0.5, min = -1 */
    q4[4] = 0xf0;                              /* element 0 is code 0, element 16 code 15 */
    q4[19] = 0x3a;                             /* element 15 is code 10, element 31 code 3 */
    pl_row_to_f32(PL_Q4_1, y, q4, 32);
    ck_assert(y[0] == -1.0f && y[16] == 6.5f && y[15] == 4.0f && y[31] == 0.5f && y[1] == -1.0f);

    uint8_t q8[34] = {0x00, 0x40}; /* d = 2 */
    q8[2] = 0x80, q8[33] = 0x7f;
    pl_row_to_f32(PL_Q8_0, y, q8, 32);
    ck_assert(y[0] == -256.0f && y[31] == 254.0f && y[1] == 0.0f);

    uint8_t i4[18] = {0x80, 0xbf, 0x0f}; /* scale -1 */
    pl_row_to_f32(PL_I4G32, y, i4, 32);
    ck_assert(y[0] == -7.0f && y[1] == 8.0f && y[2] == 8.0f);
    uint8_t u4[35] = {0, 0x38, (uint8_t)-16, 0x3f}; /* scale 0.5, zero 16 */
    pl_row_to_f32(PL_U4G64, y, u4, 64);
    ck_assert(y[0] == -0.5f && y[1] == -6.5f && y[63] == -8.0f);
    uint8_t mx[17] = {128, 0x7f}; /* 2; element 0 is code 15, element 16 code 7 */
    pl_row_to_f32(PL_MXFP4, y, mx, 32);
    ck_assert(y[0] == -12.0f && y[16] == 12.0f && y[1] == 0.0f);
    mx[0] = 0;
    pl_row_to_f32(PL_MXFP4, y, mx, 32);
    ck_assert(y[16] == 6 * 0x1p-127f);
    uint8_t nv[22] = {0, 0, 0x40, 0x40, 0x40, 0x38, 0xf1, 0, 0, 0, 0, 0, 0, 0, 0x02}; /* 3; 2 and 1 */
    pl_row_to_f32(PL_NVFP4, y, nv, 32);
    ck_assert(y[0] == 3.0f && y[1] == -36.0f && y[16] == 3.0f && y[17] == 0.0f);
    nv[3] = 0xc0; /* divided by 3: the quotient is rounded, then the product */
    pl_row_to_f32(PL_NVFP4, y, nv, 32);
    ck_assert(y[0] == 0.5f * (2.0f / 3.0f) && y[1] == -6 * (2.0f / 3.0f) && y[16] == 1.0f / 3.0f);
    uint8_t g[36] = {0, 0, 0, 0x3f, 0x38, 0xc0}; /* 0.5 */
    pl_row_to_f32(PL_F8G32, y, g, 32);
    ck_assert(y[0] == 0.5f && y[1] == -1.0f && y[31] == 0.0f);

    uint8_t q6[210] = {0};
    q6[208] = 0x00, q6[209] = 0x3c; /* d = 1 */
    q6[192 + 15] = 0xff;            /* the last 16 elements: scale -1 */
    q6[127] = 0xf0, q6[191] = 0xc0; /* the last element: code 63 */
    pl_row_to_f32(PL_Q6_K, y, q6, 256);
    ck_assert(y[255] == -31.0f && y[254] == 32.0f && y[0] == 0.0f);
}
END_TEST

/* Bytes of a fixed generator; scales and minima are made finite by clearing the top bit of their exponent. */
static void fill(uint8_t *p, int64_t n)
{
    uint64_t s = 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < n; i++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        p[i] = (uint8_t)(s >> 32);
    }
}

START_TEST(digests)
{
    static const struct {
        int32_t dtype, half[2];
        uint64_t want;
    } row[] = {
        {PL_Q4_0, {0, -1}, 0x7842a51beb1436ccu},   {PL_Q4_1, {0, 2}, 0xd96c5da20d161fbau},
        {PL_Q5_0, {0, -1}, 0x43de8d549b3b5175u},   {PL_Q5_1, {0, 2}, 0x69f010fc2cfa4d7au},
        {PL_Q8_0, {0, -1}, 0x6bd41a7fbdb7f0d4u},   {PL_Q4_K, {0, 2}, 0xe7080645e2f82bc1u},
        {PL_Q5_K, {0, 2}, 0x813b13915d65cd8bu},    {PL_Q6_K, {208, -1}, 0x7d757c8a46bb2dafu},
        {PL_IQ4_NL, {0, -1}, 0x67d8a16206c2b343u}, {PL_MXFP4, {-1, -1}, 0x2e7569d488afcaa1u},
    };
    enum { BLOCKS = 64 };
    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        const int bytes = pl_dtype_bytes(row[k].dtype), block = pl_dtype_block(row[k].dtype);
        uint8_t *b = malloc((size_t)(BLOCKS * bytes));
        float *y = malloc(sizeof *y * (size_t)(BLOCKS * block));
        fill(b, BLOCKS * bytes);
        for (int i = 0; i < BLOCKS; i++)
            for (int j = 0; j < 2; j++)
                if (row[k].half[j] >= 0) b[i * bytes + row[k].half[j] + 1] &= 0xbf;
        for (int i = 0; row[k].dtype == PL_MXFP4 && i < BLOCKS; i++) b[i * bytes] = (uint8_t)((b[i * bytes] & 63) + 90);
        pl_row_to_f32(row[k].dtype, y, b, BLOCKS * block);
        if (row[k].dtype == PL_MXFP4) /* gguf has +0 for the code of -0 */
            for (int i = 0; i < BLOCKS * block; i++) y[i] += 0.0f;
        uint64_t h = 0xcbf29ce484222325u;
        for (size_t i = 0; i < sizeof *y * (size_t)(BLOCKS * block); i++) h = (h ^ ((uint8_t *)y)[i]) * 0x100000001b3u;
        ck_assert_msg(h == row[k].want, "%s: %llx", pl_dtype_name(row[k].dtype), (unsigned long long)h);
        free(b);
        free(y);
    }
}
END_TEST

/* A scale or minimum that is not finite is found in its block, whatever the format; codes may be anything. */
START_TEST(bad_scales)
{
    for (int32_t dtype = PL_Q4_0; dtype <= PL_IQ4_NL; dtype++) {
        const int bytes = pl_dtype_bytes(dtype), at = dtype == PL_Q6_K ? 208 : 0;
        const bool has_min = dtype == PL_Q4_1 || dtype == PL_Q5_1 || dtype == PL_Q4_K || dtype == PL_Q5_K;
        uint8_t *b = malloc((size_t)(6 * bytes));
        for (int second = 0; second <= has_min; second++)
            for (int kind = 0; kind < 3; kind++) {
                memset(b, 0xff, (size_t)(6 * bytes));
                for (int i = 0; i < 6; i++) {
                    b[i * bytes + at + 1] = 0x7b; /* the largest half */
                    if (has_min) b[i * bytes + at + 3] = 0xfb;
                }
                ck_assert_int_eq(pl_row_first_bad(dtype, b, 6), -1);
                const uint16_t bad = kind == 0 ? 0x7c00 : kind == 1 ? 0xfc00 : 0x7e01;
                memcpy(b + 4 * bytes + at + 2 * second, &bad, 2);
                ck_assert_int_eq(pl_row_first_bad(dtype, b, 6), 4);

                pl_tensor t = {0};
                pl_err err = {0};
                const int64_t dim[2] = {3, 2 * pl_dtype_block(dtype)};
                ck_assert_int_eq(pl_tensor_borrow(&t, dtype, PL_ROWS, 2, dim, b, 6 * bytes, NULL, NULL, &err), PL_OK);
                ck_assert_int_eq(pl_ckpt_check_values(&t, &err), PL_EFORMAT);
                ck_assert_msg(strstr(err.msg, "row 2, block 0") != NULL, "%s", err.msg);
                pl_tensor_release(&t);
            }
        free(b);
    }
    uint8_t i4[18] = {0xff, 0x7d}, u4[19] = {0, 0x7c}, mx[17] = {252}, nv[22] = {0, 0, 0x80, 0x3f, 0x7e, 0x7e},
            g[36] = {0};
    ck_assert_int_eq(pl_row_first_bad(PL_I4G32, i4, 1), -1);
    i4[1] = 0x7e; /* 8 times this is no float */
    ck_assert_int_eq(pl_row_first_bad(PL_I4G32, i4, 1), 0);
    ck_assert_int_eq(pl_row_first_bad(PL_U4G32, u4, 1), 0);
    ck_assert_int_eq(pl_row_first_bad(PL_MXFP4, mx, 1), -1);
    mx[0] = 253;
    ck_assert_int_eq(pl_row_first_bad(PL_MXFP4, mx, 1), 0);
    ck_assert_int_eq(pl_row_first_bad(PL_NVFP4, nv, 1), -1);
    nv[5] = 0xff;
    ck_assert_int_eq(pl_row_first_bad(PL_NVFP4, nv, 1), 0);
    nv[5] = 0, nv[3] = 0x7f, nv[2] = 0; /* 1.7e38 * 448 */
    ck_assert_int_eq(pl_row_first_bad(PL_NVFP4, nv, 1), 0);
    memset(nv, 0, 4);
    ck_assert_int_eq(pl_row_first_bad(PL_NVFP4, nv, 1), 0);
    ck_assert_int_eq(pl_row_first_bad(PL_F8G32, g, 1), -1);
    g[35] = 0xff;
    ck_assert_int_eq(pl_row_first_bad(PL_F8G32, g, 1), 0);
    g[35] = 0, g[2] = 0x80, g[3] = 0x7f;
    ck_assert_int_eq(pl_row_first_bad(PL_F8G32, g, 1), 0);

    uint8_t f8[7] = {0, 0x80, 0x7e, 0xfe, 0x08, 0xff, 0x7f};
    ck_assert_int_eq(pl_row_first_bad(PL_F8, f8, 5), -1);
    ck_assert_int_eq(pl_row_first_bad(PL_F8, f8, 7), 5);
    ck_assert_int_eq(pl_row_first_bad(PL_F8, f8 + 6, 1), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quant");
    TCase *t = tcase_create("all");
    suite_add_tcase(s, t);
    tcase_add_test(t, by_hand);
    tcase_add_test(t, digests);
    tcase_add_test(t, bad_scales);
    return run_suite(s);
}
