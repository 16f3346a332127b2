/* KV migration: a KV cache moves from node to node, or through the client, chunk by chunk, during steps and across
 * rewinds; the results have the bits of a session that never moved. Also: which peers may move it. */
#include "net/receipt.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"

#include "base/clock.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options OPTIONS = {.kv_memory = 64};

/* A session at node 0 that is to be resumed at node 1, and the session at node 1 that waits for its KV cache. */
typedef struct transfer {
    testbed *w;
    node_client *t, *u; /* one client, connected to each node */
    node_session from, to;
} transfer;

static node_client *node_client_as(testbed *w, const node_client *other, int node) {
    node_client *t = calloc(1, sizeof *t);
    const sn_node *at = cluster_node(w->cluster, node);
    t->identity = other->identity;
    t->transport = cluster_transport_as(w->cluster, &t->identity);
    REQUIRE(sn_transport_dial(t->transport, sn_node_address(at), sn_node_curve_key(at), &t->node, &err));
    return t;
}

static sn_msg *open_target(node_session *p, const sn_node *source) {
    sn_msg *msg = node_session_open_message(p);
    if (source) memcpy(msg->open.kv_source, sn_node_curve_key(source), SN_KEY_SIZE);
    return node_client_request(p->client, &msg);
}

static transfer transfer_new(bool named) {
    transfer p = {.w = testbed_new(&OPTIONS)};
    cluster_add(p.w->cluster, 0, 0);
    cluster_add(p.w->cluster, 0, 0);
    p.t = node_client_new(p.w, 0);
    p.u = node_client_as(p.w, p.t, 1);
    node_session_init(&p.from, p.w, p.t, 0, 4);
    node_session_init(&p.to, p.w, p.u, 0, 4);
    node_session_open(&p.from);
    sn_msg *answer = open_target(&p.to, named ? cluster_node(p.w->cluster, 0) : NULL);
    cr_assert_eq(answer->kind, SN_MSG_OPEN_REPLY);
    sn_msg_free(&answer);
    return p;
}

static void transfer_free(transfer *p) {
    if (p->from.testbed) node_session_close(&p->from);
    if (p->to.testbed) node_session_close(&p->to);
    node_client_await_kv_bytes(p->t, 0);
    node_client_await_kv_bytes(p->u, 0);
    node_client_free(&p->t);
    node_client_free(&p->u);
    testbed_free(&p->w);
}

static sn_msg *send_message(const node_session *from, const node_session *to, int node) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_KV_SEND, 0, &msg, &err));
    memcpy(msg->kv_send.session, from->id, SN_SESSION_ID_SIZE);
    memcpy(msg->kv_send.target, to->id, SN_SESSION_ID_SIZE);
    msg->kv_send.end_block = 4;
    node_client_announcement(from->testbed, node, &msg->kv_send.node, &msg->kv_send.n_node);
    return msg;
}

static void expect_sent(transfer *p) {
    sn_msg *msg = send_message(&p->from, &p->to, 1), *answer = node_client_request(p->t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_KV_SEND_REPLY, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    cr_expect_eq(answer->kv_send_reply.length, p->from.length);
    cr_expect(!memcmp(answer->kv_send_reply.timeline, p->from.timeline[p->from.length].bytes, SN_HASH_SIZE));
    sn_msg_free(&answer);
}

static sn_msg *resume_message(const node_session *p, int position, uint64_t step) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_RESUME, 0, &msg, &err));
    memcpy(msg->resume.session, p->id, SN_SESSION_ID_SIZE);
    msg->resume.position = (uint64_t)position;
    msg->resume.step = step;
    return msg;
}

