/* Parsing what people write: sizes, numbers, addresses, words. Any thread may call these functions. Parsers
 * return SN_REFUSED with a sentence that quotes the text and says what to write. */
#ifndef SN_BASE_PARSE_H
#define SN_BASE_PARSE_H

#include "base/mem.h"

sn_status sn_parse_size(const char *text, size_t *bytes,
                        sn_err *err) SN_MUST_USE; /* "4096", "512MiB", "2GB", "1.5GiB" */
sn_status sn_parse_int(const char *text, int64_t low, int64_t high, int64_t *out, sn_err *err) SN_MUST_USE;
sn_status sn_parse_float(const char *text, double low, double high, double *out, sn_err *err) SN_MUST_USE;
/* A number and a unit, ms, s, m or h, as in "500ms", "30s", "1.5h"; without a unit, seconds. */
sn_status sn_parse_duration(const char *text, int64_t *ms, sn_err *err) SN_MUST_USE;
/* "A:B" with 0 <= A < B. */
sn_status sn_parse_blocks(const char *text, int *first, int *end, sn_err *err) SN_MUST_USE;

/* What an address is for. */
typedef enum sn_host_port_form {
    SN_HOST_PORT_DIAL,   /* an address to connect to: the port is above 0 */
    SN_HOST_PORT_LISTEN, /* an address to listen at: also the host * (all addresses, IPv4 and IPv6) and the port 0 (a
                            free one) */
    SN_HOST_PORT_PINNED, /* as DIAL, and "#" with 64 hexadecimal digits may follow: the key expected there; or the
                          * word "lan": the host is that word, the port 0 */
} sn_host_port_form;

#define SN_RELAYED "/relay"
enum { SN_HOST_PORT_MAX = 255 }; /* bytes of HOST:PORT, without a key */

typedef struct sn_host_port {
    char host[SN_HOST_PORT_MAX + 1]; /* without the brackets of an IPv6 address */
    int port;
    size_t len;   /* bytes of HOST:PORT[/relay] in the text; a key follows it or nothing */
    bool relayed; /* DIAL, PINNED: "/relay" follows: a relay listens there, which brings to the node */
    bool pinned;
    uint8_t key[32]; /* if pinned */
} sn_host_port;

/* "HOST:PORT", "HOST:PORT/relay" or either with "#KEY" (sn_host_port_form says which). HOST is a name, an IPv4 address,
 * or an IPv6 address in brackets, as in "[::1]:31330". This is the one checker of addresses: options, messages and
 * transports use it. SN_REFUSED with a sentence that says what to write. The sentence quotes the text: a caller whose
 * text comes from a peer checks first that it is printable. */
sn_status sn_parse_host_port(const char *text, sn_host_port_form form, sn_host_port *out, sn_err *err) SN_MUST_USE;

/* "1.5 MiB" to out (at least 32 bytes); returns out. */
char *sn_format_size(size_t bytes, char out[32]);
/* "5m", "90s", "500ms", in the largest unit of which it is a whole number, into out (at least 32 bytes); returns out.
 */
char *sn_format_duration(int64_t ms, char out[32]);

/* The words of an enumeration and their values, for options and messages. A table ends with a NULL name. */
typedef struct sn_word {
    const char *name;
    int value;
} sn_word;
const char *sn_word_name(const sn_word *words, int value);              /* the word for a value, or NULL */
bool sn_word_value(const sn_word *words, const char *name, int *value); /* false: there is no such word */

/* Replaces what is not printable ASCII: names that nodes announce go to terminals. */
void sn_sanitize_text(char *text);

#endif
