/* Sequences of messages to a node, valid ones with some fields at their edges, from two clients, in every order: open,
 * step, repeat, rewind, export, train, close. The node is a real sn_protocol over a tiny model; memory errors and
 * undefined behaviour are the sanitizers' to find, and a reply must return what was sent with it, byte by byte.
 *
 * How it works: an input is a list of operations. Each takes a few bytes: which kind of message, whose, how it goes on
 * (repeat the last step, rewind, leave the job in the engine, ...), and how many of its fields get another value. The
 * message is first made as an honest client would make it, from the session as it is at the node; then it is written by
 * a packer that is made of the lists of net/message.h like the real one, but keeps to no range: when it comes to a
 * field that was drawn, it writes a number or a size at the edge of the field's range or of a type of C. What the
 * decoder takes is handled. An input that has ended goes on with zeros, which stand for honest values. */
#include "base/log.h"
#include "model/safetensors.h"
#include "node/engine/kv_transfer.h"
#include "node/engine/scheduler.h"
#include "node/protocol/protocol_private.h" /* private: honest values are made of a session's state */
#include "tests/support/memory_transport.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <msgpack.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    N_BLOCKS = 2,
    CLIENTS = 2,
    OPERATIONS_MAX = 64,
    JOBS_MAX = 8,
    SESSIONS_MAX = 4,
    TENSOR_MAX = 1 << 20,
    TRACES_MAX = 3,
    SECOND = 1000000
};

static void require(bool good) {
    if (!good) abort();
}

/* -- the input -- */

static const uint8_t *input, *input_end;

static uint8_t draw(void) { return input < input_end ? *input++ : 0; }

/* -- the node: what outlives an input, and what does not -- */

static sn_model *model;
static sn_span *span;
static sn_hash model_id;
static sn_buf adapter_image;

static const int64_t UNIX_MS = 1800000000000;

typedef struct node {
    sn_hub *hub;
    sn_identity identity;
    sn_transport *transport;
    sn_kv_pool *pool;
    sn_scheduler *scheduler;
    sn_protocol *protocol;
    sn_job *waiting[JOBS_MAX];
    int n_waiting;
    int64_t now_us;
    struct {
        sn_identity identity;
        sn_transport *transport;
        sn_peer node, peer; /* the node as the client knows it; the client as the node does */
        sn_hash adapter;    /* that it uploaded; zero: none */
    } clients[CLIENTS];
} node;

static void load_once(void) {
    sn_device *device;
    float values[128] = {0.5f};
    if (span) return;
    sn_log_setup(SN_LOG_OFF, false);
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_blocks = N_BLOCKS, .n_ctx = 256});
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    REQUIRE(sn_span_load(model, device, 0, N_BLOCKS, NULL, NULL, &span, &err));
    model_id = sn_model_id(model);
    sn_buf_init(&adapter_image, 1 << 16);
    size_t n_embd = (size_t)sn_span_hparams(span)->n_embd;
    const sn_safetensors_entry entries[] = {{"prompt.0", SN_F32, 2, {1, n_embd}, values}};
    REQUIRE(sn_safetensors_serialize(entries, 1, &adapter_image, &err));
    tiny_model_remove(&path);
}

static bool submit_job(void *ctx, sn_job *job) {
    node *n = ctx;
    if (n->n_waiting == JOBS_MAX) return false;
    n->waiting[n->n_waiting++] = job;
    return true;
}

static sn_engine_stats read_stats(void *ctx) {
    const node *n = ctx;
    return (sn_engine_stats){.kv_bytes = sn_kv_pool_bytes_used(n->pool)};
}

static sn_status offer_file(void *ctx, uint64_t file, sn_range_set *out, sn_err *err) {
    (void)ctx;
    return file == 1 ? sn_range_set_add(out, 0, 1 << 20, err) : sn_fail(err, SN_REFUSED, "there is one file");
}

static sn_status read_file(void *ctx, uint64_t file, uint64_t from, size_t bytes, void *out, uint64_t *size,
                           sn_err *err) {
    (void)ctx;
    if (file > 1 || from > 1 << 20 || bytes > (1 << 20) - from) return sn_fail(err, SN_REFUSED, "not here");
    memset(out, 7, bytes);
    *size = 1 << 20;
    return SN_OK;
}

/* The model has no experts to ask for. */
static void answer_round(void *ctx, sn_expert_round *round) { (void)ctx, (void)round; }

