/* A node that is none: it announces a span, opens sessions, and answers nonsense, or nothing. A thread on a transport
 * of its own. Every function ends the process with a message when what it needs cannot be had. */
#ifndef SN_TESTS_FAKE_H
#define SN_TESTS_FAKE_H

#include "tests/support/talk.h"

typedef enum fake_way {
    FAKE_SILENT,
    FAKE_OTHER_KIND,
    FAKE_WRONG_WIDTH,
    FAKE_WRONG_ROWS,
    FAKE_HALF_NUMBERS, /* float16 where float32 was asked for */
    FAKE_NANS,
    FAKE_WRONG_TIMELINE, /* as the first of a row of nodes: what comes behind cannot be checked */
    FAKE_NO_TIMELINE,
    FAKE_OTHER_ID,
    FAKE_NO_TRACE,
    FAKE_LONG_TRACE,
    FAKE_ERROR_OK, /* an error whose status is none */
    FAKE_ERROR_RETRY,
    FAKE_ERROR_REBUILD,
    FAKE_ERROR_REFUSED,
    FAKE_ERROR_STOP,
    FAKE_ERROR_UNKNOWN,
    FAKE_STEP_WAYS, /* from here on: when a session is opened */
    FAKE_OPENS_SILENTLY = FAKE_STEP_WAYS,
    FAKE_OPENS_NOT,
    FAKE_OPENS_OTHER_KIND,
    FAKE_OPENS_FOR_NOTHING, /* takes steps of no tokens */
    FAKE_WAYS,
} fake_way;

/* An announcement of blocks of the world's model, as a node makes it, in *out (initialised here). speed 1: of a node that any
 * route prefers; -1: that any avoids; 0: it says nothing. */
void fake_announce(const world *w, const sn_identity *identity, const char *address, int first, int end, int speed,
                   sn_buf *out);

typedef struct fake fake;

fake *fake_new(world *w, const char *address, int first, int end, fake_way way);
void fake_free(fake **f);                     /* before the world */
void fake_tell(const fake *f, sn_link *link); /* puts its announcement into the link's directory */
int fake_asked(const fake *f);                /* OPENs and STEPs that it has got */

#endif
