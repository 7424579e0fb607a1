/* json.c: parses JSON text from a file. */
#include "json.h"

json_t *pl_json_object(const char *text, int64_t n, const char *what, pl_err *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    if (json_is_object(root)) return root;
    if (root) {
        json_decref(root);
        pl_fail(err, PL_EFORMAT, "%s: not a JSON object", what);
        return NULL;
    }
    pl_fail(err, PL_EFORMAT, "%s: JSON, byte %d: %.120s", what, why.position, why.text);
    return NULL;
}
