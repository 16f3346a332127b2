/* The protocol by hand: one sn_protocol without threads, a clock that the test sets, jobs that wait until the test runs
 * them, and one client. For tests of what a node decides (node/protocol). Every function ends the process with a
 * message when a prerequisite is missing. */
#ifndef SN_TESTS_PROTOCOL_FIXTURE_H
#define SN_TESTS_PROTOCOL_FIXTURE_H

#include "node/protocol/protocol.h"
#include "tests/support/node_client.h"

enum {
    SECOND = 1000000,
    T0 = 100 * SECOND,
    TUNE_BYTES = 1 << 20,
    FIXTURE_SESSIONS_MAX = 8,
    SHARED_BYTES_PER_S = 1 << 20,
    SHARED_NEAR_BYTES_PER_S = 16 * SHARED_BYTES_PER_S,
    SHARED_FILE_BYTES = 64 << 20
};

typedef struct protocol_fixture {
    testbed *w; /* for its model and numbers; its cluster has no nodes */
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_transport *transport;
    sn_identity identity;
    sn_protocol *protocol;
    sn_job *waiting[64];
    int n_waiting, queue_max;
    int64_t unix_ms;   /* constant unless the test changes it */
    int not_in_memory; /* of reads of the shared file: so many find nothing in memory */
    node_client client;
} protocol_fixture;

void protocol_fixture_begin(protocol_fixture *b);
/* With the model at this path (NULL: a tiny one is made), which has four blocks, and so many KV pages. */
void protocol_fixture_begin_with(protocol_fixture *b, const char *model_path, size_t kv_pages);
void protocol_fixture_end(protocol_fixture *b);
/* A further client, dialled to the node. The caller frees its transport before the fixture ends. */
node_client protocol_fixture_client(protocol_fixture *b);
void protocol_fixture_read(protocol_fixture *b, int64_t now_us); /* hands over the messages that have arrived */
void protocol_fixture_run_jobs(protocol_fixture *b, int64_t now_us);
/* Sends the message, reads and runs jobs; the reply, or NULL. */
sn_msg *protocol_fixture_request(protocol_fixture *b, sn_msg *msg, int64_t now_us);
void protocol_fixture_open(protocol_fixture *b, node_session *p,
                           int64_t now_us);                                    /* a session of the fixture's client */
uint64_t protocol_fixture_count_sessions(protocol_fixture *b, int64_t now_us); /* as a STATUS_REPLY says */

#endif
