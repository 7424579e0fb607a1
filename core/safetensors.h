#ifndef PL_SAFETENSORS_H
#define PL_SAFETENSORS_H
/* safetensors files, and the index file that names the shards of a checkpoint. */
#include "toc.h"

/* Adds the tensors of the file that lies in data[size]; `file` is its number in the table. The caller seals. */
PL_MUST int pl_safetensors_parse(pl_toc *toc, int32_t file, const uint8_t *data, int64_t size, pl_err *err);

/* What model.safetensors.index.json says: each shard's name once, and the shard of each tensor. */
enum { PL_SHARDS_MAX = 1024 };
typedef struct pl_shards {
    char **name; /* [n_names] plain file names, no folder in them */
    int32_t n_names, cap_names;
    pl_toc toc; /* names and file numbers only; sealed */
} pl_shards;
PL_MUST int pl_shards_parse(pl_shards *s, const char *text, int64_t n, pl_err *err);
/* Every tensor of the index is in the shard it names, and no shard holds another. */
PL_MUST int pl_shards_check(const pl_shards *s, const pl_toc *found, pl_err *err);
void pl_shards_clear(pl_shards *s);
#endif
