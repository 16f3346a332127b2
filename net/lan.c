/* Nodes of the local network (net/lan.h), over one UDP socket of IPv4. Each datagram is sent over every interface that
 * this machine has at that moment, so that one which comes later counts, too. */
#include "net/lan.h"

#include "base/text.h"
#include "net/dht_record.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PORT = 31329,
    MAGIC_SIZE = 8,
    EAGER_QUESTIONS = 10,
    EAGER_US = 500000,
    REPEAT_US = 15000000,
    INTERFACES_MAX = 16,
};
static const char GROUP[] = "239.255.83.87", QUESTION[MAGIC_SIZE] = "SWARM?L", RECORD[MAGIC_SIZE] = "SWARM!L";
static const uint8_t any_model[SN_KEY_SIZE];

struct sn_lan {
    int fd;
    const sn_identity *identity; /* NULL: it only looks */
    char bound[SN_ADDRESS_MAX + 1];
    int questions;
    int64_t question_us, record_us, recorded_us; /* when they are due; when the newest record was sent */
    bool asked;                                  /* a question came that no record has answered */
    struct {
        uint8_t id[SN_KEY_SIZE];
        char host[SN_ADDRESS_MAX + 1];
    } found[SN_LAN_NODES_MAX];
    size_t n_found;
};

/* IPv4 addresses of this machine's interfaces; the loopback one when there is no other. */
static size_t interfaces(struct in_addr out[INTERFACES_MAX]) {
    struct ifaddrs *all = NULL;
    size_t n = 0;
    if (!getifaddrs(&all))
        for (const struct ifaddrs *i = all; i && n < INTERFACES_MAX; i = i->ifa_next) {
            bool usable = i->ifa_addr && i->ifa_addr->sa_family == AF_INET && i->ifa_flags & IFF_UP;
            if (!usable || i->ifa_flags & IFF_LOOPBACK) continue;
            out[n++] = ((const struct sockaddr_in *)i->ifa_addr)->sin_addr;
        }
    if (all) freeifaddrs(all);
    if (!n) out[n++].s_addr = htonl(INADDR_LOOPBACK);
    return n;
}

static struct sockaddr_in group_address(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, GROUP, &at.sin_addr);
    return at;
}

static void send_to_group(const sn_lan *lan, const void *data, size_t len) {
    const struct sockaddr_in at = group_address();
    struct in_addr own[INTERFACES_MAX];
    size_t n = interfaces(own);
    for (size_t i = 0; i < n; i++) {
        const struct ip_mreq member = {.imr_multiaddr = at.sin_addr, .imr_interface = own[i]};
        setsockopt(lan->fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof member); /* fails where it is one already */
        setsockopt(lan->fd, IPPROTO_IP, IP_MULTICAST_IF, &own[i], sizeof own[i]);
        if (sendto(lan->fd, data, len, 0, (const struct sockaddr *)&at, sizeof at) < 0) continue; /* it comes again */
    }
}

