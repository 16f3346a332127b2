/* The CPU as one of the machine's devices: its name, how much memory this process may have, what it can do. */
#include "base/mem.h"
#include "device/backends.h"
#include "device/cpu/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

/* The rest of the first line of a file that begins with `key`, from its value on; false if there is none. */
static bool find_line(const char *path, const char *key, char *value, int room) {
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "r");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key))) continue;
        const char *at = line + strlen(key);
        at += strspn(at, " \t:");
        snprintf(value, (size_t)room, "%.*s", (int)strcspn(at, "\n"), at);
        found = true;
    }
    fclose(f);
    return found;
}

static void cpu_name(char *out, int room) {
    static const char *const keys[] = {"model name", "Hardware", "uarch"}; /* x86, Arm, RISC-V */
    for (int i = 0; i < 3; i++)
        if (find_line("/proc/cpuinfo", keys[i], out, room) && *out) return;
    snprintf(out, (size_t)room, "processor");
}

/* "123 kB" or "123": bytes. */
static bool read_bytes(const char *path, const char *key, size_t unit, size_t *out) {
    char value[64];
    unsigned long long n;
    return find_line(path, key, value, sizeof value) && sscanf(value, "%llu", &n) == 1 && sn_mul((size_t)n, unit, out);
}

static void cpu_memory(size_t *memory, size_t *memory_free) {
    struct sysinfo info;
    size_t limit, used;
    *memory = *memory_free = 0;
    if (sysinfo(&info) == 0) {
        *memory = info.totalram * info.mem_unit;
        *memory_free = info.freeram * info.mem_unit;
    }
    /* What the kernel would give back from its caches counts as free, and a container has less than the machine. */
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
    snprintf(info->can, sizeof info->can, "%s, %d thread%s", kernels->name, threads, threads == 1 ? "" : "s");
    return SN_OK;
}
