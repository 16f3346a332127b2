/* Embedding and LM head on a device.
 *
 * Every function works on HEAD_ROWS rows at a time, in two scratch buffers on the device: x holds hidden states, h
 * normed ones. Embedding: rows of the embedding matrix, normed for families that norm them, scaled on the host. Logits:
 * the hidden states come from outside, so they pass the guard (device/guard.h); then norm, then the output matrix. On a
 * device whose memory the host can read, the logits of one caller are written straight into its array. Where the model
 * ties embedding and output matrix, both hold one parameter (blocks/ties.h). An embedding matrix of its own, of which a
 * token needs one row, stays in host memory: a GPU's memory is worth more, and the rows leave the host anyway.
 *
 * Sessions of several threads share a head, whose matrix is read once for all rows of a pass, and that is most of the
 * time of a row. So callers stand in a queue: its first leads the next pass once none runs, and takes along all rows
 * that wait for their logits then. While steps are in flight (sn_lm_head_expect) it gathers before: rows of one batch
 * at a node arrive shortly after each other, and a pass of a few rows takes hardly longer than one of one row. It stops
 * when it has GATHERED_ROWS, or no row came for a third of the time of a row. Who does not want logits need not wait
 * for a leader that gathers. */
#include "client/generate/lm_head.h"

#include "base/clock.h"
#include "base/mem.h"
#include "blocks/ties.h"
#include "blocks/weights.h"
#include "device/guard.h"
#include "device/weight.h"
#include "model/source.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* Rows of one device call: enough for full speed, and few enough that the logits of a large vocabulary stay small. */
enum { HEAD_ROWS = 64 };
enum { GATHERED_ROWS = 4 };

/* A caller in the queue, for the device and the scratch or for the logits of at most HEAD_ROWS rows. It lies on the
 * stack of its thread. */
typedef struct head_call {
    struct head_call *next;
    pthread_cond_t changed; /* signalled when it is the first in the queue, or done */
    bool wants_logits, done;
    bool normed; /* the rows have passed a norm */
    const float *hidden;
    float *logits;
    int n;
    sn_status status;
    sn_err *err;
} head_call;

struct sn_lm_head {
    pthread_mutex_t lock; /* of the queue */
    pthread_condattr_t monotonic;
    head_call *first, **last;
    head_call *gathers; /* the first in the queue, which leads and waits for more rows; NULL: none */
    int in_flight;      /* steps whose rows will come */
    bool busy;          /* a thread uses what follows */
    int64_t row_us;     /* time of the newest pass of one row; 0: not known */
    sn_device *device;
    sn_device *embedder; /* has the embedding: `device`, or `own` */
    sn_device *own;      /* a CPU for the embedding alone, or NULL */
    size_t n_embd, n_vocab;
    float norm_eps, embed_scale, logit_scale, logit_softcap;
    bool layer_norm;
    sn_ties *ties;
    sn_tie embedding_tie, output_tie; /* two holders of one parameter where the model ties them */
    sn_weight embedding, output;
    float *norm, *norm_bias;             /* device, (n_embd); NULL: the family has none */
    float *embed_norm, *embed_norm_bias; /* the same, for the embeddings: the embedder's */
    float *x, *h;                        /* device, (HEAD_ROWS, n_embd): hidden states; normed ones */
    float *raw;    /* device, (HEAD_ROWS, n_vocab): before the softcap; made by the first gradient that needs it */
    float *logits; /* device, (HEAD_ROWS, n_vocab); where the host can read it, made by the first pass of two callers */
};

static sn_status matrix_upload(void *tensor, sn_device *device, void *memory, sn_err *err) {
    const sn_model_tensor *t = tensor;
    sn_weight weight;
    const void *rows;
    void *copy;
    sn_status status = sn_model_contiguous(t, &rows, &copy, err);
    if (!status) status = sn_weight_upload(device, t->dtype, t->rows, t->cols, rows, memory, &weight, err);
    free(copy);
    return status;
}