/* Resumes the session `to` at `position`; the reply must say that it holds `length` tokens. */
static void expect_resumed(node_session *to, int position, uint64_t step, int length) {
    sn_msg *msg = resume_message(to, position, step), *answer = node_client_request(to->client, &msg);
    cr_assert_eq(answer->kind, SN_MSG_RESUME_REPLY, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    cr_assert_eq(answer->resume_reply.length, length);
    cr_expect(!memcmp(answer->resume_reply.timeline, to->timeline[length].bytes, SN_HASH_SIZE));
    sn_msg_free(&answer);
    to->step = step;
    to->length = length;
}

/* Its client could make evidence against an honest node: zeros under the timeline hashes of true keys and values. */
Test(kv_migration, a_receipt_says_that_kv_pages_came_from_elsewhere) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 4);
    node_client *t = node_client_new(w, 0);
    for (int imported = 0; imported < 2; imported++) {
        node_session p;
        sn_receipt r;
        node_session_init(&p, w, t, 0, 4);
        node_session_open(&p);
        if (imported) {
            sn_msg *msg = node_session_kv_put_message(&p, 0, 8), *answer = node_client_request(t, &msg);
            cr_assert_eq(answer->kind, SN_MSG_KV_PUT_REPLY);
            sn_msg_free(&answer);
            expect_resumed(&p, 8, 0, 8);
        }
        sn_msg *msg = node_session_step_message(&p, p.length, 4);
        msg->step.wants_receipt = 1;
        sn_msg *answer = node_client_request(t, &msg);
        cr_assert(answer->kind == SN_MSG_STEP_REPLY && answer->step_reply.n_receipts == 1);
        REQUIRE(sn_receipt_open(answer->step_reply.receipts[0].data, SN_RECEIPT_SIZE, &r, &err));
        cr_expect_eq(r.device, imported ? SN_RECEIPT_CONTINUED : SN_RECEIPT_EXACT);
        sn_msg_free(&answer);
        p.step++;
        node_session_close(&p);
    }
    node_client_free(&t);
    testbed_free(&w);
}

Test(kv_migration, a_session_resumes_at_another_node_with_the_same_bits) {
    transfer p = transfer_new(true);
    cr_assert(node_session_step_ok(&p.from, 0, 70));
    expect_sent(&p);
    expect_resumed(&p.to, 70, p.from.step, 70);
    cr_expect(node_session_step_ok(&p.to, 70, 5));
    cr_expect(node_session_step_ok(&p.to, 40, 50)); /* a rewind to before the migrated part */
    cr_expect_eq(node_client_status(p.u).tokens, 55, "tokens were computed twice");
    transfer_free(&p);
}

/* After one request, node 0 continues to copy what each step adds, and what a rewind changes. */
Test(kv_migration, the_copy_follows_steps_and_rewinds) {
    transfer p = transfer_new(true);
    expect_sent(&p); /* nothing to copy yet */
    const int steps[][2] = {{0, 33}, {33, 1}, {34, 40}, {20, 3}, {23, 1}, {10, 60}, {70, 1}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        cr_assert(node_session_step_ok(&p.from, steps[i][0], steps[i][1]));
        if (i == 2) expect_sent(&p); /* one rewind finds everything copied, and another one a chunk in flight */
    }
    expect_sent(&p);
    expect_resumed(&p.to, 71, p.from.step, 71);
    cr_expect(node_session_step_ok(&p.to, 71, 20));
    cr_expect_eq(node_client_status(p.u).tokens, 20);
    transfer_free(&p);
}

/* After a rewind other tokens follow: they replace the copied ones. */
Test(kv_migration, a_rewind_replaces_tokens_of_the_copy) {
    transfer p = transfer_new(true);
    cr_assert(node_session_step_ok(&p.from, 0, 60));
    expect_sent(&p);
    sn_msg *msg = node_session_step_message(&p.from, 20, 3), *answer, *resumed;
    memset(msg->owner, 0, 64);
    answer = node_client_request(p.t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_STEP_REPLY);
    msg = send_message(&p.from, &p.to, 1);
    sn_msg *sent = node_client_request(p.t, &msg);
    cr_assert_eq(sent->kind, SN_MSG_KV_SEND_REPLY);
    msg = resume_message(&p.to, 23, 0);
    resumed = node_client_request(p.u, &msg);
    cr_assert_eq(resumed->kind, SN_MSG_RESUME_REPLY);
    cr_expect_eq(resumed->resume_reply.length, 23);
    cr_expect(!memcmp(resumed->resume_reply.timeline, answer->step_reply.trace[0].timeline, SN_HASH_SIZE),
              "the old tokens are still there");
    sn_msg_free(&answer), sn_msg_free(&sent), sn_msg_free(&resumed);
    transfer_free(&p);
}

