/* How others reach this node (reach.h). A round of probes is one DIAL_BACK to each of a few bootstrap peers; it ends
 * when a token has come from one that sees the best address, or after ROUND_US. What it found decides what is announced
 * and what is tried next (round_end). */
#include "node/membership/reach.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "base/parse.h"
#include "net/address.h"
#include "node/membership/membership_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROBES_MAX = 3,
    ROUND_US = 4000000,
    SETTLE_US = 300000,       /* after the first answer of a round: others may see a better address */
    RETRY_US = 5000000,       /* after a round without an answer, or a first failure */
    VERIFY_US = 60000000,     /* between rounds of a node that is reached */
    TRY_AGAIN_US = 300000000, /* between rounds of one that is not */
    FAILURES_MAX = 2,         /* rounds without a token, until a node that was reached counts as not reached */
    LOCAL_US = 1000000,       /* between looks at this machine's own address */
    RELAY_ANSWER_US = 5000000,
    RELAY_RENEW_US = 15000000,
    RELAY_AVOID_US = 60000000, /* a relay that failed; twice as long when it fails again, and so on */
    RELAY_AVOID_US_MAX = 480000000,
    RELAY_SEARCH_US = 500000, /* between looks for a relay */
    AVOIDED_MAX = 64,
    MEET_MAX = 8,            /* strangers that are asked for an answer at a time, while no relay is known */
    MEET_US = 3000000,       /* before others are, */
    MEET_SAME_US = 15000000, /* or the same ones */
    SENTENCE_US = 10000000,  /* without a relay, until the owner is told */
};

typedef struct probe {
    sn_peer peer;
    uint64_t id; /* correlation id of the DIAL_BACK */
    uint8_t token[SN_TOKEN_SIZE];
    int port; /* that was to be dialled */
    bool answered;
    char address[SN_ADDRESS_MAX + 1]; /* that was dialled, if answered */
} probe;

struct sn_reach {
    sn_reach_setup setup;
    char listen[SN_ADDRESS_MAX + 1];
    char local[SN_ADDRESS_MAX + 1]; /* this machine's own host; empty: not known */
    uint64_t seed, last_id;
    int64_t local_us; /* when to look at it again */
    probe probes[PROBES_MAX];
    size_t n_probes;            /* 0: no round runs */
    bool probes_mapped;         /* the round is about the port that the router opened */
    bool put_off;               /* a node has refused to dial back in this round */
    int64_t round_us, ended_us; /* when the round began, and ends; round_us 0 and ended_us: when the next one is due */
    bool reached;               /* what is announced was tried and works */
    bool settled;               /* a round has ended with an answer */
    int failures;
    bool wants_relay;
    int64_t unreached_us; /* since when it wants one and has none; 0: it has */
    bool told;            /* that others cannot reach it */
    struct {
        sn_peer peer; /* 0: none */
        bool on;      /* it has agreed */
        uint64_t id;  /* correlation id of the newest RELAY */
        uint64_t tag;
        int64_t asked_us, renew_us; /* asked_us: 0 when it has answered */
        char address[SN_ADDRESS_MAX + 1];
    } relay;
    int64_t search_us, meet_us; /* when to look for a relay again, and to ask strangers for an answer */
    struct {
        uint64_t tag;
        int64_t until_us, for_us;
    } avoided[AVOIDED_MAX];
};

sn_status sn_reach_new(const sn_reach_setup *setup, sn_reach **out, sn_err *err) {
    sn_reach *r = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&r, 1, sizeof *r, err);
    if (status) return status;
    r->setup = *setup;
    snprintf(r->listen, sizeof r->listen, "%s", setup->listen);
    r->setup.listen = r->listen;
    sn_random(&r->seed, sizeof r->seed);
    sn_random(&r->last_id, sizeof r->last_id);
    sn_relaying_allow(setup->relaying, !setup->asks);
    *out = r;
    return SN_OK;
}

void sn_reach_free(sn_reach **reach) {
    free(*reach);
    *reach = NULL;
}

/* -- addresses ----------------------------------------------------------------------------------------------------- */

static int port_of(const char *address) {
    sn_host_port at;
    return sn_parse_host_port(address, SN_HOST_PORT_LISTEN, &at, NULL) ? 0 : at.port;
}

static bool listens_everywhere(const sn_reach *r) {
    return !strncmp(r->listen, "0.0.0.0:", 8) || !strncmp(r->listen, "[::]:", 5);
}

