/* How experts come from their file: in parts that are checked one by one, past the page cache where that is possible,
 * and those that are needed now before those ahead. */
#include "base/file.h"
#include "blocks/expert_reader.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *folder;

static void set_up(void) { folder = temp_folder(); }
static void tear_down(void) { temp_folder_remove(&folder); }
TestSuite(expert_reader, .init = set_up, .fini = tear_down);

/* -- an expert of two matrices and a bias in a file, read in parts */

enum { PAGE = 4096, MATRIX = 2 * PAGE, SECOND = PAGE, BIAS = 100, IMAGE = 4 * PAGE };

typedef struct parts_file {
    int file;
    uint8_t data[2 * IMAGE]; /* two experts */
    uint8_t *memory;         /* where the pieces of one go, each a page from the next */
    sn_tag tags[2 * IMAGE / PAGE];
    sn_expert_reader *reader;
} parts_file;

static void parts_tag(parts_file *f, size_t read_bytes) {
    sn_tagger *tagger = sn_tagger_new();
    for (size_t at = 0; at < sizeof f->data; at += read_bytes) {
        sn_tagger_begin(tagger, NULL);
        sn_tagger_add(tagger, f->data + at, read_bytes);
        f->tags[at / read_bytes] = sn_tagger_end(tagger);
    }
    sn_tagger_free(tagger);
}

/* Reads the second expert of those that begin at `at` to places that lie `shift` bytes behind pages. */
static sn_status parts_read_from(parts_file *f, uint64_t at, int uncached, size_t read_bytes, size_t shift,
                                 sn_err *err) {
    const size_t bytes[SN_EXPERT_PIECES] = {MATRIX, SECOND, 0, 0, BIAS};
    const sn_expert_rest rest = {
        .at = at, .stride = IMAGE, .file = f->file, .uncached = uncached, .read_bytes = read_bytes, .tags = f->tags};
    uint8_t *to = f->memory + shift;
    sn_expert_read read = {
        .rest = &rest, .expert = 1, .pieces = {to, to + 3 * PAGE, NULL, NULL, to + 5 * PAGE}, .bytes = bytes};
    memset(f->memory, 0, 8 * PAGE);
    sn_expert_reader_begin(f->reader, &read, true);
    sn_expert_reader_need(f->reader, &read);
    return sn_expert_reader_wait(f->reader, &read, 20000, err);
}

static sn_status parts_read(parts_file *f, int uncached, size_t read_bytes, size_t shift, sn_err *err) {
    return parts_read_from(f, 0, uncached, read_bytes, shift, err);
}

/* The pieces hold the second expert, and nothing else was written to. */
static void parts_expect(const parts_file *f, size_t shift) {
    static uint8_t want[8 * PAGE];
    const uint8_t *image = f->data + IMAGE;
    memset(want, 0, sizeof want);
    memcpy(want + shift, image, MATRIX);
    memcpy(want + shift + 3 * PAGE, image + MATRIX, SECOND);
    memcpy(want + shift + 5 * PAGE, image + MATRIX + SECOND, BIAS);
    cr_expect(!memcmp(f->memory, want, sizeof want), "places %zu bytes behind pages hold other bytes", shift);
}

static void parts_open(parts_file *f, off_t at) {
    char *path = temp_path(folder, "experts");
    for (size_t i = 0; i < sizeof f->data; i++) f->data[i] = (uint8_t)(i * 7 + i / 251);
    f->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    f->memory = aligned_alloc(PAGE, 8 * PAGE);
    cr_assert(f->memory && pwrite(f->file, f->data, sizeof f->data, at) == (ssize_t)sizeof f->data);
    REQUIRE(sn_expert_reader_new(&f->reader, &err));
    free(path);
}

static void parts_close(parts_file *f) {
    cr_assert(sn_expert_reader_free(&f->reader, 20000));
    close(f->file);
    free(f->memory);
}

Test(expert_reader, a_read_past_the_page_cache_that_is_refused_goes_through_it) {
    static parts_file f;
    const off_t odd = 100; /* where no such read may begin */
    parts_open(&f, odd);
    parts_tag(&f, PAGE);
    int uncached = sn_file_open_uncached(f.file); /* -1 on file systems without such reads */
    REQUIRE(parts_read_from(&f, (uint64_t)odd, uncached, PAGE, 0, &err));
    parts_expect(&f, 0);
    if (uncached >= 0) close(uncached);
    parts_close(&f);
}

