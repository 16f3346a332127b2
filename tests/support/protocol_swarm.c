#include "tests/support/protocol_swarm.h"

#include "tests/support/require.h"

#include <stdlib.h>
#include <string.h>

enum { STEP_US = 50000, LOAD_US = 2000000 };

static bool refuse_job(void *ctx, sn_job *job) {
    (void)ctx, (void)job;
    return false;
}
static sn_engine_stats read_stats(void *ctx) {
    return (sn_engine_stats){.decode_us = ((const protocol_swarm_node *)ctx)->decode_us};
}

static int number_of(const char *address) {
    int number = -1; /* a client has no address */
    return sscanf(address, "node%d:1", &number) == 1 ? number : -1;
}

static sn_hub_action filter_message(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    const protocol_swarm *c = ctx;
    bool asks = msg->kind == SN_MSG_PEERS || msg->kind == SN_MSG_PING;
    if (c->unreached && asks && number_of(to) >= c->unreached) return SN_DROP;
    return c->partition && (number_of(from) < c->partition) != (number_of(to) < c->partition) ? SN_DROP : SN_DELIVER;
}

protocol_swarm *protocol_swarm_new(int n_blocks, size_t bytes_per_s) {
    protocol_swarm *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->hp.n_blocks = n_blocks;
    c->hp.n_embd = 64;
    c->bytes_per_s = bytes_per_s;
    c->now_us = 1000 * (int64_t)PROTOCOL_SWARM_SECOND;
    c->unix_ms = 1800000000000;
    REQUIRE(sn_hub_new(&c->hub, &err));
    sn_hub_set_filter(c->hub, filter_message, c);
    return c;
}

void protocol_swarm_free(protocol_swarm *c) {
    for (int i = 0; i < c->n; i++) {
        sn_protocol_free(&c->nodes[i].protocol);
        sn_transport_free(&c->nodes[i].transport);
    }
    sn_hub_free(&c->hub);
    free(c);
}

int protocol_swarm_add(protocol_swarm *c, int joins) {
    protocol_swarm_node *m = &c->nodes[c->n];
    char address[32], bound[SN_ADDRESS_MAX + 1];
    int first = c->n % c->hp.n_blocks;
    if (c->n == PROTOCOL_SWARM_MAX) abort();
    m->decode_us = 1000;
    snprintf(address, sizeof address, "node%d:1", c->n);
    /* X25519 ignores some bits of byte 0 */
    m->identity.sign_secret[1] = m->identity.curve_secret[1] = (uint8_t)(c->n + 1);
    REQUIRE(sn_identity_complete(&m->identity, &err));
    REQUIRE(sn_transport_memory_new(c->hub, &m->identity, &m->transport, &err));
    REQUIRE(sn_transport_listen(m->transport, address, bound, &err));
    const sn_protocol_setup setup = {
        .transport = m->transport,
        .identity = &m->identity,
        .address = address,
        .name = "",
        .span = {.hp = &c->hp, .first = first, .end = first + 1, .block_hash = c->block_hash, .rows_max = SN_SPAN_ROWS},
        .loading = c->auto_blocks > 0,
        .placement = {.auto_blocks = c->auto_blocks,
                      .expects_others = joins >= 0,
                      .rebalance_us = (int64_t)c->rebalance_s * PROTOCOL_SWARM_SECOND,
                      .rebalance_gain = 20,
                      .drain_us_max = 5 * PROTOCOL_SWARM_SECOND},
        .sessions_max = 1,
        .gossip_bytes_per_s = c->bytes_per_s,
        .submit = refuse_job,
        .read_stats = read_stats,
        .ctx = m};
    REQUIRE(sn_protocol_new(&setup, c->now_us, &m->protocol, &err));
    m->protocol->membership->gossip.seed =
        (uint64_t)c->n + 1; /* a fixed seed, as for the identity: every run is the same */
    if (joins >= 0) {
        char to[32];
        snprintf(to, sizeof to, "node%d:1", joins);
        sn_protocol_join(m->protocol, to, c->nodes[joins].identity.curve_key);
    }
    return c->n++;
}

static bool receive_messages(protocol_swarm *c, protocol_swarm_node *m) {
    sn_event event;
    bool any = false;
    for (;;) {
        REQUIRE(sn_transport_recv(m->transport, 0, &event, &err));
        if (!event.peer) return any;
        any = true;
        if (m->dead)
            sn_msg_free(&event.msg);
        else
            sn_protocol_handle(m->protocol, &event, c->now_us, c->unix_ms + m->skew_ms);
    }
}

/* Does what the program swarm-node does for its protocol: loads blocks when the placement asks for them. */
static void poll_node(protocol_swarm *c, protocol_swarm_node *m) {
    if (m->loaded_us && c->now_us >= m->loaded_us) {
        const sn_span_info info = {.hp = &c->hp,
                                   .first = m->first,
                                   .end = m->end,
                                   .block_hash = c->block_hash + m->first,
                                   .rows_max = SN_SPAN_ROWS};
        m->loaded_us = 0;
        sn_protocol_serve(m->protocol, &info, (sn_kv_room){.bytes_max = 1 << 20}, c->now_us, c->unix_ms + m->skew_ms);
    }
    if (sn_protocol_wants_rebalance(m->protocol)) sn_protocol_vacate(m->protocol, c->now_us, c->unix_ms + m->skew_ms);
    if (sn_protocol_wants_blocks(m->protocol, &m->first, &m->end)) m->loaded_us = c->now_us + LOAD_US;
}

sn_transport *protocol_swarm_stranger(protocol_swarm *c, int i, sn_peer *peer) {
    char address[32];
    sn_identity identity;
    sn_transport *transport = NULL;
    snprintf(address, sizeof address, "node%d:1", i);
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_transport_memory_new(c->hub, &identity, &transport, &err));
    REQUIRE(sn_transport_dial(transport, address, c->nodes[i].identity.curve_key, peer, &err));
    return transport;
}

void protocol_swarm_run(protocol_swarm *c, double seconds) {
    for (int64_t until = c->now_us + (int64_t)(seconds * PROTOCOL_SWARM_SECOND); c->now_us < until;) {
        c->now_us += STEP_US;
        c->unix_ms += STEP_US / 1000;
        for (int i = 0; i < c->n; i++) {
            protocol_swarm_node *m = &c->nodes[i];
            bool received = receive_messages(c, m);
            if (m->dead || (!received && c->now_us < m->due_us && !m->loaded_us)) continue;
            m->due_us = sn_protocol_tick(m->protocol, c->now_us, c->unix_ms + m->skew_ms);
            poll_node(c, m);
        }
        if (c->on_step) c->on_step(c);
    }
}

size_t protocol_swarm_known(const protocol_swarm *c, int i) {
    return sn_directory_count(sn_protocol_directory(c->nodes[i].protocol));
}

size_t protocol_swarm_least_known(const protocol_swarm *c) {
    size_t least = SIZE_MAX;
    for (int i = 0; i < c->n; i++)
        if (!c->nodes[i].dead && protocol_swarm_known(c, i) < least) least = protocol_swarm_known(c, i);
    return least;
}

int protocol_swarm_serving(const protocol_swarm *c, int block) {
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        const sn_placement *placement = &c->nodes[i].protocol->placement;
        n +=
            !c->nodes[i].dead && sn_placement_serving(placement) && placement->first <= block && block < placement->end;
    }
    return n;
}
