/* One transformer block: its weights on a device (block_image.c) and its forward pass (block.c). Private to blocks/.
 *
 * A block's weights are one image: all tensors of the block in the device's layout, in one piece, equal on the device,
 * in host memory and in a file. Central types: sn_block_layout says where each tensor lies in the image, sn_block holds
 * the views of an image on the device, sn_forward_pass the inputs of a forward pass. None of them owns memory. Used by
 * the devices' thread. Errors are those of the device's operations and, for weights, SN_REFUSED for types that the
 * device cannot use. */
#ifndef SN_BLOCKS_BLOCK_H
#define SN_BLOCKS_BLOCK_H

#include "blocks/expert_exchange.h"
#include "device/device.h"
#include "model/model.h"

/* ---- weights ---- */

/* Where the tensors of one role lie in a block's image. */
typedef struct sn_weight_layout {
    sn_dtype dtype;
    size_t rows, cols; /* rows 0: the family has no such weight */
    size_t offset;     /* a multiple of 64 */
    size_t bytes;      /* of one matrix or vector */
    size_t stride;     /* from one matrix to the next, a multiple of 64, in slots for experts of SN_FILE_PAGE */
    int n_matrices;    /* sn_role_n_matrices: several for experts, else 1 */
    bool vector;       /* a norm or bias, stored as float32 */
    bool ordered;      /* the order of its columns (sn_weight) follows the matrix, at a multiple of 64 */
} sn_weight_layout;

/* What a mixture has for each expert, in the order of an expert's own image: its matrices and biases. */
enum { SN_EXPERT_PIECES = 6 };

typedef struct sn_block_layout {
    sn_weight_layout parts[SN_ROLE_COUNT];
    size_t bytes; /* of the image */
    /* Above 0: experts rest elsewhere and are brought to slots of the image when they are chosen (expert_slots.h). Else
     * SN_ALL_EXPERTS and so on. */
    int n_slots;
    bool scales; /* BLOCK_SCALE: what leaves the block is multiplied by `scale` */
    float scale;
    sn_expert_range held; /* of a mixture: the experts that have a place in the image or rest elsewhere; others are
                             numbered from held.first on in what follows */
    /* Bytes of each piece in an expert's image, one after the other, and from one slot to the next. 0: the family has
     * no such piece. Matrices in slots begin and end at pages, so that a file is read straight to them. */
    size_t pieces[SN_EXPERT_PIECES];
    size_t expert_bytes; /* of all pieces; with slots a multiple of read_bytes */
    size_t read_bytes;   /* with slots: of what is read at once from a file, a multiple of SN_FILE_PAGE */
} sn_block_layout;

/* Views into an image on the device. */
typedef struct sn_block {
    sn_weight matrix[SN_ROLE_COUNT];    /* roles with two dimensions */
    const float *vector[SN_ROLE_COUNT]; /* norms and biases, float32; NULL: the family has none */
    int width[SN_ROLE_COUNT];           /* elements of each vector */
    bool scales;                        /* of the layout, as scale */
    float scale;
    sn_experts experts[3];                /* gate, up, down: SN_ROLE_EXPERTS_GATE and the two after it */
    sn_experts heads[2];                  /* SN_ROLE_ATTN_K_UP, SN_ROLE_ATTN_V_UP */
    struct sn_expert_slots *slots;        /* NULL: all experts are in the image; else `experts` are slots for some */
    const struct sn_experts_apart *apart; /* the experts are on another device; NULL: they are not */
    sn_expert_range held;                 /* of the layout; `experts` and `slots` number from held.first on */
    const struct sn_block *next;          /* the next block on the device with slots, to foresee its choice; or NULL */
} sn_block;

