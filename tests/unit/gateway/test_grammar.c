/* Grammars of JSON schemas: which texts they allow, which schemas they refuse, and masks over a vocabulary. */
#include "base/wide_json.h"
#include "gateway/grammar/grammar.h"
#include "gateway/grammar/token_mask.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sn_grammar *grammar_of(const char *schema) {
    json_t *json = sn_wide_json_load(schema, strlen(schema), JSON_DECODE_ANY, NULL);
    sn_grammar *grammar = NULL;
    cr_assert(json, "%s", schema);
    REQUIRE(sn_grammar_from_schema(json, &grammar, &err));
    json_decref(json); /* a grammar keeps nothing of its schema */
    return grammar;
}

static bool allows(sn_grammar *grammar, const char *text) {
    int state;
    REQUIRE(sn_grammar_advance(grammar, sn_grammar_begin(grammar), text, strlen(text), &state, &err));
    return sn_grammar_may_end(grammar, state);
}

/* A schema; texts that it allows, and texts that it does not, each list separated by new lines. */
typedef struct schema_case {
    const char *schema, *allowed, *refused;
} schema_case;

#define PERSON                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"}},"             \
    "\"required\":[\"name\"],\"additionalProperties\":false}"
#define LIST                                                                                                           \
    "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},"      \
    "{\"type\":\"null\"}]}},\"required\":[\"next\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/node\"}"

