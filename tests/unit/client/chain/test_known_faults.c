/* Faults in the present code of Petals, each with the test that Petals lacks. */
#include "base/clock.h"
#include "client/chain/chain.h"
#include "net/directory.h"
#include "tests/support/require.h"
#include "tests/support/chain_fixture.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const cluster_options OPTIONS = {.kv_memory = 64};

/* Petals: the failover fails at its own assertion when a node is lost in the middle of a text (issue 587). */
Test(known_faults, failover_works_repeatedly_within_a_text) {
    testbed *w = testbed_new(&OPTIONS);
    for (int i = 0; i < 4; i++) cluster_add(w->cluster, 0, 2), cluster_add(w->cluster, 2, 4);
    chain_fixture r;
    chain_fixture_open(
        &r, w,
        (sn_chain_options){.limits = {.timeout_ms = 10000, .max_retries = 8, .prefill_depth = SN_PREFILL_DEPTH_MAX}});
    cr_assert(!chain_fixture_try_steps(&r, 0, 30, 30));
    for (int lost = 0; lost < 6; lost++) { /* a node in use, of the first blocks and of the last ones alternately */
        cluster_cut_off(w->cluster, cluster_node_of_block(r.chain, lost % 2 ? 2 : 0));
        cr_expect(!chain_fixture_try_steps(&r, 30 + 4 * lost, 30 + 4 * lost + 4, 4), "after %d lost nodes", lost + 1);
    }
    cr_expect_eq(sn_chain_failovers(r.chain), 6);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* Petals: a condition is never true, so that nodes never push to each other, which is not noticed. */
typedef struct traffic {
    int pushed, from_first;
} traffic;

static sn_hub_action count_pushes(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    traffic *t = ctx;
    if (msg->kind == SN_MSG_STEP && *from && *to) t->pushed++;
    if (msg->kind == SN_MSG_STEP_REPLY && !strcmp(from, "node0:1")) t->from_first++;
    return SN_DELIVER;
}

Test(known_faults, a_push_goes_directly_from_node_to_node) {
    testbed *w = testbed_new(&OPTIONS);
    traffic t = {0};
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    chain_fixture r;
    chain_fixture_open(&r, w, (sn_chain_options){.routing.push = true});
    sn_hub_set_filter(cluster_hub(w->cluster), count_pushes, &t);
    for (int i = 0; i < 10; i++) cr_expect(!chain_fixture_try_steps(&r, i, i + 1, 1));
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    cr_expect_eq(t.pushed, 10);
    cr_expect_eq(t.from_first, 0);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* Petals: the check whether a rollback fits the KV cache always succeeds. */
Test(known_faults, a_rollback_is_accepted_only_within_the_kv_cache) {
    testbed *w = testbed_new(&OPTIONS);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    cr_assert(node_session_step_ok(&p, 0, 50));
    for (int position = 0; position < 50; position += 7) {
        sn_msg *msg = node_session_step_message(&p, position, 3);
        msg->step.timeline[position % SN_KEY_SIZE] ^= 1; /* another timeline up to this position */
        cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "MISMATCH"));
    }
    sn_msg *msg = node_session_step_message(&p, 50, 3);
    msg->step.position = 51;
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REFUSED, "beyond the session's end"));
    cr_expect(node_session_step_ok(&p, 20, 40));
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}

/* Petals: a peer that knows the id of a session may push into it. */
Test(known_faults, a_session_id_grants_no_access) {
    testbed *w = testbed_new(&OPTIONS);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *stranger = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    cr_assert(node_session_step_ok(&p, 0, 10));
    sn_msg *msg = node_session_step_message(&p, 10, 1);
    cr_expect(is_refusal(node_client_request(stranger, &msg), SN_REFUSED, "belongs to another client"));
    msg = node_session_close_message(&p);
    cr_expect(is_refusal(node_client_request(stranger, &msg), SN_REFUSED, "only its owner may close it"));
    cr_expect(node_session_step_ok(&p, 10, 5));
    node_session_close(&p);
    node_client_free(&stranger);
    node_client_free(&t);
    testbed_free(&w);
}

/* Petals: a full KV cache is an immediate error. */
Test(known_faults, a_step_waits_for_a_full_cache) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 3, .kv_timeout_s = 10});
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *u = node_client_new(w, 0);
    node_session holds, waits;
    node_session_init(&holds, w, t, 0, 4);
    node_session_init(&waits, w, u, 0, 4);
    node_session_open(&holds);
    node_session_open(&waits);
    cr_assert(node_session_step_ok(&holds, 0, 64));
    sn_msg *msg = node_session_step_message(&waits, 0, 64);
    uint64_t request = node_client_send(u, &msg);
    cr_expect_null(node_client_receive(u, request, 100));
    node_session_close(&holds);
    cr_expect(node_session_reply_ok(&waits, node_client_receive(u, request, TESTBED_WAIT_MS), 0, 64));
    node_session_close(&waits);
    node_client_free(&t);
    node_client_free(&u);
    testbed_free(&w);
}

/* Petals: any peer may announce anything in the name of another one. */
Test(known_faults, refuses_announcements_in_the_name_of_another_node) {
    sn_identity node, forger;
    sn_directory *directory = NULL;
    sn_buf sealed;
    sn_err why;
    sn_announcement *a = calloc(1, sizeof *a);
    REQUIRE(sn_identity_new(&node, &err));
    REQUIRE(sn_identity_new(&forger, &err));
    REQUIRE(sn_directory_new(&directory, &err));
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    int64_t now = 1700000000000;
    *a = (sn_announcement){.protocol = SN_PROTOCOL_VERSION,
                           .sequence = 1,
                           .expires_unix_ms = (uint64_t)now + SN_ANNOUNCE_LIFE_MS,
                           .state = SN_NODE_ONLINE,
                           .end_block = 1,
                           .n_blocks = 4};
    memcpy(a->node, node.id, SN_KEY_SIZE);
    memcpy(a->curve_key, forger.curve_key, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "127.0.0.1:1");
    sn_identity forged = forger;
    memcpy(forged.id, node.id, SN_KEY_SIZE);
    REQUIRE(sn_announcement_seal(a, &forged, &sealed, &err)); /* the forger's signature under the id of another node */
    cr_expect_eq(sn_directory_add(directory, sealed.data, sealed.len, now, &why), SN_REFUSED);
    cr_expect_eq(sn_directory_count(directory), 0);
    sn_buf_fini(&sealed);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    memcpy(a->curve_key, node.curve_key, SN_KEY_SIZE);
    REQUIRE(sn_announcement_seal(a, &node, &sealed, &err));
    cr_expect_eq(sn_directory_add(directory, sealed.data, sealed.len, now, &why), SN_OK);
    cr_expect_eq(sn_directory_count(directory), 1);
    sn_buf_fini(&sealed);
    sn_directory_free(&directory);
    free(a);
}
