#include "tests/support/byzantine_node.h"

#include "base/clock.h"
#include "node/engine/training.h"
#include "node/protocol/protocol.h"
#include "node/protocol/session.h"
#include "tests/support/fake_node.h"
#include "tests/support/require.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { SESSIONS = 32, KV_BYTES = 16 << 20 };

struct byzantine_node {
    byzantine_faults faults;
    int n_embd;
    sn_identity identity;
    sn_transport *transport;
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_engine *engine;
    sn_protocol *protocol;
    sn_buf sealed;
    sn_hash hashes[8];  /* of the blocks, as if they were those of float32 */
    float *last_output; /* (n_embd): the output of the newest step of one token */
    bool has_last_output;
    int last_position; /* of the newest step; -1: none yet */
    pthread_t thread;
    atomic_bool stop;
    atomic_int steps;
};

static void wake_transport(void *ctx) { sn_transport_wake(((byzantine_node *)ctx)->transport); }
static bool submit_job(void *ctx, sn_job *job) { return sn_engine_submit(((byzantine_node *)ctx)->engine, job); }
static sn_engine_stats read_stats(void *ctx) { return sn_engine_read(((byzantine_node *)ctx)->engine); }

/* Alters rows (n, n_embd): the last bit of one value, and with large_error also all values of the last row. */
static void alter_rows(const byzantine_node *b, float *rows, size_t n, int step) {
    size_t width = (size_t)b->n_embd;
    uint32_t bits;
    float *value = &rows[(size_t)step % (n * width)];
    memcpy(&bits, value, sizeof bits);
    bits ^= 1;
    memcpy(value, &bits, sizeof bits);
    for (size_t i = (n - 1) * width; i < n * width && b->faults.large_error; i++) rows[i] = -rows[i];
}

static void tamper_with_training(const byzantine_node *b, const sn_job *job) {
    float *out = job->output ? sn_shared_buffer_data(job->output) : NULL;
    for (size_t i = 0; out && b->faults.huge && i < job->training->result; i++) out[i] = 3e38f;
}

static void tamper_with_job(byzantine_node *b, sn_job *job) {
    if (job->kind == SN_JOB_TRAIN && !job->status) tamper_with_training(b, job);
    if (job->kind != SN_JOB_STEP || job->status) return;
    float *out = sn_shared_buffer_data(job->output), now[4096];
    size_t row = (size_t)b->n_embd * sizeof *out;
    int step = atomic_fetch_add(&b->steps, 1) + 1;
    bool repeated = job->position == b->last_position;
    b->last_position = job->position;
    if (b->faults.signs_continued) ((sn_session *)job->session)->migration.imported = true;
    bool ended = b->faults.fail_after && step > b->faults.fail_after;
    if (step <= b->faults.fail_steps || ended || (b->faults.fail_repeated && repeated))
        job->status = sn_fail(&job->err, SN_RETRY, "a step that this node does not do");
    if (step == b->faults.alter_nth_step || (b->faults.alter_every_nth && step % b->faults.alter_every_nth == 0) ||
        (b->faults.alter_once && !repeated))
        alter_rows(b, out, (size_t)job->n_tokens, step);
    if (!b->faults.stale || job->n_tokens != 1) return;
    memcpy(now, out, row);
    if (b->has_last_output) memcpy(out, b->last_output, row);
    memcpy(b->last_output, now, row);
    b->has_last_output = true;
}

static void *node_main(void *ctx) {
    byzantine_node *b = ctx;
    while (!atomic_load(&b->stop)) {
        sn_event event;
        REQUIRE(
            sn_transport_recv(b->transport, sn_protocol_tick(b->protocol, sn_now_us(), sn_unix_ms()), &event, &err));
        if (event.peer) sn_protocol_handle(b->protocol, &event, sn_now_us(), sn_unix_ms());
        for (sn_job *job = sn_engine_next_finished(b->engine); job; job = sn_engine_next_finished(b->engine)) {
            tamper_with_job(b, job);
            sn_protocol_job_done(b->protocol, job, sn_now_us());
        }
    }
    return NULL;
}

