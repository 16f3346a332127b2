/* The tiles of linear_tiles.inc.c by AMX instructions; tiles_c.h documents each name. In assembly, because gcc 12's
 * intrinsics do not declare that TILELOADD and LDTILECFG read memory: the compiler then removes the writes before them.
 */
#ifndef SN_DEVICE_CPU_TILES_AMX_H
#define SN_DEVICE_CPU_TILES_AMX_H

#include "device/cpu/tile_config.h"

#include <stddef.h>

static inline void tile_configure(const tile_config *config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*config) : "memory");
}
static inline void tile_release(void) { __asm__ volatile("tilerelease" ::: "memory"); }

#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define tile_load(t, base, stride)                                                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"((const void *)(base)), "r"((size_t)(stride)) : "memory")
#define tile_store(t, base, stride)                                                                                    \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"((void *)(base)), "r"((size_t)(stride)) : "memory")
#define tile_dot(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#endif
