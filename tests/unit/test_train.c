/* Training through frozen blocks: the reference's loss and gradients (tests/fixtures/golden), finite differences of
 * what is trained, and the promise: a sequence's gradients are the same bits whatever the cut, the threads, the
 * instruction set, where blocks rest, and what was trained before it. */
#include "blocks/train.h"
#include "client/head.h"
#include "model/safetensors.h"
#include "tests/support/families.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static sn_device *cpu(int threads, const char *isa) {
    sn_device *device = NULL;
    sn_err err;
    if (sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = threads, .isa = isa}, &device,
                       &err))
        return NULL; /* an instruction set that this machine has not */
    return device;
}

static sn_tensor rows(const char *name, const float *data, int n, int width) {
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

/* grad_input over one span, or over two cut at `cut`. */
static void through_spans(const sn_model *model, sn_device *device, sn_head *head, const sn_safetensors *golden,
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
        NEED(sn_span_load(model, device, ends[i], ends[i + 1], NULL, NULL, &spans[i], &err));
        NEED(sn_train_new(spans[i], 100, &trains[i], &err));
        sn_tensor in = rows("hidden states", x[i], n, width);
        x[i + 1] = malloc(bytes);
        NEED(sn_train_forward(trains[i], ends[i], ends[i + 1], NULL, &in, x[i + 1], 0, NULL, &err));
    }
    float *logits = malloc((size_t)n * (size_t)hp->n_vocab * sizeof(float)),
          *dlogits = malloc((size_t)n * (size_t)hp->n_vocab * sizeof(float));
    NEED(sn_head_logits(head, x[n_spans], n, logits, &err));
    *loss = loss_of(logits, ids, n, hp->n_vocab, dlogits);
    float *dy = malloc(bytes);
    NEED(sn_head_logits_grad(head, x[n_spans], n, dlogits, dy, &err));
    for (int i = n_spans - 1; i >= 0; i--) {
        sn_tensor in = rows("hidden states", x[i], n, width), out = rows("gradients", dy, n, width);
        NEED(sn_train_backward(trains[i], ends[i], ends[i + 1], NULL, &in, NULL, &out, dx, NULL, &err));
        memcpy(dy, dx, bytes);
        sn_train_free(&trains[i]);
        sn_span_free(&spans[i]);
    }
    for (int i = 0; i <= n_spans; i++) free(x[i]);
    free(logits);
    free(dlogits);
    free(dy);
}

Test(train, every_familys_gradients_are_the_references_over_one_span_and_over_cuts) {
    for (int f = 0; f < N_FAMILIES; f++) {
        char path[300];
        sn_model *model = NULL;
        sn_safetensors *golden = NULL;
        sn_head *head = NULL;
        sn_device *device = cpu(1, NULL);
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, FAMILIES[f]);
        NEED(sn_model_open(path, &model, &err));
        NEED(sn_head_load(model, device, &head, &err));
        snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", SN_FIXTURES, FAMILIES[f]);
        NEED(sn_safetensors_open(path, &golden, &err));
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
            cr_expect_lt(furthest, 1e-4 * largest, "%s cut at %d: grad_input is %g of its largest %g away", FAMILIES[f],
                         cut, furthest / largest, largest);
            cr_expect_float_eq(loss, (double)*want_loss, 1e-4 * (double)*want_loss, "%s: loss %g, not %g", FAMILIES[f],
                               loss, (double)*want_loss);
            cr_expect(!memcmp(first, dx, n * sizeof *dx), "%s cut at %d gives other bits than one span", FAMILIES[f],
                      cut);
        }
        free(first);
        free(dx);
        free(want);
        free(want_loss);
        sn_head_free(&head);
        sn_safetensors_close(&golden);
        sn_model_close(&model);
        sn_device_close(&device);
    }
}

/* -- what is trained */

enum { TOKENS = 21, PROMPT = 5, RANK = 3 };

/* Small random numbers, the same for the same seed. */
static float *noise(size_t n, uint32_t seed, float scale) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) / 8388608.0f - 1) * scale;
    }
    return x;
}

/* Deep prompts and adapters of every matrix, for every block of a model, in one array in the order of gradients; and
 * the image that holds them. */
