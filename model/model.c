/* Opening a model: both containers are listed as one array of tensors, sorted by name (`entries`). Then every role of
 * every block is bound to the entry that the family's naming gives it, and the entry's shape is checked (bind_roles).
 * Several roles may be parts of one entry; tensor_view.c says which rows of it a role is. A tensor of the files that no
 * role uses would be mathematics that is left out, so the model is refused.
 *
 * Looking up a tensor (sn_model_find_expert) then takes the bound entry and narrows it to the role's part. */
#include "model/model.h"

#include "base/mem.h"
#include "base/file.h"
#include "model/config.h"
#include "model/gguf_parts.h"
#include "model/identity.h"
#include "model/kept_hash.h"
#include "model/mapped_file.h"
#include "model/packed.h"
#include "model/partial_file.h"
#include "model/safetensors.h"
#include "model/source.h"
#include "model/tensor_view.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CONFIG_MAX = 16 << 20, LOCK_LOOK_NS = 50000000 };
#define F8_SCALES       "_scale_inv" /* what follows the name of a tensor in the name of its scales */
#define F8_SCALES_SHORT "_scale"
#define PACKED_SCALES   "_scales"           /* the same of MXFP4 in two tensors */
#define F8_INPUT_SCALE  ".activation_scale" /* stands for its ".weight" in the name of the scale of its inputs */

/* Quantised weights in several tensors (model/packed.h): what stands for ".weight" in their names, by sn_packed_part.
 */
static const struct packed_names {
    sn_packed_naming naming;
    const char *parts[SN_PACKED_PARTS];
} packed_names[] = {
    {SN_PACKED_COMPRESSED,
     {".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_global_scale", ".weight_g_idx"}},
    {SN_PACKED_BY_COLUMNS, {".qweight", ".scales", ".qzeros", NULL, ".g_idx", ".bias"}},
    {SN_PACKED_FLOAT4,
     {[SN_PACKED_CODES] = ".weight",
      [SN_PACKED_SCALES] = ".weight.absmax",
      [SN_PACKED_NESTED] = ".weight.nested_absmax",
      [SN_PACKED_MAP] = ".weight.nested_quant_map",
      [SN_PACKED_NUMBERS] = ".weight.quant_map",
      [SN_PACKED_STATE] = ".weight.quant_state.bitsandbytes__nf4",
      [SN_PACKED_OF_FP4] = ".weight.quant_state.bitsandbytes__fp4"}},
    {SN_PACKED_INT8,
     {[SN_PACKED_CODES] = ".weight", [SN_PACKED_SCALES] = ".SCB", [SN_PACKED_STATE] = ".weight_format"}},
    {SN_PACKED_IN_PLACE, {".weight", ".weight_scale", ".weight_zero_point", ".weight_scale_2"}},
};

typedef struct entry {
    const char *name, *type; /* type: in the words of a safetensors file; NULL: of a GGUF file, whose types are ours */
    int n_dims;
    bool used;
    bool gate_up; /* gate and up of all experts, where the family's names have them apart */
    sn_model_tensor tensor;
} entry;

typedef struct known_hash {
    bool known;
    sn_hash hash;
} known_hash;

struct sn_model {
    sn_gguf *gguf; /* of the two containers one is open, the other NULL */
    sn_safetensors *safetensors;
    sn_container container;
    char container_name[32];
    sn_hparams hparams;
    const sn_family *family, *next_family; /* the latter: of block n_blocks, whose experts may lie otherwise */
    entry *entries;                        /* [n_entries], sorted by name */
    size_t n_entries;
    const entry **roles; /* indexed by slot_of; roles that belong to no block are in block 0; NULL: not in the files */
    sn_hash id;
    float slopes[SN_HEADS_MAX];        /* SN_ROLE_ATTN_SLOPES */
    float ones[2 * SN_ROPE_FREQS_MAX]; /* the factors of norms that have none */
    sn_model_source source;
    pthread_mutex_t lock;     /* of what follows */
    known_hash *known_hashes; /* (n_blocks + 1) */
    char *cache;              /* sn_model_keep_hashes; constant, too; NULL: none */
    bool told;                /* they are a manifest's; not of what follows the lock, but constant */
};

/* ---- the list of tensors ---- */

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static void set_single_group(sn_model_tensor *t) { t->group_rows = t->group_stride = sn_tensor_view_units(t); }

static sn_status list_gguf(sn_model *m, sn_err *err) {
    m->n_entries = sn_gguf_n_tensors(m->gguf);
    sn_status status = sn_calloc(&m->entries, m->n_entries, sizeof *m->entries, err);
    for (size_t i = 0; !status && i < m->n_entries; i++) {
        const sn_gguf_tensor *t = sn_gguf_tensor_at(m->gguf, i);
        m->entries[i] = (entry){.name = t->name,
                                .n_dims = t->n_dims,
                                .tensor = {.dtype = t->dtype,
                                           .rows = t->dims[1] * t->dims[2] * t->dims[3],
                                           .cols = t->dims[0],
                                           .data = t->data,
                                           .bytes = t->bytes}};
        set_single_group(&m->entries[i].tensor);
    }
    return status;
}

