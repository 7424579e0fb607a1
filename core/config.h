#ifndef PL_CONFIG_H
#define PL_CONFIG_H
/* config.json and its like, flattened to metadata: {"a": {"b": [1, 2]}} is the key "a.b" with a list of two. */
#include "meta.h"

/* Adds the values of text[n], each key after `prefix`. Lists whose elements are all whole numbers, all numbers, all
 * strings or all truth values stay lists; the elements of any other list get keys of their own ("a.0", "a.1.b").
 * null is as good as absent, and so are empty objects. The caller seals. */
PL_MUST int pl_config_parse(pl_meta *meta, const char *prefix, const char *text, int64_t n, pl_err *err);
#endif
