/* Who may use the server: keys, names in Host, origins (gateway/http/access.h). */
#include "gateway/http/access.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sn_status read_keys(sn_access *access, const char *text, sn_err *err) {
    char path[] = "/tmp/sn_keys_XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    sn_status status = sn_access_read_keys(access, path, err);
    unlink(path);
    return status;
}

Test(access, without_keys_all_clients_are_served) {
    const sn_access open = {0};
    cr_assert(sn_access_has_key(&open, NULL));
}

Test(access, one_of_the_keys_must_be_shown_exactly) {
    sn_access access = {0};
    sn_err err;
    cr_assert_eq(read_keys(&access, "# of the office\nfirst-key-0123456789\n\r\nsecond-key-0123456789 \r\n", &err),
                 SN_OK);
    cr_assert_eq(access.n_keys, 2);
    static const char *const right[] = {"Bearer first-key-0123456789", "bearer second-key-0123456789"};
    static const char *const wrong[] = {"",
                                        "Bearer ",
                                        "first-key-0123456789",
                                        "Basic first-key-0123456789",
                                        "Bearer first-key-012345678",
                                        "Bearer first-key-01234567890",
                                        "Bearer FIRST-key-0123456789",
                                        "Bearer first-key-0123456789 ",
                                        "Bearer # of the office",
                                        "Bearer second-key-0123456789\r"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) cr_assert(sn_access_has_key(&access, right[i]));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_assert_not(sn_access_has_key(&access, wrong[i]), "'%s' is a key", wrong[i]);
    cr_assert_not(sn_access_has_key(&access, NULL));
    sn_access_fini(&access);
}

Test(access, a_file_of_keys_that_others_can_read_is_refused) {
    char path[] = "/tmp/sn_keys_XXXXXX";
    int fd = mkstemp(path);
    static const mode_t modes[] = {0640, 0604, 0620, 0602};
    cr_assert(fd >= 0 && write(fd, "a-key-of-16-chars\n", 18) == 18);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        sn_access access = {0};
        sn_err err = {0};
        cr_assert_eq(fchmod(fd, modes[i]), 0);
        cr_expect_eq(sn_access_read_keys(&access, path, &err), SN_REFUSED, "mode %o", (unsigned)modes[i]);
        cr_expect(strstr(err.text, "chmod 600"), "%s", err.text);
        sn_access_fini(&access);
    }
    close(fd);
    unlink(path);
}

Test(access, a_file_of_short_keys_or_of_none_is_refused) {
    sn_access access = {0};
    sn_err err;
    cr_assert_eq(read_keys(&access, "a-key-of-16-chars\nshort\n", &err), SN_REFUSED);
    cr_assert(strstr(err.text, "key 2"), "%s", err.text);
    sn_access_fini(&access);
    cr_assert_eq(read_keys(&access, "\n# nothing\n", &err), SN_REFUSED);
    sn_access_fini(&access);
    cr_assert_eq(sn_access_read_keys(&access, "/nowhere/keys", &err), SN_REFUSED);
    sn_access_fini(&access);
}

