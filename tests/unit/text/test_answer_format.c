/* Answers taken apart by what the chat template shows: thoughts, content and calls of tools, whole and at every cut. */
#include "text/chat/answer_format.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define LOOP    "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}</u>{% else %}<a>"
#define CALLS   "{% for c in m.tool_calls %}{% set f = c.function %}"
#define END     "{% endfor %}</a>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
#define CONTENT "{{ m.content }}"

/* Templates in the manner of model families; `calls` is what each would write for the two calls below. */
typedef struct family {
    const char *name, *template, *calls;
    bool one_call; /* its template knows one call only */
} family;
static const family families[] = {
    {"tags around JSON",
     LOOP CONTENT CALLS
     "<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>\n" END,
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}\n</tool_call>\n"
     "<tool_call>{\"name\":\"ask\",\"arguments\":{\"q\":\"a\\\"}\"}}</tool_call>",
     false},
    {"a list of JSON",
     LOOP CONTENT "[TOOLS][" CALLS
                  "{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}, \"id\": \"{{ c.id }}\"}"
                  "{% if not loop.last %}, {% endif %}{% endfor %}]</a>{% endif %}{% endfor %}{% if "
                  "add_generation_prompt %}<a>{% endif %}",
     "[TOOLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}, \"id\": \"x\"}, "
     "{\"arguments\": {\"q\": \"a\\\"}\"}, \"name\": \"ask\"}]",
     false},
    {"an object by name",
     LOOP CONTENT "<tools>[" CALLS "{\"{{ f.name }}\": {{ f.arguments | tojson }}}{% if not loop.last %}, {% endif %}"
                  "{% endfor %}]</tools></a>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
     "<tools>[{\"weather\": {\"city\": \"Bern\", \"days\": 3}}, {\"ask\": {\"q\": \"a\\\"}\"}}]</tools>", false},
    {"bare JSON",
     LOOP "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}" CONTENT CALLS
          "{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}" END,
     "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}", true},
    {"a name, then JSON",
     LOOP CONTENT
     "<|calls|>" CALLS
     "<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|args|>{{ f.arguments | tojson }}<|end|>{% endfor %}<|done|>"
     "</a>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
     "<|calls|><|call|>functions.weather:0<|args|>{\"city\": \"Bern\", \"days\": 3}<|end|>"
     "<|call|>functions.ask:1<|args|>{\"q\": \"a\\\"}\"}<|end|><|done|>",
     false},
    {"an id, a name, JSON", LOOP CONTENT CALLS "[CALL]{{ c.id }}[NAME]{{ f.name }}[ARGS]{{ f.arguments | tojson }}" END,
     "[CALL]a1b2[NAME]weather[ARGS]{\"city\": \"Bern\", \"days\": 3}[CALL]zz[NAME]ask[ARGS]{\"q\": \"a\\\"}\"}", false},
    {"a tag for each argument",
     LOOP CONTENT CALLS "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k "
                        "}}>\n{{ v }}\n</parameter>\n"
                        "{% endfor %}</function>\n</tool_call>" END,
     "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n</"
     "function>\n</tool_call>\n"
     "<tool_call>\n<function=ask>\n<parameter=q>\na\"}\n</parameter>\n</function>\n</tool_call>",
     false},
    {"keys and values in tags",
     LOOP CONTENT CALLS "<tool_call>{{ f.name }}\n{% for k, v in f.arguments | items %}<arg_key>{{ k "
                        "}}</arg_key>\n<arg_value>{{ v }}</arg_value>\n"
                        "{% endfor %}</tool_call>\n" END,
     "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</"
     "arg_value>\n</tool_call>\n"
     "<tool_call>ask\n<arg_key>q</arg_key>\n<arg_value>a\"}</arg_value>\n</tool_call>",
     false},
    {"values that say whether they are text",
     LOOP CONTENT "<calls>\n" CALLS
                  "<invoke name=\"{{ f.name }}\">\n{% for k, v in f.arguments | items %}<parameter name=\"{{ k }}\" "
                  "string=\"{{ 'true' if v is string else 'false' }}\">{{ v }}</parameter>\n{% endfor %}</invoke>\n{% "
                  "endfor %}</calls>"
                  "</a>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
     "<calls>\n<invoke name=\"weather\">\n<parameter name=\"city\" string=\"true\">Bern</parameter>\n<parameter "
     "name=\"days\" string=\"false\">3"
     "</parameter>\n</invoke>\n<invoke name=\"ask\">\n<parameter name=\"q\" "
     "string=\"true\">a\"}</parameter>\n</invoke>\n</calls>",
     false},
    {"calls as in a program",
     LOOP CONTENT
     "{% if m.tool_calls %}<|call|>[" CALLS
     "{{ f.name }}({% for k, v in f.arguments | items %}{{ k }}={% if v is string %}'{{ v }}'{% else %}{{ v "
     "}}{% endif %}{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif "
     "%}{% endfor %}]<|end|>{% endif %}</a>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
     "<|call|>[weather(city='Bern', days=3), ask(q='a\"}')]<|end|>", false},
    {"calls in braces",
     LOOP CONTENT CALLS
     "<|call>call:{{ f.name }}{% raw %}{{% endraw %}{% for k, v in f.arguments | items %}{{ k }}:{% if v is "
     "string %}<|\"|>{{ v }}<|\"|>{% else %}{{ v }}{% endif %}{% if not loop.last %},{% endif %}{% endfor "
     "%}}<call|>" END,
     "<|call>call:weather{city:<|\"|>Bern<|\"|>,days:3}<call|><|call>call:ask{q:<|\"|>a\"}<|\"|>}<call|>", false},
    {"a tag by the name of each argument",
     LOOP CONTENT "{% if m.tool_calls %}]~<calls>\n" CALLS
                  "]~<invoke name=\"{{ f.name }}\">{% for k, v in f.arguments | items %}]~<{{ k }}>{{ v }}]~</{{ k "
                  "}}>{% endfor %}]~</invoke>\n{% endfor %}]~</calls>{% endif %}</a>{% endif %}{% endfor %}{% if "
                  "add_generation_prompt %}<a>{% endif %}",
     "]~<calls>\n]~<invoke name=\"weather\">]~<city>Bern]~</city>]~<days>3]~</days>]~</invoke>\n"
     "]~<invoke name=\"ask\">]~<q>a\"}]~</q>]~</invoke>\n]~</calls>",
     false},
};

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ask\",\"parameters\":{\"type\":\"object\",\"properties\":{\"q\":{"
    "\"type\":\"string\"}}}}}]";

