/* host.c: Ctrl-C as a flag that Lua polls, and line editing by libedit. One per process, hence the statics. */
#include "host.h"
#include "newfile.h"
#include <editline/readline.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* jemalloc reads this: one arena for all threads, and no cache for each. It crashes where a new thread needs its own and there is
 * no memory for them; this way a start with too little memory ends with a message. */
__attribute__((visibility("default"))) extern const char *malloc_conf;
const char *malloc_conf = "narenas:1,tcache:false";

/* jemalloc's; sanitizer builds are linked without. */
__attribute__((weak)) int mallctl(const char *name, void *old, size_t *n_old, void *value, size_t n_value);

void pl_host_trim(void)
{
    if (mallctl) (void)mallctl("arena.4096.purge", NULL, NULL, NULL, 0); /* 4096: of all arenas */
}

static volatile sig_atomic_t interrupted;
static int wake_fd = -1;  /* an event descriptor: readable from Ctrl-C until somebody has taken it */
static const char *words; /* "\n"-separated, for completion; the caller's, for the time of one pl_line_read */

static void on_interrupt(int sig)
{
    if (interrupted) { /* nobody took the first one: the user means it */
        signal(sig, SIG_DFL);
        raise(sig);
    }
    interrupted = 1;
    const int was = errno;
    (void)!write(wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    errno = was;
}

/* Two hexadecimal numbers at the start of a line of the system's list of mappings, a bar between them: is `at` within? */
static bool is_within(const char *line, uintptr_t at)
{
    uintptr_t v[2] = {0};
    for (int i = 0; i < 2; i++, line++)
        for (; (*line >= '0' && *line <= '9') || (*line >= 'a' && *line <= 'f'); line++)
            v[i] = v[i] << 4 | (uintptr_t)(*line <= '9' ? *line - '0' : *line - 'a' + 10);
    return v[0] <= at && at < v[1];
}

/* The path of the file that is mapped at an address, read as a signal handler may: n bytes, or 0. A long path is cut. */
static size_t mapped_file(uintptr_t at, char *path, size_t cap)
{
    char buffer[512], line[256] = {0};
    size_t n = 0;
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    for (ssize_t got; fd >= 0 && (got = read(fd, buffer, sizeof buffer)) > 0;)
        for (ssize_t i = 0; i < got; i++) {
            if (buffer[i] != '\n') {
                if (n < sizeof line - 1) line[n++] = buffer[i];
                continue;
            }
            line[n] = 0;
            const char *name = memchr(line, '/', n); /* the first of a line: numbers and letters come before it */
            if (name && is_within(line, at)) {
                const size_t bytes = (size_t)(line + n - name) < cap ? (size_t)(line + n - name) : cap;
                memcpy(path, name, bytes);
                return bytes;
            }
            n = 0;
        }
    return 0;
}

/* Weights are read from a mapping of their file: where that has become shorter, or the disk fails, a read is this
 * signal. Nothing can be computed any more. */
static void on_lost_file(int sig, siginfo_t *info, void *context)
{
    static const char before[] = "perilune: ", one[] = "a file that is in use",
                      after[] = ": it was cut off, or cannot be read any more\n";
    char path[256];
    const size_t n = mapped_file((uintptr_t)info->si_addr, path, sizeof path);
    (void)sig;
    (void)context;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f) path[i] = '?';
    (void)!write(2, before, sizeof before - 1);
    (void)!write(2, n ? path : one, n ? n : sizeof one - 1);
    (void)!write(2, after, sizeof after - 1);
    _exit(1);
}

/* For jansson, which does not survive that there is none (json.c). */
static void *memory_or_end(size_t n)
{
    static const char text[] = "perilune: no memory to read JSON\n";
    void *p = malloc(n ? n : 1);
    if (p) return p;
    (void)!write(2, text, sizeof text - 1);
    _exit(1);
}

void pl_host_init(void)
{
    setlocale(LC_CTYPE, "C.UTF-8"); /* lines that are typed are UTF-8, whatever the user's locale */
    json_set_alloc_funcs(memory_or_end, free);
    const struct sigaction lost = {.sa_sigaction = on_lost_file, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &lost, NULL);
    /* A standard stream that is closed must not be the number of the next file that is opened. Turned the wrong way round,
     * every use of it is still an error. */
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd ? O_RDONLY : O_WRONLY);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); /* without one, Ctrl-C ends no wait that has a limit */
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &a, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of the write, */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that may not grow */
}

static volatile sig_atomic_t n_signals[2];
static void on_signal(int sig) { n_signals[sig == SIGTERM]++; }

int32_t pl_host_signals(int32_t sig)
{
    _Static_assert(PL_SIGHUP == SIGHUP && PL_SIGTERM == SIGTERM, "numbers of signals");
    if (sig != SIGHUP && sig != SIGTERM) return 0;
    struct sigaction a;
    sigaction(sig, NULL, &a);
    if (a.sa_handler != on_signal) {
        a = (struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESTART};
        sigaction(sig, &a, NULL);
    }
    return n_signals[sig == SIGTERM];
}

bool pl_host_interrupted(bool clear)
{
    const bool was = interrupted != 0;
    if (clear && was) {
        interrupted = 0;
        (void)!read(wake_fd, &(uint64_t){0}, sizeof(uint64_t));
    }
    return was;
}

