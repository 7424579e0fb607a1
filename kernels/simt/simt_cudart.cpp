// simt_cudart.cpp: the runtime calls that the backend's host code makes, on the CPU (include/cuda_runtime.h). Streams
// run their work at once, or (simt_config "defer") only when someone waits for them, so that a missing wait shows;
// captured work is kept and replayed. Copies are checked against live
// allocations: a wrong direction or length is an error here and silent damage on a device.
#include "simt.h"
#include <map>
#include <mutex>
#include <set>
#include <stdlib.h>
#include <time.h>
#include <vector>

struct CUgraph_st {
    std::vector<std::function<void()>> ops;
};
struct CUgraphExec_st {
    std::vector<std::function<void()>> ops;
};
struct CUstream_st {
    CUgraph_st *capturing;
    std::vector<std::function<void()>> queue;
};
struct CUevent_st {
    double ms;
    bool recorded;
};

static std::mutex mu, queue_mu;
static std::map<char *, size_t> &live = *new std::map<char *, size_t>;
static std::set<cudaStream_t> &streams = *new std::set<cudaStream_t>;
static size_t used;
static const size_t total = (size_t)1 << 30;
static int n_devices = 1;
static cudaError_t last; // not thread_local: that memory is the kernels' shared memory

static cudaError_t err(cudaError_t e)
{
    if (e) last = e;
    return e;
}

static bool keep(cudaStream_t s, std::function<void()> f)
{
    std::lock_guard<std::mutex> lock(queue_mu);
    if (!s || (!s->capturing && !simt::defer_streams())) return false;
    (s->capturing ? s->capturing->ops : s->queue).push_back(f);
    return true;
}

static void drain(cudaStream_t s)
{
    std::lock_guard<std::mutex> lock(queue_mu); // also while it runs: another thread may wait for the same work
    for (auto &f : s->queue) f();
    s->queue.clear();
}

static struct Install {
    Install()
    {
        simt::capture = keep;
        if (const char *e = getenv("SIMT_DEVICES")) n_devices = atoi(e);
    }
} install;

static cudaError_t issue(cudaStream_t s, std::function<void()> f)
{
    if (!keep(s, f)) f();
    return cudaSuccess;
}

static bool on_device(const void *p, size_t n)
{
    std::lock_guard<std::mutex> lock(mu);
    auto it = live.upper_bound((char *)p);
    if (it == live.begin()) return false;
    --it;
    return (char *)p + n <= it->first + it->second;
}

static bool copy_ok(const void *d, const void *s, size_t n, cudaMemcpyKind k)
{
    if (k == cudaMemcpyDefault) return true;
    const bool to_device = k == cudaMemcpyHostToDevice || k == cudaMemcpyDeviceToDevice;
    const bool from_device = k == cudaMemcpyDeviceToHost || k == cudaMemcpyDeviceToDevice;
    return on_device(d, n) == to_device && on_device(s, n) == from_device;
}

// cudaFree, cudaMemcpy and cudaDeviceSynchronize wait for all streams.
static void wait_all()
{
    std::vector<cudaStream_t> all;
    {
        std::lock_guard<std::mutex> lock(mu);
        all.assign(streams.begin(), streams.end());
    }
    for (cudaStream_t s : all) drain(s);
}

static double now_ms()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

extern "C" {
cudaError_t cudaGetDeviceCount(int *n)
{
    if (!n_devices) return err(cudaErrorNoDevice);
    *n = n_devices;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) { return d < 0 || d >= n_devices ? err(cudaErrorInvalidDevice) : cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    if (d < 0 || d >= n_devices) return err(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    strcpy(p->name, simt_has_checker() ? "CPU (simt, checked)" : "CPU (simt)");
    p->totalGlobalMem = total;
    p->sharedMemPerBlockOptin = 166912;
    p->major = 8;
    p->multiProcessorCount = 4;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v)
{
    *v = 0;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = 0;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *f, size_t *t)
{
    std::lock_guard<std::mutex> lock(mu);
    *f = total - used;
    *t = total;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n)
{
    std::lock_guard<std::mutex> lock(mu);
    *p = n <= total - used ? simt::device_alloc(n) : nullptr;
    if (!*p) return err(cudaErrorMemoryAllocation);
    live[(char *)*p] = n;
    used += n;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p)
{
    wait_all();
    std::lock_guard<std::mutex> lock(mu);
    const auto it = live.find((char *)p);
    if (!p) return cudaSuccess;
    if (it == live.end()) return err(cudaErrorInvalidValue);
    used -= it->second;
    live.erase(it);
    simt::device_free(p);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, cudaMemcpyKind k, cudaStream_t st)
{
    if (!copy_ok(d, s, n, k)) return err(cudaErrorInvalidValue);
    return issue(st, [=] { memmove(d, s, n); });
}
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, cudaMemcpyKind k)
{
    wait_all();
    return cudaMemcpyAsync(d, s, n, k, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void *d, size_t dpitch, const void *s, size_t spitch, size_t width, size_t height,
                              cudaMemcpyKind k, cudaStream_t st)
{
    if (width > dpitch || width > spitch) return err(cudaErrorInvalidValue);
    if (!width || !height) return cudaSuccess;
    if (!copy_ok(d, s, width, k) ||
        !copy_ok((char *)d + (height - 1) * dpitch, (const char *)s + (height - 1) * spitch, width, k))
        return err(cudaErrorInvalidValue);
    return issue(st, [=] {
        for (size_t i = 0; i < height; i++) memmove((char *)d + i * dpitch, (const char *)s + i * spitch, width);
    });
}
cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t st)
{
    if (!on_device(d, n)) return err(cudaErrorInvalidValue);
    return issue(st, [=] { memset(d, v, n); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = new CUstream_st{nullptr, {}};
    std::lock_guard<std::mutex> lock(mu);
    streams.insert(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    drain(s);
    std::lock_guard<std::mutex> lock(mu);
    streams.erase(s);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s && s->capturing) return err(cudaErrorStreamCaptureUnsupported);
    if (s)
        drain(s);
    else
        wait_all();
    return simt_status() ? err(cudaErrorLaunchFailure) : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { return cudaStreamSynchronize(nullptr); }
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = new CUevent_st{0, false};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    return issue(s, [=] {
        e->ms = now_ms();
        e->recorded = true;
    });
}
cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    wait_all();
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->recorded || !to->recorded) return err(cudaErrorInvalidResourceHandle);
    *ms = (float)(to->ms - from->ms);
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = simt_status() ? cudaErrorLaunchFailure : last;
    last = cudaSuccess;
    return e;
}
const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorLaunchFailure ? simt_report()
           : e == cudaErrorNoDevice    ? "no device"
           : e                         ? "emulated CUDA error"
                                       : "no error";
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *)
{
    *a = {0, 0, 1024};
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *k, cudaFuncAttribute, int v)
{
    return simt::allow_smem(k, (size_t)v) ? err(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    if (!s || s->capturing) return err(cudaErrorIllegalState);
    s->capturing = new CUgraph_st;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    if (!s || !s->capturing) return err(cudaErrorIllegalState);
    *g = s->capturing;
    s->capturing = nullptr;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    *x = new CUgraphExec_st{g->ops};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    for (auto &f : x->ops) issue(s, f);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    delete x;
    return cudaSuccess;
}
}
