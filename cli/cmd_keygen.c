/* swarm keygen: an identity, or the key of a private swarm, in a file. */
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "net/identity.h"
#include "net/transport/private_swarm.h"

#include <stdio.h>
#include <string.h>

static const char *out_path, *swarm_path;

static const sn_option options_table[] = {
    SN_OPT_STRING("out", "FILE", &out_path, "write an identity to this file; an existing file is not overwritten"),
    SN_OPT_STRING("swarm-key", "FILE", &swarm_path,
                  "write the key of a private swarm to this file instead: a copy of it, given as --swarm-key, admits a "
                  "node or client to the swarm"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print {\"id\", \"curve_key\", \"file\"}"),
};
static const sn_option_group output_group = SN_OPTION_GROUP("Output:", options_table);

static sn_status keygen_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    if (!out_path == !swarm_path)
        return sn_fail(err, SN_REFUSED, "give --out FILE for an identity, or --swarm-key FILE");
    if (swarm_path) {
        sn_status made = sn_swarm_key_make(swarm_path, err);
        if (!made && sn_cli_output.json) return sn_print_json(json_pack("{ss}", "file", swarm_path), err);
        if (!made) printf("%s holds the swarm's key: give copies only to members of the swarm.\n", swarm_path);
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
    if (sn_cli_output.json)
        return sn_print_json(json_pack("{ss ss ss}", "id", id, "curve_key", key, "file", out_path), err);
    printf("id         %s\ncurve key  %s\n%s holds the secret keys: do not share it.\n", id, key, out_path);
    return SN_OK;
}

static const sn_option_group *const groups[] = {&output_group, &sn_group_log};

const sn_cli_command sn_cmd_keygen = {
    .command = {.program = "swarm keygen",
                .summary = "make an identity for a node or client, or the key of a private swarm",
                .synopsis = "--out FILE | --swarm-key FILE",
                .about = "Makes an identity: an Ed25519 key pair, whose public key is the id, and a CURVE key pair for "
                         "connections. Nodes and clients use it with --identity FILE; others pin a node with --join "
                         "HOST:PORT#CURVE_KEY. Or makes the key of a private swarm.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = keygen_main,
};
