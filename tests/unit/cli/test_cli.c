/* The program swarm as its user sees it: output and exit codes. */
#include "model/safetensors.h"
#include "tests/support/families.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/program.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *folder; /* for files of a test */
static program last;

static void set_up(void) { folder = temp_folder(); }
static void tear_down(void) {
    program_fini(&last);
    temp_folder_remove(&folder);
}

TestSuite(cli, .init = set_up, .fini = tear_down);

static int run_argv(const char *const *argv, const char *input) {
    program_fini(&last);
    last = program_run(argv, input);
    return last.code;
}

#define SWARM(...)           run_argv((const char *const[]){SN_SWARM, __VA_ARGS__, NULL}, NULL)
#define SWARM_IN(input, ...) run_argv((const char *const[]){SN_SWARM, __VA_ARGS__, NULL}, input)
#define REFUSES(sentence, ...)                                                                                         \
    do {                                                                                                               \
        cr_assert_eq(SWARM(__VA_ARGS__), 2, "exit code %d, %s", last.code, last.err);                                  \
        cr_assert(strstr(last.err, sentence), "said: %s", last.err);                                                   \
        cr_assert_str_empty(last.out);                                                                                 \
    } while (0)

#define LLAMA SN_FIXTURES "/golden/llama"

static const char *const commands[] = {"generate", "chat",    "forward", "eval",   "bench",  "tune",  "tokenize",
                                       "render",   "inspect", "route",   "status", "verify", "keygen"};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const char *ids_file(const char *json) {
    static char path[4096];
    char *made = temp_path(folder, "ids.json");
    snprintf(path, sizeof path, "%s", made);
    write_file(folder, "ids.json", json, strlen(json));
    free(made);
    return path;
}

Test(cli, shows_help_and_version_and_exits_0) {
    cr_assert_eq(SWARM("--help"), 0);
    cr_assert(strstr(last.out, "Exit codes") && strstr(last.out, "generate") && strstr(last.out, "130"));
    cr_assert_eq(SWARM("--version"), 0);
    cr_assert_str_eq(last.out, "swarm " SN_VERSION "\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        cr_assert_eq(SWARM(commands[i], "--help"), 0);
        cr_assert(strstr(last.out, "Usage: swarm ") && strstr(last.out, "Exit codes"), "%s", commands[i]);
        cr_assert_str_empty(last.err);
        for (const char *line = last.out; *line; line += strcspn(line, "\n"), line += *line == '\n')
            cr_assert_leq(strcspn(line, "\n"), 100, "%.120s", line);
    }
}

/* Calls check(name) for every option "--name" that the help text of a command declares. */
static void for_each_option(const char *help, void (*check)(const char *name, const void *text), const void *text) {
    char name[64];
    size_t n = 0;
    for (const char *line = help; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *at = line + strspn(line, " ");
        if (at - line != 2 && at - line != 6) continue;
        if (at[0] == '-' && at[1] != '-') at += strcspn(at, " ") + 1;
        if (strncmp(at, "--", 2)) continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " \n"), at);
        check(name, text);
        n++;
    }
    cr_assert_geq(n, 5, "%s", help);
}

static void expect_in_completion(const char *name, const void *completion) {
    char word[80];
    snprintf(word, sizeof word, " %s ", name);
    cr_expect(strstr(completion, word) || !strcmp(name, "--version"), "%s", name);
}

static void expect_in_man_page(const char *name, const void *page) {
    char escaped[160];
    size_t len = 0;
    for (; *name; name++)
        len += (size_t)snprintf(escaped + len, sizeof escaped - len, *name == '-' ? "\\-" : "%c", *name);
    cr_expect(strstr(page, escaped), "%s", escaped);
}

