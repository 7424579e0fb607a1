#ifndef PL_NEWFILE_H
#define PL_NEWFILE_H
/* Files that appear whole or not at all, also where their process is killed. */
#include "base.h"

typedef struct pl_newfile {
    int fd;
    char *path, *target, *beside; /* as given, what is replaced, and the name until then; NULL: none */
    bool is_special;              /* not a regular file: written in place */
} pl_newfile;

/* path: as the user gave it, for messages too; a link stays one, and what it names is replaced. special: a device or a
 * pipe will do. */
PL_MUST int pl_newfile_open(pl_newfile *f, const char *path, bool special, pl_err *err);
PL_MUST int pl_newfile_write(const pl_newfile *f, const void *data, int64_t n, pl_err *err);
/* rc: what the writing came to. The file is put in its place if that is PL_OK, and else gone; returns what it is now. */
int pl_newfile_close(pl_newfile *f, int rc, pl_err *err);
#endif
