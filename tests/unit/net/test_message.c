/* Every kind of message, filled with random contents according to the lists that declare it; and bytes that are not
 * a message. */
#include "base/file.h"
#include "net/message.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require_ok(sn_status status, const sn_err *err) { cr_assert_eq(status, SN_OK, "%s", err->text); }

/* -- random contents, according to the lists */

static uint64_t state = 1;

static uint64_t next_random(void) { /* xorshift: the same messages in every run */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t draw_u64(uint64_t least, uint64_t most) {
    uint64_t n = next_random() >> (next_random() % 64);
    return most - least == UINT64_MAX ? n : least + n % (most - least + 1);
}

static void draw_bytes(uint8_t *out, size_t len) {
    for (size_t i = 0; i < len; i++) out[i] = (uint8_t)(next_random() >> 32);
}

static void draw_text(char *out, size_t max) {
    size_t len = next_random() % (max + 1), i = 0;
    for (; i + 2 <= len; i += 2) memcpy(out + i, next_random() % 2 ? "ab" : "\xc3\xa9", 2);
    out[i] = 0;
}

static void draw_blobs(sn_blob **out, size_t *n, size_t max, uint64_t least, uint64_t most) {
    sn_err err;
    *n = next_random() % 4 ? next_random() % 4 : max;
    if (*n > max) *n = max;
    require_ok(sn_list_new(*n, max, sizeof(sn_blob), out, &err), &err);
    for (size_t i = 0; i < *n; i++) {
        (*out)[i].len = (size_t)draw_u64(least, most < least + 300 ? most : least + 300);
        require_ok(sn_calloc(&(*out)[i].data, (*out)[i].len, 1, &err), &err);
        draw_bytes((*out)[i].data, (*out)[i].len);
    }
}

#define D_U64(name, ...) m->name = draw_u64(__VA_ARGS__);
#define D_KEY(name)      draw_bytes(m->name, SN_KEY_SIZE);
#define D_SID(name)      draw_bytes(m->name, SN_SESSION_ID_SIZE);
#define D_STR(name, max) draw_text(m->name, max);
#define D_LIST(name, type, max)                                                                                        \
    m->n_##name = next_random() % 4 ? next_random() % 4 : (max);                                                       \
    require_ok(sn_list_new(m->n_##name, max, sizeof *m->name, &m->name, &err), &err);                                  \
    for (size_t i = 0; i < m->n_##name; i++) draw_##type(&m->name[i]);
#define D_BLOBS(name, max, ...) draw_blobs(&m->name, &m->n_##name, max, __VA_ARGS__);
#define DRAW(KIND, name)                                                                                               \
    static void draw_##name(sn_##name *m) {                                                                            \
        sn_err err;                                                                                                    \
        (void)err;                                                                                                     \
        SN_FIELDS_##KIND(D_U64, D_KEY, D_SID, D_STR, D_LIST, D_BLOBS)                                                  \
    }
DRAW(ROUTE_ENTRY, route_entry)
DRAW(ATTACH_POINT, attach_point)
DRAW(TRACE, trace)
DRAW(TOKEN_TIMELINE, token_timeline)
DRAW(SAMPLE, sample)
DRAW(EXPERT_PAIR, expert_pair)
DRAW(ADAPTER_INFO, adapter_info)
DRAW(BYTE_RANGE, byte_range)
#define X(KIND, name, tensor) DRAW(KIND, msg_##name)
SN_MESSAGES(X)
#undef X

/* -- equality, according to the lists */

#define E_U64(name, ...) cr_assert_eq(x->name, y->name);
#define E_KEY(name)      cr_assert_arr_eq(x->name, y->name, SN_KEY_SIZE);
#define E_SID(name)      cr_assert_arr_eq(x->name, y->name, SN_SESSION_ID_SIZE);
#define E_STR(name, max) cr_assert_str_eq(x->name, y->name);
#define E_LIST(name, type, max)                                                                                        \
    cr_assert_eq(x->n_##name, y->n_##name);                                                                            \
    for (size_t i = 0; i < x->n_##name; i++) same_##type(&x->name[i], &y->name[i]);
#define E_BLOBS(name, max, ...)                                                                                        \
    cr_assert_eq(x->n_##name, y->n_##name);                                                                            \
    for (size_t i = 0; i < x->n_##name; i++) {                                                                         \
        cr_assert_eq(x->name[i].len, y->name[i].len);                                                                  \
        cr_assert_arr_eq(x->name[i].data, y->name[i].data, x->name[i].len);                                            \
    }
#define SAME(KIND, name)                                                                                               \
    static void same_##name(const sn_##name *x, const sn_##name *y) {                                                  \
        SN_FIELDS_##KIND(E_U64, E_KEY, E_SID, E_STR, E_LIST, E_BLOBS)                                                  \
    }
SAME(ROUTE_ENTRY, route_entry)
SAME(ATTACH_POINT, attach_point)
SAME(TRACE, trace)
SAME(TOKEN_TIMELINE, token_timeline)
SAME(SAMPLE, sample)
SAME(EXPERT_PAIR, expert_pair)
SAME(ADAPTER_INFO, adapter_info)
SAME(BYTE_RANGE, byte_range)
#define X(KIND, name, tensor) SAME(KIND, msg_##name)
SN_MESSAGES(X)
#undef X

static const bool has_tensor[] = {
#define X(KIND, name, tensor) tensor,
    SN_MESSAGES(X)
#undef X
};

static sn_msg *new_message(sn_msg_kind kind) {
    sn_err err;
    sn_msg *msg;
    require_ok(sn_msg_new(kind, draw_u64(SN_R_ANY), &msg, &err), &err);
    if (has_tensor[kind]) {
        static const sn_dtype dtypes[] = {SN_F32, SN_F16, SN_BF16, SN_Q8};
        uint64_t shape[SN_TENSOR_RANK_MAX];
        for (int i = 0; i < SN_TENSOR_RANK_MAX; i++) shape[i] = 1 + next_random() % 5;
        void *data;
        const sn_dtype dtype = dtypes[next_random() % 4];
        const int rank = 1 + (int)(next_random() % SN_TENSOR_RANK_MAX);
        shape[rank - 1] *= sn_dtype_block(dtype);
        require_ok(sn_msg_new_tensor(msg, dtype, rank, shape, &data, &err), &err);
        draw_bytes(data, msg->tensor.bytes);
    }
    switch (kind) {
#define X(KIND, name, tensor)                                                                                          \
    case SN_MSG_##KIND:                                                                                                \
        draw_msg_##name(&msg->name);                                                                                   \
        break;
        SN_MESSAGES(X)
#undef X
    default:
        cr_assert_fail("no such kind");
    }
    return msg;
}

static void assert_same(const sn_msg *x, const sn_msg *y) {
    cr_assert_eq(x->kind, y->kind);
    cr_assert_eq(x->correlation_id, y->correlation_id);
    cr_assert_eq(x->tensor.rank, y->tensor.rank);
    cr_assert_eq(x->tensor.bytes, y->tensor.bytes);
    cr_assert_arr_eq(x->tensor.shape, y->tensor.shape, sizeof x->tensor.shape);
    if (x->tensor.rank) cr_assert_eq(x->tensor.dtype, y->tensor.dtype);
    switch (x->kind) {
#define X(KIND, name, tensor)                                                                                          \
    case SN_MSG_##KIND:                                                                                                \
        same_msg_##name(&x->name, &y->name);                                                                           \
        break;
        SN_MESSAGES(X)
#undef X
    default:
        cr_assert_fail("no such kind");
    }
}

static sn_buf encode_message(const sn_msg *msg) {
    sn_err err;
    sn_buf out;
    sn_buf_init(&out, SN_MAP_SIZE_MAX);
    require_ok(sn_msg_encode(msg, &out, &err), &err);
    return out;
}

Test(message, every_kind_survives_a_round_trip) {
    sn_err err;
    for (int round = 0; round < 60; round++) {
        for (int kind = 0; kind < SN_MSG_KIND_COUNT; kind++) {
            sn_msg *msg = new_message((sn_msg_kind)kind), *back;
            sn_buf frame = encode_message(msg);
            require_ok(sn_msg_decode(frame.data, frame.len, &back, &err), &err);
            assert_same(msg, back);
            sn_buf again = {0};
            sn_buf_init(&again, SN_MAP_SIZE_MAX);
            require_ok(sn_msg_encode(back, &again, &err), &err);
            cr_assert_eq(frame.len, again.len);
            cr_assert_arr_eq(frame.data, again.data, frame.len);
            sn_buf_fini(&again);
            sn_buf_fini(&frame);
            sn_msg_free(&msg);
            sn_msg_free(&back);
        }
    }
}

Test(message, refuses_every_message_that_is_cut_short) {
    sn_err err;
    for (int kind = 0; kind < SN_MSG_KIND_COUNT; kind++) {
        sn_msg *msg = new_message((sn_msg_kind)kind), *back;
        sn_buf frame = encode_message(msg);
        size_t step = frame.len > 4096 ? 61 : 1; /* long lists are uniform */
        for (size_t len = 0; len < frame.len; len += step) {
            uint8_t *exact = malloc(len ? len : 1); /* an exact allocation: a sanitizer sees a read beyond the end */
            memcpy(exact, frame.data, len);
            cr_assert_eq(sn_msg_decode(exact, len, &back, &err), SN_REFUSED, "%s at %zu", sn_msg_kind_name(msg->kind),
                         len);
            cr_assert_null(back);
            free(exact);
        }
        sn_buf_fini(&frame);
        sn_msg_free(&msg);
    }
}

Test(message, refuses_bytes_after_the_map) {
    sn_err err;
    sn_msg *msg = new_message(SN_MSG_CLOSE), *back;
    sn_buf frame = encode_message(msg);
    require_ok(sn_buf_append(&frame, "", 1, &err), &err);
    cr_assert_eq(sn_msg_decode(frame.data, frame.len, &back, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "end of the map"), "%s", err.text);
    sn_buf_fini(&frame);
    sn_msg_free(&msg);
}

Test(message, survives_any_damaged_byte) {
    sn_err err;
    for (int kind = 0; kind < SN_MSG_KIND_COUNT; kind++) {
        sn_msg *msg = new_message((sn_msg_kind)kind), *back;
        sn_buf frame = encode_message(msg);
        for (int i = 0; i < 3000; i++) {
            uint8_t *at = &frame.data[next_random() % sn_min_size(frame.len, 2000)], before = *at;
            *at = (uint8_t)next_random();
            if (sn_msg_decode(frame.data, frame.len, &back, &err) == SN_OK) sn_msg_free(&back);
            *at = before;
        }
        sn_buf_fini(&frame);
        sn_msg_free(&msg);
    }
}

/* -- limits of encoding */

static void expect_encode(const sn_msg *msg, const char *error_part) {
    sn_err err = {0};
    sn_buf out;
    sn_buf_init(&out, SN_MAP_SIZE_MAX);
    cr_assert_eq(sn_msg_encode(msg, &out, &err), SN_REFUSED, "no word of '%s'", error_part);
    cr_assert(strstr(err.text, error_part), "'%s' is not about '%s'", err.text, error_part);
    cr_assert_eq(out.len, 0);
    cr_assert_eq(sn_msg_encode(msg, &out, NULL), SN_REFUSED);
    sn_buf_fini(&out);
}

Test(message, refuses_to_encode_beyond_a_limit) {
    sn_err err;
    sn_msg *msg = new_message(SN_MSG_PEERS_REPLY);
    size_t n = msg->peers_reply.n_announcements;
    msg->peers_reply.n_announcements = SN_ANNOUNCEMENTS_MAX + 1;
    expect_encode(msg, "257 elements");
    msg->peers_reply.n_announcements = n;
    sn_msg_free(&msg);

    require_ok(sn_msg_new(SN_MSG_PEERS_REPLY, 1, &msg, &err), &err);
    require_ok(sn_list_new(1, SN_ANNOUNCEMENTS_MAX, sizeof(sn_blob), &msg->peers_reply.announcements, &err), &err);
    msg->peers_reply.n_announcements = 1;
    msg->peers_reply.announcements[0].len = SN_ANNOUNCEMENT_SIZE_MAX + 1;
    msg->peers_reply.announcements[0].data = calloc(1, SN_ANNOUNCEMENT_SIZE_MAX + 1);
    expect_encode(msg, "16385 bytes");
    sn_msg_free(&msg);

    msg = new_message(SN_MSG_ERROR);
    memset(msg->error.text, 'x', sizeof msg->error.text);
    expect_encode(msg, "longer than the 511");
    sn_msg_free(&msg);

    msg = new_message(SN_MSG_STEP);
    msg->tensor.bytes++;
    expect_encode(msg, "shape say");
    msg->tensor.rank = 0;
    expect_encode(msg, "must carry a tensor");
    sn_msg_free(&msg);

    msg = new_message(SN_MSG_CLOSE);
    msg->tensor.rank = 1;
    expect_encode(msg, "carries no tensor");
    sn_msg_free(&msg);

    void *list;
    cr_assert_eq(sn_list_new(SN_HOPS_MAX + 1, SN_HOPS_MAX, sizeof(sn_route_entry), &list, &err), SN_REFUSED);
    cr_assert_eq(sn_msg_new(SN_MSG_KIND_COUNT, 1, &msg, &err), SN_REFUSED);
}

Test(message, replaces_unprintable_text_by_question_marks) {
    static const char *const texts[][2] = {
        {"good \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "good \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"cut \xe2\x82", "cut ??"},
        {"a\x1b[2Jb\n", "a?[2Jb?"},
        {"\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80", "?? ??? ????"},
        {"\xe2\x80\xae", "???"}};
    sn_err err;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sn_msg *msg = new_message(SN_MSG_ERROR), *back;
        snprintf(msg->error.text, sizeof msg->error.text, "%s", texts[i][0]);
        sn_buf frame = encode_message(msg);
        require_ok(sn_msg_decode(frame.data, frame.len, &back, &err), &err);
        cr_assert_str_eq(back->error.text, texts[i][1]);
        sn_buf_fini(&frame);
        sn_msg_free(&msg);
        sn_msg_free(&back);
    }
}

/* -- tensors */

Test(message, refuses_invalid_tensors) {
    static const struct {
        sn_dtype dtype;
        int rank;
        uint64_t shape[SN_TENSOR_RANK_MAX];
    } bad[] = {{SN_Q4_1, 1, {32}},
               {SN_I32, 1, {32}},
               {(sn_dtype)99, 1, {1}},
               {SN_F32, 0, {1}},
               {SN_F32, 5, {1, 1, 1, 1}},
               {SN_F32, -1, {1}},
               {SN_F32, 2, {3, 0}},
               {SN_F32, 1, {SN_TENSOR_SIZE_MAX / 4 + 1}},
               {SN_F32, 1, {UINT64_MAX}},
               {SN_F16, 4, {1u << 31, 1u << 31, 1u << 31, 1u << 31}},
               {SN_BF16, 2, {UINT64_C(1) << 62, 4}},
               {SN_Q8, 2, {3, 31}},
               {SN_Q8, 2, {3, 0}},
               {SN_Q8, 2, {32, 3}}, /* a block must lie within one row */
               {SN_Q8, 2, {UINT64_C(1) << 60, 32}},
               {SN_Q8, 2, {1, UINT64_MAX - 31}},
               {SN_Q8, 1, {(uint64_t)SN_TENSOR_SIZE_MAX / 34 * 32 + 32}}};
    sn_err err;
    void *data;
    sn_msg *msg;
    require_ok(sn_msg_new(SN_MSG_STEP, 1, &msg, &err), &err);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(sn_msg_new_tensor(msg, bad[i].dtype, bad[i].rank, bad[i].shape, &data, &err), SN_REFUSED, "%zu",
                     i);
    sn_msg_free(&msg);
    require_ok(sn_msg_new(SN_MSG_CLOSE, 1, &msg, &err), &err);
    cr_assert_eq(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){1}, &data, &err), SN_REFUSED);
    sn_msg_free(&msg);
}

static void count_release(void *owner) { ++*(int *)owner; }

Test(message, requires_a_frame_of_the_announced_size) {
    sn_err err;
    sn_msg *msg = new_message(SN_MSG_STEP_REPLY), *back;
    sn_buf frame = encode_message(msg);
    require_ok(sn_msg_decode(frame.data, frame.len, &back, &err), &err);
    int released = 0;
    size_t bytes = msg->tensor.bytes;
    const void *data = msg->tensor.data;
    cr_assert_eq(sn_msg_attach_tensor(back, 0, NULL, 0, NULL, NULL, &err), SN_REFUSED);
    cr_assert_eq(sn_msg_attach_tensor(back, 2, data, bytes, count_release, &released, &err), SN_REFUSED);
    cr_assert_eq(sn_msg_attach_tensor(back, 1, data, bytes - 1, count_release, &released, &err), SN_REFUSED);
    cr_assert_eq(sn_msg_attach_tensor(back, 1, data, bytes + 1, count_release, &released, &err), SN_REFUSED);
    cr_assert_eq(released, 0, "a refused frame must stay the caller's");
    require_ok(sn_msg_attach_tensor(back, 1, data, bytes, count_release, &released, &err), &err);
    cr_assert_eq(back->tensor.data, data);
    sn_msg_free(&back);
    cr_assert_eq(released, 1);
    sn_msg_free(&back);
    sn_msg_free(&msg);
    sn_buf_fini(&frame);

    msg = new_message(SN_MSG_CLOSE_REPLY);
    cr_assert_eq(sn_msg_attach_tensor(msg, 1, "", 0, NULL, NULL, &err), SN_REFUSED);
    require_ok(sn_msg_attach_tensor(msg, 0, NULL, 0, NULL, NULL, &err), &err);
    sn_msg_free(&msg);
}

/* -- bytes written by hand */

#define KIND_CLOSE                                                                                                     \
    "\xa4kind\xa5"                                                                                                     \
    "close"
#define CORRELATION_ID                                                                                                 \
    "\xae"                                                                                                             \
    "correlation_id\x01"
#define SESSION                                                                                                        \
    "\xa7session\xc4\x10"                                                                                              \
    "0123456789abcdef"

typedef struct bytes {
    const char *data;
    size_t len;
    const char *error_part; /* of the error; NULL: the message is valid */
} bytes;
#define B(text, refusal) {"" text, sizeof(text) - 1, refusal}

Test(message, decodes_any_valid_encoding_and_refuses_the_rest) {
    static const bytes inputs[] = {
        B("\x83" KIND_CLOSE CORRELATION_ID SESSION, NULL),
        B("\x83" SESSION CORRELATION_ID KIND_CLOSE, NULL),           /* any order */
        B("\xdf\0\0\0\x03" KIND_CLOSE CORRELATION_ID SESSION, NULL), /* longer encodings than needed */
        B("\x83\xd9\x04kind\xda\0\x05"
          "close\xdb\0\0\0\x0e"
          "correlation_id\xcf\0\0\0\0\0\0\0\x01\xa7session\xc6\0\0\0\x10"
          "0123456789abcdef",
          NULL),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\x93\xc0\xc3\x81\x01\xcb"
          "12345678",
          NULL), /* unknown fields */
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\xc8\0\x02\x05"
          "ab",
          NULL),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\x91\x91\x91\x01", NULL), /* nested four deep */
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\x91\x91\x91\x91\x01", "deeper"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\x91\x91\x91\x80", "deeper"),
        B("", "ends"),
        B("\xc1", "c1"),
        B("\xc0", "a map"),
        B("\x90", "a map"),
        B("\x80", "'kind' is missing"),
        B("\xdd\x10\0\0\0", "ends"), /* five bytes that make other decoders allocate gigabytes */
        B("\xdf\x7f\xff\xff\xff", "ends"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\xdd\x10\0\0\0", "ends"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\xc6\xff\xff\xff\xff", "ends"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\xdb\xff\xff\xff\xff", "ends"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa3new\xc9\xff\xff\xff\xff\x01", "ends"),
        B("\x82" KIND_CLOSE SESSION, "'correlation_id' is missing"),
        B("\x82" CORRELATION_ID SESSION, "'kind' is missing"),
        B("\x82" KIND_CLOSE CORRELATION_ID, "'session' is missing"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION SESSION, "twice"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION CORRELATION_ID, "twice"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\x01\x01", "name of a field"),
        B("\x83\xa4kind\xa5"
          "clos\xff" CORRELATION_ID SESSION,
          "printable"),
        B("\x83\xa4kind\xa5"
          "clone" CORRELATION_ID SESSION,
          "unknown"),
        B("\x83\xa4kind\xb8"
          "0123456789abcdef01234567" CORRELATION_ID SESSION,
          "at most 23"),
        B("\x83\xa4kind\x05" CORRELATION_ID SESSION, "a text"),
        B("\x83" KIND_CLOSE "\xae"
          "correlation_id\xff" SESSION,
          "unsigned"), /* -1 */
        B("\x83" KIND_CLOSE "\xae"
          "correlation_id\xd0\x01" SESSION,
          "unsigned"),
        B("\x83" KIND_CLOSE "\xae"
          "correlation_id\xca\0\0\0\0" SESSION,
          "unsigned"),
        B("\x83" KIND_CLOSE "\xae"
          "correlation_id\xa1"
          "1" SESSION,
          "unsigned"),
        B("\x83" KIND_CLOSE CORRELATION_ID "\xa7session\xc4\x0f"
          "0123456789abcde",
          "15 bytes"),
        B("\x83" KIND_CLOSE CORRELATION_ID "\xa7session\xc4\x11"
          "0123456789abcdefg",
          "17 bytes"),
        B("\x83" KIND_CLOSE CORRELATION_ID "\xa7session\xb0"
          "0123456789abcdef",
          "a byte string"),
        B("\x84" KIND_CLOSE CORRELATION_ID SESSION "\xa6tensor\x82\xa5"
          "dtype\xa3"
          "F32\xa5shape\x91\x01",
          "carries no tensor"),
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        sn_err err = {0};
        sn_msg *msg;
        sn_status status = sn_msg_decode(inputs[i].data, inputs[i].len, &msg, &err);
        if (!inputs[i].error_part) {
            cr_assert_eq(status, SN_OK, "%zu: %s", i, err.text);
            cr_assert_arr_eq(msg->close.session, "0123456789abcdef", 16);
            cr_assert_eq(msg->correlation_id, 1);
        } else {
            cr_assert_eq(status, SN_REFUSED, "%zu", i);
            cr_assert(strstr(err.text, inputs[i].error_part), "%zu: '%s' is not about '%s'", i, err.text,
                      inputs[i].error_part);
            cr_assert_eq(sn_msg_decode(inputs[i].data, inputs[i].len, &msg, NULL), SN_REFUSED);
        }
        sn_msg_free(&msg);
    }
}

