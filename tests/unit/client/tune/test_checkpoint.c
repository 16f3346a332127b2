/* Checkpoints: a process that ends at any byte of its writing, or a disk that fails at any call, leaves one that
 * resumes with the same bits; a changed byte is refused; a file may be larger than a GiB. The tuner here is a state
 * without a model: what its bits become afterwards is test_tune's subject. */
#include "client/tune/checkpoint.h"

#include "client/tune/adapter_folder.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/write_faults.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXAMPLES = 5, BLOCKS = 2 };

/* AddressSanitizer makes a fork expensive, and has no place for a file of a GiB: it sees every 23rd byte. */
#ifdef __SANITIZE_ADDRESS__
enum { EVERY_BYTE = 23, A_GIB = 1 << 20 };
#else
enum { EVERY_BYTE = 1, A_GIB = 1 << 30 };
#endif

static sn_hparams hp;
static sn_dataset data = {.n = EXAMPLES};
static const sn_hash model = {{1, 2, 3}};
static sn_hash hashes[BLOCKS] = {{{4}}, {{5}}};
static sn_base_weights base = {.model = "a model", .client = {{6}}, .blocks = hashes, .n_blocks = BLOCKS};
static json_t *options;
static char *folder;

static void set_up(void) {
    sn_model *of = NULL;
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/llama", &of, &err));
    hp = *sn_model_hparams(of);
    sn_model_close(&of);
    hp.n_blocks = BLOCKS;
    hp.n_embd = 4, hp.n_heads = 2, hp.n_kv_heads = 1, hp.head_dim = 2, hp.n_ff = 8;
    options = json_pack("{sf}", "lr", 0.01);
    folder = temp_folder();
}

static void tear_down(void) {
    write_faults_none();
    remove_tree(folder);
    free(folder);
    json_decref(options);
}

TestSuite(checkpoint, .init = set_up, .fini = tear_down);

/* A tuner after `step` steps; its numbers depend on the step and the seed. */
static sn_tuner *tuner_at(int64_t step, int seed) {
    static const sn_params_shape shape = {
        .method = SN_METHOD_LORA, .rank = 1, .alpha = 2, .target = {[SN_ROLE_ATTN_V] = true}};
    sn_tuner *t = calloc(1, sizeof *t);
    t->hp = &hp;
    t->data = &data;
    REQUIRE(sn_params_new(&hp, &shape, &t->params, &err));
    size_t n = t->params->n_floats;
    t->exp_avg = calloc(n, sizeof(float));
    t->exp_avg_sq = calloc(n, sizeof(float));
    t->gradients = calloc(n, sizeof(float));
    t->order = calloc(EXAMPLES, sizeof *t->order);
    t->losses = calloc((size_t)step + 1, sizeof *t->losses);
    t->step = step;
    t->epoch = (uint64_t)step / 3;
    t->position = (size_t)step % EXAMPLES;
    t->tokens = 100 * (uint64_t)step + (uint64_t)seed;
    for (size_t i = 0; i < n; i++) {
        t->params->values[i] = (float)(i * 7 + (size_t)step * 13 + (size_t)seed) * 0.01f;
        t->exp_avg[i] = t->params->values[i] - 1;
        t->exp_avg_sq[i] = t->params->values[i] * 2;
    }
    for (int64_t i = 0; i < step && i < 100; i++) t->losses[i] = 1.0 / (double)(i + 1 + seed);
    sn_dataset_order(&data, t->options.seed, t->epoch, t->order);
    return t;
}

static sn_status save(const sn_tuner *t, sn_err *err) {
    return sn_checkpoint_save(folder, t, &model, &base, NULL, options, err);
}

static bool same_state(const sn_tuner *a, const sn_tuner *b) {
    size_t bytes = a->params->n_floats * sizeof(float);
    return a->step == b->step && a->epoch == b->epoch && a->position == b->position && a->tokens == b->tokens &&
           !memcmp(a->params->values, b->params->values, bytes) && !memcmp(a->exp_avg, b->exp_avg, bytes) &&
           !memcmp(a->exp_avg_sq, b->exp_avg_sq, bytes) &&
           !memcmp(a->losses, b->losses, (size_t)a->step * sizeof *a->losses) &&
           !memcmp(a->order, b->order, EXAMPLES * sizeof *a->order);
}

