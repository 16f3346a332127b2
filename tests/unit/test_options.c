#include "base/options.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *model;
static sn_strings join;
static size_t memory;
static int64_t threads;
static double temperature;
static bool push;
static sn_block_range local;

static const sn_option model_options[] = {
    SN_OPT_REQUIRED("model", "PATH", &model, "the model"),
    SN_OPT_STRINGS("join", "ADDRESS", &join, "a node"),
    SN_OPT_BLOCKS("local", "A:B", &local, "blocks"),
    SN_OPT_FLAG("push", &push, "nodes push"),
};
static const sn_option number_options[] = {
    SN_OPT_SIZE("kv-memory", "SIZE", &memory, "memory"),
    SN_OPT_INT("threads", "N", &threads, 1, 64, "threads"),
    SN_OPT_FLOAT("temperature", "T", &temperature, 0, 10, "how much chance"),
};
static const sn_option_group groups[] = {{"Model:", model_options, 4}, {"Numbers:", number_options, 3}};
static const sn_command command = {
    .program = "prog", .synopsis = "[options]", .about = "Does it.", .groups = groups, .n_groups = 2, .max_words = 1};
static sn_options options;
static sn_err err;

static void set_defaults(void) {
    memory = 512 << 20;
    threads = 2;
    temperature = 0;
}

static void leave(void) { sn_options_fini(&command, &options); }

TestSuite(options, .init = set_defaults, .fini = leave);

#define PARSE(...)                                                                                                     \
    ({                                                                                                                 \
        leave();                                                                                                       \
        char *words[] = {"prog", __VA_ARGS__};                                                                         \
        sn_options_parse(&command, (int)(sizeof words / sizeof *words), words, &options, &err);                        \
    })

static sn_status parse_file(const char *text) {
    leave();
    return sn_options_parse_file(&command, text, strlen(text), "f.conf", &options, &err);
}

/* A configuration file that is gone when the test ends. */
static char path[] = "/tmp/test_options.XXXXXX";
static void write_config(const char *text) {
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

Test(options, takes_a_value_from_the_next_word_or_behind_an_equals_sign) {
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

Test(options, collects_a_repeatable_option_and_lets_the_last_of_a_single_one_count) {
    cr_assert_eq(PARSE("--join", "a", "--model=m", "--join=b", "--model=n", "--local", "all"), SN_OK);
    cr_assert_eq(join.n, 2);
    cr_assert_str_eq(join.items[0], "a");
    cr_assert_str_eq(join.items[1], "b");
    cr_assert_str_eq(model, "n");
    cr_assert(local.all);
}

Test(options, keeps_positional_words_and_everything_behind_two_dashes) {
    cr_assert_eq(PARSE("--model=m", "--", "--push"), SN_OK);
    cr_assert_eq(options.words.n, 1);
    cr_assert_str_eq(options.words.items[0], "--push");
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
    cr_assert_str_eq(err.text, "there is no option --xyzzy; 'prog --help' lists them all");
}

Test(options, says_which_option_lacks_its_value) {
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

Test(options, refuses_a_missing_required_option_a_short_one_and_a_word_too_many) {
    cr_assert_eq(PARSE("--push"), SN_REFUSED);
    cr_assert_str_eq(err.text, "--model PATH is missing: the model");
    cr_assert_eq(PARSE("-m", "x"), SN_REFUSED);
    cr_assert(strstr(err.text, "two dashes"), "%s", err.text);
    cr_assert_eq(PARSE("--model=m", "one", "two"), SN_REFUSED);
    cr_assert(strstr(err.text, "'two' is one argument too many"), "%s", err.text);
}

Test(options, notices_help_and_version_before_anything_is_checked) {
    cr_assert_eq(PARSE("--nonsense", "--help"), SN_OK);
    cr_assert(options.help && !options.version);
    cr_assert_eq(PARSE("--version"), SN_OK);
    cr_assert(options.version);
    cr_assert_eq(PARSE("--model=m", "--", "--help"), SN_OK);
    cr_assert_not(options.help);
}

Test(options, reads_a_file_with_comments_flags_and_repeated_names) {
    cr_assert_eq(parse_file("# a swarm\n\n  model = /m odels/a.gguf  \r\njoin = tcp://h:1#abc # the first\n"
                            "join=tcp://h:2\npush = true\nthreads = 8"),
                 SN_OK, "%s", err.text);
    cr_assert_str_eq(model, "/m odels/a.gguf");
    cr_assert_eq(join.n, 2);
    cr_assert_str_eq(join.items[0], "tcp://h:1#abc");
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
    leave();
    cr_assert_eq(sn_options_parse_file(&command, "mo\0del = 1", 10, "f.conf", &options, &err), SN_REFUSED);
    cr_assert_eq(parse_file("config = other.conf"), SN_REFUSED);
}

Test(options, lets_the_command_line_win_over_the_file_wherever_it_stands) {
    write_config("model = file\njoin = a\njoin = b\nthreads = 8\npush = true\n");
    cr_assert_eq(PARSE("--join", "c", "--model=here", "--push=false", "--config", path), SN_OK, "%s", err.text);
    unlink(path);
    cr_assert_str_eq(model, "here");
    cr_assert_eq(join.n, 1);
    cr_assert_str_eq(join.items[0], "c");
    cr_assert(!push && threads == 8);
}

Test(options, takes_a_required_option_from_the_file) {
    write_config("model = file\n");
    cr_assert_eq(PARSE("--config", path), SN_OK, "%s", err.text);
    unlink(path);
    cr_assert_str_eq(model, "file");
}

Test(options, says_that_the_file_cannot_be_read) {
    cr_assert_eq(PARSE("--model=m", "--config=/nonexistent/x.conf"), SN_REFUSED);
    cr_assert(strstr(err.text, "--config: /nonexistent/x.conf cannot be opened"), "%s", err.text);
}

Test(options, shows_every_option_with_its_default_within_100_columns) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    sn_options_help(&command, out);
    fclose(out);
    cr_assert(strstr(text, "Usage: prog [options]"));
    cr_assert(strstr(text, "Model:") && strstr(text, "Numbers:"));
    cr_assert(strstr(text, "--kv-memory SIZE") && strstr(text, "(default 512.0 MiB)"));
    cr_assert(strstr(text, "--threads N") && strstr(text, "(default 2)"));
    cr_assert(strstr(text, "--join ADDRESS") && strstr(text, "may be repeated"));
    cr_assert(strstr(text, "--config FILE") && strstr(text, "--version"));
    for (char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        cr_assert(strcspn(line, "\n") <= 100, "%.120s", line);
    free(text);
}

Test(options, finds_the_nearest_word_only_when_one_is_near) {
    const char *names[] = {"generate", "chat", "status"};
    cr_assert_str_eq(sn_nearest("genrate", names, 3), "generate");
    cr_assert_str_eq(sn_nearest("caht", names, 3), "chat");
    cr_assert_str_eq(sn_nearest("stat", names, 3), "status");
    cr_assert_null(sn_nearest("zebra", names, 3));
    cr_assert_null(sn_nearest("", names, 3));
}
