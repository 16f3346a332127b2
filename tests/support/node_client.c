/* How it works: a testbed owns a tiny model file, one run of the whole model over TESTBED_TOKENS rows of input (the
 * reference), and a cluster without nodes. A node_client is a bare transport with an identity of its own: it sends
 * one protocol message at a time and matches replies by correlation_id.
 *
 * A node_session keeps what a client keeps of a session: its id, the number of its newest step and the timeline
 * hashes of the testbed's inputs. node_session_reply_ok compares a STEP_REPLY with the reference bit by bit,
 * including the timeline hash. Tests change the messages of node_session_open_message and node_session_step_message
 * to see what a node refuses. */
#include "tests/support/node_client.h"

#include "base/clock.h"
#include "blocks/adapter.h"
#include "model/safetensors.h"
#include "net/timeline.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <string.h>

static float *make_rows(int n, int n_embd) {
    float *rows = malloc((size_t)n * (size_t)n_embd * sizeof *rows);
    uint32_t x = 7;
    if (!rows) abort();
    for (int i = 0; i < n * n_embd; i++) {
        x = x * 1664525 + 1013904223;
        rows[i] = (float)(int32_t)x * 0x1p-31f;
    }
    return rows;
}

static void open_span(const testbed *w, int first, int end, sn_device **device, sn_span **span, sn_kv_pool **pool) {
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, device, &err));
    REQUIRE(sn_span_load(model, *device, first, end, NULL, NULL, span, &err));
    sn_span_set_kv_dtype(*span, w->kv_dtype);
    REQUIRE(sn_span_kv_pool(*span, 16u << 20, pool, &err));
    sn_model_close(&model);
}

float *testbed_compute(const testbed *w, int first, int end, int n, const float *rows) {
    return testbed_compute_with_adapter(w, NULL, first, end, n, rows);
}

float *testbed_compute_with_adapter(const testbed *w, const sn_buf *image, int first, int end, int n,
                                    const float *rows) {
    sn_adapter *adapter = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv_cache *kv = NULL;
    float *out = malloc((size_t)n * (size_t)w->n_embd * sizeof *out);
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {n, w->n_embd}};
    open_span(w, first, end, &device, &span, &pool);
    if (image) REQUIRE(sn_adapter_load(span, image->data, image->len, &adapter, &err));
    REQUIRE(sn_kv_cache_new(pool, &kv, &err));
    REQUIRE(sn_kv_cache_reserve(kv, n, &err));
    for (int at = 0, now; at < n; at += now) {
        now = n - at < SN_SPAN_ROWS ? n - at : SN_SPAN_ROWS;
        sn_span_sequence part = {kv, &input, at, now, out + (size_t)at * (size_t)w->n_embd};
        REQUIRE(sn_span_forward_adapter(span, first, end, adapter, 1, &part, NULL, &err));
    }
    sn_adapter_free(&adapter);
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&device);
    return out;
}

sn_buf testbed_adapter_image(const testbed *w, float scale) {
    static float values[4096];
    size_t embd = (size_t)w->n_embd;
    sn_buf image;
    for (size_t i = 0; i < 4096; i++) values[i] = scale * (float)((i * 7919) % 1001) / 1001;
    const sn_safetensors_entry entries[] = {{"prompt.1", SN_F32, 2, {3, embd}, values},
                                            {"lora_a.2.q", SN_F32, 2, {2, embd}, values + 700},
                                            {"lora_b.2.q", SN_F32, 2, {embd, 2}, values + 1400}};
    sn_buf_init(&image, 1 << 20);
    REQUIRE(sn_safetensors_serialize(entries, 3, &image, &err));
    return image;
}

sn_hash *testbed_timeline(const testbed *w, int first, int end, int n, const float *rows) {
    sn_hash *timeline = calloc((size_t)n + 1, sizeof *timeline);
    sn_hasher *hasher = sn_hasher_new();
    uint8_t hashes[8][SN_HASH_SIZE];
    if (!timeline || !hasher) abort();
    for (int b = first; b < end; b++) {
        sn_hash hash = sn_block_hash_with_kv_dtype(&w->block_hash[b], w->kv_dtype);
        memcpy(hashes[b - first], hash.bytes, SN_HASH_SIZE);
    }
    timeline[0] = sn_timeline_begin(w->model.bytes, first, end, (const uint8_t(*)[SN_HASH_SIZE])hashes);
    for (int i = 0; i < n; i++)
        timeline[i + 1] =
            sn_timeline_next(hasher, &timeline[i], rows + (size_t)i * (size_t)w->n_embd, (size_t)w->n_embd);
    sn_hasher_free(hasher);
    return timeline;
}

