/* Training from examples to parameters: the same bits over every cut of a swarm, for every split of a step into
 * micro-batches, when a node fails within a step, and when training is interrupted and resumed. test_checkpoint.c has
 * the checkpoints themselves. */
#include "client/tune/adapter_folder.h"
#include "client/tune/checkpoint.h"
#include "client/tune/tuner.h"
#include "tests/support/cluster.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXAMPLES = 7, LONGEST = 19 };

typedef struct fixture {
    char *path;
    sn_model *model;
    const sn_hparams *hp;
    sn_device *device;
    sn_lm_head *head;
    sn_dataset data;
    sn_example examples[EXAMPLES];
    int32_t ids[EXAMPLES][LONGEST];
    uint8_t loss_mask[EXAMPLES][LONGEST];
} fixture;

static fixture *fixture_new(void) {
    static fixture b;
    memset(&b, 0, sizeof b);
    b.path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .seed = 9});
    REQUIRE(sn_model_open(b.path, &b.model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 2}, &b.device, &err));
    REQUIRE(sn_lm_head_load(b.model, b.device, &b.head, &err));
    b.hp = sn_model_hparams(b.model);
    uint32_t x = 3;
    for (int e = 0; e < EXAMPLES; e++) {
        b.examples[e] =
            (sn_example){.ids = b.ids[e], .loss_mask = b.loss_mask[e], .n = (size_t)(5 + 2 * e), .label = e % 3};
        for (size_t i = 0; i < b.examples[e].n; i++) {
            x = x * 1664525u + 1013904223u;
            b.ids[e][i] = (int32_t)((x >> 8) % (uint32_t)b.hp->n_vocab);
            b.loss_mask[e][i] = i > 2 || e % 2;
            b.examples[e].n_loss_tokens += b.loss_mask[e][i];
        }
    }
    b.data = (sn_dataset){.at = b.examples, .n = EXAMPLES};
    return &b;
}

static void fixture_free(fixture *b) {
    sn_lm_head_free(&b->head);
    sn_device_close(&b->device);
    sn_model_close(&b->model);
    tiny_model_remove(&b->path);
}

static sn_params_shape shape_of(sn_method method) {
    sn_params_shape shape = {.method = method, .prompt_tokens = 4, .rank = 2, .alpha = 6, .n_labels = 3};
    static const sn_role adapted[] = {SN_ROLE_ATTN_Q, SN_ROLE_ATTN_K, SN_ROLE_ATTN_V, SN_ROLE_ATTN_O, SN_ROLE_FFN_DOWN};
    for (size_t i = 0; i < sizeof adapted / sizeof *adapted; i++) shape.target[adapted[i]] = true;
    return shape;
}

static sn_tuner *tuner_new(fixture *b, sn_backbone *backbone, sn_method method, int batch, int accumulate) {
    sn_params *params = NULL;
    sn_tuner *t = NULL;
    sn_params_shape shape = shape_of(method);
    uint64_t rng = 5;
    const sn_tuner_options options = {
        batch,
        accumulate,
        {.lr = 0.01, .clip = 1, .steps = 8, .warmup = 1, .schedule = SN_SCHEDULE_COSINE, .weight_decay = 0.1},
        11,
        .threads = 1 + accumulate % 3}; /* threads do not change the bits either */
    for (int e = 0; e < EXAMPLES; e++) b->examples[e].label = method == SN_METHOD_HEAD ? e % 3 : -1;
    REQUIRE(sn_params_new(b->hp, &shape, &params, &err));
    REQUIRE(sn_params_init_values(params, b->head, b->hp->n_vocab, &rng, &err));
    REQUIRE(sn_tuner_new(&options, b->hp, b->head, backbone, &b->data, &params, &t, &err));
    return t;
}

static void run_steps(sn_tuner *t, int n) {
    for (int i = 0; i < n; i++) REQUIRE(sn_tuner_step(t, &err));
}

static sn_backbone *local_backbone(fixture *b) {
    sn_backbone *backbone = NULL;
    const sn_backbone_local_options options = {.device = b->device};
    REQUIRE(sn_backbone_local(b->model, &options, &backbone, &err));
    return backbone;
}

static bool same_parameters(const sn_tuner *a, const sn_tuner *b) {
    size_t bytes = a->params->n_floats * sizeof(float);
    return a->step == b->step && !memcmp(a->params->values, b->params->values, bytes) &&
           !memcmp(a->exp_avg, b->exp_avg, bytes) && !memcmp(a->exp_avg_sq, b->exp_avg_sq, bytes) &&
           !memcmp(a->losses, b->losses, (size_t)a->step * sizeof(double));
}

