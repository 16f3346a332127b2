/* Each method has a table of the fields that it may have and a function that checks those that matter. A field that is
 * not in the table is refused unless it has no content, because a new version may change the mathematics by it. */
#include "model/quantisation.h"

#include <string.h>

/* ---- fields ---- */

static const json_t *field(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

/* Whether it says nothing: absent, null, false, 0, or empty. */
static bool is_neutral(const json_t *value) {
    const char *text = json_string_value(value);
    return !value || json_is_null(value) || json_is_false(value) || (text && !*text) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           ((json_is_array(value) || json_is_object(value)) && !json_array_size(value) && !json_object_size(value));
}

static bool is_text(const json_t *object, const char *name, const char *wanted) {
    const char *text = json_string_value(json_object_get(object, name));
    return text && !strcmp(text, wanted);
}

/* A text that is absent or one of these, which end with NULL. */
static sn_status check_text(const json_t *object, const char *name, const char *const *known, sn_err *err) {
    const json_t *value = field(object, name);
    if (!value) return SN_OK;
    for (; *known; known++)
        if (is_text(object, name, *known)) return SN_OK;
    const char *text = json_string_value(value);
    return sn_fail(err, SN_REFUSED, "'quantization_config' has '%s' '%.64s', which is not supported", name,
                   text ? text : "of another kind than text");
}

/* One of these integers, which end with 0. */
static sn_status check_bits(const json_t *object, const char *name, const json_int_t *known, sn_err *err) {
    const json_t *value = field(object, name);
    for (json_int_t n = json_integer_value(value); json_is_integer(value) && *known; known++)
        if (n == *known) return SN_OK;
    return sn_fail(err, SN_REFUSED, "'quantization_config' has a number for '%s' that is not supported", name);
}

static sn_status check_neutral(const json_t *object, const char *name, sn_err *err) {
    if (is_neutral(json_object_get(object, name))) return SN_OK;
    return sn_fail(err, SN_REFUSED, "'quantization_config' sets '%s', which is not supported", name);
}

/* Refuses what is in neither list; they end with NULL. */
static sn_status check_known(const json_t *object, const char *const *known, sn_err *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        const char *const *at = known;
        while (*at && strcmp(*at, name)) at++;
        if (!*at && !is_neutral(value))
            return sn_fail(err, SN_REFUSED,
                           "'quantization_config' sets '%.64s', which is not known and may change the "
                           "weights",
                           name);
    }
    return SN_OK;
}

/* -1: a row is one group. */
static sn_status check_group(const json_t *object, sn_err *err) {
    const json_t *value = field(object, "group_size");
    json_int_t size = value ? json_integer_value(value) : -1;
    if ((!value || json_is_integer(value)) && (size == -1 || (size > 0 && size % 16 == 0))) return SN_OK;
    return sn_fail(err, SN_REFUSED, "'quantization_config' has a 'group_size' that is neither -1 nor a multiple of 16");
}

/* ---- methods ---- */

static sn_status read_gptq(const json_t *q, sn_hparams *h, sn_err *err) {
    static const char *const formats[] = {"gptq", "gptq_v2", NULL}, *const words[] = {"int32", NULL};
    bool whole = !field(q, "group_size") || json_integer_value(json_object_get(q, "group_size")) == -1;
    bool ordered = json_is_true(json_object_get(q, "desc_act")) && !json_is_true(json_object_get(q, "static_groups"));
    sn_status status = check_bits(q, "bits", (const json_int_t[]){2, 3, 4, 8, 0}, err);
    if (!status) status = check_group(q, err);
    if (!status) status = check_text(q, "checkpoint_format", formats, err);
    if (!status) status = check_text(q, "format", formats, err);
    if (!status) status = check_text(q, "pack_dtype", words, err);
    if (!status) status = check_neutral(q, "is_marlin_format", err);
    if (!status) status = check_neutral(q, "dynamic", err);
    h->zeros_less_one = !is_text(q, "checkpoint_format", "gptq_v2") && !is_text(q, "format", "gptq_v2");
    h->act_order = ordered && !whole;
    h->zeros_in_middle = json_is_true(json_object_get(q, "sym"));
    return status;
}

