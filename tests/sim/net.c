#include "tests/sim/net.h"

#include "tests/support/need.h"

#include <limits.h>
#include <string.h>

enum {
    LATENCY_MIN_US = 200,
    LATENCY_FAR_US = 60000,
    OVERTAKE_US = 3 * SECOND_US,
    NOTICE_US = 15 * SECOND_US, /* until a machine that fell silent is found out */
    RECONNECT_US = SECOND_US,
    PARKED_MAX = 1000,
    TURNS_MAX = 100000, /* of a program that asks for messages again and again while the time stands still */
};

/* A connection from a place that dialled. Places stay, the programs at them come and go: each has a number, its life. */
typedef struct link {
    sim_net *net;
    int ends[2];           /* places: the one that dialled, the one that listens */
    uint64_t lives[2];     /* 0: none there, or not yet connected, or gone */
    sn_peer peers[2];      /* its handle at each end */
    uint64_t epoch;        /* of the connection: what is on its way dies with it */
    int64_t arrival_us[2]; /* of the last message to each end: the next one is not earlier */
    bool told;             /* the dialling end knows, or will be told, that the other is not there */
    uint8_t key[SN_KEY_SIZE];
    sn_msg **parked; /* wait for a connection */
    size_t n_parked, room;
} link;

typedef struct parcel {
    link *link;
    uint64_t epoch, life;
    int end;     /* of the receiver */
    sn_msg *msg; /* NULL: the connection was lost */
} parcel;

typedef struct program {
    sn_transport base;
    sim_net *net;
    int place;
    sim_receive receive;
    void *ctx;
    sn_event *kept; /* for recv */
    size_t n_kept, room;
    sim_task *waits;
    bool woken;
    int64_t turned_us;
    int turns;
} program;

typedef struct place {
    sim_actor *actor;
    uint8_t key[SN_KEY_SIZE];
    program *program;
    uint64_t life; /* of the program; 0: none runs */
    bool listens, silent; /* silent: the last one died without a word */
    int side, x, y;
    uint64_t sent; /* bytes */
    void (*tamper)(void *ctx, sn_msg *msg);
    void *tamper_ctx;
    link **dialled, **incoming;
    size_t n_dialled, dialled_room, n_incoming, incoming_room;
} place;

struct sim_net {
    sim_time *time;
    sim_random random;
    sim_faults faults;
    place *places;
    size_t n_places, places_room;
    link **links; /* all that ever were */
    size_t n_links, links_room;
    link **handles; /* [peer - 1] */
    size_t n_handles, handles_room;
    uint64_t lives;
    sn_buf frame;
    sim_traffic traffic;
};

static void *grow(void *array, size_t n, size_t *room, size_t size) {
    if (n < *room) return array;
    *room = 2 * *room + 16;
    void *grown = realloc(array, *room * size);
    if (!grown) abort();
    return grown;
}

sim_net *sim_net_new(sim_time *time, sim_random random) {
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
    for (size_t i = 0; i < n->n_places; i++) {
        free(n->places[i].dialled);
        free(n->places[i].incoming);
    }
    free(n->links);
    free(n->handles);
    free(n->places);
    sn_buf_fini(&n->frame);
    free(n);
    *net = NULL;
}

sim_faults *sim_net_faults(sim_net *net) { return &net->faults; }
const sim_traffic *sim_net_traffic(const sim_net *net) { return &net->traffic; }
uint64_t sim_place_sent(const sim_net *net, int number) { return net->places[number].sent; }

int sim_place_new(sim_net *net, sim_actor *actor, const uint8_t curve_key[SN_KEY_SIZE]) {
    net->places = grow(net->places, net->n_places, &net->places_room, sizeof *net->places);
    place *p = &net->places[net->n_places];
    *p = (place){.actor = actor, .x = (int)sim_below(&net->random, 1000), .y = (int)sim_below(&net->random, 1000)};
    memcpy(p->key, curve_key, SN_KEY_SIZE);
    return (int)net->n_places++;
}

void sim_place_side(sim_net *net, int number, int side) { net->places[number].side = side; }

void sim_place_tamper(sim_net *net, int number, void (*tamper)(void *ctx, sn_msg *msg), void *ctx) {
    net->places[number].tamper = tamper;
    net->places[number].tamper_ctx = ctx;
}

