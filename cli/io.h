/* What commands read and print: files of text and token ids, JSON, interrupts. */
#ifndef SN_CLI_IO_H
#define SN_CLI_IO_H

#include "base/cancel.h"
#include "base/mem.h"
#include "base/options.h"
#include "include/swarm.h"
#include "text/tokenizer/ids.h"

#include <jansson.h>

enum { SN_INPUT_MAX = 64 << 20 }; /* bytes of a text */
/* The file or pipe, or standard input when the path is "-". SN_REFUSED above `limit` bytes. Free *out with sn_buf_fini.
 */
sn_status sn_read_input(const char *path, size_t limit, sn_buf *out, sn_err *err) SN_MUST_USE;
/* A JSON array of token ids. Free *out with sn_token_ids_fini. */
sn_status sn_read_ids(const char *path, sn_token_ids *out, sn_err *err) SN_MUST_USE;

/* Tries a path for a result before the work that makes it: SN_REFUSED when the file exists already and --force is not
 * given, or when it cannot be made there. Devices and pipes may be there. */
sn_status sn_check_output(const char *option, const char *path, sn_err *err) SN_MUST_USE;
/* The same for a folder, which may exist when it is empty. Makes it. */
sn_status sn_check_output_folder(const char *option, const char *path, const char *advice, sn_err *err) SN_MUST_USE;
extern const sn_option_group sn_group_force; /* --force */

/* Values for JSON objects. NULL when memory is out, which the json_*_set_new functions accept. */
json_t *sn_json_ids(const int32_t *ids, size_t n);
json_t *sn_json_text(const sn_buf *text);

/* Prints one object and a newline on stdout, and frees it. */
sn_status sn_print_json(json_t *object, sn_err *err) SN_MUST_USE;
/* Flushes stdout. SN_STOP: it cannot be written, for example on a full disk; sn_stdout_closed: its reader has
 * closed the pipe, which the program says with its exit code only. */
sn_status sn_flush_stdout(sn_err *err) SN_MUST_USE;
extern bool sn_stdout_closed;

/* After this call, SIGINT counts sn_interrupted up; a second SIGINT before it is 0 again ends the process at once. */
void sn_catch_interrupts(void);
/* The same, and SIGINT sets a flag, too (NULL: none). The SIGINT of number `presses` ends the process, after `restore`
 * (NULL: nothing is to be done before). */
void sn_catch_interrupts_with(swarm_cancel *cancel, int presses, void (*restore)(void));
/* SIGINT ends the process again: the flag may be freed. */
void sn_release_interrupts(void);
extern sn_cancel sn_interrupt;
#define sn_interrupted sn_interrupt.set

#endif
