/* rows16.c: the small ops on AVX-512 as they stand, each instruction made of AVX2 ones (avx512.h), and on AVX2, give the bits
 * of plain C. */
#include "avx512.h"
#include "dev.h"
#include "dtype.h"
#include "suite.h"
#include <math.h>
#define pl_row_ops_avx512 emulated
#include "x86/rows_avx512.c"

enum { MAX = 150, ROOM = MAX + 8 };
static uint64_t seed = 1;
static uint64_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}
/* Random bits now and then; else up to `most` in size. */
static void fill(float *p, int64_t n, float most)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = rnd() % 9 ? (float)((double)(rnd() >> 11) * 0x1p-52 - 1) * most : pl_bits_f32((uint32_t)(rnd() >> 7));
}
static float any[ROOM], other[ROOM], third[ROOM];
static float y[2][2 * ROOM], z[2][ROOM];
static uint16_t words[2][ROOM];
static uint8_t codes[2][ROOM];

static void start(float most)
{
    fill(any, ROOM, most);
    fill(other, ROOM, most);
    fill(third, ROOM, most);
    memset(y, 0x55, sizeof y);
    memset(z, 0x55, sizeof z);
    memset(words, 0x55, sizeof words);
    memset(codes, 0x55, sizeof codes);
}
static void same_floats(const char *what, int64_t n, const float *a, const float *b, int64_t room)
{
    for (int64_t i = 0; i < room; i++)
        if (pl_f32_bits(a[i]) != pl_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            ck_abort_msg("%s of %d: value %d is %a, want %a", what, (int)n, (int)i, (double)b[i], (double)a[i]);
}

START_TEST(test_rows)
{
    if (!pl_dev_has_path(PL_PATH_AVX2)) return;
    const pl_row_ops *ops[2] = {&pl_row_ops_portable, _i ? &pl_row_ops_avx2 : &emulated};
    const uint32_t mode = pl_fp_enter();
    for (int64_t n = 1; n <= MAX; n++)
        for (int round = 0; round < 6; round++) {
            const float most = round % 3 == 0 ? 4 : round % 3 == 1 ? 100 : 1e30f;
#define BOTH(what, call)                        \
    start(most);                                \
    for (int i = 0; i < 2; i++) ops[i]->call;   \
    same_floats(what, n, y[0], y[1], 2 * ROOM); \
    same_floats(what, n, z[0], z[1], ROOM)
            BOTH("add", add(y[i], any, other, n));
            BOTH("scale", scale(y[i], any, 1.7f, n));
            BOTH("rms_norm", rms_norm(y[i], any, other, 1e-5f, n));
            BOTH("swiglu", swiglu(y[i], any, other, n));
            BOTH("geglu", geglu(y[i], any, other, n));
            start(most);
            for (int64_t k = 0; k < n; k++) third[k] = powf(1e4f, -(float)k / (float)n);
            const float pos = (float)(rnd() % 100000);
            for (int i = 0; i < 2; i++) ops[i]->turns(y[i], z[i], third, pos, 1.25f, n);
            same_floats("turns", n, y[0], y[1], 2 * ROOM);
            same_floats("turns", n, z[0], z[1], ROOM);
            BOTH("turn, halves", turn(y[i], any, other, third, true, n / 2));
            BOTH("turn, pairs", turn(y[i], any, other, third, false, n / 2));
            start(most);
            for (int i = 0; i < 2; i++) {
                ops[i]->to_bf16(words[i], any, n);
                ops[i]->to_f8(codes[i], any, most / 300, n);
                z[i][0] = ops[i]->f8_scale(any, n);
            }
            same_floats("f8_scale", n, z[0], z[1], 1);
            for (int64_t k = 0; k < ROOM; k++) {
                const float a = pl_bf16_f32(words[0][k]), b = pl_bf16_f32(words[1][k]);
                ck_assert_msg(words[0][k] == words[1][k] || (isnan(a) && isnan(b)), "to_bf16 of %d: %d", (int)n,
                              (int)k);
                ck_assert_msg(codes[0][k] == codes[1][k] || ((codes[0][k] & codes[1][k] & 0x7f) == 0x7f),
                              "to_f8 of %d: %d", (int)n, (int)k);
            }
        }
    pl_fp_leave(mode);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rows16");
    TCase *t = tcase_create("rows");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, test_rows, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
