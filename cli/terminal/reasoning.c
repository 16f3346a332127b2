#include "cli/terminal/reasoning.h"

#include <string.h>

static const char opening[] = "<think>", closing[] = "</think>";

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

void sn_reasoning_begin(sn_reasoning *r, bool thinks) {
    r->state = thinks ? SN_REASONING_THOUGHT : SN_REASONING_BEGIN;
    r->blank = true;
    r->n_held = 0;
    r->in_channel = false;
    r->name[0] = 0;
}

static sn_status give(sn_reasoning *r, const char *text, size_t n, sn_err *err) {
    if (r->state == SN_REASONING_CHANNEL_NAME) {
        size_t have = strlen(r->name);
        for (size_t i = 0; i < n && have + 1 < sizeof r->name; i++) r->name[have++] = text[i];
        r->name[have] = 0;
        return SN_OK;
    }
    for (; n && r->blank && is_blank(*text); n--) text++;
    if (!n) return SN_OK;
    r->blank = false;
    return r->on_text(r->ctx, r->state == SN_REASONING_THOUGHT, text, n, err);
}

static void enter(sn_reasoning *r, bool thought) {
    r->state = thought ? SN_REASONING_THOUGHT : SN_REASONING_ANSWER;
    r->blank = true;
}

/* The tag that may come now: it opens a thought at the beginning, and closes one within it. */
static const char *expected_tag(const sn_reasoning *r) {
    if (r->state == SN_REASONING_BEGIN) return opening;
    return r->state == SN_REASONING_THOUGHT ? closing : NULL;
}

/* Takes a byte; what is no tag is given out. */
static sn_status take(sn_reasoning *r, char c, sn_err *err) {
    const char *tag = expected_tag(r);
    r->held[r->n_held++] = c;
    while (r->n_held) {
        tag = expected_tag(r);
        if (r->state == SN_REASONING_BEGIN && r->n_held == 1 && is_blank(r->held[0])) {
            r->n_held = 0;
            return SN_OK;
        }
        if (tag && !strncmp(r->held, tag, r->n_held)) {
            if (r->n_held < strlen(tag)) return SN_OK;
            enter(r, tag == opening);
            r->n_held = 0;
            return SN_OK;
        }
        if (r->state == SN_REASONING_BEGIN) enter(r, false);
        sn_status status = give(r, r->held, 1, err);
        if (status) return status;
        memmove(r->held, r->held + 1, --r->n_held);
    }
    return SN_OK;
}

sn_status sn_reasoning_push(sn_reasoning *r, const char *text, size_t n, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status;) {
        size_t plain = i; /* no tag begins here: given out at once */
        while (!r->n_held && plain < n && r->state != SN_REASONING_BEGIN && (!expected_tag(r) || text[plain] != '<'))
            plain++;
        if (plain > i) status = give(r, text + i, plain - i, err);
        i = plain;
        if (i < n && !status) status = take(r, text[i++], err);
    }
    return status;
}

static sn_status flush(sn_reasoning *r, sn_err *err) {
    size_t n = r->n_held;
    r->n_held = 0;
    if (n && r->state == SN_REASONING_BEGIN) enter(r, false);
    return n ? give(r, r->held, n, err) : SN_OK;
}

sn_status sn_reasoning_special(sn_reasoning *r, const char *token, sn_err *err) {
    bool name = !strcmp(token, "<|channel|>"), message = !strcmp(token, "<|message|>");
    bool opens = !strcmp(token, opening), closes = !strcmp(token, closing);
    if (!name && !message && !opens && !closes && strcmp(token, "<|start|>")) return SN_OK;
    sn_status status = flush(r, err);
    if (message) {
        enter(r, r->in_channel && strcmp(r->name, "final") != 0);
        r->in_channel = false;
    } else if (opens || closes) {
        enter(r, opens);
    } else { /* a channel's name follows, or after <|start|> that of a role */
        r->state = SN_REASONING_CHANNEL_NAME;
        r->in_channel = name;
        r->name[0] = 0;
    }
    return status;
}

sn_status sn_reasoning_end(sn_reasoning *r, sn_err *err) { return flush(r, err); }
