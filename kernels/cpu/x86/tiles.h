#ifndef PL_TILES_H
#define PL_TILES_H
/* The tile unit (AMX), or with PL_SOFT_TILES the same in vectors, for tests on machines that lack it. Tiles 0..3 are
 * sums [rows][16 floats or integers]; 4, 5 are of x: [rows][32 bf16, or bytes], 6, 7 of w: [16 pairs][16 rows of w][2
 * bf16], or [quads][16 rows][4 bytes]. A function that uses tiles begins with T_BEGIN and ends with T_END.
 *
 * The file gives the vectors too (vec16.h, vec8.h).
 *
 * A function between T_BEGIN and T_END that uses them takes T_TILES as a parameter and is called with T_HERE.
 *
 * T_STEP is c += e + o: e the chain of fma over even k from 0, o over odd k, to nearest, denormals zero. T_STEP_INT adds
 * products of signed bytes of both. */
#include "cpu.h"

typedef struct tile_config {
    uint8_t palette, start_row, pad[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} tile_config;

/* x of tile 4 has rows of `even` bytes, of tile 5 `odd`; 6 and 7 are the tiles of w that go with them. The rows of w, and
 * of sums, have `width` bytes. */
PL_INLINE tile_config tile_config_of(int rows, int even, int odd, int width)
{
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const int bytes = i % 2 ? odd : even;
        c.bytes[i] = (uint16_t)(i == 4 || i == 5 ? bytes : width);
        c.rows[i] = (uint8_t)(i >= 6 ? bytes / 4 : rows);
    }
    return c;
}

#ifdef PL_TILES_FILE /* of a test: its own tiles and vectors */
#include PL_TILES_FILE
#elif !defined(PL_SOFT_TILES)
#include "words16.h"
/* Own assembly: gcc 12's tile intrinsics do not say that they read memory, so stores before them may be dropped. */
#define T_TILES __attribute__((unused)) const int soft_
#define T_HERE 0
#define T_BEGIN_WIDTH(rows, even, odd, width)                           \
    const tile_config config_ = tile_config_of(rows, even, odd, width); \
    __asm__ volatile("ldtilecfg %0" ::"m"(config_) : "memory")
#define T_END() __asm__ volatile("tilerelease" ::)
#define T_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1),%%tmm" #t ::"r"((const void *)(p)), "r"((int64_t)(stride)) : "memory")
#define T_STORE(t, p, stride) \
    __asm__ volatile("tilestored %%tmm" #t ",(%0,%1,1)" ::"r"((void *)(p)), "r"((int64_t)(stride)) : "memory")
#define T_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define T_STEP(c, x, w) __asm__ volatile("tdpbf16ps %%tmm" #w ",%%tmm" #x ",%%tmm" #c ::)
#define T_STEP_INT(c, x, w) __asm__ volatile("tdpbssd %%tmm" #w ",%%tmm" #x ",%%tmm" #c ::)
#else
#include "vec8.h"
typedef struct soft_tiles {
    tile_config c;
    _Alignas(64) uint8_t tile[8][16][64];
} soft_tiles;

static __attribute__((noinline, unused)) void soft_load(soft_tiles *s, int t, const void *p, int64_t stride)
{
    memset(s->tile[t], 0, sizeof s->tile[t]);
    for (int r = 0; r < s->c.rows[t]; r++) memcpy(s->tile[t][r], (const uint8_t *)p + r * stride, s->c.bytes[t]);
}
static __attribute__((noinline, unused)) void soft_store(const soft_tiles *s, int t, void *p, int64_t stride)
{
    for (int r = 0; r < s->c.rows[t]; r++) memcpy((uint8_t *)p + r * stride, s->tile[t][r], s->c.bytes[t]);
}
static __attribute__((noinline, unused)) void soft_step(soft_tiles *s, int c, int x, int w)
{
    const I top = i_set((int32_t)0xffff0000);
    PL_ASSERT(s->c.bytes[x] / 4 == s->c.rows[w] && s->c.rows[c] == s->c.rows[x]);
    for (int r = 0; r < s->c.rows[c]; r++) {
        V e[2] = {v_zero(), v_zero()}, o[2] = {v_zero(), v_zero()};
        for (int k = 0; k < s->c.rows[w]; k++) {
            uint32_t pair;
            memcpy(&pair, &s->tile[x][r][4 * k], 4);
            const V xe = v_set(pl_bits_f32(pair << 16)), xo = v_set(pl_bits_f32(pair & 0xffff0000u));
            for (int h = 0; h < 2; h++) {
                const I v = i_load(&s->tile[w][k][32 * h]);
                e[h] = v_fma(v_cast(i_sll(v, 16)), xe, e[h]);
                o[h] = v_fma(v_cast(i_and(v, top)), xo, o[h]);
            }
        }
        for (int h = 0; h < 2; h++) {
            float *at = (float *)(void *)s->tile[c][r] + 8 * h;
            v_store(at, v_add(v_load(at), v_add(e[h], o[h])));
        }
    }
}
static __attribute__((noinline, unused)) void soft_step_int(soft_tiles *s, int c, int x, int w)
{
    PL_ASSERT(s->c.bytes[x] / 4 == s->c.rows[w] && s->c.rows[c] == s->c.rows[x]);
    for (int r = 0; r < s->c.rows[c]; r++)
        for (int k = 0; k < s->c.rows[w]; k++)
            for (int n = 0; n < 16; n++) {
                int32_t sum;
                memcpy(&sum, &s->tile[c][r][4 * n], 4);
                for (int i = 0; i < 4; i++) sum += (int8_t)s->tile[x][r][4 * k + i] * (int8_t)s->tile[w][k][4 * n + i];
                memcpy(&s->tile[c][r][4 * n], &sum, 4);
            }
}
#define T_TILES soft_tiles *const soft_
#define T_HERE soft_
#define T_BEGIN_WIDTH(rows, even, odd, width) \
    soft_tiles tiles_;                        \
    soft_tiles *const soft_ = &tiles_;        \
    soft_->c = tile_config_of(rows, even, odd, width)
#define T_END() ((void)0)
#define T_LOAD(t, p, stride) soft_load(soft_, t, p, stride)
#define T_STORE(t, p, stride) soft_store(soft_, t, p, stride)
#define T_ZERO(t) memset(soft_->tile[t], 0, sizeof soft_->tile[t])
#define T_STEP(c, x, w) soft_step(soft_, c, x, w)
#define T_STEP_INT(c, x, w) soft_step_int(soft_, c, x, w)
#endif
#define T_BEGIN(rows, even, odd) T_BEGIN_WIDTH(rows, even, odd, 64)
#endif
