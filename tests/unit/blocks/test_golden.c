/* The reference's numbers (tests/fixtures/golden: transformers, float32) over nodes, with the model cut into two
 * spans at every block. Tolerance: 1e-4 of the largest magnitude, because the reference sums in another order. All
 * cuts give the same bits. */
#include "model/safetensors.h"
#include "client/generate/lm_head.h"
#include "tests/support/cluster.h"
#include "tests/support/families.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

typedef struct golden {
    sn_safetensors *file;
    sn_model *model;
    sn_device *device;
    sn_lm_head *head;
    const sn_hparams *hp;
    int n;           /* tokens */
    int worst_block; /* first block whose hidden states differ from the reference by more than allowed; -1: none */
} golden;

/* The reference's numbers of a family, and its folder; container "gguf": its GGUF file. *path: of the model. */
static golden open_golden_of(const char *family, const char *container, char path[256]) {
    golden g = {.worst_block = -1};
    char file[300];
    snprintf(path, 256, "%s/golden/%s", SN_FIXTURES, family);
    snprintf(file, sizeof file, "%s/golden.safetensors", path);
    if (container) snprintf(path, 256, "%s/%s/%s.%s", SN_FIXTURES, container, family, container);
    REQUIRE(sn_safetensors_open(file, &g.file, &err));
    REQUIRE(sn_model_open(path, &g.model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &g.device, &err));
    REQUIRE(sn_lm_head_load(g.model, g.device, &g.head, &err));
    g.hp = sn_model_hparams(g.model);
    g.n = (int)sn_safetensors_find(g.file, "input_ids")->elements;
    return g;
}

static golden open_golden(const char *family, char path[256]) { return open_golden_of(family, NULL, path); }

static void close_golden(golden *g) {
    sn_lm_head_free(&g->head);
    sn_device_close(&g->device);
    sn_model_close(&g->model);
    sn_safetensors_close(&g->file);
}

static bool is_close(const golden *g, const char *name, const float *got) {
    const sn_safetensors_tensor *t = sn_safetensors_find(g->file, name);
    float largest = 0, furthest = 0, want;
    for (size_t i = 0; i < t->elements; i++) {
        memcpy(&want, t->data + i * sizeof want, sizeof want);
        largest = fmaxf(largest, fabsf(want));
        if (!(fabsf(got[i] - want) <= furthest)) furthest = fabsf(got[i] - want);
    }
    return furthest <= 1e-4f * largest;
}

static void compare_boundary(void *ctx, int block, int position, int n, const float *hidden) {
    golden *g = ctx;
    char name[32];
    snprintf(name, sizeof name, "hidden.%d", block);
    if (position == 0 && n == g->n && !is_close(g, name, hidden)) g->worst_block = block;
}

/* Feeds the reference's ids and then its greedy continuation through the chain; false if a token differs. */
static bool greedy_is_equal(golden *g, sn_chain *chain, const float *logits) {
    const sn_safetensors_tensor *greedy = sn_safetensors_find(g->file, "greedy");
    size_t n_vocab = (size_t)g->hp->n_vocab, n_embd = (size_t)g->hp->n_embd;
    float *row = malloc(n_vocab * sizeof *row), *hidden = malloc(2 * n_embd * sizeof *hidden);
    bool equal = true;
    memcpy(row, logits + (size_t)(g->n - 1) * n_vocab, n_vocab * sizeof *row);
    for (size_t i = 0; i < greedy->elements && equal; i++) {
        int64_t want;
        int32_t best = 0;
        memcpy(&want, greedy->data + i * sizeof want, sizeof want);
        for (int32_t v = 1; v < g->hp->n_vocab; v++)
            if (row[v] > row[best]) best = v;
        equal = best == want;
        REQUIRE(sn_lm_head_embed(g->head, &best, 1, hidden, &err));
        REQUIRE(sn_chain_step(chain, g->n + (int)i, 1, hidden, hidden + n_embd, &err));
        REQUIRE(sn_lm_head_logits(g->head, hidden + n_embd, 1, row, &err));
    }
    free(row);
    free(hidden);
    return equal;
}