static sn_status list_safetensors(sn_model *m, sn_err *err) {
    m->n_entries = sn_safetensors_n_tensors(m->safetensors);
    sn_status status = sn_calloc(&m->entries, m->n_entries, sizeof *m->entries, err);
    for (size_t i = 0; !status && i < m->n_entries; i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(m->safetensors, i);
        size_t cols = t->n_dims ? t->dims[t->n_dims - 1] : 1;
        m->entries[i] = (entry){.name = t->name,
                                .type = t->type,
                                .n_dims = t->n_dims,
                                .tensor = {.dtype = t->dtype,
                                           .rows = cols ? t->elements / cols : 0,
                                           .cols = cols,
                                           .data = t->data,
                                           .bytes = t->bytes}};
        set_single_group(&m->entries[i].tensor);
    }
    return status;
}

static entry *find_entry(const sn_model *m, const char *name) {
    entry wanted = {.name = name};
    if (!m->n_entries) return NULL;
    return bsearch(&wanted, m->entries, m->n_entries, sizeof wanted, compare_entries);
}

/* ---- roles ---- */

/* A block has one slot for each role, then the slots of experts 1 and up for the roles that have several matrices. The
 * matrices of heads are always in one tensor, which has the role's one slot. */
static size_t slots_per_block(const sn_hparams *h) {
    size_t further = h->n_experts > 1 ? (size_t)h->n_experts - 1 : 0;
    return SN_ROLE_COUNT + (SN_ROLE_EXPERTS_DOWN - SN_ROLE_EXPERTS_GATE + 1) * further;
}

static const entry **slot_of(const sn_model *m, sn_role role, int block, int matrix) {
    bool further = matrix && sn_role_is_of_expert(role);
    size_t slot = further ? SN_ROLE_COUNT + (size_t)(role - SN_ROLE_EXPERTS_GATE) * (size_t)(m->hparams.n_experts - 1) +
                                (size_t)(matrix - 1)
                          : (size_t)role;
    return &m->roles[(size_t)block * slots_per_block(&m->hparams) + slot];
}

/* Whether operations take weights of the type. */
static bool is_number(sn_dtype t) {
    return (unsigned)t < SN_DTYPE_COUNT && t != SN_F64 && t != SN_I8 && t != SN_I16 && t != SN_I32 && t != SN_I64;
}

static bool is_plain_float(sn_dtype dtype) { return dtype == SN_F32 || dtype == SN_F16 || dtype == SN_BF16; }

static const sn_family *family_of(const sn_model *m, int block) {
    return block < m->hparams.n_blocks ? m->family : m->next_family;
}

/* Where a matrix of the role lies in its entry. *own: its rows; of a vector its elements. */
static sn_tensor_view view_of(const sn_model *m, const sn_family *family, const entry *e, sn_role role, int block,
                              int expert, size_t *own) {
    size_t rows, cols;
    sn_role_shape(&m->hparams, role, block, &rows, &cols);
    *own = sn_role_is_vector(role) ? cols : rows;
    const sn_tensor_naming *naming = family->naming[m->container];
    if (sn_role_is_of_head(role))
        return sn_tensor_view_of_head(&m->hparams, role, e->n_dims == 2, is_plain_float(e->tensor.dtype),
                                      (size_t)expert, own);
    const sn_tensor_naming joined = {.gate_up_fused = true};
    if (sn_family_stacks_experts(family, m->container, role))
        return sn_tensor_view_of_expert(e->gate_up ? &joined : naming, role, e->tensor.scales, rows, cols,
                                        (size_t)expert, (size_t)m->hparams.n_experts);
    return sn_tensor_view_of(naming, &m->hparams, role, *own);
}

/* Vectors that files have as matrices: a row for each expert, or for each channel. Returns the rows; 0: no such role.
 */
static size_t vector_rows(const sn_hparams *h, sn_role role) {
    if (role == SN_ROLE_DELTA_TAPS) return sn_delta_width(h);
    if (role == SN_ROLE_DELTA_Q_TAPS || role == SN_ROLE_DELTA_K_TAPS) return sn_delta_keys(h);
    if (role == SN_ROLE_DELTA_V_TAPS) return sn_delta_values(h);
    return role >= SN_ROLE_EXPERTS_GATE_BIAS && role <= SN_ROLE_EXPERTS_DOWN_BIAS ? (size_t)h->n_experts : 0;
}

static sn_status check_entry(const sn_model *m, const sn_family *family, const entry *e, sn_role role, int block,
                             sn_err *err) {
    size_t rows, cols, own;
    size_t matrix_rows = vector_rows(&m->hparams, role);
    bool vector = sn_role_is_vector(role);
    int n_dims = sn_role_is_of_head(role)                               ? (e->n_dims == 2 ? 2 : 3)
                 : sn_family_stacks_experts(family, m->container, role) ? 3
                 : vector && !matrix_rows                               ? 1
                                                                        : 2;
    sn_dtype dtype = e->tensor.dtype;
    const sn_tensor_view view = view_of(m, family, e, role, block, 0, &own);
    sn_role_shape(&m->hparams, role, block, &rows, &cols);
    *(vector ? &cols : &rows) = view.whole;
    if (view.col_step) cols = view.col_step;
    if (view.turned) cols = (size_t)m->hparams.latent;
    if (matrix_rows) rows = matrix_rows, cols /= rows;
    bool delta = role >= SN_ROLE_DELTA_TAPS && role <= SN_ROLE_DELTA_OUT;
    if (delta && matrix_rows) n_dims = e->n_dims; /* taps: (channels, 1, taps) on the hub, (channels, taps) in GGUF */
    if (delta && vector && !matrix_rows && e->tensor.rows * e->tensor.cols == cols) /* (1, 1, heads, 1); (heads, 1) */
        n_dims = e->n_dims, rows = e->tensor.rows, cols = e->tensor.cols;
    if (role == SN_ROLE_ROUTER_CORRECTION) n_dims = e->n_dims;        /* (n_experts), or (1, n_experts) */
    if (role == SN_ROLE_SHARED_ROUTER && m->gguf) n_dims = e->n_dims; /* (1, n_embd), or (n_embd) */
    if (e->n_dims != n_dims || e->tensor.rows != rows || e->tensor.cols != cols)
        return sn_fail(err, SN_REFUSED,
                       "tensor '%s' has %d dimensions, (%zu, %zu), where the hyperparameters ask for (%zu, %zu)",
                       e->name, e->n_dims, e->tensor.rows, e->tensor.cols, rows, cols);
    if (!is_number(dtype) || ((vector || view.col_step) && !is_plain_float(dtype)))
        return sn_fail(err, SN_REFUSED, "tensor '%s' is of a type that its part of the model cannot have", e->name);
    return SN_OK;
}

