/* lua_host.c: creates Lua states, gives them perilune's modules, and runs one of these: in the program's own thread, and in
 * the front threads. */
#include "lua_host.h"
#include "base.h"
#include <errno.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

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
    double left, until_s; /* of the function that `bounded` runs: instructions, and its thread's time */
    const char *over;     /* the limit that it hit; NULL: none */
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

/* bounded(f, instructions, seconds, ...): f(...) in a coroutine of its own, which is left where it stands when a limit is
 * hit: no pcall of f's can swallow that, as it could an error. Returns true; false, the error and the coroutine; or nil,
 * the limit and the coroutine. Compiled code asks no hook: the caller sees to it that nothing of f is compiled. */
enum { TICK = 100 };

static double thread_time_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void tick(lua_State *L, lua_Debug *ar)
{
    void *arg;
    (void)ar;
    (void)lua_getallocf(L, &arg);
    capped *c = arg;
    c->left -= TICK;
    if (!c->over) c->over = c->left < 0 ? "instructions" : thread_time_s() > c->until_s ? "seconds" : NULL;
    if (!c->over) return;
    lua_sethook(L, tick, LUA_MASKCOUNT, 1); /* f's own coroutines and callbacks go on for an instruction each */
    lua_yield(L, 0);
}

static int run_bounded(lua_State *L)
{
    capped *c = lua_touserdata(L, lua_upvalueindex(1));
    const lua_Hook hook = lua_gethook(L);
    const int mask = lua_gethookmask(L), count = lua_gethookcount(L), n = lua_gettop(L) - 3;
    lua_State *co = lua_newthread(L);
    lua_insert(L, 1);
    c->left = luaL_checknumber(L, 3);
    c->until_s = thread_time_s() + luaL_checknumber(L, 4);
    c->over = NULL;
    lua_pushvalue(L, 2);
    lua_xmove(L, co, 1);
    lua_xmove(L, co, n);
    lua_sethook(co, tick, LUA_MASKCOUNT, TICK);
    const int rc = lua_resume(co, n);
    lua_sethook(co, hook, mask, count);
    if (rc == 0) {
        lua_pushboolean(L, 1);
        return 1;
    }
    if (rc == LUA_YIELD && c->over) {
        lua_pushnil(L);
        lua_pushstring(L, c->over);
    } else {
        lua_pushboolean(L, 0);
        if (rc == LUA_YIELD)
            lua_pushliteral(L, "it yields");
        else
            lua_xmove(co, L, 1);
    }
    lua_pushvalue(L, 1);
    return 3;
}