typedef struct trained {
    float *values;
    size_t n;
    sn_safetensors_entry entries[256];
    char names[256][32];
    int n_entries;
} trained;

static void add_entry(trained *t, size_t rows, size_t cols, const char *format, int block, const char *target) {
    snprintf(t->names[t->n_entries], 32, format, block, target);
    t->entries[t->n_entries] = (sn_safetensors_entry){t->names[t->n_entries], SN_F32, 2, {rows, cols}, NULL};
    t->n_entries++;
    t->n += rows * cols;
}

static trained *trained_of(const sn_hparams *hp) {
    trained *t = calloc(1, sizeof *t);
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
        for (int i = 0; i < (hp->n_experts ? 4 : 7); i++) { /* of a mixture only attention */
            if (!hp->gated && !strcmp(targets[i].name, "gate")) continue;
            add_entry(t, RANK, targets[i].cols, "lora_a.%d.%s", b, targets[i].name);
            add_entry(t, targets[i].rows, RANK, "lora_b.%d.%s", b, targets[i].name);
        }
    }
    t->values = noise(t->n, 77, 0.3f);
    return t;
}

static sn_tuning *load(trained *t, sn_span *span) {
    sn_tuning *tuning = NULL;
    sn_buf image;
    const float *at = t->values;
    for (int i = 0; i < t->n_entries; at += t->entries[i].dims[0] * t->entries[i].dims[1], i++) t->entries[i].data = at;
    sn_buf_init(&image, 64 << 20);
    NEED(sn_safetensors_image(t->entries, (size_t)t->n_entries, &image, &err));
    NEED(sn_tuning_load(span, image.data, image.len, &tuning, &err));
    sn_buf_fini(&image);
    return tuning;
}

static void trained_free(trained *t) {
    free(t->values);
    free(t);
}

/* sum(weights * f(x)) after all blocks with this tuning. */
static double objective(sn_span *span, sn_train *train, trained *t, const float *x, const float *weights, int n,
                        int width) {
    sn_tuning *tuning = load(t, span);
    sn_tensor in = rows("hidden states", x, n, width);
    float *out = malloc((size_t)n * (size_t)width * sizeof *out);
    double sum = 0;
    NEED(sn_train_forward(train, sn_span_first(span), sn_span_end(span), tuning, &in, out, 0, NULL, &err));
    for (int i = 0; i < n * width; i++) sum += (double)out[i] * (double)weights[i];
    sn_tuning_free(&tuning);
    free(out);
    return sum;
}

/* Window, biases, norms of q and k, joined matrices, norms behind the halves, two ropes, halves side by side, no gates, ALiBi, experts: with adapters of all matrices
 * that may have such. */
static const char *const TUNED[] = {"llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gemma3", "falcon", "falcon_7b", "bloom", "qwen3_moe", "mixtral", "gpt_oss"};
enum { N_TUNED = sizeof TUNED / sizeof *TUNED, N_SMOOTH = N_TUNED - 2 }; /* of the last ones choices of experts jump near these values */

typedef struct work {
    sn_model *model;
    const sn_hparams *hp;
    char *path;
    float *x, *dout;
    trained *trained;
} work;

static work work_new(sn_dtype dtype, const char *golden) {
    work w = {0};
    char path[300];
    if (!golden)
        w.path = tiny_make(&(tiny_options){.dtype = dtype, .seed = 3});
    else
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, golden);
    NEED(sn_model_open(golden ? path : w.path, &w.model, &err));
    w.hp = sn_model_hparams(w.model);
    w.x = noise((size_t)(TOKENS * w.hp->n_embd), 5, 1);
    w.dout = noise((size_t)(TOKENS * w.hp->n_embd), 6, 1);
    w.trained = trained_of(w.hp);
    return w;
}

static void work_free(work *w) {
    trained_free(w->trained);
    free(w->x);
    free(w->dout);
    sn_model_close(&w->model);
    if (w->path) tiny_remove(&w->path);
}

