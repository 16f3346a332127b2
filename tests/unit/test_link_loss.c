/* A client's link tells at once when a node that it needs is lost. */
#include "client/link.h"
#include "tests/unit/transport_world.h"

typedef struct scene {
    world w;
    member node, other;
    sn_link *link;
} scene;

static void begin(scene *s) {
    sn_err err = {0};
    member client;
    *s = (scene){0};
    must(sn_hub_new(&s->w.hub, &err), &err);
    join(&s->w, &s->node, true);
    join(&s->w, &s->other, true);
    join(&s->w, &client, false);
    must(sn_link_over(&client.t, NULL, 0, &s->link, &err), &err);
}

static void end(scene *s) {
    sn_link_close(&s->link);
    if (s->node.t) leave(&s->node);
    if (s->other.t) leave(&s->other);
    sn_hub_free(&s->w.hub);
}

static sn_peer dial_by_link(scene *s, const member *m) {
    sn_err err = {0};
    sn_peer peer;
    must(sn_link_dial(s->link, m->address, m->identity.curve_key, &peer, &err), &err);
    sn_msg *msg = status_message(1);
    must(sn_link_send(s->link, peer, &msg, &err), &err);
    return peer;
}

Test(link, waiting_ends_at_once_when_any_of_the_peers_is_lost, .timeout = 180) {
    for (int which = 0; which < 2; which++) {
        scene s;
        sn_err err = {0};
        begin(&s);
        sn_peer peers[] = {dial_by_link(&s, &s.node), dial_by_link(&s, &s.other)};
        leave(which ? &s.other : &s.node);
        int64_t begun = sn_now_us();
        sn_wait wait = {
            .request = 1, .wanted = SN_MSG_STATUS_IS, .deadline_us = begun + (int64_t)WAIT_MS * 1000, .peers = peers, .n_peers = 2};
        sn_msg *answer;
        cr_assert_eq(sn_link_wait(s.link, &wait, &answer, &err), SN_RETRY);
        cr_assert_null(answer);
        cr_assert(sn_now_us() - begun < SOON_US);
        cr_assert(wait.lost);
        cr_assert_eq(wait.lost_peer, which);
        cr_assert(strstr(err.text, "connection was lost"), "%s", err.text);
        end(&s);
    }
}

Test(link, a_peer_that_is_not_needed_may_be_lost, .timeout = 180) {
    scene s;
    sn_err err = {0};
    begin(&s);
    sn_peer needed = dial_by_link(&s, &s.node);
    dial_by_link(&s, &s.other);
    leave(&s.other);
    sn_event asked = expect(s.node.t);
    cr_assert_eq(send_it(s.node.t, asked.peer, result_message(1, 4)), SN_OK);
    sn_msg_free(&asked.msg);
    sn_wait wait = {
        .request = 1, .wanted = SN_MSG_RESULT, .deadline_us = sn_now_us() + (int64_t)WAIT_MS * 1000, .peers = &needed, .n_peers = 1};
    sn_msg *answer;
    must(sn_link_wait(s.link, &wait, &answer, &err), &err);
    sn_msg_free(&answer);
    end(&s);
}

/* A session is bound to its connection; but the next dial reaches whoever is there now. */
Test(link, a_lost_peer_stays_lost_and_is_dialled_anew, .timeout = 180) {
    scene s;
    sn_err err = {0};
    begin(&s);
    sn_peer before = dial_by_link(&s, &s.node);
    leave(&s.node);
    sn_wait wait = {.request = 9,
                    .wanted = SN_MSG_STATUS_IS,
                    .deadline_us = sn_now_us() + (int64_t)WAIT_MS * 1000,
                    .peers = &before,
                    .n_peers = 1};
    sn_msg *answer, *msg = status_message(2);
    cr_assert_eq(sn_link_wait(s.link, &wait, &answer, &err), SN_RETRY);
    again(&s.w, &s.node);
    cr_assert_eq(sn_link_send(s.link, before, &msg, &err), SN_RETRY);
    cr_assert_null(msg);
    cr_assert(sn_link_lost(s.link, &wait));
    cr_assert_neq(dial_by_link(&s, &s.node), before);
    sn_event asked = expect(s.node.t);
    sn_msg_free(&asked.msg);
    end(&s);
}
