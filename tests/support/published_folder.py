#!/usr/bin/env python3
"""Writes a folder as DeepSeek-V3 or Kimi K2 is published: the shapes, types and names of all tensors, the shards and their index, with
holes for the bytes, which read as zeros and take no room on the disk.

    published_folder.py deepseek|kimi OUT
"""
import json, math, os, struct, sys

MODELS = {
    "deepseek": dict(family="deepseek_v3", experts=256, heads=128, vocabulary=129280, dense=3, shards=163, groups=8, groups_used=4, scale=2.5),
    "kimi": dict(family="kimi_k2", experts=384, heads=64, vocabulary=163840, dense=1, shards=61, groups=1, groups_used=1, scale=2.827),
}
WIDTH, FF, EXPERT_FF, BLOCKS, TILE = 7168, 18432, 2048, 61, 128
SIZE = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
model, out = MODELS[sys.argv[1]], sys.argv[2]
heads = model["heads"]

config = dict(
    model_type=model["family"], architectures=["DeepseekV3ForCausalLM"], hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=heads,
    num_key_value_heads=heads, intermediate_size=FF, moe_intermediate_size=EXPERT_FF, vocab_size=model["vocabulary"], max_position_embeddings=163840,
    rms_norm_eps=1e-6, hidden_act="silu", kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    n_routed_experts=model["experts"], num_experts_per_tok=8, n_group=model["groups"], topk_group=model["groups_used"], n_shared_experts=1,
    first_k_dense_replace=model["dense"], moe_layer_freq=1, routed_scaling_factor=model["scale"], norm_topk_prob=True, scoring_func="sigmoid",
    topk_method="noaux_tc", tie_word_embeddings=False, rope_theta=10000, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16",
    rope_scaling=dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=4096),
    quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[TILE, TILE]))


def matrix(name, rows, columns):
    yield name + ".weight", "F8_E4M3", [rows, columns]
    yield name + ".weight_scale_inv", "F32", [-(-rows // TILE), -(-columns // TILE)]


def gated(name, width):
    yield from matrix(name + ".gate_proj", width, WIDTH)
    yield from matrix(name + ".up_proj", width, WIDTH)
    yield from matrix(name + ".down_proj", WIDTH, width)


def tensors():
    """(name, type, shape) of each tensor."""
    yield "model.embed_tokens.weight", "BF16", [model["vocabulary"], WIDTH]
    for block in range(BLOCKS):
        b = f"model.layers.{block}."
        for norm, width in ("input_layernorm", WIDTH), ("post_attention_layernorm", WIDTH), ("self_attn.q_a_layernorm", 1536), ("self_attn.kv_a_layernorm", 512):
            yield b + norm + ".weight", "BF16", [width]
        for name, rows, columns in (("q_a_proj", 1536, WIDTH), ("q_b_proj", heads * 192, 1536), ("kv_a_proj_with_mqa", 576, WIDTH),
                                    ("kv_b_proj", heads * 256, 512), ("o_proj", WIDTH, heads * 128)):
            yield from matrix(b + "self_attn." + name, rows, columns)
        if block < model["dense"]:
            yield from gated(b + "mlp", FF)
            continue
        yield b + "mlp.gate.weight", "BF16", [model["experts"], WIDTH]
        yield b + "mlp.gate.e_score_correction_bias", "F32", [model["experts"]]
        for expert in ["shared_experts"] + [f"experts.{e}" for e in range(model["experts"])]:
            yield from gated(f"{b}mlp.{expert}", EXPERT_FF)
    yield "model.norm.weight", "BF16", [WIDTH]
    yield "lm_head.weight", "BF16", [model["vocabulary"], WIDTH]


def size(tensor):
    return SIZE[tensor[1]] * math.prod(tensor[2])


os.makedirs(out, exist_ok=True)
everything = list(tensors())
total, at, index = sum(map(size, everything)), 0, {}
shards = [[] for _ in range(model["shards"])]
for tensor in everything:
    shards[at * model["shards"] // total].append(tensor)
    at += size(tensor)
for number, shard in enumerate(shards):
    file, header, at = f"model-{number + 1:05d}-of-{model['shards']:06d}.safetensors", {}, 0
    for name, kind, shape in shard:
        end = at + size((name, kind, shape))
        header[name], index[name], at = dict(dtype=kind, shape=shape, data_offsets=[at, end]), file, end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, file), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
for name, content in ("config.json", config), ("model.safetensors.index.json", dict(metadata=dict(total_size=total), weight_map=index)):
    with open(os.path.join(out, name), "w") as f:
        json.dump(content, f)
print(f"{len(everything)} tensors, {total} bytes, {model['shards']} files")