/* dx, then the gradients of what is trained, over the model cut at `cut` (0: not cut). The caller frees. */
static float *gradients(const work *w, sn_device *device, const sn_plan *plan, int cut, size_t *n) {
    int width = w->hp->n_embd, ends[3] = {0, cut ? cut : w->hp->n_blocks, w->hp->n_blocks}, n_spans = cut ? 2 : 1;
    size_t floats = (size_t)(TOKENS * width), row_bytes = floats * sizeof(float);
    float *all = calloc(floats + w->trained->n, sizeof *all), *x[3] = {w->x}, *dy = malloc(row_bytes);
    sn_span *spans[2] = {NULL};
    sn_train *trains[2] = {NULL};
    sn_tuning *tunings[2] = {NULL};
    sn_kept *kept[2] = {NULL};
    for (int i = 0; i < n_spans; i++) {
        if (plan)
            NEED(sn_span_load_plan(w->model, plan, &device, NULL, NULL, NULL, &spans[i], &err));
        else
            NEED(sn_span_load(w->model, device, ends[i], ends[i + 1], NULL, NULL, &spans[i], &err));
        NEED(sn_train_new(spans[i], 40, &trains[i], &err));
        tunings[i] = load(w->trained, spans[i]);
        x[i + 1] = malloc(row_bytes);
        sn_tensor in = rows("hidden states", x[i], TOKENS, width);
        NEED(sn_train_forward(trains[i], ends[i], ends[i + 1], tunings[i], &in, x[i + 1], SIZE_MAX, &kept[i], &err));
        cr_assert(kept[i] && sn_kept_insides(kept[i]));
        NEED(sn_train_forward(trains[i], ends[i], ends[i + 1], tunings[i], &in, dy, 0, NULL, &err));
        cr_expect(!memcmp(dy, x[i + 1], row_bytes), "keeping insides gives other hidden states");
    }
    memcpy(dy, w->dout, row_bytes);
    float *grads = all + floats + w->trained->n;
    for (int i = n_spans - 1; i >= 0; i--) {
        sn_tensor in = rows("hidden states", x[i], TOKENS, width), out = rows("gradients", dy, TOKENS, width);
        grads -= sn_tuning_floats(tunings[i], ends[i], ends[i + 1]);
        float *once = NULL;
        size_t bytes = (floats + w->trained->n) * sizeof *all;
        for (int again = 0; again < 4; again++) { /* neither shows what was done before, nor what was kept of the way there */
            if (again == 3) sn_kept_forget_insides(kept[i]);
            NEED(sn_train_backward(trains[i], ends[i], ends[i + 1], tunings[i], &in, again == 2 ? NULL : kept[i], &out, all, grads,
                                   &err));
            if (!again) once = memcpy(malloc(bytes), all, bytes);
            cr_expect(!memcmp(once, all, bytes), "what was kept gives other bits, way %d", again);
        }
        free(once);
        sn_kept_free(&kept[i]);
        memcpy(dy, all, row_bytes);
        sn_tuning_free(&tunings[i]);
        sn_train_free(&trains[i]);
        sn_span_free(&spans[i]);
        free(x[i + 1]);
    }
    cr_assert_eq(grads, all + floats);
    free(dy);
    *n = floats + w->trained->n;
    return all;
}

Test(train, gradients_of_prompts_and_adapters_are_the_finite_differences) {
    for (size_t m = 0; m < N_SMOOTH; m++) {
        work w = work_new(SN_F32, TUNED[m]);
        sn_device *device = cpu(1, NULL);
        sn_span *span = NULL;
        sn_train *train = NULL;
        size_t n;
        int width = w.hp->n_embd;
        float *got = gradients(&w, device, NULL, 0, &n) + TOKENS * width;
        NEED(sn_span_load(w.model, device, 0, w.hp->n_blocks, NULL, NULL, &span, &err));
        NEED(sn_train_new(span, 40, &train, &err));
        double largest = 0;
        for (size_t i = 0; i < w.trained->n; i++) largest = fmax(largest, fabs((double)got[i]));
        for (size_t i = 11; i < w.trained->n; i += w.trained->n / 97) {
            float at = w.trained->values[i], step = 4e-3f;
            w.trained->values[i] = at + step;
            double high = objective(span, train, w.trained, w.x, w.dout, TOKENS, width);
            w.trained->values[i] = at - step;
            double want = (high - objective(span, train, w.trained, w.x, w.dout, TOKENS, width)) / (2 * (double)step);
            w.trained->values[i] = at;
            cr_expect_float_eq((double)got[i], want, 4e-3 * largest, "%s: gradient %zu is %g, not %g (largest %g)",
                               TUNED[m], i, (double)got[i], want, largest);
        }
        free(got - TOKENS * width);
        sn_train_free(&train);
        sn_span_free(&span);
        sn_device_close(&device);
        work_free(&w);
    }
}

