/* What kernels.inc.c and linear_tiles.inc.c share: reading scales, and prefetching weights. Included after a lanes_*.h.
 */
#include "device/cpu/kernels.h"

#ifndef INLINE /* lanes_c.h defines both as plain inline and nothing */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16") /* where an array must become registers as a whole */
#endif
/* Instantiates an inline function with a constant shape as a function of its own: the compiler allocates registers for
 * one loop at a time, which is better and faster. */
#define SPECIAL(name, ...) static __attribute__((noinline)) void name(__VA_ARGS__)

/* The scales of the group at p (of its half h in FINE layouts), and the offsets where there are any. head_d, head_m: of
 * the block, in SUPER layouts. */
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

INLINE void prefetch_lines(const uint8_t *w, size_t bytes, sn_prefetch prefetch) {
    for (size_t at = prefetch.distance; at < prefetch.distance + bytes; at += LINE) {
        if (prefetch.to_l1)
            __builtin_prefetch(w + at);
        else
            __builtin_prefetch(w + at, 0, 2);
    }
}
