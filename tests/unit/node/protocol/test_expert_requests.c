/* What a node does with the requests of others for its experts: which it refuses, and how many it takes. */
#include "tests/support/expert_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static expert_fixture f;

static void set_up(void) { experts_begin(&f); }
static void tear_down(void) { experts_end(&f); }

TestSuite(expert_requests, .init = set_up, .fini = tear_down);

/* A valid request of one row for experts 1 and 2 of block 0. */
static sn_msg *new_request(void) {
    static const sn_expert_pair pairs[] = {{0, 1}, {0, 2}};
    static uint64_t last;
    sn_msg *msg = experts_message(SN_MSG_EXPERTS, ++last);
    void *data = NULL;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, EMBD}, &data, &err));
    memset(data, 0, EMBD * sizeof(float));
    REQUIRE(sn_list_new(2, SN_EXPERT_PAIRS_MAX, sizeof *msg->experts.pairs, &msg->experts.pairs, &err));
    memcpy(msg->experts.pairs, pairs, sizeof pairs);
    msg->experts.n_pairs = 2;
    msg->experts.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->experts.block_hash, f.hashes[0].bytes, SN_HASH_SIZE);
    return msg;
}

static void expect_refused_by(const expert_holder *from, sn_msg *msg, sn_status status, const char *part) {
    int before = f.n_jobs;
    sn_peer peer;
    experts_send(&f, from, msg);
    cr_expect_eq(f.n_jobs, before, "a job was made: %s", part);
    sn_msg *error = experts_receive(from, SN_MSG_ERROR, &peer);
    cr_assert(error, "no error: %s", part);
    cr_expect_eq(error->error.status, (uint64_t)status);
    cr_expect(strstr(error->error.text, part), "%s", error->error.text);
    sn_msg_free(&error);
}

static void expect_refused(sn_msg *msg, sn_status status, const char *part) {
    expect_refused_by(&f.holders[0], msg, status, part);
}

Test(expert_requests, a_request_becomes_a_job_and_its_output_the_reply) {
    sn_peer peer;
    experts_send(&f, &f.holders[0], new_request());
    cr_assert_eq(f.n_jobs, 1);
    sn_job *job = f.jobs[0];
    cr_expect_eq(job->kind, SN_JOB_EXPERTS);
    cr_expect_eq(job->first, 0);
    cr_expect_eq(job->n_tokens, 1);
    cr_expect_eq(job->experts->ids[0], 1);
    cr_expect_eq(job->experts->ids[1], 2);
    REQUIRE(sn_shared_buffer_new(2 * EMBD * sizeof(float), &job->output, &err));
    for (int i = 0; i < 2 * EMBD; i++) ((float *)sn_shared_buffer_data(job->output))[i] = (float)i;
    f.n_jobs = 0;
    sn_protocol_job_done(f.protocol, job, f.now);
    sn_msg *answer = experts_receive(&f.holders[0], SN_MSG_EXPERTS_REPLY, &peer);
    cr_assert(answer);
    cr_expect_eq(answer->tensor.shape[0], 2);
    cr_expect_eq(answer->tensor.shape[1], EMBD);
    cr_expect_eq(((const float *)answer->tensor.data)[7], 7);
    sn_msg_free(&answer);
    cr_expect(!sn_protocol_busy(f.protocol));
}

#define REFUSES(change, status, part)                                                                                  \
    do {                                                                                                               \
        sn_msg *msg = new_request();                                                                                   \
        change;                                                                                                        \
        expect_refused(msg, status, part);                                                                             \
    } while (0)

Test(expert_requests, requests_for_what_is_not_here_are_refused) {
    REFUSES(msg->experts.protocol++, SN_REFUSED, "speaks protocol 6");
    REFUSES(msg->experts.block = BLOCKS, SN_REBUILD, "no mixture of experts that is served here");
    REFUSES(msg->experts.block = 65536, SN_REBUILD, "no mixture of experts that is served here");
    REFUSES(msg->experts.block = 1, SN_REBUILD, "other weights");
    REFUSES(msg->experts.pairs[1].expert = 3, SN_REFUSED, "expert 3 is not here: this node holds experts 0:3");
    REFUSES(msg->experts.pairs[1].expert = INT32_MAX, SN_REFUSED, "is not here");
}

static void set_shape(sn_msg *msg, uint64_t rows, uint64_t width) {
    void *data = NULL;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){rows, width}, &data, &err));
    memset(data, 0, msg->tensor.bytes);
}