Test(access, host_is_an_address_or_a_name_of_the_owner) {
    static const char *const names[] = {"swarm.example"};
    const sn_access access = {.hosts = names, .n_hosts = 1};
    static const char *const known[] = {
        "127.0.0.1", "127.0.0.1:8080", "10.0.0.7:80", "localhost",     "LocalHost:81",
        "[::1]",     "[::1]:8080",     "[fe80::1]:1", "swarm.example", "SWARM.example:8080"};
    static const char *const unknown[] = {"",
                                          ":8080",
                                          "evil.example",
                                          "evil.example:8080",
                                          "127.0.0.1.evil.example",
                                          "127.0.0.1@evil.example",
                                          "swarm.example.evil",
                                          "localhost:80:80",
                                          "localhost:x",
                                          "localhost/",
                                          "localhost.",
                                          "[::1",
                                          "[127.0.0.1]",
                                          "[evil.example]",
                                          "::1",
                                          " localhost",
                                          "0x7f000001",
                                          "127.1"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        cr_assert(sn_access_knows_host(&access, known[i]), "%s", known[i]);
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        cr_assert_not(sn_access_knows_host(&access, unknown[i]), "'%s'", unknown[i]);
    cr_assert_not(sn_access_knows_host(&access, NULL));
}

Test(access, pages_of_other_origins_are_refused_unless_they_are_named) {
    static const char *const origins[] = {"https://app.example"};
    const sn_access access = {.origins = origins, .n_origins = 1};
    const char *host = "127.0.0.1:8080";
    cr_assert_eq(sn_access_origin(&access, NULL, host), SN_ORIGIN_SAME);
    cr_assert_eq(sn_access_origin(&access, "http://127.0.0.1:8080", host), SN_ORIGIN_SAME);
    cr_assert_eq(sn_access_origin(&access, "https://127.0.0.1:8080", host), SN_ORIGIN_SAME);
    cr_assert_eq(sn_access_origin(&access, "https://app.example", host), SN_ORIGIN_NAMED);
    static const char *const refused[] = {"",
                                          "null",
                                          "http://127.0.0.1",
                                          "http://127.0.0.1:8081",
                                          "http://localhost:8080",
                                          "http://127.0.0.1:8080.evil.example",
                                          "http://evil.example://127.0.0.1:8080",
                                          "file://127.0.0.1:8080",
                                          "http://app.example",
                                          "https://app.example.evil",
                                          "https://app.example:8443"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        cr_assert_eq(sn_access_origin(&access, refused[i], host), SN_ORIGIN_REFUSED, "'%s'", refused[i]);
    cr_assert_eq(sn_access_origin(&access, "http://", NULL), SN_ORIGIN_REFUSED);
}

Test(access, an_origin_is_a_scheme_and_a_host) {
    sn_err err;
    cr_assert_eq(sn_access_check_origin("https://app.example", &err), SN_OK);
    cr_assert_eq(sn_access_check_origin("http://localhost:3000", &err), SN_OK);
    static const char *const wrong[] = {
        "*", "", "app.example", "https://", "https://app.example/", "https://*.example", "null"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        cr_assert_eq(sn_access_check_origin(wrong[i], &err), SN_REFUSED, "'%s'", wrong[i]);
}

static uint64_t owner(const sn_access *access, const char *from, const char *authorization, const char *forwarded) {
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    const bool is_v4 = inet_pton(AF_INET, from, &v4.sin_addr) == 1;
    cr_assert(is_v4 || inet_pton(AF_INET6, from, &v6.sin6_addr) == 1);
    return sn_access_owner(access, is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6, authorization, forwarded);
}

Test(access, a_request_is_its_keys_or_else_its_addresss) {
    static const char *const proxies[] = {"127.0.0.1"};
    sn_hash key = sn_hash_of("a-key-of-the-file", 17);
    const sn_access open = {0}, behind = {.proxies = proxies, .n_proxies = 1}, closed = {.keys = &key, .n_keys = 1};
    const uint64_t one = owner(&open, "10.0.0.1", NULL, NULL), here = owner(&open, "127.0.0.1", NULL, NULL);
    cr_expect_neq(one, owner(&open, "10.0.0.2", NULL, NULL));
    cr_expect_eq(one, owner(&open, "::ffff:10.0.0.1", NULL, NULL));
    cr_expect_eq(one, owner(&open, "10.0.0.1", "Bearer any", "10.0.0.3"), "anybody can write these");
    cr_expect_eq(owner(&open, "2001:db8::1", NULL, NULL), owner(&open, "2001:db8::2", NULL, NULL));
    cr_expect_neq(owner(&open, "2001:db8::1", NULL, NULL), owner(&open, "2001:db8:0:1::1", NULL, NULL));
    cr_expect_eq(one, owner(&behind, "127.0.0.1", NULL, "1.2.3.4, 10.0.0.1"), "what the client wrote comes first");
    cr_expect_eq(one, owner(&behind, "127.0.0.1", NULL, "10.0.0.1"));
    cr_expect_eq(one, owner(&behind, "10.0.0.1", NULL, "10.0.0.2"), "it is no proxy");
    static char much[1 << 16]; /* of digits */
    memset(much, '1', sizeof much - 1);
    const char *const nothing[] = {"", "unknown", "10.0.0.1,", "10.0.0.1:80", much};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        cr_expect_eq(here, owner(&behind, "127.0.0.1", NULL, nothing[i]), "'%s'", nothing[i]);
    const uint64_t keyed = owner(&closed, "10.0.0.1", "Bearer a-key-of-the-file", NULL);
    cr_expect_eq(keyed, owner(&closed, "10.0.0.2", "bEARER a-key-of-the-file", NULL));
    cr_expect_eq(one, owner(&closed, "10.0.0.1", "Bearer another", NULL));
    sn_err err;
    cr_expect_eq(sn_access_check_proxy("::1", &err), SN_OK);
    cr_expect_eq(sn_access_check_proxy("proxy.example", &err), SN_REFUSED);
}