/* What the owner of this node is told. */
static void tell(const sn_reach *r, sn_reach_kind kind) {
    static const char *const how[] = {
        [SN_REACH_DIRECT] = "others reach this node directly",
        [SN_REACH_MAPPED] = "others reach this node through a port that the router has opened for it",
        [SN_REACH_RELAYED] =
            ("others reach this node through a relay, because no other way works: this is slower; for a direct way "
             "forward (IPv6: open) the TCP and UDP port of --listen in the router to this machine"),
    };
    sn_log(SN_LOG_INFO, "reached by others", "how=%s address=%s text=%s", sn_reach_name(kind),
           sn_membership_address(r->setup.membership), how[kind]);
}

static void announce(sn_reach *r, const char *address, sn_reach_kind kind, bool works, int64_t now_us,
                     int64_t unix_ms) {
    sn_membership *m = r->setup.membership;
    sn_relaying_allow(r->setup.relaying, works && kind != SN_REACH_RELAYED); /* others must reach a relay */
    bool same = !strcmp(m->address, address) && m->reach == kind && r->settled;
    sn_membership_set_reach(m, address, kind);
    sn_membership_set_relay_places(m, sn_relaying_places(r->setup.relaying));
    r->settled |= works;
    if (same) return;
    if (works) tell(r, kind);
    if (sn_membership_own_announcement(m).len) sn_membership_announce(m, now_us, unix_ms);
}

/* -- the relay ----------------------------------------------------------------------------------------------------- */

static void relay_end(sn_reach *r) {
    memset(&r->relay, 0, sizeof r->relay);
    sn_membership_hold(r->setup.membership, 0);
}

/* Takes the place of this one if it failed before, or else of that which may be asked again first. */
static void relay_avoid(sn_reach *r, uint64_t tag, int64_t now_us) {
    size_t at = 0;
    for (size_t i = 0; i < AVOIDED_MAX && r->avoided[at].tag != tag; i++)
        if (r->avoided[i].tag == tag || r->avoided[i].until_us < r->avoided[at].until_us) at = i;
    bool again = r->avoided[at].tag == tag && now_us < r->avoided[at].until_us + RELAY_AVOID_US_MAX;
    int64_t for_us = again ? 2 * r->avoided[at].for_us : RELAY_AVOID_US;
    r->avoided[at].tag = tag;
    r->avoided[at].for_us = for_us < RELAY_AVOID_US_MAX ? for_us : RELAY_AVOID_US_MAX;
    r->avoided[at].until_us = now_us + r->avoided[at].for_us;
}

static void relay_failed(sn_reach *r, const char *why, int64_t now_us) {
    if (!r->relay.peer) return;
    sn_log(SN_LOG_INFO, "relay given up", "address=%s text=%s", r->relay.address, why);
    relay_avoid(r, r->relay.tag, now_us);
    relay_end(r);
    r->search_us = 0;
}

static void relay_ask(sn_reach *r, int64_t now_us) {
    sn_msg *msg = sn_membership_new_msg(SN_MSG_RELAY, ++r->last_id);
    if (!msg) return;
    msg->relay.protocol = SN_PROTOCOL_VERSION;
    r->relay.id = r->last_id;
    r->relay.asked_us = now_us;
    r->relay.renew_us = now_us + RELAY_RENEW_US;
    sn_membership_send(r->setup.membership, r->relay.peer, &msg);
}

static bool is_avoided(const sn_reach *r, uint64_t tag, int64_t now_us) {
    for (size_t i = 0; i < AVOIDED_MAX; i++)
        if (r->avoided[i].tag == tag && now_us < r->avoided[i].until_us) return true;
    return false;
}

static bool may_relay(const sn_reach *r, const sn_directory *d, size_t i, int64_t unix_ms) {
    const sn_announcement *a = sn_directory_at(d, i);
    return a->relay_places && a->reach != SN_REACH_RELAYED && a->state <= SN_NODE_ONLINE &&
           sn_directory_expiry_at(d, i) > (uint64_t)unix_ms &&
           memcmp(a->curve_key, r->setup.membership->setup.identity->curve_key, SN_KEY_SIZE);
}

/* Of the proven nodes that offer a place the one with the shortest round trip; of those that were not measured, a
 * random one. With `any` also one that failed. NULL: there is none. */