testbed *testbed_new(const cluster_options *options) {
    testbed *w = calloc(1, sizeof *w);
    sn_model *model = NULL;
    if (!w) abort();
    w->own_model = !options->model;
    w->path = w->own_model ? tiny_model_make(&(tiny_model_options){.dtype = SN_F32}) : strdup(options->model);
    REQUIRE(sn_model_open(w->path, &model, &err));
    w->model = sn_model_id(model);
    w->n_blocks = sn_model_hparams(model)->n_blocks;
    w->n_embd = sn_model_hparams(model)->n_embd;
    w->kv_dtype = options->kv_dtype;
    for (int b = 0; b < w->n_blocks; b++) REQUIRE(sn_model_block_hash(model, b, &w->block_hash[b], &err));
    sn_model_close(&model);
    w->inputs = make_rows(TESTBED_TOKENS, w->n_embd);
    w->hidden = testbed_compute(w, 0, w->n_blocks, TESTBED_TOKENS, w->inputs);
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    open_span(w, 0, w->n_blocks, &device, &span, &pool);
    w->page_bytes = sn_kv_pool_bytes(pool) / sn_kv_pool_tokens(pool) * SN_KV_PAGE_TOKENS;
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&device);
    cluster_options scaled = *options;
    scaled.model = w->path;
    scaled.kv_memory = options->kv_memory * w->page_bytes;           /* options give pages */
    scaled.quota.kv_bytes = options->quota.kv_bytes * w->page_bytes; /* options give pages */
    w->cluster = cluster_new(&scaled);
    return w;
}

void testbed_free(testbed **w) {
    if (!*w) return;
    cluster_free(&(*w)->cluster);
    if ((*w)->own_model)
        tiny_model_remove(&(*w)->path);
    else
        free((*w)->path);
    free((*w)->inputs);
    free((*w)->hidden);
    free(*w);
    *w = NULL;
}

/* -- a client -- */

node_client *node_client_new(testbed *w, int node) {
    node_client *t = calloc(1, sizeof *t);
    if (!t) abort();
    const sn_node *at = cluster_node(w->cluster, node);
    t->transport = cluster_transport(w->cluster, &t->identity);
    REQUIRE(sn_transport_dial(t->transport, sn_node_address(at), sn_node_curve_key(at), &t->node, &err));
    return t;
}

void node_client_free(node_client **t) {
    if (!*t) return;
    sn_transport_free(&(*t)->transport);
    free(*t);
    *t = NULL;
}

uint64_t node_client_send(node_client *t, sn_msg **msg) {
    (*msg)->correlation_id = ++t->last_correlation_id;
    REQUIRE(sn_transport_send(t->transport, t->node, msg, &err));
    return t->last_correlation_id;
}

sn_msg *node_client_receive(node_client *t, uint64_t correlation_id, int timeout_ms) {
    int64_t deadline = sn_now_us() + (int64_t)timeout_ms * 1000;
    while (sn_now_us() < deadline) {
        sn_event event;
        REQUIRE(sn_transport_recv(t->transport, deadline, &event, &err));
        if (event.msg && (!correlation_id || event.msg->correlation_id == correlation_id)) return event.msg;
        sn_msg_free(&event.msg);
    }
    return NULL;
}

sn_msg *node_client_request(node_client *t, sn_msg **msg) {
    sn_msg_kind kind = (*msg)->kind;
    sn_msg *answer = node_client_receive(t, node_client_send(t, msg), TESTBED_WAIT_MS);
    if (!answer) {
        fprintf(stderr, "no answer to %s\n", sn_msg_kind_name(kind));
        abort();
    }
    return answer;
}

sn_msg_status_reply node_client_status(node_client *t) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_STATUS, 0, &msg, &err));
    msg->status.protocol = SN_PROTOCOL_VERSION;
    sn_msg *answer = node_client_request(t, &msg);
    if (answer->kind != SN_MSG_STATUS_REPLY) abort();
    sn_msg_status_reply status = answer->status_reply;
    sn_msg_free(&answer);
    return status;
}

void node_client_await_kv_bytes(node_client *t, uint64_t bytes) {
    int64_t deadline = sn_now_us() + TESTBED_WAIT_MS * 1000;
    uint64_t now;
    while ((now = node_client_status(t).kv_bytes) != bytes) {
        if (sn_now_us() > deadline) {
            fprintf(stderr, "%llu bytes of KV cache are in use, not %llu\n", (unsigned long long)now,
                    (unsigned long long)bytes);
            abort();
        }
        sn_sleep_us(2000);
    }
}

