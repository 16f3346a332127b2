/* --device-memory on emulated CUDA and XPU devices: plans count all that a node takes of a device, a node works within
 * exactly what was planned, and neither captured batches nor adapters nor training go beyond the limit. The emulations
 * count every allocation, and what executable graphs take. */
#ifdef SN_ZE_TEST_DRIVER
#include "base/program_environment.h"
#include "tests/support/ze_driver/use.h"
#endif

#include "base/log.h"
#include "node/placement/device_placement.h"
#include "tests/support/cuda_stand_in/stand_in.h"
#include "tests/support/node_client.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { KV_PAGES = 32, PROMPT = 40, STEPS = 6 };
static const size_t ROOMY = (size_t)1 << 30, TUNE_MEMORY = 64u << 20;

/* The device that the running test uses. */
static const char *device;
static bool is_xpu(void) { return !strcmp(device, "xpu:0"); }

/* The emulated device has so many bytes, and counts its peak from now on. */
static void emulate(size_t bytes) {
    cuda_stand_in_memory(bytes);
    cuda_stand_in_peak_reset();
#ifdef SN_ZE_TEST_DRIVER
    ze_test_memory(bytes);
    ze_test_peak(true);
#endif
}

static size_t peak(void) {
#ifdef SN_ZE_TEST_DRIVER
    if (is_xpu()) return ze_test_peak(false);
#endif
    return cuda_stand_in_peak();
}

static void for_each_device(void (*expect)(void)) {
    cuda_stand_in_reset();
    device = "cuda:0";
    expect();
#ifdef SN_ZE_TEST_DRIVER
    sn_environment_use(getenv);
    setenv("ZES_ENABLE_SYSMAN", "1", 1); /* so that the driver tells what is free */
    device = "xpu:0";
    expect();
#endif
}

/* Places all blocks of the testbed's model on a device of `there` bytes, within `limit` (0: none is given); *planned:
 * those that the plan counts. */
static sn_status place_on(const testbed *w, const char *map, size_t there, size_t limit, size_t *planned, sn_err *why) {
    char both[32], memory[64];
    const char *item = memory;
    sn_model *model = NULL;
    sn_device_placement placement = {0};
    int end = w->n_blocks;
    snprintf(both, sizeof both, "%s,cpu", device);
    snprintf(memory, sizeof memory, "%s=%zu", device, limit);
    const sn_device_placement_options options = {.device = map ? both : device,
                                                 .device_map = map,
                                                 .device_memory = &item,
                                                 .n_device_memory = limit ? 1 : 0,
                                                 .device_options = {.threads = 1},
                                                 .kv_memory = KV_PAGES * w->page_bytes,
                                                 .tune_memory = TUNE_MEMORY};
    emulate(there);
    REQUIRE(sn_model_open(w->path, &model, &err));
    sn_status status = sn_device_placement_make(&options, model, 0, &end, &placement, why);
    if (!status && planned) *planned = placement.plan.device_bytes[0];
    sn_device_placement_close(&placement);
    sn_model_close(&model);
    return status;
}

static sn_status place(const testbed *w, const char *map, size_t limit, size_t *planned, sn_err *why) {
    return place_on(w, map, ROOMY, limit, planned, why);
}

/* The least limit with which the blocks are placed: what is planned, and what a try of a lost device takes. */
static size_t least_limit(const char *map) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = KV_PAGES});
    size_t planned = 0;
    sn_err why;
    cr_assert_eq(place(w, map, ROOMY, &planned, &why), SN_OK, "%s", why.text);
    cr_expect_eq(place(w, map, planned + SN_DEVICE_TRY_BYTES - 1, NULL, &why), SN_REFUSED);
    cr_expect(strstr(why.text, device) && strstr(why.text, "1 bytes more"), "%s", why.text);
    cr_expect_eq(place(w, map, planned + SN_DEVICE_TRY_BYTES, NULL, &why), SN_OK, "%s", why.text);
    testbed_free(&w);
    return planned + SN_DEVICE_TRY_BYTES;
}

typedef struct fixture {
    testbed *w;
    node_client *client;
} fixture;

