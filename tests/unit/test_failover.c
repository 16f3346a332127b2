/* Nodes die, hang, forget and lie; the chain goes on with the same bits through others, or says soon which blocks are
 * missing. */
#include "base/clock.h"
#include "tests/support/fake.h"
#include "tests/support/need.h"
#include "tests/support/run.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <string.h>

enum {
    TIMEOUT_MS = 10000,
    SOON_MS = 60000
}; /* of the test's own time. SOON: what an error may take at most; several timeouts */

static world *new_world(void) { return world_new(&(cluster_options){.kv_memory = 64}); }

/* Opens a chain over the nodes there are and, if not NULL, a liar. */
static sn_status open_with(run *r, world *w, sn_chain_options options, const fake *liar) {
    run_begin(r, w);
    if (liar) fake_tell(liar, r->link);
    options.timeout_ms = TIMEOUT_MS;
    return run_chain(r, options);
}

/* -- nodes that fall silent ------------------------------------------------------------------------------------------
 */

/* Node 0 has 0:2; node 1 has 2:4 and is cut off at its n-th step; 2 and 3 together can take its place. */
static void expect_survival(int at_step, int chunk, bool push) {
    world *w = new_world();
    run r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    cluster_add(w->cluster, 2, 3);
    cluster_add(w->cluster, 3, 4);
    cluster_cut_off_at_step(w->cluster, 1, at_step);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){.push = push}, NULL), SN_OK, "%s", r.err.text);
    cr_expect_eq(run_steps(&r, 0, WORLD_TOKENS, chunk), SN_OK, "%s", r.err.text);
    cr_expect_geq(sn_chain_failovers(r.chain), 1);
    run_close(&r);
    world_free(&w);
}

Test(failover, survives_a_node_cut_off_in_the_middle_of_a_prompt) {
    expect_survival(2, 40, false);
    expect_survival(2, 40, true);
}

Test(failover, survives_a_node_cut_off_while_tokens_are_written) {
    expect_survival(60, 1, false);
    expect_survival(60, 1, true);
}

Test(failover, survives_a_node_cut_off_before_its_session_is_open) {
    world *w = new_world();
    run r;
    cluster_add(w->cluster, 0, 2);
    fake *dead = fake_new(w, "mem://dead", 2, 4, FAKE_OPENS_SILENTLY);
    cluster_add(w->cluster, 2, 3);
    cluster_add(w->cluster, 3, 4);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, dead), SN_OK, "%s", r.err.text);
    cr_expect_eq(fake_asked(dead), 1);
    cr_expect_eq(run_steps(&r, 0, WORLD_TOKENS, 32), SN_OK, "%s", r.err.text);
    run_close(&r);
    fake_free(&dead);
    world_free(&w);
}

static void expect_error_soon(sn_status status, const run *r, int64_t began, const char *what) {
    int64_t ms = (sn_now_us() - began) / 1000;
    cr_expect_eq(status, SN_RETRY, "%s: status %d, %s", what, status, r->err.text);
    cr_expect(ms < SOON_MS, "%s took %lld ms", what, (long long)ms);
    cr_expect(strstr(r->err.text, "2:4"), "%s: which blocks? %s", what, r->err.text);
}

Test(failover, says_soon_which_blocks_are_missing_when_nobody_can_take_over) {
    for (int push = 0; push < 2; push++) {
        world *w = new_world();
        run r;
        cluster_add(w->cluster, 0, 2);
        cluster_add(w->cluster, 2, 4);
        cr_assert_eq(open_with(&r, w, (sn_chain_options){.push = push}, NULL), SN_OK, "%s", r.err.text);
        cr_assert_eq(run_steps(&r, 0, 20, 20), SN_OK);
        cluster_cut_off(w->cluster, 1);
        int64_t began = sn_now_us();
        expect_error_soon(run_steps(&r, 20, 21, 1), &r, began, push ? "pushing" : "by the client");
        cr_expect(strstr(r.err.text, "no answer"), "%s", r.err.text);
        cr_expect_eq(sn_chain_length(r.chain), 20);
        run_close(&r);
        world_free(&w);
    }
}

