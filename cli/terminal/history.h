/* The lines that were entered, in a file of the user: $XDG_STATE_HOME/swarm/history, or ~/.local/state/swarm/history.
 *
 * One line of the file is one entry, its line breaks written as "\n" and its backslashes doubled. The file is readable
 * by its owner only, and holds SN_HISTORY_ENTRIES entries at most; longer entries than SN_HISTORY_ENTRY_BYTES are not
 * kept. Several processes may append at once: an entry is one write. One thread. A history that cannot be kept is no
 * failure of the program: the functions say so by false. */
#ifndef SN_CLI_TERMINAL_HISTORY_H
#define SN_CLI_TERMINAL_HISTORY_H

#include "base/file.h"

#include <stdbool.h>

enum { SN_HISTORY_ENTRIES = 1000, SN_HISTORY_ENTRY_BYTES = 16384 };

/* The file's path, with the folders made; false: there is no home folder, or a folder cannot be made. */
bool sn_history_path(char out[SN_PATH_SIZE]);
/* Calls `entry` with each entry (a text with its NUL) from the oldest. A file that has grown beyond its bound is
 * shortened, one that others could read is made private. True when the file could be read. */
bool sn_history_read(const char *path, void (*entry)(void *ctx, const char *text), void *ctx);
bool sn_history_append(const char *path, const char *text);

#endif
