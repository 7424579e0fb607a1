#ifndef PL_SCHEME_H
#define PL_SCHEME_H
/* What a checkpoint's config says of its weights: by whom they were quantised, how, and which were left alone. */
#include "meta.h"

enum { PL_BY_NOBODY = 0, PL_BY_FP8, PL_BY_COMPRESSED_TENSORS, PL_BY_GPTQ, PL_BY_AWQ, PL_BY_MODELOPT, PL_BY_MXFP4 };
enum { PL_AS_INT4 = 0, PL_AS_F8, PL_AS_NVFP4, PL_AS_MXFP4 };

/* A name, or a pattern of names, in config.json. */
typedef struct pl_pattern {
    char *text;
    void *code; /* of a regular expression: pcre2_code, or NULL */
    int32_t group;
} pl_pattern;

typedef struct pl_scheme_group {
    int32_t as;
    bool symmetric;
    bool ordered;     /* columns may be in any order: a list says which group each is in */
    int64_t group;    /* elements of a row that share a scale; 0: the row, or all, as the scales' shape says */
    int64_t block[2]; /* rows and columns that share a scale; 0: no blocks */
} pl_scheme_group;

enum { PL_SCHEME_GROUPS = 64 };
typedef struct pl_scheme {
    int32_t by;
    char key[48]; /* of config.json, where it lies: "quantization_config" */
    pl_scheme_group group[PL_SCHEME_GROUPS];
    int32_t n_groups;
    bool zeros_v2; /* GPTQ: zero points are stored as they are, not less one */
    pl_pattern *target, *ignore;
    int32_t n_targets, n_ignored;
    const char *ignore_key; /* under `key` */
} pl_scheme;

/* Reads the scheme out of sealed metadata; by is PL_BY_NOBODY if there is none. Clear it also after a failure. */
PL_MUST int pl_scheme_read(pl_scheme *s, const pl_meta *meta, pl_err *err);
/* The group of a module ("model.layers.0.mlp.up_proj") whose weight is quantised: PL_EFORMAT if the config says that it
 * is not. */
PL_MUST int pl_scheme_group_of(const pl_scheme *s, const char *module, const pl_scheme_group **out, pl_err *err);
void pl_scheme_clear(pl_scheme *s);
#endif
