/* Recognises a chat template. Searching is done in a canonical form of it: comments gone, white space gone outside of
 * string literals, all literals in single quotes with their escapes undone but for \' and \\. */
#include "model/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the canonical form ---- */

typedef struct reader {
    const char *text;
    size_t len, at;
    sn_buf *out;
    sn_err *err;
} reader;

static sn_status put(reader *r, char c) { return sn_buf_append(r->out, &c, 1, r->err); }

static bool follows(const reader *r, const char *word) {
    size_t n = strlen(word);
    return n <= r->len - r->at && !memcmp(r->text + r->at, word, n);
}

/* A string literal, from behind its opening quote to behind its closing one. */
static sn_status literal(reader *r, char quote) {
    sn_status status = put(r, '\'');
    while (!status && r->at < r->len && r->text[r->at] != quote) {
        char c = r->text[r->at++];
        if (c == '\\' && r->at < r->len) {
            c = r->text[r->at++];
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
        }
        if (c == '\'' || c == '\\') status = put(r, '\\');
        if (!status) status = put(r, c);
    }
    r->at++;
    return status ? status : put(r, '\'');
}

static sn_status canonical(reader *r) {
    bool in_tag = false;
    sn_status status = SN_OK;
    while (!status && r->at < r->len) {
        if (!in_tag && follows(r, "{#")) {
            const char *end = memmem(r->text + r->at, r->len - r->at, "#}", 2);
            r->at = end ? (size_t)(end - r->text) + 2 : r->len;
            continue;
        }
        if (follows(r, "{{") || follows(r, "{%")) in_tag = true;
        if (follows(r, "}}") || follows(r, "%}")) in_tag = false;
        char c = r->text[r->at++];
        if (in_tag && (c == '\'' || c == '"'))
            status = literal(r, c);
        else if (!in_tag || !strchr(" \t\r\n", c))
            status = put(r, c);
    }
    return status ? status : put(r, 0);
}

static bool has(const char *text, const char *word) { return strstr(text, word) != NULL; }

/* What stands behind `prefix` up to `end`, within one literal; NULL when there is no such text. Heap. */
static char *text_after(const char *canonical_text, const char *prefix, const char *end, sn_err *err,
                        sn_status *status) {
    for (const char *at = canonical_text; (at = strstr(at, prefix)); at++) {
        const char *from = at + strlen(prefix), *quote = from;
        while (*quote && *quote != '\'') quote += *quote == '\\' && quote[1] ? 2 : 1;
        const char *stop = strstr(from, end);
        if (!stop || stop > quote || stop == from) continue;
        char *out;
        *status = sn_calloc(&out, (size_t)(stop - from) + 1, 1, err);
        if (*status) return NULL;
        size_t n = 0;
        for (const char *c = from; c < stop; c++) {
            if (*c == '\\') c++;
            out[n++] = *c;
        }
        return out;
    }
    return NULL;
}

/* ---- families ---- */

static sn_status read_chatml(sn_chat *chat, const char *t, sn_err *err) {
    sn_status status = SN_OK;
    bool plain =
        !has(t, "<|im_sep|>") && !has(t, "strftime_now") && (has(t, "<|im_end|>\n") || has(t, "'<|im_end|>'+'\n'"));
    if (!plain) return SN_OK;
    chat->family = SN_CHAT_CHATML;
    chat->default_system = text_after(t, "'<|im_start|>system\n", "<|im_end|>", err, &status);
    chat->drops_thoughts = has(t, "split('</think>')");
    return status;
}

/* Llama 3.1 begins system turns with two dates; both are literals in the template. (3.2 would put today's date where
 * the program that renders it tells the date: the literal keeps answers reproducible.) */
static sn_status read_llama3(sn_chat *chat, const char *t, sn_err *err) {
    sn_status status = SN_OK;
    chat->trims = has(t, "|trim");
    if (!has(t, "Cutting Knowledge Date")) {
        chat->family = SN_CHAT_LLAMA3;
        return SN_OK;
    }
    char *cut = text_after(t, "'Cutting Knowledge Date: ", "\n", err, &status);
    char *today = status ? NULL : text_after(t, "date_string='", "'", err, &status);
    if (!status && cut && today && has(t, "'Today Date: '+date_string+'\n\n'")) {
        size_t room = strlen(cut) + strlen(today) + 64;
        status = sn_calloc(&chat->system_head, room, 1, err);
        if (!status) {
            snprintf(chat->system_head, room, "Cutting Knowledge Date: %s\nToday Date: %s\n\n", cut, today);
            chat->family = SN_CHAT_LLAMA3;
        }
    }
    free(cut);
    free(today);
    return status;
}

