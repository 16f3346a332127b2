/* What all backends share: the table of backends, names of devices, opening and listing them, joining limits, and the
 * count of the memory that is allocated of a device. */
#include "device/device.h"

#include "base/log.h"
#include "base/mem.h"
#include "device/backends.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* -- the backends of this build, in the order of sn_device_kind */

typedef struct backend {
    const char *name;
    sn_status (*open)(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err);
    const char *(*describe)(const sn_device *device);
    sn_status (*list)(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err);
    const char *unavailable; /* the reason, where the functions are NULL */
} backend;

static const backend backends[] = {
    {"cpu", sn_cpu_open, sn_cpu_describe, sn_cpu_list, NULL},
#ifdef SN_HAVE_CUDA
    {"cuda", sn_cuda_open, sn_cuda_describe, sn_cuda_list, NULL},
#else
    {"cuda", NULL, NULL, NULL, "this build has no CUDA backend"},
#endif
#ifdef SN_HAVE_XPU
    {"xpu", sn_xpu_open, sn_xpu_describe, sn_xpu_list, NULL},
#else
    {"xpu", NULL, NULL, NULL, "this build has no Level Zero backend"},
#endif
};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

/* -- shapes of KV caches */

static sn_kv_shape alone(const sn_kv_shape *s, bool other) {
    const sn_kv_heads usual = {s->n_kv_heads, s->head_dim, s->value_dim}, *own = other ? &s->other : &usual;
    return (sn_kv_shape){.n_blocks = 1,
                         .n_kv_heads = own->n,
                         .head_dim = own->key_dim,
                         .page_tokens = s->page_tokens,
                         .dtype = s->dtype,
                         .latent = s->latent,
                         .value_dim = own->value_dim};
}

sn_kv_shape sn_kv_block_shape(const sn_kv_shape *s, int block) {
    if (block >= s->n_blocks)
        return (sn_kv_shape){.n_blocks = 1,
                             .n_kv_heads = 1,
                             .head_dim = s->index_dim,
                             .page_tokens = s->page_tokens,
                             .dtype = SN_KV_F32,
                             .keys_only = true};
    return alone(s, s->is_other[block / 64] >> block % 64 & 1);
}

size_t sn_kv_block_offset(const sn_kv_shape *s, int block, size_t (*block_bytes)(const sn_kv_shape *one)) {
    const sn_kv_shape usual = alone(s, false), other = alone(s, true), index = sn_kv_block_shape(s, s->n_blocks);
    if (block > s->n_blocks)
        return sn_kv_block_offset(s, s->n_blocks, block_bytes) + (size_t)(block - s->n_blocks) * block_bytes(&index);
    const size_t n = s->other.n ? (size_t)sn_kv_n_other(s, block) : 0;
    return ((size_t)block - n) * block_bytes(&usual) + (n ? n * block_bytes(&other) : 0);
}

/* -- names */

enum { ORDINAL_MAX = 1023 };

/* Parses up to four digits; false for anything else. */
static bool parse_number(const char *text, int *out) {
    *out = 0;
    if (!*text || strlen(text) > 4) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        *out = *out * 10 + (*text - '0');
    }
    return *out <= ORDINAL_MAX;
}

/* Parses "KIND" or "KIND:3". */
static bool parse_kind(const char *name, const char *kind, int *ordinal) {
    size_t len = strlen(kind);
    *ordinal = 0;
    if (strncasecmp(name, kind, len)) return false;
    return !name[len] || (name[len] == ':' && parse_number(name + len + 1, ordinal));
}

/* Parses a name without looking at the devices there are; *accelerator when it leaves the kind open. */
static bool parse_device_name(const char *name, sn_device_id *out, bool *accelerator) {
    *out = (sn_device_id){SN_DEVICE_CPU, 0};
    *accelerator = parse_number(name, &out->ordinal) || parse_kind(name, "gpu", &out->ordinal);
    if (*accelerator) return true;
    for (int kind = 0; kind < N_BACKENDS; kind++) {
        if (!parse_kind(name, backends[kind].name, &out->ordinal)) continue;
        out->kind = (sn_device_kind)kind;
        return kind != SN_DEVICE_CPU || out->ordinal == 0;
    }
    return false;
}

/* "cpu, cuda:0" */
static const char *list_names(const sn_device_id *available, size_t n, char *out, size_t capacity) {
    size_t at = 0;
    snprintf(out, capacity, "no device");
    for (size_t i = 0; i < n && at < capacity; i++) {
        char name[32];
        at += (size_t)snprintf(out + at, capacity - at, "%s%s", i ? ", " : "", sn_device_id_name(available[i], name));
    }
    return out;
}

static bool has_kind(const sn_device_id *available, size_t n, sn_device_kind kind) {
    for (size_t i = 0; i < n; i++)
        if (available[i].kind == kind) return true;
    return false;
}

