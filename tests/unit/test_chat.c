#include "model/chat/chat_template.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 8 };

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static size_t turns_of(const json_t *list, sn_chat_turn out[TURNS]) {
    size_t n = json_array_size(list);
    cr_assert_leq(n, (size_t)TURNS);
    for (size_t i = 0; i < n; i++)
        out[i] = (sn_chat_turn){text_of(json_array_get(list, i), "role"), text_of(json_array_get(list, i), "content")};
    return n;
}

static json_t *load_cases(void) {
    json_t *list = json_load_file(SN_FIXTURES "/tokenizer/chat.json", 0, NULL);
    cr_assert(json_array_size(list) > 0);
    return list;
}

static sn_chat_template read_chat(const char *template, const char *bos, const char *eos) {
    sn_chat_template chat;
    sn_err err;
    cr_assert_eq(sn_chat_template_parse(&chat, &(sn_chat_source){template, strlen(template), bos, eos}, &err), SN_OK);
    return chat;
}

/* The chat template of the fixtures with this name. */
static sn_chat_template chat_of(const char *name) {
    json_t *list = load_cases(), *item;
    size_t i;
    json_array_foreach(list, i, item) {
        if (strcmp(text_of(item, "name"), name)) continue;
        sn_chat_template chat = read_chat(text_of(item, "template"), text_of(item, "bos"), text_of(item, "eos"));
        json_decref(list);
        return chat;
    }
    cr_log_error("no template %s", name);
    abort();
}

static char *render_chat(const sn_chat_template *chat, const sn_chat_turn *turns, size_t n, bool first,
                         bool add_generation_prompt) {
    sn_buf out;
    sn_err err;
    sn_buf_init(&out, 1 << 20);
    cr_assert_eq(sn_chat_template_render(chat, turns, n, first, add_generation_prompt, &out, &err), SN_OK, "%s",
                 err.text);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    return (char *)out.data;
}

static void expect_refused(const sn_chat_template *chat, const sn_chat_turn *turns, size_t n, bool first,
                           const char *error_part) {
    sn_buf out;
    sn_err err = {0};
    sn_buf_init(&out, 1 << 20);
    cr_assert_eq(sn_chat_template_render(chat, turns, n, first, true, &out, &err), SN_REFUSED);
    cr_assert(strstr(err.text, error_part), "'%s' does not say '%s'", err.text, error_part);
    sn_buf_fini(&out);
}

Test(chat, renders_every_conversation_as_jinja_does) {
    json_t *list = load_cases(), *item;
    size_t i;
    json_array_foreach(list, i, item) {
        sn_chat_turn turns[TURNS];
        size_t n = turns_of(json_object_get(item, "turns"), turns);
        sn_chat_template chat = read_chat(text_of(item, "template"), text_of(item, "bos"), text_of(item, "eos"));
        char *text = render_chat(&chat, turns, n, true, json_is_true(json_object_get(item, "open_answer")));
        cr_assert_str_eq(text, text_of(item, "text"), "case %zu, %s", i, text_of(item, "name"));
        free(text);
        sn_chat_template_fini(&chat);
    }
    json_decref(list);
}

/* The text of a session (a first part, the reply with its end token, a second part) is what the template gives for
 * the whole conversation. */
static void expect_continued(const char *name, const char *end) {
    sn_chat_template chat = chat_of(name);
    sn_chat_turn turns[] = {{"user", "one"}, {"assistant", "two"}, {"user", "three"}};
    char *whole = render_chat(&chat, turns, 3, true, true), *before = render_chat(&chat, turns, 1, true, true);
    char *after = render_chat(&chat, turns + 2, 1, false, true);
    const char *space = chat.space_before_answer ? " " : "";
    size_t capacity = strlen(whole) + strlen(before) + strlen(after) + 64;
    char *joined = malloc(capacity);
    snprintf(joined, capacity, "%s%stwo%s%s", before, space, end, after);
    cr_assert_str_eq(joined, whole, "%s", name);
    free(whole);
    free(before);
    free(after);
    free(joined);
    sn_chat_template_fini(&chat);
}

Test(chat, continues_a_conversation_after_its_last_turn) {
    expect_continued("chatml", "<|im_end|>");
    expect_continued("chatml_tools", "<|im_end|>");
    expect_continued("chatml_thinking", "<|im_end|>");
    expect_continued("llama3", "<|eot_id|>");
    expect_continued("llama31", "<|eot_id|>");
    expect_continued("mistral1", "</s>");
    expect_continued("mistral3", "</s>");
    expect_continued("nemo", "</s>");
    expect_continued("llama2", " </s>");
    expect_continued("gemma", "<end_of_turn>");
    expect_continued("gemma3", "<end_of_turn>");
    expect_continued("phi3", "<|end|>");
    expect_continued("phi35", "<|end|>");
}

Test(chat, takes_the_default_system_turn_from_the_template) {
    sn_chat_template chat = chat_of("chatml");
    cr_assert_str_eq(chat.default_system, "You answer Tim's questions.");
    sn_chat_template_fini(&chat);
    chat = chat_of("chatml_thinking");
    cr_assert_null(chat.default_system);
    sn_chat_template_fini(&chat);
}

