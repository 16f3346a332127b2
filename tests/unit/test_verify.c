/* Evidence in a file, and swarm verify: names who lied and nobody else; what is damaged, forged or about something else is
 * refused with a sentence. The nodes are keys only: what they sign is made here. */
#include "base/text.h"
#include "blocks/weights_id.h"
#include "client/evidence.h"
#include "client/tune/adapter.h"
#include "model/peft.h"
#include "tests/support/fake.h"
#include "tests/support/files.h"
#include "tests/support/need.h"
#include "tests/support/program.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <string.h>

enum { TOKENS = 40, POSITION = 37, N = 3 };

typedef struct scene {
    world *w;
    char *folder;
    sn_identity honest, liar;
    float *true_rows, *wrong_rows; /* (TOKENS, n_embd) behind block 4 */
    sn_evidence e;
    char path[1024];
    program last;
} scene;

/* What a node signs that took rows of the world's input through blocks 0:4. */
static sn_receipt receipt_of(const scene *s, const float *outputs) {
    const world *w = s->w;
    size_t row = (size_t)w->n_embd;
    sn_hash *timeline = world_timeline(w, 0, 4, TOKENS, w->inputs);
    sn_receipt r = {.step = 2, .position = POSITION, .n = N, .n_embd = (uint32_t)row, .end_block = 4,
                    .unix_ms = 1790000000000, .version = "1"};
    memcpy(r.model, &w->model, sizeof r.model);
    r.weights = sn_hash_of(w->block_hash, 4 * sizeof *w->block_hash);
    r.timeline_before = timeline[POSITION];
    r.timeline_after = timeline[POSITION + N];
    r.input = sn_hash_of(w->inputs + POSITION * row, N * row * sizeof(float));
    r.output = sn_hash_of(outputs + POSITION * row, N * row * sizeof(float));
    free(timeline);
    return r;
}

static void say(scene *s, const sn_identity *who, sn_receipt r, const float *outputs) {
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_buf told;
    fake_announce(s->w, who, who == &s->liar ? "tcp://10.0.0.66:1" : "tcp://10.0.0.1:1", 0, 4, 0, &told);
    NEED(sn_receipt_seal(&r, who, sealed, &err));
    sn_blob blob = {told.data, told.len};
    NEED(sn_evidence_add(&s->e, sealed, &blob, outputs ? outputs + (size_t)POSITION * (size_t)s->w->n_embd : NULL, &err));
    sn_buf_fini(&told);
}

static void scene_begin(scene *s) {
    *s = (scene){.w = world_new(&(cluster_options){.kv_memory = 8}), .folder = temp_folder()};
    const world *w = s->w;
    size_t size = (size_t)TOKENS * (size_t)w->n_embd;
    NEED(sn_identity_new(&s->honest, &err));
    NEED(sn_identity_new(&s->liar, &err));
    s->true_rows = world_compute(w, 0, 4, TOKENS, w->inputs);
    NEED(sn_calloc(&s->wrong_rows, size, sizeof *s->wrong_rows, &err));
    memcpy(s->wrong_rows, s->true_rows, size * sizeof(float));
    s->wrong_rows[(size_t)(POSITION + 1) * (size_t)w->n_embd + 5] *= 1.0000002f;
    s->e = (sn_evidence){.model = w->model, .name = "tiny", .end = 4, .n_embd = w->n_embd, .n_tokens = TOKENS,
                         .unix_ms = 1790000000000};
    NEED(sn_calloc(&s->e.block_hash, 4, sizeof *s->e.block_hash, &err));
    memcpy(s->e.block_hash, w->block_hash, 4 * sizeof *w->block_hash);
    NEED(sn_calloc(&s->e.inputs, size, sizeof *s->e.inputs, &err));
    memcpy(s->e.inputs, w->inputs, size * sizeof(float));
}

static void scene_end(scene *s) {
    program_fini(&s->last);
    free(s->true_rows);
    free(s->wrong_rows);
    sn_evidence_fini(&s->e);
    temp_folder_remove(&s->folder);
    world_free(&s->w);
}

static int verify(scene *s, const char *model, const char *option) {
    const char *argv[] = {SN_SWARM, "verify", s->path, "--model", model, option, NULL};
    program_fini(&s->last);
    s->last = program_run(argv, NULL);
    return s->last.code;
}

static const char *finding(const json_t *o, size_t i) {
    return json_string_value(json_object_get(json_array_get(json_object_get(o, "statements"), i), "finding"));
}

