/* Training over a simulated swarm, compared with the same training in this process. */
#include "client/tune/backbone.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"
#include "tests/support/require.h"

#include <string.h>

enum { BATCHES = 3, SEQUENCES = 2, ROWS_MAX = 24 };

/* The micro-batches of one adapter, with their results. */
typedef struct round_of_batches {
    sn_micro_batch batches[BATCHES];
    float *out[BATCHES]; /* (rows, n_embd): of the last block */
} round_of_batches;

static round_of_batches *expected[SIM_ADAPTERS];

static void round_fini(round_of_batches *r) {
    for (int i = 0; r && i < BATCHES; i++) {
        free((void *)(uintptr_t)r->batches[i].lengths);
        free((void *)(uintptr_t)r->batches[i].x);
        free(r->batches[i].dx);
        free(r->batches[i].grads);
        free(r->out[i]);
    }
    free(r);
}

void sim_train_free(void) {
    for (int i = 0; i < SIM_ADAPTERS; i++) {
        round_fini(expected[i]);
        expected[i] = NULL;
    }
}

static size_t rows_floats(const sn_micro_batch *batch) { return (size_t)batch->rows * SIM_EMBD; }

/* The inputs are rows of the texts; the results are zero. */
static round_of_batches *round_new(const sim_adapter *adapter) {
    round_of_batches *r = sim_alloc(sizeof *r);
    for (int i = 0; i < BATCHES; i++) {
        sn_micro_batch *batch = &r->batches[i];
        int *lengths = sim_alloc(SEQUENCES * sizeof *lengths), rows = 0;
        float *x = sim_alloc((size_t)SEQUENCES * ROWS_MAX * SIM_EMBD * sizeof *x);
        for (int k = 0; k < SEQUENCES; k++) {
            const sim_text *text = sim_model_text((i * SEQUENCES + k) % SIM_PROMPTS, 0);
            lengths[k] = 5 + 7 * k + i;
            for (int j = 0; j < lengths[k]; j++)
                memcpy(x + (size_t)(rows++) * SIM_EMBD, text->hidden[j][0], SIM_EMBD * sizeof *x);
        }
        *batch = (sn_micro_batch){.n_sequences = SEQUENCES, .rows = rows, .lengths = lengths, .x = x};
        batch->dx = sim_alloc(rows_floats(batch) * sizeof(float));
        batch->grads = sim_alloc(SEQUENCES * adapter->params->n_floats * sizeof(float));
        r->out[i] = sim_alloc(rows_floats(batch) * sizeof(float));
    }
    return r;
}

/* The loss is half the sum of squares: its gradient is the output itself. */
static sn_status take_loss(void *ctx, size_t micro_batch, const float *out, float *dout, sn_err *err) {
    (void)err;
    round_of_batches *r = ctx;
    size_t bytes = rows_floats(&r->batches[micro_batch]) * sizeof(float);
    memcpy(r->out[micro_batch], out, bytes);
    memcpy(dout, out, bytes);
    return SN_OK;
}

static sn_status round_run(round_of_batches *r, sn_backbone *backbone, const sim_adapter *adapter, sn_err *err) {
    sn_status status = backbone->ops->set(backbone, adapter->params, err);
    return status ? status : backbone->ops->run(backbone, BATCHES, r->batches, true, take_loss, r, err);
}

static const round_of_batches *expected_round(int number) {
    if (expected[number - 1]) return expected[number - 1];
    const sim_adapter *adapter = sim_model_adapter(number);
    sn_backbone *backbone = NULL;
    expected[number - 1] = round_new(adapter);
    const sn_backbone_local_options options = {.device = sim_model_get()->device};
    REQUIRE(sn_backbone_local(sim_model_get()->model, &options, &backbone, &err));
    REQUIRE(round_run(expected[number - 1], backbone, adapter, &err));
    sn_backbone_free(&backbone);
    return expected[number - 1];
}

static void round_compare(const swarm *s, const round_of_batches *r, const round_of_batches *wanted, size_t n_floats) {
    for (int i = 0; i < BATCHES; i++) {
        size_t bytes = rows_floats(&r->batches[i]) * sizeof(float);
        if (memcmp(r->out[i], wanted->out[i], bytes)) sim_fail(s, "training gives another output of batch %d", i);
        if (memcmp(r->batches[i].dx, wanted->batches[i].dx, bytes) ||
            memcmp(r->batches[i].grads, wanted->batches[i].grads, SEQUENCES * n_floats * sizeof(float)))
            sim_fail(s, "training gives other gradients of batch %d", i);
    }
}

sn_status sim_train(const swarm *s, sn_link *link, int number, int timeout_ms, int max_retries, sn_err *err) {
    const sim_adapter *adapter = sim_model_adapter(number);
    const round_of_batches *wanted = expected_round(number);
    round_of_batches *r = round_new(adapter);
    sn_backbone *backbone = NULL;
    const sn_backbone_swarm_options options = {.link = link, .timeout_ms = timeout_ms, .max_retries = max_retries};
    sn_status status = sn_backbone_swarm(sim_model_get()->model, &options, &backbone, err);
    if (!status) status = round_run(r, backbone, adapter, err);
    if (!status && !s->bits_flipped) round_compare(s, r, wanted, adapter->params->n_floats);
    sn_backbone_free(&backbone);
    round_fini(r);
    return status;
}
