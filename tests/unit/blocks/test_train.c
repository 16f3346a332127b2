/* Training through frozen blocks: the reference's loss and gradients (tests/fixtures/golden); finite differences for
 * the trained parameters; and the promise that a sequence's gradients are the same bits for every cut, number of
 * threads and instruction set, wherever blocks are kept, and whatever was trained before. */
#include "blocks/train.h"
#include "client/generate/lm_head.h"
#include "model/safetensors.h"
#include "tests/support/train_whole.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/families.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static sn_device *open_cpu(int threads, const char *isa) {
    sn_device *device = NULL;
    sn_err err;
    if (sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = threads, .isa = isa}, &device,
                       &err))
        return NULL; /* this machine lacks the instruction set */
    return device;
}

static sn_tensor rows_tensor(const char *name, const float *data, int n, int width) {
    return (sn_tensor){.name = name, .data = data, .dtype = SN_F32, .rank = 2, .shape = {n, width}};
}

/* -- the reference */

static float *floats_of(const sn_safetensors *file, const char *name, size_t *n) {
    const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
    float *out = malloc(t->bytes);
    memcpy(out, t->data, t->bytes);
    if (n) *n = t->elements;
    return out;
}

/* Mean cross-entropy of predicting ids[1:], and its gradient with respect to the logits. */
static double loss_of(const float *logits, const int64_t *ids, int n, int n_vocab, float *dlogits) {
    double loss = 0;
    memset(dlogits, 0, (size_t)n * (size_t)n_vocab * sizeof *dlogits);
    for (int t = 0; t + 1 < n; t++) {
        const float *row = logits + (size_t)t * (size_t)n_vocab;
        double sum = 0, top = (double)row[0];
        for (int v = 1; v < n_vocab; v++) top = fmax(top, (double)row[v]);
        for (int v = 0; v < n_vocab; v++) sum += exp((double)row[v] - top);
        loss += log(sum) + top - (double)row[ids[t + 1]];
        for (int v = 0; v < n_vocab; v++)
            dlogits[(size_t)t * (size_t)n_vocab + (size_t)v] =
                (float)((exp((double)row[v] - top) / sum - (v == ids[t + 1])) / (n - 1));
    }
    return loss / (n - 1);
}

/* grad_input through one span, or through two spans cut at `cut`. */
static void through_spans(const sn_model *model, sn_device *device, sn_lm_head *head, const sn_safetensors *golden,
                          int cut, float *dx, double *loss) {
    const sn_hparams *hp = sn_model_hparams(model);
    int ends[3] = {0, cut ? cut : hp->n_blocks, hp->n_blocks}, n_spans = cut ? 2 : 1, width = hp->n_embd;
    sn_span *spans[2] = {NULL};
    sn_train *trains[2] = {NULL};
    float *x[3] = {floats_of(golden, "hidden.0", NULL)};
    const sn_safetensors_tensor *ids_tensor = sn_safetensors_find(golden, "input_ids");
    int n = (int)ids_tensor->elements;
    int64_t ids[512];
    memcpy(ids, ids_tensor->data, ids_tensor->bytes);
    size_t bytes = (size_t)n * (size_t)width * sizeof(float);
    for (int i = 0; i < n_spans; i++) {
        REQUIRE(sn_span_load(model, device, ends[i], ends[i + 1], NULL, NULL, &spans[i], &err));
        REQUIRE(sn_train_new(spans[i], 100, &trains[i], &err));
        sn_tensor in = rows_tensor("hidden states", x[i], n, width);
        x[i + 1] = malloc(bytes);
        REQUIRE(
            train_forward(trains[i], &(sn_train_sequence){ends[i], ends[i + 1], NULL, &in}, x[i + 1], 0, NULL, &err));
    }
    float *logits = malloc((size_t)n * (size_t)hp->n_vocab * sizeof(float)),
          *dlogits = malloc((size_t)n * (size_t)hp->n_vocab * sizeof(float));
    REQUIRE(sn_lm_head_logits(head, x[n_spans], n, logits, &err));
    *loss = loss_of(logits, ids, n, hp->n_vocab, dlogits);
    float *dy = malloc(bytes);
    REQUIRE(sn_lm_head_logits_grad(head, x[n_spans], n, dlogits, dy, &err));
    for (int i = n_spans - 1; i >= 0; i--) {
        sn_tensor in = rows_tensor("hidden states", x[i], n, width), out = rows_tensor("gradients", dy, n, width);
        REQUIRE(train_backward(trains[i], &(sn_train_sequence){ends[i], ends[i + 1], NULL, &in}, NULL, &out, dx, NULL,
                               &err));
        memcpy(dy, dx, bytes);
        sn_train_free(&trains[i]);
        sn_span_free(&spans[i]);
    }
    for (int i = 0; i <= n_spans; i++) free(x[i]);
    free(logits);
    free(dlogits);
    free(dy);
}

