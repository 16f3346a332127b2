/* Requests of the OpenAI API: what each field becomes, and which bodies are refused, with which sentence and field. */
#include "gateway/openai/openapi.h"
#include "gateway/openai/request.h"
#include "tests/support/openai_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const sn_request_limits limits = OPENAI_LIMITS(100, 64);

static sn_request *parse(sn_request_kind kind, const char *body) {
    sn_request *request = NULL;
    sn_openai_error error = {0};
    cr_assert(sn_request_parse(kind, body, strlen(body), &limits, &request, &error), "%s: %s", body, error.message);
    return request;
}

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

Test(openai_request, a_chat_has_the_defaults_of_the_api) {
    sn_request *r = parse(SN_REQUEST_CHAT, "{\"model\":\"other\"," HI "}");
    cr_expect_str_eq(r->model, "other");
    cr_expect_str_eq(r->chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"variables\":{}}");
    cr_expect_eq(r->chat_len, strlen(r->chat));
    cr_expect(!r->tools && r->tool_choice == SN_TOOLS_NONE && !r->schema && !r->stream);
    cr_expect(r->n == 1 && r->max_tokens == -1 && r->seed == -1 && r->logprobs == -1 && r->top_k == 0);
    cr_expect(r->temperature == 1 && r->top_p == 1 && r->min_p == 0 && r->repeat_penalty == 1);
    cr_expect_eq(sn_request_choices(r), 1);
    sn_request_free(&r);
}

Test(openai_request, every_setting_of_the_sampling_is_taken) {
    sn_request *r = parse(SN_REQUEST_CHAT,
                          "{" HI ",\"n\":2,\"stop\":[\"a\",\"b\"],\"seed\":-2,\"temperature\":0,\"top_p\":0.5,"
                          "\"top_k\":-1,\"min_p\":0.1,\"repetition_penalty\":1.1,\"presence_penalty\":-2,"
                          "\"frequency_penalty\":2,\"logit_bias\":{\"5\":-100,\"7\":1.5},\"logprobs\":true,"
                          "\"top_logprobs\":3,\"max_completion_tokens\":5,\"ignore_eos\":true,\"stream\":true,"
                          "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},\"user\":\"u\","
                          "\"metadata\":{\"a\":\"b\"},\"store\":false,\"service_tier\":\"auto\"}");
    cr_expect(r->n == 2 && r->n_stops == 2 && !strcmp(r->stops[1], "b") && r->seed == (INT64_C(1) << 52) - 2);
    cr_expect(r->temperature == 0 && r->top_p == 0.5 && r->top_k == 0 && r->min_p == 0.1);
    cr_expect(r->repeat_penalty == 1.1 && r->presence_penalty == -2 && r->frequency_penalty == 2);
    cr_expect(r->n_biases == 2 && r->biases[0].id == 5 && r->biases[0].bias == -100 && r->biases[1].bias == 1.5F);
    cr_expect(r->logprobs == 3 && r->max_tokens == 5 && r->ignore_eos);
    cr_expect(r->stream && r->include_usage && r->continuous_usage);
    swarm_options *options = NULL;
    sn_openai_error error;
    for (size_t choice = 0; choice < 2; choice++) {
        cr_expect(sn_request_generation(r, choice, 7, &options, &error), "%s", error.message);
        swarm_options_free(options);
    }
    sn_request_free(&r);
    cr_assert_null(r);
}

Test(openai_request, a_seed_of_minus_one_is_random) {
    sn_request *r = parse(SN_REQUEST_CHAT, "{" HI ",\"seed\":-1}");
    cr_expect_eq(r->seed, -1);
    sn_request_free(&r);
    r = parse(SN_REQUEST_CHAT, "{" HI ",\"seed\":18446744073709551615}");
    cr_expect_eq(r->seed, (INT64_C(1) << 52) - 1);
    sn_request_free(&r);
}

Test(openai_request, what_a_request_does_not_say_is_as_the_server_samples) {
    sn_request_limits own = limits;
    sn_request *r = NULL;
    sn_openai_error error = {0};
    own.sampling = (sn_request_sampling){0.6, 0.95, 0.01, 1.1, 20};
    const char *body = "{" HI ",\"top_p\":0.5}";
    cr_assert(sn_request_parse(SN_REQUEST_CHAT, body, strlen(body), &own, &r, &error), "%s", error.message);
    cr_expect(r->temperature == 0.6 && r->top_p == 0.5 && r->min_p == 0.01 && r->repeat_penalty == 1.1);
    cr_expect_eq(r->top_k, 20);
    sn_request_free(&r);
}

static void expect_ignored(sn_request_kind kind, const char *body, const char *names) {
    sn_request *r = parse(kind, body);
    char all[400] = "";
    for (size_t i = 0; i < r->n_ignored; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " " : "", r->ignored[i]);
    cr_expect_str_eq(all, names, "%s ignores %s", body, all);
    sn_request_free(&r);
}

