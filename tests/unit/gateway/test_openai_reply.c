/* Replies of the OpenAI API over a real tokenizer and template: bodies byte by byte (fixtures/openai), and the rules
 * that hold however an answer is cut into tokens. */
#include "gateway/openai/reply.h"
#include "tests/support/api_fixture.h"
#include "tests/support/files.h"
#include "tests/support/openai_fixture.h"
#include "tests/support/require.h"
#include "base/file.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static openai_fixture fixture;

static void open_model(void) { fixture = openai_fixture_open(openai_template); }
static void close_model(void) { openai_fixture_close(&fixture); }

TestSuite(openai_reply, .init = open_model, .fini = close_model);

/* -- a request, its reply, and what the reply gave so far -- */

typedef struct exchange {
    sn_request *request;
    sn_reply *reply;
    sn_buf out;
} exchange;

static exchange begin(sn_request_kind kind, const char *body) {
    exchange e = {.request = openai_request(&fixture, kind, body)};
    sn_openai_error error = {0};
    cr_assert(sn_reply_new(e.request, fixture.served, &(sn_reply_head){"1", 1700000000}, &e.reply, &error));
    sn_buf_init(&e.out, SIZE_MAX);
    for (size_t i = 0; i < (e.request->n_prompts ? e.request->n_prompts : 1); i++)
        sn_reply_prompt(e.reply, i, 7, 2, false);
    return e;
}

static void take(exchange *e) {
    size_t len;
    const char *bytes = sn_reply_take(e->reply, &len);
    REQUIRE(sn_buf_append(&e->out, bytes, len, &err));
}

static const char *text_of(exchange *e) {
    take(e);
    REQUIRE(sn_buf_append(&e->out, "", 1, &err));
    e->out.len--;
    return (const char *)e->out.data;
}

static void end(exchange *e) {
    sn_reply_free(&e->reply);
    sn_request_free(&e->request);
    sn_buf_fini(&e->out);
}

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        sn_openai_error error = {0};                                                                                   \
        cr_assert((call), "%s", error.message);                                                                        \
    } while (0)

/* One token after the other, as a session tells them; of completions their texts, too. */
static void generate(exchange *e, size_t choice, const int32_t *ids, size_t n) {
    const int32_t top[] = {5, 6};
    for (size_t i = 0; i < n; i++) {
        const sn_reply_token token = {.id = ids[i],
                                      .logprob = -0.5 - (double)i,
                                      .top_ids = (const int32_t[]){ids[i], top[1]},
                                      .top_logprobs = (const double[]){-0.5, -2.25},
                                      .n_top = e->request->logprobs > 0 ? 2 : 0};
        OK(sn_reply_add_token(e->reply, choice, &token, &error));
        if (e->request->kind == SN_REQUEST_COMPLETION && !swarm_model_ends(fixture.model, ids[i])) {
            char *text;
            size_t len;
            API(swarm_model_token_bytes(fixture.model, ids[i], 0, &text, &len, &error));
            OK(sn_reply_add_text(e->reply, choice, text, len, &error));
            swarm_free(text);
        }
        take(e);
    }
}

/* A whole exchange of one choice for each of `answers` (n). */
static exchange answered(sn_request_kind kind, const char *body, const char *const *answers, size_t n,
                         const char *finish) {
    exchange e = begin(kind, body);
    json_t *swarm = json_pack("{s:[], s:i}", "hops", "failovers", 0);
    for (size_t choice = 0; choice < n; choice++) {
        size_t n_ids;
        int32_t *ids = openai_ids(&fixture, answers[choice], &n_ids);
        generate(&e, choice, ids, n_ids);
        OK(sn_reply_end(e.reply, choice, finish, &error));
        swarm_free(ids);
    }
    OK(sn_reply_finish(e.reply, swarm, &error));
    json_decref(swarm);
    take(&e);
    return e;
}

