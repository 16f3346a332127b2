#include "tests/support/talk.h"

#include "base/clock.h"
#include "blocks/tuning.h"
#include "model/safetensors.h"
#include "net/timeline.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

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

static void open_span(const world *w, int first, int end, sn_device **device, sn_span **span, sn_kv_pool **pool) {
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    NEED(sn_model_open(w->path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, device, &err));
    NEED(sn_span_load(model, *device, first, end, NULL, NULL, span, &err));
    NEED(sn_span_kv_pool(*span, 16u << 20, pool, &err));
    sn_model_close(&model);
}

float *world_compute(const world *w, int first, int end, int n, const float *rows) {
    return world_compute_tuned(w, NULL, first, end, n, rows);
}

float *world_compute_tuned(const world *w, const sn_buf *image, int first, int end, int n, const float *rows) {
    sn_tuning *tuning = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv *kv = NULL;
    float *out = malloc((size_t)n * (size_t)w->n_embd * sizeof *out);
    sn_tensor input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {n, w->n_embd}};
    open_span(w, first, end, &device, &span, &pool);
    if (image) NEED(sn_tuning_load(span, image->data, image->len, &tuning, &err));
    NEED(sn_kv_new(pool, &kv, &err));
    NEED(sn_kv_reserve(kv, n, &err));
    sn_span_part part = {kv, &input, 0, n, out};
    NEED(sn_span_forward_tuned(span, first, end, tuning, 1, &part, NULL, &err));
    sn_tuning_free(&tuning);
    sn_kv_free(&kv);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&device);
    return out;
}

sn_buf world_tuning(const world *w, float scale) {
    static float values[4096];
    size_t embd = (size_t)w->n_embd;
    sn_buf image;
    for (size_t i = 0; i < 4096; i++) values[i] = scale * (float)((i * 7919) % 1001) / 1001;
    const sn_safetensors_entry entries[] = {{"prompt.1", SN_F32, 2, {3, embd}, values},
                                            {"lora_a.2.q", SN_F32, 2, {2, embd}, values + 700},
                                            {"lora_b.2.q", SN_F32, 2, {embd, 2}, values + 1400}};
    sn_buf_init(&image, 1 << 20);
    NEED(sn_safetensors_image(entries, 3, &image, &err));
    return image;
}

sn_hash *world_timeline(const world *w, int first, int end, int n, const float *rows) {
    sn_hash *timeline = calloc((size_t)n + 1, sizeof *timeline);
    sn_hasher *hasher = sn_hasher_new();
    uint8_t hashes[8][SN_HASH_SIZE];
    if (!timeline || !hasher) abort();
    for (int b = first; b < end; b++) memcpy(hashes[b - first], w->block_hash[b].bytes, SN_HASH_SIZE);
    timeline[0] = sn_timeline_begin(w->model.bytes, first, end, (const uint8_t(*)[SN_HASH_SIZE])hashes);
    for (int i = 0; i < n; i++)
        timeline[i + 1] =
            sn_timeline_next(hasher, &timeline[i], rows + (size_t)i * (size_t)w->n_embd, (size_t)w->n_embd);
    sn_hasher_free(hasher);
    return timeline;
}

world *world_new(const cluster_options *options) {
    world *w = calloc(1, sizeof *w);
    sn_model *model = NULL;
    if (!w) abort();
    w->path = tiny_make(&(tiny_options){.dtype = SN_F32});
    NEED(sn_model_open(w->path, &model, &err));
    w->model = sn_model_id(model);
    w->n_blocks = sn_model_hparams(model)->n_blocks;
    w->n_embd = sn_model_hparams(model)->n_embd;
    for (int b = 0; b < w->n_blocks; b++) NEED(sn_model_block_hash(model, b, &w->block_hash[b], &err));
    sn_model_close(&model);
    w->inputs = make_rows(WORLD_TOKENS, w->n_embd);
    w->hidden = world_compute(w, 0, w->n_blocks, WORLD_TOKENS, w->inputs);
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    open_span(w, 0, w->n_blocks, &device, &span, &pool);
    w->page_bytes = sn_kv_pool_bytes(pool) / sn_kv_pool_tokens(pool) * SN_KV_PAGE_TOKENS;
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&device);
    cluster_options with = *options;
    with.model = w->path;
    with.kv_memory = options->kv_memory * w->page_bytes; /* given in pages */
    with.quota.kv_bytes = options->quota.kv_bytes * w->page_bytes; /* the same */
    w->cluster = cluster_new(&with);
    return w;
}