Test(verify, names_who_lied_and_who_did_not) {
    scene s;
    char id[2 * SN_KEY_SIZE + 1];
    scene_begin(&s);
    say(&s, &s.liar, receipt_of(&s, s.wrong_rows), NULL);
    say(&s, &s.honest, receipt_of(&s, s.true_rows), NULL);
    NEED(sn_evidence_save(&s.e, s.folder, s.path, &err));
    cr_assert_eq(verify(&s, s.w->path, "--json"), 0, "%s", s.last.err);
    json_t *o = program_json(&s.last);
    cr_expect(json_is_true(json_object_get(o, "proven")));
    cr_expect_str_eq(finding(o, 0), "lie");
    cr_expect_str_eq(finding(o, 1), "true");
    json_decref(o);
    cr_assert_eq(verify(&s, s.w->path, NULL), 0);
    const char *lied = strstr(s.last.out, "LIED"), *liar = strstr(s.last.out, sn_hex(s.liar.id, SN_KEY_SIZE, id));
    cr_expect(lied && liar && liar < lied && !strstr(lied + 1, "LIED"), "%s", s.last.out);
    cr_expect(strstr(s.last.out, "fake at tcp://10.0.0.66:1"), "%s", s.last.out);
    scene_end(&s);
}

Test(verify, of_another_device_wants_results_that_are_near) {
    scene s;
    scene_begin(&s);
    sn_receipt near = receipt_of(&s, s.wrong_rows);
    near.device = SN_RECEIPT_CLOSE;
    say(&s, &s.honest, near, s.wrong_rows); /* a last bit, which such a device may have otherwise */
    float *far = malloc((size_t)TOKENS * (size_t)s.w->n_embd * sizeof *far);
    memcpy(far, s.true_rows, (size_t)TOKENS * (size_t)s.w->n_embd * sizeof *far);
    for (int i = 0; i < s.w->n_embd; i++) far[(POSITION + 2) * s.w->n_embd + i] *= 1.1f;
    sn_receipt off = receipt_of(&s, far);
    off.device = SN_RECEIPT_CLOSE;
    say(&s, &s.liar, off, far);
    say(&s, &s.liar, off, NULL); /* without what was sent nothing can be said */
    NEED(sn_evidence_save(&s.e, s.folder, s.path, &err));
    cr_assert_eq(verify(&s, s.w->path, "--json"), 0, "%s", s.last.err);
    json_t *o = program_json(&s.last);
    cr_expect_str_eq(finding(o, 0), "true");
    cr_expect_str_eq(finding(o, 1), "lie");
    cr_expect_str_eq(finding(o, 2), "nothing");
    json_decref(o);
    free(far);
    scene_end(&s);
}

/* A statement that is about something else convicts nobody, whatever its output. */
Test(verify, convicts_nobody_of_what_was_not_signed) {
    scene s;
    scene_begin(&s);
    sn_receipt r = receipt_of(&s, s.wrong_rows);
    r.input.bytes[0] ^= 1;
    say(&s, &s.liar, r, NULL);
    r = receipt_of(&s, s.wrong_rows);
    r.timeline_before.bytes[0] ^= 1;
    say(&s, &s.liar, r, NULL);
    r = receipt_of(&s, s.wrong_rows);
    r.weights.bytes[0] ^= 1;
    say(&s, &s.liar, r, NULL);
    r = receipt_of(&s, s.wrong_rows);
    r.kv_dtype = SN_F16;
    say(&s, &s.liar, r, NULL);
    say(&s, &s.honest, receipt_of(&s, s.true_rows), NULL);
    NEED(sn_evidence_save(&s.e, s.folder, s.path, &err));
    cr_assert_eq(verify(&s, s.w->path, "--json"), 1, "%s", s.last.err);
    json_t *o = program_json(&s.last);
    cr_expect(json_is_false(json_object_get(o, "proven")));
    for (size_t i = 0; i < 4; i++) cr_expect_str_eq(finding(o, i), "nothing", "statement %zu", i);
    cr_expect_str_eq(finding(o, 4), "true");
    json_decref(o);
    scene_end(&s);
}

static void rewrite(const scene *s, sn_buf *file) {
    FILE *out = fopen(s->path, "wb");
    cr_assert(out && fwrite(file->data, 1, file->len, out) == file->len && !fclose(out));
}

/* As somebody would who wants to convict: with a checksum that fits. */
static void forge(const scene *s, const char *find, const char *instead) {
    sn_buf file = {0};
    NEED(sn_read_file(s->path, 1 << 24, &file, &err));
    uint8_t *at = memmem(file.data, file.len, find, strlen(find));
    cr_assert(at && strlen(find) == strlen(instead));
    memcpy(at, instead, strlen(instead));
    sn_hash sum = sn_hash_of(file.data, file.len - sizeof sum);
    memcpy(file.data + file.len - sizeof sum, &sum, sizeof sum);
    rewrite(s, &file);
    sn_buf_fini(&file);
}

