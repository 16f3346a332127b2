/* Evidence files and `swarm verify`: it names the lying nodes and no others; damaged, forged or unrelated evidence
 * is refused with an error. The nodes are only keys: the test signs their statements. */
#include "base/file.h"
#include "client/audit/evidence.h"
#include "client/tune/adapter_folder.h"
#include "model/base_weights.h"
#include "tests/support/fake_node.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "tests/support/program.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { TOKENS = 40, POSITION = 37, N = 3 };

typedef struct fixture {
    testbed *w;
    char *folder;
    sn_identity honest, lying;
    float *true_rows, *wrong_rows; /* (TOKENS, n_embd) after block 4 */
    sn_evidence e;
    char path[1024];
    program last;
} fixture;

/* The receipt of a node that computed the testbed's input through blocks 0:4 with this output. */
static sn_receipt receipt_of(const fixture *s, const float *outputs) {
    const testbed *w = s->w;
    size_t row = (size_t)w->n_embd;
    sn_hash *timeline = testbed_timeline(w, 0, 4, TOKENS, w->inputs);
    sn_receipt r = {.step = 2,
                    .position = POSITION,
                    .n = N,
                    .n_embd = (uint32_t)row,
                    .end_block = 4,
                    .kv_dtype = (uint8_t)sn_kv_dtype_element(w->kv_dtype),
                    .unix_ms = 1790000000000,
                    .version = "1"};
    memcpy(r.model, &w->model, sizeof r.model);
    r.weights = sn_hash_of(s->e.block_hash, 4 * sizeof *s->e.block_hash);
    r.timeline_before = timeline[POSITION];
    r.timeline_after = timeline[POSITION + N];
    r.input = sn_hash_of(w->inputs + POSITION * row, N * row * sizeof(float));
    r.output = sn_hash_of(outputs + POSITION * row, N * row * sizeof(float));
    free(timeline);
    return r;
}

static void add_statement(fixture *s, const sn_identity *signer, sn_receipt r, const float *outputs) {
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_buf announcement;
    make_announcement_of(s->w, signer, signer == &s->lying ? "10.0.0.66:1" : "10.0.0.1:1", 0, 4, 0, &announcement);
    REQUIRE(sn_receipt_seal(&r, signer, sealed, &err));
    sn_blob blob = {announcement.data, announcement.len};
    REQUIRE(sn_evidence_add(&s->e, sealed, &blob, outputs ? outputs + (size_t)POSITION * (size_t)s->w->n_embd : NULL,
                            &err));
    sn_buf_fini(&announcement);
}

static void fixture_begin_with_kv(fixture *s, sn_kv_dtype kv_dtype) {
    *s = (fixture){.w = testbed_new(&(cluster_options){.kv_memory = 8, .kv_dtype = kv_dtype}), .folder = temp_folder()};
    const testbed *w = s->w;
    size_t size = (size_t)TOKENS * (size_t)w->n_embd;
    REQUIRE(sn_identity_new(&s->honest, &err));
    REQUIRE(sn_identity_new(&s->lying, &err));
    s->true_rows = testbed_compute(w, 0, 4, TOKENS, w->inputs);
    REQUIRE(sn_calloc(&s->wrong_rows, size, sizeof *s->wrong_rows, &err));
    memcpy(s->wrong_rows, s->true_rows, size * sizeof(float));
    s->wrong_rows[(size_t)(POSITION + 1) * (size_t)w->n_embd + 5] *= 1.0000002f;
    s->e = (sn_evidence){
        .model = w->model, .name = "tiny", .end = 4, .n_embd = w->n_embd, .n_tokens = TOKENS, .unix_ms = 1790000000000};
    REQUIRE(sn_calloc(&s->e.block_hash, 4, sizeof *s->e.block_hash, &err));
    for (int b = 0; b < 4; b++) s->e.block_hash[b] = sn_block_hash_with_kv_dtype(&w->block_hash[b], kv_dtype);
    REQUIRE(sn_calloc(&s->e.inputs, size, sizeof *s->e.inputs, &err));
    memcpy(s->e.inputs, w->inputs, size * sizeof(float));
}

static void fixture_begin(fixture *s) { fixture_begin_with_kv(s, SN_KV_F32); }

