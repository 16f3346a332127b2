/* Roles that are rows of a bigger tensor: where they lie in it, and how they are read. Private to model/. */
#ifndef SN_MODEL_VIEW_H
#define SN_MODEL_VIEW_H

#include "model/family.h"

/* A role within the tensor of its name, in rows; of a vector in elements. */
typedef struct sn_view {
    size_t whole; /* of the tensor in the file */
    size_t first, group_rows, group_stride;
    size_t row_step, col_step, cols; /* not 0: turned. Elements from a row to the next and from a column to the next, and the
                                      * role's columns; `first` is an element */
} sn_view;

/* `own`: rows of the role itself (of a vector: elements). */
sn_view sn_view_of(const sn_naming *naming, const sn_hparams *hparams, sn_role role, size_t own);

/* Matrix number `piece` of (rows, cols), of `pieces` that one tensor holds. `packed`: it has scales; such are never turned. */
sn_view sn_view_of_experts(const sn_naming *naming, sn_role role, bool packed, size_t rows, size_t cols, size_t piece,
                           size_t pieces);

/* From the tensor in the file, whose size is as the view says, to the role's part of it. */
void sn_view_narrow(const sn_view *view, sn_role role, size_t own, sn_model_tensor *tensor);

#endif
