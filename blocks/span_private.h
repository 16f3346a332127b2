/* The struct of a span, for span.c (forward passes), train.c (forward and backward passes for training), adapter.c and
 * saved_activations.c. */
#ifndef SN_BLOCKS_SPAN_PRIVATE_H
#define SN_BLOCKS_SPAN_PRIVATE_H

#include "blocks/segment.h"
#include "blocks/span.h"

/* A device of the span, with the activations of a batch on it. */
typedef struct sn_span_device {
    sn_device *device;
    sn_scratch scratch;
    sn_slots slots;
    sn_expert_carrier carrier;
    void *memory; /* device: the buffers of scratch */
    size_t bytes;
} sn_span_device;

struct sn_span {
    sn_hparams hp;
    int first, end;
    sn_hash *hashes; /* [end - first] */
    sn_kv_dtype kv_dtype;
    sn_span_device devices[SN_PLAN_DEVICES_MAX];
    int n_devices;
    sn_segment
        segments[SN_KV_PARTS_MAX]; /* in the order of their blocks; segment i's KV pages are part i of the pool */
    int n_segments;
    int rows_max;                      /* of a batch */
    float *cos_sin;                    /* host, (n_ropes, rows_max, rope_dim): the rope tables of a batch */
    float q_factors[SN_SPAN_ROWS_MAX]; /* of its rows, where hp.q_growth is not 0 */
    sn_sequence sequences[SN_SPAN_ROWS];
    sn_expert_range held; /* experts of each mixture; {0, 0}: there is none */
    sn_expert_split split;
};

/* Whether these are some of the model's experts, and not all. */
static inline bool sn_holds_some_experts(const sn_hparams *hp, sn_expert_range held) {
    return held.end && sn_n_held(held) < hp->n_experts;
}
static inline bool sn_span_is_partial(const sn_span *span) { return sn_holds_some_experts(&span->hp, span->held); }

/* Writes the row of a rope's table for a position (rope 1 of a model with long_after: of a long timeline): (rope_dim/2,
 * 2) cosines and sines. The angle of pair i is position * freq[i] as a float32 product, like the reference's; cosine
 * and sine come from base/math.h, the same on every machine, and are multiplied by the rope's scale. */
void sn_span_rope_row(const sn_hparams *hp, int rope, int position, float *row);

/* By what the query at a position is multiplied where hp->q_growth is not 0. */
float sn_span_q_factor(const sn_hparams *hp, int position);

#endif
