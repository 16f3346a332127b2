/* The numbers of the codes of NF4 (Dettmers et al. 2023, QLoRA) and of FP4, as bitsandbytes has them. */
#ifndef SN_BASE_FLOAT4_H
#define SN_BASE_FLOAT4_H

#include "base/dtype.h"

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

/* NULL: the type is none of the two. */
static inline const float *sn_float4_values(sn_dtype dtype) {
    return dtype == SN_NF4 ? sn_nf4_values : dtype == SN_FP4 ? sn_fp4_values : NULL;
}

#endif
