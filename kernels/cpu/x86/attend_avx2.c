/* attend_avx2.c: attention compiled for AVX2. */
#define ATTEND_OPS pl_attend_avx2
#include "attend_body.h"
