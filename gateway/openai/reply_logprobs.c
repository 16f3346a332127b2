/* Log-probabilities in the two forms that clients read. Chats list tokens with their exact bytes; completions have four
 * lists, in which a token whose bytes are no UTF-8 is spelled "bytes:\xe2\x98". */
#include "gateway/openai/reply_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOGPROB_LEAST = -9999 }; /* what clients get for a token that a mask excludes: JSON has no infinity */

static json_t *logprob_json(double logprob) {
    if (isnan(logprob)) return json_null();
    return json_real(isfinite(logprob) ? logprob : LOGPROB_LEAST);
}

/* The bytes of a token, special ones spelled out. Freed with swarm_free. */
static char *bytes_of(const sn_reply *r, int32_t id, size_t *len) {
    char *bytes = NULL;
    if (swarm_model_token_bytes(sn_served_model_get(r->served), id, SWARM_TEXT_SPECIAL, &bytes, len, NULL)) *len = 0;
    return bytes;
}

static size_t characters(const char *bytes, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return n;
}

static const sn_told_token *told(const sn_reply_choice *c, size_t *n) {
    *n = c->told.len / sizeof(sn_told_token);
    return (const sn_told_token *)(const void *)c->told.data;
}

static const sn_alternative *alternatives(const sn_reply_choice *c, const sn_told_token *t) {
    return (const sn_alternative *)(const void *)c->alternatives.data + t->top;
}

/* The log-probability of an alternative. The token's own is one number, wherever it stands. */
static double logprob_of(const sn_told_token *t, const sn_alternative *a) {
    return a->id == t->id ? t->logprob : a->logprob;
}

/* -- chats -- */

/* Bytes as text, with U+FFFD for what is no UTF-8. */
static json_t *text_json(const char *bytes, size_t len) {
    json_t *text = json_stringn(bytes, len);
    if (text) return text;
    char *valid = malloc(3 * len + 1);
    size_t n = 0;
    for (size_t at = 0; valid && at < len;) {
        unsigned char c = (unsigned char)bytes[at];
        size_t whole = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        json_t *one = at + whole <= len ? json_stringn(bytes + at, whole) : NULL;
        memcpy(valid + n, one ? bytes + at : "\xef\xbf\xbd", one ? whole : 3);
        n += one ? whole : 3;
        at += one ? whole : 1;
        json_decref(one);
    }
    text = valid ? json_stringn(valid, n) : NULL;
    free(valid);
    return text;
}

static json_t *entry_json(const sn_reply *r, int32_t id, double logprob) {
    size_t len;
    char *bytes = bytes_of(r, id, &len);
    json_t *list = json_array();
    for (size_t i = 0; i < len; i++) json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    json_t *entry =
        json_pack("{s:o, s:o, s:o}", "token", text_json(bytes, len), "logprob", logprob_json(logprob), "bytes", list);
    swarm_free(bytes);
    return entry;
}

json_t *sn_chat_logprobs(sn_reply *r, sn_reply_choice *c) {
    size_t n;
    const sn_told_token *tokens = told(c, &n);
    json_t *list = json_array();
    for (; c->told_sent < n; c->told_sent++) {
        const sn_told_token *t = &tokens[c->told_sent];
        const sn_alternative *a = t->n_top ? alternatives(c, t) : NULL;
        json_t *entry = entry_json(r, t->id, t->logprob), *top = json_array();
        for (size_t i = 0; i < t->n_top; i++)
            if (json_array_append_new(top, entry_json(r, a[i].id, logprob_of(t, &a[i])))) r->no_memory = true;
        if (json_object_set_new(entry, "top_logprobs", top) || json_array_append_new(list, entry)) r->no_memory = true;
    }
    return list;
}

/* -- completions -- */

/* The token as a key: its text, or its bytes spelled out. */
static json_t *key_json(const sn_reply *r, int32_t id, size_t *n_characters) {
    size_t len;
    char *bytes = bytes_of(r, id, &len), *spelled = NULL;
    json_t *key = json_stringn(bytes ? bytes : "", len);
    const size_t size = sizeof "bytes:" + 4 * len;
    if (!key && (spelled = malloc(size))) {
        size_t at = (size_t)snprintf(spelled, size, "bytes:");
        for (size_t i = 0; i < len; i++)
            at += (size_t)snprintf(spelled + at, size - at, "\\x%02x", (unsigned)(unsigned char)bytes[i]);
        key = json_string(spelled);
    }
    if (n_characters) *n_characters = sn_served_model_writes(r->served, id) ? characters(bytes, len) : 0;
    free(spelled);
    swarm_free(bytes);
    return key;
}

static void add_top(sn_reply *r, json_t *top, int32_t id, double logprob) {
    json_t *key = key_json(r, id, NULL), *value = logprob_json(logprob);
    if (!key || (!json_object_get(top, json_string_value(key)) && /* the best of those that are spelled alike */
                 json_object_set(top, json_string_value(key), value)))
        r->no_memory = true;
    json_decref(key);
    json_decref(value);
}

json_t *sn_completion_logprobs(sn_reply *r, sn_reply_choice *c) {
    size_t n, n_characters;
    const sn_told_token *all = told(c, &n);
    json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array();
    for (; c->told_sent < n; c->told_sent++) {
        const sn_told_token *t = &all[c->told_sent];
        bool known = !isnan(t->logprob), listed = false;
        json_t *top = known && r->request->logprobs > 0 ? json_object() : json_null();
        const sn_alternative *a = t->n_top ? alternatives(c, t) : NULL;
        for (size_t i = 0; i < t->n_top && known; i++) {
            listed |= a[i].id == t->id;
            add_top(r, top, a[i].id, logprob_of(t, &a[i]));
        }
        if (json_is_object(top) && !listed) add_top(r, top, t->id, t->logprob);
        if (json_array_append_new(tokens, key_json(r, t->id, &n_characters)) ||
            json_array_append_new(logprobs, logprob_json(t->logprob)) || json_array_append_new(tops, top) ||
            json_array_append_new(offsets, json_integer((json_int_t)c->offset)))
            r->no_memory = true;
        c->offset += n_characters;
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs", tops,
                     "text_offset", offsets);
}
