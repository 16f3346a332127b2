/* What a model file holds, as JSON. docs/CLIENT.md describes the fields. */
#ifndef SN_CLIENT_API_DESCRIBE_H
#define SN_CLIENT_API_DESCRIBE_H

#include "model/model.h"

#include <jansson.h>

/* hashes: with the SHA-256 of each block's weights, for which the file is read; tensors: with a list of all tensors. */
sn_status sn_model_json(const sn_model *model, bool hashes, bool tensors, json_t **out, sn_err *err) SN_MUST_USE;

#endif
