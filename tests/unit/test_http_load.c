/* What requests take of the server's memory. */
#include "gateway/http/http_private.h" /* private: a request that is not parsed yet */
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
