#if defined(__x86_64__)
#include "tests/support/tiles.h"

#include "device/cpu/lanes_avx512.h"
#include "device/cpu/tiles_c.h"

#define LINEAR_TILES    test_linear_tiles_avx512
#define LINEAR_FALLBACK sn_cpu_kernels_avx512.linear
#include "device/cpu/linear_tiles.inc.c"
#endif
