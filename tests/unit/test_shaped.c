/* Emulated links: when exactly messages are handed on, by a clock and an inner transport of the tests' own. */
#include "net/shaped.h"

#include <criterion/criterion.h>
#include <string.h>

/* -- the inner transport: what arrives when, as a list -- */

typedef struct arrival {
    int64_t at_us;
    sn_peer peer;
    uint64_t floats; /* of the tensor; 0: news that the peer was lost */
} arrival;

static int64_t clock_us;
static int64_t read_clock(void) { return clock_us; }

typedef struct inner {
    sn_transport base;
    const arrival *arrivals;
    size_t n, next;
    sn_peer hung_up;
    int woken;
} inner;

static sn_msg *message(uint64_t floats) {
    sn_err err = {0};
    sn_msg *msg;
    void *data;
    cr_assert_eq(sn_msg_new(SN_MSG_RESULT, 1, &msg, &err), SN_OK);
    cr_assert_eq(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, floats}, &data, &err), SN_OK);
    memset(data, 0, floats * sizeof(float));
    return msg;
}

/* Time passes here only. */
static sn_status inner_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    (void)err;
    inner *in = (inner *)t;
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
    if (a->floats) out->msg = message(a->floats);
    return SN_OK;
}
static void inner_hang_up(sn_transport *t, sn_peer peer) { ((inner *)t)->hung_up = peer; }
static void inner_wake(sn_transport *t) { ((inner *)t)->woken++; }
static void inner_free(sn_transport *t) { (void)t; }
static const sn_transport_ops inner_ops = {
    .recv = inner_recv, .hang_up = inner_hang_up, .wake = inner_wake, .free = inner_free};

static inner in;
static sn_transport *link;

static void begin(const char *shape_text, const arrival *arrivals, size_t n) {
    sn_err err = {0};
    sn_shape shape;
    cr_assert_eq(sn_shape_parse(shape_text, &shape, &err), SN_OK, "%s", err.text);
    in = (inner){.base.ops = &inner_ops, .arrivals = arrivals, .n = n};
    clock_us = 1000000;
    sn_transport *inside = &in.base;
    cr_assert_eq(sn_transport_shaped_new(&inside, &shape, read_clock, &link, &err), SN_OK);
    cr_assert_null(inside);
}

static void end(void) { sn_transport_free(&link); }
TestSuite(shaped, .fini = end);

static uint64_t floats_seen; /* in the newest message */

/* Next event until `deadline_us`; its message is freed. */
static sn_event next(int64_t deadline_us) {
    sn_err err = {0};
    sn_event event;
    cr_assert_eq(sn_transport_recv(link, deadline_us, &event, &err), SN_OK);
    floats_seen = event.msg ? event.msg->tensor.shape[1] : 0;
    sn_msg_free(&event.msg);
    return event;
}

static void comes(sn_peer peer, int64_t at_us) {
    sn_event event = next(clock_us + 100000000);
    cr_assert_eq(event.peer, peer);
    cr_assert_eq(clock_us, at_us, "it came at %lld, not at %lld", (long long)clock_us, (long long)at_us);
    cr_assert_eq(event.arrived_us, at_us);
}

static int64_t bytes_of(uint64_t floats) {
    sn_err err = {0};
    sn_msg *msg = message(floats);
    sn_buf frame;
    sn_buf_init(&frame, 1 << 20);
    cr_assert_eq(sn_msg_encode(msg, &frame, &err), SN_OK);
    int64_t bytes = (int64_t)frame.len + 4 * (int64_t)floats;
    sn_buf_fini(&frame);
    sn_msg_free(&msg);
    return bytes;
}

/* -- times -- */

Test(shaped, a_message_waits_for_its_bits_and_half_the_round_trip) {
    begin("8mbit,100ms", (arrival[]){{2000000, 1, 576}}, 1);
    comes(1, 2000000 + bytes_of(576) + 50000); /* 8 Mbit/s: a byte a microsecond */
}

Test(shaped, messages_of_one_peer_queue_for_the_line_and_those_of_another_do_not) {
    int64_t a = bytes_of(1000), b = bytes_of(10);
    begin("8mbit,2ms", (arrival[]){{2000000, 1, 1000}, {2000001, 1, 1000}, {2000002, 2, 10}, {2000003, 1, 10}}, 4);
    comes(2, 2000002 + b + 1000);
    comes(1, 2000000 + a + 1000);
    comes(1, 2000000 + 2 * a + 1000);
    comes(1, 2000000 + 2 * a + b + 1000);
}

