/* swarm keygen: an identity in a file. */
#include "client/cmd.h"

#include "net/identity.h"

#include <stdio.h>
#include <string.h>

static const char *out_path;

static const sn_option options_table[] = {
    SN_OPT_REQUIRED("out", "FILE", &out_path, "the file to make; an existing one is never overwritten"),
    SN_OPT_FLAG("json", &sn_given.json, "print {\"id\", \"curve_key\", \"file\"}"),
};

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
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
        .synopsis = "--out FILE",
        .about = "Makes an identity: an Ed25519 key pair, whose public key is the id, and a CURVE key "
                 "pair for connections. Nodes and clients take it with --identity FILE; others pin a "
                 "node with --join tcp://HOST:PORT#CURVE_KEY.",
        .groups = groups,
        .n_groups = 2,
        .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
