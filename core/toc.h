#ifndef PL_TOC_H
#define PL_TOC_H
/* The table of contents of a checkpoint: which tensors its files hold, and where. Parsers of file formats add
 * entries; sealing the table refuses duplicate names and overlapping tensors and makes names findable. */
#include "base.h"

enum { PL_TOC_MAX = 1 << 20, PL_TOC_NAME_MAX = 512 };

/* How a weight is put together of several tensors of its files (parts.h). */
enum { PL_MAX_PARTS = 6 };
typedef struct pl_join {
    int32_t how;                /* 0: it is one tensor */
    int32_t part[PL_MAX_PARTS]; /* entries of the files' own table; -1: none */
    int64_t rows, cols;         /* of the weight that share a scale */
    bool flag;                  /* of its kind */
} pl_join;

typedef struct pl_toc_entry {
    char *name;               /* printable ASCII; the table's own copy */
    char format[16];          /* the format as the file calls it */
    int32_t dtype;            /* -1: a format that perilune does not read */
    int32_t ndim;             /* above PL_MAX_DIMS: listed, but not readable; dim holds the first ones */
    int64_t dim[PL_MAX_DIMS]; /* slowest first */
    int64_t offset, bytes;    /* from the start of its file */
    int32_t file;             /* -1: joined */
    pl_join join;
} pl_toc_entry;

typedef struct pl_toc {
    pl_toc_entry *e;        /* [n], in the order of the files */
    pl_toc_entry **by_name; /* [n] sorted; NULL until sealed */
    int32_t n, cap;
} pl_toc;

/* Adds a copy of *e under the name given (n bytes, any bytes: refused if they are not a decent name). */
PL_MUST int pl_toc_add(pl_toc *t, const char *name, int64_t n, const pl_toc_entry *e, pl_err *err);
/* `what` begins the messages: "gguf", "safetensors". */
PL_MUST int pl_toc_seal(pl_toc *t, const char *what, pl_err *err);
int32_t pl_toc_find(const pl_toc *t, const char *name); /* index, or PL_ENAME */
void pl_toc_clear(pl_toc *t);

bool pl_is_printable(const char *s, int64_t n); /* ASCII 0x20..0x7e only: safe to show in a message */
#endif
