/* Private swarms: a peer that has the key is a member, in both directions; a peer without it gets no replies, and
 * its messages are ignored. */
#include "base/clock.h"
#include "net/transport/private_swarm.h"
#include "tests/support/fake_node.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/stat.h>

typedef struct fixture {
    testbed *w;
    char *folder, path[256];
    uint8_t key[SN_SWARM_KEY_SIZE];
} fixture;

static void fixture_begin(fixture *c, bool private) {
    *c = (fixture){.folder = temp_folder()};
    snprintf(c->path, sizeof c->path, "%s/swarm.key", c->folder);
    REQUIRE(sn_swarm_key_make(c->path, &err));
    REQUIRE(sn_swarm_key_load(c->path, c->key, &err));
    c->w = testbed_new(&(cluster_options){.kv_memory = 64, .swarm_key = private ? c->path : NULL});
}

static void fixture_end(fixture *c) {
    testbed_free(&c->w);
    temp_folder_remove(&c->folder);
}

/* A client of node `node` with this key; NULL: without a key. */
static node_client *client_with_key(fixture *c, const uint8_t *key, int node) {
    node_client *t = calloc(1, sizeof *t);
    const sn_node *at = cluster_node(c->w->cluster, node);
    sn_transport *inner = cluster_transport(c->w->cluster, &t->identity);
    if (key)
        REQUIRE(sn_transport_private_swarm_new(&inner, &t->identity, key, &t->transport, &err));
    else
        t->transport = inner;
    REQUIRE(sn_transport_dial(t->transport, sn_node_address(at), sn_node_curve_key(at), &t->node, &err));
    return t;
}

static sn_msg *status_message(void) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_STATUS, 0, &msg, &err));
    msg->status.protocol = SN_PROTOCOL_VERSION;
    return msg;
}

static sn_msg *peers_message(void) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 0, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    return msg;
}

Test(private_swarm, serves_members_over_pushing_nodes) {
    fixture c;
    fixture_begin(&c, true);
    cluster_add(c.w->cluster, 0, 2);
    cluster_add(c.w->cluster, 2, 4);
    sn_identity identity;
    sn_transport *inner = cluster_transport(c.w->cluster, &identity), *transport = NULL;
    REQUIRE(sn_transport_private_swarm_new(&inner, &identity, c.key, &transport, &err));
    sn_seed seed = {0}; /* one is enough: the nodes know each other */
    snprintf(seed.address, sizeof seed.address, "%s", sn_node_address(cluster_node(c.w->cluster, 1)));
    memcpy(seed.curve_key, sn_node_curve_key(cluster_node(c.w->cluster, 1)), SN_KEY_SIZE);
    sn_link *link = NULL;
    sn_model *model = NULL;
    sn_chain *chain = NULL;
    float out[20 * 64];
    REQUIRE(sn_link_open_transport(&transport, &seed, 1, &link, &err));
    REQUIRE(sn_model_open(c.w->path, &model, &err));
    sn_chain_options options = sn_chain_options_default();
    options.link = link;
    options.limits.timeout_ms = 5000;
    options.routing.push = true;
    REQUIRE(sn_chain_open(model, &options, &chain, &err));
    REQUIRE(sn_chain_step(chain, 0, 20, c.w->inputs, out, &err));
    cr_expect(!memcmp(out, c.w->hidden, 20 * (size_t)c.w->n_embd * sizeof *out));
    sn_chain_close(&chain);
    sn_link_close(&link);
    sn_model_close(&model);
    fixture_end(&c);
}

