/* What `swarm status` shows: a snapshot of a swarm as a table for people or JSON for scripts. */
#ifndef SN_CLIENT_STATUS_VIEW_H
#define SN_CLIENT_STATUS_VIEW_H

#include "client/cmd.h"

/* A node: what it announced, and what it said when it was asked. */
typedef struct sn_status_row {
    sn_announcement a; /* a copy, its texts made plain */
    sn_poll poll;
    struct sn_adapter_told adapters[SN_ADAPTERS_MAX]; /* that it publishes */
    size_t n_adapters;
} sn_status_row;

/* How a block of a model is held: by nodes that are online and answered. */
typedef struct sn_block_cover {
    int nodes;
    uint64_t tokens_per_s; /* their sum; those that have not measured any add nothing */
} sn_block_cover;
sn_block_cover sn_status_cover(const sn_status_row *rows, size_t n, const uint8_t model[SN_KEY_SIZE], uint64_t block);

void sn_status_print(const sn_status_row *rows, size_t n);
json_t *sn_status_json(const sn_status_row *rows, size_t n); /* docs/CLIENT.md says what is in it */

#endif