/* The entry of the name, or of the name without the prefix that files of the model without its LM head leave out. */
static entry *find_named(const sn_model *m, const char *name) {
    const char *base = m->family->naming[m->container]->base;
    size_t len = base ? strlen(base) : 0, prefix = strlen(SN_WRAPPED_PREFIX);
    entry *found = find_entry(m, name);
    if (!found && m->family->wrapped && m->container == SN_CONTAINER_SAFETENSORS) {
        char wrapped[SN_TENSOR_NAME_MAX + sizeof SN_WRAPPER_PREFIX + sizeof F8_SCALES];
        snprintf(wrapped, sizeof wrapped, SN_WRAPPER_PREFIX "%s", name);
        found = find_entry(m, wrapped);
        if (!found && !strncmp(name, SN_WRAPPED_PREFIX, prefix)) {
            snprintf(wrapped, sizeof wrapped, SN_WRAPPED_PREFIX SN_WRAPPER_PREFIX "%s", name + prefix);
            found = find_entry(m, wrapped);
        }
    }
    return found || !len || strncmp(name, base, len) ? found : find_entry(m, name + len);
}

/* Joins MXFP4 in two tensors, NAME_blocks and NAME_scales, to one entry. *out: NULL where one of them is missing. */
static sn_status find_packed(const sn_model *m, const char *name, entry **out, sn_err *err) {
    char full[2][SN_TENSOR_NAME_MAX + 8];
    snprintf(full[0], sizeof full[0], "%s_blocks", name);
    snprintf(full[1], sizeof full[1], "%s" PACKED_SCALES, name);
    entry *blocks = find_entry(m, full[0]), *scales = find_entry(m, full[1]);
    *out = NULL;
    if (blocks) blocks->used = true;
    if (scales) scales->used = true;
    if (!blocks || !scales) return SN_OK;
    *out = blocks;
    if (blocks->tensor.scales) return SN_OK; /* joined already, for another role */
    const sn_safetensors_tensor *b = sn_safetensors_find(m->safetensors, full[0]),
                                *s = sn_safetensors_find(m->safetensors, full[1]);
    bool fits = b->n_dims == 4 && s->n_dims == 3 && b->dims[3] == 16 &&
                !memcmp(b->dims, s->dims, 3 * sizeof *s->dims) && !strcmp(b->type, "U8") && !strcmp(s->type, "U8") &&
                s->elements;
    if (!fits)
        return sn_fail(err, SN_REFUSED,
                       "tensors '%s' and '%s' are not MXFP4: bytes (experts, rows, blocks, 16) and (experts, rows, "
                       "blocks)",
                       full[0], full[1]);
    blocks->n_dims = 3;
    blocks->tensor = (sn_model_tensor){.dtype = SN_MXFP4,
                                       .rows = s->dims[0] * s->dims[1],
                                       .cols = s->dims[2] * 32,
                                       .data = b->data,
                                       .scales = s->data,
                                       .bytes = s->elements * 17};
    set_single_group(&blocks->tensor);
    return SN_OK;
}

static sn_dtype f8_type(const char *type) {
    return !type                      ? SN_DTYPE_COUNT
           : !strcmp(type, "F8_E4M3") ? SN_F8_E4M3
           : !strcmp(type, "F8_E5M2") ? SN_F8_E5M2
                                      : SN_DTYPE_COUNT;
}

