/* Sessions with what a client has trained, by hand: their bits, their timelines, and how long a node holds it. */
#include "model/safetensors.h"
#include "net/timeline.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>

static const cluster_options TUNABLE = {.tune_memory = 64 << 20, .prefix_memory = 1 << 20, .kv_memory = 64};

Test(node_tuned, a_session_asks_for_what_is_held_and_has_its_bits_beside_all_others) {
    world *w = world_new(&TUNABLE);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    sn_buf image = world_tuning(w, 0.5f), other = world_tuning(w, 0.25f);
    past plain, tuned, twin, third;
    past_init(&plain, w, t, 0, 4), past_init_tuned(&tuned, w, t, &image), past_init_tuned(&twin, w, t, &image);
    past_init_tuned(&third, w, t, &other);
    cr_assert(memcmp(tuned.hidden, w->hidden, (size_t)w->n_embd * sizeof(float)));
    sn_msg *msg = past_open_message(&tuned);
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REBUILD, "send it first"));
    talk_tune(t, w, &image), talk_tune(t, w, &other);
    past_open(&plain), past_open(&tuned), past_open(&twin), past_open(&third);
    past_open(&tuned); /* again, before its first step, is answered again */
    msg = past_open_message(&tuned);
    memset(msg->open.tuning, 0, SN_HASH_SIZE);
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REFUSED, "in use"), "a session changes what is added to it");
    /* The same beginnings: pages are shared by those of one tuning, and by nobody else. */
    cr_expect(past_goes_on(&plain, 0, 70));
    cr_expect(past_goes_on(&tuned, 0, 70));
    cr_expect(past_goes_on(&third, 0, 70));
    cr_expect_eq(talk_status(t).shared_tokens, 0);
    cr_expect(past_goes_on(&twin, 0, 70));
    cr_expect_eq(talk_status(t).shared_tokens, 64);
    past *all[] = {&plain, &tuned, &twin, &third};
    for (int at = 70; at < 80; at++) { /* all at once */
        uint64_t asked[4];
        for (int i = 0; i < 4; i++) {
            msg = past_step_message(all[i], at, 1);
            asked[i] = talk_send(t, &msg);
        }
        for (int n = 0; n < 4; n++) {
            sn_msg *answer = talk_hear(t, 0, WORLD_WAIT_MS);
            int i = 0;
            while (i < 3 && answer && answer->request != asked[i]) i++;
            cr_assert(past_took(all[i], answer, at, 1), "session %d at %d", i, at);
        }
    }
    cr_expect(past_goes_on(&tuned, 1, 60)); /* back behind the prompt's beginning */
    for (int i = 0; i < 4; i++) past_close(all[i]);
    sn_buf_fini(&image), sn_buf_fini(&other);
    talk_free(&t);
    world_free(&w);
}

Test(node_tuned, what_a_session_uses_is_not_forgotten_for_others) {
    cluster_options options = {.tune_memory = 40 << 10}; /* half of it: less than seven of these */
    world *w = world_new(&options);
    cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0);
    sn_buf image = world_tuning(w, 0.5f);
    past p, late;
    past_init_tuned(&p, w, t, &image);
    talk_tune(t, w, &image);
    past_open(&p);
    for (int i = 0; i < 6; i++) { /* the first of them go for the last ones */
        sn_buf other = world_tuning(w, (float)(i + 1));
        for (int tries = 0, held = 0; !held; tries++) {
            void *data;
            sn_msg *msg = NULL;
            sn_hash hash = sn_hash_of(other.data, other.len);
            NEED(sn_msg_new(SN_MSG_TUNE, 0, &msg, &err));
            NEED(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){other.len / 4}, &data, &err));
            memcpy(data, other.data, other.len);
            msg->tune.protocol = SN_PROTOCOL;
            memcpy(msg->tune.model, w->model.bytes, SN_HASH_SIZE);
            memcpy(msg->tune.hash, hash.bytes, SN_HASH_SIZE);
            sn_msg *answer = talk_ask(t, &msg);
            held = answer->kind == SN_MSG_TUNED;
            cr_assert(held || answer->error.status == SN_RETRY, "%s", answer->error.text);
            cr_assert(tries < 100);
            sn_msg_free(&answer);
        }
        sn_buf_fini(&other);
    }
    cr_expect(past_goes_on(&p, 0, 5)); /* it rested: of all of them it was used longest ago */
    past_close(&p);
    sn_buf_fini(&image);
    image = world_tuning(w, 1);
    past_init_tuned(&late, w, t, &image);
    sn_msg *msg = past_open_message(&late);
    cr_expect(is_refusal(talk_ask(t, &msg), SN_REBUILD, "send it first"), "nothing was forgotten");
    free(late.timeline), free(late.hidden);
    sn_buf_fini(&image);
    talk_free(&t);
    world_free(&w);
}

