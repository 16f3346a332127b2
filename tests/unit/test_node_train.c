/* Training through a node, by hand: what it answers is what the blocks compute here, and what it refuses. */
#include "blocks/train.h"
#include "model/safetensors.h"
#include "node/training.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PROMPT = 3, RANK = 2, SAMPLES = 3, ROWS = 40 };
static const uint64_t lengths[SAMPLES] = {17, 1, 22};
static const cluster_options TRAINING = {.tune_memory = 64 << 20};

/* A tuning of blocks 1 and 2: a deep prompt and an adapter. */
static sn_buf image_of(const world *w, float scale) {
    static float values[4096];
    size_t embd = (size_t)w->n_embd;
    sn_buf image;
    for (size_t i = 0; i < 4096; i++) values[i] = scale * (float)((i * 7919) % 1001) / 1001;
    const sn_safetensors_entry entries[] = {{"prompt.1", SN_F32, 2, {PROMPT, embd}, values},
                                            {"lora_a.2.q", SN_F32, 2, {RANK, embd}, values + 700},
                                            {"lora_b.2.q", SN_F32, 2, {embd, RANK}, values + 1400}};
    sn_buf_init(&image, 1 << 20);
    NEED(sn_safetensors_image(entries, 3, &image, &err));
    return image;
}

static sn_msg *tune_message(const world *w, const sn_buf *image) {
    sn_msg *msg = NULL;
    void *data;
    NEED(sn_msg_new(SN_MSG_TUNE, 0, &msg, &err));
    NEED(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){image->len / 4}, &data, &err));
    memcpy(data, image->data, image->len);
    msg->tune.protocol = SN_PROTOCOL;
    memcpy(msg->tune.model, w->model.bytes, SN_HASH_SIZE);
    sn_hash hash = sn_hash_of(image->data, image->len);
    memcpy(msg->tune.hash, hash.bytes, SN_HASH_SIZE);
    return msg;
}

/* FORWARD, or BACKWARD with the world's hidden states as gradients. Their fields are the same. */
static sn_msg *batch_message(const world *w, sn_msg_kind kind, int first, int end, const sn_buf *image) {
    sn_msg *msg = NULL;
    void *data;
    bool back = kind == SN_MSG_BACKWARD;
    size_t bytes = (size_t)ROWS * (size_t)w->n_embd * sizeof(float);
    NEED(sn_msg_new(kind, 0, &msg, &err));
    const uint64_t shape[] = {2, ROWS, (uint64_t)w->n_embd};
    NEED(sn_msg_new_tensor(msg, SN_F32, back ? 3 : 2, back ? shape : shape + 1, &data, &err));
    memcpy(data, w->inputs, bytes);
    if (back) memcpy((char *)data + bytes, w->hidden, bytes);
    sn_msg_forward *f = &msg->forward;
    f->protocol = SN_PROTOCOL;
    memcpy(f->model, w->model.bytes, SN_HASH_SIZE);
    f->first_block = (uint64_t)first;
    f->end_block = (uint64_t)end;
    sn_hash hash = image ? sn_hash_of(image->data, image->len) : (sn_hash){0};
    memcpy(f->tuning, hash.bytes, SN_HASH_SIZE);
    NEED(sn_list_new(SAMPLES, SN_SAMPLES_MAX, sizeof *f->samples, &f->samples, &err));
    f->n_samples = SAMPLES;
    f->keep = 1;
    for (int i = 0; i < SAMPLES; i++) f->samples[i].tokens = lengths[i];
    return msg;
}

/* What the answer must be: computed here, with two threads and sequence by sequence. The caller frees. */
static float *compute(const world *w, bool back, int first, int end, const sn_buf *image, size_t *n) {
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_train *train = NULL;
    sn_tuning *tuning = NULL;
    size_t width = (size_t)w->n_embd, row = 0, floats = 0;
    NEED(sn_model_open(w->path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 2}, &device, &err));
    NEED(sn_span_load(model, device, first, end, NULL, NULL, &span, &err));
    NEED(sn_train_new(span, 30, &train, &err));
    if (image) NEED(sn_tuning_load(span, image->data, image->len, &tuning, &err));
    if (image && back) floats = sn_tuning_floats(tuning, first, end);
    *n = ROWS * width + SAMPLES * floats;
    float *out = calloc(*n, sizeof *out);
    for (int i = 0; i < SAMPLES; row += lengths[i++]) {
        sn_tensor x = {.name = "x", .data = w->inputs + row * width, .rank = 2, .shape = {(int64_t)lengths[i], w->n_embd}};
        sn_tensor dout = x;
        dout.data = w->hidden + row * width;
        if (back)
            NEED(sn_train_backward(train, first, end, tuning, &x, NULL, &dout, out + row * width,
                                   out + ROWS * width + (size_t)i * floats, &err));
        else NEED(sn_train_forward(train, first, end, tuning, &x, out + row * width, 0, NULL, &err));
    }
    sn_tuning_free(&tuning);
    sn_train_free(&train);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    return out;
}

