/* Text generated token by token with a tokenizer in SentencePiece's style: byte tokens, and the space that the first
 * token adds. */
#include "client/generate/generator.h"
#include "text/tokenizer/utf8.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tokenizers.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 64, TOKENS = 24, SEEDS = 400 };

static sn_model *model;
static sn_device *device;
static sn_lm_head *head;
/* its first 320 tokens are those of the model: special tokens, bytes, and some merges */
static sn_tokenizer *tokenizer;
static sn_buf emitted;

static void use_model(const char *path) {
    sn_lm_head_free(&head);
    sn_model_close(&model);
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_lm_head_load(model, device, &head, &err));
}

static void set_up(void) {
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err));
    use_model(SN_FIXTURES "/golden/llama");
    tokenizer = open_fixture("sentencepiece");
    sn_buf_init(&emitted, 1 << 20);
}

static void tear_down(void) {
    sn_buf_fini(&emitted);
    sn_tokenizer_close(&tokenizer);
    sn_lm_head_free(&head);
    sn_device_close(&device);
    sn_model_close(&model);
}

TestSuite(generate_text, .init = set_up, .fini = tear_down);

static sn_status on_text(void *ctx, const char *text, size_t len, sn_err *err) {
    (void)ctx;
    cr_assert(sn_utf8_valid(text, len));
    return sn_buf_append(&emitted, text, len, err);
}

/* Generates the text of one prompt and seed; `emitted` is the text that the callback received. */
static sn_generation write_text(const int32_t *prompt, size_t n, uint64_t seed, sn_generate_options options) {
    sn_chain *chain = NULL;
    sn_generator *generator = NULL;
    sn_generation out;
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = 1;
    sampling.seed = seed;
    sn_chain_options query = {
        .max_tokens = CONTEXT,
        .local = {.device = device, .end = sn_model_hparams(model)->n_blocks, .kv_memory = 4 << 20}};
    REQUIRE(sn_chain_open(model, &query, &chain, &err));
    sn_generator_parts parts = {sn_model_hparams(model), head, chain, tokenizer, CONTEXT, NULL};
    REQUIRE(sn_generator_new(&parts, &sampling, &generator, &err));
    emitted.len = 0;
    options.max_tokens = TOKENS;
    options.on_text = on_text;
    options.ignore_eos = true;
    REQUIRE(sn_generator_run(generator, prompt, n, &options, &out, &err));
    cr_assert(out.text.len == emitted.len && (!emitted.len || !memcmp(out.text.data, emitted.data, emitted.len)));
    sn_generator_free(&generator);
    sn_chain_close(&chain);
    return out;
}

static size_t first_text(const sn_generation *g, char *begin) {
    sn_buf all = decode(tokenizer, &g->ids, false);
    size_t len = all.len;
    *begin = len ? (char)all.data[0] : 0;
    sn_buf_fini(&all);
    return len;
}

/* Finds the seed of a text that begins with a space. */
static uint64_t seed_with_space(const int32_t *prompt, size_t n) {
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        sn_generation g = write_text(prompt, n, seed, (sn_generate_options){.is_answer = false});
        char begin;
        first_text(&g, &begin);
        sn_generation_fini(&g);
        if (begin == ' ') return seed;
    }
    cr_assert(false, "no text of %d begins with a space", (int)SEEDS);
    return 0;
}

Test(generate_text, omits_the_first_space_at_the_beginning) {
    const int32_t begins[] = {1}, goes_on[] = {1, 300};
    sn_token_ids ids = {.ids = (int32_t *)goes_on + 1, .n = 1};
    sn_buf before = decode(tokenizer, &ids, false);
    cr_assert_gt(before.len, 0u);
    sn_buf_fini(&before);
    uint64_t seed = seed_with_space(goes_on, 2), first = seed_with_space(begins, 1);
    sn_generation more = write_text(goes_on, 2, seed, (sn_generate_options){.is_answer = false});
    sn_generation answer = write_text(goes_on, 2, seed, (sn_generate_options){.is_answer = true});
    cr_assert_eq(more.text.data[0], ' ');
    cr_assert(answer.text.len + 1 == more.text.len && !memcmp(answer.text.data, more.text.data + 1, answer.text.len));
    sn_generation whole = write_text(begins, 1, first, (sn_generate_options){.is_answer = false});
    char begin;
    first_text(&whole, &begin);
    sn_buf all = decode(tokenizer, &whole.ids, false);
    cr_assert_eq(all.data[0], ' ');
    cr_assert_eq(whole.text.data[0] == ' ', all.data[1] == ' '); /* one space is omitted, not all */
    sn_buf_fini(&all);
    sn_generation *lists[] = {&more, &answer, &whole};
    for (size_t i = 0; i < 3; i++) sn_generation_fini(lists[i]);
}