/* What --resume does: opens the newest checkpoint and restores a new tuner. */
static sn_tuner *resume(const char *when, uint64_t at) {
    sn_checkpoint c;
    sn_err why = {0};
    sn_tuner *t = tuner_at(0, 0);
    sn_status status = sn_checkpoint_open(folder, &c, &why);
    if (!status) status = sn_checkpoint_restore(&c, t, &why);
    cr_assert_eq(status, SN_OK, "%s %llu: %s", when, (unsigned long long)at, why.text);
    cr_expect(json_equal(c.options, options) && !memcmp(&c.model, &model, sizeof model));
    cr_expect_eq(c.base.n_blocks, BLOCKS);
    sn_checkpoint_close(&c);
    return t;
}

/* The folder resumes with the bits of `a` or of `b`; returns whether it is `b`. */
static bool resumes_as(const sn_tuner *a, const sn_tuner *b, const char *when, uint64_t at) {
    sn_tuner *t = resume(when, at);
    bool is_b = same_state(t, b);
    cr_assert(is_b || same_state(t, a), "%s %llu: other bits", when, (unsigned long long)at);
    sn_tuner_free(&t);
    return is_b;
}

static bool exists(const char *name) {
    char *path = temp_path(folder, name);
    struct stat there;
    bool found = !stat(path, &there);
    free(path);
    return found;
}

static void empty_folder(void) {
    remove_tree(folder);
    cr_assert_eq(mkdir(folder, 0777), 0);
}

/* -- a process that ends while it writes */

/* Saves `t` in a child that ends after `units` units. Returns whether it ended before it was done. */
static bool save_and_end(const sn_tuner *t, uint64_t units, power_loss power) {
    int how = 0;
    sn_err why = {0};
    fflush(NULL);
    pid_t child = fork();
    cr_assert(child >= 0);
    if (!child) {
        write_faults_end_after(units, power);
        _exit(save(t, &why) ? 2 : 1);
    }
    cr_assert_eq(waitpid(child, &how, 0), child);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) < 2, "the child ended with %d after %llu units", how,
              (unsigned long long)units);
    return !WEXITSTATUS(how);
}

/* The folder holds checkpoints of steps 0 and 1, and of `before`, unless it is NULL. */
static void prepare_folder(const sn_tuner *zero, const sn_tuner *first, const sn_tuner *before) {
    empty_folder();
    REQUIRE(save(zero, &err));
    REQUIRE(save(first, &err));
    if (before) REQUIRE(save(before, &err));
}

/* Saves `after` in processes that end after any unit, each time beside checkpoints of steps 0 and 1 and of `before`.
 * Each time the folder resumes; what an ended process left does not hinder the next one. */
static void end_anywhere(const sn_tuner *before, const sn_tuner *after, power_loss power, uint64_t stride) {
    sn_tuner *zero = tuner_at(0, 0), *first = tuner_at(1, 0);
    const sn_tuner *older = before ? before : first;
    bool saved = false, kept = false, ended = true;
    for (uint64_t units = 0; ended; units += stride) {
        bool is_clean = !before && units && exists("step-0") && !exists("step-2");
        if (!is_clean) prepare_folder(zero, first, before);
        ended = save_and_end(after, units, power);
        bool is_new = resumes_as(older, after, "after unit", units);
        saved = saved || (ended && is_new);
        kept = kept || !is_new;
    }
    cr_expect(kept && (saved || stride > 1), "kept: %d, saved: %d", kept, saved);
    REQUIRE(save(after, &err));
    cr_assert(resumes_as(older, after, "saved again", 0));
    cr_assert(!exists("step-2.part") && !exists("step-0"));
    sn_tuner_free(&zero);
    sn_tuner_free(&first);
}

Test(checkpoint, a_process_killed_at_any_byte_leaves_one_that_resumes) {
    sn_tuner *t = tuner_at(2, 0);
    end_anywhere(NULL, t, POWER_STAYS, EVERY_BYTE);
    sn_tuner_free(&t);
}

/* A second training into the same folder: step-2 is replaced as a whole. */
Test(checkpoint, a_process_killed_while_it_replaces_a_checkpoint_leaves_the_old_or_the_new) {
    sn_tuner *t = tuner_at(2, 0), *other = tuner_at(2, 9);
    end_anywhere(other, t, POWER_STAYS, 7 * EVERY_BYTE);
    sn_tuner_free(&t);
    sn_tuner_free(&other);
}