/* A node that may use `limit` bytes of the device (0: no limit is given), which has `there`. */
static fixture fixture_begin(const char *map, size_t limit, size_t there) {
    static char both[32], memory[64]; /* the node borrows them */
    snprintf(both, sizeof both, "%s,cpu", device);
    if (limit) snprintf(memory, sizeof memory, "%s=%zu", device, limit);
    fixture f = {.w = testbed_new(&(cluster_options){.kv_memory = KV_PAGES,
                                                     .device = map ? both : device,
                                                     .device_map = map,
                                                     .device_memory = limit ? memory : NULL,
                                                     .tune_memory = TUNE_MEMORY,
                                                     .prefix_cache_memory = 1 << 20})};
    emulate(there);
    cluster_add(f.w->cluster, 0, 0);
    f.client = node_client_new(f.w, 0);
    return f;
}

static void fixture_end(fixture *f) {
    node_client_free(&f->client);
    testbed_free(&f->w);
}

static void expect_reply(fixture *f, sn_msg *msg, sn_msg_kind kind) {
    sn_msg *answer = node_client_request(f->client, &msg);
    cr_assert_eq(answer->kind, kind, "%s: %s", device, answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    sn_msg_free(&answer);
}

static sn_msg *kv_get_message(const node_session *p) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_KV_GET, 0, &msg, &err));
    memcpy(msg->kv_get.session, p->id, SN_SESSION_ID_SIZE);
    msg->kv_get.tokens = PROMPT;
    return msg;
}

/* Two sessions with the same prompt: prefill, the prefix cache, decode steps that are captured, and a read of KV pages.
 */
static void expect_serving(fixture *f) {
    node_session p[2];
    for (int i = 0; i < 2; i++) {
        node_session_init(&p[i], f->w, f->client, 0, f->w->n_blocks);
        expect_reply(f, node_session_open_message(&p[i]), SN_MSG_OPEN_REPLY);
        expect_reply(f, node_session_step_message(&p[i], 0, PROMPT), SN_MSG_STEP_REPLY);
    }
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < 2; i++) {
            p[i].step++;
            expect_reply(f, node_session_step_message(&p[i], PROMPT + step, 1), SN_MSG_STEP_REPLY);
        }
    expect_reply(f, kv_get_message(&p[0]), SN_MSG_KV_GET_REPLY);
    for (int i = 0; i < 2; i++) node_session_close(&p[i]);
}

/* A FORWARD of one sequence of so many tokens, whose activations are to be saved. */
static sn_msg *forward_message(const testbed *w, sn_msg_kind kind, uint64_t tokens) {
    sn_msg *msg = NULL;
    void *data;
    bool backward = kind == SN_MSG_BACKWARD;
    const uint64_t shape[] = {2, tokens, (uint64_t)w->n_embd};
    size_t bytes = tokens * (size_t)w->n_embd * sizeof(float);
    REQUIRE(sn_msg_new(kind, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, backward ? 3 : 2, backward ? shape : shape + 1, &data, &err));
    memcpy(data, w->inputs, bytes);
    if (backward) memcpy((char *)data + bytes, w->hidden, bytes);
    sn_msg_forward *f = &msg->forward;
    f->protocol = SN_PROTOCOL_VERSION;
    memcpy(f->model, w->model.bytes, SN_HASH_SIZE);
    f->end_block = (uint64_t)w->n_blocks;
    REQUIRE(sn_list_new(1, SN_SAMPLES_MAX, sizeof *f->samples, &f->samples, &err));
    f->n_samples = 1;
    f->save_activations = 1;
    f->samples[0].tokens = tokens;
    return msg;
}

static sn_msg *adapter_message(const testbed *w) {
    sn_buf image = testbed_adapter_image(w, 0.3f);
    sn_msg *msg = NULL;
    void *data;
    REQUIRE(sn_msg_new(SN_MSG_ADAPTER_PUT, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){image.len / 4}, &data, &err));
    memcpy(data, image.data, image.len);
    msg->adapter_put.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->adapter_put.model, w->model.bytes, SN_HASH_SIZE);
    sn_hash hash = sn_hash_of(image.data, image.len);
    memcpy(msg->adapter_put.hash, hash.bytes, SN_HASH_SIZE);
    sn_buf_fini(&image);
    return msg;
}

static void expect_refused(fixture *f, sn_msg *msg, sn_status status, const char *part) {
    cr_expect(is_refusal(node_client_request(f->client, &msg), status, part), "%s", device);
}

/* The limit is what the plan needs. On a device that has no more, all that was planned for must work; on one that has
 * more, nothing else may be taken. */
