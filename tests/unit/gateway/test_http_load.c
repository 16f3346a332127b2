/* What requests take of the server's memory. */
#include "gateway/http/answer_private.h" /* private: requests that are not parsed, answers that are not read yet */
#include "tests/support/openai_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>

/* The values of a body take more memory than its text. */
Test(http_load, what_a_body_becomes_counts_before_it_is_parsed) {
    enum { VALUES = 500000 };
    static struct sn_server s;
    sn_exchange x = {.server = &s};
    sn_taken before = {0};
    sn_request *request = NULL;
    sn_openai_error error = {0};
    sn_load_init(&s.load);
    sn_buf_init(&x.body, 2 * VALUES + 2);
    for (int i = 0; i < VALUES; i++) REQUIRE(sn_buf_append(&x.body, i ? ",0" : "[0", 2, &err));
    REQUIRE(sn_buf_append(&x.body, "]", 1, &err));
    cr_assert(sn_load_take(&s.load, &x.taken, x.body.len));
    cr_assert(sn_load_take(&s.load, &before, SN_LOAD_SHARE_MAX - x.body.len - (16 << 20)));
    cr_expect_not(sn_exchange_parse(&x, SN_REQUEST_TOKENIZE, &request, &error));
    cr_expect_eq(error.status, 503, "%d: %s", error.status, error.message);
    sn_buf_fini(&x.body);
    sn_load_fini(&s.load);
}

/* What the reply makes is not kept where its owner has all that it may. */
Test(http_load, what_was_not_read_yet_counts) {
    enum { UNREAD = 2 << 20 };
    static const uint8_t unread[UNREAD];
    static struct sn_server s;
    openai_fixture fixture = openai_fixture_open(openai_template);
    sn_http_answer a = {.server = &s};
    sn_taken before = {0};
    sn_openai_error error = {0};
    sn_load_init(&s.load);
    pthread_cond_init(&a.changed, NULL);
    sn_buf_init(&a.out, 2 * UNREAD);
    REQUIRE(sn_buf_append(&a.out, unread, sizeof unread, &err));
    a.request = openai_request(&fixture, SN_REQUEST_COMPLETION, "{\"prompt\":[1,2],\"max_tokens\":1}");
    cr_assert(sn_reply_new(a.request, fixture.served, &(sn_reply_head){"1", 1700000000}, &a.reply, &error));
    (void)!sn_openai_fail(&error, 500, NULL, NULL, "some bytes");
    sn_reply_fail(a.reply, &error);
    cr_assert(sn_load_take(&s.load, &before, SN_LOAD_SHARE_MAX));
    sn_http_answer_collect(&a);
    cr_expect_eq(a.error.status, 503, "%d: %s", a.error.status, a.error.message);
    cr_expect_eq(a.out.len, UNREAD);
    sn_reply_free(&a.reply);
    sn_request_free(&a.request);
    sn_buf_fini(&a.out);
    pthread_cond_destroy(&a.changed);
    sn_load_fini(&s.load);
    openai_fixture_close(&fixture);
}
