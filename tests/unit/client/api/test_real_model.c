/* The whole client with SmolLM2-135M-Instruct (Q4_1), compared with the reference's numbers. SN_TEST_MODEL names the
 * file, which scripts/test.sh fetches; without it these tests are skipped by name. */
#include "tests/support/program.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a log-probability: activations have 8 bits here and are float in the reference, which they would move as far. */
#define TOLERANCE 0.15

static const char *model;
static json_t *reference;
static program last;

static void set_up(void) {
    json_error_t where;
    model = getenv("SN_TEST_MODEL");
    reference = json_load_file(SN_FIXTURES "/smollm2_q4_1.json", 0, &where);
    cr_assert(reference, "%s", where.text);
}

static void tear_down(void) {
    json_decref(reference);
    program_fini(&last);
}

TestSuite(real_model, .init = set_up, .fini = tear_down);

#define NEEDS_MODEL(name)                                                                                              \
    do {                                                                                                               \
        if (model) break;                                                                                              \
        fprintf(stderr, "skipped: real_model::" name ", because SN_TEST_MODEL is not set\n");                          \
        cr_skip_test("SN_TEST_MODEL is not set");                                                                      \
    } while (0)

/* Runs `swarm COMMAND --model M --local all ...` with this input; returns its output as JSON. */
#define SWARM(input, command, ...)                                                                                     \
    do {                                                                                                               \
        const char *const argv[] = {SN_SWARM, command,      "--model", model,       "--local",                         \
                                    "all",    "--kv-dtype", "f32",     __VA_ARGS__, NULL};                             \
        program_fini(&last);                                                                                           \
        last = program_run(argv, input);                                                                               \
        cr_assert_eq(last.code, 0, "%s", last.err);                                                                    \
    } while (0)

static json_t *run_generate(const char *prompt, const char *max_tokens) {
    SWARM(prompt, "generate", "--prompt-file", "-", "--max-tokens", max_tokens, "--json");
    return program_json(&last);
}

static const char *text_of(const json_t *answer) { return json_string_value(json_object_get(answer, "text")); }
static const char *finish_of(const json_t *answer) {
    return json_string_value(json_object_get(answer, "finish_reason"));
}

/* What `swarm eval` says of these token ids. */
static json_t *run_eval(const json_t *ids) {
    char *text = json_dumps(ids, 0);
    SWARM(text, "eval", "--ids-file", "-", "--json");
    free(text);
    return program_json(&last);
}

/* The negative log-probability of all ids but the first, together. */
static double sum_nll(const json_t *ids) {
    json_t *o = run_eval(ids);
    double sum = json_real_value(json_object_get(o, "nll")) * (double)json_integer_value(json_object_get(o, "tokens"));
    json_decref(o);
    return sum;
}

/* The share of a text's tokens that the reference considered the most likely. */
static double reference_top1(const json_t *text) {
    const json_t *ids = json_object_get(text, "ids"), *top1 = json_object_get(text, "top1");
    size_t n = json_array_size(ids), hits = 0;
    for (size_t i = 1; i < n; i++) hits += (size_t)json_equal(json_array_get(top1, i - 1), json_array_get(ids, i));
    return (double)hits / (double)(n - 1);
}

Test(real_model, predicts_the_texts_as_well_as_the_reference) {
    NEEDS_MODEL("predicts_the_texts_as_well_as_the_reference");
    json_t *texts = json_object_get(reference, "text_tokens"), *text;
    size_t i;
    json_array_foreach(texts, i, text) {
        json_t *o = run_eval(json_object_get(text, "ids"));
        double want = json_real_value(json_object_get(text, "nll")), got = json_real_value(json_object_get(o, "nll"));
        cr_assert_lt(fabs(got - want), 0.005 * want, "text %zu: nll %g, the reference's %g", i, got, want);
        cr_assert_eq(json_integer_value(json_object_get(o, "tokens")), 511);
        want = reference_top1(text), got = json_real_value(json_object_get(o, "top1"));
        cr_assert_lt(fabs(got - want), 0.01, "text %zu: top-1 %g, the reference's %g", i, got, want);
        json_decref(o);
    }
    cr_assert_eq(i, 2);
}

