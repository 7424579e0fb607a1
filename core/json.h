#ifndef PL_JSON_H
#define PL_JSON_H
/* JSON from files, through jansson: an object, no key twice. */
#include "base.h"
#include <jansson.h>

/* json_loadb, where there is memory for it. */
PL_MUST json_t *pl_json_load(const char *text, int64_t n, size_t flags, json_error_t *why);
/* The object in text[n], which the caller decrefs; NULL on failure. `what` begins the message. */
PL_MUST json_t *pl_json_object(const char *text, int64_t n, const char *what, pl_err *err);
#endif
