/* Sessions with an adapter, by hand: their bits, their timelines, and how long a node holds an adapter. */
#include "base/clock.h"
#include "model/safetensors.h"
#include "net/timeline.h"
#include "tests/support/require.h"
#include "tests/support/train_client.h"
#include "tests/support/node_client.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options TUNABLE = {.tune_memory = 64 << 20, .prefix_cache_memory = 1 << 20, .kv_memory = 64};

Test(node_adapter, a_session_with_an_adapter_has_its_bits_among_others) {
    testbed *w = testbed_new(&TUNABLE);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    sn_buf image = testbed_adapter_image(w, 0.5f), other = testbed_adapter_image(w, 0.25f);
    node_session plain, adapted, twin, third;
    node_session_init(&plain, w, t, 0, 4), node_session_init_with_adapter(&adapted, w, t, &image),
        node_session_init_with_adapter(&twin, w, t, &image);
    node_session_init_with_adapter(&third, w, t, &other);
    cr_assert(memcmp(adapted.hidden, w->hidden, (size_t)w->n_embd * sizeof(float)));
    sn_msg *msg = node_session_open_message(&adapted);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "send it first"));
    node_client_put_adapter(t, w, &image), node_client_put_adapter(t, w, &other);
    node_session_open(&plain), node_session_open(&adapted), node_session_open(&twin), node_session_open(&third);
    node_session_open(&adapted); /* a repeated OPEN before the first step is answered again */
    msg = node_session_open_message(&adapted);
    memset(msg->open.adapter, 0, SN_HASH_SIZE);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REFUSED, "in use"), "a session changes what is added to it");
    /* The same prompt: pages are shared between sessions with the same adapter only. */
    cr_expect(node_session_step_ok(&plain, 0, 70));
    cr_expect(node_session_step_ok(&adapted, 0, 70));
    cr_expect(node_session_step_ok(&third, 0, 70));
    cr_expect_eq(node_client_status(t).prefix_cached_tokens, 0);
    cr_expect(node_session_step_ok(&twin, 0, 70));
    cr_expect_eq(node_client_status(t).prefix_cached_tokens, 64);
    node_session *all[] = {&plain, &adapted, &twin, &third};
    for (int at = 70; at < 80; at++) { /* all concurrently */
        uint64_t asked[4];
        for (int i = 0; i < 4; i++) {
            msg = node_session_step_message(all[i], at, 1);
            asked[i] = node_client_send(t, &msg);
        }
        for (int n = 0; n < 4; n++) {
            sn_msg *answer = node_client_receive(t, 0, TESTBED_WAIT_MS);
            int i = 0;
            while (i < 3 && answer && answer->correlation_id != asked[i]) i++;
            cr_assert(node_session_reply_ok(all[i], answer, at, 1), "session %d at %d", i, at);
        }
    }
    cr_expect(node_session_step_ok(&adapted, 1, 60)); /* back to before the end of the prompt */
    for (int i = 0; i < 4; i++) node_session_close(all[i]);
    sn_buf_fini(&image), sn_buf_fini(&other);
    node_client_free(&t);
    testbed_free(&w);
}

Test(node_adapter, an_adapter_in_use_is_not_evicted) {
    cluster_options options = {.tune_memory = 40 << 10}; /* half of it: less than seven adapters */
    testbed *w = testbed_new(&options);
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    sn_buf image = testbed_adapter_image(w, 0.5f);
    node_session p, late;
    node_session_init_with_adapter(&p, w, t, &image);
    node_client_put_adapter(t, w, &image);
    node_session_open(&p);
    for (int i = 0; i < 6; i++) { /* the last adapters evict the first ones */
        sn_buf other = testbed_adapter_image(w, (float)(i + 1));
        put_adapter_in_place_of_another(t, w, &other);
        sn_buf_fini(&other);
    }
    cr_expect(node_session_step_ok(&p, 0, 5)); /* it was idle: of all adapters it was used longest ago */
    node_session_close(&p);
    sn_buf_fini(&image);
    image = testbed_adapter_image(w, 1);
    node_session_init_with_adapter(&late, w, t, &image);
    sn_msg *msg = node_session_open_message(&late);
    cr_expect(is_refusal(node_client_request(t, &msg), SN_REBUILD, "send it first"), "nothing was evicted");
    free(late.timeline), free(late.hidden);
    sn_buf_fini(&image);
    node_client_free(&t);
    testbed_free(&w);
}

