/* UPnP-IGD through libminiupnpc. A router that takes no lease is asked for a port without end, which is closed at the
 * end of the mapping. */
#include "base/log.h"
#include "net/router/router_private.h"

#include <miniupnpc/miniupnpc.h>
#include <miniupnpc/upnpcommands.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    DISCOVER_MS = 2000, /* for routers to answer UPnP's question */
    PORTS_TRIED = 4,    /* outside, when another machine of the home has the port */
    ONLY_PERMANENT_LEASES = 725,
};
static const char DESCRIPTION[] = "swarm-node";

typedef struct gateway {
    struct UPNPUrls urls;
    struct IGDdatas igd;
    char lan[64]; /* this machine's address there */
} gateway;

static void gateway_free(sn_router_port *port) {
    gateway *g = port->state;
    if (g) FreeUPNPUrls(&g->urls);
    free(g);
    port->state = NULL;
}

static bool gateway_find(sn_router_port *port) {
    enum { CONNECTED = 1 };
    int error = 0;
    gateway *g = calloc(1, sizeof *g);
    if (!g) return false;
    struct UPNPDev *found = upnpDiscover(DISCOVER_MS, NULL, NULL, 0, 0, 2, &error);
#if MINIUPNPC_API_VERSION >= 18
    int kind = UPNP_GetValidIGD(found, &g->urls, &g->igd, g->lan, sizeof g->lan, NULL, 0);
#else
    int kind = UPNP_GetValidIGD(found, &g->urls, &g->igd, g->lan, sizeof g->lan);
#endif
    freeUPNPDevlist(found);
    port->state = g;
    if (kind != CONNECTED) gateway_free(port);
    return port->state != NULL;
}

static int ask_for(const sn_router_port *port, int outside, const char *protocol) {
    const gateway *g = port->state;
    char in[8], out[8], lease[12];
    snprintf(in, sizeof in, "%d", port->inside);
    snprintf(out, sizeof out, "%d", outside);
    snprintf(lease, sizeof lease, "%d", port->only_permanent ? 0 : SN_ROUTER_LEASE_S);
    return UPNP_AddPortMapping(g->urls.controlURL, g->igd.first.servicetype, out, in, g->lan, DESCRIPTION, protocol,
                               NULL, lease);
}

static bool open_outside(sn_router_port *port, int outside, const char *protocol) {
    int error = ask_for(port, outside, protocol);
    if (error == ONLY_PERMANENT_LEASES && !port->only_permanent) {
        port->only_permanent = true;
        error = ask_for(port, outside, protocol);
    }
    return !error;
}

static void close_outside(const sn_router_port *port, const char *protocol) {
    const gateway *g = port->state;
    char out[8];
    snprintf(out, sizeof out, "%d", port->outside);
    UPNP_DeletePortMapping(g->urls.controlURL, g->igd.first.servicetype, out, protocol, NULL);
}

static bool upnp_open_ports(sn_router_port *port) {
    bool opened = false;
    for (int i = 0; i < PORTS_TRIED && !opened; i++) {
        int next = port->inside + 1009 * i, outside = port->outside  ? port->outside
                                                      : next > 65535 ? port->inside - 1009 * i
                                                                     : next;
        opened = open_outside(port, outside, "TCP");
        if (opened) port->outside = outside;
    }
    if (!opened) return false;
    if (!open_outside(port, port->outside, "UDP"))
        sn_log(SN_LOG_DEBUG, "router", "text=it opened the TCP port and not the UDP port");
    const gateway *g = port->state;
    char host[40] = "";
    if (UPNP_GetExternalIPAddress(g->urls.controlURL, g->igd.first.servicetype, host)) return false;
    snprintf(port->host, sizeof port->host, "%s", host);
    port->seconds = port->only_permanent ? 0 : SN_ROUTER_LEASE_S;
    return *host;
}

static void upnp_close(sn_router_port *port) {
    if (!port->state) return;
    close_outside(port, "TCP");
    close_outside(port, "UDP");
    gateway_free(port);
}

static bool upnp_open(sn_router_port *port) {
    if (!port->state && !gateway_find(port)) return false;
    bool opened = upnp_open_ports(port);
    if (!opened) gateway_free(port);
    return opened;
}

const sn_router_way sn_router_upnp = {.name = "upnp", .four = true, .open = upnp_open, .close = upnp_close};