Test(cli, man_pages_and_completion_have_every_option_of_the_help_text) {
    cr_assert_eq(SWARM("--help=completion"), 0);
    char *completion = strdup(last.out);
    cr_assert(strstr(completion, "complete -o filenames -F _swarm swarm\n"));
    for (size_t i = 0; i < N_COMMANDS; i++) {
        cr_assert_eq(SWARM(commands[i], "--help"), 0);
        char *help = strdup(last.out);
        cr_assert_eq(SWARM("help", commands[i]), 0);
        cr_expect_str_eq(last.out, help, "swarm help %s", commands[i]);
        cr_assert_eq(SWARM(commands[i], "--help=man"), 0);
        for_each_option(help, expect_in_man_page, last.out);
        for_each_option(help, expect_in_completion, completion);
        free(help);
    }
    cr_assert_eq(SWARM("--help=man"), 0);
    for (size_t i = 0; i < N_COMMANDS; i++) cr_expect(strstr(last.out, commands[i]), "%s", commands[i]);
    free(completion);
    REFUSES("there is no command 'genrate'; did you mean generate?", "help", "genrate");
    REFUSES("--help: 'html' must be man or completion", "generate", "--help=html");
}

Test(cli, refuses_bad_usage_with_exit_code_2) {
    cr_assert_eq(run_argv((const char *const[]){SN_SWARM, NULL}, NULL), 2);
    REFUSES("did you mean generate?", "genrate");
    REFUSES("there is no command 'xyzzy'", "xyzzy");
    REFUSES("did you mean --prompt?", "generate", "--promt", "x");
    REFUSES("--model PATH is missing", "generate", "--prompt", "x");
    REFUSES("give --join HOST:PORT of a node, or --local all", "generate", "--model", LLAMA, "--ids-file",
            ids_file("[1]"));
    REFUSES("give one of --prompt", "generate", "--model", LLAMA, "--local", "all");
    REFUSES("--temperature: '-1' must be a number", "generate", "--model", LLAMA, "--temperature", "-1");
    REFUSES("--temperature: '300' must be a number", "generate", "--model", LLAMA, "--temperature", "300");
    REFUSES("cannot be opened", "generate", "--model", "/nonexistent.gguf", "--local", "all", "--prompt", "x");
    REFUSES("this model has blocks 0:4", "generate", "--model", LLAMA, "--local", "0:9", "--ids-file", ids_file("[1]"));
    REFUSES("--device", "generate", "--model", LLAMA, "--local", "all", "--device", "toaster", "--ids-file",
            ids_file("[1]"));
    REFUSES("text needs the model's tokenizer", "generate", "--model", LLAMA, "--local", "all", "--prompt", "x");
    REFUSES("give one of --text, --file and --ids-file", "eval", "--model", LLAMA, "--local", "all");
    REFUSES("give --join", "status");
    REFUSES("one argument too many", "inspect", "--model", LLAMA, LLAMA);
    REFUSES("a model is given as --model " LLAMA, "inspect", LLAMA);
    REFUSES("a model is given as --model " LLAMA, "generate", LLAMA, "--prompt", "x");
    REFUSES("--model PATH is missing", "inspect");
    REFUSES("--kv-dtype: 'int4' must be f32, f16 or q8", "generate", "--model", LLAMA, "--kv-dtype", "int4");
    REFUSES("--top-p: '2' must be a ratio above 0, up to 1", "generate", "--model", LLAMA, "--top-p", "2");
    REFUSES("--timeout: '10ms' must be a duration from 1s to 24h", "generate", "--model", LLAMA, "--timeout", "10ms");
    REFUSES("--train: 'all' must be prompt, deep-prompt, lora or head", "bench", "--model", LLAMA, "--train", "all");
    REFUSES("--sessions: '0' must be a whole number from 1 to", "bench", "--model", LLAMA, "--sessions", "1,0");
    REFUSES("--ids-file needs --decode", "tokenize", "--model", LLAMA, "--ids-file", "x");
}

Test(cli, refuses_invalid_ids) {
    REFUSES("holds no JSON array", "eval", "--model", LLAMA, "--local", "all", "--ids-file", ids_file("{\"ids\": 1}"));
    REFUSES("holds no JSON:", "eval", "--model", LLAMA, "--local", "all", "--ids-file", ids_file("[1, 2"));
    REFUSES("element 1 is no token id", "eval", "--model", LLAMA, "--local", "all", "--ids-file", ids_file("[1, -2]"));
    REFUSES("element 0 is no token id", "eval", "--model", LLAMA, "--local", "all", "--ids-file", ids_file("[1.5, 2]"));
    REFUSES("at least two are needed", "eval", "--model", LLAMA, "--local", "all", "--ids-file", ids_file("[1]"));
    REFUSES("not in this model's vocabulary of 320", "eval", "--model", LLAMA, "--local", "all", "--ids-file",
            ids_file("[1, 999]"));
    REFUSES("the prompt is empty", "generate", "--model", LLAMA, "--local", "all", "--ids-file", ids_file("[]"));
}

