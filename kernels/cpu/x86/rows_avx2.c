/* rows_avx2.c: the small ops compiled for AVX2. */
#define ROW_OPS pl_row_ops_avx2
#include "rows_body.h"
