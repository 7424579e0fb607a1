#ifndef SIMT_C_H
#define SIMT_C_H
/* What tests, in C, ask of the CPU build of the kernels. The plug-in built for the CPU exports these beside
 * pl_backend_open; a test that finds none of them (dlsym) runs on a real device. */
#include <stddef.h>
#define SIMT_API __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C" {
#endif
enum {                       /* what a launch can be blamed for */
       SIMT_DEADLOCK = 1001, /* no thread can run */
       SIMT_DIVERGENCE,      /* threads meet at different barriers, or left before one */
       SIMT_MASK,            /* a warp mask without the caller, or with lanes that have left */
       SIMT_LANE,            /* a shuffle from a lane outside the mask */
       SIMT_STACK,           /* a thread's stack overflowed */
       SIMT_RACE,            /* checker: unordered accesses, one of them a write */
       SIMT_MEM,             /* out of bounds, or misaligned */
       SIMT_UNINIT,          /* checker: read of shared memory that nobody wrote */
       SIMT_CONFIG,          /* launch configuration that a device refuses */
       SIMT_ASYNC            /* misuse of asynchronous copies */
};
SIMT_API int simt_status(void);         /* 0, or the first problem since the last call; clears it */
SIMT_API const char *simt_report(void); /* its text */
/* order: 0 forward, 1 reverse, 2 random by seed; lazy: asynchronous copies land as late as legal; defer: streams
 * run their work when someone waits for it; threads: OS threads for blocks; strict: 0 = exited threads count as arrived; quiet; spin_ms: patience with a spinning kernel.
 * The same from the environment: SIMT_ORDER=fwd|rev|rand, SIMT_SEED, SIMT_LAZY, SIMT_THREADS, ... */
SIMT_API void simt_config(const char *key, long v);
SIMT_API int simt_has_checker(void);
SIMT_API unsigned long long simt_stat(const char *key); /* threads, blocks, switches, collectives */
#ifdef __cplusplus
}
#endif
#endif
