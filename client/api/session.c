/* A session: a setup (setup.h) over the parts of a model, with a link, a device and a chain of its own, so that
 * sessions of several threads meet only in the model's LM head. The generator knows the tokens of the timeline; a
 * session that is used for hidden states leaves it empty and steps the chain itself.
 *
 * Events come out of callbacks of the layers below, on the thread of the call: progress from the chain's observer, when
 * rows have left the last block; tokens and text from the generator (generate.c). */
#include "client/api/api_private.h"

#include "client/api/report.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool sn_session_wants(const swarm_session *s, swarm_event_kind kind) {
    return s->on_event && !(s->unwanted >> kind & 1);
}

void sn_session_emit(swarm_session *s, const swarm_event *event) {
    if (sn_session_wants(s, event->kind) && s->on_event(s->event_ctx, event)) atomic_store(&s->stop.set, 1);
}

void sn_session_note_changes(swarm_session *s) {
    const sn_chain *chain = s->setup.chain;
    uint64_t drains = sn_chain_drains(chain), failovers = sn_chain_failovers(chain) - drains,
             moves = sn_chain_reroutes(chain) + drains;
    bool failed = failovers > s->noted.failovers, moved = moves > s->noted.moves;
    s->noted.failovers = failovers;
    s->noted.moves = moves;
    if (failed) sn_session_emit(s, &(swarm_event){.kind = SWARM_EVENT_FAILOVER});
    if (moved) sn_session_emit(s, &(swarm_event){.kind = SWARM_EVENT_MOVE});
    if (!s->setup.audit) return;
    const sn_audit_report report = sn_audit_get_report(s->setup.audit);
    bool banned = report.nodes_banned > s->noted.bans;
    s->noted.bans = report.nodes_banned;
    if (banned)
        sn_session_emit(
            s, &(swarm_event){.kind = SWARM_EVENT_AUDIT, .text = report.verdict, .length = strlen(report.verdict)});
}

void sn_session_begin(swarm_session *s) { atomic_store(&s->stop.set, 0); }

swarm_code sn_session_end(swarm_session *s, sn_status status, const sn_err *err, swarm_error **error) {
    if (s->setup.chain) sn_session_note_changes(s);
    return sn_api_end(status, err, &s->stop, error);
}

static void note_progress(void *ctx, int block, int position, int n, const float *hidden) {
    swarm_session *s = ctx;
    (void)hidden;
    const sn_block_range *blocks = &s->options.settings.api.blocks;
    int end = blocks->end ? blocks->end : s->setup.hp->n_blocks;
    int before = sn_chain_get_adapter(s->setup.chain)->n_prompt;
    if (block != end) return;
    sn_session_note_changes(s);
    if (s->done >= s->prompt || position + n <= before) return;
    if (!s->done) s->reused = (size_t)(position > before ? position - before : 0);
    s->done = sn_min_size(s->prompt, (size_t)(position + n - before));
    const swarm_event event = {
        .kind = SWARM_EVENT_PROGRESS,
        .numbers = {{"done", (double)s->done}, {"total", (double)s->prompt}, {"reused", (double)s->reused}}};
    sn_session_emit(s, &event);
}

/* -- a session in a file -- */

enum { EXTRA_MAX = 64 << 20 };

static sn_status make_extra(const char *extra, size_t length, json_t **out, sn_err *err) {
    char *hex = NULL;
    *out = NULL;
    if (!extra) return SN_OK;
    if (length > EXTRA_MAX)
        return sn_fail(err, SN_REFUSED, "%zu bytes of extra are too many: a file holds %d", length, (int)EXTRA_MAX);
    if ((*out = json_stringn(extra, length))) return SN_OK;
    sn_status status = sn_calloc(&hex, 2 * length + 1, 1, err);
    if (!status) *out = json_pack("{ss}", "hex", sn_hex(extra, length, hex));
    free(hex);
    return status || *out ? status : sn_fail(err, SN_STOP, "out of memory for a JSON text");
}