static sn_answer_format *format_of(const char *template) {
    const sn_chat_source source = {.text = template, .len = strlen(template), .bos = "<s>", .eos = "</s>"};
    sn_chat_template *chat = NULL;
    sn_answer_format *format = NULL;
    REQUIRE(sn_chat_template_parse(&source, &chat, &err));
    REQUIRE(sn_answer_format_open(chat, &format, &err));
    sn_chat_template_close(&chat);
    return format;
}

static const char *text_of(const json_t *message, const char *key) {
    const char *text = json_string_value(json_object_get(message, key));
    return text ? text : "";
}
static const json_t *call_of(const json_t *message, size_t i) {
    return json_object_get(json_array_get(json_object_get(message, "tool_calls"), i), "function");
}
static bool continues(const char *longer, const char *shorter) { return !strncmp(longer, shorter, strlen(shorter)); }

/* What is read of a longer beginning continues what was read of a shorter one. */
static void expect_growth(const char *what, const json_t *before, const json_t *after) {
    cr_assert(continues(text_of(after, "content"), text_of(before, "content")), "%s: content", what);
    cr_assert(continues(text_of(after, "reasoning_content"), text_of(before, "reasoning_content")), "%s: thought",
              what);
    size_t n = json_array_size(json_object_get(before, "tool_calls"));
    cr_assert_leq(n, json_array_size(json_object_get(after, "tool_calls")), "%s: a call is gone", what);
    for (size_t i = 0; i < n; i++) {
        cr_assert_str_eq(text_of(call_of(after, i), "name"), text_of(call_of(before, i), "name"), "%s", what);
        cr_assert(continues(text_of(call_of(after, i), "arguments"), text_of(call_of(before, i), "arguments")),
                  "%s: '%s' does not continue '%s'", what, text_of(call_of(after, i), "arguments"),
                  text_of(call_of(before, i), "arguments"));
    }
}