static void fixture_end(fixture *s) {
    program_fini(&s->last);
    free(s->true_rows);
    free(s->wrong_rows);
    sn_evidence_fini(&s->e);
    temp_folder_remove(&s->folder);
    testbed_free(&s->w);
}

static int run_verify(fixture *s, const char *model, const char *option) {
    const char *argv[] = {SN_SWARM, "verify", s->path, "--model", model, option, NULL};
    program_fini(&s->last);
    s->last = program_run(argv, NULL);
    return s->last.code;
}

static const char *verdict_at(const json_t *o, size_t i) {
    return json_string_value(json_object_get(json_array_get(json_object_get(o, "statements"), i), "verdict"));
}

static void expect_names(sn_kv_dtype kv_dtype) {
    fixture s;
    char id[2 * SN_KEY_SIZE + 1];
    fixture_begin_with_kv(&s, kv_dtype);
    add_statement(&s, &s.lying, receipt_of(&s, s.wrong_rows), NULL);
    add_statement(&s, &s.honest, receipt_of(&s, s.true_rows), NULL);
    REQUIRE(sn_evidence_save(&s.e, s.folder, s.path, &err));
    cr_assert_eq(run_verify(&s, s.w->path, "--json"), 0, "%s", s.last.err);
    json_t *o = program_json(&s.last);
    cr_expect(json_is_true(json_object_get(o, "proven")));
    cr_expect_str_eq(verdict_at(o, 0), "incorrect");
    cr_expect_str_eq(verdict_at(o, 1), "correct");
    json_decref(o);
    cr_assert_eq(run_verify(&s, s.w->path, NULL), 0);
    const char *wrong = strstr(s.last.out, "  incorrect: "),
               *lying = strstr(s.last.out, sn_hex(s.lying.id, SN_KEY_SIZE, id));
    cr_expect(wrong && lying && lying < wrong && !strstr(wrong + 1, "  incorrect: "), "%s", s.last.out);
    cr_expect(strstr(s.last.out, "fake at 10.0.0.66:1"), "%s", s.last.out);
    fixture_end(&s);
}

Test(verify, names_lying_and_honest_nodes_over_kv_caches_of_every_type) {
    for (int kv = 0; kv < SN_KV_DTYPE_COUNT; kv++) expect_names((sn_kv_dtype)kv);
}

Test(verify, compares_results_of_other_devices_with_a_tolerance) {
    fixture s;
    fixture_begin(&s);
    sn_receipt approximate = receipt_of(&s, s.wrong_rows);
    approximate.device = SN_RECEIPT_APPROXIMATE;
    add_statement(&s, &s.honest, approximate, s.wrong_rows); /* a last bit, which may differ on such a device */
    float *far = malloc((size_t)TOKENS * (size_t)s.w->n_embd * sizeof *far);
    memcpy(far, s.true_rows, (size_t)TOKENS * (size_t)s.w->n_embd * sizeof *far);
    for (int i = 0; i < s.w->n_embd; i++) far[(POSITION + 2) * s.w->n_embd + i] *= 1.1f;
    sn_receipt off = receipt_of(&s, far);
    off.device = SN_RECEIPT_APPROXIMATE;
    add_statement(&s, &s.lying, off, far);
    add_statement(&s, &s.lying, off, NULL);         /* without the output there is no verdict */
    add_statement(&s, &s.honest, approximate, far); /* nor with another one than it has signed */
    far[(POSITION + 2) * s.w->n_embd] = NAN;
    for (int i = 1; i < s.w->n_embd; i++) far[(POSITION + 2) * s.w->n_embd + i] /= 1.1f;
    off = receipt_of(&s, far);
    off.device = SN_RECEIPT_APPROXIMATE;
    add_statement(&s, &s.lying, off, far);
    REQUIRE(sn_evidence_save(&s.e, s.folder, s.path, &err));
    cr_assert_eq(run_verify(&s, s.w->path, "--json"), 0, "%s", s.last.err);
    json_t *o = program_json(&s.last);
    cr_expect_str_eq(verdict_at(o, 0), "correct");
    cr_expect_str_eq(verdict_at(o, 1), "incorrect");
    cr_expect_str_eq(verdict_at(o, 2), "inconclusive");
    cr_expect_str_eq(verdict_at(o, 3), "inconclusive");
    cr_expect_str_eq(verdict_at(o, 4), "incorrect");
    json_decref(o);
    free(far);
    fixture_end(&s);
}

