/* Gradients through blocks with the C API: the reference's (tests/fixtures/golden), finite differences, the same bits
 * over every cut and over nodes, and values inside the blocks. */
#include "model/safetensors.h"
#include "tests/support/api_fixture.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 64, VOCAB = 320, TOKENS = 24, SEQUENCES = 3, ROWS = 5 + 1 + 9 };
static const int32_t lengths[SEQUENCES] = {5, 1, 9};

static api_swarm api;
static swarm_cancel *cancel;

static void set_up(void) {
    cancel = swarm_cancel_new();
    /* sessions have the bits of forward passes, which keep float32 */
    api = api_swarm_begin_with_kv((cluster_options){.tune_memory = 64 << 20, .kv_dtype = SN_KV_F32}, NULL);
}

static void tear_down(void) {
    api_swarm_end(&api);
    swarm_cancel_free(cancel);
}

TestSuite(api_blocks, .init = set_up, .fini = tear_down);

/* Blocks with these options, which are consumed. */
static swarm_blocks *open_blocks(swarm_connection *over, swarm_options *options) {
    swarm_blocks *blocks = NULL;
    API(swarm_blocks_open(api.model, over, options, cancel, &blocks, &error));
    swarm_options_free(options);
    return blocks;
}

static void fill(float *at, size_t n, uint32_t seed, float scale) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        at[i] = scale * ((float)(seed >> 8) / (float)(1 << 23) - 1);
    }
}

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* -- the reference -- */

/* The gradient of the mean cross-entropy of predicting ids[1:]. */
static void loss_gradient(const float *logits, const int32_t *ids, float *out) {
    memset(out, 0, sizeof(float) * TOKENS * VOCAB);
    for (int t = 0; t + 1 < TOKENS; t++) {
        const float *row = logits + t * VOCAB;
        double sum = 0;
        for (int v = 0; v < VOCAB; v++) sum += exp((double)row[v]);
        for (int v = 0; v < VOCAB; v++)
            out[t * VOCAB + v] = (float)((exp((double)row[v]) / sum - (v == ids[t + 1])) / (TOKENS - 1));
    }
}

Test(api_blocks, gradients_over_nodes_match_the_reference) {
    static float hidden[3][TOKENS * WIDTH], d[3][TOKENS * WIDTH], logits[TOKENS * VOCAB], dlogits[TOKENS * VOCAB];
    sn_safetensors *golden = NULL;
    int32_t ids[TOKENS], n = TOKENS;
    double largest = 0, furthest = 0;
    REQUIRE(sn_safetensors_open(SN_FIXTURES "/golden/llama/golden.safetensors", &golden, &err));
    const uint8_t *golden_ids = sn_safetensors_find(golden, "input_ids")->data;
    static float want[TOKENS * WIDTH];
    memcpy(want, sn_safetensors_find(golden, "grad_input")->data, sizeof want);
    for (int t = 0; t < TOKENS; t++) memcpy(&ids[t], golden_ids + 8 * t, sizeof *ids); /* of I64 */
    API(swarm_model_embed(api.model, ids, TOKENS, hidden[0], &error));
    swarm_blocks *low =
                     open_blocks(api.connection, api_options("blocks", "0:1", NULL)), /* a part of what a node serves */
        *high = open_blocks(api.connection, api_options("blocks", "1:4", NULL));
    API(swarm_blocks_forward(low, 1, &n, hidden[0], hidden[1], &error));
    API(swarm_blocks_forward(high, 1, &n, hidden[1], hidden[2], &error));
    API(swarm_model_logits(api.model, hidden[2], TOKENS, logits, &error));
    loss_gradient(logits, ids, dlogits);
    API(swarm_model_logits_backward(api.model, hidden[2], TOKENS, dlogits, d[2], &error));
    API(swarm_blocks_backward(high, 1, &n, hidden[1], d[2], d[1], NULL, &error));
    API(swarm_blocks_backward(low, 1, &n, hidden[0], d[1], d[0], NULL, &error));
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        furthest = fmax(furthest, fabs((double)want[i] - (double)d[0][i]));
    }
    cr_assert_lt(furthest, 1e-4 * largest, "the gradient differs by %g of its largest element", furthest / largest);
    swarm_blocks_close(low);
    swarm_blocks_close(high);
    sn_safetensors_close(&golden);
}

/* -- bits -- */

typedef struct passes {
    float out[ROWS * WIDTH], dx[ROWS * WIDTH], *gradient;
} passes;