/* Reads the text cut behind each of its bytes, as a whole and as it grows; returns the message of the whole. */
static json_t *read_at_every_cut(const sn_answer_format *format, const char *text, const uint8_t *special,
                                 bool thinks) {
    json_t *tools = json_loads(tools_text, 0, NULL), *before = NULL, *after = NULL;
    size_t len = strlen(text), added = 0;
    sn_answer_reader *reader = NULL;
    REQUIRE(sn_answer_reader_open(format, thinks, tools, &reader, &err));
    for (size_t cut = 0; cut <= len; cut++) {
        if (special && cut < len && special[cut] && text[cut] != '<') continue; /* special tokens come whole */
        const sn_answer answer = {text, special, cut, thinks, cut == len, tools};
        REQUIRE(sn_answer_read(format, &answer, &after, &err));
        REQUIRE(sn_answer_reader_add(reader, text + added, special ? special + added : NULL, cut - added, cut == len,
                                     &err));
        added = cut;
        json_t *grown = sn_answer_reader_json(reader);
        cr_expect(json_equal(grown, after), "the first %zu bytes of %s: %s", cut, text, json_dumps(grown, 0));
        json_decref(grown);
        if (before) expect_growth(text, before, after);
        json_decref(before);
        before = after;
    }
    sn_answer_reader_close(&reader);
    json_decref(tools);
    return before;
}

static void expect_calls(const family *f, const json_t *message, const char *content) {
    static const char *const names[] = {"weather", "ask"};
    static const char *const arguments[] = {"{\"city\": \"Bern\", \"days\": 3}", "{\"q\": \"a\\\"}\"}"};
    cr_expect_str_eq(text_of(message, "content"), content, "%s", f->name);
    cr_expect_eq(json_array_size(json_object_get(message, "tool_calls")), f->one_call ? 1 : 2, "%s", f->name);
    for (size_t i = 0; i < (f->one_call ? 1 : 2); i++) {
        json_t *got = json_loads(text_of(call_of(message, i), "arguments"), 0, NULL),
               *want = json_loads(arguments[i], 0, NULL);
        cr_expect_str_eq(text_of(call_of(message, i), "name"), names[i], "%s", f->name);
        cr_expect(json_equal(got, want), "%s: %s", f->name, text_of(call_of(message, i), "arguments"));
        json_decref(got);
        json_decref(want);
    }
}

Test(answer_format, reads_the_calls_that_a_template_shows_at_every_cut) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const family *f = &families[i];
        sn_answer_format *format = format_of(f->template);
        json_t *message = read_at_every_cut(format, f->calls, NULL, false);
        expect_calls(f, message, "");
        json_decref(message);
        sn_answer_format_close(&format);
    }
}

Test(answer_format, keeps_the_text_before_calls_and_thoughts_apart) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const family *f = &families[i];
        if (f->one_call) continue; /* bare JSON is the whole answer */
        sn_answer_format *format = format_of(f->template);
        char text[2048];
        snprintf(text, sizeof text, "<think>\nWhich <tool_call>? [\n</think>\n\nI look it up. <b> %s", f->calls);
        json_t *message = read_at_every_cut(format, text, NULL, false);
        expect_calls(f, message, "I look it up. <b>");
        cr_expect_str_eq(text_of(message, "reasoning_content"), "Which <tool_call>? [", "%s", f->name);
        json_decref(message);
        sn_answer_format_close(&format);
    }
}

Test(answer_format, leaves_an_answer_without_calls_as_it_is) {
    static const char *const texts[] = {"Hello.\n\n {\"name\": 1} ", "{\"a\": [1, 2]}", "a < b, [TOOL", "<tool", "  "};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        sn_answer_format *format = format_of(families[i].template);
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            json_t *message = read_at_every_cut(format, texts[k], NULL, false);
            cr_expect_str_eq(text_of(message, "content"), texts[k], "%s", families[i].name);
            cr_expect_null(json_object_get(message, "tool_calls"), "%s: %s", families[i].name, texts[k]);
            json_decref(message);
        }
        sn_answer_format_close(&format);
    }
}

Test(answer_format, reads_no_calls_when_the_request_has_no_tools) {
    sn_answer_format *format = format_of(families[0].template);
    const sn_answer answer = {.text = families[0].calls, .len = strlen(families[0].calls), .ended = true};
    json_t *message = NULL;
    REQUIRE(sn_answer_read(format, &answer, &message, &err));
    cr_expect_str_eq(text_of(message, "content"), families[0].calls);
    cr_expect_null(json_object_get(message, "tool_calls"));
    json_decref(message);
    sn_answer_format_close(&format);
}

