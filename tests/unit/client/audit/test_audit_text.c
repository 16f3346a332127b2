/* Text generated over a byzantine node: wrong text that was emitted is retracted, and the final text equals that of
 * honest nodes, id by id and byte by byte. */
#include "client/audit/audit.h"
#include "tests/support/generator_fixture.h"
#include "tests/support/byzantine_node.h"
#include "tests/support/fake_node.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PROMPT = 9, TOKENS = 60, CONTEXT = PROMPT + TOKENS };

/* The text as a reader sees it: retracted text is removed. */
typedef struct text_sink {
    char text[4096];
    size_t len;
    int retractions;
} text_sink;

static sn_status on_text(void *ctx, const char *text, size_t len, sn_err *err) {
    text_sink *r = ctx;
    (void)err;
    memcpy(r->text + r->len, text, len);
    r->len += len;
    return SN_OK;
}

static sn_status on_retract(void *ctx, const char *text, size_t kept, sn_err *err) {
    text_sink *r = ctx;
    (void)err;
    cr_assert_lt(kept, r->len);
    cr_expect(!memcmp(text, r->text, kept));
    r->len = kept;
    r->retractions++;
    return SN_OK;
}

typedef struct test_case {
    sn_sampling sampling;
    byzantine_faults faults;
    bool push;
    bool drafts;  /* over nodes; the honest model drafts tokens */
    double share; /* of the steps that are audited while generating */
    bool held;    /* the text is emitted when it was checked */
} test_case;

static sn_generation write_text(const generator_fixture *d, const test_case *s, sn_chain *chain, sn_draft *draft,
                                text_sink *r) {
    static const int32_t prompt[PROMPT] = {5, 17, 3, 80, 41, 2, 66, 9, 30};
    sn_generator_parts parts = {sn_model_hparams(d->model), d->head, chain, d->tokenizer, CONTEXT, draft};
    sn_generate_options options = {.max_tokens = TOKENS,
                                   .ignore_eos = true,
                                   .on_text = on_text,
                                   .when_checked = s->held,
                                   .on_retract = on_retract,
                                   .ctx = r};
    sn_generator *generator = NULL;
    sn_generation out;
    REQUIRE(sn_generator_new(&parts, &s->sampling, &generator, &err));
    REQUIRE(sn_generator_run(generator, prompt, PROMPT, &options, &out, &err));
    sn_generator_free(&generator);
    return out;
}

/* Generates over nodes of which one is byzantine; audit NULL: without an audit. */
static sn_generation write_over_nodes(const generator_fixture *d, const test_case *s, sn_audit *audit, sn_link *link,
                                      text_sink *r) {
    sn_chain_options options = sn_chain_options_default();
    options.link = link;
    options.max_tokens = CONTEXT;
    options.limits.timeout_ms = 5000;
    options.routing.push = s->push;
    options.verification.verifier = sn_audit_verifier(audit);
    sn_chain *chain = NULL;
    sn_draft_model_options model_options = {d->w->path, d->device, sn_model_hparams(d->model), NULL, s->sampling,
                                            CONTEXT,    SN_KV_F32};
    sn_draft_model *m = NULL;
    REQUIRE(sn_chain_open(d->model, &options, &chain, &err));
    if (s->drafts) REQUIRE(sn_draft_model_open(&model_options, &m, &err));
    sn_draft draft = sn_draft_make(sn_draft_model_propose, m, 6);
    sn_generation out = write_text(d, s, chain, m ? &draft : NULL, r);
    cr_expect_eq(out.timings.n_drafted > 0, s->drafts);
    sn_draft_model_close(&m);
    sn_chain_close(&chain);
    return out;
}

static bool same_text(const sn_generation *a, const text_sink *ra, const sn_generation *b, const text_sink *rb) {
    return a->ids.n == b->ids.n && !memcmp(a->ids.ids, b->ids.ids, a->ids.n * sizeof *a->ids.ids) &&
           a->text.len == b->text.len && !memcmp(a->text.data, b->text.data, a->text.len) && ra->len == rb->len &&
           !memcmp(ra->text, rb->text, ra->len);
}

static void expect_honest_text(test_case s) {
    generator_fixture d = generator_fixture_begin(64, CONTEXT);
    text_sink honest_reader = {0}, blind_reader = {0}, audited_reader = {0};
    sn_chain *here = generator_fixture_local_chain(&d);
    sn_generation honest = write_text(&d, &s, here, NULL, &honest_reader);
    sn_chain_close(&here);
    for (int i = 0; i < 3; i++) {
        cluster_add(d.w->cluster, 0, 2);
        cluster_add(d.w->cluster, 2, 4);
    }
    for (int without_audit = 1; without_audit >= 0; without_audit--) {
        byzantine_node *l = byzantine_node_new(d.w, without_audit ? "byzantine0:1" : "byzantine1:1", 2, 4, s.faults);
        sn_link *link = cluster_link(d.w->cluster);
        byzantine_node_announce_to(l, link);
        sn_audit *audit = NULL;
        sn_audit_options options = {
            .model = d.model, .link = link, .share = s.share, .seed = 3, .max_tokens = CONTEXT, .timeout_ms = 5000};
        if (!without_audit) REQUIRE(sn_audit_new(&options, &audit, &err));
        text_sink *r = without_audit ? &blind_reader : &audited_reader;
        sn_generation text = write_over_nodes(&d, &s, audit, link, r);
        bool same = same_text(&honest, &honest_reader, &text, r);
        cr_expect_eq(same, !without_audit, "%s: push %d, temperature %g",
                     without_audit ? "the wrong output does not change the text" : "the text differs", s.push,
                     s.sampling.temperature);
        if (!without_audit) {
            cr_expect_eq(sn_audit_get_report(audit).nodes_banned, 1);
            cr_expect_gt(text.timings.retracted, 0);
            cr_expect_eq(r->retractions, !s.held, "%d", r->retractions);
        }
        sn_generation_fini(&text);
        sn_audit_free(&audit);
        sn_link_close(&link);
        byzantine_node_free(&l);
    }
    sn_generation_fini(&honest);
    generator_fixture_end(&d);
}

