/* Memory, copies, and weights that must be refused.
 *
 * How it works: cases copy recognisable values between host, pinned and device memory in the orders that
 * device/device.h allows, and compare them bit by bit. Copies that run concurrently with the queue are ordered only
 * by fences; a copy that runs too early or too late shows in the values. */
#include "tests/support/conformance.h"

#include "base/float4.h"
#include "tests/support/cpu_devices.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

void conformance_memory_comes_zeroed_and_aligned(conformance *c) {
    static const size_t sizes[] = {1, 64, 1000, 70001, 3 << 20};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int mark = c->n_buffers;
            uint8_t *device = conformance_bytes(c, sizes[i]), *host = conformance_heap(c, sizes[i]);
            CONFORMANCE_CHECK(c, (uintptr_t)device % 64 == 0, "%zu bytes came at %p", sizes[i], (void *)device);
            memset(host, 0xa5, sizes[i]);
            CONFORMANCE_OK(c, c->device->ops->download(c->device, host, device, sizes[i], &c->err));
            for (size_t b = 0; b < sizes[i]; b++)
                CONFORMANCE_CHECK(c, host[b] == 0, "byte %zu of %zu new ones is %d", b, sizes[i], host[b]);
            memset(host, 0xa5, sizes[i]); /* the next round gets memory that was used */
            CONFORMANCE_OK(c, c->device->ops->upload(c->device, device, host, sizes[i], &c->err));
            conformance_release(c, mark);
        }
}

void conformance_freeing_nothing_is_harmless(conformance *c) {
    c->device->ops->free(c->device, NULL, 0);
    c->device->ops->free(c->device, NULL, 64);
    c->device->ops->host_free(c->device, NULL, 64);
    CONFORMANCE_OK(c, c->device->ops->finish(c->device, &c->err));
}

void conformance_a_device_knows_its_own_memory(conformance *c) {
    static const size_t sizes[] = {1, 64, 70001, 3 << 20};
    sn_device *d = c->device;
    uint8_t *a[4], *heap = conformance_heap(c, 64);
    CONFORMANCE_CHECK(c, !d->ops->owns(d, NULL, 0), "NULL is memory of this device");
    for (int i = 0; i < 4; i++) a[i] = conformance_bytes(c, sizes[i]);
    for (int i = 0; i < 4; i++)
        CONFORMANCE_CHECK(c, d->ops->owns(d, a[i], sizes[i]) && d->ops->owns(d, a[i] + sizes[i] - 1, 1),
                          "%zu bytes that it gave are not its own", sizes[i]);
    if (d->host_visible) {
        CONFORMANCE_CHECK(c, d->ops->owns(d, heap, 64), "host memory is not its own");
        return;
    }
    CONFORMANCE_CHECK(c, !d->ops->owns(d, heap, 64), "host memory is its own");
    CONFORMANCE_CHECK(c, !d->ops->owns(d, a[3], sizes[3] + 1), "a byte beyond an allocation is its own");
    CONFORMANCE_CHECK(c, !d->ops->owns(d, a[3] + sizes[3], 1), "the byte behind an allocation is its own");
    uint8_t *gone = a[3];
    conformance_release(c, c->n_buffers - 1);
    CONFORMANCE_CHECK(c, !d->ops->owns(d, gone, sizes[3]), "memory that was given back is still its own");
    CONFORMANCE_CHECK(c, d->ops->owns(d, a[2], sizes[2]), "an allocation went with another one");
}

void conformance_copies_come_back_unchanged(conformance *c) {
    enum { BYTES = 9 << 20 }; /* more than the staging memory of a backend is likely to hold at once */
    sn_device *d = c->device;
    uint8_t *device = conformance_bytes(c, BYTES), *from = conformance_heap(c, BYTES), *to = conformance_heap(c, BYTES);
    static const struct {
        size_t at, n;
    } parts[] = {{0, BYTES}, {0, 0}, {5, 0}, {0, 1}, {1, 1}, {3, 13}, {4095, 2}, {1 << 20, 7777777}, {BYTES - 1, 1}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t at = parts[i].at, n = parts[i].n;
        for (size_t b = 0; b < n; b++) from[b] = (uint8_t)(b * 31 + b / 251 + i);
        memset(to, 0, n);
        CONFORMANCE_OK(c, d->ops->upload(d, device + at, from, n, &c->err));
        CONFORMANCE_OK(c, d->ops->download(d, to, device + at, n, &c->err));
        CONFORMANCE_CHECK(c, !memcmp(from, to, n), "%zu bytes at offset %zu came back changed", n, at);
    }
}