/* Joins FP8 in two tensors, NAME and NAME_scale_inv, to one entry. *e: NULL where the scales are missing. */
static sn_status join_f8(const sn_model *m, entry **e, sn_err *err) {
    enum { BLOCK = 128 };
    char name[SN_SAFETENSORS_NAME_MAX + sizeof F8_SCALES];
    entry *own = *e;
    if (own->tensor.scales || own->tensor.packed || f8_type(own->type) == SN_DTYPE_COUNT) return SN_OK;
    snprintf(name, sizeof name, "%s" F8_SCALES, own->name);
    entry *scales = find_entry(m, name);
    name[strlen(own->name) + strlen(F8_SCALES_SHORT)] = 0;
    if (!scales) scales = find_entry(m, name); /* of compressed-tensors */
    *e = scales ? own : NULL;
    if (!scales) return SN_OK;
    sn_model_tensor *t = &own->tensor, *s = &scales->tensor;
    scales->used = true;
    bool single = scales->n_dims < 2 && s->rows == 1 && s->cols == 1,
         blocks = scales->n_dims == 2 && s->rows == (t->rows + BLOCK - 1) / BLOCK && s->cols == t->cols / BLOCK;
    if (own->n_dims != 2 || t->cols % BLOCK || !t->cols || !t->rows || (!single && !blocks) ||
        (s->dtype != SN_F32 && s->dtype != SN_BF16))
        return sn_fail(
            err, SN_REFUSED,
            "tensor '%s' (%zu, %zu) in FP8 has scales (%zu, %zu) of type %s; there must be one in F32 or BF16 "
            "for each 128 by 128 elements, or one alone, and rows of a multiple of 128",
            own->name, t->rows, t->cols, s->rows, s->cols, scales->type);
    t->dtype = f8_type(own->type);
    t->scales = s->data;
    t->scales_short = s->dtype == SN_BF16;
    t->scales_single = single;
    t->bytes = t->rows * (t->cols / BLOCK) * sn_dtype_bytes(t->dtype);
    set_single_group(t);
    return SN_OK;
}

/* Whether the matrix's bias is a tensor of the family's. */
static bool has_bias(const sn_model *m, sn_role role, int block) {
    sn_role bias = sn_role_bias(role);
    return bias != SN_ROLE_COUNT && sn_family_has_role(m->family, &m->hparams, bias, block);
}

/* The parts that the files have of a matrix whose name without ".weight" has `stem` characters. */
static void find_parts(const sn_model *m, const struct packed_names *names, const char *name, int stem, bool bias,
                       entry *out[SN_PACKED_PARTS]) {
    char full[SN_TENSOR_NAME_MAX + 32];
    bool codes = false; /* here, or in a shard that is not */
    for (int i = 0; i < SN_PACKED_PARTS; i++) {
        out[i] = NULL;
        if (!names->parts[i] || (i == SN_PACKED_BIAS && (bias || !codes))) continue;
        snprintf(full, sizeof full, "%.*s%s", stem, name, names->parts[i]);
        out[i] = find_named(m, full);
        if (out[i] && i) out[i]->used = true;
        if (!i) codes = out[i] || sn_safetensors_lacks(m->safetensors, full);
    }
}

/* Makes the first of the parts, which has the codes, the matrix's entry. */
static sn_status join_parts(sn_model *m, sn_role role, int block, sn_packed_naming naming,
                            entry *parts[SN_PACKED_PARTS], sn_err *err) {
    const sn_safetensors_tensor *files[SN_PACKED_PARTS] = {NULL};
    sn_packed *packed = NULL;
    size_t rows, cols, own;
    sn_dtype dtype;
    entry *e = parts[SN_PACKED_CODES];
    const sn_tensor_view view = view_of(m, m->family, e, role, block, 0, &own);
    sn_role_shape(&m->hparams, role, block, &rows, &cols);
    if (view.turned) cols = (size_t)m->hparams.latent;
    for (int i = 0; i < SN_PACKED_PARTS; i++)
        if (parts[i]) files[i] = sn_safetensors_find(m->safetensors, parts[i]->name);
    sn_status status = sn_calloc(&packed, 1, sizeof *packed, err);
    if (!status) status = sn_packed_join(files, naming, view.whole, cols, &m->hparams, packed, &dtype, err);
    if (status) {
        free(packed);
        return status;
    }
    e->n_dims = 2;
    e->tensor = (sn_model_tensor){.dtype = dtype,
                                  .rows = view.whole,
                                  .cols = cols,
                                  .data = files[0]->data,
                                  .packed = packed,
                                  .bytes = sn_packed_bytes(packed, dtype)};
    set_single_group(&e->tensor);
    return SN_OK;
}

/* A GGUF file's NVFP4 whose scale is a tensor beside it, NAME.scale for NAME.weight: of stacked experts one for each.
 * NAME.input_scale is for who rounds inputs. */
static sn_status join_gguf_scale(const sn_model *m, sn_role role, const char *name, entry *own, sn_err *err) {
    static const char *const endings[] = {".scale", ".input_scale"};
    entry *beside[2];
    sn_packed *packed = NULL;
    const char *end = strrchr(name, '.');
    if (!m->gguf || !end || strcmp(end, ".weight") || own->tensor.dtype != SN_NVFP4 || role == SN_ROLE_TOKEN_EMBEDDING)
        return SN_OK;
    for (int i = 0; i < 2; i++) {
        char full[SN_TENSOR_NAME_MAX + 16];
        snprintf(full, sizeof full, "%.*s%s", (int)(end - name), name, endings[i]);
        beside[i] = find_named(m, full);
        if (beside[i]) beside[i]->used = true;
    }
    if (!beside[0]) return SN_OK;
    sn_status status = sn_calloc(&packed, 1, sizeof *packed, err);
    if (!status) status = sn_packed_join_gguf(&own->tensor, &beside[0]->tensor, packed, &own->tensor.dtype, err);
    if (status) {
        free(packed);
        return sn_err_context(err, "tensor '%s'", own->name);
    }
    own->tensor.packed = packed;
    own->tensor.bytes = sn_packed_bytes(packed, own->tensor.dtype);
    return SN_OK;
}

/* Whether these scales of weights in place are of rows, or of all; others are those of blocks (join_f8), or none. */
static bool scales_rows(const entry *scales) {
    return scales && (scales->n_dims < 2 || scales->tensor.cols == 1 || strcmp(scales->type, "F8_E4M3") == 0);
}