void world_free(world **w) {
    if (!*w) return;
    cluster_free(&(*w)->cluster);
    tiny_remove(&(*w)->path);
    free((*w)->inputs);
    free((*w)->hidden);
    free(*w);
    *w = NULL;
}

/* -- a client -- */

talk *talk_new(world *w, int node) {
    talk *t = calloc(1, sizeof *t);
    if (!t) abort();
    const sn_node *at = cluster_node(w->cluster, node);
    t->transport = cluster_transport(w->cluster, &t->identity);
    NEED(sn_transport_dial(t->transport, sn_node_address(at), sn_node_curve_key(at), &t->node, &err));
    return t;
}

void talk_free(talk **t) {
    if (!*t) return;
    sn_transport_free(&(*t)->transport);
    free(*t);
    *t = NULL;
}

uint64_t talk_send(talk *t, sn_msg **msg) {
    (*msg)->request = ++t->request;
    NEED(sn_transport_send(t->transport, t->node, msg, &err));
    return t->request;
}

sn_msg *talk_hear(talk *t, uint64_t request, int timeout_ms) {
    int64_t deadline = sn_now_us() + (int64_t)timeout_ms * 1000;
    while (sn_now_us() < deadline) {
        sn_event event;
        NEED(sn_transport_recv(t->transport, deadline, &event, &err));
        if (event.msg && (!request || event.msg->request == request)) return event.msg;
        sn_msg_free(&event.msg);
    }
    return NULL;
}

sn_msg *talk_ask(talk *t, sn_msg **msg) {
    sn_msg_kind kind = (*msg)->kind;
    sn_msg *answer = talk_hear(t, talk_send(t, msg), WORLD_WAIT_MS);
    if (!answer) {
        fprintf(stderr, "no answer to %s\n", sn_msg_kind_name(kind));
        abort();
    }
    return answer;
}

sn_msg_status_is talk_status(talk *t) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_STATUS, 0, &msg, &err));
    msg->status.protocol = SN_PROTOCOL;
    sn_msg *answer = talk_ask(t, &msg);
    if (answer->kind != SN_MSG_STATUS_IS) abort();
    sn_msg_status_is status = answer->status_is;
    sn_msg_free(&answer);
    return status;
}

void talk_await_kv_bytes(talk *t, uint64_t bytes) {
    int64_t deadline = sn_now_us() + WORLD_WAIT_MS * 1000;
    uint64_t now;
    while ((now = talk_status(t).kv_bytes) != bytes) {
        if (sn_now_us() > deadline) {
            fprintf(stderr, "%llu bytes of cache are in use, not %llu\n", (unsigned long long)now,
                    (unsigned long long)bytes);
            abort();
        }
        sn_sleep_us(2000);
    }
}

void talk_tune(talk *t, const world *w, const sn_buf *image) {
    sn_msg *msg = NULL, *answer;
    void *data;
    sn_hash hash = sn_hash_of(image->data, image->len);
    NEED(sn_msg_new(SN_MSG_TUNE, 0, &msg, &err));
    NEED(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){image->len / 4}, &data, &err));
    memcpy(data, image->data, image->len);
    msg->tune.protocol = SN_PROTOCOL;
    memcpy(msg->tune.model, w->model.bytes, SN_HASH_SIZE);
    memcpy(msg->tune.hash, hash.bytes, SN_HASH_SIZE);
    answer = talk_ask(t, &msg);
    if (answer->kind != SN_MSG_TUNED) {
        fprintf(stderr, "not tuned: %s\n", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
        abort();
    }
    sn_msg_free(&answer);
}

/* -- a session -- */

void past_init(past *p, world *w, talk *t, int first, int end) {
    *p = (past){.world = w, .talk = t, .first = first, .end = end};
    p->timeline = world_timeline(w, first, end, WORLD_TOKENS, w->inputs);
    sn_random(p->id, sizeof p->id);
}

