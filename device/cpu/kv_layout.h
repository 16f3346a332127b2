/* The layout of a KV page in the CPU backend: what attention.c writes and attention.inc.c reads. Private to
 * device/cpu/.
 *
 * A page holds page_tokens positions of all blocks (transformer layers) and key-value heads, one (block, head) after
 * the other. Each (block, head) is two parts:
 *
 * - keys: tiles of 16 positions, each (head_dim, 16), so that one vector is the same dimension of 16 keys
 * - values: (position, head_dim rounded up to 16)
 *
 * With shape->latent the values are a part of the keys, and there are only rows like those of values, (position,
 * head_dim rounded up to 16), with the values first; the kernel of scores turns them to tiles.
 *
 * With SN_KV_Q8 the bfloat16 scales follow the integers of each key tile as (groups of 32 dimensions, 16), and the
 * integers of each value as (groups of 32 dimensions). */
#ifndef SN_DEVICE_CPU_KV_LAYOUT_H
#define SN_DEVICE_CPU_KV_LAYOUT_H

#include "device/cpu/pack.h"

/* Dimensions that share a scale with SN_KV_Q8. */
enum { SN_KV_BLOCK = 32 };
/* Scales of one key or value. */
static inline size_t sn_kv_n_scales(int head_dim) { return ((size_t)head_dim + SN_KV_BLOCK - 1) / SN_KV_BLOCK; }
static inline size_t sn_kv_element_bytes(sn_kv_dtype dtype) {
    return dtype == SN_KV_F32 ? 4 : dtype == SN_KV_F16 ? 2 : 1;
}
/* Bytes of a tile of 16 keys, scales included. */
static inline size_t sn_kv_tile_bytes(sn_kv_dtype dtype, int head_dim) {
    return SN_LANES *
           ((size_t)head_dim * sn_kv_element_bytes(dtype) + (dtype == SN_KV_Q8 ? 2 * sn_kv_n_scales(head_dim) : 0));
}
/* Bytes of one value, padding and scales included. */
static inline size_t sn_kv_value_bytes(sn_kv_dtype dtype, int head_dim) {
    size_t width = ((size_t)head_dim + SN_LANES - 1) / SN_LANES * SN_LANES;
    return width * sn_kv_element_bytes(dtype) + (dtype == SN_KV_Q8 ? 2 * sn_kv_n_scales(head_dim) : 0);
}

#endif
