/* Reads messages of protobuf (https://protobuf.dev/programming-guides/encoding), field by field, within their bytes. No
 * schema: the caller knows its fields. Values are borrowed. Any thread. */
#ifndef SN_TEXT_TOKENIZER_PROTOBUF_H
#define SN_TEXT_TOKENIZER_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_protobuf {
    const uint8_t *at, *end; /* what is left */
    bool damaged;            /* the message does not follow the format */
} sn_protobuf;

typedef enum sn_protobuf_type { SN_PROTOBUF_INT = 0, SN_PROTOBUF_BYTES = 2, SN_PROTOBUF_FLOAT = 5 } sn_protobuf_type;

typedef struct sn_protobuf_field {
    uint32_t number;
    uint8_t type;         /* of sn_protobuf_type; others have no value here */
    uint64_t integer;     /* INT */
    float real;           /* FLOAT */
    const uint8_t *bytes; /* BYTES: a string or a message; (len) */
    size_t len;
} sn_protobuf_field;

/* The next field; false: the message ends, or is damaged. */
bool sn_protobuf_next(sn_protobuf *message, sn_protobuf_field *out);

#endif
