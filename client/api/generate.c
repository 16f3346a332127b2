/* Generating and sampling in a session, and the events of it. */
#include "client/api/api_private.h"

#include "client/api/report.h"
#include "client/generate/logprob.h"

#include <stdlib.h>
#include <string.h>

/* -- events -- */

const char *swarm_event_text(const swarm_event *event, size_t *length) {
    static const char *const sentences[] = {[SWARM_EVENT_PROGRESS] = "Tokens of the prompt were computed.",
                                            [SWARM_EVENT_TOKEN] = "A token was sampled.",
                                            [SWARM_EVENT_TEXT] = "",
                                            [SWARM_EVENT_RETRACT] = "An audit failed, and text is generated again.",
                                            [SWARM_EVENT_FAILOVER] = "A node failed and was replaced.",
                                            [SWARM_EVENT_MOVE] = "The session moved to other nodes.",
                                            [SWARM_EVENT_AUDIT] = "A node gave a wrong result."};
    const char *text = event->text ? event->text : sentences[event->kind];
    if (length) *length = event->text ? event->length : strlen(text);
    return text;
}

swarm_event_kind swarm_event_get_kind(const swarm_event *event) { return event->kind; }

double swarm_event_number(const swarm_event *event, const char *name) {
    for (int i = 0; i < SN_EVENT_NUMBERS && event->numbers[i].name; i++)
        if (!strcmp(event->numbers[i].name, name)) return event->numbers[i].value;
    return 0;
}

size_t swarm_event_top(const swarm_event *event, const int32_t **ids, const double **logprobs) {
    *ids = event->top_ids;
    *logprobs = event->top_logprobs;
    return event->n_top;
}

static sn_status on_token(void *ctx, int32_t id, const float *logits, sn_err *err) {
    swarm_session *s = ctx;
    swarm_event event = {.kind = SWARM_EVENT_TOKEN, .numbers = {{"id", id}}};
    if (sn_session_wants(s, SWARM_EVENT_TOKEN) && s->n_top >= 0) {
        int32_t best;
        size_t n_vocab = (size_t)s->setup.hp->n_vocab;
        sn_status status = sn_logits_argmax(logits, n_vocab, &best, err);
        if (status) return status;
        event.numbers[1].name = "logprob";
        event.numbers[1].value = sn_logits_logprob(logits, n_vocab, (double)logits[best], id);
        event.n_top = s->n_top > 0 ? sn_min_size((size_t)s->n_top, n_vocab) : 0;
        sn_logits_top(logits, n_vocab, (double)logits[best], event.n_top, s->top_ids, s->top_logprobs);
        event.top_ids = s->top_ids;
        event.top_logprobs = s->top_logprobs;
    }
    sn_session_emit(s, &event);
    sn_session_note_changes(s);
    return SN_OK;
}

static sn_status on_text(void *ctx, const char *text, size_t len, sn_err *err) {
    swarm_session *s = ctx;
    s->text.len = 0;
    sn_status status = sn_buf_append(&s->text, text, len, err);
    if (!status) status = sn_buf_append(&s->text, "", 1, err);
    if (status) return status;
    sn_session_emit(s, &(swarm_event){.kind = SWARM_EVENT_TEXT, .text = (const char *)s->text.data, .length = len});
    return SN_OK;
}

static sn_status on_retract(void *ctx, const char *text, size_t kept, sn_err *err) {
    swarm_session *s = ctx;
    size_t n, kept_ids = 0; /* of the generated tokens: those that the timeline still has */
    (void)sn_generator_ids(s->generator, &n);
    if (n > s->prompt) kept_ids = n - s->prompt;
    (void)err, (void)text;
    sn_session_emit(ctx, &(swarm_event){.kind = SWARM_EVENT_RETRACT,
                                        .numbers = {{"kept", (double)kept}, {"kept_tokens", (double)kept_ids}}});
    return SN_OK;
}

static void change_logits(void *ctx, const int32_t *ids, size_t n, float *logits) {
    const swarm_session *s = ctx;
    s->on_logits(s->logits_ctx, ids, n, logits, (size_t)s->setup.hp->n_vocab);
}

/* -- generating -- */

static sn_status reserve_top(swarm_session *s, int64_t n, sn_err *err) {
    s->n_top = (int)n;
    if (n <= (int64_t)s->top_capacity) return SN_OK;
    free(s->top_ids);
    free(s->top_logprobs);
    s->top_ids = NULL, s->top_logprobs = NULL, s->top_capacity = 0;
    sn_status status = sn_calloc(&s->top_ids, (size_t)n, sizeof *s->top_ids, err);
    if (!status) status = sn_calloc(&s->top_logprobs, (size_t)n, sizeof *s->top_logprobs, err);
    if (!status) s->top_capacity = (size_t)n;
    return status;
}

/* Without a seed the random numbers of the session go on. */
static sn_status set_sampling(swarm_session *s, const sn_settings *o, sn_sampling *out, sn_err *err) {
    bool keep = s->seeded && o->sampling.seed == SN_INT_UNSET;
    *out = sn_settings_sampling(o, &s->model->sampling);
    sn_status status = sn_generator_set_sampling(s->generator, out, keep, err);
    if (!status) status = sn_setup_set_draft_sampling(&s->setup, out, err);
    s->seeded = s->seeded || !status;
    return status;
}

