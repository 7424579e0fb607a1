/* newfile.c: files that appear whole or not at all. */
#include "newfile.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const pl_newfile *f, pl_err *err)
{
    return pl_fail(err, PL_EIO, "%.160s: %s", f->path, strerror(errno));
}

static void clear(pl_newfile *f)
{
    free(f->path);
    free(f->beside);
    free(f->target);
    *f = (pl_newfile){.fd = -1};
}

static int open_beside(pl_newfile *f, pl_err *err)
{
    if (asprintf(&f->beside, "%s.XXXXXX", f->target) < 0) {
        f->beside = NULL;
        return pl_fail(err, PL_ENOMEM, "%.160s: no memory", f->path);
    }
    f->fd = mkstemp(f->beside);
    return f->fd < 0 ? fail(f, err) : PL_OK;
}

int pl_newfile_open(pl_newfile *f, const char *path, bool special, pl_err *err)
{
    struct stat st = {.st_mode = S_IFREG | 0666};
    char *there = realpath(path, NULL);
    *f = (pl_newfile){.fd = -1, .path = strdup(path), .target = there ? there : strdup(path)};
    const bool is_old = f->target && stat(f->target, &st) == 0;
    int rc = PL_OK;
    f->is_special = !S_ISREG(st.st_mode);
    if (!f->path || !f->target) {
        rc = pl_fail(err, PL_ENOMEM, "%.160s: no memory", path);
    } else if (f->is_special && !special) {
        rc = pl_fail(err, PL_EIO, "%.160s: not a regular file", path);
    } else if (f->is_special) {
        f->fd = open(f->target, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (f->fd < 0) rc = fail(f, err);
    } else if (is_old && access(f->target, W_OK) < 0) {
        rc = fail(f, err);
    } else {
        rc = open_beside(f, err);
    }
    if (rc < 0) {
        clear(f);
        return rc;
    }
    if (f->beside) {
        const mode_t mask = umask(0);
        umask(mask);
        fchmod(f->fd, is_old ? st.st_mode & 07777 : 0666 & ~mask);
    }
    return PL_OK;
}

int pl_newfile_write(const pl_newfile *f, const void *data, int64_t n, pl_err *err)
{
    for (int64_t at = 0; at < n;) {
        const ssize_t put = write(f->fd, (const char *)data + at, (size_t)(n - at));
        if (put >= 0)
            at += put;
        else if (errno != EINTR)
            return fail(f, err);
    }
    return PL_OK;
}

int pl_newfile_close(pl_newfile *f, int rc, pl_err *err)
{
    if (f->fd < 0) return rc;
    if (close(f->fd) < 0 && rc == PL_OK) rc = fail(f, err);
    if (f->beside && rc == PL_OK && rename(f->beside, f->target) < 0) rc = fail(f, err);
    if (f->beside && rc < 0) unlink(f->beside);
    clear(f);
    return rc;
}
