#ifndef PL_CKPT_H
#define PL_CKPT_H
/* A checkpoint: the files of a model, mapped into memory, with their table of contents and their metadata. Its
 * functions are in pl.h. The mappings live until the checkpoint is closed and the last tensor that was taken from it
 * is released.
 *
 * Files are trusted to stay as long as they were when they were opened: one that someone truncates later ends the
 * process with SIGBUS at the next read. Replace model files by renaming, never in place. */
#include "meta.h"
#include "toc.h"

const pl_meta *pl_ckpt_meta(const pl_ckpt *c);
bool pl_ckpt_maps(const pl_ckpt *c, const char *path); /* is it one of its files, or a link to one? */
const char *pl_ckpt_dir(const pl_ckpt *c);             /* NULL: a GGUF file, or a packed one */
/* A text of a packed file; NULL: there is none of this name. */
const char *pl_ckpt_held_text(const pl_ckpt *c, const char *name, int64_t *bytes);

/* Calls f with each text that a packed file of this checkpoint needs: files beside the weights, or a GGUF file's own head
 * as "gguf". */
typedef int pl_text_fn(void *arg, const char *name, const void *text, int64_t bytes, pl_err *err);
PL_MUST int pl_ckpt_each_text(pl_ckpt *c, pl_text_fn *f, void *arg, pl_err *err);

/* The tokenizer that a GGUF file's metadata describes. */
PL_MUST int pl_tok_open_meta(pl_tok **out, const pl_meta *m, pl_err *err);
#endif
