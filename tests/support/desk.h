/* What a text is written with: a world, its model on a CPU device of one thread, the output head, and a tokenizer of whose
 * ids the first hundred are characters, 0 and 2 ends. For tests of generated texts; what fails ends the process. */
#ifndef SN_TESTS_DESK_H
#define SN_TESTS_DESK_H

#include "client/generate.h"
#include "tests/support/talk.h"

typedef struct desk {
    world *w;
    sn_model *model;
    sn_device *device;
    sn_head *head;
    sn_tokenizer *tokenizer;
    int context; /* tokens of a text, its prompt among them */
} desk;

desk desk_begin(size_t kv_memory, int context); /* kv_memory: of the nodes that are added, as in cluster_options */
void desk_end(desk *d);
/* A chain that holds all blocks itself; close it before the desk. */
sn_chain *desk_chain(const desk *d);

#endif
