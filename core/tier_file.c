/* tier_file.c: the disk tier's file: slots of 4 KB and a page each, that say themselves what they hold. A page is
 * written before its header, and the header says what its digest is: half a page is never taken for one. */
#include "tier_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { ALIGN = 4096, VERSION = 1 };
static const char magic[8] = "PLPAGES\n";
enum { MARK = ALIGN - sizeof magic }; /* in the first slot, behind its header: the magic again, from the beginning on */

typedef struct header { /* little endian, as everything that runs perilune is; no padding */
    char magic[8];
    uint32_t version, slot;
    int64_t page_bytes;
    uint64_t digest, stamp;
    pl_key identity, key;
    uint64_t checksum; /* of all before it */
} header;

static uint64_t checksum(const header *h) { return XXH3_64bits(h, offsetof(header, checksum)); }

static int failed(pl_err *err, const char *path)
{
    return pl_fail(err, PL_EIO, "disk cache: %s: %s", path, strerror(errno));
}

/* The file has its full size, with room for all of it on disk where the file system can promise that. */
static int reserve(const tier_file *f, pl_err *err)
{
    const int64_t bytes = f->n * f->slot_bytes;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && (uint64_t)bytes > limit.rlim_cur)
        return pl_fail(err, PL_EIO, "disk cache: %s: %lld bytes, files of this process may have %lld", f->path,
                       (long long)bytes, (long long)limit.rlim_cur);
    if (ftruncate(f->fd, bytes) != 0) return failed(err, f->path);
    if (fallocate(f->fd, 0, 0, bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) return failed(err, f->path);
    return PL_OK;
}

/* Is what lies there a file of ours, of any version, or nothing yet? Other data under this name is somebody's. */
static int is_ours(const tier_file *f, int64_t bytes, pl_err *err)
{
    static const uint8_t zeros[ALIGN];
    uint8_t head[ALIGN] = {0};
    const ssize_t n = pread(f->fd, head, sizeof head, 0);
    if (n < 0) return failed(err, f->path);
    if (!memcmp(head, magic, sizeof magic) || !memcmp(head + MARK, magic, sizeof magic)) return PL_OK;
    if (bytes % ALIGN == 0 && !memcmp(head, zeros, sizeof head)) return PL_OK;
    return pl_fail(err, PL_EIO, "disk cache: %s: not a file of perilune's, want another directory, or it gone",
                   f->path);
}

int tier_file_open(tier_file *f, const char *dir, int64_t bytes, int64_t page_bytes, pl_err *err)
{
    struct stat st;
    f->page_bytes = page_bytes;
    f->slot_bytes = ALIGN + pl_round_up(page_bytes, ALIGN);
    f->n = (int32_t)pl_min(bytes / f->slot_bytes, INT32_MAX);
    if (f->n < 1)
        return pl_fail(err, PL_EARG, "disk cache: %lld bytes, want 0 or at least one page: %lld", (long long)bytes,
                       (long long)f->slot_bytes);
    if ((size_t)snprintf(f->path, sizeof f->path, "%s/perilune.pages", dir) >= sizeof f->path)
        return pl_fail(err, PL_EARG, "disk cache: a directory's name of %zu bytes", strlen(dir));
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (f->fd < 0) return failed(err, f->path);
    if (fstat(f->fd, &st) != 0) return failed(err, f->path);
    if (!S_ISREG(st.st_mode)) return pl_fail(err, PL_EIO, "disk cache: %s: want a regular file", f->path);
    if (st.st_uid != geteuid()) /* who owns it can write what is then believed */
        return pl_fail(err, PL_EIO, "disk cache: %s: belongs to another user", f->path);
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return failed(err, f->path);
        return pl_fail(err, PL_EIO, "disk cache: %s: in use by another model or process", f->path);
    }
    PL_TRY(is_ours(f, st.st_size, err));
    if (fchmod(f->fd, 0600) != 0) return failed(err, f->path); /* what people wrote to the model is in it */
    PL_TRY(reserve(f, err));
    return pwrite(f->fd, magic, sizeof magic, MARK) == sizeof magic ? PL_OK : failed(err, f->path);
}

void tier_file_close(tier_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

/* All of it, or an error. */
static int transfer(int fd, uint8_t *p, int64_t n, int64_t at, bool write)
{
    while (n > 0) {
        const ssize_t k = write ? pwrite(fd, p, (size_t)n, at) : pread(fd, p, (size_t)n, at);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return errno;
        if (k == 0) return EIO; /* shorter than it was */
        p += k;
        at += k;
        n -= k;
    }
    return 0;
}

bool tier_file_look(const tier_file *f, int32_t i, pl_key *key, uint64_t *digest, uint64_t *stamp)
{
    header h;
    if (transfer(f->fd, (uint8_t *)&h, sizeof h, i * f->slot_bytes, false)) return false;
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.version != VERSION || h.checksum != checksum(&h)) return false;
    if (h.slot != (uint32_t)i || h.page_bytes != f->page_bytes ||
        memcmp(&h.identity, &f->identity, sizeof h.identity) != 0)
        return false;
    *key = h.key;
    *digest = h.digest;
    *stamp = h.stamp;
    return true;
}

int tier_file_write(const tier_file *f, int32_t i, const void *page, const pl_key *key, uint64_t digest, uint64_t stamp)
{
    header h = {.version = VERSION,
                .slot = (uint32_t)i,
                .page_bytes = f->page_bytes,
                .digest = digest,
                .stamp = stamp,
                .identity = f->identity,
                .key = *key};
    memcpy(h.magic, magic, sizeof magic);
    h.checksum = checksum(&h);
    const int error = transfer(f->fd, (uint8_t *)(uintptr_t)page, f->page_bytes, i * f->slot_bytes + ALIGN, true);
    return error ? error : transfer(f->fd, (uint8_t *)&h, sizeof h, i * f->slot_bytes, true);
}

int tier_file_read(const tier_file *f, int32_t i, void *page)
{
    return transfer(f->fd, page, f->page_bytes, i * f->slot_bytes + ALIGN, false);
}

int tier_file_spoil(const tier_file *f, int32_t i, const void *page)
{
    return transfer(f->fd, (uint8_t *)(uintptr_t)page, f->page_bytes, i * f->slot_bytes + ALIGN, true);
}
