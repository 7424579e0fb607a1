/* rows_avx512.c: the small ops compiled for AVX-512. */
#define ROW_OPS pl_row_ops_avx512
#include "rows_body.h"