Test(answer_format, finds_the_marks_of_thoughts_in_the_template) {
    static const char template[] =
        "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}</u>{% else %}<a>[THINK]{{ "
        "m.reasoning_content }}"
        "[/THINK]{{ m.content }}</a>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>[THINK]\n{% endif %}";
    sn_answer_format *format = format_of(template);
    static const char prompt[] = "<u>hi</u><a>[THINK]\n";
    cr_expect(sn_answer_format_prompt_thinks(format, prompt, strlen(prompt)));
    cr_expect_not(sn_answer_format_prompt_thinks(format, "<u>hi</u><a>", strlen("<u>hi</u><a>")));
    json_t *message = read_at_every_cut(format, "2 + 2 is\n4[/TH] [/THINK] Four.", NULL, true);
    cr_expect_str_eq(text_of(message, "reasoning_content"), "2 + 2 is\n4[/TH]");
    cr_expect_str_eq(text_of(message, "content"), "Four.");
    json_decref(message);
    sn_answer_format_close(&format);
}

/* Some templates show a thought before a call alone; what opens the text behind it is no part of its end. */
Test(answer_format, finds_the_marks_of_thoughts_before_calls_and_before_text) {
    static const char *const templates[] = {
        LOOP
        "{% if m.tool_calls %}<|think>t\n{{ m.reasoning_content }}\n<think|>" CALLS
        "<|call|>{{ f.name }}{{ f.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}</a>{% endif "
        "%}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
        LOOP "<|think>t\n{{ m.reasoning_content }}\n<think|><|text|>{{ m.content }}" CALLS
             "<|call|>{{ f.name }}{{ f.arguments | tojson }}" END};
    for (size_t i = 0; i < 2; i++) {
        sn_answer_format *format = format_of(templates[i]);
        json_t *message =
            read_at_every_cut(format, "<|think>t\nWhich?\n<think|><|call|>ask{\"q\": \"a\"}", NULL, false);
        cr_expect_str_eq(text_of(message, "reasoning_content"), "Which?", "%zu", i);
        cr_expect_str_eq(text_of(message, "content"), "", "%zu", i);
        cr_expect_str_eq(text_of(call_of(message, 0), "name"), "ask", "%zu", i);
        json_decref(message);
        sn_answer_format_close(&format);
    }
}

/* Lists and objects within arguments, as JSON, as Python, and as elements. */
Test(answer_format, reads_values_within_values) {
    static const struct {
        size_t family;
        const char *calls, *arguments;
    } cases[] = {
        {6,
         "<tool_call>\n<function=f>\n<parameter=x>\n{'a': [True, None], \"b\": 'it\\'s'}\n</parameter>\n</function>\n",
         "{\"x\": {\"a\": [true, null], \"b\": \"it's\"}}"},
        {9, "<|call|>[f(x=[1, -2.5, {'k': \"v\\n\"}], y=(1, 2,), z={}, w=False)]<|end|>",
         "{\"x\": [1, -2.5, {\"k\": \"v\\n\"}], \"y\": [1, 2], \"z\": {}, \"w\": false}"},
        {9, "<|call|>[f(x='a\"b', y=\"a'b\")]<|end|>", "{\"x\": \"a\\\"b\", \"y\": \"a'b\"}"},
        {9, "<|call|>[f()]<|end|>", "{}"},
        {10, "<|call>call:f{x:{a:[1,<|\"|>two, }<|\"|>],<|\"|>b<|\"|>:true}}<call|>",
         "{\"x\": {\"a\": [1, \"two, }\"], \"b\": true}}"},
        {11,
         "]~<calls>\n]~<invoke "
         "name=\"f\">]~<x>]~<item>1]~</item>]~<item>]~<k>v]~</k>]~<n>2]~</n>]~</item>]~</x>]~</invoke>\n]~</calls>",
         "{\"x\": [1, {\"k\": \"v\", \"n\": 2}]}"},
    };
    json_t *tools = json_loads(
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"x\":{\"type\":\"object\"}}}}}]", 0, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sn_answer_format *format = format_of(families[cases[i].family].template);
        const sn_answer answer = {.text = cases[i].calls, .len = strlen(cases[i].calls), .ended = true, .tools = tools};
        json_t *message = NULL, *want = json_loads(cases[i].arguments, 0, NULL);
        REQUIRE(sn_answer_read(format, &answer, &message, &err));
        json_t *got = json_loads(text_of(call_of(message, 0), "arguments"), 0, NULL);
        cr_expect(want && json_equal(got, want), "%s: %s", cases[i].calls, json_dumps(message, 0));
        json_decref(got);
        json_decref(want);
        json_decref(message);
        sn_answer_format_close(&format);
    }
    json_decref(tools);
}