void node_client_announcement(testbed *w, int number, sn_blob **out, size_t *n) {
    node_client *asker = node_client_new(w, number);
    sn_announcement *a = calloc(1, sizeof *a);
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 0, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    sn_msg *answer = node_client_request(asker, &msg);
    if (!a || answer->kind != SN_MSG_PEERS_REPLY) abort();
    for (size_t i = 0; i < answer->peers_reply.n_announcements && !*n; i++) {
        const sn_blob *sealed = &answer->peers_reply.announcements[i];
        REQUIRE(sn_announcement_open(sealed->data, sealed->len, sn_unix_ms(), a, &err));
        if (!memcmp(a->node, sn_node_id(cluster_node(w->cluster, number)), SN_KEY_SIZE))
            REQUIRE(sn_announcement_list(sealed, out, n, &err));
    }
    if (!*n) abort();
    sn_msg_free(&answer);
    free(a);
    node_client_free(&asker);
}

void node_client_put_adapter(node_client *t, const testbed *w, const sn_buf *image) {
    sn_msg *msg = NULL, *answer;
    void *data;
    sn_hash hash = sn_hash_of(image->data, image->len);
    REQUIRE(sn_msg_new(SN_MSG_ADAPTER_PUT, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){image->len / 4}, &data, &err));
    memcpy(data, image->data, image->len);
    msg->adapter_put.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->adapter_put.model, w->model.bytes, SN_HASH_SIZE);
    memcpy(msg->adapter_put.hash, hash.bytes, SN_HASH_SIZE);
    answer = node_client_request(t, &msg);
    if (answer->kind != SN_MSG_ADAPTER_PUT_REPLY) {
        fprintf(stderr, "adapter not put: %s\n", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
        abort();
    }
    sn_msg_free(&answer);
}

/* -- a session -- */

void node_session_init(node_session *p, testbed *w, node_client *t, int first, int end) {
    *p = (node_session){.testbed = w, .client = t, .first = first, .end = end};
    p->timeline = testbed_timeline(w, first, end, TESTBED_TOKENS, w->inputs);
    sn_random(p->id, sizeof p->id);
}

void node_session_init_with_adapter(node_session *p, testbed *w, node_client *t, const sn_buf *image) {
    sn_hasher *hasher = sn_hasher_new();
    node_session_init(p, w, t, 0, w->n_blocks);
    p->adapter = sn_hash_of(image->data, image->len);
    p->hidden = testbed_compute_with_adapter(w, image, 0, w->n_blocks, TESTBED_TOKENS, w->inputs);
    p->timeline[0] = sn_timeline_with_adapter(&p->timeline[0], p->adapter.bytes);
    for (size_t i = 0, row = (size_t)w->n_embd; i < TESTBED_TOKENS; i++)
        p->timeline[i + 1] = sn_timeline_next(hasher, &p->timeline[i], w->inputs + i * row, row);
    sn_hasher_free(hasher);
}

sn_msg *node_session_open_message(node_session *p) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_OPEN, 0, &msg, &err));
    msg->open.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->open.session, p->id, sizeof p->id);
    memcpy(msg->open.model, p->testbed->model.bytes, SN_HASH_SIZE);
    msg->open.first_block = (uint64_t)p->first;
    msg->open.end_block = (uint64_t)p->end;
    msg->open.max_tokens = TESTBED_TOKENS;
    memcpy(msg->open.adapter, p->adapter.bytes, SN_HASH_SIZE);
    return msg;
}

sn_msg *node_session_kv_put_message(const node_session *p, int position, int n) {
    sn_msg *msg = NULL;
    void *data;
    uint64_t blocks = (uint64_t)(p->end - p->first),
             width = p->testbed->page_bytes / (size_t)p->testbed->n_blocks / (2 * SN_KV_PAGE_TOKENS * sizeof(float));
    REQUIRE(sn_msg_new(SN_MSG_KV_PUT, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 4, (uint64_t[]){blocks, 2, (uint64_t)n, width}, &data, &err));
    memset(data, 0, msg->tensor.bytes);
    sn_hash hash = sn_hash_of(data, msg->tensor.bytes);
    sn_msg_kv_put *put = &msg->kv_put;
    memcpy(put->session, p->id, SN_SESSION_ID_SIZE);
    memcpy(put->origin, p->timeline[0].bytes, SN_HASH_SIZE);
    memcpy(put->timeline, p->timeline[position].bytes, SN_HASH_SIZE);
    memcpy(put->tensor_hash, hash.bytes, SN_HASH_SIZE);
    put->position = (uint64_t)position;
    REQUIRE(
        sn_list_new((size_t)n, SN_KV_TRANSFER_TOKENS_MAX, sizeof *put->token_timelines, &put->token_timelines, &err));
    put->n_token_timelines = (size_t)n;
    for (int i = 0; i < n; i++)
        memcpy(put->token_timelines[i].timeline, p->timeline[position + i + 1].bytes, SN_HASH_SIZE);
    return msg;
}

