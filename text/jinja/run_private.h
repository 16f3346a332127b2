/* What parsing and rendering run in: memory, limits and the way out.
 *
 * All memory is taken from the run and freed with it, and nothing else is held but `json`. So a failure needs no
 * cleaning up: sn_jfail leaves by longjmp to the entry of the room (sn_jinja_parse, sn_jinja_render), and no function
 * between has a status to hand on. A run belongs to one thread. */
#ifndef SN_TEXT_JINJA_RUN_PRIVATE_H
#define SN_TEXT_JINJA_RUN_PRIVATE_H

#include "text/jinja/jinja.h"

#include <setjmp.h>

typedef struct sn_jchunk sn_jchunk;

typedef struct sn_jrun {
    sn_jchunk *chunks;
    size_t memory, steps; /* used so far */
    sn_jinja_limits limits;
    int depth;
    int line; /* of the construct that is worked on */
    sn_err *err;
    sn_status status;
    json_t *json; /* what from_json reads just now */
    jmp_buf out;
} sn_jrun;

/* Frees all memory and `json`. */
void sn_jrun_free(sn_jrun *run);

/* Zeroed memory for n elements of `size` bytes. */
void *sn_jalloc(sn_jrun *run, size_t n, size_t size);

/* Ends the run: "line 3, <construct>: <sentence>"; an empty construct is left out. */
_Noreturn void sn_jfail(sn_jrun *run, const char *construct, const char *format, ...) SN_PRINTF(3, 4);

/* Counts n steps. */
void sn_jcharge(sn_jrun *run, size_t n);

/* Every recursive function enters and leaves. */
void sn_jenter(sn_jrun *run);
static inline void sn_jleave(sn_jrun *run) { run->depth--; }

#endif
