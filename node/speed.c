#include "node/speed.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

enum {
    PROMPT_ROWS = 128,
    PROMPT_ROWS_MIN = 32, /* from here on a pass counts as one over many tokens */
    SEVERAL_ROWS_MIN = 8,
    DECODES_MAX = 8,
    DECODE_US_MAX = 200000,
    PROMPT_US_MAX = 1000000,
};

static uint64_t mean(uint64_t before, uint64_t now) { return before ? (7 * before + now + 7) / 8 : now; }

void sn_speed_note(sn_speed *speed, int rows, int64_t us) {
    uint64_t took = us > 0 ? (uint64_t)us : 1;
    if (rows == 1) speed->decode_us = mean(speed->decode_us, took);
    if (rows >= SEVERAL_ROWS_MIN) {
        uint64_t added = took > speed->decode_us ? took - speed->decode_us : 0;
        speed->row_ns = mean(speed->row_ns, added * 1000 / (uint64_t)(rows - 1) + 1);
    }
    if (rows < PROMPT_ROWS_MIN) return;
    uint64_t rate = (uint64_t)rows * 1000000 / took;
    speed->prompt_tokens_per_s = mean(speed->prompt_tokens_per_s, rate ? rate : 1);
}

/* One pass of n rows behind the past's end. */
static sn_status pass(sn_span *span, sn_kv *kv, const sn_tensor *input, float *output, int n, int64_t *us, sn_err *err) {
    int64_t before = sn_now_us();
    const sn_span_part part = {.kv = kv, .input = input, .n_rows = n, .output = output};
    uint64_t moved = 0;
    sn_status status = sn_kv_reserve(kv, n, err);
    if (!status) status = sn_span_forward(span, sn_span_first(span), sn_span_end(span), 1, &part, &moved, err);
    *us = sn_now_us() - before;
    return status;
}

static sn_status measure(sn_span *span, sn_kv *kv, const sn_tensor *input, float *output, sn_speed *speed, sn_err *err) {
    int64_t us = 0, spent = 0, best = INT64_MAX;
    sn_status status = pass(span, kv, input, output, 1, &us, err); /* the first is cold */
    for (int i = 0; i < DECODES_MAX && spent < DECODE_US_MAX && !status; i++) {
        status = pass(span, kv, input, output, 1, &us, err);
        spent += us;
        if (us < best) best = us;
    }
    if (status) return status;
    sn_speed_note(speed, 1, best);
    int rows = PROMPT_ROWS;
    while (rows > PROMPT_ROWS_MIN && rows * best > 4 * (int64_t)PROMPT_US_MAX) rows /= 2;
    status = pass(span, kv, input, output, rows, &us, err);
    if (!status) sn_speed_note(speed, rows, us);
    return status;
}

sn_speed sn_speed_test(sn_span *span, sn_kv_pool *pool) {
    sn_speed speed = {0};
    sn_err err = {0};
    int n_embd = sn_span_hparams(span)->n_embd;
    sn_kv *kv = NULL;
    float *rows = NULL;
    sn_status status = sn_calloc(&rows, 2 * (size_t)PROMPT_ROWS * (size_t)n_embd, sizeof *rows, &err);
    for (size_t i = 0; i < (size_t)PROMPT_ROWS * (size_t)n_embd && !status; i++) /* like hidden states: small, of both signs */
        rows[i] = (float)((int)(i * 2654435761u >> 16 & 255) - 128) / 256;
    const sn_tensor input = {
        .name = "speed test", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {PROMPT_ROWS, n_embd}};
    if (!status) status = sn_kv_new(pool, &kv, &err);
    if (!status) status = measure(span, kv, &input, rows + (size_t)PROMPT_ROWS * (size_t)n_embd, &speed, &err);
    if (status) sn_log(SN_LOG_INFO, "speed not measured", "text=%s", err.text);
    sn_kv_free(&kv);
    free(rows);
    return speed;
}