Test(message, refuses_a_map_of_too_many_fields_and_a_frame_too_long) {
    sn_err err;
    sn_msg *msg;
    uint8_t many[3 + 65 * 3] = {0xde, 0, 65};
    for (int i = 0; i < 65; i++) memcpy(many + 3 + 3 * i, (uint8_t[]){0xa1, (uint8_t)('0' + i), 1}, 3);
    cr_assert_eq(sn_msg_decode(many, sizeof many, &msg, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "65 fields"), "%s", err.text);
    uint8_t *large = calloc(1, SN_MAP_SIZE_MAX + 1);
    cr_assert_eq(sn_msg_decode(large, SN_MAP_SIZE_MAX + 1, &msg, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "first frame"), "%s", err.text);
    free(large);
}

/* A message with one of its fields replaced: `field` is its name, preceded by the byte of its length. */
static void expect_refusal(sn_msg_kind kind, const char *field, const void *value, size_t len, size_t old_len,
                           const char *error_part) {
    sn_err err = {0};
    sn_msg *msg, *back;
    require_ok(sn_msg_new(kind, 1, &msg, &err), &err); /* every list and text is empty, every number is 0 */
    void *data;
    if (has_tensor[kind]) require_ok(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){4}, &data, &err), &err);
    sn_buf frame = encode_message(msg), changed;
    sn_buf_init(&changed, 2 * SN_MAP_SIZE_MAX);
    uint8_t *at = memmem(frame.data, frame.len, field, strlen(field));
    cr_assert(at, "%s", field);
    at += strlen(field);
    require_ok(sn_buf_append(&changed, frame.data, (size_t)(at - frame.data), &err), &err);
    require_ok(sn_buf_append(&changed, value, len, &err), &err);
    require_ok(sn_buf_append(&changed, at + old_len, (size_t)(frame.data + frame.len - at) - old_len, &err), &err);
    cr_assert_eq(sn_msg_decode(changed.data, changed.len, &back, &err), SN_REFUSED, "%s", error_part);
    cr_assert_null(back);
    cr_assert(strstr(err.text, error_part), "'%s' is not about '%s'", err.text, error_part);
    sn_msg_free(&msg);
    sn_buf_fini(&frame);
    sn_buf_fini(&changed);
}