static const sn_announcement *relay_choose(sn_reach *r, bool any, int64_t now_us, int64_t unix_ms) {
    const sn_directory *d = sn_membership_directory(r->setup.membership);
    size_t count = sn_directory_count(d), from = count ? (size_t)sn_rng_below(&r->seed, count) : 0;
    const sn_announcement *best = NULL;
    uint64_t best_us = UINT64_MAX;
    for (size_t k = 0; k < count; k++) {
        size_t i = (from + k) % count;
        const sn_announcement *a = sn_directory_at(d, i);
        if (!may_relay(r, d, i, unix_ms) || !sn_directory_is_proven_at(d, i, unix_ms)) continue;
        if (!any && is_avoided(r, sn_node_tag(a->node), now_us)) continue;
        uint64_t us = sn_ping_stats_rtt_us(&r->setup.membership->ping_stats, sn_node_tag(a->node));
        if (best && (!us || us >= best_us)) continue;
        best = a;
        best_us = us ? us : UINT64_MAX;
    }
    return best;
}

/* A stranger may have announced any number of relays. So one that is not proven is not asked to be one: some of them,
 * drawn at random, are asked for an answer at once. False: there are none. */
static bool relay_meet(sn_reach *r, int64_t now_us, int64_t unix_ms) {
    const sn_directory *d = sn_membership_directory(r->setup.membership);
    const sn_membership_host *host = &r->setup.membership->setup.host;
    const sn_announcement *drawn[MEET_MAX];
    size_t n = 0;
    for (size_t i = 0; i < sn_directory_count(d); i++) {
        if (!may_relay(r, d, i, unix_ms) || sn_directory_is_proven_at(d, i, unix_ms)) continue;
        size_t at = n < MEET_MAX ? n : (size_t)sn_rng_below(&r->seed, n + 1); /* each of them with the same chance */
        if (at < MEET_MAX) drawn[at] = sn_directory_at(d, i);
        n++;
    }
    if (!n || now_us < r->meet_us) return n > 0;
    r->meet_us = now_us + (n > MEET_MAX ? MEET_US : MEET_SAME_US);
    for (size_t i = 0; i < n && i < MEET_MAX; i++) host->meet(host->ctx, drawn[i], now_us);
    return true;
}

static void relay_search(sn_reach *r, int64_t now_us, int64_t unix_ms) {
    const sn_announcement *a = relay_choose(r, false, now_us, unix_ms);
    sn_err err;
    r->search_us = now_us + RELAY_SEARCH_US;
    if (!a && !relay_meet(r, now_us, unix_ms)) a = relay_choose(r, true, now_us, unix_ms);
    if (!a) return;
    r->relay.tag = sn_node_tag(a->node);
    if (sn_transport_dial(r->setup.transport, a->address, a->curve_key, &r->relay.peer, &err)) {
        relay_avoid(r, r->relay.tag, now_us);
        return;
    }
    snprintf(r->relay.address, sizeof r->relay.address, "%s", a->address);
    sn_membership_hold(r->setup.membership, r->relay.peer);
    relay_ask(r, now_us);
}

static void relay_answered(sn_reach *r, int64_t now_us, int64_t unix_ms) {
    char address[SN_ADDRESS_MAX + 1];
    r->relay.asked_us = 0;
    if (r->relay.on) return;
    int len = snprintf(address, sizeof address, "%s" SN_RELAYED, r->relay.address);
    if (len < 0 || (size_t)len >= sizeof address) return;
    r->relay.on = true;
    r->unreached_us = 0;
    r->told = false;
    announce(r, address, SN_REACH_RELAYED, true, now_us, unix_ms);
}

static int64_t relay_tick(sn_reach *r, int64_t now_us, int64_t unix_ms) {
    if (r->relay.asked_us && now_us - r->relay.asked_us > RELAY_ANSWER_US)
        relay_failed(r, "it does not answer", now_us);
    if (!r->relay.peer && now_us >= r->search_us) relay_search(r, now_us, unix_ms);
    if (r->relay.peer && now_us >= r->relay.renew_us) relay_ask(r, now_us);
    if (!r->unreached_us && !r->relay.on) r->unreached_us = now_us;
    if (r->unreached_us && now_us - r->unreached_us > SENTENCE_US && !r->told) {
        r->told = true;
        sn_log(
            SN_LOG_WARN, "not reached by others", "address=%s text=%s", sn_membership_address(r->setup.membership),
            "others cannot reach this node: no node dialled back, the router opened no port, and no node is a relay "
            "with a free place; forward (IPv6: open) the TCP and UDP port of --listen in the router to this machine");
    }
    return !r->relay.peer ? r->search_us : r->relay.asked_us ? r->relay.asked_us + RELAY_ANSWER_US : r->relay.renew_us;
}

