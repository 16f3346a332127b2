/* EXPERTS: experts that this node computes for others, and those that it asks of others.
 *
 * A node with a part of the experts (--experts) serves clients only while it and the live nodes that it knows hold all
 * of them (expert_group.h); a tick reads that anew each second, and announces a change.
 *
 * Asking: the device thread hands over a round (node/engine/expert_rounds.h) and waits. Its pairs are shared out among
 * holders, one EXPERTS each, and every answer is copied to its places. A holder that refuses, is lost, is late or
 * answers with anything but the tensor that was asked for is dropped for a while (sn_expert_holder_failed), and the
 * pairs that it had are shared out anew. Where no holder has room, pairs wait for one for ROOM_US; after it, and
 * without a holder the round has failed, and with it the steps of its batch, which clients then take elsewhere. There
 * is one round at a time, because the device thread waits for it.
 *
 * Answering: an EXPERTS is checked in full here, and becomes a job that passes the scheduler by and is computed in
 * parts (node/engine/engine.c). A peer has few of them
 * in the engine, because an honest one waits for its answers. */
#include "node/protocol/protocol_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    READ_EVERY_US = 1000000,
    ASK_EVERY_US = 10000000, /* others are asked for holders, while experts are missing */
    BUSY_US_MAX = 10000000,
    BUSY_US = 500000, /* for which a holder that had no room and did not say for how long is not asked */
    BUSY_US_MIN = 20000,
    ROOM_US = 5000000, /* so long pairs wait for a holder that has room */
    REPLY_BYTES_MAX = 64 << 20,
    JOBS_OF_PEER = 4,
    JOBS_BYTES_MAX = 4 * REPLY_BYTES_MAX,
};

enum { PAIR_OPEN = -1, PAIR_DONE = -2 }; /* in asked_of */

static bool is_part(const sn_protocol *protocol) {
    return protocol->setup.span.block_hash && sn_span_info_is_part(&protocol->setup.span);
}

const char *sn_protocol_experts_lacking(const sn_protocol *protocol) {
    return is_part(protocol) && !protocol->experts.group.complete ? protocol->experts.group.lacks : NULL;
}

static void group_read(sn_protocol *protocol, int64_t now_us);

/* -- the group ----------------------------------------------------------------------------------------------------- */

static sn_status holder_dial(sn_protocol *protocol, sn_expert_holder *holder, int64_t now_us, sn_err *err) {
    sn_outgoing_target to = {0};
    memcpy(to.address, holder->address, sizeof to.address);
    memcpy(to.curve_key, holder->curve_key, SN_KEY_SIZE);
    return sn_protocol_dial(protocol, protocol->setup.identity->curve_key, &to, now_us, &holder->peer, err);
}

/* Keeps a connection to the holder, whose end is noticed, and asks one that is not proven for an answer. */
static void holder_meet(sn_protocol *protocol, sn_expert_holder *holder, int64_t now_us) {
    sn_err err;
    if (holder->failed_sequence || holder_dial(protocol, holder, now_us, &err) || holder->proven) return;
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_PING, ++protocol->last_correlation_id);
    if (msg) sn_protocol_send(protocol, holder->peer, &msg);
}

void sn_protocol_experts_pong(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    for (size_t i = 0; i < x->group.n; i++) {
        sn_expert_holder *holder = &x->group.holders[i];
        if (holder->peer != event->peer || holder->proven) continue;
        sn_membership_prove(protocol->membership, holder->node, event->key, protocol->unix_ms);
        group_read(protocol, now_us);
        return;
    }
}

static void group_read(sn_protocol *protocol, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    const sn_expert_group_query query = {.directory = sn_protocol_directory(protocol),
                                         .node = protocol->setup.identity->id,
                                         .model = protocol->setup.model.bytes,
                                         .span = &protocol->setup.span,
                                         .unix_ms = protocol->unix_ms,
                                         .now_us = now_us};
    bool before = x->group.complete, first = !x->read_us;
    x->read_us = now_us > 0 ? now_us : 1;
    sn_expert_group_read(&x->group, &query);
    for (size_t i = 0; i < x->group.n; i++) holder_meet(protocol, &x->group.holders[i], now_us);
    if (!x->group.complete && now_us >= x->ask_us) {
        x->ask_us = now_us + ASK_EVERY_US;
        sn_membership_ask_for_blocks(protocol->membership, query.model, query.span->first, query.span->end);
    }
    if (x->group.complete == before && !first) return;
    if (x->group.complete)
        sn_log(SN_LOG_INFO, "experts complete", "holders=%zu", x->group.n);
    else
        sn_log(SN_LOG_WARN, "experts missing", "text=no node holds %s: clients are not served", x->group.lacks);
    if (!first) sn_membership_announce(protocol->membership, now_us, protocol->unix_ms);
}