Test(openai_request, what_changes_no_answer_is_ignored_and_noted) {
    expect_ignored(SN_REQUEST_CHAT,
                   "{" HI
                   ",\"cache_prompt\":true,\"num_ctx\":4096,\"keep_alive\":\"5m\",\"min_tokens\":0,\"store\":true,"
                   "\"typical_p\":1,\"skip_special_tokens\":true,\"user\":null,\"stream\":true,\"stream_options\":"
                   "{\"include_obfuscation\":true},\"prediction\":{\"type\":\"content\"}}",
                   "cache_prompt num_ctx keep_alive store prediction include_obfuscation");
    expect_ignored(SN_REQUEST_CHAT,
                   "{" HI ",\"mirostat\":0,\"mirostat_tau\":5,\"dry_multiplier\":0,\"dry_base\":1.75,"
                   "\"dry_sequence_breakers\":[\"x\"],\"xtc_probability\":0,\"xtc_threshold\":0.1}",
                   "mirostat_tau dry_base dry_sequence_breakers xtc_threshold");
    expect_ignored(
        SN_REQUEST_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"id\":\"m1\",\"timestamp\":1,\"tool_calls\":[]}],"
        "\"tools\":[{\"type\":\"function\",\"cache_control\":{\"type\":\"ephemeral\"},\"function\":{\"name\":\"f\"}},"
        "{\"type\":\"web_search\"},{\"type\":\"web_search\"}]}",
        "id timestamp cache_control web_search");
    expect_ignored(
        SN_REQUEST_RESPONSE,
        "{\"input\":[{\"role\":\"user\",\"content\":\"x\",\"phase\":\"p\"},{\"type\":\"web_search_call\",\"id\":"
        "\"w\"}],\"include\":[\"reasoning.encrypted_content\"],\"store\":true,\"client_metadata\":{\"a\":1},"
        "\"reasoning\":{\"effort\":\"low\",\"summary\":\"detailed\"},\"truncation\":\"auto\",\"max_tool_calls\":3,"
        "\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"custom\",\"name\":\"patch\"}]}",
        "store client_metadata max_tool_calls phase web_search_call custom reasoning.encrypted_content summary");
}

Test(openai_request, a_model_is_called_by_its_name_and_what_clients_make_of_it) {
    static const char *const names[] = {"small",        "Small",          "small.gguf",
                                        "openai/small", "a/b/small.GGUF", "small:latest"};
    char body[200];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(body, sizeof body, "{" HI ",\"model\":\"%s\"}", names[i]);
        sn_request *r = parse(SN_REQUEST_CHAT, body);
        cr_expect_str_eq(r->model, "small");
        sn_request_free(&r);
    }
}

Test(openai_request, integers_of_any_size_keep_their_digits) {
#define WIDE "123456789012345678901234567890"
    sn_request *r =
        parse(SN_REQUEST_CHAT,
              "{\"messages\":[{\"role\":\"user\",\"content\":\"" WIDE "\"},{\"role\":\"assistant\",\"tool_calls\":[{"
              "\"id\":\"i\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":-" WIDE
              "}\"}}]}],\"seed\":18446744073709551615,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
              "\"parameters\":{\"maximum\":18446744073709551615}}}]}");
    cr_expect_eq(r->seed, (INT64_C(1) << 52) - 1);
    cr_expect(strstr(r->chat, "\"content\":\"" WIDE "\""), "%s", r->chat);
    cr_expect(strstr(r->chat, "\"arguments\":{\"x\":-" WIDE "}"), "%s", r->chat);
    cr_expect(strstr(r->tools, "{\"maximum\":18446744073709551615}"), "%s", r->tools);
    sn_request_free(&r);
    r = parse(SN_REQUEST_CHAT, "{" HI ",\"seed\":9223372036854775808}");
    cr_expect_eq(r->seed, 0);
    sn_request_free(&r);
}

Test(openai_request, a_field_that_is_null_is_a_missing_one) {
    sn_request *r = parse(SN_REQUEST_CHAT, "{" HI ",\"temperature\":null,\"stop\":null,\"tools\":null,\"n\":null}");
    cr_expect(r->temperature == 1 && !r->n_stops && r->n == 1);
    sn_request_free(&r);
}

/* -- conversations -- */

static void expect_chat(sn_request_kind kind, const char *body, const char *chat) {
    sn_request *r = parse(kind, body);
    cr_expect_str_eq(r->chat, chat, "%s\nbecomes %s", body, r->chat);
    sn_request_free(&r);
}

