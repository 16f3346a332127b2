/* The simulated network (net.h).
 *
 * How it works: a host is an address; a program is the transport of the process that runs there now, and each
 * program has a number, its incarnation. A link connects a dialling host with a listening host, and is up while both
 * incarnations that it knows are alive. A message is encoded and decoded (copy_message) and travels as a packet, an
 * event of time.h; deliver_packet drops packets whose connection (epoch) or receiver (incarnation) no longer exists.
 * Messages to a host that cannot be reached are parked and sent when a later attempt connects.
 *
 * Latency depends on the distance between hosts, which lie on a map. Faults (loss, duplication, reordering) apply to
 * single messages; all random decisions come from one generator, so that they depend on the seed only. */
#include "tests/sim/net.h"

#include "tests/support/require.h"

#include <limits.h>
#include <string.h>

enum {
    LATENCY_MIN_US = 200,
    LATENCY_FAR_US = 60000,
    REORDER_US = 3 * SECOND_US,
    NOTICE_US = 15 * SECOND_US, /* time until the other end notices that a machine fell silent */
    RECONNECT_US = SECOND_US,
    PARKED_MAX = 1000,
    RECV_CALLS_MAX = 100000, /* calls of recv by a program while the virtual time stands still */
};

/* What a packet brings to its receiver. */
typedef enum packet_kind { MESSAGE, GARBLED, LOST, GONE } packet_kind; /* as sn_event has them */

/* A connection from a host that dialled. Hosts stay, the programs at them change: each program has a number, its
 * incarnation. */
typedef struct link {
    sim_net *net;
    int ends[2];              /* hosts: the one that dialled, the one that listens */
    uint64_t incarnations[2]; /* of the programs; 0: none, not yet connected, or gone */
    sn_peer peers[2];         /* the link's handle at each end */
    uint64_t epoch;           /* of the connection: packets in flight end with it */
    int64_t arrival_us[2];    /* of the last message to each end: the next one is not earlier */
    bool loss_reported;       /* the dialling end knows, or will be told, that the other end is gone */
    uint8_t key[SN_KEY_SIZE];
    sn_msg **parked; /* messages that wait for a connection */
    size_t n_parked, capacity;
    size_t n_events; /* that lead to this link */
    size_t at;       /* in sim_net.links */
} link;

typedef struct packet {
    link *link;
    uint64_t epoch, incarnation;
    int end; /* the receiver's */
    packet_kind kind;
    sn_msg *msg;  /* of a MESSAGE */
    sn_peer peer; /* the sender, as the receiver knows it */
    void *ctx;    /* of the program that received messages there when it was posted; may be gone */
} packet;

typedef struct program {
    sn_transport base;
    sim_net *net;
    int host;
    sim_receive receive;
    void *ctx;
    sn_event *queued; /* for recv */
    size_t n_queued, capacity;
    sim_task *waits;
    bool woken;
    int64_t recv_us;
    int recv_calls;
} program;

typedef struct host {
    sim_actor *actor;
    uint8_t key[SN_KEY_SIZE];
    program *program;
    void *ctx;            /* of the newest program that receives messages */
    uint64_t incarnation; /* of the program; 0: none runs */
    bool listens, silent; /* silent: the last program ended without closing its connections */
    int side, x, y;
    uint64_t sent; /* bytes */
    void (*tamper)(void *ctx, sn_msg *msg);
    void *tamper_ctx;
    link **dialled, **incoming;
    size_t n_dialled, dialled_capacity, n_incoming, incoming_capacity;
} host;

struct sim_net {
    sim_time *time;
    sim_rng random;
    sim_faults faults;
    host *hosts;
    size_t n_hosts, hosts_capacity;
    link **links; /* all that were ever made; of those that hand over, all that may still be used */
    size_t n_links, links_capacity;
    link **handles; /* [peer - 1] */
    size_t n_handles, handles_capacity;
    uint64_t incarnations;
    bool hands_over;
    size_t fixed_size[SN_MSG_KIND_COUNT]; /* bytes of a message beside varying_size; 0: not known yet */
    uint64_t n_sized;
    sn_buf frame;
    uint64_t garbled;
    sim_traffic traffic;
};

