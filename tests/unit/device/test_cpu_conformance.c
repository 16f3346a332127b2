/* The conformance suite of all backends with the CPU device and each instruction set of this machine. */
#include "tests/support/conformance.h"
#include "tests/support/cpu_devices.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char *const isas[] = {"c", TEST_ISA_1, TEST_ISA_2, TEST_ISA_3};

static void run_case(conformance_case which) {
    for (int i = 0; i < 4; i++) {
        static conformance c;
        sn_device *probe;
        sn_err err;
        sn_device_options options = {.threads = 1 + i % 2, .isa = isas[i]};
        if (sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &probe, &err)) {
            cr_assert(i > 0, "%s", err.text);
            continue;
        }
        sn_device_close(&probe);
        memset(&c, 0, sizeof c);
        c.id.kind = SN_DEVICE_CPU;
        c.options = options;
        c.eight_bit_rows = true;
        cr_assert(conformance_run(&c, which), "%s: %s", isas[i], c.failure);
    }
}

#define X(name)                                                                                                        \
    Test(cpu_conformance, name) { run_case(CONFORMANCE_##name); }
CONFORMANCE_CASES(X)
