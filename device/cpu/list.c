/* The CPU in the list of devices: its name, the memory that this process may use, and its features. */
#include "base/mem.h"
#include "device/backends.h"
#include "device/cpu/kernels.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

/* Finds the first line of a file that begins with `key` and copies the rest of it, the value. False if there is none.
 */
static bool proc_find_line(const char *path, const char *key, char *value, int capacity) {
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "r");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key))) continue;
        const char *at = line + strlen(key);
        at += strspn(at, " \t:");
        snprintf(value, (size_t)capacity, "%.*s", (int)strcspn(at, "\n"), at);
        found = true;
    }
    fclose(f);
    return found;
}

static void cpu_name(char *out, int capacity) {
    static const char *const keys[] = {"model name", "Hardware", "uarch"}; /* x86, Arm, RISC-V */
    for (int i = 0; i < 3; i++)
        if (proc_find_line("/proc/cpuinfo", keys[i], out, capacity) && *out) return;
    snprintf(out, (size_t)capacity, "processor");
}

/* Reads "123 kB" or "123" as bytes. */
static bool read_bytes(const char *path, const char *key, size_t unit, size_t *out) {
    char value[64];
    if (!proc_find_line(path, key, value, sizeof value) || value[0] < '0' || value[0] > '9') return false;
    return sn_mul(strtoull(value, NULL, 10), unit, out); /* strtoull turns overflow into the largest number */
}

static void cpu_memory(size_t *memory, size_t *memory_free) {
    struct sysinfo info;
    size_t limit, used;
    *memory = *memory_free = 0;
    if (sysinfo(&info) == 0) {
        *memory = info.totalram * info.mem_unit;
        *memory_free = info.freeram * info.mem_unit;
    }
    /* Memory that the kernel can reclaim from its caches counts as free; a container may have less than the machine. */
    if (read_bytes("/proc/meminfo", "MemAvailable", 1024, &used)) *memory_free = used;
    if (!read_bytes("/sys/fs/cgroup/memory.max", "", 1, &limit) || limit >= *memory) return;
    *memory = limit;
    if (read_bytes("/sys/fs/cgroup/memory.current", "", 1, &used))
        *memory_free = sn_min_size(*memory_free, limit - sn_min_size(limit, used));
}

sn_status sn_cpu_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) {
    const sn_cpu_kernels *kernels;
    cpu_set_t set;
    sn_status status = sn_cpu_kernels_find(NULL, &kernels, err);
    if (status || *n == SN_DEVICES_MAX) return status;
    sn_device_info *info = &out[(*n)++];
    *info = (sn_device_info){.id = {SN_DEVICE_CPU, 0}};
    int threads = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    cpu_name(info->name, sizeof info->name);
    cpu_memory(&info->memory, &info->memory_free);
    snprintf(info->features, sizeof info->features, "%s, %d thread%s", kernels->name, threads, threads == 1 ? "" : "s");
    return SN_OK;
}
