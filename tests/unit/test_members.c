/* Private swarms: who holds the key is in, both ways; who does not gets nothing and is believed nothing. */
#include "base/clock.h"
#include "net/members.h"
#include "tests/support/fake.h"
#include "tests/support/files.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/stat.h>

typedef struct club {
    world *w;
    char *folder, path[256];
    uint8_t key[SN_SWARM_KEY_SIZE];
} club;

static void club_begin(club *c, bool private) {
    *c = (club){.folder = temp_folder()};
    snprintf(c->path, sizeof c->path, "%s/swarm.key", c->folder);
    NEED(sn_swarm_key_make(c->path, &err));
    NEED(sn_swarm_key_load(c->path, c->key, &err));
    c->w = world_new(&(cluster_options){.kv_memory = 64, .swarm_key = private ? c->path : NULL});
}

static void club_end(club *c) {
    world_free(&c->w);
    temp_folder_remove(&c->folder);
}

/* A client of node `node` with this key, NULL: with none. */
static talk *member(club *c, const uint8_t *key, int node) {
    talk *t = calloc(1, sizeof *t);
    const sn_node *at = cluster_node(c->w->cluster, node);
    sn_transport *inner = cluster_transport(c->w->cluster, &t->identity);
    if (key)
        NEED(sn_transport_private_new(&inner, &t->identity, key, &t->transport, &err));
    else
        t->transport = inner;
    NEED(sn_transport_dial(t->transport, sn_node_address(at), sn_node_curve_key(at), &t->node, &err));
    return t;
}

static sn_msg *status_message(void) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_STATUS, 0, &msg, &err));
    msg->status.protocol = SN_PROTOCOL;
    return msg;
}

static sn_msg *peers_message(void) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_PEERS, 0, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL;
    return msg;
}

Test(members, are_served_over_nodes_that_push_to_each_other) {
    club c;
    club_begin(&c, true);
    cluster_add(c.w->cluster, 0, 2);
    cluster_add(c.w->cluster, 2, 4);
    sn_identity identity;
    sn_transport *inner = cluster_transport(c.w->cluster, &identity), *transport = NULL;
    NEED(sn_transport_private_new(&inner, &identity, c.key, &transport, &err));
    sn_seed seed = {0}; /* one is enough: the nodes have heard of each other */
    snprintf(seed.address, sizeof seed.address, "%s", sn_node_address(cluster_node(c.w->cluster, 1)));
    memcpy(seed.curve_key, sn_node_curve_key(cluster_node(c.w->cluster, 1)), SN_KEY_SIZE);
    sn_link *link = NULL;
    sn_model *model = NULL;
    sn_chain *chain = NULL;
    float out[20 * 64];
    NEED(sn_link_over(&transport, &seed, 1, &link, &err));
    NEED(sn_model_open(c.w->path, &model, &err));
    sn_chain_options options = {.link = link, .push = true, .timeout_ms = 5000};
    NEED(sn_chain_open(model, &options, &chain, &err));
    NEED(sn_chain_step(chain, 0, 20, c.w->inputs, out, &err));
    cr_expect(!memcmp(out, c.w->hidden, 20 * (size_t)c.w->n_embd * sizeof *out));
    sn_chain_close(&chain);
    sn_link_close(&link);
    sn_model_close(&model);
    club_end(&c);
}

Test(members, only_are_answered_whatever_is_asked) {
    club c;
    club_begin(&c, true);
    cluster_add(c.w->cluster, 0, 4);
    uint8_t other[SN_SWARM_KEY_SIZE];
    sn_random(other, sizeof other);
    talk *in = member(&c, c.key, 0);
    sn_msg *msg = status_message(), *answer = talk_ask(in, &msg);
    cr_expect_eq(answer->kind, SN_MSG_STATUS_IS);
    sn_msg_free(&answer);
    for (int with_key = 0; with_key < 2; with_key++) {
        talk *out = member(&c, with_key ? other : NULL, 0);
        past p;
        past_init(&p, c.w, out, 0, 4);
        sn_msg *asked[] = {status_message(), peers_message(), past_open_message(&p), past_step_message(&p, 0, 3),
                           past_close_message(&p)};
        for (int i = 0; i < 5; i++) {
            if (with_key) { /* what it is told comes from nobody it knows */
                cr_expect_null(talk_hear(out, talk_send(out, &asked[i]), 30));
                continue;
            }
            cr_expect(is_refusal(talk_ask(out, &asked[i]), SN_REFUSED, "this swarm is private"));
        }
        free(p.timeline);
        talk_free(&out);
    }
    msg = status_message();
    answer = talk_ask(in, &msg);
    cr_expect(answer->kind == SN_MSG_STATUS_IS && !answer->status_is.sessions);
    sn_msg_free(&answer);
    talk_free(&in);
    club_end(&c);
}