static sn_status load_key(const swarm_session *s, const char *path, sn_file_key *out, sn_err *err) {
    if (!path) path = s->options.settings.session.key;
    if (!path && s->connection) path = s->connection->options.settings.common.identity;
    if (path) return sn_file_key_load(path, out, err);
    return sn_fail(err, SN_REFUSED,
                   "a saved session is encrypted: give --session-key FILE (made by: head -c 32 /dev/urandom > FILE; "
                   "chmod 600 FILE), or --identity");
}

swarm_code swarm_session_save(swarm_session *s, const char *path, const char *key_path, const char *extra,
                              size_t length, swarm_error **error) {
    sn_err err;
    json_t *value = NULL;
    sn_file_key secret = {0};
    sn_session_begin(s);
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) status = load_key(s, key_path, &secret, &err);
    if (!status) status = make_extra(extra, length, &value, &err);
    if (!status)
        status = sn_session_file_write(path, &secret, s->setup.model, s->setup.chain, s->generator, value, &err);
    json_decref(value);
    sn_file_key_fini(&secret);
    return sn_session_end(s, status, &err, error);
}

static sn_status take_extra(swarm_session *s, const json_t *extra, sn_err *err) {
    const json_t *hex = json_object_get(extra, "hex");
    const char *text = json_string_value(hex ? hex : extra);
    size_t length = json_string_length(hex ? hex : extra);
    char *bytes = NULL, *dumped = NULL;
    sn_status status = SN_OK;
    s->extra.len = 0;
    s->has_extra = extra != NULL;
    if (hex && text) {
        status = sn_calloc(&bytes, length / 2 + 1, 1, err);
        if (!status) status = sn_unhex(text, (uint8_t *)bytes, length / 2, err);
        text = bytes;
        length /= 2;
    } else if (extra && !text) { /* of the program's own files: a JSON value */
        text = dumped = json_dumps(extra, JSON_ENCODE_ANY);
        length = text ? strlen(text) : 0;
    }
    if (!status && text) status = sn_buf_append(&s->extra, text, length, err);
    if (!status) status = sn_buf_append(&s->extra, "", 1, err);
    free(bytes);
    free(dumped);
    return status;
}

/* Opens a file whose session this one is to continue. key_path NULL: the key of the options, or the identity. Then
 * restores it, once. */
static sn_status session_open_saved(const swarm_session *s, const char *path, const char *key_path,
                                    sn_session_file **out, sn_err *err) {
    sn_file_key secret = {0};
    if (s->options.settings.audit.share > 0)
        return sn_fail(err, SN_REFUSED,
                       "--audit cannot check a KV cache that comes from a file: leave out --load or --audit");
    sn_status status = load_key(s, key_path, &secret, err);
    if (!status) status = sn_session_file_open(path, &secret, s->setup.model, out, err);
    sn_file_key_fini(&secret);
    return status;
}

static sn_status session_restore(swarm_session *s, sn_session_file *saved, sn_err *err) {
    sn_status status = sn_session_file_restore(saved, s->setup.lm_head, s->setup.chain, s->generator, err);
    if (!status) status = take_extra(s, sn_session_file_extra(saved), err);
    s->seeded = !status;
    return status;
}

static sn_status session_load(swarm_session *s, const char *path, const char *key_path, sn_err *err) {
    size_t n;
    sn_session_file *file = NULL;
    (void)sn_generator_ids(s->generator, &n);
    if (n || s->seeded) return sn_fail(err, SN_REFUSED, "a file is read into a session that has just been opened");
    sn_status status = session_open_saved(s, path, key_path, &file, err);
    if (!status) status = session_restore(s, file, err);
    sn_session_file_close(&file);
    return status;
}

swarm_code swarm_session_load(swarm_session *s, const char *path, const char *key_path, swarm_error **error) {
    sn_err err;
    sn_session_begin(s);
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) status = session_load(s, path, key_path, &err);
    return sn_session_end(s, status, &err, error);
}

const char *swarm_session_extra(const swarm_session *s, size_t *length) {
    if (!s->has_extra) return NULL;
    if (length) *length = s->extra.len - 1;
    return (const char *)s->extra.data;
}

/* -- opening -- */