/* By the distance on a map: the same in both directions. */
int64_t sim_net_latency_us(const sim_net *net, int from, int to) {
    const place *a = &net->places[from], *b = &net->places[to];
    int dx = abs(a->x - b->x), dy = abs(a->y - b->y);
    return LATENCY_MIN_US + (int64_t)(dx > dy ? dx : dy) * LATENCY_FAR_US / 1000;
}

static bool is_there(const link *l, int end) {
    return l->lives[end] && l->lives[end] == l->net->places[l->ends[end]].life;
}
static bool apart(const link *l) { return l->net->places[l->ends[0]].side != l->net->places[l->ends[1]].side; }
static bool is_up(const link *l) { return is_there(l, 0) && is_there(l, 1); }

static sn_peer new_handle(link *l) {
    sim_net *net = l->net;
    net->handles = grow(net->handles, net->n_handles, &net->handles_room, sizeof *net->handles);
    net->handles[net->n_handles++] = l;
    return net->n_handles;
}

/* -- what arrives -- */

static void hand_over(place *to, sn_event *event) {
    program *p = to->program;
    sim_actor *was = sim_enter(p->net->time, to->actor);
    event->arrived_us = sim_local_us(p->net->time, to->actor);
    if (p->receive) {
        p->receive(p->ctx, event);
    } else {
        p->kept = grow(p->kept, p->n_kept, &p->room, sizeof *p->kept);
        p->kept[p->n_kept++] = *event;
        if (p->waits) sim_task_wake(p->waits);
    }
    sim_enter(p->net->time, was);
}

static void arrive(void *world, void *what, uint64_t which, bool ending) {
    (void)world;
    (void)which;
    parcel *p = what;
    link *l = p->link;
    place *to = &l->net->places[l->ends[p->end]];
    bool lost = !p->msg;
    if (!ending && p->life == to->life && (lost || (p->epoch == l->epoch && !apart(l)))) {
        sn_event event = {.msg = p->msg, .peer = l->peers[p->end], .lost = lost};
        memcpy(event.key, p->end ? l->net->places[l->ends[0]].key : l->key, SN_KEY_SIZE);
        if (lost) (void)sn_fail(&event.bad, SN_RETRY, "the connection to mem://%d was lost", l->ends[1]);
        p->msg = NULL;
        sim_note(l->net->time, lost ? "lost" : sn_msg_kind_name(event.msg->kind), (uint64_t)l->ends[1 - p->end],
                 (uint64_t)l->ends[p->end]);
        hand_over(to, &event);
    }
    sn_msg_free(&p->msg);
    free(p);
}

static void post(link *l, int end, sn_msg *msg, int64_t delay_us, bool in_order) {
    parcel *p = sim_alloc(sizeof *p);
    *p = (parcel){l, l->epoch, l->net->places[l->ends[end]].life, end, msg};
    int64_t at = sim_now(l->net->time) + delay_us;
    if (in_order && at < l->arrival_us[end]) at = l->arrival_us[end];
    if (in_order) l->arrival_us[end] = at;
    sim_at(l->net->time, at, arrive, p, 0);
}

static int64_t delay_of(link *l) {
    int64_t way = sim_net_latency_us(l->net, l->ends[0], l->ends[1]);
    return way + (int64_t)sim_below(&l->net->random, (uint64_t)way / 4 + 100);
}

static void tell_of_loss(link *l, bool silent) {
    if (l->told || !is_there(l, 0)) return;
    l->told = true;
    post(l, 0, NULL, silent ? NOTICE_US : delay_of(l), true);
}

/* -- connections -- */

/* True when the link is up, perhaps by this. */
static bool connect_link(link *l) {
    sim_net *net = l->net;
    place *to = &net->places[l->ends[1]];
    if (is_up(l)) return true;
    bool answers = to->life && to->listens && !memcmp(to->key, l->key, SN_KEY_SIZE);
    if (!answers || apart(l)) {
        tell_of_loss(l, apart(l) || to->silent);
        return false;
    }
    l->lives[1] = to->life;
    l->peers[1] = new_handle(l);
    l->told = false;
    l->arrival_us[1] = sim_now(net->time) + 2 * delay_of(l); /* the handshake */
    to->incoming = grow(to->incoming, to->n_incoming, &to->incoming_room, sizeof *to->incoming);
    to->incoming[to->n_incoming++] = l;
    return true;
}