void sn_protocol_experts_served(sn_protocol *protocol, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    x->read_us = 0;
    x->group.n = 0;
    if (is_part(protocol)) group_read(protocol, now_us);
}

void sn_protocol_experts_forget(sn_protocol *protocol) {
    sn_expert_work *x = &protocol->experts;
    sn_expert_round_free(&x->round);
    free(x->asked_of);
    x->asked_of = NULL;
    x->n_asks = 0;
}

/* -- asking -------------------------------------------------------------------------------------------------------- */

/* Gives the round back; where it has failed, the group may lack experts. */
static void round_end(sn_protocol *protocol, sn_status status, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    sn_expert_round *round = x->round;
    round->status = status;
    round->err.status = status;
    x->counters.rounds++;
    x->counters.failed += status != SN_OK;
    x->round = NULL;
    sn_protocol_experts_forget(protocol);
    protocol->setup.answer_round(protocol->setup.ctx, round);
    if (status && x->read_us != now_us && is_part(protocol)) group_read(protocol, now_us);
}

static size_t ask_pairs_max(const sn_expert_round *round) {
    size_t most = REPLY_BYTES_MAX / ((size_t)round->n_embd * sizeof(float));
    return most < 1 ? 1 : most < SN_EXPERT_PAIRS_MAX ? most : SN_EXPERT_PAIRS_MAX;
}

/* The ask of this holder that still takes pairs, or a new one; -1: there are too many. */
static int ask_for(sn_expert_work *x, const sn_expert_holder *holder, size_t pairs_max) {
    int at = x->n_asks;
    for (int i = 0; i < x->n_asks; i++) {
        const sn_expert_ask *ask = &x->asks[i];
        if (ask->peer) continue;
        if (!ask->n_pairs)
            at = i; /* it is over */
        else if (ask->n_pairs < pairs_max && !memcmp(ask->holder, holder->node, SN_KEY_SIZE))
            return i;
    }
    if (at == SN_EXPERT_ASKS_MAX) return -1;
    if (at == x->n_asks) x->n_asks++;
    x->asks[at] = (sn_expert_ask){0};
    memcpy(x->asks[at].holder, holder->node, SN_KEY_SIZE);
    return at;
}

/* Whether a holder of the expert will have room before the time for that is over. Because the group may change until
 * then, open pairs are shared out anew sooner. */
static bool waits_for_room(sn_expert_work *x, int block, int expert, int64_t now_us) {
    int64_t room_us = sn_expert_group_room_us(&x->group, block, expert), again_us = now_us + READ_EVERY_US;
    if (!x->waits_since_us) x->waits_since_us = now_us;
    if (room_us - x->waits_since_us + x->waited_us >= ROOM_US || room_us >= x->round->until_us) return false;
    if (room_us < again_us) again_us = room_us;
    if (again_us < x->room_us) x->room_us = again_us;
    return true;
}

/* Gives every open pair to a holder, but those that wait until one has room. */
static sn_status round_share_out(sn_protocol *protocol, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    sn_expert_round *round = x->round;
    int block = round->block - protocol->setup.span.first;
    x->room_us = INT64_MAX;
    for (size_t i = 0; i < round->n_pairs; i++) {
        if (x->asked_of[i] != PAIR_OPEN) continue;
        int expert = (int)round->pairs[i].expert;
        bool trial;
        const sn_expert_holder *holder = sn_expert_group_choose(&x->group, block, expert, now_us, &trial);
        if (!holder && waits_for_room(x, block, expert, now_us)) continue;
        if (!holder)
            return sn_fail(&round->err, SN_RETRY, "no node answers for expert %d of block %d: use another node", expert,
                           round->block);
        int at = ask_for(x, holder, ask_pairs_max(round));
        if (at < 0) return sn_fail(&round->err, SN_RETRY, "the experts of a batch are too many to ask for");
        x->asks[at].n_pairs++;
        x->asks[at].needed |= !trial;
        x->asked_of[i] = at;
    }
    if (x->room_us == INT64_MAX && x->waits_since_us) {
        x->waited_us += now_us - x->waits_since_us;
        x->waits_since_us = 0;
    }
    return SN_OK;
}