static void meet_client(node *n, int i) {
    sn_event event;
    sn_msg *ping;
    REQUIRE(sn_identity_new(&n->clients[i].identity, &err));
    REQUIRE(sn_transport_memory_new(n->hub, &n->clients[i].identity, &n->clients[i].transport, &err));
    REQUIRE(sn_transport_dial(n->clients[i].transport, "node:1", n->identity.curve_key, &n->clients[i].node, &err));
    REQUIRE(sn_msg_new(SN_MSG_PING, 1, &ping, &err));
    REQUIRE(sn_transport_send(n->clients[i].transport, n->clients[i].node, &ping, &err));
    REQUIRE(sn_transport_recv(n->transport, 0, &event, &err));
    require(event.msg != NULL);
    n->clients[i].peer = event.peer;
    sn_msg_free(&event.msg);
}

static void node_begin(node *n) {
    char bound[SN_ADDRESS_MAX + 1];
    *n = (node){.now_us = 100 * SECOND};
    REQUIRE(sn_hub_new(&n->hub, &err));
    REQUIRE(sn_identity_new(&n->identity, &err));
    REQUIRE(sn_transport_memory_new(n->hub, &n->identity, &n->transport, &err));
    REQUIRE(sn_transport_listen(n->transport, "node:1", bound, &err));
    REQUIRE(sn_span_kv_pool(span, 1 << 18, &n->pool, &err));
    REQUIRE(sn_prefix_cache_enable(n->pool, sn_span_hparams(span)->n_embd, 1 << 14, &err));
    REQUIRE(sn_scheduler_new(span, n->pool, &n->scheduler, &err));
    const sn_protocol_setup setup = {
        .transport = n->transport,
        .identity = &n->identity,
        .address = "node:1",
        .name = "node",
        .span = sn_span_describe(span),
        .model = model_id,
        .kv = sn_kv_room_of(n->pool),
        .sessions_max = SESSIONS_MAX,
        .tune_bytes_max = 1 << 20,
        .session_timeout_us = 60 * SECOND,
        .kv_timeout_us = SECOND,
        .prefix_cache_shared = true,
        .share = {.bytes_per_s = 1 << 30, .offer = offer_file, .read = read_file, .ctx = n},
        .submit = submit_job,
        .read_stats = read_stats,
        .answer_round = answer_round,
        .ctx = n};
    REQUIRE(sn_protocol_new(&setup, n->now_us, &n->protocol, &err));
    sn_protocol_share(n->protocol, &model_id, n->now_us, UNIX_MS);
    for (int i = 0; i < CLIENTS; i++) meet_client(n, i);
}

static void run_jobs(node *n) {
    for (; n->n_waiting || !sn_scheduler_idle(n->scheduler); n->now_us += 1000) {
        for (int i = 0; i < n->n_waiting; i++) sn_scheduler_add(n->scheduler, n->waiting[i]);
        n->n_waiting = 0;
        for (sn_job *job = sn_scheduler_run(n->scheduler, n->now_us), *next; job; job = next) {
            next = job->next;
            sn_protocol_job_done(n->protocol, job, n->now_us);
        }
    }
}

static void node_end(node *n) {
    run_jobs(n);
    sn_scheduler_free(&n->scheduler);
    sn_protocol_free(&n->protocol);
    require(sn_kv_pool_bytes_used(n->pool) == 0);
    for (int i = 0; i < CLIENTS; i++) sn_transport_free(&n->clients[i].transport);
    sn_transport_free(&n->transport);
    sn_hub_free(&n->hub);
    sn_kv_pool_free(&n->pool);
}

/* -- honest messages -- */

static const uint8_t zeros[SN_KEY_SIZE + 1];

/* How an operation goes on; the input says. */
typedef struct operation {
    int client;
    uint8_t session[SN_SESSION_ID_SIZE];
    sn_session *at; /* the session at the node; NULL: there is none */
    uint8_t how;
    int n_mutations;
    struct {
        uint8_t field, value;
    } mutations[3];
    int field; /* the packer's: fields that it has come to */
} operation;

static int min_int(int a, int b) { return a < b ? a : b; }

static void set_tensor(sn_msg *msg, int rank, const uint64_t *shape) {
    void *data;
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, rank, shape, &data, &err));
    memset(data, 0, msg->tensor.bytes);
}

