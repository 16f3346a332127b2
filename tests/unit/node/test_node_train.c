/* Training through a node, by hand: its replies equal what the blocks compute in this process, and invalid requests
 * are refused. */
#include "base/clock.h"
#include "blocks/train.h"
#include "model/safetensors.h"
#include "node/engine/training.h"
#include "node/protocol/adapter_table.h"
#include "tests/support/train_whole.h"
#include "tests/support/require.h"
#include "tests/support/train_client.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options TRAINING = {.tune_memory = 64 << 20};

/* Computes the expected reply in this process, with two threads and sequence by sequence. The caller frees it. */
static float *compute_batch(const testbed *w, bool backward, int first, int end, const sn_buf *image, size_t *n) {
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_train *train = NULL;
    sn_adapter *adapter = NULL;
    size_t width = (size_t)w->n_embd, row = 0, floats = 0;
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 2}, &device, &err));
    REQUIRE(sn_span_load(model, device, first, end, NULL, NULL, &span, &err));
    REQUIRE(sn_train_new(span, 30, &train, &err));
    if (image) REQUIRE(sn_adapter_load(span, image->data, image->len, &adapter, &err));
    if (image && backward) floats = sn_adapter_n_params(adapter, first, end);
    *n = TRAIN_ROWS * width + TRAIN_SAMPLES * floats;
    float *out = calloc(*n, sizeof *out);
    for (int i = 0; i < TRAIN_SAMPLES; row += train_lengths[i++]) {
        sn_tensor x = {
            .name = "x", .data = w->inputs + row * width, .rank = 2, .shape = {(int64_t)train_lengths[i], w->n_embd}};
        sn_tensor dout = x;
        dout.data = w->hidden + row * width;
        if (backward)
            REQUIRE(train_backward(train, &(sn_train_sequence){first, end, adapter, &x}, NULL, &dout, out + row * width,
                                   out + TRAIN_ROWS * width + (size_t)i * floats, &err));
        else
            REQUIRE(
                train_forward(train, &(sn_train_sequence){first, end, adapter, &x}, out + row * width, 0, NULL, &err));
    }
    sn_adapter_free(&adapter);
    sn_train_free(&train);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    return out;
}

static void expect_answer(node_client *t, const testbed *w, bool backward, int first, int end, const sn_buf *image) {
    size_t n;
    float *want = compute_batch(w, backward, first, end, image, &n);
    sn_msg *msg = batch_message(w, backward ? SN_MSG_BACKWARD : SN_MSG_FORWARD, first, end, image),
           *answer = node_client_request(t, &msg);
    cr_assert_eq(answer->kind, backward ? SN_MSG_BACKWARD_REPLY : SN_MSG_FORWARD_REPLY, "%s", answer->error.text);
    cr_expect_eq(answer->tensor.bytes, n * sizeof *want);
    cr_expect(!memcmp(answer->tensor.data, want, n * sizeof *want), "blocks %d:%d, backward %d, adapter %d", first, end,
              backward, image != NULL);
    sn_msg_free(&answer);
    free(want);
}

Test(node_train, forward_and_backward_with_and_without_an_adapter) {
    testbed *w = testbed_new(&TRAINING);
    cluster_add(w->cluster, 0, 3);
    node_client *t = node_client_new(w, 0);
    sn_buf image = train_image(w, 0.3f);
    for (int backward = 0; backward < 2; backward++) {
        expect_answer(t, w, backward, 0, 3, NULL);
        expect_answer(t, w, backward, 1, 2, NULL);
    }
    sn_msg *msg = batch_message(w, SN_MSG_FORWARD, 0, 3, &image);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "send it first"));
    put_adapter(t, w, &image);
    put_adapter(t, w, &image); /* putting it again is harmless */
    for (int backward = 0; backward < 2; backward++) {
        expect_answer(t, w, backward, 0, 3, &image);
        expect_answer(t, w, backward, 2, 3, &image);
    }
    sn_buf_fini(&image);
    node_client_free(&t);
    testbed_free(&w);
}

