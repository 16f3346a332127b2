/* The template engine against Jinja2's results (tests/fixtures/jinja), its limits, its errors, and its marks. */
#include "text/jinja/jinja.h"
#include "tests/support/tokenizers.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const struct tm fourth_of_july = {
    .tm_year = 125, .tm_mon = 6, .tm_mday = 4, .tm_hour = 12, .tm_wday = 5, .tm_yday = 184};

static sn_status render_with(const char *template, const json_t *variables, const sn_jinja_limits *limits,
                             sn_jinja_text *out, sn_err *err) {
    sn_jinja *parsed;
    *out = (sn_jinja_text){0};
    sn_status status = sn_jinja_parse(template, strlen(template), &parsed, err);
    if (status) return status;
    const sn_jinja_input input = {
        .variables = variables, .now = &fourth_of_july, .limits = limits ? *limits : sn_jinja_default_limits()};
    status = sn_jinja_render(parsed, &input, out, err);
    sn_jinja_free(&parsed);
    return status;
}

static void expect_refused(const char *template, const sn_jinja_limits *limits, const char *error_part) {
    json_t *variables = json_pack("{s:s, s:[i,i]}", "s", "text", "l", 1, 2);
    sn_jinja_text out;
    sn_err err = {0};
    cr_assert_eq(render_with(template, variables, limits, &out, &err), SN_REFUSED, "%.200s", template);
    cr_assert(strstr(err.text, error_part), "'%s' does not say '%s'", err.text, error_part);
    cr_assert_null(out.text);
    json_decref(variables);
}

Test(jinja, writes_what_jinja2_writes) {
    json_t *goldens = load_json("jinja", "goldens.json"), *item;
    size_t i, rendered = 0, refused = 0;
    json_array_foreach(json_object_get(goldens, "cases"), i, item) {
        const char *template = json_string_value(json_object_get(item, "template"));
        const json_t *expected = json_object_get(item, "text");
        sn_jinja_text out;
        sn_err err = {0};
        sn_status status = render_with(template, json_object_get(goldens, "variables"), NULL, &out, &err);
        if (expected) {
            cr_assert_eq(status, SN_OK, "%s: %s", template, err.text);
            cr_assert_str_eq(out.text, json_string_value(expected), "%s", template);
            rendered++;
        } else {
            cr_assert_eq(status, SN_REFUSED, "%s: Jinja2 refuses it", template);
            cr_assert(!strncmp(err.text, "line ", 5), "%s: %s", template, err.text);
            refused++;
        }
        sn_jinja_text_fini(&out);
    }
    cr_assert(rendered > 600 && refused > 90);
    json_decref(goldens);
}

Test(jinja, names_the_line_and_the_construct_of_an_error) {
    expect_refused("a\n\n{{ x.y }}", NULL, "line 3, '.y': 'x' is undefined");
    expect_refused("{# \n #}\n{{ s | zzz }}", NULL, "line 3, filter 'zzz': there is no filter of this name");
    expect_refused("{{ s is\nzzz }}", NULL, "test 'zzz'");
    expect_refused("{{ s\n + 1 }}", NULL, "line 1, +: a string and a int");
    expect_refused("{% if s %}\n{% for x in 5 %}\n{% endfor %}{% endif %}", NULL, "line 2, {% for %}: a int");
    expect_refused("{% macro m(a) %}\n{{ a.b.c }}{% endmacro %}\n\n{{ m({}) }}", NULL,
                   "line 2, '.c': 'b' is undefined");
    expect_refused("\n{{ raise_exception('Roles must\nalternate') }}", NULL,
                   "line 2: the template refuses this conversation: Roles must alternate");
    expect_refused("\n{% if s %}", NULL, "{% elif %} is missing");
    expect_refused("{% include 'x' %}", NULL, "line 1: {% include %} is not known");
    expect_refused("{{ '%5\\x00' % 1 }}", NULL, "the format ends within a conversion");
    expect_refused("\n{{ s.split(1) }}", NULL, "line 2, 'split': expected a string, not a int");
    expect_refused("\n{{ foo('x') }}", NULL, "line 2, call: 'foo' is undefined");
}