/* Computes the logits of the reference's ids over this link; also compares hidden states and greedy tokens. */
static float *run_golden(golden *g, sn_link *link, const char *what) {
    sn_chain *chain = NULL;
    size_t n_embd = (size_t)g->hp->n_embd, n = (size_t)g->n;
    const sn_safetensors_tensor *t = sn_safetensors_find(g->file, "input_ids");
    float *hidden = malloc(2 * n * n_embd * sizeof *hidden),
          *logits = malloc(n * (size_t)g->hp->n_vocab * sizeof *logits);
    int32_t ids[512];
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        memcpy(&id, t->data + i * sizeof id, sizeof id);
        ids[i] = (int32_t)id;
    }
    sn_chain_options options = sn_chain_options_default();
    options.link = link;
    options.max_tokens = g->n + (int)sn_safetensors_find(g->file, "greedy")->elements;
    REQUIRE(sn_chain_open(g->model, &options, &chain, &err));
    sn_chain_observe(chain, compare_boundary, g);
    REQUIRE(sn_lm_head_embed(g->head, ids, g->n, hidden, &err));
    REQUIRE(sn_chain_step(chain, 0, g->n, hidden, hidden + n * n_embd, &err));
    REQUIRE(sn_lm_head_logits(g->head, hidden + n * n_embd, g->n, logits, &err));
    cr_expect_eq(g->worst_block, -1, "%s: hidden.%d differs from the reference by more than 1e-4", what,
                 g->worst_block);
    cr_expect(is_close(g, "logits", logits), "%s: logits differ from the reference by more than 1e-4", what);
    cr_expect(greedy_is_equal(g, chain, logits), "%s: greedy tokens differ from the reference", what);
    sn_chain_close(&chain);
    free(hidden);
    return logits;
}

Test(golden, every_cut_in_two_over_nodes_gives_the_references_numbers) {
    for (int f = 0; f < N_FAMILIES; f++) {
        char path[256], what[64];
        golden g = open_golden(FAMILIES[f], path);
        float *first = NULL;
        for (int cut = 1; cut < g.hp->n_blocks; cut++) {
            if (!sn_may_cut(g.hp, cut)) continue;
            cluster *c = cluster_new(&(cluster_options){.model = path});
            cluster_add(c, 0, cut);
            cluster_add(c, cut, g.hp->n_blocks);
            sn_link *link = cluster_link(c);
            snprintf(what, sizeof what, "%s cut at block %d", FAMILIES[f], cut);
            float *logits = run_golden(&g, link, what);
            if (!first)
                first = logits;
            else {
                size_t bytes = (size_t)g.n * (size_t)g.hp->n_vocab * sizeof *logits;
                cr_expect(!memcmp(first, logits, bytes), "%s: bits differ from those of the cut at block 1", what);
                free(logits);
            }
            sn_link_close(&link);
            cluster_free(&c);
        }
        free(first);
        close_golden(&g);
    }
}

/* Their GGUF files have the rows of Q and K in another order, so that the bits are not those of the folder. */
Test(golden, permuted_gguf_files_give_the_references_numbers) {
    static const char *const permuted[] = {"smollm3", "granite", "ministral3"};
    for (size_t f = 0; f < sizeof permuted / sizeof *permuted; f++) {
        char path[256];
        golden g = open_golden_of(permuted[f], "gguf", path);
        cluster *c = cluster_new(&(cluster_options){.model = path});
        cluster_add(c, 0, 0);
        sn_link *link = cluster_link(c);
        free(run_golden(&g, link, permuted[f]));
        sn_link_close(&link);
        cluster_free(&c);
        close_golden(&g);
    }
}

Test(golden, one_span_over_one_node_gives_the_references_numbers) {
    for (int f = 0; f < N_FAMILIES; f++) {
        char path[256];
        golden g = open_golden(FAMILIES[f], path);
        cluster *c = cluster_new(&(cluster_options){.model = path});
        cluster_add(c, 0, 0);
        sn_link *link = cluster_link(c);
        free(run_golden(&g, link, FAMILIES[f]));
        sn_link_close(&link);
        cluster_free(&c);
        close_golden(&g);
    }
}
