#include "tests/support/openai_fixture.h"

#include "tests/support/api_fixture.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

const char openai_template[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}\n<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

openai_fixture openai_fixture_open(const char *chat_template) {
    openai_fixture f = {.folder = temp_folder()};
    swarm_options *options = api_options("parts", "tokenizer", NULL);
    json_t *config = json_pack("{s:s, s:s}", "eos_token", "<|im_end|>", "chat_template", chat_template);
    char *text = json_dumps(config, 0);
    cr_assert(text);
    copy_file(SN_FIXTURES "/tokenizer/gpt2", f.folder, "tokenizer.json");
    write_file(f.folder, "tokenizer_config.json", text, strlen(text));
    API(swarm_model_open(f.folder, options, &f.model, &error));
    REQUIRE(sn_served_model_new(f.model, "small", &f.served, &err));
    swarm_options_free(options);
    json_decref(config);
    free(text);
    return f;
}

void openai_fixture_close(openai_fixture *f) {
    sn_served_model_free(&f->served);
    swarm_model_close(f->model);
    temp_folder_remove(&f->folder);
}

sn_request *openai_request(const openai_fixture *f, sn_request_kind kind, const char *body) {
    const sn_request_limits limits = OPENAI_LIMITS(swarm_model_vocab(f->model), 256);
    sn_request *request = NULL;
    sn_openai_error error = {0};
    cr_assert(sn_request_parse(kind, body, strlen(body), &limits, &request, &error), "%s: %s", body, error.message);
    return request;
}

int32_t *openai_ids(const openai_fixture *f, const char *text, size_t *n) {
    int32_t *ids = NULL;
    API(swarm_model_tokenize(f->model, text, strlen(text), SWARM_TEXT_SPECIAL, &ids, n, &error));
    return ids;
}
