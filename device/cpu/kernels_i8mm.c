#if defined(__aarch64__)
#include "device/cpu/lanes_neon.h"

#include "device/cpu/kernels.inc.c"
#endif
