/* Emulated links: the exact time at which messages are delivered, with a clock and an inner transport controlled by
 * the test. */
#include "net/transport/emulated_link.h"

#include <criterion/criterion.h>
#include <string.h>

/* -- the inner transport: a list of arrivals */

typedef struct arrival {
    int64_t at_us;
    sn_peer peer;
    uint64_t floats; /* of the tensor; 0: the report that the peer was lost */
} arrival;

static int64_t clock_us;
static int64_t read_clock(void) { return clock_us; }

typedef struct inner_transport {
    sn_transport base;
    const arrival *arrivals;
    size_t n, next;
    sn_peer hung_up;
    int woken;
} inner_transport;

static sn_msg *new_message(uint64_t floats) {
    sn_err err = {0};
    sn_msg *msg;
    void *data;
    cr_assert_eq(sn_msg_new(SN_MSG_STEP_REPLY, 1, &msg, &err), SN_OK);
    cr_assert_eq(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, floats}, &data, &err), SN_OK);
    memset(data, 0, floats * sizeof(float));
    return msg;
}

/* Time passes in this function only. */
static sn_status inner_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    (void)err;
    inner_transport *in = (inner_transport *)t;
    *out = (sn_event){0};
    int64_t until = deadline_us > clock_us ? deadline_us : clock_us;
    if (in->woken) {
        in->woken--;
        return SN_OK;
    }
    if (in->next == in->n || in->arrivals[in->next].at_us > until) {
        clock_us = until;
        return SN_OK;
    }
    const arrival *a = &in->arrivals[in->next++];
    if (a->at_us > clock_us) clock_us = a->at_us;
    *out = (sn_event){.peer = a->peer, .lost = !a->floats, .arrived_us = clock_us};
    if (a->floats) out->msg = new_message(a->floats);
    return SN_OK;
}
static void inner_hang_up(sn_transport *t, sn_peer peer) { ((inner_transport *)t)->hung_up = peer; }
static void inner_wake(sn_transport *t) { ((inner_transport *)t)->woken++; }
static void inner_free(sn_transport *t) { (void)t; }
static const sn_transport_ops inner_ops = {
    .recv = inner_recv, .hang_up = inner_hang_up, .wake = inner_wake, .free = inner_free};

static inner_transport in;
static sn_transport *link;

static void link_begin(const char *description, const arrival *arrivals, size_t n) {
    sn_err err = {0};
    sn_emulated_link shape;
    cr_assert_eq(sn_emulated_link_parse(description, &shape, &err), SN_OK, "%s", err.text);
    in = (inner_transport){.base.ops = &inner_ops, .arrivals = arrivals, .n = n};
    clock_us = 1000000;
    sn_transport *inside = &in.base;
    cr_assert_eq(sn_transport_emulated_new(&inside, &shape, read_clock, &link, &err), SN_OK);
    cr_assert_null(inside);
}

static void link_end(void) { sn_transport_free(&link); }
TestSuite(emulated_link, .fini = link_end);

static uint64_t floats_seen; /* in the newest message */

/* Receives the next event until `deadline_us`, and frees its message. */
static sn_event next_event(int64_t deadline_us) {
    sn_err err = {0};
    sn_event event;
    cr_assert_eq(sn_transport_recv(link, deadline_us, &event, &err), SN_OK);
    floats_seen = event.msg ? event.msg->tensor.shape[1] : 0;
    sn_msg_free(&event.msg);
    return event;
}

static void expect_arrival(sn_peer peer, int64_t at_us) {
    sn_event event = next_event(clock_us + 100000000);
    cr_assert_eq(event.peer, peer);
    cr_assert_eq(clock_us, at_us, "arrived at %lld, not at %lld", (long long)clock_us, (long long)at_us);
    cr_assert_eq(event.arrived_us, at_us);
}

static int64_t bytes_of(uint64_t floats) {
    sn_err err = {0};
    sn_msg *msg = new_message(floats);
    sn_buf frame;
    sn_buf_init(&frame, 1 << 20);
    cr_assert_eq(sn_msg_encode(msg, &frame, &err), SN_OK);
    int64_t bytes = (int64_t)frame.len + 4 * (int64_t)floats;
    sn_buf_fini(&frame);
    sn_msg_free(&msg);
    return bytes;
}

/* -- times */

Test(emulated_link, delay_is_transmission_time_plus_half_the_rtt) {
    link_begin("8mbit,100ms", (arrival[]){{2000000, 1, 576}}, 1);
    expect_arrival(1, 2000000 + bytes_of(576) + 50000); /* 8 Mbit/s: a byte per microsecond */
}