Test(checkpoint, a_power_loss_at_any_call_leaves_one_that_resumes) {
    sn_tuner *t = tuner_at(2, 0), *other = tuner_at(2, 9);
    for (int power = POWER_LOSES_DATA; power <= POWER_LOSES_NAMES; power++) {
        end_anywhere(NULL, t, (power_loss)power, 1);
        end_anywhere(other, t, (power_loss)power, 1);
    }
    sn_tuner_free(&t);
    sn_tuner_free(&other);
}

/* -- the adapter at the end of a training */

/* -1: the folder is refused as one that holds no adapter; else the seed of the tuner whose adapter it holds. */
static int adapter_in_folder(const sn_tuner *const *tuners, uint64_t units) {
    sn_adapter_folder found;
    sn_err why = {0};
    if (sn_adapter_folder_load(folder, &hp, &found, &why)) {
        cr_assert(strstr(why.text, "adapter_config.json"), "after unit %llu: %s", (unsigned long long)units, why.text);
        return -1;
    }
    int which = -1;
    for (int i = 0; i < 2; i++)
        if (found.params->shape.alpha == tuners[i]->params->shape.alpha &&
            !memcmp(found.params->values, tuners[i]->params->values, found.params->n_floats * sizeof(float)))
            which = i;
    cr_assert_geq(which, 0, "after unit %llu the folder mixes two adapters", (unsigned long long)units);
    sn_adapter_folder_fini(&found);
    return which;
}

/* Another training writes its adapter into the same folder: the scale of one never meets the matrices of the other. */
Test(checkpoint, an_adapter_replaces_another_as_a_whole) {
    const sn_tuner *const tuners[] = {tuner_at(4, 0), tuner_at(4, 1)};
    int seen[3] = {0}, how = 0;
    tuners[1]->params->shape.alpha = 5;
    for (uint64_t units = 0; !how; units += 3) {
        empty_folder();
        REQUIRE(sn_adapter_folder_save(folder, tuners[0]->params, &hp, &base, NULL, &err));
        fflush(NULL);
        pid_t child = fork();
        if (!child) {
            write_faults_end_after(units, POWER_STAYS);
            _exit(sn_adapter_folder_save(folder, tuners[1]->params, &hp, &base, NULL, NULL) ? 2 : 1);
        }
        cr_assert_eq(waitpid(child, &how, 0), child);
        cr_assert(WIFEXITED(how) && WEXITSTATUS(how) < 2);
        seen[1 + adapter_in_folder(tuners, units)]++;
    }
    cr_expect(seen[0] && seen[1] && seen[2], "%d %d %d", seen[0], seen[1], seen[2]);
    for (int i = 0; i < 2; i++) {
        sn_tuner *t = (sn_tuner *)(uintptr_t)tuners[i];
        sn_tuner_free(&t);
    }
}

/* -- a disk that fails */

Test(checkpoint, a_failure_of_any_call_leaves_one_that_resumes) {
    static const int errors[] = {ENOSPC, EIO};
    sn_tuner *zero = tuner_at(0, 0), *first = tuner_at(1, 0), *second = tuner_at(2, 0);
    int refused = 0;
    prepare_folder(zero, first, NULL);
    write_faults_none();
    REQUIRE(save(second, &err));
    uint64_t calls = write_faults_calls();
    for (uint64_t nth = 0; nth < calls; nth++) {
        sn_err why = {0};
        prepare_folder(zero, first, NULL);
        write_faults_fail(nth, errors[nth % 2]);
        sn_status status = save(second, &why);
        write_faults_none();
        refused += status != SN_OK;
        cr_assert(!status || status == SN_REFUSED || status == SN_STOP, "call %llu: %s", (unsigned long long)nth,
                  why.text);
        cr_assert(!status || strstr(why.text, folder), "call %llu does not name a file: %s", (unsigned long long)nth,
                  why.text);
        bool is_second = resumes_as(first, second, "after call", nth);
        cr_assert(status || is_second, "call %llu: the failure is not reported", (unsigned long long)nth);
        REQUIRE(save(second, &err));
        cr_assert(resumes_as(first, second, "saved again after call", nth));
    }
    cr_expect_gt(refused, 20, "only %d of %llu calls matter", refused, (unsigned long long)calls);
    sn_tuner_free(&zero);
    sn_tuner_free(&first);
    sn_tuner_free(&second);
}

/* -- damage */

static void expect_refused(const char *part) {
    sn_checkpoint c;
    sn_err why = {0};
    cr_expect_eq(sn_checkpoint_open(folder, &c, &why), SN_REFUSED);
    cr_expect(strstr(why.text, part), "'%s' does not say '%s'", why.text, part);
    sn_checkpoint_close(&c);
}