/* A node of a public swarm, or of another one, is no node to a member: not even what it says of others counts. */
Test(members, hear_no_node_that_is_none) {
    club c;
    club_begin(&c, false);
    cluster_add(c.w->cluster, 0, 4);
    talk *t = member(&c, c.key, 0);
    sn_msg *msg = peers_message();
    uint64_t request = talk_send(t, &msg);
    sn_event event;
    int64_t deadline = sn_now_us() + 20000000;
    bool told = false;
    while (!told && sn_now_us() < deadline) {
        NEED(sn_transport_recv(t->transport, deadline, &event, &err));
        cr_expect_null(event.msg, "request %d", (int)request);
        told = event.peer && strstr(event.bad.text, "has not proven");
        sn_msg_free(&event.msg);
    }
    cr_expect(told);
    talk_free(&t);
    club_end(&c);
}

/* The proof of one connection opens no other: it is made for both ends' keys. */
Test(members, proofs_serve_only_who_gave_them_and_whom_they_were_given_to) {
    club c;
    club_begin(&c, true);
    cluster_add(c.w->cluster, 0, 4);
    talk *thief = member(&c, NULL, 0);
    const uint8_t *node = sn_node_curve_key(cluster_node(c.w->cluster, 0));
    uint8_t stolen[3][SN_KEY_SIZE], victim[SN_KEY_SIZE];
    sn_random(victim, sizeof victim);
    sn_member_proof(c.key, victim, node, stolen[0]);                  /* another member's, to this node */
    sn_member_proof(c.key, node, thief->identity.curve_key, stolen[1]); /* the node's own, sent back */
    sn_member_proof(c.key, thief->identity.curve_key, victim, stolen[2]); /* given to somebody else */
    for (int i = 0; i < 3; i++) {
        sn_msg *msg = NULL;
        NEED(sn_msg_new(SN_MSG_ADMIT, 0, &msg, &err));
        memcpy(msg->admit.proof, stolen[i], SN_KEY_SIZE);
        cr_expect(is_refusal(talk_ask(thief, &msg), SN_REFUSED, "private"));
        msg = status_message();
        cr_expect(is_refusal(talk_ask(thief, &msg), SN_REFUSED, "private"));
    }
    talk_free(&thief);
    club_end(&c);
}

Test(members, of_a_node_that_was_started_anew_prove_themselves_again) {
    club c;
    club_begin(&c, true);
    cluster_add(c.w->cluster, 0, 4);
    sn_identity identity, own;
    char bound[SN_ADDRESS_MAX + 1];
    sn_transport *inner = cluster_transport(c.w->cluster, &own), *dialling = NULL, *listening = NULL;
    NEED(sn_identity_new(&identity, &err));
    NEED(sn_transport_private_new(&inner, &own, c.key, &dialling, &err));
    sn_peer peer = 0;
    for (int life = 0; life < 2; life++) {
        inner = cluster_transport_as(c.w->cluster, &identity);
        NEED(sn_transport_private_new(&inner, &identity, c.key, &listening, &err));
        NEED(sn_transport_listen(listening, "mem://again", bound, &err));
        if (!life) NEED(sn_transport_dial(dialling, bound, identity.curve_key, &peer, &err));
        sn_event event = {0};
        bool heard = false;
        for (int64_t until = sn_now_us() + 20000000; !heard && sn_now_us() < until;) {
            sn_msg *msg = status_message();
            if (sn_transport_send(dialling, peer, &msg, NULL)) sn_msg_free(&msg);
            NEED(sn_transport_recv(listening, sn_now_us() + 20000, &event, &err));
            heard = event.msg && event.msg->kind == SN_MSG_STATUS;
            sn_msg_free(&event.msg);
            NEED(sn_transport_recv(dialling, sn_now_us() + 20000, &event, &err)); /* it hears of the outage here */
            sn_msg_free(&event.msg);
        }
        cr_expect(heard, "life %d", life);
        sn_transport_free(&listening);
    }
    sn_transport_free(&dialling);
    club_end(&c);
}

Test(members, keys_lie_in_files_that_nobody_else_reads_and_nothing_writes_over) {
    club c;
    sn_err why;
    uint8_t key[SN_SWARM_KEY_SIZE];
    club_begin(&c, false);
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
    club_end(&c);
}
