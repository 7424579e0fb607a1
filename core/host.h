#ifndef PL_HOST_H
#define PL_HOST_H
/* The process around the interpreter: interrupts and the terminal. State of the process, so not part of libpl. */
#include "pl_serve.h"

void pl_host_init(void); /* before the interpreter starts */
#endif
