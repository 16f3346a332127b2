/* The machine code of AMX's kernels on processors that lack it: they refuse the instruction, and a signal handler plays it with
 * tiles_c.h, by the manual's encodings. Slow; for tests. */
#ifndef SN_TESTS_SUPPORT_AMX_TRAP_H
#define SN_TESTS_SUPPORT_AMX_TRAP_H

#include "device/cpu/cpu.h"

/* sn_cpu_linear_amx, from now on played in this process. NULL where that cannot be: the assembler of this build has no AMX, the
 * processor no AVX-512, or it has AMX itself. */
void (*test_amx_trapped(void))(const sn_linear_job *job, size_t first_panel, size_t end_panel);
size_t test_amx_trapped_products(void); /* TDPBSSD's that were played */

#endif
