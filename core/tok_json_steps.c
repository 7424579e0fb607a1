/* tok_json_steps.c: the pipeline of tokenizer.json as steps: normalizers, pre-tokenizers, decoders, and what a
 * post-processor puts around a text. Sequences are flattened. */
#include "tok_impl.h"
#include <jansson.h>

enum { PL_MAX_DEPTH = 8 };

static int unknown(const char *what, const char *type, pl_err *err)
{
    return pl_fail(err, PL_EFORMAT, "tokenizer.json: %s '%.60s' is not known", what, type);
}

typedef int component(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err);

static int each(pl_tok *t, const json_t *o, const char *key, const char *what, int32_t depth, component *read,
                pl_err *err)
{
    json_t *list;
    if (depth >= PL_MAX_DEPTH)
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: %s: more than %d sequences in one another", what,
                       PL_MAX_DEPTH);
    PL_TRY(pl_json_get(o, key, PL_JSON_ARRAY, true, what, &list, err));
    for (size_t i = 0; i < json_array_size(list); i++) PL_TRY(read(t, json_array_get(list, i), depth + 1, err));
    return PL_OK;
}

static int get_text(const json_t *o, const char *key, const char *what, pl_buf *out, pl_err *err)
{
    json_t *x;
    PL_TRY(pl_json_get(o, key, PL_JSON_STRING, true, what, &x, err));
    return pl_buf_put(out, json_string_value(x), (int64_t)json_string_length(x), err);
}

/* {"String": ".."} or {"Regex": ".."} */
static int get_pattern(const json_t *o, const char *what, json_t **text, bool *literal, pl_err *err)
{
    json_t *p;
    PL_TRY(pl_json_get(o, "pattern", PL_JSON_OBJECT, true, what, &p, err));
    PL_TRY(pl_json_get(p, "String", PL_JSON_STRING, false, what, text, err));
    *literal = *text != NULL;
    if (!*text) PL_TRY(pl_json_get(p, "Regex", PL_JSON_STRING, true, what, text, err));
    return json_string_length(*text) ? PL_OK : pl_fail(err, PL_EFORMAT, "tokenizer.json: %s: an empty pattern", what);
}

static int pattern_of(const json_t *o, const char *what, pl_regex **re, pl_err *err)
{
    json_t *text;
    bool literal;
    PL_TRY(get_pattern(o, what, &text, &literal, err));
    return pl_regex_new(re, json_string_value(text), (int64_t)json_string_length(text), literal, err);
}

int pl_json_normalizer(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err)
{
    static const struct {
        const char *type;
        int32_t kind;
    } plain[] = {{"NFC", PL_NORM_NFC},
                 {"NFD", PL_NORM_NFD},
                 {"NFKC", PL_NORM_NFKC},
                 {"NFKD", PL_NORM_NFKD},
                 {"Lowercase", PL_NORM_LOWERCASE},
                 {"StripAccents", PL_NORM_STRIP_ACCENTS},
                 {"Nmt", PL_NORM_NMT},
                 {"ByteLevel", PL_NORM_BYTES}};
    static const char what[] = "normalizer";
    const char *type;
    PL_TRY(pl_json_type(o, what, &type, err));
    if (!strcmp(type, "Sequence")) return each(t, o, "normalizers", what, depth, pl_json_normalizer, err);
    if (t->n_norm == PL_TOK_MAX_STEPS)
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: more than %d normalizers", PL_TOK_MAX_STEPS);
    pl_norm *s = &t->norm[t->n_norm++];
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (strcmp(type, plain[i].type) != 0) continue;
        s->kind = plain[i].kind;
        return PL_OK;
    }
    if (!strcmp(type, "Strip")) {
        s->kind = PL_NORM_STRIP;
        PL_TRY(pl_json_flag(o, "strip_left", true, what, &s->left, err));
        return pl_json_flag(o, "strip_right", true, what, &s->right, err);
    }
    if (!strcmp(type, "Prepend")) {
        s->kind = PL_NORM_PREPEND;
        return get_text(o, "prepend", what, &s->text, err);
    }
    if (!strcmp(type, "Replace")) {
        s->kind = PL_NORM_REPLACE;
        PL_TRY(get_text(o, "content", what, &s->text, err));
        return pattern_of(o, what, &s->re, err);
    }
    return unknown(what, type, err);
}

