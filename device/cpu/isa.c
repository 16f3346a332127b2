#include "device/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

sn_status sn_cpu_kernels_find(const char *isa, const sn_cpu_kernels **out, sn_err *err) {
    const sn_cpu_kernels *all[3];
    int n = 0;
#if defined(__x86_64__) /* best first */
    if (has_avx512()) all[n++] = &sn_cpu_kernels_avx512;
    if (has_avx2()) all[n++] = &sn_cpu_kernels_avx2;
#endif
    all[n++] = &sn_cpu_kernels_c;
    *out = all[0];
    if (!isa) return SN_OK;
    char names[64] = "";
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        *out = all[i];
        if (strcmp(isa, all[i]->name) == 0) return SN_OK;
        at += (size_t)snprintf(names + at, at < sizeof names ? sizeof names - at : 0, "%s%s", i ? ", " : "", all[i]->name);
    }
    *out = NULL;
    return sn_fail(err, SN_REFUSED, "there are no CPU kernels \"%.32s\" on this machine: it has %s", isa, names);
}

/* Measured: Intel Xeon, L3 far away: 10 KB give a third more than none. AMD Zen 4: its hardware looks ahead by itself; 256 bytes
 * help a little where matrices are small (decoding SmolLM2: 2.55 ms, 2.63 with 1 KB, 2.68 with none, medians of ten in turns), 1 KB
 * cost up to a tenth where they are large, 2 to 4 KB a third in some runs and nothing in others, 10 KB a tenth to a third. */
size_t sn_cpu_prefetch_ahead(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_is("amd")) return 256;
#endif
    return 10240;
}