/* Looks for quantised weights where *own is none of the tensors that are used as they are. *own: NULL where codes or
 * scales are missing, which may be in a shard that is not here. */
static sn_status find_quantised(sn_model *m, sn_role role, int block, const char *name, entry **own, sn_err *err) {
    const char *end = strrchr(name, '.');
    int stem = end && !strcmp(end, ".weight") ? (int)(end - name) : 0;
    if (m->gguf || !stem || sn_role_is_vector(role) ||
        sn_family_stacks_experts(family_of(m, block), m->container, role) ||
        (*own && (is_plain_float((*own)->tensor.dtype) || (*own)->tensor.scales || (*own)->tensor.packed)))
        return SN_OK;
    for (size_t i = 0; i < sizeof packed_names / sizeof *packed_names; i++) {
        entry *parts[SN_PACKED_PARTS];
        find_parts(m, &packed_names[i], name, stem, has_bias(m, role, block), parts);
        entry *codes = parts[SN_PACKED_CODES];
        if (!codes || (codes == *own && !scales_rows(parts[SN_PACKED_SCALES]))) continue;
        codes->used = true;
        *own = parts[SN_PACKED_SCALES] ? codes : NULL;
        return *own && !codes->tensor.packed ? join_parts(m, role, block, packed_names[i].naming, parts, err) : SN_OK;
    }
    return SN_OK;
}

/* Scales whose weights may be in a shard that is not here. The one of a matrix's inputs says to what its reference
 * rounds them; here they are not rounded. */
static void use_f8_scales(const sn_model *m, const char *name) {
    char full[2][SN_TENSOR_NAME_MAX + sizeof F8_INPUT_SCALE];
    const char *end = strrchr(name, '.');
    int stem = end && !strcmp(end, ".weight") ? (int)(end - name) : 0;
    snprintf(full[0], sizeof full[0], "%s" F8_SCALES, name);
    snprintf(full[1], sizeof full[1], "%.*s" F8_INPUT_SCALE, stem, name);
    for (int i = 0; i < 2; i++) {
        entry *scales = find_named(m, full[i]);
        if (scales) scales->used = true;
    }
}

static sn_status bind_role(sn_model *m, sn_role role, int block, int expert, sn_err *err) {
    char name[SN_TENSOR_NAME_MAX];
    const entry **slot = slot_of(m, role, block, expert);
    const sn_family *family = family_of(m, block);
    const int n_blocks = m->hparams.n_blocks;
    if (!sn_family_has_role(m->family, &m->hparams, role, block)) return SN_OK;
    if (!sn_family_tensor_name(family, m->container, n_blocks, role, block, expert, name)) return SN_OK;
    entry *own = find_named(m, name);
    sn_status status = SN_OK;
    if (!own && sn_family_other_name(family, m->container, n_blocks, role, block, name)) {
        own = find_named(m, name);
        if (own) own->gate_up = sn_role_is_of_expert(role);
    }
    if (!own && m->family->naming[m->container]->experts_transposed) status = find_packed(m, name, &own, err);
    if (own) own->used = true;
    if (!status) status = find_quantised(m, role, block, name, &own, err);
    if (!status && own) status = join_gguf_scale(m, role, name, own, err);
    if (!status && own) status = join_f8(m, &own, err);
    if (status) return status;
    if (!own || own->tensor.scales) use_f8_scales(m, name);
    /* The files' counts, whatever the configuration says, also where its shard is not here. */
    if (role == SN_ROLE_OUTPUT && (own || (m->safetensors && sn_safetensors_lacks(m->safetensors, name))))
        m->hparams.tied_output = false;
    if (role == SN_ROLE_OUTPUT && m->hparams.tied_output) {
        *slot = m->roles[SN_ROLE_TOKEN_EMBEDDING];
        return SN_OK;
    }
    *slot = own;
    return own ? check_entry(m, family, own, role, block, err) : SN_OK;
}

/* Variants of a family of mixtures differ in how their files hold experts: takes the one whose tensors are there. */
static const sn_family *variant_of(const sn_model *m, int first, int end) {
    const sn_family *at;
    const int n_blocks = m->hparams.n_blocks;
    char name[SN_TENSOR_NAME_MAX];
    for (int n = 0; m->family->moe && (at = sn_family_variant(m->family, n)); n++)
        for (int block = first; block < end && at->naming[m->container]; block++)
            if (sn_family_tensor_name(at, m->container, n_blocks, SN_ROLE_EXPERTS_DOWN, block, 0, name) &&
                find_named(m, name))
                return at;
    return m->family;
}

static sn_status bind_block(sn_model *m, int block, sn_err *err) {
    sn_status status = SN_OK;
    for (int role = block ? SN_ROLE_FIRST_OF_BLOCK : 0; !status && role < SN_ROLE_COUNT; role++)
        for (int i = 0; !status && i < sn_role_n_matrices(&m->hparams, (sn_role)role); i++)
            status = bind_role(m, (sn_role)role, block, i, err);
    return status;
}

/* The block that predicts a further token is no part of the model's mathematics: one that cannot be used is left out.
 */
static void bind_next(sn_model *m) {
    char name[SN_TENSOR_NAME_MAX];
    const int block = m->hparams.n_blocks;
    if (block < SN_BLOCKS_MAX &&
        sn_family_tensor_name(m->next_family, m->container, block, SN_ROLE_NEXT_INPUT, block, 0, name) &&
        find_named(m, name))
        m->hparams.n_next = !bind_block(m, block, NULL);
}

