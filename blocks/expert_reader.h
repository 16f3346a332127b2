/* Threads that read experts which rest in host memory or in a file, so that reading goes on beside the computation.
 * Private to blocks/.
 *
 * Central types: sn_expert_rest says where the experts of a block rest, sn_expert_read is one read of one expert, and
 * belongs to the caller. A read that is needed now goes before one that was begun ahead. Every byte from a file is
 * checked: by the expert's hash when it is read first, then by a tag, so that reading is as fast as the disk. All
 * functions are called by the devices' thread. */
#ifndef SN_BLOCKS_EXPERT_READER_H
#define SN_BLOCKS_EXPERT_READER_H

#include "base/hash.h"
#include "base/tag.h"
#include "blocks/block.h"

typedef struct sn_expert_rest {
    const char *host; /* expert e lies e * stride bytes behind it; NULL: in the file, from `at` on */
    size_t stride;
    int file;     /* of the block's own; -1: none */
    int uncached; /* the same file for reads past the page cache; -1: none */
    uint64_t at;
    sn_hash *hashes; /* of each expert; NULL in host memory */
    sn_tag *tags;    /* the reader's, of experts whose hash was right; zeroes at first; NULL in host memory */
} sn_expert_rest;

typedef struct sn_expert_read {
    const sn_expert_rest *rest;
    int expert;
    void *pieces[SN_EXPERT_PIECES]; /* host memory, where each piece goes */
    const size_t *bytes;            /* of each piece */
    /* The reader's: */
    enum { SN_READ_IDLE, SN_READ_WAITS, SN_READ_RUNS, SN_READ_DONE, SN_READ_FAILED } state;
    int error; /* of a read that failed */
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