/* The EXPERTS of an ask: its pairs, and the rows that they name. */
static sn_status ask_make(const sn_protocol *protocol, int at, sn_msg **out, sn_err *err) {
    const sn_expert_work *x = &protocol->experts;
    const sn_expert_round *round = x->round;
    size_t n_rows = 0, n = 0, width = (size_t)round->n_embd;
    uint64_t last = UINT64_MAX;
    void *data = NULL;
    float *rows;
    sn_msg *msg = NULL;
    for (size_t i = 0; i < round->n_pairs; i++) {
        if (x->asked_of[i] != at || round->pairs[i].row == last) continue;
        last = round->pairs[i].row;
        n_rows++;
    }
    sn_status status = sn_msg_new(SN_MSG_EXPERTS, x->asks[at].correlation_id, &msg, err);
    if (!status)
        status =
            sn_list_new(x->asks[at].n_pairs, SN_EXPERT_PAIRS_MAX, sizeof *msg->experts.pairs, &msg->experts.pairs, err);
    if (!status) status = sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){n_rows, width}, &data, err);
    if (status) {
        sn_msg_free(&msg);
        return status;
    }
    int block = round->block - protocol->setup.span.first;
    msg->experts.protocol = SN_PROTOCOL_VERSION;
    msg->experts.block = (uint64_t)round->block;
    memcpy(msg->experts.block_hash, protocol->setup.span.block_hash[block].bytes, SN_HASH_SIZE);
    rows = data;
    last = UINT64_MAX;
    n_rows = 0;
    for (size_t i = 0; i < round->n_pairs; i++) {
        if (x->asked_of[i] != at) continue;
        if (round->pairs[i].row != last) {
            last = round->pairs[i].row;
            memcpy(rows + n_rows++ * width, round->rows + last * width, width * sizeof *rows);
        }
        msg->experts.pairs[n++] = (sn_expert_pair){.row = n_rows - 1, .expert = round->pairs[i].expert};
    }
    msg->experts.n_pairs = n;
    *out = msg;
    return SN_OK;
}

static sn_status ask_send(sn_protocol *protocol, int at, sn_expert_holder *holder, int64_t now_us, sn_err *err) {
    sn_expert_ask *ask = &protocol->experts.asks[at];
    sn_msg *msg = NULL;
    ask->correlation_id = ++protocol->last_correlation_id;
    sn_status status = ask_make(protocol, at, &msg, err);
    if (!status) status = holder_dial(protocol, holder, now_us, err);
    if (!status) status = sn_transport_send(protocol->setup.transport, holder->peer, &msg, err);
    sn_msg_free(&msg);
    if (status) return status;
    ask->peer = holder->peer;
    ask->sent_us = now_us;
    ask->until_us = now_us + sn_expert_holder_limit_us(holder, ask->n_pairs, !ask->needed);
    if (ask->until_us > protocol->experts.round->until_us) ask->until_us = protocol->experts.round->until_us;
    protocol->experts.counters.pairs_asked += ask->n_pairs;
    return SN_OK;
}

/* The ask is over: its pairs are in this state now. */
static void ask_end(sn_expert_work *x, int at, int pairs_are) {
    for (size_t i = 0; i < x->round->n_pairs; i++)
        if (x->asked_of[i] == at) x->asked_of[i] = pairs_are;
    x->asks[at] = (sn_expert_ask){0};
}

/* The holder is not asked for a while, and its pairs are open. */
static void ask_failed(sn_protocol *protocol, int at, int64_t now_us, const char *why) {
    sn_expert_work *x = &protocol->experts;
    sn_expert_holder *holder = sn_expert_group_find(&x->group, x->asks[at].holder);
    sn_log_rated(SN_LOG_WARN, "holder dropped", "address=%s block=%d text=%s", holder ? holder->address : "-",
                 x->round->block, why);
    x->counters.dropped++;
    if (holder) sn_expert_holder_failed(holder, now_us);
    ask_end(x, at, PAIR_OPEN);
}

static bool round_is_done(const sn_expert_work *x) {
    for (size_t i = 0; i < x->round->n_pairs; i++)
        if (x->asked_of[i] != PAIR_DONE) return false;
    return true;
}

