/* A node that lies: protocol, engine and signatures are those of a real node, but the output of its engine is
 * altered before the reply, or its weights are not the ones that it announces. It runs in a thread on a transport of
 * its own. Every function ends the process with a message when a prerequisite is missing. */
#ifndef SN_TESTS_BYZANTINE_NODE_H
#define SN_TESTS_BYZANTINE_NODE_H

#include "tests/support/node_client.h"

typedef struct byzantine_faults {
    int alter_nth_step;  /* the last bit of one value of the n-th step (from 1 on) is flipped; 0: of none */
    int alter_every_nth; /* the same in every n-th step; 0: in none */
    bool alter_once;     /* the same in every step, but for one at the position of the step before: it is repeated */
    bool fail_repeated;  /* a step at the position of the step before fails */
    int fail_steps;      /* so many first steps fail */
    int fail_after;      /* all steps after so many fail; 0: none does */
    bool stale;          /* from the second step of one token on it replies with the output of the step before */
    bool huge;           /* hidden states and gradients of training are finite, and as large as floats can be */
    bool large_error;    /* in an altered step, all values of the last token are far from the true ones */
    /* path of a model whose weights it computes with, under the name and hashes of the testbed's model; NULL: the
     * testbed's */
    const char *model;
    bool signs_float32;     /* its receipts say that keys and values are float32, which they are not */
    bool signs_approximate; /* its receipts say that its device may give other bits, as a GPU's do */
    bool signs_continued;   /* its receipts say that keys and values came from elsewhere */
    bool announces_slow;    /* announces itself as slow: no route prefers it */
} byzantine_faults;

typedef struct byzantine_node byzantine_node;

byzantine_node *byzantine_node_new(testbed *w, const char *address, int first, int end, byzantine_faults faults);
void byzantine_node_free(byzantine_node **b);                            /* before the testbed */
void byzantine_node_announce_to(const byzantine_node *b, sn_link *link); /* adds it to the link's directory */
const uint8_t *byzantine_node_id(const byzantine_node *b);
int byzantine_node_steps(const byzantine_node *b); /* steps that it has replied to */

#endif