/* Opens the chain, and the saved session whose length is a part of the context's. */
static sn_status session_connect(swarm_session *s, const swarm_adapter *adapter, sn_session_file **saved, sn_err *err) {
    sn_settings *o = &s->options.settings;
    size_t n = 0;
    if (adapter) o->common.adapter = adapter->name;
    sn_status status = sn_api_setup(&s->setup, s->model, s->connection, &s->stop, o, err);
    if (adapter) s->setup.adapter = adapter->loaded;
    if (!status) status = sn_setup_refuse_classifier(&s->setup, err);
    if (!status && o->session.load) status = session_open_saved(s, o->session.load, NULL, saved, err);
    if (!status && *saved) (void)sn_session_file_ids(*saved, &n);
    if (!status) status = sn_setup_context(&s->setup, o->sampling.ctx, (int64_t)n + o->api.timeline, &s->context, err);
    return status ? status : sn_setup_chain(&s->setup, s->context, false, err);
}

static sn_status session_open_generator(swarm_session *s, sn_err *err) {
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sn_status status = sn_setup_open_draft(&s->setup, &sampling, s->context, err);
    const sn_generator_parts parts = {s->setup.hp,        s->setup.lm_head, s->setup.chain,
                                      s->setup.tokenizer, s->context,       sn_setup_get_draft(&s->setup)};
    return status ? status : sn_generator_new(&parts, &sampling, &s->generator, err);
}

static sn_status session_open(swarm_session *s, const swarm_options *options, const swarm_adapter *adapter,
                              sn_err *err) {
    sn_session_file *saved = NULL;
    const sn_settings *o = &s->options.settings;
    sn_status status = sn_api_options_init(&s->options, options, "session", &s->model->options.settings, err);
    s->of_hidden_states = o->api.blocks.end > 0;
    if (!status && o->session.load) status = sn_session_needs_tokens(s, err);
    if (!status) status = session_connect(s, adapter, &saved, err);
    if (!status) sn_chain_observe(s->setup.chain, note_progress, s);
    if (!status && !s->of_hidden_states) status = session_open_generator(s, err);
    if (!status && saved) status = session_restore(s, saved, err);
    sn_session_file_close(&saved);
    return status;
}

swarm_code swarm_session_open(const swarm_model *model, swarm_connection *connection, const swarm_options *options,
                              const swarm_adapter *adapter, swarm_cancel *cancel, swarm_session **session,
                              swarm_error **error) {
    sn_err err;
    swarm_session *s = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, &err);
    if (!status) {
        s->model = model;
        s->connection = connection;
        s->cancel = cancel;
        s->stop.also = sn_api_flag(cancel);
        s->n_top = -1;
        sn_buf_init(&s->extra, SIZE_MAX);
        sn_buf_init(&s->text, SIZE_MAX);
        status = session_open(s, options, adapter, &err);
    }
    if (!status)
        *session = s;
    else
        swarm_session_close(s);
    return sn_api_end(status, &err, sn_api_flag(cancel), error);
}

void swarm_session_close(swarm_session *s) {
    if (!s) return;
    sn_generator_free(&s->generator);
    sn_known_prefixes_save(s->setup.prefixes);
    sn_setup_close(&s->setup);
    sn_api_options_fini(&s->options);
    sn_buf_fini(&s->extra);
    sn_buf_fini(&s->text);
    free(s->top_ids);
    free(s->top_logprobs);
    free(s);
}

void swarm_session_on_event(swarm_session *session, swarm_event_callback callback, void *context) {
    session->on_event = callback;
    session->event_ctx = context;
}

void swarm_session_want_events(swarm_session *session, uint64_t kinds) { session->unwanted = ~kinds; }

void swarm_session_on_logits(swarm_session *session, swarm_logits_callback callback, void *context) {
    session->on_logits = callback;
    session->logits_ctx = context;
}

sn_status sn_session_needs_tokens(const swarm_session *s, sn_err *err) {
    if (!s->of_hidden_states) return SN_OK;
    return sn_fail(err, SN_REFUSED, "this session is used for hidden states and has no tokens: open another one");
}

