/* Fetching from nodes of which many are silent, slow or lie: the manifest, and which of them are asked for what. */
#include "sharing/peers/groups_private.h"  /* private: what the choice of a model sees */
#include "sharing/peers/fetcher_private.h" /* private: the senders, and a link over the test's transport */

#include "base/clock.h"
#include "tests/support/cluster.h"
#include "tests/support/node_client.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STALLING = 20, PEERS = STALLING + 2, SIZE = 300000, BLOB = SN_ANNOUNCEMENT_SIZE_MAX, STRANGERS = 100 };

/* STALLS: sends one byte and then nothing; PUTS_OFF: says that it has all, and asks to be asked later */
typedef enum peer_kind { STALLS, LIES, HONEST, PUTS_OFF } peer_kind;

typedef struct peer {
    peer_kind kind;
    atomic_int begun; /* how often it was asked for the manifest */
    sn_transport *transport;
    pthread_t thread;
    atomic_bool stop;
} peer;

static uint64_t model_blocks = 4; /* as nodes announce it */
static const char ADDRESS[] = "192.0.2.1:31330";
static uint8_t text[SIZE];

static void reply(peer *p, const sn_event *event, sn_msg *msg) {
    sn_err why;
    if (sn_transport_send(p->transport, event->peer, &msg, &why)) sn_msg_free(&msg);
}

/* What a node has of a file. */
static void answer_offer(peer *p, const sn_event *event) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_WEIGHTS_OFFER_REPLY, event->msg->correlation_id, &msg, &err));
    REQUIRE(sn_list_new(1, 1, sizeof *msg->weights_offer_reply.ranges, &msg->weights_offer_reply.ranges, &err));
    msg->weights_offer_reply.n_ranges = 1;
    msg->weights_offer_reply.ranges[0] = (sn_byte_range){.to = SIZE};
    reply(p, event, msg);
}

static void put_off(peer *p, const sn_event *event) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_ERROR, event->msg->correlation_id, &msg, &err));
    msg->error.status = SN_RETRY;
    msg->error.wait_ms = 100;
    reply(p, event, msg);
}

static void answer(peer *p, const sn_event *event) {
    const sn_msg_weights *asked = &event->msg->weights;
    sn_msg *msg = NULL;
    p->begun += event->msg->kind == SN_MSG_WEIGHTS && !asked->from;
    if (event->msg->kind == SN_MSG_WEIGHTS_OFFER) answer_offer(p, event);
    if (event->msg->kind == SN_MSG_WEIGHTS && p->kind == PUTS_OFF) {
        put_off(p, event);
        return;
    }
    if (event->msg->kind != SN_MSG_WEIGHTS || (p->kind == STALLS && asked->from)) return;
    REQUIRE(sn_msg_new(SN_MSG_WEIGHTS_REPLY, event->msg->correlation_id, &msg, &err));
    msg->weights_reply.size = SIZE;
    size_t left = (size_t)asked->bytes, at = (size_t)asked->from, n = (left + BLOB - 1) / BLOB;
    REQUIRE(sn_list_new(n, n, sizeof *msg->weights_reply.bytes, &msg->weights_reply.bytes, &err));
    msg->weights_reply.n_bytes = n;
    for (size_t i = 0; i < n; i++, at += BLOB, left -= left < BLOB ? left : BLOB) {
        sn_blob *blob = &msg->weights_reply.bytes[i];
        blob->len = left < BLOB ? left : BLOB;
        REQUIRE(sn_calloc(&blob->data, blob->len, 1, &err));
        if (p->kind != LIES) memcpy(blob->data, text + at, blob->len);
    }
    reply(p, event, msg);
}

static void *peer_main(void *context) {
    peer *p = context;
    while (!atomic_load(&p->stop)) {
        sn_event event;
        REQUIRE(sn_transport_recv(p->transport, sn_now_us() + 1000000, &event, &err));
        if (event.msg) answer(p, &event);
        sn_msg_free(&event.msg);
    }
    return NULL;
}

