/* Training compared with the reference (tests/fixtures/peft: PyTorch and PEFT, float32): from the folder that PEFT
 * wrote at the beginning, with the same examples in the same order, the losses of all steps and the final values are
 * the same within a tolerance; and a folder written by this program has the contents of PEFT's. */
#include "client/tune/adapter_folder.h"
#include "client/tune/tuner.h"
#include "model/safetensors.h"
#include "tests/support/cluster.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

enum { EXAMPLES_MAX = 16, IDS_MAX = 64, ROWS_MAX = 96 };
static const char *const METHODS[] = {"prompt", "lora"};
static const double LOSS_TOLERANCE = 1e-3; /* largest difference of a step's loss */

typedef struct reference {
    json_t *file;
    char begin[256], end[256];
    sn_dataset data;
    sn_example examples[EXAMPLES_MAX];
    int32_t ids[EXAMPLES_MAX][IDS_MAX];
    uint8_t loss_mask[EXAMPLES_MAX][IDS_MAX];
    char model_path[256];
    sn_model *model;
    const sn_hparams *hp;
    sn_device *device;
    sn_lm_head *head;
} reference;

static reference *reference_open(const char *method) {
    static reference r;
    char path[256];
    memset(&r, 0, sizeof r);
    snprintf(path, sizeof path, "%s/peft/%s/reference.json", SN_FIXTURES, method);
    snprintf(r.begin, sizeof r.begin, "%s/peft/%s/begin", SN_FIXTURES, method);
    snprintf(r.end, sizeof r.end, "%s/peft/%s/end", SN_FIXTURES, method);
    snprintf(r.model_path, sizeof r.model_path, "%s/golden/llama", SN_FIXTURES);
    r.file = json_load_file(path, 0, NULL);
    cr_assert(r.file, "%s", path);
    const json_t *list = json_object_get(r.file, "examples");
    r.data = (sn_dataset){.at = r.examples, .n = json_array_size(list)};
    cr_assert_leq(r.data.n, EXAMPLES_MAX);
    for (size_t e = 0; e < r.data.n; e++) {
        const json_t *ids = json_object_get(json_array_get(list, e), "ids");
        const json_t *loss_mask = json_object_get(json_array_get(list, e), "learned");
        sn_example *out = &r.examples[e];
        *out = (sn_example){.ids = r.ids[e], .loss_mask = r.loss_mask[e], .n = json_array_size(ids), .label = -1};
        cr_assert_leq(out->n, IDS_MAX);
        for (size_t i = 0; i < out->n; i++) {
            out->ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
            out->loss_mask[i] = (uint8_t)json_integer_value(json_array_get(loss_mask, i));
            out->n_loss_tokens += out->loss_mask[i];
        }
    }
    REQUIRE(sn_model_open(r.model_path, &r.model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 2}, &r.device, &err));
    REQUIRE(sn_lm_head_load(r.model, r.device, &r.head, &err));
    r.hp = sn_model_hparams(r.model);
    return &r;
}

static void reference_close(reference *r) {
    sn_lm_head_free(&r->head);
    sn_device_close(&r->device);
    sn_model_close(&r->model);
    json_decref(r->file);
}

static double reference_number(const reference *r, const char *name) {
    json_t *options = json_object_get(r->file, "options");
    json_t *value = json_object_get(json_object_get(r->file, name) ? r->file : options, name);
    cr_assert(json_is_number(value), "the reference has no %s", name);
    return json_number_value(value);
}

static sn_tuner *tuner_new(reference *r, sn_backbone *backbone) {
    sn_adapter_folder begin;
    sn_tuner *t = NULL;
    const sn_tuner_options options = {.batch = 1,
                                      .accumulate = (int)reference_number(r, "batch"),
                                      .optimizer = {.lr = reference_number(r, "lr"),
                                                    .weight_decay = reference_number(r, "weight_decay"),
                                                    .clip = reference_number(r, "clip"),
                                                    .schedule = SN_SCHEDULE_COSINE,
                                                    .steps = (int64_t)reference_number(r, "steps")},
                                      .seed = (uint64_t)reference_number(r, "seed")};
    REQUIRE(sn_adapter_folder_load(r->begin, r->hp, &begin, &err));
    REQUIRE(sn_tuner_new(&options, r->hp, r->head, backbone, &r->data, &begin.params, &t, &err));
    sn_adapter_folder_fini(&begin);
    return t;
}

/* Runs all steps; returns the largest difference from the reference's losses. */
static double run_steps(const reference *r, sn_tuner *t) {
    const json_t *losses = json_object_get(r->file, "losses");
    size_t n = (size_t)reference_number(r, "steps");
    double worst = 0;
    cr_assert_eq(json_array_size(losses), n);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(sn_tuner_step(t, &err));
        worst = fmax(worst, fabs(t->losses[i] - json_number_value(json_array_get(losses, i))));
    }
    return worst;
}

/* Difference of the final values from the reference's, relative to how far training moved them (2-norms). */
static double distance_at_end(const reference *r, const sn_tuner *t) {
    sn_adapter_folder begin, end;
    double off = 0, moved = 0;
    REQUIRE(sn_adapter_folder_load(r->begin, r->hp, &begin, &err));
    REQUIRE(sn_adapter_folder_load(r->end, r->hp, &end, &err));
    for (size_t i = 0; i < t->params->n_floats; i++) {
        double want = (double)end.params->values[i];
        off += pow((double)t->params->values[i] - want, 2);
        moved += pow((double)begin.params->values[i] - want, 2);
    }
    sn_adapter_folder_fini(&begin);
    sn_adapter_folder_fini(&end);
    return sqrt(off / moved);
}