static const schema_case cases[] = {
    {"true", "{\"a\":[1,{\"b\":null}]}\n[]\n\"x\"\n-1.5e+7\n[ 1, 2 ]",
     "{\n[1,]\n01\n\"\x01\"\n\"\\q\"\n\"\xC3\"\n\"\\ud800\""},
    {"{\"type\":\"object\"}", "{}\n{\"a\":1, \"b\": [true]}", "[]\n{\"a\"}\n{,}"},
    {PERSON, "{\"name\":\"x\"}\n{\"name\": \"x\", \"age\": 3}",
     "{}\n{\"age\":3}\n{\"age\":3,\"name\":\"x\"}\n{\"name\":\"x\",\"b\":1}\n{\"name\":1}"},
    {"{\"properties\":{\"ab\":{\"type\":\"null\"}},\"type\":\"object\",\"additionalProperties\":true}",
     "{\"ab\":null,\"a\":1,\"abc\":2}\n{\"b\":1}", "{\"ab\":1}\n{\"a\":1,\"ab\":null}"},
    {"{\"properties\":{\"ab\":{\"type\":\"null\"}},\"type\":\"object\"}", "{\"ab\":null}\n{}",
     "{\"ab\":null,\"a\":1}\n{\"b\":1}"},
    {"{\"type\":\"object\",\"required\":[\"a\"]}", "{\"a\":[1]}", "{}\n{\"a\":1,\"b\":2}"},
    {LIST, "{\"next\":null}\n{\"next\":{\"next\":{\"next\":null}}}", "{\"next\":{}}\n{\"next\":{\"next\":null}"},
    {"{\"enum\":[\"a\\\"b\",3,null]}", "\"a\\\"b\"\n3\nnull", "\"a\"\n33\ntrue"},
    {"{\"enum\":[1,\"x\",2],\"type\":\"integer\"}", "1\n2", "\"x\"\n3"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":2}", "[1]\n[1,2]",
     "[]\n[1,2,3]\n[1.5]"},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"boolean\"}}",
     "[]\n[null]\n[null,true,false]", "[true]\n[null,null]"},
    {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
     "\"a\"\n\"\xF0\x9F\x98\x80\xC3\xA9\"\n\"\\u00e9\\n\"\n\"\\ud83d\\ude00\"", "\"\"\n\"abc\""},
    {"{\"type\":\"string\",\"pattern\":\"^a(b|c)+[0-9]{2}$\"}", "\"ab12\"\n\"abcb00\"",
     "\"a12\"\n\"ab1\"\n\"ab123\"\n\"xab12\""},
    {"{\"type\":\"string\",\"pattern\":\"b\\\\d\"}", "\"b1\"\n\"aab1zz\"", "\"b\"\n\"ab\""},
    {"{\"type\":\"string\",\"pattern\":\"^[^a]\\\"$\"}", "\"b\\\"\"\n\"\\n\\\"\"", "\"a\\\"\"\n\"b\""},
    {"{\"type\":\"string\",\"format\":\"date\"}", "\"2026-11-22\"", "\"2026-13-01\"\n\"2026-02-30\"\n\"26-01-01\""},
    {"{\"type\":\"string\",\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"", "\"123e4567\""},
    {"{\"type\":\"integer\",\"minimum\":-99999999999999999999,\"maximum\":18446744073709551615}", "-5\n0\n7", "1.5"},
    {"{\"type\":\"integer\",\"minimum\":18446744073709551615}", "18446744073709551616", "5\n18446744073709551614"},
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}", "-12\n-1\n0\n99\n105", "-13\n106\n-0\n1.0\n1000"},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":9}", "10\n99\n123456789", "9\n0\n-10"},
    {"{\"type\":\"number\",\"minimum\":-1.25,\"exclusiveMaximum\":2}", "-1.25\n-1.2\n0\n0.5\n1.999",
     "-1.26\n2\n2.0\n-2\n1e1"},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", "0.1\n0.999\n0.001", "0\n0.0\n1\n-0.5"},
    {"{\"type\":[\"string\",\"null\"],\"maxLength\":1}", "null\n\"a\"", "\"ab\"\n1"},
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},{\"properties\":{"
     "\"b\":{\"const\":2}},\"required\":[\"b\"]}]}",
     "{\"a\":1,\"b\":2}", "{\"a\":1}\n{\"a\":2,\"b\":2}"},
    {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "\"x\"\nnull", "1"},
    /* What constrains one value from several places. */
    {"{\"allOf\":[{\"properties\":{\"a\":true},\"additionalProperties\":false},{\"properties\":{\"b\":true},"
     "\"additionalProperties\":false}],\"type\":\"object\"}",
     "{}", "{\"a\":1}\n{\"b\":1}\n{\"a\":1,\"b\":1}"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"allOf\":[{\"additionalProperties\":false}]}",
     "{}", "{\"a\":null}"},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"allOf\":[{\"prefixItems\":[{\"type\":\"number\","
     "\"minimum\":2}]}]}",
     "[]\n[2,1]", "[1]\n[2.5]\n[\"x\"]"},
    {"{\"type\":\"object\",\"allOf\":[{\"required\":[\"a\"]},{\"required\":[\"a\",\"b\"]}]}", "{\"a\":1,\"b\":2}",
     "{\"a\":1}\n{\"a\":1,\"a\":1,\"b\":2}"},
    {"{\"anyOf\":[{\"type\":\"string\",\"anyOf\":[false]},{\"type\":\"null\"}]}", "null", "\"x\""},
    {"{\"type\":[\"integer\",\"null\"],\"minimum\":3,\"allOf\":[{\"minimum\":1,\"maximum\":4}],\"enum\":[2,3,null,"
     "\"x\"]}",
     "3\nnull", "2\n4\n\"x\""},
    {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/$defs/"
     "n\"}}},\"m\":{\"properties\":{\"n\":{"
     "\"$ref\":\"#/$defs/m\"},\"k\":{\"type\":\"null\"}}}},\"allOf\":[{\"$ref\":\"#/$defs/n\"},{\"$ref\":\"#/$defs/"
     "m\"}]}",
     "{}\n{\"n\":{\"n\":{\"k\":null}}}", "{\"n\":{\"n\":{\"k\":1}}}\n{\"n\":1}"},
    {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},{\"properties\":{\"k\":{\"const\":2}},"
     "\"required\":[\"k\"]}],\"type\":\"object\"}",
     "{\"k\":1}\n{\"k\":2}", "\"x\"\n{}"},
    /* Numbers. */
    {"{\"enum\":[0.1,1.0,{\"a\":[2.5]}]}", "0.1\n1\n{\"a\": [2.5]}", "0.10000000000000001\n1.0"},
    {"{\"type\":\"integer\",\"maximum\":9007199254740993}", "9007199254740993", "9007199254740994"},
    {"{\"type\":\"number\",\"exclusiveMinimum\":1e-35,\"maximum\":1}", "0.5\n1.0", "0\n0.0\n1.00000000000000000001"},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1e-35}",
     "0.00000000000000000000000000000000001\n0.000000000000000000000000000000000009", "0\n0.1\n1e-35"},
    {"{\"type\":\"number\",\"minimum\":0.30000000000000004}", "0.300000000000001\n0.31", "0.3\n0.300000000000000"},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0.5}", "0.51\n1\n123456789.123456",
     "0.5\n0.50\n0.5000000000000000000001"},
    {"{\"type\":\"integer\"}", "123456789012345678\n-1", "1234567890123456789"},
    {"{\"type\":\"number\"}", "0.123456789012345\n1.5E-07", "0.1234567890123456\n1e100"},
};