Test(cli, refuses_local_blocks_alone_when_others_are_missing) {
    REFUSES("blocks 2:4", "generate", "--model", LLAMA, "--local", "0:2", "--ids-file", ids_file("[1]"));
}

Test(cli, exits_1_when_no_node_answers) {
    cr_assert_eq(SWARM("status", "--join", "127.0.0.1:1", "--timeout", "1"), 1);
    cr_assert(strstr(last.err, "127.0.0.1:1"), "%s", last.err);
    cr_assert_eq(
        SWARM("generate", "--model", LLAMA, "--join", "127.0.0.1:1", "--timeout", "1", "--ids-file", ids_file("[1]")),
        1);
}

Test(cli, reads_options_from_a_file) {
    char text[8192];
    snprintf(text, sizeof text,
             "model = %s\nlocal = all # everything here\nids-file = %s\njson = true\nmax-tokens = 3\n", LLAMA,
             ids_file("[5, 6, 7]"));
    write_file(folder, "a.conf", text, strlen(text));
    char *path = temp_path(folder, "a.conf");
    cr_assert_eq(SWARM("generate", "--config", path, "--max-tokens", "2"), 0, "%s", last.err);
    json_t *o = program_json(&last);
    cr_assert_eq(json_array_size(json_object_get(o, "ids")), 2);
    json_decref(o);
    free(path);
}

Test(cli, generates_from_ids_and_prints_one_object) {
    cr_assert_eq(SWARM("generate", "--model", LLAMA, "--local", "all", "--ids-file", ids_file("[5, 6, 7]"),
                       "--max-tokens", "4", "--json"),
                 0, "%s", last.err);
    json_t *o = program_json(&last), *timings = json_object_get(o, "timings");
    json_t *hop = json_array_get(json_object_get(timings, "hops"), 0);
    cr_assert_eq(json_array_size(json_object_get(o, "prompt_ids")), 3);
    cr_assert_eq(json_array_size(json_object_get(o, "ids")), 4);
    cr_assert_str_eq(json_string_value(json_object_get(o, "text")), "");
    cr_assert_str_eq(json_string_value(json_object_get(o, "finish_reason")), "length");
    cr_assert_gt(json_real_value(json_object_get(timings, "ttft_ms")), 0);
    cr_assert_gt(json_real_value(json_object_get(timings, "decode_tok_s")), 0);
    cr_assert_str_eq(json_string_value(json_object_get(hop, "blocks")), "0:4");
    cr_assert_str_eq(json_string_value(json_object_get(hop, "node")), "local");
    cr_assert_gt(json_real_value(json_object_get(hop, "compute_ms")), 0);
    json_decref(o);
}

Test(cli, takes_short_forms_of_options) {
    cr_assert_eq(SWARM("generate", "-m", LLAMA, "--local", "all", "--ids-file", ids_file("[5, 6, 7]"), "-n2", "-t", "1",
                       "--json"),
                 0, "%s", last.err);
    json_t *o = program_json(&last);
    cr_assert_eq(json_array_size(json_object_get(o, "ids")), 2);
    json_decref(o);
    REFUSES("give one of --prompt", "generate", "-m", LLAMA, "--local", "all", "-p", "x", "--ids-file", "y");
    REFUSES("there is no option -z", "generate", "-z", "1");
}

Test(cli, takes_ids_from_standard_input) {
    cr_assert_eq(SWARM_IN("[5, 6, 7]", "eval", "--model", LLAMA, "--local", "all", "--ids-file", "-", "--json"), 0);
    json_t *o = program_json(&last);
    double nll = json_real_value(json_object_get(o, "nll"));
    cr_assert_eq(json_integer_value(json_object_get(o, "tokens")), 2);
    cr_assert_float_eq(json_real_value(json_object_get(o, "perplexity")), exp(nll), 1e-6 * exp(nll));
    json_decref(o);
}

