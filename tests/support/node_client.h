/* A client that speaks the protocol by hand with the nodes of a cluster, over one tiny model whose outputs are
 * known: for tests of a node's replies. Every function ends the process with a message when a prerequisite is
 * missing. */
#ifndef SN_TESTS_NODE_CLIENT_H
#define SN_TESTS_NODE_CLIENT_H

#include "tests/support/cluster.h"

enum { TESTBED_TOKENS = 96, TESTBED_WAIT_MS = 10000 };

/* A model, a cluster without nodes, and the output of the whole model for TESTBED_TOKENS rows of input. */
typedef struct testbed {
    char *path;
    bool own_model; /* the file was made for the testbed */
    cluster *cluster;
    sn_hash model, block_hash[8];
    sn_kv_dtype kv_dtype;
    int n_blocks, n_embd;
    size_t page_bytes;      /* bytes of a KV page of a node that holds all blocks */
    float *inputs, *hidden; /* (TESTBED_TOKENS, n_embd) */
} testbed;

/* options->model: NULL: a tiny one is made; kv_memory and quota.kv_bytes are in pages */
testbed *testbed_new(const cluster_options *options);
void testbed_free(testbed **w);
/* Computes the reference: rows (n, n_embd) at positions 0.. through blocks [first, end), into a new array that the
 * caller frees. */
float *testbed_compute(const testbed *w, int first, int end, int n, const float *rows);
/* The same with an adapter, given as its image. */
float *testbed_compute_with_adapter(const testbed *w, const sn_buf *image, int first, int end, int n,
                                    const float *rows);
/* An image of an adapter with a deep prompt before block 1 and LoRA matrices of block 2; another scale gives another
 * image. The caller frees it with sn_buf_fini. */
sn_buf testbed_adapter_image(const testbed *w, float scale);
/* The timeline of those rows at blocks [first, end): n + 1 hashes; the caller frees them. */
sn_hash *testbed_timeline(const testbed *w, int first, int end, int n, const float *rows);

/* A client with an identity and a transport of its own, connected to one node. */
typedef struct node_client {
    sn_identity identity;
    sn_transport *transport;
    sn_peer node;
    uint64_t last_correlation_id;
} node_client;

node_client *node_client_new(testbed *w, int node);
void node_client_free(node_client **t);
/* Sends *msg with a new correlation id, which it returns; it does not wait for the reply. Consumes *msg. */
uint64_t node_client_send(node_client *t, sn_msg **msg);
/* Returns the reply to `correlation_id` (0: any message), or NULL after timeout_ms. */
sn_msg *node_client_receive(node_client *t, uint64_t correlation_id, int timeout_ms);
sn_msg *node_client_request(node_client *t, sn_msg **msg); /* both; the process ends if no reply comes */
sn_msg_status_reply node_client_status(node_client *t);
/* Asks node `number` of the cluster for its own sealed announcement, and puts it into a message's list of one. */
void node_client_announcement(testbed *w, int number, sn_blob **out, size_t *n);
/* returns when the node holds the adapter */
void node_client_put_adapter(node_client *t, const testbed *w, const sn_buf *image);
/* Polls the status until it shows this many bytes of KV cache in use; the process ends if it never does. */
void node_client_await_kv_bytes(node_client *t, uint64_t bytes);

/* A session at a node over blocks [first, end). Its input is the testbed's rows. */
typedef struct node_session {
    testbed *testbed;
    node_client *client;
    uint8_t id[SN_SESSION_ID_SIZE];
    int first, end;
    sn_hash *timeline; /* of the testbed's inputs (first == 0) */
    sn_hash adapter;   /* zero: none */
    float *hidden;     /* expected output of the blocks; NULL: the testbed's */
    uint64_t step;     /* number of the newest step that was done */
    int length;
} node_session;

sn_msg *node_session_open_message(node_session *p);                      /* a valid message, to be changed or sent */
sn_msg *node_session_step_message(node_session *p, int position, int n); /* the next step */
sn_msg *node_session_close_message(const node_session *p);
/* A KV_PUT of zeros for n tokens, with the hashes of the testbed's rows. */
sn_msg *node_session_kv_put_message(const node_session *p, int position, int n);
/* does not open the session yet */
void node_session_init(node_session *p, testbed *w, node_client *t, int first, int end);
/* The same with an adapter: the session covers all blocks, and the expected output is that with the adapter. */
void node_session_init_with_adapter(node_session *p, testbed *w, node_client *t, const sn_buf *image);
void node_session_open(node_session *p);  /* opens the session, or the process ends */
void node_session_close(node_session *p); /* sends CLOSE and waits for CLOSE_REPLY; frees */
/* True if the step's reply has the reference's bits, as float32, and the right timeline hash (blocks 0:n_blocks). */
bool node_session_step_ok(node_session *p, int position, int n);
/* The same for a reply that was received: consumes it. */
bool node_session_reply_ok(node_session *p, sn_msg *answer, int position, int n);

/* True if the reply is an ERROR with this status and a text that contains `part`; prints the reply otherwise.
 * Consumes it (NULL counts as no reply). */
bool is_refusal(sn_msg *answer, sn_status status, const char *part);
/* True if the reply is an OPEN_REPLY. Consumes it. */
bool is_opened(sn_msg *answer);

#endif
