/* An audited chain over the nodes of a testbed, of which some are byzantine: what it computes, and which evidence the
 * audit leaves. A failure here ends the process or the test. */
#ifndef SN_TESTS_AUDIT_FIXTURE_H
#define SN_TESTS_AUDIT_FIXTURE_H

#include "client/audit/audit.h"
#include "tests/support/byzantine_node.h"

typedef struct audit_fixture {
    testbed *w;
    sn_link *link;
    sn_model *model;
    sn_device *device; /* set if the client computes blocks */
    sn_audit *audit;
    sn_chain *chain;
    byzantine_node *byzantine, *gpu; /* or NULL */
    sn_node_filter node_filter;      /* of the chain */
    /* wire dtype of hidden states between nodes, which are cut at block 2; set by audit_fixture_use_wire_dtype */
    sn_dtype wire;
    float *rounded; /* the reference with rounded rows, for a lossy wire dtype */
    char folder[64];
    float out[TESTBED_TOKENS * 64];
    int step, audit_failures, detected_at; /* steps done; number of failed audits; step of the first one */
    sn_err err;
} audit_fixture;

void audit_fixture_begin(audit_fixture *t);
void audit_fixture_begin_of(audit_fixture *t, const cluster_options *nodes);
void audit_fixture_begin_with_kv(audit_fixture *t, sn_kv_dtype kv_dtype);
/* From now on hidden states travel as `wire`; the reference is computed with rounded rows. */
void audit_fixture_use_wire_dtype(audit_fixture *t, sn_dtype wire);
/* The chain's routes avoid fake and byzantine nodes: these can only be auditors. */
void audit_fixture_fakes_only_audit(audit_fixture *t);
/* Opens an audited chain over the present nodes, one of which is byzantine. here: the client may compute blocks. */
void audit_fixture_open(audit_fixture *t, sn_audit_options audit, bool push, bool here);
void audit_fixture_end(audit_fixture *t);

/* Feeds [position, end), `chunk` tokens at a time. After a failed audit it continues from the position of the chain,
 * as a generator does. */
sn_status feed_tokens(audit_fixture *t, int position, int end, int chunk) SN_MUST_USE;
bool output_is_right(const audit_fixture *t, int end);
/* Checks what swarm verify concludes from the evidence. */
void expect_evidence(const audit_fixture *t, const uint8_t *culprit);

#endif