Test(message, enforces_every_limit_of_a_field) {
    uint8_t list[3 + SN_ANNOUNCEMENTS_MAX + 1] = {0xdc, 0, SN_HOPS_MAX + 1};
    expect_refusal(SN_MSG_STEP, "\xa5route", list, 3 + SN_HOPS_MAX + 1, 1, "at most 64");
    expect_refusal(SN_MSG_STEP, "\xa5trace", list, 3 + SN_HOPS_MAX + 1, 1, "at most 64");
    expect_refusal(SN_MSG_STEP_REPLY, "\xa5trace", list, 3 + SN_HOPS_MAX + 1, 1, "at most 64");
    expect_refusal(SN_MSG_STEP, "\xa5route", "\x91\x01", 2, 1, "a map");
    expect_refusal(SN_MSG_STEP, "\xa5route", "\x91\x80", 2, 1, "'session' is missing");
    expect_refusal(SN_MSG_STEP, "\xa5route", "\x01", 1, 1, "an array");
    memcpy(list, (uint8_t[]){0xdc, 1, 1}, 3);
    expect_refusal(SN_MSG_PEERS,
                   "\xad"
                   "announcements",
                   list, 3 + SN_ANNOUNCEMENTS_MAX + 1, 1, "at most 256");
    expect_refusal(SN_MSG_PEERS_REPLY,
                   "\xad"
                   "announcements",
                   "\x91\xa1z", 3, 1, "byte strings");
    uint8_t *blob = calloc(1, 4 + SN_ANNOUNCEMENT_SIZE_MAX + 1);
    memcpy(blob, (uint8_t[]){0x91, 0xc5, 0x40, 0x01}, 4);
    expect_refusal(SN_MSG_PEERS_REPLY,
                   "\xad"
                   "announcements",
                   blob, 4 + SN_ANNOUNCEMENT_SIZE_MAX + 1, 1, "must have 1 to 16384");
    memcpy(blob, (uint8_t[]){0xda, 2, 0}, 3);
    memset(blob + 3, 'x', 512);
    expect_refusal(SN_MSG_ERROR, "\xa4text", blob, 3 + 512, 1, "at most 511");
    free(blob);
    expect_refusal(SN_MSG_ERROR, "\xa4text",
                   "\xa2"
                   "a\0",
                   3, 1, "printable");
    expect_refusal(SN_MSG_ERROR, "\xa4text", "\xa1\x1b", 2, 1, "printable");
    expect_refusal(SN_MSG_ERROR, "\xa4text",
                   "\xc4\x01"
                   "a",
                   3, 1, "a text");
    expect_refusal(SN_MSG_OPEN, "\xaamax_tokens", "\xe0", 1, 1, "unsigned");
}

