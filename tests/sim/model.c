#include "tests/sim/model.h"

#include "tests/sim/time.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <string.h>

static sim_model *made;
static sim_text *texts[SIM_PROMPTS];

sim_model *sim_model_get(void) {
    if (made) return made;
    made = sim_alloc(sizeof *made);
    made->path = tiny_make(&(tiny_options){.dtype = SN_F32,
                                           .n_blocks = SIM_BLOCKS,
                                           .n_embd = SIM_EMBD,
                                           .n_heads = 2,
                                           .n_kv_heads = 1,
                                           .n_ff = 32,
                                           .n_vocab = SIM_VOCAB,
                                           .n_ctx = SIM_CONTEXT});
    sn_device_options options = {.threads = 1};
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &made->device, &err));
    NEED(sn_model_open(made->path, &made->model, &err));
    made->id = sn_model_id(made->model);
    NEED(sn_head_load(made->model, made->device, &made->head, &err));
    return made;
}

sn_span *sim_model_span(int first, int end) {
    sim_model *m = sim_model_get();
    if (!m->spans[first][end])
        NEED(sn_span_load(m->model, m->device, first, end, NULL, NULL, &m->spans[first][end], &err));
    return m->spans[first][end];
}

void sim_model_free(void) {
    if (!made) return;
    for (int first = 0; first < SIM_BLOCKS; first++)
        for (int end = 0; end <= SIM_BLOCKS; end++) sn_span_free(&made->spans[first][end]);
    for (int i = 0; i < SIM_PROMPTS; i++) {
        free(texts[i]);
        texts[i] = NULL;
    }
    sn_head_free(&made->head);
    sn_model_close(&made->model);
    sn_device_close(&made->device);
    tiny_remove(&made->path);
    free(made);
    made = NULL;
}

/* Rows [from, to) through block after block, one block at a time: what enters each is kept. */
static void compute(sim_text *t, sn_kv **kv, int from, int to) {
    for (int b = 0; b < SIM_BLOCKS; b++)
        for (int i = from; i < to; i++) {
            sn_tensor input = {
                .name = "row", .data = t->hidden[i][b], .dtype = SN_F32, .rank = 2, .shape = {1, SIM_EMBD}};
            sn_span_part part = {kv[b], &input, 0, 1, t->hidden[i][b + 1]};
            NEED(sn_kv_reserve(kv[b], 1, &err));
            NEED(sn_span_forward(sim_model_span(b, b + 1), b, b + 1, 1, &part, NULL, &err));
        }
}

static void write_text(sim_text *t) {
    sim_model *m = sim_model_get();
    sn_kv_pool *pools[SIM_BLOCKS];
    sn_kv *kv[SIM_BLOCKS];
    float logits[SIM_VOCAB];
    for (int b = 0; b < SIM_BLOCKS; b++) {
        NEED(sn_span_kv_pool(sim_model_span(b, b + 1), 1 << 20, &pools[b], &err));
        NEED(sn_kv_new(pools[b], &kv[b], &err));
    }
    for (int at = 0; at < SIM_CONTEXT; at = t->n) {
        t->n = at ? at + 1 : t->n_prompt;
        for (int i = at; i < t->n; i++) NEED(sn_head_embed(m->head, &t->ids[i], 1, t->hidden[i][0], &err));
        compute(t, kv, at, t->n);
        if (t->n == SIM_CONTEXT) break;
        NEED(sn_head_logits(m->head, t->hidden[t->n - 1][SIM_BLOCKS], 1, logits, &err));
        int best = 0;
        for (int k = 1; k < SIM_VOCAB; k++)
            if (logits[k] > logits[best]) best = k;
        t->ids[t->n] = best;
    }
    for (int b = 0; b < SIM_BLOCKS; b++) {
        sn_kv_free(&kv[b]);
        sn_kv_pool_free(&pools[b]);
    }
}

const sim_text *sim_model_text(int number) {
    if (texts[number]) return texts[number];
    sim_text *t = sim_alloc(sizeof *t);
    sim_random random = {(uint64_t)number / 2 + 1};
    t->n_prompt = number / 2 % 3 == 2 ? (int)sim_between(&random, 40, 70) : (int)sim_between(&random, 1, 20);
    for (int i = 0; i < t->n_prompt; i++) t->ids[i] = (int32_t)sim_below(&random, SIM_VOCAB);
    t->ids[t->n_prompt - 1] ^= number % 2;
    write_text(t);
    return texts[number] = t;
}