Test(train, every_family_trains_or_is_refused_by_name) {
    for (int f = 0; f < N_FAMILIES; f++) {
        char path[300];
        sn_model *model = NULL;
        sn_err why = {0};
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, FAMILIES[f]);
        REQUIRE(sn_model_open(path, &model, &err));
        const sn_hparams *hp = sn_model_hparams(model);
        sn_status status = sn_train_check_model(hp, 0, hp->n_blocks, &why);
        cr_expect_eq(status, family_is_limited(FAMILIES[f]) ? SN_REFUSED : SN_OK, "%s", FAMILIES[f]);
        cr_expect(!status || (strstr(why.text, hp->family) && strstr(why.text, "has no backward pass")), "%s",
                  why.text);
        sn_model_close(&model);
    }
}

Test(train, gradients_of_every_family_match_the_reference_over_any_cut) {
    for (int f = 0; f < N_FAMILIES; f++) {
        if (family_is_limited(FAMILIES[f])) continue;
        char path[300];
        sn_model *model = NULL;
        sn_safetensors *golden = NULL;
        sn_lm_head *head = NULL;
        sn_device *device = open_cpu(1, NULL);
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, FAMILIES[f]);
        REQUIRE(sn_model_open(path, &model, &err));
        REQUIRE(sn_lm_head_load(model, device, &head, &err));
        snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", SN_FIXTURES, FAMILIES[f]);
        REQUIRE(sn_safetensors_open(path, &golden, &err));
        size_t n;
        float *want = floats_of(golden, "grad_input", &n), *want_loss = floats_of(golden, "loss", NULL);
        float *first = malloc(n * sizeof *first), *dx = malloc(n * sizeof *dx);
        for (int cut = 0; cut < sn_model_hparams(model)->n_blocks; cut++) {
            double loss, largest = 0, furthest = 0;
            through_spans(model, device, head, golden, cut, dx, &loss);
            if (!cut) memcpy(first, dx, n * sizeof *dx);
            for (size_t i = 0; i < n; i++) {
                largest = fmax(largest, fabs((double)want[i]));
                furthest = fmax(furthest, fabs((double)want[i] - (double)dx[i]));
            }
            cr_expect_lt(furthest, 1e-4 * largest, "%s cut at %d: grad_input differs by %g (largest element %g)",
                         FAMILIES[f], cut, furthest / largest, largest);
            cr_expect_float_eq(loss, (double)*want_loss, 1e-4 * (double)*want_loss, "%s: loss %g, not %g", FAMILIES[f],
                               loss, (double)*want_loss);
            cr_expect(!memcmp(first, dx, n * sizeof *dx), "%s cut at %d: bits differ from those of one span",
                      FAMILIES[f], cut);
        }
        free(first);
        free(dx);
        free(want);
        free(want_loss);
        sn_lm_head_free(&head);
        sn_safetensors_close(&golden);
        sn_model_close(&model);
        sn_device_close(&device);
    }
}

/* -- trained parameters */

enum { TOKENS = 21, PROMPT = 5, RANK = 3 };

/* Small random numbers, the same for the same seed. */
static float *random_rows(size_t n, uint32_t seed, float scale) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) / 8388608.0f - 1) * scale;
    }
    return x;
}

/* Deep prompts and LoRA matrices of every matrix and block of a model, in one array in the order of the gradients;
 * and the image that holds them. */
typedef struct parameters {
    float *values;
    size_t n;
    sn_safetensors_entry entries[256];
    char names[256][32];
    int n_entries;
} parameters;

