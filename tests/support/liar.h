/* A node that lies: everything of a real one - protocol, engine, signatures - but what comes out of its engine is changed
 * before it is answered, or its weights are not the ones that it announces. A thread on a transport of its own. Every
 * function ends the process with a message when what it needs cannot be had. */
#ifndef SN_TESTS_LIAR_H
#define SN_TESTS_LIAR_H

#include "tests/support/talk.h"

typedef struct liar_ways {
    int alters_step;   /* one value of the n-th step (1: the first) gets another last bit; 0: of none */
    int alters_every;  /* the same of every n-th one; 0: of none */
    bool stale;        /* from the second step of one token on it answers what the step before gave */
    bool much;         /* in an altered step, all values of the last token are far from the true ones */
    const char *model; /* whose weights it computes with, under the name and hashes of the world's; NULL: the world's */
    bool shy;          /* announces itself as slow: no route prefers it */
} liar_ways;

typedef struct liar liar;

liar *liar_new(world *w, const char *address, int first, int end, liar_ways ways);
void liar_free(liar **l);                     /* before the world */
void liar_tell(const liar *l, sn_link *link); /* puts its announcement into the link's directory */
const uint8_t *liar_id(const liar *l);
int liar_steps(const liar *l);                /* that it has answered */

#endif
