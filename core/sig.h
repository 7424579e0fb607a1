#ifndef PL_SIG_H
#define PL_SIG_H
/* Checks the tensors of an op against its signature line (pl_ops.h), when the op is called on real tensors. */
#include "tensor.h"

/* t[n] lists outputs, then inputs, in the order of the signature; NULL only for an input marked `?`. Sizes bind
 * inputs first, so that a wrong output is blamed on the output. PL_ESHAPE or PL_EARG with a text that shows both. */
int pl_sig_check(const char *op, const char *sig, const pl_tensor *const *t, int n, pl_err *err);
#endif
