#ifndef PL_GGUF_H
#define PL_GGUF_H
/* GGUF files, versions 2 and 3, little-endian. */
#include "meta.h"
#include "toc.h"

/* Reads the head of the file that lies in data[size] and checks it against that size. The metadata points into
 * data, which must outlive it. The lists are the caller's to clear, on failure too.
 * toc NULL: the metadata alone, of which data may be all there is. */
PL_MUST int pl_gguf_parse(pl_meta *meta, pl_toc *toc, const uint8_t *data, int64_t size, pl_err *err);
#endif
