#include "model/config.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char base[] = "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":4,"
                           "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,"
                           "\"vocab_size\":320,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,"
                           "\"hidden_act\":\"silu\"}";

/* The base configuration with these fields changed or added; a field "delete" names a field to remove. */
static sn_status read_with(const char *changes, sn_hparams *h, sn_err *err) {
    json_t *config = json_loads(base, 0, NULL), *extra = json_loads(changes, 0, NULL);
    const sn_family *family;
    cr_assert(config && extra, "%s", changes);
    json_object_update(config, extra);
    const char *gone = json_string_value(json_object_get(extra, "delete"));
    if (gone) json_object_del(config, gone);
    char *text = json_dumps(config, 0);
    sn_status status = sn_config_from_json(text, strlen(text), h, &family, err);
    free(text);
    json_decref(config);
    json_decref(extra);
    return status;
}

static sn_hparams expect_accepted(const char *changes) {
    sn_hparams h;
    sn_err err = {0};
    cr_assert_eq(read_with(changes, &h, &err), SN_OK, "%s: %s", changes, err.text);
    return h;
}

static void expect_refused(const char *changes, const char *error_part) {
    sn_hparams h;
    sn_err err = {0};
    cr_assert_eq(read_with(changes, &h, &err), SN_REFUSED, "%s", changes);
    cr_assert(strstr(err.text, error_part), "'%s' does not say '%s'", err.text, error_part);
}

Test(config, reads_a_llama) {
    sn_hparams h = expect_accepted("{\"_name_or_path\":\"org/Model\"}");
    cr_assert_str_eq(h.family, "llama");
    cr_assert_str_eq(h.name, "org/Model");
    cr_assert(h.n_blocks == 4 && h.n_embd == 64 && h.n_heads == 4 && h.n_kv_heads == 2 && h.head_dim == 16);
    cr_assert(h.n_ff == 96 && h.n_vocab == 320 && h.n_ctx == 256 && h.norm_eps == 1e-5f && h.window == 0);
    cr_assert(!h.qkv_bias && !h.qk_norm && !h.tied_output && h.rope_style == SN_ROPE_NEOX && h.rope_dim == 16);
}

Test(config, uses_the_defaults_of_the_reference) {
    cr_assert_eq(expect_accepted("{\"delete\":\"rms_norm_eps\"}").norm_eps, 1e-6f);
    cr_assert_eq(expect_accepted("{\"num_key_value_heads\":null}").n_kv_heads, 4);
    cr_assert_eq(expect_accepted("{\"head_dim\":24}").head_dim, 24);
    cr_assert(expect_accepted("{\"tie_word_embeddings\":true}").tied_output);
    cr_assert(expect_accepted("{\"attention_bias\":true}").qkv_bias &&
              expect_accepted("{\"attention_bias\":true}").o_bias);
    cr_assert(!expect_accepted("{}").o_bias && !expect_accepted("{\"model_type\":\"qwen2\"}").o_bias);
}

static sn_status read_text(const char *more, sn_hparams *h, sn_err *err) {
    char text[1024];
    const sn_family *family;
    snprintf(text, sizeof text, "%.*s,%s}", (int)(sizeof base - 2), base, more);
    return sn_config_from_json(text, strlen(text), h, &family, err);
}

Test(config, reads_what_python_writes_and_uses_no_number_that_is_none) {
    sn_hparams h;
    sn_err err;
    cr_assert_eq(read_text("\"x\":1000000000000000019884624838656,\"y\":[NaN,Infinity]", &h, &err), SN_OK, "%s",
                 err.text);
    cr_assert_eq(read_text("\"num_attention_heads\":2", &h, &err), SN_OK, "%s", err.text);
    cr_assert_eq(h.n_heads, 2, "of a field that is given twice the last counts");
    cr_assert_eq(read_text("\"rms_norm_eps\":NaN", &h, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "'rms_norm_eps' must be a number"), "%s", err.text);
    cr_assert_eq(read_text("\"hidden_size\":1000000000000000019884624838656", &h, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "'hidden_size' must be a whole number"), "%s", err.text);
}

Test(config, sets_the_traits_of_each_family) {
    cr_assert(expect_accepted("{\"model_type\":\"qwen2\"}").qkv_bias);
    cr_assert(expect_accepted("{\"model_type\":\"qwen3\"}").qk_norm);
    cr_assert(!expect_accepted("{\"model_type\":\"qwen3\"}").qkv_bias);
    expect_refused("{\"model_type\":\"gpt2\"}", "'gpt2' cannot be run; these can: llama, mistral, qwen2, qwen3");
    expect_refused("{\"delete\":\"model_type\"}", "'model_type' is missing");
}

Test(config, reads_the_sliding_window_as_each_family_means_it) {
    cr_assert_eq(expect_accepted("{\"model_type\":\"mistral\",\"sliding_window\":8}").window, 8);
    cr_assert_eq(expect_accepted("{\"model_type\":\"mistral\",\"sliding_window\":null}").window, 0);
    cr_assert_eq(expect_accepted("{\"model_type\":\"mistral\"}").window, 4096);
    cr_assert_eq(expect_accepted("{\"model_type\":\"qwen2\",\"sliding_window\":8}").window, 0);
    cr_assert_eq(expect_accepted("{\"model_type\":\"qwen2\",\"sliding_window\":8,\"use_sliding_window\":false}").window,
                 0);
#define SLIDING "{\"model_type\":\"qwen2\",\"sliding_window\":8,\"use_sliding_window\":true,"
    cr_assert_eq(expect_accepted(SLIDING "\"max_window_layers\":0}").window, 8);
    cr_assert_eq(expect_accepted(SLIDING "\"max_window_layers\":4}").window, 0);
    const sn_hparams half = expect_accepted(SLIDING "\"max_window_layers\":2}");
    for (int b = 0; b < 4; b++) cr_assert_eq(sn_window_of(&half, b), b < 2 ? 0 : 8);
    cr_assert_eq(expect_accepted(SLIDING
                                 "\"max_window_layers\":2,\"layer_types\":[\"full_attention\",\"full_attention\","
                                 "\"full_attention\",\"full_attention\"]}")
                     .window,
                 0);
    const sn_hparams last =
        expect_accepted(SLIDING "\"max_window_layers\":2,\"layer_types\":[\"full_attention\",\"full_attention\","
                                "\"full_attention\",\"sliding_attention\"]}");
    for (int b = 0; b < 4; b++) cr_assert_eq(sn_window_of(&last, b), b < 3 ? 0 : 8);
    expect_refused("{\"model_type\":\"qwen2\",\"layer_types\":[\"full_attention\",\"full_attention\","
                   "\"full_attention\",\"sliding_attention\"]}",
                   "'use_sliding_window' is false");
    expect_refused("{\"model_type\":\"mistral\",\"layer_types\":[\"full_attention\"]}", "all 4 blocks");
    expect_refused("{\"model_type\":\"mistral\",\"layer_types\":[1,2,3,4]}", "no text");
}