/* n_slots: of a mixture (ignored in other blocks), above 0, or one of these. */
enum { SN_ALL_EXPERTS = 0, SN_WITHOUT_EXPERTS = -1, SN_ONLY_EXPERTS = -2 };
sn_status sn_block_layout_of(const sn_model *model, const sn_device *device, int number, int n_slots,
                             sn_expert_range experts, sn_block_layout *out, sn_err *err) SN_MUST_USE;
/* Where a piece of the expert in `slot` lies in the image. */
void *sn_expert_piece_at(const sn_block_layout *layout, void *image, int piece, int slot);
/* Packs the held experts one by one. `take` gets each one's image (layout->expert_bytes, host), in order, with its
 * number from layout->held.first on; its first failure ends the call. */
typedef sn_status (*sn_expert_taker)(void *ctx, int expert, const void *image, sn_err *err);
sn_status sn_experts_pack(const sn_model *model, sn_device *device, int number, const sn_block_layout *layout,
                          sn_expert_taker take, void *ctx, sn_err *err) SN_MUST_USE;
/* Writes the block's image, without its experts where the layout has slots (layout->bytes, aligned to 64) to `image`:
 * host memory, or the device's memory where device->host_visible. Reads the block's tensors from the model and releases
 * their pages. */
sn_status sn_block_pack(const sn_model *model, sn_device *device, int number, const sn_block_layout *layout,
                        void *image, sn_err *err) SN_MUST_USE;
/* The block whose image lies at `image` on the device. */
sn_block sn_block_at(const sn_block_layout *layout, const void *image);

/* Whether the feed-forward is a mixture of experts; else its width. */
static inline bool sn_block_has_experts(const sn_block *block) { return block->experts[1].n || block->apart; }
static inline size_t sn_block_n_ff(const sn_block *block) { return block->matrix[SN_ROLE_FFN_UP].rows; }
/* The number of held experts, and whether there are others. */
static inline int sn_n_held(sn_expert_range held) { return held.end - held.first; }
static inline bool sn_block_is_partial(const sn_block *block, const sn_hparams *hp) {
    return sn_block_has_experts(block) && sn_n_held(block->held) < hp->n_experts;
}

/* ---- forward pass ---- */

/* Activations of a forward pass, on the device, each with capacity for a span's largest batch (sn_span_rows_max). */
typedef struct sn_scratch {
    float *x;         /* (rows, n_embd): the hidden states, from block to block */
    float *h;         /* (rows, n_embd): x after a norm; then what a half of the block adds to x */
    float *ffn_input; /* (rows, n_embd): hp->parallel: x after the norm of the feed-forward; else unused */
    float *q, *attn;  /* (rows, n_heads, head_dim), attn with latents (rows, n_heads, latent); of a recurrent block attn
                         is (rows, value heads, value_dim) */
    float *mixed;     /* (rows, sn_delta_width), with recurrent blocks only, as time, write and low */
    float *time, *write; /* (rows, sn_delta_times), (rows, sn_delta_writes) */
    float *low;          /* (rows, 2 * delta_rank) */
    float *head_gate;    /* (rows, n_heads), hp->head_gate only */
    float *out_gate;     /* like attn, where attention has an output gate, and with recurrent blocks */
    float *k, *v;        /* (rows, sn_kv_key_width), (rows, sn_kv_value_width), of the block that has most */
    float *q_low;        /* (rows, q_rank), hp->q_rank only */
    /* With an indexer only: (rows, index_heads, index_dim), (rows, index_dim), (rows, index_heads), and int32 numbers
     * (rows, index_topk): what the last block that chose has left for those that share its choice. */
    float *index_q, *index_k, *index_weights, *chosen;
    float *head_rows;             /* (rows, n_heads, nope_dim + rope_dim or value_dim), hp->latent only */
    float *gate, *up;             /* (rows, sn_ff_width): (n, n_ff), or with experts (n, n_experts_used, n_ff) */
    float *router_out;            /* (rows, sn_moe_router_width), with experts only: see moe.h */
    float *shared_out;            /* (rows, n_embd), with a shared expert only: its output */
    float *narrow;                /* (rows, experts_width): what enters the experts, then the sum of their outputs */
    float *expert_out;            /* (rows, n_experts_used, sn_expert_width), with experts only: the experts' outputs */
    float *cos_sin[SN_ROPES_MAX]; /* (rows, rope_dim/2, 2) each: the tables of the model's ropes */
    float *q_factors;             /* (rows), with hp->q_growth only: sn_span_q_factor of their positions */
    float *lora_mid;              /* (rows, SN_LORA_RANK_MAX); these two only in a pass with an adapter */
    float *lora_out;              /* (rows, widest input or output of a matrix) */
    float *pair_rows;             /* (pairs, n_embd): of sn_moe_run_pairs; in a span with all experts it is x */
    float *pair_ids;              /* (pairs); it is router_out there */
} sn_scratch;