/* Bytes that do not form characters become U+FFFD; everything else is the text of the tokens. */
Test(generate_text, decodes_byte_tokens) {
    const int32_t prompt[] = {1, 300};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        sn_generation g = write_text(prompt, 2, seed, (sn_generate_options){.is_answer = false});
        sn_buf all = decode(tokenizer, &g.ids, false);
        cr_assert(sn_utf8_valid((char *)g.text.data, g.text.len));
        if (sn_utf8_valid((char *)all.data, all.len))
            cr_assert(all.len == g.text.len && !memcmp(all.data, g.text.data, all.len));
        else
            cr_assert(memmem(g.text.data, g.text.len, "\xef\xbf\xbd", 3));
        sn_buf_fini(&all);
        sn_generation_fini(&g);
    }
}

Test(generate_text, ends_before_a_stop_string_that_follows_the_first_space) {
    const int32_t prompt[] = {1, 300};
    uint64_t seed = seed_with_space(prompt, 2);
    sn_generation g = write_text(prompt, 2, seed, (sn_generate_options){.is_answer = true});
    size_t at = 1;
    char stop[3] = "";
    while (at + 2 < g.text.len && (g.text.data[at] > 127 || g.text.data[at + 1] > 127))
        at++; /* bytes that do not form characters never match */
    cr_assert_lt(at + 2, g.text.len);
    memcpy(stop, g.text.data + at, 2);
    const char *stops[] = {stop};
    const uint8_t *where = memmem(g.text.data, g.text.len, stop, strlen(stop));
    sn_generation cut =
        write_text(prompt, 2, seed, (sn_generate_options){.is_answer = true, .stops = stops, .n_stops = 1});
    cr_assert_eq(cut.finish, SN_FINISH_STOP_TEXT);
    cr_assert_eq(cut.text.len, (size_t)(where - g.text.data));
    cr_assert(!cut.text.len || !memcmp(cut.text.data, g.text.data, cut.text.len));
    sn_generation_fini(&g);
    sn_generation_fini(&cut);
}

/* Phi-3 and Gemma have more rows than tokens; a random model generates their ids as often as others. */
Test(generate_text, continues_after_an_id_outside_the_tokenizer) {
    const int32_t prompt[] = {1, 300};
    const int n_vocab = sn_tokenizer_n_vocab(tokenizer);
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_vocab = 2 * n_vocab});
    use_model(path);
    sn_generation g = write_text(prompt, 2, 1, (sn_generate_options){.is_answer = false});
    sn_token_ids known = {0};
    REQUIRE(sn_calloc(&known.ids, TOKENS, sizeof *known.ids, &err));
    for (size_t i = 0; i < g.ids.n; i++)
        if (g.ids.ids[i] < n_vocab) known.ids[known.n++] = g.ids.ids[i];
    cr_assert(g.finish == SN_FINISH_LENGTH && g.ids.n == TOKENS);
    cr_assert(known.n > 0 && known.n < TOKENS, "%zu of %d", known.n, TOKENS);
    sn_buf all = decode(tokenizer, &known, false);
    if (sn_utf8_valid((char *)all.data, all.len))
        cr_assert(all.len == g.text.len && !memcmp(all.data, g.text.data, all.len));
    sn_buf_fini(&all);
    free(known.ids);
    sn_generation_fini(&g);
    tiny_model_remove(&path);
}
