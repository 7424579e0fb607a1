/* fake.c: stands in for a driver (libcuda.so.1 with FAKE_INIT as cuInit's result and FAKE_COUNT devices), for a library
 * that is gone, and for a plug-in that needs it. Only for the sentences of core/plugin.c. */
#ifdef FAKE_INIT
int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);
int cuInit(unsigned flags) { return flags ? -1 : FAKE_INIT; }
int cuDeviceGetCount(int *n)
{
    *n = FAKE_COUNT;
    return 0;
}
#elif defined(FAKE_GONE)
int gone(void);
int gone(void) { return 1; }
#else
int gone(void);
int needs_gone(void);
int needs_gone(void) { return gone(); }
#endif
