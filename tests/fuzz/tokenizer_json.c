/* Fuzz target: tokenizer.json, behind a zero byte tokenizer_config.json; what does not begin with a brace is taken for
 * tiktoken.model. A tokenizer that opens is used on a text with a bit of everything. */
#include "fuzz.h"
#include "tok.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "Hi ab  w\xc3\xb6rld's 1234\r\n\n \xe4\xb8\xad\xe6\x96\x87<s> e\xcc\x81 \xf0\x9f\x98\x80\xff</s>"
        "abababababababababababababababababababababababababababababababababababababababab";
    const char *json = (const char *)data, *config = memchr(data, 0, size);
    const int64_t n_json = config ? config - json : (int64_t)size;
    const int64_t n_config = config ? (int64_t)size - n_json - 1 : 0;
    if (config) config++;
    pl_tok *t = NULL;
    pl_err err = {0};
    int rc = n_json && json[0] == '{' ? pl_tok_open_json(&t, json, n_json, config, n_config, &err)
                                      : pl_tok_open_tiktoken(&t, json, n_json, config, n_config, &err);
    check_report(rc, &err);
    if (rc < 0) return 0;

    pl_ids ids = {0};
    pl_text whole = {0}, streamed = {0};
    pl_tok_stream stream = {0};
    for (int flags = 0; flags < 2; flags++) {
        rc = pl_tok_encode(t, &ids, text, sizeof text - 1, flags ? PL_TOK_SPECIALS | PL_TOK_BOS | PL_TOK_EOS : 0, &err);
        check_report(rc, &err);
    }
    for (int32_t i = 0; i < ids.n; i++) PL_ASSERT(ids.id[i] >= 0 && ids.id[i] < pl_tok_size(t));
    rc = pl_tok_decode(t, &whole, ids.id, ids.n, PL_TOK_SPECIALS, &err);
    check_report(rc, &err);
    int stream_rc = PL_OK;
    for (int32_t i = 0; i < ids.n && stream_rc >= 0; i++)
        stream_rc = pl_tok_stream_put(t, &stream, &streamed, ids.id[i], PL_TOK_SPECIALS, &err);
    if (stream_rc >= 0) stream_rc = pl_tok_stream_end(t, &stream, &streamed, &err);
    if (rc >= 0 && stream_rc >= 0 && whole.n > 0)
        PL_ASSERT(whole.n == streamed.n && !memcmp(whole.data, streamed.data, (size_t)whole.n));
    free(ids.id);
    free(whole.data);
    free(streamed.data);
    pl_tok_close(t);
    return 0;
}