/* The bytes of a fixture; with SN_WRITE_FIXTURES it is written instead, for a person to read. */
static void expect_fixture(exchange *e, const char *name) {
    char path[512];
    sn_buf expected;
    take(e);
    snprintf(path, sizeof path, SN_FIXTURES "/openai/%s", name);
    if (getenv("SN_WRITE_FIXTURES")) {
        char dir[] = SN_FIXTURES "/openai";
        write_file(dir, name, text_of(e), strlen(text_of(e)));
    }
    sn_buf_init(&expected, SIZE_MAX);
    REQUIRE(sn_read_file(path, 1 << 20, &expected, &err));
    cr_expect_eq(expected.len, e->out.len, "%s is another length: the reply is\n%s", name, text_of(e));
    cr_expect(expected.len == e->out.len && !memcmp(expected.data, e->out.data, expected.len), "%s: the reply is\n%s",
              name, text_of(e));
    sn_buf_fini(&expected);
    end(e);
}

#define HI    "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define USAGE ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"
#define TOOLS                                                                                                          \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\","           \
    "\"properties\":{\"of\":{\"type\":\"string\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"put\","          \
    "\"parameters\":{\"type\":"                                                                                        \
    "\"object\",\"properties\":{\"done\":{\"type\":\"boolean\"}},\"required\":[\"done\"],\"additionalProperties\":"    \
    "false}}}]"
#define CALL                                                                                                           \
    "Let me see.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"of\": \"caf\xc3\xa9\"}}\n</tool_call>\n"          \
    "<tool_call>\n{\"name\": \"put\", \"arguments\": {}}\n</tool_call><|im_end|>"

static const char *const plain[] = {"The session is one.<|im_end|>", "na\xc3\xafve<|im_end|>"};
static const char *const calling[] = {CALL};
static const char *const thinking[] = {"<think>\nthe one\n</think>\n\nis it<|im_end|>"};

Test(openai_reply, a_chat_is_one_body) {
    exchange e = answered(SN_REQUEST_CHAT, "{" HI ",\"n\":2,\"logprobs\":true,\"top_logprobs\":2}", plain, 2, "stop");
    expect_fixture(&e, "chat.json");
}

Test(openai_reply, a_chat_streams_role_text_reason_and_usage) {
    exchange e = answered(SN_REQUEST_CHAT, "{" HI USAGE "}", plain, 1, "stop");
    expect_fixture(&e, "chat.sse");
}

Test(openai_reply, a_stream_without_usage_has_a_choice_in_each_chunk) {
    exchange e = answered(SN_REQUEST_CHAT, "{" HI ",\"n\":2,\"stream\":true}", plain, 2, "length");
    cr_expect_not(strstr(text_of(&e), "\"choices\":[]"));
    cr_expect_not(strstr(text_of(&e), "\"usage\""));
    cr_expect(strstr(text_of(&e), "\"finish_reason\":\"length\"}],\"swarm\":{"));
    end(&e);
}

Test(openai_reply, calls_of_tools_are_one_body) {
    cr_expect(sn_served_model_calls_tools(fixture.served));
    exchange e = answered(SN_REQUEST_CHAT, "{" HI TOOLS "}", calling, 1, "stop");
    expect_fixture(&e, "calls.json");
}

Test(openai_reply, calls_of_tools_stream_their_arguments) {
    exchange e = answered(SN_REQUEST_CHAT, "{" HI TOOLS USAGE "}", calling, 1, "stop");
    expect_fixture(&e, "calls.sse");
}

Test(openai_reply, a_thought_streams_as_reasoning) {
    exchange e = answered(SN_REQUEST_CHAT, "{" HI USAGE ",\"logprobs\":true}", thinking, 1, "stop");
    expect_fixture(&e, "thought.sse");
}

Test(openai_reply, a_completion_is_one_body) {
    exchange e = answered(SN_REQUEST_COMPLETION, "{\"prompt\":\"a\",\"n\":2,\"logprobs\":2}", plain, 2, "length");
    expect_fixture(&e, "completion.json");
}

Test(openai_reply, a_completion_streams_its_text) {
    exchange e = answered(SN_REQUEST_COMPLETION,
                          "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}",
                          plain, 1, "stop_text");
    expect_fixture(&e, "completion.sse");
}

