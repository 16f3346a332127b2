/* A conversation: messages {"role", "content", ...} as chat templates expect them, in a JSON array, and in a file.
 *
 * The system message, if there is one, is the first. Texts must be valid UTF-8. The file is {"messages": [...]}, which
 * `swarm render --messages` reads, too; it is readable by its owner only. One thread. Errors: SN_REFUSED, SN_STOP. */
#ifndef SN_CLI_CHAT_CONVERSATION_H
#define SN_CLI_CHAT_CONVERSATION_H

#include "base/mem.h"

#include <jansson.h>

sn_status sn_conversation_add(json_t *messages, const char *role, const char *text, size_t n, sn_err *err) SN_MUST_USE;
/* Replaces the system message; NULL removes it. */
sn_status sn_conversation_set_system(json_t *messages, const char *text, sn_err *err) SN_MUST_USE;
const char *sn_conversation_system(const json_t *messages); /* NULL: there is none */
/* Removes all messages but the system message. */
void sn_conversation_reset(json_t *messages);
/* Removes the messages after the first n. */
void sn_conversation_cut(json_t *messages, size_t n);
/* Where the last turn begins: the index of the last message of the user; the number of messages when there is none. */
size_t sn_conversation_last_turn(const json_t *messages);
size_t sn_conversation_turns(const json_t *messages); /* messages of the user */

/* overwrite: a file of this name is replaced; else it is refused. */
sn_status sn_conversation_save(const json_t *messages, const char *path, bool overwrite, sn_err *err) SN_MUST_USE;
/* Reads a file of sn_conversation_save, or a JSON array of messages: *out is a new reference. */
sn_status sn_conversation_load(const char *path, json_t **out, sn_err *err) SN_MUST_USE;
/* Whether these are messages; SN_REFUSED with what is wrong. */
sn_status sn_conversation_check(const json_t *messages, sn_err *err) SN_MUST_USE;

#endif
