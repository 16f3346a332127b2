/* A client's link reports at once when a node that it needs is lost, and asks a busy one again. */
#include "client/net/link.h"
#include "tests/unit/transport_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

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
    int refuses; /* so many questions */
    atomic_int asked;
    atomic_bool end;
} busy_node;

static void *busy_node_run(void *ctx) {
    busy_node *b = ctx;
    while (!b->end) {
        sn_err err = {0};
        sn_event event;
        sn_msg *msg = NULL;
        require_ok(sn_transport_recv(b->node->t, 20, &event, &err), &err);
        if (!event.msg) continue;
        bool lists = b->asked++ >= b->refuses;
        require_ok(sn_msg_new(lists ? SN_MSG_PEERS_REPLY : SN_MSG_ERROR, event.msg->correlation_id, &msg, &err), &err);
        if (!lists) msg->error.status = SN_RETRY;
        if (!lists) msg->error.wait_ms = 100;
        if (!lists) snprintf(msg->error.text, sizeof msg->error.text, "too many ask");
        require_ok(sn_transport_send(b->node->t, event.peer, &msg, &err), &err);
        sn_msg_free(&msg);
        sn_msg_free(&event.msg);
    }
    return NULL;
}

Test(link_loss, a_node_that_is_too_busy_to_list_others_is_asked_again, .timeout = 180) {
    for (int never = 0; never < 2; never++) {
        fixture s;
        sn_err err = {0};
        pthread_t thread;
        endpoint client;
        sn_link *link;
        sn_seed seed;
        fixture_begin(&s);
        endpoint_open(&s.w, &client, false);
        memcpy(seed.address, s.node.address, sizeof seed.address);
        memcpy(seed.curve_key, s.node.identity.curve_key, SN_KEY_SIZE);
        require_ok(sn_link_open_transport(&client.t, &seed, 1, &link, &err), &err);
        busy_node busy = {.node = &s.node, .refuses = never ? 1000 : 3};
        cr_assert_eq(pthread_create(&thread, NULL, busy_node_run, &busy), 0);
        sn_status status = sn_link_discover(link, NULL, never ? 1000 : 60000, &err);
        busy.end = true;
        pthread_join(thread, NULL);
        cr_expect_eq(status, never ? SN_RETRY : SN_OK, "%s", err.text);
        cr_expect(never ? strstr(err.text, "too many ask") != NULL : busy.asked == 4, "asked %d times, %s", busy.asked,
                  err.text);
        sn_link_close(&link);
        fixture_end(&s);
    }
}
