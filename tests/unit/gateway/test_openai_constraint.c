/* What answers may be, token by token: biases, penalties, schemas, calls of tools, thoughts before them. */
#include "gateway/openai/constraint.h"
#include "tests/support/api_fixture.h"
#include "tests/support/openai_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOL(name, properties, strict)                                                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"strict\":" strict                                    \
    ",\"parameters\":{\"type\":\"object\",\"properties\":{" properties "},\"additionalProperties\":false}}}"
#define GET(strict) TOOL("get", "\"key\":{\"enum\":[\"a\",\"b\"]}", strict)
#define PUT(strict) TOOL("put", "\"done\":{\"type\":\"boolean\"}", strict)
#define FORM                                                                                                           \
    ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"object\","  \
    "\"properties\":{\"one\":{\"enum\":[\"session\"]},\"two\":{\"type\":\"boolean\"}},\"required\":[\"one\",\"two\"]," \
    "\"additionalProperties\":false}}}"
#define CALL(name, arguments) "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

static openai_fixture fixture;

static void open_model(void) { fixture = openai_fixture_open(openai_template); }
static void close_model(void) { openai_fixture_close(&fixture); }
TestSuite(openai_constraint, .init = open_model, .fini = close_model);

static bool later; /* grammars are compiled at their first use */

static bool new_constraint(const sn_request *request, bool thinks, sn_constraint **out, sn_openai_error *error) {
    const sn_constraint_setup setup = {.n_prompt = 1, .thinks = thinks, .later = later};
    return sn_constraint_new(request, fixture.served, &setup, out, error);
}

static sn_constraint *constraint_of(const sn_request *request, bool thinks) {
    sn_constraint *c = NULL;
    sn_openai_error error = {0};
    cr_assert(new_constraint(request, thinks, &c, &error), "%s", error.message);
    return c;
}

/* Logits after a prompt of one token and the first n tokens of an answer; freed with free. */
static float *logits_after(sn_constraint *c, const int32_t *answer, size_t n) {
    const size_t vocab = (size_t)swarm_model_vocab(fixture.model);
    float *logits = calloc(vocab, sizeof *logits);
    int32_t *ids = calloc(n + 1, sizeof *ids);
    cr_assert(logits && ids);
    if (n) memcpy(ids + 1, answer, n * sizeof *ids);
    sn_constraint_apply(c, ids, n + 1, logits, vocab);
    free(ids);
    return logits;
}

static bool is_allowed(sn_constraint *c, const int32_t *answer, size_t n, int32_t next) {
    float *logits = logits_after(c, answer, n);
    bool allowed = !isinf(logits[next]);
    free(logits);
    return allowed;
}

/* How many bytes of a text may be generated, SIZE_MAX: all, and the answer may end there. */
static size_t allowed_bytes(const char *body, bool thinks, const char *text) {
    sn_request *request = openai_request(&fixture, SN_REQUEST_CHAT, body);
    sn_constraint *c = constraint_of(request, thinks);
    size_t n, n_ending, done = 0, bytes;
    int32_t *ids = openai_ids(&fixture, text, &n);
    const int32_t end = sn_served_model_ending(fixture.served, &n_ending)[0];
    size_t i = 0;
    for (; i < n && is_allowed(c, ids, i, ids[i]); i++) {
        char *token = NULL;
        API(swarm_model_token_bytes(fixture.model, ids[i], SWARM_TEXT_SPECIAL, &token, &bytes, &error));
        done += bytes;
        swarm_free(token);
    }
    if (i == n && is_allowed(c, ids, n, end)) done = SIZE_MAX;
    swarm_free(ids);
    cr_expect_not(sn_constraint_failed(c, &(sn_openai_error){0}));
    sn_constraint_free(&c);
    sn_request_free(&request);
    return done;
}

static void expect_allowed(const char *body, bool thinks, const char *text) {
    size_t done = allowed_bytes(body, thinks, text);
    cr_expect_eq(done, SIZE_MAX, "%s: only %zu bytes of '%s'", body, done, text);
}
static void expect_refused(const char *body, bool thinks, const char *text) {
    cr_expect_neq(allowed_bytes(body, thinks, text), SIZE_MAX, "%s: '%s'", body, text);
}

