/* Fuzz target: safetensors heads and shard indexes. The first byte chooses: a whole file; only its JSON (the length in
 * front is made to fit, which mutations of a whole file rarely manage); an index. */
#include "safetensors.h"
#include "fuzz.h"
#include <stdlib.h>

enum { DATA = 64 }; /* bytes of tensor data behind a head */

static void parse_file(const uint8_t *data, int64_t size)
{
    pl_toc toc = {0};
    pl_err err = {0};
    volatile int64_t sink = 0;
    int rc = pl_safetensors_parse(&toc, 0, data, size, &err);
    if (rc == PL_OK) rc = pl_toc_seal(&toc, "safetensors", &err);
    check_report(rc, &err);
    if (rc == PL_OK) sink += use_toc(&toc, data, size);
    pl_toc_clear(&toc);
}

static void parse_index(const char *text, int64_t n)
{
    pl_shards s = {0};
    pl_err err = {0};
    const int rc = pl_shards_parse(&s, text, n, &err);
    check_report(rc, &err);
    if (rc == PL_OK) {
        PL_ASSERT(pl_shards_check(&s, &s.toc, &err) == PL_OK);
        for (int32_t i = 0; i < s.n_names; i++) PL_ASSERT(!strchr(s.name[i], '/') && s.name[i][0] != '.');
    }
    pl_shards_clear(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    const uint8_t *text = data + 1;
    const uint64_t n = size - 1;
    if (data[0] % 3 == 0) parse_file(text, (int64_t)n);
    if (data[0] % 3 == 2) parse_index((const char *)text, (int64_t)n);
    if (data[0] % 3 == 1) {
        uint8_t *file = calloc(1, 8 + n + DATA);
        if (!file) return 0;
        memcpy(file, &n, 8);
        memcpy(file + 8, text, n);
        parse_file(file, (int64_t)(8 + n + DATA));
        free(file);
    }
    return 0;
}
