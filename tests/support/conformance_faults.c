/* Devices that fail: no memory, no reply, lost. Needs a backend whose driver a test can make fail. */
#include "tests/support/conformance.h"

#include "base/clock.h"

#include <string.h>

enum { N = 1000 };

static bool no_faults(conformance *c) {
    c->skipped = !c->faults;
    return c->skipped;
}

static void check_names_device(conformance *c) {
    char name[32];
    sn_device_id_name(c->id, name);
    CONFORMANCE_CHECK(c, strstr(c->err.text, name), "\"%s\" does not name %s", c->err.text, name);
}

void conformance_a_failed_allocation_is_an_error(conformance *c) {
    if (no_faults(c)) return;
    sn_device *d = c->device;
    void *at = d;
    c->faults->fail_allocation(1);
    CONFORMANCE_CHECK(c, d->ops->alloc(d, 1 << 20, &at, &c->err) == SN_STOP && !at, "the failure was not told");
    check_names_device(c);
    c->faults->fail_allocation(1);
    at = d;
    CONFORMANCE_CHECK(c, d->ops->host_alloc(d, 1 << 20, &at, &c->err) == SN_STOP && !at, "the failure was not told");
    check_names_device(c);
    float *x = conformance_bytes(c, N * sizeof *x); /* the device still works after it was out of memory once */
    CONFORMANCE_OK(c, d->ops->add(d, N, x, x, &c->err));
    CONFORMANCE_OK(c, d->ops->finish(d, &c->err));
}

void conformance_opening_survives_any_allocation_that_fails(conformance *c) {
    if (no_faults(c)) return;
    int failed = 0;
    for (int nth = 1; nth <= 20; nth++) {
        sn_device *d = NULL;
        sn_device_limits limits = {.rows = 64, .width = 4096, .context = 4096};
        size_t before = c->memory_used ? c->memory_used() : 0;
        c->faults->fail_allocation(nth);
        sn_status status = sn_device_open(c->id, &c->options, &d, &c->err);
        CONFORMANCE_CHECK(c, !status == !!d, "status %d, but the device is %p", status, (void *)d);
        if (!status) status = d->ops->prepare(d, &limits, &c->err);
        CONFORMANCE_CHECK(c, status == SN_OK || status == SN_STOP, "allocation %d: status %d", nth, status);
        if (status) check_names_device(c);
        failed += status == SN_STOP;
        sn_device_close(&d);
        c->faults->heal();
        size_t after = c->memory_used ? c->memory_used() : 0;
        CONFORMANCE_CHECK(c, before == after, "allocation %d: %zu bytes were in use before, %zu are after", nth, before,
                          after);
    }
    CONFORMANCE_CHECK(c, failed > 0 || c->id.kind == SN_DEVICE_CPU, "no allocation failed");
}

/* The device hangs until heal is called. A call that need not wait for the device takes less than SOON, however slow
 * the machine is. */
enum { LIMIT_MS = 100, STALL_MS = 60000, SOON_US = 30000000 };

/* Every call of a device that stopped fails at once with the sentence with which it stopped. */
static void check_stays_stopped(conformance *c, float *device, void *pinned) {
    sn_device *d = c->device;
    char first[sizeof c->err.text], byte = 0;
    void *at;
    sn_fence ticket = 0;
    memcpy(first, c->err.text, sizeof first);
    check_names_device(c);
    d->timeout_ms = STALL_MS;
    int64_t begin = sn_now_us();
    for (int i = 0; i < 9; i++) {
        memset(&c->err, 0, sizeof c->err);
        sn_status status = i == 0   ? d->ops->add(d, N, device, device, &c->err)
                           : i == 1 ? d->ops->finish(d, &c->err)
                           : i == 2 ? d->ops->upload(d, device, &byte, 1, &c->err)
                           : i == 3 ? d->ops->download(d, &byte, device, 1, &c->err)
                           : i == 4 ? d->ops->alloc(d, 64, &at, &c->err)
                           : i == 5 ? d->ops->copy_begin(d, device, pinned, 64, &ticket, &c->err)
                           : i == 6 ? d->ops->rms_norm(d, 1, N, device, device, 1, device, &c->err)
                           : i == 7 ? d->ops->host_alloc(d, 64, &at, &c->err)
                                    : d->ops->copy_join(d, ticket, &c->err);
        CONFORMANCE_CHECK(c, status == SN_STOP && !strcmp(first, c->err.text),
                          "call %d after the device stopped: status %d, \"%s\", not \"%s\"", i, status, c->err.text,
                          first);
    }
    CONFORMANCE_CHECK(c, sn_now_us() - begin < SOON_US, "nine calls that must fail at once took %lld us",
                      (long long)(sn_now_us() - begin));
}

