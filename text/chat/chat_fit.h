/* Conversations that a template was not written for, in a form that it shows: what it refuses or leaves out goes into
 * messages that it takes. Which these are is seen by rendering short conversations once, when the template is parsed.
 *
 *   - System messages that a template refuses or leaves out (Gemma 2), or takes at the beginning only, stand at the
 *     beginning of the user's message that follows. Several at the beginning are one where only one is taken.
 *   - Messages of the user, or answers, that follow each other are one where roles must alternate.
 *   - Tools of a template that lists none are in the system message, as JSON, with the form in which to call one: its
 * own, if it shows calls. Else calls are in one form for all such templates (LFM2's have their own), and so are results
 * that it leaves out or refuses: the format of answers (answer_format.h) is read from it as from any template. */
#ifndef SN_TEXT_CHAT_CHAT_FIT_H
#define SN_TEXT_CHAT_CHAT_FIT_H

#include "text/chat/chat_template.h"

enum { SN_CHAT_FORM_MAX = 1024 };

/* What a template does not show; all false: it is given every conversation as it is. */
typedef struct sn_chat_lacks {
    bool system, second_system, late_system; /* any; another one at the beginning; one that is not at the beginning */
    bool repeated_roles;                     /* two messages of the user after each other */
    bool tools, calls, results;              /* the list of tools; calls in answers; their results */
    bool bracketed;                          /* calls that it lacks are those of LFM2: [NAME(KEY=VALUE, ...)] */
    char form[SN_CHAT_FORM_MAX];             /* a call as the template writes it, if it lacks the list only; else "" */
} sn_chat_lacks;

/* render: as sn_chat_template_render, of the conversation as it is. */
typedef sn_status (*sn_chat_renderer)(const sn_chat_template *chat, const sn_chat_request *request, sn_chat_prompt *out,
                                      sn_err *err);
sn_chat_lacks sn_chat_find_lacks(const sn_chat_template *chat, sn_chat_renderer render);

/* The messages as the template shows them, a new reference, of a request that was checked; tools are in them where it
 * lacks those. NULL: memory is out. */
json_t *sn_chat_fit_messages(const sn_chat_lacks *lacks, const sn_chat_request *request);

#endif
