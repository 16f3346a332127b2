#include "blocks/ties.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* One parameter on one device, as long as it has holders. */
typedef struct parameter {
    uint64_t group;
    sn_device *device;
    sn_device_id id;
    void *memory;
    size_t bytes;
    uint64_t *holders; /* [n_holders], each a number that is used once */
    size_t n_holders, capacity;
} parameter;

struct sn_ties {
    parameter *all;
    size_t n, capacity;
    uint64_t last_holder;
};

sn_status sn_ties_new(sn_ties **out, sn_err *err) { return sn_calloc(out, 1, sizeof **out, err); }

static void parameter_fini(parameter *p) {
    if (p->memory) p->device->ops->free(p->device, p->memory, p->bytes);
    free(p->holders);
    *p = (parameter){0};
}

void sn_ties_free(sn_ties **ties) {
    if (!*ties) return;
    for (size_t i = 0; i < (*ties)->n; i++) parameter_fini(&(*ties)->all[i]);
    free((*ties)->all);
    free(*ties);
    *ties = NULL;
}

static parameter *ties_find(const sn_ties *ties, uint64_t group, sn_device_id id) {
    for (size_t i = 0; i < ties->n; i++)
        if (ties->all[i].group == group && sn_device_id_equal(ties->all[i].id, id)) return &ties->all[i];
    return NULL;
}

/* Loads the parameter for its first holder. After a failure the device's memory is as it was. */
static sn_status parameter_load(parameter *p, sn_tie_load load, void *ctx, sn_err *err) {
    sn_status status = sn_grow(&p->holders, &p->capacity, 1, sizeof *p->holders, err);
    if (!status) status = p->device->ops->alloc(p->device, p->bytes, &p->memory, err);
    if (!status) status = load(ctx, p->device, p->memory, err);
    if (status) parameter_fini(p);
    return status;
}

sn_status sn_ties_acquire(sn_ties *ties, uint64_t group, sn_device *device, size_t bytes, sn_tie_load load, void *ctx,
                          sn_tie *out, sn_err *err) {
    *out = (sn_tie){0};
    parameter *p = ties_find(ties, group, device->id);
    if (p && p->bytes != bytes)
        return sn_fail(err, SN_REFUSED, "shared weight %016llx has %zu bytes and cannot be taken as %zu",
                       (unsigned long long)group, p->bytes, bytes);
    sn_status status = p ? sn_grow(&p->holders, &p->capacity, p->n_holders + 1, sizeof *p->holders, err)
                         : sn_grow(&ties->all, &ties->capacity, ties->n + 1, sizeof *ties->all, err);
    if (status) return status;
    if (!p) {
        parameter first = {.group = group, .device = device, .id = device->id, .bytes = bytes};
        status = parameter_load(&first, load, ctx, err);
        if (status) return status;
        p = &ties->all[ties->n++];
        *p = first;
    }
    p->holders[p->n_holders++] = ++ties->last_holder;
    *out = (sn_tie){group, ties->last_holder, p->id, p->memory};
    return SN_OK;
}

void sn_ties_release(sn_ties *ties, sn_tie *tie) {
    parameter *p = tie->holder ? ties_find(ties, tie->group, tie->device) : NULL;
    size_t at = 0;
    while (p && at < p->n_holders && p->holders[at] != tie->holder) at++;
    *tie = (sn_tie){0};
    if (!p || at == p->n_holders) return;
    p->holders[at] = p->holders[--p->n_holders];
    if (p->n_holders) return;
    parameter_fini(p);
    *p = ties->all[--ties->n];
}

int sn_ties_holders(const sn_ties *ties, uint64_t group, sn_device_id device) {
    const parameter *p = ties_find(ties, group, device);
    return p ? (int)p->n_holders : 0;
}

size_t sn_ties_bytes(const sn_ties *ties, sn_device_id device) {
    size_t bytes = 0;
    for (size_t i = 0; i < ties->n; i++)
        if (sn_device_id_equal(ties->all[i].id, device)) bytes += ties->all[i].bytes;
    return bytes;
}
