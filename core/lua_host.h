#ifndef PL_LUA_HOST_H
#define PL_LUA_HOST_H
/* The interpreter around the core: one Lua state with perilune's own modules preloaded from the program itself.
 * lua_host.c is the only file that includes lua.h. */
#include <stddef.h>

typedef struct pl_embedded {
    const char *name;
    char kind; /* 'm': module, 't': module that is a string, 'r': recipe */
    const char *text;
    size_t len;
} pl_embedded;
extern const pl_embedded pl_embedded_files[]; /* ends with a NULL name */

/* Runs module `name` (or, if name is NULL, the script argv[0]) with the arguments in the global `arg`. Returns its
 * integer result as the exit status, 1 if it raised an error (printed to stderr). */
int pl_lua_main(const char *name, int argc, char **argv);
#endif
