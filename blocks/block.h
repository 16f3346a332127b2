/* One transformer block: its weights on a device, and its mathematics. Private to blocks/. */
#ifndef SN_BLOCKS_BLOCK_H
#define SN_BLOCKS_BLOCK_H

#include "device/device.h"
#include "model/model.h"

/* Where each weight of a block lies in its image: the block's bytes in the device's layout, one piece, as they lie on
 * the device, in host memory or in a file. */
typedef struct sn_block_layout {
    struct {
        sn_dtype dtype;
        size_t rows, cols;    /* rows 0: the family has no such weight */
        size_t offset, bytes; /* offset: a multiple of 64; of all its matrices */
        size_t stride;        /* from one of its matrices to the next */
        int pieces;           /* how many there are: sn_role_pieces */
        bool vector;          /* a norm or bias, kept as float32 */
    } parts[SN_ROLE_COUNT];
    size_t bytes; /* of the image */
} sn_block_layout;

/* A block's weights where they can be used: views into an image on the device. */
typedef struct sn_block {
    sn_weight matrix[SN_ROLE_COUNT];    /* the roles with two dimensions */
    const float *vector[SN_ROLE_COUNT]; /* norms and biases, float32; NULL: the family has none */
    int width[SN_ROLE_COUNT];           /* elements of each vector */
    sn_experts experts[3];              /* gate, up, down: SN_ROLE_EXPERTS_GATE on */
} sn_block;

/* Activations of a pass, on the device, each with room for SN_SPAN_ROWS_MAX rows. */
typedef struct sn_scratch {
    float *x;         /* (rows, n_embd): the hidden states, from block to block */
    float *h;         /* (rows, n_embd): normed, and what a sub-layer adds to x */
    float *beside;    /* (rows, n_embd): what the feed-forward reads, where it stands beside attention; else unused */
    float *q, *attn;  /* (rows, n_heads, head_dim) */
    float *k, *v;     /* (rows, n_kv_heads, head_dim) */
    float *gate, *up; /* (rows, n_ff); of a mixture (rows, n_experts_used, n_ff) */
    float *chosen;    /* experts.h; this and the next only of a mixture */
    float *each;      /* (rows, n_experts_used, n_embd): what the experts of a row give */
    float *cos_sin[SN_ROPES_MAX]; /* (rows, rope_dim/2, 2) each; of the model's ropes */
    float *low; /* (rows, SN_LORA_RANK_MAX); these two only where a pass has a tuning */
    float *wide;      /* (rows, the widest of the above) */
} sn_scratch;

/* What a client has trained of a block, on the block's device: added to what the frozen weights give. Zeroed: nothing.
 */
enum { SN_LORA_RANK_MAX = 256 };
typedef struct sn_block_tuning {
    const float *prompt; /* (n_prompt, n_embd): added to the hidden states that enter, at positions below n_prompt */
    int n_prompt;
    struct {
        sn_weight a, b; /* (rank, inputs), (outputs, rank), float32; rows 0: none. y += (x A^T) B^T. Hu et al. 2021 */
    } lora[SN_ROLE_COUNT];
} sn_block_tuning;

sn_status sn_block_layout_of(const sn_model *model, const sn_device *device, int number, sn_block_layout *out,
                             sn_err *err) SN_MUST_USE;
/* Writes the block's image (layout->bytes, aligned to 64) to host memory; where device->host_visible, that may be the
 * device's. Reads the block's tensors and lets them go again. */
sn_status sn_block_pack(const sn_model *model, sn_device *device, int number, const sn_block_layout *layout,
                        void *image, sn_err *err) SN_MUST_USE;
/* The block whose image lies at `image` on the device. */
sn_block sn_block_at(const sn_block_layout *layout, const void *image);

/* What a block's forward works on. */
typedef struct sn_block_pass {
    sn_device *device;
    const sn_hparams *hp;
    const sn_scratch *scratch;
    int n_rows;
    int n_sequences;
    const sn_sequence *sequences;
    const sn_block_tuning *tuning; /* NULL: none */
    int number;                    /* of the block in the model */
} sn_block_pass;

/* scratch->x (n_rows, n_embd) goes in and comes out. `index`: of the block within the span's KV pages. */
sn_status sn_block_forward(const sn_block *block, int index, const sn_block_pass *pass, sn_err *err) SN_MUST_USE;

/* Three parts of it, for going through a block backwards: y = x normed by the vector `role`, as many of the n elements at a
 * time as it has (a row or a head; y may be x); scratch->x grows by the prompt; y grows by what is trained of
 * the matrix `role`, whose input is u. */
sn_status sn_block_norm(const sn_block *block, const sn_block_pass *pass, sn_role role, size_t n, const float *x,
                        float *y, sn_err *err) SN_MUST_USE;
sn_status sn_block_prompt(const sn_block_pass *pass, sn_err *err) SN_MUST_USE;
sn_status sn_block_tune(const sn_block_pass *pass, sn_role role, const float *u, float *y, sn_err *err) SN_MUST_USE;

#endif