static void *grow_array(void *array, size_t n, size_t *capacity, size_t size) {
    if (n < *capacity) return array;
    *capacity = 2 * *capacity + 16;
    void *grown = realloc(array, *capacity * size);
    if (!grown) abort();
    return grown;
}

sim_net *sim_net_new(sim_time *time, sim_rng random) {
    sim_net *net = sim_alloc(sizeof *net);
    net->time = time;
    net->random = random;
    sn_buf_init(&net->frame, SN_MAP_SIZE_MAX);
    return net;
}

static void drop_parked(link *l) {
    for (size_t i = 0; i < l->n_parked; i++) sn_msg_free(&l->parked[i]);
    l->n_parked = 0;
}

void sim_net_free(sim_net **net) {
    sim_net *n = *net;
    if (!n) return;
    for (size_t i = 0; i < n->n_links; i++) {
        drop_parked(n->links[i]);
        free(n->links[i]->parked);
        free(n->links[i]);
    }
    for (size_t i = 0; i < n->n_hosts; i++) {
        free(n->hosts[i].dialled);
        free(n->hosts[i].incoming);
    }
    free(n->links);
    free(n->handles);
    free(n->hosts);
    sn_buf_fini(&n->frame);
    free(n);
    *net = NULL;
}

void sim_net_hand_over(sim_net *net) { net->hands_over = true; }
sim_faults *sim_net_faults(sim_net *net) { return &net->faults; }
uint64_t sim_net_garbled(const sim_net *net) { return net->garbled; }
const sim_traffic *sim_net_traffic(const sim_net *net) { return &net->traffic; }
uint64_t sim_host_bytes_sent(const sim_net *net, int number) { return net->hosts[number].sent; }

int sim_host_new(sim_net *net, sim_actor *actor, const uint8_t curve_key[SN_KEY_SIZE]) {
    net->hosts = grow_array(net->hosts, net->n_hosts, &net->hosts_capacity, sizeof *net->hosts);
    host *p = &net->hosts[net->n_hosts];
    *p = (host){
        .actor = actor, .x = (int)sim_rng_below(&net->random, 1000), .y = (int)sim_rng_below(&net->random, 1000)};
    memcpy(p->key, curve_key, SN_KEY_SIZE);
    return (int)net->n_hosts++;
}

void sim_host_set_side(sim_net *net, int number, int side) { net->hosts[number].side = side; }

void sim_host_set_tamper(sim_net *net, int number, void (*tamper)(void *ctx, sn_msg *msg), void *ctx) {
    net->hosts[number].tamper = tamper;
    net->hosts[number].tamper_ctx = ctx;
}

/* By the distance on the map: the same in both directions. */
/* one way, without jitter */
static int64_t latency_between(const sim_net *net, int from, int to) {
    const host *a = &net->hosts[from], *b = &net->hosts[to];
    int dx = abs(a->x - b->x), dy = abs(a->y - b->y);
    return LATENCY_MIN_US + (int64_t)(dx > dy ? dx : dy) * LATENCY_FAR_US / 1000;
}

static bool end_is_alive(const link *l, int end) {
    return l->incarnations[end] && l->incarnations[end] == l->net->hosts[l->ends[end]].incarnation;
}
static void forget_handle(link *l, int end) {
    if (l->peers[end]) l->net->handles[l->peers[end] - 1] = NULL;
    l->peers[end] = 0;
}

/* Frees a link that never comes up again and that no event leads to. Not where faults pick links by their number. */
static void free_dead_link(link *l) {
    sim_net *net = l->net;
    if (!net->hands_over || l->n_events || end_is_alive(l, 0)) return;
    host *to = &net->hosts[l->ends[1]];
    size_t i = 0;
    while (i < to->n_incoming && to->incoming[i] != l) i++;
    if (i < to->n_incoming)
        memmove(to->incoming + i, to->incoming + i + 1, (--to->n_incoming - i) * sizeof *to->incoming);
    net->links[l->at] = net->links[--net->n_links];
    net->links[l->at]->at = l->at;
    for (int end = 0; end < 2; end++) forget_handle(l, end);
    drop_parked(l);
    free(l->parked);
    free(l);
}

static bool is_partitioned(const link *l) { return l->net->hosts[l->ends[0]].side != l->net->hosts[l->ends[1]].side; }
static bool link_is_up(const link *l) { return end_is_alive(l, 0) && end_is_alive(l, 1); }

