/* A body becomes a request: its JSON is loaded within limits, read by the table of its kind (request_fields.c), and put
 * together subject by subject. Memory that the request's lists need hangs on a chain of blocks that is freed with it.
 */
#include "gateway/openai/request_private.h"

#include "base/mem.h"
#include "base/wide_json.h"

#include <limits.h>
#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct block {
    struct block *next;
    _Alignas(max_align_t) char bytes[];
} block;

bool sn_out_of_memory(sn_openai_error *error) {
    return sn_openai_fail(error, 500, NULL, NULL, "the server is out of memory for this request");
}

void *sn_parse_alloc(sn_parse *p, size_t n, size_t size) {
    size_t bytes, all;
    block *b = NULL;
    if (!__builtin_mul_overflow(n, size, &bytes) && !__builtin_add_overflow(bytes, sizeof *b, &all)) b = calloc(1, all);
    if (!b) {
        sn_out_of_memory(p->error);
        return NULL;
    }
    b->next = p->r->own;
    p->r->own = b;
    return b->bytes;
}

void sn_request_free(sn_request **request) {
    sn_request *r = *request;
    if (!r) return;
    for (block *b = r->own, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    json_decref((json_t *)(uintptr_t)r->schema);
    json_decref(r->functions);
    json_decref(r->body);
    free(r->chat);
    free(r->tools);
    free(r);
    *request = NULL;
}

/* -- the JSON -- */

/* What a body is when it is read, at most, counted before anything is built from it. */
typedef struct extent {
    size_t depth;  /* of lists and objects inside each other */
    size_t values; /* a body is one, and each sign of its structure begins one more */
    size_t bytes;  /* of them in memory, beside their texts */
    size_t quoted; /* the same of signs in texts, which are JSON themselves where they are arguments of calls */
} extent;

/* What jansson takes: a list, an object (with room for some members), and whatever else, with its place there. */
static size_t sign_bytes(char c) { return c == ',' || c == ':' ? 96 : c == '[' ? 144 : c == '{' ? 240 : 0; }

static extent extent_of(const char *body, size_t len) {
    extent e = {.values = 1};
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        const char c = body[i];
        const size_t bytes = sign_bytes(c);
        if (c == '"') {
            in_string = !in_string;
        } else if (in_string && c == '\\') {
            i++;
            e.quoted += i < len && body[i] == 'u' ? sign_bytes('{') : 0; /* any sign */
        } else if (in_string) {
            e.quoted += bytes;
        } else if (bytes) {
            e.values++;
            e.bytes += bytes;
            depth += c == '[' || c == '{';
            if (depth > e.depth) e.depth = depth;
        } else if ((c == ']' || c == '}') && depth) {
            depth--;
        }
    }
    return e;
}

size_t sn_request_memory(const char *body, size_t len, size_t *passing) {
    const extent e = extent_of(body, len);
    const bool refused = e.values > SN_REQUEST_VALUES_MAX;
    *passing = refused ? 0 : sn_min_size(e.quoted, SN_REQUEST_ARGUMENT_VALUES_MAX * sign_bytes('{'));
    return refused ? 0 : 2 * len + e.bytes;
}

/* Calls of earlier answers bring their arguments as texts, in which the values of the body do not count. */
bool sn_parse_arguments_fit(sn_parse *p, const char *arguments, const char *path) {
    p->argument_values += extent_of(arguments, strlen(arguments)).values;
    return p->argument_values <= SN_REQUEST_ARGUMENT_VALUES_MAX ||
           sn_openai_fail(p->error, 413, "request_too_large", path,
                          "the arguments of calls up to '%s' have more than %d values: leave out earlier calls", path,
                          (int)SN_REQUEST_ARGUMENT_VALUES_MAX);
}

static json_t *load_body(const char *body, size_t len, sn_openai_error *error) {
    json_error_t problem;
    const extent e = extent_of(body, len);
    if (e.depth > SN_REQUEST_DEPTH_MAX) {
        sn_openai_fail(error, 400, NULL, NULL, "the body nests more than %d lists and objects",
                       (int)SN_REQUEST_DEPTH_MAX);
        return NULL;
    }
    if (e.values > SN_REQUEST_VALUES_MAX) {
        sn_openai_fail(error, 413, "request_too_large", NULL, "the body has more than %d values: send it in parts",
                       (int)SN_REQUEST_VALUES_MAX);
        return NULL;
    }
    size_t blank = 0;
    while (blank < len && strchr(" \t\r\n", body[blank]) && body[blank]) blank++;
    if (blank == len) {
        sn_openai_fail(error, 400, "invalid_json", NULL, "the body is empty: send the request as a JSON object");
        return NULL;
    }
    json_t *json = sn_wide_json_load(body, len, JSON_REJECT_DUPLICATES, &problem);
    if (!json)
        sn_openai_fail(error, 400, "invalid_json", NULL, "the body is not JSON: line %d, column %d: %s", problem.line,
                       problem.column, problem.text);
    return json;
}