Test(cli, makes_an_identity_and_never_overwrites_one) {
    char *path = temp_path(folder, "id");
    struct stat st;
    cr_assert_eq(SWARM("keygen", "--out", path, "--json"), 0, "%s", last.err);
    json_t *o = program_json(&last);
    cr_assert_eq(json_string_length(json_object_get(o, "id")), 64);
    cr_assert_eq(json_string_length(json_object_get(o, "curve_key")), 64);
    json_decref(o);
    cr_assert(!stat(path, &st) && (st.st_mode & 0777) == 0600);
    REFUSES(path, "keygen", "--out", path);
    free(path);
}

#define QWEN2 SN_FIXTURES "/tokenizer/qwen2"

Test(cli, turns_text_into_ids_and_back) {
    cr_assert_eq(SWARM("tokenize", "--model", QWEN2, "--text", "the session"), 0, "%s", last.err);
    cr_assert_str_eq(last.out, "86 260 294\n");
    cr_assert_eq(SWARM_IN("the session", "tokenize", "--model", QWEN2, "--json"), 0, "%s", last.err);
    cr_assert_str_eq(last.out, "{\"ids\": [86, 260, 294]}\n");
    cr_assert_eq(SWARM_IN("[86, 260, 294]", "tokenize", "--model", QWEN2, "--decode"), 0, "%s", last.err);
    cr_assert_str_eq(last.out, "the session");
    cr_assert_eq(SWARM_IN("[86, 260, 294]", "tokenize", "--model", QWEN2, "--decode", "--json"), 0, "%s", last.err);
    cr_assert_str_eq(last.out, "{\"text\": \"the session\"}\n");
    cr_assert_eq(SWARM_IN("[99999]", "tokenize", "--model", QWEN2, "--decode"), 2);
    cr_assert(strstr(last.err, "99999 is no token"), "%s", last.err);
    cr_assert_eq(SWARM_IN("\xff", "tokenize", "--model", QWEN2), 2);
    cr_assert(strstr(last.err, "UTF-8"), "%s", last.err);
    REFUSES("give --text or --file", "tokenize", "--model", QWEN2, "--text", "x", "--file", "y");
}

Test(cli, renders_the_prompt_of_a_conversation) {
    static const char template[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if think %}T{% endif %}{{ tools | tojson if tools }}{% if add_generation_prompt %}A{% endif %}";
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"hi <|im_end|>\"}]";
    write_file(folder, "template.jinja", template, strlen(template));
    write_file(folder, "tools.json", "[{\"function\": {\"name\": \"f\"}}]",
               strlen("[{\"function\": {\"name\": \"f\"}}]"));
    char *path = temp_path(folder, "template.jinja"), *tools = temp_path(folder, "tools.json");
    cr_assert_eq(SWARM_IN(messages, "render", "--template", path, "--messages", "-"), 0, "%s", last.err);
    cr_assert_str_eq(last.out, "<|im_start|>user\nhi <|im_end|><|im_end|>\nA");
    cr_assert_eq(SWARM_IN(messages, "render", "--template", path, "--messages", "-", "--tools", tools, "--set",
                          "think=true", "--no-generation-prompt"),
                 0, "%s", last.err);
    cr_assert_str_eq(last.out, "<|im_start|>user\nhi <|im_end|><|im_end|>\nT[{\"function\": {\"name\": \"f\"}}]");
    cr_assert_eq(SWARM_IN(messages, "render", "--template", path, "--model", QWEN2, "--messages", "-", "--json"), 0,
                 "%s", last.err);
    json_t *o = json_loads(last.out, 0, NULL), *ids = json_object_get(o, "ids");
    size_t n = json_array_size(ids), ends = 0;
    for (size_t i = 0; i < n; i++) ends += json_integer_value(json_array_get(ids, i)) == 2;
    cr_assert(n > 5 && ends == 1, "the user's <|im_end|> is no special token: %s", last.out);
    cr_assert_eq(json_integer_value(json_array_get(json_array_get(json_object_get(o, "data"), 0), 0)), 17);
    json_decref(o);
    cr_assert_eq(SWARM_IN("[{}]", "render", "--template", path, "--messages", "-"), 2);
    cr_assert(strstr(last.err, "message 1"), "%s", last.err);
    cr_assert_eq(SWARM_IN(messages, "render", "--messages", "-"), 2);
    cr_assert(strstr(last.err, "--template"), "%s", last.err);
    cr_assert_eq(SWARM_IN(messages, "render", "--template", path, "--messages", "-", "--set", "x=y"), 2);
    cr_assert(strstr(last.err, "not JSON"), "%s", last.err);
    cr_assert_eq(SWARM_IN(messages, "render", "--model", QWEN2, "--messages", "-"), 2);
    cr_assert(strstr(last.err, "no chat template") && strstr(last.err, "swarm generate"), "%s", last.err);
    free(path);
    free(tools);
}