static sn_peer new_handle(link *l) {
    sim_net *net = l->net;
    net->handles = grow_array(net->handles, net->n_handles, &net->handles_capacity, sizeof *net->handles);
    net->handles[net->n_handles++] = l;
    return net->n_handles;
}

/* -- delivery */

static void deliver_event(host *to, sn_event *event) {
    program *p = to->program;
    sim_actor *previous = sim_set_actor(p->net->time, to->actor);
    event->arrived_us = sim_local_us(p->net->time, to->actor);
    if (p->receive) {
        p->receive(p->ctx, event);
    } else {
        p->queued = grow_array(p->queued, p->n_queued, &p->capacity, sizeof *p->queued);
        p->queued[p->n_queued++] = *event;
        if (p->waits) sim_task_wake(p->waits);
    }
    sim_set_actor(p->net->time, previous);
}

static void deliver_packet(void *owner, void *what, uint64_t which, bool ending) {
    (void)owner;
    (void)which;
    packet *p = what;
    link *l = p->link;
    host *to = &l->net->hosts[l->ends[p->end]];
    bool ends = p->kind == LOST || p->kind == GONE;
    if (!ending && p->incarnation == to->incarnation && (ends || (p->epoch == l->epoch && !is_partitioned(l)))) {
        static const char *const names[] = {[GARBLED] = "garbled", [LOST] = "lost", [GONE] = "gone"};
        sn_event event = {.msg = p->msg, .peer = p->peer, .lost = p->kind == LOST, .gone = p->kind == GONE};
        event.dialled = !p->end;
        memcpy(event.key, p->end ? l->net->hosts[l->ends[0]].key : l->key, SN_KEY_SIZE);
        const host *there = &l->net->hosts[l->ends[1]];
        if (p->kind == LOST && there->incarnation && there->listens && memcmp(there->key, l->key, SN_KEY_SIZE))
            snprintf(event.other_at, sizeof event.other_at, "node%d:1", l->ends[1]);
        if (ends) (void)sn_fail(&event.err, SN_RETRY, "the connection to node%d:1 was lost", l->ends[1 - p->end]);
        if (p->kind == GARBLED) (void)sn_fail(&event.err, SN_REFUSED, "these bytes are no message");
        p->msg = NULL;
        sim_trace_event(l->net->time, event.msg ? sn_msg_kind_name(event.msg->kind) : names[p->kind],
                        (uint64_t)l->ends[1 - p->end], (uint64_t)l->ends[p->end]);
        deliver_event(to, &event);
    }
    sn_msg_free(&p->msg);
    free(p);
    l->n_events--;
    free_dead_link(l);
}

const void *sim_net_prepare(sim_action action, const void *what, int level) {
    const packet *p = what;
    if (action != deliver_packet) return NULL;
    if (!level) {
        __builtin_prefetch(p);
        __builtin_prefetch((const char *)p + 64);
        return NULL;
    }
    if (level == 1) {
        __builtin_prefetch(p->link);
        __builtin_prefetch((const char *)p->link + 64);
        for (size_t i = 0; i < 5; i++) __builtin_prefetch((const char *)p->msg + 64 * i);
    }
    if (level == 1 || !p->msg) return p->ctx;
    const sn_msg *msg = p->msg;
    const host *to = &p->link->net->hosts[p->link->ends[p->end]];
    if (level == 2) __builtin_prefetch(to);
    if (level == 2) __builtin_prefetch((const char *)to + 64);
    size_t n = msg->kind == SN_MSG_PEERS ? msg->peers.n_announcements : 0;
    if (msg->kind == SN_MSG_PEERS_REPLY) n = msg->peers_reply.n_announcements;
    const sn_blob *blobs = msg->kind == SN_MSG_PEERS ? msg->peers.announcements : msg->peers_reply.announcements;
    if (level == 2) {
        if (n) __builtin_prefetch(blobs);
        return p->ctx;
    }
    __builtin_prefetch(to->program);
    for (size_t i = 0; i < n; i++) __builtin_prefetch(blobs[i].data + blobs[i].len - SN_SIGNATURE_SIZE);
    return p->ctx;
}