/* -- saved activations, with the time of the requests given by the test */

/* One FORWARD, or its BACKWARD, of sequence `number`, with at most bytes_max of memory. Returns the reply's floats,
 * which the caller frees. */
static float *train_of(uint8_t client, sn_trainer *trainer, const testbed *w, bool backward, int number, int64_t at_us,
                       size_t bytes_max) {
    sn_msg *msg = batch_message(w, backward ? SN_MSG_BACKWARD : SN_MSG_FORWARD, 0, w->n_blocks, NULL);
    float *x = (float *)(uintptr_t)msg->tensor.data;
    for (size_t i = 0, row = 0; i < TRAIN_SAMPLES; row += train_lengths[i++])
        x[row * (size_t)w->n_embd] = (float)number;
    sn_training_task *task = calloc(1, sizeof *task);
    *task = (sn_training_task){.kind = backward ? SN_TRAINING_BACKWARD : SN_TRAINING_FORWARD,
                               .request_msg = msg,
                               .owner = {client},
                               .end = w->n_blocks,
                               .bytes_max = bytes_max,
                               .samples = msg->forward.samples,
                               .n_samples = TRAIN_SAMPLES,
                               .rows = TRAIN_ROWS};
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_TRAIN, .training = task, .arrived_us = at_us};
    sn_training_budget budget = {.cost = 1}; /* the smallest pieces */
    while (sn_trainer_work(trainer, job, &budget) != SN_TRAINING_FINISHED) continue;
    cr_assert_eq(job->status, SN_OK, "%s", job->err.text);
    float *out = malloc((size_t)TRAIN_ROWS * (size_t)w->n_embd * sizeof *out);
    memcpy(out, sn_shared_buffer_data(job->output), (size_t)TRAIN_ROWS * (size_t)w->n_embd * sizeof *out);
    sn_job_free(&job);
    return out;
}

static float *train_at(sn_trainer *trainer, const testbed *w, bool backward, int number, int64_t at_us,
                       size_t bytes_max) {
    return train_of(0, trainer, w, backward, number, at_us, bytes_max);
}

typedef struct trainer_fixture {
    testbed *w;
    sn_model *model;
    sn_device *device;
    sn_span *span;
    sn_trainer *trainer;
} trainer_fixture;

static trainer_fixture trainer_begin(void) {
    trainer_fixture f = {.w = testbed_new(&TRAINING)};
    REQUIRE(sn_model_open(f.w->path, &f.model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &f.device, &err));
    REQUIRE(sn_span_load(f.model, f.device, 0, f.w->n_blocks, NULL, NULL, &f.span, &err));
    REQUIRE(sn_trainer_new(f.span, &f.trainer, &err));
    return f;
}

static void trainer_end(trainer_fixture *f) {
    sn_trainer_free(&f->trainer);
    sn_span_free(&f->span);
    sn_device_close(&f->device);
    sn_model_close(&f->model);
    testbed_free(&f->w);
}

/* Whether what the client's FORWARD saves is there for its BACKWARD. */
static bool saves_activations(trainer_fixture *f, uint8_t client, size_t bytes_max) {
    free(train_of(client, f->trainer, f->w, false, 1000, 0, bytes_max));
    size_t saved = sn_trainer_saved_bytes(f->trainer);
    free(train_of(client, f->trainer, f->w, true, 1000, 0, bytes_max));
    return sn_trainer_saved_bytes(f->trainer) < saved;
}

