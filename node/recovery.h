/* Recovery: when a device that was lost is tried again, and whether it works.
 *
 * sn_recovery waits for a pause, tries the devices on a thread of its own (sn_device_try; a try may last as long as the
 * device's timeout), and waits for twice as long after each try that fails: from 5 s on, up to 10 minutes. A device
 * that is lost again soon after it came back is waited for longer, too. Zeroed: nothing is lost. All functions are
 * called on the network thread. */
#ifndef SN_NODE_RECOVERY_H
#define SN_NODE_RECOVERY_H

#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SN_RECOVERY_DEVICES_MAX = 16 };

typedef struct sn_recovery {
    sn_device_id devices[SN_RECOVERY_DEVICES_MAX]; /* those that are lost */
    int n_devices;
    int64_t pause_us, paused_us, due_us; /* the newest pause: its length, begin and end */
    sn_device_options options;
    void (*wake)(void *); /* called on the recovery's thread when a try has ended */
    void *ctx;
    pthread_t thread;
    bool trying;
    atomic_bool done;
    sn_status status;
    sn_err err;
} sn_recovery;

bool sn_recovery_needed(const sn_recovery *recovery); /* a device is lost */
/* One more device is lost; sn_recovery_pause follows. */
void sn_recovery_add(sn_recovery *recovery, sn_device_id device);
/* Begins a pause: a device was added, or blocks could not be loaded on the devices although they seemed to work. */
void sn_recovery_pause(sn_recovery *recovery, int64_t now_us);
/* Tries the devices when that is due. True, once: all of them work. sn_recovery_end or sn_recovery_pause follows. */
bool sn_recovery_tick(sn_recovery *recovery, int64_t now_us);
int64_t sn_recovery_due_us(const sn_recovery *recovery); /* when to call sn_recovery_tick again; INT64_MAX: never */
/* Nothing is lost any more. Waits for the end of a try. */
void sn_recovery_end(sn_recovery *recovery);

#endif
