/* net/router/port_mapping.h in a build without libminiupnpc and libnatpmp: routers are not asked. */
#include "net/router/port_mapping.h"

sn_status sn_port_mapping_new(int port, const char *own, void (*wake)(void *), void *ctx, sn_port_mapping **out,
                              sn_err *err) {
    (void)port, (void)own, (void)wake, (void)ctx, (void)err;
    *out = NULL;
    return SN_OK;
}
void sn_port_mapping_free(sn_port_mapping **mapping) { *mapping = NULL; }
void sn_port_mapping_move(sn_port_mapping *mapping, const char *own) { (void)mapping, (void)own; }
bool sn_port_mapping_read(sn_port_mapping *mapping, char address[SN_ADDRESS_MAX + 1]) {
    (void)mapping, (void)address;
    return false;
}