void conformance_the_source_of_an_upload_may_change_at_once(conformance *c) {
    enum { N = 100000, TIMES = 20 };
    sn_device *d = c->device;
    float *device[TIMES], *host = conformance_heap(c, N * sizeof *host);
    for (int i = 0; i < TIMES; i++) device[i] = conformance_bytes(c, N * sizeof *host);
    for (int i = 0; i < TIMES; i++) {
        for (int k = 0; k < N; k++) host[k] = (float)(i * 1000 + k % 1000);
        CONFORMANCE_OK(c, d->ops->upload(d, device[i], host, N * sizeof *host, &c->err));
        memset(host, 0xff, N * sizeof *host);
    }
    for (int i = 0; i < TIMES; i++) {
        CONFORMANCE_OK(c, d->ops->download(d, host, device[i], N * sizeof *host, &c->err));
        for (int k = 0; k < N; k++)
            CONFORMANCE_CHECK(c, host[k] == (float)(i * 1000 + k % 1000), "upload %d, element %d is %g", i, k,
                              (double)host[k]);
    }
}

/* Asks the kernel to read the bytes: the kernel reports EFAULT where an access of this process would end it. */
static bool host_can_read(const void *at) {
    int ends[2];
    if (pipe(ends)) return true;
    bool readable = write(ends[1], at, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return readable;
}

void conformance_the_host_cannot_touch_device_memory(conformance *c) {
    static const size_t offsets[] = {0, 1, 4096, 99999};
    uint8_t *device = conformance_bytes(c, 100000), *pinned = conformance_pinned(c, 100);
    CONFORMANCE_OK(c, c->device->ops->finish(c->device, &c->err));
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        CONFORMANCE_CHECK(c, host_can_read(device + offsets[i]) == c->device->host_visible,
                          "host_visible is %d, but byte %zu of an allocation says otherwise: a forgotten guard would "
                          "go unnoticed",
                          c->device->host_visible, offsets[i]);
    memset(pinned, 1, 100);
}

void conformance_memory_returns_after_many_rounds(conformance *c) {
    size_t before = c->memory_used ? c->memory_used() : 0;
    float *x = conformance_bytes(c, 4096);
    for (int i = 0; i < 1000; i++) {
        int mark = c->n_buffers;
        void *a = conformance_bytes(c, 100 + (size_t)i * 37);
        if (i % 10 == 0) conformance_pinned(c, 100 + (size_t)i);
        CONFORMANCE_OK(c, c->device->ops->add(c->device, 25, a, x, &c->err)); /* freed while work on it is queued */
        conformance_release(c, mark);
    }
    conformance_release(c, 0);
    CONFORMANCE_OK(c, c->device->ops->finish(c->device, &c->err));
    size_t after = c->memory_used ? c->memory_used() : 0;
    CONFORMANCE_CHECK(c, before == after, "%zu bytes were in use before, %zu are after", before, after);
}

/* y and z take the values of a from before and after the copy, so that a copy that runs too early or too late shows. */
void conformance_a_concurrent_copy_waits_for_earlier_work(conformance *c) {
    enum { N = 200000, ROUNDS = 20 };
    sn_device *d = c->device;
    float *a = conformance_bytes(c, N * sizeof *a), *y = conformance_bytes(c, N * sizeof *y);
    float *z = conformance_bytes(c, N * sizeof *z), *pinned = conformance_pinned(c, N * sizeof *pinned);
    for (int i = 0; i < ROUNDS; i++) {
        sn_fence ticket;
        for (int k = 0; k < N; k++) pinned[k] = (float)(i + 1);
        CONFORMANCE_OK(c, d->ops->add(d, N, y, a, &c->err)); /* y += i */
        CONFORMANCE_OK(c, d->ops->copy_begin(d, a, pinned, N * sizeof *a, &ticket, &c->err));
        CONFORMANCE_OK(c, d->ops->copy_join(d, ticket, &c->err));
        CONFORMANCE_OK(c, d->ops->add(d, N, z, a, &c->err)); /* z += i + 1 */
        CONFORMANCE_OK(c, d->ops->finish(d, &c->err));
    }
    float *host_y = conformance_download(c, y, N), *host_z = conformance_download(c, z, N);
    for (int k = 0; k < N; k++) {
        CONFORMANCE_CHECK(c, host_y[k] == ROUNDS * (ROUNDS - 1) / 2.0f, "work before a copy saw its data: element %d",
                          k);
        CONFORMANCE_CHECK(c, host_z[k] == ROUNDS * (ROUNDS + 1) / 2.0f, "work after a copy missed its data: element %d",
                          k);
    }
}

void conformance_many_copies_run_concurrently_with_the_queue(conformance *c) {
    enum { N = 10000, COPIES = 8, ROUNDS = 40 };
    sn_device *d = c->device;
    float *pinned = conformance_pinned(c, COPIES * N * sizeof *pinned), *sum = conformance_bytes(c, N * sizeof *sum);
    float *a = conformance_bytes(c, COPIES * N * sizeof *a), *other = conformance_bytes(c, N * sizeof *other);
    for (int k = 0; k < COPIES * N; k++) pinned[k] = (float)(k / N + 1);
    for (int round = 0; round < ROUNDS; round++) {
        sn_fence tickets[COPIES];
        for (int i = 0; i < COPIES; i++) {
            size_t bytes =
                i % 3 ? N * sizeof *a : (N - 1) * sizeof *a; /* sizes vary; the last element of some stays 0 */
            CONFORMANCE_OK(c, d->ops->copy_begin(d, a + i * N, pinned + i * N, bytes, &tickets[i], &c->err));
            CONFORMANCE_OK(c, d->ops->add(d, N, other, other, &c->err));
        }
        for (int i = COPIES; i-- > 0;) {
            CONFORMANCE_OK(c, d->ops->copy_join(d, tickets[i], &c->err));
            CONFORMANCE_OK(c, d->ops->add(d, N, sum, a + i * N, &c->err));
        }
    }
    sn_fence empty;
    CONFORMANCE_OK(c, d->ops->copy_begin(d, a, pinned, 0, &empty, &c->err));
    CONFORMANCE_OK(c, d->ops->copy_join(d, empty, &c->err));
    float *host = conformance_download(c, sum, N);
    for (int k = 0; k < N - 1; k++)
        CONFORMANCE_CHECK(c, host[k] == ROUNDS * COPIES * (COPIES + 1) / 2.0f, "element %d is %g", k, (double)host[k]);
    CONFORMANCE_CHECK(c, host[N - 1] == ROUNDS * (2 + 3 + 5 + 6 + 8), "the last element is %g", (double)host[N - 1]);
}

/* Fences that are waited for and joined in either order, and copies that are never joined before finish. */
void conformance_the_source_of_a_copy_may_change_after_its_fence(conformance *c) {
    enum { N = 50000, ROUNDS = 50 };
    sn_device *d = c->device;
    float *pinned = conformance_pinned(c, N * sizeof *pinned), *host = conformance_heap(c, N * sizeof *host);
    float *a = conformance_bytes(c, N * sizeof *a), *sum = conformance_bytes(c, N * sizeof *sum);
    for (int round = 1; round <= ROUNDS; round++) {
        sn_fence ticket;
        for (int k = 0; k < N; k++) pinned[k] = (float)round;
        CONFORMANCE_OK(c, d->ops->copy_begin(d, a, pinned, N * sizeof *a, &ticket, &c->err));
        if (round % 3 == 0) CONFORMANCE_OK(c, d->ops->copy_join(d, ticket, &c->err));
        CONFORMANCE_OK(c, round % 3 == 2 ? d->ops->finish(d, &c->err) : d->ops->copy_wait(d, ticket, &c->err));
        for (int k = 0; k < N; k++) pinned[k] = -1;
        if (round % 3 == 1) CONFORMANCE_OK(c, d->ops->copy_join(d, ticket, &c->err));
        CONFORMANCE_OK(c, d->ops->add(d, N, sum, a, &c->err));
    }
    CONFORMANCE_OK(c, d->ops->download(d, host, sum, N * sizeof *host, &c->err));
    for (int k = 0; k < N; k++)
        CONFORMANCE_CHECK(c, host[k] == ROUNDS * (ROUNDS + 1) / 2.0f, "element %d is %g", k, (double)host[k]);
}

void conformance_invalid_weights_are_refused(conformance *c) {
    static const struct {
        sn_dtype dtype;
        size_t rows, cols;
    } bad[] = {{SN_I32, 4, 32},
               {SN_I64, 4, 32},
               {SN_DTYPE_COUNT, 4, 32},
               {SN_Q4_0, 4, 33},
               {SN_Q4_K, 4, 32},
               {SN_F32, SIZE_MAX / 8, 1 << 20},
               {SN_Q8_0, SIZE_MAX / 4, 1 << 20}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t bytes;
        c->err.text[0] = '\0';
        sn_status status =
            c->device->ops->weight_size(c->device, bad[i].dtype, bad[i].rows, bad[i].cols, &bytes, &c->err);
        CONFORMANCE_CHECK(c, status == SN_REFUSED && c->err.text[0], "%s (%zu, %zu) was not refused",
                          sn_dtype_name(bad[i].dtype), bad[i].rows, bad[i].cols);
    }
}

/* Bits of a weight where files have less than a block says: F8 has a scale for each 128 by 128 elements, folders have
 * halves or bytes where a block has a word or a float. 0: a file has the blocks. */
static double bits_in_file(sn_dtype dtype) {
    return dtype == SN_F8_E4M3      ? 8 + 32.0 / (128 * 128)
           : dtype == SN_I4_64      ? 4 + 20.0 / 64 /* with zeros */
           : dtype == SN_I4_128     ? 4 + 16.0 / 128
           : dtype == SN_I8_128     ? 8 + 16.0 / 128
           : dtype == SN_NVFP4_256  ? 4 + 8.0 / 16
           : sn_float4_twice(dtype) ? 4 + 8.0 / 64 + 32.0 / (64 * 256)
                                    : 0;
}

/* A matrix whose sides are no powers of two, such as an expert of gpt-oss, and a wide one. CPUs take at most a
 * twentieth more, other devices a tenth. */
void conformance_weights_take_hardly_more_than_their_file(conformance *c) {
    const double limit = c->id.kind == SN_DEVICE_CPU ? 1.05 : 1.1;
    static const size_t shapes[][2] = {{2880, 2816}, {128, 4096}};
    for (int i = 0; i < 2 * test_n_weight_types; i++) {
        sn_dtype dtype = test_weight_types[i / 2];
        size_t rows = shapes[i % 2][0], cols = shapes[i % 2][1], row_bytes, bytes;
        CONFORMANCE_OK(c, sn_dtype_row_bytes(dtype, cols, &row_bytes, &c->err));
        CONFORMANCE_OK(c, c->device->ops->weight_size(c->device, dtype, rows, cols, &bytes, &c->err));
        double file = (double)(rows * cols) * bits_in_file(dtype) / 8;
        if (file == 0) file = (double)(rows * row_bytes);
        CONFORMANCE_CHECK(c, (double)bytes <= limit * file, "%s (%zu, %zu): %zu bytes are %.3f of the file's",
                          sn_dtype_name(dtype), rows, cols, bytes, (double)bytes / file);
    }
}

/* A float matrix may be packed some rows at a time, 16 or a multiple but for the last. */
void conformance_parts_of_a_float_matrix_are_its_image(conformance *c) {
    enum { ROWS_MAX = 70, COLS_MAX = 133 };
    static const struct {
        size_t rows, cols, part;
    } shapes[] = {{70, 133, 16}, {70, 64, 48}, {33, 1, 16}, {16, 40, 16}, {5, 9, 16}};
    const sn_device_ops *ops = c->device->ops;
    static float host[ROWS_MAX * COLS_MAX];
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) host[i] = (float)i + 0.5f;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        size_t rows = shapes[i].rows, cols = shapes[i].cols, bytes, before = 0, part;
        CONFORMANCE_OK(c, ops->weight_size(c->device, SN_F32, rows, cols, &bytes, &c->err));
        uint8_t *whole = conformance_heap(c, bytes), *parts = conformance_heap(c, bytes);
        CONFORMANCE_OK(c, ops->weight_pack(c->device, SN_F32, rows, cols, host, whole, &c->err));
        for (size_t row = 0, n; row < rows; row += n) {
            n = rows - row < shapes[i].part ? rows - row : shapes[i].part;
            if (row) CONFORMANCE_OK(c, ops->weight_size(c->device, SN_F32, row, cols, &before, &c->err));
            CONFORMANCE_OK(c, ops->weight_size(c->device, SN_F32, n, cols, &part, &c->err));
            CONFORMANCE_CHECK(c, before + part <= bytes, "part %zu of (%zu, %zu) does not fit", row, rows, cols);
            CONFORMANCE_OK(c, ops->weight_pack(c->device, SN_F32, n, cols, host + row * cols, parts + before, &c->err));
        }
        CONFORMANCE_CHECK(c, !memcmp(whole, parts, bytes), "parts of (%zu, %zu) differ from the whole", rows, cols);
    }
}