sn_status sn_device_id_match(const char *name, const sn_device_id *available, size_t n, sn_device_id *out,
                             sn_err *err) {
    bool accelerator;
    char names[256];
    if (!parse_device_name(name, out, &accelerator))
        return sn_fail(err, SN_REFUSED, "\"%.64s\" is no device: use cpu, cuda:N or xpu:N; there is %s", name,
                       list_names(available, n, names, sizeof names));
    if (accelerator) out->kind = has_kind(available, n, SN_DEVICE_CUDA) ? SN_DEVICE_CUDA : SN_DEVICE_XPU;
    for (size_t i = 0; i < n; i++)
        if (sn_device_id_equal(available[i], *out)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "there is no device \"%.64s\" here: there is %s", name,
                   list_names(available, n, names, sizeof names));
}

sn_status sn_device_id_parse(const char *name, sn_device_id *out, sn_err *err) {
    sn_device_info infos[SN_DEVICES_MAX];
    sn_device_id available[SN_DEVICES_MAX];
    bool accelerator;
    size_t n = 0;
    sn_status status = SN_OK;
    const bool named = parse_device_name(name, out, &accelerator) && !accelerator;
    /* The CPU always exists: no driver need be loaded to learn that, and of others that of their kind only. */
    if (named && out->kind == SN_DEVICE_CPU) return SN_OK;
    if (named) status = sn_devices_list_kind(out->kind, infos, &n, err);
    for (size_t i = 0; i < n; i++)
        if (sn_device_id_equal(infos[i].id, *out)) return SN_OK;
    if (!status) status = sn_devices_list(infos, &n, err);
    for (size_t i = 0; i < n; i++) available[i] = infos[i].id;
    return status ? status : sn_device_id_match(name, available, n, out, err);
}

char *sn_device_id_name(sn_device_id id, char out[32]) {
    if (id.kind == SN_DEVICE_CPU)
        snprintf(out, 32, "cpu");
    else
        snprintf(out, 32, "%s:%d", backends[id.kind].name, id.ordinal);
    return out;
}

/* -- checks that backends share */

sn_status sn_device_check_groups(const sn_moe_router *r, sn_err *err) {
    bool possible =
        r->n_groups == 0 || (r->n_groups > 0 && r->n_experts % r->n_groups == 0 && r->n_groups_used > 0 &&
                             r->n_groups_used <= r->n_groups && r->k <= r->n_experts / r->n_groups * r->n_groups_used);
    if (possible) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%d of %d experts from %d of %d groups are not possible", r->k, r->n_experts,
                   r->n_groups_used, r->n_groups);
}

sn_status sn_device_check_delta(const sn_delta_shape *s, int n_sequences, const sn_sequence *sequences, sn_err *err) {
    bool matrices = s->kind != SN_SHORT_CONV;
    bool fits = s->n_key_heads > 0 && s->n_value_heads > 0 && s->n_value_heads % s->n_key_heads == 0 &&
                (matrices ? s->key_dim > 0 : s->key_dim == 0) && s->value_dim > 0 && s->key_dim <= SN_DELTA_DIM_MAX &&
                (s->value_dim <= SN_DELTA_DIM_MAX || !matrices) && s->taps >= 2 && s->taps <= SN_DELTA_TAPS_MAX &&
                (unsigned)s->kind < SN_RECURRENCE_COUNT;
    if (!fits)
        return sn_fail(err, SN_REFUSED, "%d and %d heads of (%d, %d) with %d taps are not possible", s->n_key_heads,
                       s->n_value_heads, s->key_dim, s->value_dim, s->taps);
    for (int i = 0; i < n_sequences; i++)
        if (!sequences[i].state.after)
            return sn_fail(err, SN_REFUSED, "a session of this batch has no recurrent state");
    return SN_OK;
}

/* -- devices */

sn_status sn_device_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) {
    *out = NULL;
    if ((unsigned)id.kind >= N_BACKENDS) return sn_fail(err, SN_REFUSED, "device kind %d does not exist", (int)id.kind);
    const backend *b = &backends[id.kind];
    if (!b->open) return sn_fail(err, SN_REFUSED, "%s: use cpu", b->unavailable);
    sn_status status = b->open(id, options, out, err);
    if (!status && options && options->batch_rows) (*out)->batch_rows = options->batch_rows;
    return status;
}

void sn_device_close(sn_device **device) {
    if (!*device) return;
    (*device)->ops->close(*device);
    *device = NULL;
}

static int max_int(int a, int b) { return a > b ? a : b; }

sn_device_limits sn_device_limits_join(const sn_device_limits *a, const sn_device_limits *b) {
    int rows = max_int(a->rows, b->rows);
    return (sn_device_limits){.rows = rows,
                              .width = max_int(a->width, b->width),
                              .context = max_int(a->context, b->context),
                              .sequences =
                                  max_int(a->sequences ? a->sequences : a->rows, b->sequences ? b->sequences : b->rows),
                              .heads = max_int(a->heads, b->heads),
                              .head_dim = max_int(a->head_dim, b->head_dim),
                              .experts = max_int(a->experts, b->experts),
                              .experts_used = max_int(a->experts_used, b->experts_used),
                              .expert_width = max_int(a->expert_width, b->expert_width),
                              .grad_tokens = max_int(a->grad_tokens, b->grad_tokens),
                              .chosen = max_int(a->chosen, b->chosen)};
}