/* Compared with transformers: 1 / theta^(2i/dim) in float32. */
Test(config, computes_rope_frequencies_as_the_reference) {
    const float expected[8] = {1.0f, 0.31622776f, 0.1f, 0.031622777f, 0.01f, 0.0031622776f, 0.001f, 0.00031622776f};
    sn_hparams h = expect_accepted("{}");
    for (int i = 0; i < 8; i++)
        cr_assert(fabsf(h.rope_freq[i] - expected[i]) <= expected[i] * 1.2e-7f, "%d: %.9g", i, (double)h.rope_freq[i]);
}

Test(config, reads_theta_and_scaling_in_both_spellings) {
    const char *const llama3[] = {
        "{\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
        "{\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
        "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}}"};
    sn_hparams a = expect_accepted(llama3[0]), b = expect_accepted(llama3[1]),
               plain = expect_accepted("{\"rope_theta\":500000.0}");
    cr_assert_arr_eq(a.rope_freq, b.rope_freq, sizeof a.rope_freq);
    cr_assert_eq(a.rope_freq[0], plain.rope_freq[0], "a short wavelength is unchanged");
    cr_assert(a.rope_freq[1] < plain.rope_freq[1] && a.rope_freq[1] > plain.rope_freq[1] / 8,
              "an intermediate wavelength is blended");
    for (int i = 2; i < 8; i++) cr_assert_eq(a.rope_freq[i], plain.rope_freq[i] / 8);
    b = expect_accepted("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}");
    plain = expect_accepted("{\"rope_scaling\":{\"type\":\"default\"}}");
    for (int i = 0; i < 8; i++) cr_assert_eq(b.rope_freq[i], plain.rope_freq[i] / 2);
}

/* Compared with the formula in float64 (transformers' _compute_yarn_parameters): frequencies, and the factor of
 * cosines and sines. */
static void expect_yarn(const char *changes, double scale, const double *want) {
    sn_hparams h = expect_accepted(changes);
    cr_assert_float_eq((double)h.rope_scale[0], scale, 1e-7, "%s: %.9g", changes, (double)h.rope_scale[0]);
    for (int i = 0; i < 8; i++)
        cr_assert_float_eq((double)h.rope_freq[i], want[i], want[i] * 1e-6, "%s, %d: %.9g", changes, i,
                           (double)h.rope_freq[i]);
}

Test(config, blends_frequencies_as_yarn_does) {
    const double own[] = {
        1.0, 0.225418, 0.0508132748, 0.00679495949, 0.000456483919, 1.81883367e-05, 4.09997848e-06, 9.2420895e-07};
    const double truncated[] = {
        1.0, 0.225418, 0.0508132748, 0.00775546606, 0.000914454401, 1.81883367e-05, 4.09997848e-06, 9.2420895e-07};
    const double other[] = {1.0, 0.237170825, 0.05, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05};
#define YARN_OF(more)                                                                                                  \
    "{\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":150000,\"factor\":32,"                                \
    "\"original_max_position_embeddings\":4096" more "}}"
    expect_yarn(YARN_OF(",\"truncate\":false"), 1.3465735902799727, own);
    expect_yarn(YARN_OF(",\"truncate\":false,\"attention_factor\":1.5,\"beta_fast\":32,\"beta_slow\":1"), 1.5, own);
    expect_yarn(YARN_OF(""), 1.3465735902799727, truncated);
    expect_yarn("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":64}}",
                1.138629436111989, other);
    cr_assert_eq(expect_accepted("{}").rope_scale[0], 1.0f);
}

/* As people add it to what transformers 5 saved. */
Test(config, rope_scaling_wins_over_rope_parameters) {
#define BOTH                                                                                                           \
    "{\"rope_theta\":1000.0,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5000000.0},\"rope_"          \
    "scaling\":"
    const sn_hparams both = expect_accepted(BOTH "{\"type\":\"linear\",\"factor\":2}}"),
                     plain = expect_accepted("{\"rope_theta\":1000.0}");
    for (int i = 0; i < 8; i++) cr_assert_eq(both.rope_freq[i], plain.rope_freq[i] / 2, "%d", i);
    const sn_hparams empty = expect_accepted(BOTH "{}}"), null = expect_accepted(BOTH "null}"),
                     saved = expect_accepted("{\"rope_theta\":5000000.0}");
    cr_assert_arr_eq(empty.rope_freq, saved.rope_freq, sizeof saved.rope_freq);
    cr_assert_arr_eq(null.rope_freq, saved.rope_freq, sizeof saved.rope_freq);
    expect_refused(BOTH "{\"type\":\"dynamic\",\"factor\":2}}", "'rope_scaling': rope type 'dynamic'");
    expect_refused(BOTH "3}", "'rope_scaling' must be an object");
}

Test(config, refuses_what_looks_ahead) {
    expect_refused("{\"is_causal\":false}", "'is_causal' is false");
    expect_accepted("{\"is_causal\":true}");
}

Test(config, of_two_fields_for_the_activation_each_family_reads_its_own) {
    cr_assert_eq(expect_accepted("{\"hidden_activation\":\"gelu\"}").activation, SN_SILU);
    cr_assert_eq(expect_accepted("{\"activation\":\"gelu\"}").activation, SN_SILU);
    cr_assert_eq(expect_accepted("{\"model_type\":\"gemma2\",\"hidden_act\":\"silu\"}").activation, SN_GELU_TANH);
    cr_assert_eq(expect_accepted("{\"model_type\":\"gemma2\",\"hidden_activation\":\"silu\"}").activation, SN_SILU);
}

Test(config, defaults_are_those_of_the_family) {
    static const char *const fives[] = {"phi3", "olmo2", "olmo3"}, *const sixes[] = {"llama", "mistral", "qwen3"};
    char changes[128];
    for (size_t i = 0; i < 3; i++) {
        snprintf(changes, sizeof changes, "{\"model_type\":\"%s\",\"delete\":\"rms_norm_eps\"}", fives[i]);
        cr_assert_eq(expect_accepted(changes).norm_eps, 1e-5f, "%s", fives[i]);
        snprintf(changes, sizeof changes, "{\"model_type\":\"%s\",\"delete\":\"rms_norm_eps\"}", sixes[i]);
        cr_assert_eq(expect_accepted(changes).norm_eps, 1e-6f, "%s", sixes[i]);
    }
    expect_refused("{\"model_type\":\"ministral3\"}", "'rope_parameters' is missing");
    cr_assert(!expect_accepted("{\"attention_bias\":null}").qkv_bias);
}

/* A configuration of the golden models, with some fields replaced (null: left out). */
static sn_status read_golden(const char *name, const char *changes, sn_hparams *h, sn_err *err) {
    char path[256];
    const sn_family *family;
    const char *key;
    json_t *extra = json_loads(changes, 0, NULL), *value;
    snprintf(path, sizeof path, SN_FIXTURES "/golden/%s/config.json", name);
    json_t *config = json_load_file(path, 0, NULL);
    cr_assert(config && extra, "%s %s", path, changes);
    json_object_foreach(extra, key, value) {
        json_object_set(config, key, value);
        if (json_is_null(value)) json_object_del(config, key);
    }
    char *text = json_dumps(config, 0);
    sn_status status = sn_config_from_json(text, strlen(text), h, &family, err);
    free(text);
    json_decref(config);
    json_decref(extra);
    return status;
}

