/* Decoding with draft tokens as `swarm generate --draft` does it, of a text that repeats itself and of one that does
 * not. */
#include "cli/bench/bench.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

enum { PASSAGES = 4 }; /* times that a repetitive prompt has the same passage */

struct sn_bench_draft {
    const sn_bench_plan *plan;
    const sn_bench_case *config;
    sn_device *device;
    sn_lm_head *head;
    sn_tokenizer *tokenizer; /* to compare vocabularies; NULL: the model has none */
    sn_draft_model *model;   /* of the draft "model" */
    sn_draft_mtp *mtp;       /* of the draft "mtp" */
    sn_draft draft;
    int32_t *prompt;
    sn_hasher *hasher;
};

/* A repetitive text is greedy; the other one is sampled at temperature 1. */
static sn_sampling case_sampling(const sn_bench_case *c, uint64_t seed) {
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = c->repetitive ? 0 : 1;
    sampling.seed = seed;
    return sampling;
}

static sn_status open_draft(sn_bench_draft *d, sn_err *err) {
    const sn_bench_plan *p = d->plan;
    sn_draft_model_options model_options = {.path = sn_program_settings.draft.model,
                                            .device = d->device,
                                            .hp = p->hp,
                                            .sampling = case_sampling(d->config, 0),
                                            .max_context = p->prompt_tokens + p->new_tokens,
                                            .kv_dtype = p->kv_dtype};
    const sn_draft_mtp_options mtp_options = {.model = p->model,
                                              .device = d->device,
                                              .head = d->head,
                                              .sampling = case_sampling(d->config, 0),
                                              .max_context = p->prompt_tokens + p->new_tokens,
                                              .kv_dtype = p->kv_dtype};
    const bool mtp = !strcmp(d->config->draft, "mtp");
    d->draft = sn_draft_make(NULL, NULL, (int)sn_program_settings.draft.tokens);
    if (mtp) {
        SN_TRY(sn_draft_mtp_open(&mtp_options, &d->mtp, err));
        d->draft = sn_draft_of_mtp(d->mtp, (int)sn_program_settings.draft.tokens);
    }
    if (strcmp(d->config->draft, "model")) return sn_draft_add_copies(&d->draft, err);
    if (sn_tokenizer_open(sn_program_settings.common.model, &d->tokenizer, err) == SN_STOP) return SN_STOP;
    model_options.tokenizer = d->tokenizer;
    sn_status status = sn_draft_model_open(&model_options, &d->model, err);
    d->draft = sn_draft_make(sn_draft_model_propose, d->model, (int)sn_program_settings.draft.tokens);
    return status;
}

sn_status sn_bench_draft_new(const sn_bench_plan *plan, const sn_bench_case *c, sn_device *device, sn_lm_head *head,
                             sn_bench_draft **out, sn_err *err) {
    sn_bench_draft *d = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&d, 1, sizeof *d, err);
    if (status) return status;
    d->plan = plan;
    d->config = c;
    d->device = device;
    d->head = head;
    d->hasher = sn_hasher_new();
    if (!d->hasher) status = sn_fail(err, SN_STOP, "out of memory");
    if (!status) status = sn_calloc(&d->prompt, (size_t)plan->prompt_tokens, sizeof *d->prompt, err);
    if (!status) status = open_draft(d, err);
    if (status) sn_bench_draft_free(&d);
    *out = d;
    return status;
}

void sn_bench_draft_free(sn_bench_draft **draft) {
    sn_bench_draft *d = *draft;
    if (!d) return;
    sn_draft_fini(&d->draft);
    sn_draft_model_close(&d->model);
    sn_draft_mtp_close(&d->mtp);
    sn_tokenizer_close(&d->tokenizer);
    sn_hasher_free(d->hasher);
    free(d->prompt);
    free(d);
    *draft = NULL;
}

/* Random tokens, the same for every draft; a repetitive prompt is one passage PASSAGES times. */
static void make_prompt(sn_bench_draft *d, uint64_t seed) {
    size_t n = (size_t)d->plan->prompt_tokens, passage = d->config->repetitive ? (n + PASSAGES - 1) / PASSAGES : n;
    for (size_t i = 0; i < n; i++)
        d->prompt[i] =
            i < passage ? (int32_t)sn_rng_below(&seed, (uint64_t)d->plan->hp->n_vocab) : d->prompt[i - passage];
}

sn_status sn_bench_draft_generate(sn_bench_draft *d, sn_chain *chain, int repeat, double *tok_s, sn_bench_row *row,
                                  sn_err *err) {
    const sn_bench_plan *p = d->plan;
    const uint64_t seed = (uint64_t)(repeat + p->warmup + 1);
    sn_sampling sampling = case_sampling(d->config, seed);
    sn_generator_parts parts = {.hp = p->hp,
                                .head = d->head,
                                .chain = chain,
                                .max_context = p->prompt_tokens + p->new_tokens,
                                .draft = strcmp(d->config->draft, "off") ? &d->draft : NULL};
    sn_generate_options options = {.max_tokens = p->new_tokens, .cancel = &sn_interrupt};
    sn_generator *generator = NULL;
    sn_generation text = {0};
    make_prompt(d, seed);
    sn_status status = sn_generator_new(&parts, &sampling, &generator, err);
    if (!status) status = sn_generator_run(generator, d->prompt, (size_t)p->prompt_tokens, &options, &text, err);
    if (!status && text.finish == SN_FINISH_INTERRUPTED) status = sn_fail(err, SN_RETRY, "interrupted");
    if (!status && repeat >= 0) {
        const sn_generate_timings *t = &text.timings;
        *tok_s = t->decode_us > 0 ? (double)t->decode_tokens * 1e6 / (double)t->decode_us : 0;
        row->decode_tokens += t->decode_tokens;
        row->decode_steps += t->decode_steps;
        row->n_drafted += t->n_drafted;
        row->n_accepted += t->n_accepted;
        sn_hasher_add(d->hasher, row->text.bytes, SN_HASH_SIZE);
        sn_hasher_add(d->hasher, text.ids.ids, text.ids.n * sizeof *text.ids.ids);
        row->text = sn_hasher_end(d->hasher);
    }
    sn_generation_fini(&text);
    sn_generator_free(&generator);
    return status;
}

void sn_bench_draft_compare(sn_bench_row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (rows[i].config.kind != SN_BENCH_DRAFT) continue;
        for (size_t k = 0; k < n; k++) {
            const sn_bench_case *a = &rows[i].config, *b = &rows[k].config;
            if (b->kind != SN_BENCH_DRAFT || strcmp(b->draft, "off") || a->repetitive != b->repetitive ||
                a->link != b->link)
                continue;
            rows[i].same_text = !memcmp(&rows[i].text, &rows[k].text, sizeof rows[i].text);
        }
    }
}