static sn_status read_awq(const json_t *q, sn_hparams *h, sn_err *err) {
    static const char *const versions[] = {"gemm", "GEMM", NULL};
    (void)h;
    sn_status status = check_bits(q, "bits", (const json_int_t[]){4, 0}, err);
    if (!status) status = check_group(q, err);
    if (!status) status = check_text(q, "version", versions, err);
    if (!status && field(q, "zero_point") && !json_is_true(json_object_get(q, "zero_point")))
        status = sn_fail(err, SN_REFUSED, "'quantization_config' has no 'zero_point', which is not supported");
    return status;
}

/* How one group of modules is quantised. */
static sn_status check_weights(const json_t *w, sn_hparams *h, sn_err *err) {
    static const char *const fields[] = {"num_bits",    "type",     "strategy", "group_size",      "symmetric",
                                         "dynamic",     "actorder", "observer", "observer_kwargs", "block_structure",
                                         "scale_dtype", "zp_dtype", NULL};
    static const char *const strategies[] = {"group", "channel", "tensor", "block", "tensor_group", NULL};
    static const char *const types[] = {"int", "float", NULL};
    const json_t *order = field(w, "actorder");
    bool ordered =
        order && !is_text(w, "actorder", "weight") && !is_text(w, "actorder", "static") && !is_neutral(order);
    if (!json_is_object(w))
        return sn_fail(err, SN_REFUSED, "'quantization_config' has a group whose 'weights' are not described");
    sn_status status = check_known(w, fields, err);
    if (!status) status = check_bits(w, "num_bits", (const json_int_t[]){4, 8, 0}, err);
    if (!status) status = check_text(w, "type", types, err);
    if (!status) status = check_text(w, "strategy", strategies, err);
    if (!status) status = check_neutral(w, "dynamic", err);
    h->act_order |= ordered;
    return status;
}

static sn_status read_compressed(const json_t *q, sn_hparams *h, sn_err *err) {
    static const char *const formats[] = {"pack-quantized",
                                          "int-quantized",
                                          "float-quantized",
                                          "naive-quantized",
                                          "nvfp4-pack-quantized",
                                          "mxfp4-pack-quantized",
                                          "mixed-precision",
                                          "dense",
                                          NULL};
    static const char *const sparse[] = {"dense", NULL};
    const json_t *sparsity = field(q, "sparsity_config");
    const char *name;
    json_t *group;
    sn_status status = check_text(q, "format", formats, err);
    if (!status) status = check_neutral(q, "transform_config", err);
    if (!status && sparsity) status = check_text(sparsity, "format", sparse, err);
    json_object_foreach(json_object_get(q, "config_groups"), name, group) {
        const json_t *weights = json_object_get(group, "weights");
        if (!status) status = check_text(group, "format", formats, err);
        if (!status && !is_neutral(weights)) status = check_weights(weights, h, err);
        if (status) sn_err_context(err, "group '%.64s'", name);
    }
    return status;
}

static sn_status read_fp8(const json_t *q, sn_hparams *h, sn_err *err) {
    const char *format = json_string_value(json_object_get(q, "fmt"));
    const json_t *block = json_object_get(q, "weight_block_size");
    bool single = !block || json_is_null(block);
    (void)h;
    if ((format && strcmp(format, "e4m3") && strcmp(format, "e5m2")) ||
        (!single && (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != 128 ||
                     json_integer_value(json_array_get(block, 1)) != 128)))
        return sn_fail(
            err, SN_REFUSED,
            "'quantization_config' describes FP8 in another form than e4m3 or e5m2 with a weight_block_size of [128, "
            "128] or none, which is not supported: use bfloat16 weights or a GGUF file");
    return SN_OK;
}

static sn_status read_modelopt(const json_t *q, sn_hparams *h, sn_err *err) {
    static const char *const algorithms[] = {"FP8", "NVFP4", "MXFP4", "FP8_PER_CHANNEL_PER_TOKEN", NULL};
    (void)h;
    return check_text(q, "quant_algo", algorithms, err);
}