Test(openai_reply, an_embedding_is_floats_or_base64) {
    exchange e = begin(SN_REQUEST_EMBEDDING, "{\"input\":[\"a\",\"b\"]}");
    for (size_t i = 0; i < 2; i++) OK(sn_reply_embedding(e.reply, i, (const float[]){1, -0.5F, (float)i}, 3, &error));
    OK(sn_reply_finish(e.reply, NULL, &error));
    expect_fixture(&e, "embedding.json");
    e = begin(SN_REQUEST_EMBEDDING, "{\"input\":\"a\",\"encoding_format\":\"base64\"}");
    OK(sn_reply_embedding(e.reply, 0, (const float[]){1, -0.5F}, 2, &error));
    OK(sn_reply_finish(e.reply, NULL, &error));
    cr_expect(strstr(text_of(&e), "\"embedding\":\"AACAPwAAAL8=\""), "%s", text_of(&e));
    end(&e);
}

/* -- responses -- */

#define FLAT_TOOLS                                                                                                     \
    ",\"tools\":[{\"type\":\"function\",\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{"         \
    "\"of\":{\"type\":\"string\"}}}},{\"type\":\"function\",\"name\":\"put\"}]"

Test(openai_reply, a_response_is_a_list_of_items) {
    exchange e = answered(SN_REQUEST_RESPONSE, "{\"input\":\"hi\"" FLAT_TOOLS "}", calling, 1, "stop");
    expect_fixture(&e, "response.json");
    e = answered(SN_REQUEST_RESPONSE, "{\"input\":\"hi\",\"include\":[\"message.output_text.logprobs\"]}", thinking, 1,
                 "length");
    expect_fixture(&e, "response_thought.json");
}

Test(openai_reply, a_response_streams_items_parts_and_texts) {
    exchange e = answered(SN_REQUEST_RESPONSE, "{\"input\":\"hi\",\"stream\":true}", plain, 1, "stop");
    expect_fixture(&e, "response.sse");
    e = answered(SN_REQUEST_RESPONSE, "{\"input\":\"hi\",\"stream\":true}", thinking, 1, "length");
    cr_expect(strstr(text_of(&e), "event: response.reasoning_text.delta\n"));
    cr_expect(strstr(text_of(&e), "event: response.incomplete\n"));
    end(&e);
    e = answered(SN_REQUEST_RESPONSE, "{\"input\":\"hi\",\"stream\":true" FLAT_TOOLS "}", calling, 1, "stop");
    cr_expect(strstr(text_of(&e), "event: response.function_call_arguments.delta\n"));
    cr_expect(strstr(text_of(&e), "\"output_index\":2,\"item\":{"));
    end(&e);
}

Test(openai_reply, a_response_that_fails_says_so_in_events) {
    exchange e = begin(SN_REQUEST_RESPONSE, "{\"input\":\"hi\",\"stream\":true}");
    sn_openai_error error;
    sn_openai_fail(&error, 503, NULL, NULL, "no node");
    sn_reply_fail(e.reply, &error);
    cr_expect(strstr(text_of(&e), "event: error\ndata: {\"type\":\"error\",\"sequence_number\":2,"));
    cr_expect(strstr(text_of(&e), "event: response.failed\n"));
    end(&e);
}

/* -- echo, as evaluation harnesses read it -- */

Test(openai_reply, an_echoed_prompt_has_its_logprobs) {
    exchange e = begin(SN_REQUEST_COMPLETION, "{\"prompt\":[1,2],\"echo\":true,\"logprobs\":1,\"max_tokens\":1}");
    size_t n;
    int32_t *ids = openai_ids(&fixture, "The one", &n);
    sn_reply_token tokens[8] = {0};
    const double best = -0.25;
    cr_assert(n > 1 && n < 8);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (sn_reply_token){.id = ids[i],
                                     .logprob = i ? -1.25 : (double)NAN,
                                     .top_ids = ids,
                                     .top_logprobs = &best,
                                     .n_top = i ? 1 : 0};
    OK(sn_reply_echo(e.reply, 0, tokens, n, &error));
    generate(&e, 0, ids, 1);
    OK(sn_reply_end(e.reply, 0, "length", &error));
    OK(sn_reply_finish(e.reply, NULL, &error));
    expect_fixture(&e, "echo.json");
    swarm_free(ids);
}