static void expect_as_reference(const reference *r, sn_tuner *t, const char *method, const char *where) {
    double loss = run_steps(r, t), values = distance_at_end(r, t);
    fprintf(stderr, "%s, %s: losses within %.2g, values within %.2g of their change\n", method, where, loss, values);
    cr_expect_lt(loss, LOSS_TOLERANCE, "%s, %s: a loss differs from the reference's by %g", method, where, loss);
    cr_expect_lt(values, 0.01, "%s, %s: the values differ from the reference's by %g of their change", method, where,
                 values);
}

Test(peft, one_span_trains_as_the_reference_does) {
    for (int m = 0; m < 2; m++) {
        reference *r = reference_open(METHODS[m]);
        sn_backbone *backbone = NULL;
        const sn_backbone_local_options options = {.device = r->device};
        REQUIRE(sn_backbone_local(r->model, &options, &backbone, &err));
        sn_tuner *t = tuner_new(r, backbone);
        expect_as_reference(r, t, METHODS[m], "one span");
        sn_tuner_free(&t);
        sn_backbone_free(&backbone);
        reference_close(r);
    }
}

Test(peft, three_nodes_train_as_the_reference_does) {
    static const int cuts[] = {0, 1, 3, 4};
    for (int m = 0; m < 2; m++) {
        reference *r = reference_open(METHODS[m]);
        cluster *nodes = cluster_new(&(cluster_options){.model = r->model_path, .tune_memory = 64 << 20});
        for (int i = 0; i < 3; i++) cluster_add(nodes, cuts[i], cuts[i + 1]);
        sn_link *link = cluster_link(nodes);
        sn_backbone *backbone = NULL;
        const sn_backbone_swarm_options options = {.link = link, .timeout_ms = 60000, .max_retries = 1};
        REQUIRE(sn_backbone_swarm(r->model, &options, &backbone, &err));
        sn_tuner *t = tuner_new(r, backbone);
        expect_as_reference(r, t, METHODS[m], "three nodes");
        sn_tuner_free(&t);
        sn_backbone_free(&backbone);
        sn_link_close(&link);
        cluster_free(&nodes);
        reference_close(r);
    }
}

/* -- folders */

static json_t *config_in(const char *folder) {
    char path[512];
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    cr_assert(config, "%s", path);
    return config;
}

static sn_safetensors *tensors_in(const char *folder) {
    char path[512];
    sn_safetensors *file = NULL;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    REQUIRE(sn_safetensors_open(path, &file, &err));
    return file;
}

static bool list_contains(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), name)) return true;
    return false;
}

/* The fields by which PEFT reads a folder. */
static void expect_same_config(const char *theirs, const char *ours) {
    static const char *const keys[] = {"peft_type",           "task_type",          "r",
                                       "lora_alpha",          "lora_dropout",       "bias",
                                       "fan_in_fan_out",      "token_dim",          "num_layers",
                                       "num_attention_heads", "num_virtual_tokens", "num_transformer_submodules"};
    json_t *want = config_in(theirs), *got = config_in(ours);
    const json_t *modules = json_object_get(want, "target_modules"), *written = json_object_get(got, "target_modules");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(want, keys[i]), *mine = json_object_get(got, keys[i]);
        if (value) cr_expect(json_equal(value, mine), "%s differs", keys[i]);
    }
    cr_expect_eq(json_array_size(modules), json_array_size(written));
    for (size_t i = 0; i < json_array_size(modules); i++)
        cr_expect(list_contains(written, json_string_value(json_array_get(modules, i))));
    json_decref(want);
    json_decref(got);
}

Test(peft, a_folder_that_peft_wrote_is_read_and_written_again_with_the_same_tensors) {
    for (int m = 0; m < 2; m++) {
        reference *r = reference_open(METHODS[m]);
        char *folder = temp_folder();
        sn_adapter_folder adapter;
        REQUIRE(sn_adapter_folder_load(r->end, r->hp, &adapter, &err));
        REQUIRE(sn_adapter_folder_save(folder, adapter.params, r->hp, NULL, NULL, &err));
        sn_safetensors *want = tensors_in(r->end), *got = tensors_in(folder);
        cr_expect_eq(sn_safetensors_n_tensors(want), sn_safetensors_n_tensors(got));
        for (size_t i = 0; i < sn_safetensors_n_tensors(want); i++) {
            const sn_safetensors_tensor *a = sn_safetensors_tensor_at(want, i), *b = sn_safetensors_find(got, a->name);
            cr_assert(b, "%s is missing", a->name);
            cr_expect(b->dtype == a->dtype && b->n_dims == 2 && b->dims[0] == a->dims[0] && b->dims[1] == a->dims[1] &&
                          !memcmp(a->data, b->data, a->elements * sizeof(float)),
                      "%s differs", a->name);
        }
        sn_safetensors_close(&want);
        sn_safetensors_close(&got);
        expect_same_config(r->end, folder);
        sn_adapter_folder_fini(&adapter);
        temp_folder_remove(&folder);
        reference_close(r);
    }
}
