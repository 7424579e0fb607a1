#ifndef PL_TOK_IMPL_H
#define PL_TOK_IMPL_H
/* What the files of the tokenizer share. A text becomes ids in five steps:
 *   1. names of added tokens are cut out of the raw text (a trie scan)           tok.c
 *   2. what lies between them is normalised                                      tok_norm.c
 *   3. names of "normalized" added tokens are cut out of that                    tok.c
 *   4. what lies between them is split by the pre-tokenizers, one after another  tok_split.c
 *   5. each piece is merged by the model                                         tok_bpe.c
 * A reader (tok_json, tok_hf, tok_gguf) fills a pl_tok and calls pl_tok_finish; after that it never changes. All
 * that a call writes to is in its pl_tok_call. */
#include "mem.h"
#include "tok.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    PL_TOK_MAX_IDS = 1 << 22,  /* ids of a vocabulary; the largest published ones have 2^18 */
    PL_TOK_MAX_TEXT = 1 << 30, /* bytes of one text */
    PL_TOK_MAX_STEPS = 32,     /* normalizers, or pre-tokenizers, after nesting is undone */
    PL_TOK_MAX_NAME = 4096     /* bytes of an added token */
};

/* A growing run of bytes. */
typedef struct pl_buf {
    char *p;
    int32_t n, cap;
} pl_buf;
PL_MUST int pl_buf_put(pl_buf *b, const void *p, int64_t n, pl_err *err);
PL_MUST int pl_buf_puts(pl_buf *b, const char *s, pl_err *err);
PL_MUST int pl_buf_char(pl_buf *b, uint32_t c, pl_err *err); /* one code point as UTF-8 */
void pl_buf_free(pl_buf *b);

/* utf-8 (tok_utf8.c) */
int64_t pl_utf8_valid(const char *p, int64_t n); /* length of the longest valid prefix, in bytes */
int32_t pl_utf8_seq(const uint8_t *p,
                    int64_t n); /* bytes of the sequence at p: >0 whole; <0 its valid beginning, minus; 0: bad byte */
uint32_t pl_utf8_get(const char *p, int32_t *n); /* the code point at p, which is valid; its bytes */
int32_t pl_utf8_put(char *p, uint32_t c);        /* writes at most 4 bytes, returns how many */
PL_INLINE int32_t pl_utf8_size(uint8_t first) { return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4; }
bool pl_is_space(uint32_t c); /* White_Space */
bool pl_is_word(uint32_t c);  /* letter, mark, number, connector */
int32_t pl_hex_digit(char c); /* -1: none */
/* The byte-level alphabet: every byte has a printable character that stands for it in vocabularies. */
uint32_t pl_byte_char(uint8_t b);
int32_t pl_char_byte(uint32_t c); /* -1: stands for none */
PL_MUST int pl_bytes_to_chars(pl_buf *out, const char *p, int64_t n, pl_err *err);
int pl_chars_to_bytes(pl_buf *out, const char *p, int64_t n, pl_err *err); /* 1; 0: a character stands for no byte */

/* regular expressions (tok_regex.c): patterns as Oniguruma and tiktoken write them, run by PCRE2 */
typedef struct pl_regex pl_regex;
PL_MUST int pl_regex_new(pl_regex **out, const char *pattern, int64_t n, bool literal, pl_err *err);
PL_MUST int pl_regex_translate(pl_buf *out, const char *pattern, int64_t n, pl_err *err);
void pl_regex_free(pl_regex *re);
typedef struct pl_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    int64_t n_text; /* bytes of the longest text to come: sets the limit of steps */
} pl_matcher;
void pl_matcher_free(pl_matcher *m);
/* The first match in text[from, n): 1 and its bounds, 0 if there is none, or a negative code. */
PL_MUST int pl_regex_find(const pl_regex *re, pl_matcher *m, const char *text, int64_t n, int64_t from, int64_t *begin,
                          int64_t *end, pl_err *err);

