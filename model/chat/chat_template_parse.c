/* Recognises a chat template. The template is first brought to a canonical form: without comments and without white
 * space inside tags (string literals keep theirs), with all literals in single quotes and their escapes undone, except
 * for \' and \\. Then sn_chat_template_parse picks the family by its markers, and read_FAMILY looks for the exact
 * phrases of the variants that are known. A reader sets chat->family only if all phrases that it needs are there; else
 * the family stays SN_CHAT_UNKNOWN. */
#include "model/chat/chat_template.h"

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

static sn_status reader_put(reader *r, char c) { return sn_buf_append(r->out, &c, 1, r->err); }

static bool reader_follows(const reader *r, const char *word) {
    size_t n = strlen(word);
    return n <= r->len - r->at && !memcmp(r->text + r->at, word, n);
}

/* Copies a string literal; the reader stands after its opening quote, and afterwards after the closing one. */
static sn_status reader_copy_literal(reader *r, char quote) {
    sn_status status = reader_put(r, '\'');
    while (!status && r->at < r->len && r->text[r->at] != quote) {
        char c = r->text[r->at++];
        if (c == '\\' && r->at < r->len) {
            c = r->text[r->at++];
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
        }
        if (c == '\'' || c == '\\') status = reader_put(r, '\\');
        if (!status) status = reader_put(r, c);
    }
    r->at++;
    return status ? status : reader_put(r, '\'');
}

static sn_status canonicalize_template(reader *r) {
    bool in_tag = false;
    sn_status status = SN_OK;
    while (!status && r->at < r->len) {
        if (!in_tag && reader_follows(r, "{#")) {
            const char *end = memmem(r->text + r->at, r->len - r->at, "#}", 2);
            r->at = end ? (size_t)(end - r->text) + 2 : r->len;
            continue;
        }
        if (reader_follows(r, "{{") || reader_follows(r, "{%")) in_tag = true;
        if (reader_follows(r, "}}") || reader_follows(r, "%}")) in_tag = false;
        char c = r->text[r->at++];
        if (in_tag && (c == '\'' || c == '"'))
            status = reader_copy_literal(r, c);
        else if (!in_tag || !strchr(" \t\r\n", c))
            status = reader_put(r, c);
    }
    return status ? status : reader_put(r, 0);
}

static bool template_has(const char *text, const char *word) { return strstr(text, word) != NULL; }

/* The text between `prefix` and `end` within one literal; NULL when there is none. Heap. */
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

static sn_status read_chatml(sn_chat_template *chat, const char *t, sn_err *err) {
    sn_status status = SN_OK;
    bool plain = !template_has(t, "<|im_sep|>") && !template_has(t, "strftime_now") &&
                 (template_has(t, "<|im_end|>\n") || template_has(t, "'<|im_end|>'+'\n'"));
    if (!plain) return SN_OK;
    chat->family = SN_CHAT_CHATML;
    chat->default_system = text_after(t, "'<|im_start|>system\n", "<|im_end|>", err, &status);
    chat->strips_thinking = template_has(t, "split('</think>')");
    return status;
}

/* Llama 3.1 begins system turns with two dates; both are literals in the template. (Llama 3.2 writes today's date if
 * the rendering program offers it; the literal is taken here, so that answers are reproducible.) */
static sn_status read_llama3(sn_chat_template *chat, const char *t, sn_err *err) {
    sn_status status = SN_OK;
    chat->trims = template_has(t, "|trim");
    if (!template_has(t, "Cutting Knowledge Date")) {
        chat->family = SN_CHAT_LLAMA3;
        return SN_OK;
    }
    char *cut = text_after(t, "'Cutting Knowledge Date: ", "\n", err, &status);
    char *today = status ? NULL : text_after(t, "date_string='", "'", err, &status);
    if (!status && cut && today && template_has(t, "'Today Date: '+date_string+'\n\n'")) {
        size_t capacity = strlen(cut) + strlen(today) + 64;
        status = sn_calloc(&chat->system_prefix, capacity, 1, err);
        if (!status) {
            snprintf(chat->system_prefix, capacity, "Cutting Knowledge Date: %s\nToday Date: %s\n\n", cut, today);
            chat->family = SN_CHAT_LLAMA3;
        }
    }
    free(cut);
    free(today);
    return status;
}

static void read_mistral(sn_chat_template *chat, const char *t) {
    bool known = template_has(t, "[INST]") && template_has(t, "[/INST]'") && !template_has(t, "<<SYS>>") &&
                 template_has(t, "+eos_token");
    if (!known) return;
    chat->space_before_open = template_has(t, "' [INST]");
    chat->space_after_open = template_has(t, "[INST] '");
    chat->space_before_close = template_has(t, "' [/INST]'");
    chat->space_before_answer = template_has(t, "' '+message['content']") || template_has(t, "' '+message.content");
    chat->trims_answers =
        template_has(t, "message['content']|trim+eos_token") || template_has(t, "message.content|trim+eos_token");
    chat->space_after_eos = template_has(t, "+eos_token+' '");
    if (template_has(t, "[SYSTEM_PROMPT]")) {
        if (!template_has(t, "'[SYSTEM_PROMPT]'") || !template_has(t, "'[/SYSTEM_PROMPT]'")) return;
        chat->system = SN_CHAT_SYSTEM_TURN;
        chat->needs_system = template_has(t, "default_system_message");
    } else if (template_has(t, "loop.lastandsystem_message")) {
        chat->system = SN_CHAT_SYSTEM_LAST;
    } else if (template_has(t, "loop.firstandsystem_message")) {
        chat->system = SN_CHAT_SYSTEM_FIRST;
    }
    chat->family = SN_CHAT_MISTRAL;
}