/* Changes each byte of the file in turn, and its length. */
static void damage_file(const char *name) {
    char *path = temp_path(folder, name);
    struct stat st;
    cr_assert_eq(stat(path, &st), 0, "%s", name);
    FILE *file = fopen(path, "r+b");
    for (long at = 0; at < st.st_size; at++) {
        cr_assert_eq(fseek(file, at, SEEK_SET), 0);
        int byte = fgetc(file);
        cr_assert(!fseek(file, at, SEEK_SET) && fputc(byte ^ (1 << at % 8), file) != EOF && !fflush(file));
        expect_refused("damaged");
        cr_assert(!fseek(file, at, SEEK_SET) && fputc(byte, file) != EOF && !fflush(file));
    }
    cr_assert(!fseek(file, 0, SEEK_END) && fputc('\n', file) != EOF && !fflush(file));
    expect_refused("damaged");
    cr_assert_eq(ftruncate(fileno(file), st.st_size - 1), 0);
    expect_refused("damaged");
    fclose(file);
    cr_assert_eq(unlink(path), 0);
    expect_refused(strrchr(name, '/') + 1);
    free(path);
}

Test(checkpoint, any_changed_byte_is_refused) {
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors", "swarm.json",
                                        "state.safetensors",   "checkpoint.json",           "SHA256SUMS"};
    sn_tuner *t = tuner_at(2, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        empty_folder();
        expect_refused("no checkpoint");
        REQUIRE(save(t, &err));
        snprintf(name, sizeof name, "step-2/%s", names[i]);
        damage_file(name);
    }
    sn_tuner_free(&t);
}

/* The sums are right here, but what they cover is of no tuner like this one. */
Test(checkpoint, a_state_of_other_options_is_refused) {
    sn_tuner *t = tuner_at(3, 0);
    sn_checkpoint c;
    sn_err why = {0};
    t->position = EXAMPLES + 1;
    REQUIRE(save(t, &err));
    REQUIRE(sn_checkpoint_open(folder, &c, &err));
    cr_expect_eq(sn_checkpoint_restore(&c, t, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "position"), "%s", why.text);
    t->params->n_floats--;
    cr_expect_eq(sn_checkpoint_restore(&c, t, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "shape"), "%s", why.text);
    t->params->n_floats++;
    sn_checkpoint_close(&c);
    sn_tuner_free(&t);
}

Test(checkpoint, is_for_one_model_and_its_weights) {
    sn_tuner *t = tuner_at(2, 0);
    sn_model *of = NULL;
    sn_hash id, blocks[8];
    sn_base_weights weights;
    sn_checkpoint c;
    sn_err why = {0};
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/llama", &of, &err));
    id = sn_model_id(of);
    int n = sn_model_hparams(of)->n_blocks;
    for (int b = 0; b < n; b++) REQUIRE(sn_model_block_hash(of, b, &blocks[b], &err));
    REQUIRE(sn_base_weights_init(&weights, of, blocks, &err));
    REQUIRE(sn_checkpoint_save(folder, t, &id, &weights, NULL, options, &err));
    REQUIRE(sn_checkpoint_open(folder, &c, &err));
    REQUIRE(sn_checkpoint_check_weights(&c, of, NULL, &err));
    REQUIRE(sn_checkpoint_check_weights(&c, of, blocks, &err));
    for (int b = 0; b < n; b++) {
        char part[32];
        snprintf(part, sizeof part, "block %d ", b);
        blocks[b].bytes[31] ^= 1;
        cr_expect_eq(sn_checkpoint_check_weights(&c, of, blocks, &why), SN_REFUSED);
        cr_expect(strstr(why.text, part), "%s", why.text);
        blocks[b].bytes[31] ^= 1;
    }
    c.base.client.bytes[0] ^= 1;
    cr_expect_eq(sn_checkpoint_check_weights(&c, of, NULL, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "embedding"), "%s", why.text);
    c.model.bytes[0] ^= 1;
    cr_expect_eq(sn_checkpoint_check_weights(&c, of, NULL, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "another model"), "%s", why.text);
    sn_checkpoint_close(&c);
    sn_base_weights_fini(&weights);
    sn_model_close(&of);
    sn_tuner_free(&t);
}

