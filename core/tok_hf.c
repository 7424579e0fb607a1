/* tok_hf.c: tokenizers from disk, and tiktoken.model: one token a line, base64 and rank, no merges; the 256 ids behind the
 * ranks are reserved and named by tokenizer_config.json, or else <|reserved_token_ID|>. */
#include "tok_impl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { PL_MAX_FILE = 512 << 20, PL_N_RESERVED = 256 };

/* The whole file, with a zero behind it; absent: *out stays NULL unless the file is needed. */
static int read_file(const char *path, bool needed, char **out, int64_t *n, pl_err *err)
{
    int rc = PL_OK;
    char *text = NULL;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISFIFO(st.st_mode)) /* to open it would wait */
        return pl_fail(err, PL_EIO, "%s: not a regular file", path);
    FILE *f = fopen(path, "rb");
    if (!f) return needed || errno != ENOENT ? pl_fail(err, PL_EIO, "%s: %s", path, strerror(errno)) : PL_OK;
    if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > PL_MAX_FILE) {
        rc = pl_fail(err, PL_EIO, "%s: want a file of at most %d bytes", path, PL_MAX_FILE);
        goto done;
    }
    text = malloc((size_t)st.st_size + 1);
    if (!text) {
        rc = pl_fail(err, PL_ENOMEM, "%s: no memory for %lld bytes", path, (long long)st.st_size);
        goto done;
    }
    *n = (int64_t)fread(text, 1, (size_t)st.st_size, f);
    if (*n != st.st_size) {
        rc = pl_fail(err, PL_EIO, "%s: read %lld of %lld bytes", path, (long long)*n, (long long)st.st_size);
        goto done;
    }
    text[*n] = 0;
    *out = text;
    text = NULL;
done:
    free(text);
    fclose(f);
    return rc;
}

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes up to a space, =, or the end of the line; returns how far it read. */
static int base64(pl_buf *out, const char *p, int64_t n, int64_t *used, pl_err *err)
{
    uint32_t bits = 0;
    int32_t n_bits = 0, v;
    int64_t i = 0;
    for (; i < n && (v = base64_value(p[i])) >= 0; i++) {
        bits = (bits << 6 | (uint32_t)v) & 0xffff;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        const char byte = (char)(bits >> n_bits);
        PL_TRY(pl_buf_put(out, &byte, 1, err));
    }
    while (i < n && p[i] == '=') i++;
    *used = i;
    return PL_OK;
}

static int read_ranks(pl_tok *t, const char *p, int64_t n, pl_err *err)
{
    pl_buf token = {0};
    int rc = PL_OK;
    int64_t line = 0;
    for (int64_t i = 0; i < n && rc >= 0; line++) {
        int64_t used, rank = 0, digits = 0;
        if (p[i] == '\n') {
            i++;
            continue;
        }
        token.n = 0;
        if ((rc = base64(&token, p + i, n - i, &used, err)) < 0) break;
        i += used;
        const bool space = i < n && p[i] == ' ';
        for (i += space; i < n && p[i] >= '0' && p[i] <= '9' && digits < 9; i++, digits++)
            rank = rank * 10 + (p[i] - '0');
        if (i < n && p[i] == '\r') i++;
        if (!used || !token.n || !space || !digits || (i < n && p[i] != '\n')) {
            rc = pl_fail(err, PL_EFORMAT, "tiktoken.model: line %lld is not a base64 token and a rank",
                         (long long)line + 1);
            break;
        }
        i++;
        rc = pl_vocab_add(&t->vocab, rank, token.p, token.n, false, err);
    }
    pl_buf_free(&token);
    return rc;
}

static int add_reserved(pl_tok *t, int32_t first, pl_err *err)
{
    for (int32_t id = first; id < first + PL_N_RESERVED; id++) {
        char name[48];
        if (pl_vocab_has(&t->vocab, id)) continue;
        const pl_added a = {.id = id, .special = true, .gated = true};
        const int n = snprintf(name, sizeof name, "<|reserved_token_%d|>", id);
        PL_TRY(pl_tok_add(t, &a, name, n, err));
    }
    return PL_OK;
}

static int build_tiktoken(pl_tok *t, const char *ranks, int64_t n, const pl_json *config, pl_err *err)
{
    PL_TRY(read_ranks(t, ranks, n, err));
    const int32_t n_ranks = t->vocab.n_ids;
    t->raw_bytes = t->ignore_merges = true;
    if (config) PL_TRY(pl_json_config_added(t, config, true, err));
    PL_TRY(add_reserved(t, n_ranks, err));
    t->rank = malloc((size_t)t->vocab.n_ids * sizeof *t->rank);
    if (!t->rank) return pl_fail(err, PL_ENOMEM, "tokenizer: no memory for %d ranks", t->vocab.n_ids);
    for (int32_t i = 0; i < t->vocab.n_ids; i++) t->rank[i] = i < n_ranks ? (uint32_t)i : PL_NO_RANK;
    PL_TRY(pl_tok_add_split(t, pl_kimi_pattern, (int64_t)strlen(pl_kimi_pattern), false, PL_ISOLATED, false, err));
    PL_TRY(pl_json_config_ends(t, config, err));
    return pl_tok_finish(t, err);
}

int pl_tok_open_tiktoken(pl_tok **out, const char *ranks, int64_t n_ranks, const char *config, int64_t n_config,
                         pl_err *err)
{
    pl_json *c = NULL;
    pl_tok *t = NULL;
    int rc = config ? pl_json_parse(&c, config, n_config, true, err) : PL_OK;
    if (rc >= 0) rc = pl_tok_new(&t, err);
    if (rc >= 0) rc = build_tiktoken(t, ranks, n_ranks, c, err);
    pl_json_free(c);
    if (rc < 0)
        pl_tok_close(t);
    else
        *out = t;
    return rc;
}

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

int pl_tok_open_hf(pl_tok **out, const char *path, pl_err *err)
{
    enum { PL_CAP = 4096 };
    char dir[PL_CAP], name[PL_CAP + 32], beside[PL_CAP + 32];
    char *text = NULL, *config = NULL;
    int64_t n = 0, n_config = 0;
    const char *slash = strrchr(path, '/');
    const bool whole = is_dir(path);
    const int len = whole ? (int)strlen(path) : slash ? (int)(slash - path) : 1;
    if (strlen(path) >= PL_CAP)
        return pl_fail(err, PL_EARG, "tokenizer: a path of %zu bytes, want less than %d", strlen(path), PL_CAP);
    snprintf(dir, sizeof dir, "%.*s", len ? len : 1, whole || slash ? path : ".");
    snprintf(beside, sizeof beside, "%s/tokenizer_config.json", dir);
    snprintf(name, sizeof name, whole ? "%s/tokenizer.json" : "%s", path);
    int rc = read_file(name, !whole, &text, &n, err);
    bool tiktoken = !whole && ends_with(path, ".model");
    if (rc >= 0 && !text) {
        tiktoken = true;
        snprintf(name, sizeof name, "%s/tiktoken.model", dir);
        rc = read_file(name, false, &text, &n, err);
        if (rc >= 0 && !text) rc = pl_fail(err, PL_EIO, "%s: neither tokenizer.json nor tiktoken.model is there", dir);
    }
    if (rc >= 0) rc = read_file(beside, false, &config, &n_config, err);
    if (rc >= 0)
        rc = tiktoken ? pl_tok_open_tiktoken(out, text, n, config, n_config, err)
                      : pl_tok_open_json(out, text, n, config, n_config, err);
    free(text);
    free(config);
    return rc;
}