static void expect_answer(talk *t, const world *w, bool back, int first, int end, const sn_buf *image) {
    size_t n;
    float *want = compute(w, back, first, end, image, &n);
    sn_msg *msg = batch_message(w, back ? SN_MSG_BACKWARD : SN_MSG_FORWARD, first, end, image), *answer = talk_ask(t, &msg);
    cr_assert_eq(answer->kind, back ? SN_MSG_GRADIENTS : SN_MSG_FORWARDED, "%s", answer->error.text);
    cr_expect_eq(answer->tensor.bytes, n * sizeof *want);
    cr_expect(!memcmp(answer->tensor.data, want, n * sizeof *want), "blocks %d:%d, back %d, tuned %d", first, end, back, image != NULL);
    sn_msg_free(&answer);
    free(want);
}

static void tune(talk *t, const world *w, const sn_buf *image) {
    sn_msg *msg = tune_message(w, image), *answer = talk_ask(t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_TUNED, "%s", answer->error.text);
    cr_expect_eq(answer->tuned.bytes >= image->len, 1);
    sn_msg_free(&answer);
}

Test(node_train, batches_go_forwards_and_backwards_with_and_without_a_tuning) {
    world *w = world_new(&TRAINING);
    cluster_add(w->cluster, 0, 3);
    talk *t = talk_new(w, 0);
    sn_buf image = image_of(w, 0.3f);
    for (int back = 0; back < 2; back++) {
        expect_answer(t, w, back, 0, 3, NULL);
        expect_answer(t, w, back, 1, 2, NULL);
    }
    sn_msg *msg = batch_message(w, SN_MSG_FORWARD, 0, 3, &image);
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REBUILD, "send it first"));
    tune(t, w, &image);
    tune(t, w, &image); /* again is harmless */
    for (int back = 0; back < 2; back++) {
        expect_answer(t, w, back, 0, 3, &image);
        expect_answer(t, w, back, 2, 3, &image);
    }
    sn_buf_fini(&image);
    talk_free(&t);
    world_free(&w);
}

/* -- what is kept, driven with the time of the jobs' arrival */

/* One FORWARD, or its BACKWARD, of sequence `number` at a time, within so many bytes. The answer's floats: the caller frees. */
static float *work_at(sn_trainer *trainer, const world *w, bool back, int number, int64_t at_us, size_t bytes_max) {
    sn_msg *msg = batch_message(w, back ? SN_MSG_BACKWARD : SN_MSG_FORWARD, 0, w->n_blocks, NULL);
    float *x = (float *)(uintptr_t)msg->tensor.data;
    for (size_t i = 0, row = 0; i < SAMPLES; row += lengths[i++]) x[row * (size_t)w->n_embd] = (float)number;
    sn_training *work = calloc(1, sizeof *work);
    *work = (sn_training){.kind = back ? SN_TRAIN_BACKWARD : SN_TRAIN_FORWARD,
                          .asked = msg,
                          .end = w->n_blocks,
                          .bytes_max = bytes_max,
                          .samples = msg->forward.samples,
                          .n_samples = SAMPLES,
                          .rows = ROWS};
    sn_job *job = calloc(1, sizeof *job);
    *job = (sn_job){.kind = SN_JOB_TRAIN, .training = work, .arrived_us = at_us};
    while (!sn_trainer_work(trainer, job)) continue;
    cr_assert_eq(job->status, SN_OK, "%s", job->err.text);
    float *out = malloc((size_t)ROWS * (size_t)w->n_embd * sizeof *out);
    memcpy(out, sn_shared_data(job->output), (size_t)ROWS * (size_t)w->n_embd * sizeof *out);
    sn_job_free(&job);
    return out;
}