/* vocabulary (tok_vocab.c): id to spelling and back; pairs that merge; names of added tokens as a trie */
typedef struct pl_word {
    uint32_t at;
    int32_t n;
} pl_word; /* n < 0: no such id */
typedef struct pl_vocab {
    pl_buf text;
    pl_word *word; /* [n_ids] */
    int32_t n_ids, cap_ids;
    int32_t *slot; /* hash table of ids, -1 empty */
    int32_t n_slots, n_used, longest;
} pl_vocab;
PL_MUST int pl_vocab_add(pl_vocab *v, int64_t id, const char *p, int64_t n, bool keep_first, pl_err *err);
int32_t pl_vocab_find(const pl_vocab *v, const char *p, int64_t n);
void pl_vocab_free(pl_vocab *v);
PL_INLINE bool pl_vocab_has(const pl_vocab *v, int64_t id) { return id >= 0 && id < v->n_ids && v->word[id].n >= 0; }
PL_INLINE const char *pl_vocab_text(const pl_vocab *v, int32_t id)
{
    return v->text.p ? v->text.p + v->word[id].at : ""; /* no text: the empty token is the only one */
}

typedef struct pl_pair {
    uint64_t key;
    int32_t rank, id;
} pl_pair; /* key: left id << 32 | right id */
typedef struct pl_pairs {
    pl_pair *slot;
    int32_t n_slots, n_used;
} pl_pairs;
PL_MUST int pl_pairs_reserve(pl_pairs *t, int64_t n, pl_err *err);
void pl_pairs_put(pl_pairs *t, int32_t left, int32_t right, int32_t rank, int32_t id); /* a later one replaces */
PL_INLINE const pl_pair *pl_pairs_get(const pl_pairs *t, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (!t->n_slots) return NULL;
    for (uint64_t i = key * 0x9e3779b97f4a7c15u >> 32;; i++) {
        const pl_pair *p = &t->slot[i & (uint64_t)(t->n_slots - 1)];
        if (p->id < 0) return NULL;
        if (p->key == key) return p;
    }
}

typedef struct pl_trie_edge {
    uint32_t key;
    int32_t to;
} pl_trie_edge; /* key: node << 8 | byte */
typedef struct pl_trie {
    int32_t first[256]; /* node after the first byte, 0: none */
    pl_trie_edge *slot;
    int32_t n_slots, n_edges;
    int32_t *value; /* [n_nodes] added token that ends here, or -1 */
    int32_t n_nodes, cap_nodes;
} pl_trie;
PL_MUST int pl_trie_add(pl_trie *t, const char *p, int64_t n, int32_t value, pl_err *err);
int64_t pl_trie_longest(const pl_trie *t, const char *p, int64_t n, int32_t *value); /* bytes; 0: no match */
void pl_trie_free(pl_trie *t);

/* an added token */
typedef struct pl_added {
    int32_t id;
    bool special; /* hidden when decoding without PL_TOK_SPECIALS */
    bool gated;   /* matched only with PL_TOK_SPECIALS */
    bool normalized, lstrip, rstrip, single_word;
    bool outside;              /* the model does not know it: only its name in a text gives it */
    int32_t shown_at, n_shown; /* its normalised name in pl_tok.shown, which is what decoding starts from */
} pl_added;

/* normalizers */
enum {
    PL_NORM_NFC,
    PL_NORM_NFD,
    PL_NORM_NFKC,
    PL_NORM_NFKD,
    PL_NORM_LOWERCASE,
    PL_NORM_STRIP,
    PL_NORM_STRIP_ACCENTS,
    PL_NORM_PREPEND,
    PL_NORM_REPLACE,
    PL_NORM_BYTES,
    PL_NORM_NMT
};
typedef struct pl_norm {
    int32_t kind;
    bool left, right; /* strip */
    pl_regex *re;     /* replace */
    pl_buf text;      /* prepend, replace: what is written */
} pl_norm;
/* Runs all steps over in; the result is in *out (which may be `in` itself if nothing changed). */
PL_MUST int pl_normalize(const pl_norm *step, int32_t n_steps, pl_matcher *m, pl_buf scratch[2], const char **text,
                         int64_t *n, pl_err *err);

