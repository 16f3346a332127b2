/* A client's link reports at once when a node that it needs is lost, and asks a busy one again. */
#include "client/net/link.h"
#include "tests/support/virtual_clock.h"
#include "tests/support/transport_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct fixture {
    transport_fixture w;
    endpoint node, other;
    sn_link *link;
} fixture;

static void fixture_begin(fixture *s) {
    sn_err err = {0};
    endpoint client;
    *s = (fixture){0};
    require_ok(sn_hub_new(&s->w.hub, &err), &err);
    endpoint_open(&s->w, &s->node, true);
    endpoint_open(&s->w, &s->other, true);
    endpoint_open(&s->w, &client, false);
    require_ok(sn_link_open_transport(&client.t, NULL, 0, &s->link, &err), &err);
}

static void fixture_end(fixture *s) {
    sn_link_close(&s->link);
    if (s->node.t) endpoint_close(&s->node);
    if (s->other.t) endpoint_close(&s->other);
    sn_hub_free(&s->w.hub);
}

static sn_peer dial_by_link(fixture *s, const endpoint *m) {
    sn_err err = {0};
    sn_peer peer;
    require_ok(sn_link_dial(s->link, m->address, m->identity.curve_key, &peer, &err), &err);
    sn_msg *msg = status_message(1);
    require_ok(sn_link_send(s->link, peer, &msg, &err), &err);
    return peer;
}

Test(link_loss, waiting_ends_at_once_when_one_of_the_peers_is_lost, .timeout = 180) {
    for (int which = 0; which < 2; which++) {
        fixture s;
        sn_err err = {0};
        fixture_begin(&s);
        sn_peer peers[] = {dial_by_link(&s, &s.node), dial_by_link(&s, &s.other)};
        endpoint_close(which ? &s.other : &s.node);
        int64_t begun = sn_now_us();
        sn_wait wait = {.correlation_id = 1,
                        .wanted = SN_MSG_STATUS_REPLY,
                        .deadline_us = begun + (int64_t)WAIT_MS * 1000,
                        .peers = peers,
                        .n_peers = 2};
        sn_msg *answer;
        cr_assert_eq(sn_link_wait(s.link, &wait, &answer, &err), SN_RETRY);
        cr_assert_null(answer);
        cr_assert(sn_now_us() - begun < SOON_US);
        cr_assert(wait.lost);
        cr_assert_eq(wait.lost_peer, which);
        cr_assert(strstr(err.text, "connection was lost"), "%s", err.text);
        fixture_end(&s);
    }
}

/* A transport over which each message arrives as bytes that are none. */
typedef struct garbling {
    sn_transport base;
    sn_transport *inner;
} garbling;

static sn_transport *inner_of(sn_transport *t) { return ((garbling *)(void *)t)->inner; }
static sn_status garble_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                             sn_err *err) {
    return sn_transport_dial(inner_of(t), address, key, out, err);
}
static sn_status garble_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    return sn_transport_send(inner_of(t), peer, msg, err);
}
static sn_status garble_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    sn_status status = sn_transport_recv(inner_of(t), deadline_us, out, err);
    if (!status && out->msg) (void)sn_fail(&out->err, SN_REFUSED, "not a message");
    if (!status) sn_msg_free(&out->msg);
    return status;
}
static void garble_hang_up(sn_transport *t, sn_peer peer) { sn_transport_hang_up(inner_of(t), peer); }
static void garble_wake(sn_transport *t) { sn_transport_wake(inner_of(t)); }
static void garble_free(sn_transport *t) {
    sn_transport *inner = inner_of(t);
    sn_transport_free(&inner);
    free(t);
}

