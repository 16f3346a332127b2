/* What generating text needs: a testbed, its model on a CPU device of one thread, the LM head, and a tokenizer whose
 * first hundred ids are characters (id 2 ends a text). Every failure ends the process. */
#ifndef SN_TESTS_GENERATOR_FIXTURE_H
#define SN_TESTS_GENERATOR_FIXTURE_H

#include "client/generate/generator.h"
#include "tests/support/node_client.h"

typedef struct generator_fixture {
    testbed *w;
    sn_model *model;
    sn_device *device;
    sn_lm_head *head;
    sn_tokenizer *tokenizer;
    int context; /* tokens of a text, including the prompt */
} generator_fixture;

/* kv_memory: of the nodes that are added, in pages, as in testbed_new */
generator_fixture generator_fixture_begin(size_t kv_memory, int context);
/* The same with a model of this path. */
generator_fixture generator_fixture_begin_with(const char *model, size_t kv_memory, int context);
void generator_fixture_end(generator_fixture *d);
/* A chain that computes all blocks in this process; close it before the fixture ends. */
sn_chain *generator_fixture_local_chain(const generator_fixture *d);

#endif