Test(node_train, what_is_kept_goes_with_its_way_back_after_a_minute_or_for_others_sake) {
    const int64_t second = 1000000;
    world *w = world_new(&TRAINING);
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_trainer *trainer = NULL;
    NEED(sn_model_open(w->path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    NEED(sn_span_load(model, device, 0, w->n_blocks, NULL, NULL, &span, &err));
    NEED(sn_trainer_new(span, &trainer, &err));
    size_t rows = 0, all = 0, own = sn_train_bytes(span, 22), bytes = (size_t)ROWS * (size_t)w->n_embd * sizeof(float);
    for (int i = 0; i < SAMPLES; i++) {
        rows += sn_kept_bytes(span, 0, w->n_blocks, (int)lengths[i], false);
        all += sn_kept_bytes(span, 0, w->n_blocks, (int)lengths[i], true);
    }
    float *plain = work_at(trainer, w, true, 1, 0, SIZE_MAX); /* nothing was kept for it */
    cr_expect_eq(sn_trainer_kept_bytes(trainer), 0);
    free(work_at(trainer, w, false, 1, 0, SIZE_MAX));
    cr_expect_eq(sn_trainer_kept_bytes(trainer), all);
    free(work_at(trainer, w, false, 2, 50 * second, SIZE_MAX));
    cr_expect_eq(sn_trainer_kept_bytes(trainer), 2 * all);
    free(work_at(trainer, w, false, 3, 61 * second, SIZE_MAX)); /* the first has waited for more than a minute */
    cr_expect_eq(sn_trainer_kept_bytes(trainer), 2 * all);
    float *late = work_at(trainer, w, true, 1, 61 * second, SIZE_MAX);
    cr_expect_eq(sn_trainer_kept_bytes(trainer), 2 * all, "the first was still there");
    free(work_at(trainer, w, true, 3, 62 * second, SIZE_MAX));
    cr_expect_eq(sn_trainer_kept_bytes(trainer), all);
    /* Room for what enters the blocks alone: insides go for it. */
    free(work_at(trainer, w, false, 1, 62 * second, own + all + rows / 2));
    cr_expect_leq(sn_trainer_kept_bytes(trainer), all + rows / 2);
    cr_expect_gt(sn_trainer_kept_bytes(trainer), 2 * rows - 1, "only insides go");
    float *again = work_at(trainer, w, true, 1, 63 * second, SIZE_MAX);
    cr_expect(!memcmp(plain, late, bytes) && !memcmp(plain, again, bytes), "what was kept shows in the gradients");
    free(plain), free(late), free(again);
    sn_trainer_free(&trainer);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    world_free(&w);
}

Test(node_train, sessions_go_on_with_the_same_bits_while_others_train) {
    world *w = world_new(&TRAINING);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0), *trainer = talk_new(w, 0);
    past p;
    past_init(&p, w, t, 0, 4);
    past_open(&p);
    uint64_t asked[6];
    for (int i = 0; i < 6; i++) {
        sn_msg *msg = batch_message(w, SN_MSG_BACKWARD, 0, 4, NULL);
        asked[i] = talk_send(trainer, &msg);
    }
    for (int at = 0; at < 60; at += 3) cr_expect(past_goes_on(&p, at, 3), "at %d", at);
    for (int i = 0; i < 6; i++) {
        sn_msg *answer = talk_hear(trainer, asked[i], WORLD_WAIT_MS);
        cr_assert(answer && answer->kind == SN_MSG_GRADIENTS);
        sn_msg_free(&answer);
    }
    past_close(&p);
    talk_free(&t);
    talk_free(&trainer);
    world_free(&w);
}

Test(node_train, tunings_that_nobody_uses_make_room_for_new_ones) {
    cluster_options options = {.tune_memory = 200 << 10}; /* half of it: not two of these */
    world *w = world_new(&options);
    cluster_add(w->cluster, 0, 4);
    talk *t = talk_new(w, 0);
    sn_msg *answer = NULL;
    static float values[20000];
    for (int i = 0; i < 6; i++) {
        sn_buf image;
        values[0] = (float)i;
        const sn_safetensors_entry entry = {"prompt.1", SN_F32, 2, {256, (size_t)w->n_embd}, values};
        sn_buf_init(&image, 1 << 20);
        NEED(sn_safetensors_image(&entry, 1, &image, &err));
        for (int tries = 0; tries < 100; tries++) { /* the old one is forgotten first: asked again, there is room */
            sn_msg *msg = tune_message(w, &image);
            answer = talk_ask(t, &msg);
            if (answer->kind == SN_MSG_TUNED) break;
            cr_assert_eq(answer->kind, SN_MSG_ERROR);
            cr_assert_eq(answer->error.status, SN_RETRY, "%s", answer->error.text);
            sn_msg_free(&answer);
        }
        cr_assert(answer && answer->kind == SN_MSG_TUNED, "tuning %d was never taken", i);
        sn_msg_free(&answer);
        sn_buf_fini(&image);
    }
    talk_free(&t);
    world_free(&w);
}

/* A deep prompt of more than so many bytes. */
static sn_buf image_above(const world *w, size_t bytes) {
    size_t rows = bytes / ((size_t)w->n_embd * sizeof(float)) + 1;
    float *values = calloc(rows * (size_t)w->n_embd, sizeof *values);
    const sn_safetensors_entry entry = {"prompt.1", SN_F32, 2, {rows, (size_t)w->n_embd}, values};
    sn_buf image;
    sn_buf_init(&image, 1 << 24);
    NEED(sn_safetensors_image(&entry, 1, &image, &err));
    free(values);
    return image;
}

static size_t bytes_to_train(const world *w, int tokens) {
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    NEED(sn_model_open(w->path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    NEED(sn_span_load(model, device, 0, w->n_blocks, NULL, NULL, &span, &err));
    size_t bytes = sn_train_bytes(span, tokens);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    return bytes;
}

Test(node_train, batches_get_what_tunings_leave) {
    cluster_options options = {.tune_memory = 1};
    world *w = world_new(&options);
    size_t own = bytes_to_train(w, 22);
    world_free(&w);
    options.tune_memory = own + own / 4; /* half of it would be too little */
    w = world_new(&options);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0), *other = talk_new(w, 0);
    sn_buf image = image_above(w, own / 4), large = image_above(w, options.tune_memory / 2);
    expect_answer(t, w, true, 0, 4, NULL);
    sn_msg *msg = tune_message(w, &large);
    cr_expect(is_refusal(talk_ask(other, &msg), SN_REFUSED, "more than half"));
    tune(other, w, &image);
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL);
    cr_expect(is_refusal(talk_ask(t, &msg), SN_RETRY, "others' tunings"), "there is room for both");
    bool taken = false; /* for its sake the tuning, which nobody uses, is forgotten */
    for (int tries = 0; tries < 100 && !taken; tries++) {
        msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL);
        sn_msg *answer = talk_ask(t, &msg);
        taken = answer->kind == SN_MSG_FORWARDED;
        cr_assert(taken || answer->error.status == SN_RETRY, "%s", answer->error.text);
        sn_msg_free(&answer);
    }
    cr_expect(taken);
    expect_answer(t, w, true, 0, 4, NULL);
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, &image);
    cr_expect(is_refusal(talk_ask(other, &msg), SN_REBUILD, "send it first"));
    tune(other, w, &image);
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, &image);
    cr_expect(is_refusal(talk_ask(other, &msg), SN_REFUSED, "use shorter ones"), "its own tuning and its batch are more than there is");
    sn_buf_fini(&image), sn_buf_fini(&large);
    talk_free(&t), talk_free(&other);
    world_free(&w);
}

