/* A client's chain over a cluster, held against what the world's whole model makes of the same rows. */
#ifndef SN_TESTS_RUN_H
#define SN_TESTS_RUN_H

#include "client/chain.h"
#include "tests/support/talk.h"

typedef struct run {
    world *w;
    sn_link *link;
    sn_model *model;
    sn_chain *chain;
    sn_err err; /* of what failed last */
} run;

void run_begin(run *r, world *w); /* its link and model; ends the process when it cannot */
/* Opens the chain, with 10 s for an answer if the options say nothing. */
sn_status run_chain(run *r, sn_chain_options options) SN_MUST_USE;
void run_open(run *r, world *w, sn_chain_options options); /* both; ends the process when it cannot */
/* Steps [position, end), `chunk` tokens at a time; SN_STOP when they do not give the reference's bits. */
sn_status run_steps(run *r, int position, int end, int chunk) SN_MUST_USE;
void run_on(run *r, int position, int end, int chunk); /* the same; ends the process when they cannot */
void run_close(run *r);

#endif
