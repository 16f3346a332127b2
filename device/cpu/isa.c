#include "device/cpu/cpu.h"

#include "base/log.h"

#include <pthread.h>
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

#ifdef SN_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Tiles and their products of bytes: the processor has them, the system keeps them when threads change, tiles are as large as
 * the kernels think. Intel's Software Developer's Manual, volume 1, 18.1 to 18.3. */
static bool amx_is_there(void) {
    enum { TILE = 1 << 24, INT8 = 1 << 25, KEPT = 3 << 17, TILES = 8, ROWS = 16, ROW_BYTES = 64 };
    unsigned a, b, c, d, kept, upper;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    __asm__("xgetbv" : "=a"(kept), "=d"(upper) : "c"(0));
    if ((kept & KEPT) != KEPT) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILE | INT8)) != (TILE | INT8)) return false;
    return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && (b & 0xffff) >= ROW_BYTES && b >> 16 >= TILES &&
           (c & 0xffff) >= ROWS;
}

/* Linux hands tiles out to processes that ask: arch_prctl(2), for all threads there are and will be. */
static bool amx_is_granted(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    return !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA);
}
#endif

bool sn_cpu_kernels_trusted(const sn_cpu_kernels *fast, const sn_cpu_kernels *known) {
    if (sn_cpu_kernels_agree(fast, known)) return true;
    sn_log(SN_LOG_WARN, "kernels that give other bits are not used", "kernels=%s instead=%s", fast->name, known->name);
    return false;
}

/* What this machine has, best first; looked for once. */
static const sn_cpu_kernels *all[4];
static int n_all;

static void look(void) {
#if defined(__x86_64__)
    if (has_avx512()) {
#ifdef SN_AMX
        static sn_cpu_kernels amx;
        amx = sn_cpu_kernels_avx512;
        amx.name = "amx";
        amx.linear = sn_cpu_linear_amx;
        if (amx_is_there() && amx_is_granted() && sn_cpu_kernels_trusted(&amx, &sn_cpu_kernels_avx512)) all[n_all++] = &amx;
#endif
        all[n_all++] = &sn_cpu_kernels_avx512;
    }
    if (has_avx2()) all[n_all++] = &sn_cpu_kernels_avx2;
#endif
    all[n_all++] = &sn_cpu_kernels_c;
}

sn_status sn_cpu_kernels_find(const char *isa, const sn_cpu_kernels **out, sn_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    *out = all[0];
    if (!isa) return SN_OK;
    char names[64] = "";
    size_t at = 0;
    for (int i = 0; i < n_all; i++) {
        *out = all[i];
        if (strcmp(isa, all[i]->name) == 0) return SN_OK;
        at += (size_t)snprintf(names + at, at < sizeof names ? sizeof names - at : 0, "%s%s", i ? ", " : "", all[i]->name);
    }
    *out = NULL;
    return sn_fail(err, SN_REFUSED, "there are no CPU kernels \"%.32s\" on this machine: it has %s", isa, names);
}

/* Measured. Intel Xeon, L3 far away: 10 KB give a third more than none. AMD Zen 4: where computing is faster than reading its
 * hardware looks ahead by itself; 256 bytes help a little where matrices are small (decoding SmolLM2: 2.55 ms, 2.63 with 1 KB, 2.68
 * with none, medians of ten in turns), 1 KB cost up to a tenth where they are large, 2 to 4 KB a third in some runs and nothing in
 * others, 10 KB a tenth to a third. Where rows make a line last longer, because there are many or because they and the panel leave
 * the first-level cache, its hardware falls behind, and reading and computing take their times one after the other: there 8 to
 * 16 KB hide all of it, 4 KB do not, nor does the first level, which panel and rows fill. */
sn_ahead sn_cpu_ahead(const sn_cpu_weight *w, int n_rows) {
#if defined(__x86_64__)
    enum { NEAR = 256, AWAY = 10240, BESIDE = 3072 }; /* BESIDE: elements of rows beside the first; their blocks take twice the bytes */
    const int few = sn_layout_fine(w->layout) || sn_layout_pairs(w->layout) ? 2 : 4;
    const bool quick = n_rows <= few && (size_t)(n_rows - 1) * w->cols < BESIDE;
    if (__builtin_cpu_is("amd")) return (sn_ahead){quick ? NEAR : AWAY, false};
#endif
    (void)w, (void)n_rows;
    return (sn_ahead){10240, true};
}
