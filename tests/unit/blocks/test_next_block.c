/* The block that predicts a further token, against the reference's numbers (tests/fixtures/golden/..._mtp: the draft
 * block of transformers; make_mtp.py): three drafts at each of eight places of a text. */
#include "blocks/next_block.h"
#include "client/generate/lm_head.h" /* drafts come out of the LM head */
#include "model/safetensors.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const char *const FOLDERS[] = {"qwen3_5_mtp",    "qwen3_5_moe_mtp", "glm4_moe_mtp",     "deepseek_v3_mtp",
                                      "qwen3_next_mtp", "hy_v3_mtp",       "deepseek_v32_mtp", "glm_moe_dsa_mtp"};
enum { TEXT = 64, EMBD = 64, VOCAB = 320, DRAFTS = 3 };

typedef struct golden {
    sn_safetensors *file;
    sn_model *model;
    sn_device *device;
    sn_lm_head *head;
    sn_next_block *block;
    int n;
    int32_t ids[TEXT];
    float embeddings[TEXT * EMBD], hidden[TEXT * EMBD]; /* of the ids; hidden: after the last norm */
} golden;

static const sn_safetensors_tensor *tensor(const golden *g, const char *name) {
    const sn_safetensors_tensor *t = sn_safetensors_find(g->file, name);
    cr_assert(t, "%s", name);
    return t;
}

static int64_t whole(const golden *g, const char *name, size_t i) {
    int64_t x;
    memcpy(&x, tensor(g, name)->data + i * sizeof x, sizeof x);
    return x;
}

/* The model's own hidden states are the reference's: what is tested is the block. */
static golden *open_golden(const char *folder) {
    static golden g;
    char path[256], file[300], last[32];
    g = (golden){0};
    snprintf(path, sizeof path, SN_FIXTURES "/golden/%s", folder);
    snprintf(file, sizeof file, "%s/golden.safetensors", path);
    REQUIRE(sn_safetensors_open(file, &g.file, &err));
    REQUIRE(sn_model_open(path, &g.model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &g.device, &err));
    REQUIRE(sn_lm_head_load(g.model, g.device, &g.head, &err));
    REQUIRE(sn_next_block_load(g.model, g.device, SN_KV_F32, TEXT, &g.block, &err));
    g.n = (int)tensor(&g, "input_ids")->elements;
    for (int i = 0; i < g.n; i++) g.ids[i] = (int32_t)whole(&g, "input_ids", (size_t)i);
    REQUIRE(sn_lm_head_embed(g.head, g.ids, g.n, g.embeddings, &err));
    snprintf(last, sizeof last, "hidden.%d", sn_model_hparams(g.model)->n_blocks);
    REQUIRE(sn_lm_head_norm(g.head, (const float *)(const void *)tensor(&g, last)->data, g.n, g.hidden, &err));
    return &g;
}

static void close_golden(golden *g) {
    sn_next_block_free(&g->block);
    sn_lm_head_free(&g->head);
    sn_device_close(&g->device);
    sn_model_close(&g->model);
    sn_safetensors_close(&g->file);
}

static void expect_close(const golden *g, const char *name, size_t row, size_t width, const float *got,
                         const char *folder) {
    const unsigned char *data = (const unsigned char *)tensor(g, name)->data + row * width * sizeof(float);
    float largest = 0, furthest = 0, want;
    for (size_t i = 0; i < width; i++) {
        memcpy(&want, data + i * sizeof want, sizeof want);
        largest = fmaxf(largest, fabsf(want));
        furthest = fmaxf(furthest, fabsf(got[i] - want));
    }
    cr_expect(furthest <= 1e-4f * largest, "%s, %s, draft %zu: off by %g of %g", folder, name, row, (double)furthest,
              (double)largest);
}

static int32_t most_likely(const golden *g, const float *row, float *logits) {
    int32_t best = 0;
    REQUIRE(sn_lm_head_logits_of_normed(g->head, row, 1, logits, &err));
    for (int32_t i = 1; i < VOCAB; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Rows 0 to p of the text, then drafts one after the other. */
static void expect_drafts(golden *g, size_t place, const char *folder) {
    const int p = (int)whole(g, "mtp.positions", place);
    float rows[TEXT * EMBD], logits[VOCAB], *row = rows + (size_t)p * EMBD;
    sn_next_block_rewind(g->block, 0);
    REQUIRE(sn_next_block_forward(g->block, p + 1, g->embeddings + EMBD, g->hidden, rows, &err));
    for (size_t k = 0, at = place * DRAFTS; k < DRAFTS; k++, at++) {
        const int32_t token = most_likely(g, row, logits);
        expect_close(g, "mtp.hidden", at, EMBD, row, folder);
        expect_close(g, "mtp.logits", at, VOCAB, logits, folder);
        cr_expect_eq(token, (int32_t)whole(g, "mtp.tokens", at), "%s, place %zu, draft %zu", folder, place, k);
        float embedding[EMBD];
        REQUIRE(sn_lm_head_embed(g->head, &token, 1, embedding, &err));
        REQUIRE(sn_next_block_forward(g->block, 1, embedding, row, row, &err));
    }
    cr_expect_eq(sn_next_block_length(g->block), p + 1 + DRAFTS);
}

Test(next_block, drafts_are_the_references) {
    for (size_t f = 0; f < sizeof FOLDERS / sizeof *FOLDERS; f++) {
        golden *g = open_golden(FOLDERS[f]);
        for (size_t place = 0; place < tensor(g, "mtp.positions")->elements; place++)
            expect_drafts(g, place, FOLDERS[f]);
        close_golden(g);
    }
}

Test(next_block, rows_have_the_same_bits_one_by_one_and_after_rows_that_were_taken_back) {
    for (size_t f = 0; f < sizeof FOLDERS / sizeof *FOLDERS; f++) {
        golden *g = open_golden(FOLDERS[f]);
        const int n = g->n - 1;
        float all[TEXT * EMBD], one[EMBD];
        REQUIRE(sn_next_block_forward(g->block, n, g->embeddings + EMBD, g->hidden, all, &err));
        sn_next_block_rewind(g->block, 0);
        for (int i = 0; i < n; i++) {
            const size_t at = (size_t)i * EMBD;
            REQUIRE(sn_next_block_forward(g->block, n - i, g->embeddings, g->hidden, NULL, &err)); /* other rows */
            sn_next_block_rewind(g->block, i);
            REQUIRE(sn_next_block_forward(g->block, 1, g->embeddings + EMBD + at, g->hidden + at, one, &err));
            cr_expect(!memcmp(one, all + at, sizeof one), "%s, row %d", FOLDERS[f], i);
        }
        close_golden(g);
    }
}

Test(next_block, is_no_part_of_the_model) {
    sn_model *with = NULL, *without = NULL;
    sn_next_block *none = NULL;
    sn_device *device = NULL;
    sn_err why;
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/glm4_moe_mtp", &with, &err));
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/glm4_moe", &without, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    cr_expect_eq(sn_model_hparams(with)->n_blocks, 3);
    cr_expect_eq(sn_model_hparams(with)->n_next, 1);
    cr_expect_eq(sn_model_hparams(without)->n_next, 0);
    cr_expect_eq(sn_next_block_load(without, device, SN_KV_F32, TEXT, &none, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "no block that predicts a further token"), "%s", why.text);
    sn_device_close(&device);
    sn_model_close(&with);
    sn_model_close(&without);
}
