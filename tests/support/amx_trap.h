/* Runs the machine code of the AMX kernels on processors without AMX: the processor raises SIGILL at each AMX
 * instruction, and a signal handler emulates the instruction with tiles_c.h, according to the encodings in Intel's
 * manual. Slow; for tests. */
#ifndef SN_TESTS_SUPPORT_AMX_TRAP_H
#define SN_TESTS_SUPPORT_AMX_TRAP_H

#include "device/cpu/kernels.h"

/* Returns sn_cpu_linear_amx and installs the handler that emulates AMX in this process. NULL where emulation is
 * impossible or pointless: the assembler of this build lacks AMX, the processor lacks AVX-512, or the processor has
 * AMX. */
void (*test_amx_trapped(void))(const sn_linear_job *job, size_t first_panel, size_t end_panel);
size_t test_amx_trapped_products(void); /* TDPBSSD instructions that were emulated */

#endif