static void add_entry(parameters *t, size_t rows, size_t cols, const char *format, int block, const char *target) {
    snprintf(t->names[t->n_entries], 32, format, block, target);
    t->entries[t->n_entries] = (sn_safetensors_entry){t->names[t->n_entries], SN_F32, 2, {rows, cols}, NULL};
    t->n_entries++;
    t->n += rows * cols;
}

static parameters *parameters_of(const sn_hparams *hp) {
    parameters *t = calloc(1, sizeof *t);
    size_t embd = (size_t)hp->n_embd, q = (size_t)(hp->n_heads * hp->head_dim),
           kv = (size_t)(hp->n_kv_heads * hp->head_dim);
    const struct {
        const char *name;
        size_t rows, cols;
    } targets[] = {{"q", q, embd},
                   {"k", kv, embd},
                   {"v", kv, embd},
                   {"o", embd, q},
                   {"gate", (size_t)hp->n_ff, embd},
                   {"up", (size_t)hp->n_ff, embd},
                   {"down", embd, (size_t)hp->n_ff}};
    for (int b = 0; b < hp->n_blocks; b++) {
        add_entry(t, PROMPT, embd, "prompt.%d", b, "");
        for (int i = 0; i < (hp->n_experts ? 4 : 7); i++) { /* of a mixture of experts, attention only */
            if (!hp->gated && !strcmp(targets[i].name, "gate")) continue;
            add_entry(t, RANK, targets[i].cols, "lora_a.%d.%s", b, targets[i].name);
            add_entry(t, targets[i].rows, RANK, "lora_b.%d.%s", b, targets[i].name);
        }
    }
    t->values = random_rows(t->n, 77, 0.3f);
    return t;
}

static sn_adapter *load_adapter(parameters *t, sn_span *span) {
    sn_adapter *adapter = NULL;
    sn_buf image;
    const float *at = t->values;
    for (int i = 0; i < t->n_entries; at += t->entries[i].dims[0] * t->entries[i].dims[1], i++) t->entries[i].data = at;
    sn_buf_init(&image, 64 << 20);
    REQUIRE(sn_safetensors_serialize(t->entries, (size_t)t->n_entries, &image, &err));
    REQUIRE(sn_adapter_load(span, image.data, image.len, &adapter, &err));
    sn_buf_fini(&image);
    return adapter;
}

static void parameters_free(parameters *t) {
    free(t->values);
    free(t);
}

/* sum(weights * f(x)) after all blocks with this adapter. */
static double objective(sn_span *span, sn_train *train, parameters *t, const float *x, const float *weights, int n,
                        int width) {
    sn_adapter *adapter = load_adapter(t, span);
    sn_tensor in = rows_tensor("hidden states", x, n, width);
    float *out = malloc((size_t)n * (size_t)width * sizeof *out);
    double sum = 0;
    REQUIRE(train_forward(train, &(sn_train_sequence){sn_span_first(span), sn_span_end(span), adapter, &in}, out, 0,
                          NULL, &err));
    for (int i = 0; i < n * width; i++) sum += (double)out[i] * (double)weights[i];
    sn_adapter_free(&adapter);
    free(out);
    return sum;
}

/* Window, biases, norms of q and k, fused matrices, norms after attention and feed-forward, two ropes, parallel
 * attention and feed-forward, no gates, ALiBi, experts: with LoRA for all matrices that support it. */
static const char *const TRAINABLE[] = {"llama",  "mistral",   "qwen2", "qwen3",     "phi3",    "olmo2",  "gemma3",
                                        "falcon", "falcon_7b", "bloom", "qwen3_moe", "mixtral", "gpt_oss"};
enum {
    N_TRAINABLE = sizeof TRAINABLE / sizeof *TRAINABLE,
    N_SMOOTH = N_TRAINABLE - 2
}; /* in the last ones the selection of experts changes near these values */

typedef struct train_case {
    sn_model *model;
    const sn_hparams *hp;
    char *path;
    float *x, *dout;
    parameters *parameters;
} train_case;

