/* AMX's kernels with tiles emulated in plain C: TEST_TILES and TEST_TILES_AVX512 of cpu_devices.h. */
#ifndef SN_TESTS_SUPPORT_TILES_H
#define SN_TESTS_SUPPORT_TILES_H

#include "device/cpu/kernels.h"

void test_linear_tiles(const sn_linear_job *job, size_t first_panel, size_t end_panel);
#if defined(__x86_64__)
void test_linear_tiles_avx512(const sn_linear_job *job, size_t first_panel, size_t end_panel);
#endif
size_t test_tile_products(void); /* TDPBSSD instructions that this thread emulated in test_linear_tiles */

#endif
