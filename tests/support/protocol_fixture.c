#include "tests/support/protocol_fixture.h"

#include "base/clock.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

static bool submit_job(void *ctx, sn_job *job) {
    protocol_fixture *b = ctx;
    if (b->n_waiting == b->queue_max) return false;
    b->waiting[b->n_waiting++] = job;
    return true;
}

static sn_engine_stats read_stats(void *ctx) {
    const protocol_fixture *b = ctx;
    return (sn_engine_stats){.kv_bytes = sn_kv_pool_bytes_used(b->pool), .queued_steps = (uint64_t)b->n_waiting};
}

/* The file that is shared, once sn_protocol_share was called: byte i is i / 1000. */
static sn_status offer_file(void *ctx, uint64_t file, sn_range_set *out, sn_err *err) {
    (void)ctx;
    if (file != 1) return sn_fail(err, SN_REFUSED, "there is one file");
    return sn_range_set_add(out, 0, SHARED_FILE_BYTES, err);
}

static sn_status read_file(void *ctx, uint64_t file, uint64_t from, size_t bytes, void *out, uint64_t *size,
                           sn_err *err) {
    protocol_fixture *b = ctx;
    if (file != 1 || from > SHARED_FILE_BYTES || bytes > SHARED_FILE_BYTES - from)
        return sn_fail(err, SN_REFUSED, "these bytes of the file are not here");
    if (b->not_in_memory && b->not_in_memory--) return sn_fail(err, SN_RETRY, "not in memory");
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)out)[i] = (uint8_t)((from + i) / 1000);
    *size = SHARED_FILE_BYTES;
    return SN_OK;
}

node_client protocol_fixture_client(protocol_fixture *b) {
    node_client client = {0};
    client.transport = cluster_transport(b->w->cluster, &client.identity);
    REQUIRE(sn_transport_dial(client.transport, "fixture:1", b->identity.curve_key, &client.node, &err));
    return client;
}

void protocol_fixture_begin(protocol_fixture *b) { protocol_fixture_begin_with(b, NULL, 8); }

void protocol_fixture_begin_with(protocol_fixture *b, const char *model_path, size_t kv_pages) {
    *b = (protocol_fixture){.w = testbed_new(&(cluster_options){.model = model_path, .kv_memory = kv_pages}),
                            .queue_max = 8,
                            .unix_ms = sn_unix_ms()};
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    char bound[SN_ADDRESS_MAX + 1];
    REQUIRE(sn_model_open(b->w->path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &b->device, &err));
    REQUIRE(sn_span_load(model, b->device, 0, 4, NULL, NULL, &b->span, &err));
    sn_model_close(&model);
    REQUIRE(sn_span_kv_pool(b->span, kv_pages * b->w->page_bytes, &b->pool, &err));
    REQUIRE(sn_scheduler_new(b->span, b->pool, &b->scheduler, &err));
    b->transport = cluster_transport(b->w->cluster, &b->identity);
    REQUIRE(sn_transport_listen(b->transport, "fixture:1", bound, &err));
    const sn_protocol_setup setup = {.transport = b->transport,
                                     .identity = &b->identity,
                                     .address = "fixture:1",
                                     .name = "fixture",
                                     .span = sn_span_describe(b->span),
                                     .model = b->w->model,
                                     .kv = sn_kv_room_of(b->pool),
                                     .sessions_max = FIXTURE_SESSIONS_MAX,
                                     .tune_bytes_max = TUNE_BYTES,
                                     .session_timeout_us = 60 * SECOND,
                                     .kv_timeout_us = SECOND,
                                     .share = {.bytes_per_s = SHARED_BYTES_PER_S,
                                               .near_bytes_per_s = SHARED_NEAR_BYTES_PER_S,
                                               .offer = offer_file,
                                               .read = read_file,
                                               .ctx = b},
                                     .submit = submit_job,
                                     .read_stats = read_stats,
                                     .ctx = b};
    REQUIRE(sn_protocol_new(&setup, T0, &b->protocol, &err));
    b->client = protocol_fixture_client(b);
}

void protocol_fixture_end(protocol_fixture *b) {
    for (int i = 0; i < b->n_waiting; i++) sn_job_free(&b->waiting[i]);
    sn_scheduler_free(&b->scheduler);
    sn_protocol_free(&b->protocol);
    cr_expect_eq(sn_kv_pool_bytes_used(b->pool), 0, "the protocol did not free its KV pages");
    sn_transport_free(&b->client.transport);
    sn_transport_free(&b->transport);
    sn_kv_pool_free(&b->pool);
    sn_span_free(&b->span);
    sn_device_close(&b->device);
    testbed_free(&b->w);
}

void protocol_fixture_read(protocol_fixture *b, int64_t now_us) {
    sn_event event;
    for (;;) {
        REQUIRE(sn_transport_recv(b->transport, 0, &event, &err));
        if (!event.peer) return;
        sn_protocol_handle(b->protocol, &event, now_us, b->unix_ms);
    }
}

void protocol_fixture_run_jobs(protocol_fixture *b, int64_t now_us) {
    for (; b->n_waiting || !sn_scheduler_idle(b->scheduler); now_us += 1000) {
        for (int i = 0; i < b->n_waiting; i++) sn_scheduler_add(b->scheduler, b->waiting[i]);
        b->n_waiting = 0;
        for (sn_job *job = sn_scheduler_run(b->scheduler, now_us), *next; job; job = next) {
            next = job->next;
            sn_protocol_job_done(b->protocol, job, now_us);
        }
    }
}

sn_msg *protocol_fixture_request(protocol_fixture *b, sn_msg *msg, int64_t now_us) {
    uint64_t request = node_client_send(&b->client, &msg);
    protocol_fixture_read(b, now_us);
    protocol_fixture_run_jobs(b, now_us);
    sn_msg *answer = node_client_receive(&b->client, request, 100);
    return answer;
}

void protocol_fixture_open(protocol_fixture *b, node_session *p, int64_t now_us) {
    node_session_init(p, b->w, &b->client, 0, 4);
    sn_msg *answer = protocol_fixture_request(b, node_session_open_message(p), now_us);
    cr_assert(answer && answer->kind == SN_MSG_OPEN_REPLY);
    sn_msg_free(&answer);
}

uint64_t protocol_fixture_count_sessions(protocol_fixture *b, int64_t now_us) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_STATUS, 0, &msg, &err));
    sn_msg *answer = protocol_fixture_request(b, msg, now_us);
    cr_assert(answer && answer->kind == SN_MSG_STATUS_REPLY);
    uint64_t n = answer->status_reply.sessions;
    sn_msg_free(&answer);
    return n;
}