/* -- nodes that talk nonsense ----------------------------------------------------------------------------------------
 */

static void expect_survival_of(fake_way way, bool push) {
    world *w = new_world();
    run r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 3);
    cluster_add(w->cluster, 3, 4);
    fake *liar = fake_new(w, "mem://liar", 2, 4, way);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){.push = push}, liar), SN_OK, "way %d: %s", way, r.err.text);
    cr_expect_eq(run_steps(&r, 0, 40, 10), SN_OK, "way %d, push %d: %s", way, push, r.err.text);
    cr_expect_geq(fake_asked(liar), 1, "way %d: the fake was not asked", way);
    run_close(&r);
    fake_free(&liar);
    world_free(&w);
}

Test(failover, goes_on_through_others_when_a_node_answers_nonsense) {
    for (int way = 0; way < FAKE_WAYS; way++) expect_survival_of((fake_way)way, false);
}

Test(failover, goes_on_through_others_when_the_last_of_pushing_nodes_answers_nonsense) {
    for (int way = 0; way < FAKE_WAYS; way++)
        if (way != FAKE_WRONG_TIMELINE && way != FAKE_SILENT) expect_survival_of((fake_way)way, true);
}

static void expect_error_of(fake_way way, const char *part) {
    world *w = new_world();
    run r;
    cluster_add(w->cluster, 0, 2);
    fake *liar = fake_new(w, "mem://liar", 2, 4, way);
    int64_t began = sn_now_us();
    char what[16];
    snprintf(what, sizeof what, "way %d", way);
    sn_status status = open_with(&r, w, (sn_chain_options){0}, liar);
    if (way < FAKE_STEP_WAYS) cr_assert_eq(status, SN_OK, "way %d: %s", way, r.err.text);
    if (way < FAKE_STEP_WAYS) status = run_steps(&r, 0, 10, 10);
    expect_error_soon(status, &r, began, what);
    if (part) cr_expect(strstr(r.err.text, part), "way %d: %s", way, r.err.text);
    run_close(&r);
    fake_free(&liar);
    world_free(&w);
}

Test(failover, says_what_a_lying_node_did_when_there_is_no_other) {
    static const char *const parts[FAKE_WAYS] = {
        [FAKE_SILENT] = "no answer within",         [FAKE_OTHER_KIND] = "answered closed where result was due",
        [FAKE_WRONG_WIDTH] = "another shape",       [FAKE_WRONG_ROWS] = "another shape",
        [FAKE_HALF_NUMBERS] = "another shape",      [FAKE_NANS] = "no numbers",
        [FAKE_WRONG_TIMELINE] = "another timeline", [FAKE_NO_TIMELINE] = "without its timeline",
        [FAKE_OTHER_ID] = "another node answered",  [FAKE_NO_TRACE] = "over 0 nodes, not 1",
        [FAKE_LONG_TRACE] = "over 2 nodes, not 1"};
    for (int way = 0; way < FAKE_WAYS; way++) {
        bool error = way >= FAKE_ERROR_OK && way <= FAKE_ERROR_UNKNOWN;
        expect_error_of((fake_way)way, error ? "does not want to" : parts[way]);
    }
}

