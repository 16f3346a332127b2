/* Embeddings of the server beside the reference's hidden states (tests/fixtures/golden): what leaves the last block,
 * through a final norm that is computed here. */
#include "gateway/queue/embedding.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "tests/support/api_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { TOKENS = 24, WIDTH = 64, BLOCKS = 4, VOCAB = 320 };

static swarm_model *model;
static sn_safetensors *golden;
static int32_t ids[TOKENS];
static float normed[TOKENS * WIDTH], left[TOKENS * WIDTH]; /* hidden states after the final norm, and before it */

static void read_floats(const sn_safetensors *file, const char *name, float *out, size_t n) {
    const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
    cr_assert(t && t->elements == n, "%s", name);
    memcpy(out, t->data, n * sizeof *out);
}

static float rms_eps(void) {
    sn_model *m;
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/llama", &m, &err));
    const float eps = sn_model_hparams(m)->norm_eps;
    sn_model_close(&m);
    return eps;
}

static void set_up(void) {
    sn_safetensors *weights;
    float weight[WIDTH];
    const float eps = rms_eps();
    model = api_model(SN_FIXTURES "/golden/llama");
    REQUIRE(sn_safetensors_open(SN_FIXTURES "/golden/llama/golden.safetensors", &golden, &err));
    REQUIRE(sn_safetensors_open(SN_FIXTURES "/golden/llama/model.safetensors", &weights, &err));
    read_floats(weights, "model.norm.weight", weight, WIDTH);
    read_floats(golden, "hidden.4", left, TOKENS * WIDTH);
    for (size_t i = 0; i < TOKENS; i++) {
        int64_t id;
        double squares = 0;
        memcpy(&id, sn_safetensors_find(golden, "input_ids")->data + i * sizeof id, sizeof id);
        ids[i] = (int32_t)id;
        for (size_t k = 0; k < WIDTH; k++) squares += (double)left[i * WIDTH + k] * (double)left[i * WIDTH + k];
        const double scale = 1 / sqrt(squares / WIDTH + (double)eps);
        for (size_t k = 0; k < WIDTH; k++)
            normed[i * WIDTH + k] = (float)((double)left[i * WIDTH + k] * scale * (double)weight[k]);
    }
    sn_safetensors_close(&weights);
}

static void tear_down(void) {
    sn_safetensors_close(&golden);
    swarm_model_close(model);
}

TestSuite(embedding, .init = set_up, .fini = tear_down);

static void expect_close(const float *got, const float *want, size_t n) {
    float largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(want[i]));
    for (size_t i = 0; i < n; i++)
        cr_assert(fabsf(got[i] - want[i]) <= 1e-4F * largest, "%zu: %g, not %g", i, (double)got[i], (double)want[i]);
}

Test(embedding, the_norm_of_the_api_is_the_final_one) {
    static float out[TOKENS * WIDTH], logits[TOKENS * VOCAB], scores[TOKENS * VOCAB], table[VOCAB * WIDTH];
    sn_safetensors *weights;
    API(swarm_model_norm(model, left, TOKENS, out, &error));
    expect_close(out, normed, TOKENS * WIDTH);
    REQUIRE(sn_safetensors_open(SN_FIXTURES "/golden/llama/model.safetensors", &weights, &err));
    read_floats(weights, "model.embed_tokens.weight", table, VOCAB * WIDTH); /* the LM head, too */
    read_floats(golden, "logits", logits, TOKENS * VOCAB);
    for (size_t i = 0; i < TOKENS * VOCAB; i++)
        for (size_t k = 0; k < WIDTH; k++) scores[i] += out[i / VOCAB * WIDTH + k] * table[i % VOCAB * WIDTH + k];
    expect_close(scores, logits, TOKENS * VOCAB);
    API(swarm_model_norm(model, left, TOKENS, left, &error)); /* in place */
    cr_expect_arr_eq(left, out, sizeof out);
    sn_safetensors_close(&weights);
}

Test(embedding, is_the_mean_of_the_references_hidden_states_after_the_final_norm) {
    float want[WIDTH] = {0}, got[WIDTH], length = 0;
    swarm_session *session = NULL;
    for (size_t i = 0; i < TOKENS * WIDTH; i++) want[i % WIDTH] += normed[i] / TOKENS;
    for (size_t k = 0; k < WIDTH; k++) length += want[k] * want[k];
    for (size_t k = 0; k < WIDTH; k++) want[k] /= sqrtf(length);
    swarm_options *exact = api_options("kv-dtype", "f32", NULL); /* as the reference keeps keys and values */
    API(swarm_session_open(model, NULL, exact, NULL, NULL, &session, &error));
    swarm_options_free(exact);
    for (int again = 0; again < 2; again++) { /* a session embeds one text after another */
        API(sn_embed(model, session, ids, TOKENS, got, &error));
        expect_close(got, want, WIDTH);
    }
    swarm_session_close(session);
}
