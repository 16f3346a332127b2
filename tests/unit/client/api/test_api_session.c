/* Sessions of the C API: over local blocks, and over the nodes of a cluster. */
#include "base/clock.h"
#include "tests/support/api_fixture.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WIDTH = 64, VOCAB = 320, PROMPT = 5 };
static const int32_t prompt[PROMPT] = {1, 40, 41, 42, 43};

static api_swarm api;

static void set_up(void) { api = api_swarm_begin((cluster_options){0}, NULL); }
static void tear_down(void) { api_swarm_end(&api); }

TestSuite(api_session, .init = set_up, .fini = tear_down);

static swarm_session *open_session(swarm_connection *over, const swarm_options *options) {
    swarm_session *session = NULL;
    API(swarm_session_open(api.model, over, options, NULL, NULL, &session, &error));
    return session;
}

static json_t *generate(swarm_session *session, const int32_t *ids, size_t n, const swarm_options *options) {
    char *text = NULL;
    API(swarm_session_generate(session, ids, n, options, &text, NULL, &error));
    return api_json(text);
}

Test(api_session, local_blocks_and_nodes_generate_the_same_tokens) {
    swarm_options *options = api_options("max-tokens", "12", "ignore-eos", "true", NULL);
    swarm_session *here = open_session(NULL, NULL), *there = open_session(api.connection, NULL);
    json_t *a = generate(here, prompt, PROMPT, options), *b = generate(there, prompt, PROMPT, options);
    cr_assert_eq(json_array_size(json_object_get(a, "ids")), 12);
    cr_assert(json_equal(json_object_get(a, "ids"), json_object_get(b, "ids")));
    cr_assert(json_equal(json_object_get(a, "text"), json_object_get(b, "text")));
    cr_assert_str_eq(json_string_value(json_object_get(a, "finish_reason")), "length");
    cr_assert_eq(json_array_size(json_object_get(json_object_get(b, "timings"), "hops")), 2);
    char *text = NULL;
    API(swarm_session_describe(there, &text, NULL, &error));
    json_t *o = api_json(text);
    cr_assert_eq(json_array_size(json_object_get(o, "hops")), 2);
    json_decref(o);
    json_decref(a);
    json_decref(b);
    swarm_session_close(here);
    swarm_session_close(there);
    swarm_options_free(options);
}

static uint64_t rows_computed(void) {
    uint64_t rows = 0;
    char *text = NULL;
    API(swarm_connection_status(api.connection, &text, NULL, &error));
    json_t *o = api_json(text), *node;
    size_t i;
    json_array_foreach(json_object_get(o, "nodes"), i, node) {
        rows += (uint64_t)json_integer_value(json_object_get(node, "tokens"));
    }
    json_decref(o);
    return rows;
}

/* Nodes whose KV memory holds 96 tokens of a context of 256. */
Test(api_session, a_prompt_that_fits_nowhere_is_refused_before_it_is_computed) {
    int32_t ids[120];
    swarm_error *error = NULL;
    for (int i = 0; i < 120; i++) ids[i] = 3 + i % 300;
    tear_down();
    api = api_swarm_begin((cluster_options){.kv_memory = 3 * (2 * 2 * 32 * 32 * sizeof(uint16_t))}, NULL);
    swarm_options *options = api_options("max-tokens", "50", "ignore-eos", "true", NULL);
    swarm_session *session = open_session(api.connection, NULL);
    const uint64_t before = rows_computed();
    const int64_t began_us = sn_now_us();
    cr_assert_eq(swarm_session_generate(session, ids, 120, options, NULL, NULL, &error), SWARM_REFUSED);
    cr_expect(strstr(swarm_error_text(error), "120 tokens do not fit"), "%s", swarm_error_text(error));
    cr_expect(strstr(swarm_error_text(error), "for 96 at most"), "%s", swarm_error_text(error));
    cr_expect_str_eq(swarm_error_reason(error), "too_long");
    cr_expect_lt(sn_now_us() - began_us, 5000000); /* of the virtual clock, and of 30 s */
    cr_expect_eq(rows_computed(), before);
    swarm_error_free(error);
    json_t *o = generate(session, ids, 90, options); /* the node was not banned */
    cr_expect_str_eq(json_string_value(json_object_get(o, "finish_reason")), "length");
    cr_expect_eq(json_array_size(json_object_get(o, "ids")), 7, "96 - 90, and one that is not computed");
    json_decref(o);
    swarm_session_close(session);
    swarm_options_free(options);
}

