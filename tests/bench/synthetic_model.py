#!/usr/bin/env python3
"""Writes a Llama model of any size, or a mixture (30b-a3b: Qwen3 MoE, gpt-oss-120b), with random weights as a GGUF file: for
measurements of speed only; its text is noise.

    tests/bench/synthetic_model.py OUT.gguf [--type Q4_K] [--blocks 32] [--shape 7b] [--sparse]

The file is written as a stream, which takes a few megabytes of memory. Rows repeat after some megabytes of random blocks, which
does not change the speed. Every matrix is of the type, but the LM head of 4-bit models is Q6_K (Q4_K) or Q8_0 (Q4_0); Q2_K_M to
Q5_K_M mix types as llama.cpp does, `mixed` has each type below four bits in turn, and in mixtures of MXFP4 only experts are MXFP4,
the rest Q8_0. With --sparse the weights are a hole in the file, which takes no room on the disk: zeros, for measurements of memory.
"""
import argparse
import itertools
import math
import random
import struct

# name: width, heads, key-value heads, width of the feed-forward network, vocabulary, context
SHAPES = {"7b": (4096, 32, 32, 11008, 32000, 4096), "8b": (4096, 32, 8, 14336, 128000, 32768),
          "1b": (2048, 32, 8, 8192, 32000, 16384), "135m": (576, 9, 3, 1536, 49152, 16384),
          "70b": (8192, 64, 8, 28672, 128256, 8192), "tiny": (256, 4, 2, 512, 512, 8192), "tiny-mixture": (256, 4, 2, 256, 512, 8192), "30b-a3b": (2048, 32, 4, 768, 32000, 32768),
          "gpt-oss-120b": (2880, 64, 8, 2880, 201088, 131072),
          "row-9k": (2304, 8, 2, 256, 512, 8192), "row-16k": (4096, 8, 2, 256, 512, 8192)}  # wide rows, little computation
HEAD_DIM = {"row-9k": 64, "row-16k": 64}  # where it is not width / heads
EXPERTS = {"30b-a3b": (128, 8, 128), "tiny-mixture": (4, 2, 64), "gpt-oss-120b": (128, 4, 64)}  # number, of a row, width of an attention head; ff is one expert's


def half(x):
    return struct.pack("<e", x)


def iq1_m_scales(r):  # a half in the upper bits of four words, and twelve bits of scales in each
    bits, = struct.unpack("<H", half(r.uniform(2e-3, 4e-3)))
    return b"".join(struct.pack("<H", r.randrange(4096) | (bits >> 4 * i & 15) << 12) for i in range(4))


