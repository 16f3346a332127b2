"""Computes small models from the GGUF files that llama.cpp's own converter makes of them, and compares with transformers.

    converted_models.py SWARM LLAMA_CPP OUT FOLDER...

Each FOLDER is a model without a tokenizer. LLAMA_CPP is the folder of llama.cpp's sources, OUT one for the files. What the makers of
models write into config.json and transformers does not is added (PUBLISHED), and what a GGUF file has no field for has the value that
llama.cpp assumes (ASSUMED). Prints for each model how far the logits are off, as a share of the largest; the exit code is 1 if one is off,
or refused, or if the file of a folder named ..._mtp drafts otherwise than the folder.
"""
import json, os, shutil, subprocess, sys, warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
swarm, llama, out, folders = sys.argv[1], sys.argv[2], sys.argv[3], [f.rstrip("/") for f in sys.argv[4:]]
sys.path[:0] = [llama, os.path.join(llama, "gguf-py")]
import torch, transformers
import convert_hf_to_gguf as converter
from conversion import base
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

torch.set_num_threads(1)
transformers.logging.disable_progress_bar()
TOLERANCE, OF_RECURRENT = 1e-5, 5e-5  # float32 on both sides, in other orders: 4e-6 were seen, and 2e-5 of states that sum over all positions
IDS = [5, 9, 31, 77, 12, 200, 3, 150, 42, 42, 88, 17, 201, 6, 99, 54, 23, 68, 111, 7, 60, 61, 62, 63, 200, 19, 33, 2]
PUBLISHED = {"deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}, "minimax_m2": {"rotary_dim": 8, "scoring_func": "sigmoid"},
             "falcon_7b": {"num_kv_heads": 1},
             "cohere2": {"rotary_pct": 1.0}}
ASSUMED = {"mistral": {"sliding_window": None}, "gemma2": {"query_pre_attn_scalar": 16}, "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192},
           "gemma3": {"layer_types": ["sliding_attention"] * 4}}  # each sixth block is another one
LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0, "original_max_position_embeddings": 64}
# What the converter reads in place of what transformers does, and transformers would take otherwise; null: left out.
CONVERTED = {"mimo_v2_flash": {"rope_parameters": None, "rope_theta": 50000.0, "swa_rope_theta": 10000.0, "partial_rotary_factor": 0.334,
                               "hybrid_layer_pattern": [0, 1, 1, 0], "swa_head_dim": 24, "swa_v_head_dim": 16, "swa_num_attention_heads": 4,
                               "swa_num_key_value_heads": 2, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
             "step3p7": {"rope_parameters": None, "rope_scaling": LLAMA3, "num_attention_groups": 2, "moe_num_experts": 6, "moe_top_k": 2,
                         "moe_layers_enum": "2,3", "norm_expert_weight": True, "rope_theta": [50000.0, 10000.0, 10000.0, 50000.0],
                         "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5], "yarn_only_types": ["full_attention"],
                         "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2}},
             "granitemoehybrid": {"layer_types": ["mamba", "mamba", "attention", "mamba"]},
             "bailing_hybrid": {"norm_topk_prob": True, "rope_theta": 10000.0, "n_group": 4, "scoring_func": "sigmoid", "num_experts_per_tok": 3},
             "nemotron_h": {"mamba_d_head": 8, "hybrid_override_pattern": "M-M*-", "n_routed_experts": None, "num_experts_per_tok": None,
                            "n_group": None, "topk_group": None, "n_shared_experts": None, "routed_scaling_factor": None, "norm_topk_prob": None},
             "nemotron_h_moe": {"mamba_d_head": 8}, "nemotron_h_latent": {"mamba_d_head": 8},
             "kimi_linear": {"linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 3, "head_dim": 12,
                                                    "short_conv_kernel_size": 4}, "num_experts_per_token": 3,
                             "first_k_dense_replace": 1, "moe_router_activation_func": "sigmoid", "moe_layer_freq": 1,
                             "num_nextn_predict_layers": 0, "rope_theta": 10000.0}}
find_class = converter.get_model_class


def without_vocabulary(*args, **kwargs):
    """The folders have no tokenizer; vocabularies have a test of their own."""
    model = find_class(*args, **kwargs)
    model.set_vocab = lambda self: self._set_vocab_none()
    model.no_mtp = False  # which --no-mtp sets for all later folders of the class
    return model


converter.get_model_class = without_vocabulary


def copy(folder):
    """A copy of the model with the fields above."""
    to = os.path.join(out, os.path.basename(folder))
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("golden.safetensors"))
    with open(os.path.join(to, "config.json"), "r+") as f:
        config = json.load(f)
        for name in (config["model_type"].removesuffix("_text"), os.path.basename(folder)):
            config.get("text_config", config).update({**PUBLISHED.get(name, {}), **ASSUMED.get(name, {})})
        f.seek(0)
        json.dump(config, f)
        f.truncate()
    with open(os.path.join(to, "tokenizer.json"), "w") as f:  # Gemma 3's converter counts its tokens
        json.dump({"model": {"vocab": {str(i): i for i in range(config.get("text_config", config)["vocab_size"])}}, "added_tokens": []}, f)
    return to