void past_init_tuned(past *p, world *w, talk *t, const sn_buf *image) {
    sn_hasher *hasher = sn_hasher_new();
    past_init(p, w, t, 0, w->n_blocks);
    p->tuning = sn_hash_of(image->data, image->len);
    p->hidden = world_compute_tuned(w, image, 0, w->n_blocks, WORLD_TOKENS, w->inputs);
    p->timeline[0] = sn_timeline_tuned(&p->timeline[0], p->tuning.bytes);
    for (size_t i = 0, row = (size_t)w->n_embd; i < WORLD_TOKENS; i++)
        p->timeline[i + 1] = sn_timeline_next(hasher, &p->timeline[i], w->inputs + i * row, row);
    sn_hasher_free(hasher);
}

sn_msg *past_open_message(past *p) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_OPEN, 0, &msg, &err));
    msg->open.protocol = SN_PROTOCOL;
    memcpy(msg->open.session, p->id, sizeof p->id);
    memcpy(msg->open.model, p->world->model.bytes, SN_HASH_SIZE);
    msg->open.first_block = (uint64_t)p->first;
    msg->open.end_block = (uint64_t)p->end;
    msg->open.max_tokens = WORLD_TOKENS;
    memcpy(msg->open.tuning, p->tuning.bytes, SN_HASH_SIZE);
    return msg;
}

sn_msg *past_step_message(past *p, int position, int n) {
    sn_msg *msg = NULL;
    void *data;
    NEED(sn_msg_new(SN_MSG_STEP, 0, &msg, &err));
    memcpy(msg->step.session, p->id, sizeof p->id);
    memcpy(msg->step.timeline, p->timeline[position].bytes, SN_HASH_SIZE);
    msg->step.step = p->step + 1;
    msg->step.position = (uint64_t)position;
    msg->step.reply_dtype = SN_F32;
    size_t row = (size_t)p->world->n_embd;
    NEED(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){(uint64_t)n, row}, &data, &err));
    memcpy(data, p->world->inputs + (size_t)position * row, (size_t)n * row * sizeof(float));
    return msg;
}

sn_msg *past_close_message(const past *p) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_CLOSE, 0, &msg, &err));
    memcpy(msg->close.session, p->id, sizeof p->id);
    return msg;
}

void past_open(past *p) {
    sn_msg *msg = past_open_message(p), *answer = talk_ask(p->talk, &msg);
    if (answer->kind != SN_MSG_OPENED) {
        fprintf(stderr, "not opened: %s\n", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
        abort();
    }
    sn_msg_free(&answer);
}

void past_close(past *p) {
    sn_msg *msg = past_close_message(p), *answer = talk_ask(p->talk, &msg);
    if (answer->kind != SN_MSG_CLOSED || memcmp(answer->closed.session, p->id, sizeof p->id)) abort();
    sn_msg_free(&answer);
    free(p->timeline);
    free(p->hidden);
    *p = (past){0};
}

bool past_took(past *p, sn_msg *answer, int position, int n) {
    size_t row = (size_t)p->world->n_embd;
    const float *hidden = p->hidden ? p->hidden : p->world->hidden;
    bool good =
        answer && answer->kind == SN_MSG_RESULT && answer->result.step == p->step + 1 &&
        !memcmp(answer->result.session, p->id, sizeof p->id) && answer->result.n_trace == 1 &&
        !memcmp(answer->result.trace[0].timeline, p->timeline[position + n].bytes, SN_HASH_SIZE) &&
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

bool past_goes_on(past *p, int position, int n) {
    sn_msg *msg = past_step_message(p, position, n);
    return past_took(p, talk_ask(p->talk, &msg), position, n);
}

bool is_refusal(sn_msg *answer, sn_status status, const char *part) {
    bool is = answer && answer->kind == SN_MSG_ERROR && answer->error.status == (uint64_t)status &&
              strstr(answer->error.text, part);
    if (!is)
        fprintf(stderr, "wanted %s '%s', got %s %s '%s'\n", sn_status_name(status), part,
                answer ? sn_msg_kind_name(answer->kind) : "nothing",
                answer && answer->kind == SN_MSG_ERROR ? sn_status_name((sn_status)answer->error.status) : "",
                answer && answer->kind == SN_MSG_ERROR ? answer->error.text : "");
    sn_msg_free(&answer);
    return is;
}
