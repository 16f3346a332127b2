/* Which kernels run on this machine: the instruction sets of the processor, the self check of AMX, and the prefetch
 * distances. */
#include "device/cpu/kernels.h"

#include "base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

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

/* Whether the processor has tiles and their products of bytes, the system saves them when it switches threads, and
 * tiles are as large as the kernels assume. Intel's Software Developer's Manual, volume 1, 18.1 to 18.3. */
static bool amx_supported(void) {
    enum { TILE = 1 << 24, INT8 = 1 << 25, XCR0_TILES = 3 << 17, TILES = 8, ROWS = 16, ROW_BYTES = 64 };
    unsigned a, b, c, d, xcr0, upper;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(upper) : "c"(0));
    if ((xcr0 & XCR0_TILES) != XCR0_TILES) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILE | INT8)) != (TILE | INT8)) return false;
    return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && (b & 0xffff) >= ROW_BYTES && b >> 16 >= TILES &&
           (c & 0xffff) >= ROWS;
}

/* Linux permits tiles to a process that asks for them: arch_prctl(2), for all its present and future threads. */
static bool amx_permitted(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    return !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA);
}
#endif

bool sn_cpu_kernels_self_check(const sn_cpu_kernels *fast, const sn_cpu_kernels *known) {
    if (sn_cpu_kernels_bit_equal(fast, known)) return true;
    sn_log(SN_LOG_WARN, "kernels disabled", "kernels=%s fallback=%s", fast->name, known->name);
    return false;
}

/* The kernels of this machine, best first; detected once. */
static const sn_cpu_kernels *available_kernels[4];
static int n_available;

static void kernels_detect(void) {
#if defined(__x86_64__)
    if (has_avx512()) {
#ifdef SN_AMX
        static sn_cpu_kernels amx;
        amx = sn_cpu_kernels_avx512;
        amx.name = "amx";
        amx.linear = sn_cpu_linear_amx;
        if (amx_supported() && amx_permitted() && sn_cpu_kernels_self_check(&amx, &sn_cpu_kernels_avx512))
            available_kernels[n_available++] = &amx;
#endif
        available_kernels[n_available++] = &sn_cpu_kernels_avx512;
    }
    if (has_avx2()) available_kernels[n_available++] = &sn_cpu_kernels_avx2;
#endif
#if defined(__aarch64__)
    const unsigned long bits = getauxval(AT_HWCAP), bits2 = getauxval(AT_HWCAP2);
    if (bits & HWCAP_ASIMDDP && bits2 & HWCAP2_I8MM) available_kernels[n_available++] = &sn_cpu_kernels_i8mm;
    if (bits & HWCAP_ASIMDDP) available_kernels[n_available++] = &sn_cpu_kernels_dotprod;
    available_kernels[n_available++] = &sn_cpu_kernels_neon;
#endif
    available_kernels[n_available++] = &sn_cpu_kernels_c;
}

sn_status sn_cpu_kernels_find(const char *isa, const sn_cpu_kernels **out, sn_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, kernels_detect);
    *out = available_kernels[0];
    if (!isa) return SN_OK;
    char names[64] = "";
    size_t at = 0;
    for (int i = 0; i < n_available; i++) {
        *out = available_kernels[i];
        if (strcmp(isa, available_kernels[i]->name) == 0) return SN_OK;
        at += (size_t)snprintf(names + at, at < sizeof names ? sizeof names - at : 0, "%s%s", i ? ", " : "",
                               available_kernels[i]->name);
    }
    *out = NULL;
    return sn_fail(err, SN_REFUSED, "there are no CPU kernels \"%.32s\" on this machine: it has %s", isa, names);
}

/* The distances are measured.
 *
 * Intel Xeon with a distant L3: 10 KB give a third more speed than no prefetch.
 *
 * AMD Zen 4, where computing is faster than reading: the hardware prefetches by itself. 256 bytes help a little where
 * matrices are small (decoding SmolLM2: 2.55 ms; 2.63 with 1 KB; 2.68 without; medians of ten alternating runs). Where
 * matrices are large, 1 KB cost up to a tenth, 2 to 4 KB a third in some runs and nothing in others, 10 KB a tenth to a
 * third.
 *
 * AMD Zen 4, where a cache line takes longer to use, because there are many rows, or because the rows and the panel
 * exceed the first-level cache: the hardware falls behind, and the times of reading and computing add up. 8 to 16 KB
 * hide all of the reading; 4 KB do not, and neither does a prefetch to the first level, which panel and rows fill. */
sn_prefetch sn_cpu_prefetch(const sn_cpu_weight *w, int n_rows) {
#if defined(__x86_64__)
    /* MORE_ROWS_MAX: elements of the rows after the first; as blocks they take twice as many bytes. */
    enum { NEAR = 256, FAR = 10240, MORE_ROWS_MAX = 3072 };
    const int few = sn_cpu_fine(w->dtype) || sn_cpu_pairs(w->dtype) ? 2 : 4;
    const bool quick = n_rows <= few && (size_t)(n_rows - 1) * w->cols < MORE_ROWS_MAX;
    if (__builtin_cpu_is("amd")) return (sn_prefetch){quick ? NEAR : FAR, false};
#endif
    (void)w, (void)n_rows;
    return (sn_prefetch){10240, true};
}
