/* Whom a client asks first: the addresses of --join, and with --dht those that the table finds for the model. */
#ifndef SN_CLIENT_CONTACTS_H
#define SN_CLIENT_CONTACTS_H

#include "model/model.h"
#include "net/message.h"

enum { SN_CONTACTS_FOUND_MAX = 8, SN_CONTACTS_MAX = 64 };

typedef struct sn_contacts {
    const char *items[SN_CONTACTS_MAX]; /* for sn_link_open */
    size_t n;
    char found[SN_CONTACTS_FOUND_MAX][SN_ADDRESS_MAX + 2 * SN_KEY_SIZE + 2];
} sn_contacts;

/* SN_RETRY: neither was anybody given, nor found within timeout_ms. */
sn_status sn_contacts_find(sn_contacts *contacts, const sn_hash *model, int timeout_ms, sn_err *err) SN_MUST_USE;

#endif