Test(kv_migration, a_lagging_copy_reports_its_length) {
    transfer p = transfer_new(true);
    cr_assert(node_session_step_ok(&p.from, 0, 30));
    expect_sent(&p);
    expect_resumed(&p.to, 50, 9, 30); /* the owner assumed that more tokens were copied */
    p.to.length = 30;
    cr_expect(node_session_step_ok(&p.to, 30, 20));
    sn_msg *msg = send_message(&p.from, &p.to, 1); /* from now on node 0 may not write to it any more */
    cr_assert(node_session_step_ok(&p.from, 30, 1));
    node_client_send(p.t, &msg);
    cr_expect(node_session_step_ok(&p.to, 50, 10));
    transfer_free(&p);
}

/* A connection that breaks and a request that is repeated can bring a RESUME again: the answer is the same until a step
 * has followed it; what was done after it stays. */
Test(kv_migration, a_late_resume_undoes_no_step) {
    transfer p = transfer_new(true);
    cr_assert(node_session_step_ok(&p.from, 0, 30));
    expect_sent(&p);
    for (int twice = 0; twice < 2; twice++) expect_resumed(&p.to, 20, 0, 20);
    for (int at = 20; at < 22; at++) cr_assert(node_session_step_ok(&p.to, at, 1));
    for (uint64_t step = 0; step <= p.to.step; step++) {
        sn_msg *msg = resume_message(&p.to, 20, step);
        cr_expect(is_refusal(node_client_request(p.u, &msg), SN_REBUILD, "comes too late"), "step %d", (int)step);
    }
    sn_msg *repeated = node_session_step_message(&p.to, 20, 1);
    repeated->step.step = 1;
    cr_expect(is_refusal(node_client_request(p.u, &repeated), SN_REBUILD, "does not follow"));
    cr_expect(node_session_step_ok(&p.to, 22, 5));
    expect_resumed(&p.to, 25, p.to.step + 3, 25); /* two steps were sent that did not come here */
    cr_expect(node_session_step_ok(&p.to, 25, 5));
    transfer_free(&p);
}

Test(kv_migration, is_accepted_only_from_the_owner_and_the_named_node) {
    transfer p = transfer_new(false);
    cr_assert(node_session_step_ok(&p.from, 0, 20));
    sn_msg *msg = send_message(&p.from, &p.to, 1);
    cr_expect(is_refusal(node_client_request(p.t, &msg), SN_RETRY,
                         "only the session's owner, and the kv_source that it named"));
    expect_resumed(&p.to, 0, 0, 0);
    cr_expect(node_session_step_ok(&p.to, 0, 20));
    node_client *stranger = node_client_new(p.w, 0);
    msg = send_message(&p.from, &p.to, 1); /* nor may another client have it sent */
    cr_expect(is_refusal(node_client_request(stranger, &msg), SN_REFUSED, "belongs to another client"));
    msg = resume_message(&p.from, 0, 0);
    cr_expect(is_refusal(node_client_request(stranger, &msg), SN_REFUSED, "belongs to another client"));
    node_client_free(&stranger);
    transfer_free(&p);
}

/* -- through the client */

static sn_msg *get_message(const node_session *p, int position, int tokens) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_KV_GET, 0, &msg, &err));
    memcpy(msg->kv_get.session, p->id, SN_SESSION_ID_SIZE);
    msg->kv_get.position = (uint64_t)position;
    msg->kv_get.tokens = (uint64_t)tokens;
    return msg;
}

