/* Fuzz target: the head of a GGUF file, and the tokenizer that its metadata describes. */
#include "gguf.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pl_meta meta = {0};
    pl_toc toc = {0};
    pl_err err = {0};
    volatile int64_t sink = 0;
    int rc = pl_gguf_parse(&meta, &toc, data, (int64_t)size, &err);
    check_report(rc, &err);
    if (rc == PL_OK) {
        sink += use_meta(&meta) + use_toc(&toc, data, (int64_t)size);
    }
    pl_toc_clear(&toc);
    pl_meta_clear(&meta);
    return 0;
}
