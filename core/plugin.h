#ifndef PL_PLUGIN_H
#define PL_PLUGIN_H
/* The CUDA backend is a shared object opened at run time, so that one build of perilune starts everywhere. */
#include "dev.h"

/* Opens the plug-in. file NULL: asks the driver for devices, then takes libperilune_cuda.so from beside the program or
 * from ../lib/perilune. A file that is named is loaded without asking the driver (tests: the build for the CPU).
 * PL_EDEV, with one sentence, where there is no driver, no device, no plug-in, or a library of the plug-in is missing. */
int pl_plugin_open(void **handle, const pl_backend **out, const char *file, pl_err *err);
#endif
