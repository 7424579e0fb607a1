/* socket.c: Unix sockets between processes of one user, for `perilune attach`. Whoever is at the other end must be the
 * same user, or root. No call waits. */
#include "base.h"
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int address(struct sockaddr_un *a, const char *path, pl_err *err)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t n = strlen(path);
    if (n == 0 || n >= sizeof a->sun_path)
        return pl_fail(err, PL_EARG, "socket: a path of %zu bytes, want 1 to %zu", n, sizeof a->sun_path - 1);
    memcpy(a->sun_path, path, n + 1);
    return PL_OK;
}

static bool same_user(int fd)
{
    struct ucred c;
    socklen_t n = sizeof c;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) < 0) return false;
    return c.uid == geteuid() || c.uid == 0;
}

static int new_socket(pl_err *err)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return fd < 0 ? pl_fail(err, PL_EIO, "socket: %s", strerror(errno)) : fd;
}

static const char *why_not(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return "nothing is there, want the path that a running server prints";
    case EACCES:
    case EPERM:
        return "permission refused, want the user who runs the server";
    case ECONNREFUSED:
        return "nobody listens there any more: its server has ended, start it again";
    case EAGAIN:
        return "its server takes no connections for now, try again";
    default:
        return strerror(error);
    }
}

int pl_sock_connect(int32_t *fd, const char *path, pl_err *err)
{
    struct sockaddr_un a;
    struct stat st;
    PL_TRY(address(&a, path, err));
    if (stat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) /* it would be called refused */
        return pl_fail(err, PL_EIO, "not a socket, want the path that the server prints");
    const int s = new_socket(err);
    if (s < 0) return s;
    int rc = PL_OK;
    if (connect(s, (const struct sockaddr *)&a, sizeof a) < 0)
        rc = pl_fail(err, PL_EIO, "%s", why_not(errno));
    else if (!same_user(s))
        rc = pl_fail(err, PL_EIO, "another user's server listens there, want the user who runs it");
    if (rc < 0)
        close(s);
    else
        *fd = s;
    return rc;
}

/* What lies at the path makes way if it is a socket that nobody listens at. */
static int make_way(const char *path, pl_err *err)
{
    struct stat st;
    int32_t other;
    if (lstat(path, &st) < 0) return PL_OK;
    if (!S_ISSOCK(st.st_mode)) return pl_fail(err, PL_EIO, "%.140s: is there, and no socket", path);
    errno = 0;
    if (pl_sock_connect(&other, path, NULL) == PL_OK) {
        close(other);
        return pl_fail(err, PL_EIO, "%.140s: another server listens there", path);
    }
    if (errno != ECONNREFUSED) return pl_fail(err, PL_EIO, "%.140s: %s", path, errno ? strerror(errno) : "in use");
    if (unlink(path) < 0) return pl_fail(err, PL_EIO, "%.140s: %s", path, strerror(errno));
    return PL_OK;
}

int pl_sock_listen(int32_t *fd, const char *path, pl_err *err)
{
    struct sockaddr_un a;
    PL_TRY(address(&a, path, err));
    PL_TRY(make_way(path, err));
    const int s = new_socket(err);
    if (s < 0) return s;
    /* before it has a name: from then on nobody else can open it */
    if (fchmod(s, 0600) < 0 || bind(s, (const struct sockaddr *)&a, sizeof a) < 0 || listen(s, 64) < 0) {
        const int why = errno;
        close(s);
        return pl_fail(err, PL_EIO, "%.140s: %s", path, strerror(why));
    }
    *fd = s;
    return PL_OK;
}

int32_t pl_sock_accept(int32_t fd)
{
    for (;;) {
        const int s = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (s < 0) return PL_EBUSY;
        if (same_user(s)) return s;
        close(s);
    }
}

int64_t pl_sock_read(int32_t fd, void *data, int64_t n)
{
    const ssize_t got = recv(fd, data, (size_t)n, MSG_DONTWAIT);
    if (got > 0) return got;
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? PL_EBUSY : PL_ECLOSED;
}

int64_t pl_sock_write(int32_t fd, const void *data, int64_t n)
{
    const ssize_t put = send(fd, data, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) return put;
    return errno == EAGAIN || errno == EINTR ? PL_EBUSY : PL_ECLOSED;
}

void pl_sock_close(int32_t fd)
{
    if (fd >= 0) close(fd);
}

int pl_sock_watch(int32_t *group, int32_t fd, bool on, pl_err *err)
{
    struct epoll_event e = {.events = EPOLLIN, .data = {.fd = fd}};
    if (*group < 0) *group = epoll_create1(EPOLL_CLOEXEC);
    if (*group < 0 || epoll_ctl(*group, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &e) < 0)
        return pl_fail(err, PL_EIO, "socket: epoll: %s", strerror(errno));
    return PL_OK;
}