static sn_status bind_roles(sn_model *m, sn_err *err) {
    if (m->n_entries) qsort(m->entries, m->n_entries, sizeof *m->entries, compare_entries);
    const int n = m->hparams.n_blocks;
    m->next_family = variant_of(m, n, n + 1);
    m->family = variant_of(m, 0, n);
    sn_status status = sn_calloc(&m->roles, (size_t)(n + 1) * slots_per_block(&m->hparams), sizeof *m->roles, err);
    for (int block = 0; !status && block < n; block++) status = bind_block(m, block, err);
    if (!status) bind_next(m);
    for (size_t i = 0; i < m->n_entries; i++) m->entries[i].tensor.tie = i + 1;
    for (size_t i = 0; !status && i < m->n_entries; i++)
        if (!m->entries[i].used && !sn_family_ignores(m->family, m->container, m->hparams.n_blocks, m->entries[i].name))
            status = sn_fail(err, SN_REFUSED,
                             "tensor '%s' has no part in a %s model of %d blocks as it is known here; "
                             "without it the results would be wrong",
                             m->entries[i].name, m->family->name, m->hparams.n_blocks);
    return status;
}

/* ALiBi (Press et al. 2021): of n heads, n a power of two, head i has the slope 2^(-8 (i + 1) / n). If n is no power of
 * two, the heads beyond the largest one below n have every other slope of twice as many heads. Only square roots and
 * products are used, because they give the same bits on every machine. */
static void fill_slopes(float *slopes, int n) {
    int power = 1; /* the largest power of two up to n */
    double root = 0x1p-8, slope = 1;
    for (; 2 * power <= n; power *= 2) root = sqrt(root);
    for (int i = 0; i < power; i++) slopes[i] = (float)(slope *= root);
    slope = root = sqrt(root);
    for (int i = power; i < n; i++) {
        slopes[i] = (float)slope;
        slope *= root * root;
    }
}

static sn_model_tensor computed_vector(const sn_model *m, const float *values, size_t n, uint64_t tie) {
    return (sn_model_tensor){.dtype = SN_F32,
                             .rows = 1,
                             .cols = n,
                             .data = values,
                             .bytes = n * sizeof *values,
                             .group_rows = n,
                             .group_stride = n,
                             .vector = true,
                             .tie = m->n_entries + tie};
}

/* ---- open ---- */

/* Names the model by the last part of its path, without ".gguf" and which part of the model the file is. */
static void name_by_path(sn_hparams *hparams, const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') start--;
    size_t ending = sn_gguf_parts_of(path, NULL) > 1 ? strlen("-00001-of-00001.gguf") : strlen(".gguf");
    if (end - start > ending && !strncmp(path + end - 5, ".gguf", 5)) end -= ending;
    sn_config_copy_name(hparams->name, path + start, end - start);
}

static sn_status open_gguf(sn_model *m, const char *path, sn_err *err) {
    sn_status status = sn_gguf_open(path, &m->gguf, err);
    if (status) return status;
    m->container = SN_CONTAINER_GGUF;
    size_t n_files;
    sn_gguf_files(m->gguf, &n_files);
    snprintf(m->container_name, sizeof m->container_name, n_files > 1 ? "GGUF v%d, %zu files" : "GGUF v%d",
             sn_gguf_version(m->gguf), n_files);
    status = sn_config_from_gguf(m->gguf, &m->hparams, &m->family, err);
    if (!status) status = list_gguf(m, err);
    if (!status) status = bind_roles(m, err);
    if (status) sn_err_context(err, "%s", path);
    return status;
}