static void read_mistral(sn_chat *chat, const char *t) {
    bool known = has(t, "[INST]") && has(t, "[/INST]'") && !has(t, "<<SYS>>") && has(t, "+eos_token");
    if (!known) return;
    chat->space_before_open = has(t, "' [INST]");
    chat->space_behind_open = has(t, "[INST] '");
    chat->space_before_close = has(t, "' [/INST]'");
    chat->space_before_answer = has(t, "' '+message['content']") || has(t, "' '+message.content");
    chat->trims_answers = has(t, "message['content']|trim+eos_token") || has(t, "message.content|trim+eos_token");
    chat->space_behind_eos = has(t, "+eos_token+' '");
    if (has(t, "[SYSTEM_PROMPT]")) {
        if (!has(t, "'[SYSTEM_PROMPT]'") || !has(t, "'[/SYSTEM_PROMPT]'")) return;
        chat->system = SN_CHAT_SYSTEM_TURN;
        chat->needs_system = has(t, "default_system_message");
    } else if (has(t, "loop.lastandsystem_message")) {
        chat->system = SN_CHAT_SYSTEM_LAST;
    } else if (has(t, "loop.firstandsystem_message")) {
        chat->system = SN_CHAT_SYSTEM_FIRST;
    }
    chat->family = SN_CHAT_MISTRAL;
}

/* One that makes up a system text of its own looks for '<<SYS>>' in the first question. */
static void read_llama2(sn_chat *chat, const char *t) {
    chat->trims = has(t, "content.strip()") || has(t, "content|trim");
    chat->system = SN_CHAT_SYSTEM_FIRST;
    chat->space_before_answer = true;
    bool known = has(t, "bos_token+'[INST] '+content") && has(t, "'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+") &&
                 has(t, "+' [/INST]'") && has(t, "' '+content") && has(t, "+' '+eos_token") && !has(t, "'<<SYS>>'");
    if (known) chat->family = SN_CHAT_LLAMA2;
}

static void read_gemma(sn_chat *chat, const char *t) {
    bool before = has(t, "first_user_prefix=messages[0]['content']+'\n\n'") && has(t, "(first_user_prefixifloop.firstelse'')");
    bool known = has(t, "'<start_of_turn>'+role+'\n'+") && has(t, "<end_of_turn>\n'") && has(t, "'<start_of_turn>model\n'") &&
                 has(t, "role='model'") && (before || has(t, "'System role not supported'"));
    chat->trims = has(t, "message['content']|trim") || has(t, "message.content|trim");
    chat->system = before ? SN_CHAT_SYSTEM_FIRST : SN_CHAT_SYSTEM_NONE;
    if (known && !has(t, "'developer'")) chat->family = SN_CHAT_GEMMA;
}

static void read_phi3(sn_chat *chat, const char *t) {
    bool lines = (has(t, "'<|user|>\n'+") || has(t, "'<|user|>'+'\n'+")) && (has(t, "+'<|end|>\n'") || has(t, "+'<|end|>'+'\n'"));
    chat->asks_for_answer = has(t, "'<|end|>'+'\n'+'<|assistant|>'+'\n'") || has(t, "'<|end|>\n<|assistant|>\n'");
    bool opens = chat->asks_for_answer || (has(t, "'<|assistant|>\n'+") && (has(t, "{{'<|assistant|>\n'}}") || has(t, "{{-'<|assistant|>\n'}}")));
    chat->system = has(t, "'<|system|>\n'+") ? SN_CHAT_SYSTEM_TURN : SN_CHAT_SYSTEM_NONE;
    chat->skips_empty_system = has(t, "message['role']=='system'andmessage['content']");
    if (!has(t, "{{eos_token}}") && !has(t, "{{-eos_token}}")) chat->eos[0] = 0;
    if (lines && opens && !has(t, "|trim") && !has(t, "<|tool")) chat->family = SN_CHAT_PHI3;
}

sn_status sn_chat_read(sn_chat *chat, const char *text, size_t len, const char *bos, const char *eos, sn_err *err) {
    *chat = (sn_chat){0};
    if (len == 0) return SN_OK;
    chat->family = SN_CHAT_UNKNOWN;
    if (len > SN_CHAT_TEMPLATE_MAX || memchr(text, 0, len)) return SN_OK;
    sn_buf buf;
    sn_buf_init(&buf, 2 * (size_t)SN_CHAT_TEMPLATE_MAX + 16);
    reader r = {.text = text, .len = len, .out = &buf, .err = err};
    sn_status status = canonical(&r);
    const char *t = (const char *)buf.data;
    if (!status && has(t, "bos_token")) snprintf(chat->bos, sizeof chat->bos, "%s", bos);
    if (!status) snprintf(chat->eos, sizeof chat->eos, "%s", eos);
    if (!status && has(t, "<|im_start|>") && has(t, "<|im_end|>"))
        status = read_chatml(chat, t, err);
    else if (!status && has(t, "<|start_header_id|>") && has(t, "<|eot_id|>"))
        status = read_llama3(chat, t, err);
    else if (!status && has(t, "<start_of_turn>"))
        read_gemma(chat, t);
    else if (!status && has(t, "<|user|>") && has(t, "<|end|>"))
        read_phi3(chat, t);
    else if (!status && has(t, "<<SYS>>"))
        read_llama2(chat, t);
    else if (!status)
        read_mistral(chat, t);
    if (status) sn_chat_fini(chat);
    sn_buf_fini(&buf);
    return status;
}

void sn_chat_fini(sn_chat *chat) {
    free(chat->default_system);
    free(chat->system_head);
    *chat = (sn_chat){0};
}