Test(emulated_link, messages_queue_for_each_peer_separately) {
    int64_t a = bytes_of(1000), b = bytes_of(10);
    link_begin("8mbit,2ms", (arrival[]){{2000000, 1, 1000}, {2000001, 1, 1000}, {2000002, 2, 10}, {2000003, 1, 10}}, 4);
    expect_arrival(2, 2000002 + b + 1000);
    expect_arrival(1, 2000000 + a + 1000);
    expect_arrival(1, 2000000 + 2 * a + 1000);
    expect_arrival(1, 2000000 + 2 * a + b + 1000);
}

Test(emulated_link, an_idle_link_saves_no_bandwidth_up) {
    link_begin("8mbit,0ms", (arrival[]){{2000000, 1, 100}, {9000000, 1, 100}, {9000000, 1, 100}}, 3);
    expect_arrival(1, 2000000 + bytes_of(100));
    expect_arrival(1, 9000000 + bytes_of(100));
    expect_arrival(1, 9000000 + 2 * bytes_of(100));
}

Test(emulated_link, jitter_is_bounded_repeatable_and_keeps_the_order) {
    enum { N = 50 };
    arrival arrivals[N];
    int64_t first[N];
    for (int i = 0; i < N; i++) arrivals[i] = (arrival){2000000 + 100 * i, 1, (uint64_t)i + 1};
    for (int run = 0; run < 2; run++) {
        int64_t before = 0;
        int late = 0;
        link_begin("10gbit,20ms,5ms", arrivals, N);
        for (int i = 0; i < N; i++) {
            sn_event event = next_event(clock_us + 100000000);
            cr_assert_eq(event.peer, 1);
            cr_assert_eq(floats_seen, arrivals[i].floats, "a message has overtaken another one");
            int64_t least = arrivals[i].at_us + 10000;
            cr_assert(clock_us >= least && clock_us <= least + 5000 + 10 * N);
            cr_assert_geq(clock_us, before);
            before = clock_us;
            late += clock_us > least + 1000;
            if (run) cr_assert_eq(clock_us, first[i]);
            first[i] = clock_us;
        }
        cr_assert_gt(late, 5, "no jitter at all");
        if (!run) link_end();
    }
}

Test(emulated_link, a_loss_is_reported_after_earlier_messages) {
    link_begin("8kbit,10ms", (arrival[]){{2000000, 1, 100}, {2000010, 1, 0}}, 2);
    expect_arrival(1, 2000000 + 1000 * bytes_of(100) + 5000);
    sn_event news = next_event(clock_us);
    cr_assert(news.lost);
}

Test(emulated_link, receiving_ends_at_deadline_or_wake_without_loss) {
    link_begin("8mbit,100ms", (arrival[]){{2000000, 1, 1}}, 1);
    cr_assert_eq(next_event(2010000).peer, 0);
    cr_assert_eq(clock_us, 2010000);
    cr_assert_eq(next_event(0).peer, 0); /* does not wait */
    cr_assert_eq(clock_us, 2010000);
    sn_transport_wake(link);
    cr_assert_eq(next_event(2020000).peer, 0);
    cr_assert_eq(clock_us, 2010000, "a wake did not end the wait");
    expect_arrival(1, 2000000 + bytes_of(1) + 50000);
}

Test(emulated_link, no_event_follows_a_hang_up) {
    link_begin("8mbit,100ms", (arrival[]){{2000000, 1, 1}, {2000000, 2, 1}, {2000000, 1, 1}}, 3);
    cr_assert_eq(next_event(2000001).peer, 0);
    sn_transport_hang_up(link, 1);
    cr_assert_eq(in.hung_up, 1);
    expect_arrival(2, 2000000 + bytes_of(1) + 50000);
    cr_assert_eq(next_event(9000000).peer, 0);
}

Test(emulated_link, refuses_invalid_link_descriptions) {
    static const char *const bad[] = {"",
                                      "100mbit",
                                      "100mbit,",
                                      "100,100ms",
                                      "100mbit,100",
                                      "-1mbit,1ms",
                                      "100mbit,-1ms",
                                      "100mbit,1ms,",
                                      "100mbit,1ms,1ms,",
                                      "1bit,1ms",
                                      "nanmbit,1ms",
                                      "1mbit,61s",
                                      " 100mbit,100ms",
                                      "1e300gbit,1ms"};
    sn_emulated_link shape;
    sn_err err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(sn_emulated_link_parse(bad[i], &shape, &err), SN_REFUSED, "%s", bad[i]);
        cr_assert(strstr(err.text, "100mbit,100ms"), "%s", err.text);
    }
    cr_assert_eq(sn_emulated_link_parse("none", &shape, &err), SN_OK);
    cr_assert(sn_emulated_link_is_none(&shape));
    cr_assert_eq(sn_emulated_link_parse("1.5gbit,5ms,250us", &shape, &err), SN_OK);
    cr_assert_eq(shape.bits_per_s, 1500000000);
    cr_assert_eq(shape.rtt_us, 5000);
    cr_assert_eq(shape.jitter_us, 250);
}
