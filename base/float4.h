/* NF4 (Dettmers et al. 2023, QLoRA) and FP4 as bitsandbytes has them: the numbers of the codes, and how the blocks of
 * base/dtype.h are read. All elements of a part share a scale, which is a float32; or a code, of which the block says
 * what its number is multiplied by and moved by. */
#ifndef SN_BASE_FLOAT4_H
#define SN_BASE_FLOAT4_H

#include "base/dtype.h"

#include <string.h>

enum { SN_FLOAT4_PART = 64, SN_FLOAT4_PARTS = 4 /* of a block of 256 */ };

static const float sn_nf4_values[16] = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};
/* FP4: 0, 1/16, 8, 12, 4, 6, 2 and 3 over 12, then the same with a sign. */
static const float sn_fp4_values[16] = {0.0f,
                                        0.0052083334885537624f,
                                        0.6666666865348816f,
                                        1.0f,
                                        0.3333333432674408f,
                                        0.5f,
                                        0.1666666716337204f,
                                        0.25f,
                                        -0.0f,
                                        -0.0052083334885537624f,
                                        -0.6666666865348816f,
                                        -1.0f,
                                        -0.3333333432674408f,
                                        -0.5f,
                                        -0.1666666716337204f,
                                        -0.25f};

/* NULL: the type is none of these. */
static inline const float *sn_float4_values(sn_dtype t) {
    return t == SN_NF4 || t == SN_NF4_256 ? sn_nf4_values : t == SN_FP4 || t == SN_FP4_256 ? sn_fp4_values : NULL;
}

/* Whether scales are codes. */
static inline bool sn_float4_twice(sn_dtype t) { return t == SN_NF4_256 || t == SN_FP4_256; }

/* The numbers of these codes, which grow with the code: bitsandbytes' signed dynamic map. Made before main begins. */
extern float sn_float4_scales[256];

/* Part `part` of a block: its scale, computed as bitsandbytes does, and its codes. */
static inline float sn_float4_scale(sn_dtype t, const uint8_t *block, size_t part) {
    float both[2]; /* factor, offset */
    if (sn_float4_twice(t)) {
        memcpy(both, block, sizeof both);
        both[0] = sn_float4_scales[block[sizeof both + part]] * both[0];
        return both[0] + both[1];
    }
    memcpy(both, block, sizeof both[0]);
    return both[0];
}
static inline const uint8_t *sn_float4_codes(sn_dtype t, const uint8_t *block, size_t part) {
    return block + (sn_float4_twice(t) ? 2 * sizeof(float) + SN_FLOAT4_PARTS : sizeof(float)) +
           part * (SN_FLOAT4_PART / 2);
}

#endif
