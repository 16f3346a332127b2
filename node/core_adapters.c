/* Adapters that the node's owner publishes: held like those that clients bring, but for good, and told to whoever asks. */
#include "node/core_private.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

void sn_core_publish(sn_core *core, sn_published *published) {
    for (size_t i = 0; i < published->n; i++) { /* before anybody could bring one: there is a place */
        struct sn_published_one *one = &published->at[i];
        sn_tuned *t = core->tuned;
        while (t->state != SN_TUNED_FREE) t++;
        *t = (sn_tuned){.state = SN_TUNED_HELD, .hash = one->hash, .users = 1, .published = true, .tuning = one->tuning};
        snprintf(t->name, sizeof t->name, "%s", one->name);
        one->tuning = NULL;
    }
}

void sn_core_announce_adapters(const sn_core *core, sn_announcement *a) {
    for (int i = 0; i < SN_TUNED_MAX && a->n_adapters < SN_ADAPTERS_MAX; i++)
        if (core->tuned[i].published) a->adapters[a->n_adapters++] = sn_node_tag(core->tuned[i].hash.bytes);
}

static sn_status list_adapters(const sn_core *core, sn_msg_adapters_are *out, sn_err *err) {
    size_t n = 0;
    for (int i = 0; i < SN_TUNED_MAX; i++) n += core->tuned[i].published;
    sn_status status = sn_list_new(n, SN_ADAPTERS_MAX, sizeof *out->adapters, &out->adapters, err);
    for (int i = 0; i < SN_TUNED_MAX && !status; i++) {
        const sn_tuned *t = &core->tuned[i];
        if (!t->published) continue;
        memcpy(out->adapters[out->n_adapters].hash, t->hash.bytes, SN_HASH_SIZE);
        snprintf(out->adapters[out->n_adapters++].name, sizeof out->adapters->name, "%s", t->name);
    }
    return status;
}

void sn_core_on_adapters(sn_core *core, const sn_event *event) {
    sn_err err;
    sn_msg *msg = sn_core_new_msg(SN_MSG_ADAPTERS_ARE, event->msg->request);
    if (!msg) return;
    memcpy(msg->adapters_are.model, core->setup.model.bytes, SN_HASH_SIZE);
    if (list_adapters(core, &msg->adapters_are, &err)) sn_core_refuse(core, event->peer, event->msg, &err);
    else sn_core_send(core, event->peer, &msg);
    sn_msg_free(&msg);
}