static void post_packet(link *l, int end, packet_kind kind, sn_msg *msg, int64_t delay_us, bool in_order) {
    packet *p = sim_alloc(sizeof *p);
    l->n_events++;
    const host *to = &l->net->hosts[l->ends[end]];
    *p = (packet){l, l->epoch, to->incarnation, end, kind, msg, l->peers[end], to->ctx};
    int64_t at = sim_now(l->net->time) + delay_us;
    if (in_order && at < l->arrival_us[end]) at = l->arrival_us[end];
    if (in_order) l->arrival_us[end] = at;
    sim_schedule(l->net->time, at, deliver_packet, p, 0);
}

static int64_t delay_of(link *l) {
    int64_t latency_us = latency_between(l->net, l->ends[0], l->ends[1]);
    return latency_us + (int64_t)sim_rng_below(&l->net->random, (uint64_t)latency_us / 4 + 100);
}

static void report_loss(link *l, bool silent) {
    if (l->loss_reported || !end_is_alive(l, 0)) return;
    l->loss_reported = true;
    post_packet(l, 0, LOST, NULL, silent ? NOTICE_US : delay_of(l), true);
}

/* The listening end learns that the peer which dialled it is gone. */
static void report_gone(link *l, bool silent) {
    if (end_is_alive(l, 1)) post_packet(l, 1, GONE, NULL, silent ? NOTICE_US : delay_of(l), true);
}

/* -- connections -- */

/* Connects the link if possible. True if it is up. */
static bool connect_link(link *l) {
    sim_net *net = l->net;
    host *to = &net->hosts[l->ends[1]];
    if (link_is_up(l)) return true;
    bool reachable = to->incarnation && to->listens && !memcmp(to->key, l->key, SN_KEY_SIZE);
    if (!reachable || is_partitioned(l)) {
        report_loss(l, is_partitioned(l) || to->silent);
        return false;
    }
    l->incarnations[1] = to->incarnation;
    forget_handle(l, 1);
    l->peers[1] = new_handle(l);
    l->loss_reported = false;
    l->arrival_us[1] = sim_now(net->time) + 2 * delay_of(l); /* the handshake */
    to->incoming = grow_array(to->incoming, to->n_incoming, &to->incoming_capacity, sizeof *to->incoming);
    to->incoming[to->n_incoming++] = l;
    return true;
}

static void retry_connect(void *owner, void *what, uint64_t which, bool ending);

static void retry_later(link *l) {
    l->n_events++;
    sim_schedule(l->net->time, sim_now(l->net->time) + RECONNECT_US, retry_connect, l, 0);
}

static void retry_connect(void *owner, void *what, uint64_t which, bool ending) {
    (void)owner;
    (void)which;
    link *l = what;
    l->n_events--;
    if (ending || !l->n_parked) {
        free_dead_link(l);
    } else if (!end_is_alive(l, 0)) {
        drop_parked(l);
        free_dead_link(l);
    } else if (connect_link(l)) {
        for (size_t i = 0; i < l->n_parked; i++) post_packet(l, 1, MESSAGE, l->parked[i], delay_of(l), true);
        l->n_parked = 0;
    } else {
        retry_later(l);
    }
}

/* Keeps a message until there is a connection. Consumes *msg. */
static sn_status park_message(link *l, sn_msg **msg, sn_err *err) {
    if (l->n_parked == PARKED_MAX) return sn_fail(err, SN_RETRY, "the queue of this peer is full: try again later");
    l->parked = grow_array(l->parked, l->n_parked, &l->capacity, sizeof *l->parked);
    if (!l->n_parked) retry_later(l);
    l->parked[l->n_parked++] = *msg;
    *msg = NULL;
    return SN_OK;
}

static void drop_program(host *p, bool silent) {
    p->incarnation = 0;
    p->listens = false;
    p->program = NULL;
    p->silent = silent;
    for (size_t i = 0; i < p->n_incoming; i++) {
        link *l = p->incoming[i];
        if (!l->incarnations[1]) continue;
        l->incarnations[1] = 0;
        report_loss(l, silent || is_partitioned(l));
    }
    for (size_t i = 0; i < p->n_dialled; i++) report_gone(p->dialled[i], silent || is_partitioned(p->dialled[i]));
    p->n_incoming = 0;
    for (size_t i = 0; i < p->n_dialled; i++) free_dead_link(p->dialled[i]);
    p->n_dialled = 0;
}

