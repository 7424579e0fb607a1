#ifndef PL_HOST_H
#define PL_HOST_H
/* The process around the interpreter: interrupts and the terminal. State of the process, so not part of libpl. */
#include "pl_serve.h"

void pl_host_init(void); /* before the interpreter starts */

#pragma GCC visibility push(default)
/* abi-begin */
/* Holds a file, which is made if it is not there, for this process until pl_host_let_go. PL_EBUSY: another process holds
 * it, or it has lost its name meanwhile; try again. *fd: -1 where the file system has no locks. */
int pl_host_hold(int32_t *fd, const char *path, pl_err *err);
void pl_host_let_go(int32_t fd);
/* abi-end */
#pragma GCC visibility pop
#endif