/* A template that contains the literal '<<SYS>>' looks for it in the first user turn and makes up a system text of its
 * own: it is not known. */
static void read_llama2(sn_chat_template *chat, const char *t) {
    chat->trims = template_has(t, "content.strip()") || template_has(t, "content|trim");
    chat->system = SN_CHAT_SYSTEM_FIRST;
    chat->space_before_answer = true;
    bool known = template_has(t, "bos_token+'[INST] '+content") &&
                 template_has(t, "'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+") && template_has(t, "+' [/INST]'") &&
                 template_has(t, "' '+content") && template_has(t, "+' '+eos_token") && !template_has(t, "'<<SYS>>'");
    if (known) chat->family = SN_CHAT_LLAMA2;
}

static void read_gemma(sn_chat_template *chat, const char *t) {
    bool before = template_has(t, "first_user_prefix=messages[0]['content']+'\n\n'") &&
                  template_has(t, "(first_user_prefixifloop.firstelse'')");
    bool known = template_has(t, "'<start_of_turn>'+role+'\n'+") && template_has(t, "<end_of_turn>\n'") &&
                 template_has(t, "'<start_of_turn>model\n'") && template_has(t, "role='model'") &&
                 (before || template_has(t, "'System role not supported'"));
    chat->trims = template_has(t, "message['content']|trim") || template_has(t, "message.content|trim");
    chat->system = before ? SN_CHAT_SYSTEM_FIRST : SN_CHAT_SYSTEM_NONE;
    if (known && !template_has(t, "'developer'")) chat->family = SN_CHAT_GEMMA;
}

static void read_phi3(sn_chat_template *chat, const char *t) {
    bool lines = (template_has(t, "'<|user|>\n'+") || template_has(t, "'<|user|>'+'\n'+")) &&
                 (template_has(t, "+'<|end|>\n'") || template_has(t, "+'<|end|>'+'\n'"));
    chat->question_opens_answer =
        template_has(t, "'<|end|>'+'\n'+'<|assistant|>'+'\n'") || template_has(t, "'<|end|>\n<|assistant|>\n'");
    bool opens = chat->question_opens_answer ||
                 (template_has(t, "'<|assistant|>\n'+") &&
                  (template_has(t, "{{'<|assistant|>\n'}}") || template_has(t, "{{-'<|assistant|>\n'}}")));
    chat->system = template_has(t, "'<|system|>\n'+") ? SN_CHAT_SYSTEM_TURN : SN_CHAT_SYSTEM_NONE;
    chat->skips_empty_system = template_has(t, "message['role']=='system'andmessage['content']");
    if (!template_has(t, "{{eos_token}}") && !template_has(t, "{{-eos_token}}")) chat->eos[0] = 0;
    if (lines && opens && !template_has(t, "|trim") && !template_has(t, "<|tool")) chat->family = SN_CHAT_PHI3;
}

sn_status sn_chat_template_parse(sn_chat_template *chat, const sn_chat_source *source, sn_err *err) {
    *chat = (sn_chat_template){0};
    if (source->len == 0) return SN_OK;
    chat->family = SN_CHAT_UNKNOWN;
    if (source->len > SN_CHAT_TEMPLATE_MAX || memchr(source->text, 0, source->len)) return SN_OK;
    sn_buf buf;
    sn_buf_init(&buf, 2 * (size_t)SN_CHAT_TEMPLATE_MAX + 16);
    reader r = {.text = source->text, .len = source->len, .out = &buf, .err = err};
    sn_status status = canonicalize_template(&r);
    const char *t = (const char *)buf.data;
    if (!status && template_has(t, "bos_token")) snprintf(chat->bos, sizeof chat->bos, "%s", source->bos);
    if (!status) snprintf(chat->eos, sizeof chat->eos, "%s", source->eos);
    if (!status && template_has(t, "<|im_start|>") && template_has(t, "<|im_end|>"))
        status = read_chatml(chat, t, err);
    else if (!status && template_has(t, "<|start_header_id|>") && template_has(t, "<|eot_id|>"))
        status = read_llama3(chat, t, err);
    else if (!status && template_has(t, "<start_of_turn>"))
        read_gemma(chat, t);
    else if (!status && template_has(t, "<|user|>") && template_has(t, "<|end|>"))
        read_phi3(chat, t);
    else if (!status && template_has(t, "<<SYS>>"))
        read_llama2(chat, t);
    else if (!status)
        read_mistral(chat, t);
    if (status) sn_chat_template_fini(chat);
    sn_buf_fini(&buf);
    return status;
}

void sn_chat_template_fini(sn_chat_template *chat) {
    free(chat->default_system);
    free(chat->system_prefix);
    *chat = (sn_chat_template){0};
}
