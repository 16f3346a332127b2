#include "client/api/api_private.h"

#include <stdlib.h>
#include <string.h>

swarm_code swarm_adapter_open(const swarm_model *model, swarm_connection *connection, const char *name,
                              swarm_adapter **adapter, swarm_error **error) {
    sn_err err;
    swarm_adapter *a = NULL;
    bool published = !strncmp(name, "name:", 5);
    sn_settings settings;
    sn_status status = sn_calloc(&a, 1, sizeof *a, &err);
    if (!status && published && !connection)
        status = sn_fail(&err, SN_REFUSED, "%.100s is an adapter that nodes publish: connect to a swarm", name);
    if (!status && !(a->name = strdup(name))) status = sn_fail(&err, SN_STOP, "out of memory for an adapter");
    if (!status && !published) {
        sn_settings_init(&settings);
        settings.common.adapter = a->name;
        const sn_setup setup = {.settings = &settings};
        status = sn_setup_adapter(&setup, model->model, &a->loaded, &err);
    }
    if (!status) {
        a->model = model;
        *adapter = a;
    } else {
        swarm_adapter_close(a);
    }
    return sn_api_end(status, &err, NULL, error);
}

void swarm_adapter_close(swarm_adapter *a) {
    if (!a) return;
    sn_loaded_adapter_fini(&a->loaded);
    free(a->name);
    free(a);
}
