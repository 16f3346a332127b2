/* A wide-area network in one process: it forwards IPv4 between the TUN devices of network namespaces, with delay,
 * jitter, loss, a rate, and cables that can be pulled. Real TCP of the kernel runs over it, so handshakes, windows and
 * retransmissions cost what they cost: what a delay on messages (net/transport/emulated_link.h) does not show. wan.sh
 * makes the namespaces and starts it.
 *
 * Usage: wan_router N FIFO         namespaces wan1 to wanN; machine i is 10.99.0.i at its device wan0
 *
 * It reads commands from the FIFO, one a line:
 *   rtt MS [I]     round trip between all machines; of I: so much more to and from that one
 *   jitter MS      each packet takes up to so much more; the order of two machines' packets stays
 *   loss PERCENT   of all packets
 *   rate MBIT      of each machine, up and down; 0: none
 *   queue KIB      that wait for a rate, then packets are dropped
 *   down I, up I   the cable of machine I is pulled, without a word to anybody, and put back
 *   pcap FILE      writes all packets from here on
 *   count FILE     writes a line for each machine: packets, lost ones, dropped ones, bytes, SYNs, all since the last
 *                  time; behind them how late packets left this process, in us: mean and most
 *
 * A packet waits for the sender's line and for the receiver's, and then takes half a round trip. Packets are stamped
 * when they come in: what this process does takes nothing of the delay, as long as it is not late. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MACHINES_MAX = 32, WAITING_MAX = 1 << 17, READS_AT_ONCE = 64, PACKET_MAX = 65536, COMMAND_MAX = 512 };
enum { IP_PROTOCOL_AT = 9, IP_TARGET_AT = 16, IP_HEAD = 20, TCP = 6, TCP_FLAGS_AT = 13, SYN = 2, ACK = 16 };

typedef struct packet {
    int64_t due_ns;
    uint64_t number;
    int to;
    size_t len;
    uint8_t data[];
} packet;

typedef struct machine {
    int fd;
    bool down;
    int64_t farther_ns;                  /* its own part of a round trip */
    int64_t up_free_ns, down_free_ns;    /* when its line has sent what waits */
    int64_t newest_ns[MACHINES_MAX + 1]; /* when the newest packet to each other one is due */
    unsigned long packets, lost, dropped, bytes, syns;
} machine;

static machine machines[MACHINES_MAX + 1]; /* from 1 */
static int n_machines;
static packet *waiting[WAITING_MAX]; /* a heap */
static int n_waiting;
static uint64_t newest;
static int64_t rtt_ns, jitter_ns, late_ns, latest_ns, n_sent;
static double loss, bytes_per_ns, queue_bytes = 256 << 10;
static FILE *capture;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* -- packets that wait -- */

static bool is_before(const packet *a, const packet *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void add_waiting(packet *p) {
    int i = n_waiting++;
    for (; i && is_before(p, waiting[(i - 1) / 2]); i = (i - 1) / 2) waiting[i] = waiting[(i - 1) / 2];
    waiting[i] = p;
}

static packet *take_waiting(void) {
    packet *first = waiting[0], *last = waiting[--n_waiting];
    int i = 0;
    for (int child; (child = 2 * i + 1) < n_waiting; i = child) {
        if (child + 1 < n_waiting && is_before(waiting[child + 1], waiting[child])) child++;
        if (is_before(last, waiting[child])) break;
        waiting[i] = waiting[child];
    }
    waiting[i] = last;
    return first;
}

static void send_due(int64_t now) {
    while (n_waiting && waiting[0]->due_ns <= now) {
        packet *p = take_waiting();
        const int64_t late = now - p->due_ns;
        late_ns += late;
        n_sent++;
        if (late > latest_ns) latest_ns = late;
        if (!machines[p->to].down && write(machines[p->to].fd, p->data, p->len) < 0) machines[p->to].dropped++;
        free(p);
    }
}

/* -- packets that come -- */

static void record(const uint8_t *data, size_t len) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const uint32_t head[] = {(uint32_t)t.tv_sec, (uint32_t)(t.tv_nsec / 1000), (uint32_t)len, (uint32_t)len};
    if (!capture) return;
    fwrite(head, sizeof head, 1, capture);
    fwrite(data, len, 1, capture);
}

