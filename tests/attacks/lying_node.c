/* A real node that lies: linked as swarm-node is, but each SN_LIES_EVERY-th row that it decodes leaves its blocks with
 * the opposite sign, before it is hashed, signed and sent. */
#include "node/engine/engine.h"

#include <stdlib.h>

sn_job *__real_sn_engine_next_finished(sn_engine *engine);
sn_job *__wrap_sn_engine_next_finished(sn_engine *engine);

sn_job *__wrap_sn_engine_next_finished(sn_engine *engine) {
    static unsigned long steps;
    const char *text = getenv("SN_LIES_EVERY");
    unsigned long every = text ? strtoul(text, NULL, 10) : 0; /* 0: it does not lie */
    sn_job *job = __real_sn_engine_next_finished(engine);
    if (!every || !job || job->kind != SN_JOB_STEP || job->status || job->n_tokens != 1) return job;
    if (++steps % every) return job;
    float *row = sn_shared_buffer_data(job->output);
    for (int64_t i = 0; i < job->step.input.shape[1]; i++) row[i] = -row[i];
    return job;
}
