/* Embedding and LM head on a device.
 *
 * Every function works on HEAD_ROWS rows at a time, in two scratch buffers on the device: x holds hidden states, h
 * normed ones. Embedding: rows of the embedding matrix, normed for families that norm them, scaled on the host. Logits:
 * the hidden states come from outside, so they pass the guard (device/guard.h); then norm, then the output matrix. On a
 * device whose memory the host can read, the logits are written straight into the caller's array. Where the model ties
 * embedding and output matrix, both hold one parameter (blocks/ties.h). */
#include "client/generate/lm_head.h"

#include "base/mem.h"
#include "blocks/ties.h"
#include "blocks/weights.h"
#include "device/guard.h"
#include "device/weight.h"

#include <pthread.h>
#include <stdlib.h>

/* Rows of one device call: enough for full speed, and few enough that the logits of a large vocabulary stay small. */
enum { HEAD_ROWS = 64 };

struct sn_lm_head {
    pthread_mutex_t lock; /* one call at a time uses the device and the scratch below */
    sn_device *device;
    size_t n_embd, n_vocab;
    float norm_eps, embed_scale;
    bool layer_norm;
    sn_ties *ties;
    sn_tie embedding_tie, output_tie; /* two holders of one parameter where the model ties them */
    sn_weight embedding, output;
    float *norm, *norm_bias;             /* device, (n_embd); NULL: the family has none */
    float *embed_norm, *embed_norm_bias; /* the same, for the embeddings */
    float *x, *h;                        /* device, (HEAD_ROWS, n_embd): hidden states; normed ones */
    float *logits; /* device, (HEAD_ROWS, n_vocab); NULL: the device writes into the caller's memory */
};

static sn_status matrix_upload(void *tensor, sn_device *device, void *memory, sn_err *err) {
    const sn_model_tensor *t = tensor;
    sn_weight weight;
    return sn_weight_upload(device, t->dtype, t->rows, t->cols, t->data, memory, &weight, err);
}

static sn_status lm_head_load_matrix(sn_lm_head *head, const sn_model *model, sn_role role, sn_tie *tie, sn_weight *out,
                                     sn_err *err) {
    sn_model_tensor t;
    size_t bytes = 0;
    sn_status status = sn_model_find(model, role, 0, &t, err);
    if (!status) status = head->device->ops->weight_size(head->device, t.dtype, t.rows, t.cols, &bytes, err);
    if (!status) status = sn_ties_acquire(head->ties, t.tie, head->device, bytes, matrix_upload, &t, tie, err);
    if (status) return status;
    *out = (sn_weight){t.dtype, t.rows, t.cols, bytes, tie->memory};
    sn_model_release_pages(model, &t);
    return SN_OK;
}

static sn_status lm_head_alloc(sn_lm_head *head, size_t rows, size_t cols, float **out, sn_err *err) {
    void *memory = NULL;
    sn_status status = head->device->ops->alloc(head->device, rows * cols * sizeof(float), &memory, err);
    *out = memory;
    return status;
}

/* *out stays NULL where the family has no such vector. */
static sn_status lm_head_load_vector(sn_lm_head *head, const sn_model *model, sn_role role, const char *name,
                                     float **out, sn_err *err) {
    sn_model_tensor t;
    sn_status status = sn_model_find(model, role, 0, &t, err);
    if (status || !t.data) return status;
    float *host = NULL;
    status = sn_calloc(&host, t.cols, sizeof *host, err);
    if (!status) status = lm_head_alloc(head, 1, head->n_embd, out, err);
    if (!status) status = sn_vector_read(sn_model_hparams(model), role, &t, name, host, err);
    if (!status) status = head->device->ops->upload(head->device, *out, host, head->n_embd * sizeof(float), err);
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

/* h = norm(x), row by row. */
static sn_status lm_head_norm_rows(sn_lm_head *head, int rows, const float *weight, const float *bias, sn_err *err) {
    const sn_device_ops *ops = head->device->ops;
    int width = (int)head->n_embd;
    return head->layer_norm
               ? ops->layer_norm(head->device, rows, width, head->x, weight, bias, head->norm_eps, head->h, err)
               : ops->rms_norm(head->device, rows, width, head->x, weight, head->norm_eps, head->h, err);
}

sn_status sn_lm_head_load(const sn_model *model, sn_device *device, sn_lm_head **out, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_lm_head *head = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&head, 1, sizeof *head, err);
    if (status) return status;
    *head = (sn_lm_head){.device = device, .n_embd = (size_t)hp->n_embd, .n_vocab = (size_t)hp->n_vocab};
    pthread_mutex_init(&head->lock, NULL);
    head->norm_eps = hp->norm_eps;
    head->embed_scale = hp->embed_scale;
    head->layer_norm = hp->layer_norm;
    sn_device_limits limits = {
        .rows = HEAD_ROWS, .width = hp->n_vocab > hp->n_embd ? hp->n_vocab : hp->n_embd, .context = 1};
    status = device->ops->prepare(device, &limits, err);
    if (!status) status = sn_ties_new(&head->ties, err);
    if (!status) status = lm_head_alloc(head, HEAD_ROWS, head->n_embd, &head->x, err);
    if (!status) status = lm_head_alloc(head, HEAD_ROWS, head->n_embd, &head->h, err);
    if (!status && !device->host_visible) status = lm_head_alloc(head, HEAD_ROWS, head->n_vocab, &head->logits, err);
    if (!status) status = lm_head_load_weights(head, model, err);
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
    for (int i = 0; i < 4; i++) ops->free(head->device, vectors[i], head->n_embd * sizeof(float));
    ops->free(head->device, head->x, HEAD_ROWS * head->n_embd * sizeof(float));
    ops->free(head->device, head->h, HEAD_ROWS * head->n_embd * sizeof(float));
    if (head->logits) ops->free(head->device, head->logits, HEAD_ROWS * head->n_vocab * sizeof(float));
    pthread_mutex_destroy(&head->lock);
    free(head);
    *out = NULL;
}

