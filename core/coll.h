#ifndef PL_COLL_H
#define PL_COLL_H
/* Collectives within one process: ranks are threads that meet at a barrier and read each other's memory. NCCL takes
 * this place on GPUs. */
#include "base.h"

/* Publishes this rank's buffer, waits for all ranks, and gives every rank's buffer in *all [ranks]. The buffers stay
 * valid until pl_coll_leave, which waits again. PL_ESHAPE on every rank if the sizes differ: then there is nothing to
 * leave. */
int pl_coll_meet(pl_coll *c, const void *mine, int64_t bytes, const void *const **all, pl_err *err);
void pl_coll_leave(pl_coll *c);
#endif
