/* What a stranger pays for messages that bring no work, and how many reads it may have at a time (docs/SECURITY.md). */
#include "tests/support/invented_node.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static sn_peer charged[16];
static int n_charged;

static void note_charge(sn_transport *t, sn_peer peer) {
    (void)t;
    cr_assert_lt(n_charged, 16);
    charged[n_charged++] = peer;
}

static void count_charges(protocol_fixture *b) {
    static sn_transport_ops counting;
    counting = *b->transport->ops;
    counting.charge = note_charge;
    b->transport->ops = &counting;
}

/* Sends the message, whose answer must be of this kind; how often it was charged. */
static int price_of(protocol_fixture *b, sn_msg *msg, sn_msg_kind answered) {
    int before = n_charged;
    msg = protocol_fixture_request(b, msg, T0);
    cr_expect(msg && msg->kind == answered, "the answer is %s", msg ? sn_msg_kind_name(msg->kind) : "missing");
    sn_msg_free(&msg);
    return n_charged - before;
}

static sn_msg *about_session(const node_session *p, sn_msg_kind kind) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(kind, 0, &msg, &err));
    if (kind == SN_MSG_RESUME) memcpy(msg->resume.session, p->id, SN_SESSION_ID_SIZE);
    if (kind == SN_MSG_KV_GET) memcpy(msg->kv_get.session, p->id, SN_SESSION_ID_SIZE);
    return msg;
}

/* What a program may repeat as fast as it is answered has a price; what becomes work has none. */
Test(strangers_price, messages_that_are_answered_without_work_are_charged) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    count_charges(&b);
    node_session_init(&p, b.w, &b.client, 0, 4);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(price_of(&b, node_session_open_message(&p), SN_MSG_OPEN_REPLY), 1, "opened for the %d. time",
                     i + 1);
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 3), SN_MSG_STEP_REPLY), 0, "a step");
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 3), SN_MSG_STEP_REPLY), 1, "the same step again");
    sn_msg *resume = about_session(&p, SN_MSG_RESUME);
    resume->resume.step = 2;
    cr_expect_eq(price_of(&b, resume, SN_MSG_RESUME_REPLY), 1, "a resume");
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* A client repeats a resume of a busy session every few milliseconds: below the rate, where each counts once. */
Test(strangers_price, what_is_refused_is_charged_once) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    count_charges(&b);
    node_session_init(&p, b.w, &b.client, 0, 4);
    sn_msg *open = node_session_open_message(&p);
    open->open.model[0] ^= 1;
    cr_expect_eq(price_of(&b, open, SN_MSG_ERROR), 1, "an open");
    cr_expect_eq(price_of(&b, about_session(&p, SN_MSG_RESUME), SN_MSG_ERROR), 1, "a resume");
    cr_expect_eq(price_of(&b, about_session(&p, SN_MSG_KV_GET), SN_MSG_ERROR), 1, "a read");
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* The session is the client's; another one, which may push its steps, sends one that does not fit. */
Test(strangers_price, a_push_that_is_refused_is_charged_to_its_sender_and_not_to_the_client) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    node_session_init(&p, b.w, &b.client, 0, 4);
    sn_msg *msg = node_session_open_message(&p);
    const uint8_t pusher[SN_KEY_SIZE] = {7};
    memcpy(msg->open.predecessor, pusher, SN_KEY_SIZE);
    cr_assert(is_opened(protocol_fixture_request(&b, msg, T0)));
    count_charges(&b);
    sn_event event = {.msg = node_session_step_message(&p, 5, 3), .peer = 1000000};
    memcpy(event.key, pusher, SN_KEY_SIZE);
    sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
    cr_expect_eq(n_charged, 1);
    cr_expect_eq(charged[0], 1000000);
    msg = node_client_receive(&b.client, 0, 100);
    cr_expect(msg && msg->kind == SN_MSG_ERROR, "the client is told");
    sn_msg_free(&msg);
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* One client can make a node push what the next one refuses, or has computed: what it pushes for others goes on. Nor
 * is a node free to push at any rate. */
