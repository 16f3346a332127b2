/* What a recurrent block does with the rows behind its short convolution. device/device.h (delta_rule) has formulas. */
#ifndef SN_BASE_RECURRENCE_H
#define SN_BASE_RECURRENCE_H

typedef enum sn_recurrence {
    SN_GATED_DELTA, /* the gated delta rule: a head's matrix decays as a whole. Yang et al. 2024 */
    SN_KEYED_DELTA, /* the same, with a decay for each element of the key. Kimi Team 2025 (KDA) */
    SN_STATE_SPACE, /* nothing is taken out of the matrix but by its decay. Dao & Gu 2024 (Mamba-2) */
    SN_SHORT_CONV,  /* nothing: there is the convolution alone, without an activation. Liquid AI 2025 (LFM2) */
    SN_RECURRENCE_COUNT
} sn_recurrence;

#endif