Test(openai_request, messages_are_written_as_templates_expect_them) {
    expect_chat(
        SN_REQUEST_CHAT,
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"name\":\"n\",\"content\":"
        "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\","
        "\"content\":null,\"refusal\":null,\"annotations\":[],\"parsed\":{\"x\":1},\"audio\":null,\"function_call\":"
        "null,"
        "\"reasoning_content\":\"r\",\"tool_calls\":[{\"id\":\"i\",\"type\":\"function\",\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\",\"parsed_arguments\":{\"x\":1}}}]},{\"role\":\"tool\",\"tool_"
        "call_id\":\"i\","
        "\"content\":\"t\"}]}",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"a\\nb\",\"name\":"
        "\"n\"},{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\",\"tool_calls\":[{\"id\":\"i\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},{\"role\":\"tool\","
        "\"content\":\"t\",\"tool_call_id\":\"i\"}],\"variables\":{}}");
    expect_chat(SN_REQUEST_CHAT, "{" HI ",\"enable_thinking\":false,\"verbosity\":\"low\"}",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"variables\":{\"enable_thinking\":false,"
                "\"verbosity\":\"low\"}}");
    expect_chat(SN_REQUEST_CHAT, "{" HI ",\"thinking\":{\"type\":\"enabled\"}}",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"variables\":{\"enable_thinking\":true}}");
    expect_chat(SN_REQUEST_CHAT,
                "{" HI ",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"enable_thinking\":false}}",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"variables\":{\"enable_thinking\":false,"
                "\"reasoning_effort\":\"low\"}}");
}

Test(openai_request, items_of_a_response_become_messages) {
    expect_chat(SN_REQUEST_RESPONSE, "{\"input\":\"hi\",\"instructions\":\"be kind\"}",
                "{\"messages\":[{\"role\":\"system\",\"content\":\"be kind\"},{\"role\":\"user\",\"content\":\"hi\"}],"
                "\"variables\":{}}");
    expect_chat(
        SN_REQUEST_RESPONSE,
        "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"q\"}]},{\"type\":"
        "\"reasoning\",\"id\":\"rs\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t\"}]},{"
        "\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"
        "\"function_call_output\",\"call_id\":\"c\",\"output\":\"o\"},{\"type\":\"message\",\"id\":\"m\",\"status\":"
        "\"completed\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"a\",\"annotations\":"
        "[],\"logprobs\":[]}]},{\"role\":\"user\",\"content\":\"z\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\","
        "\"reasoning_content\":\"t\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":"
        "\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"o\"},{\"role\":"
        "\"assistant\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"z\"}],\"variables\":{}}");
}

/* -- tools and forms -- */

#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":{\"type\":\"object\"}}}"

Test(openai_request, tools_are_shown_unless_the_choice_is_none) {
    sn_request *r =
        parse(SN_REQUEST_CHAT, "{" HI ",\"tools\":[" TOOL("f") "," TOOL(
                                   "g") "],\"tool_choice\":{\"type\":"
                                        "\"function\",\"function\":{\"name\":\"g\"}},\"parallel_tool_calls\":false}");
    cr_expect_str_eq(r->tools, "[" TOOL("f") "," TOOL("g") "]");
    cr_expect(strstr(r->chat, "\"tools\":[{"));
    cr_expect(r->tool_choice == SN_TOOLS_NAMED && !strcmp(r->tool_name, "g") && !r->parallel_calls);
    sn_request_free(&r);
    r = parse(SN_REQUEST_CHAT, "{" HI ",\"tools\":[" TOOL("f") "],\"tool_choice\":\"none\"}");
    cr_expect(!r->tools && !strstr(r->chat, "\"tools\"") && r->tool_choice == SN_TOOLS_NONE);
    sn_request_free(&r);
    r = parse(
        SN_REQUEST_RESPONSE,
        "{\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{},"
        "\"strict\":true}],\"tool_choice\":\"required\"}");
    cr_expect_str_eq(r->tools,
                     "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{}}}]");
    cr_expect(r->tool_choice == SN_TOOLS_REQUIRED && r->parallel_calls);
    cr_expect(json_is_true(json_object_get(json_array_get(r->functions, 0), "strict")));
    sn_request_free(&r);
}

static void expect_schema(sn_request_kind kind, const char *body, const char *schema) {
    sn_request *r = parse(kind, body);
    char *text = json_dumps(r->schema, JSON_COMPACT | JSON_ENCODE_ANY);
    cr_expect_str_eq(text ? text : "none", schema);
    free(text);
    sn_request_free(&r);
}

Test(openai_request, the_form_of_an_answer_is_a_schema) {
    expect_schema(SN_REQUEST_CHAT, "{" HI ",\"response_format\":{\"type\":\"text\"}}", "none");
    expect_schema(SN_REQUEST_CHAT, "{" HI ",\"response_format\":{\"type\":\"json_object\"}}", "{\"type\":\"object\"}");
    expect_schema(SN_REQUEST_CHAT,
                  "{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":true}}}", "true");
    expect_schema(SN_REQUEST_CHAT,
                  "{" HI
                  ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,"
                  "\"schema\":{\"type\":\"null\"}}}}",
                  "{\"type\":\"null\"}");
    expect_schema(SN_REQUEST_RESPONSE,
                  "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":true}}}",
                  "true");
}

