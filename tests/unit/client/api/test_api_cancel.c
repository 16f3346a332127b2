/* Cancelling calls of the C API: they end within a second of the virtual clock, and the handles stay usable. */
#include "base/clock.h"
#include "tests/support/api_fixture.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

enum { WIDTH = 64, VOCAB = 320, LONG = 240, SECOND_US = 1000000 };

static api_swarm api;
static swarm_cancel *cancel;
static int32_t prompt[LONG];

static void set_up(void) {
    cancel = swarm_cancel_new();
    api = api_swarm_begin((cluster_options){0}, cancel);
    for (int i = 0; i < LONG; i++) prompt[i] = 3 + i * 7 % 300;
}

static void tear_down(void) {
    api_swarm_end(&api);
    swarm_cancel_free(cancel);
}

TestSuite(api_cancel, .init = set_up, .fini = tear_down);

static swarm_session *open_session(swarm_connection *over, const swarm_options *options) {
    swarm_session *session = NULL;
    API(swarm_session_open(api.model, over, options, NULL, cancel, &session, &error));
    return session;
}

static json_t *generate(swarm_session *session, size_t n, const swarm_options *options) {
    char *text = NULL;
    API(swarm_session_generate(session, prompt, n, options, &text, NULL, &error));
    return api_json(text);
}

/* Sets the flag after so many events of a kind. */
typedef struct at_event {
    swarm_event_kind kind;
    int left;
} at_event;

static int cancel_at(void *context, const swarm_event *event) {
    at_event *at = context;
    if (swarm_event_get_kind(event) == at->kind && --at->left == 0) swarm_cancel_set(cancel);
    return 0;
}

static double number(swarm_session *session, const char *name) {
    char *text = NULL;
    API(swarm_session_describe(session, &text, NULL, &error));
    json_t *o = api_json(text);
    double value = json_number_value(json_object_get(o, name));
    json_decref(o);
    return value;
}

/* The JSON of a cancelled generation: the first n tokens of the whole one, and their text. */
static void expect_partial(char *json, const json_t *whole, size_t n) {
    cr_assert_not_null(json);
    json_t *o = api_json(json), *ids = json_object_get(o, "ids"), *all = json_object_get(whole, "ids");
    const char *text = json_string_value(json_object_get(o, "text")),
               *all_text = json_string_value(json_object_get(whole, "text"));
    cr_assert_str_eq(json_string_value(json_object_get(o, "finish_reason")), "interrupted");
    cr_assert_eq(json_array_size(ids), n);
    for (size_t i = 0; i < n; i++) cr_assert(json_equal(json_array_get(ids, i), json_array_get(all, i)));
    cr_assert_eq(*text != 0, n > 0);
    cr_assert_eq(strncmp(all_text, text, strlen(text)), 0, "'%s' does not begin '%s'", text, all_text);
    cr_assert(json_is_object(json_object_get(o, "timings")));
    json_decref(o);
}

/* A generation that is cancelled at an event, and then done: its tokens are those of one that was not, and no node was
 * replaced for it. */
static void expect_the_same_after_cancelling(size_t n, at_event at, const char *key, const char *value) {
    swarm_options *generation = api_options("max-tokens", "8", "ignore-eos", "true", NULL);
    swarm_options *options = api_options(key, value, NULL);
    swarm_session *plain = open_session(NULL, NULL), *session = open_session(api.connection, options);
    json_t *expected = generate(plain, n, generation);
    swarm_session_on_event(session, cancel_at, &at);
    char *text = NULL;
    int32_t id;
    API_FAILS(swarm_session_generate(session, prompt, n, generation, &text, NULL, &error), SWARM_CANCELLED,
              "cancelled");
    expect_partial(text, expected, at.kind == SWARM_EVENT_TOKEN ? 3 : 0);
    cr_assert_leq(at.left, 0);
    API_FAILS(swarm_session_generate(session, prompt, n, generation, NULL, NULL, &error), SWARM_CANCELLED, "cancelled");
    API_FAILS(swarm_session_append(session, prompt, 1, NULL, &error), SWARM_CANCELLED, "cancelled");
    API_FAILS(swarm_session_sample(session, NULL, &id, &error), SWARM_CANCELLED, "cancelled");
    swarm_cancel_clear(cancel);
    json_t *done = generate(session, n, generation);
    cr_expect(json_equal(json_object_get(expected, "ids"), json_object_get(done, "ids")));
    cr_expect_eq(number(session, "failovers"), 0);
    cr_expect_eq(number(session, "replayed_tokens"), 0);
    json_decref(expected);
    json_decref(done);
    swarm_session_close(plain);
    swarm_session_close(session);
    swarm_options_free(options);
    swarm_options_free(generation);
}

Test(api_cancel, a_step_of_a_token_is_cancelled_and_the_session_goes_on) {
    expect_the_same_after_cancelling(5, (at_event){SWARM_EVENT_TOKEN, 3}, "push", "false");
}

Test(api_cancel, a_step_that_nodes_push_is_cancelled_and_the_session_goes_on) {
    expect_the_same_after_cancelling(5, (at_event){SWARM_EVENT_TOKEN, 3}, "push", "true");
}

Test(api_cancel, a_prefill_with_chunks_in_flight_is_cancelled_and_the_session_goes_on) {
    expect_the_same_after_cancelling(LONG, (at_event){SWARM_EVENT_PROGRESS, 1}, "prefill-depth", "8");
}