/* -- how tokens are cut does not show -- */

typedef struct heard {
    char role[32], content[512], reasoning[512], names[64], arguments[512], finish[32];
    int n_calls;
    bool usage;
} heard;

static void append(char *to, size_t capacity, const json_t *text) {
    size_t len = strlen(to);
    if (json_is_string(text)) snprintf(to + len, capacity - len, "%s", json_string_value(text));
}

/* What a client that adds up the deltas of a chat has in the end. */
static heard hear(const char *stream) {
    heard h = {0};
    for (const char *at = stream; (at = strstr(at, "data: ")); at++) {
        json_t *chunk = json_loads(at + 6, JSON_DISABLE_EOF_CHECK, NULL);
        const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        const json_t *delta = json_object_get(choice, "delta");
        append(h.role, sizeof h.role, json_object_get(delta, "role"));
        append(h.content, sizeof h.content, json_object_get(delta, "content"));
        append(h.reasoning, sizeof h.reasoning, json_object_get(delta, "reasoning_content"));
        append(h.finish, sizeof h.finish, json_object_get(choice, "finish_reason"));
        const json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
        const json_t *function = json_object_get(call, "function");
        h.n_calls += json_object_get(call, "id") != NULL;
        if (call) cr_assert_eq(json_integer_value(json_object_get(call, "index")), h.n_calls - 1);
        append(h.names, sizeof h.names, json_object_get(function, "name"));
        append(h.arguments, sizeof h.arguments, json_object_get(function, "arguments"));
        h.usage |= json_is_object(json_object_get(chunk, "usage"));
        json_decref(chunk);
    }
    return h;
}

/* The ids of a text that is cut in two: what stands before and after the cut is tokenized alone. */
static int32_t *ids_cut(const char *text, size_t cut, size_t *n) {
    char *first = strndup(text, cut);
    size_t n_first, n_rest;
    int32_t *a = openai_ids(&fixture, first, &n_first), *b = openai_ids(&fixture, text + cut, &n_rest),
            *all = calloc(n_first + n_rest, sizeof *all);
    if (n_first) memcpy(all, a, n_first * sizeof *a);
    if (n_rest) memcpy(all + n_first, b, n_rest * sizeof *b);
    *n = n_first + n_rest;
    free(first);
    swarm_free(a);
    swarm_free(b);
    return all;
}

static heard hear_cut(const char *body, const char *answer, size_t cut) {
    exchange e = begin(SN_REQUEST_CHAT, body);
    size_t n;
    int32_t *ids = ids_cut(answer, cut, &n);
    generate(&e, 0, ids, n);
    OK(sn_reply_end(e.reply, 0, "stop", &error));
    OK(sn_reply_finish(e.reply, NULL, &error));
    heard h = hear(text_of(&e));
    free(ids);
    end(&e);
    return h;
}

static bool within_character(const char *text, size_t at) { return ((unsigned char)text[at] & 0xC0) == 0x80; }

Test(openai_reply, deltas_add_up_to_the_same_wherever_tokens_are_cut) {
    for (size_t cut = 0; cut <= strlen(CALL) - strlen("<|im_end|>"); cut++) {
        if (within_character(CALL, cut)) continue;
        heard h = hear_cut("{" HI TOOLS USAGE "}", CALL, cut);
        cr_expect_str_eq(h.role, "assistant");
        cr_expect_eq(h.n_calls, 2, "cut at %zu", cut);
        cr_expect_str_eq(h.names, "getput", "cut at %zu", cut);
        cr_expect_str_eq(h.arguments, "{\"of\": \"caf\xc3\xa9\"}{}", "cut at %zu", cut);
        cr_expect_str_eq(h.content, "Let me see.", "cut at %zu: '%s'", cut, h.content);
        cr_expect_str_eq(h.finish, "tool_calls");
        cr_expect(h.usage);
    }
}