/* -- prompts -- */

Test(openai_request, a_prompt_is_a_text_or_ids_or_several) {
    sn_request *r = parse(SN_REQUEST_COMPLETION, "{\"prompt\":\"a\",\"n\":2}");
    cr_expect(r->n_prompts == 1 && !strcmp(r->prompts->text, "a") && r->max_tokens == 16 && !r->prompts->ids);
    cr_expect_eq(sn_request_choices(r), 2);
    sn_request_free(&r);
    r = parse(SN_REQUEST_COMPLETION, "{\"prompt\":[1,99],\"echo\":true,\"logprobs\":1,\"max_tokens\":0}");
    cr_expect(r->n_prompts == 1 && r->prompts->n == 2 && r->prompts->ids[1] == 99 && !r->prompts->text);
    cr_expect(r->echo && r->logprobs == 1 && r->max_tokens == 0);
    sn_request_free(&r);
    r = parse(SN_REQUEST_EMBEDDING, "{\"input\":[[3],[4,5]],\"encoding_format\":\"base64\",\"dimensions\":8}");
    cr_expect(r->n_prompts == 2 && r->prompts[1].n == 2 && r->prompts[1].ids[0] == 4 && r->base64);
    sn_request_free(&r);
    r = parse(SN_REQUEST_EMBEDDING, "{\"input\":[\"a\",\"\"]}");
    cr_expect(r->n_prompts == 2 && r->prompts[1].text && !r->prompts[1].len && !r->base64);
    sn_request_free(&r);
}

Test(openai_request, texts_are_tokenized_and_ids_detokenized) {
    sn_request *r = parse(SN_REQUEST_TOKENIZE, "{\"content\":\"ab\",\"add_special\":true,\"with_pieces\":true}");
    cr_expect(r->prompts->len == 2 && r->add_special && !r->parse_special && r->with_pieces);
    sn_request_free(&r);
    r = parse(SN_REQUEST_DETOKENIZE, "{\"tokens\":[1,2,3]}");
    cr_expect(r->prompts->n == 3 && r->prompts->ids[2] == 3);
    sn_request_free(&r);
    r = parse(SN_REQUEST_DETOKENIZE, "{\"tokens\":[]}");
    cr_expect(r->n_prompts == 1 && !r->prompts->n);
    sn_request_free(&r);
}

Test(openai_request, a_prompt_leaves_room_for_an_answer) {
    sn_openai_error error;
    sn_request *r = parse(SN_REQUEST_CHAT, "{" HI ",\"max_tokens\":64000}");
    cr_expect(sn_request_check_length(r, 63, &limits, &error)); /* the answer ends with the context */
    cr_expect_not(sn_request_check_length(r, 64, &limits, &error));
    cr_expect_str_eq(error.code, "context_length_exceeded");
    cr_expect_not(sn_request_check_length(r, SIZE_MAX, &limits, &error));
    cr_expect_not(sn_request_check_length(r, 0, &limits, &error));
    sn_request_free(&r);
    r = parse(SN_REQUEST_CHAT, "{" HI "}");
    cr_expect(sn_request_check_length(r, 63, &limits, &error));
    cr_expect_not(sn_request_check_length(r, 64, &limits, &error));
    cr_expect(strstr(error.message, "64 tokens") && strstr(error.message, "holds 64"), "%s", error.message);
    sn_request_free(&r);
    r = parse(SN_REQUEST_COMPLETION, "{\"prompt\":\"a\",\"max_tokens\":0,\"echo\":true}");
    cr_expect(sn_request_check_length(r, 64, &limits, &error));
    sn_request_free(&r);
}

/* -- what is refused -- */

typedef struct refused_case {
    sn_request_kind kind;
    const char *body, *param, *word;
} refused_case;

#define CHAT(rest)     SN_REQUEST_CHAT, "{" HI "," rest "}"
#define MESSAGES(list) SN_REQUEST_CHAT, "{\"messages\":" list "}"
#define COMPLETE(rest) SN_REQUEST_COMPLETION, "{\"prompt\":\"a\"," rest "}"
#define RESPOND(rest)  SN_REQUEST_RESPONSE, "{\"input\":\"a\"," rest "}"
#define ITEMS(list)    SN_REQUEST_RESPONSE, "{\"input\":" list "}"