/* Whether the grammar allows each of the texts, or none of them. */
static void expect_all(const schema_case *c, sn_grammar *grammar, const char *texts, bool expected) {
    char *copy = strdup(texts), *state = NULL;
    for (char *text = strtok_r(copy, "\n", &state); text; text = strtok_r(NULL, "\n", &state))
        cr_expect_eq(allows(grammar, text), expected, "%s: %s", c->schema, text);
    free(copy);
}

Test(grammar, allows_what_the_schema_allows_and_nothing_else) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sn_grammar *grammar = grammar_of(cases[i].schema);
        expect_all(&cases[i], grammar, cases[i].allowed, true);
        expect_all(&cases[i], grammar, cases[i].refused, false);
        sn_grammar_free(&grammar);
    }
}

Test(grammar, allows_a_line_and_an_indent_between_members) {
    sn_grammar *grammar = grammar_of(PERSON);
    cr_expect(allows(grammar, "{\n  \"name\": \"x\",\n\t\"age\": 3\n}"));
    cr_expect_not(allows(grammar, "{\n\n\"name\":\"x\"}"));
    cr_expect(allows(grammar, "{\n                    \"name\": \"x\"}"));
    cr_expect_not(allows(grammar, "{\n                     \"name\": \"x\"}"));
    cr_expect_not(allows(grammar, "{\"name\":  \"x\"}"));
    cr_expect_not(allows(grammar, "{\"name\" :\"x\"}"));
    sn_grammar_free(&grammar);
}