Test(node_train, a_client_that_fills_the_saved_activations_makes_room_for_another) {
    enum { ENTRIES = 256 };
    trainer_fixture f = trainer_begin();
    size_t rows = 0, own = sn_train_bytes(f.span, 22);
    for (int i = 0; i < TRAIN_SAMPLES; i++)
        rows += sn_saved_activations_estimate(f.span, 0, f.w->n_blocks, (int)train_lengths[i], false);
    for (int i = 0; i <= ENTRIES / TRAIN_SAMPLES; i++) free(train_of(1, f.trainer, f.w, false, i, 0, SIZE_MAX));
    cr_expect(saves_activations(&f, 2, SIZE_MAX), "the entries are full");
    trainer_end(&f);
    f = trainer_begin();
    size_t most = own + 2 * rows;
    for (int i = 0; i < 2; i++) free(train_of(1, f.trainer, f.w, false, i, 0, most));
    cr_expect(saves_activations(&f, 2, most), "the memory is full");
    free(train_of(1, f.trainer, f.w, false, 0, 0, most));
    size_t saved = sn_trainer_saved_bytes(f.trainer);
    free(train_of(3, f.trainer, f.w, false, 0, 0, most));
    free(train_of(1, f.trainer, f.w, true, 0, 0, most));
    cr_expect_lt(sn_trainer_saved_bytes(f.trainer), saved, "another client took all");
    trainer_end(&f);
}

Test(node_train, saved_activations_end_by_backward_timeout_or_eviction) {
    const int64_t second = 1000000;
    trainer_fixture f = trainer_begin();
    const testbed *w = f.w;
    const sn_span *span = f.span;
    sn_trainer *trainer = f.trainer;
    size_t rows = 0, all = 0, own = sn_train_bytes(span, 22),
           bytes = (size_t)TRAIN_ROWS * (size_t)w->n_embd * sizeof(float);
    for (int i = 0; i < TRAIN_SAMPLES; i++) {
        rows += sn_saved_activations_estimate(span, 0, w->n_blocks, (int)train_lengths[i], false);
        all += sn_saved_activations_estimate(span, 0, w->n_blocks, (int)train_lengths[i], true);
    }
    float *plain = train_at(trainer, w, true, 1, 0, SIZE_MAX); /* without saved activations */
    cr_expect_eq(sn_trainer_saved_bytes(trainer), 0);
    free(train_at(trainer, w, false, 1, 0, SIZE_MAX));
    cr_expect_eq(sn_trainer_saved_bytes(trainer), all);
    free(train_at(trainer, w, false, 2, 50 * second, SIZE_MAX));
    cr_expect_eq(sn_trainer_saved_bytes(trainer), 2 * all);
    free(train_at(trainer, w, false, 3, 61 * second, SIZE_MAX)); /* the first one has waited for more than a minute */
    cr_expect_eq(sn_trainer_saved_bytes(trainer), 2 * all);
    float *late = train_at(trainer, w, true, 1, 61 * second, SIZE_MAX);
    cr_expect_eq(sn_trainer_saved_bytes(trainer), 2 * all, "the first activations were not dropped");
    free(train_at(trainer, w, true, 3, 62 * second, SIZE_MAX));
    cr_expect_eq(sn_trainer_saved_bytes(trainer), all);
    /* Memory for the blocks' inputs only: intermediate activations are evicted. */
    free(train_at(trainer, w, false, 1, 62 * second, own + all + rows / 2));
    cr_expect_leq(sn_trainer_saved_bytes(trainer), all + rows / 2);
    cr_expect_gt(sn_trainer_saved_bytes(trainer), 2 * rows - 1, "block inputs were evicted, too");
    float *again = train_at(trainer, w, true, 1, 63 * second, SIZE_MAX);
    cr_expect(!memcmp(plain, late, bytes) && !memcmp(plain, again, bytes), "saved activations change the gradients");
    free(plain), free(late), free(again);
    trainer_end(&f);
}