static train_case train_case_new(sn_dtype dtype, const char *golden) {
    train_case w = {0};
    char path[300];
    if (!golden)
        w.path = tiny_model_make(&(tiny_model_options){.dtype = dtype, .seed = 3});
    else
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, golden);
    REQUIRE(sn_model_open(golden ? path : w.path, &w.model, &err));
    w.hp = sn_model_hparams(w.model);
    w.x = random_rows((size_t)(TOKENS * w.hp->n_embd), 5, 1);
    w.dout = random_rows((size_t)(TOKENS * w.hp->n_embd), 6, 1);
    w.parameters = parameters_of(w.hp);
    return w;
}

static void train_case_free(train_case *w) {
    parameters_free(w->parameters);
    free(w->x);
    free(w->dout);
    sn_model_close(&w->model);
    if (w->path) tiny_model_remove(&w->path);
}

/* A forward or backward pass in pieces of at most `budget`. */
static void run_pieces(sn_train *train, size_t budget) {
    bool done = false;
    for (size_t spent; !done;) {
        REQUIRE(sn_train_run(train, budget, &spent, &done, &err));
        cr_assert(budget == 1 || spent <= budget, "a piece of %zu costs %zu", budget, spent);
    }
}

/* dx, and then the gradients of the parameters, through the model cut at `cut` (0: not cut). The caller frees the
 * array. */
static float *compute_gradients(const train_case *w, sn_device *device, const sn_plan *plan, int cut, size_t *n) {
    int width = w->hp->n_embd, ends[3] = {0, cut ? cut : w->hp->n_blocks, w->hp->n_blocks}, n_spans = cut ? 2 : 1;
    size_t floats = (size_t)(TOKENS * width), row_bytes = floats * sizeof(float);
    float *all = calloc(floats + w->parameters->n, sizeof *all), *x[3] = {w->x}, *dy = malloc(row_bytes);
    sn_span *spans[2] = {NULL};
    sn_train *trains[2] = {NULL};
    sn_adapter *adapters[2] = {NULL};
    sn_saved_activations *saved[2] = {NULL};
    for (int i = 0; i < n_spans; i++) {
        if (plan)
            REQUIRE(sn_span_load_plan(w->model, plan, &device, NULL, NULL, NULL, &spans[i], &err));
        else
            REQUIRE(sn_span_load(w->model, device, ends[i], ends[i + 1], NULL, NULL, &spans[i], &err));
        REQUIRE(sn_train_new(spans[i], 40, &trains[i], &err));
        adapters[i] = load_adapter(w->parameters, spans[i]);
        x[i + 1] = malloc(row_bytes);
        sn_tensor in = rows_tensor("hidden states", x[i], TOKENS, width);
        REQUIRE(train_forward(trains[i], &(sn_train_sequence){ends[i], ends[i + 1], adapters[i], &in}, x[i + 1],
                              SIZE_MAX, &saved[i], &err));
        cr_assert(saved[i] && sn_saved_activations_has_inner(saved[i]));
        REQUIRE(sn_train_start_forward(trains[i], &(sn_train_sequence){ends[i], ends[i + 1], adapters[i], &in}, dy, 0,
                                       NULL, &err));
        run_pieces(trains[i], 1);
        cr_expect(!memcmp(dy, x[i + 1], row_bytes), "saving activations or the size of pieces changes hidden states");
    }
    memcpy(dy, w->dout, row_bytes);
    float *grads = all + floats + w->parameters->n;
    for (int i = n_spans - 1; i >= 0; i--) {
        sn_tensor in = rows_tensor("hidden states", x[i], TOKENS, width),
                  out = rows_tensor("gradients", dy, TOKENS, width);
        grads -= sn_adapter_n_params(adapters[i], ends[i], ends[i + 1]);
        float *once = NULL;
        size_t bytes = (floats + w->parameters->n) * sizeof *all;
        /* neither earlier passes nor saved activations nor the size of pieces change the bits */
        const size_t budgets[] = {SIZE_MAX, 1, 1, 200 * SN_TRAIN_ROW_COST};
        for (int again = 0; again < 4; again++) {
            if (again == 3) sn_saved_activations_drop_inner(saved[i]);
            memset(all, 0, floats * sizeof *all);
            REQUIRE(sn_train_start_backward(trains[i], &(sn_train_sequence){ends[i], ends[i + 1], adapters[i], &in},
                                            again == 2 ? NULL : saved[i], &out, all, grads, &err));
            run_pieces(trains[i], budgets[again]);
            if (!again) once = memcpy(malloc(bytes), all, bytes);
            cr_expect(!memcmp(once, all, bytes), "the bits of variant %d differ", again);
        }
        free(once);
        sn_saved_activations_free(&saved[i]);
        memcpy(dy, all, row_bytes);
        sn_adapter_free(&adapters[i]);
        sn_train_free(&trains[i]);
        sn_span_free(&spans[i]);
        free(x[i + 1]);
    }
    cr_assert_eq(grads, all + floats);
    free(dy);
    *n = floats + w->parameters->n;
    return all;
}