def change(folder, changes):
    """Changes the configuration of the text; returns what it was."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        before = f.read()
    config = json.loads(before)
    text = config.get("text_config", config)
    text.update(changes)
    for name in [name for name, value in changes.items() if value is None]:
        text.pop(name)
    with open(path, "w") as f:
        json.dump(config, f)
    return before


def is_recurrent(folder):
    families = ("qwen3_5", "qwen3_next", "lfm2", "granitemoehybrid", "nemotron_h", "kimi_linear", "bailing_hybrid")
    return any(family in folder for family in families)


def convert(folder, path):
    sys.argv = ["convert", folder, "--outfile", path, "--outtype", "f32"] + ["--no-mtp"] * ("/qwen3_" in folder and is_recurrent(folder) and not folder.endswith("_mtp"))
    changes = CONVERTED.get(os.path.basename(folder), {})
    before, known = change(folder, changes), base.AutoConfig
    if changes:
        base.AutoConfig = None  # transformers would rewrite the configuration: the converter reads the file instead
    try:
        converter.main()
    except (Exception, SystemExit) as e:
        return f"not converted: {type(e).__name__}: {str(e)[:100]}"
    finally:
        base.AutoConfig = known
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write(before)


def off(folder, path):
    """How far the logits of the file are from the reference's of the folder, or why there are none."""
    with torch.no_grad():
        load = AutoModelForImageTextToText if "step3p7" in folder else AutoModelForCausalLM
        want = load.from_pretrained(folder, dtype=torch.float32).eval()(torch.tensor([IDS]), use_cache=False).logits[0]
    ids, to = os.path.join(out, "ids.json"), os.path.join(out, "out.safetensors")
    with open(ids, "w") as f:
        json.dump(IDS, f)
    run = subprocess.run([swarm, "forward", "--model", path, "--local", "all", "--ids-file", ids, "--out", to, "--force", "--threads", "1",
                          "--kv-dtype", "f32"], capture_output=True, text=True, timeout=120)
    return run.stderr.strip() if run.returncode else float((load_file(to)["logits"] - want).abs().max() / want.abs().max())


def drafts(model):
    """The text and the drafts of the model's own block, which a random model accepts now and then."""
    run = subprocess.run([swarm, "generate", "--model", model, "--local", "all", "--ids-file", os.path.join(out, "ids.json"), "--draft", "mtp",
                          "--max-tokens", "100", "--ignore-eos", "--json", "--threads", "1", "--kv-dtype", "f32"],
                         capture_output=True, text=True, timeout=120)
    if run.returncode:
        return run.stderr.strip()
    answer = json.loads(run.stdout)
    return answer["ids"], answer["timings"]["drafted"], answer["timings"]["accepted"]


bad = 0
for folder in folders:
    copied = copy(folder)
    path = copied + ".gguf"
    found = convert(copied, path) or off(copied, path)
    if not isinstance(found, str) and folder.endswith("_mtp") and "deepseek_v3_" not in folder:  # whose blocks are left out of files
        ours, theirs = drafts(copied), drafts(path)
        found = found if ours == theirs and ours[1] else f"drafts {theirs}, not {ours}"
    good = isinstance(found, float) and found <= (OF_RECURRENT if is_recurrent(folder) else TOLERANCE)
    bad += not good
    print(f"{os.path.basename(folder)}: {found if isinstance(found, str) else format(found, '.1e')}{'' if good else '  <--'}", flush=True)
    shutil.rmtree(copied)
    if os.path.exists(path):
        os.remove(path)
print(f"{len(folders)} models, {bad} off")
sys.exit(bool(bad))