Test(tune, every_method_learns_with_any_micro_batch_size) {
    fixture *b = fixture_new();
    sn_backbone *backbone = local_backbone(b);
    for (int method = 0; method < SN_METHOD_COUNT; method++) {
        sn_tuner *one = tuner_new(b, backbone, (sn_method)method, 6, 1),
                 *many = tuner_new(b, backbone, (sn_method)method, 1, 6);
        double before, after;
        REQUIRE(sn_tuner_evaluate(one, &b->data, &before, NULL, &err));
        run_steps(one, 6);
        REQUIRE(sn_tuner_evaluate(one, &b->data, &after, NULL, &err));
        cr_expect_lt(after, before, "%s: loss %g before, %g after", sn_method_name((sn_method)method), before, after);
        run_steps(many, 6);
        cr_expect(same_parameters(one, many), "%s: bits of six micro-batches of one differ from those of one of six",
                  sn_method_name((sn_method)method));
        sn_tuner_free(&one);
        sn_tuner_free(&many);
    }
    sn_backbone_free(&backbone);
    fixture_free(b);
}

static sn_backbone *swarm_backbone(fixture *b, sn_link *link, int timeout_ms, int retries) {
    sn_backbone *backbone = NULL;
    REQUIRE(sn_backbone_swarm(
        b->model, &(sn_backbone_swarm_options){.link = link, .timeout_ms = timeout_ms, .max_retries = retries},
        &backbone, &err));
    return backbone;
}

Test(tune, same_bits_over_any_cut_of_the_swarm) {
    static const int cuts[][4] = {{0, 4}, {0, 2, 4}, {0, 1, 3, 4}};
    fixture *b = fixture_new();
    sn_backbone *local = local_backbone(b);
    for (int method = 0; method < SN_METHOD_COUNT; method++) {
        sn_tuner *want = tuner_new(b, local, (sn_method)method, 2, 3);
        run_steps(want, 3);
        for (int c = 0; c < 3; c++) { /* training keeps its own keys and values, whatever nodes do in sessions */
            cluster *nodes =
                cluster_new(&(cluster_options){.model = b->path, .tune_memory = 64 << 20, .kv_dtype = (sn_kv_dtype)c});
            for (int i = 0; i <= c; i++) cluster_add(nodes, cuts[c][i], cuts[c][i + 1]);
            sn_link *link = cluster_link(nodes);
            sn_backbone *backbone = swarm_backbone(b, link, 10000, 1);
            sn_tuner *got = tuner_new(b, backbone, (sn_method)method, 2, 3);
            run_steps(got, 3);
            cr_expect(same_parameters(want, got), "%s over %d nodes: bits differ", sn_method_name((sn_method)method),
                      c + 1);
            sn_tuner_free(&got);
            sn_backbone_free(&backbone);
            sn_link_close(&link);
            cluster_free(&nodes);
        }
        sn_tuner_free(&want);
    }
    sn_backbone_free(&local);
    fixture_free(b);
}

Test(tune, a_node_lost_within_a_step_changes_no_bit) {
    fixture *b = fixture_new();
    sn_backbone *local = local_backbone(b);
    sn_tuner *want = tuner_new(b, local, SN_METHOD_LORA, 1, 5);
    run_steps(want, 3);
    cluster *nodes = cluster_new(&(cluster_options){.model = b->path, .tune_memory = 64 << 20});
    int first = cluster_add(nodes, 0, 2);
    cluster_add(nodes, 2, 4);
    cluster_add(nodes, 0, 3); /* replaces the lost node, with another cut */
    sn_link *link = cluster_link(nodes);
    sn_backbone *backbone = swarm_backbone(b, link, 700, 3);
    sn_tuner *got = tuner_new(b, backbone, SN_METHOD_LORA, 1, 5);
    run_steps(got, 1);
    cluster_cut_off(nodes, first);
    run_steps(got, 2);
    cr_expect(same_parameters(want, got), "bits differ after a node was lost");
    sn_tuner_free(&got);
    sn_backbone_free(&backbone);
    sn_link_close(&link);
    cluster_free(&nodes);
    sn_tuner_free(&want);
    sn_backbone_free(&local);
    fixture_free(b);
}

