/* tok_json.c: tokenizer.json and tokenizer_config.json. The first describes a pipeline, which is taken as it stands: no
 * model is known by name here, and a component that is not known is an error that names it. The second says which tokens
 * begin and end a text. */
#include "json.h"
#include "tok_impl.h"
#include <stdio.h>

enum { PL_MAX_JSON = 512 << 20 };

int pl_json_parse(pl_json **out, const char *text, int64_t n, bool is_config, pl_err *err)
{
    const char *what = is_config ? "tokenizer_config.json" : "tokenizer.json";
    /* configs have integers like 10^30 (model_max_length), and none that is read here */
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | (is_config ? JSON_DECODE_INT_AS_REAL : 0);
    json_error_t e;
    if (n < 0 || n > PL_MAX_JSON)
        return pl_fail(err, PL_EFORMAT, "%s: %lld bytes, want at most %d", what, (long long)n, PL_MAX_JSON);
    json_t *j = pl_json_load(text, n, flags, &e);
    if (!j) return pl_fail(err, PL_EFORMAT, "%s: line %d: %s", what, e.line, e.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return pl_fail(err, PL_EFORMAT, "%s: not an object", what);
    }
    *out = j;
    return PL_OK;
}

void pl_json_free(pl_json *j) { json_decref(j); }

int pl_json_get(const pl_json *o, const char *key, int32_t type, bool needed, const char *what, pl_json **out,
                pl_err *err)
{
    static const char *const name[] = {"an object", "an array", "a string", "an integer", "true or false"};
    json_t *x = json_object_get(o, key);
    *out = NULL;
    if ((!x || json_is_null(x)) && !needed) return PL_OK;
    const bool fits = type == PL_JSON_OBJECT   ? json_is_object(x)
                      : type == PL_JSON_ARRAY  ? json_is_array(x)
                      : type == PL_JSON_STRING ? json_is_string(x)
                      : type == PL_JSON_INT    ? json_is_integer(x)
                                               : json_is_boolean(x);
    if (!fits)
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: %s: '%s' is %s, want %s", what, key,
                       x ? "something else" : "missing", name[type]);
    *out = x;
    return PL_OK;
}

int pl_json_flag(const pl_json *o, const char *key, bool usual, const char *what, bool *out, pl_err *err)
{
    json_t *x;
    PL_TRY(pl_json_get(o, key, PL_JSON_BOOL, false, what, &x, err));
    *out = x ? json_is_true(x) : usual;
    return PL_OK;
}

int pl_json_type(const pl_json *o, const char *what, const char **type, pl_err *err)
{
    json_t *x;
    if (!json_is_object(o)) return pl_fail(err, PL_EFORMAT, "tokenizer.json: %s: not an object", what);
    PL_TRY(pl_json_get(o, "type", PL_JSON_STRING, true, what, &x, err));
    *type = json_string_value(x);
    return PL_OK;
}

/* A token of tokenizer_config.json is a string or an object with `content`; absent or null: none. */
static const json_t *token_name(const json_t *config, const char *key)
{
    const json_t *x = json_object_get(config, key);
    if (json_is_object(x)) x = json_object_get(x, "content");
    return json_is_string(x) ? x : NULL;
}

static int32_t token_id(const pl_tok *t, const json_t *name)
{
    return name ? pl_vocab_find(&t->vocab, json_string_value(name), (int64_t)json_string_length(name)) : -1;
}

