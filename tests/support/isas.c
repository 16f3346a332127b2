/* Unit tests ask for instruction sets by name, and skip those that this machine lacks. Every such case is listed by
 * name here, so that scripts/test.sh counts it as skipped and not as passed. SN_TEST_ISA=avx2 hides the sets after
 * AVX2: a machine that has all of them then runs the tests as one that has not. The linker puts this function before
 * that of device/cpu/isa.c (--wrap). */
#include "device/cpu/kernels.h"
#include "tests/support/cpu_devices.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sn_status __real_sn_cpu_kernels_find(const char *isa, const sn_cpu_kernels **out, sn_err *err);
sn_status __wrap_sn_cpu_kernels_find(const char *isa, const sn_cpu_kernels **out, sn_err *err);

static const char *const isas[] = {"c", TEST_ISA_1, TEST_ISA_2, TEST_ISA_3};
enum { N_ISAS = sizeof isas / sizeof *isas };

static int isa_rank(const char *isa) { /* N_ISAS: of no instruction set */
    int i = 0;
    while (isa && i < N_ISAS && strcmp(isa, isas[i])) i++;
    return isa ? i : N_ISAS;
}

sn_status __wrap_sn_cpu_kernels_find(const char *isa, const sn_cpu_kernels **out, sn_err *err) {
    static bool listed[N_ISAS];
    const char *most = getenv("SN_TEST_ISA");
    int rank = isa_rank(isa);
    if (most && isa_rank(most) < N_ISAS && !isa) isa = most;
    sn_status status =
        most && rank < N_ISAS && rank > isa_rank(most)
            ? sn_fail(err, SN_REFUSED, "there are no CPU kernels \"%s\" on this machine: it has %s", isa, most)
            : __real_sn_cpu_kernels_find(isa, out, err);
    if (!status || rank == N_ISAS || listed[rank]) return status;
    listed[rank] = true;
    fprintf(stderr, "skipped: %s/%s on %s\n", criterion_current_test->category, criterion_current_test->name, isa);
    return status;
}