static const refused_case cases[] = {
    {SN_REQUEST_CHAT, "", "", "is empty"},
    {SN_REQUEST_CHAT, " \n", "", "is empty"},
    {SN_REQUEST_CHAT, "{", "", "not JSON"},
    {SN_REQUEST_CHAT, "[]", "body", "an object"},
    {SN_REQUEST_CHAT, "{}", "messages", "missing"},
    {SN_REQUEST_CHAT, "{\"a\":1,\"a\":1}", "", "duplicate"},
    {SN_REQUEST_CHAT, "{\"messages\":\"\\u0000\"}", "", "not JSON"},
    {SN_REQUEST_CHAT, "{\"n\":1e999}", "", "not JSON"},
    {CHAT("\"n\":NaN"), "", "not JSON"},
    {CHAT("\"colour\":1"), "colour", "not known"},
    {CHAT("\"model\":\"big\""), "model", "not served"},
    {CHAT("\"model\":5"), "model", "a string"},
    {CHAT("\"n\":0"), "n", "from 1"},
    {CHAT("\"n\":5"), "n", "4 choices"},
    {CHAT("\"n\":1.0"), "n", "an integer"},
    {CHAT("\"n\":9223372036854775807"), "n", "from 1"},
    {CHAT("\"temperature\":2.1"), "temperature", "from 0 to 2"},
    {CHAT("\"temperature\":-0.1"), "temperature", "from 0 to 2"},
    {CHAT("\"temperature\":\"1\""), "temperature", "a number"},
    {CHAT("\"top_p\":1.5"), "top_p", "from 0 to 1"},
    {CHAT("\"top_k\":-2"), "top_k", "from -1"},
    {CHAT("\"min_p\":2"), "min_p", "from 0"},
    {CHAT("\"presence_penalty\":3"), "presence_penalty", "from -2"},
    {CHAT("\"frequency_penalty\":-3"), "frequency_penalty", "from -2"},
    {CHAT("\"repeat_penalty\":0"), "repeat_penalty", "from 0.01"},
    {CHAT("\"repeat_penalty\":1,\"repetition_penalty\":1"), "repetition_penalty", "one setting"},
    {CHAT("\"max_tokens\":0"), "max_tokens", "1 or more"},
    {CHAT("\"n\":99999999999999999999"), "n", "from 1"},
    {CHAT("\"temperature\":99999999999999999999"), "temperature", "from 0 to 2"},
    {CHAT("\"user\":\"\\u0000\",\"seed\":99999999999999999999"), "", "not JSON"},
    {CHAT("\"model\":99999999999999999999"), "model", "a string"},
    {CHAT("\"logit_bias\":99999999999999999999"), "logit_bias", "an object"},
    {MESSAGES("[{\"role\":\"user\",\"content\":99999999999999999999}]"), "messages[0].content", "a string"},
    {MESSAGES("[99999999999999999999]"), "messages[0]", "an object"},
    {CHAT("\"min_tokens\":2"), "min_tokens", "not supported"},
    {CHAT("\"typical_p\":0.5"), "typical_p", "'top_p'"},
    {CHAT("\"skip_special_tokens\":false,\"mirostat\":2"), "mirostat", "not supported"},
    {CHAT("\"thinking\":{\"type\":\"some\"}"), "thinking", "enabled"},
    {CHAT("\"enable_thinking\":\"yes\""), "enable_thinking", "true or false"},
    {CHAT("\"model\":\"mall\""), "model", "not served"},
    {CHAT("\"model\":\"/small/\""), "model", "not served"},
    {CHAT("\"max_tokens\":1,\"max_completion_tokens\":2"), "max_tokens", "one limit"},
    {CHAT("\"stop\":5"), "stop", "a string"},
    {CHAT("\"stop\":[\"\"]"), "stop[0]", "1 to 256"},
    {CHAT("\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"), "stop", "16 at most"},
    {CHAT("\"stream\":1"), "stream", "true or false"},
    {CHAT("\"stream_options\":{\"include_usage\":true}"), "stream_options", "needs 'stream'"},
    {CHAT("\"logit_bias\":{\"100\":1}"), "logit_bias.100", "from 0 to 99"},
    {CHAT("\"logit_bias\":{\"-1\":1}"), "logit_bias.-1", "from 0 to 99"},
    {CHAT("\"logit_bias\":{\"1x\":1}"), "logit_bias.1x", "from 0 to 99"},
    {CHAT("\"logit_bias\":{\"\":1}"), "logit_bias.", "from 0 to 99"},
    {CHAT("\"logit_bias\":{\"1\":101}"), "logit_bias.1", "-100 to 100"},
    {CHAT("\"top_logprobs\":2"), "top_logprobs", "needs 'logprobs'"},
    {CHAT("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "to 20"},
    {CHAT("\"functions\":[{}]"), "functions", "use 'tools'"},
    {CHAT("\"modalities\":[\"audio\"]"), "modalities", "text"},
    {CHAT("\"tools\":[5]"), "tools[0]", "an object"},
    {CHAT("\"tools\":[{\"type\":\"web\"}]"), "tools", "no function, but 'web'"},
    {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]"), "tools[0]", "letters"},
    {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"<|im_end|>\"}}]"), "tools[0]", "letters"},
    {CHAT("\"tools\":[" TOOL("f") "," TOOL("f") "]"), "tools[1]", "two tools"},
    {CHAT("\"tool_choice\":\"required\""), "tool_choice", "no tools"},
    {CHAT("\"tools\":[" TOOL("f") "],\"tool_choice\":\"some\""), "tool_choice", "must be"},
    {CHAT("\"tools\":[" TOOL("f") "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}"),
     "tool_choice", "no tool"},
    {CHAT("\"response_format\":{\"type\":\"xml\"}"), "response_format.type", "must be"},
    {CHAT("\"response_format\":{\"type\":\"json_schema\"}"), "response_format.json_schema", "missing"},
    {CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":5}}"),
     "response_format.json_schema.schema", "a JSON schema"},
    {CHAT("\"response_format\":{\"type\":\"json_object\"},\"ignore_eos\":true"), "ignore_eos", "an end"},
    {MESSAGES("[]"), "messages", "0 messages"},
    {MESSAGES("[5]"), "messages[0]", "an object"},
    {MESSAGES("[{\"role\":\"x\",\"content\":\"\"}]"), "messages[0]", "role"},
    {MESSAGES("[{\"role\":\"user\"}]"), "messages[0]", "no content"},
    {MESSAGES("[{\"role\":\"user\",\"content\":5}]"), "messages[0].content", "a string"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]"),
     "messages[0].content[0]", "reads text"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]"), "messages[0].content[0]", "a text"},
    {MESSAGES("[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[{}]}]"), "messages[0]", "only the assistant"},
    {MESSAGES("[{\"role\":\"user\",\"content\":\"\",\"images\":[\"x\"]}]"), "messages[0].images", "reads text"},
    {MESSAGES("[{\"role\":\"assistant\",\"content\":\"\",\"prefix\":true}]"), "messages[0].prefix", "new message"},
    {MESSAGES("[{\"role\":\"tool\",\"content\":\"\"}]"), "messages[0]", "tool_call_id"},
    {MESSAGES("[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"i\"}]}]"), "messages[0].tool_calls[0]", "must be"},
    {SN_REQUEST_COMPLETION, "{}", "prompt", "missing"},
    {SN_REQUEST_COMPLETION, "{\"prompt\":[]}", "prompt", "0 entries"},
    {SN_REQUEST_COMPLETION, "{\"prompt\":[[]]}", "prompt[0]", "0 tokens"},
    {SN_REQUEST_COMPLETION, "{\"prompt\":[100]}", "prompt[0]", "from 0 to 99"},
    {SN_REQUEST_COMPLETION, "{\"prompt\":[-1]}", "prompt[0]", "from 0 to 99"},
    {SN_REQUEST_COMPLETION, "{\"prompt\":[1,\"a\"]}", "prompt[1]", "from 0 to 99"},
    {SN_REQUEST_COMPLETION, "{\"prompt\":[\"a\",1]}", "prompt[1]", "a string"},
    {SN_REQUEST_COMPLETION, "{\"prompt\":[\"a\",\"a\",\"a\"],\"n\":3}", "n", "8 at most"},
    {COMPLETE("\"suffix\":\"b\""), "suffix", "not supported"},
    {COMPLETE("\"best_of\":2"), "best_of", "not supported"},
    {COMPLETE("\"logprobs\":21"), "logprobs", "to 20"},
    {COMPLETE("\"messages\":[]"), "messages", "not known"},
    {SN_REQUEST_EMBEDDING, "{\"input\":\"a\",\"dimensions\":4}", "dimensions", "8 dimensions"},
    {SN_REQUEST_EMBEDDING, "{\"input\":\"a\",\"encoding_format\":\"int8\"}", "encoding_format", "float"},
    {RESPOND("\"previous_response_id\":\"x\""), "previous_response_id", "keeps no responses"},
    {RESPOND("\"background\":true"), "background", "not supported"},
    {RESPOND("\"truncation\":\"half\""), "truncation", "disabled"},
    {RESPOND("\"include\":[\"everything\"]"), "include", "logprobs"},
    {RESPOND("\"tools\":[{\"type\":\"web_search\"}]"), "tools", "but 'web_search'"},
    {RESPOND("\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":"
             "\"web_search\"}"),
     "tool_choice", "must be"},
    {SN_REQUEST_RESPONSE, "{}", "input", "a string"},
    {ITEMS("[]"), "input", "0 items"},
    {ITEMS("[{\"type\":\"item_reference\",\"id\":\"x\"}]"), "input[0]", "keeps no items"},
    {ITEMS("[{\"type\":\"local_shell_call\"}]"), "input[0]", "must be"},
    {ITEMS("[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]"), "input[0].content[0]", "reads text"},
    {ITEMS("[{\"type\":\"function_call\",\"name\":\"f\"}]"), "input[0]", "call_id"},
    {SN_REQUEST_TOKENIZE, "{}", "content", "missing"},
    {SN_REQUEST_TOKENIZE, "{\"content\":5}", "content", "a string"},
    {SN_REQUEST_DETOKENIZE, "{\"tokens\":[\"a\"]}", "tokens", "ids"},
    {SN_REQUEST_DETOKENIZE, "{\"tokens\":[1000]}", "tokens[0]", "from 0"},
};