/* CUDA counts a pair's outputs by four, as blocks of a launch. */
bool sn_device_takes_pairs(size_t rows, size_t used, size_t width) {
    size_t pairs;
    return sn_mul(rows, used, &pairs) && (!pairs || (pairs <= SN_MOE_PAIRS_MAX && width <= INT_MAX / pairs - 4));
}

size_t sn_device_memory_max(const sn_device_options *options) {
    return options && options->memory_max ? options->memory_max : SIZE_MAX;
}

size_t sn_device_memory_left(const sn_device *d) {
    return d->memory_max == SIZE_MAX ? SIZE_MAX : d->memory_max - d->memory_used;
}

sn_status sn_device_take_memory(sn_device *d, size_t bytes, sn_err *err) {
    char name[32], wanted[32], most[32], used[32];
    if (bytes > sn_device_memory_left(d))
        return sn_fail(err, SN_STOP,
                       "%s may use %s of its memory, %s are in use, and %s more do not fit: give a larger "
                       "--device-memory, fewer blocks or a smaller --kv-memory",
                       sn_device_id_name(d->id, name), sn_format_size(d->memory_max, most),
                       sn_format_size(d->memory_used, used), sn_format_size(bytes, wanted));
    d->memory_used += bytes;
    return SN_OK;
}

void sn_device_give_memory(sn_device *d, size_t bytes) { d->memory_used -= bytes; }

sn_status sn_device_batch_end(sn_device *d, const sn_batch *batch, sn_status status, sn_err *err) {
    sn_err unused; /* `status` has its own sentence */
    sn_status ended = status && batch->graph_key ? SN_OK : d->ops->batch_end(d, status ? &unused : err);
    return status ? status : ended;
}

sn_status sn_device_try(sn_device_id id, const sn_device_options *options, sn_err *err) {
    enum { BYTES = SN_DEVICE_TRY_BYTES };
    uint8_t there[BYTES], back[BYTES] = {0};
    char name[32];
    void *memory = NULL;
    sn_device *d = NULL;
    memset(there, 0x5a, sizeof there);
    sn_status status = sn_device_open(id, options, &d, err);
    if (!status) status = d->ops->alloc(d, BYTES, &memory, err);
    if (!status) status = d->ops->upload(d, memory, there, BYTES, err);
    if (!status) status = d->ops->download(d, back, memory, BYTES, err);
    if (!status && memcmp(there, back, BYTES))
        status =
            sn_fail(err, SN_STOP, "%s does not give back the bytes that it was given", sn_device_id_name(id, name));
    if (memory) d->ops->free(d, memory, BYTES);
    sn_device_close(&d);
    return status;
}

const char *sn_device_describe(const sn_device *device) { return backends[device->id.kind].describe(device); }

static sn_status list_kind(sn_device_kind kind, sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) {
    static atomic_bool logged[N_BACKENDS];
    const backend *b = &backends[kind];
    sn_err reason = {.text = ""};
    sn_status status = b->list ? b->list(out, n, &reason) : sn_fail(&reason, SN_REFUSED, "%s", b->unavailable);
    if (!status) return SN_OK;
    if (status != SN_REFUSED || kind == SN_DEVICE_CPU) return sn_fail(err, status, "%s", reason.text);
    if (!atomic_exchange(&logged[kind], true))
        sn_log(SN_LOG_DEBUG, "backend unavailable", "backend=%s text=%s", b->name, reason.text);
    return SN_OK;
}

sn_status sn_devices_list_kind(sn_device_kind kind, sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) {
    *n = 0;
    return list_kind(kind, out, n, err);
}

sn_status sn_devices_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) {
    sn_status status = SN_OK;
    *n = 0;
    for (int kind = 0; kind < N_BACKENDS && !status; kind++) status = list_kind((sn_device_kind)kind, out, n, err);
    return status;
}

const sn_word sn_kv_dtype_words[] = {{"f32", SN_KV_F32}, {"f16", SN_KV_F16}, {"q8", SN_KV_Q8}, {NULL, 0}};

const sn_word sn_isa_words[] = {{"c", 0},    {"avx2", 1},    {"avx512", 2}, {"amx", 3},
                                {"neon", 4}, {"dotprod", 5}, {"i8mm", 6},   {NULL, 0}};

const char *sn_kv_dtype_name(sn_kv_dtype dtype) { return sn_kv_dtype_words[dtype].name; }

static const sn_dtype kv_elements[SN_KV_DTYPE_COUNT] = {SN_F32, SN_F16, SN_Q8};
sn_dtype sn_kv_dtype_element(sn_kv_dtype dtype) { return kv_elements[dtype]; }

bool sn_kv_dtype_of_element(uint64_t element, sn_kv_dtype *out) {
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++)
        if (element == (uint64_t)kv_elements[t]) {
            *out = (sn_kv_dtype)t;
            return true;
        }
    return false;
}
