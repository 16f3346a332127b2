/* Prompts of completions and inputs of embeddings: a text, token ids, or a list of either. */
#include "gateway/openai/request_private.h"

#include <string.h>

static bool take_ids(sn_parse *p, const json_t *list, const char *path, sn_prompt *out) {
    size_t n = json_array_size(list);
    char here[SN_PATH_MAX];
    int32_t *ids = sn_parse_alloc(p, n, sizeof *ids);
    if (!ids) return false;
    if (!n || n > (size_t)p->limits->context)
        return sn_openai_fail(p->error, 400, n ? "context_length_exceeded" : NULL, path,
                              "'%s' has %zu tokens: it must have 1 to %d", path, n, (int)p->limits->context);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= p->limits->vocab)
            return sn_openai_fail(p->error, 400, NULL, sn_path(here, path, NULL, i),
                                  "'%s' must be a token id from 0 to %d", here, (int)p->limits->vocab - 1);
        ids[i] = (int32_t)value;
    }
    *out = (sn_prompt){.ids = ids, .n = n};
    return true;
}

static bool take_prompt(sn_parse *p, const json_t *prompt, const char *path) {
    sn_prompt *out = &p->r->prompts[p->r->n_prompts];
    if (json_is_array(prompt)) {
        if (!take_ids(p, prompt, path, out)) return false;
    } else if (json_is_string(prompt)) {
        *out = (sn_prompt){.text = json_string_value(prompt), .len = json_string_length(prompt)};
        if (!sn_parse_fits(p, out->len, path)) return false;
    } else {
        return sn_openai_fail(p->error, 400, NULL, path, "'%s' must be a string or a list of token ids", path);
    }
    p->r->n_prompts++;
    return true;
}

bool sn_parse_prompts(sn_parse *p, const json_t *prompt, const char *path) {
    const json_t *first = json_array_get(prompt, 0);
    bool is_list = json_is_array(prompt) && !json_is_integer(first);
    size_t n = is_list ? json_array_size(prompt) : 1;
    char here[SN_PATH_MAX];
    if (!prompt) return sn_openai_fail(p->error, 400, "missing_required_parameter", path, "'%s' is missing", path);
    if (!n || n > (size_t)p->limits->prompts_max)
        return sn_openai_fail(p->error, 400, NULL, path, "'%s' has %zu entries: it must have 1 to %d", path, n,
                              p->limits->prompts_max);
    p->r->prompts = sn_parse_alloc(p, n, sizeof *p->r->prompts);
    if (!p->r->prompts) return false;
    if (!is_list) return take_prompt(p, prompt, path);
    for (size_t i = 0; i < n; i++)
        if (!take_prompt(p, json_array_get(prompt, i), sn_path(here, path, NULL, i))) return false;
    return true;
}
