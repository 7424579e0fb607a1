/* attend_avx512.c: attention compiled for AVX-512. */
#define ATTEND_OPS pl_attend_avx512
#include "attend_body.h"