Test(api_session, the_status_lists_the_nodes) {
    json_t *o = NULL;
    for (int tries = 0; json_array_size(json_object_get(o, "nodes")) < 2 && tries < 200; tries++) {
        char *text = NULL;
        json_decref(o);
        if (tries) sn_sleep_us(20000); /* the node that was joined may not have heard of the other one yet */
        API(swarm_connection_status(api.connection, &text, NULL, &error));
        o = api_json(text);
    }
    cr_assert_eq(json_array_size(json_object_get(o, "nodes")), 2);
    cr_assert_eq(json_array_size(json_object_get(o, "coverage")), 1);
    json_decref(o);
}

Test(api_session, what_a_prompt_shares_with_the_timeline_is_not_computed_again) {
    swarm_options *options = api_options("max-tokens", "4", "ignore-eos", "true", NULL);
    swarm_session *session = open_session(api.connection, NULL);
    json_t *first = generate(session, prompt, PROMPT, options), *again = generate(session, prompt, PROMPT, options);
    cr_assert(json_equal(json_object_get(first, "ids"), json_object_get(again, "ids")));
    const json_t *timings = json_object_get(again, "timings");
    cr_assert_eq(json_integer_value(json_object_get(timings, "reused_tokens")), PROMPT - 1);
    json_decref(first);
    json_decref(again);
    swarm_session_close(session);
    swarm_options_free(options);
}

/* -- events -- */

typedef struct seen {
    size_t tokens, texts, progress, stop_after; /* stop_after: tokens; 0: never */
    char text[1024];
    size_t text_len;
    double done, total, logprob[64];
    size_t n_top;
    int32_t best[64], ids[64];
} seen;

static int watch(void *context, const swarm_event *event) {
    seen *s = context;
    size_t length;
    const int32_t *ids;
    const double *logprobs;
    const char *text = swarm_event_text(event, &length);
    cr_assert_eq(strlen(text), length);
    switch (swarm_event_get_kind(event)) {
    case SWARM_EVENT_TOKEN:
        s->logprob[s->tokens] = swarm_event_number(event, "logprob");
        s->n_top = swarm_event_top(event, &ids, &logprobs);
        s->ids[s->tokens] = (int32_t)swarm_event_number(event, "id");
        if (s->n_top) s->best[s->tokens] = ids[0];
        for (size_t i = 1; i < s->n_top; i++) cr_assert_geq(logprobs[i - 1], logprobs[i]);
        s->tokens++;
        break;
    case SWARM_EVENT_TEXT:
        s->texts++;
        cr_assert_lt(s->text_len + length, sizeof s->text);
        memcpy(s->text + s->text_len, text, length);
        s->text_len += length;
        break;
    case SWARM_EVENT_PROGRESS:
        s->progress++;
        s->done = swarm_event_number(event, "done");
        s->total = swarm_event_number(event, "total");
        break;
    default:
        break;
    }
    cr_assert_eq(swarm_event_number(event, "no such number"), 0);
    return s->stop_after && s->tokens >= s->stop_after;
}

Test(api_session, events_show_progress_tokens_and_text) {
    swarm_options *options = api_options("max-tokens", "6", "ignore-eos", "true", "logprobs", "3", NULL);
    swarm_session *session = open_session(api.connection, NULL);
    seen s = {0};
    swarm_session_on_event(session, watch, &s);
    json_t *o = generate(session, prompt, PROMPT, options);
    cr_assert_eq(s.tokens, 6);
    cr_assert_eq(s.done, PROMPT);
    cr_assert_eq(s.total, PROMPT);
    cr_assert_gt(s.progress, 0);
    cr_assert_str_eq(s.text, json_string_value(json_object_get(o, "text")));
    cr_assert_eq(s.n_top, 3);
    for (size_t i = 0; i < 6; i++) {
        cr_assert_lt(s.logprob[i], 0);
        cr_assert_eq(s.best[i], s.ids[i], "greedy takes the best token");
        cr_assert_eq(s.ids[i], json_integer_value(json_array_get(json_object_get(o, "ids"), i)));
    }
    json_decref(o);
    swarm_session_close(session);
    swarm_options_free(options);
}