Test(expert_reader, an_expert_read_in_parts_is_whole_and_each_part_is_checked) {
    static parts_file f;
    static const size_t shifts[] = {0, 64}; /* straight to its place, and by way of a buffer */
    parts_open(&f, 0);
    int uncached = sn_file_open_uncached(f.file); /* -1 on file systems without such reads */
    for (size_t read_bytes = PAGE; read_bytes <= IMAGE; read_bytes *= 2)
        for (int way = 0; way < 4; way++) {
            size_t shift = shifts[way % 2];
            int file = way / 2 ? uncached : -1;
            sn_err why = {0};
            parts_tag(&f, read_bytes);
            REQUIRE(parts_read(&f, file, read_bytes, shift, &err));
            parts_expect(&f, shift);
            for (off_t at = IMAGE + 9; at < 2 * IMAGE; at += PAGE) {
                uint8_t wrong = f.data[at] ^ 1;
                cr_assert_eq(pwrite(f.file, &wrong, 1, at), 1);
                cr_expect_eq(parts_read(&f, file, read_bytes, shift, &why), SN_STOP, "byte %ld", (long)at);
                cr_expect(strstr(why.text, "expert 1 in the offload folder was changed"), "%s", why.text);
                cr_assert_eq(pwrite(f.file, &f.data[at], 1, at), 1);
            }
            cr_assert_eq(ftruncate(f.file, 2 * IMAGE - 100), 0);
            cr_expect_eq(parts_read(&f, file, read_bytes, shift, &why), SN_STOP);
            cr_expect(strstr(why.text, "cut short"), "%s", why.text);
            cr_assert_eq(pwrite(f.file, f.data, sizeof f.data, 0), (ssize_t)sizeof f.data);
        }
    if (uncached >= 0) close(uncached);
    parts_close(&f);
}

/* -- the order of reads: the linker puts this function in place of the one that reads files */

int __real_sn_file_read_scattered(int fd, struct iovec *places, int n, uint64_t at);
int __wrap_sn_file_read_scattered(int fd, struct iovec *places, int n, uint64_t at);

enum { ORDER_MAX = 32, NOWHERE = -1 };
static struct {
    bool armed;
    int64_t hold_below, hold_at; /* places in the file whose readers wait for a post to `go_below`, `go_at` */
    sem_t held, go_below, go_at;
    atomic_int n;
    _Atomic uint64_t order[ORDER_MAX];
} reads;

int __wrap_sn_file_read_scattered(int fd, struct iovec *places, int n, uint64_t at) {
    if (!reads.armed) return __real_sn_file_read_scattered(fd, places, n, at);
    reads.order[atomic_fetch_add(&reads.n, 1) % ORDER_MAX] = at;
    if ((int64_t)at < reads.hold_below || (int64_t)at == reads.hold_at) {
        sem_post(&reads.held);
        sem_wait((int64_t)at < reads.hold_below ? &reads.go_below : &reads.go_at);
    }
    return __real_sn_file_read_scattered(fd, places, n, at);
}

enum { LINE = SN_EXPERT_READERS + 5, PARTS = 3 }; /* experts, of which the first ones keep all threads but one busy */

typedef struct line {
    sn_expert_reader *reader;
    sn_expert_rest rest;
    sn_expert_read reads[LINE];
    sn_tag tags[LINE * PARTS];
    uint8_t *memory;
} line;

static const size_t line_bytes[SN_EXPERT_PIECES] = {PARTS * PAGE};

