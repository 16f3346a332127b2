/* A reading goes through the directory once for each rank of holders, so that those that have computed for this node
 * get their places before those that only say that they would. What was seen of a holder goes over to the new reading.
 * Then the experts are counted that neither this node nor a holder that is counted on has. Choosing reads the holders
 * only: the fastest of those with the expert that have answered, a new one for a few pairs, and when none has room, the
 * time at which one has. */
#include "node/protocol/expert_group.h"

#include <stdio.h>
#include <string.h>

enum {
    ANSWER_PAIRS = 16,        /* an answer takes as long as so many pairs, and longer by its own */
    FAILED_PAIR_US = 1000000, /* so slow a holder counts that has failed */
    ANSWER_US = 5000000,      /* an answer is late after so long, and for each of its pairs after */
    PAIR_US = 10000,          /* so long more, */
    SLOWER = 8, /* or so many times as long as a pair has taken so far; twice that if it was longer, and less */
    SEEN_PAIR_US = FAILED_PAIR_US / 4, /* than this: more is of a holder that failed */
    FAILED_US = 10000000,
    REFUSED_US = 600000000, /* it has blocks that can compute nothing for others, or other limits */
    TURN_US = 10000000,
    TRY_EVERY_US = 10000000,
    TRY_AGAIN_US = 600000000,
    TRY_US = 500000, /* a trial is late after so long: all pairs of the round wait for it */
    TRY_PAIRS = 16,
    FORGET = 32, /* a holder counts as faster by so small a part each time, so that it is asked again some day */
};

bool sn_span_info_is_part(const sn_span_info *span) {
    return span->hp->n_experts && span->experts.end && span->experts.end - span->experts.first < span->hp->n_experts;
}

static bool holder_has_block(const sn_expert_holder *h, int block) { return h->blocks[block / 8] >> block % 8 & 1; }

/* -- reading the directory ----------------------------------------------------------------------------------------- */

/* Whether the outputs of the announced node have the bits that those of this span have. */
static bool computes_alike(const sn_announcement *a, const sn_span_info *span) {
    return !span->exact || !strcmp(a->device, "cpu");
}

/* The blocks of the span that the announced node holds, too; false: none. */
static bool blocks_in_common(const sn_announcement *a, const sn_span_info *span, sn_expert_holder *out) {
    bool any = false;
    memset(out->blocks, 0, sizeof out->blocks);
    for (int b = span->first; b < span->end; b++) {
        uint64_t at = (uint64_t)b - a->first_block;
        if ((uint64_t)b < a->first_block || (uint64_t)b >= a->end_block || !sn_has_experts(span->hp, b)) continue;
        if (memcmp(a->block_hash[at], span->block_hash[b - span->first].bytes, SN_KEY_SIZE)) continue;
        out->blocks[(b - span->first) / 8] |= (uint8_t)(1 << (b - span->first) % 8);
        any = true;
    }
    return any;
}

static bool holder_read(const sn_expert_group_query *q, const sn_announcement *a, sn_expert_holder *out) {
    int n_experts = q->span->hp->n_experts;
    if (!memcmp(a->node, q->node, SN_KEY_SIZE) || memcmp(a->model, q->model, SN_KEY_SIZE) ||
        a->state == SN_NODE_OFFLINE || !computes_alike(a, q->span) || !blocks_in_common(a, q->span, out))
        return false;
    if (a->n_experts && a->experts[2] != (uint64_t)n_experts) return false;
    memcpy(out->node, a->node, SN_KEY_SIZE);
    memcpy(out->curve_key, a->curve_key, SN_KEY_SIZE);
    memcpy(out->address, a->address, sizeof out->address);
    out->first = a->n_experts ? (int)a->experts[0] : 0;
    out->end = a->n_experts ? (int)a->experts[1] : n_experts;
    out->leaving = a->state == SN_NODE_DRAINING;
    out->sequence = a->sequence;
    return true;
}

static sn_expert_holder *holder_find(sn_expert_holder *holders, size_t n, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; i < n; i++)
        if (!memcmp(holders[i].node, node, SN_KEY_SIZE)) return &holders[i];
    return NULL;
}