/* -- ranges, according to the lists: what is beyond one was written by hand */

/* Refused by the decoder: the message with the bytes of this field, which is the last of its name, replaced. */
static void expect_range(const sn_msg *msg, const char *field, const void *value, size_t len, const char *error_part) {
    sn_err err = {0};
    sn_msg *back;
    char name[64];
    int n = snprintf(name, sizeof name, "%c%s", (char)(0xa0 + strlen(field)), field);
    sn_buf frame = encode_message(msg);
    uint8_t *at = NULL, *changed = calloc(1, frame.len + len);
    for (size_t i = 0; i + (size_t)n < frame.len; i++)
        if (!memcmp(frame.data + i, name, (size_t)n)) at = frame.data + i + n;
    cr_assert(at && changed, "%s", field);
    size_t before = (size_t)(at - frame.data), old = *at == 0x91 ? 2 : *at == 0xcd ? 3 : 1;
    memcpy(changed, frame.data, before);
    memcpy(changed + before, value, len);
    memcpy(changed + before + len, at + old, frame.len - before - old);
    cr_expect_eq(sn_msg_decode(changed, frame.len - old + len, &back, &err), SN_REFUSED, "%s '%s' %s",
                 sn_msg_kind_name(msg->kind), field, error_part);
    cr_expect(strstr(err.text, field) && strstr(err.text, error_part), "'%s' is not about '%s'", err.text, field);
    sn_msg_free(&back);
    sn_buf_fini(&frame);
    free(changed);
}

