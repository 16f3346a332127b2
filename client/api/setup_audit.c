/* The audit of the settings. */
#include "client/api/setup.h"

#include "model/source.h"

/* Only a CPU gives the bits that receipts of exact nodes are compared with, whatever --device says. */
static sn_status open_exact_device(sn_setup *setup, sn_device **out, sn_err *err) {
    sn_settings settings = *setup->settings;
    settings.common.device = "cpu";
    if (setup->device && setup->device->id.kind == SN_DEVICE_CPU) {
        *out = setup->device;
        return SN_OK;
    }
    sn_status status = setup->exact ? SN_OK : sn_setup_device(&settings, setup->cancel, &setup->exact, err);
    *out = setup->exact;
    return status;
}

sn_status sn_setup_audit(sn_setup *setup, const sn_chain_options *chain, sn_err *err) {
    const sn_audit_settings *given = &setup->settings->audit;
    if (!(given->share > 0)) {
        bool alone = given->seed != SN_INT_UNSET || given->local || given->hold || given->evidence;
        return alone ? sn_fail(err, SN_REFUSED,
                               "--audit-seed, --audit-local, --audit-hold and --evidence need --audit SHARE")
                     : SN_OK;
    }
    if (!setup->link) return sn_fail(err, SN_REFUSED, "--audit checks nodes: give --join, or leave out --audit");
    for (int b = 0; b < setup->hp->n_blocks && given->local; b++)
        if (!sn_model_holds_block(setup->model, b))
            return sn_fail(err, SN_REFUSED,
                           "--audit-local needs every block in the model's file; block %d is not in it", b);
    sn_device *device;
    sn_status status = open_exact_device(setup, &device, err);
    const sn_audit_options options = {.model = setup->model,
                                      .link = setup->link,
                                      .device = device,
                                      .local = given->local,
                                      .share = given->share,
                                      .seed = (uint64_t)(given->seed == SN_INT_UNSET ? sn_random_seed() : given->seed),
                                      .evidence = given->evidence,
                                      .max_tokens = chain->max_tokens,
                                      .timeout_ms = chain->limits.timeout_ms,
                                      .node_filter = chain->routing.node_filter};
    return status ? status : sn_audit_new(&options, &setup->audit, err);
}

json_t *sn_audit_json(const sn_audit *audit) {
    sn_audit_report r = sn_audit_get_report(audit);
    json_t *o = json_object();
    json_object_set_new(o, "seed", json_integer((json_int_t)r.seed));
    json_object_set_new(o, "steps", json_integer((json_int_t)r.steps));
    json_object_set_new(o, "checked", json_integer((json_int_t)r.checked));
    json_object_set_new(o, "unchecked", json_integer((json_int_t)r.unchecked));
    json_object_set_new(o, "unchecked_failed", json_integer((json_int_t)r.unchecked_failed));
    json_object_set_new(o, "timeline_checked", json_boolean(sn_audit_timeline_is_checked(audit)));
    json_object_set_new(o, "checks", json_integer((json_int_t)r.checks));
    json_object_set_new(o, "nodes_banned", json_integer((json_int_t)r.nodes_banned));
    json_object_set_new(o, "verdict", *r.verdict ? json_string(r.verdict) : json_null());
    json_object_set_new(o, "evidence", *r.evidence ? json_string(r.evidence) : json_null());
    return o;
}
