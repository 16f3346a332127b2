/* A listening port that another program holds: it is waited for as long as a killed program needs to end. */
#include "base/clock.h"
#include "base/listen.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

typedef struct holder {
    int fd, port;
    int64_t for_us;
} holder;

static void *hold(void *arg) {
    const holder *h = arg;
    sn_sleep_us(h->for_us);
    close(h->fd);
    return NULL;
}

/* What comes of listening at a port that is held for so long. */
static sn_status listen_beside(int64_t for_us, int64_t *waited_us) {
    holder h = {.for_us = for_us};
    pthread_t thread;
    sn_err err = {0};
    int fd, port;
    virtual_clock_begin();
    const int64_t began_us = sn_now_us();
    cr_assert_eq(sn_listen_tcp("127.0.0.1", 0, &h.fd, &h.port, &err), SN_OK);
    cr_assert_not(pthread_create(&thread, NULL, hold, &h));
    const sn_status status = sn_listen_tcp("127.0.0.1", h.port, &fd, &port, &err);
    *waited_us = sn_now_us() - began_us;
    cr_expect(status || port == h.port);
    cr_expect(!status || (fd == -1 && strstr(err.text, "Address already in use")), "%s", err.text);
    if (fd >= 0) close(fd);
    pthread_join(thread, NULL);
    return status;
}

Test(listen, a_port_that_a_killed_program_still_holds_is_waited_for) {
    int64_t waited_us;
    cr_expect_eq(listen_beside(2000000, &waited_us), SN_OK);
    cr_expect_geq(waited_us, 2000000);
}

Test(listen, a_port_in_use_is_not_waited_for_for_long) {
    int64_t waited_us;
    cr_expect_eq(listen_beside(60000000, &waited_us), SN_RETRY);
    cr_expect_lt(waited_us, 10000000);
}
