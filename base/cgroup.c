/* /proc/self/cgroup has a line for each hierarchy, "NUMBER:CONTROLLERS:PATH"; that of v2 names no controllers. The path
 * is seen from the mount of the hierarchy, or not at all from within a container: then it does not exist there, and
 * the groups around it up to the mount, which is the container's own group, are what counts. */
#include "base/cgroup.h"

#include "base/mem.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

enum { FOLDER_SIZE = 4096, NAME_MAX_BYTES = 64 };

/* The number behind `key` at the beginning of a line of the file folder/name. False: there is none, as in "max". */
static bool read_number(const char *folder, const char *name, const char *key, size_t *out) {
    char path[FOLDER_SIZE + NAME_MAX_BYTES], line[256];
    bool found = false;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key))) continue;
        const char *at = line + strlen(key);
        at += strspn(at, " \t:");
        found = *at >= '0' && *at <= '9';
        if (found) *out = strtoull(at, NULL, 10); /* which turns overflow into the largest number */
        if (*key == 0) break;
    }
    fclose(f);
    return found;
}

/* -- one group ----------------------------------------------------------------------------------------------------- */

/* What the kernel can take back of the group's memory. */
static size_t reclaimable(const char *folder, const char *inactive, const char *active) {
    size_t bytes = 0, more = 0;
    (void)read_number(folder, "memory.stat", inactive, &bytes);
    (void)read_number(folder, "memory.stat", active, &more);
    return sn_add(bytes, more, &bytes) ? bytes : SIZE_MAX;
}

static void limit_memory(const char *folder, size_t limit, const char *current, size_t caches, sn_cgroup_limits *out) {
    size_t used = 0;
    (void)read_number(folder, current, "", &used);
    used -= sn_min_size(used, caches);
    out->memory = sn_min_size(out->memory, limit);
    out->memory_free = sn_min_size(out->memory_free, limit - sn_min_size(limit, used));
}

static void limit_cpus(size_t quota, size_t period, sn_cgroup_limits *out) {
    if (!quota || !period) return;
    const size_t cpus = quota / period + (quota % period != 0);
    if (cpus < 1 << 20 && (!out->cpus || (int)cpus < out->cpus)) out->cpus = (int)cpus;
}

static void read_v1(const char *folder, sn_cgroup_limits *out) {
    size_t limit, quota, period;
    if (read_number(folder, "memory.limit_in_bytes", "", &limit))
        limit_memory(folder, limit, "memory.usage_in_bytes",
                     reclaimable(folder, "total_inactive_file ", "total_active_file "), out);
    if (read_number(folder, "cpu.cfs_quota_us", "", &quota) && read_number(folder, "cpu.cfs_period_us", "", &period))
        limit_cpus(quota, period, out);
}

static void read_v2(const char *folder, sn_cgroup_limits *out) {
    static const char *const limits[] = {"memory.max", "memory.high"}; /* above it a group is slowed down to a halt */
    char path[FOLDER_SIZE + NAME_MAX_BYTES];
    char text[64];
    size_t limit;
    for (int i = 0; i < 2; i++)
        if (read_number(folder, limits[i], "", &limit))
            limit_memory(folder, limit, "memory.current", reclaimable(folder, "inactive_file ", "active_file "), out);
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *f = fopen(path, "re");
    if (f && fgets(text, sizeof text, f)) {
        char *second, *end;
        size_t quota = strtoull(text, &second, 10), period = strtoull(second, &end, 10);
        if (second != text && end != second) limit_cpus(quota, period, out); /* "max 100000" is none */
    }
    if (f) fclose(f);
}

/* -- all groups ---------------------------------------------------------------------------------------------------- */

/* The group `path` below the mount of its hierarchy, and the groups around it. */
static void read_groups(const char *mount, const char *path, void (*read)(const char *, sn_cgroup_limits *),
                        sn_cgroup_limits *out) {
    char folder[FOLDER_SIZE];
    size_t length = strlen(mount);
    if (strstr(path, "/..") || (size_t)snprintf(folder, sizeof folder, "%s%s", mount, path) >= sizeof folder)
        path = ""; /* of a group outside of what this process sees */
    snprintf(folder, sizeof folder, "%s%s", mount, path);
    for (;;) {
        read(folder, out);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < length) return;
        *slash = 0;
    }
}

static bool has_controller(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (!at[length] || at[length] == ',')) return true;
    return false;
}

/* A line of /proc/self/cgroup without its end. */
static void read_line(const char *root, char *line, sn_cgroup_limits *out) {
    char mount[FOLDER_SIZE], *controllers = strchr(line, ':');
    char *path = controllers ? strchr(++controllers, ':') : NULL;
    if (!path) return;
    *path++ = 0;
    if (!*controllers) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        read_groups(mount, path, read_v2, out);
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/unified", root); /* beside hierarchies of v1 */
        read_groups(mount, path, read_v2, out);
    }
    static const char *const read_by[] = {"memory", "cpu"};
    for (int i = 0; i < 2; i++) {
        if (!has_controller(controllers, read_by[i])) continue;
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, read_by[i]);
        read_groups(mount, path, read_v1, out);
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%.64s", root, controllers); /* cpu,cpuacct */
        read_groups(mount, path, read_v1, out);
    }
}

void sn_cgroup_read(const char *root, sn_cgroup_limits *out) {
    char path[FOLDER_SIZE], line[FOLDER_SIZE];
    *out = (sn_cgroup_limits){SIZE_MAX, SIZE_MAX, 0};
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        read_line(root, line, out);
    }
    if (f) fclose(f);
}

/* -- the machine --------------------------------------------------------------------------------------------------- */

int sn_cores(void) {
    cpu_set_t set;
    sn_cgroup_limits limits;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    sn_cgroup_read("", &limits);
    return limits.cpus && limits.cpus < n ? limits.cpus : n;
}

void sn_memory_read(size_t *total, size_t *available) {
    struct sysinfo info;
    sn_cgroup_limits limits;
    size_t kib;
    *total = *available = 0;
    if (sysinfo(&info) == 0) {
        *total = info.totalram * info.mem_unit;
        *available = info.freeram * info.mem_unit;
    }
    if (read_number("/proc", "meminfo", "MemAvailable:", &kib) && !sn_mul(kib, 1024, available)) *available = SIZE_MAX;
    sn_cgroup_read("", &limits);
    *total = sn_min_size(*total, limits.memory);
    *available = sn_min_size(*available, limits.memory_free);
}