Test(jinja, ends_a_template_that_takes_too_many_steps) {
    sn_jinja_limits limits = sn_jinja_default_limits();
    limits.steps = 100000;
    expect_refused("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", &limits,
                   "more than 100000 steps");
    expect_refused("{% for i in range(500) %}{{ 'x' * 60000 in 'y' * 60000 }}{% endfor %}", &limits, "steps");
    expect_refused("{% set l = [1] %}{% for i in l %}{% set _ = l.append(1) %}{% endfor %}", &limits, "steps");
}

/* A step stands for a bounded time: what a method or filter looks at is charged, however much that is. */
Test(jinja, ends_a_template_whose_calls_look_at_too_much) {
    static const char *const templates[] = {
        "{{ ('a' * 30000).strip('b' * 30000 ~ 'a') }}",
        "{{ ('a' * 60000).rfind('a' * 30000 ~ 'c') }}",
        "{% set s = 'a ' * 20000 %}{% for i in range(10) %}{{ s | wordcount }}{% endfor %}",
        "{% set s = 'a' * 20000 %}{% for i in range(10) %}{{ s.isalpha() }}{% endfor %}",
        "{% set s = '1' * 20000 %}{% for i in range(10) %}{{ s is lower }}{% endfor %}",
        "{% set s = 'a' * 20000 %}{% for i in range(250) %}{{ 'baaaa' in s }}{% endfor %}",
        "{% set s = 'a' * 20000 %}{% for i in range(50) %}{% set t = s.upper() %}{% endfor %}",
        "{% set s = 'x' * 60000 %}{% for i in range(500) %}{{ s.startswith(s) }}{% endfor %}",
        "{% set s = 'x' * 60000 %}{% for i in range(500) %}{% set t = s.removeprefix(s) %}{% endfor %}",
        "{% set s = 'x' * 60000 %}{% for i in range(500) %}{% set t = s.removesuffix(s) %}{% endfor %}",
        "{% set s = 'x' * 60000 %}{% for i in range(20) %}{% set t = s.split() %}{% endfor %}",
        "{% set s = ' ' * 60000 %}{% for i in range(10) %}{{ s.split() }}{% endfor %}",
        "{% set l = [1] * 10000 %}{% for i in range(200) %}{% set x = l | max %}{% endfor %}",
        "{% set l = [1] * 10000 %}{% for i in range(200) %}{% set x = l | sum %}{% endfor %}",
        "{% set l = [''] * 10000 %}{% for i in range(200) %}{{ l | join }}{% endfor %}",
        "{% set l = [''] * 10000 %}{% for i in range(200) %}{{ ''.join(l) }}{% endfor %}",
        "{% set l = [1] * 10000 %}{% for i in range(12) %}{{ l | select('none') | join }}{% endfor %}",
        "{% set l = [s] * 10000 %}{% for i in range(12) %}{{ l | selectattr('y') | join }}{% endfor %}",
        "{% set l = [1] * 9999 %}{% set m = [1] * 9999 %}{% for i in range(200) %}{% set x = l == m %}{% endfor %}",
        "{% set l = [1] * 9999 %}{% set m = [1] * 9999 %}{% for i in range(200) %}{% set x = l < m %}{% endfor %}",
        "{% set s = '{a}' * 150 * 100 %}{% for i in range(10) %}{{ s.format(a='') }}{% endfor %}",
        "{% set s = 'x' * 60000 %}{% for i in range(200) %}{{ s.count('') }}{% endfor %}",
        "{% set d = {} %}{% set t = (1,) * 10000 %}{% for i in range(200) %}{{ d.get(t) }}{% endfor %}",
        "{% set s = 'x' * 20000 %}{% set x = ([{}] * 200) | map(attribute=s) | list %}",
        "{% set s = ' ' * 20000 %}{% for i in range(200) %}{{ s | int }}{% endfor %}",
        "{% set s = ' ' * 20000 %}{% for i in range(200) %}{{ s | float }}{% endfor %}",
    };
    sn_jinja_limits limits = sn_jinja_default_limits();
    limits.steps = 100000;
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        expect_refused(templates[i], &limits, "more than 100000 steps");
}

