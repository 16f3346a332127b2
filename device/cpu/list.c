/* The CPU in the list of devices: its name, the memory that this process may use, and its features. */
#include "base/cgroup.h"
#include "device/backends.h"
#include "device/cpu/kernels.h"

#include <stdio.h>
#include <string.h>

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

sn_status sn_cpu_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) {
    const sn_cpu_kernels *kernels;
    sn_status status = sn_cpu_kernels_find(NULL, &kernels, err);
    if (status || *n == SN_DEVICES_MAX) return status;
    sn_device_info *info = &out[(*n)++];
    *info = (sn_device_info){.id = {SN_DEVICE_CPU, 0}};
    int threads = sn_cores();
    cpu_name(info->name, sizeof info->name);
    sn_memory_read(&info->memory, &info->memory_free);
    snprintf(info->features, sizeof info->features, "%s, %d thread%s", kernels->name, threads, threads == 1 ? "" : "s");
    return SN_OK;
}
