/* The generator over a chain of local blocks of the tiny golden models. test_generate_text.c tests it with a real
 * tokenizer. */
#include "client/generate/generator.h"
#include "model/safetensors.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { CONTEXT = 64, PROMPT_MAX = 64 };

static sn_model *model;
static sn_device *device;
static sn_lm_head *head;
static sn_chain *chain;
static sn_generator *generator;
static sn_generation out;
static sn_err run_err;
static int32_t prompt[PROMPT_MAX], greedy[PROMPT_MAX]; /* of the reference */
static size_t n_prompt, n_greedy;

static size_t read_ids(const sn_safetensors *file, const char *name, int32_t *ids) {
    const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
    cr_assert(t && t->dtype == SN_I64 && t->elements <= PROMPT_MAX);
    for (size_t i = 0; i < t->elements; i++) {
        int64_t id;
        memcpy(&id, t->data + i * sizeof id, sizeof id);
        ids[i] = (int32_t)id;
    }
    return t->elements;
}

static void open_chain(int context, sn_sampling sampling) {
    sn_chain_options options = {
        .max_tokens = context,
        .local = {.device = device, .end = sn_model_hparams(model)->n_blocks, .kv_memory = 4 << 20}};
    REQUIRE(sn_chain_open(model, &options, &chain, &err));
    sn_generator_parts parts = {sn_model_hparams(model), head, chain, NULL, context, NULL};
    REQUIRE(sn_generator_new(&parts, &sampling, &generator, &err));
}

static void close_chain(void) {
    sn_generation_fini(&out);
    sn_generator_free(&generator);
    sn_chain_close(&chain);
}

static void set_up(void) {
    sn_safetensors *golden;
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_safetensors_open(SN_FIXTURES "/golden/llama/golden.safetensors", &golden, &err));
    n_prompt = read_ids(golden, "input_ids", prompt);
    n_greedy = read_ids(golden, "greedy", greedy);
    sn_safetensors_close(&golden);
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/llama", &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err));
    REQUIRE(sn_lm_head_load(model, device, &head, &err));
    open_chain(CONTEXT, SN_SAMPLING_DEFAULT);
}

static void tear_down(void) {
    close_chain();
    sn_lm_head_free(&head);
    sn_device_close(&device);
    sn_model_close(&model);
}

TestSuite(generate, .init = set_up, .fini = tear_down);

static sn_status run_generator(const int32_t *ids, size_t n, sn_generate_options options) {
    sn_generation_fini(&out);
    return sn_generator_run(generator, ids, n, &options, &out, &run_err);
}

#define RUN(ids, n, ...)                                                                                               \
    cr_assert_eq(run_generator(ids, n, (sn_generate_options){__VA_ARGS__}), SN_OK, "%s", run_err.text)

Test(generate, gives_the_references_greedy_tokens) {
    RUN(prompt, n_prompt, .max_tokens = (int)n_greedy);
    cr_assert_eq(out.ids.n, n_greedy);
    cr_assert_arr_eq(out.ids.ids, greedy, n_greedy * sizeof *greedy);
    cr_assert_eq(out.finish, SN_FINISH_LENGTH);
    cr_assert_eq(out.text.len, 0);
    cr_assert_eq(out.timings.prompt_tokens, n_prompt);
    cr_assert_eq(out.timings.decode_steps, n_greedy - 1);
    cr_assert_gt(out.timings.first_token_us, 0);
}

typedef struct prefill_log {
    size_t calls, last, total;
    bool right;
} prefill_log;
static void log_prefill(void *ctx, size_t done, size_t total) {
    prefill_log *log = ctx;
    log->right = (log->calls ? done >= log->last && total == log->total : !done) && done <= total;
    log->calls += log->right;
    log->last = done;
    log->total = total;
}

Test(generate, tells_how_much_of_the_prompt_is_computed) {
    prefill_log log = {0};
    RUN(prompt, n_prompt, .max_tokens = 4, .on_prefill = log_prefill, .ctx = &log);
    cr_expect(log.right && log.calls >= 2 && log.last == n_prompt && log.total == n_prompt, "%zu calls, %zu of %zu",
              log.calls, log.last, log.total);
    log = (prefill_log){0};
    RUN(prompt, n_prompt, .max_tokens = 4, .on_prefill = log_prefill, .ctx = &log);
    cr_expect(log.right && log.last == 1 && log.total == 1, "of a known prompt only the last token is computed");
}

Test(generate, computes_only_new_tokens_of_a_continued_prompt) {
    int32_t longer[PROMPT_MAX];
    RUN(prompt, n_prompt, .max_tokens = 4);
    cr_assert_eq(sn_generator_length(generator), n_prompt + 3); /* the last token was not fed back */
    memcpy(longer, prompt, n_prompt * sizeof *prompt);
    memcpy(longer + n_prompt, greedy, 8 * sizeof *greedy);
    RUN(longer, n_prompt + 8, .max_tokens = (int)n_greedy - 8);
    cr_assert_eq(out.timings.reused_tokens, n_prompt + 3);
    cr_assert_arr_eq(out.ids.ids, greedy + 8, (n_greedy - 8) * sizeof *greedy);
}