Test(link_loss, waiting_ends_at_once_when_a_peer_sends_what_is_no_message, .timeout = 180) {
    static const sn_transport_ops ops = {.dial = garble_dial,
                                         .send = garble_send,
                                         .recv = garble_recv,
                                         .hang_up = garble_hang_up,
                                         .wake = garble_wake,
                                         .free = garble_free};
    fixture s;
    endpoint client;
    sn_err err = {0};
    garbling *t = calloc(1, sizeof *t);
    fixture_begin(&s);
    sn_link_close(&s.link);
    endpoint_open(&s.w, &client, false);
    *t = (garbling){.base.ops = &ops, .inner = client.t};
    sn_transport *transport = &t->base;
    require_ok(sn_link_open_transport(&transport, NULL, 0, &s.link, &err), &err);
    sn_peer peer = dial_by_link(&s, &s.node);
    sn_event asked = expect_message(s.node.t);
    cr_assert_eq(send_message(s.node.t, asked.peer, step_reply_message(1, 4)), SN_OK);
    sn_msg_free(&asked.msg);
    int64_t begun = sn_now_us();
    sn_wait wait = {.correlation_id = 1,
                    .wanted = SN_MSG_STEP_REPLY,
                    .deadline_us = begun + (int64_t)WAIT_MS * 1000,
                    .peers = &peer,
                    .n_peers = 1};
    sn_msg *answer;
    cr_expect_eq(sn_link_wait(s.link, &wait, &answer, &err), SN_RETRY);
    cr_expect(wait.lost);
    cr_expect(sn_now_us() - begun < SOON_US);
    fixture_end(&s);
}

static void say_draining(fixture *s, endpoint *m, sn_peer to, uint16_t session) {
    sn_err err = {0};
    sn_msg *msg = NULL;
    require_ok(sn_msg_new(SN_MSG_DRAINING, 0, &msg, &err), &err);
    memset(msg->draining.session, session & 255, sizeof msg->draining.session);
    msg->draining.session[0] = (uint8_t)(session >> 8);
    require_ok(sn_transport_send(m->t, to, &msg, &err), &err);
    sn_link_poll(s->link);
}

/* A node speaks of its own sessions only, and what it invents does not replace what others have said. */
Test(link_loss, a_node_cannot_say_that_another_one_drains_nor_hide_that_it_does, .timeout = 180) {
    enum { INVENTED = 600, HONEST = 0xFFFF, OTHER = 0xFEFE };
    fixture s;
    fixture_begin(&s);
    endpoint *ends[] = {&s.node, &s.other};
    sn_peer peers[2], clients[2];
    uint8_t honest[SN_SESSION_ID_SIZE], other[SN_SESSION_ID_SIZE];
    memset(honest, 255, sizeof honest);
    memset(other, 254, sizeof other);
    for (int i = 0; i < 2; i++) {
        peers[i] = dial_by_link(&s, ends[i]);
        sn_event event = expect_message(ends[i]->t);
        clients[i] = event.peer;
        sn_msg_free(&event.msg);
    }
    say_draining(&s, &s.other, clients[1], HONEST);
    for (int i = 0; i < INVENTED; i++) say_draining(&s, &s.node, clients[0], (uint16_t)i);
    say_draining(&s, &s.node, clients[0], OTHER);
    cr_expect(sn_link_is_draining(s.link, peers[1], honest));
    cr_expect(sn_link_is_draining(s.link, peers[0], other));
    cr_expect_not(sn_link_is_draining(s.link, peers[1], other), "another node has said so");
    fixture_end(&s);
}

Test(link_loss, a_peer_that_is_not_needed_may_be_lost, .timeout = 180) {
    fixture s;
    sn_err err = {0};
    fixture_begin(&s);
    sn_peer needed = dial_by_link(&s, &s.node);
    dial_by_link(&s, &s.other);
    endpoint_close(&s.other);
    sn_event asked = expect_message(s.node.t);
    cr_assert_eq(send_message(s.node.t, asked.peer, step_reply_message(1, 4)), SN_OK);
    sn_msg_free(&asked.msg);
    sn_wait wait = {.correlation_id = 1,
                    .wanted = SN_MSG_STEP_REPLY,
                    .deadline_us = sn_now_us() + (int64_t)WAIT_MS * 1000,
                    .peers = &needed,
                    .n_peers = 1};
    sn_msg *answer;
    require_ok(sn_link_wait(s.link, &wait, &answer, &err), &err);
    sn_msg_free(&answer);
    fixture_end(&s);
}

/* A session is bound to its connection; a new dial reaches the node that listens there now. */
Test(link_loss, a_lost_peer_stays_lost_until_it_is_dialled_again, .timeout = 180) {
    fixture s;
    sn_err err = {0};
    fixture_begin(&s);
    sn_peer before = dial_by_link(&s, &s.node);
    endpoint_close(&s.node);
    sn_wait wait = {.correlation_id = 9,
                    .wanted = SN_MSG_STATUS_REPLY,
                    .deadline_us = sn_now_us() + (int64_t)WAIT_MS * 1000,
                    .peers = &before,
                    .n_peers = 1};
    sn_msg *answer, *msg = status_message(2);
    cr_assert_eq(sn_link_wait(s.link, &wait, &answer, &err), SN_RETRY);
    endpoint_reopen(&s.w, &s.node);
    cr_assert_eq(sn_link_send(s.link, before, &msg, &err), SN_RETRY);
    cr_assert_null(msg);
    cr_assert(sn_link_lost(s.link, &wait));
    cr_assert_neq(dial_by_link(&s, &s.node), before);
    sn_event asked = expect_message(s.node.t);
    sn_msg_free(&asked.msg);
    fixture_end(&s);
}