static sn_status lm_head_load_matrix(sn_lm_head *head, const sn_model *model, sn_role role, sn_tie *tie, sn_weight *out,
                                     sn_err *err) {
    sn_device *device = role == SN_ROLE_TOKEN_EMBEDDING ? head->embedder : head->device;
    sn_model_tensor t;
    size_t bytes = 0;
    sn_status status = sn_model_find(model, role, 0, &t, err);
    if (!status && sn_model_is_ordered(&t))
        status = sn_fail(err, SN_REFUSED,
                         "the LM head's columns are in the order of their activations (desc_act), which is not "
                         "supported: use a version without act-order");
    if (!status) status = device->ops->weight_size(device, t.dtype, t.rows, t.cols, &bytes, err);
    if (!status) status = sn_ties_acquire(head->ties, t.tie, device, bytes, matrix_upload, &t, tie, err);
    if (status) return status;
    *out = (sn_weight){t.dtype, t.rows, t.cols, bytes, tie->memory, NULL};
    sn_model_release_pages(model, &t);
    return SN_OK;
}

static sn_status device_alloc(sn_device *device, size_t rows, size_t cols, float **out, sn_err *err) {
    void *memory = NULL;
    sn_status status = device->ops->alloc(device, rows * cols * sizeof(float), &memory, err);
    *out = memory;
    return status;
}

static sn_status lm_head_alloc(sn_lm_head *head, size_t rows, size_t cols, float **out, sn_err *err) {
    return device_alloc(head->device, rows, cols, out, err);
}

/* *out stays NULL where the family has no such vector. */
static sn_status lm_head_load_vector(sn_lm_head *head, const sn_model *model, sn_role role, const char *name,
                                     float **out, sn_err *err) {
    const bool of_embedding = role == SN_ROLE_EMBED_NORM || role == SN_ROLE_EMBED_NORM_BIAS;
    sn_device *device = of_embedding ? head->embedder : head->device;
    sn_model_tensor t;
    sn_status status = sn_model_find(model, role, 0, &t, err);
    if (status || !t.data) return status;
    float *host = NULL;
    status = sn_calloc(&host, t.cols, sizeof *host, err);
    if (!status) status = device_alloc(device, 1, head->n_embd, out, err);
    if (!status) status = sn_vector_read(sn_model_hparams(model), role, &t, name, host, err);
    if (!status) status = device->ops->upload(device, *out, host, head->n_embd * sizeof(float), err);
    free(host);
    sn_model_release_pages(model, &t);
    return status;
}

static sn_status lm_head_load_weights(sn_lm_head *head, const sn_model *model, sn_err *err) {
    sn_status status =
        lm_head_load_matrix(head, model, SN_ROLE_TOKEN_EMBEDDING, &head->embedding_tie, &head->embedding, err);
    if (!status) status = lm_head_load_matrix(head, model, SN_ROLE_OUTPUT, &head->output_tie, &head->output, err);
    if (!status) status = lm_head_load_vector(head, model, SN_ROLE_OUTPUT_NORM, "output norm", &head->norm, err);
    if (!status)
        status =
            lm_head_load_vector(head, model, SN_ROLE_OUTPUT_NORM_BIAS, "output norm's bias", &head->norm_bias, err);
    if (!status)
        status = lm_head_load_vector(head, model, SN_ROLE_EMBED_NORM, "embedding norm", &head->embed_norm, err);
    if (!status)
        status = lm_head_load_vector(head, model, SN_ROLE_EMBED_NORM_BIAS, "embedding norm's bias",
                                     &head->embed_norm_bias, err);
    return status;
}

/* y = norm(x), row by row; y may be x. */
static sn_status norm_rows(const sn_lm_head *head, sn_device *d, int rows, const float *weight, const float *bias,
                           const float *x, float *y, sn_err *err) {
    int width = (int)head->n_embd;
    return head->layer_norm ? d->ops->layer_norm(d, rows, width, x, weight, bias, head->norm_eps, y, err)
                            : d->ops->rms_norm(d, rows, width, x, weight, head->norm_eps, y, err);
}

/* h = the final norm of x. */
static sn_status lm_head_norm_rows(sn_lm_head *head, int rows, sn_err *err) {
    return norm_rows(head, head->device, rows, head->norm, head->norm_bias, head->x, head->h, err);
}

/* h = h * logit_scale: of logits by way of the rows that they are made of, and of their gradient. */
static sn_status lm_head_scale(sn_lm_head *head, int rows, sn_err *err) {
    if (head->logit_scale == 1) return SN_OK;
    return head->device->ops->scale(head->device, rows, (int)head->n_embd, head->h, head->logit_scale, NULL, head->h,
                                    err);
}