/* In n ways: over cuts, threads and instruction sets; the fifth has blocks rest in the host's memory. */
static void expect_same_gradients(const work *w, const char *what, int n_ways) {
    static const char *const isas[] = {"c", "avx2", "avx512"};
    float *first = NULL;
    for (int i = 0; i < n_ways; i++) {
        sn_device *device = cpu(1 + i % 3, isas[i % 3]);
        size_t n;
        if (!device) continue;
        sn_plan plan = {.end = w->hp->n_blocks, .n_devices = 1, .devices = {device->id}};
        for (int b = 0; b < w->hp->n_blocks; b++) plan.places[b].residence = b == 1 ? SN_ON_DEVICE : SN_IN_HOST;
        float *got = gradients(w, device, i == 4 ? &plan : NULL, i == 4 ? 0 : i % 4, &n);
        sn_device_close(&device);
        if (first)
            cr_expect(!memcmp(first, got, n * sizeof *got), "%s, %s, %d threads, way %d: other bits",
                      what, isas[i % 3], 1 + i % 3, i);
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
        work w = work_new(dtypes[t], NULL);
        expect_same_gradients(&w, sn_dtype_name(dtypes[t]), 9);
        work_free(&w);
    }
    for (size_t m = 0; m < N_TUNED; m++) {
        work w = work_new(SN_F32, TUNED[m]);
        expect_same_gradients(&w, TUNED[m], 5);
        work_free(&w);
    }
}

Test(train, what_was_kept_is_taken_instead_of_going_forwards_again) {
    work w = work_new(SN_Q4_1, NULL);
    sn_device *device = cpu(2, NULL);
    sn_span *span = NULL;
    sn_train *train = NULL;
    int width = w.hp->n_embd;
    size_t floats = (size_t)(TOKENS * width);
    float *other = noise(floats, 9, 1), *out = malloc(floats * sizeof *out), *dx[2];
    NEED(sn_span_load(w.model, device, 1, 3, NULL, NULL, &span, &err));
    NEED(sn_train_new(span, TOKENS, &train, &err));
    sn_tensor in[] = {rows("hidden states", w.x, TOKENS, width), rows("hidden states", other, TOKENS, width)};
    sn_tensor dout = rows("gradients", w.dout, TOKENS, width);
    sn_kept *kept = NULL;
    NEED(sn_train_forward(train, 1, 3, NULL, &in[1], out, SIZE_MAX, &kept, &err));
    cr_assert(kept);
    for (int i = 0; i < 2; i++) { /* the first is not what goes back */
        dx[i] = malloc(floats * sizeof *out);
        NEED(sn_train_backward(train, 1, 3, NULL, &in[i], i ? NULL : kept, &dout, dx[i], NULL, &err));
    }
    cr_expect(!memcmp(dx[0], dx[1], floats * sizeof *out));
    sn_kept_free(&kept);
    sn_train_free(&train);
    sn_span_free(&span);
    sn_device_close(&device);
    for (int i = 0; i < 2; i++) free(dx[i]);
    free(other);
    free(out);
    work_free(&w);
}

Test(train, as_much_is_kept_as_goes_into_the_bytes_for_it) {
    work w = work_new(SN_F32, NULL);
    sn_device *device = cpu(1, NULL);
    sn_span *span = NULL;
    sn_train *train = NULL;
    int width = w.hp->n_embd;
    float *out = malloc((size_t)(TOKENS * width) * sizeof *out);
    NEED(sn_span_load(w.model, device, 0, 3, NULL, NULL, &span, &err));
    NEED(sn_train_new(span, TOKENS, &train, &err));
    sn_tensor in = rows("hidden states", w.x, TOKENS, width);
    size_t rows_alone = sn_kept_bytes(span, 0, 3, TOKENS, false), all = sn_kept_bytes(span, 0, 3, TOKENS, true);
    cr_assert_gt(all, rows_alone);
    const size_t room[] = {rows_alone - 1, rows_alone, all - 1, all};
    for (int i = 0; i < 4; i++) {
        sn_kept *kept = NULL;
        NEED(sn_train_forward(train, 0, 3, NULL, &in, out, room[i], &kept, &err));
        cr_assert_eq(kept != NULL, i > 0);
        if (!kept) continue;
        cr_expect_eq(sn_kept_insides(kept), i == 3);
        cr_expect_eq(sn_kept_taken(kept), i == 3 ? all : rows_alone);
        sn_kept_forget_insides(kept);
        cr_expect_eq(sn_kept_taken(kept), rows_alone);
        sn_kept_free(&kept);
    }
    sn_train_free(&train);
    sn_span_free(&span);
    sn_device_close(&device);
    free(out);
    work_free(&w);
}