/* Both passes of the same rows; the caller frees gradient. */
static passes *run(swarm_blocks *blocks, const float *values) {
    static float in[ROWS * WIDTH], dout[ROWS * WIDTH];
    passes *p = calloc(1, sizeof *p);
    size_t n = swarm_blocks_parameters(blocks);
    p->gradient = calloc(n + 1, sizeof(float));
    fill(in, ROWS * WIDTH, 1, 1);
    fill(dout, ROWS * WIDTH, 2, 1);
    if (values) API(swarm_blocks_set(blocks, values, &error));
    API(swarm_blocks_forward(blocks, SEQUENCES, lengths, in, p->out, &error));
    API(swarm_blocks_backward(blocks, SEQUENCES, lengths, in, dout, p->dx, n ? p->gradient : NULL, &error));
    return p;
}

static void passes_free(passes *p) {
    free(p->gradient);
    free(p);
}

static void expect_same(const passes *a, const passes *b, size_t n, const char *what) {
    cr_expect_arr_eq(a->out, b->out, sizeof a->out, "%s: outputs differ", what);
    cr_expect_arr_eq(a->dx, b->dx, sizeof a->dx, "%s: gradients of the input differ", what);
    cr_expect(!memcmp(a->gradient, b->gradient, n * sizeof(float)), "%s: gradients of the values differ", what);
}

Test(api_blocks, values_inside_blocks_have_the_same_gradients_here_and_over_nodes) {
    static const char *const methods[][2] = {{"lora", "q,o"}, {"deep-prompt", "q"}};
    static const size_t of_a_block = 2 * (2 * WIDTH + WIDTH * 2); /* A and B of two square matrices, of rank 2 */
    for (int m = 0; m < 2; m++)
        for (int whole = 0; whole < 2; whole++) {
            const char *range = whole ? "0:4" : "1:3"; /* which ends inside both nodes */
            swarm_blocks *at[2];
            for (int k = 0; k < 2; k++)
                at[k] = open_blocks(k ? api.connection : NULL,
                                    api_options("blocks", range, "method", methods[m][0], "targets", methods[m][1],
                                                "rank", "2", "virtual-tokens", "3", NULL));
            size_t n = swarm_blocks_parameters(at[0]);
            float *values = calloc(n, sizeof *values), *got = calloc(n, sizeof *got);
            cr_assert_eq(n, swarm_blocks_parameters(at[1]));
            cr_assert_eq(n, m ? (whole ? 3u : 2u) * 3 * WIDTH : (whole ? 4u : 2u) * of_a_block, "%zu values", n);
            fill(values, n, 3, 0.3f);
            passes *here = run(at[0], values), *there = run(at[1], values);
            expect_same(here, there, n, methods[m][0]);
            API(swarm_blocks_get(at[1], got, &error));
            cr_expect(!memcmp(values, got, n * sizeof *got));
            passes_free(here);
            passes_free(there);
            free(values);
            free(got);
            swarm_blocks_close(at[0]);
            swarm_blocks_close(at[1]);
        }
}

Test(api_blocks, a_cut_changes_no_bit_and_blocks_compute_what_sessions_do) {
    static float hidden[ROWS * WIDTH], dhidden[ROWS * WIDTH], in[ROWS * WIDTH], dout[ROWS * WIDTH], out[ROWS * WIDTH];
    swarm_blocks *all = open_blocks(NULL, NULL), *low = open_blocks(NULL, api_options("blocks", "0:3", NULL)),
                 *high = open_blocks(api.connection, api_options("blocks", "3:4", NULL));
    swarm_session *session = NULL;
    passes *whole = run(all, NULL), *parts = calloc(1, sizeof *parts);
    parts->gradient = calloc(1, sizeof(float));
    fill(in, ROWS * WIDTH, 1, 1);
    fill(dout, ROWS * WIDTH, 2, 1);
    API(swarm_blocks_forward(low, SEQUENCES, lengths, in, hidden, &error));
    API(swarm_blocks_forward(high, SEQUENCES, lengths, hidden, parts->out, &error));
    API(swarm_blocks_backward(high, SEQUENCES, lengths, hidden, dout, dhidden, NULL, &error));
    API(swarm_blocks_backward(low, SEQUENCES, lengths, in, dhidden, parts->dx, NULL, &error));
    expect_same(whole, parts, 0, "0:3 and 3:4");
    swarm_options *exact = api_options("kv-dtype", "f32", NULL); /* as blocks keep keys and values */
    API(swarm_session_open(api.model, NULL, exact, NULL, NULL, &session, &error));
    swarm_options_free(exact);
    API(swarm_session_forward(session, 0, (size_t)lengths[0], in, out, &error));
    cr_expect(!memcmp(out, whole->out, (size_t)lengths[0] * WIDTH * sizeof *out), "a session computes other bits");
    swarm_session_close(session);
    passes_free(whole);
    passes_free(parts);
    swarm_blocks_close(all);
    swarm_blocks_close(low);
    swarm_blocks_close(high);
}

