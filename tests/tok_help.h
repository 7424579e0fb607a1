#ifndef TOK_HELP_H
#define TOK_HELP_H
/* What the suites of the tokenizer share. */
#include "tok_impl.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static pl_err err;

/* Ids as text: "1 2 3". */
static const char *encode(const pl_tok *t, const char *text, int64_t n, int32_t flags)
{
    static char out[1 << 16];
    pl_ids ids = {0};
    size_t k = 0;
    ck_assert_msg(pl_tok_encode(t, &ids, text, n, flags, &err) == PL_OK, "%s", err.msg);
    out[0] = 0;
    for (int32_t i = 0; i < ids.n && k < sizeof out - 16; i++)
        k += (size_t)snprintf(out + k, 16, i ? " %d" : "%d", ids.id[i]);
    pl_ids_free(&ids);
    return out;
}

#define want_ids(t, text, flags, want) ck_assert_str_eq(encode(t, text, sizeof(text) - 1, flags), want)

#define VOCAB                                                                                           \
    "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\" "                                                            \
    "\":3,\"ab\":4,\"abc\":5,\"bc\":6,\"aa\":7,\"aaaa\":8,\"<u>\":9,\"\xe2\x96\x81\":10,\"\xe2\x96\x81" \
    "a\":11}"
#define MERGES \
    "\"merges\":[[\"a\",\"b\"],[\"b\",\"c\"],\"ab c\",[\"a\",\"a\"],[\"aa\",\"aa\"],[\"\xe2\x96\x81\",\"a\"]]"
#define MODEL "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<u>\"," VOCAB "," MERGES "}"

#define ADDED(id, name, flags) "{\"id\":" id ",\"content\":\"" name "\"," flags "}"

/* The ids' own bytes joined are the input, whatever it was. */
static void check_bytes(const pl_tok *t, const char *text, int64_t n)
{
    pl_ids ids = {0};
    int64_t at = 0;
    ck_assert_int_eq(pl_tok_encode(t, &ids, text, n, 0, &err), PL_OK);
    for (int32_t i = 0; i < ids.n; i++) {
        int32_t k;
        const char *p = pl_tok_bytes(t, ids.id[i], &k);
        ck_assert(at + k <= n && !memcmp(p, text + at, k));
        at += k;
    }
    ck_assert_int_eq(at, n);
    pl_ids_free(&ids);
}

#define BAD "\xef\xbf\xbd"
#endif