static int get_behavior(const json_t *o, const char *usual, int32_t *behavior, pl_err *err)
{
    static const char *const name[][2] = {{"Removed", "removed"},
                                          {"Isolated", "isolated"},
                                          {"MergedWithPrevious", "merged_with_previous"},
                                          {"MergedWithNext", "merged_with_next"},
                                          {"Contiguous", "contiguous"}};
    json_t *x;
    PL_TRY(pl_json_get(o, "behavior", PL_JSON_STRING, !usual, "pre_tokenizer", &x, err));
    const char *value = x ? json_string_value(x) : usual ? usual : "";
    for (int32_t i = 0; i < 5; i++) {
        if (strcmp(value, name[i][0]) != 0 && strcmp(value, name[i][1]) != 0) continue;
        *behavior = i;
        return PL_OK;
    }
    return unknown("behavior", value, err);
}

static int add_step(pl_tok *t, pl_split **s, int32_t kind, pl_err *err)
{
    if (t->n_split == PL_TOK_MAX_STEPS)
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: more than %d pre-tokenizers", PL_TOK_MAX_STEPS);
    *s = &t->split[t->n_split++];
    (*s)->kind = kind;
    return PL_OK;
}

static int byte_level(pl_tok *t, const json_t *o, pl_err *err)
{
    static const char what[] = "pre_tokenizer ByteLevel";
    bool space, use_regex;
    pl_split *s = NULL;
    PL_TRY(pl_json_flag(o, "add_prefix_space", true, what, &space, err));
    PL_TRY(pl_json_flag(o, "use_regex", true, what, &use_regex, err));
    PL_TRY(add_step(t, &s, PL_SPLIT_BYTES, err));
    s->prepend = space ? PL_PREPEND_ALWAYS : PL_PREPEND_NEVER;
    s->behavior = PL_ISOLATED;
    return use_regex ? pl_regex_new(&s->re, pl_gpt2_pattern, (int64_t)strlen(pl_gpt2_pattern), false, err) : PL_OK;
}

/* How the mark is put in front: newer files say it by prepend_scheme, older ones by add_prefix_space. */
static int get_scheme(const json_t *o, const char *what, int32_t *scheme, pl_err *err)
{
    json_t *x;
    bool space;
    PL_TRY(pl_json_flag(o, "add_prefix_space", true, what, &space, err));
    PL_TRY(pl_json_get(o, "prepend_scheme", PL_JSON_STRING, false, what, &x, err));
    const char *s = x ? json_string_value(x) : "always";
    if (!strcmp(s, "always"))
        *scheme = PL_PREPEND_ALWAYS;
    else if (!strcmp(s, "first"))
        *scheme = PL_PREPEND_FIRST;
    else if (!strcmp(s, "never"))
        *scheme = PL_PREPEND_NEVER;
    else
        return unknown("prepend_scheme", s, err);
    if (!space) *scheme = PL_PREPEND_NEVER;
    return PL_OK;
}

static int get_mark(const json_t *o, const char *key, const char *what, const char *usual, pl_buf *out, pl_err *err)
{
    if (usual && !json_object_get(o, key)) return pl_buf_puts(out, usual, err);
    PL_TRY(get_text(o, key, what, out, err));
    return out->n >= 1 && out->n == pl_utf8_size((uint8_t)out->p[0])
               ? PL_OK
               : pl_fail(err, PL_EFORMAT, "tokenizer.json: %s: '%s' is not one character", what, key);
}

static int metaspace(pl_tok *t, const json_t *o, pl_err *err)
{
    static const char what[] = "pre_tokenizer Metaspace";
    pl_split *s = NULL;
    pl_buf mark = {0};
    bool cut;
    PL_TRY(add_step(t, &s, PL_SPLIT_METASPACE, err));
    PL_TRY(get_scheme(o, what, &s->prepend, err));
    PL_TRY(pl_json_flag(o, "split", true, what, &cut, err));
    int rc = get_mark(o, "replacement", what, "\xe2\x96\x81", &mark, err);
    if (rc >= 0) {
        s->n_mark = mark.n;
        memcpy(s->mark, mark.p, (size_t)mark.n);
        s->behavior = PL_MERGED_WITH_NEXT;
        if (cut) rc = pl_regex_new(&s->re, s->mark, s->n_mark, true, err);
    }
    pl_buf_free(&mark);
    return rc;
}

