/* The fields of each kind of body. docs/SERVER.md explains them one by one. */
#include "gateway/openai/request_private.h"

#include <math.h>

#define AT(member)                offsetof(sn_body, member)
#define FLAG(name, member)        {name, SN_FIELD_FLAG, AT(member), 0, 0, NULL}
#define INT(name, member, lo, hi) {name, SN_FIELD_INT, AT(member), lo, hi, NULL}
#define NUM(name, member, lo, hi) {name, SN_FIELD_NUMBER, AT(member), lo, hi, NULL}
#define TEXT(name, member)        {name, SN_FIELD_TEXT, AT(member), 0, 0, NULL}
#define OBJECT(name, member)      {name, SN_FIELD_OBJECT, AT(member), 0, 0, NULL}
#define LIST(name, member)        {name, SN_FIELD_LIST, AT(member), 0, 0, NULL}
#define ANY(name, member)         {name, SN_FIELD_ANY, AT(member), 0, 0, NULL}
#define ONLY(name, words)         {name, SN_FIELD_ONLY, 0, 0, 0, words}
#define IGNORED(name)             {name, SN_FIELD_IGNORED, 0, 0, 0, NULL}
#define REFUSED(name, why)        {name, SN_FIELD_REFUSED, 0, 0, 0, why}
#define UNLESS(name, value, why)  {name, SN_FIELD_REFUSED, 0, value, 0, why}
#define END                       {NULL, SN_FIELD_ANY, 0, 0, 0, NULL}

enum { INT_MOST = 1 << 30 };

/* The user, the place, the price and the speed of a request, and what caches and logs may do with it: no answer depends
 * on them. */
#define ORIGIN                                                                                                         \
    IGNORED("user"), IGNORED("safety_identifier"), IGNORED("prompt_cache_key"), IGNORED("prompt_cache_retention"),     \
        IGNORED("prompt_cache_options"), IGNORED("metadata"), IGNORED("client_metadata"), IGNORED("service_tier"),     \
        IGNORED("store"), IGNORED("cache_prompt"), IGNORED("num_ctx"), IGNORED("keep_alive"), IGNORED("id_slot"),      \
        IGNORED("slot_id"), IGNORED("priority"), IGNORED("request_id"), IGNORED("timings_per_token"),                  \
        IGNORED("litellm_call_id"), TEXT("model", model)

#define SAMPLING                                                                                                       \
    NUM("temperature", temperature, 0, 2), NUM("top_p", top_p, 0, 1), INT("top_k", top_k, -1, INT_MOST),               \
        NUM("min_p", min_p, 0, 1), NUM("repeat_penalty", repeat_penalty, 0.01, 100),                                   \
        NUM("repetition_penalty", repetition_penalty, 0.01, 100), NUM("presence_penalty", presence_penalty, -2, 2),    \
        NUM("frequency_penalty", frequency_penalty, -2, 2), INT("seed", seed, -HUGE_VAL, HUGE_VAL),                    \
        FLAG("ignore_eos", ignore_eos), OBJECT("logit_bias", logit_bias), FLAG("stream", stream),                      \
        FLAG("return_progress", return_progress), OBJECT("stream_options", stream_options), UNCOMMON

/* What other servers sample by. The numbers of a sampler that is off mean nothing: programs send all of them. */
#define UNCOMMON                                                                                                       \
    UNLESS("min_tokens", 0, "an answer ends where the model ends it, unless 'ignore_eos' is true"),                    \
        UNLESS("typical_p", 1, "use 'top_p' or 'min_p'"), UNLESS("tfs_z", 1, "use 'top_p' or 'min_p'"),                \
        UNLESS("top_a", 0, "use 'top_p' or 'min_p'"), UNLESS("mirostat", 0, "use 'top_p' or 'min_p'"),                 \
        UNLESS("xtc_probability", 0, "use 'top_p' or 'min_p'"), UNLESS("dynatemp_range", 0, "use 'temperature'"),      \
        UNLESS("dry_multiplier", 0, "use 'repeat_penalty'"), IGNORED("mirostat_tau"), IGNORED("mirostat_eta"),         \
        IGNORED("xtc_threshold"), IGNORED("dynatemp_exponent"), IGNORED("dry_base"), IGNORED("dry_allowed_length"),    \
        IGNORED("dry_penalty_last_n"), IGNORED("dry_sequence_breakers"),                                               \
        UNLESS("repeat_last_n", 64, "'repeat_penalty' counts the last 64 tokens"),                                     \
        UNLESS("length_penalty", 1, "there is no beam search"), REFUSED("use_beam_search", "answers are sampled"),     \
        UNLESS("skip_special_tokens", 1, "special tokens are no text"),                                                \
        UNLESS("spaces_between_special_tokens", 1, "special tokens are no text"),                                      \
        REFUSED("include_stop_str_in_output", "a stop string is not part of the answer"),                              \
        REFUSED("stop_token_ids", "use 'stop'"), REFUSED("bad_words", "use 'logit_bias'"),                             \
        REFUSED("grammar", "use 'response_format'"), REFUSED("json_schema", "use 'response_format'"),                  \
        REFUSED("structured_outputs", "use 'response_format'"), REFUSED("guided_json", "use 'response_format'"),       \
        REFUSED("guided_regex", "use 'response_format'"), REFUSED("guided_choice", "use 'response_format'"),           \
        REFUSED("guided_grammar", "use 'response_format'"), REFUSED("n_predict", "use 'max_tokens'"),                  \
        REFUSED("n_probs", "use 'logprobs'"), REFUSED("options", "give each option as a field of its own")