# type: GGUF's number, elements and bytes of a block, a random block: weights of about 0.02 around zero
TYPES = {
    "F32": (0, 1, 4, lambda r: struct.pack("<f", r.uniform(-0.04, 0.04))),
    "F16": (1, 1, 2, lambda r: half(r.uniform(-0.04, 0.04))),
    "Q4_1": (3, 32, 20, lambda r: half(r.uniform(0.002, 0.004)) + half(r.uniform(-0.03, -0.02)) + r.randbytes(16)),
    "Q5_0": (6, 32, 22, lambda r: half(r.uniform(1e-3, 3e-3)) + r.randbytes(20)),
    "Q5_1": (7, 32, 24, lambda r: half(r.uniform(1e-3, 2e-3)) + half(r.uniform(-0.03, -0.02)) + r.randbytes(20)),
    "Q3_K": (11, 256, 110, lambda r: r.randbytes(108) + half(r.uniform(1e-4, 3e-4))),
    "Q5_K": (13, 256, 176, lambda r: half(r.uniform(5e-5, 1e-4)) + half(r.uniform(8e-4, 1.6e-3)) + r.randbytes(172)),
    "IQ4_NL": (20, 32, 18, lambda r: half(r.uniform(1e-4, 4e-4)) + r.randbytes(16)),
    "IQ4_XS": (23, 256, 136, lambda r: half(r.uniform(5e-6, 2e-5)) + r.randbytes(134)),
    "Q4_0": (2, 32, 18, lambda r: half(r.uniform(0.002, 0.008)) + r.randbytes(16)),
    "Q8_0": (8, 32, 34, lambda r: half(r.uniform(1e-4, 4e-4)) + r.randbytes(32)),
    "Q4_K": (12, 256, 144, lambda r: half(r.uniform(1e-4, 2e-4)) + half(r.uniform(8e-4, 1.6e-3)) + r.randbytes(140)),
    "Q6_K": (14, 256, 210, lambda r: r.randbytes(192) + bytes(r.choices(range(20, 60), k=16)) + half(r.uniform(1e-5, 3e-5))),
    "MXFP4": (39, 32, 17, lambda r: bytes([r.randrange(118, 122)]) + r.randbytes(16)),
    "BF16": (30, 1, 2, lambda r: struct.pack("<f", r.uniform(-0.04, 0.04))[2:]),
    "Q2_K": (10, 256, 84, lambda r: r.randbytes(80) + half(r.uniform(1e-3, 2e-3)) + half(r.uniform(1.5e-3, 3e-3))),
    "IQ1_S": (19, 256, 50, lambda r: half(r.uniform(2e-3, 4e-3)) + r.randbytes(48)),
    "IQ1_M": (29, 256, 56, lambda r: r.randbytes(48) + iq1_m_scales(r)),
    "IQ2_XXS": (16, 256, 66, lambda r: half(r.uniform(3e-4, 6e-4)) + r.randbytes(64)),
    "IQ2_XS": (17, 256, 74, lambda r: half(r.uniform(3e-4, 6e-4)) + r.randbytes(72)),
    "IQ2_S": (22, 256, 82, lambda r: half(r.uniform(3e-4, 6e-4)) + r.randbytes(80)),
    "IQ3_XXS": (18, 256, 98, lambda r: half(r.uniform(1e-4, 2e-4)) + r.randbytes(96)),
    "IQ3_S": (21, 256, 110, lambda r: half(r.uniform(1e-4, 2e-4)) + r.randbytes(108)),
    "TQ1_0": (34, 256, 54, lambda r: r.randbytes(52) + half(r.uniform(0.01, 0.03))),
    "TQ2_0": (35, 256, 66, lambda r: bytes(r.choices(TERNARY, k=64)) + half(r.uniform(0.01, 0.03))),
    "NVFP4": (40, 64, 36, lambda r: bytes(r.choices(range(3, 9), k=4)) + r.randbytes(32)),
    "Q1_0": (41, 128, 18, lambda r: half(r.uniform(0.01, 0.03)) + r.randbytes(16)),
    "Q2_0": (42, 64, 18, lambda r: half(r.uniform(0.01, 0.03)) + bytes(r.choices(TERNARY, k=16))),
}
TERNARY = [a | b << 2 | c << 4 | d << 6 for a in range(3) for b in range(3) for c in range(3) for d in range(3)]
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
ALIGNMENT = 32


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(kind, v):
    if kind == STRING:
        return text(v)
    return struct.pack({UINT32: "<I", FLOAT32: "<f", INT32: "<i"}[kind], v)


def field(key, kind, v):
    if isinstance(v, list):
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(v)) + b"".join(value(kind, x) for x in v)
    return text(key) + struct.pack("<I", kind) + value(kind, v)


