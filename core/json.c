/* json.c: parses JSON text from a file, and judges one from a client. */
#include "json.h"
#include <stdio.h>
#include <stdlib.h>

/* jansson 2.14 goes on with a text that it has lost a part of where an allocation fails, and reads and writes beyond it. So
 * what its longest text may take (a buffer that doubles, the one before it, and a copy) has to be there before it starts;
 * and host.c ends the process where memory is out all the same. */
json_t *pl_json_load(const char *text, int64_t n, size_t flags, json_error_t *why)
{
    void *volatile room = malloc(4 * (size_t)n + 4096); /* volatile: not to be left out */
    if (!room) {
        *why = (json_error_t){.line = 1};
        why->text[sizeof why->text - 1] = json_error_out_of_memory; /* where json_error_code looks */
        snprintf(why->text, sizeof why->text - 1, "no memory to read %lld bytes", (long long)n);
        return NULL;
    }
    free(room);
    return json_loadb(text, (size_t)n, flags, why);
}

json_t *pl_json_object(const char *text, int64_t n, const char *what, pl_err *err)
{
    json_error_t why;
    json_t *root = pl_json_load(text, n, JSON_REJECT_DUPLICATES, &why);
    if (json_is_object(root)) return root;
    if (root) {
        json_decref(root);
        pl_fail(err, PL_EFORMAT, "%s: not a JSON object", what);
        return NULL;
    }
    pl_fail(err, PL_EFORMAT, "%s: JSON, byte %d: %.120s", what, why.position, why.text);
    return NULL;
}

int pl_json_check(const char *text, int64_t n, int32_t max_depth, int32_t max_values, pl_err *err)
{
    /* jansson takes some hundred bytes for a value of two: how many there are at most shows without it */
    int32_t depth = 0, values = 1;
    bool in_text = false;
    for (int64_t i = 0; i < n; i++) {
        const char c = text[i];
        if (in_text && c == '\\') {
            i++;
        } else if (c == '"') {
            in_text = !in_text;
        } else if (!in_text) {
            values += c == ',' || c == '[' || c == '{';
            depth += (c == '[' || c == '{') - (c == ']' || c == '}');
            if (depth > max_depth)
                return pl_fail(err, PL_ELIMIT, "JSON: more than %d lists and objects in each other", max_depth);
            if (values > max_values) return pl_fail(err, PL_ELIMIT, "JSON: more than %d values", max_values);
        }
    }
    json_error_t why;
    json_t *root = pl_json_load(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!root)
        return pl_fail(err, json_error_code(&why) == json_error_out_of_memory ? PL_ENOMEM : PL_EFORMAT,
                       "JSON, byte %d: %.150s", why.position, why.text);
    json_decref(root);
    return PL_OK;
}
