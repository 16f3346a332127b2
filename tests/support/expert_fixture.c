#include "tests/support/expert_fixture.h"

#include "base/clock.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(bool yes, const char *what) {
    if (yes) return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static bool submit(void *ctx, sn_job *job) {
    expert_fixture *f = ctx;
    if (f->n_jobs == EXPERT_JOBS_MAX) return false;
    f->jobs[f->n_jobs++] = job;
    return true;
}
static sn_engine_stats read_stats(void *ctx) {
    (void)ctx;
    return (sn_engine_stats){.decode_us = 1000};
}
static void answer_round(void *ctx, sn_expert_round *round) {
    expert_fixture *f = ctx;
    need(!f->answered, "a second round was given back");
    f->answered = round;
}

void experts_read(expert_fixture *f) {
    sn_event event;
    for (;;) {
        REQUIRE(sn_transport_recv(f->transport, 0, &event, &err));
        if (!event.peer) break;
        sn_protocol_handle(f->protocol, &event, f->now, f->unix_ms);
    }
    (void)sn_protocol_tick(f->protocol, f->now, f->unix_ms);
}

void experts_pass(expert_fixture *f, int64_t us) {
    f->now += us;
    f->unix_ms += us / 1000;
    experts_read(f);
}

void experts_send(expert_fixture *f, const expert_holder *h, sn_msg *msg) {
    REQUIRE(sn_transport_send(h->transport, h->node, &msg, &err));
    experts_read(f);
}

sn_msg *experts_message(sn_msg_kind kind, uint64_t correlation_id) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(kind, correlation_id, &msg, &err));
    return msg;
}

sn_msg *experts_receive(const expert_holder *h, sn_msg_kind kind, sn_peer *peer) {
    sn_event event;
    for (;;) {
        REQUIRE(sn_transport_recv(h->transport, 0, &event, &err));
        if (!event.peer) return NULL;
        *peer = event.peer;
        if (event.msg && event.msg->kind == kind) return event.msg;
        sn_msg_free(&event.msg);
    }
}

void experts_announce(expert_fixture *f, int holder, sn_node_state state, int first, int end) {
    const expert_holder *h = &f->holders[holder];
    static uint64_t sequence = 1;
    sn_announcement *a = calloc(1, sizeof *a);
    sn_buf sealed;
    *a = (sn_announcement){.device = "cpu",
                           .protocol = SN_PROTOCOL_VERSION,
                           .sequence = (uint64_t)f->unix_ms + sequence++,
                           .expires_unix_ms = (uint64_t)f->unix_ms + SN_ANNOUNCE_LIFE_MS,
                           .state = state,
                           .end_block = BLOCKS,
                           .n_blocks = BLOCKS,
                           .experts = {(uint64_t)first, (uint64_t)end, EXPERTS},
                           .n_experts = 3};
    snprintf(a->address, sizeof a->address, "holder%d:1", holder);
    memcpy(a->node, h->identity.id, SN_KEY_SIZE);
    memcpy(a->curve_key, h->identity.curve_key, SN_KEY_SIZE);
    memcpy(a->model, f->model.bytes, SN_KEY_SIZE);
    for (int b = 0; b < BLOCKS; b++) memcpy(a->block_hash[b], f->hashes[b].bytes, SN_HASH_SIZE);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, &h->identity, &sealed, &err));
    sn_msg *msg = experts_message(SN_MSG_PEERS, 1);
    const sn_blob blob = {sealed.data, sealed.len};
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    msg->peers.from_tag = UINT64_MAX;
    REQUIRE(sn_announcement_list(&blob, &msg->peers.announcements, &msg->peers.n_announcements, &err));
    sn_buf_fini(&sealed);
    free(a);
    experts_send(f, h, msg);
    experts_pass(f, SECOND);
    sn_peer peer;
    sn_msg *ping = experts_receive(h, SN_MSG_PING, &peer);
    if (!ping || f->silent) {
        sn_msg_free(&ping);
        return;
    }
    msg = experts_message(SN_MSG_PONG, ping->correlation_id);
    REQUIRE(sn_transport_send(h->transport, peer, &msg, &err));
    sn_msg_free(&ping);
    experts_read(f);
}

void experts_begin(expert_fixture *f) {
    char bound[SN_ADDRESS_MAX + 1];
    virtual_clock_begin_still();
    *f = (expert_fixture){.hp = {.name = "fixture",
                                 .n_blocks = BLOCKS,
                                 .n_embd = EMBD,
                                 .n_heads = 1,
                                 .n_kv_heads = 1,
                                 .head_dim = 4,
                                 .n_ctx = 64,
                                 .n_experts = EXPERTS,
                                 .n_experts_used = 2},
                          .hashes = {{{4}}, {{5}}},
                          .model = {{7}},
                          .now = 100 * SECOND,
                          .unix_ms = sn_unix_ms()};
    REQUIRE(sn_hub_new(&f->hub, &err));
    REQUIRE(sn_identity_new(&f->own, &err));
    REQUIRE(sn_transport_memory_new(f->hub, &f->own, &f->transport, &err));
    REQUIRE(sn_transport_listen(f->transport, "node:1", bound, &err));
    const sn_protocol_setup setup = {.transport = f->transport,
                                     .identity = &f->own,
                                     .address = "node:1",
                                     .name = "fixture",
                                     .span = {.hp = &f->hp, .end = BLOCKS},
                                     .loading = true,
                                     .model = f->model,
                                     .sessions_max = 4,
                                     .session_timeout_us = 60 * SECOND,
                                     .kv_timeout_us = SECOND,
                                     .quota = {.steps_per_s = 10},
                                     .placement = {.drain_us_max = 30 * SECOND},
                                     .ctx = f,
                                     .submit = submit,
                                     .read_stats = read_stats,
                                     .answer_round = answer_round};
    REQUIRE(sn_protocol_new(&setup, f->now, &f->protocol, &err));
    const sn_span_info span = {
        .end = BLOCKS, .hp = &f->hp, .block_hash = f->hashes, .exact = true, .devices = "cpu", .experts = {0, 3}};
    int first, end;
    need(sn_protocol_wants_blocks(f->protocol, &first, &end), "the node wants no blocks");
    sn_protocol_serve(f->protocol, &span, (sn_kv_room){.bytes_max = 1 << 20}, f->now, f->unix_ms);
    for (int i = 0; i < HOLDERS; i++) {
        char address[32];
        snprintf(address, sizeof address, "holder%d:1", i);
        REQUIRE(sn_identity_new(&f->holders[i].identity, &err));
        REQUIRE(sn_transport_memory_new(f->hub, &f->holders[i].identity, &f->holders[i].transport, &err));
        REQUIRE(sn_transport_listen(f->holders[i].transport, address, bound, &err));
        REQUIRE(sn_transport_dial(f->holders[i].transport, "node:1", f->own.curve_key, &f->holders[i].node, &err));
    }
}

void experts_end(expert_fixture *f) {
    sn_expert_round_free(&f->answered);
    for (int i = 0; i < f->n_jobs; i++) sn_job_free(&f->jobs[i]);
    sn_protocol_free(&f->protocol);
    for (int i = 0; i < HOLDERS; i++) sn_transport_free(&f->holders[i].transport);
    sn_transport_free(&f->transport);
    sn_hub_free(&f->hub);
}
