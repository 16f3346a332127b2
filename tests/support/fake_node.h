/* A node without blocks: it announces a span, opens sessions, and replies with one kind of fault, or not at all. It
 * runs in a thread on a transport of its own. Every function ends the process with a message when a prerequisite is
 * missing. */
#ifndef SN_TESTS_FAKE_NODE_H
#define SN_TESTS_FAKE_NODE_H

#include "tests/support/node_client.h"

typedef enum fake_node_fault {
    FAKE_SILENT,
    FAKE_OTHER_KIND,
    FAKE_WRONG_WIDTH,
    FAKE_WRONG_ROWS,
    FAKE_OTHER_DTYPE, /* float16 where float32 was asked for */
    FAKE_NANS,
    FAKE_HUGE,           /* a finite number, as large as floats can be */
    FAKE_WRONG_TIMELINE, /* as the first node of a route: the client cannot check the nodes after it */
    FAKE_NO_TIMELINE,
    FAKE_OTHER_ID,
    FAKE_NO_TRACE,
    FAKE_LONG_TRACE,
    FAKE_ERROR_OK, /* an error whose status is SN_OK */
    FAKE_ERROR_RETRY,
    FAKE_ERROR_REBUILD,
    FAKE_ERROR_REFUSED,
    FAKE_ERROR_STOP,
    FAKE_ERROR_LATER, /* wants to be asked again in FAKE_LATER_MS, each time */
    FAKE_STEP_FAULTS, /* from here on the fault occurs when a session is opened */
    FAKE_OPEN_SILENT = FAKE_STEP_FAULTS,
    FAKE_OPEN_REFUSED,
    FAKE_OPEN_REBUILD,
    FAKE_OPEN_OTHER_KIND,
    FAKE_OPEN_SHORT_STEPS, /* accepts steps of fewer tokens than a node must */
    FAKE_FAULTS,
    FAKE_FORGES = FAKE_FAULTS, /* answers for its status, then sends errors with ids near the one that it saw */
    FAKE_PONDERS,              /* answers no step, and for its status after FAKE_PONDERS_MS */
    FAKE_BLAMES,               /* answers a step with an error that names the session of the next node */
    FAKE_BOASTS, /* wants to be asked again in FAKE_LATER_MS, then answers, and states a time that no clock has */
    FAKE_DIES,   /* its program ends at the first step that it gets */
} fake_node_fault;
enum { FAKE_PONDERS_MS = 400, FAKE_LATER_MS = 10 };

/* Writes an announcement of blocks of the testbed's model, as a node makes it, to *out (initialised here). speed 1:
 * announces itself as fast, so that any route prefers it; -1: as slow, so that any route avoids it; 0: announces no
 * speed. */
void make_announcement_of(const testbed *w, const sn_identity *identity, const char *address, int first, int end,
                          int speed, sn_buf *out);

typedef struct fake_node fake_node;

fake_node *fake_node_new(testbed *w, const char *address, int first, int end, fake_node_fault fault);
void fake_node_free(fake_node **f);                            /* before the testbed */
void fake_node_announce_to(const fake_node *f, sn_link *link); /* puts its announcement into the link's directory */
/* The same of a stranger with all blocks, very fast as it says. */
void fake_node_claim_speed(const fake_node *f, const testbed *w, const char *address, sn_link *link);
int fake_node_requests(const fake_node *f); /* OPENs and STEPs received */

#endif
