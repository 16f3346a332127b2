#include "device/device.h"

#include "device/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const kind_names[] = {"cpu", "cuda", "xpu"};
enum { ORDINAL_MAX = 1023 };

/* ":3" -> 3, "" -> 0; false for anything else. */
static bool parse_ordinal(const char *text, int *out) {
    *out = 0;
    if (!*text) return true;
    if (*text++ != ':' || !*text || strlen(text) > 4) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        *out = *out * 10 + (*text - '0');
    }
    return *out <= ORDINAL_MAX;
}

sn_status sn_device_id_parse(const char *name, sn_device_id *out, sn_err *err) {
    for (int kind = SN_DEVICE_CPU; kind <= SN_DEVICE_XPU; kind++) {
        size_t len = strlen(kind_names[kind]);
        int ordinal;
        if (strncasecmp(name, kind_names[kind], len) || !parse_ordinal(name + len, &ordinal)) continue;
        if (kind == SN_DEVICE_CPU && ordinal) break;
        *out = (sn_device_id){(sn_device_kind)kind, ordinal};
        return SN_OK;
    }
    return sn_fail(err, SN_REFUSED, "\"%.64s\" is no device: give cpu, cuda:N or xpu:N", name);
}

char *sn_device_id_name(sn_device_id id, char out[32]) {
    if (id.kind == SN_DEVICE_CPU)
        snprintf(out, 32, "cpu");
    else
        snprintf(out, 32, "%s:%d", kind_names[id.kind], id.ordinal);
    return out;
}

sn_status sn_device_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) {
    *out = NULL;
    switch (id.kind) {
    case SN_DEVICE_CPU:
        return sn_cpu_open(id, options, out, err);
    case SN_DEVICE_CUDA:
        return sn_fail(err, SN_REFUSED, "this build has no CUDA backend: use cpu");
    case SN_DEVICE_XPU:
        return sn_fail(err, SN_REFUSED, "this build has no Level Zero backend: use cpu");
    }
    return sn_fail(err, SN_REFUSED, "device kind %d does not exist", (int)id.kind);
}

void sn_device_close(sn_device **device) {
    if (!*device) return;
    (*device)->ops->close(*device);
    *device = NULL;
}

const char *sn_device_describe(const sn_device *device) { return sn_cpu_describe(device); }