/* Directories are in order of the first block. */
static void announce(sn_directory *directory, const sn_identity *identity, const char *name, const char *address,
                     int block, const sn_hash *manifest) {
    sn_announcement *a = calloc(1, sizeof *a);
    sn_buf sealed;
    cr_assert(a);
    *a = (sn_announcement){.protocol = SN_PROTOCOL_VERSION,
                           .sequence = (uint64_t)sn_unix_ms(),
                           .expires_unix_ms = (uint64_t)sn_unix_ms() + SN_ANNOUNCE_LIFE_MS,
                           .state = SN_NODE_ONLINE,
                           .first_block = (uint64_t)block,
                           .end_block = (uint64_t)block + 1,
                           .n_blocks = model_blocks};
    memcpy(a->node, identity->id, SN_KEY_SIZE);
    memcpy(a->curve_key, identity->curve_key, SN_KEY_SIZE);
    memcpy(a->manifest, manifest->bytes, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "%s", address);
    snprintf(a->name, sizeof a->name, "%s", name);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, identity, &sealed, &err));
    REQUIRE(sn_directory_add(directory, sealed.data, sealed.len, sn_unix_ms(), &err));
    sn_buf_fini(&sealed);
    free(a);
}

static void peer_start(peer *p, peer_kind kind, int number, testbed *w, sn_link *link, const sn_hash *manifest) {
    sn_identity identity;
    char address[16], bound[SN_ADDRESS_MAX + 1];
    p->kind = kind;
    p->transport = cluster_transport(w->cluster, &identity);
    snprintf(address, sizeof address, "peer:%d", number);
    REQUIRE(sn_transport_listen(p->transport, address, bound, &err));
    announce(sn_link_directory(link), &identity, "peer", address, kind == HONEST, manifest);
    cr_assert_eq(pthread_create(&p->thread, NULL, peer_main, p), 0);
}

static void peers_stop(peer *peers, int n) {
    for (int i = 0; i < n; i++) {
        atomic_store(&peers[i].stop, true);
        sn_transport_wake(peers[i].transport);
        pthread_join(peers[i].thread, NULL);
        sn_transport_free(&peers[i].transport);
    }
}

Test(senders, a_manifest_comes_though_many_nodes_stall_and_lie) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    static peer peers[PEERS];
    const sn_swarm_access access = {.patience_ms = 30000};
    sn_fetcher *f = NULL;
    sn_buf got;
    cluster_add(w->cluster, 0, 0);
    for (size_t i = 0; i < SIZE; i++) text[i] = (uint8_t)(i * 7 + (i >> 8));
    const sn_hash id = sn_hash_of(text, SIZE);
    sn_link *link = cluster_link(w->cluster);
    for (int i = 0; i < PEERS; i++)
        peer_start(&peers[i], i < STALLING ? STALLS : i == STALLING ? LIES : HONEST, i + 1, w, link, &id);
    REQUIRE(sn_fetcher_new(&access, &f, &err));
    f->link = link;
    sn_buf_init(&got, SN_MANIFEST_MAX);
    sn_err why;
    cr_expect_eq(sn_fetcher_manifest(f, &id, 0, &got, &why), SN_OK, "%s", why.text);
    cr_expect(got.len == SIZE && !memcmp(got.data, text, SIZE));
    const sn_sender *last = &f->senders.all[f->senders.n - 1]; /* in order of the first block: the honest one */
    cr_expect(!last->turns && !last->not_before_us, "the node that sent the manifest waits before it sends the files");
    sn_buf_fini(&got);
    sn_fetcher_free(&f);
    peers_stop(peers, PEERS);
    testbed_free(&w);
}

Test(senders, one_that_sent_another_manifest_is_asked_no_more) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    static peer other;
    const sn_swarm_access access = {.patience_ms = 10000};
    const sn_hash id = sn_hash_of("the right one", 13);
    sn_fetcher *f = NULL;
    sn_buf got;
    sn_err why;
    cluster_add(w->cluster, 0, 0);
    sn_link *link = cluster_link(w->cluster);
    peer_start(&other, LIES, 1, w, link, &id);
    REQUIRE(sn_fetcher_new(&access, &f, &err));
    f->link = link;
    sn_buf_init(&got, SN_MANIFEST_MAX);
    cr_expect_eq(sn_fetcher_manifest(f, &id, 0, &got, &why), SN_RETRY);
    cr_expect_eq(other.begun, 1, "it was asked %d times", (int)other.begun);
    sn_buf_fini(&got);
    sn_fetcher_free(&f);
    peers_stop(&other, 1);
    testbed_free(&w);
}