sn_msg *node_session_step_message(node_session *p, int position, int n) {
    sn_msg *msg = NULL;
    void *data;
    REQUIRE(sn_msg_new(SN_MSG_STEP, 0, &msg, &err));
    memcpy(msg->step.session, p->id, sizeof p->id);
    memcpy(msg->step.timeline, p->timeline[position].bytes, SN_HASH_SIZE);
    msg->step.step = p->step + 1;
    msg->step.position = (uint64_t)position;
    msg->step.reply_dtype = SN_F32;
    size_t row = (size_t)p->testbed->n_embd;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){(uint64_t)n, row}, &data, &err));
    memcpy(data, p->testbed->inputs + (size_t)position * row, (size_t)n * row * sizeof(float));
    return msg;
}

sn_msg *node_session_close_message(const node_session *p) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_CLOSE, 0, &msg, &err));
    memcpy(msg->close.session, p->id, sizeof p->id);
    return msg;
}

void node_session_open(node_session *p) {
    sn_msg *msg = node_session_open_message(p), *answer = node_client_request(p->client, &msg);
    if (answer->kind != SN_MSG_OPEN_REPLY) {
        fprintf(stderr, "not opened: %s\n", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
        abort();
    }
    sn_msg_free(&answer);
}

void node_session_close(node_session *p) {
    sn_msg *msg = node_session_close_message(p), *answer = node_client_request(p->client, &msg);
    if (answer->kind != SN_MSG_CLOSE_REPLY || memcmp(answer->close_reply.session, p->id, sizeof p->id)) abort();
    sn_msg_free(&answer);
    free(p->timeline);
    free(p->hidden);
    *p = (node_session){0};
}

bool node_session_reply_ok(node_session *p, sn_msg *answer, int position, int n) {
    size_t row = (size_t)p->testbed->n_embd;
    const float *hidden = p->hidden ? p->hidden : p->testbed->hidden;
    bool good = answer && answer->kind == SN_MSG_STEP_REPLY && answer->step_reply.step == p->step + 1 &&
                !memcmp(answer->step_reply.session, p->id, sizeof p->id) && answer->step_reply.n_trace == 1 &&
                !memcmp(answer->step_reply.trace[0].timeline, p->timeline[position + n].bytes, SN_HASH_SIZE) &&
                answer->tensor.dtype == SN_F32 && answer->tensor.shape[0] == (uint64_t)n &&
                !memcmp(answer->tensor.data, hidden + (size_t)position * row, (size_t)n * row * sizeof(float));
    if (good) {
        p->step++;
        p->length = position + n;
    } else {
        fprintf(stderr, "step at %d: %s %s\n", position, answer ? sn_msg_kind_name(answer->kind) : "no answer",
                answer && answer->kind == SN_MSG_ERROR ? answer->error.text : "");
    }
    sn_msg_free(&answer);
    return good;
}

bool node_session_step_ok(node_session *p, int position, int n) {
    sn_msg *msg = node_session_step_message(p, position, n);
    return node_session_reply_ok(p, node_client_request(p->client, &msg), position, n);
}

bool is_refusal(sn_msg *answer, sn_status status, const char *part) {
    bool refused = answer && answer->kind == SN_MSG_ERROR && answer->error.status == (uint64_t)status &&
                   strstr(answer->error.text, part);
    if (!refused)
        fprintf(stderr, "wanted %s '%s', got %s %s '%s'\n", sn_status_name(status), part,
                answer ? sn_msg_kind_name(answer->kind) : "nothing",
                answer && answer->kind == SN_MSG_ERROR ? sn_status_name((sn_status)answer->error.status) : "",
                answer && answer->kind == SN_MSG_ERROR ? answer->error.text : "");
    sn_msg_free(&answer);
    return refused;
}

bool is_opened(sn_msg *answer) {
    bool ok = answer && answer->kind == SN_MSG_OPEN_REPLY;
    sn_msg_free(&answer);
    return ok;
}