Test(train, gradients_of_prompts_and_adapters_match_finite_differences) {
    for (size_t m = 0; m < N_SMOOTH; m++) {
        train_case w = train_case_new(SN_F32, TRAINABLE[m]);
        sn_device *device = open_cpu(1, NULL);
        sn_span *span = NULL;
        sn_train *train = NULL;
        size_t n;
        int width = w.hp->n_embd;
        float *got = compute_gradients(&w, device, NULL, 0, &n) + TOKENS * width;
        REQUIRE(sn_span_load(w.model, device, 0, w.hp->n_blocks, NULL, NULL, &span, &err));
        REQUIRE(sn_train_new(span, 40, &train, &err));
        double largest = 0;
        for (size_t i = 0; i < w.parameters->n; i++) largest = fmax(largest, fabs((double)got[i]));
        for (size_t i = 11; i < w.parameters->n; i += w.parameters->n / 97) {
            float at = w.parameters->values[i], step = 4e-3f;
            w.parameters->values[i] = at + step;
            double high = objective(span, train, w.parameters, w.x, w.dout, TOKENS, width);
            w.parameters->values[i] = at - step;
            double want =
                (high - objective(span, train, w.parameters, w.x, w.dout, TOKENS, width)) / (2 * (double)step);
            w.parameters->values[i] = at;
            cr_expect_float_eq((double)got[i], want, 4e-3 * largest, "%s: gradient %zu is %g, not %g (largest %g)",
                               TRAINABLE[m], i, (double)got[i], want, largest);
        }
        free(got - TOKENS * width);
        sn_train_free(&train);
        sn_span_free(&span);
        sn_device_close(&device);
        train_case_free(&w);
    }
}

/* Computes the gradients in n variants of cuts, threads and instruction sets; the fifth variant offloads blocks to
 * host memory. */
static void expect_same_gradients(const train_case *w, const char *what, int n_variants) {
    static const char *const isas[] = {"c", TEST_ISA_1, TEST_ISA_2};
    float *first = NULL;
    for (int i = 0; i < n_variants; i++) {
        sn_device *device = open_cpu(1 + i % 3, isas[i % 3]);
        size_t n;
        if (!device) continue;
        sn_plan plan = {.end = w->hp->n_blocks, .n_devices = 1, .devices = {device->id}};
        for (int b = 0; b < w->hp->n_blocks; b++) plan.placements[b].residence = b == 1 ? SN_ON_DEVICE : SN_IN_HOST;
        float *got = compute_gradients(w, device, i == 4 ? &plan : NULL, i == 4 ? 0 : i % 4, &n);
        sn_device_close(&device);
        if (first)
            cr_expect(!memcmp(first, got, n * sizeof *got), "%s, %s, %d threads, variant %d: bits differ", what,
                      isas[i % 3], 1 + i % 3, i);
        if (first)
            free(got);
        else
            first = got;
    }
    free(first);
}

Test(train, gradients_are_the_same_bits_everywhere) {
    static const sn_dtype dtypes[] = {SN_F32, SN_BF16, SN_Q4_1, SN_Q8_0, SN_Q4_K, SN_Q6_K};
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
        train_case w = train_case_new(dtypes[t], NULL);
        expect_same_gradients(&w, sn_dtype_name(dtypes[t]), 9);
        train_case_free(&w);
    }
    for (size_t m = 0; m < N_TRAINABLE; m++) {
        train_case w = train_case_new(SN_F32, TRAINABLE[m]);
        expect_same_gradients(&w, TRAINABLE[m], 5);
        train_case_free(&w);
    }
}

