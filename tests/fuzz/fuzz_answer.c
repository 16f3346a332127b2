/* The input is a template, a NUL byte, and an answer. A longer beginning of the answer is read as a continuation of a
 * shorter one, and every text that is read is UTF-8. */
#include "text/chat/answer_format.h"

#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *message, const char *key) {
    const char *text = json_string_value(json_object_get(message, key));
    return text ? text : "";
}

static void expect_growth(const json_t *before, const json_t *after) {
    static const char *const keys[] = {"content", "reasoning_content"};
    for (int i = 0; i < 2; i++)
        if (strncmp(text_of(after, keys[i]), text_of(before, keys[i]), strlen(text_of(before, keys[i])))) abort();
    const json_t *a = json_object_get(before, "tool_calls"), *b = json_object_get(after, "tool_calls");
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *x = json_object_get(json_array_get(a, i), "function");
        const json_t *y = json_object_get(json_array_get(b, i), "function");
        if (strcmp(text_of(x, "name"), text_of(y, "name"))) abort();
        if (strncmp(text_of(y, "arguments"), text_of(x, "arguments"), strlen(text_of(x, "arguments")))) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    sn_chat_template *chat = NULL;
    sn_answer_format *format = NULL;
    sn_err err = {0};
    if (!nul || size > 4096) return 0;
    const sn_chat_source source = {
        .text = (const char *)data, .len = (size_t)(nul - data), .bos = "<s>", .eos = "</s>"};
    if (sn_chat_template_parse(&source, &chat, &err)) return 0;
    json_t *tools = json_pack("[{s:s, s:{s:s}}]", "type", "function", "function", "name", "f"), *before = NULL, *after;
    const char *text = (const char *)nul + 1;
    size_t len = size - source.len - 1;
    if (sn_answer_format_open(chat, &format, &err)) abort();
    for (size_t cut = 0; cut <= len; cut++) {
        if (cut < len && ((uint8_t)text[cut] & 0xC0) == 0x80) continue;
        const sn_answer answer = {.text = text, .len = cut, .ended = cut == len, .tools = tools};
        sn_status status = sn_answer_read(format, &answer, &after, &err);
        if (status && !*err.text) abort();
        if (status) break; /* it is not UTF-8 */
        if (before) expect_growth(before, after);
        json_decref(before);
        before = after;
    }
    json_decref(before);
    json_decref(tools);
    sn_answer_format_close(&format);
    sn_chat_template_close(&chat);
    return 0;
}
