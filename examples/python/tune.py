"""Trains LoRA of remote blocks with PyTorch, on the lines of a .jsonl file with {"text"}: the losses of `swarm tune
--schedule constant`, when a batch holds all lines. OUT is then an adapter, for `swarm generate --adapter` and PEFT.

python tune.py MODEL TEXTS.jsonl STEPS OUT [HOST:PORT]"""

import json
import sys

import torch
import torch.nn.functional as F

import swarmnode
from swarmnode import nn


def main(path, data, steps, out, *join):
    model = swarmnode.Model(swarmnode.Swarm(join=join) if join else None, path)
    texts = [torch.tensor(model.tokenizer.encode(json.loads(line)["text"])) for line in open(data)]
    blocks = nn.RemoteSequential(model, method="lora", rank=8, targets="q,v")
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3, weight_decay=0)

    ids = torch.cat(texts)  # sequences of several lengths, one after another
    lengths = [len(text) for text in texts]
    hidden = nn.embed(model, ids)
    learned = torch.tensor([i + 1 < n for n in lengths for i in range(n)])  # a sequence's last token predicts nothing
    for step in range(int(steps)):
        optimizer.zero_grad()
        logits = nn.logits(model, blocks(hidden, lengths))
        loss = F.cross_entropy(logits[learned], ids.roll(-1)[learned])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(blocks.parameters(), 1.0)
        optimizer.step()
        print(f"{step} {loss.item():.7f}", flush=True)
    blocks.save_adapter(out)


main(*sys.argv[1:])
