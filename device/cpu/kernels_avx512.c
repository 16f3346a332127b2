#if defined(__x86_64__)
#include "device/cpu/lanes_avx512.h"

#include "device/cpu/kernels.inc.c"
#endif