static void line_open(line *l) {
    sn_tagger *tagger = sn_tagger_new();
    char *path = temp_path(folder, "line");
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    *l = (line){.memory = aligned_alloc(PAGE, LINE * PARTS * PAGE)};
    l->rest =
        (sn_expert_rest){.stride = PARTS * PAGE, .file = file, .uncached = -1, .read_bytes = PAGE, .tags = l->tags};
    for (size_t i = 0; i < LINE * PARTS; i++) {
        memset(l->memory, (int)i, PAGE);
        cr_assert_eq(pwrite(file, l->memory, PAGE, (off_t)(i * PAGE)), PAGE);
        sn_tagger_begin(tagger, NULL);
        sn_tagger_add(tagger, l->memory, PAGE);
        l->tags[i] = sn_tagger_end(tagger);
    }
    for (int e = 0; e < LINE; e++)
        l->reads[e] = (sn_expert_read){
            .rest = &l->rest, .expert = e, .pieces = {l->memory + e * PARTS * PAGE}, .bytes = line_bytes};
    sn_tagger_free(tagger);
    free(path);
    REQUIRE(sn_expert_reader_new(&l->reader, &err));
}

/* Sets what the file's readers wait for: places before expert `below`, and the first part of expert `at`. */
static void hold_reads(int below, int at) {
    cr_assert(!sem_init(&reads.held, 0, 0) && !sem_init(&reads.go_below, 0, 0) && !sem_init(&reads.go_at, 0, 0));
    reads.hold_below = below * PARTS * PAGE;
    reads.hold_at = at < 0 ? NOWHERE : at * PARTS * PAGE;
    reads.armed = true;
}

static void line_close(line *l) {
    for (int i = 0; i < SN_EXPERT_READERS; i++) sem_post(&reads.go_below);
    for (int e = 0; e < LINE; e++) REQUIRE(sn_expert_reader_wait(l->reader, &l->reads[e], 20000, &err));
    cr_assert(sn_expert_reader_free(&l->reader, 20000));
    reads.armed = false;
    close(l->rest.file);
    free(l->memory);
}

/* One thread reads all, since the others are held with a read each. */
Test(expert_reader, what_is_needed_is_read_before_what_comes_ahead, .timeout = 60) {
    enum { AHEAD = SN_EXPERT_READERS, LATER, NEEDED, NEEDED_SOON, NEEDED_LAST };
    static const int order[][2] = {{NEEDED, 0},      {NEEDED, 1}, {NEEDED, 2},      {NEEDED_SOON, 0}, {NEEDED_SOON, 1},
                                   {NEEDED_SOON, 2}, {AHEAD, 0},  {NEEDED_LAST, 0}, {NEEDED_LAST, 1}, {NEEDED_LAST, 2},
                                   {AHEAD, 1},       {AHEAD, 2},  {LATER, 0},       {LATER, 1},       {LATER, 2}};
    enum { N = sizeof order / sizeof *order };
    line l;
    line_open(&l);
    hold_reads(SN_EXPERT_READERS, AHEAD);
    for (int e = 0; e < SN_EXPERT_READERS; e++) l.reads[e].n_begun = l.reads[e].n_over = PARTS - 1; /* a part each */
    for (int e = 0; e < SN_EXPERT_READERS; e++) sn_expert_reader_begin(l.reader, &l.reads[e], false);
    for (int e = 0; e < SN_EXPERT_READERS; e++) sem_wait(&reads.held);
    sn_expert_reader_begin(l.reader, &l.reads[AHEAD], true);
    sn_expert_reader_begin(l.reader, &l.reads[LATER], true);
    sn_expert_reader_begin(l.reader, &l.reads[NEEDED_SOON], true);
    sn_expert_reader_begin(l.reader, &l.reads[NEEDED], false);
    sn_expert_reader_need(l.reader, &l.reads[NEEDED_SOON]);
    sem_post(&reads.go_below);
    sem_wait(&reads.held); /* the first part of what was begun ahead */
    sn_expert_reader_begin(l.reader, &l.reads[NEEDED_LAST], false);
    sem_post(&reads.go_at);
    REQUIRE(sn_expert_reader_wait(l.reader, &l.reads[LATER], 20000, &err));
    cr_assert_eq(reads.n, SN_EXPERT_READERS + N);
    for (int i = 0; i < N; i++)
        cr_expect_eq(reads.order[SN_EXPERT_READERS + i], (uint64_t)((order[i][0] * PARTS + order[i][1]) * PAGE),
                     "read %d is of expert %d, part %d", i, (int)(reads.order[SN_EXPERT_READERS + i] / PAGE / PARTS),
                     (int)(reads.order[SN_EXPERT_READERS + i] / PAGE % PARTS));
    line_close(&l);
}