Test(train, saved_activations_replace_a_second_forward) {
    train_case w = train_case_new(SN_Q4_1, NULL);
    sn_device *device = open_cpu(2, NULL);
    sn_span *span = NULL;
    sn_train *train = NULL;
    int width = w.hp->n_embd;
    size_t floats = (size_t)(TOKENS * width);
    float *other = random_rows(floats, 9, 1), *out = malloc(floats * sizeof *out), *dx[2];
    REQUIRE(sn_span_load(w.model, device, 1, 3, NULL, NULL, &span, &err));
    REQUIRE(sn_train_new(span, TOKENS, &train, &err));
    sn_tensor in[] = {rows_tensor("hidden states", w.x, TOKENS, width),
                      rows_tensor("hidden states", other, TOKENS, width)};
    sn_tensor dout = rows_tensor("gradients", w.dout, TOKENS, width);
    sn_saved_activations *saved = NULL;
    REQUIRE(train_forward(train, &(sn_train_sequence){1, 3, NULL, &in[1]}, out, SIZE_MAX, &saved, &err));
    cr_assert(saved);
    for (int i = 0; i < 2; i++) { /* the gradients of the second one are computed */
        dx[i] = malloc(floats * sizeof *out);
        REQUIRE(train_backward(train, &(sn_train_sequence){1, 3, NULL, &in[i]}, i ? NULL : saved, &dout, dx[i], NULL,
                               &err));
    }
    cr_expect(!memcmp(dx[0], dx[1], floats * sizeof *out));
    sn_saved_activations_free(&saved);
    sn_train_free(&train);
    sn_span_free(&span);
    sn_device_close(&device);
    for (int i = 0; i < 2; i++) free(dx[i]);
    free(other);
    free(out);
    train_case_free(&w);
}

Test(train, saved_activations_stay_within_their_budget) {
    train_case w = train_case_new(SN_F32, NULL);
    sn_device *device = open_cpu(1, NULL);
    sn_span *span = NULL;
    sn_train *train = NULL;
    int width = w.hp->n_embd;
    float *out = malloc((size_t)(TOKENS * width) * sizeof *out);
    REQUIRE(sn_span_load(w.model, device, 0, 3, NULL, NULL, &span, &err));
    REQUIRE(sn_train_new(span, TOKENS, &train, &err));
    sn_tensor in = rows_tensor("hidden states", w.x, TOKENS, width);
    size_t rows_alone = sn_saved_activations_estimate(span, 0, 3, TOKENS, false),
           all = sn_saved_activations_estimate(span, 0, 3, TOKENS, true);
    cr_assert_gt(all, rows_alone);
    const size_t capacity[] = {rows_alone - 1, rows_alone, all - 1, all};
    for (int i = 0; i < 4; i++) {
        sn_saved_activations *saved = NULL;
        REQUIRE(train_forward(train, &(sn_train_sequence){0, 3, NULL, &in}, out, capacity[i], &saved, &err));
        cr_assert_eq(saved != NULL, i > 0);
        if (!saved) continue;
        cr_expect_eq(sn_saved_activations_has_inner(saved), i == 3);
        cr_expect_eq(sn_saved_activations_bytes(saved), i == 3 ? all : rows_alone);
        sn_saved_activations_drop_inner(saved);
        cr_expect_eq(sn_saved_activations_bytes(saved), rows_alone);
        sn_saved_activations_free(&saved);
    }
    sn_train_free(&train);
    sn_span_free(&span);
    sn_device_close(&device);
    free(out);
    train_case_free(&w);
}