static void load_blocks(byzantine_node *b, const char *path, sn_kv_dtype kv_dtype, int first, int end) {
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_model_open(path, &model, &err));
    b->n_embd = sn_model_hparams(model)->n_embd;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    REQUIRE(sn_span_load(model, b->device, first, end, NULL, NULL, &b->span, &err));
    sn_span_set_kv_dtype(b->span, kv_dtype);
    REQUIRE(sn_span_kv_pool(b->span, KV_BYTES, &b->pool, &err));
    sn_model_close(&model);
}

byzantine_node *byzantine_node_new(testbed *w, const char *address, int first, int end, byzantine_faults faults) {
    byzantine_node *b = calloc(1, sizeof *b);
    char bound[SN_ADDRESS_MAX + 1];
    if (!b) abort();
    b->faults = faults;
    b->last_position = -1;
    b->transport = cluster_transport(w->cluster, &b->identity);
    REQUIRE(sn_transport_listen(b->transport, address, bound, &err));
    load_blocks(b, faults.model ? faults.model : w->path, w->kv_dtype, first, end);
    REQUIRE(sn_calloc(&b->last_output, (size_t)b->n_embd, sizeof *b->last_output, &err));
    REQUIRE(sn_engine_new(b->span, b->pool, SESSIONS, (sn_throughput){0}, wake_transport, b, &b->engine, &err));
    sn_protocol_setup setup = {.transport = b->transport,
                               .identity = &b->identity,
                               .address = address,
                               .name = "byzantine",
                               .span = sn_span_describe(b->span),
                               .model = w->model,
                               .kv = sn_kv_room_of(b->pool),
                               .sessions_max = SESSIONS,
                               .session_timeout_us = 600000000,
                               .kv_timeout_us = 1000000,
                               .tune_bytes_max = 64 << 20,
                               .submit = submit_job,
                               .read_stats = read_stats,
                               .ctx = b};
    setup.span.block_hash = &w->block_hash[first]; /* announced even if the weights are those of another model */
    if (faults.signs_approximate) setup.span.exact = false;
    for (int k = 0; faults.signs_float32 && k < end - first; k++)
        b->hashes[k] = sn_block_hash_with_kv_dtype(&w->block_hash[first + k], w->kv_dtype);
    if (faults.signs_float32) setup.span.block_hash = b->hashes;
    if (faults.signs_float32) setup.span.kv_dtype = SN_KV_F32;
    REQUIRE(sn_protocol_new(&setup, sn_now_us(), &b->protocol, &err));
    make_announcement_of(w, &b->identity, address, first, end, faults.announces_slow ? -1 : 1, &b->sealed);
    if (pthread_create(&b->thread, NULL, node_main, b)) abort();
    return b;
}

void byzantine_node_free(byzantine_node **b) {
    if (!*b) return;
    atomic_store(&(*b)->stop, true);
    sn_transport_wake((*b)->transport);
    pthread_join((*b)->thread, NULL);
    sn_engine_free(&(*b)->engine);
    sn_protocol_free(&(*b)->protocol);
    sn_transport_free(&(*b)->transport);
    sn_kv_pool_free(&(*b)->pool);
    sn_span_free(&(*b)->span);
    sn_device_close(&(*b)->device);
    sn_buf_fini(&(*b)->sealed);
    free((*b)->last_output);
    free(*b);
    *b = NULL;
}

void byzantine_node_announce_to(const byzantine_node *b, sn_link *link) {
    REQUIRE(sn_directory_add(sn_link_directory(link), b->sealed.data, b->sealed.len, sn_unix_ms(), &err));
    sn_directory_prove(sn_link_directory(link), b->identity.id, INT64_MAX); /* no stranger */
}

const uint8_t *byzantine_node_id(const byzantine_node *b) { return b->identity.id; }
int byzantine_node_steps(const byzantine_node *b) { return atomic_load(&b->steps); }
