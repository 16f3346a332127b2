/* The input is a template, optionally behind a JSON object with its variables and a NUL byte. Small limits keep a run
 * short. Every refusal has a sentence that begins with a line, and no byte is written without a mark. */
#include "text/jinja/jinja.h"
#include "text/tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>

static json_t *default_variables(void) {
    return json_pack("{s:[{s:s, s:s}, {s:s, s:[{s:s, s:s}]}], s:n, s:b, s:s, s:i, s:f, s:[i,i,i]}", "messages", "role",
                     "user", "content", " na\xc3\xafve <|im_end|>\n", "role", "assistant", "content", "type", "text",
                     "text", "part", "tools", "add_generation_prompt", 1, "s", "a,b", "n", 3, "x", 2.5, "l", 3, 1, 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    json_t *variables = NULL;
    if (nul) {
        variables = json_loadb((const char *)data, (size_t)(nul - data), 0, NULL);
        size -= (size_t)(nul + 1 - data);
        data = nul + 1;
    }
    if (!json_is_object(variables)) {
        json_decref(variables);
        variables = default_variables();
    }
    sn_jinja *template;
    sn_jinja_text out = {0};
    sn_err err = {0};
    const struct tm now = {.tm_year = 125, .tm_mday = 1};
    const sn_jinja_input input = {.variables = variables,
                                  .now = &now,
                                  .limits = {.steps = 200000, .memory = 16 << 20, .output = 1 << 20, .depth = 300}};
    sn_status status = sn_jinja_parse((const char *)data, size, &template, &err);
    if (!status) {
        status = sn_jinja_render(template, &input, &out, &err);
        if (!status && (!sn_utf8_valid(out.text, out.len) || out.text[out.len])) abort();
        for (size_t i = 0; i < out.len; i++)
            if (out.marks[i] > 3) abort();
    }
    if (status && !err.text[0]) abort();
    sn_jinja_text_fini(&out);
    sn_jinja_free(&template);
    json_decref(variables);
    return 0;
}