static void expect_no_more_than_planned_with(const char *map) {
    size_t limit = least_limit(map);
    for (int roomy = 0; roomy < 2; roomy++) {
        fixture f = fixture_begin(map, limit, roomy ? ROOMY : limit);
        uint64_t allocations = cuda_stand_in_mallocs();
        expect_serving(&f);
        cr_expect_eq(cuda_stand_in_mallocs(), allocations, "serving allocates device memory");
        expect_refused(&f, forward_message(f.w, SN_MSG_FORWARD, PROMPT), SN_REFUSED, "are left within --device-memory");
        expect_refused(&f, adapter_message(f.w), SN_RETRY, "--device-memory");
        expect_serving(&f);
        fixture_end(&f);
        cr_expect_leq(peak(), limit, "%s, map %s", device, map ? map : "none");
    }
}

/* Without --device-memory a full CUDA device is planned for, less what the driver takes by itself. */
Test(emulated_memory, a_device_without_a_limit_keeps_what_its_driver_needs) {
    cuda_stand_in_reset();
    device = "cuda:1"; /* the same blocks on another device: on the first one nothing has been opened yet */
    size_t least = least_limit(NULL) - SN_DEVICE_TRY_BYTES;
    testbed *w = testbed_new(&(cluster_options){.kv_memory = KV_PAGES});
    sn_err why;
    device = "cuda:0";
    cr_expect_eq(place_on(w, NULL, least - 1, 0, NULL, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "1 bytes more"), "%s", why.text);
    testbed_free(&w);
    fixture f = fixture_begin(NULL, 0, least);
    expect_serving(&f);
    fixture_end(&f);
    cr_expect_leq(peak(), least);
}

Test(emulated_memory, a_device_that_cannot_be_opened_is_left_out_unless_it_is_named) {
    cuda_stand_in_reset();
    cuda_stand_in_break(0, true);
    testbed *w = testbed_new(&(cluster_options){.kv_memory = KV_PAGES});
    sn_err why;
    device = "cuda:0";
    cr_expect_eq(place_on(w, NULL, ROOMY, 0, NULL, &why), SN_STOP);
    cr_expect(strstr(why.text, "cuda:0") && strstr(why.text, "unavailable"), "%s", why.text);
    device = "auto";
    cr_expect_eq(place_on(w, NULL, ROOMY, 0, NULL, &why), SN_OK, "%s", why.text);
    cr_expect_eq(cuda_stand_in_contexts(), 1, "cuda:1 was not opened");
    testbed_free(&w);
}

static void expect_no_more_than_planned(void) { expect_no_more_than_planned_with(NULL); }

Test(emulated_memory, a_node_takes_no_more_than_was_planned) { for_each_device(expect_no_more_than_planned); }

/* Two pieces of the device stream blocks, and share the slots that were planned once. */
static void expect_streaming_within_plan(void) {
    char map[64];
    snprintf(map, sizeof map, "1:2=%s,0:1=host,2:3=cpu,3:4=host", device);
    expect_no_more_than_planned_with(map);
}

Test(emulated_memory, pieces_of_a_span_on_one_device_share_their_slots) {
    for_each_device(expect_streaming_within_plan);
}

/* Training has what the blocks leave, beside sessions, captured batches and saved activations. */
static void expect_training_within(size_t more, bool fits) {
    size_t limit = least_limit(NULL) + more;
    fixture f = fixture_begin(NULL, limit, ROOMY);
    expect_serving(&f);
    for (uint64_t tokens = 20; tokens <= PROMPT && fits; tokens += 20) {
        expect_reply(&f, forward_message(f.w, SN_MSG_FORWARD, tokens), SN_MSG_FORWARD_REPLY);
        expect_reply(&f, forward_message(f.w, SN_MSG_BACKWARD, tokens), SN_MSG_BACKWARD_REPLY);
        expect_reply(&f, forward_message(f.w, SN_MSG_FORWARD, tokens + 1), SN_MSG_FORWARD_REPLY); /* stays saved */
        expect_serving(&f);
    }
    if (!fits)
        expect_refused(&f, forward_message(f.w, SN_MSG_FORWARD, PROMPT), SN_REFUSED, "are left within --device-memory");
    expect_serving(&f);
    fixture_end(&f);
    cr_expect_leq(peak(), limit, "%s", device);
}

static void expect_training_within_limits(void) {
    expect_training_within(300 << 10, false);
    expect_training_within(8 << 20, true);
    expect_training_within(64 << 20, true);
}

Test(emulated_memory, training_has_what_blocks_leave) { for_each_device(expect_training_within_limits); }
