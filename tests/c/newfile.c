/* Files that appear whole or not at all: what is there before, while and after one is written, given up, or its process is
 * killed. */
#include "newfile.h"
#include "suite.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static pl_err err;
static char dir[32], path[64];

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/pl_newfile_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/out", dir);
}

static int n_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2; /* . and .. */
}

static void teardown(void)
{
    unlink(path);
    ck_assert_int_eq(n_files(), 0);
    ck_assert_int_eq(rmdir(dir), 0);
}

static void put(const char *text)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void holds(const char *want)
{
    char text[64] = "";
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    (void)!fread(text, 1, sizeof text - 1, f);
    fclose(f);
    ck_assert_str_eq(text, want);
}

static int mode_of(void)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return (int)(st.st_mode & 07777);
}

START_TEST(whole_or_not)
{
    pl_newfile f;
    umask(027);
    ck_assert_int_eq(pl_newfile_open(&f, path, false, &err), PL_OK);
    ck_assert_int_eq(pl_newfile_write(&f, "one", 3, &err), PL_OK);
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_assert_int_eq(pl_newfile_close(&f, PL_OK, &err), PL_OK);
    holds("one");
    ck_assert_int_eq(mode_of(), 0640);
    ck_assert_int_eq(chmod(path, 0604), 0);
    ck_assert_int_eq(pl_newfile_open(&f, path, false, &err), PL_OK);
    ck_assert_int_eq(pl_newfile_write(&f, "two", 3, &err), PL_OK);
    holds("one");
    ck_assert_int_eq(pl_newfile_close(&f, PL_OK, &err), PL_OK);
    holds("two");
    ck_assert_int_eq(mode_of(), 0604); /* as it was */
    ck_assert_int_eq(n_files(), 1);
    ck_assert_int_eq(pl_newfile_open(&f, path, false, &err), PL_OK);
    ck_assert_int_eq(pl_newfile_write(&f, "three", 5, &err), PL_OK);
    ck_assert_int_eq(pl_newfile_close(&f, PL_ECANCEL, &err), PL_ECANCEL);
    holds("two");
    ck_assert_int_eq(n_files(), 1);
    char none[80];
    snprintf(none, sizeof none, "%s/no/out", dir);
    ck_assert_int_eq(pl_newfile_open(&f, none, false, &err), PL_EIO);
    ck_assert_ptr_nonnull(strstr(err.msg, none));
    ck_assert_int_eq(pl_newfile_open(&f, dir, false, &err), PL_EIO);
    ck_assert_int_eq(pl_newfile_open(&f, "/dev/null", false, &err), PL_EIO);
    ck_assert_int_eq(pl_newfile_open(&f, "/dev/null", true, &err), PL_OK);
    ck_assert_int_eq(pl_newfile_close(&f, PL_OK, &err), PL_OK);
}
END_TEST

/* A child that is killed while it writes leaves nothing, or what the next one takes away. */
START_TEST(killed)
{
    int ready[2];
    char byte;
    put("before");
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(pipe(ready), 0);
        const pid_t pid = fork();
        if (pid == 0) {
            pl_newfile f;
            if (pl_newfile_open(&f, path, false, NULL) < 0 || pl_newfile_write(&f, "half", 4, NULL) < 0) _exit(1);
            (void)!write(ready[1], "x", 1);
            pause();
        }
        close(ready[1]);
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        ck_assert_int_le(n_files(), 2);
    }
    holds("before");
    pl_newfile f;
    ck_assert_int_eq(pl_newfile_open(&f, path, false, &err), PL_OK);
    ck_assert_int_eq(pl_newfile_close(&f, PL_OK, &err), PL_OK);
    holds("");
    ck_assert_int_eq(n_files(), 1);
}
END_TEST

static int lone(const char *name)
{
    char at[128];
    snprintf(at, sizeof at, "%s/%s", dir, name);
    const int fd = open(at, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static bool is_there(const char *name, bool unlink_it)
{
    char at[128];
    snprintf(at, sizeof at, "%s/%s", dir, name);
    const bool there = access(at, F_OK) == 0;
    if (unlink_it) unlink(at);
    return there;
}

/* Of a file system without nameless files: what a dead process left goes, what a living one holds and what is somebody's
 * stays. */
START_TEST(stale)
{
    static const char *const others[] = {"out.perilune-abc",   "out.perilune-abcdefg", "out.abcdef",
                                         "ou.perilune-abcdef", "xout.perilune-abcdef", "out.perilune-held00"};
    enum { N = sizeof others / sizeof *others };
    int fd[N];
    for (int i = 0; i < N; i++) fd[i] = lone(others[i]);
    ck_assert_int_eq(flock(fd[N - 1], LOCK_EX), 0);
    close(lone("out.perilune-dead01"));
    close(lone("out.perilune-dead02"));
    pl_newfile f;
    ck_assert_int_eq(pl_newfile_open(&f, path, false, &err), PL_OK);
    ck_assert(!is_there("out.perilune-dead01", false));
    ck_assert(!is_there("out.perilune-dead02", false));
    ck_assert_int_eq(pl_newfile_write(&f, "one", 3, &err), PL_OK);
    ck_assert_int_eq(pl_newfile_close(&f, PL_OK, &err), PL_OK);
    holds("one");
    for (int i = 0; i < N; i++) {
        ck_assert_msg(is_there(others[i], true), "%s", others[i]);
        close(fd[i]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("newfile");
    TCase *t = tcase_create("newfile");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, whole_or_not);
    tcase_add_test(t, killed);
    tcase_add_test(t, stale);
    suite_add_tcase(s, t);
    return run_suite(s);
}
