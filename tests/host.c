/* host.c: pl-lua FILE [ARG...]: runs a Lua script with perilune's modules at hand, for tests. */
#include "host.h"
#include "fault.h"
#include "kv.h"
#include "lua_host.h"
#include <stdio.h>
#include <stdlib.h>

/* Scripts arm faults through these, by FFI; nothing that users run has them. */
#pragma GCC visibility push(default)
void pl_test_fault(pl_kv *kv, int32_t what, int64_t owner, int32_t index);
bool pl_test_struck(const pl_kv *kv);
#pragma GCC visibility pop

/* Arms a fault for a request; what 0: none any more. */
void pl_test_fault(pl_kv *kv, int32_t what, int64_t owner, int32_t index)
{
    pl_fault *f = kv->tags.fault;
    if (f) {
        free(f->page);
        free(f->tag);
        free(f);
    }
    kv->tags.fault = f = what ? calloc(1, sizeof *f) : NULL;
    if (f) *f = (pl_fault){.what = what, .owner = owner, .index = index};
}

bool pl_test_struck(const pl_kv *kv) { return kv->tags.fault && kv->tags.fault->struck; }

int main(int argc, char **argv)
{
    if (argc < 2) {
        fputs("usage: pl-lua FILE [ARG...]\n", stderr);
        return 2;
    }
    pl_host_init();
    return pl_lua_main(0, argc - 1, argv + 1);
}