/* The difference between a prompt and the prompt with the first token of its reply. */
Test(real_model, gives_the_first_tokens_of_replies_the_references_probabilities) {
    NEEDS_MODEL("gives_the_first_tokens_of_replies_the_references_probabilities");
    json_error_t where;
    json_t *wanted = json_load_file(SN_FIXTURES "/smollm2_q4_1_first_logprobs.json", 0, &where), *p;
    size_t i;
    cr_assert(wanted, "%s", where.text);
    json_array_foreach(json_object_get(reference, "greedy"), i, p) {
        json_t *ids = json_object_get(p, "prompt_ids");
        double prompt = sum_nll(ids);
        json_array_append(ids, json_array_get(json_object_get(p, "new_ids"), 0));
        double want = json_real_value(json_array_get(wanted, i)), got = prompt - sum_nll(ids);
        cr_expect_lt(fabs(got - want), TOLERANCE, "prompt %zu: log-probability %g, the reference's %g", i, got, want);
    }
    cr_assert_eq(i, json_array_size(wanted));
    json_decref(wanted);
}

Test(real_model, encodes_prompts_and_begins_replies_as_the_reference_does) {
    NEEDS_MODEL("encodes_prompts_and_begins_replies_as_the_reference_does");
    json_t *prompts = json_object_get(reference, "greedy"), *p;
    size_t i;
    json_array_foreach(prompts, i, p) {
        json_t *o = run_generate(json_string_value(json_object_get(p, "prompt")), "1");
        json_t *first = json_array_get(json_object_get(o, "ids"), 0);
        cr_assert(json_equal(json_object_get(o, "prompt_ids"), json_object_get(p, "prompt_ids")), "prompt %zu", i);
        cr_assert(json_equal(first, json_array_get(json_object_get(p, "new_ids"), 0)), "prompt %zu: %s", i, text_of(o));
        json_decref(o);
    }
    cr_assert_geq(i, 5);
}

Test(real_model, renders_a_chat_as_the_reference_does) {
    NEEDS_MODEL("renders_a_chat_as_the_reference_does");
    json_t *chat = json_object_get(reference, "chat"), *turn = json_array_get(json_object_get(chat, "messages"), 0);
    SWARM(json_string_value(json_object_get(turn, "content")), "generate", "--chat", "--prompt-file", "-",
          "--max-tokens", "1", "--json");
    json_t *o = program_json(&last);
    cr_assert(json_equal(json_object_get(o, "prompt_ids"), json_object_get(chat, "ids")));
    json_decref(o);
}

Test(real_model, ends_at_the_end_token_and_omits_it_from_the_text) {
    NEEDS_MODEL("ends_at_the_end_token_and_omits_it_from_the_text");
    json_t *o = run_generate("The capital of France is", "200"), *ids = json_object_get(o, "ids");
    cr_assert_str_eq(finish_of(o), "stop");
    cr_assert_eq(json_integer_value(json_array_get(ids, json_array_size(ids) - 1)), 2);
    cr_assert(!strncmp(text_of(o), " Paris.", 7), "%s", text_of(o));
    cr_assert_null(strstr(text_of(o), "<|im_end|>"));
    json_decref(o);
}

Test(real_model, ends_before_a_stop_string_that_straddles_tokens) {
    NEEDS_MODEL("ends_before_a_stop_text_that_straddles_tokens");
    SWARM(NULL, "generate", "--prompt", "The capital of France is", "--stop", "\nThe ans", "--json");
    json_t *o = program_json(&last);
    cr_assert_str_eq(finish_of(o), "stop_text");
    cr_assert_str_eq(text_of(o), " Paris.\n");
    json_decref(o);
}

Test(real_model, prints_the_same_text_whether_streamed_or_in_one_object) {
    NEEDS_MODEL("prints_the_same_text_whether_streamed_or_in_one_object");
    json_t *o = run_generate("Once upon a time", "40");
    SWARM("Once upon a time", "generate", "--prompt-file", "-", "--max-tokens", "40");
    size_t len = json_string_length(json_object_get(o, "text"));
    cr_assert_eq(strlen(last.out), len + 1);
    cr_assert(!memcmp(last.out, text_of(o), len));
    cr_assert(strstr(last.err, "tok/s") && strstr(last.err, "blocks 0:30"), "%s", last.err);
    json_decref(o);
}

Test(real_model, samples_the_same_text_from_the_same_seed) {
    NEEDS_MODEL("samples_the_same_text_from_the_same_seed");
    char *first = NULL;
    for (int i = 0; i < 2; i++) {
        SWARM(NULL, "generate", "--prompt", "Once upon a time", "--max-tokens", "30", "--temperature", "1.2", "--top-k",
              "50", "--top-p", "0.95", "--min-p", "0.02", "--repeat-penalty", "1.1", "--seed", "17", "--threads",
              i ? "1" : "2", "--json");
        json_t *o = program_json(&last);
        cr_assert_eq(json_integer_value(json_object_get(o, "seed")), 17);
        if (!first)
            first = strdup(text_of(o));
        else
            cr_assert_str_eq(text_of(o), first);
        json_decref(o);
    }
    free(first);
}