/* -- fields of several kinds -- */

/* Whether `word` ends with `end`, in any case; *n: without it. */
static bool drop_end(const char *word, size_t *n, const char *end) {
    const size_t len = strlen(end);
    if (*n <= len || strncasecmp(word + *n - len, end, len) != 0) return false;
    *n -= len;
    return true;
}

const char *sn_request_model(const sn_request_limits *limits, const char *name) {
    static const char *const endings[] = {"", ":latest", ".gguf"};
    for (size_t i = 0; i < limits->n_models; i++) {
        const char *model = limits->models[i];
        for (size_t k = 0; k < sizeof endings / sizeof *endings; k++) {
            size_t n = strlen(name);
            if (*endings[k] && !drop_end(name, &n, endings[k])) continue;
            const bool whole = n == strlen(model) && !strncasecmp(name, model, n);
            if (whole || (drop_end(name, &n, model) && name[n - 1] == '/')) return model;
        }
    }
    return NULL;
}

static bool parse_model(sn_parse *p) {
    const sn_request_limits *l = p->limits;
    p->r->model = l->n_models ? l->models[0] : "";
    if (!p->body.model || !*p->body.model) return true;
    const char *found = sn_request_model(l, p->body.model);
    if (!found)
        return sn_openai_fail(p->error, 404, "model_not_found", "model",
                              "the model '%.100s' is not served here: this server's model is '%.100s'", p->body.model,
                              p->r->model);
    p->r->model = found;
    return true;
}

static bool take_stop(sn_parse *p, const json_t *stop, const char *path) {
    size_t len = json_string_length(stop);
    if (!json_is_string(stop)) return sn_openai_fail(p->error, 400, NULL, path, "'%s' must be a string", path);
    if (!len || len > SN_REQUEST_STOP_MAX)
        return sn_openai_fail(p->error, 400, NULL, path, "'%s' must have 1 to %d bytes", path,
                              (int)SN_REQUEST_STOP_MAX);
    p->r->stops[p->r->n_stops++] = json_string_value(stop);
    return true;
}

static bool parse_stop(sn_parse *p) {
    const json_t *stop = p->body.stop;
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    char path[SN_PATH_MAX];
    if (!stop || (json_is_string(stop) && !json_string_length(stop))) return true;
    if (n > SN_REQUEST_STOPS_MAX)
        return sn_openai_fail(p->error, 400, NULL, "stop", "'stop' has %zu strings: %d at most", n,
                              (int)SN_REQUEST_STOPS_MAX);
    p->r->stops = sn_parse_alloc(p, n, sizeof *p->r->stops);
    if (!p->r->stops) return false;
    if (!json_is_array(stop)) return take_stop(p, stop, "stop");
    for (size_t i = 0; i < n; i++)
        if (!take_stop(p, json_array_get(stop, i), sn_path(path, "stop", NULL, i))) return false;
    return true;
}

static bool parse_stream(sn_parse *p) {
    struct {
        bool usage, continuous;
    } options = {0};
#define OPTION(name, member) {name, SN_FIELD_FLAG, (size_t)((char *)&options.member - (char *)&options), 0, 0, NULL}
    const sn_request_field fields[] = {OPTION("include_usage", usage),
                                       OPTION("continuous_usage_stats", continuous),
                                       {NULL, SN_FIELD_IGNORED, 0, 0, 0, NULL}};
    const json_t *given = p->body.stream_options;
    p->r->stream = p->body.stream;
    p->r->return_progress = p->body.stream && p->body.return_progress;
    if (!given) return true;
    if (!p->body.stream)
        return sn_openai_fail(p->error, 400, NULL, "stream_options", "'stream_options' needs 'stream': true");
    if (!sn_read_fields(p, given, "stream_options", fields, &options)) return false;
    p->r->include_usage = options.usage || options.continuous;
    p->r->continuous_usage = options.continuous;
    return true;
}