Test(failover, gives_up_after_as_many_failures_as_it_was_told) {
    enum { LIARS = 6 };
    const int retries[] = {-1, 2};
    for (int i = 0; i < 2; i++) {
        world *w = new_world();
        run r;
        fake *liars[LIARS];
        int asked = 0;
        cluster_add(w->cluster, 0, 2);
        liars[0] = fake_new(w, "mem://liar0", 2, 4, FAKE_NANS);
        cr_assert_eq(open_with(&r, w, (sn_chain_options){.max_retries = retries[i]}, liars[0]), SN_OK, "%s", r.err.text);
        for (int k = 1; k < LIARS; k++) {
            char address[32];
            snprintf(address, sizeof address, "mem://liar%d", k);
            liars[k] = fake_new(w, address, 2, 4, k % 2 ? FAKE_OPENS_NOT : FAKE_NANS);
            fake_tell(liars[k], r.link);
        }
        cr_expect_neq(run_steps(&r, 0, 10, 10), SN_OK);
        for (int k = 0; k < LIARS; k++) asked += fake_asked(liars[k]) > 0;
        cr_expect_leq(asked, 1 + (retries[i] < 0 ? 0 : retries[i]), "%d nodes were tried", asked);
        run_close(&r);
        for (int k = 0; k < LIARS; k++) fake_free(&liars[k]);
        world_free(&w);
    }
}

/* -- other weights ---------------------------------------------------------------------------------------------------
 */

Test(failover, a_client_with_the_file_takes_only_nodes_with_its_weights) {
    world *w = new_world();
    run r;
    char *other = tiny_make(&(tiny_options){.dtype = SN_F32, .seed = 2});
    cluster_add(w->cluster, 0, 2);
    cluster_add_of(w->cluster, other, 2, 4);
    int64_t began = sn_now_us();
    sn_status status = open_with(&r, w, (sn_chain_options){0}, NULL);
    expect_error_soon(status, &r, began, "other weights only");
    cr_expect(strstr(r.err.text, "nobody serves blocks 2:4"), "%s", r.err.text);
    run_close(&r);
    cluster_add(w->cluster, 2, 3);
    cluster_add(w->cluster, 3, 4);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, NULL), SN_OK, "%s", r.err.text);
    cr_expect_eq(run_steps(&r, 0, 40, 10), SN_OK, "%s", r.err.text);
    run_close(&r);
    world_free(&w);
    tiny_remove(&other);
}

/* -- rewinds ---------------------------------------------------------------------------------------------------------
 */

Test(failover, rewinds_in_every_way_of_chaining_and_after_failures) {
    for (int mode = 0; mode < 6; mode++) {
        world *w = new_world();
        run r;
        bool push = mode % 2, dies = mode >= 4;
        cluster_add(w->cluster, 0, 2);
        cluster_add(w->cluster, 2, 4);
        cluster_add(w->cluster, 2, 3);
        cluster_add(w->cluster, 3, 4);
        sn_device *device = NULL;
        sn_device_options how = {.threads = 1};
        sn_chain_options options = {.push = push};
        if (mode == 2 || mode == 3) { /* some blocks here, in the middle of a row of nodes */
            NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, &err));
            options.device = device;
            options.local_first = 0;
            options.local_end = 1;
            options.kv_memory = 1 << 20;
        }
        cr_assert_eq(open_with(&r, w, options, NULL), SN_OK, "%s", r.err.text);
        if (dies) cluster_cut_off_at_step(w->cluster, 1, 3);
        cr_expect_eq(run_steps(&r, 0, 70, 16), SN_OK, "%s", r.err.text);
        const int to[][2] = {{48, 80}, {33, 60}, {59, 61}, {0, 64}, {32, 96}, {1, 9}};
        for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
            cr_expect_eq(run_steps(&r, to[i][0], to[i][1], 11), SN_OK, "mode %d: %s", mode, r.err.text);
        }
        run_close(&r);
        sn_device_close(&device);
        world_free(&w);
    }
}

Test(failover, a_rewind_that_fails_leaves_nothing_of_what_it_wrote_over) {
    world *w = new_world();
    run r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){0}, NULL), SN_OK, "%s", r.err.text);
    cr_assert_eq(run_steps(&r, 0, 50, 50), SN_OK);
    cluster_cut_off(w->cluster, 1);
    size_t row = (size_t)w->n_embd;
    float other[5 * 64], out[5 * 64];
    memcpy(other, w->inputs, sizeof other);
    cr_expect_eq(sn_chain_step(r.chain, 20, 5, other, out, &r.err), SN_RETRY);
    cr_expect_eq(sn_chain_length(r.chain), 20);
    cr_expect_eq(sn_chain_step(r.chain, 50, 1, w->inputs + 50 * row, out, &r.err), SN_REFUSED);
    cluster_add(w->cluster, 2, 4); /* somebody else comes, and hears the story from its beginning */
    cr_expect_eq(run_steps(&r, 20, 60, 8), SN_OK, "%s", r.err.text);
    run_close(&r);
    world_free(&w);
}

