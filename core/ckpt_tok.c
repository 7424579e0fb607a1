/* ckpt_tok.c: opens the tokenizer that a checkpoint carries: from a GGUF file's metadata, or from the files of a
 * directory. */
#include "ckpt.h"
#include "tok.h"
#include <stdlib.h>

/* The entry of tokenizer.ggml.NAME, or NULL. */
static const pl_meta_entry *entry(const pl_meta *m, const char *key)
{
    const int32_t i = pl_meta_find(m, key);
    return i < 0 ? NULL : &m->e[i];
}

/* All strings of a list, borrowed from the file; an absent list is empty. */
static int get_strings(pl_str **out, int64_t *n, const pl_meta *m, const char *key, pl_err *err)
{
    const pl_meta_entry *e = entry(m, key);
    if (!e) return PL_OK;
    pl_str *s = malloc((size_t)pl_max(e->n, 1) * sizeof *s);
    if (!s) return pl_fail(err, PL_ENOMEM, "%s: no memory for %lld strings", key, (long long)e->n);
    *out = s;
    *n = e->n;
    for (int64_t i = 0; i < e->n; i++) PL_TRY(pl_meta_string(e, i, &s[i].p, &s[i].n, err));
    return PL_OK;
}

static int check_length(const pl_meta_entry *e, int64_t n, pl_err *err)
{
    if (e->n == n) return PL_OK;
    return pl_fail(err, PL_EFORMAT, "%s: %lld elements, want one a token: %lld", e->key, (long long)e->n, (long long)n);
}

static int get_scores(float **out, int64_t n, const pl_meta *m, pl_err *err)
{
    const pl_meta_entry *e = entry(m, "tokenizer.ggml.scores");
    if (!e) return PL_OK;
    PL_TRY(check_length(e, n, err));
    *out = malloc((size_t)pl_max(n, 1) * sizeof **out);
    if (!*out) return pl_fail(err, PL_ENOMEM, "%s: no memory", e->key);
    for (int64_t i = 0; i < n; i++) {
        double v;
        PL_TRY(pl_meta_float(e, i, &v, err));
        (*out)[i] = (float)v;
    }
    return PL_OK;
}

static int get_types(int32_t **out, int64_t n, const pl_meta *m, pl_err *err)
{
    const pl_meta_entry *e = entry(m, "tokenizer.ggml.token_type");
    if (!e) return PL_OK;
    PL_TRY(check_length(e, n, err));
    *out = malloc((size_t)pl_max(n, 1) * sizeof **out);
    if (!*out) return pl_fail(err, PL_ENOMEM, "%s: no memory", e->key);
    for (int64_t i = 0; i < n; i++) {
        int64_t v;
        PL_TRY(pl_meta_int(e, i, &v, err));
        if (v < PL_TOKEN_NORMAL || v > PL_TOKEN_BYTE)
            return pl_fail(err, PL_EFORMAT, "%s: %lld for token %lld, want %d to %d", e->key, (long long)v,
                           (long long)i, PL_TOKEN_NORMAL, PL_TOKEN_BYTE);
        (*out)[i] = (int32_t)v;
    }
    return PL_OK;
}

/* A token id; -1 if there is none, for which some writers put 2^32 - 1. */
static int get_id(int64_t *out, int64_t n, const pl_meta *m, const char *key, pl_err *err)
{
    const pl_meta_entry *e = entry(m, key);
    *out = -1;
    if (!e) return PL_OK;
    int64_t v;
    PL_TRY(pl_meta_int(e, 0, &v, err));
    if (v == UINT32_MAX || v == -1) return PL_OK;
    if (v < 0 || v >= n) return pl_fail(err, PL_EFORMAT, "%s: %lld of %lld tokens", key, (long long)v, (long long)n);
    *out = v;
    return PL_OK;
}

static int get_flag(int32_t *out, const pl_meta *m, const char *key, pl_err *err)
{
    const pl_meta_entry *e = entry(m, key);
    *out = -1;
    if (!e) return PL_OK;
    int64_t v;
    PL_TRY(pl_meta_int(e, 0, &v, err));
    *out = v != 0;
    return PL_OK;
}

static int get_string(pl_str *out, const pl_meta *m, const char *key, pl_err *err)
{
    const pl_meta_entry *e = entry(m, key);
    return e ? pl_meta_string(e, 0, &out->p, &out->n, err) : PL_OK;
}

int pl_tok_open_meta(pl_tok **out, const pl_meta *m, pl_err *err)
{
    pl_tok_vocab v = {.model = {"", 0}, .pre = {"", 0}};
    pl_str *token = NULL, *merge = NULL;
    float *score = NULL;
    int32_t *type = NULL;
    int rc = PL_OK;
    if (!entry(m, "tokenizer.ggml.tokens")) rc = pl_fail(err, PL_ENAME, "the file has no tokenizer.ggml.tokens");
    if (rc == PL_OK) rc = get_strings(&token, &v.n_tokens, m, "tokenizer.ggml.tokens", err);
    if (rc == PL_OK) rc = get_strings(&merge, &v.n_merges, m, "tokenizer.ggml.merges", err);
    if (rc == PL_OK) rc = get_scores(&score, v.n_tokens, m, err);
    if (rc == PL_OK) rc = get_types(&type, v.n_tokens, m, err);
    if (rc == PL_OK) rc = get_string(&v.model, m, "tokenizer.ggml.model", err);
    if (rc == PL_OK) rc = get_string(&v.pre, m, "tokenizer.ggml.pre", err);
    if (rc == PL_OK) rc = get_id(&v.bos, v.n_tokens, m, "tokenizer.ggml.bos_token_id", err);
    if (rc == PL_OK) rc = get_id(&v.eos, v.n_tokens, m, "tokenizer.ggml.eos_token_id", err);
    if (rc == PL_OK) rc = get_id(&v.unk, v.n_tokens, m, "tokenizer.ggml.unknown_token_id", err);
    if (rc == PL_OK) rc = get_flag(&v.add_bos, m, "tokenizer.ggml.add_bos_token", err);
    if (rc == PL_OK) rc = get_flag(&v.add_eos, m, "tokenizer.ggml.add_eos_token", err);
    if (rc == PL_OK) rc = get_flag(&v.add_space_prefix, m, "tokenizer.ggml.add_space_prefix", err);
    v.token = token;
    v.merge = merge;
    v.score = score;
    v.type = type;
    if (rc == PL_OK) rc = pl_tok_open_gguf(out, &v, err);
    free(token);
    free(merge);
    free(score);
    free(type);
    return rc;
}

/* Of a packed directory: its texts. */
static int open_texts(pl_tok **out, const pl_ckpt *c, pl_err *err)
{
    int64_t n = 0, n_config = 0;
    const char *config = pl_ckpt_held_text(c, "tokenizer_config.json", &n_config);
    const char *text = pl_ckpt_held_text(c, "tokenizer.json", &n);
    if (text) return pl_tok_open_json(out, text, n, config, n_config, err);
    text = pl_ckpt_held_text(c, "tiktoken.model", &n);
    if (!text) return pl_fail(err, PL_ENAME, "the file has neither tokenizer.json nor tiktoken.model");
    return pl_tok_open_tiktoken(out, text, n, config, n_config, err);
}

int pl_tok_open_ckpt(pl_tok **out, const pl_ckpt *c, pl_err *err)
{
    const char *dir = pl_ckpt_dir(c);
    if (dir) return pl_tok_open_hf(out, dir, err);
    return pl_ckpt_kind(c) == PL_CKPT_GGUF ? pl_tok_open_meta(out, pl_ckpt_meta(c), err) : open_texts(out, c, err);
}