static void make_trace(sn_msg_step *step, size_t n) {
    REQUIRE(sn_list_new(n, SN_HOPS_MAX, sizeof *step->trace, &step->trace, &err));
    REQUIRE(sn_list_new(n, SN_HOPS_MAX, sizeof *step->receipts, &step->receipts, &err));
    step->n_trace = step->n_receipts = n;
    for (size_t i = 0; i < n; i++) {
        REQUIRE(sn_calloc(&step->receipts[i].data, SN_RECEIPT_SIZE, 1, &err));
        step->receipts[i].len = SN_RECEIPT_SIZE;
        memset(step->receipts[i].data, 0xa5, SN_RECEIPT_SIZE);
    }
}

/* The next step; or the last one again, or one that rewinds. */
static void make_step(sn_msg *msg, const operation *o) {
    sn_msg_step *step = &msg->step;
    int n = o->how & 64 ? SN_KV_PAGE_TOKENS : 1 + o->how % 3, position = 0;
    step->step = 1;
    if (o->at) {
        bool again = o->how & 16 && o->at->last_reply.output;
        position = again ? o->at->last_reply.position : o->how & 32 ? o->at->length / 2 : o->at->length;
        step->step = again ? o->at->last_reply.step : o->at->last_reply.step + 1;
        if (again) n = o->at->last_reply.n_tokens;
        memcpy(step->timeline, o->at->timeline[min_int(position, o->at->length)].bytes, SN_HASH_SIZE);
    }
    memcpy(step->session, o->session, SN_SESSION_ID_SIZE);
    step->position = (uint64_t)position;
    step->wants_receipt = 1;
    make_trace(step, o->how >> 2 & TRACES_MAX);
    set_tensor(msg, 2, (uint64_t[]){(uint64_t)n, (uint64_t)sn_span_hparams(span)->n_embd});
}

static void make_kv_put(const node *n, sn_msg *msg, const operation *o) {
    sn_msg_kv_put *put = &msg->kv_put;
    uint64_t tokens = 1 + o->how % 8;
    size_t floats = sn_kv_transfer_row_floats(sn_span_hparams(span), 0, N_BLOCKS);
    memcpy(put->session, o->session, SN_SESSION_ID_SIZE);
    if (o->at) {
        put->position = (uint64_t)(o->how & 16 ? o->at->length / 2 : o->at->length);
        memcpy(put->origin, o->at->timeline[0].bytes, SN_HASH_SIZE);
        memcpy(put->timeline, o->at->timeline[put->position].bytes, SN_HASH_SIZE);
    }
    REQUIRE(sn_list_new(tokens, SN_KV_TRANSFER_TOKENS_MAX, sizeof *put->token_timelines, &put->token_timelines, &err));
    put->n_token_timelines = tokens;
    set_tensor(msg, 4, (uint64_t[]){N_BLOCKS, 2, tokens, floats / N_BLOCKS / 2});
    sn_hash hash = sn_hash_of(msg->tensor.data, msg->tensor.bytes);
    memcpy(put->tensor_hash, hash.bytes, SN_HASH_SIZE);
    (void)n;
}

static void make_open(const node *n, sn_msg_open *open, const operation *o) {
    open->protocol = SN_PROTOCOL_VERSION;
    memcpy(open->session, o->session, SN_SESSION_ID_SIZE);
    memcpy(open->model, model_id.bytes, SN_HASH_SIZE);
    open->first_block = o->how & 1;
    open->end_block = N_BLOCKS;
    open->max_tokens = 64;
    if (o->how & 2) memcpy(open->kv_source, n->clients[1 - o->client].identity.curve_key, SN_KEY_SIZE);
    if (o->how & 4) memcpy(open->predecessor, n->clients[1 - o->client].identity.curve_key, SN_KEY_SIZE);
    if (o->how & 8) memcpy(open->adapter, n->clients[o->client].adapter.bytes, SN_HASH_SIZE);
    snprintf(open->request_id, sizeof open->request_id, "fuzz");
}

