/* swarm keygen: an identity in a file. */
#include "client/cmd.h"

#include "net/identity.h"
#include "net/members.h"

#include <stdio.h>
#include <string.h>

static const char *out_path, *swarm_path;

static const sn_option options_table[] = {
    SN_OPT_STRING("out", "FILE", &out_path, "the identity's file to make; an existing one is never overwritten"),
    SN_OPT_STRING("swarm", "FILE", &swarm_path,
                  "make the key of a private swarm instead: who holds a copy of the file gets in with --swarm-key"),
    SN_OPT_FLAG("json", &sn_given.json, "print {\"id\", \"curve_key\", \"file\"}"),
};

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    if (!out_path == !swarm_path) return sn_fail(err, SN_REFUSED, "give --out FILE for an identity, or --swarm FILE");
    if (swarm_path) {
        sn_status made = sn_swarm_key_make(swarm_path, err);
        if (!made && sn_given.json) return sn_print_json(json_pack("{ss}", "file", swarm_path), err);
        if (!made) printf("%s holds the swarm's key: give copies to those who shall be in it, and to nobody else.\n", swarm_path);
        return made;
    }
    sn_identity identity;
    char id[2 * SN_KEY_SIZE + 1], key[2 * SN_KEY_SIZE + 1];
    sn_status status = sn_identity_new(&identity, err);
    if (!status) status = sn_identity_save(&identity, out_path, err);
    if (status) return status;
    sn_hex(identity.id, SN_KEY_SIZE, id);
    sn_hex(identity.curve_key, SN_KEY_SIZE, key);
    explicit_bzero(&identity, sizeof identity);
    if (sn_given.json) return sn_print_json(json_pack("{ss ss ss}", "id", id, "curve_key", key, "file", out_path), err);
    printf("id         %s\ncurve key  %s\n%s holds the secret keys: keep it to yourself.\n", id, key, out_path);
    return SN_OK;
}

int sn_cmd_keygen(int argc, char **argv) {
    const sn_option_group groups[] = {{"Options:", options_table, sizeof options_table / sizeof *options_table},
                                      sn_group_log};
    const sn_command command = {
        .program = "swarm keygen",
        .synopsis = "--out FILE | --swarm FILE",
        .about = "Makes an identity: an Ed25519 key pair, whose public key is the id, and a CURVE key "
                 "pair for connections. Nodes and clients take it with --identity FILE; others pin a "
                 "node with --join tcp://HOST:PORT#CURVE_KEY. Or makes the key of a private swarm.",
        .groups = groups,
        .n_groups = 2,
        .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
