#include "model/chat/chat_template.h"

#include <string.h>

/* The channels of an answer, while its tokens are read. */
typedef struct channels {
    enum { BETWEEN, IN_NAME, IN_TEXT } state;
    sn_buf name, final, analysis;
    bool seen;
} channels;

static bool buf_begins(const sn_buf *buf, const char *word) {
    size_t n = strlen(word);
    return buf->len >= n && !memcmp(buf->data, word, n);
}

static bool buf_is(const sn_buf *buf, const char *word) { return buf->len == strlen(word) && buf_begins(buf, word); }

/* Takes one token: `special` is its text if it is a special token (else empty), `plain` its text otherwise. */
static sn_status take_token(channels *c, const sn_buf *special, const sn_buf *plain, sn_err *err) {
    if (special->len) {
        bool begins = buf_is(special, "<|channel|>"), opens = c->state == IN_NAME && buf_is(special, "<|message|>");
        c->state = begins ? IN_NAME : opens ? IN_TEXT : BETWEEN;
        c->seen = c->seen || begins;
        if (begins) c->name.len = 0;
        return SN_OK;
    }
    if (!plain->len || c->state == BETWEEN) return SN_OK;
    sn_buf *to = c->state == IN_NAME                ? &c->name
                 : buf_begins(&c->name, "final")    ? &c->final
                 : buf_begins(&c->name, "analysis") ? &c->analysis
                                                    : NULL;
    return to ? sn_buf_append(to, plain->data, plain->len, err) : SN_OK;
}

static sn_status read_channels(channels *c, const sn_tokenizer *tokenizer, const sn_token_ids *ids, sn_err *err) {
    sn_buf whole, plain;
    sn_buf_init(&whole, SN_TEXT_MAX);
    sn_buf_init(&plain, SN_TEXT_MAX);
    sn_status status = SN_OK;
    for (size_t i = 0; !status && i < ids->n; i++) {
        whole.len = plain.len = 0;
        status = sn_tokenizer_decode(tokenizer, ids->ids[i], true, &whole, err);
        if (!status) status = sn_tokenizer_decode(tokenizer, ids->ids[i], false, &plain, err);
        if (!status && plain.len) whole.len = 0; /* no special token */
        if (!status) status = take_token(c, &whole, &plain, err);
    }
    sn_buf_fini(&whole);
    sn_buf_fini(&plain);
    return status;
}

static json_t *text_json(const sn_buf *text) {
    return json_stringn(text->len ? (const char *)text->data : "", text->len);
}

sn_status sn_chat_add_answer(json_t *messages, const sn_tokenizer *tokenizer, const sn_token_ids *ids, const char *text,
                             size_t len, sn_err *err) {
    channels c = {0};
    sn_buf_init(&c.name, SN_TEXT_MAX);
    sn_buf_init(&c.final, SN_TEXT_MAX);
    sn_buf_init(&c.analysis, SN_TEXT_MAX);
    sn_status status = read_channels(&c, tokenizer, ids, err);
    json_t *content = c.seen ? text_json(&c.final) : NULL, *thinking = c.seen ? text_json(&c.analysis) : NULL;
    if (!status && content && thinking) {
        json_t *message = json_pack("{s:s, s:O}", "role", "assistant", "content", content);
        if (c.analysis.len) json_object_set(message, "thinking", thinking);
        if (json_array_append_new(messages, message))
            status = sn_fail(err, SN_STOP, "out of memory for a conversation");
    } else if (!status) { /* no channels, or an answer that was cut within a character */
        status = sn_chat_add_message(messages, "assistant", text, len, err);
    }
    json_decref(content);
    json_decref(thinking);
    sn_buf_fini(&c.name);
    sn_buf_fini(&c.final);
    sn_buf_fini(&c.analysis);
    return status;
}