Test(config, routers_have_the_defaults_and_fields_of_their_family) {
    sn_hparams h;
    sn_err err;
    cr_assert_eq(
        read_golden("deepseek_v3", "{\"routed_scaling_factor\":null,\"n_group\":null,\"topk_group\":null}", &h, &err),
        SN_OK, "%s", err.text);
    cr_assert(h.router_scale == 2.5f && h.n_expert_groups == 8 && h.n_expert_groups_used == 4);
    cr_assert_eq(read_golden("qwen3_moe", "{\"routed_scaling_factor\":3}", &h, &err), SN_OK, "%s", err.text);
    cr_assert_eq(h.router_scale, 1.0f, "the family ignores it");
    cr_assert_eq(read_golden("deepseek_v2", "{\"rope_interleave\":false}", &h, &err), SN_OK, "%s", err.text);
    cr_assert_eq(h.rope_style, SN_ROPE_INTERLEAVED, "DeepSeek-V2 ignores it");
    cr_assert_eq(read_golden("ernie4_5_moe", "{\"moe_layer_end_index\":2,\"moe_layer_start_index\":2}", &h, &err),
                 SN_OK, "%s", err.text);
    cr_assert(h.dense[0] && h.dense[1] && !h.dense[2] && h.dense[3] && h.n_ff_shared == 2 * h.n_ff);
    cr_assert_eq(read_golden("ernie4_5_moe", "{\"moe_layer_end_index\":-1,\"moe_layer_interval\":2}", &h, &err), SN_OK,
                 "%s", err.text);
    cr_assert(h.dense[2] && !h.dense[1] && !h.dense[3]);
    static const char *const refused[][3] = {
        {"deepseek_v3", "{\"topk_method\":\"greedy\"}", "'topk_method' 'greedy'"},
        {"deepseek_v3", "{\"head_dim\":2}", "they must agree"},
        {"deepseek_v3", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "yarn alone"},
        {"llama4", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":64}}",
         "type yarn is not supported"},
        {"gpt_oss", "{\"sliding_window\":0}", "'sliding_window' is 0"},
        {"gemma2", "{\"attn_logit_softcapping\":0}", "must lie above 0"},
        {"gemma2", "{\"final_logit_softcapping\":0.0}", "must lie above 0"},
        {"gemma3", "{\"rope_parameters\":null,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
         "call it 'rope_type'"},
        {"gemma3", "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}}", "take one out"},
        {"qwen3_5", "{\"hidden_act\":\"gelu\"}", "'gelu' is not known in this family"},
        {"ernie4_5_moe", "{\"moe_norm_min\":0.001}", "'moe_norm_min' is set"},
        {"ernie4_5_moe", "{\"use_bias\":true}", "'use_bias' is set"},
        {"phi3_longrope_long", "{\"original_max_position_embeddings\":1}", "'original_max_position_embeddings' is 1"},
        {"phi3_longrope_long", "{\"original_max_position_embeddings\":32}", "is 32, and 16 in 'rope_parameters'"},
        {"phi3_longrope_long", "{\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1],\"long_factor\":[1,2]}}",
         "has 1 numbers and 'long_factor' 2"},
        {"phi3_longrope_long", "{\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1],\"long_factor\":[2]}}",
         "1 rope factors for 16"},
        {"phi3_longrope_long",
         "{\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1,1,1,1,1,1],\"long_factor\":[1,1,1,1,1,1,1,-1]}}",
         "rope factor 7 is -1"},
        {"phi3_longrope_long", "{\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1]}}",
         "'long_factor' must be a list"},
        {"glm4_moe_lite", "{\"topk_group\":0}", "'topk_group' is 0 of one group"},
        {"glm4_moe_lite", "{\"mlp_layer_types\":[\"dense\"]}", "all 4 blocks"},
        {"glm4_moe_lite", "{\"mlp_layer_types\":[\"dense\",\"sparse\",\"odd\",\"sparse\"]}", "holds 'odd'"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cr_expect_eq(read_golden(refused[i][0], refused[i][1], &h, &err), SN_REFUSED, "%s", refused[i][1]);
        cr_expect(strstr(err.text, refused[i][2]), "'%s' does not say '%s'", err.text, refused[i][2]);
    }
}

/* What the makers of the models write, and what transformers writes, mean the same. */
Test(config, heads_may_differ_between_kinds_of_blocks) {
    sn_hparams h;
    sn_err err;
    cr_assert_eq(read_golden("mimo_v2_flash",
                             "{\"layer_types\":null,\"mlp_layer_types\":null,\"rope_parameters\":null,"
                             "\"rms_norm_eps\":null,\"layernorm_epsilon\":1e-5,\"hybrid_layer_pattern\":[0,1,1,0],"
                             "\"moe_layer_freq\":[0,1,1,1],\"sliding_window_size\":7,\"rope_theta\":50000.0,"
                             "\"swa_rope_theta\":10000.0,\"partial_rotary_factor\":0.334,"
                             "\"swa_num_key_value_heads\":2,\"add_full_attention_sink_bias\":false,"
                             "\"topk_method\":\"noaux_tc\",\"scoring_func\":\"sigmoid\"}",
                             &h, &err),
                 SN_OK, "%s", err.text);
    cr_assert(h.window == 8 && h.n_kv_heads == 2 && h.full_heads.n_kv == 1 && h.full_heads.n == 4, "%d", h.window);
    cr_assert(h.head_dim == 24 && h.value_dim == 16 && h.full_heads.key_dim == 24 && h.full_heads.value_dim == 16);
    cr_assert(h.full_attention[0] && !h.full_attention[1] && h.dense[0] && !h.dense[3] && h.window_sinks);
    cr_assert(h.rope_dim == 8 && h.rope_dim_full == 8 && h.value_scale == 0.707f && h.norm_eps == 1e-5f);
    cr_assert_eq(
        read_golden("gemma4", "{\"per_layer_config\":null,\"use_bidirectional_attention\":\"vision\"}", &h, &err),
        SN_OK, "%s", err.text);
    cr_assert(h.full_heads.key_dim == 512 && h.full_heads.n_kv == 2 && h.full_keys_are_values && h.norm_values);
    cr_assert(h.rope_dim_full == 512 && h.rope_freq_full[63] > 0 && h.rope_freq_full[64] == 0 && h.attn_scale == 1);
    cr_assert_eq(read_golden("gemma4",
                             "{\"per_layer_config\":null,\"num_global_key_value_heads\":1,"
                             "\"global_head_dim\":32,\"attention_k_eq_v\":false}",
                             &h, &err),
                 SN_OK, "%s", err.text);
    cr_assert(h.full_heads.n_kv == 2 && h.full_heads.value_dim == 32 && !h.full_keys_are_values);
    static const char *const refused[][3] = {
        {"mimo_v2_flash", "{\"layer_types\":null}", "neither 'layer_types' nor"},
        {"mimo_v2_flash", "{\"hybrid_layer_pattern\":[0,1]}", "must list all 4 blocks"},
        {"mimo_v2_flash", "{\"hybrid_layer_pattern\":[0,1,2,0]}", "must hold 0 and 1"},
        {"mimo_v2_flash", "{\"add_swa_attention_sink_bias\":false}", "is false, which is not supported"},
        {"mimo_v2_flash", "{\"add_full_attention_sink_bias\":true}", "'add_full_attention_sink_bias' is set"},
        {"mimo_v2_flash", "{\"swa_num_key_value_heads\":3}", "cannot share 3 key/value heads"},
        {"mimo_v2_flash", "{\"v_head_dim\":32}", "width of a head's values is 32"},
        {"mimo_v2_flash", "{\"attention_value_scale\":-1}", "'attention_value_scale' is -1"},
        {"gemma4", "{\"hidden_size_per_layer_input\":8}", "embeddings of their own"},
        {"gemma4", "{\"num_kv_shared_layers\":2}", "keys and values of other blocks"},
        {"gemma4", "{\"use_bidirectional_attention\":\"all\"}", "each token would see the later ones"},
        {"gemma4", "{\"per_layer_config\":{\"1\":{\"head_dim\":24}}}", "block 3 other heads"},
        {"gemma4", "{\"per_layer_config\":{\"0\":{\"head_dim\":24}}}", "block 0 other heads"},
        {"gemma4", "{\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
         "the last block has a window"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cr_expect_eq(read_golden(refused[i][0], refused[i][1], &h, &err), SN_REFUSED, "%s", refused[i][1]);
        cr_expect(strstr(err.text, refused[i][2]), "'%s' does not say '%s'", err.text, refused[i][2]);
    }
}

Test(config, timelines_beyond_the_original_context_have_frequencies_of_their_own) {
    sn_hparams h;
    sn_err err;
    cr_assert_eq(read_golden("phi3_longrope_long", "{}", &h, &err), SN_OK, "%s", err.text);
    cr_assert(h.long_after == 16 && !sn_is_long(&h, 16) && sn_is_long(&h, 17) && h.n_ropes == 1);
    cr_assert_float_eq(h.rope_freq[0], 1, 1e-7f);
    cr_assert_float_eq(h.rope_freq_full[0], 1 / 1.5f, 1e-7f);
    cr_assert_float_eq(h.rope_scale[0], sqrtf(2), 1e-6f, "sqrt(1 + ln 16 / ln 16)");
    cr_assert_eq(h.rope_scale[1], h.rope_scale[0]);
    cr_assert_eq(
        read_golden("phi3_longrope_long",
                    "{\"rope_parameters\":null,\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1,1,1,1,1,1],"
                    "\"long_factor\":[2,2,2,2,2,2,2,2]},\"max_position_embeddings\":64}",
                    &h, &err),
        SN_OK, "%s", err.text);
    cr_assert_float_eq(h.rope_scale[0], sqrtf(1.5f), 1e-6f, "the factor follows from the contexts: 64 / 16");
    cr_assert_float_eq(h.rope_freq_full[0], 0.5f, 1e-7f);
    cr_assert_eq(read_golden("phi3", "{}", &h, &err), SN_OK, "%s", err.text);
    cr_assert(!h.long_after && !sn_is_long(&h, 1 << 20));
}

/* Which of the 5 blocks share the choice of one before them, as "FFSFS". */
static const char *shared_choices(const char *fields) {
    static char kinds[6];
    sn_hparams h;
    sn_err err;
    cr_assert_eq(read_golden("glm_moe_dsa", fields, &h, &err), SN_OK, "%s: %s", fields, err.text);
    for (int b = 0; b < 5; b++) kinds[b] = h.index_shared[b] ? 'S' : 'F';
    return kinds;
}

Test(config, says_which_blocks_share_the_choice_of_an_indexer) {
    cr_expect_str_eq(shared_choices("{}"), "FFSFS");
    cr_expect_str_eq(shared_choices("{\"indexer_types\":null}"), "FFFFF");
    cr_expect_str_eq(shared_choices("{\"indexer_types\":null,\"index_topk_pattern\":\"FSSFF\"}"), "FSSFF");
    cr_expect_str_eq(shared_choices("{\"indexer_types\":null,\"index_topk_freq\":2}"), "FFSFS");
    cr_expect_str_eq(shared_choices("{\"indexer_types\":null,\"index_topk_freq\":3,\"index_skip_topk_offset\":1}"),
                     "FSSFS");
}

Test(config, refuses_indexers_that_are_not_possible) {
    static const char *const refused[][3] = {
        {"deepseek_v32", "{\"index_topk\":null}", "'index_topk' is missing"},
        {"deepseek_v32", "{\"index_topk\":0}", "chooses is 0"},
        {"deepseek_v32", "{\"index_topk\":100000}", "chooses is 100000"},
        {"deepseek_v32", "{\"index_head_dim\":4}", "width of a key of its indexer is 4"},
        {"deepseek_v32", "{\"index_n_heads\":-1}", "heads of its indexer is -1"},
        {"glm_moe_dsa", "{\"indexer_types\":[\"shared\",\"full\",\"full\",\"full\",\"full\"]}", "there is none"},
        {"glm_moe_dsa", "{\"indexer_types\":[\"full\",\"half\",\"full\",\"full\",\"full\"]}", "neither full nor"},
        {"glm_moe_dsa", "{\"indexer_types\":[\"full\"]}", "each of the 5 blocks"},
        {"glm_moe_dsa", "{\"indexer_types\":null,\"index_topk_pattern\":\"FSXFF\"}", "neither full nor"},
        {"glm_moe_dsa", "{\"indexer_types\":null,\"index_skip_topk_offset\":-1}", "'index_skip_topk_offset' is -1"}};
    sn_hparams h;
    sn_err err;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cr_expect_eq(read_golden(refused[i][0], refused[i][1], &h, &err), SN_REFUSED, "%s", refused[i][1]);
        cr_expect(strstr(err.text, refused[i][2]), "'%s' does not say '%s'", err.text, refused[i][2]);
    }
}

Test(config, rotates_a_part_of_a_head) {
#define PHI "{\"model_type\":\"phi3\","
    sn_hparams h = expect_accepted(PHI "\"partial_rotary_factor\":0.5}");
    cr_assert_eq(h.rope_dim, 8);
    cr_assert_float_eq(h.rope_freq[1], 0.1f, 1e-7f);
    expect_refused(PHI "\"partial_rotary_factor\":1.5}", "'partial_rotary_factor' is 1.5");
    expect_refused(PHI "\"partial_rotary_factor\":0.2}", "come in pairs");
    cr_assert_eq(expect_accepted("{\"partial_rotary_factor\":0.5}").rope_dim, 16, "this family ignores it");
    expect_refused("{\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
                   "'partial_rotary_factor' is set");
}

Test(config, refuses_unknown_rope_types) {
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4}}",
                   "'rope_scaling': rope type 'dynamic' is not known");
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}",
                   "'original_max_position_embeddings' is missing");