/* Asks for all pairs that are open, at other holders where sending fails; ends the round if no node is left to ask. */
static void round_continue(sn_protocol *protocol, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    for (bool again = true; again;) {
        sn_err err;
        again = false;
        sn_status status = round_share_out(protocol, now_us);
        if (status && x->read_us != now_us && is_part(protocol)) { /* a holder may have come since */
            group_read(protocol, now_us);
            status = round_share_out(protocol, now_us);
        }
        if (status) {
            round_end(protocol, SN_RETRY, now_us);
            return;
        }
        for (int i = 0; i < x->n_asks; i++) {
            if (x->asks[i].peer || !x->asks[i].n_pairs) continue;
            sn_expert_holder *holder = sn_expert_group_find(&x->group, x->asks[i].holder);
            if (!holder || ask_send(protocol, i, holder, now_us, &err)) {
                ask_failed(protocol, i, now_us, holder ? err.text : "it is gone");
                again = true;
            }
        }
    }
    if (round_is_done(x)) round_end(protocol, SN_OK, now_us);
}

void sn_protocol_ask_experts(sn_protocol *protocol, sn_expert_round *round, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    if (x->round) { /* the device thread waits for it no more */
        (void)sn_fail(&x->round->err, SN_RETRY, "the round is over");
        round_end(protocol, SN_RETRY, now_us);
    }
    x->round = round;
    x->n_asks = 0;
    x->waits_since_us = x->waited_us = 0;
    if (!round->n_pairs || sn_calloc(&x->asked_of, round->n_pairs, sizeof *x->asked_of, &round->err)) {
        round_end(protocol, round->n_pairs ? round->err.status : SN_OK, now_us);
        return;
    }
    for (size_t i = 0; i < round->n_pairs; i++) x->asked_of[i] = PAIR_OPEN;
    round_continue(protocol, now_us);
}

/* The ask that this message answers; -1: none. */
static int ask_find(const sn_expert_work *x, const sn_event *event) {
    for (int i = 0; i < x->n_asks; i++)
        if (x->asks[i].peer && x->asks[i].peer == event->peer &&
            x->asks[i].correlation_id == event->msg->correlation_id)
            return i;
    return -1;
}

static void on_reply(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    const sn_wire_tensor *t = &event->msg->tensor;
    int at = ask_find(x, event);
    if (at < 0) return; /* too late */
    const sn_expert_ask ask = x->asks[at];
    size_t width = (size_t)x->round->n_embd, n = 0;
    if (t->dtype != SN_F32 || t->rank != 2 || t->shape[0] != ask.n_pairs || t->shape[1] != width) {
        ask_failed(protocol, at, now_us, "its answer has not the shape that was asked for");
        round_continue(protocol, now_us);
        return;
    }
    for (size_t i = 0; i < x->round->n_pairs; i++)
        if (x->asked_of[i] == at)
            memcpy(x->round->out + i * width, (const float *)t->data + n++ * width, width * sizeof(float));
    sn_expert_holder *holder = sn_expert_group_find(&x->group, ask.holder);
    if (holder) sn_expert_holder_answered(holder, ask.n_pairs, now_us - ask.sent_us);
    sn_membership_prove(protocol->membership, ask.holder, event->key, protocol->unix_ms);
    ask_end(x, at, PAIR_DONE);
    if (round_is_done(x)) round_end(protocol, SN_OK, now_us);
}

bool sn_protocol_experts_on_error(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    const sn_msg_error *error = &event->msg->error;
    int at = ask_find(x, event);
    if (at < 0) return false;
    sn_expert_holder *holder = sn_expert_group_find(&x->group, x->asks[at].holder);
    if (error->status == SN_RETRY && holder) {
        int64_t wait_us = error->wait_ms < BUSY_US_MAX / 1000 ? (int64_t)error->wait_ms * 1000 : BUSY_US_MAX;
        if (!wait_us) wait_us = BUSY_US;
        holder->busy_until_us = now_us + (wait_us < BUSY_US_MIN ? BUSY_US_MIN : wait_us);
        ask_end(x, at, PAIR_OPEN);
    } else {
        ask_failed(protocol, at, now_us, error->text);
        if (holder && error->status == SN_REFUSED) sn_expert_holder_refused(holder, now_us);
    }
    round_continue(protocol, now_us);
    return true;
}

