#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H
/* A folder for the files of one test: made before it, and gone with all that is in it behind it. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[32], path[4096];

static inline const char *in_dir(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}
static inline void folder_make(void)
{
    snprintf(dir, sizeof dir, "/tmp/pl_test_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}
static inline void folder_remove(void)
{
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (const struct dirent *e; (e = readdir(d));) unlink(in_dir(e->d_name)); /* "." and ".." stay */
    closedir(d);
    rmdir(dir);
}
static inline void write_file(const char *name, const void *p, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(p, 1, n, f), n);
    fclose(f);
}
#endif
