#ifndef PL_MAIL_H
#define PL_MAIL_H
/* Bounded queues of letters between threads: any number of senders, any number of takers. core/pl.h has the calls that
 * Lua uses. A descriptor that is readable while there is something to take lets a thread wait for several things. */
#include "base.h"

/* As pl_mail_put, but waits for room: PL_EFULL after timeout_s. */
PL_MUST int pl_mail_send(pl_mail *m, const pl_letter *l, double timeout_s, pl_err *err);
#endif