static void check_number(const sn_msg *msg, const char *field, uint64_t *value, uint64_t least, uint64_t most) {
    uint64_t beyond[] = {least - 1, most + 1, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        uint8_t value_bytes[9] = {0xcf};
        if ((i == 0 && !least) || most == UINT64_MAX) continue;
        for (int k = 0; k < 8; k++) value_bytes[1 + k] = (uint8_t)(beyond[i] >> (56 - 8 * k));
        *value = least;
        expect_range(msg, field, value_bytes, sizeof value_bytes, "must be");
        *value = beyond[i];
        expect_encode(msg, "must be");
    }
    *value = least;
}

static void check_blobs(const sn_msg *msg, const char *field, uint64_t least, uint64_t most) {
    uint64_t beyond[] = {least - 1, most + 1};
    static uint8_t value_bytes[4 + SN_ANNOUNCEMENT_SIZE_MAX + 1];
    for (int i = least ? 0 : 1; i < 2; i++) {
        memcpy(value_bytes, (uint8_t[]){0x91, 0xc5, (uint8_t)(beyond[i] >> 8), (uint8_t)beyond[i]}, 4);
        expect_range(msg, field, value_bytes, 4 + (size_t)beyond[i], "must have");
    }
}

/* A list has one element while its fields are checked: the first pass sets all numbers to the least of their ranges. */
#define L_U64(name, ...) m->name = (uint64_t[]){__VA_ARGS__}[0];
#define L_NONE(...)
#define C_U64(name, ...)        check_number(msg, #name, &m->name, __VA_ARGS__);
#define C_BLOBS(name, max, ...) check_blobs(msg, #name, __VA_ARGS__);
#define C_LIST(name, type, max)                                                                                        \
    require_ok(sn_list_new(1, max, sizeof *m->name, &m->name, &err), &err);                                            \
    m->n_##name = 1;                                                                                                   \
    range_##type(msg, m->name);                                                                                        \
    m->n_##name = 0;                                                                                                   \
    free(m->name);                                                                                                     \
    m->name = NULL;
