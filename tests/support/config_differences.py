"""Compares what configurations mean here with what they mean to transformers.

    config_differences.py SWARM OUT FOLDER... [--field NAME] [--every N] [--refused]

Each FOLDER is a small model. Every field of its config.json, and of what transformers adds to it, is left out, set to null and
changed to other values, one at a time, and the model is run by both. Where transformers runs the changed model, swarm must give the
same logits (within 1e-4 of the largest) or refuse; what it computes otherwise is printed, and the exit code is 1. OUT is a folder
for the changed models. --field takes changes whose description holds NAME, --every one of N, --refused prints what swarm refuses and
transformers does not. The last line counts.
"""
import argparse, copy, json, os, struct, subprocess, sys, time, warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import torch, transformers
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
transformers.logging.disable_progress_bar()
TOLERANCE = 1e-4
IDS = [5, 9, 31, 77, 12, 200, 3, 150, 42, 42, 88, 17, 201, 6, 99, 54, 23, 68, 111, 7, 60, 61, 62, 63, 200, 19, 33, 2]
# Not of the mathematics of a forward pass; or they say where and how to load.
SKIPPED = {"_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "model_type", "vocab_size", "_commit_hash",
           "output_hidden_states", "output_attentions", "return_dict", "use_cache", "id2label", "label2id", "problem_type", "chunk_size_feed_forward",
           "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "initializer_factor", "attention_dropout", "quantization_config"}


def others(name, value):
    """Values that the field could have instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [v for v in {0, 1, 2, value + 1, value - 1, value * 2, value // 2, 5} if v != value and v >= 0]
    if isinstance(value, float):
        return [v for v in (value * 2, value / 2, 0.0, 1.0, value * 1.37) if v != value]
    if isinstance(value, str):
        words = {"act": ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "quick_gelu", "gelu_fast", "sigmoid"],
                 "topk_method": ["greedy", "group_limited_greedy", "noaux_tc"], "scoring_func": ["softmax", "sigmoid"],
                 "rope_type": ["linear", "dynamic", "yarn", "longrope", "llama3"]}
        return [w for key, list_ in words.items() if key in name for w in list_ if w != value]
    if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        kinds = sorted(set(value) | {"full_attention", "sliding_attention"})
        return [value[::-1]] + [[k] * len(value) for k in kinds] + [value[:-1]]
    if isinstance(value, list):
        return [[], value[::-1], [0] * len(value), [1] * len(value)]
    if value is None:
        return [0, 1, 2, 4, 8, True, False, 0.5]
    return []


ROPES = [{"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 4.0}, {"rope_type": "dynamic", "factor": 2.0},
         {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, {"rope_type": "yarn", "factor": 4.0},
         {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
         {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "attention_factor": 1.5}, {"rope_type": "default"},
         {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 8},
         {"rope_theta": 5e4}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 3e3},
         {"type": "su", "factor": 2.0}]
# Fields that the makers of models write by hand, whatever the family.
ADDED = {"rope_scaling": ROPES, "rope_theta": [1e6, 5000.0], "is_causal": [False], "tie_word_embeddings": [True, False], "attention_bias": [True, False],
         "mlp_bias": [True], "hidden_act": ["gelu", "silu", "relu"], "hidden_activation": ["gelu", "silu", "gelu_pytorch_tanh"],
         "partial_rotary_factor": [0.5, 1.0], "routed_scaling_factor": [2.0, 1.0], "sliding_window": [4, None], "use_sliding_window": [True, False],
         "layer_types": [], "head_dim": [8, 32], "attn_logit_softcapping": [10.0], "final_logit_softcapping": [5.0], "query_pre_attn_scalar": [64],
         "norm_topk_prob": [True, False], "num_key_value_heads": [1, 2, 4], "max_window_layers": [0, 1, 2], "scoring_func": ["softmax", "sigmoid"],
         "rms_norm_eps": [1e-5, 1e-3], "layer_norm_epsilon": [1e-3], "norm_eps": [1e-3], "layer_norm_eps": [1e-3], "scale_attn_weights": [False],
         "attn_scale": [0.3], "logit_scale": [0.5], "logits_scaling": [2.0], "embedding_multiplier": [2.0], "attention_multiplier": [0.5],
         "residual_multiplier": [0.5], "use_qk_norm": [True, False], "qk_layernorm": [True], "clip_qkv": [0.1], "rope_interleave": [True, False],
         "n_group": [1, 2], "topk_group": [1], "topk_method": ["greedy", "noaux_tc"], "first_k_dense_replace": [0, 1, 2], "no_rope_layers": [[1, 0, 1, 0]],
         "no_rope_layer_interval": [2], "attention_chunk_size": [4], "attn_temperature_tuning": [True, False], "rope_local_base_freq": [1e3],
         "use_bidirectional_attention": [True], "activation": ["gelu", "silu"], "swiglu_limit": [3.0], "multi_query": [True, False], "alibi": [True],
         "parallel_attn": [True, False], "residual_in_fp32": [True], "embedding_scale": [2.0], "attention_sink": [True]}


def changes(config, full):
    """(what, config) for each change."""
    def with_(path, value, drop=False):
        out = copy.deepcopy(config)
        at = out
        for key in path[:-1]:
            at = at.setdefault(key, {})
        if drop:
            at.pop(path[-1], None)
        else:
            at[path[-1]] = value
        return out

    fields = {(k,): v for k, v in {**full, **config}.items() if k not in SKIPPED}
    for holder in ("rope_parameters", "rope_scaling", "text_config"):
        for k, v in (config.get(holder) or {}).items():
            if isinstance(v, dict):
                fields.update({(holder, k, k2): v2 for k2, v2 in v.items()})
            elif k not in SKIPPED:
                fields[(holder, k)] = v
    for path, value in fields.items():
        name = ".".join(path)
        if path[0] in config:
            yield f"{name} left out", with_(path, None, True)
            yield f"{name} = null", with_(path, None)
        for other in others(path[-1], value):
            yield f"{name} = {json.dumps(other)}", with_(path, other)
    for name, values in ADDED.items():
        for value in values:
            for top in ([()] if "text_config" not in config else [("text_config",)]):
                yield f"{'.'.join(top + (name,))} := {json.dumps(value)}", with_(top + (name,), value)
    for rope in ROPES:
        yield f"rope_parameters := {json.dumps(rope)}", with_(("rope_parameters",), {"rope_theta": 1e4, **rope})
        bare = with_(("rope_parameters",), None, True)
        bare["rope_scaling"] = rope
        yield f"only rope_scaling := {json.dumps(rope)}", bare


def reference(folder):
    """The logits, or why there are none."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        missing = [k for k in info["missing_keys"] if "rotary" not in k]
        if missing or info["mismatched_keys"]:
            return None, f"other tensors: {(missing or list(info['mismatched_keys']))[:3]}"
        with torch.no_grad():
            return model.eval()(torch.tensor([IDS]), use_cache=False).logits[0].float(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def ours(swarm, folder, out):
    run = subprocess.run([swarm, "forward", "--model", folder, "--local", "all", "--ids-file", out + "/ids", "--out", out + "/logits", "--force",
                          "--threads", "1", "--kv-dtype", "f32"], capture_output=True, text=True)
    if run.returncode:
        return None, run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit code {run.returncode}"
    with open(out + "/logits", "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        begin, end = header["logits"]["data_offsets"]
        f.seek(begin, 1)
        return torch.frombuffer(bytearray(f.read(end - begin)), dtype=torch.float32).reshape(header["logits"]["shape"]), ""


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("swarm"), parser.add_argument("out"), parser.add_argument("folders", nargs="+")
    parser.add_argument("--field", default=""), parser.add_argument("--every", type=int, default=1), parser.add_argument("--refused", action="store_true")
    given = parser.parse_args()
    swarm, out = given.swarm, given.out
    counts = {"same": 0, "refused": 0, "off": 0, "no reference": 0}
    os.makedirs(out + "/model", exist_ok=True)
    json.dump(IDS, open(out + "/ids", "w"))
    for folder in given.folders:
        config = json.load(open(folder + "/config.json"))
        for name in os.listdir(out + "/model"):
            os.unlink(out + "/model/" + name)
        for name in os.listdir(folder):
            if name.startswith("model"):
                os.symlink(os.path.abspath(folder + "/" + name), out + "/model/" + name)
        full = transformers.AutoConfig.from_pretrained(folder).to_dict()
        for n, (what, changed) in enumerate([("unchanged", config), *changes(config, full)]):
            if given.field not in what or n % given.every:
                continue
            json.dump(changed, open(out + "/model/config.json", "w"))
            expected, why = reference(out + "/model")
            if expected is None:
                counts["no reference"] += 1
                if what == "unchanged":
                    print(f"{folder}: transformers does not run it: {why}")
                continue
            got, text = ours(swarm, out + "/model", out)
            name = os.path.basename(folder.rstrip("/"))
            if got is None:
                counts["refused"] += 1
                if given.refused or what == "unchanged":
                    print(f"refused {name}: {what}: {text[:200]}", flush=True)
                continue
            off = float((got - expected).abs().max() / expected.abs().max())
            same = off < TOLERANCE or bool(torch.isnan(expected).any())
            counts["same" if same else "off"] += 1
            if not same:
                print(f"OFF {name}: {what}: {off:.2g}", flush=True)
    print(", ".join(f"{n} {k}" for k, n in counts.items()))
    sys.exit(counts["off"] > 0)


if __name__ == "__main__":
    main()
