/* Training beside steps on the device thread: how large its pieces are, when they run, and whose. Rows are counted at
 * the device; the test's clock makes every batch take a millisecond. */
#include "base/clock.h"
#include "blocks/block.h"
#include "model/safetensors.h"
#include "net/message.h"
#include "node/engine/scheduler.h"
#include "node/engine/training.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { EMBD = 64, BLOCKS = 4, CONTEXT = 512, BATCH_US = 1000 };

/* The CPU device's operations, counted. */
static sn_device_ops ops;
static const sn_device_ops *cpu_ops;
static int n_batches, n_rows; /* batches that began; rows of attention, forward and backward, over all blocks */
static int rows_of_batch, n_rounds;

static sn_status count_batch(sn_device *d, const sn_batch *batch, bool *replayed, sn_err *err) {
    n_batches++;
    rows_of_batch = batch->n_rows;
    sn_sleep_us(BATCH_US);
    return cpu_ops->batch_begin(d, batch, replayed, err);
}
static sn_status count_store(sn_device *d, int block, const float *k, const float *v, sn_err *err) {
    n_rows += rows_of_batch;
    return cpu_ops->kv_store(d, block, k, v, err);
}
static size_t packed_bytes; /* of weights, since the test set it */
static sn_status count_pack(sn_device *d, sn_dtype dtype, size_t n, size_t cols, const void *host, void *image,
                            sn_err *err) {
    packed_bytes += n * cols * sizeof(float);
    return cpu_ops->weight_pack(d, dtype, n, cols, host, image, err);
}
static sn_status count_attention_grad(sn_device *d, const sn_attention_grad *grad, sn_err *err) {
    n_rows += grad->n;
    return cpu_ops->attention_grad(d, grad, err);
}

static sn_device *device;
static sn_span *span;
static sn_kv_pool *pool;
static sn_scheduler *scheduler;
static sn_kv_cache *kv;
static float rows[CONTEXT * EMBD];

static void set_up(void) {
    sn_model *model = NULL;
    virtual_clock_begin();
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_ctx = CONTEXT});
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    cpu_ops = device->ops;
    ops = *cpu_ops;
    ops.batch_begin = count_batch;
    ops.kv_store = count_store;
    ops.attention_grad = count_attention_grad;
    ops.weight_pack = count_pack;
    device->ops = &ops;
    REQUIRE(sn_span_load(model, device, 0, BLOCKS, NULL, NULL, &span, &err));
    sn_model_close(&model);
    tiny_model_remove(&path);
    REQUIRE(sn_span_kv_pool(span, 16 << 20, &pool, &err));
    REQUIRE(sn_scheduler_new(span, pool, &scheduler, &err));
    for (int i = 0; i < CONTEXT * EMBD; i++) rows[i] = (float)(i % 97) / 97.0f - 0.5f;
}

static void tear_down(void) {
    sn_scheduler_free(&scheduler);
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&device);
}

TestSuite(scheduler_training, .init = set_up, .fini = tear_down);

static void add_decode_step(int position) {
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_STEP,
                    .session = &kv,
                    .kv = &kv,
                    .end = BLOCKS,
                    .position = position,
                    .n_tokens = 1,
                    .arrived_us = sn_now_us(),
                    .deadline_us = sn_now_us() + 10000000,
                    .step.input = {.name = "rows", .data = rows, .dtype = SN_F32, .rank = 2, .shape = {1, EMBD}}};
    REQUIRE(sn_shared_buffer_new(EMBD * sizeof(float), &job->output, &err));
    sn_scheduler_add(scheduler, job);
}