/* Senders that put off for ever what they were asked for are not waited for, be it one piece. */
static void fetch_among(int n_peers, uint64_t wanted) {
    enum { PIECE = 10000, PIECES = SIZE / PIECE };
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    static peer peers[PEERS];
    static sn_piece pieces[PIECES];
    char folder[] = "/tmp/senders-XXXXXX";
    cr_assert(mkdtemp(folder));
    const sn_swarm_access access = {.patience_ms = 30000, .cache = folder};
    sn_fetcher *f = NULL;
    cluster_add(w->cluster, 0, 0);
    for (size_t i = 0; i < SIZE; i++) text[i] = (uint8_t)(i * 7 + (i >> 8));
    for (uint64_t i = 0; i < PIECES; i++)
        pieces[i] = (sn_piece){i * PIECE, (i + 1) * PIECE, sn_hash_of(text + i * PIECE, PIECE)};
    sn_manifest_file file = {.name = "file", .size = SIZE, .n_pieces = PIECES};
    const sn_manifest manifest = {.id = sn_hash_of(text, SIZE),
                                  .name = "model",
                                  .files = &file,
                                  .n_files = 1,
                                  .pieces = pieces,
                                  .n_pieces = PIECES};
    sn_link *link = cluster_link(w->cluster);
    for (int i = 0; i < n_peers; i++)
        peer_start(&peers[i], i < n_peers - 1 ? PUTS_OFF : HONEST, i + 1, w, link, &manifest.id);
    REQUIRE(sn_fetcher_new(&access, &f, &err));
    f->link = link;
    sn_fetcher_part part = {0};
    snprintf(part.path, sizeof part.path, "%s/file", folder);
    REQUIRE(sn_range_set_add(&part.wanted, 0, wanted, &err));
    sn_err why;
    cr_expect_eq(sn_fetcher_fetch(f, &manifest, &part, "file", &why), SN_OK, "%s", why.text);
    sn_range_set_fini(&part.wanted);
    sn_fetcher_free(&f);
    peers_stop(peers, n_peers);
    testbed_free(&w);
    static const char *const left[] = {"", ".ranges", ".lock"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/file%s", folder, left[i]);
        unlink(path);
    }
    cr_expect(!rmdir(folder));
}

Test(senders, files_come_though_many_nodes_put_off) { fetch_among(PEERS, SIZE); }

Test(senders, one_piece_comes_though_some_nodes_put_off) { fetch_among(4, 1); }

static const sn_sender *sender_named(const sn_senders *s, const char *name) {
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->all[i].name, name)) return &s->all[i];
    return NULL;
}

Test(senders, strangers_do_not_take_the_places_of_proven_nodes) {
    static sn_senders senders;
    const sn_hash manifest = {.bytes = {1, 2, 3}};
    sn_directory *directory = NULL;
    sn_identity identity;
    REQUIRE(sn_directory_new(&directory, &err));
    sn_senders_init(&senders, &manifest, 1);
    for (int i = 0; i <= STRANGERS; i++) {
        bool early = i == STRANGERS; /* proven, but behind the strangers in the directory */
        REQUIRE(sn_identity_new(&identity, &err));
        announce(directory, &identity, early ? "early" : "stranger", ADDRESS, early, &manifest);
        if (early) sn_directory_prove(directory, identity.id, INT64_MAX);
    }
    REQUIRE(sn_senders_update(&senders, directory, &err));
    cr_expect_eq(senders.n, SN_SENDERS_MAX);
    cr_expect(sender_named(&senders, "early"));
    REQUIRE(sn_identity_new(&identity, &err));
    announce(directory, &identity, "late", ADDRESS, 1, &manifest); /* when all places are taken */
    sn_directory_prove(directory, identity.id, INT64_MAX);
    REQUIRE(sn_senders_update(&senders, directory, &err));
    cr_expect(sender_named(&senders, "early") && sender_named(&senders, "late"));
    sn_senders_fini(&senders);
    sn_directory_free(&directory);
}