void conformance_a_device_that_does_not_answer_is_abandoned(conformance *c) {
    if (no_faults(c)) return;
    sn_device *d = c->device;
    float *x = conformance_bytes(c, N * sizeof *x), *pinned = conformance_pinned(c, N * sizeof *x);
    CONFORMANCE_OK(c, d->ops->finish(d, &c->err));
    d->timeout_ms = LIMIT_MS;
    c->faults->stall(STALL_MS);
    int64_t begin = sn_now_us();
    CONFORMANCE_OK(c, d->ops->add(d, N, x, x, &c->err));
    CONFORMANCE_CHECK(c, d->ops->finish(d, &c->err) == SN_STOP, "finish went well on a device that hangs");
    int64_t took = sn_now_us() - begin;
    CONFORMANCE_CHECK(c, took >= LIMIT_MS * 1000 && took < SOON_US, "a wait of at most %d ms took %lld us", LIMIT_MS,
                      (long long)took);
    check_stays_stopped(c, x, pinned);
    c->faults->heal(); /* closing waits for the device, and frees everything */
}

void conformance_a_copy_that_hangs_is_abandoned(conformance *c) {
    if (no_faults(c)) return;
    sn_device *d = c->device;
    float *x = conformance_bytes(c, N * sizeof *x), *pinned = conformance_pinned(c, N * sizeof *x);
    sn_fence ticket;
    CONFORMANCE_OK(c, d->ops->finish(d, &c->err));
    d->timeout_ms = LIMIT_MS;
    c->faults->stall(STALL_MS);
    int64_t begin = sn_now_us();
    CONFORMANCE_OK(c, d->ops->copy_begin(d, x, pinned, N * sizeof *x, &ticket, &c->err));
    CONFORMANCE_OK(c, d->ops->copy_join(d, ticket, &c->err)); /* copy_join does not wait on the host */
    CONFORMANCE_OK(c, d->ops->add(d, N, x, x, &c->err));
    CONFORMANCE_CHECK(c, d->ops->finish(d, &c->err) == SN_STOP, "finish went well on a copy that hangs");
    CONFORMANCE_CHECK(c, sn_now_us() - begin < SOON_US, "queueing waited for the copy, or the wait took too long");
    check_stays_stopped(c, x, pinned);
    c->faults->heal(); /* closing waits for the device, and frees everything */
}

void conformance_a_lost_device_stays_an_error(conformance *c) {
    if (no_faults(c)) return;
    sn_device *d = c->device;
    float *x = conformance_bytes(c, N * sizeof *x), *pinned = conformance_pinned(c, N * sizeof *x);
    CONFORMANCE_OK(c, d->ops->finish(d, &c->err));
    c->faults->lose(3);
    sn_status status = SN_OK;
    for (int i = 0; i < 10 && !status; i++) {
        status = d->ops->add(d, N, x, x, &c->err);
        if (!status && i > 2) status = d->ops->finish(d, &c->err);
    }
    CONFORMANCE_CHECK(c, status == SN_STOP, "ten operations on a lost device went well");
    check_stays_stopped(c, x, pinned);
}