static void expect_error(const char *body, bool thinks, const char *param, const char *words) {
    sn_request *request = openai_request(&fixture, SN_REQUEST_CHAT, body);
    sn_constraint *c = NULL;
    sn_openai_error error = {0};
    cr_assert_not(new_constraint(request, thinks, &c, &error), "%s", body);
    cr_expect_eq(error.status, 400);
    cr_expect_str_eq(error.param, param);
    cr_expect(strstr(error.message, words), "%s", error.message);
    sn_request_free(&request);
}

/* -- logits -- */

Test(openai_constraint, biases_and_penalties_change_logits) {
    sn_request *request = openai_request(&fixture, SN_REQUEST_CHAT,
                                         "{" HI ",\"logit_bias\":{\"3\":-100},\"presence_penalty\":0.5,"
                                         "\"frequency_penalty\":0.25}");
    sn_constraint *c = constraint_of(request, false);
    float *logits = logits_after(c, (const int32_t[]){8, 9, 8}, 3);
    cr_expect(logits[3] == -100 && logits[7] == 0 && logits[8] == -1 && logits[9] == -0.75F && logits[10] == 0);
    free(logits);
    sn_constraint_free(&c);
    sn_request_free(&request);
    request = openai_request(&fixture, SN_REQUEST_CHAT, "{" HI ",\"tools\":[" GET("false") "]}");
    cr_expect_null(constraint_of(request, false));
    sn_request_free(&request);
}

/* -- forms -- */

Test(openai_constraint, a_schema_leaves_only_texts_that_it_allows) {
    for (int round = 0; round < 2; round++) { /* the second takes the compiled schema of the first */
        expect_allowed("{" HI FORM "}", false, "{\"one\": \"session\", \"two\": true}");
        expect_refused("{" HI FORM "}", false, "{\"one\": \"session\"}");
        expect_refused("{" HI FORM "}", false, "{\"one\": \"session\", \"two\": true} ok");
        expect_refused("{" HI FORM "}", false, "Sure: {\"one\": \"session\", \"two\": true}");
        expect_refused("{" HI FORM "}", false, "");
    }
}

/* Of the choices of a request the first one is compiled before the request waits for its turn. */
Test(openai_constraint, a_choice_may_be_compiled_when_its_turn_comes) {
    later = true;
    expect_allowed("{" HI FORM "}", false, "{\"one\": \"session\", \"two\": true}");
    expect_refused("{" HI FORM "}", false, "{\"one\": \"other\", \"two\": true}");
    sn_request *request = openai_request(&fixture, SN_REQUEST_CHAT,
                                         "{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
                                         "{\"name\":\"n\",\"schema\":{\"not\":{}}}}}");
    sn_constraint *c = constraint_of(request, false);
    sn_openai_error error;
    cr_expect_not(sn_constraint_failed(c, &error));
    free(logits_after(c, NULL, 0));
    cr_expect(sn_constraint_failed(c, &error));
    cr_expect(strstr(error.message, "not"), "%s", error.message);
    sn_constraint_free(&c);
    sn_request_free(&request);
    later = false;
}

#define INTEGERS "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":%d}"

/* They are kept for requests to come, which name the same schema or never do. */
Test(openai_constraint, grammars_that_are_kept_take_a_bounded_memory) {
    enum { GRAMMARS = 12, ITEMS = 30000 };
    size_t largest = 0;
    for (int i = 0; i < GRAMMARS; i++) {
        char body[1024];
        snprintf(body, sizeof body,
                 "{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":"
                 "{\"type\":\"array\",\"prefixItems\":[" INTEGERS "," INTEGERS "," INTEGERS "]}}}}",
                 ITEMS + i, ITEMS, ITEMS);
        sn_request *request = openai_request(&fixture, SN_REQUEST_CHAT, body);
        sn_constraint *c = constraint_of(request, false);
        sn_constraint_free(&c);
        sn_request_free(&request);
        size_t kept = sn_served_model_kept_bytes(fixture.served);
        cr_expect_leq(kept, SN_KEPT_ANSWERS_BYTES_MAX);
        if (kept > largest) largest = kept;
    }
    cr_expect_gt(largest, SN_KEPT_ANSWERS_BYTES_MAX / 2, "some are kept: %zu bytes", largest);
}