bool sn_protocol_experts_need(const sn_protocol *protocol, sn_peer peer) {
    const sn_expert_work *x = &protocol->experts;
    for (int i = 0; peer && i < x->n_asks; i++)
        if (x->asks[i].peer == peer) return true;
    for (size_t i = 0; peer && i < x->group.n; i++)
        if (x->group.holders[i].peer == peer && x->group.holders[i].answers) return true;
    return false;
}

void sn_protocol_experts_lost(sn_protocol *protocol, sn_peer peer, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    bool any = false;
    for (int i = 0; i < x->n_asks; i++) {
        if (!x->asks[i].peer || x->asks[i].peer != peer) continue;
        ask_failed(protocol, i, now_us, "its connection was lost");
        any = true;
    }
    if (any) round_continue(protocol, now_us);
    for (size_t i = 0; i < x->group.n; i++) {
        sn_expert_holder *holder = &x->group.holders[i];
        if (holder->peer != peer) continue;
        holder->peer = 0;
        sn_expert_holder_failed(holder, now_us);
        if (is_part(protocol)) group_read(protocol, now_us);
        return;
    }
}

/* An ask is late. A trial that was too short for its holder does not make the group incomplete. */
static void ask_late(sn_protocol *protocol, int at, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    if (x->asks[at].needed) {
        ask_failed(protocol, at, now_us, "it has not answered in time");
        return;
    }
    sn_expert_group_end_trial(&x->group);
    ask_end(x, at, PAIR_OPEN);
}

static int64_t round_tick(sn_protocol *protocol, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    bool any = false;
    for (int i = 0; x->round && i < x->n_asks; i++) {
        if (!x->asks[i].peer || now_us < x->asks[i].until_us) continue;
        ask_late(protocol, i, now_us);
        any = true;
    }
    any = any || (x->round && now_us >= x->room_us);
    if (any && now_us >= x->round->until_us) {
        (void)sn_fail(&x->round->err, SN_RETRY, "no answer came in time for experts of block %d: use another node",
                      x->round->block);
        round_end(protocol, SN_RETRY, now_us);
    } else if (any) {
        round_continue(protocol, now_us);
    }
    int64_t next_us = x->round ? x->room_us : INT64_MAX;
    for (int i = 0; i < x->n_asks; i++)
        if (x->asks[i].peer && x->asks[i].until_us < next_us) next_us = x->asks[i].until_us;
    return next_us;
}

int64_t sn_protocol_experts_tick(sn_protocol *protocol, int64_t now_us) {
    sn_expert_work *x = &protocol->experts;
    int64_t next_us = round_tick(protocol, now_us);
    if (!is_part(protocol)) return next_us;
    if (now_us >= x->read_us + READ_EVERY_US) group_read(protocol, now_us);
    return next_us < x->read_us + READ_EVERY_US ? next_us : x->read_us + READ_EVERY_US;
}

/* -- answering ----------------------------------------------------------------------------------------------------- */

/* Its sessions have left; as soon as no job is in the engine, it gives its blocks up. */
static bool is_vacating(const sn_protocol *protocol) {
    return protocol->placement.state == SN_PLACEMENT_REBALANCING && !sn_protocol_session_count(protocol);
}

/* SN_REBUILD: the asker knows an older announcement of this node, and a newer one will tell it. */
static sn_status request_check_block(const sn_protocol *protocol, const sn_msg_experts *request, sn_err *err) {
    const sn_span_info *span = &protocol->setup.span;
    uint64_t first = (uint64_t)protocol->placement.working_first, end = (uint64_t)protocol->placement.working_end;
    if (request->protocol != SN_PROTOCOL_VERSION)
        return sn_fail(err, SN_REFUSED, "this node speaks protocol %d, not %llu: use a matching version",
                       SN_PROTOCOL_VERSION, (unsigned long long)request->protocol);
    if (!sn_placement_serving(&protocol->placement) || protocol->leaving || is_vacating(protocol))
        return sn_fail(err, SN_RETRY, "this node serves no blocks now: ask another one");
    if (request->block < first || request->block >= end || !sn_has_experts(protocol->hp, (int)request->block))
        return sn_fail(err, SN_REBUILD, "block %llu is no mixture of experts that is served here",
                       (unsigned long long)request->block);
    if (memcmp(request->block_hash, span->block_hash[(int)request->block - span->first].bytes, SN_HASH_SIZE))
        return sn_fail(err, SN_REBUILD, "block %llu has other weights here", (unsigned long long)request->block);
    return SN_OK;
}