/* A FORWARD, or BACKWARD, of n sequences for a client. */
static sn_job *add_training(char client, bool backward, int n, int tokens, size_t bytes_max) {
    sn_training_task *task = calloc(1, sizeof *task);
    sn_msg *msg = NULL;
    size_t all = (size_t)(n * tokens);
    void *data;
    REQUIRE(sn_msg_new(backward ? SN_MSG_BACKWARD : SN_MSG_FORWARD, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 3, (uint64_t[]){backward ? 2 : 1, all, EMBD}, &data, &err));
    for (size_t i = 0; i < (backward ? 2 : 1) * all; i++)
        memcpy((float *)data + i * EMBD, rows + i % CONTEXT * EMBD, EMBD * sizeof(float));
    REQUIRE(sn_list_new((size_t)n, SN_SAMPLES_MAX, sizeof *msg->forward.samples, &msg->forward.samples, &err));
    msg->forward.n_samples = (size_t)n;
    for (int i = 0; i < n; i++) msg->forward.samples[i].tokens = (uint64_t)tokens;
    *task = (sn_training_task){.kind = backward ? SN_TRAINING_BACKWARD : SN_TRAINING_FORWARD,
                               .request_msg = msg,
                               .owner = {(uint8_t)client},
                               .end = BLOCKS,
                               .bytes_max = bytes_max,
                               .samples = msg->forward.samples,
                               .n_samples = (size_t)n,
                               .rows = all};
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_TRAIN, .training = task, .end = BLOCKS, .arrived_us = sn_now_us()};
    sn_scheduler_add(scheduler, job);
    return job;
}

typedef struct round_result {
    bool stepped;                     /* a step was in this round */
    int training_batches, row_visits; /* of training: rows times blocks */
    char finished;                    /* the client whose job ended; 0: none */
} round_result;

static round_result run_round(void) {
    cr_assert_lt(++n_rounds, 10000, "the jobs do not end");
    uint64_t passes = sn_scheduler_forward_passes(scheduler);
    round_result r = {0};
    n_batches = n_rows = 0;
    for (sn_job *job = sn_scheduler_run(scheduler, sn_now_us()), *next; job; job = next) {
        next = job->next;
        cr_expect_eq(job->status, SN_OK, "%s", job->err.text);
        if (job->kind == SN_JOB_TRAIN) r.finished = (char)job->training->owner[0];
        sn_job_free(&job);
    }
    r.stepped = sn_scheduler_forward_passes(scheduler) > passes;
    r.training_batches = n_batches - r.stepped;
    r.row_visits = n_rows - r.stepped * BLOCKS;
    return r;
}

/* Two thirds of the time are for steps while they come, and for those that will come soon; a training job alone gets
 * all of it. */
Test(scheduler_training, training_waits_behind_inference) {
    int steps = 0, trained = 0, most = 0;
    add_training('a', true, 3, CONTEXT, SIZE_MAX);
    for (; steps < 200; steps++) {
        add_decode_step(steps);
        round_result r = run_round();
        cr_assert(r.stepped, "step %d was not in the next pass", steps);
        trained += r.training_batches;
        if (r.training_batches > most) most = r.training_batches;
        if (r.training_batches) { /* the session's next step is expected */
            r = run_round();
            cr_expect_eq(r.training_batches, 0, "training runs twice between two steps");
            cr_expect(sn_scheduler_waiting(scheduler), "the device thread does not sleep");
        }
    }
    cr_expect_leq(2 * trained, steps + 2 * most, "%d batches of training beside %d steps", trained, steps);
    cr_expect_geq(trained, steps / 10, "training starves: %d batches beside %d steps", trained, steps);
    sn_sleep_us(2000000);
    for (int i = 0; i < 5; i++) cr_expect(run_round().training_batches, "the device is idle beside a training job");
}

/* Else rows would seem to take longer while others train, and prompts would come in fewer rows at once. */
Test(scheduler_training, training_beside_a_pass_does_not_count_as_its_time) {
    int together = 0;
    virtual_clock_begin_still();
    virtual_clock_advance(1000000); /* beyond the processor's time until here */
    add_training('a', true, 1, CONTEXT, SIZE_MAX);
    for (int i = 0; i < 20; i++) {
        add_decode_step(i);
        round_result r = run_round();
        cr_expect_eq(sn_scheduler_rows(scheduler), 1);
        cr_expect_eq(sn_scheduler_pass_us(scheduler), BATCH_US);
        together += r.training_batches > 0;
    }
    cr_expect_gt(together, 0);
}