Test(generate, rewinds_to_the_first_token_that_differs) {
    int32_t other[PROMPT_MAX];
    memcpy(other, prompt, n_prompt * sizeof *prompt);
    other[10] = other[10] == 5 ? 6 : 5;
    RUN(other, n_prompt, .max_tokens = 6);
    RUN(prompt, n_prompt, .max_tokens = (int)n_greedy);
    cr_assert_eq(out.timings.reused_tokens, 10);
    cr_assert_arr_eq(out.ids.ids, greedy, n_greedy * sizeof *greedy);
}

Test(generate, recomputes_only_the_last_token_of_a_known_prompt) {
    RUN(prompt, n_prompt, .max_tokens = 3);
    RUN(prompt, n_prompt, .max_tokens = (int)n_greedy);
    cr_assert_eq(out.timings.reused_tokens, n_prompt - 1);
    cr_assert_arr_eq(out.ids.ids, greedy, n_greedy * sizeof *greedy);
}

Test(generate, ends_when_the_context_is_full) {
    close_chain();
    open_chain((int)n_prompt + 5, SN_SAMPLING_DEFAULT);
    RUN(prompt, n_prompt, .max_tokens = 0);
    cr_assert_eq(out.finish, SN_FINISH_LENGTH);
    cr_assert_eq(out.ids.n, 6); /* five fit after the prompt, and the sixth need not be computed */
    cr_assert_arr_eq(out.ids.ids, greedy, 6 * sizeof *greedy);
}

Test(generate, ends_when_it_is_interrupted) {
    sn_cancel interrupt = {.set = 1};
    RUN(prompt, n_prompt, .max_tokens = 9, .cancel = &interrupt);
    cr_assert_eq(out.finish, SN_FINISH_INTERRUPTED);
    cr_assert_eq(out.ids.n, 0);
    interrupt.set = 0;
    RUN(prompt, n_prompt, .max_tokens = (int)n_greedy, .cancel = &interrupt);
    cr_assert_arr_eq(out.ids.ids, greedy, n_greedy * sizeof *greedy);
}

Test(generate, samples_the_same_tokens_from_the_same_seed_only) {
    int32_t first[12];
    for (int i = 0; i < 3; i++) {
        close_chain();
        open_chain(CONTEXT, (sn_sampling){.temperature = 2, .top_p = 1, .repeat_penalty = 1, .seed = i < 2 ? 11 : 12});
        RUN(prompt, n_prompt, .max_tokens = 12);
        if (!i)
            memcpy(first, out.ids.ids, sizeof first);
        else if (i == 1)
            cr_assert_arr_eq(out.ids.ids, first, sizeof first);
        else
            cr_assert_arr_neq(out.ids.ids, first, sizeof first);
    }
}

Test(generate, refuses_an_empty_a_long_and_a_foreign_prompt) {
    int32_t foreign[] = {5, 100000}, negative[] = {-1}, lengthy[CONTEXT + 1] = {0};
    cr_assert_eq(run_generator(prompt, 0, (sn_generate_options){.max_tokens = 1}), SN_REFUSED);
    cr_assert(strstr(run_err.text, "the prompt is empty"), "%s", run_err.text);
    cr_assert_eq(run_generator(lengthy, CONTEXT + 1, (sn_generate_options){.max_tokens = 1}), SN_REFUSED);
    cr_assert(strstr(run_err.text, "the prompt has 65 tokens"), "%s", run_err.text);
    cr_assert_eq(run_generator(foreign, 2, (sn_generate_options){.max_tokens = 1}), SN_REFUSED);
    cr_assert(strstr(run_err.text, "token 100000 at index 1"), "%s", run_err.text);
    cr_assert_eq(run_generator(negative, 1, (sn_generate_options){.max_tokens = 1}), SN_REFUSED);
    RUN(prompt, n_prompt, .max_tokens = (int)n_greedy); /* the refusals changed nothing */
    cr_assert_arr_eq(out.ids.ids, greedy, n_greedy * sizeof *greedy);
}

Test(lm_head, embeds_and_scores_any_number_of_rows_equally, .init = set_up, .fini = tear_down) {
    enum { ROWS = 150 };
    const sn_hparams *hp = sn_model_hparams(model);
    size_t n_embd = (size_t)hp->n_embd, n_vocab = (size_t)hp->n_vocab;
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++) ids[i] = i * 7 % hp->n_vocab;
    float *hidden = malloc(ROWS * n_embd * sizeof *hidden), *one = malloc(n_embd * sizeof *one);
    float *logits = malloc(ROWS * n_vocab * sizeof *logits), *row = malloc(n_vocab * sizeof *row);
    REQUIRE(sn_lm_head_embed(head, ids, ROWS, hidden, &err));
    REQUIRE(sn_lm_head_logits(head, hidden, ROWS, logits, &err));
    for (int i = 0; i < ROWS; i++) {
        REQUIRE(sn_lm_head_embed(head, &ids[i], 1, one, &err));
        REQUIRE(sn_lm_head_logits(head, one, 1, row, &err));
        cr_assert_arr_eq(one, hidden + (size_t)i * n_embd, n_embd * sizeof *one);
        cr_assert_arr_eq(row, logits + (size_t)i * n_vocab, n_vocab * sizeof *row);
    }
    ids[70] = hp->n_vocab;
    cr_assert_eq(sn_lm_head_embed(head, ids, ROWS, hidden, &run_err), SN_REFUSED);
    free(hidden), free(one), free(logits), free(row);
}
