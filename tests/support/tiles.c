#include "tests/support/tiles.h"

#include "device/cpu/lanes_c.h"
#include "device/cpu/tiles_c.h"

#define LINEAR_TILES    test_linear_tiles
#define LINEAR_FALLBACK sn_cpu_kernels_c.linear
#include "device/cpu/linear_tiles.inc.c"

size_t test_tile_products(void) { return tile_dots; }