Test(api_session, a_callback_is_given_the_kinds_of_events_that_it_wants) {
    swarm_options *options = api_options("max-tokens", "3", "ignore-eos", "true", NULL);
    swarm_session *session = open_session(NULL, NULL);
    seen s = {0};
    swarm_session_on_event(session, watch, &s);
    swarm_session_want_events(session, 1u << SWARM_EVENT_TEXT);
    json_decref(generate(session, prompt, PROMPT, options));
    cr_assert_eq(s.tokens + s.progress, 0);
    cr_assert_gt(s.texts, 0);
    swarm_session_want_events(session, 1u << SWARM_EVENT_TOKEN | 1u << SWARM_EVENT_PROGRESS);
    s = (seen){0};
    json_decref(generate(session, prompt, PROMPT - 1, options));
    cr_assert_eq(s.tokens, 3);
    cr_assert_gt(s.progress, 0);
    cr_assert_eq(s.texts, 0);
    swarm_session_close(session);
    swarm_options_free(options);
}

Test(api_session, a_callback_stops_a_generation_after_its_token) {
    swarm_options *options = api_options("max-tokens", "20", "ignore-eos", "true", NULL);
    swarm_session *session = open_session(NULL, NULL);
    seen s = {.stop_after = 3};
    swarm_session_on_event(session, watch, &s);
    json_t *o = generate(session, prompt, PROMPT, options);
    cr_assert_eq(json_array_size(json_object_get(o, "ids")), 3);
    cr_assert_str_eq(json_string_value(json_object_get(o, "finish_reason")), "interrupted");
    json_decref(o);
    swarm_session_on_event(session, NULL, NULL);
    o = generate(session, prompt, PROMPT, options);
    cr_assert_eq(json_array_size(json_object_get(o, "ids")), 20, "the next call is not stopped");
    json_decref(o);
    swarm_session_close(session);
    swarm_options_free(options);
}

/* A mask that allows one token. */
static void allow_one(void *context, const int32_t *ids, size_t n, float *logits, size_t vocab) {
    cr_assert_eq(vocab, VOCAB);
    cr_assert(n && ids);
    for (size_t i = 0; i < vocab; i++)
        if ((int32_t)i != *(const int32_t *)context) logits[i] = -INFINITY;
}

Test(api_session, a_callback_may_change_the_logits) {
    static const int32_t wanted = 77;
    swarm_options *options = api_options("max-tokens", "3", "temperature", "1", "seed", "5", NULL);
    swarm_session *session = open_session(NULL, NULL);
    int32_t id = 0;
    swarm_session_on_logits(session, allow_one, (void *)(uintptr_t)&wanted);
    json_t *o = generate(session, prompt, PROMPT, options), *ids = json_object_get(o, "ids");
    for (size_t i = 0; i < 3; i++) cr_assert_eq(json_integer_value(json_array_get(ids, i)), wanted);
    API(swarm_session_sample(session, options, &id, &error));
    cr_assert_eq(id, wanted);
    json_decref(o);
    swarm_session_close(session);
    swarm_options_free(options);
}

/* -- in steps -- */

Test(api_session, steps_give_the_tokens_that_generating_gives) {
    swarm_options *options = api_options("max-tokens", "8", "ignore-eos", "true", NULL);
    swarm_session *whole = open_session(NULL, NULL), *steps = open_session(api.connection, NULL);
    json_t *o = generate(whole, prompt, PROMPT, options), *ids = json_object_get(o, "ids");
    int32_t id;
    size_t n;
    API_FAILS(swarm_session_sample(steps, NULL, &id, &error), SWARM_REFUSED, "empty");
    API(swarm_session_append(steps, prompt, PROMPT, NULL, &error));
    for (size_t i = 0; i < 8; i++) {
        API(swarm_session_sample(steps, NULL, &id, &error));
        cr_assert_eq(id, json_integer_value(json_array_get(ids, i)), "token %zu", i);
        API(swarm_session_append(steps, &id, 1, NULL, &error));
    }
    const int32_t *timeline = swarm_session_tokens(steps, &n), *other;
    size_t other_n;
    other = swarm_session_tokens(whole, &other_n);
    cr_assert_eq(n, PROMPT + 8);
    cr_assert_eq(other_n, PROMPT + 8, "the last token belongs to the timeline, too");
    cr_assert_arr_eq(timeline, other, n * sizeof *timeline);
    json_decref(o);
    swarm_session_close(whole);
    swarm_session_close(steps);
    swarm_options_free(options);
}

