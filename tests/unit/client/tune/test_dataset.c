/* Conversations as training data: which tokens count. */
#include "client/tune/dataset.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char conversation[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"assistant\", \"content\": \"two\"}, "
    "{\"role\": \"user\", \"content\": \"three <|im_end|>\"}, {\"role\": \"assistant\", \"content\": \"four\"}]}\n";

/* The text of the tokens that count, with the template. */
static char *counted_text(const char *template) {
    json_t *root = fixture_json("qwen2", "tokenizer.json");
    char *folder = temp_folder(), *path = temp_path(folder, "data.jsonl");
    sn_tokenizer *t;
    sn_dataset *set;
    sn_err err;
    write_file(folder, "data.jsonl", conversation, strlen(conversation));
    cr_assert_eq(tokenizer_from_json(root, NULL, NULL, template, &t, &err), SN_OK, "%s", err.text);
    const sn_dataset_options options = {.max_tokens = 1000};
    cr_assert_eq(sn_dataset_read(path, t, &options, &set, &err), SN_OK, "%s", err.text);
    cr_assert_eq(set->n, 1);
    sn_buf text;
    sn_buf_init(&text, 1 << 20);
    for (size_t i = 0; i < set->at[0].n; i++)
        if (set->at[0].loss_mask[i]) cr_assert_eq(sn_tokenizer_decode(t, set->at[0].ids[i], true, &text, &err), SN_OK);
    cr_assert_eq(sn_buf_append(&text, "", 1, &err), SN_OK);
    sn_dataset_free(&set);
    sn_tokenizer_close(&t);
    json_decref(root);
    temp_folder_remove(&folder);
    free(path);
    return (char *)text.data;
}

static void expect_counted(const char *template, const char *expected) {
    char *text = counted_text(template);
    cr_assert_str_eq(text, expected, "%s gives %s", template, text);
    free(text);
}

#define OPEN "{% for m in messages %}<|im_start|>{{ m.role }}"
#define END  "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

Test(dataset, the_answers_of_a_conversation_count_and_nothing_else) {
    expect_counted(OPEN "\n" END, "two<|im_end|>\nfour<|im_end|>\n");
}

Test(dataset, what_a_template_writes_differently_later_does_not_count) {
    expect_counted(OPEN "\n{% if m.role == 'assistant' and loop.last and not add_generation_prompt %}"
                        "[thoughts]{% endif %}" END,
                   "[thoughts]four<|im_end|>\n");
}