static json_t *generation_json(const swarm_session *s, const sn_generation *result, const sn_settings *o,
                               bool sampled) {
    const sn_buf *text = &result->text;
    json_t *all = json_object();
    json_object_set_new(all, "ids", sn_api_ids_json(&result->ids));
    json_object_set_new(all, "text", json_stringn(text->len ? (const char *)text->data : "", text->len));
    json_object_set_new(all, "finish_reason", json_string(sn_finish_name(result->finish)));
    if (o->sampling.seed != SN_INT_UNSET && sampled) json_object_set_new(all, "seed", json_integer(o->sampling.seed));
    json_object_set_new(all, "timings", sn_report_json(&result->timings, s->setup.chain));
    if (s->setup.audit) json_object_set_new(all, "audit", sn_audit_json(s->setup.audit));
    return all;
}

/* A cancelled call of the layers below is a failure there. What was generated stays, but for text that is not to be
 * seen unchecked. */
static void drop_unchecked(sn_generation *result, bool hold) {
    result->finish = SN_FINISH_INTERRUPTED;
    if (hold) result->ids.n = result->text.len = 0;
}

static sn_status session_generate(swarm_session *s, const int32_t *prompt, size_t n, sn_settings *o, json_t **json,
                                  sn_err *err) {
    sn_generation result = {0};
    sn_sampling sampling;
    const bool hold = o->audit.hold || s->options.settings.audit.hold;
    const sn_generate_options options = {.max_tokens = (int)o->sampling.max_tokens,
                                         .stops = o->sampling.stop.items,
                                         .n_stops = o->sampling.stop.n,
                                         .ignore_eos = o->sampling.ignore_eos,
                                         .is_answer = o->api.answer,
                                         .on_text = on_text,
                                         .when_checked = hold,
                                         .on_retract = on_retract,
                                         .on_token = on_token,
                                         .change_logits = s->on_logits ? change_logits : NULL,
                                         .prefix_scope = o->api.prefix_scope,
                                         .ctx = s,
                                         .cancel = &s->stop};
    s->prompt = n;
    s->done = s->reused = 0;
    if (o->sampling.seed == SN_INT_UNSET && !s->seeded) o->sampling.seed = sn_random_seed();
    sn_status status = reserve_top(s, o->api.logprobs, err);
    if (!status) status = set_sampling(s, o, &sampling, err);
    bool begun = !status;
    if (!status) status = sn_generator_run(s->generator, prompt, n, &options, &result, err);
    bool cancelled = begun && sn_is_cancelled(sn_api_flag(s->cancel));
    if (cancelled && status) drop_unchecked(&result, hold);
    if ((!status || cancelled) && json) *json = generation_json(s, &result, o, sampling.temperature > 0);
    if (!status && cancelled) status = sn_fail(err, SN_RETRY, "the generation was cancelled");
    s->prompt = 0;
    sn_generation_fini(&result);
    return status;
}

swarm_code swarm_session_generate(swarm_session *s, const int32_t *prompt, size_t n, const swarm_options *options,
                                  char **json, size_t *length, swarm_error **error) {
    sn_err err;
    sn_api_options own = {0};
    json_t *value = NULL;
    sn_session_begin(s);
    if (json) *json = NULL;
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) status = sn_api_options_init(&own, options, "generation", NULL, &err);
    if (!status) status = session_generate(s, prompt, n, &own.settings, json ? &value : NULL, &err);
    sn_status told = value || (!status && json) ? sn_api_json(value, json, length, &err) : SN_OK;
    if (!status) status = told;
    sn_api_options_fini(&own);
    return sn_session_end(s, status, &err, error);
}

/* -- in steps -- */

swarm_code swarm_session_append(swarm_session *s, const int32_t *ids, size_t n, float *logits, swarm_error **error) {
    sn_err err;
    size_t length;
    sn_session_begin(s);
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) {
        (void)sn_generator_ids(s->generator, &length);
        s->done = s->reused = length;
        s->prompt = length > (size_t)s->context || n > (size_t)s->context - length ? 0 : length + n;
        status = sn_generator_append(s->generator, ids, n, logits, &err);
        s->prompt = 0;
    }
    return sn_session_end(s, status, &err, error);
}

/* The seed of one position: samples of a timeline's tokens do not repeat one random number. */
static sn_sampling sampling_at(sn_sampling sampling, size_t n) {
    sampling.seed += (uint64_t)n * 0x9e3779b97f4a7c15u;
    return sampling;
}

static sn_status session_sample(swarm_session *s, const sn_settings *o, int32_t *id, sn_err *err) {
    float *logits;
    size_t n;
    sn_sampler *sampler = NULL;
    const int32_t *ids = sn_generator_ids(s->generator, &n);
    const sn_sampling sampling = sampling_at(sn_settings_sampling(o, &s->model->sampling), n);
    sn_status status = sn_generator_next_logits(s->generator, &logits, err);
    if (!status) status = sn_sampler_new(&sampling, s->setup.hp->n_vocab, &sampler, err);
    if (!status && s->on_logits) change_logits(s, ids, n, logits);
    if (!status) status = sn_sampler_sample(sampler, logits, ids, n, id, err);
    sn_sampler_free(&sampler);
    return status;
}

swarm_code swarm_session_sample(swarm_session *s, const swarm_options *options, int32_t *id, swarm_error **error) {
    sn_err err;
    sn_api_options own = {0};
    sn_session_begin(s);
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) status = sn_api_options_init(&own, options, "generation", NULL, &err);
    if (!status) status = session_sample(s, &own.settings, id, &err);
    sn_api_options_fini(&own);
    return sn_session_end(s, status, &err, error);
}
