#include "node/engine/throughput.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum {
    PROMPT_ROWS = 128,
    PROMPT_ROWS_MIN = 32, /* a pass with at least so many rows counts as prefill */
    SEVERAL_ROWS_MIN = 8,
    DECODES_MAX = 8,
    DECODE_US_MAX = 200000,
    PROMPT_US_MAX = 1000000,
};

static uint64_t running_mean(uint64_t before, uint64_t now) { return before ? (7 * before + now + 7) / 8 : now; }

void sn_throughput_update(sn_throughput *throughput, int rows, int64_t us) {
    uint64_t took = us > 0 ? (uint64_t)us : 1;
    if (rows == 1) throughput->decode_us = running_mean(throughput->decode_us, took);
    if (rows >= SEVERAL_ROWS_MIN) {
        uint64_t added = took > throughput->decode_us ? took - throughput->decode_us : 0;
        throughput->row_ns = running_mean(throughput->row_ns, added * 1000 / (uint64_t)(rows - 1) + 1);
    }
    if (rows < PROMPT_ROWS_MIN) return;
    uint64_t rate = (uint64_t)rows * 1000000 / took;
    throughput->prompt_tokens_per_s = running_mean(throughput->prompt_tokens_per_s, rate ? rate : 1);
}

/* One pass of n rows that are appended to the KV cache. */
static sn_status forward_timed(sn_span *span, sn_kv_cache *kv, const sn_tensor *input, float *output, int n,
                               int64_t *us, sn_err *err) {
    int64_t before = sn_now_us();
    const sn_span_sequence part = {.kv = kv, .input = input, .n_rows = n, .output = output};
    uint64_t moved = 0;
    sn_status status = sn_kv_cache_reserve(kv, n, err);
    if (!status) status = sn_span_forward(span, sn_span_first(span), sn_span_end(span), 1, &part, &moved, err);
    *us = sn_now_us() - before;
    return status;
}

static sn_status span_measure(sn_span *span, sn_kv_cache *kv, const sn_tensor *input, float *output,
                              sn_throughput *throughput, sn_err *err) {
    int64_t us = 0, spent = 0, best = INT64_MAX;
    sn_status status = forward_timed(span, kv, input, output, 1, &us, err); /* the first pass is slower: not counted */
    for (int i = 0; i < DECODES_MAX && spent < DECODE_US_MAX && !status; i++) {
        status = forward_timed(span, kv, input, output, 1, &us, err);
        spent += us;
        if (us < best) best = us;
    }
    if (status) return status;
    sn_throughput_update(throughput, 1, best);
    int rows = PROMPT_ROWS;
    while (rows > PROMPT_ROWS_MIN && rows * best > 4 * (int64_t)PROMPT_US_MAX) rows /= 2;
    status = forward_timed(span, kv, input, output, rows, &us, err);
    if (!status) sn_throughput_update(throughput, rows, us);
    return status;
}

/* -- experts that the span does not hold: their outputs are zeros, at once ------------------------------------------
 */

static sn_status zeros_begin(void *self, const sn_expert_request *request, sn_err *err) {
    (void)err;
    *(sn_expert_request *)self = *request;
    return SN_OK;
}

static sn_status zeros_finish(void *self, float *expert_out, sn_err *err) {
    (void)err;
    const sn_expert_request *r = self;
    size_t width = (size_t)r->n_embd, n = (size_t)r->n * (size_t)r->k;
    for (size_t i = 0; i < n && expert_out; i++)
        if (r->ids[i] >= 0) memset(expert_out + i * width, 0, width * sizeof *expert_out);
    return SN_OK;
}

sn_throughput sn_throughput_measure(sn_span *span, sn_kv_pool *pool) {
    sn_throughput throughput = {0};
    sn_err err = {0};
    int n_embd = sn_span_hparams(span)->n_embd;
    sn_kv_cache *kv = NULL;
    float *rows = NULL;
    sn_status status = sn_calloc(&rows, 2 * (size_t)PROMPT_ROWS * (size_t)n_embd, sizeof *rows, &err);
    for (size_t i = 0; i < (size_t)PROMPT_ROWS * (size_t)n_embd && !status;
         i++) /* small values of both signs, like hidden states */
        rows[i] = (float)((int)(i * 2654435761u >> 16 & 255) - 128) / 256;
    const sn_tensor input = {
        .name = "throughput test", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {PROMPT_ROWS, n_embd}};
    sn_expert_request asked;
    const sn_expert_exchange zeros = {&asked, zeros_begin, zeros_finish};
    sn_span_set_expert_exchange(span, &zeros);
    if (!status) status = sn_kv_cache_new(pool, &kv, &err);
    if (!status)
        status = span_measure(span, kv, &input, rows + (size_t)PROMPT_ROWS * (size_t)n_embd, &throughput, &err);
    if (status) sn_log(SN_LOG_INFO, "throughput not measured", "text=%s", err.text);
    sn_span_set_expert_exchange(span, NULL);
    sn_kv_cache_free(&kv);
    free(rows);
    return throughput;
}
