/* A client's chain over a cluster, compared with the output of the testbed's whole model for the same rows. */
#ifndef SN_TESTS_CHAIN_FIXTURE_H
#define SN_TESTS_CHAIN_FIXTURE_H

#include "client/chain/chain.h"
#include "tests/support/node_client.h"

typedef struct chain_fixture {
    testbed *w;
    sn_link *link;
    sn_model *model;
    sn_chain *chain;
    sn_err err; /* of the call that failed last */
} chain_fixture;

/* With a node of blocks 0:2, one of 2:4, and so many others of 2:4. */
testbed *testbed_of_halves(int others);
/* Where options->limits is zeroed: the default limits, with 10 s for a step. */
void chain_default_limits(sn_chain_options *options);
void chain_fixture_begin(chain_fixture *r, testbed *w); /* opens link and model; a failure ends the process */
/* Opens the chain; the timeout is 10 s if the options give none. */
sn_status chain_fixture_try_open(chain_fixture *r, sn_chain_options options) SN_MUST_USE;
void chain_fixture_open(chain_fixture *r, testbed *w, sn_chain_options options); /* both; a failure ends the process */
/* Steps through positions [position, end), `chunk` tokens at a time; SN_STOP if a step does not give the reference's
 * bits. */
sn_status chain_fixture_try_steps(chain_fixture *r, int position, int end, int chunk) SN_MUST_USE;
/* The same; a failure ends the process. */
void chain_fixture_steps(chain_fixture *r, int position, int end, int chunk);
void chain_fixture_close(chain_fixture *r);

#endif
