/* main.c: the program `perilune`. The command line is Lua: lua/pl/cli.lua. */
#include "host.h"
#include "lua_host.h"

int main(int argc, char **argv)
{
    pl_host_init();
    return pl_lua_main("pl.cli", argc, argv);
}