/* Of each pair of blocks either leads from the hash before it (FNV-1a of 32 bits) to the same hash behind it. */
enum { PAIRS = 12, BLOCK = 5, KEYS = 1 << PAIRS };

static uint32_t hash_on(uint32_t hash, const char block[BLOCK]) {
    for (int i = 0; i < BLOCK; i++) hash = (hash ^ (uint8_t)block[i]) * 16777619u;
    return hash;
}

static void write_block(uint32_t number, char out[BLOCK]) {
    for (int i = 0; i < BLOCK; i++, number /= 26) out[i] = (char)('a' + number % 26);
}

static uint32_t find_pair(uint32_t hash, char pair[2][BLOCK]) {
    enum { SLOTS = 1 << 20 };
    static uint32_t seen[SLOTS];
    memset(seen, 0, sizeof seen);
    for (uint32_t number = 1;; number++) {
        write_block(number, pair[0]);
        const uint32_t next = hash_on(hash, pair[0]);
        uint32_t *slot = &seen[next % SLOTS];
        if (*slot) write_block(*slot, pair[1]);
        if (*slot && hash_on(hash, pair[1]) == next) return next;
        *slot = number;
    }
}

/* An object of a request may have any keys. */
static json_t *object_of_keys(bool collide) {
    static char pairs[PAIRS][2][BLOCK];
    json_t *object = json_object();
    uint32_t hash = 2166136261u;
    for (int i = 0; i < PAIRS; i++) hash = find_pair(hash, pairs[i]);
    for (int k = 0; k < KEYS; k++) {
        char key[PAIRS * BLOCK + 1] = "";
        for (int i = 0; i < PAIRS; i++) memcpy(key + (size_t)i * BLOCK, pairs[i][collide ? k >> i & 1 : 0], BLOCK);
        if (!collide)
            memcpy(key, (const char[]){(char)('a' + k / 256), (char)('a' + k / 16 % 16), (char)('a' + k % 16)}, 3);
        json_object_set_new(object, key, json_null());
    }
    cr_assert_eq(json_object_size(object), KEYS);
    return object;
}

Test(jinja, keys_whose_hashes_collide_cost_their_steps) {
    sn_jinja_limits limits = sn_jinja_default_limits();
    limits.steps = 1 << 20;
    for (int collide = 0; collide < 2; collide++) {
        json_t *variables = json_pack("{s:o}", "o", object_of_keys(collide));
        sn_jinja_text out;
        sn_err err = {0};
        cr_expect_eq(render_with("{{ o | length }}", variables, &limits, &out, &err), collide ? SN_REFUSED : SN_OK,
                     "%s", err.text);
        if (!collide) cr_expect_str_eq(out.text, "4096");
        sn_jinja_text_fini(&out);
        json_decref(variables);
    }
}

Test(jinja, ends_a_template_that_looks_up_too_many_names) {
    enum { NAMES = 800 };
    static char template[NAMES * 24 + 100];
    sn_jinja_limits limits = sn_jinja_default_limits();
    size_t n = 0;
    limits.steps = 100000;
    for (int i = 0; i < NAMES; i++) n += (size_t)snprintf(template + n, sizeof template - n, "{%% set a%d = 1 %%}", i);
    snprintf(template + n, sizeof template - n, "{%% for i in range(9999) %%}{{ z }}{%% endfor %%}");
    expect_refused(template, &limits, "more than 100000 steps");
}

Test(jinja, ends_a_template_that_nests_too_deep) {
    static char open[20001];
    expect_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, "deep");
    expect_refused("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", NULL, "deep");
    expect_refused("{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}", NULL, "deep");
    expect_refused("{% set l = [] %}{% set _ = l.append(l) %}{{ l == [l] }}", NULL, "deep");
    expect_refused("{% set ns = namespace(g=l) %}{% for i in range(99999) %}{% set ns.g = ns.g | select %}{% endfor %}"
                   "{{ ns.g | join }}",
                   NULL, "deep");
    memset(open, '(', sizeof open - 1);
    memcpy(open, "{{", 2);
    expect_refused(open, NULL, "brackets");
    for (size_t i = 2; i + 4 < sizeof open; i += 4) memcpy(open + i, "not ", 4);
    memcpy(open + sizeof open - 5, "s }}", 4);
    expect_refused(open, NULL, "deep");
    for (size_t i = 0; i + 10 < sizeof open; i += 10) memcpy(open + i, "{%if s  %}", 10);
    expect_refused(open, NULL, "deep");
    for (size_t i = 2; i + 2 < sizeof open; i += 2) memcpy(open + i, "s+", 2);
    memcpy(open, "{{", 2);
    memcpy(open + sizeof open - 5, "s }}", 5);
    expect_refused(open, NULL, "deep");
}