static int split(pl_tok *t, const json_t *o, pl_err *err)
{
    json_t *text;
    bool literal, invert;
    int32_t behavior;
    PL_TRY(get_pattern(o, "pre_tokenizer Split", &text, &literal, err));
    PL_TRY(get_behavior(o, NULL, &behavior, err));
    PL_TRY(pl_json_flag(o, "invert", false, "pre_tokenizer Split", &invert, err));
    return pl_tok_add_split(t, json_string_value(text), (int64_t)json_string_length(text), literal, behavior, invert,
                            err);
}

static int by_pattern(pl_tok *t, const char *pattern, int32_t behavior, bool invert, pl_err *err)
{
    return pl_tok_add_split(t, pattern, (int64_t)strlen(pattern), false, behavior, invert, err);
}

int pl_json_pre_tokenizer(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err)
{
    static const char what[] = "pre_tokenizer", punctuation[] = "[!-/:-@\\[-`{-~\\p{P}]", spaces[] = "\\s";
    const char *type;
    json_t *x;
    PL_TRY(pl_json_type(o, what, &type, err));
    if (!strcmp(type, "Sequence")) return each(t, o, "pretokenizers", what, depth, pl_json_pre_tokenizer, err);
    if (!strcmp(type, "ByteLevel")) return byte_level(t, o, err);
    if (!strcmp(type, "Metaspace")) return metaspace(t, o, err);
    if (!strcmp(type, "Split")) return split(t, o, err);
    if (!strcmp(type, "Whitespace"))
        return by_pattern(t, "[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+", PL_REMOVED, true, err);
    if (!strcmp(type, "WhitespaceSplit")) return by_pattern(t, spaces, PL_REMOVED, false, err);
    if (!strcmp(type, "BertPreTokenizer")) {
        PL_TRY(by_pattern(t, spaces, PL_REMOVED, false, err));
        return by_pattern(t, punctuation, PL_ISOLATED, false, err);
    }
    if (!strcmp(type, "Digits")) {
        bool alone;
        PL_TRY(pl_json_flag(o, "individual_digits", false, what, &alone, err));
        return by_pattern(t, "\\p{N}", alone ? PL_ISOLATED : PL_CONTIGUOUS, false, err);
    }
    if (!strcmp(type, "Punctuation")) {
        int32_t behavior;
        PL_TRY(get_behavior(o, "Isolated", &behavior, err));
        return by_pattern(t, punctuation, behavior, false, err);
    }
    if (!strcmp(type, "CharDelimiterSplit")) {
        PL_TRY(pl_json_get(o, "delimiter", PL_JSON_STRING, true, what, &x, err));
        if (!json_string_length(x)) return pl_fail(err, PL_EFORMAT, "tokenizer.json: %s: an empty delimiter", what);
        return pl_tok_add_split(t, json_string_value(x), (int64_t)json_string_length(x), true, PL_REMOVED, false, err);
    }
    if (!strcmp(type, "FixedLength")) {
        pl_split *s = NULL;
        PL_TRY(pl_json_get(o, "length", PL_JSON_INT, false, what, &x, err));
        const json_int_t n = x ? json_integer_value(x) : 5;
        if (n < 1 || n > INT32_MAX)
            return pl_fail(err, PL_EFORMAT, "tokenizer.json: %s: length %lld, want 1 or more", what, (long long)n);
        PL_TRY(add_step(t, &s, PL_SPLIT_FIXED, err));
        s->length = (int32_t)n;
        return PL_OK;
    }
    return unknown(what, type, err);
}

static int get_count(const json_t *o, const char *key, int32_t *n, pl_err *err)
{
    json_t *x;
    PL_TRY(pl_json_get(o, key, PL_JSON_INT, false, "decoder Strip", &x, err));
    const json_int_t v = x ? json_integer_value(x) : 0;
    if (v < 0 || v > INT32_MAX / 8)
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: decoder Strip: %s is %lld, want 0 or more", key, (long long)v);
    *n = (int32_t)v;
    return PL_OK;
}