Test(senders, proven_nodes_do_not_take_the_places_of_those_that_send) {
    static sn_senders senders;
    const sn_hash manifest = {.bytes = {1, 2, 3}};
    sn_directory *directory = NULL;
    sn_identity identity;
    uint8_t sends[2][SN_KEY_SIZE];
    bool kept[2] = {false, false};
    REQUIRE(sn_directory_new(&directory, &err));
    sn_senders_init(&senders, &manifest, 1);
    for (int i = 0; i < 2 * SN_SENDERS_MAX; i++) {
        if (i == SN_SENDERS_MAX) {
            REQUIRE(sn_senders_update(&senders, directory, &err));
            senders.all[3].pieces = 1;
            senders.all[5].has_sent = true;
            memcpy(sends[0], senders.all[3].node, SN_KEY_SIZE);
            memcpy(sends[1], senders.all[5].node, SN_KEY_SIZE);
        }
        REQUIRE(sn_identity_new(&identity, &err));
        announce(directory, &identity, "node", ADDRESS, 0, &manifest);
        if (i >= SN_SENDERS_MAX) sn_directory_prove(directory, identity.id, INT64_MAX);
    }
    REQUIRE(sn_senders_update(&senders, directory, &err));
    for (size_t i = 0; i < senders.n; i++) {
        kept[0] |= !memcmp(sends[0], senders.all[i].node, SN_KEY_SIZE);
        kept[1] |= !memcmp(sends[1], senders.all[i].node, SN_KEY_SIZE);
    }
    cr_expect(kept[0], "pieces of it are on their way");
    cr_expect(kept[1], "it has sent pieces");
    sn_senders_fini(&senders);
    sn_directory_free(&directory);
}

Test(senders, one_that_has_sent_nothing_is_asked_for_one_piece) {
    static sn_senders senders;
    const sn_hash manifest = {.bytes = {1, 2, 3}};
    sn_directory *directory = NULL;
    REQUIRE(sn_directory_new(&directory, &err));
    sn_senders_init(&senders, &manifest, 1);
    for (int i = 0; i < 2; i++) {
        sn_identity identity;
        REQUIRE(sn_identity_new(&identity, &err));
        announce(directory, &identity, "sender", ADDRESS, 0, &manifest);
    }
    REQUIRE(sn_senders_update(&senders, directory, &err));
    cr_assert_eq(senders.n, 2);
    for (size_t i = 0; i < 2; i++) {
        senders.all[i].peer = i + 1;
        REQUIRE(sn_range_set_add(&senders.all[i].present[0], 0, 100, &err));
        senders.all[i].pieces = 1;
    }
    cr_expect_eq(sn_senders_choose(&senders, 0, 0, 10, 0), SN_SENDERS_MAX, "both may be silent");
    senders.all[1].has_sent = true;
    senders.all[1].piece_us = 1000000;
    senders.all[1].pieces = SN_PIECES_PER_SENDER - 1;
    senders.all[0].pieces = 0;
    cr_expect_eq(sn_senders_choose(&senders, 0, 0, 10, 0), 1, "a silent one is preferred");
    senders.all[1].pieces++;
    cr_expect_eq(sn_senders_choose(&senders, 0, 0, 10, 0), 0);
    senders.all[0].has_sent = true; /* but a piece takes it a hundred times as long */
    senders.all[0].piece_us = 100000000;
    senders.all[1].pieces--;
    cr_expect_eq(sn_senders_choose(&senders, 0, 0, 10, 0), 1, "a slow one is preferred");
    const sn_piece piece = {.to = 10};
    const int64_t late_us = 4 * (SN_PIECES_PER_SENDER + 1) * 1000000;
    cr_expect_not(sn_senders_overtake(&senders, 0, 0, &piece, 0, late_us / 2));
    cr_expect(sn_senders_overtake(&senders, 0, 0, &piece, 0, late_us), "a slow one keeps its piece");
    senders.all[1].pieces++;
    cr_expect_not(sn_senders_overtake(&senders, 0, 0, &piece, 0, late_us), "there is no better one");
    sn_sender_rest(&senders, 1, 0);
    cr_expect_not(senders.all[1].has_sent, "it fell silent");
    sn_senders_fini(&senders);
    sn_directory_free(&directory);
}

