/* The description of the machine in reports. */
#include "cli/bench/bench.h"

#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* The value of the first line "name : value" of /proc/cpuinfo, "" where there is none. */
static void read_cpuinfo(const char *name, char *out, size_t capacity) {
    char line[8192];
    FILE *file = fopen("/proc/cpuinfo", "r");
    *out = 0;
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        size_t len = strlen(name);
        if (!colon || strncmp(line, name, len) || (line[len] != ' ' && line[len] != '\t')) continue;
        colon += strspn(colon, ": ");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out, capacity, "%s", colon);
        break;
    }
    if (file) fclose(file);
}

static json_t *instructions(void) {
    static const char *const wanted[] = {"avx2",        "fma",         "f16c",     "avx512f",     "avx512bw",
                                         "avx512_vnni", "avx512_bf16", "avx_vnni", "avx512_fp16", "amx_tile",
                                         "amx_int8",    "amx_bf16",    "asimd",    "asimddp",     "hypervisor"};
    char flags[8192], padded[8196], word[32];
    json_t *list = json_array();
    read_cpuinfo("flags", flags, sizeof flags);
    if (!*flags) read_cpuinfo("Features", flags, sizeof flags); /* on ARM */
    snprintf(padded, sizeof padded, " %s ", flags);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        snprintf(word, sizeof word, " %s ", wanted[i]);
        if (strstr(padded, word)) json_array_append_new(list, json_string(wanted[i]));
    }
    return list;
}

static void read_line(const char *path, char *out, size_t capacity) {
    FILE *file = fopen(path, "r");
    *out = 0;
    if (file && fgets(out, (int)capacity, file)) out[strcspn(out, "\n")] = 0;
    if (file) fclose(file);
}

json_t *sn_bench_machine(void) {
    char text[256], load[64];
    struct utsname kernel;
    time_t now = time(NULL);
    struct tm date;
    json_t *o = json_object();
    read_cpuinfo("model name", text, sizeof text);
    json_object_set_new(o, "cpu", json_string(*text ? text : "unknown"));
    json_object_set_new(o, "instructions", instructions());
    json_object_set_new(o, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(o, "memory_bytes",
                        json_integer((json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE)));
    if (!uname(&kernel)) {
        snprintf(text, sizeof text, "%.60s %.80s %.40s", kernel.sysname, kernel.release, kernel.machine);
        json_object_set_new(o, "kernel", json_string(text));
    }
    read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", text, sizeof text);
    if (*text) json_object_set_new(o, "governor", json_string(text));
    read_line("/proc/loadavg", load, sizeof load);
    if (*load) json_object_set_new(o, "load_at_end", json_string(load));
    json_object_set_new(o, "version", json_string(SN_VERSION));
    gmtime_r(&now, &date);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &date);
    json_object_set_new(o, "date", json_string(text));
    return o;
}
