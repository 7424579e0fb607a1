/* tok_json_model.c: the tables of tokenizer.json: the BPE model's vocabulary and merges, and the added tokens. */
#include "tok_impl.h"
#include <jansson.h>

static int read_vocab(pl_tok *t, json_t *vocab, pl_err *err)
{
    for (void *i = json_object_iter(vocab); i; i = json_object_iter_next(vocab, i)) {
        const char *name = json_object_iter_key(i);
        const int64_t n = (int64_t)json_object_iter_key_len(i);
        const json_t *id = json_object_iter_value(i);
        if (!json_is_integer(id))
            return pl_fail(err, PL_EFORMAT, "tokenizer.json: vocab: '%.40s' has no integer id", name);
        PL_TRY(pl_vocab_add(&t->vocab, json_integer_value(id), name, n, false, err));
    }
    return PL_OK;
}

/* "left right" in older files, ["left", "right"] in newer ones. */
static int merge_sides(const json_t *m, size_t at, const char *side[2], int64_t n[2], pl_err *err)
{
    if (json_is_string(m)) {
        side[0] = json_string_value(m);
        const int64_t len = (int64_t)json_string_length(m);
        const char *space = memchr(side[0], ' ', (size_t)len);
        if (space && !memchr(space + 1, ' ', (size_t)(len - (space - side[0]) - 1))) {
            n[0] = space - side[0];
            side[1] = space + 1;
            n[1] = len - n[0] - 1;
            return PL_OK;
        }
    } else if (json_array_size(m) == 2) {
        bool strings = true;
        for (size_t k = 0; k < 2; k++) {
            const json_t *s = json_array_get(m, k);
            strings = strings && json_is_string(s);
            side[k] = json_string_value(s);
            n[k] = (int64_t)json_string_length(s);
        }
        if (strings) return PL_OK;
    }
    return pl_fail(err, PL_EFORMAT, "tokenizer.json: merge %zu is not a pair of tokens", at);
}

static int read_merges(pl_tok *t, const json_t *merges, pl_err *err)
{
    pl_buf joined = {0};
    const char *side[2] = {NULL, NULL};
    int64_t n[2] = {0, 0};
    int rc = pl_pairs_reserve(&t->pairs, (int64_t)json_array_size(merges), err);
    for (size_t i = 0; i < json_array_size(merges) && rc >= 0; i++) {
        const json_t *m = json_array_get(merges, i);
        if (json_is_string(m) && !strncmp(json_string_value(m), "#version", 8)) continue;
        if ((rc = merge_sides(m, i, side, n, err)) < 0) break;
        const int32_t left = pl_vocab_find(&t->vocab, side[0], n[0]), right = pl_vocab_find(&t->vocab, side[1], n[1]);
        joined.n = 0;
        if ((rc = pl_buf_put(&joined, side[0], n[0], err)) < 0 || (rc = pl_buf_put(&joined, side[1], n[1], err)) < 0)
            break;
        const int32_t id = joined.n ? pl_vocab_find(&t->vocab, joined.p, joined.n) : -1;
        if (left < 0 || right < 0 || id < 0) {
            const int k = left < 0 ? 0 : 1;
            const bool side_missing = left < 0 || right < 0;
            rc = pl_fail(err, PL_EFORMAT, "tokenizer.json: merge %zu: '%.*s' is no token", i,
                         (int)pl_min(side_missing ? n[k] : joined.n, 40),
                         side_missing ? side[k]
                         : joined.p   ? joined.p
                                      : "");
            break;
        }
        pl_pairs_put(&t->pairs, left, right, (int32_t)i, id);
    }
    pl_buf_free(&joined);
    return rc;
}

static int refuse_affix(const json_t *model, const char *key, pl_err *err)
{
    json_t *x;
    PL_TRY(pl_json_get(model, key, PL_JSON_STRING, false, "model", &x, err));
    return x && json_string_length(x) ? pl_fail(err, PL_EFORMAT, "tokenizer.json: model: %s '%.20s' is not supported",
                                                key, json_string_value(x))
                                      : PL_OK;
}

int pl_json_model(pl_tok *t, const pl_json *model, pl_err *err)
{
    json_t *x, *vocab, *merges;
    PL_TRY(pl_json_get(model, "type", PL_JSON_STRING, false, "model", &x, err));
    if (x && strcmp(json_string_value(x), "BPE") != 0)
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: model type '%.40s' is not supported, want BPE",
                       json_string_value(x));
    PL_TRY(pl_json_get(model, "vocab", PL_JSON_OBJECT, true, "model", &vocab, err));
    PL_TRY(pl_json_get(model, "merges", PL_JSON_ARRAY, true, "model", &merges, err));
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: model: dropout is for training, want none");
    PL_TRY(refuse_affix(model, "continuing_subword_prefix", err));
    PL_TRY(refuse_affix(model, "end_of_word_suffix", err));
    PL_TRY(pl_json_flag(model, "byte_fallback", false, "model", &t->byte_fallback, err));
    PL_TRY(pl_json_flag(model, "ignore_merges", false, "model", &t->ignore_merges, err));
    PL_TRY(pl_json_flag(model, "fuse_unk", false, "model", &t->fuse_unk, err));
    PL_TRY(read_vocab(t, vocab, err));
    PL_TRY(read_merges(t, merges, err));
    PL_TRY(pl_json_get(model, "unk_token", PL_JSON_STRING, false, "model", &x, err));
    if (!x) return PL_OK;
    t->unk = pl_vocab_find(&t->vocab, json_string_value(x), (int64_t)json_string_length(x));
    return t->unk < 0
               ? pl_fail(err, PL_EFORMAT, "tokenizer.json: model: unk_token '%.40s' is no token", json_string_value(x))
               : PL_OK;
}

int pl_json_added(pl_tok *t, const pl_json *list, pl_err *err)
{
    static const char what[] = "added_tokens";
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        json_t *id, *name;
        if (!json_is_object(x)) return pl_fail(err, PL_EFORMAT, "tokenizer.json: added token %zu is no object", i);
        PL_TRY(pl_json_get(x, "id", PL_JSON_INT, true, what, &id, err));
        PL_TRY(pl_json_get(x, "content", PL_JSON_STRING, true, what, &name, err));
        const json_int_t value = json_integer_value(id);
        if (value < 0 || value >= PL_TOK_MAX_IDS)
            return pl_fail(err, PL_EFORMAT, "tokenizer.json: added token '%.40s' has id %lld, want 0 .. %d",
                           json_string_value(name), (long long)value, PL_TOK_MAX_IDS - 1);
        pl_added a = {.id = (int32_t)value};
        PL_TRY(pl_json_flag(x, "special", false, what, &a.special, err));
        PL_TRY(pl_json_flag(x, "normalized", !a.special, what, &a.normalized, err));
        PL_TRY(pl_json_flag(x, "lstrip", false, what, &a.lstrip, err));
        PL_TRY(pl_json_flag(x, "rstrip", false, what, &a.rstrip, err));
        PL_TRY(pl_json_flag(x, "single_word", false, what, &a.single_word, err));
        a.gated = a.special;
        if (!json_string_length(name)) continue; /* never matched */
        PL_TRY(pl_tok_add(t, &a, json_string_value(name), (int64_t)json_string_length(name), err));
    }
    return PL_OK;
}
