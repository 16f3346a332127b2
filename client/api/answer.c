/* From tokens to the parts of an answer. A character that more tokens may complete waits. */
#include "client/api/api_private.h"

#include "base/wide_json.h"
#include "client/api/report.h"
#include "text/tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>

struct swarm_answer {
    const swarm_model *model;
    sn_answer_reader *reader;
    sn_buf text, special; /* not valid UTF-8 yet, and which of its bytes belong to special tokens */
    bool begun;
};

int swarm_model_prompt_thinks(const swarm_model *m, const char *prompt, size_t length) {
    sn_err err;
    const sn_answer_format *answers;
    return !sn_model_open_answers(m, &answers, &err) && sn_answer_format_prompt_thinks(answers, prompt, length);
}

swarm_code swarm_model_answer_marks(const swarm_model *m, char **json, size_t *length, swarm_error **error) {
    sn_err err;
    const sn_answer_format *answers = NULL;
    sn_status status = sn_model_open_answers(m, &answers, &err);
    if (!status) status = sn_api_json(sn_answer_format_marks(answers), json, length, &err);
    return sn_api_end(status, &err, NULL, error);
}

swarm_code swarm_answer_open(const swarm_model *m, const char *tools, size_t tools_length, int flags,
                             swarm_answer **answer, swarm_error **error) {
    sn_err err;
    swarm_answer *a = NULL;
    const sn_answer_format *format = NULL;
    json_t *list = tools ? sn_wide_json_load(tools, tools_length, 0, NULL) : NULL;
    sn_status status =
        tools && !json_is_array(list) ? sn_fail(&err, SN_REFUSED, "the tools are not a JSON list") : SN_OK;
    if (!status) status = sn_model_needs_tokenizer(m, &err);
    if (!status) status = sn_model_open_answers(m, &format, &err);
    if (!status) status = sn_calloc(&a, 1, sizeof *a, &err);
    if (!status) {
        a->model = m;
        sn_buf_init(&a->text, SIZE_MAX);
        sn_buf_init(&a->special, SIZE_MAX);
        status = sn_answer_reader_open(format, flags & SWARM_ANSWER_THINKS, list, &a->reader, &err);
    }
    json_decref(list);
    *answer = status ? NULL : a;
    if (status) swarm_answer_close(a);
    return sn_api_end(status, &err, NULL, error);
}

void swarm_answer_close(swarm_answer *a) {
    if (!a) return;
    sn_answer_reader_close(&a->reader);
    sn_buf_fini(&a->text);
    sn_buf_fini(&a->special);
    free(a);
}

/* Appends the text of a token with special ones spelled out. */
static sn_status spell(swarm_answer *a, int32_t id, sn_err *err) {
    sn_buf plain;
    sn_buf_init(&plain, SIZE_MAX);
    sn_status status = sn_model_spell_token(a->model, id, true, &a->text, err);
    if (!status) status = sn_model_spell_token(a->model, id, false, &plain, err);
    const uint8_t mark = !plain.len;
    if (!status && !a->begun) sn_model_drop_space(a->model, &a->text);
    a->begun |= a->text.len > 0;
    while (!status && a->special.len < a->text.len) status = sn_buf_append(&a->special, &mark, 1, err);
    sn_buf_fini(&plain);
    return status;
}

static void drop_front(sn_buf *buf, size_t n) {
    if (n) memmove(buf->data, buf->data + n, buf->len - n);
    buf->len -= n;
}

/* Gives the reader what is whole, with U+FFFD for what is not UTF-8. */
static sn_status read_text(swarm_answer *a, bool ends, sn_err *err) {
    static const char replacement[] = "\xef\xbf\xbd";
    const char *bytes = a->text.len ? (const char *)a->text.data : "";
    const size_t len = ends ? a->text.len : sn_utf8_complete_prefix(bytes, a->text.len);
    size_t valid = 0, at = 0;
    uint32_t code;
    sn_status status = SN_OK;
    for (size_t n; at < len && !status; at += n) {
        n = sn_utf8_decode(bytes + at, len - at, &code);
        if (n) continue;
        const uint8_t marks[3] = {a->special.data[at], a->special.data[at], a->special.data[at]};
        status = sn_answer_reader_add(a->reader, bytes + valid, a->special.data + valid, at - valid, false, err);
        if (!status) status = sn_answer_reader_add(a->reader, replacement, marks, 3, false, err);
        valid = at + (n = 1);
    }
    const uint8_t *special = a->special.len ? a->special.data + valid : NULL;
    if (!status) status = sn_answer_reader_add(a->reader, bytes + valid, special, len - valid, ends, err);
    if (len) drop_front(&a->text, len);
    if (len) drop_front(&a->special, len);
    return status;
}

swarm_code swarm_answer_add(swarm_answer *a, const int32_t *ids, size_t n, int flags, swarm_error **error) {
    sn_err err;
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++) status = spell(a, ids[i], &err);
    if (!status) status = read_text(a, flags & SWARM_ANSWER_ENDS, &err);
    return sn_api_end(status, &err, NULL, error);
}

const char *swarm_answer_text(const swarm_answer *a, swarm_answer_part part, size_t call, size_t *length) {
    const size_t calls = sn_answer_reader_calls(a->reader);
    switch (part) {
    case SWARM_ANSWER_CONTENT:
        return sn_answer_reader_content(a->reader, length);
    case SWARM_ANSWER_THOUGHT:
        return sn_answer_reader_thought(a->reader, length);
    case SWARM_ANSWER_CALL:
        if (call < calls) return sn_answer_reader_name(a->reader, call, length);
        break;
    case SWARM_ANSWER_ARGUMENTS:
        if (call < calls) return sn_answer_reader_arguments(a->reader, call, length);
        break;
    }
    *length = 0;
    return NULL;
}

/* 9 parameters: two texts, one list of ids and one result with their lengths */
swarm_code swarm_model_read_answer(const swarm_model *m, const char *tools, size_t tools_length, int flags,
                                   const int32_t *ids, size_t n, char **json, size_t *length, swarm_error **error) {
    sn_err err;
    swarm_answer *a = NULL;
    swarm_code code = swarm_answer_open(m, tools, tools_length, flags, &a, error);
    if (!code) code = swarm_answer_add(a, ids, n, flags, error);
    if (!code) code = sn_api_end(sn_api_json(sn_answer_reader_json(a->reader), json, length, &err), &err, NULL, error);
    swarm_answer_close(a);
    return code;
}
