#include "model/chat.h"
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

static json_t *cases(void) {
    json_t *list = json_load_file(SN_FIXTURES "/tokenizer/chat.json", 0, NULL);
    cr_assert(json_array_size(list) > 0);
    return list;
}

static sn_chat read_chat(const char *template, const char *bos, const char *eos) {
    sn_chat chat;
    sn_err err;
    cr_assert_eq(sn_chat_read(&chat, template, strlen(template), bos, eos, &err), SN_OK);
    return chat;
}

/* The chat of the named template in the fixtures. */
static sn_chat named(const char *name) {
    json_t *list = cases(), *item;
    size_t i;
    json_array_foreach(list, i, item) {
        if (strcmp(text_of(item, "name"), name)) continue;
        sn_chat chat = read_chat(text_of(item, "template"), text_of(item, "bos"), text_of(item, "eos"));
        json_decref(list);
        return chat;
    }
    cr_log_error("no template %s", name);
    abort();
}

static char *render(const sn_chat *chat, const sn_chat_turn *turns, size_t n, bool first, bool open_answer) {
    sn_buf out;
    sn_err err;
    sn_buf_init(&out, 1 << 20);
    cr_assert_eq(sn_chat_render(chat, turns, n, first, open_answer, &out, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_buf_append(&out, "", 1, &err), SN_OK);
    return (char *)out.data;
}

static void refuses(const sn_chat *chat, const sn_chat_turn *turns, size_t n, bool first, const char *words) {
    sn_buf out;
    sn_err err = {0};
    sn_buf_init(&out, 1 << 20);
    cr_assert_eq(sn_chat_render(chat, turns, n, first, true, &out, &err), SN_REFUSED);
    cr_assert(strstr(err.text, words), "'%s' does not say '%s'", err.text, words);
    sn_buf_fini(&out);
}

Test(chat, renders_every_conversation_as_jinja_does) {
    json_t *list = cases(), *item;
    size_t i;
    json_array_foreach(list, i, item) {
        sn_chat_turn turns[TURNS];
        size_t n = turns_of(json_object_get(item, "turns"), turns);
        sn_chat chat = read_chat(text_of(item, "template"), text_of(item, "bos"), text_of(item, "eos"));
        char *text = render(&chat, turns, n, true, json_is_true(json_object_get(item, "open_answer")));
        cr_assert_str_eq(text, text_of(item, "text"), "case %zu, %s", i, text_of(item, "name"));
        free(text);
        sn_chat_fini(&chat);
    }
    json_decref(list);
}

/* What a session has seen (a first part, the answer with its end token, a second part) is what the template gives for
 * the whole conversation. */
static void continues(const char *name, const char *end) {
    sn_chat chat = named(name);
    sn_chat_turn turns[] = {{"user", "one"}, {"assistant", "two"}, {"user", "three"}};
    char *whole = render(&chat, turns, 3, true, true), *before = render(&chat, turns, 1, true, true);
    char *behind = render(&chat, turns + 2, 1, false, true);
    const char *space = chat.space_before_answer ? " " : "";
    size_t room = strlen(whole) + strlen(before) + strlen(behind) + 64;
    char *joined = malloc(room);
    snprintf(joined, room, "%s%stwo%s%s", before, space, end, behind);
    cr_assert_str_eq(joined, whole, "%s", name);
    free(whole);
    free(before);
    free(behind);
    free(joined);
    sn_chat_fini(&chat);
}

Test(chat, continues_a_conversation_where_it_stands) {
    continues("chatml", "<|im_end|>");
    continues("chatml_tools", "<|im_end|>");
    continues("chatml_thinking", "<|im_end|>");
    continues("llama3", "<|eot_id|>");
    continues("llama31", "<|eot_id|>");
    continues("mistral1", "</s>");
    continues("mistral3", "</s>");
    continues("nemo", "</s>");
    continues("llama2", " </s>");
    continues("gemma", "<end_of_turn>");
    continues("gemma3", "<end_of_turn>");
    continues("phi3", "<|end|>");
    continues("phi35", "<|end|>");
}

Test(chat, takes_the_default_system_turn_from_the_template) {
    sn_chat chat = named("chatml");
    cr_assert_str_eq(chat.default_system, "You answer Tim's questions.");
    sn_chat_fini(&chat);
    chat = named("chatml_thinking");
    cr_assert_null(chat.default_system);
    sn_chat_fini(&chat);
}

Test(chat, reads_escaped_and_plain_newlines_alike) {
    sn_chat chat = read_chat("{{ \"<|im_start|>system\nBe \\\"kind\\\".<|im_end|>\n\" }}", "", "");
    cr_assert_eq(chat.family, SN_CHAT_CHATML);
    cr_assert_str_eq(chat.default_system, "Be \"kind\".");
    sn_chat_fini(&chat);
}

Test(chat, refuses_what_is_no_conversation) {
    sn_chat chat = named("chatml");
    refuses(&chat, &(sn_chat_turn){"tool", "x"}, 1, true, "'tool' is no role");
    refuses(&chat, NULL, 0, true, "1 to");
    sn_chat_fini(&chat);
}

Test(chat, refuses_templates_it_does_not_know) {
    static const char *const unknown[] = {
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}",
        "{{ '<|im_start|>user<|im_sep|>' + x + '<|im_end|>' + '\\n' }}",
        "{{ '<|im_start|>' + strftime_now('%d') + '<|im_end|>\\n' }}",
        "{{ '<|im_start|>' + x + '<|im_end|>' }}",
        "{{ '[INST] <<SYS>>' + x + ' [/INST]' + y + eos_token }}",
        "{{ '<|start_header_id|>' }}{{ 'Cutting Knowledge Date: ' + cut + '<|eot_id|>' }}",
        "{{ '[SYSTEM_PROMPT] ' + x + '[INST]' + y + '[/INST]' + z + eos_token }}",
        "{{ bos_token + '[INST] ' + content + ' [/INST]' }}{% if not '<<SYS>>' in content %}{{ '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + x"
        "}}{{ ' ' + content + ' ' + eos_token }}",
        "{% set role = 'model' %}{{ '<start_of_turn>' + role + '\\n' + x + '<end_of_turn>\\n' }}{{ '<start_of_turn>model\\n' }}",
        "{{ '<|user|>\\n' + x + '<|end|>\\n' }}{{ '<|tool|>' }}{{ '<|assistant|>\\n' + x }}{{ '<|assistant|>\\n' }}",
        "{{ '<|user|>' + x + '<|end|>' + '<|assistant|>' }}",
        "{{ 'unfinished",
    };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        sn_chat chat = read_chat(unknown[i], "<s>", "</s>");
        cr_assert_eq(chat.family, SN_CHAT_UNKNOWN, "%s", unknown[i]);
        refuses(&chat, &(sn_chat_turn){"user", "x"}, 1, true, "none of ChatML");
        sn_chat_fini(&chat);
    }
    sn_chat none = read_chat("", "", "");
    refuses(&none, &(sn_chat_turn){"user", "x"}, 1, true, "no chat template");
    sn_chat_fini(&none);
}