Test(tune, fails_without_changes_when_no_node_is_left) {
    fixture *b = fixture_new();
    cluster *nodes = cluster_new(&(cluster_options){.model = b->path, .tune_memory = 64 << 20});
    int only = cluster_add(nodes, 0, 4);
    sn_link *link = cluster_link(nodes);
    sn_backbone *backbone = swarm_backbone(b, link, 300, 1);
    sn_tuner *t = tuner_new(b, backbone, SN_METHOD_PROMPT, 2, 1);
    run_steps(t, 1);
    size_t position = t->position;
    float value = t->params->values[3];
    sn_err err = {0};
    cluster_cut_off(nodes, only);
    cr_expect_eq(sn_tuner_step(t, &err), SN_RETRY, "%s", err.text);
    cr_expect(strstr(err.text, "blocks 0:4") || strstr(err.text, "no answer"), "%s", err.text);
    cr_expect(t->step == 1 && t->position == position && t->params->values[3] == value);
    sn_tuner_free(&t);
    sn_backbone_free(&backbone);
    sn_link_close(&link);
    cluster_free(&nodes);
    fixture_free(b);
}

Test(tune, reports_the_error_of_a_node_without_training_memory) {
    fixture *b = fixture_new();
    cluster *nodes = cluster_new(&(cluster_options){.model = b->path});
    cluster_add(nodes, 0, 4);
    sn_link *link = cluster_link(nodes);
    sn_backbone *backbone = swarm_backbone(b, link, 2000, 0);
    sn_tuner *t = tuner_new(b, backbone, SN_METHOD_PROMPT, 2, 1);
    sn_err err = {0};
    cr_expect_neq(sn_tuner_step(t, &err), SN_OK);
    cr_expect(strstr(err.text, "--tune-memory 0"), "%s", err.text);
    sn_tuner_free(&t);
    sn_backbone_free(&backbone);
    sn_link_close(&link);
    cluster_free(&nodes);
    fixture_free(b);
}

