#include "gateway/queue/audited.h"

enum { TRIES = 4 }; /* each time a node is banned */

swarm_code sn_compute_audited(sn_compute compute, void *ctx, swarm_session *session, swarm_error **error) {
    swarm_code code = SWARM_REBUILD;
    for (int i = 0; i < TRIES && code == SWARM_REBUILD; i++) {
        swarm_error_free(*error);
        *error = NULL;
        code = compute(ctx, session, error);
        if (!code) code = swarm_session_audit(session, error);
    }
    return code;
}
