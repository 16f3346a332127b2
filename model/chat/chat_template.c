/* Renders conversations. Each family has one function that writes the turns in their order and one or two that write a
 * single turn; sn_chat_template_render checks the roles and picks the family. The variants of a family are the fields
 * of sn_chat_template, which chat_template_parse.c filled.
 *
 * A conversation may be rendered in parts (first == false). The text that a template puts after the end token of an
 * assistant turn (a newline, a space) is then the beginning of the next part, because generation stops at that token.
 */
#include "model/chat/chat_template.h"

#include "model/tokenizer/utf8.h"

#include <string.h>

typedef struct writer {
    const sn_chat_template *chat;
    const sn_chat_turn *turns;
    size_t n;
    sn_buf *out;
    sn_err *err;
} writer;

static sn_status chat_put(writer *w, const char *text) { return sn_buf_append(w->out, text, strlen(text), w->err); }

/* Writes up to four texts in a row; NULL ends the list. */
static sn_status chat_put_all(writer *w, const char *const texts[4]) {
    sn_status status = SN_OK;
    for (int i = 0; !status && i < 4 && texts[i]; i++) status = chat_put(w, texts[i]);
    return status;
}

/* Writes the text as Jinja's trim leaves it. That is Python's strip, except for four control characters that Python
 * counts as white space. */
static sn_status chat_put_trimmed(writer *w, const char *text) {
    size_t len = strlen(text), before = sn_utf8_leading_space(text, len);
    len -= before;
    text += before;
    return sn_buf_append(w->out, text, len - sn_utf8_trailing_space(text, len), w->err);
}

static bool turn_is(const sn_chat_turn *turn, const char *role) { return !strcmp(turn->role, role); }

static bool starts_with_system(const writer *w) { return w->n && turn_is(&w->turns[0], "system"); }

/* ---- ChatML ---- */

/* Qwen3: an assistant turn before the last user turn is written without its <think> part, the last turn of all always
 * with one (an empty one where the text has none). */
static sn_status put_thinking_turn(writer *w, const char *text, bool is_last) {
    const char *answer = text, *end = strstr(text, "</think>");
    const char *thoughts = text, *thoughts_end = end ? end : text;
    for (const char *at = text; (at = strstr(at, "</think>"));) answer = at += 8;
    if (!end && !is_last) return chat_put(w, text);
    answer += strspn(answer, "\n");
    if (!is_last) return chat_put(w, answer);
    for (const char *at = thoughts; (at = strstr(at, "<think>")) && at < thoughts_end;) thoughts = at += 7;
    while (thoughts < thoughts_end && *thoughts == '\n') thoughts++;
    while (thoughts < thoughts_end && thoughts_end[-1] == '\n') thoughts_end--;
    sn_status status = chat_put(w, "<think>\n");
    if (!status) status = sn_buf_append(w->out, thoughts, (size_t)(thoughts_end - thoughts), w->err);
    return status ? status : chat_put_all(w, (const char *const[4]){"\n</think>\n\n", answer});
}

static sn_status put_chatml_turn(writer *w, size_t i, size_t last_question) {
    const sn_chat_turn *turn = &w->turns[i];
    sn_status status = chat_put_all(w, (const char *const[4]){"<|im_start|>", turn->role, "\n"});
    if (status) return status;
    if (w->chat->strips_thinking && turn_is(turn, "assistant"))
        status = put_thinking_turn(w, turn->text, i > last_question && i + 1 == w->n);
    else
        status = chat_put(w, turn->text);
    return status ? status : chat_put(w, "<|im_end|>\n");
}

static sn_status render_chatml(writer *w, bool first, bool add_generation_prompt) {
    sn_status status = SN_OK;
    if (!first)
        status = chat_put(w, "\n"); /* of the assistant turn before */
    else if (w->chat->default_system && !starts_with_system(w))
        status =
            chat_put_all(w, (const char *const[4]){"<|im_start|>system\n", w->chat->default_system, "<|im_end|>\n"});
    size_t last_question = w->n - 1;
    while (last_question > 0 && !turn_is(&w->turns[last_question], "user")) last_question--;
    for (size_t i = 0; !status && i < w->n; i++) status = put_chatml_turn(w, i, last_question);
    return status || !add_generation_prompt ? status : chat_put(w, "<|im_start|>assistant\n");
}

/* ---- Llama 3 ---- */

static sn_status put_llama3_turn(writer *w, const char *role, const char *head, const char *text) {
    sn_status status =
        chat_put_all(w, (const char *const[4]){"<|start_header_id|>", role, "<|end_header_id|>\n\n", head});
    if (!status) status = w->chat->trims ? chat_put_trimmed(w, text) : chat_put(w, text);
    return status ? status : chat_put(w, "<|eot_id|>");
}