static sn_status open_folder(sn_model *m, const char *folder, sn_err *err) {
    char path[SN_MAPPED_FILE_PATH_MAX];
    sn_buf text = {0};
    if (snprintf(path, sizeof path, "%s/config.json", folder) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path of the folder is too long");
    if (access(path, F_OK)) return sn_fail(err, SN_REFUSED, "%s is no model: it has no config.json", folder);
    sn_status status = sn_read_file(path, CONFIG_MAX, &text, err);
    if (status) return status;
    status = sn_config_from_json((const char *)text.data, text.len, &m->hparams, &m->family, err);
    sn_buf_fini(&text);
    if (status) {
        sn_err_context(err, "%s", path);
        return status;
    }
    m->container = SN_CONTAINER_SAFETENSORS;
    snprintf(m->container_name, sizeof m->container_name, "safetensors");
    status = sn_safetensors_open_folder(folder, &m->safetensors, err);
    if (status) return status;
    status = list_safetensors(m, err);
    if (!status) status = bind_roles(m, err);
    if (status) sn_err_context(err, "%s", folder);
    return status;
}

static sn_status open_path(sn_model *m, const char *path, sn_err *err) {
    static const char ending[] = ".safetensors";
    struct stat st;
    size_t len = strlen(path), n = sizeof ending - 1;
    if (stat(path, &st)) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return open_folder(m, path, err);
    if (len >= n && !strcmp(path + len - n, ending))
        return sn_fail(err, SN_REFUSED, "%s is one part of a model: give the folder that holds it and config.json",
                       path);
    return open_gguf(m, path, err);
}

sn_status sn_model_open(const char *path, sn_model **out, sn_err *err) {
    sn_model *m = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    pthread_mutex_init(&m->lock, NULL);
    status = open_path(m, path, err);
    if (!status) status = sn_calloc(&m->known_hashes, (size_t)m->hparams.n_blocks + 1, sizeof *m->known_hashes, err);
    if (!status) fill_slopes(m->slopes, m->hparams.n_heads);
    for (size_t i = 0; i < sizeof m->ones / sizeof *m->ones; i++) m->ones[i] = 1;
    if (!status) status = sn_model_compute_id(m, &m->id, err);
    if (status) {
        sn_model_close(&m);
        return status;
    }
    if (!m->hparams.name[0]) name_by_path(&m->hparams, path);
    *out = m;
    return SN_OK;
}

void sn_model_close(sn_model **model) {
    sn_model *m = *model;
    if (!m) return;
    if (m->source.free) m->source.free(m->source.context);
    free(m->roles);
    for (size_t i = 0; i < m->n_entries && m->entries; i++) free((void *)m->entries[i].tensor.packed);
    free(m->entries);
    free(m->known_hashes);
    free(m->cache);
    pthread_mutex_destroy(&m->lock);
    sn_gguf_close(&m->gguf);
    sn_safetensors_close(&m->safetensors);
    free(m);
    *model = NULL;
}

void sn_model_set_source(sn_model *model, const sn_model_source *source) { model->source = *source; }

const sn_model_source *sn_model_get_source(const sn_model *model) { return &model->source; }

bool sn_model_file_of(const sn_model *model, const void *bytes, const char **path, uint64_t *offset) {
    return model->gguf ? sn_gguf_file_of(model->gguf, bytes, path, offset)
                       : sn_safetensors_file_of(model->safetensors, bytes, path, offset);
}

bool sn_model_has_holes(const sn_model *model) {
    size_t n;
    const sn_mapped_file *files = sn_model_files(model, &n);
    for (size_t i = 0; i < n; i++)
        if (sn_partial_file_exists(files[i].path)) return true;
    return false;
}

/* ---- looking up ---- */

const sn_hparams *sn_model_hparams(const sn_model *model) { return &model->hparams; }

sn_status sn_model_find(const sn_model *model, sn_role role, int block, sn_model_tensor *out, sn_err *err) {
    return sn_model_find_expert(model, role, block, 0, out, err);
}

/* Names the shard that the folder lacks. */
static sn_status fail_missing(const sn_model *m, const char *name, sn_err *err) {
    const char *shard = m->safetensors && err ? sn_safetensors_missing(m->safetensors, name) : NULL;
    if (!shard) return sn_fail(err, SN_REFUSED, "tensor '%s' is not in the model's files", name);
    return sn_fail(err, SN_REFUSED,
                   "tensor '%s' is not in the model's files: the folder lacks %s, which its index names", name, shard);
}

sn_status sn_model_find_expert(const sn_model *model, sn_role role, int block, int expert, sn_model_tensor *out,
                               sn_err *err) {
    char name[SN_TENSOR_NAME_MAX];
    *out = (sn_model_tensor){0};
    if (role < SN_ROLE_FIRST_OF_BLOCK) block = 0;
    if (block < 0 || block >= model->hparams.n_blocks + model->hparams.n_next)
        return sn_fail(err, SN_REFUSED, "the model has blocks 0 to %d, and none of number %d",
                       model->hparams.n_blocks - 1, block);
    const sn_hparams *hp = &model->hparams;
    const sn_family *family = family_of(model, block);
    bool norm = role == SN_ROLE_ATTN_Q_NORM || role == SN_ROLE_ATTN_K_NORM;
    if (role == SN_ROLE_ATTN_SLOPES && hp->alibi) *out = computed_vector(model, model->slopes, (size_t)hp->n_heads, 1);
    if (role == SN_ROLE_ATTN_V_NORM && hp->norm_values)
        *out = computed_vector(model, model->ones, (size_t)sn_heads_of(hp, block).value_dim, 2);
    if (norm && hp->qk_norm_plain && !hp->no_rope[block])
        *out = computed_vector(model, model->ones, (size_t)hp->head_dim, 2);
    if (!sn_family_has_role(model->family, &model->hparams, role, block) ||
        !sn_family_tensor_name(family, model->container, hp->n_blocks, role, block, expert, name))
        return SN_OK;
    if (expert < 0 || expert >= sn_role_n_matrices(&model->hparams, role))
        return sn_fail(err, SN_REFUSED, "the model has no expert of number %d", expert);
    const entry *found = *slot_of(model, role, block, expert);
    if (!found) return fail_missing(model, name, err);
    size_t own;
    sn_tensor_view view = view_of(model, family, found, role, block, expert, &own);
    *out = found->tensor;
    out->vector = sn_role_is_vector(role);
    if (out->vector) out->cols *= out->rows, out->rows = 1;
    set_single_group(out);
    sn_tensor_view_narrow(&view, role, own, out);
    out->tie |= (uint64_t)expert << 32; /* tells experts in one tensor apart */
    return SN_OK;
}

bool sn_model_has_block(const sn_model *model, int block) {
    sn_model_tensor tensor;
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++)
        for (int i = 0; i < sn_role_n_matrices(&model->hparams, (sn_role)role); i++)
            if (sn_model_find_expert(model, (sn_role)role, block, i, &tensor, NULL)) return false;
    return true;
}

