/* Drafts by the model's own block: those of the reference after the chain's rows, the same text as without them, and
 * drafts of texts whose end is only optimistic, was taken back, or whose beginning was never told. */
#include "client/generate/generator.h"
#include "model/safetensors.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

static const char *const FOLDERS[] = {"qwen3_5_mtp", "qwen3_5_moe_mtp", "glm4_moe_mtp", "deepseek_v3_mtp"};
enum { N_FOLDERS = 4, CONTEXT = 128, DRAFTS = 3, PROMPT = 12 };
static const int32_t prompt[PROMPT] = {5, 17, 3, 80, 41, 4, 66, 9, 30, 200, 121, 7};

typedef struct fixture {
    sn_model *model;
    sn_device *device;
    sn_lm_head *head;
    sn_draft_mtp *mtp;
    sn_draft draft;
    sn_chain *chain;
    sn_generator *generator;
} fixture;

static fixture open_fixture(const char *folder, const sn_sampling *sampling) {
    fixture f = {0};
    char path[256];
    snprintf(path, sizeof path, SN_FIXTURES "/golden/%s", folder);
    REQUIRE(sn_model_open(path, &f.model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &f.device, &err));
    REQUIRE(sn_lm_head_load(f.model, f.device, &f.head, &err));
    const sn_hparams *hp = sn_model_hparams(f.model);
    const sn_draft_mtp_options mtp = {f.model, f.device, f.head, *sampling, CONTEXT, SN_KV_F32};
    REQUIRE(sn_draft_mtp_open(&mtp, &f.mtp, &err));
    f.draft = sn_draft_of_mtp(f.mtp, 8);
    sn_chain_options options = sn_chain_options_default();
    options.local = (sn_chain_local){.device = f.device, .end = hp->n_blocks};
    options.kv.dtype = SN_KV_F32;
    options.max_tokens = CONTEXT;
    REQUIRE(sn_chain_open(f.model, &options, &f.chain, &err));
    return f;
}

static void new_generator(fixture *f, const sn_sampling *sampling, bool drafts) {
    const sn_generator_parts parts = {sn_model_hparams(f->model), f->head, f->chain, NULL, CONTEXT,
                                      drafts ? &f->draft : NULL};
    REQUIRE(sn_generator_new(&parts, sampling, &f->generator, &err));
}

static void close_fixture(fixture *f) {
    sn_generator_free(&f->generator);
    sn_chain_close(&f->chain);
    sn_draft_fini(&f->draft);
    sn_draft_mtp_close(&f->mtp);
    sn_lm_head_free(&f->head);
    sn_device_close(&f->device);
    sn_model_close(&f->model);
}

static size_t propose(fixture *f, const int32_t *ids, size_t n, size_t most, int32_t *out) {
    size_t n_out;
    REQUIRE(f->draft.source(f->draft.ctx, ids, n, &(sn_rng_state){{0}}, most, out, &n_out, &err));
    return n_out;
}

static int64_t whole(const sn_safetensors *file, const char *name, size_t i) {
    int64_t x;
    memcpy(&x, sn_safetensors_find(file, name)->data + i * sizeof x, sizeof x);
    return x;
}

Test(draft_mtp, drafts_after_the_chains_rows_are_the_references) {
    const sn_sampling greedy = SN_SAMPLING_DEFAULT;
    for (int folder = 0; folder < N_FOLDERS; folder++) {
        fixture f = open_fixture(FOLDERS[folder], &greedy);
        sn_safetensors *file = NULL;
        char path[300];
        int32_t ids[CONTEXT], out[DRAFTS];
        snprintf(path, sizeof path, SN_FIXTURES "/golden/%s/golden.safetensors", FOLDERS[folder]);
        REQUIRE(sn_safetensors_open(path, &file, &err));
        new_generator(&f, &greedy, true);
        for (size_t i = 0; i < sn_safetensors_find(file, "input_ids")->elements; i++)
            ids[i] = (int32_t)whole(file, "input_ids", i);
        for (size_t place = 8; place-- > 0;) { /* backwards: tokens are taken back */
            const size_t p = (size_t)whole(file, "mtp.positions", place);
            sn_generator_rewind(f.generator, place == 7 ? 0 : p / 2);
            const size_t from = sn_generator_length(f.generator);
            REQUIRE(sn_generator_append(f.generator, ids + from, p + 1 - from, NULL, &err));
            cr_expect_eq(propose(&f, ids, p + 2, DRAFTS, out), DRAFTS);
            for (size_t k = 0; k < DRAFTS; k++)
                cr_expect_eq(out[k], (int32_t)whole(file, "mtp.tokens", place * DRAFTS + k), "%s, place %zu, draft %zu",
                             FOLDERS[folder], place, k);
        }
        sn_safetensors_close(&file);
        close_fixture(&f);
    }
}

