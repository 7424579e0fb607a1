/* add.c: elementwise sum. */
#include "rows.h"

int pl_cpu_add(pl_stream *s, pl_tensor *y, const pl_tensor *a, const pl_tensor *b, pl_err *err)
{
    return pl_each_row2(s, "add", pl_row_ops_of(s)->add, y, a, "a", b, "b", err);
}
