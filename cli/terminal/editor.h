/* Messages that a person writes at a terminal, with libedit: editing, history, completion, several lines, pastes.
 *
 * Enter ends a message. Alt-Enter begins a new line of it, and so does Enter within a block that begins with """ and is
 * not closed by another """ yet. A paste is one piece of text whatever its size: a small one can be edited, a large one
 * stands in the line as "[pasted text 1: 900 lines]" until the message is taken. What was typed between two messages is
 * text at the next prompt, and never a message by itself. Ctrl-C drops the line.
 *
 * Central type: sn_editor. There is one in a process, because it changes the terminal's modes: from sn_editor_open to
 * sn_editor_close keys are not echoed, and Ctrl-C is a SIGINT. On SIGTERM, SIGHUP, SIGQUIT and SIGTSTP the terminal
 * gets its modes back. One thread; errors: SN_STOP (memory), SN_REFUSED (the terminal cannot be read). */
#ifndef SN_CLI_TERMINAL_EDITOR_H
#define SN_CLI_TERMINAL_EDITOR_H

#include "base/cancel.h"
#include "base/mem.h"

typedef struct sn_editor sn_editor;

enum { SN_EDITOR_PASTE_MAX = 1 << 28, SN_COMPLETIONS_MAX = 64 };

typedef struct sn_completions {
    char *items[SN_COMPLETIONS_MAX]; /* heap */
    size_t n;
} sn_completions;
/* Adds a copy of "before" + "word", a whole text up to the cursor, if it begins with `text`. */
void sn_completions_add(sn_completions *c, const char *text, const char *before, const char *word);

typedef struct sn_editor_options {
    const char *program, *prompt; /* borrowed */
    const char *history;          /* path of the file, borrowed; NULL: none is kept */
    bool styles;                  /* the prompt may be bold */
    const sn_cancel *interrupt;
    void *ctx;
    void (*idle)(void *ctx); /* called about five times a second while a message is awaited; may be NULL */
    /* Appends lines that are to be shown above the prompt; may be NULL. */
    void (*notices)(void *ctx, sn_buf *out);
    /* Adds what the text up to the cursor may become; may be NULL. */
    void (*complete)(void *ctx, const char *text, sn_completions *out);
} sn_editor_options;

/* Standard input and standard error must be terminals. */
sn_status sn_editor_open(const sn_editor_options *options, sn_editor **out, sn_err *err) SN_MUST_USE;
void sn_editor_close(sn_editor **editor); /* accepts NULL */

typedef enum sn_editor_event {
    SN_EDITOR_MESSAGE,   /* a message, perhaps an empty one */
    SN_EDITOR_END,       /* Ctrl-D on an empty line, or the terminal is gone */
    SN_EDITOR_DROPPED,   /* Ctrl-C dropped what was written */
    SN_EDITOR_INTERRUPT, /* Ctrl-C on an empty line */
} sn_editor_event;

/* Waits for a message: out gets it as UTF-8 with a NUL that its length does not count. */
sn_status sn_editor_read(sn_editor *editor, sn_buf *out, sn_editor_event *event, sn_err *err) SN_MUST_USE;

/* Gives the terminal its modes back, for a signal handler that ends the process. */
void sn_editor_restore_terminal(void);

#endif