Test(openai_request, what_cannot_be_done_is_refused_with_its_field) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const refused_case *c = &cases[i];
        sn_request *request = NULL;
        sn_openai_error error = {0};
        cr_assert_not(sn_request_parse(c->kind, c->body, strlen(c->body), &limits, &request, &error), "%s", c->body);
        cr_expect_null(request);
        cr_expect_eq(error.status, !strcmp(c->word, "not served") ? 404 : 400, "%s", c->body);
        cr_expect_str_eq(error.param, c->param, "%s: %s", c->body, error.message);
        cr_expect(strstr(error.message, c->word), "%s: %s", c->body, error.message);
    }
}

Test(openai_request, a_body_that_nests_too_deep_is_refused_before_it_is_read) {
    enum { DEEP = 100000 };
    static char body[2 * DEEP];
    sn_request *request = NULL;
    sn_openai_error error = {0};
    memset(body, '[', sizeof body);
    cr_assert_not(sn_request_parse(SN_REQUEST_CHAT, body, sizeof body, &limits, &request, &error));
    cr_expect(strstr(error.message, "nests more than 64"), "%s", error.message);
    char fits[200];
    snprintf(fits, sizeof fits, "{" HI ",\"user\":\"%.64s \\\"[[\"}", body); /* brackets in a string do not nest */
    sn_request *r = parse(SN_REQUEST_CHAT, fits);
    sn_request_free(&r);
}

