/* Fuzz target: config.json, flattened to metadata; and the judgement of a client's JSON. */
#include "config.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pl_meta meta = {0};
    pl_err err = {0};
    volatile int64_t sink = 0;
    int rc = pl_config_parse(&meta, "", (const char *)data, (int64_t)size, &err);
    if (rc == PL_OK) rc = pl_meta_seal(&meta, "config", &err);
    check_report(rc, &err);
    if (rc == PL_OK) sink += use_meta(&meta);
    pl_meta_clear(&meta);
    err = (pl_err){0};
    check_report(pl_json_check((const char *)data, (int64_t)size, 8, 64, &err), &err);
    return 0;
}