Test(jinja, ends_a_template_that_writes_too_much) {
    sn_jinja_limits limits = sn_jinja_default_limits();
    limits.output = 5000;
    expect_refused("{% for i in range(9999) %}0123456789{% endfor %}", &limits, "more than 5000 bytes");
    expect_refused("{{ 'x' * 5001 }}", &limits, "more than 5000 bytes");
    limits.memory = 1 << 20;
    expect_refused("{{ 'x' * 1000000000000 }}", &limits, "memory");
    expect_refused("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
                   &limits, "memory");
    expect_refused("{{ [0] * 1000000000000 }}", &limits, "memory");
    expect_refused("{{ 'a'.center(100000000) }}", &limits, "memory");
}

Test(jinja, takes_widths_and_counts_of_any_size) {
    json_t *variables = json_pack("{s:I}", "least", (json_int_t)INT64_MIN);
    sn_jinja_text out;
    sn_err err = {0};
    cr_assert_eq(
        render_with("{{ 'a'.center(least) }}{{ 'b'.ljust(least) }}{{ 'c' | center(least) }}{{ 'd'.zfill(least) }}"
                    "{{ 'e f g'.split(' ', least) }}{{ 'hi'.replace('i', 'j', least) }}"
                    "{{ 'klm nop' | truncate(9223372036854775807) }}",
                    variables, NULL, &out, &err),
        SN_OK, "%s", err.text);
    cr_assert_str_eq(out.text, "abcd['e', 'f', 'g']hjklm nop");
    sn_jinja_text_fini(&out);
    json_decref(variables);
    expect_refused("{{ 9223372036854775807 | round(-1) }}", NULL, "64 bits");
}

Test(jinja, runs_what_other_engines_run_beyond_jinja2) {
    json_t *variables = json_pack("{s:s}", "s", "{\"a\": [1, \"b\"]}");
    sn_jinja_text out;
    sn_err err;
    cr_assert_eq(
        render_with("{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}{{ l.pop() }}{{ l }}{{ (s | from_json).a }}"
                    "{% set d = {} %}{% set _ = d.update({'x': 1}) %}{{ d }}",
                    variables, NULL, &out, &err),
        SN_OK, "%s", err.text);
    cr_assert_str_eq(out.text, "[1, 2]2[1][1, 'b']{'x': 1}");
    sn_jinja_text_fini(&out);
    json_decref(variables);
}

/* ---- marks ---- */

/* Renders, and writes each byte that comes from the variables as '#'. */
static void expect_marks(const char *template, const char *expected) {
    json_t *variables = json_pack("{s:s, s:{s:s}, s:[s,s]}", "x", "ab<c>", "d", "k", "v", "l", "p", "q");
    sn_jinja_text out;
    sn_err err;
    cr_assert_eq(render_with(template, variables, NULL, &out, &err), SN_OK, "%s: %s", template, err.text);
    for (size_t i = 0; i < out.len; i++)
        if (out.marks[i] & SN_JINJA_DATA) out.text[i] = '#';
    cr_assert_str_eq(out.text, expected, "%s", template);
    sn_jinja_text_fini(&out);
    json_decref(variables);
}