bool sn_parse_logit_bias(sn_parse *p) {
    const char *key;
    json_t *value;
    const json_t *all = p->body.logit_bias;
    char path[SN_PATH_MAX];
    if (json_object_size(all) > SN_REQUEST_BIASES_MAX)
        return sn_openai_fail(p->error, 400, NULL, "logit_bias", "'logit_bias' has %zu tokens: %d at most",
                              json_object_size(all), (int)SN_REQUEST_BIASES_MAX);
    if (!json_object_size(all)) return true;
    p->r->biases = sn_parse_alloc(p, json_object_size(all), sizeof *p->r->biases);
    if (!p->r->biases) return false;
    json_object_foreach((json_t *)(uintptr_t)all, key, value) {
        char *end = NULL;
        long id = *key >= '0' && *key <= '9' ? strtol(key, &end, 10) : -1;
        double bias = json_number_value(value);
        sn_path(path, "logit_bias", key, 0);
        if (id < 0 || *end || id >= p->limits->vocab)
            return sn_openai_fail(p->error, 400, NULL, path, "'%s' must name a token id from 0 to %d", path,
                                  (int)p->limits->vocab - 1);
        if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
            return sn_openai_fail(p->error, 400, NULL, path, "'%s' must be a number from -100 to 100", path);
        p->r->biases[p->r->n_biases++] = (sn_bias){(int32_t)id, (float)bias};
    }
    return true;
}

static double number_or(double value, double otherwise) { return isnan(value) ? otherwise : value; }
static int64_t int_or(int64_t value, int64_t otherwise) { return value == SN_UNSET ? otherwise : value; }

static bool parse_penalty(sn_parse *p) {
    const sn_body *b = &p->body;
    const sn_request_sampling *preset = &p->limits->sampling;
    if (!isnan(b->repeat_penalty) && !isnan(b->repetition_penalty))
        return sn_openai_fail(p->error, 400, NULL, "repetition_penalty",
                              "'repetition_penalty' and 'repeat_penalty' are one setting: give one of them");
    p->r->repeat_penalty = number_or(b->repeat_penalty, number_or(b->repetition_penalty, preset->repeat_penalty));
    p->r->presence_penalty = number_or(b->presence_penalty, 0);
    p->r->frequency_penalty = number_or(b->frequency_penalty, 0);
    return true;
}

static bool parse_sampling(sn_parse *p) {
    const sn_body *b = &p->body;
    sn_request *r = p->r;
    const sn_request_sampling *preset = &p->limits->sampling;
    r->temperature = number_or(b->temperature, preset->temperature);
    r->top_p = number_or(b->top_p, preset->top_p);
    if (r->top_p < 1e-9) r->top_p = 1e-9; /* 0: the most likely token only */
    r->min_p = number_or(b->min_p, preset->min_p);
    r->top_k = (int32_t)int_or(b->top_k, preset->top_k);
    if (r->top_k < 0) r->top_k = 0;
    const bool random = b->seed == SN_UNSET || json_integer_value(json_object_get(r->body, "seed")) == -1;
    r->seed = random ? -1 : (int64_t)((uint64_t)b->seed & ((UINT64_C(1) << 52) - 1));
    r->ignore_eos = b->ignore_eos;
    int64_t n = int_or(b->n, 1);
    if (n > p->limits->n_max)
        return sn_openai_fail(p->error, 400, NULL, "n", "'n' is %lld: this server gives %d choices at most",
                              (long long)n, p->limits->n_max);
    r->n = (int)n;
    if (b->best_of != SN_UNSET && b->best_of != n)
        return sn_openai_fail(p->error, 400, "unsupported_parameter", "best_of",
                              "'best_of' is not supported: ask for 'n' choices and choose one");
    return parse_penalty(p) && parse_stop(p) && parse_stream(p) && sn_parse_logit_bias(p);
}