#define RANGE(KIND, name)                                                                                              \
    static void range_##name(sn_msg *msg, sn_##name *m) {                                                              \
        sn_err err;                                                                                                    \
        (void)err, (void)msg, (void)m;                                                                                 \
        SN_FIELDS_##KIND(L_U64, L_NONE, L_NONE, L_NONE, L_NONE, L_NONE)                                                \
            SN_FIELDS_##KIND(C_U64, L_NONE, L_NONE, L_NONE, C_LIST, C_BLOBS)                                           \
    }
RANGE(ROUTE_ENTRY, route_entry)
RANGE(ATTACH_POINT, attach_point)
RANGE(TRACE, trace)
RANGE(TOKEN_TIMELINE, token_timeline)
RANGE(SAMPLE, sample)
RANGE(EXPERT_PAIR, expert_pair)
RANGE(ADAPTER_INFO, adapter_info)
RANGE(BYTE_RANGE, byte_range)
#define X(KIND, name, tensor) RANGE(KIND, msg_##name)
SN_MESSAGES(X)
#undef X

Test(message, refuses_every_number_and_byte_string_beyond_its_range) {
    sn_err err;
    sn_msg *msg;
    void *data;
#define X(KIND, name, tensor)                                                                                          \
    require_ok(sn_msg_new(SN_MSG_##KIND, 1, &msg, &err), &err);                                                        \
    if (tensor) require_ok(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){4}, &data, &err), &err);                     \
    range_msg_##name(msg, &msg->name);                                                                                 \
    sn_msg_free(&msg);
    SN_MESSAGES(X)
#undef X
}