Test(openai_reply, every_chunk_is_whole_utf8) {
    const char *answer =
        "\xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80 na\xc3\xafve"; /* of several tokens for a character */
    heard h = hear_cut("{" HI USAGE "}", answer, 0);
    cr_expect_str_eq(h.content, answer);
}

Test(openai_reply, one_call_is_given_where_calls_are_not_parallel) {
    heard h = hear_cut("{" HI TOOLS USAGE ",\"parallel_tool_calls\":false}", CALL, 0);
    cr_expect_eq(h.n_calls, 1);
    cr_expect_str_eq(h.names, "get");
}

/* -- stop strings -- */

static heard hear_stop(const char *answer, const char *finish) {
    exchange e = begin(SN_REQUEST_CHAT, "{" HI ",\"stream\":true,\"stop\":[\"one two\",\"\\n\\n\"]}");
    size_t n;
    int32_t *ids = openai_ids(&fixture, answer, &n);
    generate(&e, 0, ids, n);
    heard before = hear(text_of(&e));
    cr_expect_str_eq(before.content, strstr(answer, "three") ? answer : "zero ",
                     "the beginning of a stop string was sent");
    OK(sn_reply_end(e.reply, 0, finish, &error));
    OK(sn_reply_finish(e.reply, NULL, &error));
    heard h = hear(text_of(&e));
    swarm_free(ids);
    end(&e);
    return h;
}

Test(openai_reply, a_stop_string_is_never_sent) {
    cr_expect_str_eq(hear_stop("zero one two", "stop_text").content, "zero ");
    cr_expect_str_eq(hear_stop("zero one t", "length").content, "zero one t");
    cr_expect_str_eq(hear_stop("zero one three", "length").content, "zero one three");
}

#define CALL_OF(arguments, rest) "<tool_call>\n{\"name\": \"get\", \"arguments\": " arguments rest

/* A stop string within a call cuts it, and no client may take what is left for a call to run. */
Test(openai_reply, a_stop_string_cuts_a_call_which_then_is_none_to_run) {
    static const struct {
        const char *stop, *answer, *finish, *arguments, *reason;
    } cases[] = {
        {"x", CALL_OF("{\"of\": \"ax", ""), "stop_text", "{\"of\": \"a", "stop"},
        {"}", CALL_OF("{\"of\": \"a\"}", ""), "stop_text", "{\"of\": \"a\"", "stop"},
        {"xyz", CALL_OF("{\"of\": \"axy", ""), "length", "{\"of\": \"axy", "length"},
        {"</tool_call>", CALL_OF("{\"of\": \"a\"}", "}\n</tool_call>"), "stop_text", "{\"of\": \"a\"}", "tool_calls"},
        {"never", CALL_OF("{\"of\": \"a\"}", "}\n</tool_call><|im_end|>"), "stop", "{\"of\": \"a\"}", "tool_calls"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int stream = 0; stream < 2; stream++) {
            char body[2048];
            size_t n;
            snprintf(body, sizeof body, "{" HI TOOLS ",\"stream\":%s,\"stop\":[\"%s\"]}", stream ? "true" : "false",
                     cases[i].stop);
            exchange e = begin(SN_REQUEST_CHAT, body);
            int32_t *ids = openai_ids(&fixture, cases[i].answer, &n);
            generate(&e, 0, ids, n);
            OK(sn_reply_end(e.reply, 0, cases[i].finish, &error));
            OK(sn_reply_finish(e.reply, NULL, &error));
            if (stream) {
                heard h = hear(text_of(&e));
                cr_expect_str_eq(h.arguments, cases[i].arguments);
                cr_expect_str_eq(h.finish, cases[i].reason, "%s: %s", cases[i].answer, h.finish);
                cr_expect_str_eq(h.content, "");
            } else {
                take(&e);
                json_t *o = json_loads(text_of(&e), 0, NULL);
                const json_t *choice = json_array_get(json_object_get(o, "choices"), 0);
                const json_t *calls = json_object_get(json_object_get(choice, "message"), "tool_calls");
                const json_t *function = json_object_get(json_array_get(calls, 0), "function");
                cr_expect_str_eq(json_string_value(json_object_get(function, "arguments")), cases[i].arguments);
                cr_expect_str_eq(json_string_value(json_object_get(choice, "finish_reason")), cases[i].reason);
                json_decref(o);
            }
            swarm_free(ids);
            end(&e);
        }
    }
}

