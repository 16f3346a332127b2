#include "base/parse.h"

#include <criterion/criterion.h>
#include <string.h>

static const char *refusal(const char *text, sn_host_port_form form) {
    static sn_err err;
    sn_host_port at;
    cr_assert_eq(sn_parse_host_port(text, form, &at, &err), SN_REFUSED, "'%s' is accepted", text);
    return err.text;
}

static sn_host_port parse(const char *text, sn_host_port_form form) {
    sn_host_port at = {0};
    sn_err err;
    cr_assert_eq(sn_parse_host_port(text, form, &at, &err), SN_OK, "%s", err.text);
    return at;
}

Test(address, has_a_name_an_ipv4_address_or_an_ipv6_address_in_brackets) {
    static const char *const good[][2] = {
        {"node.example.org:31330", "node.example.org"}, {"127.0.0.1:31330", "127.0.0.1"}, {"[::1]:31330", "::1"}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        sn_host_port at = parse(good[i][0], SN_HOST_PORT_DIAL);
        cr_expect_str_eq(at.host, good[i][1]);
        cr_expect_eq(at.port, 31330);
        cr_expect_eq(at.len, strlen(good[i][0]));
        cr_expect_not(at.pinned);
    }
}

Test(address, any_host_and_any_port_are_for_listening_only) {
    cr_expect_str_eq(parse("*:7001", SN_HOST_PORT_LISTEN).host, "*");
    cr_expect_eq(parse("0.0.0.0:0", SN_HOST_PORT_LISTEN).port, 0);
    refusal("*:7001", SN_HOST_PORT_DIAL);
    refusal("127.0.0.1:0", SN_HOST_PORT_DIAL);
    refusal("*:7001", SN_HOST_PORT_PINNED);
}

Test(address, may_pin_a_key) {
    char text[128] = "[::1]:7001#";
    memset(text + strlen(text), 'a', 64);
    sn_host_port at = parse(text, SN_HOST_PORT_PINNED);
    cr_expect_str_eq(at.host, "::1");
    cr_expect_eq(at.len, strlen("[::1]:7001"));
    cr_expect(at.pinned && at.key[0] == 0xaa && at.key[31] == 0xaa);
    refusal(text, SN_HOST_PORT_DIAL);
    cr_expect(strstr(refusal("host:7001#12", SN_HOST_PORT_PINNED), "hexadecimal"));
}

Test(address, anything_else_is_refused_with_its_form) {
    static const char *const bad[] = {"",      "7001", ":7001", "host",  "host:",     "host:65536",   "host:123456",
                                      "h:1x",  "h: 1", "h:-1",  "a b:1", "a;b:1",     "a/b:1",        "::1:7001",
                                      "[::1]", "[]:1", "[g]:1", "h:1#",  "udp://h:1", "ipc:///tmp/x", "#"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect(strstr(refusal(bad[i], SN_HOST_PORT_DIAL), "write HOST:PORT"), "'%s'", bad[i]);
    char longest[400] = "";
    memset(longest, 'a', 300);
    cr_expect(strstr(refusal(longest, SN_HOST_PORT_DIAL), "at most 255 bytes"));
}

Test(address, with_a_tcp_scheme_is_refused_with_the_right_form) {
    cr_expect(strstr(refusal("tcp://127.0.0.1:7001", SN_HOST_PORT_DIAL), "write 127.0.0.1:7001"));
    cr_expect(strstr(refusal("tcp://[::1]:0", SN_HOST_PORT_LISTEN), "write [::1]:0"));
    cr_expect(strstr(refusal("tcp://h:1#ab", SN_HOST_PORT_PINNED), "write h:1#ab"));
    cr_expect(strstr(refusal("tcp://", SN_HOST_PORT_DIAL), "write HOST:PORT"));
}