void sim_host_crash(sim_net *net, int number, bool silent) { drop_program(&net->hosts[number], silent); }

void sim_net_break_connection(sim_net *net) {
    for (int tries = 0; tries < 20 && net->n_links; tries++) {
        link *l = net->links[sim_rng_below(&net->random, net->n_links)];
        if (!link_is_up(l)) continue;
        report_gone(l, false);
        l->incarnations[1] = 0;
        l->epoch++;
        report_loss(l, false);
        sim_trace_event(net->time, "cut", (uint64_t)l->ends[0], (uint64_t)l->ends[1]);
        return;
    }
}

/* -- operations of the transport */

static sn_status op_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    (void)err;
    program *p = (program *)t;
    p->net->hosts[p->host].listens = true;
    snprintf(bound, SN_ADDRESS_MAX + 1, "%s", address);
    return SN_OK;
}

static sn_status op_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                         sn_err *err) {
    program *p = (program *)t;
    sim_net *net = p->net;
    host *from = &net->hosts[p->host];
    char *end = NULL;
    *out = 0;
    unsigned long to = !strncmp(address, "node", 4) ? strtoul(address + 4, &end, 10) : ULONG_MAX;
    if (!end || strcmp(end, ":1") || to >= net->n_hosts) return sn_fail(err, SN_REFUSED, "%s is no host", address);
    for (size_t i = 0; i < from->n_dialled && !*out; i++)
        if (from->dialled[i]->ends[1] == (int)to && !memcmp(from->dialled[i]->key, key, SN_KEY_SIZE))
            *out = from->dialled[i]->peers[0];
    if (*out) return SN_OK;
    link *l = sim_alloc(sizeof *l);
    l->net = net;
    l->ends[0] = p->host;
    l->ends[1] = (int)to;
    l->incarnations[0] = from->incarnation;
    memcpy(l->key, key, SN_KEY_SIZE);
    *out = l->peers[0] = new_handle(l);
    net->links = grow_array(net->links, net->n_links, &net->links_capacity, sizeof *net->links);
    l->at = net->n_links;
    net->links[net->n_links++] = l;
    from->dialled = grow_array(from->dialled, from->n_dialled, &from->dialled_capacity, sizeof *from->dialled);
    from->dialled[from->n_dialled++] = l;
    return SN_OK;
}

/* The message after encoding and decoding; net->frame holds its bytes. */
static sn_msg *copy_message(sim_net *net, const sn_msg *msg) {
    sn_msg *copy = NULL;
    void *data = NULL;
    net->frame.len = 0;
    REQUIRE(sn_msg_encode(msg, &net->frame, &err));
    REQUIRE(sn_msg_decode(net->frame.data, net->frame.len, &copy, &err));
    if (msg->tensor.rank) {
        REQUIRE(sn_msg_new_tensor(copy, msg->tensor.dtype, msg->tensor.rank, msg->tensor.shape, &data, &err));
        memcpy(data, msg->tensor.data, msg->tensor.bytes);
    }
    return copy;
}

/* -- the bytes of a message that is handed over */

static size_t uint_size(uint64_t n) {
    return n < 128 ? 1 : n <= UINT8_MAX ? 2 : n <= UINT16_MAX ? 3 : n <= UINT32_MAX ? 5 : 9;
}

static size_t blobs_size(const sn_blob *blobs, size_t n) {
    size_t size = n < 16 ? 1 : 3;
    for (size_t i = 0; i < n; i++) size += blobs[i].len + (blobs[i].len <= UINT8_MAX ? 2 : 3);
    return size;
}

/* The bytes of what differs between messages of a kind. */
static size_t varying_size(const sn_msg *msg) {
    const sn_msg_peers *p = &msg->peers;
    size_t size = uint_size(msg->correlation_id);
    if (msg->kind == SN_MSG_PEERS)
        return size + uint_size(p->first_block) + uint_size(p->end_block) + uint_size(p->from_tag) +
               uint_size(p->to_tag) + strlen(p->name) + (strlen(p->name) > 31) + blobs_size(p->known, p->n_known) +
               blobs_size(p->announcements, p->n_announcements);
    if (msg->kind == SN_MSG_PEERS_REPLY)
        return size + uint_size(msg->peers_reply.next_tag) + uint_size(msg->peers_reply.proven) +
               blobs_size(msg->peers_reply.announcements, msg->peers_reply.n_announcements);
    if (msg->kind == SN_MSG_PING) return size + blobs_size(msg->ping.padding, msg->ping.n_padding);
    if (msg->kind == SN_MSG_PONG) return size + uint_size(msg->pong.padding_bytes);
    return 0;
}

