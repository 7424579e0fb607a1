/* tok_regex.c: the patterns of pre-tokenizers. They are written for Oniguruma (tokenizer.json) or Rust's fancy-regex
 * (tiktoken) and run here by PCRE2, which compiles some of their syntax to something else without a word. So a pattern
 * is read and written anew: scripts as \p{sc:..}, white space as Unicode defines it, `A&&[^B]` by set arithmetic or a
 * lookahead, and whatever is not known here is an error at load. */
#include "tok_impl.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* The general categories: two letters each, in the order of the mask's bits. */
static const char leaf[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
enum { PL_N_LEAVES = 30, PL_ALL_LEAVES = (1 << PL_N_LEAVES) - 1, PL_MAX_DEPTH = 32, PL_MAX_PATTERN = 1 << 16 };

#define SPACES \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

/* A set of characters: categories and other items of a PCRE2 class, or (group) text that matches one character. */
typedef struct set {
    bool negated, group;
    uint32_t mask;
    pl_buf items;
} set;

typedef struct reader {
    const char *p;
    int64_t n, i;
    int32_t depth;
    uint64_t caseless; /* bit per open group */
    pl_buf *out;
    pl_err *err;
} reader;

static int fail(reader *r, const char *what)
{
    return pl_fail(r->err, PL_EFORMAT, "tokenizer: pattern '%.*s': %s at byte %lld", (int)pl_min(r->n, 80), r->p, what,
                   (long long)r->i);
}

static bool at(const reader *r, const char *s)
{
    const int64_t n = (int64_t)strlen(s);
    return r->n - r->i >= n && !memcmp(r->p + r->i, s, (size_t)n);
}

static bool take(reader *r, const char *s)
{
    if (!at(r, s)) return false;
    r->i += (int64_t)strlen(s);
    return true;
}

static uint32_t next_char(reader *r)
{
    int32_t k;
    const uint32_t c = pl_utf8_get(r->p + r->i, &k);
    r->i += k;
    return c;
}

static int put_char(pl_buf *b, uint32_t c, pl_err *err)
{
    char s[16];
    if (c < 0x80 && isalnum((int)c))
        snprintf(s, sizeof s, "%c", (int)c);
    else
        snprintf(s, sizeof s, "\\x{%x}", c);
    return pl_buf_puts(b, s, err);
}

/* sets */

static uint32_t mask_of(const char *name)
{
    uint32_t mask = 0;
    for (int32_t i = 0; i < PL_N_LEAVES; i++)
        if (name[0] == leaf[2 * i] && (!name[1] || (name[1] == leaf[2 * i + 1] && !name[2]))) mask |= 1u << i;
    return mask;
}

static int put_mask(pl_buf *b, uint32_t mask, pl_err *err)
{
    for (const char *major = "LMNPSZC"; *major; major++) {
        const char name[2] = {*major, 0};
        const uint32_t all = mask_of(name);
        char s[8];
        if ((mask & all) == all) {
            snprintf(s, sizeof s, "\\p{%c}", *major);
            PL_TRY(pl_buf_puts(b, s, err));
            continue;
        }
        for (int32_t i = 0; i < PL_N_LEAVES; i++) {
            if (!(mask & all & 1u << i)) continue;
            snprintf(s, sizeof s, "\\p{%.2s}", leaf + 2 * i);
            PL_TRY(pl_buf_puts(b, s, err));
        }
    }
    return PL_OK;
}

static int put_set(pl_buf *b, const set *s, pl_err *err)
{
    if (s->group && s->negated) PL_TRY(pl_buf_puts(b, "(?:(?!", err));
    if (!s->group) PL_TRY(pl_buf_puts(b, s->negated ? "[^" : "[", err));
    if (!s->group) PL_TRY(put_mask(b, s->mask, err));
    PL_TRY(pl_buf_put(b, s->items.p, s->items.n, err));
    if (!s->group) return pl_buf_puts(b, "]", err);
    return s->negated ? pl_buf_puts(b, ")(?s:.))", err) : PL_OK;
}

static bool only_categories(const set *s) { return !s->group && !s->items.n; }

/* a &= b. `A minus C` with A made of categories is "none of A's other categories, nor C", a plain class: the group
 * that stands for it otherwise costs a frame of the matcher's stack per character. */
static int intersect(set *a, set *b, bool caseless, pl_err *err)
{
    pl_buf text = {0};
    int rc = PL_OK;
    if (only_categories(a) && only_categories(b)) {
        a->mask = (a->negated ? ~a->mask : a->mask) & (b->negated ? ~b->mask : b->mask) & PL_ALL_LEAVES;
        a->negated = false;
        if (a->mask) return PL_OK;
        a->negated = true; /* nothing: not any category */
        a->mask = PL_ALL_LEAVES;
        return PL_OK;
    }
    if (!caseless && only_categories(a) && !b->group && b->negated) {
        a->mask = (b->mask | (a->negated ? a->mask : ~a->mask)) & PL_ALL_LEAVES;
        a->negated = true;
        a->items = b->items;
        b->items = (pl_buf){0};
        return PL_OK;
    }
    if ((rc = pl_buf_puts(&text, "(?:(?=", err)) < 0 || (rc = put_set(&text, b, err)) < 0 ||
        (rc = pl_buf_puts(&text, ")", err)) < 0 || (rc = put_set(&text, a, err)) < 0 ||
        (rc = pl_buf_puts(&text, ")", err)) < 0) {
        pl_buf_free(&text);
        return rc;
    }
    pl_buf_free(&a->items);
    *a = (set){.group = true, .items = text};
    return PL_OK;
}

/* a |= b */
static int unite(set *a, const set *b, pl_err *err)
{
    if (!a->group && !b->group && !b->negated) {
        a->mask |= b->mask;
        return pl_buf_put(&a->items, b->items.p, b->items.n, err);
    }
    if (only_categories(a) && only_categories(b)) {
        a->mask |= ~b->mask & PL_ALL_LEAVES;
        return PL_OK;
    }
    pl_buf text = {0};
    const bool was_empty = only_categories(a) && !a->mask;
    int rc = pl_buf_puts(&text, "(?:", err);
    if (rc >= 0 && !was_empty) rc = put_set(&text, a, err);
    if (rc >= 0 && !was_empty) rc = pl_buf_puts(&text, "|", err);
    if (rc >= 0) rc = put_set(&text, b, err);
    if (rc >= 0) rc = pl_buf_puts(&text, ")", err);
    if (rc < 0) {
        pl_buf_free(&text);
        return rc;
    }
    pl_buf_free(&a->items);
    *a = (set){.group = true, .items = text};
    return PL_OK;
}

/* The name of a property, as it stands and with what counts of it (behind `Script=` or the like): small letters. */
static int read_name(reader *r, bool *negated, char name[48], char plain[48])
{
    int32_t n = 0, k = 0;
    if (r->i < r->n && isalpha((unsigned char)r->p[r->i]))
        name[n++] = r->p[r->i++];
    else if (take(r, "{")) {
        if (take(r, "^")) *negated = !*negated;
        while (r->i < r->n && r->p[r->i] != '}' && n < 40) name[n++] = r->p[r->i++];
        if (!take(r, "}")) return fail(r, "a property without an end");
    }
    name[n] = 0;
    for (int32_t i = 0; i < n; i++) {
        const char c = name[i];
        if (c == '=' || c == ':') k = 0;
        if (strchr("=:_ -", c)) continue;
        if (!isalnum((unsigned char)c)) return fail(r, "an unknown property");
        plain[k++] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    plain[k] = 0;
    return k ? PL_OK : fail(r, "a property without a name");
}

/* \p{Name}, \p{^Name}, \pL after the `\p`. */
static int read_property(reader *r, bool negated, set *s)
{
    static const char *const category[][2] = {{"letter", "L"},
                                              {"mark", "M"},
                                              {"number", "N"},
                                              {"punctuation", "P"},
                                              {"symbol", "S"},
                                              {"separator", "Z"},
                                              {"uppercaseletter", "Lu"},
                                              {"lowercaseletter", "Ll"},
                                              {"titlecaseletter", "Lt"},
                                              {"modifierletter", "Lm"},
                                              {"otherletter", "Lo"},
                                              {"decimalnumber", "Nd"},
                                              {"digit", "Nd"},
                                              {"letternumber", "Nl"},
                                              {"othernumber", "No"},
                                              {"nonspacingmark", "Mn"},
                                              {"spacingmark", "Mc"},
                                              {"enclosingmark", "Me"},
                                              {"punct", "P"},
                                              {"other", "C"}};
    static const char *const binary[][2] = {
        {"alphabetic", "Alphabetic"}, {"alpha", "Alphabetic"}, {"whitespace", "White_Space"}, {"space", "White_Space"},
        {"uppercase", "Uppercase"},   {"upper", "Uppercase"},  {"lowercase", "Lowercase"},    {"lower", "Lowercase"},
        {"emoji", "Emoji"},           {"any", "Any"},          {"ideographic", "Ideographic"}};
    char name[48], plain[48], text[64];
    PL_TRY(read_name(r, &negated, name, plain));
    const char *value = name + strcspn(name, "=:");
    value = *value ? value + 1 : name;
    uint32_t mask = strlen(value) <= 2 ? mask_of(value) : 0;
    for (size_t i = 0; i < sizeof category / sizeof *category; i++)
        if (!strcmp(plain, category[i][0])) mask = mask_of(category[i][1]);
    if (mask) {
        s->mask |= negated ? ~mask & PL_ALL_LEAVES : mask;
        return PL_OK;
    }
    for (size_t i = 0; i < sizeof binary / sizeof *binary; i++) {
        if (strcmp(plain, binary[i][0]) != 0) continue;
        snprintf(text, sizeof text, "\\%c{%s}", negated ? 'P' : 'p', binary[i][1]);
        return pl_buf_puts(&s->items, text, r->err);
    }
    /* the rest are scripts; PCRE2 refuses those it does not know */
    snprintf(text, sizeof text, "\\%c{sc:%s}", negated ? 'P' : 'p', plain);
    return pl_buf_puts(&s->items, text, r->err);
}

static int read_hex(reader *r, int32_t least, int32_t most, uint32_t *c)
{
    int32_t k = 0, digit = 0;
    for (*c = 0; k < most && r->i < r->n && (digit = pl_hex_digit(r->p[r->i])) >= 0; k++, r->i++)
        *c = *c << 4 | (uint32_t)digit;
    return k < least || *c > 0x10ffff ? fail(r, "a code point that does not exist") : PL_OK;
}

/* After a backslash: either one character (*c, returns 1) or a class added to s (returns 0). */
static int read_escape(reader *r, bool in_class, set *s, uint32_t *c)
{
    if (r->i >= r->n) return fail(r, "a lone backslash");
    const uint32_t e = next_char(r);
    switch (e) {
    case 'n':
        *c = '\n';
        return 1;
    case 'r':
        *c = '\r';
        return 1;
    case 't':
        *c = '\t';
        return 1;
    case 'f':
        *c = '\f';
        return 1;
    case 'v':
        *c = '\v';
        return 1;
    case 'a':
        *c = 7;
        return 1;
    case 'e':
        *c = 27;
        return 1;
    case '0':
        *c = 0;
        return 1;
    case 'x': {
        const bool brace = take(r, "{");
        PL_TRY(read_hex(r, 1, brace ? 8 : 2, c));
        if (!brace && *c > 0x7f) return fail(r, "a raw byte"); /* Oniguruma would mean a byte of the encoding */
        return brace && !take(r, "}") ? fail(r, "a code point without an end") : 1;
    }
    case 'u':
        PL_TRY(read_hex(r, 4, 4, c));
        return 1;
    case 'd':
        s->mask |= mask_of("Nd");
        return 0;
    case 'D':
        s->mask |= ~mask_of("Nd") & PL_ALL_LEAVES;
        return 0;
    case 's':
        return pl_buf_puts(&s->items, SPACES, r->err);
    case 'S':
        return pl_buf_puts(&s->items, "\\P{White_Space}", r->err);
    case 'w':
        return pl_buf_puts(&s->items, WORDS, r->err);
    case 'p':
        return read_property(r, false, s);
    case 'P':
        return read_property(r, true, s);
    case 'W':
        if (in_class) break;
        s->negated = true;
        return pl_buf_puts(&s->items, WORDS, r->err);
    default:
        if (e < 0x80 && isalnum((int)e)) break; /* \b in a class, \h, \R, \1 ... */
        *c = e;
        return 1;
    }
    r->i--;
    return fail(r, "an unknown escape");
}

static int read_posix(reader *r, set *s)
{
    static const char *const known[][2] = {{"alpha:]", "\\p{Alphabetic}"},
                                           {"digit:]", "\\p{Nd}"},
                                           {"alnum:]", "\\p{Alphabetic}\\p{Nd}"},
                                           {"space:]", SPACES},
                                           {"upper:]", "\\p{Uppercase}"},
                                           {"lower:]", "\\p{Lowercase}"},
                                           {"word:]", WORDS},
                                           {"cntrl:]", "\\p{Cc}"},
                                           {"xdigit:]", "0-9A-Fa-f"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (take(r, known[i][0])) return pl_buf_puts(&s->items, known[i][1], r->err);
    return fail(r, "an unknown class name");
}

static int read_class(reader *r, set *s);

/* One item of a class, into s. */
static int read_item(reader *r, set *s)
{
    uint32_t from = 0, to = 0;
    if (take(r, "[:")) return read_posix(r, s);
    if (take(r, "[")) {
        set inner = {0};
        int rc = read_class(r, &inner);
        if (rc >= 0) rc = unite(s, &inner, r->err);
        pl_buf_free(&inner.items);
        return rc;
    }
    set one = {0};
    int rc;
    if (!take(r, "\\")) {
        from = next_char(r);
        rc = 1;
    } else {
        rc = read_escape(r, true, &one, &from);
    }
    if (rc == 0)
        rc = unite(s, &one, r->err);
    else if (rc == 1) {
        rc = put_char(&one.items, from, r->err);
        if (rc >= 0 && at(r, "-") && r->i + 1 < r->n && r->p[r->i + 1] != ']' && r->p[r->i + 1] != '[') {
            r->i++;
            rc = take(r, "\\") ? read_escape(r, true, &one, &to) : (to = next_char(r), 1);
            if (rc == 0 || (rc == 1 && to < from)) rc = fail(r, "a range that does not ascend");
            if (rc >= 0) rc = pl_buf_puts(&one.items, "-", r->err);
            if (rc >= 0) rc = put_char(&one.items, to, r->err);
        }
        if (rc >= 0) rc = unite(s, &one, r->err);
    }
    pl_buf_free(&one.items);
    return rc;
}

/* After `[`, up to and with `]`. */
static int read_class(reader *r, set *s)
{
    const bool caseless = r->caseless != 0;
    set all = {0}, part = {0};
    bool first = true, has_all = false;
    int rc = PL_OK;
    if (++r->depth > PL_MAX_DEPTH) return fail(r, "too deep a class");
    const bool negated = take(r, "^");
    for (;; first = false) {
        if (r->i >= r->n) {
            rc = fail(r, "a class without an end");
            goto done;
        }
        const bool end = !first && at(r, "]");
        if (end || at(r, "&&")) {
            r->i += end ? 1 : 2;
            if (!part.mask && !part.items.n) {
                rc = fail(r, "an empty class");
                goto done;
            }
            if (has_all) {
                if ((rc = intersect(&all, &part, caseless, r->err)) < 0) goto done;
                pl_buf_free(&part.items);
            } else {
                all = part;
            }
            part = (set){0};
            has_all = true;
            if (end) break;
            continue;
        }
        if ((rc = read_item(r, &part)) < 0) goto done;
    }
    all.negated = all.negated != negated;
    *s = all;
    all = (set){0};
    r->depth--;
done:
    pl_buf_free(&all.items);
    pl_buf_free(&part.items);
    return rc;
}

/* the pattern */

static int read_group(reader *r)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (++r->depth > PL_MAX_DEPTH) return fail(r, "too deep a group");
    r->caseless <<= 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!take(r, known[i])) continue;
        if (strstr(known[i], "i:")) r->caseless |= 1;
        return pl_buf_puts(r->out, known[i], r->err);
    }
    if (r->i == 0 && take(r, "(?i)")) {
        r->depth--;
        r->caseless = 1;
        return pl_buf_puts(r->out, "(?i)", r->err);
    }
    if (at(r, "(?") || at(r, "(*")) return fail(r, "an unknown group");
    r->i++;
    return pl_buf_puts(r->out, "(?:", r->err); /* nothing refers to what it captures */
}

static int read_repeat(reader *r)
{
    int32_t low = 0, high = -1, digits = 0;
    char text[32];
    r->i++;
    while (r->i < r->n && isdigit((unsigned char)r->p[r->i]) && low < 10000)
        low = low * 10 + r->p[r->i++] - '0', digits++;
    if (take(r, ",")) {
        for (high = r->i < r->n && isdigit((unsigned char)r->p[r->i]) ? 0 : -1;
             r->i < r->n && isdigit((unsigned char)r->p[r->i]) && high < 10000; digits++)
            high = high * 10 + r->p[r->i++] - '0';
    } else {
        high = low;
    }
    if (!take(r, "}") || !digits) return fail(r, "an unknown repeat");
    if (at(r, "+") || (low == high && at(r, "?"))) return fail(r, "a repeat of a repeat");
    if (high < 0)
        snprintf(text, sizeof text, "{%d,}", low);
    else
        snprintf(text, sizeof text, "{%d,%d}", low, high);
    return pl_buf_puts(r->out, text, r->err);
}

static int read_one(reader *r)
{
    set s = {0};
    uint32_t c = 0;
    int rc;
    switch (r->p[r->i]) {
    case '(':
        return read_group(r);
    case ')':
        r->i++;
        r->caseless >>= 1;
        if (--r->depth < 0) return fail(r, "a ')' too many");
        return pl_buf_puts(r->out, ")", r->err);
    case '{':
        return read_repeat(r);
    case '^':
        r->i++;
        return pl_buf_puts(r->out, "(?m:^)", r->err); /* of a line, as in Oniguruma */
    case '$':
        r->i++;
        return pl_buf_puts(r->out, "(?m:$)", r->err);
    case '|':
    case '?':
    case '*':
    case '+':
    case '.':
        return pl_buf_put(r->out, r->p + r->i++, 1, r->err);
    case '[':
        r->i++;
        rc = read_class(r, &s);
        if (rc >= 0) rc = put_set(r->out, &s, r->err);
        break;
    case '\\':
        r->i++;
        if (take(r, "A")) return pl_buf_puts(r->out, "\\A", r->err);
        if (take(r, "z")) return pl_buf_puts(r->out, "\\z", r->err);
        if (take(r, "b"))
            return pl_buf_puts(r->out, "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))", r->err);
        if (take(r, "S")) {
            rc = pl_buf_puts(r->out, "[^" SPACES "]", r->err);
            break;
        }
        rc = read_escape(r, false, &s, &c);
        if (rc == 1)
            rc = put_char(r->out, c, r->err);
        else if (rc == 0)
            rc = put_set(r->out, &s, r->err);
        break;
    default:
        rc = put_char(r->out, next_char(r), r->err);
    }
    pl_buf_free(&s.items);
    return rc;
}

int pl_regex_translate(pl_buf *out, const char *pattern, int64_t n, pl_err *err)
{
    reader r = {.p = pattern, .n = n, .out = out, .err = err};
    if (n > PL_MAX_PATTERN)
        return pl_fail(err, PL_EFORMAT, "tokenizer: a pattern of %lld bytes, want at most %d", (long long)n,
                       PL_MAX_PATTERN);
    if (pl_utf8_valid(pattern, n) != n) return pl_fail(err, PL_EFORMAT, "tokenizer: a pattern that is not UTF-8");
    while (r.i < n) PL_TRY(read_one(&r));
    return r.depth ? fail(&r, "a '(' without its ')'") : PL_OK;
}