static sn_status embed_rows(sn_lm_head *head, const int32_t *ids, int n, float *hidden, sn_err *err) {
    const sn_device_ops *ops = head->device->ops;
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= head->n_vocab)
            return sn_fail(err, SN_REFUSED, "token %d at index %d is not in this model's vocabulary of %zu", ids[i], i,
                           head->n_vocab);
    for (int done = 0; done < n; done += HEAD_ROWS) {
        int rows = n - done < HEAD_ROWS ? n - done : HEAD_ROWS;
        sn_status status = ops->get_rows(head->device, &head->embedding, rows, ids + done, head->x, err);
        if (!status && head->embed_norm)
            status = lm_head_norm_rows(head, rows, head->embed_norm, head->embed_norm_bias, err);
        if (!status)
            status =
                ops->download(head->device, hidden + (size_t)done * head->n_embd, head->embed_norm ? head->h : head->x,
                              (size_t)rows * head->n_embd * sizeof(float), err);
        if (status) return status;
    }
    for (size_t i = 0; i < (size_t)n * head->n_embd && head->embed_scale != 1; i++) hidden[i] *= head->embed_scale;
    return SN_OK;
}

static sn_status logits_of_rows(sn_lm_head *head, const float *hidden, int n, float *logits, sn_err *err) {
    const sn_device_ops *ops = head->device->ops;
    sn_device *d = head->device;
    for (int done = 0; done < n; done += HEAD_ROWS) {
        int rows = n - done < HEAD_ROWS ? n - done : HEAD_ROWS;
        size_t row = head->n_embd;
        sn_tensor outside = {.name = "hidden states",
                             .data = hidden + (size_t)done * row,
                             .dtype = SN_F32,
                             .rank = 2,
                             .shape = {rows, (int64_t)row}};
        float *out = logits + (size_t)done * head->n_vocab;
        sn_linear linear = {.weight = &head->output, .y = head->logits ? head->logits : out};
        sn_status status = sn_guard(&outside, d, 2, outside.shape, head->x, NULL, err);
        if (!status) status = lm_head_norm_rows(head, rows, head->norm, head->norm_bias, err);
        if (!status) status = ops->linear(d, rows, head->h, 1, &linear, err);
        size_t bytes = (size_t)rows * head->n_vocab * sizeof(float);
        if (!status) status = head->logits ? ops->download(d, out, head->logits, bytes, err) : ops->finish(d, err);
        if (status) return status;
    }
    return SN_OK;
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
        if (!status)
            status =
                ops->linear_input_grad(d, rows, head->logits ? head->logits : dy, &head->output, false, head->h, err);
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
        if (!status) status = lm_head_norm_rows(head, rows, head->norm, head->norm_bias, err);
        if (!status) status = ops->download(d, out + at, head->h, bytes, err);
        if (status) return status;
    }
    return SN_OK;
}

/* -- one call at a time -----------------------------------------------------------------------------------------------
 *
 * Sessions of several threads share a head. Those that wait here in sn_lm_head_logits at the same time could be
 * computed together: the matrix would be read once for all their rows, which is most of the time of one row. */

sn_status sn_lm_head_embed(sn_lm_head *head, const int32_t *ids, int n, float *hidden, sn_err *err) {
    pthread_mutex_lock(&head->lock);
    sn_status status = embed_rows(head, ids, n, hidden, err);
    pthread_mutex_unlock(&head->lock);
    return status;
}

sn_status sn_lm_head_logits(sn_lm_head *head, const float *hidden, int n, float *logits, sn_err *err) {
    pthread_mutex_lock(&head->lock);
    sn_status status = logits_of_rows(head, hidden, n, logits, err);
    pthread_mutex_unlock(&head->lock);
    return status;
}

sn_status sn_lm_head_logits_grad(sn_lm_head *head, const float *hidden, int n, const float *dlogits, float *dhidden,
                                 sn_err *err) {
    pthread_mutex_lock(&head->lock);
    sn_status status = grad_of_rows(head, hidden, n, dlogits, dhidden, err);
    pthread_mutex_unlock(&head->lock);
    return status;
}

sn_status sn_lm_head_norm(sn_lm_head *head, const float *hidden, int n, float *out, sn_err *err) {
    pthread_mutex_lock(&head->lock);
    sn_status status = norm_of_rows(head, hidden, n, out, err);
    pthread_mutex_unlock(&head->lock);
    return status;
}
