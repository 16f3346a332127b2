/* The embedding of a text: what its tokens' hidden states have in common. Belongs to the thread of the session. */
#ifndef SN_GATEWAY_QUEUE_EMBEDDING_H
#define SN_GATEWAY_QUEUE_EMBEDDING_H

#include "include/swarm.h"

/* out (width): the mean, over the tokens ids (n), of the hidden states after the final norm, scaled to length 1. The
 * session is one for hidden states, of all blocks; its timeline begins anew. With an audit the embedding was checked.
 */
swarm_code sn_embed(const swarm_model *model, swarm_session *session, const int32_t *ids, size_t n, float *out,
                    swarm_error **error);

#endif
