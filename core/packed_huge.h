#ifndef PL_PACKED_HUGE_H
#define PL_PACKED_HUGE_H
/* A thread that moves a mapping of a file, which must be private, into huge pages while others read it. */
#include "base.h"

typedef struct pl_huge pl_huge;
/* *out NULL: nothing to do, no huge pages here, or too little memory. The mapping stays until the thread is stopped. */
PL_MUST int pl_huge_start(pl_huge **out, uint8_t *from, const uint8_t *to, pl_err *err);
int64_t pl_huge_piece(int64_t bytes);    /* how much of so many bytes is moved at a time */
int64_t pl_huge_moved(const pl_huge *h); /* bytes so far; NULL: 0 */
void pl_huge_stop(pl_huge *h);           /* NULL is accepted */
#endif