/* Where kinds have no varying_size, and now and then to check it, the message is encoded. */
static size_t message_size(sim_net *net, const sn_msg *msg) {
    size_t varying = varying_size(msg), *fixed = &net->fixed_size[msg->kind];
    if (varying && *fixed && ++net->n_sized % 1024) return *fixed + varying;
    net->frame.len = 0;
    REQUIRE(sn_msg_encode(msg, &net->frame, &err));
    if (!varying) return net->frame.len + msg->tensor.bytes;
    if (!*fixed) *fixed = net->frame.len - varying;
    if (*fixed + varying != net->frame.len) abort();
    return net->frame.len;
}

/* Nothing but CURVE protects these: the wire types of a route, and batches of training, which no hash covers. */
static bool garbling_is_harmless(const sn_msg *msg, const sn_msg *garbled) {
    if (garbled->kind != msg->kind) return false;
    bool trains = msg->kind >= SN_MSG_FORWARD && msg->kind <= SN_MSG_BACKWARD_REPLY;
    if (trains || msg->kind != SN_MSG_STEP) return !trains;
    bool same = msg->step.n_route == garbled->step.n_route && msg->step.reply_dtype == garbled->step.reply_dtype;
    for (size_t i = 0; i < msg->step.n_route && same; i++)
        same = msg->step.route[i].dtype == garbled->step.route[i].dtype;
    return same;
}

/* Changes a byte of the encoded message (net->frame). *kind becomes GARBLED where that gives no message. */
static void garble(sim_net *net, sn_msg **msg, packet_kind *kind) {
    sn_msg *garbled = NULL;
    sn_err err;
    net->garbled++;
    if ((*msg)->kind == SN_MSG_STEP && sim_rng_bernoulli(&net->random, 0.5)) { /* the byte that does most harm */
        (*msg)->step.position = sim_rng_below(&net->random, (*msg)->step.position + 1);
        return;
    }
    net->frame.data[sim_rng_below(&net->random, net->frame.len)] ^= (uint8_t)sim_rng_between(&net->random, 1, 255);
    const sn_wire_tensor *t = &(*msg)->tensor;
    void *data = t->rank ? sim_alloc(t->bytes) : NULL;
    if (data) memcpy(data, t->data, t->bytes);
    bool decoded = !sn_msg_decode(net->frame.data, net->frame.len, &garbled, &err);
    if (decoded && !garbling_is_harmless(*msg, garbled)) {
        sn_msg_free(&garbled);
        free(data);
        return;
    }
    if (decoded) decoded = !sn_msg_attach_tensor(garbled, t->rank ? 1 : 0, data, t->bytes, free, data, &err);
    if (!decoded) free(data);
    if (!decoded) sn_msg_free(&garbled);
    sn_msg_free(msg);
    *msg = garbled;
    *kind = decoded ? MESSAGE : GARBLED;
}

static void send_message(link *l, int end, sn_msg **msg) {
    sim_net *net = l->net;
    const sim_faults *f = &net->faults;
    packet_kind kind = MESSAGE;
    if (sim_rng_bernoulli(&net->random, f->loss)) return;
    if (sim_rng_bernoulli(&net->random, f->duplication)) {
        bool reordered = sim_rng_bernoulli(&net->random, 0.5);
        post_packet(l, end, MESSAGE, copy_message(net, *msg),
                    delay_of(l) + (reordered ? (int64_t)sim_rng_below(&net->random, REORDER_US) : 0), !reordered);
    }
    if (sim_rng_bernoulli(&net->random, f->garbling)) garble(net, msg, &kind);
    bool late = sim_rng_bernoulli(&net->random, f->reordering);
    post_packet(l, end, kind, *msg, delay_of(l) + (late ? (int64_t)sim_rng_below(&net->random, REORDER_US) : 0), !late);
    *msg = NULL;
}