Test(node_train, training_changes_no_bit_of_sessions) {
    testbed *w = testbed_new(&TRAINING);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *trainer = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    uint64_t asked[6];
    for (int i = 0; i < 6; i++) {
        sn_msg *msg = batch_message(w, SN_MSG_BACKWARD, 0, 4, NULL);
        asked[i] = node_client_send(trainer, &msg);
    }
    for (int at = 0; at < 60; at += 3) cr_expect(node_session_step_ok(&p, at, 3), "at %d", at);
    for (int i = 0; i < 6; i++) {
        sn_msg *answer = node_client_receive(trainer, asked[i], TESTBED_WAIT_MS);
        cr_assert(answer && answer->kind == SN_MSG_BACKWARD_REPLY);
        sn_msg_free(&answer);
    }
    node_session_close(&p);
    node_client_free(&t);
    node_client_free(&trainer);
    testbed_free(&w);
}

static size_t bytes_to_train(const testbed *w, int tokens) {
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    REQUIRE(sn_span_load(model, device, 0, w->n_blocks, NULL, NULL, &span, &err));
    size_t bytes = sn_train_bytes(span, tokens);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    return bytes;
}

Test(node_train, batches_get_the_memory_that_adapters_leave) {
    cluster_options options = {.tune_memory = 1};
    testbed *w = testbed_new(&options);
    size_t own = bytes_to_train(w, 22);
    testbed_free(&w);
    options.tune_memory = own + own / 4; /* half of it would be too little */
    w = testbed_new(&options);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *other = node_client_new(w, 0);
    sn_buf image = train_image_above(w, own / 4), large = train_image_above(w, options.tune_memory / 2);
    expect_answer(t, w, true, 0, 4, NULL);
    sn_msg *msg = adapter_put_message(w, &large);
    cr_expect(is_refusal(node_client_request(other, &msg), SN_REFUSED, "more than half"));
    put_adapter(other, w, &image);
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_RETRY, "others' adapters"), "both fit");
    bool accepted = false; /* the unused adapter is evicted for it */
    for (int tries = 0; tries < 100 && !accepted; tries++) {
        msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL);
        sn_msg *answer = node_client_request(t, &msg);
        accepted = answer->kind == SN_MSG_FORWARD_REPLY;
        cr_assert(accepted || answer->error.status == SN_RETRY, "%s", answer->error.text);
        sn_msg_free(&answer);
        if (!accepted) sn_sleep_us(1000); /* the node is unloading it */
    }
    cr_expect(accepted);
    expect_answer(t, w, true, 0, 4, NULL);
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, &image);
    cr_expect(is_refusal(node_client_request(other, &msg), SN_REBUILD, "send it first"));
    put_adapter(other, w, &image);
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, &image);
    cr_expect(is_refusal(node_client_request(other, &msg), SN_REFUSED, "use shorter sequences"),
              "its own adapter and its batch exceed the memory");
    sn_buf_fini(&image), sn_buf_fini(&large);
    node_client_free(&t), node_client_free(&other);
    testbed_free(&w);
}