/* What was seen of the holder before this reading; NULL: nothing. */
static void holder_inherit(sn_expert_holder *h, const sn_expert_holder *known, int64_t now_us) {
    static const sn_expert_holder none;
    if (!known) known = &none;
    bool lives = h->sequence > known->failed_sequence && now_us >= known->failed_until_us;
    h->peer = known->peer;
    h->failed_sequence = lives ? 0 : known->failed_sequence;
    h->failed_until_us = known->failed_until_us;
    h->busy_until_us = known->busy_until_us;
    h->pair_us = known->pair_us - known->pair_us / FORGET;
    h->answers = known->answers;
    h->try_us = known->try_us;
}

/* Who gets a place in the group first: holders that have computed for this node, proven ones, those that this node has
 * not met, and at the end proven ones that have failed. Who fails before it was met keeps its place until the turn
 * changes: else any number of invented holders would be dialled without a pause, one in the place of the other. */
static int holder_rank(const sn_expert_holder *h) {
    if (!h->proven) return 2;
    return h->failed_sequence ? 3 : h->answers ? 0 : 1;
}

static void holders_read(sn_expert_group *group, const sn_expert_group_query *q) {
    enum { RANKS = 4 };
    size_t n = sn_directory_count(q->directory);
    /* Where the search begins moves, so that no order of announcements shuts a node out for good. */
    size_t turn = (size_t)(q->now_us / TURN_US) * SN_EXPERT_HOLDERS_MAX;
    size_t n_before = group->n;
    memcpy(group->before, group->holders, n_before * sizeof *group->before);
    group->n = 0;
    for (int rank = 0; rank < RANKS; rank++)
        for (size_t k = 0; k < n && group->n < SN_EXPERT_HOLDERS_MAX; k++) {
            size_t i = (k + turn) % n;
            sn_expert_holder *h = &group->holders[group->n];
            if (sn_directory_expiry_at(q->directory, i) <= (uint64_t)q->unix_ms ||
                !holder_read(q, sn_directory_at(q->directory, i), h))
                continue;
            h->proven = sn_directory_is_proven_at(q->directory, i, q->unix_ms);
            holder_inherit(h, holder_find(group->before, n_before, h->node), q->now_us);
            group->n += holder_rank(h) == rank;
        }
}

/* -- what is missing --------------------------------------------------------------------------------------------- */

/* held[e]: this node or a holder that is counted on holds expert e of the block. */
static void experts_held(const sn_expert_group *group, const sn_expert_group_query *q, int block, bool *held) {
    memset(held, 0, (size_t)q->span->hp->n_experts * sizeof *held);
    for (int e = q->span->experts.first; e < q->span->experts.end; e++) held[e] = true;
    for (size_t i = 0; i < group->n; i++) {
        const sn_expert_holder *h = &group->holders[i];
        if (h->leaving || !h->proven || h->failed_sequence || !holder_has_block(h, block)) continue;
        for (int e = h->first; e < h->end; e++) held[e] = true;
    }
}

/* "86:172,200:256"; empty: all are held. */
static void ranges_write(const bool *held, int n, char *out, size_t capacity) {
    size_t at = 0;
    *out = 0;
    for (int e = 0, end; e < n; e = end + 1) {
        for (end = e; end < n && !held[end]; end++) {}
        if (end == e) continue;
        int len = snprintf(out + at, capacity - at, "%s%d:%d", at ? "," : "", e, end);
        if (len < 0 || (size_t)len >= capacity - at) return;
        at += (size_t)len;
    }
}

/* Blocks one after the other that lack the same experts are named together. */
static void group_write_lacks(sn_expert_group *group, const sn_expert_group_query *q) {
    enum { RANGES = 128 };
    const sn_span_info *span = q->span;
    bool held[SN_MODEL_EXPERTS_MAX];
    char ranges[RANGES] = "", next[RANGES] = "";
    size_t used = 0;
    *group->lacks = 0;
    for (int b = span->first, from = b; b <= span->end; b++) {
        *next = 0;
        if (b < span->end && sn_has_experts(span->hp, b)) {
            experts_held(group, q, b - span->first, held);
            ranges_write(held, span->hp->n_experts, next, sizeof next);
        }
        if (!strcmp(ranges, next)) continue;
        if (*ranges && used < sizeof group->lacks)
            used += (size_t)snprintf(group->lacks + used, sizeof group->lacks - used, "%sexperts %s of blocks %d:%d",
                                     used ? ", " : "", ranges, from, b);
        memcpy(ranges, next, sizeof ranges);
        from = b;
    }
    group->complete = !*group->lacks;
}

void sn_expert_group_read(sn_expert_group *group, const sn_expert_group_query *query) {
    holders_read(group, query);
    group_write_lacks(group, query);
}

