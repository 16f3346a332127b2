/* Faults that Petals, the model of this kind of swarm, has in its present code, each with the test that it lacks there. */
#include "base/clock.h"
#include "client/chain.h"
#include "net/directory.h"
#include "tests/support/need.h"
#include "tests/support/run.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const cluster_options ROOMY = {.kv_memory = 64};

/* There: the repair trips over its own assertion when a node is lost in the middle of a text (its issue 587). */
Test(known_faults, failover_in_the_middle_of_a_text_again_and_again) {
    world *w = world_new(&ROOMY);
    for (int i = 0; i < 4; i++) cluster_add(w->cluster, 0, 2), cluster_add(w->cluster, 2, 4);
    run r;
    run_open(&r, w, (sn_chain_options){.max_retries = 8});
    cr_assert(!run_steps(&r, 0, 30, 30));
    for (int lost = 0; lost < 6; lost++) { /* one in use, of the first blocks and of the last ones by turns */
        cluster_cut_off(w->cluster, cluster_holder(r.chain, lost % 2 ? 2 : 0));
        cr_expect(!run_steps(&r, 30 + 4 * lost, 30 + 4 * lost + 4, 4), "after %d were lost", lost + 1);
    }
    cr_expect_eq(sn_chain_failovers(r.chain), 6);
    run_close(&r);
    world_free(&w);
}

/* There: a condition is never true, so nodes do not push to each other at all, and nobody notices. */
typedef struct traffic {
    int pushed, from_first;
} traffic;

static sn_fate count(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    traffic *t = ctx;
    if (msg->kind == SN_MSG_STEP && *from && *to) t->pushed++;
    if (msg->kind == SN_MSG_RESULT && !strcmp(from, "mem://node0")) t->from_first++;
    return SN_DELIVER;
}

Test(known_faults, a_push_does_go_from_node_to_node_and_not_by_the_client) {
    world *w = world_new(&ROOMY);
    traffic t = {0};
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    run r;
    run_open(&r, w, (sn_chain_options){.push = true});
    sn_hub_set_filter(cluster_hub(w->cluster), count, &t);
    for (int i = 0; i < 10; i++) cr_expect(!run_steps(&r, i, i + 1, 1));
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    cr_expect_eq(t.pushed, 10);
    cr_expect_eq(t.from_first, 0);
    run_close(&r);
    world_free(&w);
}

/* There: the check whether a rollback fits the cache is true whatever comes. */
Test(known_faults, a_rollback_is_taken_where_it_fits_the_past_and_nowhere_else) {
    world *w = world_new(&ROOMY);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    past p;
    past_init(&p, w, t, 0, 4);
    past_open(&p);
    cr_assert(past_goes_on(&p, 0, 50));
    for (int position = 0; position < 50; position += 7) {
        sn_msg *msg = past_step_message(&p, position, 3);
        msg->step.timeline[position % SN_KEY_SIZE] ^= 1; /* another past up to there */
        cr_expect(is_refusal(talk_ask(t, &msg), SN_REBUILD, "MISMATCH"));
    }
    sn_msg *msg = past_step_message(&p, 50, 3);
    msg->step.position = 51;
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REFUSED, "beyond the session's end"));
    cr_expect(past_goes_on(&p, 20, 40));
    past_close(&p);
    talk_free(&t);
    world_free(&w);
}

/* There: who knows a session's id may push into it. */
Test(known_faults, to_know_a_session_is_not_to_own_it) {
    world *w = world_new(&ROOMY);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0), *stranger = talk_new(w, 0);
    past p;
    past_init(&p, w, t, 0, 4);
    past_open(&p);
    cr_assert(past_goes_on(&p, 0, 10));
    sn_msg *msg = past_step_message(&p, 10, 1);
    cr_expect(is_refusal(talk_ask(stranger, &msg), SN_REFUSED, "belongs to another client"));
    msg = past_close_message(&p);
    cr_expect(is_refusal(talk_ask(stranger, &msg), SN_REFUSED, "only its owner may close it"));
    cr_expect(past_goes_on(&p, 10, 5));
    past_close(&p);
    talk_free(&stranger);
    talk_free(&t);
    world_free(&w);
}

/* There: a full cache is an error at once. */
Test(known_faults, a_full_cache_is_waited_for) {
    world *w = world_new(&(cluster_options){.kv_memory = 3, .room_timeout_s = 10});
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0), *u = talk_new(w, 0);
    past holds, waits;
    past_init(&holds, w, t, 0, 4);
    past_init(&waits, w, u, 0, 4);
    past_open(&holds);
    past_open(&waits);
    cr_assert(past_goes_on(&holds, 0, 64));
    sn_msg *msg = past_step_message(&waits, 0, 64);
    uint64_t request = talk_send(u, &msg);
    cr_expect_null(talk_hear(u, request, 100));
    past_close(&holds);
    cr_expect(past_took(&waits, talk_hear(u, request, WORLD_WAIT_MS), 0, 64));
    past_close(&waits);
    talk_free(&t);
    talk_free(&u);
    world_free(&w);
}

/* There: anybody may announce anything in another's name. */
Test(known_faults, nobody_announces_in_anothers_name) {
    sn_identity node, liar;
    sn_directory *directory = NULL;
    sn_buf sealed;
    sn_err why;
    sn_announcement *a = calloc(1, sizeof *a);
    NEED(sn_identity_new(&node, &err));
    NEED(sn_identity_new(&liar, &err));
    NEED(sn_directory_new(&directory, &err));
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    int64_t now = 1700000000000;
    *a = (sn_announcement){.protocol = SN_PROTOCOL, .sequence = 1, .expires_unix_ms = (uint64_t)now + SN_ANNOUNCE_LIFE_MS,
                           .state = SN_NODE_ONLINE, .end_block = 1, .n_blocks = 4};
    memcpy(a->node, node.id, SN_KEY_SIZE);
    memcpy(a->curve_key, liar.curve_key, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "tcp://127.0.0.1:1");
    sn_identity forged = liar;
    memcpy(forged.id, node.id, SN_KEY_SIZE);
    NEED(sn_announcement_seal(a, &forged, &sealed, &err)); /* the liar's signature under the node's id */
    cr_expect_eq(sn_directory_take(directory, sealed.data, sealed.len, now, &why), SN_REFUSED);
    cr_expect_eq(sn_directory_count(directory), 0);
    sn_buf_fini(&sealed);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    memcpy(a->curve_key, node.curve_key, SN_KEY_SIZE);
    NEED(sn_announcement_seal(a, &node, &sealed, &err));
    cr_expect_eq(sn_directory_take(directory, sealed.data, sealed.len, now, &why), SN_OK);
    cr_expect_eq(sn_directory_count(directory), 1);
    sn_buf_fini(&sealed);
    sn_directory_free(&directory);
    free(a);
}