/* logits = softcap * tanh(logits / softcap) */
static sn_status lm_head_softcap(sn_lm_head *head, int rows, float *logits, sn_err *err) {
    const sn_device_ops *ops = head->device->ops;
    int width = (int)head->n_vocab;
    sn_status status = ops->scale(head->device, rows, width, logits, 1 / head->logit_softcap, NULL, logits, err);
    if (!status) status = ops->activate(head->device, (size_t)rows * head->n_vocab, SN_TANH, logits, NULL, logits, err);
    return status ? status : ops->scale(head->device, rows, width, logits, head->logit_softcap, NULL, logits, err);
}

/* -- opening and closing -- */

/* Where the embedding rests: beside the output matrix if it is that matrix, else in host memory. */
static sn_status open_embedder(sn_lm_head *head, const sn_model *model, sn_err *err) {
    sn_model_tensor embedding, output;
    sn_status status = sn_model_find(model, SN_ROLE_TOKEN_EMBEDDING, 0, &embedding, err);
    if (!status) status = sn_model_find(model, SN_ROLE_OUTPUT, 0, &output, err);
    head->embedder = head->device;
    if (status || head->device->host_visible || embedding.tie == output.tie) return status;
    status = sn_device_open((sn_device_id){.kind = SN_DEVICE_CPU}, &(sn_device_options){.threads = 1}, &head->own, err);
    head->embedder = head->own;
    return status;
}

/* Bytes that the head takes of its device, with what `prepare` takes there. The norms' vectors count as two of
 * n_embd: the final one and its bias; those of an embedding on this device as two more. */
static sn_status bytes_needed(const sn_lm_head *head, const sn_model *model, const sn_device_limits *limits,
                              size_t *bytes, sn_err *err) {
    const sn_device_ops *ops = head->device->ops;
    const size_t rows = 2 * HEAD_ROWS + 4, prepared = ops->prepare_bytes(head->device, limits);
    sn_model_tensor output;
    size_t matrix = 0;
    sn_status status = sn_model_find(model, SN_ROLE_OUTPUT, 0, &output, err);
    if (!status) status = ops->weight_size(head->device, output.dtype, output.rows, output.cols, &matrix, err);
    if (status) return status;
    if (sn_add(matrix, prepared, bytes) && sn_add(*bytes, rows * head->n_embd * sizeof(float), bytes) &&
        sn_add(*bytes, HEAD_ROWS * head->n_vocab * sizeof(float), bytes))
        return SN_OK;
    return sn_fail(err, SN_REFUSED, "a head of %zu tokens is too large", head->n_vocab);
}

/* Of a device with memory of its own, before anything of it is taken. */
static sn_status check_room(const sn_lm_head *head, const sn_model *model, const sn_device_limits *limits,
                            sn_err *err) {
    sn_device *d = head->device;
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0, needed = 0, room = sn_device_memory_left(d);
    char name[32], wanted[32], there[32];
    if (d->host_visible) return SN_OK;
    sn_status status = bytes_needed(head, model, limits, &needed, err);
    if (!status) status = sn_devices_list_kind(d->id.kind, infos, &n, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++)
        if (sn_device_id_equal(infos[i].id, d->id))
            room = sn_min_size(room, infos[i].memory_free - sn_min_size(infos[i].memory_reserve, infos[i].memory_free));
    if (needed <= room) return SN_OK;
    return sn_fail(err, SN_STOP,
                   "%s has %s of memory left, and %s are needed: give --device cpu, or leave it more, as with "
                   "--device-memory of a node there",
                   sn_device_id_name(d->id, name), sn_format_size(room, there), sn_format_size(needed, wanted));
}

static sn_status lm_head_fill(sn_lm_head *head, const sn_model *model, sn_err *err) {
    /* The rows of n_vocab elements that leave the head need no scratch memory. */
    const sn_device_limits limits = {.rows = HEAD_ROWS, .width = (int)head->n_embd, .context = 1};
    sn_device *d = head->device;
    sn_status status = sn_model_need_ends(model, err);
    if (!status) status = check_room(head, model, &limits, err);
    if (!status) status = open_embedder(head, model, err);
    if (!status) status = d->ops->prepare(d, &limits, err);
    if (!status && head->own) status = head->own->ops->prepare(head->own, &limits, err);
    if (!status) status = sn_ties_new(&head->ties, err);
    if (!status) status = lm_head_alloc(head, HEAD_ROWS, head->n_embd, &head->x, err);
    if (!status) status = lm_head_alloc(head, HEAD_ROWS, head->n_embd, &head->h, err);
    if (!status && !d->host_visible) status = lm_head_alloc(head, HEAD_ROWS, head->n_vocab, &head->logits, err);
    return status ? status : lm_head_load_weights(head, model, err);
}

