/* cpus.c: which CPUs the threads of kernels go on: those that the process may use, one of each core; and how many of them a
 * container's quota pays for: a thread more, and all of them stand still for the rest of each period.
 * cgroup v1: cpu.cfs_quota_us and cpu.cfs_period_us; v2: cpu.max (kernel documentation, sched-bwc and cgroup-v2). */
#include "cpu.h"
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* The first line of a file, without its end; false: there is none. */
static bool first_line(const char *path, char *line, int32_t cap)
{
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const bool found = fgets(line, cap, f) != NULL;
    fclose(f);
    if (found) line[strcspn(line, "\n")] = 0;
    return found;
}

/* The CPUs of a list as the kernel writes it: "0,8" or "0-1". */
static void add_list(cpu_set_t *set, const char *text)
{
    for (char *end; *text; text = end + 1) {
        const long first = strtol(text, &end, 10);
        long last = first;
        if (end == text) return;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text) return;
        }
        for (long c = pl_max(first, 0); c <= last && c < CPU_SETSIZE; c++) CPU_SET((size_t)c, set);
        if (*end != ',') return;
    }
}

int32_t pl_cpus(const char *root, int32_t *cpu, int32_t cap)
{
    cpu_set_t allowed, taken;
    CPU_ZERO(&taken);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return 0;
    int32_t n = 0;
    for (int i = 0; i < CPU_SETSIZE && n < cap; i++) {
        if (!CPU_ISSET((size_t)i, &allowed) || CPU_ISSET((size_t)i, &taken)) continue;
        cpu[n++] = i;
        char path[512], line[256];
        snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, i);
        if (first_line(path, line, sizeof line)) add_list(&taken, line);
    }
    return n;
}

/* CPUs' worth of time that the group at `dir` pays for; HUGE_VAL: all. */
static double quota_of(const char *dir)
{
    char path[1200], line[64], *end;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (first_line(path, line, sizeof line)) {
        const double quota = strtod(line, &end); /* "max 100000" gives nothing */
        const double period = strtod(end, NULL);
        return end != line && quota > 0 && period > 0 ? quota / period : HUGE_VAL;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    const double quota = first_line(path, line, sizeof line) ? strtod(line, NULL) : -1;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    const double period = first_line(path, line, sizeof line) ? strtod(line, NULL) : 0;
    return quota > 0 && period > 0 ? quota / period : HUGE_VAL;
}

/* Is "cpu" among controllers, "cpu,cpuacct"? */
static bool has_cpu(const char *controllers)
{
    for (const char *p = controllers; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == 3 && !strncmp(p, "cpu", 3)) return true;
    return false;
}

/* A process is in a group of each hierarchy, "NUMBER:CONTROLLERS:PATH"; the groups above it have limits too. In a container
 * the path can be the host's: what is mounted is then the group itself. */
int32_t pl_cpus_paid(const char *root, int32_t n)
{
    char path[512], line[512];
    double least = HUGE_VAL;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        controllers++;
        if (*controllers && !has_cpu(controllers)) continue;
        for (char *end;; *end = 0) {
            char dir[1100];
            snprintf(dir, sizeof dir, "%s/sys/fs/cgroup/%s%s", root, controllers, group);
            least = fmin(least, quota_of(dir));
            if (!(end = strrchr(group, '/'))) break;
        }
    }
    if (f) fclose(f);
    return least < 1 ? 1 : least < n ? (int32_t)least : n;
}