#define YARN "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64,"
    expect_refused(YARN "\"beta_slow\":64}}", "yarn rope scaling is impossible: beta_fast 32, beta_slow 64");
    expect_refused(YARN "\"attention_factor\":-1}}", "attention_factor -1");
    expect_refused(YARN "\"truncate\":1}}", "'truncate' must be true or false");
    expect_refused(YARN "\"mscales\":1}}", "'mscales' is not known");
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4,\"mscales\":1}}",
                   "'mscales' is not known");
    expect_refused("{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
                   "'full_attention' is not known");
    expect_refused("{\"rope_parameters\":[]}", "must be an object");
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"linear\"}}", "'factor' is missing");
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}", "scaling factor is 0");
    expect_refused("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", "'low_freq_factor' is missing");
    expect_refused(
        "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":3,"
        "\"original_max_position_embeddings\":64}}",
        "llama3 rope scaling is impossible");
    expect_refused("{\"rope_theta\":0}", "theta is 0");
    expect_refused("{\"rope_theta\":\"big\"}", "'rope_theta' must be a number");
}

Test(config, refuses_fields_that_change_the_mathematics) {
    const char *const fields[] = {"{\"mlp_bias\":true}",
                                  "{\"quantization_config\":{\"quant_method\":\"hqq\"}}",
                                  "{\"attn_logit_softcapping\":50.0}",
                                  "{\"final_logit_softcapping\":30.0}",
                                  "{\"num_local_experts\":8}",
                                  "{\"embedding_multiplier\":12}",
                                  "{\"rope_interleaved\":true}",
                                  "{\"no_rope_layers\":[1]}",
                                  "{\"logit_scale\":0.5}"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) expect_refused(fields[i], "is set, which");
    expect_accepted("{\"mlp_bias\":false,\"quantization_config\":null,\"logit_scale\":1.0,\"rope_interleaved\":false}");
    cr_assert_eq(expect_accepted("{\"hidden_act\":\"gelu\"}").activation, SN_GELU);
    expect_refused("{\"hidden_act\":\"relu\"}", "the activation 'relu' is not known");
}