/* The same for saved activations: a new adapter gets their memory, and they are recomputed. */
Test(node_train, an_adapter_evicts_saved_activations) {
    testbed *w = testbed_new(&TRAINING);
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_trainer *trainer = NULL;
    sn_adapter *adapter = NULL;
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    REQUIRE(sn_span_load(model, device, 0, w->n_blocks, NULL, NULL, &span, &err));
    REQUIRE(sn_trainer_new(span, &trainer, &err));
    size_t own = sn_train_bytes(span, 22), bytes = (size_t)TRAIN_ROWS * (size_t)w->n_embd * sizeof(float), all = 0;
    for (int i = 0; i < TRAIN_SAMPLES; i++)
        all += sn_saved_activations_estimate(span, 0, w->n_blocks, (int)train_lengths[i], true);
    float *plain = train_at(trainer, w, true, 1, 0, own + all);
    free(train_at(trainer, w, false, 1, 0, own + all));
    cr_assert_eq(sn_trainer_saved_bytes(trainer), all);
    sn_buf image = train_image_above(w, all / 3);
    for (int kind = SN_TRAINING_ADAPTER_LOAD; kind <= SN_TRAINING_ADAPTER_UNLOAD; kind++) {
        sn_training_task *task = calloc(1, sizeof *task);
        *task =
            (sn_training_task){.kind = (sn_training_task_kind)kind,
                               .adapter = &adapter,
                               .bytes_max = own + all,
                               .request_msg = kind == SN_TRAINING_ADAPTER_LOAD ? adapter_put_message(w, &image) : NULL};
        sn_job *job = calloc(1, sizeof *job);
        *job = (sn_job){.kind = SN_JOB_TRAIN, .training = task};
        while (sn_trainer_work(trainer, job, &(sn_training_budget){1, 0}) != SN_TRAINING_FINISHED) continue;
        cr_assert_eq(job->status, SN_OK, "%s", job->err.text);
        sn_job_free(&job);
        if (kind == SN_TRAINING_ADAPTER_UNLOAD) break;
        cr_expect_leq(sn_trainer_saved_bytes(trainer) + sn_adapter_bytes(adapter), all);
        float *again = train_at(trainer, w, true, 1, 0, own + all);
        cr_expect(!memcmp(plain, again, bytes), "saved activations change the gradients");
        free(again);
        free(train_at(trainer, w, false, 2, 0, own + all));
        cr_expect_leq(sn_trainer_saved_bytes(trainer) + sn_adapter_bytes(adapter), all);
    }
    free(train_at(trainer, w, true, 2, 0, own + all));
    free(train_at(trainer, w, false, 2, 0, own + all));
    cr_expect_eq(sn_trainer_saved_bytes(trainer), all, "its memory was not freed");
    free(plain);
    sn_buf_fini(&image);
    sn_trainer_free(&trainer);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    testbed_free(&w);
}

Test(node_train, invalid_requests_are_refused) {
    testbed *w = testbed_new(&TRAINING);
    cluster_add(w->cluster, 1, 3);
    node_client *t = node_client_new(w, 0);
    sn_buf image = train_image(w, 1);
    for (int backward = 0; backward < 2; backward++) {
        sn_msg_kind kind = backward ? SN_MSG_BACKWARD : SN_MSG_FORWARD;
        sn_msg *msg = batch_message(w, kind, 0, 3, NULL);
        expect_refused(t, &msg, "not here");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.protocol++;
        expect_refused(t, &msg, "protocol");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.model[0] ^= 1;
        expect_refused(t, &msg, "another model");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.samples[0].tokens++;
        expect_refused(t, &msg, "a batch of 41 tokens");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.samples[1].tokens = 0;
        expect_refused(t, &msg, "1 to");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.samples[1].tokens = (1 << 30) - 5;
        expect_refused(t, &msg, "1 to");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.n_samples = 0;
        expect_refused(t, &msg, "1 to");
    }
    sn_msg *msg = adapter_put_message(w, &image);
    msg->adapter_put.hash[3] ^= 1;
    expect_refused(t, &msg, "damaged");
    sn_buf rubbish;
    sn_buf_init(&rubbish, 1 << 10);
    REQUIRE(sn_buf_append(&rubbish, "this is not a file of tensors...", 32, &err));
    msg = adapter_put_message(w, &rubbish);
    expect_refused(t, &msg, "the adapter");
    node_client_status(t); /* the node still runs */
    sn_buf_fini(&rubbish);
    sn_buf_fini(&image);
    node_client_free(&t);
    testbed_free(&w);
}

