/* Fuzz target: the head of a packed file. The input is the header's counts (n_texts, n_forms, n_tensors, kind: a byte each), the
 * options up to a zero byte, and the head; header, digest and 16 kB of data are made around them, so that mutations get past
 * the digest. An input that begins with the magic is read as it is. */
#include "packed.h"
#include "config.h"
#include "fuzz.h"
#include <stdlib.h>

enum { DATA = 16 << 10 };

/* Any function of the sizes will do: the real one is the device's. */
static int64_t packed_bytes(int32_t dtype, int64_t n, int64_t k)
{
    int64_t bytes;
    return dtype > PL_F8 && pl_mul(n, k, &bytes) ? bytes : -1;
}

static void use(const uint8_t *data, int64_t size)
{
    pl_packed p = {0};
    pl_toc toc = {0};
    pl_meta meta = {0};
    pl_err err = {0};
    volatile int64_t sink = 0;
    int rc = pl_packed_parse(&p, &toc, data, size, packed_bytes, &err);
    check_report(rc, &err);
    if (rc == PL_OK) {
        sink += use_toc(&toc, data, size);
        PL_ASSERT((uint32_t)toc.n == p.header.n_tensors);
        for (uint32_t i = 0; i < p.header.n_texts; i++)
            for (int64_t k = 0; k < p.text[i].bytes; k++) sink += p.text[i].data[k];
        for (int32_t i = 0; i < toc.n; i++) {
            PL_ASSERT(strlen(p.tensor[i].how) < PL_PACKED_MAX_HOW && (uint32_t)p.tensor[i].form < p.header.n_forms);
            sink += toc.e[i].offset % PL_PACKED_ALIGN;
        }
        rc = pl_config_parse(&meta, "perilune", (const char *)p.options, p.header.n_options, &err);
        check_report(rc, &err);
    }
    pl_meta_clear(&meta);
    pl_toc_clear(&toc);
    pl_packed_clear(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 8 && !memcmp(data, PL_PACKED_MAGIC, 8)) {
        use(data, (int64_t)size);
        return 0;
    }
    const uint8_t *end = size > 4 ? memchr(data + 4, 0, size - 4) : NULL;
    if (!end) return 0;
    const uint8_t *options = data + 4, *head = end + 1;
    const int64_t n_options = end - options, n_head = (int64_t)size - (head - data);
    const int64_t head_at = pl_round_up((int64_t)sizeof(pl_packed_header) + n_options, PL_PACKED_PAGE) + DATA;
    pl_packed_header h = {.version = PL_PACKED_VERSION,
                          .n_options = (uint32_t)n_options,
                          .kind = data[3],
                          .n_texts = data[0],
                          .n_forms = data[1],
                          .n_tensors = data[2],
                          .head_at = head_at,
                          .head_bytes = n_head,
                          .file_bytes = head_at + n_head};
    uint8_t *file = calloc(1, (size_t)h.file_bytes);
    if (!file) return 0;
    memcpy(h.magic, PL_PACKED_MAGIC, sizeof h.magic);
    pl_packed_digest(&h, options, head, h.digest);
    memcpy(file, &h, sizeof h);
    memcpy(file + sizeof h, options, (size_t)n_options);
    memcpy(file + head_at, head, (size_t)n_head);
    use(file, h.file_bytes);
    free(file);
    return 0;
}