/* A body of n bytes: `fill` between `begin` and `end`. */
static void expect_too_large(sn_request_kind kind, const char *begin, char fill, size_t n, const char *end,
                             const char *word) {
    const size_t at = strlen(begin), end_size = strlen(end) + 1;
    char *body = malloc(at + n + end_size);
    sn_request *request = NULL;
    sn_openai_error error = {0};
    memcpy(body, begin, at);
    memset(body + at, fill, n);
    memcpy(body + at + n, end, end_size);
    cr_assert_not(sn_request_parse(kind, body, strlen(body), &limits, &request, &error));
    cr_expect(strstr(error.message, word), "%s", error.message);
    cr_expect(error.status == 413 || !strcmp(error.code, "context_length_exceeded"));
    free(body);
}

Test(openai_request, a_body_of_too_many_values_is_refused_before_it_is_read) {
    expect_too_large(SN_REQUEST_CHAT, "{\"messages\":[1", ',', SN_REQUEST_VALUES_MAX, "1]}",
                     "more than 1000000 values");
    char text[100 + 2 * 64];
    snprintf(text, sizeof text, "{" HI ",\"user\":\"%.*s\"}", 100, ",,,,,,,,,,,,,,,,,,::::::::[[[[[[{{{{");
    sn_request *r = parse(SN_REQUEST_CHAT, text);
    sn_request_free(&r);
}

/* A body that has `unit` so many times in a list, between begin and end. */
static char *many(const char *begin, const char *unit, const char *end) {
    enum { TIMES = 10000 };
    const size_t begin_len = strlen(begin), len = strlen(unit), end_size = strlen(end) + 1;
    char *body = malloc(begin_len + TIMES * (len + 1) + end_size), *at = memcpy(body, begin, begin_len);
    at += begin_len;
    for (size_t i = 0; i < TIMES; i++) {
        memcpy(at, unit, len);
        at[len] = ',';
        at += len + 1;
    }
    memcpy(at - 1, end, end_size);
    return body;
}

static size_t counted(char *body, bool passing) {
    size_t more, all = sn_request_memory(body, strlen(body), &more);
    free(body);
    return passing ? more : all;
}

/* Sanitizers' allocators say 0. */
static size_t heap_bytes(void) { return mallinfo2().uordblks + mallinfo2().hblkhd; }

Test(openai_request, what_a_body_takes_when_it_is_read_is_counted_before) {
    static const struct {
        const char *unit, *in_arguments;
    } units[] = {{"{}", "{}"},
                 {"[]", "\\u005b\\u005d"},
                 {"1", "1"},
                 {"\"\"", "\\\"\\\""},
                 {"true", "true"},
                 {"{\"a\":1}", "{\\\"a\\\":1}"},
                 {"{\"a\":{\"b\":\"c\"}}", "{\\\"a\\\":{\\\"b\\\":\\\"c\\\"}}"},
                 {"[[[[1]]]]", "[[[[1]]]]"}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        char *body = many("{" HI ",\"metadata\":[", units[i].unit, "]}");
        const size_t before = heap_bytes();
        sn_request *r = parse(SN_REQUEST_CHAT, body);
        const size_t taken = heap_bytes() - before, all = counted(body, false);
        const size_t passing = counted(many("{\"arguments\":\"[", units[i].in_arguments, "]\"}"), true);
        cr_expect(taken <= all, "%s: %zu bytes, counted %zu", units[i].unit, taken, all);
        cr_expect(taken <= passing + (passing >> 3), "%s: %zu bytes, counted %zu", units[i].in_arguments, taken,
                  passing);
        cr_expect(!taken || all < 10 * taken, "%s: %zu bytes, counted %zu", units[i].unit, taken, all);
        sn_request_free(&r);
    }
}