Test(cli, eval_takes_one_of_text_file_and_ids_file) {
    char *path = temp_path(folder, "text.txt");
    write_file(folder, "text.txt", "the session", strlen("the session"));
    REFUSES("text needs the model's tokenizer", "eval", "--model", LLAMA, "--local", "all", "--text", "the session");
    REFUSES("text needs the model's tokenizer", "eval", "--model", LLAMA, "--local", "all", "--file", path);
    REFUSES("give one of --text, --file and --ids-file", "eval", "--model", LLAMA, "--local", "all", "--text", "x",
            "--file", path);
    free(path);
}

Test(cli, inspects_a_model) {
    cr_assert_eq(SWARM("inspect", "--model", LLAMA, "--json", "--hashes", "--tensors"), 0, "%s", last.err);
    json_t *o = program_json(&last), *blocks = json_object_get(o, "blocks");
    cr_assert_str_eq(json_string_value(json_object_get(o, "container")), "safetensors");
    cr_assert_str_eq(json_string_value(json_object_get(o, "family")), "llama");
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(o, "hparams"), "n_blocks")), 4);
    cr_assert_eq(json_array_size(blocks), 4);
    cr_assert_eq(json_string_length(json_object_get(json_array_get(blocks, 3), "hash")), 64);
    cr_assert_gt(json_integer_value(json_object_get(json_array_get(blocks, 3), "bytes")), 0);
    cr_assert_eq((json_int_t)json_array_size(json_object_get(o, "tensors")),
                 json_integer_value(json_object_get(o, "n_tensors")));
    cr_expect_eq(json_integer_value(json_object_get(o, "parameters")), 143936); /* all of float32: */
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(o, "type_bytes"), "F32")), 4 * 143936);
    json_decref(o);
    cr_assert_eq(SWARM("inspect", "--model", LLAMA, "--tensors"), 0);
    cr_assert(strstr(last.out, "model.embed_tokens.weight") && strstr(last.out, "family      llama"), "%s", last.out);
    cr_expect(strstr(last.out, "parameters  144 k\nweights     F32 100 %\n"), "%s", last.out);
    cr_expect(strstr(last.out, "chat        no template\n"), "%s", last.out);
    REFUSES("cannot be opened", "inspect", "--model", "/nonexistent");
    cr_assert_eq(SWARM("inspect", "--model", SN_FIXTURES "/golden/gemma3"), 0);
    cr_assert(strstr(last.out, "window      8 tokens, in 2 of 4 blocks"), "%s", last.out);
    cr_expect(strstr(last.out, "training    prompts, classifiers and LoRA\n"), "%s", last.out);
    cr_assert_eq(SWARM("inspect", "--model", SN_FIXTURES "/golden/deepseek_v3"), 0);
    cr_expect(strstr(last.out, "training    models of the deepseek_v3 family cannot be trained: "), "%s", last.out);
}

/* -- the golden families ---------------------------------------------------------------------------------------------
 */

static double largest_difference(const sn_safetensors_tensor *want, const sn_safetensors_tensor *got) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < want->elements; i++) {
        float a, b;
        memcpy(&a, want->data + i * sizeof a, sizeof a);
        memcpy(&b, got->data + i * sizeof b, sizeof b);
        most = fmax(most, fabs((double)a - (double)b));
        largest = fmax(largest, fabs((double)a));
    }
    return most / largest;
}

/* The reference's token ids of a tensor, as a JSON array. */
static json_t *golden_ids(const sn_safetensors *golden, const char *name) {
    const sn_safetensors_tensor *t = sn_safetensors_find(golden, name);
    json_t *array = json_array();
    for (size_t i = 0; t && i < t->elements; i++) {
        int64_t id;
        memcpy(&id, t->data + i * sizeof id, sizeof id);
        json_array_append_new(array, json_integer(id));
    }
    return array;
}

