#ifndef PL_PLUGIN_H
#define PL_PLUGIN_H
/* The CUDA backend is a shared object opened at run time, so that one build of perilune starts everywhere. */
#include "dev.h"

/* Opens the plug-in (file NULL: libperilune_cuda.so beside the program, then by the loader's own search). Where there
 * is no driver, no plug-in, a library of the plug-in missing, or no device: PL_EDEV and one clear sentence. */
int pl_plugin_open(void **handle, const pl_backend **out, const char *file, pl_err *err);
#endif
