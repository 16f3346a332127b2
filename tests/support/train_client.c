#include "tests/support/train_client.h"

#include "base/clock.h"
#include "model/safetensors.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PROMPT = 3, RANK = 2 };
const uint64_t train_lengths[TRAIN_SAMPLES] = {17, 1, 22};

sn_buf train_image(const testbed *w, float scale) {
    static float values[4096];
    size_t embd = (size_t)w->n_embd;
    sn_buf image;
    for (size_t i = 0; i < 4096; i++) values[i] = scale * (float)((i * 7919) % 1001) / 1001;
    const sn_safetensors_entry entries[] = {{"prompt.1", SN_F32, 2, {PROMPT, embd}, values},
                                            {"lora_a.2.q", SN_F32, 2, {RANK, embd}, values + 700},
                                            {"lora_b.2.q", SN_F32, 2, {embd, RANK}, values + 1400}};
    sn_buf_init(&image, 1 << 20);
    REQUIRE(sn_safetensors_serialize(entries, 3, &image, &err));
    return image;
}

sn_msg *adapter_put_message(const testbed *w, const sn_buf *image) {
    sn_msg *msg = NULL;
    void *data;
    REQUIRE(sn_msg_new(SN_MSG_ADAPTER_PUT, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){image->len / 4}, &data, &err));
    memcpy(data, image->data, image->len);
    msg->adapter_put.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->adapter_put.model, w->model.bytes, SN_HASH_SIZE);
    sn_hash hash = sn_hash_of(image->data, image->len);
    memcpy(msg->adapter_put.hash, hash.bytes, SN_HASH_SIZE);
    return msg;
}

sn_msg *batch_message(const testbed *w, sn_msg_kind kind, int first, int end, const sn_buf *image) {
    sn_msg *msg = NULL;
    void *data;
    bool backward = kind == SN_MSG_BACKWARD;
    size_t bytes = (size_t)TRAIN_ROWS * (size_t)w->n_embd * sizeof(float);
    REQUIRE(sn_msg_new(kind, 0, &msg, &err));
    const uint64_t shape[] = {2, TRAIN_ROWS, (uint64_t)w->n_embd};
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, backward ? 3 : 2, backward ? shape : shape + 1, &data, &err));
    memcpy(data, w->inputs, bytes);
    if (backward) memcpy((char *)data + bytes, w->hidden, bytes);
    sn_msg_forward *f = &msg->forward;
    f->protocol = SN_PROTOCOL_VERSION;
    memcpy(f->model, w->model.bytes, SN_HASH_SIZE);
    f->first_block = (uint64_t)first;
    f->end_block = (uint64_t)end;
    sn_hash hash = image ? sn_hash_of(image->data, image->len) : (sn_hash){0};
    memcpy(f->adapter, hash.bytes, SN_HASH_SIZE);
    REQUIRE(sn_list_new(TRAIN_SAMPLES, SN_SAMPLES_MAX, sizeof *f->samples, &f->samples, &err));
    f->n_samples = TRAIN_SAMPLES;
    f->save_activations = 1;
    for (int i = 0; i < TRAIN_SAMPLES; i++) f->samples[i].tokens = train_lengths[i];
    return msg;
}

void put_adapter(node_client *t, const testbed *w, const sn_buf *image) {
    sn_msg *msg = adapter_put_message(w, image), *answer = node_client_request(t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_ADAPTER_PUT_REPLY, "%s", answer->error.text);
    cr_expect_eq(answer->adapter_put_reply.bytes >= image->len, 1);
    sn_msg_free(&answer);
}

sn_buf train_image_above(const testbed *w, size_t bytes) {
    size_t rows = bytes / ((size_t)w->n_embd * sizeof(float)) + 1;
    float *values = calloc(rows * (size_t)w->n_embd, sizeof *values);
    const sn_safetensors_entry entry = {"prompt.1", SN_F32, 2, {rows, (size_t)w->n_embd}, values};
    sn_buf image;
    sn_buf_init(&image, 1 << 24);
    REQUIRE(sn_safetensors_serialize(&entry, 1, &image, &err));
    free(values);
    return image;
}

void expect_refused(node_client *t, sn_msg **msg, const char *part) {
    cr_expect(is_refusal(node_client_request(t, msg), SN_REFUSED, part), "%s", part);
}

uint64_t put_adapter_in_place_of_another(node_client *t, const testbed *w, const sn_buf *image) {
    for (int tries = 0; tries < 1000; tries++) {
        sn_msg *msg = adapter_put_message(w, image), *answer = node_client_request(t, &msg);
        bool taken = answer->kind == SN_MSG_ADAPTER_PUT_REPLY;
        uint64_t bytes = taken ? answer->adapter_put_reply.bytes : 0;
        cr_assert(taken || answer->error.status == SN_RETRY, "%s", answer->error.text);
        sn_msg_free(&answer);
        if (taken) return bytes;
        sn_sleep_us(1000); /* the node is unloading the other one */
    }
    cr_assert_fail("the adapter was never taken");
    return 0;
}
