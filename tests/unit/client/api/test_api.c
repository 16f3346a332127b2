/* The C API without sessions: errors, options, and what a model does by itself. */
#include "tests/support/api_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *folder;
static swarm_model *model;

static void set_up(void) {
    folder = api_folder();
    model = api_model(folder);
}

static void tear_down(void) {
    swarm_model_close(model);
    api_folder_remove(&folder);
}

TestSuite(api, .init = set_up, .fini = tear_down);

Test(api, says_its_version_and_accepts_null_where_it_says_so) {
    cr_assert_str_eq(swarm_version(), "0.1.0");
    swarm_free(NULL);
    swarm_error_free(NULL);
    swarm_options_free(NULL);
    swarm_cancel_free(NULL);
    swarm_disconnect(NULL);
    swarm_model_close(NULL);
    swarm_session_close(NULL);
    cr_assert_eq(swarm_error_code(NULL), SWARM_OK);
    cr_assert_str_eq(swarm_error_text(NULL), "");
    cr_assert_eq(swarm_error_retry_after_ms(NULL), 0);
    cr_assert_eq(swarm_model_open("/nonexistent", NULL, &(swarm_model *){NULL}, NULL), SWARM_REFUSED);
}

/* -- options -- */

Test(api, describes_the_keys_of_each_kind_of_options) {
    static const char *const kinds[][2] = {
        {"connection", "join"}, {"model", "threads"}, {"session", "local"}, {"generation", "temperature"}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char *text = NULL;
        size_t length, i;
        bool found = false;
        API(swarm_options_describe(kinds[k][0], &text, &length, &error));
        cr_assert_eq(strlen(text), length);
        json_t *list = api_json(text), *entry;
        json_array_foreach(list, i, entry) {
            const char *key = json_string_value(json_object_get(entry, "key"));
            cr_assert(*json_string_value(json_object_get(entry, "help")) &&
                      *json_string_value(json_object_get(entry, "value")));
            cr_assert(json_object_get(entry, "default") && json_is_boolean(json_object_get(entry, "repeatable")));
            found = found || !strcmp(key, kinds[k][1]);
            swarm_options *options = api_options(key, "1", NULL); /* every key that is described may be set */
            swarm_options_free(options);
        }
        cr_assert(found, "%s has no %s", kinds[k][0], kinds[k][1]);
        json_decref(list);
    }
    API_FAILS(swarm_options_describe("nothing", &(char *){NULL}, NULL, &error), SWARM_REFUSED, "nothing");
}

Test(api, defaults_are_described_as_they_would_be_set) {
    char *text = NULL;
    size_t i;
    json_t *entry;
    API(swarm_options_describe("session", &text, NULL, &error));
    json_t *list = api_json(text);
    json_array_foreach(list, i, entry) {
        const char *key = json_string_value(json_object_get(entry, "key"));
        if (!strcmp(key, "timeout")) cr_expect_str_eq(json_string_value(json_object_get(entry, "default")), "30s");
        if (!strcmp(key, "kv-dtype"))
            cr_expect_str_eq(json_string_value(json_object_get(entry, "value")), "f32|f16|q8");
        if (!strcmp(key, "only")) cr_expect(json_is_true(json_object_get(entry, "repeatable")));
        if (!strcmp(key, "ctx")) cr_expect_str_eq(json_string_value(json_object_get(entry, "default")), "0");
    }
    json_decref(list);
}

