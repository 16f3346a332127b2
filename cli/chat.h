/* `swarm chat`: what its files share. A conversation is a list of messages; each turn renders all of them with the
 * model's chat template, and the session computes what it does not hold yet (include/swarm.h).
 *
 * cmd_chat.c opens everything and reads turns and commands, chat_answer.c generates an answer, chat_commands.c runs
 * what begins with a slash. Everything runs on the main thread. */
#ifndef SN_CLI_CHAT_H
#define SN_CLI_CHAT_H

#include "cli/program.h"
#include "cli/terminal/answer_view.h"
#include "cli/terminal/editor.h"

#include <jansson.h>

/* Figures of the last answer. */
typedef struct sn_chat_figures {
    size_t prompt_tokens, reused_tokens, answer_tokens;
    int64_t first_token_us; /* from the call; 0: there was none */
    int64_t decode_us;      /* from the first token to the last */
} sn_chat_figures;

typedef struct sn_chat {
    sn_cli_session swarm;
    json_t *description; /* of the model */
    const char *path;    /* of the model, borrowed */
    size_t context;      /* tokens of the session */

    json_t *messages;
    char *file; /* that /save or /load used last; may be replaced */
    sn_chat_figures last;

    bool terminal; /* a person types */
    sn_answer_view view;
    bool quit;
} sn_chat;

/* Generates the answer to the messages, shows it and appends it. After a failure, and when the answer was stopped
 * before it began, the messages are the first `kept` ones again. */
sn_status sn_chat_answer(sn_chat *chat, size_t kept, sn_err *err) SN_MUST_USE;
/* Ctrl-C was heard, and what it asked for is done. */
void sn_chat_clear_interrupt(sn_chat *chat);
/* The speed of the last answer, after its first token; 0: there was none. */
double sn_chat_tokens_per_second(const sn_chat_figures *figures);

/* Runs a line that begins with a slash. */
sn_status sn_chat_run_command(sn_chat *chat, const char *line, sn_err *err) SN_MUST_USE;
/* What a line that begins with a slash may become (sn_editor_options.complete; ctx: the chat). */
void sn_chat_complete(void *chat, const char *text, sn_completions *out);

#endif
