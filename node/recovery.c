#include "node/recovery.h"

#include "base/log.h"

static const int64_t FIRST_PAUSE_US = 5000000, PAUSE_US_MAX = 600000000;

bool sn_recovery_needed(const sn_recovery *r) { return r->n_devices > 0; }

void sn_recovery_add(sn_recovery *r, sn_device_id device) {
    if (r->n_devices < SN_RECOVERY_DEVICES_MAX) r->devices[r->n_devices++] = device;
}

void sn_recovery_pause(sn_recovery *r, int64_t now_us) {
    bool long_ago = now_us - r->paused_us > 2 * PAUSE_US_MAX;
    int64_t longer = 2 * r->pause_us < PAUSE_US_MAX ? 2 * r->pause_us : PAUSE_US_MAX;
    r->pause_us = r->pause_us && !long_ago ? longer : FIRST_PAUSE_US;
    r->paused_us = now_us;
    r->due_us = now_us + r->pause_us;
}

static void *recovery_run(void *arg) {
    sn_recovery *r = arg;
    r->status = SN_OK;
    for (int i = 0; i < r->n_devices && !r->status; i++) r->status = sn_device_try(r->devices[i], &r->options, &r->err);
    atomic_store(&r->done, true);
    r->wake(r->ctx);
    return NULL;
}

static void recovery_start(sn_recovery *r, int64_t now_us) {
    atomic_store(&r->done, false);
    r->trying = !pthread_create(&r->thread, NULL, recovery_run, r);
    if (!r->trying) sn_recovery_pause(r, now_us); /* the system has no thread left */
}

bool sn_recovery_tick(sn_recovery *r, int64_t now_us) {
    char name[32];
    if (!r->trying && r->n_devices && now_us >= r->due_us) recovery_start(r, now_us);
    if (!r->trying || !atomic_load(&r->done)) return false;
    pthread_join(r->thread, NULL);
    r->trying = false;
    if (!r->status) {
        for (int i = 0; i < r->n_devices; i++)
            sn_log(SN_LOG_INFO, "device works again", "device=%s", sn_device_id_name(r->devices[i], name));
        r->due_us = INT64_MAX;
        return true;
    }
    sn_recovery_pause(r, now_us);
    sn_log(SN_LOG_INFO, "device still lost", "next_s=%lld text=%s", (long long)(r->pause_us / 1000000), r->err.text);
    return false;
}

int64_t sn_recovery_due_us(const sn_recovery *r) { return r->n_devices && !r->trying ? r->due_us : INT64_MAX; }

void sn_recovery_end(sn_recovery *r) {
    if (r->trying) pthread_join(r->thread, NULL);
    r->trying = false;
    r->n_devices = 0;
}
