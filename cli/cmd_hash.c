/* swarm hash: the manifest of a model's files, or whether the files are those of a manifest. */
#include "base/file.h"
#include "base/parse.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "sharing/hub/manifest.h"
#include "net/identity.h"
#include "sharing/hub/trusted_manifest.h"

#include <stdio.h>
#include <string.h>

static const char *out_path, *identity_path, *manifest_path;

static const sn_option options_table[] = {
    SN_OPT_STRING("out", "FILE", &out_path, "write the manifest to this file (default: standard output)"),
    SN_OPT_STRING("identity", "FILE", &identity_path, "sign it with this identity, made by 'swarm keygen'"),
    SN_OPT_STRING("manifest", "FILE", &manifest_path,
                  "make none, and compare the files, as far as they are here, with this one"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "with --manifest or --out: print one JSON object"),
};
static const sn_option_group output_group = SN_OPTION_GROUP("Output:", options_table);

static sn_status add_signature(sn_buf *text, sn_err *err) {
    sn_identity identity;
    uint8_t signature[SN_SIGNATURE_SIZE];
    char key[2 * SN_KEY_SIZE + 1], digits[2 * SN_SIGNATURE_SIZE + 1];
    const sn_hash id = sn_hash_of(text->data, text->len);
    sn_status status = sn_identity_load(identity_path, &identity, err);
    if (!status) status = sn_sign(&identity, id.bytes, sizeof id.bytes, signature, err);
    if (!status)
        status = sn_buf_printf(text, err, "signed %s %s\n", sn_hex(identity.id, SN_KEY_SIZE, key),
                               sn_hex(signature, sizeof signature, digits));
    explicit_bzero(&identity, sizeof identity);
    return status;
}

static sn_status make(const char *path, sn_err *err) {
    sn_buf text;
    char hex[2 * SN_HASH_SIZE + 1];
    sn_buf_init(&text, SN_MANIFEST_MAX);
    sn_status status = sn_manifest_make(path, NULL, &text, err);
    const sn_hash id = sn_hash_of(text.data, text.len);
    sn_hex(id.bytes, sizeof id.bytes, hex);
    if (!status && identity_path) status = add_signature(&text, err);
    if (!status && !out_path) fwrite(text.data, 1, text.len, stdout);
    if (!status && out_path) status = sn_file_replace(out_path, text.data, text.len, err);
    if (!status && out_path && sn_cli_output.json)
        status = sn_print_json(json_pack("{ss ss}", "manifest", hex, "file", out_path), err);
    else if (!status && out_path)
        printf("swarm:%s\n", hex);
    sn_buf_fini(&text);
    return status;
}

static sn_status check(const char *path, sn_err *err) {
    sn_buf text = {0};
    sn_manifest m = {0};
    uint64_t here = 0, missing = 0;
    char hex[2 * SN_HASH_SIZE + 1], signer[2 * SN_KEY_SIZE + 1] = "", size[32], rest[32];
    sn_status status = sn_read_file(manifest_path, SN_MANIFEST_MAX, &text, err);
    if (!status) status = sn_manifest_parse((const char *)text.data, text.len, &m, err);
    if (!status) status = sn_manifest_check_signature(&m, manifest_path, err);
    if (m.is_signed) sn_hex(m.signer, sizeof m.signer, signer);
    if (!status) status = sn_manifest_check(&m, path, &here, &missing, err);
    sn_hex(m.id.bytes, sizeof m.id.bytes, hex);
    if (!status && sn_cli_output.json)
        status = sn_print_json(json_pack("{ss ss sI sI}", "manifest", hex, "signer", signer, "right_bytes",
                                         (json_int_t)here, "missing_bytes", (json_int_t)missing),
                               err);
    else if (!status)
        printf("%s are those of swarm:%s%s%s; %s are not here\n", sn_format_size(here, size), hex,
               *signer ? ", signed by " : "", signer, sn_format_size(missing, rest));
    sn_manifest_fini(&m);
    sn_buf_fini(&text);
    return status;
}

static sn_status hash_main(const sn_options *options, int *code, sn_err *err) {
    (void)code;
    if (options->positionals.n != 1) return sn_fail(err, SN_REFUSED, "give the path of one model: swarm hash MODEL");
    const char *path = options->positionals.items[0];
    return manifest_path ? check(path, err) : make(path, err);
}

static const sn_option_group *const groups[] = {&output_group, &sn_group_log};

const sn_cli_command sn_cmd_hash = {
    .command = {.program = "swarm hash",
                .summary = "make the manifest of a model, or compare a model with one",
                .synopsis = "MODEL [--out FILE] [--identity FILE] | MODEL --manifest FILE",
                .about = "Hashes the files of a model. The manifest says what every part of them is; its id names the "
                         "model for --model swarm:ID and --model-id. A program that has the id from a trusted place "
                         "takes the files from any node.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .max_positionals = 1,
                .exit_codes = sn_exit_codes},
    .run = hash_main,
};