/* The end of the text is checked last, which the flag stops. */
Test(api_cancel, text_that_was_not_checked_is_not_given) {
    cluster_add(api.nodes, 0, 4);
    swarm_options *audited = api_options("audit", "0.000001", "audit-seed", "7", NULL);
    swarm_session *session = open_session(api.connection, audited);
    for (int hold = 0; hold < 2; hold++) {
        swarm_options *generation = api_options("max-tokens", "8", "audit-hold", hold ? "true" : "false", NULL);
        at_event at = {SWARM_EVENT_TOKEN, 3};
        char *text = NULL;
        swarm_session_on_event(session, cancel_at, &at);
        API_FAILS(swarm_session_generate(session, prompt, 5, generation, &text, NULL, &error), SWARM_CANCELLED,
                  "cancelled");
        swarm_cancel_clear(cancel);
        cr_assert_not_null(text);
        json_t *o = api_json(text);
        cr_expect_eq(json_array_size(json_object_get(o, "ids")), hold ? 0 : 3);
        cr_expect_eq(json_string_length(json_object_get(o, "text")) > 0, !hold);
        json_decref(o);
        swarm_options_free(generation);
    }
    swarm_session_close(session);
    swarm_options_free(audited);
}

Test(api_cancel, a_generation_that_did_not_begin_has_no_json) {
    swarm_options *wrong = api_options("top-p", "7", NULL);
    swarm_session *session = open_session(NULL, NULL);
    char *text = (char *)prompt;
    swarm_cancel_set(cancel);
    API_FAILS(swarm_session_generate(session, prompt, 5, wrong, &text, NULL, &error), SWARM_CANCELLED, "cancelled");
    swarm_cancel_clear(cancel);
    cr_assert_null(text);
    swarm_session_close(session);
    swarm_options_free(wrong);
}

Test(api_cancel, a_cancelled_append_leaves_the_timeline_as_it_was) {
    static float logits[LONG * VOCAB], expected[LONG * VOCAB];
    swarm_session *session = open_session(api.connection, NULL), *plain = open_session(NULL, NULL);
    size_t n;
    API(swarm_session_append(session, prompt, 100, NULL, &error));
    API(swarm_session_append(plain, prompt, 100, NULL, &error));
    swarm_cancel_set(cancel);
    API_FAILS(swarm_session_append(session, prompt + 100, 100, NULL, &error), SWARM_CANCELLED, "cancelled");
    swarm_cancel_clear(cancel);
    (void)swarm_session_tokens(session, &n);
    cr_assert_eq(n, 100);
    API(swarm_session_append(session, prompt + 150, 20, logits, &error));
    API(swarm_session_append(plain, prompt + 150, 20, expected, &error));
    cr_assert_arr_eq(logits, expected, 20 * VOCAB * sizeof *logits);
    swarm_session_close(session);
    swarm_session_close(plain);
}

/* -- a node that does not answer -- */

static void *cancel_later(void *ctx) {
    (void)ctx;
    sn_sleep_us(3 * SECOND_US);
    swarm_cancel_set(cancel);
    return NULL;
}

Test(api_cancel, waiting_for_a_silent_node_ends_within_a_second) {
    swarm_session *session = open_session(api.connection, NULL);
    pthread_t other;
    API(swarm_session_append(session, prompt, 5, NULL, &error));
    cluster_cut_off(api.nodes, 1);
    cr_assert_eq(pthread_create(&other, NULL, cancel_later, NULL), 0);
    int64_t began_us = sn_now_us();
    API_FAILS(swarm_session_append(session, prompt, 1, NULL, &error), SWARM_CANCELLED, "cancelled");
    int64_t took_us = sn_now_us() - began_us;
    cr_expect_geq(took_us, 2 * SECOND_US, "%lld", (long long)took_us);
    cr_expect_lt(took_us, 4 * SECOND_US, "%lld", (long long)took_us);
    pthread_join(other, NULL);
    swarm_cancel_clear(cancel);
    cluster_add(api.nodes, 2, 4);
    API(swarm_session_append(session, prompt, 1, NULL, &error)); /* over the other node */
    swarm_session_close(session);
}

Test(api_cancel, the_status_ends_too) {
    char *text = NULL;
    swarm_cancel_set(cancel);
    API_FAILS(swarm_connection_status(api.connection, &text, NULL, &error), SWARM_CANCELLED, "cancelled");
    swarm_cancel_clear(cancel);
    API(swarm_connection_status(api.connection, &text, NULL, &error));
    swarm_free(text);
}

Test(api_cancel, connecting_ends_too) {
    swarm_options *options = api_options("join", "127.0.0.1:9", NULL);
    swarm_connection *other = NULL;
    swarm_cancel_set(cancel);
    API_FAILS(swarm_connect(options, cancel, &other, &error), SWARM_CANCELLED, "cancelled");
    swarm_options_free(options);
}

/* -- here -- */

Test(api_cancel, blocks_of_this_process_stop_between_two_blocks) {
    static float in[5 * WIDTH], out[5 * WIDTH], again[5 * WIDTH];
    swarm_session *session = open_session(NULL, NULL), *plain = open_session(NULL, NULL);
    API(swarm_model_embed(api.model, prompt, 5, in, &error));
    swarm_cancel_set(cancel);
    API_FAILS(swarm_session_forward(session, 0, 5, in, out, &error), SWARM_CANCELLED, "cancelled");
    swarm_session *third = NULL;
    API_FAILS(swarm_session_open(api.model, NULL, NULL, NULL, cancel, &third, &error), SWARM_CANCELLED, "cancelled");
    swarm_cancel_clear(cancel);
    API(swarm_session_forward(session, 0, 5, in, out, &error));
    API(swarm_session_forward(plain, 0, 5, in, again, &error));
    cr_assert_arr_eq(out, again, sizeof out);
    swarm_session_close(session);
    swarm_session_close(plain);
}