sn_status sn_lan_new(const sn_identity *identity, const char *bound, sn_lan **out, sn_err *err) {
    sn_lan *lan = NULL;
    const struct sockaddr_in at = group_address();
    int one = 1;
    *out = NULL;
    sn_status status = sn_calloc(&lan, 1, sizeof *lan, err);
    if (status) return status;
    lan->identity = bound ? identity : NULL;
    snprintf(lan->bound, sizeof lan->bound, "%s", bound ? bound : "");
    lan->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (lan->fd < 0 || setsockopt(lan->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(lan->fd, (const struct sockaddr *)&at, sizeof at)) {
        status =
            sn_fail(err, SN_RETRY, "the local network cannot be searched (%s): give --join HOST:PORT", strerror(errno));
        sn_lan_free(&lan);
    }
    *out = lan;
    return status;
}

void sn_lan_free(sn_lan **lan) {
    if (*lan && (*lan)->fd >= 0) close((*lan)->fd);
    free(*lan);
    *lan = NULL;
}

int sn_lan_fd(const sn_lan *lan) { return lan->fd; }

static void send_record(sn_lan *lan, int64_t unix_ms) {
    sn_dht_record record = {.expires_unix_ms = (uint64_t)unix_ms + SN_DHT_RECORD_LIFE_MS};
    sn_buf datagram;
    sn_err err;
    memcpy(record.node, lan->identity->id, SN_KEY_SIZE);
    memcpy(record.curve_key, lan->identity->curve_key, SN_KEY_SIZE);
    snprintf(record.address, sizeof record.address, "%s", lan->bound);
    sn_buf_init(&datagram, MAGIC_SIZE + SN_DHT_RECORD_SIZE_MAX);
    if (!sn_buf_append(&datagram, RECORD, MAGIC_SIZE, &err) &&
        !sn_dht_record_seal(&record, lan->identity, &datagram, &err))
        send_to_group(lan, datagram.data, datagram.len);
    sn_buf_fini(&datagram);
}

int64_t sn_lan_tick(sn_lan *lan, int64_t now_us, int64_t unix_ms) {
    if (now_us >= lan->question_us) {
        send_to_group(lan, QUESTION, MAGIC_SIZE);
        lan->question_us = now_us + (++lan->questions < EAGER_QUESTIONS ? EAGER_US : REPEAT_US);
    }
    if (!lan->identity) return lan->question_us;
    int64_t soonest_us = lan->recorded_us + SN_LAN_ANSWER_EVERY_US;
    if (lan->asked && lan->record_us > soonest_us) lan->record_us = soonest_us;
    if (now_us >= lan->record_us) {
        send_record(lan, unix_ms);
        lan->asked = false;
        lan->recorded_us = now_us;
        lan->record_us = now_us + REPEAT_US;
    }
    return lan->record_us < lan->question_us ? lan->record_us : lan->question_us;
}

/* Takes a node that is new; false: it is known, this program itself, or one too many. */
static bool take_node(sn_lan *lan, const sn_dht_record *record, const char *host) {
    size_t of_host = 0;
    if (lan->identity && !memcmp(record->node, lan->identity->id, SN_KEY_SIZE)) return false;
    for (size_t i = 0; i < lan->n_found; i++) {
        if (!memcmp(lan->found[i].id, record->node, SN_KEY_SIZE)) return false;
        of_host += !strcmp(lan->found[i].host, host);
    }
    if (lan->n_found == SN_LAN_NODES_MAX || of_host >= SN_LAN_OF_HOST_MAX) return false;
    memcpy(lan->found[lan->n_found].id, record->node, SN_KEY_SIZE);
    snprintf(lan->found[lan->n_found++].host, SN_ADDRESS_MAX + 1, "%s", host);
    return true;
}

bool sn_lan_receive(sn_lan *lan, int64_t unix_ms, bool *found, char address[SN_ADDRESS_MAX + 1],
                    uint8_t key[SN_KEY_SIZE]) {
    uint8_t data[MAGIC_SIZE + SN_DHT_RECORD_SIZE_MAX + 1];
    struct sockaddr_storage from = {0};
    socklen_t from_len = sizeof from;
    char host[SN_ADDRESS_MAX + 1];
    sn_dht_record record;
    sn_host_port at;
    sn_err err;
    *found = false;
    ssize_t n = recvfrom(lan->fd, data, sizeof data, 0, (struct sockaddr *)&from, &from_len);
    if (n < 0) return false;
    if (n == MAGIC_SIZE && !memcmp(data, QUESTION, MAGIC_SIZE)) lan->asked = true;
    if (n <= MAGIC_SIZE || (size_t)n == sizeof data || memcmp(data, RECORD, MAGIC_SIZE)) return true;
    if (!sn_address_host(&from, host) ||
        sn_dht_record_open(data + MAGIC_SIZE, (size_t)n - MAGIC_SIZE, any_model, unix_ms, &record, &err) ||
        sn_parse_host_port(record.address, SN_HOST_PORT_DIAL, &at, &err) || !take_node(lan, &record, host))
        return true;
    int len = snprintf(address, SN_ADDRESS_MAX + 1, "%s:%d", host, at.port);
    memcpy(key, record.curve_key, SN_KEY_SIZE);
    *found = len > 0 && len <= SN_ADDRESS_MAX;
    return true;
}