/* A model may write any number of brackets. */
Test(answer_format, values_within_values_end_somewhere) {
    enum { MANY = 1 << 20 };
    static const char begin[] = "<|call|>[weather(city=";
    char *text = malloc(sizeof begin + MANY + 1);
    memcpy(text, begin, sizeof begin);
    memset(text + sizeof begin - 1, '[', MANY);
    json_t *tools = json_loads(tools_text, 0, NULL), *message = NULL;
    sn_answer_format *format = format_of(families[9].template);
    const sn_answer answer = {.text = text, .len = sizeof begin - 1 + MANY, .ended = true, .tools = tools};
    REQUIRE(sn_answer_read(format, &answer, &message, &err));
    cr_expect_str_eq(text_of(call_of(message, 0), "name"), "weather");
    json_decref(message);
    json_decref(tools);
    free(text);
    sn_answer_format_close(&format);
}

Test(answer_format, reads_channels) {
    static const char template[] =
        "{% for m in messages %}{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% elif "
        "m.tool_calls %}"
        "<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
        "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else "
        "%}<|start|>assistant<|channel|>final<|message|>"
        "{{ m.content }}<|return|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";
    static const char text[] = "<|channel|>analysis<|message|>Bern? <|end|><|start|>assistant<|channel|>commentary "
                               "to=functions.weather <|constrain|>json<|message|>{\"city\":\"Bern\"}<|call|>"
                               "<|start|>assistant<|channel|>final<|message|>It rains <|here|>.<|return|>";
    uint8_t special[sizeof text] = {0};
    for (size_t i = 0, in = 0; i < sizeof text - 1; i++) {
        in = in ? in : !strncmp(text + i, "<|", 2) && strncmp(text + i, "<|here|>", 8);
        special[i] = (uint8_t)in;
        if (text[i] == '>') in = 0;
    }
    sn_answer_format *format = format_of(template);
    json_t *message = read_at_every_cut(format, text, special, false);
    cr_expect_str_eq(text_of(message, "reasoning_content"), "Bern? ");
    cr_expect_str_eq(text_of(message, "content"), "It rains <|here|>.");
    cr_expect_str_eq(text_of(call_of(message, 0), "name"), "weather");
    cr_expect_str_eq(text_of(call_of(message, 0), "arguments"), "{\"city\":\"Bern\"}");
    json_decref(message);
    sn_answer_format_close(&format);
}