/* A node that says it has a GPU may send numbers in 8 bits as bytes that no other node would: the hash that it signs is
 * then not that of these numbers as this program writes them. */
Test(verify, a_client_judges_the_numbers_that_came_to_itself_whatever_their_bytes) {
    fixture s;
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_chain *truth = NULL;
    sn_verdict verdicts[2];
    fixture_begin(&s);
    float *far = malloc((size_t)TOKENS * (size_t)s.w->n_embd * sizeof *far);
    for (int i = 0; i < TOKENS * s.w->n_embd; i++) far[i] = s.true_rows[i] * 1.1f;
    sn_receipt r = receipt_of(&s, s.w->inputs); /* the hash of other bytes */
    r.device = SN_RECEIPT_APPROXIMATE;
    add_statement(&s, &s.lying, r, far);
    add_statement(&s, &s.honest, r, s.wrong_rows);
    REQUIRE(sn_model_open(s.w->path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    sn_chain_options here = sn_chain_options_default();
    here.local = (sn_chain_local){.device = device, .end = 4};
    REQUIRE(sn_chain_open(model, &here, &truth, &err));
    REQUIRE(sn_evidence_judge(&s.e, truth, verdicts, &err));
    cr_expect(verdicts[0].kind == SN_VERDICT_INCONCLUSIVE && verdicts[1].kind == SN_VERDICT_INCONCLUSIVE);
    s.e.first_hand = true;
    REQUIRE(sn_evidence_judge(&s.e, truth, verdicts, &err));
    cr_expect_eq(verdicts[0].kind, SN_VERDICT_WRONG, "%s", verdicts[0].why);
    cr_expect_eq(verdicts[1].kind, SN_VERDICT_CORRECT, "%s", verdicts[1].why);
    sn_chain_close(&truth);
    sn_device_close(&device);
    sn_model_close(&model);
    free(far);
    fixture_end(&s);
}

/* A statement about something else proves nothing against its signer, whatever its output. */
Test(verify, ignores_what_was_not_signed) {
    fixture s;
    fixture_begin(&s);
    sn_receipt r = receipt_of(&s, s.wrong_rows);
    r.input.bytes[0] ^= 1;
    add_statement(&s, &s.lying, r, NULL);
    r = receipt_of(&s, s.wrong_rows);
    r.timeline_before.bytes[0] ^= 1;
    add_statement(&s, &s.lying, r, NULL);
    r = receipt_of(&s, s.wrong_rows);
    r.weights.bytes[0] ^= 1;
    add_statement(&s, &s.lying, r, NULL);
    r = receipt_of(&s, s.wrong_rows);
    r.kv_dtype = SN_F16;
    add_statement(&s, &s.lying, r, NULL);
    add_statement(&s, &s.honest, receipt_of(&s, s.true_rows), NULL);
    REQUIRE(sn_evidence_save(&s.e, s.folder, s.path, &err));
    cr_assert_eq(run_verify(&s, s.w->path, "--json"), 1, "%s", s.last.err);
    json_t *o = program_json(&s.last);
    cr_expect(json_is_false(json_object_get(o, "proven")));
    for (size_t i = 0; i < 4; i++) cr_expect_str_eq(verdict_at(o, i), "inconclusive", "statement %zu", i);
    cr_expect_str_eq(verdict_at(o, 4), "correct");
    json_decref(o);
    fixture_end(&s);
}

/* Writes the evidence, and expects these verdicts, one letter each: correct, incorrect, inconclusive as 'c', 'w', '?'.
 */
static void expect_verdicts(fixture *s, const char *verdicts) {
    REQUIRE(sn_evidence_save(&s->e, s->folder, s->path, &err));
    cr_assert_eq(run_verify(s, s->w->path, "--json"), !strchr(verdicts, 'w'), "%s", s->last.err);
    json_t *o = program_json(&s->last);
    for (size_t i = 0; verdicts[i]; i++)
        cr_expect_str_eq(verdict_at(o, i),
                         verdicts[i] == 'c'   ? "correct"
                         : verdicts[i] == 'w' ? "incorrect"
                                              : "inconclusive",
                         "statement %zu", i);
    json_decref(o);
}

/* A lying node signs that hidden states were rounded inside the blocks of an honest node, which computed them in one
 * span. */
Test(verify, names_no_honest_node_because_of_rounding_that_another_statement_names) {
    fixture s;
    fixture_begin(&s);
    sn_receipt inner = receipt_of(&s, s.true_rows);
    inner.first_block = 1;
    inner.end_block = 3;
    inner.input_dtype = inner.output_dtype = SN_F16;
    add_statement(&s, &s.honest, receipt_of(&s, s.true_rows), NULL);
    add_statement(&s, &s.lying, inner, NULL);
    expect_verdicts(&s, "??");
    fixture_end(&s);
}

/* Nor where a lying node signs that hidden states were rounded behind the blocks of both. */
Test(verify, names_no_honest_node_because_of_rounding_behind_its_blocks) {
    fixture s;
    fixture_begin(&s);
    sn_receipt rounded = receipt_of(&s, s.true_rows);
    rounded.output_dtype = SN_F16;
    add_statement(&s, &s.honest, receipt_of(&s, s.true_rows), NULL);
    add_statement(&s, &s.lying, rounded, NULL);
    expect_verdicts(&s, "?w");
    fixture_end(&s);
}

/* Its timeline is a function of the input, so a node that continues another one with this input lies. */
Test(verify, names_a_node_whose_timeline_does_not_follow_from_its_input) {
    fixture s;
    fixture_begin(&s);
    sn_receipt r = receipt_of(&s, s.wrong_rows);
    r.timeline_after.bytes[0] ^= 1;
    add_statement(&s, &s.lying, r, NULL);
    expect_verdicts(&s, "w");
    fixture_end(&s);
}

/* Who had a node write wrong keys and values under true timeline hashes has no evidence against it. */
Test(verify, names_no_node_that_continues_kv_pages_from_elsewhere) {
    fixture s;
    fixture_begin(&s);
    sn_receipt r = receipt_of(&s, s.wrong_rows);
    r.device = SN_RECEIPT_CONTINUED;
    add_statement(&s, &s.honest, r, NULL);
    r.device = SN_RECEIPT_CONTINUED | SN_RECEIPT_APPROXIMATE;
    add_statement(&s, &s.honest, r, s.wrong_rows);
    r = receipt_of(&s, s.true_rows);
    r.device = SN_RECEIPT_CONTINUED;
    add_statement(&s, &s.honest, r, NULL);
    r.timeline_after.bytes[0] ^= 1; /* this it computes itself */
    add_statement(&s, &s.lying, r, NULL);
    expect_verdicts(&s, "??cw");
    fixture_end(&s);
}

static void rewrite_evidence(const fixture *s, sn_buf *file) {
    FILE *out = fopen(s->path, "wb");
    cr_assert(out && fwrite(file->data, 1, file->len, out) == file->len && !fclose(out));
}

/* Replaces text in the evidence file as a forger would: with a matching checksum. */
static void forge_evidence(const fixture *s, const char *find, const char *instead) {
    sn_buf file = {0};
    REQUIRE(sn_read_file(s->path, 1 << 24, &file, &err));
    uint8_t *at = memmem(file.data, file.len, find, strlen(find));
    cr_assert(at && strlen(find) == strlen(instead));
    memcpy(at, instead, strlen(instead));
    sn_hash sum = sn_hash_of(file.data, file.len - sizeof sum);
    memcpy(file.data + file.len - sizeof sum, &sum, sizeof sum);
    rewrite_evidence(s, &file);
    sn_buf_fini(&file);
}

#define REFUSED(model, part)                                                                                           \
    do {                                                                                                               \
        cr_expect_eq(run_verify(&s, model, NULL), 2, "%d: %s", s.last.code, s.last.err);                               \
        cr_expect(strstr(s.last.err, part), "%s", s.last.err);                                                         \
    } while (0)

Test(verify, refuses_damaged_forged_and_unrelated_evidence) {
    fixture s;
    fixture_begin(&s);
    add_statement(&s, &s.lying, receipt_of(&s, s.wrong_rows), NULL);
    REQUIRE(sn_evidence_save(&s.e, s.folder, s.path, &err));
    char *other = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .seed = 2}),
         *wide = tiny_model_make(&(tiny_model_options){.dtype = SN_F16});
    REFUSED(other, "block 0 has other weights");
    REFUSED(wide, "about another model");
    sn_buf whole = {0};
    REQUIRE(sn_read_file(s.path, 1 << 24, &whole, &err));
    for (size_t at = 0; at < whole.len; at += whole.len / 23) { /* one bit anywhere */
        whole.data[at] ^= 4;
        rewrite_evidence(&s, &whole);
        REFUSED(s.w->path, at < 17 ? "does not begin with the line" : "damaged or cut short");
        whole.data[at] ^= 4;
    }
    sn_buf cut = whole;
    for (cut.len = 0; cut.len < whole.len; cut.len += whole.len / 5) {
        rewrite_evidence(&s, &cut);
        REFUSED(s.w->path, "not a complete evidence file");
    }
    rewrite_evidence(&s, &whole);
    forge_evidence(&s, "\"receipt\":\"737761726d", "\"receipt\":\"737761726e"); /* swarm -> swarn */
    REFUSED(s.w->path, "does not begin as a receipt");
    rewrite_evidence(&s, &whole);
    char id[2 * SN_KEY_SIZE + 1], another[2 * SN_KEY_SIZE + 1];
    forge_evidence(&s, sn_hex(s.lying.id, SN_KEY_SIZE, id),
                   sn_hex(s.honest.id, SN_KEY_SIZE, another)); /* accuses another node */
    REFUSED(s.w->path, "was not made by the node that it names");
    rewrite_evidence(&s, &whole);
    forge_evidence(&s, "\"tokens\":40", "\"tokens\":90");
    REFUSED(s.w->path, "inputs are missing");
    rewrite_evidence(&s, &whole);
    forge_evidence(&s, "\"tokens\":40", "\"tokens\":39");
    REFUSED(s.w->path, "does not hold");
    rewrite_evidence(&s, &whole);
    forge_evidence(&s, "\"n_embd\":64", "\"n_embd\":-4");
    REFUSED(s.w->path, "a field of its header");
    snprintf(s.path, sizeof s.path, "%s/none", s.folder);
    REFUSED(s.w->path, "none");
    sn_buf_fini(&whole);
    tiny_model_remove(&other);
    tiny_model_remove(&wide);
    fixture_end(&s);
}