/* Makes a KV_PUT from the reply to KV_GET, which stays as it is. */
static sn_msg *put_message(const node_session *to, const sn_msg *part) {
    sn_msg *msg = NULL;
    void *data;
    REQUIRE(sn_msg_new(SN_MSG_KV_PUT, 0, &msg, &err));
    sn_msg_kv_put *put = &msg->kv_put;
    memcpy(put, &part->kv_get_reply, sizeof *put);
    REQUIRE(sn_list_new(put->n_token_timelines, SN_KV_TRANSFER_TOKENS_MAX, sizeof *put->token_timelines,
                        &put->token_timelines, &err));
    memcpy(put->token_timelines, part->kv_get_reply.token_timelines,
           put->n_token_timelines * sizeof *put->token_timelines);
    memcpy(put->session, to->id, SN_SESSION_ID_SIZE);
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 4, part->tensor.shape, &data, &err));
    memcpy(data, part->tensor.data, part->tensor.bytes);
    return msg;
}

static sn_msg *get_kv(node_session *p, int position, int tokens) {
    sn_msg *msg = get_message(p, position, tokens), *part = node_client_request(p->client, &msg);
    cr_assert_eq(part->kind, SN_MSG_KV_GET_REPLY, "%s", part->kind == SN_MSG_ERROR ? part->error.text : "?");
    return part;
}