/* pre-tokenizers */
enum { PL_SPLIT_REGEX, PL_SPLIT_BYTES, PL_SPLIT_METASPACE, PL_SPLIT_FIXED };
enum { PL_REMOVED, PL_ISOLATED, PL_MERGED_WITH_PREVIOUS, PL_MERGED_WITH_NEXT, PL_CONTIGUOUS };
enum { PL_PREPEND_NEVER, PL_PREPEND_FIRST, PL_PREPEND_ALWAYS };
typedef struct pl_split {
    int32_t kind;
    int32_t behavior; /* what becomes of the matches */
    int32_t prepend;  /* bytes: NEVER or ALWAYS a space; metaspace: its mark */
    int32_t length;   /* fixed: characters a piece */
    bool invert;      /* what lies between matches counts as the match */
    pl_regex *re;     /* NULL: no split */
    char mark[4];     /* metaspace */
    int32_t n_mark;
} pl_split;

/* ids to text: steps per token, until the tokens are fused to one text */
enum {
    PL_DECODE_REPLACE,
    PL_DECODE_BYTES,
    PL_DECODE_BYTE_FALLBACK,
    PL_DECODE_FUSE,
    PL_DECODE_STRIP,
    PL_DECODE_METASPACE
};
typedef struct pl_decode {
    int32_t kind;
    pl_regex *re;        /* replace: pattern */
    pl_buf text;         /* replace: by what; strip: the character; metaspace: its mark */
    int32_t start, stop; /* strip: how many; metaspace: start = 1 drops the marks of the first token */
} pl_decode;

#define PL_NO_RANK UINT32_MAX
struct pl_tok {
    int32_t refs;
    pl_vocab vocab;
    /* model */
    pl_pairs pairs; /* merges by ids */
    uint32_t *rank; /* [n_ids] instead of pairs: what joins to a token merges, lowest rank first; PL_NO_RANK never */
    int32_t byte_id[256]; /* token of each byte, -1: none */
    int32_t unk;          /* -1: characters without a token are dropped */
    bool byte_level;      /* pieces are bytes, spelled in the byte-level alphabet */
    bool raw_bytes;       /* pieces are bytes, spelled as they are (tiktoken) */
    bool byte_fallback;   /* characters without a token become <0xXX> tokens */
    bool ignore_merges;   /* a piece that is a token needs no merges */
    bool fuse_unk;
    bool inner_space[256]; /* last bytes of characters that some token has before an inner U+2581 */
    bool cut_at_space;     /* no merge crosses the boundary before a U+2581, except after inner_space */
    bool alphabet;         /* pieces are spelled in the byte-level alphabet by a step before the last */
    /* pipeline */
    pl_added *added;
    int32_t n_added, cap_added;
    int32_t *added_of; /* [n_ids] index into added, or -1 */
    pl_buf shown;
    pl_trie raw, normal; /* names matched before and after normalisation */
    pl_norm norm[PL_TOK_MAX_STEPS];
    pl_split split[PL_TOK_MAX_STEPS];
    pl_decode decode[PL_TOK_MAX_STEPS];
    int32_t n_norm, n_split, n_decode;
    int32_t name_norm;                                /* first normalizer that names of added tokens pass */
    int32_t prefix[8], suffix[8], n_prefix, n_suffix; /* ids around a text */
    int32_t bos, eos;
    bool space_between; /* no decoder given: tokens are joined by spaces */
    /* decoding */
    pl_buf bytes;           /* what each id adds to a text */
    int64_t *bytes_at;      /* [n_ids + 1] */
    int32_t n_token_steps;  /* decode steps that work on single tokens */
    const pl_decode *strip; /* drops characters from the start of the whole text, or NULL */
    bool first_differs;     /* the first token of a text is decoded in its own way */
    bool bad_byte_wise;     /* every bad byte gives a U+FFFD of its own, not every bad run */
};
PL_MUST int pl_tok_new(pl_tok **out, pl_err *err);
PL_MUST int pl_tok_add(pl_tok *t, const pl_added *a, const char *name, int64_t n, pl_err *err);
PL_MUST int pl_tok_finish(pl_tok *t, pl_err *err); /* checks and derives what the calls need */
PL_MUST int pl_tok_prepare_decode(pl_tok *t, pl_err *err);
/* Adds a pre-tokenizer that splits by a pattern. */
PL_MUST int pl_tok_add_split(pl_tok *t, const char *pattern, int64_t n, bool literal, int32_t behavior, bool invert,
                             pl_err *err);
