/* Threads that read experts which rest in host memory or in a file, so that reading goes on beside the computation.
 * Private to blocks/.
 *
 * Central types: sn_expert_rest says where the experts of a block rest, sn_expert_read is the reading of one expert,
 * and belongs to the caller. What is needed now goes before what was begun ahead, also when some of that was read
 * already. Every byte from a file is checked by a tag: matrices of a CPU in the memory from which they are used, and
 * all else before it is copied there. All functions are called by the devices' thread. */
#ifndef SN_BLOCKS_EXPERT_READER_H
#define SN_BLOCKS_EXPERT_READER_H

#include "base/tag.h"
#include "blocks/block.h"

enum { SN_EXPERT_READERS = 4 }; /* reads in progress: a disk is fastest with several */

typedef struct sn_expert_rest {
    const char *host; /* expert e lies e * stride bytes behind it; NULL: in the file, from `at` on */
    size_t stride;
    int file;     /* of the block's own; -1: none */
    int uncached; /* the same file for reads past the page cache; -1: none */
    uint64_t at;
    size_t read_bytes; /* in a file: of what is read and checked at once; stride is a multiple of it */
    sn_tag *tags;      /* of each read_bytes of the file; NULL in host memory */
} sn_expert_rest;

typedef struct sn_expert_read {
    const sn_expert_rest *rest;
    int expert;
    void *pieces[SN_EXPERT_PIECES]; /* host memory, where each piece goes; straight to it where it fills whole pages */
    const size_t *bytes;            /* of each piece */
    /* The reader's: */
    enum { SN_READ_IDLE, SN_READ_WAITS, SN_READ_RUNS, SN_READ_DONE, SN_READ_FAILED } state;
    int error;           /* of a read that failed */
    int n_begun, n_over; /* of its parts of read_bytes */
    bool ahead;
    struct sn_expert_read *next;
} sn_expert_read;

typedef struct sn_expert_reader sn_expert_reader;

sn_status sn_expert_reader_new(sn_expert_reader **out, sn_err *err) SN_MUST_USE;
/* Ends all reads; accepts NULL. false: one did not end within timeout_ms. The threads' memory then stays, and the
 * caller leaves the reads, what they read from, and where they write to, as they are for good. */
bool sn_expert_reader_free(sn_expert_reader **reader, int timeout_ms);

/* The read and its memory belong to the reader until it is done or was dropped. */
void sn_expert_reader_begin(sn_expert_reader *reader, sn_expert_read *read, bool ahead);
/* A read that was begun ahead is needed now. */
void sn_expert_reader_need(sn_expert_reader *reader, sn_expert_read *read);
/* Whether the read is over. */
bool sn_expert_reader_is_done(sn_expert_reader *reader, const sn_expert_read *read);
/* Drops a read that no thread has begun; false: a thread has. */
bool sn_expert_reader_drop(sn_expert_reader *reader, sn_expert_read *read);
/* Waits until it is over. SN_STOP: it failed, or took longer than timeout_ms (the memory is then still in use). */
sn_status sn_expert_reader_wait(sn_expert_reader *reader, sn_expert_read *read, int timeout_ms,
                                sn_err *err) SN_MUST_USE;

#endif
