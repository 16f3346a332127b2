/* Adapters that clients send to a node: what they may take of its memory, its places and its queue. */
#include "model/safetensors.h"
#include "node/protocol/adapter_table.h"
#include "node/protocol/protocol.h"
#include "tests/support/protocol_fixture.h"
#include "tests/support/require.h"
#include "tests/support/train_client.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options TRAINING = {.tune_memory = 64 << 20};

Test(node_train_adapters, unused_adapters_are_evicted_for_new_ones) {
    cluster_options options = {.tune_memory = 200 << 10}; /* half of it: less than two adapters */
    testbed *w = testbed_new(&options);
    cluster_add(w->cluster, 0, 4);
    node_client *t = node_client_new(w, 0);
    static float values[20000];
    for (int i = 0; i < 6; i++) {
        sn_buf image;
        values[0] = (float)i;
        const sn_safetensors_entry entry = {"prompt.1", SN_F32, 2, {256, (size_t)w->n_embd}, values};
        sn_buf_init(&image, 1 << 20);
        REQUIRE(sn_safetensors_serialize(&entry, 1, &image, &err));
        put_adapter_in_place_of_another(t, w, &image);
        sn_buf_fini(&image);
    }
    node_client_free(&t);
    testbed_free(&w);
}

/* LoRA matrices of rank 1 in all blocks: on a CPU 16 rows of A take as much as one. *bytes: what they take there. */
static sn_buf image_of_rank_one(const testbed *w, size_t *bytes) {
    static const float values[1024] = {0.5f};
    static char names[256][24];
    sn_safetensors_entry entries[256];
    const size_t embd = (size_t)w->n_embd;
    size_t n = 0;
    sn_buf image;
    for (int b = 0; b < w->n_blocks; b++) {
        snprintf(names[n], sizeof names[n], "lora_a.%d.q", b);
        entries[n] = (sn_safetensors_entry){names[n], SN_F32, 2, {1, embd}, values};
        snprintf(names[++n], sizeof names[n], "lora_b.%d.q", b);
        entries[n] = (sn_safetensors_entry){names[n], SN_F32, 2, {embd, 1}, values};
        n++;
    }
    *bytes = (size_t)w->n_blocks * (16 + 1) * embd * sizeof(float);
    sn_buf_init(&image, 1 << 20);
    REQUIRE(sn_safetensors_serialize(entries, n, &image, &err));
    return image;
}

Test(node_train_adapters, adapters_take_no_more_than_their_memory_whatever_their_images_take) {
    cluster_options options = {.tune_memory = 1};
    size_t taken;
    testbed *w = testbed_new(&options);
    sn_buf image = image_of_rank_one(w, &taken);
    testbed_free(&w);
    cr_assert_lt(2 * image.len, taken - 1, "the image alone shall not be too large");
    options.tune_memory = taken - 1;
    w = testbed_new(&options);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    sn_buf small = train_image_above(w, (size_t)w->n_embd * sizeof(float));
    for (int i = 0; i < 3; i++) { /* what it took is free again */
        sn_msg *msg = adapter_put_message(w, &image);
        cr_expect(is_refusal(node_client_request(t, &msg), SN_REFUSED, "on this node's devices"));
    }
    put_adapter(t, w, &small);
    node_client_free(&t);
    testbed_free(&w);
    /* Beside another one: that makes room, and the next try succeeds. */
    options.tune_memory = taken + 1;
    w = testbed_new(&options);
    cluster_add(w->cluster, 0, 0);
    t = node_client_new(w, 0);
    put_adapter(t, w, &small);
    sn_msg *msg = adapter_put_message(w, &image);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_RETRY, "others' adapters"));
    cr_expect_eq(put_adapter_in_place_of_another(t, w, &image), taken);
    sn_buf_fini(&image), sn_buf_fini(&small);
    node_client_free(&t);
    testbed_free(&w);
}

Test(node_train_adapters, an_adapter_whose_bytes_do_not_have_its_hash_is_refused) {
    testbed *w = testbed_new(&TRAINING);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    sn_buf image = train_image(w, 1);
    sn_msg *msg = adapter_put_message(w, &image);
    ((uint8_t *)(uintptr_t)msg->tensor.data)[msg->tensor.bytes - 1] ^= 1;
    expect_refused(t, &msg, "damaged in transit");
    msg = batch_message(w, SN_MSG_FORWARD, 0, 4, &image);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "send it first"));
    put_adapter(t, w, &image);
    sn_buf_fini(&image);
    node_client_free(&t);
    testbed_free(&w);
}