static sn_status request_check_tensor(const sn_protocol *protocol, const sn_msg *msg, sn_err *err) {
    const sn_wire_tensor *t = &msg->tensor;
    size_t row_bytes = (size_t)sn_expert_width(protocol->hp) * sizeof(float);
    if (t->dtype != SN_F32 || t->rank != 2 || t->shape[1] != (uint64_t)sn_expert_width(protocol->hp) ||
        t->shape[0] > SN_SPAN_ROWS)
        return sn_fail(err, SN_REFUSED, "the rows of EXPERTS are F32 (rows, %d), at most %d",
                       sn_expert_width(protocol->hp), SN_SPAN_ROWS);
    if (!msg->experts.n_pairs || msg->experts.n_pairs > REPLY_BYTES_MAX / row_bytes + 1)
        return sn_fail(err, SN_REFUSED, "an EXPERTS asks for 1 to %zu pairs of this model",
                       (size_t)REPLY_BYTES_MAX / row_bytes + 1);
    return SN_OK;
}

/* The pairs as the experts of each row, then -1. */
static sn_status request_read_pairs(const sn_protocol *protocol, const sn_msg *msg, int k, int32_t *ids, sn_err *err) {
    const sn_msg_experts *request = &msg->experts;
    const sn_expert_range held = protocol->setup.span.experts;
    uint64_t row = 0;
    int n = 0; /* of the row */
    for (size_t i = 0; i < (size_t)msg->tensor.shape[0] * (size_t)k; i++) ids[i] = -1;
    for (size_t i = 0; i < request->n_pairs; i++) {
        const sn_expert_pair *pair = &request->pairs[i];
        n = pair->row == row ? n : 0;
        if (pair->row < row || pair->row >= msg->tensor.shape[0] || n == k)
            return sn_fail(err, SN_REFUSED, "pairs name the rows in their order, each %d times at most", k);
        if (pair->expert < (uint64_t)held.first || pair->expert >= (uint64_t)held.end)
            return sn_fail(err, SN_REFUSED, "expert %llu is not here: this node holds experts %d:%d",
                           (unsigned long long)pair->expert, held.first, held.end);
        row = pair->row;
        ids[row * (uint64_t)k + (uint64_t)n++] = (int32_t)pair->expert;
    }
    return SN_OK;
}

/* Whether this is the key of a node that asks by right: it has answered this one, and holds a part of the experts. */
static bool is_member(const sn_protocol *protocol, const uint8_t key[SN_KEY_SIZE]) {
    const sn_directory *directory = sn_protocol_directory(protocol);
    for (size_t i = 0; i < sn_directory_count(directory); i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        if (a->n_experts && !memcmp(a->curve_key, key, SN_KEY_SIZE) &&
            !memcmp(a->model, protocol->setup.model.bytes, SN_KEY_SIZE) &&
            sn_directory_is_proven_at(directory, i, protocol->unix_ms))
            return true;
    }
    return false;
}

/* The memory of a request: its rows, and their outputs. */
static size_t request_bytes(const sn_protocol *protocol, const sn_msg *msg) {
    return msg->tensor.bytes + msg->experts.n_pairs * (size_t)sn_expert_width(protocol->hp) * sizeof(float);
}

/* Places and memory for all: strangers leave half of both to nodes of groups. */
static bool there_is_room(const sn_protocol *protocol, const sn_event *event) {
    const sn_expert_work *x = &protocol->experts;
    size_t bytes = request_bytes(protocol, event->msg);
    for (size_t i = 0; i < x->n_jobs; i++) bytes += request_bytes(protocol, x->jobs[i]->experts->request_msg);
    if (!x->n_jobs || (x->n_jobs < SN_EXPERT_JOBS_MAX / 2 && bytes <= JOBS_BYTES_MAX / 2)) return true;
    return x->n_jobs < SN_EXPERT_JOBS_MAX && bytes <= JOBS_BYTES_MAX && is_member(protocol, event->key);
}

static sn_status request_check_limits(sn_protocol *protocol, const sn_event *event, int64_t now_us, sn_err *err) {
    const sn_expert_work *x = &protocol->experts;
    size_t own = 0;
    for (size_t i = 0; i < x->n_jobs; i++) own += !memcmp(x->jobs[i]->experts->owner, event->key, SN_KEY_SIZE);
    if (own >= JOBS_OF_PEER || !there_is_room(protocol, event))
        return sn_fail(err, SN_RETRY, "this node computes experts for %zu requests, %zu of them yours: wait for them",
                       x->n_jobs, own);
    int blocks = protocol->setup.span.end - protocol->setup.span.first;
    return sn_quota_part(protocol->quota, event->key, blocks, now_us, err);
}