/* FORWARD and BACKWARD have the same fields. */
static void make_training(const node *n, sn_msg *msg, const operation *o) {
    sn_msg_forward *f = &msg->forward;
    uint64_t rows = 0, n_embd = (uint64_t)sn_span_hparams(span)->n_embd;
    f->protocol = SN_PROTOCOL_VERSION;
    memcpy(f->model, model_id.bytes, SN_HASH_SIZE);
    f->end_block = N_BLOCKS;
    if (o->how & 1) memcpy(f->adapter, n->clients[o->client].adapter.bytes, SN_HASH_SIZE);
    f->save_activations = 1;
    f->n_samples = 1 + (o->how >> 1) % 3;
    REQUIRE(sn_list_new(f->n_samples, SN_SAMPLES_MAX, sizeof *f->samples, &f->samples, &err));
    for (size_t i = 0; i < f->n_samples; i++) rows += f->samples[i].tokens = 1 + i;
    if (msg->kind == SN_MSG_FORWARD)
        set_tensor(msg, 2, (uint64_t[]){rows, n_embd});
    else
        set_tensor(msg, 3, (uint64_t[]){2, rows, n_embd});
}

static void make_adapter_put(node *n, sn_msg *msg, const operation *o) {
    void *data;
    msg->adapter_put.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->adapter_put.model, model_id.bytes, SN_HASH_SIZE);
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){adapter_image.len / 4}, &data, &err));
    memcpy(data, adapter_image.data, adapter_image.len / 4 * 4);
    n->clients[o->client].adapter = sn_hash_of(data, msg->tensor.bytes);
    memcpy(msg->adapter_put.hash, n->clients[o->client].adapter.bytes, SN_HASH_SIZE);
}

static void make_weights(sn_msg *msg, const operation *o) {
    memcpy(msg->weights.manifest, model_id.bytes, SN_HASH_SIZE);
    msg->weights.file = o->how & 1;
    msg->weights.from = o->how * 4096u;
    msg->weights.bytes = 20000;
}

static void make_resume(sn_msg_resume *resume, const operation *o) {
    memcpy(resume->session, o->session, SN_SESSION_ID_SIZE);
    if (!o->at) return;
    resume->position = (uint64_t)(o->how & 1 ? o->at->length / 2 : o->at->length);
    resume->step = o->at->last_reply.step + 1;
}

/* The ends of the pages that some session has led to: all rows are zeros, so others over the same blocks have them. */
static void make_attach(node *n, sn_msg_attach *attach, const operation *o) {
    const sn_session *known = o->at;
    memcpy(attach->session, o->session, SN_SESSION_ID_SIZE);
    for (size_t i = 0; i < sn_sessions_count(n->protocol->sessions); i++) {
        const sn_session *s = sn_sessions_at(n->protocol->sessions, i);
        if (!known || s->length > known->length) known = s;
    }
    if (!known || known->length < SN_KV_PAGE_TOKENS) return;
    const size_t pages = (size_t)known->length / SN_KV_PAGE_TOKENS;
    REQUIRE(sn_list_new(pages, SN_ATTACH_POINTS_MAX, sizeof *attach->points, &attach->points, &err));
    for (attach->n_points = 0; attach->n_points < pages; attach->n_points++) {
        const size_t at = (pages - attach->n_points) * SN_KV_PAGE_TOKENS;
        attach->points[attach->n_points].position = at;
        memcpy(attach->points[attach->n_points].timeline, known->timeline[at].bytes, SN_HASH_SIZE);
    }
}

static void fill(node *n, sn_msg *msg, const operation *o) {
    switch (msg->kind) {
    case SN_MSG_OPEN:
        make_open(n, &msg->open, o);
        break;
    case SN_MSG_STEP:
        make_step(msg, o);
        break;
    case SN_MSG_KV_PUT:
        make_kv_put(n, msg, o);
        break;
    case SN_MSG_KV_GET:
        memcpy(msg->kv_get.session, o->session, SN_SESSION_ID_SIZE);
        msg->kv_get.tokens = 1 + o->how % 16;
        break;
    case SN_MSG_STATE_PUT: /* of blocks without states: refused */
        memcpy(msg->state_put.session, o->session, SN_SESSION_ID_SIZE);
        set_tensor(msg, 2, (uint64_t[]){1, 4});
        break;
    case SN_MSG_KV_SEND:
        memcpy(msg->kv_send.session, o->session, SN_SESSION_ID_SIZE);
        msg->kv_send.end_block = N_BLOCKS;
        break;
    case SN_MSG_ATTACH:
        make_attach(n, &msg->attach, o);
        break;
    case SN_MSG_RESUME:
        make_resume(&msg->resume, o);
        break;
    case SN_MSG_CLOSE:
        memcpy(msg->close.session, o->session, SN_SESSION_ID_SIZE);
        break;
    case SN_MSG_FORWARD:
    case SN_MSG_BACKWARD:
        make_training(n, msg, o);
        break;
    case SN_MSG_ADAPTER_PUT:
        make_adapter_put(n, msg, o);
        break;
    case SN_MSG_WEIGHTS:
        make_weights(msg, o);
        break;
    case SN_MSG_WEIGHTS_OFFER:
        memcpy(msg->weights_offer.manifest, model_id.bytes, SN_HASH_SIZE);
        msg->weights_offer.file = 1;
        break;
    case SN_MSG_PEERS:
        msg->peers.protocol = SN_PROTOCOL_VERSION;
        break;
    default: /* all zero; a tensor where the kind has one */
        break;
    }
}

