#ifndef PL_PACKED_H
#define PL_PACKED_H
/* Packed files: a model's weights as a device wants them and the texts that say what it is, to be mapped and used as they
 * lie. packed.c reads the head of one, packed_write.c writes them; the checkpoint (ckpt.c) opens them like others.
 *
 *   header   pl_packed_header
 *   options  a JSON object: what the file was made of and for (lua/pl/pack.lua)
 *   data     the tensors, each at a multiple of 64 bytes, or of 4096 if it has as many
 *   head     texts (name, text), forms (name, layout, device, id), tensors (name, how, form, sizes, offset, bytes, digest)
 *
 * Numbers are little-endian; a name or a text is a u64 length and its bytes. The head comes last, so that a file is
 * written in one pass. The header's fields up to n_options, and the options behind it, stay where they are in all
 * versions, so that what a stale file was made of can be told. */
#include "toc.h"

enum { PL_PACKED_VERSION = 1, PL_PACKED_ALIGN = 64, PL_PACKED_PAGE = 4096 };
enum { PL_PACKED_MAX_OPTIONS = 1 << 16, PL_PACKED_MAX_TEXTS = 64, PL_PACKED_MAX_FORMS = 256, PL_PACKED_MAX_HOW = 96 };
#define PL_PACKED_MAGIC "perilune"

typedef struct pl_packed_header {
    char magic[8];
    uint32_t version, n_options; /* bytes of the options */
    uint32_t kind;               /* PL_CKPT_*, of what it was made of */
    uint32_t n_texts, n_forms, n_tensors;
    int64_t head_at, head_bytes, file_bytes;
    uint64_t digest[2]; /* of the fields above, the options and the head: XXH3, 128 bits */
} pl_packed_header;
_Static_assert(sizeof(pl_packed_header) == 72, "header of a packed file");

typedef struct pl_packed_text {
    char name[32];
    const uint8_t *data; /* [bytes] in the file */
    int64_t bytes;
} pl_packed_text;

/* A format in a layout. id: what a pattern packs to (pl_layout_id): another one, and the layout is another build's. */
typedef struct pl_packed_form {
    int32_t dtype, layout;
    uint64_t id[2];
} pl_packed_form;

typedef struct pl_packed_tensor {
    int32_t form;
    char how[PL_PACKED_MAX_HOW]; /* what loading did to it */
    uint64_t digest[2];          /* of its bytes */
} pl_packed_tensor;

typedef struct pl_packed {
    pl_packed_header header;
    const uint8_t *options;
    pl_packed_text *text;     /* [header.n_texts] */
    pl_packed_form *form;     /* [header.n_forms] */
    pl_packed_tensor *tensor; /* [header.n_tensors], as the toc's */
} pl_packed;

/* Reads the file that lies in data[size]: all but the values of tensors is checked, digest included. The texts stay in
 * data. packed_bytes(dtype, n, k): of a packed [n,k]; -1: there is no such. PL_ESTALE: of another version. *p and the toc
 * are cleared by the caller, on failure too. */
typedef int64_t pl_packed_bytes_fn(int32_t dtype, int64_t n, int64_t k);
PL_MUST int pl_packed_parse(pl_packed *p, pl_toc *toc, const uint8_t *data, int64_t size,
                            pl_packed_bytes_fn *packed_bytes, pl_err *err);
void pl_packed_clear(pl_packed *p);
void pl_packed_digest(const pl_packed_header *h, const void *options, const void *head, uint64_t digest[2]);

/* What the layout of a format on this device is: the digest of what a fixed pattern packs to. */
PL_MUST int pl_layout_id(pl_dev *dev, int32_t dtype, uint64_t id[2], pl_err *err);
#endif
