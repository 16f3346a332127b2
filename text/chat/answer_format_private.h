/* What the two halves of text/chat/answer_format.h share: the marks of a format. */
#ifndef SN_TEXT_CHAT_ANSWER_FORMAT_PRIVATE_H
#define SN_TEXT_CHAT_ANSWER_FORMAT_PRIVATE_H

#include "text/chat/answer_format.h"

typedef enum sn_call_kind {
    SN_CALLS_NONE,
    SN_CALLS_JSON,     /* an object with the name and the arguments */
    SN_CALLS_NAMED,    /* the name, then an object with the arguments */
    SN_CALLS_TAGGED,   /* the name, then each argument by itself */
    SN_CALLS_WRITTEN,  /* as in a program: NAME(KEY=VALUE, ...), or NAME{KEY:VALUE, ...} */
    SN_CALLS_CHANNELS, /* gpt-oss */
} sn_call_kind;

enum { SN_MARK_MAX = 160 };
typedef char sn_mark[SN_MARK_MAX]; /* a text of the template, without white space around it; "": none */

struct sn_answer_format {
    sn_call_kind kind;
    sn_mark section;                 /* before all calls */
    sn_mark call;                    /* before each call: before its name or, of SN_CALLS_JSON, before its object */
    sn_mark name_key, arguments_key; /* of SN_CALLS_JSON; name_key "": the name itself is the key */
    sn_mark key;                     /* of SN_CALLS_TAGGED: before an argument's name */
    sn_mark key_end, value;          /* between its name and its value: the beginning and the end of that */
    sn_mark string_value;            /* all that is between when the value is text, if it differs for others */
    sn_mark value_end;               /* after the value */
    sn_mark thought, thought_end;
};

/* Where a mark stands in the text, with white space where and only where the mark has some, or none. */
typedef enum sn_match { SN_MATCH_NO, SN_MATCH_BEGINS, SN_MATCH_YES } sn_match; /* BEGINS: the text ends within it */
/* Whether the mark stands at `at`; *end: behind it. */
sn_match sn_mark_match(const char *mark, const char *text, size_t len, size_t at, size_t *end);
/* The first place from `at` on where the mark stands, or where it begins at the end of the text; len: nowhere. */
size_t sn_mark_find(const char *mark, const char *text, size_t len, size_t at, sn_match *match);

/* Reads a value as models write it in calls: as in JSON or Python, also with keys without quotes, and texts between
 * SN_TEXT_QUOTE (Gemma 4). A new reference, and *end: behind it; NULL: there is none, or the text ends within it or
 * right behind it. */
#define SN_TEXT_QUOTE "<|\"|>"
json_t *sn_written_value(const char *text, size_t len, size_t at, size_t *end);

#endif