static void try_again(void *world, void *what, uint64_t which, bool ending) {
    (void)world;
    (void)which;
    link *l = what;
    if (ending || !l->n_parked) return;
    if (!is_there(l, 0)) {
        drop_parked(l);
    } else if (connect_link(l)) {
        for (size_t i = 0; i < l->n_parked; i++) post(l, 1, l->parked[i], delay_of(l), true);
        l->n_parked = 0;
    } else {
        sim_at(l->net->time, sim_now(l->net->time) + RECONNECT_US, try_again, l, 0);
    }
}

/* What is sent while there is no connection waits for one. Takes *msg. */
static sn_status park(link *l, sn_msg **msg, sn_err *err) {
    if (l->n_parked == PARKED_MAX) return sn_fail(err, SN_RETRY, "the queue of this peer is full: try again later");
    l->parked = grow(l->parked, l->n_parked, &l->room, sizeof *l->parked);
    if (!l->n_parked) sim_at(l->net->time, sim_now(l->net->time) + RECONNECT_US, try_again, l, 0);
    l->parked[l->n_parked++] = *msg;
    *msg = NULL;
    return SN_OK;
}

static void drop_program(place *p, bool silent) {
    p->life = 0;
    p->listens = false;
    p->program = NULL;
    p->silent = silent;
    for (size_t i = 0; i < p->n_incoming; i++) {
        link *l = p->incoming[i];
        if (!l->lives[1]) continue;
        l->lives[1] = 0;
        tell_of_loss(l, silent || apart(l));
    }
    p->n_incoming = p->n_dialled = 0;
}

void sim_place_crash(sim_net *net, int number, bool silent) { drop_program(&net->places[number], silent); }

void sim_net_cut(sim_net *net) {
    for (int tries = 0; tries < 20 && net->n_links; tries++) {
        link *l = net->links[sim_below(&net->random, net->n_links)];
        if (!is_up(l)) continue;
        l->lives[1] = 0;
        l->epoch++;
        tell_of_loss(l, false);
        sim_note(net->time, "cut", (uint64_t)l->ends[0], (uint64_t)l->ends[1]);
        return;
    }
}

/* -- operations of a transport -- */

static sn_status op_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    (void)err;
    program *p = (program *)t;
    p->net->places[p->place].listens = true;
    snprintf(bound, SN_ADDRESS_MAX + 1, "%s", address);
    return SN_OK;
}

static sn_status op_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                         sn_err *err) {
    program *p = (program *)t;
    sim_net *net = p->net;
    place *from = &net->places[p->place];
    char *end = NULL;
    *out = 0;
    unsigned long to = !strncmp(address, "mem://", 6) ? strtoul(address + 6, &end, 10) : ULONG_MAX;
    if (!end || *end || to >= net->n_places) return sn_fail(err, SN_REFUSED, "%s is no place", address);
    for (size_t i = 0; i < from->n_dialled && !*out; i++)
        if (from->dialled[i]->ends[1] == (int)to && !memcmp(from->dialled[i]->key, key, SN_KEY_SIZE))
            *out = from->dialled[i]->peers[0];
    if (*out) return SN_OK;
    link *l = sim_alloc(sizeof *l);
    l->net = net;
    l->ends[0] = p->place;
    l->ends[1] = (int)to;
    l->lives[0] = from->life;
    memcpy(l->key, key, SN_KEY_SIZE);
    *out = l->peers[0] = new_handle(l);
    net->links = grow(net->links, net->n_links, &net->links_room, sizeof *net->links);
    net->links[net->n_links++] = l;
    from->dialled = grow(from->dialled, from->n_dialled, &from->dialled_room, sizeof *from->dialled);
    from->dialled[from->n_dialled++] = l;
    return SN_OK;
}

/* The message as it would come out of the wire; net->frame holds its bytes. */
static sn_msg *copy_message(sim_net *net, const sn_msg *msg) {
    sn_msg *copy = NULL;
    void *data = NULL;
    net->frame.len = 0;
    NEED(sn_msg_encode(msg, &net->frame, &err));
    NEED(sn_msg_decode(net->frame.data, net->frame.len, &copy, &err));
    if (msg->tensor.rank) {
        NEED(sn_msg_new_tensor(copy, msg->tensor.dtype, msg->tensor.rank, msg->tensor.shape, &data, &err));
        memcpy(data, msg->tensor.data, msg->tensor.bytes);
    }
    return copy;
}