static inline int32_t *sn_chosen_of(const sn_scratch *s) { return (int32_t *)(void *)s->chosen; }

/* Elements of scratch->gate and scratch->up per row: as many as the block that needs most. */
static inline size_t sn_ff_width(const sn_hparams *hp) {
    size_t most = (size_t)hp->n_ff * (hp->n_experts ? (size_t)hp->n_experts_used : 1);
    if ((size_t)hp->n_ff_dense > most) most = (size_t)hp->n_ff_dense;
    return (size_t)hp->n_ff_shared > most ? (size_t)hp->n_ff_shared : most;
}

/* Elements of a head in scratch->head_rows. */
static inline size_t sn_head_rows_dim(const sn_hparams *hp) {
    int q = hp->nope_dim + hp->rope_dim;
    return (size_t)(q > hp->value_dim ? q : hp->value_dim);
}

/* The longest row that a matrix reads or writes. */
static inline size_t sn_widest_row(const sn_hparams *hp) {
    const sn_heads most = sn_most_heads(hp);
    const size_t head = hp->latent ? sn_head_rows_dim(hp) : (size_t)most.key_dim;
    const size_t widths[] = {(size_t)hp->n_embd,      (size_t)most.n * head,
                             (size_t)hp->n_ff,        (size_t)hp->n_ff_dense,
                             (size_t)hp->n_ff_shared, sn_delta_width(hp),
                             sn_delta_values(hp),     (size_t)hp->experts_width,
                             (size_t)hp->delta_rank,  (size_t)(hp->index_heads * hp->index_dim)};
    size_t widest = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) widest = widths[i] > widest ? widths[i] : widest;
    return widest;
}

/* The experts of a block on another device than its own, which computes them there. */
typedef struct sn_experts_apart {
    sn_device *device;
    const sn_scratch *scratch; /* of that device */
    sn_block block;            /* an image with nothing but experts */
    int32_t *ids;              /* host, (SN_SPAN_ROWS_MAX, n_experts_used), as weights */
    float *weights;
} sn_experts_apart;

/* A pair of a row and an expert. */
typedef struct sn_pair_place {
    int32_t pair, place; /* its index in the ids of a request, and among the outputs */
} sn_pair_place;

/* What the passes of a span that holds some experts need to have the others computed elsewhere. All memory is the
 * host's. */
typedef struct sn_expert_split {
    const sn_expert_exchange *exchange; /* NULL: none */
    sn_pair_place *order;               /* (SN_SPAN_ROWS, n_experts_used): of a request's pairs, by expert */
    int32_t *own, *others;              /* (rows, n_experts_used): ids from held.first on, and ids; or -1 */
    float *rows, *out; /* (rows, n_embd) and that for each expert of a row; NULL: devices are host_visible */
} sn_expert_split;

/* The adapter of one block (adapter.h), on the block's device. Zeroed: none. */
typedef struct sn_block_adapter {
    const float *prompt; /* (n_prompt, n_embd): added to the hidden states that enter, at positions below n_prompt */
    int n_prompt;
    struct {
        sn_weight a, b; /* (rank, inputs), (outputs, rank), float32; rows 0: none. y += (x A^T) B^T. Hu et al. 2021 */
    } lora[SN_ROLE_COUNT];
} sn_block_adapter;

