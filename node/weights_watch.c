#include "node/weights_watch.h"

#include "base/log.h"

#include <string.h>

enum { EVERY_US = 5000000 };

/* Whether this node with other weights is to be named; notes it. */
static bool is_new(sn_weights_watch *watch, const uint8_t node[SN_KEY_SIZE]) {
    uint64_t digits;
    memcpy(&digits, node, sizeof digits);
    for (size_t i = 0; i < watch->n_named; i++)
        if (watch->named[i] == digits) return false;
    if (watch->n_named == SN_WEIGHTS_WATCH_NAMED) return false;
    watch->named[watch->n_named++] = digits;
    return true;
}

static void look_at(sn_weights_watch *watch, const sn_announcement *a, const sn_span_info *span) {
    char id[2 * SN_KEY_SIZE + 1];
    for (int b = span->first; b < span->end; b++) {
        if (b < (int)a->first_block || b >= (int)a->end_block) continue;
        bool same =
            !memcmp(span->block_hash[b - span->first].bytes, a->block_hash[b - (int)a->first_block], SN_HASH_SIZE);
        if (same && !watch->confirmed) {
            watch->confirmed = true;
            sn_log(SN_LOG_INFO, "weights confirmed", "node=%s block=%d text=another node announces the same weights",
                   sn_hex(a->node, SN_KEY_SIZE, id), b);
        }
        if (same || !is_new(watch, a->node)) continue;
        sn_log_rated(
            SN_LOG_WARN, "weights differ", "node=%s name=%s block=%d text=%s", sn_hex(a->node, SN_KEY_SIZE, id),
            a->name, b,
            "one of the two nodes has other weights than this model's: compare both with a manifest (--manifest)");
        return;
    }
}

int64_t sn_weights_watch_tick(sn_weights_watch *watch, const sn_directory *directory, const sn_hash *model,
                              const uint8_t *self, const sn_span_info *span, int64_t now_us, int64_t unix_ms) {
    if (!watch->on) return INT64_MAX;
    if (now_us < watch->due_us) return watch->due_us;
    for (size_t i = 0; i < sn_directory_count(directory); i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        if (a->state <= SN_NODE_ONLINE && a->end_block - a->first_block <= SN_SPAN_BLOCKS_MAX &&
            a->end_block > a->first_block && !memcmp(a->model, model->bytes, SN_HASH_SIZE) &&
            memcmp(a->node, self, SN_KEY_SIZE) && sn_directory_is_proven_at(directory, i, unix_ms))
            look_at(watch, a, span);
    }
    return watch->due_us = now_us + EVERY_US;
}