int pl_host_wait(int32_t fd, double timeout_s)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}}; /* -1 is passed over */
    if (interrupted) return PL_ECANCEL;
    const double s = timeout_s > 0 ? timeout_s < 1e6 ? timeout_s : 1e6 : 0;
    const struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
    const int n = ppoll(p, 2, &t, NULL);
    if (interrupted) return PL_ECANCEL;
    return n > 0 && p[0].revents ? 1 : 0; /* another signal: as if the time were over, the caller looks anew */
}

bool pl_host_may_wait(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

int pl_host_write(const char *path, const void *data, int64_t n, pl_err *err)
{
    pl_newfile f;
    PL_TRY(pl_newfile_open(&f, path, true, err));
    return pl_newfile_close(&f, pl_newfile_write(&f, data, n, err), err);
}

int pl_host_hold(int32_t *fd, const char *path, pl_err *err)
{
    struct stat held, there;
    *fd = -1;
    const int own = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (own < 0) return pl_fail(err, PL_EIO, "%.160s: %s", path, strerror(errno));
    if (flock(own, LOCK_EX | LOCK_NB) < 0) {
        const bool busy = errno == EWOULDBLOCK;
        close(own);
        return busy ? PL_EBUSY : PL_OK;
    }
    if (fstat(own, &held) < 0 || stat(path, &there) < 0 || held.st_dev != there.st_dev || held.st_ino != there.st_ino) {
        close(own);
        return PL_EBUSY;
    }
    *fd = own;
    return PL_OK;
}

void pl_host_let_go(int32_t fd)
{
    if (fd >= 0) close(fd);
}

int pl_host_log(int32_t *fd, const char *path, pl_err *err)
{
    int rc = PL_OK;
    const bool is_stderr = path && !strcmp(path, "-");
    if (!path) path = "/dev/null";
    const int how = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    const int to = is_stderr ? fcntl(2, F_DUPFD_CLOEXEC, 3) : open(path, how, 0600);
    if (to < 0) return pl_fail(err, PL_EIO, "%.160s: %s", path, strerror(errno));
    /* A pipe that nobody reads is an error, and does not make a server wait that is told to open its log anew; a line that
     * the pipe has no room for waits, as it did. */
    if (!is_stderr) (void)fcntl(to, F_SETFL, O_APPEND);
    if (*fd < 0) {
        *fd = to;
        return PL_OK;
    }
    if (dup3(to, *fd, O_CLOEXEC) < 0) rc = pl_fail(err, PL_EIO, "log: %s", strerror(errno));
    close(to);
    return rc;
}

bool pl_host_is_tty(int32_t fd) { return isatty(fd) != 0; }

static char *next_word(const char *text, int state)
{
    static const char *at;
    const size_t n = strlen(text);
    if (state == 0) at = words;
    while (at && *at) {
        const char *w = at, *end = strchrnul(at, '\n');
        at = *end ? end + 1 : end;
        if ((size_t)(end - w) >= n && !strncmp(w, text, n)) return strndup(w, (size_t)(end - w));
    }
    return NULL;
}

static char **complete(const char *text, int start, int end)
{
    (void)start;
    (void)end;
    rl_attempted_completion_over = 1; /* no file names */
    return rl_completion_matches(text, next_word);
}

static int typed_fd; /* where pl_line_read reads, for the time of one */

/* The next byte that is typed; -1: there are no more, or Ctrl-C came, which is left for the caller to take. Ctrl-C empties
 * the terminal's queue, also between a wait that was told of a byte and its read: the read must not wait. */
static int next_byte(void)
{
    unsigned char c;
    for (;;) {
        const int ready = pl_host_wait(typed_fd, 3600);
        if (ready < 0) return -1;
        if (!ready) continue;
        const ssize_t n = read(typed_fd, &c, 1);
        if (n == 1) return c;
        if (n == 0 || (errno != EINTR && errno != EAGAIN)) return -1;
    }
}

/* A character for libedit, or -1. */
static int next_char(FILE *in)
{
    int c, more, code;
    (void)in;
    do c = next_byte(); /* of a character, the first byte */
    while (c >= 0x80 && c < 0xc2);
    if (c < 0x80) return c;
    more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    code = c & (0x3f >> more);
    for (; more > 0; more--) {
        if ((c = next_byte()) < 0) return -1;
        code = code << 6 | (c & 0x3f);
    }
    return code < 0x110000 && (code < 0xd800 || code > 0xdfff) ? code : 0xfffd;
}

/* Before anything else of libedit: what it reads with is settled when it starts, and reading a history starts it. */
static void line_init(void)
{
    rl_getc_function = next_char;
    rl_attempted_completion_function = complete;
    rl_basic_word_break_characters = " \t\n\"'`@$><=;|&{([,+-*/";
}

char *pl_line_read(const char *prompt, const char *completions)
{
    /* Opened once more: that reads do not wait is then so for nobody else who has this terminal. */
    const int own = open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    line_init();
    typed_fd = own < 0 ? 0 : own;
    words = completions;
    char *line = readline(prompt);
    words = NULL;
    if (own >= 0) close(own);
    if (line && *line) add_history(line);
    return line;
}

void pl_line_free(char *line) { free(line); }
int pl_line_history(const char *file, bool write)
{
    line_init();
    return (write ? write_history(file) : read_history(file)) ? PL_EIO : PL_OK;
}