/* -- lists of announcements that are refused for now */

typedef struct busy_node {
    endpoint *node;
    int refuses;      /* so many questions */
    uint64_t wait_ms; /* after which it may be asked again; 0: it refuses for good */
    const char *text; /* of the refusals */
    int64_t early_us; /* the shortest time from a refusal to the next question, less wait_ms */
    int64_t refused_us;
    atomic_int asked;
    atomic_bool end;
    pthread_t thread;
} busy_node;

static void *busy_node_run(void *ctx) {
    busy_node *b = ctx;
    while (!b->end) {
        sn_err err = {0};
        sn_event event;
        sn_msg *msg = NULL;
        require_ok(sn_transport_recv(b->node->t, sn_now_us() + 20000, &event, &err), &err);
        if (!event.msg) continue;
        int64_t early_us = sn_now_us() - b->refused_us - (int64_t)b->wait_ms * 1000;
        if (b->asked && early_us < b->early_us) b->early_us = early_us;
        bool lists = b->asked++ >= b->refuses;
        require_ok(sn_msg_new(lists ? SN_MSG_PEERS_REPLY : SN_MSG_ERROR, event.msg->correlation_id, &msg, &err), &err);
        if (!lists) msg->error.status = b->wait_ms ? SN_RETRY : SN_REFUSED;
        if (!lists) msg->error.wait_ms = b->wait_ms;
        if (!lists) snprintf(msg->error.text, sizeof msg->error.text, "%s", b->text);
        b->refused_us = sn_now_us();
        require_ok(sn_transport_send(b->node->t, event.peer, &msg, &err), &err);
        sn_msg_free(&msg);
        sn_msg_free(&event.msg);
    }
    return NULL;
}

static void busy_node_begin(busy_node *b) {
    b->early_us = INT64_MAX;
    cr_assert_eq(pthread_create(&b->thread, NULL, busy_node_run, b), 0);
}

static void busy_node_end(busy_node *b) {
    b->end = true;
    pthread_join(b->thread, NULL);
}

/* A client's link that joins these nodes. From then on time passes only while all threads wait. */
static sn_link *link_joining(fixture *s, endpoint *const *nodes, size_t n) {
    virtual_clock_begin_still();
    sn_err err = {0};
    endpoint client;
    sn_seed seeds[2];
    sn_link *link;
    endpoint_open(&s->w, &client, false);
    for (size_t i = 0; i < n; i++) {
        memcpy(seeds[i].address, nodes[i]->address, sizeof seeds[i].address);
        memcpy(seeds[i].curve_key, nodes[i]->identity.curve_key, SN_KEY_SIZE);
    }
    require_ok(sn_link_open_transport(&client.t, seeds, n, &link, &err), &err);
    return link;
}

/* The link learns of the node by an announcement. */
static void know(sn_link *link, const endpoint *node) {
    sn_err err = {0};
    sn_buf sealed;
    sn_announcement *a = calloc(1, sizeof *a);
    *a = (sn_announcement){.protocol = SN_PROTOCOL_VERSION,
                           .sequence = 1,
                           .expires_unix_ms = (uint64_t)sn_unix_ms() + 60000,
                           .state = SN_NODE_ONLINE,
                           .end_block = 1,
                           .n_blocks = 1};
    memcpy(a->address, node->address, sizeof a->address);
    memcpy(a->node, node->identity.id, SN_KEY_SIZE);
    memcpy(a->curve_key, node->identity.curve_key, SN_KEY_SIZE);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    require_ok(sn_announcement_seal(a, &node->identity, &sealed, &err), &err);
    require_ok(sn_directory_add(sn_link_directory(link), sealed.data, sealed.len, sn_unix_ms(), &err), &err);
    sn_buf_fini(&sealed);
    free(a);
}