static sn_status read_bitsandbytes(const json_t *q, sn_hparams *h, sn_err *err) {
    static const char *const types[] = {"nf4", "fp4", NULL}, *const storages[] = {"uint8", NULL};
    (void)h;
    sn_status status = SN_OK;
    if (json_is_true(json_object_get(q, "load_in_4bit")) == json_is_true(json_object_get(q, "load_in_8bit")))
        status = sn_fail(err, SN_REFUSED, "'quantization_config' sets not one of 'load_in_4bit' and 'load_in_8bit'");
    if (!status) status = check_text(q, "bnb_4bit_quant_type", types, err);
    if (!status) status = check_text(q, "bnb_4bit_quant_storage", storages, err);
    return status;
}

static sn_status read_nothing(const json_t *q, sn_hparams *h, sn_err *err) {
    (void)q, (void)h, (void)err;
    return SN_OK;
}

/* The fields of each method; what chooses modules, names who wrote the file, or is about activations is listed and not
 * read. */
#define CHOICES                                                                                                        \
    "quant_method", "modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "activation_scheme",      \
        "kv_cache_scheme", "producer", "version"
static const struct {
    const char *name;
    sn_status (*read)(const json_t *q, sn_hparams *h, sn_err *err);
    const char *const *fields; /* end with NULL; NULL: any */
} methods[] = {
    {"gptq", read_gptq,
     (const char *const[]){CHOICES,
                           "bits",
                           "group_size",
                           "desc_act",
                           "static_groups",
                           "sym",
                           "lm_head",
                           "checkpoint_format",
                           "format",
                           "pack_dtype",
                           "damp_percent",
                           "damp_auto_increment",
                           "true_sequential",
                           "model_name_or_path",
                           "model_file_base_name",
                           "quantizer",
                           "meta",
                           "dataset",
                           "tokenizer",
                           "backend",
                           "batch_size",
                           "block_name_to_quantize",
                           "module_name_preceding_first_block",
                           "modules_in_block_to_quantize",
                           "modules_in_block_to_quantize",
                           "cache_block_outputs",
                           "use_cuda_fp16",
                           "use_exllama",
                           "disable_exllama",
                           "exllama_config",
                           "max_input_length",
                           "model_seqlen",
                           "pad_token_id",
                           "mse",
                           "offload_to_disk",
                           "offload_to_disk_path",
                           "hessian",
                           "act_group_aware",
                           NULL}},
    {"awq", read_awq,
     (const char *const[]){CHOICES, "bits", "group_size", "zero_point", "backend", "do_fuse", "exllama_config",
                           "fuse_max_seq_len", "modules_to_fuse", "q_group_size", "w_bit", NULL}},
    {"compressed-tensors", read_compressed,
     (const char *const[]){CHOICES, "format", "config_groups", "quantization_status", "global_compression_ratio",
                           "transform_config", "sparsity_config", "run_compressed", NULL}},
    {"fp8", read_fp8, NULL},
    {"fbgemm_fp8", read_nothing, (const char *const[]){CHOICES, "activation_scale_ub", NULL}},
    {"bitsandbytes", read_bitsandbytes,
     (const char *const[]){CHOICES, "load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit",
                           "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype",
                           "bnb_4bit_quant_storage", "llm_int8_threshold", "llm_int8_skip_modules",
                           "llm_int8_has_fp16_weight", "llm_int8_enable_fp32_cpu_offload", NULL}},
    {"modelopt", read_modelopt,
     (const char *const[]){CHOICES, "quant_algo", "config_groups", "group_size", "kv_cache_quant_algo", NULL}},
};

sn_status sn_quantisation_read(const json_t *about, bool mxfp4, sn_hparams *hparams, sn_err *err) {
    const char *method = json_string_value(json_object_get(about, "quant_method"));
    if (mxfp4 && method && !strcmp(method, "mxfp4")) return SN_OK;
    for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(methods[i].name, method)) continue;
        sn_status status = methods[i].fields ? check_known(about, methods[i].fields, err) : SN_OK;
        return status ? status : methods[i].read(about, hparams, err);
    }
    return sn_fail(
        err, SN_REFUSED,
        "'quantization_config' is set, which is not supported for this family with %.64s: the weights are "
        "quantised; use "
        "float32, float16 or bfloat16 weights, FP8, GPTQ, AWQ, NF4, compressed-tensors, of gpt-oss also MXFP4, "
        "or a GGUF file",
        method ? method : "no quant_method");
}