#define REFUSED(model, part)                                                                                           \
    do {                                                                                                               \
        cr_expect_eq(verify(&s, model, NULL), 2, "%d: %s", s.last.code, s.last.err);                                   \
        cr_expect(strstr(s.last.err, part), "%s", s.last.err);                                                         \
    } while (0)

Test(verify, refuses_what_is_damaged_or_forged_or_about_another_model) {
    scene s;
    scene_begin(&s);
    say(&s, &s.liar, receipt_of(&s, s.wrong_rows), NULL);
    NEED(sn_evidence_save(&s.e, s.folder, s.path, &err));
    char *other = tiny_make(&(tiny_options){.dtype = SN_F32, .seed = 2}), *wide = tiny_make(&(tiny_options){.dtype = SN_F16});
    REFUSED(other, "block 0 has other weights");
    REFUSED(wide, "about another model");
    sn_buf whole = {0};
    NEED(sn_read_file(s.path, 1 << 24, &whole, &err));
    for (size_t at = 0; at < whole.len; at += whole.len / 23) { /* a bit anywhere */
        whole.data[at] ^= 4;
        rewrite(&s, &whole);
        REFUSED(s.w->path, at < 17 ? "does not begin as one" : "damaged or cut short");
        whole.data[at] ^= 4;
    }
    sn_buf cut = whole;
    for (cut.len = 0; cut.len < whole.len; cut.len += whole.len / 5) {
        rewrite(&s, &cut);
        REFUSED(s.w->path, "no whole evidence file");
    }
    rewrite(&s, &whole);
    forge(&s, "\"receipt\":\"737761726d", "\"receipt\":\"737761726e"); /* swarm -> swarn */
    REFUSED(s.w->path, "does not begin as a receipt");
    rewrite(&s, &whole);
    char id[2 * SN_KEY_SIZE + 1], another[2 * SN_KEY_SIZE + 1];
    forge(&s, sn_hex(s.liar.id, SN_KEY_SIZE, id), sn_hex(s.honest.id, SN_KEY_SIZE, another)); /* blames somebody else */
    REFUSED(s.w->path, "was not made by the node that it names");
    rewrite(&s, &whole);
    forge(&s, "\"tokens\":40", "\"tokens\":90");
    REFUSED(s.w->path, "inputs are missing");
    rewrite(&s, &whole);
    forge(&s, "\"tokens\":40", "\"tokens\":39");
    REFUSED(s.w->path, "does not hold");
    rewrite(&s, &whole);
    forge(&s, "\"n_embd\":64", "\"n_embd\":-4");
    REFUSED(s.w->path, "its header lacks something");
    snprintf(s.path, sizeof s.path, "%s/none", s.folder);
    REFUSED(s.w->path, "none");
    sn_buf_fini(&whole);
    tiny_remove(&other);
    tiny_remove(&wide);
    scene_end(&s);
}

/* Some LoRA that fits the model and says that it was trained for these weights, in the scene's folder. */
static void make_adapter(const scene *s, const sn_model *model, const sn_hash *weights) {
    sn_params *params = NULL;
    sn_params_shape shape = {.method = SN_METHOD_LORA, .rank = 2, .alpha = 2, .target = {[SN_ROLE_ATTN_V] = true}};
    NEED(sn_params_new(sn_model_hparams(model), &shape, &params, &err));
    NEED(sn_adapter_save(s->folder, params, sn_model_hparams(model), NULL, &err));
    NEED(sn_peft_mark(s->folder, weights, "some model", &err));
    sn_params_free(&params);
}

Test(verify, an_adapter_is_looked_at_for_whose_weights_it_is) {
    scene s;
    sn_model *model = NULL;
    sn_hash weights, others = {{9}};
    char option[1100];
    scene_begin(&s);
    say(&s, &s.liar, receipt_of(&s, s.wrong_rows), NULL);
    NEED(sn_evidence_save(&s.e, s.folder, s.path, &err));
    NEED(sn_model_open(s.w->path, &model, &err));
    NEED(sn_weights_id(model, &weights, &err));
    snprintf(option, sizeof option, "--adapter=%s", s.folder);
    make_adapter(&s, model, &others);
    cr_expect_eq(verify(&s, s.w->path, option), 2);
    cr_expect(strstr(s.last.err, "was trained for other weights (some model)"), "%s", s.last.err);
    make_adapter(&s, model, &weights);
    cr_expect_eq(verify(&s, s.w->path, option), 2);
    cr_expect(strstr(s.last.err, "about another adapter"), "%s", s.last.err);
    sn_model_close(&model);
    scene_end(&s);
}