sn_status sn_lm_head_load(const sn_model *model, sn_device *device, sn_lm_head **out, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_lm_head *head = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&head, 1, sizeof *head, err);
    if (status) return status;
    *head = (sn_lm_head){.device = device,
                         .embedder = device,
                         .n_embd = (size_t)hp->n_embd,
                         .n_vocab = (size_t)hp->n_vocab,
                         .norm_eps = hp->norm_eps,
                         .embed_scale = hp->embed_scale,
                         .logit_scale = hp->logit_scale,
                         .logit_softcap = hp->logit_softcap,
                         .layer_norm = hp->layer_norm};
    pthread_mutex_init(&head->lock, NULL);
    pthread_condattr_init(&head->monotonic);
    pthread_condattr_setclock(&head->monotonic, CLOCK_MONOTONIC);
    head->last = &head->first;
    status = lm_head_fill(head, model, err);
    if (status) sn_lm_head_free(&head);
    *out = head;
    return status ? sn_err_context(err, "embedding and LM head") : SN_OK;
}

void sn_lm_head_free(sn_lm_head **out) {
    sn_lm_head *head = *out;
    if (!head) return;
    const sn_device_ops *ops = head->device->ops;
    if (head->ties) {
        sn_ties_release(head->ties, &head->output_tie);
        sn_ties_release(head->ties, &head->embedding_tie);
    }
    sn_ties_free(&head->ties);
    float *vectors[] = {head->norm, head->norm_bias, head->embed_norm, head->embed_norm_bias};
    for (int i = 0; i < 4; i++) {
        sn_device *d = i < 2 ? head->device : head->embedder;
        if (vectors[i]) d->ops->free(d, vectors[i], head->n_embd * sizeof(float));
    }
    ops->free(head->device, head->x, HEAD_ROWS * head->n_embd * sizeof(float));
    ops->free(head->device, head->h, HEAD_ROWS * head->n_embd * sizeof(float));
    if (head->raw) ops->free(head->device, head->raw, HEAD_ROWS * head->n_vocab * sizeof(float));
    if (head->logits) ops->free(head->device, head->logits, HEAD_ROWS * head->n_vocab * sizeof(float));
    sn_device_close(&head->own);
    pthread_condattr_destroy(&head->monotonic);
    pthread_mutex_destroy(&head->lock);
    free(head);
    *out = NULL;
}

/* On an embedder whose memory the host can read, the rows are made in the caller's array. */
static sn_status embed_rows(sn_lm_head *head, const int32_t *ids, int n, float *hidden, sn_err *err) {
    sn_device *d = head->embedder;
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= head->n_vocab)
            return sn_fail(err, SN_REFUSED, "token %d at index %d is not in this model's vocabulary of %zu", ids[i], i,
                           head->n_vocab);
    for (int done = 0; done < n; done += HEAD_ROWS) {
        int rows = n - done < HEAD_ROWS ? n - done : HEAD_ROWS;
        float *out = hidden + (size_t)done * head->n_embd, *made = d->host_visible ? out : head->x;
        sn_status status = d->ops->get_rows(d, &head->embedding, rows, ids + done, made, err);
        if (!status && head->embed_norm)
            status = norm_rows(head, d, rows, head->embed_norm, head->embed_norm_bias, made, made, err);
        if (!status && made != out)
            status = d->ops->download(d, out, made, (size_t)rows * head->n_embd * sizeof(float), err);
        if (status) return status;
    }
    for (size_t i = 0; i < (size_t)n * head->n_embd && head->embed_scale != 1; i++) hidden[i] *= head->embed_scale;
    return SN_OK;
}

