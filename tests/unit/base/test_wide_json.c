/* JSON with integers that do not fit into 64 bits. */
#include "base/wide_json.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *load(const char *text, size_t flags) {
    json_error_t problem = {0};
    json_t *value = sn_wide_json_load(text, strlen(text), flags, &problem);
    cr_assert(value, "%s: %s", text, problem.text);
    return value;
}

Test(wide_json, integers_of_any_size_are_written_as_they_were_read) {
    static const char *const texts[] = {
        "{\"a\":[9223372036854775807,-9223372036854775808,9223372036854775808,-9223372036854775809]}",
        "[123456789012345678901234567890,{\"b\":\"123456789012345678901234567890 \\\\\\\"\"},-1]",
        "[\"{\\\"int\\\":\\\"\\\\u00001\\\"}\",99999999999999999999,0.5]",
        "[1,2.0,0.5,\"x\",null,true]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *value = load(texts[i], JSON_REJECT_DUPLICATES);
        char *text = sn_wide_json_dump(value);
        cr_expect_str_eq(text, texts[i]);
        free(text);
        json_decref(value);
    }
}

Test(wide_json, only_what_does_not_fit_has_digits) {
    json_t *list = load("[18446744073709551615,-18446744073709551617,1,{\"int\":\"1\"},{\"int\":\"\\u0000x\"},\"1\"]",
                        JSON_ALLOW_NUL);
    cr_expect_str_eq(sn_wide_digits(json_array_get(list, 0)), "18446744073709551615");
    cr_expect_str_eq(sn_wide_digits(json_array_get(list, 1)), "-18446744073709551617");
    for (size_t i = 2; i < json_array_size(list); i++)
        cr_expect_null(sn_wide_digits(json_array_get(list, i)), "%zu", i);
    cr_expect_eq(sn_wide_low_bits("18446744073709551615"), -1);
    cr_expect_eq(sn_wide_low_bits("-18446744073709551617"), -1);
    cr_expect_null(sn_wide_digits(NULL));
    json_decref(list);
}

/* Each takes far more memory than its digits. */
Test(wide_json, a_text_has_a_bounded_number_of_wide_integers) {
    enum { DIGITS = 19 };
    for (size_t n = SN_WIDE_MAX; n <= SN_WIDE_MAX + 1; n++) {
        char *text = malloc(n * (DIGITS + 1) + 1);
        for (size_t i = 0; i < n; i++) {
            text[i * (DIGITS + 1)] = i ? ',' : '[';
            memset(text + i * (DIGITS + 1) + 1, '9', DIGITS);
        }
        text[n * (DIGITS + 1)] = ']';
        json_error_t problem = {0};
        json_t *list = sn_wide_json_load(text, n * (DIGITS + 1) + 1, 0, &problem);
        cr_expect_eq(json_array_size(list), n == SN_WIDE_MAX ? n : 0);
        cr_expect_eq(strstr(problem.text, "too big integer") != NULL, !list);
        json_decref(list);
        free(text);
    }
}

Test(wide_json, what_is_no_json_stays_none) {
    static const char *const texts[] = {"99999999999999999999",
                                        "[99999999999999999999",
                                        "[099999999999999999999]",
                                        "[99999999999999999999x]",
                                        "{\"a\":99999999999999999999,\"a\":1}",
                                        "[99999999999999999999,\"\\u0000\"]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_error_t problem = {0};
        cr_expect_null(sn_wide_json_load(texts[i], strlen(texts[i]), JSON_REJECT_DUPLICATES, &problem), "%s", texts[i]);
        cr_expect(*problem.text, "%s", texts[i]);
    }
    char *text = malloc(SN_WIDE_DIGITS_MAX + 4);
    memset(text, '9', SN_WIDE_DIGITS_MAX + 3);
    text[0] = '[', text[SN_WIDE_DIGITS_MAX + 2] = ']', text[SN_WIDE_DIGITS_MAX + 3] = 0;
    cr_expect_null(sn_wide_json_load(text, strlen(text), 0, NULL));
    free(text);
}