/* -- the packer -- */

typedef struct packer {
    msgpack_packer to;
    operation *o;
} packer;

/* How the next field differs from the honest one; 0: it does not. */
static uint8_t mutation_of(packer *p) {
    int field = p->o->field++;
    for (int i = 0; i < p->o->n_mutations; i++)
        if (p->o->mutations[i].field == field) return (uint8_t)(1 + p->o->mutations[i].value % 64);
    return 0;
}

static void pack_name(packer *p, const char *name) { msgpack_pack_str_with_body(&p->to, name, strlen(name)); }

static uint64_t at_edge(uint8_t how, uint64_t honest, uint64_t least, uint64_t most) {
    const uint64_t edges[] = {honest,     least,      most,
                              least - 1,  most + 1,   honest + 1,
                              honest - 1, 0,          1,
                              INT32_MAX,  UINT32_MAX, UINT32_MAX + UINT64_C(1) + honest,
                              INT64_MAX,  UINT64_MAX, UINT64_MAX - honest};
    return edges[how % (sizeof edges / sizeof *edges)];
}

static void pack_number(packer *p, const char *name, uint64_t honest, uint64_t least, uint64_t most) {
    pack_name(p, name);
    msgpack_pack_uint64(&p->to, at_edge(mutation_of(p), honest, least, most));
}

static void pack_bytes(packer *p, const char *name, const uint8_t *honest, size_t size) {
    static const uint8_t other[SN_KEY_SIZE + 1] = {0xee};
    uint8_t how = mutation_of(p);
    pack_name(p, name);
    if (how)
        msgpack_pack_bin_with_body(&p->to, how & 1 ? other : zeros, how & 2 ? size + 1 - (how >> 2 & 2) : size);
    else
        msgpack_pack_bin_with_body(&p->to, honest, size);
}

static void pack_text(packer *p, const char *name, const char *honest, size_t max) {
    static char text[1024];
    uint8_t how = mutation_of(p);
    size_t len = how ? (size_t)at_edge(how, strlen(honest), 0, max) : strlen(honest);
    memset(text, 'x', sizeof text);
    if (len > sizeof text) len = sizeof text;
    pack_name(p, name);
    msgpack_pack_str_with_body(&p->to, how ? text : honest, len);
}

/* As many elements; 0 to a few more than honest, or one too many. */
static size_t count_at_edge(uint8_t how, size_t honest, size_t max) {
    const size_t counts[] = {
        honest, 0, 1, honest + 1, honest ? honest - 1 : 0, max < 64 ? max : 64, max < 64 ? max + 1 : 2};
    return counts[how % 7];
}

static void pack_blobs(packer *p, const char *name, const sn_blob *honest, size_t n, size_t max, uint64_t least,
                       uint64_t most) {
    static const uint8_t bytes[SN_ANNOUNCEMENT_SIZE_MAX + 1];
    uint8_t how = mutation_of(p);
    size_t count = count_at_edge(how, n, max);
    pack_name(p, name);
    msgpack_pack_array(&p->to, count);
    for (size_t i = 0; i < count; i++) {
        size_t len = i < n ? honest[i].len : least;
        if (how > 7) len = (size_t)at_edge(how, len, least, most);
        if (len > sizeof bytes) len = sizeof bytes;
        msgpack_pack_bin_with_body(&p->to, i < n && len == honest[i].len ? honest[i].data : bytes, len);
    }
}

