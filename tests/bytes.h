#ifndef TESTS_BYTES_H
#define TESTS_BYTES_H
/* A growing run of bytes, and the pieces of a GGUF file, for tests that build files. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes {
    uint8_t *p;
    int64_t n, cap;
} bytes;

static inline void put(bytes *b, const void *p, int64_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 64;
        b->p = realloc(b->p, (size_t)b->cap);
        if (!b->p) abort();
    }
    if (n) memcpy(b->p + b->n, p, (size_t)n);
    b->n += n;
}
static inline void put_u8(bytes *b, uint8_t v) { put(b, &v, 1); }
static inline void put_u32(bytes *b, uint32_t v) { put(b, &v, 4); }
static inline void put_u64(bytes *b, uint64_t v) { put(b, &v, 8); }
static inline void put_f32(bytes *b, float v) { put(b, &v, 4); }
static inline void put_text(bytes *b, const char *s) { put(b, s, (int64_t)strlen(s)); }
static inline void pad_to(bytes *b, int64_t align)
{
    while (b->n % align) put_u8(b, 0);
}
static inline void bytes_free(bytes *b)
{
    free(b->p);
    *b = (bytes){0};
}

/* GGUF: a string; the head; a key with the type of its value; a tensor record (dims fastest first, as in the file) */
static inline void put_str(bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put_text(b, s);
}
static inline void put_head(bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    put_text(b, "GGUF");
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}
static inline void put_key(bytes *b, const char *key, uint32_t type)
{
    put_str(b, key);
    put_u32(b, type);
}
static inline void put_record(bytes *b, const char *name, uint32_t ndim, const uint64_t *dim, uint32_t type,
                              uint64_t offset)
{
    put_str(b, name);
    put_u32(b, ndim);
    for (uint32_t i = 0; i < ndim; i++) put_u64(b, dim[i]);
    put_u32(b, type);
    put_u64(b, offset);
}
#endif