Test(config, refuses_sizes_that_are_missing_or_impossible) {
    expect_refused("{\"delete\":\"hidden_size\"}", "'hidden_size' is missing");
    expect_refused("{\"hidden_size\":\"64\"}", "whole number");
    expect_refused("{\"hidden_size\":64.5}", "whole number");
    expect_refused("{\"hidden_size\":99999999999}", "whole number");
    expect_refused("{\"num_hidden_layers\":0}", "0 blocks");
    expect_refused("{\"num_hidden_layers\":1025}", "number of blocks is 1025");
    expect_refused("{\"num_attention_heads\":0}", "'num_attention_heads' is 0");
    expect_refused("{\"num_attention_heads\":-4}", "'num_attention_heads' is -4");
    expect_refused("{\"num_attention_heads\":3}", "cannot be split into 3 heads");
    expect_refused("{\"num_key_value_heads\":3}", "cannot share 3");
    expect_refused("{\"num_key_value_heads\":0}", "key/value heads is 0");
    expect_refused("{\"head_dim\":514}", "width of a head is 514");
    expect_refused("{\"head_dim\":-2}", "heads of -2");
    expect_refused("{\"head_dim\":15}", "come in pairs");
    expect_refused("{\"vocab_size\":0}", "vocabulary is 0");
    expect_refused("{\"intermediate_size\":-1}", "feed-forward layer is -1");
    expect_refused("{\"max_position_embeddings\":0}", "context length is 0");
    expect_refused("{\"rms_norm_eps\":0}", "epsilon is 0");
    expect_refused("{\"rms_norm_eps\":true}", "'rms_norm_eps' must be a number");
    expect_refused("{\"tie_word_embeddings\":1}", "'tie_word_embeddings' must be true or false");
    expect_refused("{\"model_type\":\"mistral\",\"sliding_window\":-1}", "sliding window is -1");
}

/* Published files spell what transformers writes otherwise. */
Test(config, hybrids_have_several_spellings) {
    sn_hparams a, b;
    sn_err err;
    static const char *const pairs[][2] = {
        {"lfm2", "{\"layer_types\":null,\"full_attn_idxs\":[2],\"tie_word_embeddings\":null,\"tie_embedding\":true}"},
        {"granitemoehybrid",
         "{\"layer_types\":null,\"layers_block_type\":[\"mamba\",\"mamba\",\"attention\",\"mamba\"],"
         "\"mamba_d_head\":\"auto\",\"time_step_limit\":[0,\"Infinity\"]}"},
        {"nemotron_h_moe",
         "{\"layers_block_type\":null,\"hybrid_override_pattern\":\"MEM*EM\",\"time_step_limit\":null}"},
        {"kimi_linear",
         "{\"layer_types\":null,\"linear_conv_kernel_dim\":null,\"linear_num_heads\":null,\"linear_head_dim\":null,"
         "\"mlp_layer_types\":null,\"first_k_dense_replace\":1,\"mla_use_nope\":true,\"linear_attn_config\":"
         "{\"full_attn_layers\":[4],\"kda_layers\":[1,2,3],\"head_dim\":12,\"num_heads\":3,\"short_conv_kernel_size\":"
         "4}}"},
        {"bailing_hybrid", "{\"layer_types\":null,\"num_expert_group\":null,\"n_group\":4,\"moe_renormalize\":null,"
                           "\"norm_topk_prob\":true,\"score_function\":\"sigmoid\"}"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        cr_assert_eq(read_golden(pairs[i][0], "{}", &a, &err), SN_OK, "%s", err.text);
        cr_assert_eq(read_golden(pairs[i][0], pairs[i][1], &b, &err), SN_OK, "%s: %s", pairs[i][0], err.text);
        cr_expect(!memcmp(&a, &b, sizeof a), "%s", pairs[i][0]);
    }
    cr_assert_eq(read_golden("lfm2", "{\"block_auto_adjust_ff_dim\":true,\"intermediate_size\":1000}", &a, &err),
                 SN_OK);
    cr_expect_eq(a.n_ff, 768);
    cr_assert_eq(
        read_golden("granitemoehybrid", "{\"num_local_experts\":0,\"position_embedding_type\":\"rope\"}", &a, &err),
        SN_OK);
    cr_expect(!a.n_experts && a.n_ff == 56 && !a.no_rope[2] && a.gated);
    cr_assert_eq(read_golden("granitemoehybrid",
                             "{\"layer_types\":[\"attention\",\"attention\",\"attention\",\"attention\"]}", &a, &err),
                 SN_OK);
    cr_expect_eq(a.conv_taps, 0, "no block is recurrent");
}

Test(config, hybrids_refuse_what_is_not_computed) {
    static const char *const refused[][3] = {
        {"lfm2", "{\"conv_bias\":true}", "'conv_bias' is set"},
        {"lfm2", "{\"layer_types\":[\"conv\",\"conv\",\"linear_attention\",\"conv\"]}", "holds 'linear_attention'"},
        {"lfm2", "{\"conv_L_cache\":9}", "recurrent blocks cannot be run"},
        {"granitemoehybrid", "{\"mamba_n_groups\":2}", "in this family 1 is known"},
        {"granitemoehybrid", "{\"time_step_limit\":[0.0,0.1]}", "'time_step_limit' is set"},
        {"granitemoehybrid", "{\"mamba_proj_bias\":true}", "'mamba_proj_bias' is set"},
        {"nemotron_h", "{\"mamba_hidden_act\":\"gelu\"}", "'mamba_hidden_act' is 'gelu'"},
        {"nemotron_h", "{\"sliding_window\":8}", "'sliding_window' is set"},
        {"nemotron_h_moe", "{\"layers_block_type\":null,\"hybrid_override_pattern\":\"MEX*EM\"}", "full_attention and"},
        {"nemotron_h_latent", "{\"moe_latent_size\":65}", "what enters an expert is 65"},
        {"granitemoehybrid", "{\"hidden_act\":\"gelu\"}", "'gelu' is not known in this family"},
        {"kimi_linear", "{\"mla_use_nope\":false}", "'mla_use_nope' is false"},
        {"kimi_linear", "{\"moe_router_activation_func\":\"softmax\"}", "in this family sigmoid is known"},
        {"bailing_hybrid", "{\"kda_lower_bound\":1}", "it must lie from -80 to 0"},
        {"bailing_hybrid", "{\"no_kda_lora\":false}", "'no_kda_lora' is false"}};
    sn_hparams h;
    sn_err err;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cr_expect_eq(read_golden(refused[i][0], refused[i][1], &h, &err), SN_REFUSED, "%s", refused[i][1]);
        cr_expect(strstr(err.text, refused[i][2]), "%s: %s", refused[i][1], err.text);
    }
}

