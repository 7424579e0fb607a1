/* plugin.c: finds and opens the CUDA plug-in. */
#include "plugin.h"
#include <dlfcn.h>
#include <stdio.h>

int pl_plugin_open(void **handle, const pl_backend **out, const char *file, pl_err *err)
{
    char msg[160] = "";
    void *h = dlopen(file ? file : "libperilune_cuda.so", RTLD_NOW | RTLD_LOCAL);
    if (!h) return pl_fail(err, PL_EDEV, "cuda: %s", dlerror());
    pl_backend_open_fn *open_fn;
    *(void **)&open_fn = dlsym(h, "pl_backend_open");
    if (!open_fn || open_fn(PL_ABI, out, msg, sizeof msg) < 0) {
        dlclose(h);
        return pl_fail(err, PL_EDEV, "cuda: %s", open_fn ? msg : "the plug-in has no pl_backend_open");
    }
    *handle = h;
    return PL_OK;
}
