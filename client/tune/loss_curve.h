/* The loss curve of a training, written as a table and as a diagram. `swarm tune` calls it. */
#ifndef SN_CLIENT_TUNE_LOSS_CURVE_H
#define SN_CLIENT_TUNE_LOSS_CURVE_H

#include "base/err.h"

#include <stddef.h>

/* Writes loss.csv ("step,loss") and loss.svg into the folder. losses[i]: loss of step i, which the files count from 1.
 * SN_REFUSED when a file cannot be written. */
sn_status sn_loss_curve_write(const char *folder, const double *losses, size_t n, sn_err *err) SN_MUST_USE;

#endif