Test(scheduler_training, a_piece_is_bounded_as_prompts_are) {
    int decoding = 0, alone = 0;
    char finished = 0;
    for (int backward = 0; backward < 2; backward++) {
        add_training('a', backward, 1, CONTEXT, SIZE_MAX);
        for (int i = 0; i < 100; i++) {
            add_decode_step(100 * backward + i);
            round_result r = run_round();
            if (r.row_visits > decoding) decoding = r.row_visits;
        }
        sn_sleep_us(2000000);
        for (finished = 0; !finished;) {
            round_result r = run_round();
            cr_assert(r.training_batches);
            finished = r.finished;
            if (r.row_visits > alone) alone = r.row_visits;
        }
    }
    cr_expect_gt(decoding, 0);
    cr_expect_leq(decoding, SN_PREFILL_ROWS_CONCURRENT * BLOCKS, "%d rows at once beside a decoding session", decoding);
    cr_expect_leq(alone, 4 * SN_PREFILL_ROWS_CONCURRENT * BLOCKS, "%d rows at once", alone);
}

Test(scheduler_training, pieces_shrink_where_rows_take_long) {
    sn_scheduler_set_throughput(scheduler, 20000, SN_PREFILL_DELAY_US * 1000 / 8); /* 8 rows fit into the delay */
    add_training('a', false, 1, CONTEXT, SIZE_MAX);
    add_decode_step(0);
    cr_expect_leq(run_round().row_visits, 8 * BLOCKS);
}

Test(scheduler_training, one_clients_training_does_not_stop_anothers) {
    for (int i = 0; i < 8; i++) add_training('a', true, 1, CONTEXT, SIZE_MAX);
    add_training('b', true, 2, 8, SIZE_MAX);
    char first = 0;
    int rounds = 0;
    for (; !first && rounds < 100; rounds++) {
        add_decode_step(rounds);
        first = run_round().finished;
    }
    cr_expect_eq(first, 'b', "a short job waited for a long one");
}

/* An adapter of several MiB: a prompt and all matrices of every block. */
static sn_buf adapter_image(void) {
    static const sn_role roles[] = {SN_ROLE_ATTN_Q,   SN_ROLE_ATTN_K, SN_ROLE_ATTN_V,  SN_ROLE_ATTN_O,
                                    SN_ROLE_FFN_GATE, SN_ROLE_FFN_UP, SN_ROLE_FFN_DOWN};
    enum { ROLES = sizeof roles / sizeof *roles, TENSORS = BLOCKS * (1 + 2 * ROLES) };
    static char names[TENSORS][32];
    static float values[1 << 18];
    sn_safetensors_entry entries[TENSORS];
    sn_buf image;
    int n = 0;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) values[i] = (float)(i * 7919 % 1001) / 1001;
    for (int b = 0; b < BLOCKS; b++) {
        snprintf(names[n], sizeof *names, "prompt.%d", b);
        entries[n] = (sn_safetensors_entry){names[n], SN_F32, 2, {CONTEXT, EMBD}, values};
        n++;
        for (int i = 0; i < ROLES; i++) {
            size_t outputs, inputs;
            sn_role_shape(sn_span_hparams(span), roles[i], 0, &outputs, &inputs);
            snprintf(names[n], sizeof *names, "lora_a.%d.%s", b, sn_adapter_target(roles[i]));
            entries[n] = (sn_safetensors_entry){names[n], SN_F32, 2, {SN_LORA_RANK_MAX - 1, inputs}, values + i};
            snprintf(names[n + 1], sizeof *names, "lora_b.%d.%s", b, sn_adapter_target(roles[i]));
            entries[n + 1] =
                (sn_safetensors_entry){names[n + 1], SN_F32, 2, {outputs, SN_LORA_RANK_MAX - 1}, values + 7 * i};
            n += 2;
        }
    }
    sn_buf_init(&image, 64 << 20);
    REQUIRE(sn_safetensors_serialize(entries, (size_t)n, &image, &err));
    return image;
}

static bool matrices_equal(const sn_weight *a, const sn_weight *b) {
    return a->rows == b->rows && a->bytes == b->bytes && !memcmp(a->device, b->device, a->bytes);
}

