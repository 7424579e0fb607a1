/* Fuzz target: config.json, flattened to metadata. */
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
    return 0;
}