/* "logprobs" of chats is a flag with a count beside it. */
static bool parse_chat_logprobs(sn_parse *p) {
    const sn_body *b = &p->body;
    if (b->top_logprobs != SN_UNSET && b->top_logprobs > 0 && !b->logprobs_flag)
        return sn_openai_fail(p->error, 400, NULL, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    p->r->logprobs = b->logprobs_flag ? (int)int_or(b->top_logprobs, 0) : -1;
    return true;
}

/* -- kinds -- */

static bool parse_modalities(sn_parse *p) {
    for (size_t i = 0; i < json_array_size(p->body.modalities); i++) {
        const char *kind = json_string_value(json_array_get(p->body.modalities, i));
        if (!kind || strcmp(kind, "text"))
            return sn_openai_fail(p->error, 400, "unsupported_parameter", "modalities",
                                  "'modalities' may hold \"text\" only: the model gives text");
    }
    return true;
}

/* Whether the model should think: a flag, or in the way of other servers {"type": "enabled"}. NULL: nothing is said. */
static const json_t *wants_thought(const sn_parse *p) {
    const char *word = json_string_value(json_object_get(p->body.thinking, "type"));
    if (json_is_boolean(p->body.enable_thinking)) return p->body.enable_thinking;
    if (json_is_boolean(p->body.thinking)) return p->body.thinking;
    return !word ? NULL : !strcmp(word, "enabled") ? json_true() : !strcmp(word, "disabled") ? json_false() : NULL;
}

/* Variables of the template: those that the request names, whether and how hard the model should think, and how much it
 * should say. */
static bool parse_variables(sn_parse *p) {
    const sn_body *b = &p->body;
    const json_t *thinks = wants_thought(p);
    if ((b->enable_thinking || b->thinking) && !thinks)
        return sn_openai_fail(p->error, 400, NULL, b->enable_thinking ? "enable_thinking" : "thinking",
                              "'enable_thinking' must be true or false, and 'thinking' {\"type\": \"enabled\"} or "
                              "{\"type\": \"disabled\"}");
    json_t *all = b->variables ? json_deep_copy(b->variables) : json_object();
    const bool good =
        all && (!thinks || !json_object_set(all, "enable_thinking", (json_t *)(uintptr_t)thinks)) &&
        (!b->reasoning_effort || !json_object_set_new(all, "reasoning_effort", json_string(b->reasoning_effort))) &&
        (!b->verbosity || !json_object_set_new(all, "verbosity", json_string(b->verbosity)));
    if (!good) {
        json_decref(all);
        return sn_out_of_memory(p->error);
    }
    return !json_object_set_new(p->chat, "variables", all) || sn_out_of_memory(p->error);
}

bool sn_parse_fits(sn_parse *p, size_t len, const char *path) {
    const size_t most = SN_REQUEST_TEXT_MAX + SN_REQUEST_TOKEN_BYTES * (size_t)p->limits->context;
    return len <= most || sn_openai_fail(p->error, 400, "context_length_exceeded", path,
                                         "'%s' has %zu bytes, which a context of %d tokens does not hold: shorten it",
                                         path, len, (int)p->limits->context);
}

/* The JSON texts for the library. */
static bool dump_chat(sn_parse *p) {
    sn_request *r = p->r;
    const json_t *tools = json_object_get(p->chat, "tools");
    r->chat = sn_wide_json_dump(p->chat);
    if (tools) r->tools = sn_wide_json_dump(tools);
    if (!r->chat || (tools && !r->tools)) return sn_out_of_memory(p->error);
    r->chat_len = strlen(r->chat);
    r->tools_len = r->tools ? strlen(r->tools) : 0;
    return sn_parse_fits(p, r->chat_len, r->kind == SN_REQUEST_CHAT ? "messages" : "input");
}

/* Combinations of which each part alone is right. */
static bool check_answer(sn_parse *p) {
    const sn_request *r = p->r;
    if (r->ignore_eos && (r->schema || r->tool_choice >= SN_TOOLS_REQUIRED))
        return sn_openai_fail(p->error, 400, NULL, "ignore_eos",
                              "'ignore_eos' cannot go with an answer of a given form, which has an end");
    return true;
}

static bool parse_chat(sn_parse *p) {
    const sn_body *b = &p->body;
    if (b->max_tokens != SN_UNSET && b->max_completion_tokens != SN_UNSET && b->max_tokens != b->max_completion_tokens)
        return sn_openai_fail(p->error, 400, NULL, "max_tokens",
                              "'max_tokens' and 'max_completion_tokens' are one limit: give one of them");
    p->r->max_tokens = int_or(b->max_completion_tokens, int_or(b->max_tokens, -1));
    if (!p->r->max_tokens)
        return sn_openai_fail(p->error, 400, NULL, "max_tokens", "'max_tokens' must be 1 or more, or -1 for no limit");
    return parse_modalities(p) && parse_sampling(p) && parse_chat_logprobs(p) && sn_parse_messages(p) &&
           sn_parse_tools(p) && sn_parse_response_format(p, b->response_format, "response_format") &&
           parse_variables(p) && dump_chat(p) && check_answer(p);
}

static bool parse_completion(sn_parse *p) {
    const sn_body *b = &p->body;
    p->r->max_tokens = int_or(b->max_tokens, 16);
    p->r->logprobs = (int)int_or(b->logprobs_n, -1);
    p->r->echo = b->echo;
    if (!parse_sampling(p) || !sn_parse_prompts(p, b->prompt, "prompt")) return false;
    if (sn_request_choices(p->r) <= (size_t)p->limits->choices_max) return true;
    return sn_openai_fail(p->error, 400, NULL, "n", "%zu prompts with %d choices each are too many: %d at most in all",
                          p->r->n_prompts, p->r->n, p->limits->choices_max);
}

static bool parse_embedding(sn_parse *p) {
    const sn_body *b = &p->body;
    p->r->n = 1;
    p->r->base64 = b->encoding && !strcmp(b->encoding, "base64");
    if (b->encoding && !p->r->base64 && strcmp(b->encoding, "float"))
        return sn_openai_fail(p->error, 400, NULL, "encoding_format",
                              "'encoding_format' must be \"float\" or \"base64\"");
    if (b->dimensions != SN_UNSET && b->dimensions != p->limits->width)
        return sn_openai_fail(p->error, 400, "unsupported_parameter", "dimensions",
                              "this model's embeddings have %d dimensions, and cannot be shortened",
                              (int)p->limits->width);
    return sn_parse_prompts(p, b->prompt, "input");
}

static bool parse_response(sn_parse *p) {
    p->r->max_tokens = int_or(p->body.max_tokens, -1);
    return parse_sampling(p) && sn_parse_response(p) && parse_variables(p) && dump_chat(p) && check_answer(p);
}

static bool parse_tokenize(sn_parse *p) {
    const sn_body *b = &p->body;
    sn_prompt *prompt = sn_parse_alloc(p, 1, sizeof *prompt);
    if (!prompt) return false;
    if (b->tokenize_text && b->prompt)
        return sn_openai_fail(p->error, 400, NULL, "prompt", "'content' and 'prompt' are one text: give one of them");
    if (!b->tokenize_text && !json_is_string(b->prompt))
        return sn_openai_fail(p->error, 400, NULL, "content", "the text is missing: give it as 'content', a string");
    prompt->text = b->tokenize_text ? b->tokenize_text : json_string_value(b->prompt);
    prompt->len = strlen(prompt->text); /* JSON texts with NULs are refused */
    if (prompt->len > SN_REQUEST_TEXT_MAX)
        return sn_openai_fail(p->error, 413, "request_too_large", b->tokenize_text ? "content" : "prompt",
                              "the text has %zu bytes: %d at most, so send it in parts", prompt->len,
                              (int)SN_REQUEST_TEXT_MAX);
    p->r->prompts = prompt;
    p->r->n_prompts = 1;
    p->r->add_special = b->add_special;
    p->r->parse_special = b->parse_special;
    p->r->with_pieces = b->with_pieces;
    return true;
}

static bool parse_detokenize(sn_parse *p) {
    if (!p->body.ids || !json_array_size(p->body.ids)) {
        p->r->prompts = sn_parse_alloc(p, 1, sizeof *p->r->prompts);
        p->r->n_prompts = 1;
        return p->body.ids ? p->r->prompts != NULL
                           : sn_openai_fail(p->error, 400, NULL, "tokens", "'tokens' is missing: give a list of ids");
    }
    if (!json_is_integer(json_array_get(p->body.ids, 0)))
        return sn_openai_fail(p->error, 400, NULL, "tokens", "'tokens' must be a list of ids");
    return sn_parse_prompts(p, p->body.ids, "tokens");
}

bool sn_request_parse(sn_request_kind kind, const char *body, size_t len, const sn_request_limits *limits,
                      sn_request **out, sn_openai_error *error) {
    static const struct {
        const sn_request_field *fields;
        bool (*parse)(sn_parse *p);
    } kinds[] = {[SN_REQUEST_CHAT] = {sn_chat_fields, parse_chat},
                 [SN_REQUEST_COMPLETION] = {sn_completion_fields, parse_completion},
                 [SN_REQUEST_EMBEDDING] = {sn_embedding_fields, parse_embedding},
                 [SN_REQUEST_RESPONSE] = {sn_response_fields, parse_response},
                 [SN_REQUEST_TOKENIZE] = {sn_tokenize_fields, parse_tokenize},
                 [SN_REQUEST_DETOKENIZE] = {sn_detokenize_fields, parse_detokenize}};
    sn_parse p = {.limits = limits, .error = error};
    sn_body *b = &p.body;
    *out = NULL;
    p.r = calloc(1, sizeof *p.r);
    if (!p.r) return sn_out_of_memory(error);
    p.r->kind = kind;
    p.r->n = 1;
    p.r->logprobs = -1;
    b->n = b->max_tokens = b->max_completion_tokens = b->seed = b->top_k = b->top_logprobs = b->logprobs_n =
        b->dimensions = b->best_of = SN_UNSET;
    b->temperature = b->top_p = b->min_p = b->repeat_penalty = b->repetition_penalty = b->presence_penalty =
        b->frequency_penalty = NAN;
    b->parallel_calls = true;
    p.r->body = load_body(body, len, error);
    p.chat = json_object();
    bool ok = p.r->body && (p.chat || sn_out_of_memory(error)) &&
              sn_read_fields(&p, p.r->body, "", kinds[kind].fields, b) && parse_model(&p) && kinds[kind].parse(&p);
    json_decref(p.chat);
    if (!ok) sn_request_free(&p.r);
    *out = p.r;
    return ok;
}

size_t sn_request_choices(const sn_request *r) { return (r->n_prompts ? r->n_prompts : 1) * (size_t)r->n; }

/* -- for the queue -- */

bool sn_request_check_length(const sn_request *r, size_t n_tokens, const sn_request_limits *limits,
                             sn_openai_error *error) {
    const char *param = r->kind == SN_REQUEST_CHAT ? "messages" : r->kind == SN_REQUEST_COMPLETION ? "prompt" : "input";
    const size_t context = (size_t)limits->context;
    const bool answers = r->max_tokens && r->kind != SN_REQUEST_EMBEDDING; /* with one token at least */
    if (!n_tokens) return sn_openai_fail(error, 400, NULL, param, "the prompt is empty: give at least one token");
    if (n_tokens > context || (answers && n_tokens == context))
        return sn_openai_fail(error, 400, "context_length_exceeded", param,
                              "the prompt has %zu tokens, and the context holds %zu with the answer: shorten it",
                              n_tokens, context);
    return true;
}

static bool set_number(swarm_options *o, const char *key, double value, swarm_error **cause) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return !swarm_options_set(o, key, text, cause);
}

