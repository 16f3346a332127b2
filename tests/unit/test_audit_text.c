/* A text that is written over a node that lies: what was told is taken back where it was wrong, and ends as the honest
 * text, id by id and byte by byte. */
#include "client/audit.h"
#include "client/generate.h"
#include "tests/support/liar.h"
#include "tests/support/need.h"
#include "tests/support/tokenizers.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PROMPT = 9, TOKENS = 60, CONTEXT = PROMPT + TOKENS };

/* What a reader saw: text, with what was taken back taken back. */
typedef struct reader {
    char text[4096];
    size_t len;
    int voids;
} reader;

static sn_status on_text(void *ctx, const char *text, size_t len, sn_err *err) {
    reader *r = ctx;
    (void)err;
    memcpy(r->text + r->len, text, len);
    r->len += len;
    return SN_OK;
}

static sn_status on_void(void *ctx, const char *text, size_t kept, sn_err *err) {
    reader *r = ctx;
    (void)err;
    cr_assert_lt(kept, r->len);
    cr_expect(!memcmp(text, r->text, kept));
    r->len = kept;
    r->voids++;
    return SN_OK;
}

typedef struct desk {
    world *w;
    sn_model *model;
    sn_device *device;
    sn_head *head;
    sn_tokenizer *tokenizer;
    sn_sampling sampling;
    bool guesses; /* over nodes, the honest model guesses ahead */
} desk;

static sn_generation write_text(const desk *d, sn_chain *chain, sn_draft *draft, reader *r, sn_status *status, sn_err *why) {
    static const int32_t prompt[PROMPT] = {5, 17, 3, 80, 41, 2, 66, 9, 30};
    sn_generator_parts parts = {sn_model_hparams(d->model), d->head, chain, d->tokenizer, CONTEXT, draft};
    sn_generate_options options = {.max_tokens = TOKENS, .ignore_end = true, .on_text = on_text, .on_void = on_void, .ctx = r};
    sn_generator *generator = NULL;
    sn_generation out;
    NEED(sn_generator_new(&parts, &d->sampling, &generator, &err));
    *status = sn_generator_run(generator, prompt, PROMPT, &options, &out, why);
    sn_generator_free(&generator);
    return out;
}

static sn_generation write_honestly(const desk *d, reader *r) {
    sn_chain_options options = {.device = d->device, .local_end = d->w->n_blocks, .max_tokens = CONTEXT};
    sn_chain *chain = NULL;
    sn_status status;
    sn_err why;
    NEED(sn_chain_open(d->model, &options, &chain, &err));
    sn_generation out = write_text(d, chain, NULL, r, &status, &why);
    cr_assert_eq(status, SN_OK, "%s", why.text);
    sn_chain_close(&chain);
    return out;
}

/* The same over nodes, of which one lies; audit NULL: nobody looks. */
static sn_generation write_over_liar(const desk *d, sn_audit *audit, sn_link *link, bool push, reader *r) {
    sn_chain_options options = {.link = link, .max_tokens = CONTEXT, .timeout_ms = 5000, .push = push, .audit = audit};
    sn_chain *chain = NULL;
    sn_status status;
    sn_err why;
    sn_draft_wish wish = {d->w->path, d->device, sn_model_hparams(d->model), NULL, d->sampling, CONTEXT};
    sn_draft_model *m = NULL;
    NEED(sn_chain_open(d->model, &options, &chain, &err));
    if (d->guesses) NEED(sn_draft_model_open(&wish, &m, &err));
    sn_draft draft = sn_draft_of(sn_draft_ask, m, 6);
    sn_generation out = write_text(d, chain, m ? &draft : NULL, r, &status, &why);
    cr_assert_eq(status, SN_OK, "%s", why.text);
    cr_expect_eq(out.timings.guessed > 0, d->guesses);
    sn_draft_model_close(&m);
    sn_chain_close(&chain);
    return out;
}

static bool same_text(const sn_generation *a, const reader *ra, const sn_generation *b, const reader *rb) {
    return a->ids.n == b->ids.n && !memcmp(a->ids.ids, b->ids.ids, a->ids.n * sizeof *a->ids.ids) &&
           a->text.len == b->text.len && !memcmp(a->text.data, b->text.data, a->text.len) && ra->len == rb->len &&
           !memcmp(ra->text, rb->text, ra->len);
}