/* A job that loads this adapter. */
static sn_job *load_job(const sn_buf *image, sn_adapter **adapter) {
    sn_msg *msg = NULL;
    void *data;
    REQUIRE(sn_msg_new(SN_MSG_ADAPTER_PUT, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){image->len / 4}, &data, &err));
    memcpy(data, image->data, image->len);
    sn_hash hash = sn_hash_of(image->data, image->len);
    memcpy(msg->adapter_put.hash, hash.bytes, SN_HASH_SIZE);
    sn_training_task *task = calloc(1, sizeof *task);
    *task = (sn_training_task){.kind = SN_TRAINING_ADAPTER_LOAD,
                               .request_msg = msg,
                               .owner = {'a'},
                               .adapter = adapter,
                               .bytes_max = SIZE_MAX};
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_TRAIN, .training = task, .arrived_us = sn_now_us()};
    return job;
}

/* Hashing and loading take a piece for each 2 MiB. */
Test(scheduler_training, an_adapter_takes_as_many_pieces_as_its_bytes_do) {
    sn_buf image = adapter_image();
    sn_adapter *adapter = NULL;
    sn_trainer *trainer = NULL;
    sn_job *job = load_job(&image, &adapter);
    sn_training_budget budget = {.cost = SIZE_MAX};
    int pieces = 1, least = 2 * (int)((image.len + SN_ADAPTER_PIECE_BYTES - 1) / SN_ADAPTER_PIECE_BYTES);
    REQUIRE(sn_trainer_new(span, &trainer, &err));
    for (; sn_trainer_work(trainer, job, &budget) == SN_TRAINING_CONTINUES; pieces++) continue;
    cr_expect_eq(job->status, SN_OK, "%s", job->err.text);
    cr_assert_gt(least, 4);
    cr_expect(least <= pieces && pieces <= 2 * least, "%d pieces where %d are needed", pieces, least);
    sn_job_free(&job);
    sn_adapter_free(&adapter);
    sn_trainer_free(&trainer);
    sn_buf_fini(&image);
}

/* Steps are computed between the pieces, and the adapter is that which is loaded at once. */
Test(scheduler_training, an_adapter_is_loaded_in_pieces_between_steps) {
    sn_buf image = adapter_image();
    sn_adapter *whole = NULL, *loaded = NULL;
    sn_scheduler_add(scheduler, load_job(&image, &loaded));
    int least = 2 * (int)((image.len + SN_ADAPTER_PIECE_BYTES - 1) / SN_ADAPTER_PIECE_BYTES),
        steps = 0; /* hash, load */
    cr_assert_gt(least, 4);
    for (char finished = 0; !finished; steps++) {
        cr_assert_lt(steps, CONTEXT);
        packed_bytes = 0;
        add_decode_step(steps);
        round_result r = run_round();
        finished = r.finished;
        cr_expect(r.stepped, "a step waited for the adapter");
        cr_expect_leq(packed_bytes, SN_ADAPTER_PIECE_BYTES + 16 * SN_LORA_RANK_MAX * sizeof(float));
    }
    cr_expect_geq(steps, least, "%d steps while the adapter was loaded", steps);
    REQUIRE(sn_adapter_load(span, image.data, image.len, &whole, &err));
    for (int b = 0; b < BLOCKS; b++) {
        const sn_block_adapter *have = sn_adapter_block(loaded, b), *want = sn_adapter_block(whole, b);
        cr_expect(!memcmp(have->prompt, want->prompt, CONTEXT * EMBD * sizeof(float)), "prompt of block %d", b);
        for (int i = 0; i < SN_ROLE_COUNT; i++) {
            if (!sn_adapter_target((sn_role)i)) continue;
            cr_expect(matrices_equal(&have->lora[i].a, &want->lora[i].a), "A %d of block %d", i, b);
            cr_expect(matrices_equal(&have->lora[i].b, &want->lora[i].b), "B %d of block %d", i, b);
        }
    }
    sn_adapter_free(&whole), sn_adapter_free(&loaded);
    sn_buf_fini(&image);
}