Test(private_swarm, refuses_every_request_without_the_key) {
    fixture c;
    fixture_begin(&c, true);
    cluster_add(c.w->cluster, 0, 4);
    uint8_t other[SN_SWARM_KEY_SIZE];
    sn_random(other, sizeof other);
    node_client *in = client_with_key(&c, c.key, 0);
    sn_msg *msg = status_message(), *answer = node_client_request(in, &msg);
    cr_expect_eq(answer->kind, SN_MSG_STATUS_REPLY);
    sn_msg_free(&answer);
    for (int with_key = 0; with_key < 2; with_key++) {
        node_client *out = client_with_key(&c, with_key ? other : NULL, 0);
        node_session p;
        node_session_init(&p, c.w, out, 0, 4);
        sn_msg *asked[] = {status_message(), peers_message(), node_session_open_message(&p),
                           node_session_step_message(&p, 0, 3), node_session_close_message(&p)};
        for (int i = 0; i < 5; i++) {
            if (with_key) { /* it knows no peer, so that it learns nothing */
                cr_expect_null(node_client_receive(out, node_client_send(out, &asked[i]), 30));
                continue;
            }
            cr_expect(is_refusal(node_client_request(out, &asked[i]), SN_REFUSED, "this swarm is private"));
        }
        free(p.timeline);
        node_client_free(&out);
    }
    msg = status_message();
    answer = node_client_request(in, &msg);
    cr_expect(answer->kind == SN_MSG_STATUS_REPLY && !answer->status_reply.sessions);
    sn_msg_free(&answer);
    node_client_free(&in);
    fixture_end(&c);
}

/* A member ignores a node of a public swarm or of another private one, including what that node says about others. */
Test(private_swarm, members_ignore_nodes_of_other_swarms) {
    fixture c;
    fixture_begin(&c, false);
    cluster_add(c.w->cluster, 0, 4);
    node_client *t = client_with_key(&c, c.key, 0);
    sn_msg *msg = peers_message();
    uint64_t request = node_client_send(t, &msg);
    sn_event event;
    int64_t deadline = sn_now_us() + 20000000;
    bool reported = false;
    while (!reported && sn_now_us() < deadline) {
        REQUIRE(sn_transport_recv(t->transport, deadline, &event, &err));
        cr_expect_null(event.msg, "request %d", (int)request);
        reported = event.peer && strstr(event.err.text, "has not proven");
        sn_msg_free(&event.msg);
    }
    cr_expect(reported);
    node_client_free(&t);
    fixture_end(&c);
}

/* The proof of one connection is not valid for another one: it covers the keys of both ends. */
Test(private_swarm, a_proof_is_bound_to_both_connection_keys) {
    fixture c;
    fixture_begin(&c, true);
    cluster_add(c.w->cluster, 0, 4);
    node_client *intruder = client_with_key(&c, NULL, 0);
    const uint8_t *node = sn_node_curve_key(cluster_node(c.w->cluster, 0));
    uint8_t stolen[3][SN_KEY_SIZE], member[SN_KEY_SIZE];
    sn_random(member, sizeof member);
    sn_private_swarm_proof(c.key, member, node, stolen[0]);                         /* another member's, to this node */
    sn_private_swarm_proof(c.key, node, intruder->identity.curve_key, stolen[1]);   /* the node's own, sent back */
    sn_private_swarm_proof(c.key, intruder->identity.curve_key, member, stolen[2]); /* given to another peer */
    for (int i = 0; i < 3; i++) {
        sn_msg *msg = NULL;
        REQUIRE(sn_msg_new(SN_MSG_ADMIT, 0, &msg, &err));
        memcpy(msg->admit.proof, stolen[i], SN_KEY_SIZE);
        cr_expect(is_refusal(node_client_request(intruder, &msg), SN_REFUSED, "private"));
        msg = status_message();
        cr_expect(is_refusal(node_client_request(intruder, &msg), SN_REFUSED, "private"));
    }
    node_client_free(&intruder);
    fixture_end(&c);
}

Test(private_swarm, members_prove_themselves_to_a_restarted_node) {
    fixture c;
    fixture_begin(&c, true);
    cluster_add(c.w->cluster, 0, 4);
    sn_identity identity, own;
    char bound[SN_ADDRESS_MAX + 1];
    sn_transport *inner = cluster_transport(c.w->cluster, &own), *dialling = NULL, *listening = NULL;
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_transport_private_swarm_new(&inner, &own, c.key, &dialling, &err));
    sn_peer peer = 0;
    for (int life = 0; life < 2; life++) {
        inner = cluster_transport_as(c.w->cluster, &identity);
        REQUIRE(sn_transport_private_swarm_new(&inner, &identity, c.key, &listening, &err));
        REQUIRE(sn_transport_listen(listening, "again:1", bound, &err));
        if (!life) REQUIRE(sn_transport_dial(dialling, bound, identity.curve_key, &peer, &err));
        sn_event event = {0};
        bool accepted = false;
        for (int64_t until = sn_now_us() + 20000000; !accepted && sn_now_us() < until;) {
            sn_msg *msg = status_message();
            if (sn_transport_send(dialling, peer, &msg, NULL)) sn_msg_free(&msg);
            REQUIRE(sn_transport_recv(listening, sn_now_us() + 20000, &event, &err));
            accepted = event.msg && event.msg->kind == SN_MSG_STATUS;
            sn_msg_free(&event.msg);
            /* the dialling end learns of the outage here */
            REQUIRE(sn_transport_recv(dialling, sn_now_us() + 20000, &event, &err));
            sn_msg_free(&event.msg);
        }
        cr_expect(accepted, "life %d", life);
        sn_transport_free(&listening);
    }
    sn_transport_free(&dialling);
    fixture_end(&c);
}

