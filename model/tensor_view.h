/* Views: where a role lies within a tensor that holds several roles (Q, K and V as one matrix, stacked experts).
 * Private to model/ and its rooms. sn_model_run and sn_model_contiguous of model.h are implemented here. */
#ifndef SN_MODEL_TENSOR_VIEW_H
#define SN_MODEL_TENSOR_VIEW_H

#include "model/family.h"

/* A role within the tensor of its name; unit: a row, of a vector an element. */
typedef struct sn_tensor_view {
    size_t whole;                    /* units of the tensor in the file */
    size_t first;                    /* the role's first unit */
    size_t group_rows, group_stride; /* these and the next two: as in sn_model_tensor */
    int n_parts;
    size_t part_rows[SN_TENSOR_PARTS_MAX];
    /* Not 0: the tensor is transposed. Elements from a row to the next and from a column to the next, and the role's
     * columns; `first` is then an element. */
    size_t row_step, col_step, cols;
    bool turned; /* as in sn_model_tensor */
} sn_tensor_view;

/* Units of a tensor: of a vector its elements, of a matrix its rows, also where it has one row only. */
size_t sn_tensor_view_units(const sn_model_tensor *t);
/* Bytes of a whole tensor in its file, without scales. */
size_t sn_tensor_view_file_bytes(const sn_model_tensor *t);

/* The unit in the file, counted from the view's first, that is the role's unit r. */
size_t sn_tensor_view_line(const sn_model_tensor *t, size_t r);

/* The view of a role that is not stacked by experts. `own`: its units. */
sn_tensor_view sn_tensor_view_of(const sn_tensor_naming *naming, const sn_hparams *hparams, sn_role role, size_t own);

/* The view of one expert's matrix (rows, cols) among the n_experts that one tensor holds. `packed`: split MXFP4, which
 * is never transposed. Where naming->experts_transposed, gate and up alternate: column by column, or, packed, row by
 * row. */
sn_tensor_view sn_tensor_view_of_expert(const sn_tensor_naming *naming, sn_role role, bool packed, size_t rows,
                                        size_t cols, size_t expert, size_t n_experts);

/* The view of one head's ATTN_K_UP or ATTN_V_UP. joined: one matrix holds for each head its nope_dim rows of keys, then
 * its value_dim rows of values, both (.., latent), so that ATTN_K_UP is turned; else the heads are stacked. *own: the
 * units that the view has. */
sn_tensor_view sn_tensor_view_of_head(const sn_hparams *hparams, sn_role role, bool joined, bool plain_float,
                                      size_t head, size_t *own);

/* Narrows the tensor in the file, whose size is checked to be view->whole, to the role's part of `own` units. */
void sn_tensor_view_narrow(const sn_tensor_view *view, sn_role role, size_t own, sn_model_tensor *tensor);

#endif