/* Writes a LoRA adapter that fits the model and was trained for these weights to the fixture's folder. */
static void make_adapter(const fixture *s, const sn_model *model, const sn_base_weights *base) {
    sn_params *params = NULL;
    sn_params_shape shape = {.method = SN_METHOD_LORA, .rank = 2, .alpha = 2, .target = {[SN_ROLE_ATTN_V] = true}};
    REQUIRE(sn_params_new(sn_model_hparams(model), &shape, &params, &err));
    REQUIRE(sn_adapter_folder_save(s->folder, params, sn_model_hparams(model), base, NULL, &err));
    sn_params_free(&params);
}

Test(verify, refuses_an_adapter_of_other_weights) {
    fixture s;
    sn_model *model = NULL;
    sn_base_weights base;
    char option[1100];
    fixture_begin(&s);
    add_statement(&s, &s.lying, receipt_of(&s, s.wrong_rows), NULL);
    REQUIRE(sn_evidence_save(&s.e, s.folder, s.path, &err));
    REQUIRE(sn_model_open(s.w->path, &model, &err));
    REQUIRE(sn_base_weights_init(&base, model, s.w->block_hash, &err));
    snprintf(option, sizeof option, "--adapter=%s", s.folder);
    base.client.bytes[0] ^= 1;
    make_adapter(&s, model, &base);
    cr_expect_eq(run_verify(&s, s.w->path, option), 2);
    cr_expect(strstr(s.last.err, "was trained for other weights"), "%s", s.last.err);
    base.client.bytes[0] ^= 1;
    make_adapter(&s, model, &base);
    cr_expect_eq(run_verify(&s, s.w->path, option), 2);
    cr_expect(strstr(s.last.err, "about another adapter"), "%s", s.last.err);
    sn_base_weights_fini(&base);
    sn_model_close(&model);
    fixture_end(&s);
}
