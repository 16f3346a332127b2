/* What tests of gateway/openai share: the limits of a small server, and a model that is GPT-2's tokenizer with a chat
 * template. */
#ifndef SN_TESTS_SUPPORT_OPENAI_FIXTURE_H
#define SN_TESTS_SUPPORT_OPENAI_FIXTURE_H

#include "gateway/openai/request.h"
#include "gateway/openai/served_model.h"

/* An initializer of sn_request_limits. */
#define OPENAI_LIMITS(n_vocab, n_context)                                                                              \
    {.models = (const char *const[]){"small", "other"},                                                                \
     .n_models = 2,                                                                                                    \
     .vocab = (n_vocab),                                                                                               \
     .context = (n_context),                                                                                           \
     .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1},                                                  \
     .width = 8,                                                                                                       \
     .n_max = 4,                                                                                                       \
     .prompts_max = 8,                                                                                                 \
     .choices_max = 8}

typedef struct openai_fixture {
    char *folder;
    swarm_model *model;
    sn_served_model *served;
} openai_fixture;
openai_fixture openai_fixture_open(const char *chat_template);
void openai_fixture_close(openai_fixture *f);
/* The request of a body that is right. */
sn_request *openai_request(const openai_fixture *f, sn_request_kind kind, const char *body);
/* The ids of a text in which special tokens are spelled out; freed with swarm_free. */
int32_t *openai_ids(const openai_fixture *f, const char *text, size_t *n);

extern const char openai_template[]; /* in the manner of Hermes and Qwen */

#endif
