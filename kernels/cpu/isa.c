/* isa.c: which product paths this machine has. The kernel is asked for the tile state here, before threads start. */
#include "cpu.h"

bool pl_dev_has_path(int32_t path) { return pl_cpu_has_path(path); }

#ifdef PL_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILEDATA = 18 };

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}
static bool bit(uint32_t word, int n) { return word >> n & 1; }

bool pl_cpu_has_path(int32_t path)
{
    uint32_t a, b, c, d, b7, c7, d7;
    if (path == PL_PATH_AUTO || path == PL_PATH_PORTABLE) return true;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return false; /* OSXSAVE */
    const bool fma = bit(c, 12) && bit(c, 29) && bit(c, 28);          /* FMA, F16C, AVX */
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return false;
    const uint64_t state = xcr0();
    const bool avx2 = fma && bit(b7, 5) && (state & 6) == 6;
    /* F, BW, VL, DQ, VNNI, VBMI: what the files are compiled for */
    const bool avx512 = avx2 && bit(b7, 16) && bit(b7, 30) && bit(b7, 31) && bit(b7, 17) && bit(c7, 11) && bit(c7, 1) &&
                        (state & 0xe6) == 0xe6;
    switch (path) {
    case PL_PATH_AVX2:
    case PL_PATH_SOFT_AMX:
        return avx2;
    case PL_PATH_AVX512:
        return avx512;
    case PL_PATH_AMX: /* AMX-BF16, AMX-TILE and AMX-INT8, and BF16 of AVX-512 */
        return avx512 && bit(d7, 22) && bit(d7, 24) && bit(d7, 25) && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
               bit(a, 5) && (state & 0x60000) == 0x60000 &&
               syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILEDATA) == 0;
    default:
        return false;
    }
}

/* AMD's cores since Zen (measured on Zen 3); Intel's take some 150 cycles for each. */
bool pl_cpu_free_denormals(void)
{
    uint32_t a, vendor[3];
    if (!__get_cpuid(0, &a, &vendor[0], &vendor[2], &vendor[1])) return false;
    return memcmp(vendor, "AuthenticAMD", 12) == 0 || memcmp(vendor, "HygonGenuine", 12) == 0;
}
#else
bool pl_cpu_has_path(int32_t path) { return path == PL_PATH_AUTO || path == PL_PATH_PORTABLE; }
bool pl_cpu_free_denormals(void) { return false; }
#endif

int32_t pl_cpu_best_path(void)
{
    static const int32_t order[] = {PL_PATH_AMX, PL_PATH_AVX512, PL_PATH_AVX2};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (pl_cpu_has_path(order[i])) return order[i];
    return PL_PATH_PORTABLE;
}