int pl_json_decoder(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err)
{
    static const char what[] = "decoder";
    const char *type;
    PL_TRY(pl_json_type(o, what, &type, err));
    if (!strcmp(type, "Sequence")) return each(t, o, "decoders", what, depth, pl_json_decoder, err);
    if (t->n_decode == PL_TOK_MAX_STEPS)
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: more than %d decoders", PL_TOK_MAX_STEPS);
    pl_decode *d = &t->decode[t->n_decode++];
    if (!strcmp(type, "ByteLevel"))
        d->kind = PL_DECODE_BYTES;
    else if (!strcmp(type, "ByteFallback"))
        d->kind = PL_DECODE_BYTE_FALLBACK;
    else if (!strcmp(type, "Fuse"))
        d->kind = PL_DECODE_FUSE;
    else if (!strcmp(type, "Replace")) {
        d->kind = PL_DECODE_REPLACE;
        PL_TRY(get_text(o, "content", what, &d->text, err));
        return pattern_of(o, what, &d->re, err);
    } else if (!strcmp(type, "Strip")) {
        d->kind = PL_DECODE_STRIP;
        PL_TRY(get_mark(o, "content", what, NULL, &d->text, err));
        PL_TRY(get_count(o, "start", &d->start, err));
        return get_count(o, "stop", &d->stop, err);
    } else if (!strcmp(type, "Metaspace")) {
        int32_t scheme;
        d->kind = PL_DECODE_METASPACE;
        PL_TRY(get_mark(o, "replacement", what, "\xe2\x96\x81", &d->text, err));
        PL_TRY(get_scheme(o, what, &scheme, err));
        d->start = scheme != PL_PREPEND_NEVER;
    } else {
        return unknown(what, type, err);
    }
    return PL_OK;
}

static int put_end(pl_tok *t, bool before, int64_t id, pl_err *err)
{
    int32_t *n = before ? &t->n_prefix : &t->n_suffix;
    if (!pl_vocab_has(&t->vocab, id))
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: post_processor: id %lld is no token", (long long)id);
    if (*n == (int32_t)(sizeof t->prefix / sizeof *t->prefix))
        return pl_fail(err, PL_EFORMAT, "tokenizer.json: post_processor: more than %d tokens around a text", *n);
    (before ? t->prefix : t->suffix)[(*n)++] = (int32_t)id;
    return PL_OK;
}

/* single: [{"SpecialToken": {"id": NAME}}, {"Sequence": {"id": "A"}}, ...], special_tokens: {NAME: {"ids": [..]}} */
static int template(pl_tok *t, const json_t *o, pl_err *err)
{
    static const char what[] = "post_processor TemplateProcessing";
    json_t *single, *specials, *piece, *name, *entry, *ids;
    bool before = true;
    PL_TRY(pl_json_get(o, "single", PL_JSON_ARRAY, true, what, &single, err));
    PL_TRY(pl_json_get(o, "special_tokens", PL_JSON_OBJECT, false, what, &specials, err));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *x = json_array_get(single, i);
        if (json_is_object(json_object_get(x, "Sequence"))) {
            if (!before) return pl_fail(err, PL_EFORMAT, "tokenizer.json: %s: the text occurs twice", what);
            before = false;
            continue;
        }
        PL_TRY(pl_json_get(x, "SpecialToken", PL_JSON_OBJECT, true, what, &piece, err));
        PL_TRY(pl_json_get(piece, "id", PL_JSON_STRING, true, what, &name, err));
        PL_TRY(pl_json_get(specials, json_string_value(name), PL_JSON_OBJECT, true, what, &entry, err));
        PL_TRY(pl_json_get(entry, "ids", PL_JSON_ARRAY, true, what, &ids, err));
        for (size_t k = 0; k < json_array_size(ids); k++) {
            const json_t *id = json_array_get(ids, k);
            PL_TRY(put_end(t, before, json_is_integer(id) ? json_integer_value(id) : -1, err));
        }
    }
    return PL_OK;
}

/* ["<s>", 0] under `key` */
static int pair_end(pl_tok *t, const json_t *o, const char *key, bool before, pl_err *err)
{
    json_t *x;
    PL_TRY(pl_json_get(o, key, PL_JSON_ARRAY, true, "post_processor", &x, err));
    const json_t *id = json_array_get(x, 1);
    return put_end(t, before, json_is_integer(id) ? json_integer_value(id) : -1, err);
}

int pl_json_post_processor(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err)
{
    static const char what[] = "post_processor";
    const char *type;
    PL_TRY(pl_json_type(o, what, &type, err));
    if (!strcmp(type, "Sequence")) return each(t, o, "processors", what, depth, pl_json_post_processor, err);
    if (!strcmp(type, "ByteLevel")) return PL_OK; /* only moves offsets */
    if (!strcmp(type, "TemplateProcessing")) return template(t, o, err);
    if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) {
        PL_TRY(pair_end(t, o, "cls", true, err));
        return pair_end(t, o, "sep", false, err);
    }
    return unknown(what, type, err);
}
