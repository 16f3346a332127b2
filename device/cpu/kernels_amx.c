#ifdef SN_AMX /* the assembler supports it: CMakeLists.txt */
#include "device/cpu/lanes_avx512.h"
#include "device/cpu/tiles_amx.h"

#define LINEAR_TILES    sn_cpu_linear_amx
#define LINEAR_FALLBACK sn_cpu_kernels_avx512.linear
#include "device/cpu/linear_tiles.inc.c"
#endif
