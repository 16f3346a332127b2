/* Nodes of the local network (net/lan.h), over a UDP socket of IPv4 and one of IPv6. Each datagram is sent over every
 * interface that this machine has at that moment, so that one which comes later counts, too. A record is sent over the
 * families at which the node listens, since its host is taken from the datagram. */
#include "net/lan.h"

#include "base/parse.h"
#include "net/dht_record.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
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
/* Of the site, as each other: what is sent there has an address that is more than one of the link. */
static const char GROUP[] = "239.255.83.87", GROUP_OF_SIX[] = "ff15::5357";
static const char QUESTION[MAGIC_SIZE] = "SWARM?L", RECORD[MAGIC_SIZE] = "SWARM!L";
static const uint8_t any_model[SN_KEY_SIZE];

struct sn_lan {
    int poll, four, six;         /* poll: watches both sockets, of which one may be -1 */
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

/* An address of this machine's own, by which a datagram is sent to the group. */
typedef struct interface {
    struct in_addr four;
    int index; /* of IPv6 */
} interface;

/* This machine's interfaces with an address of the family that others of the network could dial; for IPv4 the loopback
 * one when there is no other. */
static size_t interfaces(int family, interface out[INTERFACES_MAX]) {
    struct ifaddrs *all = NULL;
    size_t n = 0;
    if (!getifaddrs(&all))
        for (const struct ifaddrs *i = all; i && n < INTERFACES_MAX; i = i->ifa_next) {
            bool usable = i->ifa_addr && i->ifa_addr->sa_family == family && i->ifa_flags & IFF_UP;
            if (!usable || i->ifa_flags & IFF_LOOPBACK) continue;
            int index = (int)if_nametoindex(i->ifa_name);
            if (family == AF_INET)
                out[n++].four = ((const struct sockaddr_in *)i->ifa_addr)->sin_addr;
            else if (!IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr) &&
                     (!n || out[n - 1].index != index))
                out[n++].index = index;
        }
    if (all) freeifaddrs(all);
    if (!n && family == AF_INET) out[n++].four.s_addr = htonl(INADDR_LOOPBACK);
    return n;
}

static struct sockaddr_in group_of_four(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, GROUP, &at.sin_addr);
    return at;
}

static struct sockaddr_in6 group_of_six(void) {
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(PORT)};
    inet_pton(AF_INET6, GROUP_OF_SIX, &at.sin6_addr);
    return at;
}

/* In both functions a membership cannot be added where there is one already, and what is not sent is sent again. */
static void send_to_four(const sn_lan *lan, const void *data, size_t len) {
    const struct sockaddr_in at = group_of_four();
    interface own[INTERFACES_MAX] = {0};
    size_t n = interfaces(AF_INET, own);
    for (size_t i = 0; i < n; i++) {
        const struct ip_mreq member = {.imr_multiaddr = at.sin_addr, .imr_interface = own[i].four};
        setsockopt(lan->four, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof member);
        setsockopt(lan->four, IPPROTO_IP, IP_MULTICAST_IF, &own[i].four, sizeof own[i].four);
        (void)!sendto(lan->four, data, len, 0, (const struct sockaddr *)&at, sizeof at);
    }
}

static void send_to_six(const sn_lan *lan, const void *data, size_t len) {
    const struct sockaddr_in6 at = group_of_six();
    interface own[INTERFACES_MAX] = {0};
    size_t n = interfaces(AF_INET6, own);
    for (size_t i = 0; i < n; i++) {
        const struct ipv6_mreq member = {.ipv6mr_multiaddr = at.sin6_addr, .ipv6mr_interface = (unsigned)own[i].index};
        setsockopt(lan->six, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &member, sizeof member);
        setsockopt(lan->six, IPPROTO_IPV6, IPV6_MULTICAST_IF, &own[i].index, sizeof own[i].index);
        (void)!sendto(lan->six, data, len, 0, (const struct sockaddr *)&at, sizeof at);
    }
}

/* A socket that is bound to the group, and that `poll` watches; -1: there is none. */
static int open_socket(int poll, const struct sockaddr *at, socklen_t len) {
    int one = 1, fd = socket(at->sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct epoll_event readable = {.events = EPOLLIN};
    if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) && !bind(fd, at, len) &&
        !epoll_ctl(poll, EPOLL_CTL_ADD, fd, &readable))
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

sn_status sn_lan_new(const sn_identity *identity, const char *bound, sn_lan **out, sn_err *err) {
    sn_lan *lan = NULL;
    const struct sockaddr_in four = group_of_four();
    const struct sockaddr_in6 six = group_of_six();
    *out = NULL;
    sn_status status = sn_calloc(&lan, 1, sizeof *lan, err);
    if (status) return status;
    lan->identity = bound ? identity : NULL;
    snprintf(lan->bound, sizeof lan->bound, "%s", bound ? bound : "");
    lan->poll = epoll_create1(EPOLL_CLOEXEC);
    lan->four = open_socket(lan->poll, (const struct sockaddr *)&four, sizeof four);
    lan->six = open_socket(lan->poll, (const struct sockaddr *)&six, sizeof six);
    if (lan->four < 0 && lan->six < 0) {
        status =
            sn_fail(err, SN_RETRY, "the local network cannot be searched (%s): give --join HOST:PORT", strerror(errno));
        sn_lan_free(&lan);
    }
    *out = lan;
    return status;
}

void sn_lan_free(sn_lan **lan) {
    const sn_lan *l = *lan;
    if (!l) return;
    const int fds[] = {l->four, l->six, l->poll};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    free(*lan);
    *lan = NULL;
}

int sn_lan_fd(const sn_lan *lan) { return lan->poll; }

static void send_record(sn_lan *lan, int64_t unix_ms) {
    sn_dht_record record = {.expires_unix_ms = (uint64_t)unix_ms + SN_DHT_RECORD_LIFE_MS};
    sn_buf datagram;
    sn_err err;
    memcpy(record.node, lan->identity->id, SN_KEY_SIZE);
    memcpy(record.curve_key, lan->identity->curve_key, SN_KEY_SIZE);
    snprintf(record.address, sizeof record.address, "%s", lan->bound);
    sn_buf_init(&datagram, MAGIC_SIZE + SN_DHT_RECORD_SIZE_MAX);
    if (!sn_buf_append(&datagram, RECORD, MAGIC_SIZE, &err) &&
        !sn_dht_record_seal(&record, lan->identity, &datagram, &err)) {
        bool everywhere = !strncmp(lan->bound, "[::]:", 5), six = *lan->bound == '[';
        if (everywhere || !six) send_to_four(lan, datagram.data, datagram.len);
        if (six) send_to_six(lan, datagram.data, datagram.len);
    }
    sn_buf_fini(&datagram);
}

int64_t sn_lan_tick(sn_lan *lan, int64_t now_us, int64_t unix_ms) {
    if (now_us >= lan->question_us) {
        send_to_four(lan, QUESTION, MAGIC_SIZE);
        send_to_six(lan, QUESTION, MAGIC_SIZE);
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
    ssize_t n = recvfrom(lan->four, data, sizeof data, 0, (struct sockaddr *)&from, &from_len);
    if (n < 0) n = recvfrom(lan->six, data, sizeof data, 0, (struct sockaddr *)&from, &from_len);
    if (n < 0) return false;
    if (from.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)&from)->sin6_addr))
        return true; /* others could not dial that */
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
