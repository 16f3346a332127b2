/* What kernels.inc.c and linear_tiles.inc.c share; behind a lanes_*.h. */
#include "device/cpu/cpu.h"

#ifndef INLINE /* lanes_c.h leaves both to the compiler */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16") /* where an array must become registers altogether */
#endif
/* An inline function with its shape made constant, as a function of its own: the compiler allots registers to one loop at a
 * time, better and sooner. */
#define SPECIAL(name, ...) static __attribute__((noinline)) void name(__VA_ARGS__)

/* Scales of the group (FINE: of its half h) at p, and offsets where there are any; of the block's head before. */
INLINE void load_scales(sn_layout layout, const uint8_t *p, int h, vf head_d, vf head_m, vf *d, vf *m) {
    const float *wide = (const float *)p;
    if (sn_layout_super(layout)) {
        *d = vf_mul(head_d, vf_from_i8(p + (sn_layout_fine(layout) ? SN_LANES * h : 0)));
        if (sn_layout_offsets(layout)) *m = vf_mul(head_m, vf_from_i8(p + SN_LANES));
    } else if (layout == SN_LAYOUT_Q8_WIDE || layout == SN_LAYOUT_Q8_FINE) {
        *d = vf_load(wide + SN_LANES * h);
        *m = vf_load(wide + (sn_layout_fine(layout) ? 2 * SN_LANES : SN_LANES) + SN_LANES * h);
    } else if (layout == SN_LAYOUT_Q4_TABLE) {
        *d = vf_from_bf16(p);
    } else {
        *d = vf_from_f16(p);
        if (sn_layout_offsets(layout)) *m = vf_from_f16(p + 32);
    }
}

enum { LINE = 64 };

INLINE void prefetch_lines(const uint8_t *w, size_t bytes, sn_ahead ahead) {
    for (size_t at = ahead.bytes; at < ahead.bytes + bytes; at += LINE) {
        if (ahead.first_level) __builtin_prefetch(w + at);
        else __builtin_prefetch(w + at, 0, 2);
    }
}
