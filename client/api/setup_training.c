/* Opening the backbone of a training, as the settings say. */
#include "client/api/setup.h"

static sn_status open_backbone(sn_setup *setup, sn_backbone_blocks blocks, const sn_base_weights *base,
                               sn_backbone **out, sn_err *err) {
    const sn_common_settings *o = &setup->settings->common;
    int end = blocks.end ? blocks.end : setup->hp->n_blocks;
    if (o->local.given && !o->local.all && (o->local.first > blocks.first || o->local.end < end))
        return sn_fail(err, SN_REFUSED,
                       "training needs nodes (--join) or the whole model in this process (--local all)");
    if (o->local.given) {
        sn_status opened = sn_setup_need_device(setup, err);
        if (opened) return opened;
        const sn_backbone_local_options local = {.device = setup->device, .blocks = blocks, .cancel = setup->cancel};
        return sn_backbone_local(setup->model, &local, out, err);
    }
    if (o->wire_dtype != SN_F32)
        return sn_fail(err, SN_REFUSED, "training sends hidden states as float32 only: leave out --wire-dtype");
    sn_status status = sn_setup_link(setup, err);
    if (setup->link) sn_link_set_cancel(setup->link, setup->cancel);
    const sn_backbone_swarm_options options = {.link = setup->link,
                                               .node_filter = {o->only.items, o->only.n, o->deny.items, o->deny.n},
                                               .timeout_ms = (int)o->timeout_ms,
                                               .max_retries = (int)o->max_retries,
                                               .blocks = blocks,
                                               .cancel = setup->cancel,
                                               .base = base};
    return status ? status : sn_backbone_swarm(setup->model, &options, out, err);
}

sn_status sn_setup_backbone(sn_setup *setup, sn_backbone_blocks blocks, const sn_base_weights *base, sn_backbone **out,
                            sn_err *err) {
    *out = NULL;
    sn_setup_phase(setup, "comparing and opening the blocks");
    sn_status status = open_backbone(setup, blocks, base, out, err);
    sn_setup_phase(setup, NULL);
    return status;
}