/* Two entries with one hash would both take memory, and one of them would never be found. */
Test(node_train_adapters, an_adapter_that_is_sent_again_while_it_loads_is_loaded_once) {
    protocol_fixture b;
    protocol_fixture_begin(&b);
    sn_buf image = train_image(b.w, 1);
    sn_msg *first = adapter_put_message(b.w, &image), *again = adapter_put_message(b.w, &image);
    uint64_t asked = node_client_send(&b.client, &first), asked_again = node_client_send(&b.client, &again);
    protocol_fixture_read(&b, T0);
    cr_expect_eq(b.n_waiting, 1);
    cr_expect(is_refusal(node_client_receive(&b.client, asked_again, 100), SN_RETRY, "is being loaded"));
    protocol_fixture_run_jobs(&b, T0);
    sn_msg *answer = node_client_receive(&b.client, asked, 100);
    cr_assert(answer && answer->kind == SN_MSG_ADAPTER_PUT_REPLY, "%s", answer ? answer->error.text : "no answer");
    sn_msg_free(&answer);
    answer = protocol_fixture_request(&b, adapter_put_message(b.w, &image), T0);
    cr_expect(answer && answer->kind == SN_MSG_ADAPTER_PUT_REPLY, "it is there now");
    sn_msg_free(&answer);
    sn_buf_fini(&image);
    protocol_fixture_end(&b);
}

/* Its blocks change or end: a client that is told so takes another node at once. */
Test(node_train_adapters, a_node_that_leaves_or_loads_takes_neither_adapters_nor_batches) {
    for (int loads = 0; loads < 2; loads++) {
        protocol_fixture b;
        protocol_fixture_begin(&b);
        sn_buf image = train_image(b.w, 1);
        if (loads)
            sn_protocol_vacate(b.protocol, T0, b.unix_ms);
        else
            sn_protocol_drain(b.protocol, b.unix_ms);
        sn_msg *asked[] = {adapter_put_message(b.w, &image), batch_message(b.w, SN_MSG_FORWARD, 0, 4, NULL),
                           batch_message(b.w, SN_MSG_BACKWARD, 0, 4, NULL)};
        for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
            sn_msg *answer = protocol_fixture_request(&b, asked[i], T0);
            cr_expect(is_refusal(answer, SN_RETRY, loads ? "still loading its blocks" : "is leaving"), "%zu", i);
        }
        sn_buf_fini(&image);
        protocol_fixture_end(&b);
    }
}

/* They would take the node's places for adapters as long as the batches take. */
Test(node_train_adapters, adapters_do_not_wait_behind_their_clients_batches) {
    enum { BATCHES = 4, TOKENS = 512 };
    virtual_clock_begin();
    testbed *w = testbed_new(&TRAINING);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    sn_buf image = train_image(w, 1);
    sn_msg *put = adapter_put_message(w, &image), *answer;
    for (int i = 0; i < BATCHES; i++) {
        sn_msg *msg = batch_message(w, SN_MSG_BACKWARD, 0, 4, NULL);
        void *data;
        const uint64_t shape[] = {2, TOKENS, (uint64_t)w->n_embd};
        REQUIRE(sn_msg_new_tensor(msg, SN_F32, 3, shape, &data, &err));
        for (int k = 0; k < 2 * TOKENS * w->n_embd; k++) ((float *)data)[k] = (float)(k % 101) / 101;
        msg->backward.n_samples = 1;
        msg->backward.samples[0].tokens = TOKENS;
        node_client_send(t, &msg);
    }
    node_client_send(t, &put);
    int done = 0;
    while ((answer = node_client_receive(t, 0, TESTBED_WAIT_MS)) && answer->kind == SN_MSG_BACKWARD_REPLY) {
        done++;
        sn_msg_free(&answer);
    }
    cr_assert(answer && answer->kind == SN_MSG_ADAPTER_PUT_REPLY, "%s", answer ? answer->error.text : "no answer");
    cr_expect_leq(done, 1, "the adapter waited for %d batches", done);
    sn_msg_free(&answer);
    sn_buf_fini(&image);
    node_client_free(&t);
    testbed_free(&w);
}

/* As many as there are entries, none of which has the bytes of its hash; they wait behind the stranger's batches. */
Test(node_train_adapters, adapters_of_a_stranger_leave_a_place_for_each_session) {
    enum { BATCHES = 8, ROUNDS = 20 };
    cluster_options options = TRAINING;
    options.sessions_max = 1;
    testbed *w = testbed_new(&options);
    cluster_add(w->cluster, 0, 0);
    node_client *honest = node_client_new(w, 0), *stranger = node_client_new(w, 0);
    node_session session;
    node_session_init(&session, w, honest, 0, w->n_blocks);
    node_session_open(&session);
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < BATCHES + SN_ADAPTER_ENTRIES_MAX; k++) {
            sn_buf image = {.data = (uint8_t *)(int[]){i, k}, .len = 2 * sizeof(int)};
            sn_msg *msg =
                k < BATCHES ? batch_message(w, SN_MSG_BACKWARD, 0, w->n_blocks, NULL) : adapter_put_message(w, &image);
            if (k >= BATCHES) msg->adapter_put.hash[0] ^= 1;
            node_client_send(stranger, &msg);
        }
        cr_expect(node_session_step_ok(&session, i, 1), "round %d", i);
    }
    node_session_close(&session);
    node_client_free(&stranger);
    node_client_free(&honest);
    testbed_free(&w);
}
