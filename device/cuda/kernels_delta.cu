/* Recurrent blocks: the short convolution, the gated delta rule and its kin. Rows follow each other one by one, as on
 * the CPU; what runs at the same time are channels, and columns of the matrices, which do not depend on each other. The
 * states' addresses lie in the batch table, so that a replayed graph follows its sessions. */
#include "device/cuda/kernels.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int KEPT = SN_DELTA_TAPS_MAX - 1; /* rows before a row that the convolution takes, at most */
constexpr int ROWS = 8;                     /* that are read at once, ahead of their computation: at most */
constexpr int PER_LANE = 32;                /* elements of a column in a lane's registers */

/* -- the short convolution: a thread has a channel of a sequence, and the rows that it needs in registers */

/* Writes a state's part of channel c: the last p.taps - 1 of `kept`. */
__device__ inline void keep_rows(const sn_cuda_delta &p, const float (&kept)[KEPT], float *state, size_t c) {
    float *to = state + p.block_floats + p.matrix_floats + p.first_channel + c;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        int own = i - (KEPT - p.taps + 1);
        if (own >= 0) to[own * p.channels] = kept[i];
    }
}

/* blockIdx.x: THREADS channels; blockIdx.y: the sequence. */
__global__ void __launch_bounds__(THREADS) short_conv(const __grid_constant__ sn_cuda_delta p, float *x) {
    size_t c = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
    const sn_cuda_state s = p.states[blockIdx.y];
    const int unused = KEPT - p.taps + 1;
    if (c >= p.count || !s.after) return;
    const float *before = s.before ? s.before + p.block_floats + p.matrix_floats + p.first_channel + c : nullptr;
    const float bias = p.taps_bias ? p.taps_bias[c] : 0.0f;
    float kept[KEPT], tap[KEPT + 1];
#pragma unroll
    for (int i = 0; i <= KEPT; i++) {
        bool own = i >= unused;
        tap[i] = own ? p.tap_weights[c * p.taps + i - unused] : 0.0f;
        if (i < KEPT) kept[i] = own && before ? before[(i - unused) * p.channels] : 0.0f;
    }
    x += s.first_row * p.count + c;
    for (int first = 0; first < s.n_rows; first += ROWS, x += ROWS * p.count) {
        float in[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) in[r] = first + r < s.n_rows ? x[r * p.count] : 0.0f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first + r >= s.n_rows) break;
            float sum = bias;
#pragma unroll
            for (int i = 0; i < KEPT; i++)
                if (i >= unused) sum = fmaf(tap[i], kept[i], sum);
            sum = fmaf(tap[KEPT], in[r], sum);
            x[r * p.count] = p.kind == SN_SHORT_CONV ? sum : sum * sigmoid(sum);
#pragma unroll
            for (int i = 0; i + 1 < KEPT; i++) kept[i] = kept[i + 1];
            kept[KEPT - 1] = in[r];
            if (s.snapshot && first + r + 1 == s.snapshot_rows) keep_rows(p, kept, s.snapshot, c);
        }
    }
    keep_rows(p, kept, s.after, c);
}

/* -- the delta rule: PARTS lanes have a column of a head's matrix in registers, each every PARTS-th of its elements */

/* ln(1 + exp(x)); beyond 20 it is x, in float32 as in the reference. */
__device__ inline float softplus(float x) { return x <= 20 ? log1pf(expf(x)) : x; }

/* A warp's part of bringing a row's k, q and gates to shared memory: to (padded), of unit length times scale; plain:
 * as it is. */
__device__ inline void load_unit(const float *x, int n, int padded, float scale, bool plain, float *to) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    float squares = 0;
    for (int i = lane; i < n && !plain; i += 32) squares = fmaf(x[i], x[i], squares);
    float factor = plain ? 1.0f : scale / sqrtf(warp_sum(squares) + 1e-6f);
    for (int i = lane; i < padded; i += 32) to[i] = i < n ? x[i] * factor : 0.0f;
}

