/* A datagram of an introduction. The first byte selects: 0, any bytes to a node, whose answer is no longer than the
 * question; 1, any bytes to a program that has asked; 2, the same with the nonce that it sent and a signature of the
 * node that the datagram names, when that is a fixed one. What is taken was signed. */
#include "net/introduction.c" /* its datagrams without its thread */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good) {
    if (!good) abort();
}

static void on_found(void *ctx) { ++*(int *)ctx; }

static int udp_socket(struct sockaddr_in *at) {
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    require(fd >= 0 && !bind(fd, (struct sockaddr *)at, sizeof *at) && !getsockname(fd, (struct sockaddr *)at, &len));
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sn_identity identity = {.sign_secret = {1}, .curve_secret = {2}};
    static sn_introducer in = {.identity = &identity, .serve_fd = -1, .on_found = on_found, .n_queries = 1};
    static struct sockaddr_in own_at, at;
    static int own = -1;
    uint8_t datagram[DATAGRAM_SIZE + 8] = {0}, answer[2 * DATAGRAM_SIZE];
    int found = 0;
    sn_err err;
    if (!size-- || size > sizeof datagram) return 0;
    if (own < 0) {
        own = udp_socket(&own_at);
        in.serve_fd = in.ask_fd[0] = udp_socket(&at);
        pthread_mutex_init(&in.lock, NULL);
        require(!sn_identity_complete(&identity, &err) &&
                !sn_address_limit_new(ANSWERS_BURST, ANSWERS_PER_S, &in.answers, &err) &&
                !sn_address_limit_new(ALL_ANSWERS_PER_S, ALL_ANSWERS_PER_S, &in.all_answers, &err));
    }
    in.ctx = &found;
    in.queries[0] = (query){.n_numeric = 2, .nonce = {7}};
    snprintf(in.queries[0].numeric[1], SN_ADDRESS_MAX + 1, "127.0.0.1:%d", ntohs(own_at.sin_port));
    memcpy(datagram, data + 1, size);
    if (*data == 2) {
        memcpy(datagram + MAGIC_SIZE, in.queries[0].nonce, NONCE_SIZE);
        require(!sn_sign(&identity, datagram, SIGNED_SIZE, datagram + SIGNED_SIZE, &err));
        size = DATAGRAM_SIZE;
    }
    require(sendto(own, datagram, size, 0, (struct sockaddr *)&at, sizeof at) == (ssize_t)size);
    if (!*data) {
        require(introducer_answer(&in));
        const ssize_t n = recv(own, answer, sizeof answer, 0);
        require(n < 0 || (n <= (ssize_t)size && sn_verify(identity.id, answer, SIGNED_SIZE, answer + SIGNED_SIZE)));
    } else {
        introducer_receive(&in, in.ask_fd[0]);
        require(!found || (size == DATAGRAM_SIZE && in.queries[0].answered && *in.queries[0].numeric[0]));
    }
    return 0;
}