static void launch(link *l, int end, sn_msg **msg) {
    sim_net *net = l->net;
    const sim_faults *f = &net->faults;
    if (sim_chance(&net->random, f->loss)) return;
    if (sim_chance(&net->random, f->doubling)) {
        bool behind = sim_chance(&net->random, 0.5);
        post(l, end, copy_message(net, *msg), delay_of(l) + (behind ? (int64_t)sim_below(&net->random, OVERTAKE_US) : 0), !behind);
    }
    bool late = sim_chance(&net->random, f->overtaking);
    post(l, end, *msg, delay_of(l) + (late ? (int64_t)sim_below(&net->random, OVERTAKE_US) : 0), !late);
    *msg = NULL;
}

static link *find_link(const program *p, sn_peer peer, int *end) {
    link *l = peer && peer <= p->net->n_handles ? p->net->handles[peer - 1] : NULL;
    if (!l) return NULL;
    *end = l->peers[1] == peer;
    bool ours = l->peers[*end] == peer && l->ends[*end] == p->place && is_there(l, *end);
    return ours && p->net->places[p->place].program == p ? l : NULL;
}

static sn_status op_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    program *p = (program *)t;
    sim_net *net = p->net;
    place *from = &net->places[p->place];
    int end = 0;
    link *l = find_link(p, peer, &end);
    if (!l || (end && !is_up(l))) return sn_fail(err, SN_RETRY, "this peer is gone");
    sn_msg *copy = copy_message(net, *msg);
    if (from->tamper) from->tamper(from->tamper_ctx, copy);
    net->traffic.messages[copy->kind]++;
    net->traffic.bytes[copy->kind] += net->frame.len + copy->tensor.bytes;
    from->sent += net->frame.len + copy->tensor.bytes;
    sim_note_bytes(net->time, net->frame.data, net->frame.len);
    sn_status status = SN_OK;
    if (end || connect_link(l)) {
        if (!apart(l)) launch(l, 1 - end, &copy);
    } else {
        status = park(l, &copy, err);
    }
    sn_msg_free(&copy);
    if (!status) sn_msg_free(msg);
    return status;
}

static sn_status op_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    (void)err;
    program *p = (program *)t;
    sim_actor *actor = p->net->places[p->place].actor;
    if (p->turned_us != sim_now(p->net->time)) p->turns = 0;
    p->turned_us = sim_now(p->net->time);
    if (++p->turns > TURNS_MAX) {
        fprintf(stderr, "%s turns in a circle\n", actor->name);
        abort();
    }
    while (!p->n_kept && !p->woken && sim_local_us(p->net->time, actor) < deadline_us) {
        p->waits = sim_task_current();
        sim_task_wait(sim_global_us(actor, deadline_us));
        p->waits = NULL;
    }
    p->woken = false;
    *out = (sn_event){0};
    if (!p->n_kept) return SN_OK;
    *out = p->kept[0];
    memmove(p->kept, p->kept + 1, --p->n_kept * sizeof *p->kept);
    return SN_OK;
}

static void op_hang_up(sn_transport *t, sn_peer peer) {
    program *p = (program *)t;
    place *from = &p->net->places[p->place];
    int end = 0;
    link *l = find_link(p, peer, &end);
    if (!l) return;
    l->epoch++;
    l->lives[end] = 0;
    l->peers[end] = 0;
    drop_parked(l);
    if (end) return;
    for (size_t i = 0; i < from->n_dialled; i++)
        if (from->dialled[i] == l) from->dialled[i] = from->dialled[--from->n_dialled];
}

static void op_wake(sn_transport *t) {
    program *p = (program *)t;
    p->woken = true;
    if (p->waits) sim_task_wake(p->waits);
}

/* The program ends in order: what it sent is on its way, whoever dialled it is told. */
static void op_free(sn_transport *t) {
    program *p = (program *)t;
    place *from = &p->net->places[p->place];
    if (from->program == p) drop_program(from, false);
    for (size_t i = 0; i < p->n_kept; i++) sn_msg_free(&p->kept[i].msg);
    free(p->kept);
    free(p);
}

static const sn_transport_ops ops = {op_listen, op_dial, op_send, op_recv, op_hang_up, op_wake, op_free};

sn_transport *sim_transport_new(sim_net *net, int number, sim_receive receive, void *ctx) {
    program *p = sim_alloc(sizeof *p);
    *p = (program){.base.ops = &ops, .net = net, .place = number, .receive = receive, .ctx = ctx};
    place *at = &net->places[number];
    if (at->life) abort();
    at->program = p;
    at->life = ++net->lives;
    at->silent = false;
    return &p->base;
}