/* When a line that is free at *free_ns has sent the packet; -1: too much waits for it. */
static int64_t through_line(int64_t *free_ns, int64_t now, size_t len) {
    if (bytes_per_ns <= 0) return now;
    const int64_t begin = *free_ns > now ? *free_ns : now;
    if ((double)(begin - now) * bytes_per_ns > queue_bytes) return -1;
    return *free_ns = begin + (int64_t)((double)len / bytes_per_ns);
}

static void count_packet(machine *m, const uint8_t *data, size_t len) {
    const size_t tcp = (size_t)(data[0] & 15) * 4;
    m->packets++;
    m->bytes += len;
    if (data[IP_PROTOCOL_AT] == TCP && len > tcp + TCP_FLAGS_AT && (data[tcp + TCP_FLAGS_AT] & (SYN | ACK)) == SYN)
        m->syns++;
}

static void forward(int from, int to, const uint8_t *data, size_t len) {
    machine *m = &machines[from], *other = &machines[to];
    const int64_t now = now_ns();
    if (m->down || other->down || drand48() < loss) {
        m->lost++;
        return;
    }
    int64_t due = through_line(&m->up_free_ns, now, len);
    if (due >= 0) due = through_line(&other->down_free_ns, due, len);
    packet *p = due < 0 || n_waiting == WAITING_MAX ? NULL : malloc(sizeof *p + len);
    if (!p) {
        m->dropped++;
        return;
    }
    due += (rtt_ns + m->farther_ns + other->farther_ns) / 2 + (int64_t)((double)jitter_ns * drand48());
    if (due < m->newest_ns[to]) due = m->newest_ns[to];
    m->newest_ns[to] = due;
    *p = (packet){due, newest++, to, len};
    memcpy(p->data, data, len);
    add_waiting(p);
}

static void receive(int from) {
    static const uint8_t network[] = {10, 99, 0};
    static uint8_t data[PACKET_MAX];
    for (int i = 0; i < READS_AT_ONCE; i++) {
        const ssize_t len = read(machines[from].fd, data, sizeof data);
        if (len < IP_HEAD) return;
        const int to = data[IP_TARGET_AT + 3];
        if (data[0] >> 4 != 4 || memcmp(data + IP_TARGET_AT, network, sizeof network) != 0 || !to || to > n_machines)
            continue;
        count_packet(&machines[from], data, (size_t)len);
        record(data, (size_t)len);
        forward(from, to, data, (size_t)len);
    }
}

/* -- commands -- */

static void begin_capture(const char *path) {
    const uint32_t head[] = {0xa1b2c3d4, 2 | 4 << 16, 0, 0, PACKET_MAX, 101};
    if (capture) fclose(capture);
    capture = fopen(path, "w");
    if (capture) fwrite(head, sizeof head, 1, capture);
}

static void write_counts(const char *path) {
    char made[COMMAND_MAX + 8];
    snprintf(made, sizeof made, "%s.new", path);
    FILE *f = fopen(made, "w");
    if (!f) return;
    for (int i = 1; i <= n_machines; i++) {
        machine *m = &machines[i];
        fprintf(f, "%lu %lu %lu %lu %lu\n", m->packets, m->lost, m->dropped, m->bytes, m->syns);
        m->packets = m->lost = m->dropped = m->bytes = m->syns = 0;
    }
    fprintf(f, "%lld %lld\n", (long long)(n_sent ? late_ns / n_sent / 1000 : 0), (long long)latest_ns / 1000);
    late_ns = latest_ns = n_sent = 0;
    if (!fclose(f) && rename(made, path)) perror(path);
    if (capture) fflush(capture);
}

