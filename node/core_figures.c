/* What is counted, copied out for who watches the node. */
#include "node/core_private.h"

#include <stdio.h>
#include <string.h>

void sn_core_read(const sn_core *core, sn_figures *out) {
    const sn_core_setup *setup = &core->setup;
    *out = (sn_figures){
        .first = setup->span.first,
        .end = setup->span.end,
        .engine = setup->read(setup->ctx),
        .kv_bytes_max = setup->kv_bytes_max,
        .weight_bytes = setup->span.bytes,
        .sessions = sn_sessions_count(core->sessions),
        .sessions_max = setup->sessions_max,
        .draining = core->draining,
        .steps = core->steps,
        .tokens = core->tokens,
        .handed_over = core->moved,
        .announcements = sn_directory_count(core->directory),
        .step = core->step_times,
        .queue = core->queue_times,
    };
    snprintf(out->model, sizeof out->model, "%s", core->hp->name);
    memcpy(out->refusals, core->refusals, sizeof out->refusals);
    for (int i = 0; i < SN_QUOTA_KINDS; i++) out->quota_refusals[i] = sn_quota_refusals(core->quota, (sn_quota_kind)i);
    for (size_t i = 0; i < core->n_joined; i++) out->joined += core->joined[i].answered;
}
