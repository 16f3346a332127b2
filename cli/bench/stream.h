/* The answer of a server that streams: server-sent events of the OpenAI API, of /v1/completions or
 * /v1/chat/completions. What comes is not trusted: lines have a limit, and what is no JSON is a failure. */
#ifndef SN_CLI_BENCH_STREAM_H
#define SN_CLI_BENCH_STREAM_H

#include "base/mem.h"

enum { SN_STREAM_LINE_MAX = 1 << 20 };

typedef struct sn_bench_stream {
    sn_buf line;                          /* the beginning of a line whose end has not come */
    int64_t first_us, last_us;            /* when the first and the last chunk with text came; 0: none has */
    int64_t chunks;                       /* with text */
    int64_t prompt_tokens, answer_tokens; /* of the usage; -1: it was not told */
    bool done;                            /* "[DONE]" */
} sn_bench_stream;

void sn_bench_stream_init(sn_bench_stream *stream);
void sn_bench_stream_fini(sn_bench_stream *stream);
/* Bytes that came at now_us. SN_RETRY: the server reports an error; SN_REFUSED: this is no such stream. */
sn_status sn_bench_stream_feed(sn_bench_stream *stream, const char *bytes, size_t n, int64_t now_us,
                               sn_err *err) SN_MUST_USE;
/* The sentence of an error in OpenAI's form, or of another body its beginning; at most `size` bytes. */
void sn_bench_stream_error(const char *body, size_t n, char *out, size_t size);

#endif
