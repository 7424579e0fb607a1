/* host.c: pl-lua FILE [ARG...]: runs a Lua script with perilune's modules at hand, for tests. */
#include "host.h"
#include "lua_host.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc < 2) {
        fputs("usage: pl-lua FILE [ARG...]\n", stderr);
        return 2;
    }
    pl_host_init();
    return pl_lua_main(0, argc - 1, argv + 1);
}