def head_dim(shape, width, heads):
    return EXPERTS[shape][2] if shape in EXPERTS else HEAD_DIM.get(shape, width // heads)


def fields(shape, width, heads, kv_heads, ff, vocab, context, blocks, experts):
    # A character for each byte, as in GPT-2, and then meaningless words.
    plain = [c for c in range(256) if 33 <= c <= 126 or 161 <= c <= 172 or c >= 174]
    letters = [chr(c) for c in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    tokens = ["<end>"] + letters + ["ma"] + ["made%d" % i for i in range(vocab)]
    family, more = "llama", []
    if experts:
        family = "gpt-oss" if shape == "gpt-oss-120b" else "qwen3moe"
        more = [field(family + "." + key, UINT32, n) for key, n in
                (("expert_count", experts[0]), ("expert_used_count", experts[1]), ("expert_feed_forward_length", ff),
                 ("attention.key_length", experts[2]), ("attention.value_length", experts[2]))]
    if shape in HEAD_DIM:
        more = [field(family + ".attention." + key, UINT32, HEAD_DIM[shape]) for key in ("key_length", "value_length")]
    if family == "gpt-oss":
        more += [field("gpt-oss.attention.sliding_window", UINT32, 128), field("gpt-oss.rope.scaling.type", STRING, "yarn"),
                 field("gpt-oss.rope.scaling.factor", FLOAT32, 32.0),
                 field("gpt-oss.rope.scaling.original_context_length", UINT32, 4096)]
    a = family + "."
    return more + [field("general.architecture", STRING, family), field("general.name", STRING, "made"),
            field(a + "context_length", UINT32, context), field(a + "embedding_length", UINT32, width),
            field(a + "block_count", UINT32, blocks), field(a + "feed_forward_length", UINT32, ff),
            field(a + "attention.head_count", UINT32, heads), field(a + "attention.head_count_kv", UINT32, kv_heads),
            field(a + "attention.layer_norm_rms_epsilon", FLOAT32, 1e-5), field(a + "rope.freq_base", FLOAT32, 10000),
            field(a + "rope.dimension_count", UINT32, head_dim(shape, width, heads)), field(a + "vocab_size", UINT32, vocab),
            field("tokenizer.ggml.model", STRING, "gpt2"), field("tokenizer.ggml.pre", STRING, "gpt-2"),
            field("tokenizer.ggml.tokens", STRING, tokens[:vocab]),
            field("tokenizer.ggml.token_type", INT32, [3] + [1] * (vocab - 1)),
            field("tokenizer.ggml.merges", STRING, ["m a"]),
            field("tokenizer.ggml.bos_token_id", UINT32, 0), field("tokenizer.ggml.eos_token_id", UINT32, 0)]


def oss_tensors(p, width, q, kv, heads, ff, n):
    yield p + "attn_sinks.weight", "F32", (heads,)
    for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv), ("attn_output", width), ("ffn_gate_inp", n)):
        yield p + name + ".bias", "F32", (rows,)
    for name, rows in (("gate", ff), ("up", ff), ("down", width)):
        yield p + "ffn_%s_exps.bias" % name, "F32", (rows, n)


MIXES = ("Q2_K_M", "Q3_K_M", "Q4_K_M", "Q5_K_M")  # Q2_K_M: what llama.cpp calls Q2_K


