/* The loss curve of a training: as numbers and as a picture. */
#ifndef SN_CLIENT_TUNE_CURVE_H
#define SN_CLIENT_TUNE_CURVE_H

#include "base/err.h"

#include <stddef.h>

/* Writes loss.csv ("step,loss") and loss.svg into the folder. losses[i]: of step i. */
sn_status sn_curve_write(const char *folder, const double *losses, size_t n, sn_err *err) SN_MUST_USE;

#endif