static void obey(const char *line) {
    char word[16], what[COMMAND_MAX] = "";
    int of = 0;
    if (sscanf(line, "%15s %511s %d", word, what, &of) < 1) return;
    const double x = strtod(what, NULL); /* a path: 0 */
    if (!(x >= 0 && x < 1e6)) return;
    machine *m = x >= 1 && x <= n_machines ? &machines[(int)x] : NULL;
    if (!strcmp(word, "rtt") && of >= 1 && of <= n_machines)
        machines[of].farther_ns = (int64_t)(x * 1e6);
    else if (!strcmp(word, "rtt"))
        rtt_ns = (int64_t)(x * 1e6);
    else if (!strcmp(word, "jitter"))
        jitter_ns = (int64_t)(x * 1e6);
    else if (!strcmp(word, "loss"))
        loss = x / 100;
    else if (!strcmp(word, "rate"))
        bytes_per_ns = x / 8e3;
    else if (!strcmp(word, "queue"))
        queue_bytes = x * 1024;
    else if (m && (!strcmp(word, "down") || !strcmp(word, "up")))
        m->down = *word == 'd';
    else if (!strcmp(word, "pcap"))
        begin_capture(what);
    else if (!strcmp(word, "count"))
        write_counts(what);
    else
        fprintf(stderr, "no such command: %s\n", line);
}

/* Reads what has come and obeys each whole line. */
static void read_commands(int fd) {
    static char text[4 * COMMAND_MAX];
    static size_t n;
    const ssize_t got = read(fd, text + n, sizeof text - 1 - n);
    if (got <= 0) return;
    n += (size_t)got;
    text[n] = 0;
    char *line = text;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        obey(line);
    }
    n -= (size_t)(line - text);
    memmove(text, line, n);
    if (n == sizeof text - 1) n = 0;
}

/* -- the devices -- */

static int open_device(int i) {
    char path[64];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/wan%d", i);
    snprintf(request.ifr_name, sizeof request.ifr_name, "wan0");
    const int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), there = open(path, O_RDONLY | O_CLOEXEC);
    if (here < 0 || there < 0 || setns(there, CLONE_NEWNET)) die(path);
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) die("/dev/net/tun");
    if (setns(here, CLONE_NEWNET)) die("setns");
    close(here);
    close(there);
    return fd;
}

static void run(struct pollfd *fds) {
    for (;;) {
        int64_t left = n_waiting ? waiting[0]->due_ns - now_ns() : INT64_C(1000000000);
        if (left < 0) left = 0;
        const struct timespec wait = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        const int ready = ppoll(fds, (nfds_t)n_machines + 1, &wait, NULL);
        if (ready < 0 && errno != EINTR) die("ppoll");
        for (int i = 1; i <= n_machines && ready > 0; i++)
            if (fds[i].revents) receive(i);
        if (ready > 0 && fds[0].revents) read_commands(fds[0].fd);
        send_due(now_ns());
    }
}

int main(int argc, char **argv) {
    struct pollfd fds[MACHINES_MAX + 1];
    char *end = NULL;
    n_machines = argc == 3 ? (int)strtol(argv[1], &end, 10) : 0;
    if (!end || *end || n_machines < 1 || n_machines > MACHINES_MAX) {
        fprintf(stderr, "usage: wan_router N FIFO, with N of 1 to %d\n", MACHINES_MAX);
        return 2;
    }
    fds[0] = (struct pollfd){.fd = open(argv[2], O_RDWR | O_NONBLOCK | O_CLOEXEC), .events = POLLIN};
    if (fds[0].fd < 0) die(argv[2]);
    for (int i = 1; i <= n_machines; i++)
        fds[i] = (struct pollfd){.fd = machines[i].fd = open_device(i), .events = POLLIN};
    puts("ready");
    fflush(stdout);
    run(fds);
}
