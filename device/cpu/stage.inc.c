/* Weights on their way to many rows: some groups of a panel, unpacked once for all rows, whatever the type, into bytes
 * and scales as float32. Included after weights.inc.c and STAGE_ZERO(t): by how much the bytes are to be larger than
 * the integers of the type. */
#include "base/mem.h"

enum {
    /* of 32 k, a multiple of a block's: the stages and the part of some rows of x that meets them fit into the
     * first-level cache */
    STAGE_GROUPS = 16,
    STAGE_PANELS = 2, /* at a time, so that x is loaded from the more distant caches half as often */
    STAGE_GROUP_BYTES = SN_QUANT_GROUP * SN_LANES,
};

typedef struct stage {
    _Alignas(64) int8_t q[STAGE_GROUPS * STAGE_GROUP_BYTES];            /* [k / 4][lane][k % 4] */
    float d[2 * STAGE_GROUPS][SN_LANES], m[2 * STAGE_GROUPS][SN_LANES]; /* of each group, or of each half */
} stage;

/* Group number `at` of a stage. */
INLINE void stage_group(sn_dtype t, stage *s, size_t at, group_at g, vf head_d, vf head_m) {
    const size_t halves = sn_cpu_fine(t) ? 2 : 1;
    vb numbers[8];
    load_vectors(t, g, 0, 8, numbers);
    UNROLL
    for (int v = 0; v < 8; v++)
        vb_store(s->q + at * STAGE_GROUP_BYTES + SN_VECTOR * v,
                 vb_less(numbers[v], (uint8_t)(sn_cpu_zero(t) - STAGE_ZERO(t))));
    for (size_t h = 0; h < halves; h++) {
        vf d, m = vf_set(0);
        load_scales(t, g.w + sn_cpu_code_bytes(t), (int)h, head_d, head_m, &d, &m);
        vf_store(s->d[at * halves + h], d);
        if (sn_cpu_offsets(t)) vf_store(s->m[at * halves + h], m);
    }
}

/* Groups [first, first + n) of a panel: whole blocks. */
INLINE void stage_fill_as(sn_dtype t, stage *s, const sn_cpu_weight *w, sn_prefetch prefetch, size_t panel,
                          size_t first, size_t n) {
    const size_t in_block = sn_cpu_groups(t);
    const uint8_t *at = w->data + panel * w->panel_bytes + first / in_block * sn_cpu_block_bytes(t);
    for (size_t done = 0; done < n;) {
        vf head_d, head_m;
        uint16_t places[PLACES];
        load_head(t, at, &head_d, &head_m);
        at += sn_cpu_head_bytes(t);
        load_places(t, at, in_block, places);
        for (size_t g = 0; g < in_block; g++, done++, at += sn_cpu_group_bytes(t)) {
            prefetch_lines(at, sn_cpu_group_bytes(t), prefetch);
            stage_group(t, s, done, group_of(t, at, g, places), head_d, head_m);
        }
    }
}

typedef void (*stage_fill_fn)(stage *s, const sn_cpu_weight *w, sn_prefetch prefetch, size_t panel, size_t first,
                              size_t n);
#define X(name, ...)                                                                                                   \
    SPECIAL(stage_fill_##name, stage *s, const sn_cpu_weight *w, sn_prefetch prefetch, size_t panel, size_t first,     \
            size_t n) {                                                                                                \
        stage_fill_as(SN_##name, s, w, prefetch, panel, first, n);                                                     \
    }
SN_ALL_QUANT_TYPES(X)
#undef X
static const stage_fill_fn stage_fill[SN_DTYPE_COUNT] = {
#define X(name, ...) [SN_##name] = stage_fill_##name,
    SN_ALL_QUANT_TYPES(X)
#undef X
};