/* The inputs of one block's forward pass; the device is within a batch (batch_begin) of these sequences. */
typedef struct sn_forward_pass {
    sn_device *device;
    const sn_hparams *hp;
    const sn_scratch *scratch;
    int n_rows;
    int n_sequences;
    const sn_sequence *sequences;
    const sn_block_adapter *adapter; /* NULL: none */
    int number;                      /* of the block in the model */
    int index_block;                 /* of a block that chooses: of its index keys in the part of the KV pages */
    bool chooses;                    /* some row is at a position from index_topk on */
    uint64_t *moved;              /* grows by the bytes that cross a device's border in the block; NULL: not counted */
    const sn_expert_split *split; /* NULL: the span holds all experts */
    const float *due; /* (n_rows, n_embd), to be added to scratch->x: what the block before has left; NULL: nothing */
} sn_forward_pass;

/* From the hidden states scratch->x + pass->due (n_rows, n_embd) to scratch->x + scratch->h: the latter is due in the
 * next block, whose first norm adds it, or behind the last one by sn_block_add_due. Stores the rows' keys and values.
 * `index`: of the block within the part of the KV pages, or of the recurrent states: sn_place_of. */
sn_status sn_block_forward(const sn_block *block, int index, const sn_forward_pass *pass, sn_err *err) SN_MUST_USE;
/* scratch->x += pass->due, if anything is. */
sn_status sn_block_add_due(const sn_forward_pass *pass, sn_err *err) SN_MUST_USE;

/* g->y (n) = min(activation(gate), limit) * min(max(up, -limit), limit), `up` being changed on the way. */
sn_status sn_activate_limited(sn_device *device, size_t n, const sn_gated *g, float limit, sn_err *err) SN_MUST_USE;

/* ---- steps of the forward pass, which block_grad.c repeats ---- */

/* The input u (n_rows, n_embd) of a half of a block: its first products make it, by sn_half_linear; or it is there. */
typedef struct sn_half_input {
    const float *u;
    sn_norm norm; /* y is u; or NULL: u is there */
} sn_half_input;

static inline sn_half_input sn_half_input_at(const float *u) { return (sn_half_input){.u = u}; }
/* u = norm(x + add), in h; of a family without this norm u = x, which must not lack anything then. x becomes x + add;
 * add may be NULL, or h. */
sn_half_input sn_half_input_of(const sn_block *block, const sn_forward_pass *pass, sn_role role, float *x,
                               const float *add, float *h);
/* The first products of a half, of the n rows of u. */
sn_status sn_half_linear(sn_device *device, int n, const sn_half_input *input, int n_linears, const sn_linear *linears,
                         sn_err *err) SN_MUST_USE;

/* Elements of the tensor that the norm `role` of a block reads: (n_rows, n_embd), or q or k for their norms. */
size_t sn_block_norm_elements(const sn_hparams *hp, int block, int n_rows, sn_role role);
/* y = norm(x), by the factors of `role`: over rows of n_embd, or over each head of q or k. y may be x. */
sn_status sn_block_norm(const sn_block *block, const sn_forward_pass *pass, sn_role role, const float *x, float *y,
                        sn_err *err) SN_MUST_USE;
/* scratch->x += the adapter's prompt, at its positions. */
sn_status sn_block_add_prompt(const sn_forward_pass *pass, sn_err *err) SN_MUST_USE;
/* y += (u A^T) B^T, the adapter's LoRA of the matrix `role`, whose input is u and whose output y. */
sn_status sn_block_add_lora(const sn_forward_pass *pass, sn_role role, const float *u, float *y,
                            sn_err *err) SN_MUST_USE;

#endif
