/* `swarm eval` of a classifier: its accuracy over labelled texts. */
#ifndef SN_CLI_EVAL_CLASSIFIER_H
#define SN_CLI_EVAL_CLASSIFIER_H

#include "base/err.h"

/* Runs the classifier of --adapter over the examples of a file (.jsonl) and prints loss and accuracy. */
sn_status sn_eval_classifier(const char *path, sn_err *err) SN_MUST_USE;

#endif
