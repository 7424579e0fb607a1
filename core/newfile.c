/* newfile.c: files that appear whole or not at all. Where the file system can, a file has no name until it is whole, so that
 * one whose process is killed is gone with it; else it has a name of its own beside its place and is locked, and the next
 * one that is written there takes away what nobody holds any more. */
#include "newfile.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char suffix[] = ".perilune-";
enum { N_RANDOM = 6 };

static int fail(const pl_newfile *f, pl_err *err)
{
    return pl_fail(err, PL_EIO, "%.160s: %s", f->path, strerror(errno));
}

static int no_memory(const char *path, pl_err *err) { return pl_fail(err, PL_ENOMEM, "%.160s: no memory", path); }

static void clear(pl_newfile *f)
{
    free(f->path);
    free(f->beside);
    free(f->target);
    *f = (pl_newfile){.fd = -1};
}

/* Names of ours beside the target that no process holds. */
static void take_away_stale(const char *dir, const char *name)
{
    DIR *d = opendir(dir);
    const size_t n = strlen(name), m = n + sizeof suffix - 1;
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, name, n) != 0 || strncmp(e->d_name + n, suffix, sizeof suffix - 1) != 0 ||
            strlen(e->d_name) != m + N_RANDOM)
            continue;
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    if (d) closedir(d);
}

static int open_named(pl_newfile *f, pl_err *err)
{
    if (asprintf(&f->beside, "%s%sXXXXXX", f->target, suffix) < 0) {
        f->beside = NULL;
        return no_memory(f->path, err);
    }
    f->fd = mkostemp(f->beside, O_CLOEXEC);
    if (f->fd >= 0) (void)flock(f->fd, LOCK_EX | LOCK_NB);
    return f->fd < 0 ? fail(f, err) : PL_OK;
}

static int open_beside(pl_newfile *f, pl_err *err)
{
    char *a = strdup(f->target), *b = strdup(f->target);
    int rc = a && b ? PL_OK : no_memory(f->path, err);
    if (rc == PL_OK) {
        const char *dir = dirname(a);
        take_away_stale(dir, basename(b));
        if (access("/proc/self/fd", X_OK) == 0) f->fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (f->fd < 0) rc = open_named(f, err); /* what is wrong with the directory is told there */
    }
    free(a);
    free(b);
    return rc;
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
        rc = no_memory(path, err);
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
    if (!f->is_special) {
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

/* A file without a name gets one: its own where that is free, else one beside it for the moment until it is renamed. */
static int give_name(pl_newfile *f, pl_err *err)
{
    char fd_path[32];
    snprintf(fd_path, sizeof fd_path, "/proc/self/fd/%d", f->fd);
    if (linkat(AT_FDCWD, fd_path, AT_FDCWD, f->target, AT_SYMLINK_FOLLOW) == 0) return PL_OK;
    if (errno != EEXIST) return fail(f, err);
    (void)flock(f->fd, LOCK_EX | LOCK_NB);
    for (int tries = 0; tries < 100; tries++) {
        if (asprintf(&f->beside, "%s%s%06x", f->target, suffix, (unsigned)(getpid() + tries) & 0xffffff) < 0) {
            f->beside = NULL;
            return no_memory(f->path, err);
        }
        if (linkat(AT_FDCWD, fd_path, AT_FDCWD, f->beside, AT_SYMLINK_FOLLOW) == 0) return PL_OK;
        free(f->beside);
        f->beside = NULL;
        if (errno != EEXIST) break;
    }
    return fail(f, err);
}

int pl_newfile_close(pl_newfile *f, int rc, pl_err *err)
{
    if (f->fd < 0) return rc;
    if (rc == PL_OK && f->beside && fsync(f->fd) < 0) rc = fail(f, err); /* what closing it would say is told before */
    if (rc == PL_OK && !f->beside && !f->is_special) rc = give_name(f, err);
    if (f->beside && rc == PL_OK && rename(f->beside, f->target) < 0) rc = fail(f, err);
    if (f->beside && rc < 0) unlink(f->beside);
    if (close(f->fd) < 0 && rc == PL_OK) rc = fail(f, err);
    clear(f);
    return rc;
}
