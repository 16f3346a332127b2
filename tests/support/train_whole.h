/* Passes of training in one piece (blocks/train.h). */
#ifndef SN_TESTS_SUPPORT_TRAIN_WHOLE_H
#define SN_TESTS_SUPPORT_TRAIN_WHOLE_H

#include "blocks/train.h"

static inline sn_status train_forward(sn_train *train, const sn_train_sequence *sequence, float *out,
                                      size_t saved_bytes_max, sn_saved_activations **saved, sn_err *err) {
    bool done = false;
    sn_status status = sn_train_start_forward(train, sequence, out, saved_bytes_max, saved, err);
    return status ? status : sn_train_run(train, SIZE_MAX, NULL, &done, err);
}

static inline sn_status train_backward(sn_train *train, const sn_train_sequence *sequence,
                                       const sn_saved_activations *saved, const sn_tensor *dout, float *dx,
                                       float *grads, sn_err *err) {
    bool done = false;
    sn_status status = sn_train_start_backward(train, sequence, saved, dout, dx, grads, err);
    return status ? status : sn_train_run(train, SIZE_MAX, NULL, &done, err);
}

#endif