extern const char pl_gpt2_pattern[], pl_kimi_pattern[]; /* tok_gguf.c */

/* readers of tokenizer.json (tok_json.c the whole, tok_json_steps.c the pipeline, tok_json_model.c the tables) */
struct json_t;
typedef struct json_t pl_json;
PL_MUST int pl_json_parse(pl_json **out, const char *text, int64_t n, bool is_config, pl_err *err);
void pl_json_free(pl_json *j);
/* A member: NULL in *out if it is absent or null and not `needed`; an error if it has another type. */
enum { PL_JSON_OBJECT, PL_JSON_ARRAY, PL_JSON_STRING, PL_JSON_INT, PL_JSON_BOOL };
PL_MUST int pl_json_get(const pl_json *o, const char *key, int32_t type, bool needed, const char *what, pl_json **out,
                        pl_err *err);
PL_MUST int pl_json_flag(const pl_json *o, const char *key, bool usual, const char *what, bool *out, pl_err *err);
PL_MUST int pl_json_type(const pl_json *o, const char *what, const char **type, pl_err *err);
PL_MUST int pl_json_model(pl_tok *t, const pl_json *model, pl_err *err);
PL_MUST int pl_json_added(pl_tok *t, const pl_json *list, pl_err *err);
PL_MUST int pl_json_normalizer(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err);
PL_MUST int pl_json_pre_tokenizer(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err);
PL_MUST int pl_json_decoder(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err);
PL_MUST int pl_json_post_processor(pl_tok *t, const pl_json *o, int32_t depth, pl_err *err);
/* tokenizer_config.json: added tokens that are missing so far, and the ids at both ends. */
PL_MUST int pl_json_config_added(pl_tok *t, const pl_json *config, bool gate_all, pl_err *err);
PL_MUST int pl_json_config_ends(pl_tok *t, const pl_json *config, pl_err *err);

/* one encode call */
typedef struct pl_symbol {
    int32_t id, prev, next, at, n;
} pl_symbol; /* n: bytes; 0: merged away */
typedef struct pl_merge {
    uint64_t key;
    int32_t n, id;
} pl_merge; /* key: rank << 32 | position */
typedef struct pl_cached {
    uint8_t n, n_ids;
    char text[22];
    int32_t id[10];
} pl_cached; /* one cache line */
typedef struct pl_tok_call {
    const pl_tok *t;
    pl_ids *ids;
    int32_t flags;
    pl_matcher matcher;
    pl_buf norm[2], name, prefixed[PL_TOK_MAX_STEPS], mapped[PL_TOK_MAX_STEPS];
    pl_symbol *symbol;
    pl_merge *heap;
    int32_t n_symbols, cap_symbols, n_heap, cap_heap;
    pl_cached *cache; /* [PL_TOK_CACHE], or NULL */
    pl_err *err;
} pl_tok_call;
enum { PL_TOK_CACHE = 8192 };
PL_MUST int pl_split_run(pl_tok_call *c, int32_t step, const char *p, int64_t n, bool at_start);
PL_MUST int pl_bpe_piece(pl_tok_call *c, const char *p, int64_t n); /* valid UTF-8 */
PL_MUST int pl_bpe_bytes(pl_tok_call *c, const char *p, int64_t n); /* anything */
PL_MUST int pl_ids_push(pl_ids *ids, int32_t id, pl_err *err);
#endif