/* -- choosing ------------------------------------------------------------------------------------------------------ */

static bool holder_is_asked_for(const sn_expert_holder *h, int block, int expert) {
    return expert >= h->first && expert < h->end && holder_has_block(h, block) && h->proven && !h->failed_sequence;
}

static bool holder_is_on_trial(const sn_expert_group *group, const sn_expert_holder *h) {
    return !memcmp(group->tried, h->node, SN_KEY_SIZE) && group->tried_pairs < TRY_PAIRS;
}

/* Whether a holder that does not answer yet gets a pair, though another one answers: it may be silent. */
static bool holder_is_tried(sn_expert_group *group, sn_expert_holder *h, int64_t now_us) {
    if (now_us >= group->try_us && now_us >= h->try_us) {
        memcpy(group->tried, h->node, SN_KEY_SIZE);
        group->tried_pairs = 0;
        group->try_us = now_us + TRY_EVERY_US;
        h->try_us = now_us + TRY_AGAIN_US;
    }
    if (!holder_is_on_trial(group, h)) return false;
    group->tried_pairs++;
    return true;
}

/* Whether the trial of `a` comes before that of `b`: one that has begun goes on, then who has waited longest is next.
 */
static bool trial_is_before(const sn_expert_group *group, const sn_expert_holder *a, const sn_expert_holder *b) {
    return !holder_is_on_trial(group, b) && (holder_is_on_trial(group, a) || a->try_us < b->try_us);
}

sn_expert_holder *sn_expert_group_choose(sn_expert_group *group, int block, int expert, int64_t now_us, bool *trial) {
    sn_expert_holder *best = NULL, *other = NULL, *newcomer = NULL;
    for (size_t i = 0; i < group->n; i++) {
        sn_expert_holder *h = &group->holders[i], **kind = h->answers ? &best : &other;
        if (!holder_is_asked_for(h, block, expert) || h->busy_until_us > now_us) continue;
        if (!*kind || h->pair_us < (*kind)->pair_us) *kind = h;
        if (!h->answers && (!newcomer || trial_is_before(group, h, newcomer))) newcomer = h;
    }
    *trial = best && newcomer && holder_is_tried(group, newcomer, now_us);
    return *trial ? newcomer : best ? best : other;
}

void sn_expert_group_end_trial(sn_expert_group *group) { group->tried_pairs = TRY_PAIRS; }

int64_t sn_expert_group_room_us(const sn_expert_group *group, int block, int expert) {
    int64_t first_us = INT64_MAX;
    for (size_t i = 0; i < group->n; i++) {
        const sn_expert_holder *h = &group->holders[i];
        if (holder_is_asked_for(h, block, expert) && h->busy_until_us < first_us) first_us = h->busy_until_us;
    }
    return first_us;
}

sn_expert_holder *sn_expert_group_find(sn_expert_group *group, const uint8_t node[SN_KEY_SIZE]) {
    return holder_find(group->holders, group->n, node);
}

void sn_expert_holder_failed(sn_expert_holder *holder, int64_t now_us) {
    holder->failed_sequence = holder->sequence ? holder->sequence : 1;
    holder->failed_until_us = now_us + FAILED_US;
    holder->pair_us = FAILED_PAIR_US;
    holder->answers = false;
    holder->try_us = now_us + TRY_AGAIN_US;
}

void sn_expert_holder_refused(sn_expert_holder *holder, int64_t now_us) {
    sn_expert_holder_failed(holder, now_us);
    holder->failed_until_us = now_us + REFUSED_US;
}

int64_t sn_expert_holder_limit_us(const sn_expert_holder *holder, size_t pairs, bool trial) {
    if (trial) return TRY_US;
    int64_t seen_us = holder->pair_us < SEEN_PAIR_US ? holder->pair_us : 0;
    int64_t pair_us = seen_us && SLOWER * seen_us < PAIR_US ? SLOWER * seen_us : PAIR_US;
    return ANSWER_US + (int64_t)pairs * (pair_us > 2 * seen_us ? pair_us : 2 * seen_us);
}

void sn_expert_holder_answered(sn_expert_holder *holder, size_t pairs, int64_t us) {
    int64_t pair_us = us / (int64_t)(pairs + ANSWER_PAIRS) + 1;
    holder->answers = true;
    holder->pair_us = holder->pair_us ? (7 * holder->pair_us + pair_us) / 8 : pair_us;
}
