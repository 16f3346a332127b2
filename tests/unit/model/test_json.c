#include "model/json.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* The value of the text, written by jansson; "" where it is refused. */
static void expect_read(const char *text, const char *wanted) {
    json_error_t wrong;
    json_t *value = sn_json_read(text, strlen(text), &wrong);
    char *got = value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    cr_expect_str_eq(got ? got : "", wanted, "%.80s: %s", text, value ? "" : wrong.text);
    free(got);
    json_decref(value);
}

Test(json, whole_numbers_beyond_64_bits_are_real) {
    expect_read("{\"model_max_length\": 1000000000000000019884624838656, \"a\": 1}",
                "{\"model_max_length\":1e30,\"a\":1}");
    expect_read("[-1000000000000000019884624838656]", "[-1e30]");
    expect_read("[9223372036854775807,-9223372036854775808,9223372036854775808]",
                "[9223372036854775807,-9223372036854775808,9.22337203685478e18]");
}

Test(json, what_is_no_finite_number_is_a_string) {
    expect_read("{\"a\":NaN,\"b\":[Infinity,-Infinity],\"c\":1e400,\"d\":-1e400}",
                "{\"a\":\"NaN\",\"b\":[\"Infinity\",\"-Infinity\"],\"c\":\"Infinity\",\"d\":\"-Infinity\"}");
    char digits[512];
    memset(digits, '9', sizeof digits);
    memcpy(digits, "[", 1);
    memcpy(digits + 400, "]", 2);
    expect_read(digits, "[\"Infinity\"]");
}

Test(json, of_a_field_that_is_given_twice_the_last_counts) {
    expect_read("{\"a\":1,\"b\":2,\"a\":{\"c\":3,\"c\":4}}", "{\"a\":{\"c\":4},\"b\":2}");
}

Test(json, texts_stay_as_they_are) {
    expect_read("[\"NaN, Infinity \\\" 1e999 \\\\\", \"99999999999999999999\", NaN]",
                "[\"NaN, Infinity \\\" 1e999 \\\\\",\"99999999999999999999\",\"NaN\"]");
    expect_read("[1, 2.5, -3e-7, true, null]", "[1,2.5,-3e-7,true,null]");
}

Test(json, what_is_no_json_is_refused) {
    static const char *const texts[] = {"",           "[",      "NaN",       "[NaNs]",    "[aNaN]",
                                        "[Nan]",      "[-NaN]", "[1NaN]",    "[Infinit]", "[-Infinity1",
                                        "[\"a\"NaN]", "[+1]",   "[1e400e1]", "[\"\\",     "[\"",
                                        "[--1]",      "[1",     "[1.]",      "[01]",      "{\"a\":N}",
                                        "I",          "-I",     "-",         "[.5]",      "[99999999999999999999-]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) expect_read(texts[i], "");
    char deep[9000];
    memset(deep, '[', sizeof deep);
    deep[sizeof deep - 1] = 0;
    expect_read(deep, "");
}