static void expect_inference_is_training(train_case w) {
    sn_device *device = open_cpu(2, NULL);
    sn_span *span = NULL;
    sn_train *train = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv_cache *kv = NULL;
    int width = w.hp->n_embd;
    size_t bytes = (size_t)(TOKENS * width) * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes), *plain = malloc(bytes);
    REQUIRE(sn_span_load(w.model, device, 0, w.hp->n_blocks, NULL, NULL, &span, &err));
    REQUIRE(sn_train_new(span, TOKENS, &train, &err));
    sn_adapter *adapter = load_adapter(w.parameters, span);
    sn_tensor in = rows_tensor("hidden states", w.x, TOKENS, width);
    REQUIRE(train_forward(train, &(sn_train_sequence){0, w.hp->n_blocks, adapter, &in}, want, 0, NULL, &err));
    REQUIRE(train_forward(train, &(sn_train_sequence){0, w.hp->n_blocks, NULL, &in}, plain, 0, NULL, &err));
    REQUIRE(sn_span_kv_pool(span, 8 << 20, &pool, &err));
    REQUIRE(sn_kv_cache_new(pool, &kv, &err));
    for (int at = 0, n; at < TOKENS; at += n) { /* in steps that cut the prompt */
        n = at == 0 ? 3 : TOKENS - at < 7 ? TOKENS - at : 7;
        REQUIRE(sn_kv_cache_reserve(kv, n, &err));
        sn_span_sequence part = {kv, &in, at, n, got + at * width};
        REQUIRE(sn_span_forward_adapter(span, 0, w.hp->n_blocks, adapter, 1, &part, NULL, &err));
    }
    cr_expect(!memcmp(want, got, bytes), "inference with the adapter differs from training's forward pass");
    cr_expect(memcmp(want, plain, bytes), "the adapter changes nothing");
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    sn_adapter_free(&adapter);
    sn_train_free(&train);
    sn_span_free(&span);
    sn_device_close(&device);
    free(want);
    free(got);
    free(plain);
    train_case_free(&w);
}

Test(train, inference_with_an_adapter_equals_training) {
    static const char *const models[] = {NULL, "phi3", "olmo2", "gemma3", "falcon", "bloom", "mixtral"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        expect_inference_is_training(train_case_new(models[m] ? SN_F32 : SN_Q4_1, models[m]));
}

Test(train, names_tensors_that_do_not_fit_the_model) {
    train_case w = train_case_new(SN_F32, NULL);
    sn_device *device = open_cpu(1, NULL);
    sn_span *span = NULL;
    static const float zeros[4096];
    size_t embd = (size_t)w.hp->n_embd;
    const sn_safetensors_entry wrong[] = {
        {"prompt.0", SN_F32, 2, {2, embd + 1}, zeros},      {"prompt.0", SN_F32, 2, {0, embd}, zeros},
        {"prompt.0", SN_I32, 2, {1, embd}, zeros},          {"prompt.0", SN_F32, 1, {embd}, zeros},
        {"prompt.99", SN_F32, 2, {1, embd}, zeros},         {"prompt.-1", SN_F32, 2, {1, embd}, zeros},
        {"lora_a.1.q", SN_F32, 2, {2, embd}, zeros}, /* without its B */
        {"lora_b.1.q", SN_F32, 2, {embd, 2}, zeros},        {"lora_a.1.norm", SN_F32, 2, {2, embd}, zeros},
        {"lora_a.1.q.weight", SN_F32, 2, {2, embd}, zeros}, {"lora_c.1.q", SN_F32, 2, {2, embd}, zeros},
        {"prompt.01", SN_F32, 2, {1, embd}, zeros}, /* the names of others, written otherwise */
        {"prompt.+1", SN_F32, 2, {1, embd}, zeros},         {"lora_a.01.q", SN_F32, 2, {2, embd}, zeros},
        {"something", SN_F32, 2, {2, embd}, zeros}};
    REQUIRE(sn_span_load(w.model, device, 0, 2, NULL, NULL, &span, &err));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sn_adapter *adapter = NULL;
        sn_buf image;
        sn_buf_init(&image, 1 << 20);
        REQUIRE(sn_safetensors_serialize(&wrong[i], 1, &image, &err));
        sn_err err;
        cr_expect_eq(sn_adapter_load(span, image.data, image.len, &adapter, &err), SN_REFUSED, "%zu: %s was taken", i,
                     wrong[i].name);
        cr_expect(strstr(err.text, wrong[i].name), "%zu: %s", i, err.text);
        cr_expect_null(adapter);
        sn_buf_fini(&image);
    }
    sn_span_free(&span);
    sn_device_close(&device);
    train_case_free(&w);
}
