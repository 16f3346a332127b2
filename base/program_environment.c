#include "base/program_environment.h"

#include <stddef.h>

static char *(*read_variable)(const char *name);

void sn_environment_use(char *(*get)(const char *name)) { read_variable = get; }

const char *sn_environment(const char *name) { return read_variable ? read_variable(name) : NULL; }
