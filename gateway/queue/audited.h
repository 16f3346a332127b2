/* Results that are given away only when an audit has found nothing wrong with them, as swarm_session_generate does with
 * text. Belongs to the thread of the session. */
#ifndef SN_GATEWAY_QUEUE_AUDITED_H
#define SN_GATEWAY_QUEUE_AUDITED_H

#include "include/swarm.h"

typedef swarm_code (*sn_compute)(void *ctx, swarm_session *session, swarm_error **error);

/* Runs `compute` in the session, and checks what it computed; once more, over other nodes, while a check finds a wrong
 * result. SWARM_REBUILD: it found one too often. Without an audit it only computes. */
swarm_code sn_compute_audited(sn_compute compute, void *ctx, swarm_session *session, swarm_error **error);

#endif