/* Reads the KV cache of one step as its owner and writes it to another session. Returns the timeline hash there
 * afterwards. */
static sn_hash copy_kv(node_session *from, node_session *to, int n) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_KV_GET, 0, &msg, &err));
    memcpy(msg->kv_get.session, from->id, sizeof from->id);
    msg->kv_get.tokens = (uint64_t)n;
    sn_msg *part = node_client_request(from->client, &msg);
    cr_assert_eq(part->kind, SN_MSG_KV_GET_REPLY, "%s", part->error.text);
    REQUIRE(sn_msg_new(SN_MSG_KV_PUT, 0, &msg, &err));
    msg->kv_put = (sn_msg_kv_put){.token_timelines = part->kv_get_reply.token_timelines,
                                  .n_token_timelines = part->kv_get_reply.n_token_timelines};
    part->kv_get_reply.token_timelines = NULL;
    part->kv_get_reply.n_token_timelines = 0;
    memcpy(msg->kv_put.session, to->id, sizeof to->id);
    memcpy(msg->kv_put.origin, part->kv_get_reply.origin, SN_KEY_SIZE);
    memcpy(msg->kv_put.tensor_hash, part->kv_get_reply.tensor_hash, SN_KEY_SIZE);
    msg->tensor = part->tensor;
    sn_msg *taken = node_client_request(to->client, &msg);
    cr_assert_eq(taken->kind, SN_MSG_KV_PUT_REPLY, "%s", taken->error.text);
    sn_msg_free(&taken);
    sn_msg_free(&part);
    REQUIRE(sn_msg_new(SN_MSG_RESUME, 0, &msg, &err));
    memcpy(msg->resume.session, to->id, sizeof to->id);
    msg->resume.position = (uint64_t)n;
    sn_msg *resumed = node_client_request(to->client, &msg);
    cr_assert_eq(resumed->kind, SN_MSG_RESUME_REPLY);
    cr_expect_eq(resumed->resume_reply.length, (uint64_t)n);
    sn_hash hash;
    memcpy(hash.bytes, resumed->resume_reply.timeline, SN_HASH_SIZE);
    sn_msg_free(&resumed);
    return hash;
}

Test(node_adapter, kv_moves_between_nodes_but_not_between_adapters) {
    testbed *w = testbed_new(&TUNABLE);
    cluster_add(w->cluster, 0, 0), cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0), *u = node_client_new(w, 1);
    sn_buf image = testbed_adapter_image(w, 0.5f);
    node_session from, same, plain;
    node_session_init_with_adapter(&from, w, t, &image), node_session_init_with_adapter(&same, w, u, &image),
        node_session_init(&plain, w, u, 0, 4);
    node_client_put_adapter(t, w, &image), node_client_put_adapter(u, w, &image);
    node_session_open(&from), node_session_open(&same), node_session_open(&plain);
    cr_expect(node_session_step_ok(&from, 0, 40));
    sn_hash there = copy_kv(&from, &same, 40);
    cr_expect(!memcmp(&there, &same.timeline[40], sizeof there));
    cr_expect(node_session_step_ok(&same, 40, 9), "bits differ from those of a session that never moved");
    there = copy_kv(&from, &plain, 40);
    cr_expect(memcmp(&there, &plain.timeline[40], sizeof there), "KV with an adapter is accepted as KV without one");
    sn_msg *msg = node_session_step_message(&plain, 40, 1);
    cr_expect(is_refusal(node_client_request(u, &msg), SN_REBUILD, "MISMATCH"));
    node_session_close(&from), node_session_close(&same), node_session_close(&plain);
    sn_buf_fini(&image);
    node_client_free(&t), node_client_free(&u);
    testbed_free(&w);
}
