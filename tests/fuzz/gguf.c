/* Fuzz target: the head of a GGUF file, and the tokenizer that its metadata describes. */
#include "gguf.h"
#include "ckpt.h"
#include "fuzz.h"
#include "tok.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pl_meta meta = {0};
    pl_toc toc = {0};
    pl_err err = {0};
    pl_tok *tok = NULL;
    volatile int64_t sink = 0;
    int rc = pl_gguf_parse(&meta, &toc, data, (int64_t)size, &err);
    check_report(rc, &err);
    if (rc == PL_OK) {
        sink += use_meta(&meta) + use_toc(&toc, data, (int64_t)size);
        rc = pl_tok_open_meta(&tok, &meta, &err);
        check_report(rc, &err);
    }
    if (tok) {
        pl_ids ids = {0};
        check_report(pl_tok_encode(tok, &ids, "a b\xc3\xa9<s>", 8, PL_TOK_SPECIALS | PL_TOK_BOS, &err), &err);
        free(ids.id);
    }
    pl_tok_close(tok);
    pl_toc_clear(&toc);
    pl_meta_clear(&meta);
    return 0;
}