const sn_request_field sn_chat_fields[] = {
    ORIGIN,
    SAMPLING,
    LIST("messages", messages),
    INT("n", n, 1, INT_MOST),
    ANY("stop", stop),
    INT("max_tokens", max_tokens, -1, INT_MOST),
    INT("max_completion_tokens", max_completion_tokens, -1, INT_MOST),
    FLAG("logprobs", logprobs_flag),
    INT("top_logprobs", top_logprobs, 0, SN_REQUEST_TOP_MAX),
    LIST("tools", tools),
    ANY("tool_choice", tool_choice),
    FLAG("parallel_tool_calls", parallel_calls),
    OBJECT("response_format", response_format),
    TEXT("reasoning_effort", reasoning_effort),
    TEXT("verbosity", verbosity),
    OBJECT("chat_template_kwargs", variables),
    ANY("enable_thinking", enable_thinking),
    ANY("thinking", thinking),
    LIST("modalities", modalities),
    IGNORED("prediction"), /* it makes an answer faster elsewhere */
    REFUSED("audio", "the model gives text only"),
    UNLESS("add_generation_prompt", 1, "the answer is a new message"),
    REFUSED("continue_final_message", "the answer is a new message"),
    REFUSED("documents", "write them into a message"),
    REFUSED("chat_template", "the server has one: swarm serve --template"),
    REFUSED("web_search_options", "this server does not search the web"),
    REFUSED("moderation", "this server does not moderate"),
    REFUSED("functions", "use 'tools'"),
    REFUSED("function_call", "use 'tool_choice'"),
    END,
};

const sn_request_field sn_completion_fields[] = {
    ORIGIN,
    SAMPLING,
    ANY("prompt", prompt),
    INT("n", n, 1, INT_MOST),
    INT("best_of", best_of, 1, INT_MOST),
    ANY("stop", stop),
    INT("max_tokens", max_tokens, -1, INT_MOST),
    INT("logprobs", logprobs_n, 0, SN_REQUEST_TOP_MAX),
    FLAG("echo", echo),
    REFUSED("suffix", "the model continues texts and fills no gaps"),
    END,
};

const sn_request_field sn_embedding_fields[] = {
    ORIGIN,
    IGNORED("input_type"),
    ANY("input", prompt),
    TEXT("encoding_format", encoding),
    INT("dimensions", dimensions, 1, INT_MOST),
    END,
};

const sn_request_field sn_response_fields[] = {
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
    ANY("enable_thinking", enable_thinking),
    LIST("include", include),
    ONLY("truncation", "disabled|auto"), /* what is too long is refused */
    IGNORED("max_tool_calls"),           /* of tools that the server runs */
    REFUSED("previous_response_id", "this server keeps no responses: send the conversation as 'input'"),
    REFUSED("conversation", "this server keeps no conversations: send the conversation as 'input'"),
    REFUSED("background", "an answer is given by the request that asks for it"),
    REFUSED("prompt", "this server has no stored prompts: use 'instructions' and 'input'"),
    REFUSED("context_management", "this server shortens no conversations"),
    REFUSED("moderation", "this server does not moderate"),
    END,
};

const sn_request_field sn_tokenize_fields[] = {
    TEXT("model", model),
    TEXT("content", tokenize_text),
    ANY("prompt", prompt),
    FLAG("add_special", add_special),
    FLAG("add_special_tokens", add_special),
    FLAG("parse_special", parse_special),
    FLAG("with_pieces", with_pieces),
    END,
};

const sn_request_field sn_detokenize_fields[] = {
    TEXT("model", model),
    LIST("tokens", ids),
    END,
};