/* The same of what is kept for the way back: a tuning that comes takes its room, and it is computed again. */
Test(node_train, what_is_kept_goes_for_a_tuning) {
    world *w = world_new(&TRAINING);
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_trainer *trainer = NULL;
    sn_tuning *tuning = NULL;
    NEED(sn_model_open(w->path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    NEED(sn_span_load(model, device, 0, w->n_blocks, NULL, NULL, &span, &err));
    NEED(sn_trainer_new(span, &trainer, &err));
    size_t own = sn_train_bytes(span, 22), bytes = (size_t)ROWS * (size_t)w->n_embd * sizeof(float), all = 0;
    for (int i = 0; i < SAMPLES; i++) all += sn_kept_bytes(span, 0, w->n_blocks, (int)lengths[i], true);
    float *plain = work_at(trainer, w, true, 1, 0, own + all);
    free(work_at(trainer, w, false, 1, 0, own + all));
    cr_assert_eq(sn_trainer_kept_bytes(trainer), all);
    sn_buf image = image_above(w, all / 3);
    for (int kind = SN_TRAIN_LOAD; kind <= SN_TRAIN_UNLOAD; kind++) {
        sn_training *work = calloc(1, sizeof *work);
        *work = (sn_training){.kind = (sn_training_kind)kind, .tuning = &tuning, .bytes_max = own + all,
                              .asked = kind == SN_TRAIN_LOAD ? tune_message(w, &image) : NULL};
        sn_job *job = calloc(1, sizeof *job);
        *job = (sn_job){.kind = SN_JOB_TRAIN, .training = work};
        cr_assert(sn_trainer_work(trainer, job));
        cr_assert_eq(job->status, SN_OK, "%s", job->err.text);
        sn_job_free(&job);
        if (kind == SN_TRAIN_UNLOAD) break;
        cr_expect_leq(sn_trainer_kept_bytes(trainer) + sn_tuning_bytes(tuning), all);
        float *again = work_at(trainer, w, true, 1, 0, own + all);
        cr_expect(!memcmp(plain, again, bytes), "what was kept shows in the gradients");
        free(again);
        free(work_at(trainer, w, false, 2, 0, own + all));
        cr_expect_leq(sn_trainer_kept_bytes(trainer) + sn_tuning_bytes(tuning), all);
    }
    free(work_at(trainer, w, true, 2, 0, own + all));
    free(work_at(trainer, w, false, 2, 0, own + all));
    cr_expect_eq(sn_trainer_kept_bytes(trainer), all, "when it is gone there is all the room again");
    free(plain);
    sn_buf_fini(&image);
    sn_trainer_free(&trainer);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    world_free(&w);
}

static void refuses(talk *t, sn_msg **msg, const char *part) { cr_expect(is_refusal(talk_ask(t, msg), SN_REFUSED, part), "%s", part); }

Test(node_train, what_makes_no_sense_is_refused) {
    world *w = world_new(&TRAINING);
    cluster_add(w->cluster, 1, 3);
    talk *t = talk_new(w, 0);
    sn_buf image = image_of(w, 1);
    for (int back = 0; back < 2; back++) {
        sn_msg_kind kind = back ? SN_MSG_BACKWARD : SN_MSG_FORWARD;
        sn_msg *msg = batch_message(w, kind, 0, 3, NULL);
        refuses(t, &msg, "not here");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.protocol++;
        refuses(t, &msg, "protocol");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.model[0] ^= 1;
        refuses(t, &msg, "another model");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.samples[0].tokens++;
        refuses(t, &msg, "a batch of 41 tokens");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.samples[1].tokens = 0;
        refuses(t, &msg, "1 to");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.samples[1].tokens = UINT64_MAX - 5;
        refuses(t, &msg, "1 to");
        msg = batch_message(w, kind, 1, 3, NULL);
        msg->forward.n_samples = 0;
        refuses(t, &msg, "1 to");
    }
    sn_msg *msg = tune_message(w, &image);
    msg->tune.hash[3] ^= 1;
    refuses(t, &msg, "damaged");
    sn_buf rubbish;
    sn_buf_init(&rubbish, 1 << 10);
    NEED(sn_buf_append(&rubbish, "this is not a file of tensors...", 32, &err));
    msg = tune_message(w, &rubbish);
    refuses(t, &msg, "what was trained");
    talk_status(t); /* and it lives */
    sn_buf_fini(&rubbish);
    sn_buf_fini(&image);
    talk_free(&t);
    world_free(&w);
}

Test(node_train, a_node_that_gives_no_memory_to_it_says_so) {
    world *w = world_new(&(cluster_options){0});
    cluster_add(w->cluster, 0, 4);
    talk *t = talk_new(w, 0);
    sn_msg *msg = batch_message(w, SN_MSG_FORWARD, 0, 4, NULL);
    refuses(t, &msg, "--tune-memory 0");
    talk_free(&t);
    world_free(&w);
}