/* The first call is whole, the second one is cut. */
Test(openai_reply, a_response_says_which_call_is_cut) {
    const char *answer = CALL_OF("{\"of\": \"a\"}", "}\n</tool_call>\n") CALL_OF("{\"of\": \"b", "");
    exchange e = answered(SN_REQUEST_RESPONSE, "{\"input\":\"hi\"" FLAT_TOOLS "}", &answer, 1, "length");
    json_t *o = json_loads(text_of(&e), 0, NULL);
    const json_t *output = json_object_get(o, "output"), *first = json_array_get(output, 0),
                 *second = json_array_get(output, 1);
    cr_assert_eq(json_array_size(output), 2, "%s", text_of(&e));
    cr_expect_str_eq(json_string_value(json_object_get(o, "status")), "incomplete");
    cr_expect_str_eq(json_string_value(json_object_get(first, "status")), "completed");
    cr_expect_str_eq(json_string_value(json_object_get(second, "status")), "incomplete");
    json_decref(o);
    end(&e);
}

/* -- retractions and errors -- */

Test(openai_reply, what_was_not_sent_can_be_retracted) {
    exchange e = begin(SN_REQUEST_CHAT, "{" HI "}");
    size_t n;
    int32_t *ids = openai_ids(&fixture, "The session is", &n);
    generate(&e, 0, ids, n);
    OK(sn_reply_retract(e.reply, 0, 3, 1, &error));
    OK(sn_reply_end(e.reply, 0, "length", &error));
    OK(sn_reply_finish(e.reply, NULL, &error));
    cr_expect(strstr(text_of(&e), "\"content\":\"The\"") && strstr(text_of(&e), "\"completion_tokens\":1,"), "%s",
              text_of(&e));
    end(&e);
    e = begin(SN_REQUEST_CHAT, "{" HI ",\"stream\":true}");
    sn_openai_error error = {0};
    generate(&e, 0, ids, n);
    cr_expect_not(sn_reply_retract(e.reply, 0, 3, 1, &error));
    sn_reply_fail(e.reply, &error);
    const char *last = strstr(text_of(&e), "data: {\"error\":");
    cr_assert(last, "%s", text_of(&e));
    cr_expect_str_eq(strstr(last, "\n\n"), "\n\ndata: [DONE]\n\n");
    sn_reply_fail(e.reply, &error); /* only once */
    cr_expect_str_eq(strstr(text_of(&e), "data: [DONE]"), "data: [DONE]\n\n");
    end(&e);
    swarm_free(ids);
}

Test(openai_reply, a_failed_reply_is_an_error_body) {
    exchange e = begin(SN_REQUEST_CHAT, "{" HI "}");
    sn_openai_error error;
    sn_openai_fail(&error, 503, "no_node", NULL, "no node serves the blocks 0:4");
    sn_reply_fail(e.reply, &error);
    cr_expect_str_eq(text_of(&e), "{\"error\":{\"message\":\"no node serves the blocks 0:4\",\"type\":\"server_error\","
                                  "\"param\":null,\"code\":\"no_node\"}}");
    end(&e);
}

/* -- replies without generation -- */

/* A stream of a response tells all of them again at its end; of a chat they are gone when they were told. */
Test(openai_reply, log_probabilities_that_a_stream_keeps_count_as_values) {
    enum { VALUE = 256 };
    const int32_t id = 5;
    exchange kept = begin(SN_REQUEST_RESPONSE, "{\"input\":\"hi\",\"stream\":true,\"top_logprobs\":2}");
    exchange told = begin(SN_REQUEST_CHAT, "{" HI ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":2}");
    generate(&kept, 0, &id, 1);
    generate(&told, 0, &id, 1);
    cr_expect_geq(sn_reply_held(kept.reply), 3 * VALUE);
    cr_expect_lt(sn_reply_held(told.reply), VALUE);
    end(&kept);
    end(&told);
}

