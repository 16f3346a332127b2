#include "tests/sim/model.h"

#include "blocks/adapter.h"
#include "tests/sim/time.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <string.h>

enum { KINDS = SIM_MIXTURE + 1 };
static sim_model_kind kind;
static sim_model *models[KINDS];
static sim_text *texts[KINDS][SIM_PROMPTS][SIM_ADAPTERS + 1];
static sim_adapter adapters[SIM_ADAPTERS];

void sim_model_use(sim_model_kind present) { kind = present; }

sim_model *sim_model_get(void) {
    if (models[kind]) return models[kind];
    sim_model *the_model = models[kind] = sim_alloc(sizeof *the_model);
    the_model->path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32,
                                                            .n_blocks = SIM_BLOCKS,
                                                            .n_embd = SIM_EMBD,
                                                            .n_heads = 2,
                                                            .n_kv_heads = 1,
                                                            .n_ff = 32,
                                                            .n_vocab = SIM_VOCAB,
                                                            .n_ctx = SIM_CONTEXT,
                                                            .n_experts = kind == SIM_MIXTURE ? SIM_MIXTURE_EXPERTS : 0,
                                                            .recurrent = kind == SIM_STATES});
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &the_model->device, &err));
    REQUIRE(sn_model_open(the_model->path, &the_model->model, &err));
    the_model->id = sn_model_id(the_model->model);
    REQUIRE(sn_lm_head_load(the_model->model, the_model->device, &the_model->head, &err));
    return the_model;
}

sn_span *sim_model_span(int first, int end) {
    sim_model *m = sim_model_get();
    if (!m->spans[first][end])
        REQUIRE(sn_span_load(m->model, m->device, first, end, NULL, NULL, &m->spans[first][end], &err));
    return m->spans[first][end];
}

static void free_model(sim_model **model) {
    sim_model *m = *model;
    if (!m) return;
    for (int first = 0; first < SIM_BLOCKS; first++)
        for (int end = 0; end <= SIM_BLOCKS; end++) sn_span_free(&m->spans[first][end]);
    sn_lm_head_free(&m->head);
    sn_model_close(&m->model);
    sn_device_close(&m->device);
    tiny_model_remove(&m->path);
    free(m);
    *model = NULL;
}

void sim_model_free(void) {
    for (int k = 0; k < KINDS; k++) {
        free_model(&models[k]);
        for (int i = 0; i < SIM_PROMPTS; i++)
            for (int a = 0; a <= SIM_ADAPTERS; a++) free(texts[k][i][a]);
    }
    memset(texts, 0, sizeof texts);
    for (int i = 0; i < SIM_ADAPTERS; i++) {
        sn_buf_fini(&adapters[i].image);
        sn_params_free(&adapters[i].params);
    }
}

const sim_adapter *sim_model_adapter(int number) {
    sim_adapter *a = &adapters[number - 1];
    if (a->params) return a;
    sn_params_shape shape = {.method = SN_METHOD_LORA, .rank = 2, .alpha = 2};
    shape.target[SN_ROLE_ATTN_Q] = shape.target[SN_ROLE_ATTN_V] = true;
    REQUIRE(sn_params_new(sn_model_hparams(sim_model_get()->model), &shape, &a->params, &err));
    sim_rng random = {(uint64_t)number};
    for (size_t i = 0; i < a->params->n_floats; i++) a->params->values[i] = (float)sim_rng_uniform(&random) - 0.5f;
    sn_buf_init(&a->image, 1 << 20);
    REQUIRE(sn_params_image(a->params, 0, SIM_BLOCKS, &a->image, &err));
    a->hash = sn_hash_of(a->image.data, a->image.len);
    return a;
}

/* Computes rows [from, to) one block at a time, and keeps the input of each block. */
static void compute_rows(sim_text *t, sn_kv_cache **kv, sn_adapter **adapter, int from, int to) {
    for (int b = 0; b < SIM_BLOCKS; b++)
        for (int i = from; i < to; i++) {
            sn_tensor input = {
                .name = "row", .data = t->hidden[i][b], .dtype = SN_F32, .rank = 2, .shape = {1, SIM_EMBD}};
            sn_span_sequence part = {kv[b], &input, 0, 1, t->hidden[i][b + 1]};
            REQUIRE(sn_kv_cache_reserve(kv[b], 1, &err));
            REQUIRE(sn_span_forward_adapter(sim_model_span(b, b + 1), b, b + 1, adapter[b], 1, &part, NULL, &err));
        }
}

static void write_text(sim_text *t, int adapter_number) {
    sim_model *m = sim_model_get();
    sn_kv_pool *pools[SIM_BLOCKS];
    sn_kv_cache *kv[SIM_BLOCKS];
    sn_adapter *adapter[SIM_BLOCKS] = {NULL};
    const sim_adapter *a = adapter_number ? sim_model_adapter(adapter_number) : NULL;
    float logits[SIM_VOCAB];
    for (int b = 0; b < SIM_BLOCKS; b++) {
        REQUIRE(sn_span_kv_pool(sim_model_span(b, b + 1), 1 << 20, &pools[b], &err));
        REQUIRE(sn_kv_cache_new(pools[b], &kv[b], &err));
        if (a) REQUIRE(sn_adapter_load(sim_model_span(b, b + 1), a->image.data, a->image.len, &adapter[b], &err));
    }
    for (int at = 0; at < SIM_CONTEXT; at = t->n) {
        t->n = at ? at + 1 : t->n_prompt;
        for (int i = at; i < t->n; i++) REQUIRE(sn_lm_head_embed(m->head, &t->ids[i], 1, t->hidden[i][0], &err));
        compute_rows(t, kv, adapter, at, t->n);
        if (t->n == SIM_CONTEXT) break;
        REQUIRE(sn_lm_head_logits(m->head, t->hidden[t->n - 1][SIM_BLOCKS], 1, logits, &err));
        int best = 0;
        for (int k = 1; k < SIM_VOCAB; k++)
            if (logits[k] > logits[best]) best = k;
        t->ids[t->n] = best;
    }
    for (int b = 0; b < SIM_BLOCKS; b++) {
        sn_kv_cache_free(&kv[b]);
        sn_kv_pool_free(&pools[b]);
        sn_adapter_free(&adapter[b]);
    }
}

const sim_text *sim_model_text(int number, int adapter) {
    if (texts[kind][number][adapter]) return texts[kind][number][adapter];
    sim_text *t = sim_alloc(sizeof *t);
    sim_rng random = {(uint64_t)number / 2 + 1};
    t->n_prompt = number / 2 % 3 == 2 ? (int)sim_rng_between(&random, 40, 70) : (int)sim_rng_between(&random, 1, 20);
    for (int i = 0; i < t->n_prompt; i++) t->ids[i] = (int32_t)sim_rng_below(&random, SIM_VOCAB);
    t->ids[t->n_prompt - 1] ^= number % 2;
    write_text(t, adapter);
    return texts[kind][number][adapter] = t;
}