Test(link_loss, a_node_that_is_too_busy_to_list_others_is_asked_again, .timeout = 180) {
    fixture s;
    sn_err err = {0};
    fixture_begin(&s);
    sn_link *link = link_joining(&s, (endpoint *[]){&s.node}, 1);
    busy_node busy = {.node = &s.node, .refuses = 3, .wait_ms = 100, .text = "too many ask"};
    busy_node_begin(&busy);
    sn_status status = sn_link_discover(link, NULL, WAIT_MS, &err);
    busy_node_end(&busy);
    cr_expect_eq(status, SN_OK, "%s", err.text);
    cr_expect_geq(busy.asked, 4);
    sn_link_close(&link);
    fixture_end(&s);
}

Test(link_loss, a_node_that_stays_too_busy_is_why_a_discovery_fails, .timeout = 180) {
    fixture s;
    sn_err err = {0};
    fixture_begin(&s);
    sn_link *link = link_joining(&s, (endpoint *[]){&s.node}, 1);
    busy_node busy = {.node = &s.node, .refuses = 1000, .wait_ms = 100, .text = "too many ask"};
    busy_node_begin(&busy);
    sn_status status = sn_link_discover(link, NULL, 1000, &err);
    busy_node_end(&busy);
    cr_expect_eq(status, SN_RETRY, "%s", err.text);
    cr_expect_gt(busy.asked, 1);
    cr_expect(strstr(err.text, "too many ask"), "%s", err.text);
    sn_link_close(&link);
    fixture_end(&s);
}

Test(link_loss, a_busy_node_is_asked_again_when_it_said, .timeout = 180) {
    fixture s;
    sn_err err = {0};
    fixture_begin(&s);
    sn_link *link = link_joining(&s, (endpoint *[]){&s.node}, 1);
    busy_node busy = {.node = &s.node, .refuses = 2, .wait_ms = 1500, .text = "too many ask"};
    busy_node_begin(&busy);
    sn_status status = sn_link_discover(link, NULL, WAIT_MS, &err);
    busy_node_end(&busy);
    cr_expect_eq(status, SN_OK, "%s", err.text);
    cr_expect_eq(busy.asked, 3, "asked %d times", busy.asked);
    cr_expect_geq(busy.early_us, 0, "asked %d ms early", (int)(-busy.early_us / 1000));
    sn_link_close(&link);
    fixture_end(&s);
}

/* The other node is asked in every round, too, whether it was joined or is only known. */
Test(link_loss, a_node_that_refuses_does_not_end_the_wait_for_a_busy_one, .timeout = 180) {
    for (int joined = 0; joined < 2; joined++) {
        fixture s;
        sn_err err = {0};
        fixture_begin(&s);
        sn_link *link = link_joining(&s, (endpoint *[]){&s.node, &s.other}, joined ? 2 : 1);
        if (!joined) know(link, &s.other);
        busy_node busy = {.node = &s.node, .refuses = 5, .wait_ms = 100, .text = "too many ask"};
        busy_node refusing = {.node = &s.other, .refuses = 1000, .text = "another protocol"};
        busy_node_begin(&busy);
        busy_node_begin(&refusing);
        sn_status status = sn_link_discover(link, NULL, WAIT_MS, &err);
        busy_node_end(&busy);
        busy_node_end(&refusing);
        cr_expect_eq(status, SN_OK, "%s, %s", joined ? "joined" : "known", err.text);
        cr_expect_geq(refusing.asked, 2);
        sn_link_close(&link);
        fixture_end(&s);
    }
}

Test(link_loss, nodes_that_all_refuse_for_good_end_a_discovery_at_once, .timeout = 180) {
    fixture s;
    sn_err err = {0};
    fixture_begin(&s);
    sn_link *link = link_joining(&s, (endpoint *[]){&s.node, &s.other}, 2);
    busy_node refusing[] = {{.node = &s.node, .refuses = 1000, .text = "another protocol"},
                            {.node = &s.other, .refuses = 1000, .text = "another protocol"}};
    for (int i = 0; i < 2; i++) busy_node_begin(&refusing[i]);
    int64_t begun = sn_now_us();
    sn_status status = sn_link_discover(link, NULL, WAIT_MS, &err);
    cr_expect(sn_now_us() - begun < SOON_US);
    for (int i = 0; i < 2; i++) busy_node_end(&refusing[i]);
    cr_expect_eq(status, SN_REFUSED, "%s", err.text);
    cr_expect(strstr(err.text, "another protocol"), "%s", err.text);
    sn_link_close(&link);
    fixture_end(&s);
}