static sn_safetensors *open_golden(const char *family, char model[512], char **ids) {
    char path[600];
    sn_safetensors *golden;
    snprintf(model, 512, "%s/golden/%s", SN_FIXTURES, family);
    snprintf(path, sizeof path, "%s/golden.safetensors", model);
    REQUIRE(sn_safetensors_open(path, &golden, &err));
    json_t *array = golden_ids(golden, "input_ids");
    *ids = json_dumps(array, 0);
    json_decref(array);
    return golden;
}

Test(cli, forward_agrees_with_the_reference_at_every_block_of_every_family) {
    char *out_path = temp_path(folder, "out.safetensors");
    for (size_t f = 0; f < N_FAMILIES; f++) {
        char model[512], *ids;
        sn_safetensors *golden = open_golden(FAMILIES[f], model, &ids), *got;
        cr_assert_eq(SWARM_IN(ids, "forward", "--model", model, "--local", "all", "--ids-file", "-", "--out", out_path,
                              "--every-block", "--force", "--kv-dtype", "f32"),
                     0, "%s: %s", FAMILIES[f], last.err);
        REQUIRE(sn_safetensors_open(out_path, &got, &err));
        size_t blocks = 0; /* the reference has hidden.0 to hidden.BLOCKS */
        for (char name[32]; snprintf(name, sizeof name, "hidden.%zu", blocks + 1) && sn_safetensors_find(golden, name);)
            blocks++;
        cr_assert_geq(blocks, 4u);
        cr_assert_eq(sn_safetensors_n_tensors(got), blocks + 2 - family_bound_blocks(FAMILIES[f]),
                     "hidden states after each block, and logits");
        for (size_t i = 0; i < sn_safetensors_n_tensors(got); i++) {
            const sn_safetensors_tensor *t = sn_safetensors_tensor_at(got, i);
            const sn_safetensors_tensor *want = sn_safetensors_find(golden, t->name);
            cr_assert(want && want->elements == t->elements && t->dtype == SN_F32, "%s", t->name);
            cr_assert_lt(largest_difference(want, t), 1e-4, "%s %s", FAMILIES[f], t->name);
        }
        sn_safetensors_close(&got);
        sn_safetensors_close(&golden);
        free(ids);
    }
    free(out_path);
}

Test(cli, forward_without_every_block_writes_first_and_last_only) {
    char *out_path = temp_path(folder, "out.safetensors");
    sn_safetensors *got;
    cr_assert_eq(
        SWARM_IN("[1, 2, 3]", "forward", "--model", LLAMA, "--local", "all", "--ids-file", "-", "--out", out_path), 0,
        "%s", last.err);
    REQUIRE(sn_safetensors_open(out_path, &got, &err));
    cr_assert_eq(sn_safetensors_n_tensors(got), 3);
    cr_assert(sn_safetensors_find(got, "hidden.0") && sn_safetensors_find(got, "hidden.4"));
    sn_safetensors_close(&got);
    free(out_path);
}

Test(cli, generates_the_references_greedy_tokens_of_every_family) {
    for (size_t f = 0; f < N_FAMILIES; f++) {
        char model[512], *ids;
        sn_safetensors *golden = open_golden(FAMILIES[f], model, &ids);
        cr_assert_eq(SWARM_IN(ids, "generate", "--model", model, "--local", "all", "--ids-file", "-", "--max-tokens",
                              "16", "--ignore-eos", "--json", "--kv-dtype", "f32"),
                     0, "%s: %s", FAMILIES[f], last.err);
        json_t *o = program_json(&last), *want = golden_ids(golden, "greedy");
        cr_assert(json_equal(json_object_get(o, "ids"), want), "%s: %s", FAMILIES[f], last.out);
        json_decref(o);
        json_decref(want);
        sn_safetensors_close(&golden);
        free(ids);
    }
}

Test(cli, accepts_every_option_of_the_example_configuration) {
    REFUSES("cannot be opened", "generate", "--config", SN_FIXTURES "/../../configs/client.conf", "--model",
            "/nonexistent.gguf", "--prompt", "x");
}
