/* geglu.c: gelu(gate) * up; gelu is pl_vgelu of maths.h. */
#include "rows.h"

int pl_cpu_geglu(pl_stream *s, pl_tensor *y, const pl_tensor *gate, const pl_tensor *up, pl_err *err)
{
    return pl_each_row2(s, "geglu", pl_row_ops_of(s)->geglu, y, gate, "gate", up, "up", err);
}
