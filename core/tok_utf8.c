/* tok_utf8.c: bytes and characters. UTF-8 as the Unicode standard defines it (no surrogates, no overlong forms),
 * the two character classes that added tokens ask for, and the byte-level alphabet of GPT-2, in which every byte has
 * a printable character that stands for it. */
#include "tok_impl.h"
#include <stdlib.h>
#include <utf8proc.h>

int pl_buf_put(pl_buf *b, const void *p, int64_t n, pl_err *err)
{
    if (n <= 0) return PL_OK;
    if (n > PL_TOK_MAX_TEXT - b->n)
        return pl_fail(err, PL_ELIMIT, "tokenizer: text of more than %d bytes", PL_TOK_MAX_TEXT);
    void *q = b->p;
    PL_TRY(pl_mem_grow(&q, &b->cap, b->n + (int32_t)n, 1, err));
    b->p = q;
    memcpy(b->p + b->n, p, (size_t)n);
    b->n += (int32_t)n;
    return PL_OK;
}

int pl_buf_puts(pl_buf *b, const char *s, pl_err *err) { return pl_buf_put(b, s, (int64_t)strlen(s), err); }

int pl_buf_char(pl_buf *b, uint32_t c, pl_err *err)
{
    char u[4];
    return pl_buf_put(b, u, pl_utf8_put(u, c), err);
}

void pl_buf_free(pl_buf *b)
{
    free(b->p);
    *b = (pl_buf){0};
}

/* The second byte of a sequence has a narrower range after some first bytes: that excludes overlong forms,
 * surrogates, and what lies past U+10FFFF. */
int32_t pl_utf8_seq(const uint8_t *p, int64_t n)
{
    const uint8_t a = p[0];
    if (a < 0x80) return 1;
    if (a < 0xc2 || a > 0xf4) return 0;
    const int32_t want = pl_utf8_size(a);
    const uint8_t low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80, high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    for (int32_t i = 1; i < want; i++) {
        if (i >= n) return -i;
        if (p[i] < (i == 1 ? low : 0x80) || p[i] > (i == 1 ? high : 0xbf)) return i == 1 ? 0 : -i;
    }
    return want;
}

int64_t pl_utf8_valid(const char *p, int64_t n)
{
    int64_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (i + 8 <= n && (memcpy(&eight, p + i, 8), !(eight & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        const int32_t k = pl_utf8_seq((const uint8_t *)p + i, n - i);
        if (k <= 0) return i;
        i += k;
    }
    return n;
}

uint32_t pl_utf8_get(const char *p, int32_t *n)
{
    const uint8_t *u = (const uint8_t *)p;
    *n = pl_utf8_size(u[0]);
    switch (*n) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    case 3:
        return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
    }
}

int32_t pl_utf8_put(char *p, uint32_t c)
{
    if (c < 0x80) {
        p[0] = (char)c;
        return 1;
    }
    const int32_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int32_t i = n - 1; i > 0; i--, c >>= 6) p[i] = (char)(0x80 | (c & 0x3f));
    p[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

bool pl_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool pl_is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9); /* joiners, circled letters */
    }
}

int32_t pl_unicode_case(int32_t c, int32_t how)
{
    return how == 0 ? utf8proc_tolower(c) : how == 1 ? utf8proc_toupper(c) : utf8proc_totitle(c);
}

int32_t pl_unicode_category(int32_t c) { return (int32_t)utf8proc_category(c); }

int32_t pl_hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Printable characters of Latin-1 stand for themselves; the 68 others, in order, have U+0100 and up. */
static bool is_self(uint32_t b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 255 && b != 173); }

uint32_t pl_byte_char(uint8_t b)
{
    if (is_self(b)) return b;
    if (b == 173) return 0x143;
    return b <= 32 ? 0x100u + b : 0x121u + (b - 127u); /* 0..32 and 127..160 */
}

int32_t pl_char_byte(uint32_t c)
{
    if (c < 256) return is_self(c) ? (int32_t)c : -1;
    if (c <= 0x120) return (int32_t)(c - 0x100);
    if (c <= 0x142) return (int32_t)(c - 0x121 + 127);
    return c == 0x143 ? 173 : -1;
}

int pl_bytes_to_chars(pl_buf *out, const char *p, int64_t n, pl_err *err)
{
    for (int64_t i = 0; i < n; i++) PL_TRY(pl_buf_char(out, pl_byte_char((uint8_t)p[i]), err));
    return PL_OK;
}

int pl_chars_to_bytes(pl_buf *out, const char *p, int64_t n, pl_err *err)
{
    const int32_t before = out->n;
    for (int64_t i = 0; i < n;) {
        int32_t k;
        const int32_t b = pl_char_byte(pl_utf8_get(p + i, &k));
        if (b < 0) {
            out->n = before;
            return 0;
        }
        const char byte = (char)b;
        PL_TRY(pl_buf_put(out, &byte, 1, err));
        i += k;
    }
    return 1;
}
