/* The environment, for what looks for libraries of drivers: programs let it be read, libswarm does not, because a host
 * program may change its environment at any time. sn_environment_use comes before all threads; sn_environment may then
 * be called by any. */
#ifndef SN_BASE_PROGRAM_ENVIRONMENT_H
#define SN_BASE_PROGRAM_ENVIRONMENT_H

/* From now on `get` is asked: getenv. */
void sn_environment_use(char *(*get)(const char *name));
/* The value of the variable; NULL: it is not set, or the environment is not read. */
const char *sn_environment(const char *name);

#endif
