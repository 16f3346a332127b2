/* Training beside the reference (tests/fixtures/peft: PyTorch and PEFT, float32): from the folder that PEFT wrote at the
 * beginning, with the same examples in the same order, the same losses step by step and the same values at the end; and a
 * folder of ours has what PEFT's has. */
#include "client/tune/adapter.h"
#include "client/tune/tuner.h"
#include "model/safetensors.h"
#include "tests/support/cluster.h"
#include "tests/support/files.h"
#include "tests/support/need.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

enum { EXAMPLES_MAX = 16, IDS_MAX = 64, ROWS_MAX = 96 };
static const char *const METHODS[] = {"prompt", "lora"};
static const double LOSS_TOLERANCE = 1e-3; /* largest distance of a step's loss */

typedef struct reference {
    json_t *file;
    char begin[256], end[256];
    sn_dataset data;
    sn_example examples[EXAMPLES_MAX];
    int32_t ids[EXAMPLES_MAX][IDS_MAX];
    uint8_t learned[EXAMPLES_MAX][IDS_MAX];
    char model_path[256];
    sn_model *model;
    const sn_hparams *hp;
    sn_device *device;
    sn_head *head;
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
        const json_t *learned = json_object_get(json_array_get(list, e), "learned");
        sn_example *out = &r.examples[e];
        *out = (sn_example){.ids = r.ids[e], .learned = r.learned[e], .n = json_array_size(ids), .label = -1};
        cr_assert_leq(out->n, IDS_MAX);
        for (size_t i = 0; i < out->n; i++) {
            out->ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
            out->learned[i] = (uint8_t)json_integer_value(json_array_get(learned, i));
            out->n_learned += out->learned[i];
        }
    }
    NEED(sn_model_open(r.model_path, &r.model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 2}, &r.device, &err));
    NEED(sn_head_load(r.model, r.device, &r.head, &err));
    r.hp = sn_model_hparams(r.model);
    return &r;
}

static void reference_close(reference *r) {
    sn_head_free(&r->head);
    sn_device_close(&r->device);
    sn_model_close(&r->model);
    json_decref(r->file);
}

static double number(const reference *r, const char *name) {
    json_t *options = json_object_get(r->file, "options");
    json_t *value = json_object_get(json_object_get(r->file, name) ? r->file : options, name);
    cr_assert(json_is_number(value), "the reference has no %s", name);
    return json_number_value(value);
}

static sn_tuner *tuner_new(reference *r, sn_trunk *trunk) {
    sn_adapter begin;
    sn_tuner *t = NULL;
    const sn_tuner_options options = {.batch = 1,
                                      .accumulate = (int)number(r, "batch"),
                                      .optimizer = {.lr = number(r, "lr"),
                                                    .weight_decay = number(r, "weight_decay"),
                                                    .clip = number(r, "clip"),
                                                    .schedule = SN_SCHEDULE_COSINE,
                                                    .steps = (int64_t)number(r, "steps")},
                                      .seed = (uint64_t)number(r, "seed")};
    NEED(sn_adapter_load(r->begin, r->hp, &begin, &err));
    NEED(sn_tuner_new(&options, r->hp, r->head, trunk, &r->data, &begin.params, &t, &err));
    sn_adapter_fini(&begin);
    return t;
}

/* All steps; returns the largest distance from the reference's losses. */
static double run_steps(const reference *r, sn_tuner *t) {
    const json_t *losses = json_object_get(r->file, "losses");
    size_t n = (size_t)number(r, "steps");
    double worst = 0;
    cr_assert_eq(json_array_size(losses), n);
    for (size_t i = 0; i < n; i++) {
        NEED(sn_tuner_step(t, &err));
        worst = fmax(worst, fabs(t->losses[i] - json_number_value(json_array_get(losses, i))));
    }
    return worst;
}

/* Of the values from the reference's at the end, as a share of how far training moved them (2-norms). */
static double distance_at_end(const reference *r, const sn_tuner *t) {
    sn_adapter begin, end;
    double off = 0, moved = 0;
    NEED(sn_adapter_load(r->begin, r->hp, &begin, &err));
    NEED(sn_adapter_load(r->end, r->hp, &end, &err));
    for (size_t i = 0; i < t->params->n_floats; i++) {
        double want = (double)end.params->values[i];
        off += pow((double)t->params->values[i] - want, 2);
        moved += pow((double)begin.params->values[i] - want, 2);
    }
    sn_adapter_fini(&begin);
    sn_adapter_fini(&end);
    return sqrt(off / moved);
}

static void expect_as_reference(const reference *r, sn_tuner *t, const char *method, const char *where) {
    double loss = run_steps(r, t), values = distance_at_end(r, t);
    fprintf(stderr, "%s, %s: losses within %.2g, values within %.2g of their way\n", method, where, loss, values);
    cr_expect_lt(loss, LOSS_TOLERANCE, "%s, %s: a loss is %g from the reference's", method, where, loss);
    cr_expect_lt(values, 0.01, "%s, %s: the values end %g of their way from the reference's", method, where, values);
}

Test(peft, one_span_trains_as_the_reference_does) {
    for (int m = 0; m < 2; m++) {
        reference *r = reference_open(METHODS[m]);
        sn_trunk *trunk = NULL;
        NEED(sn_trunk_local(r->model, r->device, ROWS_MAX, &trunk, &err));
        sn_tuner *t = tuner_new(r, trunk);
        expect_as_reference(r, t, METHODS[m], "one span");
        sn_tuner_free(&t);
        sn_trunk_free(&trunk);
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
        sn_trunk *trunk = NULL;
        const sn_trunk_swarm_options options = {.link = link, .timeout_ms = 60000, .max_retries = 1};
        NEED(sn_trunk_swarm(r->model, &options, &trunk, &err));
        sn_tuner *t = tuner_new(r, trunk);
        expect_as_reference(r, t, METHODS[m], "three nodes");
        sn_tuner_free(&t);
        sn_trunk_free(&trunk);
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
    NEED(sn_safetensors_open(path, &file, &err));
    return file;
}

static bool names(const json_t *list, const char *word) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), word)) return true;
    return false;
}

/* What PEFT decides by when it reads a folder. */
static void expect_same_config(const char *theirs, const char *ours) {
    static const char *const keys[] = {"peft_type",        "task_type", "r",         "lora_alpha", "lora_dropout", "bias",
                                       "fan_in_fan_out",   "token_dim", "num_layers", "num_attention_heads",
                                       "num_virtual_tokens", "num_transformer_submodules"};
    json_t *want = config_in(theirs), *got = config_in(ours);
    const json_t *modules = json_object_get(want, "target_modules"), *written = json_object_get(got, "target_modules");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(want, keys[i]), *mine = json_object_get(got, keys[i]);
        if (value) cr_expect(json_equal(value, mine), "%s differs", keys[i]);
    }
    cr_expect_eq(json_array_size(modules), json_array_size(written));
    for (size_t i = 0; i < json_array_size(modules); i++)
        cr_expect(names(written, json_string_value(json_array_get(modules, i))));
    json_decref(want);
    json_decref(got);
}

Test(peft, a_folder_that_peft_wrote_is_read_and_written_again_with_the_same_tensors) {
    for (int m = 0; m < 2; m++) {
        reference *r = reference_open(METHODS[m]);
        char *folder = temp_folder();
        sn_adapter adapter;
        NEED(sn_adapter_load(r->end, r->hp, &adapter, &err));
        NEED(sn_adapter_save(folder, adapter.params, r->hp, NULL, &err));
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
        sn_adapter_fini(&adapter);
        temp_folder_remove(&folder);
        reference_close(r);
    }
}