/* Releases the whole pages; those at the two ends are shared with other tensors. */
static void release_pages_of(const void *first, const void *end) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = sn_round_up((uintptr_t)first, page), to = (uintptr_t)end / page * page;
    if (from < to) madvise((void *)from, to - from, MADV_DONTNEED);
}

void sn_model_release_pages(const sn_model *model, const sn_model_tensor *tensor) {
    if (!tensor->data || tensor->data == model->slopes || tensor->data == model->ones) return;
    size_t bytes, n = sn_model_n_runs(tensor);
    const char *last = sn_model_run(tensor, n - 1, &bytes);
    release_pages_of(tensor->data, last + bytes); /* with what lies between the runs, which can be read again */
    for (int i = 0; (last = sn_model_packed_part(tensor, i, &bytes)) != NULL; i++) release_pages_of(last, last + bytes);
    if (!tensor->scales) return;
    last = sn_model_run_scales(tensor, n - 1, &bytes);
    release_pages_of(sn_model_run_scales(tensor, 0, &(size_t){0}), last + bytes);
}

sn_hash sn_model_id(const sn_model *model) { return model->id; }

void sn_model_keep_hashes(sn_model *model, const char *cache) {
    free(model->cache);
    model->cache = cache ? strdup(cache) : NULL; /* without memory for it they are computed again */
}

const char *sn_model_cache(const sn_model *model) { return model->cache; }

const sn_mapped_file *sn_model_files(const sn_model *model, size_t *n) {
    return model->gguf ? sn_gguf_files(model->gguf, n) : sn_safetensors_files(model->safetensors, n);
}

/* Another thread may hold the lock as long as it hashes. */
static bool lock_until(sn_model *m, const sn_halt *stop) {
    for (struct timespec until; !stop || !stop->now(stop->ctx);) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOCK_LOOK_NS;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        if (!pthread_mutex_timedlock(&m->lock, &until)) return true;
    }
    return false;
}

sn_status sn_model_known_block_hash(const sn_model *model, int block, const sn_halt *stop, sn_hash *out, sn_err *err) {
    sn_model *m = (sn_model *)(uintptr_t)model; /* constant for callers; the lock is for what is computed late */
    known_hash *known = &m->known_hashes[block];
    sn_status status = SN_OK;
    if (!lock_until(m, stop)) return sn_fail(err, SN_RETRY, "the hash was not finished");
    if (!known->known) status = sn_model_hash_block(m, block, stop, &known->hash, err);
    known->known = !status;
    *out = known->hash;
    pthread_mutex_unlock(&m->lock);
    return status;
}

bool sn_model_knows_block_hash(const sn_model *model, int block) {
    sn_model *m = (sn_model *)(uintptr_t)model;
    sn_kept_hash kept;
    sn_hash hash;
    if (pthread_mutex_trylock(&m->lock)) return false; /* another thread hashes */
    bool known = m->known_hashes[block].known;
    pthread_mutex_unlock(&m->lock);
    return known || (!sn_model_get_source(model)->want && sn_kept_hash_find(model, block, &kept, &hash));
}

sn_status sn_model_block_bytes(const sn_model *model, int block, uint64_t *out, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    *out = 0;
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++)
        for (int i = 0; i < sn_role_n_matrices(hp, (sn_role)role); i++) {
            sn_model_tensor t;
            sn_status status = sn_model_find_expert(model, (sn_role)role, block, i, &t, err);
            if (status) return status;
            if (t.data) *out += t.bytes; /* of files that are mapped: no sum is too large */
        }
    return SN_OK;
}

void sn_model_set_block_hashes(sn_model *model, const sn_hash *hashes) {
    for (int b = 0; b < model->hparams.n_blocks; b++) model->known_hashes[b] = (known_hash){true, hashes[b]};
    model->told = true;
}

bool sn_model_told_block_hash(const sn_model *model, int block, sn_hash *out) {
    const bool told = model->told && block < model->hparams.n_blocks;
    if (told) *out = model->known_hashes[block].hash;
    return told;
}

size_t sn_model_n_tensors(const sn_model *model) { return model->n_entries; }

void sn_model_tensor_at(const sn_model *model, size_t i, const char **name, const char **type, sn_model_tensor *out) {
    const entry *e = &model->entries[i];
    *name = e->name;
    *type = e->tensor.dtype == SN_DTYPE_COUNT ? e->type : sn_dtype_name(e->tensor.dtype);
    *out = e->tensor;
    if (e->tensor.scales || e->tensor.packed) out->bytes = sn_tensor_view_file_bytes(&e->tensor);
}

bool sn_model_tensor_is_scale(const char *name) {
    static const char *const endings[] = {(".weight" F8_SCALES),
                                          F8_INPUT_SCALE,
                                          PACKED_SCALES,
                                          ".weight_scale",
                                          ".weight_scale_2",
                                          ".weight_zero_point",
                                          ".weight_global_scale",
                                          ".weight_shape",
                                          ".weight_g_idx",
                                          ".scales",
                                          ".qzeros",
                                          ".g_idx",
                                          ".input_scale",
                                          ".absmax",
                                          ".nested_absmax",
                                          ".quant_map",
                                          ".nested_quant_map",
                                          ".bitsandbytes__nf4",
                                          ".bitsandbytes__fp4",
                                          ".SCB",
                                          ".weight_format",
                                          ".input_global_scale"};
    size_t len = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i]);
        if (len > n && !strcmp(name + len - n, endings[i])) return true;
    }
    return false;
}

const char *sn_model_container(const sn_model *model) { return model->container_name; }