def in_mix(mix, part, b, blocks, groups):
    """The type of a matrix as llama.cpp mixes them; groups: query heads over a key-value head."""
    if mix == "Q2_K_M":
        return {"v": "Q4_K" if groups >= 4 else "Q3_K", "down": "Q3_K", "output": "Q3_K"}.get(part, "Q2_K")
    if mix == "Q3_K_M":
        return {"v": "Q5_K" if b < 2 else "Q4_K", "down": "Q5_K" if b < blocks // 16 else "Q4_K", "output": "Q4_K"}.get(part, "Q3_K")
    more_bits = b < blocks // 8 or b >= 7 * blocks // 8 or (b - blocks // 8) % 3 == 2
    return "Q6_K" if part in ("v", "down") and more_bits else mix[:4]


def tensors(kind, shape, width, heads, kv_heads, ff, vocab, blocks, experts):
    oss, mix, of_experts = shape == "gpt-oss-120b", kind if kind in MIXES else None, kind[:4] if kind in MIXES else kind
    kind = "Q8_0" if kind == "MXFP4" and experts else of_experts
    head = "Q6_K" if mix else {"Q4_0": "Q8_0", "Q4_K": "Q6_K"}.get(kind, kind)
    dim = head_dim(shape, width, heads)
    q, kv = dim * heads, dim * kv_heads
    if kind == "mixed":
        head, turns = "Q2_K", itertools.cycle(sorted(t for t in TYPES if t[:3] in ("IQ1", "IQ2", "IQ3", "TQ1", "TQ2", "NVF", "Q1_", "Q2_") and t != "Q2_K"))
        for name, _, dims in list(tensors("F16", shape, width, heads, kv_heads, ff, vocab, blocks, experts)):
            yield name, "norm" if "norm" in name else next(turns) if name.startswith("blk.") else head, dims
        return
    yield "token_embd.weight", head, (width, vocab)
    for b in range(blocks):
        p = "blk.%d." % b
        better = {part: in_mix(mix, part, b, blocks, heads // kv_heads) if mix else kind for part in ("v", "down", "output")}
        yield p + "attn_norm.weight", "norm", (width,)
        yield p + "attn_q.weight", kind, (width, q)
        yield p + "attn_k.weight", kind, (width, kv)
        yield p + "attn_v.weight", better["v"], (width, kv)
        yield p + "attn_output.weight", better["output"], (q, width)
        yield p + ("post_attention_norm.weight" if oss else "ffn_norm.weight"), "norm", (width,)
        if oss:
            yield from oss_tensors(p, width, q, kv, heads, ff, experts[0])
        if experts:
            if not oss:
                yield p + "attn_q_norm.weight", "norm", (dim,)
                yield p + "attn_k_norm.weight", "norm", (dim,)
            yield p + "ffn_gate_inp.weight", "F32", (width, experts[0])
            yield p + "ffn_gate_exps.weight", of_experts, (width, ff, experts[0])
            yield p + "ffn_up_exps.weight", of_experts, (width, ff, experts[0])
            yield p + "ffn_down_exps.weight", of_experts, (ff, width, experts[0])
            continue
        yield p + "ffn_gate.weight", kind, (width, ff)
        yield p + "ffn_up.weight", kind, (width, ff)
        yield p + "ffn_down.weight", better["down"], (ff, width)
    yield "output_norm.weight", "norm", (width,)
    yield "output.weight", head, (width, vocab)


def size_of(kind, shape):
    n = math.prod(shape)
    _, elements, size, _ = TYPES["F32" if kind == "norm" else kind]
    assert shape[0] % elements == 0, "rows of %d do not divide into blocks of %s" % (shape[0], kind)
    return n // elements * size


def write(out, rng, kind, size, pools):  # pools: some megabytes of random blocks of each type, made once
    if kind == "norm":
        out.write(struct.pack("<f", 1) * (size // 4))
        return
    if kind not in pools:
        block = TYPES[kind][2]
        pools[kind] = b"".join(TYPES[kind][3](rng) for _ in range((1 << 21) // block))
    pool, block = pools[kind], TYPES[kind][2]
    while size:
        first = rng.randrange(len(pool) // block) * block
        n = min(size, len(pool) - first)
        out.write(memoryview(pool)[first:first + n])
        size -= n


def main():
    parser = argparse.ArgumentParser(description="Writes a Llama model with random weights as GGUF.")
    parser.add_argument("out")
    parser.add_argument("--type", choices=sorted([*TYPES, *MIXES]) + ["mixed"], default="Q4_K")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="7b")
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sparse", action="store_true", help="leave the weights out: a file of the same size that is a hole")
    o = parser.parse_args()
    width, heads, kv_heads, ff, vocab, context = SHAPES[o.shape]
    experts = EXPERTS.get(o.shape)
    about = fields(o.shape, width, heads, kv_heads, ff, vocab, context, o.blocks, experts)
    all_tensors = list(tensors(o.type, o.shape, width, heads, kv_heads, ff, vocab, o.blocks, experts))
    head, offset = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(about)) + b"".join(about), 0
    for name, kind, shape in all_tensors:
        number = TYPES["F32" if kind == "norm" else kind][0]
        head += text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, number, offset)
        offset += -(-size_of(kind, shape) // ALIGNMENT) * ALIGNMENT
    rng, pools = random.Random(o.seed), {}
    with open(o.out, "wb") as out:
        out.write(head + b"\0" * (-len(head) % ALIGNMENT))
        if o.sparse:
            out.truncate(out.tell() + offset)
            return
        for _, kind, shape in all_tensors:
            size = size_of(kind, shape)
            write(out, rng, kind, size, pools)
            out.write(b"\0" * (-size % ALIGNMENT))


main()
