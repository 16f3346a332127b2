/* A node's place among the blocks: chosen when it joins, given up for a better one later.
 *
 * Joining: it listens until those it joined have told whom they know, waits a moment at random, chooses (choose.h), announces
 * that it joins there, and looks once more: of two that chose the same at the same time, the one with the lower tag stays.
 * Moving: it thinks of it at random times, seldom. First it announces that it drains and looks again: a block that two would
 * leave at once is left by neither. Then its sessions are moved, the blocks freed, others loaded; its identity stays. */
#include "node/core_private.h"

#include "base/log.h"
#include "base/random.h"
#include "node/choose.h"

#include <stdlib.h>
#include <string.h>

enum {
    LISTEN_US = 10000000, /* at most, for those that it joins to answer */
    LISTEN_AGAIN_US = 200000,
    WAIT_US = 2000000,
    CONFIRM_US = 1000000,
    CLAIMS_MAX = 4,
    PART_US = 3000000,
};

static int64_t at_random(sn_core *core, int64_t us) { return (int64_t)sn_seeded_below(&core->seat.seed, (uint64_t)us); }

bool sn_core_serving(const sn_core *core) { return core->seat.state >= SN_SEAT_SERVING; }

void sn_core_seat_begin(sn_core *core, int64_t now_us) {
    sn_seat *seat = &core->seat;
    seat->first = core->setup.span.first;
    seat->end = core->setup.span.end;
    seat->seed = ~sn_node_tag(core->setup.identity->id);
    seat->state = core->setup.auto_blocks ? SN_SEAT_LISTENING : core->setup.loading ? SN_SEAT_LOADING : SN_SEAT_SERVING;
    seat->due_us = now_us;
    if (seat->state == SN_SEAT_LISTENING) {
        seat->due_us += LISTEN_US;
        seat->first = seat->end = 0;
    }
}

static void think_later(sn_core *core, int64_t now_us) {
    int64_t every = core->setup.rebalance_us;
    core->seat.due_us = every && core->setup.auto_blocks ? now_us + every / 2 + at_random(core, every) : INT64_MAX;
}

/* What the others hold. `below`: of those that join, only nodes with a lower tag. */
static bool take_census(const sn_core *core, uint64_t below, sn_census *census) {
    sn_err err;
    sn_status status = sn_census_take(census, core->directory, core->setup.model.bytes, core->hp->n_blocks,
                                      core->setup.identity->id, below, &err);
    if (status) sn_log(SN_LOG_ERROR, "no place can be chosen", "text=%s", err.text);
    return !status;
}

/* -- joining ------------------------------------------------------------------------------------------------------- */

static bool has_heard_all(const sn_core *core) {
    bool any = false;
    for (size_t i = 0; i < core->n_joined; i++) any |= core->joined[i].answered && !core->joined[i].pages_left;
    return any;
}

static void claim(sn_core *core, const sn_census *others, int64_t now_us, int64_t unix_ms) {
    sn_seat *seat = &core->seat;
    int n = core->setup.auto_blocks < core->hp->n_blocks ? core->setup.auto_blocks : core->hp->n_blocks;
    seat->first = sn_choose_window(others, n, &seat->seed);
    seat->end = seat->first + n;
    seat->state = SN_SEAT_CLAIMED;
    seat->due_us = now_us + (core->setup.expects_others ? CONFIRM_US : 0);
    seat->claims++;
    sn_log(SN_LOG_INFO, "place chosen", "blocks=%d:%d nodes=%zu", seat->first, seat->end,
           sn_directory_count(core->directory));
    sn_core_announce(core, now_us, unix_ms);
}

static void listen_or_choose(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_seat *seat = &core->seat;
    sn_census *others = malloc(sizeof *others);
    if (seat->state == SN_SEAT_LISTENING) {
        seat->state = SN_SEAT_WAITING;
        seat->due_us = now_us + (core->setup.expects_others ? at_random(core, WAIT_US) : 0);
    } else if (others && take_census(core, UINT64_MAX, others)) {
        claim(core, others, now_us, unix_ms);
    }
    free(others);
}

/* Whether nobody chose the same meanwhile, or those who did will yield to us; else chooses again. */
static void confirm(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_seat *seat = &core->seat;
    sn_census *others = malloc(sizeof *others);
    int n = seat->end - seat->first;
    bool good = seat->claims >= CLAIMS_MAX || !others || !take_census(core, UINT64_MAX, others) ||
                sn_is_best_window(others, seat->first, n) ||
                (take_census(core, sn_node_tag(core->setup.identity->id), others) &&
                 sn_is_best_window(others, seat->first, n));
    if (good) {
        seat->state = SN_SEAT_LOADING;
        seat->asked = false;
    } else if (take_census(core, UINT64_MAX, others)) {
        claim(core, others, now_us, unix_ms);
        seat->due_us += at_random(core, CONFIRM_US);
    }
    free(others);
}

