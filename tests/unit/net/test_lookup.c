/* Looking up hosts (net/lookup.h) with a resolver of the test's own: "slow" takes as long as the test likes. */
#include "net/introduction.h"
#include "net/lookup.h"

#include "base/clock.h"
#include "base/log.h"
#include "tests/support/require.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_bool resolver_may_answer;
static atomic_int resolver_calls;

static struct addrinfo *new_result(const char *host, const struct addrinfo *hints, const char *service,
                                   struct addrinfo *next) {
    struct sockaddr_in *at = calloc(1, sizeof *at);
    struct addrinfo *result = calloc(1, sizeof *result);
    cr_assert(at && result && inet_pton(AF_INET, host, &at->sin_addr) == 1);
    at->sin_family = AF_INET;
    at->sin_port = htons((uint16_t)(service ? require_int(service, 0, 65535) : 0));
    *result = (struct addrinfo){.ai_family = AF_INET,
                                .ai_socktype = hints->ai_socktype,
                                .ai_addr = (struct sockaddr *)at,
                                .ai_addrlen = sizeof *at,
                                .ai_next = next};
    return result;
}

/* Instead of the C library's, in these tests. */
static bool resolves;
static void setup(void) { resolves = true; }
TestSuite(lookup, .init = setup);

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    struct in_addr number;
    if (!resolves) return __real_getaddrinfo(host, service, hints, out);
    if (hints->ai_flags & AI_NUMERICHOST || inet_pton(AF_INET, host, &number) == 1) {
        *out = new_result(host, hints, service, NULL);
        return 0;
    }
    atomic_fetch_add(&resolver_calls, 1);
    if (!strcmp(host, "slow"))
        while (!atomic_load(&resolver_may_answer)) sn_sleep_us(1000);
    if (!strcmp(host, "missing")) return EAI_NONAME;
    *out = new_result("127.0.0.1", hints, service, new_result("127.0.0.9", hints, service, NULL));
    return 0;
}

void __real_freeaddrinfo(struct addrinfo *list);
void __wrap_freeaddrinfo(struct addrinfo *list);
void __wrap_freeaddrinfo(struct addrinfo *list) {
    if (!resolves) {
        __real_freeaddrinfo(list);
        return;
    }
    for (struct addrinfo *next; list; list = next) {
        next = list->ai_next;
        free(list->ai_addr);
        free(list);
    }
}

Test(lookup, numeric_addresses_need_no_resolver) {
    static const char *const numeric[] = {"127.0.0.1:7", "[::1]:7", "[2001:db8::1]:65535"};
    static const char *const names[] = {"localhost:7", "1.2.3:7", "0x7f.1:7", "example.org:7", "2130706433:7"};
    char out[SN_ADDRESS_MAX + 1];
    for (size_t i = 0; i < sizeof numeric / sizeof *numeric; i++) {
        cr_expect(sn_address_is_numeric(numeric[i]), "%s", numeric[i]);
        REQUIRE(sn_lookup_first(numeric[i], out, &err));
        cr_expect_str_eq(out, numeric[i]);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sn_err err = {0};
        cr_expect(!sn_address_is_numeric(names[i]), "%s", names[i]);
        cr_expect_eq(sn_address_check_numeric(names[i], &err), SN_REFUSED);
        cr_expect(strstr(err.text, "numeric"), "%s", err.text);
    }
    cr_expect_eq(resolver_calls, 0);
}

Test(lookup, names_are_found_and_missing_ones_reported) {
    char out[SN_ADDRESS_MAX + 1];
    sn_err why = {0};
    REQUIRE(sn_lookup_first("here:7001", out, &err));
    cr_expect_str_eq(out, "127.0.0.1:7001");
    cr_expect_eq(sn_lookup_first("missing:7001", out, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "missing:7001 cannot be found"), "%s", why.text);
}

