#!/usr/bin/env python3
"""Trains a small model with a block that predicts a further token, so that such drafts are seen to be accepted: the published blocks
belong to models of many gigabytes, and those of tests/fixtures have random weights.

    tests/bench/train_mtp.py OUT [--text FILE...] [--steps 800]

Writes a folder of the family qwen3_5 whose blocks all have attention: tokens are the bytes of a text, by default of docs/*.md.
Needs PyTorch; 3 minutes on one core. OUT/ids.json is a prompt from a part of the text that was not trained on:

    swarm-node --model OUT --blocks 0:1 ... ; swarm generate --model OUT --join ... --ids-file OUT/ids.json --max-tokens 300 --json
"""
import argparse
import glob
import json
import os
import struct

import torch
import torch.nn.functional as F

VOCAB, WIDTH, HEADS, KV_HEADS, HEAD, FF, BLOCKS, CONTEXT, EPS, THETA = 256, 128, 4, 2, 32, 256, 2, 512, 1e-6, 10000.0
ROTARY = HEAD // 4


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * (1 + self.weight)


def linear(inputs, outputs):
    layer = torch.nn.Linear(inputs, outputs, bias=False)
    torch.nn.init.normal_(layer.weight, std=0.04)
    return layer


def rotate(x):  # (batch, heads, tokens, HEAD)
    angles = torch.outer(torch.arange(x.shape[2]), THETA ** (-torch.arange(0, ROTARY, 2) / ROTARY))
    cos, sin = angles.cos(), angles.sin()
    a, b, rest = x[..., : ROTARY // 2], x[..., ROTARY // 2 : ROTARY], x[..., ROTARY:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = linear(WIDTH, HEADS * 2 * HEAD), linear(HEADS * HEAD, WIDTH)
        self.k_proj, self.v_proj = linear(WIDTH, KV_HEADS * HEAD), linear(WIDTH, KV_HEADS * HEAD)
        self.q_norm, self.k_norm = Norm(HEAD), Norm(HEAD)

    def forward(self, x):
        b, t, _ = x.shape
        q, gate = self.q_proj(x).view(b, t, HEADS, 2 * HEAD).chunk(2, -1)
        k, v = self.k_proj(x).view(b, t, KV_HEADS, HEAD), self.v_proj(x).view(b, t, KV_HEADS, HEAD)
        q, k, v = rotate(self.q_norm(q).transpose(1, 2)), rotate(self.k_norm(k).transpose(1, 2)), v.transpose(1, 2)
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.o_proj((y * torch.sigmoid(gate)).reshape(b, t, HEADS * HEAD))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(WIDTH, FF), linear(WIDTH, FF), linear(FF, WIDTH)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(WIDTH), Norm(WIDTH)
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCAB, WIDTH)
        torch.nn.init.normal_(self.embed_tokens.weight, std=0.04)
        self.layers, self.norm = torch.nn.ModuleList(Block() for _ in range(BLOCKS)), Norm(WIDTH)


class Mtp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = linear(2 * WIDTH, WIDTH), Norm(WIDTH), Norm(WIDTH)
        self.layers, self.norm = torch.nn.ModuleList([Block()]), Norm(WIDTH)


class Model(torch.nn.Module):  # the names of its parameters are those of published folders
    def __init__(self):
        super().__init__()
        self.model, self.mtp = Body(), Mtp()

    def further(self, h, embeddings):
        m = self.mtp
        return m.norm(m.layers[0](m.fc(torch.cat([m.pre_fc_norm_embedding(embeddings), m.pre_fc_norm_hidden(h)], -1))))

    def losses(self, ids):  # of the next token, of the one after it, and of the third, drafted on from the second's own row
        x = e = self.model.embed_tokens(ids)
        for block in self.model.layers:
            x = block(x)
        h = self.model.norm(x)
        second = self.further(h[:, :-1], e[:, 1:])
        third = self.further(second[:, :-1], e[:, 2:])
        rows = zip((h, second, third), (ids[:, 1:], ids[:, 2:], ids[:, 3:]))
        return [F.cross_entropy((r[:, : t.shape[1]] @ self.model.embed_tokens.weight.T).flatten(0, 1), t.flatten()) for r, t in rows]


def save(model, folder):
    config = {"model_type": "qwen3_5_text", "vocab_size": VOCAB, "hidden_size": WIDTH, "num_attention_heads": HEADS, "head_dim": HEAD,
              "num_key_value_heads": KV_HEADS, "intermediate_size": FF, "num_hidden_layers": BLOCKS, "rms_norm_eps": EPS,
              "layer_types": ["full_attention"] * BLOCKS, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True,
              "rope_parameters": {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": 0.25},
              "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
              "linear_value_head_dim": 16, "mtp_num_hidden_layers": 1}
    header, body = {}, b""
    for name, p in model.state_dict().items():
        data = p.detach().float().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(p.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--text", nargs="*", default=sorted(glob.glob(os.path.join(os.path.dirname(__file__), "../../docs/*.md"))))
    p.add_argument("--steps", type=int, default=800)
    a = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    text = torch.tensor(list(b"".join(open(f, "rb").read() for f in a.text)))
    split, length, batch = len(text) * 95 // 100, 96, 8
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=a.steps, pct_start=0.05)
    for step in range(a.steps):
        at = torch.randint(split - length, (batch,))
        losses = model.losses(torch.stack([text[i : i + length] for i in at]))
        optimizer.zero_grad()
        (losses[0] + 0.5 * losses[1] + 0.3 * losses[2]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(step + 1, *(f"{x:.3f}" for x in losses), flush=True)
            save(model, a.out)
    with open(os.path.join(a.out, "ids.json"), "w") as f:
        json.dump(text[split : split + 128].tolist(), f)


if __name__ == "__main__":
    main()