/* Copies the rows of a caller to head->x, from row `at` on. */
static sn_status logits_enter(sn_lm_head *head, const head_call *call, int at) {
    const sn_tensor outside = {.name = "hidden states",
                               .data = call->hidden,
                               .dtype = SN_F32,
                               .rank = 2,
                               .shape = {call->n, (int64_t)head->n_embd}};
    return sn_guard(&outside, head->device, 2, outside.shape, head->x + (size_t)at * head->n_embd, NULL, call->err);
}

/* h = x of the rows that are normed already. */
static sn_status keep_normed(sn_lm_head *head, const head_call *calls, sn_err *err) {
    sn_status status = SN_OK;
    float *at = head->h;
    for (const head_call *c = calls; c && !status; c = c->next) {
        if (c->status) continue;
        const size_t floats = (size_t)c->n * head->n_embd;
        if (c->normed) status = head->device->ops->upload(head->device, at, c->hidden, floats * sizeof *at, err);
        at += floats;
    }
    return status;
}

/* head->logits, or `out`, of the rows that have entered. */
static sn_status logits_of_rows(sn_lm_head *head, const head_call *calls, int rows, float *out, sn_err *err) {
    sn_linear linear = {.weight = &head->output, .y = out};
    sn_status status = lm_head_norm_rows(head, rows, err);
    if (!status) status = keep_normed(head, calls, err);
    if (!status) status = lm_head_scale(head, rows, err);
    if (!status) status = head->device->ops->linear(head->device, rows, head->h, 1, &linear, err);
    if (!status && head->logit_softcap > 0) status = lm_head_softcap(head, rows, out, err);
    return status ? status : head->device->ops->finish(head->device, err);
}

/* The logits of callers, HEAD_ROWS rows at most. Each has a status of its own: a failure of the device is everyone's.
 */
static void logits_of_calls(sn_lm_head *head, head_call *calls) {
    const sn_device_ops *ops = head->device->ops;
    bool direct = !calls->next && head->device->host_visible;
    sn_err err;
    int rows = 0;
    for (head_call *c = calls; c; c = c->next)
        if (!(c->status = logits_enter(head, c, rows))) rows += c->n;
    sn_status status = rows ? logits_of_rows(head, calls, rows, direct ? calls->logits : head->logits, &err) : SN_OK;
    const float *from = head->logits;
    for (head_call *c = calls; c; c = c->next) {
        if (c->status) continue;
        if (status) *c->err = err;
        c->status = status;
        size_t floats = (size_t)c->n * head->n_vocab;
        if (!status && !direct) c->status = ops->download(head->device, c->logits, from, floats * sizeof *from, c->err);
        if (!direct) from += floats;
    }
}

/* *draw: the gradient of the logits of head->x before the softcap bounds them, from that of the logits. */
static sn_status softcap_backward(sn_lm_head *head, int rows, const float *dlogits, const float **draw, sn_err *err) {
    const sn_device_ops *ops = head->device->ops;
    sn_device *d = head->device;
    float factor = 1 / head->logit_softcap;
    sn_status status = head->raw ? SN_OK : lm_head_alloc(head, HEAD_ROWS, head->n_vocab, &head->raw, err);
    const sn_linear linear = {.weight = &head->output, .y = head->raw};
    if (!status) status = lm_head_norm_rows(head, rows, err);
    if (!status) status = lm_head_scale(head, rows, err);
    if (!status) status = ops->linear(d, rows, head->h, 1, &linear, err);
    if (!status) status = ops->scale(d, rows, (int)head->n_vocab, head->raw, factor, NULL, head->raw, err);
    if (!status)
        status = ops->activate_grad(d, (size_t)rows * head->n_vocab, SN_TANH, head->raw, NULL, dlogits, head->raw, NULL,
                                    err);
    *draw = head->raw;
    return status;
}