Test(draft_mtp, drafts_of_an_optimistic_end_go_on_from_what_was_drafted) {
    const sn_sampling greedy = SN_SAMPLING_DEFAULT;
    for (int folder = 0; folder < N_FOLDERS; folder++) {
        fixture f = open_fixture(FOLDERS[folder], &greedy);
        int32_t ids[CONTEXT], all[8], rest[8];
        new_generator(&f, &greedy, true);
        memcpy(ids, prompt, sizeof prompt);
        REQUIRE(sn_generator_append(f.generator, prompt, PROMPT - 1, NULL, &err));
        cr_assert_eq(propose(&f, ids, PROMPT, 8, all), 8);
        for (size_t k = 1; k < 8; k++) {
            memcpy(ids + PROMPT, all, k * sizeof *all);
            cr_expect_eq(propose(&f, ids, PROMPT + k, 8 - k, rest), 8 - k);
            cr_expect(!memcmp(rest, all + k, (8 - k) * sizeof *rest), "%s, %zu tokens ahead", FOLDERS[folder], k);
        }
        close_fixture(&f);
    }
}

Test(draft_mtp, a_text_whose_beginning_was_never_told_is_drafted_from_what_was) {
    const sn_sampling greedy = SN_SAMPLING_DEFAULT;
    fixture f = open_fixture(FOLDERS[0], &greedy);
    float rows[2 * 64] = {0};
    int32_t out[4];
    for (int i = 0; i < 2 * 64; i++) rows[i] = (float)(i % 7) - 3;
    cr_expect_eq(propose(&f, prompt, 6, 4, out), 0, "nothing is known");
    REQUIRE(sn_draft_note_rows(&f.draft, prompt, 6, 4, 1, rows, &err));
    cr_expect_eq(propose(&f, prompt, 6, 4, out), 4);
    REQUIRE(sn_draft_note_rows(&f.draft, prompt, 3, 1, 1, rows, &err)); /* a place before what is known */
    cr_expect_eq(propose(&f, prompt, 3, 4, out), 4);
    REQUIRE(sn_draft_note_rows(&f.draft, prompt, 9, 7, 2, rows, &err)); /* and one behind it */
    cr_expect_eq(propose(&f, prompt, 10, 4, out), 4);
    cr_expect_eq(propose(&f, prompt, 8, 4, out), 0, "a token before all that is known");
    close_fixture(&f);
}

typedef struct text {
    int32_t ids[CONTEXT];
    size_t n, drafted;
} text;

/* Two turns, the second of which takes half of the first back. */
static text generate(const char *folder, const sn_sampling *sampling, bool drafts) {
    text t = {0};
    fixture f = open_fixture(folder, sampling);
    new_generator(&f, sampling, drafts);
    for (int turn = 0; turn < 2; turn++) {
        sn_generation out;
        const sn_generate_options options = {.max_tokens = 40};
        int32_t ids[CONTEXT];
        memcpy(ids, t.ids, t.n / 2 * sizeof *ids);
        memcpy(ids + t.n / 2, prompt, sizeof prompt);
        const size_t n = t.n / 2 + PROMPT;
        REQUIRE(sn_generator_run(f.generator, ids, n, &options, &out, &err));
        t.drafted += out.timings.n_drafted;
        sn_generation_fini(&out);
        const int32_t *all = sn_generator_ids(f.generator, &t.n);
        memcpy(t.ids, all, t.n * sizeof *all);
    }
    close_fixture(&f);
    return t;
}

Test(draft_mtp, the_text_is_the_one_without_drafts) {
    static const sn_sampling samplings[] = {{.top_p = 1, .repeat_penalty = 1},
                                            {.temperature = 0.8, .top_p = 0.9, .repeat_penalty = 1.1, .seed = 7}};
    for (int folder = 0; folder < N_FOLDERS; folder++)
        for (int i = 0; i < 2; i++) {
            const text plain = generate(FOLDERS[folder], &samplings[i], false),
                       drafted = generate(FOLDERS[folder], &samplings[i], true);
            cr_expect(plain.n == drafted.n && !memcmp(plain.ids, drafted.ids, plain.n * sizeof *plain.ids), "%s, %d",
                      FOLDERS[folder], i);
            cr_expect(!plain.drafted && drafted.drafted, "%s, %d: %zu drafted", FOLDERS[folder], i, drafted.drafted);
        }
}