static uint64_t put_kv(node_session *to, sn_msg *msg) {
    sn_msg *answer = node_client_request(to->client, &msg);
    cr_assert_eq(answer->kind, SN_MSG_KV_PUT_REPLY, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    uint64_t length = answer->kv_put_reply.length;
    sn_msg_free(&answer);
    return length;
}

Test(kv_migration, the_owner_can_read_and_write_kv) {
    transfer p = transfer_new(false);
    cr_assert(node_session_step_ok(&p.from, 0, 60));
    const int parts[][2] = {{0, 10}, {10, 33}, {43, 17}};
    /* a chunk that is not the next one is refused, and the reply says how many tokens are held */
    for (int i = 2; i >= 0; i--) {
        sn_msg *part = get_kv(&p.from, parts[i][0], parts[i][1]);
        cr_expect_eq(put_kv(&p.to, put_message(&p.to, part)), i ? 0 : 10);
        sn_msg_free(&part);
    }
    for (int i = 1; i < 3; i++) {
        sn_msg *part = get_kv(&p.from, parts[i][0], parts[i][1]);
        for (int twice = 0; twice < 2; twice++)
            cr_expect_eq(put_kv(&p.to, put_message(&p.to, part)), parts[i][0] + parts[i][1]);
        sn_msg_free(&part);
    }
    expect_resumed(&p.to, 60, 0, 60);
    cr_expect(node_session_step_ok(&p.to, 60, 3));
    sn_msg *part = get_kv(&p.from, 0, 5), *msg = put_message(&p.to, part);
    cr_expect(is_refusal(node_client_request(p.u, &msg), SN_REFUSED, "has been resumed"));
    sn_msg_free(&part);
    transfer_free(&p);
}

Test(kv_migration, refuses_a_part_of_another_timeline) {
    transfer p = transfer_new(false);
    cr_assert(node_session_step_ok(&p.from, 0, 60));
    sn_msg *first = get_kv(&p.from, 0, 10), *next = get_kv(&p.from, 10, 30), *msg = put_message(&p.to, first);
    cr_expect_eq(put_kv(&p.to, msg), 10);
    msg = put_message(&p.to, next);
    msg->kv_put.timeline[5] ^= 1; /* sent before a rewind, received late */
    cr_expect_eq(put_kv(&p.to, msg), 0);
    cr_expect_eq(put_kv(&p.to, put_message(&p.to, next)), 40, "the refused chunk changed the length");
    expect_resumed(&p.to, 60, 0, 40);
    p.to.length = 40;
    cr_expect(node_session_step_ok(&p.to, 40, 3));
    sn_msg_free(&first);
    sn_msg_free(&next);
    transfer_free(&p);
}

/* A client that writes a false KV cache into its own session, with the timeline hashes of the true one, gets false
 * results. No other client does, not even if all clients share a prefix cache. */
Test(kv_migration, false_kv_affects_only_the_session_it_was_written_to) {
    testbed *w =
        testbed_new(&(cluster_options){.kv_memory = 64, .prefix_cache_memory = 1 << 20, .prefix_cache_shared = true});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *u = node_client_new(w, 0);
    node_session source, forged, honest;
    node_session_init(&source, w, t, 0, 4), node_session_init(&forged, w, t, 0, 4),
        node_session_init(&honest, w, u, 0, 4);
    node_session_open(&source), node_session_open(&forged), node_session_open(&honest);
    cr_assert(node_session_step_ok(&source, 0, 40));
    sn_msg *part = get_kv(&source, 0, 40), *msg = put_message(&forged, part);
    float *data = msg->owner;
    for (size_t i = 0; i < msg->tensor.bytes / sizeof *data; i += 3) data[i] = 1 - data[i];
    sn_hash hash = sn_hash_of(data, msg->tensor.bytes);
    memcpy(msg->kv_put.tensor_hash, hash.bytes, sizeof hash);
    cr_expect_eq(put_kv(&forged, msg), 40);
    expect_resumed(&forged, 40, 0, 40);
    msg = node_session_step_message(&forged, 40, 56);
    sn_msg *answer = node_client_request(t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_STEP_REPLY);
    cr_expect(
        memcmp(answer->tensor.data, w->hidden + (size_t)40 * (size_t)w->n_embd, 56 * (size_t)w->n_embd * sizeof(float)),
        "the false KV cache was not used");
    cr_expect(node_session_step_ok(&honest, 0, 96));
    sn_msg_free(&answer);
    sn_msg_free(&part);
    node_session_close(&source), node_session_close(&forged), node_session_close(&honest);
    node_client_free(&t), node_client_free(&u);
    testbed_free(&w);
}

Test(kv_migration, refuses_damaged_parts_and_other_shapes) {
    transfer p = transfer_new(false);
    cr_assert(node_session_step_ok(&p.from, 0, 60));
    sn_msg *part = get_kv(&p.from, 0, 20), *msg = put_message(&p.to, part);
    ((uint8_t *)msg->owner)[1234] ^= 1;
    cr_expect(is_refusal(node_client_request(p.u, &msg), SN_RETRY, "damaged"));
    msg = put_message(&p.to, part);
    msg->tensor.shape[0] = 2;
    msg->tensor.bytes /= 2;
    cr_expect(is_refusal(node_client_request(p.u, &msg), SN_REFUSED, "KV pages of this session are float32"));
    msg = put_message(&p.to, part);
    msg->kv_put.n_token_timelines = 19;
    cr_expect(is_refusal(node_client_request(p.u, &msg), SN_REFUSED, "as many timeline hashes"));
    msg = put_message(&p.to, part);
    msg->kv_put.position = (1 << 30) - 3;
    cr_expect(is_refusal(node_client_request(p.u, &msg), SN_REFUSED, "exceed the session's limit"));
    msg = get_message(&p.from, 60, 1);
    cr_expect(is_refusal(node_client_request(p.t, &msg), SN_REFUSED, "are not in a session of 60 tokens"));
    msg = put_message(&p.to, part);
    memset(msg->kv_put.token_timelines[19].timeline, 7, SN_KEY_SIZE); /* a false hash: the next step is refused */
    cr_expect_eq(put_kv(&p.to, msg), 20);
    p.to.length = 20;
    sn_msg *step = node_session_step_message(&p.to, 20, 1);
    cr_expect(is_refusal(node_client_request(p.u, &step), SN_REBUILD, "MISMATCH"));
    sn_msg_free(&part);
    transfer_free(&p);
}