/* -- the network -----------------------------------------------------------------------------------------------------
 */

/* What a filter of our own does to the messages of a hub, and what it saw. Under the hub's lock. */
typedef struct meddler {
    bool deaf;  /* that a session is open is not heard from node 1 */
    bool apart; /* nodes do not reach each other with steps */
    int every;  /* every n-th message to or from a node is lost; 0: none */
    int n, pushes;
    uint8_t session[SN_SESSION_ID_SIZE]; /* the newest that was opened at node 1 */
} meddler;

static sn_fate meddle(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    meddler *m = ctx;
    bool between_nodes = *from && *to;
    if (msg->kind == SN_MSG_OPEN && !strcmp(to, "mem://node1"))
        memcpy(m->session, msg->open.session, sizeof m->session);
    if (between_nodes && msg->kind == SN_MSG_STEP) m->pushes++;
    if (between_nodes && msg->kind == SN_MSG_STEP && m->apart) return SN_DROP;
    if (m->deaf && msg->kind == SN_MSG_OPENED && !strcmp(from, "mem://node1")) return SN_DROP;
    bool counts = msg->kind == SN_MSG_STEP || msg->kind == SN_MSG_RESULT;
    return counts && m->every && ++m->n % m->every == 0 ? SN_DROP : SN_DELIVER;
}

Test(failover, nodes_that_do_not_reach_each_other_work_through_the_client) {
    world *w = new_world();
    meddler m = {.apart = true};
    run r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    sn_hub_set_filter(cluster_hub(w->cluster), meddle, &m);
    cr_assert_eq(open_with(&r, w, (sn_chain_options){.push = true}, NULL), SN_OK, "%s", r.err.text);
    cr_expect_eq(run_steps(&r, 0, 60, 10), SN_OK, "%s", r.err.text);
    cr_expect_eq(m.pushes, 1, "%d pushes were tried", m.pushes);
    cr_expect_eq(sn_chain_failovers(r.chain), 1);
    sn_hop_report hops[4];
    cr_expect_eq(sn_chain_hops(r.chain, hops, 4), 2);
    run_close(&r);
    world_free(&w);
}

/* Closes the client's session at node 1 behind its back, as a node that was started anew has forgotten it. */
static void forget_session(world *w, const sn_identity *identity, const meddler *m) {
    talk t = {0};
    const sn_node *node = cluster_node(w->cluster, 1);
    sn_msg *msg = NULL;
    NEED(sn_transport_memory_new(cluster_hub(w->cluster), identity, &t.transport, &err));
    NEED(sn_transport_dial(t.transport, sn_node_address(node), sn_node_curve_key(node), &t.node, &err));
    NEED(sn_msg_new(SN_MSG_CLOSE, 0, &msg, &err));
    memcpy(msg->close.session, m->session, sizeof m->session);
    sn_msg *answer = talk_ask(&t, &msg);
    if (answer->kind != SN_MSG_CLOSED) abort();
    sn_msg_free(&answer);
    sn_transport_free(&t.transport);
}