Test(message, enforces_every_limit_of_a_tensor) {
    expect_refusal(SN_MSG_STEP, "\xa5shape", "\x90", 1, 2, "dimensions");
    expect_refusal(SN_MSG_STEP, "\xa5shape", "\x91\0", 2, 2, "zero");
    expect_refusal(SN_MSG_STEP, "\xa5shape", "\x95\x01\x01\x01\x01\x01", 6, 2, "at most 4");
    expect_refusal(SN_MSG_STEP, "\xa5shape", "\x91\xce\x10\0\0\x01", 6, 2, "larger");
    expect_refusal(SN_MSG_STEP, "\xa5shape", "\x92\xce\x80\0\0\0\xcf\x80\0\0\0\0\0\0\0", 15, 2, "larger");
    expect_refusal(SN_MSG_STEP, "\xa5shape", "\x91\xff", 2, 2, "unsigned");
    expect_refusal(SN_MSG_STEP,
                   "\xa5"
                   "dtype",
                   "\xa3I64", 4, 4, "F32, F16, BF16 or Q8");
    expect_refusal(SN_MSG_STEP,
                   "\xa5"
                   "dtype",
                   "\xa3"
                   "f32",
                   4, 4, "F32, F16, BF16 or Q8");
    expect_refusal(SN_MSG_STEP,
                   "\xa5"
                   "dtype",
                   "\xa8"
                   "F3200000",
                   9, 4, "at most 7");
    expect_refusal(SN_MSG_STEP, "\xa6tensor", "\x80", 1, 18, "is missing");
    expect_refusal(SN_MSG_STEP, "\xa6tensor", "\xc0", 1, 18, "a map");
}