/* -- moving -------------------------------------------------------------------------------------------------------- */

/* Where it would go now; seat->first: nowhere. */
static int look_around(sn_core *core) {
    sn_seat *seat = &core->seat;
    sn_census *others = malloc(sizeof *others);
    const sn_announcement *own = sn_directory_find(core->directory, core->setup.identity->id);
    int to = seat->first;
    if (others && own && take_census(core, UINT64_MAX, others))
        to = sn_choose_move(others, seat->first, seat->end, own->tokens_per_s, core->setup.rebalance_gain, &seat->seed);
    free(others);
    return to;
}

static void think_of_moving(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_seat *seat = &core->seat;
    seat->to = look_around(core);
    if (seat->to == seat->first) {
        think_later(core, now_us);
        return;
    }
    seat->state = SN_SEAT_PARTING;
    seat->due_us = now_us + PART_US + at_random(core, PART_US);
    sn_core_announce(core, now_us, unix_ms);
}

static void part_or_stay(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_seat *seat = &core->seat;
    seat->to = look_around(core);
    if (seat->to != seat->first) {
        int n = seat->end - seat->first;
        sn_log(SN_LOG_INFO, "moving", "from=%d:%d to=%d:%d sessions=%zu", seat->first, seat->end, seat->to, seat->to + n,
               sn_core_sessions(core));
        seat->state = SN_SEAT_MOVING;
        seat->due_us = now_us + core->setup.move_us_max;
        sn_core_drain(core, unix_ms);
        return;
    }
    seat->state = SN_SEAT_SERVING;
    think_later(core, now_us);
    sn_core_announce(core, now_us, unix_ms);
}

static void close_what_is_left(sn_core *core) {
    for (size_t i = 0; i < sn_sessions_count(core->sessions); i++) {
        sn_session *session = sn_sessions_at(core->sessions, i);
        if (!session->closing || !session->job) sn_core_close_session(core, session);
    }
}

/* -- what core and daemon call ------------------------------------------------------------------------------------- */

int64_t sn_core_seat(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_seat *seat = &core->seat;
    if (core->leaving || (core->draining && seat->state != SN_SEAT_MOVING)) return INT64_MAX;
    if (seat->state == SN_SEAT_LISTENING) {
        if (now_us >= seat->due_us || !core->setup.expects_others || has_heard_all(core))
            listen_or_choose(core, now_us, unix_ms);
        else
            return now_us + LISTEN_AGAIN_US;
    }
    if (seat->state == SN_SEAT_WAITING && now_us >= seat->due_us) listen_or_choose(core, now_us, unix_ms);
    if (seat->state == SN_SEAT_CLAIMED && now_us >= seat->due_us) confirm(core, now_us, unix_ms);
    if (seat->state == SN_SEAT_SERVING && now_us >= seat->due_us) think_of_moving(core, now_us, unix_ms);
    if (seat->state == SN_SEAT_PARTING && now_us >= seat->due_us) part_or_stay(core, now_us, unix_ms);
    if (seat->state == SN_SEAT_MOVING && now_us >= seat->due_us) {
        close_what_is_left(core);
        return now_us + LISTEN_AGAIN_US;
    }
    return seat->state == SN_SEAT_LOADING ? INT64_MAX : seat->due_us;
}

bool sn_core_wants_blocks(sn_core *core, int *first, int *end) {
    sn_seat *seat = &core->seat;
    if (seat->state != SN_SEAT_LOADING || seat->asked || core->leaving) return false;
    seat->asked = true;
    *first = seat->first;
    *end = seat->end;
    return true;
}

void sn_core_serve(sn_core *core, const sn_span_facts *span, size_t kv_bytes_max, int64_t now_us, int64_t unix_ms) {
    sn_seat *seat = &core->seat;
    core->setup.span = *span;
    core->setup.span.hp = core->hp;
    core->setup.kv_bytes_max = kv_bytes_max;
    seat->first = span->first;
    seat->end = span->end;
    seat->state = SN_SEAT_SERVING;
    think_later(core, now_us);
    if (core->sealed.len) sn_core_announce(core, now_us, unix_ms);
}

bool sn_core_wants_to_move(const sn_core *core) {
    return core->seat.state == SN_SEAT_MOVING && !core->leaving && !sn_core_sessions(core) && !core->jobs;
}

void sn_core_vacate(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_seat *seat = &core->seat;
    int n = seat->end - seat->first;
    seat->first = seat->to;
    seat->end = seat->to + n;
    seat->state = SN_SEAT_LOADING;
    seat->asked = false;
    seat->moves++;
    core->draining = false;
    sn_core_tunings_free(core);
    core->setup.span.block_hash = NULL; /* it was the old span's */
    core->setup.kv_bytes_max = 0;
    sn_core_announce(core, now_us, unix_ms);
}