Test(shaped, a_line_that_was_idle_has_saved_nothing_up) {
    begin("8mbit,0ms", (arrival[]){{2000000, 1, 100}, {9000000, 1, 100}, {9000000, 1, 100}}, 3);
    comes(1, 2000000 + bytes_of(100));
    comes(1, 9000000 + bytes_of(100));
    comes(1, 9000000 + 2 * bytes_of(100));
}

Test(shaped, jitter_varies_within_its_limit_repeats_and_keeps_the_order) {
    enum { N = 50 };
    arrival arrivals[N];
    int64_t first[N];
    for (int i = 0; i < N; i++) arrivals[i] = (arrival){2000000 + 100 * i, 1, (uint64_t)i + 1};
    for (int run = 0; run < 2; run++) {
        int64_t before = 0;
        int late = 0;
        begin("10gbit,20ms,5ms", arrivals, N);
        for (int i = 0; i < N; i++) {
            sn_event event = next(clock_us + 100000000);
            cr_assert_eq(event.peer, 1);
            cr_assert_eq(floats_seen, arrivals[i].floats, "one has overtaken another");
            int64_t least = arrivals[i].at_us + 10000;
            cr_assert(clock_us >= least && clock_us <= least + 5000 + 10 * N);
            cr_assert_geq(clock_us, before);
            before = clock_us;
            late += clock_us > least + 1000;
            if (run) cr_assert_eq(clock_us, first[i]);
            first[i] = clock_us;
        }
        cr_assert_gt(late, 5, "no jitter at all");
        if (!run) end();
    }
}

Test(shaped, the_news_of_a_loss_comes_behind_what_was_sent_before_it) {
    begin("8kbit,10ms", (arrival[]){{2000000, 1, 100}, {2000010, 1, 0}}, 2);
    comes(1, 2000000 + 1000 * bytes_of(100) + 5000);
    sn_event news = next(clock_us);
    cr_assert(news.lost);
}

Test(shaped, waiting_ends_at_its_deadline_and_by_a_wake_and_nothing_is_lost_by_it) {
    begin("8mbit,100ms", (arrival[]){{2000000, 1, 1}}, 1);
    cr_assert_eq(next(2010000).peer, 0);
    cr_assert_eq(clock_us, 2010000);
    cr_assert_eq(next(0).peer, 0); /* does not wait */
    cr_assert_eq(clock_us, 2010000);
    sn_transport_wake(link);
    cr_assert_eq(next(2020000).peer, 0);
    cr_assert_eq(clock_us, 2010000, "a wake did not end the wait");
    comes(1, 2000000 + bytes_of(1) + 50000);
}

Test(shaped, nothing_more_is_heard_of_a_peer_that_was_hung_up_on) {
    begin("8mbit,100ms", (arrival[]){{2000000, 1, 1}, {2000000, 2, 1}, {2000000, 1, 1}}, 3);
    cr_assert_eq(next(2000001).peer, 0);
    sn_transport_hang_up(link, 1);
    cr_assert_eq(in.hung_up, 1);
    comes(2, 2000000 + bytes_of(1) + 50000);
    cr_assert_eq(next(9000000).peer, 0);
}

Test(shaped, what_is_no_link_is_refused) {
    static const char *const bad[] = {"",          "100mbit",      "100mbit,",       "100,100ms",       "100mbit,100",
                                      "-1mbit,1ms", "100mbit,-1ms", "100mbit,1ms,",   "100mbit,1ms,1ms,", "1bit,1ms",
                                      "nanmbit,1ms", "1mbit,61s",   " 100mbit,100ms", "1e300gbit,1ms"};
    sn_shape shape;
    sn_err err = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(sn_shape_parse(bad[i], &shape, &err), SN_REFUSED, "%s", bad[i]);
        cr_assert(strstr(err.text, "100mbit,100ms"), "%s", err.text);
    }
    cr_assert_eq(sn_shape_parse("none", &shape, &err), SN_OK);
    cr_assert(sn_shape_is_none(&shape));
    cr_assert_eq(sn_shape_parse("1.5gbit,5ms,250us", &shape, &err), SN_OK);
    cr_assert_eq(shape.bits_per_s, 1500000000);
    cr_assert_eq(shape.rtt_us, 5000);
    cr_assert_eq(shape.jitter_us, 250);
}
