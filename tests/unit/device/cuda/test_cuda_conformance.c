/* The conformance suite with the CUDA backend on the stand-in: the backend's host side, and the arithmetic of its
 * kernels thread by thread. Twice: with all work as late as possible, and with copies concurrent with the queue as
 * early as possible. Products of many rows go another way each time, and those of `linear` two more. */
#include "base/program_environment.h"
#include "tests/support/conformance.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const conformance_faults faults = {
    .fail_allocation = cuda_stand_in_fail_allocation,
    .stall = cuda_stand_in_stall,
    .lose = cuda_stand_in_lose,
    .heal = cuda_stand_in_heal,
};

static char way[] = "kernel-128";
static char *environment(const char *name) { return strcmp(name, "SWARM_CUDA_PRODUCTS") ? NULL : way; }

static void run_case(conformance_case which) {
    static const char *const ways[] = {"kernel-128", "cublas", "kernel-64", "cublaslt"};
    static conformance c;
    int times = strncmp(conformance_name(which), "linear", 6) ? 2 : 4;
    sn_environment_use(environment);
    for (int run = 0; run < times; run++) {
        bool early = run == 1;
        snprintf(way, sizeof way, "%s", ways[run]);
        cuda_stand_in_reset();
        cuda_stand_in_copies_first(early);
        c = (conformance){
            .id = {SN_DEVICE_CUDA, 1},
            .faults = &faults,
            .memory_used = cuda_stand_in_used,
            /* Many rows: both factors of a product are rounded to bfloat16, by half of 2^-8 each, and slightly more. */
            .linear_rounding = 0x1p-8 * 1.01,
            .eight_bit_rows = true,
        };
        cr_assert(conformance_run(&c, which), "%s, copies %s, %s: %s", conformance_name(which),
                  early ? "early" : "late", way, c.failure);
        cr_assert_eq(cuda_stand_in_objects(), 0, "%s: streams, events or graphs were left", conformance_name(which));
        cr_assert_eq(cuda_stand_in_pinned(), 0, "%s: pinned memory was left", conformance_name(which));
    }
}

#define X(name)                                                                                                        \
    Test(cuda_conformance, name) { run_case(CONFORMANCE_##name); }
CONFORMANCE_CASES(X)
#undef X