bool sn_request_generation(const sn_request *r, size_t choice, uint64_t owner, swarm_options **out,
                           sn_openai_error *error) {
    swarm_error *cause = NULL;
    swarm_options *o = swarm_options_new();
    *out = NULL;
    if (!o) return sn_out_of_memory(error);
    char scope[20];
    snprintf(scope, sizeof scope, "%016" PRIx64, owner);
    bool is_answer = r->kind == SN_REQUEST_CHAT || r->kind == SN_REQUEST_RESPONSE;
    bool ok = !swarm_options_set(o, "prefix-scope", scope, &cause) &&
              set_number(o, "max-tokens", r->max_tokens > 0 ? (double)r->max_tokens : 0, &cause) &&
              set_number(o, "temperature", r->temperature, &cause) && set_number(o, "top-p", r->top_p, &cause) &&
              set_number(o, "top-k", r->top_k, &cause) && set_number(o, "min-p", r->min_p, &cause) &&
              set_number(o, "repeat-penalty", r->repeat_penalty, &cause) &&
              set_number(o, "logprobs", r->logprobs, &cause) &&
              (r->seed < 0 || set_number(o, "seed", (double)(r->seed + (int64_t)choice), &cause)) &&
              (!r->ignore_eos || !swarm_options_set(o, "ignore-eos", "true", &cause)) &&
              (!is_answer || !swarm_options_set(o, "answer", "true", &cause));
    for (size_t i = 0; i < r->n_stops && ok; i++) ok = !swarm_options_set(o, "stop", r->stops[i], &cause);
    if (!ok) {
        swarm_options_free(o);
        return sn_openai_fail_swarm(error, cause);
    }
    *out = o;
    return true;
}