static link *find_link(const program *p, sn_peer peer, int *end) {
    link *l = peer && peer <= p->net->n_handles ? p->net->handles[peer - 1] : NULL;
    if (!l) return NULL;
    *end = l->peers[1] == peer;
    bool is_own = l->peers[*end] == peer && l->ends[*end] == p->host && end_is_alive(l, *end);
    return is_own && p->net->hosts[p->host].program == p ? l : NULL;
}

static sn_status op_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    program *p = (program *)t;
    sim_net *net = p->net;
    host *from = &net->hosts[p->host];
    int end = 0;
    link *l = find_link(p, peer, &end);
    if (!l || (end && !link_is_up(l))) return sn_fail(err, SN_RETRY, "this peer is gone");
    sn_msg *copy = net->hands_over ? *msg : copy_message(net, *msg);
    size_t size = net->hands_over ? message_size(net, copy) : net->frame.len + copy->tensor.bytes;
    if (net->hands_over) *msg = NULL;
    if (from->tamper) from->tamper(from->tamper_ctx, copy);
    net->traffic.messages[copy->kind]++;
    net->traffic.bytes[copy->kind] += size;
    from->sent += size;
    if (!net->hands_over) sim_trace_bytes(net->time, net->frame.data, net->frame.len);
    sn_status status = SN_OK;
    if (end || connect_link(l)) {
        if (!is_partitioned(l)) send_message(l, 1 - end, &copy);
    } else {
        status = park_message(l, &copy, err);
    }
    if (status && net->hands_over) {
        *msg = copy;
        return status;
    }
    sn_msg_free(&copy);
    if (!status) sn_msg_free(msg);
    return status;
}

static sn_status op_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    (void)err;
    program *p = (program *)t;
    sim_actor *actor = p->net->hosts[p->host].actor;
    if (p->recv_us != sim_now(p->net->time)) p->recv_calls = 0;
    p->recv_us = sim_now(p->net->time);
    if (++p->recv_calls > RECV_CALLS_MAX) {
        fprintf(stderr, "%s calls recv without end\n", actor->name);
        abort();
    }
    while (!p->n_queued && !p->woken && sim_local_us(p->net->time, actor) < deadline_us) {
        p->waits = sim_task_current();
        sim_task_wait(sim_global_us(actor, deadline_us));
        p->waits = NULL;
    }
    p->woken = false;
    *out = (sn_event){0};
    if (!p->n_queued) return SN_OK;
    *out = p->queued[0];
    memmove(p->queued, p->queued + 1, --p->n_queued * sizeof *p->queued);
    return SN_OK;
}

static void op_hang_up(sn_transport *t, sn_peer peer) {
    program *p = (program *)t;
    host *from = &p->net->hosts[p->host];
    int end = 0;
    link *l = find_link(p, peer, &end);
    if (!l) return;
    l->epoch++;
    l->incarnations[end] = 0;
    forget_handle(l, end);
    drop_parked(l);
    if (end) return;
    report_gone(l, is_partitioned(l));
    for (size_t i = 0; i < from->n_dialled; i++)
        if (from->dialled[i] == l) from->dialled[i] = from->dialled[--from->n_dialled];
    free_dead_link(l);
}

static void op_wake(sn_transport *t) {
    program *p = (program *)t;
    p->woken = true;
    if (p->waits) sim_task_wake(p->waits);
}

/* The program ends in order: its messages still arrive, and the dialling ends are told. */
static void op_free(sn_transport *t) {
    program *p = (program *)t;
    host *from = &p->net->hosts[p->host];
    if (from->program == p) drop_program(from, false);
    for (size_t i = 0; i < p->n_queued; i++) sn_msg_free(&p->queued[i].msg);
    free(p->queued);
    free(p);
}

static const sn_transport_ops ops = {op_listen, op_dial, op_send, op_recv, op_hang_up, op_wake,
                                     op_free,   NULL,    NULL,    NULL,    NULL};

sn_transport *sim_transport_new(sim_net *net, int number, sim_receive receive, void *ctx) {
    program *p = sim_alloc(sizeof *p);
    *p = (program){.base = {&ops, .dials_names = true}, .net = net, .host = number, .receive = receive, .ctx = ctx};
    host *at = &net->hosts[number];
    if (at->incarnation) abort();
    at->program = p;
    if (receive) at->ctx = ctx;
    at->incarnation = ++net->incarnations;
    at->silent = false;
    return &p->base;
}