static int load_bounded(lua_State *L)
{
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushcclosure(L, run_bounded, 1);
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
    lua_pushlightuserdata(L, memory);
    lua_pushcclosure(L, load_bounded, 1);
    lua_setfield(L, -2, "pl.host.bounded");
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

/* The compiler keeps no load as an operand of a later instruction: LuaJIT 2.1 of Debian 12 takes pairs' value from the
 * table once more where it is used, and finds what has been stored there meanwhile. */
static void keep_loads(lua_State *L)
{
    lua_getglobal(L, "jit");
    lua_getfield(L, -1, "opt");
    lua_getfield(L, -1, "start");
    lua_pushliteral(L, "-fuse");
    lua_call(L, 1, 0);
    lua_pop(L, 2);
}

static lua_State *new_state(capped *memory)
{
    lua_State *L = lua_newstate(alloc_capped, memory);
    if (!L) return NULL;
    luaL_openlibs(L);
    keep_loads(L);
    preload(L, memory);
    return L;
}

int pl_lua_main(const char *name, int argc, char **argv)
{
    capped memory = {.cap = 0};
    lua_State *L = new_state(&memory);
    if (!L) {
        fputs("perilune: no memory for the Lua state\n", stderr);
        return 1;
    }
    close_at_exit(L);
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

/* Front threads ------------------------------------------------------------------------------------------ */

enum { MAX_FRONTS = 64 };

struct pl_front {
    pl_front_opts o;
    char module[64];
    pthread_t thread[MAX_FRONTS];
    int32_t n_threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t n_loaded, n_failed;
    bool is_open;
    char why[160]; /* why one did not start */
};

static void report(pl_front *f, const char *why) /* NULL: the module is loaded */
{
    pthread_mutex_lock(&f->lock);
    if (why && f->is_open)
        fprintf(stderr, "perilune: a front thread has ended: %s\n", why);
    else if (why)
        snprintf(f->why, sizeof f->why, "%s", why);
    f->n_loaded += !why;
    f->n_failed += why != NULL;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* All that may raise an error, so in a protected call: the module's run, with its arguments. Its errors are answers. */
static int run_front(lua_State *L)
{
    pl_front *f = lua_touserdata(L, 1);
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) < 0) return luaL_error(L, "no random seed");
    lua_getglobal(L, "require");
    lua_pushstring(L, f->module);
    lua_call(L, 1, 1);
    if (!lua_istable(L, -1)) return luaL_error(L, "module %s is no table", f->module);
    lua_getfield(L, -1, "run");
    if (!lua_isfunction(L, -1)) return luaL_error(L, "module %s has no function run", f->module);
    lua_pushlightuserdata(L, f->o.in);
    lua_pushlightuserdata(L, f->o.out);
    lua_pushlightuserdata(L, (void *)(size_t)f->o.tok);
    lua_pushnumber(L, (double)(seed >> 11));
    report(f, NULL);
    lua_call(L, 4, 0);
    return 0;
}

static void *front_main(void *arg)
{
    pl_front *f = arg;
    capped memory = {.cap = 0};
    lua_State *L = new_state(&memory);
    if (!L) {
        report(f, "no memory for its Lua state");
        return NULL;
    }
    lua_pushcfunction(L, traceback);
    lua_pushcfunction(L, run_front);
    lua_pushlightuserdata(L, f);
    if (lua_pcall(L, 1, 0, 1)) report(f, lua_tostring(L, -1));
    lua_close(L);
    return NULL;
}

/* Signals are the program's own thread's. */
static int start_threads(pl_front *f, int32_t n)
{
    sigset_t all, before;
    int rc = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (f->n_threads < n && rc == 0) {
        rc = pthread_create(&f->thread[f->n_threads], NULL, front_main, f);
        f->n_threads += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int pl_front_open(pl_front **out, const pl_front_opts *o, pl_err *err)
{
    if (o->n_threads < 0 || o->n_threads > MAX_FRONTS)
        return pl_fail(err, PL_EARG, "front: %d threads, want 0 to %d", o->n_threads, MAX_FRONTS);
    pl_front *f = calloc(1, sizeof *f);
    if (!f) return pl_fail(err, PL_ENOMEM, "front: no memory");
    f->o = *o;
    snprintf(f->module, sizeof f->module, "%s", o->module);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    int rc = start_threads(f, o->n_threads);
    if (rc) rc = pl_fail(err, PL_ENOMEM, "front: thread %d: %s", f->n_threads, strerror(rc));
    pthread_mutex_lock(&f->lock);
    while (f->n_loaded + f->n_failed < f->n_threads) pthread_cond_wait(&f->changed, &f->lock);
    if (f->n_failed && rc == 0) rc = pl_fail(err, PL_EARG, "front: %s", f->why);
    f->is_open = true;
    pthread_mutex_unlock(&f->lock);
    if (rc < 0) {
        pl_front_close(f);
        return rc;
    }
    *out = f;
    return PL_OK;
}

void pl_front_close(pl_front *f)
{
    if (!f) return;
    if (f->o.in) pl_mail_close(f->o.in);
    if (f->o.out) pl_mail_close(f->o.out);
    for (int32_t i = 0; i < f->n_threads; i++) pthread_join(f->thread[i], NULL);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->changed);
    free(f);
}