/* The fuzz target begins with one message of each kind. SN_WRITE_CORPUS=1 writes them anew. */
Test(message, the_fuzz_corpus_has_every_kind) {
    for (int kind = 0; kind < SN_MSG_KIND_COUNT; kind++) {
        char path[512];
        sn_err err = {0};
        snprintf(path, sizeof path, SN_FIXTURES "/../fuzz/corpus/message/%s", sn_msg_kind_name((sn_msg_kind)kind));
        sn_msg *msg = NULL;
        sn_buf frame = {0};
        if (getenv("SN_WRITE_CORPUS")) {
            do { /* small messages suit a fuzzer better */
                sn_msg_free(&msg);
                sn_buf_fini(&frame);
                msg = new_message((sn_msg_kind)kind);
                frame = encode_message(msg);
            } while (frame.len > 2000);
            FILE *file = fopen(path, "wb");
            cr_assert(file && fwrite(frame.data, 1, frame.len, file) == frame.len && !fclose(file), "%s", path);
            sn_buf_fini(&frame);
            sn_msg_free(&msg);
        }
        require_ok(sn_read_file(path, SN_MAP_SIZE_MAX, &frame, &err), &err);
        require_ok(sn_msg_decode(frame.data, frame.len, &msg, &err), &err);
        cr_assert_eq(msg->kind, (sn_msg_kind)kind);
        sn_msg_free(&msg);
        sn_buf_fini(&frame);
    }
}