Test(chat, holds_mistral_conversations_to_their_form) {
    sn_chat_turn system_first[] = {{"system", "s"}, {"user", "u"}}, twice[] = {{"user", "u"}, {"user", "u"}};
    sn_chat chat = named("mistral1");
    refuses(&chat, system_first, 2, true, "takes no system turn");
    refuses(&chat, twice, 2, true, "alternation");
    sn_chat_fini(&chat);
    chat = named("mistral3");
    refuses(&chat, system_first, 2, false, "only at the beginning");
    sn_chat_fini(&chat);
    chat =
        read_chat("{% set default_system_message = 'It is ' + today %}{{ '[SYSTEM_PROMPT]' + s + '[/SYSTEM_PROMPT]' }}"
                  "{{ '[INST]' + x + '[/INST]' }}{{ y + eos_token }}",
                  "<s>", "</s>");
    refuses(&chat, twice, 1, true, "needs a system turn");
    sn_chat_fini(&chat);
}

Test(chat, holds_other_conversations_to_their_form) {
    sn_chat_turn system_first[] = {{"system", "s"}, {"user", "u"}}, twice[] = {{"user", "u"}, {"user", "u"}};
    static const char *const names[] = {"gemma", "phi3", "llama2", "gemma3"};
    for (size_t i = 0; i < 4; i++) {
        sn_chat chat = named(names[i]);
        if (i < 2) refuses(&chat, system_first, 2, true, "takes no system turn");
        if (i != 1) refuses(&chat, twice, 2, true, "alternation");
        sn_chat_fini(&chat);
    }
}

Test(chat, stops_at_the_cap_of_the_output) {
    sn_chat chat = named("chatml");
    sn_buf out;
    sn_err err;
    sn_buf_init(&out, 20);
    cr_assert_eq(sn_chat_render(&chat, &(sn_chat_turn){"user", "x"}, 1, true, true, &out, &err), SN_REFUSED);
    sn_buf_fini(&out);
    sn_chat_fini(&chat);
}