Test(expert_requests, requests_whose_sizes_do_not_fit_are_refused) {
    REFUSES(set_shape(msg, 1, EMBD + 1), SN_REFUSED, "F32 (rows, 4)");
    REFUSES(set_shape(msg, SN_SPAN_ROWS + 1, EMBD), SN_REFUSED, "F32 (rows, 4)");
    REFUSES(msg->experts.n_pairs = 0, SN_REFUSED, "pairs");
    REFUSES(msg->experts.pairs[1].row = 1, SN_REFUSED, "pairs name the rows");
    REFUSES(msg->experts.pairs[1].row = INT32_MAX, SN_REFUSED, "pairs name the rows");
    REFUSES((set_shape(msg, 2, EMBD), msg->experts.pairs[0].row = 1), SN_REFUSED, "in their order");
    sn_msg *msg = new_request();
    free(msg->experts.pairs);
    REQUIRE(sn_list_new(3, SN_EXPERT_PAIRS_MAX, sizeof *msg->experts.pairs, &msg->experts.pairs, &err));
    msg->experts.n_pairs = 3; /* a row of three pairs, where a token has two experts */
    expect_refused(msg, SN_REFUSED, "each 2 times at most");
}

Test(expert_requests, requests_of_one_key_that_wait_are_bounded) {
    for (int i = 0; i < 4; i++) experts_send(&f, &f.holders[0], new_request());
    cr_expect_eq(f.n_jobs, 4);
    expect_refused(new_request(), SN_RETRY, "4 of them yours");
    experts_send(&f, &f.holders[1], new_request());
    cr_expect_eq(f.n_jobs, 5, "another node finds room");
}

static expert_holder stranger_new(void) {
    expert_holder h;
    REQUIRE(sn_identity_new(&h.identity, &err));
    REQUIRE(sn_transport_memory_new(f.hub, &h.identity, &h.transport, &err));
    REQUIRE(sn_transport_dial(h.transport, "node:1", f.own.curve_key, &h.node, &err));
    return h;
}

Test(expert_requests, requests_of_strangers_leave_half_of_the_places_to_nodes_of_groups) {
    enum { KEYS = 4, PLACES = 16 };
    expert_holder strangers[KEYS + 1];
    for (int i = 0; i <= KEYS; i++) strangers[i] = stranger_new();
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8); /* and it answers */
    for (int i = 0; i < PLACES; i++) experts_send(&f, &strangers[i % KEYS], new_request());
    cr_expect_eq(f.n_jobs, PLACES);
    expect_refused_by(&strangers[KEYS], new_request(), SN_RETRY, "16 requests, 0 of them yours");
    expect_refused_by(&f.holders[1], new_request(), SN_RETRY, "16 requests");
    experts_send(&f, &f.holders[0], new_request());
    cr_expect_eq(f.n_jobs, PLACES + 1, "a holder that has answered finds room");
    for (int i = 0; i <= KEYS; i++) sn_transport_free(&strangers[i].transport);
}

Test(expert_requests, requests_of_all_nodes_together_are_bounded) {
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8); /* and it answers */
    for (int i = 0; i < SN_EXPERT_JOBS_MAX; i++) {
        experts_send(&f, &f.holders[0], new_request());
        cr_assert_eq(f.n_jobs, i + 1);
        memset(f.jobs[i]->experts->owner, 99, SN_KEY_SIZE); /* as if they came from many nodes */
        if (i % 8 == 7) experts_pass(&f, SECOND);           /* for its quota of steps */
    }
    expect_refused(new_request(), SN_RETRY, "32 requests, 0 of them yours");
}

/* A request of 512 rows for two experts each, of 96 MiB with what it gives. */
static sn_msg *new_large_request(void) {
    enum { PAIRS = 2 * SN_SPAN_ROWS };
    sn_msg *msg = new_request();
    void *data;
    free(msg->experts.pairs);
    REQUIRE(sn_list_new(PAIRS, SN_EXPERT_PAIRS_MAX, sizeof *msg->experts.pairs, &msg->experts.pairs, &err));
    for (uint64_t i = 0; i < PAIRS; i++) msg->experts.pairs[i] = (sn_expert_pair){i / 2, 1 + i % 2};
    msg->experts.n_pairs = PAIRS;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){SN_SPAN_ROWS, (uint64_t)f.hp.n_embd}, &data, &err));
    memset(data, 0, msg->tensor.bytes);
    return msg;
}