Test(real_model, scores_the_second_half_of_each_whole_window_of_a_text) {
    NEEDS_MODEL("scores_the_second_half_of_each_whole_window_of_a_text");
    char *ids = json_dumps(json_object_get(json_array_get(json_object_get(reference, "text_tokens"), 0), "ids"), 0);
    const char *const decode[] = {SN_SWARM, "tokenize", "--model", model, "--decode", NULL};
    char path[] = "/tmp/test_real_model.XXXXXX";
    int fd = mkstemp(path);
    last = program_run(decode, ids);
    cr_assert(last.code == 0 && fd >= 0 && write(fd, last.out, strlen(last.out)) == (ssize_t)strlen(last.out));
    close(fd);
    SWARM(NULL, "eval", "--file", path, "--ctx", "128", "--json");
    unlink(path);
    json_t *o = program_json(&last);
    json_int_t tokens = json_integer_value(json_object_get(o, "tokens"));
    /* the cut may change the merges at the end */
    cr_assert(tokens == 4 * 63 || tokens == 3 * 63, "%lld", (long long)tokens);
    json_decref(o);
    free(ids);
}

Test(real_model, survives_a_round_trip_through_tokenize) {
    NEEDS_MODEL("survives_a_round_trip_through_tokenize");
    const char *text = "na\u00efve \u65e5\u672c\u8a9e \U0001f600\n\ttabs  and   spaces <|im_end|> x=1;";
    const char *const encode[] = {SN_SWARM, "tokenize", "--model", model, "--file", "-", "--json", NULL};
    const char *const decode[] = {SN_SWARM, "tokenize", "--model", model, "--decode", "--json", NULL};
    last = program_run(encode, text);
    cr_assert_eq(last.code, 0, "%s", last.err);
    json_t *o = program_json(&last);
    char *ids = json_dumps(json_object_get(o, "ids"), 0);
    json_decref(o);
    program_fini(&last);
    last = program_run(decode, ids);
    o = program_json(&last);
    cr_assert_str_eq(text_of(o), text);
    json_decref(o);
    free(ids);
}

/* The whole conversation as the reference renders one, with other turns; it ends where the next reply begins. */
static char *conversation(const char *const *turns, size_t n) {
    const json_t *chat = json_object_get(reference, "chat");
    const char *rendered = json_string_value(json_object_get(chat, "rendered")),
               *before = strstr(rendered, "<|im_start|>user");
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    cr_assert(before && out);
    fprintf(out, "%.*s", (int)(before - rendered), rendered);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "<|im_start|>%s\n%s<|im_end|>\n", i % 2 ? "assistant" : "user", turns[i]);
    fputs("<|im_start|>assistant\n", out);
    fclose(out);
    return text;
}

/* The reply to these turns in a timeline of their own. */
static char *reply_to(const char *const *turns, size_t n) {
    char *text = conversation(turns, n);
    json_t *o = run_generate(text, "16");
    char *reply = strdup(text_of(o));
    json_decref(o);
    free(text);
    return reply;
}

Test(real_model, a_chat_replies_to_all_turns_since_the_reset) {
    NEEDS_MODEL("a_chat_replies_to_all_turns_since_the_reset");
    SWARM("My name is Ada. What is 2+2?\n\nWhat is my name?\n/nonsense\n/reset\nWhat is my name?\n", "chat",
          "--max-tokens", "16", "--temperature", "0");
    cr_assert(strstr(last.err, "there is no command /nonsense"), "%s", last.err);
    char *said = strdup(last.out);
    const char *turns[] = {"My name is Ada. What is 2+2?", NULL, "What is my name?"};
    char *first = reply_to(turns, 1);
    turns[1] = first;
    char *second = reply_to(turns, 3), *alone = reply_to(turns + 2, 1), wanted[1024];
    cr_assert_str_neq(second, alone, "this question has one answer in every conversation");
    snprintf(wanted, sizeof wanted, "%s\n%s\n%s\n", first, second, alone);
    cr_expect_str_eq(said, wanted);
    free(said), free(first), free(second), free(alone);
}

Test(real_model, refuses_a_prompt_longer_than_the_context) {
    NEEDS_MODEL("refuses_a_prompt_longer_than_the_context");
    const char *const argv[] = {SN_SWARM,  "generate", "--model",  model,
                                "--local", "all",      "--prompt", "one two three four five six",
                                "--ctx",   "4",        NULL};
    last = program_run(argv, NULL);
    cr_assert_eq(last.code, 2);
    cr_assert(strstr(last.err, "and the context 4: shorten the prompt"), "%s", last.err);
}