static sn_status grad_of_rows(sn_lm_head *head, const float *hidden, int n, const float *dlogits, float *dhidden,
                              sn_err *err) {
    const sn_device_ops *ops = head->device->ops;
    sn_device *d = head->device;
    size_t width = head->n_embd;
    for (int done = 0; done < n; done += HEAD_ROWS) {
        int rows = n - done < HEAD_ROWS ? n - done : HEAD_ROWS;
        size_t at = (size_t)done * width, row_bytes = (size_t)rows * width * sizeof(float);
        const float *dy = dlogits + (size_t)done * head->n_vocab;
        sn_status status = ops->upload(d, head->x, hidden + at, row_bytes, err);
        if (!status && head->logits)
            status = ops->upload(d, head->logits, dy, (size_t)rows * head->n_vocab * sizeof(float), err);
        const float *draw = head->logits ? head->logits : dy;
        if (!status && head->logit_softcap > 0) status = softcap_backward(head, rows, draw, &draw, err);
        if (!status) status = ops->linear_input_grad(d, rows, draw, &head->output, false, head->h, err);
        if (!status) status = lm_head_scale(head, rows, err);
        if (!status)
            status = (head->layer_norm ? ops->layer_norm_grad : ops->rms_norm_grad)(
                d, rows, (int)width, head->x, head->norm, head->norm_eps, head->h, false, head->h, err);
        if (!status) status = ops->download(d, dhidden + at, head->h, row_bytes, err);
        if (status) return status;
    }
    return SN_OK;
}

static sn_status norm_of_rows(sn_lm_head *head, const float *hidden, int n, float *out, sn_err *err) {
    const sn_device_ops *ops = head->device->ops;
    sn_device *d = head->device;
    for (int done = 0; done < n; done += HEAD_ROWS) {
        int rows = n - done < HEAD_ROWS ? n - done : HEAD_ROWS;
        size_t at = (size_t)done * head->n_embd, bytes = (size_t)rows * head->n_embd * sizeof(float);
        sn_status status = ops->upload(d, head->x, hidden + at, bytes, err);
        if (!status) status = lm_head_norm_rows(head, rows, err);
        if (!status) status = ops->download(d, out + at, head->h, bytes, err);
        if (status) return status;
    }
    return SN_OK;
}

/* -- the queue -- */

static int rows_in_queue(const sn_lm_head *head) {
    int rows = 0;
    for (const head_call *c = head->first; c; c = c->next) rows += c->wants_logits ? c->n : 0;
    return rows;
}

/* With the lock held, by the first in the queue. */
static void gather_rows(sn_lm_head *head, head_call *call) {
    head->gathers = call;
    for (int rows = rows_in_queue(head), before = 0; rows > before && rows < GATHERED_ROWS && head->in_flight;) {
        const int64_t until_us = sn_now_us() + head->row_us / 3;
        const struct timespec until = {until_us / 1000000, until_us % 1000000 * 1000};
        before = rows;
        while (rows == before && !pthread_cond_timedwait(&call->changed, &head->lock, &until))
            rows = rows_in_queue(head);
    }
    head->gathers = NULL;
}

/* Returns when the caller is the first and no pass runs: then it leads, until queue_leave; or when it was taken along.
 */
static bool queue_enter(sn_lm_head *head, head_call *call) {
    pthread_cond_init(&call->changed, &head->monotonic);
    pthread_mutex_lock(&head->lock);
    *head->last = call;
    head->last = &call->next;
    if (head->gathers) pthread_cond_signal(&head->gathers->changed);
    while (!call->done && (head->busy || head->first != call)) pthread_cond_wait(&call->changed, &head->lock);
    bool leads = !call->done;
    if (leads && call->wants_logits) gather_rows(head, call);
    while (leads && head->busy) pthread_cond_wait(&call->changed, &head->lock);
    if (leads) head->busy = true;
    pthread_mutex_unlock(&head->lock);
    return leads;
}

/* Moves the leader, who is the first, and with it all callers that want logits out of the queue, while they fit into a
 * pass. Returns their list. */
static head_call *queue_take(sn_lm_head *head) {
    pthread_mutex_lock(&head->lock);
    head_call *taken = head->first, **end = &taken->next, **at = &head->first;
    bool many = taken->wants_logits && taken->next;
    if (many && !head->logits) /* without memory everyone's rows are a pass */
        many = !lm_head_alloc(head, HEAD_ROWS, head->n_vocab, &head->logits, NULL);
    head->first = taken->next;
    for (int rows = taken->n; many && *at;) {
        head_call *c = *at;
        if (!c->wants_logits || c->n > HEAD_ROWS - rows) {
            at = &c->next;
            continue;
        }
        rows += c->n;
        *at = c->next;
        *end = c;
        end = &c->next;
    }
    *end = NULL;
    for (head->last = &head->first; *head->last;) head->last = &(*head->last)->next;
    pthread_mutex_unlock(&head->lock);
    return taken;
}