/* -- adapters -- */

enum { VIRTUAL = 3 };
static float virtual_tokens[VIRTUAL * WIDTH];

/* Blocks with a method and values that change something. */
static swarm_blocks *trained(const char *method, const char *range) {
    swarm_blocks *blocks = open_blocks(
        api.connection, api_options("blocks", range, "method", method, "rank", "2", "virtual-tokens", "3", NULL));
    size_t n = swarm_blocks_parameters(blocks);
    float *values = calloc(n + 1, sizeof *values);
    fill(values, n, 3, 0.3f);
    if (n) API(swarm_blocks_set(blocks, values, &error));
    fill(virtual_tokens, VIRTUAL * WIDTH, 7, 1);
    free(values);
    return blocks;
}

/* Rows through a session with an adapter, half of them first. */
static void session_rows(swarm_connection *over, const char *range, const swarm_adapter *adapter, const float *in,
                         float *out) {
    enum { HALF = 4, ALL = 9 };
    swarm_session *session = NULL;
    swarm_options *options = api_options("blocks", range, "kv-dtype", "f32", NULL);
    API(swarm_session_open(api.model, over, options, adapter, NULL, &session, &error));
    API(swarm_session_forward(session, 0, HALF, in, out, &error));
    API(swarm_session_forward(session, HALF, ALL - HALF, in + HALF * WIDTH, out + HALF * WIDTH, &error));
    swarm_session_close(session);
    swarm_options_free(options);
}

Test(api_blocks, a_session_with_the_values_computes_what_the_blocks_do) {
    static const char *const methods[] = {"lora", "deep-prompt"}, *const ranges[] = {"0:4", "1:3"};
    static float in[9 * WIDTH], want[9 * WIDTH], plain[9 * WIDTH], got[9 * WIDTH];
    fill(in, 9 * WIDTH, 1, 1);
    for (int m = 0; m < 2; m++)
        for (int r = 0; r < 2; r++) {
            swarm_blocks *blocks = trained(methods[m], ranges[r]);
            swarm_adapter *adapter = NULL;
            API(swarm_blocks_forward(blocks, 1, (int32_t[]){9}, in, want, &error));
            API(swarm_blocks_adapter(blocks, NULL, &adapter, &error));
            swarm_blocks_close(blocks); /* the adapter is a copy */
            session_rows(NULL, ranges[r], NULL, in, plain);
            cr_expect_arr_neq(plain, want, sizeof want, "%s: the values change nothing", methods[m]);
            for (int over = 0; over < 2; over++) {
                session_rows(over ? api.connection : NULL, ranges[r], adapter, in, got);
                cr_expect_arr_eq(got, want, sizeof want, "%s of %s", methods[m], ranges[r]);
            }
            swarm_adapter_close(adapter);
        }
}

/* Tokens of a session with an adapter. */
static char *answer(swarm_connection *over, const swarm_adapter *adapter) {
    static const int32_t prompt[] = {1, 40, 41, 42, 43};
    swarm_options *options = api_options("max-tokens", "12", "ignore-eos", "true", NULL);
    swarm_options *opened = api_options("kv-dtype", "f32", NULL);
    swarm_session *session = NULL;
    char *text = NULL;
    API(swarm_session_open(api.model, over, opened, adapter, NULL, &session, &error));
    API(swarm_session_generate(session, prompt, 5, options, &text, NULL, &error));
    json_t *all = api_json(text);
    char *ids = json_dumps(json_object_get(all, "ids"), 0);
    json_decref(all);
    swarm_session_close(session);
    swarm_options_free(options);
    swarm_options_free(opened);
    return ids;
}