/* The task of a request that was checked but for its pairs; its message stays the event's. */
static sn_status task_new(const sn_protocol *protocol, const sn_event *event, sn_experts_task **out, sn_err *err) {
    const sn_msg *msg = event->msg;
    sn_experts_task *task = NULL;
    sn_status status = sn_calloc(&task, 1, sizeof *task, err);
    if (status) return status;
    task->requester = event->peer;
    task->n_rows = (int)msg->tensor.shape[0];
    task->k = protocol->hp->n_experts_used;
    task->n_pairs = msg->experts.n_pairs;
    memcpy(task->owner, event->key, SN_KEY_SIZE);
    status = sn_calloc(&task->ids, (size_t)task->n_rows * (size_t)task->k, sizeof *task->ids, err);
    if (!status) status = request_read_pairs(protocol, msg, task->k, task->ids, err);
    if (!status) status = sn_experts_task_order(task, err);
    if (status) sn_experts_task_free(&task);
    *out = task;
    return status;
}

static sn_status request_start(sn_protocol *protocol, sn_event *event, int64_t now_us, sn_err *err) {
    sn_expert_work *x = &protocol->experts;
    sn_experts_task *task = NULL;
    sn_job *job = NULL;
    sn_status status = request_check_block(protocol, &event->msg->experts, err);
    if (!status) status = request_check_tensor(protocol, event->msg, err);
    if (!status) status = request_check_limits(protocol, event, now_us, err);
    if (!status) status = task_new(protocol, event, &task, err);
    if (!status) status = sn_calloc(&job, 1, sizeof *job, err);
    if (status) {
        sn_experts_task_free(&task);
        return status;
    }
    job->kind = SN_JOB_EXPERTS;
    job->experts = task;
    job->first = (int)event->msg->experts.block;
    job->end = job->first + 1;
    job->n_tokens = task->n_rows;
    job->arrived_us = event->arrived_us;
    task->request_msg = event->msg;
    if (!protocol->setup.submit(protocol->setup.ctx, job)) {
        task->request_msg = NULL;
        sn_job_free(&job);
        return sn_fail(err, SN_RETRY, "this node's queue is full: ask another one");
    }
    protocol->jobs++;
    x->jobs[x->n_jobs++] = job;
    event->msg = NULL;
    return SN_OK;
}

void sn_protocol_on_experts(sn_protocol *protocol, sn_event *event, int64_t now_us) {
    sn_err err = {0};
    if (event->msg->kind == SN_MSG_EXPERTS_REPLY)
        on_reply(protocol, event, now_us);
    else if (request_start(protocol, event, now_us, &err))
        sn_protocol_refuse(protocol, event->peer, event->msg, &err);
}

void sn_protocol_cancel_experts(sn_protocol *protocol, sn_peer peer) {
    for (size_t i = 0; i < protocol->experts.n_jobs; i++)
        if (protocol->experts.jobs[i]->experts->requester == peer)
            atomic_store(&protocol->experts.jobs[i]->cancelled, true);
}

void sn_protocol_experts_done(sn_protocol *protocol, sn_job *job) {
    sn_expert_work *x = &protocol->experts;
    const sn_experts_task *task = job->experts;
    size_t i = 0;
    while (x->jobs[i] != job) i++;
    x->jobs[i] = x->jobs[--x->n_jobs];
    if (job->status) {
        sn_protocol_refuse(protocol, task->requester, task->request_msg, &job->err);
        return;
    }
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_EXPERTS_REPLY, task->request_msg->correlation_id);
    if (!msg) return;
    size_t width = (size_t)sn_expert_width(protocol->hp);
    msg->experts_reply.queue_us = sn_us_between(job->arrived_us, job->started_us);
    msg->experts_reply.compute_us = sn_us_between(job->started_us, job->finished_us);
    msg->tensor = (sn_wire_tensor){
        SN_F32, 2, {task->n_pairs, width}, sn_shared_buffer_data(job->output), task->n_pairs * width * sizeof(float)};
    msg->owner = sn_shared_buffer_ref(job->output);
    msg->release = sn_shared_buffer_unref;
    x->counters.pairs_computed += task->n_pairs;
    sn_protocol_send(protocol, task->requester, &msg);
}