static sn_status render_llama3(writer *w, bool first, bool add_generation_prompt) {
    const char *head = w->chat->system_prefix;
    sn_status status = SN_OK;
    size_t i = 0;
    if (first && head) {
        bool given = starts_with_system(w);
        status = put_llama3_turn(w, "system", head, given ? w->turns[0].text : "");
        i = given ? 1 : 0;
    }
    for (; !status && i < w->n; i++) status = put_llama3_turn(w, w->turns[i].role, "", w->turns[i].text);
    if (status || !add_generation_prompt) return status;
    return chat_put(w, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

/* ---- Mistral ---- */

static sn_status put_mistral_question(writer *w, const char *text, const char *system) {
    sn_status status = chat_put_all(w, (const char *const[4]){w->chat->space_before_open ? " " : "", "[INST]",
                                                              w->chat->space_after_open ? " " : ""});
    if (!status && system) status = chat_put_all(w, (const char *const[4]){system, "\n\n"});
    return status ? status
                  : chat_put_all(w, (const char *const[4]){text, w->chat->space_before_close ? " " : "", "[/INST]"});
}

static sn_status put_mistral_answer(writer *w, const char *text) {
    sn_status status = chat_put(w, w->chat->space_before_answer ? " " : "");
    if (!status) status = w->chat->trims_answers ? chat_put_trimmed(w, text) : chat_put(w, text);
    return status ? status : chat_put_all(w, (const char *const[4]){w->chat->eos, w->chat->space_after_eos ? " " : ""});
}

/* Mistral, Llama 2, Gemma take an optional system turn, then user and assistant turns in alternation. */
static sn_status check_alternation(const writer *w, bool first) {
    bool system = starts_with_system(w);
    if (system && !first)
        return sn_fail(w->err, SN_REFUSED, "this model takes a system turn only at the beginning of a conversation");
    if (system && w->chat->system == SN_CHAT_SYSTEM_NONE)
        return sn_fail(w->err, SN_REFUSED, "this model's chat template takes no system turn");
    if (!system && first && w->chat->needs_system)
        return sn_fail(w->err, SN_REFUSED, "this model's chat template needs a system turn: give one");
    for (size_t i = system, k = 0; i < w->n; i++, k++)
        if (!turn_is(&w->turns[i], k % 2 ? "assistant" : "user"))
            return sn_fail(w->err, SN_REFUSED,
                           "this model's chat template takes user and assistant turns in alternation");
    return SN_OK;
}

static sn_status render_mistral(writer *w, bool first) {
    sn_status status = check_alternation(w, first);
    if (!status && !first && w->chat->space_after_eos) status = chat_put(w, " "); /* of the assistant turn before */
    const char *system = starts_with_system(w) ? w->turns[0].text : NULL;
    size_t begin = system ? 1 : 0;
    if (!status && system && w->chat->system == SN_CHAT_SYSTEM_TURN)
        status = chat_put_all(w, (const char *const[4]){"[SYSTEM_PROMPT]", system, "[/SYSTEM_PROMPT]"});
    for (size_t i = begin; !status && i < w->n; i++) {
        bool here = (w->chat->system == SN_CHAT_SYSTEM_FIRST && i == begin) ||
                    (w->chat->system == SN_CHAT_SYSTEM_LAST && i + 1 == w->n);
        if (turn_is(&w->turns[i], "user"))
            status = put_mistral_question(w, w->turns[i].text, here ? system : NULL);
        else
            status = put_mistral_answer(w, w->turns[i].text);
    }
    return status;
}

/* ---- Llama 2 ---- */

/* Where the template trims, it trims the system text and the user's text together. */
static sn_status put_llama2_question(writer *w, const char *text, const char *system) {
    sn_status status = chat_put_all(w, (const char *const[4]){w->chat->bos, "[INST] "});
    size_t begin = w->out->len;
    if (!status && system)
        status = chat_put_all(w, (const char *const[4]){"<<SYS>>\n", system, "\n<</SYS>>\n\n", text});
    if (!status && !system) status = w->chat->trims ? chat_put_trimmed(w, text) : chat_put(w, text);
    if (!status && w->chat->trims)
        w->out->len -= sn_utf8_trailing_space((const char *)w->out->data + begin, w->out->len - begin);
    return status ? status : chat_put(w, " [/INST]");
}

static sn_status render_llama2(writer *w, bool first) {
    sn_status status = check_alternation(w, first);
    const char *system = starts_with_system(w) ? w->turns[0].text : NULL;
    size_t begin = system ? 1 : 0;
    for (size_t i = begin; !status && i < w->n; i++) {
        const char *text = w->turns[i].text;
        if (turn_is(&w->turns[i], "user")) {
            status = put_llama2_question(w, text, i == begin ? system : NULL);
            continue;
        }
        status = chat_put(w, " ");
        if (!status) status = w->chat->trims ? chat_put_trimmed(w, text) : chat_put(w, text);
        if (!status) status = chat_put_all(w, (const char *const[4]){" ", w->chat->eos});
    }
    return status;
}

/* ---- Gemma ---- */

static sn_status render_gemma(writer *w, bool first, bool add_generation_prompt) {
    sn_status status = check_alternation(w, first);
    if (!status && !first) status = chat_put(w, "\n"); /* of the assistant turn before */
    const char *system = starts_with_system(w) ? w->turns[0].text : NULL;
    size_t begin = system ? 1 : 0;
    for (size_t i = begin; !status && i < w->n; i++) {
        const char *role = turn_is(&w->turns[i], "assistant") ? "model" : "user";
        status = chat_put_all(w, (const char *const[4]){"<start_of_turn>", role, "\n"});
        if (!status && system && i == begin) status = chat_put_all(w, (const char *const[4]){system, "\n\n"});
        if (!status) status = w->chat->trims ? chat_put_trimmed(w, w->turns[i].text) : chat_put(w, w->turns[i].text);
        if (!status) status = chat_put(w, "<end_of_turn>\n");
    }
    return status || !add_generation_prompt ? status : chat_put(w, "<start_of_turn>model\n");
}

/* ---- Phi-3 ---- */

static sn_status render_phi3(writer *w, bool first, bool add_generation_prompt) {
    bool asks = w->chat->question_opens_answer;
    sn_status status = SN_OK;
    for (size_t i = 0; !status && i < w->n; i++)
        if (turn_is(&w->turns[i], "system") && w->chat->system == SN_CHAT_SYSTEM_NONE)
            status = sn_fail(w->err, SN_REFUSED, "this model's chat template takes no system turn");
    if (!status && !first) status = chat_put(w, "\n"); /* of the assistant turn before */
    for (size_t i = 0; !status && i < w->n; i++) {
        const sn_chat_turn *turn = &w->turns[i];
        bool answer = turn_is(turn, "assistant");
        if (w->chat->skips_empty_system && turn_is(turn, "system") && !*turn->text) continue;
        if (!asks || !answer) status = chat_put_all(w, (const char *const[4]){"<|", turn->role, "|>\n"});
        if (!status) status = chat_put_all(w, (const char *const[4]){turn->text, "<|end|>\n"});
        if (!status && asks && turn_is(turn, "user")) status = chat_put(w, "<|assistant|>\n");
    }
    if (status || asks) return status;
    return chat_put(w, add_generation_prompt ? "<|assistant|>\n" : w->chat->eos);
}

static sn_status check_turns(const sn_chat_turn *turns, size_t n, sn_err *err) {
    if (n == 0 || n > SN_CHAT_TURNS_MAX)
        return sn_fail(err, SN_REFUSED, "a conversation has 1 to %d turns, this one %zu", SN_CHAT_TURNS_MAX, n);
    for (size_t i = 0; i < n; i++)
        if (!turn_is(&turns[i], "system") && !turn_is(&turns[i], "user") && !turn_is(&turns[i], "assistant"))
            return sn_fail(err, SN_REFUSED, "'%.60s' is no role in a conversation: use system, user or assistant",
                           turns[i].role);
    return SN_OK;
}

sn_status sn_chat_template_render(const sn_chat_template *chat, const sn_chat_turn *turns, size_t n_turns, bool first,
                                  bool add_generation_prompt, sn_buf *out, sn_err *err) {
    writer w = {.chat = chat, .turns = turns, .n = n_turns, .out = out, .err = err};
    sn_status status = check_turns(turns, n_turns, err);
    if (!status && first && chat->family != SN_CHAT_LLAMA2) status = chat_put(&w, chat->bos);
    if (status) return status;
    switch (chat->family) {
    case SN_CHAT_CHATML:
        return render_chatml(&w, first, add_generation_prompt);
    case SN_CHAT_LLAMA3:
        return render_llama3(&w, first, add_generation_prompt);
    case SN_CHAT_MISTRAL:
        return render_mistral(&w, first);
    case SN_CHAT_LLAMA2:
        return render_llama2(&w, first);
    case SN_CHAT_GEMMA:
        return render_gemma(&w, first, add_generation_prompt);
    case SN_CHAT_PHI3:
        return render_phi3(&w, first, add_generation_prompt);
    case SN_CHAT_UNKNOWN:
        return sn_fail(err, SN_REFUSED,
                       "the model's chat template is none of ChatML, Llama 2, Llama 3, Mistral, Gemma and Phi-3: write "
                       "the prompt out yourself");
    default:
        return sn_fail(err, SN_REFUSED, "the model has no chat template: it was not made for conversations");
    }
}

sn_status sn_chat_template_init(sn_chat_template *chat, const sn_tokenizer *tokenizer, sn_err *err) {
    const sn_chat_source source = sn_tokenizer_chat_source(tokenizer);
    return sn_chat_template_parse(chat, &source, err);
}

sn_status sn_chat_template_apply(const sn_tokenizer *tokenizer, const sn_chat_turn *turns, size_t n_turns, bool first,
                                 bool add_generation_prompt, sn_buf *out, sn_err *err) {
    sn_chat_template chat;
    sn_status status = sn_chat_template_init(&chat, tokenizer, err);
    if (status) return status;
    status = sn_chat_template_render(&chat, turns, n_turns, first, add_generation_prompt, out, err);
    sn_chat_template_fini(&chat);
    return status;
}