/* Ends a pass: who was taken along returns, and the first of the queue leads. */
static void queue_leave(sn_lm_head *head, head_call *taken) {
    pthread_mutex_lock(&head->lock);
    head->busy = false;
    for (head_call *c = taken, *next; c; c = next) {
        next = c->next; /* read before its thread may return */
        c->done = true;
        pthread_cond_signal(&c->changed);
    }
    if (head->first) pthread_cond_signal(&head->first->changed);
    pthread_mutex_unlock(&head->lock);
}

/* The device and the scratch for one caller, until lm_head_give. */
static void lm_head_take(sn_lm_head *head, head_call *call) {
    pthread_mutex_lock(&head->lock);
    const bool passes_by = head->gathers && !head->busy;
    if (passes_by) head->busy = true;
    pthread_mutex_unlock(&head->lock);
    if (passes_by) {
        pthread_cond_init(&call->changed, NULL);
        return;
    }
    (void)queue_enter(head, call); /* no other caller takes it along: it leads */
    (void)queue_take(head);
}

static void lm_head_give(sn_lm_head *head, head_call *call) {
    queue_leave(head, call);
    pthread_cond_destroy(&call->changed);
}

/* logits_of_calls, with at most HEAD_ROWS rows of this caller. */
static sn_status logits_in_turn(sn_lm_head *head, const float *hidden, bool normed, int n, float *logits, sn_err *err) {
    sn_err own;
    head_call call = {.wants_logits = true, .normed = normed, .hidden = hidden, .logits = logits, .n = n, .err = &own};
    if (queue_enter(head, &call)) {
        head_call *taken = queue_take(head);
        const int64_t began_us = sn_now_us();
        logits_of_calls(head, taken);
        if (n == 1 && !taken->next) head->row_us = sn_now_us() - began_us;
        queue_leave(head, taken);
    }
    pthread_cond_destroy(&call.changed);
    if (call.status && err) *err = own;
    return call.status;
}

void sn_lm_head_expect(sn_lm_head *head) {
    pthread_mutex_lock(&head->lock);
    head->in_flight++;
    pthread_mutex_unlock(&head->lock);
}

void sn_lm_head_unexpect(sn_lm_head *head) {
    pthread_mutex_lock(&head->lock);
    head->in_flight--;
    pthread_mutex_unlock(&head->lock);
}

static sn_status logits_in_turns(sn_lm_head *head, const float *hidden, bool normed, int n, float *logits,
                                 sn_err *err) {
    sn_status status = SN_OK;
    for (int rows; n > 0 && !status; n -= rows) {
        rows = n < HEAD_ROWS ? n : HEAD_ROWS;
        status = logits_in_turn(head, hidden, normed, rows, logits, err);
        hidden += (size_t)rows * head->n_embd;
        logits += (size_t)rows * head->n_vocab;
    }
    return status;
}

sn_status sn_lm_head_logits(sn_lm_head *head, const float *hidden, int n, float *logits, sn_err *err) {
    return logits_in_turns(head, hidden, false, n, logits, err);
}

sn_status sn_lm_head_logits_of_normed(sn_lm_head *head, const float *normed, int n, float *logits, sn_err *err) {
    return logits_in_turns(head, normed, true, n, logits, err);
}

sn_status sn_lm_head_embed(sn_lm_head *head, const int32_t *ids, int n, float *hidden, sn_err *err) {
    head_call call = {0};
    lm_head_take(head, &call);
    sn_status status = embed_rows(head, ids, n, hidden, err);
    lm_head_give(head, &call);
    return status;
}

sn_status sn_lm_head_logits_grad(sn_lm_head *head, const float *hidden, int n, const float *dlogits, float *dhidden,
                                 sn_err *err) {
    head_call call = {0};
    lm_head_take(head, &call);
    sn_status status = grad_of_rows(head, hidden, n, dlogits, dhidden, err);
    lm_head_give(head, &call);
    return status;
}

sn_status sn_lm_head_norm(sn_lm_head *head, const float *hidden, int n, float *out, sn_err *err) {
    head_call call = {0};
    lm_head_take(head, &call);
    sn_status status = norm_of_rows(head, hidden, n, out, err);
    lm_head_give(head, &call);
    return status;
}