/* -- rounds of probes ---------------------------------------------------------------------------------------------- */

static void round_begin(sn_reach *r, bool mapped, int port, int64_t now_us) {
    sn_peer peers[PROBES_MAX];
    size_t n = sn_membership_answered(r->setup.membership, peers, PROBES_MAX);
    r->n_probes = 0;
    r->probes_mapped = mapped;
    r->put_off = false;
    for (size_t i = 0; i < n; i++) {
        sn_msg *msg = sn_membership_new_msg(SN_MSG_DIAL_BACK, ++r->last_id);
        if (!msg) break;
        probe *p = &r->probes[r->n_probes++];
        *p = (probe){.peer = peers[i], .id = r->last_id, .port = port};
        sn_random(p->token, sizeof p->token);
        sn_portal_expect(r->setup.transport->portal, p->token);
        msg->dial_back.protocol = SN_PROTOCOL_VERSION;
        msg->dial_back.port = (uint64_t)port;
        memcpy(msg->dial_back.token, p->token, SN_TOKEN_SIZE);
        sn_membership_send(r->setup.membership, p->peer, &msg);
    }
    r->round_us = now_us;
    r->ended_us = now_us + (r->n_probes ? ROUND_US : RETRY_US);
}

/* The probe whose asker sees the best address: of equals one whose token has come. NULL: none has answered. */
static const probe *best_probe(const sn_reach *r, bool *reached) {
    const probe *best = NULL;
    *reached = false;
    for (const probe *p = r->probes; p < r->probes + r->n_probes; p++) {
        if (!p->answered || (best && sn_address_scope(p->address) < sn_address_scope(best->address))) continue;
        bool came = sn_portal_was_reached(r->setup.transport->portal, p->token);
        bool better = !best || sn_address_scope(p->address) > sn_address_scope(best->address);
        if (better || (came && !*reached)) best = p;
        *reached = better ? came : came || *reached;
    }
    return best;
}

static bool all_answered(const sn_reach *r) {
    for (size_t i = 0; i < r->n_probes; i++)
        if (!r->probes[i].answered) return false;
    return true;
}

static void round_end(sn_reach *r, const probe *best, bool reached, int64_t now_us, int64_t unix_ms) {
    r->n_probes = 0;
    if (!best) { /* no node has answered: they refuse, or are lost */
        r->ended_us = now_us + RETRY_US;
        return;
    }
    if (reached) {
        relay_end(r);
        r->wants_relay = false;
        r->reached = true;
        r->failures = 0;
        r->unreached_us = 0;
        r->told = false;
        r->ended_us = now_us + (r->put_off && sn_address_scope(best->address) < 2 ? RETRY_US : VERIFY_US);
        announce(r, best->address, r->probes_mapped ? SN_REACH_MAPPED : SN_REACH_DIRECT, true, now_us, unix_ms);
        return;
    }
    if (r->reached && ++r->failures < FAILURES_MAX) {
        r->ended_us = now_us + RETRY_US;
        return;
    }
    r->reached = false;
    r->wants_relay = true;
    sn_relaying_allow(r->setup.relaying, false);
    r->ended_us = now_us + TRY_AGAIN_US;
    r->setup.host.map_port(r->setup.host.ctx);
}

static int64_t round_tick(sn_reach *r, int64_t now_us, int64_t unix_ms) {
    char mapped[SN_ADDRESS_MAX + 1];
    if (!r->n_probes) {
        bool has_mapping = r->setup.host.mapped(r->setup.host.ctx, mapped);
        bool new_mapping = has_mapping && !r->reached && !r->probes_mapped;
        if (!new_mapping && now_us < r->ended_us) return r->ended_us;
        round_begin(r, has_mapping, port_of(has_mapping ? mapped : r->listen), now_us);
        return r->ended_us;
    }
    bool reached;
    const probe *best = best_probe(r, &reached);
    if (best && r->probes_mapped && r->setup.host.mapped(r->setup.host.ctx, mapped) &&
        sn_address_scope(best->address) < sn_address_scope(mapped)) {
        best = NULL; /* it was dialled inside of the router, not through the port */
        reached = false;
    }
    bool settled = reached && (all_answered(r) || now_us - r->round_us > SETTLE_US);
    if (settled || now_us >= r->ended_us) round_end(r, best, reached, now_us, unix_ms);
    return r->n_probes && reached ? now_us + SETTLE_US : r->ended_us;
}

