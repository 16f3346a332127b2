/* Fetching the files of a model from nodes that share them (node/protocol/weights.c), by a manifest.
 *
 * No sender is trusted: every piece is compared with its hash in the manifest before it is written, and a node
 * that sent another one is named in the log, once, and not asked again. Several nodes send at once. What was written
 * stays (model/partial_file.h), so a fetch that was cut off goes on where it ended, in a later process, too.
 *
 * Central type: sn_fetcher, of one thread at a time. Errors: SN_RETRY: no node has sent for a minute, or the fetch was
 * cancelled; SN_STOP: the disk is full, or memory is out. */
#ifndef SN_SHARING_PEERS_FETCHER_H
#define SN_SHARING_PEERS_FETCHER_H

#include "client/net/link.h"
#include "sharing/hub/hub.h"
#include "sharing/hub/manifest.h"

/* How to reach the swarm, and where to put what it gives. Borrowed; outlives what is made with it. */
typedef struct sn_swarm_access {
    const char *const *join; /* (n_join): addresses, as sn_link_options.join */
    size_t n_join;
    const char *swarm_key_path;                                       /* of a private swarm; NULL: none */
    const char *cache;                                                /* our folder of caches */
    uint64_t cache_max;                                               /* bytes that it may hold; 0: any */
    int patience_ms;                                                  /* for which no node may send; 0: a minute */
    const sn_cancel *cancel;                                          /* NULL: never */
    void (*progress)(void *context, const sn_hub_progress *progress); /* NULL: silent; a few times a second */
    void *context;
} sn_swarm_access;

typedef struct sn_fetcher sn_fetcher;

/* Does not connect yet. */
sn_status sn_fetcher_new(const sn_swarm_access *access, sn_fetcher **out, sn_err *err) SN_MUST_USE;
void sn_fetcher_free(sn_fetcher **fetcher); /* accepts NULL */
sn_link *sn_fetcher_link(sn_fetcher *fetcher);

/* Appends the manifest of this id to *text, from whichever node has it, until until_us (sn_now_us clock; 0: for as long
 * as patience_ms says). */
sn_status sn_fetcher_manifest(sn_fetcher *fetcher, const sn_hash *id, int64_t until_us, sn_buf *text,
                              sn_err *err) SN_MUST_USE;

/* A file of the manifest: where it is here, and what is wanted of it. */
typedef struct sn_fetcher_part {
    char path[SN_PATH_SIZE];
    sn_range_set wanted;
} sn_fetcher_part;
/* Brings what is wanted of the parts (manifest->n_files) and is not there. what: for progress. */
sn_status sn_fetcher_fetch(sn_fetcher *fetcher, const sn_manifest *manifest, const sn_fetcher_part *parts,
                           const char *what, sn_err *err) SN_MUST_USE;

#endif