Test(api_blocks, values_are_kept_in_a_folder) {
    static const char *const methods[] = {"lora", "prompt", "deep-prompt"}, *const ranges[] = {"0:4", "1:3"};
    char *plain = answer(NULL, NULL);
    for (int m = 0; m < 3; m++)
        for (int r = 0; r < 2; r++) {
            const float *prompt = m ? virtual_tokens : NULL;
            swarm_blocks *blocks = trained(methods[m], ranges[r]);
            swarm_adapter *held = NULL, *kept = NULL;
            char *folder = temp_folder();
            API(swarm_blocks_adapter(blocks, prompt, &held, &error));
            API(swarm_blocks_save(blocks, prompt, folder, &error));
            API(swarm_adapter_open(api.model, NULL, folder, &kept, &error));
            cr_expect(!swarm_adapter_warning(kept), "%s", swarm_adapter_warning(kept));
            char *a = answer(NULL, held), *b = answer(api.connection, kept);
            cr_expect_str_neq(a, plain, "%s of %s changes nothing", methods[m], ranges[r]);
            cr_expect_str_eq(a, b, "%s of %s", methods[m], ranges[r]);
            free(a);
            free(b);
            swarm_adapter_close(held);
            swarm_adapter_close(kept);
            swarm_blocks_close(blocks);
            temp_folder_remove(&folder);
        }
    free(plain);
}

/* -- finite differences -- */

/* The loss <dout, f(in)> along a direction, of the input or of the values. */
static double loss_at(swarm_blocks *blocks, const float *in, const float *values, const float *dout) {
    static float out[ROWS * WIDTH];
    API(swarm_blocks_set(blocks, values, &error));
    API(swarm_blocks_forward(blocks, SEQUENCES, lengths, in, out, &error));
    return dot(out, dout, ROWS * WIDTH);
}

static void step(float *out, const float *from, const float *direction, float by, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = from[i] + by * direction[i];
}

Test(api_blocks, gradients_equal_finite_differences) {
    static float in[ROWS * WIDTH], dout[ROWS * WIDTH], direction[ROWS * WIDTH], moved[ROWS * WIDTH], dx[ROWS * WIDTH];
    static const float by = 2e-3f;
    for (int m = 0; m < 2; m++) {
        swarm_blocks *blocks = open_blocks(NULL, api_options("blocks", "1:3", "method", m ? "deep-prompt" : "lora",
                                                             "rank", "2", "alpha", "3", "virtual-tokens", "3", NULL));
        size_t n = swarm_blocks_parameters(blocks);
        float *values = calloc(4 * n, sizeof *values), *change = values + n, *at = values + 2 * n,
              *gradient = values + 3 * n;
        fill(in, ROWS * WIDTH, 1, 1);
        fill(dout, ROWS * WIDTH, 2, 1);
        fill(direction, ROWS * WIDTH, 4, 1);
        fill(values, n, 3, 0.3f);
        fill(change, n, 5, 1);
        API(swarm_blocks_set(blocks, values, &error));
        API(swarm_blocks_backward(blocks, SEQUENCES, lengths, in, dout, dx, gradient, &error));
        double slope[2], want[2] = {dot(dx, direction, ROWS * WIDTH), dot(gradient, change, n)};
        for (int sign = -1; sign <= 1; sign += 2) {
            step(moved, in, direction, (float)sign * by, ROWS * WIDTH);
            step(at, values, change, (float)sign * by, n);
            double of_input = loss_at(blocks, moved, values, dout), of_values = loss_at(blocks, in, at, dout);
            slope[0] = sign < 0 ? -of_input : (slope[0] + of_input) / (2 * (double)by);
            slope[1] = sign < 0 ? -of_values : (slope[1] + of_values) / (2 * (double)by);
        }
        for (int k = 0; k < 2; k++)
            cr_expect_lt(fabs(slope[k] - want[k]), 0.01 * fabs(want[k]) + 0.05,
                         "%s: %g by differences, %g by gradients", k ? "values" : "input", slope[k], want[k]);
        free(values);
        swarm_blocks_close(blocks);
    }
}

/* -- use -- */