/* -- this machine's own address ------------------------------------------------------------------------------------ */

/* A node that listens at all addresses announces its own one until it knows better. When it changes, connections that
 * were made from the old one are dead, and everything is found out anew. */
static void local_tick(sn_reach *r, int64_t now_us, int64_t unix_ms) {
    char host[SN_ADDRESS_MAX + 1], address[SN_ADDRESS_MAX + 1];
    if (now_us < r->local_us) return;
    r->local_us = now_us + LOCAL_US;
    if (!r->setup.host.local_host(r->setup.host.ctx, host) || !strcmp(host, r->local)) return;
    bool changed = *r->local != 0;
    snprintf(r->local, sizeof r->local, "%s", host);
    int len = snprintf(address, sizeof address, "%s:%d", host, port_of(r->listen));
    if (listens_everywhere(r) && len > 0 && (size_t)len < sizeof address && !r->relay.on)
        announce(r, address, SN_REACH_DIRECT, false, now_us, unix_ms);
    if (!changed) return;
    sn_log(SN_LOG_INFO, "own address changed", "host=%s", host);
    relay_end(r);
    r->search_us = now_us;
    sn_membership_redial(r->setup.membership);
    r->reached = r->settled = r->probes_mapped = false;
    sn_relaying_allow(r->setup.relaying, false);
    r->n_probes = 0;
    r->ended_us = now_us;
}

/* -- events and time ----------------------------------------------------------------------------------------------- */

void sn_reach_handle(sn_reach *r, const sn_event *event, int64_t now_us, int64_t unix_ms) {
    const sn_msg *msg = event->msg;
    sn_err err;
    if (msg->kind == SN_MSG_DIAL_BACK_REPLY) {
        for (probe *p = r->probes; p < r->probes + r->n_probes; p++) {
            if (p->peer != event->peer || p->id != msg->correlation_id || p->answered) continue;
            if (sn_address_check_numeric(msg->dial_back_reply.address, &err) ||
                port_of(msg->dial_back_reply.address) != p->port)
                continue; /* what it dialled is not what this node would announce */
            p->answered = true;
            snprintf(p->address, sizeof p->address, "%s", msg->dial_back_reply.address);
        }
    } else if (msg->kind == SN_MSG_RELAY_REPLY) {
        if (event->peer == r->relay.peer && msg->correlation_id == r->relay.id) relay_answered(r, now_us, unix_ms);
    } else if (event->peer == r->relay.peer) { /* RELAY_CALL */
        if (sn_portal_answer(r->setup.transport->portal, r->relay.address, msg->relay_call.token, &err))
            sn_log_rated(SN_LOG_INFO, "call not answered", "text=%s", err.text);
    }
}

bool sn_reach_on_error(sn_reach *r, const sn_event *event, int64_t now_us) {
    if (r->relay.peer && event->peer == r->relay.peer && event->msg->correlation_id == r->relay.id) {
        relay_failed(r, event->msg->error.text, now_us);
        return true;
    }
    for (size_t i = 0; i < r->n_probes; i++)
        if (r->probes[i].peer == event->peer && r->probes[i].id == event->msg->correlation_id) {
            r->probes[i] = r->probes[--r->n_probes]; /* another one may dial back */
            r->put_off = true;
            if (!r->n_probes) r->ended_us = now_us + RETRY_US;
            return true;
        }
    return false;
}

void sn_reach_peer_lost(sn_reach *r, sn_peer peer, int64_t now_us) {
    if (peer && peer == r->relay.peer) relay_failed(r, "the connection to it is lost", now_us);
}

int64_t sn_reach_tick(sn_reach *r, int64_t now_us, int64_t unix_ms) {
    sn_membership *m = r->setup.membership;
    sn_membership_set_relay_places(m, sn_relaying_places(r->setup.relaying));
    if (!r->setup.asks) return INT64_MAX;
    local_tick(r, now_us, unix_ms);
    sn_peer any;
    int64_t next_us = r->local_us;
    if (!sn_membership_answered(m, &any, 1) && !r->n_probes) {
        r->ended_us = now_us; /* when one answers again: the way to it may have changed */
    } else {
        int64_t round_us = round_tick(r, now_us, unix_ms);
        if (round_us < next_us) next_us = round_us;
    }
    int64_t relay_us = r->wants_relay ? relay_tick(r, now_us, unix_ms) : INT64_MAX;
    return relay_us < next_us ? relay_us : next_us;
}
