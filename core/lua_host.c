/* lua_host.c: creates the Lua state, gives it perilune's modules, and runs one of them. */
#include "lua_host.h"
#include <errno.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int luaopen_cjson(lua_State *L);

/* The state's allocator, with a cap while a recipe runs: a hook comes too late for `s = s .. s`. Every block says in
 * front of it for whom it was made, so that what a policy keeps from one step to the next is known. */
enum { HOST, POLICY, N_OWNERS };
typedef struct block {
    _Alignas(16) int64_t owner;
} block;
typedef struct capped {
    size_t used[N_OWNERS], cap; /* cap: of the owner at work; 0: none */
    int64_t owner;
} capped;

static void *alloc_capped(void *arg, void *p, size_t old, size_t n)
{
    capped *c = arg;
    block *b = p ? (block *)p - 1 : NULL;
    if (!b) old = 0;
    if (!n) {
        if (b) c->used[b->owner] -= old;
        free(b);
        return NULL;
    }
    const bool grows = n > old;
    const int64_t owner = b && !grows ? b->owner : c->owner;
    const size_t own = b && b->owner == owner ? old : 0;
    if (grows && c->cap && c->used[owner] - own + n > c->cap) return NULL;
    const int64_t before = b ? b->owner : owner;
    block *q = realloc(b, sizeof *b + n);
    if (!q) return NULL;
    c->used[before] -= old;
    c->used[owner] += n;
    q->owner = owner;
    return q + 1;
}

/* limit(bytes, ...): so many beyond what is in use now; nil: no cap. limit("policy", bytes, ...): so many for
 * everything that policies hold, now and from earlier steps; with no bytes, how many they hold. Returns the rest, so that
 * a cap can be taken off before any Lua line (and a hook with it) runs. */
static int set_limit(lua_State *L)
{
    capped *c = lua_touserdata(L, lua_upvalueindex(1));
    const bool policy = lua_type(L, 1) == LUA_TSTRING;
    if (policy && lua_isnoneornil(L, 2)) {
        lua_pushnumber(L, (double)c->used[POLICY]);
        return 1;
    }
    const double bytes = lua_tonumber(L, policy ? 2 : 1);
    c->owner = policy ? POLICY : HOST;
    c->cap = bytes > 0 && bytes < 1e15 ? (policy ? 0 : c->used[HOST]) + (size_t)bytes : 0;
    return lua_gettop(L) > 1 && !policy ? lua_gettop(L) - 1 : 0;
}

static int load_limit(lua_State *L)
{
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushcclosure(L, set_limit, 1);
    return 1;
}

static int load_module(lua_State *L) /* upvalue: the embedded file */
{
    const pl_embedded *e = lua_touserdata(L, lua_upvalueindex(1));
    char chunk[128];
    snprintf(chunk, sizeof chunk, "@lua/%s.lua", e->name);
    for (char *c = chunk + 5; *c && strcmp(c, ".lua") != 0; c++)
        if (*c == '.') *c = '/';
    if (luaL_loadbuffer(L, e->text, e->len, chunk)) return lua_error(L);
    lua_pushstring(L, e->name);
    lua_call(L, 1, 1);
    return 1;
}

static int load_text(lua_State *L)
{
    const pl_embedded *e = lua_touserdata(L, lua_upvalueindex(1));
    lua_pushlstring(L, e->text, e->len);
    return 1;
}

static int load_recipes(lua_State *L) /* a table: name -> source */
{
    lua_newtable(L);
    for (const pl_embedded *e = pl_embedded_files; e->name; e++) {
        if (e->kind != 'r') continue;
        lua_pushlstring(L, e->text, e->len);
        lua_setfield(L, -2, e->name);
    }
    return 1;
}

static void preload(lua_State *L, capped *memory)
{
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "preload");
    for (const pl_embedded *e = pl_embedded_files; e->name; e++) {
        if (e->kind == 'r') continue;
        lua_pushlightuserdata(L, (void *)(size_t)e);
        lua_pushcclosure(L, e->kind == 'm' ? load_module : load_text, 1);
        lua_setfield(L, -2, e->name);
    }
    lua_pushlightuserdata(L, memory);
    lua_pushcclosure(L, load_limit, 1);
    lua_setfield(L, -2, "pl.host.limit");
    lua_pushcfunction(L, load_recipes);
    lua_setfield(L, -2, "pl.recipes.text");
    lua_pushcfunction(L, luaopen_cjson);
    lua_setfield(L, -2, "cjson");
    lua_pop(L, 1);
    /* modules come from the program alone: a file of the current directory must not take their place */
    lua_pushliteral(L, "");
    lua_setfield(L, -2, "path");
    lua_pushliteral(L, "");
    lua_setfield(L, -2, "cpath");
    lua_pop(L, 1);
}

/* What is still to be written is written now; where that fails, a status of 0 becomes 1. */
static int end_of_output(int status)
{
    if ((fflush(stdout) == 0 && !ferror(stdout)) || status != 0) return status;
    fprintf(stderr, "perilune: standard output: %s\n", errno ? strerror(errno) : "write error");
    return 1;
}

/* os.exit closes the state by default, so that finalizers give back what is open. */
static int exit_closing(lua_State *L)
{
    lua_settop(L, 1);
    if (lua_isnoneornil(L, 1) || (lua_isboolean(L, 1) ? lua_toboolean(L, 1) : lua_tointeger(L, 1) == 0)) {
        lua_pushinteger(L, end_of_output(0));
        lua_replace(L, 1);
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_pushboolean(L, 1);
    lua_call(L, 2, 0);
    return 0;
}

static void close_at_exit(lua_State *L)
{
    lua_getglobal(L, "os");
    lua_getfield(L, -1, "exit");
    lua_pushcclosure(L, exit_closing, 1);
    lua_setfield(L, -2, "exit");
    lua_pop(L, 1);
}

static int traceback(lua_State *L)
{
    if (!lua_isstring(L, 1)) { /* perilune's own error objects print themselves */
        if (luaL_callmeta(L, 1, "__tostring")) return 1;
        lua_pushfstring(L, "error of type %s", luaL_typename(L, 1));
        return 1;
    }
    luaL_traceback(L, L, lua_tostring(L, 1), 1);
    return 1;
}

static int push_entry(lua_State *L, const char *name, const char *script)
{
    if (!name) return luaL_loadfile(L, script);
    lua_getglobal(L, "require");
    lua_pushstring(L, name);
    if (lua_pcall(L, 1, 1, 0)) return 1;
    if (lua_istable(L, -1)) { /* a module with a main function */
        lua_getfield(L, -1, "main");
        lua_remove(L, -2);
    }
    return 0;
}

int pl_lua_main(const char *name, int argc, char **argv)
{
    capped memory = {.cap = 0};
    lua_State *L = lua_newstate(alloc_capped, &memory);
    if (!L) {
        fputs("perilune: no memory for the Lua state\n", stderr);
        return 1;
    }
    luaL_openlibs(L);
    close_at_exit(L);
    preload(L, &memory);
    lua_newtable(L);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i);
    }
    lua_setglobal(L, "arg");
    lua_pushcfunction(L, traceback);
    int status = 1;
    if (push_entry(L, name, argv[0]) || lua_pcall(L, 0, 1, 1))
        fprintf(stderr, "perilune: %s\n", lua_tostring(L, -1));
    else
        status = lua_isnumber(L, -1) ? (int)lua_tointeger(L, -1) : 0;
    status = end_of_output(status);
    lua_close(L);
    return status;
}