static void put(sn_buf *body, const char *text) {
    sn_err error;
    cr_assert_eq(sn_buf_append(body, text, strlen(text), &error), SN_OK);
}

/* Two calls with so many numbers in all in their arguments, which are JSON within a text. */
static bool takes_arguments(sn_request_kind kind, size_t values) {
    const bool chat = kind == SN_REQUEST_CHAT;
    sn_buf body;
    sn_request *request = NULL;
    sn_openai_error error = {0};
    sn_buf_init(&body, values * 2 + 1024);
    put(&body, chat ? "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" : "{\"input\":[");
    for (int call = 0; call < 2; call++) {
        put(&body, call ? "," : "");
        put(&body, chat ? "{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\""
                        : "{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"");
        put(&body, "{\\\"l\\\":[0");
        for (size_t i = 1; i < values / 2; i++) put(&body, ",0");
        put(&body, chat ? "]}\"}}" : "]}\"}");
    }
    put(&body, chat ? "]}]}" : "]}");
    const bool good = sn_request_parse(kind, (const char *)body.data, body.len, &limits, &request, &error);
    cr_expect(good || (error.status == 413 && strstr(error.message, "arguments of calls")), "%s", error.message);
    sn_request_free(&request);
    sn_buf_fini(&body);
    return good;
}

Test(openai_request, arguments_of_too_many_values_are_refused_before_they_are_read) {
    const sn_request_kind kinds[] = {SN_REQUEST_CHAT, SN_REQUEST_RESPONSE};
    for (int i = 0; i < 2; i++) {
        cr_expect(takes_arguments(kinds[i], SN_REQUEST_ARGUMENT_VALUES_MAX - 100));
        cr_expect_not(takes_arguments(kinds[i], SN_REQUEST_ARGUMENT_VALUES_MAX + 100));
    }
}

Test(openai_request, a_text_that_no_context_holds_is_refused_before_it_is_tokenized) {
    enum { MIB = 1 << 20 };
    expect_too_large(SN_REQUEST_TOKENIZE, "{\"content\":\"", 'a', MIB + 1, "\"}", "1048577 bytes");
    expect_too_large(SN_REQUEST_COMPLETION, "{\"prompt\":\"", 'a', MIB + 65 * 64, "\"}", "shorten");
    expect_too_large(SN_REQUEST_EMBEDDING, "{\"input\":[\"", 'a', MIB + 65 * 64, "\"]}", "input[0]");
    expect_too_large(SN_REQUEST_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"", 'a', MIB + 65 * 64, "\"}]}",
                     "shorten");
}

Test(openai_request, tools_are_refused_where_the_template_has_none) {
    sn_request_limits without = limits;
    sn_request *request = NULL;
    sn_openai_error error = {0};
    without.no_tools = true;
    const char *body = "{" HI ",\"tools\":[" TOOL("f") "]}";
    cr_assert_not(sn_request_parse(SN_REQUEST_CHAT, body, strlen(body), &without, &request, &error));
    cr_expect_str_eq(error.param, "tools");
}

Test(openai_request, an_error_is_written_as_clients_read_it) {
    sn_openai_error error;
    cr_expect_not(sn_openai_fail(&error, 429, "queue_full", NULL, "come \xff back%s", "\xc3"));
    char *text = sn_openai_error_text(&error);
    cr_expect_str_eq(text, "{\"error\":{\"message\":\"come ? back?\",\"type\":\"rate_limit_error\",\"param\":null,"
                           "\"code\":\"queue_full\"}}");
    free(text);
}

/* -- the document of the routes -- */

Test(openai_request, the_document_says_what_requests_may_have) {
    char *text = sn_openapi_text();
    cr_assert(text);
    json_t *document = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const json_t *chat = json_object_get(json_object_get(document, "paths"), "/v1/chat/completions");
    for (const char *const *key =
             (const char *const[]){"post", "requestBody", "content", "application/json", "schema", "properties", NULL};
         *key; key++)
        chat = json_object_get(chat, *key);
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(chat, "max_tokens"), "minimum")), -1);
    cr_expect_eq(json_real_value(json_object_get(json_object_get(chat, "temperature"), "maximum")), 2);
    cr_expect(json_object_get(chat, "messages"));
    cr_expect_not(json_object_get(chat, "functions"), "a refused field is in the document");
    cr_expect_eq(json_object_size(json_object_get(document, "paths")), 12);
    json_decref(document);
    free(text);
}
