/* tok_gguf.c: tokenizers from a GGUF file's metadata. It holds the tables, but of the pipeline only a name
 * (tokenizer.ggml.pre), so this file holds what the names mean: the published split patterns of the model families. */
#include "tok_impl.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(digits) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL
/* words by case: capitals then small letters; marks and letters without case go either way */
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(upper, lower, end) \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" end "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower "*" end
#define NOT_HAN "&&[^\\p{Han}]]"

const char pl_gpt2_pattern[] = GPT2;
const char pl_kimi_pattern[] = "[\\p{Han}]+|" CASED(
    "[" UPPER NOT_HAN, "[" LOWER NOT_HAN, CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL;

/* The alphabets with case that DeepSeek's first tokenizers keep together, and the CJK ranges they keep apart. */
#define CASED_LETTERS                                                                                          \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"            \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}"     \
    "\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}"            \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"          \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"          \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"  \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}" \
    "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"           \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}"            \
    "\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}"            \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"           \
    "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"          \
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"        \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"                     \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

typedef struct family {
    const char *names;      /* separated by spaces */
    const char *pattern[6]; /* one after another, what they match and what lies between stay pieces */
    bool nfc, ignore_merges, bos;
} family;

static const family families[] = {
    {.names = "default", .pattern = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names =
         "gpt-2 gpt2 phi-2 mpt olmo jais jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum roberta-bpe",
     .pattern = {GPT2}},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b", .pattern = {"\\p{N}", GPT2}},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .pattern = {CL100K("\\p{N}{1,3}")},
     .ignore_merges = true,
     .bos = true},
    {.names = "dbrx smaug-bpe glm4 chatglm-bpe", .pattern = {CL100K("\\p{N}{1,3}")}},
    {.names = "qwen2 qwen3 deepseek-r1-qwen megrez", .pattern = {CL100K("\\p{N}")}, .nfc = true},
    {.names = "stablelm2 hunyuan grok-2", .pattern = {CL100K("\\p{N}")}},
    {.names = "gpt-4o o200k llama4 gpt-oss",
     .ignore_merges = true,
     .pattern = {CASED("[" UPPER "]", "[" LOWER "]",
                       CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL}},
    {.names = "tekken",
     .ignore_merges = true,
     .bos = true,
     .pattern = {CASED("[" UPPER "]", "[" LOWER "]", "") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL}},
    {.names = "kimi-k2", .pattern = {pl_kimi_pattern}, .ignore_merges = true},
    {.names = "deepseek-v3 hunyuan-dense",
     .pattern = {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
                 "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
                 "?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL}},
    /* `(?<!\s)` changes nothing, but keeps a long run of spaces from being tried again from each of them */
    {.names = "deepseek-llm",
     .pattern = {"[\\r\\n]", "\\s?[" CASED_LETTERS "]+",
                 "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
                 "(?<!\\s)\\s+$", CJK, "\\p{N}+"}},
    {.names = "deepseek-coder", .pattern = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}},
    {.names = "falcon", .pattern = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = "bloom", .pattern = {" ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"}},
    {.names = "seed-coder",
     .pattern = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" TAIL}},
};
enum { PL_N_FAMILIES = sizeof families / sizeof *families };

static const family *find_family(const char *p, int64_t n)
{
    for (int32_t i = 0; i < PL_N_FAMILIES; i++) {
        for (const char *s = families[i].names; *s;) {
            const size_t k = strcspn(s, " ");
            if ((int64_t)k == n && !memcmp(s, p, k)) return &families[i];
            s += k + (s[k] == ' ');
        }
    }
    return NULL;
}

/* The first name of every family: the rest of a line of 200 letters. */
static int unknown_pre(const pl_str *pre, pl_err *err)
{
    char list[160];
    size_t n = 0;
    for (int32_t i = 0; i < PL_N_FAMILIES; i++) {
        const size_t k = strcspn(families[i].names, " ");
        if (n + k + 2 >= sizeof list) break;
        memcpy(list + n, families[i].names, k);
        n += k;
        list[n++] = ' ';
    }
    list[n ? n - 1 : 0] = 0;
    return pl_fail(err, PL_EFORMAT, "gguf: pre-tokenizer '%.*s', want one of: %s", (int)pl_min(pre->n, 24), pre->p,
                   list);
}

static bool is(const pl_str *s, const char *text)
{
    return s->n == (int64_t)strlen(text) && !memcmp(s->p, text, strlen(text));
}

static int32_t type_of(const pl_tok_vocab *v, int64_t i) { return v->type ? v->type[i] : PL_TOKEN_NORMAL; }

static int add_tokens(pl_tok *t, const pl_tok_vocab *v, bool llama, pl_err *err)
{
    pl_buf bytes = {0};
    int rc = PL_OK;
    for (int64_t i = 0; i < v->n_tokens && rc >= 0; i++) {
        const char *p = v->token[i].p;
        int64_t n = v->token[i].n;
        bytes.n = 0;
        if (t->raw_bytes && type_of(v, i) == PL_TOKEN_NORMAL) {
            rc = pl_utf8_valid(p, n) == n ? pl_chars_to_bytes(&bytes, p, n, err) : 0;
            if (rc > 0) {
                p = bytes.p;
                n = bytes.n;
            }
        }
        if (rc >= 0 && pl_utf8_valid(p, n) != n && p != bytes.p)
            rc = pl_fail(err, PL_EFORMAT, "gguf: token %lld is not UTF-8", (long long)i);
        if (rc >= 0) rc = pl_vocab_add(&t->vocab, i, p, n, true, err);
        const int32_t type = type_of(v, i);
        t->byte_fallback |= llama && type == PL_TOKEN_BYTE;
        if (rc < 0 || !n || (type != PL_TOKEN_CONTROL && type != PL_TOKEN_UNKNOWN && type != PL_TOKEN_USER)) continue;
        const bool user = type == PL_TOKEN_USER;
        const pl_added a = {.id = (int32_t)i, .special = !user, .gated = !user, .normalized = user && llama};
        rc = pl_tok_add(t, &a, p, n, err);
        if (type == PL_TOKEN_UNKNOWN && t->unk < 0) t->unk = (int32_t)i;
    }
    pl_buf_free(&bytes);
    return rc;
}

static int add_merges(pl_tok *t, const pl_tok_vocab *v, pl_err *err)
{
    pl_buf joined = {0};
    int rc = pl_pairs_reserve(&t->pairs, v->n_merges, err);
    for (int64_t i = 0; i < v->n_merges && rc >= 0; i++) {
        const pl_str *m = &v->merge[i];
        const char *space = m->n > 1 ? memchr(m->p + 1, ' ', (size_t)m->n - 1) : NULL;
        const int64_t n = space ? space - m->p : 0;
        const int32_t left = space ? pl_vocab_find(&t->vocab, m->p, n) : -1,
                      right = space ? pl_vocab_find(&t->vocab, space + 1, m->n - n - 1) : -1;
        joined.n = 0;
        if (space && (rc = pl_buf_put(&joined, m->p, n, err)) >= 0)
            rc = pl_buf_put(&joined, space + 1, m->n - n - 1, err);
        if (rc < 0) break;
        const int32_t id = left >= 0 && right >= 0 ? pl_vocab_find(&t->vocab, joined.p, joined.n) : -1;
        if (id < 0)
            rc = pl_fail(err, PL_EFORMAT, "gguf: merge %lld '%.*s' names an unknown token", (long long)i,
                         (int)pl_min(m->n, 60), m->p);
        else
            pl_pairs_put(&t->pairs, left, right, (int32_t)i, id);
    }
    pl_buf_free(&joined);
    return rc;
}

/* Scores as ranks: the same order, highest score first. */
static int add_ranks(pl_tok *t, const pl_tok_vocab *v, pl_err *err)
{
    t->rank = malloc((size_t)v->n_tokens * sizeof *t->rank);
    if (!t->rank) return pl_fail(err, PL_ENOMEM, "gguf: no memory for %lld ranks", (long long)v->n_tokens);
    for (int64_t i = 0; i < v->n_tokens; i++) {
        const int32_t type = type_of(v, i);
        const bool merges =
            type == PL_TOKEN_NORMAL || ((type == PL_TOKEN_USER || type == PL_TOKEN_UNUSED) && !t->raw_bytes);
        if (v->score && isnan(v->score[i]))
            return pl_fail(err, PL_EFORMAT, "gguf: token %lld has a score that is no number", (long long)i);
        const uint32_t bits = v->score ? pl_f32_bits(v->score[i] + 0.0f) : 0;
        const uint32_t descending = bits >> 31 ? bits : ~bits & 0x7fffffffu;
        t->rank[i] = !merges ? PL_NO_RANK : v->score && !t->raw_bytes ? descending : (uint32_t)i;
    }
    return PL_OK;
}

static int add_byte_level(pl_tok *t, const pl_tok_vocab *v, bool *bos, pl_err *err)
{
    const pl_str usual = {"default", 7}, *pre = v->pre.n ? &v->pre : &usual;
    const family *f = find_family(pre->p, pre->n);
    if (!f) return unknown_pre(pre, err);
    *bos = f->bos;
    t->ignore_merges = f->ignore_merges || t->raw_bytes;
    if (f->nfc) t->norm[t->n_norm++].kind = PL_NORM_NFC;
    for (int32_t i = 0; i < 6 && f->pattern[i]; i++)
        PL_TRY(pl_tok_add_split(t, f->pattern[i], (int64_t)strlen(f->pattern[i]), false, PL_ISOLATED, false, err));
    if (t->raw_bytes) return PL_OK;
    t->split[t->n_split++] = (pl_split){.kind = PL_SPLIT_BYTES, .behavior = PL_ISOLATED};
    t->decode[t->n_decode++].kind = PL_DECODE_BYTES;
    return PL_OK;
}

static int add_sentencepiece(pl_tok *t, const pl_tok_vocab *v, pl_err *err)
{
    static const char mark[] = "\xe2\x96\x81";
    const bool prefix = v->add_space_prefix != 0;
    t->fuse_unk = true;
    if (prefix) {
        t->norm[0].kind = PL_NORM_PREPEND;
        t->n_norm = t->name_norm = 1;
        PL_TRY(pl_buf_puts(&t->norm[0].text, mark, err));
    }
    pl_norm *spaces = &t->norm[t->n_norm++];
    spaces->kind = PL_NORM_REPLACE;
    PL_TRY(pl_buf_puts(&spaces->text, mark, err));
    PL_TRY(pl_regex_new(&spaces->re, " ", 1, true, err));
    t->n_decode = prefix ? 4 : 3;
    pl_decode *d = t->decode;
    d[0].kind = PL_DECODE_REPLACE;
    PL_TRY(pl_buf_puts(&d[0].text, " ", err));
    PL_TRY(pl_regex_new(&d[0].re, mark, 3, true, err));
    d[1].kind = PL_DECODE_BYTE_FALLBACK;
    d[2].kind = PL_DECODE_FUSE;
    if (!prefix) return PL_OK;
    d[3] = (pl_decode){.kind = PL_DECODE_STRIP, .start = 1};
    return pl_buf_puts(&d[3].text, " ", err);
}

static int build(pl_tok *t, const pl_tok_vocab *v, pl_err *err)
{
    const bool llama = is(&v->model, "llama");
    bool bos = llama;
    if (!llama && !is(&v->model, "gpt2"))
        return pl_fail(err, PL_EFORMAT, "gguf: tokenizer model '%.*s', want gpt2 or llama", (int)pl_min(v->model.n, 40),
                       v->model.p);
    if (v->n_tokens <= 0 || v->n_tokens > PL_TOK_MAX_IDS)
        return pl_fail(err, PL_EFORMAT, "gguf: %lld tokens, want 1 .. %d", (long long)v->n_tokens, PL_TOK_MAX_IDS);
    if (llama && !v->score) return pl_fail(err, PL_EFORMAT, "gguf: tokenizer model 'llama' without scores");
    t->raw_bytes = !llama && !v->n_merges; /* Kimi: ranks are ids, as in tiktoken */
    PL_TRY(add_tokens(t, v, llama, err));
    if (v->unk >= 0 && v->unk < v->n_tokens && llama) t->unk = (int32_t)v->unk;
    if (llama || t->raw_bytes)
        PL_TRY(add_ranks(t, v, err));
    else
        PL_TRY(add_merges(t, v, err));
    PL_TRY(llama ? add_sentencepiece(t, v, err) : add_byte_level(t, v, &bos, err));
    t->bos = v->bos >= 0 && v->bos < v->n_tokens ? (int32_t)v->bos : -1;
    t->eos = v->eos >= 0 && v->eos < v->n_tokens ? (int32_t)v->eos : -1;
    if ((v->add_bos < 0 ? bos : v->add_bos > 0) && t->bos >= 0) t->prefix[t->n_prefix++] = t->bos;
    if (v->add_eos > 0 && t->eos >= 0) t->suffix[t->n_suffix++] = t->eos;
    return pl_tok_finish(t, err);
}

int pl_tok_open_gguf(pl_tok **out, const pl_tok_vocab *v, pl_err *err)
{
    pl_tok *t = NULL;
    int rc = pl_tok_new(&t, err);
    if (rc >= 0) rc = build(t, v, err);
    if (rc < 0)
        pl_tok_close(t);
    else
        *out = t;
    return rc;
}