Test(api_session, logits_do_not_depend_on_how_tokens_are_appended) {
    static float all[PROMPT * VOCAB], one[PROMPT * VOCAB];
    swarm_session *session = open_session(api.connection, NULL);
    size_t n;
    API(swarm_session_append(session, prompt, PROMPT, all, &error));
    API(swarm_session_rewind(session, 2, &error));
    (void)swarm_session_tokens(session, &n);
    cr_assert_eq(n, 2);
    for (size_t i = 2; i < PROMPT; i++) API(swarm_session_append(session, &prompt[i], 1, one + i * VOCAB, &error));
    cr_assert_arr_eq(all + 2 * VOCAB, one + 2 * VOCAB, (PROMPT - 2) * VOCAB * sizeof *all);
    API_FAILS(swarm_session_rewind(session, PROMPT + 1, &error), SWARM_REFUSED, "5 tokens");
    API_FAILS(swarm_session_append(session, (int32_t[]){VOCAB}, 1, NULL, &error), SWARM_REFUSED, "320");
    API_FAILS(swarm_session_append(session, (int32_t[]){-1}, 1, NULL, &error), SWARM_REFUSED, "-1");
    API_FAILS(swarm_session_append(session, prompt, SIZE_MAX / 8, NULL, &error), SWARM_REFUSED, "do not fit");
    (void)swarm_session_tokens(session, &n);
    cr_assert_eq(n, PROMPT, "a refused call changes nothing");
    swarm_session_close(session);
}

/* The last token was sampled when the context was full: the timeline has one token more than the context. */
Test(api_session, nothing_is_appended_behind_a_full_context) {
    enum { CONTEXT = 12 };
    swarm_options *longer = api_options("max-tokens", "100", "ignore-eos", "true", NULL),
                  *narrow = api_options("ctx", "12", NULL);
    swarm_session *session = open_session(NULL, narrow);
    json_t *o = generate(session, prompt, PROMPT, longer);
    size_t n;
    cr_assert_str_eq(json_string_value(json_object_get(o, "finish_reason")), "length");
    (void)swarm_session_tokens(session, &n);
    cr_assert_eq(n, CONTEXT + 1);
    API_FAILS(swarm_session_append(session, prompt, 1, NULL, &error), SWARM_REFUSED, "do not fit");
    (void)swarm_session_tokens(session, &n);
    cr_assert_eq(n, CONTEXT + 1, "a refused call changes nothing");
    json_decref(o);
    swarm_session_close(session);
    swarm_options_free(longer);
    swarm_options_free(narrow);
}

Test(api_session, a_token_that_was_sampled_last_is_computed_before_what_is_appended) {
    static float a[VOCAB], b[VOCAB];
    swarm_options *options = api_options("max-tokens", "2", "ignore-eos", "true", NULL);
    swarm_session *session = open_session(NULL, NULL), *fresh = open_session(NULL, NULL);
    json_t *o = generate(session, prompt, PROMPT, options);
    size_t n;
    const int32_t *timeline = swarm_session_tokens(session, &n);
    API(swarm_session_append(fresh, timeline, n, NULL, &error));
    API(swarm_session_append(session, (int32_t[]){50}, 1, a, &error));
    API(swarm_session_append(fresh, (int32_t[]){50}, 1, b, &error));
    cr_assert_arr_eq(a, b, sizeof a);
    json_decref(o);
    swarm_session_close(session);
    swarm_session_close(fresh);
    swarm_options_free(options);
}

Test(api_session, samples_depend_on_seed_and_timeline_alone) {
    swarm_options *options = api_options("temperature", "1.5", "seed", "9", NULL);
    swarm_session *session = open_session(NULL, NULL);
    int32_t first, again, others = 0, next = 0;
    API(swarm_session_append(session, prompt, PROMPT, NULL, &error));
    API(swarm_session_sample(session, options, &first, &error));
    for (int i = 0; i < 3; i++) {
        API(swarm_session_sample(session, options, &again, &error));
        cr_assert_eq(first, again);
    }
    for (int i = 0; i < 20; i++) {
        API(swarm_session_sample(session, options, &again, &error));
        API(swarm_session_append(session, &again, 1, NULL, &error));
        others += again != first;
        next = again;
    }
    cr_assert_gt(others, 10, "%d", next);
    swarm_session_close(session);
    swarm_options_free(options);
}

