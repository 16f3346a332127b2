/* Recurrent blocks on the CPU. The rows of one sequence depend on each other, so an item is some channels, or one value
 * head, of one sequence with all of its rows: heads and sequences run on different threads, and the order within each
 * is fixed. */
#include "device/cpu/cpu_private.h"

enum { CONV_CHANNELS = 512 }; /* of an item: a multiple of SN_LANES */

typedef struct delta_work {
    const sn_cpu *cpu;
    const sn_delta *delta;
    size_t channels, per_sequence; /* items of a sequence */
    float *x;
    const sn_delta_rows *rows;
    float *out;
} delta_work;

/* Where the block's part of a state begins; NULL stays NULL. */
static float *block_state(const delta_work *work, const float *state) {
    return state ? (float *)(uintptr_t)state + (size_t)work->delta->block * sn_delta_floats(&work->delta->shape) : NULL;
}

static float *skip(float *state, size_t floats) { return state ? state + floats : NULL; }

static void conv_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const delta_work *work = ctx;
    const sn_sequence *s = &work->cpu->batch.sequences[item / work->per_sequence];
    size_t first = item % work->per_sequence * CONV_CHANNELS,
           at = sn_delta_matrices(&work->delta->shape) + work->delta->first_channel;
    size_t end = first + CONV_CHANNELS < work->channels ? first + CONV_CHANNELS : work->channels;
    const sn_conv_job job = {.taps = work->delta->taps,
                             .bias = work->delta->taps_bias,
                             .plain = work->delta->shape.kind == SN_SHORT_CONV,
                             .channels = work->channels,
                             .state_channels = sn_delta_channels(&work->delta->shape),
                             .n_taps = work->delta->shape.taps,
                             .n = s->n_rows,
                             .x = work->x + (size_t)s->first_row * work->channels,
                             .before = skip(block_state(work, s->state.before), at),
                             .after = skip(block_state(work, s->state.after), at),
                             .snapshot = skip(block_state(work, s->state.snapshot), at),
                             .snapshot_rows = s->state.snapshot_rows};
    work->cpu->kernels->short_conv(&job, first, end);
}

sn_status sn_cpu_short_conv(sn_device *d, const sn_delta *delta, float *x, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    sn_status status = sn_device_check_delta(&delta->shape, cpu->batch.n_sequences, cpu->batch.sequences, err);
    if (status) return status;
    delta_work work = {.cpu = cpu, .delta = delta, .channels = sn_delta_count(delta), .x = x};
    work.per_sequence = (work.channels + CONV_CHANNELS - 1) / CONV_CHANNELS;
    if (cpu->batch.n_sequences)
        sn_pool_run(cpu->pool, (size_t)cpu->batch.n_sequences * work.per_sequence, conv_item, &work);
    return SN_OK;
}

static void delta_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const delta_work *work = ctx;
    const sn_delta *p = work->delta;
    const sn_delta_shape *shape = &p->shape;
    const sn_sequence *s = &work->cpu->batch.sequences[item / work->per_sequence];
    size_t head = item % work->per_sequence, heads = work->per_sequence, keys = (size_t)shape->n_key_heads;
    size_t key_head = shape->key_heads_alternate ? head % keys : head / (heads / keys), row = (size_t)s->first_row;
    size_t key_dim = (size_t)shape->key_dim, value_dim = (size_t)shape->value_dim, at = head * key_dim * value_dim;
    const sn_delta_rows *in = work->rows;
    size_t each = shape->kind == SN_KEYED_DELTA ? key_dim : 1, key_at = row * in->key_stride + key_head * key_dim;
    const sn_delta_job job = {.kind = shape->kind,
                              .n = s->n_rows,
                              .key_dim = shape->key_dim,
                              .value_dim = shape->value_dim,
                              .q = in->q + key_at,
                              .k = in->k + key_at,
                              .v = in->v + row * in->value_stride + head * value_dim,
                              .key_stride = in->key_stride,
                              .value_stride = in->value_stride,
                              .a = in->a + (row * heads + head) * each,
                              .b = in->b ? in->b + row * heads + head : NULL,
                              .n_heads = heads,
                              .a_stride = heads * each,
                              .rate = p->rates[head],
                              .time_bias = p->time_bias + head * each,
                              .skip = p->skip ? p->skip[head] : 0,
                              .floor = p->floor,
                              .out = work->out + (row * heads + head) * value_dim,
                              .before = skip(block_state(work, s->state.before), at),
                              .after = skip(block_state(work, s->state.after), at),
                              .snapshot = skip(block_state(work, s->state.snapshot), at),
                              .snapshot_rows = s->state.snapshot_rows};
    work->cpu->kernels->delta_rule(&job);
}

sn_status sn_cpu_delta_rule(sn_device *d, const sn_delta *delta, const sn_delta_rows *rows, float *out, sn_err *err) {
    sn_cpu *cpu = (sn_cpu *)d;
    sn_status status = sn_device_check_delta(&delta->shape, cpu->batch.n_sequences, cpu->batch.sequences, err);
    if (status) return status;
    delta_work work = {
        .cpu = cpu, .delta = delta, .per_sequence = (size_t)delta->shape.n_value_heads, .rows = rows, .out = out};
    if (cpu->batch.n_sequences)
        sn_pool_run(cpu->pool, (size_t)cpu->batch.n_sequences * work.per_sequence, delta_item, &work);
    return SN_OK;
}
