/* Models that a swarm has: "swarm:HASH", where HASH is the id of a manifest (sharing/hub/manifest.h), names one
 * wherever a name of a model is taken. Its files are fetched from the nodes that share them, into
 * `cache`/models/swarm/HASH/, and nothing that arrives is written elsewhere.
 *
 * Any thread may call these functions. Errors are those of fetcher.h, hub.h and model.h. */
#ifndef SN_SHARING_PEERS_SWARM_MODEL_H
#define SN_SHARING_PEERS_SWARM_MODEL_H

#include "sharing/peers/fetcher.h"

enum { SN_SWARM_NAME_SIZE = 6 + 2 * SN_HASH_SIZE + 1, SN_SWARM_SENTENCE_SIZE = 400 };

bool sn_swarm_name_is(const char *name); /* it begins with "swarm:" */

/* Opens a model by any name: "swarm:HASH" here, others as sn_hub_open_model (hub NULL: only paths). The access is
 * borrowed until the model is closed. */
sn_status sn_swarm_open_model(const char *name, const sn_swarm_access *access, const sn_hub_settings *hub,
                              char path[SN_PATH_SIZE], sn_model **out, sn_err *err) SN_MUST_USE;

/* What is looked for when no model was named. */
typedef struct sn_swarm_query {
    const char *id;  /* first digits of the manifest's or the model's id; NULL: any */
    uint64_t memory; /* of a node: for blocks, of which at least one must fit; 0: a client asks */
} sn_swarm_query;
/* Asks which models the swarm shares and chooses one: for a node, one that the joined nodes serve before others, then
 * the one whose least served block has the fewest nodes, then the one with more sessions; for a client, one whose
 * blocks are all served, then the fastest. name: "swarm:HASH". sentence: what was chosen and why. SN_RETRY: no node
 * answers, or none shares a model that is asked for. */
sn_status sn_swarm_choose(const sn_swarm_access *access, const sn_swarm_query *query, char name[SN_SWARM_NAME_SIZE],
                          char sentence[SN_SWARM_SENTENCE_SIZE], sn_err *err) SN_MUST_USE;

#endif