/* -- hidden states -- */

Test(api_session, hidden_states_go_through_any_range_of_blocks) {
    static float in[PROMPT * WIDTH], half[PROMPT * WIDTH], whole[PROMPT * WIDTH], logits[VOCAB],
        expected[PROMPT * VOCAB];
    swarm_options *low = api_options("blocks", "0:2", NULL), *high = api_options("blocks", "2:4", NULL);
    swarm_session *a = open_session(api.connection, low), *b = open_session(NULL, high),
                  *all = open_session(api.connection, NULL);
    swarm_session *tokens = open_session(NULL, NULL);
    API(swarm_model_embed(api.model, prompt, PROMPT, in, &error));
    API(swarm_session_forward(a, 0, PROMPT, in, half, &error));
    API(swarm_session_forward(b, 0, PROMPT, half, half, &error));
    API(swarm_session_forward(all, 0, PROMPT, in, whole, &error));
    cr_assert_arr_eq(half, whole, sizeof whole);
    API(swarm_session_forward(all, 3, 2, in + 3 * WIDTH, half + 3 * WIDTH, &error)); /* rewinds */
    cr_assert_arr_eq(half, whole, sizeof whole);
    API(swarm_session_append(tokens, prompt, PROMPT, expected, &error));
    API(swarm_model_logits(api.model, whole + 4 * WIDTH, 1, logits, &error));
    cr_assert_arr_eq(logits, expected + 4 * VOCAB, sizeof logits);
    API_FAILS(swarm_session_append(all, prompt, 1, NULL, &error), SWARM_REFUSED, "hidden states");
    API_FAILS(swarm_session_append(a, prompt, 1, NULL, &error), SWARM_REFUSED, "hidden states");
    API_FAILS(swarm_session_generate(all, prompt, 1, NULL, NULL, NULL, &error), SWARM_REFUSED, "hidden states");
    API_FAILS(swarm_session_forward(tokens, 0, 1, in, in, &error), SWARM_REFUSED, "tokens");
    API_FAILS(swarm_session_forward(all, 6, 1, in, in, &error), SWARM_REFUSED, "position 6");
    API_FAILS(swarm_session_forward(all, 0, SIZE_MAX / 4, in, in, &error), SWARM_REFUSED, "do not fit");
    swarm_session *sessions[] = {a, b, all, tokens};
    for (int i = 0; i < 4; i++) swarm_session_close(sessions[i]);
    swarm_options_free(low);
    swarm_options_free(high);
}

/* -- refusals -- */

Test(api_session, wrong_options_and_prompts_are_refused) {
    static const char *const wrong[][2] = {{"local", "3:9"},  {"blocks", "2:9"},      {"blocks", "x"},
                                           {"ctx", "100000"}, {"request-id", "a b"},  {"route", "x"},
                                           {"audit", "0.5"},  {"audit-local", "true"}};
    swarm_session *session = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        swarm_options *options = api_options(wrong[i][0], wrong[i][1], NULL);
        API_FAILS(swarm_session_open(api.model, NULL, options, NULL, NULL, &session, &error), SWARM_REFUSED, "");
        swarm_options_free(options);
    }
    cr_assert_null(session);
    session = open_session(NULL, NULL);
    API_FAILS(swarm_session_generate(session, prompt, 0, NULL, NULL, NULL, &error), SWARM_REFUSED, "empty");
    API_FAILS(swarm_session_generate(session, prompt, SIZE_MAX / 8, NULL, NULL, NULL, &error), SWARM_REFUSED, "tokens");
    API_FAILS(swarm_session_generate(session, (int32_t[]){-7}, 1, NULL, NULL, NULL, &error), SWARM_REFUSED, "-7");
    swarm_options *options = api_options("threads", "1", NULL);
    API_FAILS(swarm_session_generate(session, prompt, 1, options, NULL, NULL, &error), SWARM_REFUSED, "threads");
    swarm_options_free(options);
    options = api_options("top-p", "2", NULL);
    API_FAILS(swarm_session_generate(session, prompt, 1, options, NULL, NULL, &error), SWARM_REFUSED, "top-p");
    swarm_options_free(options);
    swarm_session_close(session);
}

