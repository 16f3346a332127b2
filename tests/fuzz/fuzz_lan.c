/* A datagram of the local network. The first byte selects: 0, any bytes; else the rest is the map of a record, which is
 * signed as that of a fixed node. A node that is found has an address that can be dialled. */
#include "net/lan.c" /* its sockets without a group */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good) {
    if (!good) abort();
}

static size_t make_datagram(const uint8_t *data, size_t size, uint8_t out[MAGIC_SIZE + SN_DHT_RECORD_SIZE_MAX]) {
    sn_identity identity = {.sign_secret = {1}, .curve_secret = {2}};
    sn_err err;
    if (!*data++) {
        memcpy(out, data, size - 1);
        return size - 1;
    }
    require(!sn_identity_complete(&identity, &err));
    memcpy(out, RECORD, MAGIC_SIZE);
    memcpy(out + MAGIC_SIZE, data, size - 1);
    require(!sn_sign(&identity, data, size - 1, out + MAGIC_SIZE + size - 1, &err));
    return MAGIC_SIZE + size - 1 + SN_SIGNATURE_SIZE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { UNIX_MS = 1000000 };
    static int ends[2] = {-1, -1}; /* where datagrams come from, and to */
    static struct sockaddr_in to;
    uint8_t datagram[MAGIC_SIZE + SN_DHT_RECORD_SIZE_MAX], key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    socklen_t len = sizeof to;
    bool found;
    sn_err err;
    if (!size || size > SN_DHT_RECORD_SIZE_MAX - SN_SIGNATURE_SIZE) return 0;
    for (int i = 0; i < 2 && ends[1] < 0; i++) {
        ends[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        to = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        require(ends[i] >= 0 && !bind(ends[i], (struct sockaddr *)&to, sizeof to) &&
                !getsockname(ends[i], (struct sockaddr *)&to, &len));
    }
    sn_lan lan = {.poll = -1, .four = ends[1], .six = -1};
    const size_t sent = make_datagram(data, size, datagram);
    require(sendto(ends[0], datagram, sent, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)sent);
    require(sn_lan_receive(&lan, UNIX_MS, &found, address, key));
    require(!found || (lan.n_found == 1 && !sn_address_check_numeric(address, &err)));
    return 0;
}