/* The sum over the PARTS lanes of a column, in all of them. */
template <int PARTS> __device__ inline float column_sum(float x) {
    for (int distance = 32 / PARTS; distance < 32; distance *= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
    return x;
}

/* Copies a column between registers and a state of the block. */
template <int PARTS>
__device__ inline void put_column(const sn_cuda_delta &p, const float (&m)[PER_LANE], float *state, size_t at,
                                  int part) {
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        int i = e * PARTS + part;
        if (i < p.key_dim) state[p.block_floats + at + static_cast<size_t>(i) * p.value_dim] = m[e];
    }
}

/* What element i of the key of this head decays by in this row. */
__device__ inline float keyed_decay(const sn_cuda_delta &p, const float *a, int head, int i) {
    float x = a[i] + p.time_bias[head * p.key_dim + i], rate = p.rates[head];
    return expf(p.floor < 0.0f ? p.floor * sigmoid(-rate * x) : rate * softplus(x));
}

/* A warp's part of the gates of a row: what the matrix decays by, and what multiplies the change. */
template <sn_recurrence KIND>
__device__ inline void load_gates(const sn_cuda_delta &p, const sn_delta_rows &rows, size_t row, int head,
                                  float (&gates)[2], float *decays) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    size_t at = row * p.value_heads + head;
    if (KIND == SN_KEYED_DELTA)
        for (int i = lane; i < p.key_dim; i += 32) decays[i] = keyed_decay(p, rows.a + at * p.key_dim, head, i);
    if (lane) return;
    float step = KIND == SN_KEYED_DELTA ? 0.0f : softplus(rows.a[at] + p.time_bias[head]);
    gates[0] = expf(p.rates[head] * step);
    gates[1] = KIND == SN_STATE_SPACE ? step : sigmoid(rows.b[at]);
}