Test(lookup, a_slow_resolver_is_left_behind, .timeout = 60) {
    char addresses[SN_LOOKUP_ADDRESSES_MAX][SN_ADDRESS_MAX + 1];
    sn_lookup *first, *second;
    sn_err why = {0};
    size_t n;
    REQUIRE(sn_lookup_start("slow:7", &first, &err));
    REQUIRE(sn_lookup_start("slow:8", &second, &err));
    cr_expect_eq(sn_lookup_wait(first, 0, addresses, &n, &why), SN_RETRY);
    cr_expect_eq(sn_lookup_wait(first, sn_now_us() + 20000, addresses, &n, &why), SN_RETRY);
    sn_lookup_free(&first); /* while its thread waits for the resolver */
    atomic_store(&resolver_may_answer, true);
    REQUIRE(sn_lookup_wait(second, sn_now_us() + 30000000, addresses, &n, &err));
    cr_expect_eq(n, 2);
    cr_expect_str_eq(addresses[1], "127.0.0.9:8");
    sn_lookup_free(&second);
}

static void on_found(void *ctx) { (void)ctx; }

/* The name is looked up twice a second; the log says once a minute that it is not found. */
Test(lookup, a_name_that_is_not_found_is_told_once_and_not_at_each_look, .timeout = 120) {
    sn_introducer *client = NULL;
    sn_buf lines;
    int told = 0;
    sn_buf_init(&lines, 1 << 20);
    sn_log_setup(SN_LOG_WARN, false);
    sn_log_keep(true);
    REQUIRE(sn_introducer_new(NULL, NULL, on_found, NULL, &client, &err));
    REQUIRE(sn_introducer_ask(client, "missing:7", &err));
    for (int64_t until = sn_now_us() + 60000000; atomic_load(&resolver_calls) < 4 && sn_now_us() < until;)
        sn_sleep_us(10000);
    cr_expect_geq(atomic_load(&resolver_calls), 4);
    sn_introducer_free(&client);
    sn_log_take(&lines);
    sn_log_keep(false);
    REQUIRE(sn_buf_append(&lines, "", 1, &err));
    for (const char *at = (char *)lines.data; (at = strstr(at, "introduction failed")); at++) told++;
    cr_expect_eq(told, 1);
    sn_buf_fini(&lines);
}

/* A slow name among the nodes to join delays neither the others nor the answers to others. */
Test(lookup, a_slow_name_stops_no_introduction, .timeout = 60) {
    sn_identity identity;
    sn_introducer *node = NULL, *client = NULL;
    char found[SN_ADDRESS_MAX + 1] = "", port[16], name[64];
    uint8_t key[SN_KEY_SIZE];
    REQUIRE(sn_identity_new(&identity, &err));
    for (int i = 0; !node && i < 100; i++) { /* a free UDP port */
        sn_err err;
        snprintf(port, sizeof port, "%d", 20000 + (int)(sn_now_us() % 20000) + i);
        snprintf(name, sizeof name, "127.0.0.1:%s", port);
        if (sn_introducer_new(&identity, name, on_found, NULL, &node, &err)) node = NULL;
    }
    cr_assert(node);
    REQUIRE(sn_introducer_ask(node, "slow:7", &err)); /* the node has one to join, too */
    REQUIRE(sn_introducer_new(NULL, NULL, on_found, NULL, &client, &err));
    REQUIRE(sn_introducer_ask(client, "slow:7", &err));
    snprintf(name, sizeof name, "here:%s", port);
    REQUIRE(sn_introducer_ask(client, name, &err));
    for (int64_t until = sn_now_us() + 30000000; !sn_introducer_next(client, found, key) && sn_now_us() < until;)
        sn_sleep_us(1000);
    snprintf(name, sizeof name, "127.0.0.1:%s", port);
    cr_expect_str_eq(found, name, "a numeric address is handed out");
    cr_expect_arr_eq(key, identity.curve_key, SN_KEY_SIZE);
    atomic_store(&resolver_may_answer, true);
    sn_introducer_free(&client);
    sn_introducer_free(&node);
}