#define COUNT_1(...)            +1
#define P_U64(name, ...)        pack_number(p, #name, m->name, __VA_ARGS__);
#define P_KEY(name)             pack_bytes(p, #name, m->name, SN_KEY_SIZE);
#define P_SID(name)             pack_bytes(p, #name, m->name, SN_SESSION_ID_SIZE);
#define P_STR(name, max)        pack_text(p, #name, m->name, max);
#define P_BLOBS(name, max, ...) pack_blobs(p, #name, m->name, m->n_##name, max, __VA_ARGS__);
#define P_LIST(name, type, max)                                                                                        \
    {                                                                                                                  \
        static const sn_##type none;                                                                                   \
        size_t count = count_at_edge(mutation_of(p), m->n_##name, max);                                                \
        pack_name(p, #name);                                                                                           \
        msgpack_pack_array(&p->to, count);                                                                             \
        for (size_t i = 0; i < count; i++) {                                                                           \
            msgpack_pack_map(&p->to, COUNT_OF_##type);                                                                 \
            pack_##type(p, i < m->n_##name ? &m->name[i] : &none);                                                     \
        }                                                                                                              \
    }
#define PACK(KIND, name)                                                                                               \
    static void pack_##name(packer *p, const sn_##name *m) {                                                           \
        (void)p, (void)m;                                                                                              \
        SN_FIELDS_##KIND(P_U64, P_KEY, P_SID, P_STR, P_LIST, P_BLOBS)                                                  \
    }
#define COUNT(KIND, name)                                                                                              \
    enum { COUNT_OF_##name = 0 SN_FIELDS_##KIND(COUNT_1, COUNT_1, COUNT_1, COUNT_1, COUNT_1, COUNT_1) };
#define STRUCT(KIND, name) COUNT(KIND, name) PACK(KIND, name)
STRUCT(ROUTE_ENTRY, route_entry)
STRUCT(ATTACH_POINT, attach_point)
STRUCT(TRACE, trace)
STRUCT(TOKEN_TIMELINE, token_timeline)
STRUCT(SAMPLE, sample)
STRUCT(EXPERT_PAIR, expert_pair)
STRUCT(ADAPTER_INFO, adapter_info)
STRUCT(BYTE_RANGE, byte_range)
#define X(KIND, name, tensor) STRUCT(KIND, msg_##name)
SN_MESSAGES(X)
#undef X

static void pack_tensor(packer *p, const sn_wire_tensor *t) {
    uint8_t type = mutation_of(p);
    pack_name(p, "tensor");
    msgpack_pack_map(&p->to, 2);
    pack_name(p, "dtype");
    pack_name(p, sn_dtype_name((sn_dtype)(type ? type % (SN_WIRE_DTYPE_MAX + 2) : t->dtype)));
    pack_name(p, "shape");
    size_t rank = count_at_edge(mutation_of(p), (size_t)t->rank, SN_TENSOR_RANK_MAX);
    msgpack_pack_array(&p->to, rank);
    for (size_t i = 0; i < rank; i++) {
        uint8_t how = mutation_of(p);
        msgpack_pack_uint64(&p->to, how ? at_edge(how, t->shape[i % SN_TENSOR_RANK_MAX], 1, 600)
                                        : t->shape[i % SN_TENSOR_RANK_MAX]);
    }
}

static void pack_message(packer *p, const sn_msg *msg) {
    size_t own = 2 + (msg->tensor.rank > 0);
    switch (msg->kind) {
#define X(KIND, name, tensor)                                                                                          \
    case SN_MSG_##KIND:                                                                                                \
        msgpack_pack_map(&p->to, own + COUNT_OF_msg_##name);                                                           \
        pack_msg_##name(p, &msg->name);                                                                                \
        break;
        SN_MESSAGES(X)
#undef X
    default:
        abort();
    }
    if (msg->tensor.rank) pack_tensor(p, &msg->tensor);
    pack_name(p, "kind");
    pack_name(p, sn_msg_kind_name(msg->kind));
    pack_name(p, "correlation_id");
    msgpack_pack_uint64(&p->to, 5);
}

/* -- operations -- */

/* The tensor's frame has exactly the bytes that its type and shape say, so that a byte read beyond them is noticed. */
static bool attach_tensor(sn_msg *msg, const sn_wire_tensor *honest) {
    if (!msg->tensor.rank) return true;
    if (msg->tensor.bytes > TENSOR_MAX) return false;
    uint8_t *data = malloc(msg->tensor.bytes), pattern = draw();
    require(data != NULL);
    memset(data, pattern, msg->tensor.bytes);
    if (!pattern && honest->bytes) memcpy(data, honest->data, sn_min_size(honest->bytes, msg->tensor.bytes));
    REQUIRE(sn_msg_attach_tensor(msg, 1, data, msg->tensor.bytes, free, data, &err));
    return true;
}

/* What came with the step comes back with its reply. */
static void check_reply(const sn_msg *msg) {
    const sn_msg_step_reply *reply = &msg->step_reply;
    for (size_t i = 0; i + 1 < reply->n_receipts; i++) {
        require(reply->receipts[i].len == SN_RECEIPT_SIZE);
        for (size_t k = 0; k < SN_RECEIPT_SIZE; k++)
            require(reply->receipts[i].data[k] == 0xa5 || !reply->receipts[i].data[k]);
    }
}

static void take_replies(node *n) {
    for (int i = 0; i < CLIENTS; i++)
        for (;;) {
            sn_event event;
            REQUIRE(sn_transport_recv(n->clients[i].transport, 0, &event, &err));
            if (!event.peer) break;
            if (event.msg && event.msg->kind == SN_MSG_STEP_REPLY) check_reply(event.msg);
            sn_msg_free(&event.msg);
        }
}

static const sn_msg_kind often[] = {SN_MSG_OPEN,     SN_MSG_STEP,        SN_MSG_STEP,  SN_MSG_KV_PUT,
                                    SN_MSG_KV_GET,   SN_MSG_RESUME,      SN_MSG_CLOSE, SN_MSG_FORWARD,
                                    SN_MSG_BACKWARD, SN_MSG_ADAPTER_PUT, SN_MSG_STEP,  SN_MSG_ATTACH};

static operation draw_operation(node *n, sn_msg_kind *kind) {
    uint8_t what = draw(), who = draw();
    operation o = {.client = who & 1, .how = draw()};
    *kind = what < 128 ? often[what % (sizeof often / sizeof *often)] : (sn_msg_kind)(what % SN_MSG_KIND_COUNT);
    o.session[0] = (uint8_t)(1 + (who >> 1 & 3));
    o.at = sn_sessions_find(n->protocol->sessions, o.session);
    o.n_mutations = draw() % 4;
    for (int i = 0; i < o.n_mutations; i++) {
        o.mutations[i].field = draw() % 48;
        o.mutations[i].value = draw();
    }
    return o;
}

static void send_message(node *n, operation *o, sn_msg_kind kind) {
    sn_msg *honest, *msg;
    sn_err why;
    REQUIRE(sn_msg_new(kind, 5, &honest, &err));
    fill(n, honest, o);
    msgpack_sbuffer frame;
    msgpack_sbuffer_init(&frame);
    packer p = {.o = o};
    msgpack_packer_init(&p.to, &frame, msgpack_sbuffer_write);
    pack_message(&p, honest);
    sn_event event = {.peer = n->clients[o->client].peer, .arrived_us = n->now_us};
    memcpy(event.key, n->clients[o->client].identity.curve_key, SN_KEY_SIZE);
    if (sn_msg_decode(frame.data, frame.size, &msg, &why)) {
        event.err = why;
        event.correlation_id = sn_msg_correlation_id(frame.data, frame.size);
        sn_protocol_handle(n->protocol, &event, n->now_us, UNIX_MS);
    } else if (attach_tensor(msg, &honest->tensor)) {
        event.msg = msg;
        sn_protocol_handle(n->protocol, &event, n->now_us, UNIX_MS);
    } else {
        sn_msg_free(&msg);
    }
    msgpack_sbuffer_destroy(&frame);
    sn_msg_free(&honest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static node n;
    load_once();
    input = data;
    input_end = data + size;
    node_begin(&n);
    for (int i = 0; i < OPERATIONS_MAX && input < input_end; i++) {
        sn_msg_kind kind;
        operation o = draw_operation(&n, &kind);
        send_message(&n, &o, kind);
        if (!(o.how & 64)) run_jobs(&n); /* else it waits in the engine while others come */
        if (o.how & 128) (void)sn_protocol_tick(n.protocol, n.now_us += SECOND, UNIX_MS);
        take_replies(&n);
    }
    node_end(&n);
    return 0;
}