Test(config, refuses_recurrent_blocks_without_a_state) {
    expect_refused("{\"model_type\":\"qwen3_5_text\",\"rope_parameters\":{},\"linear_conv_kernel_dim\":0,"
                   "\"linear_num_key_heads\":0,\"linear_num_value_heads\":-4}",
                   "recurrent blocks cannot be run");
    expect_refused("{\"model_type\":\"qwen3_5_text\",\"rope_parameters\":{},\"linear_conv_kernel_dim\":0,"
                   "\"linear_num_key_heads\":0,\"linear_num_value_heads\":0,\"linear_key_head_dim\":0,"
                   "\"linear_value_head_dim\":0}",
                   "recurrent blocks cannot be run");
}

/* The sizes of states are those of buffers, whatever the blocks are. */
Test(config, refuses_impossible_states_where_no_block_is_recurrent) {
    static const char none[] = "\"model_type\":\"qwen3_5_text\",\"rope_parameters\":{},\"full_attention_interval\":1,"
                               "\"linear_conv_kernel_dim\":0,\"linear_num_key_heads\":0,\"linear_key_head_dim\":0";
    const struct {
        int heads, dim;
    } wrong[] = {{-1, 1}, {1, -1}, {1 << 20, INT32_MIN + 1}, {INT32_MAX, INT32_MAX}, {1, 0}, {0, 1}};
    char changes[512];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(changes, sizeof changes, "{%s,\"linear_num_value_heads\":%d,\"linear_value_head_dim\":%d}", none,
                 wrong[i].heads, wrong[i].dim);
        expect_refused(changes, "recurrent blocks cannot be run");
    }
    snprintf(changes, sizeof changes, "{%s,\"linear_num_value_heads\":0,\"linear_value_head_dim\":0}", none);
    sn_hparams h = expect_accepted(changes);
    cr_expect_eq(sn_delta_width(&h), 0);
    cr_expect_eq(sn_delta_values(&h), 0);
}