Test(checkpoint, only_the_last_two_remain) {
    for (int i = 1; i <= 4; i++) {
        sn_tuner *t = tuner_at(i, 0);
        REQUIRE(save(t, &err));
        for (int k = 1; k <= i; k++) {
            char name[32];
            snprintf(name, sizeof name, "step-%d", k);
            cr_expect_eq(exists(name), k >= i - 1, "after step %d: step-%d", i, k);
        }
        sn_tuner_free(&t);
    }
    /* The unfinished folder of a killed process is not a checkpoint. */
    char *path = temp_path(folder, "step-9.part");
    cr_assert_eq(mkdir(path, 0777), 0);
    free(path);
    sn_tuner *t = resume("with an unfinished folder", 0);
    cr_expect_eq(t->step, 4);
    sn_tuner_free(&t);
}

/* -- folders of a stranger */

static void link_in_folder(const char *to, const char *name) {
    char *path = temp_path(folder, name);
    cr_assert_eq(symlink(to, path), 0);
    free(path);
}

Test(checkpoint, what_links_point_to_is_not_removed) {
    char *elsewhere = temp_folder();
    sn_tuner *t = tuner_at(4, 0);
    write_file(elsewhere, "letter", "dear", 4);
    link_in_folder(elsewhere, "step-4.part");
    link_in_folder(elsewhere, "step-9.part");
    link_in_folder(elsewhere, "step-2");
    link_in_folder(elsewhere, "step-1");
    REQUIRE(save(t, &err));
    char *letter = temp_path(elsewhere, "letter");
    cr_expect_eq(access(letter, F_OK), 0, "a file behind a link is gone");
    cr_expect(exists("step-4") && !exists("step-4.part") && !exists("step-9.part") && !exists("step-1"));
    resumes_as(t, t, "beside links", 0);
    free(letter);
    temp_folder_remove(&elsewhere);
    sn_tuner_free(&t);
}

Test(checkpoint, an_adapter_whose_configuration_is_a_pipe_is_refused_at_once, .timeout = 20) {
    sn_adapter_folder found;
    sn_err why = {0};
    char *path = temp_path(folder, "adapter_config.json");
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(sn_adapter_folder_load(folder, &hp, &found, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "no regular file"), "%s", why.text);
    free(path);
}

/* Nodes, files and keys are named by the one who resumes. */
Test(checkpoint, options_that_no_checkpoint_decides_are_refused) {
    static const char *const names[] = {"join", "only", "dht", "identity", "swarm-key", "cache", "resume", "eval-data"};
    sn_tuner *t = tuner_at(2, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_object_set_new(options, names[i], json_string("somewhere"));
        REQUIRE(save(t, &err));
        expect_refused(names[i]);
        json_object_del(options, names[i]);
    }
    REQUIRE(save(t, &err));
    resumes_as(t, t, "without them", 0);
    sn_tuner_free(&t);
}

/* A stranger's index is read into memory. */
Test(checkpoint, an_index_of_more_than_a_mib_is_refused) {
    enum { TOO_MUCH = 1 << 20 };
    char *text = calloc(TOO_MUCH + 1, 1);
    sn_tuner *t = tuner_at(2, 0);
    cr_assert(text);
    memset(text, 'x', TOO_MUCH);
    json_object_set_new(options, "data", json_string(text));
    REQUIRE(save(t, &err));
    expect_refused("checkpoint.json");
    json_object_del(options, "data");
    sn_tuner_free(&t);
    free(text);
}

/* -- size */

/* The losses of very many steps make a state of more than a GiB; they are zero, and the file has a hole there. */
Test(checkpoint, a_state_of_more_than_a_gib_is_saved_and_restored) {
    enum { STEPS = A_GIB / 8 + (1 << 20) };
    struct stat st;
    sn_tuner *t = tuner_at(STEPS, 3), *back = NULL;
    char name[64], *path;
    write_faults_holes();
    REQUIRE(save(t, &err));
    write_faults_none();
    snprintf(name, sizeof name, "step-%d/state.safetensors", STEPS);
    path = temp_path(folder, name);
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_gt(st.st_size, (off_t)STEPS * 8);
    free(path);
    back = resume("a large state", 0);
    cr_expect_eq(back->step, STEPS);
    cr_expect_eq(back->losses[99], t->losses[99]);
    cr_expect(!memcmp(back->exp_avg, t->exp_avg, t->params->n_floats * sizeof(float)));
    sn_tuner_free(&t);
    sn_tuner_free(&back);
}