/* -- the timeline -- */

const int32_t *swarm_session_tokens(const swarm_session *s, size_t *n) {
    *n = 0;
    return s->generator ? sn_generator_ids(s->generator, n) : NULL;
}

swarm_code swarm_session_rewind(swarm_session *s, size_t n, swarm_error **error) {
    sn_err err;
    size_t length = 0;
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) (void)sn_generator_ids(s->generator, &length);
    if (!status && n > length)
        status = sn_fail(&err, SN_REFUSED, "the timeline has %zu tokens: it cannot be shortened to %zu", length, n);
    if (!status) sn_generator_rewind(s->generator, n);
    return sn_api_end(status, &err, NULL, error);
}

/* Hidden states through the chain, in pieces of which each is a call with the limits of a call. */
static sn_status session_forward(swarm_session *s, size_t position, size_t n, const float *in, float *out,
                                 sn_err *err) {
    size_t length = (size_t)sn_chain_length(s->setup.chain), tokens = 0;
    if (s->generator) (void)sn_generator_ids(s->generator, &tokens);
    if (tokens) return sn_fail(err, SN_REFUSED, "this session has tokens: open another one for hidden states");
    if (position > length)
        return sn_fail(err, SN_REFUSED, "the timeline has %zu positions, so position %zu cannot be next", length,
                       position);
    if (n > (size_t)s->context - position)
        return sn_fail(err, SN_REFUSED, "%zu rows at position %zu do not fit into the context of %d: raise ctx", n,
                       position, s->context);
    if (!s->of_hidden_states) sn_chain_set_source(s->setup.chain, NULL);
    s->of_hidden_states = true;
    if (n) return sn_chain_step(s->setup.chain, (int)position, (int)n, in, out, err);
    sn_chain_rewind(s->setup.chain, (int)position);
    return SN_OK;
}

swarm_code swarm_session_forward(swarm_session *s, size_t position, size_t n, const float *in, float *out,
                                 swarm_error **error) {
    sn_err err;
    sn_session_begin(s);
    return sn_session_end(s, session_forward(s, position, n, in, out, &err), &err, error);
}

/* -- between calls -- */

swarm_code swarm_session_audit(swarm_session *s, swarm_error **error) {
    sn_err err;
    size_t n;
    sn_session_begin(s);
    sn_status status = sn_chain_audit(s->setup.chain, &err);
    if (s->generator) {
        (void)sn_generator_ids(s->generator, &n);
        sn_generator_rewind(s->generator, n); /* to what is right */
    }
    return sn_session_end(s, status, &err, error);
}

swarm_code swarm_session_poll(swarm_session *s, swarm_error **error) {
    sn_session_begin(s);
    sn_chain_poll(s->setup.chain);
    return sn_session_end(s, SN_OK, NULL, error);
}

/* -- what it is -- */

swarm_code swarm_session_describe(const swarm_session *s, char **json, size_t *length, swarm_error **error) {
    sn_err err;
    const sn_chain *chain = s->setup.chain;
    json_t *o = json_object();
    json_object_set_new(o, "request_id", json_string(sn_chain_request_id(chain)));
    json_object_set_new(o, "context", json_integer(s->context));
    json_object_set_new(o, "length", json_integer(sn_chain_length(chain)));
    json_object_set_new(o, "hops", sn_report_hops_json(chain));
    json_object_set_new(o, "failovers", json_integer((json_int_t)sn_chain_failovers(chain)));
    json_object_set_new(o, "replicas_promoted", json_integer((json_int_t)sn_chain_replicas_promoted(chain)));
    json_object_set_new(o, "replayed_tokens", json_integer((json_int_t)sn_chain_replayed(chain)));
    json_object_set_new(o, "reroutes", json_integer((json_int_t)sn_chain_reroutes(chain)));
    json_object_set_new(o, "drains", json_integer((json_int_t)sn_chain_drains(chain)));
    json_object_set_new(o, "audit", s->setup.audit ? sn_audit_json(s->setup.audit) : json_null());
    return sn_api_end(sn_api_json(o, json, length, &err), &err, NULL, error);
}