Test(config, refuses_invalid_configurations) {
    sn_hparams h;
    const sn_family *family;
    sn_err err;
    const char *const texts[] = {"", "[]", "7", "{", "{\"a\":1,\"a\":2}", "{} {}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_assert_eq(sn_config_from_json(texts[i], strlen(texts[i]), &h, &family, &err), SN_REFUSED, "%s", texts[i]);
}

Test(config, replaces_control_characters_in_a_name_and_cuts_it) {
    sn_hparams h = expect_accepted("{\"_name_or_path\":\"a\\nb\"}");
    cr_assert_str_eq(h.name, "a?b");
    char name[300];
    memset(name, 'x', sizeof name);
    sn_config_copy_name(h.name, name, sizeof name);
    cr_assert_eq(strlen(h.name), SN_MODEL_NAME_SIZE - 1);
    memcpy(name + SN_MODEL_NAME_SIZE - 3, "\xe2\x82\xac", 3); /* a character that does not fit is left out whole */
    sn_config_copy_name(h.name, name, sizeof name);
    cr_assert_eq(strlen(h.name), SN_MODEL_NAME_SIZE - 3);
    sn_config_copy_name(h.name, "mod\xe8le \xc3\xa8", 9);
    cr_assert_str_eq(h.name, "mod\xef\xbf\xbdle \xc3\xa8");
}

/* -- families with settings of their own */

#define GEMMA "{\"model_type\":\"gemma3_text\",\"hidden_activation\":\"gelu_pytorch_tanh\","

Test(config, reads_both_spellings_of_gemma3) {
    const sn_hparams old =
        expect_accepted(GEMMA "\"num_hidden_layers\":7,\"rope_theta\":1000000,\"rope_local_base_freq\":10000,"
                              "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},"
                              "\"sliding_window\":512,\"sliding_window_pattern\":3}");
    const sn_hparams new = expect_accepted(
        GEMMA "\"num_hidden_layers\":7,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,"
              "\"rope_theta\":1000000},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000}},"
              "\"sliding_window\":512,\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"full_attention\","
              "\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}");
    cr_assert_arr_eq(old.rope_freq, new.rope_freq, sizeof old.rope_freq);
    cr_assert_arr_eq(old.rope_freq_full, new.rope_freq_full, sizeof old.rope_freq_full);
    cr_assert_arr_eq(old.full_attention, new.full_attention, sizeof old.full_attention);
    cr_assert(old.window == 512 && new.window == 512);
    for (int b = 0; b < 7; b++) {
        cr_assert_eq(sn_window_of(&old, b), b % 3 == 2 ? 0 : 512);
        cr_assert_eq(sn_rope_of(&old, b), b % 3 == 2);
    }
    cr_assert_eq(sn_rope_freqs(&old, 0)[0], 1.0f);
    cr_assert_eq(sn_rope_freqs(&old, 1)[0], 0.125f);
    cr_assert_lt(sn_rope_freqs(&old, 1)[1], sn_rope_freqs(&old, 0)[1] / 8);
}

Test(config, uses_the_defaults_of_gemma3) {
    const sn_hparams h = expect_accepted(GEMMA "\"num_hidden_layers\":12}");
    cr_assert(h.tied_output && h.norm_plus_one && h.post_norm && h.qk_norm && !h.qk_norm_wide);
    cr_assert(h.head_dim == 256 && h.window == 4096 && h.attn_scale == 0.0625f && h.embed_scale == 8.0f);
    for (int b = 0; b < 12; b++) cr_assert_eq(sn_window_of(&h, b), b % 6 == 5 ? 0 : 4096);
    cr_assert_eq(expect_accepted(GEMMA "\"query_pre_attn_scalar\":64,\"head_dim\":16}").attn_scale, 0.125f);
    cr_assert_eq(expect_accepted("{\"head_dim\":16}").attn_scale, 0.25f, "the default is 1 / sqrt(head_dim)");
}

#define FALCON "{\"model_type\":\"falcon\",\"delete\":\"hidden_act\","
#define BLOOM  "{\"model_type\":\"bloom\",\"delete\":\"hidden_act\","

Test(config, reads_the_kinds_of_falcon) {
    const sn_hparams old = expect_accepted(FALCON "\"bias\":false}"); /* 7B */
    cr_assert(old.parallel && old.n_kv_heads == 1 && old.layer_norm && !old.gated && !old.linear_bias && !old.qkv_bias);
    cr_assert(old.activation == SN_GELU && old.tied_output && old.rope_dim == 16 && old.norm_eps == 1e-5f);
    const sn_hparams late =
        expect_accepted(FALCON "\"new_decoder_architecture\":true,\"num_kv_heads\":2,\"multi_query\":true}");
    cr_assert(late.parallel && late.n_kv_heads == 2);
    cr_assert_eq(expect_accepted(FALCON "\"new_decoder_architecture\":true,\"parallel_attn\":false}").parallel, true,
                 "as in the reference");
    const sn_hparams serial = expect_accepted(FALCON "\"parallel_attn\":false,\"multi_query\":false,\"bias\":true}");
    cr_assert(!serial.parallel && serial.n_kv_heads == 4 && serial.linear_bias && serial.qkv_bias);
    cr_assert_eq(expect_accepted(FALCON "\"activation\":\"gelu_pytorch_tanh\"}").activation, SN_GELU_TANH);
    expect_refused(FALCON "\"alibi\":true}", "'alibi' is set");
    expect_refused(FALCON "\"new_decoder_architecture\":true,\"num_ln_in_parallel_attn\":3}",
                   "'num_ln_in_parallel_attn' is 3");
    expect_refused(FALCON "\"new_decoder_architecture\":true,\"num_kv_heads\":3}", "cannot share 3");
    expect_refused("{\"parallel_attn\":true}", "'parallel_attn' is set");
}

Test(config, reads_bloom_under_its_old_names) {
    const sn_hparams h = expect_accepted(
        BLOOM "\"n_layer\":3,\"num_hidden_layers\":null,\"n_embed\":128,\"hidden_size\":null,\"n_head\":8,"
              "\"num_attention_heads\":null,\"num_key_value_heads\":null,\"intermediate_size\":null,"
              "\"n_inner\":null,\"max_position_embeddings\":null,\"seq_length\":100,\"layer_norm_epsilon\":1e-6}");
    cr_assert(h.n_blocks == 3 && h.n_embd == 128 && h.n_heads == 8 && h.n_kv_heads == 8 && h.n_ff == 512 &&
              h.n_ctx == 100);
    cr_assert(h.alibi && h.rope_dim == 0 && h.layer_norm && h.linear_bias && h.qkv_bias && !h.parallel &&
              h.tied_output);
    cr_assert(h.activation == SN_GELU_TANH && h.norm_eps == 1e-6f);
    expect_refused(BLOOM "\"apply_residual_connection_post_layernorm\":true}",
                   "'apply_residual_connection_post_layernorm' is set");
    expect_refused("{\"n_layer\":3,\"num_hidden_layers\":null,\"intermediate_size\":null}",
                   "'intermediate_size' is missing");
}

Test(config, refuses_unsupported_settings_of_gemma3) {
    expect_refused(GEMMA "\"final_logit_softcapping\":30}", "'final_logit_softcapping' is set");
    expect_refused(GEMMA "\"attn_logit_softcapping\":50}", "'attn_logit_softcapping' is set");
    expect_refused(GEMMA "\"use_bidirectional_attention\":true}", "'use_bidirectional_attention' is set");
    expect_refused(GEMMA "\"query_pre_attn_scalar\":0}", "'query_pre_attn_scalar' is 0");
    expect_refused(GEMMA "\"sliding_window_pattern\":0}", "'sliding_window_pattern' is 0");
    expect_refused(GEMMA "\"rope_parameters\":{\"rope_theta\":1000000}}",
                   "must hold sliding_attention and full_attention");
    expect_refused(GEMMA "\"hidden_activation\":\"relu\"}", "'relu'");
    expect_refused("{\"query_pre_attn_scalar\":64}", "'query_pre_attn_scalar' is set");
    expect_refused("{\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1],\"short_factor\":[1]}}",
                   "rope type 'longrope' is not known");
}

Test(config, reads_gpt_oss) {
#define GPT_OSS                                                                                                        \
    "{\"model_type\":\"gpt_oss\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32,\"truncate\":false,"           \
    "\"original_max_position_embeddings\":4096},"
    const sn_hparams h = expect_accepted(GPT_OSS "\"num_local_experts\":8,\"swiglu_limit\":7.0}");
    cr_assert(h.n_experts == 8 && h.n_experts_used == 4 && h.n_ff == 96 && h.router_scoring == SN_ROUTER_SOFTMAX);
    cr_assert(h.activation == SN_SWIGLU_CLAMPED && h.qkv_bias && h.o_bias && h.head_dim == 64 && h.window == 128);
    for (int b = 0; b < 4; b++) cr_assert_eq(sn_window_of(&h, b), b % 2 ? 0 : 128);
    cr_assert(!expect_accepted(GPT_OSS "\"attention_bias\":false}").qkv_bias &&
              !expect_accepted(GPT_OSS "\"attention_bias\":false}").o_bias);
    expect_refused(GPT_OSS "\"swiglu_limit\":6}", "'swiglu_limit' 6");
    expect_refused(GPT_OSS "\"swiglu_alpha\":1}", "'swiglu_alpha' is 1 and");
    expect_refused(GPT_OSS "\"hidden_act\":\"gelu\"}", "'gelu' is not known in this family");
    cr_assert_eq(expect_accepted(GPT_OSS "\"quantization_config\":{\"quant_method\":\"mxfp4\"}}").n_experts, 128);
    expect_refused(GPT_OSS "\"quantization_config\":{\"quant_method\":\"hqq\"}}", "the weights are quantised");
    expect_refused("{\"quantization_config\":{\"quant_method\":\"mxfp4\"}}", "of gpt-oss also MXFP4");
    expect_refused("{\"model_type\":\"gpt_oss\"}", "'rope_parameters' is missing");
    expect_refused("{\"swiglu_limit\":7}", "'swiglu_limit' is set, which");
}

Test(config, reads_mixtures_of_experts) {
    sn_hparams h = expect_accepted("{\"model_type\":\"mixtral\",\"num_local_experts\":4,\"num_experts_per_tok\":3}");
    cr_assert(h.n_experts == 4 && h.n_experts_used == 3 && h.n_ff == 96 && h.router_scoring == SN_ROUTER_SOFTMAX);
    h = expect_accepted("{\"model_type\":\"mixtral\"}");
    cr_assert(h.n_experts == 8 && h.n_experts_used == 2);
#define QWEN3_MOE "{\"model_type\":\"qwen3_moe\","
    h = expect_accepted(QWEN3_MOE "\"moe_intermediate_size\":48,\"num_experts\":16}");
    cr_assert(h.n_experts == 16 && h.n_experts_used == 8 && h.n_ff == 48 && h.router_scoring == SN_ROUTER_SOFTMAX_ALL &&
              h.qk_norm);
    cr_assert(expect_accepted(QWEN3_MOE "\"norm_topk_prob\":true}").router_scoring == SN_ROUTER_SOFTMAX);
    cr_assert_eq(expect_accepted("{}").n_experts, 0);
    expect_refused("{\"num_experts\":8}", "'num_experts' is set, which");
    expect_refused(QWEN3_MOE "\"mlp_only_layers\":[1]}", "'mlp_only_layers' or 'first_k_dense_replace' mixes");
    expect_refused(QWEN3_MOE "\"decoder_sparse_step\":2}", "'decoder_sparse_step', 'mlp_only_layers' or");
    expect_refused(QWEN3_MOE "\"use_sliding_window\":true}", "'use_sliding_window' is set, which");
    expect_refused(QWEN3_MOE "\"num_experts\":0}", "claims 0 experts");
    expect_refused(QWEN3_MOE "\"num_experts\":4}", "experts for a token is 8");
    expect_refused(QWEN3_MOE "\"norm_topk_prob\":1}", "'norm_topk_prob' must be true or false");
}

Test(config, reads_blocks_without_rope) {
    sn_hparams h = expect_accepted("{\"model_type\":\"smollm3\",\"no_rope_layers\":[0,1,1,0]}");
    cr_assert(h.no_rope[0] && !h.no_rope[1] && !h.no_rope[2] && h.no_rope[3]);
    h = expect_accepted("{\"model_type\":\"smollm3\"}");
    cr_assert(!h.no_rope[0] && !h.no_rope[2] && h.no_rope[3] && h.tied_output);
    h = expect_accepted("{\"model_type\":\"smollm3\",\"no_rope_layer_interval\":2}");
    cr_assert(!h.no_rope[0] && h.no_rope[1] && h.no_rope[3]);
    expect_refused("{\"model_type\":\"smollm3\",\"no_rope_layers\":[1]}", "must list all 4 blocks");
    expect_refused("{\"model_type\":\"smollm3\",\"no_rope_layer_interval\":0}", "'no_rope_layer_interval' is 0");
    expect_refused("{\"no_rope_layers\":[1,1,1,1]}", "'no_rope_layers' is set, which");
}

Test(config, reads_multipliers) {
#define GRANITE "{\"model_type\":\"granite\","
    sn_hparams h = expect_accepted(GRANITE "\"embedding_multiplier\":12,\"attention_multiplier\":0.5,"
                                           "\"residual_multiplier\":0.25,\"logits_scaling\":8}");
    cr_assert(h.embed_scale == 12 && h.attn_scale == 0.5f && h.residual_scale == 0.25f && h.logit_scale == 0.125f);
    expect_refused(GRANITE "\"logits_scaling\":0}", "'logits_scaling' 0 must lie");
    expect_refused("{\"logits_scaling\":8}", "'logits_scaling' is set, which");
}

Test(config, reads_queries_that_grow_and_wrapped_models) {
#define GROWING                                                                                                        \
    "\"model_type\":\"ministral3\",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e6,\"factor\":16,"      \
    "\"original_max_position_embeddings\":64,\"mscale\":1,\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.1}"
    sn_hparams h = expect_accepted("{" GROWING "}");
    cr_assert(h.q_growth == 0.1f && h.q_growth_step == 64 && h.q_growth_offset == 0);
    cr_assert_eq(h.rope_scale[0], 1, "mscale over mscale_all_dim");
    expect_refused("{" GROWING ",\"text_config\":{\"model_type\":\"llama\"}}", "'text_config' is set, which");
}

Test(config, reads_routers_and_blocks_without_experts) {
#define QWEN2_MOE "{\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":48,"
    sn_hparams h = expect_accepted(QWEN2_MOE "\"mlp_only_layers\":[1],\"decoder_sparse_step\":3}");
    cr_assert(h.dense[0] && h.dense[1] && !h.dense[2] && h.dense[3] && h.n_ff_dense == 96 && h.n_ff == 48);
    cr_assert(h.n_ff_shared == 5632 && h.shared_gated && h.router_scoring == SN_ROUTER_SOFTMAX_ALL);
    cr_assert(h.qkv_bias && !expect_accepted(QWEN2_MOE "\"qkv_bias\":false}").qkv_bias);
    expect_refused(QWEN2_MOE "\"mlp_only_layers\":[-1]}", "must hold the numbers");
    expect_refused(QWEN2_MOE "\"mlp_only_layers\":[1],\"intermediate_size\":0}", "block 1 has no experts, and its");
    expect_refused(QWEN2_MOE "\"scoring_func\":\"sigmoid\"}", "'scoring_func' is sigmoid");
#define GLM4_MOE "{\"model_type\":\"glm4_moe\",\"moe_intermediate_size\":48,"
    h = expect_accepted(GLM4_MOE "\"n_routed_experts\":16,\"routed_scaling_factor\":2.5,\"attention_bias\":true}");
    cr_assert(h.router_scoring == SN_ROUTER_SIGMOID && h.router_normalised && h.router_correction && !h.qk_norm);
    cr_assert(h.dense[0] && !h.dense[1] && h.n_ff_shared == 48 && !h.shared_gated && h.router_scale == 2.5f);
    cr_assert(h.qkv_bias && !h.o_bias && h.rope_dim == h.head_dim / 2);
    cr_assert(expect_accepted(GLM4_MOE "\"use_qk_norm\":true}").qk_norm);
    expect_refused(GLM4_MOE "\"n_group\":4}", "'n_group' is set, which");
    expect_refused(GLM4_MOE "\"n_shared_experts\":-1}", "shared experts of width 48 are not possible");
#define MINIMAX "{\"model_type\":\"minimax_m2\","
    h = expect_accepted(MINIMAX "\"num_local_experts\":16,\"rotary_dim\":8,\"use_qk_norm\":true}");
    cr_assert(h.rope_dim == 8 && h.qk_norm_wide && h.router_normalised && h.n_ff == 96 && !h.n_ff_shared);
    expect_refused(MINIMAX "\"num_local_experts\":16,\"shared_intermediate_size\":8}",
                   "'shared_intermediate_size' is set");
}