Test(openai_constraint, a_thought_comes_before_the_form) {
    expect_allowed("{" HI FORM "}", true, "Well, {\"\n</think>\n\n{\"one\": \"session\", \"two\": true}");
    expect_allowed("{" HI FORM "}", true, "</think>{\"one\": \"session\", \"two\": false}");
    expect_refused("{" HI FORM "}", true, "{\"one\": \"session\", \"two\": true}");
    expect_refused("{" HI FORM "}", true, "Well</think>\n\nSo {\"one\": \"session\", \"two\": true}");
    expect_refused("{" HI FORM "}", true, "Well, I think");
}

Test(openai_constraint, a_schema_that_cannot_be_kept_is_refused) {
    expect_error("{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":"
                 "{\"type\":\"string\",\"maxLength\":100000}}}}",
                 false, "response_format.json_schema.schema", "above 32768");
    expect_error("{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":"
                 "{\"not\":{}}}}}",
                 false, "response_format.json_schema.schema", "not");
}

/* -- calls -- */

#define REQUIRED "{" HI ",\"tools\":[" GET("true") "," PUT("false") "],\"tool_choice\":\"required\"}"
#define NAMED                                                                                                          \
    "{" HI ",\"tools\":[" GET("true") "," PUT("false") "],\"tool_choice\":{\"type\":\"function\",\"function\":"        \
                                                       "{\"name\":\"put\"}}}"

Test(openai_constraint, a_tool_that_must_be_called_is_called) {
    expect_allowed(REQUIRED, false, CALL("get", "{\"key\": \"b\"}"));
    expect_allowed(REQUIRED, false, CALL("put", "{\"done\": false}"));
    expect_refused(REQUIRED, false, CALL("put", "{\"done\": 1}"));
    expect_refused(REQUIRED, false, CALL("set", "{}"));
    expect_refused(REQUIRED, false, "I will." CALL("put", "{\"done\": false}"));
    expect_refused(NAMED, false, CALL("get", "{\"key\": \"b\"}"));
    expect_allowed(NAMED, false, CALL("put", "{}"));
    expect_refused(NAMED, false, CALL("put", "{}") CALL("put", "{}"));
    expect_allowed(NAMED, true, "It is \"put\", not " CALL("get", "{}") ".\n</think>\n\n" CALL("put", "{}"));
    expect_refused(NAMED, true, CALL("put", "{}"));
}

#define AUTO(strict, more) "{" HI ",\"tools\":[" GET(strict) "," PUT("false") "]" more "}"

/* The template is rendered with them for each tool, before the request waits for its turn. */
Test(openai_constraint, variables_of_a_template_are_bounded_beside_forced_calls) {
    enum { SIZE = 17 << 10 };
    static char body[SIZE + 1024], text[SIZE];
    memset(text, 'a', sizeof text);
    text[SIZE - 1] = 0;
    snprintf(body, sizeof body,
             "{" HI ",\"tools\":[" GET("false") "],\"tool_choice\":\"%s\",\"chat_template_kwargs\":{\"a\":\"%s\"}}",
             "required", text);
    expect_error(body, false, "chat_template_kwargs", "make them smaller");
}

Test(openai_constraint, a_strict_tool_is_called_as_its_schema_says) {
    const char *body = AUTO("true", "");
    expect_allowed(body, false, "No call, {\"name\": \"x\"}, 1 < 2, <tool_cal> é.");
    expect_allowed(body, false, "");
    expect_allowed(body, false, "I look.\n" CALL("get", "{\"key\": \"a\"}"));
    expect_allowed(body, false, CALL("get", "{\"key\": \"a\"}") CALL("put", "{\"done\": true}"));
    expect_refused(body, false, "I look.\n" CALL("get", "{\"key\": \"c\"}"));
    expect_refused(body, false, "I look.\n" CALL("set", "{}"));
    expect_refused(body, false, CALL("get", "{\"key\": \"a\"}") CALL("put", "{\"done\": 3}"));
    expect_refused(body, false, "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"key\": \"a\"");
    expect_refused(AUTO("true", ",\"parallel_tool_calls\":false"), false,
                   CALL("get", "{}") CALL("put", "{\"done\": true}"));
    expect_error("{" HI ",\"tools\":[" TOOL("odd", "\"a\":{\"not\":{}}", "true") "]}", false, "tools", "not");
}