Test(strangers_price, what_a_proven_node_pushes_in_vain_is_charged_to_it_a_sixteenth) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    invented_node node = invented_node_new(&b, 1);
    sn_buf sealed = invented_node_announce(&b, &node, b.unix_ms + 60000);
    sn_directory *directory = (sn_directory *)sn_protocol_directory(b.protocol); /* the test's own node */
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, b.unix_ms, &err));
    count_charges(&b);
    node_session_init(&p, b.w, &b.client, 0, 4); /* never opened here */
    for (int proven = 0; proven < 2; proven++) {
        int before = n_charged;
        if (proven) sn_directory_prove(directory, node.identity.id, b.unix_ms + 60000);
        b.unix_ms += 5000; /* it takes so long until that counts */
        for (int i = 0; i < (proven ? 32 : 2); i++) {
            sn_event event = {.msg = node_session_step_message(&p, 0, 1), .peer = 1000000};
            memcpy(event.key, node.identity.curve_key, SN_KEY_SIZE);
            sn_protocol_handle(b.protocol, &event, T0, b.unix_ms);
        }
        cr_expect_eq(n_charged - before, 2, "proven %d: charged %d times", proven, n_charged - before);
    }
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 1), SN_MSG_ERROR), 1, "a step of a client");
    sn_buf_fini(&sealed);
    free(p.timeline);
    sn_transport_free(&node.transport);
    protocol_fixture_end(&b);
}

/* A node may be a client, too, and then pays as one. */
Test(strangers_price, what_a_proven_node_repeats_in_a_session_of_its_own_is_charged) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    invented_node self = {.identity = b.client.identity, .address = "self:1"};
    sn_buf sealed = invented_node_announce(&b, &self, b.unix_ms + 60000);
    sn_directory *directory = (sn_directory *)sn_protocol_directory(b.protocol);
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, b.unix_ms, &err));
    sn_directory_prove(directory, self.identity.id, b.unix_ms + 60000);
    protocol_fixture_open(&b, &p, T0);
    count_charges(&b);
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 3), SN_MSG_STEP_REPLY), 0);
    cr_expect_eq(price_of(&b, node_session_step_message(&p, 0, 3), SN_MSG_STEP_REPLY), 1);
    sn_buf_fini(&sealed);
    free(p.timeline);
    protocol_fixture_end(&b);
}

/* -- reads */

/* Asks for two parts of the session's KV pages. */
static void read_twice(const node_session *p, node_client *client) {
    for (int i = 0; i < 2; i++) {
        sn_msg *get = about_session(p, SN_MSG_KV_GET);
        get->kv_get.tokens = 8;
        node_client_send(client, &get);
    }
}

Test(strangers_price, reads_of_one_client_leave_places_for_those_of_others) {
    protocol_fixture b;
    enum { OWN = 3 };
    node_session own[OWN], other;
    protocol_fixture_begin(&b);
    node_client second = protocol_fixture_client(&b);
    for (int i = 0; i < OWN; i++) {
        protocol_fixture_open(&b, &own[i], T0);
        cr_expect(node_session_reply_ok(
            &own[i], protocol_fixture_request(&b, node_session_step_message(&own[i], 0, 40), T0), 0, 40));
    }
    node_session_init(&other, b.w, &second, 0, 4);
    sn_msg *msg = node_session_open_message(&other);
    node_client_send(&second, &msg);
    msg = node_session_step_message(&other, 0, 40);
    node_client_send(&second, &msg);
    protocol_fixture_read(&b, T0);
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < OWN; i++) read_twice(&own[i], &b.client);
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, FIXTURE_SESSIONS_MAX / 2, "a half of the places");
    read_twice(&other, &second);
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, FIXTURE_SESSIONS_MAX / 2 + 2);
    protocol_fixture_run_jobs(&b, T0);
    read_twice(&own[0], &b.client);
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, 2, "its places are free again");
    protocol_fixture_run_jobs(&b, T0);
    sn_transport_free(&second.transport);
    for (int i = 0; i < OWN; i++) free(own[i].timeline);
    free(other.timeline);
    protocol_fixture_end(&b);
}

Test(strangers_price, the_reads_of_a_session_are_few_at_a_time) {
    protocol_fixture b;
    node_session p;
    protocol_fixture_begin(&b);
    protocol_fixture_open(&b, &p, T0);
    cr_expect(node_session_reply_ok(&p, protocol_fixture_request(&b, node_session_step_message(&p, 0, 40), T0), 0, 40));
    for (int i = 0; i < 3; i++) {
        sn_msg *get = about_session(&p, SN_MSG_KV_GET);
        get->kv_get.tokens = 8;
        node_client_send(&b.client, &get);
    }
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, 2);
    cr_expect(is_refusal(node_client_receive(&b.client, 0, 100), SN_RETRY, "2 reads of this session are in progress"));
    protocol_fixture_run_jobs(&b, T0);
    for (int i = 0; i < 2; i++) {
        sn_msg *reply = node_client_receive(&b.client, 0, 100);
        cr_expect(reply && reply->kind == SN_MSG_KV_GET_REPLY);
        sn_msg_free(&reply);
    }
    free(p.timeline);
    protocol_fixture_end(&b);
}
