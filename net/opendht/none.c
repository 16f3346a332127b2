/* net/dht.h in a build without OpenDHT: sn_dht_open refuses. */
#include "net/dht.h"

sn_status sn_dht_open(const char *bootstrap, int port, const uint8_t model[SN_KEY_SIZE], void (*on_found)(void *),
                      void *ctx, sn_dht **out, sn_err *err) {
    (void)bootstrap, (void)port, (void)model, (void)on_found, (void)ctx;
    *out = NULL;
    return sn_fail(
        err, SN_REFUSED,
        "--dht: this build has no OpenDHT; install libopendht-c-dev and build with -DSN_DHT=ON, or use --join");
}
void sn_dht_close(sn_dht **dht) { *dht = NULL; }
int sn_dht_port(const sn_dht *dht) {
    (void)dht;
    return 0;
}
void sn_dht_search(sn_dht *dht) { (void)dht; }
sn_status sn_dht_publish(sn_dht *dht, const sn_identity *identity, const char *address, int64_t now_unix_ms,
                         sn_err *err) {
    (void)dht, (void)identity, (void)address, (void)now_unix_ms;
    return sn_fail(err, SN_REFUSED, "this build has no OpenDHT");
}
bool sn_dht_next(sn_dht *dht, int64_t now_unix_ms, sn_dht_record *record) {
    (void)dht, (void)now_unix_ms, (void)record;
    return false;
}