/* The work of a client that hung up ends between two pieces, and leaves its memory to others. */
Test(scheduler_training, cancelled_jobs_are_dropped_at_the_next_piece) {
    size_t own = sn_train_bytes(span, CONTEXT) + 1000;
    sn_job *running = add_training('a', true, 3, CONTEXT, own), *waiting = add_training('a', true, 3, CONTEXT, own);
    for (int i = 0; i < 3; i++) cr_assert(run_round().training_batches);
    add_training('b', true, 1, CONTEXT, own);
    atomic_store(&running->cancelled, true);
    atomic_store(&waiting->cancelled, true);
    int dropped = 0;
    n_batches = 0;
    for (sn_job *job = sn_scheduler_run(scheduler, sn_now_us()), *next; job; job = next) {
        next = job->next;
        dropped += job->status == SN_RETRY && job->n_done == 0;
        sn_job_free(&job);
    }
    cr_expect_eq(dropped, 2);
    cr_expect_gt(n_batches, 0, "the memory was not free for the other client");
    while (run_round().finished != 'b') continue;
    cr_expect(sn_scheduler_idle(scheduler));
}

/* Whole outputs of jobs that have begun take no more than the memory for training has, however many clients there are.
 */
Test(scheduler_training, outputs_of_many_clients_are_bounded) {
    enum { CLIENTS = 12, SEQUENCES = 8, TOKENS = 64, OUTPUT = SEQUENCES * TOKENS * EMBD * (int)sizeof(float) };
    size_t most = sn_train_bytes(span, TOKENS) + 1000;
    sn_job *jobs[CLIENTS];
    int largest = 0, finished = 0;
    cr_assert(2 * OUTPUT < most && most < 6 * OUTPUT);
    for (int i = 0; i < CLIENTS; i++) jobs[i] = add_training((char)('a' + i), true, SEQUENCES, TOKENS, most);
    while (finished < CLIENTS) {
        round_result r = run_round();
        if (r.finished) jobs[r.finished - 'a'] = NULL;
        finished += r.finished != 0;
        int begun = 0;
        for (int i = 0; i < CLIENTS; i++) begun += jobs[i] && jobs[i]->output;
        if (begun > largest) largest = begun;
    }
    cr_expect_leq((size_t)largest * OUTPUT, most, "%d jobs have begun", largest);
    cr_expect_gt(largest, 1);
    cr_expect(sn_scheduler_idle(scheduler));
}

/* Nor for another large one, which waits itself. */
Test(scheduler_training, a_small_job_does_not_wait_for_the_whole_of_a_large_one) {
    enum { SEQUENCES = 128, TOKENS = 64 };
    size_t most = sn_train_bytes(span, TOKENS) + sn_train_bytes(span, 8) + 1000;
    cr_assert(SEQUENCES * TOKENS * EMBD * sizeof(float) > most && 8 * EMBD * sizeof(float) < most / 8);
    sn_job *large[2] = {add_training('a', false, SEQUENCES, TOKENS, most)};
    run_round();
    large[1] = add_training('c', false, SEQUENCES, TOKENS, most);
    run_round();
    add_training('b', true, 1, 8, most);
    char first = 0;
    while (!first) first = run_round().finished;
    cr_assert_eq(first, 'b');
    cr_expect_lt(large[0]->n_done, SEQUENCES / 4);
    cr_expect_null(large[1]->output);
}

/* With memory for one sequence the next one waits, and gets the memory before the client that has it gets it again. */
Test(scheduler_training, a_job_without_memory_waits_for_one_sequence) {
    size_t own = sn_train_bytes(span, CONTEXT);
    sn_job *a = add_training('a', true, 3, CONTEXT, own + 1000);
    for (int i = 0; i < 3; i++) run_round();
    cr_assert_eq(a->n_done, 0);
    add_training('b', true, 1, CONTEXT / 2, own + 1000);
    char first = 0;
    while (!first) first = run_round().finished;
    cr_expect_eq(first, 'b');
    cr_expect_eq(a->n_done, 1);
    while (run_round().finished != 'a') continue;
    cr_expect(sn_scheduler_idle(scheduler));
}