/* A transport over which a stranger sends without end. */
typedef struct flood {
    sn_transport base;
    sn_identity stranger;
    sn_msg_kind kind;
    int received, charged;
} flood;

enum { STRANGER = 7 };

static sn_status flood_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *why) {
    flood *f = (flood *)t;
    (void)deadline_us;
    *out = (sn_event){.peer = STRANGER};
    memcpy(out->key, f->stranger.curve_key, SN_KEY_SIZE);
    f->received++;
    return sn_msg_new(f->kind, 1, &out->msg, why);
}
static sn_status flood_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *why) {
    (void)t, (void)peer, (void)why;
    sn_msg_free(msg);
    return SN_OK;
}
static void flood_charge(sn_transport *t, sn_peer peer) { ((flood *)t)->charged += peer == STRANGER; }
static void flood_free(sn_transport *t) { (void)t; }

Test(private_swarm, a_strangers_messages_are_charged_and_end_no_later_than_the_wait, .timeout = 20) {
    static const sn_transport_ops ops = {
        .recv = flood_recv, .send = flood_send, .charge = flood_charge, .free = flood_free};
    const sn_msg_kind kinds[] = {SN_MSG_STATUS, SN_MSG_ADMIT, SN_MSG_ERROR};
    const int64_t waits_us[] = {0, 20000};
    uint8_t key[SN_SWARM_KEY_SIZE] = {1};
    for (int i = 0; i < 6; i++) {
        flood f = {.base.ops = &ops, .kind = kinds[i % 3]};
        sn_transport *inner = &f.base, *transport = NULL;
        sn_event event;
        REQUIRE(sn_identity_new(&f.stranger, &err));
        REQUIRE(sn_transport_private_swarm_new(&inner, &f.stranger, key, &transport, &err));
        int64_t wait_us = waits_us[i / 3], began = sn_now_us();
        REQUIRE(sn_transport_recv(transport, wait_us ? began + wait_us : 0, &event, &err));
        cr_expect(!event.peer && !event.msg && sn_now_us() - began >= wait_us);
        cr_expect(f.received > 0 && f.charged == f.received, "%d of %d", f.charged, f.received);
        sn_transport_free(&transport);
    }
}

Test(private_swarm, key_files_are_private_and_never_overwritten) {
    fixture c;
    sn_err why;
    uint8_t key[SN_SWARM_KEY_SIZE];
    fixture_begin(&c, false);
    struct stat info;
    cr_expect(!stat(c.path, &info) && (info.st_mode & 0777) == 0600);
    cr_expect_eq(sn_swarm_key_make(c.path, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "never overwritten"), "%s", why.text);
    cr_expect(!chmod(c.path, 0644));
    cr_expect_eq(sn_swarm_key_load(c.path, key, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "read or written by others"), "%s", why.text);
    char wrong[300];
    const char *texts[] = {"", "swarm key 1\nab\n", "swarm identity 1\n"};
    for (int i = 0; i < 3; i++) {
        snprintf(wrong, sizeof wrong, "%s/wrong%d", c.folder, i);
        FILE *file = fopen(wrong, "w");
        cr_assert(file && fputs(texts[i], file) >= 0 && !fclose(file) && !chmod(wrong, 0600));
        cr_expect_eq(sn_swarm_key_load(wrong, key, &why), SN_REFUSED);
        cr_expect(strstr(why.text, "no swarm's key"), "%s", why.text);
    }
    fixture_end(&c);
}