Test(failover, a_node_that_forgot_its_session_is_told_it_again) {
    for (int push = 0; push < 2; push++) {
        world *w = new_world();
        meddler m = {0};
        run r = {.w = w};
        sn_identity identity;
        cluster_add(w->cluster, 0, 2);
        cluster_add(w->cluster, 2, 4); /* nobody else has these */
        sn_hub_set_filter(cluster_hub(w->cluster), meddle, &m);
        sn_transport *transport = cluster_transport(w->cluster, &identity);
        sn_seed seeds[2];
        for (int i = 0; i < 2; i++) {
            const sn_node *node = cluster_node(w->cluster, i);
            snprintf(seeds[i].address, sizeof seeds[i].address, "%s", sn_node_address(node));
            memcpy(seeds[i].curve_key, sn_node_curve_key(node), SN_KEY_SIZE);
        }
        NEED(sn_link_over(&transport, seeds, 2, &r.link, &err));
        NEED(sn_model_open(w->path, &r.model, &err));
        sn_chain_options options = {.link = r.link, .timeout_ms = TIMEOUT_MS, .push = push};
        NEED(sn_chain_open(r.model, &options, &r.chain, &err));
        for (int round = 0; round < 3; round++) {
            cr_expect_eq(run_steps(&r, 30 * round, 30 * (round + 1), 10), SN_OK, "%s", r.err.text);
            forget_session(w, &identity, &m);
        }
        cr_expect_eq(sn_chain_failovers(r.chain), 2);
        run_close(&r);
        world_free(&w);
    }
}

Test(failover, messages_that_get_lost_cost_time_and_no_bits) {
    for (int push = 0; push < 2; push++) {
        world *w = new_world();
        meddler m = {.every = 10};
        run r;
        for (int i = 0; i < 4; i++) {
            cluster_add(w->cluster, 0, 2);
            cluster_add(w->cluster, 2, 4);
        }
        sn_hub_set_filter(cluster_hub(w->cluster), meddle, &m);
        cr_assert_eq(open_with(&r, w, (sn_chain_options){.push = push, .max_retries = 8}, NULL), SN_OK, "%s",
                     r.err.text);
        int tries = 0;
        for (int at = 0; at < 90; at = sn_chain_length(r.chain)) { /* as somebody would who is told to try again */
            cr_assert_lt(tries++, 20, "%s", r.err.text);
            sn_status status = run_steps(&r, at, 90, 6);
            cr_expect(status == SN_OK || status == SN_RETRY, "%s", r.err.text);
        }
        cr_expect_geq(sn_chain_failovers(r.chain), 2);
        run_close(&r);
        world_free(&w);
    }
}

Test(failover, a_session_that_was_opened_unheard_is_closed) {
    world *w = new_world();
    meddler m = {.deaf = true};
    run r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    sn_hub_set_filter(cluster_hub(w->cluster), meddle, &m);
    int64_t began = sn_now_us();
    expect_error_soon(open_with(&r, w, (sn_chain_options){0}, NULL), &r, began, "opened unheard");
    for (int node = 0; node < 2; node++) {
        talk *t = talk_new(w, node);
        int64_t deadline = sn_now_us() + 5000000;
        while (talk_status(t).sessions && sn_now_us() < deadline) sn_sleep_us(2000);
        cr_expect_eq(talk_status(t).sessions, 0, "node %d keeps it", node);
        talk_free(&t);
    }
    run_close(&r);
    world_free(&w);
}

Test(failover, more_blocks_than_a_route_has_hops_are_not_cut_short) {
    run r = {0};
    sn_device *device = NULL;
    sn_device_options how = {.threads = 1};
    char *path = tiny_make(&(tiny_options){.dtype = SN_F32, .n_blocks = SN_HOPS_MAX + 1, .n_ff = 32});
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, &err));
    NEED(sn_model_open(path, &r.model, &err));
    sn_chain_options options = {
        .device = device, .local_end = SN_HOPS_MAX + 1, .kv_memory = 16 << 20, .every_block = true};
    cr_expect_eq(sn_chain_open(r.model, &options, &r.chain, &r.err), SN_REFUSED);
    cr_expect(strstr(r.err.text, "65 blocks cannot be cut"), "%s", r.err.text);
    cr_expect_null(r.chain);
    options.every_block = false;
    cr_expect_eq(sn_chain_open(r.model, &options, &r.chain, &r.err), SN_OK, "%s", r.err.text);
    run_close(&r);
    sn_device_close(&device);
    tiny_remove(&path);
}
