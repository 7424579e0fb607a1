/* host.c: Ctrl-C as a flag that Lua polls, and line editing by libedit. One per process, hence the statics. */
#include "host.h"
#include "base.h"
#include <editline/readline.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;
static const char *words; /* "\n"-separated, for completion; the caller's, for the time of one pl_line_read */

static void on_interrupt(int sig)
{
    if (interrupted) { /* nobody took the first one: the user means it */
        signal(sig, SIG_DFL);
        raise(sig);
    }
    interrupted = 1;
}

void pl_host_init(void)
{
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &a, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of the write */
}

bool pl_host_interrupted(bool clear)
{
    const bool was = interrupted != 0;
    if (clear) interrupted = 0;
    return was;
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

char *pl_line_read(const char *prompt, const char *completions)
{
    words = completions;
    rl_attempted_completion_function = complete;
    rl_basic_word_break_characters = " \t\n\"'`@$><=;|&{([,+-*/";
    char *line = readline(prompt);
    words = NULL;
    if (line && *line) add_history(line);
    return line;
}

void pl_line_free(char *line) { free(line); }
int pl_line_history(const char *file, bool write)
{
    return (write ? write_history(file) : read_history(file)) ? PL_EIO : PL_OK;
}