Test(api_session, blocks_that_no_node_serves_are_named) {
    swarm_session *session = NULL;
    cluster_stop(api.nodes, 1);
    API_FAILS(swarm_session_open(api.model, api.connection, NULL, NULL, NULL, &session, &error), SWARM_RETRY, "2:4");
}

/* -- in a file -- */

Test(api_session, a_saved_session_continues_with_the_same_bits_over_another_route) {
    static float logits[VOCAB], expected[VOCAB];
    static const char extra[] = "turns \0 and \xc3\xa9";
    char *place = temp_folder(), *path = temp_path(place, "session"), *key = temp_path(place, "key");
    swarm_options *options =
        api_options("max-tokens", "6", "ignore-eos", "true", "temperature", "1", "seed", "3", NULL);
    swarm_options *unseeded = api_options("max-tokens", "6", "ignore-eos", "true", "temperature", "1", NULL);
    write_file(place, "key", "0123456789abcdef0123", 20);
    chmod(key, 0600);
    swarm_session *session = open_session(api.connection, NULL), *other = open_session(NULL, NULL);
    size_t n, n_other, length;
    json_t *o = generate(session, prompt, PROMPT, options);
    json_decref(o);
    cr_assert_null(swarm_session_extra(other, &length));
    API(swarm_session_save(session, path, key, extra, sizeof extra - 1, &error));
    API(swarm_session_load(other, path, key, &error));
    cr_assert_eq(memcmp(swarm_session_extra(other, &length), extra, sizeof extra), 0);
    cr_assert_eq(length, sizeof extra - 1);
    const int32_t *ids = swarm_session_tokens(session, &n), *loaded = swarm_session_tokens(other, &n_other);
    cr_assert_eq(n, n_other);
    cr_assert_arr_eq(ids, loaded, n * sizeof *ids);
    json_t *a = generate(session, ids, n, unseeded), *b = generate(other, loaded, n_other, unseeded);
    cr_assert(json_equal(json_object_get(a, "ids"), json_object_get(b, "ids")), "the random numbers go on");
    json_decref(a);
    json_decref(b);
    API(swarm_session_append(session, prompt, 1, expected, &error));
    API(swarm_session_append(other, prompt, 1, logits, &error));
    cr_assert_arr_eq(logits, expected, sizeof logits);
    API(swarm_session_save(other, path, key, "\xff\xfe", 2, &error)); /* not UTF-8 */
    API_FAILS(swarm_session_load(other, path, key, &error), SWARM_REFUSED, "just been opened");
    swarm_session_close(other);
    other = open_session(NULL, NULL);
    API(swarm_session_load(other, path, key, &error));
    cr_assert_eq(memcmp(swarm_session_extra(other, &length), "\xff\xfe", 3), 0);
    cr_assert_eq(length, 2);
    swarm_session_close(other);
    other = open_session(NULL, NULL);
    API_FAILS(swarm_session_load(other, "/nonexistent", key, &error), SWARM_REFUSED, "/nonexistent");
    API_FAILS(swarm_session_load(other, path, "/nonexistent", &error), SWARM_REFUSED, "/nonexistent");
    API_FAILS(swarm_session_save(other, path, key, extra, SIZE_MAX / 4, &error), SWARM_REFUSED, "extra");
    swarm_session_close(session);
    swarm_session_close(other);
    swarm_options_free(options);
    swarm_options_free(unseeded);
    free(path);
    free(key);
    temp_folder_remove(&place);
}

/* -- adapters -- */

Test(api_session, adapters_that_do_not_fit_are_refused) {
    swarm_adapter *adapter = NULL;
    API_FAILS(swarm_adapter_open(api.model, NULL, "/nonexistent", &adapter, &error), SWARM_REFUSED, "/nonexistent");
    API_FAILS(swarm_adapter_open(api.model, NULL, "name:shakespeare", &adapter, &error), SWARM_REFUSED, "connection");
    API_FAILS(swarm_adapter_open(api.model, api.connection, "name:shakespeare", &adapter, &error), SWARM_RETRY,
              "shakespeare");
    char *name = calloc(1 << 16, 1);
    memset(name, 'x', (1 << 16) - 1);
    API_FAILS(swarm_adapter_open(api.model, api.connection, name, &adapter, &error), SWARM_REFUSED, "too long");
    free(name);
    swarm_adapter_close(NULL);
}