Test(openai_constraint, a_strict_tool_may_have_a_long_schema) {
    enum { LONG = 20000 };
    static char body[LONG + 1024], text[LONG + 1];
    memset(text, 'a', LONG);
    snprintf(body, sizeof body,
             "{" HI ",\"tools\":[" TOOL("get", "\"key\":{\"description\":\"%s\",\"enum\":[\"a\"]}", "true") "]}", text);
    expect_allowed(body, false, CALL("get", "{\"key\": \"a\"}"));
    expect_refused(body, false, CALL("get", "{\"key\": \"b\"}"));
}

Test(openai_constraint, a_thought_may_speak_of_calls) {
    const char *body = AUTO("true", "");
    expect_allowed(body, false, "<think>\nOr <tool_call>?\n</think>\n\nNo.");
    expect_refused(body, false, "<think>\nOr?\n</think>\n\n<tool_call>?");
    expect_allowed(body, true, "Or <tool_call>?\n</think>\n\n" CALL("get", "{\"key\": \"a\"}"));
    expect_refused(body, true, "Or?\n</think>\n\n" CALL("get", "{\"key\": \"c\"}"));
}

Test(openai_constraint, with_a_form_and_tools_the_answer_is_one_or_the_other) {
    const char *body = AUTO("false", FORM);
    expect_allowed(body, false, "{\"one\": \"session\", \"two\": true}");
    expect_allowed(body, false, CALL("get", "{\"key\": \"a\"}"));
    expect_refused(body, false, CALL("get", "{\"key\": \"c\"}"));
    expect_refused(body, false, "Text.");
    expect_allowed(body, true, "Hm.</think>\n\n" CALL("get", "{\"key\": \"a\"}"));
    expect_allowed(AUTO("false", FORM ",\"tool_choice\":\"none\""), false, "{\"one\": \"session\", \"two\": true}");
}

/* -- other templates -- */

static void with_template(const char *text) {
    openai_fixture_close(&fixture);
    fixture = openai_fixture_open(text);
}

/* A call is an object that is the whole answer, as with Llama 3. */
Test(openai_constraint, a_brace_begins_a_call_where_no_mark_does) {
    with_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}{\"name\": \""
                  "{{ m.tool_calls[0].function.name }}\", \"parameters\": {{ m.tool_calls[0].function.arguments | "
                  "tojson }}}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
                  "{% endif %}");
    const char *body = AUTO("true", "");
    expect_allowed(body, false, "{\"name\": \"get\", \"parameters\": {\"key\": \"a\"}}");
    expect_refused(body, false, "{\"name\": \"get\", \"parameters\": {\"key\": \"c\"}}");
    expect_allowed(body, false, "Text with {\"name\": 3}.");
    expect_refused(body, false, "<think>a</think>\n{\"name\": 3}");
    expect_allowed(body, false, "<think>a {</think>\n{\"name\": \"put\", \"parameters\": {}}");
    expect_refused(body, true, "a</think>\n{\"name\": 3}");
    expect_refused(body, false, "{\"name\": \"get\", \"parameters\": {}}\n{\"name\": \"get\", \"parameters\": {}}");
}

/* Arguments one by one, as with Qwen 3 Coder. */
Test(openai_constraint, what_a_template_does_not_show_is_refused) {
    with_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
        "<tool_call><function={{ c.function.name }}>{% for k, v in c.function.arguments | items %}"
        "<parameter={{ k }}>\n{{ v }}\n</parameter>{% endfor %}</function></tool_call>{% endfor %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
    expect_error(AUTO("true", ""), false, "tools", "leave out 'strict'");
    expect_error(AUTO("false", FORM), false, "response_format", "leave out the tools");
    expect_error(REQUIRED, false, "tool_choice", "cannot be forced");
}
