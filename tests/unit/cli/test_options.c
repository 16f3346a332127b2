#include "base/options.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *model;
static sn_strings join;
static size_t memory;
static int64_t threads;
static double temperature, share;
static bool push;
static sn_block_range local;
static int dtype;
static int64_t timeout_ms, drain_s, seed;
static sn_ints sizes;
static const char *isa, *listen_at;
static sn_strings kills;

static const sn_word dtype_words[] = {{"f32", 7}, {"f16", 8}, {"q8", 9}, {NULL, 0}};
static const sn_word kill_words[] = {{"replay", 0}, {"replica", 0}, {NULL, 0}};

static const sn_option model_options[] = {
    SN_OPT_REQUIRED("model", "PATH", &model, "the model"),
    SN_OPT_ADDRESSES("join", "HOST:PORT", &join, SN_HOST_PORT_PINNED, "a node"),
    SN_OPT_BLOCKS("local", "A:B", &local, "blocks"),
    SN_OPT_FLAG("push", &push, "nodes push"),
};
static const sn_option number_options[] = {
    SN_OPT_SIZE("kv-memory", "SIZE", &memory, "memory"),
    SN_OPT_INT("threads", "N", &threads, 1, 64, "threads"),
    SN_OPT_FLOAT("temperature", "T", &temperature, 0, 10, "how random the choice is"),
    SN_OPT_RATIO("audit", "SHARE", &share, 0, "share of steps"),
    SN_OPT_DURATION_MS("timeout", &timeout_ms, 1000, 3600000, "limit of a step"),
    SN_OPT_DURATION_S("drain-timeout", &drain_s, 0, 100, "limit of a drain"),
    SN_OPT_INT("seed", "S", &seed, 0, 100, "start of the random numbers (default: random)"),
    SN_OPT_INTS("sizes", &sizes, 1, 512, "sizes"),
};
static const sn_option word_options[] = {
    SN_OPT_ENUM("kv-dtype", &dtype, dtype_words, "type of the KV cache"),
    SN_OPT_WORD("isa", &isa, dtype_words, "instruction set"),
    SN_OPT_WORDS("kill", &kills, kill_words, "what is lost"),
    SN_OPT_ADDRESS("listen", "HOST:PORT", &listen_at, SN_HOST_PORT_LISTEN, "where to listen"),
    SN_OPT_STRING("out-dir", "FOLDER", &isa, "a folder"),
};
static const sn_option_group model_group = SN_OPTION_GROUP("Model:", model_options);
static const sn_option_group number_group = SN_OPTION_GROUP("Numbers:", number_options);
static const sn_option_group word_group = SN_OPTION_GROUP("Words:", word_options);
static const sn_option_group *const groups[] = {&model_group, &number_group, &word_group};
static const sn_exit_code exit_codes[] = {{0, "done"}, {2, "wrong usage"}, {0, NULL}};
static const sn_command command = {.program = "prog run",
                                   .summary = "do it",
                                   .synopsis = "[options]",
                                   .about = "Does it.\n\nOr not:\n  prog\n.dots and \\ are text.",
                                   .groups = groups,
                                   .n_groups = 3,
                                   .max_positionals = 1,
                                   .notes = "Notes.",
                                   .exit_codes = exit_codes};
static const sn_command *const commands[] = {&command};
static const sn_program program = {.name = "prog",
                                   .summary = "a program",
                                   .about = "Has commands.",
                                   .commands = commands,
                                   .n_commands = 1,
                                   .exit_codes = exit_codes};
static sn_options options;
static sn_err err;

static void set_defaults(void) {
    memory = 512 << 20;
    threads = 2;
    temperature = 0;
    share = 0;
    dtype = 7;
    timeout_ms = 90000;
    drain_s = 30;
    seed = SN_INT_UNSET;
    sizes = (sn_ints){{1, 4}, 2};
}

static void free_options(void) { sn_options_fini(&command, &options); }

TestSuite(options, .init = set_defaults, .fini = free_options);

#define PARSE(...)                                                                                                     \
    ({                                                                                                                 \
        free_options();                                                                                                \
        char *words[] = {"prog", __VA_ARGS__};                                                                         \
        sn_options_parse(&command, (int)(sizeof words / sizeof *words), words, &options, &err);                        \
    })

static sn_status parse_file(const char *text) {
    free_options();
    return sn_options_parse_file(&command, text, strlen(text), "f.conf", &options, &err);
}