/* -- failures -- */

typedef struct kinds {
    int failovers, moves;
} kinds;

static int count_kinds(void *context, const swarm_event *event) {
    kinds *k = context;
    k->failovers += swarm_event_get_kind(event) == SWARM_EVENT_FAILOVER;
    k->moves += swarm_event_get_kind(event) == SWARM_EVENT_MOVE;
    cr_assert(*swarm_event_text(event, NULL) || swarm_event_get_kind(event) == SWARM_EVENT_TEXT);
    return 0;
}

Test(api_session, a_failed_node_shows_in_events_only) {
    swarm_options *options = api_options("max-tokens", "10", "ignore-eos", "true", NULL);
    swarm_session *plain = open_session(NULL, NULL), *session = open_session(api.connection, NULL);
    kinds k = {0};
    json_t *expected = generate(plain, prompt, PROMPT, options);
    cluster_add(api.nodes, 2, 4);
    swarm_session_on_event(session, count_kinds, &k);
    cluster_cut_off_at_step(api.nodes, 1, 4);
    json_t *o = generate(session, prompt, PROMPT, options);
    cr_assert(json_equal(json_object_get(expected, "ids"), json_object_get(o, "ids")));
    cr_assert_eq(k.failovers, 1);
    cr_assert_eq(k.moves, 0);
    json_decref(expected);
    json_decref(o);
    swarm_session_close(plain);
    swarm_session_close(session);
    swarm_options_free(options);
}

Test(api_session, a_session_that_is_polled_moves_away_from_a_node_that_drains) {
    swarm_session *session = open_session(api.connection, NULL);
    kinds k = {0};
    API(swarm_session_append(session, prompt, PROMPT, NULL, &error));
    cluster_add(api.nodes, 2, 4);
    swarm_session_on_event(session, count_kinds, &k);
    cluster_drain(api.nodes, 1);
    for (int i = 0; i < 100 && !k.moves; i++) {
        API(swarm_session_poll(session, &error));
        sn_sleep_us(100000);
    }
    cr_assert_eq(k.failovers, 0);
    API(swarm_session_append(session, prompt, 1, NULL, &error));
    swarm_session_close(session);
}

Test(api_session, without_an_audit_there_is_nothing_to_check) {
    swarm_session *session = open_session(api.connection, NULL);
    API(swarm_session_append(session, prompt, PROMPT, NULL, &error));
    API(swarm_session_audit(session, &error));
    swarm_session_close(session);
}

Test(api_session, audited_steps_are_counted) {
    cluster_add(api.nodes, 0, 4);
    swarm_options *audited = api_options("audit", "1", "audit-seed", "7", NULL);
    swarm_session *session = open_session(api.connection, audited);
    char *text = NULL;
    API(swarm_session_append(session, prompt, PROMPT, NULL, &error));
    API(swarm_session_audit(session, &error));
    API(swarm_session_describe(session, &text, NULL, &error));
    json_t *o = api_json(text), *audit = json_object_get(o, "audit");
    cr_assert_eq(json_integer_value(json_object_get(audit, "seed")), 7);
    cr_assert_gt(json_integer_value(json_object_get(audit, "checked")), 0);
    json_decref(o);
    swarm_session_close(session);
    swarm_options_free(audited);
}

/* -- callbacks that stop a call in steps -- */

static int stop_now(void *context, const swarm_event *event) {
    (void)context;
    return swarm_event_get_kind(event) == SWARM_EVENT_PROGRESS;
}

Test(api_session, a_callback_stops_the_prefill) {
    static int32_t longer[200];
    for (int i = 0; i < 200; i++) longer[i] = 3 + i;
    swarm_session *session = open_session(api.connection, NULL);
    size_t n;
    swarm_session_on_event(session, stop_now, NULL);
    API_FAILS(swarm_session_append(session, longer, 200, NULL, &error), SWARM_CANCELLED, "cancelled");
    (void)swarm_session_tokens(session, &n);
    cr_assert_eq(n, 0);
    json_t *o = generate(session, longer, 200, NULL);
    cr_assert_str_eq(json_string_value(json_object_get(o, "finish_reason")), "interrupted");
    json_decref(o);
    swarm_session_on_event(session, NULL, NULL);
    API(swarm_session_append(session, longer, 200, NULL, &error));
    swarm_session_close(session);
}
