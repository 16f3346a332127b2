/* The name by which requests call a model that lies at a path. Any thread. */
#ifndef SN_CLI_SERVE_NAME_H
#define SN_CLI_SERVE_NAME_H

#include <stdbool.h>

enum { SN_SERVE_NAME_SIZE = 256 };

/* "folder/Name.gguf" and "folder/Name-00001-of-00003.gguf" give "Name", "folder/Name/" gives "Name". A folder of a
 * cache, which a commit names, gives the name of its repository: "ORG--NAME/COMMIT" and
 * "models--ORG--NAME/snapshots/COMMIT" "ORG/NAME". Returns out. */
const char *sn_serve_name(const char *path, char out[SN_SERVE_NAME_SIZE]);

#endif
