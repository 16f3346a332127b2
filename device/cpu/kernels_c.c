#include "device/cpu/lanes_c.h"

#include "device/cpu/kernels.inc.c"
