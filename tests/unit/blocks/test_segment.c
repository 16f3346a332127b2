/* The assertion before attention: a tensor that bypassed the guard ends the process with the tensor's name, and is
 * not used. */
#include "blocks/segment.h"

#include "tests/support/far_device.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HEADS = 4, KV_HEADS = 2, DIM = 16, ROWS = 3, PAGE_BYTES = 4096, PAGES = 3 };

static const sn_kv_shape shape = {1, KV_HEADS, DIM, 32, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};

static size_t page_bytes(const sn_device *d, const sn_kv_shape *s) {
    (void)d, (void)s;
    return PAGE_BYTES;
}

static int n_batches;

/* As if a recorded batch were replayed: no operation is called. */
static sn_status stub_batch_begin(sn_device *d, const sn_batch *pass, bool *recorded, sn_err *err) {
    (void)d, (void)pass, (void)err;
    *recorded = true;
    n_batches++;
    return SN_OK;
}

static sn_status stub_batch_end(sn_device *d, sn_err *err) {
    (void)d, (void)err;
    return SN_OK;
}

/* A segment on `here`, a batch of 70 + 3 positions; and memory of the device `there`. */
typedef struct fixture {
    far_device here, there;
    sn_device_ops ops;
    sn_hparams hp;
    sn_scratch scratch;
    sn_block_storage block;
    sn_segment segment;
    void *pages[PAGES];
    sn_sequence sequence;
    sn_batch pass;
} fixture;

static void *bytes_of(far_device *d, size_t bytes) {
    void *memory = NULL;
    REQUIRE(d->base.ops->alloc(&d->base, bytes, &memory, &err));
    return memory;
}

static float *rows_of(far_device *d, int heads) { return bytes_of(d, ROWS * DIM * sizeof(float) * (size_t)heads); }

static fixture w;

static void set_up(void) {
    far_device_init(&w.here, SN_DEVICE_CUDA, 0);
    far_device_init(&w.there, SN_DEVICE_XPU, 1);
    w.ops = *w.here.base.ops;
    w.ops.kv_page_bytes = page_bytes;
    w.ops.batch_begin = stub_batch_begin;
    w.ops.batch_end = stub_batch_end;
    w.here.base.ops = &w.ops;
    w.hp = (sn_hparams){.n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM};
    w.scratch = (sn_scratch){.q = rows_of(&w.here, HEADS),
                             .attn = rows_of(&w.here, HEADS),
                             .k = rows_of(&w.here, KV_HEADS),
                             .v = rows_of(&w.here, KV_HEADS)};
    w.block = (sn_block_storage){.residence = SN_ON_DEVICE};
    w.segment = (sn_segment){.device = &w.here.base, .scratch = &w.scratch, .first = 4, .end = 5, .blocks = &w.block};
    for (int i = 0; i < PAGES; i++) w.pages[i] = bytes_of(&w.here, PAGE_BYTES);
    w.sequence = (sn_sequence){.pages = w.pages, .position = 70, .n_rows = ROWS};
    w.pass = (sn_batch){&shape, ROWS, 1, &w.sequence, 0};
}

TestSuite(segment, .init = set_up);

static sn_status run_forward(void) {
    sn_err err;
    return sn_segment_forward(&w.segment, &w.hp, 4, 5, &w.pass, NULL, &err);
}

/* The message with which the process aborts; "" if it does not abort. */
static const char *abort_message(void) {
    static char message[512];
    int ends[2], how;
    memset(message, 0, sizeof message);
    if (pipe(ends)) abort();
    pid_t child = fork();
    if (!child) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        _exit(run_forward());
    }
    close(ends[1]);
    for (size_t at = 0; at < sizeof message - 1;) {
        ssize_t n = read(ends[0], message + at, sizeof message - 1 - at);
        if (n <= 0) break;
        at += (size_t)n;
    }
    close(ends[0]);
    waitpid(child, &how, 0);
    return WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT ? message : "";
}

static void expect_named(const char *name) {
    const char *message = abort_message();
    cr_expect(strstr(message, name) && strstr(message, "cuda:0"), "%s elsewhere: it said \"%s\"", name, message);
}

Test(segment, runs_over_tensors_that_lie_on_its_device) {
    cr_assert_eq(run_forward(), SN_OK);
    cr_assert_eq(n_batches, 1);
    w.sequence.n_rows = w.pass.n_rows = 0; /* also with no new rows, and with an empty KV cache */
    cr_assert_eq(run_forward(), SN_OK);
    w.sequence = (sn_sequence){0};
    cr_assert_eq(run_forward(), SN_OK);
}

Test(segment, aborts_naming_a_kv_cache_on_another_device) {
    for (int i = 0; i < PAGES; i++) {
        void *right = w.pages[i], *wrong[] = {bytes_of(&w.there, PAGE_BYTES), NULL, &w};
        for (int k = 0; k < 3; k++) {
            w.pages[i] = wrong[k];
            expect_named("KV pages");
        }
        w.pages[i] = right;
    }
    w.sequence.position = 96 - ROWS; /* the last position of the last page */
    cr_assert_str_empty(abort_message());
}

Test(segment, aborts_naming_activations_on_another_device) {
    struct {
        float **at;
        const char *name;
    } all[] = {{&w.scratch.q, "queries"},
               {&w.scratch.k, "new keys"},
               {&w.scratch.v, "new values"},
               {&w.scratch.attn, "results"}};
    for (int i = 0; i < 4; i++) {
        float *right = *all[i].at;
        *all[i].at = rows_of(&w.there, HEADS);
        expect_named(all[i].name);
        *all[i].at = right;
    }
    cr_assert_str_empty(abort_message());
    w.pass.n_rows = ROWS + 1; /* more rows than the buffers hold */
    expect_named("queries");
}