/* A configuration file that is removed at the end of the test. */
static char path[] = "/tmp/test_options.XXXXXX";
static void write_config(const char *text) {
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

Test(options, takes_a_value_from_the_next_argument_or_after_an_equals_sign) {
    cr_assert_eq(PARSE("--model", "m.gguf", "--threads=4", "--kv-memory", "1GiB", "--temperature=0.5", "--local=2:5"),
                 SN_OK, "%s", err.text);
    cr_assert_str_eq(model, "m.gguf");
    cr_assert_eq(threads, 4);
    cr_assert_eq(memory, (size_t)1 << 30);
    cr_assert_float_eq(temperature, 0.5, 0);
    cr_assert(local.given && !local.all && local.first == 2 && local.end == 5);
}

Test(options, keeps_defaults_for_what_is_not_given) {
    cr_assert_eq(PARSE("--model=m"), SN_OK);
    cr_assert(threads == 2 && memory == 512 << 20 && !push && !local.given && !join.n);
}

Test(options, collects_a_repeatable_option_and_uses_the_last_of_a_single_one) {
    cr_assert_eq(PARSE("--join", "a:1", "--model=m", "--join=b:2", "--model=n", "--local", "all"), SN_OK);
    cr_assert_eq(join.n, 2);
    cr_assert_str_eq(join.items[0], "a:1");
    cr_assert_str_eq(join.items[1], "b:2");
    cr_assert_str_eq(model, "n");
    cr_assert(local.all);
}

Test(options, keeps_positional_arguments_and_everything_after_two_dashes) {
    cr_assert_eq(PARSE("--model=m", "--", "--push"), SN_OK);
    cr_assert_eq(options.positionals.n, 1);
    cr_assert_str_eq(options.positionals.items[0], "--push");
    cr_assert_not(push);
}

Test(options, takes_an_empty_value_and_a_negative_number_as_a_value) {
    cr_assert_eq(PARSE("--model="), SN_OK);
    cr_assert_str_eq(model, "");
    cr_assert_eq(PARSE("--model=m", "--threads", "-3"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--threads: '-3' must be a whole number from 1 to 64");
}

Test(options, suggests_the_nearest_name_for_an_unknown_one) {
    cr_assert_eq(PARSE("--thread", "3"), SN_REFUSED);
    cr_assert_str_eq(err.text, "there is no option --thread; did you mean --threads?");
    cr_assert_eq(PARSE("--temp=3"), SN_REFUSED);
    cr_assert_str_eq(err.text, "there is no option --temp; did you mean --temperature?");
    cr_assert_eq(PARSE("--xyzzy"), SN_REFUSED);
    cr_assert_str_eq(err.text, "there is no option --xyzzy; 'prog run --help' lists them all");
}

Test(options, names_the_option_that_lacks_its_value) {
    cr_assert_eq(PARSE("--model"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--model needs a value: --model PATH");
    cr_assert_eq(PARSE("--model", "--push"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--model needs a value; one that begins with -- is written --model=VALUE");
    cr_assert_eq(PARSE("--push", "--config"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--config needs a value: --config FILE");
}

Test(options, names_the_option_whose_value_is_bad) {
    cr_assert_eq(PARSE("--model=m", "--kv-memory=lots"), SN_REFUSED);
    cr_assert(!strncmp(err.text, "--kv-memory: 'lots' is no size", 30), "%s", err.text);
    cr_assert_eq(PARSE("--model=m", "--local=5:5"), SN_REFUSED);
    cr_assert(strstr(err.text, "--local: '5:5' is no range of blocks"), "%s", err.text);
    cr_assert_eq(PARSE("--model=m", "--push=maybe"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--push: 'maybe' must be true or false");
    cr_assert_eq(PARSE("--model=m", "--temperature=nan"), SN_REFUSED);
}

Test(options, refuses_missing_required_unknown_short_and_excess_arguments) {
    cr_assert_eq(PARSE("--push"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--model PATH is missing: the model");
    cr_assert_eq(PARSE("-x", "x"), SN_REFUSED);
    cr_assert_str_eq(err.text, "there is no option -x; 'prog run --help' lists them all");
    cr_assert_eq(PARSE("--model=m", "one", "two"), SN_REFUSED);
    cr_assert(strstr(err.text, "'two' is one argument too many"), "%s", err.text);
}

Test(options, takes_short_forms_with_the_value_in_the_same_word_or_the_next) {
    cr_assert_eq(PARSE("-m", "m.gguf", "-t8", "-j", "h:1"), SN_OK, "%s", err.text);
    cr_assert_str_eq(model, "m.gguf");
    cr_assert_str_eq(join.items[0], "h:1");
    cr_assert_eq(threads, 8);
    cr_assert_eq(PARSE("-m"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--model needs a value: --model PATH");
    cr_assert_eq(PARSE("-m", "m", "-t", "99"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--threads: '99' must be a whole number from 1 to 64");
}

Test(options, takes_a_duration_with_a_unit_or_in_seconds) {
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {{"30", 30000}, {"30s", 30000}, {"1500ms", 1500}, {"5m", 300000}, {"1h", 3600000}, {"1.5", 1500}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert_eq(PARSE("--model=m", "--timeout", (char *)(uintptr_t)good[i].text), SN_OK, "%s", err.text);
        cr_expect_eq(timeout_ms, good[i].ms, "%s", good[i].text);
    }
    cr_assert_eq(PARSE("--model=m", "--drain-timeout=1m"), SN_OK);
    cr_assert_eq(drain_s, 60);
    cr_assert_eq(PARSE("--model=m", "--timeout=soon"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--timeout: 'soon' is no duration: write a number with the unit ms, s, m or h, as in "
                               "500ms or 5m; a number without a unit is in seconds");
    cr_assert_eq(PARSE("--model=m", "--timeout=10 s"), SN_REFUSED);
    cr_assert_eq(PARSE("--model=m", "--timeout=-5"), SN_REFUSED);
    cr_assert_eq(PARSE("--model=m", "--timeout=2h"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--timeout: '2h' must be a duration from 1s to 1h");
    cr_assert_eq(PARSE("--model=m", "--drain-timeout=500ms"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--drain-timeout: '500ms' must be a whole number of seconds");
    cr_assert_eq(PARSE("--model=m", "--drain-timeout=2m"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--drain-timeout: '2m' must be a duration from 0 to 100s");
}

Test(options, takes_words_of_an_enumeration_as_its_values) {
    cr_assert_eq(PARSE("--model=m", "--kv-dtype", "q8", "--isa=f16", "--kill=replay", "--kill=replica"), SN_OK);
    cr_assert_eq(dtype, 9);
    cr_assert_str_eq(isa, "f16");
    cr_assert_eq(kills.n, 2);
    cr_assert_eq(PARSE("--model=m", "--kv-dtype=int4"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--kv-dtype: 'int4' must be f32, f16 or q8");
    cr_assert_eq(PARSE("--model=m", "--isa=mmx"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--isa: 'mmx' must be f32, f16 or q8");
    cr_assert_eq(PARSE("--model=m", "--kill=replay", "--kill=all"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--kill: 'all' must be replay or replica");
}

Test(options, takes_a_ratio_from_0_to_1) {
    cr_assert_eq(PARSE("--model=m", "--audit=0.25"), SN_OK);
    cr_assert_float_eq(share, 0.25, 0);
    cr_assert_eq(PARSE("--model=m", "--audit=1"), SN_OK);
    cr_assert_eq(PARSE("--model=m", "--audit=5"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--audit: '5' must be a ratio from 0 to 1");
    cr_assert_eq(PARSE("--model=m", "--audit=often"), SN_REFUSED);
}

Test(options, takes_a_list_of_numbers) {
    cr_assert_eq(PARSE("--model=m", "--sizes=1,512,3"), SN_OK);
    cr_assert(sizes.n == 3 && sizes.items[0] == 1 && sizes.items[1] == 512 && sizes.items[2] == 3);
    cr_assert_eq(PARSE("--model=m", "--sizes=1,,3"), SN_REFUSED);
    cr_assert_eq(PARSE("--model=m", "--sizes=1,600"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--sizes: '600' must be a whole number from 1 to 512");
    cr_assert_eq(PARSE("--model=m", "--sizes=1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--sizes: a list has at most 16 numbers");
}

Test(options, checks_addresses_in_the_form_of_the_option) {
    cr_assert_eq(PARSE("--model=m", "--join=[::1]:31330", "--listen", "*:0"), SN_OK, "%s", err.text);
    cr_assert_str_eq(listen_at, "*:0");
    cr_assert_eq(PARSE("--model=m", "--join=h:0"), SN_REFUSED);
    cr_assert(!strncmp(err.text, "--join: 'h:0' is no address: write HOST:PORT", 44), "%s", err.text);
    cr_assert_eq(PARSE("--model=m", "--join=7001"), SN_REFUSED);
    cr_assert_eq(PARSE("--model=m", "--join=h:1#abc"), SN_REFUSED);
    cr_assert_eq(PARSE("--model=m", "--listen=h:1#abc"), SN_REFUSED);
}

Test(options, notices_help_and_version_before_anything_is_checked) {
    cr_assert_eq(PARSE("--nonsense", "--help"), SN_OK);
    cr_assert(options.help == SN_HELP_TEXT && !options.version);
    cr_assert_eq(PARSE("-t", "-h"), SN_OK);
    cr_assert_eq(options.help, SN_HELP_TEXT);
    cr_assert_eq(PARSE("--help=man"), SN_OK);
    cr_assert_eq(options.help, SN_HELP_MAN);
    cr_assert_eq(PARSE("--help=completion"), SN_OK);
    cr_assert_eq(options.help, SN_HELP_COMPLETION);
    cr_assert_eq(PARSE("--help=html"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--help: 'html' must be man or completion");
    cr_assert_eq(PARSE("--version"), SN_OK);
    cr_assert(options.version);
    cr_assert_eq(PARSE("--model=m", "--", "--help"), SN_OK);
    cr_assert_not(options.help);
}

Test(options, reads_a_file_with_comments_flags_and_repeated_names) {
    cr_assert_eq(parse_file("# a swarm\n\n  model = /m odels/a.gguf  \r\njoin = h:1 # the first\n"
                            "join=h:2\npush = true\nthreads = 8"),
                 SN_OK, "%s", err.text);
    cr_assert_str_eq(model, "/m odels/a.gguf");
    cr_assert_eq(join.n, 2);
    cr_assert_str_eq(join.items[0], "h:1");
    cr_assert(push && threads == 8);
}

Test(options, names_file_and_line_of_what_is_wrong_in_a_file) {
    cr_assert_eq(parse_file("model = m\nthread = 3\n"), SN_REFUSED);
    cr_assert_str_eq(err.text, "f.conf:2: unknown option 'thread'; did you mean threads?");
    cr_assert_eq(parse_file("\n\nwhat is this"), SN_REFUSED);
    cr_assert_str_eq(err.text, "f.conf:3: write name = value (a flag is name = true)");
    cr_assert_eq(parse_file("threads = 0"), SN_REFUSED);
    cr_assert_str_eq(err.text, "f.conf:1: threads: '0' must be a whole number from 1 to 64");
    cr_assert_eq(parse_file("model ="), SN_REFUSED);
    cr_assert_str_eq(err.text, "f.conf:1: model has no value");
    free_options();
    cr_assert_eq(sn_options_parse_file(&command, "mo\0del = 1", 10, "f.conf", &options, &err), SN_REFUSED);
    cr_assert_eq(parse_file("config = other.conf"), SN_REFUSED);
}

Test(options, the_command_line_overrides_the_file) {
    write_config("model = file\njoin = a:1\njoin = b:1\nthreads = 8\npush = true\n");
    cr_assert_eq(PARSE("--join", "c:1", "--model=here", "--push=false", "--config", path), SN_OK, "%s", err.text);
    unlink(path);
    cr_assert_str_eq(model, "here");
    cr_assert_eq(join.n, 1);
    cr_assert_str_eq(join.items[0], "c:1");
    cr_assert(!push && threads == 8);
}

Test(options, takes_a_required_option_from_the_file) {
    write_config("model = file\n");
    cr_assert_eq(PARSE("--config", path), SN_OK, "%s", err.text);
    unlink(path);
    cr_assert_str_eq(model, "file");
}

Test(options, reports_a_file_that_cannot_be_read) {
    cr_assert_eq(PARSE("--model=m", "--config=/nonexistent/x.conf"), SN_REFUSED);
    cr_assert(strstr(err.text, "--config: /nonexistent/x.conf cannot be opened"), "%s", err.text);
}

/* What a printer of the table writes; free with free(). */
static char *printed(void (*print)(FILE *)) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    print(out);
    fclose(out);
    return text;
}

static void print_help(FILE *out) { sn_options_help(&command, out); }
static void print_man(FILE *out) { sn_options_man(&command, "prog", out); }
static void print_program_help(FILE *out) { sn_program_help(&program, out); }
static void print_program_man(FILE *out) { sn_program_man(&program, out); }
static void print_completion(FILE *out) { sn_program_completion(&program, out); }

static void expect_within_100_columns(const char *text) {
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        cr_assert(strcspn(line, "\n") <= 100, "%.120s", line);
}

Test(options, shows_every_option_with_its_default_once_within_100_columns) {
    char *text = printed(print_help);
    static const char *const expected[] = {"Usage: prog run [options]",
                                           "Model:",
                                           "Numbers:",
                                           "  -m, --model PATH",
                                           "the model (required)",
                                           "--kv-memory SIZE",
                                           "(default 512MiB)",
                                           "  -t, --threads N",
                                           "(default 2)",
                                           "  -j, --join HOST:PORT",
                                           "a node; may be repeated\n",
                                           "how random the choice is (default 0)",
                                           "share of steps (default 0)",
                                           "limit of a step (default 90s)",
                                           "limit of a drain (default 30s)",
                                           "start of the random numbers (default: random)\n",
                                           "sizes (default 1,4)",
                                           "      --kv-dtype f32|f16|q8",
                                           "type of the KV cache (default f32)",
                                           "      --config FILE",
                                           "  -h, --help",
                                           "Exit codes: 0 done; 2 wrong usage."};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        cr_expect(strstr(text, expected[i]), "'%s' in %s", expected[i], text);
    expect_within_100_columns(text);
    free(text);
}

Test(options, lists_the_commands_of_a_program) {
    char *text = printed(print_program_help);
    cr_assert(strstr(text, "Usage: prog COMMAND") && strstr(text, "  run         do it\n") && strstr(text, "prog help"),
              "%s", text);
    expect_within_100_columns(text);
    free(text);
}

static size_t count_options(void) {
    size_t n = 0;
    for (size_t g = 0; g < command.n_groups; g++) n += groups[g]->n;
    return n;
}

Test(options, the_man_page_has_every_option) {
    char *text = printed(print_man), name[64];
    size_t n = 0;
    for (size_t g = 0; g < command.n_groups; g++)
        for (size_t i = 0; i < groups[g]->n; i++, n++) {
            size_t len = (size_t)snprintf(name, sizeof name, "\\fB\\-\\-");
            for (const char *c = groups[g]->options[i].name; *c; c++)
                len += (size_t)snprintf(name + len, sizeof name - len, *c == '-' ? "\\-" : "%c", *c);
            cr_expect(strstr(text, name), "%s in %s", name, text);
        }
    cr_assert_eq(n, count_options());
    cr_assert(strstr(text, ".TH \"PROG-RUN\" 1") && strstr(text, "prog\\-run \\- do it"), "%s", text);
    cr_assert(strstr(text, "\\fB\\-m\\fR, \\fB\\-\\-model\\fR \\fIPATH\\fR"), "%s", text);
    cr_assert(strstr(text, "\n\\&.dots and \\e are text."), "a line of text is no request: %s", text);
    cr_assert(strstr(text, ".SH EXIT STATUS") && strstr(text, ".SH SEE ALSO\n\\fBprog\\fR(1)"), "%s", text);
    free(text);
    text = printed(print_program_man);
    cr_assert(strstr(text, ".SH COMMANDS\n.TP\n\\fBprog run\\fR\ndo it; see \\fBprog\\-run\\fR(1)"), "%s", text);
    free(text);
}

Test(options, the_completion_has_every_option_and_its_words) {
    char *text = printed(print_completion), name[64];
    for (size_t g = 0; g < command.n_groups; g++)
        for (size_t i = 0; i < groups[g]->n; i++) {
            snprintf(name, sizeof name, " --%s", groups[g]->options[i].name);
            cr_expect(strstr(text, name), "%s in %s", name, text);
        }
    cr_assert(strstr(text, "--kv-dtype) kind=words words='f32 f16 q8' ;;"), "%s", text);
    cr_assert(strstr(text, "--model | -m) kind=path ;;") && strstr(text, "--out-dir) kind=folder ;;"), "%s", text);
    cr_assert(strstr(text, "--threads | -t) kind=none ;;"), "%s", text);
    cr_assert(strstr(text, "complete -o filenames -F _prog prog\n"), "%s", text);
    free(text);
}

Test(options, finds_the_nearest_word_only_when_one_is_near) {
    const char *names[] = {"generate", "chat", "status"};
    cr_assert_str_eq(sn_nearest_name("genrate", names, 3), "generate");
    cr_assert_str_eq(sn_nearest_name("caht", names, 3), "chat");
    cr_assert_str_eq(sn_nearest_name("stat", names, 3), "status");
    cr_assert_null(sn_nearest_name("zebra", names, 3));
    cr_assert_null(sn_nearest_name("", names, 3));
}