Test(grammar, refuses_a_schema_that_it_cannot_keep_exactly) {
    static const char *const schemas[][2] = {
        {"{\"not\":{}}", "not"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
        {"{\"type\":\"number\",\"multipleOf\":3}", "multipleOf"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "look-around"},
        {"{\"type\":\"string\",\"pattern\":\"a{9999}\"}", "too often"},
        {"{\"type\":\"string\",\"pattern\":\"a{4294967298}\"}", "too often"},
        {"{\"type\":\"string\",\"pattern\":\"a{1,99999999999999999999}\"}", "too often"},
        {"{\"type\":\"string\",\"pattern\":\"(a\"}", "not closed"},
        {"{\"type\":\"string\",\"pattern\":\"[a\"}", "a [ is not closed"},
        {"{\"type\":\"string\",\"pattern\":\"a)\"}", "closes nothing"},
        {"{\"type\":\"string\",\"pattern\":\"[b-a]\"}", "backwards"},
        {"{\"type\":\"string\",\"pattern\":\"[a-\\\\d]\"}", "ends with a class"},
        {"{\"type\":\"string\",\"pattern\":\"a{3,2}\"}", "backwards"},
        {"{\"type\":\"string\",\"pattern\":\"a{x}\"}", "does not begin a repeat"},
        {"{\"type\":\"string\",\"pattern\":\"*a\"}", "nothing before it"},
        {"{\"type\":\"string\",\"pattern\":\"a^b\"}", "outer alternative"},
        {"{\"type\":\"string\",\"pattern\":\"(a$)b\"}", "outer alternative"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "back references"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\u12\"}", "too few hexadecimal"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\u{41\"}", "a brace is not closed"},
        {"{\"type\":\"string\",\"pattern\":\"(?<=a)\"}", "look-around"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"minLength\":3}", "two of"},
        {"{\"type\":\"string\",\"format\":\"iri\"}", "iri"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\",\"maxLength\":3}]}", "anyOf"},
        {"{\"$ref\":\"#/nowhere\"}", "leads nowhere"},
        {"{\"type\":\"whole\"}", "whole"},
        {"{\"type\":\"string\",\"maxLength\":-1}", "maxLength"},
        {"{\"type\":\"string\",\"maxLength\":999999999}", "maxLength"},
        {"false", "no JSON"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no JSON"},
        {"3", "object, true or false"},
        {"{\"type\":\"string\",\"maxLength\":40000}", "above 32768"},
        {"{\"type\":\"array\",\"minItems\":40000}", "above 32768"},
        {"{\"$ref\":3}", "$ref"},
        {"{\"type\":[]}", "type"},
        {"{\"enum\":\"a\"}", "enum"},
        {"{\"pattern\":3}", "pattern"},
        {"{\"minimum\":\"3\"}", "minimum"},
        {"{\"enum\":[1,18446744073709551615]}", "64 bits"},
        {"{\"uniqueItems\":1}", "uniqueItems"},
        {"{\"prefixItems\":{}}", "prefixItems"},
        {"{\"required\":[1]}", "required"},
        {"{\"properties\":{\"a\":1}}", "properties"},
        {"{\"properties\":[]}", "properties"},
        {"{\"required\":\"a\"}", "required"},
        {"{\"anyOf\":[]}", "anyOf"},
        {"{\"items\":[true]}", "items"},
        {"{\"properties\":{\"a\":{\"$id\":\"x\"}}}", "$id"},
        {"{\"type\":\"number\",\"maximum\":1e23}", "too many digits"},
        {"{\"type\":\"number\",\"minimum\":1e-200}", "too many digits"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"allOf\":[{\"pattern\":\"b\"}]}", "two of"},
        {"{\"enum\":[\"a\"],\"pattern\":\"a\"}", "pattern"},
        {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},{\"properties\":{\"k\":{\"const\":2}}"
         ","
         "\"required\":[\"k\"]}]}",
         "anyOf"},
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        json_t *json = sn_wide_json_load(schemas[i][0], strlen(schemas[i][0]), JSON_DECODE_ANY, NULL);
        sn_grammar *grammar = NULL;
        sn_err err = {0};
        cr_expect_eq(sn_grammar_from_schema(json, &grammar, &err), SN_REFUSED, "%s", schemas[i][0]);
        cr_expect(strstr(err.text, schemas[i][1]), "%s: %s", schemas[i][0], err.text);
        cr_expect_null(grammar);
        json_decref(json);
    }
}

/* -- schemas that are made to cost much -- */

/* before, n times `each` with the number of the time, after */
static json_t *repeated(const char *before, const char *each, int n, const char *after) {
    size_t size = strlen(before) + strlen(after) + (size_t)n * (strlen(each) + 12) + 1, at;
    char *text = malloc(size);
    cr_assert(text);
    at = (size_t)snprintf(text, size, "%s", before);
    for (int i = 0; i < n; i++) {
        if (i) text[at++] = ',';
        at += (size_t)snprintf(text + at, size - at, each, i);
    }
    snprintf(text + at, size - at, "%s", after);
    json_t *json = json_loads(text, 0, NULL);
    cr_assert(json, "%.100s", text);
    free(text);
    return json;
}

static void expect_schema(json_t *json, sn_status expected, const char *words) {
    sn_grammar *grammar = NULL;
    sn_err reason = {0};
    cr_expect_eq(sn_grammar_from_schema(json, &grammar, &reason), expected, "%s", reason.text);
    if (words) cr_expect(strstr(reason.text, words), "%s", reason.text);
    sn_grammar_free(&grammar);
    json_decref(json);
}

#define CONSTANTS(n) repeated("{\"oneOf\":[", "{\"const\":%d}", n, "]}")

/* The work of compiling is bounded, and not only the grammar that comes of it: alternatives are compared in pairs. */
Test(grammar, refuses_more_alternatives_than_it_can_compare) {
    expect_schema(CONSTANTS(500), SN_OK, NULL);
    expect_schema(CONSTANTS(5000), SN_REFUSED, "too complex");
    expect_schema(repeated("{\"oneOf\":[", "{\"$ref\":\"#/oneOf/x%d\"}", 5000, "]}"), SN_REFUSED, NULL);
}

/* Each part is joined to a copy of all before. */
Test(grammar, refuses_to_join_parts_that_are_too_large) {
    json_t *json = repeated("{\"allOf\":[", "{\"properties\":{\"q%d\":true}}", 1000, "]}"), *all = json_object();
    for (int i = 0; i < 2000; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(all, name, json_true());
    }
    json_array_insert_new(json_object_get(json, "allOf"), 0, json_pack("{s:o}", "properties", all));
    expect_schema(json, SN_REFUSED, "too complex");
}

/* In pairs, through references whose pointers are long. */
Test(grammar, refuses_references_that_are_too_long_to_follow_so_often) {
    for (int n = 10; n <= 250; n += 240) {
        json_t *parts = json_array(), *of = json_object();
        for (int i = 0; i < n; i++) {
            char name[220], pointer[240];
            snprintf(name, sizeof name, "x%0200d", i);
            snprintf(pointer, sizeof pointer, "#/$defs/%s", name);
            json_object_set_new(of, name, json_pack("{s:i}", "const", i));
            json_array_append_new(
                parts, json_pack("{s:{s:{s:s}}, s:[s]}", "properties", "k", "$ref", pointer, "required", "k"));
        }
        expect_schema(json_pack("{s:o, s:s, s:o}", "$defs", of, "type", "object", "oneOf", parts),
                      n == 10 ? SN_OK : SN_REFUSED, n == 10 ? NULL : "too complex");
    }
}

/* Each member that one alternative requires is looked for in the other one. */
Test(grammar, refuses_alternatives_with_too_many_properties_to_compare) {
    for (int n = 4; n <= 64; n += 60) {
        json_t *parts = json_array();
        for (int i = 0; i < n; i++) {
            json_t *required = json_array();
            for (int k = 0; k < 400; k++) {
                char key[16];
                snprintf(key, sizeof key, "p%d", k);
                json_array_append_new(required, json_string(key));
            }
            json_array_append_new(parts, json_pack("{s:s, s:{s:{s:i}}, s:o}", "type", "object", "properties", "p399",
                                                   "const", i, "required", required));
        }
        expect_schema(json_pack("{s:o}", "oneOf", parts), n == 4 ? SN_OK : SN_REFUSED, n == 4 ? NULL : "too complex");
    }
}

Test(grammar, refuses_a_schema_of_too_many_values) {
    expect_schema(repeated("{\"enum\":[", "%d", 3000, "]}"), SN_OK, NULL);
    expect_schema(repeated("{\"enum\":[", "%d", 40000, "]}"), SN_REFUSED, "too large");
    char *text = calloc(1, (3 << 20) + 1); /* a long text counts as many */
    memset(text, 'x', 3 << 20);
    expect_schema(json_pack("{s:s}", "const", text), SN_REFUSED, "too large");
    free(text);
}

/* A pattern whose states multiply: which of the last letters were vowels. */
Test(grammar, states_take_a_bounded_memory) {
    sn_grammar *grammar =
        grammar_of("{\"type\":\"string\",\"pattern\":\"^([a-z]*[aeiou][a-z]{900}|([a-z]?){1300})$\"}");
    sn_err reason = {0};
    unsigned drawn = 1;
    int state, steps = 0;
    REQUIRE(sn_grammar_advance(grammar, sn_grammar_begin(grammar), "\"", 1, &state, &err));
    sn_status status = SN_OK;
    for (; !status && state != SN_GRAMMAR_DEAD && steps < 100000; steps++) {
        drawn = drawn * 1664525 + 1013904223;
        char letter = (char)('a' + (drawn >> 16) % 26);
        status = sn_grammar_advance(grammar, state, &letter, 1, &state, &reason);
    }
    cr_expect_eq(status, SN_REFUSED, "after %d letters", steps);
    cr_expect(strstr(reason.text, "too many states"), "%s", reason.text);
    cr_expect_lt(sn_grammar_bytes(grammar), 2 * SN_GRAMMAR_BYTES_MAX);
    sn_grammar_free(&grammar);
}

/* Few states of few places each, the last five letters, but between two of them thousands of places need no byte. */
Test(grammar, places_that_need_no_byte_count) {
    enum { EMPTY = 1800, LETTERS = 10, ROOM = 8192 };
    char pattern[ROOM];
    size_t n = 0;
    for (int i = 0; i < LETTERS; i++)
        n += (size_t)snprintf(pattern + n, sizeof pattern - n, "^[a-j]*%c[a-j]{4}$|", 'a' + i);
    n += (size_t)snprintf(pattern + n, sizeof pattern - n, "^([a-j](");
    memset(pattern + n, '|', EMPTY);
    memcpy(pattern + n + EMPTY, "))*$", sizeof "))*$");
    json_t *schema = json_pack("{s:s, s:s}", "type", "string", "pattern", pattern);
    sn_grammar *grammar;
    sn_err reason = {0};
    unsigned drawn = 1;
    int state, steps = 0;
    REQUIRE(sn_grammar_from_schema(schema, &grammar, &err));
    REQUIRE(sn_grammar_advance(grammar, sn_grammar_begin(grammar), "\"", 1, &state, &err));
    sn_status status = SN_OK;
    for (; !status && steps < 300000; steps++) {
        drawn = drawn * 1664525 + 1013904223;
        char letter = (char)('a' + (drawn >> 16) % LETTERS);
        status = sn_grammar_advance(grammar, state, &letter, 1, &state, &reason);
    }
    cr_expect_eq(status, SN_REFUSED, "after %d letters", steps);
    cr_expect(strstr(reason.text, "too many states"), "%s", reason.text);
    cr_expect_lt(sn_grammar_bytes(grammar), SN_GRAMMAR_BYTES_MAX);
    sn_grammar_free(&grammar);
    json_decref(schema);
}

Test(grammar, never_leads_to_a_dead_end) {
    sn_grammar *grammar = grammar_of("{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}");
    int state;
    REQUIRE(sn_grammar_advance(grammar, sn_grammar_begin(grammar), "1", 1, &state, &err));
    cr_expect_eq(state, SN_GRAMMAR_DEAD, "no number below 1 begins with 1");
    sn_grammar_free(&grammar);
}

Test(grammar, bounds_how_deep_json_nests) {
    sn_grammar *grammar = grammar_of("true");
    char text[2048];
    int state;
    memset(text, '[', sizeof text);
    REQUIRE(sn_grammar_advance(grammar, sn_grammar_begin(grammar), text, sizeof text, &state, &err));
    cr_expect_eq(state, SN_GRAMMAR_DEAD);
    memset(text, '[', 16);
    memset(text + 16, ']', 16);
    text[32] = 0;
    cr_expect(allows(grammar, text));
    sn_grammar_free(&grammar);
}

/* Tokens: every byte, and pieces of JSON that cross the limits of strings and members. */
typedef struct vocabulary {
    char bytes[512][8];
    const char *at[512];
    size_t lengths[512], n;
} vocabulary;
static void add_token(vocabulary *v, const char *bytes, size_t len) {
    memcpy(v->bytes[v->n], bytes, len);
    v->at[v->n] = v->bytes[v->n];
    v->lengths[v->n++] = len;
}
static sn_token_bytes *make_vocabulary(vocabulary *v) {
    static const char *const pieces[] = {"{\"", "\":",   "\",\"", "},", "name",     "na",       "me\"",
                                         "age", " \"",   "{\n  ", "12", "\xC3\xA9", "\xF0\x9F", "true",
                                         "tru", "null}", "[[",    "]]", "",         "\"}"};
    sn_token_bytes *tokens = NULL;
    v->n = 0;
    for (int b = 0; b < 256; b++) add_token(v, (char[]){(char)b}, 1);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) add_token(v, pieces[i], strlen(pieces[i]));
    REQUIRE(sn_token_bytes_new(v->at, v->lengths, v->n, &tokens, &err));
    return tokens;
}

Test(token_masks, have_exactly_the_tokens_that_the_grammar_allows_one_by_one) {
    vocabulary v;
    sn_token_bytes *tokens = make_vocabulary(&v);
    uint64_t seed = 7;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sn_grammar *grammar = grammar_of(cases[i].schema);
        sn_token_masks *masks = NULL;
        REQUIRE(sn_token_masks_new(tokens, grammar, &masks, &err));
        int state = sn_grammar_begin(grammar);
        for (int step = 0; step < 40; step++) { /* a random text of allowed tokens */
            const uint64_t *mask;
            int chosen = SN_GRAMMAR_DEAD;
            size_t allowed = 0;
            REQUIRE(sn_token_masks_get(masks, state, &mask, &err));
            for (size_t id = 0; id < v.n; id++) {
                int next;
                REQUIRE(sn_grammar_advance(grammar, state, v.at[id], v.lengths[id], &next, &err));
                bool may = v.lengths[id] && next != SN_GRAMMAR_DEAD;
                cr_assert_eq((bool)(mask[id / 64] >> (id % 64) & 1), may, "%s: token %zu", cases[i].schema, id);
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                if (may && (seed >> 33) % ++allowed == 0) chosen = next;
            }
            cr_assert(allowed || sn_grammar_may_end(grammar, state), "%s: a dead end", cases[i].schema);
            if (!allowed) break;
            state = chosen;
        }
        sn_token_masks_free(&masks);
        sn_grammar_free(&grammar);
    }
    sn_token_bytes_free(&tokens);
}

/* The number of a state's mask stands for it: far from a limit there is one for all counts. */
Test(token_masks, of_a_long_string_are_few_and_end_where_the_string_must) {
    vocabulary v;
    sn_token_bytes *tokens = make_vocabulary(&v);
    sn_grammar *grammar = grammar_of("{\"type\":\"string\",\"minLength\":20000,\"maxLength\":30000}");
    sn_token_masks *masks = NULL;
    const uint64_t *mask;
    int state;
    REQUIRE(sn_token_masks_new(tokens, grammar, &masks, &err));
    REQUIRE(sn_grammar_advance(grammar, sn_grammar_begin(grammar), "\"", 1, &state, &err));
    for (int n = 0; n <= 30000; n++) {
        REQUIRE(sn_token_masks_get(masks, state, &mask, &err));
        cr_assert_eq(mask['"' / 64] >> ('"' % 64) & 1, n >= 20000, "after %d characters", n);
        cr_assert_eq(mask['a' / 64] >> ('a' % 64) & 1, n < 30000, "after %d characters", n);
        if (n < 30000) REQUIRE(sn_grammar_advance(grammar, state, "a", 1, &state, &err));
    }
    cr_expect_lt(sn_token_masks_bytes(masks) / (((v.n + 63) / 64) * 8), 4 * SN_GRAMMAR_LOOK);
    sn_token_masks_free(&masks);
    sn_grammar_free(&grammar);
    sn_token_bytes_free(&tokens);
}

Test(token_masks, of_a_text_that_is_not_allowed_are_refused) {
    vocabulary v;
    sn_token_bytes *tokens = make_vocabulary(&v);
    sn_grammar *grammar = grammar_of("true");
    sn_token_masks *masks = NULL;
    const uint64_t *mask;
    REQUIRE(sn_token_masks_new(tokens, grammar, &masks, &err));
    cr_expect_eq(sn_token_masks_get(masks, SN_GRAMMAR_DEAD, &mask, NULL), SN_REFUSED);
    sn_token_masks_free(&masks);
    sn_grammar_free(&grammar);
    sn_token_bytes_free(&tokens);
}