/* blockIdx.x: columns; blockIdx.y: the value head; blockIdx.z: the sequence. */
template <int PARTS, sn_recurrence KIND>
__global__ void __launch_bounds__(THREADS)
    delta_rule(const __grid_constant__ sn_cuda_delta p, const __grid_constant__ sn_delta_rows rows, float *out) {
    constexpr bool KEYED = KIND == SN_KEYED_DELTA;
    constexpr int COLUMNS = 32 / PARTS, PADDED = PARTS * PER_LANE, ROWS = KEYED ? ::ROWS / 2 : ::ROWS;
    __shared__ float k[ROWS * PADDED], q[ROWS * PADDED], gates[ROWS][2], decays[KEYED ? ROWS * PADDED : 1];
    const sn_cuda_state s = p.states[blockIdx.z];
    if (!s.after) return; /* by the whole block */
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, part = lane / COLUMNS;
    int column = static_cast<int>(blockIdx.x) * WARPS * COLUMNS + warp * COLUMNS + lane % COLUMNS;
    bool own = column < p.value_dim;
    int head = static_cast<int>(blockIdx.y), group = p.value_heads / p.key_heads;
    int key_head = p.key_heads_alternate ? head % p.key_heads : head / group;
    size_t at = static_cast<size_t>(head) * p.key_dim * p.value_dim + column;
    size_t own_key = static_cast<size_t>(key_head) * p.key_dim;
    float m[PER_LANE];
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        int i = e * PARTS + part;
        bool there = own && s.before && i < p.key_dim;
        m[e] = there ? s.before[p.block_floats + at + static_cast<size_t>(i) * p.value_dim] : 0.0f;
    }
    for (int first = 0; first < s.n_rows; first += ROWS) {
        int n = min(ROWS, s.n_rows - first);
        __syncthreads(); /* all threads have read the last rows */
        for (int r = warp; r < n; r += WARPS) {
            size_t row = static_cast<size_t>(s.first_row) + first + r;
            constexpr bool plain = KIND == SN_STATE_SPACE;
            size_t key = row * rows.key_stride + own_key;
            load_unit(rows.k + key, p.key_dim, PADDED, 1.0f, plain, k + r * PADDED);
            load_unit(rows.q + key, p.key_dim, PADDED, 1.0f / sqrtf(static_cast<float>(p.key_dim)), plain,
                      q + r * PADDED);
            load_gates<KIND>(p, rows, row, head, gates[r], decays + (KEYED ? r * PADDED : 0));
        }
        __syncthreads();
        for (int r = 0; r < n; r++) {
            size_t row = static_cast<size_t>(s.first_row) + first + r;
            const float *own_k = k + r * PADDED, *own_q = q + r * PADDED;
            float v = own ? rows.v[row * rows.value_stride + static_cast<size_t>(head) * p.value_dim + column] : 0.0f;
            float decay = gates[r][0], seen = 0, result = 0;
#pragma unroll
            for (int e = 0; e < PER_LANE; e++) {
                int i = e * PARTS + part;
                m[e] *= KEYED ? (i < p.key_dim ? decays[r * PADDED + i] : 0.0f) : decay;
                if (KIND != SN_STATE_SPACE) seen = fmaf(m[e], own_k[e * PARTS + part], seen);
            }
            float change = gates[r][1] * (KIND == SN_STATE_SPACE ? v : v - column_sum<PARTS>(seen));
#pragma unroll
            for (int e = 0; e < PER_LANE; e++) {
                m[e] = fmaf(own_k[e * PARTS + part], change, m[e]);
                result = fmaf(m[e], own_q[e * PARTS + part], result);
            }
            result = column_sum<PARTS>(result);
            if (KIND == SN_STATE_SPACE) result = fmaf(p.skip[head], v, result);
            if (own && part == 0) out[(row * p.value_heads + head) * p.value_dim + column] = result;
            if (own && s.snapshot && first + r + 1 == s.snapshot_rows) put_column<PARTS>(p, m, s.snapshot, at, part);
        }
    }
    if (own) put_column<PARTS>(p, m, s.after, at, part);
}

template <int PARTS>
cudaError_t launch_delta_rule(cudaStream_t stream, const sn_cuda_delta &p, int n_sequences, const sn_delta_rows &rows,
                              float *out) {
    constexpr int COLUMNS = WARPS * 32 / PARTS;
    auto *kernel = p.kind == SN_KEYED_DELTA   ? delta_rule<PARTS, SN_KEYED_DELTA>
                   : p.kind == SN_STATE_SPACE ? delta_rule<PARTS, SN_STATE_SPACE>
                                              : delta_rule<PARTS, SN_GATED_DELTA>;
    dim3 grid(static_cast<unsigned int>((p.value_dim + COLUMNS - 1) / COLUMNS),
              static_cast<unsigned int>(p.value_heads), static_cast<unsigned int>(n_sequences));
    return SN_LAUNCH(kernel, grid, THREADS, 0, stream, p, rows, out);
}

} // namespace

extern "C" cudaError_t sn_cuda_short_conv(cudaStream_t stream, const sn_cuda_delta *p, int n_sequences, float *x) {
    dim3 grid(static_cast<unsigned int>((p->count + THREADS - 1) / THREADS), static_cast<unsigned int>(n_sequences));
    return SN_LAUNCH(short_conv, grid, THREADS, 0, stream, *p, x);
}

extern "C" cudaError_t sn_cuda_delta_rule(cudaStream_t stream, const sn_cuda_delta *p, int n_sequences,
                                          const sn_delta_rows *rows, float *out) {
    if (p->key_dim <= 4 * PER_LANE) return launch_delta_rule<4>(stream, *p, n_sequences, *rows, out);
    return launch_delta_rule<SN_DELTA_DIM_MAX / PER_LANE>(stream, *p, n_sequences, *rows, out);
}