static void expect_a_tuned_pass_is_trainings(work w) {
    sn_device *device = cpu(2, NULL);
    sn_span *span = NULL;
    sn_train *train = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv *kv = NULL;
    int width = w.hp->n_embd;
    size_t bytes = (size_t)(TOKENS * width) * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes), *plain = malloc(bytes);
    NEED(sn_span_load(w.model, device, 0, w.hp->n_blocks, NULL, NULL, &span, &err));
    NEED(sn_train_new(span, TOKENS, &train, &err));
    sn_tuning *tuning = load(w.trained, span);
    sn_tensor in = rows("hidden states", w.x, TOKENS, width);
    NEED(sn_train_forward(train, 0, w.hp->n_blocks, tuning, &in, want, 0, NULL, &err));
    NEED(sn_train_forward(train, 0, w.hp->n_blocks, NULL, &in, plain, 0, NULL, &err));
    NEED(sn_span_kv_pool(span, 8 << 20, &pool, &err));
    NEED(sn_kv_new(pool, &kv, &err));
    for (int at = 0, n; at < TOKENS; at += n) { /* in steps that cut the prompt */
        n = at == 0 ? 3 : TOKENS - at < 7 ? TOKENS - at : 7;
        NEED(sn_kv_reserve(kv, n, &err));
        sn_span_part part = {kv, &in, at, n, got + at * width};
        NEED(sn_span_forward_tuned(span, 0, w.hp->n_blocks, tuning, 1, &part, NULL, &err));
    }
    cr_expect(!memcmp(want, got, bytes), "inference with a tuning differs from training's forward pass");
    cr_expect(memcmp(want, plain, bytes), "the tuning changes nothing");
    sn_kv_free(&kv);
    sn_kv_pool_free(&pool);
    sn_tuning_free(&tuning);
    sn_train_free(&train);
    sn_span_free(&span);
    sn_device_close(&device);
    free(want);
    free(got);
    free(plain);
    work_free(&w);
}

Test(train, a_pass_with_a_tuning_is_what_training_computes) {
    static const char *const models[] = {NULL, "phi3", "olmo2", "gemma3", "falcon", "bloom", "mixtral"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        expect_a_tuned_pass_is_trainings(work_new(models[m] ? SN_F32 : SN_Q4_1, models[m]));
}

Test(train, what_does_not_fit_the_model_is_refused_with_its_name) {
    work w = work_new(SN_F32, NULL);
    sn_device *device = cpu(1, NULL);
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
                                          {"prompt.+1", SN_F32, 2, {1, embd}, zeros},
                                          {"lora_a.01.q", SN_F32, 2, {2, embd}, zeros},
                                          {"something", SN_F32, 2, {2, embd}, zeros}};
    NEED(sn_span_load(w.model, device, 0, 2, NULL, NULL, &span, &err));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sn_tuning *tuning = NULL;
        sn_buf image;
        sn_buf_init(&image, 1 << 20);
        NEED(sn_safetensors_image(&wrong[i], 1, &image, &err));
        sn_err err;
        cr_expect_eq(sn_tuning_load(span, image.data, image.len, &tuning, &err), SN_REFUSED, "%zu: %s was taken", i,
                     wrong[i].name);
        cr_expect(strstr(err.text, wrong[i].name), "%zu: %s", i, err.text);
        cr_expect_null(tuning);
        sn_buf_fini(&image);
    }
    sn_span_free(&span);
    sn_device_close(&device);
    work_free(&w);
}
