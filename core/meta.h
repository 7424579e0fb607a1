#ifndef PL_META_H
#define PL_META_H
/* The metadata of a checkpoint: keys with a number, a truth value, a string, or a list of one of these. A GGUF file
 * has it in its head; config.json is flattened to it (config.h), so that a recipe reads both in one way. */
#include "base.h"

enum { PL_META_MAX_KEYS = 1 << 16, PL_META_KEY_MAX = 1024 };

enum { /* how an element lies in memory: GGUF's own numbers */
       PL_RAW_U8 = 0,
       PL_RAW_I8,
       PL_RAW_U16,
       PL_RAW_I16,
       PL_RAW_U32,
       PL_RAW_I32,
       PL_RAW_F32,
       PL_RAW_BOOL,
       PL_RAW_STRING,
       PL_RAW_LIST,
       PL_RAW_U64,
       PL_RAW_I64,
       PL_RAW_F64,
       PL_N_RAW
};

typedef struct pl_meta_entry {
    char *key;   /* printable ASCII; the list's own copy */
    int32_t raw; /* of an element; never PL_RAW_LIST */
    bool is_list;
    int64_t n;           /* elements; 1 unless a list */
    const uint8_t *data; /* numbers: little-endian, not aligned. Strings: each a u64 length and its bytes */
    int64_t *at;         /* strings: [n] offsets into data; owned */
    void *own;           /* freed with the entry: data, where it does not lie in a mapped file */
} pl_meta_entry;

typedef struct pl_meta {
    pl_meta_entry *e;        /* [n], in the order of the file */
    pl_meta_entry **by_name; /* [n] sorted; NULL until sealed */
    int32_t n, cap;
} pl_meta;

int pl_raw_bytes(int32_t raw); /* of a number; 0 for strings and lists, -1 if unknown */
/* Adds *e under the key given (n bytes, any bytes). Takes e->at and e->own over, also when it fails. */
PL_MUST int pl_meta_add(pl_meta *m, const char *key, int64_t n, const pl_meta_entry *e, pl_err *err);
PL_MUST int pl_meta_seal(pl_meta *m, const char *what, pl_err *err); /* refuses duplicate keys */
int32_t pl_meta_find(const pl_meta *m, const char *key);             /* index, or PL_ENAME */
void pl_meta_clear(pl_meta *m);

/* Element i. PL_EARG out of range; PL_EDTYPE of another type; PL_ELIMIT for an unsigned number above INT64_MAX. */
PL_MUST int pl_meta_int(const pl_meta_entry *e, int64_t i, int64_t *out, pl_err *err);  /* integers, 0/1 for bool */
PL_MUST int pl_meta_float(const pl_meta_entry *e, int64_t i, double *out, pl_err *err); /* any number */
PL_MUST int pl_meta_string(const pl_meta_entry *e, int64_t i, const char **text, int64_t *n, pl_err *err);
#endif
