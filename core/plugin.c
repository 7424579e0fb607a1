/* plugin.c: finds and opens the CUDA plug-in, in an order that costs a machine without a GPU nothing: the driver is asked
 * first, by itself, since the plug-in is megabytes and may want libraries that take a tenth of a second to load. */
#include "plugin.h"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

enum { CU_STUB = 34, CU_NO_DEVICE = 100 }; /* the driver's own error numbers */

static int probe_driver(pl_err *err)
{
    int (*init)(unsigned) = NULL, (*count)(int *) = NULL, n = 0, rc = -1;
    void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!h) return pl_fail(err, PL_EDEV, "cuda: no driver on this machine (%s)", dlerror());
    *(void **)&init = dlsym(h, "cuInit");
    *(void **)&count = dlsym(h, "cuDeviceGetCount");
    if (init && count) rc = init(0);
    if (rc == 0) rc = count(&n);
    if (rc == 0 && n > 0) return PL_OK; /* h stays: the plug-in needs it at once */
    dlclose(h);
    if (rc == CU_STUB) return pl_fail(err, PL_EDEV, "cuda: no driver: libcuda.so.1 is the toolkit's stub");
    if (rc == 0 || rc == CU_NO_DEVICE) return pl_fail(err, PL_EDEV, "cuda: a driver, but no device");
    return pl_fail(err, PL_EDEV, "cuda: the driver does not start, error %d", rc);
}

/* Beside the program, or where `install` puts it. */
static int find_file(char *path, size_t cap, pl_err *err)
{
    static const char *const place[] = {"", "../lib/perilune/"};
    char dir[512];
    const ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(dir, '/');
    if (slash) slash[1] = 0;
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        snprintf(path, cap, "%s%slibperilune_cuda.so", dir, place[i]);
        if (access(path, R_OK) == 0) return PL_OK;
    }
    return pl_fail(err, PL_EDEV, "cuda: a device, but no libperilune_cuda.so beside the program or in ../lib/perilune");
}

int pl_plugin_open(void **handle, const pl_backend **out, const char *file, pl_err *err)
{
    char msg[160] = "", path[600];
    if (!file) {
        PL_TRY(probe_driver(err));
        PL_TRY(find_file(path, sizeof path, err));
        file = path;
    }
    void *h = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!h) return pl_fail(err, PL_EDEV, "cuda: the plug-in does not load: %s", dlerror());
    pl_backend_open_fn *open_fn;
    *(void **)&open_fn = dlsym(h, "pl_backend_open");
    if (!open_fn || open_fn(PL_ABI, out, msg, sizeof msg) < 0) {
        dlclose(h);
        if (!open_fn) return pl_fail(err, PL_EDEV, "cuda: %s is no plug-in of perilune", file);
        return pl_fail(err, PL_EDEV, "cuda: %s", msg);
    }
    *handle = h;
    return PL_OK;
}