/* What jansson holds now, and the most that it held. */
static size_t json_live, json_peak;

static void *count_alloc(size_t n) {
    void *p = malloc(n);
    json_live += malloc_usable_size(p);
    if (json_live > json_peak) json_peak = json_live;
    return p;
}

/* What is freed by free() stays counted: a few bytes for each token. */
static void count_free(void *p) {
    json_live -= malloc_usable_size(p);
    free(p);
}

Test(openai_reply, tokens_with_their_pieces_are_written_without_values_of_each) {
    enum { N = 20000, SMALL = N * 100 };
    sn_request *r = openai_request(&fixture, SN_REQUEST_TOKENIZE, "{\"content\":\"a\",\"with_pieces\":true}");
    size_t n;
    int32_t *some = openai_ids(&fixture, "a \xf0\x9f\x92\xa9", &n), *ids = calloc(N, sizeof *ids);
    cr_assert_gt(n, 2);
    for (size_t i = 0; i < N; i++) ids[i] = some[i % n];
    json_set_alloc_funcs(count_alloc, count_free);
    char *text = sn_reply_tokenize(r, fixture.served, ids, N);
    json_set_alloc_funcs(malloc, free);
    cr_expect_lt(json_peak, SMALL);
    json_t *o = json_loads(text, 0, NULL), *list = json_object_get(o, "tokens");
    cr_expect_eq(json_integer_value(json_object_get(o, "count")), N);
    cr_assert_eq(json_array_size(list), N);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(json_integer_value(json_object_get(json_array_get(list, i), "id")), ids[i]);
    cr_expect_str_eq(json_string_value(json_object_get(json_array_get(list, 0), "piece")), "a");
    cr_expect(json_is_array(json_object_get(json_array_get(list, 2), "piece")), "bytes that are no text are a list");
    json_decref(o);
    free(text);
    free(ids);
    swarm_free(some);
    sn_request_free(&r);
}

Test(openai_reply, a_stream_that_asks_for_it_tells_how_far_the_prompt_is) {
    static const struct {
        sn_request_kind kind;
        const char *body;
        int told;
    } cases[] = {
        {SN_REQUEST_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":true,\"return_progress\":true}", 2},
        {SN_REQUEST_COMPLETION, "{\"prompt\":\"a\",\"stream\":true,\"return_progress\":true}", 2},
        {SN_REQUEST_COMPLETION, "{\"prompt\":\"a\",\"stream\":true}", 0},
        {SN_REQUEST_COMPLETION, "{\"prompt\":\"a\",\"return_progress\":true}", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        exchange e = begin(cases[i].kind, cases[i].body);
        OK(sn_reply_add_progress(e.reply, 0, &(sn_reply_progress){4, 2, 10}, &error));
        OK(sn_reply_add_progress(e.reply, 0, &(sn_reply_progress){7, 2, 20}, &error));
        OK(sn_reply_add_token(e.reply, 0, &(sn_reply_token){.id = 40}, &error));
        OK(sn_reply_add_progress(e.reply, 0, &(sn_reply_progress){7, 2, 30}, &error)); /* an answer has begun */
        OK(sn_reply_end(e.reply, 0, "length", &error));
        OK(sn_reply_finish(e.reply, NULL, &error));
        const char *text = text_of(&e), *first, *second;
        first = strstr(text, "\"prompt_progress\":{\"total\":7,\"cache\":2,\"processed\":4,\"time_ms\":10}");
        second = strstr(text, "\"prompt_progress\":{\"total\":7,\"cache\":2,\"processed\":7,\"time_ms\":20}");
        cr_expect_eq((first != NULL) + (second && second > first), cases[i].told, "%zu: %s", i, text);
        cr_expect_null(strstr(text, "\"time_ms\":30"));
        end(&e);
    }
}