Test(expert_requests, the_memory_of_requests_is_bounded) {
    expert_holder stranger = stranger_new();
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8);
    f.hp.n_embd = 16384;
    experts_send(&f, &stranger, new_large_request());
    cr_assert_eq(f.n_jobs, 1);
    expect_refused_by(&stranger, new_large_request(), SN_RETRY, "1 requests, 1 of them yours");
    experts_send(&f, &f.holders[0], new_large_request());
    cr_expect_eq(f.n_jobs, 2, "a holder that has answered finds room");
    expect_refused(new_large_request(), SN_RETRY, "2 requests");
    sn_transport_free(&stranger.transport);
}

Test(expert_requests, requests_count_in_the_quota_of_steps_by_their_block) {
    int taken = 0;
    sn_peer peer;
    sn_msg *error = NULL;
    for (; taken < 100 && !error; taken++) { /* 10 steps are allowed, and a request is half of one: one of two blocks */
        experts_send(&f, &f.holders[0], new_request());
        error = experts_receive(&f.holders[0], SN_MSG_ERROR, &peer);
        for (; f.n_jobs; f.n_jobs--) {
            f.jobs[f.n_jobs - 1]->status = SN_RETRY;
            sn_protocol_job_done(f.protocol, f.jobs[f.n_jobs - 1], f.now);
            sn_msg *answer = experts_receive(&f.holders[0], SN_MSG_ERROR, &peer);
            sn_msg_free(&answer);
        }
    }
    cr_assert(error);
    cr_expect(strstr(error->error.text, "10 steps per second"), "%s", error->error.text);
    cr_expect(taken - 1 >= 18 && taken - 1 <= 20, "%d were taken", taken - 1);
    sn_msg_free(&error);
}

Test(expert_requests, jobs_of_a_connection_that_has_ended_are_cancelled) {
    experts_send(&f, &f.holders[0], new_request());
    experts_send(&f, &f.holders[1], new_request());
    sn_transport_free(&f.holders[0].transport);
    experts_read(&f);
    cr_expect(atomic_load(&f.jobs[0]->cancelled));
    cr_expect(!atomic_load(&f.jobs[1]->cancelled));
}

/* Ends the newest job. */
static void end_job(void) {
    sn_job *job = f.jobs[--f.n_jobs];
    job->status = SN_RETRY;
    sn_protocol_job_done(f.protocol, job, f.now);
}

static sn_msg *message_of_client(sn_msg_kind kind) {
    sn_msg *msg = experts_message(kind, 1000);
    memcpy(kind == SN_MSG_OPEN ? msg->open.session : msg->close.session, "the only session", SN_SESSION_ID_SIZE);
    if (kind != SN_MSG_OPEN) return msg;
    msg->open.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->open.model, f.model.bytes, SN_HASH_SIZE);
    msg->open.end_block = BLOCKS;
    msg->open.max_tokens = 8;
    return msg;
}

/* It would otherwise never change its blocks, and serve no client meanwhile. */
Test(expert_requests, requests_do_not_keep_a_node_without_sessions_from_other_blocks) {
    experts_send(&f, &f.holders[0], new_request());
    cr_assert_eq(f.n_jobs, 1);
    sn_protocol_reload(f.protocol, f.now, f.unix_ms);
    expect_refused(new_request(), SN_RETRY, "serves no blocks now");
    end_job();
    cr_expect(sn_protocol_wants_rebalance(f.protocol));
}

Test(expert_requests, requests_are_answered_until_the_sessions_have_left) {
    sn_peer peer;
    experts_announce(&f, 0, SN_NODE_JOINING, 3, 8); /* and it answers */
    experts_send(&f, &f.holders[1], message_of_client(SN_MSG_OPEN));
    sn_msg *reply = experts_receive(&f.holders[1], SN_MSG_OPEN_REPLY, &peer);
    cr_assert(reply);
    sn_msg_free(&reply);
    sn_protocol_reload(f.protocol, f.now, f.unix_ms);
    experts_send(&f, &f.holders[0], new_request());
    cr_expect_eq(f.n_jobs, 1, "a node that drains computes experts for sessions");
    end_job();
    sn_msg *error = experts_receive(&f.holders[0], SN_MSG_ERROR, &peer); /* of the job */
    sn_msg_free(&error);
    experts_send(&f, &f.holders[1], message_of_client(SN_MSG_CLOSE));
    cr_assert_eq(f.n_jobs, 1);
    end_job();
    expect_refused(new_request(), SN_RETRY, "serves no blocks now");
}
