/* Models with two sets of rope frequencies (Phi-3's 128k sizes): the longest length of a timeline decides which one all
 * of its positions have, however it is cut into steps, and timelines of different sets share nothing. */
#include "client/chain/chain.h"
#include "tests/support/cluster.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 140, ORIGINAL = 128, EMBD = 64, SEEN = 64 }; /* the model's original context is ORIGINAL */
static const char path[] = SN_FIXTURES "/golden/phi3_longrope_short";

/* The last hidden state of `n` rows of a timeline of at most max_tokens, in steps of `chunk`. */
static void compute(const sn_model *model, sn_link *link, int max_tokens, int n, int chunk, float out[EMBD]) {
    sn_chain *chain = NULL;
    sn_chain_options options = sn_chain_options_default();
    options.link = link;
    options.max_tokens = max_tokens;
    float *rows = malloc(sizeof(float) * TOKENS * EMBD), *hidden = malloc(sizeof(float) * TOKENS * EMBD);
    for (int i = 0; i < TOKENS * EMBD; i++) rows[i] = (float)((i * 37 + 11) % 101 - 50) / 50;
    REQUIRE(sn_chain_open(model, &options, &chain, &err));
    for (int at = 0, step; at < n; at += step) {
        step = chunk < n - at ? chunk : n - at;
        REQUIRE(sn_chain_step(chain, at, step, rows + (size_t)at * EMBD, hidden, &err));
        memcpy(out, hidden + (size_t)(step - 1) * EMBD, EMBD * sizeof *out);
    }
    sn_chain_close(&chain);
    free(rows);
    free(hidden);
}

static bool same(const float *a, const float *b) { return !memcmp(a, b, EMBD * sizeof *a); }

Test(long_rope, the_longest_length_of_a_timeline_decides_and_not_its_steps) {
    sn_model *model = NULL;
    float short_first[EMBD], long_first[EMBD], whole[EMBD], crossing[EMBD], out[EMBD];
    REQUIRE(sn_model_open(path, &model, &err));
    cluster *c =
        cluster_new(&(cluster_options){.model = path, .prefix_cache_memory = 1 << 20, .prefix_cache_shared = true});
    cluster_add(c, 0, 2);
    cluster_add(c, 2, 4);
    sn_link *link = cluster_link(c);
    compute(model, link, ORIGINAL, SEEN, SEEN, short_first);
    compute(model, link, ORIGINAL + 1, SEEN, SEEN, long_first); /* behind pages that the short one left */
    cr_expect_not(same(short_first, long_first));
    compute(model, link, TOKENS, TOKENS, TOKENS, whole);
    compute(model, link, TOKENS, TOKENS, 1, crossing);
    cr_expect(same(whole, crossing), "a timeline that grows beyond the original context has other bits");
    compute(model, link, SEEN, SEEN, 7, out);
    cr_expect(same(out, short_first));
    sn_link_close(&link);
    cluster_free(&c);

    c = cluster_new(&(cluster_options){.model = path}); /* nothing is shared here */
    cluster_add(c, 0, 4);
    link = cluster_link(c);
    compute(model, link, TOKENS, SEEN, SEEN, out);
    cr_expect(same(out, long_first), "a long timeline had pages of a short one");
    compute(model, link, TOKENS, TOKENS, TOKENS, out);
    cr_expect(same(out, whole));
    sn_link_close(&link);
    cluster_free(&c);
    sn_model_close(&model);
}
