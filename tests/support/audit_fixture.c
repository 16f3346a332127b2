#include "tests/support/audit_fixture.h"

#include "base/clock.h"
#include "base/wire.h"
#include "client/audit/evidence.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <string.h>
#include <unistd.h>

void audit_fixture_begin_of(audit_fixture *t, const cluster_options *nodes) {
    *t = (audit_fixture){.w = testbed_new(nodes), .detected_at = -1};
    snprintf(t->folder, sizeof t->folder, "/tmp/swarm-test-evidence-XXXXXX");
    cr_assert(mkdtemp(t->folder));
}

void audit_fixture_begin_with_kv(audit_fixture *t, sn_kv_dtype kv_dtype) {
    audit_fixture_begin_of(t, &(cluster_options){.kv_memory = 64, .kv_dtype = kv_dtype});
}

void audit_fixture_begin(audit_fixture *t) { audit_fixture_begin_with_kv(t, SN_KV_F32); }

void audit_fixture_use_wire_dtype(audit_fixture *t, sn_dtype wire) {
    size_t n = TESTBED_TOKENS * (size_t)t->w->n_embd;
    float *rows = malloc(n * sizeof *rows);
    memcpy(rows, t->w->inputs, n * sizeof *rows);
    sn_wire_round(wire, rows, n);
    for (int first = 0; first < 4; first += 2) {
        float *next = testbed_compute(t->w, first, first + 2, TESTBED_TOKENS, rows);
        free(rows);
        rows = next;
        sn_wire_round(wire, rows, n);
    }
    t->wire = wire;
    t->rounded = rows;
}

void audit_fixture_fakes_only_audit(audit_fixture *t) {
    static const char *const fakes[] = {"fake"};
    t->node_filter = (sn_node_filter){.deny = fakes, .n_deny = 1};
}

void audit_fixture_open(audit_fixture *t, sn_audit_options audit, bool push, bool here) {
    sn_device_options how = {.threads = 1};
    t->link = cluster_link(t->w->cluster);
    REQUIRE(sn_model_open(t->w->path, &t->model, &err));
    if (t->byzantine) byzantine_node_announce_to(t->byzantine, t->link);
    if (t->gpu) byzantine_node_announce_to(t->gpu, t->link);
    if (here) REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &t->device, &err));
    audit.model = t->model;
    audit.link = t->link;
    audit.device = t->device;
    audit.evidence = t->folder;
    audit.max_tokens = TESTBED_TOKENS;
    audit.timeout_ms = 10000;
    REQUIRE(sn_audit_new(&audit, &t->audit, &err));
    sn_chain_options options = sn_chain_options_default();
    options.link = t->link;
    options.max_tokens = TESTBED_TOKENS;
    options.limits.timeout_ms = audit.timeout_ms;
    options.routing.push = push;
    options.routing.node_filter = t->node_filter;
    options.wire.dtype = t->wire;
    options.kv.dtype = t->w->kv_dtype;
    options.verification.verifier = sn_audit_verifier(t->audit);
    REQUIRE(sn_chain_open(t->model, &options, &t->chain, &err));
}

void audit_fixture_end(audit_fixture *t) {
    sn_chain_close(&t->chain);
    sn_audit_free(&t->audit);
    sn_link_close(&t->link);
    sn_device_close(&t->device);
    sn_model_close(&t->model);
    DIR *folder = opendir(t->folder);
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", t->folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (folder) closedir(folder);
    rmdir(t->folder);
    byzantine_node_free(&t->byzantine);
    byzantine_node_free(&t->gpu);
    free(t->rounded);
    testbed_free(&t->w);
}

sn_status feed_tokens(audit_fixture *t, int position, int end, int chunk) {
    size_t row = (size_t)t->w->n_embd;
    for (int at = position, n; at < end;) {
        n = chunk < end - at ? chunk : end - at;
        t->step++;
        sn_status status =
            sn_chain_step(t->chain, at, n, t->w->inputs + (size_t)at * row, t->out + (size_t)at * row, &t->err);
        if (status == SN_REBUILD && sn_chain_audit_failed(t->chain)) {
            if (!t->audit_failures++) t->detected_at = t->step;
            at = sn_chain_length(t->chain);
            continue;
        }
        if (status) return status;
        at += n;
    }
    return SN_OK;
}

bool output_is_right(const audit_fixture *t, int end) {
    return !memcmp(t->out, t->rounded ? t->rounded : t->w->hidden, (size_t)end * (size_t)t->w->n_embd * sizeof(float));
}

void expect_evidence(const audit_fixture *t, const uint8_t *culprit) {
    sn_audit_report report = sn_audit_get_report(t->audit);
    sn_evidence e;
    sn_device *device = NULL;
    sn_chain *truth = NULL;
    bool cut_at[8], round_at[8];
    sn_verdict found[SN_STATEMENTS_MAX];
    sn_device_options how = {.threads = 2, .isa = "c"};
    REQUIRE(sn_evidence_load(report.evidence, &e, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, &err));
    sn_evidence_cuts(&e, cut_at, t->w->n_blocks);
    sn_chain_options options = {.first = e.first,
                                .end = e.end,
                                .max_tokens = e.n_tokens,
                                .local = {.device = device, .first = e.first, .end = e.end},
                                .kv.dtype = t->w->kv_dtype,
                                .routing.cut_at = cut_at,
                                .wire = {.round_at = round_at}};
    options.wire.dtype = sn_evidence_wire(&e, round_at, t->w->n_blocks);
    cr_expect_eq(options.wire.dtype, t->wire);
    REQUIRE(sn_chain_open(t->model, &options, &truth, &err));
    REQUIRE(sn_evidence_judge(&e, truth, found, &err));
    int lies = 0;
    for (size_t i = 0; i < e.n; i++) {
        sn_announcement a;
        bool is_culprit = !memcmp(e.statements[i].receipt.node, culprit, SN_KEY_SIZE);
        cr_expect_eq(found[i].kind, is_culprit ? SN_VERDICT_WRONG : SN_VERDICT_CORRECT, "statement %zu: %s", i,
                     found[i].why);
        lies += is_culprit;
        const sn_blob *announcement = &e.statements[i].announcement;
        cr_expect_eq(sn_announcement_open(announcement->data, announcement->len, sn_unix_ms(), &a, NULL), SN_OK);
        cr_expect_arr_eq(a.node, e.statements[i].receipt.node, SN_KEY_SIZE);
    }
    cr_expect_geq(lies, 1);
    sn_chain_close(&truth);
    sn_device_close(&device);
    sn_evidence_fini(&e);
}