static void expect_honest_text(desk *d, liar_ways ways, bool push, double share) {
    reader honest_reader = {0}, blind_reader = {0}, audited_reader = {0};
    sn_generation honest = write_honestly(d, &honest_reader);
    for (int i = 0; i < 3; i++) {
        cluster_add(d->w->cluster, 0, 2);
        cluster_add(d->w->cluster, 2, 4);
    }
    for (int blind = 1; blind >= 0; blind--) {
        liar *l = liar_new(d->w, blind ? "mem://liar0" : "mem://liar1", 2, 4, ways);
        sn_link *link = cluster_link(d->w->cluster);
        liar_tell(l, link);
        sn_audit *audit = NULL;
        sn_audit_options options = {
            .model = d->model, .link = link, .share = share, .seed = 3, .max_tokens = CONTEXT, .timeout_ms = 5000};
        if (!blind) NEED(sn_audit_new(&options, &audit, &err));
        reader *r = blind ? &blind_reader : &audited_reader;
        sn_generation text = write_over_liar(d, audit, link, push, r);
        bool same = same_text(&honest, &honest_reader, &text, r);
        cr_expect_eq(same, !blind, "%s: push %d, temperature %g", blind ? "the lie does not show" : "another text", push, d->sampling.temperature);
        if (!blind) {
            cr_expect_eq(sn_audit_read(audit).lies, 1);
            cr_expect_gt(text.timings.taken_back, 0);
            cr_expect_eq(r->voids, 1, "%d", r->voids);
        }
        sn_generation_fini(&text);
        sn_audit_free(&audit);
        sn_link_close(&link);
        liar_free(&l);
    }
    sn_generation_fini(&honest);
}

static desk desk_begin(sn_sampling sampling) {
    desk d = {.w = world_new(&(cluster_options){.kv_memory = 64}), .sampling = sampling};
    sn_device_options how = {.threads = 1};
    NEED(sn_model_open(d.w->path, &d.model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &d.device, &err));
    NEED(sn_head_load(d.model, d.device, &d.head, &err));
    d.tokenizer = open_fixture("qwen2"); /* of its ids the first hundred are characters */
    return d;
}

static void desk_end(desk *d) {
    sn_tokenizer_close(&d->tokenizer);
    sn_head_free(&d->head);
    sn_device_close(&d->device);
    sn_model_close(&d->model);
    world_free(&d->w);
}

Test(audit_text, is_the_honest_one_greedy_and_by_chance) {
    const sn_sampling samplings[] = {SN_SAMPLING_DEFAULT,
                                     {.temperature = 1.5, .top_p = 1, .repeat_penalty = 1.1, .seed = 11}};
    for (int i = 0; i < 2; i++)
        for (int push = 0; push < 2; push++) {
            desk d = desk_begin(samplings[i]);
            expect_honest_text(&d, (liar_ways){.alters_step = 20, .much = true}, push, 0.2);
            desk_end(&d);
        }
}

Test(audit_text, that_was_wrong_from_its_prompt_on_begins_again) {
    desk d = desk_begin((sn_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5});
    expect_honest_text(&d, (liar_ways){.alters_step = 1, .much = true}, false, 0.1);
    desk_end(&d);
}

Test(audit_text, is_checked_to_its_end_whatever_the_coin_says) {
    desk d = desk_begin((sn_sampling){.temperature = 1.5, .top_p = 1, .repeat_penalty = 1, .seed = 5});
    expect_honest_text(&d, (liar_ways){.alters_every = 55, .much = true}, false, 1e-9);
    desk_end(&d);
}

Test(audit_text, is_the_honest_one_when_it_is_guessed_ahead) {
    for (int push = 0; push < 2; push++)
        for (int at = 3; at < 10; at += 3) {
            desk d = desk_begin((sn_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5});
            d.guesses = true;
            expect_honest_text(&d, (liar_ways){.alters_step = at, .much = true}, push, at == 9 ? 1e-9 : 0.5);
            desk_end(&d);
        }
}