Test(api_blocks, initial_values_change_nothing_and_are_those_of_a_training) {
    swarm_blocks *plain = open_blocks(NULL, NULL), *lora = open_blocks(NULL, api_options("method", "lora", NULL));
    swarm_blocks *part = open_blocks(NULL, api_options("method", "lora", "blocks", "2:4", NULL));
    size_t n = swarm_blocks_parameters(lora), half = swarm_blocks_parameters(part);
    float *all = calloc(n, sizeof *all), *some = calloc(half, sizeof *some);
    passes *a = run(plain, NULL), *b = run(lora, NULL);
    cr_expect_arr_eq(a->out, b->out, sizeof a->out);
    API(swarm_blocks_get(lora, all, &error));
    API(swarm_blocks_get(part, some, &error));
    cr_assert_eq(2 * half, n);
    cr_expect(!memcmp(all + n - half, some, half * sizeof *some), "a part begins with other values than the whole");
    cr_expect_eq(swarm_blocks_parameters(plain), 0);
    API_FAILS(swarm_blocks_set(plain, all, &error), SWARM_REFUSED, "no values to train");
    passes_free(a);
    passes_free(b);
    free(all);
    free(some);
    swarm_blocks_close(plain);
    swarm_blocks_close(lora);
    swarm_blocks_close(part);
}

static void expect_refused(const char *key, const char *value, const char *word) {
    swarm_blocks *blocks = NULL;
    swarm_options *options = api_options(key, value, NULL);
    API_FAILS(swarm_blocks_open(api.model, NULL, options, NULL, &blocks, &error), SWARM_REFUSED, word);
    swarm_options_free(options);
}

Test(api_blocks, what_cannot_be_is_refused) {
    static float rows[ROWS * WIDTH];
    swarm_blocks *blocks = open_blocks(NULL, NULL);
    expect_refused("blocks", "2:5", "blocks 0:4");
    expect_refused("method", "head", "lora, prompt and deep-prompt");
    expect_refused("temperature", "0", "no option of");
    API_FAILS(swarm_blocks_forward(blocks, 2, (int32_t[]){1, 0}, rows, rows, &error), SWARM_REFUSED,
              "sequence 1 has 0");
    API_FAILS(swarm_blocks_forward(blocks, 1, (int32_t[]){257}, rows, rows, &error), SWARM_REFUSED, "1 to 256");
    API(swarm_blocks_forward(blocks, 0, NULL, NULL, NULL, &error));
    swarm_blocks_close(blocks);
}

Test(api_blocks, what_is_no_adapter_is_refused) {
    static const char *const of[][2] = {
        {NULL, "with a method"}, {"lora", "no virtual tokens"}, {"prompt", "is its virtual tokens"}};
    char *folder = temp_folder();
    for (int m = 0; m < 3; m++) {
        swarm_blocks *blocks = of[m][0] ? trained(of[m][0], "0:4") : open_blocks(NULL, NULL);
        const float *prompt = m < 2 ? virtual_tokens : NULL;
        swarm_adapter *adapter = NULL;
        API_FAILS(swarm_blocks_adapter(blocks, prompt, &adapter, &error), SWARM_REFUSED, of[m][1]);
        API_FAILS(swarm_blocks_save(blocks, prompt, folder, &error), SWARM_REFUSED, of[m][1]);
        cr_expect(!adapter);
        swarm_blocks_close(blocks);
    }
    swarm_blocks *deep = trained("deep-prompt", "0:4"), *lora = trained("lora", "0:4");
    API_FAILS(swarm_blocks_save(deep, NULL, folder, &error), SWARM_REFUSED, "virtual tokens at whose places");
    API_FAILS(swarm_blocks_save(lora, NULL, "/proc/no/folder", &error), SWARM_REFUSED, "cannot be made");
    swarm_blocks_close(deep);
    swarm_blocks_close(lora);
    temp_folder_remove(&folder);
}

Test(api_blocks, a_cancelled_call_leaves_the_blocks_usable) {
    static float in[ROWS * WIDTH], out[ROWS * WIDTH];
    for (int over = 0; over < 2; over++) {
        swarm_blocks *blocks = open_blocks(over ? api.connection : NULL, api_options("method", "lora", NULL));
        passes *before = run(blocks, NULL), *after;
        swarm_cancel_set(cancel);
        API_FAILS(swarm_blocks_forward(blocks, SEQUENCES, lengths, in, out, &error), SWARM_CANCELLED, "cancelled");
        API_FAILS(swarm_blocks_backward(blocks, SEQUENCES, lengths, in, out, out, NULL, &error), SWARM_CANCELLED, "");
        swarm_cancel_clear(cancel);
        after = run(blocks, NULL);
        expect_same(before, after, swarm_blocks_parameters(blocks), "after a cancelled call");
        passes_free(before);
        passes_free(after);
        swarm_blocks_close(blocks);
    }
}
