/* swiglu.c: silu(gate) * up; silu is pl_vsilu of maths.h. */
#include "rows.h"

int pl_cpu_swiglu(pl_stream *s, pl_tensor *y, const pl_tensor *gate, const pl_tensor *up, pl_err *err)
{
    return pl_each_row2(s, "swiglu", pl_row_ops_of(s)->swiglu, y, gate, "gate", up, "up", err);
}
