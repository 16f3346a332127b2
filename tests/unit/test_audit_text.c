/* A text that is written over a node that lies: what was told is taken back where it was wrong, and ends as the honest
 * text, id by id and byte by byte. */
#include "client/audit.h"
#include "tests/support/desk.h"
#include "tests/support/liar.h"
#include "tests/support/need.h"

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

typedef struct scene {
    sn_sampling sampling;
    liar_ways ways;
    bool push;
    bool guesses; /* over nodes, the honest model guesses ahead */
    double share; /* of the steps that are checked on the way */
} scene;

static sn_generation write_text(const desk *d, const scene *s, sn_chain *chain, sn_draft *draft, reader *r) {
    static const int32_t prompt[PROMPT] = {5, 17, 3, 80, 41, 2, 66, 9, 30};
    sn_generator_parts parts = {sn_model_hparams(d->model), d->head, chain, d->tokenizer, CONTEXT, draft};
    sn_generate_options options = {.max_tokens = TOKENS, .ignore_end = true, .on_text = on_text, .on_void = on_void, .ctx = r};
    sn_generator *generator = NULL;
    sn_generation out;
    NEED(sn_generator_new(&parts, &s->sampling, &generator, &err));
    NEED(sn_generator_run(generator, prompt, PROMPT, &options, &out, &err));
    sn_generator_free(&generator);
    return out;
}

/* Over nodes, of which one lies; audit NULL: nobody looks. */
static sn_generation write_over_liar(const desk *d, const scene *s, sn_audit *audit, sn_link *link, reader *r) {
    sn_chain_options options = {.link = link, .max_tokens = CONTEXT, .timeout_ms = 5000, .push = s->push, .audit = audit};
    sn_chain *chain = NULL;
    sn_draft_wish wish = {d->w->path, d->device, sn_model_hparams(d->model), NULL, s->sampling, CONTEXT};
    sn_draft_model *m = NULL;
    NEED(sn_chain_open(d->model, &options, &chain, &err));
    if (s->guesses) NEED(sn_draft_model_open(&wish, &m, &err));
    sn_draft draft = sn_draft_of(sn_draft_ask, m, 6);
    sn_generation out = write_text(d, s, chain, m ? &draft : NULL, r);
    cr_expect_eq(out.timings.guessed > 0, s->guesses);
    sn_draft_model_close(&m);
    sn_chain_close(&chain);
    return out;
}

static bool same_text(const sn_generation *a, const reader *ra, const sn_generation *b, const reader *rb) {
    return a->ids.n == b->ids.n && !memcmp(a->ids.ids, b->ids.ids, a->ids.n * sizeof *a->ids.ids) &&
           a->text.len == b->text.len && !memcmp(a->text.data, b->text.data, a->text.len) && ra->len == rb->len &&
           !memcmp(ra->text, rb->text, ra->len);
}

static void expect_honest_text(scene s) {
    desk d = desk_begin(64, CONTEXT);
    reader honest_reader = {0}, blind_reader = {0}, audited_reader = {0};
    sn_chain *here = desk_chain(&d);
    sn_generation honest = write_text(&d, &s, here, NULL, &honest_reader);
    sn_chain_close(&here);
    for (int i = 0; i < 3; i++) {
        cluster_add(d.w->cluster, 0, 2);
        cluster_add(d.w->cluster, 2, 4);
    }
    for (int blind = 1; blind >= 0; blind--) {
        liar *l = liar_new(d.w, blind ? "mem://liar0" : "mem://liar1", 2, 4, s.ways);
        sn_link *link = cluster_link(d.w->cluster);
        liar_tell(l, link);
        sn_audit *audit = NULL;
        sn_audit_options options = {
            .model = d.model, .link = link, .share = s.share, .seed = 3, .max_tokens = CONTEXT, .timeout_ms = 5000};
        if (!blind) NEED(sn_audit_new(&options, &audit, &err));
        reader *r = blind ? &blind_reader : &audited_reader;
        sn_generation text = write_over_liar(&d, &s, audit, link, r);
        bool same = same_text(&honest, &honest_reader, &text, r);
        cr_expect_eq(same, !blind, "%s: push %d, temperature %g", blind ? "the lie does not show" : "another text", s.push, s.sampling.temperature);
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
    desk_end(&d);
}

Test(audit_text, is_the_honest_one_greedy_and_by_chance) {
    const sn_sampling samplings[] = {SN_SAMPLING_DEFAULT,
                                     {.temperature = 1.5, .top_p = 1, .repeat_penalty = 1.1, .seed = 11}};
    for (int i = 0; i < 2; i++)
        for (int push = 0; push < 2; push++)
            expect_honest_text((scene){samplings[i], {.alters_step = 20, .much = true}, push, false, 0.2});
}

Test(audit_text, that_was_wrong_from_its_prompt_on_begins_again) {
    const sn_sampling sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    expect_honest_text((scene){sampling, {.alters_step = 1, .much = true}, false, false, 0.1});
}

Test(audit_text, is_checked_to_its_end_whatever_the_coin_says) {
    const sn_sampling sampling = {.temperature = 1.5, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    expect_honest_text((scene){sampling, {.alters_every = 55, .much = true}, false, false, 1e-9});
}

Test(audit_text, is_the_honest_one_when_it_is_guessed_ahead) {
    const sn_sampling sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    for (int push = 0; push < 2; push++)
        for (int at = 3; at < 10; at += 3)
            expect_honest_text((scene){sampling, {.alters_step = at, .much = true}, push, true, at == 9 ? 1e-9 : 0.5});
}
