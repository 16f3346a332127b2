/* The fields of each kind of body. docs/SERVER.md explains them one by one. */
#include "gateway/openai/request_private.h"

#define AT(member)                offsetof(sn_body, member)
#define FLAG(name, member)        {name, SN_FIELD_FLAG, AT(member), 0, 0, NULL}
#define INT(name, member, lo, hi) {name, SN_FIELD_INT, AT(member), lo, hi, NULL}
#define NUM(name, member, lo, hi) {name, SN_FIELD_NUMBER, AT(member), lo, hi, NULL}
#define TEXT(name, member)        {name, SN_FIELD_TEXT, AT(member), 0, 0, NULL}
#define OBJECT(name, member)      {name, SN_FIELD_OBJECT, AT(member), 0, 0, NULL}
#define LIST(name, member)        {name, SN_FIELD_LIST, AT(member), 0, 0, NULL}
#define ANY(name, member)         {name, SN_FIELD_ANY, AT(member), 0, 0, NULL}
#define ONLY(name, words)         {name, SN_FIELD_ONLY, 0, 0, 0, words}
#define UNUSED_TEXT(name)         {name, SN_FIELD_UNUSED_TEXT, 0, 0, 0, NULL}
#define UNUSED_OBJECT(name)       {name, SN_FIELD_UNUSED_OBJECT, 0, 0, 0, NULL}
#define REFUSED(name, why)        {name, SN_FIELD_REFUSED, 0, 0, 0, why}
#define END                       {NULL, SN_FIELD_ANY, 0, 0, 0, NULL}

enum { INT_MOST = 1 << 30 };

/* The user, the place and the price of a request: nothing here depends on them. */
#define ORIGIN                                                                                                         \
    UNUSED_TEXT("user"), UNUSED_TEXT("safety_identifier"), UNUSED_TEXT("prompt_cache_key"),                            \
        UNUSED_TEXT("prompt_cache_retention"), UNUSED_OBJECT("metadata"), ONLY("service_tier", "auto|default"),        \
        TEXT("model", model)

#define SAMPLING                                                                                                       \
    NUM("temperature", temperature, 0, 2), NUM("top_p", top_p, 0, 1), INT("top_k", top_k, -1, INT_MOST),               \
        NUM("min_p", min_p, 0, 1), NUM("repeat_penalty", repeat_penalty, 0.01, 100),                                   \
        NUM("repetition_penalty", repetition_penalty, 0.01, 100), NUM("presence_penalty", presence_penalty, -2, 2),    \
        NUM("frequency_penalty", frequency_penalty, -2, 2), INT("seed", seed, -0x1p63, 0x1p63),                        \
        FLAG("ignore_eos", ignore_eos), OBJECT("logit_bias", logit_bias), FLAG("stream", stream),                      \
        OBJECT("stream_options", stream_options)

const sn_field sn_chat_fields[] = {
    ORIGIN,
    SAMPLING,
    LIST("messages", messages),
    INT("n", n, 1, INT_MOST),
    ANY("stop", stop),
    INT("max_tokens", max_tokens, 1, INT_MOST),
    INT("max_completion_tokens", max_completion_tokens, 1, INT_MOST),
    FLAG("logprobs", logprobs_flag),
    INT("top_logprobs", top_logprobs, 0, SN_REQUEST_TOP_MAX),
    LIST("tools", tools),
    ANY("tool_choice", tool_choice),
    FLAG("parallel_tool_calls", parallel_calls),
    OBJECT("response_format", response_format),
    TEXT("reasoning_effort", reasoning_effort),
    OBJECT("chat_template_kwargs", variables),
    ONLY("verbosity", "medium"),
    LIST("modalities", modalities),
    REFUSED("store", "this server keeps no answers, so leave it out or set it to false"),
    REFUSED("audio", "the model gives text only"),
    REFUSED("prediction", "the model takes no predicted answers"),
    REFUSED("web_search_options", "this server does not search the web"),
    REFUSED("moderation", "this server does not moderate"),
    REFUSED("functions", "use 'tools'"),
    REFUSED("function_call", "use 'tool_choice'"),
    END,
};

const sn_field sn_completion_fields[] = {
    ORIGIN,
    SAMPLING,
    ANY("prompt", prompt),
    INT("n", n, 1, INT_MOST),
    INT("best_of", best_of, 1, INT_MOST),
    ANY("stop", stop),
    INT("max_tokens", max_tokens, 0, INT_MOST),
    INT("logprobs", logprobs_n, 0, SN_REQUEST_TOP_MAX),
    FLAG("echo", echo),
    REFUSED("suffix", "the model continues texts and fills no gaps"),
    END,
};

const sn_field sn_embedding_fields[] = {
    ORIGIN, ANY("input", prompt), TEXT("encoding_format", encoding), INT("dimensions", dimensions, 1, INT_MOST), END,
};

const sn_field sn_response_fields[] = {
    ORIGIN,
    SAMPLING,
    ANY("input", prompt),
    TEXT("instructions", instructions),
    INT("max_output_tokens", max_tokens, 1, INT_MOST),
    INT("top_logprobs", top_logprobs, 0, SN_REQUEST_TOP_MAX),
    LIST("tools", tools),
    ANY("tool_choice", tool_choice),
    FLAG("parallel_tool_calls", parallel_calls),
    OBJECT("text", text_format),
    OBJECT("reasoning", reasoning),
    OBJECT("chat_template_kwargs", variables),
    LIST("include", include),
    ONLY("truncation", "disabled"),
    REFUSED("store", "this server keeps no responses, so leave it out or set it to false"),
    REFUSED("previous_response_id", "this server keeps no responses: send the conversation as 'input'"),
    REFUSED("conversation", "this server keeps no conversations: send the conversation as 'input'"),
    REFUSED("background", "an answer is given by the request that asks for it"),
    REFUSED("prompt", "this server has no stored prompts: use 'instructions' and 'input'"),
    REFUSED("max_tool_calls", "this server runs no tools itself"),
    REFUSED("context_management", "this server shortens no conversations"),
    REFUSED("moderation", "this server does not moderate"),
    END,
};

const sn_field sn_tokenize_fields[] = {
    TEXT("model", model),
    TEXT("content", tokenize_text),
    ANY("prompt", prompt),
    FLAG("add_special", add_special),
    FLAG("add_special_tokens", add_special),
    FLAG("parse_special", parse_special),
    FLAG("with_pieces", with_pieces),
    END,
};

const sn_field sn_detokenize_fields[] = {
    TEXT("model", model),
    LIST("tokens", ids),
    END,
};
