#ifndef PL_TOK_H
#define PL_TOK_H
/* The tokenizer: text to token ids and back. core/pl.h has the calls that Lua uses; this header adds the ways to
 * open one from memory. The parts, in reading order: tok.c (encode), tok_split.c (pre-tokenizers), tok_bpe.c (the
 * model), tok_decode.c (ids to text), then what they stand on: tok_vocab.c, tok_regex.c, tok_norm.c; and the
 * readers: tok_json.c and tok_json_model.c (tokenizer.json), tok_hf.c (directories, tiktoken.model), tok_gguf.c. */
#include "base.h"

/* A tokenizer.json and, unless NULL, the tokenizer_config.json beside it, both as text. */
PL_MUST int pl_tok_open_json(pl_tok **out, const char *json, int64_t n_json, const char *config, int64_t n_config,
                             pl_err *err);

/* A tiktoken.model (base64 token, space, rank) with the reserved ids that its tokenizer_config.json names. */
PL_MUST int pl_tok_open_tiktoken(pl_tok **out, const char *ranks, int64_t n_ranks, const char *config, int64_t n_config,
                                 pl_err *err);

/* What a GGUF file says of its vocabulary (tokenizer.ggml.*); everything is borrowed for the call. */
typedef struct pl_str {
    const char *p;
    int64_t n;
} pl_str;
enum { PL_TOKEN_NORMAL = 1, PL_TOKEN_UNKNOWN, PL_TOKEN_CONTROL, PL_TOKEN_USER, PL_TOKEN_UNUSED, PL_TOKEN_BYTE };
typedef struct pl_tok_vocab {
    pl_str model, pre;   /* "gpt2" or "llama"; pre may be empty */
    const pl_str *token; /* [n_tokens] */
    const float *score;  /* [n_tokens]; NULL for gpt2 */
    const int32_t *type; /* [n_tokens] PL_TOKEN_*, or NULL: all normal */
    const pl_str *merge; /* [n_merges] "left right" */
    int64_t n_tokens, n_merges;
    int64_t bos, eos, unk;                      /* -1: none */
    int32_t add_bos, add_eos, add_space_prefix; /* 0, 1, or -1: not said, the model's usual choice */
} pl_tok_vocab;
PL_MUST int pl_tok_open_gguf(pl_tok **out, const pl_tok_vocab *v, pl_err *err);
#endif
