/* What mma.h leaves to C: products of fragments, and the copies of each thread that have not been made. */
#include "tests/support/cuda_stand_in/mma.h"

#include "base/dtype.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <string.h>

enum { COPIES = 64, THREADS_MAX = 1024 };

static uint64_t products[CUDA_NUMBERS];
uint64_t cuda_stand_in_products(cuda_number type) { return products[type]; }
static void count(cuda_number type) { products[type] += cuda_position.thread.x % 32 == 0; }

static float element(bool f16, uint32_t word, unsigned i) {
    uint16_t bits = (uint16_t)(word >> 16 * (i % 2));
    return f16 ? sn_f16_to_f32(bits) : sn_bf16_to_f32(bits);
}

static void multiply(bool f16, float d[4], const uint32_t a[4], const uint32_t b[2]) {
    const uint32_t own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    cuda_words all = cuda_threads_gather(own, 6);
    unsigned lane = cuda_position.thread.x % 32;
    count(f16 ? CUDA_F16 : CUDA_BF16);
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const uint32_t *with_a = all[row % 8 * 4 + k % 8 / 2], *with_b = all[column * 4 + k % 8 / 2];
            d[i] += element(f16, with_a[row / 8 + k / 8 * 2], k) * element(f16, with_b[4 + k / 8], k);
        }
    }
}

void cuda_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) { multiply(false, d, a, b); }
void cuda_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) { multiply(true, d, a, b); }

void cuda_mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    const uint32_t own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    for (int i = 0; i < 6; i++)
        if (own[i] & 0x1fff) cuda_threads_fail("a factor of tf32 has more than 11 significant bits");
    cuda_words all = cuda_threads_gather(own, 6);
    unsigned lane = cuda_position.thread.x % 32;
    count(CUDA_TF32);
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 * 4, column = (2 * (lane % 4) + i % 2) * 4;
        for (unsigned k = 0; k < 8; k++) {
            float x, y;
            memcpy(&x, &all[row + k % 4][i / 2 + k / 4 * 2], sizeof x);
            memcpy(&y, &all[column + k % 4][4 + k / 4], sizeof y);
            d[i] += x * y;
        }
    }
}

uint16_t cuda_bf16(float x) { return sn_f32_to_bf16(x); }

static struct {
    uint64_t block; /* the run of a block that they belong to */
    int n, first, group, groups[COPIES];
    cuda_copy copies[COPIES];
} pending[THREADS_MAX];

bool cuda_copy_begin(cuda_copy copy) {
    uint64_t block = cuda_threads_block();
    unsigned t = cuda_position.thread.x;
    if (pending[t].block != block) pending[t].n = pending[t].first = pending[t].group = 0;
    pending[t].block = block;
    if (block % 2) return true;
    int left = pending[t].n - pending[t].first;
    if (left == COPIES) cuda_threads_fail("it begins more copies than the stand-in remembers");
    if (pending[t].n == COPIES) {
        memmove(pending[t].copies, pending[t].copies + pending[t].first, (size_t)left * sizeof copy);
        memmove(pending[t].groups, pending[t].groups + pending[t].first, (size_t)left * sizeof(int));
        pending[t].first = 0;
        pending[t].n = left;
    }
    pending[t].groups[pending[t].n] = pending[t].group;
    pending[t].copies[pending[t].n++] = copy;
    return false;
}

void cuda_copies_end_group(void) { pending[cuda_position.thread.x].group++; }

bool cuda_copy_due(int groups_left, cuda_copy *copy) {
    unsigned t = cuda_position.thread.x;
    if (pending[t].block != cuda_threads_block() || pending[t].first == pending[t].n) return false;
    if (pending[t].groups[pending[t].first] >= pending[t].group - groups_left) return false;
    *copy = pending[t].copies[pending[t].first++];
    return true;
}