/* Where all are slow, a piece does not go to and fro between them until none ever brings it. */
Test(senders, trials_of_slow_senders_grow) {
    static sn_senders senders;
    enum { SECOND = 1000000 };
    const sn_hash manifest = {.bytes = {1, 2, 3}};
    const sn_piece piece = {.to = 10};
    sn_directory *directory = NULL;
    sn_identity identity;
    REQUIRE(sn_directory_new(&directory, &err));
    sn_senders_init(&senders, &manifest, 1);
    for (int i = 0; i < 2; i++) {
        REQUIRE(sn_identity_new(&identity, &err));
        announce(directory, &identity, "node", ADDRESS, 0, &manifest);
    }
    REQUIRE(sn_senders_update(&senders, directory, &err));
    for (int i = 0; i < 2; i++) {
        senders.all[i].peer = (sn_peer)i + 1;
        REQUIRE(sn_range_set_add(&senders.all[i].present[0], 0, 10, &err));
    }
    senders.all[0].pieces = 1;
    cr_expect_not(sn_senders_overtake(&senders, 0, 0, &piece, 0, 4 * SECOND));
    cr_expect(sn_senders_overtake(&senders, 0, 0, &piece, 0, 6 * SECOND), "the other one is not tried");
    senders.all[0].pieces = 0;
    senders.all[0].piece_us = 6 * SECOND;
    senders.all[1].pieces = 1;
    cr_expect_not(sn_senders_overtake(&senders, 1, 0, &piece, 0, 20 * SECOND), "both may be slow");
    cr_expect(sn_senders_overtake(&senders, 1, 0, &piece, 0, 25 * SECOND));
    sn_senders_fini(&senders);
    sn_directory_free(&directory);
}

Test(senders, invented_models_do_not_hide_one_that_a_proven_node_shares) {
    sn_directory *directory = NULL;
    sn_identity identity;
    sn_model_group groups[SN_MODEL_GROUPS_MAX];
    const sn_hash real = {.bytes = {0xff, 1}};
    REQUIRE(sn_directory_new(&directory, &err));
    for (int i = 0; i <= STRANGERS; i++) {
        bool last = i == STRANGERS;
        const sn_hash invented = {.bytes = {(uint8_t)i, 2}};
        REQUIRE(sn_identity_new(&identity, &err));
        announce(directory, &identity, "node", ADDRESS, last, last ? &real : &invented);
        if (last) sn_directory_prove(directory, identity.id, INT64_MAX);
    }
    cr_expect_eq(sn_model_groups(directory, &(sn_swarm_query){0}, groups), SN_MODEL_GROUPS_MAX);
    cr_expect(!memcmp(&groups[0].manifest, &real, sizeof real) && groups[0].joined);
    sn_directory_free(&directory);
}

Test(senders, a_model_of_more_blocks_than_there_can_be_is_none) {
    sn_directory *directory = NULL;
    sn_identity identity;
    sn_model_group groups[SN_MODEL_GROUPS_MAX];
    const sn_hash manifest = {.bytes = {1, 2, 3}};
    REQUIRE(sn_directory_new(&directory, &err));
    REQUIRE(sn_identity_new(&identity, &err));
    model_blocks = 65536; /* as many as an announcement may say */
    announce(directory, &identity, "node", ADDRESS, 0, &manifest);
    cr_expect_eq(sn_model_groups(directory, &(sn_swarm_query){0}, groups), 0);
    sn_directory_free(&directory);
}