Test(answer_format, leaves_special_tokens_out_of_the_content) {
    sn_answer_format *format = format_of(families[0].template);
    static const char text[] = "Hi<|im_end|>";
    const uint8_t special[] = {0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    json_t *message = read_at_every_cut(format, text, special, false);
    cr_expect_str_eq(text_of(message, "content"), "Hi");
    json_decref(message);
    sn_answer_format_close(&format);
}

Test(answer_format, of_a_template_without_calls_is_the_general_one) {
    sn_answer_format *format = format_of("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}");
    json_t *message =
        read_at_every_cut(format,
                          "I ask.\n<tool_call>\n{\"name\": \"ask\", \"arguments\": {\"q\": 1}}\n</tool_call>"
                          "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                          NULL, false);
    cr_expect_str_eq(text_of(message, "content"), "I ask.");
    cr_expect_str_eq(text_of(call_of(message, 0), "name"), "ask");
    cr_expect_str_eq(text_of(call_of(message, 0), "arguments"), "{\"q\": 1}");
    cr_expect_str_eq(text_of(call_of(message, 1), "name"), "f");
    json_decref(message);
    sn_answer_format_close(&format);
}

/* Its arguments hold the name of the other example, which is no second call. */
Test(answer_format, reads_a_call_whose_template_names_another_function) {
    sn_answer_format *format = format_of(
        LOOP CONTENT CALLS "[C]{{ f.name }}[A]{% if 'KEY_ONE' in f.arguments %}{\"KEY_ONE\":\"OTHER_FUNCTION\"}"
                           "{% else %}{{ f.arguments | tojson }}{% endif %}" END);
    json_t *message = read_at_every_cut(format, "[C]ask[A]{\"q\": \"a\\\"}\"}", NULL, false);
    cr_expect_str_eq(text_of(call_of(message, 0), "name"), "ask");
    cr_expect_str_eq(text_of(call_of(message, 0), "arguments"), "{\"q\": \"a\\\"}\"}");
    json_decref(message);
    sn_answer_format_close(&format);
}

/* A model may write any bytes; names have letters, digits and three signs. */
Test(answer_format, a_zero_ends_a_name) {
    static const char text[] = "[C]ask\0\0more[A]{}";
    sn_answer_format *format = format_of(LOOP CONTENT CALLS "[C]{{ f.name }}[A]{{ f.arguments | tojson }}" END);
    json_t *message = NULL, *tools = json_loads(tools_text, 0, NULL);
    const sn_answer answer = {.text = text, .len = sizeof text - 1, .ended = true, .tools = tools};
    REQUIRE(sn_answer_read(format, &answer, &message, &err));
    const json_t *name = json_object_get(call_of(message, 0), "name");
    cr_expect_eq(json_string_length(name), 3);
    cr_expect_str_eq(json_string_value(name), "ask");
    json_decref(message);
    json_decref(tools);
    sn_answer_format_close(&format);
}

Test(answer_format, an_argument_in_tags_may_be_long) {
    enum { LONG = 20000 };
    static char text[LONG + 200], value[LONG + 1];
    memset(value, 'a', LONG);
    const int len =
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=ask>\n<parameter=q>\n%s\n</parameter>\n</function>\n</tool_call>", value);
    sn_answer_format *format =
        format_of(LOOP CONTENT CALLS "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}"
                                     "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n"
                                     "</tool_call>" END);
    json_t *message = NULL, *tools = json_loads(tools_text, 0, NULL);
    const sn_answer answer = {.text = text, .len = (size_t)len, .ended = true, .tools = tools};
    REQUIRE(sn_answer_read(format, &answer, &message, &err));
    cr_expect_eq(json_string_length(json_object_get(call_of(message, 0), "arguments")), LONG + strlen("{\"q\": \"\"}"));
    json_decref(message);
    json_decref(tools);
    sn_answer_format_close(&format);
}

/* They may be large, and a request has many answers, which are kept until the last one has ended. */
Test(answer_format, tools_are_let_go_at_the_end_of_an_answer) {
    sn_answer_format *format = format_of(families[0].template);
    json_t *tools = json_loads(tools_text, 0, NULL);
    sn_answer_reader *reader = NULL;
    REQUIRE(sn_answer_reader_open(format, false, tools, &reader, &err));
    REQUIRE(sn_answer_reader_add(reader, families[0].calls, NULL, strlen(families[0].calls), false, &err));
    cr_expect_eq(tools->refcount, 2);
    REQUIRE(sn_answer_reader_add(reader, "", NULL, 0, true, &err));
    cr_expect_eq(tools->refcount, 1);
    cr_expect_eq(sn_answer_reader_calls(reader), 2);
    sn_answer_reader_close(&reader);
    json_decref(tools);
    sn_answer_format_close(&format);
}

/* Byte by byte. If each looked at all bytes before it, this would take minutes. */
Test(answer_format, a_long_answer_is_read_in_one_go) {
    enum { PART = 100 << 10 };
    static const char begin_call[] = "<tool_call>\n{\"name\": \"ask\", \"arguments\": {\"q\": \"";
    static const char end_call[] = "\"}}\n</tool_call>";
    sn_answer_format *format = format_of(families[0].template);
    json_t *tools = json_loads(tools_text, 0, NULL);
    sn_answer_reader *reader = NULL;
    REQUIRE(sn_answer_reader_open(format, false, tools, &reader, &err));
    const char *const pieces[] = {"<think>", NULL, "</think>", NULL, begin_call, NULL, end_call};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        for (size_t k = 0; k < (pieces[i] ? strlen(pieces[i]) : PART); k++)
            REQUIRE(sn_answer_reader_add(reader, pieces[i] ? pieces[i] + k : k % 7 ? "a" : " ", NULL, 1, false, &err));
    size_t content, thought, arguments;
    REQUIRE(sn_answer_reader_add(reader, "", NULL, 0, true, &err));
    (void)sn_answer_reader_content(reader, &content);
    (void)sn_answer_reader_thought(reader, &thought);
    cr_expect(content == PART - 1 && thought == PART - 1, "%zu %zu", content, thought); /* without the first space */
    cr_assert_eq(sn_answer_reader_calls(reader), 1);
    (void)sn_answer_reader_arguments(reader, 0, &arguments);
    cr_expect_eq(arguments, PART + strlen("{\"q\": \"\"}"));
    sn_answer_reader_close(&reader);
    json_decref(tools);
    sn_answer_format_close(&format);
}
