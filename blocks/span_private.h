/* Inside of a span, for span.c (a pass) and train.c (forwards and backwards, to train). */
#ifndef SN_BLOCKS_SPAN_PRIVATE_H
#define SN_BLOCKS_SPAN_PRIVATE_H

#include "blocks/segment.h"
#include "blocks/span.h"

/* A device of the span, with the activations of a pass on it. */
typedef struct sn_home {
    sn_device *device;
    sn_scratch scratch;
    void *memory; /* what the buffers of scratch lie in */
    size_t bytes;
    void *tuned_memory; /* likewise, of those that only passes with a tuning need; NULL: there was none yet */
    size_t tuned_bytes;
} sn_home;

struct sn_span {
    sn_hparams hp;
    int first, end;
    sn_hash *hashes; /* end - first */
    sn_kv_dtype kv_dtype;
    sn_home homes[SN_PLAN_DEVICES_MAX];
    int n_homes;
    sn_segment segments[SN_KV_PARTS_MAX]; /* in the order of their blocks; segment i's past is part i of the cache */
    int n_segments;
    float *cos_sin; /* host, (n_ropes, SN_SPAN_ROWS_MAX, rope_dim): rope tables of a pass, before they go to the devices */
    sn_sequence sequences[SN_SPAN_ROWS_MAX];
};

sn_home *sn_span_home(sn_span *span, const sn_segment *segment); /* of the device that the segment computes on */

/* Row of a rope's table for a position: (rope_dim/2, 2) cosines and sines. */
void sn_span_rope_row(const sn_hparams *hp, int rope, int position, float *row);

#endif