Test(jinja, marks_what_comes_from_the_variables_through_every_operation) {
    expect_marks("A{{ x }}B", "A#####B");
    expect_marks("{{ 'A' + x + 'B' }}{{ 'A' ~ x ~ 1 }}", "A#####BA#####1");
    expect_marks("{{ x[1:3] }}|{{ x[0] }}|{{ x[::-1] }}|{{ ('A' ~ x)[:2] }}", "##|#|#####|A#");
    expect_marks("{{ x | upper }}{{ x.title() }}{{ x | capitalize }}{{ ('A' ~ x).lower() }}", "###############a#####");
    expect_marks("{{ (' ' ~ x ~ ' ') | trim }}{{ (x ~ 'Z').strip('a') }}{{ ('Z' ~ x).lstrip('Q') }}",
                 "#########ZZ#####");
    expect_marks("{{ x | replace('b', 'ZZ') }}{{ 'AbB' | replace('b', x) }}{{ x.replace('', '-') }}",
                 "#ZZ###A#####B-#-#-#-#-#-");
    expect_marks("{{ x.split('<')[1] }}{{ ('A,' ~ x).split(',') | join('+') }}{{ 'A'.join(l) }}", "##A+######A#");
    expect_marks("{{ x | tojson }}{{ '<' | tojson }}{{ d | tojson(indent=1) }}", "########<### ##########");
    expect_marks("{{ [x] }}{{ d }}", "###################");
    expect_marks("{{ '%s|%5s' | format(x, 'Z') }}{{ 'A{}'.format(x) }}{{ 'A%s' % x }}", "#####|    ZA#####A#####");
    expect_marks("{{ x | indent(2, true) }}{{ x | escape }}{{ x | string | safe }}{{ x | list | join }}",
                 "  ##########################");
    expect_marks("{% set y %}A{{ x }}{% endset %}{{ y }}{% filter upper %}b{{ x }}{% endfilter %}", "A#####B#####");
    expect_marks("{% macro m(t) %}<{{ t }}>{{ caller() }}{% endmacro %}{% call m(x) %}A{{ x }}{% endcall %}",
                 "<#####>A#####");
    expect_marks("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}{% for c in x %}{{ c }}{% endfor %}",
                 "#=######");
    expect_marks("{% set ns = namespace(t='A') %}{% for p in l %}{% set ns.t = ns.t + p %}{% endfor %}{{ ns.t }}",
                 "A##");
    expect_marks("{{ l | map('upper') | join(', ') }}{{ x | truncate(4, true, '..', 0) }}{{ x.partition('b')[0] }}",
                 "#, ###..#");
    expect_marks("{{ l | first }}{{ l | sort | last }}{{ x | default('Q') }}{{ l.pop() }}{{ x if x else 'A' }}",
                 "#############");
    expect_marks("{{ '{\"a\": \"<s>\"}' | from_json }}", "############");
}

Test(jinja, marks_generation_blocks) {
    json_t *variables = json_pack("{s:s}", "x", "ab");
    sn_jinja_text out;
    sn_err err;
    cr_assert_eq(render_with("u{% generation %}{{ x }}.{% endgeneration %}v", variables, NULL, &out, &err), SN_OK);
    cr_assert_str_eq(out.text, "uab.v");
    static const uint8_t expected[] = {0, 3, 3, 2, 0};
    cr_assert(out.len == 5 && !memcmp(out.marks, expected, 5));
    sn_jinja_text_fini(&out);
    json_decref(variables);
}

static bool is_color(const char *key, const char *text) { return !strcmp(key, "color") && !strcmp(text, "red"); }

Test(jinja, leaves_unmarked_what_counts_as_the_templates_own) {
    static const char template[] = "{{ bos }}{{ d.color }}{{ e.color }}";
    json_t *variables = json_pack("{s:{s:s}, s:{s:s}}", "d", "color", "red", "e", "color", "blue");
    json_t *own = json_pack("{s:s}", "bos", "<s>");
    sn_jinja *parsed;
    sn_jinja_text out;
    sn_err err;
    cr_assert_eq(sn_jinja_parse(template, sizeof template - 1, &parsed, &err), SN_OK);
    const sn_jinja_input input = {variables, own, is_color, NULL, sn_jinja_default_limits()};
    cr_assert_eq(sn_jinja_render(parsed, &input, &out, &err), SN_OK, "%s", err.text);
    cr_assert_str_eq(out.text, "<s>redblue");
    for (size_t i = 0; i < out.len; i++) cr_assert_eq(out.marks[i], i < 6 ? 0 : SN_JINJA_DATA);
    sn_jinja_text_fini(&out);
    sn_jinja_free(&parsed);
    json_decref(variables);
    json_decref(own);
}