Test(api, refuses_wrong_options_with_the_key_in_the_sentence) {
    swarm_options *options = swarm_options_new();
    API_FAILS(swarm_options_set(options, "temprature", "1", &error), SWARM_REFUSED, "temprature");
    API_FAILS(swarm_options_set(options, "", "1", &error), SWARM_REFUSED, "no option");
    API_FAILS(swarm_options_set(options, "join dht", "1", &error), SWARM_REFUSED, "no option");
    static const char *const wrong[][2] = {
        {"threads", "many"}, {"threads", "-1"}, {"device", "abacus"}, {"isa", "z80"}, {"temperature", "1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        swarm_options *one = api_options(wrong[i][0], wrong[i][1], NULL);
        swarm_model *other = NULL;
        swarm_error *error = NULL;
        swarm_code code = swarm_model_open(folder, one, &other, &error);
        float hidden[64];
        if (!code) code = swarm_model_embed(other, (int32_t[]){1}, 1, hidden, &error); /* the device opens late */
        cr_assert_eq(code, SWARM_REFUSED, "%s=%s", wrong[i][0], wrong[i][1]);
        cr_assert(strstr(swarm_error_text(error), wrong[i][0]), "%s", swarm_error_text(error));
        swarm_error_free(error);
        swarm_model_close(other);
        swarm_options_free(one);
    }
    char *huge = calloc((2 << 20) + 1, 1);
    memset(huge, 'a', 2 << 20);
    API_FAILS(swarm_options_set(options, "stop", huge, &error), SWARM_REFUSED, "stop");
    free(huge);
    swarm_options_free(options);
}

Test(api, a_connection_needs_an_address) {
    swarm_connection *connection = NULL;
    API_FAILS(swarm_connect(NULL, NULL, &connection, &error), SWARM_REFUSED, "join");
    swarm_options *options = api_options("join", "no address", NULL);
    API_FAILS(swarm_connect(options, NULL, &connection, &error), SWARM_REFUSED, "join");
    swarm_options_free(options);
    options = api_options("dht", "127.0.0.1:1", NULL);
    API_FAILS(swarm_connect(options, NULL, &connection, &error), SWARM_REFUSED, "model");
    swarm_options_free(options);
    options = api_options("join", "127.0.0.1:1", "identity", "/nonexistent", NULL);
    API_FAILS(swarm_connect(options, NULL, &connection, &error), SWARM_REFUSED, "/nonexistent");
    swarm_options_free(options);
    cr_assert_null(connection);
}

/* -- a model -- */

Test(api, a_model_says_what_it_is) {
    cr_assert_eq(swarm_model_blocks(model), 4);
    cr_assert_eq(swarm_model_width(model), 64);
    cr_assert_eq(swarm_model_vocab(model), 320);
    cr_assert_eq(swarm_model_context(model), 256);
    char *text = NULL;
    API(swarm_model_describe(model, &text, NULL, &error));
    json_t *o = api_json(text);
    cr_assert_str_eq(json_string_value(json_object_get(o, "family")), "llama");
    cr_assert_eq(json_array_size(json_object_get(o, "blocks")), 4);
    json_decref(o);
    API_FAILS(swarm_model_open("/nonexistent", NULL, &(swarm_model *){NULL}, &error), SWARM_REFUSED, "/nonexistent");
}

Test(api, text_becomes_ids_and_ids_become_text) {
    static const char text[] = "Hello, w\0rld \xc3\xa9";
    int32_t *ids = NULL;
    size_t n = 0, length = 0;
    char *back = NULL;
    API(swarm_model_tokenize(model, text, sizeof text - 1, SWARM_TEXT_BEGINS, &ids, &n, &error));
    cr_assert_gt(n, 2);
    API(swarm_model_detokenize(model, ids + 1, n - 1, SWARM_TEXT_BEGINS, &back, &length, &error));
    swarm_free(ids);
    swarm_free(back);
    API(swarm_model_tokenize(model, "", 0, 0, &ids, &n, &error));
    cr_assert_eq(n, 0);
    swarm_free(ids);
    API_FAILS(swarm_model_tokenize(model, "\xff", 1, 0, &ids, &n, &error), SWARM_REFUSED, "UTF-8");
    API_FAILS(swarm_model_tokenize(model, text, SIZE_MAX / 2, 0, &ids, &n, &error), SWARM_REFUSED, "");
    API_FAILS(swarm_model_detokenize(model, (int32_t[]){-1}, 1, 0, &back, NULL, &error), SWARM_REFUSED, "-1");
    API_FAILS(swarm_model_detokenize(model, (int32_t[]){INT32_MAX}, 1, 0, &back, NULL, &error), SWARM_REFUSED,
              "vocabulary");
}

/* The tokenizer is SentencePiece's: <s> is 1, and a text begins with a space. */
Test(api, a_text_begins_with_or_without_the_begin_of_sequence_token) {
    int32_t *with = NULL, *without = NULL, *continued = NULL;
    size_t n_with = 0, n_without = 0, n_continued = 0;
    const int begins = SWARM_TEXT_BEGINS, no_bos = SWARM_TEXT_NO_BOS;
    API(swarm_model_tokenize(model, "Hello", 5, begins, &with, &n_with, &error));
    API(swarm_model_tokenize(model, "Hello", 5, begins | no_bos, &without, &n_without, &error));
    API(swarm_model_tokenize(model, "Hello", 5, no_bos, &continued, &n_continued, &error));
    cr_assert_eq(with[0], 1);
    cr_assert_eq(n_without, n_with - 1);
    cr_assert_arr_eq(without, with + 1, n_without * sizeof *with);
    cr_assert(n_continued != n_without || memcmp(continued, without, n_without * sizeof *without),
              "a continuation has the space of a beginning");
    swarm_free(with);
    swarm_free(without);
    swarm_free(continued);
}

static void expect_bytes(int32_t id, int flags, const char *expected) {
    char *bytes = NULL;
    size_t length = 99;
    API(swarm_model_token_bytes(model, id, flags, &bytes, &length, &error));
    cr_assert_str_eq(bytes, expected, "token %d, flags %d", id, flags);
    cr_assert_eq(length, strlen(expected));
    swarm_free(bytes);
}

Test(api, a_token_has_exact_bytes) {
    static const char text[] = "Hello \xf0\x9f\x92\xa9"; /* ends with byte tokens */
    int32_t *ids = NULL;
    char joined[64], *bytes = NULL;
    size_t n, length, all = 0;
    API(swarm_model_tokenize(model, text, sizeof text - 1, SWARM_TEXT_BEGINS | SWARM_TEXT_NO_BOS, &ids, &n, &error));
    for (size_t i = 0; i < n; i++, all += length) {
        API(swarm_model_token_bytes(model, ids[i], i ? 0 : SWARM_TEXT_BEGINS, &bytes, &length, &error));
        cr_assert_eq(bytes[length], 0);
        memcpy(joined + all, bytes, length);
        swarm_free(bytes);
    }
    cr_assert_eq(all, sizeof text - 1);
    cr_assert_arr_eq(joined, text, all);
    expect_bytes(ids[n - 1], 0, "\xa9");
    swarm_free(ids);
    API(swarm_model_tokenize(model, " ", 1, 0, &ids, &n, &error));
    expect_bytes(ids[0], 0, " ");
    expect_bytes(ids[0], SWARM_TEXT_BEGINS, "");
    expect_bytes(1, 0, "");
    expect_bytes(1, SWARM_TEXT_SPECIAL, "<s>");
    API_FAILS(swarm_model_token_bytes(model, -1, 0, &bytes, NULL, &error), SWARM_REFUSED, "-1");
    API_FAILS(swarm_model_token_bytes(model, 560, 0, &bytes, NULL, &error), SWARM_REFUSED, "vocabulary");
    swarm_free(ids);
}

Test(api, an_incomplete_character_becomes_a_replacement_character) {
    int32_t *ids = NULL;
    size_t n = 0, length = 0;
    char *back = NULL;
    API(swarm_model_tokenize(model, "\xf0\x9f\x92\xa9", 4, 0, &ids, &n, &error)); /* byte tokens */
    cr_assert_eq(n, 4);
    API(swarm_model_detokenize(model, ids, 4, 0, &back, &length, &error));
    cr_assert_str_eq(back, "\xf0\x9f\x92\xa9");
    swarm_free(back);
    API(swarm_model_detokenize(model, ids, 3, 0, &back, &length, &error));
    cr_assert_str_eq(back, "\xef\xbf\xbd");
    cr_assert_eq(length, 3);
    swarm_free(back);
    swarm_free(ids);
}

Test(api, ends_are_told_for_any_id) {
    cr_assert_eq(swarm_model_ends(model, 2), 1);
    cr_assert_eq(swarm_model_ends(model, 5), 0);
    cr_assert_eq(swarm_model_ends(model, -1), 0);
    cr_assert_eq(swarm_model_ends(model, INT32_MAX), 0);
}

static swarm_code render(const char *request, char **text, int32_t **ids, size_t *n, swarm_error **error) {
    return swarm_model_render_chat(model, request, strlen(request), text, NULL, ids, n, error);
}

Test(api, renders_chats_and_reads_answers) {
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    API(render("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", &text, &ids, &n, &error));
    cr_assert_str_eq(text, "user:hi;>");
    cr_assert_gt(n, 1);
    swarm_free(text);
    API(render("{\"messages\": [{\"role\": \"user\", \"content\": \"</s>\"}], \"add_generation_prompt\": false}", &text,
               NULL, NULL, &error));
    cr_assert_str_eq(text, "user:</s>;");
    swarm_free(text);
    size_t length;
    static const char nul[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u0000b\"}]}";
    API(swarm_model_render_chat(model, nul, strlen(nul), &text, &length, NULL, NULL, &error));
    cr_assert(length == 10 && !memcmp(text, "user:a\0b;>", 10));
    swarm_free(text);
    swarm_free(ids);
    API(render("{\"messages\": [{\"role\": \"user\", \"content\": \"</s>\"}]}", NULL, &ids, &n, &error));
    for (size_t i = 0; i < n; i++)
        cr_assert_not(swarm_model_ends(model, ids[i]), "a user's text became a special token");
    char *json = NULL;
    API(swarm_model_read_answer(model, NULL, 0, SWARM_ANSWER_ENDS, ids, n, &json, NULL, &error));
    json_t *answer = api_json(json);
    cr_assert_str_eq(json_string_value(json_object_get(answer, "role")), "assistant");
    cr_assert(strstr(json_string_value(json_object_get(answer, "content")), "</s>"));
    json_decref(answer);
    API_FAILS(swarm_model_read_answer(model, "{}", 2, 0, ids, n, &json, NULL, &error), SWARM_REFUSED, "list");
    cr_assert_eq(swarm_model_prompt_thinks(model, "user:hi;<think>\n", strlen("user:hi;<think>\n")), 1);
    cr_assert_eq(swarm_model_prompt_thinks(model, "user:hi;", strlen("user:hi;")), 0);
    swarm_free(ids);
    API(swarm_model_answer_marks(model, &json, NULL, &error));
    cr_assert_str_eq(json, "{\"thought\": [\"<think>\", \"</think>\"], \"calls\": [\"assistant:\", \"<tool_call>\"]}");
    swarm_free(json);
    static const char *const wrong[] = {
        "",
        "[]",
        "{",
        "{\"messages\": 5}",
        "{\"messages\": []}",
        "{\"messages\": [5]}",
        "{\"messages\": [{\"role\": 5, \"content\": \"\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"tools\": {}}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"variables\": []}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"message\": []}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"add_generation_prompt\": 1}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        API_FAILS(render(wrong[i], &text, &ids, &n, &error), SWARM_REFUSED, "");
}

Test(api, a_model_of_which_only_the_tokenizer_is_read_computes_nothing) {
    swarm_model *part = NULL;
    swarm_options *options = api_options("parts", "tokenizer", NULL);
    int32_t *ids = NULL;
    size_t n;
    float hidden[64];
    API(swarm_model_open(folder, options, &part, &error));
    API(swarm_model_tokenize(part, "a", 1, 0, &ids, &n, &error));
    cr_assert_eq(swarm_model_blocks(part), 0);
    API_FAILS(swarm_model_embed(part, ids, n, hidden, &error), SWARM_REFUSED, "tokenizer");
    API_FAILS(swarm_model_describe(part, &(char *){NULL}, NULL, &error), SWARM_REFUSED, "tokenizer");
    API_FAILS(swarm_session_open(part, NULL, NULL, NULL, NULL, &(swarm_session *){NULL}, &error), SWARM_REFUSED,
              "tokenizer");
    swarm_free(ids);
    swarm_options_free(options);
    swarm_model_close(part);
}

Test(api, the_ends_of_the_model_and_their_gradient_agree) {
    enum { WIDTH = 64, VOCAB = 320 };
    static float hidden[2 * WIDTH], logits[2 * VOCAB], moved[2 * VOCAB], dlogits[2 * VOCAB], dhidden[2 * WIDTH];
    API(swarm_model_embed(model, (int32_t[]){7, 11}, 2, hidden, &error));
    API(swarm_model_logits(model, hidden, 2, logits, &error));
    for (int i = 0; i < 2 * VOCAB; i++) dlogits[i] = i == VOCAB + 5;
    int32_t top[2];
    double logprob, top_logprobs[2];
    API(swarm_model_logprob(model, logits, 0, &logprob, 2, top, top_logprobs, &error));
    API(swarm_model_logprob(model, logits, top[1], &logprob, 0, NULL, NULL, &error));
    cr_expect(logprob == top_logprobs[1] && logits[top[0]] >= logits[top[1]] && top_logprobs[0] >= logprob);
    API_FAILS(swarm_model_logprob(model, logits, -1, &logprob, 0, NULL, NULL, &error), SWARM_REFUSED, "tokens");
    API(swarm_model_logits_backward(model, hidden, 2, dlogits, dhidden, &error));
    float step = 1e-2f;
    for (int i = 0; i < WIDTH; i += 17) {
        float before = hidden[WIDTH + i];
        hidden[WIDTH + i] = before + step;
        API(swarm_model_logits(model, hidden, 2, moved, &error));
        hidden[WIDTH + i] = before;
        float slope = (moved[VOCAB + 5] - logits[VOCAB + 5]) / step;
        cr_expect_float_eq(slope, dhidden[WIDTH + i], 0.05f * fabsf(slope) + 0.05f, "%f %f", (double)slope,
                           (double)dhidden[WIDTH + i]);
        cr_expect_eq(dhidden[i], 0, "the first row has no gradient");
    }
    API_FAILS(swarm_model_embed(model, (int32_t[]){320}, 1, hidden, &error), SWARM_REFUSED, "320");
    API_FAILS(swarm_model_embed(model, (int32_t[]){-1}, 1, hidden, &error), SWARM_REFUSED, "-1");
}