Test(chat, reads_escaped_and_plain_newlines_alike) {
    sn_chat_template chat = read_chat("{{ \"<|im_start|>system\nBe \\\"kind\\\".<|im_end|>\n\" }}", "", "");
    cr_assert_eq(chat.family, SN_CHAT_CHATML);
    cr_assert_str_eq(chat.default_system, "Be \"kind\".");
    sn_chat_template_fini(&chat);
}

Test(chat, refuses_invalid_conversations) {
    sn_chat_template chat = chat_of("chatml");
    expect_refused(&chat, &(sn_chat_turn){"tool", "x"}, 1, true, "'tool' is no role");
    expect_refused(&chat, NULL, 0, true, "1 to");
    sn_chat_template_fini(&chat);
}

Test(chat, refuses_unknown_templates) {
    static const char *const unknown[] = {
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}",
        "{{ '<|im_start|>user<|im_sep|>' + x + '<|im_end|>' + '\\n' }}",
        "{{ '<|im_start|>' + strftime_now('%d') + '<|im_end|>\\n' }}",
        "{{ '<|im_start|>' + x + '<|im_end|>' }}",
        "{{ '[INST] <<SYS>>' + x + ' [/INST]' + y + eos_token }}",
        "{{ '<|start_header_id|>' }}{{ 'Cutting Knowledge Date: ' + cut + '<|eot_id|>' }}",
        "{{ '[SYSTEM_PROMPT] ' + x + '[INST]' + y + '[/INST]' + z + eos_token }}",
        "{{ bos_token + '[INST] ' + content + ' [/INST]' }}{% if not '<<SYS>>' in content %}{{ '<<SYS>>\\n' + "
        "system_message + '\\n<</SYS>>\\n\\n' + x"
        "}}{{ ' ' + content + ' ' + eos_token }}",
        "{% set role = 'model' %}{{ '<start_of_turn>' + role + '\\n' + x + '<end_of_turn>\\n' }}{{ "
        "'<start_of_turn>model\\n' }}",
        "{{ '<|user|>\\n' + x + '<|end|>\\n' }}{{ '<|tool|>' }}{{ '<|assistant|>\\n' + x }}{{ '<|assistant|>\\n' }}",
        "{{ '<|user|>' + x + '<|end|>' + '<|assistant|>' }}",
        "{{ 'unfinished",
    };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        sn_chat_template chat = read_chat(unknown[i], "<s>", "</s>");
        cr_assert_eq(chat.family, SN_CHAT_UNKNOWN, "%s", unknown[i]);
        expect_refused(&chat, &(sn_chat_turn){"user", "x"}, 1, true, "none of ChatML");
        sn_chat_template_fini(&chat);
    }
    sn_chat_template none = read_chat("", "", "");
    expect_refused(&none, &(sn_chat_turn){"user", "x"}, 1, true, "no chat template");
    sn_chat_template_fini(&none);
}

Test(chat, requires_the_mistral_turn_order) {
    sn_chat_turn system_first[] = {{"system", "s"}, {"user", "u"}}, twice[] = {{"user", "u"}, {"user", "u"}};
    sn_chat_template chat = chat_of("mistral1");
    expect_refused(&chat, system_first, 2, true, "takes no system turn");
    expect_refused(&chat, twice, 2, true, "alternation");
    sn_chat_template_fini(&chat);
    chat = chat_of("mistral3");
    expect_refused(&chat, system_first, 2, false, "only at the beginning");
    sn_chat_template_fini(&chat);
    chat =
        read_chat("{% set default_system_message = 'It is ' + today %}{{ '[SYSTEM_PROMPT]' + s + '[/SYSTEM_PROMPT]' }}"
                  "{{ '[INST]' + x + '[/INST]' }}{{ y + eos_token }}",
                  "<s>", "</s>");
    expect_refused(&chat, twice, 1, true, "needs a system turn");
    sn_chat_template_fini(&chat);
}

Test(chat, requires_the_turn_order_of_other_templates) {
    sn_chat_turn system_first[] = {{"system", "s"}, {"user", "u"}}, twice[] = {{"user", "u"}, {"user", "u"}};
    static const char *const names[] = {"gemma", "phi3", "llama2", "gemma3"};
    for (size_t i = 0; i < 4; i++) {
        sn_chat_template chat = chat_of(names[i]);
        if (i < 2) expect_refused(&chat, system_first, 2, true, "takes no system turn");
        if (i != 1) expect_refused(&chat, twice, 2, true, "alternation");
        sn_chat_template_fini(&chat);
    }
}

Test(chat, stops_at_the_cap_of_the_output) {
    sn_chat_template chat = chat_of("chatml");
    sn_buf out;
    sn_err err;
    sn_buf_init(&out, 20);
    cr_assert_eq(sn_chat_template_render(&chat, &(sn_chat_turn){"user", "x"}, 1, true, true, &out, &err), SN_REFUSED);
    sn_buf_fini(&out);
    sn_chat_template_fini(&chat);
}