/* One step's past, as its owner reads it, put into another session. Returns the hash there behind it. */
static sn_hash put_into(past *from, past *to, int n) {
    sn_msg *msg = NULL;
    NEED(sn_msg_new(SN_MSG_KV_GET, 0, &msg, &err));
    memcpy(msg->kv_get.session, from->id, sizeof from->id);
    msg->kv_get.tokens = (uint64_t)n;
    sn_msg *part = talk_ask(from->talk, &msg);
    cr_assert_eq(part->kind, SN_MSG_KV_PART, "%s", part->error.text);
    NEED(sn_msg_new(SN_MSG_KV_PUT, 0, &msg, &err));
    msg->kv_put = (sn_msg_kv_put){.marks = part->kv_part.marks, .n_marks = part->kv_part.n_marks};
    part->kv_part.marks = NULL;
    part->kv_part.n_marks = 0;
    memcpy(msg->kv_put.session, to->id, sizeof to->id);
    memcpy(msg->kv_put.origin, part->kv_part.origin, SN_KEY_SIZE);
    memcpy(msg->kv_put.hash, part->kv_part.hash, SN_KEY_SIZE);
    msg->tensor = part->tensor;
    sn_msg *taken = talk_ask(to->talk, &msg);
    cr_assert_eq(taken->kind, SN_MSG_KV_TAKEN, "%s", taken->error.text);
    sn_msg_free(&taken);
    sn_msg_free(&part);
    NEED(sn_msg_new(SN_MSG_RESUME, 0, &msg, &err));
    memcpy(msg->resume.session, to->id, sizeof to->id);
    msg->resume.position = (uint64_t)n;
    sn_msg *resumed = talk_ask(to->talk, &msg);
    cr_assert_eq(resumed->kind, SN_MSG_RESUMED);
    cr_expect_eq(resumed->resumed.length, (uint64_t)n);
    sn_hash hash;
    memcpy(hash.bytes, resumed->resumed.timeline, SN_HASH_SIZE);
    sn_msg_free(&resumed);
    return hash;
}

Test(node_tuned, a_past_goes_on_elsewhere_and_is_never_taken_for_one_of_another_tuning) {
    world *w = world_new(&TUNABLE);
    cluster_add(w->cluster, 0, 0), cluster_add(w->cluster, 0, 0);
    talk *t = talk_new(w, 0), *u = talk_new(w, 1);
    sn_buf image = world_tuning(w, 0.5f);
    past from, same, plain;
    past_init_tuned(&from, w, t, &image), past_init_tuned(&same, w, u, &image), past_init(&plain, w, u, 0, 4);
    talk_tune(t, w, &image), talk_tune(u, w, &image);
    past_open(&from), past_open(&same), past_open(&plain);
    cr_expect(past_goes_on(&from, 0, 40));
    sn_hash there = put_into(&from, &same, 40);
    cr_expect(!memcmp(&there, &same.timeline[40], sizeof there));
    cr_expect(past_goes_on(&same, 40, 9), "the bits of never having moved");
    there = put_into(&from, &plain, 40);
    cr_expect(memcmp(&there, &plain.timeline[40], sizeof there), "a tuned past passes for an untuned one");
    sn_msg *msg = past_step_message(&plain, 40, 1);
    cr_expect(is_refusal(talk_ask(u, &msg), SN_REBUILD, "MISMATCH"));
    past_close(&from), past_close(&same), past_close(&plain);
    sn_buf_fini(&image);
    talk_free(&t), talk_free(&u);
    world_free(&w);
}