Test(audit_text, is_the_honest_text_greedy_and_sampled) {
    const sn_sampling samplings[] = {SN_SAMPLING_DEFAULT,
                                     {.temperature = 1.5, .top_p = 1, .repeat_penalty = 1.1, .seed = 11}};
    for (int i = 0; i < 2; i++)
        for (int push = 0; push < 2; push++)
            expect_honest_text(
                (test_case){samplings[i], {.alter_nth_step = 20, .large_error = true}, push, false, 0.2, false});
}

Test(audit_text, restarts_if_wrong_from_the_prompt_on) {
    const sn_sampling sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    expect_honest_text((test_case){sampling, {.alter_nth_step = 1, .large_error = true}, false, false, 0.1, false});
}

Test(audit_text, is_always_checked_to_its_end) {
    const sn_sampling sampling = {.temperature = 1.5, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    expect_honest_text((test_case){sampling, {.alter_every_nth = 55, .large_error = true}, false, false, 1e-9, false});
}

/* What goes into a pipe cannot be retracted: it must never hold the wrong text. */
Test(audit_text, is_emitted_once_and_right_where_it_is_held) {
    expect_honest_text(
        (test_case){SN_SAMPLING_DEFAULT, {.alter_nth_step = 20, .large_error = true}, false, false, 0.2, true});
}

/* The only node that could check the text answers its steps with errors: what was to be held until it is checked is not
 * shown, and what was not is. */
Test(audit_text, is_not_emitted_where_it_is_held_and_the_auditors_fail) {
    static const char *const deny[] = {"fake"};
    static const int32_t prompt[PROMPT] = {5, 17, 3, 80, 41, 2, 66, 9, 30};
    generator_fixture d = generator_fixture_begin(64, CONTEXT);
    cluster_add(d.w->cluster, 0, 4);
    fake_node *failing = fake_node_new(d.w, "fake:1", 0, 4, FAKE_ERROR_RETRY);
    for (int held = 0; held < 2; held++) {
        text_sink r = {0};
        sn_link *link = cluster_link(d.w->cluster);
        fake_node_announce_to(failing, link);
        sn_audit_options audit = {
            .model = d.model, .link = link, .share = 0.2, .seed = 3, .max_tokens = CONTEXT, .timeout_ms = 5000};
        sn_chain_options options = sn_chain_options_default();
        options.link = link;
        options.max_tokens = CONTEXT;
        options.routing.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1}; /* of the chain, not of the audit */
        sn_audit *a = NULL;
        sn_chain *chain = NULL;
        REQUIRE(sn_audit_new(&audit, &a, &err));
        options.verification.verifier = sn_audit_verifier(a);
        REQUIRE(sn_chain_open(d.model, &options, &chain, &err));
        sn_generator_parts parts = {sn_model_hparams(d.model), d.head, chain, d.tokenizer, CONTEXT, NULL};
        sn_generate_options generate = {
            .max_tokens = TOKENS, .ignore_eos = true, .on_text = on_text, .when_checked = held, .ctx = &r};
        sn_generator *generator = NULL;
        sn_generation out;
        sn_err why = {0};
        REQUIRE(sn_generator_new(&parts, &SN_SAMPLING_DEFAULT, &generator, &err));
        cr_expect_eq(sn_generator_run(generator, prompt, PROMPT, &generate, &out, &why), held ? SN_RETRY : SN_OK, "%s",
                     why.text);
        cr_expect_eq(r.len > 0, !held, "%zu bytes were emitted", r.len);
        cr_expect(!held || strstr(why.text, "the nodes that were to check it failed"), "%s", why.text);
        sn_generation_fini(&out);
        sn_generator_free(&generator);
        sn_chain_close(&chain);
        sn_audit_free(&a);
        sn_link_close(&link);
    }
    fake_node_free(&failing);
    generator_fixture_end(&d);
}

Test(audit_text, is_the_honest_text_with_drafts) {
    const sn_sampling sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    for (int push = 0; push < 2; push++)
        for (int at = 3; at < 10; at += 3)
            expect_honest_text((test_case){
                sampling, {.alter_nth_step = at, .large_error = true}, push, true, at == 9 ? 1e-9 : 0.5, false});
}