static size_t heap_in_use(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* Client and nodes are one process here. Sanitizers replace the heap, so that it cannot be measured; they detect
 * leaks themselves. */
Test(tune, memory_does_not_grow_over_a_thousand_steps) {
    fixture *b = fixture_new();
    cluster *nodes = cluster_new(&(cluster_options){.model = b->path, .tune_memory = 1 << 20});
    cluster_add(nodes, 0, 2);
    cluster_add(nodes, 2, 4);
    sn_link *link = cluster_link(nodes);
    sn_backbone *backbone = swarm_backbone(b, link, 60000, 1);
    sn_tuner *t = tuner_new(b, backbone, SN_METHOD_LORA, 1, 2);
    run_steps(t, 300);
    size_t before = heap_in_use();
    run_steps(t, 700);
    size_t after = heap_in_use();
    fprintf(stderr, "heap: %zu KiB after 300 steps, %zu after 1,000\n", before >> 10, after >> 10);
    cr_expect_lt(after, before + (256 << 10), "%zu bytes after 300 steps, %zu after 1,000", before, after);
    sn_tuner_free(&t);
    sn_backbone_free(&backbone);
    sn_link_close(&link);
    cluster_free(&nodes);
    fixture_free(b);
}

/* -- checkpoints */

Test(tune, resuming_from_a_checkpoint_changes_no_bit) {
    fixture *b = fixture_new();
    sn_backbone *backbone = local_backbone(b);
    sn_hash model = sn_model_id(b->model);
    char *labels[] = {"a", "b", "c"};
    json_t *options = json_pack("{sf}", "lr", 0.01);
    sn_base_weights base;
    sn_checkpoint checkpoint;
    REQUIRE(sn_base_weights_init(&base, b->model, backbone->weights, &err));
    for (int method = 0; method < SN_METHOD_COUNT; method++) {
        char *folder = temp_folder();
        sn_tuner *whole = tuner_new(b, backbone, (sn_method)method, 3, 1),
                 *half = tuner_new(b, backbone, (sn_method)method, 3, 1);
        run_steps(whole, 8);
        run_steps(half, 5); /* within an epoch */
        REQUIRE(sn_checkpoint_save(folder, half, &model, &base, labels, options, &err));
        sn_tuner_free(&half);
        half = tuner_new(b, backbone, (sn_method)method, 3, 1);
        REQUIRE(sn_checkpoint_open(folder, &checkpoint, &err));
        cr_expect(json_equal(checkpoint.options, options));
        REQUIRE(sn_checkpoint_check_weights(&checkpoint, b->model, backbone->weights, &err));
        REQUIRE(sn_checkpoint_restore(&checkpoint, half, &err));
        sn_checkpoint_close(&checkpoint);
        run_steps(half, 3);
        cr_expect(same_parameters(whole, half), "%s: bits differ after resuming", sn_method_name((sn_method)method));
        sn_tuner_free(&whole);
        sn_tuner_free(&half);
        remove_tree(folder);
        free(folder);
    }
    json_decref(options);
    sn_base_weights_fini(&base);
    sn_backbone_free(&backbone);
    fixture_free(b);
}

Test(tune, a_saved_and_loaded_adapter_has_the_same_values) {
    fixture *b = fixture_new();
    sn_backbone *backbone = local_backbone(b);
    char *labels[] = {"yes", "no", "it depends"};
    for (int method = 0; method < SN_METHOD_COUNT; method++) {
        char *folder = temp_folder();
        sn_tuner *t = tuner_new(b, backbone, (sn_method)method, 2, 1);
        sn_adapter_folder loaded;
        run_steps(t, 2);
        REQUIRE(sn_adapter_folder_save(folder, t->params, b->hp, NULL, labels, &err));
        REQUIRE(sn_adapter_folder_load(folder, b->hp, &loaded, &err));
        cr_expect_eq(loaded.params->n_floats, t->params->n_floats);
        cr_expect(!memcmp(loaded.params->values, t->params->values, t->params->n_floats * sizeof(float)), "%s",
                  sn_method_name((sn_method)method));
        if (method == SN_METHOD_HEAD) cr_expect_str_eq(loaded.labels[2], "it depends");
        sn_hparams other = *b->hp;
        other.n_embd *= 2;
        sn_adapter_folder_fini(&loaded);
        sn_err err = {0};
        cr_expect_eq(sn_adapter_folder_load(folder, &other, &loaded, &err), SN_REFUSED);
        cr_expect(strstr(err.text, "another model"), "%s", err.text);
        sn_tuner_free(&t);
        remove_tree(folder);
        free(folder);
    }
    sn_backbone_free(&backbone);
    fixture_free(b);
}

/* -- the optimizer, compared with its formulas in float64 */

Test(tune, adamw_matches_the_paper) {
    const sn_optimizer_options o = {.lr = 0.1, .weight_decay = 0.01, .steps = 10};
    float value = 1, first = 0, second = 0;
    double v = 1, m = 0, s = 0;
    for (int step = 0; step < 5; step++) {
        float gradient = 0.5f - 0.2f * (float)step;
        double g = (double)gradient, t = step + 1;
        sn_adamw_step(&o, step, 1, &value, &gradient, &first, &second);
        v -= 0.1 * 0.01 * v;
        m = 0.9 * m + 0.1 * g;
        s = 0.999 * s + 0.001 * g * g;
        v -= 0.1 * (m / (1 - pow(0.9, t))) / (sqrt(s / (1 - pow(0.999, t))) + 1e-8);
        cr_expect_float_eq((double)value, v, 1e-6, "step %d: %g, not %g", step, (double)value, v);
    }
}

Test(tune, learning_rates_follow_their_schedules) {
    sn_optimizer_options o = {.lr = 1, .warmup = 4, .steps = 14};
    for (int s = 0; s < SN_SCHEDULE_COUNT; s++) {
        o.schedule = (sn_schedule)s;
        cr_expect_float_eq(sn_learning_rate(&o, 0), 0.2, 1e-12);
        cr_expect_float_eq(sn_learning_rate(&o, 3), 0.8, 1e-12);
        cr_expect_float_eq(sn_learning_rate(&o, 4), 1, 1e-12);
    }
    o.schedule = SN_SCHEDULE_CONSTANT;
    cr_expect_float_eq(sn_learning_rate(&o, 13), 1, 1e-12);
    o.schedule = SN_SCHEDULE_LINEAR;
    cr_expect_float_eq(sn_learning_rate(&o, 9), 0.5, 1e-12);
    o.schedule = SN_SCHEDULE_COSINE;
    cr_expect_float_eq(sn_learning_rate(&o, 9), 0.5, 1e-12);
    cr_expect_float_eq(sn_learning_rate(&o, 14), 0, 1e-12);
}

Test(tune, gradients_are_clipped_to_their_norm) {
    float g[] = {3, 0, -4};
    cr_expect_float_eq(sn_clip_grad_norm(g, 3, 0), 5, 1e-9);
    cr_expect_eq(g[2], -4.0f);
    cr_expect_float_eq(sn_clip_grad_norm(g, 3, 1), 5, 1e-9);
    cr_expect_float_eq((double)g[0], 0.6, 1e-6);
    cr_expect_float_eq(sn_clip_grad_norm(g, 3, 2), 1, 1e-6);
}