/* Four batches of 1 row count as 4 steps, a BACKWARD as three more. */
Test(node_train, training_counts_in_its_clients_quota) {
    cluster_options options = TRAINING;
    options.quota.steps_per_s = 4;
    testbed *w = testbed_new(&options);
    cluster_add(w->cluster, 0, 4);
    node_client *t = node_client_new(w, 0), *other = node_client_new(w, 0);
    sn_msg *msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL), *answer = node_client_request(t, &msg);
    cr_expect_eq(answer->kind, SN_MSG_FORWARD_REPLY);
    sn_msg_free(&answer);
    msg = batch_message(w, SN_MSG_BACKWARD, 0, 4, NULL);
    answer = node_client_request(t, &msg);
    cr_expect_eq(answer->kind, SN_MSG_BACKWARD_REPLY);
    sn_msg_free(&answer);
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_RETRY, "4 steps per second"));
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL);
    answer = node_client_request(other, &msg);
    cr_expect_eq(answer->kind, SN_MSG_FORWARD_REPLY, "clients share a quota");
    sn_msg_free(&answer);
    node_client_free(&t), node_client_free(&other);
    testbed_free(&w);
}

/* A client keeps sending batches, each of one long sequence, while another one decodes. Each step of the decoding
 * client passes between two pieces: none of the batches can be done after so few steps, whatever the machine's speed.
 */
Test(node_train, a_flood_of_long_sequences_does_not_stop_honest_steps) {
    enum { BATCHES = 8, TOKENS = 512, STEPS = 40 };
    virtual_clock_begin();
    testbed *w = testbed_new(&TRAINING);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *flood = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    cr_expect(node_session_step_ok(&p, 0, 3));
    for (int i = 0; i < BATCHES; i++) {
        sn_msg *msg = batch_message(w, SN_MSG_BACKWARD, 0, 4, NULL);
        void *data;
        const uint64_t shape[] = {2, TOKENS, (uint64_t)w->n_embd};
        REQUIRE(sn_msg_new_tensor(msg, SN_F32, 3, shape, &data, &err));
        for (int k = 0; k < 2 * TOKENS * w->n_embd; k++) ((float *)data)[k] = (float)(k % 101) / 101;
        msg->backward.n_samples = 1;
        msg->backward.samples[0].tokens = TOKENS;
        node_client_send(flood, &msg);
    }
    for (int at = 3; at < 3 + STEPS; at++) cr_expect(node_session_step_ok(&p, at, 1), "at %d", at);
    int done = 0;
    for (sn_msg *answer; (answer = node_client_receive(flood, 0, 1)); done++) sn_msg_free(&answer);
    cr_expect_leq(done, 1, "%d long sequences were trained beside %d steps", done, STEPS);
    node_session_close(&p);
    node_client_free(&t), node_client_free(&flood);
    testbed_free(&w);
}

/* Jobs of no session have places of their own in the device thread's queue: a session always finds one. */
Test(node_train, batches_of_a_stranger_leave_a_place_for_each_session) {
    enum { BATCHES = 8, ROUNDS = 30 }; /* in some of them the step finds all batches in the queue */
    cluster_options options = TRAINING;
    options.sessions_max = 1;
    testbed *w = testbed_new(&options);
    cluster_add(w->cluster, 0, 0);
    node_client *honest = node_client_new(w, 0), *stranger = node_client_new(w, 0);
    node_session session;
    node_session_init(&session, w, honest, 0, w->n_blocks);
    node_session_open(&session);
    for (int i = 0; i < BATCHES * ROUNDS; i++) {
        sn_msg *msg = batch_message(w, SN_MSG_BACKWARD, 0, w->n_blocks, NULL);
        node_client_send(stranger, &msg);
        if (i % BATCHES == BATCHES - 1) cr_expect(node_session_step_ok(&session, i / BATCHES, 1));
    }
    node_session_close(&session);
    node_client_free(&stranger);
    node_client_free(&honest);
    testbed_free(&w);
}

Test(node_train, a_node_without_training_memory_refuses) {
    testbed *w = testbed_new(&(cluster_options){0});
    cluster_add(w->cluster, 0, 4);
    node_client *t = node_client_new(w, 0);
    sn_msg *msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL);
    expect_refused(t, &msg, "--tune-memory 0");
    node_client_free(&t);
    testbed_free(&w);
}