int pl_json_config_added(pl_tok *t, const pl_json *config, bool gate_all, pl_err *err)
{
    json_t *list;
    PL_TRY(pl_json_get(config, "added_tokens_decoder", PL_JSON_OBJECT, false, "tokenizer_config.json", &list, err));
    for (void *i = json_object_iter(list); i; i = json_object_iter_next(list, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *x = json_object_iter_value(i);
        json_t *name;
        int64_t id = 0;
        for (const char *d = key; *d; d++) {
            if (*d < '0' || *d > '9' || id > PL_TOK_MAX_IDS)
                return pl_fail(err, PL_EFORMAT, "tokenizer_config.json: added token '%.20s', want an id", key);
            id = id * 10 + (*d - '0');
        }
        if (id >= PL_TOK_MAX_IDS)
            return pl_fail(err, PL_EFORMAT, "tokenizer_config.json: added token with id %lld, want less than %d",
                           (long long)id, PL_TOK_MAX_IDS);
        if (!json_is_object(x))
            return pl_fail(err, PL_EFORMAT, "tokenizer_config.json: added token %s is no object", key);
        PL_TRY(pl_json_get(x, "content", PL_JSON_STRING, true, "added_tokens_decoder", &name, err));
        pl_added a = {.id = (int32_t)id};
        PL_TRY(pl_json_flag(x, "special", false, "added_tokens_decoder", &a.special, err));
        PL_TRY(pl_json_flag(x, "normalized", !a.special, "added_tokens_decoder", &a.normalized, err));
        PL_TRY(pl_json_flag(x, "lstrip", false, "added_tokens_decoder", &a.lstrip, err));
        PL_TRY(pl_json_flag(x, "rstrip", false, "added_tokens_decoder", &a.rstrip, err));
        PL_TRY(pl_json_flag(x, "single_word", false, "added_tokens_decoder", &a.single_word, err));
        a.gated = a.special || gate_all;
        if (gate_all) a.normalized = a.lstrip = a.rstrip = a.single_word = false; /* tiktoken knows no such flags */
        const int64_t n = (int64_t)json_string_length(name);
        if (!n || pl_vocab_has(&t->vocab, id) || pl_vocab_find(&t->vocab, json_string_value(name), n) >= 0) continue;
        PL_TRY(pl_tok_add(t, &a, json_string_value(name), n, err));
    }
    return PL_OK;
}

int pl_json_config_ends(pl_tok *t, const pl_json *config, pl_err *err)
{
    bool add_bos = false, add_eos = false;
    if (config) {
        PL_TRY(pl_json_flag(config, "add_bos_token", false, "tokenizer_config.json", &add_bos, err));
        PL_TRY(pl_json_flag(config, "add_eos_token", false, "tokenizer_config.json", &add_eos, err));
        t->bos = token_id(t, token_name(config, "bos_token"));
        t->eos = token_id(t, token_name(config, "eos_token"));
    }
    if (t->bos < 0 && t->n_prefix) t->bos = t->prefix[0];
    if (add_bos && !t->n_prefix && t->bos >= 0) t->prefix[t->n_prefix++] = t->bos;
    if (add_eos && !t->n_suffix && t->eos >= 0) t->suffix[t->n_suffix++] = t->eos;
    return PL_OK;
}

static int build(pl_tok *t, const json_t *j, const json_t *config, pl_err *err)
{
    json_t *x;
    PL_TRY(pl_json_get(j, "model", PL_JSON_OBJECT, true, "file", &x, err));
    PL_TRY(pl_json_model(t, x, err));
    PL_TRY(pl_json_get(j, "normalizer", PL_JSON_OBJECT, false, "file", &x, err));
    if (x) PL_TRY(pl_json_normalizer(t, x, 0, err));
    PL_TRY(pl_json_get(j, "pre_tokenizer", PL_JSON_OBJECT, false, "file", &x, err));
    if (x) PL_TRY(pl_json_pre_tokenizer(t, x, 0, err));
    PL_TRY(pl_json_get(j, "decoder", PL_JSON_OBJECT, false, "file", &x, err));
    t->space_between = !x;
    if (x) PL_TRY(pl_json_decoder(t, x, 0, err));
    PL_TRY(pl_json_get(j, "added_tokens", PL_JSON_ARRAY, false, "file", &x, err));
    if (x) PL_TRY(pl_json_added(t, x, err));
    if (config) PL_TRY(pl_json_config_added(t, config, false, err));
    PL_TRY(pl_json_get(j, "post_processor", PL_JSON_OBJECT, false, "file", &x, err));
    if (x) PL_TRY(pl_json_post_processor(t, x, 0, err));
    PL_TRY(pl_json_config_ends(t, config, err));
    return pl_tok_finish(t, err);
}

int pl_tok_open_json(pl_tok **out, const char *json, int64_t n_json, const char *config, int64_t n_config, pl_err *err)
{
    json_t *j = NULL, *c = NULL;
    pl_tok *t = NULL;
    int rc = pl_json_parse(&j, json, n_json, false, err);
    if (rc >= 0 && config) rc = pl_json_parse(&c, config, n_config, true, err);
    if (rc >= 0) rc = pl_tok_new(&t, err);
    if (rc >= 0) rc = build(t, j, c, err);
    json_decref(j);
    json_decref(c);
    if (rc < 0)
        pl_tok_close(t);
    else
        *out = t;
    return rc;
}
